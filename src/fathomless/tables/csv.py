"""CSV from bytes to typed columns, by the rules that :mod:`fathomless.tables.files` states; it touches no files.

pyarrow cuts the text into cells, all of them text at first, and then casts them. Its reader is not told the types of
the columns, even where they are known: it can take words in quotes as missing in all columns or in none, knows a date
in one unit and with one kind of zone, and refuses a whole block for a cell, before the rows that stand in front of it
were given. The few functions that give the types serve a whole column as well as a piece of one, so that both ways of
reading agree.
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
from fathomless.tables.headers import check_present, short

__all__ = [
    "CELL",
    "CODES",
    "COLUMN_KINDS",
    "MISSING",
    "Column",
    "Form",
    "Watched",
    "bare",
    "cut",
    "equal_tables",
    "inferred",
    "recoded",
    "stripped",
    "trimmed",
    "with_kinds",
    "written",
]

#: What a column can be read as.
COLUMN_KINDS = ("numeric", "boolean", "category", "date")

#: A column of a pyarrow table.
Column: TypeAlias = pa.ChunkedArray

#: A cell of a format that knows numbers: its text, and the number if it is one that text would need a notation for.
CELL = pa.struct([("text", pa.string()), ("number", pa.float64())])

#: Text that stays text, whatever it looks like.
CODES = pa.large_string()

#: Cells that are no values.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None", "?")
_GAPS = ("-", "--", ".", "na", "n.a.", "N.A.", "#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!")
_EXPECTED: Mapping[str, str] = {
    "numeric": "a number",
    "boolean": "true, false, 1 or 0",
    "date": "an ISO date such as 2024-12-31 or 2024-12-31 23:59:59",
}
_FIRST = 20  # cells that tell whether a column may be one of numbers or dates
_DIGITS = 300  # of a whole number; more are infinite as a number
_COLUMN = 26e3  # bytes that pyarrow takes for each column, which no exception would tell of
_BLOCK = 1 << 20  # bytes, or 32 headers, that are cut into cells at once; a longer row may be refused


class Watched(io.RawIOBase):
    """A file that shows what is read from it to a function, and nothing at the end; closing it leaves the file open.

    Attributes
    ----------
    bytes : int
        How many were read.
    end : bytes
        The last eight of them.
    """

    def __init__(self, file: Any, watch: Callable[[bytes], object] | None = None) -> None:
        super().__init__()
        self.bytes = 0
        self.end = b""
        self._file, self._watch = file, watch

    def readable(self) -> bool:
        """Say yes."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read at most as many bytes as the buffer takes; return how many there were."""
        data = self._file.read(len(buffer))
        if self._watch is not None:
            self._watch(data)
            if len(data) < len(buffer):
                self._watch(b"")  # with the last bytes, not when more are asked for
        buffer[: len(data)] = data
        self.bytes += len(data)
        self.end = (self.end + data[-8:])[-8:]
        return len(data)


# -------------------------------------------------------------------------------------------- into cells


@dataclass(frozen=True)
class Form:
    """How a table of text is written; "auto" finds it.

    Attributes
    ----------
    delimiter : str
        One character, "tab" or "auto".
    decimal : {"auto", ".", ","}
        The decimal mark.
    dates : {"auto", "day-first", "month-first"}
        What 03/04/2024 is, where no cell of the column tells.
    header : bool
        Whether the first line holds the names of the columns; else they are column_1 and so on.
    encoding : str
        Of the text: "auto" is UTF-8, or UTF-16 with its mark; else a name that Python knows.

    Raises
    ------
    DataError
        For what cannot be.
    """

    delimiter: str = "auto"
    decimal: str = "auto"
    dates: str = "auto"
    header: bool = True
    encoding: str = "auto"

    def __post_init__(self) -> None:
        if self.delimiter not in ("auto", *headers.TAB) and not re.fullmatch(r"[ !#-~]", self.delimiter):
            raise DataError(
                f'delimiter is {self.delimiter!r}; allowed are "auto", "tab" and one character of ASCII, no quote'
            )
        if self.decimal not in ("auto", *notations.MARKS):
            raise DataError(f'decimal is {self.decimal!r}; allowed are "auto", "." and ","')
        if self.dates not in ("auto", *notations.ORDERS):
            raise DataError(f"dates is {self.dates!r}; allowed are auto, {' and '.join(notations.ORDERS)}")
        try:
            codecs.lookup("utf-8" if self.encoding == "auto" else self.encoding)
        except LookupError as error:
            raise DataError(
                f"encoding is {self.encoding!r}, which Python does not know; utf-8, cp1252 and utf-16 are frequent"
            ) from error


def recoded(text: "io.BufferedReader[Any]", encoding: str, name: str) -> "io.BufferedReader[Any]":
    """Return text as UTF-8; "auto" takes it for that, or for UTF-16 if it begins with its mark."""
    if encoding == "auto":
        marked = text.peek()[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        return io.BufferedReader(_Recoded(text, "utf-16", name)) if marked else text
    return text if codecs.lookup(encoding).name == "utf-8" else io.BufferedReader(_Recoded(text, encoding, name))


class _Recoded(io.RawIOBase):
    def __init__(self, text: Any, encoding: str, name: str) -> None:
        super().__init__()
        self._text, self._name = io.TextIOWrapper(text, encoding, newline=""), name

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._text.read(max(1, len(buffer) // 4)).encode()  # at most four bytes a character
        except UnicodeError as error:
            raise FileError(
                f"{self._name} is not {self._text.encoding} ({error}); name another (--encoding)"
            ) from error
        buffer[: len(data)] = data
        return len(data)


def cut(
    text: Any, columns: Sequence[str] | None, form: Form, name: str, missing: Sequence[str] = MISSING
) -> tuple[pa.Schema, Iterator[pa.RecordBatch], str]:
    """Cut CSV into cells: the names of the columns, all as text, the rows in blocks, and the delimiter.

    Parameters
    ----------
    text : binary file
        Only read from, never closed.
    columns : sequence of str, optional
        Those that are wanted, in this order.
    form : Form
        How it is written.
    name : str
        Of the file, for messages.
    missing : sequence of str
        Words that are missing if they stand without quotes.

    Raises
    ------
    FileError
        For text that is not UTF-8 or cannot be cut.
    DataError
        For a header that cannot serve, and columns that it lacks.
    """
    file = io.BufferedReader(Watched(text, _utf8_check(name)), headers.HEADER)
    names, spare, delimiter, used = headers.read_header(file.peek(), form.delimiter, form.header, name)
    file.read(used)
    wanted = names if columns is None else list(columns)
    check_present(wanted, names, name)
    schema = pa.schema([(column, pa.string()) for column in wanted])
    blocks = _blocks(file, [*names, *spare], wanted, delimiter, missing, max(_BLOCK, 32 * used), name)
    return schema, _without(blocks, spare, name), delimiter


def _without(blocks: Iterator[pa.RecordBatch], spare: Sequence[str], name: str) -> Iterator[pa.RecordBatch]:
    """Leave out columns that have no name, and may have no values."""
    start = 1
    for block in blocks:
        for column in spare:
            if (cells := block.column(column)).null_count < len(cells):
                row = start + int(pc.index(pc.is_valid(cells), True).as_py())
                raise DataError(f"{name}, row {row} after the header, has more cells than the header; name them all")
        start += len(block)
        yield block.drop_columns(list(spare)) if spare else block


def _blocks(
    file: "io.BufferedReader[Watched]",
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
        lambda share: f"{int(share * len(names)):,} fit: give fewer",
    )
    spare = [column for column in names if column.startswith(" ")]
    schema = pa.schema([(column, pa.string()) for column in (*wanted, *spare)])
    ragged: list[Any] = []

    def refuse(row: Any) -> str:
        ragged.append(row)  # an exception would be lost here
        return "error"

    # without threads it is hardly slower, and rows have numbers
    read = arrow_csv.ReadOptions(use_threads=False, block_size=size, column_names=names)
    parse = arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=refuse)
    convert = arrow_csv.ConvertOptions(
        check_utf8=False,  # was checked
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
        raise FileError(f"{name}{_reason(str(error), ragged, delimiter)}") from error
    # pyarrow closes a quote that is still open at the end, and then has lines for the text of the last cell
    if final is not None and names[-1] in schema.names and not file.raw.end.rstrip(b"\r\n").endswith(b'"'):
        cell = final.column(names[-1])[-1].as_py() if len(final) else None
        if cell is not None and "\n" in cell:
            raise FileError(f"{name} has a quote that is never closed, before {short(cell)}; remove or close it")


def _reason(message: str, ragged: Sequence[Any], delimiter: str) -> str:
    if ragged:
        row = ragged[0]
        todo = f"repair it, put cells that hold the delimiter {delimiter!r} in quotes, or name another delimiter"
        if row.expected_columns == 1 < row.actual_columns:
            todo += ", or remove a title that stands before the header"
        elif row.actual_columns == 1 < row.expected_columns:
            todo = "repair it, or remove it if it is a title, a comment or a source"
        return (
            f", row {row.number} after the header: expected {row.expected_columns} cells, found {row.actual_columns}: "
            f"{short(row.text)}; {todo}"
        )
    if "straddling" in message or "out of sync" in message:
        return " has a row that is much longer than its header, or a quote that is never closed; look for a stray quote"
    return f" cannot be cut into cells ({short(message, 120)}); write it again"


def _utf8_check(name: str) -> Callable[[bytes], None]:
    """Return a function that refuses bytes, shown piece by piece, that are not UTF-8 text."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    position = lines = 0

    def check(data: bytes) -> None:
        nonlocal position, lines
        if b"\0" in data:
            where = position + data.index(b"\0")
            raise FileError(f"{name} is neither Parquet nor text: byte {where} is zero; give CSV or Parquet")
        try:
            decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            where = position + len(data) - len(error.object) + error.start
            line = lines + error.object[: error.start].count(b"\n") + 1
            raise FileError(
                f"{name} is not UTF-8: byte {where}, in line {line}, is 0x{error.object[error.start]:02x}; name its "
                "encoding (--encoding cp1252 for many files of Western spreadsheets)"
            ) from error
        position += len(data)
        lines += data.count(b"\n")

    return check


# -------------------------------------------------------------------------------------------- into types


def equal_tables(schema: pa.Schema, pieces: Iterable[pa.RecordBatch], rows: int) -> Iterator[pa.Table]:
    """Cut record batches of any size anew, into tables of equally many rows and a last one with the rest."""
    held = pa.Table.from_batches([], schema)
    first = True
    for piece in pieces:
        held = pa.concat_tables([held, pa.Table.from_batches([piece])])
        while len(held) >= rows:
            yield held.slice(0, rows).combine_chunks()
            held, first = held.slice(rows), False
    if first or len(held):
        yield held.combine_chunks()


def trimmed(table: pa.Table) -> pa.Table:
    """Strip the text of a table with types, and take what is empty as missing, as CSV does."""
    found = []
    for column in table.columns:
        type_ = column.type.value_type if types.is_dictionary(column.type) else column.type
        if types.is_string_view(type_):
            type_ = pa.large_string()
        text = types.is_string(type_) or types.is_large_string(type_)
        found.append(stripped(pc.cast(column, type_), ("",)) if text else column)
    return pa.table(found, names=table.column_names)


def inferred(column: Column, marks: Sequence[str], dates: str = "auto", sure: bool = False) -> tuple[Column, str]:
    """Find the type of a whole column of text, and its values; and the notation they are written in, "" if plain.

    Parameters
    ----------
    column : Column
        Text, or cells.
    marks : sequence of str
        Decimal marks that are allowed, the likeliest first.
    dates : str
        As of :class:`Form`.
    sure : bool
        Whether the first mark is known; another one must not be found by few cells alone.
    """
    if column.type == CELL:
        return _inferred_cells(column, marks, dates, sure)
    if column.type == CODES:
        return stripped(column, ("",)), ""
    words = _only_words(column)
    ways = [("boolean", "")] if words else [*(("numeric", mark) for mark in marks), ("boolean", ""), ("date", "")]
    for cells in _readings(column):
        for kind, mark in ways:
            if (found := _typed(cells, kind, mark)) is None:
                continue
            if found.null_count == len(found):
                return pa.chunked_array([pa.nulls(len(found))]), ""
            if kind != "numeric":
                return found, ""
            if (whole := _cast(cells, pa.int64())) is not None:
                return whole, ""
            if not _exact(cells):
                return stripped(column, ("",)), ""
            if mark == "." and _cast(pc.utf8_trim_whitespace(cells), pa.float64()) is not None:
                return found, ""
            if (sure and mark == marks[0]) or not notations.doubtful(cells.drop_null(), mark):
                return found, mark + ("%" if notations.units(cells) == {"%"} else "")
    found = None if words else notations.days(stripped(column, MISSING), dates=dates)
    return found or (stripped(column, ("",)), "")


def _only_words(column: Column) -> bool:
    """Return True if one of the first cells does not even begin as a number or a date does, as in most text."""
    none = (*MISSING, *_GAPS)
    cells = [cell for cell in column.slice(0, _FIRST).to_pylist() if cell is not None]
    return any(not notations.BEGINNING.match(cell) and cell.strip() not in none for cell in cells)


def _inferred_cells(column: Column, marks: Sequence[str], dates: str, sure: bool) -> tuple[Column, str]:
    """Find the type by the text, with which numbers that need no notation go if it is one of numbers."""
    number = pc.struct_field(column, "number")
    values, notation = inferred(written(column), marks, dates, sure)
    if number.null_count == len(number):
        return values, notation
    if types.is_null(values.type):
        return number, ""
    if (types.is_integer(values.type) or types.is_floating(values.type)) and not notations.with_unit(bare(column)):
        return _joined(number, values), notation
    return stripped(pc.struct_field(column, "text"), ("",)), ""


def written(column: Column) -> Column:
    """Return the text whose notation counts: all of a column of text, and of cells those that are no typed numbers."""
    if column.type != CELL:
        return column
    text, number = pc.struct_field(column, "text"), pc.struct_field(column, "number")
    return pc.if_else(pc.is_valid(number), arrays.nothing(text.type), text)


def _exact(cells: Column) -> bool:
    """Return False if all cells are whole numbers and double precision changes one of them."""
    if not pc.all(pc.match_substring_regex(cells, r"^\s*[-+]?\d+\s*$"), min_count=0).as_py():
        return True
    long = cells.filter(pc.greater(pc.utf8_length(cells), 15)).unique().to_pylist()
    return all(len(cell) < _DIGITS and int(cell) == int(float(cell)) for cell in long)


def bare(column: Column) -> Column:
    """Return the text whose notation counts, stripped, without what is missing among numbers."""
    return stripped(written(column), MISSING + _GAPS)


def _joined(number: Column, others: Column) -> Column:
    return pc.coalesce(number, pc.cast(others, pa.float64(), safe=False))


def with_kinds(
    table: pa.Table, kinds: Mapping[str, str], known: Mapping[str, notations.Known], name: str, start: int
) -> pa.Table:
    """Give the columns of one piece, whose first row has the number `start`, the types of their kinds.

    Columns are read as is known of them, else numbers have either decimal mark.

    Raises
    ------
    DataError
        For the first cell of text that is not of its kind.
    """
    found = []
    for label, column in zip(table.column_names, table.columns, strict=True):
        kind, type_ = kinds.get(label), column.type
        if kind is not None and (types.is_string(type_) or types.is_large_string(type_) or type_ == CELL):
            way = known.get(label, notations.Known())
            column = _as_kind(column, kind, way, f"{name}, column {label!r}", start)
        elif kind == "numeric" and (types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_)):
            column = pc.cast(column, pa.float64(), safe=False)
        found.append(column)
    return pa.table(found, names=table.column_names)


def _as_kind(column: Column, kind: str, known: notations.Known, where: str, start: int) -> Column:
    if column.type == CELL:
        if kind == "numeric":
            text, number = pc.struct_field(column, "text"), pc.struct_field(column, "number")
            values = _as_kind(text if known.percent else written(column), kind, known, where, start)
            return _joined(number, values)
        column = pc.struct_field(column, "text")
    if kind == "category":
        return stripped(column, ("",))

    def read(cells: Column) -> Column | None:
        return next((found for way in ways if (found := _known(cells, kind, way, known)) is not None), None)

    ways = known.marks if kind == "numeric" else (known.notation,)
    for cells in _readings(column):
        if (values := read(cells)) is not None:
            return values
    bad = bisect.bisect_left(range(1, len(cells)), True, key=lambda n: read(cells.slice(0, n)) is None)
    raise DataError(
        f"{where}, row {start + bad} after the header: {short(cells[bad].as_py())} "
        f"{_refusal(cells.slice(bad, 1), kind, known)}"
    )


def _known(cells: Column, kind: str, way: str, known: notations.Known) -> Column | None:
    """Read text by what is known of its column; give nothing if a cell is of another kind, or of two values."""
    if (found := _typed(cells, kind, way)) is None or kind != "numeric":
        return found
    if (
        way == "." and "." not in known.doubt and not known.percent and _cast(cells, pa.float64()) is not None
    ):  # plain, as a rule
        return found
    if not known.units and notations.with_unit(cells):
        return None
    if known.percent and notations.units(cells) - {"%"}:
        return None
    doubtful = known.doubt and pc.any(notations.ambiguous(cells, known.doubt), min_count=0).as_py()
    return None if doubtful else found


def _refusal(cell: Column, kind: str, known: notations.Known) -> str:
    """Say why one cell is refused, and what a cell of its kind is, in the notation that is known of its column."""
    what, todo = _EXPECTED[kind], "correct it, or leave the cell empty"
    if kind == "numeric":
        (mark, *others), readable = known.marks, [way for way in notations.MARKS if _typed(cell, kind, way) is not None]
        point, other = ("point", ",") if mark == "." else ("comma", ".")
        if mark in readable and notations.with_unit(cell) and not known.units:
            return f"is not a number without a unit, as the training had it; {todo}"
        if mark in readable and known.percent:
            return f"has no per cent sign, which all cells of the training had; {todo}"
        if mark in readable:
            return (
                "is one number with a decimal point and another with a decimal comma, and the rest of the table does "
                "not tell which it is; give --decimal . or --decimal ,"
            )
        if known.notation in notations.MARKS or (readable and not others):
            what += f" with a decimal {point} (--decimal {other} reads it otherwise)"
    if kind == "date" and "%" in known.notation:
        what = f"a date such as {date(2024, 12, 31).strftime(known.notation)} ({known.notation})"
    return f"is not {what}; {todo}"


def _readings(column: Column) -> Iterator[Column]:
    """Give a column as it is, and to those who cannot read it so, stripped and rid of more and more for missing."""
    yield column
    yield stripped(column, MISSING)
    yield stripped(column, MISSING + _GAPS)


def _typed(cells: Column, kind: str, notation: str) -> Column | None:
    """Read text as numbers, booleans or dates; give nothing if a cell is of another kind."""
    if kind == "boolean":
        return _cast(cells, pa.bool_())  # true and false in any case, 1 and 0
    if kind == "date":
        for unit, zone in itertools.product(("us", "ns"), (None, "UTC")):  # "ns" takes more than six digits
            if (times := _cast(cells, pa.timestamp(unit, zone))) is not None:
                return pc.cast(times, pa.timestamp("us"), safe=False)
        found = notations.days(cells, notation) if "%" in notation else None
        return None if found is None else found[0]
    numbers = _cast(cells, pa.float64()) if notation == "." else None
    if numbers is None:
        numbers = notations.numbers(cells, notation)
    return None if numbers is None else pc.if_else(pc.is_nan(numbers), arrays.nothing(pa.float64()), numbers)


def _cast(cells: Column, type_: pa.DataType) -> Column | None:
    with contextlib.suppress(pa.ArrowInvalid):
        return pc.cast(cells, type_)
    return None


def stripped(column: Column, missing: Sequence[str]) -> Column:
    """Strip text; what is one of some words then is missing, in quotes or not."""
    text = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(text, value_set=arrays.text(missing, text.type)), arrays.nothing(text.type), text)
