"""Shared functions of the experiments on continuous depth: networks, paths with any number of steps, and scores."""

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fathomless.data.frames import encode
from fathomless.data.rows import Rows
from fathomless.families.continuous.accuracy import draw_coupled
from fathomless.families.continuous.dynamics import Dynamics
from fathomless.families.continuous.estimator import ContinuousDepthClassifier, ContinuousDepthRegressor
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.processes import OrnsteinUhlenbeck
from fathomless.families.continuous.solve import PathInference
from fathomless.inference.variational.objective import elbo
from fathomless.inference.variational.training import Training
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.ensemble import list_members
from fathomless.posterior.likelihoods import Gaussian, Likelihood
from fathomless.posterior.metrics import accuracy, expected_calibration_error
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.predictive import predictive
from fathomless.system.rng import as_generator

__all__ = [
    "bound",
    "class_scores",
    "draw_paths",
    "network",
    "networks_of",
    "plain_options",
    "published_network",
    "rows_of",
    "steps_of",
    "training",
]

_CHUNK = 500  # rows evaluated at once


def network(options: Mapping[str, Any], inputs: int, outputs: int, seed: int) -> ContinuousDepth:
    """Return an untrained network, built as by an estimator with these options."""
    return ContinuousDepthRegressor().set_params(**options)._build_model(inputs, Gaussian(outputs), seed, torch.float32)


def published_network(dynamics: Dynamics, diffusion: float, *, rank: int, steps: int, seed: int) -> ContinuousDepth:
    """Return an untrained network of the paper: one diffusion for all weights, free point estimates at depth 0.

    The drift of the posterior is a network of `rank` units, all steps are Euler steps, and the gradient is that of
    "sticking the landing".
    """
    options = PathInference(
        charged=False,
        drift="network",
        rank=rank,
        transition="euler",
        solver="euler",
        steps=steps,
        jitter="none",
        estimator="sticking",
    )
    prior = OrnsteinUhlenbeck(1.0)
    deviation = diffusion / math.sqrt(2.0)
    return ContinuousDepth(dynamics, prior=prior, weight_prior=deviation, fan_in=False, options=options, seed=seed)


def training(given: Mapping[str, Any], **more: Any) -> Training:
    """Return the options of a training: those of an estimator with the options `given`, updated with `more`."""
    plan = ContinuousDepthRegressor().set_params(**given)._training_plan()
    names = ("temperature", "warm_up", "learning_rate", "schedule", "clip_norm", "draws")
    return Training(**{**{name: getattr(plan, name) for name in names}, **more})


def networks_of(model: Model) -> list[ContinuousDepth]:
    """Return the networks of an ensemble, or a single network, as a list."""
    return cast(list[ContinuousDepth], list_members(model))


def steps_of(model: Model) -> int:
    """Return the number of steps of predictions."""
    options = networks_of(model)[0].options
    return options.predict_steps or options.steps


def rows_of(estimator: ContinuousDepthClassifier | ContinuousDepthRegressor, X: Any, y: Any) -> Rows:
    """Return a table in the encoding of a fitted estimator."""
    x = encode(estimator.schema_, np.asarray(X))
    z = torch.as_tensor(estimator.target_.encode(y))
    dtype = estimator.model_.dtype
    return Rows(torch.as_tensor(x, dtype=dtype), z.to(dtype) if z.is_floating_point() else z)


@torch.no_grad()
def draw_paths(model: Model, x: Tensor, steps: int, paths: int, seed: int = 0) -> Draws:
    """Evaluate the same paths on all rows, in chunks of rows; `paths` is the total over all networks."""
    number = max(1, paths // len(networks_of(model)))
    parts = [draw_coupled(model, part, number, steps, steps, seed) for part in x.split(_CHUNK)]
    return Draws(torch.cat([part.f for part in parts], 1), parts[0].log_weight, parts[0].structure, {})


@torch.no_grad()
def bound(model: Model, likelihood: Likelihood, rows: Rows, steps: int, paths: int = 64, seed: int = 0) -> float:
    """Return the evidence lower bound with this number of steps, in nats; for an ensemble the mean."""
    found = []
    for member in networks_of(model):
        member.eval()
        draws = member.draw_on(rows.x, paths, member.grid(steps), as_generator(seed, device=rows.x.device))
        found.append(elbo(draws, likelihood, rows.y, size=len(rows)).value.item())
    return sum(found) / len(found)


@torch.no_grad()
def class_scores(draws: Draws, likelihood: Likelihood, labels: Tensor) -> dict[str, float]:
    """Score the mixture of all paths; `mixture_gained` is its gain over one path, in nats per row."""
    log_p = likelihood.log_prob(draws.f, labels).detach().double()  # (S, B)
    log_probs = cast(ClassPredictive, predictive(draws, likelihood)).log_probs  # (B, K)
    mixed = float(log_probs.gather(1, labels.cpu()[:, None]).mean())
    alone = float(draws.log_weight.double().exp() @ log_p.mean(1))
    probs = log_probs.exp().cpu().numpy()
    y = labels.cpu().numpy()
    return {
        "accuracy": accuracy(y, probs.argmax(1)),
        "log_likelihood": mixed,
        "calibration_error": expected_calibration_error(y, probs),
        "mixture_gained": mixed - alone,
    }


def plain_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as plain JSON, with functions replaced by their names."""
    return {name: value.__name__ if callable(value) else value for name, value in options.items()}
