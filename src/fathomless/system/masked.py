"""Masked arrays of NumPy as plain arrays, in which what the mask hides is missing."""

from typing import Any

import numpy as np

__all__ = ["unmasked"]


def unmasked(values: Any) -> Any:
    """Return a masked array as a plain one; anything else is returned as it is.

    Hidden cells become NaN in arrays of numbers and booleans (which become float64), NaT in arrays of dates, and None
    in all others. Without hidden cells the data type stays. In lists and tuples, rows that are masked arrays are read
    the same way, and :data:`numpy.ma.masked` becomes None.

    Examples
    --------
    >>> unmasked(np.ma.masked_array([1, 2], [False, True]))
    array([ 1., nan])
    >>> unmasked(np.ma.masked_array(["a", "b"], [False, True])).tolist()
    ['a', None]
    >>> unmasked([1.0, 2.0])
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
    found = np.array(values.data, dtype=np.float64 if kind in "biuf" else values.dtype if kind in "cmM" else object)
    nothing = np.nan if kind in "biufc" else np.array("NaT", found.dtype) if kind in "mM" else None
    found[np.ma.getmaskarray(values)] = nothing
    return found
