"""Likelihoods of censored targets against SciPy, and quantiles in their place."""

import math
import warnings

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.func import grad, vmap

from fathomless.posterior import student
from fathomless.posterior.censoring import impute, log_probability
from fathomless.posterior.likelihoods import Gaussian, Laplace, StudentT, is_censored, log_score
from fathomless.posterior.mixtures import Mixture, Normal
from fathomless.posterior.mixtures import StudentT as StudentComponent
from fathomless.posterior.noise import InputNoise
from fathomless.posterior.recalibration import Parameters
from fathomless.system.errors import DataError

INF = math.inf
LOC, SCALE = 0.1, 0.7
LAWS = {
    "gaussian": (Gaussian(noise=SCALE), stats.norm(LOC, SCALE)),
    "laplace": (Laplace(noise=SCALE), stats.laplace(LOC, SCALE)),
    "student_t": (StudentT(noise=SCALE, df=4.0), stats.t(4.0, LOC, SCALE)),
}
BOUNDS = [(0.3, 0.3), (1.0, INF), (-INF, -2.0), (-0.5, 2.0), (5.0, 5.001), (-9.0, -8.5), (15.0, INF), (-30.0, INF)]


def double(values):
    return torch.tensor(values, dtype=torch.float64, device="cpu")


def truth(law, low, high):
    """Return the log density or log probability, from the smaller tail."""
    if low == high:
        return law.logpdf(low)
    if high == INF:
        return law.logsf(low)
    if low == -INF:
        return law.logcdf(high)
    far, near = (law.logcdf(low), law.logcdf(high)) if low + high < 2 * LOC else (law.logsf(high), law.logsf(low))
    return near + np.log(-np.expm1(far - near))


@pytest.mark.parametrize("name", LAWS)
def test_the_likelihood_is_a_density_or_the_probability_between_the_bounds(name):
    likelihood, law = LAWS[name]
    f = torch.full((2, len(BOUNDS), 1), LOC, dtype=torch.float64, device="cpu")
    expected = [truth(law, *pair) for pair in BOUNDS]
    y = double(BOUNDS)
    assert is_censored(likelihood, y)
    assert not is_censored(likelihood, y[:, :1])
    for row in log_score(likelihood, f, y):
        np.testing.assert_allclose(row, expected, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(likelihood.log_prob(f.float(), y.float())[0], expected, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("name", LAWS)
def test_derivatives_are_finite_and_correct_also_under_vmap(name):
    likelihood = LAWS[name][0]
    y = double([*BOUNDS, (60.0, INF), (-60.0, INF), (-INF, 90.0)])
    f = torch.zeros(1, len(y), 1, dtype=torch.float64, device="cpu", requires_grad=True)
    torch.autograd.gradcheck(lambda f: likelihood.log_prob(f, y), f)
    (slope,) = torch.autograd.grad(likelihood.log_prob(f, y).sum(), f, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), f)
    assert bool((slope.isfinite() & second.isfinite()).all())
    if name != "laplace":  # its second derivative has a jump
        torch.autograd.gradgradcheck(lambda f: likelihood.log_prob(f, y[:4]), f[:, :4])
    outputs = torch.linspace(-2.0, 2.0, 3, dtype=torch.float64, device="cpu").view(3, 1, 1, 1).expand(3, *f.shape)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a missing rule for vmap is a warning
        mapped = vmap(grad(lambda f: likelihood.log_prob(f, y).sum()))(outputs)
    single = [grad(lambda f: likelihood.log_prob(f, y).sum())(part) for part in outputs]
    torch.testing.assert_close(mapped, torch.stack(single))


def test_scales_and_degrees_of_freedom_have_derivatives():
    likelihood = StudentT(df="learned").double()
    y, f = double(BOUNDS[:4]), torch.zeros(1, 4, 1, dtype=torch.float64, device="cpu")
    parameters = list(likelihood.parameters())

    def slopes():
        return torch.autograd.grad(likelihood.log_prob(f, y).sum(), parameters, create_graph=True)

    for i, parameter in enumerate(parameters):
        values = []
        second = torch.autograd.grad(slopes()[i].sum(), parameter)[0]
        for step in (1e-4, -2e-4, 1e-4):
            with torch.no_grad():
                parameter += step
            values.append((likelihood.log_prob(f, y).sum().item(), slopes()[i].item()))
        (up, slope_up), (down, slope_down), _ = values
        assert slopes()[i].item() == pytest.approx((up - down) / 2e-4, rel=1e-5)
        assert second.item() == pytest.approx((slope_up - slope_down) / 2e-4, rel=1e-4)


def test_a_scale_for_each_row_and_several_targets():
    likelihood = Gaussian(2, noise="input").double()
    assert isinstance(likelihood.noise, InputNoise)
    f = torch.randn(1, 1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    loc, scale = (part[0, 0].numpy() for part in (f[..., :2], likelihood.noise.split(f)[1].exp()))
    found = likelihood.log_prob(f, double([[0.5, -INF, 0.5, 1.0]]))  # lower bounds, then upper ones
    expected = stats.norm(loc[0], scale[0]).logpdf(0.5) + stats.norm(loc[1], scale[1]).logcdf(1.0)
    assert float(found) == pytest.approx(expected)
    with pytest.raises(DataError, match=r"shape \(1, 3\)"):
        likelihood.log_prob(f, torch.zeros(1, 3, device="cpu"))


def test_the_log_of_students_distribution_function_in_both_tails():
    z = double([-100.0, -20.0, -1.0, 0.0, 2.0, 30.0])
    for df in (2.5, 30.0, 200.0):
        np.testing.assert_allclose(student.log_cdf(z, df), stats.t(df).logcdf(z), rtol=1e-8)
    far = student.log_cdf(double([-1e4]), 200.0)  # the probability underflows
    t = np.linspace(0.0, 1.0, 20_001)[1:]  # by quadrature over 1 / t, with the density at the end taken out

    def ratio(share):
        return np.exp(stats.t(200.0).logpdf(1e4 / share) - stats.t(200.0).logpdf(1e4)) * 1e4 / share**2

    expected = stats.t(200.0).logpdf(1e4) + np.log(integrate.trapezoid(ratio(t), t))
    assert float(far) == pytest.approx(expected, rel=1e-5)


def test_probabilities_under_mixtures():
    mixture = Mixture(double([0.3, 0.7]).log(), Normal(double([[-1.0], [2.0]]), double([[0.5], [1.0]])))
    pairs = [(-0.5, 1.0), (1.0, INF), (-INF, -3.0), (8.0, INF), (60.0, INF), (-INF, -40.0), (50.0, 51.0)]
    for low, high in pairs:
        parts = [math.log(w) + truth(stats.norm(m, s), low, high) for w, m, s in ((0.3, -1.0, 0.5), (0.7, 2.0, 1.0))]
        found = log_probability(mixture, double([low]), double([high]), mixture.log_prob)
        assert float(found) == pytest.approx(np.logaddexp(*parts), rel=1e-6), (low, high)


def test_laws_of_the_residual_between_bounds():
    law = Parameters(double([0.25, 0.75]).log(), double([-1.0, 0.5]), double([0.3, 2.0]).log())
    z, upper = double([0.2, 0.2, -INF, 1.0]), double([0.2, INF, 1.0, 1.5])
    found = law.log_prob(z, upper=upper)
    assert float(found[0]) == pytest.approx(float(law.log_prob(z[0])))
    mixture = Mixture(law.log_weight, Normal(law.loc, law.log_scale.exp()))
    expected = [mixture.sf(z[1]), mixture.cdf(upper[2]), mixture.cdf(upper[3]) - mixture.cdf(z[3])]
    np.testing.assert_allclose(found[1:].exp(), [float(p) for p in expected], rtol=1e-9)


def test_quantiles_between_bounds_have_the_moments_of_the_truncated_law():
    low, high = double([1.0, -INF, -0.5, 0.4, 7.0]), double([INF, 0.0, 0.7, 0.4, INF])
    law = StudentComponent(torch.zeros(5), torch.full((5,), 0.8), torch.full((5,), 9.0))
    drawn = impute(law, low, high, 4000)
    assert bool(((drawn >= low) & (drawn <= high)).all())
    exact = stats.t(9.0, 0.0, 0.8)
    for row, (a, b) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
        if a == b:
            assert bool((drawn[:, row] == a).all())
            continue
        first, second = (exact.expect(lambda y, k=k: y**k, lb=a, ub=b, conditional=True) for k in (1, 2))
        assert float(drawn[:, row].mean()) == pytest.approx(first, rel=3e-3)
        assert float(drawn[:, row].square().mean()) == pytest.approx(second, rel=1e-2)
