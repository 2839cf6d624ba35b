r"""Means over rows with standard errors, where rows may count more than once.

A score is a smooth function of means over rows. Its error is that of the mean of its influence values :math:`\psi_i`
(the delta method), :math:`\mathrm{sd}(\psi) / \sqrt N`. A row of weight k is k equal rows, in the score and in N.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fathomless.posterior import metrics
from fathomless.system.errors import DataError

__all__ = ["Score", "auroc", "average", "counted", "mean", "reliability", "row_weights", "score"]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_BINS = 15  # of the reliability diagram
_WHOLE = 2**53  # beyond which a sum of whole numbers may be rounded


@dataclass(frozen=True)
class Score:
    """A score and its standard error over rows.

    Attributes
    ----------
    value : float
        The score.
    error : float or None
        Its standard error; None where there is none (one row, or the expected calibration error).
    """

    value: float
    error: float | None


def row_weights(weight: Any, rows: int) -> Floats | None:
    """Read how often each row counts: whole numbers as they are, others scaled so that their sum is the number of rows.

    Raises
    ------
    DataError
        For weights that are negative, not finite or zero throughout, and for another number of them than of rows.
    """
    if weight is None:
        return None
    found: Floats = np.ma.filled(np.ma.asarray(weight, dtype=np.float64), np.nan)
    if found.shape != (rows,):
        raise DataError(f"sample_weight has shape {found.shape}; one number for each of the {rows} rows is needed")
    bad = ~(np.isfinite(found) & (found >= 0.0))
    if bad.any() or not found.any():
        what = f"{found[bad][0]:g} in row {int(np.argmax(bad))} (counted from 0)" if bad.any() else "0 for all rows"
        raise DataError(f"sample_weight is {what}; finite numbers, 0 or more and some positive, are allowed")
    if (found == np.rint(found)).all() and found.sum() < _WHOLE:
        return found
    found = found / found.max()
    scaled: Floats = found * ((found > 0.0).sum() / found.sum())
    return scaled


def counted(counts: Array) -> Array:
    """Return sums of weights as whole numbers, if they are whole."""
    return counts.astype(np.int64) if (counts == np.rint(counts)).all() else counts


def average(values: Array, weight: Floats | None) -> Any:
    """Return the mean over rows, the first axis."""
    return values.mean(0) if weight is None else np.average(values, axis=0, weights=weight)


def score(value: Floats, influence: Floats, weight: Floats | None) -> Score:
    """Average over targets; the error is that of the mean of the influence values, (N, T)."""
    rows = influence.reshape(len(influence), -1).mean(1)
    return Score(float(value.mean()), _error(rows, weight))


def mean(values: Floats, weight: Floats | None) -> Score:
    """Return the mean over rows and targets, (N, T) or (N,)."""
    return score(np.asarray(average(values, weight)), values, weight)


def reliability(top: Floats, hit: Array, weight: Floats | None) -> tuple[Floats, Floats, Array]:
    """Confidence, accuracy and rows of each bin that holds rows, as :func:`metrics.reliability` without all classes."""
    which = np.clip(np.ceil(top * _BINS).astype(np.int64) - 1, 0, _BINS - 1)
    each = np.ones(len(top)) if weight is None else weight
    count = np.bincount(which, each, minlength=_BINS)
    held = count > 0
    confidence, hits = (np.bincount(which, each * values, _BINS)[held] / count[held] for values in (top, hit))
    return confidence, hits, counted(count[held])


def auroc(odds: Floats, second: Array, weight: Floats | None) -> Score:
    """Area under the ROC curve; the share of the other class that each row beats gives its error."""
    each = np.ones(len(odds)) if weight is None else weight
    positive, negative = (odds[second], each[second]), (odds[~second], each[~second])
    beaten, beating = _share_below(positive[0], *negative), _share_below(negative[0], *positive)
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
    """Share of the weight of the others below each value; ties count one half."""
    order = np.argsort(others, kind="stable")
    sums, others = np.concatenate([[0.0], np.cumsum(weight[order])]), others[order]
    share: Floats = sums[np.searchsorted(others, values, "left")] + sums[np.searchsorted(others, values, "right")]
    below: Floats = share / (2.0 * sums[-1])
    return below


def _error(rows: Floats, weight: Floats | None) -> float | None:
    """Return the standard error of the mean of (N,) values; None for one row, and for values that are not finite."""
    if not np.isfinite(rows).all():
        return None
    if weight is None:
        return metrics.standard_error(rows) if len(rows) > 1 else None
    total = float(weight.sum())
    if total <= 1.0:
        return None
    apart = np.square(rows - np.average(rows, weights=weight))
    return math.sqrt(float(weight @ apart) / (total - 1.0) / total)
