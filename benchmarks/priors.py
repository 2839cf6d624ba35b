"""Priors of the weights: one scale for all weights, scales for columns, and both as weighted candidates.

Made tables have five columns that determine the target, and a number of columns of noise. The kinds are "friedman"
(Friedman's function), "interactions" (a sine, a product and an absolute value), "linear", and "teacher" (a random
network of all columns, none of which is noise). Real tables are the published splits in the folder of the environment
variable FATHOMLESS_DATA. The scores are the log-likelihoods of out-of-fold rows and of new rows in nats per row, the
RMSE of new rows in units of the target, and the seconds of the fit. Laws of the residual are not learned
(recalibrate=False).

The priors are the standard deviations 1, 0.3 and 0.1, "columns", "auto" (the default: 1 or "columns", chosen by a short
training), and "candidates": 1 and "columns", weighted by out-of-fold rows, with five networks each where the others
have ten. CatBoost has a normal law with the RMSE of its predictions in five folds; a line says so if it is missing.

    python benchmarks/priors.py made --kinds friedman interactions --noise 0 15 40 --rows 300 1000 --seeds 2
    FATHOMLESS_DATA=FOLDER python benchmarks/priors.py real --tables concrete energy kin8nm --limit 1500 --splits 2
"""

import argparse
import importlib.util
import math
import platform
import time
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from sklearn.model_selection import KFold

import fathomless
from fathomless import UnboundedDepthRegressor
from fathomless.data import datasets

RELEVANT = 5
NEW_ROWS = 2000
KINDS = ("friedman", "interactions", "linear", "teacher")
PRIORS: dict[str, dict[str, Any]] = {
    "1": {"weight_prior": 1.0},
    "0.3": {"weight_prior": 0.3},
    "0.1": {"weight_prior": 0.1},
    "columns": {"weight_prior": "columns"},
    "auto": {"weight_prior": "auto"},
    "candidates": {"candidates": {"weight_prior": (1.0, "columns")}, "cv": 5},
}
Table = tuple[str, Any, Any, Any, Any]


def make(kind: str, rows: int, noise: int, seed: int) -> tuple[Any, Any]:
    """Return features (rows, 5 + noise) and targets (rows,) of a made table."""
    rng = np.random.default_rng([seed, noise, KINDS.index(kind)])
    X = (
        rng.uniform(0.0, 1.0, (rows, RELEVANT + noise))
        if kind == "friedman"
        else rng.normal(size=(rows, RELEVANT + noise))
    )
    match kind:
        case "friedman":
            f = 10.0 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20.0 * (X[:, 2] - 0.5) ** 2 + 10.0 * X[:, 3] + 5.0 * X[:, 4]
            return X, f + rng.normal(0.0, 1.0, rows)
        case "interactions":
            f = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + np.abs(X[:, 3]) - 0.5 * X[:, 4]
            return X, f + rng.normal(0.0, 0.3, rows)
        case "linear":
            return X, X[:, :5] @ np.array([1.0, -1.0, 0.5, 0.5, 0.25]) + rng.normal(0.0, 0.5, rows)
    columns = X.shape[1]
    first = rng.normal(0.0, 1.5 / math.sqrt(columns), (columns, 20))
    f = np.tanh(X @ first + rng.normal(size=20)) @ rng.normal(0.0, 1.0 / math.sqrt(20.0), 20)
    return X, f + rng.normal(0.0, 0.1, rows)


def list_tables(options: argparse.Namespace) -> Iterator[Table]:
    """Yield name, training rows and new rows of every table."""
    if options.source == "made":
        for seed in range(options.seeds):
            for rows in options.rows:
                for kind in options.kinds:
                    for noise in options.noise:
                        X, y = make(kind, rows + NEW_ROWS, noise, seed)
                        yield f"{kind} {rows} noise {noise}, seed {seed}", X[:rows], y[:rows], X[rows:], y[rows:]
        return
    for split in range(options.splits):
        for name in options.tables:
            table = datasets.load(name)
            train, test = table.splits[split]
            train = train[: options.limit]
            target: Any = table.y
            yield f"{name} {len(train)}, split {split}", table.X[train], target[train], table.X[test], target[test]


def score_networks(name: str, table: Table, seed: int) -> dict[str, Any]:
    """Fit the networks with a prior, and return the scores."""
    _, X, y, new_X, new_y = table
    start = time.perf_counter()
    estimator = UnboundedDepthRegressor(**PRIORS[name], recalibrate=False, random_state=seed).fit(X, y)
    seconds = time.perf_counter() - start
    law = estimator.predict_dist(new_X)
    return {
        "out of fold": estimator.validation_score_,
        "new rows": float(law.log_prob(torch.as_tensor(new_y, device="cpu")).mean()),
        "RMSE": float(np.sqrt(np.mean((estimator.predict(new_X) - new_y) ** 2))),
        **({"gain of columns": _show_gain(estimator.trials_[1])} if len(estimator.trials_) > 1 else {}),
        "depths": {depth: round(mass, 2) for depth, mass in estimator.depth_posterior_.items() if mass > 0.02},
        "seconds": seconds,
    }


def _show_gain(trial: dict[str, Any]) -> str:
    """Return the gain of a trial as text."""
    return f"{trial['gain']:+.3f} ± {trial['error']:.3f} ({'chosen' if trial['chosen'] else 'not chosen'})"


def score_catboost(table: Table) -> dict[str, Any]:
    """Fit CatBoost, and return the scores of its predictions with a normal law of their cross-validated RMSE."""
    from catboost import CatBoostRegressor

    _, X, y, new_X, new_y = table
    start = time.perf_counter()
    square = 0.0
    for inside, outside in KFold(5, shuffle=True, random_state=0).split(X):
        fold = CatBoostRegressor(verbose=False, thread_count=1, allow_writing_files=False).fit(X[inside], y[inside])
        square += float(np.sum((fold.predict(X[outside]) - y[outside]) ** 2))
    scale = math.sqrt(square / len(y))
    error = CatBoostRegressor(verbose=False, thread_count=1, allow_writing_files=False).fit(X, y).predict(new_X) - new_y
    density = -0.5 * (error / scale) ** 2 - math.log(scale) - 0.5 * math.log(2.0 * math.pi)
    return {
        "new rows": float(density.mean()),
        "RMSE": float(np.sqrt(np.mean(error**2))),
        "seconds": time.perf_counter() - start,
    }


def show(scores: dict[str, Any]) -> str:
    """Return scores as text."""
    return "; ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in scores.items()
    )


def main() -> None:
    """Print the scores of every prior on every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=("made", "real"))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--noise", nargs="+", type=int, default=[0, 15])
    parser.add_argument("--rows", nargs="+", type=int, default=[300])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--tables", nargs="+", default=["concrete", "energy", "kin8nm"])
    parser.add_argument("--splits", type=int, default=1)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--priors", nargs="+", default=[*PRIORS, "catboost"], choices=[*PRIORS, "catboost"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(
        f"fathomless {fathomless.__version__}, torch {torch.__version__}, {platform.machine()}, 1 thread, "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )
    if "catboost" in options.priors and importlib.util.find_spec("catboost") is None:
        print("catboost is not installed, and is left out")
        options.priors.remove("catboost")
    for table in list_tables(options):
        print(table[0])
        for name in options.priors:
            scores = score_catboost(table) if name == "catboost" else score_networks(name, table, seed=0)
            print(f"  {name}: {show(scores)}", flush=True)


if __name__ == "__main__":
    main()
