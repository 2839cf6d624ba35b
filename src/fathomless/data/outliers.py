"""Outliers of a column, such as -999 for a missing value, in memory or part by part."""

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Outliers", "Subsample", "find_outliers"]

Floats: TypeAlias = npt.NDArray[np.float64]

_FAR = 10.0  # factor of the gap before outliers that repeat, such as codes for missing values
_FARTHER = 100.0  # factor of the gap before single outliers
_WIDE = 20.0  # minimum distance of outliers from the median, in interquartile ranges
_CODES = 3  # maximum distinct values of codes
_OF_CODES = 0.25  # share of the rows below which codes are outliers
_OF_OTHERS = 0.05  # maximum share of other outliers
_SHOWN = 3  # distinct values in messages
_KEPT = 2**15  # maximum size of a subsample


@dataclass(frozen=True)
class Outliers:
    """Outliers of a column.

    Attributes
    ----------
    values : tuple of float
        Up to three of their distinct values, ascending.
    distinct : int
        Number of distinct outlying values.
    rows : int
        Number of outlying cells.
    low, high : float
        Minimum and maximum of the other values.
    """

    values: tuple[float, ...]
    distinct: int
    rows: int
    low: float
    high: float

    @property
    def limits(self) -> tuple[float, float]:
        """Range of the other values, extended by its length on both sides."""
        length = self.high - self.low
        return self.low - length, self.high + length

    def inside(self, values: Floats) -> npt.NDArray[np.bool_]:
        """Return a mask of the values within the limits."""
        low, high = self.limits
        return (low <= values) & (values <= high)

    def describe(self, rows: int, kind: str = "numeric") -> str:
        """Describe the outliers for a message: their values, their number, and the range of the others."""
        *values, low, high = (_format(value, kind) for value in (*self.values, self.low, self.high))
        listed = f"{', '.join(values)}, ..." if self.distinct > _SHOWN else " or ".join(values)
        return f"{listed} in {self.rows:,} of {rows:,} rows, and all other values lie between {low} and {high}"


def find_outliers(values: Floats, weight: Floats | None = None) -> Outliers | None:
    """Find the outliers of a column.

    Values are ordered by their distance from the median. Outliers lie beyond the first gap across which the distance
    grows by a factor of at least 100, to at least 20 interquartile ranges. The factor is 10 if a value beyond the gap
    is at least twice as frequent as the rarest value before it. Outliers must have at most 3 distinct values in less
    than a quarter of the rows, or make up at most 5 % of the rows. If more than half of the rows have the same value,
    the quartiles and shares are those of the other rows. Repeating all rows does not change the result.

    Parameters
    ----------
    values : ndarray, shape (N,)
        Finite numbers.
    weight : ndarray, shape (N,), optional
        Sample weights.

    Returns
    -------
    Outliers or None
        None if there are no outliers, or the other values are all equal.

    Examples
    --------
    >>> outliers = find_outliers(np.array([*range(50), -999.0, -999.0]))
    >>> outliers.values, outliers.rows, outliers.limits
    ((-999.0,), 2, (-49.0, 98.0))
    >>> find_outliers(np.array([*range(50), 60.0, 70.0])) is None
    True
    """
    distinct, place, cells = np.unique(values, return_inverse=True, return_counts=True)
    count = cells if weight is None else np.bincount(place.ravel(), weights=weight)
    lower, median, upper = _compute_quartiles(distinct, count)
    of = count
    if lower == upper and len(distinct) > 1:  # more than half of the rows have one value
        of = np.where(distinct == median, 0, count)
        lower, _, upper = _compute_quartiles(distinct[of > 0], of[of > 0])
    if lower == upper:
        return None
    with np.errstate(over="ignore"):
        distance = np.abs(distinct - median)
        order = np.argsort(distance, kind="stable")
        near, far = distance[order][:-1], distance[order][1:]
        gap = (far >= _FAR * near) & (far >= _WIDE * (upper - lower))
    for last in np.flatnonzero(gap & (near > 0.0)).tolist():
        inside, outside = order[: last + 1], order[last + 1 :]
        repeated = count[outside].max() >= 2.0 * count[inside].min()
        share = float(of[outside].sum()) / float(of.sum())
        few = share < _OF_CODES if len(outside) <= _CODES else share <= _OF_OTHERS
        if few and (repeated or far[last] >= _FARTHER * near[last]):
            far_values = np.sort(distinct[outside])
            ordinary = distinct[inside]
            shown = tuple(far_values[:_SHOWN].tolist())
            rows = int(cells[outside].sum())
            return Outliers(shown, len(far_values), rows, float(ordinary.min()), float(ordinary.max()))
    return None


def _compute_quartiles(distinct: Floats, count: npt.NDArray[Any]) -> tuple[float, float, float]:
    """Compute the quartiles of distinct ascending values with the given counts."""
    below = np.cumsum(count)
    places = np.searchsorted(below, np.array([0.25, 0.5, 0.75]) * below[-1])
    lower, median, upper = distinct[np.minimum(places, len(distinct) - 1)].tolist()
    return lower, median, upper


def _format(value: float, kind: str) -> str:
    if kind == "date":
        return str(np.datetime64(math.floor(value), "D"))
    return f"{value:.6g}"


@dataclass
class Subsample:
    """Subsample of a stream of values: every k-th value, for the least power of two k that keeps at most 32,768."""

    step: int = 1
    count: int = 0
    values: Floats = field(default_factory=lambda: np.zeros(0))

    def add(self, values: Floats) -> None:
        """Add values, which must be finite."""
        new = values[-self.count % self.step :: self.step]
        self.count += len(values)
        self.values = np.concatenate([self.values, new])
        while len(self.values) > _KEPT:
            self.step *= 2
            self.values = self.values[::2].copy()

    def find_outliers(self, low: float, high: float) -> Outliers | None:
        """Find the outliers, given the minimum and the maximum of all values.

        The result is exact while every value is kept, except for the number of rows.
        """
        if not self.count:
            return None
        ends = [end for end in {low, high} if end not in self.values]
        return find_outliers(np.concatenate([self.values, ends]))
