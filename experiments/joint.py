"""Joint inference of depth and sparsity: scores and cost (in no paper).

A network of unbounded depth is fitted to real tables with three kinds of weights: point estimates, a Gaussian on each,
and a Gaussian with an inclusion variable. The divergence of a layer's weights is multiplied by the probability that the
layer is used, so the posteriors over depth and over weights interact: in a layer that few depths use the penalty on
weights is small, and a layer without weights has no output. Densities are those of the network of the most probable
depth.
"""

import time
from collections.abc import Mapping
from os import PathLike
from typing import Any, cast

import numpy as np

from experiments.results import Request, Result, Value, average, paired_difference
from fathomless.data import datasets
from fathomless.families.depth.estimator import UnboundedDepthRegressor
from fathomless.families.sparse.model import inclusion_table
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.metrics import nll, rmse
from fathomless.system.jobs import run_parts

__all__ = ["WEIGHTS", "figure", "run"]

# no early stopping: the held-out score is best before the structure has converged
_DRAWN: dict[str, Any] = {"weight_prior": 0.3, "validation_fraction": 0.0, "patience": None}
#: Options of each kind of weights.
WEIGHTS: dict[str, dict[str, Any]] = {
    "map": {},
    "gaussian": {"weights": "meanfield", **_DRAWN},
    "sparse": {"weights": "sparse", **_DRAWN},
}
_SCORES = ("log_likelihood", "rmse", "mean_depth", "density", "expected_density", "cpu_seconds")


def run(request: Request) -> Result:
    """Fit every kind of weights to every table; see :class:`experiments.Module`.

    This experiment is in no paper: both presets are the same. The smoke run needs no data folder.
    """
    full = request.mode == "full"
    # the smoke run is too short for weights to be pruned at 0.02
    kinds = {kind: own and {**own, "temperature": 0.02 if full else 0.1} for kind, own in WEIGHTS.items()}
    settings: dict[str, Any] = {
        "seed": request.seed,
        "tables": ("concrete", "energy", "yacht") if full else ("diabetes",),
        "splits": 3 if full else 1,
        "epochs": 400 if full else 120,
        "batch_size": 64,
        "learning_rate": 0.01,
        "kinds": kinds,
    }
    parts = {
        f"{name}/{kind}/{s}": (lambda n=name, o=options, s=s: _score(n, o, s, settings, request.data))
        for name in settings["tables"]
        for kind, options in kinds.items()
        for s in range(settings["splits"])
    }
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for name in settings["tables"]:
        scores = {
            kind: {
                score: [results[f"{name}/{kind}/{s}"][score] for s in range(settings["splits"])] for score in _SCORES
            }
            for kind in WEIGHTS
        }
        values |= {f"{name}/{kind}/{score}": average(own[score]) for kind, own in scores.items() for score in own}
        for other in ("map", "gaussian"):
            gained = paired_difference(scores["sparse"]["log_likelihood"], scores[other]["log_likelihood"])
            values[f"{name}/log_likelihood_gained_over_{other}"] = gained
    notes = ("both presets are the same: this experiment is in no paper",) if request.preset == "paper" else ()
    return Result("joint", request.mode, request.preset, request.seed, values, settings, seconds, notes=notes)


def _score(
    name: str, options: Mapping[str, Any], split: int, settings: Mapping[str, Any], data: str | PathLike[str] | None
) -> dict[str, float]:
    """Fit one network to one split; return its test scores, in standard deviations of the target."""
    dataset = datasets.load(name, data)
    X, y = np.asarray(dataset.X, dtype=np.float64), np.asarray(dataset.y, dtype=np.float64)
    train, test = dataset.splits[split] if dataset.splits else _split_halves(len(X), settings["seed"] + split)
    y = (y - y[train].mean()) / y[train].std()
    start = time.process_time()
    estimator = UnboundedDepthRegressor(
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        learning_rate=settings["learning_rate"],
        width=32,
        structure_from="elbo",
        random_state=settings["seed"] + split,
        **options,
    ).fit(X[train], y[train])
    seconds = time.process_time() - start
    forecast = cast(ContinuousPredictive, estimator.predict_dist(X[test]))
    likely = max(estimator.depth_posterior_, key=lambda depth: estimator.depth_posterior_[depth])
    rows = [row for row in inclusion_table(estimator.model_) if _is_used(row.layer, likely)]
    weights = max(sum(row.weights for row in rows), 1)
    return {
        "log_likelihood": -nll(forecast.log_prob(y[test])),
        "rmse": rmse(y[test], forecast.mean),
        "mean_depth": estimator.structure_.statistics["mean_depth"],
        "density": sum(row.kept for row in rows) / weights if rows else 1.0,
        "expected_density": sum(row.expected * row.weights for row in rows) / weights if rows else 1.0,
        "cpu_seconds": seconds,
    }


def _is_used(part: str, depth: int) -> bool:
    """Return True if the network of this depth has a part, such as "layers.2.0" or "heads.3"."""
    kind, number, *_ = part.split(".")
    return int(number) == depth if kind == "heads" else int(number) <= depth


def _split_halves(rows: int, seed: int) -> tuple[Any, Any]:
    order = np.random.default_rng(seed).permutation(rows)
    return order[: rows // 2], order[rows // 2 :]


def figure(result: Result) -> Any:
    """Draw log-likelihood, mean depth and density of every kind of weights, for every table."""
    from experiments.pictures import draw_dots, panels
    from fathomless.plots.canvas import legend, start

    tables, kinds = list(result.settings["tables"]), list(result.settings["kinds"])
    page, axes = panels(3, across=3, width=3.4)
    shown = (
        ("log_likelihood", "Log-likelihood", "nats per row"),
        ("mean_depth", "Mean depth", "layers"),
        ("density", "Weights kept", "share"),
    )
    for ax, (score, title, unit) in zip(axes, shown, strict=True):
        start(ax, title, "", unit)
        draw_dots(ax, tables, {kind: [result.values[f"{t}/{kind}/{score}"] for t in tables] for kind in kinds})
    legend(axes[0])
    return page
