r"""Approximation of a posterior process with two modes, for a single weight. A part of ``paths``.

The weight starts at N(0, 3²), under both the prior and the posterior, and follows :math:`dw = -0.1\,w\,dt +
\sqrt 2\,dB` up to depth 3. There it is observed twice, as 5 and as -5, with Cauchy noise of scale 1. The law of its end
given both observations has two modes and is computed by quadrature. A posterior whose drift is a network of the weight
can have two modes as well; one with linear feedback is Gaussian. Neither changes the law of the start, so the exact
law under that restriction is reported too.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fathomless.families.continuous.drift import PosteriorDrift
from fathomless.families.continuous.grids import uniform_grid
from fathomless.families.continuous.processes import OrnsteinUhlenbeck
from fathomless.system.rng import as_generator, fold_in

__all__ = ["DRIFTS", "EDGES", "exact_masses", "fit_posterior"]

#: Kinds of the posterior's drift.
DRIFTS = ("network", "diagonal")
_RATE = 0.1
_HORIZON = 3.0
_WIDTH = 3.0
_SEEN = (5.0, -5.0)
_PRIOR = OrnsteinUhlenbeck(_RATE, math.sqrt(1.0 / _RATE))  # σ = √2
#: Edges of the cells.
EDGES = np.linspace(-15.0, 15.0, 61)


def _log_likelihood(w: Tensor) -> Tensor:
    return -sum((torch.log1p((w - y).square()) for y in _SEEN), torch.zeros_like(w))


def exact_masses() -> dict[str, list[float]]:
    """Return the exact masses of the cells of the end, with the law of the start free and with it unchanged."""
    at = torch.linspace(-15.0, 15.0, 1201, dtype=torch.float64)
    start = torch.linspace(-15.0, 15.0, 601, dtype=torch.float64)
    left = math.exp(-_RATE * _HORIZON)
    spread = _PRIOR.scale**2 * (1.0 - left**2)
    log_end = -0.5 * (at - left * start[:, None]).square() / spread + _log_likelihood(at)  # (W0, W)
    log_start = (-0.5 * (start / _WIDTH).square())[:, None]
    joint = (log_start + log_end).flatten().softmax(0).reshape(log_end.shape).sum(0)
    held = (log_start.softmax(0) * log_end.softmax(1)).sum(0)
    return {name: _cells(at, mass) for name, mass in (("exact", joint), ("held", held))}


def _cells(at: Tensor, mass: Tensor | None = None) -> list[float]:
    weights = None if mass is None else mass.numpy()
    cells = np.histogram(at.numpy(), EDGES, weights=weights)[0].astype(float)
    return [float(v) for v in cells / cells.sum()]


def fit_posterior(drift: str, settings: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Fit the posterior with a kind of drift; return its distance to the exact law and the masses of its cells."""
    steps = settings["bimodal_steps"]
    like = torch.zeros(1, 1)
    options: dict[str, Any] = {
        "rank": 64,
        "width": 0.25,
        "pieces": 12,
        "seed": fold_in(seed, "bimodal"),
        "dtype": like.dtype,
    }
    q = PosteriorDrift(1, drift, **options)
    noise = as_generator(fold_in(seed, "bimodal", "noise"))
    adam = torch.optim.Adam(q.parameters(), lr=5e-3)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)

    def followed(paths: int) -> tuple[Tensor, Tensor]:
        law = q.law(_PRIOR, uniform_grid(_HORIZON, 30), like, kind="exact")
        w = torch.zeros(1, paths, 1)
        w = _WIDTH * torch.randn(w.shape, generator=noise)
        price = torch.zeros(1, paths)
        for i in range(30):
            w, change = law.step(i, w, torch.randn(w.shape, generator=noise))
            price = price + law.closed(i, change)
        return w[0, :, 0], price[0]

    for _ in range(steps):
        w, price = followed(settings["bimodal_paths"])
        adam.zero_grad()
        (price - _log_likelihood(w)).mean().backward()
        torch.nn.utils.clip_grad_norm_(q.parameters(), 10.0)
        adam.step()
        rates.step()
    with torch.no_grad():
        cells = _cells(torch.cat([followed(10_000)[0] for _ in range(settings["bimodal_draws"])]))
    true = exact_masses()
    apart = {name: 0.5 * float(np.abs(np.subtract(cells, own)).sum()) for name, own in true.items()}
    floor = 0.5 * float(np.abs(np.subtract(true["held"], true["exact"])).sum())
    return {"apart": apart["exact"], "apart_from_held": apart["held"], "least_apart": floor, "cells": cells}
