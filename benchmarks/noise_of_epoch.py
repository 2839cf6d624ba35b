"""Choice of the epoch and of the depth with the noise of training rows, and with noise that suits out-of-fold rows.

    FATHOMLESS_DATA=<folder> python benchmarks/noise_of_epoch.py            about twenty minutes on one thread

The default fits each table twice. The two fits differ only in whether the scores of a training widen the noise of the
likelihood to suit the out-of-fold rows (``SearchOptions.settings``). Made tables have normal noise; real ones have the
published splits. Differences are paired over seeds or splits, with their standard errors.
"""

import argparse
import functools
import platform
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from fathomless import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.data import datasets
from fathomless.estimators.strategies import SearchOptions

Table = tuple[Any, Any, Any, Any]
Floats = np.ndarray[Any, Any]
_TEST = 2000  # test rows of a made table
CLASSES = "two classes"
REAL = ("yacht", "boston", "energy", "concrete")
#: columns, range of the columns, mean, standard deviation of the noise
MADE: dict[str, tuple[int, tuple[float, float], Callable[[Floats], Floats], float]] = {
    "smooth": (3, (-2.0, 2.0), lambda X: np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1], 0.5),
    "smooth, low noise": (3, (-2.0, 2.0), lambda X: np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1], 0.05),
    "linear": (5, (-2.0, 2.0), lambda X: X[:, 0] - 0.5 * X[:, 1] + 0.25 * X[:, 2], 0.5),
    "friedman1": (
        8,
        (0.0, 1.0),
        lambda X: 10.0 * (np.sin(np.pi * X[:, 0] * X[:, 1]) + X[:, 3] + 2.0 * (X[:, 2] - 0.5) ** 2) + 5.0 * X[:, 4],
        1.0,
    ),
}


class WithSettings(UnboundedDepthRegressor):
    """Regressor with a given widening of its scores."""

    widened = True

    def _search(self) -> SearchOptions:
        return replace(super()._search(), settings={"widened": self.widened})


class ClassesWithSettings(UnboundedDepthClassifier):
    """Classifier with a given widening of its scores."""

    widened = True

    def _search(self) -> SearchOptions:
        return replace(super()._search(), settings={"widened": self.widened})


def made(name: str, rows: int, seed: int) -> Table:
    """Return a made table, and test rows of the same law."""
    columns, (low, high), mean, noise = MADE[name]

    def draw(g: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        X = g.uniform(low, high, (n, columns))
        return X, mean(X) + noise * g.standard_normal(n)

    return *draw(np.random.default_rng([seed, rows]), rows), *draw(np.random.default_rng(99), _TEST)


def two_classes(rows: int, seed: int) -> Table:
    """Return a made table of two classes, and test rows of the same law."""

    def draw(g: np.random.Generator, n: int) -> tuple[Floats, Floats]:
        X = g.uniform(-2.0, 2.0, (n, 3))
        return X, (g.logistic(size=n) < 2.0 * np.sin(1.5 * X[:, 0]) + X[:, 1]).astype(int)

    return *draw(np.random.default_rng([seed, rows]), rows), *draw(np.random.default_rng(99), _TEST)


def split(name: str, number: int) -> Table:
    """Return a published split of a data set."""
    data = datasets.load(name)
    assert data.y is not None
    train, test = data.splits[number]
    return data.X[train], data.y[train], data.X[test], data.y[test]


def score(kind: type[Any], table: Table, seed: int, *, widened: bool) -> list[float]:
    """Fit a table; return log density, RMSE (or share of errors), coverage, depth, epochs and seconds."""
    X, y, X_test, y_test = table
    fitted = kind(random_state=seed)
    fitted.widened = widened
    began = time.perf_counter()
    fitted.fit(X, y)
    seconds = time.perf_counter() - began
    law = fitted.predict_dist(X_test)
    depth = fitted.fit_diagnostics_.structure.mean
    if kind is ClassesWithSettings:
        p = fitted.predict_proba(X_test)
        error = float(np.mean(p.argmax(1) != y_test))
        log_density = float(np.log(p[np.arange(len(p)), y_test]).mean())
        return [log_density, error, float("nan"), depth, fitted.n_iter_, seconds]
    pit = np.asarray(law.cdf(y_test))
    error = float(np.sqrt(np.mean((fitted.predict(X_test) - y_test) ** 2)))
    inside = float(np.mean((pit > 0.05) & (pit < 0.95)))
    return [float(np.asarray(law.log_prob(y_test)).mean()), error, inside, depth, fitted.n_iter_, seconds]


def compare(name: str, kind: type[Any], tables: Sequence[Table]) -> None:
    """Print the paired differences of one kind of table."""
    rows = np.array([[score(kind, table, i, widened=wide) for wide in (False, True)] for i, table in enumerate(tables)])
    gain = rows[:, 1, 0] - rows[:, 0, 0]
    error = np.log(rows[:, 1, 1] / rows[:, 0, 1])

    def paired(values: Floats) -> str:
        spread = values.std(ddof=1) / len(values) ** 0.5 if len(values) > 1 else float("nan")
        return f"{values.mean():+.3f} ± {spread:.3f}"

    means = rows.mean(0)
    changes = "  ".join(f"{means[0, i]:.{d}f} -> {means[1, i]:.{d}f}" for i, d in ((2, 3), (3, 2), (4, 0), (5, 1)))
    print(f"{name:<24}{len(tables):>3}  {paired(gain)}  {paired(error)}  {changes}", flush=True)


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="seeds of a made table, or splits of a real one")
    parser.add_argument("--rows", type=int, nargs="*", default=[40, 100, 300], help="rows of the made tables")
    parser.add_argument("--made", nargs="*", default=[*MADE, CLASSES], help="made tables")
    parser.add_argument("--real", nargs="*", default=list(REAL), help="real tables")
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, {time.strftime('%F')}")
    print(f"seeds, or splits, 0 to {args.seeds - 1}; each difference is widened less not widened")
    print(f"{'table':<24}{'n':>3}  log density      log of error     coverage of 90 %, mean depth, epochs, seconds")
    for rows in args.rows:
        for name in args.made:
            draw = two_classes if name == CLASSES else functools.partial(made, name)
            kind = ClassesWithSettings if name == CLASSES else WithSettings
            compare(f"{name}, {rows}", kind, [draw(rows, seed) for seed in range(args.seeds)])
    for name in args.real:
        compare(name, WithSettings, [split(name, number) for number in range(args.seeds)])


if __name__ == "__main__":
    main()
