"""Estimators with the scikit-learn interface, for every family. May import the folders above, down to `inference`."""
