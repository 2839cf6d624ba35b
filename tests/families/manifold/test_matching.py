"""Networks as functions of one vector, and hidden units in one order: against modules, and against the orbits."""

import math
from itertools import pairwise, permutations

import pytest
import torch
from torch import Tensor, nn

from fathomless.families.manifold.matching import align, balance, match
from fathomless.families.manifold.network import ACTIVATIONS, Affine, FlatNetwork
from fathomless.nn.layers import WeightPrior
from fathomless.system.errors import DataError

DEPTHS = [(4,), (4, 3), (3, 4, 2)]
MODULES = {"relu": nn.ReLU(), "tanh": nn.Tanh(), "silu": nn.SiLU()}


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def weights(network: FlatNetwork, count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, network.size, generator=noise(seed), dtype=torch.float64)


def moved(network: FlatNetwork, w: Tensor, seed: int) -> Tensor:
    """Return another vector of the same function: permuted, turned and rescaled at random."""
    g, layers = noise(seed), network.layers(w)
    for place, width in enumerate(network.widths):
        (inner, bias), (outer, last) = layers[place], layers[place + 1]
        order = torch.randperm(width, generator=g)
        c = torch.ones(width, dtype=w.dtype)
        if network.symmetry in ("odd", "even"):
            c = torch.randint(2, (width,), generator=g).to(w.dtype) * 2.0 - 1.0
        if network.symmetry == "positive":
            c = torch.rand(width, generator=g, dtype=w.dtype) * 3.0 + 0.2
        back = torch.ones_like(c) if network.symmetry == "even" else 1.0 / c
        layers[place] = Affine((c[:, None] * inner)[..., order, :], (c * bias)[..., order])
        layers[place + 1] = Affine((back * outer)[..., order], last)
    return network.flat(layers)


# ------------------------------------------------------------------------------------------------- the network


@pytest.mark.parametrize("activation", sorted(MODULES))
@pytest.mark.parametrize("widths", [(), *DEPTHS])
def test_batched_networks_equal_a_loop_of_modules(activation: str, widths: tuple[int, ...]) -> None:
    """Values and gradients, to 1e-10, by the order in which torch lists parameters."""
    network = FlatNetwork(3, 2, widths, activation)
    x = torch.randn(5, 3, generator=noise(1), dtype=torch.float64)
    w = weights(network, 4).requires_grad_()
    f = network(w, x)
    (grad,) = torch.autograd.grad(f.square().sum(), w)
    sizes = (3, *widths, 2)
    for s in range(4):
        parts: list[nn.Module] = []
        for a, b in pairwise(sizes):
            parts += [nn.Linear(a, b), MODULES[activation]]
        plain = nn.Sequential(*parts[:-1]).double()
        nn.utils.vector_to_parameters(w[s].detach(), plain.parameters())
        own = plain(x)
        torch.testing.assert_close(f[s], own, rtol=0, atol=1e-10)
        own.square().sum().backward()
        theirs = torch.cat([p.grad.flatten() for p in plain.parameters() if p.grad is not None])
        torch.testing.assert_close(grad[s], theirs, rtol=1e-10, atol=1e-10)


def test_bumps_are_their_formula() -> None:
    network = FlatNetwork(1, 1, (1,), "rbf")
    w = torch.tensor([[2.0, -1.0, 3.0, 0.5]])  # slope, bias, outgoing, last bias
    x = torch.tensor([[0.25]])
    assert float(network(w, x)) == pytest.approx(3.0 * math.exp(-((2.0 * 0.25 - 1.0) ** 2)) + 0.5)


def test_each_network_may_have_rows_of_its_own() -> None:
    network = FlatNetwork(2, 1, (3,), "tanh")
    w, x = weights(network, 3), torch.randn(3, 4, 2, generator=noise(2), dtype=torch.float64)
    alone = torch.cat([network(w[s : s + 1], x[s]) for s in range(3)])
    torch.testing.assert_close(network(w, x), alone)


def test_layers_and_vectors_are_the_same_numbers() -> None:
    network = FlatNetwork(2, 3, (4, 5), "relu")
    w = weights(network, 2)
    assert torch.equal(network.flat(network.layers(w)), w)
    assert network.size == w.shape[1] == 2 * 4 + 4 + 4 * 5 + 5 + 5 * 3 + 3


def test_the_scale_of_the_prior_follows_the_fan_in() -> None:
    network = FlatNetwork(4, 1, (9,), "relu")
    scale = network.prior_scale(WeightPrior(math.sqrt(0.5), fan_in=True))
    expected = torch.tensor([0.5] * 36 + [1.0] * 9 + [1.0 / 3.0] * 9 + [1.0])
    torch.testing.assert_close(scale, expected)


def test_weights_drawn_per_row_have_the_moments_of_drawn_weights() -> None:
    """The law of one row is the same, layer after layer: means within 5 standard errors, variances within 5 √(2/n)."""
    network, n = FlatNetwork(2, 1, (3,), "tanh"), 40_000
    mean, variance = weights(network, 1), 0.3 * weights(network, 1, seed=1).square()
    x = torch.randn(1, 2, generator=noise(3), dtype=torch.float64)
    w = mean + variance.sqrt() * torch.randn(n, network.size, generator=noise(4), dtype=torch.float64)
    whole = network(w, x).flatten()
    local = network.sample_outputs(mean, variance, x.expand(n, 2), noise(5)).flatten()
    error = float(((whole.var() + local.var()) / n).sqrt())
    assert abs(float(whole.mean() - local.mean())) < 5.0 * error
    fourth = float(((whole - whole.mean()) ** 4).mean() / whole.var() ** 2)
    assert float(local.var() / whole.var()) == pytest.approx(1.0, abs=5.0 * math.sqrt(2.0 * (fourth - 1.0) / n))


def test_a_network_without_units_is_refused() -> None:
    with pytest.raises(DataError, match="at least 1"):
        FlatNetwork(2, 1, (0,))
    with pytest.raises(DataError, match="activation='cos' was given"):
        FlatNetwork(2, 1, (3,), "cos")


# ------------------------------------------------------------------------------------------------- matching


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("widths", DEPTHS)
def test_matching_leaves_the_functions_as_they_are(activation: str, widths: tuple[int, ...]) -> None:
    network = FlatNetwork(2, 2, widths, activation)
    w, x = weights(network, 6), torch.randn(9, 2, generator=noise(7), dtype=torch.float64)
    torch.testing.assert_close(network(match(network, w), x), network(w, x), rtol=1e-10, atol=1e-10)
    single = match(network, w.float())
    torch.testing.assert_close(network(single, x.float()), network(w, x).float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("widths", DEPTHS)
def test_vectors_of_one_orbit_end_in_one(activation: str, widths: tuple[int, ...]) -> None:
    """Given the reference; so aligning twice is aligning once."""
    network = FlatNetwork(2, 1, widths, activation)
    w, reference = weights(network, 5), weights(network, 1, seed=9)[0]
    once = align(network, balance(network, w), reference)
    other = align(network, balance(network, moved(network, w, seed=3)), reference)
    torch.testing.assert_close(other, once, rtol=1e-8, atol=1e-8)
    assert not torch.equal(moved(network, w, seed=3), w)
    torch.testing.assert_close(align(network, balance(network, once), reference), once, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_assignment_is_the_best_of_all(activation: str) -> None:
    """By enumeration of the permutations and signs of three units."""
    network = FlatNetwork(2, 1, (3,), activation)
    w, reference = balance(network, weights(network, 4)), weights(network, 1, seed=2)[0]
    found = (align(network, w, reference) * reference).sum(1)
    turns = [(1.0, 1.0), *{"odd": [(-1.0, -1.0)], "even": [(-1.0, 1.0)]}.get(network.symmetry, [])]
    every = []
    for order in permutations(range(3)):
        for code in range(len(turns) ** 3):
            signs = [turns[code // len(turns) ** u % len(turns)] for u in range(3)]
            inner, outer = (torch.tensor(part, dtype=w.dtype) for part in zip(*signs, strict=True))
            (a, b), (c, d) = network.layers(w)
            own = Affine(inner[:, None] * a[:, order], inner * b[:, order]), Affine(outer * c[..., order], d)
            every.append((network.flat(list(own)) * reference).sum(1))
    torch.testing.assert_close(found, torch.stack(every).max(0).values)


def test_both_sides_of_balanced_units_have_one_norm() -> None:
    network = FlatNetwork(2, 1, (4, 3), "relu")
    layers = network.layers(balance(network, weights(network, 5)))
    for place in range(2):
        inner = torch.cat([layers[place].weight, layers[place].bias[..., None]], -1).norm(dim=-1)
        torch.testing.assert_close(inner, layers[place + 1].weight.norm(dim=-2), rtol=1e-6, atol=1e-6)


def test_a_unit_that_does_nothing_stays_finite() -> None:
    network = FlatNetwork(1, 1, (2,), "relu")
    w = torch.zeros(1, network.size)
    assert torch.equal(match(network, w), w)


def test_networks_that_differ_by_their_order_alone_become_equal() -> None:
    network = FlatNetwork(2, 1, (5,), "tanh")
    one = weights(network, 1)
    every = torch.cat([moved(network, one, seed) for seed in range(6)])
    matched = match(network, every)
    torch.testing.assert_close(matched, matched[:1].expand_as(matched), rtol=1e-12, atol=1e-12)
