"""Scores of predictions, as functions of arrays.

Arguments are NumPy arrays, torch tensors or lists. Results are floats or NumPy arrays of float64. Classes are indices
0 .. C-1. Every function raises :class:`~fathomless.system.errors.DataError` for unequal shapes, empty input and NaN.
"""

import itertools
import math
from typing import Any, Protocol

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
    "crps_laplace",
    "crps_laplace_mixture",
    "crps_law",
    "crps_normal_mixture",
    "crps_samples",
    "crps_student",
    "expected_calibration_error",
    "hellinger",
    "interval_score",
    "kruskal_wallis",
    "nll",
    "normal_scores",
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

#: Levels of the quantiles between which a distribution function is integrated.
_KNOTS = (1e-4, 0.005, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 0.995, 1.0 - 1e-4)
_NODES = 5  # nodes of Gauss and Legendre between two knots
_SUM_TOLERANCE = 1e-4  # rounding of probabilities in float32, summed over thousands of classes


class Law(Protocol):
    """Continuous laws of a batch of rows; arguments have the shape of the batch."""

    def cdf(self, y: Any, /) -> Tensor:
        """Return the probability below y."""
        ...

    def icdf(self, p: Any, /) -> Tensor:
        """Return the quantile."""
        ...


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


def crps_laplace(y: Values, loc: Values, scale: Values) -> Floats:
    r"""Compute the continuous ranked probability score of Laplace laws, in the units of y, for each element.

    :math:`b \left( |z| + e^{-|z|} - 3/4 \right)` with :math:`z = (y - \mu) / b`; 0 is best.

    References
    ----------
    Jordan, Krüger & Lerch, *Evaluating probabilistic forecasts with scoringRules*, Journal of Statistical Software 90
    (2019), appendix A.
    """
    truth, mu, b = _to_floats("y", y), _to_floats("loc", loc), _to_floats("scale", scale)
    _check_shapes(y=truth, loc=mu, scale=b)
    _check_positive("scale", b)
    z = np.abs(truth - mu) / b
    return np.asarray(b * (z + np.exp(-z) - 0.75))


def crps_student(y: Values, loc: Values, scale: Values, df: Values) -> Floats:
    r"""Compute the continuous ranked probability score of Student's t laws, in the units of y, for each element.

    .. math:: \sigma \left( z (2 F_\nu(z) - 1) + \frac{2 f_\nu(z) (\nu + z^2)}{\nu - 1}
              - \frac{2 \sqrt\nu}{\nu - 1} \frac{B(1/2, \nu - 1/2)}{B(1/2, \nu/2)^2} \right)

    with :math:`z = (y - \mu) / \sigma` and the density f and distribution function F of Student's t law with
    :math:`\nu > 1` degrees of freedom; 0 is best.

    References
    ----------
    Jordan, Krüger & Lerch, *Evaluating probabilistic forecasts with scoringRules*, Journal of Statistical Software 90
    (2019), appendix A.
    """
    truth, mu, sigma = _to_floats("y", y), _to_floats("loc", loc), _to_floats("scale", scale)
    nu = _to_floats("df", df)
    _check_shapes(y=truth, loc=mu, scale=sigma, df=nu)
    _check_positive("scale", sigma)
    if not (nu > 1.0).all():
        raise DataError(f"df has the value {nu.min()}; allowed are numbers above 1, for which the score exists")
    z = (truth - mu) / sigma
    log_density = -special.betaln(0.5, 0.5 * nu) - 0.5 * np.log(nu) - 0.5 * (nu + 1.0) * np.log1p(np.square(z) / nu)
    pair = np.exp(special.betaln(0.5, nu - 0.5) - 2.0 * special.betaln(0.5, 0.5 * nu) + 0.5 * np.log(nu))
    own = 1.0 - 2.0 * special.stdtr(nu, -np.abs(z))  # of the absolute value of z
    weighted = np.exp(log_density + np.log(nu + np.square(z)))
    return np.asarray(sigma * (np.abs(z) * own + 2.0 * (weighted - pair) / (nu - 1.0)))


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
    weight : array_like, shape (S,) or (S, ...)
        Weights, common or of each element; they sum to 1 over the first axis.
    mean, std : array_like, shape (S, ...)
        Parameters of the components.

    References
    ----------
    Grimit, Gneiting, Berrocal & Johnson, *The continuous ranked probability score for circular variables*,
    Quarterly Journal of the Royal Meteorological Society 132 (2006).
    """
    truth, w, mu, sigma = _check_mixture(y, weight, mean=mean, std=std)
    score = (w * _expected_distance(truth - mu, sigma)).sum(0)
    for i in range(len(mu)):  # pairs of different components are counted twice
        score = score - w[i] ** 2 * sigma[i] / math.sqrt(math.pi)
        pairs = _expected_distance(mu[i] - mu[:i], np.hypot(sigma[i], sigma[:i]))  # (i, ...)
        score = score - w[i] * (w[:i] * pairs).sum(0)
    return np.asarray(score)


def crps_laplace_mixture(y: Values, weight: Values, loc: Values, scale: Values) -> Floats:
    r"""Compute the continuous ranked probability score of Laplace mixtures, in the units of y, for each element.

    .. math:: \sum_i w_i A(y - \mu_i, b_i) - \tfrac12 \sum_{ij} w_i w_j D(\mu_i - \mu_j, b_i, b_j)

    where :math:`A(\mu, b) = |\mu| + b e^{-|\mu|/b}` is the mean of :math:`|\mu + X|` for a Laplace law of scale b, and
    :math:`D(\mu, a, b) = |\mu| + (a^3 e^{-|\mu|/a} - b^3 e^{-|\mu|/b}) / (a^2 - b^2)` that of
    :math:`|\mu + X_a - X_b|`. The time is proportional to S², the memory to S.

    Parameters
    ----------
    y : array_like, shape (...)
        Targets.
    weight : array_like, shape (S,) or (S, ...)
        Weights, common or of each element; they sum to 1 over the first axis.
    loc, scale : array_like, shape (S, ...)
        Parameters of the components.

    References
    ----------
    Gneiting & Raftery, *Strictly proper scoring rules, prediction, and estimation*, JASA 102 (2007), eq. 20, for the
    score as a difference of mean distances.
    """
    truth, w, mu, b = _check_mixture(y, weight, loc=loc, scale=scale)
    distance = np.abs(truth - mu)
    score = (w * (distance + b * np.exp(-distance / b))).sum(0)
    for i in range(len(mu)):  # pairs of different components are counted twice
        score = score - w[i] ** 2 * 0.75 * b[i]
        score = score - w[i] * (w[:i] * _laplace_distance(mu[i] - mu[:i], b[i], b[:i])).sum(0)
    return np.asarray(score)


def crps_law(y: Values, law: Law, knots: Values | None = None) -> Floats:
    r"""Compute the continuous ranked probability score of laws by quadrature, for each element.

    .. math:: \int_{-\infty}^y F(x)^2 \, dx + \int_y^\infty (1 - F(x))^2 \, dx

    The line is divided at y and at ten quantiles, from the level 0.0001 to 0.9999. Each panel has five nodes of Gauss
    and Legendre. The two integrals beyond the last knots are below 0.0001 times the distance of these knots from the
    mean, and are neglected. For unimodal laws the relative error of the mean score is below 0.00001. For mixtures of
    distant, narrow modes it is below 0.001, and up to 0.03 for single rows.

    Parameters
    ----------
    y : array_like, shape (...)
        Targets.
    law : object with the methods ``cdf`` and ``icdf``
        Laws of a batch with the shape of y, such as :class:`~fathomless.posterior.mixtures.Mixture`.
    knots : array_like, shape (K, ...), optional
        Points at which the line is divided instead of the quantiles. They must include the jumps of the distribution
        function, if it has any.
    """
    truth = _to_floats("y", y)
    if knots is None:
        inner = np.stack([_detach(law.icdf(np.full(truth.shape, level))) for level in _KNOTS])
    else:
        inner = _to_floats("knots", knots)
    edges = np.sort(np.concatenate([inner, truth[None]]), 0)  # (K + 1, ...)
    points, weights = np.polynomial.legendre.leggauss(_NODES)
    score = np.zeros_like(truth)
    for low, high in itertools.pairwise(edges):
        half = 0.5 * (high - low)
        below = high <= truth
        for point, share in zip(points, weights, strict=True):
            f = _detach(law.cdf(low + half * (1.0 + point)))
            score += share * half * np.square(np.where(below, f, 1.0 - f))
    return score


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
    truth, below, above = _check_intervals(y, low, high)
    return float(np.mean((below <= truth) & (truth <= above)))


def interval_score(y: Values, low: Values, high: Values, level: float) -> Floats:
    r"""Compute the interval score of central prediction intervals, in the units of y, for each element.

    :math:`(u - l) + \frac{2}{\alpha} (l - y)_+ + \frac{2}{\alpha} (y - u)_+` with the level :math:`1 - \alpha`: the
    width of the interval, and a penalty for a target outside. 0 is best. The score is proper for the quantiles at
    :math:`\alpha / 2` and :math:`1 - \alpha / 2`.

    Parameters
    ----------
    y, low, high : array_like, shape (...)
        Targets, and the ends of their intervals.
    level : float
        Nominal probability of the intervals, between 0 and 1.

    References
    ----------
    Gneiting & Raftery, *Strictly proper scoring rules, prediction, and estimation*, JASA 102 (2007), eq. 43.

    Examples
    --------
    >>> interval_score([0.0, 1.5], [-1.0, -1.0], [1.0, 1.0], 0.9)
    array([ 2., 12.])
    """
    truth, below, above = _check_intervals(y, low, high)
    if not 0.0 < level < 1.0:
        raise DataError(f"level={level} was given; allowed are numbers between 0 and 1")
    miss = np.maximum(below - truth, 0.0) + np.maximum(truth - above, 0.0)
    return np.asarray(above - below + 2.0 / (1.0 - level) * miss)


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


def normal_scores(cdf: Values) -> Floats:
    r"""Compute the normal scores :math:`\Phi^{-1}(F(y))`, between -8 and 8, which are standard normal if calibrated."""
    u = _to_floats("cdf", cdf)
    if u.min() < 0.0 or u.max() > 1.0:
        raise DataError(f"cdf has values from {u.min()} to {u.max()}; allowed are 0 to 1")
    return np.asarray(np.clip(special.ndtri(u), -8.0, 8.0))


def kruskal_wallis(values: Values, group: Values, weight: Values | None = None) -> float:
    """Compute the p-value of the test of Kruskal and Wallis that values have the same law in all groups.

    The p-value is that of the chi-squared law with one degree of freedom fewer than groups, with the correction for
    ties. It is 1 if all values are equal.

    Parameters
    ----------
    values : array_like, shape (N,)
        Values, of which only the order matters.
    group : array_like, shape (N,)
        Group of each row; at least two groups.
    weight : array_like, shape (N,), optional
        Positive weights; a row of weight k is equivalent to k equal rows.

    References
    ----------
    Kruskal & Wallis, *Use of ranks in one-criterion variance analysis*, JASA 47 (1952).
    """
    x, g = _to_floats("values", values), _to_floats("group", group)
    w = np.ones(len(x)) if weight is None else _to_floats("weight", weight)
    _check_shapes(values=x, group=g, weight=w)
    _check_positive("weight", w)
    names, member = np.unique(g, return_inverse=True)
    if len(names) < 2:
        raise DataError("one group was given; a comparison needs at least 2")
    distinct, place = np.unique(x, return_inverse=True)
    tied = np.bincount(place, w)
    rank = (np.cumsum(tied) - 0.5 * tied + 0.5)[place]
    total, size = w.sum(), np.bincount(member, w)
    ties = 1.0 - (tied**3 - tied).sum() / (total**3 - total)
    if len(distinct) < 2 or ties <= 0.0:
        return 1.0
    sums = np.bincount(member, w * (rank - 0.5 * (total + 1.0)))
    statistic = 12.0 / (total * (total + 1.0)) * (np.square(sums) / size).sum() / ties
    return float(special.chdtrc(len(names) - 1.0, statistic))


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


def _laplace_distance(mean: Floats, a: Floats, b: Floats) -> Floats:
    """Compute the mean of |mean + X - Y| for independent Laplace variables of scales a and b, without cancellation."""
    small, large = np.minimum(a, b), np.maximum(a, b)
    m = np.abs(mean)
    t = m * (small - large) / (small * large)  # at most 0
    slope = np.divide(np.expm1(t), t, out=np.ones_like(t), where=t != 0.0)
    polynomial = small * small + small * large + large * large + small * small * m / large * slope
    return np.asarray(m + np.exp(-m / large) * polynomial / (small + large))


def _detach(values: Values) -> npt.NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(unmask(values))


def _to_array(values: Values) -> npt.NDArray[np.generic]:
    array = _detach(values)
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


def _check_intervals(y: Values, low: Values, high: Values) -> tuple[Floats, Floats, Floats]:
    truth, below, above = _to_floats("y", y), _to_floats("low", low), _to_floats("high", high)
    _check_shapes(y=truth, low=below, high=above)
    if (below > above).any():
        raise DataError(f"{int((below > above).sum())} intervals have low above high; allowed are low <= high")
    return truth, below, above


def _check_mixture(y: Values, weight: Values, **parts: Values) -> tuple[Floats, Floats, Floats, Floats]:
    """Return targets, weights that broadcast to the components, centres and scales after checks."""
    truth, w = _to_floats("y", y), _to_floats("weight", weight)
    (first, mu), (second, sigma) = ((name, _to_floats(name, values)) for name, values in parts.items())
    _check_shapes(**{first: mu, second: sigma})
    _check_positive(second, sigma)
    _check_distribution("weight", np.moveaxis(w, 0, -1))
    if mu.shape != (len(w), *truth.shape) or w.shape not in (mu.shape[:1], mu.shape):
        raise DataError(
            f"weights of shape {w.shape} and components of shape {mu.shape} were given for targets of shape "
            f"{truth.shape}; allowed are weights (S,) or (S, *{truth.shape}) and components (S, *{truth.shape})"
        )
    return truth, w if w.shape == mu.shape else w.reshape(-1, *[1] * truth.ndim), mu, sigma


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
