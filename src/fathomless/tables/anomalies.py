"""Cells that do not fit their column, and rows that are not observations: units, totals, footers.

Both are found in the untyped text, because a single text cell turns a whole column of numbers into categories.
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
from fathomless.tables.arrays import map_columns
from fathomless.tables.csv import CELL, Column, strip_missing, strip_text
from fathomless.tables.headers import quote

__all__ = [
    "OddCells",
    "UnreadForm",
    "UsedRows",
    "describe_dropped",
    "find_long_number",
    "find_observations",
    "find_odd_cells",
    "find_unread_form",
]

Mask = npt.NDArray[np.bool_]

_MOST = 0.8  # share of the cells above which a column is taken as numbers or dates
_LEVELS = 10  # maximum distinct numbers that may be names of categories
_RARE = 0.05  # share of other cells above which they may be a category beside so few numbers
_LEAST = 4  # minimum number of cells if all but one are alike
_HEAD = 1000  # rows from which the content of a column is inferred
_TAIL = 20  # last rows that may be a footer
_UNIT = 24  # maximum length of a unit
_SHOWN = 5
_NEARLY = 0.95  # share of the cells above which a column has a form
_SAME = 0.5  # share of the cells that must have the same unit

_LAKHS = r"^[-+]?\d{1,2}(?:,\d{2})*,\d{3}(?:\.\d*)?$"  # Indian grouping; other groupings are in `notations`
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
_RESTS: Mapping[bool, Sequence[str]] = {  # patterns after the day, of ISO dates and of others
    True: (rf"(?:{_CLOCK})?$", rf"{_CLOCK}{_ZONE}$"),
    False: ("$", r" \d{1,2}:\d{2}$", r" \d{1,2}:\d{2}:\d{2}$"),
}
_MONTH = r"(?i:jan|feb|mar|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez)[a-zäé]*\.?"
_DATELIKE = (  # looks like a date, valid or not
    r"^(?:\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}([-/.])\d{1,2}[-/.](?:\d{4}|\d{2})"
    rf"|\d{{1,2}}\.?[- ]?{_MONTH}[-, ]*(?:\d{{4}}|\d{{2}})|{_MONTH}[- ]\d{{1,2}},?[- ]\d{{4}})"
    r"(?:(?:T| |, )\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[AaPp]\.?[Mm]\.?)?(?:Z| ?[-+]\d{2}:?\d{2})?)?$"
)
_YEAR = r"(?:19|20)\d{2}"
_OF_YEAR = r"(?:0?[1-9]|1[0-2])"
_BLANK = "[\\s\u00a0\u202f]"
_WORD = r"[\pL°µ\"'′″][\pL°µ²³/^·.]{0,11}[23]?"
_FORMS: Mapping[str, tuple[str, str]] = {  # forms of text that is not read, each with what to write
    "times of the day or durations": (
        r"^(?:\d{1,3}:\d{2}(?::\d{2})?(?:[.,]\d+)? ?(?:[AaPp]\.?[Mm]\.?)?|\d{1,2} ?[AaPp]\.?[Mm]\.?|\d{1,2}[hH]\d{2})$",
        "write them as numbers, such as hours: 8.5 for 08:30",
    ),
    "months or quarters": (
        rf"^(?:{_YEAR}[-/]{_OF_YEAR}|{_OF_YEAR}[-/]{_YEAR}|{_MONTH}[-/ ,]*'?(?:\d{{4}}|\d{{2}})|{_YEAR}[-/ ]*{_MONTH}"
        rf"|{_YEAR}[-/ ]?[Qq][1-4]|[Qq][1-4][-/ ]?{_YEAR})$",
        "write them as dates, such as 2021-03-01",
    ),
    "numbers with a unit": (
        rf"^(?:[-+]?(?:[1-9][\d.,]*|0(?:[.,]\d+)?|[.,]\d+)(?:[eE][-+]?\d+)?{_BLANK}*{_WORD}(?:{_BLANK}{_WORD})?{_BLANK}*)+$",
        "write the numbers alone, in one unit",
    ),
}
_TOTAL = re.compile(
    r"(?i)\W*(grand |sub-?)?(totals?|sums?|mean|averages?|avg|median|summen?|gesamt|insgesamt|mittelwert|"
    r"durchschnitt|somme|totaux|moyenne|totale|media|suma|promedio)\b.{0,20}"
)


# ------------------------------------------------------------------------------------------------- cells


@dataclass(frozen=True)
class OddCells:
    """Cells that prevent a column from being numeric or a date.

    Attributes
    ----------
    what : str
        Kind of most cells, "numbers" or "dates".
    cells : tuple of (str, int)
        Distinct other cells, each with its first row, counted from 0.
    """

    what: str
    cells: tuple[tuple[str, int], ...]


def find_odd_cells(column: Column) -> OddCells | None:
    """Find the cells of another kind or notation in a text column of mostly numbers or mostly dates.

    Examples
    --------
    >>> find_odd_cells(pa.chunked_array([[*map(str, range(30)), "unknown", "5%", "unknown"]]))
    OddCells(what='numbers', cells=(('unknown', 30), ('5%', 31)))
    """
    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        return None
    sample = column.take(pa.array(range(0, len(column), 1 + len(column) // _HEAD), pa.int64()))
    if not _count(_match_measured(strip_missing(sample))) > 0.5 * _count(
        pc.is_valid(strip_missing(sample))
    ):  # quick test for text
        return None
    cells = strip_missing(column)
    present = len(cells) - cells.null_count
    for what, like, ways in (
        ("numbers", _match_numbers, _match_each_number_format),
        ("dates", _match_dates, _match_each_date_format),
    ):
        alike = _count(like(cells))
        if not (alike > _MOST * present or (alike == present - 1 >= _LEAST - 1)):
            continue
        read = max(ways(cells), key=_count)
        odd = pc.and_(pc.is_valid(cells), pc.invert(pc.fill_null(read, False)))
        count = _count(odd)
        rare = count <= max(1.0, _RARE * present)
        if count and (rare or alike == present or what == "dates" or len(cells.filter(like(cells)).unique()) > _LEVELS):
            rows = np.flatnonzero(odd.to_numpy())
            firsts: dict[str, int] = {}
            for row, cell in zip(rows.tolist(), cells.filter(odd).to_pylist(), strict=True):
                firsts.setdefault(cell, row)
            return OddCells(what, tuple(firsts.items()))
    return None


@dataclass(frozen=True)
class UnreadForm:
    """Form of nearly all cells of a text column that is read as neither numbers nor dates.

    Attributes
    ----------
    what : str
        Meaning of the cells, such as "numbers with a unit".
    remedy : str
        How to write them so that they are read.
    example : str
        A cell of this form.
    """

    what: str
    remedy: str
    example: str


def find_unread_form(column: Column) -> UnreadForm | None:
    """Find the form of a text column of times of the day, months or numbers with a unit, if many cells differ.

    Examples
    --------
    >>> find_unread_form(pa.chunked_array([[f"{kilograms} kg" for kilograms in range(50, 80)]]))
    UnreadForm(what='numbers with a unit', remedy='write the numbers alone, in one unit', example='50 kg')
    """
    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        return None
    sample = strip_missing(
        column.take(pa.array(range(0, len(column), 1 + len(column) // _HEAD), pa.int64()))
    ).drop_null()
    for what, (pattern, remedy) in _FORMS.items():
        if _count(pc.match_substring_regex(sample, pattern)) < _NEARLY * len(sample):  # quick test for other text
            continue
        cells = strip_missing(column).drop_null()
        like = cells.filter(pc.match_substring_regex(cells, pattern))
        units = pc.value_counts(pc.replace_substring_regex(like, r"[-+\d.,]+", "")).field("counts")
        same = what != "numbers with a unit" or pc.max(units).as_py() >= _SAME * len(like)
        if len(like) >= _NEARLY * len(cells) and len(like.unique()) > _LEVELS and same:
            return UnreadForm(what, remedy, like[0].as_py())
    return None


def find_long_number(column: Column) -> str | None:
    """Return an integer of more than 15 digits from a text column of integers only, or None."""
    if not pc.all(pc.match_substring_regex(column, r"^[-+]?\d+$"), min_count=0).as_py():
        return None
    long = column.filter(pc.greater(pc.utf8_length(column), 15)).drop_null()
    return None if not len(long) else str(long[0].as_py())


def _count(mask: Column) -> int:
    return int(pc.sum(mask, min_count=0).as_py())


def _match_numbers(cells: Column) -> Column:
    """Return a mask of the cells that are numbers in any notation, with any unit; codes such as 007 are excluded."""
    ways = [notations.match_numbers(cells, mark) for mark in notations.MARKS]
    like = pc.or_(pc.or_(*ways), pc.match_substring_regex(cells, _LAKHS))
    return pc.and_(like, pc.invert(pc.match_substring_regex(cells, _CODE)))


def _match_each_number_format(cells: Column) -> Iterable[Column]:
    """Yield for each decimal mark and frequent unit a mask of the numbers of this kind."""
    unit = notations.extract_units(cells)
    like = pc.and_(_match_numbers(cells), pc.is_valid(cells))
    counts = pc.value_counts(unit.filter(like))
    frequent = counts.field("values").filter(pc.greater(counts.field("counts"), len(cells) // 20)).to_pylist()
    marks = [mark for mark in notations.MARKS if not notations.is_doubtful(cells.drop_null(), mark)]
    for mark, common in itertools.product(marks, frequent or [""]):
        yield pc.and_(pc.and_(notations.match_numbers(cells, mark), like), pc.equal(unit, common))


def _match_dates(cells: Column) -> Column:
    return pc.match_substring_regex(cells, _DATELIKE)


def _match_each_date_format(cells: Column) -> Iterable[Column]:
    """Yield for each readable date format a mask of the valid dates of this format."""
    for form, pattern in _DATES.items():
        for rest in _RESTS[form == "%Y-%m-%d"]:
            parts = pc.extract_regex(cells, pattern + rest)
            year, month, day = (
                pc.fill_null(pc.cast(pc.struct_field(parts, part), pa.int64()), 0).to_numpy() for part in "ymd"
            )
            leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
            longest = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])[np.where(month < 13, month, 0)]
            exists = (year > 0) & (day > 0) & (day <= longest + (leap & (month == 2)))
            yield pa.chunked_array([pa.array(exists)])


# -------------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True)
class UsedRows:
    """Rows of a table that are observations.

    Attributes
    ----------
    rows : ndarray of bool, shape (N,)
        Mask of the observations.
    notes : tuple of str
        Messages about dropped rows.
    """

    rows: Mask
    notes: tuple[str, ...]


def find_observations(table: pa.Table, targets: Sequence[str], weight: str | None, drop: Sequence[str]) -> UsedRows:
    """Find the rows of an untyped table that are observations; other rows must not affect the types of columns.

    Four groups of rows are dropped: rows with a missing target or weight 0; a first row of units, which has text and no
    numbers in numeric and date columns; last rows that are footers, which have text there and are empty elsewhere, or
    have a single cell; and last rows with a word such as total.

    Parameters
    ----------
    table : pyarrow.Table
        Columns of text, or of cells.
    targets : sequence of str
        Columns without missing values among the observations.
    weight : str, optional
        Column of sample weights.
    drop : sequence of str
        Columns that are not used.
    """
    rows, notes = np.ones(len(table), dtype=bool), list[str]()
    columns = {name: _get_text(table[name]) for name in table.column_names if name not in drop}
    for name in targets:
        if name in columns:
            rows &= ~_match_missing(columns[name])
    if not rows.any():
        return UsedRows(np.ones(len(table), dtype=bool), ())
    if gaps := int((~rows).sum()):
        notes.append(describe_dropped(gaps, "without a target"))
    if weight is not None and weight in columns:
        zero = pc.match_substring_regex(columns[weight], r"^\s*[-+]?(?:0+[.,]?0*|[.,]0+)(?:[eE][-+]?\d+)?\s*$")
        unweighted = rows & pc.fill_null(zero, False).to_numpy()
        if unweighted.any() and not unweighted.all():
            notes.append(describe_dropped(int(unweighted.sum()), "with weight 0"))
            rows &= ~unweighted
    for why, places in _find_margins(columns, np.flatnonzero(rows)).items():
        rows[list(places)] = False
        quoted = ", ".join(quote(text, 40) for text in list(dict.fromkeys(places.values()))[:_SHOWN])
        numbers = ", ".join(str(place + 1) for place in sorted(places))
        notes.append(
            f"row {numbers} after the header was left out, since it seems to be {why}: {quoted}"
            if len(places) == 1
            else f"rows {numbers} after the header were left out, since they seem to be {why}: {quoted}"
        )
    return UsedRows(rows, tuple(notes))


def describe_dropped(count: int, which: str) -> str:
    """Return a message about dropped rows."""
    return f"1 row {which} was left out" if count == 1 else f"{count:,} rows {which} were left out"


def _get_text(column: Column) -> Column:
    return pc.struct_field(column, "text") if column.type == CELL else column


def _match_missing(text: Column) -> Mask:
    """Return a mask of the missing cells of a target; numeric and date columns have more words for missing."""
    cells = strip_missing(text)
    head = cells.drop_null().slice(0, _HEAD)
    if not _count(_match_measured(head)) > _MOST * len(head):
        cells = strip_text(text, ("",))
    return np.asarray(cells.is_null().to_numpy())


def _match_measured(cells: Column) -> Column:
    """Return a mask of the cells that are numbers or dates."""
    numbers = pc.or_(_match_numbers(cells), pc.match_substring_regex(cells, _CODE + "$"))
    return pc.fill_null(pc.or_(numbers, _match_dates(cells)), False)


def _find_margins(columns: Mapping[str, Column], places: npt.NDArray[np.int64]) -> dict[str, dict[int, str]]:
    """Find units, totals and footers among the rows at `places`; return the text of each by row."""
    near = np.unique(np.concatenate([places[:_HEAD], places[-_TAIL:]]))
    end = len(near) - min(_TAIL, len(near) // 4)
    margins: dict[str, dict[int, str]] = {}
    if len(near) < _LEAST + 1:
        return margins
    cells = dict(
        zip(columns, map_columns((column.take(near) for column in columns.values()), strip_missing), strict=True)
    )
    measured = map_columns(cells.values(), _match_measured)
    number = {name: column.to_numpy() for name, column in zip(cells, measured, strict=True)}
    text = {name: column.to_pylist() for name, column in cells.items()}
    filled = {name: column.is_valid().to_numpy() for name, column in cells.items()}
    counted = [name for name in cells if number[name][1:end].sum() > max(1.0, _MOST * float(filled[name][1:end].sum()))]

    def row(i: int) -> tuple[dict[str, str], dict[str, str], list[str]]:
        """Return the cells of a row, its text in numeric columns, and the columns in which it has numbers."""
        present = {name: text[name][i] for name in cells if filled[name][i]}
        words = {name: present[name] for name in counted if name in present and not number[name][i]}
        return present, words, [name for name in present if number[name][i]]

    present, words, numbers = row(0)
    units = (len(words) > 1 or list(words) == list(present)) and all(present[name] == "1" for name in numbers)
    if words and units and all(len(word) <= _UNIT for word in words.values()):
        margins["units"] = {int(near[0]): ", ".join(words.values())}
    singles = sum(column.astype(int) for column in filled.values())[:end] == 1
    remaining = list(places)
    for i in range(len(near) - 1, end - 1, -1):  # from the last row upward, until a row is an observation
        present, words, numbers = row(i)
        few = 0 < len(present) <= max(1, len(cells) // 2) and not numbers
        alone = few and len(present) == 1 < len(cells) - 1 and not singles.any()
        labels = [name for name, word in present.items() if name not in numbers and _TOTAL.fullmatch(word)]
        if few and (words or (alone and all(text[name].count(word) == 1 for name, word in present.items()))):
            margins.setdefault("footers", {})[int(near[i])] = next(iter(words.values()), *present.values())
        elif labels and (words.keys() & set(labels) or _adds_up([columns[name].take(remaining) for name in numbers])):
            margins.setdefault("totals", {})[int(near[i])] = present[labels[0]]
        elif present:
            break
        remaining.remove(near[i])
    return margins


def _adds_up(columns: Iterable[Column]) -> bool:
    """Return True if in some column the last number is the sum or the mean of the others."""
    for column in columns:
        for mark in notations.MARKS:
            if (values := notations.parse_numbers(strip_missing(column), mark)) is None:
                continue
            *others, last = values.to_pylist()
            known = [value for value in others if value is not None]
            if len(known) > 2 and any(np.isclose(last, fit, rtol=1e-3) for fit in (np.sum(known), np.mean(known))):
                return True
    return False
