"""Fits of censored targets: planted truth, equal forms, scores, files and refusals."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import fathomless
from fathomless import (
    ContinuousDepthRegressor,
    DeepEnsembleRegressor,
    FiniteNetworkRegressor,
    IndianChefsRegressor,
    LaplaceNetworkRegressor,
    ProjectedBayesRegressor,
    SparseBayesRegressor,
    SWAGNetworkRegressor,
    UnboundedDepthClassifier,
    UnboundedDepthRegressor,
)
from fathomless.data.censoring import fit_bounds
from fathomless.estimators.evaluation import Evaluation, evaluate
from fathomless.estimators.values import CheckpointOptions
from fathomless.system.errors import DataError

QUICK = {"epochs": 60, "width": 8, "cv": 3, "recalibrate": False, "random_state": 0}
N = 240
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 1))
TRUTH = 2.0 * np.sin(X[:, 0])
TARGET = TRUTH + 0.3 * RNG.normal(size=N)
END = RNG.normal(0.5, 1.5, size=N)  # of the study
CENSORED = TARGET > END
Y = np.minimum(TARGET, END)
KINDS = np.where(CENSORED, "right", "exact")
BOUNDS = np.column_stack([Y, np.where(CENSORED, np.inf, Y)])
NEW = RNG.normal(size=(400, 1))
MEAN = 2.0 * np.sin(NEW[:, 0])

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")


@pytest.fixture(scope="module")
def fitted():
    """Return a fit of censored targets."""
    return UnboundedDepthRegressor(**{**QUICK, "epochs": 150}).fit(X, Y, censored=KINDS)


def test_censored_fits_have_no_bias_where_others_have(fitted):
    assert 0.35 < CENSORED.mean() < 0.45
    plain = UnboundedDepthRegressor(**{**QUICK, "epochs": 150}).fit(X, Y)
    bias, of_plain = (float(np.mean(one.predict(NEW) - MEAN)) for one in (fitted, plain))
    # the error of the mean of about 140 known targets with the noise 0.3, and of a smooth function fitted to them
    assert abs(bias) < 0.12 < 0.35 < -of_plain
    fresh = MEAN + 0.3 * RNG.normal(size=len(MEAN))
    score, of_plain = (float(one.predict_dist(NEW).log_prob(fresh).mean()) for one in (fitted, plain))
    assert score > of_plain + 0.5


def kaplan_meier(time, is_event, at):
    """Return the estimate of the survival function at some times, and Greenwood's standard errors."""
    survival, variance = np.ones(len(at)), np.zeros(len(at))
    for t in np.unique(time[is_event]):
        risk, events = np.sum(time >= t), np.sum(is_event & (time == t))
        later = at >= t
        survival[later] *= 1.0 - events / risk
        if risk > events:
            variance[later] += events / (risk * (risk - events))
    return survival, survival * np.sqrt(variance)


def test_the_mean_survival_function_is_that_of_kaplan_and_meier(fitted):
    rng = np.random.default_rng(1)
    target = MEAN + 0.3 * rng.normal(size=len(MEAN))
    end = rng.normal(0.5, 1.5, size=len(MEAN))
    at = np.array([-1.5, -0.5, 0.5, 1.0])
    expected, error = kaplan_meier(np.minimum(target, end), target <= end, at)
    p = fitted.predict_dist(NEW)
    found = np.array([float(p.sf(t).mean()) for t in at])
    # the fit has an error of its own, from fewer rows
    assert (np.abs(found - expected) < 3.0 * error * np.sqrt(1.0 + len(NEW) / N)).all()
    naive = np.array([np.mean(np.minimum(target, end) > t) for t in at])
    assert (np.abs(naive - expected) > 4.0 * error)[2:].all()


def test_indicators_and_bounds_are_the_same(fitted):
    again = UnboundedDepthRegressor(**{**QUICK, "epochs": 150}).fit(X, BOUNDS, censored="interval")
    assert np.array_equal(again.predict(NEW), fitted.predict(NEW))
    assert again.validation_score_ == fitted.validation_score_


def test_short_intervals_are_known_targets_and_longer_ones_cost_little():
    options = {"epochs": 60, "width": 8, "random_state": 0, "likelihood": "gaussian"}
    exact = FiniteNetworkRegressor(**options).fit(X, np.column_stack([TARGET, TARGET]), censored="interval")
    for width, tolerance in ((1e-9, 1e-7), (1e-3, 1e-3), (0.1, 0.05)):
        y = np.column_stack([TARGET - 0.5 * width, TARGET + 0.5 * width])
        found = FiniteNetworkRegressor(**options).fit(X, y, censored="interval")
        np.testing.assert_allclose(found.predict(NEW), exact.predict(NEW), atol=tolerance)
    plain = FiniteNetworkRegressor(**options).fit(X, TARGET)
    np.testing.assert_allclose(plain.predict(NEW), exact.predict(NEW), atol=1e-6)


def test_only_known_targets_have_units_in_the_score():
    near = UnboundedDepthRegressor(**QUICK).fit(X, Y, censored=CENSORED)
    far = UnboundedDepthRegressor(**QUICK).fit(X, 1024.0 * Y, censored=CENSORED)
    share = 1.0 - CENSORED.mean()
    assert far.validation_score_ == pytest.approx(near.validation_score_ - share * np.log(1024.0), abs=1e-6)
    single = {**QUICK, "cv": 1}
    near, far = (UnboundedDepthRegressor(**single).fit(X, unit * Y, censored=CENSORED) for unit in (1.0, 1024.0))
    share = 1.0 - CENSORED[near.held_out_].mean()
    assert far.validation_score_ == pytest.approx(near.validation_score_ - share * np.log(1024.0), abs=1e-6)


def test_a_weight_is_a_number_of_rows_and_groups_stay_together():
    weight = np.where(np.arange(N) % 5 == 0, 0.0, 1.0) + (np.arange(N) % 3 == 0)
    counts = weight.astype(int)
    index = np.repeat(np.arange(N), counts)
    given = UnboundedDepthRegressor(**QUICK).fit(X, Y, weight, censored=KINDS)
    repeated = UnboundedDepthRegressor(**QUICK).fit(X[index], Y[index], censored=KINDS[index])
    np.testing.assert_allclose(given.predict(NEW), repeated.predict(NEW), atol=1e-4)
    groups = np.arange(N) // 4
    fold = UnboundedDepthRegressor(**QUICK).fit(X, Y, groups=groups, censored=KINDS).fold_[0]
    assert all(len(set(fold[groups == group])) == 1 for group in range(groups.max() + 1))


def test_files_and_resumed_fits_have_the_same_bytes(fitted, tmp_path: Path):
    fitted.save(tmp_path / "model")
    loaded = fathomless.load(tmp_path / "model")
    assert np.array_equal(loaded.predict(NEW), fitted.predict(NEW))
    assert loaded.validation_score_ == fitted.validation_score_

    def stop(run):
        if run.epoch >= 30:
            raise KeyboardInterrupt

    where = CheckpointOptions(tmp_path / "c", seconds=0.0)
    with pytest.raises(KeyboardInterrupt):
        UnboundedDepthRegressor(**QUICK, checkpoint=where, callbacks=[stop]).fit(X, Y, censored=KINDS)
    resumed = UnboundedDepthRegressor(**QUICK, checkpoint=where).fit(X, Y, censored=KINDS)
    whole = UnboundedDepthRegressor(**QUICK).fit(X, Y, censored=KINDS)
    assert np.array_equal(resumed.predict(NEW), whole.predict(NEW))
    with pytest.raises(Exception, match="checkpoint"):
        UnboundedDepthRegressor(**QUICK, checkpoint=where).fit(X, Y)


def test_evaluations_use_all_rows_for_the_log_likelihood_and_the_calibration(fitted, tmp_path: Path):
    found = evaluate(fitted, X, Y, name="rows", censored=KINDS)
    p = fitted.predict_dist(X)
    rows = np.where(CENSORED, p.sf(Y).log().numpy(), p.logpdf(Y))
    assert found.scores["log_likelihood"].value == pytest.approx(rows.mean())
    assert found.scores["log_likelihood"].error == pytest.approx(rows.std(ddof=1) / np.sqrt(N))
    law = fit_bounds(BOUNDS)
    normal = stats.norm(law.mean[0], law.scale[0])
    constant = np.where(CENSORED, normal.logsf(Y), normal.logpdf(Y)).mean()
    assert found.baseline["log_likelihood"].value == pytest.approx(constant)
    assert (found.rows, found.censored) == (N, int(CENSORED.sum()))
    exact = evaluate(fitted, X[~CENSORED], Y[~CENSORED], name="rows")
    for name in ("rmse", "mae", "r2", "crps", "interval_score_90"):
        assert found.scores[name].value == pytest.approx(exact.scores[name].value)
    assert found.calibration["pit"].sum() == N
    assert np.array_equal(evaluate(fitted, X, BOUNDS, name="rows", censored="interval").arrays["y"], found.arrays["y"])
    weight = np.random.default_rng(0).uniform(size=N)
    weighted = evaluate(fitted, X, Y, name="rows", censored=KINDS, sample_weight=weight)
    assert weighted.scores["log_likelihood"].value == pytest.approx(np.average(rows, weights=weight))
    weighted.save(tmp_path / "evaluation")
    again = Evaluation.load(tmp_path / "evaluation")
    assert again.censored == found.censored
    assert again.scores == weighted.scores


def test_the_calibration_of_the_true_law_is_uniform(fitted):
    """The distribution function of a censored row is drawn between its bounds, which keeps that of all rows uniform."""
    rng = np.random.default_rng(2)
    many = rng.normal(size=(4000, 1))
    p = fitted.predict_dist(many)
    target, end = p.icdf(rng.uniform(size=4000)).numpy(), rng.normal(0.5, 1.5, size=4000)
    found = evaluate(fitted, many, np.minimum(target, end), name="rows", censored=target > end)
    assert stats.chisquare(found.calibration["pit"][:, 0]).pvalue > 1e-3
    coverage = found.scores["coverage_90"]
    assert abs(coverage.value - 0.9) < 4.0 * coverage.error


@pytest.mark.usefixtures("full_recalibration")
def test_the_recalibration_learns_the_width_from_censored_rows():
    rng = np.random.default_rng(3)
    x = rng.uniform(-1.0, 1.0, size=(250, 1))
    noise = np.where(x[:, 0] > 0.0, 0.9, 0.1)
    target, end = x[:, 0] + noise * rng.normal(size=250), rng.normal(1.0, 1.0, size=250)
    options = {**QUICK, "recalibrate": True}
    found = UnboundedDepthRegressor(**options).fit(x, np.minimum(target, end), censored=target > end)
    assert found.recalibration_ is not None
    (fit,) = found.fit_diagnostics_.recalibration
    assert fit.gain > 0.1
    quiet, loud = found.predict(np.array([[-0.5], [0.5]]), return_std=True)[1]
    assert loud > 2.5 * quiet


def test_the_narrowing_of_censored_rows_is_that_of_all_rows(fitted):
    """Expected squares in place of unknown errors give the factor of the complete table, up to its error."""
    complete = UnboundedDepthRegressor(**{**QUICK, "epochs": 150}).fit(X, TARGET)
    assert fitted.fit_diagnostics_.narrowing[0] == pytest.approx(complete.fit_diagnostics_.narrowing[0], abs=0.25)


@pytest.mark.parametrize(
    "estimator",
    [
        ContinuousDepthRegressor(width=8, epochs=15, cv=2, recalibrate=False, random_state=0),
        SparseBayesRegressor(width=8, epochs=150, temperature=0.1, recalibrate=False, random_state=0),
        ProjectedBayesRegressor(
            width=4, candidates=12, candidate_steps=150, decoder_steps=50, latent_steps=20, random_state=0
        ),
        DeepEnsembleRegressor(width=8, epochs=60, recalibrate=False, random_state=0),
        SWAGNetworkRegressor(width=8, epochs=30, recalibrate=False, random_state=0),
        UnboundedDepthRegressor(**QUICK, likelihood="student_t"),
        UnboundedDepthRegressor(**QUICK, noise="input"),
        UnboundedDepthRegressor(
            **{**QUICK, "cv": 1}, likelihood="laplace", weights="meanfield", structure_from="elbo", precision="float32"
        ),
    ],
    ids=lambda estimator: type(estimator).__name__,
)
def test_all_families_that_are_trained_by_gradients_learn_from_censored_rows(estimator):
    estimator.fit(X, Y, censored=KINDS)
    # the mean error at censored rows is −1.5 for y itself, and −0.9 for a constant prediction of the mean target
    assert float(np.mean((Y - TRUTH)[CENSORED])) < float(np.mean(TRUTH.mean() - TRUTH[CENSORED])) < -0.8
    assert abs(float(np.mean((estimator.predict(X) - TRUTH)[CENSORED]))) < 0.4


@pytest.mark.parametrize(
    ("estimator", "given"),
    [
        (UnboundedDepthRegressor(weights="hmc"), "weights='hmc'"),
        (UnboundedDepthRegressor(last_layer="laplace"), "last_layer='laplace'"),
        (IndianChefsRegressor(), "IndianChefsRegressor"),
        (LaplaceNetworkRegressor(), "LaplaceNetworkRegressor"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_inferences_without_censored_targets_refuse_them(estimator, given):
    with pytest.raises(DataError, match=f"censored was given with {given}, which does not support"):
        estimator.fit(X, Y, censored=KINDS)


def test_more_refusals(fitted):
    with pytest.raises(DataError, match="censored was given with 2 columns of y"):
        UnboundedDepthRegressor().fit(X, np.column_stack([Y, Y]), censored=KINDS)
    with pytest.raises(DataError, match="all 240 targets are censored on the right"):
        UnboundedDepthRegressor().fit(X, Y, censored=np.ones(N))
    with pytest.raises(DataError, match="out-of-fold and held-out rows or to censored targets"):
        fitted.predict_interval(NEW, guarantee="marginal")
    with pytest.raises(DataError, match="all 240 targets are censored; rows with known targets"):
        evaluate(fitted, X, Y, name="rows", censored=np.ones(N))
    classifier = UnboundedDepthClassifier(epochs=5, width=8, cv=1).fit(X, CENSORED)
    with pytest.raises(DataError, match="the estimator is a classifier"):
        evaluate(classifier, X, CENSORED, name="rows", censored=KINDS)
    with pytest.raises(TypeError, match="censored"):
        classifier.fit(X, CENSORED, censored=KINDS)


def test_a_warm_start_from_counts_has_no_cells():
    counts = np.round(3.0 * TARGET)
    found = UnboundedDepthRegressor(**{**QUICK, "cv": 1, "warm_start": True}).fit(X, counts)
    found.fit(X, np.minimum(counts, 3.0), censored=counts > 3.0)
    assert found.likelihood_.cell is None
    assert np.isfinite(found.validation_score_)
