"""Shares of separate clusters in rows drawn from infinite graphs, by the scale of the prior of biases.

    python benchmarks/cluster_shares.py [--splits 0,1,2,3]
    python benchmarks/cluster_shares.py --splits 0 --tables geyser,moons    log densities of tables of `densities`

A density is fitted to half of the rows, by 6 chains of 1,500 sweeps. Printed are the share of one cluster among 20,000
drawn rows and among the training rows, and the mean log density of the other rows inside the support, in nats. The
clusters are those of a made table (150 and 50 rows around two points), eruptions below three minutes of geyser, and
petals below 2.5 cm of iris. Tables of the experiment `densities` are fitted by 4 chains of 2,000 sweeps.
"""

import argparse
import warnings
from typing import Any

import numpy as np
from sklearn.datasets import load_iris

from experiments.densities import table
from fathomless import IndianChefsDensity
from fathomless.data import datasets

SCALES = (1.0, 3.0, 10.0)


def tables() -> dict[str, tuple[Any, int, float]]:
    """Return rows of each table, the column that separates a cluster, and its upper end in this column."""
    noise = np.random.default_rng(0)
    made = np.concatenate([noise.normal(-3.0, 0.3, (300, 2)), noise.normal(3.0, 0.3, (100, 2))])
    return {
        "made": (made, 0, 0.0),
        "geyser": (datasets.load("faithful").X, 0, 3.0),
        "iris": (load_iris().data, 2, 2.5),
    }


def fit(train: Any, test: Any, **options: Any) -> tuple[IndianChefsDensity, float]:
    """Return a fitted density and its mean log density of test rows inside the support, in nats."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # chains are short
        density = IndianChefsDensity(**options).fit(train)
        log_density = density.score_samples(test)
    return density, float(log_density[np.isfinite(log_density)].mean())


def measure(rows: Any, column: int, end: float, scale: float, split: int) -> tuple[float, float, float]:
    """Return the share of drawn rows in the cluster, that of training rows, and the log density of other rows."""
    rows = rows[np.random.default_rng(split).permutation(len(rows))]
    train, test = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    options = {"chains": 6, "sweeps": 1500, "states": 100, "random_state": split}
    density, log_density = fit(train, test, bias_scale=scale, **options)
    drawn = density.sample(20_000, random_state=split)
    shares = ((x[:, column] < end).mean() for x in (drawn, train))
    return *shares, log_density


def compare(name: str, split: int) -> None:
    """Print the log densities of test rows of a table, in nats, for each scale."""
    train, test = table(name, 500, split)
    for scale in SCALES:
        log_density = fit(train, test, bias_scale=scale, chains=4, sweeps=2000, random_state=split)[1]
        print(f"{name} {split} {scale:g} {log_density:.4f}", flush=True)


def main() -> None:
    """Print the means over splits, for each table and scale."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", default="0,1,2,3")
    parser.add_argument("--tables", help="names of tables of the experiment `densities`, instead of clusters")
    given = parser.parse_args()
    splits = [int(split) for split in given.splits.split(",")]
    if given.tables:
        for split in splits:
            for name in given.tables.split(","):
                compare(name, split)
        return
    for name, (rows, column, end) in tables().items():
        for scale in SCALES:
            found = np.array([measure(rows, column, end, scale, split) for split in splits])
            drawn, train, log_density = found.mean(0)
            print(
                f"{name}, bias_scale={scale:g}: share of the cluster {drawn:.3f} drawn, {train:.3f} in training rows; "
                f"log density {log_density:.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
