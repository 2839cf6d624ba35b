"""Tables to tensors and back. May import `system` and `tables`."""
