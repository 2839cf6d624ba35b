"""fathomless: Bayesian neural networks whose structure is a random variable.

Public names are resolved on first use; importing the package runs nothing and does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fathomless.estimators import UnboundedDepthClassifier, UnboundedDepthRegressor

__version__ = "0.1.0"

_HOME = {
    "UnboundedDepthClassifier": "fathomless.estimators",
    "UnboundedDepthRegressor": "fathomless.estimators",
}

__all__ = ["UnboundedDepthClassifier", "UnboundedDepthRegressor", "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fathomless' has no attribute {name!r}; public names are {', '.join(__all__)}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
