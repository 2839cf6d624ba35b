"""Sheets of Excel and lines of JSON as cells, to be typed by the rules of CSV; it touches no files.

A cell is its text, beside it the number that it is where its text would be read by a decimal mark: it has none.
"""

import io
import itertools
import json
import math
import re
import zipfile
from collections.abc import Collection, Iterator, Sequence
from datetime import date, time
from typing import Any

import pyarrow as pa

from fathomless.system import memory
from fathomless.system.errors import DataError, FileError
from fathomless.tables.csv import CELL, CODES, MISSING
from fathomless.tables.headers import check_names, check_present, named_by_place

__all__ = ["is_json", "json_lines", "openpyxl", "sheet"]

_CODE = re.compile(r"\s*[-+]?0\d+\s*")
_BYTES = 16.0  # of a cell, at least
_PIECE = 8192  # rows that become a record batch, of a table that is not wide
_WIDE = 1 << 22  # cells of a batch
_STEP = 1 << 24  # bytes of text after which the memory is looked at again
_OBJECTS = 12.0  # bytes of memory for a byte of JSON
_ROWS = 1 << 20  # of a sheet, at most
_XML = 8.0  # bytes of memory for a byte of a sheet


def openpyxl() -> Any:
    """Import openpyxl.

    Raises
    ------
    FileError
        If it is not installed.
    """
    try:
        import openpyxl
    except ImportError as error:
        raise FileError("Excel needs openpyxl, which is not installed: pip install 'fathomless[excel]'") from error
    return openpyxl


def sheet(
    data: bytes, columns: Sequence[str] | None, header: bool, name: str, missing: Sequence[str] = MISSING
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Take the first sheet of an Excel file (.xlsx) apart: the names of its columns, and cells in blocks.

    Formulas count with the values that they had when the file was saved, and the words of `missing` are missing. A
    column in which text is a whole number with a zero in front, such as 007, is text.

    Raises
    ------
    FileError
        If it is no such file.
    DataError
        For a header that cannot serve, columns that it lacks, and rows that are longer than it.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:  # nothing is read that is larger than it says
            size = sum(part.file_size for part in archive.infolist() if part.filename.endswith(".xml"))
        what = f"{name}, {memory.human(size)} of a spreadsheet,"
        memory.require(_XML * size, what, lambda share: "write the table as CSV")
        book = openpyxl().load_workbook(io.BytesIO(data), read_only=True, data_only=True)
        first = book.worksheets[0]
        first.reset_dimensions()  # what a file says of its size need not be so
        number_of_rows, rows = 0, list[Any]()
        for row in itertools.islice(first.iter_rows(values_only=True), _ROWS + 1):  # with empty ones for a gap
            number_of_rows += 1
            if any(cell is not None for cell in row):
                rows.append(row)
        head = rows[0] if rows else ()
    except DataError:
        raise
    except (KeyError, IndexError, ValueError, SyntaxError, zipfile.BadZipFile) as error:
        raise FileError(f"{name} is a zip archive or a spreadsheet, and no .xlsx; write the table as CSV") from error
    if number_of_rows > _ROWS:
        raise FileError(f"{name} has a row beyond the last that a sheet may have, {_ROWS:,}; write the table as CSV")
    cells = [_text(_of_sheet(cell, missing)) or "" for cell in head]
    while cells and not cells[-1]:
        cells.pop()
    names = named_by_place(cells) if header else [f"column_{i}" for i in range(1, len(cells) + 1)]
    check_names(names, name)

    def found() -> Iterator[list[Any]]:
        for number, row in enumerate(rows[header:], start=int(header)):
            bare = [_of_sheet(cell, missing) for cell in row]
            if any(cell is not None for cell in bare[len(names) :]):
                raise DataError(f"{name}, row {number} after the header, has more cells than the header; name them all")
            yield (bare + [None] * len(names))[: len(names)]

    codes = {name for row in rows[header:] for name, cell in zip(names, row, strict=False) if _is_code(cell)}
    return _blocks(found(), names, codes, columns, name)


def _of_sheet(cell: Any, missing: Sequence[str]) -> Any:
    if isinstance(cell, str):
        bare = cell.strip()
        return None if bare in missing else bare
    return cell


def _is_code(cell: Any) -> bool:
    return isinstance(cell, str) and _CODE.fullmatch(cell) is not None


def is_json(head: bytes) -> bool:
    """Whether text that begins so holds objects of JSON: one in each line, or a list of them."""
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if re.match(rb"\[\s*\{", head):
        return True
    line, end, _ = head.partition(b"\n")
    try:
        return line.startswith(b"{") and (not end or isinstance(json.loads(line), dict))
    except (ValueError, RecursionError):
        return line.startswith(b'{"')  # the reader says what is wrong with it


def json_lines(data: bytes, columns: Sequence[str] | None, name: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Take lines of JSON apart, or a list of its objects: all names that occur, and cells in blocks.

    A column in which text is a whole number with a zero in front, such as 007, is text.

    Raises
    ------
    FileError
        For text that is no JSON.
    DataError
        For names that cannot serve, columns that are absent, and cells that are lists or objects.
    """
    rows = _objects(data, name)
    names = list(dict.fromkeys(key for row in rows for key in row))
    cells = float(len(rows)) * len(names)
    memory.require(
        _BYTES * cells,
        f"{name}, a table of {len(rows):,} objects with {len(names):,} names",
        lambda share: f"give the objects the same names: {int(share * cells / len(rows)):,} fit",
    )
    check_names(names, name)

    def found() -> Iterator[list[Any]]:
        for number, row in enumerate(rows, start=1):
            for key, cell in row.items():
                if isinstance(cell, list | dict):
                    raise DataError(
                        f"{name}, object {number}: {key!r} is a list or an object; a cell is a number, text, true, "
                        "false or null"
                    )
            yield [row.get(key) for key in names]

    codes = {key for row in rows for key, cell in row.items() if _is_code(cell)}
    return _blocks(found(), names, codes, columns, name)


def _objects(data: bytes, name: str) -> list[dict[str, Any]]:
    def room(size: int) -> None:
        what = f"{name}, {memory.human(len(data))} of JSON,"
        memory.require(_OBJECTS * size, what, lambda share: "give fewer rows or columns, or CSV")

    room(len(data) // 2)
    try:
        text = data.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise FileError(f"{name} is not UTF-8 ({error}); name its encoding (--encoding)") from error
    lines = [text] if text.startswith("[") else text.split("\n")
    rows: list[dict[str, Any]] = []
    behind = 0  # characters since the memory was looked at
    for number, line in enumerate(lines, start=1):
        behind += len(line)
        if behind > _STEP:
            room(behind)
            behind = 0
        try:
            found = json.loads(line) if line.strip() else []
        except (ValueError, RecursionError) as error:
            raise FileError(f"{name}, line {number}, is no JSON ({error}); give one object in each line") from error
        if "\\ud" in line.lower():
            try:
                json.dumps(found, ensure_ascii=False).encode()
            except UnicodeEncodeError as error:
                raise FileError(
                    f"{name}, line {number}, holds half of a surrogate pair, {error.object[error.start]!a}; give whole "
                    "characters"
                ) from error
        objects: list[Any] = found if isinstance(found, list) else [found]
        if not all(isinstance(one, dict) for one in objects):
            raise FileError(f"{name}, line {number}, is no object of JSON; give one object in each line")
        rows += objects
    return rows


def _text(cell: Any) -> str | None:
    if cell is None or isinstance(cell, str):
        return cell
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float):
        return str(int(cell)) if _whole(cell) else repr(cell)
    return cell.isoformat() if isinstance(cell, date | time) else str(cell)


def _number(cell: Any) -> float | None:
    """Return a number whose text is not the same in every notation, as that of whole ones is."""
    return cell if isinstance(cell, float) and not math.isnan(cell) and not _whole(cell) else None


def _whole(cell: float) -> bool:
    return cell.is_integer() and abs(cell) < 2**53


def _blocks(
    rows: Iterator[list[Any]], names: list[str], codes: Collection[str], columns: Sequence[str] | None, name: str
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Gather rows of cells into record batches of the wanted columns."""
    wanted = names if columns is None else list(columns)
    check_present(wanted, names, name)
    schema = pa.schema([(column, CODES if column in codes else CELL) for column in wanted])
    at = {column: place for place, column in enumerate(names)}
    places = [at[column] for column in wanted]

    def pieces() -> Iterator[pa.RecordBatch]:
        size = max(1, min(_PIECE, _WIDE // max(1, len(names))))
        while block := list(itertools.islice(rows, size)):
            cells = [[row[place] for row in block] for place in places]
            yield pa.record_batch(list(map(_array, cells, schema.types)), schema=schema)

    return schema, pieces()


def _array(cells: Sequence[Any], type_: pa.DataType) -> pa.Array:
    text = pa.array([_text(cell) for cell in cells], CODES if type_ == CODES else pa.string())
    if type_ == CODES:
        return text
    return pa.StructArray.from_arrays([text, pa.array([_number(cell) for cell in cells], pa.float64())], fields=[*CELL])
