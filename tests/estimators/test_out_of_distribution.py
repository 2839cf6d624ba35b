"""p-values of rows for the hypothesis that they are from the distribution of the training rows."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError

import fathomless
from fathomless import UnboundedDepthClassifier
from fathomless.data import streams
from fathomless.estimators.evaluation import evaluate
from fathomless.posterior.out_of_distribution import whiten
from fathomless.system.errors import DataError
from quick_fits import Array, classifier, regressor

# fits are short, since p-values do not depend on the networks
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")


def correlated(n: int, seed: int) -> Array:
    """Return rows whose second column repeats the first, up to noise, and whose third one has two modes."""
    rng = np.random.default_rng(seed)
    first = rng.normal(size=n)
    return np.column_stack([first, first + 0.1 * rng.normal(size=n), rng.choice([-4.0, 4.0], n) + rng.normal(size=n)])


def fit_one(X: Any, groups: Array | None = None, weight: Array | None = None, **options: Any) -> Any:
    fast = {"epochs": 1, "depth_law": 1, "width": 4, "recalibrate": False, "calibrate": False, "weight_prior": 1.0}
    return regressor(**{**fast, **options}).fit(X, np.arange(len(X)) % 7 + 0.5, sample_weight=weight, groups=groups)


def by_definition(fitted: Any, features: Array) -> Array:
    """Compute the p-values from the centres, with loops over halves and rows."""
    known = {name: value.numpy() for name, value in fitted.predictor_.training.state_dict().items()}
    total = np.ones(len(features))
    for half in (0, 1):
        u = (features - known["mean"][half]) @ known["transform"][half]
        centres = known["centres"][known["half_of_centre"] == half]
        own = known["half_of_distance"] == half
        for i, row in enumerate(u):
            distance = np.sqrt(np.square(row - centres).sum(1)).min()
            total[i] += known["weight"][own][known["distance"][own] > distance - 1e-7].sum()
    return total / (1.0 + known["weight"].sum())


@pytest.mark.parametrize("weighted", [False, True])
def test_they_are_those_of_the_definition(weighted: bool) -> None:
    X = correlated(150, 0)
    weight = np.random.default_rng(1).uniform(0.5, 3.0, len(X)) if weighted else None
    fitted = fit_one(X, weight=weight, validation_fraction=0.0)
    new = np.concatenate([correlated(40, 2), X[:10], 30.0 * X[:5]])
    features = fitted.predictor_.encode(new).astype(np.float32)
    np.testing.assert_allclose(fitted.ood_p_values(new), by_definition(fitted, features), rtol=1e-9)
    assert fitted.predictor_.training.weight.mean().item() == pytest.approx(1.0)


def test_rows_of_the_same_distribution_have_small_ones_as_often_as_they_say() -> None:
    """The share of small ones varies with the training rows; its mean over tables is at most the level."""
    levels = np.array([0.02, 0.05, 0.1, 0.2])
    shares = np.array(
        [
            (fit_one(correlated(200, seed)).ood_p_values(correlated(2_000, 100 + seed)) <= levels[:, None]).mean(1)
            for seed in range(12)
        ]
    )
    error = shares.std(0, ddof=1) / math.sqrt(len(shares))
    assert (shares.mean(0) <= levels + 3.0 * error).all()
    assert (shares.mean(0) >= 0.3 * levels).all()  # not too few either


def test_rows_that_differ_in_one_way_have_small_ones() -> None:
    fitted = fit_one(correlated(400, 0))
    inside, outside = (
        [0.5, 0.5, 4.0],
        {
            "a column is far away": [0.5, 0.5, 40.0],
            "each column is within its range, but not together": [2.0, -2.0, 4.0],
            "between the modes of a column": [0.0, 0.0, 0.0],
        },
    )
    assert fitted.ood_p_values([inside])[0] > 0.2
    for name, row in outside.items():
        assert fitted.ood_p_values([row])[0] < 0.05, name


def test_frames_with_categories_gaps_and_constant_columns() -> None:
    rng = np.random.default_rng(0)
    n = 120
    size = np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n))
    X = pd.DataFrame({"size": size, "colour": rng.choice(["red", "green"], n), "constant": 3.0})
    fitted = classifier(epochs=1, unseen="ignore").fit(X, np.arange(n) % 2)
    p = fitted.ood_p_values(X)
    assert ((p > 0.0) & (p <= 1.0)).all()
    changed = pd.DataFrame({"size": [0.1, 0.1, 0.1], "colour": ["red", "blue", "red"], "constant": [3.0, 3.0, 9.0]})
    p = fitted.ood_p_values(changed)
    assert p[0] > 0.05
    assert (p[1:] < 0.05).all()  # an unknown category, another value of a constant column
    equal = fit_one(np.ones((60, 2)), validation_fraction=0.0)
    assert equal.ood_p_values([[1.0, 1.0], [2.0, 1.0]]).tolist() == [1.0, pytest.approx(1.0 / 61.0)]


@pytest.mark.parametrize("cv", [1, 3])
def test_rows_of_a_group_are_in_one_half(cv: int) -> None:
    """Each group is a cluster of its own, so that a centre of the other half is always far from a row."""
    rng = np.random.default_rng(0)
    group = np.arange(120) // 12
    X = rng.normal(size=(10, 2))[group] + 1e-3 * rng.normal(size=(120, 2))
    nearest = {}
    for given in (None, group):
        fitted = fit_one(X, cv=cv, groups=given)
        nearest[given is None] = fitted.predictor_.training.distance.quantile(0.1).item()
    assert nearest[False] > 0.1 > 0.01 > nearest[True]


def test_large_and_wide_tables() -> None:
    large = fit_one(np.random.default_rng(0).normal(size=(6_000, 2)), validation_fraction=0.0)
    assert len(large.predictor_.training.distance) == 5_000
    wide = fit_one(np.random.default_rng(0).normal(size=(60, 520)))
    assert wide.predictor_.training.transform.shape == (2, 520, 1)
    new = np.random.default_rng(1).normal(size=(20, 520))
    assert wide.ood_p_values(3.0 * new).max() < 0.05


@pytest.mark.parametrize(("rows", "columns"), [(60, 50), (200, 50), (300, 100), (100, 520)])
def test_wide_tables_have_no_more_small_ones(rows: int, columns: int) -> None:
    """The covariance of each half is that of its own rows alone, so that distances of the others are not too small."""
    rng = np.random.default_rng(0)
    shares = [
        (fit_one(rng.normal(size=(rows, columns))).ood_p_values(rng.normal(size=(500, columns))) <= 0.05).mean()
        for _ in range(4)
    ]
    assert np.mean(shares) <= 0.05 + 3.0 * np.std(shares, ddof=1) / 2.0
    levels = pd.DataFrame({name: rng.choice(list("abcdefghijklmnopqrstuvwxyz"), 600) for name in ("one", "two")})
    fitted = fit_one(levels[:300])
    assert (fitted.ood_p_values(levels[300:]) <= 0.05).mean() < 0.1


def test_weights_that_are_no_numbers_of_rows_are_scaled() -> None:
    X = correlated(100, 0)
    weight = np.random.default_rng(1).uniform(0.5, 1.5, len(X))
    of_scale = [fit_one(X, weight=factor * weight, validation_fraction=0.0) for factor in (1.0, 2.0)]
    p = [fitted.ood_p_values(correlated(50, 1)) for fitted in of_scale]
    np.testing.assert_allclose(p[0], p[1], rtol=1e-5)
    assert of_scale[1].ood_p_values([[99.0, 99.0, 0.0]])[0] == pytest.approx(1.0 / 101.0, rel=1e-5)


def test_whitened_features_have_the_identity_as_covariance() -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.normal(size=(5_000, 3)) @ rng.normal(size=(3, 3)) + 7.0, rng.uniform(0.5, 1.5, 5_000)
    mean, transform = (part.numpy() for part in whiten(x, weight, 10))
    np.testing.assert_allclose(mean, np.average(x, 0, weight), rtol=1e-12)
    np.testing.assert_allclose(np.cov((x @ transform).T, aweights=weight), np.eye(3), atol=5e-3)  # shrunk by 3 / 5,003


def test_they_are_saved_and_bound_to_the_folder(tmp_path: Path) -> None:
    fitted = fit_one(correlated(80, 0))
    new = correlated(30, 1)
    path = fitted.save(tmp_path / "fit")
    np.testing.assert_array_equal(fathomless.load(path).ood_p_values(new), fitted.ood_p_values(new))
    np.testing.assert_array_equal(fathomless.load(path).predictor_.ood_p_values(new), fitted.ood_p_values(new))


def test_refusals(tmp_path: Path) -> None:
    few = fit_one(correlated(49, 0))
    with pytest.raises(DataError, match="fewer than 50 rows"):
        few.ood_p_values(correlated(3, 1))
    assert evaluate(few, correlated(9, 1), np.arange(9.0), name="new").ood_share is None
    X = correlated(300, 0)
    streamed = regressor(epochs=1, width=4).fit_stream(streams.arrays(X, X[:, 0]))
    with pytest.raises(DataError, match="to a stream"):
        streamed.ood_p_values(X)
    with pytest.raises(NotFittedError):
        UnboundedDepthClassifier().ood_p_values(X)
    with pytest.raises(ValueError, match="X has 2 features"):
        fit_one(X).ood_p_values(X[:, :2])


def test_the_share_of_an_evaluation() -> None:
    X = correlated(200, 0)
    fitted = fit_one(X, cv=2)
    new = np.concatenate([correlated(50, 1), correlated(50, 2) * [1.0, -1.0, 1.0]])
    weight = np.repeat([1, 3], 50)
    found = evaluate(fitted, new, new[:, 0], name="new", sample_weight=weight)
    assert found.ood_share == pytest.approx(np.average(fitted.ood_p_values(new) <= 0.05, weights=weight))
    assert found.ood_share > 0.4
    assert evaluate(fitted, X, X[:, 0], name="out-of-fold rows", fold=fitted.fold_).ood_share is None


def test_the_share_is_saved(tmp_path: Path) -> None:
    X = correlated(60, 0)
    found = evaluate(fit_one(X), X, X[:, 0], name="training rows")
    assert found.ood_share is not None
    assert type(found).load(found.save(tmp_path / "evaluation")).ood_share == found.ood_share
