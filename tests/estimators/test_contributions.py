"""Shapley values of single predictions, compared with closed forms and with the package shap."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax

from fathomless.data.frames import fit_schema
from fathomless.estimators.contributions import Contributions, contributions
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.mixtures import Normal
from fathomless.system.errors import DataError, DataWarning
from quick_fits import FRAMES, Array, classes, classifier, problem, regressor, table

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

RNG = np.random.default_rng(0)
ROWS, BACKGROUND = RNG.normal(size=(3, 4)), RNG.normal(size=(16, 4))
WEIGHT = np.array([0.2, 0.5, 0.3])  # of three networks


def estimator_of(functions: Any, *, classes: bool = False, std: Any = None) -> Any:
    """Return an estimator whose networks predict the given functions of four columns, with the weights WEIGHT."""
    schema = fit_schema(np.concatenate([ROWS, BACKGROUND]))
    centre, scale = (np.array([getattr(column, name) for column in schema.columns]) for name in ("center", "scale"))
    log_weight = torch.from_numpy(np.log(WEIGHT[: len(functions)] / WEIGHT[: len(functions)].sum()))

    def predict_encoded(x: Array, fold: Any = None) -> Any:
        X = x * scale + centre
        f = torch.from_numpy(np.stack([function(X) for function in functions]))  # (S, N, K)
        structure = torch.arange(len(functions))
        if classes:
            return ClassPredictive(log_weight, structure, f.log_softmax(-1), np.arange(f.shape[2]))
        deviation = torch.ones_like(f) if std is None else torch.from_numpy(std(X)).expand_as(f)
        return ContinuousPredictive(log_weight, structure, Normal(f, deviation))

    return SimpleNamespace(schema_=schema, target_=None, predict_encoded=predict_encoded)


def adds_up(found: Contributions) -> None:
    np.testing.assert_allclose(found.base + found.values.sum(1), found.prediction, rtol=1e-9, atol=1e-9)


def test_contributions_to_a_linear_function_are_differences_to_the_average() -> None:
    slopes = RNG.normal(size=(3, 4, 2))
    slopes[:, 3] = 0.0  # without effect
    fitted = estimator_of([lambda X, b=b: 1.0 + X @ b for b in slopes])
    found = contributions(fitted, ROWS, BACKGROUND, pairs=16)
    change = ROWS - BACKGROUND.mean(0)
    of_networks = slopes[:, None] * change[None, :, :, None]  # (S, N, C, K)
    expected = np.einsum("s,snck->nck", WEIGHT, of_networks)
    np.testing.assert_allclose(found.values, expected, atol=1e-12)
    adds_up(found)
    assert (found.values[:, 3] == 0.0).all()
    assert (found.error[:, 3] == 0.0).all()
    assert found.columns == ("x0", "x1", "x2", "x3")
    # all networks are inside an interval that begins below the lightest and ends above it
    assert found.lower is not None
    assert found.upper is not None
    np.testing.assert_allclose(found.lower, of_networks.min(0), atol=1e-12)
    np.testing.assert_allclose(found.upper, of_networks.max(0), atol=1e-12)
    narrow = contributions(fitted, ROWS, BACKGROUND, pairs=16, level=0.2)
    assert narrow.lower is not None
    assert narrow.upper is not None
    assert (narrow.upper - narrow.lower <= found.upper - found.lower + 1e-12).all()
    np.testing.assert_array_equal(narrow.values, found.values)


def product(X: Array) -> Array:
    return (X[:, 0] * X[:, 1] + np.sin(X[:, 2]) * X[:, 3] + X[:, 1])[:, None]


@pytest.mark.filterwarnings("ignore")  # of shap
def test_pairs_of_orders_are_exact_for_two_columns_that_interact() -> None:
    shap = pytest.importorskip("shap", reason="needs the package shap")
    found = contributions(estimator_of([product]), ROWS, BACKGROUND, pairs=16)
    masker = shap.maskers.Independent(BACKGROUND)
    exact = shap.explainers.Exact(lambda X: product(X)[:, 0], masker)(ROWS)
    np.testing.assert_allclose(found.values[:, :, 0], exact.values, atol=1e-10)
    np.testing.assert_allclose(found.base[:, 0], exact.base_values, atol=1e-10)


@pytest.mark.filterwarnings("ignore")  # of shap
def test_contributions_of_interactions_and_classes_are_those_of_shap_within_their_errors() -> None:
    shap = pytest.importorskip("shap", reason="needs the package shap")
    logits = RNG.normal(size=(4, 3))

    def network(X: Array) -> Array:
        return (X**2) @ logits + (X[:, :1] * X[:, 1:2] * X[:, 2:3])

    found = contributions(estimator_of([network], classes=True), ROWS, BACKGROUND, pairs=400)
    masker = shap.maskers.Independent(BACKGROUND)
    exact = shap.explainers.Exact(lambda X: softmax(network(X), -1), masker)(ROWS)
    assert (np.abs(found.values - exact.values) < 4.5 * found.error + 1e-9).all()
    assert (found.error < 0.03).all()
    adds_up(found)
    np.testing.assert_allclose(found.values.sum(2), 0.0, atol=1e-12)  # probabilities sum to one


def test_contributions_to_the_spread() -> None:
    fitted = estimator_of([product], std=lambda X: 1.0 + np.exp(X[:, 2:3]))
    found = contributions(fitted, ROWS, BACKGROUND, of="spread", pairs=16)
    expected = np.exp(ROWS[:, 2]) - np.exp(BACKGROUND[:, 2]).mean()
    np.testing.assert_allclose(found.values[:, 2, 0], expected, atol=1e-12)
    np.testing.assert_allclose(found.values[:, [0, 1, 3], 0], 0.0, atol=1e-12)
    assert found.lower is None
    assert found.upper is None


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_contributions_of_columns_of_all_kinds_add_up_to_predictions(frame: Any) -> None:
    X = frame(table())
    y = np.random.default_rng(0).normal(size=70)
    fitted = regressor().fit(X, y)
    rows = X[:4] if frame is not FRAMES["pyarrow"] else X.slice(0, 4)
    found = contributions(fitted, rows, X, pairs=4)
    assert found.columns == tuple(column.name for column in fitted.schema_.columns)
    np.testing.assert_allclose(found.prediction[:, 0], fitted.predict(rows), rtol=1e-6, atol=1e-6)
    adds_up(found)
    again = contributions(fitted, rows, X, pairs=4)
    np.testing.assert_array_equal(again.values, found.values)
    adds_up(contributions(fitted, rows, X, pairs=2, of="spread"))


def test_classes_and_several_targets() -> None:
    X, y = classes()
    fitted = classifier().fit(X, y)
    found = contributions(fitted, X[:3], pairs=3)
    np.testing.assert_allclose(found.prediction, fitted.predict_proba(X[:3]), atol=1e-7)
    adds_up(found)
    entropy = contributions(fitted, X[:3], X, of="spread", pairs=3)
    np.testing.assert_allclose(entropy.prediction[:, 0], fitted.predict_dist(X[:3]).entropy(), atol=1e-7)
    X, y = problem(60)
    both = regressor().fit(X, np.column_stack([y, -y]))
    np.testing.assert_allclose(contributions(both, X[:3], X, pairs=3).prediction, both.predict(X[:3]), atol=1e-6)
    labels = classifier().fit(X, np.column_stack([X[:, 0] > 0.0, X[:, 1] > 0.0]).astype(int))
    adds_up(contributions(labels, X[:3], X, pairs=3))


def test_a_column_of_one_value_has_no_contribution_and_one_row_needs_a_background() -> None:
    X, y = problem(60)
    X[:, 2] = 1.0
    fitted = regressor().fit(X, y)
    X_new = X + np.array([0.0, 0.0, 0.5])  # a value that the estimator ignores
    with pytest.warns(DataWarning, match="was constant"):
        found = contributions(fitted, X_new[:9], X, pairs=60)
    assert (found.values[:, 2] == 0.0).all()
    assert (found.error[:, 2] == 0.0).all()
    for wrong, message in (
        ({"X": X[:1]}, "there are no background rows; give background="),
        ({"X": X[:2], "background": X[:0]}, "0 sample|0 rows"),
        ({"X": X[:2], "of": "noise"}, "of='noise' was given"),
        ({"X": X[:2], "pairs": 0}, "pairs"),
        ({"X": X[:2], "level": 1.5}, "level"),
    ):
        with pytest.raises(DataError, match=message):
            contributions(fitted, **wrong)
