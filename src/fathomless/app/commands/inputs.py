"""What a fit command is given: a table in memory, or a stream of one that is larger than the memory."""

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
from fathomless.estimators.tasks import Density, Supervised
from fathomless.system import memory
from fathomless.system.errors import DataError
from fathomless.tables import files as tables
from fathomless.tables.notations import is_numeric, words
from fathomless.tables.oddities import observations
from fathomless.tables.readers import fingerprint

__all__ = ["FitRequest", "Input", "read"]

_ENOUGH = 100  # distinct values of a target, to see whether they are classes
_SEARCHED = 65536  # rows of a stream in which columns that name the rows are looked for
_COPIES = 5  # of all values, that reading, encoding and splitting a table in memory take


@dataclass(frozen=True)
class FitRequest:
    """What is asked of a table.

    Attributes
    ----------
    data : str
        A file; "-" for standard input; for a stream also a folder or a pattern.
    targets : sequence of str
        Columns that are predicted.
    task : str
        "classification", "regression", "density" (then there are no targets), or "auto".
    key, weight, groups : str or None
        Columns that name the rows, that say how often each counts, and which of them belong together.
    drop, keep : sequence of str
        Columns to leave out, and to keep though they seem to name the rows.
    form : mapping of str to object
        How the file is written: fields of :class:`fathomless.tables.csv.Form`.
    stream : bool
        Stream it in any case.
    """

    data: str
    targets: Sequence[str]
    task: str = "auto"
    key: str | None = None
    weight: str | None = None
    groups: str | None = None
    drop: Sequence[str] = ()
    keep: Sequence[str] = ()
    form: Mapping[str, Any] = field(default_factory=dict)
    stream: bool = False


@dataclass(frozen=True)
class Input:
    """A table, ready to be trained on.

    Attributes
    ----------
    name, sha256, bytes
        Of the data.
    rows, columns
        Rows with a target, and the columns that predict it.
    task : str
        "classification", "regression" or "density".
    notes : tuple of str
        What was done to the table, for the reader.
    remarks : tuple of str
        How the table was understood, for the reader.
    notation : mapping of str to str
        How its columns write numbers and dates, where that is not plain.
    names : sequence of str, or None
        What the rows are called.
    weight : ndarray of float, shape (N,), or None
        How often each row counts.
    groups : ndarray of int, shape (N,), or None
        Number of the group that each row belongs to.
    train : callable
        Fits an estimator to it.
    take : callable
        Returns X and y of some rows, whose numbers are given in ascending order; the y of a density is None.
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


def read(request: FitRequest) -> Input:
    """Look at a table; Parquet that would not fit into memory is streamed, whether asked for or not.

    Raises
    ------
    FileError, DataError
        For files that cannot be read and columns that do not fit; the message says what to do.
    """
    if request.task == "density":
        return _of_density(request)
    if not request.targets:
        raise DataError("no --target was given; name the column to predict, or give --task density, which has none")
    why = "as asked" if request.stream else _too_large(request)
    return _whole(request) if why is None else _streamed(request, why)


def _whole(request: FitRequest) -> Input:
    table, parts = _divided(request)
    task, remarks = _task(request, lambda: parts.targets)
    y = columns.answers(parts.targets, task)
    if task == "regression":
        _check_varied([y], request.targets)
    return Input(
        name=_name(request, table.name),
        sha256=table.sha256,
        bytes=table.bytes,
        rows=len(y),
        columns=tuple(parts.X.column_names),
        task=task,
        notes=(*parts.notes, *_told(table.notation)),
        remarks=remarks,
        notation=table.notation,
        names=parts.names,
        weight=parts.weight,
        groups=parts.groups,
        train=lambda estimator: cast(Supervised, estimator).fit(
            parts.X, y, sample_weight=parts.weight, groups=parts.groups
        ),
        take=lambda rows: (parts.X.take(rows), y[rows]),
    )


def _of_density(request: FitRequest) -> Input:
    """Look at a table of which no column is predicted."""
    if request.targets:
        raise DataError(f"--target {request.targets[0]} was given, and a density has no target; leave it out")
    if request.groups is not None:
        raise DataError(f"--groups {request.groups} was given, and a density deals no folds; leave it out")
    if request.stream:
        raise DataError("--stream was given, and a density needs all rows at once; leave it out")
    table, parts = _divided(request)
    return Input(
        name=_name(request, table.name),
        sha256=table.sha256,
        bytes=table.bytes,
        rows=len(parts.X),
        columns=tuple(parts.X.column_names),
        task="density",
        notes=(*parts.notes, *_told(table.notation)),
        notation=table.notation,
        weight=parts.weight,
        train=lambda estimator: cast(Density, estimator).fit(parts.X, sample_weight=parts.weight),
        take=lambda rows: (parts.X.take(rows), None),
    )


def _divided(request: FitRequest) -> tuple[tables.Table, columns.Parts]:
    drop = [*request.drop, *(name for name in (request.key, request.groups) if name is not None)]
    used = functools.partial(observations, targets=request.targets, weight=request.weight, drop=drop)
    table = tables.read(request.data, used=used, **request.form)
    parts = columns.divide(
        table.frame,
        request.targets,
        key=request.key,
        weight=request.weight,
        groups=request.groups,
        drop=request.drop,
        keep=request.keep,
        rows=None if table.used is None else table.used.nonzero()[0],
    )
    return table, replace(parts, notes=(*table.notes, *_words(request, table, parts), *parts.notes))


def _words(request: FitRequest, table: tables.Table, parts: columns.Parts) -> tuple[str, ...]:
    """Say which words stand where classes are missing: None may be one."""
    if table.used is None or "string" not in str([column.type for column in parts.targets.columns]):
        return ()
    left = (~table.used).nonzero()[0].tolist()
    found = Counter(tables.words(request.data, request.targets, left, **request.form))
    return tuple(
        f"target {', '.join(request.targets)}: {count:,} of the rows left out hold the word {word!r}, which is "
        "taken as missing; if it is a class, put it in quotes, or give it another name"
        for word, count in found.most_common()
    )


def _told(notation: Mapping[str, str]) -> tuple[str, ...]:
    """Say which columns are not written plainly."""
    named: dict[tuple[str, str], list[str]] = {}
    for column, way in notation.items():
        named.setdefault((words(way), "--decimal" if is_numeric(way) else "--dates"), []).append(column)
    return tuple(
        f"read as {what} ({option} changes that): {', '.join(names)}" for (what, option), names in named.items()
    )


def _streamed(request: FitRequest, why: str) -> Input:
    if request.weight is not None:
        raise DataError(
            f"--weight {request.weight} was given, and a stream has no weights; leave it out, or repeat rows"
        )
    if request.groups is not None:
        raise DataError(
            f"--groups {request.groups} was given, and a stream trains one network without folds; leave it out"
        )
    names = streams.files(request.data)
    have = tables.groups(names[0]).schema.names
    left = columns.roles(have, request.targets, key=request.key, drop=request.drop)
    columns.present(have, request.keep)
    some = _first_rows(names[0], [name for name in have if name not in (*request.targets, *left)])
    naming, notes = columns.identifiers(some, request.keep, some)
    left += naming
    source = streams.parquet(names, request.targets, drop=left)
    others = [*left, *source.columns[1:]]
    task, remarks = _task(request, lambda: _values(names, request.targets, others))
    if task == "regression":
        parts = _targets(names, request.targets, others)
        _check_varied((columns.answers(part, task) for part in parts), request.targets)
    sha256, size = fingerprint(names)
    return Input(
        name=_name(request, request.data),
        sha256=sha256,
        bytes=size,
        rows=source.rows,
        columns=source.columns,
        task=task,
        notes=tuple(notes),
        remarks=(f"read in {len(source.sizes):,} parts and not at once, {why}", *remarks),
        train=lambda estimator: cast(Supervised, estimator).fit_stream(source),
        take=source.take,
    )


def _first_rows(name: str, wanted: Sequence[str]) -> Any:
    """Return the first rows of a Parquet file, enough to see which columns are other in every row."""
    file, found, rows = tables.groups(name), [], 0
    for group in range(len(file.sizes)):
        for piece in file.read(group, wanted):
            found.append(piece)
            rows += len(piece)
            if rows >= _SEARCHED:
                return columns.joined(found)
    return columns.joined(found) if found else file.schema.empty_table().select(list(wanted))


def _too_large(request: FitRequest) -> str | None:
    """Say why a table must be streamed, if it must and can be."""
    if Path(request.data).is_dir():
        return "since it is a folder"
    if request.data == "-" or request.weight is not None or request.groups is not None:
        return None
    try:
        file, free = tables.groups(request.data), memory.available()
    except DataError:  # not Parquet
        return None
    need = _COPIES * 8.0 * sum(file.sizes) * len(file.schema.names)
    if free is None or need <= 0.9 * free:
        return None
    return f"since that might take {memory.human(need)} of memory, of which {memory.human(free)} are free"


def _task(request: FitRequest, targets: Callable[[], Any]) -> tuple[str, tuple[str, ...]]:
    """Return the task, and a note on why it is that one."""
    if request.task != "auto":
        return request.task, ()
    task, why = columns.task_of(targets())
    return task, (f"target {', '.join(request.targets)}: {task}, since {why} (--task changes that)",)


def _values(names: Sequence[str], targets: Sequence[str], drop: Sequence[str]) -> Any:
    """Return as many distinct values of a target as it takes to see whether they are classes."""
    seen: list[Any] = []
    for part in _targets(names, targets, drop):
        if len(targets) > 1:
            return part
        more = columns.joined([*seen, columns.tabled({targets[0]: part.column(0).unique()})])
        seen = [columns.tabled({targets[0]: more.column(0).unique()})]
        if columns.task_of(seen[0])[0] == "regression" or len(seen[0]) > _ENOUGH:
            return seen[0]
    return seen[0]


def _targets(names: Sequence[str], targets: Sequence[str], drop: Sequence[str]) -> Iterator[Any]:
    """Give the targets of a stream, piece by piece, as tables."""
    source = streams.parquet(names, targets, drop=drop)
    for i in range(len(source.sizes)):
        for _, y in source.pieces(i):
            yield y if len(targets) > 1 else columns.tabled({targets[0]: y})


def _check_varied(parts: Iterable[npt.NDArray[np.float64]], targets: Sequence[str]) -> None:
    """Refuse a target of numbers that are all the same; once all differ, no more parts are looked at."""
    low, high, rows = np.full(len(targets), np.inf), np.full(len(targets), -np.inf), 0
    for part in parts:
        values = part.reshape(len(part), len(targets))
        low, high = np.minimum(low, values.min(0, initial=np.inf)), np.maximum(high, values.max(0, initial=-np.inf))
        rows += len(values)
        if (low < high).all():
            return
    for name, least, most in zip(targets, low.tolist(), high.tolist(), strict=True):
        if rows > 1 and least == most:
            raise DataError(f"target {name!r} has the one value {least} in all {rows:,} rows; choose another column")


def _name(request: FitRequest, name: str) -> str:
    return name if request.data == "-" else Path(os.path.normpath(request.data)).name
