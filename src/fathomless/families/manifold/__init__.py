"""Weight manifolds: networks decoded from a latent space of few dimensions. This folder imports no other family."""

from fathomless.families.family import Family
from fathomless.families.manifold.options import ManifoldOptions
from fathomless.system.citations import Reference

__all__ = ["FAMILY"]

#: Entry of the registry of families.
FAMILY = Family(
    name="manifold",
    title="weight manifolds, learned from an ensemble of networks",
    options=ManifoldOptions,
    classifier="fathomless.families.manifold.estimator:ProjectedBayesClassifier",
    regressor="fathomless.families.manifold.estimator:ProjectedBayesRegressor",
    networks="fathomless.families.manifold.networks:ManifoldNetworks",
    papers=(
        Reference(
            "pradier2018projected",
            "misc",
            ("Melanie F. Pradier", "Weiwei Pan", "Jiayu Yao", "Soumya Ghosh", "Finale Doshi-Velez"),
            "Projected BNNs: Avoiding Weight-Space Pathologies by Learning Latent Representations of Neural Network "
            "Weights",
            2018,
            "howpublished",
            "arXiv:1811.07006",
        ),
    ),
    report="fathomless.families.manifold.report:page",
    findings="fathomless.families.manifold.report:findings",
    progress={"modes": "modes"},
)
