"""Estimators with cross-fitted networks: structure, noise and score from out-of-fold rows."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fathomless import Folds, Restarts, UnboundedDepthClassifier, UnboundedDepthRegressor, load
from fathomless.estimators.evaluation import evaluate
from fathomless.estimators.problem import Problem
from fathomless.estimators.values import ELBO, Adam, CheckpointOptions
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.runs.run import Run
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.laws import StickBreaking
from fathomless.posterior.likelihoods import Categorical, Gaussian, StudentT
from fathomless.system.errors import DataError, DataWarning, PausedError
from fathomless.system.rng import fold_in
from quick_fits import Array, classes, problem

SHORT: dict[str, Any] = {"epochs": 30, "width": 8, "random_state": 0}


def regressor(**options: Any) -> UnboundedDepthRegressor:
    return UnboundedDepthRegressor(**{**SHORT, "cv": 4, **options})


def classifier(**options: Any) -> UnboundedDepthClassifier:
    return UnboundedDepthClassifier(**{**SHORT, "cv": 4, **options})


pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")  # fits are short


def test_every_row_has_a_fold_and_a_score() -> None:
    X, y = problem(61)
    fitted = regressor(cv=Folds(n_splits=4, n_repeats=2), epochs=6).fit(X, y)
    assert fitted.fold_ is not None
    assert fitted.fold_.shape == (2, 61)
    assert set(fitted.fold_.ravel()) == {0, 1, 2, 3}
    assert isinstance(fitted.model_, Ensemble)
    assert len(fitted.model_.members) == 8
    assert fitted.held_out_.tolist() == list(range(61))
    assert fitted.fit_diagnostics_.structure.rows == 61


def test_start_does_not_matter() -> None:
    X, y = problem(60)
    found = [regressor(depth_law=StickBreaking(start), epochs=12).fit(X, y) for start in (1.0, 3.0, 8.0)]
    for other in found[1:]:
        assert other.depth_posterior_ == found[0].depth_posterior_
        states = found[0].model_.state_dict(), other.model_.state_dict()
        assert set(states[0]) == set(states[1])
        assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_support_is_common_to_all_members() -> None:
    X, y = problem(60)
    fitted = regressor().fit(X, y)
    laws = [m.depth_posterior() for m in fitted.model_.modules() if isinstance(m, UnboundedDepth)]
    assert len(laws) == 4
    assert all(law == fitted.depth_posterior_ for law in laws)
    assert set(fitted.depth_posterior_error_) == set(fitted.depth_posterior_) == set(fitted.depth_posterior_single_)
    assert math.isclose(sum(fitted.depth_posterior_single_.values()), 1.0)


def test_out_of_fold_predictions_are_of_networks_that_have_not_seen_the_row() -> None:
    X, y = problem(60)
    fitted = regressor().fit(X, y)
    assert fitted.fold_ is not None
    other = fitted.predict_dist(X, fold=fitted.fold_)
    for i in (0, 11, 59):
        member = fitted.model_.members[int(fitted.fold_[0, i])]  # type: ignore[union-attr, operator]
        x = torch.as_tensor(fitted._encode(fitted.schema_, X[i : i + 1]), dtype=fitted.model_.dtype)
        mean = float((member.draw(x).log_weight.exp() @ member.draw(x).f[:, 0, 0]).detach())  # type: ignore[operator]
        shift, scale = fitted.target_.mean[0], fitted.target_.scale[0]  # type: ignore[union-attr]
        assert other.network_mixture.mean[i].item() == pytest.approx(shift + scale * mean)
    with pytest.raises(DataError, match="fold has shape"):
        fitted.predict_dist(X[:3], fold=fitted.fold_)
    with pytest.raises(DataError, match="no networks were cross-fitted"):
        regressor(cv=1).fit(X, y).predict_dist(X, fold=fitted.fold_)


def test_one_fold_has_nothing_to_repeat() -> None:
    X, y = problem(40)
    with pytest.raises(DataError, match="n_repeats=2 was given with one fold"):
        regressor(cv=Folds(n_splits=1, n_repeats=2), epochs=2).fit(X, y)


@pytest.mark.parametrize("cv", [4, Folds(n_splits=3, n_repeats=2)])
def test_folds_of_other_rows_are_refused(cv: Any, tmp_path: Path) -> None:
    X, y = problem(61)
    X[7], X[20, 0] = X[30], -0.0  # one row twice, with different targets
    weight = np.where(np.arange(61) == 11, 0.0, 1.0)
    fitted = regressor(cv=cv, epochs=4, numbers="binned").fit(X, y, sample_weight=weight)
    fold = fitted.fold_
    assert fold is not None
    known = np.flatnonzero(weight)
    p = fitted.predict_dist(X[known], fold=fold[:, known])
    order = np.random.default_rng(0).permutation(known)
    again = load(fitted.save(tmp_path / "fit"))
    for estimator in (fitted, again, again.predictor_):
        for rows in (known, order, order[:13], known[::-2]):
            found = estimator.predict_dist(X[rows], fold=fold[:, rows])
            torch.testing.assert_close(found.mean, p.mean[torch.from_numpy(np.searchsorted(known, rows))])
        with pytest.raises(DataError, match=r"\d+ of 60 rows .* have folds of other rows, so that networks would"):
            estimator.predict_dist(X[order], fold=fold[:, known])
    fitted.predict_dist(X[known] + 1.0, fold=fold[:, known])  # new rows are no rows of the fit


def test_validation_score_is_in_units_of_the_target() -> None:
    X, y = problem(80)
    one, thousand = (regressor(epochs=60).fit(X, scale * y).validation_score_ for scale in (1.0, 1000.0))
    assert one is not None
    assert thousand is not None
    assert one - thousand == pytest.approx(math.log(1000.0), abs=1e-6)


def test_validation_score_is_near_that_of_single_members_on_new_rows() -> None:
    X, y = problem(600)
    fitted = regressor(epochs=80).fit(X[:200], y[:200])
    shares = [fitted.predict_dist(X[200:], fold=np.full((1, 400), k)).log_prob(y[200:]).mean() for k in range(4)]
    assert fitted.validation_score_ == pytest.approx(float(np.mean(shares)), abs=0.15)


def test_choice_of_noise_is_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 1))
    heavy = X[:, 0] + 0.1 * rng.standard_t(2.2, size=200)
    fitted = regressor(epochs=80, learning_rate=0.03).fit(X, heavy)
    assert isinstance(fitted.likelihood_, StudentT)
    assert 2.0 < fitted.likelihood_.df().item() < 8.0
    again = load(fitted.save(tmp_path / "kept"))
    assert isinstance(again.likelihood_, StudentT)
    assert torch.equal(again.predict_dist(X).log_prob(heavy), fitted.predict_dist(X).log_prob(heavy))  # type: ignore[attr-defined]
    assert again.fit_diagnostics_ == fitted.fit_diagnostics_
    assert again.structure_ == fitted.structure_
    assert again.fold_ is not None
    assert (again.fold_ == fitted.fold_).all()
    light = X[:, 0] + 0.3 * rng.uniform(-1.0, 1.0, size=200)
    assert isinstance(regressor(epochs=150, learning_rate=0.02).fit(X, light).likelihood_, Gaussian)


def test_options_of_one_network_win() -> None:
    X, y = problem(80)
    for options in ({"validation_fraction": 0.2}, {"n_restarts": 2}, {"warm_start": True}, {"structure_from": "elbo"}):
        fitted = UnboundedDepthRegressor(**SHORT, **options).fit(X, y)  # type: ignore[arg-type]
        assert fitted.fold_ is None
    with pytest.raises(DataError, match="requires a single network"):
        regressor(validation_fraction=0.2).fit(X, y)
    with pytest.raises(DataError, match="at most that number"):
        regressor(cv=100).fit(X, y)
    with pytest.raises(DataError, match="none of the 20 rows are held out"):
        UnboundedDepthRegressor(**SHORT, cv=1, structure_from="held_out").fit(X[:20], y[:20])
    with pytest.raises(DataError, match="groups were given"):
        UnboundedDepthRegressor(**SHORT, cv=1, validation_fraction=0.0).fit(X, y, groups=np.arange(80) % 7)


@pytest.mark.filterwarnings("ignore:.* given; fewer than 12:fathomless.system.errors.DataWarning")
def test_automatic_members_follow_the_rows() -> None:
    X, y = problem(40)
    options: dict[str, Any] = {**SHORT, "epochs": 4}
    assert UnboundedDepthRegressor(**options).fit(X[:3], y[:3]).fold_ is None
    for rows, members in ((4, 2), (8, 2), (11, 3), (12, 4), (20, 6), (40, 10)):
        fitted = UnboundedDepthRegressor(**options).fit(X[:rows], y[:rows])
        assert fitted.fold_ is not None
        assert fitted.fold_.max() + 1 == members


def test_a_network_that_diverged_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = problem(60)
    whole = regressor().fit(X, y)
    build = Problem.start

    def broken(self: Any, prepared: Any, seed: int) -> Any:
        model, likelihood = build(self, prepared, seed)
        if seed == fold_in(prepared.seed, "restart", 1):
            with torch.no_grad():
                next(model.parameters()).fill_(math.nan)
        return model, likelihood

    monkeypatch.setattr(Problem, "start", broken)
    rest = regressor().fit(X, y)
    assert whole.fold_ is not None
    assert rest.fold_ is not None
    assert isinstance(rest.model_, Ensemble)
    assert len(rest.model_.members) == 3
    lost = whole.fold_[0] == 1
    assert np.array_equal(rest.fold_[0] == -1, lost)
    assert np.array_equal(rest.fold_[0][~lost], whole.fold_[0][~lost] - (whole.fold_[0][~lost] > 1))
    for k, member in enumerate(rest.model_.members):
        alone = copy.copy(rest)
        alone.model_, alone.fold_, alone.recalibration_ = member, None, None
        x = rest._encode(rest.schema_, X)
        out = rest.predict_encoded(x, fold=np.full((1, len(X)), k))
        assert np.allclose(alone.predict(X), out.network_mixture.mean.numpy().ravel(), atol=1e-9)
    rest.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert np.array_equal(again.predict(X), rest.predict(X))


@pytest.mark.parametrize(
    "options", [{}, {"cv": Folds(n_splits=2, n_repeats=2)}, {"depth_law": "stick_breaking"}], ids=str
)
def test_several_networks_may_share_a_law_that_the_bound_finds(options: dict[str, Any]) -> None:
    X, y = problem(40)
    fitted = regressor(**{"structure_from": "elbo", "epochs": 5, "cv": 2, **options}).fit(X, y)
    assert isinstance(fitted.model_, Ensemble)
    first, *rest = [dict(member.state_dict()) for member in fitted.model_.members]
    assert len(rest) == (4 if "cv" in options else 2) - 1
    for other in rest:
        assert all(torch.equal(first[name], other[name]) for name in first if name.startswith("law"))
    assert np.isfinite(fitted.predict(X)).all()


def test_groups_and_given_folds_are_used() -> None:
    X, y = problem(60)
    groups = np.array([f"patient {i // 3}" for i in range(60)])
    folds = regressor().fit(X, y, groups=groups).fold_
    assert folds is not None
    assert all(len(set(folds[0, groups == name])) == 1 for name in np.unique(groups))
    own = np.arange(60) % 3
    given = regressor(cv=own).fit(X, y).fold_
    assert given is not None
    assert (given[0] == own).all()
    some = regressor(cv=own).fit(X, y, sample_weight=(np.arange(60) >= 10) * 1.0).fold_
    assert some is not None
    assert (some[0] == np.where(np.arange(60) >= 10, own, -1)).all()
    blocks = regressor(cv=Folds(n_splits=4, order="blocks")).fit(X, y).fold_
    assert blocks is not None
    assert (np.diff(blocks[0]) >= 0).all()


def test_weight_equals_repetition() -> None:
    X, y = problem(50)
    weight = np.array([1.0, 2.0] * 25)
    twice = np.repeat(np.arange(50), weight.astype(int))
    heavy, repeated = regressor().fit(X, y, sample_weight=weight), regressor().fit(X[twice], y[twice])
    assert np.allclose(heavy.predict(X), repeated.predict(X), atol=1e-8)
    assert heavy.validation_score_ == pytest.approx(repeated.validation_score_, abs=1e-8)
    for depth, mass in heavy.depth_posterior_.items():
        assert repeated.depth_posterior_[depth] == pytest.approx(mass, abs=1e-7)


def test_rare_classes_are_known() -> None:
    X, y = classes(80, 2)
    y = y.copy()
    y[:2] = 7
    with pytest.warns(DataWarning, match="fewer than 3 distinct rows"):
        fitted = classifier().fit(X, y)
    assert fitted.fold_ is not None
    assert fitted.fold_[0, :2].tolist() == [-1, -1]
    assert fitted.predict_proba(X).shape == (80, 3)
    assert fitted.classes_.tolist() == [0, 1, 7]


def test_classes_have_one_temperature(tmp_path: Path) -> None:
    X, y = classes(80)
    fitted = classifier().fit(X, y)
    assert isinstance(fitted.likelihood_, Categorical)
    assert fitted.likelihood_.log_temperature is not None
    again = load(fitted.save(tmp_path / "kept"))
    assert np.array_equal(again.predict_proba(X), fitted.predict_proba(X))  # type: ignore[attr-defined]


def test_prediction_mixes_probabilities_of_members_and_depths() -> None:
    """The temperature is applied before the average."""
    X, y = classes(80)
    fitted = classifier().fit(X, y)
    x = torch.as_tensor(fitted._encode(fitted.schema_, X), dtype=fitted.model_.dtype)
    temperature = fitted.likelihood_.log_temperature.detach().exp().item()  # type: ignore[operator, union-attr]
    mean: Any = 0.0
    for member in fitted.model_.members:  # type: ignore[union-attr]
        drawn = member.draw(x)  # type: ignore[operator]
        each = (drawn.f.detach().double() / temperature).softmax(-1)
        mean = mean + (drawn.log_weight.detach().double().exp()[:, None, None] * each).sum(0) / 4.0
    assert np.allclose(fitted.predict_proba(X), mean.numpy(), atol=1e-9)


def test_class_cost_is_a_cost() -> None:
    X, y = classes(90)
    y = np.where(y == 0, "rare", "usual")
    plain = classifier().fit(X, y)
    dear = classifier(class_cost={"rare": 50.0}).fit(X, y)
    assert np.array_equal(plain.predict_proba(X), dear.predict_proba(X))
    assert (dear.predict(X) == "rare").sum() > (plain.predict(X) == "rare").sum()
    balanced = classifier(class_cost="balanced").fit(X, y)
    p, labels = balanced.predict_proba(X), balanced.classes_
    counts = np.array([(y == label).sum() for label in labels])
    assert (balanced.predict(X) == labels[(p / counts).argmax(1)]).all()
    for wrong in ({"none": 2.0}, {"rare": -1.0}, [1.0, 2.0]):
        with pytest.raises(DataError, match="class_cost"):
            classifier(class_cost=wrong).fit(X, y)


def test_several_targets_have_joint_densities() -> None:
    X, y = problem(60, targets=2)
    fitted = regressor().fit(X, y)
    assert fitted.predict(X).shape == (60, 2)  # type: ignore[union-attr]
    rows = fitted.predict_dist(X, fold=fitted.fold_).log_prob(y)
    assert rows.shape == (60,)


def test_restarts_are_judged_by_the_same_rows() -> None:
    X, y = problem(80)
    best = UnboundedDepthRegressor(**SHORT, n_restarts=3).fit(X, y)
    average = UnboundedDepthRegressor(**SHORT, n_restarts=Restarts(count=3, keep="average")).fit(X, y)
    assert isinstance(best.model_, UnboundedDepth)
    assert isinstance(average.model_, Ensemble)
    assert best.fit_diagnostics_.structure
    assert average.fit_diagnostics_.structure


def test_named_law_and_fixed_depth() -> None:
    X, y = problem(60)
    poisson = regressor(depth_law="poisson").fit(X, y)
    mass = poisson.depth_posterior_
    assert math.isclose(sum(mass.values()), 1.0, abs_tol=1e-9)
    fixed = regressor(depth_law=2).fit(X, y)
    assert fixed.depth_posterior_ == {2: 1.0}
    assert fixed.fold_ is not None
    assert fixed.validation_score_ is not None
    with pytest.warns(DataWarning, match="optimizer__schedule"):
        regressor(optimizer=Adam(schedule="constant")).fit(X, y)


def test_drawn_weights_keep_the_bound_by_default() -> None:
    X, y = problem(80)
    fitted = UnboundedDepthRegressor(**SHORT, weights="meanfield").fit(X, y)
    assert fitted.fold_ is None
    assert not fitted.fit_diagnostics_.structure
    rows = UnboundedDepthRegressor(**SHORT, weights="meanfield", structure_from="held_out").fit(X, y)
    assert rows.fit_diagnostics_.structure
    with pytest.raises(DataError, match="weights='map'"):
        UnboundedDepthRegressor(**SHORT, weights="meanfield", cv=3).fit(X, y)


def test_resume_is_bit_equal(tmp_path: Path) -> None:
    X, y = problem(60)

    def stop(run: Run) -> None:
        run.pause = run.epoch == 16

    whole = regressor().fit(X, y)
    with pytest.raises(PausedError):
        regressor(checkpoint=CheckpointOptions(tmp_path / "c", seconds=0.0), callbacks=[stop]).fit(X, y)
    again = regressor(checkpoint=CheckpointOptions(tmp_path / "c", seconds=0.0)).fit(X, y)
    assert np.array_equal(whole.predict(X), again.predict(X))
    assert whole.fit_diagnostics_ == again.fit_diagnostics_
    with pytest.raises(DataError, match="other data or other options"):
        regressor(checkpoint=tmp_path / "c", cv=3).fit(X, y)


def test_evaluation_out_of_fold_is_the_reported_score() -> None:
    X, y = problem(120)
    fitted = regressor(epochs=60).fit(X, y)
    found = evaluate(fitted, X, y, name="out-of-fold rows", fold=fitted.fold_)
    # the report refits law and noise without each row's fold, so it is a little lower
    assert fitted.validation_score_ is not None
    assert 0.0 < found.scores["log_likelihood"].value - fitted.validation_score_ < 0.15


def test_noise_of_the_average_is_narrower(tmp_path: Path) -> None:
    """Predictions have the noise of the average, and out-of-fold predictions that of single networks."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(100, 8))
    y = 10.0 * np.sin(np.pi * X[:, 0] * X[:, 1]) + 20.0 * (X[:, 2] - 0.5) ** 2 + 5.0 * X[:, 3] + rng.normal(size=100)
    fitted = regressor(epochs=200, cv=10, width=32).fit(X, y)
    (factor,) = fitted.fit_diagnostics_.narrowing
    assert 0.4 < factor < 0.99
    alone = fitted.predict_dist(X, fold=fitted.fold_)
    noise = fitted.predict_dist(X).uncertainty().noise
    assert torch.allclose(alone.uncertainty().noise * factor**2, noise, rtol=1e-5)
    again = load(fitted.save(tmp_path / "m"))
    assert torch.equal(again.predict_dist(X, fold=fitted.fold_).variance, alone.variance)
    assert not regressor(calibrate=False).fit(X[:60], y[:60]).fit_diagnostics_.narrowing


def test_the_average_of_classes_has_a_lower_temperature(tmp_path: Path) -> None:
    """Predictions have the temperature of the average, and out-of-fold predictions that of single networks."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, size=(160, 4))
    y = (np.floor(2.0 * X[:, 0]) + np.floor(X[:, 1])).astype(int) % 5
    fitted = UnboundedDepthClassifier(epochs=60, cv=5, width=32, random_state=0).fit(X, y)
    (factor,) = fitted.fit_diagnostics_.narrowing
    assert 0.3 < factor < 0.95
    single = copy.deepcopy(fitted)
    single.likelihood_ = fitted.likelihood_.widen(1.0 / factor)  # type: ignore[union-attr]
    single.fit_diagnostics_ = replace(fitted.fit_diagnostics_, narrowing=())
    assert np.mean(fitted.predict_proba(X).max(1)) > np.mean(single.predict_proba(X).max(1))
    alone = fitted.predict_dist(X, fold=fitted.fold_).probs
    torch.testing.assert_close(alone, single.predict_dist(X, fold=fitted.fold_).probs)
    again = load(fitted.save(tmp_path / "m"))
    assert torch.equal(again.predict_dist(X).probs, fitted.predict_dist(X).probs)
    assert torch.equal(again.predict_dist(X, fold=fitted.fold_).probs, alone)
    torch.testing.assert_close(fitted.to_module()(torch.as_tensor(X))["probabilities"].numpy(), fitted.predict_proba(X))


def loud(n: int = 60) -> tuple[Array, Array]:
    """Rows whose noise grows with the second column."""
    rng = np.random.default_rng(4)
    X = rng.uniform(-2.0, 2.0, (n, 2))
    return X, np.sin(X[:, 0]) + 0.1 * np.exp(0.5 * (X[:, 1] + 2.0)) * rng.normal(size=n)


@pytest.mark.parametrize(
    "options",
    [{"cv": 4}, {"cv": 1}, {"cv": 4, "last_layer": "laplace"}, {"cv": 1, "structure_from": "elbo"}],
    ids=str,
)
def test_predicted_noise_gets_a_factor(options: dict[str, Any], tmp_path: Path) -> None:
    """Held-out rows fit it; predictions of the average, and of single networks, have it after saving and loading."""
    X, y = loud()
    fitted = regressor(noise="input", epochs=120, width=16, **options).fit(X, y)
    log_factor = fitted.likelihood_.state_dict()["noise.log_factor"]
    assert bool((log_factor != 0.0).all())
    again = load(fitted.save(tmp_path / "m"))
    assert torch.equal(again.predict_dist(X).variance, fitted.predict_dist(X).variance)  # type: ignore[attr-defined]
    plain = regressor(noise="input", epochs=120, width=16, calibrate=False, **options).fit(X, y)
    assert "noise.log_factor" not in plain.likelihood_.state_dict()  # as in models saved before there was a factor
    restored = load(plain.save(tmp_path / "plain"))
    assert torch.equal(restored.predict_dist(X).variance, plain.predict_dist(X).variance)  # type: ignore[attr-defined]
    if options["cv"] == 4:
        (narrowing,) = fitted.fit_diagnostics_.narrowing
        assert 0.3 < narrowing <= 1.0
        alone = fitted.predict_dist(X, fold=fitted.fold_)
        assert torch.equal(again.predict_dist(X, fold=again.fold_).variance, alone.variance)  # type: ignore[attr-defined]
        wide = copy.deepcopy(fitted)
        wide.likelihood_.noise.rescale(torch.tensor([1.0 / narrowing]))  # type: ignore[operator, union-attr]
        whole = wide.predict_dist(X).uncertainty().noise
        assert torch.allclose(fitted.predict_dist(X).uncertainty().noise / narrowing**2, whole, rtol=1e-5)


@pytest.mark.parametrize("calibrate", [True, False])
@pytest.mark.parametrize("kind", [UnboundedDepthRegressor, UnboundedDepthClassifier])
def test_epochs_of_depth_are_scored_with_noise_that_suits_the_rows(kind: type[Any], calibrate: bool) -> None:
    """Noise learned on training rows is too small for held-out rows, unless the fit keeps it."""
    X, y = problem() if kind is UnboundedDepthRegressor else classes()
    searches: list[Any] = []
    options = {**SHORT, "cv": 4, "epochs": 3, "callbacks": [lambda run: searches.append(run.search)]}
    kind(**options, calibrate=calibrate).fit(X, y)
    assert {search.widened for search in searches} == {calibrate}


def test_noise_prior_shrinks_on_few_rows() -> None:
    """The fewer rows there are, the closer the scale stays to that of training."""
    from fathomless.inference.out_of_fold.crossfit import OutOfFold
    from fathomless.inference.out_of_fold.noise import fit_noise

    moved = []
    for n in (4, 40, 400):
        f, y = torch.zeros(1, n, 1, dtype=torch.float64), torch.ones(n, 1, dtype=torch.float64)
        seen = OutOfFold(f, torch.zeros(1, dtype=torch.float64), torch.zeros(1).long(), y, None, torch.arange(n))
        start = Gaussian(initial_noise=0.1).double()
        fitted = fit_noise(seen, start)
        moved.append(float((fitted.noise.log_scale() - start.noise.log_scale()).detach()))  # type: ignore[operator, union-attr]
    assert 0.0 < moved[0] < moved[1] < moved[2] < math.log(10.0)
    # stationary: n (1 − e^{-2 log σ}) + (log σ − log σ₀)/κ² = 0 at y = 1
    for n, change in zip((4, 40, 400), moved, strict=True):
        log_scale = change + math.log(0.1)
        assert n * (1.0 - math.exp(-2.0 * log_scale)) + change / 0.25 == pytest.approx(0.0, abs=1e-4)


def simulated(seed: int, n: int = 80) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, X[:, 0] + 0.5 * rng.normal(size=n)


def test_calibration_does_not_hurt_on_average() -> None:
    """On 6 tables of 80 rows, the mean change on new rows is within 0.05 nats."""
    gains = []
    for seed in range(6):
        X, y = simulated(seed)
        fresh = simulated(1000 + seed, 400)
        scores = [
            float(regressor(calibrate=c).fit(X, y).predict_dist(fresh[0]).log_prob(fresh[1]).mean())
            for c in (True, False)
        ]
        gains.append(scores[0] - scores[1])
    assert np.mean(gains) > -0.05


def test_a_warm_start_goes_on_in_the_focus() -> None:
    X, y = problem(120)
    options: dict[str, Any] = {**SHORT, "epochs": 60, "learning_rate": 0.02, "warm_start": True}
    first = UnboundedDepthRegressor(**options).fit(X, y)
    before, depths = first.validation_score_, set(first.depth_posterior_)
    assert before is not None
    again = first.fit(X, y)
    assert again.n_iter_ <= 24  # the focus alone
    assert set(again.depth_posterior_) <= depths
    assert again.validation_score_ is not None
    assert again.validation_score_ > before - 0.1


#: What the evidence bound alone led to before rows decided: bound, score, mean depth and mean square of predictions.
BEFORE = {
    ("regressor", "default"): (-129.07820376196184, -1.9730819625242448, 1.7474661151995607, 0.19847750528771219),
    ("regressor", "paper"): (-87.47544468926101, -1.5856326232811082, 0.8206988161680941, 0.570965897768108),
    ("classifier", "default"): (-96.77362036011829, -1.111343330133542, 1.734176486208392, 0.12410927359078908),
    ("classifier", "paper"): (-88.77287136967358, -1.0809477591420327, 1.0560213417399609, 0.11395023002573854),
}


@pytest.mark.parametrize(("kind", "preset"), BEFORE)
def test_paper_preset_is_untouched(kind: str, preset: str) -> None:
    """With structure from the evidence bound, fits equal those of version 0.1 (bit-identical on one machine)."""
    options: dict[str, Any] = {"epochs": 20, "width": 8, "random_state": 0, "structure_from": "elbo"}
    if preset == "paper":
        options |= {
            "depth_law": "quantile",
            "structure_from": ELBO(initial_depth=1.0),
            "optimizer": Adam(schedule="constant"),
        }
    fitted: UnboundedDepthClassifier | UnboundedDepthRegressor
    if kind == "regressor":
        X, y = problem(80)
        fitted = UnboundedDepthRegressor(**options, likelihood="gaussian").fit(X, y)
        out = np.asarray(fitted.predict(X))
    else:
        X, y = classes(80)
        fitted = UnboundedDepthClassifier(**options).fit(X, y)
        out = fitted.predict_proba(X)[:, 0]
    row, depth = fitted.history_[-1], fitted.structure_.statistics["mean_depth"]
    found = row["elbo"], row["validation_log_likelihood"], depth, float(np.mean(out**2))
    assert found == pytest.approx(BEFORE[kind, preset], rel=1e-7)


@pytest.mark.parametrize("kind", ["regressor", "classifier"])
def test_doubt_grows_off_the_data(kind: str) -> None:
    """The disagreement of networks increases at 2, 4 and 8 standard deviations from the mean."""
    X, y = problem(120)
    direction = np.random.default_rng(1).normal(size=(400, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    options: dict[str, Any] = {"epochs": 120, "cv": 6, "random_state": 0}
    fitted: UnboundedDepthClassifier | UnboundedDepthRegressor
    if kind == "regressor":
        fitted = UnboundedDepthRegressor(**options).fit(X, y)
    else:
        fitted = UnboundedDepthClassifier(**options).fit(X, y > 0.0)
    near, far, farther = (float(fitted.predict_dist(r * direction).uncertainty().weights.mean()) for r in (2, 4, 8))
    assert 0.0 < near < far < farther
