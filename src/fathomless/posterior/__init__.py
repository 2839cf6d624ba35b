"""What a posterior over networks is, and what follows from it without knowing the family. May import `system`."""
