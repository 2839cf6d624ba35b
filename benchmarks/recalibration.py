"""Gain of the recalibration: scores of the same fit with and without the laws of the standardised residual.

Made tables have noise of one scale, of a scale that depends on a column, skewed, two-moded, heavy-tailed, counted and
zero-inflated targets. A fit with a logarithm of the target is compared with one without recalibration. The oracle is
the log density of the law that made the table. With zeros, log densities are log probabilities at zero; the fit before
has no hurdle, and its density gets the share of zeros of the training rows.
Published splits of real tables are read from the folder of the environment variable FATHOMLESS_DATA. With --neighbors,
a second fit with the option `neighbors` is scored too.

    python benchmarks/recalibration.py made --rows 40 100 300 --seeds 3
    python benchmarks/recalibration.py real --tables yacht concrete energy --splits 2
    python benchmarks/recalibration.py real --tables concrete power --splits 2 --limit 3000 --neighbors
"""

import argparse
import math
import platform
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent))

import fathomless
from fathomless import UnboundedDepthRegressor
from fathomless.data import datasets
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.fit_diagnostics import RecalibrationFit
from fathomless.posterior.hurdle import HurdlePredictive
from fathomless.posterior.lattice import LatticePredictive

KINDS = ("even", "quiet", "friedman", "uneven", "skewed", "two_modes", "lognormal", "t3", "counts", "zeros")
REAL = ("yacht", "boston", "concrete", "energy", "wine_red", "kin8nm", "power", "protein", "naval")
COLUMNS = ("log_likelihood", "rmse", "coverage", "narrow", "wide", "worst")


def make(kind: str, rows: int, seed: int) -> tuple[Any, Any, float]:
    """Return features, target, and the mean log density of the law that made them."""
    rng = np.random.default_rng([seed, rows, KINDS.index(kind)])
    X = rng.uniform(-2.0, 2.0, (rows, 4))
    f = np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1]
    match kind:
        case "even" | "quiet":
            law = stats.norm(f, 0.5 if kind == "even" else 0.1)
        case "friedman":
            X = rng.uniform(0.0, 1.0, (rows, 10))
            f = 10.0 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20.0 * (X[:, 2] - 0.5) ** 2 + 10.0 * X[:, 3] + 5.0 * X[:, 4]
            law = stats.norm(f, 1.0)
        case "uneven":
            law = stats.norm(f, 0.1 * np.exp(0.55 * (X[:, 2] + 2.0)))
        case "skewed":
            law = stats.expon(f - 0.5, 0.5)
        case "lognormal":
            law = stats.lognorm(0.5, scale=np.exp(f))
        case "t3":
            law = stats.t(3.0, f, 0.3)
        case "two_modes":
            centre = 0.7 * (1.0 + 0.3 * X[:, 2])
            y = f + np.where(rng.random(rows) < 0.5, -centre, centre) + 0.15 * rng.normal(size=rows)
            parts = [stats.norm(f + sign * centre, 0.15).pdf(y) for sign in (-1.0, 1.0)]
            return X, y, float(np.log(0.5 * (parts[0] + parts[1])).mean())
        case "counts":
            counts = stats.poisson(np.exp(1.0 + f))
            y = counts.rvs(random_state=rng)
            return X, y.astype(np.float64), float(counts.logpmf(y).mean())
        case _:
            chance = 1.0 / (1.0 + np.exp(-X[:, 2]))
            law = stats.lognorm(0.5, scale=np.exp(f))
            y = np.where(rng.random(rows) < chance, 0.0, np.exp(f + 0.5 * rng.normal(size=rows)))
            return X, y, float(np.where(y == 0.0, np.log(chance), np.log1p(-chance) + law.logpdf(y)).mean())
    y = law.rvs(random_state=rng)
    return X, y, float(law.logpdf(y).mean())


def score(p: Any, y: Any) -> list[float]:
    """Return the scores of a prediction in the order of COLUMNS."""
    log_p = np.asarray(p.log_prob(y))
    low, high = (np.asarray(bound) for bound in p.interval(0.9))
    inside = (low <= y) & (y <= high)
    narrow = high - low <= np.median(high - low)
    error = np.asarray(p.mean) - y
    shares = (inside.mean(), inside[narrow].mean(), inside[~narrow].mean() if (~narrow).any() else math.nan)
    return [log_p.mean(), math.sqrt(np.mean(error**2)), *shares, log_p.min()]


def plain(p: ContinuousPredictive) -> ContinuousPredictive:
    """Return the prediction of the networks alone."""
    return replace(p, share=None, residual_laws=())


def predict_both(
    X: Any, y: Any, new_X: Any, seed: int, numbers: str = "plain", **chosen: Any
) -> tuple[Any, Any, Sequence[RecalibrationFit], float]:
    """Fit once, and predict new rows without and with the recalibration; return its diagnostics and seconds, too.

    `chosen` are other options of the estimator.
    """
    options: dict[str, Any] = {"random_state": seed, "numbers": numbers}
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator = UnboundedDepthRegressor(**(options | chosen)).fit(X, y)
    seconds = time.perf_counter() - start
    after: Any = estimator.predict_dist(new_X)
    transform = estimator.fit_diagnostics_.transform
    if isinstance(after, HurdlePredictive) or (transform is not None and transform.used):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one_law = UnboundedDepthRegressor(recalibrate=False, **options).fit(X, y)
        before: Any = one_law.predict_dist(new_X)
        if isinstance(after, HurdlePredictive):
            shares = [np.mean(~np.isin(y, after.atoms)), *(np.mean(y == atom) for atom in after.atoms)]
            before = HurdlePredictive.of(before, after.atoms, torch.tensor(shares, device="cpu").log())
    elif isinstance(after, LatticePredictive):
        before = LatticePredictive.of(plain(after.continuous), after.step, after.offset)
    else:
        before = plain(after)
    return before, after, estimator.fit_diagnostics_.recalibration, seconds


def compare(X: Any, y: Any, new_X: Any, new_y: Any, seed: int, neighbors: bool = False) -> dict[str, Any]:
    """Fit once, and score new rows without and with the recalibration."""
    before, after, fits, seconds = predict_both(X, y, new_X, seed, neighbors=neighbors)
    return {
        "before": score(before, new_y),
        "after": score(after, new_y),
        "weights": [round(weight, 2) for weight in fits[0].weights.values()] if fits else [],
        "gain": fits[0].gain if fits else 0.0,
        "seconds": seconds,
        "repeated": fits[0].neighbors.repeated if fits and fits[0].neighbors else math.nan,
    }


def tables(options: argparse.Namespace) -> Iterator[tuple[str, int, Any, Any, Any, Any, float]]:
    """Yield name, seed, training rows, new rows and the oracle of every table."""
    if options.tables_of == "made":
        for rows in options.rows:
            for kind in options.kinds:
                for seed in range(options.seeds):
                    X, y, _ = make(kind, rows, seed)
                    new_X, new_y, oracle = make(kind, 3000, 10**6 + seed)
                    yield f"{kind} {rows}", seed, X, y, new_X, new_y, oracle
        return
    for name in options.tables:
        table = datasets.load(name)
        for split in range(options.first, options.first + options.splits):
            train, test = table.splits[split]
            if options.limit:
                train = np.random.default_rng(split).permutation(train)[: options.limit]
            assert table.y is not None
            yield name, split, table.X[train], table.y[train], table.X[test], table.y[test], math.nan


def main() -> None:
    """Print a line for each fit, and the paired means of every table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables_of", choices=("made", "real"))
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--rows", nargs="+", type=int, default=[40, 100, 300])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tables", nargs="+", default=["yacht", "boston", "concrete", "energy"], choices=REAL)
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--limit", type=int, default=0, help="number of training rows, drawn at random; 0 is all")
    parser.add_argument("--neighbors", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"fathomless {fathomless.__version__}, torch {torch.__version__}, {platform.machine()}, 1 thread, "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )
    results: dict[str, list[Any]] = {}
    for name, seed, X, y, new_X, new_y, oracle in tables(options):
        result = compare(X, y, new_X, new_y, seed)
        results.setdefault(name, []).append([result["before"], result["after"], oracle])
        before, after = result["before"], result["after"]
        print(
            f"{name} {seed}: log-likelihood {before[0]:.3f} -> {after[0]:.3f} ({after[0] - before[0]:+.3f}, oracle "
            f"{oracle:.3f}), out of fold {result['gain']:+.3f}; RMSE {before[1]:.4g} -> {after[1]:.4g}; coverage "
            f"{before[2]:.3f} ({before[3]:.3f}, {before[4]:.3f}) -> {after[2]:.3f} ({after[3]:.3f}, {after[4]:.3f}); "
            f"worst row {before[5]:.1f} -> {after[5]:.1f}; weights {result['weights']}; {result['seconds']:.0f} s",
            flush=True,
        )
        if options.neighbors:
            near = compare(X, y, new_X, new_y, seed, neighbors=True)
            print(
                f"  with neighbours: log-likelihood {near['after'][0]:.3f} ({near['after'][0] - before[0]:+.3f}), out "
                f"of fold {near['gain']:+.3f}; RMSE {near['after'][1]:.4g}; coverage {near['after'][2]:.3f} "
                f"({near['after'][3]:.3f}, {near['after'][4]:.3f}); worst row {near['after'][5]:.1f}; weights "
                f"{near['weights']}; {near['repeated']:.1%} of the out-of-fold rows repeat the target of a near row; "
                f"{near['seconds']:.0f} s",
                flush=True,
            )
    print("\ntable: mean log-likelihood before -> after, paired difference ± standard error, coverage (narrow, wide)")
    for name, rows in results.items():
        before, after = (np.array([row[i] for row in rows]) for i in range(2))
        change = after[:, 0] - before[:, 0]
        error = change.std(ddof=1) / math.sqrt(len(rows)) if len(rows) > 1 else math.nan
        a, b = before.mean(0), after.mean(0)
        print(
            f"{name} ({len(rows)}): {a[0]:.3f} -> {b[0]:.3f}, {change.mean():+.3f} ± {error:.3f}; RMSE {a[1]:.4g} -> "
            f"{b[1]:.4g}; coverage {a[2]:.3f} ({a[3]:.3f}, {a[4]:.3f}) -> {b[2]:.3f} ({b[3]:.3f}, {b[4]:.3f})"
        )


if __name__ == "__main__":
    main()
