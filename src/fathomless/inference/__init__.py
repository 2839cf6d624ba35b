"""Fitting models to data: the evidence bound, the training loop and what surrounds it."""
