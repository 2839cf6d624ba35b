"""Options of networks of unbounded depth and of other networks of layers and heads. This module does not need torch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fathomless.estimators.declaring import option
from fathomless.estimators.options import CrossFitOptions, DrawnWeightsOptions, TableOptions, VariationalOptions
from fathomless.estimators.values import HMC

if TYPE_CHECKING:
    from fathomless.nn.architectures import Architecture
    from fathomless.nn.layers import WeightPrior
    from fathomless.posterior.laws import DepthLaw, DepthPrior

__all__ = ["PRESETS", "DepthOptions", "NetworkOptions"]

#: Presets: options that differ from the defaults. "fast" is for first results, "best" for the best predictions.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "fast": {"cv__n_splits": 5, "weight_prior": 1.0},
    "best": {"cv__n_repeats": 2, "trees": True, "neighbors": True},
}


@dataclass(kw_only=True, eq=False, repr=False)
class NetworkOptions(VariationalOptions, TableOptions):
    """Options of a network of layers and heads.

    Parameters
    ----------
    architecture : {"mlp", "residual", "transformer"} or callable
        Type of the layers, or a function (inputs, outputs) -> Architecture.
    width : int or "auto"
        Units per layer. "auto" is 64, or 32 with ``weights="hmc"``.
    activation : {"auto", "relu", "leaky_relu", "elu", "gelu", "silu", "tanh"}
        Activation between layers. "auto" is "relu", or "tanh" with ``weights="hmc"``, which needs smooth functions.
    """

    architecture: "str | Callable[[int, int], Architecture]" = option(
        "mlp", "choice", names=("mlp", "residual", "transformer")
    )
    width: "int | str" = option("auto", "whole", "auto", least=1)
    activation: str = option("auto", "choice", names=("auto", "relu", "leaky_relu", "elu", "gelu", "silu", "tanh"))


@dataclass(kw_only=True, eq=False, repr=False)
class DepthOptions(CrossFitOptions, DrawnWeightsOptions, NetworkOptions):
    """Options of a network of unbounded depth.

    Parameters
    ----------
    depth_law : str, int or DepthLaw
        Family of the posterior over depth: "poisson", "two_sided", "taper", "quantile" (the paper's),
        "stick_breaking", "categorical". An integer is a fixed depth. "auto" estimates a weight for each depth with
        ``structure_from="held_out"``, and is "poisson" with ``structure_from="elbo"``.
    depth_prior : float or DepthPrior
        Prior over depth: a number is the mean of a Poisson prior of depth − min_depth.
    min_depth : int
        Minimum depth; 0 includes a linear model.
    max_depth : int or None
        Maximum depth; None for no limit.
    weights : {"map", "meanfield", "sparse", "hmc"} or HMC
        Inference of the weights. "map": point estimates with weight decay from the prior. "meanfield": an independent
        Gaussian for each weight. "sparse": a Gaussian and an inclusion variable for each weight. "hmc": Hamiltonian
        Monte Carlo with hierarchical scales, initialised at fitted networks; it takes a minute or more for some hundred
        rows. :class:`~fathomless.estimators.values.HMC` has its options.
    last_layer : {"auto", "point", "laplace", "conjugate"}
        Inference of the last linear map of each depth, for point estimates of the other weights. "point": a point
        estimate. "laplace": the posterior given the features of the network, centred at the trained head. "conjugate":
        the same posterior with its own mean, for regression only. Predictions draw such heads `weight_draws` times;
        their uncertainty grows away from the data. "auto" is "point".
    weight_prior : "auto", float, "columns" or WeightPrior
        Standard deviation of the prior of each weight, or a prior that depends on the shapes of the layers. "columns"
        is ``WeightPrior(columns=True)``, for point estimates: the scale of the weights of each column in the first
        layer is inferred, so that columns without information have little influence. "auto" compares 1 and "columns" by
        a short training, and selects columns: each network keeps those with the largest influence in its own training
        rows, in a number chosen by out-of-fold rows (:mod:`fathomless.estimators.selection`). It needs point estimates
        of "mlp" or "residual" networks of free depth, cross-fitted to several features for 500 steps or more, with a
        posterior over depth from out-of-fold rows. Otherwise it is 1, as with `candidates`. With ``weights="hmc"`` all
        scales are inferred.
    """

    depth_law: "str | int | DepthLaw" = option(
        "auto",
        "choice",
        int,
        names=("auto", "poisson", "two_sided", "taper", "quantile", "stick_breaking", "categorical"),
    )
    depth_prior: "float | DepthPrior" = option(0.5, "real", object, above=0, most=10_000)
    min_depth: int = option(0, "whole", least=0)
    max_depth: "int | None" = option(None, "whole", None, least=0)
    weights: "str | HMC" = option("map", "choice", names=("map", "meanfield", "sparse", "hmc"), values={"hmc": HMC})
    last_layer: str = option("auto", "choice", names=("auto", "point", "laplace", "conjugate"))
    weight_prior: "float | str | WeightPrior" = option("auto", "real", "auto", "columns", object, above=0)
