"""Relevance of columns on generated tables: a nonlinear function of 5 of 50 columns.

    python benchmarks/relevance.py --seeds 0,1,2,3,4,5,6,7,8,9 [--rows 400] [--out FILE]

Each seed generates a table of normal columns and y = sin(2 a) + b c + |d| + tanh(2 e) with noise of standard deviation
0.3, for five random columns. ``UnboundedDepthRegressor(weights="hmc")`` is fitted with default options. The output is
the ranks of the five columns by posterior median (0 to 4 is correct), the smallest of their lower limits, and the
largest median and upper limit of the other columns. The last line has the number of seeds for which the five columns
rank first, and for which their intervals lie above all other medians.
"""

import argparse
import json
import platform
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from fathomless import UnboundedDepthRegressor

COLUMNS, NOISE = 50, 0.3


def run(seed: int, rows: int) -> dict[str, object]:
    """Fit one table and return ranks, medians and interval limits of the five relevant columns and the others."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, COLUMNS))
    planted = rng.permutation(COLUMNS)[:5]
    a, b, c, d, e = x[:, planted].T
    y = np.sin(2.0 * a) + b * c + np.abs(d) + np.tanh(2.0 * e) + NOISE * rng.normal(size=rows)
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = UnboundedDepthRegressor(weights="hmc", random_state=seed).fit(x, y)
    low, median, high = (
        np.array([one[key] for one in fitted.relevance_.values()]) for key in ("low", "median", "high")
    )
    others = np.setdiff1d(np.arange(COLUMNS), planted)
    order = np.argsort(-median)
    return {
        "seed": seed,
        "rows": rows,
        "ranks": sorted(int(np.flatnonzero(order == k)[0]) for k in planted),
        "planted_low": float(low[planted].min()),
        "planted_median": float(median[planted].min()),
        "other_median": float(median[others].max()),
        "other_high": float(high[others].max()),
        "depths": {str(k): round(p, 3) for k, p in fitted.depth_posterior_.items()},
        "rhat": max(told["rhat"] for told in fitted.sampling_.values()),
        "seconds": time.perf_counter() - began,
    }


def main() -> None:
    """Run the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default=",".join(map(str, range(10))))
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--out", type=Path, help="a file of JSON lines")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{platform.machine()}, one thread, Python {platform.python_version()}, torch {torch.__version__}")
    every = []
    for seed in map(int, args.seeds.split(",")):
        every.append(run(seed, args.rows))
        print(
            " ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in every[-1].items()), flush=True
        )
        if args.out:
            with args.out.open("a") as file:
                file.write(json.dumps(every[-1]) + "\n")
    front = sum(one["ranks"] == list(range(5)) for one in every)
    apart = sum(float(str(one["planted_low"])) > float(str(one["other_median"])) for one in every)
    print(
        f"the five columns rank first in {front} of {len(every)} tables; intervals above all other medians in {apart}"
    )


if __name__ == "__main__":
    main()
