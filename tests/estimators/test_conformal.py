"""Prediction intervals with a guarantee: scores of a fit, and their use, for every kind of split."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from fathomless import HMC, DeepEnsembleRegressor, Folds, SparseBayesRegressor, UnboundedDepthRegressor
from fathomless.data.categories import category_columns, category_name, read_categories
from fathomless.data.frames import encode, fit_schema
from fathomless.estimators.problem import Problem
from fathomless.families.registry import load
from fathomless.system.errors import DataError, DataWarning
from fathomless.system.rng import fold_in
from quick_fits import Array, problem

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")  # fits are short


def regressor(**options: Any) -> UnboundedDepthRegressor:
    return UnboundedDepthRegressor(**{"epochs": 6, "width": 6, "cv": 4, "random_state": 0, **options})


def direct(fitted: Any, X: Array, y: Array, new: Array, level: float) -> tuple[Array, Array]:
    """Compute the intervals from out-of-fold predictions, for a fit with calibrate=False and one target."""
    folds = fitted.fold_
    size = folds.max() + 1
    seen = fitted.predict_dist(X, fold=folds)
    score = np.abs(y - seen.mean.numpy()) / seen.std.numpy()
    of_fold = [fitted.predict_dist(new, fold=np.full((1, len(new)), k)) for k in range(size)]
    mean, std = (np.stack([getattr(p, name).numpy() for p in of_fold])[folds[0]] for name in ("mean", "std"))  # (N, M)
    place = math.ceil(level * (len(X) + 1)) - 1
    width = score[:, None] * std
    return -np.sort(width - mean, 0)[place], np.sort(width + mean, 0)[place]


def test_the_intervals_are_cv_plus_of_out_of_fold_predictions() -> None:
    X, y = problem(50)
    new = problem(30, seed=1)[0]
    fitted = regressor(calibrate=False).fit(X, y)
    for level in (0.5, 0.9):
        found = fitted.predict_interval(new, level, guarantee="marginal")
        np.testing.assert_allclose(found, direct(fitted, X, y, new, level), rtol=1e-9)


def test_the_coverage_of_a_fit() -> None:
    def made(n: int, seed: int) -> tuple[pd.DataFrame, Array]:
        rng = np.random.default_rng(seed)
        X = pd.DataFrame({"x": rng.normal(size=n), "site": rng.choice(["quiet", "loud"], n, p=[0.7, 0.3])})
        noise = np.where(X["site"] == "loud", 1.0, 0.2) * rng.normal(size=n)
        return X, np.sin(2.0 * X["x"].to_numpy()) + noise

    X, y = made(300, 0)
    fitted = regressor(epochs=60, width=8, cv=5).fit(X, y)
    X, y = made(4000, 1)
    loud = X["site"] == "loud"

    def coverage(part: Any, **options: Any) -> float:
        low, high = fitted.predict_interval(X, 0.9, **options)
        return float(((low <= y) & (y <= high))[part].mean())

    every = np.ones(len(y), dtype=bool)
    assert 0.86 < coverage(every, guarantee="marginal") < 0.95
    assert coverage(loud, guarantee="marginal") < 0.86  # the loud site, which a guarantee on average does not cover
    by_site = {"guarantee": "group", "column": "site"}
    for part in (loud, ~loud):
        assert 0.84 < coverage(part, **by_site) < 0.96  # about 90 and 210 rows


@pytest.mark.parametrize(
    ("options", "units", "per_row"),
    [
        ({}, 4, 1.0),
        ({"cv": Folds(n_splits=3, n_repeats=2)}, 6, 2.0),
        ({"candidates": {"activation": ("relu", "tanh")}}, 4, 1.0),
        ({"cv": 1}, 1, 1.0),
        ({"cv": 1, "n_restarts": 2}, 1, 1.0),
        ({"last_layer": "laplace", "weight_draws": 3}, 4, 1.0),
        ({"cv": 1, "weights": "meanfield", "weight_draws": 3}, 1, 1.0),
    ],
    ids=str,
)
def test_every_split_has_scores(options: dict[str, Any], units: int, per_row: float, tmp_path: Path) -> None:
    X, y = problem(80, targets=2)
    fitted = regressor(**options).fit(X, y)
    scores = fitted.predictor_.conformal
    assert scores is not None
    assert len(scores.networks) == units
    assert len(scores.score) == per_row * len(fitted.held_out_)
    assert scores.weight.sum() == pytest.approx(len(fitted.held_out_))
    assert all(len(numbers) == (2 if "candidates" in options else 1) for numbers in scores.networks)
    low, high = fitted.predict_interval(X, 0.5, guarantee="marginal")
    assert low.shape == high.shape == (80, 2)
    assert (low < high).all()
    assert 0.3 < ((low <= y) & (y <= high)).mean() < 0.95
    fitted.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert np.array_equal(again.predict_interval(X, 0.5, guarantee="marginal"), (low, high))
    parts = [fitted.predict_interval(X[part], 0.5, guarantee="marginal") for part in (slice(0, 31), slice(31, 80))]
    np.testing.assert_allclose(np.concatenate(parts, 1), (low, high), rtol=1e-9)


def test_other_families_have_scores() -> None:
    X, y = problem(80)
    for fitted in (
        SparseBayesRegressor(epochs=4, width=4, temperature=1.0, validation_fraction=0.2, random_state=0).fit(X, y),
        DeepEnsembleRegressor(epochs=4, width=4, random_state=0).fit(X, y),
    ):
        low, high = fitted.predict_interval(X, 0.5, guarantee="marginal")
        assert (low < high).all()


def test_networks_that_diverged_have_no_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    build = Problem.start

    def broken(self: Any, prepared: Any, seed: int) -> Any:
        model, likelihood = build(self, prepared, seed)
        if seed == fold_in(prepared.seed, "restart", 1):
            with torch.no_grad():
                next(model.parameters()).fill_(math.nan)
        return model, likelihood

    monkeypatch.setattr(Problem, "start", broken)
    X, y = problem(60)
    fitted = regressor(calibrate=False).fit(X, y)
    scores = fitted.predictor_.conformal
    assert scores is not None
    assert fitted.fold_ is not None
    kept = fitted.fold_[0] >= 0
    assert scores.networks == ((0,), (1,), (2,))
    assert len(scores.score) == kept.sum() == 45
    found = fitted.predict_interval(X, 0.8, guarantee="marginal")
    masked = fitted.fold_
    fitted.fold_ = masked[:, kept]
    np.testing.assert_allclose(found, direct(fitted, X[kept], y[kept], X, 0.8), rtol=1e-9)


def test_weights_and_groups_determine_the_weight_of_a_score() -> None:
    X, y = problem(60)
    weight = 1.0 + (np.arange(60) % 3 == 0)
    scores = regressor().fit(X, y, sample_weight=weight).predictor_.conformal
    assert scores is not None
    assert sorted(scores.weight) == sorted(weight)
    group = np.repeat(np.arange(20), 3)
    for options in ({}, {"cv": 1, "validation_fraction": 0.3}):
        fitted = regressor(**options).fit(X, y, sample_weight=weight, groups=group)
        scores = fitted.predictor_.conformal
        assert scores is not None
        groups = len(set(group[fitted.held_out_]))
        assert scores.weight.sum() == pytest.approx(groups)  # the weight of a group is one
        assert sorted(set(scores.weight.round(9))) == [0.25, 0.5]


def test_infinite_bounds_are_announced() -> None:
    X = pd.DataFrame({"x": problem(40)[0][:, 0], "site": ["a"] * 34 + ["b"] * 6})
    fitted = regressor().fit(X, problem(40)[1])
    with pytest.warns(DataWarning, match=r"column 'site', 'b'.* at least 9 out-of-fold rows, and there are 6"):
        low, high = fitted.predict_interval(X, 0.9, guarantee="group", column="site")
    assert np.isinf(high[34:]).all()
    assert np.isfinite(high[:34]).all()
    assert (low[34:] == -math.inf).all()
    with pytest.warns(DataWarning, match="rows of the fit: a guarantee needs at least 99 out-of-fold rows"):
        fitted.predict_interval(X, 0.99, guarantee="marginal")


def test_what_has_no_guarantee_is_refused(tmp_path: Path) -> None:
    X, y = problem(40)
    fitted = regressor().fit(X, y)
    for options, message in (
        ({"guarantee": "all"}, "'marginal'"),
        ({"guarantee": "group"}, "without a column; set column"),
        ({"guarantee": "group", "column": "x0"}, "the training table had no such column"),
        ({"guarantee": "marginal", "column": "x0"}, "use guarantee='group'"),
        ({"column": "x0"}, "without a guarantee; set guarantee='group'"),
        ({"guarantee": "marginal", "level": 1.0}, "level"),
    ):
        with pytest.raises(DataError, match=message):
            fitted.predict_interval(X, **options)
    fitted._conformal = None  # as in a folder of an earlier version
    fitted.save(tmp_path / "m")
    single = regressor(cv=1, validation_fraction=0.0).fit(X, y)
    sampled = regressor(weights=HMC(chains=2, sweeps=16, leapfrogs=1)).fit(X, y)
    for other in (load(tmp_path / "m"), single, sampled):
        assert other.predict_interval(X)[0].shape == (40,)
        with pytest.raises(DataError, match="no scores of rows"):
            other.predict_interval(X, guarantee="marginal")


def test_categories_of_encoded_rows() -> None:
    X = pd.DataFrame(
        {
            "n": [0.5, 1.0, 2.0, 4.0],
            "c": ["v", None, "u", "w"],
            "b": pd.array([True, False, None, True], dtype="boolean"),
            "k": ["p", "q", "q", "p"],
        }
    )
    schema = fit_schema(X, unseen="ignore")
    assert category_columns(schema) == ("c", "b", "k")
    codes = read_categories(schema, encode(schema, X))
    assert codes.tolist() == [[1, 1, 0], [3, 0, 1], [0, 2, 1], [2, 1, 0]]
    names = [category_name(schema, "c", code) for code in (0, 3, -1)]
    assert names == ["'u'", "missing", "a category without training rows"]
    assert category_name(schema, "b", 1) == "True"
    new = X.assign(k=["z"] * 4)
    assert (read_categories(schema, encode(schema, new))[:, 2] == -1).all()
