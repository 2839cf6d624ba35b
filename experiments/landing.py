r"""Variance of three gradient estimators of the divergence of a path with known optimum (section 3.1).

One weight starts at 0.7 and has the prior :math:`dw = -w\,dt + \sigma\,dB`, σ = 0.5. The value 1.3 is observed for
:math:`w_1` with noise 0.3. The drift of the posterior is known and belongs to a family with four parameters,

.. math:: u = \sigma e^{-r} (\phi_1 y - \phi_2 w e^{-r}) / (0.3^2 + v_r) + \phi_3 \sin \pi t + 0.3 \phi_4 \tanh w,
          \qquad r = 1 - t, \quad v_r = \sigma^2 (1 - e^{-2r}) / 2,

at φ = (1, 1, 0, 0). The gradient of the evidence lower bound is estimated for each path in three ways: with the
divergence of a step in closed form ("closed"), with the log densities of the sampled step ("full"), and with these log
densities but no gradient through the parameters of the posterior density ("sticking the landing"). The last is the
first plus a stochastic term with coefficient 1; all coefficients give the same mean.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from experiments.results import Request, Result, Value
from fathomless.families.continuous.drift import PathLaw, PosteriorDrift
from fathomless.families.continuous.grids import uniform_grid
from fathomless.families.continuous.processes import OrnsteinUhlenbeck
from fathomless.system.jobs import run_parts
from fathomless.system.rng import as_generator, fold_in

__all__ = ["COEFFICIENTS", "LOG_EVIDENCE", "POINTS", "figure", "gradients", "run"]

_CHUNK = 4000  # paths at once
_START, _SIGMA, _Y, _NOISE = 0.7, 0.5, 1.3, 0.3
_LEFT = math.exp(-1.0)
_SPREAD = 0.5 * _SIGMA**2 * (1.0 - _LEFT**2) + _NOISE**2
#: Log evidence of the observation.
LOG_EVIDENCE = -0.5 * (math.log(2.0 * math.pi * _SPREAD) + (_Y - _START * _LEFT) ** 2 / _SPREAD)
#: Parameters at which gradients are estimated: the optimum, near it, and far away.
POINTS: Mapping[str, tuple[float, ...]] = {
    "optimum": (1.0, 1.0, 0.0, 0.0),
    "near": (1.05, 0.95, 0.05, 0.0),
    "far": (0.3, 0.5, 0.4, 0.5),
}
#: Coefficients of the stochastic term: 0 is "closed", 1 is "sticking".
COEFFICIENTS = (-1.0, 0.0, 0.5, 1.0, 1.5, 2.0)
_ESTIMATORS = {**{f"{c:g}": c for c in COEFFICIENTS}, "full": None}
_Drift = Callable[[float, Tensor], Tensor]


def run(request: Request) -> Result:
    """Estimate gradients at every point; see :class:`experiments.Module`.

    No data and no training are needed, and both presets are the same. The smoke run has fewer paths.
    """
    full = request.mode == "full"
    settings: dict[str, Any] = {
        "seed": request.seed,
        "paths": 40_000 if full else 4000,
        "steps": [25, 100, 400] if full else [25, 100],
        "points": {name: list(point) for name, point in POINTS.items()},
    }
    cells = [(point, n) for point in POINTS for n in settings["steps"]]
    parts = {f"{point}/{n}": partial(_part, settings, point, n) for point, n in cells}
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for name, part in results.items():
        values |= {f"{name}/{key}": Value(*value) for key, value in part.items()}
    deviations = [values[f"optimum/{n}/variance/1"].value ** 0.5 for n in settings["steps"]]
    first, last = settings["steps"][0], settings["steps"][-1]
    values["order_of_deviation"] = Value(math.log(deviations[0] / deviations[-1]) / math.log(last / first))
    apart = [value.value for name, value in values.items() if name.endswith("/means_apart")]
    values["means_apart"] = Value(max(apart))
    notes = (
        "variances are those of the gradient of one path, summed over four parameters; means_apart is the largest "
        "difference between the mean gradients of two estimators on the same paths, in standard errors.",
    )
    return Result("landing", request.mode, request.preset, request.seed, values, settings, seconds, notes=notes)


def gradients(phi: Tensor, steps: int, paths: int, seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the gradient of the negative bound (S, 4) and the bound (S,) of every path, for each estimator.

    Parameters
    ----------
    phi : Tensor, shape (4,)
        Parameters of the posterior.
    steps, paths, seed : int
        Number of Euler steps, number of paths, and seed of the noise.
    """
    own = phi.double().expand(paths, 4).clone().requires_grad_()
    law, stopped = (_law(partial(_drift, p), steps) for p in (own, own.detach()))
    noise = as_generator(seed)
    w = torch.full((1, paths, 1), _START, dtype=torch.float64)
    closed, full, sticking = (torch.zeros(1, paths, dtype=torch.float64) for _ in range(3))
    for i in range(steps):
        after, change = law.step(i, w, torch.randn(w.shape, generator=noise, dtype=torch.float64))
        closed = closed + law.closed(i, change)
        full = full + law.full(i, w, after)
        sticking = sticking + law.full(i, w, after, stopped)
        w = after
    fit = 0.5 * ((_Y - w[0, :, 0]) / _NOISE).square() + math.log(_NOISE * math.sqrt(2.0 * math.pi))
    every = {
        name: fit + (full if c is None else closed + c * (sticking - closed))[0] for name, c in _ESTIMATORS.items()
    }
    grads = {name: torch.autograd.grad(loss.sum(), own, retain_graph=True)[0] for name, loss in every.items()}
    return grads, {name: -loss.detach() for name, loss in every.items()}


def _drift(phi: Tensor, t: float, w: Tensor) -> Tensor:
    """Return σ u, with separate parameters for each path."""
    r = 1.0 - t
    left = math.exp(-r)
    spread = 0.5 * _SIGMA**2 * (1.0 - math.exp(-2.0 * r))
    a, b, c, d = (p[None, :, None] for p in phi.unbind(1))  # (1, S, 1)
    pull = _SIGMA * left * (a * _Y - b * w * left) / (_NOISE**2 + spread)
    return _SIGMA * (pull + c * math.sin(math.pi * t) + 0.3 * d * w.tanh())


def _law(drift: _Drift, steps: int) -> PathLaw:
    """Return the Euler chain whose drift is added to that of the prior."""
    prior = OrnsteinUhlenbeck(1.0, _SIGMA / math.sqrt(2.0))
    like = torch.zeros(1, 1, dtype=torch.float64)
    none = PosteriorDrift(1, "shift", rank=1, width=1.0, pieces=1, seed=0, dtype=like.dtype)
    return replace(none.law(prior, uniform_grid(1.0, steps), like, kind="euler", stopped=True), network=drift)


def _part(settings: Mapping[str, Any], point: str, steps: int) -> dict[str, tuple[float, float | None, int]]:
    """Summarise the gradients at one point: value, standard error and number of paths."""
    seed = fold_in(settings["seed"], "landing", point, steps)
    paths = settings["paths"]
    chunks = [gradients(torch.tensor(POINTS[point]), steps, _CHUNK, fold_in(seed, k)) for k in range(paths // _CHUNK)]
    grads, bounds = ({name: torch.cat([chunk[j][name] for chunk in chunks]) for name in _ESTIMATORS} for j in (0, 1))
    found: dict[str, tuple[float, float | None, int]] = {}
    for name, g in grads.items():
        squares = (g - g.mean(0)).square().sum(1)
        found[f"variance/{name}"] = (float(squares.mean()), float(squares.std() / paths**0.5), paths)
    found["ratio"] = (found["variance/1"][0] / found["variance/0"][0], None, paths)
    found["wrong_sign"] = (found["variance/-1"][0] / found["variance/0"][0], None, paths)
    others = [(grads[name] - grads["0"]) for name in grads if name != "0"]
    apart = max(float((d.mean(0).abs() / (d.std(0) / paths**0.5).clamp(min=1e-12)).max()) for d in others)
    found["means_apart"] = (apart, None, paths)
    for name in ("0", "full"):
        found[f"bound/{name}"] = (float(bounds[name].mean()), float(bounds[name].std() / paths**0.5), paths)
        found[f"bound_deviation/{name}"] = (float(bounds[name].std()), None, paths)
    return found


def figure(result: Result) -> Any:
    """Draw the variance against the coefficient of the stochastic term, and against the number of steps."""
    from experiments.pictures import colours, panels, set_log_axis
    from fathomless.plots.canvas import legend, start

    points, steps = list(result.settings["points"]), list(result.settings["steps"])
    page, (left, right) = panels(2, across=2, width=4.4)
    start(left, "Variance of the gradient, 100 steps", "coefficient of the stochastic term", "")
    start(right, "Standard deviation, sticking", "steps", "")
    for point, colour in colours(points).items():
        across = [result.values[f"{point}/100/variance/{c:g}"].value for c in COEFFICIENTS]
        left.plot(COEFFICIENTS, across, "o-", color=colour, label=point, linewidth=1.2, markersize=4.0)
        down = [result.values[f"{point}/{n}/variance/1"].value ** 0.5 for n in steps]
        right.plot(steps, down, "o-", color=colour, linewidth=1.2, markersize=4.0)
    left.set_yscale("log")
    right.set_yscale("log")
    set_log_axis(right, steps)
    legend(left)
    return page
