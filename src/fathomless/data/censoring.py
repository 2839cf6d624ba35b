r"""Reading and scale of censored targets.

A censored target is a row of two bounds, (lower, upper), with equal bounds for a known target and one infinite bound
for a target that is censored on one side.
"""

import math
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from fathomless.data.cells import as_series, get_column_names, is_missing, read_series, to_narwhals
from fathomless.data.frames import read_target
from fathomless.data.schema import Floats, check_encoded, rows_of
from fathomless.data.targets import TargetScale
from fathomless.system.errors import DataError
from fathomless.system.masked import unmask

__all__ = ["encode_bounds", "fit_bounds", "is_known", "kind_of", "read_bounds"]

Bools = npt.NDArray[np.bool_]

_WORDS = {"exact": "exact", "none": "exact", "right": "right", "left": "left"}
_INTERVAL = "interval"
_LARGEST = 1e150  # its square is still far below the largest float64
_STEPS = 200  # largest number of steps of the EM algorithm
_ACCURACY = 1e-4  # change of mean and log scale, in scales, at which it ends
_SHORT = 1e-6  # length of an interval in scales below which its middle is a known target
_LEAST_SCALE = 1e-3  # smallest scale relative to the range of the finite bounds


def read_bounds(y: Any, censored: Any) -> Floats:
    """Read censored targets as bounds, float64, shape (N, 2).

    Parameters
    ----------
    y : array, list, series or frame of numbers, shape (N,), (N, 1), or (N, 2) for intervals
        Targets.
    censored : array or "interval"
        Kind of each row, shape (N,): "exact" or "none" (the target is y), "right" (it is above y) or "left" (it is
        below y); or True for "right" and False for "exact", also as 1 and 0. "interval" for two columns of y, the lower
        and the upper bound of each target.

    Raises
    ------
    DataError
        If kinds are unknown or missing, y has several targets, bounds are not in order, or a row has no finite bound.

    Examples
    --------
    >>> read_bounds([3.0, 5.0, 1.0], ["exact", "right", "left"]).tolist()
    [[3.0, 3.0], [5.0, inf], [-inf, 1.0]]
    >>> read_bounds([[3.0, 3.0], [5.0, np.inf]], "interval").tolist()
    [[3.0, 3.0], [5.0, inf]]
    """
    if isinstance(censored, str):
        if censored != _INTERVAL:
            raise DataError(
                f"censored={censored!r} was given; allowed are an array with 'exact', 'right' or 'left' for each row, "
                "and 'interval' with two columns of bounds as y"
            )
        return _read_intervals(y)
    values = read_target(y)
    if values.ndim == 2 and values.shape[1] > 1:
        raise DataError(
            f"censored was given with {values.shape[1]} columns of y; censored targets have one column, or two columns "
            "of bounds with censored='interval': fit one estimator for each target"
        )
    values = values.reshape(len(values))
    right, left = _read_kinds(censored, len(values))
    return np.column_stack([np.where(left, -np.inf, values), np.where(right, np.inf, values)])


def _read_kinds(censored: Any, rows: int) -> tuple[Bools, Bools]:
    """Return masks of the rows that are censored on the right and on the left."""
    series = as_series(unmask(censored), "censored")
    if series is not None:
        missing = series.is_null().to_numpy()
        values = np.array(series.to_list(), dtype=object)
    else:
        values = np.asarray(unmask(censored))
        missing = np.array([is_missing(value) for value in values.ravel().tolist()], dtype=np.bool_)
    if values.shape != (rows,):
        raise DataError(f"censored has shape {values.shape}; give one value for each of the {rows} rows")
    if missing.any():
        raise DataError(f"censored is missing in {rows_of(missing)}; give 'exact', 'right' or 'left' for each row")
    kinds = np.array([kind_of(value) for value in values.tolist()])
    unknown = kinds == ""
    if unknown.any():
        value = values.tolist()[int(np.argmax(unknown))]
        raise DataError(
            f"censored has the value {value!r} in {rows_of(unknown)}; allowed are 'exact', 'right' and 'left', or True "
            "for 'right' and False for 'exact'"
        )
    return kinds == "right", kinds == "left"


def kind_of(value: Any) -> str:
    """Return the kind of a row as a word; "" if it is unknown."""
    if isinstance(value, str):
        return _WORDS.get(value.strip().lower(), "")
    if isinstance(value, bool | int | float | np.bool_ | np.number) and value in (0, 1):
        return "right" if value else "exact"
    return ""


def _read_intervals(y: Any) -> Floats:
    """Read two columns of bounds; missing and infinite bounds are open."""
    columns = _columns_of(unmask(y))
    if len(columns) != 2:
        raise DataError(
            f"censored='interval' was given with {len(columns)} columns of y; give two columns, the lower and the "
            "upper bound of each target"
        )
    low, high = columns
    low = np.where(np.isnan(low), -np.inf, low)
    high = np.where(np.isnan(high), np.inf, high)
    wrong = (low > high) | (low == np.inf) | (high == -np.inf)
    if wrong.any():
        first = int(np.argmax(wrong))
        raise DataError(
            f"y has the lower bound {low[first]:g} and the upper bound {high[first]:g} in {rows_of(wrong)}; lower "
            "bounds must not be above upper ones"
        )
    open_rows = np.isinf(low) & np.isinf(high)
    if open_rows.any():
        raise DataError(f"y has no finite bound in {rows_of(open_rows)}; drop these rows, which have no information")
    return np.column_stack([low, high])


def _columns_of(y: Any) -> list[Floats]:
    """Return the columns of an array or frame of numbers, with NaN for missing ones."""
    if isinstance(y, np.ndarray | list | tuple):
        try:
            values = np.asarray(y)
            if values.dtype.kind == "O":
                values = np.array([np.nan if is_missing(v) else v for v in values.ravel()]).reshape(values.shape)
            values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"y cannot be read as an array of numbers: {error}") from error
        return list(values.T) if values.ndim == 2 else [values]
    if get_column_names(y, "y") is None:
        return [read_target(y)]
    columns = []
    for series in to_narwhals(y, "y").iter_columns():
        cells = read_series(series.name, series)
        if cells.kind not in ("numeric", "empty"):
            raise DataError(f"y holds {cells.kind} values in column {series.name!r}; give numbers")
        columns.append(np.asarray(cells.values, dtype=np.float64))
    return columns


def is_known(bounds: Floats) -> Bools:
    """Return a mask of the targets that are not censored, (N,)."""
    return cast(Bools, bounds[:, 0] == bounds[:, 1])


def encode_bounds(target: TargetScale, bounds: Floats) -> Floats:
    """Center and scale bounds, shape (N, 2).

    An interval that is shorter than 1e-6 scales is replaced by its middle, a known target.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        z = target.standardise(bounds)
        short = (z[:, 1] - z[:, 0] < _SHORT) & ~is_known(bounds)
    z[short] = z[short].mean(1, keepdims=True)
    check_encoded("y", np.where(np.isinf(bounds), 0.0, z).ravel())
    return z


def fit_bounds(bounds: Floats, weight: npt.NDArray[Any] | None = None) -> TargetScale:
    r"""Fit the mean and scale of a censored target by the maximum likelihood of a normal distribution.

    The EM algorithm replaces each target by its expectation, and its square by the expectation of the square, given the
    bounds. It starts from the mean and standard deviation of finite bounds, and ends after at most 200 steps. A
    censored target has no lattice and no atoms.

    Parameters
    ----------
    bounds : ndarray, shape (N, 2)
        Lower and upper bounds.
    weight : ndarray, shape (N,), optional
        Sample weights.

    Raises
    ------
    DataError
        If all targets are censored on the same side, so that no scale exists.

    References
    ----------
    A. P. Dempster, N. M. Laird and D. B. Rubin, "Maximum likelihood from incomplete data via the EM algorithm", Journal
    of the Royal Statistical Society B 39 (1977).

    Examples
    --------
    >>> scale = fit_bounds(np.array([[1.0, 1.0], [3.0, 3.0]]))
    >>> scale.mean, scale.scale
    ((2.0,), (1.0,))
    """
    # distinct rows, so that a row of weight 2 and two equal rows give the same bits in any order
    bounds, place = np.unique(bounds, axis=0, return_inverse=True)
    s = np.bincount(place.ravel(), weights=weight).astype(np.float64)
    low, high = bounds.T
    for side, ends in (("right", high), ("left", low)):
        if np.isinf(ends).all():
            raise DataError(
                f"all {len(place)} targets are censored on the {side}; targets that are known, or censored on the "
                "other side, are needed to estimate their scale: add such rows"
            )
    middle = np.where(np.isinf(low), high, np.where(np.isinf(high), low, 0.5 * (low + high)))
    if not np.abs(middle).max() <= _LARGEST:
        raise DataError(
            f"y has values up to {np.abs(middle).max():.3g}, whose variance would overflow; at most {_LARGEST:g} is "
            "allowed: divide y by a power of ten"
        )
    mean = float(np.average(middle, weights=s))
    scale = math.sqrt(float(np.average(np.square(middle - mean), weights=s)))
    least = _LEAST_SCALE * float(np.ptp(middle))
    if scale == 0.0 or np.array_equal(low, high):
        return TargetScale((mean,), (scale or 1.0,), 1)
    for _ in range(_STEPS):
        first, second = _moments((low - mean) / scale, (high - mean) / scale)
        shift = float(np.average(first, weights=s))
        factor = math.sqrt(max(float(np.average(second, weights=s)) - shift**2, 0.0))
        mean, before = mean + scale * shift, scale
        scale = max(scale * factor, least)
        if abs(shift) < _ACCURACY and abs(scale / before - 1.0) < _ACCURACY:
            break
    return TargetScale((mean,), (scale,), 1)


def _moments(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """Return the first two moments of standard normal variables between bounds, (N,) each."""
    upper = a + b > 0.0  # reflected to the lower tail
    low, high = np.where(upper, -b, a), np.where(upper, -a, b)
    log_low, log_high = (torch.special.log_ndtr(torch.from_numpy(end)).numpy() for end in (low, high))
    known = high - low < _SHORT
    with np.errstate(divide="ignore", invalid="ignore"):
        log_mass = log_high + np.log(-np.expm1(np.where(known, -1.0, log_low - log_high)))
        of_low, of_high = (np.exp(-0.5 * end**2 - 0.5 * math.log(2.0 * math.pi) - log_mass) for end in (low, high))
        first = of_low - of_high
        second = 1.0 + np.where(np.isinf(low), 0.0, low * of_low) - np.where(np.isinf(high), 0.0, high * of_high)
    middle = 0.5 * (low + high)
    first, second = np.where(known, middle, first), np.where(known, middle**2, second)
    return np.where(upper, -first, first), second
