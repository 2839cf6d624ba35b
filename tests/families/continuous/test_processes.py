"""Processes of weights and their divergence: section 14 of the specification, items 1 to 8, 23 and 28, by name."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from families.continuous.scalars import (
    DOUBLE,
    EVIDENCE,
    PRIOR,
    SIGMA,
    START,
    bound,
    bridge,
    drifts,
    evidence,
    feedback_of,
    moments,
    parameter,
    scalar,
    standard_error,
)
from fathomless.families.continuous.grids import Grid, jitter_steps, overlap, uniform_grid
from fathomless.families.continuous.processes import (
    Brownian,
    OrnsteinUhlenbeck,
    Process,
    coarsen,
    excess,
    relaxation,
    transition,
)

UNEVEN: Grid = (0.0, 0.05, 0.3, 0.35, 0.8, 1.0)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


def test_ou_transition_is_stationary() -> None:
    """N(0, s²) is mapped to itself by any step; its variance is s² = σ²/(2θ), not twice that."""
    prior = OrnsteinUhlenbeck(rate=0.7, scale=0.9)
    dt = torch.logspace(-6, 3, 30, dtype=DOUBLE)
    step = transition(prior, torch.zeros_like(dt), dt)
    after = step.decay.square() * prior.scale**2 + step.noise.square()
    torch.testing.assert_close(after, torch.full_like(after, 0.81), rtol=1e-12, atol=0.0)
    assert prior.diffusion**2 / (2.0 * prior.rate) == pytest.approx(prior.variance(3.0))
    paths, g = 100_000, torch.Generator().manual_seed(0)
    law = scalar(UNEVEN, prior=prior)
    w = prior.scale * torch.randn(1, paths, 1, generator=g, dtype=DOUBLE)
    for i in range(len(UNEVEN) - 1):
        w, _ = law.step(i, w, torch.randn(w.shape, generator=g, dtype=DOUBLE))
        assert abs(float(w.mean())) < 4.0 * prior.scale / math.sqrt(paths)
        assert float(w.square().mean()) == pytest.approx(0.81, abs=4.0 * 0.81 * math.sqrt(2.0 / paths))


@pytest.mark.parametrize("rate", [0.0, 0.3, 5.0])
def test_transition_composes(rate: float) -> None:
    """Two halves of a step are the step, in law and path by path."""
    prior: Process = OrnsteinUhlenbeck(rate=rate) if rate else Brownian(diffusion=0.8)
    feedback, halves = numbers(0.0, 0.7), numbers(0.2, 0.5)[:, None]
    two, one = transition(prior, feedback, halves), transition(prior, feedback, halves.sum(0, keepdim=True))
    torch.testing.assert_close(two.decay.prod(0), one.decay[0], rtol=1e-12, atol=0.0)
    variance = two.decay[1].square() * two.noise[0].square() + two.noise[1].square()
    torch.testing.assert_close(variance, one.noise[0].square(), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(
        two.decay[1] * two.gain[0] + two.gain[1], one.gain[0], rtol=1e-12, atol=0.0
    )  # of a drift that stays
    eps = torch.randn(2, 4, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    w = start = torch.ones(4, 2, dtype=DOUBLE)
    for i in range(2):
        w = two.decay[i] * w + two.noise[i] * eps[i]
    whole = one.decay[0] * start + one.noise[0] * coarsen(list(eps), two.decay, two.noise)
    torch.testing.assert_close(whole, w, rtol=1e-12, atol=1e-14)


def test_a_rate_of_zero_gives_brownian_motion_and_no_diffusion_the_same_weights() -> None:
    dt = numbers(0.1, 2.0)
    slow = transition(OrnsteinUhlenbeck(rate=1e-12, scale=1e6), torch.zeros_like(dt), dt)
    brownian = transition(Brownian(diffusion=math.sqrt(2.0)), torch.zeros_like(dt), dt)
    torch.testing.assert_close(slow.decay, brownian.decay, rtol=1e-11, atol=0.0)
    torch.testing.assert_close(slow.noise, brownian.noise, rtol=1e-11, atol=0.0)
    torch.testing.assert_close(brownian.noise, (2.0 * dt).sqrt(), rtol=1e-12, atol=0.0)
    still = transition(OrnsteinUhlenbeck(rate=0.0), torch.zeros_like(dt), dt)
    assert torch.equal(still.decay, torch.ones_like(dt))
    assert torch.equal(still.noise, torch.zeros_like(dt))
    assert Brownian(diffusion=0.5, scale=2.0).variance(3.0) == pytest.approx(4.75)


@pytest.mark.parametrize(
    ("steps", "expected"), [(1, 0.399474), (5, 0.884658), (25, 0.927676), (100, 0.929506), (400, 0.929622)]
)
def test_path_kl_matches_ornstein_uhlenbeck(steps: int, expected: float) -> None:
    """Rate 3 beside a prior of rate 1; the limit is 0.929629, from below."""
    found = moments(scalar(uniform_grid(1.0, steps), feedback=2.0)).divergence
    assert found == pytest.approx(expected, abs=1e-6)
    assert found < 0.929629


def test_the_drift_of_the_family_has_the_same_divergence() -> None:
    """By its parameters, in units of the prior's deviation, on knots that lie on the grid."""
    drift = drifts(1, "diagonal")
    with torch.no_grad():
        for p in drift.log_rate:
            p.fill_(parameter(2.0))
    reference = torch.zeros(1, 1, dtype=DOUBLE)
    for steps, expected in ((5, 0.884658), (100, 0.929506)):
        law = drift.law(OrnsteinUhlenbeck(rate=1.0), uniform_grid(1.0, steps), reference, kind="exact")
        assert moments(law, START / PRIOR.scale).divergence == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("grid", [uniform_grid(1.0, 1), uniform_grid(1.0, 8), UNEVEN], ids=len)
def test_grid_kl_equals_joint_gaussian_kl(grid: Grid) -> None:
    """The sum over steps is the divergence of the joint laws of the weights at all times, which are written out."""

    def joint(rate: float, shift: float) -> torch.distributions.MultivariateNormal:
        t = torch.tensor(grid[1:], dtype=DOUBLE)
        mean = (-rate * t).exp() * START + (1.0 - (-rate * t).exp()) * shift / rate
        apart, together = (t[:, None] - t).abs(), t[:, None] + t
        covariance = SIGMA**2 / (2.0 * rate) * ((-rate * apart).exp() - (-rate * together).exp())
        return torch.distributions.MultivariateNormal(mean, covariance)

    expected = torch.distributions.kl_divergence(joint(3.0, 0.4), joint(1.0, 0.0)).item()
    found = moments(scalar(grid, feedback=2.0, shift=0.4)).divergence
    assert found == pytest.approx(expected, abs=1e-10)


def test_path_kl_of_a_shift() -> None:
    """A shift θμ that holds the mean at μ costs ½ θ² μ² T / σ² = 1.28 as Δ → 0, and T μ²/σ² tanh(θΔ/2)/Δ before."""
    for steps in (1, 4, 400):
        found = moments(scalar(uniform_grid(1.0, steps), shift=0.8)).divergence
        assert found == pytest.approx(steps * 0.64 / SIGMA**2 * math.tanh(0.5 / steps), rel=1e-12)
    assert found == pytest.approx(1.28, rel=1e-6)


@pytest.mark.parametrize("left", [0.5, 0.3, 0.1])
def test_path_kl_of_a_contraction(left: float) -> None:
    """Holding a deviation at r s costs θT (1 − r²)² / (4 r²) along the path, approached from below."""
    rate, limit = 0.25, 0.25 * (1.0 - left**2) ** 2 / (4.0 * left**2)
    prior = OrnsteinUhlenbeck(rate=rate)
    kept: list[float] = []
    for steps in (100, 200, 400):
        law = scalar(uniform_grid(1.0, steps), feedback=rate * (1.0 / left**2 - 1.0), prior=prior)
        found = moments(law, 0.0, left**2)
        assert found.variance[-1] == pytest.approx(left**2, rel=1e-12)
        kept.append(found.divergence)
    assert kept == sorted(kept)
    assert kept[-1] < limit
    assert 2.0 * kept[2] - kept[1] == pytest.approx(limit, rel=2e-3)  # the error is linear in Δ


@pytest.mark.parametrize("kind", ["exact", "euler"])
def test_low_rank_equals_diagonal(kind: str) -> None:
    """With as many directions as weights, and U = I."""
    size, grid, prior = 4, UNEVEN, OrnsteinUhlenbeck(rate=0.6)
    low, diagonal = (drifts(size, name, rank=size, seed=3, spread=0.7) for name in ("lowrank", "diagonal"))
    assert low.basis is not None
    with torch.no_grad():
        low.basis.copy_(torch.eye(size, dtype=DOUBLE))
        for mine, theirs in zip([*low.shift, *low.log_rate], [*diagonal.shift, *diagonal.log_rate], strict=True):
            mine.copy_(theirs)
    g = torch.Generator().manual_seed(0)
    reference, w, eps = (torch.randn(1, n, size, generator=g, dtype=DOUBLE) for n in (1, 5, 5))
    laws = [drift.law(prior, grid, reference[:, 0], kind=kind) for drift in (low, diagonal)]
    for i in range(len(grid) - 1):
        (ours, change), (theirs, other) = (law.step(i, w, eps) for law in laws)
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(laws[0].closed(i, change), laws[1].closed(i, other), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(laws[0].full(i, w, ours), laws[1].full(i, w, ours), rtol=1e-11, atol=1e-11)
        w = ours


@pytest.mark.parametrize("seed", [0, 1])
def test_low_rank_is_diagonal_in_rotated_weights_whatever_the_complement(seed: int) -> None:
    """z = Qᵀ w with Q = [U, V] and any V has independent coordinates; κ is 0 in those of V."""
    size, rank, prior = 5, 2, OrnsteinUhlenbeck(rate=0.6)
    drift = drifts(size, "lowrank", rank=rank, seed=2, spread=0.7)
    g = torch.Generator().manual_seed(seed)
    reference, w, eps = (torch.randn(1, n, size, generator=g, dtype=DOUBLE) for n in (1, 4, 4))
    law = drift.law(prior, UNEVEN, reference[:, 0], kind="exact")
    assert law.directions is not None
    U = law.directions[0]
    V = torch.linalg.qr(torch.cat([U, torch.randn(size, size - rank, generator=g, dtype=DOUBLE)], 1))[0][:, rank:]
    Q = torch.cat([U, V], 1)
    torch.testing.assert_close(Q.mT @ Q, torch.eye(size, dtype=DOUBLE), rtol=0.0, atol=1e-12)
    for i, (a, b) in enumerate(pairwise(UNEVEN)):
        share = torch.tensor(overlap(UNEVEN, 0.25, 4), dtype=DOUBLE)[i]
        rates = torch.stack([feedback_of(p[0], prior) for p in drift.log_rate])
        shifts = prior.diffusion * torch.stack([p[0] for p in drift.shift])
        kappa = torch.cat([share @ rates, torch.zeros(size - rank, dtype=DOUBLE)])
        step = transition(prior, kappa, torch.tensor(b - a, dtype=DOUBLE))
        push = share @ shifts @ Q + kappa * (reference[0, 0] @ Q)
        z, noise = w @ Q, eps @ Q
        moved = step.decay * z + step.gain * push
        after, change = law.step(i, w, eps)
        torch.testing.assert_close(after, (moved + step.noise * noise) @ Q.mT, rtol=1e-11, atol=1e-12)
        off = (moved - step.prior_decay * z) / step.prior_noise
        expected = 0.5 * (off.square() + step.ratio - 1.0 - step.ratio.log()).sum(-1)
        torch.testing.assert_close(law.closed(i, change), expected, rtol=1e-10, atol=1e-12)
        w = after


@pytest.mark.parametrize(("steps", "expected"), [(25, 0.985712), (50, 0.956874), (100, 0.943061)])
def test_euler_chain_kl(steps: int, expected: float) -> None:
    """It is the sum of ½ E|u|² Δ, u = −κ w / σ."""
    found = moments(scalar(uniform_grid(1.0, steps), feedback=2.0, kind="euler"))
    assert found.divergence == pytest.approx(expected, abs=1e-6)
    second = [m**2 + v for m, v in zip(found.mean[:-1], found.variance[:-1], strict=True)]
    assert found.divergence == pytest.approx(sum(0.5 * (2.0 / SIGMA) ** 2 * w2 / steps for w2 in second), rel=1e-12)


def test_the_divergence_grows_with_refinement_to_its_limit() -> None:
    """Exact transitions on nested grids: refinement cannot reduce the divergence."""

    def refined(grid: Grid, times: int) -> Grid:
        return (*(a + (b - a) * k / times for a, b in pairwise(grid) for k in range(times)), grid[-1])

    kept = [moments(scalar(refined(UNEVEN, k), feedback=1.5, shift=-0.6)).divergence for k in (1, 2, 4, 8)]
    assert kept == sorted(kept)
    assert kept[-1] - kept[-2] < 0.3 * (kept[1] - kept[0])


@pytest.mark.parametrize("prior", [OrnsteinUhlenbeck(rate=0.25), Brownian(diffusion=0.7)], ids=["ou", "brownian"])
@pytest.mark.parametrize("transitions", ["exact", "euler"])
@pytest.mark.parametrize("kind", ["shift", "diagonal", "lowrank", "network", "both"])
def test_divergence_is_zero_at_start(kind: str, transitions: str, prior: Process) -> None:
    """It is exactly 0 at the prior, and nowhere negative. Gradients are finite there."""
    g = torch.Generator().manual_seed(1)
    reference, w = torch.randn(1, 6, generator=g), torch.randn(1, 8, 6, generator=g)
    for spread in (0.0, 0.1, 3.0):
        drift = drifts(6, kind, spread=spread, dtype=torch.float32)
        law = drift.law(prior, UNEVEN, reference, kind=transitions)
        each = torch.stack([law.closed(i, law.change(i, w)) for i in range(len(UNEVEN) - 1)])
        assert (each >= 0.0).all()
        assert bool((each == 0.0).all()) == (spread == 0.0)
        each.sum().backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in drift.parameters())


@pytest.mark.parametrize("kind", ["exact", "euler"])
@pytest.mark.parametrize("steps", [1, 2, 7, 40])
def test_bound_below_evidence(kind: str, steps: int) -> None:
    """For all shifts and feedbacks and on every grid, the bound is one on the evidence of this chain."""
    grid, g = uniform_grid(1.0, steps), torch.Generator().manual_seed(steps)
    top = evidence(kind, grid)
    if kind == "exact":
        assert top == pytest.approx(EVIDENCE, abs=5e-5)  # whatever the number of steps
    for _ in range(20):
        feedback, shift = torch.randn(2, generator=g, dtype=DOUBLE).tolist()
        law = scalar(grid, feedback=math.expm1(feedback), shift=1.5 * shift, kind=kind)
        assert bound(law) < top
    near = [(k, a) for k in (0.0, 0.5, 1.0) for a in (0.4, 0.8, 1.2, 1.6)]
    best = max(bound(scalar(grid, feedback=k, shift=a, kind=kind)) for k, a in near)
    assert top - 0.8 < best < top  # so that the comparison says something


def test_the_bound_of_the_exact_drift_is_the_evidence() -> None:
    """Up to what changes within a step: its linear part as shift and feedback, and all of it frozen, as Euler does."""
    for steps, gap in ((25, 0.01), (100, 0.002)):
        grid, drift = uniform_grid(1.0, steps), bridge()
        middle = [drift(0.5 * (a + b), numbers(0.0, 1.0)) for a, b in pairwise(grid)]
        push, pull = [float(c[0]) for c in middle], [float(c[0] - c[1]) for c in middle]
        linear = scalar(grid, feedback=pull, shift=push)
        assert 0.0 < evidence("exact", grid) - bound(linear) <= gap
        euler = bound(scalar(grid, kind="euler", network=drift))
        assert euler < evidence("euler", grid)
        assert 0.0 < EVIDENCE - euler <= gap  # its own evidence is another one
        frozen = evidence("exact", grid) - bound(scalar(grid, network=drift))
        assert gap / 2.0 < frozen <= 1.5 * gap  # first order in the step


@pytest.mark.parametrize("feedback", [-0.9, 0.0, 1e-6, 100.0])
@pytest.mark.parametrize("stiffness", [0.0, 1e-8, 1.0, 80.0])
@pytest.mark.parametrize("kind", ["exact", "euler"])
def test_float32_extremes(kind: str, stiffness: float, feedback: float) -> None:
    """θΔ of `stiffness` and κ a multiple of θ: values and gradients are finite, and near those in double."""
    prior: Process = OrnsteinUhlenbeck(rate=stiffness) if stiffness else Brownian(diffusion=1.0)
    kept = []
    for dtype in (torch.float32, DOUBLE):
        kappa = torch.tensor([[[[feedback * stiffness]]]], dtype=dtype, requires_grad=True)
        w, b = torch.full((1, 1, 1), 0.7, dtype=dtype), torch.full((1, 1, 1), 0.4, dtype=dtype, requires_grad=True)
        step = transition(prior, kappa, torch.ones_like(kappa), kind=kind)
        change = step.turn[0] * w + step.gain[0] * b
        value = 0.5 * ((change / step.prior_noise[0]).square() + excess(step.ratio[0])).sum()
        value = value + step.noise.sum() + step.decay.sum()
        kept.append([value.detach().double(), *(g.double() for g in torch.autograd.grad(value, (kappa, b)))])
    for single, double in zip(*kept, strict=True):
        assert single.isfinite().all()
        torch.testing.assert_close(single, double, rtol=2e-4, atol=1e-6)


def test_series_continue_the_closed_forms() -> None:
    """Values and slopes at both sides of where they change, against double; ρ − 1 − ln ρ is 0 at 1 exactly."""
    for name, edge, exact in (
        ("relaxation", 1e-2, lambda x: -torch.expm1(-x) / x),
        ("excess", 3e-2, lambda x: x - torch.log1p(x)),
    ):
        for factor in (-4.0, -1.001, -0.999, -0.3, 0.3, 0.999, 1.001, 4.0):
            x = torch.tensor(factor * edge, requires_grad=True)
            ours = relaxation(x) if name == "relaxation" else excess(1.0 + x)
            y = x.detach().double().requires_grad_()
            theirs = exact(y)
            (slope,), (expected,) = torch.autograd.grad(ours, x), torch.autograd.grad(theirs, y)
            assert ours.item() == pytest.approx(theirs.item(), rel=2e-4 if name == "excess" else 1e-6)
            assert slope.item() == pytest.approx(expected.item(), rel=2e-4)
    one = torch.ones(1, requires_grad=True)
    assert excess(one).item() == 0.0
    assert torch.autograd.grad(excess(one).sum(), one)[0].item() == 0.0
    assert relaxation(torch.zeros(1)).item() == 1.0


def test_jitter_is_log_uniform_between_half_and_twice() -> None:
    drawn = [jitter_steps(20, seed) for seed in range(4000)]
    assert min(drawn) >= 10
    assert max(drawn) <= 40
    assert len(set(drawn)) == 31
    below = sum(n < 20 for n in drawn) / len(drawn)  # log₂(19.5/20) + 1 of them round down to less
    assert below == pytest.approx(math.log2(19.5 / 20.0) / 2.0 + 0.5, abs=4.0 * 0.5 / math.sqrt(4000))
    assert all(jitter_steps(20, seed, 8) % 8 == 0 for seed in range(100))
    assert jitter_steps(20, 7) == jitter_steps(20, 7)


def test_moments_of_drawn_paths_agree_with_those_by_quadrature() -> None:
    """The oracle of this file against Monte Carlo."""
    law, g = scalar(UNEVEN, feedback=2.0, shift=0.4), torch.Generator().manual_seed(0)
    w, total = torch.full((1, 20_000, 1), START, dtype=DOUBLE), torch.zeros(20_000, dtype=DOUBLE)
    for i in range(len(UNEVEN) - 1):
        w, change = law.step(i, w, torch.randn(w.shape, generator=g, dtype=DOUBLE))
        total = total + law.closed(i, change)[0]
    known = moments(law)
    assert abs(float(total.mean()) - known.divergence) < 4.0 * float(standard_error(total))
    assert abs(float(w.mean()) - known.mean[-1]) < 4.0 * float(standard_error(w[0, :, 0]))
