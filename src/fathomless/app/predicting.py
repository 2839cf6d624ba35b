"""Predictions of a run for a table, piece by piece, for the commands ``predict`` and ``serve``; missing cells."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import numpy as np

from fathomless.app import manifests
from fathomless.app.commands import columns
from fathomless.data.schema import Schema
from fathomless.data.targets import TargetScale
from fathomless.estimators.predictor import Predictor
from fathomless.posterior.out_of_distribution import OOD_LEVEL
from fathomless.system.errors import DataError
from fathomless.system.rng import fold_in
from fathomless.tables import files as tables

if TYPE_CHECKING:
    import pyarrow as pa

    from fathomless.estimators.tasks import Density

__all__ = ["LoadedRun", "check_intervals", "impute_table", "load_run", "predict_table"]

_OOD, _DRAW = "ood_p", "draw"  # columns of the p-values of rows, and of the numbers of draws
_ROWS = 50_000  # number of rows times draws that are filled in at once
_CHECKED = 2000  # number of the first rows whose p-values are computed for a note


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """Fitted run that predicts tables.

    Attributes
    ----------
    predictor : Predictor or Density
        Fitted networks, with the encoding `schema`.
    schema : Schema
        Encoding of the columns, with the treatment of new levels and missing values.
    manifest : RunManifest, optional
        Manifest of the run; None for an estimator saved from Python.
    """

    predictor: "Predictor | Density"
    schema: Schema
    manifest: manifests.RunManifest | None

    @property
    def task(self) -> str:
        """Task: "regression", "classification" (of one label or of several), or "density"."""
        if not isinstance(self.predictor, Predictor):
            return "density"
        return "regression" if isinstance(self.predictor.target, TargetScale) else "classification"

    @property
    def targets(self) -> tuple[str, ...]:
        """Names of the targets; empty if they are unknown, and for a density."""
        return self.manifest.targets if self.manifest and isinstance(self.predictor, Predictor) else ()


def load_run(folder: str | PathLike[str], unseen: str | None, missing: str | None) -> LoadedRun:
    """Load a run without scikit-learn, whose import would double the time; only a density needs it.

    Parameters
    ----------
    folder : path
        Folder of the run.
    unseen, missing : str, optional
        Options ``--unseen`` and ``--missing`` of the command; None for those of the fit.

    Raises
    ------
    FileError
        If the folder has no finished fit.
    """
    model, manifest = manifests.load_predictor(folder)
    predictor: Predictor | None = model if isinstance(model, Predictor) else None
    if predictor is not None:
        schema = columns.treat_new_values(predictor.schema, unseen, missing, density=False)
        return LoadedRun(replace(predictor, schema=schema), schema, manifest)
    density = cast("Density", model)
    density.schema_ = columns.treat_new_values(density.schema_, unseen, missing, density=True)
    return LoadedRun(density, density.schema_, manifest)


def check_intervals(run: LoadedRun, given: Mapping[str, Any]) -> None:
    """Check that options of prediction intervals, by name, suit the target; options that are empty were not given.

    Raises
    ------
    DataError
        If an option was given for a class or a density.
    """
    for name in (name for name, value in given.items() if value):
        if not isinstance(run.predictor, Predictor):
            raise DataError(f"{name} was given, and a density has no target; omit it")
        if not isinstance(run.predictor.target, TargetScale):
            raise DataError(f"{name} was given, which is for numeric targets; the target is a class")


def predict_table(
    run: LoadedRun,
    source: tables.Source | bytes,
    form: Mapping[str, Any],
    *,
    levels: Sequence[float],
    notes: list[str],
    guarantee: str | None = None,
    by: str | None = None,
    ood: bool = False,
    key: str | None = None,
) -> Iterator["pa.Table"]:
    """Yield the predictions of each piece of a table; append notes on the table to `notes` after the last one.

    Parameters
    ----------
    run : LoadedRun
        Fitted run.
    source : path, "-" or bytes
        Table, as in :func:`fathomless.tables.files.batches`.
    form : mapping
        Format and notation of the table.
    levels : sequence of float
        Probabilities of the prediction intervals.
    notes : list of str
        Notes on unused columns, on missing values and categories that the training table did not have, on rows unlike
        the training rows, and on small p-values.
    guarantee, by : str, optional
        Options of conformal intervals, see :meth:`~fathomless.estimators.predictor.Predictor.predict_interval`.
    ood : bool
        True for the p-values of the rows, see :meth:`~fathomless.estimators.predictor.Predictor.ood_p_values`.
    key : str, optional
        Column with the names of the rows, which the table must have; by default that of the fit, if the table has it.

    Raises
    ------
    FileError, DataError
        If the table cannot be read or predicted.
    """
    schema, manifest = run.schema, run.manifest
    new_values = columns.NewValues(schema)
    names = key or (manifest.key if manifest else None)
    unused: list[str] | None = None
    done, small = 0, 0
    p_values = list[Any]()  # of the first rows
    for piece in tables.batches(source, columns.kinds(schema), **form):
        if unused is None:
            used = {column.name for column in schema.columns} | {names}
            used |= {manifest.groups, manifest.censored} if manifest else set()
            unused = [name for name in piece.column_names if schema.named and name not in used]
            if key:
                columns.check_columns(piece.column_names, [key])
        _require_rows(piece, source)
        named = {names: piece[names]} if names is not None and names in piece.column_names else {}
        X = columns.select_features(piece if schema.named else piece.drop_columns(list(named)), schema)
        new_values.add(X)
        predictions = _predict(run, X, levels, guarantee, by)
        if not ood and (left := _CHECKED - sum(map(len, p_values))) > 0 and _has_distribution(run):
            p_values.append(_ood_p_values(run, X[:left], {}))
        if ood:
            p = _ood_p_values(run, X, predictions)
            predictions[_OOD] = p
            done, small = done + len(p), small + int((p <= OOD_LEVEL).sum())
        if names in predictions:
            raise DataError(f"the key column {names!r} has the name of a column of predictions; rename it")
        yield columns.make_table({**named, **predictions})
    if unused:
        notes.append(f"unused columns: {', '.join(unused)}")
    notes.extend(new_values.describe())
    if ood:
        notes.append(
            f"{small:,} of {done:,} rows have a p-value up to {OOD_LEVEL} ({_OOD}); at most about 5 % are expected"
        )
    elif text := _note_unlike_rows(np.concatenate([np.zeros(0), *p_values])):
        notes.append(text)


def impute_table(
    run: LoadedRun,
    source: tables.Source | bytes,
    form: Mapping[str, Any],
    *,
    draws: int | None,
    seed: int,
    notes: list[str],
) -> Iterator["pa.Table"]:
    """Yield each piece of a table with its missing cells of the columns of a density filled in.

    Parameters
    ----------
    run : LoadedRun
        Fitted density.
    source, form
        As in :func:`predict_table`.
    draws : int, optional
        Number of draws of the missing cells. The rows are then repeated, and the first column, "draw", has the number
        of the draw. By default, missing cells are replaced by their conditional means.
    seed : int
        Seed of the draws.
    notes : list of str
        Notes on rows that are not filled in, or inaccurately, are appended after the last piece.

    Raises
    ------
    FileError, DataError
        If the table cannot be read, or has a column "draw" beside that of the draws.
    """
    import pyarrow as pa

    density, schema = run.predictor, run.schema
    if not isinstance(density, _GraphDensity):
        raise DataError(
            "missing cells are filled in by a density of graphs (fit --task density --structure graph); this run is "
            f"another one ({run.task})"
        )
    done, left = 0, 0
    texts = list[str]()
    for piece in _split(tables.batches(source, columns.kinds(schema), **form), max(1, _ROWS // (draws or 1))):
        _require_rows(piece, source)
        if draws and _DRAW in piece.column_names:
            raise DataError(f"the table has a column {_DRAW!r}, which is the name of the column of draws; rename it")
        X = columns.select_features(piece, schema)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            filled = density.impute(X, draws, fold_in(seed, done))
        texts += [str(warning.message) for warning in caught]
        names = [column.name for column in schema.columns] if schema.named else piece.column_names
        for draw, cells in enumerate(filled if draws else filled[None], 1):
            values = {name: pa.array(line, from_pandas=True) for name, line in zip(names, cells.T, strict=True)}
            first = {_DRAW: np.full(len(cells), draw)} if draws else {}
            yield columns.make_table({**first, **{name: values.get(name, piece[name]) for name in piece.column_names}})
        done, left = done + len(piece), left + int(np.isnan(cells).any(1).sum())
    if left:
        notes.append(
            f"{left:,} of {done:,} rows still have missing cells: known cells are outside the support of the density, "
            "which is the range of the training rows with a margin (fit --margin)"
        )
    if any("effective components" in text for text in texts):
        notes.append(
            "some rows have fewer than 50 effective components given their known cells, and are filled in "
            "inaccurately; fit with more density_draws"
        )


def _split(pieces: Iterator["pa.Table"], rows: int) -> Iterator["pa.Table"]:
    """Yield pieces of a table with at most some rows; a piece without rows is kept."""
    for piece in pieces:
        for start in range(0, max(len(piece), 1), rows):
            yield piece.slice(start, rows)


def _require_rows(piece: "pa.Table", source: tables.Source | bytes) -> None:
    """Check that a table has rows."""
    if not len(piece):
        raise DataError(f"{tables.describe_source(source)} has column names and no rows; give rows to predict")


@runtime_checkable
class _GraphDensity(Protocol):
    """Density that fills in missing cells and has p-values of rows."""

    def impute(self, X: Any, n_samples: int | None = None, random_state: Any = 0) -> Any:
        """Fill in missing cells."""

    def p_values(self, X: Any) -> Any:
        """Return the p-values of rows."""


def _has_distribution(run: LoadedRun) -> bool:
    """Return True if the run has p-values of rows."""
    return isinstance(run.predictor, Predictor) and run.predictor.training is not None


def _note_unlike_rows(p: Any) -> str | None:
    """Return a note on rows unlike the training rows, if they are more than chance gives; None otherwise.

    The bounds are twice the level of the p-values, which are averages over two halves, and three standard errors.
    """
    for level in (OOD_LEVEL, 0.2 * OOD_LEVEL):
        few = int((p <= level).sum())
        expected = 2.0 * level * len(p)
        if few > expected + 3.0 * math.sqrt(expected * (1.0 - 2.0 * level)):
            return (
                f"{few:,} of {len(p):,} rows are unlike the training rows: their p-values are up to {level:g}, and at "
                f"most about {level:.0%} such rows are expected. Their predictions are extrapolations. --ood adds the "
                "p-value of each row"
            )
    return None


def _ood_p_values(run: LoadedRun, X: Any, others: Mapping[str, Any]) -> Any:
    """Return the p-values of rows, (N,)."""
    if isinstance(run.predictor, _GraphDensity):
        return run.predictor.p_values(X)
    if not isinstance(run.predictor, Predictor):
        raise DataError("p-values of rows were requested (ood), and this density has none; use a density of graphs")
    if _OOD in others:
        raise DataError(
            f"p-values of rows were requested, and a target has the name of their column, {_OOD}; rename it"
        )
    return run.predictor.ood_p_values(X)


def _predict(run: LoadedRun, X: Any, levels: Sequence[float], guarantee: str | None, by: str | None) -> dict[str, Any]:
    """Return the columns of predictions of rows, including those of conformal intervals if a guarantee is requested."""
    predictor = run.predictor
    if not isinstance(predictor, Predictor):
        log_density, error = predictor.score_samples(X, return_error=True)
        return {"log_density": log_density, "monte_carlo_error": error}
    found: dict[str, Any] = predictor.predict_dist(X).columns(run.targets, levels)
    for level in levels if guarantee else ():
        both = predictor.predict_interval(X, level, guarantee, by)
        for side, values in zip(("lower", "upper"), both, strict=True):
            name = f"{side}_{100 * level:.12g}"
            if values.ndim == 1:
                found[name] = values
            else:
                targets = run.targets or [f"y{t}" for t in range(values.shape[1])]
                found |= {f"{targets[t]}_{name}": values[:, t] for t in range(values.shape[1])}
    return found
