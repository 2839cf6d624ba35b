"""Folds of the rows of a table: which network each row is kept from."""

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
    "fold_rows",
    "given_folds",
    "is_splits",
    "keep_groups",
    "split_folds",
    "split_units",
    "without",
]

_RARE = 3  # distinct rows of a class below which they train every network
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
) -> Tensor:
    """Deal rows into folds of nearly equal size.

    Rows of one group, and copies of one row, share a fold. Classes are dealt in proportion; the rows of a class with
    fewer than 3 distinct rows are in no fold, so that every network knows it.

    Parameters
    ----------
    x, y : arrays, shape (N, D), (N,) or (N, T)
        Encoded rows; whole numbers in y are classes.
    members, repeats : int
        Folds K of each of R partitions.
    seed : int
        Partition r is drawn from hash(seed, "folds", r).
    groups : array, shape (N,), optional
        Rows of a group share a fold; with fewer groups than K there are as many folds as groups.
    blocks : bool
        K blocks of consecutive rows, for rows in the order of time.
    together : bool
        Whether equal rows (of x and y) are copies, which share a fold; else each is dealt by itself. See
        :func:`~fathomless.data.duplicates.repeats`. `groups` overrides it.

    Returns
    -------
    Tensor of int64, shape (R, N)
        The fold of each row, 0 … K − 1, or −1.

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
            "all rows are in one group, or equal; at least two groups are needed to fold them: leave groups out, or "
            "set cv=1"
        )
    rare = np.zeros(len(y), dtype=bool)
    label = np.zeros(units, dtype=np.int64)
    if y.dtype.kind == "i":
        label[unit[::-1]] = y[::-1]  # of the first row of each unit
        distinct = np.bincount(label, minlength=int(y.max()) + 1)
        few = np.flatnonzero((distinct > 0) & (distinct < _RARE))
        rare = np.isin(y, few) if groups is None else rare
        distinctly = " distinct" if together else ""
        if rare.all():
            raise DataError(
                f"each class has fewer than {_RARE}{distinctly} rows, too few to fold them; give more rows, or set cv=1"
            )
        if rare.any():
            warnings.warn(
                f"{len(few)} classes have fewer than {_RARE}{distinctly} rows; those {int(rare.sum())} rows train "
                "every network and are scored by none",
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
        partitions = [_dealt(label, members, fold_in(seed, "folds", r)) for r in range(repeats)]
    folds = np.stack([of_unit[unit] for of_unit in partitions])
    folds[:, rare] = -1
    return torch.from_numpy(folds)


def _dealt(label: Array, members: int, seed: int) -> Array:
    """Deal units in random order, class by class, one to each fold in turn."""
    order = torch.randperm(len(label), generator=as_generator(seed)).numpy()
    order = order[np.argsort(label[order], kind="stable")]
    fold = np.empty(len(label), dtype=np.int64)
    fold[order] = np.arange(len(label)) % members
    return fold


def can_be_folded(x: Array, y: Array, *, together: bool = True) -> bool:
    """Return True if there are two rows to fold, of classes with 3 rows or more; copies that stay together are one."""
    rows = np.column_stack([x, y.reshape(len(y), -1)])
    distinct = np.unique(rows, axis=0) if together else rows
    if y.dtype.kind != "i":
        return len(distinct) > 1
    return bool((np.unique(distinct[:, -1], return_counts=True)[1] >= _RARE).any())


def split_units(
    unit: Array | None, rows: int, fraction: float, generator: torch.Generator, *, strata: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Split rows at random into a part to train on and a part to hold out; the rows of a unit stay together.

    Parameters
    ----------
    unit : ndarray of int, shape (N,), optional
        Number of the unit of each row: of its group, or of the row that it is a copy of. None: each row by itself.
    rows : int
        Number of rows N.
    fraction, generator, strata
        As in :func:`~fathomless.data.frames.split`; of the classes in a unit that of its first row counts.

    Returns
    -------
    train, held : Tensor of int64
        Row numbers, ascending, disjoint, together all rows.
    """
    if unit is None:
        return split(rows, fraction, generator, strata=strata)
    _, first, number = np.unique(unit, return_index=True, return_inverse=True)
    own = None if strata is None else strata.cpu()[torch.from_numpy(first)]
    _, units = split(len(first), fraction, generator, strata=own)
    held = torch.from_numpy(np.isin(number.ravel(), units.numpy()))
    return torch.nonzero(~held).flatten(), torch.nonzero(held).flatten()


def given_folds(folds: Any, rows: int, kept: Array | None = None) -> Tensor:
    """Return folds that a user has drawn up, of the rows that are kept, numbered from 0: shape (R, N).

    Parameters
    ----------
    folds : array of int, shape (M,) or (R, M)
        The fold of each row of the table, in one partition or in R.
    rows : int
        Rows M of the table.
    kept : ndarray of int, shape (N,), optional
        Numbers of the rows that are kept; all by default.

    Raises
    ------
    DataError
        If there is not one whole number for each row, for fewer than two folds, and for partitions with different
        numbers of folds.
    """
    try:
        given = np.asarray(unmask(folds))
    except ValueError as error:  # of lists of several lengths
        raise DataError(f"cv={folds!r:.80} was given; {_ALLOWED}") from error
    if given.ndim not in (1, 2) or given.shape[-1] != rows or not len(given) or given.dtype.kind not in "iu":
        raise DataError(
            f"cv of shape {given.shape} and type {given.dtype} was given; of an array, one whole number for each of "
            f"the {rows} rows is allowed"
        )
    partitions = []
    for line in np.atleast_2d(given):
        names, number = np.unique(line if kept is None else line[kept], return_inverse=True)
        if len(names) < 2:
            raise DataError("all rows are in one fold of cv; at least two folds are needed, or cv=1")
        partitions.append(number.astype(np.int64))
    return _alike(partitions, "cv")


def is_splits(cv: Any) -> bool:
    """Return True for a list of (rows to train on, rows to test on), as scikit-learn's splitters yield them.

    Parameters
    ----------
    cv : object
        The option.
    """
    if not isinstance(cv, list | tuple) or not cv:
        return False
    return all(isinstance(pair, tuple) and len(pair) == 2 and all(np.ndim(part) == 1 for part in pair) for pair in cv)


def split_folds(splitter: Any, x: Array, y: Array, groups: Array | None = None) -> Tensor:
    """Return the folds of a splitter of scikit-learn: shape (R, N).

    Parameters
    ----------
    splitter : object
        Its method ``split(x, y, groups)`` yields (rows to train on, rows to test on); or a list of these.
    x, y : arrays, shape (N, D), (N,) or (N, T)
        Encoded rows; whole numbers in y are classes.
    groups : array, shape (N,), optional
        Groups of the rows.

    Raises
    ------
    DataError
        If the splitter does not test every row once in each repetition, does not train on all other rows, cannot split
        these rows, or is a class.

    Examples
    --------
    >>> from sklearn.model_selection import RepeatedKFold
    >>> x = np.zeros((6, 1))
    >>> split_folds(RepeatedKFold(n_splits=3, n_repeats=2, random_state=0), x, x[:, 0]).shape
    torch.Size([2, 6])
    """
    if isinstance(splitter, type):
        raise DataError(f"cv={splitter.__name__} was given, which is a class; use cv={splitter.__name__}()")
    name, rows = "a list of splits as cv" if is_splits(splitter) else f"cv={splitter!r}", len(x)
    try:
        with warnings.catch_warnings():  # whether groups stay together is checked by keep_groups
            warnings.filterwarnings("ignore", "The groups parameter is ignored", UserWarning)
            given = splitter if is_splits(splitter) else splitter.split(x, y, groups)
            splits = [(_marked(train, rows), _marked(test, rows)) for train, test in given]
    except (IndexError, TypeError, ValueError) as error:
        reason = str(error).rstrip(".")
        raise DataError(
            f"{name} was given, which cannot split these {rows} rows ({reason}); use another splitter"
        ) from error
    partitions, fold, count = [], np.full(rows, -1, dtype=np.int64), 0
    for train, test in splits:
        if (train == test).any():
            raise DataError(
                f"{name} was given, which trains on {int(train.sum())} and tests on {int(test.sum())} of {rows} rows; "
                f"each network is fitted to all rows but those of its fold: {_ALLOWED}"
            )
        if (fold[test] >= 0).any() or not test.any():
            raise DataError(f"{name} was given, which tests some rows more than once, or none; {_ALLOWED}")
        fold[test] = count
        count += 1
        if (fold >= 0).all():
            partitions.append(fold)
            fold, count = np.full(rows, -1, dtype=np.int64), 0
    if count or not partitions:
        raise DataError(f"{name} was given, which does not test every row; {_ALLOWED}")
    if any(part.max() < 1 for part in partitions):
        raise DataError(f"{name} was given, which has one fold; at least two folds are needed, or cv=1")
    return _alike(partitions, name)


#: Splits that can be cross-fitted, as messages say it.
_ALLOWED = (
    "every row must be in one test fold of each repetition, as with KFold, StratifiedKFold, GroupKFold and "
    "RepeatedKFold; for rows in the order of time, use cv=Folds(order='blocks')"
)


def _marked(index: Any, rows: int) -> Array:
    marks = np.zeros(rows, dtype=bool)
    marks[index] = True
    return marks


def _alike(partitions: Sequence[Array], name: str) -> Tensor:
    """Put partitions together, which must have equally many folds."""
    sizes = {int(part.max()) + 1 for part in partitions}
    if len(sizes) > 1:
        raise DataError(f"{name} was given, with {min(sizes)} to {max(sizes)} folds; all partitions need as many")
    return torch.from_numpy(np.stack(partitions))


def keep_groups(folds: Tensor, groups: Array | None) -> Tensor:
    """Return folds in which the rows of each group are together.

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
                    "groups were given, and cv puts rows of one group into several folds; leave groups out, or take "
                    "cv=GroupKFold(...) or a number"
                )
    return folds


def without(folds: Array, lost: Sequence[int]) -> Array:
    """Return the folds of rows, shape (R, N), when some networks are left out.

    Parameters
    ----------
    folds : ndarray of int, shape (R, N)
        The fold of each row in every partition; −1 for rows that all networks are fitted to.
    lost : sequence of int
        Numbers of networks, those of the first partition first. Their rows get −1, later folds one less.
    """
    members, left = int(folds.max()) + 1, folds.copy()
    for i in sorted(lost, reverse=True):
        own = left[i // members]
        own[folds[i // members] == i % members] = -1
        own[folds[i // members] > i % members] -= 1
    return left
