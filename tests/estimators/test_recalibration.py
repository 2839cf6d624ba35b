"""Recalibration of estimators: options, out-of-fold predictions, saving, export, and fits without it."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fathomless import (
    FiniteNetworkRegressor,
    UnboundedDepthClassifier,
    UnboundedDepthRegressor,
)
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.system.errors import ConvergenceWarning, DataError

pytestmark = pytest.mark.recalibration

Array = npt.NDArray[Any]
QUICK: dict[str, Any] = {"epochs": 60, "width": 8, "random_state": 0}
TRAINED: dict[str, Any] = {**QUICK, "epochs": 200}


def uneven(rows: int, seed: int) -> tuple[Array, Array]:
    """A table whose noise is 0.1 to 0.9, by the second column."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (rows, 2))
    return X, X[:, 0] + 0.1 * np.exp(0.55 * (X[:, 1] + 2.0)) * rng.normal(size=rows)


@pytest.fixture(scope="module")
def fitted() -> UnboundedDepthRegressor:
    return UnboundedDepthRegressor(cv=4, **TRAINED).fit(*uneven(200, 0))


def networks_alone(p: Any) -> ContinuousPredictive:
    from dataclasses import replace

    return replace(p, share=None, residual_laws=())


def test_intervals_follow_the_noise_of_the_row(fitted: UnboundedDepthRegressor) -> None:
    X, y = uneven(3000, 1)
    p = fitted.predict_dist(X)
    base = networks_alone(p)
    assert float(p.log_prob(y).mean()) > float(base.log_prob(y).mean()) + 0.1
    quiet = X[:, 1] < 0.0

    def coverage(law: ContinuousPredictive, rows: Array) -> float:
        low, high = (np.asarray(bound) for bound in law.interval(0.9))
        return float(((y > low) & (y < high))[rows].mean())

    for rows in (quiet, ~quiet):
        assert abs(coverage(p, rows) - 0.9) < abs(coverage(base, rows) - 0.9)
        assert abs(coverage(p, rows) - 0.9) < 0.09


def test_diagnostics_and_score_report_the_gain(fitted: UnboundedDepthRegressor) -> None:
    (fit,) = fitted.fit_diagnostics_.recalibration
    assert fit.used
    assert fit.rows == 200
    assert fit.gain > 3.0 * fit.error > 0.0
    assert sum(fit.weights.values()) == pytest.approx(1.0)
    plain = UnboundedDepthRegressor(cv=4, recalibrate=False, **TRAINED).fit(*uneven(200, 0))
    assert plain.recalibration_ is None
    assert plain.fit_diagnostics_.recalibration == ()
    assert fitted.validation_score_ == pytest.approx(plain.validation_score_ + fit.gain)
    X, _ = uneven(20, 2)
    assert torch.equal(plain.predict_dist(X).icdf(0.9), networks_alone(fitted.predict_dist(X)).icdf(0.9))


def test_a_saved_estimator_predicts_the_same_bytes(fitted: UnboundedDepthRegressor, tmp_path: Path) -> None:
    X, y = uneven(50, 3)
    fitted.save(tmp_path / "fit")
    again = UnboundedDepthRegressor.load(tmp_path / "fit")
    assert torch.equal(again.predict_dist(X).log_prob(y), fitted.predict_dist(X).log_prob(y))
    assert again.fit_diagnostics_.recalibration == fitted.fit_diagnostics_.recalibration
    assert again.validation_score_ == fitted.validation_score_


def test_out_of_fold_rows_are_predicted_by_networks_that_were_not_trained_on_them(
    fitted: UnboundedDepthRegressor,
) -> None:
    X, y = uneven(200, 0)
    out_of_fold = fitted.predict_dist(X, fold=fitted.fold_)
    (fit,) = fitted.fit_diagnostics_.recalibration
    gain = out_of_fold.log_prob(y) - networks_alone(out_of_fold).log_prob(y)
    assert float(gain.mean()) == pytest.approx(fit.gain, abs=0.03)
    first = fitted.fold_[0] == 0
    alone = fitted.predict_dist(X[first], fold=fitted.fold_[:, first])
    torch.testing.assert_close(alone.icdf(0.9), out_of_fold.icdf(0.9)[torch.from_numpy(first)])


def test_exported_modules_are_recalibrated(fitted: UnboundedDepthRegressor) -> None:
    X, _ = uneven(30, 4)
    p = fitted.predict_dist(X)
    out = fitted.to_module((0.05, 0.95))(torch.from_numpy(X))
    torch.testing.assert_close(out["mean"], p.mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out["variance"], p.variance, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(out["quantiles"].T, p.quantiles((0.05, 0.95)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [{"likelihood": "gaussian"}, {"likelihood": "student_t"}, {"noise": 0.5}, {"calibrate": False}],
    ids=lambda options: next(iter(options)),
)
def test_laws_of_the_user_are_not_changed(options: dict[str, Any]) -> None:
    reg = UnboundedDepthRegressor(cv=3, **{**QUICK, "epochs": 10}, **options).fit(*uneven(90, 0))
    assert reg.recalibration_ is None


def test_a_single_network_learns_from_its_held_out_rows() -> None:
    X, y = uneven(600, 0)
    reg = FiniteNetworkRegressor(validation_fraction=0.5, **QUICK).fit(X, y)
    (fit,) = reg.fit_diagnostics_.recalibration
    assert fit.rows == 300
    assert fit.used
    new_X, new_y = uneven(2000, 1)
    p = reg.predict_dist(new_X)
    assert float((p.log_prob(new_y) - networks_alone(p).log_prob(new_y)).mean()) > 0.05


def test_the_first_fit_of_a_warm_start_leaves_nothing_behind() -> None:
    X, y = uneven(200, 0)
    reg = UnboundedDepthRegressor(cv=1, **QUICK).fit(X, y)
    reg.partial_fit(X, y)
    assert reg.recalibration_ is None


def test_classes_have_no_recalibration() -> None:
    X, y = uneven(100, 0)
    clf = UnboundedDepthClassifier(cv=3, **{**QUICK, "epochs": 5}).fit(X, y > 0.0)
    assert clf.recalibration_ is None
    assert clf.fit_diagnostics_.recalibration == ()


def test_two_targets_have_a_joint_density() -> None:
    X, y = uneven(150, 0)
    both = np.column_stack([y, X[:, 0]])
    reg = UnboundedDepthRegressor(cv=3, **TRAINED).fit(X, both)
    p = reg.predict_dist(X)
    assert p.log_prob(both).shape == (150,)
    assert len(reg.fit_diagnostics_.recalibration) == 2
    assert reg.fit_diagnostics_.recalibration[0].used
    draws = p.rvs((50, 150, 2), random_state=0)
    assert np.isfinite(draws).all()


def twins(rows: int, seed: int) -> tuple[Array, Array]:
    """A table of 80 experiments with several nearly equal rows of one target, in whole hundredths."""
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-2.0, 2.0, (80, 2)), rng.normal(size=80).round(2)
    rng = np.random.default_rng(seed)
    of = rng.integers(80, size=rows)
    return X[of] + 1e-3 * rng.normal(size=(rows, 2)), y[of]


@pytest.fixture(scope="module")
def with_neighbors() -> UnboundedDepthRegressor:
    return UnboundedDepthRegressor(cv=3, neighbors=True, **QUICK).fit(*twins(160, 1))


def test_neighbours_are_searched_stored_and_reported(with_neighbors: UnboundedDepthRegressor, tmp_path: Path) -> None:
    (fit,) = with_neighbors.fit_diagnostics_.recalibration
    assert fit.neighbors is not None
    assert fit.neighbors.stored
    assert fit.neighbors.rows == 160
    assert fit.neighbors.repeated > 0.5 > 0.2 > fit.neighbors.chance
    assert with_neighbors.recalibration_ is not None
    stored = with_neighbors.recalibration_.neighbors
    assert stored is not None
    X, y = twins(400, 2)
    p = with_neighbors.predict_dist(X)
    gained = p.log_prob(y) - networks_alone(p).log_prob(y)
    assert float(gained.mean()) > 0.5
    assert float(gained.min()) > -np.log(10.0) - 1e-9
    with_neighbors.save(tmp_path / "fit")
    again = UnboundedDepthRegressor.load(tmp_path / "fit")
    assert torch.equal(again.predict_dist(X).log_prob(y), p.log_prob(y))
    assert again.fit_diagnostics_ == with_neighbors.fit_diagnostics_
    assert again.recalibration_ is not None
    assert again.recalibration_.neighbors is not None
    assert torch.equal(again.recalibration_.neighbors.y, stored.y)


def test_out_of_fold_rows_are_not_their_own_neighbours(with_neighbors: UnboundedDepthRegressor) -> None:
    X, y = twins(160, 1)
    alone = np.array([(np.linalg.norm(X - x, axis=1) < 0.02).sum() == 1 for x in X])
    p = with_neighbors.predict_dist(X, fold=with_neighbors.fold_)
    gained = np.asarray(p.log_prob(y) - networks_alone(p).log_prob(y))
    assert gained[alone].mean() < 0.2  # rows without a twin would gain by their own targets
    assert gained[~alone].mean() > gained[alone].mean() + 0.5
    (fit,) = with_neighbors.fit_diagnostics_.recalibration
    assert gained.mean() == pytest.approx(fit.gain, abs=0.05)


def test_neighbours_are_not_exported(with_neighbors: UnboundedDepthRegressor) -> None:
    with pytest.raises(DataError, match="neighbors=True"):
        with_neighbors.to_module((0.5,))


@pytest.mark.parametrize("options", [{"recalibrate": False}, {"likelihood": "gaussian"}, {"noise": 0.5}])
def test_neighbours_need_a_recalibration(options: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="neighbors=True"):
        UnboundedDepthRegressor(neighbors=True, **options).fit(*uneven(50, 0))


def test_neighbours_of_a_lattice_and_of_groups() -> None:
    X, y = twins(120, 1)
    grades = np.rint(3.0 * y)
    reg = UnboundedDepthRegressor(cv=3, neighbors=True, **QUICK).fit(X, grades, groups=grades)
    (fit,) = reg.fit_diagnostics_.recalibration
    assert fit.neighbors is not None
    assert fit.neighbors.repeated == 0.0  # rows with the same target are in the group of the row
    assert fit.neighbors.chance > 0.2
    p = reg.predict_dist(X)
    assert p.discrete
    points = torch.arange(-60.0, 61.0, dtype=torch.float64)[:, None]
    torch.testing.assert_close(p.pmf(points).sum(0), torch.ones(120, dtype=torch.float64), rtol=0.0, atol=1e-6)


def test_held_out_rows_of_a_single_network_have_neighbours_among_training_rows() -> None:
    X, y = twins(240, 1)
    reg = FiniteNetworkRegressor(validation_fraction=0.4, neighbors=True, **QUICK).fit(X, y)
    (fit,) = reg.fit_diagnostics_.recalibration
    assert fit.neighbors is not None
    assert fit.neighbors.rows == 144
    assert fit.neighbors.repeated > 0.5


def test_a_fit_without_enough_rows_warns_that_neighbours_have_no_effect() -> None:
    with pytest.warns(ConvergenceWarning, match="neighbors=True has no effect"):
        UnboundedDepthRegressor(cv=2, neighbors=True, **{**QUICK, "epochs": 5}).fit(*uneven(28, 0))
