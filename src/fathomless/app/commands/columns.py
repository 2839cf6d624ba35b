"""The columns of a table file: which are predicted, which predict, and what a prediction looks like as a table."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fathomless.data.schema import Schema, family, rows_of, some
from fathomless.system.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from fathomless.tables.oddities import Odd

__all__ = [
    "Parts",
    "answered",
    "answers",
    "divide",
    "features",
    "identifiers",
    "kinds",
    "roles",
    "target_kinds",
    "task_of",
    "weights",
]

_NAMING = re.compile(  # how columns are called that name rows
    r"(?i:^(id|idx|index|key|uuid|guid|nr|no|row|row_?names?|row_?num(ber)?|serial|unnamed: 0|__index_level_\d+__)$"
    r"|[\W_](id|uuid|guid)$)|[a-z]ID$"
)
_LEAST_TEXT = 20  # rows, from which text that is another one in each is no category
_TIES = 7.0  # expected pairs of equal values; above, a measure is without any in less than one table of a thousand
_ODD = 10  # odd cells that a note names
_CLASSES = 10  # whole numbers with at most so many distinct values are classes

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Parts:
    """A table, divided.

    Attributes
    ----------
    X : pyarrow.Table
        Columns that predict.
    targets : pyarrow.Table
        Columns that are predicted, without gaps; none of a density.
    weight : ndarray of float64, shape (N,), or None
        How often each row counts.
    groups : ndarray of int, shape (N,), or None
        Number of the group that each row belongs to.
    notes : tuple of str
        What was left out, and what perhaps should be, for the reader.
    names : tuple of str, or None
        What the rows are called: by the key, or by a column that was left out since it seems to name them.
    """

    X: "pa.Table"
    targets: "pa.Table"
    weight: Array | None
    notes: tuple[str, ...]
    names: tuple[str, ...] | None = None
    groups: Array | None = None


def divide(
    frame: "pa.Table",
    targets: Sequence[str],
    *,
    key: str | None = None,
    weight: str | None = None,
    groups: str | None = None,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    rows: Array | None = None,
) -> Parts:
    """Divide a table into what predicts and what is predicted.

    Rows without a target or of the weight 0, columns without any value, and those that only name the rows, unless they
    are kept, are left out, and the notes say so. Whole numbers that seem to only number the rows predict,
    since they may be the time, and a note names them. Another names the cells that keep a column of text from being
    one of numbers or dates, with their rows; `rows` are the numbers of the rows in their file, from 0.

    Raises
    ------
    DataError
        For columns that are not there or have two roles, and if nothing is left.
    """
    from fathomless.tables.oddities import left_out, odd_cells

    left = roles(frame.column_names, targets, key=key, weight=weight, groups=groups, drop=drop)
    present(frame.column_names, keep)
    if both := [name for name in keep if name in (*targets, *left)]:
        raise DataError(
            f"column {both[0]!r} is to be kept, and is a target, a key, a weight, a group or dropped as well"
        )
    whole = frame
    places = np.arange(len(frame)) if rows is None else rows
    frame, notes, known = answered(frame, targets) if targets else (frame, [], np.ones(len(frame), dtype=bool))
    places = places[known]
    counts = None if weight is None else weights(frame[weight], weight)
    if counts is not None and not counts.all():
        notes.append(left_out(int((counts == 0.0).sum()), "of the weight 0"))
        frame, places, counts = frame.filter(counts > 0.0), places[counts > 0.0], counts[counts > 0.0]
    X = frame.drop_columns([*targets, *left])
    empty = [name for name in X.column_names if X[name].null_count == len(X)]
    if empty:
        notes.append(f"left out, since they hold no value: {some(empty)}")
        X = X.drop_columns(empty)
    naming, told = identifiers(X, keep, whole)
    notes += told
    X = X.drop_columns(naming)
    for name in (*targets, *X.column_names):
        if name not in keep and (odd := odd_cells(frame[name])):
            notes.append(
                f"taken as categories, though most of its cells are {odd.what} (correct the others, or leave them "
                f"empty; --keep COLUMN says that it is meant): {name!r}, for {_told(odd, places)}"
            )
    looked = [name for name in (*targets, *X.column_names) if name not in keep]
    notes += [note for name in looked if (note := _rounded(name, frame[name]))]
    if not X.num_columns:
        what = f"to predict {some(targets)} from" if targets else "to model"
        raise DataError(f"no column is left {what}; the table has {some(frame.column_names)}")
    name = key or next(iter(naming), None)
    names = None if name is None else tuple(map(str, frame[name].to_pylist()))
    of_row = None if groups is None else _groups(frame[groups], groups)
    return Parts(X, frame.select(list(targets)), counts, tuple(notes), names, of_row)


def identifiers(X: "pa.Table", keep: Sequence[str], whole: "pa.Table") -> tuple[list[str], list[str]]:
    """Find columns that only name the rows, and say so; whole numbers that may only number them are told alone.

    Parameters
    ----------
    X : pyarrow.Table
        Columns that predict, of all rows or of some.
    keep : sequence of str
        Columns that are meant to predict.
    whole : pyarrow.Table
        The same columns with the rows that are left out, among which numbers are counted.

    Returns
    -------
    naming, notes
        The names of those to leave out, and notes for the reader.
    """
    notes = []
    naming = [name for name in X.column_names if name not in keep and _names_rows(name, X[name])]
    if naming:
        notes.append(f"left out, since they seem to only name the rows (--keep COLUMN keeps one): {some(naming)}")
    others = [name for name in X.column_names if name not in (*naming, *keep)]
    if counting := [name for name in others if _numbers_rows(whole[name])]:
        notes.append(
            "used to predict, though its whole numbers all differ and lie so close that they may only number the rows "
            f"(--drop or --key COLUMN leaves one out, --keep COLUMN says that it is meant): {some(counting)}"
        )
    return naming, notes


def _rounded(name: str, column: Any) -> str | None:
    """Say that whole numbers of a column have more digits than a number holds."""
    import pyarrow as pa
    import pyarrow.types as types

    from fathomless.tables.oddities import long_number

    if types.is_integer(column.type):
        long = np.unique(column.drop_null().to_numpy())
        long = long[(long > 2**53) | (long < -(2**53))].tolist()
        if odd := next((value for value in long if value != int(float(value))), None):
            return (
                f"rounded to the 16 digits that a number holds: {name!r}, as {odd} (if these are names, --drop leaves "
                "them out, and text in quotes with a letter in front makes them categories)"
            )
    if column.type == pa.string() and (odd := long_number(column)):
        return f"taken as categories, since a number holds 16 digits of its whole numbers: {name!r}, as {odd}"
    return None


def _told(odd: "Odd", places: Array) -> str:
    """Say what is odd, and in which rows of the file."""
    from fathomless.tables.headers import short

    said = ", ".join(f"{short(cell)} in row {places[row] + 1}" for cell, row in odd.cells[:_ODD])
    return said if len(odd.cells) <= _ODD else f"{said}, ... ({len(odd.cells):,} in all)"


def roles(
    have: Sequence[str],
    targets: Sequence[str],
    *,
    key: str | None = None,
    weight: str | None = None,
    groups: str | None = None,
    drop: Sequence[str] = (),
) -> list[str]:
    """Return the columns that neither predict nor are predicted.

    Raises
    ------
    DataError
        For columns that are not there or have two roles.
    """
    left = [*dict.fromkeys(drop), *(name for name in (key, weight, groups) if name is not None)]
    for name in targets:
        if name not in have and "," in name and all(part.strip() in have for part in name.split(",")):
            raise DataError(
                f"there is no column {name!r}; repeat --target for each of several numbers. Several labels at once are "
                "for Python, where y may be a matrix of 0 and 1; here, fit one after the other"
            )
    present(have, [*targets, *left])
    twice = sorted({name for name in (*targets, *left) if [*targets, *left].count(name) > 1})
    if twice:
        raise DataError(
            f"column {twice[0]!r} was given two roles; a column is a target, a key, a weight, a group or dropped"
        )
    return left


def answered(frame: "pa.Table", targets: Sequence[str]) -> tuple["pa.Table", list[str], Array]:
    """Return the rows whose targets are all known, a note on the others, and which rows these are.

    Raises
    ------
    DataError
        If there is none.
    """
    from fathomless.tables.oddities import left_out

    gaps = np.zeros(len(frame), dtype=bool)
    for name in targets:
        gaps |= frame[name].is_null(nan_is_null=True).to_numpy()
    if gaps.all():
        if not len(frame):
            raise DataError("the table has column names and no rows; at least one row is needed")
        raise DataError(f"target {some(targets)} has no value in any of the {len(frame):,} rows; choose another column")
    if not gaps.any():
        return frame, [], ~gaps
    return frame.filter(~gaps), [left_out(int(gaps.sum()), "without a target")], ~gaps


def present(have: Sequence[str], wanted: Iterable[str]) -> None:
    """Check that columns are there.

    Raises
    ------
    DataError
        If one is not; with the name that was perhaps meant.
    """
    for name in wanted:
        if name not in have:
            near = [other for other in have if other.casefold() == name.casefold()] or get_close_matches(name, have)
            meant = f"; did you mean {near[0]!r}?" if near else "."
            from fathomless.tables.headers import headless

            raise DataError(f"there is no column {name!r}{meant} The columns are {some(have)}{headless(have)}")


def task_of(targets: "pa.Table") -> tuple[str, str]:
    """Say whether targets are classes or numbers, and why.

    Text, true and false, and whole numbers with at most ten distinct values are classes.
    """
    import pyarrow.types as types

    if targets.num_columns > 1:
        why = "there are several targets"
        if all(types.is_integer(one.type) and set(one.unique().to_pylist()) <= {0, 1} for one in targets.columns):
            why += ", whose 0 and 1 count as numbers: several labels at once are for Python"
        return "regression", why
    column = targets.column(0)
    if types.is_boolean(column.type):
        return "classification", "it is true or false"
    if not (types.is_integer(column.type) or types.is_floating(column.type) or types.is_decimal(column.type)):
        return "classification", f"it is {'text' if 'string' in str(column.type) else column.type}"
    distinct = len(column.unique())
    if types.is_integer(column.type) and distinct <= _CLASSES:
        return "classification", f"it has {distinct} distinct whole numbers"
    return "regression", "it is a number"


def answers(targets: "pa.Table", task: str) -> Array:
    """Return the targets as an array: labels, shape (N,), or numbers, shape (N,) or (N, T).

    Raises
    ------
    DataError
        For text, or true and false, where numbers are needed, for several targets of a classification, and for dates
        or lists as classes.
    """
    names = targets.column_names
    if task == "classification":
        if len(names) > 1:
            raise DataError(
                f"{len(names)} targets were given; classification is of one column on the command line: fit one after "
                "the other, or columns of 0 and 1 together from Python"
            )
        values = targets.column(0).to_pylist()
        if long := next((value for value in values if isinstance(value, int) and value != float(value)), None):
            raise DataError(
                f"target {names[0]!r} has the class {long}; whole numbers beyond 2^53 are rounded where tables are "
                "read: write these classes as text, with a letter in front"
            )
        families = {family(value) for value in values}
        if "unknown" in families:
            odd = next(value for value in values if family(value) == "unknown")
            raise DataError(
                f"target {names[0]!r} holds {targets.column(0).type} such as {odd!r}; classes are text, whole numbers, "
                "or true and false: choose another column"
            )
        return np.array(values, dtype=object if families == {"text"} else None)
    for name in names:
        if str(targets[name].type) == "bool":
            raise DataError(
                f"target {name!r} holds true and false; give --task classification, or numbers such as 1 and 0"
            )
    numbers = [_numbers(targets[name], name) for name in names]
    return numbers[0] if len(numbers) == 1 else np.column_stack(numbers)


def _numbers(column: Any, name: str) -> Array:
    import pyarrow as pa

    try:
        found = column.cast(pa.float64(), safe=False).to_numpy()  # of whole numbers beyond 2^53 the nearest
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(
            f"column {name!r} holds {column.type} such as {column[0].as_py()!r}; numbers are needed here: give "
            "--task classification if these are classes, or choose another column"
        ) from error
    return np.asarray(found, dtype=np.float64)


def weights(column: Any, name: str) -> Array:
    """Read how often each row counts, (N,).

    Raises
    ------
    DataError
        For what is no finite number, 0 or more, and if no row counts.
    """
    found = _numbers(column, name)
    bad = ~(np.isfinite(found) & (found >= 0.0))
    if bad.any():
        raise DataError(
            f"column {name!r} says how often each row counts and has {column[int(np.argmax(bad))].as_py()!r} in "
            f"{rows_of(bad)}; finite numbers, 0 or more, are allowed"
        )
    if not found.any():
        raise DataError(f"column {name!r} says how often each row counts and is 0 in all {len(found):,} rows")
    return found


def _groups(column: Any, name: str) -> Array:
    """Return the number of the group of each row, (N,)."""
    gaps = column.is_null(nan_is_null=True).to_numpy()
    if gaps.any():
        raise DataError(
            f"column {name!r} says which rows belong together and has no value in {rows_of(gaps)}; fill it, or leave "
            "these rows out"
        )
    found: Array = np.unique(np.array([str(value) for value in column.to_pylist()]), return_inverse=True)[1].ravel()
    if not found.any():
        raise DataError(
            f"column {name!r} says which rows belong together and holds one value alone; at least two groups are needed"
        )
    return found


def _names_rows(name: str, column: Any) -> bool:
    """Whether text is another one in nearly every row, or a column is called like a name and differs in all."""
    import pyarrow.types as types

    from fathomless.tables.oddities import odd_cells

    text = "string" in str(column.type)
    if not (text or types.is_integer(column.type)):
        return False
    distinct = len(column.unique())
    differs = (len(column) > 100 and distinct > 0.9 * len(column)) or distinct == len(column) >= _LEAST_TEXT
    if text and differs and not odd_cells(column):
        return True
    return bool(_NAMING.search(name)) and distinct == len(column) > 1


def _numbers_rows(column: Any) -> bool:
    """Whether whole numbers all differ, though of N measures, each one of R values, N(N-1)/2R pairs would be equal.

    R counts from the smallest to the largest in their common step: 10, 20, 30, ... are as 1, 2, 3, ...
    """
    import pyarrow.types as types

    if not types.is_integer(column.type) or column.null_count:
        return False
    values = np.unique(column.to_numpy())
    n = len(values)
    if n < len(column) or n < 2:
        return False
    steps = np.diff(values.astype(np.uint64))  # modulo 2^64, and so right for negative numbers too
    width = (int(values[-1]) - int(values[0])) // int(np.gcd.reduce(steps)) + 1
    return n * (n - 1) / (2 * width) > _TIES


# ------------------------------------------------------------------------------------------------ prediction


def kinds(schema: Schema) -> dict[str, str]:
    """Say how the columns that an estimator was trained on are to be read: name -> kind."""
    if not schema.named:
        return {}
    text = {column.name for column in schema.columns if all(isinstance(level, str) for level in column.levels)}
    return {c.name: c.kind if c.kind != "category" or c.name in text else "numeric" for c in schema.columns}


def target_kinds(names: Sequence[str], labels: Sequence[Any] | None) -> dict[str, str]:
    """Say how the columns of the answers are to be read; `labels` are the classes, if these are classes."""
    families = {"numeric"} if labels is None else {family(label) for label in labels}
    kind = {"text": "category", "boolean": "boolean"}.get(families.pop(), "numeric")
    return dict.fromkeys(names, kind)


def features(frame: "pa.Table", schema: Schema) -> Any:
    """Choose the columns that an estimator was trained on; by position if it was trained on an array.

    Raises
    ------
    DataError
        If columns are absent.
    """
    if schema.named:
        names = [column.name for column in schema.columns]
        present(frame.column_names, names)
        return frame.select(names)
    if frame.num_columns != len(schema.columns):
        raise DataError(
            f"the table has {frame.num_columns} columns; the model was trained on an array of {len(schema.columns)} "
            "columns without names: give these alone, in the order of training"
        )
    return np.column_stack([_numbers(frame[name], name) for name in frame.column_names])


def tabled(columns: Mapping[str, Any]) -> "pa.Table":
    """Make a table of named columns."""
    import pyarrow as pa

    from fathomless.tables import arrays

    return pa.table({name: arrays.column(values) for name, values in columns.items()})


def joined(pieces: Iterable["pa.Table"]) -> "pa.Table":
    """Put pieces of a table together."""
    import pyarrow as pa

    return pa.concat_tables(list(pieces))
