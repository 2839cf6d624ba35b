"""Bayesian layers, flows and architectures. May import `system`."""
