"""Options chosen by a short training on the same folds."""

import functools
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import KFold

from fathomless import UnboundedDepthClassifier, UnboundedDepthRegressor, load
from fathomless.estimators import strategies, trials
from fathomless.estimators.trials import Attempt, RowScores, choose, describe, join_folds, shorten
from fathomless.estimators.values import CheckpointOptions
from fathomless.families.depth.report import page
from fathomless.inference.runs.limits import TimeLimit
from fathomless.inference.runs.run import Run
from fathomless.inference.variational.training import Training
from fathomless.posterior.ensemble import list_members
from fathomless.posterior.fit_diagnostics import Trial
from fathomless.system.errors import ConvergenceWarning, PausedError

SHORT: dict[str, Any] = {
    **{"epochs": 600, "width": 16, "cv": 3, "random_state": 0, "recalibrate": False},
    "numbers": "plain",  # trials of the prior alone; those of the encoding are below
}
OPTIONS = [{"weight_prior": 1.0}, {"weight_prior": "columns"}]

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")  # fits are short


def planted(rows: int, noise: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 3 + noise))
    return X, np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.2 * rng.normal(size=rows)


def scores(values: Any, rows: Any = None, weight: Any = None) -> RowScores:
    values = torch.as_tensor(values, dtype=torch.float64)
    rows = torch.arange(len(values)) if rows is None else torch.as_tensor(rows)
    return RowScores(rows, values, None if weight is None else torch.as_tensor(weight, dtype=torch.float64))


def compare(options: Any, scores: Any, group: Any = None) -> tuple[Trial, ...]:
    """Describe trials with given scores, of which the best one is chosen."""
    attempts = [Attempt(*pair) for pair in zip(options, scores, strict=True)]
    return describe(attempts, choose(attempts, group), group)


@pytest.fixture(scope="module")
def fitted() -> UnboundedDepthRegressor:
    return UnboundedDepthRegressor(**SHORT).fit(*planted(240, 12))


@pytest.fixture(scope="module")
def scaled() -> UnboundedDepthRegressor:
    """Fit without elimination of columns, whose prior has scales for columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strategies, "eliminate", lambda *given: [])
        return UnboundedDepthRegressor(**SHORT).fit(*planted(240, 12))


@pytest.fixture
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow trials of few steps, since their choice does not matter."""
    monkeypatch.setattr(trials, "_FEWEST_STEPS", 1)


def assert_same_networks(one: Any, other: Any) -> None:
    for a, b in zip(list_members(one.model_), list_members(other.model_), strict=True):
        values = zip(a.state_dict().items(), b.state_dict().items(), strict=True)
        assert all(name == name_b and torch.equal(value, value_b) for (name, value), (name_b, value_b) in values)


def test_trials_that_do_not_fit_into_the_time_are_left_out(
    fitted: UnboundedDepthRegressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimeLimit, "allows", lambda self, seconds: seconds == 0.0)  # the first one alone
    estimator = UnboundedDepthRegressor(**SHORT, minutes=1e4)
    with pytest.warns(ConvergenceWarning, match=r"minutes=10000 left out short trainings that compare options; more"):
        estimator.fit(*planted(240, 12))
    assert len(fitted.trials_) > 2
    assert [(trial["options"], trial["chosen"]) for trial in estimator.trials_] == [(OPTIONS[0], True)]
    assert estimator.n_iter_ > 100


def test_a_trial_that_is_too_slow_is_stopped_and_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, "_TRIALS", 1e-9)
    seen: list[int] = []
    estimator = UnboundedDepthRegressor(**SHORT, minutes=1e4, callbacks=[lambda run: seen.append(run.epoch)])
    with pytest.warns(ConvergenceWarning, match="left out short trainings that compare options; more"):
        estimator.fit(*planted(240, 12))
    assert len(estimator.trials_) == 0
    assert seen[-1] == estimator.n_iter_ > 100
    same = UnboundedDepthRegressor(**{**SHORT, "weight_prior": 1.0}).fit(*planted(240, 12))
    assert_same_networks(estimator, same)


# ---- the comparison


def test_gains_are_paired_means_with_their_errors() -> None:
    rng = np.random.default_rng(0)
    first, other, weight = rng.normal(size=40), rng.normal(size=40), rng.uniform(0.5, 2.0, 40)
    _, trial = compare(OPTIONS, [scores(first, weight=weight), scores(other, weight=weight)])
    mean = np.average(other - first, weights=weight)
    assert trial.gain == pytest.approx(mean)
    assert trial.error == pytest.approx(np.sqrt(np.sum((weight * (other - first - mean)) ** 2)) / weight.sum())


def test_rows_of_a_group_count_as_one_for_the_error() -> None:
    """Copies of every row in one group give the error of the rows without copies."""
    rng = np.random.default_rng(1)
    values, group = rng.normal(size=30), torch.arange(30).repeat_interleave(4)
    _, alone = compare(OPTIONS, [scores(np.zeros(30)), scores(values)])
    _, copies = compare(OPTIONS, [scores(np.zeros(120)), scores(values.repeat(4))], group)
    _, apart = compare(OPTIONS, [scores(np.zeros(120)), scores(values.repeat(4))])
    assert copies.gain == pytest.approx(alone.gain)
    assert copies.error == pytest.approx(alone.error)
    assert apart.error == pytest.approx(0.5 * alone.error)
    _, part = compare(OPTIONS, [scores(np.zeros(60), rows=range(60)), scores(values.repeat(2), rows=range(60))], group)
    assert part.error > 0.0


@given(st.floats(-1.0, 1.0), st.integers(0, 100))
def test_another_trial_needs_a_gain_of_two_standard_errors(shift: float, seed: int) -> None:
    noise = np.random.default_rng(seed).normal(size=30)
    trials = compare(OPTIONS, [scores(np.zeros(30)), scores(shift + noise)])
    assert [trial.chosen for trial in trials].count(True) == 1
    assert trials[1].chosen == (trials[1].gain > max(2.0 * trials[1].error, 0.01))


def test_the_best_of_several_trials_is_chosen() -> None:
    options = [{"width": w} for w in (1, 2, 3)]
    trials = compare(options, [scores(np.zeros(9)), scores(np.full(9, 0.1)), scores(np.full(9, 0.2))])
    assert [trial.chosen for trial in trials] == [False, False, True]
    assert [trial.options for trial in trials] == options


def test_negligible_gains_change_nothing() -> None:
    assert not compare(OPTIONS, [scores(np.zeros(9)), scores(np.full(9, 0.009))])[1].chosen


def test_trials_that_diverged_are_left_out() -> None:
    rows = scores(np.zeros(4))
    (alone,) = compare(OPTIONS, [rows, None])
    assert alone.chosen
    bad = scores([0.0, 1.0, -math.inf, 1.0])
    assert [trial.chosen for trial in compare(OPTIONS, [rows, bad])] == [True, False]


def test_only_common_rows_are_compared() -> None:
    first = scores([0.0, 1.0, 2.0, 3.0], rows=[0, 1, 2, 3])
    other = scores([2.5, 9.0], rows=[2, 7])
    assert compare(OPTIONS, [first, other])[1].gain == pytest.approx(0.5)
    assert not compare(OPTIONS, [first, scores([5.0], rows=[9])])[1].chosen


@given(st.integers(1, 20), st.integers(0, 50))
def test_folds_are_merged_to_five(count: int, seed: int) -> None:
    folds = torch.from_numpy(np.random.default_rng(seed).integers(-1, count, (1, 200)))
    folds[0, :count] = torch.arange(count)
    merged = join_folds(folds)
    assert int(merged.max()) + 1 == min(count, 5)
    assert torch.equal(merged < 0, folds < 0)
    for k in range(count):  # a fold stays whole
        assert len(merged[folds == k].unique()) == 1


@given(st.integers(1, 5000), st.integers(1, 200_000))
def test_trials_are_short(epochs: int, rows: int) -> None:
    training = shorten(Training(epochs=epochs, batch_size=256, evaluate_every=8), rows)
    steps = math.ceil(rows / 256)
    if training is None:
        assert min(0.5 * epochs, math.ceil(500 / steps)) * steps < 250 + steps
        return
    assert 1 <= training.epochs <= max(1, round(0.5 * epochs))
    assert 250 <= training.epochs * steps < 500 + steps
    assert training.evaluate_every <= training.epochs


def test_short_fits_have_no_trials() -> None:
    assert shorten(Training(epochs=490, batch_size=256), 200) is None
    assert shorten(Training(epochs=500, batch_size=256), 200) is not None
    X, y = planted(240, 12)
    assert UnboundedDepthRegressor(**{**SHORT, "epochs": 490}).fit(X, y).trials_ == []


# ---- fits


def test_a_table_with_columns_of_noise_has_scales_for_columns(
    fitted: UnboundedDepthRegressor, scaled: UnboundedDepthRegressor
) -> None:
    first, columns = fitted.trials_[:2]
    assert first == {"options": {"weight_prior": 1.0}, "gain": 0.0, "error": 0.0, "chosen": False}
    assert columns["options"] == {"weight_prior": "columns"}
    assert columns["gain"] > 2.0 * columns["error"] > 0.0
    assert fitted.get_params()["weight_prior"] == "auto"
    assert scaled.trials_ == [first, {**columns, "chosen": True}]  # the selection is in test_selection
    assert_same_networks(scaled, UnboundedDepthRegressor(**SHORT, weight_prior="columns").fit(*planted(240, 12)))


def test_a_target_without_information_keeps_the_first_prior() -> None:
    X, _ = planted(200, 3)
    y = np.random.default_rng(7).normal(size=200)
    fitted = UnboundedDepthRegressor(**SHORT).fit(X, y)
    assert fitted.trials_[0]["chosen"]
    assert not any(trial["chosen"] for trial in fitted.trials_[1:])
    assert fitted.columns_used_ == {}
    assert_same_networks(fitted, UnboundedDepthRegressor(**SHORT, weight_prior=1.0).fit(X, y))


def test_another_seed_makes_the_same_choice(fitted: UnboundedDepthRegressor) -> None:
    again = UnboundedDepthRegressor(**{**SHORT, "random_state": 5}).fit(*planted(240, 12))
    assert [trial["chosen"] for trial in again.trials_] == [trial["chosen"] for trial in fitted.trials_]
    gains = [found.trials_[1]["gain"] for found in (again, fitted)]
    errors = [found.trials_[1]["error"] for found in (again, fitted)]
    assert abs(gains[0] - gains[1]) < 3.0 * math.hypot(*errors)


def test_saved_fits_keep_their_trials_and_the_chosen_prior(scaled: UnboundedDepthRegressor, tmp_path: Any) -> None:
    again = load(scaled.save(tmp_path / "model"))
    assert again.trials_ == scaled.trials_
    assert all(member.weight_prior.columns for member in list_members(again.model_))
    X, _ = planted(20, 12, seed=1)
    assert np.array_equal(again.predict(X), scaled.predict(X))


def test_networks_that_continue_keep_the_chosen_prior(scaled: UnboundedDepthRegressor, tmp_path: Any) -> None:
    X, y = planted(40, 12, seed=2)
    again = load(scaled.save(tmp_path / "model")).set_params(cv="auto").partial_fit(X, y)
    assert again.trials_ == scaled.trials_
    for kept in (again, load(again.save(tmp_path / "continued"))):
        assert all(member.weight_prior.columns for member in list_members(kept.model_))


@pytest.mark.usefixtures("few_steps")
def test_trials_do_not_warn() -> None:
    """The warnings are those of a fit with the chosen prior."""
    X, y = planted(150, 2)
    options = {**SHORT, "epochs": 40, "width": 8, "max_depth": 2}

    def warned(prior: Any) -> tuple[UnboundedDepthRegressor, list[str]]:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            fitted = UnboundedDepthRegressor(**options, weight_prior=prior).fit(X, y)
        return fitted, [str(warning.message) for warning in seen]

    fitted, found = warned("auto")
    (chosen,) = [trial["options"]["weight_prior"] for trial in fitted.trials_ if trial["chosen"]]
    assert found == warned(chosen)[1]


def test_a_pause_after_the_trials_resumes_to_the_same_bytes(fitted: UnboundedDepthRegressor, tmp_path: Any) -> None:
    seen = []

    def pause(run: Run) -> None:
        seen.append(run.epoch)
        run.pause = len(seen) == 16

    options = {**SHORT, "checkpoint": CheckpointOptions(tmp_path / "c", seconds=0.0)}
    with pytest.raises(PausedError):
        UnboundedDepthRegressor(**options, callbacks=[pause]).fit(*planted(240, 12))
    assert seen[0] <= 8  # callbacks are not called in trials
    assert (tmp_path / "c" / "trial-1").exists()
    again = UnboundedDepthRegressor(**options).fit(*planted(240, 12))
    assert again.trials_ == fitted.trials_
    assert_same_networks(again, fitted)


def test_the_report_shows_trials(fitted: UnboundedDepthRegressor) -> None:
    tables = [group.table for group in page(fitted).groups]
    trials, used = tables[-2:]
    assert trials is not None
    assert used is not None
    assert [row[0] for row in trials.rows[:3]] == [
        "weight_prior 1.0",
        "weight_prior columns",
        "weight_prior columns; 8 columns",
    ]
    assert [row[-1] for row in trials.rows].count("yes") == 1
    assert used.caption == f"{len(used.rows)} of 15 columns are used by at least one network"
    shares = {name: f"{share:.0%}" for name, share in fitted.columns_used_.items() if share > 0.0}
    assert {
        name: share.replace("\u202f", "").replace("\xa0", "").replace(" ", "") for name, share in used.rows
    } == shares


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize(
    "options",
    [
        {"weight_prior": 0.5},
        {"weight_prior": "columns"},
        {"cv": 1},
        {"architecture": "transformer"},
        {"weights": "meanfield", "cv": 1},
        {"depth_law": 2},
        {"structure_from": "elbo", "cv": 3},
        {"candidates": {"activation": ["relu", "tanh"]}},
    ],
)
def test_fits_without_trials(options: dict[str, Any]) -> None:
    X, y = planted(80, 1)
    given = {**SHORT, "epochs": 4, "width": 8, **options}
    assert UnboundedDepthRegressor(**given).fit(X, y).trials_ == []


# ---- the encoding of columns of numbers


def with_steps(rows: int, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 4))
    return X, np.sign(X[:, 0]) + (X[:, 1] > 0.5) * X[:, 2] + 0.1 * rng.normal(size=rows)


BOTH: dict[str, Any] = {**SHORT, "numbers": "auto"}


@pytest.mark.parametrize("steps", [True, False])
def test_unseen_rows_choose_bins_for_steps(steps: bool, tmp_path: Any) -> None:
    """The fit has the bytes of that with the chosen options, before and after it is saved."""
    X, y = with_steps(240)
    y = y if steps else np.random.default_rng(3).normal(size=240)
    fitted = UnboundedDepthRegressor(**BOTH).fit(X, y)
    assert [trial["options"] for trial in fitted.trials_[:3]] == [
        {"numbers": "plain", "weight_prior": 1.0},
        {"numbers": "plain", "weight_prior": "columns"},
        {"numbers": "binned", "weight_prior": 1.0},
    ]
    (chosen,) = [trial["options"] for trial in fitted.trials_ if trial["chosen"]]
    assert chosen["numbers"] == ("binned" if steps else "plain")
    assert any(column.bins is not None for column in fitted.schema_.columns) == steps
    assert fitted.n_features_in_ == 4
    given = UnboundedDepthRegressor(**{**BOTH, **chosen}).fit(X, y)
    assert given.schema_ == fitted.schema_
    assert_same_networks(fitted, given)
    again = load(fitted.save(tmp_path / "model"))
    assert np.array_equal(again.predict(X), given.predict(X))


@pytest.mark.usefixtures("few_steps")
def test_bins_are_compared_with_a_given_prior() -> None:
    X, y = with_steps(150)
    fitted = UnboundedDepthRegressor(**{**BOTH, "epochs": 8}, weight_prior=0.5).fit(X, y)
    assert [trial["options"] for trial in fitted.trials_] == [{"numbers": "plain"}, {"numbers": "binned"}]


@pytest.mark.usefixtures("few_steps")
def test_a_single_column_has_its_encoding_compared() -> None:
    X, y = with_steps(150)
    fitted = UnboundedDepthRegressor(**{**BOTH, "epochs": 8}).fit(X[:, :1], y)
    assert [trial["options"] for trial in fitted.trials_] == [{"numbers": "plain"}, {"numbers": "binned"}]


@pytest.mark.usefixtures("few_steps")
def test_the_logarithm_of_a_target_and_its_atoms_have_the_chosen_encoding() -> None:
    """Both fits of a transform have trials, and the small networks of an atom see the features of the others."""
    X, y = with_steps(300)
    skewed = np.where(X[:, 3] > 0.8, 0.0, np.exp(2.0 * y))
    options = {**BOTH, "recalibrate": True, "epochs": 200}
    fitted = UnboundedDepthRegressor(**options).fit(X, skewed)
    assert fitted.fit_diagnostics_.transform is not None
    assert fitted.fit_diagnostics_.transform.used
    assert fitted.hurdle_ is not None
    assert len(fitted.trials_) >= 3
    (chosen,) = [trial["options"] for trial in fitted.trials_ if trial["chosen"]]
    assert chosen["numbers"] == "binned"
    given = UnboundedDepthRegressor(**{**options, **chosen}).fit(X, skewed)
    assert given.schema_ == fitted.schema_
    assert np.array_equal(given.predict_dist(X).ppf(0.4), fitted.predict_dist(X).ppf(0.4))


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize("numbers", ["plain", "binned"])
@pytest.mark.parametrize("case", ["equal", "weighted", "groups", "splitter", "splits"])
def test_the_fit_is_that_of_the_chosen_encoding(case: str, numbers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds and equal rows are those of the plain encoding."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 5, (160, 2)).astype(float)
    y = np.sign(X[:, 0] - 2.0) + 0.3 * rng.normal(size=160).round()
    fit_options: dict[str, Any] = {}
    options = {**BOTH, "epochs": 8, "weight_prior": 1.0}
    if case == "weighted":
        fit_options["sample_weight"] = rng.integers(0, 3, 160)
    elif case == "groups":
        fit_options["groups"] = rng.integers(0, 40, 160)
    elif case != "equal":
        options["cv"] = FirstColumns() if case == "splitter" else KFold(3)
    monkeypatch.setattr(strategies, "choose", functools.partial(choose_numbers, numbers))
    fitted = UnboundedDepthRegressor(**options).fit(X, y, **fit_options)
    assert any(column.bins is not None for column in fitted.schema_.columns) == (numbers == "binned")
    given = UnboundedDepthRegressor(**{**options, "numbers": numbers}).fit(X, y, **fit_options)
    assert_same_networks(fitted, given)
    assert fitted.fold_ is not None
    assert np.array_equal(fitted.fold_, given.fold_)
    assert np.array_equal(fitted.predict(X), given.predict(X))


def choose_numbers(numbers: str, attempts: Any, group: Any = None) -> Attempt:
    """Choose the trial with an encoding, whatever the scores."""
    return next(attempt for attempt in attempts if attempt.options["numbers"] == numbers)


class FirstColumns:
    """Splitter by the first two encoded columns."""

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Any:
        rows = np.arange(len(X))
        for k in range(3):
            held = np.sum(X[:, :2] > 0.0, axis=1) == k
            yield rows[~held], rows[held]

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        return 3


@pytest.mark.usefixtures("few_steps")
def test_tables_without_numbers_to_bin_have_no_such_trial() -> None:
    X, y = with_steps(150)
    fitted = UnboundedDepthRegressor(**{**BOTH, "epochs": 8}).fit(np.sign(X), y)
    assert [trial["options"] for trial in fitted.trials_[:2]] == OPTIONS
    assert all(trial["options"] in OPTIONS for trial in fitted.trials_)


@pytest.mark.usefixtures("few_steps")
@pytest.mark.parametrize(
    "options", [{"cv": 1}, {"structure_from": "elbo", "cv": 3}, {"candidates": {"activation": ["relu", "tanh"]}}]
)
def test_fits_without_trials_have_no_bins(options: dict[str, Any]) -> None:
    X, y = with_steps(150)
    fitted = UnboundedDepthRegressor(**{**BOTH, "epochs": 4, "width": 8, **options}).fit(X, y)
    assert fitted.trials_ == []
    assert all(column.bins is None for column in fitted.schema_.columns)


@pytest.mark.usefixtures("few_steps")
def test_a_single_column_has_no_trials_and_classes_have() -> None:
    X, y = planted(90, 1)
    options = {name: value for name, value in SHORT.items() if name != "recalibrate"} | {"epochs": 8}
    assert UnboundedDepthClassifier(**options).fit(X[:, :1], y > 0.0).trials_ == []
    assert len(UnboundedDepthClassifier(**options).fit(X, y > 0.0).trials_) >= 2
