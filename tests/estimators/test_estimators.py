"""The scikit-learn interface of estimators: fits, attributes and predictions."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fathomless.data import datasets
from fathomless.estimators.values import ELBO, Adam
from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.posterior.laws import SmoothTruncation, TruncatedPoisson, UniformPrior
from fathomless.system.errors import ConvergenceWarning
from quick_fits import FRAMES, Array, checked, classes, classifier, problem, regressor, table

# fits are short on purpose
pytestmark = [
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.DataWarning"),
]


# ------------------------------------------------------------------------------------------- scikit-learn


# shorter fits than those that come: of ten networks side by side, and of one
@parametrize_with_checks(
    [
        UnboundedDepthClassifier(epochs=20, learning_rate=0.02, width=16),
        UnboundedDepthRegressor(cv=1, epochs=60, learning_rate=0.02, width=16),
    ]
)
def test_scikit_learn_finds_nothing_to_complain_about(estimator: Any, check: Any) -> None:
    checked(estimator, check, epochs=4)


def test_pipelines_searches_and_cross_validation_work() -> None:
    X, y = classes()
    pipe = make_pipeline(StandardScaler(), classifier())
    assert pipe.fit(X, y).predict_proba(X).shape == (80, 3)
    search = GridSearchCV(classifier(epochs=3), {"width": [4, 8], "depth_law": ["poisson", 1]}, cv=2).fit(X, y)
    assert set(search.best_params_) == {"width", "depth_law"}
    assert search.best_estimator_.predict(X).shape == (80,)
    assert cross_val_score(classifier(epochs=60), X, y, cv=3).mean() > 0.5
    X, y = problem()
    assert np.isfinite(cross_val_score(regressor(), X, y, cv=3)).all()
    assert cross_val_predict(regressor(), X, y, cv=3).shape == y.shape
    wrapped = TransformedTargetRegressor(regressor(), func=np.sinh, inverse_func=np.arcsinh, check_inverse=False)
    assert wrapped.fit(X, y).predict(X).shape == y.shape


def test_clone_and_parameters_keep_every_option() -> None:
    law, prior = TruncatedPoisson(3.0, SmoothTruncation()), UniformPrior(20)
    first = regressor(depth_law=law, depth_prior=prior, optimizer=Adam(schedule=((2, 0.1), (8, 1.0))), noise=0.3)
    again = clone(first)
    assert again.get_params() == first.get_params()
    assert again.set_params(width=5, noise="input").get_params()["width"] == 5
    assert not hasattr(clone(first.fit(*problem())), "model_")
    assert "width=8" in repr(first)


# -------------------------------------------------------------------------------------------- data frames


@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES.keys())
def test_frames_of_numbers_booleans_categories_dates_and_gaps_are_encoded(make: Any) -> None:
    rows = table()
    y = np.array([0.0 if c is None else len(c) for c in rows["colour"]])
    frame = make(rows)
    fitted = regressor(epochs=200, width=16).fit(frame, y)
    assert list(fitted.feature_names_in_) == list(rows)
    assert fitted.n_features_in_ == 5
    names = fitted.schema_.encoded_names
    assert {"size", "size is missing", "new", "colour=red", "colour is missing", "day (weekday, sin)"} <= set(names)
    assert r2_score(y, fitted.predict(frame)) > 0.8  # it has seen the categories
    few = make({name: values[:7] for name, values in rows.items()})
    np.testing.assert_allclose(fitted.predict(few), fitted.predict(frame)[:7], rtol=1e-9)
    labels = classifier(epochs=2).fit(frame, rows["new"])
    assert labels.predict_proba(few).shape == (7, 2)


def test_frames_of_all_kinds_give_the_same_model() -> None:
    rows = table()
    y = np.arange(70.0)
    predictions = [regressor().fit(make(rows), y).predict(make(rows)) for make in FRAMES.values()]
    np.testing.assert_array_equal(predictions[0], predictions[1])
    np.testing.assert_array_equal(predictions[0], predictions[2])


def test_columns_in_another_order_are_refused_as_scikit_learn_prescribes() -> None:
    frame = pd.DataFrame(table())
    fitted = regressor(epochs=1).fit(frame, np.arange(70.0))
    with pytest.raises(ValueError, match="must be in the same order as they were in fit"):
        fitted.predict(frame[list(frame)[::-1]])


@pytest.mark.parametrize(
    "target", [lambda v: pd.Series(v, dtype="category"), pl.Series, pa.chunked_array, list], ids=lambda f: str(f)[:20]
)
def test_targets_may_be_series(target: Any) -> None:
    X, y = classes(k=2)
    words = np.array(["no", "yes"])[y].tolist()
    column = pa.chunked_array([words]) if target is pa.chunked_array else target(words)
    fitted = classifier().fit(X, column)
    assert fitted.classes_.tolist() == ["no", "yes"]
    assert set(fitted.predict(X).tolist()) <= {"no", "yes"}
    weight = np.arange(80) < 50  # rows without weight are dropped, whatever the container
    by_weight = classifier().fit(X, column, sample_weight=weight).predict_proba(X)
    np.testing.assert_allclose(by_weight, classifier().fit(X[:50], words[:50]).predict_proba(X), rtol=1e-9)


def test_several_targets_may_come_as_a_frame() -> None:
    X, y = problem(targets=2)
    by_array = regressor().fit(X, y).predict(X)
    np.testing.assert_array_equal(regressor().fit(X, pd.DataFrame(y, columns=["a", "b"])).predict(X), by_array)
    np.testing.assert_array_equal(regressor().fit(X, pl.DataFrame(y, schema=["a", "b"])).predict(X), by_array)


# ------------------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("names", "dtype"),
    [
        (np.array(["ant", "bee", "cat"]), "U"),
        (np.array([False, True]), "b"),
        (np.array([-5, 0, 7]), "i"),
        (np.array(["ant", "bee", "cat"], dtype=object), "O"),
        (np.array([1.0, 2.0]), "f"),
    ],
    ids=["text", "booleans", "integers", "objects", "whole numbers"],
)
def test_labels_of_every_type_come_back_as_they_were(names: Array, dtype: str, tmp_path: Path) -> None:
    X, codes = classes(k=len(names))
    fitted = classifier(epochs=40).fit(X, names[codes])
    assert fitted.classes_.tolist() == sorted(names.tolist())
    labels = fitted.predict(X)
    assert labels.dtype.kind == fitted.classes_.dtype.kind == dtype
    assert (labels == names[codes]).mean() > 0.4
    assert (labels == fitted.classes_[fitted.predict_proba(X).argmax(1)]).all()
    loaded = UnboundedDepthClassifier.load(fitted.save(tmp_path / "m"))
    assert loaded.predict(X).dtype == labels.dtype
    assert (loaded.predict(X) == labels).all()


def test_many_and_unbalanced_classes_are_learned() -> None:
    rng = np.random.default_rng(0)
    codes = np.concatenate([np.arange(26), np.repeat(0, 500), rng.integers(0, 26, 300)])  # one class has most rows
    X = np.column_stack([codes % 6, codes // 6]) + 0.05 * rng.normal(size=(len(codes), 2))
    y = np.array(list("abcdefghijklmnopqrstuvwxyz"))[codes]
    fitted = classifier(epochs=300, width=32).fit(X, y)
    assert "".join(fitted.classes_) == "abcdefghijklmnopqrstuvwxyz"
    assert fitted.predict_proba(X).shape == (len(X), 26)
    assert fitted.score(X, y) > 0.9


# -------------------------------------------------------------------------------------------- predictions


@pytest.mark.parametrize("weights", ["map", "meanfield"])
def test_probabilities_sum_to_one_and_agree_with_samples(weights: str) -> None:
    X, y = classes()
    fitted = classifier(weights=weights).fit(X, y)
    p = fitted.predict_proba(X[:10])
    np.testing.assert_allclose(p.sum(1), 1.0, atol=1e-12)
    np.testing.assert_allclose(fitted.predict_log_proba(X[:10]), np.log(p), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(fitted.predict_dist(X[:10]).probs, p, rtol=1e-12)
    n = 20_000
    draws = fitted.sample_y(X[:10], n)
    assert draws.shape == (10, n)
    for k, label in enumerate(fitted.classes_):
        share = (draws == label).mean(1)
        assert (np.abs(share - p[:, k]) < 5 * np.sqrt(p[:, k] * (1 - p[:, k]) / n)).all()


@pytest.mark.parametrize(
    "options", [{}, {"weights": "meanfield"}, {"noise": "input"}, {"likelihood": "laplace"}], ids=str
)
@pytest.mark.parametrize("targets", [1, 2])
def test_means_deviations_intervals_and_samples_agree(options: dict[str, Any], targets: int) -> None:
    X, y = problem(targets=targets)
    fitted = regressor(**options).fit(X, y)
    new = X[:6]
    mean, std = fitted.predict(new, return_std=True)
    assert mean.shape == std.shape == (6, targets)[: y.ndim]
    np.testing.assert_array_equal(fitted.predict(new), mean)
    p = fitted.predict_dist(new)
    np.testing.assert_array_equal(p.mean, mean)
    np.testing.assert_array_equal(p.std, std)
    n = 20_000
    draws = fitted.sample_y(new, n, random_state=1)
    assert draws.shape == (*mean.shape, n)
    assert (np.abs(draws.mean(-1) - mean) < 5 * std / math.sqrt(n)).all()
    spread = np.std((draws - mean[..., None]) ** 2, axis=-1) / math.sqrt(n)
    assert (np.abs(((draws - mean[..., None]) ** 2).mean(-1) - std**2) < 5 * spread).all()
    low, high = fitted.predict_interval(new, 0.8)
    np.testing.assert_allclose(p.cdf(low), 0.1, atol=1e-6)
    np.testing.assert_allclose(p.cdf(high), 0.9, atol=1e-6)
    inside = ((low[..., None] <= draws) & (draws <= high[..., None])).mean(-1)
    assert (np.abs(inside - 0.8) < 5 * math.sqrt(0.16 / n)).all()


def test_samples_follow_their_seed() -> None:
    X, y = problem()
    fitted = regressor().fit(X, y)
    np.testing.assert_array_equal(fitted.sample_y(X, 3, random_state=5), fitted.sample_y(X, 3, random_state=5))
    assert (fitted.sample_y(X, 3, random_state=5) != fitted.sample_y(X, 3, random_state=6)).any()


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "laplace"])
def test_predictions_are_in_the_units_of_the_target(likelihood: str) -> None:
    X, y = problem()
    y = np.round(y * 1024) / 1024  # exact in binary, and so is what follows
    plain = regressor(likelihood=likelihood).fit(X, y)
    scaled = regressor(likelihood=likelihood).fit(X, 1000 * y + 5000)
    mean, std = plain.predict(X, return_std=True)
    mean_scaled, std_scaled = scaled.predict(X, return_std=True)
    np.testing.assert_allclose(mean_scaled, 1000 * mean + 5000, rtol=1e-9)
    np.testing.assert_allclose(std_scaled, 1000 * std, rtol=1e-9)
    for bound, bound_scaled in zip(plain.predict_interval(X), scaled.predict_interval(X), strict=True):
        np.testing.assert_allclose(bound_scaled, 1000 * bound + 5000, rtol=1e-9)
    density, density_scaled = plain.predict_dist(X).log_prob(y), scaled.predict_dist(X).log_prob(1000 * y + 5000)
    np.testing.assert_allclose(density_scaled, density - math.log(1000), atol=1e-8)


@pytest.mark.parametrize("weights", ["map", "meanfield"])
def test_uncertainty_splits_into_noise_weights_and_structure(weights: str) -> None:
    X, y = problem(targets=2)
    fitted = regressor(weights=weights, epochs=30).fit(X, y)
    u = fitted.predict_dist(X).uncertainty()
    np.testing.assert_allclose(u.noise + u.weights + u.structure, u.total, rtol=1e-9)
    np.testing.assert_allclose(u.total, fitted.predict(X, return_std=True)[1] ** 2, rtol=1e-9)
    assert (u.structure > 0).any()
    assert bool((u.weights > 0).any()) == (weights == "meanfield")
    u = classifier(weights=weights).fit(*classes()).predict_dist(classes()[0]).uncertainty()
    np.testing.assert_allclose(u.noise + u.weights + u.structure, u.total, rtol=1e-9, atol=1e-12)
    assert (u.total <= math.log(3) + 1e-12).all()


def test_predictions_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = problem()
    fitted = regressor(weights="meanfield").fit(X, y)
    whole = fitted.predict(X, return_std=True)
    dist = fitted.predict_dist(X)
    monkeypatch.setattr("fathomless.estimators.predictor.PREDICTED_AT_ONCE", 7)
    np.testing.assert_allclose(fitted.predict(X, return_std=True), whole, rtol=1e-9)
    np.testing.assert_allclose(fitted.predict_dist(X).log_prob(y), dist.log_prob(y), rtol=1e-9)


# ------------------------------------------------------------------------------------------ what was learned


def test_posterior_structure_and_history_are_told() -> None:
    X, y = problem(200)
    fitted = regressor(epochs=40).fit(X, y)
    assert math.isclose(sum(fitted.depth_posterior_.values()), 1.0, rel_tol=1e-9)
    s = fitted.structure_
    assert s.kind == "depth"
    assert s.names == tuple(map(str, fitted.depth_posterior_))
    assert s.probabilities == tuple(fitted.depth_posterior_.values())
    assert "mean depth" in s.summary
    mean = sum(depth * p for depth, p in fitted.depth_posterior_.items())
    assert math.isclose(s.statistics["mean_depth"], mean, rel_tol=1e-9)
    row = fitted.history_[-1]
    assert {
        "epoch",
        "step",
        "learning_rate",
        "elbo",
        "log_likelihood",
        "divergence_weights",
        "divergence_depth",
        "validation_log_likelihood",
        "mean_depth",
        "deepest",
    } <= set(row)
    parts = row["log_likelihood"] - row["divergence_weights"] - row["divergence_depth"]
    assert math.isclose(row["elbo"], parts, rel_tol=1e-9)
    assert fitted.n_iter_ == row["epoch"] == 40
    best = max(r["validation_log_likelihood"] for r in fitted.history_)  # of the standardised target
    # noise and law are fitted without the row that is scored, so it is not the best of the history
    assert fitted.validation_score_ == pytest.approx(best - math.log(fitted.target_.scale[0]), abs=0.15)
    json.dumps(fitted.history_, allow_nan=False)
    assert regressor(epochs=2, validation_fraction=0.0).fit(X, y).validation_score_ is None


def test_an_integer_depth_is_an_ordinary_network() -> None:
    fitted = regressor(depth_law=2).fit(*problem())
    assert fitted.depth_posterior_ == {2: 1.0}


# -------------------------------------------------------------------------------------------- does it learn


def test_a_sine_is_fitted_and_intervals_cover() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(600, 1))
    y = np.sin(2 * X[:, 0]) + 0.15 * rng.normal(size=600)
    fitted = UnboundedDepthRegressor(random_state=0, width=32, epochs=200, learning_rate=0.02).fit(X[:300], y[:300])
    assert r2_score(np.sin(2 * X[300:, 0]), fitted.predict(X[300:])) > 0.95
    low, high = fitted.predict_interval(X[300:], 0.9)
    assert 0.80 <= np.mean((low <= y[300:]) & (y[300:] <= high)) <= 0.97


@pytest.mark.parametrize("name", ["german_credit", "wine_red"])
def test_real_data_are_predicted_better_than_by_a_constant(name: str, data_folder: Path) -> None:
    data = datasets.load(name, data_folder)
    order = np.random.default_rng(0).permutation(len(data.y))
    train, test = order[:700], order[700:]
    y = np.asarray(data.y)
    X_train, X_test = (data.X.iloc[i] if isinstance(data.X, pd.DataFrame) else data.X[i] for i in (train, test))
    if data.task == "classification":
        fitted = UnboundedDepthClassifier(random_state=0, epochs=60, width=32).fit(X_train, y[train])
        frequency = {label: (y[train] == label).mean() for label in fitted.classes_}
        constant = np.mean([math.log(frequency[label]) for label in y[test].tolist()])
    else:
        fitted = UnboundedDepthRegressor(random_state=0, epochs=60, width=32).fit(X_train, y[train])
        constant = -0.5 * np.mean(((y[test] - y[train].mean()) / y[train].std()) ** 2)
        constant -= math.log(y[train].std() * math.sqrt(2 * math.pi))
    density = float(fitted.predict_dist(X_test).log_prob(y[test]).mean())
    assert density > constant + 0.05


def test_a_posterior_that_still_moves_is_told() -> None:
    X, y = problem(500)
    hurried = regressor(
        structure_from=ELBO(initial_depth=12.0, rate=10.0),
        epochs=28,
        batch_size=64,
        optimizer=Adam(schedule="constant"),
        patience=None,
    )
    with pytest.warns(ConvergenceWarning, match=r"has not converged: its mean is .* Raise epochs \(now 28\) or s"):
        hurried.fit(X, y)
    assert np.isfinite(hurried.predict(X)).all()  # a warning, even one made an error, does not lose the fit
