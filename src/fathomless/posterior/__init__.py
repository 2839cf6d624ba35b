"""Posteriors over networks, likelihoods and predictions, independent of the family. May import `system`."""
