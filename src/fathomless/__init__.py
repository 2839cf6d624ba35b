"""fathomless: Bayesian neural networks whose structure is a random variable.

Public names are those of the families (:mod:`fathomless.families.registry`), values of their options
(:mod:`fathomless.estimators.values`), :func:`load`, :func:`report` and ``__version__``. They are
resolved on first use; importing the package runs nothing and does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fathomless.system.version import __version__ as __version__

if TYPE_CHECKING:  # type checkers do not run what follows
    from fathomless.app.reporting import report as report
    from fathomless.estimators.values import ELBO as ELBO
    from fathomless.estimators.values import HMC as HMC
    from fathomless.estimators.values import Adam as Adam
    from fathomless.estimators.values import CheckpointOptions as CheckpointOptions
    from fathomless.estimators.values import Folds as Folds
    from fathomless.estimators.values import Restarts as Restarts
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
        LaplaceNetworkClassifier as LaplaceNetworkClassifier,
    )
    from fathomless.families.baselines.estimator import (
        LaplaceNetworkRegressor as LaplaceNetworkRegressor,
    )
    from fathomless.families.baselines.estimator import (
        MatrixNormalNetworkClassifier as MatrixNormalNetworkClassifier,
    )
    from fathomless.families.baselines.estimator import (
        MatrixNormalNetworkRegressor as MatrixNormalNetworkRegressor,
    )
    from fathomless.families.baselines.estimator import (
        MeanFieldNetworkClassifier as MeanFieldNetworkClassifier,
    )
    from fathomless.families.baselines.estimator import (
        MeanFieldNetworkRegressor as MeanFieldNetworkRegressor,
    )
    from fathomless.families.baselines.estimator import (
        SubspaceNetworkClassifier as SubspaceNetworkClassifier,
    )
    from fathomless.families.baselines.estimator import (
        SubspaceNetworkRegressor as SubspaceNetworkRegressor,
    )
    from fathomless.families.baselines.estimator import (
        SWAGNetworkClassifier as SWAGNetworkClassifier,
    )
    from fathomless.families.baselines.estimator import (
        SWAGNetworkRegressor as SWAGNetworkRegressor,
    )
    from fathomless.families.continuous.estimator import ContinuousDepthClassifier as ContinuousDepthClassifier
    from fathomless.families.continuous.estimator import ContinuousDepthRegressor as ContinuousDepthRegressor
    from fathomless.families.continuous.options import Euler as Euler
    from fathomless.families.continuous.options import Heun as Heun
    from fathomless.families.continuous.options import PathOptions as PathOptions
    from fathomless.families.continuous.options import RandomHorizon as RandomHorizon
    from fathomless.families.depth.estimator import UnboundedDepthClassifier as UnboundedDepthClassifier
    from fathomless.families.depth.estimator import UnboundedDepthRegressor as UnboundedDepthRegressor
    from fathomless.families.graph.estimator import IndianChefsClassifier as IndianChefsClassifier
    from fathomless.families.graph.estimator import IndianChefsDensity as IndianChefsDensity
    from fathomless.families.graph.estimator import IndianChefsRegressor as IndianChefsRegressor
    from fathomless.families.manifold.estimator import ProjectedBayesClassifier as ProjectedBayesClassifier
    from fathomless.families.manifold.estimator import ProjectedBayesRegressor as ProjectedBayesRegressor
    from fathomless.families.registry import load as load
    from fathomless.families.sparse.estimator import SparseBayesClassifier as SparseBayesClassifier
    from fathomless.families.sparse.estimator import SparseBayesRegressor as SparseBayesRegressor


def _places() -> dict[str, str]:
    """Return where each public name is, as the registry says."""
    from fathomless.families.registry import BUILT_IN

    places = {name: place for family in BUILT_IN for name, place in family.estimators.items()}
    values = {
        name: f"fathomless.estimators.values:{name}"
        for name in ("ELBO", "HMC", "Adam", "CheckpointOptions", "Folds", "Restarts")
    }
    own = {"fathomless.families.continuous.options": ("Euler", "Heun", "PathOptions", "RandomHorizon")}
    values |= {name: f"{module}:{name}" for module, names in own.items() for name in names}
    functions = {"load": "fathomless.families.registry:load", "report": "fathomless.app.reporting:report"}
    return {**places, **values, **functions}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted([*_places(), "__version__"])
    if name.startswith("__"):  # a special name of Python, looked up without importing torch
        raise AttributeError(f"module 'fathomless' has no attribute {name!r}")
    places = _places()
    if name not in places:
        raise AttributeError(f"module 'fathomless' has no attribute {name!r}; public names are {', '.join(__dir__())}")
    module, _, own = places[name].partition(":")
    return getattr(import_module(module), own)


def __dir__() -> list[str]:
    return sorted([*_places(), "__version__"])
