r"""Equal rows of a table: independent observations, or copies of one.

Rows of a few categories are equal because they have few values to take. Rows of real numbers are equal because one was
copied: by oversampling, by a join, or as a count. Observations are dealt to folds one by one. Copies stay together,
since the score of a row is no estimate for new rows if its copy was trained on.

The rule compares S, the number of pairs of equal rows, with C, the number that chance explains. Of n rows,
:math:`p_{jv}` is the share of value v in column j; the target is one of the columns.

.. math:: C = \max\Big(\tbinom n2 \prod_j q_j,\; \sum_j D_j \min\big(1, \tfrac{q_j}{1 - q_j}\big)\Big),
          \qquad q_j = \sum_v p_{jv}^2

The first term is for independent columns. The second term holds for dependent columns too: :math:`D_j` pairs agree in
all columns but j, and rows that agree elsewhere agree in column j at least as often as any two rows. In columns of more
than 12 different numbers :math:`q_j` counts pairs of different rows only, since copies agree in every column. Columns
of levels that are one-to-one count once. Equal rows are observations if :math:`C \ge S / 5`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fathomless.data.schema import Schema

__all__ = ["Pieces", "Repeats", "pieces", "repeats"]

Array = npt.NDArray[Any]

_SHARE = 0.2  # of the equal pairs that chance must explain
_LEVELS = 12  # different numbers up to which a column counts as one of levels
_MOST = 50_000  # pieces of a table whose rows count more than once


@dataclass(frozen=True)
class Repeats:
    """Equal rows of a table.

    Attributes
    ----------
    unit : ndarray of int, shape (N,)
        Number of the distinct row that each row is equal to, 0 … M − 1. It does not depend on the order of the rows.
    rows : int
        Rows that are equal to another row.
    seen, chance : float
        Pairs of equal rows, each row as often as it counts, and how many of them chance explains.
    """

    unit: Array
    rows: int
    seen: float
    chance: float

    @property
    def observations(self) -> bool:
        """True if equal rows are independent observations, not copies."""
        return self.seen > 0.0 and self.chance >= _SHARE * self.seen


def repeats(x: Array, y: Array, weight: Array | None = None, schema: Schema | None = None) -> Repeats:
    """Find equal rows, and tell observations from copies.

    Parameters
    ----------
    x, y : arrays, shape (N, D), (N,) or (N, T)
        Encoded rows; whole numbers in y are classes.
    weight : array, shape (N,), optional
        How often each row counts. A row that counts w times is w equal rows.
    schema : Schema, optional
        Which encoded columns belong to one column of the table, and which of these are categories. Default: each is a
        column by itself. Not looked at if D is 0, for the rows of a density.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> levels, classes = rng.integers(0, 4, (200, 1)), rng.integers(0, 2, 200)
    >>> repeats(levels, classes).observations
    True
    >>> numbers = np.repeat(rng.normal(size=(40, 3)), 5, 0)
    >>> repeats(numbers, np.repeat(classes[:40], 5)).observations
    False
    """
    whole = np.zeros(len(x), dtype=np.uint64)
    for column, _ in _columns(x, y, schema):
        whole += column
    _, first, unit, times = np.unique(whole, return_index=True, return_inverse=True, return_counts=True)
    rows = int(times[times > 1].sum())
    count = np.bincount(unit, weights=weight).astype(np.float64)
    seen, n = _pairs(count), count.sum()
    if seen == 0.0:
        return Repeats(unit, rows, 0.0, 0.0)
    independent, near, known = _pairs(n), 0.0, set[bytes]()
    for column, levels in _columns(x[first], y[first], schema):
        places, code = np.unique(column, return_index=True, return_inverse=True)[1:]
        if len(places) == 1:
            continue
        if levels or len(places) <= _LEVELS:
            partition = places[code].tobytes()  # equal for columns that are one-to-one
            if partition in known:
                continue
            known.add(partition)
            q = _pairs(np.bincount(code, weights=count)) / _pairs(n)
        else:
            q = _pairs(np.bincount(code)) / _pairs(len(first))
        independent *= q
        if 0.0 < q < 1.0:
            rest = np.unique(whole[first] - column, return_inverse=True)[1]  # all columns but this one
            near += (_pairs(np.bincount(rest, weights=count)) - seen) * min(1.0, q / (1.0 - q))
    return Repeats(unit, rows, seen, max(independent, near))


def _pairs(count: Any) -> float:
    """Return the number of pairs within cells of so many rows; a cell of at most one row has none."""
    cells = np.asarray(count, dtype=np.float64)
    return float((0.5 * cells * np.maximum(cells - 1.0, 0.0)).sum())


def _columns(x: Array, y: Array, schema: Schema | None) -> Iterator[tuple[Array, bool]]:
    """Yield a hash of each column of the table, targets last, and whether it holds categories: uint64, (N,).

    The sum of the hashes modulo 2**64 is a hash of the row: of a million rows two that differ have an equal one with
    probability 3e-8.
    """
    start, targets = 0, y.reshape(len(y), -1)
    widths = [(1, False)] * x.shape[1]
    if schema is not None and x.shape[1]:
        widths = [(len(column.features), column.kind == "category") for column in schema.columns]
    for width, levels in widths:
        hashed = np.zeros(len(x), dtype=np.uint64)
        for j in range(start, start + width):
            hashed += _mixed(x[:, j], j)
        start += width
        yield hashed, levels
    for j, target in enumerate(targets.T):
        yield _mixed(target, start + j), targets.dtype.kind == "i"


def _mixed(column: Array, number: int) -> Array:
    """Hash the numbers of a column by the finaliser of SplitMix64 (Steele, Lea and Flood, 2014)."""
    bits = (column.astype(np.float64) + 0.0).view(np.uint64)  # −0 becomes 0
    bits = bits + np.uint64((number + 1) * 0x9E3779B97F4A7C15 % 2**64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@dataclass(frozen=True)
class Pieces:
    """Observations of a table, one by one: a row that counts several times is as many pieces.

    Attributes
    ----------
    source : ndarray of int, shape (P,)
        Row of the table that each piece is of. Pieces of equal rows stand together.
    weight : ndarray, shape (P,)
        How often each piece counts.
    first : ndarray of int, shape (N,)
        Number of the first piece of each row.
    """

    source: Array
    weight: Array
    first: Array


def pieces(unit: Array, weight: Array | None = None) -> Pieces:
    """Divide rows into observations.

    Parameters
    ----------
    unit : ndarray of int, shape (N,)
        Number of the distinct row that each row is equal to.
    weight : ndarray, shape (N,), optional
        How often each row counts. A row of weight w is ⌊w⌋ pieces, at least one, of whole weights if w is whole. Beyond
        50,000 in all there are fewer.

    Examples
    --------
    >>> found = pieces(np.array([1, 0, 1]), np.array([1.0, 3.0, 2.5]))
    >>> found.source.tolist(), found.weight.tolist()
    ([1, 1, 1, 0, 2, 2], [1.0, 1.0, 1.0, 1.0, 1.25, 1.25])
    """
    w = np.ones(len(unit)) if weight is None else weight.astype(np.float64)
    each = np.maximum(np.floor(w * min(1.0, _MOST / w.sum())), 1.0).astype(np.int64)
    if weight is None:
        each[:] = 1
    order = np.argsort(unit, kind="stable")
    source = np.repeat(order, each[order])
    start = np.empty(len(unit), dtype=np.int64)
    start[order] = np.cumsum(each[order]) - each[order]
    place, times, of_row = np.arange(len(source)) - start[source], each[source], w[source]
    even = of_row / times
    whole = np.floor(of_row * (place + 1) / times) - np.floor(of_row * place / times)
    return Pieces(source, np.where(of_row == np.floor(of_row), whole, even), start)
