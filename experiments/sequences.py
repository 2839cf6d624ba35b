"""Transformers of unbounded depth with Bayesian layers (not in the paper).

There are two tasks. "rows": a digit of 8 × 8 pixels (from scikit-learn) as a sequence of eight rows. "columns": a real
table whose columns are tokens. Each task is learned by a transformer of unbounded depth and by the same transformer at
fixed depths, with point estimates of the weights and with an independent Gaussian on every weight. All models have the
same options, splits and seeds; only depth and weights differ.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, cast

import numpy as np
from torch import nn

from experiments.results import Request, Result, Value, average, paired_difference
from fathomless.data import datasets
from fathomless.families.depth.estimator import UnboundedDepthClassifier
from fathomless.nn.architectures import Architecture, SequenceTransformer, TabularTransformer
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.metrics import accuracy, expected_calibration_error, nll
from fathomless.system.jobs import run_parts

__all__ = ["ImageRows", "figure", "run"]

_SCORES = ("accuracy", "log_likelihood", "calibration_error", "mean_depth")
_TABLES = {"rows": "digits", "columns": "magic_telescope"}
_ROWS = 3000  # largest number of rows of a table, drawn at random; half of them are the training set


@dataclass(frozen=True)
class ImageRows(Architecture):
    """Transformer over the rows of square images, which are given as flat columns.

    Parameters
    ----------
    side, outputs, width : int
        Number of pixels on a side, number of parameters of the likelihood, width of the model.
    """

    side: int
    outputs: int
    width: int = 32

    def layer(self, depth: int) -> nn.Module:
        """Return a pre-norm block; the first one splits the image into rows and embeds them."""
        block = self._blocks().layer(depth)
        return nn.Sequential(nn.Unflatten(1, (self.side, self.side)), block) if depth == 1 else block

    def head(self, depth: int) -> nn.Module:
        """Return a head that normalises, averages over rows and applies a linear map."""
        return self._blocks().head(depth)

    def _blocks(self) -> SequenceTransformer:
        return SequenceTransformer(
            self.side, self.outputs, self.side, tokens=False, width=self.width, hidden=2 * self.width
        )


def _rows(inputs: int, outputs: int) -> ImageRows:
    return ImageRows(round(inputs**0.5), outputs)


def _columns(inputs: int, outputs: int) -> TabularTransformer:
    return TabularTransformer(inputs, outputs, width=32, hidden=64)


_NETWORKS = {"rows": _rows, "columns": _columns}


def run(request: Request) -> Result:
    """Score all models on every task; see :class:`experiments.Module`.

    This experiment is in no paper: both presets are the same. The smoke run needs no data folder.
    """
    full = request.mode == "full"
    finite = (1, 2, 4, 6) if full else (2,)
    models: dict[str, dict[str, Any]] = {"udn": {}, **{f"L{depth}": {"depth_law": depth} for depth in finite}}
    models["udn_gaussian"] = {"weights": "meanfield"}
    if full:
        models["L2_gaussian"] = {"weights": "meanfield", "depth_law": 2}
    settings: dict[str, Any] = {
        "seed": request.seed,
        "tasks": {task: _TABLES[task] for task in (("rows", "columns") if full else ("rows",))},
        "repetitions": 3 if full else 1,
        "epochs": 100 if full else 20,
        "batch_size": 128,
        "rows": _ROWS if full else 600,
        "models": models,
    }
    parts = {
        f"{task}/{name}/{s}": (
            lambda task=task, o=options, s=s: _score(task, settings, o, request.seed + s, request.data)
        )
        for task in settings["tasks"]
        for name, options in models.items()
        for s in range(settings["repetitions"])
    }
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for task in settings["tasks"]:
        scores = {
            name: {
                score: [results[f"{task}/{name}/{s}"][score] for s in range(settings["repetitions"])] for score in _ALL
            }
            for name in models
        }
        values.update(_compare(task, scores))
    notes = ("both presets are the same: this experiment is not in the paper",) if request.preset == "paper" else ()
    return Result("sequences", request.mode, request.preset, request.seed, values, settings, seconds, notes=notes)


_ALL = (*_SCORES, "validation")


def _compare(task: str, scores: Mapping[str, Mapping[str, Sequence[float]]]) -> dict[str, Value]:
    values = {f"{task}/{name}/{score}": average(own[score]) for name, own in scores.items() for score in own}
    finite = [name for name in scores if name.startswith("L") and name[1:].isdecimal()]
    best = max(finite, key=lambda name: sum(scores[name]["validation"]))
    values[f"{task}/best_depth"] = Value(float(best[1:]))
    for score in ("accuracy", "log_likelihood"):
        values[f"{task}/{score}_gained"] = paired_difference(scores["udn"][score], scores[best][score])
        values[f"{task}/{score}_gained_by_gaussian"] = paired_difference(
            scores["udn_gaussian"][score], scores["udn"][score]
        )
    return values


def _score(
    task: str, settings: Mapping[str, Any], options: Mapping[str, Any], seed: int, data: str | PathLike[str] | None
) -> dict[str, float]:
    """Fit one model to the training rows of a split; return its scores on the test rows."""
    dataset = datasets.load(settings["tasks"][task], data)
    X, y = np.asarray(dataset.X, dtype=np.float64), np.asarray(dataset.y)
    chosen = np.random.default_rng(seed).permutation(len(X))[: settings["rows"]]
    train, test = chosen[: len(chosen) // 2], chosen[len(chosen) // 2 :]
    estimator = UnboundedDepthClassifier(
        architecture=_NETWORKS[task],
        min_depth=1,
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        precision="float32",
        learning_rate=2e-3,
        patience=None,
        structure_from="elbo",
        random_state=seed,
        **options,
    )
    estimator.fit(X[train], y[train])
    forecast = cast(ClassPredictive, estimator.predict_dist(X[test]))
    labels = np.searchsorted(estimator.classes_, y[test])
    return {
        "accuracy": accuracy(y[test], forecast.predict()),
        "log_likelihood": -nll(forecast.log_prob(y[test])),
        "calibration_error": expected_calibration_error(labels, forecast.probs),
        "mean_depth": estimator.structure_.statistics["mean_depth"],
        "validation": cast(float, estimator.validation_score_),
    }


def figure(result: Result) -> Any:
    """Draw accuracy, log-likelihood and mean depth of all models, for every task."""
    from experiments.pictures import draw_dots, panels
    from fathomless.plots.canvas import legend, start

    tasks, models = list(result.settings["tasks"]), list(result.settings["models"])
    page, axes = panels(3, across=3, width=3.4)
    shown = (("accuracy", "Accuracy", "share"), ("log_likelihood", "Log-likelihood", "nats per row"))
    for ax, (score, title, unit) in zip(axes, (*shown, ("mean_depth", "Mean depth", "layers")), strict=True):
        start(ax, title, "", unit)
        draw_dots(ax, tasks, {m: [result.values[f"{t}/{m}/{score}"] for t in tasks] for m in models})
    legend(axes[0])
    return page
