"""One folder a family, and a registry with one line for each. May import what stands above: up to `estimators`."""
