"""Bias of `validation_score_` as an estimate of the score of new rows, for all estimators on generated tables.

``python benchmarks/scores.py --tables 30 --out FILE`` fits each estimator and baseline to tables of 60 to 200 rows,
with a smooth function plus noise, or classes derived from it. It prints the mean difference between `validation_score_`
and the mean log density of 2,000 new rows, its standard error over tables, and the number of fits without a score. One
JSON line for each fit is added to FILE; fits that are already in FILE are not repeated. ``--summary FILE`` only prints
the table. Options are the defaults, except those in QUICK, which shorten chains and stages.
"""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import fathomless
from fathomless.estimators.values import HMC

Array = npt.NDArray[Any]
QUICK: dict[str, dict[str, Any]] = {
    "IndianChefs": {"chains": 4, "sweeps": 200, "states": 40, "validation_fraction": 0.2},
    "ProjectedBayes": {"candidates": 20, "candidate_steps": 300, "decoder_steps": 150, "latent_steps": 100},
    "UnboundedDepth hmc": {"weights": HMC(sweeps=200, states=50, leapfrogs=10), "width": 16},
}


def draw_table(task: str, seed: int, rows: int) -> tuple[Array, Array]:
    """Return rows of table `seed`; another number of rows gives other rows of the same law."""
    law = np.random.default_rng([seed, 1])
    columns = int(law.integers(1, 6))
    noise = float(law.uniform(0.1, 0.8))
    slope = law.normal(size=5)
    heavy = bool(law.random() < 0.3)
    rng = np.random.default_rng([seed, rows])
    X = rng.uniform(-2.0, 2.0, (rows, columns))
    f = np.sin(1.5 * X[:, 0]) + 0.4 * X @ slope[:columns]
    if task == "Classifier":
        return X, (f + noise * rng.logistic(size=rows) > 0.0).astype(int)
    return X, f + noise * (rng.standard_t(4, size=rows) if heavy else rng.normal(size=rows))


def score_fit(name: str, options: dict[str, Any], seed: int) -> dict[str, Any]:
    """Fit one estimator to one table; return its validation score and the score of new rows."""
    task = "Classifier" if name.endswith("Classifier") else "Regressor"
    rows = int(np.random.default_rng([seed, 2]).integers(60, 201))
    X, y = draw_table(task, seed, rows)
    fresh, target = draw_table(task, seed, 2000)
    start = time.perf_counter()
    fitted = getattr(fathomless, name)(random_state=seed, **options).fit(X, y)
    log_p = np.asarray(fitted.predict_dist(fresh).log_prob(target)).mean()
    return {
        "rows": rows,
        "score": fitted.validation_score_,
        "fresh": float(log_p),
        "seconds": time.perf_counter() - start,
    }


def summary(lines: list[dict[str, Any]]) -> None:
    """Print the mean differences."""
    for name in sorted({line["name"] for line in lines}):
        own = [line for line in lines if line["name"] == name]
        with_score = [line for line in own if line.get("score") is not None]
        gap = np.array([line["score"] - line["fresh"] for line in with_score])
        text = "no score" if not len(gap) else f"{gap.mean():+.3f} ± {gap.std(ddof=1) / len(gap) ** 0.5:.3f}"
        failed = sum("error" in line for line in own)
        fresh = np.mean([line["fresh"] for line in own if "fresh" in line])
        worst = abs(gap).max() if len(gap) else 0.0
        without = len(own) - len(with_score) - failed
        print(
            f"{name:34s} {len(own):3d} tables  score - new rows {text:18s} worst {worst:6.3f}  without {without:2d}  "
            f"failed {failed}  new rows {fresh:.3f}"
        )


def main() -> int:
    """Fit all estimators, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=30)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", nargs="*", default=[""], help="first letters of the names of estimators")
    parser.add_argument("--summary", type=Path)
    args = parser.parse_args()
    path = args.summary or args.out
    if path is None:
        parser.error("give --out FILE or --summary FILE")
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if args.summary is None:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        done = {(line["name"], line["seed"]) for line in lines}
        names = [name for name in fathomless.__all__ if name.endswith(("Regressor", "Classifier"))]
        every = [(name, name) for name in names] + [("UnboundedDepthRegressor hmc", "UnboundedDepthRegressor")]
        for seed in range(args.tables):
            for shown, name in every:
                if (shown, seed) in done or not shown.startswith(tuple(args.only)):
                    continue
                family = "UnboundedDepth hmc" if shown.endswith("hmc") else name.removesuffix("Regressor")
                quick = QUICK.get(family.removesuffix("Classifier"), {})
                line = {"name": shown, "seed": seed}
                try:
                    line |= score_fit(name, quick, seed)
                except (ArithmeticError, RuntimeError, ValueError) as error:
                    line["error"] = str(error)[:200]
                lines.append(line)
                with path.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    summary(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
