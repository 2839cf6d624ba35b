"""What was learned about a table: columns, their encoding, and the way to JSON and back.

This is the arithmetic of encoding, on columns whose type is already plain (:class:`Cells`). Reading tables is
in :mod:`fathomless.data.frames`.
"""

import math
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import compress
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from fathomless.data.outliers import Outlying, Thinned, outlying
from fathomless.system.errors import DataError, DataWarning

__all__ = [
    "MISSING",
    "UNSEEN",
    "Bools",
    "Cells",
    "Column",
    "Floats",
    "Level",
    "Moments",
    "Schema",
    "Tally",
    "check_encoded",
    "check_fields",
    "check_option",
    "column_numbers",
    "encode_column",
    "family",
    "fit_column",
    "moments",
    "rows_of",
    "some",
    "tell_outlying",
]

#: What a category may be: text, true or false, or a number.
Level: TypeAlias = str | bool | int | float
#: Arrays of float64.
Floats: TypeAlias = npt.NDArray[np.float64]
#: Arrays of truth values.
Bools: TypeAlias = npt.NDArray[np.bool_]

#: Policies for missing values.
MISSING = ("auto", "error", "impute")
#: Policies for categories that training did not see.
UNSEEN = ("error", "ignore")
_FEW = 4096
_MOST = 100_000  # categories of a column that is read part by part
_KINDS = ("numeric", "boolean", "category", "date")
_CYCLES = ("day of year, sin", "day of year, cos", "weekday, sin", "weekday, cos")


@dataclass(frozen=True)
class Column:
    """What training has taught about one column.

    Attributes
    ----------
    name : str
        Name in the table.
    kind : {"numeric", "boolean", "category", "date"}
        How it is encoded; see :func:`encode`.
    center, scale : float
        A value v becomes (v - center) / scale (numbers; dates in days since 1970-01-01).
    fill : float
        The training mean, which stands in for a missing number or date.
    levels : tuple of str, bool, int or float
        Categories that were seen, sorted.
    other : bool
        True if the rare and the unseen categories share one more level.
    gaps : bool
        True if values were missing in training; a feature "NAME is missing" then tells so.
    limits : (float, float), optional
        Of numbers and dates, if a few cells lay far from all others: values beyond are encoded as the nearer limit.
    """

    name: str
    kind: str
    center: float = 0.0
    scale: float = 1.0
    fill: float = 0.0
    levels: tuple[Level, ...] = ()
    other: bool = False
    gaps: bool = False
    limits: tuple[float, float] | None = None

    def standardized(self, values: Floats) -> Floats:
        """Return numbers or dates between the limits, centered and scaled."""
        inside = values if self.limits is None else np.clip(values, *self.limits)
        return (inside - self.center) / self.scale

    @property
    def features(self) -> tuple[str, ...]:
        """Names of the encoded features, in order."""
        found = [self.name]
        if self.kind == "category":
            found = [f"{self.name}={level}" for level in self.levels]
            found += [f"{self.name}=(other)"] if self.other else []
        elif self.kind == "date":
            found += [f"{self.name} ({cycle})" for cycle in _CYCLES]
        return (*found, f"{self.name} is missing") if self.gaps else tuple(found)


@dataclass(frozen=True)
class Schema:
    """How a table becomes a matrix, as learned by :func:`fit_schema`.

    Attributes
    ----------
    columns : tuple of Column
        In the order of the training table.
    named : bool
        True if the training table had column names: data frames are then matched by name, else by position.
    missing, unseen : str
        The policies given to :func:`fit_schema`.
    """

    columns: tuple[Column, ...]
    named: bool
    missing: str = "auto"
    unseen: str = "error"

    @property
    def encoded_names(self) -> tuple[str, ...]:
        """Names of the D encoded features."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def width(self) -> int:
        """The number D of encoded features."""
        return len(self.encoded_names)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; :meth:`from_json` gives an equal schema."""
        columns = [{**asdict(column), "levels": list(column.levels)} for column in self.columns]
        for entry in columns:  # only a column that has limits tells of them
            limits = entry.pop("limits")
            entry.update({} if limits is None else {"limits": list(limits)})
        return {"columns": columns, "named": self.named, "missing": self.missing, "unseen": self.unseen}

    @staticmethod
    def from_json(obj: Any) -> "Schema":
        """Rebuild a schema; anything that :meth:`to_json` would not write raises :class:`DataError`."""
        check_fields(obj, {"columns": list, "named": bool, "missing": str, "unseen": str}, "a schema")
        columns = []
        for entry in obj["columns"]:
            limited = isinstance(entry, dict) and "limits" in entry
            names = [f.name for f in fields(Column) if f.name != "limits" or limited]
            check_fields(entry, {name: _JSON_TYPES[name] for name in names}, "a column of a schema")
            limits = {"limits": tuple(entry["limits"])} if limited else {}
            columns.append(Column(**{**entry, "levels": tuple(entry["levels"]), **limits}))
        for column in columns:
            _check_column(column)
        if len({column.name for column in columns}) != len(columns) or not columns:
            raise DataError("a schema has no columns, or repeated ones; it was altered")
        check_option("missing", obj["missing"], MISSING)
        check_option("unseen", obj["unseen"], UNSEEN)
        return Schema(tuple(columns), obj["named"], obj["missing"], obj["unseen"])


def _check_column(column: Column) -> None:
    """Refuse a column that no training could have given."""
    numbers = (column.center, column.scale, column.fill)
    families = {family(level) for level in column.levels}
    limits = (0.0, 1.0) if column.limits is None else column.limits
    plain = len(limits) == 2 and all(type(v) is float and math.isfinite(v) for v in limits)
    if (
        not (plain and limits[0] < limits[1])
        or (column.limits is not None and column.kind not in ("numeric", "date"))
        or column.kind not in _KINDS
        or not all(map(math.isfinite, numbers))
        or column.scale <= 0
        or "unknown" in families
        or len(families) != (column.kind == "category")
        or len(set(column.levels)) != len(column.levels)
    ):
        raise DataError(f"a schema was altered: no training gives {column}")


_JSON_TYPES: Mapping[str, type] = {
    "name": str,
    "kind": str,
    "center": float,
    "scale": float,
    "fill": float,
    "levels": list,
    "other": bool,
    "gaps": bool,
    "limits": list,
}


@dataclass(frozen=True)
class Cells:
    """One column with its type made plain.

    ``values`` is a float vector with NaN for missing (numeric; boolean as -1 and +1; dates as days since the
    epoch), or a list with None for missing (category). Kind "empty" has no value to judge by.
    """

    kind: str
    values: Floats | list[Any]
    missing: Bools

    def keep(self, rows: Bools) -> "Cells":
        """Return the rows where the mask is true."""
        values = list(compress(self.values, rows)) if isinstance(self.values, list) else self.values[rows]
        return Cells(self.kind, values, self.missing[rows])

    def levels(self) -> list[Any]:
        """Return the values as Python scalars, None where missing."""
        if isinstance(self.values, list):
            return self.values
        values = (self.values > 0 if self.kind == "boolean" else self.values).tolist()
        return [None if gap else value for value, gap in zip(values, self.missing, strict=True)]


def fit_column(
    name: str, cells: Cells, weight: Floats | None, *, standardize: bool, max_levels: int, limit: bool = True
) -> Column:
    """Learn one column that has at least one value; if it gets limits, warn of the cells that lie beyond."""
    if max_levels < 2:
        raise DataError(f"max_levels is {max_levels}; at least 2 are needed")
    if cells.kind == "category":
        return _fit_category(name, cells, weight, max_levels)
    return _fit_number(name, cells, weight, standardize, limit)


def _fit_number(name: str, cells: Cells, weight: Floats | None, standardize: bool, limit: bool) -> Column:
    values = cast(Floats, cells.values)
    gaps = bool(cells.missing.any())
    if cells.kind == "boolean":
        return Column(name, "boolean", gaps=gaps)
    if gaps:
        weight = None if weight is None else weight[~cells.missing]
        values = values[~cells.missing]
    far = outlying(values, weight) if standardize and limit else None
    if far is not None:
        tell_outlying(name, cells.kind, far, len(values))
        inside = far.inside(values)
        values, weight = values[inside], None if weight is None else weight[inside]
    mean, scale = moments(values, weight)
    center, scale = (mean, scale) if standardize else (0.0, 1.0)
    return Column(name, cells.kind, center, scale, mean, gaps=gaps, limits=None if far is None else far.limits)


def tell_outlying(name: str, kind: str, far: Outlying, rows: int) -> None:
    """Warn of cells of a column that lie far from all others, so that the column gets limits."""
    warnings.warn(
        f"column {name!r} is {far.told(rows, kind)}: such cells do not count for the mean and the scale of the column, "
        "and are encoded as if they were near the others. If they mean that a value is missing, leave them empty (NaN "
        "or None); if they are mistakes, correct them",
        DataWarning,
        stacklevel=2,
    )


def moments(values: Floats, weight: Floats | None) -> tuple[float, float]:
    """Weighted mean and population standard deviation of finite values; the scale of a constant is 1."""
    low, high = float(values.min()), float(values.max())
    if low == high:  # exact, where the mean of equal values need not be
        return low, 1.0
    if len(values) <= _FEW:  # sums whose last bit depends neither on the order of the rows nor on their repetition
        values, place = np.unique(values, return_inverse=True)
        weight = np.bincount(place, weights=weight).astype(np.float64)
    # a power of two is exact; it keeps squares from overflowing and underflowing
    exponent = int(np.frexp(max(-low, high))[1])
    small = np.ldexp(values, -exponent)
    mean = float(np.average(small, weights=weight))
    mean += float(np.average(small - mean, weights=weight))
    scale = math.sqrt(np.average((small - mean) ** 2, weights=weight))
    return math.ldexp(mean, exponent), math.ldexp(scale, exponent) or 1.0


@dataclass(frozen=True)
class Moments:
    """Mean and population standard deviation of the numbers seen so far.

    Equal to those of :func:`moments` on all numbers at once, up to rounding.

    Attributes
    ----------
    count : int
        How many there were.
    mean, std : float
        Of them; 0 if there were none.
    low, high : float
        The least and the greatest.
    """

    count: int = 0
    mean: float = 0.0
    std: float = 0.0
    low: float = math.inf
    high: float = -math.inf

    def plus(self, values: Floats) -> "Moments":
        """Return the moments with more numbers, which must be finite."""
        if not len(values):
            return self
        count, low, high = self.count + len(values), float(values.min()), float(values.max())
        mean, std = moments(values, None)
        std *= low != high
        share = len(values) / count
        step = mean * share - self.mean * share
        # hypot, as squares may overflow: s^2 = (1 - a) s1^2 + a s2^2 + a (1 - a) (m2 - m1)^2 with the share a
        between = step * math.sqrt((1.0 - share) / share)
        std = math.hypot(self.std * math.sqrt(1.0 - share), std * math.sqrt(share), between)
        return Moments(count, self.mean + step, std, min(self.low, low), max(self.high, high))

    @property
    def standard(self) -> tuple[float, float]:
        """Return what :func:`moments` would: the scale of a constant is 1."""
        return (self.low, 1.0) if self.low == self.high else (self.mean, self.std or 1.0)


@dataclass
class Tally:
    """What was seen so far of one column that comes part by part; :meth:`column` is what was learned.

    Attributes
    ----------
    name : str
        Name in the table.
    kind : str
        Kind of its cells; "empty" as long as there was no value.
    gaps : bool
        Whether a value was missing.
    numbers : Moments
        Of numbers and dates; of those that are not outlying if `far` is given.
    sample : Thinned
        Of the same numbers.
    far : Outlying, optional
        What was found to lie far from all others; see :meth:`narrowed`.
    counts : Counter
        How often each category came.
    """

    name: str
    kind: str = "empty"
    gaps: bool = False
    numbers: Moments = Moments()
    sample: Thinned = field(default_factory=Thinned)
    far: Outlying | None = None
    counts: Counter[Any] = field(default_factory=Counter)

    def add(self, cells: Cells) -> None:
        """Take in the cells of more rows.

        Raises
        ------
        DataError
            If they are of another kind than those before, or if there are too many categories to be counted.
        """
        self.gaps = self.gaps or bool(cells.missing.any())
        if cells.kind == "empty":
            return
        if self.kind not in ("empty", cells.kind):
            raise DataError(f"column {self.name!r} was {self.kind} and is {cells.kind} now; give it one type")
        self.kind = cells.kind
        if cells.kind == "category":
            self.counts.update(value for value in cells.levels() if value is not None)
            if len(self.counts) > _MOST:
                raise DataError(
                    f"column {self.name!r} has more than {_MOST:,} categories; if it only names the rows, drop it"
                )
        else:
            values = cast(Floats, cells.values)[~cells.missing]
            self.numbers = self.numbers.plus(values)
            if cells.kind != "boolean":
                self.sample.add(values)

    def outlying(self) -> Outlying | None:
        """Find the cells that lie far from all others."""
        return self.sample.outlying(self.numbers.low, self.numbers.high)

    def narrowed(self, far: Outlying, numbers: Moments) -> None:
        """Give the column limits, and the moments of the numbers that are not outlying; warn of the others."""
        rows = self.numbers.count
        self.far, self.numbers = replace(far, rows=rows - numbers.count), numbers
        tell_outlying(self.name, self.kind, self.far, rows)

    def column(self, *, max_levels: int) -> Column:
        """Return what :func:`fit_column` would have learned from all cells at once, up to rounding.

        Raises
        ------
        DataError
            If there was no value at all.
        """
        match self.kind:
            case "empty":
                raise DataError(f"column {self.name!r} has no value at all in training; drop the column")
            case "boolean":
                return Column(self.name, "boolean", gaps=self.gaps)
            case "category":
                levels, counts = list(self.counts), np.array(list(self.counts.values()), dtype=np.float64)
                cells = Cells("category", levels, np.zeros(len(levels), dtype=np.bool_))
                column = fit_column(self.name, cells, counts, standardize=True, max_levels=max_levels)
                return replace(column, gaps=self.gaps)
        mean, scale = self.numbers.standard
        limits = None if self.far is None else self.far.limits
        return Column(self.name, self.kind, mean, scale, mean, gaps=self.gaps, limits=limits)


def _fit_category(name: str, cells: Cells, weight: Floats | None, max_levels: int) -> Column:
    values = cells.levels()
    levels = _distinct(name, values)
    other = len(levels) > max_levels
    if other:
        index: dict[Any, int] = {level: i for i, level in enumerate(levels)}
        codes = np.fromiter((index.get(v, len(levels)) for v in values), np.int64, len(values))
        counts = np.bincount(codes, weights=weight, minlength=len(levels))[: len(levels)]
        frequent = np.argsort(-counts, kind="stable")[: max_levels - 1]
        levels = [levels[i] for i in sorted(frequent)]
    return Column(name, "category", levels=tuple(levels), other=other, gaps=bool(cells.missing.any()))


def _distinct(name: str, values: list[Any]) -> list[Level]:
    """Sort the distinct categories, which must be comparable and fit into JSON."""
    try:
        found = [v.item() if isinstance(v, np.generic) else v for v in set(values) - {None}]
    except TypeError as error:
        raise DataError(f"column {name!r} holds nested values; turn them into numbers or text") from error
    families = sorted({family(level) for level in found})
    if len(families) > 1 or "unknown" in families:
        kinds = sorted({type(level).__name__ for level in found})
        raise DataError(f"column {name!r} has categories of type {', '.join(kinds)}; make them all text or all numbers")
    return cast("list[Level]", sorted(found))


def family(level: Any) -> str:
    """Say which scalars can stand together in one column: "text", "boolean", "number" or "unknown"."""
    match level:
        case bool():
            return "boolean"
        case int():
            return "number"
        case float():
            return "number" if math.isfinite(level) else "unknown"
        case str():
            return "text"
    return "unknown"


def _encode_number(column: Column, cells: Cells, out: Floats, unseen: str) -> None:
    _check_kind(column, cells)
    values = cast(Floats, cells.values)
    with np.errstate(over="ignore"):
        z = column.standardized(np.where(cells.missing, column.fill, values))
    check_encoded(column.name, z)
    out[:, 0] = z
    if column.kind == "date" and cells.kind == "date":
        out[:, 1:5] = _cycles(values, cells.missing)


def _cycles(days: Floats, missing: Bools) -> Floats:
    """Sine and cosine of the day of the year and of the day of the week, 0 where missing; (N, 4)."""
    whole = np.floor(np.where(missing, 0.0, days)).astype(np.int64)
    date = whole.astype("datetime64[D]")
    year = date.astype("datetime64[Y]")
    start, end = year.astype("datetime64[D]"), (year + 1).astype("datetime64[D]")
    yearly = 2 * np.pi * ((date - start) / (end - start))
    weekly = 2 * np.pi / 7 * ((whole + 3) % 7)  # 1970-01-01 was a Thursday; the week starts on Monday
    waves = np.column_stack([np.sin(yearly), np.cos(yearly), np.sin(weekly), np.cos(weekly)])
    return np.where(missing[:, None], 0.0, waves)


def _encode_boolean(column: Column, cells: Cells, out: Floats, unseen: str) -> None:
    _check_kind(column, cells)
    out[:, 0] = np.where(cells.missing, 0.0, cast(Floats, cells.values))


def _encode_category(column: Column, cells: Cells, out: Floats, unseen: str) -> None:
    values = cells.levels()
    found = _distinct(column.name, values)
    if found and (cells.kind == "date" or family(found[0]) != family(column.levels[0])):
        raise DataError(
            f"column {column.name!r} held categories such as {column.levels[0]!r} in training and holds "
            f"{found[0]!r} ({cells.kind}) now; give it the type that it had"
        )
    index: dict[Any, int] = {level: i for i, level in enumerate(column.levels)}
    codes = np.fromiter((index.get(v, -1) for v in values), np.int64, len(values))
    new = (codes < 0) & ~cells.missing
    if new.any() and column.other:
        codes[new] = len(column.levels)
    elif new.any() and unseen == "error":
        first = values[int(np.argmax(new))]
        raise DataError(
            f"column {column.name!r} has the category {first!r} in {rows_of(new)}, which training "
            f'did not see; known are {some(column.levels)}. Correct it, or fit with unseen="ignore"'
        )
    rows = np.flatnonzero(codes >= 0)
    out[rows, codes[rows]] = 1.0


_ENCODERS: Mapping[str, Callable[[Column, Cells, Floats, str], None]] = {
    "numeric": _encode_number,
    "boolean": _encode_boolean,
    "category": _encode_category,
    "date": _encode_number,
}


def encode_column(column: Column, cells: Cells, out: Floats, *, missing: str, unseen: str) -> None:
    """Write the features of one column into ``out``, shape (N, number of features), which holds zeros.

    Raises
    ------
    DataError
        As :func:`fathomless.data.frames.encode` says.
    """
    if cells.missing.any() and not column.gaps and missing != "impute":
        raise DataError(
            f"column {column.name!r} has missing values (NaN) in {rows_of(cells.missing)}; training saw none "
            'there. Fill them, or fit with missing="impute"'
        )
    _ENCODERS[column.kind](column, cells, out, unseen)
    if column.gaps:
        out[:, -1] = cells.missing


def column_numbers(column: Column, cells: Cells) -> Floats:
    """Return the cells of a column as numbers; see :func:`fathomless.data.frames.as_numbers`."""
    if column.kind == "category":
        index: dict[Any, float] = {level: float(i) for i, level in enumerate(column.levels)}
        codes = np.array([index.get(value, -1.0) for value in cells.levels()])
        return np.where(cells.missing, math.nan, codes)
    _check_kind(column, cells)
    values = np.where(cells.missing, math.nan, cast(Floats, cells.values))
    return 0.5 * (values + 1.0) if column.kind == "boolean" else values


def _check_kind(column: Column, cells: Cells) -> None:
    if cells.kind not in (column.kind, "empty"):
        first = cells.levels()[int(np.argmin(cells.missing))]
        raise DataError(
            f"column {column.name!r} was {column.kind} in training and is {cells.kind} now (for instance "
            f"{first!r}); give it the type that it had"
        )


def check_encoded(name: str, z: Floats) -> None:
    """Refuse a value that lies so far from the training mean that its encoding overflows."""
    bad = ~np.isfinite(z)
    if bad.any():
        raise DataError(
            f"column {name!r} has values too far from the training mean to be encoded as finite numbers, in "
            f"{rows_of(bad)}; correct them or rescale the column"
        )


def rows_of(mask: Bools) -> str:
    """Describe where a mask is true: how many rows, and the first few by their place, as of ``X[place]``."""
    first = ", ".join(map(str, np.flatnonzero(mask)[:5]))
    return f"{int(mask.sum())} of {len(mask)} rows (counted from 0, first: {first})"


def some(values: Sequence[Any]) -> str:
    """List values for a message, at most ten of them."""
    shown = ", ".join(map(repr, values[:10]))
    return shown if len(values) <= 10 else f"{shown}, ... ({len(values)} in all)"


def check_option(name: str, given: str, allowed: Sequence[str]) -> None:
    """Refuse an option that is not one of a few words."""
    if given not in allowed:
        raise DataError(f"{name} is {given!r}; allowed are {', '.join(map(repr, allowed))}")


def check_fields(obj: Any, types: Mapping[str, type], what: str) -> None:
    """Refuse a JSON object that has not exactly these keys with values of these types."""
    if not isinstance(obj, dict) or obj.keys() != types.keys():
        found = sorted(map(str, obj)) if isinstance(obj, dict) else type(obj).__name__
        raise DataError(f"{what} was expected as an object with the keys {sorted(types)}; found {found}")
    for key, kind in types.items():
        if type(obj[key]) is not kind:
            found = type(obj[key]).__name__
            raise DataError(f"{what} has {key!r} of type {found}; expected {kind.__name__}")
