"""What may be drawn: checks of numbers, each with a message that says what was given, what is allowed, what to do."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fathomless.system.errors import DataError

__all__ = ["Floats", "History", "column", "counted", "floats", "probabilities", "same"]

#: Arrays of float64.
Floats = npt.NDArray[np.float64]
#: Rows of a history.
History = Sequence[Mapping[str, object]]


def floats(
    name: str, values: object, low: float = -math.inf, high: float = math.inf, *, dims: int = 1, gaps: bool = False
) -> Floats:
    """Check numbers and their range."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} was given with something that is not a number ({error}); give numbers only") from None
    if array.ndim != dims or array.size == 0:
        raise DataError(f"{name} was given with shape {array.shape}; allowed are {dims} dimensions and 1 value or more")
    strange = int((~np.isfinite(array)).sum())
    if strange and not gaps:
        raise DataError(f"{name} was given with {strange} NaN or infinite values; leave out or mend these rows")
    if not gaps and (array.min() < low or array.max() > high):
        raise DataError(
            f"{name} was given with values from {array.min():g} to {array.max():g}; allowed are {low:g} to {high:g}"
        )
    return np.where(np.isfinite(array), array, math.nan)


def same(**arrays: Floats) -> None:
    """Check that shapes are equal."""
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise DataError(f"arrays were given of different shapes: {shapes}; give equal shapes")


def counted(name: str, values: npt.ArrayLike, *, dims: int = 1) -> Floats:
    """Check that numbers of rows are whole, and that there are some."""
    array = floats(name, values, 0.0, dims=dims)
    if (array != np.floor(array)).any() or not array.any():
        raise DataError(f"{name} was given with a sum of {array.sum():g}; allowed are whole numbers of rows, not all 0")
    return array


def probabilities(name: str, mapping: Mapping[int, float], *, whole: bool) -> tuple[Floats, Floats]:
    """Check probabilities of depths; return both by rising depth."""
    depth = floats(f"depths of the {name}", list(mapping))
    mass = floats(name, list(mapping.values()), 0.0, 1.0 + 1e-4)
    if (depth != np.floor(depth)).any() or mass.sum() > 1.0 + 1e-4 or (whole and mass.sum() < 1.0 - 1e-4):
        raise DataError(
            f"{name} was given with depths from {depth.min():g} to {depth.max():g} and probabilities that sum to "
            f"{mass.sum():.6g}; allowed are whole depths and a sum of {'1' if whole else 'at most 1'}"
        )
    order = np.argsort(depth)
    return depth[order], mass[order]


def column(history: History, name: str, *, gaps: bool = False) -> Floats:
    """Read a column of a history; with gaps, rows without it are NaN."""
    if not len(history):
        raise DataError("a history without rows was given; train for one epoch or more")
    values = [row.get(name) for row in history]
    if not gaps and None in values:
        raise DataError(f"a history was given with {values.count(None)} rows without {name!r}; each row needs it")
    return floats(name, [math.nan if value is None else value for value in values], gaps=gaps)
