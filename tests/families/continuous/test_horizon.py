"""Random horizon, and accuracy by number of steps: section 14 of the specification, items 24 to 26 and 29, by name."""

import copy
import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from families.continuous.scalars import DOUBLE
from fathomless.families.continuous import accuracy
from fathomless.families.continuous.accuracy import draw_coupled, effective_depth, hellinger, round_steps
from fathomless.families.continuous.deploy import fixed_paths
from fathomless.families.continuous.dynamics import MLPDynamics
from fathomless.families.continuous.grids import uniform_grid
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.processes import OrnsteinUhlenbeck
from fathomless.families.continuous.solve import PathInference
from fathomless.inference.variational.objective import elbo
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.laws import DepthLaw, FixedDepth, FreeCategorical, PoissonPrior, TruncatedPoisson
from fathomless.posterior.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from fathomless.posterior.model import Draws
from fathomless.posterior.predictive import predictive

HORIZONS = 4


def build(
    law: DepthLaw | None = None, *, outputs: int = 1, spread: float = 0.3, seed: int = 0, **options: Any
) -> ContinuousDepth:
    """Return a network in double precision, away from its prior, with horizons in quarters."""
    path = {"rank": 3, "steps": 8, "jitter": "none", "gradient": "unrolled", **options}
    model = ContinuousDepth(
        MLPDynamics(2, outputs, width=4, hidden=(5,)),
        prior=OrnsteinUhlenbeck(rate=0.5),
        weight_prior=1.5,
        options=PathInference(**path),
        horizons=HORIZONS,
        law=law,
        seed=seed,
        dtype=DOUBLE,
    )
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not name.startswith("law"):
                p += spread * (0.2 if "log_rate" in name else 1.0) * torch.randn(p.shape, generator=g, dtype=DOUBLE)
    return model


def data(n: int = 20) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, 2, generator=g, dtype=DOUBLE)
    return x, x[:, :1].sin() + 0.1 * torch.randn(n, 1, generator=g, dtype=DOUBLE)


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("law", [TruncatedPoisson(2.2), FreeCategorical(5), FixedDepth((1, 3), (0.3, 0.7))], ids=repr)
@pytest.mark.parametrize("estimator", ["closed", "full"])
def test_survival_weighted_divergence(law: DepthLaw, estimator: str) -> None:
    """Σ_k q(k) Σ_{i ≤ k} KL_i = Σ_i S_i KL_i; value and all gradients of the bound against one that is written out."""
    model, (x, y), likelihood = build(law, estimator=estimator), data(), Gaussian(1, noise=0.3)
    with torch.no_grad():
        for i, p in enumerate(model.law_parameters):
            p += 0.2 * i
    bound = elbo(model.draw(x, 3, noise()), likelihood, y, size=20)
    bound.value.backward()
    got = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    eta = model._eta().detach().requires_grad_()
    with torch.no_grad():
        q, dq = model.law.probs_and_grad(eta, model._support)
    q = q + dq @ (eta - eta.detach())  # a value of q whose derivative is the Jacobian
    log_prior = model.horizon_prior.log_prob(torch.tensor(model._support, dtype=DOUBLE))
    grid = model.grid(8)
    marks = model.marks(grid)
    f, _, _, divergence = model.follow_paths(x, 3, grid, noise(), marks)
    expected, depths = torch.zeros((), dtype=DOUBLE), torch.zeros((), dtype=DOUBLE)
    for j, k in enumerate(model._support):
        assert grid[marks[j]] == pytest.approx((k + 1) * model.unit)
        log_p = likelihood.log_prob(f[j], y).sum(1).mean()
        gain = log_p - divergence.initial.mean() - divergence.path[: marks[j]].mean((1, 2)).sum()
        expected = expected + q[j] * (gain + log_prior[j] - q[j].log())
        depths = depths + q[j] * (q[j].log() - log_prior[j])
    torch.testing.assert_close(bound.value, expected, rtol=1e-10, atol=0.0)
    torch.testing.assert_close(bound.divergence["horizon"], depths, rtol=1e-9, atol=1e-12)
    expected.backward()
    for name, p in model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(got[name], p.grad, rtol=1e-8, atol=1e-10, msg=name)
    if len(eta):  # d(q log q) gives Σ ∂q = 0 too
        law_gradient = torch.stack([got[name] for name in model.structure_parameters()])
        assert eta.grad is not None
        assert law_gradient.abs().max() > 1e-3
        torch.testing.assert_close(law_gradient, eta.grad, rtol=1e-7, atol=1e-9)


def test_a_point_mass_is_the_fixed_horizon() -> None:
    """Bit for bit: outputs, divergence of the weights, and gradients."""
    x, y = data()
    fixed, random = build(), build(FixedDepth((HORIZONS - 1,)))
    kept = [model.draw(x, 3, noise()) for model in (fixed, random)]
    assert torch.equal(kept[0].f, kept[1].f)
    assert torch.equal(kept[0].log_weight, kept[1].log_weight)
    assert torch.equal(kept[0].divergence["weights"], kept[1].divergence["weights"])
    assert kept[0].structure.tolist() == [0] * 3
    assert kept[1].structure.tolist() == [HORIZONS] * 3
    for draws in kept:
        elbo(draws, Gaussian(1, noise=0.3), y, size=20).value.backward()
    for (name, p), q in zip(fixed.named_parameters(), random.parameters(), strict=True):
        assert torch.equal(p.grad, q.grad), name  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{}, {"drift": "both", "initial": "gaussian", "solver": "euler"}], ids=str)
@torch.no_grad()
def test_horizon_prefix(options: dict[str, Any]) -> None:
    """One solution read at every kδ equals separate solutions that end at kδ."""
    model, (x, _) = build(FreeCategorical(5), **options).eval(), data()
    draws = model.draw(x, 3, noise())
    assert draws.structure.tolist() == [1, 2, 3, 4, 5] * 3
    for k in range(1, 6):
        grid = uniform_grid(k * model.unit, 2 * k)
        alone = model.follow_paths(x, 3, grid, noise(), [2 * k])
        torch.testing.assert_close(draws.f[draws.structure == k], alone.f[0], rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_growth_of_the_support_changes_nothing() -> None:
    """Extensions equal the prior: bound and predictions are continuous when a new horizon has weight 0."""
    model, (x, y) = build(TruncatedPoisson(2.0)), data()
    before, pieces = model.draw(x, 3, noise()), model.blueprint()["pieces"]
    masses = model.horizon_posterior()
    assert model.weigh({**masses, 9: 1e-14}) > 0
    after = model.draw(x, 3, noise())
    kept = after.structure <= max(masses)
    torch.testing.assert_close(after.f[kept], before.f, rtol=1e-10, atol=1e-12)
    a, b = (elbo(draws, Gaussian(1, noise=0.3), y, size=20).value for draws in (before, after))
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    assert model.blueprint()["pieces"] > pieces
    deep = model.blueprint()["pieces"]
    model.weigh(masses, only=True)  # what lies beyond a shorter support is kept
    assert model.blueprint()["pieces"] == deep
    torch.testing.assert_close(model.draw(x, 3, noise()).f, before.f, rtol=1e-10, atol=1e-12)


def test_listed_horizons_have_their_prior() -> None:
    model = build(TruncatedPoisson(2.0))
    prior = PoissonPrior(HORIZONS - 1.0)
    expected = prior.log_prob(torch.arange(6, dtype=DOUBLE)).tolist()
    assert model.list_structures(6) == pytest.approx({1 + k: p for k, p in enumerate(expected)})


@torch.no_grad()
def test_uncertainty_split() -> None:
    """A path is weights: with one horizon the part of structure is exactly 0; else the parts sum to the total."""
    x, _ = data()
    for law in (None, TruncatedPoisson(2.0)):
        model = build(law, outputs=3).eval()
        for likelihood, f in ((Categorical(3), 3), (Gaussian(3, noise=0.3), 3)):
            assert f == likelihood.outputs
            split = predictive(model.draw(x, 8, noise()), likelihood).uncertainty()
            torch.testing.assert_close(split.noise + split.weights + split.structure, split.total)
            assert (split.weights > 0).any()
            if law is None:
                assert (split.structure == 0).all()
            else:
                assert (split.structure > 0).any()


# ---- the accuracy knob


LIKELIHOODS: list[Likelihood] = [Gaussian(1, noise=1.0), Categorical(3), Bernoulli()]


@pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=["gaussian", "categorical", "bernoulli"])
@pytest.mark.parametrize("drift", ["diagonal", "lowrank"])
@torch.no_grad()
def test_accuracy_converges(drift: str, likelihood: Likelihood) -> None:
    """On the same paths the distance of n to 2n steps falls by 1.7 per doubling at least: strong order 1.

    Of each path by itself: in a mixture of few paths their errors add up by chance.
    """
    model, (x, _) = build(outputs=likelihood.outputs, drift=drift).eval(), data(10)

    def one(draws: Draws) -> Draws:
        f = draws.f.flatten(0, 1)[None]
        return Draws(f, torch.zeros(1, dtype=DOUBLE), torch.zeros(1, dtype=torch.int64), {})

    draws = {n: one(draw_coupled(model, x, 200, n, 64, 3)) for n in (8, 16, 32, 64)}
    distance = [hellinger(draws[n], draws[2 * n], likelihood).mean().item() for n in (8, 16, 32)]
    assert all(a > 1.7 * b for a, b in pairwise(distance)), distance
    assert (hellinger(draws[8], draws[8], likelihood) == 0.0).all()
    other = one(draw_coupled(model, x, 200, 64, 64, 4))
    assert hellinger(draws[64], other, likelihood).mean().item() > 5.0 * distance[-1]


@pytest.mark.parametrize("drift", ["diagonal", "lowrank", "shift"])
@torch.no_grad()
def test_coupled_weights_are_the_same_path(drift: str) -> None:
    """With knots on all grids and transitions that are exact, weights agree at common times up to rounding."""
    model, (x, _) = build(drift=drift, knots=2).eval(), data()
    seen = []
    for steps in (2, 8):
        kept: list[Tensor] = []
        original = model.follow_paths

        def spy(*given: Any, kept: list[Tensor] = kept, original: Any = original) -> Any:
            found = original(*given)
            kept.extend(found.weights)
            return found

        model.follow_paths = spy  # type: ignore[method-assign]
        draw_coupled(model, x, 4, steps, 8, 0)
        model.follow_paths = original  # type: ignore[method-assign]
        seen.append(kept[-1])
    torch.testing.assert_close(seen[0], seen[1], rtol=1e-10, atol=1e-12)


@torch.no_grad()
def test_distances_have_their_closed_forms() -> None:
    """Bernoulli and two normal laws: 1 − exp(−(μ₁ − μ₂)² / (8 σ²)), within the error of 64 samples a row."""

    def draws(*f: float, rows: int = 1) -> Draws:
        values = torch.tensor(f, dtype=DOUBLE)[:, None, None].expand(-1, rows, 1)
        weight = torch.full((len(f),), -math.log(len(f)), dtype=DOUBLE)
        return Draws(values, weight, torch.zeros(len(f), dtype=torch.int64), {})

    p, q = torch.tensor([0.5 * 0.5 + 0.5 * 0.9]), torch.tensor([0.2])
    logit = [math.log(v / (1.0 - v)) for v in (0.5, 0.9, 0.2)]
    found = hellinger(draws(logit[0], logit[1]), draws(logit[2]), Bernoulli())
    affinity = (p * q).sqrt() + ((1.0 - p) * (1.0 - q)).sqrt()
    torch.testing.assert_close(found, (1.0 - affinity).sqrt().double(), rtol=1e-6, atol=0.0)
    for gap in (1e-4, 0.1, 1.0):
        found = hellinger(draws(0.0, rows=400), draws(gap, rows=400), Gaussian(1, noise=0.5))
        squares = found.square()
        error = 4.0 * squares.std().item() / math.sqrt(400)
        assert squares.mean().item() == pytest.approx(-math.expm1(-(gap**2) / 2.0), abs=error)
        assert error < 0.15 * squares.mean().item()


@torch.no_grad()
def test_effective_depth_is_where_doubling_changes_little() -> None:
    model, (x, _) = build().eval(), data()
    likelihood = Gaussian(1, noise=0.3)
    coarse, fine = (effective_depth(model, likelihood, x, eps=eps) for eps in (0.2, 0.01))
    assert 1 <= coarse < fine <= 512
    assert math.log2(fine).is_integer()
    still = build(spread=0.0)
    still.mean[:, : still.moving] *= 1e-3  # the slope is almost 0
    still.prior = OrnsteinUhlenbeck(rate=1e-8)
    assert effective_depth(still, likelihood, x) == 1


@torch.no_grad()
def test_random_horizons_are_on_every_grid_that_is_compared() -> None:
    """The coarsest grid has a step for each horizon; numbers of steps with equal grids have distance 0."""
    model, (x, _) = build(FreeCategorical(4)).eval(), data()
    assert round_steps(model, (1, 5, 6, 8, 11)) == (4, 8, 12)
    assert round_steps(Ensemble([model, copy.deepcopy(model)]), (1, 7)) == (4, 8)
    assert round_steps(build(), (7, 5, 5)) == (5, 7)
    depth = effective_depth(model, Gaussian(1, noise=0.3), x, eps=0.1)
    assert depth % HORIZONS == 0
    pair = [draw_coupled(model, x, 4, n, 16, 0) for n in (4, 16)]
    assert 0.0 < hellinger(pair[0], pair[1], Gaussian(1, noise=0.3)).mean() < 0.5


@torch.no_grad()
def test_ensembles_are_coupled_member_by_member() -> None:
    members, (x, _) = [build(seed=i).eval() for i in range(2)], data()
    whole = draw_coupled(Ensemble(members), x, 3, 4, 8, 0)
    assert whole.f.shape == (6, 20, 1)
    assert whole.log_weight.logsumexp(0).item() == pytest.approx(0.0, abs=1e-12)
    each = accuracy.draw_coupled(members[0], x, 3, 4, 8, accuracy.fold_in(0, 0))
    assert torch.equal(whole.f[:3], each.f)


@torch.no_grad()
def test_fixed_paths_of_random_horizons_have_their_weights() -> None:
    model, (x, _) = build(TruncatedPoisson(2.0)).eval(), data()
    paths, draws = fixed_paths(model, 3, seed=1), model.draw(x, 3, noise(1))
    assert torch.equal(paths(x), draws.f)
    torch.testing.assert_close(paths.log_weight, draws.log_weight, rtol=1e-12, atol=1e-12)
    assert paths.log_weight.logsumexp(0).item() == pytest.approx(0.0, abs=1e-12)


def test_growing_follows_the_law_and_changes_no_shorter_horizon() -> None:
    """The law's rate rises: more horizons are read, new pieces are 0, and earlier outputs are unchanged."""
    model = build(TruncatedPoisson(2.0)).eval()
    x, _ = data()
    before, reach = model.draw(x, 2, noise()), max(model.horizon_posterior())
    assert model.grow() == 0
    assert model.drift is not None
    pieces = model.drift.pieces
    with torch.no_grad():
        model.law_parameters[0].fill_(20.0)
    created = model.grow()
    assert created == model.drift.pieces - pieces > 0
    assert all(not bool(p.any()) for p in list(model.drift.shift)[pieces:])
    after, grown = model.draw(x, 2, noise()), model.horizon_posterior()
    assert max(grown) > reach
    for k in set(before.structure.tolist()) & set(after.structure.tolist()):
        one, other = (draws.f[draws.structure == k] for draws in (before, after))
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)
    used = model.use_probability()
    assert float(used["drift.shift.0"]) == pytest.approx(1.0)
    assert 0.0 < float(used[f"drift.shift.{model.drift.pieces - 1}"]) < 1.0
