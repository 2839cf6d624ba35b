"""Options of the baselines. This module does not need torch."""

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
    """Options of a network of fixed depth.

    Parameters
    ----------
    depth : int
        Number of layers before the head; 0 is a linear model.
    weight_prior : float or WeightPrior
        Standard deviation of the prior of each weight, or a prior that depends on the shapes of the layers.
    """

    depth: int = option(3, "whole", least=0)
    weight_prior: "float | WeightPrior" = option(1.0, "real", object, above=0)


@dataclass(kw_only=True, eq=False, repr=False)
class DepthUncertaintyOptions(NaturalLawOptions, NetworkOptions):
    """Options of a network with a posterior over a fixed number of depths.

    Parameters
    ----------
    depths : int
        Maximum depth; predictions are averages over networks of 1, 2, … up to `depths` layers.
    shared_head : bool
        True to use the same head for all depths.
    weight_prior : float or WeightPrior
        Standard deviation of the prior of each weight, or a prior that depends on the shapes of the layers.
    """

    depths: int = option(10, "whole", least=1)
    shared_head: bool = option(True, "flag")
    weight_prior: "float | WeightPrior" = option(1.0, "real", object, above=0)


@dataclass(kw_only=True, eq=False, repr=False)
class DropoutOptions(DrawnWeightsOptions, FiniteOptions):
    """Options of a network of fixed depth with dropout in training and in prediction.

    Parameters
    ----------
    dropout : float
        Probability of dropping a unit, 0 <= dropout < 1.
    """

    dropout: float = option(0.1, "real", least=0)


@dataclass(kw_only=True, eq=False, repr=False)
class MeanFieldOptions(DrawnWeightsOptions, FiniteOptions):
    """Options of a network of fixed depth with an independent Gaussian posterior of each weight."""

    depth: int = option(2, "whole", least=0)


@dataclass(kw_only=True, eq=False, repr=False)
class MatrixNormalOptions(MeanFieldOptions):
    """Options of a network of fixed depth with a matrix normal posterior of each layer."""


@dataclass(kw_only=True, eq=False, repr=False)
class DrawnNetworksOptions(FiniteOptions):
    """Options of networks drawn around a trained one.

    Parameters
    ----------
    networks : int
        Number of drawn networks.
    """

    depth: int = option(2, "whole", least=0)
    weight_prior: "float | WeightPrior" = option(0.3, "real", object, above=0)
    networks: int = option(100, "whole", least=2, most=100_000)


@dataclass(kw_only=True, eq=False, repr=False)
class LaplaceOptions(DrawnNetworksOptions):
    """Options of a network linearised at its trained weights, with their Gaussian posterior.

    Parameters
    ----------
    weight_prior : float or WeightPrior
        Standard deviation of the prior of each weight in training. The posterior uses it times a factor that maximises
        the evidence.
    """

    weight_prior: "float | WeightPrior" = option(0.3, "real", object, above=0)


@dataclass(kw_only=True, eq=False, repr=False)
class TrajectoryOptions(DrawnNetworksOptions):
    """Options of networks drawn from gradient descent at a constant rate that starts at the trained weights.

    Parameters
    ----------
    passes : int
        Number of passes over the rows; the weights after each pass are kept, except for the first quarter.
    """

    passes: int = option(80, "whole", least=8)


@dataclass(kw_only=True, eq=False, repr=False)
class SWAGOptions(TrajectoryOptions):
    """Options of SWAG: Gaussian weights with the moments of the iterates.

    Parameters
    ----------
    rank : int
        Rank of the non-diagonal part of the covariance.
    """

    rank: int = option(20, "whole", least=2, most=10_000)


@dataclass(kw_only=True, eq=False, repr=False)
class SubspaceOptions(TrajectoryOptions):
    """Options of subspace inference: weights sampled in the span of leading principal components of the iterates.

    Parameters
    ----------
    subspace_dimension : int
        Dimension of the subspace.
    """

    subspace_dimension: int = option(5, "whole", least=1, most=10_000)


@dataclass(kw_only=True, eq=False, repr=False)
class EnsembleOptions(FiniteOptions):
    """Options of a deep ensemble, whose predictions are averages over several networks.

    Parameters
    ----------
    n_restarts : int or Restarts
        Number of networks trained in parallel from different initial weights, with averaged predictions; or a
        :class:`~fathomless.estimators.values.Restarts`.
    """

    n_restarts: "int | Restarts" = option(
        5, "whole", least=1, most=10_000, values={"restarts": Restarts}, usual=Restarts(count=5, keep="average")
    )
