"""fathomless: Bayesian neural networks whose structure is a random variable.

Public names are resolved on first use; importing the package runs nothing and does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fathomless.estimators import (
        DeepEnsembleClassifier,
        DeepEnsembleRegressor,
        DepthUncertaintyNetworkClassifier,
        DepthUncertaintyNetworkRegressor,
        DropoutNetworkClassifier,
        DropoutNetworkRegressor,
        FiniteNetworkClassifier,
        FiniteNetworkRegressor,
        MeanFieldNetworkClassifier,
        MeanFieldNetworkRegressor,
        UnboundedDepthClassifier,
        UnboundedDepthRegressor,
    )
    from fathomless.sparse_estimators import SparseBayesClassifier, SparseBayesRegressor

__version__ = "0.1.0"

_HOME = {
    "DeepEnsembleClassifier": "fathomless.estimators",
    "DeepEnsembleRegressor": "fathomless.estimators",
    "DepthUncertaintyNetworkClassifier": "fathomless.estimators",
    "DepthUncertaintyNetworkRegressor": "fathomless.estimators",
    "DropoutNetworkClassifier": "fathomless.estimators",
    "DropoutNetworkRegressor": "fathomless.estimators",
    "FiniteNetworkClassifier": "fathomless.estimators",
    "FiniteNetworkRegressor": "fathomless.estimators",
    "MeanFieldNetworkClassifier": "fathomless.estimators",
    "MeanFieldNetworkRegressor": "fathomless.estimators",
    "SparseBayesClassifier": "fathomless.sparse_estimators",
    "SparseBayesRegressor": "fathomless.sparse_estimators",
    "UnboundedDepthClassifier": "fathomless.estimators",
    "UnboundedDepthRegressor": "fathomless.estimators",
}

__all__ = [
    "DeepEnsembleClassifier",
    "DeepEnsembleRegressor",
    "DepthUncertaintyNetworkClassifier",
    "DepthUncertaintyNetworkRegressor",
    "DropoutNetworkClassifier",
    "DropoutNetworkRegressor",
    "FiniteNetworkClassifier",
    "FiniteNetworkRegressor",
    "MeanFieldNetworkClassifier",
    "MeanFieldNetworkRegressor",
    "SparseBayesClassifier",
    "SparseBayesRegressor",
    "UnboundedDepthClassifier",
    "UnboundedDepthRegressor",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fathomless' has no attribute {name!r}; public names are {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
