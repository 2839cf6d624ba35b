"""Recalibration of sampled posteriors: leave-one-out laws of the training rows of networks and of graphs."""

import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from fathomless import IndianChefsRegressor, UnboundedDepthRegressor
from fathomless.app.page.report import _describe_recalibration
from fathomless.estimators import left_out, recalibration
from fathomless.estimators.values import HMC
from fathomless.inference.out_of_fold.recalibration import OutOfFoldLaws
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.system.errors import ConvergenceWarning
from short_recalibration import limit_steps

pytestmark = pytest.mark.recalibration

Array = npt.NDArray[Any]
FAST = HMC(chains=3, sweeps=24, leapfrogs=5, states=10)


def make(rows: int, seed: int, spread: float = 0.55) -> tuple[Array, Array]:
    """A table whose noise is 0.1 to 0.9, by the second column; with spread 0 it is 0.3."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (rows, 2))
    scale = 0.1 * np.exp(spread * (X[:, 1] + 2.0)) if spread else 0.3
    return X, X[:, 0] + scale * rng.normal(size=rows)


def fit(kind: Any, X: Array, y: Array, groups: Any = None, sample_weight: Any = None, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return kind(random_state=0, **options).fit(X, y, groups=groups, sample_weight=sample_weight)


def fit_hmc(X: Array, y: Array, chains: HMC = FAST, groups: Any = None, sample_weight: Any = None, **options: Any):
    options = {"epochs": 30, "width": 6, "depth_law": 1, **options}
    return fit(UnboundedDepthRegressor, X, y, groups, sample_weight, weights=chains, **options)


def states_alone(p: Any) -> ContinuousPredictive:
    return replace(p, share=None, residual_laws=())


@pytest.fixture(scope="module")
def sampled() -> UnboundedDepthRegressor:
    return fit_hmc(*make(200, 0), HMC(chains=4, sweeps=60, leapfrogs=20), epochs=100, width=8)


@pytest.fixture(scope="module")
def graphs() -> IndianChefsRegressor:
    options = {"chains": 2, "sweeps": 120, "states": 60, "engine": "numpy"}
    return fit(IndianChefsRegressor, *make(120, 0), **options)


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[OutOfFoldLaws]:
    """The rows from which laws are learned, in short fits."""
    limit_steps(monkeypatch)
    rows: list[OutOfFoldLaws] = []
    whole = recalibration.fit_recalibration

    def record(found: OutOfFoldLaws, *args: Any) -> Any:
        rows.append(found)
        return whole(found, *args)

    monkeypatch.setattr(recalibration, "fit_recalibration", record)
    return rows


def test_intervals_of_sampled_networks_follow_the_noise_of_the_row(sampled: UnboundedDepthRegressor) -> None:
    X, y = make(600, 1)
    p = sampled.predict_dist(X)
    base = states_alone(p)
    assert float(p.log_prob(y).mean()) > float(base.log_prob(y).mean()) + 0.1
    for rows in (X[:, 1] < 0.0, X[:, 1] >= 0.0):
        covers = []
        for law in (p, base):
            low, high = (np.asarray(bound) for bound in law.interval(0.9))
            covers.append(abs(float(((y > low) & (y < high))[rows].mean()) - 0.9))
        assert covers[0] < min(0.09, covers[1])
    (record,) = sampled.fit_diagnostics_.recalibration
    assert record.used
    assert record.rows == 200
    assert 0.0 <= record.unreliable < 0.1


def test_the_reported_gain_and_score_hold_on_new_rows(sampled: UnboundedDepthRegressor) -> None:
    X, y = make(3000, 2)
    p = sampled.predict_dist(X)
    (record,) = sampled.fit_diagnostics_.recalibration
    gain = float((p.log_prob(y) - states_alone(p).log_prob(y)).mean())
    assert record.gain == pytest.approx(gain, abs=4.0 * record.error)
    assert sampled.validation_score_ == pytest.approx(float(p.log_prob(y).mean()), abs=0.2)


def test_saved_laws_predict_the_same_bytes(
    sampled: UnboundedDepthRegressor, graphs: IndianChefsRegressor, tmp_path: Path
) -> None:
    X, y = make(40, 3)
    for name, reg in (("networks", sampled), ("graphs", graphs)):
        assert reg.recalibration_ is not None
        again = type(reg).load(reg.save(tmp_path / name))
        assert torch.equal(again.predict_dist(X).log_prob(y), reg.predict_dist(X).log_prob(y))
        assert again.fit_diagnostics_ == reg.fit_diagnostics_
        assert again.validation_score_ == reg.validation_score_


def test_even_noise_is_left_alone() -> None:
    reg = fit_hmc(*make(150, 0, spread=0.0), HMC(chains=4, sweeps=40, leapfrogs=10))
    X, y = make(3000, 1, spread=0.0)
    p = reg.predict_dist(X)
    base = p if reg.recalibration_ is None else states_alone(p)
    assert float((p.log_prob(y) - base.log_prob(y)).mean()) > -0.02


def test_graphs_follow_the_noise_of_the_row(graphs: IndianChefsRegressor) -> None:
    X, y = make(2000, 1)
    p = graphs.predict_dist(X)
    assert float(p.log_prob(y).mean()) > float(states_alone(p).log_prob(y).mean()) + 0.05
    (record,) = graphs.fit_diagnostics_.recalibration
    assert record.rows == 120
    other = graphs.weighed_by("selected")  # its laws were learned with other weights
    assert other.recalibration_ is None
    assert other.fit_diagnostics_.recalibration == ()
    torch.testing.assert_close(other.predict_dist(X[:5]).mean, states_alone(p).mean[:5])


def test_groups_and_copies_are_left_out_together(learned: list[OutOfFoldLaws], monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[dict[str, Any]] = []
    whole = left_out.leave_one_out_laws
    monkeypatch.setattr(left_out, "leave_one_out_laws", lambda *args, **kw: (given.append(kw), whole(*args, **kw))[1])
    X, y = make(80, 0)
    fit_hmc(X, y, groups=np.arange(80) // 2)
    (rows,) = learned
    place = np.argsort(np.argsort(rows.x[:, 0].numpy()))
    group = (np.argsort(X[:, 0]) // 2)[place]  # of each learned row
    assert len(np.unique(group)) == 40
    for first in np.unique(group):
        assert len(np.unique(rows.fold[group == first])) == 1
        assert len(np.unique(given[0]["unit"][group == first])) == 1
    fit_hmc(X, y, sample_weight=np.full(80, 2.0))
    assert given[1]["counts"].tolist() == [2.0] * 80
    assert learned[1].weight.tolist() == [2.0] * 80


def test_held_out_rows_are_used_too(learned: list[OutOfFoldLaws]) -> None:
    X, y = make(100, 0)
    reg = fit_hmc(X, y, cv=1, validation_fraction=0.4)
    (rows,) = learned
    assert len(rows.y) == 100
    held = reg.held_out_
    assert len(held) == 40
    target = reg.target_
    np.testing.assert_allclose(np.sort(target.decode(rows.y[-40:].numpy()).ravel()), np.sort(y[held]))
    p = states_alone(reg.predict_dist(X[held]))
    of_target = np.argsort(rows.y[-40:, 0].numpy()), np.argsort(y[held])
    np.testing.assert_allclose(rows.std[-40:, 0][of_target[0]], p.std[of_target[1]] / target.scale[0], rtol=1e-6)


def test_unreliable_laws_are_not_used(learned: list[OutOfFoldLaws], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recalibration, "MOST_UNRELIABLE", -1.0)
    X, y = make(80, 0)
    reg = fit_hmc(X, y)
    assert not learned
    assert reg.recalibration_ is None
    (record,) = reg.fit_diagnostics_.recalibration
    assert not record.used
    assert record.steps == {}
    assert record.rows == 80
    (sentence,) = _describe_recalibration(SimpleNamespace(data={}, estimator=reg))
    assert "was omitted" in sentence
    with_held_out = fit_hmc(X, y, cv=1, validation_fraction=0.5)
    assert with_held_out.fit_diagnostics_.recalibration[0].rows == 40


def test_a_row_is_not_its_own_neighbour(learned: list[OutOfFoldLaws]) -> None:
    X, y = make(80, 0)
    fit_hmc(X, y, neighbors=True)
    (rows,) = learned
    assert rows.near is not None
    assert float(rows.near.distance.min()) > 0.0
    others = torch.cdist(rows.x, rows.x).fill_diagonal_(torch.inf).amin(1)
    torch.testing.assert_close(rows.near.distance[:, 0], others)


def test_atoms_of_graphs_are_predicted_apart(learned: list[OutOfFoldLaws]) -> None:
    X, y = make(100, 0)
    y = np.where(X[:, 1] < 0.0, 0.0, y)
    reg = fit(IndianChefsRegressor, X, y, chains=2, sweeps=80, states=40, engine="numpy")
    assert reg.target_.hurdle == (0.0,)
    (rows,) = learned
    assert len(rows.y) == int((y != 0.0).sum())
    p = reg.predict_dist(X)
    assert float(p.pmf(np.zeros((1, 1))).mean()) == pytest.approx(float((y == 0.0).mean()), abs=0.1)
    plain = fit(IndianChefsRegressor, X, y, recalibrate=False, chains=2, sweeps=10, states=5, engine="numpy")
    assert plain.hurdle_ is None
    assert plain.recalibration_ is None
