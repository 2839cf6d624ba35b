r"""Predictive distributions on a lattice, for counts, grades and coarsely rounded targets.

The density of such a target is not defined: a law that concentrates on the points of the lattice has any density there.
The probabilities of the points are

.. math:: P(Y = y) = F(y + \delta/2) - F(y - \delta/2)

with the step :math:`\delta` and a continuous law F, the law of Y before rounding to the lattice.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from fathomless.posterior.censoring import log_probability
from fathomless.posterior.derived import MappedPredictive
from fathomless.posterior.distributions import (
    ContinuousPredictive,
    NumberPredictive,
    Values,
    match_type,
    to_double,
)
from fathomless.posterior.mixtures import Component, Mixture, Normal
from fathomless.posterior.transformed import TransformedPredictive
from fathomless.system.errors import DataError

__all__ = ["LatticePredictive", "crps_of_points", "least_of_normals", "moments_by_tails"]

_CLOSE = 1e-3  # distance from a point of the lattice, in steps, that counts as rounding
_LEAST = 1e-200  # variance of a component, in squared units
_TAIL = 1e-4  # probability beyond the points of the sum of the CRPS, on each side
_MOST_POINTS = 4096  # points of this sum; more are thinned out
_REACH = 5.0  # standard deviations of a component below which points do not count in moments
_SUMMED, _LEFT = 128, 1e-6  # points of a sum for moments, and probability beyond them that does not count
_NUMBERS = 4_000_000  # values of distribution functions at once


def least_of_normals(components: Sequence[Component]) -> Tensor:
    """Return the smallest values that count in moments, (1, N, T), for Gaussians with parameters (S, N, T)."""
    return torch.stack([(law.loc - _REACH * law.scale).amin(0, keepdim=True) for law in components]).amin(0)


def moments_by_tails(
    first: Tensor, mean: Tensor, variance: Tensor, step: float, tail: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    r"""Return mean and variance of a law that is rounded to a lattice.

    With the points :math:`y_k = y_0 + k \delta` from the first one that counts,

    .. math:: E[Y] = y_0 + \delta \sum_k P(Y > y_k), \qquad
              E[(Y - y_0)^2] = \delta^2 \sum_k (2 k + 1) P(Y > y_k) .

    A law on more than 128 points is smooth within a step: it keeps its mean, and has the further variance
    :math:`\delta^2 / 12` of the rounding.

    Parameters
    ----------
    first : Tensor, shape (...)
        First point of each row.
    mean, variance : Tensor, shape (...)
        Moments before rounding.
    step : float
        Distance of the points.
    tail : callable
        Returns the probability of values above the given ones (128, ...) before rounding.
    """
    k = torch.arange(_SUMMED, dtype=torch.float64, device="cpu").view(-1, *(1 for _ in first.shape))
    tails = tail(first + (k + 0.5) * step)
    above = tails.sum(0)
    rounded = step**2 * (((2.0 * k + 1.0) * tails).sum(0) - above.square())
    narrow = tails[-1] < _LEFT
    return torch.where(narrow, first + step * above, mean), torch.where(narrow, rounded, variance + step**2 / 12.0)


@dataclass(frozen=True, eq=False, repr=False)
class LatticePredictive(MappedPredictive):
    """Predictive distribution of one target on the points offset + k step, with whole numbers k.

    Arguments and results have the shape (N,), or (N, 1) if the target was given as a column. Everything is float64 on
    the CPU, in units of the target. Values between the points are rounded to the nearest point by :meth:`log_prob`, and
    have probability 0 in :meth:`pmf`.

    Attributes
    ----------
    base : ContinuousPredictive or TransformedPredictive
        Law of the target before rounding, with one target.
    step : float
        Distance of neighbouring points.
    offset : float
        One of the points.

    Raises
    ------
    DataError
        If the law has several targets, or the step is not positive and finite.
    """

    _constant: ClassVar[str] = "lattices"

    base: ContinuousPredictive | TransformedPredictive
    step: float
    offset: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 < self.step < math.inf or not math.isfinite(self.offset):
            raise DataError(
                f"a lattice was given the step {self.step} and the offset {self.offset}; allowed are a positive, "
                "finite step and a finite offset"
            )

    @classmethod
    def of(cls, base: ContinuousPredictive | TransformedPredictive, step: float, offset: float = 0.0) -> Self:
        """Return the law of a target that is rounded to a lattice."""
        return cls._derive(base, step, offset)

    @property
    def discrete(self) -> bool:
        """True."""
        return True

    @cached_property
    def moments(self) -> ContinuousPredictive:
        r"""Law of Gaussians whose mean and variance are those of the points of each row (:func:`moments_by_tails`).

        The rounding is a part of the noise: means of the networks keep their distances, or are closer by a common
        factor if the variance is smaller after rounding. Laws that are not Gaussian, as Student's t, keep the mean
        before rounding, which differs by at most 0.06 δ at the smallest scale, :math:`\delta / \sqrt{12}`.
        """
        before = self.base.moments if isinstance(self.base, TransformedPredictive) else self.base
        with torch.enable_grad():  # the result is cached, and a later caller may need gradients
            mean, variance = before.mixture.mean, before.mixture.variance  # (N, 1)
            centre, total = self._sum_points(mean, variance)
            finite = variance.isfinite()
            centre, total = torch.where(finite, centre, mean), torch.where(finite, total, variance)
            share = torch.where(finite & (total < variance), total / variance, 1.0)
            added = torch.where(finite, (total - variance).clamp_min(0.0), 0.0)

            def rounded(law: Component) -> Normal:
                spread = (share * law.variance + added).clamp_min(_LEAST).sqrt()
                return Normal(centre + share.sqrt() * (law.mean - mean), spread)

            laws = tuple(Mixture(law.log_weight, rounded(law.component)) for law in before.residual_laws)
            return replace(before, component=rounded(before.component), residual_laws=laws)

    def _sum_points(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the points of each row, given those before rounding, (N, 1)."""
        law = self.base.continuous
        components = [law.component, *(part.component for part in law.residual_laws)]
        if not all(isinstance(part, Normal) for part in components):
            return mean, variance + self.step**2 / 12.0
        least = least_of_normals([part.map_parameters(Tensor.detach) for part in components])[0]
        if isinstance(self.base, TransformedPredictive):
            least = self.base.transform.invert(least)
        first = self.round(least)
        size = max(1, _NUMBERS // (_SUMMED * len(self.log_weight)))
        parts = []
        for rows in torch.arange(len(mean), device="cpu").split(size):
            tail = partial(_tail_of, self.base.take(rows))
            parts.append(moments_by_tails(first[rows], mean[rows], variance[rows], self.step, tail))
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def cdf(self, y: Values) -> Tensor:
        """Probability of the points up to y, which broadcasts to the rows."""
        return self.base.cdf(self._last_point(y) + 0.5 * self.step)

    def sf(self, y: Values) -> Tensor:
        """Probability of the points above y, accurate in the upper tail."""
        return self.base.sf(self._last_point(y) + 0.5 * self.step)

    def cdf_before(self, y: Values) -> Tensor:
        """Probability of the points below y."""
        number = torch.ceil((to_double(y) - self.offset) / self.step - _CLOSE)
        return self.base.cdf(self._points(number) - 0.5 * self.step)

    def icdf(self, p: Values) -> Tensor:
        """Quantile: the smallest point up to which the probability is at least p; p broadcasts to the rows.

        Raises
        ------
        DataError
            If a probability is outside [0, 1] or NaN.
        """
        p = to_double(p)
        return self.first_reached(
            self.base.icdf(p),
            # above the median the other tail has fewer rounding errors; below it, that tail may round to 1
            lambda end: (self.base.cdf(end) >= p) | ((p > 0.5) & (self.base.sf(end) <= 1.0 - p)),
        )

    def isf(self, q: Values) -> Any:
        """Smallest point that the target exceeds with probability at most q, accurate for small q."""
        tail = to_double(q)
        point = self.first_reached(
            self.base.isf(tail),
            lambda end: (self.base.sf(end) <= tail) | ((tail > 0.5) & (self.base.cdf(end) >= 1.0 - tail)),
        )
        return match_type(q, point)

    def log_prob(self, y: Values) -> Tensor:
        """Log probability of the point nearest to each row's target in nats, shape (N,).

        Raises
        ------
        DataError
            If y does not have one value for each row.
        """
        y = self._require_shape(y, "row")
        log_p = self._log_mass(self.round(y))
        return log_p if self.squeeze else log_p.sum(-1)

    def log_prob_and_error(self, y: Values) -> tuple[Tensor, Tensor]:
        """Return the log probability of the targets and its Monte Carlo error, both (N,), in nats.

        The error is that of the log density at the target, which is close to that of the mean density of the cell.
        """
        return self.log_prob(y), self.base.log_prob_and_error(self.round(y))[1]

    def logpmf(self, y: Values) -> Any:
        """Log probability of the points y in nats, minus infinity between points; y broadcasts to the rows."""
        values = to_double(y)
        point = self.round(values)
        on = (values - point).abs() <= _CLOSE * self.step
        log_p = self._log_mass(point)
        return match_type(y, torch.where(on.expand_as(log_p), log_p, -math.inf))

    def pmf(self, y: Values) -> Any:
        """Probability of the points y, 0 between points; y broadcasts to the rows."""
        log_p = self.logpmf(y)
        return log_p.exp() if isinstance(y, Tensor) else np.exp(log_p)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw from the joint law, shape (n, N) or (n, N, 1); the rows of a sample share one drawn network."""
        return self.round(self.base.sample(n, generator))

    def crps(self, y: Values) -> Tensor:
        r"""Continuous ranked probability score of each row's target, with the shape of the rows, in units of y.

        .. math:: \delta \sum_k \left( F(y_k) - 1[y \le y_k] \right)^2

        The sum leaves out points up to which, or beyond which, the probability is below 1e-4. This changes the score by
        about 1e-8 steps.
        """
        return crps_of_points(self, self.round(y).reshape(self.shape), self.step)

    def _constants(self) -> tuple[Any, ...]:
        return self.step, self.offset

    def round(self, y: Values) -> Tensor:
        """Return the nearest points of the lattice."""
        return self._points(torch.round((to_double(y) - self.offset) / self.step))

    def _last_point(self, y: Values) -> Tensor:
        """Return the last point up to y."""
        return self._points(torch.floor((to_double(y) - self.offset) / self.step + _CLOSE))

    def _points(self, number: Tensor) -> Tensor:
        """Return the points of whole numbers; the nearest floats of decimal fractions, so that they equal targets."""
        inverse = round(1.0 / self.step) if self.step < 1.0 else 0
        if inverse and math.isclose(inverse * self.step, 1.0, rel_tol=1e-12):
            return (number + round(self.offset / self.step, 6)) / inverse  # 3 * 0.1 is not 0.3, but 3 / 10 is
        return self.offset + self.step * number

    def first_reached(self, edge: Tensor, is_reached: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the first point whose cell has an upper end with a property, which holds from `edge` on."""
        finite = edge.isfinite()
        number = torch.ceil((torch.where(finite, edge, self.offset) - self.offset) / self.step - 0.5)
        # quantile and cdf have rounding errors
        before, at = (is_reached(self._points(k) + 0.5 * self.step) for k in (number - 1.0, number))
        number = torch.where(before, number - 1.0, torch.where(at, number, number + 1.0))
        return torch.where(finite, self._points(number), edge)

    def _log_mass(self, point: Tensor) -> Tensor:
        """Return the log probability of points, by differences of the smaller tails."""
        low, high = point - 0.5 * self.step, point + 0.5 * self.step
        return log_probability(self.base, low, high, self._log_density)

    def _log_density(self, y: Tensor) -> Tensor:
        log_density: Tensor = self.base.logpdf(y)  # a tensor for a tensor
        return log_density


def _tail_of(base: ContinuousPredictive | TransformedPredictive, y: Tensor) -> Tensor:
    """Return the probability of values above y, (K, N, 1)."""
    return base.sf(y.reshape(len(y), *base.shape)).reshape(y.shape)


def crps_of_points(p: NumberPredictive, y: Tensor, step: float) -> Tensor:
    """Return the continuous ranked probability score of a law on a lattice, with the shape of the rows.

    See :meth:`LatticePredictive.crps`.

    Parameters
    ----------
    p : NumberPredictive
        Law on points at a distance `step`.
    y : Tensor, shape of the rows
        Points, in units of the target.
    step : float
        Distance of neighbouring points.
    """
    low = torch.minimum(p.icdf(_TAIL), y)
    high = torch.maximum(p.isf(to_double(_TAIL)), y)
    points = float(((high - low) / step).max()) + 1.0
    stride = math.ceil(points / _MOST_POINTS)
    total = torch.zeros_like(y)
    for k in range(0, math.ceil(points), stride):
        point = low + k * step
        term = (p.cdf(point + _CLOSE * step) - (y <= point + 0.5 * step).to(y)).square()
        total = total + torch.where(point < high + 0.5 * step, term, 0.0)
    return total * step * stride
