"""Baselines: finite networks, depth uncertainty, dropout, mean field, ensembles. May also import `depth`."""

from fathomless.families.baselines.options import (
    DepthUncertaintyOptions,
    DropoutOptions,
    EnsembleOptions,
    FiniteOptions,
    LaplaceOptions,
    MatrixNormalOptions,
    MeanFieldOptions,
    SubspaceOptions,
    SWAGOptions,
)
from fathomless.families.family import Family
from fathomless.system.citations import ICML, NEURIPS, Reference

__all__ = ["FAMILIES"]

_ESTIMATOR = "fathomless.families.baselines.estimator"
_NETWORKS = "fathomless.families.baselines.networks"
_REPORT = "fathomless.families.depth.report:page"  # all baselines are networks of layers and heads

#: Entries of these families in the registry.
FAMILIES = (
    Family(
        name="finite",
        title="a baseline: one fixed depth",
        options=FiniteOptions,
        classifier=f"{_ESTIMATOR}:FiniteNetworkClassifier",
        regressor=f"{_ESTIMATOR}:FiniteNetworkRegressor",
        networks=f"{_NETWORKS}:FiniteNetworks",
        report=_REPORT,
    ),
    Family(
        name="depth-uncertainty",
        alias="dun",
        title="a baseline: a posterior over depths 1, 2, ..., D",
        options=DepthUncertaintyOptions,
        classifier=f"{_ESTIMATOR}:DepthUncertaintyNetworkClassifier",
        regressor=f"{_ESTIMATOR}:DepthUncertaintyNetworkRegressor",
        networks=f"{_NETWORKS}:DepthUncertaintyNetworks",
        papers=(
            Reference(
                "antoran2020depth",
                "inproceedings",
                ("Javier Antorán", "James Allingham", "José Miguel Hernández-Lobato"),
                "Depth Uncertainty in Neural Networks",
                2020,
                "booktitle",
                NEURIPS,
            ),
        ),
        report=_REPORT,
        findings="fathomless.families.depth.report:findings",
        progress={"mean_depth": "depth"},
    ),
    Family(
        name="dropout",
        title="a baseline: Monte Carlo dropout",
        options=DropoutOptions,
        classifier=f"{_ESTIMATOR}:DropoutNetworkClassifier",
        regressor=f"{_ESTIMATOR}:DropoutNetworkRegressor",
        networks=f"{_NETWORKS}:DropoutNetworks",
        papers=(
            Reference(
                "gal2016dropout",
                "inproceedings",
                ("Yarin Gal", "Zoubin Ghahramani"),
                "Dropout as a Bayesian Approximation: Representing Model Uncertainty in Deep Learning",
                2016,
                "booktitle",
                ICML,
            ),
        ),
        report=_REPORT,
    ),
    Family(
        name="meanfield",
        title="a baseline: an independent Gaussian for each weight",
        options=MeanFieldOptions,
        classifier=f"{_ESTIMATOR}:MeanFieldNetworkClassifier",
        regressor=f"{_ESTIMATOR}:MeanFieldNetworkRegressor",
        networks=f"{_NETWORKS}:MeanFieldNetworks",
        papers=(
            Reference(
                "blundell2015weight",
                "inproceedings",
                ("Charles Blundell", "Julien Cornebise", "Koray Kavukcuoglu", "Daan Wierstra"),
                "Weight Uncertainty in Neural Networks",
                2015,
                "booktitle",
                ICML,
            ),
        ),
        report=_REPORT,
    ),
    Family(
        name="laplace",
        title="a baseline: Laplace approximation of all weights",
        options=LaplaceOptions,
        classifier=f"{_ESTIMATOR}:LaplaceNetworkClassifier",
        regressor=f"{_ESTIMATOR}:LaplaceNetworkRegressor",
        networks=f"{_NETWORKS}:LaplaceNetworks",
        papers=(
            Reference(
                "immer2021improving",
                "inproceedings",
                ("Alexander Immer", "Maciej Korzepa", "Matthias Bauer"),
                "Improving Predictions of Bayesian Neural Nets via Local Linearization",
                2021,
                "booktitle",
                "International Conference on Artificial Intelligence and Statistics",
            ),
        ),
        report=_REPORT,
    ),
    Family(
        name="swag",
        title="a baseline: stochastic weight averaging, Gaussian (SWAG)",
        options=SWAGOptions,
        classifier=f"{_ESTIMATOR}:SWAGNetworkClassifier",
        regressor=f"{_ESTIMATOR}:SWAGNetworkRegressor",
        networks=f"{_NETWORKS}:SWAGNetworks",
        papers=(
            Reference(
                "maddox2019simple",
                "inproceedings",
                ("Wesley Maddox", "Timur Garipov", "Pavel Izmailov", "Dmitry Vetrov", "Andrew Gordon Wilson"),
                "A Simple Baseline for Bayesian Uncertainty in Deep Learning",
                2019,
                "booktitle",
                NEURIPS,
            ),
        ),
        report=_REPORT,
    ),
    Family(
        name="subspace",
        title="a baseline: posterior of the weights in a subspace",
        options=SubspaceOptions,
        classifier=f"{_ESTIMATOR}:SubspaceNetworkClassifier",
        regressor=f"{_ESTIMATOR}:SubspaceNetworkRegressor",
        networks=f"{_NETWORKS}:SubspaceNetworks",
        papers=(
            Reference(
                "izmailov2019subspace",
                "inproceedings",
                (
                    "Pavel Izmailov",
                    "Wesley Maddox",
                    "Polina Kirichenko",
                    "Timur Garipov",
                    "Dmitry Vetrov",
                    "Andrew Gordon Wilson",
                ),
                "Subspace Inference for Bayesian Deep Learning",
                2019,
                "booktitle",
                "Conference on Uncertainty in Artificial Intelligence",
            ),
        ),
        report=_REPORT,
    ),
    Family(
        name="matrix-normal",
        alias="mvg",
        title="a baseline: a matrix normal for each layer",
        options=MatrixNormalOptions,
        classifier=f"{_ESTIMATOR}:MatrixNormalNetworkClassifier",
        regressor=f"{_ESTIMATOR}:MatrixNormalNetworkRegressor",
        networks=f"{_NETWORKS}:MatrixNormalNetworks",
        papers=(
            Reference(
                "louizos2016structured",
                "inproceedings",
                ("Christos Louizos", "Max Welling"),
                "Structured and Efficient Variational Deep Learning with Matrix Gaussian Posteriors",
                2016,
                "booktitle",
                ICML,
            ),
        ),
        report=_REPORT,
    ),
    Family(
        name="ensemble",
        title="a baseline: a deep ensemble",
        options=EnsembleOptions,
        classifier=f"{_ESTIMATOR}:DeepEnsembleClassifier",
        regressor=f"{_ESTIMATOR}:DeepEnsembleRegressor",
        networks=f"{_NETWORKS}:EnsembleNetworks",
        papers=(
            Reference(
                "lakshminarayanan2017simple",
                "inproceedings",
                ("Balaji Lakshminarayanan", "Alexander Pritzel", "Charles Blundell"),
                "Simple and Scalable Predictive Uncertainty Estimation using Deep Ensembles",
                2017,
                "booktitle",
                NEURIPS,
            ),
        ),
        report=_REPORT,
    ),
)
