"""Conversion of masked NumPy arrays to plain arrays with missing values."""

from typing import Any

import numpy as np

__all__ = ["unmask"]


def unmask(values: Any) -> Any:
    """Return a masked array as a plain array; other values are returned unchanged.

    Masked cells become NaN in numeric and boolean arrays (which become float64), NaT in arrays of dates, and None in
    all others. Without masked cells the data type is kept. In lists and tuples, rows that are masked arrays are
    converted alike, and :data:`numpy.ma.masked` becomes None.

    Examples
    --------
    >>> unmask(np.ma.masked_array([1, 2], [False, True]))
    array([ 1., nan])
    >>> unmask(np.ma.masked_array(["a", "b"], [False, True])).tolist()
    ['a', None]
    >>> unmask([1.0, 2.0])
    [1.0, 2.0]
    """
    if isinstance(values, list | tuple) and any(isinstance(value, np.ma.MaskedArray) for value in values):
        single = [None if value is np.ma.masked else value for value in values]
        values = np.ma.array(single) if any(isinstance(value, np.ma.MaskedArray) for value in single) else single
    if not isinstance(values, np.ma.MaskedArray):
        return values
    if not np.ma.is_masked(values):
        return np.array(values.data)
    kind = values.dtype.kind
    if kind in "biuf":
        plain = np.array(values.data, dtype=np.float64)
    elif kind in "cmM":
        plain = np.array(values.data)
    else:
        plain = np.array(values.data, dtype=object)
    missing: Any = None
    if kind in "biufc":
        missing = np.nan
    elif kind in "mM":
        missing = np.array("NaT", plain.dtype)
    plain[np.ma.getmaskarray(values)] = missing
    return plain
