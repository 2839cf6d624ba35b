"""Predictive distributions that are made from another one: on a lattice, of a transformed target, with atoms."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import numpy.typing as npt
from torch import Tensor

from fathomless.posterior.distributions import ContinuousPredictive, NumberPredictive, Predictive
from fathomless.posterior.uncertainty import Uncertainty
from fathomless.system.errors import DataError

__all__ = ["DerivedPredictive", "MappedPredictive"]


@dataclass(frozen=True, eq=False, repr=False)
class DerivedPredictive(NumberPredictive):
    """Predictive distribution of one target that is made from its `base`.

    Attributes
    ----------
    base : NumberPredictive
        Distribution with one target.

    Raises
    ------
    DataError
        If the base has several targets.
    """

    _constant: ClassVar[str]  # what is equal for all rows, for messages

    base: NumberPredictive

    def __post_init__(self) -> None:
        if len(self.base.shape) == 2 and self.base.shape[1] != 1:
            raise DataError(f"{type(self).__name__} was given {self.base.shape[1]} targets; allowed is 1")

    @classmethod
    def _derive(cls, base: NumberPredictive, *parts: Any) -> Self:
        """Return the distribution with the networks of its base; `parts` are the fields after it."""
        return cls(base.log_weight, base.structure, base, *parts, sampled=base.sampled, network=base.network)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the targets of all rows, (N,) or (N, 1)."""
        return self.base.shape

    @property
    def continuous(self) -> ContinuousPredictive:
        """Continuous law from which the base is made, or the base itself."""
        return self.base.continuous

    def with_continuous(self, continuous: ContinuousPredictive) -> Self:
        """Return the prediction that is made from another continuous law."""
        return replace(self, base=self.base.with_continuous(continuous))

    @abstractmethod
    def _constants(self) -> tuple[Any, ...]:
        """Return the fields that are equal for all rows."""

    @abstractmethod
    def _join(self, base: NumberPredictive, others: Sequence[Self]) -> Self:
        """Return the prediction of these rows and those of others, given their bases in one."""

    def concatenate(self, others: Sequence[Predictive]) -> Self:
        """Return one prediction for these rows followed by those of the others.

        Raises
        ------
        DataError
            If the others are not from the same draws of the same model.
        """
        alike = [other for other in others if isinstance(other, type(self))]
        if len(alike) < len(others) or any(other._constants() != self._constants() for other in alike):
            raise DataError(
                f"predictions with different {self._constant} were given; allowed are chunks of rows of one prediction"
            )
        return self._join(cast(NumberPredictive, self.base.concatenate([other.base for other in alike])), alike)


@dataclass(frozen=True, eq=False, repr=False)
class MappedPredictive(DerivedPredictive):
    """Predictive distribution whose values are a function of those of its base.

    Moments and their parts are those of :attr:`moments`.
    """

    @property
    @abstractmethod
    def moments(self) -> NumberPredictive:
        """Distribution with the moments of this one."""

    @property
    def nbytes(self) -> int:
        """Size of the parameters of all components in bytes."""
        return self.base.nbytes

    @property
    def network_means(self) -> Tensor:
        """Mean of the target under each drawn network, shape (S, N, 1)."""
        return self.moments.network_means

    @property
    def mean(self) -> Tensor:
        """Mean of the target."""
        return self.moments.mean

    @property
    def variance(self) -> Tensor:
        """Variance of the target, of which :meth:`uncertainty` gives the parts."""
        return self.moments.variance

    @property
    def std(self) -> Tensor:
        """Standard deviation of the target."""
        return self.moments.std

    @property
    def mc_error(self) -> Tensor:
        """Monte Carlo error of the mean; see :attr:`ContinuousPredictive.mc_error`."""
        return self.moments.mc_error

    def uncertainty(self) -> Uncertainty:
        """Split the variance; see :meth:`ContinuousPredictive.uncertainty`."""
        return self.moments.uncertainty()

    def columns(self, targets: Sequence[str] = (), levels: Sequence[float] = (0.9,)) -> dict[str, npt.NDArray[Any]]:
        """Return summaries of the distribution as columns; see :meth:`ContinuousPredictive.columns`."""
        columns = self.moments.columns(targets, levels)
        prefix = "" if self.squeeze else f"{(list(targets) or ['y0'])[0]}_"
        for level in levels:
            for name, bound in zip(("lower", "upper"), self.interval(level), strict=True):
                columns[f"{prefix}{name}_{100 * level:.12g}"] = bound.detach().reshape(len(self)).numpy()
        return columns

    def _join(self, base: NumberPredictive, others: Sequence[Self]) -> Self:
        return replace(self, base=base)

    def take(self, rows: Any) -> Self:
        """Return the prediction of some rows, given by an index or a mask."""
        return replace(self, base=self.base.take(rows))
