"""Uncertainty away from the data for all defaults and for sampled weights: far away, in a gap, and around a spiral.

    python benchmarks/off_data.py                     all three
    python benchmarks/off_data.py far gap spiral      some of them
    python benchmarks/off_data.py --only continuous   methods whose names start with this word

far: 300 rows of diabetes. At 0, 2, 4 and 8 standard deviations from the mean, in 200 random directions, the output is
the standard deviation of the networks' outputs, without noise, in standard deviations of the target (median over
directions). gap: the cosine with a gap of the experiment `paths` (40 rows, noise learned), compared with a Gaussian
process. The output is log density and coverage of 95 % intervals for new points near the data, in the gap, and outside.
spiral: ten quarter turns, 400 points. The output is the share of the plane outside the spiral, in a square twice as
wide, where a class has probability above 0.99, and the mean entropy (nats) there and at the points.
"""

import argparse
import platform
import sys
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_diabetes

import fathomless
from fathomless import PathOptions
from fathomless.data.datasets import spiral

sys.path.append(str(Path(__file__).parents[1]))  # the experiments of this clone
from experiments.gaussian_process import gaussian_process
from experiments.paths import TOYS, score_regions

#: Class and options of every column.
KINDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "depth": ("UnboundedDepth", {}),
    "depth, one network": ("UnboundedDepth", {"cv": 1}),
    "depth, last_layer=laplace": ("UnboundedDepth", {"cv": 1, "last_layer": "laplace"}),
    "depth, last_layer=conjugate": ("UnboundedDepth", {"cv": 1, "last_layer": "conjugate"}),
    "depth, hmc": ("UnboundedDepth", {"weights": "hmc"}),
    "sparse": ("SparseBayes", {}),
    "continuous": ("ContinuousDepth", {}),
    "continuous, first": ("ContinuousDepth", {"path": PathOptions(stochastic="first")}),
    "continuous, last": ("ContinuousDepth", {"path": PathOptions(stochastic="last")}),
    "continuous, rate=0": ("ContinuousDepth", {"path": PathOptions(rate=0)}),
    "manifold": ("ProjectedBayes", {}),
    "manifold, anchored": ("ProjectedBayes", {"anchored": True}),
    "graph": ("IndianChefs", {}),
    "meanfield": ("MeanFieldNetwork", {}),
    "ensemble": ("DeepEnsemble", {}),
    "dropout": ("DropoutNetwork", {}),
}


def estimators(task: str, only: str) -> dict[str, Any]:
    """Return every estimator that the task supports, whose name starts with a word."""
    kinds = {name: (getattr(fathomless, family + task), options) for name, (family, options) in KINDS.items()}
    if task == "Classifier":
        kinds.pop("depth, last_layer=conjugate")
    return {name: kind(random_state=0, **options) for name, (kind, options) in kinds.items() if name.startswith(only)}


def far(only: str) -> None:
    """Print the uncertainty at several distances."""
    X, y = load_diabetes(return_X_y=True, scaled=False)
    X = (X - X.mean(0)) / X.std(0)
    order = np.random.default_rng(0).permutation(len(X))[:300]
    directions = np.random.default_rng(1).normal(size=(200, X.shape[1]))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    print("standard deviation without noise, in units of that of y, at 0, 2, 4, 8 standard deviations from the mean")
    for name, estimator in estimators("Regressor", only).items():
        began = time.perf_counter()
        estimator.fit(X[order], y[order])
        found = []
        for distance in (0.0, 2.0, 4.0, 8.0):
            parts = estimator.predict_dist(distance * directions).uncertainty()
            found.append(float(np.median(np.sqrt(np.asarray(parts.total - parts.noise)))) / y[order].std())
        print(f"  {name:20}", *(f"{one:7.3f}" for one in found), f"  {time.perf_counter() - began:6.1f} s", flush=True)


def gap(only: str) -> None:
    """Print scores near the data, in the gap, and outside."""
    toy = TOYS["cosine"]
    X, y = toy.sample(40, 0)
    print("cosine with a gap, 40 rows; log density and coverage of 95 % intervals near the data, in the gap, outside")
    kinds: dict[str, Any] = {"Gaussian process": None, **estimators("Regressor", only)}
    for name, estimator in kinds.items():
        if estimator is None:
            predict, _ = gaussian_process(X[:, 0], y)
        else:
            estimator.fit(X, y)

            def predict(at: Any, estimator: Any = estimator) -> Any:
                return estimator.predict_dist(at[:, None])

        told = score_regions(predict, toy, 0)
        parts = (f"{-told[f'{part}/nll']:8.2f} {told[f'{part}/coverage']:5.2f}" for part in ("data", "gap", "outside"))
        print(f"  {name:20}", "  ".join(parts), flush=True)


def around(only: str) -> None:
    """Print the confidence of classifiers around a spiral."""
    X, y = spiral(400, 10.0, 0)
    line = np.linspace(-2.0, 2.0, 61) * np.abs(X).max()
    plane = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    outside = np.linalg.norm(plane, axis=1) > 1.1 * np.linalg.norm(X, axis=1).max()
    print("spiral: share of the plane outside with a class above 0.99, entropy there, entropy at the points, accuracy")
    for name, estimator in estimators("Classifier", only).items():
        began = time.perf_counter()
        estimator.fit(X, y)
        p, own = estimator.predict_proba(plane[outside]), estimator.predict_proba(X)
        entropy = [-(q * np.log(np.maximum(q, 1e-300))).sum(1).mean() for q in (p, own)]
        fresh, label = spiral(1000, 10.0, 1)
        print(
            f"  {name:20} {np.mean(p.max(1) > 0.99):6.2f} {entropy[0]:6.3f} {entropy[1]:6.3f} "
            f"{estimator.score(fresh, label):6.3f}  {time.perf_counter() - began:6.1f} s",
            flush=True,
        )


def main() -> None:
    """Run the benchmark with the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="far, gap, spiral; all by default")
    parser.add_argument("--only", default="", help="beginning of the names of methods")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{platform.machine()}, one thread, Python {platform.python_version()}, torch {torch.__version__}")
    for name in given.what or ["far", "gap", "spiral"]:
        {"far": far, "gap": gap, "spiral": around}[name](given.only)


if __name__ == "__main__":
    main()
