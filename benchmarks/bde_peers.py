"""Bayesian deep ensembles of sklearn-contrib-bde on the splits of ``defaults.py``, beside its columns default and hmc.

    python benchmarks/bde_peers.py --data FOLDER [--tables yacht,boston] [--splits 0,1,2,3,4]

bde samples the members of an ensemble by microcanonical Langevin dynamics. "defaults" are those of the package, and
"example" the settings of the example in its description (8 members, 5,000 steps of warm-up, 2,000 samples). Columns and
targets are standardised. The law is the mixture over members and samples. Scores are the mean log density of test rows
in nats, in units of the table, RMSE, and the coverage of 90 % intervals. Run it in an environment with bde, jax and
NumPy.
"""

import argparse
import math
import os
import time
import warnings
from pathlib import Path
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import numpy as np
from scipy.special import logsumexp

SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "example": {
        "hidden_layers": [16, 16],
        "n_members": 8,
        "epochs": 200,
        "validation_split": 0.15,
        "lr": 1e-3,
        "weight_decay": 1e-4,
        "warmup_steps": 5000,
        "n_samples": 2000,
        "n_thinning": 2,
        "patience": 10,
    },
}


def run(folder: Path, table: str, split: int, settings: str) -> None:
    """Fit one ensemble, and print its scores."""
    from bde import BdeRegressor

    stored = np.load(folder / "uci_regression" / f"{table}.npz")
    train, test = stored["train_idx"][split], stored["test_idx"][split]
    X, y = stored["X"].astype(float), stored["y"].astype(float).ravel()
    spread = X[train].std(0)
    x = ((X - X[train].mean(0)) / np.where(spread > 0.0, spread, 1.0)).astype(np.float32)
    scale = y[train].std()
    z = ((y - y[train].mean()) / scale).astype(np.float32)
    began = time.perf_counter()
    model = BdeRegressor(seed=split, **SETTINGS[settings]).fit(x[train], z[train])
    raw = np.asarray(model.predict(x[test], raw=True), dtype=float)  # (members, samples, rows, 2)
    seconds = time.perf_counter() - began
    mean, deviation = raw.reshape(-1, len(test), 2).transpose(2, 0, 1)
    deviation = np.logaddexp(0.0, deviation) + 1e-6  # as its own evaluation does
    law = -0.5 * ((z[test] - mean) / deviation) ** 2 - np.log(deviation) - 0.5 * math.log(2.0 * math.pi)
    log_density = logsumexp(law, axis=0) - math.log(len(mean)) - math.log(scale)
    drawn = mean + deviation * np.random.default_rng(0).standard_normal(mean.shape)
    low, high = np.quantile(drawn, [0.05, 0.95], axis=0)
    print(
        f"{table:10} {split} {settings:9} log density {log_density.mean():7.3f}   RMSE "
        f"{scale * np.sqrt(np.mean((mean.mean(0) - z[test]) ** 2)):7.3f}   coverage "
        f"{np.mean((low <= z[test]) & (z[test] <= high)):.3f}   {seconds:4.0f} s",
        flush=True,
    )


def main() -> None:
    """Run every split of every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--tables", default="yacht,boston,energy,concrete")
    parser.add_argument("--splits", default="0,1")
    parser.add_argument("--settings", default="example", choices=sorted(SETTINGS))
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for table in given.tables.split(","):
        for split in map(int, given.splits.split(",")):
            run(given.data, table, split, given.settings)


if __name__ == "__main__":
    main()
