r"""How text writes numbers and dates: decimal commas, marks between thousands, units, days first.

A notation is plain text. Of numbers it is their decimal mark, "." or ",": between thousands stand the other mark, a
space or an apostrophe, in groups of three digits, and before or after a number a currency or a per cent sign, which are
left out. Of dates it is a format of :func:`time.strptime`.

Cells decide. A number can be read by one mark, or by both (1.234): then the others of its table tell. Dates with
slashes or dashes may begin with the day or the month: a cell that only one of them can be decides, and if there is
none, the column stays text, unless the caller knows which.
"""

import contextlib
import itertools
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["AMBIGUOUS", "MARKS", "ORDERS", "days", "mark_of", "numbers", "words"]

#: Decimal marks.
MARKS = (".", ",")
#: What comes first in a date, where no cell tells.
ORDERS = ("day-first", "month-first")
#: The notation of text that may be dates with the day first or with the month first.
AMBIGUOUS = "ambiguous dates"

_HEAD = 1000  # cells of a column that tell how its table writes numbers
_SPACES = "  \u2009\u202f'’"
_UNIT = r"(?:[€$£¥%‰]|EUR|USD|GBP|CHF|JPY)"
_BARE = rf"^\s*([-+]?)\s*{_UNIT}?\s*([-+]?[\d.,{_SPACES}]*[\d.,](?:[eE][-+]?\d+)?)\s*{_UNIT}?\s*$"
_GRAMMAR: Mapping[str, str] = {
    mark: rf"^[-+]?(?:(?:\d+|[1-9]\d{{0,2}}(?:{other}\d{{3}})+|[1-9]\d{{0,2}}(?:[{_SPACES}]\d{{3}})+)(?:{own}\d*)?"
    rf"|{own}\d+)(?:[eE][-+]?\d+)?$"
    for mark, own, other in ((".", r"\.", ","), (",", ",", r"\."))
}
_BETWEEN: Mapping[str, str] = {".": f"[,{_SPACES}]", ",": f"[.{_SPACES}]"}
_DAYS: Mapping[str, tuple[str, ...]] = {  # of one pattern of text, in which orders it may be
    r"^\d{1,2}\.\d{1,2}\.\d{4}": ("%d.%m.%Y",),
    r"^\d{4}/\d{1,2}/\d{1,2}": ("%Y/%m/%d",),
    r"^\d{4}\.\d{1,2}\.\d{1,2}": ("%Y.%m.%d",),
    r"^\d{1,2}/\d{1,2}/\d{4}": ("%d/%m/%Y", "%m/%d/%Y"),
    r"^\d{1,2}-\d{1,2}-\d{4}": ("%d-%m-%Y", "%m-%d-%Y"),
}
_TIMES: Mapping[str, str] = {r"$": "", r" \d{1,2}:\d{2}$": " %H:%M", r" \d{1,2}:\d{2}:\d{2}$": " %H:%M:%S"}

Column: TypeAlias = pa.ChunkedArray


def numbers(cells: Column, mark: str) -> Column | None:
    """Read text as numbers with a decimal mark; nothing if a cell is none, or their units differ.

    Examples
    --------
    >>> numbers(pa.chunked_array([["1.234,50 €", "7 €"]]), ",").to_pylist()
    [1234.5, 7.0]
    """
    if len(cells) > 2 * _HEAD and numbers(cells.slice(0, _HEAD), mark) is None:  # text, as a rule
        return None
    bare = pc.replace_substring_regex(cells, _BARE, r"\1\2")
    if not pc.all(pc.match_substring_regex(bare, _GRAMMAR[mark]), min_count=0).as_py():
        return None
    if len(_units(cells)) > 1:
        return None
    plain = pc.replace_substring_regex(bare, _BETWEEN[mark], "")
    with contextlib.suppress(pa.ArrowInvalid):
        return pc.cast(pc.replace_substring(plain, mark, "."), pa.float64())
    return None


def days(cells: Column, notation: str | None = None, dates: str = "auto") -> tuple[Column, str] | None:
    """Read text as dates that are not ISO; return them and their format.

    Where days and months may stand in either order, `dates` decides, one of `ORDERS`; if it does not, the text comes
    back as it is, and `AMBIGUOUS`.

    Examples
    --------
    >>> days(pa.chunked_array([["01.02.2024", "31.12.2023"]]))[1]
    '%d.%m.%Y'
    """
    if len(cells) > 2 * _HEAD and not pc.any(_like_days(cells.slice(0, _HEAD)), min_count=0).as_py():
        return None
    for (pattern, orders), (rest, time) in itertools.product(_DAYS.items(), _TIMES.items()):
        if notation is not None and notation not in [order + time for order in orders]:
            continue
        if not pc.all(pc.match_substring_regex(cells, pattern + rest), min_count=0).as_py():
            continue
        fitting = []
        for form in [order + time for order in orders] if notation is None else [notation]:
            found = pc.strptime(cells, format=form, unit="us", error_is_null=True)
            if found.null_count == cells.null_count and pc.all(_exist(cells, found, form), min_count=0).as_py():
                fitting.append((found, form))
        if len(fitting) == 1 or (fitting and fitting[0][0].equals(fitting[-1][0])):
            return fitting[0]
        if dates in ORDERS and fitting:
            return fitting[ORDERS.index(dates)]
        return (cells, AMBIGUOUS) if fitting else None
    return None


def mark_of(columns: Iterable[Column]) -> str:
    """Return the decimal mark of a table, by the first cells of its columns of text: "," where only it reads some."""
    heads = [pc.utf8_trim_whitespace(column.slice(0, _HEAD)).drop_null() for column in columns]

    def needed(mark: str, other: str) -> bool:
        return any(numbers(head, mark) is not None and numbers(head, other) is None for head in heads if len(head))

    return "," if needed(",", ".") and not needed(".", ",") else "."


def words(notation: str) -> str:
    """Say a notation."""
    if notation in MARKS:
        return f"numbers with {'decimal commas, ' if notation == ',' else ''}marks between thousands or units"
    if notation == AMBIGUOUS:
        return "text, since no cell tells whether its dates begin with the day or the month"
    return f"dates of the form {notation}"


def _exist(cells: Column, found: Column, form: str) -> Column:
    """Whether the day of each date is the one that was written: the 31st of February is read as one of March."""
    part = form[:8].replace(".", r"\.").replace("%d", r"(\d{1,2})").replace("%m", r"\d{1,2}").replace("%Y", r"\d{4}")
    written = pc.cast(pc.replace_substring_regex(cells, f"^{part}.*$", r"\1"), pa.int64())
    return pc.equal(written, pc.day(found))


def _like_days(cells: Column) -> Column:
    return pc.match_substring_regex(cells, "|".join(f"(?:{pattern})" for pattern in _DAYS))


def _units(cells: Column) -> set[str]:
    """Return what stands beside the numbers."""
    found = pc.replace_substring_regex(cells, rf"[-+\d.,{_SPACES}\s]|[eE][-+]?\d+", "")
    return {unit for unit in pc.unique(found).to_pylist() if unit is not None}
