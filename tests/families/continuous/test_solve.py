"""Solvers of the hidden state and their gradients: section 14 of the specification, items 12 and 13, by name."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from families.continuous.scalars import DOUBLE, drifts
from fathomless.families.continuous.drift import PathLaw
from fathomless.families.continuous.dynamics import Dynamics, MLPDynamics, Weight
from fathomless.families.continuous.grids import Grid, uniform_grid
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.processes import OrnsteinUhlenbeck, coarsen, transition
from fathomless.families.continuous.solve import PathInference, Solution, follow, segment_length, solve, split_weights

FINEST = 512
PRIOR = OrnsteinUhlenbeck(rate=1.0)


@dataclass(frozen=True)
class Swing(Dynamics):
    """A hidden state of two numbers, moved by two weights: dh₁ = sin(h₂ + 2 w₁) − h₁, dh₂ = cos(h₁) w₂."""

    @property
    def moving(self) -> tuple[Weight, ...]:
        return (Weight("w", (2,), 1),)

    @property
    def still(self) -> tuple[Weight, ...]:
        return ()

    def enter(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        return x[:, None]

    def slope(self, weights: Sequence[Tensor], t: float, h: Tensor) -> Tensor:
        w = weights[0][:, :, None]
        first = torch.sin(h[..., 1] + 2.0 * w[..., 0]) - h[..., 0]
        return torch.stack([first, torch.cos(h[..., 0]) * w[..., 1]], -1)

    def leave(self, weights: Sequence[Tensor], h: Tensor) -> Tensor:
        return h

    def numbers(self, rows: int) -> int:
        return 8 * rows


def law_on(grid: Grid) -> PathLaw:
    with torch.no_grad():
        return drifts(2, "shift").law(PRIOR, grid, torch.zeros(1, 2, dtype=DOUBLE), kind="exact")


def followed(steps: int, eps: Tensor, solver: str) -> Tensor:
    """Return h_T, (S, 2), with weights that are exact on every grid: noise (finest, 1, S, 2) is that of the finest."""
    grid, times, paths = uniform_grid(1.0, steps), FINEST // steps, eps.shape[2]
    fine = transition(PRIOR, torch.zeros(times, dtype=DOUBLE), torch.full((times,), 1.0 / FINEST, dtype=DOUBLE))

    def noise(i: int) -> Tensor:
        return coarsen(list(eps[i * times : (i + 1) * times]), fine.decay, fine.noise)

    start, h = torch.full((1, paths, 2), 0.5, dtype=DOUBLE), torch.full((1, 1, 1, 2), 0.3, dtype=DOUBLE)
    scale = torch.ones(2, dtype=DOUBLE)
    return solve(Swing(), scale, law_on(grid), start, h, noise, marks=[steps], solver=solver).hidden[0][0, :, 0]


def test_solver_orders() -> None:
    """Strong order 1 from the roughness of weights, which are exact; the mean error of Heun is too small to measure."""
    paths, counts = 2000, (8, 16, 32)
    eps = torch.randn(FINEST, 1, paths, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    exact = followed(FINEST, eps, "heun")
    off = {(name, n): followed(n, eps, name) - exact for name in ("euler", "heun") for n in counts}
    strong = {key: error.square().sum(1).mean().sqrt().item() for key, error in off.items()}
    for name in ("euler", "heun"):
        assert math.log2(strong[name, 8] / strong[name, 32]) / 2.0 == pytest.approx(1.0, abs=0.15)
    assert all(strong["heun", n] < strong["euler", n] for n in counts)
    mean = {key: (error.mean(0) / (error.std(0) / math.sqrt(paths))).abs().max().item() for key, error in off.items()}
    assert mean["heun", 16] < 4.0
    assert mean["euler", 16] > 8.0
    euler = [off["euler", n].mean(0).norm().item() for n in (8, 32)]
    assert math.log2(euler[0] / euler[1]) / 2.0 == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(("solver", "order"), [("euler", 1.0), ("heun", 2.0)])
def test_orders_without_noise(solver: str, order: float) -> None:
    """For smooth weights, t and 1 − t², by :func:`follow`."""

    def end(steps: int) -> Tensor:
        grid = uniform_grid(1.0, steps)
        weights = [[torch.tensor([[[t, 1.0 - t * t]]], dtype=DOUBLE)] for t in grid]
        h = torch.full((1, 1, 1, 2), 0.3, dtype=DOUBLE)
        return follow(Swing(), weights, h, grid, [steps], solver)[0]

    exact = end(1024)
    error = [(end(n) - exact).norm().item() for n in (16, 64)]
    assert math.log2(error[0] / error[1]) / 2.0 == pytest.approx(order, abs=0.15)


@pytest.mark.parametrize("solver", ["euler", "heun"])
@pytest.mark.parametrize("estimator", ["closed", "full"])
def test_the_divergence_knows_nothing_of_the_hidden_state(solver: str, estimator: str) -> None:
    """For any solver of h, weights and divergence are those of the chain, at left ends."""
    grid, g = uniform_grid(1.0, 6), torch.Generator().manual_seed(0)
    with torch.no_grad():
        law = drifts(2, "network", spread=0.5).law(PRIOR, grid, torch.zeros(1, 2, dtype=DOUBLE), kind="euler")
        eps = torch.randn(6, 1, 4, 2, generator=g, dtype=DOUBLE)
        w = start = torch.randn(1, 4, 2, generator=g, dtype=DOUBLE)
        h, one = torch.full((1, 1, 3, 2), 0.3, dtype=DOUBLE), torch.ones(2, dtype=DOUBLE)
        marks = [2, 6]
        found = solve(Swing(), one, law, start, h, lambda i: eps[i], marks=marks, solver=solver, estimator=estimator)
        for i in range(6):
            after, change = law.step(i, w, eps[i])
            expected = law.closed(i, change) if estimator == "closed" else law.full(i, w, after)
            assert torch.equal(found.divergence[i], expected)
            w = after
            if i + 1 in marks:
                assert torch.equal(found.weights[marks.index(i + 1)], w)


def built(**options: Any) -> ContinuousDepth:
    """Return a small network in double precision, away from its prior."""
    path = {"rank": 2, "steps": 9, "jitter": "none", **options}
    model = ContinuousDepth(
        MLPDynamics(2, 2, width=3, hidden=(4,)),
        prior=OrnsteinUhlenbeck(rate=0.8),
        weight_prior=1.0,
        options=PathInference(**path),
        dtype=DOUBLE,
    )
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p += (0.05 if "drift.log" in name else 0.3) * torch.randn(p.shape, generator=g, dtype=DOUBLE)
    return model


def objective(model: ContinuousDepth, seed: int = 0) -> Tensor:
    x = torch.linspace(-1.0, 1.0, 10, dtype=DOUBLE).reshape(5, 2)
    draws = model.draw(x, 3, torch.Generator().manual_seed(seed))
    return draws.f.square().mean() + draws.f.sum() + draws.divergence["weights"]


def gradients(model: ContinuousDepth) -> list[Tensor]:
    value = objective(model)
    value.backward()
    return [value.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("estimator", ["closed", "full", "sticking"])
@pytest.mark.parametrize("drift", ["diagonal", "both"])
@pytest.mark.parametrize("solver", ["euler", "heun"])
def test_checkpointed_gradient_is_bitwise_equal(solver: str, drift: str, estimator: str) -> None:
    kept = [
        gradients(built(gradient=name, solver=solver, drift=drift, estimator=estimator, initial="gaussian"))
        for name in ("unrolled", "checkpointed")
    ]
    assert len(kept[0]) > 4
    assert all(torch.equal(a, b) for a, b in zip(*kept, strict=True))


@pytest.mark.parametrize("initial", ["point", "gaussian"])
@pytest.mark.parametrize("learned", [False, True], ids=["given", "learned"])
@pytest.mark.parametrize("drift", ["shift", "diagonal", "lowrank", "network", "both"])
def test_gradients_are_those_of_finite_differences(drift: str, initial: str, learned: bool) -> None:
    """Along a random direction in all parameters at once."""
    model = built(drift=drift, initial=initial, learned=learned, estimator="full")
    gradients(model)
    g = torch.Generator().manual_seed(2)
    for _ in range(3):
        direction = [torch.randn(p.shape, generator=g, dtype=DOUBLE) for p in model.parameters()]
        for (name, _), d in zip(model.named_parameters(), direction, strict=True):
            d *= 0.02 if name == "drift.log_speed" else 1.0  # whose unit is fifty times as long
        slope = sum(
            float((p.grad * d).sum()) for p, d in zip(model.parameters(), direction, strict=True) if p.grad is not None
        )
        values, step = [], 1e-5
        with torch.no_grad():
            for sign in (1.0, -2.0, 1.0):
                for p, d in zip(model.parameters(), direction, strict=True):
                    p += sign * step * d
                values.append(float(objective(model)))
        assert (values[0] - values[1]) / (2.0 * step) == pytest.approx(slope, rel=1e-6)


def saved_bytes(call: Callable[[], Tensor], parameters: Sequence[Tensor]) -> int:
    """Return the bytes stored by a graph, each storage once."""
    sizes: dict[int, int] = {p.untyped_storage().data_ptr(): 0 for p in parameters}
    alive: list[Tensor] = []

    def pack(saved: Tensor) -> Tensor:
        alive.append(saved)
        sizes.setdefault(saved.untyped_storage().data_ptr(), saved.untyped_storage().nbytes())
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        call()
    return sum(sizes.values())


@pytest.mark.parametrize("solver", ["euler", "heun"])
@pytest.mark.parametrize("rows", [4, 200])
@pytest.mark.parametrize("drift", ["diagonal", "network"])
def test_the_estimate_of_memory_is_within_half(drift: str, rows: int, solver: str) -> None:
    """Comparison with the memory of the graph of an unrolled solution, for few rows (weights dominate) and many."""
    options = PathInference(steps=20, jitter="none", gradient="unrolled", drift=drift, solver=solver)
    model = ContinuousDepth(MLPDynamics(4, 1), options=options)
    x, parameters = torch.zeros(rows, 4), list(model.parameters())
    seen = saved_bytes(lambda: model.draw(x, 6, torch.Generator()).f, parameters)
    state = 4 * sum(p.element_size() * p.numel() for p in parameters)  # with gradients and moments
    assert model.memory(6, rows, 20) == pytest.approx(seen + state, rel=0.5)
    less = ContinuousDepth(MLPDynamics(4, 1), options=PathInference(steps=20, jitter="none", gradient="checkpointed"))
    assert saved_bytes(lambda: less.draw(x, 6, torch.Generator()).f, list(less.parameters())) < 0.5 * seen


def test_segments_are_the_root_of_the_steps() -> None:
    assert [segment_length(n) for n in (1, 2, 4, 9, 10, 100)] == [1, 2, 2, 3, 4, 10]


def test_a_vector_of_weights_is_split_into_views() -> None:
    weights = MLPDynamics(2, 1, width=3, hidden=(4,)).moving
    flat = torch.arange(2 * sum(w.size for w in weights)).reshape(2, -1)
    parts = split_weights(flat, weights)
    assert [part.shape[1:] for part in parts] == [weight.shape for weight in weights]
    assert torch.equal(torch.cat([part.flatten(1) for part in parts], 1), flat)
    assert all(part.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr() for part in parts)


def test_states_are_returned_where_they_are_asked_for() -> None:
    with torch.no_grad():
        law, g = law_on(uniform_grid(1.0, 5)), torch.Generator().manual_seed(0)
        start, h = torch.zeros(1, 2, 2, dtype=DOUBLE), torch.zeros(1, 1, 4, 2, dtype=DOUBLE)
        found: Solution = solve(Swing(), torch.ones(2, dtype=DOUBLE), law, start, h, g, marks=[1, 3, 5])
    assert [tuple(part.shape) for part in found.hidden] == [(1, 2, 4, 2)] * 3
    assert [tuple(part.shape) for part in found.weights] == [(1, 2, 2)] * 3
    assert found.divergence.shape == (5, 1, 2)
