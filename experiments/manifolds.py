r"""Two toys of weight manifolds: coverage of both modes of the posterior, and uncertainty in a gap of the data.

**bumps**: :math:`y = \sum_k a_k \exp(-((x - c_k)/0.45)^2)` with c = (−3, −1, 1, 3), a = (0.7, 1, 1, 0.7) and noise of
0.05, at 40 points on [0, 4.5], all mirrored about 0. A network of three units exp(−a²) can fit three of the four bumps.
By symmetry the two solutions, without the left or without the right outer bump, have the same posterior mass. The share
of draws with a unit left of −2 and none right of 2 should equal the reverse share, and be ½ if no other solution fits
as well.

**gap**: a network of 20 such units with random weights, at 60 points on [−4, 4] without [−1, 1.5], with known noise of
0.1. The reference is Hamiltonian sampling by a prototype: a standard deviation of 1.15 in the gap and 0.06 at the data,
and log-likelihoods of 0.05 overall and −0.98 in the gap.

The manifold is compared with the candidates of the first stage as an ensemble, and with mean field on the weights,
started from the start of one candidate.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.results import Request, Result, Value, average_parts
from fathomless.data.folds import fold_rows
from fathomless.data.rows import Rows
from fathomless.families.manifold.autoencoder import AutoencoderOptions, Decoder
from fathomless.families.manifold.fit import Manifold, ManifoldConfig
from fathomless.families.manifold.latent import DecoderLaw, LatentLaw
from fathomless.families.manifold.model import LatentStage, ProjectedNetwork
from fathomless.families.manifold.network import Flat, FlatNetwork
from fathomless.families.manifold.stages import run_stages
from fathomless.nn.layers import WeightPrior
from fathomless.posterior.likelihoods import Gaussian, Likelihood
from fathomless.system.jobs import run_parts
from fathomless.system.rng import as_generator, fold_in

__all__ = ["CENTRES", "bumps", "figure", "gap_rows", "mean_field", "run", "shares"]

#: Centres of the four bumps.
CENTRES = (-3.0, -1.0, 1.0, 3.0)
_HEIGHTS = (0.7, 1.0, 1.0, 0.7)
_WIDTH = 0.45
_NOISE = 0.05
_BUMPS = FlatNetwork(1, 1, (3,), "rbf")
_GAP_NET = FlatNetwork(1, 1, (20,), "rbf")
_GAP = (-1.0, 1.5)
_GAP_NOISE = 0.1
_FOLDS = 10
_DRAWS = 1000  # approximate number of networks in a prediction
_NARROW = 0.02  # initial standard deviation of weights under mean field


def bumps(x: Tensor) -> Tensor:
    """Return the true function of the four bumps at x."""
    return sum(
        (a * torch.exp(-(((x - c) / _WIDTH) ** 2)) for a, c in zip(_HEIGHTS, CENTRES, strict=True)),
        torch.zeros_like(x),
    )


def _mirror_rows(count: int, seed: int) -> Rows:
    """Return rows of the four bumps at `count` points and at their mirror images."""
    noise = as_generator(seed)
    x = 4.5 * torch.rand(count, 1, generator=noise, dtype=torch.float64)
    y = bumps(x) + _NOISE * torch.randn(count, 1, generator=noise, dtype=torch.float64)
    return Rows(torch.cat([x, -x]), torch.cat([y, y]))


def shares(network: FlatNetwork, weights: Tensor, log_weight: Tensor) -> tuple[float, float]:
    """Return the mass of networks with a unit left of −2 and none right of 2, and the mass of the reverse."""
    slopes, biases = network.layers(weights)[0]
    centre = -biases / slopes[..., 0]  # (S, H)
    mass = log_weight.exp()
    left = centre.amin(1) < -2.0
    right = centre.amax(1) > 2.0
    return float(mass @ (left & ~right).to(mass)), float(mass @ (right & ~left).to(mass))


def gap_rows(seed: int) -> tuple[Rows, Callable[[Tensor], Tensor], float]:
    """Return standardised rows of the gap, and the true function and the noise in the same unit."""
    noise = as_generator(seed)
    h = _GAP_NET.widths[0]
    parts = [scale * torch.randn(count, generator=noise) for scale, count in ((1.5, h), (3.0, h), (0.7, h), (1.0, 1))]
    w = torch.cat(parts).double()[None]
    x = 8.0 * torch.rand(400, 1, generator=noise, dtype=torch.float64) - 4.0
    x = x[((x < _GAP[0]) | (x > _GAP[1]))[:, 0]][:60]
    y = _GAP_NET(w, x)[0] + _GAP_NOISE * torch.randn(len(x), 1, generator=noise, dtype=torch.float64)
    mean = y.mean()
    scale = y.std()
    return Rows(x, (y - mean) / scale), lambda at: (_GAP_NET(w, at)[0] - mean) / scale, float(_GAP_NOISE / scale)


def mean_field(
    network: Flat, likelihood: Likelihood, rows: Rows, scale: Tensor, start: Tensor, steps: int, seed: int
) -> ProjectedNetwork:
    """Fit an independent normal law to every weight, with the prior N(0, scale²), from initial weights (P,).

    It is implemented as a decoder with output 0 for every code and random constants. The local reparameterisation of
    :class:`~fathomless.families.manifold.model.ProjectedNetwork` is then that of the weights.
    """
    decoder = Decoder(1, (), network.size).to(start)
    for own in decoder.last.requires_grad_(False).parameters():
        own.zero_()
    decoder.residual.copy_(scale.square())
    law = DecoderLaw(decoder, "bias")
    with torch.no_grad():
        law.offset.copy_(start[:, None])
        law.log_scale.fill_(math.log(_NARROW))
    model = ProjectedNetwork(network, decoder, LatentLaw(start.new_zeros(1, 1), 0.0), law)
    stage = LatentStage(model, likelihood, rows, steps=steps, draws=8, decoder_rate=1e-2)
    run_stages({"mean field": lambda _: stage}, seed)
    return model.eval()


def _scores(f: Tensor, log_weight: Tensor, likelihood: Likelihood, y: Tensor) -> Tensor:
    """Return the log density of rows under a mixture of networks, shape (N,)."""
    return torch.logsumexp(log_weight[:, None] + likelihood.log_prob(f, y), 0)


def _sample_weights(model: ProjectedNetwork, seed: int) -> tuple[Tensor, Tensor]:
    each = math.ceil(_DRAWS / len(model.law.means))
    with torch.no_grad():
        return model.sample_weights(each, as_generator(seed))


def _fit_three(
    manifold: Manifold, settings: Mapping[str, Any], recipe: ManifoldConfig, start: Tensor
) -> tuple[dict[str, tuple[Tensor, Tensor]], Likelihood, float]:
    """Return weighted networks of posterior, candidates and mean field, the likelihood, and the reconstruction."""
    found = run_stages(manifold.plan(), manifold.seed).found
    likelihood = manifold.likelihood_of(found)
    candidates = found["decoder/weights"]
    scale = manifold.network.prior_scale(recipe.prior).to(start)
    seed = fold_in(manifold.seed, "mean field")
    own = mean_field(manifold.network, likelihood, manifold.rows, scale, start, settings["mean_field_steps"], seed)
    even = torch.full((len(candidates),), -math.log(len(candidates)), dtype=torch.float64)
    drawn = {
        "manifold": _sample_weights(manifold.model_of(found), fold_in(manifold.seed, "draws")),
        "candidates": (candidates, even),
        "mean_field": _sample_weights(own, fold_in(seed, "draws")),
    }
    return drawn, likelihood, manifold.gate_of(found).reconstruction


def _bumps_part(settings: Mapping[str, Any], s: int) -> dict[str, Any]:
    """Fit the four bumps once."""
    seed = fold_in(settings["seed"], "bumps", s)
    rows, test = _mirror_rows(40, fold_in(seed, "train")), _mirror_rows(250, fold_in(seed, "test"))
    noise = as_generator(fold_in(seed, "start"))
    count = settings["bumps_candidates"]
    slopes, places = (torch.rand(count, 3, generator=noise, dtype=torch.float64) for _ in range(2))
    slopes, places = 1.5 + slopes, 9.0 * places - 4.5
    start = torch.cat([slopes, -slopes * places, 0.5 * torch.ones_like(slopes), torch.zeros_like(slopes[:, :1])], 1)
    recipe = ManifoldConfig(
        prior=WeightPrior(3.0),
        candidates=count,
        candidate_steps=settings["candidate_steps"],
        strict=True,
        autoencoder=AutoencoderOptions(dimensions=2, steps=settings["decoder_steps"]),
        components=6,
        latent_steps=settings["latent_steps"],
    )
    folds = fold_rows(rows.x.abs().numpy(), rows.y.numpy(), _FOLDS, math.ceil(count / _FOLDS), seed)
    manifold = Manifold(_BUMPS, Gaussian().double(), rows, folds, recipe, seed, start=start)
    drawn, likelihood, reconstruction = _fit_three(manifold, settings, recipe, start[0])
    told: dict[str, Any] = {"reconstruction": reconstruction}
    at = torch.linspace(-4.5, 4.5, 91, dtype=torch.float64)[:, None]
    peaks = torch.tensor(CENTRES, dtype=torch.float64)[:, None]
    curves = {"x": at[:, 0].tolist(), "truth": bumps(at)[:, 0].tolist(), "rows": [rows.x.tolist(), rows.y.tolist()]}
    with torch.no_grad():
        for name, (w, log_weight) in drawn.items():
            left, right = shares(_BUMPS, w, log_weight)
            mean = log_weight.exp() @ _BUMPS(w, peaks)[..., 0]
            told |= {
                f"{name}/least_share": min(left, right),
                f"{name}/least_peak": float(mean.min()),
                f"{name}/log_likelihood": float(_scores(_BUMPS(w, test.x), log_weight, likelihood, test.y).mean()),
            }
            curves[name] = (log_weight.exp() @ _BUMPS(w, at)[..., 0]).tolist()
    return {**told, "curves": curves}


def _gap_part(settings: Mapping[str, Any], s: int) -> dict[str, Any]:
    """Fit the gap once."""
    seed = fold_in(settings["seed"], "gap", s)
    rows, truth, sigma = gap_rows(seed)
    count = settings["gap_candidates"]
    recipe = ManifoldConfig(
        prior=WeightPrior(1.0),
        candidates=count,
        anchored=True,
        candidate_steps=settings["candidate_steps"],
        autoencoder=AutoencoderOptions(dimensions=5, steps=settings["decoder_steps"]),
        components=20,
        latent_steps=settings["latent_steps"],
    )
    folds = fold_rows(rows.x.numpy(), rows.y.numpy(), _FOLDS, math.ceil(count / _FOLDS), seed)
    manifold = Manifold(_GAP_NET, Gaussian(noise=sigma), rows, folds, recipe, seed)
    start = torch.randn(_GAP_NET.size, generator=as_generator(fold_in(seed, "start")), dtype=torch.float64)
    drawn, likelihood, reconstruction = _fit_three(manifold, settings, recipe, start)
    noise = as_generator(fold_in(seed, "test"))
    x = 8.0 * torch.rand(500, 1, generator=noise, dtype=torch.float64) - 4.0
    y = truth(x) + sigma * torch.randn(500, 1, generator=noise, dtype=torch.float64)
    inside = ((x > _GAP[0]) & (x < _GAP[1]))[:, 0]
    told: dict[str, Any] = {"reconstruction": reconstruction}
    at = torch.linspace(-6.0, 6.0, 121, dtype=torch.float64)[:, None]
    curves: dict[str, Any] = {"x": at[:, 0].tolist(), "truth": truth(at)[:, 0].tolist()}
    curves["rows"] = [rows.x.tolist(), rows.y.tolist()]
    with torch.no_grad():
        for name, (w, log_weight) in drawn.items():
            log_p = _scores(_GAP_NET(w, x), log_weight, likelihood, y)
            std = _moments(_GAP_NET(w, x)[..., 0], log_weight)[1]
            told |= {
                f"{name}/log_likelihood": float(log_p.mean()),
                f"{name}/gap_log_likelihood": float(log_p[inside].mean()),
                f"{name}/gap_std": float(std[inside].mean()),
                f"{name}/data_std": float(std[~inside].mean()),
            }
            mean, std = _moments(_GAP_NET(w, at)[..., 0], log_weight)
            curves[name] = [mean.tolist(), std.tolist()]
    return {**told, "curves": curves}


def _moments(f: Tensor, log_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation over networks (S, N) at each point."""
    mass = log_weight.exp()
    mean = mass @ f
    return mean, (mass @ (f - mean).square()).sqrt()


def run(request: Request) -> Result:
    """Fit both toys; see :class:`experiments.Module`.

    Both presets are the same: the paper does not state most of its settings. The data are generated; no data folder is
    needed.
    """
    full = request.mode == "full"
    settings: dict[str, Any] = {
        "seed": request.seed,
        "repetitions": 5 if full else 1,
        "bumps_candidates": 250 if full else 120,
        "gap_candidates": 60 if full else 20,
        "candidate_steps": 1200 if full else 300,
        "decoder_steps": 1500 if full else 500,
        "latent_steps": 800 if full else 150,
        "mean_field_steps": 3000 if full else 300,
    }
    repetitions = settings["repetitions"]
    toys = {"bumps": _bumps_part, "gap": _gap_part}
    parts = {f"{toy}/{s}": partial(make, settings, s) for toy, make in toys.items() for s in range(repetitions)}
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for toy in toys:
        values |= average_parts(results, toy, repetitions)
    each = [results[f"bumps/{s}"] for s in range(repetitions)]
    for name in ("manifold", "mean_field"):
        both = [one[f"{name}/least_share"] >= 0.25 for one in each]
        values[f"bumps/{name}/both_found"] = Value(float(np.mean(both)))
    curves = {name: part["curves"] for name, part in results.items() if name.endswith("/0")}
    notes = ("mean field is that of this library, on the weights, with the noise fitted for the manifold",)
    return Result("manifolds", request.mode, request.preset, request.seed, values, settings, seconds, curves, notes)


def figure(result: Result) -> Any:
    """Draw both toys: the predictive means of the bumps, and mean ± 2 standard deviations in the gap."""
    from experiments.pictures import colours, panels
    from fathomless.plots.canvas import INK, legend, start

    page, axes = panels(4, across=2)
    names = ("manifold", "candidates", "mean_field")
    own = result.curves["bumps/0"]
    shades = colours(names)
    start(axes[0], "Four bumps, three units: predictive means", "x", "y")
    axes[0].plot(np.ravel(own["rows"][0]), np.ravel(own["rows"][1]), ".", color=INK, markersize=2.5)
    for name in names:
        axes[0].plot(own["x"], own[name], color=shades[name], label=name.replace("_", " "), linewidth=1.2)
    legend(axes[0])
    own = result.curves["gap/0"]
    for ax, name in zip(axes[1:], names, strict=True):
        start(ax, f"Gap: {name.replace('_', ' ')}", "x", "y")
        mean, std = map(np.asarray, own[name])
        ax.fill_between(own["x"], mean - 2.0 * std, mean + 2.0 * std, color=shades[name], alpha=0.25, linewidth=0)
        ax.plot(own["x"], mean, color=shades[name], linewidth=1.2)
        ax.plot(own["x"], own["truth"], "--", color=INK, linewidth=0.8)
        ax.plot(np.ravel(own["rows"][0]), np.ravel(own["rows"][1]), ".", color=INK, markersize=2.5)
    return page
