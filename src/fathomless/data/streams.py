"""Tables larger than the memory: read in parts and in any order, learned from in one pass, encoded as they are read.

A :class:`Source` is opened by :func:`arrays` or :func:`parquet` and trained on by
:meth:`~fathomless.estimators.tasks.Supervised.fit_stream`. What is held in memory is a pool of encoded rows, the rows
that are held out, and one part of the file; none of it grows with the number of rows.
"""

import contextlib
import glob
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch

from fathomless.data.cells import check_missing
from fathomless.data.frames import encode, read_columns
from fathomless.data.rows import Rows, Stream, concatenate
from fathomless.data.schema import MISSING, UNSEEN, Floats, Moments, Schema, Tally, check_option, some
from fathomless.data.targets import ClassLabels, LabelTally, Target, TargetScale, TargetTally
from fathomless.system import memory
from fathomless.system.errors import DataError, FileError
from fathomless.system.masked import unmask
from fathomless.system.rng import as_generator
from fathomless.tables import files as tables
from fathomless.tables.readers import fingerprint, mapped

__all__ = ["Source", "arrays", "encoded", "files", "held_out", "learn", "parquet"]

Array: TypeAlias = npt.NDArray[Any]
File: TypeAlias = str | os.PathLike[str]

_PIECE = 8192  # rows of a Parquet file that are decoded at once
_HELD = 20_000  # rows that are held out, at most


@dataclass(frozen=True)
class Source:
    """A table that is read chunk by chunk.

    Attributes
    ----------
    name : str
        Where it comes from, in words.
    columns : tuple of str
        Names of the columns that predict; () in arrays.
    sizes : tuple of int
        Rows of each chunk.
    pool : int
        Rows that are shuffled together in training.
    pieces : callable
        Given i, yields the i-th chunk in pieces (X, y): array or data frame, and array, series or data frame.
    digest : callable
        Returns a checksum of all data; reads them.
    """

    name: str
    columns: tuple[str, ...]
    sizes: tuple[int, ...]
    pool: int
    pieces: Callable[[int], Iterator[tuple[Any, Any]]]
    digest: Callable[[], str]

    def __post_init__(self) -> None:
        if not self.rows:
            raise DataError(f"{self.name} has no rows; at least one is needed")
        if self.pool < 1:
            raise DataError(f"pool={self.pool} was given; at least 1 row is needed")

    @property
    def rows(self) -> int:
        """The number N of rows."""
        return sum(self.sizes)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Number of the first row of each chunk, and N."""
        return np.cumsum([0, *self.sizes], dtype=np.int64)

    def take(self, rows: npt.NDArray[np.int64]) -> tuple[Any, Any]:
        """Return some rows, whose numbers are given in ascending order; reads the chunks that hold one."""
        found, starts = [], self.starts
        for i in np.unique(np.searchsorted(starts, rows, "right") - 1).tolist():
            start = int(starts[i])
            for X, y in self.pieces(i):
                own = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + len(X))] - start
                found.append((X[own], y[own]) if isinstance(X, np.ndarray) else (X.take(own), y.take(own)))
                start += len(X)
        X, y = zip(*found, strict=True)
        return _together(X), _together(y)


# ------------------------------------------------------------------------------------------------- opening


def arrays(
    X: Array | File | Sequence[Array | File],
    y: Array | File | Sequence[Array | File],
    *,
    chunk: int = 2048,
    pool: int = 65536,
) -> Source:
    """Open arrays, in files or mapped into memory.

    Parameters
    ----------
    X : array of numbers, shape (N, C), or the path of a .npy file, or several of either
        Several stand for their rows, one after the other.
    y : array, shape (N,) or (N, T), path, or several
        Class labels, or numbers.
    chunk : int
        Rows that are read at once.
    pool : int
        Rows that are shuffled together in training: the more, the nearer the order is to a uniform one.

    Raises
    ------
    FileError
        If a file is missing or no .npy file of numbers.
    DataError
        For shapes that do not fit, arrays of other types, and no rows.

    Notes
    -----
    Pages of files that were mapped into memory (``np.load(path, mmap_mode="r")``, or by a path) are given back after
    each chunk, on Linux. Not guaranteed: anything about arrays that change while they are read.
    """
    inputs, targets = _opened(X), _opened(y)
    rows = sum(map(len, inputs))
    if rows != sum(map(len, targets)):
        raise DataError(f"X has {rows:,} rows and y has {sum(map(len, targets)):,}; they must agree")
    for part in inputs:
        if part.ndim != 2 or part.dtype.kind not in "biuf" or part.shape[1:] != inputs[0].shape[1:]:
            raise DataError(
                f"X has a part of shape {part.shape} and dtype {part.dtype}; numbers of shape (rows, columns) are "
                f"allowed, with as many columns in each: text, dates and categories are streamed from Parquet"
            )
    if any(part.ndim not in (1, 2) or part.shape[1:] != targets[0].shape[1:] for part in targets):
        raise DataError(
            f"y has parts of shape {some([part.shape for part in targets])}; give (rows,) or (rows, outputs)"
        )
    if chunk < 1:
        raise DataError(f"chunk={chunk} was given; at least 1 row is needed")
    sizes = tuple(min(chunk, rows - start) for start in range(0, rows, chunk))

    def pieces(i: int) -> Iterator[tuple[Any, Any]]:
        rows = slice(i * chunk, i * chunk + sizes[i])
        yield _rows_of(inputs, rows), _rows_of(targets, rows)

    def digest() -> str:
        sha = hashlib.sha256(repr([(part.dtype, part.shape) for part in (*inputs, *targets)]).encode())
        for i in range(len(sizes)):
            for part in next(pieces(i)):
                sha.update(part.tobytes())
        return sha.hexdigest()

    return Source("X", (), sizes, pool, pieces, digest)


def parquet(
    paths: File | Sequence[File], target: str | Sequence[str], *, drop: Sequence[str] = (), pool: int = 65536
) -> Source:
    """Open Parquet files as one table, whose row groups are the chunks.

    Parameters
    ----------
    paths : path, or several
        A file, a folder of ``.parquet`` files, a pattern such as ``"data/*.parquet"``, or several of these. Files
        stand for their rows, one after the other, and must have the same columns.
    target : str or sequence of str
        The column that is predicted, or several columns of numbers.
    drop : sequence of str
        Columns to leave out.
    pool : int
        Rows that are shuffled together in training; more if a row group has more.

    Raises
    ------
    FileError
        If a file is missing, empty, or damaged, or pyarrow is not installed.
    DataError
        If a file is not Parquet, lacks a column, or has columns of other types than the first; without rows, or
        without a column that predicts.

    Notes
    -----
    Types are kept as they are. Not guaranteed: less memory than a row group of encoded rows takes. Row groups of up to
    65,536 rows shuffle well; writers may make them a million rows long.
    """
    names = files(paths)
    tabled = [tables.groups(name) for name in names]
    targets = [target] if isinstance(target, str) else list(target)
    have = tabled[0].schema.names
    if absent := [name for name in (*targets, *drop) if name not in have]:
        raise DataError(f"{names[0]} has no column {absent[0]!r}; its columns are {some(have)}")
    columns = [name for name in have if name not in {*targets, *drop}]
    if not columns or not targets:
        raise DataError(f"{names[0]} has the columns {some(have)}; at least one must predict, and one be predicted")
    used = [*columns, *targets]
    for file in tabled[1:]:
        for name in used:
            if name not in file.schema.names or file.schema.field(name).type != tabled[0].schema.field(name).type:
                raise DataError(
                    f"{file.name} has no column {name!r} of type {tabled[0].schema.field(name).type}, as {names[0]} "
                    "has; write both with the same columns"
                )
    places = [(file, group) for file in tabled for group in range(len(file.sizes))]

    def pieces(i: int) -> Iterator[tuple[Any, Any]]:
        file, group = places[i]
        for table in file.read(group, used, _PIECE):
            yield table.select(columns), table.select(targets) if len(targets) > 1 else table[targets[0]]

    def digest() -> str:
        return f"{fingerprint(names)[0]} {used}"

    sizes = tuple(file.sizes[group] for file, group in places)
    return Source(names[0] if len(names) == 1 else f"{len(names)} files", tuple(columns), sizes, pool, pieces, digest)


def _opened(given: Array | File | Sequence[Array | File]) -> list[Array]:
    found: list[Array] = []
    for part in given if isinstance(given, list | tuple) else [given]:
        array = mapped(part) if isinstance(part, str | os.PathLike) else unmask(part)
        if not isinstance(array, np.ndarray) or array.ndim == 0:
            raise DataError(f"a {type(part).__name__} was given; arrays, and paths of .npy files, are allowed")
        found.append(array)
    return found


def _rows_of(parts: Sequence[Array], rows: slice) -> Array:
    """Copy rows of arrays that stand one after the other."""
    found, start, stop = [], rows.start, rows.stop
    for part in parts:
        if start < len(part) and stop > 0:
            found.append(np.array(part[max(start, 0) : stop]))
            memory.release(part)
        start, stop = start - len(part), stop - len(part)
    return found[0] if len(found) == 1 else np.concatenate(found)


def files(paths: File | Sequence[File]) -> list[str]:
    """Name the Parquet files that paths, folders and patterns stand for.

    Raises
    ------
    FileError
        If a folder holds none, or nothing fits a pattern.
    """
    names: list[str] = []
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        if Path(path).is_dir():
            found = sorted(map(str, Path(path).glob("*.parquet")))
        elif not Path(path).exists() and glob.has_magic(os.fspath(path)):
            found = sorted(glob.glob(os.fspath(path)))
        else:
            found = [os.fspath(path)]
        if not found:
            advice = "give a CSV or Parquet file, or a folder that holds .parquet files"
            what = f"is a folder; {advice}" if Path(path).is_dir() else "fits no file; check the path"
            raise FileError(f"{os.fspath(path)} {what}")
        names += found
    return names


def _together(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import pyarrow as pa

    if isinstance(parts[0], pa.Table):
        return pa.concat_tables(parts)
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)


# ------------------------------------------------------------------------------------------------ learning


def learn(
    source: Source,
    target: type[ClassLabels] | type[TargetScale],
    *,
    missing: str = "auto",
    unseen: str = "error",
    max_levels: int = 100,
) -> tuple[Schema, Target]:
    """Learn in one pass how to encode a table and its target; in two, if cells of a column lie far from all others.

    Equal to what :func:`~fathomless.data.frames.fit_schema` and :func:`~fathomless.data.targets.fit_labels` or
    :func:`~fathomless.data.targets.fit_target` learn from all rows at once: categories, classes and gaps exactly, means
    and scales up to rounding.

    Parameters
    ----------
    source : Source
        The table.
    target : type
        :class:`~fathomless.data.targets.ClassLabels` or :class:`~fathomless.data.targets.TargetScale`.
    missing, unseen, max_levels
        As in :func:`~fathomless.data.frames.fit_schema`.

    Raises
    ------
    DataError
        As those functions do, with the rows that were read; and for a column of more than 100,000 categories.
    """
    check_option("missing", missing, MISSING)
    check_option("unseen", unseen, UNSEEN)
    answers = LabelTally() if target is ClassLabels else TargetTally()
    tallies: dict[str, Tally] = {}
    framed, start = False, 0
    for i in range(len(source.sizes)):
        for X, y in source.pieces(i):
            with _located(source, start, len(X)):
                framed, columns = read_columns(X)
                for name, cells in columns.items():
                    check_missing(name, cells, missing == "impute" or (missing == "auto" and framed))
                    tallies.setdefault(name, Tally(name)).add(cells)
                answers.add(y)
            start += len(X)
    _narrow(source, tallies)
    learned = tuple(tally.column(max_levels=max_levels) for tally in tallies.values())
    return Schema(learned, framed, missing, unseen), answers.learned()


def _narrow(source: Source, tallies: Mapping[str, Tally]) -> None:
    """Read the columns again in which a few cells lie far from all others: for the moments of the others."""
    found = {name: far for name, tally in tallies.items() if (far := tally.outlying()) is not None}
    if not found:
        return
    numbers = dict.fromkeys(found, Moments())
    for i in range(len(source.sizes)):
        for X, _ in source.pieces(i):
            _, columns = read_columns(X)
            for name, far in found.items():
                values = cast(Floats, columns[name].values)[~columns[name].missing]
                numbers[name] = numbers[name].plus(values[far.inside(values)])
    for name, far in found.items():
        tallies[name].narrowed(far, numbers[name])


def held_out(rows: int, fraction: float, seed: int) -> npt.NDArray[np.int64]:
    """Choose rows to hold out: one at random from each of k equal stretches, k = ⌊N · fraction⌉, at most 20,000.

    So they come from everywhere in a file, whatever its order. Returns their numbers, ascending. Not guaranteed: that
    each class is among those that are left.
    """
    count = min(round(rows * fraction), rows - 1, _HELD)
    if count < 1:
        return np.zeros(0, dtype=np.int64)
    edges = rows * np.arange(count + 1, dtype=np.int64) // count
    places = torch.rand(count, generator=as_generator(seed), dtype=torch.float64).numpy()
    return edges[:-1] + (places * np.diff(edges)).astype(np.int64)


def encoded(
    source: Source,
    schema: Schema,
    target: Target,
    held: npt.NDArray[np.int64],
    dtype: torch.dtype,
    device: torch.device,
    digest: str = "",
) -> tuple[Stream, Rows | None]:
    """Return the rows to train on, encoded each time they are read, and the rows held out, in memory.

    Raises
    ------
    DataError
        If a pool does not fit into memory, and as :func:`~fathomless.data.frames.encode` does.
    """
    largest, width = max(source.sizes), schema.width + 1
    memory.require(
        2.0 * (source.pool + largest + len(held)) * width * dtype.itemsize,
        f"a pool of {source.pool:,} rows and chunks of up to {largest:,}, as {width:,} features,",
        lambda share: "lower pool, or write the file with row groups of fewer rows",
    )

    def rows(X: Any, y: Any, keep: Any = slice(None)) -> Rows:
        z = target.encode(y)[keep]
        return Rows(
            torch.as_tensor(encode(schema, X)[keep], dtype=dtype).to(device),
            torch.as_tensor(z, dtype=torch.int64 if z.dtype.kind == "i" else dtype).to(device),
        )

    starts = source.starts

    def read(i: int) -> Rows:
        found, start = [], int(starts[i])
        for X, y in source.pieces(i):
            own = held[np.searchsorted(held, start) : np.searchsorted(held, start + len(X))]
            with _located(source, start, len(X)):
                found.append(rows(X, y, np.delete(np.arange(len(X)), own - start)))
            start += len(X)
        return concatenate(found)

    sizes = np.diff(starts - np.searchsorted(held, starts))
    train = Stream(read, tuple(sizes.tolist()), source.pool, digest)
    if not len(held):
        return train, None
    X, y = source.take(held)
    parts = [slice(start, start + _PIECE) for start in range(0, len(held), _PIECE)]
    return train, concatenate([rows(X[part], y[part]) for part in parts])


@contextlib.contextmanager
def _located(source: Source, start: int, rows: int) -> Iterator[None]:
    """Say which rows an error is about, since its own numbers begin anew in each piece."""
    try:
        yield
    except DataError as error:
        raise DataError(f"in the rows from {start:,} to {start + rows - 1:,} of {source.name}: {error}") from error
