"""Distributions on a lattice: masses, quantiles, samples and scores against closed forms and enumeration."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.lattice import LatticePredictive
from fathomless.posterior.likelihoods import Gaussian, Laplace, StudentT, cell_of, log_score
from fathomless.posterior.mixtures import Laplace as LaplaceLaw
from fathomless.posterior.mixtures import Normal
from fathomless.posterior.mixtures import StudentT as StudentLaw
from fathomless.posterior.model import Draws
from fathomless.posterior.predictive import predictive
from fathomless.posterior.transformed import TransformedPredictive
from fathomless.system.errors import DataError
from fathomless.system.transforms import LogTransform

LOC = torch.tensor([[0.0, 2.3], [1.0, 5.0]], dtype=torch.float64)[..., None]  # (S, N, 1)
SCALE = torch.tensor([[1.0, 0.3], [2.0, 0.7]], dtype=torch.float64)[..., None]
LAWS = {
    "normal": (Normal(LOC, SCALE), stats.norm),
    "student": (StudentLaw(LOC, SCALE, torch.tensor(4.0, dtype=torch.float64)), stats.t(4.0)),
    "laplace": (LaplaceLaw(LOC, SCALE), stats.laplace),
}
LATTICES = [(0.5, 0.25), (1.0, 0.0), (0.1, 0.0), (5.0, 4.99)]


def law(name, step=0.5, offset=0.25, squeeze=True):
    """Return a mixture of two networks with the weights 0.3 and 0.7 for two rows, rounded to a lattice."""
    weight = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
    base = ContinuousPredictive(weight, torch.tensor([0, 1]), LAWS[name][0], squeeze)
    return LatticePredictive.of(base, step, offset)


def reference_cdf(name, y):
    """Return F of both rows before rounding by SciPy, (..., 2)."""
    loc, scale = LOC[..., 0].numpy(), SCALE[..., 0].numpy()
    frozen = LAWS[name][1]
    return sum(w * frozen.cdf((np.asarray(y)[..., None] - loc[s]) / scale[s]) for s, w in enumerate((0.3, 0.7)))


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize(("step", "offset"), LATTICES)
def test_masses_are_differences_of_cdfs_and_sum_to_one(name, step, offset):
    p = law(name, step, offset)
    points = offset + step * np.arange(-600, 601)
    mass = p.pmf(points[:, None])  # (K, N)
    expected = reference_cdf(name, points + 0.5 * step) - reference_cdf(name, points - 0.5 * step)
    np.testing.assert_allclose(mass, expected, atol=1e-14)
    beyond = reference_cdf(name, points[0] - 0.5 * step) + 1.0 - reference_cdf(name, points[-1] + 0.5 * step)
    np.testing.assert_allclose(mass.sum(0), 1.0 - beyond, atol=1e-12)
    np.testing.assert_allclose(np.exp(p.logpmf(points[:, None])), mass)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize(("step", "offset"), LATTICES)
def test_quantile_and_cdf_invert_each_other_on_the_lattice(name, step, offset):
    p = law(name, step, offset)
    points = p.round(torch.arange(-30, 40, dtype=torch.float64) * step)[:, None]
    below, above = p.cdf(points), p.sf(points)
    inner = (below > 1e-290) & (above > 1e-14)  # elsewhere the cdf rounds to 0 or 1
    assert torch.equal(p.icdf(below)[inner], points.expand_as(below)[inner])
    inner = (above > 1e-290) & (below > 1e-14)
    assert torch.equal(p.isf(above)[inner], points.expand_as(above)[inner])
    levels = torch.linspace(0.001, 0.999, 301, dtype=torch.float64)[:, None]
    quantile = p.icdf(levels)
    assert bool((p.cdf(quantile) >= levels - 1e-15).all())
    assert bool((p.cdf(quantile - step) < levels).all())
    assert p.icdf(0.0).tolist() == [-math.inf] * 2
    assert p.icdf(1.0).tolist() == [math.inf] * 2


@pytest.mark.parametrize("name", LAWS)
def test_sums_of_masses_are_the_cdf_between_points_too(name):
    p = law(name, 1.0, 0.0)
    points = torch.arange(-400.0, 401.0, dtype=torch.float64)[:, None]
    mass = p.pmf(points)
    # the tail below -400 is missing in the sums
    torch.testing.assert_close(p.cdf(points + 0.4), mass.cumsum(0), rtol=0.0, atol=2e-8)
    torch.testing.assert_close(p.sf(points + 0.4) + p.cdf(points), torch.ones_like(mass))
    torch.testing.assert_close(p.cdf_before(points) + mass, p.cdf(points))


@pytest.mark.parametrize("name", LAWS)
def test_samples_follow_the_masses(name):
    p = law(name, 1.0, 0.0)
    n = 20_000
    drawn = p.sample(n, torch.Generator().manual_seed(0)).numpy()
    for point in (-1.0, 0.0, 2.0, 4.0, 5.0):
        mass = p.pmf(point)
        error = np.sqrt(mass * (1.0 - mass) / n)
        assert (np.abs((drawn == point).mean(0) - mass) < 4.5 * error + 1e-12).all()
    assert p.rvs((3, 2), random_state=0).shape == (3, 2)


def test_points_are_the_floats_of_decimal_fractions():
    p = law("normal", 0.1, 0.0)
    assert p.round(np.array([0.1 * 3, 0.7000001])).tolist() == [0.3, 0.7]
    assert np.isfinite(p.logpmf(np.array([0.1 * 3, 0.3]))).all()
    assert p.pmf(np.array([0.35, 0.333])).tolist() == [0.0, 0.0]
    assert p.log_prob(np.array([0.31, 0.3])).tolist() == p.log_prob(np.array([0.3, 0.3])).tolist()


@pytest.mark.parametrize("step", [1.0, 5.0])
def test_masses_keep_their_digits_in_both_tails_and_beyond_underflow(step):
    one = torch.zeros(1, dtype=torch.float64)
    y = step * np.array([-60.0, -9.0, -4.0, 0.0, 3.0, 7.0, 40.0])
    component = Normal(torch.zeros(1, len(y), 1), torch.ones(1, len(y), 1))
    p = LatticePredictive.of(ContinuousPredictive(one, one.long(), component, squeeze=True), step)
    mpmath.mp.dps = 40

    def exact(point):
        low, high = sorted((abs(point) - 0.5 * step, abs(point) + 0.5 * step))
        tails = [mpmath.erfc(mpmath.mpf(edge) / mpmath.sqrt(2)) / 2 for edge in (low, high)]
        return float(mpmath.log(tails[0] - tails[1]))

    expected = [exact(point) for point in y]
    np.testing.assert_allclose(p.log_prob(y), expected, rtol=1e-11)
    truth = torch.as_tensor(y)[:, None]
    np.testing.assert_allclose(
        component.log_mass(truth - 0.5 * step, truth + 0.5 * step)[0, :, 0], expected, rtol=1e-11
    )


@pytest.mark.parametrize("df", [2.5, 30.0])
def test_masses_of_students_law_agree_with_scipy_down_to_the_smallest_floats(df):
    z = torch.tensor([0.0, 1.0, 6.0, 1e3, 1e8], dtype=torch.float64)
    law_of = StudentLaw(torch.zeros(5), torch.ones(5), torch.tensor(df, dtype=torch.float64))
    expected = [np.log(stats.t.cdf(-v + 0.5, df) - stats.t.cdf(-v - 0.5, df)) for v in z[:4].tolist()]
    expected.append(stats.t.logpdf(1e8, df))  # constant over the cell
    for sign in (-1.0, 1.0):
        np.testing.assert_allclose(law_of.log_mass(sign * z - 0.5, sign * z + 0.5), expected, rtol=1e-9)


@pytest.mark.parametrize("family", [Normal, LaplaceLaw, StudentLaw])
def test_log_masses_have_the_derivatives_of_finite_differences(family):
    """The three cells are in the centre, below 1e-5 scales, and so far away that their probability underflows."""
    loc = torch.tensor([0.2, 1.0, 900.0], dtype=torch.float64, requires_grad=True)
    scale = torch.tensor([1.0, 2e5, 2.0], dtype=torch.float64, requires_grad=True)
    shape = (torch.tensor([4.0, 5.0, 190.0], dtype=torch.float64, requires_grad=True),) if family is StudentLaw else ()
    zero = torch.zeros(3, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda *parts: family(*parts).log_mass(zero - 0.5, zero + 0.5), (loc, scale, *shape), rtol=2e-3, atol=1e-6
    )


@pytest.mark.parametrize("name", LAWS)
def test_the_score_of_a_distribution_function_is_that_of_its_definition(name):
    p = law(name, 0.5, 0.25)
    y = np.array([1.25, 9.25])
    points = 0.25 + 0.5 * np.arange(-4000, 4000)
    step_function = (y <= points[:, None]).astype(float)
    expected = 0.5 * np.square(reference_cdf(name, points + 0.25) - step_function).sum(0)
    np.testing.assert_allclose(p.crps(y), expected, atol=1e-5)


def test_intervals_contain_at_least_their_level_and_end_at_points():
    p = law("student", 1.0, 0.0)
    for level in (0.5, 0.9, 0.99):
        low, high = p.interval(level)
        assert bool((p.cdf(high) - p.cdf_before(low) >= level).all())
        assert bool((p.cdf_before(low) < 0.5 * (1.0 - level)).all())
        assert torch.equal(low, low.round())
    columns = p.columns(levels=[0.9])
    assert columns["lower_90"].tolist() == p.interval(0.9)[0].tolist()
    assert set(law("student", squeeze=False).columns(["grade"])) == {f"grade_{name}" for name in columns}
    assert torch.equal(p.median, p.icdf(0.5))


def of_points(p, points):
    """Return mean and variance by summation over points."""
    mass, values = np.asarray(p.pmf(points[:, None])), points[:, None]  # (K, N)
    mean = (values * mass).sum(0)
    return mean, (values**2 * mass).sum(0) - mean**2


@pytest.mark.parametrize(("step", "offset"), [*LATTICES, (0.01, 0.0)])
def test_moments_are_those_of_the_points(step, offset):
    p = law("normal", step, offset)
    assert p.discrete
    assert not p.continuous.discrete
    assert p.continuous is p.base is p.base.continuous
    mean, variance = of_points(p, offset + step * np.arange(-2000, 2001))
    assert p.mean.numpy() == pytest.approx(mean, abs=1e-5 * step)
    assert p.variance.numpy() == pytest.approx(variance, rel=1e-4)
    parts = p.uncertainty()
    assert (parts.noise + parts.weights + parts.structure).numpy() == pytest.approx(p.variance.numpy(), rel=1e-9)
    assert p.take([1]).mean.tolist() == [p.mean[1].item()]
    assert law("normal", step, offset, squeeze=False).std.flatten().tolist() == p.std.tolist()


@pytest.mark.parametrize("name", ["student", "laplace"])
def test_other_laws_keep_their_mean_and_have_the_variance_of_rounding(name):
    p = law(name)
    mean, variance = of_points(p, 0.25 + 0.5 * np.arange(-20_000, 20_001))
    assert p.mean.tolist() == p.base.mean.tolist()
    assert p.mean.numpy() == pytest.approx(mean, abs=0.06 * 0.5)
    assert p.variance.numpy() == pytest.approx(variance, rel=0.02)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_moments_of_counts_on_a_logarithm_are_those_of_the_points(sign):
    """A law of few counts has most of its mass in one cell, in which the logarithm is far from symmetric."""
    weight = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
    loc = torch.tensor([[0.1, 1.5], [-0.4, 0.8]], dtype=torch.float64)[..., None]
    base = ContinuousPredictive(weight, torch.tensor([0, 1]), Normal(sign * loc, 0.25 * SCALE), squeeze=True)
    p = LatticePredictive.of(TransformedPredictive.of(base, LogTransform(0.0, 1.0, sign, limit=60.0)), 1.0)
    mean, variance = of_points(p, np.arange(-400.0, 401.0))
    assert p.mean.numpy() == pytest.approx(mean, abs=1e-4)
    assert p.variance.numpy() == pytest.approx(variance, rel=1e-3)
    assert bool(((p.mean - p.base.mean).abs() > 0.01).any())


def test_moments_have_gradients():
    def mean_and_variance(loc):
        base = ContinuousPredictive(torch.zeros(1), torch.tensor([0]), Normal(loc, 0.4 + 0.0 * loc), squeeze=True)
        p = LatticePredictive.of(base, 1.0)
        return p.mean, p.variance

    assert torch.autograd.gradcheck(mean_and_variance, LOC[:1].clone().requires_grad_())


def test_values_between_points_are_above_the_points_below():
    p = law("normal", 1.0, 0.0)
    assert torch.equal(p.cdf_before(0.4), p.cdf(0.4))
    assert torch.equal(p.cdf_before(1.0), p.cdf(0.0))


def test_parts_of_one_prediction_are_joined_and_others_refused():
    p = law("normal")
    joined = p.concatenate([p])
    assert isinstance(joined, LatticePredictive)
    assert joined.log_prob(np.array([0.25, 2.25, 0.25, 2.25])).tolist() == 2 * p.log_prob([0.25, 2.25]).tolist()
    for other in (p.base, law("normal", 1.0)):
        with pytest.raises(DataError, match="different lattices"):
            p.concatenate([other])


@pytest.mark.parametrize(("step", "offset"), [(0.0, 0.0), (math.nan, 0.0), (1.0, math.inf)])
def test_lattices_without_points_are_refused(step, offset):
    with pytest.raises(DataError, match="positive"):
        law("normal", step, offset)


def test_several_targets_and_other_shapes_are_refused():
    one = torch.zeros(1, dtype=torch.float64)
    two = ContinuousPredictive(one, one.long(), Normal(torch.zeros(1, 3, 2), torch.ones(1, 3, 2)))
    with pytest.raises(DataError, match="2 targets"):
        LatticePredictive.of(two, 1.0)
    with pytest.raises(DataError, match="one value for each row"):
        law("normal").log_prob(np.zeros(3))


# ------------------------------------------------------------------------------------------------- likelihoods


@pytest.mark.parametrize("likelihood", [Gaussian(), StudentT(), Laplace(), Gaussian(noise="input")])
def test_rows_of_a_likelihood_with_cells_are_scored_by_the_mass_of_the_prediction(likelihood):
    generator = torch.Generator().manual_seed(0)
    f = torch.randn(2, 5, likelihood.outputs, generator=generator)
    y = torch.randn(5, 1, generator=generator).mul(2.0).round().div(2.0)
    draws = Draws(f, torch.tensor([0.4, 0.6]).log(), torch.tensor([1, 2]), {})
    lattice = (0.5, 0.0)
    assert isinstance(predictive(draws, likelihood, squeeze=True, lattice=lattice), ContinuousPredictive)
    likelihood.cell = torch.tensor([0.5])
    p = predictive(draws, likelihood, squeeze=True, lattice=lattice)
    assert isinstance(p, LatticePredictive)
    with torch.no_grad():
        mass = torch.logsumexp(draws.log_weight.double()[:, None] + log_score(likelihood, f, y), 0)
        torch.testing.assert_close(p.log_prob(y[:, 0]), mass, rtol=1e-6, atol=1e-7)
    likelihood.cell = None
    assert cell_of(likelihood) is None
    assert torch.equal(log_score(likelihood, f, y), likelihood.log_prob(f, y))


def test_scales_below_the_rounding_error_are_raised_and_others_keep_their_bits():
    likelihood = Gaussian(3)
    likelihood.noise.rescale(torch.tensor([0.1, 1.0, 0.02]))
    before = likelihood.noise.raw.detach().clone()
    likelihood.steps = (1.0, 1.0, 0.0)
    likelihood.raise_scale()
    scale = likelihood.noise.log_scale().exp().tolist()
    assert scale[0] == pytest.approx(1.0 / math.sqrt(12.0), rel=1e-5)
    assert torch.equal(likelihood.noise.raw[1:], before[1:])
