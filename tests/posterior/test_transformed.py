"""Predictive distributions of transformed targets, against the log-normal law, simulation and quadrature."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fathomless.estimators import exporting
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.hurdle import HurdlePredictive
from fathomless.posterior.lattice import LatticePredictive
from fathomless.posterior.mixtures import Laplace, Mixture, Normal
from fathomless.posterior.transformed import TransformedPredictive, limit_rows, match_moments
from fathomless.system.errors import DataError
from fathomless.system.transforms import LogTransform

CPU = torch.device("cpu")
TRANSFORMS = st.builds(
    LogTransform, st.floats(-3.0, 3.0), st.floats(0.05, 5.0), st.sampled_from([1.0, -1.0]), st.just(1e9)
)


def make(rng, transform, rows=3, draws=4, spread=0.6, residual=False, squeeze=True):
    """Return a random law of a transformed target."""

    def mixture(count):
        loc, scale = rng.normal(size=(count, rows, 1)), rng.uniform(0.1, spread, size=(count, rows, 1))
        log_weight = torch.tensor(np.log(rng.dirichlet(np.ones(count))), device=CPU)
        return log_weight, Normal(torch.tensor(loc, device=CPU), torch.tensor(scale, device=CPU))

    log_weight, normal = mixture(draws)
    law = ContinuousPredictive(log_weight, torch.arange(draws, device=CPU) % 2, normal, squeeze)
    if residual:
        share = torch.tensor([[0.4], [0.6]], dtype=torch.float64, device=CPU)
        law = replace(law, share=share, residual_laws=(Mixture(*mixture(3)),))
    return TransformedPredictive.of(law, transform)


@settings(max_examples=30, deadline=None)
@given(TRANSFORMS, st.floats(-1e3, 1e3))
def test_the_transform_is_increasing_and_inverted_and_has_the_stated_slope(transform, y):
    values = torch.tensor([y, y + 1e-3 * (1.0 + abs(y))], dtype=torch.float64, device=CPU)
    t = transform.transform(values)
    assert t[1] > t[0]
    assert transform.invert(t).numpy() == pytest.approx(values.numpy(), rel=1e-9, abs=1e-9)
    slope = torch.func.grad(lambda v: transform.transform(v).sum())(values)
    assert transform.log_slope(values).exp().numpy() == pytest.approx(slope.numpy(), rel=1e-9)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_far_from_the_threshold_it_is_the_log_normal_law(sign):
    loc, scale = (torch.full((1, 1, 1), value, dtype=torch.float64, device=CPU) for value in (3.0, 0.3))
    one = torch.zeros(1, device=CPU)
    law = ContinuousPredictive(one, one.long(), Normal(sign * loc, scale), squeeze=True)
    p = TransformedPredictive.of(law, LogTransform(threshold=2.0, unit=0.5, sign=sign, limit=1e9))
    known = stats.lognorm(0.3, loc=-0.5, scale=0.5 * np.exp(3.0))  # of sign · (y − 2)
    y = 2.0 + sign * np.array([[4.0], [9.0], [25.0]])
    assert p.logpdf(y)[:, 0] == pytest.approx(known.logpdf([4.0, 9.0, 25.0]), rel=1e-12)
    below = p.cdf(y) if sign > 0.0 else p.sf(y)
    assert below[:, 0].numpy() == pytest.approx(known.cdf([4.0, 9.0, 25.0]), rel=1e-12)
    assert sign * (p.mean.item() - 2.0) == pytest.approx(known.mean(), rel=1e-12)
    assert p.variance.item() == pytest.approx(known.var(), rel=1e-9)
    quantile = p.icdf(1e-12) if sign > 0.0 else p.isf(1e-12)
    assert sign * (np.asarray(quantile).item() - 2.0) == pytest.approx(known.ppf(1e-12), rel=1e-9)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000), TRANSFORMS, st.booleans())
def test_densities_integrate_and_quantiles_invert(seed, transform, residual):
    p = make(np.random.default_rng(seed), transform, rows=1, residual=residual)
    edges = p.quantiles([1e-9, 0.01, 0.25, 0.5, 0.75, 0.99, 1.0 - 1e-9])[:, 0].numpy()
    edges = np.sort(np.append(edges, np.clip(transform.threshold, edges[0], edges[-1])))
    total = sum(integrate.quad(lambda y: p.pdf(y).item(), a, b, limit=200)[0] for a, b in itertools.pairwise(edges))
    assert total == pytest.approx(1.0, abs=1e-6)
    levels = torch.tensor([[1e-300], [1e-8], [0.3], [0.9]], dtype=torch.float64, device=CPU)
    assert p.cdf(p.icdf(levels)).numpy() == pytest.approx(levels.numpy(), rel=1e-8)
    assert p.sf(torch.as_tensor(p.isf(levels))).numpy() == pytest.approx(levels.numpy(), rel=1e-8)


@pytest.mark.parametrize(("scale", "loc"), [(1.0, 2.0), (3.0, 0.0), (3.0, 2.0), (0.01, 1.0), (0.3, -5.0), (5.0, -3.0)])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_moments_are_those_of_a_fine_grid_and_of_exported_modules(scale, loc, sign):
    transform = LogTransform(0.5, 1.5, sign, limit=20.0)
    z = np.linspace(-10.0, 10.0, 400_001)
    weight = stats.norm.pdf(z) / stats.norm.pdf(z).sum()
    highest = torch.tensor(math.log1p(20.0), dtype=torch.float64, device=CPU)
    values = transform.invert_limited(torch.tensor(sign * loc + scale * z, device=CPU), highest).numpy()
    mean = weight @ values
    law = Normal(*(torch.tensor([[[v]]], dtype=torch.float64, device=CPU) for v in (sign * loc, scale)))
    for matched in (match_moments(law, transform, highest), exporting.match_moments(law, transform, highest)):
        assert matched.loc.item() == pytest.approx(mean, rel=1e-5)
        assert matched.scale.item() == pytest.approx(np.sqrt(weight @ (values - mean) ** 2), rel=1e-4)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_moments_are_those_of_limited_samples_and_samples_follow_the_law(residual, sign):
    p = make(np.random.default_rng(3), LogTransform(0.2, 0.7, sign, limit=20.0), spread=1.2, residual=residual)
    drawn = p.sample(20_000, torch.Generator().manual_seed(0))
    weight = p.base.log_weight.exp()[:, None, None]
    bound = 0.2 + sign * 0.7 * limit_rows(weight, p.base.component, p.transform)[0, :, 0].expm1()
    limited = torch.minimum(drawn, bound) if sign > 0.0 else torch.maximum(drawn, bound)
    error = limited.std(0) / 20_000**0.5
    assert ((limited.mean(0) - p.mean).abs() < 5.0 * error + 1e-3 * p.std).all()
    assert limited.std(0).numpy() == pytest.approx(p.std.numpy(), rel=0.06)
    for row in range(3):
        of_row = p.take([row])
        assert (
            stats.kstest(drawn[:2000, row].numpy(), lambda y, law=of_row: law.cdf(y[:, None])[:, 0].numpy()).pvalue
            > 1e-4
        )
    parts = p.uncertainty()
    assert parts.total.numpy() == pytest.approx(p.variance.numpy(), rel=1e-9)
    assert p.network_means.shape == (4, 3, 1)
    assert p.mc_error.shape == (3,)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_doubt_does_not_vanish_beyond_the_training_range(sign):
    """Where the networks agree on values beyond the limit, mean and deviation grow with the interval."""
    loc = sign * torch.tensor([[2.0, 4.0, 6.0, 9.0], [2.1, 4.1, 6.1, 9.1]], dtype=torch.float64, device=CPU)[..., None]
    weight = torch.tensor([0.5, 0.5], dtype=torch.float64, device=CPU).log()
    law = ContinuousPredictive(weight, torch.arange(2, device=CPU), Normal(loc, 0.3 + 0.0 * loc), squeeze=True)
    p = TransformedPredictive.of(law, LogTransform(0.0, 1.0, sign, limit=20.0))
    low, high = p.interval(0.9)
    assert ((low < p.mean) & (p.mean < high)).all()
    assert ((p.std / (high - low))[1:] > 0.2).all()
    wild = law.component.map_parameters(torch.clone)  # one network that is far from nine others
    wild = Normal(torch.cat([loc[:1]] * 9 + [loc[:1] + sign * 20.0])[:, :1], torch.full((10, 1, 1), 0.3).to(loc))
    ten = ContinuousPredictive(torch.zeros(10).to(loc) - math.log(10), torch.arange(10), wild, squeeze=True)
    mean = TransformedPredictive.of(ten, LogTransform(0.0, 1.0, sign, limit=200.0)).mean.abs().item()
    assert mean < 30.0  # and not exp(22) / 10


def test_crps_is_that_of_samples():
    p = make(np.random.default_rng(1), LogTransform(0.0, 1.0, limit=1e6))
    y = torch.tensor([-0.5, 0.3, 4.0], dtype=torch.float64, device=CPU)
    a, b = (p.sample(100_000, torch.Generator().manual_seed(seed)) for seed in (0, 1))
    expected = (a - y).abs().mean(0) - 0.5 * (a - b).abs().mean(0)
    assert p.crps(y).numpy() == pytest.approx(expected.numpy(), abs=0.02)


def test_laws_on_lattices_and_with_atoms_are_made_of_transformed_ones():
    transform = LogTransform(0.0, 1.0, limit=100.0)
    p = make(np.random.default_rng(5), transform)
    counts = LatticePredictive.of(p, 1.0)
    points = torch.arange(-60.0, 400.0, device=CPU)[:, None]
    assert counts.pmf(points).sum(0).numpy() == pytest.approx(1.0, abs=1e-9)
    assert counts.continuous is p.base
    mass = torch.tensor([0.7, 0.3], dtype=torch.float64, device=CPU).log()
    amounts = HurdlePredictive.of(p, (0.0,), mass)
    assert amounts.mean.numpy() == pytest.approx(0.7 * p.mean.numpy())
    assert amounts.log_prob(torch.ones(3, device=CPU)).numpy() == pytest.approx(
        np.log(0.7) + p.log_prob(torch.ones(3, device=CPU)).numpy()
    )


def test_gradients_are_those_of_differences():
    transform = LogTransform(0.0, 0.5, limit=100.0)
    one = torch.zeros(2, dtype=torch.float64, device=CPU)

    def law(loc):
        return TransformedPredictive.of(
            ContinuousPredictive(one, one.long(), Normal(loc, 0.4), squeeze=True), transform
        )

    loc = torch.tensor([[[0.3], [-0.8]], [[1.1], [0.2]]], dtype=torch.float64, device=CPU, requires_grad=True)
    for function in (lambda p: p.mean, lambda p: p.icdf(0.9), lambda p: p.log_prob(torch.ones(2, device=CPU))):
        assert torch.autograd.gradcheck(lambda x, f=function: f(law(x)), (loc,), atol=1e-5)


def test_columns_and_parts_of_tables():
    p = make(np.random.default_rng(2), LogTransform(0.0, 1.0, limit=50.0), rows=5, squeeze=False)
    frame = p.to_frame(targets=["price"])
    assert frame["price_upper_90"].to_numpy() == pytest.approx(p.icdf(0.95)[:, 0].numpy())
    assert frame["price_mean"].to_numpy() == pytest.approx(p.mean[:, 0].numpy())
    joined = p.take([0, 1]).concatenate([p.take([2, 3, 4])])
    assert joined.mean.equal(p.mean)
    with pytest.raises(DataError, match="different transforms"):
        p.concatenate([TransformedPredictive.of(p.base, LogTransform(0.0, 2.0))])


def test_laws_that_cannot_be_transformed_are_refused():
    zeros, one = torch.zeros(1, 2, 2, device=CPU), torch.zeros(1, device=CPU)
    with pytest.raises(DataError, match="given 2 targets"):
        TransformedPredictive.of(
            ContinuousPredictive(one, one.long(), Normal(zeros, zeros + 1.0)), LogTransform(0.0, 1.0)
        )
    law = ContinuousPredictive(one, one.long(), Laplace(zeros[..., :1], zeros[..., :1] + 1.0))
    with pytest.raises(DataError, match="Laplace components; allowed are Gaussians"):
        TransformedPredictive.of(law, LogTransform(0.0, 1.0))
