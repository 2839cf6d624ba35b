r"""Variable selection for logistic regression: coordinate ascent on a spike-and-slab posterior, without networks.

The model is :math:`\operatorname{logit} P(y_t = 1) = \beta_0 + x_t^\top\beta`, with a flat prior of density 1 on the
intercept and :math:`\beta_j \sim \pi N(0, \sigma_a^2) + (1 - \pi) \delta_0`; the posterior is approximated by
:math:`\prod_j [\alpha_j N(\mu_j, s_j) + (1 - \alpha_j) \delta_0]`. The logistic function is replaced by its quadratic
bound, with a free :math:`\eta_t` for each row, and the intercept is integrated out. Shifting a column therefore changes
the intercept only. Scaling a column does change the result, because all columns share one slab: standardise first.

References
----------
Carbonetto & Stephens, *Scalable variational inference for Bayesian variable selection in regression*, Bayesian
Analysis 7 (2012); Jaakkola & Jordan, *Bayesian parameter estimation via variational methods*, Stat. Comput. 10 (2000).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from fathomless.system import memory
from fathomless.system.draws import normal, uniform
from fathomless.system.errors import DataError
from fathomless.system.rng import Seed, as_generator

__all__ = ["Averaged", "Selection", "average_grid", "select", "selections"]

_STRENGTH = 10.0  # n0, degrees of freedom of the prior of a learned slab variance; its scale s0² is 1
_LARGEST = 1e50  # its square, times the number of rows, is far below overflow in double precision


@dataclass(frozen=True, eq=False)
class Selection:
    r"""Result of one run of coordinate ascent.

    Attributes
    ----------
    inclusion, mean, variance : Tensor of float64, shape (D,)
        Inclusion probability of each column; mean and variance of its coefficient if it is included.
    intercept, slab_variance, prior_inclusion : float
        Posterior mean of the intercept; the slab variance and the prior inclusion, given or learned.
    bound, trace : float, tuple of float
        Bound in nats at the end, and at the start and after each sweep. It is at most
        :math:`\log \int p(y, \beta, \beta_0)`. Because the prior is flat, only differences on the same rows are
        meaningful. The log prior density of the log slab variance is included if the slab variance was learned.
    iterations, converged : int, bool
        Number of sweeps that were kept; False if ``max_iterations`` stopped the run.
    """

    inclusion: Tensor
    mean: Tensor
    variance: Tensor
    intercept: float
    bound: float
    slab_variance: float
    prior_inclusion: float
    iterations: int
    converged: bool
    trace: tuple[float, ...]

    @property
    def selected(self) -> Tensor:
        """True for columns with an inclusion probability above 1/2, shape (D,)."""
        return self.inclusion > 0.5


@dataclass(frozen=True, eq=False)
class Averaged:
    """Inclusion probabilities (D,), averaged with posterior weights (P, V) over the runs at P V points of a grid."""

    inclusion: Tensor
    weights: Tensor
    runs: tuple[Selection, ...]


def select(x: Any, y: Any, **options: Any) -> Selection:
    """Return the run with the best bound; the parameters are those of :func:`selections`. Ties go to the first run.

    Examples
    --------
    >>> rng = torch.Generator().manual_seed(0)
    >>> x = torch.randn(200, 4, generator=rng)
    >>> select(x, x[:, 2] > 0.1, restarts=5, generator=rng).selected.tolist()
    [False, False, True, False]
    """
    return max(selections(x, y, **options), key=lambda run: run.bound)


def selections(
    x: Any,
    y: Any,
    *,
    prior_inclusion: float = 0.25,
    slab_variance: float = 1.0,
    learn_slab_variance: bool = False,
    order: str = "random",
    restarts: int = 1,
    max_iterations: int = 10_000,
    tolerance: float = 1e-6,
    generator: Seed = None,
) -> tuple[Selection, ...]:
    r"""Select variables from several random starts, and return all runs.

    A sweep updates the columns, then :math:`\eta`. Each update maximises the bound in its own arguments, so the bound
    never decreases, except for rounding. A learned slab variance is updated last, to

    .. math:: \sigma_a^2 = \frac{n_0 s_0^2 + \sum_j \alpha_j (s_j + \mu_j^2)}{n_0 + \sum_j \alpha_j},
              \quad n_0 = 10, \quad s_0^2 = 1,

    the maximum of the bound plus the log density of :math:`\log\sigma_a^2` under a scaled inverse :math:`\chi^2` prior.
    In this case the sum never decreases, ranks the runs and is reported; the bound alone may decrease. A run ends when
    all inclusion probabilities change by less than ``tolerance``, or when the bound decreases; that sweep is undone.

    Parameters
    ----------
    x, y : array_like, shapes (N, D) and (N,)
        Candidate columns on comparable scales, and a response of 0 and 1. If the response is constant, the evidence is
        infinite and no column is relevant: runs drift towards the prior, and their bounds are meaningless.
    prior_inclusion, slab_variance : float
        :math:`\pi` and :math:`\sigma_a^2`; the latter is the initial value if `learn_slab_variance`.
    order : {"random", "given"}
        Order in which a run updates the columns: drawn for each run, or that of `x`.
    restarts, max_iterations, tolerance : int, int, float
        Number of runs; largest number of sweeps; change of an inclusion probability below which a run has converged.
    generator : torch.Generator or int, optional
        Source of random starts and orders; the same seed, data and options give the same bytes.

    Raises
    ------
    DataError
        For data and options that are not as above, and if R (N + D²) numbers do not fit in memory; all R runs are
        computed at once. The global optimum is not guaranteed for any number of starts.
    """
    if order not in ("random", "given"):
        raise DataError(f"order is {order!r}; allowed are 'random' and 'given'")
    if not 0.0 <= tolerance < 1.0:
        raise DataError(f"tolerance was given as {tolerance!r}; allowed is 0 to below 1, such as 1e-6")
    _check_whole(restarts=restarts, max_iterations=max_iterations)
    grid = _grid([prior_inclusion], [slab_variance])
    problem = _problem(x, y, restarts, learn_slab_variance)
    runs = _start(problem, grid.expand(restarts, 2), as_generator(generator), order)
    return _finish(problem, *_ascend(problem, runs, max_iterations, tolerance))


def average_grid(
    x: Any,
    y: Any,
    prior_inclusions: Sequence[float],
    slab_variances: Sequence[float],
    prior_weights: Any = None,
    *,
    restarts: int = 1,
    generator: Seed = None,
) -> Averaged:
    r"""Average inclusion probabilities over a grid of P prior inclusions and V slab variances, in random orders.

    .. math:: \sum_k \omega_k \alpha^{(k)}, \quad \omega_k \propto p(\theta_k) \exp(\text{bound}_k)

    Every point is run from `restarts` random starts; then all points are run again from the end of the best of these
    runs. Only this second round is used, so that the weights compare points of the grid and not random starts. The
    prior weights :math:`p(\theta_k)`, shape (P, V), need not sum to 1, and are equal by default. All other parameters
    and the errors are those of :func:`selections`. It is not guaranteed that bounds differ between points as the log
    evidences do.
    """
    grid = _grid(prior_inclusions, slab_variances)  # (P V, 2)
    shape = len(prior_inclusions), len(slab_variances)
    weights = _numbers("prior_weights", torch.ones(shape, device="cpu") if prior_weights is None else prior_weights)
    if weights.shape != shape or (weights < 0).any() or not weights.any():
        raise DataError(f"prior_weights were given as {prior_weights!r}; give shape {shape}, 0 or more, not all 0")
    _check_whole(restarts=restarts)
    problem = _problem(x, y, len(grid) * restarts)
    first = _ascend(problem, _start(problem, grid.repeat_interleave(restarts, 0), as_generator(generator)))[0]
    best = first.at(first.bound.argmax().expand(len(grid)))  # once for each point of the grid
    again = _update_terms(problem, replace(best, prior=grid[:, :1], slab=grid[:, 1:]))
    ended, *rest = _ascend(problem, again)
    share = torch.softmax(weights.flatten().log() + ended.bound, 0)
    return Averaged(share @ ended.inclusion, share.reshape(shape), _finish(problem, ended, *rest))


@dataclass(frozen=True, eq=False)
class _Problem:
    columns: Tensor  # (D, N), centred, which only affects rounding
    centre: Tensor  # (D,)
    half: Tensor  # k = y - 1/2, (N,)
    learn: bool  # True if the slab variance is learned


@dataclass(frozen=True, eq=False)
class _Runs:
    """Parameters of R runs; the fields below `eta` are computed from them."""

    prior: Tensor  # (R, 1)
    slab: Tensor  # (R, 1)
    order: Tensor  # of the columns, (R, D)
    inclusion: Tensor  # (R, D)
    mean: Tensor  # (R, D)
    eta: Tensor  # (R, N)
    a: Tensor  # 1 / sum of d, the variance of the intercept given the coefficients, (R, 1)
    c: Tensor  # X' d, (R, D)
    gram: Tensor  # X' D X, the intercept integrated out, (R, D, D)
    level: Tensor  # bound without coefficients, (R,)
    variance: Tensor  # (R, D)
    bound: Tensor  # (R,)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the coefficients under spike and slab, each (R, D)."""
        r = self.inclusion * self.mean
        return r, self.inclusion * (self.variance + (1 - self.inclusion) * self.mean.square())

    def at(self, index: Tensor) -> "_Runs":
        return _Runs(*(getattr(self, f.name)[index] for f in fields(self)))

    def put(self, index: Tensor, other: "_Runs") -> "_Runs":
        return _Runs(*(getattr(self, f.name).index_put((index,), getattr(other, f.name)) for f in fields(self)))


def _start(problem: _Problem, grid: Tensor, rng: torch.Generator, order: str = "random") -> _Runs:
    R = len(grid)
    (D, N) = problem.columns.shape
    eta = torch.ones(R, N, dtype=torch.float64, device="cpu")
    inclusion, keys = uniform(eta, rng, (2, R, D))
    mean = normal(eta, rng, (R, D))
    orders = keys.argsort(1) if order == "random" else torch.arange(D, device="cpu").expand(R, D)
    inclusion /= inclusion.sum(1, keepdim=True)
    return _update_terms(problem, _Runs(grid[:, :1], grid[:, 1:], orders, inclusion, mean, eta, *[eta] * 6))


def _ascend(
    problem: _Problem, runs: _Runs, max_iterations: int = 10_000, tolerance: float = 1e-6
) -> tuple[_Runs, Tensor, Tensor, Tensor]:
    """Sweep until all runs have converged; return them, convergence flags, numbers of sweeps and the bounds."""
    active = torch.arange(len(runs.mean), device="cpu")
    sweeps = torch.zeros(len(runs.mean), dtype=torch.long, device="cpu")
    trace = [runs.bound]
    for _ in range(max_iterations):
        old = runs.at(active)
        new = _iterate(problem, old)
        kept = new.bound >= old.bound
        runs = runs.put(active[kept], new.at(kept))
        sweeps[active[kept]] += 1
        trace.append(runs.bound)
        active = active[kept & ((new.inclusion - old.inclusion).abs().amax(1) >= tolerance)]
        if not len(active):
            break
    return runs, ~torch.isin(torch.arange(len(sweeps), device="cpu"), active), sweeps, torch.stack(trace, 1)


def _iterate(problem: _Problem, runs: _Runs) -> _Runs:
    """Update all coefficients, then eta, then the slab variance if it is learned."""
    runs = _sweep(problem, runs)
    runs = _update_terms(problem, replace(runs, eta=_optimal_eta(problem, runs)))
    if not problem.learn:
        return runs
    moment = (runs.inclusion * (runs.variance + runs.mean.square())).sum(1, keepdim=True)
    slab = (_STRENGTH + moment) / (_STRENGTH + runs.inclusion.sum(1, keepdim=True))
    return _update_bound(problem, replace(runs, slab=slab))


def _sweep(problem: _Problem, runs: _Runs) -> _Runs:
    """Update mean and inclusion of one column after the other, each run in its own order."""
    inclusion = runs.inclusion.clone()
    mean = runs.mean.clone()
    rows = torch.arange(len(runs.mean), device="cpu")
    r = inclusion * mean
    diagonal = runs.gram.diagonal(dim1=1, dim2=2)
    signal = problem.columns @ problem.half - runs.c * runs.a * problem.half.sum()  # (R, D)
    odds = torch.logit(runs.prior) - torch.log1p(runs.slab * diagonal) / 2  # (R, D)
    for j in runs.order.T:  # (R,)
        at = (rows, j)
        s = runs.variance[rows, j]
        centre = s * (signal[at] + diagonal[at] * r[at] - (runs.gram[at] * r).sum(1))
        chance = torch.sigmoid(odds[at] + centre.square() / (2 * s))
        mean[at] = centre
        inclusion[at] = chance
        r[at] = chance * centre
    return replace(runs, inclusion=inclusion, mean=mean)


def _optimal_eta(problem: _Problem, runs: _Runs) -> Tensor:
    """Return the eta that maximises the bound: root mean square of the linear predictor of each row, (R, N)."""
    r, v = runs.moments()
    mean = r @ problem.columns + runs.a * (problem.half.sum() - (runs.c * r).sum(1, keepdim=True))
    pull = runs.a * runs.c  # the intercept moves against the coefficients
    spread = v @ problem.columns.square() - 2 * (v * pull) @ problem.columns + (v * pull.square()).sum(1, keepdim=True)
    return (mean.square() + runs.a + spread.clamp_min(0.0)).sqrt()


def _curvature(eta: Tensor) -> Tensor:
    """Return d(eta) = (sigmoid(eta) - 1/2) / eta without cancellation; it is even, and 1/4 at 0."""
    size = eta.abs().clamp_min(1e-9)  # below, tanh is linear to double precision
    return torch.tanh(size / 2) / (2 * size)


def _update_terms(problem: _Problem, runs: _Runs) -> _Runs:
    """Compute the fields that depend on eta."""
    eta = runs.eta
    d = _curvature(runs.eta)
    a, c = 1.0 / d.sum(1, keepdim=True), d @ problem.columns.T
    gram = torch.stack([(problem.columns * row) @ problem.columns.T for row in d]) - (a * c)[:, :, None] * c[:, None]
    gram.diagonal(dim1=1, dim2=2).clamp_(min=0.0)  # rounding, for a constant column
    level = (logsigmoid(eta) + eta * (d * eta - 1) / 2).sum(1)
    level += (math.log(2 * math.pi) + a.log() + a * problem.half.sum().square())[:, 0] / 2  # over the intercept
    return _update_bound(problem, replace(runs, a=a, c=c, gram=gram, level=level))


def _update_bound(problem: _Problem, runs: _Runs) -> _Runs:
    """Compute the fields that depend on the slab variance: the variances of the slabs and the bound."""
    diagonal = runs.gram.diagonal(dim1=1, dim2=2)
    slab = runs.slab
    prior = runs.prior
    runs = replace(runs, variance=slab / (slab * diagonal + 1.0))
    r, v = runs.moments()
    signal = problem.columns @ problem.half - runs.c * runs.a * problem.half.sum()  # (R, D)
    bound = runs.level + (signal * r - ((runs.gram @ r[:, :, None])[:, :, 0] * r + diagonal * v) / 2).sum(1)
    gain = (1 - torch.log1p(slab * diagonal) - (runs.variance + runs.mean.square()) / slab) / 2
    bound += (runs.inclusion * (gain + prior.log()) + (1 - runs.inclusion) * torch.log1p(-prior)).sum(1)
    bound += (torch.special.entr(runs.inclusion) + torch.special.entr(1 - runs.inclusion)).sum(1)
    if problem.learn:  # scaled inverse chi-squared, as a density of the logarithm
        n = _STRENGTH / 2
        bound += (n * (math.log(n) - slab.log() - 1 / slab) - math.lgamma(n))[:, 0]
    return replace(runs, bound=bound)


def _finish(problem: _Problem, runs: _Runs, rest: Tensor, sweeps: Tensor, trace: Tensor) -> tuple[Selection, ...]:
    r, _ = runs.moments()
    intercept = runs.a[:, 0] * (problem.half.sum() - (runs.c * r).sum(1)) - r @ problem.centre
    numbers = [v.flatten().tolist() for v in (intercept, runs.bound, runs.slab, runs.prior, sweeps, rest)]
    paths = [tuple(path[: n + 1]) for path, n in zip(trace.tolist(), sweeps.tolist(), strict=True)]
    return tuple(map(Selection, runs.inclusion, runs.mean, runs.variance, *numbers, paths))


def _problem(x: Any, y: Any, runs: int, learn: bool = False) -> _Problem:
    """Check the data, and centre the columns."""
    columns, response = _numbers("x", x), _numbers("y", y)
    given = f"x of shape {tuple(columns.shape)} and y of shape {tuple(response.shape)} were given"
    if columns.ndim != 2 or 0 in columns.shape or response.shape != columns.shape[:1]:
        raise DataError(f"{given}; allowed are (N, D) and (N,), with N and D from 1")
    if len(wrong := response[(response != 0) & (response != 1)]):
        raise DataError(f"y holds {float(wrong[0])}; allowed are 0 and 1: encode the two classes as 0 and 1")
    if (largest := float(columns.abs().max())) > _LARGEST:
        raise DataError(f"x holds a value of size {largest:g}; allowed is {_LARGEST:g}: standardise the columns")
    N, D = columns.shape
    need = 8.0 * (4 * N * D + runs * (8 * N + 6 * D * D))
    what = f"{given}; selection in {runs:,} runs"
    remedy = "give fewer restarts: only {:.2%} of that fits"
    memory.require(need, what, remedy.format)
    centre = columns.mean(0)
    return _Problem((columns - centre).T.contiguous(), centre, response - 0.5, learn)


def _numbers(name: str, values: Any) -> Tensor:
    """Read finite real numbers as float64."""
    try:
        found = values.detach().cpu() if isinstance(values, Tensor) else torch.as_tensor(np.array(values), device="cpu")
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name} cannot be read as numbers ({error}); give an array of real numbers") from None
    if found.is_complex() or not found.isfinite().all():
        raise DataError(
            f"{name} has values that are complex or not finite; give real numbers: drop or impute missing values"
        )
    return found.to(torch.float64)


def _grid(prior_inclusions: Any, slab_variances: Any) -> Tensor:
    """Check both axes, and return all pairs, (P V, 2)."""
    axes = _numbers("prior_inclusion", prior_inclusions), _numbers("slab_variance", slab_variances)
    limits = ("prior_inclusion", 0.0, 1.0), ("slab_variance", 1 / _LARGEST, _LARGEST)
    for values, (name, low, high) in zip(axes, limits, strict=True):
        if values.ndim != 1 or not len(values) or ((values <= low) | (values >= high)).any():
            raise DataError(f"{name} was given as {values.tolist()}; allowed is between {low:g} and {high:g}")
    return torch.cartesian_prod(*axes)


def _check_whole(**options: object) -> None:
    for name, value in options.items():
        if type(value) is not int or value < 1:
            raise DataError(f"{name} was given as {value!r}; allowed are whole numbers from 1")
