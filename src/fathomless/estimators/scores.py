r"""Scores as weighted means over rows, with standard errors.

A score is a smooth function of means over rows. Its standard error is that of the mean of its influence values
:math:`\psi_i` (the delta method), :math:`\mathrm{sd}(\psi) / \sqrt N`. A row of weight k is equivalent to k equal rows,
in the score and in N.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fathomless.posterior import metrics
from fathomless.system.errors import DataError

__all__ = [
    "Score",
    "as_counts",
    "auroc",
    "average",
    "check_finite",
    "concatenate",
    "mean",
    "reliability",
    "row_weights",
    "score",
]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_BINS = 15  # bins of the reliability diagram
_WHOLE = 2**53  # above this, sums of whole numbers in double precision may be rounded


@dataclass(frozen=True)
class Score:
    """Score with its standard error over rows.

    Attributes
    ----------
    value : float
        Value of the score.
    error : float or None
        Standard error; None if undefined (a single row, or the expected calibration error).
    """

    value: float
    error: float | None


def row_weights(weight: Any, rows: int) -> Floats | None:
    """Check the sample weights of rows.

    Whole numbers are returned unchanged. Other weights are scaled so that their sum is the number of rows with a
    positive weight.

    Raises
    ------
    DataError
        If weights are negative, not finite or all zero, or their number is not the number of rows.
    """
    if weight is None:
        return None
    values: Floats = np.ma.filled(np.ma.asarray(weight, dtype=np.float64), np.nan)
    if values.shape != (rows,):
        raise DataError(f"sample_weight has shape {values.shape}; one number for each of the {rows} rows is needed")
    bad = ~(np.isfinite(values) & (values >= 0.0))
    if bad.any() or not values.any():
        wrong = f"{values[bad][0]:g} in row {int(np.argmax(bad))} (counted from 0)" if bad.any() else "0 for all rows"
        raise DataError(f"sample_weight is {wrong}; finite numbers, 0 or more and some positive, are allowed")
    if (values == np.rint(values)).all() and values.sum() < _WHOLE:
        return values
    values = values / values.max()  # first, since the sum of huge weights would overflow
    scaled: Floats = values * ((values > 0.0).sum() / values.sum())
    return scaled


def as_counts(counts: Array) -> Array:
    """Convert sums of weights to integers if all are whole numbers."""
    return counts.astype(np.int64) if (counts == np.rint(counts)).all() else counts


def average(values: Array, weight: Floats | None) -> Any:
    """Return the weighted mean over rows, the first axis."""
    return values.mean(0) if weight is None else np.average(values, axis=0, weights=weight)


def score(value: Floats, influence: Floats, weight: Floats | None) -> Score:
    """Return a score averaged over targets, with the standard error of the mean influence value, (N, T)."""
    rows = influence.reshape(len(influence), -1).mean(1)
    return Score(float(value.mean()), _error(rows, weight))


def mean(values: Floats, weight: Floats | None) -> Score:
    """Return the mean over rows and targets, (N, T) or (N,), as a score."""
    return score(np.asarray(average(values, weight)), values, weight)


def reliability(top: Floats, hit: Array, weight: Floats | None) -> tuple[Floats, Floats, Array]:
    """Return confidence, accuracy and number of rows of each nonempty bin.

    The result is that of :func:`metrics.reliability`, but needs only the largest probability of each row.
    """
    bins = np.clip(np.ceil(top * _BINS).astype(np.int64) - 1, 0, _BINS - 1)
    weights = np.ones(len(top)) if weight is None else weight
    count = np.bincount(bins, weights, minlength=_BINS)
    filled = count > 0
    confidence, accuracy = (np.bincount(bins, weights * values, _BINS)[filled] / count[filled] for values in (top, hit))
    return confidence, accuracy, as_counts(count[filled])


def auroc(odds: Floats, second: Array, weight: Floats | None) -> Score:
    """Return the area under the ROC curve, with the standard error of DeLong et al. (1988).

    The influence value of a row is the fraction of the other class with smaller log odds.
    """
    weights = np.ones(len(odds)) if weight is None else weight
    positive = (odds[second], weights[second])
    negative = (odds[~second], weights[~second])
    beaten = _share_below(positive[0], *negative)
    beating = _share_below(negative[0], *positive)
    value = float(np.average(beaten, weights=positive[1]))
    if weight is None:
        value = metrics.auroc(positive[0], negative[0])
    errors = [
        _error(beaten, None if weight is None else positive[1]),
        _error(beating, None if weight is None else negative[1]),
    ]
    known = [error for error in errors if error is not None]
    return Score(value, math.hypot(*known) if len(known) == len(errors) else None)


def _share_below(values: Floats, others: Floats, weight: Floats) -> Floats:
    """Return the fraction of the weight of `others` below each value; ties count one half."""
    order = np.argsort(others, kind="stable")
    sums = np.concatenate([[0.0], np.cumsum(weight[order])])
    others = others[order]
    share: Floats = sums[np.searchsorted(others, values, "left")] + sums[np.searchsorted(others, values, "right")]
    below: Floats = share / (2.0 * sums[-1])
    return below


def _error(rows: Floats, weight: Floats | None) -> float | None:
    """Return the standard error of the mean of (N,) values; None for one row or values that are not finite."""
    if not np.isfinite(rows).all():
        return None
    if weight is None:
        return metrics.standard_error(rows) if len(rows) > 1 else None
    total = float(weight.sum())
    if total <= 1.0:
        return None
    squared = np.square(rows - np.average(rows, weights=weight))
    return math.sqrt(float(weight @ squared) / (total - 1.0) / total)


def concatenate(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Concatenate arrays of parts of the rows by their names."""
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def check_finite(scores: dict[str, Score]) -> dict[str, Score]:
    """Return scores; raise :class:`DataError` if one is not finite."""
    for key, entry in scores.items():
        if not math.isfinite(entry.value) or not math.isfinite(entry.error or 0.0):
            raise DataError(
                f"the score {key} is {entry.value}: y has values so far from all predictions that the score overflows; "
                "check the units of y"
            )
    return scores
