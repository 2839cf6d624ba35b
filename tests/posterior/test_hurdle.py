"""Predictive distributions with atoms, against SciPy, simulation and quadrature."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.hurdle import AtomNetworks, HurdlePredictive, read_atom_networks
from fathomless.posterior.lattice import LatticePredictive
from fathomless.posterior.mixtures import Normal
from fathomless.system.errors import DataError

CPU = torch.device("cpu")


def make(rng, rows=3, draws=4, atoms=(-0.5, 0.0, 2.0), lattice=None, squeeze=True):
    """Return a random law with atoms."""
    loc, scale = rng.normal(size=(draws, rows, 1)), rng.uniform(0.2, 2.0, size=(draws, rows, 1))
    log_weight = torch.tensor(np.log(rng.dirichlet(np.ones(draws))), device=CPU)
    normal = Normal(torch.tensor(loc, device=CPU), torch.tensor(scale, device=CPU))
    base = ContinuousPredictive(log_weight, torch.arange(draws, device=CPU) % 2, normal, squeeze)
    base = base if lattice is None else LatticePredictive.of(base, lattice)
    mass = torch.tensor(rng.dirichlet(np.ones(len(atoms) + 1), size=rows).T, device=CPU)
    return HurdlePredictive.of(base, atoms, mass.log())


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(0, 3), st.sampled_from([None, 0.5]))
def test_quantiles_invert_the_distribution_function_from_both_sides(seed, atoms, lattice):
    rng = np.random.default_rng(seed)
    p = make(rng, atoms=tuple(0.5 * np.sort(rng.choice(9, atoms, replace=False)) - 2.0), lattice=lattice)
    levels = torch.tensor(rng.uniform(size=(40, 1)), device=CPU)
    low, high = p.icdf(levels), p.isf(levels)
    assert bool((p.cdf(low) >= levels - 1e-9).all())
    assert bool((p.cdf_before(low) <= levels + 1e-9).all())
    assert bool((p.sf(high) <= levels + 1e-9).all())
    assert bool((1.0 - p.cdf_before(high) >= levels - 1e-9).all())
    torch.testing.assert_close(p.cdf(low) + p.sf(low), torch.ones_like(low))
    tiny = torch.tensor([[1e-200]], device=CPU)
    assert bool((p.sf(torch.as_tensor(p.isf(tiny))) <= 1e-199).all())
    assert bool(p.icdf(0.0).isneginf().all())
    assert bool(p.icdf(1.0).isposinf().all())


@pytest.mark.parametrize("lattice", [None, 0.25])
def test_moments_probabilities_and_scores_are_those_of_draws(lattice):
    rng = np.random.default_rng(1)
    p = make(rng, lattice=lattice)
    drawn = p.sample(200_000, torch.Generator().manual_seed(0)).numpy()
    error = drawn.std(0) / np.sqrt(len(drawn))
    assert (np.abs(drawn.mean(0) - p.mean.numpy()) < 5.0 * error).all()
    variance = drawn.var(0)
    assert (np.abs(variance - p.variance.numpy()) < 0.02 * variance).all()
    for atom in p.atoms:
        share = (drawn == atom).mean(0)
        assert (np.abs(share - p.pmf(atom)) < 5.0 * np.sqrt(share / len(drawn))).all()
    y = np.array([0.0, 1.0, -0.75])
    for value, up_to in ((y, p.cdf(y)), (np.full(3, 0.5), p.cdf(0.5))):
        assert (np.abs((drawn <= value).mean(0) - up_to.numpy()) < 0.006).all()
    few = drawn[:4000]
    distance = np.abs(few - y).mean(0) - 0.5 * np.abs(few[:, None, 0] - few[None, :, 0]).mean()
    assert p.crps(y)[0].item() == pytest.approx(distance[0], abs=0.03)
    others = few[~np.isin(few[:, 0], p.atoms), 0]
    if lattice is None:
        assert stats.kstest(others, lambda v: p.base.take([0]).cdf(v[:, None]).numpy()[:, 0]).pvalue > 1e-4


def test_the_score_is_the_integral_of_the_squared_difference():
    p = make(np.random.default_rng(2), rows=1)
    for truth in (-0.5, 0.3, 2.0):

        def square(x, truth=truth):
            return float((p.cdf(x) - float(x >= truth)).square())

        points = sorted({*p.atoms, truth})
        edges = [-12.0, *points, 14.0]
        exact = sum(integrate.quad(square, a, b, limit=200)[0] for a, b in itertools.pairwise(edges))
        assert p.crps([truth]).item() == pytest.approx(exact, rel=2e-3)


def test_density_and_probabilities_sum_to_one():
    p = make(np.random.default_rng(3), rows=1)
    mass = sum(p.pmf([atom]).item() for atom in p.atoms)
    density = integrate.quad(lambda x: p.pdf([x]).item(), -np.inf, np.inf)[0]
    assert mass + density == pytest.approx(1.0, abs=1e-6)
    assert p.log_prob([0.0]).item() == pytest.approx(np.log(p.pmf([0.0])).item())
    assert p.log_prob([0.1]).item() == pytest.approx(p.logpdf([0.1]).item())
    on_lattice = make(np.random.default_rng(3), rows=1, lattice=0.5)
    grid = np.arange(-40.0, 40.0)[:, None] * 0.5
    assert on_lattice.pmf(grid).sum() == pytest.approx(1.0)
    assert on_lattice.log_prob([0.5]).item() == pytest.approx(on_lattice.logpmf([0.5]).item())
    with pytest.raises(DataError, match="no density"):
        on_lattice.logpdf([0.5])


def test_quantiles_at_the_probabilities_of_points_are_these_points():
    rng = np.random.default_rng(6)
    for _ in range(10):
        p = make(rng, rows=5, atoms=(-2.0, 0.0, 3.0), lattice=1.0)
        for k in range(-3, 6):
            point = torch.full((5,), float(k), dtype=torch.float64, device=CPU)
            assert torch.equal(p.icdf(p.cdf(k)), point)
            assert torch.equal(torch.as_tensor(p.isf(p.sf(k))), point)


def test_values_near_an_atom_are_not_the_atom_unless_by_rounding():
    one = make(np.random.default_rng(7), rows=1, atoms=(0.7,))
    rounded = float(np.float32(0.7))
    assert one.log_prob([rounded]).item() == one.log_prob([0.7]).item() == pytest.approx(np.log(one.pmf([0.7]).item()))
    assert one.cdf(rounded).item() == one.cdf(0.7).item()
    far = make(np.random.default_rng(7), rows=1, atoms=(1e6,), lattice=1.0)
    normal = far.continuous.component
    shifted = replace(far.continuous, component=replace(normal, loc=1e6 + normal.loc))
    moved = LatticePredictive.of(shifted, 1.0)
    p = HurdlePredictive.of(moved, (1e6,), far.log_mass)
    assert p.pmf(1e6 + np.arange(-40.0, 40.0)[:, None]).sum() == pytest.approx(1.0)


def test_laws_without_other_values_have_quantiles():
    base = make(np.random.default_rng(8), rows=2, atoms=()).base
    p = HurdlePredictive.of(base, (1.5,), torch.tensor([-800.0, 0.0], dtype=torch.float64, device=CPU))
    assert p.icdf(0.5).tolist() == [1.5, 1.5] == p.mean.tolist()
    column = make(np.random.default_rng(8), rows=2, atoms=(), squeeze=False).base
    zeros = torch.full((2, 2, 1), np.log(0.5), dtype=torch.float64, device=CPU)
    assert HurdlePredictive.of(column, (0.0,), zeros).shape == (2, 1)


def test_rows_columns_and_parts():
    rng = np.random.default_rng(4)
    p = make(rng, rows=5, squeeze=False)
    assert p.shape == (5, 1) == p.mean.shape == p.std.shape == p.interval(0.9)[0].shape
    both = p.take([0, 1]).concatenate([p.take([2, 3, 4])])
    torch.testing.assert_close(both.log_prob(np.zeros((5, 1))), p.log_prob(np.zeros((5, 1))), rtol=0, atol=0)
    parts = p.uncertainty()
    torch.testing.assert_close(parts.noise + parts.weights + parts.structure, parts.total)
    torch.testing.assert_close(parts.total, p.variance)
    frame = p.to_frame(["rain"])
    assert {"rain_mean", "rain_probability_0", "rain_probability_-0.5", "rain_upper_90"} <= set(frame.columns)
    weights = p.log_weight.exp()
    mean = (weights[:, None, None] * p.network_means).sum(0)
    torch.testing.assert_close(mean, p.mean)
    with pytest.raises(DataError, match="different atoms"):
        p.concatenate([make(rng, rows=5, atoms=(1.0,), squeeze=False)])
    with pytest.raises(DataError, match=r"targets of shape \(3,\) were given"):
        p.log_prob(np.zeros(3))
    with pytest.raises(DataError, match="0 to 1"):
        p.icdf(1.5)
    with pytest.raises(DataError, match="one row for other values"):
        HurdlePredictive(p.log_weight, p.structure, p.base, (0.0,), p.log_mass)


def test_quantiles_and_moments_have_gradients():
    logits = torch.tensor([[0.3], [0.1]], dtype=torch.float64, requires_grad=True, device=CPU)
    base = make(np.random.default_rng(5), rows=1, atoms=()).base

    def law(logits):
        return HurdlePredictive.of(base, (0.0,), logits.log_softmax(0))

    assert torch.autograd.gradcheck(
        lambda v: (law(v).mean, law(v).variance, law(v).cdf(0.4), law(v).icdf(0.95)), logits
    )


def test_networks_of_atoms_are_rebuilt_from_their_state():
    share = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64, device=CPU).log()
    networks = AtomNetworks(4, 2, share, torch.Generator().manual_seed(0))
    x = torch.randn(6, 2, dtype=torch.float64, device=CPU)
    torch.testing.assert_close(networks.log_mass(x), share[:, None].expand(3, 6))  # they start at the shares
    with torch.no_grad():
        networks.weights[2].normal_()
    again = read_atom_networks(networks.state_dict(), 2, 2)
    fold = torch.tensor([0, 1, 2, 3, 0, 1], device=CPU)
    torch.testing.assert_close(again.log_mass(x, fold), networks.log_mass(x, fold), rtol=0, atol=0)
    each = networks(x).log_softmax(-1)[fold, torch.arange(6)]
    torch.testing.assert_close(networks.log_mass(x, fold).T, each)
    with pytest.raises(DataError, match="shapes"):
        read_atom_networks(networks.state_dict(), 3, 2)
    assert read_atom_networks({}, 2, 2) is None
