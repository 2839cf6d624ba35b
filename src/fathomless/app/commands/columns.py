"""Roles of the columns of a table: targets, features, keys, weights and groups."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fathomless.data.frames import read_columns
from fathomless.data.schema import Schema, family, find_new_levels, find_unknown_effects, rows_of, some
from fathomless.system.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

    from fathomless.tables.anomalies import OddCells

__all__ = [
    "NewValues",
    "Parts",
    "check_classes",
    "divide",
    "drop_missing_targets",
    "find_identifiers",
    "infer_task",
    "kinds",
    "note_unsorted_dates",
    "order_labels",
    "read_censored",
    "read_weights",
    "roles",
    "select_features",
    "target_array",
    "target_kinds",
]

_IDENTIFIER = re.compile(  # usual names of identifiers
    r"(?i:^(id|idx|index|key|uuid|guid|nr|no|row|row_?names?|row_?num(ber)?|serial|unnamed: 0|__index_level_\d+__)$"
    r"|[\W_](id|uuid|guid)$)|[a-z]ID$"
)
_LEAST_TEXT = 20  # minimum number of rows to take a column of distinct texts for an identifier
_TIES = 7.0  # expected number of pairs of equal values; above it, exp(-7) < 0.001 of the measurements have no such pair
_ODD = 10  # maximum number of odd cells in a note
_GAPS = 5  # maximum number of rows of a column in a note on missing values
_CLASSES = 10  # maximum number of distinct integers that are taken for classes

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Parts:
    """Features, targets, weights and groups of a table.

    Attributes
    ----------
    X : pyarrow.Table
        Features.
    targets : pyarrow.Table
        Targets, without missing values; no columns for a density.
    weight : ndarray of float64, shape (N,), or None
        Sample weights.
    groups : ndarray of int, shape (N,), or None
        Number of the group of each row.
    censored : ndarray, shape (N,), or None
        Kind of each row: "exact", "right" or "left", or True and False.
    notes : tuple of str
        Notes on rows and columns that were dropped or look suspicious.
    names : tuple of str, or None
        Names of the rows: the key, or a column that was dropped as an identifier.
    """

    X: "pa.Table"
    targets: "pa.Table"
    weight: Array | None
    notes: tuple[str, ...]
    names: tuple[str, ...] | None = None
    groups: Array | None = None
    censored: Array | None = None


def divide(
    frame: "pa.Table",
    targets: Sequence[str],
    *,
    key: str | None = None,
    weight: str | None = None,
    groups: str | None = None,
    censored: str | None = None,
    drop: Sequence[str] = (),
    keep: Sequence[str] = (),
    rows: Array | None = None,
) -> Parts:
    """Split a table into features, targets, weights and groups.

    Rows without a target or with weight 0, columns without any value, and identifiers that are not in `keep` are
    dropped, with a note. Integers that look like row numbers are kept as features, since they may be times, with a
    note. A note lists the cells that make a column of numbers or dates a text column, and others name columns of times
    of the day, months, and numbers with a unit, which are text too. `rows` are the numbers of the rows in the file,
    starting at 0.

    Raises
    ------
    DataError
        If a column does not exist or has two roles, or if no column is left.
    """
    from fathomless.tables.anomalies import describe_dropped

    dropped = roles(frame.column_names, targets, key=key, weight=weight, groups=groups, censored=censored, drop=drop)
    check_columns(frame.column_names, keep)
    if both := [name for name in keep if name in (*targets, *dropped)]:
        raise DataError(
            f"column {both[0]!r} was given with --keep, and is also a target, a key, a weight, a group, censored or "
            "dropped"
        )
    whole = frame
    places = np.arange(len(frame)) if rows is None else rows
    frame, notes, known = (
        drop_missing_targets(frame, targets) if targets else (frame, [], np.ones(len(frame), dtype=bool))
    )
    places = places[known]
    counts = None if weight is None else read_weights(frame[weight], weight)
    if counts is not None and not counts.all():
        notes.append(describe_dropped(int((counts == 0.0).sum()), "of the weight 0"))
        counted = counts > 0.0
        frame, places, counts = frame.filter(counted), places[counted], counts[counted]
    X = frame.drop_columns([*targets, *dropped])
    empty = [name for name in X.column_names if X[name].null_count == len(X)]
    if empty:
        notes.append(f"dropped columns without any value: {some(empty)}")
        X = X.drop_columns(empty)
    naming, naming_notes = find_identifiers(X, keep, whole)
    notes += naming_notes
    notes += [note for name in naming if (note := _note_form(name, frame[name], "dropped"))]
    X = X.drop_columns(naming)
    checked = [name for name in (*targets, *X.column_names) if name not in keep]
    notes += [note for name in checked if (note := _note_cells(name, frame[name], places))]
    notes += [note for name in checked if (note := _note_rounding(name, frame[name]))]
    if not X.num_columns:
        what = f"to predict {some(targets)} from" if targets else "to model"
        reasons = "".join(f"; {note}" for note in naming_notes)
        raise DataError(f"no column is left {what}; the table has {some(frame.column_names)}{reasons}")
    name = key or next(iter(naming), None)
    names = None if name is None else tuple(map(str, frame[name].to_pylist()))
    of_row = None if groups is None else _groups(frame[groups], groups)
    kinds = None if censored is None else read_censored(frame[censored], censored)
    return Parts(X, frame.select(list(targets)), counts, tuple(notes), names, of_row, kinds)


def find_identifiers(X: "pa.Table", keep: Sequence[str], whole: "pa.Table") -> tuple[list[str], list[str]]:
    """Find identifiers of rows among the features, and integers that look like row numbers.

    Parameters
    ----------
    X : pyarrow.Table
        Features, of all rows or of some.
    keep : sequence of str
        Columns that are used as features in any case.
    whole : pyarrow.Table
        The same columns including the dropped rows, for the test of row numbers.

    Returns
    -------
    naming, notes
        Names of the columns to drop, and notes. Row numbers are only noted.
    """
    notes = []
    naming = [name for name in X.column_names if name not in keep and _is_identifier(name, X[name])]
    if naming:
        notes.append(f"dropped columns that look like identifiers (--keep COLUMN keeps one): {some(naming)}")
    others = [name for name in X.column_names if name not in (*naming, *keep)]
    if counting := [name for name in others if _is_row_number(whole[name])]:
        notes.append(
            "features that look like row numbers, because all values are different integers with few gaps (--drop or "
            f"--key COLUMN removes one, --keep COLUMN confirms it): {some(counting)}"
        )
    return naming, notes


def _note_cells(name: str, column: Any, places: Array) -> str | None:
    """Return a note on the cells that make a column of numbers or dates a text column, or on the form of its text."""
    from fathomless.tables.anomalies import find_odd_cells

    if odd := find_odd_cells(column):
        return (
            f"categorical, although most cells are {odd.what} (correct the other cells, leave them empty, or name "
            f"their words with --na; --keep COLUMN confirms it): {name!r}, for {_list_cells(odd, places)}"
        )
    return _note_form(name, column, "categorical")


def _note_form(name: str, column: Any, read: str) -> str | None:
    """Return a note on a text column of times of the day, months or numbers with a unit."""
    from fathomless.tables.anomalies import find_unread_form
    from fathomless.tables.headers import quote

    form = find_unread_form(column)
    if form is None:
        return None
    return (
        f"{read}, although nearly all cells are {form.what} ({form.remedy}; --keep COLUMN "
        f"{'confirms it' if read == 'categorical' else 'makes it categorical'}): {name!r}, for instance "
        f"{quote(form.example)}"
    )


def _note_rounding(name: str, column: Any) -> str | None:
    """Return a note if integers of a column have more digits than a 64-bit float."""
    import pyarrow as pa
    import pyarrow.types as types

    from fathomless.tables.anomalies import find_long_number

    if types.is_integer(column.type):
        long = np.unique(column.drop_null().to_numpy())
        long = long[(long > 2**53) | (long < -(2**53))].tolist()
        if odd := next((value for value in long if value != int(float(value))), None):
            return (
                f"rounded to the 16 digits of a 64-bit float: {name!r}, for instance {odd} (if these are identifiers, "
                "--drop removes the column, and text with a letter in front makes it categorical)"
            )
    if column.type == pa.string() and (odd := find_long_number(column)):
        return f"categorical, because its integers exceed the 16 digits of a 64-bit float: {name!r}, for instance {odd}"
    return None


def _list_cells(odd: "OddCells", places: Array) -> str:
    """Return the odd cells and their rows in the file as text."""
    from fathomless.tables.headers import quote

    cells = ", ".join(f"{quote(cell)} in row {places[row] + 1}" for cell, row in odd.cells[:_ODD])
    return cells if len(odd.cells) <= _ODD else f"{cells}, ... ({len(odd.cells):,} in all)"


def roles(
    have: Sequence[str],
    targets: Sequence[str],
    *,
    key: str | None = None,
    weight: str | None = None,
    groups: str | None = None,
    censored: str | None = None,
    drop: Sequence[str] = (),
) -> list[str]:
    """Return the columns that are neither features nor targets.

    Raises
    ------
    DataError
        If a column does not exist or has two roles.
    """
    others = [*dict.fromkeys(drop), *(name for name in (key, weight, groups, censored) if name is not None)]
    for name in targets:
        if name not in have and "," in name and all(part.strip() in have for part in name.split(",")):
            raise DataError(
                f"there is no column {name!r}; repeat --target for several numeric targets. Multilabel classification "
                "is only available from Python, where y may be a matrix of 0 and 1; here, fit one label at a time"
            )
    check_columns(have, [*targets, *others])
    twice = sorted({name for name in (*targets, *others) if [*targets, *others].count(name) > 1})
    if twice:
        raise DataError(
            f"column {twice[0]!r} was given two roles; a column is a target, a key, a weight, a group, censored or "
            "dropped"
        )
    return others


def drop_missing_targets(frame: "pa.Table", targets: Sequence[str]) -> tuple["pa.Table", list[str], Array]:
    """Return the rows without missing targets, a note on the dropped rows, and the mask of the kept rows.

    Raises
    ------
    DataError
        If no row is left.
    """
    from fathomless.tables.anomalies import describe_dropped

    gaps = np.zeros(len(frame), dtype=bool)
    for name in targets:
        gaps |= frame[name].is_null(nan_is_null=True).to_numpy()
    if gaps.all():
        if not len(frame):
            raise DataError("the table has column names and no rows; at least one row is needed")
        raise DataError(f"target {some(targets)} has no value in any of the {len(frame):,} rows; choose another column")
    if not gaps.any():
        return frame, [], ~gaps
    return frame.filter(~gaps), [describe_dropped(int(gaps.sum()), "without a target")], ~gaps


def check_columns(have: Sequence[str], wanted: Iterable[str]) -> None:
    """Check that columns exist.

    Raises
    ------
    DataError
        If a column does not exist; the message suggests a similar name.
    """
    for name in wanted:
        if name not in have:
            near = [other for other in have if other.casefold() == name.casefold()] or get_close_matches(name, have)
            suggestion = f"; did you mean {near[0]!r}?" if near else "."
            from fathomless.tables.headers import suggest_no_header

            raise DataError(
                f"there is no column {name!r}{suggestion} The columns are {some(have)}{suggest_no_header(have)}"
            )


def infer_task(targets: "pa.Table") -> tuple[str, str]:
    """Return "classification" or "regression", and the reason.

    Text, booleans, and integers with at most ten distinct values are classes.
    """
    import pyarrow.types as types

    if targets.num_columns > 1:
        reason = "there are several targets"
        if all(types.is_integer(col.type) and set(col.unique().to_pylist()) <= {0, 1} for col in targets.columns):
            reason += ", with 0 and 1 as numbers (multilabel classification is only available from Python)"
        return "regression", reason
    column = targets.column(0)
    if types.is_boolean(column.type):
        return "classification", "it is boolean"
    if not (types.is_integer(column.type) or types.is_floating(column.type) or types.is_decimal(column.type)):
        return "classification", f"it is {'text' if 'string' in str(column.type) else column.type}"
    distinct = len(column.unique())
    if types.is_integer(column.type) and distinct <= _CLASSES:
        return "classification", f"it has {distinct} distinct integers"
    return "regression", "it is numeric"


def target_array(targets: "pa.Table", task: str) -> Array:
    """Return the targets as an array: labels, shape (N,), or numbers, shape (N,) or (N, T).

    Raises
    ------
    DataError
        For text or booleans in a regression, for several targets in a classification, and for dates or lists as
        classes.
    """
    names = targets.column_names
    if task == "classification":
        if len(names) > 1:
            raise DataError(
                f"{len(names)} targets were given; classification is of one column on the command line: fit one column "
                "at a time, or use Python for several columns of 0 and 1"
            )
        values = targets.column(0).to_pylist()
        if long := next((value for value in values if isinstance(value, int) and value != float(value)), None):
            raise DataError(
                f"target {names[0]!r} has the class {long}; whole numbers beyond 2^53 are rounded when a table is "
                "read: write these classes as text, with a letter in front"
            )
        families = {family(value) for value in values}
        if "unknown" in families:
            raise DataError(
                f"target {names[0]!r} holds {_describe_values(targets.column(0))}; classes are text, whole numbers, or "
                "true and false: choose another column"
            )
        return np.array(values, dtype=object if families == {"text"} else None)
    for name in names:
        if str(targets[name].type) == "bool":
            raise DataError(
                f"target {name!r} holds true and false; give --task classification, or numbers such as 1 and 0"
            )
    numbers = [_numbers(targets[name], f"column {name!r}") for name in names]
    return numbers[0] if len(numbers) == 1 else np.column_stack(numbers)


def _numbers(column: Any, subject: str, needed: str = "") -> Array:
    """Return a column of numbers; the message on another column begins with `subject` and ends with what is needed."""
    import pyarrow as pa

    try:
        values = column.cast(pa.float64(), safe=False).to_numpy()  # integers beyond 2^53 are rounded
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        classes = "give --task classification if these are classes, or " if "string" in str(column.type) else ""
        needed = needed or f"numbers are needed here: {classes}choose another column"
        raise DataError(f"{subject} holds {_describe_values(column)}; {needed}") from error
    return np.asarray(values, dtype=np.float64)


def _describe_values(column: Any) -> str:
    """Return the kind of the values of a column with an example, which is no number if the column is text."""
    import pyarrow.types as types

    values = column.drop_null().unique().to_pylist() if "string" in str(column.type) else column.drop_null().to_pylist()
    if values and isinstance(values[0], str):
        return f"text such as {next((value for value in values if not value[:1].isdigit()), values[0])!r}"
    if types.is_timestamp(column.type) or types.is_date(column.type):
        return f"dates such as {values[0]}"
    return f"{column.type} such as {values[0]!r}"


def check_classes(column: Any, name: str) -> None:
    """Raise an error if a column that is to be the target of a classification has numbers with decimals."""
    import pyarrow.types as types

    if not (types.is_floating(column.type) or types.is_decimal(column.type)):
        return
    values = _numbers(column.drop_null().unique(), name)
    odd = values[np.isfinite(values) & (values != np.trunc(values))]
    if len(odd):
        raise DataError(
            f"--task classification was given, and target {name!r} has numbers with decimals such as {odd[0]:g}, "
            f"{len(values):,} distinct values in all; classes are text, whole numbers, or true and false: omit --task "
            "to predict numbers, or write these classes as text, with a letter in front"
        )


def order_labels(given: Sequence[str], labels: Sequence[Any]) -> list[Any]:
    """Return labels of the command line as the classes that they name: numbers, true and false, or text.

    Examples
    --------
    >>> order_labels(["2", "1.0", "x"], [1.0, 2.0]), order_labels(["false", "true"], [True, False])
    ([2.0, 1.0, 'x'], [False, True])
    """
    texts = {str(label).lower() if isinstance(label, bool) else str(label): label for label in labels}
    numbers = {
        float(label): label for label in labels if isinstance(label, int | float) and not isinstance(label, bool)
    }
    if numbers:
        texts |= {text: numbers[value] for text in given if (value := _to_float(text)) in numbers}
    return [texts.get(text, text) for text in given]


def _to_float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def read_weights(column: Any, name: str) -> Array:
    """Return the sample weights in a column, (N,).

    Raises
    ------
    DataError
        If a weight is negative or not finite, or if all are 0.
    """
    subject, allowed = f"column {name!r} of sample weights", "finite numbers, 0 or more, are allowed"
    values = _numbers(
        column,
        subject,
        f"{allowed}, such as how many times each row counts: choose another column for --weight, or omit it",
    )
    bad = ~(np.isfinite(values) & (values >= 0.0))
    if bad.any():
        raise DataError(f"{subject} has {column[int(np.argmax(bad))].as_py()!r} in {rows_of(bad)}; {allowed}")
    if not values.any():
        raise DataError(f"{subject} is 0 in all {len(values):,} rows")
    return values


def read_censored(column: Any, name: str) -> Array:
    """Return the kinds of censored rows in a column, (N,).

    Raises
    ------
    DataError
        If a value is missing or unknown.
    """
    from fathomless.data.censoring import kind_of  # torch comes here

    gaps = column.is_null(nan_is_null=True).to_numpy()
    if gaps.any():
        raise DataError(
            f"column {name!r} of censored rows has no value in {rows_of(gaps)}; give exact, "
            "right or left, or 0 for exact and 1 for right"
        )
    words = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
    values = column.to_pylist()
    texts = [str(value).strip().lower() for value in values]
    kinds = np.array([words.get(text, value) for text, value in zip(texts, values, strict=True)], dtype=object)
    unknown = np.array([not kind_of(value) for value in kinds.tolist()], dtype=np.bool_)
    if unknown.any():
        raise DataError(
            f"column {name!r} of censored rows has {values[int(np.argmax(unknown))]!r} in "
            f"{rows_of(unknown)}; allowed are exact, right and left, or 0 for exact and 1 for right: correct the "
            "column, or choose another for --censored"
        )
    return kinds


def _groups(column: Any, name: str) -> Array:
    """Return the number of the group of each row, (N,)."""
    gaps = column.is_null(nan_is_null=True).to_numpy()
    if gaps.any():
        raise DataError(
            f"column {name!r} of groups has no value in {rows_of(gaps)}; fill in the values, or remove these rows"
        )
    texts = np.array([str(value) for value in column.to_pylist()])
    numbers: Array = np.unique(texts, return_inverse=True)[1].ravel()
    if not numbers.any():
        raise DataError(f"column {name!r} of groups has only one value; at least two groups are needed")
    return numbers


def _is_identifier(name: str, column: Any) -> bool:
    """Return True for text that differs in nearly every row, or a column named like an identifier without ties."""
    import pyarrow.types as types

    from fathomless.tables.anomalies import find_odd_cells

    text = "string" in str(column.type)
    if not (text or types.is_integer(column.type)):
        return False
    distinct = len(column.unique())
    differs = (len(column) > 100 and distinct > 0.9 * len(column)) or distinct == len(column) >= _LEAST_TEXT
    if text and differs and not find_odd_cells(column):
        return True
    return bool(_IDENTIFIER.search(name)) and distinct == len(column) > 1


def _is_row_number(column: Any) -> bool:
    """Return True if integers are all different although ties are expected.

    Among N independent values from a range of R integers, N(N-1)/2R pairs are equal on average. R is counted in units
    of the greatest common divisor of the differences: 10, 20, 30, ... are like 1, 2, 3, ...
    """
    import pyarrow.types as types

    if not types.is_integer(column.type) or column.null_count:
        return False
    values = np.unique(column.to_numpy())
    n = len(values)
    if n < len(column) or n < 2:
        return False
    # Identifiers are often multiples of a step, such as 10, 20, 30; the number of possible values is counted in steps.
    steps = np.diff(values.astype(np.uint64))  # modulo 2^64, therefore correct for negative numbers too
    width = (int(values[-1]) - int(values[0])) // int(np.gcd.reduce(steps)) + 1
    return n * (n - 1) / (2 * width) > _TIES


# ------------------------------------------------------------------------------------------------ prediction


def kinds(schema: Schema) -> dict[str, str]:
    """Return the kinds by which to read the columns of a fitted estimator: name -> kind."""
    if not schema.named:
        return {}
    text = {column.name for column in schema.columns if all(isinstance(level, str) for level in column.levels)}
    # an empty column may have any type
    read = [column for column in schema.columns if column.kind != "empty"]
    return {c.name: c.kind if c.kind != "category" or c.name in text else "numeric" for c in read}


def target_kinds(names: Sequence[str], labels: Sequence[Any] | None) -> dict[str, str]:
    """Return the kinds by which to read the targets: name -> kind; `labels` are the classes of a classification."""
    families = {"numeric"} if labels is None else {family(label) for label in labels}
    kind = {"text": "category", "boolean": "boolean"}.get(families.pop(), "numeric")
    return dict.fromkeys(names, kind)


def treat_new_values(schema: Schema, unseen: str | None, missing: str | None, *, density: bool) -> Schema:
    """Return a schema with the options --unseen and --missing of a command.

    By default, missing values in columns that had none in training are imputed if the fit allowed missing values. A
    `density` has no predictors, and its missing values are only imputed on request. Commands show notes from
    :class:`NewValues` in place of the warnings of Python.
    """
    usual = "impute" if schema.missing == "auto" and not density else schema.missing
    unseen = unseen or schema.unseen
    return replace(schema, unseen="ignore" if unseen == "warn" else unseen, missing=missing or usual)


class _Places:
    """Counts and first rows of values, by a key, with the number of all rows that have any of them."""

    def __init__(self) -> None:
        self._counts: Counter[Any] = Counter()
        self._first: dict[Any, list[int]] = {}
        self.rows = 0

    def add(self, masks: Mapping[Any, Array], start: int) -> None:
        """Add rows, counted from `start`, by their masks (N,)."""
        masks = {key: mask for key, mask in masks.items() if mask.any()}
        for key, mask in masks.items():
            self._counts[key] += int(mask.sum())
            first = self._first.setdefault(key, [])
            first += (np.flatnonzero(mask)[: _GAPS - len(first)] + start + 1).tolist()
        if masks:
            self.rows += int(np.any(list(masks.values()), axis=0).sum())

    def describe(self, name: Callable[[Any], str], *, numbers: bool) -> str:
        """Return the names of the most frequent keys with their first rows, counted from 1, or the numbers of rows."""
        shown = []
        for key, count in self._counts.most_common(_GAPS):
            rows = self._first[key]
            rest = count - len(rows)
            listed = f"{', '.join(map(str, rows))}{f' and {rest:,} more' if rest else ''}"
            where = f"{'row' if count == 1 else 'rows'} {listed}" if numbers else f"{count:,} of them"
            shown.append(f"{name(key)} in {where}")
        rest = len(self._counts) - len(shown)
        return "; ".join(shown) + (f"; and {rest:,} more" if rest else "")


class NewValues:
    """Values that the training table did not have, collected from pieces of a table.

    They are missing values, new categories, values of columns without values, and other values of constant columns.

    Parameters
    ----------
    schema : Schema
        Encoding of the columns.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._rows = 0
        self._gaps, self._levels, self._changed = _Places(), _Places(), _Places()

    def add(self, X: Any) -> None:
        """Add the next rows, as :func:`select_features` returns them."""
        gaps, levels, changed = dict[Any, Array](), dict[Any, Array](), dict[Any, Array]()
        for place, column in enumerate(self._schema.columns):
            if not column.gaps and column.kind != "empty":
                if self._schema.named:
                    nulls = X[column.name].is_null(nan_is_null=True)
                    # the conversion imports pandas
                    gaps[column.name] = nulls.to_numpy() if True in nulls.unique().to_pylist() else np.zeros(0)
                else:
                    gaps[column.name] = np.isnan(X[:, place])
            if column.kind == "empty" or column.constant:
                part = make_table({column.name: X[column.name] if self._schema.named else X[:, place]})
                changed[column.name] = find_unknown_effects(column, read_columns(part)[1][column.name])
            if self._schema.named and column.kind == "category":
                distinct = X[column.name].unique()
                for values in (distinct, X[column.name]):  # the rows are only read if there are new levels
                    cells = read_columns(make_table({column.name: values}))[1][column.name]
                    new = find_new_levels(column, cells)
                    if not new:
                        break
                levels |= {(column.name, level): rows for level, rows in new.items()}
        self._gaps.add(gaps, self._rows)
        self._levels.add(levels, self._rows)
        self._changed.add(changed, self._rows)
        self._rows += len(X)

    def describe(self, *, numbers: bool = True) -> list[str]:
        """Return notes on such values, with or without the numbers of the rows."""
        notes = []
        if count := self._gaps.rows:
            notes.append(
                f"{count:,} of {self._rows:,} rows {'has' if count == 1 else 'have'} missing values in columns that "
                f"had none in the training table: {self._gaps.describe(repr, numbers=numbers)}. Numbers were replaced "
                "by the mean of the training rows, and categories encoded as none of the known ones. The intervals of "
                "these rows do not contain the uncertainty of the missing values, and are too narrow. --missing error "
                "refuses such rows"
            )
        if count := self._levels.rows:
            listed = self._levels.describe(lambda key: f"{key[0]!r} is {key[1]!r}", numbers=numbers)
            notes.append(
                f"{count:,} of {self._rows:,} rows {'has a category' if count == 1 else 'have categories'} that the "
                f"training table does not have: {listed}. They were encoded as none of the known ones, and ignored if "
                "only one was known. --unseen error refuses such rows"
            )
        if count := self._changed.rows:
            notes.append(
                f"{count:,} of {self._rows:,} rows {'has a value' if count == 1 else 'have values'} in columns that "
                f"had no values, or only one, in the training table: {self._changed.describe(repr, numbers=numbers)}. "
                "Their effect is unknown, and they were ignored. --unseen error refuses such rows"
            )
        return notes


def find_unsorted_dates(frame: Any) -> list[str]:
    """Return the columns of dates of a table, if the rows are in the order of none of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not isinstance(frame, pa.Table):
        return []
    names = [name for name in frame.column_names if pa.types.is_temporal(frame[name].type)]
    for name in names:
        known = frame[name].drop_null()
        if len(known) < 2 or pc.all(pc.less_equal(known[:-1], known[1:])).as_py():
            return []
    return names


def note_unsorted_dates(frame: Any) -> list[str]:
    """Return a note for a table whose rows are to be in the order of time, if those of a column of dates are not."""
    names = find_unsorted_dates(frame)
    if not names:
        return []
    return [
        f"rows are not in the order of {some(names)}, so that blocks of rows are not periods of time; sort the table "
        "by time, unless another column has its order"
    ]


def select_features(frame: "pa.Table", schema: Schema) -> Any:
    """Select the columns that an estimator was trained on; by position if it was trained on an array.

    Raises
    ------
    DataError
        If a column does not exist.
    """
    if schema.named:
        names = [column.name for column in schema.columns]
        check_columns(frame.column_names, names)
        return frame.select(names)
    if frame.num_columns != len(schema.columns):
        raise DataError(
            f"the table has {frame.num_columns} columns; the model was trained on an array of {len(schema.columns)} "
            "columns without names: give only these columns, in the order of training"
        )
    needed = "the model was trained on an array of numbers: correct the column"
    return np.column_stack([_numbers(frame[name], f"column {name!r}", needed) for name in frame.column_names])


def make_table(columns: Mapping[str, Any]) -> "pa.Table":
    """Return a table of named columns."""
    import pyarrow as pa

    from fathomless.tables import arrays

    return pa.table({name: arrays.to_column(values) for name, values in columns.items()})


def concatenate(pieces: Iterable["pa.Table"]) -> "pa.Table":
    """Concatenate pieces of a table."""
    import pyarrow as pa

    return pa.concat_tables(list(pieces))
