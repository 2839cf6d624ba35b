"""Posterior over the random horizon of continuous depth on spirals, expected to grow with the rotation.

There are 1,024 training and 1,024 test points of the spirals of ``spiral``. The classifier has default options and
``horizon="random"``. It is compared with the same classifier with the horizon fixed at the most probable depth. Depth
is measured by the mean horizon and by the effective depth, the number of residual layers that the paths need.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.results import Request, Result, Value, average_parts, paired_difference
from fathomless.data.datasets import spiral
from fathomless.families.continuous.estimator import ContinuousDepthClassifier
from fathomless.system.jobs import run_parts
from fathomless.system.rng import fold_in

__all__ = ["figure", "run"]

_DEPTHS = ("mean_horizon", "effective_depth")


def run(request: Request) -> Result:
    """Fit every rotation; see :class:`experiments.Module`.

    This experiment is in no paper: both presets are the same. The data are generated; no data folder is needed.
    """
    full = request.mode == "full"
    settings: dict[str, Any] = {
        "seed": request.seed,
        "rotations": [2, 10, 18] if full else [2, 6],
        "repetitions": 5 if full else 1,
        "rows": 1024 if full else 200,
        "options": {} if full else {"cv": 2, "epochs": 40, "learning_rate": 0.02},
    }
    rotations, repetitions = settings["rotations"], settings["repetitions"]
    cells = [(rotation, s) for rotation in rotations for s in range(repetitions)]
    parts = {f"{rotation}/{s}": partial(_part, settings, rotation, s) for rotation, s in cells}
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for rotation in rotations:
        values |= average_parts(results, str(rotation), repetitions)
        own = [results[f"{rotation}/{s}"] for s in range(repetitions)]
        values[f"{rotation}/fixed_gained"] = paired_difference(
            *([one[key] for one in own] for key in ("fixed", "accuracy"))
        )
    first, last = rotations[0], rotations[-1]
    for depth in _DEPTHS:
        rises = [results[f"{last}/{s}"][depth] > results[f"{first}/{s}"][depth] for s in range(repetitions)]
        values[f"{depth}_rises"] = Value(float(np.mean(rises)))
    gains = [values[f"{rotation}/fixed_gained"] for rotation in rotations]
    values["fixed_gained"] = max(gains, key=lambda value: value.value)
    curves = {name: part["posterior"] for name, part in results.items()}
    notes = ("both presets are the same: this experiment is in no paper",) if request.preset == "paper" else ()
    return Result("horizon", request.mode, request.preset, request.seed, values, settings, seconds, curves, notes)


def _part(settings: Mapping[str, Any], rotation: int, s: int) -> dict[str, Any]:
    """Fit both classifiers to one spiral; return depths and test accuracies."""
    seed = fold_in(settings["seed"], "horizon", rotation, s)
    rows = settings["rows"]
    (X, y), (X_test, y_test) = (spiral(rows, rotation, fold_in(seed, part)) for part in ("train", "test"))

    def classifier(horizon: float | str) -> ContinuousDepthClassifier:
        return ContinuousDepthClassifier(horizon=horizon, random_state=seed, **settings["options"]).fit(X, y)

    free = classifier("random")
    posterior = {float(t): float(p) for t, p in free.horizon_posterior_.items()}
    mode = max(posterior, key=lambda t: posterior[t])
    return {
        "mean_horizon": sum(t * p for t, p in posterior.items()),
        "mode": mode,
        "effective_depth": float(free.effective_depth_),
        "accuracy": float(np.mean(free.predict(X_test) == y_test)),
        "log_likelihood": float(free.predict_dist(X_test).log_prob(y_test).mean()),
        "fixed": float(np.mean(classifier(mode).predict(X_test) == y_test)),
        "posterior": list(posterior.items()),
    }


def figure(result: Result) -> Any:
    """Draw the posterior over the horizon for every rotation, and accuracy and depth against the rotation."""
    from experiments.pictures import draw_dots, panels
    from fathomless.plots.canvas import GREEN, legend, start

    rotations = result.settings["rotations"]
    page, axes = panels(len(rotations) + 2, across=3, width=3.2, height=2.4)
    for ax, rotation in zip(axes, rotations, strict=False):
        mean = result.values[f"{rotation}/mean_horizon"].value
        start(ax, f"{rotation} quarter turns: mean {mean:.2f}", "horizon", "weight")
        for s in range(result.settings["repetitions"]):
            ax.plot(*zip(*result.curves[f"{rotation}/{s}"], strict=True), ".-", color=GREEN, linewidth=0.8, alpha=0.7)
    names = [str(rotation) for rotation in rotations]
    start(axes[-2], "Accuracy", "quarter turns", "share")
    shown = {"random horizon": "accuracy", "fixed at the mode": "fixed"}
    draw_dots(axes[-2], names, {k: [result.values[f"{r}/{key}"] for r in rotations] for k, key in shown.items()})
    legend(axes[-2])
    start(axes[-1], "Effective depth", "quarter turns", "residual layers")
    draw_dots(axes[-1], names, {"": [result.values[f"{r}/effective_depth"] for r in rotations]})
    return page
