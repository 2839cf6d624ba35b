"""The options of networks of unbounded depth, and of layered networks in general. Nothing here needs torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fathomless.estimators.declaring import option
from fathomless.estimators.options import CrossFitOptions, DrawnWeightsOptions, TableOptions, VariationalOptions
from fathomless.estimators.values import HMC

if TYPE_CHECKING:
    from fathomless.nn.architectures import Architecture
    from fathomless.nn.layers import WeightPrior
    from fathomless.posterior.laws import DepthLaw, DepthPrior

__all__ = ["DepthOptions", "NetworkOptions"]


@dataclass(kw_only=True, eq=False, repr=False)
class NetworkOptions(VariationalOptions, TableOptions):
    """A network of layers and heads.

    Parameters
    ----------
    architecture : {"mlp", "residual", "transformer"} or callable
        What a layer is; or a function (inputs, outputs) -> Architecture.
    width : int or "auto"
        Units per layer. "auto" is 64, and 32 where weights are sampled.
    activation : {"auto", "relu", "leaky_relu", "elu", "gelu", "silu", "tanh"}
        Between layers. "auto" is "relu", and "tanh" where weights are sampled: trajectories need smooth functions.
    """

    architecture: "str | Callable[[int, int], Architecture]" = option(
        "mlp", "choice", names=("mlp", "residual", "transformer")
    )
    width: "int | str" = option("auto", "whole", "auto", least=1)
    activation: str = option("auto", "choice", names=("auto", "relu", "leaky_relu", "elu", "gelu", "silu", "tanh"))


@dataclass(kw_only=True, eq=False, repr=False)
class DepthOptions(CrossFitOptions, DrawnWeightsOptions, NetworkOptions):
    """A network of unbounded depth.

    Parameters
    ----------
    depth_law : str, int or DepthLaw
        Family of the posterior over depth: "poisson", "two_sided", "taper", "quantile" (the
        paper's), "stick_breaking", "categorical"; an integer is an ordinary network of that depth. "auto" is a weight
        for every depth where held-out rows decide, and "poisson" where the evidence bound does.
    depth_prior : float or DepthPrior
        Depth − min_depth ~ Poisson(depth_prior), or any prior.
    min_depth : int
        Least depth; with 0 a linear model is one of the networks.
    max_depth : int or None
        Greatest depth, if there must be one.
    weights : {"map", "meanfield", "sparse", "hmc"} or HMC
        Point estimates with the prior's decay, an independent Gaussian per weight, weights that may be absent, or
        weights that are sampled by Hamiltonian Monte Carlo with hierarchical scales, from the networks of a fit: the
        best predictions there are for tables of a few hundred rows, at the price of a minute or more. Options of the
        chains are those of :class:`~fathomless.estimators.values.HMC`.
    last_layer : {"auto", "point", "laplace", "conjugate"}
        Of point estimates, what the last linear map of every depth is: a point estimate; its posterior given the
        features that the network computes, around the trained head ("laplace"); or that posterior with its own mean
        ("conjugate", for numbers alone). Such heads are drawn `weight_draws` times in predictions, and doubt about them
        grows away from the data. "auto" is "point".
    weight_prior : float or WeightPrior
        Standard deviation of the prior of every weight; or a prior that follows the shape of the layers. Sampled
        weights have scales of their own, which are inferred.
    """

    depth_law: "str | int | DepthLaw" = option(
        "auto",
        "choice",
        int,
        names=("auto", "poisson", "two_sided", "taper", "quantile", "stick_breaking", "categorical"),
    )
    depth_prior: "float | DepthPrior" = option(0.5, "real", object)
    min_depth: int = option(0, "whole", least=0)
    max_depth: "int | None" = option(None, "whole", None, least=0)
    weights: "str | HMC" = option("map", "choice", names=("map", "meanfield", "sparse", "hmc"), values={"hmc": HMC})
    last_layer: str = option("auto", "choice", names=("auto", "point", "laplace", "conjugate"))
    weight_prior: "float | WeightPrior" = option(1.0, "real", object)
