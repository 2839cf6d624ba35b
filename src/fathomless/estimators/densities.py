"""Evaluation of a fitted density: the mean log density of rows, compared with a multivariate normal distribution."""

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

_RIDGE = 1e-9  # added to the diagonal of the covariance, relative to it: columns may be constant or collinear


def evaluate_density(
    estimator: Density, X: Any, *, name: str, targets: Sequence[str], sample_weight: Any = None
) -> Evaluation:
    """Score a fitted density.

    Parameters
    ----------
    estimator : Density
        Fitted density.
    X : array or data frame of numbers, shape (N, T)
        Rows.
    name : str
        Name of these rows.
    targets : sequence of T str
        Names of the columns.
    sample_weight : array, shape (N,), optional
        Sample weights, as in :func:`~fathomless.estimators.evaluation.evaluate`.

    Returns
    -------
    Evaluation
        The score "log_likelihood" is the mean log density in nats per row, over the rows inside the support. The
        baseline is a normal distribution with the means and covariances of these rows.

    Raises
    ------
    DataError
        If all rows are outside the support.
    """
    values = read_target(X).reshape(len(X), -1)
    log_density = estimator.score_samples(X)
    weight = row_weights(sample_weight, len(X))
    inside = np.isfinite(log_density)
    if weight is not None:
        kept = weight > 0.0
        values, log_density, inside, weight = values[kept], log_density[kept], inside[kept], weight[kept]
    if not inside.any():
        raise DataError(f"all {len(X)} rows are outside the support of the density; give other rows")
    counts = None if weight is None else weight[inside]
    normal = _normal(values, weight)
    return Evaluation(
        name=name,
        task="density",
        rows=int(inside.sum()) if counts is None else max(1, round(float(counts.sum()))),
        scores={"log_likelihood": mean(log_density[inside], counts)},
        baseline={"log_likelihood": mean(normal[inside], counts)},
        labels=(),
        targets=tuple(targets),
        arrays={},
        calibration={},
        confusion=None,
    )


def _normal(values: Any, weight: Any) -> Any:
    """Return the log density of rows under a normal distribution with their own moments, (N,)."""
    centred = values - average(values, weight)
    covariance = centred.T @ centred / len(values) if weight is None else (weight * centred.T) @ centred / weight.sum()
    covariance = covariance + np.diag(_RIDGE * np.maximum(np.diag(covariance), 1e-300))
    z = np.linalg.solve(np.linalg.cholesky(covariance), centred.T)
    _, log_det = np.linalg.slogdet(covariance)
    return -0.5 * ((z**2).sum(0) + log_det + values.shape[1] * math.log(2 * math.pi))
