"""Fits of skewed targets: the logarithm that is chosen by out-of-fold rows, from the table to the saved model."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.model_selection import KFold

from fathomless import (
    CheckpointOptions,
    ContinuousDepthRegressor,
    ProjectedBayesRegressor,
    SparseBayesRegressor,
    UnboundedDepthRegressor,
)
from fathomless.app.peers import Peer
from fathomless.data.targets import TargetScale, fit_target
from fathomless.estimators import transforms
from fathomless.estimators.evaluation import evaluate
from fathomless.inference.runs.limits import TimeLimit
from fathomless.posterior.hurdle import HurdlePredictive
from fathomless.posterior.lattice import LatticePredictive
from fathomless.posterior.likelihoods import Gaussian, cell_of
from fathomless.posterior.transformed import TransformedPredictive
from fathomless.system.errors import ConvergenceWarning, DataError, DivergenceError
from fathomless.system.transforms import LogTransform

QUICK = {"epochs": 50, "width": 8, "cv": 3, "learning_rate": 0.02, "random_state": 0}
MANIFOLD = {"width": 8, "candidates": 20, "candidate_steps": 120, "latent_dim": 4, "decoder_width": 16}
MANIFOLD |= {"decoder_steps": 150, "components": 4, "latent_steps": 60}
RNG = np.random.default_rng(0)
X = RNG.uniform(-2.0, 2.0, (900, 2))
F = np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1]
NOISE = RNG.normal(size=900)
Y = np.exp(F + 0.6 * NOISE)
TRAIN, TEST = slice(0, 100), slice(100, 900)


@pytest.fixture(scope="module")
def prices():
    """Return a fit of a log-normal target."""
    return UnboundedDepthRegressor(**QUICK).fit(X[TRAIN], Y[TRAIN])


@pytest.fixture
def used_if_proposed(monkeypatch):
    """Use every proposed transform, whatever the out-of-fold scores."""
    monkeypatch.setattr(transforms, "_LEAST_GAIN", -math.inf)


def test_a_log_normal_target_is_modelled_by_its_logarithm(prices):
    p = prices.predict_dist(X[TEST])
    assert isinstance(p, TransformedPredictive)
    chosen = prices.fit_diagnostics_.transform
    assert chosen.used
    assert chosen.gain > 0.1
    plain = UnboundedDepthRegressor(**QUICK, recalibrate=False).fit(X[TRAIN], Y[TRAIN])
    assert plain.fit_diagnostics_.transform is None
    score = p.log_prob(Y[TEST]).mean().item()
    truth = stats.lognorm(0.6, scale=np.exp(F)).logpdf(Y)[TEST].mean()
    assert plain.predict_dist(X[TEST]).log_prob(Y[TEST]).mean().item() + 0.2 < score < truth + 0.05
    low, high = prices.predict_interval(X[TEST], 0.9)
    inside, wide = (low <= Y[TEST]) & (Y[TEST] <= high), high - low > np.median(high - low)
    assert 0.8 < inside[wide].mean() < 0.98
    assert 0.8 < inside[~wide].mean() < 0.98
    mean = np.exp(F + 0.18)[TEST]
    assert np.corrcoef(prices.predict(X[TEST]), mean)[0, 1] > 0.8


def test_a_second_fit_needs_half_of_the_time(monkeypatch):
    monkeypatch.setattr(TimeLimit, "allows", lambda self, seconds: seconds < 0.5 * self.seconds)
    with pytest.warns(ConvergenceWarning, match="minutes=5000 left out a second fit, to the logarithm of the target"):
        plain = UnboundedDepthRegressor(**QUICK, minutes=5e3).fit(X[TRAIN], Y[TRAIN])
    assert plain.fit_diagnostics_.transform is None
    assert not isinstance(plain.predict_dist(X[TEST]), TransformedPredictive)


def test_scores_and_conformal_intervals_are_in_units_of_the_target(prices):
    scores = evaluate(prices, X[TEST], Y[TEST], name="new").scores
    p = prices.predict_dist(X[TEST])
    assert scores["log_likelihood"].value == pytest.approx(p.log_prob(Y[TEST]).mean().item())
    assert scores["rmse"].value == pytest.approx(np.sqrt(np.mean((prices.predict(X[TEST]) - Y[TEST]) ** 2)))
    assert scores["crps"].value == pytest.approx(p.crps(torch.tensor(Y[TEST])).mean().item())
    low, high = prices.predict_interval(X[TEST], 0.9, guarantee="marginal")
    assert 0.83 < np.mean((low <= Y[TEST]) & (Y[TEST] <= high)) <= 1.0
    seen = prices.predict_dist(X[TRAIN], fold=prices.fold_).log_prob(Y[TRAIN])
    assert prices.validation_score_ == pytest.approx(seen.mean().item(), abs=0.15)


def test_another_unit_of_the_target_changes_the_unit_of_the_prediction(prices):
    other = UnboundedDepthRegressor(**QUICK).fit(X[TRAIN], 1024.0 * Y[TRAIN])
    assert other.predict(X[TEST]) == pytest.approx(1024.0 * prices.predict(X[TEST]), rel=1e-5)
    assert other.validation_score_ == pytest.approx(prices.validation_score_ - np.log(1024.0), abs=1e-5)


def test_saved_models_predict_the_same(prices, tmp_path):
    prices.save(tmp_path / "prices.fathomless")
    loaded = UnboundedDepthRegressor.load(tmp_path / "prices.fathomless")
    assert loaded.target_ == prices.target_
    assert loaded.fit_diagnostics_.transform == prices.fit_diagnostics_.transform
    p, q = (each.predict_dist(X[TEST]) for each in (prices, loaded))
    assert p.log_prob(Y[TEST]).equal(q.log_prob(Y[TEST]))
    assert p.mean.equal(q.mean)


def test_a_module_returns_moments_and_quantiles_in_units_of_the_target(prices):
    module = prices.to_module(levels=(0.05, 0.5))
    result = module(torch.from_numpy(X[TEST]))
    p = prices.predict_dist(X[TEST])
    assert result["mean"].numpy() == pytest.approx(p.mean.numpy(), rel=1e-5)
    assert result["variance"].numpy() == pytest.approx(p.variance.numpy(), rel=1e-4)
    assert result["quantiles"][:, 1].numpy() == pytest.approx(p.median.numpy(), rel=1e-4)


def test_a_fit_that_stops_in_the_second_training_is_resumed_with_the_same_result(prices, tmp_path):
    folder = tmp_path / "run" / "transformed"
    calls = []

    def stop(_):
        if folder.is_dir():
            calls.append(1)
        if len(calls) == 3:
            raise InterruptedError

    options = {**QUICK, "checkpoint": CheckpointOptions(tmp_path / "run", seconds=0.0)}
    with pytest.raises(InterruptedError):
        UnboundedDepthRegressor(**options, callbacks=[stop]).fit(X[TRAIN], Y[TRAIN])
    resumed = UnboundedDepthRegressor(**options).fit(X[TRAIN], Y[TRAIN])
    assert resumed.predict_dist(X[TEST]).mean.equal(prices.predict_dist(X[TEST]).mean)
    assert resumed.fit_diagnostics_.transform == prices.fit_diagnostics_.transform


def test_counts_have_probabilities_of_points():
    rng = np.random.default_rng(1)
    counts = stats.poisson(np.exp(0.7 + F)).rvs(random_state=rng).astype(float)
    fitted = UnboundedDepthRegressor(**QUICK).fit(X[TRAIN], counts[TRAIN])
    assert fitted.fit_diagnostics_.transform.used
    assert fitted.target_.cells
    p = fitted.predict_dist(X[TEST])
    assert isinstance(p, LatticePredictive)
    points = np.arange(-3.0, 80.0)[:, None]
    assert p.pmf(points).sum(0) == pytest.approx(1.0, abs=1e-3)
    seen = fitted.predict_dist(X[TRAIN], fold=fitted.fold_).log_prob(counts[TRAIN])
    assert fitted.validation_score_ == pytest.approx(seen.mean().item(), abs=0.15)
    low, high = fitted.predict_interval(X[TEST], 0.9)
    assert np.mean((low <= counts[TEST]) & (counts[TEST] <= high)) > 0.85
    low, high = fitted.predict_interval(X[TEST], 0.9, guarantee="marginal")
    assert np.mean((low <= counts[TEST]) & (counts[TEST] <= high)) > 0.83
    evaluation = evaluate(fitted, X[TEST], counts[TEST], name="new")
    assert evaluation.on_lattice
    assert evaluation.scores["log_likelihood"].value == pytest.approx(p.log_prob(counts[TEST]).mean().item())


@pytest.mark.parametrize("counted", [False, True])
def test_amounts_between_zeros_are_modelled_by_their_logarithm(counted):
    rng = np.random.default_rng(2)
    amounts = 1.0 + stats.poisson(np.exp(1.0 + F)).rvs(random_state=rng) if counted else Y
    y = np.where(rng.random(900) < 0.4, 0.0, amounts)
    fitted = UnboundedDepthRegressor(**QUICK).fit(X[:150], y[:150])
    p = fitted.predict_dist(X[TEST])
    assert isinstance(p, HurdlePredictive)
    assert fitted.target_.transform is not None
    assert p.discrete == counted
    assert np.mean(p.pmf(0.0)) == pytest.approx(0.4, abs=0.12)
    seen = fitted.predict_dist(X[:150], fold=fitted.fold_).log_prob(y[:150])
    assert fitted.validation_score_ == pytest.approx(seen.mean().item(), abs=0.2)


def test_symmetric_noise_keeps_its_target():
    y = F + 0.5 * NOISE
    assert UnboundedDepthRegressor(**QUICK).fit(X[TRAIN], y[TRAIN]).fit_diagnostics_.transform is None


def test_a_continued_fit_keeps_the_transform(prices):
    options = {**QUICK, "warm_start": True, "cv": 1}
    fitted = UnboundedDepthRegressor(**options).fit(X[TRAIN], Y[TRAIN])
    before = fitted.target_
    fitted.fit(X[TRAIN], Y[TRAIN])
    assert fitted.target_ == before


def test_other_families_and_given_laws():
    fitted = ContinuousDepthRegressor(epochs=40, cv=3, random_state=0).fit(X[TRAIN], Y[TRAIN])
    assert fitted.fit_diagnostics_.transform is not None
    gaussian = UnboundedDepthRegressor(**QUICK, likelihood="gaussian").fit(X[TRAIN], Y[TRAIN])
    assert gaussian.fit_diagnostics_.transform is None


def test_censored_rows_are_scored_by_a_fit_with_a_transform(prices):
    limit = np.minimum(Y[TEST], 2.0)
    kind = np.where(Y[TEST] > 2.0, "right", "exact")
    evaluation = evaluate(prices, X[TEST], limit, name="censored", censored=kind)
    p = prices.predict_dist(X[TEST])
    expected = np.where(Y[TEST] > 2.0, np.log(p.sf(2.0).numpy()), p.log_prob(Y[TEST]).numpy())
    assert evaluation.scores["log_likelihood"].value == pytest.approx(expected.mean())


def test_encodings_are_inverted_and_written():
    y = np.array([0.0, 1.0, 1.0, 2.0, 5.0, 9.0, 30.0])
    scale = fit_target(y).with_transform(LogTransform(0.0, 2.0, limit=30.0), y, cells=True)
    z = scale.encode(y)
    assert z.shape == (7, 2)
    assert (z[:, 0] < z[:, 1]).all()
    points = scale.locate_points(z)
    assert scale.decode(points) == pytest.approx(y)
    assert TargetScale.from_json(scale.to_json()) == scale
    for value in (
        [0.0],
        [0.0, -1.0, 1.0, 3.0, 0.0, 0.0],
        [0.0, 1.0, 2.0, 3.0, 0.0, 0.0],
        [0.0, 1.0, 1.0, 3.0, 0.0, 2.0],
    ):
        with pytest.raises(DataError, match="is not a transform"):
            TargetScale.from_json({**scale.to_json(), "transform": value})


def test_simple_models_beside_a_fit_predict_the_target_itself(prices):
    """The page fits them with the encodings of the estimator."""
    peer = Peer("linear", "regression", 0).fit(X[TRAIN], Y[TRAIN], prices.schema_, prices.target_)
    alone = Peer("linear", "regression", 0).fit(X[TRAIN], Y[TRAIN])
    assert peer.predict_dist(X[TEST]).mean.numpy() == pytest.approx(alone.predict_dist(X[TEST]).mean.numpy(), rel=1e-3)
    scale = prices.target_.without_transform(Y[TRAIN])
    assert scale.decode(scale.encode(Y[TEST])) == pytest.approx(Y[TEST])


@pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
@pytest.mark.parametrize(
    "estimator",
    [SparseBayesRegressor(epochs=40), ProjectedBayesRegressor(**MANIFOLD)],
    ids=["sparse", "manifold"],
)
def test_the_noise_of_a_transformed_target_is_gaussian(estimator, used_if_proposed):
    """Heavy tails of the logarithm, for which the noise of a target itself would be Student's t."""
    y = np.exp(F + 0.4 * np.random.default_rng(5).standard_t(2.0, size=900))
    fitted = estimator.set_params(random_state=0).fit(X[:140], y[:140])
    assert fitted.fit_diagnostics_.transform.used
    assert isinstance(fitted.likelihood_, Gaussian)
    assert np.isfinite(fitted.predict(X[TEST])).all()


def test_both_fits_have_the_same_held_out_rows_without_a_seed():
    options = {**QUICK, "cv": 1, "validation_fraction": 0.3, "random_state": np.random.RandomState(1)}
    fitted = UnboundedDepthRegressor(**options).fit(X[:140], Y[:140])
    assert fitted.fit_diagnostics_.transform.used
    held = fitted.held_out_
    seen = fitted.predict_dist(X[held]).log_prob(Y[held]).mean().item()
    assert fitted.validation_score_ == pytest.approx(seen, abs=0.1)


def test_both_fits_have_the_folds_of_a_random_splitter(tmp_path):
    fitted = UnboundedDepthRegressor(
        **{**QUICK, "epochs": 20},
    ).set_params(cv=KFold(3, shuffle=True))
    fitted.fit(X[TRAIN], Y[TRAIN])
    fitted.save(tmp_path / "folds.fathomless")
    loaded = UnboundedDepthRegressor.load(tmp_path / "folds.fathomless")
    assert np.array_equal(np.reshape(loaded.cv, (1, -1)), fitted.fold_)


def test_a_second_training_that_fails_leaves_the_first_fit(monkeypatch):
    infer = UnboundedDepthRegressor._infer

    def fail_again(self, prepared, session):
        if prepared.target.transform is not None:
            raise DivergenceError("the loss is not finite")
        return infer(self, prepared, session)

    monkeypatch.setattr(UnboundedDepthRegressor, "_infer", fail_again)
    with pytest.warns(ConvergenceWarning, match="logarithm of the target was tried, and its training failed"):
        fitted = UnboundedDepthRegressor(**QUICK).fit(X[TRAIN], Y[TRAIN])
    assert fitted.target_.transform is None


def test_scores_of_solvers_are_in_units_of_the_target(used_if_proposed):
    fitted = ContinuousDepthRegressor(epochs=40, cv=1, random_state=0).fit(X[TRAIN], Y[TRAIN])
    assert fitted.target_.transform is not None
    rows = np.argsort(Y)[-50:]
    score = fitted.accuracy(X[rows], Y[rows])[-1].score
    assert score == pytest.approx(fitted.predict_dist(X[rows]).log_prob(Y[rows]).mean().item(), abs=1.0)


def test_far_rows_have_finite_scores(prices):
    p = prices.predict_dist(1000.0 * X[TEST][:20])
    assert p.interval(0.9)[1].isfinite().all()
    assert p.crps(torch.tensor(Y[TEST][:20])).isfinite().all()


def test_a_cells_fit_shows_its_mass_and_refuses_censored_rows(used_if_proposed):
    counts = stats.poisson(np.exp(0.7 + F)).rvs(random_state=np.random.default_rng(1)).astype(float)
    fitted = UnboundedDepthRegressor(**{**QUICK, "cv": 1, "warm_start": True}).fit(X[TRAIN], counts[TRAIN])
    assert fitted.target_.cells
    assert "mean log predictive mass" in fitted._repr_html_()
    with pytest.raises(DataError, match="continues from one to the cells of a target on a lattice"):
        fitted.fit(X[TRAIN], np.minimum(counts[TRAIN], 5.0), censored=counts[TRAIN] > 5.0)


def test_a_logarithm_on_a_coarse_lattice_is_not_compared_with_a_density(used_if_proposed):
    """Whole numbers with small relative noise: fine beside the noise of the target, coarse beside that of its log."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-2.0, 2.0, (60, 2))
    y = np.round(14.0 * np.exp(x[:, 0] + 0.03 * rng.normal(size=60)))
    fitted = UnboundedDepthRegressor(epochs=300, width=8, cv=3, random_state=0).fit(x, y)
    assert fitted.target_.cells or cell_of(fitted.likelihood_) is None
    seen = fitted.predict_dist(x, fold=fitted.fold_)
    assert fitted.validation_score_ == pytest.approx(seen.log_prob(y).mean().item(), abs=0.3)
