"""Regression on nine tables: unbounded depth compared with finite depths (Nazaret and Blei 2022, Figure 8).

Both presets train :class:`~fathomless.families.depth.estimator.UnboundedDepthRegressor` on all splits of a table in one
batch. The preset "paper" has width 8, noise fixed at one standard deviation of the target, the quantile-truncated
family with initial λ = 1, Adam with the constant learning rate 0.01, and finite depths L = 2..6. "default" is the
regressor with default options and learned noise, compared with finite depths L = 1..6 with the same options.

Split s shuffles the rows with seed s and keeps 10 % as the test set. The estimator standardises with the other 90 % and
holds out a ninth of them (10 % of all) to choose the epoch. There are three differences from the paper's code: inputs
and target are standardised with training and validation rows together; evaluations on the validation rows are at least
eight steps apart (not every epoch if an epoch has fewer steps); and the divergence of a head counts at its own depth
only.
"""

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from experiments.results import Request, Result, Value, average, paired_difference
from fathomless.data import datasets
from fathomless.estimators.variational import fit_together
from fathomless.families.depth.estimator import UnboundedDepthRegressor
from fathomless.nn.architectures import MLP
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.metrics import nll, rmse
from fathomless.system.jobs import run_parts

__all__ = ["DEEP", "SHALLOW", "SPLITS", "figure", "plan", "run", "split"]

#: Tables for which the paper finds a mean depth below two.
SHALLOW = ("yacht", "boston", "energy", "concrete", "power")
#: Tables for which the paper finds deeper networks.
DEEP = ("wine_red", "naval", "kin8nm", "protein")

_SMALL, _LARGE = ("yacht", "boston", "energy", "concrete", "wine_red"), ("power", "kin8nm", "naval")
_FULL: Mapping[str, Mapping[str, tuple[int, int | str]]] = {  # splits and epochs
    "paper": {**dict.fromkeys(_SMALL, (10, 1000)), **dict.fromkeys(_LARGE, (4, 150)), "protein": (2, 50)},
    "default": {**dict.fromkeys(_SMALL, (5, "auto")), **dict.fromkeys(_LARGE, (3, "auto")), "protein": (2, "auto")},
}
#: Number of splits of each table with the default preset.
SPLITS: Mapping[str, int] = {table: splits for table, (splits, _) in _FULL["default"].items()}
_SMOKE: Mapping[str, tuple[int, int | str]] = {"diabetes": (2, 60)}
_SCORES = ("rmse", "log_likelihood", "mean_depth", "validation")


def _narrow_network(inputs: int, outputs: int) -> MLP:
    return MLP(inputs, outputs, width=8, initialisation="default")


_PAPER: Mapping[str, Any] = {
    "architecture": _narrow_network,
    "noise": 1.0,
    "structure_from": "elbo",
    "structure_from__rate": 0.1,
    "structure_from__initial_depth": 1.0,
    "min_depth": 1,
    "learning_rate": 0.01,
    "batch_size": 256,
    "optimizer__schedule": "constant",
    "patience": None,
    "calibrate": False,
    "precision": "float32",
}


def plan(preset: str) -> dict[str, dict[str, Any]]:
    """Return the options of every model by name: first udn, then the finite depths.

    Examples
    --------
    >>> list(plan("paper"))
    ['udn', 'L2', 'L3', 'L4', 'L5', 'L6']
    """
    if preset == "paper":
        depths = {f"L{depth}": {**_PAPER, "depth_law": depth} for depth in range(2, 7)}
        return {"udn": {**_PAPER, "depth_law": "quantile"}, **depths}
    return {"udn": {}, **{f"L{depth}": {"depth_law": depth} for depth in range(1, 7)}}


def run(request: Request) -> Result:
    """Score the models of a preset on every table; see :class:`experiments.Module`.

    The smoke run uses a table of scikit-learn, two splits, and few epochs and depths. It needs no data folder.
    """
    tables = _FULL[request.preset] if request.mode == "full" else _SMOKE
    models = plan(request.preset)
    if request.mode == "smoke":
        models = {name: models[name] for name in ("udn", "L2", "L4")}
    settings: dict[str, Any] = {
        "seed": request.seed,
        "preset": request.preset,
        "splits": {table: splits for table, (splits, _) in tables.items()},
        "epochs": {table: epochs for table, (_, epochs) in tables.items()},
        "models": {
            name: {k: v.__name__ if callable(v) else v for k, v in options.items()} for name, options in models.items()
        },
    }
    parts = {
        f"{table}/{name}": (lambda t=table, o=options: _score(t, settings, o, request.data))
        for table in tables
        for name, options in models.items()
    }
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values = {}
    for table in tables:
        values.update(_compare(table, {name: results[f"{table}/{name}"] for name in models}))
    if request.mode == "full":
        deep = min(values[f"{table}/udn/mean_depth"].value for table in DEEP)
        values["depth_gap"] = Value(deep - max(values[f"{table}/udn/mean_depth"].value for table in SHALLOW))
    notes = ("RMSE and log-likelihood (nats per row) are of the standardised target; rmse_original has its units.",)
    return Result("uci", request.mode, request.preset, request.seed, values, settings, seconds, notes=notes)


def _compare(table: str, scores: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Value]:
    """Summarise one table: every model, and udn compared with the finite depth chosen by validation score."""
    values = {}
    for name, own in scores.items():
        values.update({f"{table}/{name}/{score}": average(own[score]) for score in _SCORES})
        original = [error * scale for error, scale in zip(own["rmse"], own["scale"], strict=True)]
        values[f"{table}/{name}/rmse_original"] = average(original)
    udn = scores["udn"]
    finite = [name for name in scores if name.startswith("L")]
    best = max(finite, key=lambda name: math.fsum(scores[name]["validation"]))
    values[f"{table}/best_depth"] = Value(float(best[1:]))
    values[f"{table}/rmse_saved"] = paired_difference(scores[best]["rmse"], udn["rmse"])
    values[f"{table}/log_likelihood_gained"] = paired_difference(udn["log_likelihood"], scores[best]["log_likelihood"])
    return values


# ------------------------------------------------------------------------------------------ one model, all splits

Array = npt.NDArray[Any]


def _score(
    table: str, settings: Mapping[str, Any], options: Mapping[str, Any], data: str | PathLike[str] | None
) -> dict[str, list[float]]:
    """Fit one model to all splits of a table in one batch; return its scores, one for each split."""
    dataset = datasets.load(table, data)
    X, y = np.asarray(dataset.X, dtype=np.float64), np.asarray(dataset.y, dtype=np.float64)
    splits = [split(len(X), settings["seed"] + s) for s in range(settings["splits"][table])]
    estimators = [
        UnboundedDepthRegressor(
            epochs=settings["epochs"][table],
            validation_fraction=1 / 9,
            random_state=settings["seed"] + s,
        ).set_params(**{"structure_from": "elbo", "likelihood": "gaussian", **options})
        for s in range(len(splits))
    ]
    fit_together(estimators, [(X[train], y[train]) for train, _ in splits])
    scores: dict[str, list[float]] = {name: [] for name in (*_SCORES, "scale")}
    for estimator, (train, test) in zip(estimators, splits, strict=True):
        forecast = cast(ContinuousPredictive, estimator.predict_dist(X[test]))
        scale = float(y[train].std())
        scores["rmse"].append(rmse(y[test], forecast.mean) / scale)
        scores["log_likelihood"].append(math.log(scale) - nll(forecast.log_prob(y[test])))
        scores["mean_depth"].append(estimator.structure_.statistics["mean_depth"])
        scores["validation"].append(cast(float, estimator.validation_score_))
        scores["scale"].append(scale)
    return scores


def split(rows: int, seed: int) -> tuple[Array, Array]:
    """Return shuffled training indices (nine tenths) and test indices (a tenth) of a split; `seed` is its number."""
    order = np.random.default_rng(seed).permutation(rows)
    return order[rows // 10 :], order[: rows // 10]


# ----------------------------------------------------------------------------------------------------- the figure


def figure(result: Result) -> Any:
    """Draw RMSE and log-likelihood of all models, and the mean depth of the first one, for every table."""
    from experiments.pictures import draw_dots, panels
    from fathomless.plots.canvas import legend, start

    tables = list(result.settings["splits"])
    models = list(result.settings["models"])
    page, axes = panels(3, across=1, width=max(4.4, 0.95 * len(tables)), height=2.6)
    titles = ("RMSE", "Log-likelihood", "Mean depth")
    units = ("standard deviations of the target", "nats per row", "layers")
    for ax, score, title, unit in zip(axes, _SCORES, titles, units, strict=False):
        start(ax, title, "", unit)
        shown = models if score != "mean_depth" else models[:1]
        draw_dots(ax, tables, {m: [result.values[f"{t}/{m}/{score}"] for t in tables] for m in shown})
    legend(axes[0])
    return page
