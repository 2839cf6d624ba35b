"""How good a fitted density is on rows: their mean log density, beside that of a normal law."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fathomless.data.frames import read_target
from fathomless.estimators.evaluation import Evaluation
from fathomless.estimators.scores import average, mean, row_weights
from fathomless.estimators.tasks import Density
from fathomless.system.errors import DataError

__all__ = ["evaluate_density"]

_RIDGE = 1e-9  # of the covariance of the normal law, relative to its diagonal


def evaluate_density(
    estimator: Density, X: Any, *, name: str, targets: Sequence[str], sample_weight: Any = None
) -> Evaluation:
    """Score a fitted density.

    Parameters
    ----------
    estimator : Density
        Fitted.
    X : array or data frame of numbers, shape (N, T)
        Rows.
    name : str
        What these rows are called.
    targets : sequence of T str
        Names of the columns.
    sample_weight : array, shape (N,), optional
        How often each row counts, as in :func:`~fathomless.estimators.evaluation.evaluate`.

    Returns
    -------
    Evaluation
        With the score "log_likelihood": the mean log density in nats per row, of the rows that have one; beside it that
        of a normal law with the means and covariances of these rows.

    Raises
    ------
    DataError
        If no row has a density.
    """
    values = read_target(X).reshape(len(X), -1)
    log_density, weight = estimator.score_samples(X), row_weights(sample_weight, len(X))
    inside = np.isfinite(log_density)
    if weight is not None:
        kept = weight > 0.0
        values, log_density, inside, weight = values[kept], log_density[kept], inside[kept], weight[kept]
    if not inside.any():
        raise DataError(f"none of the {len(X)} rows has a density: all are outside of the support; give other rows")
    counts = None if weight is None else weight[inside]
    ours, theirs = ({"log_likelihood": mean(each[inside], counts)} for each in (log_density, _normal(values, weight)))
    return Evaluation(
        name=name,
        task="density",
        rows=int(inside.sum()) if counts is None else max(1, round(float(counts.sum()))),
        scores=ours,
        baseline=theirs,
        labels=(),
        targets=tuple(targets),
        arrays={},
        calibration={},
        confusion=None,
    )


def _normal(values: Any, weight: Any) -> Any:
    """Return the log density of rows under a normal law with their own moments, (N,)."""
    apart = values - average(values, weight)
    covariance = apart.T @ apart / len(values) if weight is None else (weight * apart.T) @ apart / weight.sum()
    covariance = covariance + np.diag(_RIDGE * np.maximum(np.diag(covariance), 1e-300))
    z = np.linalg.solve(np.linalg.cholesky(covariance), apart.T)
    _, log_det = np.linalg.slogdet(covariance)
    return -0.5 * ((z**2).sum(0) + log_det + values.shape[1] * math.log(2 * math.pi))
