r"""Coverage of prediction intervals in groups of rows: by width of the interval, by prediction and by column.

Intervals can cover 90 % of all rows and yet be too wide for some rows and too narrow for others. For each group this
module has the coverage and the relative size of the errors, the root mean square of the normal scores
:math:`z = \Phi^{-1}(F(y))`. It is 1 if the widths are right, above 1 if the intervals are too narrow. The test of
Kruskal and Wallis on :math:`|z|` shows whether groups differ by more than chance.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from fathomless.data.frames import space_evenly, take
from fathomless.data.schema import Schema
from fathomless.estimators.importance import row_groups
from fathomless.posterior import metrics
from fathomless.system.errors import DataError

__all__ = ["ConditionalCoverage", "CoverageGroup", "coverage_by_group", "pack", "unpack"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_LEVEL = 0.9
_QUARTERS = 4
_LEAST = 10  # minimum number of rows of a group
_ROWS = 20_000  # maximum number of rows whose columns are encoded, for up to 200 columns
_FEWEST = 1000  # the same for very many columns
_CELLS = 4_000_000
_KEPT = 12  # number of columns that are kept, those with the smallest p-values
_TARGETS = 8  # number of targets with groups
#: Names of the variables that are no columns.
OWN = ("interval width", "prediction")


@dataclass(frozen=True)
class CoverageGroup:
    """Coverage of the 90 % intervals in a group of rows.

    Attributes
    ----------
    label : str
        Range of the variable, its category, or "missing".
    rows : float
        Number of rows; a row of weight k counts as k rows.
    coverage : float
        Share of the rows inside their 90 % interval. For discrete targets and atoms, it is the share of the randomised
        values of the distribution function within the central 90 %, which has no excess for the size of the atoms.
    size : float
        Root mean square of the normal scores of the targets, at most 8; 1 if the width of the intervals is right.
    width : float
        Mean width of the 90 % intervals, in the units of the target.
    """

    label: str
    rows: float
    coverage: float
    size: float
    width: float


@dataclass(frozen=True)
class ConditionalCoverage:
    """Coverage of the 90 % intervals of a target by groups of one variable.

    Attributes
    ----------
    target : str
        Name of the target.
    variable : str
        "interval width", "prediction", or the name of a column.
    kind : str
        "own" for the first two; otherwise the kind of the column: "numeric", "boolean", "date" or "category".
    p : float
        p-value of the test that the size of the errors relative to the intervals is the same in all groups, multiplied
        by the number of variables that were tested for this target, and at most 1.
    groups : tuple of CoverageGroup
        Quarters of the rows in ascending order of the variable, or fewer groups if it has few values; categories of at
        least ten rows.
    """

    target: str
    variable: str
    kind: str
    p: float
    groups: tuple[CoverageGroup, ...]


def coverage_by_group(
    schema: Schema | None,
    X: Any,
    targets: Sequence[str],
    *,
    mean: Floats,
    low: Floats,
    high: Floats,
    cdf: Floats,
    weight: Floats | None,
) -> tuple[ConditionalCoverage, ...]:
    """Compute the coverage of 90 % intervals by groups of rows.

    Width and prediction are of all rows, columns of at most 20,000 evenly spaced rows (fewer for more than 200 columns,
    but at least 1,000). For each of the first eight
    targets, twelve columns are kept: those whose groups differ most significantly.

    Parameters
    ----------
    schema : Schema or None
        Schema of the columns; None to leave them out.
    X : array or data frame, shape (N, C)
        Rows.
    targets : sequence of str, length T
        Names of the targets.
    mean, low, high : ndarray, shape (N, T)
        Predicted means and ends of the 90 % intervals.
    cdf : ndarray, shape (N, T)
        Predicted distribution functions at the observed targets.
    weight : ndarray, shape (N,), or None
        Sample weights.

    Returns
    -------
    tuple of ConditionalCoverage
        For each target the interval width, the prediction and then the columns, in order of their p-values.
    """
    most = _ROWS if schema is None else min(_ROWS, max(_FEWEST, _CELLS // len(schema.columns)))
    rows = space_evenly(len(mean), most)
    columns = [] if schema is None else list(_column_groups(schema, take(X, rows)))
    found = list[ConditionalCoverage]()
    for t, target in enumerate(targets[:_TARGETS]):
        step = max(1e-12 * float(np.abs([low[:, t], high[:, t]]).max()), 1e-300)  # above the rounding of quantiles
        width = np.round((high[:, t] - low[:, t]) / step) * step
        table = _Rows(cdf[:, t], width, np.ones(len(mean)) if weight is None else weight)
        own = [
            table.compare(target, name, "own", *_quarters(values, table.weight))
            for name, values in zip(OWN, (table.width, mean[:, t]), strict=True)
        ]
        part = table.select(rows)
        others = [part.compare(target, name, kind, group, labels) for name, kind, group, labels in columns]
        tested = sum(one is not None for one in (*own, *others))
        ranked = sorted((one for one in others if one is not None), key=lambda one: one.p)[:_KEPT]
        kept = [one for one in own if one is not None] + ranked
        found += [ConditionalCoverage(c.target, c.variable, c.kind, min(1.0, tested * c.p), c.groups) for c in kept]
    return tuple(found)


def pack(found: Sequence[ConditionalCoverage]) -> list[list[Any]]:
    """Return groups as lists for JSON."""
    fields = CoverageGroup.__dataclass_fields__
    return [[c.target, c.variable, c.kind, c.p, [[getattr(g, f) for f in fields] for g in c.groups]] for c in found]


def unpack(values: Any) -> tuple[ConditionalCoverage, ...]:
    """Return the groups written by :func:`pack`.

    Raises
    ------
    DataError
        If the values are of another form.
    """
    found = []
    for target, variable, kind, p, groups in values:
        parts = tuple(CoverageGroup(*group) for group in groups)
        texts = [target, variable, kind, *(g.label for g in parts)]
        numbers = [p, *(v for g in parts for v in (g.rows, g.coverage, g.size, g.width))]
        if {*map(type, texts)} != {str} or {*map(type, numbers)} != {float} or not np.isfinite(numbers).all():
            raise DataError("its groups of rows were altered")
        found.append(ConditionalCoverage(target, variable, kind, p, parts))
    return tuple(found)


@dataclass(frozen=True)
class _Rows:
    """Distribution function at the target, width of the interval and weight of each row, all (N,)."""

    cdf: Floats
    width: Floats
    weight: Floats

    def select(self, rows: Ints) -> "_Rows":
        return self if len(rows) == len(self.cdf) else _Rows(self.cdf[rows], self.width[rows], self.weight[rows])

    def compare(
        self, target: str, variable: str, kind: str, group: Ints, labels: Sequence[str]
    ) -> ConditionalCoverage | None:
        """Compare groups of rows, numbered by `group` (N,); None if fewer than two have enough rows.

        Rows with the number -1 are in no group.
        """
        number = np.bincount(group + 1, self.weight, len(labels) + 1)[1:]
        count = np.bincount(group + 1, minlength=len(labels) + 1)[1:]
        large = np.flatnonzero((number >= _LEAST) & (count >= 2))
        if len(large) < 2:
            return None
        kept = np.isin(group, large)
        distance = np.abs(self.cdf - 0.5)
        p = metrics.kruskal_wallis(distance[kept], group[kept], self.weight[kept])
        score = np.square(metrics.normal_scores(self.cdf))
        inside = (distance <= 0.5 * _LEVEL).astype(np.float64)
        groups = []
        for k in large.tolist():
            rows, weight = group == k, self.weight[group == k]
            coverage, square, width = (float(np.average(v[rows], weights=weight)) for v in (inside, score, self.width))
            groups.append(CoverageGroup(labels[k], float(number[k]), coverage, float(np.sqrt(square)), width))
        return ConditionalCoverage(target, variable, kind, p, tuple(groups))


def _quarters(values: Floats, weight: Floats) -> tuple[Ints, list[str]]:
    """Return the quarter of each row by a variable, (N,), and the ranges; equal values are in the same quarter."""
    distinct, index = np.unique(values, return_inverse=True)
    mass = np.bincount(index, weight)
    middle = (np.cumsum(mass) - 0.5 * mass) / mass.sum()
    quarter = np.minimum((_QUARTERS * middle).astype(np.int64), _QUARTERS - 1)
    labels = []
    for k in range(_QUARTERS):
        inside = distinct[quarter == k]
        ends = dict.fromkeys(f"{v:.4g}" for v in (inside.min(), inside.max())) if len(inside) else {}
        labels.append(" to ".join(ends))
    return quarter[index], labels


def _column_groups(schema: Schema, X: Any) -> Iterator[tuple[str, str, Ints, list[str]]]:
    """Yield the name and the kind of each column, the group of each row (N,), and the labels of the groups."""
    kinds = {column.name: column.kind for column in schema.columns}
    for name, parts in groupby(row_groups(schema, X), key=lambda part: part[0]):
        group = np.full(len(X), -1)
        labels = list[str]()
        for _, label, inside in parts:
            group[inside] = len(labels)
            labels.append(label)
        yield name, kinds[name], group, labels
