"""Reading of table files: CSV, JSON lines, Excel, Parquet and Feather, at once or in pieces.

The format is detected from the first bytes of a file; its name is ignored. CSV files follow these rules:

- Header. The first line holds the column names, unless an option says otherwise. An empty first name, as pandas writes
  it, becomes "index". A line such as sep=; before the names sets the delimiter. A delimiter at the end of every line
  makes no column.
- Encoding. The text is UTF-8, with or without a byte-order mark, unless an option says otherwise.
- Missing values. Empty cells and the words NA, N/A, n/a, #N/A, <NA>, NaN, nan, null, NULL, None and ? are missing, with
  or without a space on either side. In quotes, these words are text in a text column and missing in all other columns.
  Columns that are not text have more such words: na, n.a., N.A., a lone point, one or two dashes, and spreadsheet
  errors such as #DIV/0!. Empty cells are always missing.
- Numbers. A column whose cells are all numbers is int64, or float64 if int64 cannot hold them. Quotes, surrounding
  spaces, leading zeros (007 is 7), decimal commas, thousands separators, a currency and a per cent sign are allowed.
- Booleans. A column of true and false, in any case, with 1 and 0 allowed, is bool.
- Dates. A column of ISO dates or times is timestamp[us], or timestamp[us, tz=UTC] if all cells have a time zone. Dates
  such as 31.12.2024, and 12/31/2024 if a cell determines which number is the month, are timestamp[us].
- All other columns are text, stripped of surrounding spaces. A column without values has the type null.
- Empty lines are skipped.

Cells of the first sheet of an Excel file follow the same rules, and so do values of JSON lines, whose strings count as
quoted. Typed numbers keep their value whatever the decimal mark of the text, and a column with the text 007 is text.
Integers beyond int64 are text, unless float64 represents them exactly. Columns of Parquet and Feather keep their types;
their text is stripped, and missing if it is empty.
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
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from fathomless.system import memory
from fathomless.system.errors import DataError, DataWarning, FathomlessError, FileError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from fathomless.tables.anomalies import UsedRows
    from fathomless.tables.csv import Dialect, TeeReader

__all__ = [
    "RowGroups",
    "Source",
    "Table",
    "batches",
    "describe_source",
    "explain_errors",
    "find_missing_words",
    "keep_source",
    "open_row_groups",
    "read",
]

#: A path, or "-" for the standard streams.
Source: TypeAlias = str | os.PathLike[str]

_CHUNK = 1 << 20  # bytes per read
_STEP = 1 << 26  # bytes of text between two checks of the free memory
_RESERVE = 1 << 28  # bytes that must be free at each check
_MAGIC: Mapping[str, re.Pattern[bytes]] = {
    "parquet": re.compile(rb"PAR1(?![ -~\t\r\n])"),  # a CSV column may be named PAR1
    "arrow": re.compile(rb"ARROW1\0\0"),
    "sheet": re.compile(rb"PK\x03\x04"),
    "gzip": re.compile(rb"\x1f\x8b"),
    "bz2": re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
    "zstd": re.compile(rb"\x28\xb5\x2f\xfd"),
    "xz": re.compile(rb"\xfd7zXZ\x00"),
}
_FOREIGN: Mapping[str, re.Pattern[bytes]] = {
    "an old Excel spreadsheet (.xls)": re.compile(rb"\xd0\xcf\x11\xe0"),
    "a Feather file of version 1": re.compile(rb"FEA1"),
}


@dataclass(frozen=True)
class Table:
    """Table read from a file, with its origin.

    Attributes
    ----------
    frame : pyarrow.Table
        The columns.
    sha256 : str
        Checksum of the bytes before decompression.
    bytes : int
        Number of these bytes.
    name : str
        Path of the file, or "standard input".
    notation : mapping of str to str
        Notation of the text columns whose numbers or dates are not plain, see :mod:`fathomless.tables.notations`.
    used : ndarray of bool, or None
        Mask of the rows of the file that are in `frame`; None for all rows.
    notes : tuple of str
        Messages about dropped rows.
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
    used: "Callable[[pa.Table], UsedRows] | None" = None,
    **form: Any,
) -> Table:
    """Read a whole table and infer the type of every column.

    Formats are CSV and JSON lines (plain, gzip, bzip2, xz or zstd), Excel, Parquet and Feather.

    Parameters
    ----------
    source : path or "-"
        "-" is standard input; pipes are allowed.
    columns : sequence of str, optional
        Names of the requested columns, in this order; all by default.
    used : callable, optional
        Function of the untyped text table that returns which rows are observations, see
        :mod:`fathomless.tables.anomalies`. Types are inferred from these rows; other rows are dropped. It is not called
        for typed files (Parquet, Feather).
    **form
        Format of CSV: fields of :class:`fathomless.tables.csv.Dialect`. The delimiter "auto" is the one of comma,
        semicolon, tab and bar that gives the header the most cells. The decimal mark "auto" is inferred from the cells
        of all columns.

    Raises
    ------
    FileError
        If pyarrow (or openpyxl, for Excel) is not installed, or the file is missing, unreadable, damaged, of another
        format or encoding, or has rows of different lengths.
    DataError
        If a field of the format is not allowed, there is no header or no row, a name is empty or repeated, a requested
        column is absent, or there is not enough memory.

    Notes
    -----
    The text of a CSV file stays in memory until its columns have types. Damage to a Parquet file is not detected if the
    file has no checksums.
    """
    name = describe_source(source)
    from fathomless.tables.csv import Dialect, TeeReader
    from fathomless.tables.headers import check_names

    written = Dialect(**form)
    if columns is not None:
        check_names(columns, "columns")
    sha = hashlib.sha256()
    with explain_errors(name, "cannot be read"), _open(source) as file:
        raw = TeeReader(file, sha.update)
        kind, content = _detect_format(raw, name)
        if kind in _TYPED:
            frame = _read_typed(_TYPED[kind](_make_seekable(file, raw, content, name), name), columns, written, name)
            notation, kept, doubts = dict[str, str](), None, tuple[str, ...]()
        else:
            schema, pieces, delimiter, notes = _read_cells(content, kind, columns, written, name)
            frame, notation, kept, doubts = _infer_types(schema, pieces, delimiter, written, name, used)
            doubts += notes
            while raw.read(_CHUNK):  # the checksum includes bytes that the decompressor did not read
                pass
    if not len(frame):
        raise DataError(f"{name} has a header but no rows; give a table with at least one row")
    rows = None if kept is None or kept.rows.all() else kept.rows
    return Table(frame, sha.hexdigest(), raw.bytes, name, notation, rows, (*doubts, *(kept.notes if kept else ())))


def batches(
    source: Source | bytes,
    kinds: Mapping[str, str],
    *,
    rows: int = 65536,
    notation: Mapping[str, str] | None = None,
    used: "Callable[[pa.Table], UsedRows] | None" = None,
    **form: Any,
) -> "Iterator[pa.Table]":
    """Read a table piece by piece, with columns of known kinds; memory use does not grow with the number of rows.

    The values equal those of :func:`read`. In text formats, "numeric" columns become float64, "boolean" columns bool,
    "date" columns timestamp[us], and all others text. In typed files, numbers of "numeric" columns become float64, and
    text of a kind other than "category" is parsed as in CSV; all other columns keep their types.

    Parameters
    ----------
    source : path, "-" or bytes
        As in :func:`read`, or the content of a file.
    **form
        As in :func:`read`; the decimal mark "auto" allows both marks and prefers the point.
    notation : mapping of str to str, optional
        Notation of the text columns of the training table, as found by :func:`read`. Numeric columns without an entry
        were plain there, without units and thousands separators.
    used : callable, optional
        As in :func:`read`; the table is then read at once. Dropped rows may have cells of other kinds.
    kinds : mapping of str to {"numeric", "boolean", "category", "date"}
        Kinds of some columns, all of which must be present.
    rows : int
        Number of rows of every piece but the last.

    Yields
    ------
    pyarrow.Table
        Table with all columns of the file, in their order. A table without rows yields one piece without rows.

    Raises
    ------
    FileError
        As :func:`read` does.
    DataError
        As :func:`read` does, and if a cell is not of the kind of its column, or may be read with either decimal mark
        and no other cell determines the mark. The error is raised when its piece is read.

    Warns
    -----
    DataWarning
        If the table has another decimal mark than `notation`, or merged cells.

    Notes
    -----
    Memory must hold at least a row group of a Parquet file, the whole of a Parquet or Feather file from a pipe, and the
    whole of a JSON lines or Excel file.
    """
    name = describe_source(source)
    from fathomless.tables.csv import (
        COLUMN_KINDS,
        Dialect,
        TeeReader,
        blank_words,
        cast_columns,
        regroup,
        strip_text_columns,
    )
    from fathomless.tables.headers import check_present
    from fathomless.tables.rules import cast_used_rows, find_rules

    written = Dialect(**form)
    unknown = sorted(set(kinds.values()) - set(COLUMN_KINDS))
    if unknown or rows < 1:
        raise DataError(
            f"kinds has {unknown}, rows is {rows}; allowed kinds are {', '.join(COLUMN_KINDS)}, and rows at least 1"
        )
    with explain_errors(name, "cannot be read"), _open(source) as file:
        raw = TeeReader(file)
        kind, content = _detect_format(raw, name)
        pieces: Iterable[pa.RecordBatch]
        if kind in _TYPED:
            typed = _TYPED[kind](_make_seekable(file, raw, content, name), name)
            _check_header(written, name)
            schema = typed.schema
            pieces = typed.pieces(min(rows, 65536))
            fitted = {column: known for column, known in kinds.items() if known != "category"}
            delimiter = ""
        else:
            schema, pieces, delimiter, notes = _read_cells(content, kind, None, written, name)
            for note in notes:
                warnings.warn(f"{name}: {note}", DataWarning, stacklevel=3)
            fitted = dict.fromkeys(schema.names, "category") | dict(kinds)
        check_present(kinds, schema.names, name)
        pieces = iter(pieces)
        ahead = list(itertools.islice(pieces, 1))
        known = find_rules(ahead, kinds, notation, written, delimiter, name)
        if used is not None and kind not in _TYPED:
            yield cast_used_rows(_gather(schema, itertools.chain(ahead, pieces), name), used, fitted, known, name)
            return
        start = 1
        for table in regroup(schema, itertools.chain(ahead, pieces), rows):
            table = blank_words(strip_text_columns(table), written.missing) if kind in _TYPED else table
            yield cast_columns(table, fitted, known, name, start)
            start += len(table)


def find_missing_words(source: Source, columns: Sequence[str], rows: Sequence[int], **form: Any) -> list[str]:
    """Return the words for missing values in the given rows, counted from 0, of a CSV or Excel file.

    Return none for standard input, which cannot be read twice.
    """
    import pyarrow.compute as pc

    from fathomless.tables.csv import CELL, MISSING, Dialect, TeeReader, strip_text

    if source == "-":
        return []
    name = describe_source(source)
    written = Dialect(**form)
    with explain_errors(name, "cannot be read"), _open(source) as file:
        kind, content = _detect_format(TeeReader(file), name)
        if kind in _TYPED:
            return []
        schema, pieces, *_ = _read_cells(content, kind, columns, written, name, ("",))
        table = _gather(schema, pieces, name).take(rows)
    texts = [pc.struct_field(column, "text") if column.type == CELL else column for column in table.columns]
    return [word for column in texts for word in strip_text(column, ("",)).to_pylist() if word in MISSING]


@dataclass(frozen=True)
class RowGroups:
    """Parquet file whose row groups can be read in any order.

    Attributes
    ----------
    name : str
        Path of the file.
    schema : pyarrow.Schema
        Names and types of the columns.
    sizes : tuple of int
        Number of rows of each row group.
    footer : pyarrow.parquet.FileMetaData
        Metadata of the file.
    """

    name: str
    schema: "pa.Schema"
    sizes: tuple[int, ...]
    footer: Any

    def read(self, group: int, columns: Sequence[str], rows: int = 8192) -> "Iterator[pa.Table]":
        """Yield columns of one row group, at most `rows` rows at a time; raise errors as :func:`read` does."""
        import pyarrow as pa
        from pyarrow import parquet

        from fathomless.tables.csv import strip_text_columns

        with explain_errors(self.name, "cannot be read"), _open(self.name) as file:
            reader = parquet.ParquetFile(pa.PythonFile(file, "r"), metadata=self.footer, pre_buffer=False)
            for batch in reader.iter_batches(rows, row_groups=[group], columns=list(columns), use_threads=False):
                yield strip_text_columns(pa.Table.from_batches([_validate(batch)]).select(list(columns)))


def open_row_groups(path: Source) -> RowGroups:
    """Read the footer of a Parquet file.

    Raises
    ------
    FileError
        As :func:`read` does.
    DataError
        If the file is not Parquet (the message says how to convert it), or a name is empty or repeated.
    """
    name = describe_source(path)
    import pyarrow as pa

    from fathomless.tables.csv import TeeReader

    with explain_errors(name, "cannot be read"), _open(name) as file:
        if path == "-" or _detect_format(TeeReader(file), name)[0] != "parquet":
            raise DataError(
                f"{name} is not a Parquet file, and only Parquet can be read in any order; convert it piece by piece: "
                "fathomless.tables.files.batches reads pieces, and fathomless.tables.writers.writer writes them"
            )
        file.seek(0)
        opened = _Parquet(pa.PythonFile(file, "r"), name)
        footer = opened.file.metadata
        sizes = tuple(footer.row_group(i).num_rows for i in range(footer.num_row_groups))
        return RowGroups(name, opened.schema, sizes, footer)


# ----------------------------------------------------------------------------------------------- reading


def describe_source(place: Source | bytes, standard: str = "standard input") -> str:
    """Return the name of a source or a target for messages, and check that pyarrow is installed.

    The content of a file is "the table".

    Raises
    ------
    FileError
        If pyarrow is not installed.
    """
    name = "the table" if isinstance(place, bytes) else standard if place == "-" else os.fspath(place)
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise FileError(f"{name} needs pyarrow, which is not installed: pip install 'fathomless[cli]'") from error
    return name


def keep_source(source: Source) -> Source | bytes:
    """Return a source that can be read several times: the content of standard input or a pipe, or the given name."""
    name = os.fspath(source)
    if name != "-" and not Path(name).is_fifo():
        return source
    with explain_errors(describe_source(source), "cannot be read"), _open(source) as file:
        return file.read()


@contextlib.contextmanager
def _open(source: Source | bytes) -> Iterator[IO[bytes]]:
    if isinstance(source, bytes):
        yield io.BytesIO(source)
        return
    if source == "-":
        if sys.stdin is None:
            raise FileError("standard input is closed; give a file")
        yield sys.stdin.buffer
        return
    path = Path(source)
    if not path.exists():
        raise FileError(f"there is no file {path}; check the path")
    if path.is_dir():
        raise FileError(f"{path} is a folder; give a table file")
    with open(path, "rb") as file:
        yield file


def _detect_format(raw: "TeeReader", name: str) -> "tuple[str, io.BufferedReader[TeeReader]]":
    """Detect the format of a file, "text" by default; return it with a buffer that begins at the start of the file."""
    content = io.BufferedReader(raw, _CHUNK)
    ahead = content.peek()
    if not ahead:
        raise FileError(f"{name} is empty; give a table, such as CSV or Parquet")
    if foreign := [kind for kind, magic in _FOREIGN.items() if magic.match(ahead)]:
        raise FileError(f"{name} is {foreign[0]}; write the table as CSV or Parquet")
    return next((kind for kind, magic in _MAGIC.items() if magic.match(ahead)), "text"), content


def _decompress(content: "io.BufferedReader[TeeReader]", kind: str, name: str) -> "io.BufferedReader[TeeReader]":
    if kind == "text":
        return content
    import pyarrow as pa

    from fathomless.tables.csv import TeeReader

    packed: Any = lzma.LZMAFile(content) if kind == "xz" else pa.CompressedInputStream(pa.PythonFile(content), kind)  # noqa: SIM115
    text = io.BufferedReader(TeeReader(packed), _CHUNK)
    ahead = text.peek()
    if any(magic.match(ahead) for magic in _MAGIC.values()):
        raise FileError(f"{name} is compressed but does not contain CSV or JSON lines; decompress it first")
    return text


def _make_seekable(file: IO[bytes], raw: "TeeReader", content: "io.BufferedReader[TeeReader]", name: str) -> Any:
    """Return a seekable file for Parquet: the file itself after it was read once, or all remaining bytes in memory."""
    import pyarrow as pa

    if not file.seekable() or file.tell() != raw.bytes:
        return pa.BufferReader(_read_all(content, name))
    while raw.read(_CHUNK):
        pass
    file.seek(0)
    return pa.PythonFile(file, "r")


def _read_all(content: "io.BufferedReader[TeeReader]", name: str) -> bytes:
    """Read all remaining bytes while there is memory for two copies of them."""
    pieces = []
    size = 0
    while piece := content.read(_STEP):
        pieces.append(piece)
        size += len(piece)
        what = f"more of {name} (so far {memory.human(size)})"
        memory.require(2.0 * size, what, lambda share: "give fewer rows or columns, or CSV")
    return b"".join(pieces)


def _read_cells(
    content: Any,
    kind: str,
    columns: Sequence[str] | None,
    form: "Dialect",
    name: str,
    missing: Sequence[str] | None = None,
) -> "tuple[pa.Schema, Iterator[pa.RecordBatch], str, tuple[str, ...]]":
    """Read an untyped file as a schema, record batches of text or cells, the delimiter or "", and notes."""
    from fathomless.tables.csv import MISSING, blank_words

    words = form.missing if missing is None else ()
    given = MISSING if missing is None else missing
    schema, pieces, delimiter, notes = _split(content, kind, columns, form, name, given)
    return schema, (blank_words(piece, words) for piece in pieces), delimiter, notes


def _split(
    content: Any, kind: str, columns: Sequence[str] | None, form: "Dialect", name: str, missing: Sequence[str]
) -> "tuple[pa.Schema, Iterator[pa.RecordBatch], str, tuple[str, ...]]":
    """Split an untyped file into cells; those of CSV and Excel that are one of the words of `missing` are missing."""
    from fathomless.tables import formats
    from fathomless.tables.csv import decode, split_cells

    if kind == "sheet":
        schema, pieces, notes = formats.read_sheet(_read_all(content, name), columns, form.header, name, missing)
        return schema, pieces, "", notes
    text = decode(_decompress(content, kind, name), form.encoding, name)
    if formats.is_json(text.peek()):
        _check_header(form, name)
        return *formats.read_json_lines(_read_all(text, name), columns, name), "", ()
    return *split_cells(text, columns, form, name, missing), ()


def _infer_types(
    schema: "pa.Schema",
    pieces: "Iterator[pa.RecordBatch]",
    delimiter: str,
    form: "Dialect",
    name: str,
    used: "Callable[[pa.Table], UsedRows] | None",
) -> "tuple[pa.Table, dict[str, str], UsedRows | None, tuple[str, ...]]":
    """Infer the types of text columns from the rows that are used; return also notes on numbers in doubt."""
    import pyarrow as pa

    from fathomless.tables.arrays import map_columns
    from fathomless.tables.csv import infer_column, strip_missing
    from fathomless.tables.notations import HEAD, MARKS, infer_column_marks, infer_decimal_mark, may_be_grouped

    table = _gather(schema, pieces, name)
    kept = used(table) if used is not None and len(table) else None
    if kept is not None and not kept.rows.all():
        table = table.filter(pa.array(kept.rows))
    remaining = table.columns[::-1]
    del table
    heads = map_columns((column.slice(0, HEAD) for column in remaining), strip_missing)
    mark = infer_decimal_mark(heads, delimiter) if form.decimal == "auto" else form.decimal
    sure = form.decimal != "auto" or mark in infer_column_marks(heads)
    marks = (mark, *(other for other in MARKS if form.decimal == "auto" and other != mark))
    read = heads if form.decimal == "auto" and mark == "." else []
    doubtful = [column for column, head in zip(schema.names[::-1], read, strict=False) if may_be_grouped(head)]
    doubts = (_note_on_points(doubtful[::-1]),) if doubtful else ()
    # popping frees the text of each column as soon as its values exist
    results = [infer_column(remaining.pop(), marks, form.dates, sure) for _ in schema]
    notation = {column: notation for column, (_, notation) in zip(schema.names, results, strict=True) if notation}
    return pa.table([values for values, _ in results], schema.names), notation, kept, doubts


def _note_on_points(columns: Sequence[str]) -> str:
    """Return the note on columns whose points may be thousands separators."""
    return (
        f"read with decimal points: {', '.join(columns)}; every point is followed by three digits, and the other "
        "numbers are whole and below 1,000, as with thousands separators (--decimal , reads them so)"
    )


def _gather(schema: "pa.Schema", pieces: "Iterable[pa.RecordBatch]", name: str) -> "pa.Table":
    """Concatenate pieces of a table while there is memory."""
    import pyarrow as pa

    gathered = []
    size = 0
    next_check = 0
    for piece in pieces:
        gathered.append(piece)
        size += piece.nbytes
        if size >= next_check:
            what = f"more of {name} (so far {memory.human(size)})"
            memory.require(_RESERVE, what, lambda share: "give fewer rows or columns")
            next_check = size + _STEP
    return pa.Table.from_batches(gathered, schema)


def _read_typed(opened: "_Parquet | _Arrow", columns: Sequence[str] | None, form: "Dialect", name: str) -> "pa.Table":
    from fathomless.tables.csv import blank_words, strip_text_columns
    from fathomless.tables.headers import check_present

    _check_header(form, name)
    wanted = opened.schema.names if columns is None else list(columns)
    check_present(wanted, opened.schema.names, name)
    return blank_words(strip_text_columns(opened.read(wanted).select(wanted)), form.missing)


def _check_header(form: "Dialect", name: str) -> None:
    if not form.header:
        raise DataError(f"{name} stores its column names; omit --no-header, which is for CSV and Excel")


class _Parquet:
    """Open Parquet file."""

    def __init__(self, file: Any, name: str) -> None:
        from pyarrow import parquet

        from fathomless.tables.headers import check_names

        self.file = parquet.ParquetFile(file, pre_buffer=False)  # pre-buffering would read all row groups ahead
        self.name = name
        self.schema = self.file.schema_arrow
        check_names(self.schema.names, name)

    def read(self, columns: Sequence[str]) -> "pa.Table":
        # a small file may hold one value a billion times, so its size says little about the memory
        rows = self.file.metadata.num_rows
        what = f"{self.name}, with {rows} rows and {len(columns)} columns,"
        memory.require(8.0 * rows * len(columns), what, lambda share: "give fewer rows or columns")
        return _validate(self.file.read(columns=list(columns)))

    def pieces(self, rows: int) -> "Iterator[pa.RecordBatch]":
        return map(_validate, self.file.iter_batches(batch_size=rows))


class _Arrow:
    """Open Feather or Arrow file."""

    def __init__(self, file: Any, name: str) -> None:
        from pyarrow import ipc

        from fathomless.tables.headers import check_names

        self.file = ipc.open_file(file)
        self.name = name
        self.schema = self.file.schema
        check_names(self.schema.names, name)

    def read(self, columns: Sequence[str]) -> "pa.Table":
        return _gather(self.schema, self.pieces(0), self.name)

    def pieces(self, rows: int) -> "Iterator[pa.RecordBatch]":
        return (_validate(self.file.get_batch(i)) for i in range(self.file.num_record_batches))


_TYPED: Mapping[str, Callable[[Any, str], "_Parquet | _Arrow"]] = {"parquet": _Parquet, "arrow": _Arrow}


def _validate(data: Any) -> Any:
    """Check Arrow data, since a damaged file may give invalid text or offsets out of range."""
    data.validate(full=True)
    return data


# ------------------------------------------------------------------------------------------------ errors


@contextlib.contextmanager
def explain_errors(name: str, what: str) -> Iterator[None]:
    """Turn errors of the system, pyarrow and decompressors into a one-line message with advice."""
    import pyarrow as pa

    try:
        yield
    except (FathomlessError, BrokenPipeError):
        raise
    except MemoryError as error:
        raise FileError(f"{name} {what}: there is not enough memory; give fewer rows or columns") from error
    except (OSError, pa.ArrowException, EOFError, lzma.LZMAError) as error:
        raise FileError(f"{name} {what}: {_explain(error)}") from error


def _explain(error: Exception) -> str:
    from fathomless.tables.headers import quote

    if isinstance(error, OSError) and error.errno:
        advice = {
            errno.ENOENT: "create that folder or choose another",
            errno.ENOSPC: "free some space or choose another disk",
            errno.EDQUOT: "the disk quota is used up: remove files or choose another disk",
            errno.EFBIG: "the limit on the file size is reached (ulimit -f): raise it or choose another disk",
            errno.EROFS: "the file system is read-only: choose another folder",
            errno.EACCES: "permission is missing: change it or choose another place",
            errno.EPERM: "permission is missing: change it or choose another place",
        }.get(error.errno, "check the disk and the path")
        return f"{error.strerror or error} (errno {error.errno}); {advice}"
    return f"the file is damaged ({quote(str(error) or type(error).__name__, 120)}); copy or write it again"
