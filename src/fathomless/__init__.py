"""fathomless: Bayesian neural networks whose structure is a random variable.

Public names are those of the families (:mod:`fathomless.families.registry`). They are resolved on first use; importing
the package runs nothing and does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fathomless.families.registry import BUILT_IN
from fathomless.families.registry import load as load
from fathomless.system.version import __version__ as __version__

if TYPE_CHECKING:  # type checkers do not run the registry
    from fathomless.families.baselines.estimator import (
        DeepEnsembleClassifier as DeepEnsembleClassifier,
    )
    from fathomless.families.baselines.estimator import (
        DeepEnsembleRegressor as DeepEnsembleRegressor,
    )
    from fathomless.families.baselines.estimator import (
        DepthUncertaintyNetworkClassifier as DepthUncertaintyNetworkClassifier,
    )
    from fathomless.families.baselines.estimator import (
        DepthUncertaintyNetworkRegressor as DepthUncertaintyNetworkRegressor,
    )
    from fathomless.families.baselines.estimator import (
        DropoutNetworkClassifier as DropoutNetworkClassifier,
    )
    from fathomless.families.baselines.estimator import (
        DropoutNetworkRegressor as DropoutNetworkRegressor,
    )
    from fathomless.families.baselines.estimator import (
        FiniteNetworkClassifier as FiniteNetworkClassifier,
    )
    from fathomless.families.baselines.estimator import (
        FiniteNetworkRegressor as FiniteNetworkRegressor,
    )
    from fathomless.families.baselines.estimator import (
        MeanFieldNetworkClassifier as MeanFieldNetworkClassifier,
    )
    from fathomless.families.baselines.estimator import (
        MeanFieldNetworkRegressor as MeanFieldNetworkRegressor,
    )
    from fathomless.families.depth.estimator import UnboundedDepthClassifier as UnboundedDepthClassifier
    from fathomless.families.depth.estimator import UnboundedDepthRegressor as UnboundedDepthRegressor
    from fathomless.families.sparse.estimator import SparseBayesClassifier as SparseBayesClassifier
    from fathomless.families.sparse.estimator import SparseBayesRegressor as SparseBayesRegressor

_PLACES = {name: place for family in BUILT_IN for name, place in family.estimators.items()}

__all__ = sorted([*_PLACES, "__version__", "load"])


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'fathomless' has no attribute {name!r}; public names are {', '.join(__all__)}")
    module, _, own = _PLACES[name].partition(":")
    return getattr(import_module(module), own)


def __dir__() -> list[str]:
    return sorted(__all__)
