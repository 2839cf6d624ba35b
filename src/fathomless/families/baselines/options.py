"""The options of the baselines. Nothing here needs torch."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fathomless.estimators.declaring import option
from fathomless.estimators.options import DrawnWeightsOptions, NaturalLawOptions
from fathomless.estimators.values import Restarts
from fathomless.families.depth.options import NetworkOptions

if TYPE_CHECKING:
    from fathomless.nn.layers import WeightPrior

__all__ = [
    "DepthUncertaintyOptions",
    "DrawnNetworksOptions",
    "DropoutOptions",
    "EnsembleOptions",
    "FiniteOptions",
    "LaplaceOptions",
    "MatrixNormalOptions",
    "MeanFieldOptions",
    "SWAGOptions",
    "SubspaceOptions",
    "TrajectoryOptions",
]


@dataclass(kw_only=True, eq=False, repr=False)
class FiniteOptions(NetworkOptions):
    """An ordinary network.

    Parameters
    ----------
    depth : int
        Layers before the head; 0 is a linear model.
    weight_prior : float or WeightPrior
        Standard deviation of the prior of every weight; or a prior that follows the shape of the layers.
    """

    depth: int = option(3, "whole", least=0)
    weight_prior: "float | WeightPrior" = option(1.0, "real", object)


@dataclass(kw_only=True, eq=False, repr=False)
class DepthUncertaintyOptions(NaturalLawOptions, NetworkOptions):
    """A network with a posterior over a given number of depths.

    Parameters
    ----------
    depths : int
        Networks of 1, 2, … up to so many layers are averaged.
    shared_head : bool
        Read out every depth by the same head.
    weight_prior : float or WeightPrior
        Standard deviation of the prior of every weight; or a prior that follows the shape of the layers.
    """

    depths: int = option(10, "whole", least=1)
    shared_head: bool = option(True, "flag")
    weight_prior: "float | WeightPrior" = option(1.0, "real", object)


@dataclass(kw_only=True, eq=False, repr=False)
class DropoutOptions(DrawnWeightsOptions, FiniteOptions):
    """An ordinary network with dropout, in training and in prediction.

    Parameters
    ----------
    dropout : float
        Probability that a unit is dropped, from 0 up to, not including, 1.
    """

    dropout: float = option(0.1, "real", least=0)


@dataclass(kw_only=True, eq=False, repr=False)
class MeanFieldOptions(DrawnWeightsOptions, FiniteOptions):
    """An ordinary network with an independent Gaussian on every weight."""

    depth: int = option(2, "whole", least=0)


@dataclass(kw_only=True, eq=False, repr=False)
class MatrixNormalOptions(MeanFieldOptions):
    """An ordinary network with a matrix normal posterior of each layer."""


@dataclass(kw_only=True, eq=False, repr=False)
class DrawnNetworksOptions(FiniteOptions):
    """Networks that are drawn around one that was trained.

    Parameters
    ----------
    networks : int
        How many are drawn.
    """

    depth: int = option(2, "whole", least=0)
    weight_prior: "float | WeightPrior" = option(0.3, "real", object)
    networks: int = option(100, "whole", least=2, most=100_000)


@dataclass(kw_only=True, eq=False, repr=False)
class LaplaceOptions(DrawnNetworksOptions):
    """An ordinary network, made linear in its weights around what was trained, with their normal posterior.

    Parameters
    ----------
    weight_prior : float or WeightPrior
        Standard deviation of the prior of every weight in the training; that of the posterior is times what has the
        greatest evidence.
    """

    weight_prior: "float | WeightPrior" = option(0.3, "real", object)


@dataclass(kw_only=True, eq=False, repr=False)
class TrajectoryOptions(DrawnNetworksOptions):
    """Networks along the descent at a constant rate that begins where the training has ended.

    Parameters
    ----------
    passes : int
        Over the rows; the weights after each but the first quarter of them are kept.
    """

    passes: int = option(80, "whole", least=8)


@dataclass(kw_only=True, eq=False, repr=False)
class SWAGOptions(TrajectoryOptions):
    """An ordinary network, whose weights have a normal law with the moments of such a descent.

    Parameters
    ----------
    rank : int
        Of the part of the covariance that is not diagonal.
    """

    rank: int = option(20, "whole", least=2, most=10_000)


@dataclass(kw_only=True, eq=False, repr=False)
class SubspaceOptions(TrajectoryOptions):
    """An ordinary network, whose weights are sampled in the plane of the first principal components of such a descent.

    Parameters
    ----------
    subspace_dimension : int
        Of the plane.
    """

    subspace_dimension: int = option(5, "whole", least=1, most=10_000)


@dataclass(kw_only=True, eq=False, repr=False)
class EnsembleOptions(FiniteOptions):
    """Several ordinary networks, whose predictions are averaged.

    Parameters
    ----------
    n_restarts : int or Restarts
        Networks trained from different initial weights, side by side, whose predictions are averaged; or their number
        and choice, as a :class:`~fathomless.estimators.values.Restarts`.
    """

    n_restarts: "int | Restarts" = option(
        5, "whole", least=1, most=10_000, values={"restarts": Restarts}, usual=Restarts(count=5, keep="average")
    )
