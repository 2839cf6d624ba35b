"""Preparation of a table for a fit: reading, encoding, splitting, and copying rows to the device.

A fit calls :func:`read`, which encodes a table, then :func:`prepare`, which splits the encoded rows by a
:class:`SplitPlan`. All functions are pure.
"""

import warnings
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils.validation import _check_sample_weight
from torch import Tensor

from fathomless.data import streams
from fathomless.data.duplicates import Duplicates, find_duplicates, split_into_pieces
from fathomless.data.folds import (
    can_be_folded,
    check_groups,
    fold_rows,
    is_splits,
    read_folds,
    split_folds,
    split_units,
)
from fathomless.data.frames import merge_duplicates, take, to_readable
from fathomless.data.given_rows import GivenRows, digest_rows, hash_rows, select_plain
from fathomless.data.groups import read_groups
from fathomless.data.row_weights import read_weight, warn_of_sum
from fathomless.data.rows import Rows, Stream
from fathomless.data.schema import Schema, some
from fathomless.data.targets import ClassLabels, Target, TargetScale
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

FEW_ROWS = 12  #: number of rows below which the accuracy of predictions cannot be estimated
_FAR = 3.0  # largest mean and ratio of scales, in units of an earlier fit, without a warning
_SMALL = 2000  # number of rows below which double precision costs no extra time


@dataclass(frozen=True)
class Prepared:
    """Encoded and split table, ready for inference.

    Attributes
    ----------
    schema, target
        Encodings of the columns and the target.
    inputs : int
        Number of encoded features, D.
    train, valid : Rows
        Training and held-out rows on the device; the training rows may be a stream.
    held_out : ndarray of int
        Indices in the table of the rows in `valid`.
    seed : int
        Seed of the fit.
    dtype, device
        Data type and device of the rows and of the model.
    folds : Tensor of int64, shape (R, N), optional
        Fold of each row of `train` in every partition, if several networks are cross-fitted.
    fold_of_row : ndarray of int, shape (R, rows of the table)
        The same for the rows of the table; −1 for rows of weight zero.
    group : Tensor of int64, shape (N,), optional
        Group of each row of `train`, which stays together in every split: given groups, or copies of one row. None if
        rows are split individually.
    apart : bool
        True if equal rows are separate observations, which are left out one by one; copies are left out together.
    ordered : bool
        True if the folds depend on the order of the rows: blocks, and given folds or splits.
    default_numbers : {"plain", "binned"}, optional
        Default encoding of columns of numbers if `schema` has bins, and unseen rows choose between it and its plain
        encoding; None if the encoding is decided. See :meth:`with_numbers`.
    repeats : EqualRows, optional
        Equal rows of the table, if there are any.
    mass : Tensor, shape (M,), optional
        Weight of each of the M out-of-fold or held-out rows, with the sum 1 for each group; only if groups were given.
        Rows at atoms, which are left out later, count in these sums.
    resumed : list of dict
        Versions of software in the checkpoints that the fit resumed from, if they differ from the present ones.
    atom, atom_held_out : Tensors of int64, shapes (N,) and (M,), optional
        Number 1, 2, ... of the atom of each row of `train` and of `valid`, and 0 for other values; only if the target
        has atoms that are predicted apart.
    given : GivenRows, optional
        Number and checksum of the rows that were given; None for a part of the rows.
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
    ordered: bool = False
    default_numbers: str | None = None
    repeats: EqualRows | None = None
    mass: Tensor | None = None
    resumed: list[dict[str, str]] = field(default_factory=list)
    atom: Tensor | None = None
    atom_held_out: Tensor | None = None
    given: GivenRows | None = None

    def with_numbers(self, numbers: str | None = None) -> "Prepared":
        """Return the table with one encoding of columns of numbers, if it is undecided; the default one for None."""
        if self.default_numbers is None:
            return self
        if (numbers or self.default_numbers) == "binned":
            return replace(self, default_numbers=None)
        features = torch.tensor(self.schema.plain_features, device=self.device)
        assert isinstance(self.train, Rows)
        train = replace(self.train, x=self.train.x[:, features])
        valid = None if self.valid is None else replace(self.valid, x=self.valid.x[:, features])
        schema = self.schema.plain
        return replace(self, schema=schema, inputs=schema.width, train=train, valid=valid, default_numbers=None)

    @property
    def censored(self) -> bool:
        """True if the targets are bounds, of censored ones or of cells, with one target."""
        return _are_bounds(self.target, tuple(self.train.first.y.shape))

    @property
    def share_known(self) -> float:
        """Share of the weight of the out-of-fold or held-out rows whose target is not censored."""
        rows = self.train if self.folds is not None or self.valid is None else self.valid
        if not self.censored or not isinstance(rows, Rows):
            return 1.0
        known = (rows.y[:, 0] == rows.y[:, 1]).double()
        return float(known.sum() if rows.weight is None else known @ rows.weight.double()) / rows.count


@dataclass(frozen=True)
class Encoded:
    """Encoded rows of a table, arranged for folds or a split.

    Attributes
    ----------
    x, z : ndarrays, shape (N, D), (N,) or (N, T)
        Encoded features and targets; integers in z are classes.
    weight : ndarray, shape (N,), optional
        Sample weights.
    place : ndarray of int, shape (M,)
        Index among the N rows of each row of the table.
    unit : ndarray of int, shape (N,), optional
        Rows with the same number stay together; None if rows are split individually.
    apart : bool
        True if equal rows are separate observations; False if they are copies.
    """

    x: Array
    z: Array
    weight: Array | None
    place: Array
    unit: Array | None = None
    apart: bool = False


@dataclass(frozen=True)
class SplitPlan:
    """Plan of the split of N rows into folds, or into training and held-out rows.

    Attributes
    ----------
    members : int
        Number of folds K of each partition; 1 holds out a fraction of the rows of a single network.
    repeats : int
        Number of partitions R.
    copies : int
        Number of times that the partitions are used, once for each candidate architecture.
    folds : "random", "blocks", array of int or Splitter
        Random folds, blocks of consecutive rows, the fold of each row of the table, or a splitter of scikit-learn. With
        the last two, `members` only has to be above 1.
    optional : bool
        True if a single network is trained instead if the rows cannot be folded.
    share : float
        Fraction of the rows that is held out of a single network.
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
        """True if folds are given as splits or partitions; equal rows of a fold are then merged and sorted."""
        if isinstance(self.folds, str):
            return False
        return isinstance(self.folds, Splitter) or is_splits(self.folds) or np.ndim(next(iter(self.folds))) > 0


@dataclass(frozen=True)
class Table:
    """Encoded table.

    Attributes
    ----------
    schema, target
        Encodings of the columns and the target.
    inputs : int
        Number of encoded features, D.
    x, z : ndarrays, shape (N, D), (N,) or (N, T)
        Encoded features and targets, without rows of weight zero; integers in z are classes, and two columns of one
        target are the bounds of a censored one.
    weight : ndarray, shape (N,), optional
        Sample weights.
    groups : ndarray, shape (N,), optional
        Group of each row.
    kept : ndarray of int, shape (N,)
        Indices of these rows in the table.
    given : GivenRows
        Number of rows of the table, and checksum of those of positive weight.
    default_numbers : {"plain", "binned"}, optional
        Default encoding of columns of numbers if unseen rows choose between `schema` and its plain encoding.
    """

    schema: Schema
    target: Target
    inputs: int
    x: Array
    z: Array
    weight: Array | None
    groups: Array | None
    kept: Array
    given: GivenRows
    default_numbers: str | None = None

    @property
    def plain(self) -> Array:
        """Features without bins, (N, D'); folds and equal rows do not depend on the encoding of numbers."""
        return select_plain(self.schema, self.x)

    @property
    def count(self) -> float:
        """Sum of the sample weights, or the number of rows without weights."""
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
        Validated columns.
    y : array or series, shape (M,) or (M, T)
        Targets; bounds, (M, 2), for a task with censored targets.
    sample_weight : array, shape (M,), optional
        Sample weights.
    groups : array, shape (M,), optional
        Groups of the rows.
    task : Task
        Encoding of the target.
    columns : ColumnOptions
        Encoding of the columns.
    before : (Schema, Target), optional
        Encodings of an earlier fit, which are used unchanged.

    Raises
    ------
    DataError
        If rows, weights or groups are invalid.
    """
    X, y, of_rows, kept, rows = _drop_zero_weights(X, y, sample_weight, task)
    weight = task.apply_class_weight(y, of_rows)
    if weight is not None:
        warn_of_sum(weight, "sample_weight" if sample_weight is not None else "class_weight")
    groups = None if groups is None else read_groups(groups, rows)[kept]
    default_numbers = None
    if before is None and task.compares_numbers(X, columns):
        default_numbers, columns = task.choose_numbers(X, columns), replace(columns, numbers="binned")
    schema, target = before or (task.fit_schema(X, weight, columns, of_rows), task.fit_target(y, weight))
    x = task.encode_rows(schema, X)
    z = task.encode_target(target, y)
    if before is not None and isinstance(target, TargetScale) and not _are_bounds(target, z.shape):
        _warn_of_other_scale(z)
    if all(column.bins is None for column in schema.columns):
        default_numbers = None
    given = GivenRows(rows, digest_rows(schema, x, z, of_rows))
    table = Table(schema, target, task.width(schema), x, z, weight, groups, kept, given, default_numbers)
    _warn_few_rows(max(table.count, float(len(x))))
    return table


def _warn_of_other_scale(z: Array) -> None:
    """Warn of targets far from mean 0 and standard deviation 1 in the units of an earlier fit, (N,) or (N, T)."""
    columns = z.reshape(len(z), -1)
    shift, scale = columns.mean(axis=0), columns.std(axis=0)
    if (np.abs(shift) > _FAR).any() or (scale > _FAR).any() or ((scale < 1.0 / _FAR) & (scale > 0.0)).any():
        mean, deviation = (some(values.round(2).tolist()) for values in (shift, scale))
        warnings.warn(
            f"the fit continues from an earlier one, in whose units the targets have the mean {mean} and the standard "
            f"deviation {deviation}; they had 0 and 1. The network has to follow a change of scale. If the units have "
            "changed, convert the targets, or fit a new estimator",
            DataWarning,
            stacklevel=3,
        )


def prepare(
    table: Table, plan: SplitPlan, seed: int, precision: str, device: torch.device, dtype: torch.dtype | None = None
) -> Prepared:
    """Split an encoded table, and copy its rows to the device.

    Parameters
    ----------
    table : Table
        Encoded table.
    plan : SplitPlan
        Plan of the split.
    seed : int
        Seed of the fit.
    precision : {"auto", "float32", "float64", "bfloat16"}
        Option of the estimator.
    device : torch.device
        Device of the rows.
    dtype : torch.dtype, optional
        Data type of the network of an earlier fit, which overrides `precision`.
    """
    z = table.z
    if _are_bounds(table.target, z.shape):  # one column of the table
        z = np.unique(z, axis=0, return_inverse=True)[1].ravel().astype(np.float64)
    equal = None if table.groups is not None else find_duplicates(table.plain, z, table.weight, table.schema.plain)
    rows = _arrange(table, plan.ordered, equal)
    folds = _assign_folds(table, rows, plan, seed)
    apart = rows.apart and not plan.ordered
    if folds is not None and (apart or plan.from_splits) and table.count <= SMALL_BATCH:
        rows, folds = _merge_equal_rows(rows, folds)
    dtype = dtype or choose_dtype(precision, table.count, 1 if folds is None else int(folds.max()) + 1)
    weight, unit = rows.weight, rows.unit
    # pieces of observations have weight one in most tables, and training without weights is faster
    weight = None if weight is not None and rows.apart and (weight == 1.0).all() else weight
    tensors = _to_tensors(rows.x, rows.z, weight, dtype)
    group = None if unit is None else torch.from_numpy(unit)
    mass = _share_of_group(table, rows)
    atom = _number_atoms(table.target, rows)
    common: dict[str, Any] = {"seed": seed, "dtype": dtype, "device": device, "given": table.given}
    common |= {"apart": rows.apart, "ordered": plan.ordered, "default_numbers": table.default_numbers}
    common |= {"repeats": _summarize(equal)}
    if folds is not None:
        # folds of the rows of the table, which may be fewer or more than the arranged rows
        of_row = np.full((len(folds), table.given.count), -1, dtype=np.int64)
        of_row[:, table.kept] = folds.numpy()[:, rows.place]
        hashes = np.zeros(table.given.count, dtype=np.int64)
        hashes[table.kept] = hash_rows(table.plain)
        common["given"] = replace(table.given, hashes=hashes)
        return Prepared(
            table.schema,
            table.target,
            table.inputs,
            train=_to_device(tensors, device),
            valid=None,
            held_out=table.kept,
            folds=folds,
            fold_of_row=of_row,
            group=group,
            mass=mass,
            atom=atom,
            **common,
        )
    train, valid, held = _hold_out(tensors, plan.share, seed, unit, atom)
    trained = torch.from_numpy(np.setdiff1d(np.arange(len(tensors)), held))
    single = Prepared(
        table.schema,
        table.target,
        table.inputs,
        train=_to_device(train, device),
        valid=None if valid is None else _to_device(valid, device),
        held_out=table.kept[np.isin(rows.place, held)],
        group=None if group is None else group[trained],
        mass=None if mass is None else mass[torch.from_numpy(held)],
        atom=None if atom is None else atom[trained],
        atom_held_out=None if atom is None else atom[torch.from_numpy(held)],
        **common,
    )
    return single.with_numbers()  # a single network has no out-of-fold rows


def _number_atoms(target: Target, rows: Encoded) -> Tensor | None:
    """Return the number of the atom of each arranged row, (N,), and 0 for other values; None without atoms."""
    if not isinstance(target, TargetScale) or not target.hurdle:
        return None
    if _are_bounds(target, rows.z.shape) and not target.cells:
        return None
    return torch.from_numpy(target.number_atoms(rows.z))


def _are_bounds(target: Target, shape: tuple[int, ...]) -> bool:
    """Return True if encoded targets of this shape are the bounds of a censored one."""
    return isinstance(target, TargetScale) and len(shape) == 2 and shape[1] == 2 * len(target.mean)


def _share_of_group(table: Table, rows: Encoded) -> Tensor | None:
    """Return the share of each arranged row in the weight of its group, (N,); None if no groups were given."""
    if table.groups is None:
        return None
    weight = np.ones(len(table.x)) if table.weight is None else table.weight
    number = np.unique(table.groups, return_inverse=True)[1].ravel()
    share = weight / np.bincount(number, weight)[number]
    return torch.from_numpy(np.bincount(rows.place, share, minlength=len(rows.x)))


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
    """Encode a part of the rows, without held-out rows.

    Parameters
    ----------
    X, y, sample_weight, task, columns, before
        As in :func:`read`. The encodings are fitted to the first part, and used for later ones.
    classes : array, optional
        All class labels.
    seed : int
        Seed of the fit.
    dtype : torch.dtype or str
        Data type of the rows, or the option `precision`.
    device : torch.device
        Device of the rows.

    Raises
    ------
    DataError
        As in :func:`read`, and if the classes differ from those of the first part.
    """
    X, y, weight, _, _ = _drop_zero_weights(X, y, sample_weight, task)
    if weight is not None:
        warn_of_sum(weight)
    columns = replace(columns, max_levels=columns.fixed_levels)  # the frequencies of the first part are not final
    if before is None:  # a column that is constant in the first part may vary in later ones
        schema = task.fit_schema(X, weight, columns, weight).unlimited_constants
        target = task.first_target(y, weight, classes)
    else:
        schema, target = before
    if before is not None and classes is not None:
        again = task.first_target(y, weight, classes)
        if isinstance(again, ClassLabels) and again != target:
            raise DataError(
                f"classes are {some(again.labels)}, and were {some(cast(ClassLabels, target).labels)} in the first "
                "call; pass the same classes again, or none"
            )
    x = task.encode_rows(schema, X)
    z = target.encode(y)
    dtype = choose_dtype(dtype, len(x)) if isinstance(dtype, str) else dtype
    rows = _to_device(_to_tensors(x, z, weight, dtype), device)
    none_held_out = np.zeros(0, dtype=np.int64)
    return Prepared(schema, target, task.width(schema), rows, None, none_held_out, seed, dtype, device)


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
    """Read the held-out rows of a stream; training rows are encoded when they are read.

    Parameters
    ----------
    source : Source
        Source of the stream.
    share : float
        Fraction of the rows that is held out.
    task : Task
        Encoding of the target.
    encodings : (Schema, Target)
        Encodings from :func:`~fathomless.data.streams.learn`.
    seed, dtype, device
        As in :class:`Prepared`.
    digest : str
        Digest of the source, for checkpoints.
    """
    schema, target = encodings
    held = streams.choose_held_out(source.rows, share, fold_in(seed, "split"))
    train, valid = streams.encode_source(source, schema, target, held, dtype, device, digest)
    given = GivenRows(source.rows)
    return Prepared(schema, target, task.width(schema), train, valid, held, seed, dtype, device, given=given)


def choose_dtype(precision: str, count: float, networks: int = 1) -> torch.dtype:
    """Return the data type of rows and weights for a number of rows and of networks trained together."""
    checks.choice("precision", precision, ("auto", "float32", "float64", "bfloat16"))
    small = count <= SMALL_BATCH if networks > 1 else count < _SMALL  # double precision costs almost no extra time
    double = precision == "float64" or (precision == "auto" and small)
    return torch.float64 if double else torch.float32


def _drop_zero_weights(X: Any, y: Any, sample_weight: Any, task: Task) -> tuple[Any, Any, Array | None, Array, int]:
    """Read target and weights, and drop rows of weight zero.

    Return also the indices of the remaining rows, and the number of all rows.
    """
    y = task.shape_target(to_readable(y))
    if len(X) != len(y):
        raise DataError(f"X has {len(X)} rows and y has {len(y)}; they must agree")
    rows = len(X)
    if sample_weight is None:
        return X, y, None, np.arange(rows), rows
    weight = read_weight(sample_weight)
    weight = _check_sample_weight(weight, np.empty((rows, 1)), dtype=np.float64, ensure_non_negative=True)
    kept = np.flatnonzero(weight)
    if len(kept) == 0:
        raise DataError("every sample_weight is zero; at least one must be positive")
    if len(kept) < len(weight):
        X, y, weight = take(X, kept), take(y, kept), weight[kept]
    return X, y, weight, kept, rows


def _arrange(table: Table, ordered: bool, equal: Duplicates | None) -> Encoded:
    """Arrange rows for a split that does not depend on their order and repetition.

    Equal rows that are separate observations are split into pieces, most of weight one. Copies in small tables are
    merged.
    """
    x, z, weight = table.x, table.z, table.weight
    place = np.arange(len(table.x))
    apart = equal is not None and equal.observations
    if equal is not None and apart and not ordered:
        split = split_into_pieces(equal.unit, weight)
        return Encoded(x[split.source], z[split.source], split.weight, split.first, apart=True)
    if table.groups is not None:
        return Encoded(x, z, weight, place, np.unique(table.groups, return_inverse=True)[1].ravel())
    if table.count <= SMALL_BATCH and not ordered:
        return Encoded(*merge_duplicates(x, z, weight))
    copies = equal is not None and equal.rows > 0 and not apart
    return Encoded(x, z, weight, place, equal.unit if equal is not None and copies else None, apart)


def _assign_folds(table: Table, rows: Encoded, plan: SplitPlan, seed: int) -> Tensor | None:
    """Assign arranged rows to folds, shape (R, N); None for a single network."""
    if plan.members == 1:
        return None
    if not isinstance(plan.folds, str):
        if isinstance(plan.folds, Splitter):
            folds = split_folds(plan.folds, table.plain, table.z, table.groups)
        elif is_splits(plan.folds):
            folds = split_folds(plan.folds, np.empty((table.given.count, 0)), np.empty(table.given.count))[
                :, table.kept
            ]
        else:
            folds = read_folds(plan.folds, table.given.count, table.kept)
        return check_groups(folds, table.groups).repeat(plan.copies, 1)
    together = not rows.apart
    if plan.optional and table.groups is None and not can_be_folded(rows.x, rows.z, together=together):
        return None
    options: dict[str, Any] = {"groups": table.groups, "blocks": plan.folds == "blocks", "together": together}
    atom = _number_atoms(table.target, rows)
    options["strata"] = None if atom is None else atom.numpy()
    return fold_rows(rows.x, rows.z, plan.members, plan.repeats, seed, **options).repeat(plan.copies, 1)


def _hold_out(
    rows: Rows, share: float, seed: int, unit: Array | None, atom: Tensor | None
) -> tuple[Rows, Rows | None, Array]:
    """Split off held-out rows, with the rows of a unit together; return also the indices of the held-out rows."""
    if share == 0.0:
        return rows, None, np.zeros(0, dtype=np.int64)
    strata = atom if rows.y.is_floating_point() else rows.y  # classes and atoms keep their frequencies in both parts
    train, valid = split_units(unit, len(rows), share, as_generator(fold_in(seed, "split")), strata=strata)
    if not len(valid):
        return rows, None, np.zeros(0, dtype=np.int64)
    return rows.take(train), rows.take(valid), valid.numpy()


def _warn_few_rows(count: float) -> None:
    """Warn that the accuracy of predictions cannot be estimated from few rows; `count` is the sum of the weights."""
    if count < FEW_ROWS:
        warnings.warn(
            f"{count:g} {'row was' if count == 1 else 'rows were'} given; fewer than {FEW_ROWS} are too few to "
            "estimate prediction errors: probabilities of new rows are overconfident, and 90 % intervals may cover "
            "only 50 to 85 % of them. Collect more rows",
            DataWarning,
            stacklevel=2,
        )


def _summarize(equal: Duplicates | None) -> EqualRows | None:
    """Return the summary of equal rows for the diagnostics of a fit."""
    if equal is None or not equal.rows:
        return None
    return EqualRows(rows=equal.rows, kind="observations" if equal.observations else "copies")


def _merge_equal_rows(table: Encoded, folds: Tensor) -> tuple[Encoded, Tensor]:
    """Merge equal rows that are in the same folds; see :func:`~fathomless.data.frames.merge_duplicates`."""
    count = len(folds)
    # the folds are added as columns, so that only rows in the same folds are equal
    x, z, weight, joined = merge_duplicates(np.column_stack([table.x, folds.numpy().T]), table.z, table.weight)
    of_fold = torch.from_numpy(np.ascontiguousarray(x[:, -count:].T.astype(np.int64)))
    return Encoded(np.ascontiguousarray(x[:, :-count]), z, weight, joined[table.place], apart=True), of_fold


def _to_tensors(x: Array, z: Array, weight: Array | None, dtype: torch.dtype) -> Rows:
    return Rows(
        torch.as_tensor(x, dtype=dtype),
        torch.as_tensor(z, dtype=torch.int64 if z.dtype.kind == "i" else dtype),
        None if weight is None else torch.as_tensor(weight, dtype=dtype),
    )


def _to_device(rows: Rows, device: torch.device) -> Rows:
    return Rows(rows.x.to(device), rows.y.to(device), None if rows.weight is None else rows.weight.to(device))
