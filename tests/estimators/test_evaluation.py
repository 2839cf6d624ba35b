"""Scores of fitted estimators, compared with scikit-learn, closed forms, direct computation and repeated samples."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from scipy import stats
from sklearn import metrics as oracle

from fathomless.data.frames import fit_schema
from fathomless.data.targets import ClassLabels, TargetScale
from fathomless.estimators import evaluation
from fathomless.estimators.evaluation import Evaluation, evaluate
from fathomless.estimators.scores import Score
from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.posterior import metrics
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.mixture_scores import crps_of_mixture
from fathomless.posterior.mixtures import Component, Laplace, Mixture, Normal, StudentT
from fathomless.system import io
from fathomless.system.errors import DataError, FileError

Array = npt.NDArray[Any]

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")


def numbers(n: int, targets: int = 1, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    y = 5.0 + np.sin(X[:, :1]) + X[:, 1:2] * np.arange(1, targets + 1) + 0.3 * rng.normal(size=(n, targets))
    return X, y[:, 0] if targets == 1 else y


def classes(n: int, k: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, k, n)
    return rng.normal(size=(n, 2)) + y[:, None], np.array(["ash", "birch", "cedar"])[y]


def regressor(**options: Any) -> UnboundedDepthRegressor:
    return UnboundedDepthRegressor(
        **{"epochs": 40, "width": 8, "cv": 1, "likelihood": "gaussian", "random_state": 0, **options}
    )


def classifier(**options: Any) -> UnboundedDepthClassifier:
    return UnboundedDepthClassifier(**{"epochs": 40, "width": 8, "cv": 1, "random_state": 0, **options})


@pytest.fixture(scope="module")
def three() -> UnboundedDepthClassifier:
    return classifier().fit(*classes(90, 3))


@pytest.fixture(scope="module")
def two() -> UnboundedDepthClassifier:
    return classifier().fit(*classes(90, 2))


@pytest.fixture(scope="module")
def one_number() -> UnboundedDepthRegressor:
    return regressor().fit(*numbers(90))


@pytest.fixture(scope="module")
def two_numbers() -> UnboundedDepthRegressor:
    return regressor(weights="meanfield", weight_draws=3).fit(*numbers(90, 2))


class Forecaster:
    """An estimator whose predictive distribution of a row is written in the row."""

    def __init__(self, target: ClassLabels | TargetScale, family: type[Component] = Normal, **more: Any) -> None:
        self.target_, self.family, self.more = target, family, more
        self.asked: list[int] = []

    def predict_dist(self, X: Any) -> ClassPredictive | ContinuousPredictive:
        X = torch.as_tensor(np.asarray(X))
        self.asked.append(len(X))
        weight, one = torch.zeros(1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
        if isinstance(self.target_, ClassLabels):
            return ClassPredictive(weight, one, X.log()[None], np.array(self.target_.labels))
        T = X.shape[1] // 2
        component = self.family(X[None, :, :T], X[None, :, T:], **self.more)
        return ContinuousPredictive(weight, one, component, squeeze=self.target_.ndim == 1)


VECTOR = TargetScale((0.0,), (1.0,), 1)
PAIR = TargetScale((0.0, 0.0), (1.0, 1.0), 2)


def values(scores: Any) -> dict[str, float]:
    return {key: score.value for key, score in scores.items()}


# --------------------------------------------------------------------------------------------------- scores


def test_scores_of_classes_match_scikit_learn(three: UnboundedDepthClassifier) -> None:
    X, y = classes(500, 3, seed=1)
    probs = three.predict_proba(X)
    found = evaluate(three, X, y, name="new", targets=("tree",))
    codes = np.searchsorted(three.classes_, y)
    assert values(found.scores) == pytest.approx(
        {
            "log_likelihood": -oracle.log_loss(y, probs),
            "accuracy": oracle.accuracy_score(y, three.predict(X)),
            "brier": oracle.brier_score_loss(codes, probs, labels=range(3), scale_by_half=False),
            "ece": metrics.expected_calibration_error(codes, probs),
        },
        rel=1e-9,
    )
    assert (found.name, found.task, found.rows, found.targets) == ("new", "classification", 500, ("tree",))
    assert found.labels == ("ash", "birch", "cedar")
    np.testing.assert_array_equal(found.confusion, oracle.confusion_matrix(y, three.predict(X)))
    for ours, expected in zip(
        (found.calibration[key] for key in ("confidence", "accuracy", "count")),
        metrics.reliability(codes, probs),
        strict=True,
    ):
        np.testing.assert_allclose(ours, expected, rtol=1e-12)


def test_area_under_the_curve_matches_scikit_learn(two: UnboundedDepthClassifier) -> None:
    X, y = classes(300, 2, seed=1)
    found = evaluate(two, X, y, name="new").scores
    assert found["auroc"].value == pytest.approx(oracle.roc_auc_score(y, two.predict_proba(X)[:, 1]), rel=1e-12)
    assert list(found) == ["log_likelihood", "accuracy", "brier", "ece", "auroc"]


def test_scores_of_numbers_match_scikit_learn_and_the_predictive_distribution(
    one_number: UnboundedDepthRegressor,
) -> None:
    X, y = numbers(500, seed=1)
    p, mean = one_number.predict_dist(X), one_number.predict(X)
    assert isinstance(p, ContinuousPredictive)
    found = evaluate(one_number, X, y, name="new", targets=("price",))
    component = p.component
    expected = {
        "log_likelihood": p.log_prob(y).mean().item(),
        "rmse": oracle.root_mean_squared_error(y, mean),
        "mae": oracle.mean_absolute_error(y, mean),
        "r2": oracle.r2_score(y, mean),
        "crps": metrics.crps_normal_mixture(
            y, p.log_weight.exp(), component.loc[..., 0], component.scale[..., 0]
        ).mean(),
        "interval_score_90": metrics.interval_score(y, *p.interval(0.9), 0.9).mean(),
    }
    for level in (0.5, 0.9, 0.95):
        expected[f"coverage_{100 * level:.0f}"] = metrics.coverage(y, *p.interval(level))
    assert values(found.scores) == pytest.approx(expected, rel=1e-9)
    assert list(found.scores) == list(expected) == list(found.baseline)
    assert found.labels == ()
    assert found.confusion is None


def test_scores_of_several_targets_are_averages_and_the_density_is_joint(two_numbers: UnboundedDepthRegressor) -> None:
    X, y = numbers(300, 2, seed=1)
    p, mean = two_numbers.predict_dist(X), two_numbers.predict(X)
    assert isinstance(p, ContinuousPredictive)
    found = values(evaluate(two_numbers, X, y, name="new", targets=("a", "b")).scores)
    assert found["log_likelihood"] == pytest.approx(p.log_prob(y).mean().item(), rel=1e-9)
    assert found["rmse"] == pytest.approx(oracle.root_mean_squared_error(y, mean), rel=1e-9)
    assert found["mae"] == pytest.approx(oracle.mean_absolute_error(y, mean), rel=1e-9)
    assert found["r2"] == pytest.approx(oracle.r2_score(y, mean), rel=1e-9)
    low, high = p.interval(0.9)
    assert found["coverage_90"] == metrics.coverage(y, low, high)


@pytest.mark.parametrize("unit", [2.0**-700, 2.0**480])
def test_scores_have_the_units_of_the_target(one_number: UnboundedDepthRegressor, unit: float) -> None:
    """Squares of errors would underflow or overflow."""
    X, y = numbers(200, seed=1)
    X_old, y_old = numbers(90)
    scaled = regressor().fit(X_old, y_old * unit)
    known = values(evaluate(one_number, X, y, name="new").scores)
    found = values(evaluate(scaled, X, y * unit, name="new").scores)
    for name in ("rmse", "mae", "crps", "interval_score_90"):
        assert found[name] / unit == pytest.approx(known[name], rel=1e-3)
    assert found["r2"] == pytest.approx(known["r2"], rel=1e-3)


def test_targets_have_default_names(two_numbers: UnboundedDepthRegressor) -> None:
    X, y = numbers(40, 2, seed=1)
    assert evaluate(two_numbers, X, y, name="new").targets == ("y0", "y1")


def test_the_histogram_and_the_curve_of_coverage_are_of_all_rows(one_number: UnboundedDepthRegressor) -> None:
    X, y = numbers(3000, seed=1)
    p = one_number.predict_dist(X)
    assert isinstance(p, ContinuousPredictive)
    found = evaluate(one_number, X, y, name="new")
    pit = p.cdf(y).numpy()
    np.testing.assert_array_equal(found.calibration["pit"][:, 0], np.histogram(pit, 20, (0.0, 1.0))[0])
    for level, share in zip(found.calibration["levels"], found.calibration["coverage"][:, 0], strict=True):
        assert share == metrics.coverage(y, *p.interval(level))
    assert found.calibration["levels"] == pytest.approx(np.linspace(0.05, 0.95, 19))


def test_the_constant_prediction_knows_the_rows() -> None:
    X, y = np.full((8, 3), 1 / 3), np.array(["a", "a", "a", "a", "b", "b", "b", "c"])
    found = evaluate(Forecaster(ClassLabels(("a", "b", "c"), "<U1")), X, y, name="rows").baseline
    share = np.array([4, 3, 1]) / 8
    assert found["log_likelihood"].value == pytest.approx(-stats.entropy(share), rel=1e-12)
    assert found["accuracy"].value == 0.5
    assert found["brier"].value == pytest.approx(1.0 - np.sum(share**2), rel=1e-12)
    assert found["ece"].value == 0.0
    y = np.random.default_rng(0).gamma(2.0, size=500)
    found = evaluate(Forecaster(VECTOR), np.ones((500, 2)), y, name="rows").baseline
    normal = stats.norm(y.mean(), y.std())
    assert found["log_likelihood"].value == pytest.approx(normal.logpdf(y).mean(), rel=1e-12)
    assert found["rmse"].value == pytest.approx(y.std(), rel=1e-12)
    assert found["r2"].value == pytest.approx(0.0, abs=1e-12)
    assert found["coverage_90"].value == metrics.coverage(y, *(np.full(500, q) for q in normal.interval(0.9)))


def test_a_class_that_does_not_occur_leaves_no_area_under_the_curve() -> None:
    two, three = ClassLabels((0, 1), "int64"), ClassLabels((0, 1, 2), "int64")
    found = evaluate(Forecaster(two), np.full((5, 2), 0.5), np.zeros(5, dtype=int), name="rows")
    assert "auroc" not in found.scores
    assert list(found.scores) == list(found.baseline)
    assert found.baseline["log_likelihood"] == Score(0.0, 0.0)
    found = evaluate(Forecaster(three), np.full((5, 3), 1 / 3), np.full(5, 2), name="rows")
    assert found.baseline["accuracy"].value == 1.0


def test_one_row_has_scores_without_errors_and_a_constant_target_a_finite_baseline() -> None:
    found = evaluate(Forecaster(VECTOR), np.array([[1.0, 2.0]]), [1.5], name="row")
    assert all(score.error is None for score in (*found.scores.values(), *found.baseline.values()))
    assert found.scores["r2"].value == 0.0
    assert found.scores["log_likelihood"].value == pytest.approx(stats.norm(1.0, 2.0).logpdf(1.5))
    X, y = np.tile([3.0, 0.0, 1.0, 1.0], (4, 1)), [[3.0, v] for v in range(4)]
    exact = evaluate(Forecaster(PAIR), X, y, name="four", targets=("a", "b"))
    assert exact.scores["r2"].value == pytest.approx(0.5 * (1.0 + oracle.r2_score(np.arange(4), np.zeros(4))))
    assert exact.baseline["log_likelihood"].value > 0.0  # the first column is certain


# --------------------------------------------------------------------------------------------------- errors


def test_errors_of_regression_scores_are_those_of_repeated_samples() -> None:
    rng, found = np.random.default_rng(0), []
    for _ in range(400):
        signal = rng.normal(size=(150, 2))
        X = np.column_stack([signal, np.ones((150, 2))])
        y = signal + rng.normal(size=(150, 2)) @ np.array([[1.0, 0.7], [0.0, 0.7]]) * 1.2
        found.append(evaluate(Forecaster(PAIR), X, y, name="sample", targets=("a", "b")).scores)
    for key in found[0]:
        spread = np.std([scores[key].value for scores in found], ddof=1)
        told = np.sqrt(np.mean([(scores[key].error or 0.0) ** 2 for scores in found]))
        assert told == pytest.approx(spread, rel=4.5 / math.sqrt(2 * 400) + 0.02), key  # the error of a sd


def test_errors_of_classification_scores_are_those_of_repeated_samples() -> None:
    rng, found = np.random.default_rng(0), []
    for _ in range(400):
        p = rng.beta(1.5, 2.0, size=200)
        y = rng.random(200) < p**1.3
        X = np.column_stack([1.0 - p, p])
        found.append(evaluate(Forecaster(ClassLabels((False, True), "bool")), X, y, name="sample").scores)
    for key in ("log_likelihood", "accuracy", "brier", "auroc"):
        spread = np.std([scores[key].value for scores in found], ddof=1)
        told = np.sqrt(np.mean([(scores[key].error or 0.0) ** 2 for scores in found]))
        assert told == pytest.approx(spread, rel=4.5 / math.sqrt(2 * 400) + 0.02), key
    assert found[0]["ece"].error is None


def test_the_error_of_a_coverage_is_binomial(one_number: UnboundedDepthRegressor) -> None:
    X, y = numbers(400, seed=1)
    score = evaluate(one_number, X, y, name="new").scores["coverage_50"]
    assert score.error == pytest.approx(math.sqrt(score.value * (1.0 - score.value) / 399), rel=1e-9)


# --------------------------------------------------------------------------------------------------- crps


def test_probability_scores_of_few_and_many_components_agree() -> None:
    """Equal components: the exact formula, and the quadrature for more components than it is used for."""
    rng = np.random.default_rng(0)
    loc, y = rng.normal(size=(3, 40, 1)), rng.normal(size=(40, 1))
    for family in (Normal, Laplace):
        few, many = (
            Mixture(torch.zeros(3 * k), family(torch.tensor(np.tile(loc, (k, 1, 1))), torch.tensor(0.7)))
            for k in (1, 30)
        )
        exact = crps_of_mixture(few, y)
        assert not np.array_equal(crps_of_mixture(many, y), exact)
        np.testing.assert_allclose(crps_of_mixture(many, y), exact, rtol=1e-3)


@pytest.mark.parametrize(
    ("family", "more", "law"),
    [(Laplace, {}, stats.laplace), (StudentT, {"df": torch.tensor(4.0)}, stats.t(df=4))],
    ids=["laplace", "student_t"],
)
def test_scores_of_other_noise_match_their_definition(family: Any, more: Any, law: Any) -> None:
    grid = np.linspace(-400.0, 400.0, 800_001)
    for y in (0.8, -3.0):
        expected = np.trapezoid(np.square(law.cdf(grid) - (grid >= y)), grid)
        found = evaluate(Forecaster(VECTOR, family, **more), np.array([[0.0, 1.0]] * 2), [y, y], name="rows").scores
        assert found["crps"].value == pytest.approx(expected, abs=1.1e-3)  # the step of the grid at y
        low, high = law.interval(0.9)
        score = high - low + 20.0 * (max(low - y, 0.0) + max(y - high, 0.0))
        assert found["interval_score_90"].value == pytest.approx(score, rel=1e-9)


# --------------------------------------------------------------------------------------------------- groups


def forecast(n: int, wrong: bool, seed: int = 0) -> tuple[Array, Array, pd.DataFrame]:
    """Return predictions (N, 2), targets and columns; the noise depends on a column, as the width does unless wrong."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"a": rng.normal(size=n), "b": rng.normal(size=n), "kind": rng.choice(["x", "y", "z"], n)})
    noise = np.exp(0.6 * table["a"].to_numpy() + 0.5 * (table["kind"] == "z"))
    X = np.column_stack([table["b"], np.ones(n) if wrong else noise])
    return X, X[:, 0] + noise * rng.normal(size=n), table


class Columns(Forecaster):
    """A forecaster of rows with two columns of predictions and columns of a table."""

    def __init__(self, table: pd.DataFrame) -> None:
        super().__init__(VECTOR)
        self.schema_ = fit_schema(table)

    def predict_dist(self, X: Any) -> ClassPredictive | ContinuousPredictive:
        return super().predict_dist(X[["mean", "std"]])


def test_coverage_of_groups_is_that_of_their_rows_and_misplaced_widths_are_significant() -> None:
    for wrong in (False, True):
        X, y, table = forecast(3000, wrong)
        frame = table.assign(mean=X[:, 0], std=X[:, 1])
        estimator = Columns(frame)
        found = evaluate(estimator, frame, y, name="rows", targets=("price",))
        groups = {one.variable: one for one in found.conditional}
        assert set(groups) >= {"prediction", "a", "b", "kind"}
        assert ("interval width" in groups) == (not wrong)  # all widths are equal
        inside = np.abs(y - X[:, 0]) <= stats.norm.isf(0.05) * X[:, 1]
        for variable, values in (("prediction", X[:, 0]), ("a", table["a"]), ("b", table["b"])):
            quarter = np.searchsorted(np.quantile(values, [0.25, 0.5, 0.75]), values)
            for k, group in enumerate(groups[variable].groups):
                assert group.rows == 750
                assert group.coverage == pytest.approx(inside[quarter == k].mean(), abs=1e-12)
                assert group.width == pytest.approx(2 * stats.norm.isf(0.05) * X[quarter == k, 1].mean(), rel=1e-9)
        for group in groups["kind"].groups:
            part = (table["kind"] == group.label).to_numpy()
            assert group.coverage == pytest.approx(inside[part].mean(), abs=1e-12)
            assert group.size == pytest.approx(
                np.sqrt(np.mean(np.clip((y - X[:, 0]) / X[:, 1], -8.0, 8.0)[part] ** 2)), rel=1e-4
            )
        assert (groups["a"].p < 1e-6, groups["kind"].p < 1e-6) == (wrong, wrong)
        assert min(groups["b"].p, groups["prediction"].p) > 0.01


def test_whole_weights_count_as_equal_rows_in_groups() -> None:
    X, y, table = forecast(400, wrong=True)
    frame = table.assign(mean=X[:, 0], std=X[:, 1])
    weight = np.random.default_rng(1).integers(0, 4, 400)
    estimator = Columns(frame)
    weighted = evaluate(estimator, frame, y, name="rows", sample_weight=weight).conditional
    index = np.repeat(np.arange(400), weight)
    repeated = evaluate(estimator, frame.iloc[index], y[index], name="rows").conditional
    ours, theirs = ({c.variable: c for c in found} for found in (weighted, repeated))
    assert ours["kind"].p == pytest.approx(theirs["kind"].p, rel=1e-9)
    for variable in ("prediction", "kind"):
        for a, b in zip(ours[variable].groups, theirs[variable].groups, strict=True):
            assert dataclasses.astuple(a)[1:] == pytest.approx(dataclasses.astuple(b)[1:], rel=1e-9)


# --------------------------------------------------------------------------------------------------- chunks


def test_chunks_do_not_change_what_is_found(
    two_numbers: UnboundedDepthRegressor, three: UnboundedDepthClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(two_numbers, *numbers(3000, 2, seed=1), ("a", "b")), (three, *classes(3000, 3, seed=1), ("y",))]
    whole = [evaluate(estimator, X, y, name="new", targets=names) for estimator, X, y, names in rows]
    monkeypatch.setattr(evaluation, "_CHUNK", 700)
    for (estimator, X, y, names), expected in zip(rows, whole, strict=True):
        found = evaluate(estimator, X, y, name="new", targets=names)
        agree(found, expected)


def test_forty_thousand_rows_are_scored_in_parts() -> None:
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=40_000), np.full(40_000, 0.5)])
    y = X[:, 0] + 0.5 * rng.normal(size=40_000)
    forecaster = Forecaster(VECTOR)
    found = evaluate(forecaster, X, y, name="many")
    assert forecaster.asked == [16384, 16384, 7232]
    p = forecaster.predict_dist(X)
    assert isinstance(p, ContinuousPredictive)
    assert found.scores["log_likelihood"].value == pytest.approx(p.log_prob(y).mean().item(), rel=1e-12)
    assert found.scores["crps"].value == pytest.approx(metrics.crps_gaussian(y, *X.T).mean(), rel=1e-12)
    shown = np.linspace(0, 39_999, 2000).round().astype(int)
    np.testing.assert_array_equal(found.arrays["y"][:, 0], y[shown])
    np.testing.assert_array_equal(found.arrays["mean"][:, 0], X[shown, 0])
    assert found.calibration["pit"].sum() == 40_000
    assert abs(found.scores["coverage_90"].value - 0.9) < 4.5 * math.sqrt(0.09 / 40_000)


def test_pictures_show_what_the_predictive_distribution_says(
    two_numbers: UnboundedDepthRegressor, three: UnboundedDepthClassifier
) -> None:
    X, y = numbers(50, 2, seed=1)
    p = two_numbers.predict_dist(X)
    assert isinstance(p, ContinuousPredictive)
    shown = evaluate(two_numbers, X, y, name="new", targets=("a", "b")).arrays
    low, high = p.interval(0.9)
    parts = p.uncertainty()
    expected = {"y": y, "mean": p.mean, "std": p.std, "low": low, "high": high, "pit": p.cdf(y)}
    for key, value in {**expected, **{k: getattr(parts, k) for k in ("noise", "weights", "structure")}}.items():
        np.testing.assert_allclose(shown[key], value, rtol=1e-9, atol=1e-15)
    X, labels = classes(50, 3, seed=1)
    shown, split = evaluate(three, X, labels, name="new").arrays, three.predict_dist(X).uncertainty()
    np.testing.assert_allclose(shown["probs"], three.predict_proba(X), rtol=1e-9)
    np.testing.assert_array_equal(three.classes_[shown["y"]], labels)
    for key in ("noise", "weights", "structure"):
        np.testing.assert_allclose(shown[key], getattr(split, key), rtol=1e-9, atol=1e-15)


# --------------------------------------------------------------------------------------------------- tables


def test_arrays_and_data_frames_of_any_kind_give_the_same() -> None:
    X, y = numbers(80)
    names = ["a", "b", "c"]
    fitted = regressor(epochs=4).fit(pd.DataFrame(X, columns=names), y)
    X, y = numbers(90, seed=1)
    columns = dict(zip(names, X.T, strict=True))
    odd = pd.Index(np.random.default_rng(0).permutation(90) - 45.5)  # labels that are not positions
    first = evaluate(fitted, pa.table(columns), pa.chunked_array([y[:40], y[40:]]), name="new")
    for table, target in (
        (pd.DataFrame(columns, index=odd), pd.Series(y, index=odd)),
        (pl.DataFrame(columns), pl.Series(y)),
        (pl.DataFrame(columns), pl.DataFrame({"y": y})),
        (pd.DataFrame(columns), y.tolist()),
    ):
        agree(evaluate(fitted, table, target, name="new"), first)
    plain = regressor(epochs=4).fit(*numbers(80))
    agree(evaluate(plain, X, y, name="new"), first)
    agree(evaluate(plain, X.tolist(), y, name="new"), first)


def test_tables_are_cut_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "_CHUNK", 7)
    X, y = numbers(30)
    columns = dict(zip("abc", X.T, strict=True))
    odd = pd.Index(np.random.default_rng(0).permutation(30) - 15.5)
    fitted = regressor(epochs=2).fit(pa.table(columns), y)
    first = evaluate(fitted, pa.table(columns), y, name="rows")
    agree(evaluate(fitted, pd.DataFrame(columns, index=odd), y, name="rows"), first)
    agree(evaluate(fitted, pl.DataFrame(columns), y, name="rows"), first)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["ash", "elm", "birch", "fir"] * 5, "the classes 'elm', 'fir', which are not in the training set; known cl"),
        (["ash", None] * 10, "Labels are missing in 10 of 20 rows"),
        ([0.5, 1.5] * 10, "Unknown label type"),
        ([["ash"], ["birch"]] * 10, "Unknown label type"),
        (["ash"] * 19, "X has 20 rows and y has 19"),
    ],
)
def test_labels_that_cannot_be_scored_are_named(three: UnboundedDepthClassifier, y: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        evaluate(three, np.zeros((20, 2)), y, name="new")


@pytest.mark.parametrize(
    ("y", "targets", "message"),
    [
        ([1.0, math.nan], ("y",), "y contains NaN. It is in 1 of 2 rows"),
        ([1.0, 2.0, 3.0], ("y",), "X has 2 rows and y has 3"),
        ([[1.0, 2.0]] * 2, ("a", "b"), "y has 2 columns; the estimator was fitted to 1"),
        ([1.0, 2.0], ("a", "b"), "one name for each of the 1 target columns"),
        ([1.0, 2.0], "y", "one name for each of the 1 target columns"),
        ([1.0, 1e300], ("y",), "the score overflows; check the units of y"),
        (["low", "high"], ("y",), "give a numeric target"),
        ([], ("y",), r"y has shape \(0,\)"),
    ],
)
def test_targets_that_cannot_be_scored_are_refused(
    one_number: UnboundedDepthRegressor, y: Any, targets: Any, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        evaluate(one_number, np.zeros((2, 3)), y, name="new", targets=targets)


def test_an_estimator_must_be_fitted_first() -> None:
    with pytest.raises(DataError, match="UnboundedDepthRegressor is not fitted yet"):
        evaluate(regressor(), np.zeros((2, 3)), [1.0, 2.0], name="new")


# --------------------------------------------------------------------------------------------------- files


@pytest.fixture(scope="module")
def evaluations(
    three: UnboundedDepthClassifier, two: UnboundedDepthClassifier, two_numbers: UnboundedDepthRegressor
) -> list[Evaluation]:
    return [
        evaluate(three, *classes(60, 3, seed=1), name="held-out rows", targets=("tree",)),
        evaluate(two, *classes(2500, 2, seed=1), name="new.csv"),
        evaluate(two_numbers, *numbers(70, 2, seed=1), name="größer.parquet", targets=("a", "b")),
        evaluate(Forecaster(VECTOR), np.ones((1, 2)), [1.0], name="one row"),
    ]


def agree(found: Evaluation, expected: Evaluation, rel: float = 1e-9, skip: tuple[str, ...] = ()) -> None:
    """Two evaluations are the same, up to rounding; with rel = 0 to the bit."""
    for group in ("scores", "baseline"):
        ours, theirs = getattr(found, group), getattr(expected, group)
        assert list(ours) == list(theirs)
        for key in set(ours) - set(skip):
            for a, b in zip(dataclasses.astuple(ours[key]), dataclasses.astuple(theirs[key]), strict=True):
                assert (a == b) if rel == 0 or b is None else a == pytest.approx(b, rel=rel, abs=1e-12), key
    for group in ("arrays", "calibration"):
        ours, theirs = getattr(found, group), getattr(expected, group)
        assert set(ours) == set(theirs)
        for key, array in theirs.items():
            assert ours[key].dtype == array.dtype
            np.testing.assert_allclose(ours[key], array, rtol=rel, atol=0 if rel == 0 else 1e-12, strict=True)
    if expected.confusion is None:
        assert found.confusion is None
    else:
        np.testing.assert_array_equal(found.confusion, expected.confusion, strict=True)
    if rel == 0:
        assert found.conditional == expected.conditional
    for field in ("name", "task", "rows", "labels", "targets"):
        assert getattr(found, field) == getattr(expected, field)


def test_saved_evaluations_come_back_to_the_bit(evaluations: list[Evaluation], tmp_path: Path) -> None:
    for number, expected in enumerate(evaluations):
        expected.save(tmp_path / str(number))
        agree(Evaluation.load(tmp_path / str(number)), expected, rel=0)
        again = Evaluation.load(tmp_path / str(number)).save(tmp_path / "again")
        for path in (tmp_path / str(number)).iterdir():
            assert (again / path.name).read_bytes() == path.read_bytes()


def test_evaluations_of_older_versions_are_loaded(evaluations: list[Evaluation], tmp_path: Path) -> None:
    assert evaluations[2].conditional

    def older(meta: Any, tensors: Any) -> None:
        meta.pop("conditional")
        for key in ("scores", "baseline"):
            meta[key] = [entry for entry in meta[key] if entry[0] != "interval_score_90"]

    evaluations[2].save(tmp_path)
    changed(tmp_path, older)
    found = Evaluation.load(tmp_path)
    assert found.conditional == ()
    assert [*found.scores, "interval_score_90"] != list(evaluations[2].scores)
    assert {**found.scores, "interval_score_90": evaluations[2].scores["interval_score_90"]} == evaluations[2].scores


def changed(folder: Path, change: Any) -> None:
    """Alter what is saved, with a checksum that is right."""
    saved = io.load(folder, kinds={"evaluation"})
    change(saved.meta, saved.tensors)
    io.save(folder, kind="evaluation", tensors=saved.tensors, meta=saved.meta)


CHANGES: dict[str, Any] = {
    "no name": lambda m, t: m.pop("name"),
    "one more key": lambda m, t: m.update(more=1),
    "name that is a number": lambda m, t: m.update(name=3),
    "another task": lambda m, t: m.update(task="clustering"),
    "the other task": lambda m, t: m.update(task={"regression": "classification"}.get(m["task"], "regression")),
    "no rows": lambda m, t: m.update(rows=0),
    "another number of rows": lambda m, t: m.update(rows=m["rows"] + 1),
    "a number among the targets": lambda m, t: m.update(targets=[1, *m["targets"][1:]]),
    "another target": lambda m, t: m.update(targets=["c", *m["targets"]]),
    "another label": lambda m, t: m.update(labels=["c", *m["labels"]]),
    "no scores": lambda m, t: m.update(scores=[]),
    "a score without a value": lambda m, t: m["scores"][0].pop(),
    "a score that is text": lambda m, t: m["scores"][0].__setitem__(1, "0.5"),
    "a score that is whole": lambda m, t: m["scores"][0].__setitem__(1, 1),
    "a score named by a list": lambda m, t: m["scores"][0].__setitem__(0, []),
    "scores that are numbers": lambda m, t: m.update(scores=[1, 2]),
    "a negative error": lambda m, t: m["baseline"][0].__setitem__(2, -1.0),
    "scores in another order": lambda m, t: m["scores"].reverse(),
    "an array is gone": lambda m, t: t.pop("arrays/noise"),
    "one more array": lambda m, t: t.update({"arrays/more": torch.zeros(2)}),
    "a stray array": lambda m, t: t.update({"more": torch.zeros(2)}),
    "an array of another type": lambda m, t: t.update({"arrays/noise": t["arrays/noise"].float()}),
    "an array of a type that NumPy lacks": lambda m, t: t.update({"arrays/noise": t["arrays/noise"].bfloat16()}),
    "an array of another shape": lambda m, t: t.update({"arrays/noise": t["arrays/noise"][:1]}),
    "an array that is not finite": lambda m, t: t["arrays/noise"].fill_(math.nan),
    "counts of other rows": lambda m, t: (t["confusion"] if "confusion" in t else t["calibration/pit"]).add_(1),
    "a calibration that is gone": lambda m, t: [t.pop(k) for k in list(t) if k.startswith("calibration/c")],
}


@pytest.mark.parametrize(
    "change",
    [
        lambda m, t: m["conditional"][0].pop(),
        lambda m, t: m["conditional"][0].__setitem__(3, "0.5"),
        lambda m, t: m["conditional"][0][4][0].__setitem__(2, 1),
        lambda m, t: m["conditional"][0][4][0].append(1.0),
        lambda m, t: m.update(conditional=3),
    ],
)
def test_altered_groups_are_refused(evaluations: list[Evaluation], tmp_path: Path, change: Any) -> None:
    evaluations[2].save(tmp_path)
    changed(tmp_path, change)
    with pytest.raises(FileError, match="does not contain an evaluation that this version can load"):
        Evaluation.load(tmp_path)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_altered_evaluations_are_refused(evaluations: list[Evaluation], tmp_path: Path, change: Any) -> None:
    for number in (0, 2):
        evaluations[number].save(tmp_path / str(number))
        changed(tmp_path / str(number), change)
        with pytest.raises(FileError, match="does not contain an evaluation that this version can load"):
            Evaluation.load(tmp_path / str(number))


def test_classes_beyond_the_labels_are_refused(evaluations: list[Evaluation], tmp_path: Path) -> None:
    evaluations[0].save(tmp_path)
    changed(tmp_path, lambda m, t: t["arrays/y"].fill_(3))
    with pytest.raises(FileError, match="classes beyond the 3 labels"):
        Evaluation.load(tmp_path)


def test_damaged_and_foreign_folders_are_refused(evaluations: list[Evaluation], tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no folder"):
        Evaluation.load(tmp_path / "nothing")
    folder = evaluations[2].save(tmp_path / "saved")
    for path in folder.iterdir():
        whole = path.read_bytes()
        for place in range(0, len(whole), len(whole) // 40):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            with pytest.raises(FileError):
                Evaluation.load(folder)
        path.write_bytes(whole[:-9])
        with pytest.raises(FileError):
            Evaluation.load(folder)
        path.write_bytes(whole)
    io.save(tmp_path / "other", kind="checkpoint", tensors={}, meta={})
    with pytest.raises(FileError, match="'checkpoint'; allowed here: 'evaluation'"):
        Evaluation.load(tmp_path / "other")
