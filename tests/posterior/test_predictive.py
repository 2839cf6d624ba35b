import itertools
import math
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.likelihoods import Bernoulli, Categorical, Gaussian, Laplace, StudentT
from fathomless.posterior.model import Draws
from fathomless.posterior.predictive import concatenate, predictive
from fathomless.system.errors import DataError, DivergenceError

STRUCTURES = [1, 1, 2, 2, 2, 7]


def draws_for(likelihood, n=4, structure=STRUCTURES, seed=0, dtype=torch.float64) -> Draws:
    g = torch.Generator().manual_seed(seed)
    s = len(structure)
    f = torch.randn(s, n, likelihood.outputs, generator=g, dtype=dtype)
    log_weight = torch.randn(s, generator=g, dtype=dtype).log_softmax(0)
    return Draws(f, log_weight, torch.tensor(structure), {})


def regression(likelihood=None, **options) -> ContinuousPredictive:
    likelihood = likelihood or Gaussian(2, 0.5)
    return predictive(draws_for(likelihood), likelihood, **options)


def classification(classes=3, **options) -> ClassPredictive:
    likelihood = Categorical(classes)
    return predictive(draws_for(likelihood), likelihood, **options)


def entropy(p: np.ndarray) -> np.ndarray:
    return stats.entropy(p, axis=-1)


# Regression


def test_regression_matches_the_brute_force_mixture():
    draws = draws_for(Gaussian(2, 0.5))
    p = regression()
    w, f = draws.log_weight.exp().numpy(), draws.f.numpy()
    mean = np.einsum("s,snt->nt", w, f)
    np.testing.assert_allclose(p.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(p.variance, np.einsum("s,snt->nt", w, f**2 + 0.25) - mean**2, rtol=1e-12)
    y = np.linspace(-1, 1, 8).reshape(4, 2)
    np.testing.assert_allclose(p.cdf(y), np.einsum("s,snt->nt", w, stats.norm(f, 0.5).cdf(y)), rtol=1e-12)
    np.testing.assert_allclose(p.sf(y), np.einsum("s,snt->nt", w, stats.norm(f, 0.5).sf(y)), rtol=1e-12)
    torch.testing.assert_close(p.cdf(p.icdf(0.3)), torch.full((4, 2), 0.3, dtype=torch.float64))


def test_log_prob_is_joint_over_columns():
    draws = draws_for(Gaussian(2, 0.5))
    y = np.linspace(-1, 1, 8).reshape(4, 2)
    each = stats.norm(draws.f.numpy(), 0.5).pdf(y).prod(-1)  # (S, N)
    expected = np.log(np.einsum("s,sn->n", draws.log_weight.exp().numpy(), each))
    np.testing.assert_allclose(regression().log_prob(y), expected, rtol=1e-12)
    marginal = regression().mixture.log_prob(y).sum(-1)
    assert (marginal - torch.tensor(expected)).abs().min() > 1e-3  # the columns depend on each other


def test_joint_density_integrates_to_one():
    p = predictive(draws_for(Gaussian(2, 0.5), n=1), Gaussian(2, 0.5))

    def density(a: float, b: float) -> float:
        return p.log_prob([[a, b]]).exp().item()

    grid = np.linspace(-7, 7, 57)  # the trapezoidal rule converges exponentially for smooth, decaying functions
    values = [[density(a, b) for a in grid] for b in grid]
    mass = integrate.trapezoid(integrate.trapezoid(values, grid), grid)
    assert mass == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("likelihood", [Gaussian(noise="learned"), Laplace(noise="input"), StudentT(noise=0.7)])
def test_density_in_original_units_integrates_to_one(likelihood):
    p = predictive(draws_for(likelihood, n=1), likelihood, shift=100.0, scale=20.0, squeeze=True)
    points = sorted(p.component.loc.flatten().tolist())
    mass, error = integrate.quad(
        lambda y: p.log_prob([y]).exp().item(), points[0] - 2e3, points[-1] + 2e3, points=points, limit=400
    )
    inside = p.cdf(points[-1] + 2e3) - p.cdf(points[0] - 2e3)
    assert mass == pytest.approx(inside.item(), abs=1e-7 + 10 * error)


def test_change_of_units_moves_prediction_and_density():
    plain, moved = regression(), regression(shift=[10.0, -1.0], scale=[2.0, 0.1])
    shift, scale = torch.tensor([10.0, -1.0]), torch.tensor([2.0, 0.1], dtype=torch.float64)
    torch.testing.assert_close(moved.mean, shift + scale * plain.mean)
    torch.testing.assert_close(moved.std, scale * plain.std)
    torch.testing.assert_close(moved.uncertainty().structure, scale**2 * plain.uncertainty().structure)
    y = torch.zeros(4, 2, dtype=torch.float64)
    torch.testing.assert_close(moved.log_prob(shift + scale * y), plain.log_prob(y) - scale.log().sum())


def test_intervals_and_quantiles_hold_their_probability():
    p = regression()
    low, high = p.interval(0.9)
    torch.testing.assert_close(p.cdf(high) - p.cdf(low), torch.full((4, 2), 0.9, dtype=torch.float64))
    quantiles = p.quantiles([0.05, 0.5, 0.95])
    assert quantiles.shape == (3, 4, 2)
    torch.testing.assert_close(quantiles[0], low)
    torch.testing.assert_close(quantiles[2], high)


def test_samples_follow_the_joint_law():
    p, n = regression(), 40_000
    y = p.sample(n, torch.Generator().manual_seed(0))
    assert y.shape == (n, 4, 2)
    error = (y.mean(0) - p.mean).abs() / (p.std / math.sqrt(n))
    assert error.max() < 4.5
    # columns, and rows, share the network: their covariance is that of the means
    f, w = p.component.loc, p.log_weight.exp()
    centred = f - p.mean
    for left, right in (((0, 0), (0, 1)), ((1, 0), (3, 1))):
        expected = (w * centred[:, *left] * centred[:, *right]).sum()
        products = (y[:, *left] - p.mean[left]) * (y[:, *right] - p.mean[right])
        assert (products.mean() - expected).abs() < 4.5 * products.std() / math.sqrt(n)


@pytest.mark.parametrize("likelihood", [Gaussian(2, "input"), Laplace(2), StudentT(2)])
def test_crps_is_that_of_samples(likelihood):
    """E|Y - y| - E|Y - Y'| / 2 over 40,000 draws."""
    p, n = predictive(draws_for(likelihood), likelihood), 40_000
    y = torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(4, 2)
    drawn = p.sample(2 * n, torch.Generator().manual_seed(0))
    terms = (drawn[:n] - y).abs() - 0.5 * (drawn[:n] - drawn[n:]).abs()
    found = p.crps(y)
    assert found.shape == (4, 2)
    assert ((found - terms.mean(0)).abs() < 4.5 * terms.std(0) / math.sqrt(n) + 1e-3 * found).all()


@pytest.mark.parametrize("likelihood", [Gaussian(2, "input"), Laplace(2), StudentT(2, noise="input")])
def test_law_of_total_variance_is_exact(likelihood):
    draws = draws_for(likelihood)
    p = predictive(draws, likelihood)
    u = p.uncertainty()
    torch.testing.assert_close(u.noise + u.weights + u.structure, u.total, rtol=1e-12, atol=0)
    torch.testing.assert_close(u.total, p.variance, rtol=1e-12, atol=0)
    w, m = p.log_weight.exp().numpy(), p.component.mean.numpy()
    groups = np.array(STRUCTURES)
    weights, structure = np.zeros_like(m[0]), np.zeros_like(m[0])
    for g in set(STRUCTURES):
        share, inside = w[groups == g].sum(), m[groups == g]
        conditional = w[groups == g] / share
        center = np.einsum("s,snt->nt", conditional, inside)
        weights += share * np.einsum("s,snt->nt", conditional, (inside - center) ** 2)
        structure += share * (center - np.einsum("s,snt->nt", w, m)) ** 2
    np.testing.assert_allclose(u.weights, weights, rtol=1e-10)
    np.testing.assert_allclose(u.structure, structure, rtol=1e-10)


@pytest.mark.parametrize("likelihood", [Gaussian(2, "input"), Categorical(3)])
def test_a_single_structure_leaves_nothing_to_structure(likelihood):
    u = predictive(draws_for(likelihood, structure=[5] * 6), likelihood).uncertainty()
    assert (u.structure == 0).all()
    assert (u.weights > 0).all()


@pytest.mark.parametrize("likelihood", [Gaussian(2, "input"), Categorical(3)])
def test_one_draw_for_each_structure_leaves_nothing_to_weights(likelihood):
    u = predictive(draws_for(likelihood, structure=[3, 1, 2, 9]), likelihood).uncertainty()
    assert (u.weights == 0).all()
    assert (u.structure > 0).all()


def test_one_target_can_go_without_its_axis():
    wide, flat = regression(Gaussian(noise=0.5)), regression(Gaussian(noise=0.5), squeeze=True)
    y = torch.linspace(-1, 1, 4, dtype=torch.float64)
    for name in ("mean", "variance", "std"):
        assert torch.equal(getattr(wide, name).squeeze(-1), getattr(flat, name))
    assert torch.equal(wide.cdf(y[:, None]).squeeze(-1), flat.cdf(y))
    assert torch.equal(wide.sf(0.2).squeeze(-1), flat.sf(0.2))
    assert torch.equal(wide.icdf(0.2).squeeze(-1), flat.icdf(0.2))
    assert torch.equal(wide.log_prob(y[:, None]), flat.log_prob(y))
    assert torch.equal(wide.crps(y[:, None]).squeeze(-1), flat.crps(y))
    assert flat.quantiles([0.1, 0.9]).shape == (2, 4)
    assert flat.sample(7, torch.Generator().manual_seed(0)).shape == (7, 4)
    assert flat.uncertainty().total.shape == flat.uncertainty().noise.shape == (4,)
    assert flat.cdf(y.expand(3, 4)).shape == (3, 4)


def test_inverse_survival_is_the_quantile_from_above_and_keeps_the_digits_of_tiny_probabilities():
    p = regression(StudentT(2, noise="input"))
    q = np.array([0.1, 0.5, 0.97])[:, None, None]
    np.testing.assert_allclose(p.isf(q), p.ppf(1 - q), rtol=1e-12)
    torch.testing.assert_close(p.sf(p.isf(1e-30)), torch.full((4, 2), 1e-30, dtype=torch.float64), rtol=1e-9, atol=0)
    assert isinstance(p.isf(torch.tensor(0.1)), torch.Tensor)
    assert (p.isf(0.0) == math.inf).all()


def test_values_that_do_not_broadcast_to_the_rows_are_told_how_to():
    p, flat = regression(), regression(Gaussian(noise=0.5), squeeze=True)
    for ask in (flat.ppf, flat.isf, flat.icdf, flat.cdf, flat.sf, flat.pdf, flat.logpdf):
        with pytest.raises(DataError, match=r"shape \(3,\) were .* shape \(4,\); .*np.array\(values\)\[:, None\]$"):
            ask([0.1, 0.5, 0.9])
        assert ask(np.array([0.1, 0.5, 0.9])[:, None]).shape == (3, 4)
    with pytest.raises(DataError, match=r"np.array\(values\)\[:, None, None\]$"):
        p.ppf([0.1, 0.5, 0.9])
    with pytest.raises(DataError, match=r"were given for rows of shape \(1,\)"):  # a result has its rows at the end
        predictive(draws_for(Gaussian(), n=1), Gaussian(), squeeze=True).ppf([0.1, 0.9])


@pytest.mark.parametrize("y", [torch.zeros(4), torch.zeros(4, 1), torch.zeros(3, 2), torch.zeros(2, 4, 2)])
def test_log_prob_refuses_targets_of_another_shape(y):
    with pytest.raises(DataError, match=r"\(4, 2\)"):
        regression().log_prob(y)
    with pytest.raises(DataError, match=r"\(4, 2\)"):
        regression().crps(y)


@pytest.mark.parametrize("level", [0.0, 1.0, -1.0, math.nan, "0.9", [0.5, 0.9]])
def test_intervals_of_no_probability_are_refused(level):
    with pytest.raises(DataError, match="level"):
        regression().interval(level)


# Classification


def test_temperature_acts_before_the_average():
    likelihood = Categorical(3, temperature=True).double()
    with torch.no_grad():
        likelihood.log_temperature.fill_(math.log(2.5))
    draws = draws_for(likelihood)
    each = (draws.f / 2.5).softmax(-1)
    torch.testing.assert_close(
        predictive(draws, likelihood).probs.detach(), torch.einsum("s,snc->nc", draws.log_weight.exp(), each)
    )


def test_class_probabilities_are_averaged_not_logits():
    draws, p = draws_for(Categorical(3)), classification()
    w, each = draws.log_weight.exp(), draws.f.softmax(-1)
    torch.testing.assert_close(p.probs, torch.einsum("s,snc->nc", w, each))
    torch.testing.assert_close(p.probs.sum(-1), torch.ones(4, dtype=torch.float64))
    torch.testing.assert_close(p.log_probs.exp(), p.probs)
    assert torch.equal(p.mode, p.probs.argmax(-1))
    torch.testing.assert_close(p.log_prob([0, 2, 1, 1]), p.log_probs[[0, 1, 2, 3], [0, 2, 1, 1]])
    np.testing.assert_allclose(p.entropy(), entropy(p.probs.numpy()), rtol=1e-12)


def test_tiny_class_probabilities_keep_their_digits():
    f = torch.tensor([[[0.0, -2000.0]], [[0.0, -1000.0]]], dtype=torch.float64)
    p = predictive(Draws(f, torch.tensor([0.5, 0.5]).log(), torch.tensor([0, 1]), {}), Categorical(2))
    assert p.log_prob([1]).item() == pytest.approx(-1000.0 + math.log(0.5), rel=1e-12)
    assert p.entropy().item() == 0.0
    assert p.uncertainty().total.isfinite().all()


def test_entropy_parts_match_brute_force():
    p = classification()
    u = p.uncertainty()
    w, each = p.log_weight.exp().numpy(), p.log_p.exp().numpy()
    groups = np.array(STRUCTURES)
    noise = np.einsum("s,sn->n", w, entropy(each))
    inside = np.zeros(4)
    for g in set(STRUCTURES):
        share = w[groups == g].sum()
        inside += share * entropy(np.einsum("s,snc->nc", w[groups == g] / share, each[groups == g]))
    np.testing.assert_allclose(u.noise, noise, rtol=1e-12)
    np.testing.assert_allclose(u.weights, inside - noise, rtol=1e-10)
    np.testing.assert_allclose(u.structure, entropy(p.probs.numpy()) - inside, rtol=1e-10)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    structure=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    sharpness=st.floats(0, 200),
)
def test_entropy_parts_are_non_negative_and_add_up(seed, structure, sharpness):
    draws = draws_for(Categorical(4), structure=structure, seed=seed)
    p = predictive(Draws(sharpness * draws.f, 5 * draws.log_weight, draws.structure, {}), Categorical(4))
    u = p.uncertainty()
    for part in (u.noise, u.weights, u.structure):
        assert (part >= 0).all()
    torch.testing.assert_close(u.noise + u.weights + u.structure, u.total, rtol=0, atol=1e-13)
    torch.testing.assert_close(u.total, p.entropy(), rtol=0, atol=1e-13)


def test_bernoulli_is_two_classes():
    draws = draws_for(Bernoulli())
    p = predictive(draws, Bernoulli())
    expected = torch.einsum("s,sn->n", draws.log_weight.exp(), draws.f.squeeze(-1).sigmoid())
    torch.testing.assert_close(p.probs, torch.stack([1 - expected, expected], -1))


def test_labels_are_used_everywhere():
    p = classification(labels=["cat", "dog", "owl"])
    assert p.predict().tolist() == [["cat", "dog", "owl"][i] for i in p.mode.tolist()]
    torch.testing.assert_close(p.log_prob(["owl", "cat", "dog", "dog"]), classification().log_prob([2, 0, 1, 1]))
    assert set(p.sample(20, torch.Generator().manual_seed(0)).ravel().tolist()) == {"cat", "dog", "owl"}
    with pytest.raises(DataError, match="'fish'"):
        p.log_prob(["fish", "cat", "cat", "cat"])
    with pytest.raises(DataError, match=r"\(4,\)"):
        p.log_prob(["cat"])


def test_class_samples_follow_the_probabilities():
    p, n = classification(), 20_000
    y = p.sample(n, torch.Generator().manual_seed(1))
    assert y.shape == (n, 4)
    share = torch.tensor(np.stack([(y == c).mean(0) for c in range(3)], -1))
    assert ((share - p.probs).abs() / (p.probs * (1 - p.probs) / n).sqrt()).max() < 4.5


# Both


def test_random_variates_are_samples_of_the_size_that_scipy_takes():
    numbers, flat, labelled = regression(), regression(Gaussian(noise=0.5), squeeze=True), classification()
    indicators = predictive(draws_for(Bernoulli(3)), Bernoulli(3))
    for p, shape in ((numbers, (4, 2)), (flat, (4,)), (labelled, (4,)), (indicators, (4, 3))):
        assert p.shape == p.rvs().shape == shape
        assert len(p) == 4
        drawn = p.rvs((5, 2, *shape), random_state=7)
        same = p.sample(10, torch.Generator().manual_seed(7))
        np.testing.assert_array_equal(drawn, np.asarray(same).reshape(drawn.shape))
        for size in (100, (100, 5), (0, *shape)):
            with pytest.raises(DataError, match=r"rvs was given size=.*that of the rows"):
                p.rvs(size)
    assert flat.rvs(4, np.random.default_rng(0)).shape == (4,)  # as SciPy reads it
    before = np.random.get_state()[1].copy()
    flat.rvs()
    assert (np.random.get_state()[1] == before).all()


@pytest.mark.parametrize("likelihood", [Gaussian(2, "input"), StudentT(2), Categorical(3)])
def test_chunks_of_rows_join_to_the_whole(likelihood):
    draws = draws_for(likelihood, n=7)
    whole = predictive(draws, likelihood)
    chunks = [
        predictive(Draws(draws.f[:, rows], draws.log_weight, draws.structure, {}), likelihood)
        for rows in (slice(0, 3), slice(3, 4), slice(4, 7))
    ]
    joined = concatenate(chunks)
    assert type(joined) is type(whole)
    assert len(joined) == 7
    for name in ("noise", "weights", "structure", "total"):
        torch.testing.assert_close(getattr(joined.uncertainty(), name), getattr(whole.uncertainty(), name))


def test_chunks_of_different_predictions_are_refused():
    first = regression()
    others = [
        classification(),
        predictive(draws_for(Gaussian(2, 0.5), seed=1), Gaussian(2, 0.5)),
        predictive(draws_for(Laplace(2, 0.5)), Laplace(2, 0.5)),
        regression(Gaussian(noise=0.5)),
    ]
    for other in others:
        with pytest.raises(DataError, match="allowed are chunks"):
            concatenate([first, other])
    with pytest.raises(DataError, match="allowed are chunks"):
        concatenate([classification(labels=["a", "b", "c"]), classification()])
    with pytest.raises(DataError, match="allowed are chunks"):
        concatenate([regression(Gaussian(noise=0.5)), regression(Gaussian(noise=0.5), squeeze=True)])
    with pytest.raises(DataError, match="one or more"):
        concatenate([])


@pytest.mark.parametrize("likelihood", [Gaussian(2, "input"), Categorical(3)])
def test_draws_without_weight_are_dropped_whatever_they_hold(likelihood):
    draws = draws_for(likelihood)
    f, log_weight = draws.f.clone(), draws.log_weight.clone()
    f[2], log_weight[2] = math.nan, -math.inf
    p = predictive(Draws(f, log_weight, draws.structure, {}), likelihood)
    assert len(p.log_weight) == 5
    assert p.log_weight.logsumexp(0).abs() < 1e-12
    assert p.uncertainty().total.isfinite().all()


def test_networks_that_diverged_are_refused():
    draws = draws_for(Gaussian())
    f = draws.f.clone()
    f[2, 0] = math.inf
    with pytest.raises(DivergenceError, match="1 of 6"):
        predictive(Draws(f, draws.log_weight, draws.structure, {}), Gaussian())
    for log_weight in ([0.0, math.nan, 0.0, 0.0, 0.0, 0.0], [-math.inf] * 6):
        broken = Draws(draws.f, torch.tensor(log_weight), draws.structure, {})
        with pytest.raises(DivergenceError, match="weights sum"):
            predictive(broken, Gaussian())


def test_predictions_are_double_and_carry_gradients_unless_they_are_switched_off():
    likelihood = Gaussian(noise="input")
    draws = draws_for(likelihood, dtype=torch.float32)
    draws = Draws(draws.f.requires_grad_(), draws.log_weight, draws.structure, {})
    for carries in (True, False):
        with torch.set_grad_enabled(carries):
            p = predictive(draws, likelihood)
            for value in (p.mean, p.log_prob(torch.zeros(4, 1)), p.icdf(0.5), p.uncertainty().weights):
                assert value.dtype == torch.float64
                assert value.requires_grad == carries
    p = predictive(draws, likelihood)
    with torch.no_grad():  # whoever asks first does not decide for those who ask later
        assert not p.mean.requires_grad
    assert p.mean.requires_grad
    assert isinstance(p.columns()["y0_mean"], np.ndarray)
    assert isinstance(p.pdf(0.0), np.ndarray)
    labels = predictive(draws, Bernoulli(draws.f.shape[2]))
    assert isinstance(labels.columns()["y1_probability"], np.ndarray)


SAID = {
    "mean": lambda p: p.mean,
    "std": lambda p: p.std,
    "cdf": lambda p: p.cdf(0.3),
    "sf": lambda p: p.sf(0.3),
    "icdf": lambda p: p.quantiles([1e-4, 0.3, 0.9]),
    "log_prob": lambda p: p.log_prob(torch.zeros(4, 2)),
    "uncertainty": lambda p: torch.stack([p.uncertainty().noise, p.uncertainty().total]),
    "mc_error": lambda p: p.mc_error,
}


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
@pytest.mark.parametrize(
    "likelihood",
    [Gaussian(2, "input"), Laplace(2, "input"), StudentT(2, "stated", "stated"), StudentT(2, "learned", "input")],
    ids=["Gaussian", "Laplace", "stated Student", "Student"],
)
def test_gradients_are_those_of_finite_differences(likelihood, said):
    """Of outputs and of weights; where a drawn network states them, of degrees of freedom too."""
    draws = draws_for(likelihood)
    f = draws.f.clone()
    if likelihood.noise.columns == 3:
        f[..., 4:] = 4.0 + f[..., 4:].exp()

    def of(f, log_weight):
        return said(predictive(Draws(f, log_weight, draws.structure, {}), likelihood, shift=1.0, scale=2.0))

    inputs = (f.requires_grad_(), draws.log_weight.clone().requires_grad_())
    assert torch.autograd.gradcheck(of, inputs, atol=1e-5, rtol=1e-4, fast_mode=True)


def test_gradients_of_classes_are_those_of_finite_differences():
    draws = draws_for(Categorical(3, temperature=True))

    def of(f, log_weight):
        p = predictive(Draws(f, log_weight, draws.structure, {}), Categorical(3, temperature=True))
        return p.probs, p.log_prob([0, 1, 2, 0]), p.entropy()

    inputs = (draws.f.clone().requires_grad_(), draws.log_weight.clone().requires_grad_())
    assert torch.autograd.gradcheck(of, inputs, fast_mode=True)


def test_the_gradient_of_a_quantile_in_its_level_is_one_over_the_density():
    p = regression(Gaussian(1, 0.5), squeeze=True)
    level = torch.tensor([0.0, 0.1, 0.5, 1.0], dtype=torch.float64, requires_grad=True)
    y = p.icdf(level)
    (gradient,) = torch.autograd.grad(y[1:3].sum(), level)
    np.testing.assert_allclose(gradient[1:3], 1.0 / p.pdf(y.detach())[1:3])
    assert y.tolist()[::3] == [-math.inf, math.inf]
    assert gradient.tolist()[::3] == [0.0, 0.0]


def test_predictions_are_frozen_and_short_to_read():
    p = regression()
    assert repr(p) == "ContinuousPredictive(rows=4, draws=6, structures=3)"
    assert repr(classification()) == "ClassPredictive(rows=4, draws=6, structures=3)"
    assert len(repr(p.uncertainty())) < 110
    with pytest.raises(AttributeError):
        p.squeeze = True


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("make", [regression, classification])
def test_samples_repeat_with_the_generator(make, seed):
    first, second = (torch.as_tensor(make().sample(5, torch.Generator().manual_seed(seed))) for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.parametrize(
    ("likelihood", "options"),
    [
        (Gaussian(2), {"labels": ["a", "b"]}),
        (Gaussian(2), {"squeeze": True}),
        (Gaussian(2), {"shift": [1.0, 2.0, 3.0]}),
        (Gaussian(2), {"shift": math.nan}),
        (Gaussian(2), {"scale": 0.0}),
        (Gaussian(2), {"scale": [1.0, -1.0]}),
        (Categorical(3), {"labels": ["a", "b"]}),
        (Categorical(3), {"labels": ["a", "b", "b"]}),
        (Categorical(3), {"shift": 1.0}),
        (Categorical(3), {"squeeze": True}),
    ],
)
def test_options_that_do_not_belong_are_refused(likelihood, options):
    with pytest.raises(DataError, match="allowed"):
        predictive(draws_for(likelihood), likelihood, **options)


def test_targets_may_be_a_series_or_a_read_only_array():
    """As the folds of a cross-validation give them: with an index that does not begin at 0."""
    p = regression(Gaussian(1, 0.5), squeeze=True)
    y = np.linspace(-1.0, 1.0, 4)
    fixed = y.copy()
    fixed.setflags(write=False)
    for given_ in (pd.Series(y, index=[7, 3, 9, 1]), fixed, y.tolist()):
        assert torch.equal(p.log_prob(given_), p.log_prob(y))


def test_names_of_scipy_say_what_those_of_torch_do():
    one = predictive(draws_for(Gaussian(), n=1, structure=[0]), Gaussian(1, 0.5), squeeze=True)
    law = stats.norm(one.mean.numpy(), one.std.numpy())
    grid = np.linspace(-2.0, 2.0, 7)[:, None]  # seven values for all rows
    np.testing.assert_allclose(one.pdf(grid), law.pdf(grid))
    np.testing.assert_allclose(one.logpdf(grid), law.logpdf(grid))
    np.testing.assert_allclose(one.cdf(grid), law.cdf(grid))
    levels = np.array([[0.1], [0.5], [0.9]])
    np.testing.assert_allclose(one.ppf(levels), law.ppf(levels))
    np.testing.assert_array_equal(one.quantile(0.5), one.median.numpy())
    levels = np.linspace(0.1, 0.9, len(one))  # as many as rows
    np.testing.assert_array_equal(one.quantile(levels.tolist()), [one.ppf(level) for level in levels])
    assert torch.equal(one.quantile(torch.tensor(levels)), one.quantiles(levels))
    with pytest.raises(DataError, match="give a number or a list of numbers"):
        one.quantile([[0.5]])
    with pytest.raises(DataError, match="use quantile for one level"):
        one.quantiles(0.5)
    assert torch.equal(one.var, one.variance)
    assert isinstance(one.pdf(0.0), np.ndarray)
    assert isinstance(one.ppf(torch.tensor(0.5)), torch.Tensor)
    several = regression()
    assert several.pdf(np.zeros(several.mean.shape)).shape == several.mean.shape
    p = classification(labels=["a", "b", "c"])
    y = ["a", "c", "b", "a", "c"][: len(p)]
    np.testing.assert_allclose(p.pmf(y), p.probs.numpy()[np.arange(len(p)), np.unique(y, return_inverse=True)[1]])
    np.testing.assert_array_equal(p.logpmf(y), p.log_prob(y).numpy())


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_a_frame_has_the_columns(library):
    for p in (regression(squeeze=False), classification()):
        frame = p.to_frame(levels=(0.5,), library=library)
        assert type(frame).__module__.startswith(library)
        found = nw.from_native(frame)
        expected = p.columns(levels=(0.5,))
        assert found.columns == list(expected)
        for name, values in expected.items():
            assert found[name].to_list() == values.tolist()
    with pytest.raises(DataError, match="library='excel' was given"):
        classification().to_frame(library="excel")
    p = classification()
    index = pd.Index([f"row {i}" for i in range(len(p))], name="key")
    assert p.to_frame(index=index).index.equals(index)
    assert p.to_frame(index=index[::-1]).iloc[-1].equals(p.to_frame().iloc[-1].rename("row 0"))
    with pytest.raises(DataError, match=f"index has 1 entries for {len(p)} rows"):
        p.to_frame(index=index[:1])
    with pytest.raises(DataError, match="index was given with library='polars'"):
        p.to_frame(index=index, library="polars")


# Several labels at once


def test_several_labels_match_the_brute_force_mixture():
    draws = draws_for(Bernoulli(3))
    p = predictive(draws, Bernoulli(3))
    w, q = draws.log_weight.exp().numpy(), draws.f.sigmoid().numpy()  # (S,), (S, N, T)
    np.testing.assert_allclose(p.probs, np.einsum("s,snt->nt", w, q), rtol=1e-12)
    np.testing.assert_array_equal(p.predict(), p.probs.numpy() > 0.5)
    every = np.array(list(itertools.product([0, 1], repeat=3)))
    joint = np.array([np.einsum("s,sn->n", w, np.where(y == 1, q, 1 - q).prod(2)) for y in every])  # (8, N)
    found = np.array([p.log_prob(np.tile(y, (4, 1))).exp().numpy() for y in every])
    np.testing.assert_allclose(found, joint, rtol=1e-12)
    np.testing.assert_allclose(found.sum(0), 1.0, rtol=1e-12)
    n = 20_000
    drawn = p.sample(n, torch.Generator().manual_seed(0))
    assert drawn.shape == (n, 4, 3)
    for y, probability in zip(every, joint, strict=True):  # of one network, hence together
        share = (drawn == y).all(2).mean(0)
        assert (np.abs(share - probability) < 5 * np.sqrt(probability / n)).all()
    for t in range(3):
        u, one = p.uncertainty(), predictive(draws_of(draws, t), Bernoulli()).uncertainty()
        for name in ("noise", "weights", "structure", "total"):
            torch.testing.assert_close(getattr(u, name)[:, t], getattr(one, name))
    np.testing.assert_allclose(p.entropy(), stats.bernoulli(p.probs.numpy()).entropy(), rtol=1e-10)
    halves = [predictive(rows_of(draws, part), Bernoulli(3)) for part in (slice(0, 1), slice(1, 4))]
    torch.testing.assert_close(concatenate(halves).probs, p.probs)
    assert list(p.columns(["a", "b", "c"])) == [f"{n}{end}" for n in "abc" for end in ("", "_probability")]
    assert repr(p) == "IndicatorPredictive(rows=4, draws=6, structures=3)"
    with pytest.raises(DataError, match=r"allowed are 0 and 1 in the shape \(4, 3\)"):
        p.log_prob(np.full((4, 3), 2))


def draws_of(draws: Draws, t: int) -> Draws:
    return Draws(draws.f[:, :, t : t + 1], draws.log_weight, draws.structure, {})


def rows_of(draws: Draws, part: slice) -> Draws:
    return Draws(draws.f[:, part], draws.log_weight, draws.structure, {})


def test_a_mass_of_labels_that_are_no_classes_names_them():
    draws = Draws(torch.zeros(1, 2, 2), torch.zeros(1), torch.zeros(1).long(), {})
    found = predictive(draws, Categorical(2), labels=["a", "b"])
    with pytest.raises(DataError, match=r"not classes: 'c', 'd'; allowed are \['a', 'b'\]"):
        found.pmf(["c", "d"])
    with pytest.raises(DataError, match=r"labels of shape \(\) were given; allowed is \(2,\)"):
        found.logpmf("a")


def test_a_quantile_has_the_second_derivative_of_what_the_network_computes():
    x = torch.linspace(-1.0, 1.0, 5, dtype=torch.float64)[:, None].requires_grad_()
    draws = Draws((x**3)[None], torch.zeros(1), torch.zeros(1, dtype=torch.long), {})
    p = predictive(draws, Gaussian(noise=0.5), squeeze=True)
    (slope,) = torch.autograd.grad(p.icdf(0.9).sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(slope.sum(), x)[0], 6.0 * x.detach())


def test_components_of_another_kind_are_refused():
    class Own(Gaussian):
        def components(self, f):
            return f

    with pytest.raises(DataError, match=r"components of Own returned Tensor; allowed are Classes, .*mixtures"):
        predictive(draws_for(Gaussian()), Own())


# ---- rows


@pytest.mark.parametrize("likelihood", [Gaussian(2, 0.5), Laplace(2, 0.5), Categorical(3), Bernoulli(3)])
def test_rows_are_those_of_the_whole(likelihood: Any) -> None:
    whole = predictive(draws_for(likelihood), likelihood)
    count = len(whole)
    y = {"Categorical": np.arange(count) % 3, "Bernoulli": np.ones((count, 3))}.get(
        type(likelihood).__name__, np.zeros((count, 2))
    )
    mask = np.arange(count) % 2 == 0
    for rows in (slice(1, 3), [2, 0], mask, torch.as_tensor(mask), np.array([-1]), slice(None, None, -1)):
        part = whole[rows]
        index = np.arange(count)[rows.numpy() if isinstance(rows, torch.Tensor) else rows].copy()
        assert len(part) == len(index)
        torch.testing.assert_close(part.log_prob(y[index]), whole.log_prob(y)[torch.tensor(index)])
    for i in (0, count - 1, -1, np.int64(1)):
        assert whole[i].shape == (1, *whole.shape[1:])
        torch.testing.assert_close(whole[i].log_prob(y[[i]]), whole.log_prob(y)[[i]])
    assert [len(row) for row in whole] == [1] * count  # type: ignore[attr-defined]
    for wrong in (count, -count - 1, [count], np.ones(count + 1, bool)):
        with pytest.raises(IndexError):
            whole[wrong]
    with pytest.raises(IndexError, match="one axis"):
        whole[[[0, 1]]]
    with pytest.raises(IndexError):
        whole["x"]
    assert [row.shape[0] for row in np.asarray(whole)] == [1] * count
    with pytest.raises((TypeError, ValueError)):
        np.asarray(whole, dtype=float)
