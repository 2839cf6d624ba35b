"""Tables larger than the memory: read in parts and in any order, and encoded when they are read.

A :class:`Source` is opened by :func:`arrays` or :func:`parquet` and is the input of
:meth:`~fathomless.estimators.tasks.Supervised.fit_stream`. The memory holds a pool of encoded rows, the held-out rows,
and one part of the file; none of these grows with the number of rows.
"""

import contextlib
import glob
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch

from fathomless.data.bins import choose_bin_count
from fathomless.data.cells import check_missing
from fathomless.data.frames import encode, read_columns
from fathomless.data.rows import Rows, Stream, concatenate
from fathomless.data.schema import MISSING, NUMBERS, UNSEEN, Floats, Schema, check_option, some
from fathomless.data.tallies import Moments, Tally
from fathomless.data.targets import ClassLabels, LabelTally, Target, TargetScale, TargetTally
from fathomless.system import memory
from fathomless.system.errors import DataError, FileError
from fathomless.system.masked import unmask
from fathomless.system.rng import as_generator
from fathomless.tables import files as tables
from fathomless.tables.readers import hash_files, map_array

__all__ = ["Source", "arrays", "choose_held_out", "encode_source", "learn", "list_files", "parquet"]

Array: TypeAlias = npt.NDArray[Any]
File: TypeAlias = str | os.PathLike[str]

_PIECE = 8192  # rows of a Parquet file per decoded piece
_HELD = 20_000  # maximum number of held-out rows


@dataclass(frozen=True)
class Source:
    """Table that is read chunk by chunk.

    Attributes
    ----------
    name : str
        Description of its origin, for messages.
    columns : tuple of str
        Names of the feature columns; () for arrays.
    sizes : tuple of int
        Number of rows of each chunk.
    pool : int
        Number of rows that are shuffled together in training.
    pieces : callable
        Function of i that yields the i-th chunk in pieces (X, y): an array or data frame, and an array, series or data
        frame.
    digest : callable
        Function that reads all data and returns their checksum.
    """

    name: str
    columns: tuple[str, ...]
    sizes: tuple[int, ...]
    pool: int
    pieces: Callable[[int], Iterator[tuple[Any, Any]]]
    digest: Callable[[], str]

    def __post_init__(self) -> None:
        if not self.rows:
            raise DataError(f"{self.name} has no rows; give at least one")
        if self.pool < 1:
            raise DataError(f"pool={self.pool} was given; it must be at least 1")

    @property
    def rows(self) -> int:
        """Number N of rows."""
        return sum(self.sizes)

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """Numbers of the first rows of all chunks, followed by N."""
        return np.cumsum([0, *self.sizes], dtype=np.int64)

    def take(self, rows: npt.NDArray[np.int64]) -> tuple[Any, Any]:
        """Return the rows with the given numbers, in ascending order; chunks without such a row are not read."""
        parts = []
        starts = self.starts
        for i in np.unique(np.searchsorted(starts, rows, "right") - 1).tolist():
            start = int(starts[i])
            for X, y in self.pieces(i):
                index = rows[np.searchsorted(rows, start) : np.searchsorted(rows, start + len(X))] - start
                parts.append((X[index], y[index]) if isinstance(X, np.ndarray) else (X.take(index), y.take(index)))
                start += len(X)
        X, y = zip(*parts, strict=True)
        return _concatenate(X), _concatenate(y)


# ------------------------------------------------------------------------------------------------- opening


def arrays(
    X: Array | File | Sequence[Array | File],
    y: Array | File | Sequence[Array | File],
    *,
    chunk: int = 2048,
    pool: int = 65536,
) -> Source:
    """Open arrays from memory, memory maps or ``.npy`` files as a source.

    Parameters
    ----------
    X : array of numbers, shape (N, C), or the path of a .npy file, or several of either
        Inputs; several arrays are concatenated by rows.
    y : array, shape (N,) or (N, T), path, or several
        Class labels, or numbers.
    chunk : int
        Number of rows per read.
    pool : int
        Number of rows that are shuffled together in training; with a larger pool the order is closer to uniform.

    Raises
    ------
    FileError
        If a file is missing, or not a .npy file of numbers.
    DataError
        For shapes that do not match, arrays of other types, and arrays without rows.

    Notes
    -----
    On Linux, pages of memory-mapped files (``np.load(path, mmap_mode="r")``, or given by a path) are released after
    each chunk. Arrays must not change while they are read.
    """
    inputs, targets = _open_arrays(X), _open_arrays(y)
    rows = sum(map(len, inputs))
    if rows != sum(map(len, targets)):
        raise DataError(f"X has {rows:,} rows and y has {sum(map(len, targets)):,}; the numbers must be equal")
    for part in inputs:
        if part.ndim != 2 or part.dtype.kind not in "biuf" or part.shape[1:] != inputs[0].shape[1:]:
            raise DataError(
                f"X has a part of shape {part.shape} and dtype {part.dtype}; all parts must hold numbers, shape (rows, "
                "columns), with equally many columns: stream text, dates and categories from Parquet files"
            )
    if any(part.ndim not in (1, 2) or part.shape[1:] != targets[0].shape[1:] for part in targets):
        raise DataError(
            f"y has parts of shape {some([part.shape for part in targets])}; give (rows,) or (rows, outputs)"
        )
    if chunk < 1:
        raise DataError(f"chunk={chunk} was given; it must be at least 1")
    sizes = tuple(min(chunk, rows - start) for start in range(0, rows, chunk))

    def pieces(i: int) -> Iterator[tuple[Any, Any]]:
        rows = slice(i * chunk, i * chunk + sizes[i])
        yield _copy_rows(inputs, rows), _copy_rows(targets, rows)

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
    """Open Parquet files as one source, whose chunks are the row groups.

    Parameters
    ----------
    paths : path, or several
        A file, a folder of ``.parquet`` files, a pattern such as ``"data/*.parquet"``, or several of these. Files are
        concatenated by rows, and must have the same columns.
    target : str or sequence of str
        Target column, or several numeric target columns.
    drop : sequence of str
        Columns to leave out.
    pool : int
        Number of rows that are shuffled together in training, at least one row group.

    Raises
    ------
    FileError
        If a file is missing, empty, or damaged, or pyarrow is not installed.
    DataError
        If a file is not Parquet, lacks a column, or has a column of another type than the first file; or if there are
        no rows or no feature columns.

    Notes
    -----
    Column types are kept. The memory must hold at least one encoded row group. Row groups of up to 65,536 rows shuffle
    well; some writers make them a million rows long.
    """
    names = list_files(paths)
    tabled = [tables.open_row_groups(name) for name in names]
    targets = [target] if isinstance(target, str) else list(target)
    have = tabled[0].schema.names
    if absent := [name for name in (*targets, *drop) if name not in have]:
        raise DataError(f"{names[0]} has no column {absent[0]!r}; its columns are {some(have)}")
    columns = [name for name in have if name not in {*targets, *drop}]
    if not columns or not targets:
        raise DataError(
            f"{names[0]} has the columns {some(have)}; at least one feature column and one target column are needed"
        )
    used = [*columns, *targets]
    for file in tabled[1:]:
        for name in used:
            if name not in file.schema.names or file.schema.field(name).type != tabled[0].schema.field(name).type:
                raise DataError(
                    f"{file.name} has no column {name!r} of type {tabled[0].schema.field(name).type}, unlike "
                    f"{names[0]}; write all files with the same columns and types"
                )
    places = [(file, group) for file in tabled for group in range(len(file.sizes))]

    def pieces(i: int) -> Iterator[tuple[Any, Any]]:
        file, group = places[i]
        for table in file.read(group, used, _PIECE):
            yield table.select(columns), table.select(targets) if len(targets) > 1 else table[targets[0]]

    def digest() -> str:
        return f"{hash_files(names)[0]} {used}"

    sizes = tuple(file.sizes[group] for file, group in places)
    return Source(names[0] if len(names) == 1 else f"{len(names)} files", tuple(columns), sizes, pool, pieces, digest)


def _open_arrays(given: Array | File | Sequence[Array | File]) -> list[Array]:
    opened: list[Array] = []
    for part in given if isinstance(given, list | tuple) else [given]:
        array = map_array(part) if isinstance(part, str | os.PathLike) else unmask(part)
        if not isinstance(array, np.ndarray) or array.ndim == 0:
            raise DataError(f"a {type(part).__name__} was given; allowed are arrays and paths of .npy files")
        opened.append(array)
    return opened


def _copy_rows(parts: Sequence[Array], rows: slice) -> Array:
    """Copy a range of rows from concatenated arrays."""
    copies = []
    start, stop = rows.start, rows.stop
    for part in parts:
        if start < len(part) and stop > 0:
            copies.append(np.array(part[max(start, 0) : stop]))
            memory.release(part)
        start, stop = start - len(part), stop - len(part)
    return copies[0] if len(copies) == 1 else np.concatenate(copies)


def list_files(paths: File | Sequence[File]) -> list[str]:
    """List the Parquet files of paths, folders and patterns.

    Raises
    ------
    FileError
        If a folder has none, or a pattern matches no file.
    """
    names: list[str] = []
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        if Path(path).is_dir():
            matches = sorted(map(str, Path(path).glob("*.parquet")))
        elif not Path(path).exists() and glob.has_magic(os.fspath(path)):
            matches = sorted(glob.glob(os.fspath(path)))
        else:
            matches = [os.fspath(path)]
        if not matches:
            advice = "give a CSV or Parquet file, or a folder that holds .parquet files"
            what = f"is a folder; {advice}" if Path(path).is_dir() else "matches no file; check the path"
            raise FileError(f"{os.fspath(path)} {what}")
        names += matches
    return names


def _concatenate(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    import pyarrow as pa

    if isinstance(parts[0], pa.Table):
        return pa.concat_tables(parts)
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], parts[0].type)


# ------------------------------------------------------------------------------------------------ fitting the encoding


def learn(
    source: Source,
    target: type[ClassLabels] | type[TargetScale],
    *,
    missing: str = "auto",
    unseen: str = "warn",
    max_levels: int = 100,
    numbers: str = "plain",
) -> tuple[Schema, Target]:
    """Fit the encoding of a table and its target in one pass, or in two if a column has outliers.

    The result equals that of :func:`~fathomless.data.frames.fit_schema` and :func:`~fathomless.data.targets.fit_labels`
    or :func:`~fathomless.data.targets.fit_target` on all rows at once: exactly for categories, classes and missing
    values, up to rounding for means and scales.

    Parameters
    ----------
    source : Source
        The table.
    target : type
        :class:`~fathomless.data.targets.ClassLabels` or :class:`~fathomless.data.targets.TargetScale`.
    missing, unseen, max_levels, numbers
        As in :func:`~fathomless.data.frames.fit_schema`.

    Raises
    ------
    DataError
        As these functions do, with the numbers of the rows being read, and for a column of more than 100,000
        categories.
    """
    check_option("missing", missing, MISSING)
    check_option("unseen", unseen, UNSEEN)
    check_option("numbers", numbers, NUMBERS)
    target_tally = LabelTally() if target is ClassLabels else TargetTally()
    tallies: dict[str, Tally] = {}
    framed = False
    start = 0
    for i in range(len(source.sizes)):
        for X, y in source.pieces(i):
            with _locate_errors(source, start, len(X)):
                framed, columns = read_columns(X)
                for name, cells in columns.items():
                    check_missing(name, cells, missing == "impute" or (missing == "auto" and framed))
                    tallies.setdefault(name, Tally(name)).add(cells)
                target_tally.add(y)
            start += len(X)
    _fit_limits(source, tallies)
    numeric = sum(tally.kind == "numeric" for tally in tallies.values())
    bins = choose_bin_count(numeric) if numbers == "binned" else 0
    columns_fitted = tuple(tally.column(max_levels=max_levels, bins=bins) for tally in tallies.values())
    return Schema(columns_fitted, framed, missing, unseen), target_tally.finish()


def _fit_limits(source: Source, tallies: Mapping[str, Tally]) -> None:
    """Read columns with outliers again, to compute the moments of their other values."""
    outliers = {name: far for name, tally in tallies.items() if (far := tally.find_outliers()) is not None}
    if not outliers:
        return
    numbers = dict.fromkeys(outliers, Moments())
    for i in range(len(source.sizes)):
        for X, _ in source.pieces(i):
            _, columns = read_columns(X)
            for name, far in outliers.items():
                values = cast(Floats, columns[name].values)[~columns[name].missing]
                numbers[name] = numbers[name].plus(values[far.inside(values)])
    for name, far in outliers.items():
        tallies[name].set_limits(far, numbers[name])


def choose_held_out(rows: int, fraction: float, seed: int) -> npt.NDArray[np.int64]:
    """Choose held-out rows: one at random from each of k equal ranges of rows, k = ⌊N · fraction⌉, at most 20,000.

    The rows are thus spread over the whole file, whatever its order. Return their numbers in ascending order. The
    remaining rows may lack a class.
    """
    count = min(round(rows * fraction), rows - 1, _HELD)
    if count < 1:
        return np.zeros(0, dtype=np.int64)
    edges = rows * np.arange(count + 1, dtype=np.int64) // count
    places = torch.rand(count, generator=as_generator(seed), dtype=torch.float64).numpy()
    return edges[:-1] + (places * np.diff(edges)).astype(np.int64)


def encode_source(
    source: Source,
    schema: Schema,
    target: Target,
    held: npt.NDArray[np.int64],
    dtype: torch.dtype,
    device: torch.device,
    digest: str = "",
) -> tuple[Stream, Rows | None]:
    """Return the training rows, which are encoded at every read, and the held-out rows in memory.

    Raises
    ------
    DataError
        If a pool does not fit into memory, and for the errors of :func:`~fathomless.data.frames.encode`.
    """
    largest = max(source.sizes)
    width = schema.width + 1
    memory.require(
        2.0 * (source.pool + largest + len(held)) * width * dtype.itemsize,
        f"a pool of {source.pool:,} rows and chunks of up to {largest:,}, as {width:,} features,",
        lambda share: "reduce pool, or write the file with smaller row groups",
    )

    writable = partial(np.require, requirements="W")  # a copy of columns of Arrow, which cannot be changed

    def rows(X: Any, y: Any, keep: Any = slice(None)) -> Rows:
        z = target.encode(y)[keep]
        return Rows(
            torch.as_tensor(writable(encode(schema, X)[keep]), dtype=dtype).to(device),
            torch.as_tensor(writable(z), dtype=torch.int64 if z.dtype.kind == "i" else dtype).to(device),
        )

    starts = source.starts

    def read(i: int) -> Rows:
        parts = []
        start = int(starts[i])
        for X, y in source.pieces(i):
            excluded = held[np.searchsorted(held, start) : np.searchsorted(held, start + len(X))]
            with _locate_errors(source, start, len(X)):
                parts.append(rows(X, y, np.delete(np.arange(len(X)), excluded - start)))
            start += len(X)
        return concatenate(parts)

    sizes = np.diff(starts - np.searchsorted(held, starts))
    train = Stream(read, tuple(sizes.tolist()), source.pool, digest)
    if not len(held):
        return train, None
    X, y = source.take(held)
    parts = [slice(start, start + _PIECE) for start in range(0, len(held), _PIECE)]
    return train, concatenate([rows(X[part], y[part]) for part in parts])


@contextlib.contextmanager
def _locate_errors(source: Source, start: int, rows: int) -> Iterator[None]:
    """Add the range of rows to errors, whose row numbers start at 0 in each piece."""
    try:
        yield
    except DataError as error:
        raise DataError(f"in rows {start:,} to {start + rows - 1:,} of {source.name}: {error}") from error
