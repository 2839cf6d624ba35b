"""Cells of a column that lie far from all others, such as -999 for a missing value: in memory, or part by part."""

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Outlying", "Thinned", "outlying"]

Floats: TypeAlias = npt.NDArray[np.float64]

_FAR, _FARTHER = 10.0, 100.0  # times the distance of the farthest ordinary value: of codes, and of single values
_WIDE = 20.0  # times the distance between the quartiles
_CODES = 3  # distinct values that may be codes
_OF_CODES, _OF_OTHERS = 0.25, 0.05  # shares of the rows
_SHOWN = 3
_KEPT = 2**15  # values of a column that comes part by part


@dataclass(frozen=True)
class Outlying:
    """Cells of a column that lie far from all others.

    Attributes
    ----------
    values : tuple of float
        Their distinct values, ascending; of many the first three.
    distinct : int
        How many distinct values there are.
    rows : int
        How many cells there are.
    low, high : float
        The least and the greatest of the other values.
    """

    values: tuple[float, ...]
    distinct: int
    rows: int
    low: float
    high: float

    @property
    def limits(self) -> tuple[float, float]:
        """Return the range of the other values, extended by its own length on both sides."""
        length = self.high - self.low
        return self.low - length, self.high + length

    def inside(self, values: Floats) -> npt.NDArray[np.bool_]:
        """Return which values are not outlying."""
        low, high = self.limits
        return (low <= values) & (values <= high)

    def told(self, rows: int, kind: str = "numeric") -> str:
        """Describe the cells in words: their values, their number, and where the others lie."""
        *values, low, high = (_written(value, kind) for value in (*self.values, self.low, self.high))
        listed = f"{', '.join(values)}, ..." if self.distinct > _SHOWN else " or ".join(values)
        return f"{listed} in {self.rows:,} of {rows:,} rows, and all other values lie between {low} and {high}"


def outlying(values: Floats, weight: Floats | None = None) -> Outlying | None:
    """Find the cells of a column that lie far from all others.

    Values are ordered by their distance from the median. Cells are outlying beyond the first gap across which the
    distance grows at least a hundredfold (tenfold, if one of the values beyond comes at least twice as often as the
    rarest other value), to at least 20 times the distance between the quartiles; and only if they hold at most 3
    distinct values in less than a quarter of the rows, or are at most 5 % of the rows. If more than half of the rows
    have one value, quartiles and shares are those of the other rows. Repeating all rows changes nothing.

    Parameters
    ----------
    values : ndarray, shape (N,)
        Finite numbers.
    weight : ndarray, shape (N,), optional
        How often each counts.

    Returns
    -------
    Outlying or None
        None if there are none, or if the other values are all equal.

    Examples
    --------
    >>> found = outlying(np.array([*range(50), -999.0, -999.0]))
    >>> found.values, found.rows, found.limits
    ((-999.0,), 2, (-49.0, 98.0))
    >>> outlying(np.array([*range(50), 60.0, 70.0])) is None
    True
    """
    distinct, place, cells = np.unique(values, return_inverse=True, return_counts=True)
    count = cells if weight is None else np.bincount(place.ravel(), weights=weight)
    lower, median, upper = _quartiles(distinct, count)
    of = count
    if lower == upper and len(distinct) > 1:  # more than half of the rows have one value
        of = np.where(distinct == median, 0, count)
        lower, _, upper = _quartiles(distinct[of > 0], of[of > 0])
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
            found, ordinary = np.sort(distinct[outside]), distinct[inside]
            shown, cells_found = tuple(found[:_SHOWN].tolist()), int(cells[outside].sum())
            return Outlying(shown, len(found), cells_found, float(ordinary.min()), float(ordinary.max()))
    return None


def _quartiles(distinct: Floats, count: npt.NDArray[Any]) -> tuple[float, float, float]:
    """Return the quartiles of distinct ascending values that come so often."""
    below = np.cumsum(count)
    places = np.searchsorted(below, np.array([0.25, 0.5, 0.75]) * below[-1])
    lower, median, upper = distinct[np.minimum(places, len(distinct) - 1)].tolist()
    return lower, median, upper


def _written(value: float, kind: str) -> str:
    if kind == "date":
        return str(np.datetime64(math.floor(value), "D"))
    return f"{value:.6g}"


@dataclass
class Thinned:
    """Every k-th of the values that came so far, at most 32,768 of them; k is the least power of two for that."""

    step: int = 1
    count: int = 0
    values: Floats = field(default_factory=lambda: np.zeros(0))

    def add(self, values: Floats) -> None:
        """Take in more values, which must be finite."""
        new = values[-self.count % self.step :: self.step]
        self.count += len(values)
        self.values = np.concatenate([self.values, new])
        while len(self.values) > _KEPT:
            self.step, self.values = 2 * self.step, self.values[::2].copy()

    def outlying(self, low: float, high: float) -> Outlying | None:
        """Find the cells that lie far from all others, given the least and the greatest of all values.

        Exact, but for the number of rows, as long as every value is kept.
        """
        if not self.count:
            return None
        ends = [end for end in {low, high} if end not in self.values]
        return outlying(np.concatenate([self.values, ends]))
