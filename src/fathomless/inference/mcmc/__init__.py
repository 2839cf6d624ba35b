"""Markov chains: how well they mixed, and whether a sampler is right. May import what `inference` may."""
