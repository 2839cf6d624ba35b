"""Scores with sample weights, compared with repeated rows and with scikit-learn."""

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sklearn import metrics as oracle

from fathomless.estimators.evaluation import Evaluation, evaluate
from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.system.errors import DataError

Array = npt.NDArray[Any]

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")


@functools.cache
def fitted(kind: str) -> tuple[Any, Array, Array, tuple[str, ...]]:
    """Return an estimator, rows outside its training set, and the names of its targets."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 3))
    options = {"epochs": 40, "width": 8, "cv": 1, "random_state": 0}
    if kind in ("two", "three"):
        y = np.digitize(X[:, 0] + rng.normal(size=150), [0.0] if kind == "two" else [-0.5, 0.5])
        return UnboundedDepthClassifier(**options).fit(X[:90], y[:90]), X[90:], y[90:], ("y",)
    y = np.sin(X[:, :2]) + 0.3 * rng.normal(size=(150, 2))
    y, targets = (y, ("a", "b")) if kind == "two_numbers" else (y[:, 0], ("y",))
    return UnboundedDepthRegressor(likelihood="gaussian", **options).fit(X[:90], y[:90]), X[90:], y[90:], targets


def alike(found: Evaluation, expected: Evaluation) -> None:
    """Check that two evaluations are equal up to rounding."""
    assert (found.name, found.rows, found.labels) == (expected.name, expected.rows, expected.labels)
    for ours, theirs in ((found.scores, expected.scores), (found.baseline, expected.baseline)):
        assert {key: one.value for key, one in ours.items()} == pytest.approx(
            {key: one.value for key, one in theirs.items()}, rel=1e-9
        )
    counts = {"confusion": found.confusion} if found.confusion is not None else {}
    others = {"confusion": expected.confusion} if expected.confusion is not None else {}
    for ours, theirs in ((found.calibration, expected.calibration), (found.arrays, expected.arrays), (counts, others)):
        assert ours.keys() == theirs.keys()
        for key, values in ours.items():
            np.testing.assert_allclose(values, theirs[key], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["two", "three", "one_number", "two_numbers"])
def test_a_row_of_weight_k_is_k_equal_rows(kind: str, tmp_path: Path) -> None:
    estimator, X, y, targets = fitted(kind)
    weight = np.random.default_rng(0).integers(0, 4, 60)
    found = evaluate(estimator, X, y, name="rows", targets=targets, sample_weight=weight)
    copies = evaluate(estimator, np.repeat(X, weight, 0), np.repeat(y, weight, 0), name="rows", targets=targets)
    assert found.rows == copies.rows == weight.sum()
    for group in ("scores", "baseline"):
        ours, theirs = getattr(found, group), getattr(copies, group)
        assert list(ours) == list(theirs)
        for name in ours:
            assert ours[name].value == pytest.approx(theirs[name].value, rel=1e-9, abs=1e-12), name
            assert (ours[name].error or 0.0) == pytest.approx(theirs[name].error or 0.0, rel=1e-6), name
    for name, values in found.calibration.items():
        np.testing.assert_allclose(values, copies.calibration[name], rtol=1e-9)
        assert values.dtype == copies.calibration[name].dtype
    if found.confusion is not None:
        np.testing.assert_array_equal(found.confusion, copies.confusion)
    once = evaluate(estimator, X, y, name="rows", targets=targets)
    assert abs(found.scores["log_likelihood"].value - once.scores["log_likelihood"].value) > 1e-3
    assert found.save(tmp_path / "rows").exists()
    alike(Evaluation.load(tmp_path / "rows"), found)


@pytest.mark.parametrize("kind", ["two", "one_number"])
def test_weights_that_are_not_whole_matter_by_their_ratios(kind: str, tmp_path: Path) -> None:
    estimator, X, y, _ = fitted(kind)
    weight = np.random.default_rng(0).random(60)
    one, other = (evaluate(estimator, X, y, name="rows", sample_weight=scale * weight) for scale in (1e-3, 1e5))
    alike(one, other)
    assert one.rows == 60
    log_p = estimator.predict_dist(X).log_prob(y).numpy()
    assert one.scores["log_likelihood"].value == pytest.approx(np.average(log_p, weights=weight))
    if kind == "two":
        right = estimator.predict(X) == y
        assert one.scores["accuracy"].value == pytest.approx(np.average(right, weights=weight))
        area = oracle.roc_auc_score(y, estimator.predict_proba(X)[:, 1], sample_weight=weight)
        assert one.scores["auroc"].value == pytest.approx(area)
    else:
        guess = estimator.predict(X)
        assert one.scores["r2"].value == pytest.approx(oracle.r2_score(y, guess, sample_weight=weight))
        assert one.scores["mae"].value == pytest.approx(oracle.mean_absolute_error(y, guess, sample_weight=weight))
    one.save(tmp_path / "rows")
    alike(Evaluation.load(tmp_path / "rows"), one)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ([1.0] * 59, r"shape \(59,\)"),
        ([-1.0] + [1.0] * 59, "-1 in row 0"),
        ([1.0, math.nan] + [1.0] * 58, "nan in row 1"),
        ([0.0] * 60, "0 for all rows"),
    ],
)
def test_weights_that_cannot_count_are_refused(weight: list[float], message: str) -> None:
    estimator, X, y, _ = fitted("one_number")
    with pytest.raises(DataError, match=message):
        evaluate(estimator, X, y, name="rows", sample_weight=weight)
