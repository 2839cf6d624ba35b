"""Incremental training with ``partial_fit``: results of passes, and errors."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fathomless import FiniteNetworkRegressor, UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.estimators.values import ELBO, Adam
from fathomless.families.registry import estimator_class, families
from fathomless.posterior.ensemble import list_members
from fathomless.system.errors import DataError
from quick_fits import Array, classes, problem

# what a fit warns of is about its length
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
ABLE = {"depth", "finite", "depth-uncertainty", "dropout", "meanfield", "matrix-normal"}


def linear(n: int = 120) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, X @ [0.3, -0.2] + 0.5 + 0.3 * rng.normal(size=n)


def regressor(**options: Any) -> FiniteNetworkRegressor:
    """Return a linear model with a Gaussian prior of standard deviation 1 and a known noise."""
    given = {"depth": 0, "noise": 0.2, "likelihood": "gaussian", "learning_rate": 0.05, "random_state": 0}
    return FiniteNetworkRegressor(**{**given, **options})


def test_passes_over_all_rows_find_the_posterior_mode_of_linear_regression() -> None:
    X, y = linear()
    fitted = regressor()
    for rate, passes in ((0.02, 90), (0.002, 40)):
        fitted.set_params(learning_rate=rate)
        for _ in range(passes):
            fitted.partial_fit(X, y, total_rows=120)
    x, z = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    A = np.column_stack([x, np.ones(120)])
    w = np.linalg.solve(A.T @ A / 0.2**2 + np.eye(3), A.T @ z / 0.2**2)
    np.testing.assert_allclose(
        fitted.predict(X), y.mean() + y.std() * (A @ w), atol=0.015
    )  # of a noise of 0.3: steps are still taken
    assert fitted.n_iter_ == len(fitted.history_) == 130
    assert fitted.validation_score_ is None


def test_parts_of_the_rows_come_to_what_a_fit_to_all_of_them_does() -> None:
    X, y = linear()
    fitted = regressor(learning_rate=0.02)
    for k in range(100):
        part = slice(k % 4, None, 4)
        fitted.partial_fit(X[part], y[part], total_rows=120)
    A = np.column_stack([X, np.ones(120)])
    expected = A @ np.linalg.lstsq(A, y, rcond=None)[0]  # the prior weighs as much as 0.04 rows
    assert np.abs(fitted.predict(X) - expected).max() < 0.1
    twice = regressor().partial_fit(X, y).partial_fit(X, y)  # these count as new rows
    weighted = regressor().partial_fit(X, y, total_rows=120).partial_fit(X, y, total_rows=240)
    assert (twice.predict(X) == weighted.predict(X)).all()


@pytest.mark.parametrize("options", [{}, {"weights": "meanfield"}], ids=["map", "meanfield"])
def test_passes_are_the_epochs_of_a_fit_that_holds_nothing_out(options: dict[str, Any]) -> None:
    X, y = problem(60)
    given = {"width": 8, "structure_from": ELBO(rate=3.0), "likelihood": "gaussian", "random_state": 0, **options}
    fitted = UnboundedDepthRegressor(**given)
    for _ in range(12):
        fitted.partial_fit(X, y, total_rows=60)
    one = {"cv": 1, "validation_fraction": 0.0, "optimizer": Adam(schedule="constant"), "epochs": 12}
    whole = UnboundedDepthRegressor(**given, **one, calibrate=False).fit(X, y)
    np.testing.assert_allclose(fitted.predict(X), whole.predict(X), rtol=1e-5)
    assert fitted.depth_posterior_ == pytest.approx(whole.depth_posterior_, rel=1e-5)


def test_classes_may_come_later_and_must_be_named_first(tmp_path: Path) -> None:
    X, y = classes(90)
    make: dict[str, Any] = {"width": 8, "random_state": 0, "learning_rate": 0.02}
    with pytest.raises(DataError, match="classes must be passed on the first call to partial_fit"):
        UnboundedDepthClassifier(**make).partial_fit(X, y)
    order = np.argsort(y, kind="stable")  # one class after the other
    fitted = UnboundedDepthClassifier(**make).partial_fit(X[order[:30]], y[order[:30]], classes=[0, 1, 2])
    assert fitted.classes_.tolist() == [0, 1, 2]
    for _ in range(40):
        fitted.partial_fit(X, y, total_rows=90)
    assert fitted.score(X, y) > 0.55
    with pytest.raises(DataError, match="y has the class 3"):
        fitted.partial_fit(X, y + 1)
    with pytest.raises(DataError, match="classes are 0, 1, 3, and were 0, 1, 2 in the first call"):
        fitted.partial_fit(X, y, classes=[0, 1, 3])
    before = fitted.partial_fit(X, y, classes=[2, 1, 0], total_rows=90).predict_proba(X)
    with pytest.raises(ValueError, match="1 features"):
        fitted.partial_fit(X[:, :1], y)
    assert (fitted.predict_proba(X) == before).all()
    loaded = UnboundedDepthClassifier.load(fitted.save(tmp_path / "m"))
    assert (loaded.predict_proba(X) == before).all()
    assert loaded.partial_fit(X, y, total_rows=90).score(X, y) > 0.55
    whole = {"epochs": 3, "cv": 1}
    again, fresh = (one.set_params(**whole).fit(X, y) for one in (fitted, UnboundedDepthClassifier(**make)))
    assert (again.predict_proba(X) == fresh.predict_proba(X)).all()  # fit begins anew


@pytest.mark.parametrize(
    ("options", "more", "message"),
    [
        ({"cv": 3}, {}, "cv=3 was given, but partial_fit trains a single network"),
        ({"n_restarts": 2}, {}, "n_restarts=2 was given, but partial_fit trains a single network"),
        ({"weights": "hmc"}, {}, "weights='hmc' was given, but partial_fit trains a single network"),
        ({"last_layer": "laplace"}, {}, "last_layer='laplace' was given, but partial_fit trains a single network"),
        ({}, {"total_rows": 20}, "total_rows=20 was given with 80 rows"),
        ({}, {"classes": [0, 1]}, "classes were given, but this estimator predicts numbers"),
    ],
    ids=str,
)
def test_what_is_not_of_one_network_is_refused(options: dict[str, Any], more: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        UnboundedDepthRegressor(**options).partial_fit(*problem(), **more)


def test_only_families_of_one_trained_network_have_it() -> None:
    for family in families().values():
        for place in family.tasks.values():
            assert hasattr(estimator_class(place), "partial_fit") == (family.name in ABLE), family.name
    X, y = problem(40)
    several = UnboundedDepthRegressor(epochs=2, cv=2, width=4, random_state=0).fit(X, y)
    several.set_params(cv="auto", learning_rate=1e-9).partial_fit(X, y)  # goes on from the first of them
    assert len(list_members(several.model_)) == 1
    assert several.fold_ is None
