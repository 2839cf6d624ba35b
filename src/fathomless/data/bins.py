r"""Further features of a column of numbers, which show the first layer its masses and steps.

A standardised number is a straight line to the first layer: a network has to learn where a column has a mass, such as
92 % zeros, or a step. With ``numbers="binned"`` a column with more than three distinct values has three more parts. All
are fitted to the values of the training rows, without the target.

- A bounded copy, :math:`z / \sqrt{1 + z^2 / 9}` with :math:`z = (x - \text{median}) / s`. The scale s is the
  interquartile range divided by 1.349, or the median of the positive distances from the median if that range is 0.
- Indicators of frequent values: those of at least 10 rows and 0.3 % of the rows, with at least four times the median
  count of their three neighbours on each side; at most 12.
- A piecewise-linear encoding (Gorishniy and others, 2022) in at most B bins. Bin b has the feature
  :math:`\min(\max((x - a_b) / (a_{b+1} - a_b), 0), 1)`. The knots are quantiles of the distinct values, each with its
  count, or W / B if that is less, where W is the sum of these weights. A mass therefore takes one or two knots, and not
  most of them.

Indicators and bins are centred, but not scaled: rare indicators would become large. Bins are multiplied by 0.1. This is
equivalent to the prior N(0, 0.1²) of their weights, where those of other features have N(0, 1). The initial weights of
all three parts are 0 in networks of the depth families with point estimates, if they begin with a linear map.

References
----------
Y. Gorishniy, I. Rubachev and A. Babenko, "On Embeddings for Numerical Features in Tabular Deep Learning", 2022.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["BIN_SCALE", "LIMIT", "ROWS_AT_ONCE", "Bins", "BinsOfColumns", "choose_bin_count", "fit_bins"]

Floats: TypeAlias = npt.NDArray[np.float64]

BIN_SCALE = 0.1  #: factor of the features of bins
ROWS_AT_ONCE = 1024  #: rows that are encoded at once, which fit into the cache
LIMIT = 1e6  #: standardised values are clipped to this range before they are bounded
_FEWEST = 4  # distinct values of a column with bins
_FEATURES, _LEAST, _MOST = 256, 4, 16  # bins of a table, and the smallest and largest number of bins of a column
_PASSES = 5  # iterations for the capped counts
_ROWS, _SHARE, _TIMES, _NEAR, _SPIKES = 10.0, 0.003, 4.0, 3, 12  # rule for frequent values, as above


@dataclass(frozen=True)
class Bins:
    """Fitted features of a column of numbers.

    Attributes
    ----------
    median, spread : float
        Centre and scale of the bounded copy.
    spikes : tuple of float
        Frequent values, ascending.
    knots : tuple of float
        Limits of the bins, ascending.
    means : tuple of float
        Means of the indicators and of the features of bins in the training rows.
    """

    median: float
    spread: float
    spikes: tuple[float, ...]
    knots: tuple[float, ...]
    means: tuple[float, ...]

    def names(self, column: str) -> list[str]:
        """Return the names of the features."""
        spikes = [f"{column} = {value!r}" for value in self.spikes]
        bins = [f"{column}, bin {k}" for k in range(1, len(self.knots))]
        return [f"{column} (bounded)", *spikes, *bins]

    def encode(self, values: Floats) -> Floats:
        """Return the features of finite values (N,), shape (N, 1 + spikes + bins)."""
        return self._alone.encode(values[:, None])

    @cached_property
    def _alone(self) -> "BinsOfColumns":
        return BinsOfColumns([self])

    def is_valid(self) -> bool:
        """Return True if :func:`fit_bins` can produce these values."""
        numbers = (self.median, self.spread, *self.spikes, *self.knots, *self.means)
        return (
            all(type(value) is float and math.isfinite(value) for value in numbers)
            and self.spread > 0.0
            and len(self.knots) >= 2
            and all(a < b for part in (self.spikes, self.knots) for a, b in itertools.pairwise(part))
            and math.isfinite(self.knots[-1] - self.knots[0])
            and len(self.means) == len(self.spikes) + len(self.knots) - 1
        )


class BinsOfColumns:
    """Features of several columns, computed at once.

    Parameters
    ----------
    columns : sequence of Bins or None
        Features of each of the C columns; None for columns without further features.

    Attributes
    ----------
    column : ndarray of int64, shape (D,)
        Column of each of the D features, ascending.
    """

    def __init__(self, columns: Sequence[Bins | None]) -> None:
        some = [(place, bins) for place, bins in enumerate(columns) if bins is not None]
        sizes = [(1, len(bins.spikes), len(bins.knots) - 1) for _, bins in some]
        kind = np.repeat(np.tile([0, 1, 2], len(some)), np.array(sizes, dtype=np.int64).ravel())
        self.column = np.repeat([place for place, _ in some], [sum(size) for size in sizes]).astype(np.int64)
        self._order = np.argsort(np.argsort(kind, kind="stable"), kind="stable")  # of features that are sorted by kind
        self._of_kind = [self.column[kind == k] for k in range(3)]
        self._median = np.array([bins.median for _, bins in some])
        self._spread = np.array([bins.spread for _, bins in some])
        self._spike = np.array([value for _, bins in some for value in bins.spikes])
        self._spike_mean = np.array([mean for _, bins in some for mean in bins.means[: len(bins.spikes)]])
        self._low = np.array([knot for _, bins in some for knot in bins.knots[:-1]])
        self._width = np.concatenate([np.zeros(0), *(np.diff(bins.knots) for _, bins in some)])
        self._bin_mean = np.array([mean for _, bins in some for mean in bins.means[len(bins.spikes) :]])

    def encode(self, values: Floats) -> Floats:
        """Return the features (N, D) of finite values (N, C); those of a column are in the order of its names."""
        out = np.empty((len(values), len(self.column)))
        for start in range(0, len(values), ROWS_AT_ONCE):
            out[start : start + ROWS_AT_ONCE] = self._encode_part(values[start : start + ROWS_AT_ONCE])
        return out

    def _encode_part(self, values: Floats) -> Floats:
        of_bounded, of_spike, of_bin = (values[:, columns] for columns in self._of_kind)
        with np.errstate(over="ignore"):
            z = np.clip((of_bounded - self._median) / self._spread, -LIMIT, LIMIT)
            inside = np.clip((of_bin - self._low) / self._width, 0.0, 1.0)
        bounded = z / np.sqrt(1.0 + (z / 3.0) ** 2)
        spikes = (of_spike == self._spike) - self._spike_mean
        by_kind = np.concatenate([bounded, spikes, BIN_SCALE * (inside - self._bin_mean)], axis=1)
        return np.take(by_kind, self._order, axis=1)


def choose_bin_count(columns: int) -> int:
    """Return the largest number of bins of a column, for a table with a number of columns of numbers."""
    return min(max(_FEATURES // max(columns, 1), _LEAST), _MOST)


def fit_bins(values: Floats, weight: Floats | None, count: int) -> Bins | None:
    """Fit the features of a column.

    Parameters
    ----------
    values : ndarray, shape (N,)
        Finite values of the training rows.
    weight : ndarray, shape (N,), optional
        Weights of the rows.
    count : int
        Largest number of bins.

    Returns
    -------
    Bins or None
        None if there are fewer than four distinct values, or their range overflows.

    Examples
    --------
    >>> values = np.array([0.0] * 90 + [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0])
    >>> bins = fit_bins(values, None, 4)
    >>> bins.spikes, bins.knots
    ((0.0,), (0.0, 4.0, 7.0, 10.0))
    """
    distinct, place = np.unique(values, return_inverse=True)
    if len(distinct) < _FEWEST or not math.isfinite(float(distinct[-1]) - float(distinct[0])):
        return None
    counts = np.bincount(place.ravel(), weights=weight).astype(np.float64)
    median, spread = _measure(distinct, counts)
    knots = _place_knots(distinct, counts, count)
    spikes = _find_spikes(distinct, counts)
    found = Bins(median, spread, tuple(spikes), tuple(knots), (0.0,) * (len(spikes) + len(knots) - 1))
    steps = found.encode(distinct)[:, 1:].copy()
    steps[:, len(spikes) :] /= BIN_SCALE
    means = np.average(steps, axis=0, weights=counts)
    return Bins(median, spread, tuple(spikes), tuple(knots), tuple(means.tolist()))


def _measure(distinct: Floats, counts: Floats) -> tuple[float, float]:
    """Return the median and the robust scale of distinct values with counts."""
    lower, median, upper = _quantiles(distinct, counts, [0.25, 0.5, 0.75])
    if upper > lower:
        return median, (upper - lower) / 1.349
    distance = np.abs(distinct - median)
    order = np.argsort(distance, kind="stable")
    order = order[distance[order] > 0.0]
    return median, _quantiles(distance[order], counts[order], [0.5])[0]


def _quantiles(ascending: Floats, counts: Floats, levels: Any) -> list[float]:
    """Return the smallest values with at least the given shares of the counts up to them."""
    below = np.cumsum(counts)
    places = np.searchsorted(below, np.asarray(levels) * below[-1])
    return [float(value) for value in ascending[np.minimum(places, len(ascending) - 1)]]


def _place_knots(distinct: Floats, counts: Floats, bins: int) -> list[float]:
    """Return ascending knots: all distinct values if they are few, and else quantiles by capped counts."""
    if len(distinct) <= bins + 1:
        return [float(value) for value in distinct]
    capped = counts
    for _ in range(_PASSES):
        capped = np.minimum(counts, capped.sum() / bins)
    inner = _quantiles(distinct, capped, np.arange(1, bins) / bins)
    return sorted({float(distinct[0]), *inner, float(distinct[-1])})


def _find_spikes(distinct: Floats, counts: Floats) -> list[float]:
    """Return the frequent values, ascending."""
    found = []
    for i in np.flatnonzero(counts >= max(_ROWS, _SHARE * counts.sum())).tolist():
        near = [*counts[max(0, i - _NEAR) : i], *counts[i + 1 : i + 1 + _NEAR]]
        if counts[i] >= _TIMES * float(np.median(near)):
            found.append((float(counts[i]), float(distinct[i])))
    return sorted(value for _, value in sorted(found, key=lambda each: (-each[0], each[1]))[:_SPIKES])
