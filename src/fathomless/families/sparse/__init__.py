"""Sparse networks: which weights are in the network is inferred. This folder imports no other family."""

from fathomless.families.family import Family
from fathomless.families.sparse.options import SparseOptions
from fathomless.system.citations import Reference

__all__ = ["FAMILY"]

#: What the registry knows of it.
FAMILY = Family(
    name="sparse",
    title="as many weights as the data ask for",
    options=SparseOptions,
    classifier="fathomless.families.sparse.estimator:SparseBayesClassifier",
    regressor="fathomless.families.sparse.estimator:SparseBayesRegressor",
    networks="fathomless.families.sparse.networks:SparseNetworks",
    papers=(
        Reference(
            "skaaretlund2023sparsifying",
            "article",
            ("Lars Skaaret-Lund", "Geir Storvik", "Aliaksandr Hubin"),
            "Sparsifying Bayesian Neural Networks with Latent Binary Variables and Normalizing Flows",
            2023,
            "journal",
            "arXiv preprint arXiv:2305.03395",
        ),
    ),
    report="fathomless.families.sparse.report:page",
)
