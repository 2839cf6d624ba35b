"""What a fit command is given: a table in memory, or a stream of one that is larger than the memory."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fathomless.app import columns
from fathomless.data import files as tables
from fathomless.data import streams
from fathomless.data.readers import fingerprint
from fathomless.estimators.base import Estimator
from fathomless.system import memory
from fathomless.system.errors import DataError

__all__ = ["Asked", "Input", "read"]

_ENOUGH = 100  # distinct values of a target, to see whether they are classes
_COPIES = 5  # of all values, that reading, encoding and splitting a table in memory take


@dataclass(frozen=True)
class Asked:
    """What is asked of a table.

    Attributes
    ----------
    data : str
        A file; "-" for standard input; for a stream also a folder or a pattern.
    targets : sequence of str
        Columns that are predicted.
    task : str
        "classification", "regression", or "auto".
    key, weight : str or None
        Columns that name the rows, and that say how often each counts.
    drop : sequence of str
        Columns to leave out.
    delimiter, decimal : str
        Of CSV.
    stream : bool
        Stream it in any case.
    """

    data: str
    targets: Sequence[str]
    task: str = "auto"
    key: str | None = None
    weight: str | None = None
    drop: Sequence[str] = ()
    delimiter: str = "auto"
    decimal: str = "."
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
        "classification" or "regression".
    notes : tuple of str
        What was done to the table, for the reader.
    train : callable
        Fits an estimator to it.
    take : callable
        Returns X and y of some rows, whose numbers are given in ascending order.
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


def read(asked: Asked) -> Input:
    """Look at a table; Parquet that would not fit into memory is streamed, whether asked or not.

    Raises
    ------
    FileError, DataError
        For files that cannot be read and columns that do not fit; the message says what to do.
    """
    why = "as asked" if asked.stream else _too_large(asked)
    return _whole(asked) if why is None else _streamed(asked, why)


def _whole(asked: Asked) -> Input:
    table = tables.read(asked.data, delimiter=asked.delimiter, decimal=asked.decimal)
    parts = columns.divide(table.frame, asked.targets, key=asked.key, weight=asked.weight, drop=asked.drop)
    task, notes = _task(asked, lambda: parts.targets)
    y = columns.answers(parts.targets, task)
    return Input(
        name=_name(asked, table.name),
        sha256=table.sha256,
        bytes=table.bytes,
        rows=len(y),
        columns=tuple(parts.X.column_names),
        task=task,
        notes=(*notes, *parts.notes),
        train=lambda estimator: estimator.fit(parts.X, y, sample_weight=parts.weight),
        take=lambda rows: (parts.X.take(rows), y[rows]),
    )


def _streamed(asked: Asked, why: str) -> Input:
    if asked.weight is not None:
        raise DataError(f"--weight {asked.weight} was given, and a stream has no weights; leave it out, or repeat rows")
    names = streams.files(asked.data)
    have = tables.groups(names[0]).schema.names
    left = columns.roles(have, asked.targets, key=asked.key, drop=asked.drop)
    source = streams.parquet(names, asked.targets, drop=left)
    task, notes = _task(asked, lambda: _values(names, asked.targets, [*left, *source.columns[1:]]))
    sha256, size = fingerprint(names)
    return Input(
        name=_name(asked, asked.data),
        sha256=sha256,
        bytes=size,
        rows=source.rows,
        columns=source.columns,
        task=task,
        notes=(f"read in {len(source.sizes):,} parts and not at once, {why}", *notes),
        train=lambda estimator: estimator.fit_stream(source),
        take=source.take,
    )


def _too_large(asked: Asked) -> str | None:
    """Say why a table must be streamed, if it must and can be."""
    if Path(asked.data).is_dir():
        return "since it is a folder"
    if asked.data == "-" or asked.weight is not None:
        return None
    try:
        file, free = tables.groups(asked.data), memory.available()
    except DataError:  # not Parquet
        return None
    need = _COPIES * 8.0 * sum(file.sizes) * len(file.schema.names)
    if free is None or need <= 0.9 * free:
        return None
    return f"since that might take {memory.human(need)} of memory, of which {memory.human(free)} are free"


def _task(asked: Asked, targets: Callable[[], Any]) -> tuple[str, tuple[str, ...]]:
    """Return the task, and a note on why it is that one."""
    if asked.task != "auto":
        return asked.task, ()
    task, why = columns.task_of(targets())
    return task, (f"target {', '.join(asked.targets)}: {task}, since {why} (--task changes that)",)


def _values(names: Sequence[str], targets: Sequence[str], drop: Sequence[str]) -> Any:
    """Return as many distinct values of a target as it takes to see whether they are classes."""
    source = streams.parquet(names, targets, drop=drop)
    seen: list[Any] = []
    for i in range(len(source.sizes)):
        for _, y in source.pieces(i):
            if len(targets) > 1:
                return y
            more = columns.joined([*seen, columns.tabled({targets[0]: y.unique()})])
            seen = [columns.tabled({targets[0]: more.column(0).unique()})]
            if columns.task_of(seen[0])[0] == "regression" or len(seen[0]) > _ENOUGH:
                return seen[0]
    return seen[0]


def _name(asked: Asked, name: str) -> str:
    return name if asked.data == "-" else Path(os.path.normpath(asked.data)).name
