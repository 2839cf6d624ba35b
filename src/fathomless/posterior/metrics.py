"""Scores of predictions, as functions of arrays.

Arguments are NumPy arrays, torch tensors or lists. Results are floats or NumPy arrays of float64. Classes are indices
0 .. C-1. Every function raises :class:`~fathomless.system.errors.DataError` for unequal shapes, empty input and NaN.
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
    "ranked_probability",
    "reliability",
    "rmse",
    "standard_error",
]

Values = npt.ArrayLike | Tensor
Floats = npt.NDArray[np.float64]

_SUM_TOLERANCE = 1e-4  # rounding of probabilities in float32, summed over thousands of classes


def accuracy(y: Values, prediction: Values) -> float:
    """Compute the share of rows whose class is predicted correctly.

    Parameters
    ----------
    y : array_like, shape (N,)
        Labels; class indices if probabilities are given.
    prediction : array_like, shape (N,) or (N, C)
        Labels, or class probabilities; the class of the largest one is predicted (of ties, the first).

    Examples
    --------
    >>> accuracy([0, 1, 1], [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    0.6666666666666666
    """
    guess = _to_array(prediction)
    if guess.ndim == 2:
        index, probs = _check_classes(y, prediction)
        return float(np.mean(probs.argmax(1) == index))
    truth = _to_array(y)
    _check_shapes(y=truth, prediction=guess)
    return float(np.mean(truth == guess))


def brier(y: Values, probs: Values) -> float:
    """Compute the Brier score: the mean squared error of probabilities, summed over classes. 0 is best, 2 is worst.

    For two classes it is twice the score of the positive class.

    Parameters
    ----------
    y : array_like of int, shape (N,)
        Class indices.
    probs : array_like, shape (N, C)
        Class probabilities.
    """
    index, p = _check_classes(y, probs)
    outcome = np.arange(p.shape[1]) == index[:, None]
    return float(np.square(p - outcome).sum(1).mean())


def ranked_probability(y: Values, probs: Values) -> Floats:
    r"""Compute the ranked probability score of each row, (N,). 0 is best, C − 1 is worst.

    .. math:: \sum_{k=0}^{C-2} \left(P(y \le k) - 1\{y \le k\}\right)^2

    It is the sum of the Brier scores of all thresholds between ordered classes (Epstein 1969, Journal of Applied
    Meteorology 8, 985): a probability far from the true class costs more than one in a neighbouring class.

    Parameters
    ----------
    y : array_like of int, shape (N,)
        Class indices, in the order of the classes.
    probs : array_like, shape (N, C)
        Class probabilities, in the order of the classes.
    """
    index, p = _check_classes(y, probs)
    outcome = np.arange(p.shape[1]) >= index[:, None]
    score: Floats = np.square(p.cumsum(1) - outcome)[:, :-1].sum(1)
    return score


def reliability(y: Values, probs: Values, bins: int = 15) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Compute confidence and accuracy of the most probable class in equal bins (k / bins, (k + 1) / bins].

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
        Mean of the largest probability, accuracy, and number of rows of each bin that is not empty, in order of
        confidence.
    """
    if isinstance(bins, bool) or int(bins) != bins or bins < 1:
        raise DataError(f"bins was given as {bins!r}; allowed are whole numbers from 1")
    index, p = _check_classes(y, probs)
    top = p.max(1)
    hit = (p.argmax(1) == index).astype(np.float64)
    bin_of = np.clip(np.ceil(top * bins).astype(np.int64) - 1, 0, bins - 1)
    count = np.bincount(bin_of, minlength=bins)
    filled = count > 0
    confidence = np.bincount(bin_of, top, bins)[filled] / count[filled]
    hits = np.bincount(bin_of, hit, bins)[filled] / count[filled]
    return confidence, hits, count[filled]


def expected_calibration_error(y: Values, probs: Values, bins: int = 15) -> float:
    """Compute the mean distance between confidence and accuracy over the bins of :func:`reliability`.

    Empty bins are skipped. The estimate is biased upwards for few rows; it is NOT a proper score.

    References
    ----------
    Guo, Pleiss, Sun & Weinberger, *On calibration of modern neural networks*, ICML 2017.
    """
    confidence, hits, count = reliability(y, probs, bins)
    return float(np.sum(count * np.abs(confidence - hits)) / count.sum())


def nll(log_prob: Values) -> float:
    """Compute the mean negative log-likelihood in nats, from the log density or probability of each row."""
    return -float(_to_floats("log_prob", log_prob).mean())


def rmse(y: Values, mean: Values) -> float:
    """Compute the root mean squared error over all rows and columns, in the units of y."""
    truth, guess = _to_floats("y", y), _to_floats("mean", mean)
    _check_shapes(y=truth, mean=guess)
    return float(np.sqrt(np.mean(np.square(truth - guess))))


def standard_error(values: Values) -> float:
    """Return the standard error of the mean of two or more independent values (N - 1 in the variance)."""
    v = _to_floats("values", values).ravel()
    if len(v) < 2:
        raise DataError("one value was given; a standard error needs at least 2")
    return float(v.std(ddof=1) / math.sqrt(len(v)))


def paired_difference(a: Values, b: Values) -> tuple[float, float]:
    """Compute the mean of a - b over rows, and its standard error.

    For scores of two models on the same rows, this error is usually smaller than that of two independent means.
    """
    left, right = _to_floats("a", a), _to_floats("b", b)
    _check_shapes(a=left, b=right)
    difference = left - right
    return float(difference.mean()), standard_error(difference)


def crps_gaussian(y: Values, mean: Values, std: Values) -> Floats:
    r"""Compute the continuous ranked probability score of Gaussians, in the units of y, for each element.

    :math:`\sigma \left( z (2 \Phi(z) - 1) + 2 \varphi(z) - 1/\sqrt\pi \right)` with
    :math:`z = (y - \mu) / \sigma`; 0 is best.

    References
    ----------
    Gneiting & Raftery, *Strictly proper scoring rules, prediction, and estimation*, JASA 102 (2007), eq. 21.
    """
    truth, mu, sigma = _to_floats("y", y), _to_floats("mean", mean), _to_floats("std", std)
    _check_shapes(y=truth, mean=mu, std=sigma)
    _check_positive("std", sigma)
    return _expected_distance(truth - mu, sigma) - sigma / math.sqrt(math.pi)


def crps_normal_mixture(y: Values, weight: Values, mean: Values, std: Values) -> Floats:
    r"""Compute the continuous ranked probability score of Gaussian mixtures, in the units of y, for each element.

    .. math:: \sum_i w_i A(y - \mu_i, \sigma_i^2)
              - \tfrac12 \sum_{ij} w_i w_j A(\mu_i - \mu_j, \sigma_i^2 + \sigma_j^2)

    where :math:`A(\mu, \sigma^2)` is the mean of :math:`|X|` for :math:`X \sim N(\mu, \sigma^2)`. The
    time is proportional to S², the memory to S.

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
    truth, w = _to_floats("y", y), _to_floats("weight", weight)
    mu, sigma = _to_floats("mean", mean), _to_floats("std", std)
    _check_shapes(mean=mu, std=sigma)
    _check_positive("std", sigma)
    _check_distribution("weight", w)
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
    r"""Compute a fair estimate of the continuous ranked probability score from samples, for each element.

    :math:`\frac1n \sum_i |x_i - y| - \frac{1}{2 n (n - 1)} \sum_{i \ne j} |x_i - x_j|`, which is unbiased
    for the score of the law of the samples, and may be negative.

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
    truth, x = _to_floats("y", y), _to_floats("samples", samples)
    if x.ndim != truth.ndim + 1 or x.shape[1:] != truth.shape or len(x) < 2:
        raise DataError(
            f"samples of shape {x.shape} were given for targets of shape {truth.shape}; allowed is "
            f"(n, *{truth.shape}) with n from 2"
        )
    n = len(x)
    rank = 2.0 * np.arange(n) - n + 1.0  # number of pairs where a sorted sample is larger, minus smaller
    spread = np.tensordot(rank, np.sort(x, 0), 1) / (n * (n - 1.0))
    return np.asarray(np.abs(x - truth).mean(0) - spread)


def coverage(y: Values, low: Values, high: Values) -> float:
    """Compute the share of targets inside their closed interval."""
    truth, below, above = _to_floats("y", y), _to_floats("low", low), _to_floats("high", high)
    _check_shapes(y=truth, low=below, high=above)
    if (below > above).any():
        raise DataError(f"{int((below > above).sum())} intervals have low above high; allowed are low <= high")
    return float(np.mean((below <= truth) & (truth <= above)))


def pit(cdf: Values) -> Floats:
    """Return the sorted probability integral transforms F(y), which are uniform for calibrated predictions.

    Plotted against (i - 1/2) / N, they are then near the diagonal. Columns of several targets are pooled.
    """
    u = np.sort(_to_floats("cdf", cdf).ravel())
    if u[0] < 0.0 or u[-1] > 1.0:
        raise DataError(f"cdf has values from {u[0]} to {u[-1]}; allowed are 0 to 1")
    return u


def pit_uniformity(cdf: Values) -> float:
    """Compute the Kolmogorov-Smirnov distance of the probability integral transforms to the uniform law. 0 is best.

    For N independent rows and calibrated predictions, it exceeds 1.36 / sqrt(N) with probability 0.05.
    """
    u = pit(cdf)
    step = np.arange(len(u) + 1) / len(u)
    return float(max(np.max(step[1:] - u), np.max(u - step[:-1])))


def hellinger(p: Values, q: Values) -> Floats:
    r"""Compute the Hellinger distance between distributions on the last axis, from 0 to 1.

    .. math:: \sqrt{\tfrac12 \sum_c (\sqrt{p_c} - \sqrt{q_c})^2}
    """
    left, right = _to_floats("p", p), _to_floats("q", q)
    _check_shapes(p=left, q=right)
    _check_distribution("p", left)
    _check_distribution("q", right)
    return np.asarray(np.sqrt(0.5 * np.square(np.sqrt(left) - np.sqrt(right)).sum(-1)))


def auroc(score_out: Values, score_in: Values) -> float:
    """Compute the area under the ROC curve of a score for rows outside the training distribution.

    It is the probability that a row from outside scores higher than a row from inside; ties count one half.

    Parameters
    ----------
    score_out, score_in : array_like, shape (N_out,) and (N_in,)
        A score that should be high outside the training distribution, for instance the entropy.

    Examples
    --------
    >>> auroc([0.9, 0.4], [0.1, 0.4])
    0.875
    """
    outside = _to_floats("score_out", score_out).ravel()
    inside = np.sort(_to_floats("score_in", score_in).ravel())
    below = np.searchsorted(inside, outside, "left") + np.searchsorted(inside, outside, "right")
    return float(below.mean() / (2.0 * len(inside)))


def _expected_distance(mean: Floats, std: Floats) -> Floats:
    """Compute the mean of |X| for a Gaussian X."""
    z = mean / std
    density = np.exp(-0.5 * np.square(z)) / math.sqrt(2.0 * math.pi)
    return np.asarray(2.0 * std * density + mean * special.erf(z / math.sqrt(2.0)))


def _to_array(values: Values) -> npt.NDArray[np.generic]:
    array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(unmask(values))
    if array.size == 0:
        raise DataError("an empty array was given; at least one row is needed")
    return array


def _to_floats(name: str, values: Values) -> Floats:
    plain = values.detach().cpu().double().numpy() if isinstance(values, Tensor) else np.asarray(unmask(values))
    array = plain.astype(np.float64)
    if array.size == 0:
        raise DataError(f"{name} is empty; at least one row is needed")
    if np.isnan(array).any():
        raise DataError(f"{name} has {int(np.isnan(array).sum())} NaN values; allowed are numbers")
    return array


def _check_shapes(**arrays: npt.NDArray[np.generic]) -> None:
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise DataError(f"arrays of different shapes were given: {shapes}; allowed are equal shapes")


def _check_positive(name: str, array: Floats) -> None:
    if not (array > 0).all():
        raise DataError(f"{name} has the value {array.min()}; allowed are positive numbers")


def _check_distribution(name: str, array: Floats) -> None:
    sums = array.sum(-1)
    if (array < 0).any() or np.abs(sums - 1.0).max() > _SUM_TOLERANCE:
        raise DataError(
            f"{name} has a smallest value of {array.min()} and sums from {sums.min()} to {sums.max()}; "
            "allowed are non-negative numbers that sum to 1"
        )


def _check_classes(y: Values, probs: Values) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return class indices and class probabilities after checks of their shapes and values."""
    p, index = _to_floats("probs", probs), _to_floats("y", y)
    if p.ndim != 2 or index.shape != p.shape[:1]:
        raise DataError(f"probs {p.shape} were given for y {index.shape}; allowed are (N, C) and (N,)")
    _check_distribution("probs", p)
    if (index != np.floor(index)).any() or index.min() < 0 or index.max() >= p.shape[1]:
        raise DataError(
            f"y has values from {index.min()} to {index.max()}; allowed are class indices, "
            f"whole numbers from 0 to {p.shape[1] - 1}"
        )
    return index.astype(np.int64), p
