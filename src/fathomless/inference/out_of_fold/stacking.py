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

which is the Newton step to first order: each structure goes at most 0.99 of its way to the border, and no hopeless one
holds the others back. t is halved until F rises enough. As F is concave, :math:`\max_l g_l - \sum_l q_l g_l` bounds
what is left to gain; where it is at most 1e-8 nats, one more step is taken, the last.

A structure with a density that is not finite on any row is left out, with weight 0: see :func:`usable`. Tensors of any
dtype and device are taken, float64 on the CPU is returned.

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

_GAP = 1e-8  # nats that may be left to gain
_STEPS = 60  # tables take 4 to 20; what needs more is reached another way
_HALVINGS = 40
_LEAST = 1e-16  # of a mass: what it hides, times as many rows as fit in memory, is below the gap
_EVEN = 1e-3  # share of even masses in a start: a mass grows slowly from 0 and falls quickly to it
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_CHUNK = 2_000_000  # numbers in an array of bootstrap weights: 16 MB

Array = npt.NDArray[np.float64]  # the solver is NumPy's: at ten structures three times as fast as with tensors


class _Table(NamedTuple):
    """What is weighed, without the structures that cannot be: K of L are kept."""

    kept: Tensor  # (L,) bool
    log_p: Tensor  # (N, K) log densities less the largest of the row
    top: Tensor  # (N,) the largest
    log_prior: Tensor  # (K,) as given
    weight: Tensor  # (N,)

    @property
    def p(self) -> Array:
        """Densities over the largest of the row, (K, N)."""
        p: Array = np.exp(np.ascontiguousarray(self.log_p.numpy().T))
        return p

    def spread(self, masses: Tensor) -> Tensor:
        """Put numbers of the kept structures among zeros, (K,) to (L,)."""
        return torch.zeros(len(self.kept), dtype=torch.float64, device="cpu").masked_scatter(self.kept, masses)


@dataclass(frozen=True)
class StandardErrors:
    """Standard errors of the weights of structures.

    Attributes
    ----------
    weights : float64 Tensor, shape (L,)
        Of each weight.
    mean : float
        Of the mean Σ q_l numbers_l.
    """

    weights: Tensor
    mean: float


def usable(log_density: Tensor) -> Tensor:
    """Return which structures can be weighed, bool (L,): their log densities (N, L) are finite on all rows.

    Examples
    --------
    >>> usable(torch.tensor([[-1.0, -2.0], [-0.5, -torch.inf]])).tolist()
    [True, False]
    """
    return log_density.isfinite().all(0).cpu()


def refit(
    log_density: Tensor, log_prior: Tensor, weight: Tensor | None = None, *, start: Tensor | None = None
) -> Tensor:
    """Return the weights of structures that maximise F, see the module.

    Parameters
    ----------
    log_density : Tensor, shape (N, L)
        Log predictive density of each row under each structure, in nats, by networks that were not fitted to the row.
        Constants of rows do not matter.
    log_prior : Tensor, shape (L,)
        Log prior in nats, normalised or not; −∞ excludes a structure.
    weight : Tensor, shape (N,), optional
        How often each row counts.
    start : Tensor, shape (L,), optional
        Masses near which the maximum is expected. They change the time that it takes, and the result by rounding.

    Returns
    -------
    float64 Tensor, shape (L,)
        q, which sums to 1; exactly 0 for structures that are excluded or not :func:`usable`. Masses below 1e-12 are
        small, no more is known of them.

    Raises
    ------
    DataError
        If shapes do not agree, a prior is NaN or +∞, a weight is negative or not finite, or no structure is left.

    Examples
    --------
    >>> refit(torch.tensor([[-0.4, -0.2]] * 20), torch.zeros(2))
    tensor([0.0255, 0.9745], dtype=torch.float64)
    """
    table = _table(log_density, log_prior, weight)
    near = None if start is None else _vector("start", start, len(table.kept))[table.kept]
    if not float(table.weight.sum()):
        return table.spread(table.log_prior.softmax(0))
    w = table.weight[None]
    q, found = _ascend(table, w, _inside(near, table), _STEPS)
    if not found:  # rows that count a million times, and neighbours that stand in for each other
        q, few, total = _inside(None, table), 100.0, float(w.sum())
        while few < total:
            q, few = _ascend(table, w * (few / total), q, 6)[0], 30.0 * few
        q, _ = _ascend(table, w, q, 5 * _STEPS)
    return table.spread(q[0])


def value(q: Tensor, log_density: Tensor, log_prior: Tensor, weight: Tensor | None = None) -> float:
    """Return F(q) in nats for masses q (L,), with 0 log 0 = 0; the rest and errors as in :func:`refit`.

    The prior counts as it is given: F under one that is not normalised is higher by the log of its sum. Structures
    without mass may have any density.
    """
    density, prior, s = (t.numpy() for t in _given(log_density, log_prior, weight))
    mass: Array = _vector("q", q, len(prior)).numpy()
    held = mass > 0.0
    joint = (density[:, held] + np.log(mass[held]))[s > 0.0]
    top = joint.max(1, initial=np.finfo(np.float64).min)
    with np.errstate(divide="ignore"):
        mixture = np.log(np.exp(joint - top[:, None]).sum(1)) + top  # in logs
    return float(s[s > 0.0] @ mixture - mass[held] @ (np.log(mass[held]) - prior[held]))


def marginal_gain(log_density: Tensor, log_prior: Tensor, weight: Tensor | None, shorter: int) -> tuple[float, float]:
    """Return what the structures beyond the first `shorter` add: max F over all less max F over those, in nats.

    Both have the same prior, not normalised again, so that the structures beyond pay for their place with their prior
    mass alone. The result is not negative, and infinite if no structure of the shorter list can be weighed. The rest
    and errors as in :func:`refit`; `shorter` is between 1 and L.

    Returns
    -------
    gain : float
        In nats.
    error : float
        Its standard error: the square root of the sum, over rows, of the squared deviations of the differences between
        the two mixtures' log densities from their mean.
    """
    table = _table(log_density, log_prior, weight)
    if whole("shorter", shorter) > len(table.kept):
        raise DataError(f"shorter={shorter} was given; at most {len(table.kept)} is allowed, the number of structures")
    if not bool(table.kept[:shorter].any()):
        return math.inf, 0.0
    q = refit(log_density, log_prior, weight)
    near = (log_density[:, :shorter], log_prior[:shorter], weight)
    p = refit(*near, start=q[:shorter])
    gain = value(q, log_density, log_prior, weight) - value(p, *near)
    both = torch.stack([q, torch.cat([p, q.new_zeros(len(q) - shorter)])])[:, table.kept]
    longer, short = torch.logsumexp(table.log_p + both[:, None].log(), 2)  # (2, N) log densities of the mixtures
    rows, s = longer - short, table.weight
    mean = (s @ rows) / s.sum().clamp(min=1e-300)
    return max(0.0, gain), float((s @ (rows - mean).square()).sqrt())


def pseudo_bma(
    log_density: Tensor, log_prior: Tensor, weight: Tensor | None = None, *, seed: int = 0, bootstraps: int = 1000
) -> Tensor:
    r"""Return weights by how well each structure predicts alone, where :func:`refit` asks for the best mixture.

    This is pseudo-BMA+, :math:`q_l \propto p_l \exp \sum_i w_i \log p_l(y_i)` averaged over Bayesian bootstraps
    w ~ N Dirichlet(1), or Σs Dirichlet(s) with weights of rows. Without the bootstrap it would be sure of one of two
    equal structures by chance. Parameters, shapes and errors as in :func:`refit`; `seed` is of the bootstrap.
    """
    table = _table(log_density, log_prior, weight)
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
    r"""Return standard errors of fitted weights: by bootstraps of rows, and by leaving out folds, whichever is larger.

    Each Bayesian bootstrap takes two Newton steps from q. The jackknife is
    :math:`\sqrt{(K - 1)/K \sum_k (\theta_{(k)} - \bar\theta)^2}` over refits without the rows of fold k. Networks of
    different folds share rows, so no unbiased standard error exists. Without rows the errors are 0.

    Parameters
    ----------
    q : Tensor, shape (L,)
        What :func:`refit` returned for the same rows.
    log_density, log_prior, weight
        As in :func:`refit`, as are errors.
    fold : integer Tensor, shape (N,), optional
        Fold of each row, which stands for the network that gave its densities. One fold alone tells nothing.
    group : integer Tensor, shape (N,), optional
        Rows with equal numbers are drawn together, by one factor that multiplies their weights.
    numbers : Tensor, shape (L,), optional
        Number that each structure stands for; its place in the list if not given.
    seed, bootstraps : int
        Seed and number (at least 2) of the bootstraps.
    """
    table = _table(log_density, log_prior, weight)
    N, L = log_density.shape
    at = (torch.arange(L, dtype=torch.float64, device="cpu") if numbers is None else _vector("numbers", numbers, L))[
        table.kept
    ]
    near = _inside(_vector("q", q, L)[table.kept], table, even=_LEAST)
    folds, groups = (None if given is None else _labels(given, N) for given in (fold, group))
    drawn = _bootstraps(table.weight, groups, seed, whole("bootstraps", bootstraps, least=2))
    theta = torch.cat([_ascend(table, w, near.expand(len(w), -1), 2)[0] for w in drawn])  # (bootstraps, K)
    errors = torch.cat([theta.std(0), (theta @ at).std(0, keepdim=True)])
    if folds is not None and N and (count := int(folds.max()) + 1) > 1:
        rest = table.weight * (folds != torch.arange(count, device="cpu")[:, None])  # (folds, N)
        theta, _ = _ascend(table, rest, _inside(near[0], table).expand(count, -1), _STEPS)
        spread = torch.cat([theta.std(0), (theta @ at).std(0, keepdim=True)])
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
    """Fit a law with one positive parameter by F: a grid over its logarithm, then golden section around the best point.

    F is not concave along a path: of several maxima the one is found that is highest on the grid.

    Parameters
    ----------
    log_density, log_prior, weight
        As in :func:`refit`, as are errors.
    law : callable
        Parameter to masses, shape (L,). They are renormalised over the structures that can be weighed.
    low, high : float
        Least and largest parameter, 0 < low <= high.
    points : int
        Of the grid, at least 2.

    Returns
    -------
    rate : float
        The best parameter.
    q : float64 Tensor, shape (L,)
        Its masses.
    F : float
        Its value in nats, as :func:`value` gives it.

    Raises
    ------
    DataError
        Also if no parameter gives mass where the data need it.
    """
    table = _table(log_density, log_prior, weight)
    if positive("low", low) > positive("high", high):
        raise DataError(f"a path was given from {low:g} to {high:g}; low <= high is needed")
    p, s, prior = table.p, table.weight.numpy(), table.log_prior.numpy()
    counted, constant = s > 0.0, float(table.weight @ table.top)
    p, s = p[:, counted], s[counted]

    def rate(at: float) -> float:
        return min(max(math.exp(at), low), high)

    def masses(at: float) -> Tensor:
        mass = _vector("law", law(rate(at)), len(table.kept))[table.kept]
        return mass / mass.sum()

    def score(at: float) -> float:
        mass: Array = masses(at).numpy()
        held = mass > 0.0
        with np.errstate(divide="ignore"):
            fit = s @ np.log(mass @ p) + constant
        found = float(fit - mass[held] @ (np.log(mass[held]) - prior[held]))
        return -math.inf if math.isnan(found) else found  # a law without mass on any structure that is left

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
    """Fit a Poisson law on the offsets 0, …, L − 1, renormalised there, with λ between 1e-3 and 3 L.

    Parameters and errors as in :func:`refit`; returns λ (the mean before the cut), q and F as :func:`fit_path`.
    """
    offset = torch.arange(log_prior.numel(), dtype=torch.float64, device="cpu")
    log_factorial = torch.lgamma(offset + 1.0)

    def law(rate: float) -> Tensor:
        return (offset * math.log(rate) - log_factorial).softmax(0)

    return fit_path(log_density, log_prior, weight, law, 1e-3, 3.0 * max(len(offset), 1))


def _given(log_density: Tensor, log_prior: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Check log densities (N, L), the log prior (L,) and weights of rows (N,); return them in float64."""
    if log_density.ndim != 2:
        raise DataError(f"log_density has shape {tuple(log_density.shape)}; (N, L), rows by structures, is needed")
    N, L = log_density.shape
    prior = _vector("log_prior", log_prior, L)
    if bool((prior.isnan() | (prior == math.inf)).any()):
        raise DataError("log_prior holds NaN or +inf; finite numbers are allowed, and -inf to exclude a structure")
    s = torch.ones(N, dtype=torch.float64, device="cpu") if weight is None else _vector("weight", weight, N)
    if not bool(s.isfinite().all() and (s >= 0.0).all()):
        raise DataError("weight holds a number that is negative or not finite; finite weights of 0 or more are allowed")
    return log_density.detach().to("cpu", torch.float64), prior, s


def _vector(name: str, given: Tensor, size: int) -> Tensor:
    if given.shape != (size,):
        raise DataError(f"{name} has shape {tuple(given.shape)}; ({size},) is needed")
    return given.detach().to("cpu", torch.float64)


def _labels(given: Tensor, size: int) -> Tensor:
    """Return numbers from 0 for whatever numbers fold or group holds."""
    if given.shape != (size,):
        raise DataError(f"numbers of folds or groups have shape {tuple(given.shape)}; ({size},) is needed")
    labels: Tensor = torch.unique(given.detach().cpu(), return_inverse=True)[1]
    return labels


def _table(log_density: Tensor, log_prior: Tensor, weight: Tensor | None) -> _Table:
    density, prior, s = _given(log_density, log_prior, weight)
    kept = usable(density) & (prior > -math.inf)
    if not bool(kept.any()):
        raise DataError(
            f"none of {len(kept)} structures can be weighed; one is needed with a finite density on every row and a "
            "finite log prior"
        )
    if not bool(kept.all()):
        density, prior = density[:, kept], prior[kept]
    top = density.amax(1)
    return _Table(kept, density - top[:, None], top, prior, s)


def _inside(near: Tensor | None, table: _Table, even: float = _EVEN) -> Tensor:
    """Return a start inside the simplex, (1, K), near given masses of the kept structures."""
    start = torch.full((1, len(table.log_prior)), 1.0 / len(table.log_prior), dtype=torch.float64, device="cpu")
    if near is None or not float(near.sum()):
        return start
    if not bool(near.isfinite().all() and (near >= 0.0).all()):
        raise DataError("a mass to start from is negative or not finite; masses of 0 or more are allowed")
    return (1.0 - even) * near / near.sum() + even * start


def _ascend(table: _Table, weight: Tensor, start: Tensor, steps: int) -> tuple[Tensor, bool]:
    """Take Newton steps on F for B weightings of the rows side by side: weight (B, N), start (B, K) to q (B, K).

    Also returned is whether the maximum was found, to rounding.
    """
    p, s, q, log_prior = table.p, weight.numpy(), start.numpy(), table.log_prior.numpy()
    mixture = q @ p  # (B, N)
    enough = _GAP + 1e-14 * s.sum(1)  # what rounding leaves of many rows
    for _ in range(steps):
        slope = (s / mixture) @ p.T - np.log(q) + log_prior  # (B, K)
        slope -= (q * slope).sum(1, keepdims=True)
        u = _newton(np.stack([(r := p * v) @ r.T for v in np.sqrt(s) / mixture]), slope, q)  # Σ s_i r_i r_iᵀ
        q, mixture = _search(p, s, log_prior, q, mixture, u, slope)
        if (slope.max(1) <= enough).all():
            return torch.as_tensor(q, device="cpu"), True
    return torch.as_tensor(q, device="cpu"), False


def _newton(curvature: Array, slope: Array, q: Array) -> Array:
    """Return u of the Newton step d = q u: (curvature + diag(1/q)) d = slope − λ, Σ d = 0. Shapes (B, K) and (B, K, K).

    Scaled by √q on both sides the matrix has no eigenvalue below 1, however small a mass is. u is not d/q but slope −
    λ − curvature d, which has its digits also where q is tiny; there it takes a mass to its maximum at once.
    """
    root = np.where((q <= _LEAST) & (slope < 0.0), 0.0, np.sqrt(q))  # what lies at the floor and would sink stays
    scaled = root[:, :, None] * curvature * root[:, None, :] + np.eye(q.shape[1])
    x = np.linalg.solve(scaled, np.stack([root * slope, root], 2))  # (B, K, 2)
    level = (root * x[:, :, 0]).sum(1, keepdims=True) / (root * x[:, :, 1]).sum(1, keepdims=True)
    d = root * (x[:, :, 0] - level * x[:, :, 1])
    u: Array = slope - level - (curvature @ d[:, :, None])[:, :, 0]
    return u


def _search(
    p: Array, s: Array, log_prior: Array, q: Array, mixture: Array, u: Array, slope: Array
) -> tuple[Array, Array]:
    """Go along u until F has risen by a share of what its slope promises; a weighting that finds no such point stays.

    The gain is a sum of differences by rows, exact to about 1e-15 of the sum of weights.
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
    """Yield weights of rows, (b, N) at a time, with the sum given: ~ Gamma(s_i), or s_i times a factor of its group."""
    rng = np.random.default_rng(seed)
    shape = weight if group is None else torch.ones(len(group.unique()), dtype=torch.float64, device="cpu")
    size = max(1, _CHUNK // max(len(weight), 1))
    for first in range(0, count, size):
        drawn = torch.as_tensor(rng.standard_gamma(shape.numpy(), (min(size, count - first), len(shape))), device="cpu")
        w = drawn if group is None else weight * drawn[:, group]
        total = w.sum(1, keepdim=True)
        yield torch.where(total > 0.0, w * (weight.sum() / total), weight)
