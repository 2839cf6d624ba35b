"""Weight manifolds on the nine tables of ``uci``, compared with their first stage and with mean-field weights.

Split s shuffles the rows with seed s and keeps a tenth as the test set. The methods are

- **manifold**: :class:`~fathomless.families.manifold.estimator.ProjectedBayesRegressor` with default options;
- **linear**: the same with a linear decoder;
- **candidates**: the networks of the first stage with equal weights and the same noise; the difference is the gain of
  stages two and three;
- **mean_field**: independent normal laws over the weights of the same network with the same prior and noise;
- **tuned**: the same, started from the best candidate. The standard deviation of the prior is multiplied by 1, 2 or 4,
  chosen by the log-likelihood of a fifth of the training rows; the final fit uses all of them;
- **library**: :class:`~fathomless.families.baselines.estimator.MeanFieldNetworkRegressor` with default options.

All but the last have one hidden layer of 50 units.
"""

import math
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.manifolds import mean_field
from experiments.results import Request, Result, Value, average_parts, paired_difference
from experiments.uci import SPLITS, split
from fathomless.data import datasets
from fathomless.data.rows import Rows
from fathomless.families.baselines.estimator import MeanFieldNetworkRegressor
from fathomless.families.manifold.estimator import ProjectedBayesRegressor
from fathomless.families.manifold.model import ProjectedNetwork
from fathomless.families.manifold.network import FlatNetwork
from fathomless.nn.layers import WeightPrior
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system.jobs import run_parts
from fathomless.system.rng import as_generator, fold_in

__all__ = ["MODELS", "figure", "run"]

#: Models; the first is compared with the others.
MODELS = ("manifold", "linear", "candidates", "mean_field", "tuned", "library")
_WIDER = (1.0, 2.0, 4.0)  # factors on the standard deviation of the prior
_PRIOR = WeightPrior(0.5**0.5, fan_in=True)
_DRAWS = 320  # networks in a prediction


def run(request: Request) -> Result:
    """Score every model on every table; see :class:`experiments.Module`.

    Both presets are the same: the paper does not state most of its settings. The smoke run uses a table of
    scikit-learn, one split and short stages. It needs no data folder.
    """
    full = request.mode == "full"
    short = {"candidates": 12, "candidate_steps": 120, "decoder_steps": 120, "latent_steps": 50, "width": 16}
    settings: dict[str, Any] = {
        "seed": request.seed,
        "splits": dict(SPLITS) if full else {"diabetes": 1},
        "options": {} if full else short,
        "mean_field_steps": 3000 if full else 150,
        "library": {} if full else {"epochs": 30},
    }
    cells = [(table, s) for table, count in settings["splits"].items() for s in range(count)]
    parts = {f"{t}/{s}": partial(_part, settings, t, s, request.data) for t, s in cells}
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for table, count in settings["splits"].items():
        values |= average_parts(results, table, count)
        scores = {m: [results[f"{table}/{s}"][f"{m}/log_likelihood"] for s in range(count)] for m in MODELS}
        for name in MODELS[1:]:
            values[f"{table}/gained_over_{name}"] = paired_difference(scores["manifold"], scores[name])
    for name in MODELS[1:]:
        gains = [values[f"{table}/gained_over_{name}"].value for table in settings["splits"]]
        values[f"least_gained_over_{name}"] = Value(min(gains))
        values[f"ahead_of_{name}"] = Value(float(sum(gain > 0.0 for gain in gains)))
    notes: tuple[str, ...] = ("RMSE and log-likelihood (nats per row) are of the standardised target.",)
    if request.preset == "paper":
        notes += ("both presets are the same: the paper does not state most of its settings",)
    return Result("manifold_uci", request.mode, request.preset, request.seed, values, settings, seconds, notes=notes)


def _part(settings: Mapping[str, Any], table: str, s: int, data: str | PathLike[str] | None) -> dict[str, float]:
    """Fit all models to the training rows of a split; return their scores on the test rows."""
    dataset = datasets.load(table, data)
    seed = settings["seed"] + s
    X, y = np.asarray(dataset.X, dtype=np.float64), np.asarray(dataset.y, dtype=np.float64)
    train, test = split(len(X), seed)
    told: dict[str, float] = {}
    given: Mapping[str, Any] = {"random_state": seed, **settings["options"]}
    seen: dict[str, Tensor] = {}

    def keep(stages: Any) -> None:
        seen.update(stages.found)

    kinds: dict[str, dict[str, Any]] = {"linear": {"decoder_width": 0}, "manifold": {"callbacks": [keep]}}
    for name, options in kinds.items():
        kind = ProjectedBayesRegressor(**given, **options)
        told |= _score_estimator(name, kind, X[train], y[train], X[test], y[test])
    own = _Networks(kind, seen, X[train], y[train], X[test], y[test])
    weights = seen["decoder/weights"]
    even = torch.full((len(weights),), -math.log(len(weights)), dtype=torch.float64)
    told |= own.scores("candidates", weights, even)
    steps = settings["mean_field_steps"]
    scale = own.network.prior_scale(_PRIOR).to(weights)
    noise = as_generator(fold_in(seed, "start"))
    start = scale * torch.randn(scale.shape, generator=noise, dtype=scale.dtype)
    told |= own.score_mean_field("mean_field", own.rows, scale, start, steps, seed)
    fifth = torch.arange(len(own.rows)) % 5 == 0
    inside, outside = own.rows.take(~fifth), own.rows.take(fifth)
    tried = [own.score_held_out(inside, outside, wider * scale, weights[0], steps, seed) for wider in _WIDER]
    wider = _WIDER[int(np.argmax(tried))]
    told |= own.score_mean_field("tuned", own.rows, wider * scale, weights[0], steps, seed)
    told["tuned/wider"] = wider
    library = MeanFieldNetworkRegressor(random_state=seed, **settings["library"])
    return told | _score_estimator("library", library, X[train], y[train], X[test], y[test])


def _score_estimator(name: str, estimator: Any, X: Any, y: Any, X_test: Any, y_test: Any) -> dict[str, float]:
    start = time.process_time()
    scale = float(y.std())
    with warnings.catch_warnings(action="ignore"):  # convergence warnings: the values show it
        estimator.fit(X, y)
    seconds = time.process_time() - start
    forecast = estimator.predict_dist(X_test)
    low, high = estimator.predict_interval(X_test)
    log_p = np.asarray(forecast.log_prob(y_test)) + math.log(scale)
    return {
        f"{name}/log_likelihood": float(log_p.mean()),
        f"{name}/worst": float(np.median(log_p) - log_p.min()),
        f"{name}/rmse": float(np.sqrt(np.mean((np.asarray(forecast.mean) - y_test) ** 2))) / scale,
        f"{name}/coverage": float(np.mean((low <= y_test) & (y_test <= high))),
        f"{name}/cpu_seconds": seconds,
    }


class _Networks:
    """Networks with the architecture of the first stage on standardised rows, with noise fitted to held-out rows."""

    def __init__(self, fitted: Any, seen: Mapping[str, Tensor], X: Any, y: Any, X_test: Any, y_test: Any) -> None:
        self.network: FlatNetwork = fitted.model_.network
        self.likelihood: Likelihood = fitted.likelihood_
        dtype = seen["decoder/weights"].dtype
        centre = X.mean(0)
        scale = np.where(X.std(0) > 0.0, X.std(0), 1.0)
        x, x_test = (torch.as_tensor((part - centre) / scale, dtype=dtype) for part in (X, X_test))
        target, target_test = ((part - y.mean()) / y.std() for part in (y, y_test))
        self.rows = Rows(x, torch.as_tensor(target, dtype=dtype)[:, None])
        self.test = replace(self.rows, x=x_test, y=torch.as_tensor(target_test, dtype=dtype)[:, None])

    @torch.no_grad()
    def log_prob(self, weights: Tensor, log_weight: Tensor, rows: Rows) -> Tensor:
        """Return the log density of rows under a mixture of networks, shape (N,)."""
        parts = zip(weights.split(40), log_weight.split(40), strict=True)
        each = [w[:, None] + self.likelihood.log_prob(self.network(part, rows.x), rows.y) for part, w in parts]
        return torch.logsumexp(torch.cat(each), 0).double()

    def scores(self, name: str, weights: Tensor, log_weight: Tensor) -> dict[str, float]:
        """Score a mixture of networks on the test rows."""
        log_p = self.log_prob(weights, log_weight, self.test)
        with torch.no_grad():
            mean = sum(
                (w.double().exp() @ self.network(part, self.test.x)[..., 0].double())
                for part, w in zip(weights.split(40), log_weight.split(40), strict=True)
            )
        return {
            f"{name}/log_likelihood": float(log_p.mean()),
            f"{name}/worst": float(log_p.median() - log_p.min()),
            f"{name}/rmse": float((mean - self.test.y[:, 0]).square().mean().sqrt()),
        }

    def fit_mean_field(self, rows: Rows, scale: Tensor, start: Tensor, steps: int, seed: int) -> ProjectedNetwork:
        """Fit a mean-field posterior."""
        return mean_field(self.network, self.likelihood, rows, scale, start, steps, fold_in(seed, "mean field"))

    def draw_networks(self, model: ProjectedNetwork, seed: int) -> tuple[Tensor, Tensor]:
        """Sample networks from the posterior."""
        with torch.no_grad():
            return model.sample_weights(_DRAWS, as_generator(fold_in(seed, "draws")))

    def score_held_out(self, inside: Rows, outside: Rows, scale: Tensor, start: Tensor, steps: int, seed: int) -> float:
        """Return the mean log density of the rows `outside` under mean field fitted to the rows `inside`."""
        return float(
            self.log_prob(
                *self.draw_networks(self.fit_mean_field(inside, scale, start, steps, seed), seed), outside
            ).mean()
        )

    def score_mean_field(
        self, name: str, rows: Rows, scale: Tensor, start: Tensor, steps: int, seed: int
    ) -> dict[str, float]:
        """Fit a mean-field posterior and score it."""
        begun = time.process_time()
        model = self.fit_mean_field(rows, scale, start, steps, seed)
        seconds = time.process_time() - begun
        return self.scores(name, *self.draw_networks(model, seed)) | {f"{name}/cpu_seconds": seconds}


def figure(result: Result) -> Any:
    """Draw the scores of all models for every table."""
    from experiments.pictures import draw_dots, panels
    from fathomless.plots.canvas import legend, start

    tables = list(result.settings["splits"])
    page, axes = panels(2, across=1, width=max(4.4, 0.95 * len(tables)), height=2.6)
    titles = {"rmse": "RMSE", "log_likelihood": "Log-likelihood"}
    units = ("standard deviations of the target", "nats per row")
    for ax, (score, title), unit in zip(axes, titles.items(), units, strict=True):
        start(ax, title, "", unit)
        draw_dots(
            ax, tables, {m.replace("_", " "): [result.values[f"{t}/{m}/{score}"] for t in tables] for m in MODELS}
        )
    legend(axes[0])
    return page
