"""Discretisation error of continuous depth: orders of the solvers, divergences, gradients, and random grids.

*Orders*: a small network whose weights follow a posterior process is evaluated with 8 to 256 steps and, with the same
noise, with many more. The errors of weights and hidden state decrease with a power of the number of steps, for single
paths ("strong") and for the mean ("weak"). *Divergences*: that of an Ornstein-Uhlenbeck process of rate 3 from one of
rate 1, known for every number of steps. *Gradients*: recomputed states give the same gradients as stored states, and
these agree with finite differences of the bound. *Jitter*: a network trained with a single number of steps adapts to
that grid. The bound with half and with five times as many steps is compared for fixed and for random numbers of steps
in training.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.follow import bound, network, training
from experiments.results import Request, Result, Value, average_parts
from fathomless.data.datasets import cosine_gap
from fathomless.data.rows import Rows
from fathomless.families.continuous.accuracy import draw_coupled
from fathomless.families.continuous.dynamics import MLPDynamics
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.options import Heun
from fathomless.families.continuous.processes import OrnsteinUhlenbeck, excess, transition
from fathomless.families.continuous.solve import PathInference
from fathomless.inference.variational.objective import elbo
from fathomless.inference.variational.svi import fit
from fathomless.posterior.likelihoods import Gaussian
from fathomless.system.jobs import run_parts
from fathomless.system.rng import as_generator, fold_in

__all__ = ["JITTERS", "SCHEMES", "divergence", "errors", "figure", "run"]

#: Transition of the weights, solver of the hidden state, and the drift of the posterior.
SCHEMES: Mapping[str, tuple[str, str, str]] = {
    "euler": ("euler", "euler", "network"),
    "exact": ("exact", "euler", "network"),
    "exact_heun": ("exact", "heun", "network"),
    "linear_heun": ("exact", "heun", "diagonal"),
}
#: Kinds of random grids in training.
JITTERS = ("count", "times", "none")
_STEPS: Mapping[str, tuple[int, ...]] = {"exact": (1, 5, 25, 100, 400), "euler": (25, 50, 100, 400)}
_MULTIPLES = {"half": 0.5, "same": 1.0, "five": 5.0}


def run(request: Request) -> Result:
    """Measure all four parts; see :class:`experiments.Module`.

    No data folder is needed, and both presets are the same. The smoke run has fewer paths and short trainings.
    """
    full = request.mode == "full"
    settings: dict[str, Any] = {
        "seed": request.seed,
        "paths": 4000 if full else 150,
        "steps": [8, 16, 32, 64, 128, 256] if full else [8, 16, 32],
        "finest": 8192 if full else 256,
        "schemes": {name: list(own) for name, own in SCHEMES.items()},
        "epochs": 4000 if full else 30,
        "repetitions": 3 if full else 1,
        "jitters": list(JITTERS),
    }
    parts: dict[str, Any] = {f"order/{name}": partial(_order, settings, name) for name in SCHEMES}
    parts |= {"divergence": _divergences, "gradient": partial(_gradients, request.seed)}
    cells = [(jitter, s) for jitter in JITTERS for s in range(settings["repetitions"])]
    parts |= {f"jitter/{jitter}/{s}": partial(_train_jittered, settings, jitter, s) for jitter, s in cells}
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for name, part in results.items():
        if not name.startswith("jitter"):
            values |= {f"{name}/{key}": Value(value) for key, value in part.items() if isinstance(value, float)}
    for jitter in JITTERS:
        values |= average_parts(results, f"jitter/{jitter}", settings["repetitions"])
    curves = {name: part["errors"] for name, part in results.items() if "errors" in part}
    return Result("solvers", request.mode, request.preset, request.seed, values, settings, seconds, curves)


# ---------------------------------------------------------------------------------------------------------- the orders


def _small_network(seed: int, **options: Any) -> ContinuousDepth:
    """Return a network of two hidden units whose posterior differs from its prior in every parameter."""
    net = MLPDynamics(1, 2, hidden=(4,), encoder="pad", augment=1)
    given = PathInference(**{"drift": "network", "rank": 4, "jitter": "none", "gradient": "unrolled", **options})
    own: dict[str, Any] = {"options": given, "seed": seed, "dtype": torch.float64}
    model = ContinuousDepth(net, prior=OrnsteinUhlenbeck(1.0), weight_prior=1.0, **own)
    noise = as_generator(fold_in(seed, "posterior"))
    with torch.no_grad():
        assert model.drift is not None
        for p in model.drift.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=noise, dtype=p.dtype))
    return model


@torch.no_grad()
def errors(name: str, steps: Sequence[int], finest: int, paths: int, seed: int) -> dict[str, list[float]]:
    """Return the errors of the final hidden state for every number of steps, with the same noise.

    Parameters
    ----------
    name : str
        One of :data:`SCHEMES`.
    steps : sequence of int
        Divisors of `finest`.
    finest, paths, seed : int
        Number of steps of the reference solution; number of paths; seed of network and noise.

    Returns
    -------
    dict
        "strong": root mean square error over paths; "weak": error of the mean; "noise": its standard error.
    """
    move, solver, drift = SCHEMES[name]
    model = _small_network(seed, transition=move, solver=solver, drift=drift).eval()
    x = torch.tensor([[0.5]], dtype=torch.float64)
    best, *rest = (draw_coupled(model, x, paths, n, finest, seed).f[:, 0] for n in (finest, *steps))
    off = [h - best for h in rest]  # (S, H) each
    return {
        "strong": [float(d.square().sum(1).mean().sqrt()) for d in off],
        "weak": [float(d.mean(0).norm()) for d in off],
        "noise": [float(d.std(0).norm() / paths**0.5) for d in off],
    }


def _order(settings: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Estimate the orders of convergence as slopes of the log errors."""
    steps = settings["steps"]
    found = errors(name, steps, settings["finest"], settings["paths"], fold_in(settings["seed"], "orders"))
    slopes = {kind: -float(np.polyfit(np.log(steps), np.log(found[kind]), 1)[0]) for kind in ("strong", "weak")}
    return {**slopes, "weak_in_noise": found["weak"][1] / found["noise"][1], "errors": found}


# ------------------------------------------------------------------------------------- the divergences and gradients


def divergence(steps: int, kind: str) -> float:
    """Return the divergence of a path of rate 3 from the prior of rate 1 (σ = 0.5, from 0.7 to depth 1), in nats.

    Examples
    --------
    >>> round(divergence(5, "exact"), 6)
    0.884658
    """
    prior = OrnsteinUhlenbeck(1.0, 0.5 / math.sqrt(2.0))
    dt = torch.tensor(1.0 / steps, dtype=torch.float64)
    step = transition(prior, torch.tensor(2.0, dtype=torch.float64), dt, kind=kind)
    second = torch.tensor(0.49, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for _ in range(steps):  # only the second moment of the weight is needed
        total = total + 0.5 * ((step.turn / step.prior_noise).square() * second + excess(step.ratio))
        second = step.decay.square() * second + step.noise.square()
    return float(total)


def _divergences() -> dict[str, float]:
    return {f"{kind}/{n}": divergence(n, kind) for kind, own in _STEPS.items() for n in own}


def _gradients(seed: int) -> dict[str, float]:
    """Compare gradients of the bound: stored states, recomputed states, and finite differences."""
    x = torch.randn(7, 1, generator=as_generator(seed), dtype=torch.float64)
    rows = Rows(x, torch.sin(x))
    found = {}
    for kind in ("unrolled", "checkpointed"):
        model = _small_network(seed, gradient=kind, drift="both").train()
        loss = _value(model, rows)
        loss.backward()
        found[kind] = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    apart = max(float((a - b).abs().max()) for a, b in zip(*found.values(), strict=True))
    noise = as_generator(fold_in(seed, "direction"))
    h = 1e-5
    line = [torch.randn(p.shape, generator=noise, dtype=p.dtype) for p in model.parameters()]
    ends = []
    for sign in (1.0, -1.0):
        moved = _small_network(seed, drift="both").train()
        with torch.no_grad():
            for p, d in zip(moved.parameters(), line, strict=True):
                p.add_(sign * h * d)
            ends.append(float(_value(moved, rows)))
    slope = sum(float((g * d).sum()) for g, d in zip(found["unrolled"], line, strict=True))
    return {"apart": apart, "off_differences": abs((ends[0] - ends[1]) / (2.0 * h) / slope - 1.0)}


def _value(model: ContinuousDepth, rows: Rows) -> Tensor:
    draws = model.draw(rows.x, 3, as_generator(0))
    return elbo(draws, Gaussian(2, noise=0.1), rows.y.expand(-1, 2), size=len(rows)).value


# ---------------------------------------------------------------------------------------------------------- the jitter


def _train_jittered(settings: Mapping[str, Any], jitter: str, s: int) -> dict[str, float]:
    """Train on the cosine with the options of the estimator; return bounds for other numbers of steps, in nats."""
    seed = fold_in(settings["seed"], "jitter", s)
    X, y = cosine_gap(40, seed)
    rows = Rows(torch.as_tensor(X, dtype=torch.float32), torch.as_tensor(y, dtype=torch.float32)[:, None])
    options = {"solver": Heun(jitter=jitter, steps=10)}
    likelihood = Gaussian(1, noise=0.1)
    epochs = settings["epochs"]
    model = network(options, 1, 1, seed)
    steps = training(options, epochs=epochs, batch_size=len(rows), evaluate_every=epochs)
    fit(model, likelihood, rows, training=steps, seed=seed)
    bounds = {name: bound(model, likelihood, rows, round(k * 10)) for name, k in _MULTIPLES.items()}
    return {**bounds, "lost_at_five": bounds["same"] - bounds["five"]}


def figure(result: Result) -> Any:
    """Draw errors against the number of steps, and bounds for other numbers of steps than in training."""
    from experiments.pictures import colours, draw_dots, panels, set_log_axis
    from fathomless.plots.canvas import legend, start

    page, (left, right) = panels(2, across=2, width=4.6)
    start(left, "Error of the hidden state", "steps", "dashed: of the mean")
    for name, colour in colours(list(SCHEMES)).items():
        own = result.curves[f"order/{name}"]
        left.plot(result.settings["steps"], own["strong"], "o-", color=colour, label=name, markersize=4.0)
        left.plot(result.settings["steps"], own["weak"], "--", color=colour)
    left.set_yscale("log")
    set_log_axis(left, result.settings["steps"])
    legend(left)
    start(right, "Bound for other numbers of steps", "random grid in training", "nats")
    jitters = result.settings["jitters"]
    draw_dots(
        right, jitters, {m: [result.values[f"jitter/{j}/{m}"] for j in jitters] for m in ("same", "half", "five")}
    )
    legend(right)
    return page
