"""Convergence diagnostics of Markov chains: R-hat, effective sample sizes, Monte Carlo errors.

Functions take arrays of shape (chains, draws) and return floats. Rank normalisation makes them robust against heavy
tails, and chains are split in halves, so that a drift within a chain is detected too.

References
----------
Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), Rank-normalization, folding, and localization: an improved
R-hat for assessing convergence of MCMC. Geyer (1992), Practical Markov chain Monte Carlo.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri
from scipy.stats import rankdata

from fathomless.system.errors import DataError

__all__ = [
    "LEAST",
    "Diagnosis",
    "diagnose",
    "ess_bulk",
    "ess_mean",
    "ess_tail",
    "mcse_mean",
    "mcse_quantile",
    "rhat",
    "to_arviz",
]

#: Smallest number of draws of a chain that can be diagnosed: two in each half.
LEAST = 4


@dataclass(frozen=True)
class Diagnosis:
    """Convergence diagnostics of one quantity.

    If the quantity was not finite, all values are NaN.

    Attributes
    ----------
    mean, sd : float
        Mean and standard deviation over all draws.
    mcse : float
        Monte Carlo error of the mean.
    rhat : float or None
        R-hat. It is None if the quantity never changed, since R-hat is then undefined, and infinite if each chain is
        constant at a different value.
    ess_bulk, ess_tail : float
        Effective sample sizes, for the mean and for the 5 % and 95 % quantiles.
    """

    mean: float
    sd: float
    mcse: float
    rhat: float | None
    ess_bulk: float
    ess_tail: float

    @property
    def constant(self) -> bool:
        """True if the quantity never changed."""
        return self.rhat is None


def diagnose(draws: ArrayLike) -> Diagnosis:
    """Compute all diagnostics for draws of shape (chains, draws).

    Raises
    ------
    DataError
        As in :func:`rhat`, except for draws that are not finite: their diagnostics are NaN.

    Examples
    --------
    >>> diagnose(np.random.default_rng(0).normal(size=(4, 500))).rhat
    1.0
    """
    if not np.isfinite(np.asarray(draws, dtype=np.float64)).all():
        return Diagnosis(*(math.nan,) * 6)
    x = _check_draws(draws)
    r_hat = rhat(x)
    return Diagnosis(
        float(x.mean()),
        float(x.std(ddof=1)),
        mcse_mean(x),
        None if math.isnan(r_hat) else r_hat,
        ess_bulk(x),
        ess_tail(x),
    )


def rhat(draws: ArrayLike) -> float:
    """Compute the rank-normalised split R-hat: the larger one of the draws and of their distances from the median.

    It is NaN if all draws are equal.

    Raises
    ------
    DataError
        If draws are not (chains, draws), fewer than four each, or not finite.
    """
    halves = _split(_check_draws(draws))
    if np.ptp(halves) == 0:
        return math.nan
    folded = np.abs(halves - np.median(halves))
    if np.ptp(folded) == 0:  # two values with the median between them: all distances are equal
        return _scale_reduction(_rank_normalize(halves))
    return max(_scale_reduction(_rank_normalize(halves)), _scale_reduction(_rank_normalize(folded)))


def ess_bulk(draws: ArrayLike) -> float:
    """Compute the bulk effective sample size: that of the normal scores of the draws."""
    return _effective_size(_rank_normalize(_split(_check_draws(draws))))


def ess_mean(draws: ArrayLike) -> float:
    """Compute the effective sample size for the mean."""
    return _effective_size(_split(_check_draws(draws)))


def ess_tail(draws: ArrayLike) -> float:
    """Compute the tail effective sample size: the smaller one of those for the 5 % and the 95 % quantile."""
    return min(_effective_size_at(_check_draws(draws), prob) for prob in (0.05, 0.95))


def mcse_mean(draws: ArrayLike) -> float:
    """Compute the Monte Carlo error of the mean."""
    x = _check_draws(draws)
    return float(x.std(ddof=1)) / math.sqrt(ess_mean(x))


def mcse_quantile(draws: ArrayLike, prob: float) -> float:
    """Compute the Monte Carlo error of a quantile: half the width of its one-standard-error interval."""
    x = _check_draws(draws)
    effective = _effective_size_at(x, prob)
    ends = betaincinv(effective * prob + 1, effective * (1 - prob) + 1, [0.1586553, 0.8413447])
    ordered = np.sort(x, axis=None)
    low = ordered[max(math.floor(ends[0] * x.size - 1), 0)]
    high = ordered[min(math.ceil(ends[1] * x.size - 1), x.size - 1)]
    return float(high - low) / 2


def to_arviz(draws: Mapping[str, ArrayLike]) -> Any:
    """Return an ArviZ ``InferenceData`` of named draws, each of shape (chains, draws, ...).

    Raises
    ------
    DataError
        If ArviZ is not installed.
    """
    try:
        import arviz
    except ImportError as error:
        raise DataError("ArviZ is not installed; run: pip install 'fathomless[mcmc]'") from error
    return arviz.from_dict(posterior={name: np.asarray(values) for name, values in draws.items()})


def _check_draws(draws: ArrayLike) -> NDArray[np.float64]:
    """Check the shape and values of draws; return them in float64."""
    x = np.asarray(draws, dtype=np.float64)
    if x.ndim != 2 or x.shape[0] < 1 or x.shape[1] < LEAST:
        raise DataError(f"draws of shape {x.shape} were given; (chains, draws) with at least {LEAST} draws is allowed")
    if not np.isfinite(x).all():
        raise DataError(
            f"draws have {int((~np.isfinite(x)).sum()):,} values that are not finite; only finite ones are allowed"
        )
    return x


def _split(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Split each chain into two halves; the middle draw of an odd number is dropped."""
    half = x.shape[1] // 2
    return np.concatenate([x[:, :half], x[:, -half:]])


def _rank_normalize(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Replace values by the normal scores of their ranks over all chains."""
    ranks = rankdata(x, method="average").reshape(x.shape)
    return np.asarray(ndtri((ranks - 0.375) / (x.size + 0.25)))


def _scale_reduction(x: NDArray[np.float64]) -> float:
    """Return the potential scale reduction factor of Gelman and Rubin."""
    draws = x.shape[1]
    within = x.var(1, ddof=1).mean()
    between = x.mean(1).var(ddof=1)
    if within < 1e-15 * between:  # chains are constant at different values, up to rounding
        return math.inf
    return math.sqrt((draws - 1) / draws + between / within)


def _autocovariance(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the autocovariance at every lag, averaged over chains, (draws,)."""
    draws = x.shape[1]
    spectrum = np.fft.rfft(x - x.mean(1, keepdims=True), 2 * draws, axis=1)
    return np.asarray(np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :draws].mean(0) / draws)


def _effective_size(x: NDArray[np.float64]) -> float:
    """Return the effective sample size, by Geyer's initial monotone sequence of pairs of lags."""
    if np.ptp(x) < np.finfo(np.float64).resolution:
        return float(x.size)
    chains, draws = x.shape
    covariance = _autocovariance(x)
    within = covariance[0] * draws / (draws - 1)
    total = covariance[0] + (x.mean(1).var(ddof=1) if chains > 1 else 0.0)
    rho = 1 - (within - covariance) / total
    rho[0] = 1.0
    last = max((draws - 1) // 2 - 1, 0)  # index of the last pair of lags (2 j, 2 j + 1): the last lag is only noise
    pairs = rho[0 : 2 * last + 1 : 2] + rho[1 : 2 * last + 2 : 2]
    stop = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else last
    time = -1 + 2 * np.minimum.accumulate(pairs[:stop]).sum() + max(rho[2 * stop], 0.0)
    return float(x.size / max(time, 1 / math.log10(x.size)))


def _effective_size_at(x: NDArray[np.float64], prob: float) -> float:
    """Return the effective sample size for a quantile: that of the indicator of being below it."""
    return _effective_size(_split((x <= np.quantile(x, prob)).astype(np.float64)))
