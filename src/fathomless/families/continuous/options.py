"""Options of networks of continuous depth. This module does not need torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fathomless.estimators.declaring import OptionValue, option, option_value
from fathomless.estimators.options import (
    CrossFitOptions,
    DrawnTrainingOptions,
    DrawnWeightsOptions,
    TableOptions,
    VariationalOptions,
)
from fathomless.estimators.values import ELBO

if TYPE_CHECKING:
    from fathomless.families.continuous.dynamics import Dynamics
    from fathomless.posterior.laws import DepthPrior

__all__ = ["ContinuousOptions", "Euler", "Heun", "PathOptions", "RandomHorizon", "Solver"]


@option_value
@dataclass(kw_only=True, frozen=True, repr=False)
class PathOptions(OptionValue):
    """Prior and posterior of the paths of the weights: ``path=PathOptions(...)``.

    Parameters
    ----------
    prior : {"ou", "brownian"}
        Prior process of the weights over depth: a stationary Ornstein-Uhlenbeck process, or Brownian motion.
    rate : float or "learned"
        Rate θ of the Ornstein-Uhlenbeck process; 0 means equal weights at all depths. With "brownian", half the
        variance gained per unit of depth, relative to the variance at depth 0. "learned": a point estimate with a
        log-normal prior around 0.0001; it is small if the data need little difference between layers.
    stochastic : {"all", "first", "last"} or float
        Part of the horizon in which the weights vary: all of it, its first or last half, or a share from depth 0 on.
        They are constant elsewhere, without noise and divergence, which takes less time; 0 is ``rate=0``. Beyond T, a
        random horizon has constant weights, except for "all" and "last".
    initial : {"point", "gaussian"}
        Weights at depth 0: point estimates with weight decay from the prior, or a Gaussian posterior. With "gaussian",
        the objective is a bound on the evidence.
    drift : {"shift", "diagonal", "lowrank", "network", "both"}
        Difference of the posterior of a path from its prior. "shift": its mean. "diagonal": mean and width of every
        weight. "lowrank": mean of every weight, and width in `rank` directions. "network": mean, and a neural network
        of the weights. "both": the last two.
    rank : int
        Number of directions of "lowrank", and of hidden units of "network".
    knots : int
        Number of pieces per unit of depth on which mean and width are constant.
    transition : {"exact", "euler"}
        Transitions of the weights.
    estimator : {"closed", "full", "sticking"}
        Estimator of the divergence of a path in training.

    Examples
    --------
    >>> PathOptions(prior="brownian", rate=0.1)
    PathOptions(prior='brownian', rate=0.1)
    >>> from fathomless import ContinuousDepthRegressor
    >>> ContinuousDepthRegressor().set_params(path__initial="gaussian")
    ContinuousDepthRegressor(path=PathOptions(initial='gaussian'))
    """

    of_network: ClassVar[bool] = True

    prior: str = option("ou", "choice", names=("ou", "brownian"))
    rate: "float | str" = option("learned", "real", "learned", least=0)
    stochastic: "float | str" = option("all", "real", "all", "first", "last", least=0, most=1)
    initial: str = option("point", "choice", names=("point", "gaussian"))
    drift: str = option("diagonal", "choice", names=("shift", "diagonal", "lowrank", "network", "both"))
    rank: int = option(32, "whole", least=1)
    knots: int = option(4, "whole", least=1, most=1000)
    transition: str = option("exact", "choice", names=("exact", "euler"))
    estimator: str = option("closed", "choice", names=("closed", "full", "sticking"))


@dataclass(kw_only=True, frozen=True, repr=False)
class Solver(OptionValue):
    """Options of the solver of the hidden state.

    Parameters
    ----------
    steps : int
        Number of steps on the horizon T in training.
    predict_steps : int or None
        Number of steps on T in predictions; that of training by default. More steps are more accurate.
    jitter : {"count", "times", "none"}
        Randomisation in training, so that the network does not adapt to one grid: the number of steps varies from half
        to twice `steps`, or their times vary.
    gradient : {"auto", "unrolled", "checkpointed", "reversible"}
        Keep all states for the gradient, or recompute them bit-identically in less memory. "reversible" trains by
        another scheme in memory independent of the number of steps; it needs Heun's method, and its objective is not a
        bound.
    """

    of_network: ClassVar[bool] = True

    steps: int = option(5, "whole", least=1, most=1000)
    predict_steps: "int | None" = option(None, "whole", None, least=1, most=1000)
    jitter: str = option("count", "choice", names=("count", "times", "none"))
    gradient: str = option("auto", "choice", names=("auto", "unrolled", "checkpointed", "reversible"))


@option_value
@dataclass(kw_only=True, frozen=True, repr=False)
class Heun(Solver):
    """Heun's method for the hidden state, of second order: ``solver=Heun(...)``.

    Examples
    --------
    >>> Heun(steps=10)
    Heun(steps=10)
    """


@option_value
@dataclass(kw_only=True, frozen=True, repr=False)
class Euler(Solver):
    """Euler's method for the hidden state, of first order: ``solver=Euler(...)``.

    A draw is then a residual network with a layer for each step.

    Examples
    --------
    >>> Euler(steps=10, jitter="none")
    Euler(steps=10, jitter='none')
    """


@option_value
@dataclass(kw_only=True, frozen=True, repr=False)
class RandomHorizon(OptionValue):
    """Random horizon with an inferred posterior: ``horizon=RandomHorizon(...)``.

    Parameters
    ----------
    count : int
        Number of horizons up to depth 1; further ones lie beyond, at the same distance.
    prior : DepthPrior, optional
        Prior of the number of the horizon, less 1; Poisson(`count` − 1) by default.

    Examples
    --------
    >>> RandomHorizon(count=4)
    RandomHorizon(count=4)
    """

    of_network: ClassVar[bool] = True

    count: int = option(8, "whole", least=1, most=1000)
    prior: "DepthPrior | None" = option(None, "object")


@dataclass(kw_only=True, eq=False, repr=False)
class ContinuousOptions(CrossFitOptions, DrawnTrainingOptions, DrawnWeightsOptions, VariationalOptions, TableOptions):
    """Options of a network of continuous depth.

    Parameters
    ----------
    architecture : "mlp" or callable
        Slope of the hidden state, or a function (inputs, outputs) -> Dynamics, for example with convolutions.
    width : int
        Number of units of the hidden state.
    hidden : int or sequence of int
        Number of units of the hidden layers of its slope.
    activation : {"relu", "silu", "leaky_relu", "elu", "gelu", "softplus", "tanh", "swish"}
        Activation between linear maps; "swish" has a parameter for each unit.
    encoder : {"linear", "pad"}
        Initial hidden state: a linear map of the columns, or the columns padded with zeros.
    augment : int
        Number of zeros with encoder="pad". Without zeros, draws for one column and one target are monotone.
    time : {"none", "gate"}
        "gate": every layer of the slope also depends on depth explicitly, as in the paper.
    horizon : float, "random" or RandomHorizon
        Depth T at which the state is read. "random": a posterior over the depths 1/8, 2/8, ... without upper limit,
        with a prior mean of 1; :class:`RandomHorizon` has its options.
    path : PathOptions, optional
        Prior and posterior of the paths of the weights, see :class:`PathOptions`; default options if omitted.
    weight_prior : float or "auto"
        Prior standard deviation of a weight, times √fan-in. "auto" is 1 with ``initial="gaussian"``, for which draws
        from the prior vary about as much as a standardised target. For point estimates, where it sets the weight decay,
        "auto" is 8 √2, or √8 with a given rate, at which paths would explode otherwise.
    solver : {"heun", "euler"}, Heun or Euler
        Solver of the hidden state; :class:`Heun` and :class:`Euler` have its options. With "euler", a draw is a
        residual network.
    """

    structure_from: "str | ELBO" = option(
        "auto",
        "choice",
        names=("auto", "held_out", "elbo"),
        values={"elbo": ELBO},
        without=("optimizer", "radius", "initial_depth"),
    )
    architecture: "str | Callable[[int, int], Dynamics]" = option("mlp", "choice", names=("mlp",))
    width: int = option(32, "whole", least=1)
    hidden: "int | Sequence[int]" = option(64, "whole", list, tuple, least=1)
    activation: str = option(
        "relu", "choice", names=("relu", "silu", "leaky_relu", "elu", "gelu", "softplus", "tanh", "swish")
    )
    encoder: str = option("linear", "choice", names=("linear", "pad"))
    augment: int = option(0, "whole", least=0)
    time: str = option("none", "choice", names=("none", "gate"))
    horizon: "float | str | RandomHorizon" = option(1.0, "real", "random", values={"random": RandomHorizon})
    path: PathOptions | None = option(None, "object", values={None: PathOptions})
    weight_prior: "float | str" = option("auto", "real", "auto", above=0)
    solver: "str | Heun | Euler" = option(
        "heun", "choice", names=("heun", "euler"), values={"heun": Heun, "euler": Euler}
    )
    precision: str = option("float32", "choice", names=("auto", "float32", "float64", "bfloat16"))
    weight_draws: int = option(8, "whole", least=1, most=10_000)
