"""Networks of continuous depth: section 14 of the specification, items 15, 16, 20 to 22, 27 and 30, by name."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from families.continuous.scalars import DOUBLE
from fathomless.data.rows import Rows
from fathomless.data.stacked_rows import StackedRows
from fathomless.families.continuous.deploy import fixed_paths, point_path
from fathomless.families.continuous.dynamics import Dynamics, MLPDynamics, Weight
from fathomless.families.continuous.grids import uniform_grid
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.processes import Brownian, OrnsteinUhlenbeck
from fathomless.families.continuous.solve import PathInference, split_weights
from fathomless.inference.out_of_fold.crossfit import StackedLikelihood
from fathomless.inference.runs.run import Run
from fathomless.inference.variational.objective import elbo
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.nn.layers import MeanField, WeightPrior
from fathomless.posterior.laws import TruncatedPoisson
from fathomless.posterior.likelihoods import Gaussian
from trainings import state_of

NET = MLPDynamics(2, 1, width=4, hidden=(5,))


def build(dynamics: Dynamics = NET, *, spread: float = 0.2, seed: int = 0, **options: Any) -> ContinuousDepth:
    """Return a network in double precision, away from its prior."""
    given = {name: options.pop(name) for name in ("prior", "law", "horizons", "horizon") if name in options}
    path = {"rank": 3, "steps": 6, "gradient": "unrolled", **options}
    settings = {"prior": OrnsteinUhlenbeck(rate=0.8), "weight_prior": 1.0, **given}
    model = ContinuousDepth(dynamics, options=PathInference(**path), seed=seed, dtype=DOUBLE, **settings)
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if not name.startswith("law"):
                p += spread * (0.2 if "drift.log" in name else 1.0) * torch.randn(p.shape, generator=g, dtype=DOUBLE)
    return model


def data(n: int = 24, seed: int = 1) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 2, generator=g, dtype=DOUBLE)
    return x, x[:, :1].sin() + 0.1 * torch.randn(n, 1, generator=g, dtype=DOUBLE)


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


DRAWN: list[dict[str, Any]] = [
    {},
    {"initial": "gaussian", "drift": "lowrank"},
    {"drift": "both", "solver": "euler", "transition": "euler"},
    {"prior": Brownian(diffusion=0.5), "initial": "gaussian"},
    {"law": TruncatedPoisson(2.0), "horizons": 3},
    {"prior": OrnsteinUhlenbeck(rate=0.0), "initial": "gaussian"},
    {"learned": True},
]


@pytest.mark.parametrize("options", DRAWN, ids=str)
@torch.no_grad()
def test_draw_is_one_function(options: dict[str, Any]) -> None:
    """Rows that are permuted, split or repeated have the same outputs."""
    model, (x, _) = build(**options).eval(), data()
    whole = model.draw(x, 5, noise()).f
    order = torch.randperm(len(x), generator=noise(3))
    torch.testing.assert_close(model.draw(x[order], 5, noise()).f, whole[:, order], rtol=1e-10, atol=1e-12)
    halves = torch.cat([model.draw(part, 5, noise()).f for part in x.split(10)], 1)
    torch.testing.assert_close(halves, whole, rtol=1e-10, atol=1e-12)
    twice = model.draw(x.repeat(2, 1), 5, noise()).f
    torch.testing.assert_close(twice, whole.repeat(1, 2, 1), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("training", [False, True], ids=["evaluation", "training"])
@pytest.mark.parametrize("options", DRAWN, ids=str)
@torch.no_grad()
def test_paths_do_not_depend_on_x(options: dict[str, Any], training: bool) -> None:
    """Bit for bit: weights and divergence are the same for other rows, and for another number of them."""
    model, (x, _) = build(**options).train(training), data()
    grid = model.grid(6)
    kept = [model.follow_paths(rows, 4, grid, noise(), model.marks(grid)) for rows in (x, -3.0 * x[:7])]
    for a, b in zip(kept[0].weights, kept[1].weights, strict=True):
        assert torch.equal(a, b)
    assert torch.equal(kept[0].divergence.path, kept[1].divergence.path)
    assert torch.equal(kept[0].divergence.initial, kept[1].divergence.initial)
    divergence = [model.draw(rows, 4, noise()).divergence["weights"] for rows in (x, x[:1])]
    assert torch.equal(divergence[0], divergence[1])


@pytest.mark.parametrize("jitter", ["count", "times", "none"])
def test_generator_only(jitter: str) -> None:
    """All randomness comes from the given generator; the global one is neither read nor advanced."""
    model, (x, _) = build(initial="gaussian", jitter=jitter), data()
    before, legacy = torch.get_rng_state(), np.random.get_state()[1].tolist()
    first = model.draw(x, 3, noise())
    assert torch.equal(torch.get_rng_state(), before)
    assert np.random.get_state()[1].tolist() == legacy
    torch.rand(3)
    assert torch.equal(model.draw(x, 3, noise()).f, first.f)
    assert not torch.equal(model.draw(x, 3, noise(1)).f, first.f)
    torch.set_rng_state(before)


def test_jitter_changes_the_grid_in_training_alone() -> None:
    model, (x, _) = build(jitter="count"), data()
    assert len({model._steps(noise(seed)) for seed in range(30)}) > 5
    assert {len(model.eval().grid(model._steps(noise(seed)))) for seed in range(30)} == {7}
    moved = build(jitter="times")
    grid = moved._jitter_times(moved.grid(6), noise())
    assert grid[0] == 0.0
    assert grid[-1] == 1.0
    assert all(a < b for a, b in pairwise(grid))
    assert grid != moved.grid(6)
    assert moved.eval()._jitter_times(moved.grid(6), noise()) == moved.grid(6)
    torch.testing.assert_close(moved.draw(x, 2, noise()).f, moved.draw_on(x, 2, moved.grid(6), noise()).f)


@pytest.mark.parametrize("solver", ["euler", "heun"])
def test_static_limit(solver: str) -> None:
    """θ = σ = 0: mean-field layers inside a residual network that has the same ones at every depth."""
    static, steps, (x, _) = OrnsteinUhlenbeck(rate=0.0), 6, data()
    model = build(prior=static, initial="gaussian", solver=solver, jitter="none")
    assert model.log_width is not None
    assert model.moving == 0
    weights = (*NET.moving, *NET.still)
    layers, drawn = [], []
    parts = [split_weights(p.detach()[0], weights) for p in (model.mean, model.log_width)]
    for k in range(0, len(weights), 2):
        (mean, bias), (width, narrow) = (own[k : k + 2] for own in parts)
        linear, s = nn.Linear(*mean.shape, dtype=DOUBLE), 1.0 / math.sqrt(weights[k].fan_in)
        layer = MeanField(linear, WeightPrior(s))
        with torch.no_grad():
            linear.weight.copy_(s * mean.mT)
            linear.bias.copy_(s * bias)
            layer.log_scale[0].copy_(width.mT + math.log(s))
            layer.log_scale[1].copy_(narrow + math.log(s))
        layers.append(layer)
        own = noise(k)  # of the layer: the same draw wherever it is used
        eps = [torch.empty_like(p).normal_(generator=own) for p in layer.log_scale]
        drawn += [mean + width.exp() * eps[0].mT, bias + narrow.exp() * eps[1]]

    def apply(k: int, h: Tensor) -> Tensor:
        out: Tensor = layers[k](h, noise(2 * k))[0]
        return out

    h, dt = apply(2, x), 1.0 / steps
    for _ in range(steps):
        slope = apply(1, F.silu(apply(0, h)))
        if solver == "heun":
            slope = 0.5 * (slope + apply(1, F.silu(apply(0, h + dt * slope))))
        h = h + dt * slope
    expected = apply(3, h)
    same = build(prior=static, solver=solver, jitter="none")
    with torch.no_grad():
        same.mean.copy_(torch.cat([part.flatten() for part in drawn])[None])
    torch.testing.assert_close(same.draw(x).f[0], expected, rtol=1e-10, atol=1e-12)
    charged = torch.stack([layer(torch.zeros(1, layer.module.in_features, dtype=DOUBLE))[1] for layer in layers]).sum()
    torch.testing.assert_close(model.draw(x, 3, noise()).divergence["weights"], charged, rtol=1e-12, atol=0.0)


def test_euler_is_a_residual_network() -> None:
    """Steps of a drawn path are explicit blocks with weights of their own; bit for bit as :func:`fixed_paths` too."""
    model, (x, _) = build(solver="euler", initial="gaussian", drift="both").eval(), data()
    paths = fixed_paths(model, 3, steps=5, seed=7)
    model.predict_by(steps=5)
    draws = model.draw(x, 3, noise(7))
    assert torch.equal(paths(x), draws.f)
    assert torch.equal(paths.log_weight, draws.log_weight)
    first, last, readout, shift = split_weights(paths.fixed[0], NET.still)
    h = torch.baddbmm(last[:, None], x.expand(3, -1, -1), first)
    for own in paths.moving[:-1, 0]:
        weight, bias, outer, other = split_weights(own, NET.moving)
        h = h + 0.2 * torch.baddbmm(other[:, None], F.silu(torch.baddbmm(bias[:, None], h, weight)), outer)
    torch.testing.assert_close(torch.baddbmm(shift[:, None], h, readout), draws.f, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", DRAWN, ids=str)
def test_fixed_paths_are_the_draws(options: dict[str, Any]) -> None:
    model, (x, _) = build(**options).eval(), data()
    paths, draws = fixed_paths(model, 4, seed=2), model.draw(x, 4, noise(2))
    assert torch.equal(paths(x), draws.f)
    torch.testing.assert_close(paths.log_weight, draws.log_weight, rtol=1e-12, atol=1e-12)
    assert not any(p.requires_grad for p in paths.parameters())


@torch.no_grad()
def test_the_point_path_is_the_mean_of_the_weights() -> None:
    """Against the mean of many paths, for drifts that are linear in the weights."""
    model, (x, _) = build(drift="lowrank", initial="gaussian").eval(), data()
    point, n = point_path(model), 4000
    start, path = model.path(n, model.grid(6), noise())
    for i in (3, 6):
        own = path[i][0] * model.scale[: model.moving]
        error = 5.0 * own.std(0) / math.sqrt(n)
        assert ((own.mean(0) - point.moving[i, 0, 0]).abs() < error).all()
    assert ((start[0].mean(0) - model.mean[0]).abs() < 5.0 * start[0].std(0) / math.sqrt(n)).all()
    assert point(x).shape == (1, len(x), 1)


@torch.no_grad()
def test_the_initial_law_is_the_gaussian_that_is_charged() -> None:
    """I − U diag(1 − ρ²) Uᵀ among moving weights: its divergence in closed form, and the sampled one around it."""
    model = build(initial="gaussian", drift="lowrank")
    assert model.log_width is not None
    assert model.drift is not None
    rank, moving = model.drift.rank, model.moving
    (U,), rho = model.drift.directions(), model.log_width[0].exp()  # type: ignore[misc]
    covariance = torch.block_diag(
        torch.eye(moving, dtype=DOUBLE) - U @ torch.diag(1.0 - rho[:rank] ** 2) @ U.mT, torch.diag(rho[rank:] ** 2)
    )
    size, n = len(covariance), 20_000
    law = torch.distributions.MultivariateNormal(model.mean[0], covariance)
    plain = torch.distributions.MultivariateNormal(torch.zeros(size, dtype=DOUBLE), torch.eye(size, dtype=DOUBLE))
    known = torch.distributions.kl_divergence(law, plain)
    start = model._initial().draw(n, noise())
    torch.testing.assert_close(model._initial().closed(n)[0], known.expand(n), rtol=1e-10, atol=0.0)
    sampled = model._initial().full(start)[0]
    torch.testing.assert_close(sampled, law.log_prob(start[0]) - plain.log_prob(start[0]), rtol=1e-9, atol=1e-9)
    assert abs(float(sampled.mean() - known)) < 4.0 * float(sampled.std()) / math.sqrt(n)
    assert (start[0].T.cov() - covariance).abs().max() < 5.0 * math.sqrt(2.0 / n)


def test_point_starts_are_charged_by_their_prior() -> None:
    free, charged = (build(charged=own, jitter="none").draw(data()[0], 2, noise()) for own in (False, True))
    decay = 0.5 * build().mean.square().sum()
    gap = charged.divergence["weights"] - free.divergence["weights"]
    torch.testing.assert_close(gap, decay, rtol=1e-10, atol=0.0)


def test_minibatches_average_to_the_full_bound() -> None:
    """On the same paths; the divergence is that of the data set, and a temperature acts on all of it."""
    (x, y), likelihood = data(24), Gaussian(1)
    model = build(initial="gaussian", jitter="count")
    whole = elbo(model.draw(x, 3, noise()), likelihood, y, size=24)
    parts = [elbo(model.draw(x[rows], 3, noise()), likelihood, y[rows], size=24) for rows in torch.arange(24).split(6)]
    assert all(torch.equal(part.divergence["weights"], whole.divergence["weights"]) for part in parts)
    torch.testing.assert_close(torch.stack([part.value for part in parts]).mean(), whole.value, rtol=1e-10, atol=0.0)
    cold = elbo(model.draw(x, 3, noise()), likelihood, y, size=24, temperature=0.25)
    assert list(whole.divergence) == ["weights"]
    priced = build(learned=True, jitter="none").draw(x, 3, noise())
    assert priced.tempered == {"weights"}  # the prior of the rate is no part of the path's divergence
    assert set(priced.divergence) == {"weights", "rate"}
    torch.testing.assert_close(cold.value - whole.value, 0.75 * whole.divergence["weights"], rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("options", [{}, {"drift": "both", "initial": "gaussian"}, DRAWN[4]], ids=str)
def test_resume_is_bitwise(options: dict[str, Any]) -> None:
    """A training resumed half way is bit-identical, including its jitter."""
    x, y = data(40)
    training = Training(epochs=6, batch_size=20, structure_every=1, draws=2, warm_up=0.3)
    kept: list[Any] = []

    def keep(run: Run) -> None:
        if run.epoch == 3:
            kept.append(copy.deepcopy((run.tensors(), run.meta())))

    def train(**more: Any) -> Any:
        model = build(**{"jitter": "count", **options})
        return state_of(fit, model, Gaussian(1, noise="learned").double(), Rows(x, y), training=training, **more)

    whole, again = train(callbacks=[keep]), train(resume=kept[0])
    assert whole.history[3:] == again.history[3:]
    for name, value in whole.tensors().items():
        assert torch.equal(value, again.tensors()[name]), name
    other = build(**{"jitter": "count", **options})
    other.rebuild(whole.model.blueprint())
    other.load_state_dict(whole.model.state_dict())
    assert torch.equal(other.eval().draw(x, 3, noise()).f, whole.model.eval().draw(x, 3, noise()).f)


def test_vmap_of_members_is_single_draws_given_the_noise() -> None:
    """Three networks at once by torch.func, each with steps of its own noise."""
    members, (x, _) = [build(drift="both", seed=i, jitter="none") for i in range(3)], data()
    state, _ = torch.func.stack_module_state(members)  # type: ignore[no-untyped-call]
    eps = torch.randn(3, 6, 1, 4, members[0].moving, generator=noise(), dtype=DOUBLE)
    grid = uniform_grid(1.0, 6)

    class Drawn(nn.Module):
        def __init__(self, model: ContinuousDepth) -> None:
            super().__init__()
            self.model = model

        def forward(self, own: Tensor) -> tuple[Tensor, Tensor]:
            draws = self.model.draw_on(x, 4, grid, None, lambda i: own[i])
            return draws.f, draws.divergence["weights"]

    named = {f"model.{name}": p for name, p in state.items()}

    def one(parameters: dict[str, Tensor], own: Tensor) -> tuple[Tensor, Tensor]:
        drawn: tuple[Tensor, Tensor] = torch.func.functional_call(Drawn(members[0]), parameters, (own,))
        return drawn

    f, divergence = torch.vmap(one)(named, eps)
    for i, member in enumerate(members):
        alone = Drawn(member)(eps[i])
        torch.testing.assert_close(f[i], alone[0], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(divergence[i], alone[1], rtol=1e-10, atol=1e-12)


def test_clipping_of_one_network_is_not_felt_by_others_side_by_side() -> None:
    """Extreme targets in the rows of the second network leave the first one bit-identical."""
    x, y = data(20)
    states = []
    for shift in (0.0, 30.0):
        members = [build(seed=seed, law=TruncatedPoisson(2.0), horizons=3) for seed in range(2)]
        for member in members:
            member.weigh({1: 0.5, 2: 0.5})
        whole = members[0].stack(members[1:])
        moved = torch.cat([y[:10], y[10:] + shift])
        rows = StackedRows.of(Rows(x, moved), [torch.arange(10), torch.arange(10, 20)])
        likelihood = StackedLikelihood([Gaussian().double() for _ in members])
        fit(whole, likelihood, rows, training=Training(epochs=4, clip_norm=0.1, warm_up=0.0))
        whole.unstack(members)
        states.append([{name: p.clone() for name, p in member.state_dict().items()} for member in members])
    same = [all(torch.equal(a[name], b[name]) for name in a) for a, b in zip(*states, strict=True)]
    assert same == [True, False]


@pytest.mark.parametrize("options", [{}, {"drift": "both", "estimator": "sticking"}, DRAWN[4], DRAWN[6]], ids=str)
def test_networks_side_by_side_are_single_ones(options: dict[str, Any]) -> None:
    """Outputs and gradients of three at once, and back again."""
    members, (x, _) = [build(seed=i, jitter="none", **options) for i in range(3)], data(30)
    whole = members[0].stack(members[1:])
    grid = whole.grid(6)
    eps = torch.randn(len(grid) - 1, 3, 4, whole.moving, generator=noise(), dtype=DOUBLE)
    drawn = whole.draw_on(x, 4, grid, None, lambda i: eps[i])  # ten rows for each
    (drawn.f.square().sum() + drawn.divergence["weights"]).backward()
    total = torch.zeros((), dtype=DOUBLE)
    for k, member in enumerate(members):
        own = slice(k, k + 1)
        alone = member.draw_on(x[10 * k : 10 * k + 10], 4, grid, None, lambda i, own=own: eps[i, own])
        torch.testing.assert_close(drawn.f[:, 10 * k : 10 * k + 10], alone.f, rtol=1e-10, atol=1e-12)
        (alone.f.square().sum() + alone.divergence["weights"]).backward()
        total = total + alone.divergence["weights"].detach()
        theirs = dict(whole.named_parameters())
        for name, p in member.named_parameters():
            if p.grad is not None and not name.startswith("law"):
                gradient = theirs[name].grad
                assert gradient is not None
                torch.testing.assert_close(gradient[own], p.grad, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(drawn.divergence["weights"].detach(), total, rtol=1e-10, atol=0.0)
    others = [build(seed=9, jitter="none", **options) for _ in range(3)]
    whole.unstack(others)
    for a, b in zip(others, members, strict=True):
        assert all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@dataclass(frozen=True)
class Weighted(Dynamics):
    """h_T = x, read by weights without a bias: linear regression."""

    inputs: int

    @property
    def moving(self) -> tuple[Weight, ...]:
        return ()

    @property
    def still(self) -> tuple[Weight, ...]:
        return (Weight("weight", (self.inputs, 1), 1),)

    def enter(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        return x[:, None]

    def slope(self, weights: Sequence[Tensor], t: float, h: Tensor) -> Tensor:
        return torch.zeros_like(h)

    def leave(self, weights: Sequence[Tensor], h: Tensor) -> Tensor:
        return h @ weights[0]

    def numbers(self, rows: int) -> int:
        return 0


def test_posterior_recovers_linear_gaussian() -> None:
    """Static weights, orthogonal columns: the moments of the exact posterior, which has no correlations."""
    rows, columns, deviation, g = 60, 3, 0.5, noise(5)
    x = torch.linalg.qr(torch.randn(rows, columns, generator=g, dtype=DOUBLE))[0] * torch.tensor([2.0, 4.0, 1.0])
    y = x @ torch.tensor([[1.0], [-2.0], [1.5]], dtype=DOUBLE)
    y = y + deviation * torch.randn(rows, 1, generator=g, dtype=DOUBLE)
    precision = 1.0 + x.square().sum(0) / deviation**2  # prior N(0, 1)
    mean = (x.mT @ y)[:, 0] / deviation**2 / precision
    model = build(Weighted(columns), prior=OrnsteinUhlenbeck(rate=0.0), initial="gaussian", steps=1, jitter="none")
    assert model.log_width is not None
    training = Training(epochs=700, batch_size=rows, learning_rate=0.03, draws=32)
    fitted = fit(model, Gaussian(1, noise=deviation), Rows(x, y), training=training)
    torch.testing.assert_close(model.mean[0].detach(), mean, rtol=0.02, atol=0.0)
    torch.testing.assert_close(model.log_width[0].detach().exp(), precision.rsqrt(), rtol=0.02, atol=0.0)
    # and the bound is the evidence, up to the noise of the last epoch
    covariance = x @ x.mT + deviation**2 * torch.eye(rows, dtype=DOUBLE)
    zero = torch.zeros(rows, dtype=DOUBLE)
    evidence = torch.distributions.MultivariateNormal(zero, covariance).log_prob(y[:, 0]).item()
    found = [row["elbo"] for row in fitted.history[-50:]]
    assert sum(found) / 50 == pytest.approx(evidence, abs=0.5)


@pytest.mark.parametrize("estimator", ["closed", "full"])
@pytest.mark.parametrize("drift", ["diagonal", "lowrank", "both"])
def test_bfloat16_never_touches_weights_and_divergence(drift: str, estimator: str) -> None:
    """In mixed precision only the slope is in reduced precision."""
    model, (x, _) = build(drift=drift, estimator=estimator, initial="gaussian").float(), data()
    x, grid = x.float(), uniform_grid(1.0, 6)
    plain = model.follow_paths(x, 3, grid, noise(), [6])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = model.follow_paths(x, 3, grid, noise(), [6])
    for a, b in zip([*plain.divergence, *plain.weights], [*mixed.divergence, *mixed.weights], strict=True):
        assert b.dtype == torch.float32
        assert torch.equal(a, b)
    assert mixed.f.dtype == torch.float32
    assert not torch.equal(mixed.f, plain.f)
    torch.testing.assert_close(mixed.f, plain.f, rtol=0.1, atol=0.1)
    (mixed.divergence.path.sum() + mixed.f.sum()).backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
