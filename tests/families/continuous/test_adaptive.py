"""Adaptive grids: comparison with the known solution of a burst, and use through estimators."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from fathomless import ContinuousDepthClassifier, ContinuousDepthRegressor, Heun, RandomHorizon, load
from fathomless.families.continuous.adaptive import fit_grid
from fathomless.families.continuous.dynamics import Dynamics, MLPDynamics, Weight
from fathomless.families.continuous.grids import Grid, uniform_grid
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.processes import OrnsteinUhlenbeck
from fathomless.posterior.laws import FixedDepth
from fathomless.system.errors import DataError, DataWarning, DivergenceError

BURST, WIDTH, HEIGHT = 0.7, 0.03, 40.0
DOUBLE = torch.float64


@dataclass(frozen=True)
class Burst(Dynamics):
    """dh/dt = −(1 + 40 exp(−((t − 0.7) / 0.03)²)) h, from h = x on; `growth` replaces the bracket."""

    growth: float = 0.0

    @property
    def moving(self) -> tuple[Weight, ...]:
        return (Weight("none", (1,), 1),)

    @property
    def still(self) -> tuple[Weight, ...]:
        return (Weight("none", (1,), 1),)

    def enter(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        return x[:, None]

    def slope(self, weights: Sequence[Tensor], t: float, h: Tensor) -> Tensor:
        return (self.growth or -(1.0 + HEIGHT * math.exp(-(((t - BURST) / WIDTH) ** 2)))) * h

    def leave(self, weights: Sequence[Tensor], h: Tensor) -> Tensor:
        return h

    def numbers(self, rows: int) -> int:
        return rows


def end(grid: Grid) -> float:
    """Return h at depth 1 of a network that follows the burst on a grid."""
    model = ContinuousDepth(Burst(), prior=OrnsteinUhlenbeck(0.0), dtype=DOUBLE).eval().predict_by(grid=grid)
    return model.draw(torch.ones(1, 1, dtype=DOUBLE), 1, torch.Generator()).f.item()


def test_steps_are_short_in_a_burst_and_worth_more_than_equal_ones() -> None:
    area = HEIGHT * WIDTH * math.sqrt(math.pi) * 0.5 * (math.erf(0.3 / WIDTH) + math.erf(0.7 / WIDTH))
    exact = math.exp(-1.0 - area)
    model = ContinuousDepth(Burst(), prior=OrnsteinUhlenbeck(0.0), dtype=DOUBLE)
    each = [fit_grid(model, torch.ones(3, 1, dtype=DOUBLE), tolerance) for tolerance in (0.02, 0.005, 0.001)]
    assert len(each[0]) < len(each[1]) < len(each[2])
    for grid in each:
        steps = torch.tensor(grid).diff()
        assert abs(grid[int(steps.argmin())] - BURST) < 0.125
        assert abs(end(grid) - exact) < abs(end(uniform_grid(1.0, len(grid) - 1)) - exact)
    errors = [abs(end(grid) - exact) for grid in each]
    assert errors[2] < errors[0]
    assert errors[2] < 0.003


def test_every_depth_that_is_read_is_on_the_grid() -> None:
    law = FixedDepth((0, 2), (0.5, 0.5))
    model = ContinuousDepth(MLPDynamics(2, 1), law=law, horizons=3, seed=1)
    grid = fit_grid(model, torch.ones(5, 2), 0.05)
    assert grid[0] == 0.0
    assert model.marks(grid)[-1] == len(grid) - 1  # raises if a depth is missing
    assert model.eval().predict_by(grid=grid).grid() == grid
    assert len(model.predict_by(steps=6).grid()) == 7
    model.predict_by(grid=grid).weigh({1: 1.0})
    assert model.times is None  # another support, another grid


def test_a_network_that_overflows_is_told_where() -> None:
    model = ContinuousDepth(Burst(growth=1e60), prior=OrnsteinUhlenbeck(0.0), dtype=DOUBLE)
    with pytest.raises(DivergenceError, match=r"not finite after step \d+, which ends at depth 0\.\d+; .*more steps"):
        fit_grid(model, torch.ones(1, 1, dtype=DOUBLE))


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.nan])
def test_a_tolerance_is_positive(tolerance: float) -> None:
    with pytest.raises(DataError, match=r"tolerance=.* a positive, finite number is allowed"):
        fit_grid(ContinuousDepth(Burst()), torch.ones(1, 1), tolerance)


def test_a_coarse_tolerance_is_warned_of() -> None:
    model = ContinuousDepth(Burst(), prior=OrnsteinUhlenbeck(0.0), dtype=DOUBLE)
    with pytest.warns(DataWarning, match=r"tolerance=0\.5 was given; from 0\.1 on"):
        assert fit_grid(model, torch.ones(1, 1, dtype=DOUBLE), 0.5) == uniform_grid(1.0, 8)  # the burst is not seen


@pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
@pytest.mark.parametrize("horizon", [1.0, RandomHorizon(count=3)], ids=str)
def test_estimators_keep_their_grid(horizon: float | RandomHorizon, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    options = {"epochs": 3, "cv": 2, "width": 4, "hidden": 6, "solver": Heun(steps=3), "random_state": 0}
    kind = ContinuousDepthRegressor if horizon == 1.0 else ContinuousDepthClassifier
    own = kind(**options, horizon=horizon).fit(X, X[:, 0] if horizon == 1.0 else (X[:, 0] > 0).astype(int))
    before = own.predict(X) if horizon == 1.0 else own.predict_proba(X)
    assert own.fit_grid(X, 1e-3) is own
    after = own.predict(X) if horizon == 1.0 else own.predict_proba(X)
    assert not np.array_equal(before, after)
    assert len(own.divergence_profile_) == len(own._networks()[0].grid()) - 1
    again = load(own.save(tmp_path / "own"))
    np.testing.assert_array_equal(after, again.predict(X) if horizon == 1.0 else again.predict_proba(X))
    np.testing.assert_array_equal(own.divergence_profile_, again.divergence_profile_)
