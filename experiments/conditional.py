"""Conditional prediction by infinite graphs on six tables, compared with unbounded depth and mean-field weights.

Three regression and three classification tables; every estimator has default options. Split s shuffles the rows with
seed s and keeps a tenth as the test set, as in ``uci``.
"""

import math
import time
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.results import Request, Result, Value, average_parts, paired_difference
from experiments.uci import split
from fathomless.data import datasets
from fathomless.families.registry import estimator_class, families
from fathomless.system.jobs import run_parts

__all__ = ["MODELS", "TABLES", "figure", "run"]

#: Families; the first is compared with the others.
MODELS = ("graph", "depth", "meanfield")
#: Tables and their tasks.
TABLES = {
    "yacht": "regression",
    "boston": "regression",
    "energy": "regression",
    "iris": "classification",
    "wine_recognition": "classification",
    "breast_cancer": "classification",
}
_SMOKE = {
    "graph": {"chains": 2, "sweeps": 200, "states": 40},
    "depth": {"cv": 3, "epochs": 40},
    "meanfield": {"epochs": 40},
}


def run(request: Request) -> Result:
    """Score every family on every table; see :class:`experiments.Module`.

    This experiment is in no paper: both presets are the same. The smoke run uses a table of scikit-learn.
    """
    full = request.mode == "full"
    settings: dict[str, Any] = {
        "seed": request.seed,
        "tables": TABLES if full else {"breast_cancer": "classification"},
        "splits": 3 if full else 1,
        "options": {key: {} for key in MODELS} if full else _SMOKE,
    }
    splits = settings["splits"]
    cells = [(table, name, s) for table in settings["tables"] for name in MODELS for s in range(splits)]
    parts = {f"{t}/{name}/{s}": partial(_part, settings, t, name, s, request.data) for t, name, s in cells}
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for table in settings["tables"]:
        for name in MODELS:
            values |= average_parts(results, f"{table}/{name}", splits)
        scores = {m: [results[f"{table}/{m}/{s}"]["log_likelihood"] for s in range(splits)] for m in MODELS}
        for name in MODELS[1:]:
            values[f"{table}/gained_over_{name}"] = paired_difference(scores["graph"], scores[name])
    notes: tuple[str, ...] = ("for regression, RMSE and log-likelihood (nats per row) are of the standardised target.",)
    if request.preset == "paper":
        notes += ("both presets are the same: this experiment is in no paper",)
    return Result("conditional", request.mode, request.preset, request.seed, values, settings, seconds, notes=notes)


def _part(settings: Mapping[str, Any], table: str, name: str, s: int, data: Any) -> dict[str, Any]:
    """Fit one family to the training rows of a split; return its scores on the test rows."""
    task = TABLES[table]
    seed = settings["seed"] + s
    dataset = datasets.load(table, data)
    X, y = np.asarray(dataset.X, dtype=np.float64), np.asarray(dataset.y)
    train, test = split(len(X), seed)
    kind: Any = estimator_class(families()[name].tasks[task])
    begun = time.perf_counter()
    with warnings.catch_warnings(action="ignore"):  # convergence warnings: the values show it
        estimator = kind(random_state=seed, **settings["options"][name]).fit(X[train], y[train])
    seconds = time.perf_counter() - begun
    forecast = estimator.predict_dist(X[test])
    log_p = np.asarray(forecast.log_prob(y[test]))
    scores = {"seconds": seconds, "worst": float(log_p.min())}
    if name == "graph":
        scores |= {"hidden": estimator.structure_.statistics["mean_hidden"]}
        scores |= {"used": float(sum(chain.get("weight", 0.0) > 0.0 for chain in estimator.chains_))}
    if task == "classification":
        return {**scores, "log_likelihood": float(log_p.mean()), "accuracy": float(estimator.score(X[test], y[test]))}
    scale = float(y[train].std())
    low, high = estimator.predict_interval(X[test])
    return {
        **scores,
        "log_likelihood": float(log_p.mean()) + math.log(scale),
        "rmse": float(np.sqrt(np.mean((estimator.predict(X[test]) - y[test]) ** 2))) / scale,
        "coverage": float(np.mean((low <= y[test]) & (y[test] <= high))),
    }


def figure(result: Result) -> Any:
    """Draw the gain in log-likelihood of the graphs over the other families, for every table."""
    from experiments.pictures import draw_dots, panels
    from fathomless.plots.canvas import legend, start

    tables = list(result.settings["tables"])
    page, axes = panels(1, across=1, width=max(4.4, 0.95 * len(tables)))
    start(axes[0], "Log-likelihood: infinite graphs minus other families", "", "nats per row")
    gains = {name: [result.values[f"{t}/gained_over_{name}"] for t in tables] for name in MODELS[1:]}
    draw_dots(axes[0], tables, gains)
    legend(axes[0])
    return page
