"""Variational training: stochastic gradient ascent on the evidence lower bound."""
