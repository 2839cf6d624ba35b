"""Cells that do not fit into their column, and rows that are no observations: units, totals, footers.

Both are found in text, before it has types: one cell of text turns a whole column of numbers into categories.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from fathomless.tables import notations
from fathomless.tables.arrays import together
from fathomless.tables.csv import CELL, Column, bare, stripped
from fathomless.tables.headers import short

__all__ = ["Odd", "Used", "left_out", "long_number", "observations", "odd_cells"]

Mask = npt.NDArray[np.bool_]

_MOST = 0.8  # of the cells of a column, which make it one of numbers or dates
_LEVELS = 10  # numbers that may be names of categories
_RARE = 0.05  # of the cells among so few numbers, which may be a category
_LEAST = 4  # cells, of which one alone is odd
_HEAD, _TAIL = 1000, 20  # rows that tell what a column holds, and that may be a footer
_UNIT = 24  # characters that a unit may have
_SHOWN = 5

_LAKHS = r"^[-+]?\d{1,2}(?:,\d{2})*,\d{3}(?:\.\d*)?$"  # as in India; the others are of `notations`
_CODE = r"^[-+]?0\d+"
_DATES: Mapping[str, str] = {
    "%Y-%m-%d": r"^(?P<y>\d{4})-(?P<m>\d{2})-(?P<d>\d{2})",
    "%d.%m.%Y": r"^(?P<d>\d{1,2})\.(?P<m>\d{1,2})\.(?P<y>\d{4})",
    "%Y/%m/%d": r"^(?P<y>\d{4})/(?P<m>\d{1,2})/(?P<d>\d{1,2})",
    "%Y.%m.%d": r"^(?P<y>\d{4})\.(?P<m>\d{1,2})\.(?P<d>\d{1,2})",
    "%d/%m/%Y": r"^(?P<d>\d{1,2})/(?P<m>\d{1,2})/(?P<y>\d{4})",
    "%m/%d/%Y": r"^(?P<m>\d{1,2})/(?P<d>\d{1,2})/(?P<y>\d{4})",
    "%d-%m-%Y": r"^(?P<d>\d{1,2})-(?P<m>\d{1,2})-(?P<y>\d{4})",
    "%m-%d-%Y": r"^(?P<m>\d{1,2})-(?P<d>\d{1,2})-(?P<y>\d{4})",
}
_CLOCK = r"[T ]\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?"
_ZONE = r"(?:Z|[-+]\d{2}:?\d{2})"
_RESTS: Mapping[bool, Sequence[str]] = {  # what may follow a date, of ISO and else
    True: (rf"(?:{_CLOCK})?$", rf"{_CLOCK}{_ZONE}$"),
    False: ("$", r" \d{1,2}:\d{2}$", r" \d{1,2}:\d{2}:\d{2}$"),
}
_MONTH = r"(?i:jan|feb|mar|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez)[a-zäé]*\.?"
_DATELIKE = (  # whatever its digits are, and whether it can be read or not
    r"^(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}([-/.])\d{1,2}[-/.](?:\d{4}|\d{2})"
    rf"|\d{{1,2}}\.?[- ]?{_MONTH}[-, ]*(?:\d{{4}}|\d{{2}})|{_MONTH}[- ]\d{{1,2}},?[- ]\d{{4}})"
    r"(?:(?:T| |, )\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[AaPp]\.?[Mm]\.?)?(?:Z| ?[-+]\d{2}:?\d{2})?)?$"
)
_TOTAL = re.compile(
    r"(?i)\W*(grand |sub-?)?(totals?|sums?|mean|averages?|avg|median|summen?|gesamt|insgesamt|mittelwert|"
    r"durchschnitt|somme|totaux|moyenne|totale|media|suma|promedio)\b.{0,20}"
)


# ------------------------------------------------------------------------------------------------- cells


@dataclass(frozen=True)
class Odd:
    """Cells of a column that keep it from being one of numbers or dates.

    Attributes
    ----------
    what : str
        What most cells are, "numbers" or "dates".
    cells : tuple of (str, int)
        Each of the others once, with its first row, counted from 0.
    """

    what: str
    cells: tuple[tuple[str, int], ...]


def odd_cells(column: Column) -> Odd | None:
    """Return the cells that are no numbers, or none of the same notation, of text most of whose cells are; or dates.

    Examples
    --------
    >>> odd_cells(pa.chunked_array([[*map(str, range(30)), "unknown", "5%", "unknown"]]))
    Odd(what='numbers', cells=(('unknown', 30), ('5%', 31)))
    """
    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        return None
    some = column.take(pa.array(range(0, len(column), 1 + len(column) // _HEAD), pa.int64()))
    if not _sum(_measured(bare(some))) > 0.5 * _sum(pc.is_valid(bare(some))):  # text, as a rule
        return None
    cells = bare(column)
    present = len(cells) - cells.null_count
    for what, like, ways in (("numbers", _like_numbers, _ways_of_numbers), ("dates", _like_dates, _ways_of_dates)):
        alike = _sum(like(cells))
        if not (alike > _MOST * present or (alike == present - 1 >= _LEAST - 1)):
            continue
        read = max(ways(cells), key=_sum)
        odd = pc.and_(pc.is_valid(cells), pc.invert(pc.fill_null(read, False)))
        count = _sum(odd)
        rare = count <= max(1.0, _RARE * present)
        if count and (rare or alike == present or what == "dates" or len(cells.filter(like(cells)).unique()) > _LEVELS):
            rows = np.flatnonzero(odd.to_numpy())
            firsts: dict[str, int] = {}
            for row, cell in zip(rows.tolist(), cells.filter(odd).to_pylist(), strict=True):
                firsts.setdefault(cell, row)
            return Odd(what, tuple(firsts.items()))
    return None


def long_number(column: Column) -> str | None:
    """Return a whole number of more than 15 digits from a column of text that has nothing but whole numbers."""
    if not pc.all(pc.match_substring_regex(column, r"^[-+]?\d+$"), min_count=0).as_py():
        return None
    long = column.filter(pc.greater(pc.utf8_length(column), 15)).drop_null()
    return None if not len(long) else str(long[0].as_py())


def _sum(found: Column) -> int:
    return int(pc.sum(found, min_count=0).as_py())


def _like_numbers(cells: Column) -> Column:
    """Return which cells are numbers in one notation or another, with any unit; codes such as 007 are none."""
    ways = [notations.matching(cells, mark) for mark in notations.MARKS]
    like = pc.or_(pc.or_(*ways), pc.match_substring_regex(cells, _LAKHS))
    return pc.and_(like, pc.invert(pc.match_substring_regex(cells, _CODE)))


def _ways_of_numbers(cells: Column) -> Iterable[Column]:
    """Return for each decimal mark and unit which cells are numbers of that kind."""
    unit = notations.unit_of(cells)
    like = pc.and_(_like_numbers(cells), pc.is_valid(cells))
    counts = pc.value_counts(unit.filter(like))
    frequent = counts.field("values").filter(pc.greater(counts.field("counts"), len(cells) // 20)).to_pylist()
    marks = [mark for mark in notations.MARKS if not notations.doubtful(cells.drop_null(), mark)]
    for mark, one in itertools.product(marks, frequent or [""]):
        yield pc.and_(pc.and_(notations.matching(cells, mark), like), pc.equal(unit, one))


def _like_dates(cells: Column) -> Column:
    return pc.match_substring_regex(cells, _DATELIKE)


def _ways_of_dates(cells: Column) -> Iterable[Column]:
    """Return for each form of dates that is read which cells are days of that form."""
    for form, pattern in _DATES.items():
        for rest in _RESTS[form == "%Y-%m-%d"]:
            found = pc.extract_regex(cells, pattern + rest)
            year, month, day = (
                pc.fill_null(pc.cast(pc.struct_field(found, part), pa.int64()), 0).to_numpy() for part in "ymd"
            )
            leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
            longest = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])[np.where(month < 13, month, 0)]
            exists = (year > 0) & (day > 0) & (day <= longest + (leap & (month == 2)))
            yield pa.chunked_array([pa.array(exists)])


# -------------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True)
class Used:
    """The rows of a table that are observations.

    Attributes
    ----------
    rows : ndarray of bool, shape (N,)
        Which ones.
    notes : tuple of str
        What was left out, for the reader.
    """

    rows: Mask
    notes: tuple[str, ...]


def observations(table: pa.Table, targets: Sequence[str], weight: str | None, drop: Sequence[str]) -> Used:
    """Find the rows of text, or of cells, that are observations: the others say nothing about the types of columns.

    Left out are rows without a target or of the weight 0; a first row that has text in columns of numbers and dates and
    no number, which are units; last rows that have text there and are empty else, or have but one cell, which are
    footers; and last rows with a word such as total.

    Parameters
    ----------
    table : pyarrow.Table
        Columns of text, or of cells.
    targets : sequence of str
        Columns of which none may be missing.
    weight : str, optional
        A column that says how often each row counts.
    drop : sequence of str
        Columns that are not used.
    """
    rows, notes = np.ones(len(table), dtype=bool), list[str]()
    columns = {name: _texts(table[name]) for name in table.column_names if name not in drop}
    for name in targets:
        if name in columns:
            rows &= ~_missing(columns[name])
    if not rows.any():
        return Used(np.ones(len(table), dtype=bool), ())
    if gaps := int((~rows).sum()):
        notes.append(left_out(gaps, "without a target"))
    if weight is not None and weight in columns:
        zero = pc.match_substring_regex(columns[weight], r"^\s*[-+]?(?:0+[.,]?0*|[.,]0+)(?:[eE][-+]?\d+)?\s*$")
        none = rows & pc.fill_null(zero, False).to_numpy()
        if none.any() and not none.all():
            notes.append(left_out(int(none.sum()), "of the weight 0"))
            rows &= ~none
    for why, places in _margins(columns, np.flatnonzero(rows)).items():
        rows[list(places)] = False
        said = ", ".join(short(text, 40) for text in list(dict.fromkeys(places.values()))[:_SHOWN])
        numbers = ", ".join(str(place + 1) for place in sorted(places))
        notes.append(
            f"row {numbers} after the header was left out, since it seems to be {why}: {said}"
            if len(places) == 1
            else f"rows {numbers} after the header were left out, since they seem to be {why}: {said}"
        )
    return Used(rows, tuple(notes))


def left_out(count: int, which: str) -> str:
    """Return a note on rows that were left out."""
    return f"1 row {which} was left out" if count == 1 else f"{count:,} rows {which} were left out"


def _texts(column: Column) -> Column:
    return pc.struct_field(column, "text") if column.type == CELL else column


def _missing(text: Column) -> Mask:
    """Return which cells of a target are missing: among numbers and dates more words are than among text."""
    cells = bare(text)
    head = cells.drop_null().slice(0, _HEAD)
    if not _sum(_measured(head)) > _MOST * len(head):
        cells = stripped(text, ("",))
    return np.asarray(cells.is_null().to_numpy())


def _measured(cells: Column) -> Column:
    """Return which cells are numbers or dates."""
    numbers = pc.or_(_like_numbers(cells), pc.match_substring_regex(cells, _CODE + "$"))
    return pc.fill_null(pc.or_(numbers, _like_dates(cells)), False)


def _margins(columns: Mapping[str, Column], places: npt.NDArray[np.int64]) -> dict[str, dict[int, str]]:
    """Return which of the rows at some places are units, totals or footers, and their text."""
    near = np.unique(np.concatenate([places[:_HEAD], places[-_TAIL:]]))
    end = len(near) - min(_TAIL, len(near) // 4)
    found: dict[str, dict[int, str]] = {}
    if len(near) < _LEAST + 1:
        return found
    cells = dict(zip(columns, together((column.take(near) for column in columns.values()), bare), strict=True))
    measured = together(cells.values(), _measured)
    number = {name: column.to_numpy() for name, column in zip(cells, measured, strict=True)}
    text = {name: column.to_pylist() for name, column in cells.items()}
    filled = {name: column.is_valid().to_numpy() for name, column in cells.items()}
    counted = [name for name in cells if number[name][1:end].sum() > max(1.0, _MOST * float(filled[name][1:end].sum()))]

    def row(i: int) -> tuple[dict[str, str], dict[str, str], list[str]]:
        """Return the cells of a row, its text among numbers, and the columns in which it has numbers."""
        own = {name: text[name][i] for name in cells if filled[name][i]}
        return own, {n: own[n] for n in counted if n in own and not number[n][i]}, [n for n in own if number[n][i]]

    own, words, numbers = row(0)
    units = (len(words) > 1 or list(words) == list(own)) and all(own[name] == "1" for name in numbers)
    if words and units and all(len(word) <= _UNIT for word in words.values()):
        found["units"] = {int(near[0]): ", ".join(words.values())}
    singles = sum(column.astype(int) for column in filled.values())[:end] == 1
    left = list(places)
    for i in range(len(near) - 1, end - 1, -1):
        own, words, numbers = row(i)
        few = 0 < len(own) <= max(1, len(cells) // 2) and not numbers
        alone = few and len(own) == 1 < len(cells) - 1 and not singles.any()
        labels = [name for name, word in own.items() if name not in numbers and _TOTAL.fullmatch(word)]
        if few and (words or (alone and all(text[name].count(word) == 1 for name, word in own.items()))):
            found.setdefault("footers", {})[int(near[i])] = next(iter(words.values()), *own.values())
        elif labels and (words.keys() & set(labels) or _adds_up([columns[name].take(left) for name in numbers])):
            found.setdefault("totals", {})[int(near[i])] = own[labels[0]]
        elif own:
            break
        left.remove(near[i])
    return found


def _adds_up(columns: Iterable[Column]) -> bool:
    """Return True if the last number of a column is the sum or the mean of the others."""
    for column in columns:
        for mark in notations.MARKS:
            if (values := notations.numbers(bare(column), mark)) is None:
                continue
            *others, last = values.to_pylist()
            known = [value for value in others if value is not None]
            if len(known) > 2 and any(np.isclose(last, fit, rtol=1e-3) for fit in (np.sum(known), np.mean(known))):
                return True
    return False
