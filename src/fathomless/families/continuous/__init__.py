"""Continuous depth: weights that are a stochastic process over depth. This folder imports no other family."""

from fathomless.families.continuous.options import ContinuousOptions
from fathomless.families.family import Family
from fathomless.system.citations import Reference

__all__ = ["FAMILY"]

#: Entry of this family in the registry.
FAMILY = Family(
    name="continuous",
    title="continuous depth: a stochastic differential equation",
    options=ContinuousOptions,
    classifier="fathomless.families.continuous.estimator:ContinuousDepthClassifier",
    regressor="fathomless.families.continuous.estimator:ContinuousDepthRegressor",
    networks="fathomless.families.continuous.networks:ContinuousNetworks",
    papers=(
        Reference(
            "xu2022infinitely",
            "inproceedings",
            ("Winnie Xu", "Ricky T. Q. Chen", "Xuechen Li", "David Duvenaud"),
            "Infinitely Deep Bayesian Neural Networks with Stochastic Differential Equations",
            2022,
            "booktitle",
            "International Conference on Artificial Intelligence and Statistics",
        ),
    ),
    report="fathomless.families.continuous.report:page",
    findings="fathomless.families.continuous.report:findings",
    progress={"mean_horizon": "horizon"},
)
