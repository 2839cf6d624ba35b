"""Dynamics of hidden states: section 14 of the specification, items 17 to 19, by name, and explicit networks."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from families.continuous.scalars import DOUBLE
from fathomless.families.continuous.dynamics import ConvDynamics, Dynamics, MLPDynamics, initial_weights
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.processes import OrnsteinUhlenbeck
from fathomless.families.continuous.solve import PathInference, split_weights


def prior_draws(
    dynamics: Dynamics, x: Tensor, n: int, *, steps: int = 10, solver: str = "heun", weight_prior: float = 1.0
) -> Tensor:
    """Return outputs of draws from the prior, (n, B, K)."""
    options = PathInference(initial="gaussian", drift="shift", steps=steps, solver=solver)
    model = ContinuousDepth(
        dynamics, prior=OrnsteinUhlenbeck(rate=1.0), weight_prior=weight_prior, options=options, dtype=DOUBLE
    ).eval()
    with torch.no_grad():
        model.mean.zero_()
        assert model.log_width is not None
        model.log_width.zero_()
        draws = model.draw(x, n, torch.Generator().manual_seed(0))
    assert draws.divergence["weights"].abs() < 1e-9
    return draws.f


def test_paper_architecture_has_5132_weights() -> None:
    paper = MLPDynamics(1, 1, hidden=(64, 64), encoder="pad", augment=2, activation="swish", time="gate")
    assert sum(weight.size for weight in paper.moving) == 5132
    assert paper.still == ()
    assert ContinuousDepth(paper).moving == 5132


def test_without_augmentation_draws_are_monotone() -> None:
    """Flows of one number cannot cross; LΔ < 1 for these steps. With zeros beside it they can."""
    x = torch.linspace(-1.5, 1.5, 60, dtype=DOUBLE)[:, None]
    for augment in (0, 2):
        net = MLPDynamics(1, 1, hidden=(32,), encoder="pad", augment=augment)
        rises = prior_draws(net, x, 60, steps=60)[..., 0].diff(dim=1)
        monotone = ((rises > 0).all(1) | (rises < 0).all(1)).double().mean().item()
        if augment:
            assert 0.0 < monotone < 0.9
        else:
            assert monotone == 1.0
            assert (rises > 0).all()  # h_T = x at first, so that all of them increase


def test_prior_spread_does_not_grow_with_width() -> None:
    """Deviations are those of the fan-in. The median over draws of the paper's layers, as few draws are extreme."""
    x = torch.linspace(-1.5, 1.5, 9, dtype=DOUBLE)[:, None]
    spread = []
    for width in (16, 32, 64, 128):
        hidden = (width, width)
        net = MLPDynamics(1, 1, hidden=hidden, encoder="pad", augment=2, activation="swish", time="gate")
        draws = prior_draws(net, x, 100, steps=5, weight_prior=2.0 * math.sqrt(2.0))
        spread.append(draws.abs().mean((1, 2)).median().item())
    assert max(spread) < 1.5 * min(spread)
    assert min(spread) > 0.3


@pytest.mark.parametrize("time", ["none", "gate"])
@pytest.mark.parametrize("activation", ["silu", "swish", "tanh"])
def test_the_slope_is_its_formula(activation: str, time: str) -> None:
    """Layer by layer, one drawn network after the other."""
    net = MLPDynamics(2, 3, width=4, hidden=(5, 6), activation=activation, time=time)
    members, draws, rows, t, g = 2, 3, 7, 0.3, torch.Generator().manual_seed(0)
    flat = torch.randn(members, draws, sum(w.size for w in net.moving), generator=g, dtype=DOUBLE)
    h = torch.randn(members, draws, rows, 4, generator=g, dtype=DOUBLE)
    got = net.slope(split_weights(flat, net.moving), t, h)
    names = [weight.name for weight in net.moving]
    for i in range(members):
        for s in range(draws):
            own = dict(zip(names, (part[i, s] for part in split_weights(flat, net.moving)), strict=True))
            z = h[i, s]
            for k in range(3):
                z = z @ own[f"layer{k}.weight"] + own[f"layer{k}.bias"]
                if time == "gate":
                    z = z * torch.sigmoid(own[f"layer{k}.gate_slope"] * t + own[f"layer{k}.gate_bias"])
                    z = z + own[f"layer{k}.drift"] * t
                if k == 2:
                    break
                if activation == "swish":
                    z = z * torch.sigmoid(z * F.softplus(own[f"layer{k}.swish"]))
                else:
                    z = {"silu": F.silu, "tanh": torch.tanh}[activation](z)
            torch.testing.assert_close(got[i, s], z, rtol=1e-12, atol=1e-12)


def test_entering_and_leaving_are_linear_or_nothing() -> None:
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 5, 3, generator=g, dtype=DOUBLE)
    net = MLPDynamics(3, 2, width=4)
    flat = torch.randn(2, 6, sum(w.size for w in net.still), generator=g, dtype=DOUBLE)
    weight, bias, readout, last = parts = split_weights(flat, net.still)
    h = net.enter(parts, x)
    torch.testing.assert_close(h, torch.einsum("fbd,fsdh->fsbh", x, weight) + bias[:, :, None])
    torch.testing.assert_close(net.leave(parts, h), torch.einsum("fsbh,fshk->fsbk", h, readout) + last[:, :, None])
    padded = MLPDynamics(3, 2, encoder="pad", augment=1)
    h = padded.enter([], x)
    assert torch.equal(h[:, 0, :, :3], x)
    assert (h[..., 3] == 0.0).all()
    assert torch.equal(padded.leave([], h), h[..., 2:])


@pytest.mark.parametrize("squeeze", [1, 2])
def test_drawn_convolutions_are_those_of_each_network(squeeze: int) -> None:
    net = ConvDynamics(2, 8, 3, augment=1, hidden=(4,), squeeze=squeeze)
    members, draws, rows, t, g = 2, 3, 5, 0.7, torch.Generator().manual_seed(0)
    x = torch.randn(members, rows, 2 * 8 * 8, generator=g, dtype=DOUBLE)
    moving = split_weights(
        torch.randn(members, draws, sum(w.size for w in net.moving), generator=g, dtype=DOUBLE), net.moving
    )
    still = split_weights(
        torch.randn(members, draws, sum(w.size for w in net.still), generator=g, dtype=DOUBLE), net.still
    )
    h = net.enter(still, x)
    side, channels = 8 // squeeze, 2 * squeeze**2 + 1
    assert h.shape == (members, 1, rows, channels, side, side)
    slope, f = net.slope(moving, t, h), net.leave(still, h.expand(-1, draws, *[-1] * 4))
    for i in range(members):
        for s in range(draws):
            z = h[i, 0]
            for k in range(2):
                z = torch.cat([z, torch.full((rows, 1, side, side), t, dtype=DOUBLE)], 1)
                z = F.conv2d(z, moving[2 * k][i, s], moving[2 * k + 1][i, s], padding=1)
                z = F.softplus(z) if k == 0 else z
            torch.testing.assert_close(slope[i, s], z, rtol=1e-10, atol=1e-10)
            pooled = F.avg_pool2d(h[i, 0], 2).flatten(1)
            torch.testing.assert_close(f[i, s], pooled @ still[0][i, s] + still[1][i, s])


def test_the_kernels_of_images_are_counted_as_in_the_specification() -> None:
    """Eight channels, 16 hidden ones, three convolutions: 5008 weights."""
    net = ConvDynamics(1, 8, 10, augment=7)
    assert sum(weight.size for weight in net.moving) == 5008
    model = ContinuousDepth(net, options=PathInference(steps=2)).eval()
    assert model.draw(torch.zeros(3, 64), 2, torch.Generator()).f.shape == (2, 3, 10)


@pytest.mark.parametrize(
    "dynamics", [MLPDynamics(3, 2, width=5, hidden=(7,), time="gate"), ConvDynamics(1, 4, 2, hidden=(3,))], ids=repr
)
def test_initial_weights_are_scaled_by_their_fan_in(dynamics: Dynamics) -> None:
    mean, scale = initial_weights(dynamics, 2.0, 0, DOUBLE)
    done = 0
    for weight in (*dynamics.moving, *dynamics.still):
        own = slice(done, done + weight.size)
        done += weight.size
        assert (scale[own] == 2.0 / math.sqrt(weight.fan_in)).all()
        drawn = (mean * scale)[own] * math.sqrt(weight.fan_in)
        if weight.gain == 0.0:
            assert (drawn == 0.0).all()
        else:  # of so many normal numbers
            assert drawn.square().mean().sqrt() == pytest.approx(weight.gain, rel=4.0 / math.sqrt(2.0 * weight.size))
    assert done == len(mean) == len(scale)


def test_numbers_counts_what_a_slope_keeps() -> None:
    """For every row, within half of the memory that autograd uses beside the weights."""

    def kept(dynamics: Dynamics, rows: int, h: Tensor) -> float:
        moving = split_weights(
            torch.randn(1, 1, sum(w.size for w in dynamics.moving)).requires_grad_(), dynamics.moving
        )
        sizes: dict[int, int] = {}

        def pack(saved: Tensor) -> Any:
            sizes[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes() // saved.element_size()
            return saved

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
            dynamics.slope(moving, 0.5, h.expand(1, 1, rows, *h.shape))
        return float(sum(sizes.values()) - sum(w.size for w in dynamics.moving))

    for dynamics, h in (
        (MLPDynamics(3, 2, width=20, hidden=(30, 25)), torch.zeros(20)),
        (ConvDynamics(1, 8, 10), torch.zeros(8, 8, 8)),
    ):
        assert dynamics.numbers(500) == pytest.approx(kept(dynamics, 500, h), rel=0.5)


@pytest.mark.parametrize("inputs", [1, 8])
def test_draws_from_the_default_prior_vary_as_a_standardised_target_does(inputs: int) -> None:
    """Layers without gates, at the defaults of the estimators, at a slow and at a fast rate."""
    x = torch.randn(64, inputs, generator=torch.Generator().manual_seed(1), dtype=DOUBLE)
    for width, hidden in ((16, 32), (32, 64), (64, 128)):
        f = prior_draws(MLPDynamics(inputs, 1, width, (hidden,)), x, 200)[:, :, 0]
        assert 0.7 < f.std(1).median().item() < 1.6
