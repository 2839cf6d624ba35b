"""What the posterior of heads is worth, and what it costs: the same network with point, Laplace and Bayesian heads.

    python benchmarks/heads.py                                                  all tables
    python benchmarks/heads.py --tables power,protein --splits 0,1 --out FILE   some, kept as JSON lines

One network (``cv=1``) is trained once for each table and split; its heads, law over depth and noise are then found
by each of the three ways. Printed are, of test rows that nothing saw: the mean log density (in nats, in units of the
table), the standard error over rows of its difference to point heads, coverage of 90 % intervals (expected calibration
error for classes), how far the worst row lies below the median one, and the seconds of the heads with what is decided
anew, in per cent of those of the whole fit. The data come from the folder in FATHOMLESS_DATA; `made` is a function of
8 of 12 columns with noise, 500,000 rows.
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
from fathomless.estimators import last_layer, variational
from fathomless.posterior.metrics import expected_calibration_error

REGRESSION = ("yacht", "concrete", "wine_red", "kin8nm", "power", "naval", "protein", "made")
CLASSES = ("german_credit", "magic_telescope", "bank_marketing_additional", "adult")
MADE = 500_000


def table(name: str, split: int) -> tuple[Any, Any, Any, Any]:
    """Return training and test columns and targets: the splits of the set if it has some, else a tenth at random."""
    if name == "made":
        rng = np.random.default_rng(split)
        X = rng.normal(size=(MADE + 50_000, 12)).astype(np.float32)
        y = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + np.abs(X[:, 3]) + np.tanh(X[:, 4:8].sum(1))
        y = y + 0.3 * rng.normal(size=len(y))
        return X[:MADE], y[:MADE], X[MADE:], y[MADE:]
    data = load(name)
    X, y = data.X, np.asarray(data.y)
    if len(data.splits) > split:
        train, test = data.splits[split]
    else:
        rows = np.arange(len(y))
        train, test = train_test_split(
            rows, test_size=0.1, random_state=split, stratify=None if name in REGRESSION else y
        )
    return take(X, train), y[train], take(X, test), y[test]


class Timed:
    """A function, and the seconds that it took."""

    def __init__(self, function: Any) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *given: Any, **options: Any) -> Any:
        """Call it."""
        began = time.perf_counter()
        try:
            return self.function(*given, **options)
        finally:
            self.seconds += time.perf_counter() - began


#: What finds the heads and decides anew, in place of the function of the estimators.
HEADS = Timed(last_layer.fit_heads_out_of_fold)
setattr(variational, "heads_by_rows", HEADS)  # noqa: B010


def score(name: str, split: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Fit the same network with each kind of head, and score it."""
    X, y, Xt, yt = table(name, split)
    found: list[dict[str, Any]] = []
    first = None
    for head in ("point", "laplace", "bayes"):
        if head == "bayes" and name in CLASSES:
            continue
        kind = UnboundedDepthRegressor if name in REGRESSION else UnboundedDepthClassifier
        given = {"cv": 1, "random_state": split, **options, "last_layer": head}
        HEADS.seconds, began = 0.0, time.perf_counter()
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
        f"{one['table']:26} {one['rows']:7,} {one['split']:2}  {one['head']:8} log-lik. {one['log_likelihood']:8.4f}  "
        f"gain {one['gain']:+8.4f} ± {one['error']:.4f}  cover/ECE {one['calibration']:.3f}  "
        f"worst {one['worst']:5.1f}  weights {100.0 * one['weights']:5.2f} %  "
        f"fit {one['seconds']:6.1f} s, heads {one['share']:4.1f} %, "
        f"predict {one['predicting']:5.1f} s"
    )


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", default=",".join((*REGRESSION, *CLASSES)))
    parser.add_argument("--splits", default="0")
    parser.add_argument("--options", default="{}", help="JSON, of the estimators")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="a file of JSON lines")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    warnings.simplefilter("ignore")
    print(
        f"{platform.machine()}, {asked.threads} thread(s), Python {platform.python_version()}, torch "
        f"{torch.__version__}, scikit-learn {sklearn.__version__}; seed of a fit: its split; options {asked.options}"
    )
    for name in asked.tables.split(","):
        for split in map(int, asked.splits.split(",")):
            for one in score(name, split, json.loads(asked.options)):
                print(line(one), flush=True)
                if asked.out:
                    with asked.out.open("a") as file:
                        file.write(json.dumps(one) + "\n")


if __name__ == "__main__":
    main()
