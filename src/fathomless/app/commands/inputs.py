"""Input of the fit command: a table in memory, or a stream of a table larger than the memory."""

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fathomless.app.commands import columns
from fathomless.data import streams
from fathomless.estimators.base import Estimator
from fathomless.estimators.tasks import BaseRegressor, Classifier, Density, Supervised
from fathomless.system import memory
from fathomless.system.errors import DataError
from fathomless.tables import files as tables
from fathomless.tables.anomalies import find_observations
from fathomless.tables.notations import describe_notation, is_numeric
from fathomless.tables.readers import hash_files

__all__ = ["FitRequest", "Input", "read"]

_ENOUGH = 100  # number of distinct values after which a stream need not be searched for more classes
_SEARCHED = 65536  # number of rows of a stream that are searched for identifiers
_COPIES = 5  # number of copies of all values in memory while a table is read, encoded and split


@dataclass(frozen=True)
class FitRequest:
    """Table and roles of its columns, as requested on the command line.

    Attributes
    ----------
    data : str
        A file; "-" for standard input; for a stream also a folder or a pattern.
    targets : sequence of str
        Target columns.
    task : str
        "classification", "regression", "density" (without targets), or "auto".
    key, weight, groups, censored : str or None
        Columns of row names, sample weights, groups and kinds of censored rows.
    drop, keep : sequence of str
        Columns to drop, and columns to keep although they look like identifiers.
    form : mapping of str to object
        Format of the file: fields of :class:`fathomless.tables.csv.Dialect`.
    stream : bool
        True to stream the table whatever its size.
    """

    data: str
    targets: Sequence[str]
    task: str = "auto"
    key: str | None = None
    weight: str | None = None
    groups: str | None = None
    censored: str | None = None
    drop: Sequence[str] = ()
    keep: Sequence[str] = ()
    form: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False


@dataclass(frozen=True)
class Input:
    """Table ready for training.

    Attributes
    ----------
    name, sha256, bytes
        Name, digest and size of the data.
    rows, columns
        Number of rows with a target, and names of the features.
    task : str
        "classification", "regression" or "density".
    notes : tuple of str
        Notes on changes of the table, such as dropped columns.
    remarks : tuple of str
        Notes on the interpretation of the table, such as the task.
    notation : mapping of str to str
        Notation of columns with other than plain numbers and dates.
    names : sequence of str, or None
        Names of the rows.
    weight : ndarray of float, shape (N,), or None
        Sample weights.
    groups : ndarray of int, shape (N,), or None
        Number of the group of each row.
    censored : ndarray, shape (N,), or None
        Kind of each row, if targets are censored.
    train : callable
        Function that fits an estimator to the table.
    take : callable
        Function that returns X and y of rows, given by their numbers in ascending order; the y of a density is None.
    classes : callable
        Function that returns the distinct values of the target of a classification, in any order.
    """

    name: str
    sha256: str
    bytes: int
    rows: int
    columns: tuple[str, ...]
    task: str
    notes: tuple[str, ...]
    train: Callable[[Estimator], object]
    take: Callable[[npt.NDArray[np.int64]], tuple[Any, Any]]
    remarks: tuple[str, ...] = ()
    notation: Mapping[str, str] = field(default_factory=dict)
    names: Sequence[str] | None = None
    weight: npt.NDArray[np.float64] | None = None
    groups: npt.NDArray[np.int64] | None = None
    censored: npt.NDArray[Any] | None = None
    classes: Callable[[], Sequence[Any]] = tuple


def read(request: FitRequest) -> Input:
    """Read a table; a Parquet table that does not fit in memory is streamed.

    Raises
    ------
    FileError, DataError
        For files that cannot be read and columns that do not fit; the message says what to do.
    """
    if request.task == "density":
        return _read_density(request)
    if not request.targets:
        raise DataError("no --target was given; name the column to predict, or give --task density, which has none")
    reason = "as requested" if request.stream else _reason_to_stream(request)
    return _read_whole(request) if reason is None else _open_stream(request, reason)


def _read_whole(request: FitRequest) -> Input:
    """Read a table into memory."""
    table, parts = _divide(request)
    task, remarks = _task(request, lambda: parts.targets)
    if request.task == "classification":
        columns.check_classes(parts.targets.column(0), request.targets[0])
    if parts.censored is not None and task != "regression":
        raise DataError(
            f"--censored {request.censored} was given for a {task}; targets of a regression can be censored: omit it, "
            "or give --task regression"
        )
    also = {} if parts.censored is None else {"censored": parts.censored}
    y = columns.target_array(parts.targets, task)
    if task == "regression":
        _check_varied([y], request.targets)
    return Input(
        name=_name(request, table.name),
        sha256=table.sha256,
        bytes=table.bytes,
        rows=len(y),
        columns=tuple(parts.X.column_names),
        task=task,
        notes=(*parts.notes, *_describe_notation(table.notation)),
        remarks=remarks,
        notation=table.notation,
        names=parts.names,
        weight=parts.weight,
        groups=parts.groups,
        censored=parts.censored,
        train=lambda estimator: cast("BaseRegressor | Classifier", estimator).fit(
            parts.X, y, sample_weight=parts.weight, groups=parts.groups, **also
        ),
        take=lambda rows: (parts.X.take(rows), y[rows]),
        classes=lambda: parts.targets.column(0).unique().to_pylist(),
    )


def _read_density(request: FitRequest) -> Input:
    """Read a table without targets into memory."""
    if request.targets:
        raise DataError(f"--target {request.targets[0]} was given, and a density has no target; omit it")
    if request.groups is not None:
        raise DataError(f"--groups {request.groups} was given, and a density is fitted without folds; omit it")
    if request.censored is not None:
        raise DataError(f"--censored {request.censored} was given, and a density has no target; omit it")
    if request.stream:
        raise DataError("--stream was given, and a density needs all rows in memory; omit it")
    table, parts = _divide(request)
    return Input(
        name=_name(request, table.name),
        sha256=table.sha256,
        bytes=table.bytes,
        rows=len(parts.X),
        columns=tuple(parts.X.column_names),
        task="density",
        notes=(*parts.notes, *_describe_notation(table.notation)),
        notation=table.notation,
        weight=parts.weight,
        train=lambda estimator: cast(Density, estimator).fit(parts.X, sample_weight=parts.weight),
        take=lambda rows: (parts.X.take(rows), None),
    )


def _divide(request: FitRequest) -> tuple[tables.Table, columns.Parts]:
    """Read a table and split it into features, targets, weights and groups."""
    others = (request.key, request.groups, request.censored)
    drop = [*request.drop, *(name for name in others if name is not None)]
    used = functools.partial(find_observations, targets=request.targets, weight=request.weight, drop=drop)
    table = tables.read(request.data, used=used, **request.form)
    parts = columns.divide(
        table.frame,
        request.targets,
        key=request.key,
        weight=request.weight,
        groups=request.groups,
        censored=request.censored,
        drop=request.drop,
        keep=request.keep,
        rows=None if table.used is None else table.used.nonzero()[0],
    )
    return table, replace(parts, notes=(*table.notes, *_note_missing_words(request, table, parts), *parts.notes))


def _note_missing_words(request: FitRequest, table: tables.Table, parts: columns.Parts) -> tuple[str, ...]:
    """Return notes on words that were read as missing classes, since a word such as None may be a class."""
    if table.used is None or "string" not in str([column.type for column in parts.targets.columns]):
        return ()
    dropped = (~table.used).nonzero()[0].tolist()
    counts = Counter(tables.find_missing_words(request.data, request.targets, dropped, **request.form))
    return tuple(
        f"target {', '.join(request.targets)}: {count:,} of the dropped rows have the word {word!r}, which is read as "
        "a missing value; if it is a class, put it in quotes, or rename it"
        for word, count in counts.most_common()
    )


def _describe_notation(notation: Mapping[str, str]) -> tuple[str, ...]:
    """Return notes on columns with other than plain numbers and dates."""
    named: dict[tuple[str, str], list[str]] = {}
    for column, way in notation.items():
        named.setdefault((describe_notation(way), "--decimal" if is_numeric(way) else "--dates"), []).append(column)
    return tuple(
        f"read as {what} ({option} changes that): {', '.join(names)}" for (what, option), names in named.items()
    )


def _open_stream(request: FitRequest, reason: str) -> Input:
    """Open a stream of a table that is read in parts."""
    if request.weight is not None:
        raise DataError(f"--weight {request.weight} was given, and a stream has no weights; omit it, or repeat rows")
    if request.groups is not None:
        raise DataError(f"--groups {request.groups} was given, and a stream trains one network without folds; omit it")
    if request.form.get("missing"):
        raise DataError(
            f"--na {','.join(request.form['missing'])} was given, and a stream has no words for missing values; "
            "omit it, or replace these words in the file"
        )
    if request.censored is not None:
        raise DataError(f"--censored {request.censored} was given, and a stream has no censored rows; omit it")
    names = streams.list_files(request.data)
    have = tables.open_row_groups(names[0]).schema.names
    dropped = columns.roles(have, request.targets, key=request.key, drop=request.drop)
    columns.check_columns(have, request.keep)
    head = _first_rows(names[0], [name for name in have if name not in (*request.targets, *dropped)])
    naming, notes = columns.find_identifiers(head, request.keep, head)
    dropped += naming
    source = streams.parquet(names, request.targets, drop=dropped)
    others = [*dropped, *source.columns[1:]]
    task, remarks = _task(request, lambda: _values(names, request.targets, others))
    if request.task == "classification":
        for part in _targets(names, request.targets, others):
            columns.check_classes(part.column(0), request.targets[0])
    if task == "regression":
        parts = _targets(names, request.targets, others)
        _check_varied((columns.target_array(part, task) for part in parts), request.targets)
    sha256, size = hash_files(names)
    return Input(
        name=_name(request, request.data),
        sha256=sha256,
        bytes=size,
        rows=source.rows,
        columns=source.columns,
        task=task,
        notes=tuple(notes),
        remarks=(f"streamed in {len(source.sizes):,} parts, {reason}", *remarks),
        train=lambda estimator: cast(Supervised, estimator).fit_stream(source),
        take=source.take,
        classes=lambda: _distinct(names, request.targets, others),
    )


def _first_rows(name: str, wanted: Sequence[str]) -> Any:
    """Return the first rows of a Parquet file, enough to recognise identifiers."""
    file = tables.open_row_groups(name)
    pieces = []
    rows = 0
    for group in range(len(file.sizes)):
        for piece in file.read(group, wanted):
            pieces.append(piece)
            rows += len(piece)
            if rows >= _SEARCHED:
                return columns.concatenate(pieces)
    return columns.concatenate(pieces) if pieces else file.schema.empty_table().select(list(wanted))


def _reason_to_stream(request: FitRequest) -> str | None:
    """Return the reason to stream a table, or None if it fits in memory or cannot be streamed."""
    if Path(request.data).is_dir():
        return "because it is a folder"
    columns_of_rows = (request.weight, request.groups, request.censored)
    if request.data == "-" or any(name is not None for name in columns_of_rows):
        return None
    try:
        file = tables.open_row_groups(request.data)
    except DataError:  # not Parquet
        return None
    free = memory.available()
    need = _COPIES * 8.0 * sum(file.sizes) * len(file.schema.names)
    if free is None or need <= 0.9 * free:
        return None
    return f"because it might need {memory.human(need)} of memory; {memory.human(free)} are free"


def _task(request: FitRequest, targets: Callable[[], Any]) -> tuple[str, tuple[str, ...]]:
    """Return the task, and a note on the reason if it was chosen automatically."""
    if request.task != "auto":
        return request.task, ()
    task, reason = columns.infer_task(targets())
    return task, (f"target {', '.join(request.targets)}: {task}, because {reason} (--task changes that)",)


def _values(names: Sequence[str], targets: Sequence[str], drop: Sequence[str]) -> Any:
    """Return enough distinct values of a target to choose the task."""
    seen: list[Any] = []
    for part in _targets(names, targets, drop):
        if len(targets) > 1:
            return part
        more = columns.concatenate([*seen, columns.make_table({targets[0]: part.column(0).unique()})])
        seen = [columns.make_table({targets[0]: more.column(0).unique()})]
        if columns.infer_task(seen[0])[0] == "regression" or len(seen[0]) > _ENOUGH:
            return seen[0]
    return seen[0]


def _targets(names: Sequence[str], targets: Sequence[str], drop: Sequence[str]) -> Iterator[Any]:
    """Yield the targets of a stream in pieces, as tables."""
    source = streams.parquet(names, targets, drop=drop)
    for i in range(len(source.sizes)):
        for _, y in source.pieces(i):
            yield y if len(targets) > 1 else columns.make_table({targets[0]: y})


def _distinct(names: Sequence[str], targets: Sequence[str], drop: Sequence[str]) -> list[Any]:
    """Return the distinct values of the first target of a stream."""
    return list({value for part in _targets(names, targets, drop) for value in part.column(0).unique().to_pylist()})


def _check_varied(parts: Iterable[npt.NDArray[np.float64]], targets: Sequence[str]) -> None:
    """Raise an error for a constant target; reading ends as soon as all targets vary."""
    low = np.full(len(targets), np.inf)
    high = np.full(len(targets), -np.inf)
    rows = 0
    for part in parts:
        values = part.reshape(len(part), len(targets))
        low, high = np.minimum(low, values.min(0, initial=np.inf)), np.maximum(high, values.max(0, initial=-np.inf))
        rows += len(values)
        if (low < high).all():
            return
    for name, least, most in zip(targets, low.tolist(), high.tolist(), strict=True):
        if rows > 1 and least == most:
            raise DataError(f"target {name!r} has the value {least} in all {rows:,} rows; choose another column")


def _name(request: FitRequest, name: str) -> str:
    return name if request.data == "-" else Path(os.path.normpath(request.data)).name
