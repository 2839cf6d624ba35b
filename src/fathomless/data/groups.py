"""Groups of rows, as users give them."""

from collections.abc import Hashable
from typing import Any

import numpy as np
import numpy.typing as npt

from fathomless.data.cells import WIDE, as_series, is_gap
from fathomless.data.schema import rows_of
from fathomless.system.errors import DataError
from fathomless.system.masked import unmask

__all__ = ["read_groups"]


def read_groups(groups: Any, rows: int) -> npt.NDArray[Any]:
    """Read the group of every row as an array of numbers or strings, shape (N,), that are equal where groups are.

    Parameters
    ----------
    groups : array, list or series, shape (N,)
        Numbers, text, dates, tuples, or any objects that can be keys of a dict.
    rows : int
        The number N.

    Raises
    ------
    DataError
        For another length, missing groups, and groups that cannot be compared.

    Examples
    --------
    >>> read_groups([("a", 1), ("b", 1), ("a", 1)], 3)
    array([0, 1, 0])
    """
    given = unmask(groups)
    found = as_series(given, "groups")
    if found is not None:
        plain = found.dtype.is_numeric() and found.dtype not in WIDE and not found.is_null().any()
        values: Any = found.to_numpy() if plain else _objects(found)
    elif isinstance(given, list | tuple) and any(isinstance(value, tuple) for value in given):
        values = _packed(list(given))
    else:
        try:
            values = np.asarray(given)
            if isinstance(given, list | tuple) and values.ndim == 1 and values.dtype.kind not in "biuf":
                values = _packed(list(given))  # since NumPy writes gaps among text as text
        except ValueError as error:
            raise DataError(f"groups cannot be read as one for each row: {error}") from error
    if values.shape != (rows,):
        raise DataError(f"groups have shape {values.shape}; one for each of the {rows} rows is needed")
    missing = np.array(list(map(is_gap, values.tolist() if values.dtype.kind in "fO" else values)), dtype=np.bool_)
    if missing.any():
        raise DataError(
            f"groups are missing (None or NaN) in {rows_of(missing)}; drop these rows, or give each a group of its own "
            "if they belong to no other row"
        )
    if values.dtype.kind in "iuf":
        return np.asarray(values)
    return _numbered(values) if values.dtype.kind == "O" else np.asarray(values.astype(str))


def _objects(series: Any) -> npt.NDArray[Any]:
    return _packed([None if gap else v for v, gap in zip(series.to_list(), series.is_null().to_list(), strict=True)])


def _packed(values: list[Any]) -> npt.NDArray[Any]:
    packed = np.empty(len(values), dtype=object)
    packed[:] = values
    return packed


def _numbered(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Give equal objects equal numbers, in the order of their text."""
    kinds = {type(value).__name__ for value in values if not isinstance(value, Hashable)}
    try:
        distinct = sorted(set(values.tolist()), key=lambda value: (str(value), type(value).__name__))
    except TypeError as error:
        raise DataError(
            f"groups are of the type {', '.join(sorted(kinds)) or 'object'}, which cannot be compared ({error}); give "
            "numbers, text or tuples"
        ) from error
    number = {value: i for i, value in enumerate(distinct)}
    return np.array([number[value] for value in values.tolist()], dtype=np.int64)
