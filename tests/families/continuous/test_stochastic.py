"""Weights that vary in a part of the depth: option `stochastic` of paths."""

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from families.continuous.scalars import DOUBLE, drifts
from fathomless import ContinuousDepthRegressor, Heun, PathOptions, RandomHorizon
from fathomless.families.continuous.accuracy import draw_coupled
from fathomless.families.continuous.dynamics import MLPDynamics
from fathomless.families.continuous.grids import Span, clip, uniform_grid
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.processes import Brownian, OrnsteinUhlenbeck, Process
from fathomless.families.continuous.solve import PathInference
from fathomless.system.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

REFERENCE = torch.full((1, 3), 0.4, dtype=DOUBLE)
SPANS = [(0.0, 0.5), (0.5, math.inf), (0.0, 0.3), (0.25, 0.75)]


def fitted(seed: int = 0, **options: Any) -> ContinuousDepthRegressor:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    quick = {"epochs": 6, "width": 4, "hidden": 6, "solver": Heun(steps=4), "cv": 2, "weight_draws": 4}
    return ContinuousDepthRegressor(random_state=seed, **{**quick, **options}).fit(X, np.sin(X[:, 0]))


X_NEW = np.random.default_rng(1).normal(size=(7, 2))


# ---------------------------------------------------------------------------------------------- laws of paths


@given(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8),
    st.tuples(st.floats(0.0, 4.0), st.floats(0.0, 4.0)).map(sorted).map(tuple),
)
def test_parts_of_steps_partition_the_interval(lengths: list[float], span: Span) -> None:
    grid = tuple(np.cumsum([0.0, *lengths]).tolist())
    parts = clip(grid, span)
    total = sum(b - a for a, b in parts.values())
    assert total == pytest.approx(max(0.0, min(span[1], grid[-1]) - span[0]), abs=1e-7)
    assert all(grid[i] <= a < b <= grid[i + 1] for i, (a, b) in parts.items())


@pytest.mark.parametrize("kind", ["shift", "diagonal", "lowrank", "network", "both"])
def test_steps_inside_are_those_of_the_whole_law(kind: str) -> None:
    """Steps outside keep the weights, and have no divergence."""
    grid, prior, drift = uniform_grid(1.0, 8), OrnsteinUhlenbeck(rate=0.8), drifts(3, kind, spread=0.6)
    whole = drift.law(prior, grid, REFERENCE, kind="exact")
    law = drift.law(prior, grid, REFERENCE, kind="exact", span=(0.25, 0.75))
    assert [i for i in range(8) if law.varies(i)] == [2, 3, 4, 5]
    w, eps = torch.randn(2, 1, 5, 3, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    for i in law.steps:
        for ours, theirs in zip(law.step(i, w, eps), whole.step(i, w, eps), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        change = whole.change(i, w)
        torch.testing.assert_close(law.closed(i, change), whole.closed(i, change), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("kind", ["shift", "diagonal", "lowrank"])
def test_a_step_across_the_end_is_many_short_ones(kind: str, span: Span) -> None:
    """Mean and covariance of the last weights are the same on 3 and on 60 steps, if the drift is constant."""
    drift = drifts(3, kind, spread=0.6)
    drift.shorten(1)
    moments = []
    for steps in (3, 60):
        law = drift.law(OrnsteinUhlenbeck(rate=0.8), uniform_grid(1.0, steps), REFERENCE, kind="exact", span=span)
        eye = torch.eye(3, dtype=DOUBLE)[None]
        mean, covariance = torch.full((1, 1, 3), 0.7, dtype=DOUBLE), torch.zeros(3, 3, dtype=DOUBLE)
        for i in law.steps:
            root = law.spread(i, eye)[0]
            zero = law.step(i, torch.zeros_like(mean), torch.zeros_like(mean))[0]
            factor = (law.step(i, eye, torch.zeros_like(eye))[0] - zero)[0]  # of the weights before, as rows
            covariance = factor.mT @ covariance @ factor + root.mT @ root
            mean = law.step(i, mean, torch.zeros_like(mean))[0]
        moments.append((mean, covariance))
    for few, many in zip(*moments, strict=True):
        torch.testing.assert_close(few, many, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("prior", [OrnsteinUhlenbeck(rate=0.8), Brownian(0.6)])
@pytest.mark.parametrize("span", SPANS)
def test_the_prior_depends_on_the_length_of_the_interval(prior: Process, span: Span) -> None:
    """Closed forms: correlation e^{−θL} and constant variance, or variance 1 + σ² L, with the length L inside."""
    model = ContinuousDepth(
        MLPDynamics(2, 1, 2, (2,)), prior=prior, options=PathInference(steps=7, span=span), dtype=DOUBLE
    )
    law = model.law_of_paths(model.grid())
    decay, variance = 1.0, 1.0
    for i in law.steps:
        plain = law.steps[i].plain
        decay *= plain.prior_decay.item()
        variance = plain.prior_decay.item() ** 2 * variance + plain.prior_noise.item() ** 2
    length = min(span[1], 1.0) - span[0]
    assert model.clock(1.0) == pytest.approx(length)
    assert decay == pytest.approx(math.exp(-prior.rate * length))
    assert variance == pytest.approx(prior.variance(length))


@pytest.mark.parametrize("span", SPANS)
@torch.no_grad()
def test_paths_on_nested_grids_are_the_same(span: Span) -> None:
    """The distance of n to 2n steps on the same paths falls as for paths that vary everywhere."""
    options = PathInference(steps=8, span=span)
    net, prior = MLPDynamics(2, 1, 6, (6,)), OrnsteinUhlenbeck(1.0)
    model = ContinuousDepth(net, prior=prior, weight_prior=1.0, options=options, dtype=DOUBLE)
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    f = [draw_coupled(model.eval(), x, 50, n, 64, 3).f for n in (8, 16, 32, 64)]
    distance = [float((a - b).square().mean().sqrt()) for a, b in pairwise(f)]
    assert all(a > 1.4 * b for a, b in pairwise(distance)), distance
    other = draw_coupled(model, x, 50, 64, 64, 4).f
    assert float((f[-1] - other).square().mean().sqrt()) > 5.0 * distance[-1]


# ---------------------------------------------------------------------------------------------- estimators


def test_the_whole_horizon_and_none_of_it_are_the_known_limits() -> None:
    """To the byte: all weights vary, and those of a neural differential equation."""
    every, one = fitted().predict(X_NEW), fitted(path=PathOptions(stochastic=1.0)).predict(X_NEW)
    assert np.array_equal(every, one)
    flow, none = (fitted(path=path).predict(X_NEW) for path in (PathOptions(rate=0), PathOptions(stochastic=0)))
    assert np.array_equal(flow, none)
    assert not np.array_equal(every, flow)


@pytest.mark.parametrize(("part", "inside"), [("first", [1, 1, 0, 0]), ("last", [0, 0, 1, 1]), (0.25, [1, 0, 0, 0])])
def test_the_divergence_lies_in_the_part(part: Any, inside: list[int], tmp_path: Path) -> None:
    path = PathOptions(stochastic=part, initial="gaussian")
    model = fitted(path=path, solver=Heun(steps=4, jitter="none"))
    assert (model.divergence_profile_[:, 1] > 0.0).tolist() == [bool(i) for i in inside]
    assert model.effective_depth_ >= 1
    model.save(tmp_path / "model.pt")
    again = ContinuousDepthRegressor.load(tmp_path / "model.pt")
    assert np.array_equal(again.predict(X_NEW, return_std=True), model.predict(X_NEW, return_std=True))


@pytest.mark.parametrize("part", ["first", "last"])
def test_a_random_horizon_lies_partly_inside(part: str) -> None:
    model = fitted(path=PathOptions(stochastic=part), horizon=RandomHorizon(count=4), epochs=2)
    depth, rate = model.divergence_profile_.T
    outside = depth > 0.5 if part == "first" else depth < 0.5
    assert (rate[outside] == 0.0).all()
    assert (rate[~outside] > 0.0).any()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"stochastic": "middle"}, "path__stochastic='middle' was given"),
        ({"stochastic": 1.5}, "path__stochastic=1.5 was given; at most 1"),
        ({"stochastic": -0.1}, "path__stochastic=-0.1 was given; 0 or more"),
    ],
)
def test_other_parts_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        fitted(path=PathOptions(**options))


def test_the_reversible_scheme_needs_the_whole_horizon() -> None:
    path, solver = PathOptions(stochastic="first", rate=0.1), Heun(steps=8, gradient="reversible")
    with pytest.raises(DataError, match="solver__gradient='reversible' was given with weights that vary in a part"):
        fitted(path=path, solver=solver)
