"""Infinite graphs: units, layers and connections are a random directed acyclic graph. Imports no other family."""
