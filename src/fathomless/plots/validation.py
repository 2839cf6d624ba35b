"""Checks of the numbers to be drawn."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fathomless.system.errors import DataError

__all__ = ["Floats", "History", "check_counts", "check_shapes", "column", "floats", "probabilities"]

#: Arrays of float64.
Floats = npt.NDArray[np.float64]
#: Rows of a history.
History = Sequence[Mapping[str, object]]


def floats(
    name: str, values: object, low: float = -math.inf, high: float = math.inf, *, dims: int = 1, gaps: bool = False
) -> Floats:
    """Check numbers and their range; return them in float64, with NaN for gaps."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} has a value that is not a number ({error}); give numbers only") from None
    if array.ndim != dims or array.size == 0:
        raise DataError(f"{name} has shape {array.shape}; {dims} dimensions and at least 1 value are needed")
    nonfinite = int((~np.isfinite(array)).sum())
    if nonfinite and not gaps:
        raise DataError(f"{name} has {nonfinite} NaN or infinite values; remove or correct these rows")
    if not gaps and (array.min() < low or array.max() > high):
        raise DataError(
            f"{name} has values from {array.min():g} to {array.max():g}; values from {low:g} to {high:g} are allowed"
        )
    return np.where(np.isfinite(array), array, math.nan)


def check_shapes(**arrays: Floats) -> None:
    """Check that arrays have equal shapes."""
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise DataError(f"the arrays have different shapes: {shapes}; equal shapes are needed")


def check_counts(name: str, values: npt.ArrayLike, *, dims: int = 1) -> Floats:
    """Check that numbers of rows, or sums of their weights, are not all 0."""
    array = floats(name, values, 0.0, dims=dims)
    if not array.any():
        raise DataError(f"{name} has the sum 0; numbers of rows, or sums of their weights, not all 0, are needed")
    return array


def probabilities(name: str, mapping: Mapping[int, float], *, whole: bool) -> tuple[Floats, Floats]:
    """Check probabilities of depths; return depths and probabilities in increasing order of depth."""
    depth = floats(f"depths of the {name}", list(mapping))
    mass = floats(name, list(mapping.values()), 0.0, 1.0 + 1e-4)
    if (depth != np.floor(depth)).any() or mass.sum() > 1.0 + 1e-4 or (whole and mass.sum() < 1.0 - 1e-4):
        raise DataError(
            f"{name} has depths from {depth.min():g} to {depth.max():g} and probabilities that sum to "
            f"{mass.sum():.6g}; whole depths and a sum of {'1' if whole else 'at most 1'} are needed"
        )
    order = np.argsort(depth)
    return depth[order], mass[order]


def column(history: History, name: str, *, gaps: bool = False) -> Floats:
    """Return a column of a history; with `gaps`, rows without it are NaN."""
    if not len(history):
        raise DataError("the history has no rows; train for one epoch or more")
    values = [row.get(name) for row in history]
    if not gaps and None in values:
        raise DataError(f"{values.count(None)} rows of the history have no {name!r}; each row needs it")
    return floats(name, [math.nan if value is None else value for value in values], gaps=gaps)
