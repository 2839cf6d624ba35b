"""Cross-fitting: structure, noise and heads by rows that networks were not fitted to."""
