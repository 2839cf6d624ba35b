"""Fits of targets with atoms, such as zero in a column of amounts: from the table to the saved and exported model."""

import numpy as np
import pytest
import torch
from scipy import stats

from fathomless import ContinuousDepthRegressor, DropoutNetworkRegressor, UnboundedDepthRegressor
from fathomless.app.compare import evaluate_split
from fathomless.app.compare import method as method_named
from fathomless.data.targets import TargetScale, fit_target
from fathomless.estimators.evaluation import Evaluation, evaluate
from fathomless.estimators.hurdle import leave_out_atoms
from fathomless.estimators.importance import dependence
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.hurdle import HurdlePredictive
from fathomless.posterior.lattice import LatticePredictive
from fathomless.system.errors import DataError, DataWarning

QUICK = {"epochs": 60, "width": 8, "cv": 3, "random_state": 0}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(900, 2))
CHANCE = 1.0 / (1.0 + np.exp(-2.0 * X[:, 0]))  # of a zero
LAW = stats.gamma(4.0, scale=np.exp(0.5 * X[:, 1]) / 4.0)
Y = np.where(RNG.random(900) < CHANCE, 0.0, LAW.rvs(random_state=RNG))
TRAIN, TEST = slice(0, 200), slice(200, 900)


@pytest.fixture(scope="module")
def amounts():
    """Return a fit of amounts with many zeros."""
    return UnboundedDepthRegressor(**QUICK).fit(X[TRAIN], Y[TRAIN])


def test_probability_of_zero_and_law_of_amounts_are_those_of_the_truth(amounts):
    p = amounts.predict_dist(X[TEST])
    assert isinstance(p, HurdlePredictive)
    assert (p.atoms, p.discrete) == ((0.0,), False)
    chance, zero = CHANCE[TEST], Y[TEST] == 0.0
    assert np.abs(p.pmf(0.0) - chance).mean() < 0.08
    log_p = p.log_prob(Y[TEST]).numpy()
    truth = np.where(zero, np.log(chance), np.log1p(-chance) + LAW.logpdf(Y)[TEST])
    share = zero.mean()
    others = Y[TEST][~zero]
    constant = np.where(zero, np.log(share), np.log1p(-share) + stats.norm(others.mean(), others.std()).logpdf(Y[TEST]))
    assert constant.mean() + 0.3 < log_p.mean() < truth.mean() + 0.05
    low, high = amounts.predict_interval(X[TEST], 0.9)
    assert np.mean((low <= Y[TEST]) & (Y[TEST] <= high)) > 0.87
    expected = (1.0 - chance) * LAW.mean()[TEST]
    assert np.corrcoef(amounts.predict(X[TEST]), expected)[0, 1] > 0.9
    columns = p.to_frame().columns
    assert "probability_0" in columns


def test_the_validation_score_is_that_of_all_out_of_fold_rows(amounts):
    assert amounts.fold_.shape == (1, 200)
    seen = amounts.predict_dist(X[TRAIN], fold=amounts.fold_).log_prob(Y[TRAIN])
    assert amounts.validation_score_ == pytest.approx(seen.mean().item(), abs=0.1)
    hundreds = UnboundedDepthRegressor(**QUICK).fit(X[TRAIN], 128.0 * Y[TRAIN])
    others = np.mean(Y[TRAIN] != 0.0)
    assert hundreds.validation_score_ == pytest.approx(amounts.validation_score_ - others * np.log(128.0), abs=1e-5)
    fit = amounts.fit_diagnostics_.hurdle
    assert (fit.atoms, fit.rows) == ((0.0,), 200)
    assert fit.shares[0] == pytest.approx(1.0 - others)
    assert fit.gain > 0.1


def test_conformal_intervals_contain_atoms_as_often_as_other_rows(amounts):
    low, high = amounts.predict_interval(X[TEST], 0.9, guarantee="marginal")
    covered = np.mean((low <= Y[TEST]) & (Y[TEST] <= high))
    assert 0.84 < covered < 0.98


def test_evaluations_and_comparisons_score_atoms_by_probability(amounts, tmp_path):
    found = evaluate(amounts, X[TEST], Y[TEST], name="new rows")
    assert (found.atoms, found.on_lattice) == ((0.0,), False)
    found.save(tmp_path / "scores")
    assert Evaluation.load(tmp_path / "scores").atoms == (0.0,)
    assert found.scores["log_likelihood"].value > found.baseline["log_likelihood"].value + 0.3
    assert found.scores["crps"].value < found.baseline["crps"].value
    counts = found.calibration["pit"][:, 0]
    assert counts.sum() == 700
    assert counts.max() < 80  # an atom is spread over the probabilities that it has
    rows = (X[TRAIN], Y[TRAIN]), (X[TEST], Y[TEST])
    linear = evaluate_split(lambda: method_named("linear", "regression", 0), *rows)
    assert linear["atoms"] == [0.0]
    plain = evaluate_split(lambda: UnboundedDepthRegressor(**QUICK | {"recalibrate": False}), *rows)
    assert plain["atoms"] == []
    share = np.mean(Y[TRAIN] == 0.0)
    zero = Y[TEST] == 0.0
    np.testing.assert_allclose(np.array(plain["log_mass"])[zero], np.log(share))
    np.testing.assert_allclose(
        np.array(plain["log_mass"])[~zero], np.array(plain["log_density"])[~zero] + np.log1p(-share)
    )
    assert np.mean(linear["log_mass"]) < found.scores["log_likelihood"].value + 0.05


def test_saved_and_exported_models_predict_the_same_law(amounts, tmp_path):
    amounts.save(tmp_path / "saved")
    again = UnboundedDepthRegressor.load(tmp_path / "saved")
    p, q = (one.predict_dist(X[TEST]) for one in (amounts, again))
    assert torch.equal(p.log_prob(Y[TEST]), q.log_prob(Y[TEST]))
    assert again.fit_diagnostics_.hurdle == amounts.fit_diagnostics_.hurdle
    assert again.validation_score_ == amounts.validation_score_


def test_modules_have_the_quantiles_of_the_whole_law():
    fitted = UnboundedDepthRegressor(**QUICK | {"cv": 2, "epochs": 5, "width": 4}).fit(X[TRAIN], Y[TRAIN])
    outputs = fitted.to_module(levels=[0.05, 0.5, 0.95])(torch.as_tensor(X[:40]))
    p = fitted.predict_dist(X[:40])
    np.testing.assert_allclose(outputs["mean"], p.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs["variance"], p.variance, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs["quantiles"].T, p.quantiles([0.05, 0.5, 0.95]), rtol=1e-4, atol=1e-4)


def test_altered_atoms_are_refused(amounts):
    plain = amounts.target_.to_json()
    assert TargetScale.from_json(plain) == amounts.target_
    for altered in ([1.0, 0.0], [0.0, 0.0], ["0"]):
        with pytest.raises(DataError, match="altered"):
            TargetScale.from_json(plain | {"hurdle": altered})


def test_without_recalibration_there_is_one_law_for_all_values():
    fitted = UnboundedDepthRegressor(**QUICK | {"recalibrate": False}).fit(X[TRAIN], Y[TRAIN])
    assert fitted.hurdle_ is None
    assert isinstance(fitted.predict_dist(X[:3]), ContinuousPredictive)
    two = UnboundedDepthRegressor(**QUICK | {"epochs": 5}).fit(X[TRAIN], np.column_stack([Y, Y])[TRAIN])
    assert two.hurdle_ is None


def test_columns_without_information_leave_the_share():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(150, 3))
    y = np.where(rng.random(150) < 0.3, 5.0, rng.normal(size=150))
    fitted = UnboundedDepthRegressor(**QUICK | {"epochs": 5}).fit(x, y)
    p = fitted.predict_dist(rng.normal(size=(200, 3)))
    assert p.atoms == (5.0,)
    assert np.abs(p.pmf(5.0) - np.mean(y == 5.0)).max() < 0.1


@pytest.mark.parametrize(
    "make",
    [
        lambda: UnboundedDepthRegressor(**QUICK | {"cv": 1, "epochs": 5}),
        lambda: ContinuousDepthRegressor(epochs=4, random_state=0, cv=2),
        lambda: DropoutNetworkRegressor(epochs=4, random_state=0),
    ],
)
def test_held_out_rows_and_other_families_have_atoms_too(make):
    fitted = make().fit(X[TRAIN], Y[TRAIN][:, None])
    p = fitted.predict_dist(X[TEST])
    assert isinstance(p, HurdlePredictive)
    assert p.shape == (700, 1)
    assert np.abs(p.pmf(0.0)[:, 0] - CHANCE[TEST]).mean() < 0.12


def test_rows_of_a_group_and_blocks_stay_together():
    groups = np.arange(200) // 4
    fitted = UnboundedDepthRegressor(**QUICK | {"epochs": 5}).fit(X[TRAIN], Y[TRAIN], groups=groups)
    assert isinstance(fitted.predict_dist(X[:3]), HurdlePredictive)
    assert all(len(set(fitted.fold_[0][groups == g])) == 1 for g in range(50))
    order = np.argsort(Y[TRAIN], kind="stable")  # the first block has only zeros
    blocked = UnboundedDepthRegressor(**QUICK | {"epochs": 5, "cv": np.arange(200) * 3 // 200})
    with pytest.warns(DataWarning, match="in all rows of a fold"):
        blocked.fit(X[TRAIN][order], Y[TRAIN][order])
    assert isinstance(blocked.predict_dist(X[:3]), ContinuousPredictive)
    assert (blocked.target_.hurdle, blocked.hurdle_) == ((), None)


def test_atoms_of_a_single_network_are_learned_from_groups_that_it_was_not_trained_on():
    """Columns that name the group, and atoms that depend on nothing."""
    rng = np.random.default_rng(5)
    groups = np.arange(300) // 10
    x = rng.normal(size=(30, 3))[groups]
    y = np.where(rng.random(30)[groups] < 0.5, 0.0, rng.lognormal(size=300))
    for cv in (1, 3):
        fitted = UnboundedDepthRegressor(**QUICK | {"cv": cv, "epochs": 5}).fit(x, y, groups=groups)
        assert fitted.fit_diagnostics_.hurdle.gain < 0.1
        held = np.isin(np.arange(300), fitted.held_out_)
        p = fitted.predict_dist(x, fold=fitted.fold_) if cv > 1 else fitted.predict_dist(x)
        log_p = p.log_prob(y).numpy()[held].mean()
        assert fitted.validation_score_ == pytest.approx(log_p, abs=0.1)


def test_partial_fit_after_a_fit_with_atoms_is_refused():
    fitted = DropoutNetworkRegressor(epochs=2, random_state=0).fit(X[TRAIN], Y[TRAIN])
    with pytest.raises(DataError, match="partial_fit does not update"):
        fitted.partial_fit(X[TRAIN], Y[TRAIN])


def test_tables_without_atoms_are_left_unchanged(amounts):
    plain = amounts._prepare(X[TRAIN], LAW.rvs(random_state=1)[TRAIN], None)
    assert leave_out_atoms(plain) is plain
    table = amounts._prepare(X[TRAIN], Y[TRAIN], None)
    others = leave_out_atoms(table)
    assert len(others.train) == int((Y[TRAIN] != 0.0).sum()) < len(table.train)
    assert float(others.train.y.mean()) == pytest.approx(0.0, abs=1e-6)


def test_explanations_are_of_the_mean_of_all_values(amounts):
    curve = dependence(amounts, X[TEST][:80], "x0")
    assert curve.mean[0] > curve.mean[-1]  # more zeros


def test_counts_with_more_zeros_than_their_law_have_an_atom_on_the_lattice():
    rng = np.random.default_rng(2)
    counts = np.where(rng.random(250) < 0.4, 0.0, rng.poisson(8.0, 250).astype(float))
    assert fit_target(counts, hurdle=True).hurdle == (0.0,)
    assert fit_target(rng.poisson(0.5, 250).astype(float), hurdle=True).hurdle == ()
    fitted = UnboundedDepthRegressor(**QUICK | {"epochs": 20}).fit(rng.normal(size=(250, 1)), counts)
    p = fitted.predict_dist(np.zeros((1, 1)))
    assert isinstance(p, HurdlePredictive)
    assert isinstance(p.base, LatticePredictive)
    truth = 0.6 * stats.poisson(8.0).pmf(np.arange(30)) + 0.4 * (np.arange(30) == 0)
    assert np.abs(p.pmf(np.arange(30.0)[:, None])[:, 0] - truth).sum() < 0.35
