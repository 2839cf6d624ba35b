"""Conversion of user-defined groups of rows."""

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from fathomless.data.cells import WIDE, as_series, is_missing
from fathomless.data.schema import rows_of
from fathomless.system.errors import DataError
from fathomless.system.masked import unmask

__all__ = ["read_groups"]


def read_groups(groups: Any, rows: int) -> npt.NDArray[Any]:
    """Convert the groups of all rows to an array of numbers or strings, shape (N,), one value per group.

    Parameters
    ----------
    groups : array, list or series, shape (N,)
        Numbers, text, dates, tuples, or any hashable objects.
    rows : int
        Number N of rows.

    Raises
    ------
    DataError
        If the length differs from N, a group is missing, or groups cannot be compared.

    Examples
    --------
    >>> read_groups([("a", 1), ("b", 1), ("a", 1)], 3)
    array([0, 1, 0])
    """
    given = unmask(groups)
    series = as_series(given, "groups")
    if series is not None:
        plain = series.dtype.is_numeric() and series.dtype not in WIDE and not series.is_null().any()
        values: Any = series.to_numpy() if plain else _read_objects(series)
    elif isinstance(given, list | tuple) and any(isinstance(value, tuple) for value in given):
        values = _pack(list(given))
    else:
        try:
            values = np.asarray(given)
            if isinstance(given, list | tuple) and values.ndim == 1 and values.dtype.kind not in "biuf":
                values = _pack(list(given))  # NumPy would convert missing values among text to text
        except ValueError as error:
            raise DataError(f"groups cannot be read as one group per row: {error}") from error
    if values.shape != (rows,):
        raise DataError(f"groups has shape {values.shape}; give one group for each of the {rows} rows")
    missing = np.array(list(map(is_missing, values.tolist() if values.dtype.kind in "fO" else values)), dtype=np.bool_)
    if missing.any():
        raise DataError(
            f"groups are missing (None or NaN) in {rows_of(missing)}; drop these rows, or give each a group of its own "
            "if it belongs with no other row"
        )
    if values.dtype.kind in "iuf":
        return np.asarray(values)
    return _number(values) if values.dtype.kind == "O" else np.asarray(values.astype(str))


def _read_objects(series: Any) -> npt.NDArray[Any]:
    return _pack([None if gap else v for v, gap in zip(series.to_list(), series.is_null().to_list(), strict=True)])


def _pack(values: list[Any]) -> npt.NDArray[Any]:
    packed = np.empty(len(values), dtype=object)
    packed[:] = values
    return packed


def _number(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Assign numbers to distinct objects in the order of their string representation."""
    kinds = {type(value).__name__ for value in values if not isinstance(value, Hashable)}
    try:
        distinct = sorted(set(values.tolist()), key=lambda value: (str(value), type(value).__name__))
    except TypeError as error:
        raise DataError(
            f"groups are of type {', '.join(sorted(kinds)) or 'object'}, which cannot be compared ({error}); give "
            "numbers, text or tuples"
        ) from error
    number = {value: i for i, value in enumerate(distinct)}
    return np.array([number[value] for value in values.tolist()], dtype=np.int64)
