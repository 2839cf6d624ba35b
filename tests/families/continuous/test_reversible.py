"""Reversible Heun and SRA1: section 14 of the specification, items 13 and 14, and the orders of section 4."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from families.continuous.scalars import DOUBLE, drifts
from families.continuous.sra1 import average, sra1
from families.continuous.test_solve import Swing
from fathomless.families.continuous import reversible
from fathomless.families.continuous.dynamics import MLPDynamics
from fathomless.families.continuous.grids import uniform_grid
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.options import ContinuousOptions, Heun
from fathomless.families.continuous.processes import OrnsteinUhlenbeck
from fathomless.families.continuous.reversible import Slopes
from fathomless.families.continuous.solve import Noise, PathInference, Solution
from fathomless.system.errors import DataError

PATHS = 3


def built(
    drift: str = "diagonal", *, dtype: torch.dtype = DOUBLE, rate: float = 0.25, **options: Any
) -> ContinuousDepth:
    given = {"rank": 4, "knots": 3, "steps": 30, "jitter": "none", "gradient": "reversible", "initial": "gaussian"}
    network = MLPDynamics(2, 1, width=3, hidden=(5,), activation="swish", time="gate")
    made = PathInference(drift=drift, **(given | options))
    model = ContinuousDepth(network, prior=OrnsteinUhlenbeck(rate=rate), options=made, dtype=dtype)
    noise = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            p += (0.02 if "log_rate" in name else 0.1) * torch.randn(p.shape, generator=noise, dtype=dtype)
    return model


def rows(dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.randn(4, 2, generator=torch.Generator().manual_seed(5), dtype=dtype)


def unrolled(slopes: Slopes, w: Tensor, h: Tensor, noise: Noise, marks: Sequence[int]) -> Solution:
    """Direct implementation of the scheme that stores all states."""
    other_w, other_h, hidden, weights, divergence = w, h, [], [], []
    a, b, price = slopes(0, w, h)
    for i, (t, end) in enumerate(pairwise(slopes.law.grid)):
        dt, drawn = end - t, slopes.noise(i, noise(i))
        other_w, other_h = 2.0 * w - other_w + a * dt + drawn, 2.0 * h - other_h + b * dt
        a_end, b_end, price_end = slopes(i + 1, other_w, other_h)
        w, h = w + 0.5 * dt * (a + a_end) + drawn, h + 0.5 * dt * (b + b_end)
        divergence.append(0.5 * dt * (price + price_end))
        a, b, price = a_end, b_end, price_end
        if i + 1 in marks:
            hidden.append(h)
            weights.append(w)
    return Solution(hidden, torch.stack(divergence), weights)


def objective(solution: Solution) -> Tensor:
    n = len(solution.divergence)
    charged = solution.divergence * torch.linspace(1.0, 2.0, n, dtype=solution.divergence.dtype)[:, None, None]
    ends = [h.square().sum() for h in solution.hidden] + [w.sin().sum() for w in solution.weights]
    return charged.sum() + torch.stack(ends).sum()


def both(model: ContinuousDepth, marks: Sequence[int]) -> list[list[Tensor]]:
    """Return value and gradients by the reversible solver, and by unrolling the same scheme."""
    assert model.drift is not None
    grid, found = model.grid(model.options.steps), []
    for rebuilt in (True, False):
        model.zero_grad()
        noise = torch.Generator().manual_seed(1)
        w = model._initial().draw(PATHS, noise)[..., : model.moving]
        h = torch.full((1, PATHS, 4, 3), 0.3, dtype=DOUBLE, requires_grad=True)
        given = model.dynamics, model.scale[: model.moving]
        about = model.drift, model.prior, model.mean[:, : model.moving], grid
        if rebuilt:
            solution = reversible.solve(*given, *about, w, h, noise, marks=marks)
        else:
            drift, prior, reference_, _ = about
            slopes = Slopes(*given, *reversible.make_cell_law(drift, prior, grid, reference_), prior)
            solution = unrolled(slopes, w, h, reversible.make_repeatable_noise(noise, w), marks)
        value = objective(solution)
        value.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        assert h.grad is not None
        found.append([value.detach(), h.grad, *gradients])
    return found


@pytest.mark.parametrize("drift", ["shift", "diagonal", "lowrank", "network", "both"])
def test_reversible_gradient(drift: str) -> None:
    """The gradient of its own solution."""
    rebuilt, kept = both(built(drift), [7, 30])
    assert len(rebuilt) == len(kept) > 3
    for a, b in zip(rebuilt, kept, strict=True):
        assert (a - b).abs().max() <= 1e-12 * b.abs().max()


def test_the_state_that_is_rebuilt_may_be_uneven() -> None:
    model = built("diagonal")
    assert model.drift is not None
    grid = (0.0, 0.02, 0.1, 0.13, 0.3, 0.41, 0.5, 0.6, 0.75, 0.8, 0.95, 1.0)
    law, cells = reversible.make_cell_law(model.drift, model.prior, grid, model.mean[:, : model.moving])
    assert math.isclose(sum(cells), 1.0)
    whole = sum(step.shift * cell for step, cell in zip(law.steps.values(), cells, strict=True))
    exact = sum(model.prior.diffusion * p[:, None] / 3.0 for p in model.drift.shift)
    assert torch.allclose(whole, exact, rtol=0.0, atol=1e-12)  # the trapezoidal rule has the integral of the shift


def test_training_takes_it_and_evaluation_the_chain() -> None:
    model, x = built("both", steps=40), rows()
    chain = built("both", steps=40, gradient="unrolled")
    assert (model.options.bound, chain.options.bound) == ("quadrature", "chain")
    for each in (model, chain):
        each.load_state_dict(model.state_dict())
    drawn, other = (m.draw(x, 2000, torch.Generator().manual_seed(0)) for m in (model, chain))
    price, exact = (d.divergence["weights"].item() for d in (drawn, other))
    assert price == pytest.approx(exact, rel=0.05)  # a quadrature of the same divergence
    assert price != exact
    spread = other.f.sort(0).values[1500] - other.f.sort(0).values[500]
    assert ((drawn.f.median(0).values - other.f.median(0).values).abs() <= 0.1 * spread).all()
    evaluated = [m.eval().draw(x, 5, torch.Generator().manual_seed(0)).f for m in (model, chain)]
    assert torch.equal(*evaluated)


def test_noise_moves_the_generator_and_not_the_global_one() -> None:
    model, noise, before = built(), torch.Generator().manual_seed(0), torch.get_rng_state()
    first, second = (model.draw(rows(), 2, noise).f for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first, model.draw(rows(), 2, torch.Generator().manual_seed(0)).f)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("dtype", "allowed", "refused"), [(torch.float32, 0.024, 0.026), (torch.float64, 0.049, 0.051)]
)
def test_reversible_refuses_contraction(dtype: torch.dtype, allowed: float, refused: float) -> None:
    for share, feedback in ((allowed, 0.0), (refused, 0.0), (0.9 * allowed, 0.2)):
        model = built("diagonal", dtype=dtype, rate=20 * share, steps=20)  # θΔ is the share
        assert model.drift is not None
        with torch.no_grad():
            for p in model.drift.log_rate:
                p.zero_()
            model.drift.log_rate[1][0, 7] = feedback
        if (share, feedback) == (allowed, 0.0):
            model.draw(rows(dtype), 2)
            continue
        with pytest.raises(DataError, match=r"contract at rate .* set solver__gradient='checkpointed'"):
            model.draw(rows(dtype), 2)
        model.eval().draw(rows(dtype), 2)  # the chain has no such limit


def test_options_that_do_not_fit_are_refused() -> None:
    for wrong in ({"estimator": "sticking"}, {"estimator": "full"}, {"solver": "euler"}):
        with pytest.raises(DataError, match="gradient='checkpointed'"):
            PathInference(gradient="reversible", **wrong)
    assert ContinuousOptions(solver=Heun(gradient="reversible")).solver == Heun(gradient="reversible")


def test_memory_does_not_grow_with_the_steps() -> None:
    def saved(steps: int) -> int:
        model, total = built("diagonal", steps=steps), 0

        def pack(kept: Tensor) -> Tensor:
            nonlocal total
            total += kept.numel() * kept.element_size()
            return kept

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept):
            drawn = model.draw(rows(), PATHS, torch.Generator().manual_seed(0))
            value = drawn.f.sum() + drawn.divergence["weights"]
        value.backward()
        return total

    few, many = saved(30), saved(300)
    assert many <= 1.05 * few + 300 * 8 * PATHS * 4  # what sums up the divergence of steps keeps a number of each


# ---- SRA1


def refined(counts: Sequence[int], finest: int, paths: int) -> dict[int, Tensor]:
    """Return h_T (S, 2) of SRA1 on several grids, for the same exact paths of weights."""
    prior, noise = OrnsteinUhlenbeck(rate=1.0), torch.Generator().manual_seed(0)
    grid = uniform_grid(1.0, finest)
    with torch.no_grad():
        law = drifts(2, "diagonal", spread=0.5).law(prior, grid, torch.zeros(1, 2, dtype=DOUBLE), kind="exact")
    w, path, means = torch.full((1, paths, 2), 0.5, dtype=DOUBLE), [], []
    path.append(w)
    for i in range(finest):
        eps, other = torch.randn(2, *w.shape, generator=noise, dtype=DOUBLE)
        after, _ = law.step(i, w, eps)
        means.append(average(law, prior, i, w, after, other))
        path.append(after)
        w = after
    ends = {}
    for n in (*counts, finest):
        times, h = finest // n, torch.full((1, paths, 1, 2), 0.3, dtype=DOUBLE)
        averages = torch.stack(means).unflatten(0, (n, times)).mean(1)  # ∫ w adds up
        given = [[one] for one in path[::times]], [[one] for one in averages]
        ends[n] = sra1(Swing(), *given, h, uniform_grid(1.0, n))[0, :, 0]
    return ends


def test_sra1_has_strong_order_three_halves() -> None:
    counts, finest = (4, 8, 16), 256
    ends = refined(counts, finest, 2000)
    exact = ends[finest]
    errors = {n: (ends[n] - exact).square().sum(1) for n in counts}
    order = 0.25 * math.log2((errors[4].mean() / errors[16].mean()).item())
    parts = [(errors[n].std() / errors[n].mean() / math.sqrt(2000.0)).item() for n in (4, 16)]
    spread = 0.25 / math.log(2.0) * math.hypot(*parts)  # of the order, from the number of paths
    assert order == pytest.approx(1.5, abs=0.1 + 4.0 * spread)


def test_sra1_averages_have_the_moments_of_the_integral() -> None:
    """Averages of whole steps, given their ends, have the law of averages composed of fine steps."""
    prior, n, paths = OrnsteinUhlenbeck(rate=1.0), 64, 40_000
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        drift = drifts(2, "diagonal", pieces=1, spread=0.8)
        zero = torch.full((1, 2), 0.4, dtype=DOUBLE)
        fine, one = (drift.law(prior, uniform_grid(1.0, k), zero, kind="exact") for k in (n, 1))
    start = torch.full((1, paths, 2), 0.7, dtype=DOUBLE)
    w, total = start, torch.zeros_like(start)
    for i in range(n):
        eps, other = torch.randn(2, *w.shape, generator=noise, dtype=DOUBLE)
        after, _ = fine.step(i, w, eps)
        total += average(fine, prior, i, w, after, other) / n
        w = after
    drawn = average(one, prior, 0, start, w, torch.randn(w.shape, generator=noise, dtype=DOUBLE))
    for k in range(2):
        a, b = (torch.stack([m[0, :, k], w[0, :, k]]).cov() for m in (total, drawn))
        assert torch.allclose(a, b, rtol=0.0, atol=6.0 * a.diagonal().max().item() * math.sqrt(2.0 / paths))
        off = (total - drawn)[0, :, k]
        assert abs(off.mean()) <= 4.0 * off.std() / math.sqrt(paths)


def test_sra1_refuses_a_drift_that_turns() -> None:
    prior, w = OrnsteinUhlenbeck(rate=1.0), torch.zeros(1, 1, 2, dtype=DOUBLE)
    law = drifts(2, "lowrank").law(prior, uniform_grid(1.0, 2), w[:, 0], kind="exact")
    with pytest.raises(DataError, match="drift='diagonal'"):
        average(law, prior, 0, w, w, w)
