"""Columns of arrays and data frames with their type made plain: what every table is read through."""

import datetime
import math
import warnings
from decimal import Decimal
from typing import Any

import narwhals as nw
import numpy as np
import numpy.typing as npt

from fathomless.data.schema import Bools, Cells, Floats, rows_of
from fathomless.system.errors import DataError, DataWarning

__all__ = [
    "WIDE",
    "as_series",
    "check_digits",
    "check_missing",
    "check_table",
    "column_names",
    "eager",
    "is_gap",
    "number_cells",
    "numpy_of",
    "object_cells",
    "series_cells",
    "whole",
]


WIDE = (nw.Int128, nw.UInt128)  #: which NumPy does not have
_EXACT = 2**53  # whole numbers up to here are exact in double precision
_ADVICE = "turn it into numbers, text, booleans or dates"


def eager(given: Any, name: str) -> Any:
    """Return a data frame or series for narwhals, anything else as it is.

    Raises
    ------
    DataError
        For a lazy frame, and for a frame with a column name that comes twice.
    """
    try:
        found = nw.from_native(given, allow_series=True, pass_through=True)
        names = found.columns if isinstance(found, nw.DataFrame) else []
    except nw.exceptions.DuplicateError as error:
        raise DataError(f"{name} has repeated column names; rename them. {error}") from error
    if isinstance(found, nw.LazyFrame):
        kind = f"{type(given).__module__.partition('.')[0]} {type(given).__name__}"
        raise DataError(f"{name} is a {kind}, which has not been computed; call collect() on it, and give the result")
    if twice := sorted({str(column) for column in names if names.count(column) > 1}):
        raise DataError(f"{name} has the column names {twice} more than once; rename them")
    return found


def is_frame(given: Any) -> bool:
    """Return True for a data frame of any library that is supported."""
    return isinstance(eager(given, "X"), nw.DataFrame)


def as_series(given: Any, name: str) -> Any:
    """Return a series for narwhals, or None for anything else; raises as :func:`eager` does."""
    found = eager(given, name)
    return found if isinstance(found, nw.Series) else None


def column_names(given: Any, name: str) -> list[str] | None:
    """Return the names of the columns of a data frame, or None for anything else; raises as :func:`eager` does."""
    found = eager(given, name)
    return list(map(str, found.columns)) if isinstance(found, nw.DataFrame) else None


def check_table(X: Any) -> None:
    """Refuse what is no table, and arrays that hold no numbers; warn of whole numbers that are not exact."""
    if type(X).__module__.startswith("scipy.sparse"):  # one kind is a dict; scikit-learn refuses them all
        return
    if isinstance(X, dict) or (isinstance(X, list | tuple) and X and isinstance(X[0], dict)):
        what = "a dict" if isinstance(X, dict) else f"a {type(X).__name__} of dicts"
        raise DataError(f"X is {what}; make a data frame of it, with pandas.DataFrame(X) or polars.DataFrame(X)")
    if not isinstance(X, np.ndarray):
        return
    if X.dtype.names is not None:
        raise DataError(
            f"X is a structured array with the fields {', '.join(X.dtype.names)}; make a data frame of it, with "
            "pandas.DataFrame(X)"
        )
    if X.dtype.kind in "mM":
        raise DataError(f"X is an array of dtype {X.dtype}; arrays hold numbers: give dates in a data frame")
    if X.dtype.kind in "iu" and X.ndim == 2:
        for place, column in enumerate(X.T):
            check_digits(f"x{place}", column)


def is_gap(value: Any) -> bool:
    """Return True for a missing value: None, NaN, NaT, pandas' NA, or a masked cell."""
    if value is None or value is np.ma.masked or type(value).__name__ == "NAType":
        return True
    return isinstance(value, float | np.floating | Decimal | datetime.datetime | np.datetime64) and bool(value != value)


def number_cells(name: str, values: Floats, kind: str = "numeric") -> Cells:
    """Return the cells of a column of numbers, in which NaN is missing; infinity is refused."""
    infinite = np.isinf(values)
    if infinite.any():
        raise DataError(f"column {name!r} contains infinity in {rows_of(infinite)}; replace or drop these values")
    missing = np.isnan(values)
    return Cells("empty" if missing.all() else kind, values, missing)


def numpy_of(series: "nw.Series[Any]") -> npt.NDArray[Any]:
    """Return a series as an array; pyarrow's own way imports pandas."""
    if not series.implementation.is_pyarrow():
        return series.to_numpy()
    from fathomless.tables.arrays import numpy_of

    return numpy_of(series.to_native())


def whole(series: "nw.Series[Any]", name: str) -> Floats:
    """Return a series of whole numbers as float64, NaN where missing; warn if distinct ones become equal."""
    if isinstance(series.dtype, WIDE):
        return object_cells(name, series.to_list(), numpy_of(series.is_null())).values  # type: ignore[return-value]
    given = numpy_of(series)
    values = given.astype(np.float64)
    if given.dtype.kind not in "iu" and np.abs(values).max(initial=0.0, where=~np.isnan(values)) > _EXACT:
        check_digits(name, np.array([v for v in series.to_list() if not is_gap(v)], dtype=object))
    else:
        check_digits(name, given)
    return values


def check_digits(name: str, values: npt.NDArray[Any]) -> None:
    """Warn if distinct whole numbers, given as an array of integers or of Python's, are equal in double precision."""
    if values.dtype.kind not in "iuO" or values.size == 0 or max(int(values.max()), -int(values.min())) <= _EXACT:
        return
    distinct = np.unique(values)
    left = len(np.unique(distinct.astype(np.float64)))
    if left < len(distinct):
        warnings.warn(
            f"column {name!r} has whole numbers beyond 2^53, such as {int(distinct[-1])}: {len(distinct):,} distinct "
            f"values become {left:,} in double precision. If they are identifiers, drop the column or turn it into "
            "text; if they are measurements, subtract a constant",
            DataWarning,
            stacklevel=2,
        )


def series_cells(name: str, series: "nw.Series[Any]") -> Cells:
    """Look at the data type of a series; columns of Python objects are judged by their values."""
    try:
        return _series_cells(name, series)
    except (ArithmeticError, TypeError, nw.exceptions.NarwhalsError) as error:
        raise DataError(f"column {name!r} of the type {series.dtype} cannot be read: {error}; {_ADVICE}") from error


def _series_cells(name: str, series: "nw.Series[Any]") -> Cells:
    dtype = series.dtype
    if dtype.is_integer():  # not a cast, since pyarrow refuses numbers beyond 2^53
        return number_cells(name, whole(series, name))
    if dtype.is_numeric():
        return number_cells(name, numpy_of(series.cast(nw.Float64())).astype(np.float64, copy=False))
    if isinstance(dtype, nw.Datetime):
        if dtype.time_zone is not None:
            series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
        return number_cells(name, _days(numpy_of(series)), "date")
    if isinstance(dtype, nw.Date):
        days = numpy_of(series)
        if days.dtype.kind == "O":  # pandas has no array type for Arrow's dates
            gaps = numpy_of(series.is_null())
            days = np.array([None if gap else day for day, gap in zip(days, gaps, strict=True)], dtype="datetime64[D]")
        return number_cells(name, _days(days), "date")
    values = series.to_list()
    gaps = numpy_of(series.is_null())
    if gaps.any():
        values = [None if gap else value for value, gap in zip(values, gaps, strict=True)]
    if isinstance(dtype, nw.String | nw.Categorical | nw.Enum):
        return Cells("category", values, gaps) if not gaps.all() else object_cells(name, values, gaps)
    if isinstance(dtype, nw.List | nw.Struct | nw.Array | nw.Binary | nw.Duration | nw.Time):
        raise DataError(f"column {name!r} has the type {dtype}; {_ADVICE}")
    return object_cells(name, values, gaps)


def object_cells(name: str, values: list[Any], gaps: Bools) -> Cells:
    """Return the cells of a column of Python objects, None where missing; they must be of one kind."""
    kinds = {type(value) for value in values} - {type(None)}
    if not kinds:
        return Cells("empty", np.full(len(values), np.nan), gaps)
    if all(issubclass(kind, bool | np.bool_) for kind in kinds):
        return number_cells(name, np.array([math.nan if v is None else 2.0 * v - 1 for v in values]), "boolean")
    if all(issubclass(kind, str) for kind in kinds):
        return Cells("category", values, gaps)
    if all(issubclass(kind, int | float | Decimal | np.integer | np.floating) and kind is not bool for kind in kinds):
        return number_cells(name, _floats(name, values))
    if all(issubclass(kind, datetime.date | np.datetime64) for kind in kinds):
        return number_cells(name, _days(np.array([_utc(v) for v in values], dtype="datetime64[us]")), "date")
    found = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise DataError(f"column {name!r} holds values of type {found}; make them all numbers, text, booleans or dates")


def _floats(name: str, values: list[Any]) -> Floats:
    """Return Python's numbers as float64, NaN for None."""
    found = np.full(len(values), math.nan)
    for row, value in enumerate(values):
        if value is not None:
            try:
                found[row] = float(value)
            except OverflowError as error:
                raise DataError(
                    f"column {name!r} has a whole number of more than 308 digits in row {row} (counted from 0), too "
                    "large for double precision; rescale the column, or turn it into text if it is an identifier"
                ) from error
    whole_numbers = [v for v in values if isinstance(v, int | np.integer)]
    if whole_numbers and np.nanmax(np.abs(found)) > _EXACT:
        check_digits(name, np.array(whole_numbers, dtype=object))
    return found


def _utc(value: Any) -> Any:
    """Express a datetime with a time zone in UTC, as NumPy knows no zones."""
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.UTC).replace(tzinfo=None)
    return value


def _days(stamps: npt.NDArray[Any]) -> Floats:
    """Days since 1970-01-01, NaN for NaT."""
    exact = stamps.astype("datetime64[us]")
    return np.where(np.isnat(exact), np.nan, exact.astype(np.int64) / 86_400e6)


def check_missing(name: str, cells: Cells, allowed: bool) -> None:
    """Refuse missing values where they are not allowed."""
    if cells.missing.any() and not allowed:
        raise DataError(
            f"column {name!r} contains NaN (missing values) in {rows_of(cells.missing)}: not allowed here. "
            'Fill or drop them, give a data frame with missing="auto", or pass missing="impute"'
        )
