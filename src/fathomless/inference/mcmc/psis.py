r"""Leave-one-out densities from draws of a posterior of all rows, by Pareto-smoothed importance sampling.

Importance weights :math:`r_s = 1 / p(y_i \mid \theta_s)` turn draws from the posterior of all rows into draws from the
posterior without row i. The largest weights are replaced by quantiles of a generalised Pareto law that is fitted to
them. Its shape k̂ is a diagnostic: the result is reliable below 0.7.

References
----------
Vehtari, Simpson, Gelman, Yao and Gabry (2024), Pareto smoothed importance sampling. Zhang and Stephens (2009), A new
and efficient estimation method for the generalized Pareto distribution.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from fathomless.system.errors import DataError

__all__ = ["MOST_UNRELIABLE", "TRUSTED", "leave_one_out", "leave_one_out_weights", "smooth"]

TRUSTED = 0.7  #: largest shape at which the smoothed weights are reliable
MOST_UNRELIABLE = 0.25  #: share of rows with a larger shape beyond which no leave-one-out result is used

Array = NDArray[np.float64]


def leave_one_out(
    log_density: ArrayLike,
    effective: float = 1.0,
    *,
    counts: ArrayLike | None = None,
    unit: ArrayLike | None = None,
) -> tuple[Array, Array]:
    r"""Compute the log density of each row under the posterior of all other rows, and the shape k̂ of its weights.

    Parameters
    ----------
    log_density : array, shape (S, N)
        Log density of N rows under S draws of the posterior of all rows, of equal weight.
    effective : float
        Effective sample size over S.
    counts : array, shape (N,), optional
        Sample weights of the rows in the posterior, 1 by default. A row of weight c has the ratios
        :math:`r_s = p(y_i \mid \theta_s)^{-c}`.
    unit : array of int, shape (N,), optional
        Rows of one unit, such as copies of a row or rows of a group, are left out together. By default each row is a
        unit.

    Returns
    -------
    tuple of two ndarrays, shape (N,)

    Raises
    ------
    DataError
        If the log densities are not a table, or not finite.

    Examples
    --------
    >>> draws = np.random.default_rng(0).normal(size=(2000, 1))
    >>> density, shape = leave_one_out(-0.5 * (draws - [0.0, 1.0]) ** 2 / 4.0)
    >>> density.shape, bool((shape < 0.7).all())
    ((2,), True)
    """
    table = np.asarray(log_density, dtype=np.float64)
    log_weight, shape = leave_one_out_weights(table, effective, counts=counts, unit=unit)
    loo = [logsumexp(weight + row) for weight, row in zip(log_weight.T, table.T, strict=True)]
    return np.array(loo), shape


def leave_one_out_weights(
    log_density: ArrayLike,
    effective: float = 1.0,
    *,
    counts: ArrayLike | None = None,
    unit: ArrayLike | None = None,
    log_base: ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Compute the log weights of the draws under the posterior of all other rows, (S, N), and the shapes k̂, (N,).

    Weights of each row sum to one.

    Parameters
    ----------
    log_density, effective, counts, unit
        As in :func:`leave_one_out`.
    log_base : array, shape (S,), optional
        Log weights of the draws in the posterior of all rows, up to a constant; equal by default.

    Raises
    ------
    DataError
        If the log densities are not a table, or not finite.
    """
    table = np.asarray(log_density, dtype=np.float64)
    if table.ndim != 2 or not np.isfinite(table).all():
        raise DataError(f"log densities of shape {table.shape} were given; finite ones of shape (S, N) are allowed")
    left_out = table.T if counts is None else table.T * np.asarray(counts, dtype=np.float64)[:, None]  # (N, S)
    place = np.arange(len(left_out)) if unit is None else np.unique(unit, return_inverse=True)[1].ravel()
    if unit is not None:
        summed = np.zeros((int(place.max()) + 1, table.shape[0]))
        np.add.at(summed, place, left_out)
        left_out = summed
    if log_base is not None:
        left_out = left_out - np.asarray(log_base, dtype=np.float64)
    smoothed = [smooth(-row, effective) for row in left_out]  # log weights and shape of each unit
    log_weight = np.array([smoothed[k][0] for k in place]).reshape(-1, table.shape[0]).T
    return log_weight, np.array([smoothed[k][1] for k in place])


def smooth(log_ratio: Array, effective: float = 1.0) -> tuple[Array, float]:
    """Smooth the tail of importance weights; return normalised log weights and the shape k̂ of the tail.

    The shape is infinite if there are too few weights in the tail for a fit.

    Parameters
    ----------
    log_ratio : ndarray, shape (S,)
        Log importance ratios, up to a constant.
    effective : float
        Effective sample size over S.
    """
    log_weight = log_ratio - log_ratio.max()
    draws = len(log_weight)
    shape = math.inf
    tail = math.ceil(min(draws / 5.0, 3.0 * math.sqrt(draws / effective)))
    order = np.argsort(log_weight, kind="stable")
    cut = max(log_weight[order[-tail - 1]], math.log(np.finfo(np.float64).tiny)) if draws > tail else 0.0
    above = order[log_weight[order] > cut]
    if len(above) > 4:
        excess = np.exp(log_weight[above]) - math.exp(cut)
        shape, scale = _pareto(excess)
        middle = (np.arange(len(above)) + 0.5) / len(above)
        if shape:
            quantiles = np.log(scale * np.expm1(-shape * np.log1p(-middle)) / shape + math.exp(cut))
        else:
            quantiles = np.log(math.exp(cut) - scale * np.log1p(-middle))
        log_weight[above] = np.minimum(quantiles, 0.0)
    return log_weight - logsumexp(log_weight), shape


def _pareto(x: Array) -> tuple[float, float]:
    """Fit shape and scale of a generalised Pareto law to values in ascending order, by a posterior mean over θ.

    The shape is shrunk towards 0.5, with the weight of ten additional values.
    """
    count = len(x)
    grid = 30 + int(math.sqrt(count))
    quarter = x[int(count / 4 + 0.5) - 1]
    theta = (1.0 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))) / (3.0 * quarter) + 1.0 / x[-1]
    shapes = np.log1p(-theta[:, None] * x).mean(1)
    profile = count * (np.log(-theta / shapes) - shapes - 1.0)
    weight = np.exp(profile - logsumexp(profile))
    keep = weight >= 10.0 * np.finfo(np.float64).eps
    mean = float((theta[keep] * weight[keep]).sum() / weight[keep].sum())
    shape = float(np.log1p(-mean * x).mean())
    scale = -shape / mean
    return (count * shape + 10.0 * 0.5) / (count + 10.0), scale
