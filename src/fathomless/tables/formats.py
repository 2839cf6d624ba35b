"""Excel sheets and JSON lines as cells, whose types follow the rules of CSV; no file is opened here.

A cell holds its text. Numbers with a fraction are stored beside it, since they have no decimal mark to interpret.
"""

import io
import itertools
import json
import math
import re
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import date, time
from typing import Any

import pyarrow as pa

from fathomless.system import memory
from fathomless.system.errors import DataError, FileError
from fathomless.tables.arrays import to_number_array, to_text_array
from fathomless.tables.csv import CELL, CODES, MISSING
from fathomless.tables.headers import check_names, check_present, quote, strip_names

__all__ = ["import_openpyxl", "is_json", "read_json_lines", "read_sheet"]

_CODE = re.compile(r"\s*[-+]?0\d+\s*")
_BYTES = 16.0  # minimum size of a cell
_PIECE = 8192  # maximum rows of a record batch
_WIDE = 1 << 22  # maximum cells of a record batch
_STEP = 1 << 24  # characters between two checks of the free memory
_OBJECTS = 12.0  # bytes of memory per byte of JSON
_ROWS = 1 << 20  # maximum rows of a sheet
_XML = 8.0  # bytes of memory per byte of a sheet
_MERGED = re.compile(rb"<(?:\w+:)?mergeCell\s[^<>]*?\bref=[\"']([A-Z]{1,3}[1-9]\d{0,6}:[A-Z]{1,3}[1-9]\d{0,6})[\"']")
_SHOWN = 5  # maximum number of ranges in a note


def import_openpyxl() -> Any:
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


def read_sheet(
    data: bytes, columns: Sequence[str] | None, header: bool, name: str, missing: Sequence[str] = MISSING
) -> tuple[pa.Schema, Iterator[pa.RecordBatch], tuple[str, ...]]:
    """Read the first sheet of an Excel file (.xlsx) as a schema and record batches of cells, with notes.

    Formulas have the values that were stored when the file was saved. The words of `missing` are missing values. A
    column with a text cell that is a whole number with a leading zero, such as 007, is text. There is a note on merged
    cells, of which only the first one has a value.

    Raises
    ------
    FileError
        If the file is not an .xlsx file.
    DataError
        If the header has empty or repeated names, a requested column is absent, or a row is longer than the header.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:  # zipfile reads no more than these sizes
            size = sum(part.file_size for part in archive.infolist() if part.filename.endswith(".xml"))
        what = f"{name}, {memory.human(size)} of a spreadsheet,"
        memory.require(_XML * size, what, lambda share: "write the table as CSV")
        book = import_openpyxl().load_workbook(io.BytesIO(data), read_only=True, data_only=True)
        first = book.worksheets[0]
        first.reset_dimensions()  # the size stored in a file may be wrong
        number_of_rows = 0
        rows, places = list[Any](), list[int]()
        for row in itertools.islice(first.iter_rows(values_only=True), _ROWS + 1):  # gaps come as empty rows
            number_of_rows += 1
            if any(cell is not None for cell in row):
                rows.append(row)
                places.append(number_of_rows)
        head = rows[0] if rows else ()
        merged = _find_merged(book, first)
    except DataError:
        raise
    except (KeyError, IndexError, ValueError, SyntaxError, zipfile.BadZipFile) as error:
        raise FileError(
            f"{name} is a zip archive or a spreadsheet, but not an .xlsx file; write the table as CSV"
        ) from error
    if number_of_rows > _ROWS:
        raise FileError(f"{name} has more than {_ROWS:,} rows, the limit of an Excel sheet; write the table as CSV")
    if len(rows) <= int(header) and len(book.worksheets) > 1:
        raise DataError(
            f"{name}: the first sheet, {first.title!r}, has no rows below a header, and only this sheet is read; move "
            f"the table to the first sheet (others: {', '.join(repr(sheet.title) for sheet in book.worksheets[1:])})"
        )
    cells = [_to_text(_strip_cell(cell, missing)) or "" for cell in head]
    while cells and not cells[-1]:
        cells.pop()
    names = strip_names(cells) if header else [f"column_{i}" for i in range(1, len(cells) + 1)]
    check_names(names, name)

    def cells_of_rows() -> Iterator[list[Any]]:
        for number, row in enumerate(rows[header:], start=int(header)):
            stripped = [_strip_cell(cell, missing) for cell in row]
            if any(cell is not None for cell in stripped[len(names) :]):
                raise DataError(
                    f"{name}, row {number} after the header, has more cells than the header; name every column, or "
                    "remove a title before the header"
                )
            yield (stripped + [None] * len(names))[: len(names)]

    codes = {name for row in rows[header:] for name, cell in zip(names, row, strict=False) if _is_code(cell)}
    notes = _note_merged(merged, dict(zip(places, rows, strict=True)), names, columns)
    return *_to_batches(cells_of_rows(), names, codes, columns, name), notes


def _find_merged(book: Any, sheet: Any) -> list[str]:
    """Return the ranges of merged cells of a sheet, such as A2:A4; openpyxl ignores them when it reads by rows."""
    text = book._archive.read(sheet._worksheet_path)
    return [match[1].decode() for match in _MERGED.finditer(text, max(0, text.rfind(b"sheetData>")))]


def _note_merged(
    ranges: Sequence[str], rows: Mapping[int, Sequence[Any]], names: Sequence[str], columns: Sequence[str] | None
) -> tuple[str, ...]:
    """Return a note on merged cells with a value among the rows of a table, given by their numbers in the sheet.

    Ranges within a row without other values, such as a footer, and ranges of columns that are not read have no note.
    """
    bounds = import_openpyxl().utils.cell.range_boundaries
    wanted = {place for place, name in enumerate(names) if columns is None or name in columns}
    shown, places = list[str](), set[int]()
    for (left, top, right, bottom), text in sorted((bounds(text), text) for text in ranges):
        row = rows.get(top, ())
        alone = top == bottom and sum(cell is not None for cell in row) < 2
        read = wanted & set(range(left - 1, min(right, len(names))))
        if read and not alone and len(row) >= left and row[left - 1] is not None:
            shown.append(text)
            places |= read
    if not shown:
        return ()
    listed = ", ".join(shown[:_SHOWN]) + (f", ... ({len(shown):,} in all)" if len(shown) > _SHOWN else "")
    named = ", ".join(quote(names[place]) for place in sorted(places))
    return (
        f"the sheet has merged cells, of which only the first has a value and the others are missing values: {listed}, "
        f"in {named}; unmerge them, and repeat the value in every row for which it is meant",
    )


def _strip_cell(cell: Any, missing: Sequence[str]) -> Any:
    if isinstance(cell, str):
        text = cell.strip()
        return None if text in missing else text
    return cell


def _is_code(cell: Any) -> bool:
    return isinstance(cell, str) and _CODE.fullmatch(cell) is not None


def is_json(head: bytes) -> bool:
    """Return True if text that begins with `head` holds JSON objects: one per line, or a list of them."""
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if re.match(rb"\[\s*\{", head):
        return True
    line, end, _ = head.partition(b"\n")
    try:
        return line.startswith(b"{") and (not end or isinstance(json.loads(line), dict))
    except (ValueError, RecursionError):
        return line.startswith(b'{"')  # the reader will report the error


def read_json_lines(
    data: bytes, columns: Sequence[str] | None, name: str
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Read JSON lines, or a JSON list of objects, as a schema of all keys and record batches of cells.

    A column with a string that is a whole number with a leading zero, such as 007, is text.

    Raises
    ------
    FileError
        If the text is not JSON.
    DataError
        If a key is empty, a requested column is absent, or a cell is a list or an object.
    """
    rows = _parse_objects(data, name)
    names = list(dict.fromkeys(key for row in rows for key in row))
    cells = float(len(rows)) * len(names)
    memory.require(
        _BYTES * cells,
        f"{name}, a table of {len(rows):,} objects with {len(names):,} keys,",
        lambda share: f"give the objects the same keys: {int(share * cells / len(rows)):,} keys fit",
    )
    check_names(names, name)

    def cells_of_rows() -> Iterator[list[Any]]:
        for number, row in enumerate(rows, start=1):
            for key, cell in row.items():
                if isinstance(cell, list | dict):
                    raise DataError(
                        f"{name}, object {number}: {key!r} is a list or an object; allowed are numbers, text, true, "
                        "false and null"
                    )
            yield [row.get(key) for key in names]

    codes = {key for row in rows for key, cell in row.items() if _is_code(cell)}
    return _to_batches(cells_of_rows(), names, codes, columns, name)


def _parse_objects(data: bytes, name: str) -> list[dict[str, Any]]:
    def require_memory(size: int) -> None:
        what = f"{name}, {memory.human(len(data))} of JSON,"
        memory.require(_OBJECTS * size, what, lambda share: "give fewer rows or columns, or CSV")

    require_memory(len(data) // 2)
    try:
        text = data.decode("utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise FileError(f"{name} is not UTF-8 ({error}); give its encoding (--encoding)") from error
    lines = [text] if text.startswith("[") else text.split("\n")
    rows: list[dict[str, Any]] = []
    unchecked = 0  # characters since the last check of the free memory
    for number, line in enumerate(lines, start=1):
        unchecked += len(line)
        if unchecked > _STEP:
            require_memory(unchecked)
            unchecked = 0
        try:
            value = json.loads(line) if line.strip() else []
        except (ValueError, RecursionError) as error:
            raise FileError(f"{name}, line {number}, is not valid JSON ({error}); write one object per line") from error
        if "\\ud" in line.lower():
            try:
                json.dumps(value, ensure_ascii=False).encode()
            except UnicodeEncodeError as error:
                raise FileError(
                    f"{name}, line {number}, contains a lone surrogate, {error.object[error.start]!a}; write complete "
                    "characters"
                ) from error
        objects: list[Any] = value if isinstance(value, list) else [value]
        if not all(isinstance(row, dict) for row in objects):
            raise FileError(f"{name}, line {number}, is not a JSON object; write one object per line")
        rows += objects
    return rows


def _to_text(cell: Any) -> str | None:
    if cell is None or isinstance(cell, str):
        return cell
    if isinstance(cell, bool):
        return str(cell).lower()
    if isinstance(cell, float):
        return str(int(cell)) if _is_whole(cell) else repr(cell)
    return cell.isoformat() if isinstance(cell, date | time) else str(cell)


def _to_number(cell: Any) -> float | None:
    """Return a number with a fraction, whose text depends on the notation, or None."""
    return cell if isinstance(cell, float) and not math.isnan(cell) and not _is_whole(cell) else None


def _is_whole(cell: float) -> bool:
    return cell.is_integer() and abs(cell) < 2**53


def _to_batches(
    rows: Iterator[list[Any]], names: list[str], codes: Collection[str], columns: Sequence[str] | None, name: str
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Collect rows of cells into record batches of the requested columns."""
    wanted = names if columns is None else list(columns)
    check_present(wanted, names, name)
    schema = pa.schema([(column, CODES if column in codes else CELL) for column in wanted])
    position = {column: place for place, column in enumerate(names)}
    places = [position[column] for column in wanted]

    def pieces() -> Iterator[pa.RecordBatch]:
        size = max(1, min(_PIECE, _WIDE // max(1, len(names))))
        while block := list(itertools.islice(rows, size)):
            cells = [[row[place] for row in block] for place in places]
            yield pa.record_batch(list(map(_to_array, cells, schema.types)), schema=schema)

    return schema, pieces()


def _to_array(cells: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return cells as an Arrow array, without pa.array, which imports pandas."""
    text = to_text_array([_to_text(cell) for cell in cells], CODES if type_ == CODES else pa.string())
    if type_ == CODES:
        return text
    return pa.StructArray.from_arrays([text, to_number_array([_to_number(cell) for cell in cells])], fields=[*CELL])
