"""Digits of 8 x 8 pixels (from scikit-learn): accuracy, densities and calibration against the number of steps.

Two networks, convolutions on the image and the default on flat pixels, each with a path of weights and as a plain
network of an ordinary differential equation, whose weights are the same at every depth (rate 0). The number of
steps is a knob: all of them are followed with half, twice and four times as many steps as predictions take. 1,257
digits train, 540 test. The convolutions are one network that is trained for 40 epochs, so that they take minutes; the
others are the estimator as it comes.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.follow import class_scores, drawn, plain, rows_of, steps_of
from experiments.results import Request, Result, Value, repeated
from fathomless.data import datasets
from fathomless.families.continuous.dynamics import ConvDynamics
from fathomless.families.continuous.estimator import ContinuousDepthClassifier
from fathomless.system.jobs import run_parts

__all__ = ["KINDS", "MULTIPLES", "convolutions", "figure", "run"]

_TRAIN = 1257
_ONE: Mapping[str, Any] = {"cv": 1, "epochs": 40, "batch_size": 128}
_SHORT: Mapping[str, Any] = {
    "cv": 1,
    "epochs": 6,
    "batch_size": 32,
    "training_draws": 1,
    "weight_draws": 4,
    "learning_rate": 0.01,
}
#: Of the steps of predictions.
MULTIPLES: Mapping[str, float] = {"half": 0.5, "same": 1.0, "double": 2.0, "four": 4.0}


def convolutions(inputs: int, outputs: int) -> ConvDynamics:
    """Return three convolutions on a hidden state of eight channels.

    Examples
    --------
    >>> sum(weight.size for weight in convolutions(64, 10).moving)
    5008
    """
    return ConvDynamics(1, round(inputs**0.5), outputs)


#: Options of each kind of network.
KINDS: Mapping[str, Mapping[str, Any]] = {
    "conv": {"architecture": convolutions, **_ONE},
    "conv_ode": {"architecture": convolutions, "path__rate": 0.0, **_ONE},
    "mlp": {},
    "mlp_ode": {"path__rate": 0.0},
}


def run(request: Request) -> Result:
    """Fit every kind; see :class:`experiments.Module`.

    It needs no data folder, and both presets are the same. The smoke run has short trainings on 150 digits.
    """
    full = request.mode == "full"
    more: Mapping[str, Any] = {} if full else _SHORT
    kinds = {name: {**own, **more} for name, own in KINDS.items() if full or name != "mlp_ode"}
    settings: dict[str, Any] = {
        "seed": request.seed,
        "repetitions": 3 if full else 1,
        "train": _TRAIN if full else 150,
        "test": 540 if full else 100,
        "paths": 16 if full else 2,
        "kinds": {name: plain(own) for name, own in kinds.items()},
    }
    cells = [(name, s) for name in kinds for s in range(settings["repetitions"])]
    parts = {f"{name}/{s}": partial(_part, settings, kinds[name], s) for name, s in cells}
    found, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for name in kinds:
        values |= repeated(found, name, settings["repetitions"])
    notes = ("log-likelihood in nats per row; mixture_gained is what all paths gain over one of them.",)
    return Result("digits", request.mode, request.preset, request.seed, values, settings, seconds, notes=notes)


def _part(settings: Mapping[str, Any], options: Mapping[str, Any], s: int) -> dict[str, float]:
    """Fit one network to one split; return its scores with every number of steps."""
    data, seed = datasets.load("digits"), settings["seed"] + s
    order = np.random.default_rng(seed).permutation(len(data.X))
    train, test = order[:_TRAIN][: settings["train"]], order[_TRAIN:][: settings["test"]]
    X, y = np.asarray(data.X, dtype=np.float64), np.asarray(data.y)
    estimator = ContinuousDepthClassifier(random_state=seed).set_params(**options).fit(X[train], y[train])
    rows, model, steps = rows_of(estimator, X[test], y[test]), estimator.model_, steps_of(estimator.model_)
    scores: dict[str, float] = {"steps": float(steps), "effective_depth": float(estimator.effective_depth_)}
    for name, times in MULTIPLES.items():
        draws = drawn(model, rows.x, max(1, round(times * steps)), settings["paths"])
        own = class_scores(draws, estimator.likelihood_, rows.y)
        scores |= {f"{name}/{key}": value for key, value in own.items()}
    accuracies = [scores[f"{name}/accuracy"] for name in ("half", "four")]
    return {**scores, "lost_by_steps": scores["same/accuracy"] - min(accuracies)}


def figure(result: Result) -> Any:
    """Draw accuracy, log-likelihood and calibration error against the number of steps."""
    from experiments.pictures import knob

    return knob(result, list(result.settings["kinds"]), MULTIPLES)
