r"""Notations of numbers and dates in text: decimal marks, thousands separators, units, and the order of dates.

A notation is a string. For numbers it is the decimal mark, "." or ",", followed by "%" if the numbers have a per cent
sign. Thousands separators are the other mark, a space or an apostrophe, between groups of three digits. A currency or a
per cent sign before or after a number is dropped. For dates the notation is a format of :func:`time.strptime`.

The notation is inferred from the cells. Some numbers, such as 1.234, can be read with either mark. For these the other
cells of the table determine the mark, and if they do not, the delimiter does: in a file delimited by semicolons, 1,234
has a decimal comma. Dates with slashes or dashes may begin with the day or the month. A cell such as 31/12/2024
determines the order; without one, the column stays text unless the caller gives the order.
"""

import contextlib
import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fathomless.tables import arrays

__all__ = [
    "AMBIGUOUS",
    "BEGINNING",
    "HEAD",
    "MARKS",
    "ORDERS",
    "ColumnRule",
    "describe_notation",
    "distinct_units",
    "extract_units",
    "has_unit",
    "infer_column_marks",
    "infer_decimal_mark",
    "infer_rules",
    "is_doubtful",
    "is_numeric",
    "match_ambiguous",
    "match_numbers",
    "may_be_grouped",
    "parse_dates",
    "parse_numbers",
]

#: Decimal marks.
MARKS = (".", ",")
#: Orders of dates that no cell determines.
ORDERS = ("day-first", "month-first")
#: Notation of text that may be dates in either order.
AMBIGUOUS = "ambiguous dates"

#: Number of first cells of a column from which the decimal mark is inferred.
HEAD = 1000
_FEW = 0.05  # share of the cells of a column that is too small to determine its decimal mark
_SEVERAL = 3  # least number of cells of a kind that a note mentions
_MOST = 0.8  # share of the first cells that must be numbers
_SPACES = " \u00a0\u2009\u202f'’"
_GAP = "[\\s\u00a0\u2009\u202f]*"
_UNIT = r"(?:[€$£¥%‰]|EUR|USD|GBP|CHF|JPY)"
#: Beginning of a cell that may be a number or a date.
BEGINNING = re.compile(rf"\s*(?:[-+.,\d(\u2212]|{_UNIT}|inf|nan)", re.IGNORECASE)
_BARE = rf"^{_GAP}([-+]?){_GAP}{_UNIT}?{_GAP}([-+]?[\d.,{_SPACES}]*[\d.,](?:[eE][-+]?\d+)?){_GAP}{_UNIT}?{_GAP}$"
_GRAMMAR: Mapping[str, str] = {
    mark: rf"^[-+]?(?:(?:\d+|[1-9]\d{{0,2}}(?:{other}\d{{3}})+|[1-9]\d{{0,2}}(?:[{_SPACES}]\d{{3}})+)(?:{own}\d*)?"
    rf"|{own}\d+)(?:[eE][-+]?\d+)?$"
    for mark, own, other in ((".", r"\.", ","), (",", ",", r"\."))
}
_BETWEEN: Mapping[str, str] = {".": f"[,{_SPACES}]", ",": f"[.{_SPACES}]"}
_DAYS: Mapping[str, tuple[str, ...]] = {  # possible formats of each pattern of text
    r"^\d{1,2}\.\d{1,2}\.\d{4}": ("%d.%m.%Y",),
    r"^\d{4}/\d{1,2}/\d{1,2}": ("%Y/%m/%d",),
    r"^\d{4}\.\d{1,2}\.\d{1,2}": ("%Y.%m.%d",),
    r"^\d{1,2}/\d{1,2}/\d{4}": ("%d/%m/%Y", "%m/%d/%Y"),
    r"^\d{1,2}-\d{1,2}-\d{4}": ("%d-%m-%Y", "%m-%d-%Y"),
}
_TIMES: Mapping[str, str] = {r"$": "", r" \d{1,2}:\d{2}$": " %H:%M", r" \d{1,2}:\d{2}:\d{2}$": " %H:%M:%S"}

Column: TypeAlias = pa.ChunkedArray


@dataclass(frozen=True)
class ColumnRule:
    """Rules for reading the cells of one column.

    Attributes
    ----------
    notation : str
        A decimal mark, a date format, or "auto".
    marks : tuple of str
        Allowed decimal marks, the most likely first.
    units : bool
        True if currencies and per cent signs are allowed.
    doubt : str
        Marks that must not occur in an ambiguous number, such as 1,234.
    percent : bool
        True if all numbers must have a per cent sign.
    """

    notation: str = "auto"
    marks: tuple[str, ...] = MARKS
    units: bool = True
    doubt: str = ""
    percent: bool = False


def is_numeric(notation: str) -> bool:
    """Return True if a notation is one of numbers, False if it is one of dates."""
    return notation in MARKS or notation in [mark + "%" for mark in MARKS]


def parse_numbers(cells: Column, mark: str) -> Column | None:
    """Parse text as numbers with a given decimal mark; return None if a cell is not a number, or units differ.

    Examples
    --------
    >>> parse_numbers(pa.chunked_array([["1.234,50 €", "7 €"]]), ",").to_pylist()
    [1234.5, 7.0]
    """
    if len(cells) > 2 * HEAD and parse_numbers(cells.slice(0, HEAD), mark) is None:  # quick test for text
        return None
    if not pc.all(match_numbers(cells, mark), min_count=0).as_py() or len(distinct_units(cells)) > 1:
        return None
    plain = pc.replace_substring_regex(_strip_units(cells), _BETWEEN[mark], "")
    with contextlib.suppress(pa.ArrowInvalid):
        return pc.cast(pc.replace_substring(plain, mark, "."), pa.float64())
    return None


def match_numbers(cells: Column, mark: str) -> Column:
    """Return a mask of the cells that are numbers with a given decimal mark, with any unit; missing if a cell is."""
    return pc.match_substring_regex(_strip_units(cells), _GRAMMAR[mark])


def match_ambiguous(cells: Column, marks: str) -> Column:
    """Return a mask of the cells that contain one of `marks` and are numbers with either mark, such as 1,234."""
    both = pc.and_(match_numbers(cells, "."), match_numbers(cells, ","))
    return pc.and_(both, pc.match_substring_regex(cells, f"[{marks}]"))


def _strip_units(cells: Column) -> Column:
    return pc.replace_substring_regex(_write_signs(cells), _BARE, r"\1\2")


def _write_signs(cells: Column) -> Column:
    """Write negative numbers with a hyphen: those with the minus sign U+2212, and those in parentheses."""
    return pc.replace_substring_regex(
        pc.replace_substring(cells, "\u2212", "-"), r"^\s*\(([^()-]*\d[^()-]*)\)\s*$", r"-\1"
    )


def parse_dates(cells: Column, notation: str | None = None, dates: str = "auto") -> tuple[Column, str] | None:
    """Parse text as dates other than ISO dates; return the dates and their format.

    If the order of day and month is not determined by a cell, `dates`, one of `ORDERS`, sets it. Otherwise the text is
    returned unchanged, with `AMBIGUOUS`.

    Examples
    --------
    >>> parse_dates(pa.chunked_array([["01.02.2024", "31.12.2023"]]))[1]
    '%d.%m.%Y'
    """
    if len(cells) > 2 * HEAD and not pc.any(_match_dates(cells.slice(0, HEAD)), min_count=0).as_py():
        return None
    for (pattern, orders), (rest, time) in itertools.product(_DAYS.items(), _TIMES.items()):
        if notation is not None and notation not in [order + time for order in orders]:
            continue
        if not pc.all(pc.match_substring_regex(cells, pattern + rest), min_count=0).as_py():
            continue
        fitting = []
        for form in [order + time for order in orders] if notation is None else [notation]:
            parsed = pc.strptime(cells, format=form, unit="us", error_is_null=True)
            if (
                parsed.null_count == cells.null_count
                and pc.all(_match_existing(cells, parsed, form), min_count=0).as_py()
            ):
                fitting.append((parsed, form))
        if len(fitting) == 1 or (fitting and fitting[0][0].equals(fitting[-1][0])):
            return fitting[0]
        if dates in ORDERS and fitting:
            return fitting[ORDERS.index(dates)]
        return (cells, AMBIGUOUS) if fitting else None
    return None


def infer_decimal_mark(columns: Iterable[Column], delimiter: str = "") -> str:
    """Infer the decimal mark of a table from the first cells of its text columns: "," if only columns need it.

    If no column determines it, the mark is "," for a semicolon delimiter and numbers with commas and no points.
    """
    columns = list(columns)
    if marks := set(infer_column_marks(columns)) - {None}:
        return "," if marks == {","} else "."
    heads = _take_heads(columns) if delimiter == ";" else []
    commas = delimiter == ";" and any(_is_any(match_ambiguous(head, ",")) for head in heads)
    return "," if commas and not any(_is_any(match_ambiguous(head, ".")) for head in heads) else "."


def infer_rules(
    columns: Mapping[str, Column], known: Mapping[str, str], plain: Iterable[str], delimiter: str
) -> tuple[dict[str, ColumnRule], str | None]:
    """Determine the reading rules of a new table from its cells and the notation of the training table.

    Parameters
    ----------
    columns : mapping of str to Column
        First cells of all text columns, without missing values.
    known : mapping of str to str
        Notations of some columns in the training table.
    plain : iterable of str
        Numeric columns that were plain in training: a decimal point, no thousands separators, no unit.
    delimiter : str
        Delimiter of the new table.

    Returns
    -------
    dict of str to Known
        Rules of the columns of `known` and `plain`.
    str or None
        Decimal mark of the new table, if it differs from that of the training table.

    Notes
    -----
    A column that is readable with one mark only is read with this mark. Other columns follow the rest of the table, and
    if it does not determine a mark, the training table. Ambiguous numbers are refused in three cases: columns of the
    new table contradict each other; no cell determines the mark and a column has commas that it did not have in
    training; or the delimiter conflicts with the mark.
    """
    before = dict.fromkeys(plain, ".") | {name: way[0] for name, way in known.items() if is_numeric(way)}
    common = next(iter(before.values()), None) if len(set(before.values())) == 1 else None
    inferred = dict(zip(columns, infer_column_marks(columns.values()), strict=True))
    # mark now and in training, of the columns whose cells determine it
    compared = {name: (mark, before.get(name, common)) for name, mark in inferred.items() if mark}
    same = any(mark == old for mark, old in compared.values())
    changed = {mark for mark, old in compared.values() if old not in (mark, None)}
    consistent = len({mark for mark, _ in compared.values()}) == 1
    moved = next(iter(changed)) if changed and not same and consistent else None
    rules = {name: ColumnRule(way) for name, way in known.items() if not is_numeric(way)}
    for name, old in before.items():
        mark = moved or old
        explicit = name in known
        doubt = ""
        if changed and moved is None:  # columns contradict each other
            doubt = "" if inferred.get(name) else ".,"
            mark = mark if explicit else inferred.get(name) or mark
        elif not compared:  # no cell determines a mark
            doubt = "," if not explicit or (old == "." and delimiter == ";") else ""
            doubt += "." if old == delimiter == "," and len(columns) > 1 else ""
        percent = known.get(name, "").endswith("%")
        rules[name] = ColumnRule(mark if explicit or moved else "auto", (mark,), explicit, doubt, percent)
    return rules, moved


def _take_heads(columns: Iterable[Column]) -> list[Column]:
    return [pc.utf8_trim_whitespace(column.slice(0, HEAD)).drop_null() for column in columns]


def is_doubtful(cells: Column, mark: str) -> bool:
    """Return True if few cells need a decimal mark with which the others have thousands separators: 1.234, 5.678, 1,5.

    These few cells are then more likely errors, and the other cells have the other decimal mark.
    """
    other = MARKS[1 - MARKS.index(mark)]
    needing = _count(pc.and_(match_numbers(cells, mark), pc.invert(match_numbers(cells, other))))
    return 0 < needing <= max(1.0, _FEW * len(cells)) and _count(match_ambiguous(cells, other)) > 0.5 * len(cells)


def infer_column_marks(columns: Iterable[Column]) -> list[str | None]:
    """Return for each column the mark that reads most of its first cells, and more than the other mark; else None."""
    marks: list[str | None] = []
    for block, sizes in arrays.join_columns(column.slice(0, HEAD) for column in columns):
        cells = pa.chunked_array([pc.utf8_trim_whitespace(block)])
        ends = np.cumsum([0, *sizes])

        def counts(which: npt.NDArray[np.bool_], ends: npt.NDArray[np.int64] = ends) -> npt.NDArray[np.int64]:
            before = np.cumsum([0, *which])
            return np.asarray(before[ends[1:]] - before[ends[:-1]])

        present = counts(_to_mask(pc.is_valid(cells)))
        point, comma = (_to_mask(match_numbers(cells, mark)) for mark in MARKS)
        for_point, for_comma = counts(point), counts(comma)
        leans = np.where(for_point >= for_comma, 0, 1)  # index into MARKS
        determined = (np.maximum(for_point, for_comma) > _MOST * present) & (for_point != for_comma)
        needing = np.where(leans == 0, counts(point & ~comma), counts(comma & ~point))
        other = [counts(point & comma & _to_mask(pc.match_substring(cells, mark))) for mark in MARKS[::-1]]
        few = (needing > 0) & (needing <= np.maximum(1.0, _FEW * present))
        determined &= ~(few & (np.where(leans == 0, *other) > 0.5 * present))  # see doubtful
        pairs = zip(leans.tolist(), determined.tolist(), strict=True)
        marks += [MARKS[place] if sure else None for place, sure in pairs]
    return marks


def _to_mask(cells: Column) -> npt.NDArray[np.bool_]:
    return np.asarray(arrays.to_numpy(pc.and_kleene(cells, pc.is_valid(cells))), dtype=np.bool_)


def _count(mask: Column) -> int:
    return int(pc.sum(mask, min_count=0).as_py())


def _is_any(mask: Column) -> bool:
    return bool(pc.any(mask, min_count=0).as_py())


def describe_notation(notation: str) -> str:
    """Describe a notation for a message."""
    if is_numeric(notation):
        return f"numbers with {'decimal commas, ' if notation[0] == ',' else ''}thousands separators or units"
    if notation == AMBIGUOUS:
        return "text, since no cell determines whether its dates begin with the day or the month"
    return f"dates of the form {notation}"


def _match_existing(cells: Column, parsed: Column, form: str) -> Column:
    """Return a mask of the dates that exist: strptime turns February 31 into a day of March."""
    part = form[:8].replace(".", r"\.").replace("%d", r"(\d{1,2})").replace("%m", r"\d{1,2}").replace("%Y", r"\d{4}")
    written = pc.cast(pc.replace_substring_regex(cells, f"^{part}.*$", r"\1"), pa.int64())
    return pc.equal(written, pc.day(parsed))


def _match_dates(cells: Column) -> Column:
    return pc.match_substring_regex(cells, "|".join(f"(?:{pattern})" for pattern in _DAYS))


def may_be_grouped(cells: Column) -> bool:
    """Return True if points of numbers may be thousands separators: 1.653 and 12.500 beside 426 and 850.

    Every point is followed by three digits, and the other numbers are whole and below 1,000; there are several of both,
    and some of the latter have three digits.
    """
    grouped = pc.match_substring_regex(cells, r"^[-+]?[1-9]\d{0,2}\.\d{3}$")
    whole = pc.match_substring_regex(cells, r"^[-+]?\d{1,3}$")
    enough = _count(grouped) >= _SEVERAL and _count(whole) >= _SEVERAL
    return (
        enough
        and _count(pc.or_(grouped, whole)) == len(cells)
        and _is_any(pc.match_substring_regex(cells, r"^[-+]?[1-9]\d\d$"))
    )


def has_unit(cells: Column) -> bool:
    """Return True if a cell has a currency or a per cent sign."""
    return _is_any(pc.match_substring_regex(cells, _UNIT))


def extract_units(cells: Column) -> Column:
    """Return the unit beside the number of each cell, "" if there is none."""
    return pc.replace_substring_regex(_write_signs(cells), rf"[-+\d.,{_SPACES}\s]|[eE][-+]?\d+", "")


def distinct_units(cells: Column) -> set[str]:
    """Return the distinct units beside the numbers of cells."""
    return {unit for unit in pc.unique(extract_units(cells)).to_pylist() if unit is not None}
