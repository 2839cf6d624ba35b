"""Leave-one-out laws of sampled posteriors: their errors where k-hat is large, and the recalibration that they give.

`linear` compares smoothed importance sampling with closed forms in Bayesian linear regressions with known noise, from
exact draws of the posterior. "Outlying" features have row-wise scales exp(0.7 z). Columns: share of the rows with
k-hat above 0.7; mean of z² under exact laws, smoothed laws, and smoothed laws without the rows with a large k-hat; mean
log density under exact and smoothed laws.

`fits` compares sampled fits with and without their recalibration, on made tables of 200 rows and on published splits,
which are read from the folder of the environment variable FATHOMLESS_DATA. The third option is the number of chains, of
sweeps and (for networks) of leapfrog steps.

    python benchmarks/left_out.py linear
    python benchmarks/left_out.py fits --tables uneven even yacht boston concrete --networks 8 200 50
    python benchmarks/left_out.py fits --tables uneven even yacht --graphs 4 1000
"""

import argparse
import platform
import time
import warnings
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import numpy as np
import torch

import fathomless
from fathomless import HMC, IndianChefsRegressor, UnboundedDepthRegressor
from fathomless.data import datasets
from fathomless.estimators import base, markov_chains
from fathomless.families.depth import hamiltonian
from fathomless.inference.mcmc.left_out import leave_one_out_laws
from fathomless.posterior.mixtures import Normal

REGRESSIONS = ((60, 8), (60, 25), (200, 20), (100, 60))  # rows and columns
NEW = 2000


def regress(rows: int, columns: int, states: int, outlying: bool, seed: int) -> list[float]:
    """Return the quantities of one regression."""
    rng = np.random.default_rng([seed, rows, columns, states, outlying])
    X = rng.normal(size=(rows, columns)) * np.exp(0.7 * outlying * rng.normal(size=(rows, 1)))
    y = X @ rng.normal(size=columns) + rng.normal(size=rows)
    cov = np.linalg.inv(np.eye(columns) + X.T @ X)
    mean = cov @ X.T @ y
    leverage = np.einsum("ij,jk,ik->i", X, cov, X)
    exact_std = np.sqrt(1.0 + leverage / (1.0 - leverage))
    exact_z = (y - X @ mean) / (1.0 - leverage) / exact_std
    f = torch.from_numpy(rng.multivariate_normal(mean, cov, states) @ X.T)[..., None]
    even = torch.zeros(states, dtype=torch.float64)
    laws = leave_one_out_laws(
        lambda part: Normal(f[:, part], torch.ones_like(f[:, part])),
        torch.from_numpy(y)[:, None],
        even,
        torch.arange(states),  # independent states
    )
    z2 = ((torch.from_numpy(y) - laws.mean[:, 0]) / laws.std[:, 0]).square()
    kept = z2[laws.unreliable == 0.0].mean()
    exact = -0.5 * exact_z**2 - np.log(exact_std) - 0.5 * np.log(2.0 * np.pi)
    values = (laws.unreliable.mean(), (exact_z**2).mean(), z2.mean(), kept, exact.mean(), laws.log_density.mean())
    return [float(value) for value in values]


def linear() -> None:
    """Print the means over 30 regressions of every size."""
    print("states rows columns features: share; z² exact, smoothed, without; log density exact, smoothed")
    for states in (240, 3000):
        for rows, columns in REGRESSIONS:
            for outlying in (False, True):
                found = np.mean([regress(rows, columns, states, outlying, seed) for seed in range(30)], 0)
                share, z2, log_density = found[0], found[1:4], found[4:]
                kind = "outlying" if outlying else "even"
                print(
                    f"{states} {rows} {columns} {kind}: {share:.3f}; {', '.join(f'{v:.3f}' for v in z2)}; "
                    f"{', '.join(f'{v:.3f}' for v in log_density)}",
                    flush=True,
                )


def table_of(name: str, split: int) -> tuple[Any, Any, Any, Any]:
    """Return training and new rows."""
    if name in ("uneven", "even"):
        parts = []
        for rows, seed in ((200, split), (NEW, 10**6 + split)):
            rng = np.random.default_rng([seed, name == "even"])
            X = rng.uniform(-2.0, 2.0, (rows, 3))
            scale = 0.1 * np.exp(0.55 * (X[:, 2] + 2.0)) if name == "uneven" else 0.3
            parts += [X, np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] + scale * rng.normal(size=rows)]
        return parts[0], parts[1], parts[2], parts[3]
    table = datasets.load(name)
    train, test = table.splits[split]
    assert table.y is not None
    return table.X[train], table.y[train], table.X[test], table.y[test]


def score(p: Any, y: Any) -> str:
    """Return the log-likelihood, the coverage of 90 % and the RMSE as text."""
    low, high = (bound.numpy() for bound in p.interval(0.9))
    rmse = float(np.sqrt(np.mean((p.mean.numpy() - y) ** 2)))
    return f"{float(p.log_prob(y).mean()):.3f} {np.mean((y >= low) & (y <= high)):.3f} {rmse:.4f}"


def compare(name: str, split: int, options: argparse.Namespace) -> None:
    """Print the scores of a fit with and without its recalibration, and the seconds of both parts of the stage."""
    seconds = {"laws": 0.0, "networks": 0.0}

    def timed(part: str, function: Any) -> Any:
        def run(*arguments: Any) -> Any:
            start = time.perf_counter()
            result = function(*arguments)
            seconds[part] += time.perf_counter() - start
            return result

        return run

    places = (
        (hamiltonian, "predict_left_out", "laws"),
        (markov_chains, "predict_left_out", "laws"),
        (base, "recalibrate", "networks"),
    )
    whole = [getattr(module, function) for module, function, _ in places]
    for (module, function, part), plain in zip(places, whole, strict=True):
        setattr(module, function, timed(part, plain))
    if options.graphs:
        chains, sweeps = options.graphs
        estimator: Any = IndianChefsRegressor(chains=chains, sweeps=sweeps, random_state=split)
    else:
        chains, sweeps, leapfrogs = options.networks
        weights = HMC(chains=chains, sweeps=sweeps, leapfrogs=leapfrogs)
        estimator = UnboundedDepthRegressor(weights=weights, random_state=split)
    X, y, new_X, new_y = table_of(name, split)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(X, y)
    total = time.perf_counter() - start
    for (module, function, _), plain in zip(places, whole, strict=True):
        setattr(module, function, plain)
    (fit,) = estimator.fit_diagnostics_.recalibration
    p = estimator.predict_dist(new_X)
    before = replace(p, share=None, residual_laws=()) if fit.used else p
    print(
        f"{name} {split}: {score(before, new_y)} -> {score(p, new_y)}; {fit.gain:+.3f} ± {fit.error:.3f}; "
        f"{fit.unreliable:.3f}; {total:.0f} s, {seconds['laws']:.1f} s, {seconds['networks']:.1f} s",
        flush=True,
    )


def main() -> None:
    """Run one of the comparisons."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("linear", "fits"))
    parser.add_argument("--tables", nargs="+", default=["uneven", "even", "yacht"])
    parser.add_argument("--splits", nargs="+", type=int, default=[0])
    parser.add_argument("--networks", nargs=3, type=int, default=[8, 200, 50])
    parser.add_argument("--graphs", nargs=2, type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"fathomless {fathomless.__version__}, torch {torch.__version__}, {platform.machine()}, 1 thread, "
        f"{datetime.now(UTC):%Y-%m-%d}"
    )
    if options.part == "linear":
        linear()
        return
    print(
        "table split: log-likelihood, coverage, RMSE before -> after; reported gain; unreliable; whole fit, laws, stage"
    )
    for name in options.tables:
        for split in options.splits:
            compare(name, split, options)


if __name__ == "__main__":
    main()
