"""Continuous depth on the nine tables of ``uci``, compared with unbounded depth, finite depths and mean-field weights.

All regressors have default options and the splits of ``uci``: split s shuffles the rows with seed s and keeps a tenth
as the test set. Models are ranked on every table by their mean log-likelihood; rank 1 is the best.
"""

import math
import time
from collections.abc import Mapping
from functools import partial
from os import PathLike
from typing import Any, cast

import numpy as np

from experiments.results import Request, Result, Value, average, average_parts, paired_difference
from experiments.uci import SPLITS, split
from fathomless.data import datasets
from fathomless.estimators.tasks import Regressor
from fathomless.families.baselines.estimator import MeanFieldNetworkRegressor
from fathomless.families.continuous.estimator import ContinuousDepthRegressor
from fathomless.families.depth.estimator import UnboundedDepthRegressor
from fathomless.posterior.metrics import nll, rmse
from fathomless.system.jobs import run_parts

__all__ = ["MODELS", "figure", "run"]

#: Class and options of every model; the first is compared with the others.
MODELS: Mapping[str, tuple[type[Regressor], Mapping[str, Any]]] = {
    "continuous": (ContinuousDepthRegressor, {}),
    "udn": (UnboundedDepthRegressor, {}),
    "L2": (UnboundedDepthRegressor, {"depth_law": 2}),
    "L4": (UnboundedDepthRegressor, {"depth_law": 4}),
    "meanfield": (MeanFieldNetworkRegressor, {}),
}


def run(request: Request) -> Result:
    """Score every model on every table; see :class:`experiments.Module`.

    This experiment is in no paper: both presets are the same. The smoke run uses a table of scikit-learn, one split and
    short trainings. It needs no data folder.
    """
    full = request.mode == "full"
    models = MODELS if full else {name: MODELS[name] for name in ("continuous", "udn", "meanfield")}
    short: Mapping[str, Any] = {} if full else {"continuous": {"cv": 3}, "udn": {"cv": 3}}
    settings: dict[str, Any] = {
        "seed": request.seed,
        "splits": dict(SPLITS) if full else {"diabetes": 1},
        "models": {name: {**options, **short.get(name, {})} for name, (_, options) in models.items()},
        "options": {} if full else {"epochs": 10, "learning_rate": 0.03},
    }
    cells = [(table, name, s) for table, count in settings["splits"].items() for name in models for s in range(count)]
    parts = {f"{t}/{name}/{s}": partial(_part, settings, t, name, s, request.data) for t, name, s in cells}
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for table, count in settings["splits"].items():
        for name in models:
            values |= average_parts(results, f"{table}/{name}", count)
        scores = {m: [results[f"{table}/{m}/{s}"]["log_likelihood"] for s in range(count)] for m in models}
        for name in list(models)[1:]:
            gained = paired_difference(scores["continuous"], scores[name])
            values[f"{table}/log_likelihood_gained_over_{name}"] = gained
    values |= _rank(values, list(settings["splits"]), list(models))
    notes: tuple[str, ...] = ("RMSE and log-likelihood (nats per row) are of the standardised target.",)
    if request.preset == "paper":
        notes += ("both presets are the same: this experiment is in no paper",)
    return Result("continuous_uci", request.mode, request.preset, request.seed, values, settings, seconds, notes=notes)


def _rank(values: Mapping[str, Value], tables: list[str], models: list[str]) -> dict[str, Value]:
    """Rank models by log-likelihood; count tables with an RMSE at most 1.1 times that of unbounded depth."""
    ranks: dict[str, list[float]] = {name: [] for name in models}
    for table in tables:
        order = sorted(models, key=lambda name: -values[f"{table}/{name}/log_likelihood"].value)
        for name in models:
            ranks[name].append(1.0 + order.index(name))
    found = {f"rank/{name}": average(own) for name, own in ranks.items()}
    found["rank_gained_over_meanfield"] = Value(found["rank/meanfield"].value - found["rank/continuous"].value)
    near = [values[f"{t}/continuous/rmse"].value <= 1.1 * values[f"{t}/udn/rmse"].value for t in tables]
    return {**found, "tables_near_udn": Value(float(sum(near)))}


def _part(
    settings: Mapping[str, Any], table: str, name: str, s: int, data: str | PathLike[str] | None
) -> dict[str, float]:
    """Fit one model to the training rows of a split; return its scores on the test rows."""
    dataset = datasets.load(table, data)
    seed = settings["seed"] + s
    X, y = np.asarray(dataset.X, dtype=np.float64), np.asarray(dataset.y, dtype=np.float64)
    train, test = split(len(X), seed)
    kind, options = cast(Any, MODELS[name][0]), settings["models"][name]
    start = time.process_time()
    estimator = kind(random_state=seed, **{**options, **settings["options"]}).fit(X[train], y[train])
    seconds = time.process_time() - start
    scale = float(y[train].std())
    forecast = estimator.predict_dist(X[test])
    low, high = estimator.predict_interval(X[test])
    return {
        "log_likelihood": math.log(scale) - nll(forecast.log_prob(y[test])),
        "rmse": rmse(y[test], forecast.mean) / scale,
        "coverage": float(np.mean((low <= y[test]) & (y[test] <= high))),
        "cpu_seconds": seconds,
    }


def figure(result: Result) -> Any:
    """Draw the scores of all models for every table."""
    from experiments.pictures import draw_dots, panels
    from fathomless.plots.canvas import legend, start

    tables, models = list(result.settings["splits"]), list(result.settings["models"])
    page, axes = panels(3, across=1, width=max(4.4, 0.95 * len(tables)), height=2.6)
    titles = {"rmse": "RMSE", "log_likelihood": "Log-likelihood", "coverage": "Coverage of 90 % intervals"}
    units = ("standard deviations of the target", "nats per row", "share")
    for ax, (score, title), unit in zip(axes, titles.items(), units, strict=True):
        start(ax, title, "", unit)
        draw_dots(ax, tables, {m: [result.values[f"{t}/{m}/{score}"] for t in tables] for m in models})
    legend(axes[0])
    return page
