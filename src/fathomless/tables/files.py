"""Table files: CSV, JSON lines, Excel, Parquet and Feather in, at once or in pieces.

What a file is, its first bytes say: its name plays no part. In CSV

- the first line holds the column names, the text is UTF-8 (a byte-order mark may stand before it), unless told
  otherwise. A first name that is empty, as pandas writes it, is "index". A line such as sep=; may stand before the
  names and names the delimiter; a delimiter at the end of every line makes no column;
- empty cells and the words NA, N/A, n/a, #N/A, <NA>, NaN, nan, null, NULL, None and ? are missing, with or without a
  space on either side. In quotes these words are text in a column of text, and missing in any other, where na, n.a.,
  N.A., a lone point, one or two dashes and errors of a spreadsheet (#DIV/0!) are too. Empty cells are always missing;
- a column whose cells are all numbers is int64, or float64 where that does not hold them: in quotes or not, spaces
  around them or not, 007 being 7, with decimal commas, marks between thousands, a currency or a per cent sign; a
  column of true and false (in any case; 1 and 0 among them) is bool; a column of ISO dates or times, with a zone
  throughout or nowhere, is timestamp[us], in UTC, and so is one of dates such as 31.12.2024, or 12/31/2024 where a
  cell tells which is the month; any other is text, stripped of surrounding spaces; and one without a value has the
  type null;
- empty lines are no rows.

Cells of the first sheet of an Excel file are read as if they stood in CSV, and so are values of JSON lines, as if text
stood in quotes; but numbers that are no text are what they are, whatever the decimal mark of text, and a column in
which text is 007 is text. Whole numbers that int64 does not hold are text, unless float64 holds them exactly. Columns
of Parquet and Feather keep their types; their text is stripped too, and missing where it is empty.
"""

import contextlib
import errno
import hashlib
import io
import itertools
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
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from fathomless.tables.csv import Form, Watched
    from fathomless.tables.oddities import Used

__all__ = ["Groups", "Source", "Table", "batches", "explained", "groups", "named", "read", "words"]

#: A path, or "-" for the standard streams.
Source: TypeAlias = str | os.PathLike[str]

_CHUNK = 1 << 20  # bytes that are read at once
_STEP = 1 << 26  # bytes of text after which the memory is looked at again
_RESERVE = 1 << 28  # bytes that must then be free
_MAGIC: Mapping[str, re.Pattern[bytes]] = {
    "parquet": re.compile(rb"PAR1(?![ -~\t\r\n])"),  # a column may be called PAR1
    "arrow": re.compile(rb"ARROW1\0\0"),
    "sheet": re.compile(rb"PK\x03\x04"),
    "gzip": re.compile(rb"\x1f\x8b"),
    "bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
}
_FOREIGN: Mapping[str, re.Pattern[bytes]] = {
    "a spreadsheet of old (.xls)": re.compile(rb"\xd0\xcf\x11\xe0"),
    "a Feather file of version 1": re.compile(rb"FEA1"),
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
        How columns of text write numbers and dates that are not plain, see :mod:`fathomless.tables.notations`.
    used : ndarray of bool, or None
        Which rows of the file `frame` has; None if these are all.
    notes : tuple of str
        Which rows were left out, for the reader.
    """

    frame: "pa.Table"
    sha256: str
    bytes: int
    name: str
    notation: Mapping[str, str] = field(default_factory=dict)
    used: "npt.NDArray[np.bool_] | None" = None
    notes: tuple[str, ...] = ()


def read(
    source: Source,
    *,
    columns: Sequence[str] | None = None,
    used: "Callable[[pa.Table], Used] | None" = None,
    **form: Any,
) -> Table:
    """Read a whole table and find the type of every column.

    It is CSV or JSON lines (plain, gzip, bzip2, xz or zstd), Excel, Parquet or Feather.

    Parameters
    ----------
    source : path or "-"
        "-" is standard input; pipes are allowed.
    columns : sequence of str, optional
        The columns that are wanted, in this order; all if left out.
    used : callable, optional
        Given text before it has types, it says which rows are observations, see :mod:`fathomless.tables.oddities`; the
        types of columns are those of these rows, and the others are left out. Files with types are read whole.
    **form
        How CSV is written: fields of :class:`fathomless.tables.csv.Form`. Of the delimiters "auto" takes the one of
        comma, semicolon, tab and bar that gives the header the most cells; the decimal mark it finds by the cells of
        all columns.

    Raises
    ------
    FileError
        If pyarrow (of Excel, openpyxl) is not installed, or the file is missing, cannot be read, is damaged, of
        another format or encoding, or has rows of different lengths.
    DataError
        For a form that cannot be, or if there is no header, a name is empty or repeated, a wanted column or all rows
        are absent, or there is not enough memory.

    Notes
    -----
    The text of a CSV file stays in memory until its columns are typed. Types of Parquet are kept as they are. Not
    guaranteed: that a Parquet file holds what was written, where the writer left out its checksums.
    """
    name = named(source)
    from fathomless.tables.csv import Form, Watched
    from fathomless.tables.headers import check_names

    written = Form(**form)
    if columns is not None:
        check_names(columns, "columns")
    sha = hashlib.sha256()
    with explained(name, "cannot be read"), _opened(source) as file:
        raw = Watched(file, sha.update)
        kind, content = _recognise(raw, name)
        if kind in _TYPED:
            frame = _whole(_TYPED[kind](_seekable(file, raw, content, name), name), columns, written, name)
            notation, kept = dict[str, str](), None
        else:
            cells = _cells(content, kind, columns, written, name)
            frame, notation, kept = _inferred(cells, written, name, used)
            while raw.read(_CHUNK):  # what no decompressor asked for belongs to the fingerprint too
                pass
    if not len(frame):
        raise DataError(f"{name} has column names and no rows; give a table with at least one row")
    rows = None if kept is None or kept.rows.all() else kept.rows
    return Table(frame, sha.hexdigest(), raw.bytes, name, notation, rows, kept.notes if kept else ())


def batches(
    source: Source,
    kinds: Mapping[str, str],
    *,
    rows: int = 65536,
    notation: Mapping[str, str] | None = None,
    used: "Callable[[pa.Table], Used] | None" = None,
    **form: Any,
) -> "Iterator[pa.Table]":
    """Read a table piece by piece, with columns of known kinds; the memory does not grow with the number of rows.

    The values are those that :func:`read` finds. Of text "numeric" columns are float64, "boolean" ones bool, "date"
    ones timestamp[us], and all others text. In files with types numbers become float64 where they are "numeric", and
    text that is of another kind than "category" is read as in CSV; the rest keeps its type.

    Parameters
    ----------
    source, **form
        As in :func:`read`; a decimal mark of "auto" allows both, and prefers the point.
    notation : mapping of str to str, optional
        How columns of text wrote numbers and dates in another table, as :func:`read` has found it; columns of numbers
        that it lacks were plain, without units and marks between thousands.
    used : callable, optional
        As in :func:`read`; the table is read at once then. Cells of other rows need not be of their kinds.
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
        As :func:`read` does, and for a cell that is not of its kind, or is one number with a decimal point and another
        with a decimal comma where nothing tells which it is. An error comes with the piece that it is in.

    Warns
    -----
    DataWarning
        If the table has another decimal mark than the one that `notation` is of.

    Notes
    -----
    Not guaranteed: less memory than a row group of a Parquet file takes, or than all of a Parquet or Feather file from
    a pipe, and of JSON lines and Excel from anywhere.
    """
    name = named(source)
    from fathomless.tables.csv import COLUMN_KINDS, Form, Watched, equal_tables, trimmed, with_kinds
    from fathomless.tables.headers import check_present
    from fathomless.tables.known import known_of, of_used

    written = Form(**form)
    unknown = sorted(set(kinds.values()) - set(COLUMN_KINDS))
    if unknown or rows < 1:
        raise DataError(f"kinds has {unknown}, rows is {rows}; kinds are {', '.join(COLUMN_KINDS)}, rows at least 1")
    with explained(name, "cannot be read"), _opened(source) as file:
        raw = Watched(file)
        kind, content = _recognise(raw, name)
        pieces: Iterable[pa.RecordBatch]
        if kind in _TYPED:
            found = _TYPED[kind](_seekable(file, raw, content, name), name)
            _check_header(written, name)
            schema, pieces = found.schema, found.pieces(min(rows, 65536))
            fitted, delimiter = {column: known for column, known in kinds.items() if known != "category"}, ""
        else:
            schema, pieces, delimiter = _cells(content, kind, None, written, name)
            fitted = dict.fromkeys(schema.names, "category") | dict(kinds)
        check_present(kinds, schema.names, name)
        pieces = iter(pieces)
        ahead = list(itertools.islice(pieces, 1))
        known = known_of(ahead, kinds, notation, written, delimiter, name)
        if used is not None and kind not in _TYPED:
            yield of_used(_gathered(schema, itertools.chain(ahead, pieces), name), used, fitted, known, name)
            return
        start = 1
        for table in equal_tables(schema, itertools.chain(ahead, pieces), rows):
            table = trimmed(table) if kind in _TYPED else table
            yield with_kinds(table, fitted, known, name, start)
            start += len(table)


def words(source: Source, columns: Sequence[str], rows: Sequence[int], **form: Any) -> list[str]:
    """Return the words for missing values in some rows of CSV or Excel, whose numbers are given, from 0.

    Standard input has been read by then, and gives none.
    """
    import pyarrow.compute as pc

    from fathomless.tables.csv import CELL, MISSING, Form, Watched, stripped

    if source == "-":
        return []
    name, written = named(source), Form(**form)
    with explained(name, "cannot be read"), _opened(source) as file:
        kind, content = _recognise(Watched(file), name)
        if kind in _TYPED:
            return []
        schema, pieces, _ = _cells(content, kind, columns, written, name, ("",))
        found = _gathered(schema, pieces, name).take(rows)
    texts = [pc.struct_field(column, "text") if column.type == CELL else column for column in found.columns]
    return [word for column in texts for word in stripped(column, ("",)).to_pylist() if word in MISSING]


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

        from fathomless.tables.csv import trimmed

        with explained(self.name, "cannot be read"), _opened(self.name) as file:
            found = parquet.ParquetFile(pa.PythonFile(file, "r"), metadata=self.footer, pre_buffer=False)
            for batch in found.iter_batches(rows, row_groups=[group], columns=list(columns), use_threads=False):
                yield trimmed(pa.Table.from_batches([_valid(batch)]).select(list(columns)))


def groups(path: Source) -> Groups:
    """Look at a Parquet file; only its footer is read.

    Raises
    ------
    FileError
        As :func:`read` does.
    DataError
        If it is not Parquet, with a way to make it so, or has names that are empty or repeated.
    """
    name = named(path)
    import pyarrow as pa

    from fathomless.tables.csv import Watched

    with explained(name, "cannot be read"), _opened(name) as file:
        if path == "-" or _recognise(Watched(file), name)[0] != "parquet":
            raise DataError(
                f"{name} is not a Parquet file, which alone can be read in any order; write it as one, piece by piece: "
                "fathomless.tables.files.batches reads and fathomless.tables.writers.writer writes pieces"
            )
        file.seek(0)
        found = _Parquet(pa.PythonFile(file, "r"), name)
        footer = found.file.metadata
        return Groups(
            name, found.schema, tuple(footer.row_group(i).num_rows for i in range(footer.num_row_groups)), footer
        )


# ----------------------------------------------------------------------------------------------- reading


def named(place: Source, standard: str = "standard input") -> str:
    """Name a source or a target in words, once it is known that pyarrow is there.

    Raises
    ------
    FileError
        If it is not installed.
    """
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
        raise FileError(f"{path} is a folder; give a table file")
    with open(path, "rb") as file:
        yield file


def _recognise(raw: "Watched", name: str) -> "tuple[str, io.BufferedReader[Watched]]":
    """Say what a file is, "text" if nothing else, and return it with a buffer, to be read from its start."""
    content = io.BufferedReader(raw, _CHUNK)
    ahead = content.peek()
    if not ahead:
        raise FileError(f"{name} is empty; give a table, such as CSV or Parquet")
    if foreign := [kind for kind, magic in _FOREIGN.items() if magic.match(ahead)]:
        raise FileError(f"{name} is {foreign[0]}; write the table as CSV or Parquet")
    return next((kind for kind, magic in _MAGIC.items() if magic.match(ahead)), "text"), content


def _decompressed(content: "io.BufferedReader[Watched]", kind: str, name: str) -> "io.BufferedReader[Watched]":
    if kind == "text":
        return content
    import pyarrow as pa

    from fathomless.tables.csv import Watched

    packed: Any = lzma.LZMAFile(content) if kind == "xz" else pa.CompressedInputStream(pa.PythonFile(content), kind)  # noqa: SIM115
    text = io.BufferedReader(Watched(packed), _CHUNK)
    ahead = text.peek()
    if any(magic.match(ahead) for magic in _MAGIC.values()):
        raise FileError(f"{name} is compressed and holds no CSV; decompress it first")
    return text


def _seekable(file: IO[bytes], raw: "Watched", content: "io.BufferedReader[Watched]", name: str) -> Any:
    """Return a file in which Parquet can jump: the file itself once it was watched, or all bytes left."""
    import pyarrow as pa

    if not file.seekable() or file.tell() != raw.bytes:
        return pa.BufferReader(_all(content, name))
    while raw.read(_CHUNK):
        pass
    file.seek(0)
    return pa.PythonFile(file, "r")


def _all(content: "io.BufferedReader[Watched]", name: str) -> bytes:
    """Read all bytes that are left, as long as there is memory for them, and for them once more."""
    pieces, size = [], 0
    while piece := content.read(_STEP):
        pieces.append(piece)
        size += len(piece)
        what = f"more of {name} (so far {memory.human(size)})"
        memory.require(2.0 * size, what, lambda share: "give fewer rows or columns, or CSV")
    return b"".join(pieces)


def _cells(
    content: Any,
    kind: str,
    columns: Sequence[str] | None,
    form: "Form",
    name: str,
    missing: Sequence[str] | None = None,
) -> "tuple[pa.Schema, Iterator[pa.RecordBatch], str]":
    """Take a file without types apart: the names of its columns, text or cells in blocks, and the delimiter, if any."""
    from fathomless.tables import formats
    from fathomless.tables.csv import MISSING, cut, recoded

    missing = MISSING if missing is None else missing

    if kind == "sheet":
        return (*formats.sheet(_all(content, name), columns, form.header, name, missing), "")
    text = recoded(_decompressed(content, kind, name), form.encoding, name)
    if formats.is_json(text.peek()):
        _check_header(form, name)
        return (*formats.json_lines(_all(text, name), columns, name), "")
    return cut(text, columns, form, name, missing)


def _inferred(
    cells: "tuple[pa.Schema, Iterator[pa.RecordBatch], str]",
    form: "Form",
    name: str,
    used: "Callable[[pa.Table], Used] | None",
) -> "tuple[pa.Table, dict[str, str], Used | None]":
    """Find the types of text and cells, in the rows that are used."""
    import pyarrow as pa

    from fathomless.tables.arrays import together
    from fathomless.tables.csv import bare, inferred
    from fathomless.tables.notations import HEAD, MARKS, leanings, mark_of

    schema, pieces, delimiter = cells
    table = _gathered(schema, pieces, name)
    kept = used(table) if used is not None and len(table) else None
    if kept is not None and not kept.rows.all():
        table = table.filter(pa.array(kept.rows))
    left = table.columns[::-1]
    del table
    heads = together((column.slice(0, HEAD) for column in left), bare)
    mark = mark_of(heads, delimiter) if form.decimal == "auto" else form.decimal
    sure = form.decimal != "auto" or mark in leanings(heads)
    marks = (mark, *(other for other in MARKS if form.decimal == "auto" and other != mark))
    # the text of a column goes when its values are there
    found = [inferred(left.pop(), marks, form.dates, sure) for _ in schema]
    told = {column: notation for column, (_, notation) in zip(schema.names, found, strict=True) if notation}
    return pa.table([values for values, _ in found], schema.names), told, kept


def _gathered(schema: "pa.Schema", pieces: "Iterable[pa.RecordBatch]", name: str) -> "pa.Table":
    """Put pieces of a table together, as long as there is memory."""
    import pyarrow as pa

    gathered, size, asked = [], 0, 0
    for piece in pieces:
        gathered.append(piece)
        size += piece.nbytes
        if size >= asked:
            what = f"more of {name} (so far {memory.human(size)})"
            memory.require(_RESERVE, what, lambda share: "give fewer rows or columns")
            asked = size + _STEP
    return pa.Table.from_batches(gathered, schema)


def _whole(found: "_Parquet | _Arrow", columns: Sequence[str] | None, form: "Form", name: str) -> "pa.Table":
    from fathomless.tables.csv import trimmed
    from fathomless.tables.headers import check_present

    _check_header(form, name)
    wanted = found.schema.names if columns is None else list(columns)
    check_present(wanted, found.schema.names, name)
    return trimmed(found.read(wanted).select(wanted))


def _check_header(form: "Form", name: str) -> None:
    if not form.header:
        raise DataError(f"{name} names its columns itself; --no-header is for CSV and Excel: leave it out")


class _Parquet:
    """A Parquet file, and its columns."""

    def __init__(self, file: Any, name: str) -> None:
        from pyarrow import parquet

        from fathomless.tables.headers import check_names

        self.file, self.name = parquet.ParquetFile(file, pre_buffer=False), name  # else all row groups are read ahead
        self.schema = self.file.schema_arrow
        check_names(self.schema.names, name)

    def read(self, columns: Sequence[str]) -> "pa.Table":
        # a small file may hold one value a billion times
        rows = self.file.metadata.num_rows
        what = f"{self.name}, with {rows} rows and {len(columns)} columns,"
        memory.require(8.0 * rows * len(columns), what, lambda share: "give fewer rows or columns")
        return _valid(self.file.read(columns=list(columns)))

    def pieces(self, rows: int) -> "Iterator[pa.RecordBatch]":
        return map(_valid, self.file.iter_batches(batch_size=rows))


class _Arrow:
    """A Feather or Arrow file, and its columns."""

    def __init__(self, file: Any, name: str) -> None:
        from pyarrow import ipc

        from fathomless.tables.headers import check_names

        self.file, self.name = ipc.open_file(file), name
        self.schema = self.file.schema
        check_names(self.schema.names, name)

    def read(self, columns: Sequence[str]) -> "pa.Table":
        return _gathered(self.schema, self.pieces(0), self.name)

    def pieces(self, rows: int) -> "Iterator[pa.RecordBatch]":
        return (_valid(self.file.get_batch(i)) for i in range(self.file.num_record_batches))


_TYPED: Mapping[str, Callable[[Any, str], "_Parquet | _Arrow"]] = {"parquet": _Parquet, "arrow": _Arrow}


def _valid(found: Any) -> Any:
    """Refuse what a damaged file may give: text that is none, offsets that lead nowhere."""
    found.validate(full=True)
    return found


# ------------------------------------------------------------------------------------------------ errors


@contextlib.contextmanager
def explained(name: str, what: str) -> Iterator[None]:
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
    from fathomless.tables.headers import short

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
