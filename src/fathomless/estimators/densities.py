"""How good a fitted density is on rows: their mean log density, beside that of a normal law."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from fathomless.data.frames import read_target
from fathomless.estimators.evaluation import Evaluation, Score
from fathomless.estimators.tasks import Density
from fathomless.system.errors import DataError

__all__ = ["evaluate_density"]

_RIDGE = 1e-9  # of the covariance of the normal law, relative to its diagonal


def evaluate_density(estimator: Density, X: Any, *, name: str, targets: Sequence[str]) -> Evaluation:
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
    log_density = estimator.score_samples(X)
    inside = np.isfinite(log_density)
    if not inside.any():
        raise DataError(f"none of the {len(X)} rows has a density: all are outside of the support; give other rows")
    scores = [
        Score(float(each.mean()), float(each.std(ddof=1)) / math.sqrt(len(each)) if len(each) > 1 else None)
        for each in (log_density[inside], _normal(values)[inside])
    ]
    ours, theirs = ({"log_likelihood": score} for score in scores)
    return Evaluation(
        name=name,
        task="density",
        rows=int(inside.sum()),
        scores=ours,
        baseline=theirs,
        labels=(),
        targets=tuple(targets),
        arrays={},
        calibration={},
        confusion=None,
    )


def _normal(values: Any) -> Any:
    """Return the log density of rows under a normal law with their own moments, (N,)."""
    apart = values - values.mean(0)
    covariance = apart.T @ apart / len(values)
    covariance = covariance + np.diag(_RIDGE * np.maximum(np.diag(covariance), 1e-300))
    z = np.linalg.solve(np.linalg.cholesky(covariance), apart.T)
    _, log_det = np.linalg.slogdet(covariance)
    return -0.5 * ((z**2).sum(0) + log_det + values.shape[1] * math.log(2 * math.pi))
