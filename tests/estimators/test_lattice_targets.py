"""Fits of targets on a lattice: laws, scores and comparisons in log probability, from the fit to the saved model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from fathomless import SparseBayesRegressor, UnboundedDepthRegressor
from fathomless.app.compare import evaluate_split
from fathomless.app.compare import method as method_named
from fathomless.app.peers import Peer
from fathomless.data.targets import fit_target
from fathomless.estimators.encoding import NumberTask
from fathomless.estimators.evaluation import Evaluation, evaluate
from fathomless.estimators.importance import dependence, importance
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.lattice import LatticePredictive

QUICK = {"epochs": 40, "width": 8, "cv": 3, "random_state": 0}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(360, 2))
RATE = np.exp(0.7 * X[:, 0] + 0.3)
COUNTS = RNG.poisson(RATE).astype(float)
TRAIN, TEST = slice(0, 120), slice(120, 360)


@pytest.fixture(scope="module")
def counted():
    """Return a fit of counts."""
    return UnboundedDepthRegressor(**QUICK).fit(X[TRAIN], COUNTS[TRAIN])


def test_counts_have_a_law_on_whole_numbers(counted):
    p = counted.predict_dist(X[TEST])
    assert isinstance(p, LatticePredictive)
    assert (p.step, p.offset) == (1.0, 0.0)
    np.testing.assert_allclose(p.pmf(np.arange(-20.0, 40.0)[:, None]).sum(0), 1.0, atol=1e-6)
    low, high = counted.predict_interval(X[TEST], 0.9)
    assert np.array_equal(low, low.round())
    assert np.mean((low <= COUNTS[TEST]) & (COUNTS[TEST] <= high)) > 0.85
    drawn = counted.sample_y(X[:5], 7)
    assert np.array_equal(drawn, drawn.round())
    np.testing.assert_allclose(counted.predict(X[TEST]), p.mean.numpy(), rtol=1e-12)


def test_scores_are_log_probabilities_between_constant_and_truth(counted):
    evaluation = evaluate(counted, X[TEST], COUNTS[TEST], name="new rows")
    assert evaluation.on_lattice
    score, constant = (part["log_likelihood"] for part in (evaluation.scores, evaluation.baseline))
    assert score.value == pytest.approx(counted.predict_dist(X[TEST]).log_prob(COUNTS[TEST]).mean().item())
    truth = stats.poisson.logpmf(COUNTS[TEST], RATE[TEST]).mean()
    assert constant.value < score.value < truth + 2.0 * score.error
    y, spread = COUNTS[TEST], COUNTS[TEST].std()
    cell = stats.norm.cdf((y + 0.5 - y.mean()) / spread) - stats.norm.cdf((y - 0.5 - y.mean()) / spread)
    assert constant.value == pytest.approx(np.log(cell).mean())
    low, high = counted.predict_interval(X[TEST], 0.9)
    assert evaluation.scores["coverage_90"].value == pytest.approx(np.mean((low <= y) & (y <= high)))
    assert evaluation.calibration["pit"].sum() == len(y)


def test_the_pit_of_the_true_law_is_uniform_and_its_coverage_that_of_the_level():
    """A constant prediction of rounded Gaussians, which are coarser than their standard deviation."""
    y = np.round(RNG.normal(0.0, 0.7, 4000))
    peer = Peer("constant", "regression", 0, on_lattice=True).fit(np.zeros((len(y), 1)), y)
    peer._predict = lambda rows: (
        np.full(len(rows), -peer.target_.mean[0] / peer.target_.scale[0]),
        np.full(len(rows), 0.7 / peer.target_.scale[0]),
    )
    found = evaluate(peer, np.zeros((len(y), 1)), y, name="rows")
    counts = found.calibration["pit"][:, 0]
    assert stats.chisquare(counts).pvalue > 1e-3
    levels, coverage = found.calibration["levels"], found.calibration["coverage"][:, 0]
    assert (np.abs(coverage - levels) < 4.0 * np.sqrt(levels * (1.0 - levels) / len(y))).all()
    assert found.scores["coverage_50"].value > 0.5


def test_the_validation_score_has_no_units(counted):
    seen = counted.predict_dist(X[TRAIN], fold=counted.fold_).log_prob(COUNTS[TRAIN]).mean().item()
    assert counted.validation_score_ == pytest.approx(seen, abs=0.1)  # fitted without and with each fold
    hundreds = UnboundedDepthRegressor(**QUICK).fit(X[TRAIN], 100.0 * COUNTS[TRAIN])
    assert hundreds.target_.lattice[0].step == 100.0
    assert hundreds.validation_score_ == pytest.approx(counted.validation_score_, abs=1e-3)


def test_loaded_estimators_predict_the_same_law(counted, tmp_path):
    counted.save(tmp_path / "saved")
    again = UnboundedDepthRegressor.load(tmp_path / "saved")
    assert again.validation_score_ == counted.validation_score_
    p, q = (fitted.predict_dist(X[TEST]) for fitted in (counted, again))
    assert isinstance(q, LatticePredictive)
    assert torch.equal(p.log_prob(COUNTS[TEST]), q.log_prob(COUNTS[TEST]))
    found = evaluate(again, X[TEST], COUNTS[TEST], name="new rows")
    found.save(tmp_path / "scores")
    assert Evaluation.load(tmp_path / "scores").on_lattice


def test_scales_are_at_least_the_rounding_error(counted):
    """A target that a column determines up to rounding."""
    y = np.round(2.0 * X[:, 0])
    fitted = UnboundedDepthRegressor(**QUICK | {"epochs": 150}).fit(X, y)
    for one in (counted, fitted):
        scale = one.likelihood_.noise.log_scale().exp().item() * one.target_.scale[0]
        assert scale >= (1.0 - 1e-5) / np.sqrt(12.0)
        assert 0.0 < one.fit_diagnostics_.narrowing[0] <= 1.0


@pytest.mark.parametrize("decimals", [2, 3])
def test_targets_recorded_with_decimals_have_densities_as_before(decimals):
    """The lattice of recorded decimals is fine: without it the fit has the same bytes."""
    y = (X[:, 0] + RNG.normal(size=len(X))).round(decimals)[TRAIN]
    fitted = UnboundedDepthRegressor(**QUICK | {"epochs": 8}).fit(X[TRAIN], y)
    assert fitted.target_.lattice[0].step == 10.0**-decimals
    assert isinstance(fitted.predict_dist(X[TEST]), ContinuousPredictive)
    assert fitted.likelihood_.cell is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fathomless.data.targets.TargetScale.steps", property(lambda scale: (0.0,)))
        plain = UnboundedDepthRegressor(**QUICK | {"epochs": 8}).fit(X[TRAIN], y)
    assert plain.validation_score_ == fitted.validation_score_
    assert np.array_equal(plain.predict(X), fitted.predict(X))
    assert torch.equal(plain.likelihood_.noise.raw, fitted.likelihood_.noise.raw)


@pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
def test_several_targets_and_networks_without_held_out_rows_have_densities():
    two = UnboundedDepthRegressor(**QUICK | {"epochs": 5}).fit(X[TRAIN], np.column_stack([COUNTS, COUNTS])[TRAIN])
    assert isinstance(two.predict_dist(X[:3]), ContinuousPredictive)
    sparse = SparseBayesRegressor(epochs=5, width=4, random_state=0, temperature=1.0).fit(X[TRAIN], COUNTS[TRAIN])
    assert isinstance(sparse.predict_dist(X[:3]), ContinuousPredictive)


def test_explanations_and_modules_use_the_law_before_rounding(counted):
    found = importance(counted, X[TEST][:60], COUNTS[TEST][:60])
    assert found.columns[0] == "x0"
    curve = dependence(counted, X[TEST][:60], "x0")
    assert curve.mean[-1] > curve.mean[0]
    outputs = counted.to_module(levels=[0.5])(torch.as_tensor(X[:4]))
    p = counted.predict_dist(X[:4])
    np.testing.assert_allclose(outputs["mean"], p.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs["quantiles"][:, 0], p.base.icdf(0.5), rtol=1e-4, atol=1e-4)


def test_methods_are_compared_by_probability_if_one_of_them_is_on_the_lattice(counted):
    rows = (X[TRAIN], COUNTS[TRAIN]), (X[TEST], COUNTS[TEST])

    class Again:
        target_ = counted.target_

        def fit(self, X, y):
            return self

        predict_dist = staticmethod(counted.predict_dist)

    ours = evaluate_split(Again, *rows)
    linear = evaluate_split(lambda: method_named("linear", "regression", 0), *rows)
    assert (ours["on_lattice"], linear["on_lattice"]) == (True, False)
    assert ours["log_mass"] == ours["log_density"]
    assert np.exp(linear["log_mass"]).max() < 1.0
    assert np.mean(linear["log_mass"]) < np.mean(ours["log_mass"]) + 0.5
    assert linear["log_mass"] != linear["log_density"]


def test_a_predicted_scale_is_above_the_rounding_error_of_a_coarse_lattice_only():
    fitted = fit_target(COUNTS)
    for target, floor in ((fitted, fitted.steps[0] / np.sqrt(12.0)), (fit_target(X[:, 0].round(2)), 1e-3)):
        noise = NumberTask(law="gaussian", noise="input").likelihood(target).noise
        assert np.exp(noise.log_minimum) == pytest.approx(floor)
    assert NumberTask(density=True).likelihood(replace(fitted, ndim=2)).steps == ()


def test_a_fit_that_goes_on_from_another_chooses_its_cells_again(counted):
    problem = replace(counted._problem(), fitted=(counted.model_, counted.likelihood_))
    _, likelihood = problem.start(None, 0)
    assert likelihood.cell is None
    assert counted.likelihood_.cell is not None
