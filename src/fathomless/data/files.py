"""Table files: CSV and Parquet in, at once or in pieces of bounded size, and out.

What a file is, its first bytes say: its name plays no part. In CSV

- the first line holds the column names, the text is UTF-8 (a byte-order mark may stand before it);
- empty cells and the words NA, N/A, NaN, nan, null, NULL, None and ? are missing, with or without a space on either
  side. In quotes these words are text in a column of text, and missing in any other. Empty cells are always missing;
- a column whose cells are all numbers is int64, or float64 where that does not hold them: in quotes or not, spaces
  around them or not, 007 being 7, with decimal commas, marks between thousands, a currency or a per cent sign; a
  column of true and false (in any case; 1 and 0 among them) is bool; a column of ISO dates or times, with a zone
  throughout or nowhere, is timestamp[us], in UTC, and so is one of dates such as 31.12.2024, or 12/31/2024 where a
  cell tells which is the month; any other is text, stripped of surrounding spaces; and one without a value has the
  type null;
- empty lines are no rows.
"""

import contextlib
import errno
import gzip
import hashlib
import io
import lzma
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from fathomless.system import memory
from fathomless.system.errors import DataError, FathomlessError, FileError

if TYPE_CHECKING:
    import pyarrow as pa

    from fathomless.data.csv import Watched

__all__ = ["Groups", "Table", "batches", "groups", "read", "writer"]

Source: TypeAlias = str | os.PathLike[str]

_CHUNK = 1 << 20  # bytes that are read at once
_STEP = 1 << 26  # bytes of text after which the memory is looked at again
_RESERVE = 1 << 28  # bytes that must then be free
_MAGIC: Mapping[str, re.Pattern[bytes]] = {
    "parquet": re.compile(rb"PAR1(?![ -~\t\r\n])"),  # a column may be called PAR1
    "gzip": re.compile(rb"\x1f\x8b"),
    "bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
}
_FOREIGN: Mapping[str, re.Pattern[bytes]] = {
    "a zip archive or a spreadsheet (.xlsx, .ods)": re.compile(rb"PK\x03\x04"),
    "a spreadsheet (.xls)": re.compile(rb"\xd0\xcf\x11\xe0"),
    "an Arrow or Feather file": re.compile(rb"ARROW1"),
}


@dataclass(frozen=True)
class Table:
    """A table that was read, and what it was read from.

    Attributes
    ----------
    frame : pyarrow.Table
        The columns.
    sha256 : str
        Of the bytes as they were given, before any decompression.
    bytes : int
        How many they were.
    name : str
        Where they came from, in words.
    notation : mapping of str to str
        How columns of CSV write numbers and dates that are not plain, see :mod:`fathomless.data.notations`.
    """

    frame: "pa.Table"
    sha256: str
    bytes: int
    name: str
    notation: Mapping[str, str] = field(default_factory=dict)


def read(
    source: Source, *, delimiter: str = "auto", decimal: str = "auto", columns: Sequence[str] | None = None
) -> Table:
    """Read a whole table, CSV (plain, gzip, bzip2, xz or zstd) or Parquet, and find the type of every column.

    Parameters
    ----------
    source : path or "-"
        "-" is standard input; pipes are allowed.
    delimiter : str
        One character, or "tab". "auto" takes the one of comma, semicolon, tab and bar that gives the header the most
        cells.
    decimal : {"auto", ".", ","}
        The decimal mark of CSV; "auto" finds it by the cells of all columns.
    columns : sequence of str, optional
        The columns that are wanted, in this order; all if left out.

    Raises
    ------
    FileError
        If pyarrow is not installed, or the file is missing, cannot be read, is damaged, of another format, not UTF-8,
        or has rows of different lengths.
    DataError
        If there is no header, a name is empty or repeated, a wanted column or all rows are absent, or there is not
        enough memory.

    Notes
    -----
    The text of a CSV file stays in memory until its columns are typed. Types of Parquet are kept as they are. Not
    guaranteed: that a Parquet file holds what was written, where the writer left out its checksums.
    """
    name = _named(source)
    from fathomless.data.csv import Watched, check_names, check_options

    check_options(delimiter, decimal)
    if columns is not None:
        check_names(columns, "columns")
    sha = hashlib.sha256()
    with _explained(name, "cannot be read"), _opened(source) as file:
        raw = Watched(file, sha.update)
        kind, content = _recognise(raw, name)
        if kind == "parquet":
            frame, notation = _whole_parquet(_seekable(file, raw, content), columns, name), dict[str, str]()
        else:
            text = _decompressed(content, kind, name)
            frame, notation = _whole_csv(text, columns, delimiter, decimal, name)
            while raw.read(_CHUNK):  # what no decompressor asked for belongs to the fingerprint too
                pass
    if not len(frame):
        raise DataError(f"{name} has column names and no rows; give a table with at least one row")
    return Table(frame, sha.hexdigest(), raw.bytes, name, notation)


def batches(
    source: Source,
    kinds: Mapping[str, str],
    *,
    rows: int = 65536,
    delimiter: str = "auto",
    decimal: str = "auto",
    notation: Mapping[str, str] | None = None,
) -> "Iterator[pa.Table]":
    """Read a table piece by piece, with columns of known kinds; the memory does not grow with the number of rows.

    The values are those that :func:`read` finds. In CSV "numeric" columns are float64, "boolean" ones bool, "date" ones
    timestamp[us], and all others text. In Parquet numbers become float64 where they are "numeric", and text that is
    of another kind than "category" is read as in CSV; the rest keeps its type.

    Parameters
    ----------
    source, delimiter, decimal
        As in :func:`read`; "auto" allows both marks, and prefers the point.
    notation : mapping of str to str, optional
        How columns of CSV write numbers and dates, as :func:`read` has found it.
    kinds : mapping of str to {"numeric", "boolean", "category", "date"}
        What is known of some columns, which must all be there.
    rows : int
        Rows of every piece but the last.

    Yields
    ------
    pyarrow.Table
        With all columns of the file, in its order. A table without rows gives one piece without rows.

    Raises
    ------
    FileError
        As :func:`read` does.
    DataError
        As :func:`read` does, and for a cell that is not of its kind. An error comes with the piece that it is in.

    Notes
    -----
    Not guaranteed: less memory than a row group of a Parquet file takes, or than all of a Parquet file from a pipe.
    """
    name = _named(source)
    from fathomless.data.csv import COLUMN_KINDS, Watched, check_options, check_present, cut, equal_tables, with_kinds

    check_options(delimiter, decimal)
    unknown = sorted(set(kinds.values()) - set(COLUMN_KINDS))
    if unknown or rows < 1:
        raise DataError(f"kinds has {unknown}, rows is {rows}; kinds are {', '.join(COLUMN_KINDS)}, rows at least 1")
    with _explained(name, "cannot be read"), _opened(source) as file:
        raw = Watched(file)
        kind, content = _recognise(raw, name)
        pieces: Iterable[pa.RecordBatch]
        if kind == "parquet":
            found = _parquet(_seekable(file, raw, content), name)
            schema, pieces = found.schema_arrow, map(_valid, found.iter_batches(batch_size=min(rows, 65536)))
            fitted = {column: known for column, known in kinds.items() if known != "category"}
        else:
            schema, pieces = cut(_decompressed(content, kind, name), None, delimiter, name)
            fitted = dict.fromkeys(schema.names, "category") | dict(kinds)
        check_present(kinds, schema.names, name)
        start = 1
        for table in equal_tables(schema, pieces, rows):
            yield with_kinds(table, fitted, notation or {}, decimal, name, start)
            start += len(table)


@dataclass(frozen=True)
class Groups:
    """A Parquet file, whose groups of rows can be read in any order.

    Attributes
    ----------
    name : str
        Where it is.
    schema : pyarrow.Schema
        Names and types of its columns.
    sizes : tuple of int
        Rows of each group.
    footer : pyarrow.parquet.FileMetaData
        What the file says of itself.
    """

    name: str
    schema: "pa.Schema"
    sizes: tuple[int, ...]
    footer: Any

    def read(self, group: int, columns: Sequence[str], rows: int = 8192) -> "Iterator[pa.Table]":
        """Yield some columns of one group, at most so many rows at a time; raises as :func:`read` does."""
        import pyarrow as pa
        from pyarrow import parquet

        with _explained(self.name, "cannot be read"), _opened(self.name) as file:
            found = parquet.ParquetFile(pa.PythonFile(file, "r"), metadata=self.footer, pre_buffer=False)
            for batch in found.iter_batches(rows, row_groups=[group], columns=list(columns), use_threads=False):
                yield pa.Table.from_batches([_valid(batch)]).select(list(columns))


def groups(path: Source) -> Groups:
    """Look at a Parquet file; only its footer is read.

    Raises
    ------
    FileError
        As :func:`read` does.
    DataError
        If it is not Parquet, with a way to make it so, or has names that are empty or repeated.
    """
    name = _named(path)
    import pyarrow as pa

    from fathomless.data.csv import Watched

    with _explained(name, "cannot be read"), _opened(name) as file:
        if path == "-" or _recognise(Watched(file), name)[0] != "parquet":
            raise DataError(
                f"{name} is not a Parquet file, which alone can be read in any order; write it as one, piece by piece: "
                'in fathomless.data.files, batches("big.csv", kinds) reads and writer("big.parquet") writes'
            )
        file.seek(0)
        found = _parquet(pa.PythonFile(file, "r"), name)
        sizes = tuple(found.metadata.row_group(i).num_rows for i in range(found.num_row_groups))
        return Groups(name, found.schema_arrow, sizes, found.metadata)


# ----------------------------------------------------------------------------------------------- reading


def _named(place: Source, standard: str = "standard input") -> str:
    """Name a source or a target in words, once it is known that pyarrow is there."""
    name = standard if place == "-" else os.fspath(place)
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise FileError(f"{name} needs pyarrow, which is not installed: pip install 'fathomless[cli]'") from error
    return name


@contextlib.contextmanager
def _opened(source: Source) -> Iterator[IO[bytes]]:
    if source == "-":
        if sys.stdin is None:
            raise FileError("standard input is closed; give a file, or open it")
        yield sys.stdin.buffer
        return
    path = Path(source)
    if not path.exists():
        raise FileError(f"there is no file {path}; check the path")
    if path.is_dir():
        raise FileError(f"{path} is a folder; give a CSV or Parquet file")
    with open(path, "rb") as file:
        yield file


def _recognise(raw: "Watched", name: str) -> "tuple[str, io.BufferedReader[Watched]]":
    """Say what a file is, "text" if nothing else, and return it with a buffer, to be read from its start."""
    content = io.BufferedReader(raw, _CHUNK)
    ahead = content.peek()
    if not ahead:
        raise FileError(f"{name} is empty; give a CSV or Parquet table")
    if foreign := [kind for kind, magic in _FOREIGN.items() if magic.match(ahead)]:
        raise FileError(f"{name} is {foreign[0]}; write the table as CSV or Parquet")
    return next((kind for kind, magic in _MAGIC.items() if magic.match(ahead)), "text"), content


def _decompressed(content: "io.BufferedReader[Watched]", kind: str, name: str) -> "io.BufferedReader[Watched]":
    if kind == "text":
        return content
    import pyarrow as pa

    from fathomless.data.csv import Watched

    packed: Any = lzma.LZMAFile(content) if kind == "xz" else pa.CompressedInputStream(pa.PythonFile(content), kind)  # noqa: SIM115
    text = io.BufferedReader(Watched(packed), _CHUNK)
    ahead = text.peek()
    if any(magic.match(ahead) for magic in _MAGIC.values()):
        raise FileError(f"{name} is compressed and holds no CSV; decompress it first")
    return text


def _seekable(file: IO[bytes], raw: "Watched", content: "io.BufferedReader[Watched]") -> Any:
    """Return a file in which Parquet can jump: the file itself once it was watched, or all bytes left."""
    import pyarrow as pa

    if not file.seekable() or file.tell() != raw.bytes:
        return pa.BufferReader(content.read())
    while raw.read(_CHUNK):
        pass
    file.seek(0)
    return pa.PythonFile(file, "r")


def _whole_csv(
    text: Any, columns: Sequence[str] | None, delimiter: str, decimal: str, name: str
) -> "tuple[pa.Table, dict[str, str]]":
    import pyarrow as pa

    from fathomless.data.csv import cut, inferred
    from fathomless.data.notations import MARKS, mark_of

    schema, pieces = cut(text, columns, delimiter, name)
    gathered, size, asked = [], 0, 0
    for piece in pieces:
        gathered.append(piece)
        size += piece.nbytes
        if size >= asked:
            what = f"more of {name} (so far {memory.human(size)} of text)"
            memory.require(_RESERVE, what, lambda share: "give fewer rows or columns")
            asked = size + _STEP
    left = pa.Table.from_batches(gathered, schema).columns[::-1]
    del gathered
    mark = mark_of(left) if decimal == "auto" else decimal
    marks = (mark, *(other for other in MARKS if decimal == "auto" and other != mark))
    # the text of a column goes when its values are there
    found = [inferred(left.pop(), marks) for _ in schema]
    told = {column: notation for column, (_, notation) in zip(schema.names, found, strict=True) if notation}
    return pa.table([values for values, _ in found], schema.names), told


def _whole_parquet(file: Any, columns: Sequence[str] | None, name: str) -> "pa.Table":
    from fathomless.data.csv import check_present

    found = _parquet(file, name)
    wanted = found.schema_arrow.names if columns is None else list(columns)
    check_present(wanted, found.schema_arrow.names, name)
    rows = found.metadata.num_rows
    # a small file may hold one value a billion times
    what = f"{name}, with {rows} rows and {len(wanted)} columns,"
    memory.require(8.0 * rows * len(wanted), what, lambda share: "give fewer rows or columns")
    return _valid(found.read(columns=wanted).select(wanted))


def _valid(found: Any) -> Any:
    """Refuse what a damaged file may give: text that is none, offsets that lead nowhere."""
    found.validate(full=True)
    return found


def _parquet(file: Any, name: str) -> Any:
    from pyarrow import parquet

    from fathomless.data.csv import check_names

    found = parquet.ParquetFile(file, pre_buffer=False)  # else all row groups are read ahead
    check_names(found.schema_arrow.names, name)
    return found


# ------------------------------------------------------------------------------------------------ errors


@contextlib.contextmanager
def _explained(name: str, what: str) -> Iterator[None]:
    """Turn errors of the system, of pyarrow and of decompressors into one line that says what to do."""
    import pyarrow as pa

    try:
        yield
    except (FathomlessError, BrokenPipeError):
        raise
    except MemoryError as error:
        raise FileError(f"{name} {what}: there is not enough memory; give fewer rows or columns") from error
    except (OSError, pa.ArrowException, EOFError, lzma.LZMAError) as error:
        raise FileError(f"{name} {what}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    from fathomless.data.csv import short

    if isinstance(error, OSError) and error.errno:
        advice = {
            errno.ENOENT: "create that folder or choose another",
            errno.ENOSPC: "free some space or choose another disk",
            errno.EDQUOT: "your quota is used up: remove some files or choose another disk",
            errno.EFBIG: "files may not grow that large here (ulimit -f): raise the limit or choose another disk",
            errno.EROFS: "the file system is read-only: choose another folder",
            errno.EACCES: "permission is missing: change it or choose another place",
            errno.EPERM: "permission is missing: change it or choose another place",
        }.get(error.errno, "check the disk and the path")
        return f"{error.strerror or error} (errno {error.errno}); {advice}"
    return f"it is damaged ({short(str(error) or type(error).__name__, 120)}); copy or write it again"


# ----------------------------------------------------------------------------------------------- writing


@contextlib.contextmanager
def writer(target: Source) -> "Iterator[Callable[[pa.Table], None]]":
    """Write a table piece by piece; the file appears, whole, when the block ends without an exception.

    Numbers are written with as many digits as reading them back exactly takes, text in quotes, missing values as
    nothing (in a table of one column as NA, since empty lines are no rows).

    Parameters
    ----------
    target : path or "-"
        By its name ``.csv``, ``.csv.gz``, ``.parquet`` or ``.pq``. "-" is standard output, in CSV, written at once
        as the pieces come; so are devices and pipes.

    Yields
    ------
    callable
        Takes a pyarrow table; all must have the columns of the first.

    Raises
    ------
    FileError
        If the file cannot be written. What was there before is untouched, and nothing else is left behind.
    DataError
        For other names, columns that differ, columns that CSV cannot hold, and if there was no table at all.

    Notes
    -----
    Not guaranteed: two writers at once to one file. A closed pipe (``| head``) is a BrokenPipeError, as ever.
    """
    name = _named(target, "standard output")
    import pyarrow as pa

    from fathomless.data.csv import short

    encode = _encoder(name) if target != "-" else _csv_lines
    schema: pa.Schema | None = None

    def write(table: "pa.Table") -> None:
        nonlocal schema
        schema = table.schema if schema is None else schema
        if not table.schema.equals(schema):
            raise DataError(f"{name} has the columns {_columns(schema)}; a later piece has {_columns(table.schema)}")
        with _explained(name, "cannot be written"):
            try:
                put(table)
            except pa.ArrowException as error:
                raise DataError(f"{name} cannot hold {_columns(table.schema)}: {short(str(error), 120)}") from error

    with contextlib.ExitStack() as stack:
        with _explained(name, "cannot be written"):
            put = stack.enter_context(encode(stack.enter_context(_placed(target))))
        yield write
        if schema is None:
            raise DataError(f"{name} was given no table; write at least one, which may have no rows")
        with _explained(name, "cannot be written"):
            stack.close()


def _columns(schema: "pa.Schema") -> str:
    from fathomless.data.csv import some

    return some([f"{field.name} ({field.type})" for field in schema])


@contextlib.contextmanager
def _placed(target: Source) -> Iterator[IO[bytes]]:
    """Open what is to be written; a file gets its name when all is on the disk."""
    if target == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(os.path.realpath(target))  # through a link, not in its place
    if path.is_dir():
        raise FileError(f"{path} is a folder; give the name of a file")
    if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced
        with _closed(open(path, "wb")) as file:
            yield file
        return
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)
        with _closed(open(partial, "xb")) as file:  # exclusive: never through a link that someone planted
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _closed(thing: Any) -> Iterator[Any]:
    """Close something at the end; after an exception, without raising another one."""
    try:
        yield thing
    except BaseException:
        with contextlib.suppress(Exception):
            thing.close()
        raise
    thing.close()


def _encoder(name: str) -> Callable[[IO[bytes]], Any]:
    for endings, encode in (
        ((".csv",), _csv_lines),
        ((".csv.gz",), _packed_lines),
        ((".parquet", ".pq"), _parquet_pages),
    ):
        if name.lower().endswith(endings):
            return encode
    raise DataError(f"{name} ends with none of .csv, .csv.gz, .parquet and .pq; choose one, or - for standard output")


@contextlib.contextmanager
def _csv_lines(file: IO[bytes]) -> "Iterator[Callable[[pa.Table], None]]":
    from pyarrow import csv as arrow_csv

    header = True

    def put(table: "pa.Table") -> None:
        nonlocal header
        null = "NA" if table.num_columns == 1 else ""
        lines = io.BytesIO()
        arrow_csv.write_csv(table, lines, arrow_csv.WriteOptions(include_header=header, null_string=null))
        file.write(lines.getvalue())
        header = False

    yield put


@contextlib.contextmanager
def _packed_lines(file: IO[bytes]) -> "Iterator[Callable[[pa.Table], None]]":
    # neither a name nor a time: the same table gives the same bytes
    with _closed(gzip.GzipFile("", "wb", 6, file, mtime=0)) as packed, _csv_lines(packed) as put:
        yield put


@contextlib.contextmanager
def _parquet_pages(file: IO[bytes]) -> "Iterator[Callable[[pa.Table], None]]":
    from pyarrow import parquet

    with contextlib.ExitStack() as stack:
        pages = None

        def put(table: "pa.Table") -> None:
            nonlocal pages
            if pages is None:
                pages = stack.enter_context(_closed(parquet.ParquetWriter(file, table.schema)))
            pages.write_table(table)

        yield put
