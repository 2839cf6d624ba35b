"""Optimism of the recalibration: gains out of fold and on new rows, for variants of the contest that cost nothing more.

The laws of the residual are trained on the predictions of single networks, and weighed by them. The default predicts
with an average of networks, whose residuals are smaller. Variants:

- present: the contest of the library;
- counted: log-density differences from the law of the networks are multiplied by 0.6 if the narrowing is below 0.85;
- one kind: only heavy tails given x and m, for tables of fewer than 1,000 rows;
- narrowed: single networks predict with the noise of the average.

The tables have few rows and little noise, so that averaging helps much. The noise is even, depends on a column, or
is skewed.

    python benchmarks/optimism.py --rows 400 --seeds 3
"""

import argparse
import math
import platform
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch
from torch import Tensor

import fathomless
from fathomless import UnboundedDepthRegressor
from fathomless.inference.out_of_fold import recalibration as stage
from fathomless.posterior.recalibration import KINDS, Recalibration, ResidualNetworks
from fathomless.system.rng import fold_in

TABLES = tuple(f"{f}_{noise}" for f in ("smooth", "grid", "rough", "factors") for noise in ("even", "uneven", "skewed"))
VARIANTS = ("present", "counted", "one kind", "narrowed")
COUNTED, NARROW = 0.6, 0.85
NEW = 2000


def make(name: str, rows: int, seed: int) -> tuple[Any, Any]:
    """Return features and target of a made table."""
    rng = np.random.default_rng([seed, rows, TABLES.index(name)])
    kind, _, noise = name.partition("_")
    if kind == "grid":  # few levels of each column
        X = rng.integers(0, 4, (rows, 6)).astype(np.float64)
        f = np.abs(X[:, 0] - X[:, 1]) + X[:, 2] * (X[:, 3] > 1.5) + 0.3 * X[:, 4]
    elif kind == "smooth":
        X = rng.uniform(-2.0, 2.0, (rows, 3))
        f = np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] * X[:, 2]
    elif kind == "factors":  # 13 correlated columns
        loadings = np.random.default_rng(13).normal(size=(4, 13))
        z = rng.normal(size=(rows, 4))
        X = z @ loadings + 0.3 * rng.normal(size=(rows, 13))
        f = np.tanh(z[:, 0]) * z[:, 1] + z[:, 2]
    else:
        X = rng.uniform(-2.0, 2.0, (rows, 2))
        f = np.sin(4.0 * X[:, 0]) + np.abs(X[:, 1])
    size = 0.03 * f.std()
    match noise:
        case "uneven":
            e = np.exp(0.6 * X[:, -1]) * rng.normal(size=rows)
        case "skewed":
            e = rng.exponential(size=rows) - 1.0
        case _:
            e = rng.normal(size=rows)
    return X, f + size * e


def describe(estimator: Any, p: Any, X: Any, y: Any, fold: Any) -> stage.OutOfFoldLaws:
    """Return the law of the networks of rows, in encoded units."""
    law = p.network_mixture
    units = estimator._task().units(estimator.target_)
    shift, scale = (torch.as_tensor(units[name], dtype=torch.float64) for name in ("shift", "scale"))
    values = torch.from_numpy(y)[:, None]
    return stage.OutOfFoldLaws(
        x=torch.from_numpy(estimator.predictor_.encode(X)).double(),
        y=(values - shift) / scale,
        mean=(law.mean - shift) / scale,
        std=law.std / scale,
        log_density=law.log_prob(values) + scale.log(),
        fold=torch.as_tensor(np.asarray(fold, dtype=np.int64)),
        weight=torch.ones(len(y), dtype=torch.float64),
    )


def train(rows: stage.OutOfFoldLaws, seed: int) -> tuple[dict[str, ResidualNetworks], Tensor]:
    """Return the laws of all kinds, and the log density of the rows under the networks and each of them."""
    step = torch.zeros(1, dtype=torch.float64)
    trained = {name: stage._train(name, kind, rows, step, seed, torch.device("cpu")) for name, kind in KINDS.items()}
    of_z = torch.cat([log_density for _, log_density, _ in trained.values()], 1)
    return {name: law for name, (law, _, _) in trained.items()}, torch.cat([rows.log_density, of_z - rows.std.log()], 1)


def weigh(log_density: Tensor, rows: stage.OutOfFoldLaws) -> tuple[Tensor, float]:
    """Return the weights of the contest and the gain that it reports."""
    q, gains = stage._weigh(log_density, rows.fold, rows.weight)
    if float(gains.sum()) < stage._LEAST_GAIN:
        q = torch.zeros_like(q)
        q[0] = 1.0
    return q, float(gains.mean()) if q[0] < 1.0 else 0.0


@torch.no_grad()
def score(laws: Mapping[str, ResidualNetworks], new: stage.OutOfFoldLaws) -> Tensor:
    """Return the log density of new rows under the networks and each law."""
    share = torch.full((len(laws) + 1, 1), 1.0 / (len(laws) + 1), dtype=torch.float64)
    built = Recalibration(laws, share, torch.zeros(1, dtype=torch.float64))
    mixtures = built.mixtures(new.x, new.mean, new.std)
    return torch.cat([new.log_density, *(law.log_prob(new.y) for law in mixtures)], 1)


def compare(X: Any, y: Any, new_X: Any, new_y: Any, seed: int, epochs: Any) -> dict[str, Any]:
    """Fit once, and return the reported gain and the gain on new rows of every variant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator = UnboundedDepthRegressor(random_state=seed, recalibrate=False, epochs=epochs).fit(X, y)
    assert estimator.fold_ is not None
    diagnostics = estimator.fit_diagnostics_
    narrowing = diagnostics.narrowing[0] if diagnostics.narrowing else 1.0
    fold = estimator.fold_[0]
    rows = describe(estimator, estimator.predict_dist(X, fold=estimator.fold_), X, y, fold)
    same_noise = replace(estimator.predictor_, diagnostics=replace(diagnostics, narrowing=()))
    narrowed = describe(estimator, same_noise.predict_dist(X, fold=estimator.fold_), X, y, fold)
    new = describe(estimator, estimator.predict_dist(new_X), new_X, new_y, np.zeros(len(new_y)))
    of_stage = fold_in(estimator.seed_, 0)
    laws, log_density = train(rows, of_stage)
    other_laws, other_log_density = train(narrowed, of_stage)
    on_new, other_on_new = score(laws, new), score(other_laws, new)
    base = log_density[:, :1]
    factor = COUNTED if narrowing < NARROW else 1.0
    first = slice(0, 2 if len(y) < 1000 else None)
    contests = {
        "present": (log_density, rows, on_new),
        "counted": (base + factor * (log_density - base), rows, on_new),
        "one kind": (log_density[:, first], rows, on_new[:, first]),
        "narrowed": (other_log_density, narrowed, other_on_new),
    }
    gains = {}
    for name, (candidates, of_rows, of_new) in contests.items():
        q, reported = weigh(candidates, of_rows)
        gains[name] = reported, float((torch.logsumexp(q.log() + of_new, 1) - of_new[:, 0]).mean())
    return {"narrowing": narrowing, "gains": gains}


def main() -> None:
    """Print a line for each fit, and the means of every variant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", nargs="+", default=list(TABLES), choices=TABLES)
    parser.add_argument("--rows", nargs="+", type=int, default=[400])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=0, help="0 is the default of the estimator")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"fathomless {fathomless.__version__}, torch {torch.__version__}, {platform.machine()}, 1 thread, "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )
    print("table rows seed narrowing: reported gain / gain on new rows, by variant")
    found: list[dict[str, Any]] = []
    for seed in range(options.seeds):
        for count in options.rows:
            for name in options.tables:
                start = time.perf_counter()
                result = compare(
                    *make(name, count, seed), *make(name, NEW, 10**6 + seed), seed, options.epochs or "auto"
                )
                found.append(result)
                text = ", ".join(f"{v} {a:+.3f} / {b:+.3f}" for v, (a, b) in result["gains"].items())
                seconds = time.perf_counter() - start
                print(f"{name} {count} {seed} {result['narrowing']:.2f}: {text}; {seconds:.0f} s", flush=True)
        summarise(found)


def summarise(found: list[dict[str, Any]]) -> None:
    """Print the means of every variant over the fits so far."""
    groups = {
        "all fits so far": found,
        f"narrowing < {NARROW}": [r for r in found if r["narrowing"] < NARROW],
        f"narrowing >= {NARROW}": [r for r in found if r["narrowing"] >= NARROW],
    }
    for title, results in groups.items():
        print(f"\n{title}: {len(results)} fits")
        for variant in VARIANTS if results else ():
            reported, new = np.array([r["gains"][variant] for r in results]).T
            change = new - np.array([r["gains"]["present"][1] for r in results])
            error = change.std(ddof=1) / math.sqrt(len(results)) if len(results) > 1 else math.nan
            print(
                f"{variant}: reported {reported.mean():+.4f}, on new rows {new.mean():+.4f} (worst {new.min():+.3f}), "
                f"used in {int((reported > 0.0).sum())}; less present {change.mean():+.4f} ± {error:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
