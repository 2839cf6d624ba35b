"""Scores of predictions: pure functions of arrays, without state.

Arguments are NumPy arrays, torch tensors or lists; results are floats or NumPy arrays of float64. Classes
are given by their index 0 .. C-1. Every function raises :class:`~fathomless.system.errors.DataError` for shapes
that do not match, for empty input and for NaN.
"""

import math

import numpy as np
import numpy.typing as npt
from scipy import special
from torch import Tensor

from fathomless.system.errors import DataError
from fathomless.system.masked import unmask

__all__ = [
    "accuracy",
    "auroc",
    "brier",
    "coverage",
    "crps_gaussian",
    "crps_normal_mixture",
    "crps_samples",
    "expected_calibration_error",
    "hellinger",
    "nll",
    "paired_difference",
    "pit",
    "pit_uniformity",
    "reliability",
    "rmse",
    "standard_error",
]

Values = npt.ArrayLike | Tensor
Floats = npt.NDArray[np.float64]

_SUM_TOLERANCE = 1e-4  # probabilities in float32, summed over thousands of classes


def accuracy(y: Values, prediction: Values) -> float:
    """Share of rows whose class is predicted.

    Parameters
    ----------
    y : array_like, shape (N,)
        Labels; class indices if probabilities are given.
    prediction : array_like, shape (N,) or (N, C)
        Labels, or class probabilities, of which the largest counts (the first of equals).

    Examples
    --------
    >>> accuracy([0, 1, 1], [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    0.6666666666666666
    """
    guess = _plain(prediction)
    if guess.ndim == 2:
        index, probs = _classified(y, prediction)
        return float(np.mean(probs.argmax(1) == index))
    truth = _plain(y)
    _same(y=truth, prediction=guess)
    return float(np.mean(truth == guess))


def brier(y: Values, probs: Values) -> float:
    """Mean squared distance between probabilities and outcome, summed over classes: 0 is best, 2 worst.

    For two classes this is twice the score of the positive class alone.

    Parameters
    ----------
    y : array_like of int, shape (N,)
        Class indices.
    probs : array_like, shape (N, C)
        Class probabilities.
    """
    index, p = _classified(y, probs)
    outcome = np.arange(p.shape[1]) == index[:, None]
    return float(np.square(p - outcome).sum(1).mean())


def reliability(y: Values, probs: Values, bins: int = 15) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Confidence against accuracy of the top class, in bins of equal width (k / bins, (k + 1) / bins].

    Parameters
    ----------
    y : array_like of int, shape (N,)
        Class indices.
    probs : array_like, shape (N, C)
        Class probabilities.
    bins : int
        Number of bins on [0, 1].

    Returns
    -------
    confidence, accuracy, count : ndarrays
        Mean top probability, share of hits and number of rows in each bin that holds a row, by rising
        confidence.
    """
    if isinstance(bins, bool) or int(bins) != bins or bins < 1:
        raise DataError(f"bins was given as {bins!r}; allowed are whole numbers from 1")
    index, p = _classified(y, probs)
    top = p.max(1)
    hit = (p.argmax(1) == index).astype(np.float64)
    which = np.clip(np.ceil(top * bins).astype(np.int64) - 1, 0, bins - 1)
    count = np.bincount(which, minlength=bins)
    held = count > 0
    confidence = np.bincount(which, top, bins)[held] / count[held]
    hits = np.bincount(which, hit, bins)[held] / count[held]
    return confidence, hits, count[held]


def expected_calibration_error(y: Values, probs: Values, bins: int = 15) -> float:
    """Mean distance between confidence and accuracy of the top class, over the bins of :func:`reliability`.

    Bins without rows are skipped. The estimate is biased upwards for few rows; it is NOT a proper score.

    References
    ----------
    Guo, Pleiss, Sun & Weinberger, *On calibration of modern neural networks*, ICML 2017.
    """
    confidence, hits, count = reliability(y, probs, bins)
    return float(np.sum(count * np.abs(confidence - hits)) / count.sum())


def nll(log_prob: Values) -> float:
    """Mean negative log-likelihood in nats, from the log density or mass of each row."""
    return -float(_floats("log_prob", log_prob).mean())


def rmse(y: Values, mean: Values) -> float:
    """Root of the mean squared error, over all rows and columns, in the units of y."""
    truth, guess = _floats("y", y), _floats("mean", mean)
    _same(y=truth, mean=guess)
    return float(np.sqrt(np.mean(np.square(truth - guess))))


def standard_error(values: Values) -> float:
    """Return the standard error of the mean of two or more independent values (N - 1 in the variance)."""
    v = _floats("values", values).ravel()
    if len(v) < 2:
        raise DataError("one value was given; a standard error needs 2 or more")
    return float(v.std(ddof=1) / math.sqrt(len(v)))


def paired_difference(a: Values, b: Values) -> tuple[float, float]:
    """Mean of a - b over rows, and its standard error.

    Comparing two models on the same rows, this error is smaller than that of two separate means.
    """
    left, right = _floats("a", a), _floats("b", b)
    _same(a=left, b=right)
    difference = left - right
    return float(difference.mean()), standard_error(difference)


def crps_gaussian(y: Values, mean: Values, std: Values) -> Floats:
    r"""Continuous ranked probability score of Gaussians, in the units of y, for each element.

    :math:`\sigma \left( z (2 \Phi(z) - 1) + 2 \varphi(z) - 1/\sqrt\pi \right)` with
    :math:`z = (y - \mu) / \sigma`; 0 is best.

    References
    ----------
    Gneiting & Raftery, *Strictly proper scoring rules, prediction, and estimation*, JASA 102 (2007), eq. 21.
    """
    truth, mu, sigma = _floats("y", y), _floats("mean", mean), _floats("std", std)
    _same(y=truth, mean=mu, std=sigma)
    _positive("std", sigma)
    return _expected_distance(truth - mu, sigma) - sigma / math.sqrt(math.pi)


def crps_normal_mixture(y: Values, weight: Values, mean: Values, std: Values) -> Floats:
    r"""Continuous ranked probability score of mixtures of Gaussians, in the units of y, for each element.

    .. math:: \sum_i w_i A(y - \mu_i, \sigma_i^2)
              - \tfrac12 \sum_{ij} w_i w_j A(\mu_i - \mu_j, \sigma_i^2 + \sigma_j^2)

    where :math:`A(\mu, \sigma^2)` is the mean of :math:`|X|` for :math:`X \sim N(\mu, \sigma^2)`. Time
    grows with S², memory with S.

    Parameters
    ----------
    y : array_like, shape (...)
        Targets.
    weight : array_like, shape (S,)
        Weights; they sum to 1.
    mean, std : array_like, shape (S, ...)
        Parameters of the components.

    References
    ----------
    Grimit, Gneiting, Berrocal & Johnson, *The continuous ranked probability score for circular variables*,
    Quarterly Journal of the Royal Meteorological Society 132 (2006).
    """
    truth, w = _floats("y", y), _floats("weight", weight)
    mu, sigma = _floats("mean", mean), _floats("std", std)
    _same(mean=mu, std=sigma)
    _positive("std", sigma)
    _distribution("weight", w)
    if w.ndim != 1 or mu.shape != (len(w), *truth.shape):
        raise DataError(
            f"{w.shape} weights and means of shape {mu.shape} were given for targets of shape "
            f"{truth.shape}; allowed are (S,) and (S, *{truth.shape})"
        )
    score = np.tensordot(w, _expected_distance(truth - mu, sigma), 1)
    for i in range(len(w)):
        pairs = _expected_distance(mu[i] - mu, np.hypot(sigma[i], sigma))  # (S, ...)
        score = score - 0.5 * w[i] * np.tensordot(w, pairs, 1)
    return np.asarray(score)


def crps_samples(y: Values, samples: Values) -> Floats:
    r"""Fair estimate of the continuous ranked probability score from samples, for each element.

    :math:`\frac1n \sum_i |x_i - y| - \frac{1}{2 n (n - 1)} \sum_{i \ne j} |x_i - x_j|`, which is unbiased
    for the score of the law that the samples come from, and may be negative.

    Parameters
    ----------
    y : array_like, shape (...)
        Targets.
    samples : array_like, shape (n, ...)
        Independent samples, n >= 2.

    References
    ----------
    Ferro, *Fair scores for ensemble forecasts*, Quarterly Journal of the Royal Meteorological Society 140
    (2014).
    """
    truth, x = _floats("y", y), _floats("samples", samples)
    if x.ndim != truth.ndim + 1 or x.shape[1:] != truth.shape or len(x) < 2:
        raise DataError(
            f"samples of shape {x.shape} were given for targets of shape {truth.shape}; allowed is "
            f"(n, *{truth.shape}) with n from 2"
        )
    n = len(x)
    rank = 2.0 * np.arange(n) - n + 1.0  # how often a sorted sample is the larger of a pair, less the smaller
    spread = np.tensordot(rank, np.sort(x, 0), 1) / (n * (n - 1.0))
    return np.asarray(np.abs(x - truth).mean(0) - spread)


def coverage(y: Values, low: Values, high: Values) -> float:
    """Share of targets inside their closed interval."""
    truth, below, above = _floats("y", y), _floats("low", low), _floats("high", high)
    _same(y=truth, low=below, high=above)
    if (below > above).any():
        raise DataError(f"{int((below > above).sum())} intervals have low above high; allowed are low <= high")
    return float(np.mean((below <= truth) & (truth <= above)))


def pit(cdf: Values) -> Floats:
    """Sorted probability integral transforms F(y), uniform if the predictions are calibrated.

    Drawn against (i - 1/2) / N, they lie on the diagonal. Columns of several targets are pooled.
    """
    u = np.sort(_floats("cdf", cdf).ravel())
    if u[0] < 0.0 or u[-1] > 1.0:
        raise DataError(f"cdf was given with values from {u[0]} to {u[-1]}; allowed are 0 to 1")
    return u


def pit_uniformity(cdf: Values) -> float:
    """Kolmogorov-Smirnov distance between the probability integral transforms and the uniform law: 0 is best.

    For N calibrated, independent rows, 1.36 / sqrt(N) is exceeded with probability 0.05.
    """
    u = pit(cdf)
    step = np.arange(len(u) + 1) / len(u)
    return float(max(np.max(step[1:] - u), np.max(u - step[:-1])))


def hellinger(p: Values, q: Values) -> Floats:
    r"""Hellinger distance between distributions on the last axis, from 0 to 1.

    .. math:: \sqrt{\tfrac12 \sum_c (\sqrt{p_c} - \sqrt{q_c})^2}
    """
    left, right = _floats("p", p), _floats("q", q)
    _same(p=left, q=right)
    _distribution("p", left)
    _distribution("q", right)
    return np.asarray(np.sqrt(0.5 * np.square(np.sqrt(left) - np.sqrt(right)).sum(-1)))


def auroc(score_out: Values, score_in: Values) -> float:
    """Probability that a row from outside scores higher than one from inside; ties count one half.

    Parameters
    ----------
    score_out, score_in : array_like, shape (N_out,) and (N_in,)
        A score that should be high outside the training distribution, for instance the entropy.

    Examples
    --------
    >>> auroc([0.9, 0.4], [0.1, 0.4])
    0.875
    """
    outside = _floats("score_out", score_out).ravel()
    inside = np.sort(_floats("score_in", score_in).ravel())
    below = np.searchsorted(inside, outside, "left") + np.searchsorted(inside, outside, "right")
    return float(below.mean() / (2.0 * len(inside)))


def _expected_distance(mean: Floats, std: Floats) -> Floats:
    """Mean of |X| for a Gaussian X."""
    z = mean / std
    density = np.exp(-0.5 * np.square(z)) / math.sqrt(2.0 * math.pi)
    return np.asarray(2.0 * std * density + mean * special.erf(z / math.sqrt(2.0)))


def _plain(values: Values) -> npt.NDArray[np.generic]:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(unmask(values))
    if array.size == 0:
        raise DataError("an empty array was given; allowed is one row or more")
    return array


def _floats(name: str, values: Values) -> Floats:
    plain = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else np.asarray(unmask(values))
    array = plain.astype(np.float64)
    if array.size == 0:
        raise DataError(f"{name} was given empty; allowed is one row or more")
    if np.isnan(array).any():
        raise DataError(f"{name} was given with {int(np.isnan(array).sum())} NaN values; allowed are numbers")
    return array


def _same(**arrays: npt.NDArray[np.generic]) -> None:
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise DataError(f"arrays were given of different shapes: {shapes}; allowed are equal shapes")


def _positive(name: str, array: Floats) -> None:
    if not (array > 0).all():
        raise DataError(f"{name} was given with {array.min()}; allowed are positive numbers")


def _distribution(name: str, array: Floats) -> None:
    sums = array.sum(-1)
    if (array < 0).any() or np.abs(sums - 1.0).max() > _SUM_TOLERANCE:
        raise DataError(
            f"{name} was given with values from {array.min()} and sums from {sums.min()} to "
            f"{sums.max()}; allowed are non-negative numbers that sum to 1"
        )


def _classified(y: Values, probs: Values) -> tuple[npt.NDArray[np.int64], Floats]:
    """Check class indices against class probabilities."""
    p, index = _floats("probs", probs), _floats("y", y)
    if p.ndim != 2 or index.shape != p.shape[:1]:
        raise DataError(f"probs {p.shape} were given for y {index.shape}; allowed are (N, C) and (N,)")
    _distribution("probs", p)
    if (index != np.floor(index)).any() or index.min() < 0 or index.max() >= p.shape[1]:
        raise DataError(
            f"y was given with values from {index.min()} to {index.max()}; allowed are class indices, "
            f"whole numbers from 0 to {p.shape[1] - 1}"
        )
    return index.astype(np.int64), p
