"""Accuracy and cost of a posterior of the last layer: the same network with point, Laplace and conjugate heads.

    python benchmarks/heads.py                                                  all tables
    python benchmarks/heads.py --tables power,protein --splits 0,1 --out FILE   some tables, saved as JSON lines

For each table and split one network (``cv=1``) is trained; its heads, posterior over depth and noise are then fitted in
each of the three ways. The output for the test rows is the mean log density (in nats, in units of the table), its gain
over point heads with the standard error over rows, the coverage of 90 % intervals (for classification the expected
calibration error), and the distance of the worst row below the median row. The time of the heads, including the new fit
of posterior over depth and noise, is given in per cent of that of the whole fit. The data are read from the folder in
FATHOMLESS_DATA; `made` is a generated table with 500,000 rows, a function of 8 of 12 columns plus noise.
"""

import argparse
import json
import math
import platform
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.model_selection import train_test_split

from fathomless import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.data.datasets import load
from fathomless.data.frames import take
from fathomless.estimators import last_layer, strategies
from fathomless.posterior.metrics import expected_calibration_error

REGRESSION = ("yacht", "concrete", "wine_red", "kin8nm", "power", "naval", "protein", "made")
CLASSES = ("german_credit", "magic_telescope", "bank_marketing_additional", "adult")
MADE = 500_000


def table(name: str, split: int) -> tuple[Any, Any, Any, Any]:
    """Return X and y for training and test: a split of the data set, or else a random tenth for the test."""
    if name == "made":
        rng = np.random.default_rng(split)
        X = rng.normal(size=(MADE + 50_000, 12)).astype(np.float32)
        y = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + np.abs(X[:, 3]) + np.tanh(X[:, 4:8].sum(1))
        y = y + 0.3 * rng.normal(size=len(y))
        return X[:MADE], y[:MADE], X[MADE:], y[MADE:]
    data = load(name)
    X = data.X
    y = np.asarray(data.y)
    if len(data.splits) > split:
        train, test = data.splits[split]
    else:
        rows = np.arange(len(y))
        train, test = train_test_split(
            rows, test_size=0.1, random_state=split, stratify=None if name in REGRESSION else y
        )
    return take(X, train), y[train], take(X, test), y[test]


class Timed:
    """Function that measures the seconds spent in its calls."""

    def __init__(self, function: Any) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *given: Any, **options: Any) -> Any:
        """Call the function."""
        began = time.perf_counter()
        try:
            return self.function(*given, **options)
        finally:
            self.seconds += time.perf_counter() - began


#: Timed version of the function that fits the heads; it replaces the function that the estimators call.
HEADS = Timed(last_layer.fit_heads_out_of_fold)
setattr(strategies, "fit_heads_out_of_fold", HEADS)  # noqa: B010


def score(name: str, split: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Fit the same network with each kind of head and score it."""
    X, y, Xt, yt = table(name, split)
    found: list[dict[str, Any]] = []
    first = None
    for head in ("point", "laplace", "conjugate"):
        if head == "conjugate" and name in CLASSES:
            continue
        kind = UnboundedDepthRegressor if name in REGRESSION else UnboundedDepthClassifier
        given = {"cv": 1, "random_state": split, **options, "last_layer": head}
        HEADS.seconds = 0.0
        began = time.perf_counter()
        fitted = kind(**given).fit(X, y)
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        dist: Any = fitted.predict_dist(Xt)
        rows = dist.log_prob(yt).numpy()
        predicting = time.perf_counter() - began
        if name in REGRESSION:
            low, high = (bound.numpy() for bound in dist.interval(0.9))
            calibration = float(np.mean((low <= yt) & (yt <= high)))
        else:
            place = {label: i for i, label in enumerate(fitted.classes_.tolist())}
            codes = np.array([place[label] for label in np.asarray(yt).tolist()])
            calibration = float(expected_calibration_error(codes, dist.log_probs.exp().numpy()))
        first = rows if first is None else first
        found.append(
            {
                "table": name,
                "rows": len(y),
                "split": split,
                "head": head,
                "log_likelihood": float(rows.mean()),
                "gain": float((rows - first).mean()),
                "error": float((rows - first).std() / math.sqrt(len(rows))),
                "calibration": calibration,
                "worst": float(np.median(rows) - rows.min()),
                "weights": float(dist.uncertainty().weights.mean() / dist.uncertainty().total.mean()),
                "seconds": seconds,
                "share": 100.0 * HEADS.seconds / seconds,
                "predicting": predicting,
                "depth": fitted.structure_.statistics["mean_depth"],
            }
        )
    return found


def line(one: dict[str, Any]) -> str:
    """Return one line of the table."""
    return (
        f"{one['table']:26} {one['rows']:7,} {one['split']:2}  {one['head']:9} log-lik. {one['log_likelihood']:8.4f}  "
        f"gain {one['gain']:+8.4f} ± {one['error']:.4f}  cover/ECE {one['calibration']:.3f}  "
        f"worst {one['worst']:5.1f}  weights {100.0 * one['weights']:5.2f} %  "
        f"fit {one['seconds']:6.1f} s, heads {one['share']:4.1f} %, "
        f"predict {one['predicting']:5.1f} s"
    )


def main() -> None:
    """Run the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", default=",".join((*REGRESSION, *CLASSES)))
    parser.add_argument("--splits", default="0")
    parser.add_argument("--options", default="{}", help="options of the estimators, as JSON")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a file of JSON lines")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    warnings.simplefilter("ignore")
    print(
        f"{platform.machine()}, {args.threads} thread(s), Python {platform.python_version()}, torch "
        f"{torch.__version__}, scikit-learn {sklearn.__version__}; seed of a fit: its split; options {args.options}"
    )
    for name in args.tables.split(","):
        for split in map(int, args.splits.split(",")):
            for one in score(name, split, json.loads(args.options)):
                print(line(one), flush=True)
                if args.out:
                    with args.out.open("a") as file:
                        file.write(json.dumps(one) + "\n")


if __name__ == "__main__":
    main()
