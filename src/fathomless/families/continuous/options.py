"""The options of networks of continuous depth. Nothing here needs torch."""

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
        Weights are a stationary Ornstein-Uhlenbeck process of depth, or Brownian motion.
    rate : float or "learned"
        How fast weights are forgotten with depth, θ: 0 is one network for all depths. With "brownian", half the
        variance that they gain per unit of depth, in units of their first one. "learned": a point estimate with a
        log-normal prior around 0.0001; the less the layers may differ from each other to explain the data, the smaller.
    initial : {"point", "gaussian"}
        Weights at depth 0 are point estimates with the prior's decay, or have a posterior of their own. With the latter
        the objective is a bound on the evidence.
    drift : {"shift", "diagonal", "lowrank", "network", "both"}
        How the posterior of a path differs from its prior: its mean alone; the mean and the width of every weight; of
        `rank` directions; or by a network of the weights.
    rank : int
        Directions of "lowrank", and hidden units of "network".
    knots : int
        Pieces, per unit of depth, on which mean and width are constant.
    transition : {"exact", "euler"}
        Steps of the weights.
    estimator : {"closed", "full", "sticking"}
        Of the divergence of a path in training.

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
    initial: str = option("point", "choice", names=("point", "gaussian"))
    drift: str = option("diagonal", "choice", names=("shift", "diagonal", "lowrank", "network", "both"))
    rank: int = option(32, "whole", least=1)
    knots: int = option(4, "whole", least=1, most=1000)
    transition: str = option("exact", "choice", names=("exact", "euler"))
    estimator: str = option("closed", "choice", names=("closed", "full", "sticking"))


@dataclass(kw_only=True, frozen=True, repr=False)
class Solver(OptionValue):
    """Steps of the hidden state.

    Parameters
    ----------
    steps : int
        Steps on the horizon T in training.
    predict_steps : int or None
        Steps on T in predictions; as many as in training by default. More are more accurate.
    jitter : {"count", "times", "none"}
        In training the number of steps varies between half and twice as many, or their times do, so that the network
        does not learn its grid.
    gradient : {"auto", "unrolled", "checkpointed", "reversible"}
        Keep all states for the gradient, or compute them again, to the same bytes, in less memory. "reversible" trains
        by another scheme in memory that does not grow with the steps, with Heun's method alone; what it maximises is
        not a bound.
    """

    of_network: ClassVar[bool] = True

    steps: int = option(5, "whole", least=1, most=1000)
    predict_steps: "int | None" = option(None, "whole", None, least=1, most=1000)
    jitter: str = option("count", "choice", names=("count", "times", "none"))
    gradient: str = option("auto", "choice", names=("auto", "unrolled", "checkpointed", "reversible"))


@option_value
@dataclass(kw_only=True, frozen=True, repr=False)
class Heun(Solver):
    """Steps of the hidden state by Heun's method, of second order: ``solver=Heun(...)``.

    Examples
    --------
    >>> Heun(steps=10)
    Heun(steps=10)
    """


@option_value
@dataclass(kw_only=True, frozen=True, repr=False)
class Euler(Solver):
    """Steps of the hidden state by Euler's method, of first order: ``solver=Euler(...)``.

    A draw is then a residual network, one layer a step.

    Examples
    --------
    >>> Euler(steps=10, jitter="none")
    Euler(steps=10, jitter='none')
    """


@option_value
@dataclass(kw_only=True, frozen=True, repr=False)
class RandomHorizon(OptionValue):
    """Horizon that the posterior decides about: ``horizon=RandomHorizon(...)``.

    Parameters
    ----------
    count : int
        Depths that may be read up to 1; there are more of them beyond.
    prior : DepthPrior, optional
        Of the number of the horizon, less 1; Poisson(`count` − 1) by default.

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
    """A network of continuous depth.

    Parameters
    ----------
    architecture : "mlp" or callable
        What moves the hidden state; or a function (inputs, outputs) -> Dynamics, such as convolutions.
    width : int
        Units of the hidden state.
    hidden : int or sequence of int
        Units of the hidden layers of its slope.
    activation : {"relu", "silu", "leaky_relu", "elu", "gelu", "softplus", "tanh", "swish"}
        Between the linear maps; "swish" has a parameter for each unit.
    encoder : {"linear", "pad"}
        The hidden state begins as a linear map of the columns, or as the columns and zeros.
    augment : int
        Zeros beside the columns with encoder="pad". With none, draws of one column and one target are monotone.
    time : {"none", "gate"}
        "gate" lets every layer of the slope depend on depth by itself too, as in the paper.
    horizon : float, "random" or RandomHorizon
        Depth T at which the state is read. "random": the posterior decides between the depths 1/8, 2/8, ... and so on
        without end, with a mean of 1 before the data; its options are those of :class:`RandomHorizon`.
    path : PathOptions, optional
        Prior and posterior of the paths of the weights, see :class:`PathOptions`; the defaults if left out.
    weight_prior : float or "auto"
        Standard deviation of the prior of a weight, times √fan-in. "auto" is 1 for Gaussian starts, where draws from
        the prior then vary about as much as a standardised target does, and 8 √2 for point estimates, of which it is
        the decay; but √8 for these with a rate that is given, whose paths would explode.
    solver : {"heun", "euler"}, Heun or Euler
        Steps of the hidden state, whose options are those of :class:`Heun` and :class:`Euler`. "euler" makes a draw a
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
    weight_prior: "float | str" = option("auto", "real", "auto")
    solver: "str | Heun | Euler" = option(
        "heun", "choice", names=("heun", "euler"), values={"heun": Heun, "euler": Euler}
    )
    precision: str = option("float32", "choice", names=("auto", "float32", "float64", "bfloat16"))
    weight_draws: int = option(8, "whole", least=1, most=10_000)
