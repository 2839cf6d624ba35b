"""Writing of table files: CSV, tab-separated text, Parquet, Feather, JSON lines and Excel; files appear complete."""

import contextlib
import io
import json
import math
import os
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fathomless.system.errors import DataError, FileError
from fathomless.tables.files import Source, describe_source, explain_errors

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["to_plain", "writer"]

_SHEET_ROWS = 1 << 20
_LIVE = ("=", "+", "-", "@", "#", "\t", "\r", "\n")  # first characters of spreadsheet formulas and errors


@contextlib.contextmanager
def writer(target: Source) -> "Iterator[Callable[[pa.Table], None]]":
    """Write a table piece by piece; the complete file appears when the block ends without an exception.

    Numbers have enough digits to be read back exactly. Text is quoted. Missing values are empty cells, or NA in a table
    of one column, since empty lines are skipped by readers.

    Parameters
    ----------
    target : path or "-"
        The ending sets the format: ``.csv``, ``.tsv``, ``.jsonl`` or ``.ndjson`` (each also with ``.gz``), ``.parquet``
        or ``.pq``, ``.feather`` or ``.arrow``, or ``.xlsx``. "-" is CSV on standard output. Standard output, devices
        and pipes receive each piece immediately.

    Yields
    ------
    callable
        Function that writes a pyarrow table; all tables must have the columns of the first.

    Raises
    ------
    FileError
        If the file cannot be written. An existing file is unchanged then, and no partial file remains.
    DataError
        If the ending is unknown, columns differ between tables, a column cannot be stored in the format, or no table
        was written.

    Notes
    -----
    Do not write one file from two writers at the same time. A closed pipe (``| head``) raises BrokenPipeError.
    """
    name = describe_source(target, "standard output")
    import pyarrow as pa

    from fathomless.tables.headers import quote

    encode = _choose_encoder(name) if target != "-" else _LINES[".csv"]
    schema: pa.Schema | None = None

    def write(table: "pa.Table") -> None:
        nonlocal schema
        schema = table.schema if schema is None else schema
        if not table.schema.equals(schema):
            raise DataError(f"{name} has the columns {_columns(schema)}; a later piece has {_columns(table.schema)}")
        with explain_errors(name, "cannot be written"):
            try:
                put(table)
            except pa.ArrowException as error:
                raise DataError(f"{name} cannot hold {_columns(table.schema)}: {quote(str(error), 120)}") from error

    with contextlib.ExitStack() as stack:
        with explain_errors(name, "cannot be written"):
            put = stack.enter_context(encode(stack.enter_context(_open_target(target))))
        yield write
        if schema is None:
            raise DataError(f"no table was written to {name}; write at least one, which may have no rows")
        with explain_errors(name, "cannot be written"):
            stack.close()


def _columns(schema: "pa.Schema") -> str:
    from fathomless.tables.headers import some

    return some([f"{field.name} ({field.type})" for field in schema])


@contextlib.contextmanager
def _open_target(target: Source) -> Iterator[IO[bytes]]:
    """Open a target for writing; a file gets its final name when it is complete and on disk."""
    if target == "-":
        if sys.stdout is None:
            raise DataError("standard output is closed; give a file with --out")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    path = Path(os.path.realpath(target))  # write to the target of a link, do not replace the link
    if path.is_dir():
        raise FileError(f"{path} is a folder; give the name of a file")
    if path.exists() and not path.is_file():  # devices and pipes cannot be replaced
        with _close_after(open(path, "wb")) as file:
            yield file
        return
    partial = path.with_name(path.name + ".partial")
    try:
        partial.unlink(missing_ok=True)
        with _close_after(open(partial, "xb")) as file:  # exclusive creation never follows a planted link
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _close_after(thing: Any) -> Iterator[Any]:
    """Close an object at the end; after an exception, suppress errors of closing."""
    try:
        yield thing
    except BaseException:
        with contextlib.suppress(Exception):
            thing.close()
        raise
    thing.close()


def _choose_encoder(name: str) -> Callable[[IO[bytes]], Any]:
    packed = name.lower().endswith(".gz")
    ending = os.path.splitext(name.lower().removesuffix(".gz"))[1]
    if ending in _LINES:
        return partial(_compress, _LINES[ending]) if packed else _LINES[ending]
    if ending in _WHOLE and not packed:
        return _WHOLE[ending]
    allowed = [*_LINES, *(f"{ending}.gz" for ending in _LINES), *_WHOLE]
    raise DataError(f"{name} has an unknown ending; allowed are {', '.join(allowed)}, and - for standard output")


@contextlib.contextmanager
def _write_delimited(delimiter: str, file: IO[bytes]) -> "Iterator[Callable[[pa.Table], None]]":
    from pyarrow import csv as arrow_csv

    header = True

    def put(table: "pa.Table") -> None:
        nonlocal header
        lines = io.BytesIO()
        # a missing value of a single column would be an empty line
        alone = table.num_columns == 1 and table.column(0).null_count
        form = arrow_csv.WriteOptions(include_header=header, delimiter=delimiter)
        arrow_csv.write_csv(table.slice(0, 0) if alone else table, lines, form)
        file.write(lines.getvalue())
        if alone:
            file.write(_join_cells(table.column(0)))
        header = False

    yield put


def _join_cells(column: "pa.ChunkedArray") -> bytes:
    """Return the lines of a column as CSV, NA for missing values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    cells = pc.cast(column, pa.large_string()).to_pylist()
    if text:
        cells = [None if cell is None else '"{}"'.format(cell.replace('"', '""')) for cell in cells]
    return "".join(f"{'NA' if cell is None else cell}\n" for cell in cells).encode()


@contextlib.contextmanager
def _write_json_lines(file: IO[bytes]) -> "Iterator[Callable[[pa.Table], None]]":
    def put(table: "pa.Table") -> None:
        for row in table.to_pylist():
            cells = {name: to_plain(value) for name, value in row.items()}
            file.write(json.dumps(cells, ensure_ascii=False, allow_nan=False).encode() + b"\n")

    yield put


@contextlib.contextmanager
def _compress(lines: Callable[[IO[bytes]], Any], file: IO[bytes]) -> "Iterator[Callable[[pa.Table], None]]":
    # the gzip header has no name and no time, so that equal tables give equal bytes; unlike a GzipFile, a compressor
    # does not write to a full disk again when it is deleted
    packed, pieces = zlib.compressobj(6, zlib.DEFLATED, zlib.MAX_WBITS | 16), io.BytesIO()
    with lines(pieces) as put:

        def put_packed(table: "pa.Table") -> None:
            put(table)
            file.write(packed.compress(pieces.getvalue()))
            pieces.seek(0)
            pieces.truncate()

        yield put_packed
    file.write(packed.flush())


@contextlib.contextmanager
def _write_parquet(file: IO[bytes]) -> "Iterator[Callable[[pa.Table], None]]":
    from pyarrow import parquet

    with _write_tables(partial(parquet.ParquetWriter, file)) as put:
        yield put


@contextlib.contextmanager
def _write_feather(file: IO[bytes]) -> "Iterator[Callable[[pa.Table], None]]":
    from pyarrow import ipc

    with _write_tables(partial(ipc.new_file, file)) as put:
        yield put


@contextlib.contextmanager
def _write_tables(start: Callable[["pa.Schema"], Any]) -> "Iterator[Callable[[pa.Table], None]]":
    """Write tables to a file writer that is started with the schema of the first table."""
    with contextlib.ExitStack() as stack:
        file = None

        def put(table: "pa.Table") -> None:
            nonlocal file
            if file is None:
                file = stack.enter_context(_close_after(start(table.schema)))
            file.write_table(table)

        yield put


@contextlib.contextmanager
def _write_sheet(file: IO[bytes]) -> "Iterator[Callable[[pa.Table], None]]":
    from fathomless.tables.formats import import_openpyxl

    sheets = import_openpyxl()
    book = sheets.Workbook(write_only=True)
    sheet = book.create_sheet()
    rows = 0

    def cell(value: Any) -> Any:
        """Mark text as text if a spreadsheet would interpret it as a formula or an error."""
        if not isinstance(value, str) or value[:1] not in _LIVE:
            return value
        text = sheets.cell.WriteOnlyCell(sheet, value)
        text.data_type = "s"
        text.quotePrefix = True  # keeps it text after editing
        return text

    def put(table: "pa.Table") -> None:
        nonlocal rows
        if not rows:
            sheet.append([cell(name) for name in table.column_names])
        rows += 1 + len(table) if not rows else len(table)
        if rows > _SHEET_ROWS:
            raise DataError(f"a sheet holds {_SHEET_ROWS:,} rows with its header; write the table as CSV or Parquet")
        for row in table.to_pylist():
            sheet.append([cell(to_plain(value, times=True)) for value in row.values()])

    yield put
    book.save(file)


def to_plain(value: Any, times: bool = False) -> Any:
    """Convert a cell to a value that JSON or a sheet can store."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, date):
        return value if times and getattr(value, "tzinfo", None) is None else value.isoformat()
    raise DataError(f"a cell is {str(value)[:60]!r}; this format stores numbers, text, dates, true and false")


_LINES: Mapping[str, Callable[[IO[bytes]], Any]] = {
    ".csv": partial(_write_delimited, ","),
    ".tsv": partial(_write_delimited, "\t"),
    ".jsonl": _write_json_lines,
    ".ndjson": _write_json_lines,
}
_WHOLE: Mapping[str, Callable[[IO[bytes]], Any]] = {
    ".parquet": _write_parquet,
    ".pq": _write_parquet,
    ".feather": _write_feather,
    ".arrow": _write_feather,
    ".xlsx": _write_sheet,
}
