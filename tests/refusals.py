"""Fast estimators and data for tests of errors, which must leave estimators unchanged."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest

from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.system.errors import FathomlessError

Array = npt.NDArray[Any]
nan, inf = float("nan"), float("inf")


def regressor(**options: Any) -> UnboundedDepthRegressor:
    return UnboundedDepthRegressor(**{"epochs": 2, "width": 4, "random_state": 0, **options})


def classifier(**options: Any) -> UnboundedDepthClassifier:
    return UnboundedDepthClassifier(**{"epochs": 2, "width": 4, "random_state": 0, **options})


def numbers(n: int = 20, columns: int = 2) -> Array:
    return np.random.default_rng(0).normal(size=(n, columns))


def frame(n: int = 20) -> pd.DataFrame:
    return pd.DataFrame({"size": numbers(n)[:, 0], "colour": [("red", "blue")[i % 2] for i in range(n)]})


@cache
def _fitted(make: Callable[..., Any]) -> Any:
    return make().fit(numbers(), ["a", "b"] * 10 if make is classifier else numbers()[:, 0])


def refused(
    message: str, X: Any, y: Any, weight: Any = None, kind: Any = (FathomlessError, ValueError), **options: Any
) -> None:
    """Check the message, and that the estimator is unchanged, fitted or not."""
    make = options.pop("make", regressor)
    before = make(**options)
    with pytest.raises(kind, match=message):
        before.fit(X, y, sample_weight=weight)
    assert vars(before) == vars(make(**options))
    fitted = copy.deepcopy(_fitted(make))
    state, expected = set(vars(fitted)), np.array(fitted.predict(numbers()))
    with pytest.raises(kind, match=message):
        fitted.set_params(**options).fit(X, y, sample_weight=weight)
    assert set(vars(fitted)) == state
    np.testing.assert_array_equal(fitted.predict(numbers()), expected)
