"""Small problems with fast fits of estimators."""

import datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pyarrow as pa
from sklearn.base import clone

from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor

Array = npt.NDArray[Any]


#: Checks of scikit-learn that ask for accuracy; all others hold for a training of any length.
ACCURATE = {"check_classifiers_train", "check_regressors_train", "check_class_weight_classifiers"}


def checked(estimator: Any, check: Any, **least: Any) -> None:
    """Run a check of scikit-learn, with the short training of `least` unless the check requires accuracy."""
    check(estimator if check.func.__name__ in ACCURATE else clone(estimator).set_params(**least))


def problem(n: int = 80, columns: int = 3, targets: int = 1, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, columns))
    y = np.sin(X[:, :1]) + X[:, 1:2] * np.arange(1, targets + 1) + 0.2 * rng.normal(size=(n, targets))
    return X, y[:, 0] if targets == 1 else y


def classes(n: int = 80, k: int = 3, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)) + np.arange(n)[:, None] % k
    return X, np.arange(n) % k


def regressor(**options: Any) -> UnboundedDepthRegressor:
    return UnboundedDepthRegressor(**{"epochs": 8, "width": 8, "cv": 1, "random_state": 0, **options})


def classifier(**options: Any) -> UnboundedDepthClassifier:
    return UnboundedDepthClassifier(**{"epochs": 8, "width": 8, "cv": 1, "random_state": 0, **options})


def table(n: int = 70) -> dict[str, list[Any]]:
    rng = np.random.default_rng(1)
    start = datetime.datetime(2024, 1, 1)
    size = [float(v) for v in rng.normal(size=n)]
    colour = [("red", "green", "blue")[i % 3] for i in range(n)]
    return {
        "size": [None if i % 11 == 5 else size[i] for i in range(n)],
        "count": [int(v) for v in rng.integers(0, 9, n)],
        "new": [bool(v) for v in rng.integers(0, 2, n)],
        "colour": [None if i % 13 == 7 else colour[i] for i in range(n)],
        "day": [start + datetime.timedelta(days=3 * i) for i in range(n)],
    }


FRAMES = {
    "pandas": lambda t: pd.DataFrame(t).astype({"colour": "category"}),
    "polars": lambda t: pl.DataFrame(t).with_columns(pl.col("colour").cast(pl.Categorical)),
    "pyarrow": pa.table,
}
