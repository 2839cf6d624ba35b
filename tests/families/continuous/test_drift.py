"""Estimators of the divergence of a path: section 14 of the specification, items 9 to 11, by name."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from families.continuous.scalars import (
    DOUBLE,
    bridge,
    drifts,
    each_gradient,
    parameter,
    prior_steps,
    scalar,
    standard_error,
)
from fathomless.families.continuous.drift import PosteriorDrift
from fathomless.families.continuous.grids import uniform_grid
from fathomless.families.continuous.processes import OrnsteinUhlenbeck

OPTIMUM, NEAR, FAR = (1.0, 1.0, 0.0, 0.0), (1.05, 0.95, 0.05, 0.0), (0.3, 0.5, 0.4, 0.5)
ESTIMATORS = ("closed", "full", "sticking")


def within(a: Tensor, b: Tensor, errors: float = 4.0) -> bool:
    """Return True if the means of two independent samples agree within some standard errors (0 without randomness)."""
    error = (standard_error(a).square() + standard_error(b).square()).sqrt()
    return bool(((a.mean(0) - b.mean(0)).abs() <= errors * error + 1e-12).all())


@pytest.mark.parametrize("phi", [NEAR, FAR], ids=["near", "far"])
def test_full_closed_and_sticking_agree(phi: tuple[float, ...]) -> None:
    """Values and gradients have the same mean under all estimators, each with independent paths."""
    kept = [each_gradient(phi, 20, name, 8000, seed) for seed, name in enumerate(ESTIMATORS)]
    for value, gradient in kept[1:]:
        assert within(kept[0][0], value)
        assert within(kept[0][1], gradient)
    mean = kept[0][1].mean(0)
    assert (mean.abs() > 8.0 * standard_error(kept[0][1])).any()  # so that the comparison says something


@pytest.mark.parametrize("learned", [False, True], ids=["given", "learned"])
@pytest.mark.parametrize("kind", ["shift", "diagonal", "lowrank", "network", "both"])
@pytest.mark.parametrize("transitions", ["exact", "euler"])
def test_estimators_agree_for_every_drift(transitions: str, kind: str, learned: bool) -> None:
    """Exact transitions too, whose variances differ from the prior's. One gradient for each of many networks."""
    members, size, paths, grid = 60, 3, 40, uniform_grid(1.0, 5)
    prior, drift = OrnsteinUhlenbeck(rate=0.8), drifts(size, kind, spread=0.5, seed=5, learned=learned)
    with torch.no_grad():
        for p in drift.parameters():
            p.data = p.expand(members, *p.shape[1:]).clone()
    reference = torch.full((members, size), 0.4, dtype=DOUBLE, requires_grad=True)
    parameters = [reference, *drift.parameters()]
    kept: dict[str, tuple[Tensor, Tensor]] = {}
    for seed, name in enumerate(ESTIMATORS):
        law = drift.law(prior, grid, reference, kind=transitions)
        stopped = drift.law(prior, grid, reference, kind=transitions, stopped=True) if name == "sticking" else None
        g = torch.Generator().manual_seed(seed)
        w, total = torch.zeros(members, paths, size, dtype=DOUBLE), torch.zeros(members, paths, dtype=DOUBLE)
        for i in range(5):
            after, change = law.step(i, w, torch.randn(w.shape, generator=g, dtype=DOUBLE))
            total = total + (law.closed(i, change) if name == "closed" else law.full(i, w, after, stopped))
            w = after
        gradients = torch.autograd.grad(total.mean(1).sum(), parameters, allow_unused=True)
        flat = [p.flatten(1) for p in gradients if p is not None]
        kept[name] = (total.detach().mean(1), torch.cat(flat, 1))
    assert float(kept["closed"][0].mean()) > 0.02
    for name in ESTIMATORS[1:]:  # of so many parameters one may be further away
        assert within(kept["closed"][0], kept[name][0])
        assert within(kept["closed"][1], kept[name][1], 5.5)


def test_sticking_sign_and_variance() -> None:
    """At the exact posterior: the stochastic term enters with +1, which removes the variance."""
    steps, members = 100, 3000
    total = {
        weight: float(each_gradient(OPTIMUM, steps, "sticking", members, 0, weight=weight)[1].var(0).sum())
        for weight in (-1.0, 0.0, 0.5, 1.0, 1.5, 2.0)
    }
    assert min(total, key=lambda weight: total[weight]) == 1.0
    for weight, expected in ((-1.0, 7.14), (0.0, 1.89), (0.5, 0.52), (1.5, 0.34), (2.0, 1.50)):
        assert total[weight] == pytest.approx(expected, rel=0.25), weight
    assert total[1.0] == pytest.approx(0.0058, rel=0.25)
    full = float(each_gradient(OPTIMUM, steps, "full", members, 0)[1].var(0).sum())
    assert full == pytest.approx(13.6, rel=0.25)
    # what is stopped are the parameters, not the weights that the drift is applied to
    frozen = float(each_gradient(OPTIMUM, steps, "frozen", members, 0)[1].var(0).sum())
    assert frozen == pytest.approx(1.9, rel=0.25)


def test_what_is_left_of_the_variance_vanishes_with_the_step() -> None:
    """The standard deviation is proportional to Δ; that of the closed form is constant."""
    spread = {n: float(each_gradient(OPTIMUM, n, "sticking", 3000, 1)[1].var(0).sum().sqrt()) for n in (25, 50, 100)}
    assert spread[25] / spread[50] == pytest.approx(2.0, rel=0.15)
    assert spread[50] / spread[100] == pytest.approx(2.0, rel=0.15)
    closed = [float(each_gradient(OPTIMUM, n, "closed", 3000, 1)[1].var(0).sum().sqrt()) for n in (25, 100)]
    assert closed[0] == pytest.approx(closed[1], rel=0.15)


@pytest.mark.parametrize(("phi", "expected"), [(NEAR, 0.030), (FAR, 0.57)], ids=["near", "far"])
def test_sticking_helps_near_the_optimum_alone(phi: tuple[float, ...], expected: float) -> None:
    sticking, closed = (each_gradient(phi, 100, name, 3000, 2)[1].var(0).sum() for name in ("sticking", "closed"))
    assert float(sticking / closed) == pytest.approx(expected, rel=0.3)


@pytest.mark.parametrize("steps", [10, 50])
def test_stochastic_term_is_ito(steps: int) -> None:
    """`full` less `closed` is ∫ u dB, with u at the left end: mean 0. At both ends its mean would be that of ½ σ ∂u."""
    paths, g = 40_000, torch.Generator().manual_seed(steps)
    law = scalar(uniform_grid(1.0, steps), kind="euler", network=bridge(FAR))
    w = torch.full((1, paths, 1), 0.7, dtype=DOUBLE)
    noise = prior_steps(law.grid, "euler").noise
    ito, stratonovich = torch.zeros(paths, dtype=DOUBLE), torch.zeros(paths, dtype=DOUBLE)
    for i in range(steps):
        eps = torch.randn(w.shape, generator=g, dtype=DOUBLE)
        after, change = law.step(i, w, eps)
        ito += (law.full(i, w, after) - law.closed(i, change))[0]
        later = law.change(min(i + 1, steps - 1), after)
        stratonovich += (0.5 * (change + later) / noise[i] * eps)[0, :, 0]
        w = after
    assert abs(float(ito.mean())) < 4.0 * float(standard_error(ito))
    assert abs(float(stratonovich.mean())) > 8.0 * float(standard_error(stratonovich))


def test_full_is_the_ratio_of_the_densities() -> None:
    """Against the normal densities of torch; with directions the density of all weights, not of these alone."""
    size, grid, prior, g = 4, uniform_grid(1.0, 3), OrnsteinUhlenbeck(rate=0.8), torch.Generator().manual_seed(0)
    reference, w, eps = (torch.randn(1, n, size, generator=g, dtype=DOUBLE) for n in (1, 6, 6))
    for kind in ("diagonal", "lowrank", "both"):
        law = drifts(size, kind, spread=0.6).law(prior, grid, reference[:, 0], kind="exact")
        step = prior_steps(grid, "exact", prior)
        for i in range(3):
            after, change = law.step(i, w, eps)
            mean_p = step.decay[i] * w
            root = law.spread(i, torch.eye(size, dtype=DOUBLE)[None])[0]  # of the covariance, symmetric
            covariance = root @ root.mT
            own = torch.distributions.MultivariateNormal(mean_p + change, covariance).log_prob(after)
            other = torch.distributions.Normal(mean_p, step.noise[i]).log_prob(after).sum(-1)
            torch.testing.assert_close(law.full(i, w, after), own - other, rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(law.whiten(i, law.spread(i, eps)), eps, rtol=1e-11, atol=1e-11)


def test_the_stop_acts_on_the_parameters_alone() -> None:
    drift = drifts(3, "both", spread=0.5)
    reference = torch.zeros(1, 3, dtype=DOUBLE, requires_grad=True)
    law = drift.law(OrnsteinUhlenbeck(rate=0.8), uniform_grid(1.0, 2), reference, kind="exact", stopped=True)
    w = torch.ones(1, 2, 3, dtype=DOUBLE, requires_grad=True)
    value = law.full(0, w, w + 0.1).sum()
    gradients = torch.autograd.grad(value, [w, reference, *drift.parameters()], allow_unused=True)
    assert gradients[0] is not None
    assert all(p is None for p in gradients[1:])


def test_knots_that_do_not_lie_on_the_grid_are_averaged() -> None:
    """A step takes the mean over time of shift and feedback; they are constant beyond the last knot."""
    drift = PosteriorDrift(1, "diagonal", rank=1, width=0.25, pieces=2, seed=0, dtype=DOUBLE)
    with torch.no_grad():
        for p, a in zip(drift.shift, (1.0, 3.0), strict=True):  # in units of σ
            p.fill_(a / math.sqrt(2.0))
        for p, kappa in zip(drift.log_rate, (0.0, 2.0), strict=True):
            p.fill_(parameter(kappa))
    law = drift.law(OrnsteinUhlenbeck(rate=1.0), (0.0, 0.3, 1.0), torch.zeros(1, 1, dtype=DOUBLE), kind="euler")
    w, dt = torch.tensor([[[0.0], [1.0]]], dtype=DOUBLE), (0.3, 0.7)
    for i, (shift, feedback) in enumerate(((1.0 + 2.0 / 6.0, 2.0 / 6.0), (3.0, 2.0))):
        expected = torch.tensor([shift, shift - feedback], dtype=DOUBLE) * dt[i]
        torch.testing.assert_close(law.change(i, w)[0, :, 0], expected)


def test_pieces_are_added_as_the_prior_and_dropped_again() -> None:
    drift = drifts(3, "lowrank", spread=0.5)
    prior, reference = OrnsteinUhlenbeck(rate=0.8), torch.ones(1, 3, dtype=DOUBLE)
    w = torch.ones(1, 2, 3, dtype=DOUBLE)
    short = drift.law(prior, uniform_grid(1.0, 4), reference, kind="exact")
    known = [short.change(i, w) for i in range(4)]
    assert drift.extend(6) == 2
    assert drift.extend(6) == 0
    long = drift.law(prior, uniform_grid(1.5, 6), reference, kind="exact")
    for i, value in enumerate(known):
        torch.testing.assert_close(long.change(i, w), value, rtol=1e-12, atol=1e-12)
    assert all((long.change(i, w) == 0.0).all() for i in (4, 5))
    drift.shorten(4)
    again = drift.law(prior, uniform_grid(1.0, 4), reference, kind="exact")
    assert all(torch.equal(again.change(i, w), value) for i, value in enumerate(known))


def test_feedback_stays_within_its_limits() -> None:
    """κ > −0.9 θ whatever its parameter, and never below 0 where the prior has no rate."""
    drift = drifts(2, "diagonal")
    with torch.no_grad():
        for p in drift.log_rate:
            p.copy_(torch.tensor([[-50.0, 50.0]]))
    for rate, least in ((0.5, 0.05), (0.0, 0.0)):
        prior = replace(OrnsteinUhlenbeck(), rate=rate)
        law = drift.law(prior, uniform_grid(1.0, 4), torch.zeros(1, 2, dtype=DOUBLE), kind="euler")
        kappa = -4.0 * law.change(0, torch.ones(1, 1, 2, dtype=DOUBLE))[0, 0]
        assert kappa[0].item() == pytest.approx(least - rate, abs=1e-12)
        assert kappa[1].isfinite()


@pytest.mark.parametrize("transitions", ["exact", "euler"])
def test_a_learned_speed_is_that_of_the_prior_s_clock(transitions: str) -> None:
    """Rate and σ² are those of the prior times it, under both laws; without shift and feedback the divergence is 0."""
    grid, prior, faster = uniform_grid(1.0, 4), OrnsteinUhlenbeck(rate=0.3), OrnsteinUhlenbeck(rate=0.3 * 2.5)
    w, eps = (torch.randn(1, 5, 3, generator=torch.Generator().manual_seed(k), dtype=DOUBLE) for k in range(2))
    learned, given = drifts(3, "diagonal", learned=True), drifts(3, "diagonal")
    assert learned.log_speed is not None
    with torch.no_grad():
        learned.log_speed *= 0.0
        learned.log_speed += math.log(2.5) / 10.0
    zero = torch.zeros(1, 3, dtype=DOUBLE)
    laws = [learned.law(prior, grid, zero, kind=transitions), given.law(faster, grid, zero, kind=transitions)]
    for i in range(4):
        (ours, change), (theirs, _) = (law.step(i, w, eps) for law in laws)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        assert (laws[0].closed(i, change) == 0.0).all()
    charge = learned.charge()
    assert charge is not None
    assert charge.item() == pytest.approx(0.5 * (math.log(2.5) / 2.0) ** 2)
    assert given.charge() is None
