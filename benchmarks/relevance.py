"""Does the relevance of columns find the columns that matter? 5 of 50, in a function that is not linear.

    python benchmarks/relevance.py --seeds 0,1,2,3,4,5,6,7,8,9 [--rows 400] [--out FILE]

Each seed draws a table of normal columns and y = sin(2 a) + b c + |d| + tanh(2 e) with noise of standard deviation
0.3, for five columns at random, and fits ``UnboundedDepthRegressor(weights="hmc")`` as it comes. Printed are the ranks
of the five by their medians (0 to 4 is right), the least of their lower ends and the largest median and upper end among
the others; and how many seeds had the five in front, and how many had intervals of the five above all other medians.
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
    """Plant five columns, and see where they come."""
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
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", default=",".join(map(str, range(10))))
    parser.add_argument("--rows", type=int, default=400)
    parser.add_argument("--out", type=Path, help="a file of JSON lines")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{platform.machine()}, one thread, Python {platform.python_version()}, torch {torch.__version__}")
    every = []
    for seed in map(int, asked.seeds.split(",")):
        every.append(run(seed, asked.rows))
        print(
            " ".join(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in every[-1].items()), flush=True
        )
        if asked.out:
            with asked.out.open("a") as file:
                file.write(json.dumps(every[-1]) + "\n")
    front = sum(one["ranks"] == list(range(5)) for one in every)
    apart = sum(float(str(one["planted_low"])) > float(str(one["other_median"])) for one in every)
    print(f"the five in front in {front} of {len(every)}; their intervals above all other medians in {apart}")


if __name__ == "__main__":
    main()
