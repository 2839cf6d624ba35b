r"""Weights of listed structures from rows that the networks were not fitted to: penalised stacking.

Let :math:`p_l(y_i)` be the density of row i under structure l (a depth, say), as a network predicts it that was not
fitted to that row, s_i how often the row counts, and p a prior over the structures. Their weights maximise

.. math:: F(q) = \sum_i s_i \log \sum_l q_l \, p_l(y_i) - \mathrm{KL}(q \,\|\, p) \quad \text{nats}

on the simplex. F is strictly concave: one maximum, inside, also where structures are equal (then q ∝ p among them).
Without rows it is the prior. It may keep several structures however many rows there are, if their mixture predicts
better than each. F is a score of prediction, no evidence.

With :math:`r_{il} = p_l(y_i) / \sum_k q_k p_k(y_i)` the gradient is :math:`g = \sum_i s_i r_i - \log(q/p)` up to a
constant, and minus the Hessian :math:`\sum_i s_i r_i r_i^\top + \mathrm{diag}(1/q)`. If d is the Newton step on the
simplex and u = d/q, masses move by

.. math:: q_l \leftarrow q_l \, \varphi(t u_l) / \text{sum}, \qquad
          \varphi(u) = 1 + u \;\text{ for } u \ge 0, \quad \max(e^u, 0.01) \;\text{ for } u < 0,

which is the Newton step to first order. Each mass goes at most 0.99 of its way to the border, so that a structure whose
mass tends to 0 does not shorten the step of the others. t is halved until F rises enough. As F is concave,
:math:`\max_l g_l - \sum_l q_l g_l` bounds the remaining gain; once it is at most 1e-8 nats, one last step is taken.

A structure whose density is not finite on some row gets weight 0: see :func:`usable`. Inputs may have any dtype and
device; results are float64 on the CPU.

References
----------
Y. Yao, A. Vehtari, D. Simpson and A. Gelman, "Using stacking to average Bayesian predictive distributions", Bayesian
Analysis 13, 2018.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.system.checks import positive, whole
from fathomless.system.errors import DataError

__all__ = [
    "StandardErrors",
    "fit_path",
    "marginal_gain",
    "poisson",
    "pseudo_bma",
    "refit",
    "standard_errors",
    "usable",
    "value",
]

_GAP = 1e-8  # remaining gain in nats at which the ascent has converged
_STEPS = 60  # Newton steps; typical tables take 4 to 20, and harder ones a start by continuation, see refit
_HALVINGS = 40  # of the step length
_LEAST = 1e-16  # smallest mass: its effect on F, for as many rows as fit in memory, is below the gap
_EVEN = 1e-3  # share of uniform masses in a start: a mass grows slowly from 0 but falls quickly to it
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_CHUNK = 2_000_000  # numbers in an array of bootstrap weights: 16 MB

Array = npt.NDArray[np.float64]  # the solver is NumPy's: at ten structures three times as fast as with tensors


class _Table(NamedTuple):
    """Inputs restricted to the K of L structures that can have weight."""

    kept: Tensor  # (L,) bool
    log_p: Tensor  # (N, K) log densities minus the largest of the row
    top: Tensor  # (N,) the largest
    log_prior: Tensor  # (K,) as given
    weight: Tensor  # (N,)

    @property
    def p(self) -> Array:
        """Densities divided by the largest of the row, (K, N)."""
        p: Array = np.exp(np.ascontiguousarray(self.log_p.numpy().T))
        return p

    def spread(self, masses: Tensor) -> Tensor:
        """Return values of all structures, with 0 for those that were dropped, (K,) to (L,)."""
        return torch.zeros(len(self.kept), dtype=torch.float64, device="cpu").masked_scatter(self.kept, masses)


@dataclass(frozen=True)
class StandardErrors:
    """Standard errors of the weights of structures.

    Attributes
    ----------
    weights : float64 Tensor, shape (L,)
        Standard error of each weight.
    mean : float
        Standard error of the mean Σ q_l numbers_l.
    """

    weights: Tensor
    mean: float


def usable(log_density: Tensor) -> Tensor:
    """Return a mask, bool (L,), of the structures whose log densities (N, L) are finite on all rows.

    Examples
    --------
    >>> usable(torch.tensor([[-1.0, -2.0], [-0.5, -torch.inf]])).tolist()
    [True, False]
    """
    return log_density.isfinite().all(0).cpu()


def refit(
    log_density: Tensor, log_prior: Tensor, weight: Tensor | None = None, *, start: Tensor | None = None
) -> Tensor:
    """Return the weights of structures that maximise F (see the module).

    Parameters
    ----------
    log_density : Tensor, shape (N, L)
        Log predictive density of each row under each structure, in nats, by networks that were not fitted to the row.
        A constant added to a row does not matter.
    log_prior : Tensor, shape (L,)
        Log prior in nats, normalised or not; −∞ excludes a structure.
    weight : Tensor, shape (N,), optional
        Sample weights.
    start : Tensor, shape (L,), optional
        Masses near which the maximum is expected. They affect the computing time, and the result up to rounding.

    Returns
    -------
    float64 Tensor, shape (L,)
        q, which sums to 1; exactly 0 for structures that are excluded or not :func:`usable`. The values of masses below
        1e-12 are not accurate.

    Raises
    ------
    DataError
        If shapes do not agree, a prior is NaN or +∞, a weight is negative or not finite, or no structure remains.

    Examples
    --------
    >>> refit(torch.tensor([[-0.4, -0.2]] * 20), torch.zeros(2))
    tensor([0.0255, 0.9745], dtype=torch.float64)
    """
    table = _make_table(log_density, log_prior, weight)
    near = None if start is None else _check_vector("start", start, len(table.kept))[table.kept]
    if not float(table.weight.sum()):
        return table.spread(table.log_prior.softmax(0))
    w = table.weight[None]
    q, converged = _ascend(table, w, _interior_start(near, table), _STEPS)
    if not converged:
        # large sample weights and nearly equal structures make F steep in some directions and flat in others. The
        # weights are therefore scaled down to a total of 100 and raised step by step, each maximum starting the next
        q = _interior_start(None, table)
        total = float(w.sum())
        scaled = 100.0
        while scaled < total:
            q, _ = _ascend(table, w * (scaled / total), q, 6)
            scaled *= 30.0
        q, _ = _ascend(table, w, q, 5 * _STEPS)
    return table.spread(q[0])


def value(q: Tensor, log_density: Tensor, log_prior: Tensor, weight: Tensor | None = None) -> float:
    """Return F(q) in nats for masses q (L,), with 0 log 0 = 0; other parameters and errors as in :func:`refit`.

    The prior is not normalised: F under an unnormalised prior is higher by the log of its sum. Structures without mass
    may have any density.
    """
    density, prior, s = (t.numpy() for t in _check_inputs(log_density, log_prior, weight))
    mass: Array = _check_vector("q", q, len(prior)).numpy()
    positive_mass = mass > 0.0
    density, mass, prior = density[:, positive_mass], mass[positive_mass], prior[positive_mass]
    joint = (density + np.log(mass))[s > 0.0]
    top = joint.max(1, initial=np.finfo(np.float64).min)
    with np.errstate(divide="ignore"):
        mixture = np.log(np.exp(joint - top[:, None]).sum(1)) + top  # in logs
    return float(s[s > 0.0] @ mixture - mass @ (np.log(mass) - prior))


def marginal_gain(log_density: Tensor, log_prior: Tensor, weight: Tensor | None, shorter: int) -> tuple[float, float]:
    """Return the gain in max F from the structures after the first `shorter`, in nats, with its standard error.

    Both maxima have the same prior, which is not normalised again: the cost of the additional structures is their prior
    mass alone. The gain is not negative, and infinite if no structure of the shorter list can have weight. `shorter` is
    between 1 and L; other parameters and errors as in :func:`refit`.

    Returns
    -------
    gain : float
        In nats.
    error : float
        Its standard error: the square root of the sum, over rows, of the squared deviations of the differences between
        the two mixtures' log densities from their mean.
    """
    table = _make_table(log_density, log_prior, weight)
    if whole("shorter", shorter) > len(table.kept):
        raise DataError(f"shorter={shorter} was given; at most {len(table.kept)} is allowed, the number of structures")
    if not bool(table.kept[:shorter].any()):
        return math.inf, 0.0
    q = refit(log_density, log_prior, weight)
    short_list = (log_density[:, :shorter], log_prior[:shorter], weight)
    p = refit(*short_list, start=q[:shorter])
    gain = value(q, log_density, log_prior, weight) - value(p, *short_list)
    both = torch.stack([q, torch.cat([p, q.new_zeros(len(q) - shorter)])])[:, table.kept]
    longer, short = torch.logsumexp(table.log_p + both[:, None].log(), 2)  # (2, N) log densities of the mixtures
    difference = longer - short
    s = table.weight
    mean = (s @ difference) / s.sum().clamp(min=1e-300)
    return max(0.0, gain), float((s @ (difference - mean).square()).sqrt())


def pseudo_bma(
    log_density: Tensor, log_prior: Tensor, weight: Tensor | None = None, *, seed: int = 0, bootstraps: int = 1000
) -> Tensor:
    r"""Return pseudo-BMA+ weights, by the predictions of each structure alone rather than of their mixture.

    They are :math:`q_l \propto p_l \exp \sum_i w_i \log p_l(y_i)` averaged over Bayesian bootstraps
    w ~ N Dirichlet(1), or Σs Dirichlet(s) with sample weights s. Without the bootstrap, one of two equal structures
    would get nearly all weight by chance. Parameters, shapes and errors as in :func:`refit`; `seed` is that
    of the bootstrap.
    """
    table = _make_table(log_density, log_prior, weight)
    drawn = _bootstraps(table.weight, None, seed, whole("bootstraps", bootstraps))
    return table.spread(torch.cat([(w @ table.log_p + table.log_prior).softmax(1) for w in drawn]).mean(0))


def standard_errors(
    q: Tensor,
    log_density: Tensor,
    log_prior: Tensor,
    weight: Tensor | None = None,
    *,
    fold: Tensor | None = None,
    group: Tensor | None = None,
    numbers: Tensor | None = None,
    seed: int = 0,
    bootstraps: int = 200,
) -> StandardErrors:
    r"""Return standard errors of fitted weights: the larger of a bootstrap over rows and a jackknife over folds.

    Each Bayesian bootstrap takes two Newton steps from q. The jackknife is
    :math:`\sqrt{(K - 1)/K \sum_k (\theta_{(k)} - \bar\theta)^2}` over refits without the rows of fold k. Networks of
    different folds share rows, so no unbiased standard error exists. Without rows the errors are 0.

    Parameters
    ----------
    q : Tensor, shape (L,)
        Result of :func:`refit` for the same rows.
    log_density, log_prior, weight
        As in :func:`refit`, as are errors.
    fold : integer Tensor, shape (N,), optional
        Fold of each row, which identifies the network that gave its densities. With a single fold there is no
        jackknife.
    group : integer Tensor, shape (N,), optional
        Group of each row. The rows of a group share one bootstrap factor, which multiplies their weights.
    numbers : Tensor, shape (L,), optional
        Numerical value of each structure, for the mean; its index in the list by default.
    seed, bootstraps : int
        Seed and number (at least 2) of the bootstraps.
    """
    table = _make_table(log_density, log_prior, weight)
    N, L = log_density.shape
    if numbers is None:
        positions = torch.arange(L, dtype=torch.float64, device="cpu")
    else:
        positions = _check_vector("numbers", numbers, L)
    positions = positions[table.kept]
    near = _interior_start(_check_vector("q", q, L)[table.kept], table, even=_LEAST)
    folds, groups = (None if labels is None else _relabel(labels, N) for labels in (fold, group))
    drawn = _bootstraps(table.weight, groups, seed, whole("bootstraps", bootstraps, least=2))
    theta = torch.cat([_ascend(table, w, near.expand(len(w), -1), 2)[0] for w in drawn])  # (bootstraps, K)
    errors = torch.cat([theta.std(0), (theta @ positions).std(0, keepdim=True)])
    if folds is not None and N and (count := int(folds.max()) + 1) > 1:
        rest = table.weight * (folds != torch.arange(count, device="cpu")[:, None])  # (folds, N)
        theta, _ = _ascend(table, rest, _interior_start(near[0], table).expand(count, -1), _STEPS)
        spread = torch.cat([theta.std(0), (theta @ positions).std(0, keepdim=True)])
        errors = torch.maximum(errors, (count - 1) / math.sqrt(count) * spread)
    return StandardErrors(table.spread(errors[:-1]), float(errors[-1]))


def fit_path(
    log_density: Tensor,
    log_prior: Tensor,
    weight: Tensor | None,
    law: Callable[[float], Tensor],
    low: float,
    high: float,
    points: int = 60,
) -> tuple[float, Tensor, float]:
    """Fit a law with one positive parameter: maximise F over a grid of its logarithm, then by golden section.

    F need not be concave in the parameter. Of several maxima, the result is the one around the highest grid point.

    Parameters
    ----------
    log_density, log_prior, weight
        As in :func:`refit`, as are errors.
    law : callable
        Parameter to masses, shape (L,). They are renormalised over the structures that can have weight.
    low, high : float
        Smallest and largest parameter, 0 < low <= high.
    points : int
        Number of grid points, at least 2.

    Returns
    -------
    rate : float
        Parameter that maximises F.
    q : float64 Tensor, shape (L,)
        Masses of the law with this parameter.
    F : float
        F(q) in nats, as returned by :func:`value`.

    Raises
    ------
    DataError
        Also if the law has no mass on usable structures for any parameter.
    """
    table = _make_table(log_density, log_prior, weight)
    if positive("low", low) > positive("high", high):
        raise DataError(f"a path was given from {low:g} to {high:g}; low <= high is needed")
    s = table.weight.numpy()
    prior = table.log_prior.numpy()
    constant = float(table.weight @ table.top)  # the largest density of each row was divided out
    p, s = table.p[:, s > 0.0], s[s > 0.0]

    def rate(at: float) -> float:
        return min(max(math.exp(at), low), high)

    def masses(at: float) -> Tensor:
        mass = _check_vector("law", law(rate(at)), len(table.kept))[table.kept]
        return mass / mass.sum()

    def score(at: float) -> float:
        mass: Array = masses(at).numpy()
        used = mass > 0.0
        with np.errstate(divide="ignore"):
            fit = s @ np.log(mass @ p) + constant
        objective = float(fit - mass[used] @ (np.log(mass[used]) - prior[used]))
        return -math.inf if math.isnan(objective) else objective  # NaN if the law has no mass on any usable structure

    grid = torch.linspace(
        math.log(low), math.log(high), whole("points", points, least=2), dtype=torch.float64, device="cpu"
    ).tolist()
    scores = [score(at) for at in grid]
    top = scores.index(max(scores))
    left, right = grid[max(top - 1, 0)], grid[min(top + 1, len(grid) - 1)]
    tried = [(scores[top], grid[top])]
    for _ in range(30):  # to 1e-6 of the bracket, where F is level to rounding
        inner, outer = right - _GOLDEN * (right - left), left + _GOLDEN * (right - left)
        tried += [(score(inner), inner), (score(outer), outer)]
        left, right = (left, outer) if tried[-2][0] >= tried[-1][0] else (inner, right)
    best, at = max(tried)
    if best == -math.inf:
        raise DataError("the law has no mass on structures that predict the data; another law or range is needed")
    return rate(at), table.spread(masses(at)), best


def poisson(log_density: Tensor, log_prior: Tensor, weight: Tensor | None = None) -> tuple[float, Tensor, float]:
    """Fit a Poisson law truncated to 0, …, L − 1, with λ between 1e-3 and 3 L.

    Parameters and errors as in :func:`refit`. Returns λ (the mean without truncation), q and F as :func:`fit_path`.
    """
    offset = torch.arange(log_prior.numel(), dtype=torch.float64, device="cpu")
    log_factorial = torch.lgamma(offset + 1.0)

    def law(rate: float) -> Tensor:
        return (offset * math.log(rate) - log_factorial).softmax(0)

    return fit_path(log_density, log_prior, weight, law, 1e-3, 3.0 * max(len(offset), 1))


def _check_inputs(log_density: Tensor, log_prior: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Check log densities (N, L), the log prior (L,) and sample weights (N,); return them in float64."""
    if log_density.ndim != 2:
        raise DataError(f"log_density has shape {tuple(log_density.shape)}; (N, L), rows by structures, is needed")
    N, L = log_density.shape
    prior = _check_vector("log_prior", log_prior, L)
    if bool((prior.isnan() | (prior == math.inf)).any()):
        raise DataError("log_prior holds NaN or +inf; finite numbers are allowed, and -inf to exclude a structure")
    s = torch.ones(N, dtype=torch.float64, device="cpu") if weight is None else _check_vector("weight", weight, N)
    if not bool(s.isfinite().all() and (s >= 0.0).all()):
        raise DataError("weight holds a number that is negative or not finite; finite weights of 0 or more are allowed")
    return log_density.detach().to("cpu", torch.float64), prior, s


def _check_vector(name: str, vector: Tensor, size: int) -> Tensor:
    """Check the shape of a vector; return it in float64 on the CPU."""
    if vector.shape != (size,):
        raise DataError(f"{name} has shape {tuple(vector.shape)}; ({size},) is needed")
    return vector.detach().to("cpu", torch.float64)


def _relabel(labels: Tensor, size: int) -> Tensor:
    """Return labels of folds or groups as consecutive integers from 0."""
    if labels.shape != (size,):
        raise DataError(f"numbers of folds or groups have shape {tuple(labels.shape)}; ({size},) is needed")
    consecutive: Tensor = torch.unique(labels.detach().cpu(), return_inverse=True)[1]
    return consecutive


def _make_table(log_density: Tensor, log_prior: Tensor, weight: Tensor | None) -> _Table:
    """Check the inputs and drop the structures that cannot have weight."""
    density, prior, s = _check_inputs(log_density, log_prior, weight)
    kept = usable(density) & (prior > -math.inf)
    if not bool(kept.any()):
        raise DataError(
            f"none of {len(kept)} structures can have weight; at least one needs a finite density on every row and a "
            "finite log prior"
        )
    if not bool(kept.all()):
        density, prior = density[:, kept], prior[kept]
    top = density.amax(1)
    return _Table(kept, density - top[:, None], top, prior, s)


def _interior_start(near: Tensor | None, table: _Table, even: float = _EVEN) -> Tensor:
    """Return a start inside the simplex, (1, K): given masses of the kept structures mixed with uniform ones."""
    start = torch.full((1, len(table.log_prior)), 1.0 / len(table.log_prior), dtype=torch.float64, device="cpu")
    if near is None or not float(near.sum()):
        return start
    if not bool(near.isfinite().all() and (near >= 0.0).all()):
        raise DataError("a mass to start from is negative or not finite; masses of 0 or more are allowed")
    return (1.0 - even) * near / near.sum() + even * start


def _ascend(table: _Table, weight: Tensor, start: Tensor, steps: int) -> tuple[Tensor, bool]:
    """Take Newton steps on F for a batch of B sample weights: weight (B, N), start (B, K) to q (B, K).

    The second result is True if all have converged.
    """
    p = table.p
    log_prior = table.log_prior.numpy()
    s, q = weight.numpy(), start.numpy()
    mixture = q @ p  # (B, N)
    enough = _GAP + 1e-14 * s.sum(1)  # the second term is the rounding error of a sum over many rows
    for _ in range(steps):
        slope = (s / mixture) @ p.T - np.log(q) + log_prior  # (B, K)
        slope -= (q * slope).sum(1, keepdims=True)
        curvature = np.stack([(r := p * v) @ r.T for v in np.sqrt(s) / mixture])  # Σ s_i r_i r_iᵀ
        u = _newton(curvature, slope, q)
        q, mixture = _line_search(p, s, log_prior, q, mixture, u, slope)
        if (slope.max(1) <= enough).all():
            return torch.as_tensor(q, device="cpu"), True
    return torch.as_tensor(q, device="cpu"), False


def _newton(curvature: Array, slope: Array, q: Array) -> Array:
    """Return u of the Newton step d = q u: (curvature + diag(1/q)) d = slope − λ, Σ d = 0. Shapes (B, K) and (B, K, K).

    Scaled by √q on both sides, the matrix has no eigenvalue below 1, however small a mass is. u is computed not as d/q
    but as slope − λ − curvature d, which is accurate also for tiny q and moves such a mass to its maximum in one step.
    """
    root = np.where((q <= _LEAST) & (slope < 0.0), 0.0, np.sqrt(q))  # masses at the floor do not move further down
    scaled = root[:, :, None] * curvature * root[:, None, :] + np.eye(q.shape[1])
    x = np.linalg.solve(scaled, np.stack([root * slope, root], 2))  # (B, K, 2)
    level = (root * x[:, :, 0]).sum(1, keepdims=True) / (root * x[:, :, 1]).sum(1, keepdims=True)
    d = root * (x[:, :, 0] - level * x[:, :, 1])
    u: Array = slope - level - (curvature @ d[:, :, None])[:, :, 0]
    return u


def _line_search(
    p: Array, s: Array, log_prior: Array, q: Array, mixture: Array, u: Array, slope: Array
) -> tuple[Array, Array]:
    """Halve the step along u until F rises by a share of the first-order prediction (Armijo's rule).

    Batch elements for which no such step is found do not move. The gain is a sum of differences over rows, exact to
    about 1e-15 of the sum of weights.
    """
    slack = 1e-12 + 1e-15 * s.sum(1)
    before = (q * (np.log(q) - log_prior)).sum(1)
    t = np.ones(len(q))
    for _ in range(_HALVINGS):
        step = t[:, None] * u
        moved = q * np.where(step < 0.0, np.exp(np.clip(step, math.log(0.01), 0.0)), 1.0 + step)
        moved = np.maximum(moved / moved.sum(1, keepdims=True), _LEAST)
        mixed = moved @ p
        after = (moved * (np.log(moved) - log_prior)).sum(1)
        good = (s * np.log(mixed / mixture)).sum(1) - after + before >= 1e-4 * (slope * (moved - q)).sum(1) - slack
        if good.all():
            return moved, mixed
        t = np.where(good, t, 0.5 * t)
    return np.where(good[:, None], moved, q), np.where(good[:, None], mixed, mixture)


def _bootstraps(weight: Tensor, group: Tensor | None, seed: int, count: int) -> Iterator[Tensor]:
    """Yield bootstrap weights (b, N) with the sum of s: ~ Gamma(s_i), or s_i times one ~ Gamma(1) per group."""
    rng = np.random.default_rng(seed)
    shape = weight if group is None else torch.ones(len(group.unique()), dtype=torch.float64, device="cpu")
    size = max(1, _CHUNK // max(len(weight), 1))
    for first in range(0, count, size):
        drawn = torch.as_tensor(rng.standard_gamma(shape.numpy(), (min(size, count - first), len(shape))), device="cpu")
        w = drawn if group is None else weight * drawn[:, group]
        total = w.sum(1, keepdim=True)
        yield torch.where(total > 0.0, w * (weight.sum() / total), weight)
