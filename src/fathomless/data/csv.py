"""CSV from bytes to typed columns, by the rules that :mod:`fathomless.data.files` states; it touches no files.

pyarrow cuts the text into cells, all of them text at first, and then casts them. Its reader is not told the types of
the columns, even where they are known: it can take words in quotes as missing in all columns or in none, knows a date
in one unit and with one kind of zone, and refuses a whole block for a cell, before the rows that stand in front of it
were given. The few functions that give the types serve a whole column as well as a piece of one, so that both ways of
reading agree.
"""

import bisect
import codecs
import contextlib
import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv as arrow_csv
from pyarrow import types

from fathomless.data import arrays, notations
from fathomless.system.errors import DataError, FileError

__all__ = [
    "CELL",
    "COLUMN_KINDS",
    "MISSING",
    "Column",
    "Form",
    "Watched",
    "check_names",
    "check_present",
    "cut",
    "equal_tables",
    "headless",
    "inferred",
    "named_by_place",
    "nearly_numbers",
    "recoded",
    "short",
    "some",
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

#: Cells that are no values.
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "NaN", "nan", "null", "NULL", "None", "?")
_GAPS = ("-", "--", ".", "na", "n.a.", "N.A.", "#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?", "#NUM!")
_EXPECTED: Mapping[str, str] = {
    "numeric": "a number",
    "boolean": "true, false, 1 or 0",
    "date": "an ISO date such as 2024-12-31 or 2024-12-31 23:59:59",
}
_DELIMITERS = ",;\t|"
_TAB = ("tab", "\\t", "\t")
_NUMBER = re.compile(r"[-+]?(\d+[.,]?\d*|[.,]\d+)([eE][-+]?\d+)?")
_VALUE = re.compile(r"[-+.,]*\d[-+.,:/ T\d]*([eE][-+]?\d+)?")  # a number, a date or a time, one way or another
_AMOUNT = r"^[-+$€£¥]*\s*\d[\d.,' ]*([eE][-+]?\d+)?\s*[%$€£¥]?$"  # as RE2 has it
_LEVELS = 10  # numbers that may be names of categories
_HEADER = 4 << 20  # bytes within which the header must end
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
        if self.delimiter not in ("auto", *_TAB) and not re.fullmatch(r"[ !#-~]", self.delimiter):
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


def cut(text: Any, columns: Sequence[str] | None, form: Form, name: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Cut CSV into cells: the names of the columns, all as text, and the rows in blocks.

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

    Raises
    ------
    FileError
        For text that is not UTF-8 or cannot be cut.
    DataError
        For a header that cannot serve, and columns that it lacks.
    """
    file = io.BufferedReader(Watched(text, _utf8_check(name)), _HEADER)
    names, delimiter, used = _read_header(file.peek(), form, name)
    file.read(used)
    wanted = names if columns is None else list(columns)
    check_present(wanted, names, name)
    schema = pa.schema([(column, pa.string()) for column in wanted])
    return schema, _blocks(file, names, schema, delimiter, max(_BLOCK, 32 * used), name)


def _blocks(
    file: "io.BufferedReader[Watched]", names: list[str], schema: pa.Schema, delimiter: str, size: int, name: str
) -> Iterator[pa.RecordBatch]:
    if not file.peek():
        return
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
        null_values=[before + word + after for word in MISSING for before in ("", " ") for after in ("", " ")],
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
        return (
            f", row {row.number} after the header: expected {row.expected_columns} cells, found {row.actual_columns}: "
            f"{short(row.text)}; repair it, put cells that hold the delimiter {delimiter!r} in quotes, or name another "
            "delimiter"
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


def _read_header(head: bytes, form: Form, name: str) -> tuple[list[str], str, int]:
    """Return the column names, the delimiter, and the length of the header in bytes."""
    delimiter = form.delimiter
    text = head.decode("utf-8", errors="ignore")  # was checked: at most the last character is cut off
    found = []
    candidates = _DELIMITERS if delimiter == "auto" else "\t" if delimiter in _TAB else delimiter
    for candidate in candidates:
        lines = io.StringIO(text, newline="")
        lines.seek(int(text.startswith("\ufeff")))  # past a byte-order mark
        reader = csv.reader(lines, delimiter=candidate, strict=True)
        with contextlib.suppress(csv.Error):
            cells = next((row for row in reader if len(row) > 1 or "".join(row).strip()), [])
            found.append((cells, candidate, lines.tell()))
    cells, delimiter, stop = max(found, key=lambda option: len(option[0]), default=([""], "", 0))
    if len(cells) == 1 and len(found) < len(candidates):
        raise FileError(f"{name} has a header that cannot be read; look for a stray quote in it")
    used = len(text[:stop].encode())
    if not cells:
        raise FileError(f"{name} is empty; a table needs a header line with column names")
    if used >= _HEADER - 4:  # a character may be cut off
        raise FileError(f"{name} has a header of more than {_HEADER} bytes; is this a table?")
    if not form.header:
        return [f"column_{i}" for i in range(1, len(cells) + 1)], delimiter, 3 * text.startswith("\ufeff")
    if all(_NUMBER.fullmatch(cell.strip()) for cell in cells):
        raise DataError(
            f"{name} starts with numbers ({short(', '.join(cell.strip() for cell in cells))}); add a line with the "
            "column names, or say that there is none (--no-header)"
        )
    names = named_by_place(cells)
    check_names(names, name)
    return names, delimiter, used


def named_by_place(cells: Sequence[str]) -> list[str]:
    """Strip the names of a header; a first one that is empty is the index that pandas writes."""
    names = [cell.strip() for cell in cells]
    return ["index", *names[1:]] if len(names) > 1 and not names[0] and "index" not in names else names


def check_names(names: Sequence[str], name: str) -> None:
    """Refuse names of columns that are none, empty or repeated."""
    if not names:
        raise DataError(f"{name}: there are no columns; at least one is needed")
    if empty := [i for i, column in enumerate(names, start=1) if not column]:
        raise DataError(
            f"{name}: column {empty[0]} of {len(names)} has no name; name it in the header, or remove it"
            f"{headless(names)}"
        )
    if twice := sorted(column for column, count in Counter(names).items() if count > 1):
        raise DataError(f"{name} has the column names {some(twice)} more than once; rename them{headless(names)}")


def headless(names: Sequence[str]) -> str:
    """Return what to say of names half of which are numbers or dates: that the first row may hold values, else nothing.

    Examples
    --------
    >>> headless(["12", "0.5", "red", "2024-02-29"])
    '. The first row seems to hold values: if so, give --no-header, and columns are column_1, column_2, ...'
    >>> headless(["size", "price", "2023", "area2"])
    ''
    """
    values = sum(bool(_VALUE.fullmatch(name)) for name in names)
    if 2 * values < len(names) or list(names) == [str(i) for i in range(len(names))]:  # as pandas calls columns
        return ""
    return ". The first row seems to hold values: if so, give --no-header, and columns are column_1, column_2, ..."


def check_present(wanted: Iterable[str], names: Sequence[str], name: str) -> None:
    """Refuse a table that lacks a column."""
    known = set(names)
    if absent := [column for column in wanted if column not in known]:
        raise DataError(f"{name} lacks the columns {some(absent)}; it has {some(names)}{headless(names)}")


def some(names: Sequence[str]) -> str:
    """List names for a message, at most ten of them."""
    shown = ", ".join(map(repr, names[:10]))
    return shown if len(names) <= 10 else f"{shown}, ... ({len(names)} in all)"


def short(text: str, limit: int = 60) -> str:
    """Quote text for a message, on one line and not too much of it."""
    plain = " ".join(text.split())
    return repr(plain) if len(plain) <= limit else f"{plain[:limit]!r}..."


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
        found.append(_stripped(pc.cast(column, type_), ("",)) if text else column)
    return pa.table(found, names=table.column_names)


def inferred(column: Column, marks: Sequence[str], dates: str = "auto") -> tuple[Column, str]:
    """Find the type of a whole column of text, and its values; and the notation they are written in, "" if plain.

    Parameters
    ----------
    column : Column
        Text, or cells.
    marks : sequence of str
        Decimal marks that are allowed, the likeliest first.
    dates : str
        As of :class:`Form`.
    """
    if column.type == CELL:
        return _inferred_cells(column, marks, dates)
    ways = [*(("numeric", mark) for mark in marks), ("boolean", ""), ("date", "")]
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
            plain = mark == "." and _cast(pc.utf8_trim_whitespace(cells), pa.float64()) is not None
            return found, "" if plain else mark
    cells = _stripped(column, MISSING)
    return notations.days(cells, dates=dates) or (_stripped(column, ("",)), "")


def _inferred_cells(column: Column, marks: Sequence[str], dates: str) -> tuple[Column, str]:
    """Find the type by the text, with which numbers that need no notation go if it is one of numbers."""
    number = pc.struct_field(column, "number")
    values, notation = inferred(written(column), marks, dates)
    if number.null_count == len(number):
        return values, notation
    if types.is_null(values.type):
        return number, ""
    if types.is_integer(values.type) or types.is_floating(values.type):
        return _joined(number, values), notation
    return _stripped(pc.struct_field(column, "text"), ("",)), ""


def written(column: Column) -> Column:
    """Return the text whose notation counts: all of a column of text, and of cells those that are no typed numbers."""
    if column.type != CELL:
        return column
    text, number = pc.struct_field(column, "text"), pc.struct_field(column, "number")
    return pc.if_else(pc.is_valid(number), arrays.nothing(text.type), text)


def _joined(number: Column, others: Column) -> Column:
    return pc.coalesce(number, pc.cast(others, pa.float64(), safe=False))


def nearly_numbers(column: Column) -> list[str]:
    """Return the cells that are no numbers, each once, of text most of whose cells are; else nothing.

    Examples
    --------
    >>> nearly_numbers(pa.chunked_array([[*map(str, range(30)), "unknown", "30 m²", "unknown"]]))
    ['unknown', '30 m²']
    """
    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        return []
    cells = _stripped(column, MISSING + _GAPS).drop_null()
    numbers = pc.match_substring_regex(cells, _AMOUNT)
    most = 0.8 * len(cells) < pc.sum(numbers, min_count=0).as_py() < len(cells)
    if not most or len(cells.filter(numbers).unique()) <= _LEVELS:  # few are levels: 1, 2 and 3+ children
        return []
    return cast(list[str], cells.filter(pc.invert(numbers)).unique().to_pylist())


def with_kinds(
    table: pa.Table, kinds: Mapping[str, str], notation: Mapping[str, str], decimal: str, name: str, start: int
) -> pa.Table:
    """Give the columns of one piece, whose first row has the number `start`, the types of their kinds.

    Columns are in the notation that is known of them, else numbers have the decimal mark, or either ("auto").

    Raises
    ------
    DataError
        For the first cell of text that is not of its kind.
    """
    found = []
    for label, column in zip(table.column_names, table.columns, strict=True):
        kind, type_ = kinds.get(label), column.type
        if kind is not None and (types.is_string(type_) or types.is_large_string(type_) or type_ == CELL):
            known = notation.get(label, decimal)
            column = _as_kind(column, kind, known, f"{name}, column {label!r}", start)
        elif kind == "numeric" and (types.is_integer(type_) or types.is_floating(type_) or types.is_decimal(type_)):
            column = pc.cast(column, pa.float64(), safe=False)
        found.append(column)
    return pa.table(found, names=table.column_names)


def _as_kind(column: Column, kind: str, notation: str, where: str, start: int) -> Column:
    if column.type == CELL:
        if kind == "numeric":
            values = _as_kind(written(column), kind, notation, where, start)
            return _joined(pc.struct_field(column, "number"), values)
        column = pc.struct_field(column, "text")
    if kind == "category":
        return _stripped(column, ("",))
    ways = notations.MARKS if kind == "numeric" and notation not in notations.MARKS else (notation,)
    for cells in _readings(column):
        for way in ways:
            if (found := _typed(cells, kind, way)) is not None:
                return found
    bad = bisect.bisect_left(
        range(1, len(cells)), True, key=lambda n: all(_typed(cells.slice(0, n), kind, way) is None for way in ways)
    )
    raise DataError(
        f"{where}, row {start + bad} after the header: {short(cells[bad].as_py())} is not {_expected(kind, notation)}; "
        "correct it, or leave the cell empty"
    )


def _expected(kind: str, notation: str) -> str:
    """Say what a cell of a kind is, in the notation that is known of its column."""
    if kind == "numeric" and notation in notations.MARKS:
        mark, other = ("point", ",") if notation == "." else ("comma", ".")
        return f"{_EXPECTED[kind]} with a decimal {mark} (--decimal {other} reads it otherwise)"
    if kind == "date" and "%" in notation:
        return f"a date such as {date(2024, 12, 31).strftime(notation)} ({notation})"
    return _EXPECTED[kind]


def _readings(column: Column) -> Iterator[Column]:
    """Give a column as it is, and to those who cannot read it so, stripped and rid of more and more for missing."""
    yield column
    yield _stripped(column, MISSING)
    yield _stripped(column, MISSING + _GAPS)


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


def _stripped(column: Column, missing: Sequence[str]) -> Column:
    """Strip text; what is one of some words then is missing, in quotes or not."""
    bare = pc.utf8_trim_whitespace(column)
    return pc.if_else(pc.is_in(bare, value_set=arrays.text(missing, bare.type)), arrays.nothing(bare.type), bare)
