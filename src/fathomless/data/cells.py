"""Columns of arrays and data frames, converted to a few plain types; all tables are read through this module."""

import datetime
import math
import warnings
from dataclasses import replace
from decimal import Decimal
from typing import Any

import narwhals as nw
import numpy as np
import numpy.typing as npt

from fathomless.data.schema import ZONE_REMEDY, Bools, Cells, Floats, rows_of
from fathomless.system.errors import DataError, DataWarning

__all__ = [
    "WIDE",
    "as_series",
    "check_digits",
    "check_missing",
    "check_table",
    "get_column_names",
    "is_missing",
    "read_integers",
    "read_numbers",
    "read_objects",
    "read_series",
    "to_narwhals",
    "to_numpy",
]


WIDE = (nw.Int128, nw.UInt128)  #: Integer types that NumPy lacks.
_EXACT = 2**53  # integers up to here are exact in float64
_ADVICE = "convert it to numbers, text, booleans or dates"


def to_narwhals(given: Any, name: str) -> Any:
    """Convert a data frame or series to narwhals; return any other object unchanged.

    Raises
    ------
    DataError
        For a lazy frame, and for a frame with repeated column names.
    """
    if isinstance(given, np.ndarray):
        return given
    try:
        native = nw.from_native(given, allow_series=True, pass_through=True)
        names = native.columns if isinstance(native, nw.DataFrame) else []
    except nw.exceptions.DuplicateError as error:
        raise DataError(f"{name} has repeated column names; rename them. {error}") from error
    if isinstance(native, nw.LazyFrame):
        kind = f"{type(given).__module__.partition('.')[0]} {type(given).__name__}"
        raise DataError(f"{name} is a {kind}, which is not computed yet; call collect() and pass the result")
    if twice := sorted({str(column) for column in names if names.count(column) > 1}):
        raise DataError(f"{name} has the column names {twice} more than once; rename them")
    return native


def is_frame(given: Any) -> bool:
    """Return True for a data frame of any supported library."""
    return isinstance(to_narwhals(given, "X"), nw.DataFrame)


def as_series(given: Any, name: str) -> Any:
    """Convert a series to narwhals; return None for any other object. Raise errors as :func:`to_narwhals` does."""
    native = to_narwhals(given, name)
    return native if isinstance(native, nw.Series) else None


def get_column_names(given: Any, name: str) -> list[str] | None:
    """Return the column names of a data frame, or None for other objects. Raise errors as :func:`to_narwhals` does."""
    native = to_narwhals(given, name)
    return list(map(str, native.columns)) if isinstance(native, nw.DataFrame) else None


def check_table(X: Any) -> None:
    """Check that X is a table of a supported type; warn of integers that float64 cannot represent."""
    if type(X).__module__.startswith(
        "scipy.sparse"
    ):  # scikit-learn refuses them with a message of its own; one type is a dict
        return
    if isinstance(X, dict) or (isinstance(X, list | tuple) and X and isinstance(X[0], dict)):
        what = "a dict" if isinstance(X, dict) else f"a {type(X).__name__} of dicts"
        raise DataError(f"X is {what}; convert it to a data frame with pandas.DataFrame(X) or polars.DataFrame(X)")
    if not isinstance(X, np.ndarray):
        return
    if X.dtype.names is not None:
        raise DataError(
            f"X is a structured array with the fields {', '.join(X.dtype.names)}; convert it to a data frame with "
            "pandas.DataFrame(X)"
        )
    if X.dtype.kind in "mM":
        raise DataError(f"X is an array of dtype {X.dtype}; arrays must hold numbers: give dates in a data frame")
    if X.dtype.kind in "iu" and X.ndim == 2:
        for place, column in enumerate(X.T):
            check_digits(f"x{place}", column)


def is_missing(value: Any) -> bool:
    """Return True for a missing value: None, NaN, NaT, pandas' NA, or a masked cell."""
    if value is None or value is np.ma.masked or type(value).__name__ == "NAType":
        return True
    return isinstance(value, float | np.floating | Decimal | datetime.datetime | np.datetime64) and bool(value != value)


def read_numbers(name: str, values: Floats, kind: str = "numeric") -> Cells:
    """Return the cells of a numeric column; NaN is missing, and infinity raises an error."""
    infinite = np.isinf(values)
    if infinite.any():
        raise DataError(
            f"column {name!r} contains infinity in {rows_of(infinite)}; replace these values or drop the rows"
        )
    missing = np.isnan(values)
    return Cells("empty" if missing.all() else kind, values, missing)


def to_numpy(series: "nw.Series[Any]") -> npt.NDArray[Any]:
    """Convert a series to an array; pyarrow's own conversion would import pandas."""
    if not series.implementation.is_pyarrow():
        return series.to_numpy()
    from fathomless.tables.arrays import to_numpy

    return to_numpy(series.to_native())


def read_integers(series: "nw.Series[Any]", name: str) -> Floats:
    """Convert a series of integers to float64, NaN for missing; warn if distinct integers become equal."""
    if isinstance(series.dtype, WIDE):
        return read_objects(name, series.to_list(), to_numpy(series.is_null())).values  # type: ignore[return-value]
    integers = to_numpy(series)
    values = integers.astype(np.float64)
    if integers.dtype.kind not in "iu" and np.abs(values).max(initial=0.0, where=~np.isnan(values)) > _EXACT:
        check_digits(name, np.array([v for v in series.to_list() if not is_missing(v)], dtype=object))
    else:
        check_digits(name, integers)
    return values


def check_digits(name: str, values: npt.NDArray[Any]) -> None:
    """Warn if distinct integers, in an array of NumPy or Python integers, are equal in double precision."""
    if values.dtype.kind not in "iuO" or values.size == 0 or max(int(values.max()), -int(values.min())) <= _EXACT:
        return
    distinct = np.unique(values)
    remaining = len(np.unique(distinct.astype(np.float64)))
    if remaining < len(distinct):
        warnings.warn(
            f"column {name!r} has integers beyond 2^53, such as {int(distinct[-1])}: its {len(distinct):,} distinct "
            f"values become {remaining:,} in double precision. If they are identifiers, drop the column or convert it "
            "to text; if they are measurements, subtract a constant",
            DataWarning,
            stacklevel=2,
        )


def read_series(name: str, series: "nw.Series[Any]") -> Cells:
    """Return the cells of a series by its data type; the type of a column of Python objects follows from its values."""
    try:
        return _read_series(name, series)
    except (ArithmeticError, TypeError, nw.exceptions.NarwhalsError) as error:
        raise DataError(f"column {name!r} of type {series.dtype} cannot be read: {error}; {_ADVICE}") from error


def _read_series(name: str, series: "nw.Series[Any]") -> Cells:
    dtype = series.dtype
    if dtype.is_integer():  # without a cast, since pyarrow refuses integers beyond 2^53
        return read_numbers(name, read_integers(series, name))
    if dtype.is_numeric():
        return read_numbers(name, to_numpy(series.cast(nw.Float64())).astype(np.float64, copy=False))
    if isinstance(dtype, nw.Datetime):
        if dtype.time_zone is not None:
            series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return replace(read_numbers(name, _to_days(to_numpy(series)), "date"), zoned=dtype.time_zone is not None)
    if isinstance(dtype, nw.Date):
        days = to_numpy(series)
        if days.dtype.kind == "O":  # pandas has no array type for Arrow's dates
            gaps = to_numpy(series.is_null())
            days = np.array([None if gap else day for day, gap in zip(days, gaps, strict=True)], dtype="datetime64[D]")
        return read_numbers(name, _to_days(days), "date")
    values = series.to_list()
    gaps = to_numpy(series.is_null())
    if gaps.any():
        values = [None if gap else value for value, gap in zip(values, gaps, strict=True)]
    if isinstance(dtype, nw.String | nw.Categorical | nw.Enum):
        return Cells("category", values, gaps) if not gaps.all() else read_objects(name, values, gaps)
    if isinstance(dtype, nw.List | nw.Struct | nw.Array | nw.Binary | nw.Duration | nw.Time):
        raise DataError(f"column {name!r} has type {dtype}; {_ADVICE}")
    return read_objects(name, values, gaps)


def read_objects(name: str, values: list[Any], gaps: Bools) -> Cells:
    """Return the cells of a column of Python objects of one kind; None is missing."""
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return Cells("empty", np.full(len(values), np.nan), gaps)
    if all(issubclass(kind, bool | np.bool_) for kind in kinds):
        return read_numbers(name, np.array([math.nan if v is None else 2.0 * v - 1 for v in values]), "boolean")
    if all(issubclass(kind, str) for kind in kinds):
        return Cells("category", values, gaps)
    if all(issubclass(kind, int | float | Decimal | np.integer | np.floating) and kind is not bool for kind in kinds):
        return read_numbers(name, _to_floats(name, values))
    if all(issubclass(kind, datetime.date | np.datetime64) for kind in kinds):
        zones = {value.tzinfo is not None for value in values if isinstance(value, datetime.datetime)}
        if len(zones) == 2:
            raise DataError(f"column {name!r} has times with a time zone and times without one; {ZONE_REMEDY}")
        days = _to_days(np.array([_to_utc(v) for v in values], dtype="datetime64[us]"))
        return replace(read_numbers(name, days, "date"), zoned=zones.pop() if zones else None)
    names = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise DataError(
        f"column {name!r} holds values of type {names}; convert them all to numbers, text, booleans or dates"
    )


def _to_floats(name: str, values: list[Any]) -> Floats:
    """Convert Python numbers to float64, NaN for None."""
    numbers = np.full(len(values), math.nan)
    for row, value in enumerate(values):
        if value is not None:
            try:
                numbers[row] = float(value)
            except OverflowError as error:
                raise DataError(
                    f"column {name!r} has an integer of more than 308 digits in row {row} (counted from 0), too large "
                    "for double precision; rescale the column, or convert it to text if it is an identifier"
                ) from error
    whole_numbers = [v for v in values if isinstance(v, int | np.integer)]
    if whole_numbers and np.nanmax(np.abs(numbers)) > _EXACT:
        check_digits(name, np.array(whole_numbers, dtype=object))
    return numbers


def _to_utc(value: Any) -> Any:
    """Convert a datetime with a time zone to UTC, since NumPy has no time zones."""
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    return value


def _to_days(stamps: npt.NDArray[Any]) -> Floats:
    """Return days since 1970-01-01, NaN for NaT."""
    exact = stamps.astype("datetime64[us]")
    return np.where(np.isnat(exact), np.nan, exact.astype(np.int64) / 86_400e6)


def check_missing(name: str, cells: Cells, allowed: bool) -> None:
    """Raise an error for missing values if they are not allowed."""
    if cells.missing.any() and not allowed:
        raise DataError(
            f"column {name!r} contains NaN (missing values) in {rows_of(cells.missing)}, which are not allowed here. "
            'Fill or drop them, give a data frame with missing="auto", or set missing="impute"'
        )
