"""Findings: silent on healthy fits and on calibrated forecasts, loud on sick ones."""

import dataclasses
import functools
import inspect
import itertools
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn import datasets as bundled

import fathomless.app.diagnose as doctor
from fathomless.app.diagnose import diagnose
from fathomless.data.frames import fit_schema, make_frame
from fathomless.data.targets import TargetScale
from fathomless.estimators.conditional import ConditionalCoverage, CoverageGroup, coverage_by_group
from fathomless.estimators.evaluation import Evaluation, evaluate
from fathomless.estimators.findings import Finding
from fathomless.estimators.importance import Importance, importance
from fathomless.estimators.scores import Score
from fathomless.estimators.values import ELBO, Adam, Folds
from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.posterior.laws import FixedDepth
from fathomless.posterior.likelihoods import Gaussian
from fathomless.posterior.structure import GraphPosterior
from fathomless.system.errors import ConvergenceWarning, DataWarning
from fathomless.tables import readers

Array = npt.NDArray[Any]
Estimator = UnboundedDepthClassifier | UnboundedDepthRegressor

# fits are sick on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")


def sine(n: int, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.uniform(-3, 3, (n, 1))
    return X, np.sin(X[:, 0]) + 0.1 * rng.normal(size=n)


def line(n: int, noise: float = 1.0, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, X.sum(1) + noise * rng.normal(size=n)


def spiral(n: int) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    angle, y = np.sqrt(rng.uniform(0.05, 1.0, n)) * 3.0 * np.pi, rng.integers(0, 2, n)
    arms = np.column_stack([angle * np.cos(angle + np.pi * y), angle * np.sin(angle + np.pi * y)])
    return arms / 5.0 + 0.1 * rng.normal(size=(n, 2)), y


def regressor(**options: Any) -> UnboundedDepthRegressor:
    return UnboundedDepthRegressor(**{"width": 8, "random_state": 0, **options})


@functools.cache
def of_a_line(cv: int | str = "auto") -> UnboundedDepthRegressor:
    """Return a fit that several tests only look at."""
    return regressor(epochs=120, cv=cv).fit(*line(80))


def classifier(**options: Any) -> UnboundedDepthClassifier:
    return UnboundedDepthClassifier(**{"width": 8, "random_state": 0, **options})


def looked_over(estimator: Estimator, X: Any, y: Array, new: tuple[Any, Array] | None = None) -> dict[str, Finding]:
    """Fit, evaluate and examine as the command line does; return the findings by their titles."""
    estimator.fit(X, y)
    held = estimator.held_out_
    kept = np.setdiff1d(np.arange(len(y)), held)
    rows = X if isinstance(X, np.ndarray) else X.iloc
    if estimator.fold_ is not None:
        kept = np.arange(len(y))
        found = [evaluate(estimator, X, y, name="out-of-fold rows", fold=estimator.fold_)]
    else:
        found = [evaluate(estimator, rows[held], y[held], name="held-out rows")] if len(held) else []
    found += [evaluate(estimator, *new, name="new.csv")] if new else []
    training = evaluate(estimator, rows[kept], y[kept], name="training rows")
    return {finding.title: finding for finding in diagnose(estimator, found, training=training, rows=len(y))}


def problems(findings: Mapping[str, Finding]) -> dict[str, Finding]:
    return {title: finding for title, finding in findings.items() if finding.severity == "problem"}


# ------------------------------------------------------------------------------------------- healthy fits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("estimator", "load"),
    [
        (UnboundedDepthClassifier, bundled.load_iris),
        (UnboundedDepthRegressor, bundled.load_diabetes),
    ],
    ids=["iris", "diabetes"],
)
@pytest.mark.usefixtures("full_recalibration")
def test_fits_of_well_known_data_have_no_problem(estimator: Any, load: Any) -> None:
    """With fewer networks than by default, for time."""
    assert not problems(looked_over(estimator(cv=3, random_state=0), *load(return_X_y=True)))


@pytest.mark.slow
@pytest.mark.usefixtures("full_recalibration")
def test_a_default_fit_of_a_sine_is_healthy() -> None:
    findings = looked_over(UnboundedDepthRegressor(random_state=0), *sine(150))
    assert not findings


@pytest.mark.slow
def test_a_fit_of_a_table_of_categories_is_healthy(data_folder: Path) -> None:
    """With five networks instead of ten, for time."""
    table = readers.read_table(data_folder / "tabular" / "adult.csv.xz")
    some = np.random.default_rng(0).permutation(len(table["income"]))[:600]
    X = make_frame({name: values[some] for name, values in table.items() if name not in ("income", "split")})
    assert not problems(looked_over(UnboundedDepthClassifier(cv=5, random_state=0), X, table["income"][some]))


# ---------------------------------------------------------------------------------------------- sick fits


def test_hardly_any_rows_are_a_problem() -> None:
    X, y = line(11)
    with pytest.warns(DataWarning, match="11 rows were given; fewer than 12 are too few"):
        fitted = regressor(epochs=20).fit(X, y)
    found = {finding.title: finding for finding in diagnose(fitted, [], rows=11)}
    assert "11 rows." in found["Very few rows"].detail
    assert "Very few rows" not in {finding.title for finding in diagnose(fitted, [], rows=12)}


def test_cells_far_from_all_others_are_a_problem() -> None:
    X, _ = line(60)
    X[[3, 7], 1] = -999.0
    with pytest.warns(DataWarning, match="column 'x1' is -999 in 2 of 60 rows"):
        fitted = regressor(epochs=5).fit(X, np.random.default_rng(0).normal(size=60))
    found = {finding.title: finding for finding in diagnose(fitted, [], rows=60)}
    assert found["Extreme outliers in columns"].detail.startswith("Columns with outliers: 'x1'.")
    whole = regressor(epochs=5).fit(*line(60))
    assert "Extreme outliers in columns" not in {finding.title for finding in diagnose(whole, [], rows=60)}


def test_three_epochs_are_a_short_training() -> None:
    findings = looked_over(regressor(epochs=3), *sine(100))
    assert "3 steps in 3 epochs" in findings["Short training"].detail
    assert "Raise epochs (now 3)" in findings["Short training"].remedy
    assert set(problems(findings)) >= {"Short training"}


def test_a_depth_that_learns_too_slowly_has_not_moved() -> None:
    findings = looked_over(regressor(structure_from=ELBO(rate=1e-4), epochs=200), *sine(120))
    assert list(problems(findings)) == ["Depth posterior did not change in training"]
    assert "structure_from__rate (now 0.0001)" in findings["Depth posterior did not change in training"].remedy


def test_a_depth_that_still_moves_has_not_come_to_rest() -> None:
    estimator = regressor(
        structure_from=ELBO(initial_depth=8.0, rate=2.0), epochs=60, batch_size=16, optimizer=Adam(schedule="constant")
    )
    with pytest.warns(ConvergenceWarning, match="has not converged"):
        findings = looked_over(estimator, *line(120))
    assert (
        "Raise epochs (now 60) or structure_from__rate (now 2)" in findings["Depth posterior has not converged"].remedy
    )
    estimator.n_iter_ = 50  # had it been stopped there, it would be advice
    titles = {finding.title: finding.severity for finding in diagnose(estimator, [])}
    assert titles["Depth posterior had not converged at early stopping"] == "advice"
    assert "Depth posterior has not converged" not in titles


def test_a_spiral_with_one_layer_is_at_its_upper_bound() -> None:
    with pytest.warns(ConvergenceWarning, match="truncated at max_depth"):
        findings = looked_over(classifier(max_depth=1, epochs=200), *spiral(200))
    assert findings["Depth is at its upper bound"].severity == "problem"
    assert findings["Depth is at its upper bound"].remedy == "Raise max_depth (now 1)."


def test_a_law_that_ends_is_an_upper_bound() -> None:
    estimator = classifier(structure_from="elbo", depth_law="categorical", epochs=5).fit(*spiral(100))
    with torch.no_grad():
        for k, p in enumerate(estimator.model_.law_parameters):
            p.fill_(float(k == 9) * 3.0)
    found = {finding.title: finding for finding in diagnose(estimator, [])}
    assert "now one that ends at 9" in found["Depth is at its upper bound"].remedy
    with torch.no_grad():
        estimator.model_.law_parameters[4].fill_(6.0)
    assert "Depth is at its upper bound" not in {finding.title for finding in diagnose(estimator, [])}


def test_a_line_that_must_have_two_layers_is_at_its_lower_bound() -> None:
    estimator = regressor(structure_from=ELBO(initial_depth=0.06), min_depth=2, epochs=20).fit(*line(80))
    found = {finding.title: finding for finding in diagnose(estimator, [])}
    assert found["Depth is at its lower bound"].severity == "advice"
    assert found["Depth is at its lower bound"].remedy == "Lower min_depth (now 2)."
    estimator = regressor(structure_from=ELBO(initial_depth=0.06), epochs=20).fit(*line(80))
    assert "Depth is at its lower bound" not in {finding.title for finding in diagnose(estimator, [])}


@pytest.mark.parametrize("law", [2, FixedDepth((1, 3), (0.4, 0.6))], ids=["int", "FixedDepth"])
def test_nothing_is_said_of_a_depth_that_was_given(law: Any) -> None:
    findings = looked_over(regressor(depth_law=law, max_depth=3, epochs=100), *line(80))
    assert not [title for title in findings if "epth" in title]


def test_nothing_is_said_of_the_depth_of_a_family_without_one() -> None:
    estimator = regressor(structure_from=ELBO(rate=1e-4), epochs=20).fit(*line(80))
    estimator.model_ = torch.nn.Linear(1, 1)  # type: ignore[assignment]
    estimator.structure_ = GraphPosterior(kind="graph")
    estimator.history_ = [{k: v for k, v in row.items() if k != "mean_depth"} for row in estimator.history_]
    assert not [finding.title for finding in diagnose(estimator, []) if "epth" in finding.title]


def test_a_training_that_ends_while_scores_rise_ended_too_soon() -> None:
    findings = looked_over(
        regressor(structure_from="elbo", epochs=15, optimizer=Adam(schedule="constant"), learning_rate=1e-3),
        *line(2000, 0.1),
    )
    assert findings["Training ended before convergence"].remedy == "Raise epochs (now 15)."
    assert findings["Training ended before convergence"].severity == "problem"


def test_little_patience_stops_early() -> None:
    estimator = classifier(patience=2, structure_from="elbo")
    findings = looked_over(estimator, *bundled.make_moons(300, noise=0.5, random_state=0))
    number = len(estimator.history_)
    assert number < 20
    assert f"and {number} validation scores" in findings["Early stopping after few epochs"].detail
    assert "patience (now 2)" in findings["Early stopping after few epochs"].remedy


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_a_target_of_pure_noise_is_no_better_than_a_constant(task: str) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, 3)), rng.normal(size=600)
    y = y if task == "regression" else y > 0.0
    make = regressor if task == "regression" else classifier
    estimator: Estimator = make(cv=4, epochs=200)
    findings = looked_over(estimator, X[:300], y[:300], (X[300:], y[300:]))
    assert "No better than a constant prediction on new.csv" in problems(findings)


@pytest.mark.parametrize(
    ("lead", "warned"), [(Score(-0.3, 0.1), True), (Score(-0.3, 0.2), False), (Score(0.3, 0.1), False)]
)
def test_a_linear_model_that_predicts_better_is_warned_of(lead: Score, warned: bool) -> None:
    found = diagnose(regressor(epochs=5, cv=1).fit(*line(60)), [], rows=60, linear=lead)
    assert ("A linear model predicts better" in {finding.title for finding in found}) == warned


def find_by_importance(title: str, estimator: Estimator, seen: Evaluation, columns: Importance) -> Finding | None:
    """Return the finding with a title, given the importance of the columns; None without it."""
    found = diagnose(estimator, [seen], rows=seen.rows, importance=columns)
    return next((finding for finding in found if finding.title == title), None)


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_a_column_that_contains_the_target_is_named(task: str) -> None:
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.normal(size=(240, 3)), columns=["a", "b", "leak"])
    y = X["a"].to_numpy() + rng.normal(size=240)
    y = y if task == "regression" else np.where(y > 0.0, "high", "low")
    X["leak"] = y + 0.03 * rng.normal(size=240) if task == "regression" else (y == "high").astype(float)
    make = UnboundedDepthRegressor if task == "regression" else UnboundedDepthClassifier
    estimator = make(cv=2, depth_law=0, epochs=800, random_state=0).fit(X, y)
    seen = evaluate(estimator, X, y, name="out-of-fold rows", fold=estimator.fold_)
    by_column = importance(estimator, X, y, fold=estimator.fold_)
    find = functools.partial(find_by_importance, "One column determines the target", estimator)

    finding = find(seen, by_column)
    assert finding is not None
    assert finding.severity == "problem"
    assert finding.detail.startswith("Permuting 'leak' lowers the log-likelihood by ")
    # not if another column has an effect, the prediction is imperfect, or a constant one is as good
    loss = by_column.loss.copy()
    loss[1] = 0.3
    assert find(seen, dataclasses.replace(by_column, loss=loss)) is None
    name = "r2" if task == "regression" else "accuracy"
    worse = {**seen.scores, name: dataclasses.replace(seen.scores[name], value=0.98)}
    assert find(dataclasses.replace(seen, scores=worse), by_column) is None
    assert find(dataclasses.replace(seen, baseline=seen.scores), by_column) is None
    if task == "classification":  # a rare class
        rare = {**seen.baseline, name: dataclasses.replace(seen.baseline[name], value=0.98)}
        nearly = {**seen.scores, name: dataclasses.replace(seen.scores[name], value=0.991)}
        assert find(dataclasses.replace(seen, scores=nearly, baseline=rare), by_column) is None


def test_columns_without_importance_are_named() -> None:
    rng = np.random.default_rng(1)
    X = pd.DataFrame(rng.normal(size=(600, 4)), columns=["a", "b", "noise", "more"])
    y = X["a"].to_numpy() + 0.5 * X["b"].to_numpy() + 0.5 * rng.normal(size=600)
    estimator = UnboundedDepthRegressor(cv=2, depth_law=0, epochs=300, random_state=0).fit(X, y)
    seen = evaluate(estimator, X, y, name="out-of-fold rows", fold=estimator.fold_)
    by_column = importance(estimator, X, y, fold=estimator.fold_)
    find = functools.partial(find_by_importance, "Columns without importance", estimator)

    finding = find(seen, by_column)
    assert finding is not None
    assert finding.severity == "advice"
    assert finding.detail.startswith("2 of 4 columns have no measurable importance.")
    assert {"'noise'", "'more'"} == {word.strip(" .") for word in finding.detail.rpartition(":")[2].split(",")}
    # not if the importance is uncertain, or the fit is no better than a constant prediction
    assert find(seen, dataclasses.replace(by_column, error=by_column.error + 0.02)) is None
    lower = dataclasses.replace(by_column, loss=by_column.loss - 1.0)
    assert find(dataclasses.replace(seen, baseline=seen.scores), lower) is None


@pytest.mark.parametrize("task", ["regression", "classification"])
def test_rows_in_the_order_of_time_are_reported(task: str) -> None:
    """Not if the rows are shuffled or sorted by the target, or if the folds are blocks or of consecutive groups."""
    rng = np.random.default_rng(0)
    level = 3.0 * np.sin(np.linspace(0.0, 20.0, 300))
    X = rng.normal(size=(300, 2))
    y = level + X[:, 0] + 0.3 * rng.normal(size=300)
    target = y if task == "regression" else np.where(y > 0.0, "high", "low")
    kind = UnboundedDepthRegressor if task == "regression" else UnboundedDepthClassifier
    mixed = rng.permutation(300)

    def reported(order: Any, **options: Any) -> list[Finding]:
        groups = options.pop("groups", None)
        estimator = kind(**{"cv": 4, "epochs": 20, "depth_law": 0, "random_state": 0, **options})
        estimator.fit(X[order], target[order], groups=groups)
        seen = evaluate(estimator, X[order], target[order], name="out-of-fold rows", fold=estimator.fold_)
        found = diagnose(estimator, [seen], rows=300)
        return [finding for finding in found if finding.title == "Rows may be in the order of time"]

    (found,) = reported(np.arange(300))
    assert found.severity == "advice"
    assert "will be lower: set cv__order (now 'random') to 'blocks', or give groups" in found.remedy
    (given,) = reported(np.arange(300), cv=rng.integers(0, 4, 300))
    assert "will be lower: give groups" in given.remedy
    assert reported(mixed) == []
    assert reported(np.argsort(y)) == []
    assert reported(np.arange(300), cv=Folds(n_splits=4, order="blocks")) == []
    assert reported(np.arange(300), groups=np.arange(300) // 15) == []


@pytest.mark.parametrize("task", ["regression", "classification"])
@pytest.mark.parametrize("drift", [0.0, 1.0])
def test_a_last_block_that_is_predicted_worse_is_reported(task: str, drift: float) -> None:
    """The level of the target, or the direction of its dependence, changes in the last quarter of the rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    late = np.arange(400) >= 300
    y = X[:, 0] * (1.0 - 2.0 * drift * late) + 0.2 * rng.normal(size=400)
    target = y if task == "regression" else np.where(y > 0.0, "high", "low")
    kind = UnboundedDepthRegressor if task == "regression" else UnboundedDepthClassifier
    for cv in (4, Folds(n_splits=4, order="blocks")):
        estimator = kind(cv=cv, epochs=60, depth_law=0, random_state=0).fit(X, target)
        seen = evaluate(estimator, X, target, name="out-of-fold rows", fold=estimator.fold_)
        found = [f for f in diagnose(estimator, [seen], rows=400) if f.title == "Later rows are predicted worse"]
        assert len(found) == int(bool(drift) and cv != 4)
    if not found:
        return
    (finding,) = found
    assert finding.severity == "problem"
    assert finding.detail.startswith("The last of 4 blocks of rows was predicted by networks that were fitted to ear")
    if task == "regression":
        inside = np.abs(seen.arrays["pit"][:, 0] - 0.5) <= 0.45
        assert f"{inside[300:].mean():.0%} of its values are inside the 90% intervals" in finding.detail
        error = np.abs(seen.arrays["y"] - seen.arrays["mean"])[:, 0]
        ratio = np.sqrt((error[300:] ** 2).mean() / (error[:300] ** 2).mean())
        assert f"is {ratio:.2g} times theirs" in finding.detail
    else:
        right = seen.arrays["probs"].argmax(1) == seen.arrays["y"]
        assert f"accuracy is {right[300:].mean():.0%} in place of {right[:300].mean():.0%}" in finding.detail


def test_a_smaller_decrease_is_a_shift_and_no_overfitting() -> None:
    """The gain over a constant prediction falls from 0.5 to 0.3 nats."""
    estimator = regressor(epochs=40).fit(*line(80))
    seen, lower = scored("out-of-fold rows", -0.5, 0.02), scored("new.csv", -0.7, 0.02)
    titles = {finding.title for finding in diagnose(estimator, [seen, lower])}
    assert "Distribution shift on new.csv" in titles
    training = scored("training rows", -0.3, 0.02)
    assert "Overfitting" not in {finding.title for finding in diagnose(estimator, [seen], training=training)}


@pytest.mark.parametrize("likelihood", ["auto", "gaussian", "student_t", "laplace"])
def test_heavier_tails_are_offered_where_the_noise_is_gaussian(likelihood: str) -> None:
    estimator = regressor(epochs=40, likelihood=likelihood).fit(*line(80))
    normal = isinstance(estimator.likelihood_, Gaussian)
    assert likelihood == "auto" or normal == (likelihood == "gaussian")  # held-out rows choose for "auto"
    narrow = dataclasses.replace(
        scored("held-out rows", -0.5, 0.1), calibration=predicted(np.repeat([[0.001], [0.999]], 200, 0)).calibration
    )
    found = {finding.title: finding for finding in diagnose(estimator, [narrow])}["Poor calibration on held-out rows"]
    assert ("likelihood='student_t' (now 'gaussian')" in found.remedy) == normal


def test_labels_learned_by_heart_are_overfitted() -> None:
    rng = np.random.default_rng(0)
    X, new = rng.normal(size=(150, 4)), rng.normal(size=(300, 4))
    estimator = classifier(width=32, depth_law=2, weight_prior=10.0, epochs=400, patience=None, validation_fraction=0.0)
    findings = looked_over(estimator, X, rng.integers(0, 2, 150), (new, rng.integers(0, 2, 300)))
    assert set(problems(findings)) == {
        "Overfitting",
        "No better than a constant prediction on new.csv",
        "Poor calibration on new.csv",
    }
    assert "Raise validation_fraction (now 0); lower weight_prior (now 10)" in findings["Overfitting"].remedy
    assert "overconfident" in findings["Poor calibration on new.csv"].detail
    assert findings["No held-out rows"].remedy == "Raise validation_fraction (now 0) to 0.1."


def test_rows_from_elsewhere_are_told_from_overfitting() -> None:
    X, y = line(300, seed=1)
    findings = looked_over(regressor(cv=4, epochs=300), *line(300), new=(X + 3.0, y))
    assert "Distribution shift on new.csv" in problems(findings)
    assert "Overfitting" not in findings
    assert "too narrow" in findings["Poor calibration on new.csv"].detail
    assert "Poor calibration on held-out rows" not in findings
    assert not problems(looked_over(regressor(cv=4, epochs=300), *line(300), new=line(300, seed=1)))


@pytest.mark.parametrize("noise", ["learned", "input", 0.001])
def test_a_target_without_noise_is_at_the_floor(noise: Any) -> None:
    findings = looked_over(
        regressor(structure_from="elbo", depth_law=0, epochs=600, noise=noise), *line(200, noise=0.0)
    )
    assert ("Noise at its lower bound" in findings) == (noise != 0.001)  # a predicted scale gets there by its factor
    if noise == "learned":
        assert "set noise (now 'learned') to a number" in findings["Noise at its lower bound"].remedy


def test_noise_that_depends_on_the_input_can_be_at_the_floor_too() -> None:
    X, y = line(80)
    estimator = regressor(noise="input", epochs=20).fit(X, y)
    found = evaluate(estimator, X, y, name="rows")
    assert "Noise at its lower bound" not in {finding.title for finding in diagnose(estimator, [found])}
    assert isinstance(estimator.target_, TargetScale)
    least = np.full_like(found.arrays["noise"], (2e-3 * estimator.target_.scale[0]) ** 2)
    low = dataclasses.replace(found, arrays={**found.arrays, "noise": least})
    assert "Noise at its lower bound" in {finding.title for finding in diagnose(estimator, [low])}


def test_few_rows_many_features_and_rare_classes_are_told() -> None:
    rng = np.random.default_rng(0)
    findings = looked_over(
        classifier(structure_from="elbo", epochs=120), rng.normal(size=(20, 30)), np.arange(20) % 3 == 0
    )
    assert {title for title, finding in findings.items() if finding.severity == "advice"} == {
        "No held-out rows",
        "Fewer rows than features",
        "Classes with few rows",
    }
    assert "No rows are held out of fewer than 60" in findings["No held-out rows"].detail
    assert "20 rows; the columns are encoded as 30 features" in findings["Fewer rows than features"].detail
    assert "1 of 2 classes have fewer than 10 rows (minimum 7): 'True'" in findings["Classes with few rows"].detail


def test_numbers_of_rows_and_classes_may_be_given() -> None:
    estimator = classifier(epochs=120).fit(*spiral(100))
    titles = {finding.title for finding in diagnose(estimator, [], rows=1, classes={"0": 9, "1": 10})}
    assert titles >= {"Fewer rows than features", "Classes with few rows"}
    assert not {"Fewer rows than features", "Classes with few rows"} & {
        finding.title for finding in diagnose(estimator, [])
    }


def test_problems_come_first_and_every_finding_has_its_words() -> None:
    findings = diagnose(regressor(epochs=3, max_depth=1).fit(*line(20)), [], rows=2)
    severities = [finding.severity for finding in findings]
    assert severities == sorted(severities, reverse=True)
    assert set(severities) == {"advice", "problem"}
    for finding in findings:
        assert finding.title
        assert finding.detail.endswith(".")
        assert finding.remedy.endswith(".")


# --------------------------------------------------------------------------------------------- thresholds


def classified(p: Array, hit: Array) -> Evaluation:
    """Evaluate forecasts of the top class with probabilities p above one half."""
    X = np.column_stack([p, 1.0 - p])
    rows = len(p)
    which = np.clip(np.ceil(p * 15).astype(int) - 1, 0, 14)
    count = np.bincount(which, minlength=15)
    held = count > 0
    confidence, accuracy = (np.bincount(which, w, 15)[held] / count[held] for w in (p, hit))
    ece = float(np.abs(confidence - accuracy) @ count[held] / rows)
    return Evaluation(
        name="held-out rows",
        task="classification",
        rows=rows,
        scores={"ece": Score(ece, None)},
        baseline={},
        labels=("a", "b"),
        targets=("y",),
        arrays={"probs": X},
        calibration={"confidence": confidence, "accuracy": accuracy, "count": count[held]},
        confusion=None,
    )


def predicted(pit: Array) -> Evaluation:
    """Evaluate forecasts of numbers whose distribution functions at the truth are `pit`, (N, T)."""
    levels = np.arange(1, 20) / 20
    inside = np.stack([(np.abs(pit - 0.5) <= level / 2).mean(0) for level in levels])
    bins = np.stack([np.histogram(column, 20, (0.0, 1.0))[0] for column in pit.T], 1)
    return Evaluation(
        name="held-out rows",
        task="regression",
        rows=len(pit),
        scores={},
        baseline={},
        labels=(),
        targets=tuple(f"t{k}" for k in range(pit.shape[1])),
        arrays={},
        calibration={"pit": bins, "levels": levels, "coverage": inside},
        confusion=None,
    )


@pytest.mark.parametrize("rows", [15, 40, 150, 2000, 50_000])
def test_calibrated_forecasts_of_numbers_are_rarely_accused(rows: int) -> None:
    rng = np.random.default_rng(rows)
    runs = 800 if rows <= 2000 else 100
    accused = sum(doctor._interval_calibration(predicted(rng.random((rows, 1)))) is not None for _ in range(runs))
    assert accused <= 0.01 * runs


@pytest.mark.parametrize("rows", [15, 150, 2000])
def test_calibrated_forecasts_of_classes_are_rarely_accused(rows: int) -> None:
    rng, accused, runs = np.random.default_rng(rows), 0, 400
    for run in range(runs):
        p = 0.5 + 0.5 * (rng.beta(3.0, 1.0, rows) if run % 2 else rng.random(rows))
        accused += doctor._class_calibration(classified(p, rng.random(rows) < p)) is not None
    assert accused <= 0.005 * runs + 4.5 * (0.005 * runs) ** 0.5  # one in two hundred are accused


def test_the_calibration_error_that_chance_gives_is_that_of_simulated_rows() -> None:
    rng = np.random.default_rng(0)
    p = 0.5 + 0.5 * rng.random(300)
    drawn = [classified(p, rng.random(300) < p) for _ in range(2000)]
    errors = np.array([found.scores["ece"].value for found in drawn])
    confidence, count = drawn[0].calibration["confidence"], drawn[0].calibration["count"]
    hits = rng.binomial(count, confidence, (2000, len(count)))
    ours = np.abs(hits / count - confidence) @ count / 300
    for level in (0.5, 0.9, 0.99):
        assert np.quantile(ours, level) == pytest.approx(np.quantile(errors, level), rel=0.08)


@pytest.mark.parametrize(("share", "word"), [(0.8, "narrow"), (0.99, "wide")])
def test_intervals_that_miss_their_level_are_found(share: float, word: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        pit = np.where(rng.random(600) < share, 0.05 + 0.9 * rng.random(600), 0.05 * rng.random(600))
        pit = np.where(rng.random(600) < 0.5, pit, 1.0 - pit)
        off = doctor._interval_calibration(predicted(np.column_stack([rng.random(600), pit])))
        assert off is not None
        assert "Coverage of the 90 % intervals of t1: " in off[1]
        assert f", too {word}" in off[1]
        assert "t0" not in off[1]


def test_a_middle_that_is_too_wide_is_advice() -> None:
    pit = 0.5 + 0.45 * (2 * np.random.default_rng(0).random(400) - 1) * np.repeat([0.5, 1.1], [160, 240])
    off = doctor._interval_calibration(predicted(pit[:, None]))
    assert off is not None
    assert "Coverage of the 50 % intervals of t0: " in off[1]
    assert ", too wide" in off[1]
    assert off[0] <= doctor._LARGE


def test_a_bias_is_found_where_the_coverage_is_right() -> None:
    rng = np.random.default_rng(0)
    pit = np.where(rng.random(800) < 0.9, 0.05 + 0.9 * rng.random(800) ** 0.6, rng.choice([0.01, 0.99], 800))
    off = doctor._interval_calibration(predicted(pit[:, None]))
    assert off is not None
    assert "The PIT values of t0 differ from a uniform distribution by up to" in off[1]


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_classes_that_miss_their_confidence_by_a_tenth_are_found(sign: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = 0.6 + 0.3 * rng.random(2000)
        off = doctor._class_calibration(classified(p, rng.random(2000) < p + sign * 0.1))
        assert off is not None
        assert ("underconfident" if sign > 0 else "overconfident") in off[1]


def test_what_is_certain_but_small_does_not_matter() -> None:
    rng = np.random.default_rng(0)
    p = 0.5 + 0.5 * rng.random(400_000)
    assert doctor._class_calibration(classified(p, rng.random(400_000) < p - 0.01)) is None
    pit = rng.random((400_000, 1))
    assert doctor._interval_calibration(predicted(np.where(pit < 0.5, pit, pit**1.02))) is None


def scored(name: str, value: float, error: float, constant: float = -1.0) -> Evaluation:
    pit = np.random.default_rng(0).random((400, 1))
    scores, baseline = ({"log_likelihood": Score(v, error)} for v in (value, constant))
    return dataclasses.replace(
        predicted(pit), name=name, scores=scores, baseline=baseline, arrays={"noise": np.ones((9, 1))}
    )


@pytest.mark.parametrize(
    ("value", "error", "overfitted"),
    [
        (-0.1, 0.01, False),  # almost as good
        (-0.6, 0.2, False),  # far off, and so is its error
        (-0.45, 0.01, False),  # certain, and half of the gain is kept
        (-0.6, 0.05, True),
    ],
)
def test_a_loss_must_be_certain_and_large_to_be_overfitting(value: float, error: float, overfitted: bool) -> None:
    estimator = of_a_line()
    training = scored("training rows", 0.0, 0.01)
    held_out = scored("held-out rows", value, error)
    found = diagnose(estimator, [held_out], training=training)
    assert ("Overfitting" in {finding.title for finding in found}) == overfitted
    assert "Overfitting" not in {
        finding.title for finding in diagnose(estimator, [scored("held-out rows", value, error)])
    }


@pytest.mark.parametrize(
    ("value", "rows", "alarmed"),
    [
        (-0.55, 400, False),  # as the unseen rows, and far behind the training rows
        (-0.60, 400, False),  # behind, and keeps most of the gain
        (-0.75, 400, True),  # loses half of it
        (-0.90, 400, True),
        (-0.90, 19, False),  # too few unseen rows to compare with
    ],
)
def test_a_file_is_compared_with_unseen_rows_and_not_with_those_of_the_training(
    value: float, rows: int, alarmed: bool
) -> None:
    estimator, one = (of_a_line(cv) for cv in (10, 1))
    kinds: list[tuple[str, ...]] = [(), ("no", "yes")]  # numbers and classes
    for unseen, labels in itertools.product(("held-out rows", "out-of-fold rows"), kinds):
        kind = {"labels": labels, "calibration": {}, "arrays": {"noise": np.ones((9, 1))}}
        training, known, new = (
            dataclasses.replace(scored(name, score, 0.02), **kind)
            for name, score in (("training rows", 0.2), (unseen, -0.5), ("new.csv", value))
        )
        found = diagnose(estimator, [dataclasses.replace(known, rows=rows), new], training=training)
        titles = [finding.title for finding in found]
        assert ("Distribution shift on new.csv" in titles) == alarmed
        assert titles.count("Overfitting") == 1  # of the unseen rows
        # without unseen rows: all networks but one were trained on a training row
        alone = {finding.title: finding for finding in diagnose(estimator, [new], training=training)}
        assert not alone.keys() & {"Overfitting", "Distribution shift on new.csv"}
        single = {finding.title: finding for finding in diagnose(one, [new], training=training)}
        assert "1.2 on training rows, " in single["Overfitting"].detail


def test_errors_of_few_rows_count_by_student_s_law() -> None:
    one, other = scored("held-out rows", 0.0, 0.0), scored("new.csv", 0.0, 0.0)
    few, many = dataclasses.replace(one, rows=8), dataclasses.replace(other, rows=10**6)
    error, errors = doctor._difference_error((few, 0.1), (many, 1e-4))
    assert error == pytest.approx(0.1, rel=1e-3)
    assert errors == pytest.approx(stats.t.isf(stats.norm.sf(3.0), 7), rel=1e-3)
    assert doctor._difference_error((many, 0.1), (many, 0.1))[1] == pytest.approx(3.0, rel=1e-4)
    assert doctor._difference_error((one, None), (other, None)) == (0.0, 3.0)


@pytest.mark.parametrize(("same", "told"), [(True, False), (False, True)])
def test_a_calibration_that_unseen_rows_share_is_not_put_down_to_the_rows(same: bool, told: bool) -> None:
    estimator, rng = of_a_line(), np.random.default_rng(0)
    narrow = rng.beta(0.5, 0.5, (600, 1))
    p = np.full(600, 0.75)
    for given, known in (
        (predicted(narrow), predicted(rng.beta(0.5, 0.5, (400, 1)) if same else rng.random((400, 1)))),
        (classified(p, rng.random(600) < 0.6), classified(p[:400], rng.random(400) < (0.6 if same else 0.75))),
    ):
        new, unseen = (
            dataclasses.replace(
                one,
                name=name,
                scores=one.scores | scored(name, -0.5, 0.1).scores,
                baseline=scored(name, 0.0, 0.1).baseline,
                arrays={"noise": np.ones((9, 1))},
            )
            for name, one in (("new.csv", given), ("out-of-fold rows", known))
        )
        found = {finding.title: finding for finding in diagnose(estimator, [unseen, new])}
        assert ("Compare these rows with the training rows" in found["Poor calibration on new.csv"].remedy) == told


@pytest.mark.parametrize(("seed", "classes"), [(6, True), (12, False)])
def test_rows_of_the_same_law_are_not_called_unlike_those_of_the_training(seed: int, classes: bool) -> None:
    """Networks learn much of these 60 rows by heart: training rows alone are far better than any others."""

    def table(n: int, seed: int) -> tuple[Array, Array]:
        rng = np.random.default_rng(seed)
        X = rng.uniform(-2, 2, (n, 3))
        f = np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1]
        return X, (rng.random(n) < 1 / (1 + np.exp(-3 * f))).astype(int) if classes else f + 0.3 * rng.standard_t(
            3, size=n
        )

    kind = UnboundedDepthClassifier if classes else UnboundedDepthRegressor
    findings = looked_over(kind(random_state=seed, width=16, epochs=150), *table(60, seed), table(2000, 10_000 + seed))
    assert "Distribution shift on new.csv" not in findings


@pytest.mark.parametrize(
    ("value", "title"),
    [(-1.01, "No better than a constant"), (-0.95, "Hardly better than a constant"), (-0.8, None)],
)
def test_a_gain_over_the_constant_prediction_must_be_beyond_its_error(value: float, title: str | None) -> None:
    estimator = of_a_line()
    found = [finding.title for finding in diagnose(estimator, [scored("new.csv", value, 0.05)])]
    assert [t for t in found if "constant" in t] == ([f"{title} prediction on new.csv"] if title else [])


def table_of_noise(n: int, seed: int, ratio: float) -> tuple[Array, Array]:
    """Return a table whose noise is `ratio` times as large at one end of the last column as at the other."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 3))
    noise = 0.3 * np.exp(math.log(ratio) * X[:, 2] / 4)
    return X, np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] + noise * rng.normal(size=n)


@pytest.mark.parametrize("ratio", [9.0, 1.0])
def test_noise_that_depends_on_a_column_is_found_and_named(ratio: float) -> None:
    plain = regressor(cv=4, epochs=300, width=16, recalibrate=False)
    findings = looked_over(plain, *table_of_noise(300, 3, ratio))
    found = findings.get("Row-dependent width on out-of-fold rows")
    assert (found is not None) == (ratio > 1.0)
    if found is not None:
        assert found.severity == "problem"
        assert "depends on x2" in found.detail
        assert "x0" not in found.detail
        assert found.remedy == (
            "Set recalibrate=True and likelihood='auto', or try noise='input' (now 'learned'): noise that depends on "
            "the columns."
        )


def test_groups_are_found_only_if_they_differ_materially_and_beyond_chance() -> None:
    estimator = regressor(epochs=5, cv=1).fit(*line(80))
    cases = [
        (0.99, 0.70, 1e-6, "problem"),
        (0.97, 0.85, 1e-6, "advice"),
        (0.92, 0.89, 1e-9, None),
        (0.99, 0.7, 0.01, None),
    ]
    for wide, narrow, p, severity in cases:
        groups = (CoverageGroup("-2 to 0", 150.0, wide, 0.7, 2.0), CoverageGroup("0 to 2", 150.0, narrow, 1.4, 2.0))
        one = ConditionalCoverage("t0", "age", "numeric", p, groups)
        evaluation = dataclasses.replace(scored("new.csv", -0.5, 0.1), conditional=(one,))
        found = [f for f in diagnose(estimator, [evaluation]) if f.title == "Row-dependent width on new.csv"]
        assert [f.severity for f in found] == ([severity] if severity else [])
        if found:
            assert f"{wide:.1%} of the 150 rows with age -2 to 0 (too wide)" in found[0].detail
            assert f"{narrow:.1%} of the 150 rows with 0 to 2 (too narrow)" in found[0].detail
    close = tuple(dataclasses.replace(group, size=size) for group, size in zip(one.groups, (0.9, 1.2), strict=True))
    evaluation = dataclasses.replace(evaluation, conditional=(dataclasses.replace(one, p=1e-9, groups=close),))
    assert not [f for f in diagnose(estimator, [evaluation]) if "width" in f.title]  # as by an error of the mean
    local = regressor(epochs=5, cv=1, noise="input").fit(*line(80))
    evaluation = dataclasses.replace(evaluation, conditional=(dataclasses.replace(one, p=1e-9),))
    remedies = [f.remedy for f in diagnose(local, [evaluation]) if "width" in f.title]
    assert remedies
    assert "noise=" not in remedies[0]


def test_calibrated_forecasts_are_rarely_found_to_have_row_dependent_widths() -> None:
    rng, found = np.random.default_rng(0), 0
    for _ in range(150):
        mean, width = rng.normal(size=(2, 200, 1))
        ends = {"low": mean - np.exp(width), "high": mean + np.exp(width)}
        table = pd.DataFrame(rng.normal(size=(200, 4)), columns=list("abcd")).assign(kind=rng.choice(list("xyz"), 200))
        cdf = rng.random((200, 1))
        groups = coverage_by_group(fit_schema(table), table, ("y",), mean=mean, cdf=cdf, weight=None, **ends)
        assert len(groups) == 7
        found += min(group.p for group in groups) < 0.05
    assert found <= 0.05 * 150 + 4.0 * math.sqrt(150 * 0.05 * 0.95)


def test_every_rule_is_asked() -> None:
    source = inspect.getsource(doctor)
    written = set(re.findall(r"^def (_\w+)\(summary: FitSummary\) -> Iterator\[Finding\]", source, re.M))
    written |= {"find_ordered_rows", "find_last_rows"}
    assert written == {rule.__name__ for rule in (*doctor._RULES, *doctor._OF_TRAINING)}
