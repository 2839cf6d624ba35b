"""Weights of rows, as users give them: reading, checks, and warnings of unlikely ones."""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from fathomless.data.cells import as_series, is_gap, series_cells
from fathomless.data.schema import rows_of
from fathomless.system.errors import DataError, DataWarning
from fathomless.system.masked import unmask

__all__ = ["read_weight", "warn_of_sum"]

_LITTLE, _MUCH = 0.1, 10.0  # mean weights beyond which rows hardly count, or count for many


def read_weight(weight: Any, name: str = "sample_weight") -> npt.NDArray[Any] | float:
    """Read weights of rows as an array of numbers, or a number; none missing. Shape and signs are not checked.

    Raises
    ------
    DataError
        For missing weights, and weights that are no numbers.
    """
    given = as_series(unmask(weight), name)
    if given is not None:
        cells = series_cells(name, given)
        if cells.kind not in ("numeric", "boolean", "empty"):
            raise DataError(f"{name} holds {cells.kind} values; give numbers")
        found = np.asarray(cells.values, dtype=np.float64)
        found = 0.5 * (found + 1.0) if cells.kind == "boolean" else found
    else:
        try:
            found = np.asarray(unmask(weight))
            if found.dtype.kind == "O":
                found = np.array([np.nan if is_gap(value) else value for value in found.tolist()])
            found = found.astype(np.float64)
        except (OverflowError, TypeError, ValueError) as error:
            raise DataError(f"{name} cannot be read as numbers: {error}; give one number for each row") from error
    if np.isnan(found).any():
        each = np.isnan(found).reshape(found.shape[0] if found.ndim else 1, -1)
        missing = rows_of(np.array(each.any(axis=1)))
        raise DataError(f"Input {name} contains NaN. It is missing in {missing}; give 0 for rows that do not count")
    return found if found.ndim else float(found)


def warn_of_sum(weight: npt.NDArray[Any], name: str = "sample_weight") -> None:
    """Warn if weights of rows, shape (N,), sum to far fewer than the rows, or to far more and are no counts."""
    rows, total = len(weight), float(weight.sum())
    little = total < _LITTLE * rows or (rows > 1 and abs(total - 1.0) < 1e-6)
    if not little and not (total > _MUCH * rows and (weight != np.floor(weight)).any()):
        return
    effect = "little is learned from them" if little else "far more certainty is drawn from them than they hold"
    warnings.warn(
        f"{name} sums to {total:.6g}, so that {rows:,} rows count as {total:.6g}, and {effect}: a weight is how often "
        f"a row counts. If only the ratios of the weights matter, multiply them by {rows / total:.6g}: they sum to "
        f"{rows:,} then",
        DataWarning,
        stacklevel=2,
    )
