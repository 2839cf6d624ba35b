"""Sparse networks: posteriors over the inclusion of weights. This folder imports no other family."""

from fathomless.families.family import Family
from fathomless.families.sparse.options import SparseOptions
from fathomless.system.citations import Reference

__all__ = ["FAMILY"]

#: Entry of the registry of families.
FAMILY = Family(
    name="sparse",
    title="sparse networks: inclusion probability of each weight",
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
