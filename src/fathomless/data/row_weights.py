"""Reading and checks of sample weights, with warnings about unlikely ones."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from fathomless.data.cells import as_series, is_missing, read_series
from fathomless.data.schema import rows_of
from fathomless.system.errors import DataError, DataWarning
from fathomless.system.masked import unmask

__all__ = ["read_weight", "warn_of_sum"]

_LITTLE, _MUCH = 0.1, 10.0  # mean weights below and above which a warning is given


def read_weight(weight: Any, name: str = "sample_weight") -> npt.NDArray[Any] | float:
    """Read sample weights as an array of numbers, or a number, without missing values; shape and sign are not checked.

    Raises
    ------
    DataError
        If a weight is missing or not a number.
    """
    series = as_series(unmask(weight), name)
    if series is not None:
        cells = read_series(name, series)
        if cells.kind not in ("numeric", "boolean", "empty"):
            raise DataError(f"{name} holds {cells.kind} values; give numbers")
        weights = np.asarray(cells.values, dtype=np.float64)
        weights = 0.5 * (weights + 1.0) if cells.kind == "boolean" else weights
    else:
        try:
            weights = np.asarray(unmask(weight))
            if weights.dtype.kind == "O":
                weights = np.array([np.nan if is_missing(value) else value for value in weights.tolist()])
            weights = weights.astype(np.float64)
        except (OverflowError, TypeError, ValueError) as error:
            raise DataError(f"{name} cannot be read as numbers: {error}; give one number per row") from error
    if np.isnan(weights).any():
        by_row = np.isnan(weights).reshape(weights.shape[0] if weights.ndim else 1, -1)
        missing = rows_of(np.array(by_row.any(axis=1)))
        raise DataError(f"Input {name} contains NaN. It is missing in {missing}; give weight 0 to rows to be ignored")
    return weights if weights.ndim else float(weights)


def warn_of_sum(weight: npt.NDArray[Any], name: str = "sample_weight") -> None:
    """Warn if sample weights, shape (N,), sum to far less than N, or to far more without being counts."""
    rows = len(weight)
    total = float(weight.sum())
    little = total < _LITTLE * rows or (rows > 1 and abs(total - 1.0) < 1e-6)
    if not little and not (total > _MUCH * rows and (weight != np.floor(weight)).any()):
        return
    effect = "the rows have little influence on the fit" if little else "predictions will be far too certain"
    warnings.warn(
        f"{name} sums to {total:.6g}, so that {rows:,} rows count as {total:.6g} observations, and {effect}: a row of "
        f"weight w counts as w rows. If only the ratios of the weights matter, multiply them by {rows / total:.6g}, so "
        f"that they sum to {rows:,}",
        DataWarning,
        stacklevel=2,
    )
