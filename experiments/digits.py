"""Digits of 8 x 8 pixels (from scikit-learn): accuracy, log-likelihood and calibration against the number of steps.

There are two architectures: convolutions on the image, and the default network on flat pixels. Each is fitted with a
path of weights, and as an ordinary differential equation whose weights are the same at every depth (rate 0). The number
of steps can be changed after training: every network is evaluated with half, twice and four times the default number of
steps. There are 1,257 training and 540 test digits. The convolutions are a single network trained for 40 epochs, which
takes minutes; the others are the estimator with default options.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.follow import class_scores, draw_paths, plain_options, rows_of, steps_of
from experiments.results import Request, Result, Value, average_parts
from fathomless.data import datasets
from fathomless.families.continuous.dynamics import ConvDynamics
from fathomless.families.continuous.estimator import ContinuousDepthClassifier
from fathomless.system.jobs import run_parts

__all__ = ["KINDS", "MULTIPLES", "convolutions", "figure", "run"]

_TRAIN = 1257
_ONE: Mapping[str, Any] = {"cv": 1, "epochs": 40, "batch_size": 128}
_SHORT: Mapping[str, Any] = {
    "cv": 1,
    "epochs": 4,
    "batch_size": 32,
    "training_draws": 1,
    "weight_draws": 4,
    "learning_rate": 0.01,
}
#: Factors on the number of steps of predictions.
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

    No data folder is needed, and both presets are the same. The smoke run has short trainings on 150 digits.
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
        "kinds": {name: plain_options(own) for name, own in kinds.items()},
    }
    cells = [(name, s) for name in kinds for s in range(settings["repetitions"])]
    parts = {f"{name}/{s}": partial(_part, settings, kinds[name], s) for name, s in cells}
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for name in kinds:
        values |= average_parts(results, name, settings["repetitions"])
    notes = ("log-likelihood in nats per row; mixture_gained is the gain of the mixture of all paths over one path.",)
    return Result("digits", request.mode, request.preset, request.seed, values, settings, seconds, notes=notes)


def _part(settings: Mapping[str, Any], options: Mapping[str, Any], s: int) -> dict[str, float]:
    """Fit one network to one split; return its test scores for every number of steps."""
    data = datasets.load("digits")
    seed = settings["seed"] + s
    order = np.random.default_rng(seed).permutation(len(data.X))
    train, test = order[:_TRAIN][: settings["train"]], order[_TRAIN:][: settings["test"]]
    X, y = np.asarray(data.X, dtype=np.float64), np.asarray(data.y)
    # pixels that are constant in the training images vary in others
    estimator = ContinuousDepthClassifier(random_state=seed, unseen="ignore").set_params(**options)
    estimator.fit(X[train], y[train])
    rows = rows_of(estimator, X[test], y[test])
    model = estimator.model_
    steps = steps_of(estimator.model_)
    scores: dict[str, float] = {"steps": float(steps), "effective_depth": float(estimator.effective_depth_)}
    for name, times in MULTIPLES.items():
        draws = draw_paths(model, rows.x, max(1, round(times * steps)), settings["paths"])
        own = class_scores(draws, estimator.likelihood_, rows.y)
        scores |= {f"{name}/{key}": value for key, value in own.items()}
    accuracies = [scores[f"{name}/accuracy"] for name in ("half", "four")]
    return {**scores, "lost_by_steps": scores["same/accuracy"] - min(accuracies)}


def figure(result: Result) -> Any:
    """Draw accuracy, log-likelihood and calibration error against the number of steps."""
    from experiments.pictures import draw_step_curves

    return draw_step_curves(result, list(result.settings["kinds"]), MULTIPLES)
