"""Folds of the rows of a table for cross-fitting."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.data.frames import split
from fathomless.system.errors import DataError, DataWarning
from fathomless.system.masked import unmask
from fathomless.system.rng import as_generator, fold_in

__all__ = [
    "can_be_folded",
    "check_groups",
    "fold_rows",
    "is_splits",
    "read_folds",
    "split_folds",
    "split_units",
    "without",
]

_RARE = 3  # minimum distinct rows of a class; rows of rarer classes are in every training set
Array = npt.NDArray[Any]


def fold_rows(
    x: Array,
    y: Array,
    members: int,
    repeats: int,
    seed: int,
    *,
    groups: Array | None = None,
    blocks: bool = False,
    together: bool = True,
    strata: Array | None = None,
) -> Tensor:
    """Assign rows to folds of nearly equal size.

    Rows of one group, and copies of one row, share a fold. Folds are stratified by class. Rows of a class with fewer
    than 3 distinct rows are in no fold, so that every training set contains the class.

    Parameters
    ----------
    x, y : arrays, shape (N, D), (N,) or (N, T)
        Encoded rows; integers in y are classes.
    members, repeats : int
        Number K of folds, and number R of partitions.
    seed : int
        Partition r is drawn from hash(seed, "folds", r).
    groups : array, shape (N,), optional
        Rows of a group share a fold. With fewer groups than K, the number of folds is the number of groups.
    blocks : bool
        True for K blocks of consecutive rows, for rows in temporal order.
    together : bool
        True if equal rows (of x and y) are copies, which share a fold. See
        :func:`~fathomless.data.duplicates.find_duplicates`. Ignored if `groups` is given.
    strata : ndarray of int, shape (N,), optional
        Numbers 0, 1, ... by which folds are stratified if y is not a class.

    Returns
    -------
    Tensor of int64, shape (R, N)
        Fold of each row, 0 … K − 1, or −1 for none.

    Raises
    ------
    DataError
        For fewer than two groups.
    """
    if groups is None:
        columns = np.column_stack([x, y.reshape(len(y), -1)])
        unit = np.unique(columns, axis=0, return_inverse=True)[1].ravel() if together else np.arange(len(y))
    else:
        if np.shape(groups) != (len(x),):
            raise DataError(f"groups have shape {np.shape(groups)}; one for each of the {len(x)} rows is needed")
        unit = np.unique(groups, return_inverse=True)[1].ravel()
    units = int(unit.max()) + 1
    if units < 2:
        raise DataError(
            "all rows are in one group, or equal; cross-fitting needs at least two groups: omit groups, or set cv=1"
        )
    rare = np.zeros(len(y), dtype=bool)
    label = np.zeros(units, dtype=np.int64)
    if strata is not None:
        label[unit[::-1]] = strata[::-1]
    if y.dtype.kind == "i":
        label[unit[::-1]] = y[::-1]  # class of the first row of each unit
        distinct = np.bincount(label, minlength=int(y.max()) + 1)
        few = np.flatnonzero((distinct > 0) & (distinct < _RARE))
        rare = np.isin(y, few) if groups is None else rare
        distinctly = " distinct" if together else ""
        if rare.all():
            raise DataError(
                f"each class has fewer than {_RARE}{distinctly} rows, too few to cross-fit; give more rows, or set cv=1"
            )
        if rare.any():
            warnings.warn(
                f"{len(few)} classes have fewer than {_RARE}{distinctly} rows; these {int(rare.sum())} rows are in "
                "every training set and are never scored out of fold",
                DataWarning,
                stacklevel=6,
            )
    members = min(members, len(np.unique(unit[~rare])))
    if blocks:
        first = np.full(units, len(x))
        np.minimum.at(first, unit, np.arange(len(x)))
        of_unit = np.empty(units, dtype=np.int64)
        of_unit[np.argsort(first, kind="stable")] = np.arange(units) * members // units
        partitions = [of_unit] * repeats
    else:
        partitions = [_deal(label, members, fold_in(seed, "folds", r)) for r in range(repeats)]
    folds = np.stack([of_unit[unit] for of_unit in partitions])
    folds[:, rare] = -1
    return torch.from_numpy(folds)


def _deal(label: Array, members: int, seed: int) -> Array:
    """Assign units to folds in turn, in random order within each class."""
    order = torch.randperm(len(label), generator=as_generator(seed)).numpy()
    order = order[np.argsort(label[order], kind="stable")]
    fold = np.empty(len(label), dtype=np.int64)
    fold[order] = np.arange(len(label)) % members
    return fold


def can_be_folded(x: Array, y: Array, *, together: bool = True) -> bool:
    """Return True if two rows, or a class with 3 rows, can be split into folds; copies count once if kept together."""
    rows = np.column_stack([x, y.reshape(len(y), -1)])
    distinct = np.unique(rows, axis=0) if together else rows
    if y.dtype.kind != "i":
        return len(distinct) > 1
    return bool((np.unique(distinct[:, -1], return_counts=True)[1] >= _RARE).any())


def split_units(
    unit: Array | None, rows: int, fraction: float, generator: torch.Generator, *, strata: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Split rows at random into training rows and held-out rows; rows of a unit stay together.

    Parameters
    ----------
    unit : ndarray of int, shape (N,), optional
        Number of the unit of each row: its group, or the row of which it is a copy. By default each row is a unit.
    rows : int
        Number of rows N.
    fraction, generator, strata
        As in :func:`~fathomless.data.frames.split`; the class of a unit is that of its first row.

    Returns
    -------
    train, held : Tensor of int64
        Ascending, disjoint row numbers, whose union is all rows.
    """
    if unit is None:
        return split(rows, fraction, generator, strata=strata)
    _, first, number = np.unique(unit, return_index=True, return_inverse=True)
    of_units = None if strata is None else strata.cpu()[torch.from_numpy(first)]
    _, units = split(len(first), fraction, generator, strata=of_units)
    held = torch.from_numpy(np.isin(number.ravel(), units.numpy()))
    return torch.nonzero(~held).flatten(), torch.nonzero(held).flatten()


def read_folds(folds: Any, rows: int, kept: Array | None = None) -> Tensor:
    """Read user-defined folds; return those of the selected rows, numbered from 0, shape (R, N).

    Parameters
    ----------
    folds : array of int, shape (M,) or (R, M)
        Fold of each row of the table, in one partition or in R.
    rows : int
        Number M of rows of the table.
    kept : ndarray of int, shape (N,), optional
        Numbers of the selected rows; all by default.

    Raises
    ------
    DataError
        If there is not one integer per row, if there are fewer than two folds, or if partitions have different numbers
        of folds.
    """
    try:
        given = np.asarray(unmask(folds))
    except ValueError as error:  # lists of different lengths
        raise DataError(f"cv={folds!r:.80} was given; {_ALLOWED}") from error
    if given.ndim not in (1, 2) or given.shape[-1] != rows or not len(given) or given.dtype.kind not in "iu":
        raise DataError(
            f"cv is an array of shape {given.shape} and dtype {given.dtype}; it must hold one integer for each of the "
            f"{rows} rows"
        )
    partitions = []
    for line in np.atleast_2d(given):
        names, number = np.unique(line if kept is None else line[kept], return_inverse=True)
        if len(names) < 2:
            raise DataError("all rows are in one fold of cv; give at least two folds, or set cv=1")
        partitions.append(number.astype(np.int64))
    return _stack_partitions(partitions, "cv")


def is_splits(cv: Any) -> bool:
    """Return True for a list of pairs (training rows, test rows), as scikit-learn's splitters yield them.

    Parameters
    ----------
    cv : object
        Value of the option `cv`.
    """
    if not isinstance(cv, list | tuple) or not cv:
        return False
    return all(isinstance(pair, tuple) and len(pair) == 2 and all(np.ndim(part) == 1 for part in pair) for pair in cv)


def split_folds(splitter: Any, x: Array, y: Array, groups: Array | None = None) -> Tensor:
    """Compute the folds of a scikit-learn splitter, shape (R, N).

    Parameters
    ----------
    splitter : object
        Object whose method ``split(x, y, groups)`` yields pairs (training rows, test rows), or a list of such pairs.
    x, y : arrays, shape (N, D), (N,) or (N, T)
        Encoded rows; integers in y are classes.
    groups : array, shape (N,), optional
        Groups of the rows.

    Raises
    ------
    DataError
        If a row is not in exactly one test set per repetition, a training set is not the complement of its test set,
        the splitter cannot split these rows, or it is a class.

    Examples
    --------
    >>> from sklearn.model_selection import RepeatedKFold
    >>> x = np.zeros((6, 1))
    >>> split_folds(RepeatedKFold(n_splits=3, n_repeats=2, random_state=0), x, x[:, 0]).shape
    torch.Size([2, 6])
    """
    if isinstance(splitter, type):
        raise DataError(f"cv={splitter.__name__} was given, which is a class; use cv={splitter.__name__}()")
    name = "a list of splits as cv" if is_splits(splitter) else f"cv={splitter!r}"
    rows = len(x)
    try:
        with warnings.catch_warnings():  # check_groups checks the groups
            warnings.filterwarnings("ignore", "The groups parameter is ignored", UserWarning)
            given = splitter if is_splits(splitter) else splitter.split(x, y, groups)
            splits = [(_to_mask(train, rows), _to_mask(test, rows)) for train, test in given]
    except (IndexError, TypeError, ValueError) as error:
        reason = str(error).rstrip(".")
        raise DataError(f"{name} cannot split these {rows} rows ({reason}); use another splitter") from error
    partitions = []
    fold = np.full(rows, -1, dtype=np.int64)
    count = 0
    for train, test in splits:
        if (train == test).any():
            raise DataError(
                f"{name} has a split with {int(train.sum())} training rows and {int(test.sum())} test rows of {rows} "
                f"rows; each training set must be all rows outside the test set: {_ALLOWED}"
            )
        if (fold[test] >= 0).any() or not test.any():
            raise DataError(f"{name} tests a row more than once, or has an empty test set; {_ALLOWED}")
        fold[test] = count
        count += 1
        if (fold >= 0).all():
            partitions.append(fold)
            fold = np.full(rows, -1, dtype=np.int64)
            count = 0
    if count or not partitions:
        raise DataError(f"{name} does not test every row; {_ALLOWED}")
    if any(part.max() < 1 for part in partitions):
        raise DataError(f"{name} has one fold; give at least two folds, or set cv=1")
    return _stack_partitions(partitions, name)


#: Description of the splits that are allowed, for messages.
_ALLOWED = (
    "every row must be in one test fold of each repetition, as with KFold, StratifiedKFold, GroupKFold and "
    "RepeatedKFold; for rows in temporal order, use cv=Folds(order='blocks')"
)


def _to_mask(index: Any, rows: int) -> Array:
    marks = np.zeros(rows, dtype=bool)
    marks[index] = True
    return marks


def _stack_partitions(partitions: Sequence[Array], name: str) -> Tensor:
    """Stack partitions, which must have equal numbers of folds."""
    sizes = {int(part.max()) + 1 for part in partitions}
    if len(sizes) > 1:
        raise DataError(f"{name} has {min(sizes)} to {max(sizes)} folds; all partitions must have the same number")
    return torch.from_numpy(np.stack(partitions))


def check_groups(folds: Tensor, groups: Array | None) -> Tensor:
    """Check that each group is in one fold of every partition, and return the folds.

    Parameters
    ----------
    folds : Tensor of int64, shape (R, N)
        Folds of the rows.
    groups : array, shape (N,), optional
        Groups of the rows.

    Raises
    ------
    DataError
        If a group is in several folds of a partition.
    """
    if groups is not None:
        number = np.unique(groups, return_inverse=True)[1].ravel()
        for line in folds.numpy():
            if len(np.unique(np.stack([number, line]), axis=1).T) > number.max() + 1:
                raise DataError(
                    "cv puts rows of one group into several folds; omit groups, or set cv=GroupKFold(...) or a number"
                )
    return folds


def without(folds: Array, lost: Sequence[int]) -> Array:
    """Return the folds, shape (R, N), without those of some networks.

    Parameters
    ----------
    folds : ndarray of int, shape (R, N)
        Fold of each row in every partition; −1 for rows in every training set.
    lost : sequence of int
        Numbers of the networks to remove, counted through the partitions. Their rows get −1, and later folds of the
        partition move down by one.
    """
    members = int(folds.max()) + 1
    remaining = folds.copy()
    for i in sorted(lost, reverse=True):
        partition = remaining[i // members]
        partition[folds[i // members] == i % members] = -1
        partition[folds[i // members] > i % members] -= 1
    return remaining
