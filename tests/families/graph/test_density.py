"""Densities of tables by networks: quadrature, changes of units, draws, and when too few components reach."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fathomless.families.graph.density import LogitScale, Mixture, components, log_components, mixture_quantiles
from fathomless.system.errors import DataError

#: Two observed units 0 and 1; h1 = 2 with children 0 (1.5) and 1 (-2); h2 = 3 with children h1 (2) and 1 (1).
NETWORK = {
    "orders": np.array([0.0, 0.0, 0.3, 0.7]),
    "biases": np.array([0.2, -0.4, -0.5, 0.3]),
    "precisions": np.array([12.0, 20.0, 4.0, 1.5]),
    "parents": np.array([3, 2, 2, 3]),
    "children": np.array([2, 0, 1, 1]),
    "weights": np.array([2.0, 1.5, -2.0, 1.0]),
}


def unit_scale(columns: int = 2) -> LogitScale:
    return LogitScale(np.zeros(columns), np.ones(columns), 0.1)


def mixture(draws: int, copies: int = 1, seed: int = 0) -> Mixture:
    generator = np.random.default_rng(seed)
    means, precisions = components([NETWORK] * copies, 2, draws, generator)
    weights = np.full(copies, 1 / copies)
    return Mixture(means, precisions, weights, np.zeros(copies, dtype=np.int64), unit_scale())


def test_density_mixture_matches_quadrature() -> None:
    """Log densities on the logit scale by an independent program; far out, too few components are told."""
    found = mixture(32, copies=1000)
    a = np.array([[1, -0.9], [0.6, -0.3], [1.6, -1.6], [0.0, 0.8]])
    log_p, errors, effective = found.log_prob(found.scale.decode(a))
    log_p -= found.scale.log_jacobian(a)
    expected = np.array([0.0862, -3.1756, -1.1387, -19.96])
    assert (np.abs(log_p[:3] - expected[:3]) < 4 * errors[:3]).all()
    assert (errors[:3] < 0.2).all()
    assert (effective[:3] > 50).all()
    assert effective[3] < 50


def test_density_integrates_to_one() -> None:
    found = mixture(8, copies=20)
    ends = found.scale.support
    nodes, weights = np.polynomial.legendre.leggauss(160)
    x = [0.5 * (high - low) * (nodes + 1) + low for low, high in ends.T]
    grid = np.stack(np.meshgrid(*x, indexing="ij"), -1).reshape(-1, 2)
    area = np.prod(ends[1] - ends[0]) / 4
    total = (np.exp(found.log_prob(grid)[0]).reshape(160, 160) * np.outer(weights, weights)).sum() * area
    assert total == pytest.approx(1, abs=1e-3)


def test_unit_change_shifts_log_density() -> None:
    x = np.random.default_rng(0).normal(size=(40, 2))
    found = mixture(4, copies=5)
    one = LogitScale.of(x, 0.1)
    other = LogitScale.of(x * [1000.0, 1.0] + [5.0, 0.0], 0.1)
    first = Mixture(found.means, found.precisions, found.weights, found.chains, one).log_prob(x)[0]
    second = Mixture(found.means, found.precisions, found.weights, found.chains, other)
    moved = second.log_prob(x * [1000.0, 1.0] + [5.0, 0.0])[0]
    assert moved == pytest.approx(first - math.log(1000), abs=1e-8)


def test_a_column_comes_back_and_ends_where_it_should() -> None:
    x = np.array([[0.0, -3.0], [4.0, 2.0], [1.0, 0.0]])
    scale = LogitScale.of(x, 0.2)
    assert scale.decode(scale.encode(x)) == pytest.approx(x, abs=1e-12)
    assert scale.support[:, 0] == pytest.approx([-4 / 3, 16 / 3])
    found = mixture(4)
    outside = np.array([[0.5, 2.0], [-1.0, 0.5], [0.5, 0.5]])
    assert np.isneginf(found.log_prob(outside)[0]).tolist() == [True, True, False]
    with pytest.raises(DataError, match="column 1 is constant; drop it"):
        LogitScale.of(np.array([[0.0, 1.0], [2.0, 1.0]]), 0.1)
    with pytest.raises(DataError, match=r"margin=0\.5 was given; 0 < margin < 0\.5"):
        LogitScale.of(x, 0.5)


def test_samples_have_the_density_and_the_marginals() -> None:
    found = mixture(16, copies=50)
    x = found.sample(20_000, np.random.default_rng(1))
    low, high = found.scale.support
    assert ((x > low) & (x < high)).all()
    for column in range(2):
        u = found.cdf(column, x[:4000, column])
        assert np.abs(np.sort(u) - (np.arange(4000) + 0.5) / 4000).max() < 1.95 / math.sqrt(4000)
        q = np.array([0.05, 0.5, 0.95])
        assert found.cdf(column, found.icdf(column, q)) == pytest.approx(q, abs=1e-12)
    # E[1 / p] over a box is its area: the density is that of the samples
    box = np.array([[0.4, 0.2], [0.9, 0.7]])
    inside = ((x > box[0]) & (x < box[1])).all(1)
    values = np.where(inside, np.exp(-found.log_prob(x)[0]), 0.0)
    assert abs(values.mean() - np.prod(box[1] - box[0])) < 4 * values.std() / math.sqrt(len(x))


def test_error_bars_are_right() -> None:
    """Over repeated draws, log densities scatter as their errors say; the truth is a very large mixture."""
    a = np.array([[1, -0.9], [1.6, -1.6]])
    x = unit_scale().decode(a)
    truth = mixture(32, copies=8000, seed=99).log_prob(x)[0]
    z = []
    for seed in range(60):
        log_p, errors, effective = mixture(8, copies=400, seed=seed).log_prob(x)
        assert (effective > 100).all()
        z.append((log_p - truth) / errors)
    spread = np.std(z)
    assert 0.8 < spread < 1.25


@pytest.mark.parametrize("apart", [0.0, 0.3])
def test_error_bars_count_how_far_chains_lie_apart(apart: float) -> None:
    """Eight chains, whose states differ by more from chain to chain than within one."""
    x = unit_scale().decode(np.array([[0.8, -0.7]]))
    found = []
    for seed in range(80):
        one = mixture(4, copies=400, seed=seed)
        chains = np.repeat(np.arange(8), 50)
        shift = apart * np.random.default_rng(1000 + seed).normal(size=8)[chains]
        log_p, errors, _ = replace(one, means=one.means + shift[:, None, None], chains=chains).log_prob(x)
        found.append((log_p[0], errors[0]))
    values, errors = np.array(found).T
    ratio = values.std(ddof=1) / np.sqrt((errors**2).mean())
    assert 0.7 < ratio < 1.3  # with seven degrees of freedom the larger of two estimates is a little too large


def test_one_network_without_hidden_units_is_a_product_of_normals() -> None:
    state = {
        "orders": np.zeros(2),
        "biases": np.array([0.3, -0.2]),
        "precisions": np.array([2.0, 5.0]),
        "parents": np.zeros(0, dtype=np.int64),
        "children": np.zeros(0, dtype=np.int64),
        "weights": np.zeros(0),
    }
    a = np.random.default_rng(0).normal(size=(7, 2))
    rho = state["precisions"]
    expected = (0.5 * np.log(rho / (2 * np.pi)) - 0.5 * rho * (a - state["biases"]) ** 2).sum(1)
    means, precisions = components([state], 2, 3, np.random.default_rng(0))
    assert log_components(means, precisions, a) == pytest.approx(np.repeat(expected[:, None], 3, 1), abs=1e-12)


@given(st.integers(0, 10**6), st.sampled_from([0.1, 3.0, 100.0]))
def test_quantiles_of_mixtures_invert_their_distribution_function(seed: int, apart: float) -> None:
    """Also between components that are far apart, where the density underflows, and for levels near 0 and 1."""
    rng = np.random.default_rng(seed)
    means, precisions = apart * rng.normal(size=5), rng.gamma(0.5, 2.0, 5) + 1e-3
    weights = rng.dirichlet(np.full(5, 0.3), size=9)
    levels = np.array([0.0, 1e-12, 1e-3, 0.2, 0.5, 0.9, 1 - 1e-3, 1 - 1e-12, 1.0])
    found = mixture_quantiles(weights, means, precisions, levels)
    assert found[0] == -math.inf
    assert found[-1] == math.inf
    below = (weights * stats.norm.cdf(found[:, None], means, precisions**-0.5)).sum(1)
    assert below[1:-1] == pytest.approx(levels[1:-1], rel=1e-9, abs=1e-15)


def test_quantiles_of_one_component_are_normal() -> None:
    levels = np.array([1e-9, 0.3, 0.999])
    found = mixture_quantiles(np.ones((3, 1)), np.array([2.0]), np.array([4.0]), levels)
    assert found == pytest.approx(stats.norm.ppf(levels, 2.0, 0.5), rel=1e-14)
