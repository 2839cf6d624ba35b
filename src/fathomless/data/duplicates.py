r"""Equal rows of a table: independent observations or copies of one observation.

Rows of a few categories are often equal by chance. Rows of real numbers are equal because one was copied: by
oversampling, by a join, or to express a count. Independent observations are assigned to folds individually. Copies stay
together, since the score of a row does not estimate the score of new rows if its copy was in the training set.

The rule compares S, the number of pairs of equal rows, with C, the number expected by chance. Let :math:`p_{jv}` be the
share of value v in column j among n rows; the target is one of the columns.

.. math:: C = \max\Big(\tbinom n2 \prod_j q_j,\; \sum_j D_j \min\big(1, \tfrac{q_j}{1 - q_j}\big)\Big),
          \qquad q_j = \sum_v p_{jv}^2

The first term assumes independent columns. The second term holds for dependent columns too: :math:`D_j` pairs agree in
all columns except j, and rows that agree elsewhere agree in column j at least as often as any two rows. In columns of
more than 12 distinct numbers, :math:`q_j` counts pairs of distinct rows only, since copies agree in every column.
Categorical columns with a one-to-one relation count once. Equal rows are observations if :math:`C \ge S / 5`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fathomless.data.schema import Schema

__all__ = ["Duplicates", "Pieces", "find_duplicates", "hash_column", "split_into_pieces"]

Array = npt.NDArray[Any]

_SHARE = 0.2  # minimum ratio C / S
_LEVELS = 12  # maximum distinct numbers of a column that counts as categorical
_MOST = 50_000  # maximum pieces of a table with weights above 1


@dataclass(frozen=True)
class Duplicates:
    """Equal rows of a table.

    Attributes
    ----------
    unit : ndarray of int, shape (N,)
        Number of the distinct row that each row equals, 0 … M − 1, independent of the order of the rows.
    rows : int
        Number of rows that equal another row.
    seen, chance : float
        Weighted number S of pairs of equal rows, and the number C expected by chance.
    """

    unit: Array
    rows: int
    seen: float
    chance: float

    @property
    def observations(self) -> bool:
        """True if equal rows are independent observations rather than copies."""
        return self.seen > 0.0 and self.chance >= _SHARE * self.seen


def find_duplicates(x: Array, y: Array, weight: Array | None = None, schema: Schema | None = None) -> Duplicates:
    """Find equal rows, and classify them as observations or copies.

    Parameters
    ----------
    x, y : arrays, shape (N, D), (N,) or (N, T)
        Encoded rows; integers in y are classes.
    weight : array, shape (N,), optional
        Sample weights. A row of weight w stands for w equal rows.
    schema : Schema, optional
        Mapping of encoded columns to columns of the table, and their kinds. By default each encoded column is a column
        of the table. Ignored if D is 0, for the rows of a density.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> levels, classes = rng.integers(0, 4, (200, 1)), rng.integers(0, 2, 200)
    >>> find_duplicates(levels, classes).observations
    True
    >>> numbers = np.repeat(rng.normal(size=(40, 3)), 5, 0)
    >>> find_duplicates(numbers, np.repeat(classes[:40], 5)).observations
    False
    """
    whole = np.zeros(len(x), dtype=np.uint64)
    for column, _ in _hash_columns(x, y, schema):
        whole += column
    _, first, unit, times = np.unique(whole, return_index=True, return_inverse=True, return_counts=True)
    rows = int(times[times > 1].sum())
    count = np.bincount(unit, weights=weight).astype(np.float64)
    seen = _count_pairs(count)
    n = count.sum()
    if seen == 0.0:
        return Duplicates(unit, rows, 0.0, 0.0)
    independent = _count_pairs(n)  # first term of C
    dependent = 0.0  # second term of C
    known = set[bytes]()
    for column, levels in _hash_columns(x[first], y[first], schema):
        places, code = np.unique(column, return_index=True, return_inverse=True)[1:]
        if len(places) == 1:
            continue
        if levels or len(places) <= _LEVELS:
            partition = places[code].tobytes()  # equal for columns with a one-to-one relation
            if partition in known:
                continue
            known.add(partition)
            q = _count_pairs(np.bincount(code, weights=count)) / _count_pairs(n)
        else:
            q = _count_pairs(np.bincount(code)) / _count_pairs(len(first))
        independent *= q
        if 0.0 < q < 1.0:
            rest = np.unique(whole[first] - column, return_inverse=True)[1]  # hash of all other columns
            dependent += (_count_pairs(np.bincount(rest, weights=count)) - seen) * min(1.0, q / (1.0 - q))
    return Duplicates(unit, rows, seen, max(independent, dependent))


def _count_pairs(count: Any) -> float:
    """Return the number of pairs within cells of `count` rows; a cell of at most one row has none."""
    cells = np.asarray(count, dtype=np.float64)
    return float((0.5 * cells * np.maximum(cells - 1.0, 0.0)).sum())


def _hash_columns(x: Array, y: Array, schema: Schema | None) -> Iterator[tuple[Array, bool]]:
    """Yield the hash of each column of the table, uint64, shape (N,), and True if it is categorical; targets are last.

    The sum of the hashes modulo 2**64 is a hash of the row. Among a million distinct rows, a collision has probability
    3e-8.
    """
    start = 0
    targets = y.reshape(len(y), -1)
    widths = [(1, False)] * x.shape[1]
    if schema is not None and x.shape[1]:
        widths = [(len(column.features), column.kind == "category") for column in schema.columns]
    for width, levels in widths:
        hashed = np.zeros(len(x), dtype=np.uint64)
        for j in range(start, start + width):
            hashed += hash_column(x[:, j], j)
        start += width
        yield hashed, levels
    for j, target in enumerate(targets.T):
        yield hash_column(target, start + j), targets.dtype.kind == "i"


def hash_column(column: Array, number: int) -> Array:
    """Hash the numbers of a column with the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), uint64, (N,)."""
    bits = (column.astype(np.float64) + 0.0).view(np.uint64)  # −0 becomes 0
    bits = bits + np.uint64((number + 1) * 0x9E3779B97F4A7C15 % 2**64)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


@dataclass(frozen=True)
class Pieces:
    """Observations of a table; a row with a weight above 1 is split into several pieces.

    Attributes
    ----------
    source : ndarray of int, shape (P,)
        Row of the table to which each piece belongs. Pieces of equal rows are adjacent.
    weight : ndarray, shape (P,)
        Weight of each piece.
    first : ndarray of int, shape (N,)
        Number of the first piece of each row.
    """

    source: Array
    weight: Array
    first: Array


def split_into_pieces(unit: Array, weight: Array | None = None) -> Pieces:
    """Split rows into observations.

    Parameters
    ----------
    unit : ndarray of int, shape (N,)
        Number of the distinct row that each row equals.
    weight : ndarray, shape (N,), optional
        Sample weights. A row of weight w gives ⌊w⌋ pieces, but at least one; their weights are integers if w is. If the
        total exceeds 50,000, there are fewer pieces.

    Examples
    --------
    >>> split = split_into_pieces(np.array([1, 0, 1]), np.array([1.0, 3.0, 2.5]))
    >>> split.source.tolist(), split.weight.tolist()
    ([1, 1, 1, 0, 2, 2], [1.0, 1.0, 1.0, 1.0, 1.25, 1.25])
    """
    w = np.ones(len(unit)) if weight is None else weight.astype(np.float64)
    number = np.maximum(np.floor(w * min(1.0, _MOST / w.sum())), 1.0).astype(np.int64)  # pieces of each row
    if weight is None:
        number[:] = 1
    order = np.argsort(unit, kind="stable")
    source = np.repeat(order, number[order])
    start = np.empty(len(unit), dtype=np.int64)
    start[order] = np.cumsum(number[order]) - number[order]
    place = np.arange(len(source)) - start[source]  # position of a piece among those of its row
    times = number[source]
    of_row = w[source]
    even = of_row / times
    # differences of rounded cumulative weights are integers that sum to the weight of the row
    whole = np.floor(of_row * (place + 1) / times) - np.floor(of_row * place / times)
    return Pieces(source, np.where(of_row == np.floor(of_row), whole, even), start)
