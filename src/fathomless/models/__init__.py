"""Families of networks whose structure is a random variable, behind one interface."""
