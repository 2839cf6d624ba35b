"""Fitted encoding of a table: columns, their features, and conversion to and from JSON.

This module encodes columns of plain types (:class:`Cells`). Tables are read in :mod:`fathomless.data.frames`.
"""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import compress
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from fathomless.data.bins import ROWS_AT_ONCE, Bins, BinsOfColumns, fit_bins
from fathomless.data.outliers import Outliers, find_outliers
from fathomless.system.errors import DataError, DataWarning

__all__ = [
    "FEW_LEVELS",
    "MISSING",
    "NUMBERS",
    "UNSEEN",
    "ZONE_REMEDY",
    "Bools",
    "Cells",
    "Column",
    "Floats",
    "Level",
    "Schema",
    "check_encoded",
    "check_fields",
    "check_option",
    "check_unknown_effects",
    "choose_max_levels",
    "circle",
    "compute_moments",
    "encode_as_numbers",
    "encode_column",
    "family",
    "find_new_levels",
    "find_unknown_effects",
    "fit_column",
    "limits_of_constant",
    "rows_of",
    "some",
    "warn_of_outliers",
]

#: Type of a category: text, boolean or number.
Level: TypeAlias = str | bool | int | float
#: Arrays of float64.
Floats: TypeAlias = npt.NDArray[np.float64]
#: Arrays of truth values.
Bools: TypeAlias = npt.NDArray[np.bool_]

#: Policies for missing values.
MISSING = ("auto", "error", "impute")
#: Policies for categories that are not in the training data.
UNSEEN = ("warn", "error", "ignore")
#: Encodings of columns of numbers.
NUMBERS = ("plain", "binned")
_FEW = 4096  # maximum rows for moments that do not depend on the order of rows, to the last bit
ZONE_REMEDY = "convert all times to UTC, with or without a time zone"  #: Remedy for columns of mixed times.
FEW_LEVELS = 100  #: largest number of categories of a column that are all levels of their own
_MOST_LEVELS, _LEVEL_VALUES = 1000, 50_000_000  # largest number of levels of a column, and values of all their features
_KINDS = ("numeric", "boolean", "category", "date", "empty")
_CYCLES = ("day of year, sin", "day of year, cos", "weekday, sin", "weekday, cos")


@dataclass(frozen=True)
class Column:
    """Fitted encoding of one column.

    Attributes
    ----------
    name : str
        Name in the table.
    kind : {"numeric", "boolean", "category", "date", "empty"}
        Type of the encoding; see :func:`~fathomless.data.frames.encode`. A column without values in training is
        "empty", and has no features.
    center, scale : float
        A value v becomes (v - center) / scale (numbers; dates in days since 1970-01-01).
    fill : float
        Training mean, which replaces missing numbers and dates.
    levels : tuple of str, bool, int or float
        Sorted categories of the training data.
    other : bool
        True if rare and unseen categories share an additional level.
    gaps : bool
        True if values were missing in training; the column then has an additional feature "NAME is missing".
    limits : (float, float), optional
        Range to which values are clipped: of numbers and dates, if the column had outliers in training; twice the
        value of a column that was constant, so that other values, about which nothing was learned, have no effect. For
        a column with one category they are (1, 1), those of its feature.
    bins : Bins, optional
        Further features of a column of numbers; see :mod:`fathomless.data.bins`.
    zoned : bool, optional
        True if times had a time zone in training, False if they had none, and None if it is not known.
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
    bins: Bins | None = None
    zoned: bool | None = None

    def clip(self, values: Floats) -> Floats:
        """Clip numbers or dates to the limits."""
        return values if self.limits is None else np.clip(values, *self.limits)

    def standardize(self, values: Floats) -> Floats:
        """Clip numbers or dates to the limits, then center and scale them."""
        return (self.clip(values) - self.center) / self.scale

    @property
    def constant(self) -> bool:
        """True if all values in training were equal and others are replaced by this value."""
        return self.limits is not None and self.limits[0] == self.limits[1]

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the encoded features, in order."""
        names = [self.name]
        if self.kind == "empty":
            return ()
        if self.kind == "category":
            names = [f"{self.name}={level}" for level in self.levels]
            names += [f"{self.name}=(other)"] if self.other else []
        elif self.kind == "date":
            names += [f"{self.name} ({cycle})" for cycle in _CYCLES]
        elif self.bins is not None:
            names += self.bins.names(self.name)
        return (*names, f"{self.name} is missing") if self.gaps else tuple(names)


@dataclass(frozen=True)
class Schema:
    """Fitted encoding of a table as a matrix, see :func:`~fathomless.data.frames.fit_schema`.

    Attributes
    ----------
    columns : tuple of Column
        Columns in the order of the training table.
    named : bool
        True if the training table had column names. Data frames are then matched by name, otherwise by position.
    missing, unseen : str
        Policies of :func:`~fathomless.data.frames.fit_schema`.
    """

    columns: tuple[Column, ...]
    named: bool
    missing: str = "auto"
    unseen: str = "warn"

    @cached_property
    def encoded_names(self) -> tuple[str, ...]:
        """Names of the D encoded features."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def width(self) -> int:
        """Number D of encoded features."""
        return len(self.encoded_names)

    @cached_property
    def numbers(self) -> "NumberColumns | None":
        """Encoding of tables whose columns are all numbers; None for other tables."""
        return NumberColumns(self.columns) if all(column.kind == "numeric" for column in self.columns) else None

    @property
    def plain(self) -> "Schema":
        """The same encoding without further features of columns of numbers."""
        return replace(self, columns=tuple(replace(column, bins=None) for column in self.columns))

    @property
    def unlimited_constants(self) -> "Schema":
        """The same encoding, in which columns that were constant in training also have other values."""
        free = (replace(column, limits=None) if column.constant else column for column in self.columns)
        return replace(self, columns=tuple(free))

    @property
    def plain_features(self) -> tuple[int, ...]:
        """Indices of the encoded features that the encoding :attr:`plain` has too."""
        indices: list[int] = []
        start = 0
        for column in self.columns:
            count = len(column.features)
            own = range(count) if column.bins is None else [0, *range(count - column.gaps, count)]
            indices += [start + i for i in own]
            start += count
        return tuple(indices)

    @property
    def further_features(self) -> tuple[int, ...]:
        """Indices of the encoded features that the encoding :attr:`plain` does not have."""
        return tuple(sorted(set(range(self.width)).difference(self.plain_features)))

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; :meth:`from_json` gives an equal schema."""
        columns = [{**asdict(column), "levels": list(column.levels)} for column in self.columns]
        for entry in columns:  # columns without limits, bins or times have no such keys
            limits, bins, zoned = (entry.pop(name) for name in _OPTIONAL)
            entry.update({} if limits is None else {"limits": list(limits)})
            entry.update({} if zoned is None else {"zoned": zoned})
            if bins is not None:
                entry["bins"] = {name: list(v) if isinstance(v, tuple) else v for name, v in bins.items()}
        return {"columns": columns, "named": self.named, "missing": self.missing, "unseen": self.unseen}

    @staticmethod
    def from_json(obj: Any) -> "Schema":
        """Rebuild a schema; raise :class:`DataError` for anything that :meth:`to_json` does not write."""
        check_fields(obj, {"columns": list, "named": bool, "missing": str, "unseen": str}, "a schema")
        columns = []
        for entry in obj["columns"]:
            further = [name for name in _OPTIONAL if isinstance(entry, dict) and name in entry]
            names = [f.name for f in fields(Column) if f.name not in _OPTIONAL or f.name in further]
            check_fields(entry, {name: _JSON_TYPES[name] for name in names}, "a column of a schema")
            read: dict[str, Any] = {"limits": tuple(entry["limits"])} if "limits" in further else {}
            if "bins" in further:
                check_fields(entry["bins"], _BINS_TYPES, "the bins of a column of a schema")
                read["bins"] = _read_bins(**entry["bins"])
            columns.append(Column(**{**entry, "levels": tuple(entry["levels"]), **read}))
        for column in columns:
            _check_column(column)
        if len({column.name for column in columns}) != len(columns) or not columns:
            raise DataError("the saved schema was altered: it has no columns, or repeated ones; fit and save again")
        check_option("missing", obj["missing"], MISSING)
        check_option("unseen", obj["unseen"], UNSEEN)
        return Schema(tuple(columns), obj["named"], obj["missing"], obj["unseen"])


class NumberColumns:
    """Encoding of C columns of numbers at once, which takes less time for few rows than column by column.

    Parameters
    ----------
    columns : sequence of Column
        Columns of the kind "numeric".
    """

    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = columns
        self._center = np.array([column.center for column in columns])
        self._scale = np.array([column.scale for column in columns])
        limits = [(-math.inf, math.inf) if column.limits is None else column.limits for column in columns]
        self._limits = None if all(column.limits is None for column in columns) else np.array(limits).T
        self._constant = [place for place, column in enumerate(columns) if column.constant]
        counts = [len(column.features) for column in columns]
        self._first = np.cumsum([0, *counts[:-1]])
        self._bins = BinsOfColumns([column.bins for column in columns])
        before = self._first + 1  # position of the first feature of the bins of each column
        start = np.searchsorted(self._bins.column, self._bins.column)
        self._place = before[self._bins.column] + np.arange(len(start)) - start

    def encode(self, values: Floats, out: Floats, *, unseen: str) -> None:
        """Write the features of finite values (N, C) into ``out``, shape (N, D), initially zero.

        Raises
        ------
        DataError
            If the encoding of a value overflows, or a constant column has another value and `unseen` is "error".
        """
        found = []
        for place in self._constant:
            cells = Cells("numeric", values[:, place], np.zeros(len(values), dtype=np.bool_))
            rows = find_unknown_effects(self.columns[place], cells)
            found += [(self.columns[place], cells, rows)] if rows.any() else []
        check_unknown_effects(found, unseen)
        for start in range(0, len(values), ROWS_AT_ONCE):
            part, features = values[start : start + ROWS_AT_ONCE], out[start : start + ROWS_AT_ONCE]
            part = part if self._limits is None else np.clip(part, *self._limits)
            with np.errstate(over="ignore"):
                z = (part - self._center) / self._scale
            if not np.isfinite(z).all():
                worst = int(np.argmin(np.isfinite(z).all(axis=0)))
                column = self.columns[worst]
                with np.errstate(over="ignore"):
                    check_encoded(column.name, column.standardize(values[:, worst]))
            features[:, self._first] = z
            if len(self._place):
                features[:, self._place] = self._bins.encode(part)


def _read_bins(median: float, spread: float, spikes: list[float], knots: list[float], means: list[float]) -> Bins:
    return Bins(median, spread, tuple(spikes), tuple(knots), tuple(means))


def _check_column(column: Column) -> None:
    """Raise an error for a column that :func:`fit_column` cannot produce."""
    numbers = (column.center, column.scale, column.fill)
    families = {family(level) for level in column.levels}
    limits = (0.0, 1.0) if column.limits is None else column.limits
    plain = len(limits) == 2 and all(type(v) is float and math.isfinite(v) for v in limits)
    if (
        not (plain and limits[0] <= limits[1])
        or (column.kind == "boolean" and column.limits not in (None, (-1.0, -1.0), (1.0, 1.0)))
        or (
            column.kind == "category"
            and column.limits not in ((None, (1.0, 1.0)) if len(column.levels) == 1 else (None,))
        )
        or (column.kind == "empty" and column.limits is not None)
        or (column.bins is not None and (column.kind != "numeric" or not column.bins.is_valid()))
        or column.kind not in _KINDS
        or not all(map(math.isfinite, numbers))
        or column.scale <= 0
        or "unknown" in families
        or len(families) != (column.kind == "category")
        or len(set(column.levels)) != len(column.levels)
    ):
        raise DataError(f"the saved schema was altered: {column} is not valid; fit and save again")


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
    "bins": dict,
    "zoned": bool,
}
_OPTIONAL = ("limits", "bins", "zoned")
_BINS_TYPES: Mapping[str, type] = {"median": float, "spread": float, "spikes": list, "knots": list, "means": list}


@dataclass(frozen=True)
class Cells:
    """Cells of one column, converted to a plain type.

    ``values`` is a float vector with NaN for missing (numeric; boolean as -1 and +1; dates as days since 1970-01-01),
    or a list with None for missing (category). The kind of a column without values is "empty". ``zoned`` is True for
    times with a time zone, and False for times without one.
    """

    kind: str
    values: Floats | list[Any]
    missing: Bools
    zoned: bool | None = None

    def keep(self, rows: Bools) -> "Cells":
        """Return the cells of the rows with a true mask."""
        values = list(compress(self.values, rows)) if isinstance(self.values, list) else self.values[rows]
        return Cells(self.kind, values, self.missing[rows], self.zoned)

    def levels(self) -> list[Any]:
        """Return the values as Python scalars, None for missing."""
        if isinstance(self.values, list):
            return self.values
        values = (self.values > 0 if self.kind == "boolean" else self.values).tolist()
        return [None if gap else value for value, gap in zip(values, self.missing, strict=True)]


def fit_column(
    name: str,
    cells: Cells,
    weight: Floats | None,
    *,
    standardize: bool,
    max_levels: int,
    few_levels: int | None = None,
    limit: bool = True,
    bins: int = 0,
) -> Column:
    """Fit the encoding of a column with at least one value, with at most `bins` bins; warn of outliers.

    A column of at most `few_levels` categories, by default `max_levels`, has a level for each. If there are more, those
    of a single row share a level.
    """
    if max_levels < 2:
        raise DataError(f"max_levels is {max_levels}; it must be at least 2")
    if cells.kind == "category":
        column = _fit_category(name, cells, weight, max_levels, few_levels or max_levels)
        alone = standardize and limit and len(column.levels) == 1 and not column.other
        return replace(column, limits=(1.0, 1.0)) if alone else column
    return _fit_number(name, cells, weight, standardize, limit, bins)


def _fit_number(name: str, cells: Cells, weight: Floats | None, standardize: bool, limit: bool, bins: int) -> Column:
    values = cast(Floats, cells.values)
    gaps = bool(cells.missing.any())
    if gaps:
        weight = None if weight is None else weight[~cells.missing]
        values = values[~cells.missing]
    constant = limits_of_constant(float(values.min()), float(values.max())) if standardize and limit else None
    if cells.kind == "boolean":
        return Column(name, "boolean", gaps=gaps, limits=constant)
    far = find_outliers(values, weight) if standardize and limit else None
    if far is not None:
        warn_of_outliers(name, cells.kind, far, len(values))
        inside = far.inside(values)
        values, weight = values[inside], None if weight is None else weight[inside]
    mean, scale = compute_moments(values, weight)
    center, scale = (mean, scale) if standardize else (0.0, 1.0)
    limits = constant if far is None else far.limits
    fitted = fit_bins(values, weight, bins) if bins and cells.kind == "numeric" else None
    return Column(name, cells.kind, center, scale, mean, gaps=gaps, limits=limits, bins=fitted, zoned=cells.zoned)


def limits_of_constant(low: float, high: float) -> tuple[float, float] | None:
    """Return the limits of a column with the minimum `low` and the maximum `high`, if they are equal."""
    return (low, high) if low == high else None


def warn_of_outliers(name: str, kind: str, far: Outliers, rows: int) -> None:
    """Warn of outliers of a column, which is clipped to limits because of them."""
    warnings.warn(
        f"column {name!r} is {far.describe(rows, kind)}: these outliers are excluded from the mean and scale of the "
        "column, and are clipped. If they stand for missing values, replace them by NaN or None; if they are errors, "
        "correct them",
        DataWarning,
        stacklevel=2,
    )


def compute_moments(values: Floats, weight: Floats | None) -> tuple[float, float]:
    """Compute the weighted mean and population standard deviation of finite values; the scale of a constant is 1."""
    low, high = float(values.min()), float(values.max())
    if low == high:  # the computed mean of equal values need not be exact
        return low, 1.0
    if len(values) <= _FEW:  # makes the sums independent of the order and repetition of rows, to the last bit
        values, place = np.unique(values, return_inverse=True)
        weight = np.bincount(place, weights=weight).astype(np.float64)
    # scaling by a power of two is exact, and keeps squares from overflowing or underflowing
    exponent = int(np.frexp(max(-low, high))[1])
    small = np.ldexp(values, -exponent)
    mean = float(np.average(small, weights=weight))
    mean += float(np.average(small - mean, weights=weight))
    scale = math.sqrt(np.average((small - mean) ** 2, weights=weight))
    return math.ldexp(mean, exponent), math.ldexp(scale, exponent) or 1.0


def choose_max_levels(rows: int, categorical: int) -> int:
    """Return the largest number of levels of a column, for N rows and a number of columns of categories.

    It is from 100 to 1,000, so that the features of the levels have about 5 · 10⁷ values in total, and are at most half
    as many as the rows.
    """
    columns = max(categorical, 1)
    return min(max(min(_LEVEL_VALUES // max(rows, 1), rows // 2) // columns, FEW_LEVELS), _MOST_LEVELS)


def _fit_category(name: str, cells: Cells, weight: Floats | None, max_levels: int, few: int) -> Column:
    values = cells.levels()
    levels = _sort_levels(name, values)
    other = len(levels) > few
    if other:
        index: dict[Any, int] = {level: i for i, level in enumerate(levels)}
        codes = np.fromiter((index.get(v, len(levels)) for v in values), np.int64, len(values))
        counts = np.bincount(codes, weights=weight, minlength=len(levels))[: len(levels)]
        # All categories of a single row share a level, which is also that of new ones. If some of them had levels, it
        # would be those that are first by name, and new categories would be predicted by the rows of the last names.
        single = min(1.0, counts.min(where=counts > 0.0, initial=1.0))  # weight of a row
        enough = int((counts >= 2.0 * single).sum())
        # one level is kept, so that values of another type are refused
        kept = len(levels) if enough == len(levels) <= max_levels else min(max_levels - 1, max(enough, 1))
        other = kept < len(levels)
        frequent = np.argsort(-counts, kind="stable")[:kept]
        levels = [levels[i] for i in sorted(frequent)]
    return Column(name, "category", levels=tuple(levels), other=other, gaps=bool(cells.missing.any()))


def _sort_levels(name: str, values: list[Any]) -> list[Level]:
    """Sort the distinct categories, which must be comparable and representable in JSON."""
    try:
        levels = [v.item() if isinstance(v, np.generic) else v for v in set(values) - {None}]
    except TypeError as error:
        raise DataError(f"column {name!r} holds nested values; convert them to numbers or text") from error
    families = sorted({family(level) for level in levels})
    if len(families) > 1 or "unknown" in families:
        kinds = sorted({type(level).__name__ for level in levels})
        raise DataError(
            f"column {name!r} has categories of type {', '.join(kinds)}; convert them all to text or all to numbers"
        )
    return cast("list[Level]", sorted(levels))


def family(level: Any) -> str:
    """Return the family of a scalar, "text", "boolean", "number" or "unknown"; a column must have a single family."""
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
        z = column.standardize(np.where(cells.missing, column.fill, values))
    check_encoded(column.name, z)
    out[:, 0] = z
    if column.kind == "date" and cells.kind == "date":
        out[:, 1:5] = _encode_cycles(column.clip(values) if column.constant else values, cells.missing)
    if column.bins is not None:
        features = column.bins.encode(column.clip(np.where(cells.missing, column.fill, values)))
        out[:, 1 : 1 + features.shape[1]] = features


def _encode_cycles(days: Floats, missing: Bools) -> Floats:
    """Compute sine and cosine of the day of the year and of the day of the week, shape (N, 4); 0 for missing dates."""
    whole = np.floor(np.where(missing, 0.0, days)).astype(np.int64)
    date = whole.astype("datetime64[D]")
    year = date.astype("datetime64[Y]")
    start, end = year.astype("datetime64[D]"), (year + np.timedelta64(1, "Y")).astype("datetime64[D]")
    weekday = (whole + 3) % 7  # 1970-01-01 was a Thursday; the week starts on Monday
    waves = np.hstack([circle((date - start) / (end - start)), circle(weekday / 7)])
    return np.where(missing[:, None], 0.0, waves)


def circle(share: Floats) -> Floats:
    """Return sine and cosine (N, 2) of shares of a circle, rounded so that those of mirrored shares are equal."""
    angle = 2.0 * np.pi * np.asarray(share)
    return np.round(np.column_stack([np.sin(angle), np.cos(angle)]), 12) + 0.0


def _encode_boolean(column: Column, cells: Cells, out: Floats, unseen: str) -> None:
    _check_kind(column, cells)
    out[:, 0] = np.where(cells.missing, 0.0, column.clip(cast(Floats, cells.values)))


def _encode_category(column: Column, cells: Cells, out: Floats, unseen: str) -> None:
    values = cells.levels()
    distinct = _sort_levels(column.name, values)
    if distinct and (cells.kind == "date" or family(distinct[0]) != family(column.levels[0])):
        raise DataError(
            f"column {column.name!r} had categories such as {column.levels[0]!r} in the training data and now has "
            f"{distinct[0]!r} ({cells.kind}); give it the type of the training data"
        )
    codes = _number_levels(column, values)
    new = (codes < 0) & ~cells.missing
    if new.any() and column.other:
        codes[new] = len(column.levels)
    elif new.any() and unseen == "error":
        first = values[int(np.argmax(new))]
        raise DataError(
            f"column {column.name!r} has the category {first!r} in {rows_of(new)}, which is not in the training data; "
            f'known categories are {some(column.levels)}. Correct it, or fit with unseen="ignore"'
        )
    elif new.any() and unseen == "warn":
        levels = list(dict.fromkeys(values[i] for i in np.flatnonzero(new)))
        warnings.warn(
            f"column {column.name!r} has categories that are not in the training data, in {int(new.sum()):,} of "
            f"{len(new):,} rows: {some(sorted(levels, key=str))}. They are {_describe_new(column)}. "
            "unseen='error' refuses such rows, and unseen='ignore' accepts them without a warning",
            DataWarning,
            stacklevel=2,
        )
    rows = np.flatnonzero(codes >= 0)
    out[rows, codes[rows]] = 1.0
    if column.constant:
        out[:, 0] = ~cells.missing if column.gaps else True


def _describe_new(column: Column) -> str:
    """Return the encoding of categories that were not in the training data, for a message."""
    return (
        "ignored, since the column had one category" if column.constant else "encoded as none of the known categories"
    )


def _number_levels(column: Column, values: Sequence[Any]) -> npt.NDArray[np.int64]:
    """Return the number of the level of each value, -1 for values that are not in the training data."""
    index: dict[Any, int] = {level: i for i, level in enumerate(column.levels)}
    return np.fromiter((index.get(value, -1) for value in values), np.int64, len(values))


def find_new_levels(column: Column, cells: Cells) -> dict[Level, Bools]:
    """Return the rows of each category that is encoded as none of the known ones, by category; see `unseen`."""
    if column.kind != "category" or column.other or cells.kind in ("date", "empty"):
        return {}
    values = cells.levels()
    new = (_number_levels(column, values) < 0) & ~cells.missing
    found: dict[Level, Bools] = {}
    for row in np.flatnonzero(new).tolist():
        if values[row] not in found:
            found[values[row]] = np.zeros(len(new), dtype=np.bool_)
        found[values[row]][row] = True
    return found


_ENCODERS: Mapping[str, Callable[[Column, Cells, Floats, str], None]] = {
    "numeric": _encode_number,
    "boolean": _encode_boolean,
    "category": _encode_category,
    "date": _encode_number,
}


def encode_column(column: Column, cells: Cells, out: Floats, *, missing: str, unseen: str) -> None:
    """Write the features of one column into ``out``, shape (N, number of features), initially zero.

    Missing values in a column without them in training raise an error, or are replaced by the mean, with a warning if
    `missing` is "warn".

    Raises
    ------
    DataError
        As :func:`fathomless.data.frames.encode` does.
    """
    if column.kind == "empty":
        return
    if cells.missing.any() and not column.gaps and missing == "warn":
        filled = _describe_new(column) if column.kind == "category" else "replaced by the mean"
        warnings.warn(
            f"column {column.name!r} has missing values in {int(cells.missing.sum()):,} of {len(out):,} rows, but had "
            f"none in the training data. They are {filled}, and predictions do not contain their uncertainty. "
            "missing='error' refuses such rows, and missing='impute' accepts them without a warning",
            DataWarning,
            stacklevel=2,
        )
    elif cells.missing.any() and not column.gaps and missing != "impute":
        raise DataError(
            f"column {column.name!r} has missing values (NaN) in {rows_of(cells.missing)}, but had none in the "
            'training data. Fill them, or fit with missing="impute"'
        )
    _ENCODERS[column.kind](column, cells, out, unseen)
    if column.gaps:
        out[:, -1] = cells.missing


def find_unknown_effects(column: Column, cells: Cells) -> Bools:
    """Return the rows with a value of a column without values in training, or another value of a constant column."""
    if column.kind == "empty":
        return ~cells.missing
    if not column.constant or cells.kind != column.kind or column.kind == "category":
        return np.zeros(len(cells.missing), dtype=np.bool_)  # new categories have messages of their own
    values = cast(Floats, cells.values)
    other: Bools = values != column.clip(values)
    return other & ~cells.missing


def check_unknown_effects(found: Sequence[tuple[Column, Cells, Bools]], unseen: str) -> None:
    """Warn of values whose effect is unknown, or refuse them.

    Parameters
    ----------
    found : sequence of (Column, Cells, ndarray)
        Columns, their cells and the result of :func:`find_unknown_effects`.
    unseen : {"warn", "error", "ignore"}
        Policy.
    """
    if unseen == "ignore":
        return
    for empty, was, were, have in ((True, "had no", "had no", ""), (False, "was constant", "were constant", "other ")):
        part = [(column, cells, rows) for column, cells, rows in found if (column.kind == "empty") == empty]
        if not part:
            continue
        column, cells, rows = part[0]
        first = cells.keep(rows).levels()[0]
        first = np.datetime64(math.floor(first), "D").item().isoformat() if cells.kind == "date" else first
        one = len(part) == 1
        names = f"column {column.name!r}" if one else f"columns {some([column.name for column, *_ in part])}"
        where = rows_of(np.any([rows for *_, rows in part], 0))
        text = (
            f"{names} {was if one else were}{' values' if empty else ''} in the training data, and "
            f"{'has' if one else 'have'} {have}values, such as {first!r}, in {where}"
        )
        if unseen == "error":
            raise DataError(f"{text}. Drop {'the column' if one else 'these columns'}, or fit with unseen='ignore'")
        warnings.warn(f"{text}. Their effect is unknown, and they are ignored", DataWarning, stacklevel=3)


def encode_as_numbers(column: Column, cells: Cells) -> Floats:
    """Convert the cells of a column to numbers; see :func:`fathomless.data.frames.as_numbers`."""
    if column.kind == "empty":
        return np.full(len(cells.missing), math.nan)
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
            f"column {column.name!r} was {column.kind} in the training data and is now {cells.kind} (for instance "
            f"{first!r}); give it the type of the training data"
        )
    if None not in (column.zoned, cells.zoned) and column.zoned != cells.zoned:
        had, has = ("had a", "have none") if column.zoned else ("had no", "have one")
        warnings.warn(
            f"column {column.name!r}: times {had} time zone in the training data, and now they {has}. Times without a "
            f"zone are taken as UTC. If they are not, {ZONE_REMEDY}",
            DataWarning,
            stacklevel=2,
        )


def check_encoded(name: str, z: Floats) -> None:
    """Raise an error if the encoding of a value overflows because it is too far from the training mean."""
    bad = ~np.isfinite(z)
    if bad.any():
        raise DataError(
            f"column {name!r} has values too far from the training mean to be encoded as finite numbers in "
            f"{rows_of(bad)}; correct them or rescale the column"
        )


def rows_of(mask: Bools) -> str:
    """Describe the rows with a true mask: their number, and the positions of the first few."""
    first = ", ".join(map(str, np.flatnonzero(mask)[:5]))
    return f"{int(mask.sum())} of {len(mask)} rows (counted from 0, first: {first})"


def some(values: Sequence[Any]) -> str:
    """List up to ten values for a message."""
    shown = ", ".join(map(repr, values[:10]))
    return shown if len(values) <= 10 else f"{shown}, ... ({len(values)} in all)"


def check_option(name: str, given: str, allowed: Sequence[str]) -> None:
    """Raise an error if the value of an option is not allowed."""
    if given not in allowed:
        raise DataError(f"{name} is {given!r}; allowed are {', '.join(map(repr, allowed))}")


def check_fields(obj: Any, types: Mapping[str, type], what: str) -> None:
    """Raise an error unless a JSON object has exactly these keys, with values of these types."""
    if not isinstance(obj, dict) or obj.keys() != types.keys():
        actual = sorted(map(str, obj)) if isinstance(obj, dict) else type(obj).__name__
        raise DataError(f"{what} must be an object with the keys {sorted(types)}; found {actual}")
    for key, kind in types.items():
        if type(obj[key]) is not kind:
            actual = type(obj[key]).__name__
            raise DataError(f"{what} has {key!r} of type {actual}; expected {kind.__name__}")
