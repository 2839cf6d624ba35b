"""The scikit-learn border, for every family. May import what stands above: up to `inference`."""
