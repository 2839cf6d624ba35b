r"""Gaussian kernel density estimates, and the Hellinger distance between samples based on two of them.

.. math:: H^2(p, q) = 1 - \int \sqrt{p q}

Published tables of such distances state neither bandwidths nor sample sizes. Bandwidths depend on the sample size, so
only samples of equal size are compared, and a method is judged by the ratio of its distance to that of two samples of
the same law.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fathomless.system.checks import choice, whole
from fathomless.system.errors import DataError

__all__ = ["RULES", "HellingerDistance", "KernelDensity", "hellinger_samples"]

Floats = npt.NDArray[np.float64]

#: Rules for the covariance of a kernel.
RULES = ("lcv", "scott", "silverman", "silverman_diagonal")
_MOST = 700  # points that a bandwidth is computed from
_BANDWIDTHS = np.geomspace(0.02, 1.5, 60)
_AT_ONCE = 4_000_000  # pairs


@dataclass(frozen=True, eq=False)
class KernelDensity:
    """Mixture of equal Gaussians, one around each point.

    Attributes
    ----------
    points : ndarray, shape (N, D)
        The points.
    root : ndarray, shape (D, D)
        Lower Cholesky factor of the covariance of the kernel.

    Examples
    --------
    >>> KernelDensity.of(np.array([[0.0], [1.0], [3.0]]), "scott").log_prob(np.zeros((1, 1))).round(3)
    array([-1.652])
    """

    points: Floats
    root: Floats

    @classmethod
    def of(cls, x: npt.ArrayLike, rule: str = "lcv", *, seed: int = 0) -> "KernelDensity":
        """Choose the covariance of the kernel.

        Parameters
        ----------
        x : array_like, shape (N, D)
            Points; constant columns are not allowed.
        rule : {"lcv", "scott", "silverman", "silverman_diagonal"}
            "lcv": the multiple h of the standard deviations, one of 60 values from 0.02 to 1.5, that maximises the
            leave-one-out likelihood. At most 700 points are used; for n > 700 points the result is
            h (n / 700)^(-1 / (D + 4)). "scott", "silverman": the covariance times n^(-2/(D+4)) or
            (n (D + 2) / 4)^(-2/(D+4)). "silverman_diagonal": the same with the diagonal of the covariance.
        seed : int
            Seed of the choice of 700 points.
        """
        points = _points("x", x)
        n, d = points.shape
        if n < 2:
            raise DataError("one point was given; at least two are needed for the bandwidth of a kernel")
        spread = points.std(0, ddof=1)
        if (spread == 0.0).any():
            raise DataError(f"column {int(np.argmin(spread))} is constant; drop it, a constant column has no density")
        match choice("rule", rule, RULES):
            case "lcv":
                root = np.diag(_bandwidth(points / spread, seed) * spread)
            case "scott":
                root = _factor(points) * n ** (-1 / (d + 4))
            case "silverman":
                root = _factor(points) * (n * (d + 2) / 4) ** (-1 / (d + 4))
            case _:
                root = np.diag(spread) * (n * (d + 2) / 4) ** (-1 / (d + 4))
        return cls(points, root)

    def log_prob(self, x: npt.ArrayLike) -> Floats:
        """Return the log density of rows in nats, shape (M,)."""
        inverse = np.asarray(np.linalg.inv(self.root).T, dtype=np.float64)
        centres, z = self.points @ inverse, _points("x", x) @ inverse
        constant = -0.5 * self.points.shape[1] * math.log(2 * math.pi) - float(np.log(np.diag(self.root)).sum())
        block = max(1, _AT_ONCE // len(centres))
        parts = [_log_mean(-0.5 * _squares(z[i : i + block], centres)) for i in range(0, len(z), block)]
        return np.asarray(np.concatenate(parts) + constant)

    def sample(self, n: int, generator: np.random.Generator) -> Floats:
        """Draw rows, shape (n, D)."""
        chosen = self.points[generator.integers(len(self.points), size=n)]
        return np.asarray(chosen + generator.standard_normal(chosen.shape) @ self.root.T)


@dataclass(frozen=True)
class HellingerDistance:
    """Estimate of a Hellinger distance.

    Attributes
    ----------
    square, distance : float
        H² and H, from 0 to 1.
    error : float
        Monte Carlo error of H²; it covers the integral only.
    rule, points, sizes
        Rule of the kernels, number of points that were drawn, and sizes of the samples.
    """

    square: float
    distance: float
    error: float
    rule: str
    points: int
    sizes: tuple[int, int]


def hellinger_samples(
    x: npt.ArrayLike, y: npt.ArrayLike, *, rule: str = "lcv", points: int = 5000, seed: int = 0
) -> HellingerDistance:
    r"""Estimate the Hellinger distance between the laws of two samples by a kernel density estimate of each.

    With half of the points drawn from each estimate,

    .. math:: \int \sqrt{p q} = E\, \mathrm{sech}\big(\tfrac12 (\log p - \log q)\big),

    whose terms lie between 0 and 1.

    Parameters
    ----------
    x, y : array_like, shape (N, D) and (M, D)
        Samples, preferably of equal size, with columns on comparable scales.
    rule : str
        As for :meth:`KernelDensity.of`.
    points : int
        Number of points to draw.
    seed : int
        Seed of the points.

    Examples
    --------
    >>> x = np.random.default_rng(0).normal(size=(200, 2))
    >>> hellinger_samples(x, x).square
    0.0
    """
    left, right = (KernelDensity.of(sample, rule, seed=seed) for sample in (x, y))
    if left.points.shape[1] != right.points.shape[1]:
        raise DataError(f"samples of {left.points.shape[1]} and {right.points.shape[1]} columns were given")
    generator = np.random.default_rng(seed)
    half = whole("points", points, least=2) // 2
    drawn = np.concatenate([left.sample(half, generator), right.sample(half, generator)])
    terms = 1 / np.cosh(np.clip(0.5 * (left.log_prob(drawn) - right.log_prob(drawn)), -300.0, 300.0))
    square = max(0.0, 1.0 - float(terms.mean()))
    error = float(terms.std()) / math.sqrt(2 * half)
    return HellingerDistance(square, math.sqrt(square), error, rule, 2 * half, (len(left.points), len(right.points)))


def _bandwidth(points: Floats, seed: int) -> float:
    """Return the multiple h that maximises the leave-one-out likelihood."""
    n, d = points.shape
    chosen = points if n <= _MOST else points[np.random.default_rng(seed).permutation(n)[:_MOST]]
    squares = _squares(chosen, chosen)
    np.fill_diagonal(squares, np.inf)
    scores = [float(_log_mean(-0.5 * squares / h**2).mean()) - d * math.log(h) for h in _BANDWIDTHS]
    return float(_BANDWIDTHS[int(np.argmax(scores))] * (n / len(chosen)) ** (-1 / (d + 4)))


def _squares(x: Floats, y: Floats) -> Floats:
    """Return squared distances, shape (N, M)."""
    middle = y.mean(0)  # centred, because far from 0 the differences of products cancel
    x, y = x - middle, y - middle
    square = (x**2).sum(1)[:, None] + (y**2).sum(1) - 2 * x @ y.T
    return np.asarray(np.maximum(square, 0.0))


def _log_mean(logs: Floats) -> Floats:
    """Return the log of the mean over the last axis."""
    top = logs.max(1, keepdims=True)
    with np.errstate(under="ignore"):
        return np.asarray(np.log(np.exp(logs - top).mean(1)) + top[:, 0])


def _factor(points: Floats) -> Floats:
    return np.asarray(np.linalg.cholesky(np.atleast_2d(np.cov(points.T))))


def _points(name: str, x: npt.ArrayLike) -> Floats:
    points = np.asarray(x, dtype=np.float64)
    if points.ndim != 2 or not len(points) or not np.isfinite(points).all():
        raise DataError(f"{name} has shape {points.shape}; finite numbers, (points, columns), are needed")
    return points
