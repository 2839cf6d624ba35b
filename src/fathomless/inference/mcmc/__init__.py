"""Markov chain Monte Carlo: samplers, convergence diagnostics and tests. May import what `inference` may."""
