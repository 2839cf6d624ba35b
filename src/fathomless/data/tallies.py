"""Running statistics of columns that are read part by part, and the encodings that follow from them."""

import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from fathomless.data.bins import fit_bins
from fathomless.data.outliers import Outliers, Subsample
from fathomless.data.schema import (
    ZONE_REMEDY,
    Cells,
    Column,
    Floats,
    compute_moments,
    fit_column,
    limits_of_constant,
    warn_of_outliers,
)
from fathomless.system.errors import DataError

__all__ = ["Moments", "Tally"]

_MOST = 100_000  # maximum categories of a column that is read part by part


@dataclass(frozen=True)
class Moments:
    """Mean and population standard deviation of the numbers seen so far.

    Equal to those of :func:`compute_moments` on all numbers at once, up to rounding.

    Attributes
    ----------
    count : int
        Number of values.
    mean, std : float
        Mean and standard deviation; 0 without values.
    low, high : float
        Minimum and maximum.
    """

    count: int = 0
    mean: float = 0.0
    std: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def plus(self, values: Floats) -> "Moments":
        """Return the moments after adding numbers, which must be finite."""
        if not len(values):
            return self
        count = self.count + len(values)
        low, high = float(values.min()), float(values.max())
        mean, std = compute_moments(values, None)
        std *= low != high
        share = len(values) / count
        step = mean * share - self.mean * share
        # hypot, as squares may overflow: s^2 = (1 - a) s1^2 + a s2^2 + a (1 - a) (m2 - m1)^2 with the share a
        between = step * math.sqrt((1.0 - share) / share)
        std = math.hypot(self.std * math.sqrt(1.0 - share), std * math.sqrt(share), between)
        return Moments(count, self.mean + step, std, min(self.low, low), max(self.high, high))

    @property
    def standard(self) -> tuple[float, float]:
        """Mean and scale as :func:`compute_moments` returns them: the scale of a constant is 1."""
        return (self.low, 1.0) if self.low == self.high else (self.mean, self.std or 1.0)


@dataclass
class Tally:
    """Running statistics of a column that is read part by part; :meth:`column` returns the fitted encoding.

    Attributes
    ----------
    name : str
        Name in the table.
    kind : str
        Kind of the cells; "empty" until the first value.
    gaps : bool
        True if a value was missing.
    numbers : Moments
        Moments of numbers and dates, without outliers if `far` is set.
    sample : Subsample
        Subsample of the same numbers.
    far : Outliers, optional
        Outliers of the column, set by :meth:`set_limits`.
    counts : Counter
        Number of rows of each category.
    zoned : bool, optional
        True if times have a time zone, False if they have none.
    """

    name: str
    kind: str = "empty"
    gaps: bool = False
    numbers: Moments = Moments()
    sample: Subsample = field(default_factory=Subsample)
    far: Outliers | None = None
    counts: Counter[Any] = field(default_factory=Counter)
    zoned: bool | None = None

    def add(self, cells: Cells) -> None:
        """Add the cells of more rows.

        Raises
        ------
        DataError
            If their kind differs from that of earlier cells, or there are too many categories to count.
        """
        self.gaps = self.gaps or bool(cells.missing.any())
        if cells.kind == "empty":
            return
        if self.kind not in ("empty", cells.kind):
            raise DataError(f"column {self.name!r} changes from {self.kind} to {cells.kind}; give it one type")
        self.kind = cells.kind
        if self.zoned is not None and cells.zoned not in (None, self.zoned):
            raise DataError(f"column {self.name!r} has times with a time zone and times without one; {ZONE_REMEDY}")
        self.zoned = cells.zoned if self.zoned is None else self.zoned
        if cells.kind == "category":
            self.counts.update(value for value in cells.levels() if value is not None)
            if len(self.counts) > _MOST:
                raise DataError(
                    f"column {self.name!r} has more than {_MOST:,} categories; drop it if it is an identifier"
                )
        else:
            values = cast(Floats, cells.values)[~cells.missing]
            self.numbers = self.numbers.plus(values)
            if cells.kind != "boolean":
                self.sample.add(values)

    def find_outliers(self) -> Outliers | None:
        """Find the outliers of the column."""
        return self.sample.find_outliers(self.numbers.low, self.numbers.high)

    def set_limits(self, far: Outliers, numbers: Moments) -> None:
        """Set the limits of the column and the moments of the numbers within them; warn of the outliers."""
        rows = self.numbers.count
        self.far = replace(far, rows=rows - numbers.count)
        self.numbers = numbers
        warn_of_outliers(self.name, self.kind, self.far, rows)

    def column(self, *, max_levels: int, bins: int = 0) -> Column:
        """Return the encoding that :func:`fit_column` fits to all cells at once, up to rounding.

        Bins are fitted to a subsample of at most 32,768 values.

        Raises
        ------
        DataError
            If the column has no values.
        """
        constant = limits_of_constant(self.numbers.low, self.numbers.high)
        match self.kind:
            case "empty":
                raise DataError(f"column {self.name!r} has no values in the training data; drop the column")
            case "boolean":
                return Column(self.name, "boolean", gaps=self.gaps, limits=constant)
            case "category":
                levels = list(self.counts)
                counts = np.array(list(self.counts.values()), dtype=np.float64)
                cells = Cells("category", levels, np.zeros(len(levels), dtype=np.bool_))
                column = fit_column(self.name, cells, counts, standardize=True, max_levels=max_levels)
                return replace(column, gaps=self.gaps)
        mean, scale = self.numbers.standard
        limits = constant if self.far is None else self.far.limits
        fitted = None
        if bins and self.kind == "numeric":
            values = self.sample.values
            fitted = fit_bins(values if self.far is None else values[self.far.inside(values)], None, bins)
        encoded = Column(self.name, self.kind, mean, scale, mean, gaps=self.gaps, limits=limits, bins=fitted)
        return replace(encoded, zoned=self.zoned)
