"""Preparation of a table for a fit: reading, encoding, splitting, and rows on the device.

A fit calls :func:`read`, which encodes a table, then :func:`prepare`, which splits the encoded rows by a
:class:`SplitPlan`. Everything is a function of values.
"""

import warnings
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from fathomless.data import streams
from fathomless.data.duplicates import Repeats, pieces, repeats
from fathomless.data.folds import (
    can_be_folded,
    fold_rows,
    given_folds,
    is_splits,
    keep_groups,
    split_folds,
    split_units,
)
from fathomless.data.frames import merged, readable, take
from fathomless.data.groups import read_groups
from fathomless.data.row_weights import read_weight, warn_of_sum
from fathomless.data.rows import Rows, Stream
from fathomless.data.schema import Schema, some
from fathomless.data.targets import ClassLabels, Target
from fathomless.estimators.encoding import ColumnOptions, Task
from fathomless.estimators.values import Splitter
from fathomless.inference.variational.training import SMALL_BATCH
from fathomless.posterior.fit_diagnostics import EqualRows
from fathomless.system import checks
from fathomless.system.errors import DataError, DataWarning
from fathomless.system.rng import as_generator, fold_in

__all__ = [
    "FEW_ROWS",
    "Encoded",
    "Prepared",
    "SplitPlan",
    "Table",
    "choose_dtype",
    "prepare",
    "prepare_part",
    "prepare_stream",
    "read",
]

Array = npt.NDArray[Any]

FEW_ROWS = 12  #: below which a fit does not tell how far its predictions are off
_SMALL = 2000  # rows below which double precision costs nothing


@dataclass(frozen=True)
class Prepared:
    """A table, encoded.

    Attributes
    ----------
    schema, target
        How the table was encoded.
    inputs : int
        Encoded columns that predict, D.
    train, valid : Rows
        On the device; what is trained on may be a stream.
    held_out : ndarray of int
        Numbers of the rows of the table that `valid` holds.
    seed : int
        Of everything that is drawn.
    dtype, device
        Of the rows, and of the model that they are for.
    folds : Tensor of int64, shape (R, N), optional
        The fold of each row of `train` in every partition, if several networks are cross-fitted.
    fold_of_row : ndarray of int, shape (R, rows of the table)
        The same for the rows of the table; −1 for rows of no weight.
    group : Tensor of int64, shape (N,), optional
        Which rows of `train` stay together in every split: those of a group, or copies of one row. None if each row is
        by itself.
    apart : bool
        Whether equal rows are observations, which are left out one by one; copies are left out together.
    repeats : EqualRows, optional
        Equal rows of the table, if there are any.
    resumed : list of dict
        Gets the versions under which parts of the fit were done, where a checkpoint names others than now.
    """

    schema: Schema
    target: Target
    inputs: int
    train: Rows | Stream
    valid: Rows | None
    held_out: Array
    seed: int
    dtype: torch.dtype
    device: torch.device
    folds: Tensor | None = None
    fold_of_row: Array | None = None
    group: Tensor | None = None
    apart: bool = False
    repeats: EqualRows | None = None
    resumed: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Encoded:
    """Rows of a table, encoded and arranged for folds or a split.

    Attributes
    ----------
    x, z : ndarrays, shape (N, D), (N,) or (N, T)
        Columns that predict, and targets; whole numbers in z are classes.
    weight : ndarray, shape (N,), optional
        How often each row counts.
    place : ndarray of int, shape (M,)
        Which of the N rows each row of the table is in.
    unit : ndarray of int, shape (N,), optional
        Rows of equal numbers stay together; None if each row is by itself.
    apart : bool
        Whether equal rows are observations; else they are copies.
    """

    x: Array
    z: Array
    weight: Array | None
    place: Array
    unit: Array | None = None
    apart: bool = False


@dataclass(frozen=True)
class SplitPlan:
    """Plan of the split of N rows.

    Attributes
    ----------
    members : int
        Folds K of each partition; 1 holds out a share of the rows for one network.
    repeats : int
        Partitions R.
    copies : int
        Number of times that the partitions are used, once for each kind of network.
    folds : "random", "blocks", array of int or Splitter
        Random folds, blocks of consecutive rows, the fold of each row of the table, or a splitter of scikit-learn; with
        the last two, `members` only has to be above 1.
    optional : bool
        True if rows that cannot be folded are given to one network instead.
    share : float
        Share of the rows that is held out of one network.
    """

    members: int = 1
    repeats: int = 1
    copies: int = 1
    folds: Any = "random"
    optional: bool = False
    share: float = 0.0

    @property
    def ordered(self) -> bool:
        """True if the folds depend on the order of the rows."""
        return not (isinstance(self.folds, str) and self.folds == "random")

    @property
    def from_splits(self) -> bool:
        """True if folds come from splits or partitions, where equal rows of a fold are merged and sorted."""
        if isinstance(self.folds, str):
            return False
        return isinstance(self.folds, Splitter) or is_splits(self.folds) or np.ndim(next(iter(self.folds))) > 0


@dataclass(frozen=True)
class Table:
    """An encoded table.

    Attributes
    ----------
    schema, target
        Encodings of columns and target.
    inputs : int
        Encoded predictors, D.
    x, z : ndarrays, shape (N, D), (N,) or (N, T)
        Encoded predictors and targets; whole numbers in z are classes. Rows of weight zero are left out.
    weight : ndarray, shape (N,), optional
        Weight of each row.
    groups : ndarray, shape (N,), optional
        Group of each row.
    kept : ndarray of int, shape (N,)
        Numbers of these rows in the table.
    rows : int
        Number of rows of the table.
    """

    schema: Schema
    target: Target
    inputs: int
    x: Array
    z: Array
    weight: Array | None
    groups: Array | None
    kept: Array
    rows: int

    @property
    def count(self) -> float:
        """Number of rows, each as often as it counts."""
        return float(len(self.x) if self.weight is None else self.weight.sum())


def read(
    X: Any,
    y: Any,
    sample_weight: Any,
    groups: Any,
    *,
    task: Task,
    columns: ColumnOptions,
    before: tuple[Schema, Target] | None,
) -> Table:
    """Encode a table.

    Parameters
    ----------
    X : array or data frame, shape (M, C)
        Checked columns.
    y : array or series, shape (M,) or (M, T)
        Targets.
    sample_weight : array, shape (M,), optional
        Weights of the rows.
    groups : array, shape (M,), optional
        Groups of the rows.
    task : Task
        Encoding of the target.
    columns : ColumnOptions
        Encoding of the columns.
    before : (Schema, Target), optional
        Encodings of an earlier fit, which are used as they are.

    Raises
    ------
    DataError
        For rows, weights or groups that cannot be used.
    """
    X, y, weight, kept, rows = _counted(X, y, sample_weight, task)
    weight = task.weigh(y, weight)
    if weight is not None:
        warn_of_sum(weight, "sample_weight" if sample_weight is not None else "class_weight")
    groups = None if groups is None else read_groups(groups, rows)[kept]
    schema, target = before or (task.fit_schema(X, weight, columns), task.fit_target(y, weight))
    x, z = task.predictors(schema, X), target.encode(y)
    table = Table(schema, target, task.width(schema), x, z, weight, groups, kept, rows)
    _warn_of_few(max(table.count, float(len(x))))
    return table


def prepare(
    table: Table, plan: SplitPlan, seed: int, precision: str, device: torch.device, dtype: torch.dtype | None = None
) -> Prepared:
    """Split an encoded table, and put its rows on the device.

    Parameters
    ----------
    table : Table
        Encoded rows.
    plan : SplitPlan
        The split.
    seed : int
        Seed of the fit.
    precision : {"auto", "float32", "float64", "bfloat16"}
        Option of the estimator.
    device : torch.device
        Device of the rows.
    dtype : torch.dtype, optional
        Type of the network of an earlier fit, in place of that by `precision`.
    """
    found = None if table.groups is not None else repeats(table.x, table.z, table.weight, table.schema)
    rows = _arranged(table, plan.ordered, found)
    folds = _folds(table, rows, plan, seed)
    apart = rows.apart and not plan.ordered
    if folds is not None and (apart or plan.from_splits) and table.count <= SMALL_BATCH:
        rows, folds = _joined(rows, folds)
    dtype = dtype or choose_dtype(precision, table.count, 1 if folds is None else int(folds.max()) + 1)
    weight, unit = rows.weight, rows.unit
    weight = None if weight is not None and rows.apart and (weight == 1.0).all() else weight
    whole, group = _tensors(rows.x, rows.z, weight, dtype), None if unit is None else torch.from_numpy(unit)
    common: dict[str, Any] = {
        "seed": seed,
        "dtype": dtype,
        "device": device,
        "apart": rows.apart,
        "repeats": _summary(found),
    }
    if folds is not None:
        of_row = np.full((len(folds), table.rows), -1, dtype=np.int64)
        of_row[:, table.kept] = folds.numpy()[:, rows.place]
        return Prepared(
            table.schema,
            table.target,
            table.inputs,
            train=_on(whole, device),
            valid=None,
            held_out=table.kept,
            folds=folds,
            fold_of_row=of_row,
            group=group,
            **common,
        )
    train, valid, held = _hold_out(whole, plan.share, seed, unit)
    if group is not None:
        group = group[torch.from_numpy(np.setdiff1d(np.arange(len(whole)), held))]
    return Prepared(
        table.schema,
        table.target,
        table.inputs,
        train=_on(train, device),
        valid=None if valid is None else _on(valid, device),
        held_out=table.kept[np.isin(rows.place, held)],
        group=group,
        **common,
    )


def prepare_part(
    X: Any,
    y: Any,
    sample_weight: Any,
    classes: Any,
    *,
    task: Task,
    columns: ColumnOptions,
    before: tuple[Schema, Target] | None,
    seed: int,
    dtype: torch.dtype | str,
    device: torch.device,
) -> Prepared:
    """Encode a part of the rows, of which none is held out.

    Parameters
    ----------
    X, y, sample_weight, task, columns, before
        As in :func:`read`; the first part fits the encodings, later parts use them.
    classes : array, optional
        All labels of a classification.
    seed : int
        Seed of the fit.
    dtype : torch.dtype or str
        Type of the rows, or the option `precision`.
    device : torch.device
        Device of the rows.

    Raises
    ------
    DataError
        As :func:`read`, and for classes that differ from those of the first part.
    """
    X, y, weight, _, _ = _counted(X, y, sample_weight, task)
    if weight is not None:
        warn_of_sum(weight)
    schema, target = before or (task.fit_schema(X, weight, columns), task.first_target(y, weight, classes))
    if before is not None and classes is not None:
        again = task.first_target(y, weight, classes)
        if isinstance(again, ClassLabels) and again != target:
            raise DataError(
                f"classes are {some(again.labels)}, and were {some(cast(ClassLabels, target).labels)} in the first "
                "call; they stay: give the same, or none"
            )
    x, z = task.predictors(schema, X), target.encode(y)
    dtype = choose_dtype(dtype, len(x)) if isinstance(dtype, str) else dtype
    rows, none = _on(_tensors(x, z, weight, dtype), device), np.zeros(0, dtype=np.int64)
    return Prepared(schema, target, task.width(schema), rows, None, none, seed, dtype, device)


def prepare_stream(
    source: streams.Source,
    share: float,
    *,
    task: Task,
    encodings: tuple[Schema, Target],
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    digest: str,
) -> Prepared:
    """Read the held-out rows of a stream, and encode the others as they are read.

    Parameters
    ----------
    source : Source
        The table.
    share : float
        Share of the rows that is held out.
    task : Task
        Encoding of the target.
    encodings : (Schema, Target)
        From :func:`~fathomless.data.streams.learn`.
    seed, dtype, device
        As in :class:`Prepared`.
    digest : str
        Digest of the source, for checkpoints.
    """
    schema, target = encodings
    held = streams.held_out(source.rows, share, fold_in(seed, "split"))
    train, valid = streams.encoded(source, schema, target, held, dtype, device, digest)
    return Prepared(schema, target, task.width(schema), train, valid, held, seed, dtype, device)


def choose_dtype(precision: str, count: float, networks: int = 1) -> torch.dtype:
    """Return the type of rows and weights for so many rows, of several networks side by side or one."""
    checks.choice("precision", precision, ("auto", "float32", "float64", "bfloat16"))
    small = count <= SMALL_BATCH if networks > 1 else count < _SMALL  # where double costs next to nothing
    double = precision == "float64" or (precision == "auto" and small)
    return torch.float64 if double else torch.float32


def _counted(X: Any, y: Any, sample_weight: Any, task: Task) -> tuple[Any, Any, Array | None, Array, int]:
    """Read target and weights, drop rows of weight zero; return also the numbers of the rows kept, and of all."""
    y = task.shape_target(readable(y))
    if len(X) != len(y):
        raise DataError(f"X has {len(X)} rows and y has {len(y)}; they must agree")
    kept = np.arange(len(X))
    if sample_weight is None:
        return X, y, None, kept, len(kept)
    weight = read_weight(sample_weight)
    weight = _check_sample_weight(weight, np.empty((len(X), 1)), dtype=np.float64, ensure_non_negative=True)
    rows, kept = len(kept), np.flatnonzero(weight)
    if len(kept) == 0:
        raise DataError("every sample_weight is zero; at least one row must count")
    if len(kept) < len(weight):
        X, y, weight = take(X, kept), take(y, kept), weight[kept]
    return X, y, weight, kept, rows


def _arranged(table: Table, ordered: bool, found: Repeats | None) -> Encoded:
    """Arrange rows for a split, so that their order and repetition do not matter.

    Observations become pieces, most of weight one. Copies in small tables are merged.
    """
    x, z, weight, place = table.x, table.z, table.weight, np.arange(len(table.x))
    apart = found is not None and found.observations
    if found is not None and apart and not ordered:
        own = pieces(found.unit, weight)
        return Encoded(x[own.source], z[own.source], own.weight, own.first, apart=True)
    if table.groups is not None:
        return Encoded(x, z, weight, place, np.unique(table.groups, return_inverse=True)[1].ravel())
    if table.count <= SMALL_BATCH and not ordered:
        return Encoded(*merged(x, z, weight))
    copies = found is not None and found.rows > 0 and not apart
    return Encoded(x, z, weight, place, found.unit if found is not None and copies else None, apart)


def _folds(table: Table, rows: Encoded, plan: SplitPlan, seed: int) -> Tensor | None:
    """Return the folds of arranged rows, shape (R, N); None for one network."""
    if plan.members == 1:
        return None
    if not isinstance(plan.folds, str):
        if isinstance(plan.folds, Splitter):
            own = split_folds(plan.folds, table.x, table.z, table.groups)
        elif is_splits(plan.folds):
            own = split_folds(plan.folds, np.empty((table.rows, 0)), np.empty(table.rows))[:, table.kept]
        else:
            own = given_folds(plan.folds, table.rows, table.kept)
        return keep_groups(own, table.groups).repeat(plan.copies, 1)
    together = not rows.apart
    if plan.optional and table.groups is None and not can_be_folded(rows.x, rows.z, together=together):
        return None
    how: dict[str, Any] = {"groups": table.groups, "blocks": plan.folds == "blocks", "together": together}
    return fold_rows(rows.x, rows.z, plan.members, plan.repeats, seed, **how).repeat(plan.copies, 1)


def _hold_out(rows: Rows, share: float, seed: int, unit: Array | None) -> tuple[Rows, Rows | None, Array]:
    """Split rows, those of a unit together; return also the numbers of those held out."""
    if share == 0.0:
        return rows, None, np.zeros(0, dtype=np.int64)
    strata = None if rows.y.is_floating_point() else rows.y
    train, valid = split_units(unit, len(rows), share, as_generator(fold_in(seed, "split")), strata=strata)
    if not len(valid):
        return rows, None, np.zeros(0, dtype=np.int64)
    return rows.take(train), rows.take(valid), valid.numpy()


def _warn_of_few(count: float) -> None:
    """Warn that so few rows, each as often as it counts, do not tell how far predictions are off."""
    if count < FEW_ROWS:
        warnings.warn(
            f"{count:g} {'row was' if count == 1 else 'rows were'} given; fewer than {FEW_ROWS} hardly tell how far "
            "predictions are off, so that probabilities of new rows are too sure, and 90 % intervals may hold only 50 "
            "to 85 % of them: collect more rows",
            DataWarning,
            stacklevel=2,
        )


def _summary(found: Repeats | None) -> EqualRows | None:
    """Return the equal rows that are kept with a fit."""
    if found is None or not found.rows:
        return None
    return EqualRows(rows=found.rows, kind="observations" if found.observations else "copies")


def _joined(table: Encoded, folds: Tensor) -> tuple[Encoded, Tensor]:
    """Merge equal rows that are in the same folds; see :func:`~fathomless.data.frames.merged`."""
    count = len(folds)
    x, z, weight, joined = merged(np.column_stack([table.x, folds.numpy().T]), table.z, table.weight)
    of_fold = torch.from_numpy(np.ascontiguousarray(x[:, -count:].T.astype(np.int64)))
    return Encoded(np.ascontiguousarray(x[:, :-count]), z, weight, joined[table.place], apart=True), of_fold


def _tensors(x: Array, z: Array, weight: Array | None, dtype: torch.dtype) -> Rows:
    return Rows(
        torch.as_tensor(x, dtype=dtype),
        torch.as_tensor(z, dtype=torch.int64 if z.dtype.kind == "i" else dtype),
        None if weight is None else torch.as_tensor(weight, dtype=dtype),
    )


def _on(rows: Rows, device: torch.device) -> Rows:
    return Rows(rows.x.to(device), rows.y.to(device), None if rows.weight is None else rows.weight.to(device))
