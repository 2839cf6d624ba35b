"""Weights of candidate widths: planted widths, and public tables.

    python benchmarks/widths.py teachers [--seeds 0,1] [--out FILE]
    python benchmarks/widths.py tables --data FOLDER [--tables naval] [--splits 0] [--out FILE]

``teachers`` fits targets of random networks of 2, 8, 32 and 128 rectified units in each of 1 or 3 layers, with six
columns, 2,000 rows and noise of a tenth of the standard deviation, and ``candidates={"width": [4, 16, 64, 128]}``. The
mean width is the geometric mean of the candidates by their weights. ``tables`` fits each of two widths, and both as
candidates. One line for each fit is printed, and added to a file of JSON lines (--out).
"""

import argparse
import json
import math
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from defaults import data
from scipy.stats import spearmanr

import fathomless

TEACHERS, LAYERS, WIDTHS = (2, 8, 32, 128), (1, 3), (4, 16, 64, 128)
ROWS, COLUMNS, NOISE = 2000, 6, 0.1


def planted(width: int, layers: int, seed: int, rows: int) -> tuple[Any, Any]:
    """Return rows and noisy outputs of a random network."""
    random = np.random.default_rng([seed, width, layers])
    X = random.normal(size=(rows, COLUMNS))
    h = X
    for _ in range(layers):
        weight = random.normal(size=(h.shape[1], width)) * math.sqrt(2.0 / h.shape[1])
        h = np.maximum(h @ weight + 0.5 * random.normal(size=width), 0.0)
    y = h @ random.normal(size=width)
    y = (y - y.mean()) / max(y.std(), 1e-9)
    return X, y + NOISE * random.normal(size=rows)


def fit(X: Any, y: Any, new: Any, target: Any, **options: Any) -> dict[str, Any]:
    """Return the scores of new rows, the weights of the candidates, and the seconds of a fit."""
    begun = time.perf_counter()
    fitted = fathomless.UnboundedDepthRegressor(random_state=0, **options).fit(X, y)
    p: Any = fitted.predict_dist(new)
    return {
        "log_likelihood": float(np.mean(p.log_prob(torch.as_tensor(target)).numpy())),
        "rmse": float(np.sqrt(np.mean((p.mean.numpy().ravel() - target) ** 2))),
        "weights": {str(kind["options"]["width"]): round(kind["weight"], 3) for kind in fitted.kinds_},
        "seconds": time.perf_counter() - begun,
    }


def show(record: dict[str, Any], out: Path | None) -> None:
    """Print a record and add it to the file."""
    line = json.dumps({name: round(v, 4) if isinstance(v, float) else v for name, v in record.items()})
    print(line, flush=True)
    if out:
        with out.open("a") as file:
            file.write(line + "\n")


def teachers(given: argparse.Namespace) -> None:
    """Fit targets of networks of known width, and print the rank correlation with the mean width."""
    true, found = [], []
    for seed in map(int, given.seeds.split(",")):
        for layers in LAYERS:
            for width in TEACHERS:
                X, y = planted(width, layers, seed, 2 * ROWS)
                record = fit(X[:ROWS], y[:ROWS], X[ROWS:], y[ROWS:], candidates={"width": list(WIDTHS)})
                mean = math.exp(sum(w * math.log(float(k)) for k, w in record["weights"].items()))
                show({"teacher": width, "layers": layers, "seed": seed, "mean_width": mean, **record}, given.out)
                true.append(width)
                found.append(mean)
    print(f"rank correlation of width and mean width {spearmanr(true, found).statistic:.2f} over {len(true)} fits")


def tables(given: argparse.Namespace) -> None:
    """Fit public tables with two widths, and with both as candidates."""
    narrow, wide = map(int, given.widths.split(","))
    ways: tuple[dict[str, Any], ...] = ({"width": narrow}, {"width": wide}, {"candidates": {"width": [narrow, wide]}})
    for name in given.tables.split(","):
        for split in map(int, given.splits.split(",")):
            X, y, new, target = data(given.data, name, split)
            for options in ways:
                found = fit(X, y, new, target, **options)
                show({"table": name, "split": split, "options": options, **found}, given.out)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("teachers", "tables"))
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tables", default="naval")
    parser.add_argument("--splits", default="0")
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--widths", default="64,256")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    teachers(given) if given.what == "teachers" else tables(given)


if __name__ == "__main__":
    main()
