import math
import subprocess
import sys
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fathomless.posterior.mixtures import Component, Laplace, Mixture, Normal, StudentT, concatenate_rows
from fathomless.system.errors import DataError

FAMILIES = ["normal", "laplace", "student"]


def component(family: str, loc, scale, df=3.5) -> Component:
    loc, scale = torch.as_tensor(loc, dtype=torch.float64), torch.as_tensor(scale, dtype=torch.float64)
    match family:
        case "normal":
            return Normal(loc, scale)
        case "laplace":
            return Laplace(loc, scale)
    return StudentT(loc, scale, torch.as_tensor(df, dtype=torch.float64))


def reference(family: str, loc, scale, df=3.5):
    match family:
        case "normal":
            return stats.norm(loc, scale)
        case "laplace":
            return stats.laplace(loc, scale)
    return stats.t(df, loc, scale)


def random_mixture(family: str, seed: int = 0, shape=(5, 3, 2)) -> Mixture:
    g = torch.Generator().manual_seed(seed)
    loc = 3.0 * torch.randn(shape, generator=g, dtype=torch.float64)
    scale = torch.exp(torch.randn(shape, generator=g, dtype=torch.float64))
    weight = torch.rand(shape[0], generator=g, dtype=torch.float64)
    return Mixture(weight.log(), component(family, loc, scale))


@pytest.mark.parametrize("family", FAMILIES)
def test_component_matches_scipy_into_both_tails(family):
    y = np.concatenate([-np.geomspace(1e-3, 30, 40), np.geomspace(1e-3, 30, 40)])
    ours, theirs = component(family, 0.3, 1.7), reference(family, 0.3, 1.7)
    np.testing.assert_allclose(ours.log_prob(torch.tensor(y)), theirs.logpdf(y), rtol=1e-12)
    np.testing.assert_allclose(ours.cdf(torch.tensor(y)), theirs.cdf(y), rtol=1e-11)
    np.testing.assert_allclose(ours.sf(torch.tensor(y)), theirs.sf(y), rtol=1e-11)
    p = np.array([1e-200, 1e-30, 1e-3, 0.3, 0.5, 0.9, 1 - 1e-12])
    at = slice(1, None) if family == "student" else slice(None)  # SciPy's quantile of Student's law is wrong at 1e-200
    np.testing.assert_allclose(ours.icdf(torch.tensor(p))[at], theirs.ppf(p)[at], rtol=1e-10)
    np.testing.assert_allclose(ours.variance, theirs.var(), rtol=1e-13)
    assert ours.mean == theirs.mean()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_energy_serves_any_dtype_and_has_gradients(family, dtype):
    law = component(family, 0.0, 1.0)
    shape = [parameter.to(dtype) for parameter in law.shape_parameters]
    z = torch.linspace(-3.0, 3.0, 13, dtype=dtype, requires_grad=True)
    energy = law.energy(z, *shape)
    assert energy.dtype == dtype
    (slope,) = torch.autograd.grad(energy.sum(), z)
    exact = z.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(-law.standard_log_prob(exact).sum(), exact)
    tolerance = 4.0 * torch.finfo(dtype).eps
    torch.testing.assert_close(slope.double(), expected, rtol=tolerance, atol=tolerance)
    assert (energy >= 0).all()


def test_constants_of_numbers_and_of_tensors_agree():
    df = torch.tensor([2.05, 4.0, 200.0], dtype=torch.float64)
    numbers = [StudentT.log_constant(value) for value in df.tolist()]
    np.testing.assert_allclose(StudentT.log_constant(df), numbers, rtol=1e-12)
    np.testing.assert_allclose(numbers, stats.t(df.numpy()).logpdf(0.0), rtol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_component_samples_follow_their_law(family):
    draws = component(family, torch.full((20_000,), 0.3), 1.7).sample(torch.Generator().manual_seed(1))
    assert stats.kstest(draws.numpy(), reference(family, 0.3, 1.7).cdf).pvalue > 1e-3


@pytest.mark.parametrize("df", [2.05, 4.0, 200.0])
def test_polar_method_gives_students_law_for_any_degrees_of_freedom(df):
    draws = component("student", torch.zeros(20_000), 1.0, df).sample(torch.Generator().manual_seed(2))
    assert stats.kstest(draws.numpy(), stats.t(df).cdf).pvalue > 1e-3


@pytest.mark.parametrize("family", FAMILIES)
def test_mixture_matches_brute_force_sums(family):
    mixture = random_mixture(family)
    w, c = mixture.weight.numpy(), mixture.component
    law = reference(family, c.loc.numpy(), c.scale.numpy())
    y = torch.linspace(-4, 4, 7, dtype=torch.float64)[:, None, None].expand(7, 3, 2)
    spread = y.numpy()[:, None]
    np.testing.assert_allclose(mixture.log_prob(y).exp(), np.einsum("s,qsnt->qnt", w, law.pdf(spread)), rtol=1e-12)
    np.testing.assert_allclose(mixture.cdf(y), np.einsum("s,qsnt->qnt", w, law.cdf(spread)), rtol=1e-11)
    np.testing.assert_allclose(mixture.sf(y), np.einsum("s,qsnt->qnt", w, law.sf(spread)), rtol=1e-11)
    mean = np.einsum("s,snt->nt", w, law.mean())
    np.testing.assert_allclose(mixture.mean, mean, rtol=1e-12)
    second = np.einsum("s,snt->nt", w, law.var() + law.mean() ** 2)
    np.testing.assert_allclose(mixture.variance, second - mean**2, rtol=1e-10)
    np.testing.assert_allclose(mixture.std.square(), mixture.variance, rtol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_mixture_density_integrates_to_its_distribution_function(family):
    mixture = random_mixture(family, shape=(3, 1, 1))
    points = sorted(mixture.component.loc.flatten().tolist())

    def density(y: float) -> float:
        return mixture.log_prob(y).exp().item()

    low, high = points[0] - 50.0, points[1]
    mass, error = integrate.quad(density, low, high, points=points[:2], limit=200)
    expected = (mixture.cdf(high) - mixture.cdf(low)).item()
    assert abs(mass - expected) < 1e-7 + 10 * error


@pytest.mark.parametrize("family", FAMILIES)
def test_mixture_samples_match_moments_and_distribution_function(family):
    mixture, n = random_mixture(family, seed=3), 20_000
    draws = mixture.sample(n, torch.Generator().manual_seed(4))
    assert draws.shape == (n, 3, 2)
    error = (draws.mean(0) - mixture.mean).abs() / (mixture.std / math.sqrt(n))
    assert error.max() < 4.5
    for y in (-3.0, 0.0, 2.0):
        p = mixture.cdf(y)
        error = ((draws < y).double().mean(0) - p).abs() / (p * (1 - p) / n).sqrt()
        assert error.max() < 4.5


def test_mixture_samples_are_independent_across_the_batch():
    apart = Normal(torch.tensor([-1e3, 1e3])[:, None, None].expand(2, 1, 2), torch.tensor(1.0))
    draws = Mixture(torch.zeros(2), apart).sample(4_000, torch.Generator().manual_seed(5))
    signs = draws.sign().squeeze(1)
    assert (signs[:, 0] * signs[:, 1]).mean().abs() < 4.5 / math.sqrt(4_000)


def test_samples_repeat_with_the_generator():
    mixture = random_mixture("student")
    first, second = (mixture.sample(5, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize("family", FAMILIES)
def test_quantile_of_one_component_is_its_own(family):
    p = torch.tensor([1e-12, 0.1, 0.5, 0.99])
    one = Mixture(torch.zeros(1), component(family, [2.0], [3.0]))
    np.testing.assert_allclose(one.icdf(p), reference(family, 2.0, 3.0).ppf(p.double().numpy()), rtol=1e-10)


@settings(max_examples=60, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    log_weight=st.lists(st.floats(-60, 0), min_size=2, max_size=5),
    seed=st.integers(0, 2**31),
    spread=st.floats(0.0, 6.0),
    p=st.floats(1e-9, 1 - 1e-9),
)
def test_distribution_function_inverts_quantiles(family, log_weight, seed, spread, p):
    rng = np.random.default_rng(seed)
    loc = rng.normal(size=len(log_weight)) * 10 ** rng.uniform(-spread, spread, len(log_weight))
    scale = 10 ** rng.uniform(-spread, spread, len(log_weight))
    mixture = Mixture(torch.tensor(log_weight), component(family, loc, scale))
    y = mixture.icdf(p)
    # one unit in the last place of y moves the distribution function by this much
    slack = 1e-15 * y.abs() * mixture.log_prob(y).exp()
    assert (mixture.cdf(y) - p).abs() <= 1e-11 * p + 4 * slack
    assert (mixture.sf(y) - (1 - p)).abs() <= 1e-11 * (1 - p) + 4 * slack + 1e-15


@settings(max_examples=40, deadline=None)
@given(family=st.sampled_from(FAMILIES), seed=st.integers(0, 1000), y=st.floats(-5, 5))
def test_quantiles_invert_distribution_function(family, seed, y):
    mixture = random_mixture(family, seed)
    back = mixture.icdf(mixture.cdf(y))
    conditioning = 1e-15 / mixture.log_prob(y).exp()  # dy = dF / density
    assert ((back - y).abs() <= 1e-10 * max(1.0, abs(y)) + 4 * conditioning).all()


def test_quantiles_rise_with_the_probability():
    mixture = random_mixture("laplace", 7)
    p = torch.linspace(0, 1, 201)[:, None, None]
    assert (mixture.icdf(p).diff(dim=0)[1:-1] > 0).all()


def test_quantiles_at_the_edges_are_infinite():
    mixture = random_mixture("student")
    assert (mixture.icdf(0.0) == -math.inf).all()
    assert (mixture.icdf(1.0) == math.inf).all()
    assert ((mixture.cdf(math.inf) - 1).abs() < 1e-15).all()
    assert (mixture.cdf(math.inf) <= 1).all()
    assert (mixture.cdf(-math.inf) == 0).all()
    assert (mixture.log_prob(math.inf) == -math.inf).all()


def test_quantile_finds_a_tiny_weight_far_away_and_a_spike():
    far = Mixture(torch.tensor([1.0, 1e-12], dtype=torch.float64).log(), component("normal", [0, 1e9], [1, 1e3]))
    # above the main mode, the upper 1e-13 belong to a tenth of the far component
    upper = 1.0 - 1e-13
    share = (1.0 - upper) * (1.0 + 1e-12) / 1e-12
    expected = stats.norm(1e9, 1e3).isf(share)
    np.testing.assert_allclose(far.icdf(upper), expected, rtol=1e-10)
    spike = Mixture(torch.tensor([0.5, 0.5]).log(), component("normal", [0, 7.0], [1e8, 1e-8]))
    assert abs(spike.icdf(0.6).item() - 7.0) < 1e-6


def test_quantiles_in_a_far_tail_are_exact():
    mixture = Mixture(torch.tensor([0.3, 0.7]).log(), component("normal", [0, 0], [1, 2.0]))
    y = mixture.icdf(1e-250)
    expected = stats.norm(0, 2).ppf(1e-250 / np.float64(np.float32(0.7)))  # the narrow component is negligible there
    np.testing.assert_allclose(y, expected, rtol=1e-8)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e200])
def test_components_without_weight_are_silent_whatever_they_hold(bad):
    loc, scale = [0.0, bad, 1.0], [1.0, bad, 2.0]
    weight = torch.tensor([0.4, 0.0, 0.6], dtype=torch.float64)
    with_bad = Mixture(weight.log(), component("student", loc, scale, [3.0, bad, 5.0]))
    without = Mixture(weight[[0, 2]].log(), component("student", [0.0, 1.0], [1.0, 2.0], [3.0, 5.0]))
    for name in ("mean", "variance", "std"):
        assert torch.equal(getattr(with_bad, name), getattr(without, name))
    for y in (-math.inf, 0.3, 1e300):
        assert torch.equal(with_bad.cdf(y), without.cdf(y))
        assert torch.equal(with_bad.log_prob(y), without.log_prob(y))
    assert torch.equal(with_bad.icdf(0.9), without.icdf(0.9))
    assert with_bad.sample(10, torch.Generator().manual_seed(0)).isfinite().all()


def test_weight_below_the_smallest_float_gives_no_nan():
    mixture = Mixture(torch.tensor([0.0, -900.0]), component("normal", [0.0, 1e250], [1.0, 1e250]))
    assert mixture.mean == 0
    assert mixture.variance == 1
    np.testing.assert_allclose(mixture.icdf(0.9), stats.norm.ppf(0.9), rtol=1e-12)
    # far outside, the wide component is all there is
    assert mixture.log_prob(1e250).item() == pytest.approx(-900.0 + stats.norm.logpdf(0.0) - math.log(1e250))


@pytest.mark.parametrize("family", FAMILIES)
def test_change_of_units_moves_every_summary(family):
    mixture = random_mixture(family)
    shift, scale = torch.tensor([10.0, -3.0]), torch.tensor([2.0, 0.1], dtype=torch.float64)
    moved = mixture.affine(shift, scale)
    torch.testing.assert_close(moved.mean, shift + scale * mixture.mean)
    torch.testing.assert_close(moved.std, scale * mixture.std)
    torch.testing.assert_close(moved.icdf(0.8), shift + scale * mixture.icdf(0.8))
    y = torch.zeros(3, 2, dtype=torch.float64)
    torch.testing.assert_close(moved.log_prob(shift + scale * y), mixture.log_prob(y) - scale.log())


def test_weights_are_normalised():
    part = component("normal", [0.0, 1.0], [1.0, 1.0])
    assert torch.equal(Mixture(torch.tensor([3.0, 3.0]), part).weight, torch.full((2,), 0.5, dtype=torch.float64))


def test_rows_are_joined_in_order():
    whole = random_mixture("student").component
    parts = [whole.map_parameters(lambda t, k=k: t[:, k : k + 1]) for k in range(3)]
    joined = concatenate_rows(parts)
    assert torch.equal(joined.loc, whole.loc)
    assert torch.equal(joined.df, whole.df)
    with pytest.raises(DataError, match="family, draws or columns"):
        concatenate_rows([whole, Normal(whole.loc, whole.scale)])


@pytest.mark.parametrize(
    ("log_weight", "part"),
    [
        ([0.0], component("normal", [0.0, 1.0], [1.0, 1.0])),
        ([0.0, math.nan], component("normal", [0.0, 1.0], [1.0, 1.0])),
        ([-math.inf, -math.inf], component("normal", [0.0, 1.0], [1.0, 1.0])),
        ([0.0, 0.0], component("normal", [0.0, math.nan], [1.0, 1.0])),
        ([0.0, 0.0], component("normal", [0.0, 1.0], [1.0, 0.0])),
        ([0.0, 0.0], component("student", [0.0, 1.0], [1.0, 1.0], 2.0)),
        ([], component("normal", [], [])),
        ([0.0], component("normal", 0.0, 1.0)),
    ],
)
def test_mixtures_that_are_no_laws_are_refused(log_weight, part):
    with pytest.raises(DataError, match="allowed"):
        Mixture(torch.tensor(log_weight), part)


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_quantiles_of_no_probability_are_refused(p):
    with pytest.raises(DataError, match="allowed are 0 to 1"):
        random_mixture("normal").icdf(p)


def test_values_that_would_broadcast_the_batch_are_refused():
    mixture = random_mixture("normal", shape=(2, 5, 1))
    with pytest.raises(DataError, match=r"\(5, 1\)"):
        mixture.cdf(torch.zeros(5))
    with pytest.raises(DataError, match=r"\(5, 1\)"):
        mixture.log_prob(torch.zeros(4, 1))


def test_quantiles_load_no_computer_algebra():
    """Several of torch's conveniences do, on their first call; a prediction of one row would take a second longer."""
    code = (
        "import sys, torch; from fathomless.posterior.mixtures import Mixture, Normal; "
        "one = torch.ones(1, 2).double(); "
        "Mixture(torch.zeros(1), Normal(one, one)).icdf(0.5); assert 'sympy' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("df", [2.05, 3.5, 300.0])
def test_distribution_function_inverts_quantiles_in_both_far_tails(family, df):
    p = torch.logspace(-300, -1, 60, dtype=torch.float64)[:, None]
    two = Mixture(torch.tensor([0.3, 0.7]).log(), component(family, [[0.0], [3.0]], [[1.0], [0.5]], [[df], [30.0]]))
    low, high = two.icdf(p), two.isf(p)
    np.testing.assert_allclose(two.cdf(low), p, rtol=1e-11)
    np.testing.assert_allclose(two.sf(high), p, rtol=1e-11)
    assert (low.diff(dim=0) > 0).all()
    assert (high.diff(dim=0) < 0).all()
    torch.testing.assert_close(two.affine(0.0, 1e-200).icdf(p), 1e-200 * low, rtol=1e-13, atol=0.0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("unit", [1e-307, 1e-200, 1e-150, 1.0, 1e150])
def test_standard_deviations_do_not_underflow_with_their_squares(family, unit):
    mixture = random_mixture(family)
    scaled = mixture.affine(0.0, unit)
    torch.testing.assert_close(scaled.std, unit * mixture.variance.sqrt(), rtol=1e-14, atol=0.0)
    spread = Mixture(
        scaled.log_weight, replace(scaled.component, scale=1e-9 * scaled.component.scale.clamp_min(1e-290))
    )
    assert (spread.std > 0).all()


def test_standard_deviations_of_distant_and_of_tiny_laws_in_one_batch_are_right():
    mixture = Mixture(torch.zeros(2), component("normal", [[0.0, 0.0], [2e-200, 2.0]], [[1e-200, 1.0]] * 2))
    np.testing.assert_allclose(mixture.std, [math.sqrt(2.0) * 1e-200, math.sqrt(2.0)], rtol=1e-14)


@pytest.mark.parametrize("gap", [20.0, 60.0, 1e4])
def test_quantiles_between_modes_have_the_derivatives_of_responsibilities(gap):
    """Both components lose their density there: at 1e4 scales it is below exp(-1e7)."""
    loc, scale = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in ([0.0, gap], [1.0, 2.0]))
    log_weight = torch.tensor([0.3, 0.7], dtype=torch.float64).log().requires_grad_()
    p = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    y = Mixture(log_weight, Normal(loc, scale)).icdf(p)
    of_loc, of_scale, of_weight, of_p = torch.autograd.grad(y, [loc, scale, log_weight, p])
    with mpmath.workdps(40):
        at = mpmath.mpf(y.item())
        parts = [w * mpmath.npdf(at, m, s) for w, m, s in ((mpmath.mpf("0.3"), 0, 1), (mpmath.mpf("0.7"), gap, 2))]
        share = [float(part / sum(parts)) for part in parts]
        steepness = min(float(1 / sum(parts)), 1e304) if sum(parts) > mpmath.mpf("1e-304") else math.exp(700.0)
    np.testing.assert_allclose(of_loc, share, rtol=1e-9, atol=1e-300)
    np.testing.assert_allclose(
        of_scale, [share[0] * y.item(), share[1] * (y.item() - gap) / 2.0], rtol=1e-9, atol=1e-300
    )
    np.testing.assert_allclose(of_p, steepness, rtol=1e-9)
    np.testing.assert_allclose(of_weight, [-0.21 * steepness, 0.21 * steepness], rtol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_derivatives_of_one_element_do_not_spoil_those_of_another(family):
    loc = torch.tensor([[0.0, 0.0], [1.0, 1e6]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([0.5, 0.5], dtype=torch.float64, requires_grad=True)
    own = Mixture(weight.log(), component(family, loc, torch.ones(2, 2))).icdf(0.5)[0]
    alone = Mixture(weight.log(), component(family, loc[:, :1], torch.ones(2, 1))).icdf(0.5)[0]
    for one, other in zip(*(torch.autograd.grad(y, [loc, weight]) for y in (own, alone)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_second_derivatives_of_probabilities_and_quantiles_are_those_of_finite_differences(family):
    """In centres, scales, weights, levels and degrees of freedom, and mixed."""
    g = torch.Generator().manual_seed(0)
    loc, log_scale = (torch.randn(3, 2, generator=g, dtype=torch.float64) for _ in range(2))
    weight, df = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64), torch.full((3, 2), 3.5, dtype=torch.float64)
    at = torch.tensor([0.2, 0.8], dtype=torch.float64)
    given = [t.requires_grad_() for t in (at, weight, loc, 0.3 * log_scale, *([df] if family == "student" else []))]

    def mixture(weight, loc, log_scale, df=df):
        return Mixture(weight.log(), component(family, loc, log_scale.exp(), df))

    for of in (lambda at, *rest: mixture(*rest).cdf(at), lambda at, *rest: mixture(*rest).icdf(at)):
        assert torch.autograd.gradgradcheck(of, given, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        value = mixture(*given[1:]).icdf(at)
    assert torch.equal(mixture(*given[1:]).icdf(at), value)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_median_of_one_law_moves_with_its_centre(family):
    loc = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    median = Mixture(torch.zeros(1), component(family, loc, torch.ones(1))).icdf(0.5)
    assert torch.autograd.grad(median.sum(), loc)[0].item() == pytest.approx(1.0, rel=1e-12)
