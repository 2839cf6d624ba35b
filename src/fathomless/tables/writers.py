"""Table files out: CSV, tab-separated text, Parquet, Feather, JSON lines and Excel; what is half done has no name."""

import contextlib
import gzip
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import date
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from fathomless.system.errors import DataError, FileError
from fathomless.tables.files import Source, explained, named

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["writer"]

_SHEET_ROWS = 1 << 20
_LIVE = ("=", "+", "-", "@", "#", "\t", "\r", "\n")  # first characters of formulas and errors of spreadsheets


@contextlib.contextmanager
def writer(target: Source) -> "Iterator[Callable[[pa.Table], None]]":
    """Write a table piece by piece; the file appears, whole, when the block ends without an exception.

    Numbers are written with as many digits as reading them back exactly takes, text in quotes, missing values as
    nothing (in a table of one column as NA, since empty lines are no rows).

    Parameters
    ----------
    target : path or "-"
        By its name ``.csv``, ``.tsv``, ``.jsonl`` or ``.ndjson`` (each also with ``.gz``), ``.parquet`` or ``.pq``,
        ``.feather`` or ``.arrow``, or ``.xlsx``. "-" is standard output, in CSV, written at once as the pieces come;
        so are devices and pipes.

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
    name = named(target, "standard output")
    import pyarrow as pa

    from fathomless.tables.headers import short

    encode = _encoder(name) if target != "-" else _LINES[".csv"]
    schema: pa.Schema | None = None

    def write(table: "pa.Table") -> None:
        nonlocal schema
        schema = table.schema if schema is None else schema
        if not table.schema.equals(schema):
            raise DataError(f"{name} has the columns {_columns(schema)}; a later piece has {_columns(table.schema)}")
        with explained(name, "cannot be written"):
            try:
                put(table)
            except pa.ArrowException as error:
                raise DataError(f"{name} cannot hold {_columns(table.schema)}: {short(str(error), 120)}") from error

    with contextlib.ExitStack() as stack:
        with explained(name, "cannot be written"):
            put = stack.enter_context(encode(stack.enter_context(_placed(target))))
        yield write
        if schema is None:
            raise DataError(f"{name} was given no table; write at least one, which may have no rows")
        with explained(name, "cannot be written"):
            stack.close()


def _columns(schema: "pa.Schema") -> str:
    from fathomless.tables.headers import some

    return some([f"{field.name} ({field.type})" for field in schema])


@contextlib.contextmanager
def _placed(target: Source) -> Iterator[IO[bytes]]:
    """Open what is to be written; a file gets its name when all is on the disk."""
    if target == "-":
        if sys.stdout is None:
            raise DataError("standard output is closed; name a file with --out")
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
    packed = name.lower().endswith(".gz")
    ending = os.path.splitext(name.lower().removesuffix(".gz"))[1]
    if ending in _LINES:
        return partial(_packed, _LINES[ending]) if packed else _LINES[ending]
    if ending in _WHOLE and not packed:
        return _WHOLE[ending]
    allowed = [*_LINES, *(f"{one}.gz" for one in _LINES), *_WHOLE]
    raise DataError(f"{name} ends with none of {', '.join(allowed)}; choose one, or - for standard output")


@contextlib.contextmanager
def _delimited(delimiter: str, file: IO[bytes]) -> "Iterator[Callable[[pa.Table], None]]":
    from pyarrow import csv as arrow_csv

    header = True

    def put(table: "pa.Table") -> None:
        nonlocal header
        form = arrow_csv.WriteOptions(
            include_header=header, delimiter=delimiter, null_string="NA" if table.num_columns == 1 else ""
        )
        lines = io.BytesIO()
        arrow_csv.write_csv(table, lines, form)
        file.write(lines.getvalue())
        header = False

    yield put


@contextlib.contextmanager
def _json_lines(file: IO[bytes]) -> "Iterator[Callable[[pa.Table], None]]":
    def put(table: "pa.Table") -> None:
        for row in table.to_pylist():
            cells = {name: _plain(value) for name, value in row.items()}
            file.write(json.dumps(cells, ensure_ascii=False, allow_nan=False).encode() + b"\n")

    yield put


@contextlib.contextmanager
def _packed(lines: Callable[[IO[bytes]], Any], file: IO[bytes]) -> "Iterator[Callable[[pa.Table], None]]":
    # neither a name nor a time: the same table gives the same bytes
    with _closed(gzip.GzipFile("", "wb", 6, file, mtime=0)) as packed, lines(packed) as put:
        yield put


@contextlib.contextmanager
def _parquet(file: IO[bytes]) -> "Iterator[Callable[[pa.Table], None]]":
    from pyarrow import parquet

    with _begun(partial(parquet.ParquetWriter, file)) as put:
        yield put


@contextlib.contextmanager
def _feather(file: IO[bytes]) -> "Iterator[Callable[[pa.Table], None]]":
    from pyarrow import ipc

    with _begun(partial(ipc.new_file, file)) as put:
        yield put


@contextlib.contextmanager
def _begun(start: Callable[["pa.Schema"], Any]) -> "Iterator[Callable[[pa.Table], None]]":
    """Write tables to what begins with the columns of the first."""
    with contextlib.ExitStack() as stack:
        file = None

        def put(table: "pa.Table") -> None:
            nonlocal file
            if file is None:
                file = stack.enter_context(_closed(start(table.schema)))
            file.write_table(table)

        yield put


@contextlib.contextmanager
def _sheet(file: IO[bytes]) -> "Iterator[Callable[[pa.Table], None]]":
    from fathomless.tables.formats import openpyxl

    sheets = openpyxl()
    book = sheets.Workbook(write_only=True)
    sheet = book.create_sheet()
    rows = 0

    def cell(value: Any) -> Any:
        """Return text that a spreadsheet would take for a formula, or for an error, as a cell of text."""
        if not isinstance(value, str) or value[:1] not in _LIVE:
            return value
        text = sheets.cell.WriteOnlyCell(sheet, value)
        text.data_type = "s"
        text.quotePrefix = True  # it stays text when it is edited
        return text

    def put(table: "pa.Table") -> None:
        nonlocal rows
        if not rows:
            sheet.append([cell(name) for name in table.column_names])
        rows += 1 + len(table) if not rows else len(table)
        if rows > _SHEET_ROWS:
            raise DataError(f"a sheet holds {_SHEET_ROWS:,} rows with its header; write the table as CSV or Parquet")
        for row in table.to_pylist():
            sheet.append([cell(_plain(value, times=True)) for value in row.values()])

    yield put
    book.save(file)


def _plain(value: Any, times: bool = False) -> Any:
    """Return a cell as JSON, or a sheet, can hold it."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float | Decimal):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, date):
        return value if times and getattr(value, "tzinfo", None) is None else value.isoformat()
    raise DataError(f"a cell is {str(value)[:60]!r}; numbers, text, dates, true and false can be written here")


_LINES: Mapping[str, Callable[[IO[bytes]], Any]] = {
    ".csv": partial(_delimited, ","),
    ".tsv": partial(_delimited, "\t"),
    ".jsonl": _json_lines,
    ".ndjson": _json_lines,
}
_WHOLE: Mapping[str, Callable[[IO[bytes]], Any]] = {
    ".parquet": _parquet,
    ".pq": _parquet,
    ".feather": _feather,
    ".arrow": _feather,
    ".xlsx": _sheet,
}
