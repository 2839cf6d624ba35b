r"""Uncertainty away from the data: approximate posteriors of continuous depth compared with the exact one.

The data are those of the cosine with a gap of ``paths``, with known noise. The methods are single networks with point
estimates, averages of them, a low-rank posterior started from a point fit, and the exact posterior. The exact posterior
covers all weights at depth 0 and all steps of the path, as standard normal numbers, and is sampled by Hamiltonian Monte
Carlo. A Gaussian process is the reference. The error of an approximation is its distance to the sampled posterior; the
error of the model is the distance of the sampled posterior to the Gaussian process.

Low rank: let :math:`J` be the Jacobian of the outputs at the data with respect to the weights (in units of their prior
deviations) at the point fit. U are its leading right singular vectors, with singular values :math:`d`. The deviation
along U is :math:`\rho = (1 + d^2 / \text{noise}^2)^{-1/2}`, that of the linearised network; in the orthogonal
directions it is the prior's.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from experiments.follow import draw_paths, networks_of, rows_of
from experiments.gaussian_process import gaussian_process
from experiments.paths import TOYS, Toy, score_regions
from experiments.results import Request, Result, Value, average_parts
from fathomless.data.rows import Rows
from fathomless.data.targets import TargetScale
from fathomless.families.continuous.estimator import ContinuousDepthRegressor
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.processes import OrnsteinUhlenbeck
from fathomless.families.continuous.solve import PathInference, follow, split_weights
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.likelihoods import Gaussian, Likelihood
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.predictive import predictive
from fathomless.system.jobs import run_parts
from fathomless.system.rng import as_generator, fold_in

__all__ = ["METHODS", "Sampled", "figure", "prior_output", "r_hat", "run", "sample_hamiltonian"]

#: Methods to compare.
METHODS = ("one", "average", "lowrank", "hamiltonian", "process")
_LEVELS = (0.025, 0.25, 0.5, 0.75, 0.975)
_TOY = "cosine"


def run(request: Request) -> Result:
    """Fit the toy by every method; see :class:`experiments.Module`. No data folder is needed."""
    full = request.mode == "full"
    own: dict[str, Any] = {"repetitions": 3, "width": 32, "hidden": 64, "rate": 0.02, "steps": 5, "options": {}}
    own |= {"rank": 24, "epochs": 3000, "chains": 4, "warm_up": 1500, "kept": 3000, "leapfrogs": 40, "paths": 200}
    if not full:
        own |= {"repetitions": 1, "width": 6, "hidden": 8, "options": {"cv": 2, "epochs": 40}, "epochs": 40}
        own |= {"chains": 2, "warm_up": 60, "kept": 24, "leapfrogs": 8, "paths": 40, "rank": 6}
    settings = {"seed": request.seed, "preset": request.preset, **own}
    parts = {
        f"{method}/{s}": partial(_part, settings, method, s) for method in METHODS for s in range(own["repetitions"])
    }
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for method in METHODS:
        values |= average_parts(results, method, own["repetitions"])
    curves: dict[str, Any] = {method: results[f"{method}/0"]["drawn"] for method in METHODS}
    notes = ("densities in nats per row, on new points; coverage of 95 % intervals.",)
    return Result("doubt", request.mode, request.preset, request.seed, values, settings, seconds, curves, notes)


class _Fit(NamedTuple):
    predict: Callable[[np.ndarray], ContinuousPredictive]
    told: dict[str, float]


def _part(settings: Mapping[str, Any], method: str, s: int) -> dict[str, Any]:
    toy = TOYS[_TOY]
    seed = fold_in(settings["seed"], _TOY, s)
    X, y = toy.sample(40, seed)
    if method == "process":
        predict, evidence = gaussian_process(X[:, 0], y)
        found = _Fit(predict, {"log_evidence": evidence})
    else:
        found = _BY[method](settings, toy, X, y, seed)
    at = np.linspace(toy.outside[0][0], toy.outside[-1][1], 121)
    curves = {"x": at, "quantiles": found.predict(at).quantiles(_LEVELS), "X": X[:, 0], "y": y}
    shown = {key: np.round(np.asarray(value), 4).tolist() for key, value in curves.items()}
    return {**score_regions(found.predict, toy, seed), **found.told, "drawn": shown}


def _network(settings: Mapping[str, Any], seed: int, **options: Any) -> ContinuousDepthRegressor:
    given = {"width": settings["width"], "hidden": settings["hidden"], "solver__steps": settings["steps"]}
    return ContinuousDepthRegressor(random_state=seed).set_params(**given, **settings["options"], **options)


def _fit_average(settings: Mapping[str, Any], toy: Toy, X: Any, y: Any, seed: int, **options: Any) -> _Fit:
    """Fit the regressor with the known noise."""
    scale = float(y.std())
    estimator = _network(settings, seed, noise=toy.noise / scale, likelihood="gaussian", **options).fit(X, y)
    return _predict_with(estimator, estimator.model_, estimator.likelihood_, settings["paths"])


def _predict_with(
    estimator: ContinuousDepthRegressor, model: Model, likelihood: Likelihood, paths: int, **told: float
) -> _Fit:
    def predict(x: np.ndarray) -> ContinuousPredictive:
        rows = rows_of(estimator, x[:, None], np.zeros(len(x)))
        steps = networks_of(model)[0].options.steps
        return _rescale(draw_paths(model, rows.x, steps, paths), likelihood, estimator)

    return _Fit(predict, told)


@torch.no_grad()
def _rescale(draws: Draws, likelihood: Likelihood, estimator: ContinuousDepthRegressor) -> ContinuousPredictive:
    target = cast(TargetScale, estimator.target_)
    law = predictive(draws, likelihood, shift=target.mean[0], scale=target.scale[0], squeeze=True)
    return cast(ContinuousPredictive, law)


def _fit_one(settings: Mapping[str, Any], toy: Toy, X: Any, y: Any, seed: int) -> _Fit:
    return _fit_average({**settings, "options": {**settings["options"], "cv": 1}}, toy, X, y, seed)


def _fit_low_rank(settings: Mapping[str, Any], toy: Toy, X: Any, y: Any, seed: int) -> _Fit:
    """Train a low-rank posterior that starts at a point fit with the linearised posterior."""
    one = {**settings["options"], "cv": 1, "weight_prior": 1.0, "path__rate": settings["rate"]}
    noise = toy.noise / float(y.std())
    estimator = _network({**settings, "options": one}, seed, noise=noise, likelihood="gaussian").fit(X, y)
    point = networks_of(estimator.model_)[0]
    rows = rows_of(estimator, X, y)
    options = PathInference(initial="gaussian", drift="lowrank", rank=settings["rank"], steps=settings["steps"])
    prior = OrnsteinUhlenbeck(settings["rate"])
    model = ContinuousDepth(point.dynamics, prior=prior, weight_prior=1.0, options=options, seed=seed)
    _start_low_rank(model, point, rows, noise)
    likelihood = Gaussian(noise=noise)
    training = Training(
        epochs=settings["epochs"], batch_size=len(X), learning_rate=2e-3, draws=8, evaluate_every=settings["epochs"]
    )
    before = model.structure().statistics["initial_divergence"]
    done = fit(model, likelihood, rows, training=training, seed=seed)
    last = done.history[-1]
    told = {"bound": last["elbo"], "initial_divergence_at_start": before, "divergence": last["divergence_weights"]}
    return _predict_with(estimator, model, likelihood, settings["paths"], **told)


def _start_low_rank(model: ContinuousDepth, point: ContinuousDepth, rows: Rows, noise: float) -> None:
    """Set mean, directions and widths from the Jacobian at the point fit, for constant paths."""

    def outputs(w: Tensor) -> Tensor:
        whole = torch.cat([w, point.mean[0, point.moving :]])
        return _point_output(point, whole, rows.x)

    start = point.mean[0, : point.moving].detach()
    J = torch.func.jacrev(outputs)(start)  # (N, M)
    _, d, V = torch.linalg.svd(J, full_matrices=False)
    assert model.drift is not None
    assert model.drift.basis is not None
    assert model.log_width is not None
    m = min(model.drift.rank, len(d))
    with torch.no_grad():
        model.mean.copy_(point.mean)
        model.drift.basis[0, :, :m] = V[:m].T
        model.log_width[0, :m] = -0.5 * torch.log1p((d[:m] / noise) ** 2)
        model.log_width[0, model.drift.rank :] = math.log(0.02)


def _point_output(model: ContinuousDepth, w: Tensor, x: Tensor) -> Tensor:
    """Return the outputs (N,) with the same weights w (P,), in units of their prior deviations, at every depth."""
    zero = torch.zeros(1, 1, model.moving, dtype=w.dtype)
    return prior_output(model, w[None, None], [zero] * model.options.steps, x)[0]


def prior_output(model: ContinuousDepth, start: Tensor, steps: list[Tensor], x: Tensor) -> Tensor:
    """Return outputs (C, N) under paths of the prior from `start` (1, C, P) with the given noise (1, C, M) of steps."""
    grid = model.grid(model.options.steps)
    first = model.moving
    decay = [math.exp(-model.prior.rate * (b - a)) for a, b in pairwise(grid)]
    path = [start[..., :first]]
    for eps, kept in zip(steps, decay, strict=True):
        path.append(kept * path[-1] + math.sqrt(1.0 - kept * kept) * eps)
    weights = [split_weights(w * model.scale[:first], model.dynamics.moving) for w in path]
    fixed = split_weights(start[..., first:] * model.scale[first:], model.dynamics.still)
    h = model.dynamics.enter(fixed, x[None]).expand(1, start.shape[1], len(x), -1)
    hidden = follow(model.dynamics, weights, h, grid, [len(grid) - 1], model.options.solver)
    return model.dynamics.leave(fixed, hidden[0])[0, :, :, 0]


def _fit_hamiltonian(settings: Mapping[str, Any], toy: Toy, X: Any, y: Any, seed: int) -> _Fit:
    """Sample the initial weights and the steps of the path, all of them standard normal under the prior."""
    noise = toy.noise / float(y.std())
    few = {**settings["options"], "cv": settings["chains"], "weight_prior": 1.0, "path__rate": settings["rate"]}
    estimator = _network({**settings, "options": few}, seed, noise=noise, likelihood="gaussian").fit(X, y)
    networks = networks_of(estimator.model_)
    rows = rows_of(estimator, X, y)
    model, n = networks[0], settings["steps"]
    P = model.mean.shape[1]
    M = model.moving

    def output(z: Tensor, x: Tensor) -> Tensor:
        steps = list(z[:, P:].reshape(len(z), n, M).unbind(1))
        return prior_output(model, z[None, :, :P], [one[None] for one in steps], x)

    def log_density(z: Tensor) -> Tensor:
        error = (output(z, rows.x.to(z)) - rows.y[:, 0].to(z)) / noise
        return -0.5 * (z.square().sum(1) + error.square().sum(1))

    model.double()
    calm = torch.zeros(len(networks), n * M, dtype=torch.float64)
    start = torch.cat([torch.cat([net.mean.detach().double() for net in networks]), calm], 1)
    sampled = sample_hamiltonian(
        log_density,
        start,
        warm_up=settings["warm_up"],
        kept=settings["kept"],
        leapfrogs=settings["leapfrogs"],
        generator=as_generator(fold_in(seed, "hamiltonian")),
        every=max(1, settings["kept"] // 100),
    )
    z = sampled.points.flatten(0, 1)
    model.float()

    @torch.no_grad()
    def predict(x: np.ndarray) -> ContinuousPredictive:
        at = rows_of(estimator, x[:, None], np.zeros(len(x))).x
        f = torch.cat([output(part.float(), at) for part in z.split(64)])[:, :, None]
        equal = torch.full((len(f),), -math.log(len(f)))
        draws = Draws(f, equal, torch.zeros(len(f), dtype=torch.int64), {})
        return _rescale(draws, Gaussian(noise=noise), estimator)

    with torch.no_grad():
        at = rows_of(estimator, np.array([[-1.25], [-0.75], [0.0], [0.75], [1.25]]), np.zeros(5)).x
        f = torch.stack([output(chain.float(), at) for chain in sampled.points.unbind(1)], 1)  # (kept, C, 5)
    told = {"acceptance": sampled.acceptance, "r_hat": float(r_hat(f).max())}
    return _Fit(predict, told)


class Sampled(NamedTuple):
    """Points (kept, C, D) of C chains, and the mean acceptance rate after warm-up."""

    points: Tensor
    acceptance: float


def sample_hamiltonian(
    log_density: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    warm_up: int,
    kept: int,
    leapfrogs: int,
    generator: torch.Generator,
    every: int = 1,
    target: float = 0.8,
) -> Sampled:
    """Sample from a density by Hamiltonian Monte Carlo, several chains at once, with a step size for each.

    Step sizes are adapted to the acceptance rate during warm-up (Robbins and Monro), and jittered by a fifth.

    Parameters
    ----------
    log_density : callable
        (C, D) -> (C,).
    start : Tensor, shape (C, D)
        Initial points of the chains.
    warm_up, kept : int
        Number of iterations of the warm-up and after it; every `every`-th point after it is returned.
    leapfrogs : int
        Number of leapfrog steps of an iteration.
    generator : torch.Generator
        Random number generator.
    target : float
        Target acceptance rate.
    """
    slope = partial(_value_and_gradient, log_density)
    z = start.clone()
    value, gradient = slope(z)
    log_step = torch.full_like(value, math.log(0.01))
    points = []
    accepted = []
    for i in range(warm_up + kept):
        jitter = 0.8 + 0.4 * torch.rand(len(z), generator=generator, dtype=z.dtype)
        step = (log_step.exp() * jitter)[:, None]
        p = torch.randn(z.shape, generator=generator, dtype=z.dtype)
        energy = value - 0.5 * p.square().sum(1)
        at = z
        p = p + 0.5 * step * gradient
        for k in range(leapfrogs):
            at = at + step * p
            new_value, new_gradient = slope(at)
            p = p + (step if k + 1 < leapfrogs else 0.5 * step) * new_gradient
        change = (new_value - 0.5 * p.square().sum(1) - energy).nan_to_num(nan=-math.inf)
        chance = change.clamp(max=0.0).exp()
        taken = torch.rand(len(z), generator=generator, dtype=z.dtype) < chance
        z = torch.where(taken[:, None], at, z)
        value, gradient = torch.where(taken, new_value, value), torch.where(taken[:, None], new_gradient, gradient)
        if i < warm_up:
            log_step = log_step + (chance - target) * 3.0 / math.sqrt(i + 10.0)
        else:
            accepted.append(chance.mean())
            if (i - warm_up) % every == every - 1:
                points.append(z.clone())
    return Sampled(torch.stack(points), float(torch.stack(accepted).mean()))


def _value_and_gradient(log_density: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    z = z.detach().requires_grad_()
    value = log_density(z)
    return value.detach(), torch.autograd.grad(value.sum(), z)[0]


def r_hat(values: Tensor) -> Tensor:
    """Return the potential scale reduction (Q,) of quantities (n, C, Q), from the halves of C chains."""
    n = len(values) // 2
    halves = torch.cat([values[:n], values[n : 2 * n]], 1)  # (n, 2C, Q)
    within = halves.var(0).mean(0)
    between = n * halves.mean(0).var(0)
    return (((n - 1) / n * within + between / n) / within).sqrt()


_BY: Mapping[str, Callable[..., _Fit]] = {
    "one": _fit_one,
    "average": _fit_average,
    "lowrank": _fit_low_rank,
    "hamiltonian": _fit_hamiltonian,
}


def figure(result: Result) -> Any:
    """Draw the predictions of every method."""
    from experiments.pictures import panels
    from fathomless.plots import functions
    from fathomless.plots.canvas import INK

    page, axes = panels(len(METHODS), across=2, width=4.6)
    names = {"one": "one network", "average": "cross-fitted networks", "lowrank": "low rank from a point fit"}
    names |= {"hamiltonian": "the model's posterior, sampled", "process": "Gaussian process"}
    for ax, method in zip(axes, METHODS, strict=False):
        own = result.curves[method]
        functions(own["x"], own["quantiles"], _LEVELS, X=own["X"], y=own["y"], ax=ax)
        ax.set_title(names[method], loc="left", color=INK, fontsize=10.0)
        ax.set_ylim(-4.0, 4.0)
    return page
