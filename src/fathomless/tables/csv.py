"""Conversion of CSV bytes to typed columns, by the rules of :mod:`fathomless.tables.files`; no file is opened here.

pyarrow splits the text into cells of type string; the cells are cast afterwards. Column types are not passed to its
reader, even if they are known, for three reasons. It treats quoted words as missing in all columns or in none. It reads
dates in one unit and with one kind of time zone. It rejects a whole block for one bad cell, and so loses the rows
before it. The casting functions take whole columns and parts of columns, so that both ways of reading agree.
"""

import bisect
import codecs
import contextlib
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import types

from fathomless.system import memory
from fathomless.system.errors import DataError, FileError
from fathomless.tables import arrays, headers, notations
from fathomless.tables.headers import check_present, quote

__all__ = [
    "CELL",
    "CODES",
    "COLUMN_KINDS",
    "MISSING",
    "Column",
    "Dialect",
    "TeeReader",
    "blank_words",
    "cast_columns",
    "decode",
    "extract_text",
    "infer_column",
    "regroup",
    "split_cells",
    "strip_missing",
    "strip_text",
    "strip_text_columns",
]

#: Kinds of columns.
COLUMN_KINDS = ("numeric", "boolean", "category", "date")

#: A column of a pyarrow table.
Column: TypeAlias = pa.ChunkedArray

#: A cell of a format with typed numbers: its text, and the number if it has a fraction.
CELL = pa.struct([("text", pa.string()), ("number", pa.float64())])

#: Type of text that is never converted, such as 007.
CODES = pa.large_string()

#: Cells that count as missing values.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None", "?")
_GAPS = ("-", "--", ".", "na", "n.a.", "N.A.", "#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!")
_EXPECTED: Mapping[str, str] = {
    "numeric": "a number",
    "boolean": "true, false, 1 or 0",
    "date": "an ISO date such as 2024-12-31 or 2024-12-31 23:59:59",
}
_FIRST = 20  # cells that are searched for words, before numbers and dates are tried
_DIGITS = 300  # maximum digits of an integer; more may overflow to infinity
_COLUMN = 26e3  # bytes that pyarrow allocates per column; it raises no exception if they are lacking
_BLOCK = 1 << 20  # minimum bytes of a block; a longer row may be refused


class TeeReader(io.RawIOBase):
    """File wrapper that passes all bytes read to a function, and empty bytes at the end; closing keeps the file open.

    Attributes
    ----------
    bytes : int
        Number of bytes read.
    end : bytes
        The last eight bytes read.
    """

    def __init__(self, file: Any, watch: Callable[[bytes], object] | None = None) -> None:
        super().__init__()
        self.bytes = 0
        self.end = b""
        self._file, self._watch = file, watch

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer, and return their number."""
        data = self._file.read(len(buffer))
        if self._watch is not None:
            self._watch(data)
            if len(data) < len(buffer):
                self._watch(b"")  # at the last bytes; there may be no further call
        buffer[: len(data)] = data
        self.bytes += len(data)
        self.end = (self.end + data[-8:])[-8:]
        return len(data)


# -------------------------------------------------------------------------------------------- into cells


@dataclass(frozen=True)
class Dialect:
    """Format of a text table; "auto" detects it.

    Attributes
    ----------
    delimiter : str
        One character, "tab" or "auto".
    decimal : {"auto", ".", ","}
        The decimal mark.
    dates : {"auto", "day-first", "month-first"}
        Order of dates such as 03/04/2024, if no cell of the column determines it.
    header : bool
        True if the first line holds the column names; otherwise they are column_1, column_2, ...
    encoding : str
        Encoding of the text: a name that Python knows, or "auto" for UTF-8, or UTF-16 with a byte-order mark.
    missing : tuple of str
        Words that count as missing values in text cells of any format, quoted or not, beside the usual ones.

    Raises
    ------
    DataError
        If a value is not allowed.
    """

    delimiter: str = "auto"
    decimal: str = "auto"
    dates: str = "auto"
    header: bool = True
    encoding: str = "auto"
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.delimiter not in ("auto", *headers.TAB) and not re.fullmatch(r"[ !#-~]", self.delimiter):
            raise DataError(
                f'delimiter is {self.delimiter!r}; allowed are "auto", "tab" and one ASCII character other than a quote'
            )
        if self.decimal not in ("auto", *notations.MARKS):
            raise DataError(f'decimal is {self.decimal!r}; allowed are "auto", "." and ","')
        if self.dates not in ("auto", *notations.ORDERS):
            raise DataError(f"dates is {self.dates!r}; allowed are auto, {' and '.join(notations.ORDERS)}")
        try:
            codecs.lookup("utf-8" if self.encoding == "auto" else self.encoding)
        except LookupError as error:
            raise DataError(
                f"encoding is {self.encoding!r}, which Python does not know; common ones are utf-8, cp1252 and utf-16"
            ) from error


def decode(text: "io.BufferedReader[Any]", encoding: str, name: str) -> "io.BufferedReader[Any]":
    """Convert text to UTF-8; "auto" assumes UTF-16 if it begins with a byte-order mark, otherwise UTF-8."""
    if encoding == "auto":
        marked = text.peek()[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        return io.BufferedReader(_Decoder(text, "utf-16", name)) if marked else text
    return text if codecs.lookup(encoding).name == "utf-8" else io.BufferedReader(_Decoder(text, encoding, name))


class _Decoder(io.RawIOBase):
    def __init__(self, text: Any, encoding: str, name: str) -> None:
        super().__init__()
        self._text, self._name = io.TextIOWrapper(text, encoding, newline=""), name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._text.read(max(1, len(buffer) // 4)).encode()  # a character takes at most four bytes
        except UnicodeError as error:
            raise FileError(
                f"{self._name} is not {self._text.encoding} ({error}); give another encoding (--encoding)"
            ) from error
        buffer[: len(data)] = data
        return len(data)


def split_cells(
    text: Any, columns: Sequence[str] | None, form: Dialect, name: str, missing: Sequence[str] = MISSING
) -> tuple[pa.Schema, Iterator[pa.RecordBatch], str]:
    """Split CSV into cells: return a schema of text columns, record batches, and the delimiter.

    Parameters
    ----------
    text : binary file
        It is read, but not closed.
    columns : sequence of str, optional
        Names of the requested columns, in this order; all by default.
    form : Form
        Format of the text.
    name : str
        Name of the file, for messages.
    missing : sequence of str
        Words that count as missing unless quoted.

    Raises
    ------
    FileError
        If the text is not UTF-8, or cannot be split into cells.
    DataError
        If the header has empty or repeated names, or a requested column is absent.
    """
    file = io.BufferedReader(TeeReader(text, _make_utf8_check(name)), headers.HEADER)
    names, spare, delimiter, used = headers.read_header(file.peek(), form.delimiter, form.header, name)
    file.read(used)
    wanted = names if columns is None else list(columns)
    check_present(wanted, names, name)
    schema = pa.schema([(column, pa.string()) for column in wanted])
    blocks = _read_blocks(file, [*names, *spare], wanted, delimiter, missing, max(_BLOCK, 32 * used), name)
    return schema, _drop_unnamed(blocks, spare, name), delimiter


def _drop_unnamed(blocks: Iterator[pa.RecordBatch], spare: Sequence[str], name: str) -> Iterator[pa.RecordBatch]:
    """Drop unnamed columns, and raise an error if one has values."""
    start = 1
    for block in blocks:
        for column in spare:
            if (cells := block.column(column)).null_count < len(cells):
                row = start + int(pc.index(pc.is_valid(cells), True).as_py())
                raise DataError(
                    f"{name}, row {row} after the header, has more cells than the header; name every column"
                )
        start += len(block)
        yield block.drop_columns(list(spare)) if spare else block


def _read_blocks(
    file: "io.BufferedReader[TeeReader]",
    names: list[str],
    wanted: list[str],
    delimiter: str,
    missing: Sequence[str],
    size: int,
    name: str,
) -> Iterator[pa.RecordBatch]:
    if not file.peek():
        return
    memory.require(
        _COLUMN * len(names),
        f"{name}, a table of {len(names):,} columns,",
        lambda share: f"use at most {int(share * len(names)):,} columns",
    )
    spare = [column for column in names if column.startswith(" ")]
    schema = pa.schema([(column, pa.string()) for column in (*wanted, *spare)])
    ragged: list[Any] = []

    def refuse(row: Any) -> str:
        ragged.append(row)  # pyarrow discards exceptions raised here
        return "error"

    # row numbers need a single thread, which is hardly slower
    read = arrow_csv.ReadOptions(use_threads=False, block_size=size, column_names=names)
    parse = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refuse)
    convert = arrow_csv.ConvertOptions(
        check_utf8=False,  # checked already
        column_types=schema,
        include_columns=schema.names,
        null_values=[before + word + after for word in missing for before in ("", " ") for after in ("", " ")],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    final = None
    try:
        with arrow_csv.open_csv(file, read_options=read, parse_options=parse, convert_options=convert) as reader:
            for final in reader:
                yield final
    except pa.ArrowInvalid as error:
        raise FileError(f"{name}{_explain_arrow_error(str(error), ragged, delimiter)}") from error
    # pyarrow accepts a quote that is open at the end of the file: the remaining lines become the last cell
    if final is not None and names[-1] in schema.names and not file.raw.end.rstrip(b"\r\n").endswith(b'"'):
        cell = final.column(names[-1])[-1].as_py() if len(final) else None
        if cell is not None and "\n" in cell:
            raise FileError(f"{name} has a quote that is never closed, before {quote(cell)}; close or remove it")


def _explain_arrow_error(message: str, ragged: Sequence[Any], delimiter: str) -> str:
    if ragged:
        row = ragged[0]
        todo = f"correct the row, quote cells that contain the delimiter {delimiter!r}, or give another delimiter"
        if row.expected_columns == 1 < row.actual_columns:
            todo += ", or remove a title before the header"
        elif row.actual_columns == 1 < row.expected_columns:
            todo = "correct the row, or remove it if it is a title, a comment or a note on the source"
        return (
            f", row {row.number} after the header: expected {row.expected_columns} cells, found {row.actual_columns}: "
            f"{quote(row.text)}; {todo}"
        )
    if "straddling" in message or "out of sync" in message:
        return " has a row much longer than the header, or a quote that is never closed; remove stray quotes"
    return f" cannot be split into cells ({quote(message, 120)}); write the file again"


def _make_utf8_check(name: str) -> Callable[[bytes], None]:
    """Return a function that raises an error if bytes, passed piece by piece, are not UTF-8 text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = lines = 0

    def check(data: bytes) -> None:
        nonlocal position, lines
        if b"\0" in data:
            where = position + data.index(b"\0")
            raise FileError(f"{name} is neither Parquet nor text: byte {where} is zero; give a CSV or Parquet file")
        try:
            decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            where = position + len(data) - len(error.object) + error.start
            line = lines + error.object[: error.start].count(b"\n") + 1
            raise FileError(
                f"{name} is not UTF-8: byte {where}, in line {line}, is 0x{error.object[error.start]:02x}; give its "
                "encoding (often --encoding cp1252 for files from Western European spreadsheets)"
            ) from error
        position += len(data)
        lines += data.count(b"\n")

    return check


# -------------------------------------------------------------------------------------------- into types


def regroup(schema: pa.Schema, pieces: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Regroup record batches of any size into tables of `rows` rows; the last one has the rest."""
    pending = pa.Table.from_batches([], schema)
    first = True
    for piece in pieces:
        pending = pa.concat_tables([pending, pa.Table.from_batches([piece])])
        while len(pending) >= rows:
            yield pending.slice(0, rows).combine_chunks()
            pending = pending.slice(rows)
            first = False
    if first or len(pending):
        yield pending.combine_chunks()


def strip_text_columns(table: pa.Table) -> pa.Table:
    """Strip the text columns of a typed table; empty text becomes missing, as in CSV."""
    columns = []
    for column in table.columns:
        type_ = column.type.value_type if types.is_dictionary(column.type) else column.type
        if types.is_string_view(type_):
            type_ = pa.large_string()
        text = types.is_string(type_) or types.is_large_string(type_)
        columns.append(strip_text(pc.cast(column, type_), ("",)) if text else column)
    return pa.table(columns, names=table.column_names)


def infer_column(column: Column, marks: Sequence[str], dates: str = "auto", sure: bool = False) -> tuple[Column, str]:
    """Infer the type of a whole text column; return its values and their notation, "" if plain.

    Parameters
    ----------
    column : Column
        Text, or cells.
    marks : sequence of str
        Allowed decimal marks, the most likely first.
    dates : str
        As in :class:`Dialect`.
    sure : bool
        True if the first mark is known. Otherwise a few cells alone do not determine the mark.
    """
    if column.type == CELL:
        return _infer_cells(column, marks, dates, sure)
    if column.type == CODES:
        return strip_text(column, ("",)), ""
    words = _has_words(column)
    kinds = [("boolean", "")] if words else [*(("numeric", mark) for mark in marks), ("boolean", ""), ("date", "")]
    for cells in _strip_stepwise(column):
        for kind, mark in kinds:
            if (values := _cast_to_kind(cells, kind, mark)) is None:
                continue
            if values.null_count == len(values):
                return pa.chunked_array([pa.nulls(len(values))]), ""
            if kind != "numeric":
                return values, ""
            if (integers := _cast(cells, pa.int64())) is not None:
                return integers, ""
            if not _is_exact(cells):  # long identifiers would lose digits as float64
                return strip_text(column, ("",)), ""
            if mark == "." and _cast(pc.utf8_trim_whitespace(cells), pa.float64()) is not None:
                return values, ""
            if (sure and mark == marks[0]) or not notations.is_doubtful(cells.drop_null(), mark):
                return values, mark + ("%" if notations.distinct_units(cells) == {"%"} else "")
    dated = None if words else notations.parse_dates(strip_text(column, MISSING), dates=dates)
    return dated or (strip_text(column, ("",)), "")


def _has_words(column: Column) -> bool:
    """Return True if one of the first cells begins neither like a number nor like a date, as in most text columns."""
    missing = (*MISSING, *_GAPS)
    cells = [cell for cell in column.slice(0, _FIRST).to_pylist() if cell is not None]
    return any(not notations.BEGINNING.match(cell) and cell.strip() not in missing for cell in cells)


def _infer_cells(column: Column, marks: Sequence[str], dates: str, sure: bool) -> tuple[Column, str]:
    """Infer the type from the text cells; typed numbers are merged if the text is numeric."""
    number = pc.struct_field(column, "number")
    values, notation = infer_column(extract_text(column), marks, dates, sure)
    if number.null_count == len(number):
        return values, notation
    if types.is_null(values.type):
        return number, ""
    if (types.is_integer(values.type) or types.is_floating(values.type)) and not notations.has_unit(
        strip_missing(column)
    ):
        return _join_numbers(number, values), notation
    return strip_text(pc.struct_field(column, "text"), ("",)), ""


def extract_text(column: Column) -> Column:
    """Return the text with a notation: a whole text column, or the cells without a typed number."""
    if column.type != CELL:
        return column
    text = pc.struct_field(column, "text")
    number = pc.struct_field(column, "number")
    return pc.if_else(pc.is_valid(number), arrays.missing_value(text.type), text)


def _is_exact(cells: Column) -> bool:
    """Return False if all cells are integers and float64 cannot represent one of them."""
    if not pc.all(pc.match_substring_regex(cells, r"^\s*[-+]?\d+\s*$"), min_count=0).as_py():
        return True
    long = cells.filter(pc.greater(pc.utf8_length(cells), 15)).unique().to_pylist()
    return all(len(cell) < _DIGITS and int(cell) == int(float(cell)) for cell in long)


def strip_missing(column: Column) -> Column:
    """Return the text with a notation, stripped; words that mean missing among numbers become missing."""
    return strip_text(extract_text(column), MISSING + _GAPS)


def _join_numbers(number: Column, others: Column) -> Column:
    return pc.coalesce(number, pc.cast(others, pa.float64(), safe=False))


def cast_columns(
    table: pa.Table, kinds: Mapping[str, str], known: Mapping[str, notations.ColumnRule], name: str, start: int
) -> pa.Table:
    """Convert the columns of one piece, whose first row has the number `start`, to the types of their kinds.

    Columns in `known` follow their rules. Numbers of other columns may have either decimal mark.

    Raises
    ------
    DataError
        For the first text cell that is not of the kind of its column.
    """
    columns = []
    for label, column in zip(table.column_names, table.columns, strict=True):
        kind = kinds.get(label)
        type_ = column.type
        if kind is not None and (types.is_string(type_) or types.is_large_string(type_) or type_ == CELL):
            rule = known.get(label, notations.ColumnRule())
            column = _cast_column(column, kind, rule, f"{name}, column {label!r}", start)
        elif kind == "numeric" and (types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_)):
            column = pc.cast(column, pa.float64(), safe=False)
        columns.append(column)
    return pa.table(columns, names=table.column_names)


def _cast_column(column: Column, kind: str, known: notations.ColumnRule, where: str, start: int) -> Column:
    if column.type == CELL:
        if kind == "numeric":
            text = pc.struct_field(column, "text")
            number = pc.struct_field(column, "number")
            values = _cast_column(text if known.percent else extract_text(column), kind, known, where, start)
            return _join_numbers(number, values)
        column = pc.struct_field(column, "text")
    if kind == "category":
        return strip_text(column, ("",))

    def read(cells: Column) -> Column | None:
        candidates = (_cast_by_rule(cells, kind, notation, known) for notation in allowed)
        return next((values for values in candidates if values is not None), None)

    allowed = known.marks if kind == "numeric" else (known.notation,)
    for cells in _strip_stepwise(column):
        if (values := read(cells)) is not None:
            return values
    # a cell makes every longer part of the column unreadable, so bisection finds the first one
    bad = bisect.bisect_left(range(1, len(cells)), True, key=lambda n: read(cells.slice(0, n)) is None)
    raise DataError(
        f"{where}, row {start + bad} after the header: {quote(cells[bad].as_py())} "
        f"{_explain_refusal(cells.slice(bad, 1), kind, known)}"
    )


def _cast_by_rule(cells: Column, kind: str, notation: str, known: notations.ColumnRule) -> Column | None:
    """Read text by the rule of its column; return None if a cell is of another kind, or ambiguous."""
    values = _cast_to_kind(cells, kind, notation)
    if values is None or kind != "numeric":
        return values
    plain = notation == "." and "." not in known.doubt and not known.percent
    if plain and _cast(cells, pa.float64()) is not None:  # the usual case, and the fastest
        return values
    if not known.units and notations.has_unit(cells):
        return None
    if known.percent and notations.distinct_units(cells) - {"%"}:
        return None
    doubtful = known.doubt and pc.any(notations.match_ambiguous(cells, known.doubt), min_count=0).as_py()
    return None if doubtful else values


def _explain_refusal(cell: Column, kind: str, known: notations.ColumnRule) -> str:
    """Return why a cell is refused, and the expected form of a cell in the notation of its column."""
    what = _EXPECTED[kind]
    todo = "correct it, or leave the cell empty"
    if kind == "numeric":
        mark, *others = known.marks
        readable = [mark for mark in notations.MARKS if _cast_to_kind(cell, kind, mark) is not None]
        point, other = ("point", ",") if mark == "." else ("comma", ".")
        if mark in readable and notations.has_unit(cell) and not known.units:
            return f"has a unit, which the training data did not have; {todo}"
        if mark in readable and known.percent:
            return f"has no per cent sign, which all cells of the training data had; {todo}"
        if mark in readable:
            return (
                "is ambiguous: its mark may be a decimal mark or a thousands separator, and the rest of the table does "
                "not determine which; give --decimal . or --decimal ,"
            )
        if known.notation in notations.MARKS or (readable and not others):
            what += f" with a decimal {point} (--decimal {other} changes the mark)"
    if kind == "date" and "%" in known.notation:
        what = f"a date such as {date(2024, 12, 31).strftime(known.notation)} ({known.notation})"
    return f"is not {what}; {todo}"


def _strip_stepwise(column: Column) -> Iterator[Column]:
    """Yield a column unchanged, then stripped, with more and more words taken as missing."""
    yield column
    yield strip_text(column, MISSING)
    yield strip_text(column, MISSING + _GAPS)


def _cast_to_kind(cells: Column, kind: str, notation: str) -> Column | None:
    """Read text as numbers, booleans or dates; return None if a cell is of another kind."""
    if kind == "boolean":
        return _cast(cells, pa.bool_())  # true and false in any case, 1 and 0
    if kind == "date":
        for unit, zone in itertools.product(("us", "ns"), (None, "UTC")):  # "ns" allows more than six digits
            if (times := _cast(cells, pa.timestamp(unit, zone))) is not None:
                return pc.cast(times, pa.timestamp("us", zone), safe=False)
        dated = notations.parse_dates(cells, notation) if "%" in notation else None
        return None if dated is None else dated[0]
    numbers = _cast(cells, pa.float64()) if notation == "." else None
    if numbers is None:
        numbers = notations.parse_numbers(cells, notation)
    return None if numbers is None else pc.if_else(pc.is_nan(numbers), arrays.missing_value(pa.float64()), numbers)


def _cast(cells: Column, type_: pa.DataType) -> Column | None:
    with contextlib.suppress(pa.ArrowInvalid):
        return pc.cast(cells, type_)
    return None


def blank_words(table: pa.Table | pa.RecordBatch, words: Sequence[str]) -> Any:
    """Replace text cells that are one of the given words, or have spaces around it, by missing values."""

    def blank(text: Any) -> Any:
        same = pc.is_in(pc.utf8_trim_whitespace(text), value_set=arrays.to_text_array(words, text.type))
        return pc.if_else(same, arrays.missing_value(text.type), text)

    columns = []
    for column in table.columns if words else ():
        if column.type == CELL:
            fields = [blank(pc.struct_field(column, "text")), pc.struct_field(column, "number")]
            column = pc.make_struct(*fields, field_names=["text", "number"])
        elif types.is_string(column.type) or types.is_large_string(column.type):
            column = blank(column)
        columns.append(column)
    return type(table).from_arrays(columns, schema=table.schema) if words else table


def strip_text(column: Column, missing: Sequence[str]) -> Column:
    """Strip text, and replace the words of `missing` by missing values, quoted or not."""
    text = pc.utf8_trim_whitespace(column)
    return pc.if_else(
        pc.is_in(text, value_set=arrays.to_text_array(missing, text.type)), arrays.missing_value(text.type), text
    )
