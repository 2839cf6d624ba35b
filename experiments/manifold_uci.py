"""The nine tables of ``uci`` by weight manifolds, beside their own first stage and mean-field weights.

Split s shuffles the rows with seed s and keeps a tenth for the test. Compared are

- **manifold**: :class:`~fathomless.families.manifold.estimator.ProjectedBayesRegressor` as it comes;
- **linear**: the same with a linear decoder;
- **candidates**: the networks of its first stage, alike, with the same noise: what stages two and three buy is the
  difference;
- **mean_field**: independent normal laws over the weights of the same network with the same prior and noise;
- **tuned**: the same from the best candidate, with the standard deviation of the prior once, twice or four times as
  large, whichever says more of a fifth of the training rows, and then of all of them;
- **library**: the library's own :class:`~fathomless.families.baselines.estimator.MeanFieldNetworkRegressor` as it
  comes.

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
from experiments.results import Request, Result, Value, paired, repeated
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

#: What is compared, the first with the others.
MODELS = ("manifold", "linear", "candidates", "mean_field", "tuned", "library")
_WIDER = (1.0, 2.0, 4.0)  # priors that are tried
_PRIOR = WeightPrior(0.5**0.5, fan_in=True)
_DRAWS = 320  # networks in a prediction


def run(request: Request) -> Result:
    """Score every model on every table; see :class:`experiments.Module`.

    Both presets are the same: the paper leaves most of its settings open. The smoke run takes a table that comes with
    scikit-learn, one split and short stages, and needs no data folder.
    """
    full = request.mode == "full"
    short = {"candidates": 20, "candidate_steps": 200, "decoder_steps": 200, "latent_steps": 80, "width": 16}
    settings: dict[str, Any] = {
        "seed": request.seed,
        "splits": dict(SPLITS) if full else {"diabetes": 1},
        "options": {} if full else short,
        "mean_field_steps": 3000 if full else 300,
        "library": {} if full else {"epochs": 30},
    }
    cells = [(table, s) for table, count in settings["splits"].items() for s in range(count)]
    parts = {f"{t}/{s}": partial(_part, settings, t, s, request.data) for t, s in cells}
    found, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for table, count in settings["splits"].items():
        values |= repeated(found, table, count)
        scores = {m: [found[f"{table}/{s}"][f"{m}/log_likelihood"] for s in range(count)] for m in MODELS}
        for name in MODELS[1:]:
            values[f"{table}/gained_over_{name}"] = paired(scores["manifold"], scores[name])
    for name in MODELS[1:]:
        gains = [values[f"{table}/gained_over_{name}"].value for table in settings["splits"]]
        values[f"least_gained_over_{name}"] = Value(min(gains))
        values[f"ahead_of_{name}"] = Value(float(sum(gain > 0.0 for gain in gains)))
    notes: tuple[str, ...] = ("RMSE and log-likelihood (nats per row) are of the standardised target.",)
    if request.preset == "paper":
        notes += ("both presets are the same: the paper leaves most of its settings open",)
    return Result("manifold_uci", request.mode, request.preset, request.seed, values, settings, seconds, notes=notes)


def _part(settings: Mapping[str, Any], table: str, s: int, data: str | PathLike[str] | None) -> dict[str, float]:
    """Fit all models to one split; return their scores on the other rows."""
    found, seed = datasets.load(table, data), settings["seed"] + s
    X, y = np.asarray(found.X, dtype=np.float64), np.asarray(found.y, dtype=np.float64)
    train, test = split(len(X), seed)
    told: dict[str, float] = {}
    given: Mapping[str, Any] = {"random_state": seed, **settings["options"]}
    seen: dict[str, Tensor] = {}

    def keep(stages: Any) -> None:
        seen.update(stages.found)

    kinds: dict[str, dict[str, Any]] = {"linear": {"decoder_width": 0}, "manifold": {"callbacks": [keep]}}
    for name, options in kinds.items():
        kind = ProjectedBayesRegressor(**given, **options)
        told |= _of_estimator(name, kind, X[train], y[train], X[test], y[test])
    own = _Networks(kind, seen, X[train], y[train], X[test], y[test])
    weights = seen["decoder/weights"]
    even = torch.full((len(weights),), -math.log(len(weights)), dtype=torch.float64)
    told |= own.scores("candidates", weights, even)
    steps = settings["mean_field_steps"]
    scale = own.network.prior_scale(_PRIOR).to(weights)
    noise = as_generator(fold_in(seed, "start"))
    start = scale * torch.randn(scale.shape, generator=noise, dtype=scale.dtype)
    told |= own.of_mean_field("mean_field", own.rows, scale, start, steps, seed)
    fifth = torch.arange(len(own.rows)) % 5 == 0
    inside, outside = own.rows.take(~fifth), own.rows.take(fifth)
    tried = [own.judged(inside, outside, wider * scale, weights[0], steps, seed) for wider in _WIDER]
    wider = _WIDER[int(np.argmax(tried))]
    told |= own.of_mean_field("tuned", own.rows, wider * scale, weights[0], steps, seed)
    told["tuned/wider"] = wider
    library = MeanFieldNetworkRegressor(random_state=seed, **settings["library"])
    return told | _of_estimator("library", library, X[train], y[train], X[test], y[test])


def _of_estimator(name: str, estimator: Any, X: Any, y: Any, X_test: Any, y_test: Any) -> dict[str, float]:
    start, scale = time.process_time(), float(y.std())
    with warnings.catch_warnings(action="ignore"):  # of convergence: the values tell
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
    """Networks of the first stage's kind on standardised rows, with the noise that unseen rows have chosen."""

    def __init__(self, fitted: Any, seen: Mapping[str, Tensor], X: Any, y: Any, X_test: Any, y_test: Any) -> None:
        self.network: FlatNetwork = fitted.model_.network
        self.likelihood: Likelihood = fitted.likelihood_
        dtype = seen["decoder/weights"].dtype
        centre, scale = X.mean(0), np.where(X.std(0) > 0.0, X.std(0), 1.0)
        x, x_test = (torch.as_tensor((part - centre) / scale, dtype=dtype) for part in (X, X_test))
        target, target_test = ((part - y.mean()) / y.std() for part in (y, y_test))
        self.rows = Rows(x, torch.as_tensor(target, dtype=dtype)[:, None])
        self.test = replace(self.rows, x=x_test, y=torch.as_tensor(target_test, dtype=dtype)[:, None])

    @torch.no_grad()
    def log_prob(self, weights: Tensor, log_weight: Tensor, rows: Rows) -> Tensor:
        """Return the log density of rows under a mixture of networks, (N,)."""
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

    def fitted(self, rows: Rows, scale: Tensor, start: Tensor, steps: int, seed: int) -> ProjectedNetwork:
        """Fit mean field."""
        return mean_field(self.network, self.likelihood, rows, scale, start, steps, fold_in(seed, "mean field"))

    def drawn(self, model: ProjectedNetwork, seed: int) -> tuple[Tensor, Tensor]:
        """Draw networks."""
        with torch.no_grad():
            return model.sample_weights(_DRAWS, as_generator(fold_in(seed, "draws")))

    def judged(self, inside: Rows, outside: Rows, scale: Tensor, start: Tensor, steps: int, seed: int) -> float:
        """Return the log density of rows that mean field has not seen."""
        return float(self.log_prob(*self.drawn(self.fitted(inside, scale, start, steps, seed), seed), outside).mean())

    def of_mean_field(
        self, name: str, rows: Rows, scale: Tensor, start: Tensor, steps: int, seed: int
    ) -> dict[str, float]:
        """Fit mean field, and score it."""
        begun = time.process_time()
        model = self.fitted(rows, scale, start, steps, seed)
        seconds = time.process_time() - begun
        return self.scores(name, *self.drawn(model, seed)) | {f"{name}/cpu_seconds": seconds}


def figure(result: Result) -> Any:
    """Draw the scores of all models for every table."""
    from experiments.pictures import dots, panels
    from fathomless.plots.canvas import legend, start

    tables = list(result.settings["splits"])
    page, axes = panels(2, across=1, width=max(4.4, 0.95 * len(tables)), height=2.6)
    titles = {"rmse": "RMSE", "log_likelihood": "Log-likelihood"}
    units = ("standard deviations of the target", "nats per row")
    for ax, (score, title), unit in zip(axes, titles.items(), units, strict=True):
        start(ax, title, "", unit)
        dots(ax, tables, {m.replace("_", " "): [result.values[f"{t}/{m}/{score}"] for t in tables] for m in MODELS})
    legend(axes[0])
    return page
