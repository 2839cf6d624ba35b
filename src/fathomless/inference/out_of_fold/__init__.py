"""Cross-fitting: posterior over structure, noise and last layer from out-of-fold rows."""
