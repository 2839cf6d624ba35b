r"""How text writes numbers and dates: decimal commas, marks between thousands, units, days first.

A notation is plain text. Of numbers it is their decimal mark, "." or ",": between thousands stand the other mark, a
space or an apostrophe, in groups of three digits, and before or after a number a currency or a per cent sign, which are
left out; a per cent sign follows the mark, ".%". Of dates it is a format of :func:`time.strptime`.

Cells decide. A number can be read by one mark, or by both (1.234): then the others of its table tell, and if they do
not, the delimiter does: of a file cut by semicolons 1,234 is a number with a decimal comma. Dates with
slashes or dashes may begin with the day or the month: a cell that only one of them can be decides, and if there is
none, the column stays text, unless the caller knows which.
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
    "Known",
    "ambiguous",
    "as_before",
    "days",
    "doubtful",
    "is_numeric",
    "leanings",
    "mark_of",
    "matching",
    "numbers",
    "unit_of",
    "units",
    "with_unit",
    "words",
]

#: Decimal marks.
MARKS = (".", ",")
#: What comes first in a date, where no cell tells.
ORDERS = ("day-first", "month-first")
#: The notation of text that may be dates with the day first or with the month first.
AMBIGUOUS = "ambiguous dates"

#: Cells of a column that tell how its table writes numbers.
HEAD = 1000
_FEW = 0.05  # of the cells of a column, which do not settle its decimal mark
_MOST = 0.8  # of these cells, which must be numbers
_SPACES = "  \u2009\u202f'’"
_UNIT = r"(?:[€$£¥%‰]|EUR|USD|GBP|CHF|JPY)"
#: How a cell begins that is a number or a date.
BEGINNING = re.compile(rf"\s*(?:[-+.,\d]|{_UNIT}|inf|nan)", re.IGNORECASE)
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


@dataclass(frozen=True)
class Known:
    """Rules for reading the cells of one column.

    Attributes
    ----------
    notation : str
        A decimal mark, a format of dates, or "auto".
    marks : tuple of str
        Decimal marks that are allowed, the likeliest first.
    units : bool
        Whether currencies and per cent signs are allowed.
    doubt : str
        Marks that may not stand in a number of more than one value, such as 1,234.
    percent : bool
        Whether all numbers must have a per cent sign.
    """

    notation: str = "auto"
    marks: tuple[str, ...] = MARKS
    units: bool = True
    doubt: str = ""
    percent: bool = False


def is_numeric(notation: str) -> bool:
    """Return True for a notation of numbers, False for one of dates."""
    return notation in MARKS or notation in [mark + "%" for mark in MARKS]


def numbers(cells: Column, mark: str) -> Column | None:
    """Read text as numbers with a decimal mark; nothing if a cell is none, or their units differ.

    Examples
    --------
    >>> numbers(pa.chunked_array([["1.234,50 €", "7 €"]]), ",").to_pylist()
    [1234.5, 7.0]
    """
    if len(cells) > 2 * HEAD and numbers(cells.slice(0, HEAD), mark) is None:  # text, as a rule
        return None
    if not pc.all(matching(cells, mark), min_count=0).as_py() or len(units(cells)) > 1:
        return None
    plain = pc.replace_substring_regex(_bare(cells), _BETWEEN[mark], "")
    with contextlib.suppress(pa.ArrowInvalid):
        return pc.cast(pc.replace_substring(plain, mark, "."), pa.float64())
    return None


def matching(cells: Column, mark: str) -> Column:
    """Return which cells are numbers with a decimal mark, with any unit; missing ones stay missing."""
    return pc.match_substring_regex(_bare(cells), _GRAMMAR[mark])


def ambiguous(cells: Column, marks: str) -> Column:
    """Return which cells hold one of some marks, and are another number by each decimal mark, such as 1,234."""
    both = pc.and_(matching(cells, "."), matching(cells, ","))
    return pc.and_(both, pc.match_substring_regex(cells, f"[{marks}]"))


def _bare(cells: Column) -> Column:
    return pc.replace_substring_regex(cells, _BARE, r"\1\2")


def days(cells: Column, notation: str | None = None, dates: str = "auto") -> tuple[Column, str] | None:
    """Read text as dates that are not ISO; return them and their format.

    Where days and months may stand in either order, `dates` decides, one of `ORDERS`; if it does not, the text comes
    back as it is, and `AMBIGUOUS`.

    Examples
    --------
    >>> days(pa.chunked_array([["01.02.2024", "31.12.2023"]]))[1]
    '%d.%m.%Y'
    """
    if len(cells) > 2 * HEAD and not pc.any(_like_days(cells.slice(0, HEAD)), min_count=0).as_py():
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


def mark_of(columns: Iterable[Column], delimiter: str = "") -> str:
    """Return the decimal mark of a table, by the first cells of its columns of text: "," where only it reads some.

    Where no column tells, the delimiter does: "," if it is a semicolon, and numbers have commas and no points.
    """
    columns = list(columns)
    if found := set(leanings(columns)) - {None}:
        return "," if found == {","} else "."
    heads = _heads(columns) if delimiter == ";" else []
    commas = delimiter == ";" and any(_any(ambiguous(head, ",")) for head in heads)
    return "," if commas and not any(_any(ambiguous(head, ".")) for head in heads) else "."


def as_before(
    columns: Mapping[str, Column], known: Mapping[str, str], plain: Iterable[str], delimiter: str
) -> tuple[dict[str, Known], str | None]:
    """Say how a new table is to be read, whose columns were read before: by its own cells, as the first table was.

    Parameters
    ----------
    columns : mapping of str to Column
        The first cells of all columns of text, without what is missing.
    known : mapping of str to str
        The notations of some columns in the first table.
    plain : iterable of str
        Columns of numbers that needed no notation there: a decimal point, nothing between thousands, no unit.
    delimiter : str
        Of the new table.

    Returns
    -------
    dict of str to Known
        For the columns of `known` and `plain`.
    str or None
        The decimal mark of the new table, if it is another one than before.

    Notes
    -----
    Of a column that can be read in one way only, that way is taken. Other columns follow the rest of the table, and, if
    it does not tell, the first table. Numbers of two values are doubtful where the table contradicts itself; and, if it
    does not tell, commas in a column that had none, and any whose delimiter is the decimal mark, or speaks against it.
    """
    before = dict.fromkeys(plain, ".") | {name: way[0] for name, way in known.items() if is_numeric(way)}
    common = next(iter(before.values()), None) if len(set(before.values())) == 1 else None
    own = dict(zip(columns, leanings(columns.values()), strict=True))
    told = {name: (way, before.get(name, common)) for name, way in own.items() if way}
    same = any(way == old for way, old in told.values())
    other = {way for way, old in told.values() if old not in (way, None)}
    moved = next(iter(other)) if other and not same and len({way for way, _ in told.values()}) == 1 else None
    found = {name: Known(way) for name, way in known.items() if not is_numeric(way)}
    for name, mark in before.items():
        way, explicit = moved or mark, name in known
        doubt = ""
        if other and moved is None:
            doubt = "" if own.get(name) else ".,"
            way = way if explicit else own.get(name) or way
        elif not told:
            doubt = "," if not explicit or (mark == "." and delimiter == ";") else ""
            doubt += "." if mark == delimiter == "," and len(columns) > 1 else ""
        percent = known.get(name, "").endswith("%")
        found[name] = Known(way if explicit or moved else "auto", (way,), explicit, doubt, percent)
    return found, moved


def _heads(columns: Iterable[Column]) -> list[Column]:
    return [pc.utf8_trim_whitespace(column.slice(0, HEAD)).drop_null() for column in columns]


def doubtful(cells: Column, mark: str) -> bool:
    """Return True if few cells decide for a decimal mark under which the others have thousands: 1.234, 5.678, 1,5.

    Those cells are then more likely of another notation, and the others have the other decimal mark.
    """
    other = MARKS[1 - MARKS.index(mark)]
    needing = _count(pc.and_(matching(cells, mark), pc.invert(matching(cells, other))))
    return 0 < needing <= max(1.0, _FEW * len(cells)) and _count(ambiguous(cells, other)) > 0.5 * len(cells)


def leanings(columns: Iterable[Column]) -> list[str | None]:
    """Return for each column the decimal mark that reads most of its first cells, and more than the other mark."""
    found: list[str | None] = []
    for block, sizes in arrays.blocks(column.slice(0, HEAD) for column in columns):
        cells = pa.chunked_array([pc.utf8_trim_whitespace(block)])
        ends = np.cumsum([0, *sizes])

        def counts(which: npt.NDArray[np.bool_], ends: npt.NDArray[np.int64] = ends) -> npt.NDArray[np.int64]:
            before = np.cumsum([0, *which])
            return np.asarray(before[ends[1:]] - before[ends[:-1]])

        present = counts(_mask(pc.is_valid(cells)))
        point, comma = (_mask(matching(cells, mark)) for mark in MARKS)
        for_point, for_comma = counts(point), counts(comma)
        leans = np.where(for_point >= for_comma, 0, 1)  # the place of the mark
        told = (np.maximum(for_point, for_comma) > _MOST * present) & (for_point != for_comma)
        needing = np.where(leans == 0, counts(point & ~comma), counts(comma & ~point))
        other = [counts(point & comma & _mask(pc.match_substring(cells, mark))) for mark in MARKS[::-1]]
        few = (needing > 0) & (needing <= np.maximum(1.0, _FEW * present))
        told &= ~(few & (np.where(leans == 0, *other) > 0.5 * present))  # see doubtful
        found += [MARKS[place] if sure else None for place, sure in zip(leans.tolist(), told.tolist(), strict=True)]
    return found


def _mask(found: Column) -> npt.NDArray[np.bool_]:
    return np.asarray(arrays.numpy_of(pc.and_kleene(found, pc.is_valid(found))), dtype=np.bool_)


def _count(found: Column) -> int:
    return int(pc.sum(found, min_count=0).as_py())


def _any(found: Column) -> bool:
    return bool(pc.any(found, min_count=0).as_py())


def words(notation: str) -> str:
    """Say a notation."""
    if is_numeric(notation):
        return f"numbers with {'decimal commas, ' if notation[0] == ',' else ''}marks between thousands or units"
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


def with_unit(cells: Column) -> bool:
    """Return True if a cell has a currency or a per cent sign."""
    return _any(pc.match_substring_regex(cells, _UNIT))


def unit_of(cells: Column) -> Column:
    """Return what stands beside the number of each cell."""
    return pc.replace_substring_regex(cells, rf"[-+\d.,{_SPACES}\s]|[eE][-+]?\d+", "")


def units(cells: Column) -> set[str]:
    """Return what stands beside the numbers of cells."""
    return {unit for unit in pc.unique(unit_of(cells)).to_pylist() if unit is not None}
