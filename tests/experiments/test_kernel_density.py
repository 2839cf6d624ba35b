"""Kernel density estimates against closed forms, quadrature and SciPy; the Hellinger distance between samples."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from experiments.kernel_density import RULES, KernelDensity, hellinger_samples
from fathomless.system.errors import DataError

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("rule", ["scott", "silverman"])
def test_full_kernels_are_those_of_scipy(rule: str) -> None:
    x, y = RNG.normal(size=(80, 3)) @ RNG.normal(size=(3, 3)), RNG.normal(size=(20, 3))
    np.testing.assert_allclose(
        KernelDensity.of(x, rule).log_prob(y), stats.gaussian_kde(x.T, rule).logpdf(y.T), rtol=1e-9
    )


@pytest.mark.parametrize("rule", RULES)
def test_an_estimate_is_a_density_and_is_drawn_from(rule: str) -> None:
    kernel = KernelDensity.of(RNG.normal(size=(60, 1)), rule)
    mass = integrate.quad(lambda t: float(np.exp(kernel.log_prob([[t]]))[0]), -12, 12, limit=400)[0]
    assert mass == pytest.approx(1.0, abs=1e-6)
    drawn = kernel.sample(5000, np.random.default_rng(1))[:, 0]
    grid = np.linspace(-4, 4, 200)
    cdf = np.mean(stats.norm.cdf((grid[:, None] - kernel.points[:, 0]) / kernel.root[0, 0]), 1)
    assert np.abs((drawn[:, None] < grid).mean(0) - cdf).max() < 1.95 / math.sqrt(5000)


def test_a_bandwidth_is_the_likeliest_for_points_that_were_left_out() -> None:
    x = RNG.normal(size=(50, 2)) * [1.0, 10.0]
    chosen = KernelDensity.of(x)
    own = float(chosen.root[0, 0] / x[:, 0].std(ddof=1))

    def score(h: float) -> float:
        root = np.diag(h * x.std(0, ddof=1))
        each = [KernelDensity(np.delete(x, i, 0), root).log_prob(x[i : i + 1])[0] for i in range(len(x))]
        return float(np.mean(each))

    assert score(own) >= max(score(own * 0.93), score(own * 1.08)) - 1e-12


def test_hellinger_of_two_gaussians() -> None:
    """Of the two estimates themselves, by quadrature."""
    x, y = RNG.normal(size=(200, 1)), RNG.normal(1.0, 1.5, size=(200, 1))
    left, right = KernelDensity.of(x), KernelDensity.of(y)
    grid = np.linspace(-12, 14, 20_001)[:, None]
    overlap = integrate.simpson(np.exp(0.5 * (left.log_prob(grid) + right.log_prob(grid))), x=grid[:, 0])
    found = hellinger_samples(x, y, points=40_000, seed=3)
    assert abs(found.square - (1 - overlap)) < 4 * found.error
    assert found.distance == math.sqrt(found.square)
    other = hellinger_samples(y, x, points=40_000, seed=4)
    assert abs(found.square - other.square) < 4 * math.hypot(found.error, other.error)
    assert hellinger_samples(x, x).square == 0.0
    assert found.sizes == (200, 200)


def test_far_samples_have_nothing_in_common() -> None:
    assert hellinger_samples(RNG.normal(size=(40, 2)), RNG.normal(500.0, 1.0, size=(40, 2))).square == pytest.approx(
        1.0
    )


def test_an_offset_of_all_points_changes_nothing() -> None:
    left, right = np.random.default_rng(0).normal(size=(2, 60, 2)) + np.array([0.0, 0.8])[:, None, None]
    near, far = hellinger_samples(left, right), hellinger_samples(left + 1e8, right + 1e8)
    assert far.square == pytest.approx(near.square, rel=1e-3)


def test_what_is_no_sample_is_refused() -> None:
    with pytest.raises(DataError, match="one point was given"):
        KernelDensity.of([[1.0, 2.0]])
    with pytest.raises(DataError, match="column 1 is constant"):
        KernelDensity.of(np.column_stack([np.arange(5.0), np.ones(5)]))
    with pytest.raises(DataError, match="finite numbers"):
        KernelDensity.of([[1.0], [math.nan]])
    with pytest.raises(DataError, match="rule"):
        KernelDensity.of([[1.0], [2.0]], "thumb")
    with pytest.raises(DataError, match="2 and 3 columns"):
        hellinger_samples(np.random.default_rng(0).normal(size=(9, 2)), np.random.default_rng(0).normal(size=(9, 3)))
