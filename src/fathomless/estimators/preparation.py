"""From a table to rows on the device: what every estimator does before a posterior is looked for."""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import narwhals as nw
import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, validate_data
from torch import Tensor

from fathomless.data import streams
from fathomless.data.cells import check_table, eager
from fathomless.data.folds import split_units
from fathomless.data.frames import fit_schema, merged, readable, take
from fathomless.data.groups import read_groups
from fathomless.data.repeats import Repeats, pieces, repeats
from fathomless.data.rows import Rows, Stream
from fathomless.data.schema import Schema, some
from fathomless.data.targets import ClassLabels, Target
from fathomless.data.weights import read_weight, warn_of_sum
from fathomless.estimators.fitted import Array, FittedModel
from fathomless.estimators.options import ClassOptions, options_of
from fathomless.estimators.saving import explained
from fathomless.inference.training import SMALL_BATCH
from fathomless.system import checks
from fathomless.system.errors import DataError, DataWarning
from fathomless.system.masked import unmasked
from fathomless.system.rng import as_generator, as_seed, fold_in

__all__ = ["FEW_ROWS", "Array", "Encoded", "Prepared", "TableReader"]

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
    repeats : dict, optional
        If rows of the table are equal: "rows", how many are equal to another row, and "kind", "observations" or
        "copies"; see :mod:`fathomless.data.repeats`.
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
    repeats: dict[str, Any] | None = None
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


class TableReader(FittedModel, BaseEstimator, ABC):  # type: ignore[misc]
    """How an estimator reads a table, the way scikit-learn does."""

    _columns_predict: ClassVar[bool] = True  # else they are the target

    # ---- what a task says

    @abstractmethod
    def _fit_target(self, y: Any, weight: Array | None) -> Target:
        """Learn how to encode the target."""

    @abstractmethod
    def _first_target(self, y: Any, weight: Array | None, classes: Any) -> Target:
        """Learn how to encode the target from the first of several parts, and from the classes if they are given."""

    @abstractmethod
    def _shaped(self, y: Any) -> Any:
        """Return a target without an axis that it should not have."""

    @abstractmethod
    def _reweighted(self, y: Any, weight: Array | None) -> Array | None:
        """Return how often rows count, (N,): the weights that were given, times those that options give a target."""

    # ---- what an inference says

    @abstractmethod
    def _share_held_out(self, count: float) -> float:
        """Return the share of so many rows that is held out."""

    @abstractmethod
    def _partition(
        self, rows: Encoded, count: float, seed: int, groups: Array | None, kept: Array, given: int
    ) -> Tensor | None:
        """Return the folds of encoded rows if several networks are cross-fitted, shape (R, N); else None.

        They are the rows `kept` of the `given` ones of the table.
        """

    @abstractmethod
    def _keeps_order(self) -> bool:
        """Whether the order of the rows matters to their folds."""

    @abstractmethod
    def _against_streams(self) -> str:
        """Return why data that are read in parts cannot be used, and what to do; "" if they can."""

    @abstractmethod
    def _fitted_before(self) -> torch.dtype | None:
        """Return the type of the weights if the fit goes on from the fitted state, with its schema; else None."""

    # ---- reading

    def _prepare(self, X: Any, y: Any, sample_weight: Any, groups: Any = None) -> Prepared:
        """Read the table; only the names of the columns are set here."""
        self._check_options()
        seed, before = self._seed(), self._fitted_before()
        X, y, weight, kept, given = self._read(X, y, sample_weight, reset=before is None)
        weight = self._reweighted(y, weight)
        if weight is not None:
            warn_of_sum(weight, "sample_weight" if sample_weight is not None else "class_weight")
        groups = None if groups is None else read_groups(groups, given)[kept]
        schema = self._fit_schema(X, weight) if before is None else self.schema_
        target = self._fit_target(y, weight) if before is None else self.target_
        x, z = self._predictors(schema, X), target.encode(y)
        count = float(len(x) if weight is None else weight.sum())
        _warn_of_few(max(count, float(len(x))))
        found = None if groups is not None else repeats(x, z, weight, schema)
        table = self._arranged(x, z, weight, count, groups, found)
        folds = self._partition(table, count, seed, groups, kept, given)
        if folds is not None and table.apart and count <= SMALL_BATCH and not self._keeps_order():
            table, folds = _joined(table, folds)
        dtype, device = before or self._dtype(count, 1 if folds is None else int(folds.max()) + 1), self._device()
        weight, unit = table.weight, table.unit
        weight = None if weight is not None and table.apart and (weight == 1.0).all() else weight
        rows, alike = _tensors(table.x, table.z, weight, dtype), None if unit is None else torch.from_numpy(unit)
        told = _told(found)
        if folds is not None:
            of_row = np.full((len(folds), given), -1, dtype=np.int64)
            of_row[:, kept] = folds.numpy()[:, table.place]
            args = (self._width(schema), _on(rows, device), None, kept, seed, dtype, device)
            return Prepared(schema, target, *args, folds, of_row, alike, table.apart, told)
        train, valid, held = self._hold_out(rows, count, seed, unit)
        valid = None if valid is None else _on(valid, device)
        if alike is not None:
            alike = alike[torch.from_numpy(np.setdiff1d(np.arange(len(rows)), held))]
        held_out = kept[np.isin(table.place, held)]
        encoded = (self._width(schema), _on(train, device), valid, held_out)
        return Prepared(schema, target, *encoded, seed, dtype, device, group=alike, apart=table.apart, repeats=told)

    def _prepare_part(
        self, X: Any, y: Any, sample_weight: Any, classes: Any, before: tuple[int, torch.dtype] | None
    ) -> Prepared:
        """Read a part of the rows; the first one says how the table is encoded, and later ones keep seed and type."""
        self._check_options()
        first = before is None
        X, y, weight, _, _ = self._read(X, y, sample_weight, reset=first)
        if weight is not None:
            warn_of_sum(weight)
        schema = self._fit_schema(X, weight) if first else self.schema_
        target = self._first_target(y, weight, classes) if first else self.target_
        if not first and classes is not None:
            again = self._first_target(y, weight, classes)
            if isinstance(again, ClassLabels) and again != target:
                raise DataError(
                    f"classes are {some(again.labels)}, and were {some(cast(ClassLabels, target).labels)} in the first "
                    "call; they stay: give the same, or none"
                )
        x, z = self._predictors(schema, X), target.encode(y)
        seed, dtype = before or (self._seed(), self._dtype(len(x)))
        device, none = self._device(), np.zeros(0, dtype=np.int64)
        rows = _on(_tensors(x, z, weight, dtype), device)
        return Prepared(schema, target, self._width(schema), rows, None, none, seed, dtype, device)

    def _prepare_stream(self, source: streams.Source) -> Prepared:
        """Learn how the table is encoded, and read the rows that are held out."""
        self._check_options()
        if reason := self._against_streams():
            raise DataError(reason)
        if isinstance(self, ClassOptions) and self.class_weight is not None:
            raise DataError(
                f"class_weight={self.class_weight!r} was given; rows of a stream count once: leave it out, and say "
                "with class_cost what mistakes cost"
            )
        seed, before = self._seed(), self._fitted_before()
        options = {"missing": self.missing, "unseen": self.unseen, "max_levels": self.max_levels}
        schema, target = (
            streams.learn(source, self._target_type(), **options) if before is None else (self.schema_, self.target_)  # type: ignore[arg-type]
        )
        self._table(source.take(np.zeros(1, dtype=np.int64))[0], reset=before is None)
        held = streams.held_out(source.rows, self._share_held_out(source.rows), fold_in(seed, "split"))
        dtype = before or self._dtype(source.rows)
        device, digest = self._device(), "" if self.checkpoint is None else source.digest()
        train, valid = streams.encoded(source, schema, target, held, dtype, device, digest)
        return Prepared(schema, target, self._width(schema), train, valid, held, seed, dtype, device)

    def _check_options(self) -> None:
        for option in options_of(type(self)):
            checks.option(option.name, getattr(self, option.name), **option.metadata)

    def _fit_schema(self, X: Any, weight: Array | None) -> Schema:
        return fit_schema(
            X,
            weight=weight,
            missing=self.missing,
            unseen=self.unseen,
            max_levels=self.max_levels,
            limit=self._columns_predict,
        )

    def _seed(self) -> int:
        if self.checkpoint is not None and self.random_state is None:
            raise DataError(
                "checkpoint was given without random_state; a run can only go on from a checkpoint with its own seed: "
                "set random_state to an integer"
            )
        return as_seed(self.random_state)

    def _read(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[Any, Any, Array | None, Array, int]:
        """Check the table as scikit-learn does, drop rows that count for nothing; say which of how many are kept."""
        if y is None:
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None")
        X, y = self._table(X, reset=reset), self._shaped(readable(y))
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

    def _table(self, X: Any, reset: bool) -> Any:
        X = unmasked(X)
        if isinstance(eager(X, "X"), nw.DataFrame):
            with explained():
                validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        check_table(X)
        finite = "allow-nan" if self.missing == "impute" else True
        with explained(), np.errstate(over="ignore", invalid="ignore"):  # of sums of huge values
            return validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite=finite)

    def _dtype(self, count: float, networks: int = 1) -> torch.dtype:
        checks.choice("precision", self.precision, ("auto", "float32", "float64", "bfloat16"))
        small = count <= SMALL_BATCH if networks > 1 else count < _SMALL  # where double costs next to nothing
        double = self.precision == "float64" or (self.precision == "auto" and small)
        return torch.float64 if double else torch.float32

    def _arranged(
        self, x: Array, z: Array, weight: Array | None, count: float, groups: Array | None, found: Repeats | None
    ) -> Encoded:
        """Arrange rows for a split, so that their order and repetition do not matter.

        Observations become pieces, most of weight one. Copies in small tables are merged.
        """
        place, ordered = np.arange(len(x)), self._keeps_order()
        apart = found is not None and found.observations
        if found is not None and apart and not ordered:
            own = pieces(found.unit, weight)
            return Encoded(x[own.source], z[own.source], own.weight, own.first, apart=True)
        if groups is not None:
            return Encoded(x, z, weight, place, np.unique(groups, return_inverse=True)[1].ravel())
        if count <= SMALL_BATCH and not ordered:
            return Encoded(*merged(x, z, weight))
        copies = found is not None and found.rows > 0 and not apart
        return Encoded(x, z, weight, place, found.unit if found is not None and copies else None, apart)

    def _hold_out(self, rows: Rows, count: float, seed: int, unit: Array | None) -> tuple[Rows, Rows | None, Array]:
        """Split the rows, those of a unit together; return also the numbers of those held out."""
        fraction, none = self._share_held_out(count), np.zeros(0, dtype=np.int64)
        if fraction == 0.0:
            return rows, None, none
        strata = None if rows.y.is_floating_point() else rows.y
        train, valid = split_units(unit, len(rows), fraction, as_generator(fold_in(seed, "split")), strata=strata)
        return (rows.take(train), rows.take(valid), valid.numpy()) if len(valid) else (rows, None, none)


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


def _told(found: Repeats | None) -> dict[str, Any] | None:
    """Return what is kept with a fit about equal rows of its table, as plain JSON."""
    if found is None or not found.rows:
        return None
    return {"rows": found.rows, "kind": "observations" if found.observations else "copies"}


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
