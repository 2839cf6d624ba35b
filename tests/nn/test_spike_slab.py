"""Spikes and slabs: the divergence and the moments of weights, against their formulas and against draws."""

import math
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fathomless.nn.bayesian import sparse_layers, with_weights
from fathomless.nn.layers import WeightPrior
from fathomless.nn.sparse_layer import SpikeSlab
from fathomless.nn.spike_slab import Prior, SlabPrior, SlabStart, SpikeSlabPosterior, moments
from fathomless.system.errors import DataError

SHAPE = torch.Size([5, 7])


def weights(seed: int, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    mean, log_scale, logit = (torch.randn(SHAPE, generator=g, dtype=torch.float64) for _ in range(3))
    return mean, 0.5 * log_scale - 1.0, scale * logit


def textbook(mean: Tensor, log_scale: Tensor, logit: Tensor, p: float, m: float, s: float) -> Tensor:
    alpha, scale = logit.sigmoid(), log_scale.exp()
    slab = math.log(s) - log_scale - 0.5 + (scale**2 + (mean - m) ** 2) / (2.0 * s**2)
    return alpha * slab + alpha * (alpha / p).log() + (1.0 - alpha) * ((1.0 - alpha) / (1.0 - p)).log()


@given(
    st.floats(-15.0, 15.0),
    st.floats(-3.0, 3.0),
    st.floats(-5.0, 1.0),
    st.floats(0.01, 0.99),
    st.floats(-1.0, 1.0),
    st.floats(0.1, 3.0),
)
def test_divergence_equals_the_textbook_form(
    logit: float, mean: float, log_scale: float, p: float, m: float, s: float
) -> None:
    own = [torch.tensor([value], dtype=torch.float64) for value in (mean, log_scale, logit)]
    k = moments(*own, SlabPrior(p, s, m).for_shape(torch.Size([1]))).divergence
    expected = textbook(*own, p, m, s).sum()
    assert k.item() == pytest.approx(expected.item(), rel=1e-12, abs=1e-12)
    assert k.item() >= -1e-12


def test_divergence_is_zero_at_the_prior() -> None:
    p, s, m = 0.23, 0.7, 0.4
    own = [torch.full(SHAPE, v, dtype=torch.float64) for v in (m, math.log(s), math.log(p / (1.0 - p)))]
    assert abs(moments(*own, SlabPrior(p, s, m).for_shape(SHAPE)).divergence.item()) < 1e-12


@pytest.mark.parametrize("logit", [-1000.0, -100.0, 0.0, 17.0, 100.0, 1000.0])
def test_divergence_and_gradients_are_finite_for_every_logit_in_single_precision(logit: float) -> None:
    own = [torch.full((3,), v).requires_grad_() for v in (0.3, -4.0, logit)]
    found = moments(*own, SlabPrior(0.1).for_shape(torch.Size([3])))
    (found.divergence + found.mean.sum() + found.variance.sum()).backward()
    assert found.divergence.isfinite()
    assert found.divergence >= 0.0
    assert all(bool(value.grad is not None and value.grad.isfinite().all()) for value in own)


def test_divergence_equals_the_mean_of_log_q_minus_log_p_over_draws() -> None:
    mean, log_scale, logit = (value[0, 0] for value in weights(1))
    p, s, n = 0.3, 0.8, 200_000
    g = torch.Generator().manual_seed(2)
    alpha, scale = logit.sigmoid(), log_scale.exp()
    included = torch.rand(n, generator=g, dtype=torch.float64) < alpha
    w = mean + scale * torch.randn(n, generator=g, dtype=torch.float64)
    slab = torch.distributions.Normal(mean, scale).log_prob(w) - torch.distributions.Normal(0.0, s).log_prob(w)
    log_ratio = torch.where(included, (alpha / p).log() + slab, ((1.0 - alpha) / (1.0 - p)).log())
    k = moments(mean[None], log_scale[None], logit[None], SlabPrior(p, s).for_shape(torch.Size([1]))).divergence
    assert abs(log_ratio.mean() - k) < 4.0 * log_ratio.std() / math.sqrt(n)


def test_derivative_in_the_logit_is_that_of_the_specification() -> None:
    mean, log_scale, logit = weights(3)
    p, s = 0.2, 0.9
    logit.requires_grad_()
    moments(mean, log_scale, logit, SlabPrior(p, s).for_shape(SHAPE)).divergence.backward()
    slab = math.log(s) - log_scale - 0.5 + ((2.0 * log_scale).exp() + mean**2) / (2.0 * s**2)
    alpha = logit.detach().sigmoid()
    expected = alpha * (1.0 - alpha) * (slab + logit.detach() - math.log(p / (1.0 - p)))
    assert logit.grad is not None
    torch.testing.assert_close(logit.grad, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "prior",
    [SlabPrior(0.3, 0.7, 0.2), SlabPrior(torch.linspace(0.1, 0.9, 7), torch.linspace(0.5, 2.0, 5)[:, None])],
    ids=["numbers", "tensors"],
)
def test_gradients_agree_with_finite_differences(prior: SlabPrior) -> None:
    own = tuple(value.requires_grad_() for value in weights(4))
    assert torch.autograd.gradcheck(lambda *a: tuple(moments(*a, prior.for_shape(SHAPE))), own)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:The .grad attribute:UserWarning")  # of torch
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_the_compiled_form_equals_the_plain_one() -> None:
    layer = SpikeSlab(nn.Linear(7, 5), SlabPrior(0.1, 0.5, 0.3)).double()
    x, pull = torch.randn(6, 7, dtype=torch.float64), torch.randn(6, 5, dtype=torch.float64)
    gradients = []
    for compiled in (True, False):
        layer.compiled = compiled
        y, divergence = layer(x, torch.Generator().manual_seed(0))
        objective = (y * pull).sum() + 0.7 * divergence
        gradients.append((objective.detach(), *torch.autograd.grad(objective, list(layer.parameters()))))
    assert len(gradients[0]) == 6
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-9, atol=1e-9)


def test_side_by_side_each_gets_what_it_would_alone() -> None:
    own = [torch.stack(pair) for pair in zip(weights(5), weights(6), strict=True)]
    prior = SlabPrior(0.1).for_shape(SHAPE)
    together = torch.vmap(lambda *a: tuple(moments(*a, prior)))(*own)
    for i in range(2):
        alone = moments(*(value[i] for value in own), prior)
        torch.testing.assert_close([value[i] for value in together], list(alone))


def test_weights_that_are_surely_in_are_gaussian_and_pay_for_it() -> None:
    mean, log_scale, _ = weights(7)
    prior = SlabPrior(0.1, 0.8).for_shape(SHAPE)
    sure, dense = (
        moments(mean, log_scale, torch.full(SHAPE, 60.0).double(), prior),
        moments(mean, log_scale, None, prior),
    )
    torch.testing.assert_close(sure.mean, dense.mean)
    torch.testing.assert_close(sure.variance, dense.variance)
    assert sure.divergence.item() == pytest.approx(dense.divergence.item() + SHAPE.numel() * math.log(1.0 / 0.1))


def test_weights_that_are_surely_out_are_zero_and_pay_for_it() -> None:
    mean, log_scale, _ = weights(8)
    out = moments(mean, log_scale, torch.full(SHAPE, -800.0).double(), SlabPrior(0.1).for_shape(SHAPE))
    assert not out.mean.any()
    assert not out.variance.any()
    assert out.divergence.item() == pytest.approx(SHAPE.numel() * math.log(1.0 / 0.9))


@pytest.mark.parametrize("learned", [("inclusion",), ("scale",), ("inclusion", "scale")])
def test_learned_priors_are_where_the_bound_is_greatest(learned: tuple[str, ...]) -> None:
    own = weights(9)
    given: dict[str, object] = {"inclusion": 0.2, "scale": 0.6, **dict.fromkeys(learned, "learned")}
    settled = SlabPrior(**given).for_shape(SHAPE).maximize_bound(*own)  # type: ignore[arg-type]

    def cost(odds: float, scale: float) -> float:
        k = moments(*own, Prior(odds, 0.0, scale)).divergence.item()
        p = 1.0 / (1.0 + math.exp(-odds))
        # a uniform prior on the probability, as a density of its logit, adds ln p(1 − p): the posterior mean
        return k - (math.log(p) + math.log1p(-p)) * ("inclusion" in learned)

    odds, scale = float(settled.odds), float(settled.scale)
    least = cost(odds, scale)
    for step in (-1e-3, 1e-3):
        assert "inclusion" not in learned or cost(odds + step, scale) > least
        assert "scale" not in learned or cost(odds, scale + step) > least


def module(**options: object) -> SpikeSlabPosterior:
    torch.manual_seed(0)
    prior = SlabPrior(0.3).for_shape(SHAPE)
    return SpikeSlabPosterior(
        torch.randn(SHAPE), prior, inclusion=True, start=SlabStart(logit=(-2.0, 2.0), log_scale=(-1.0, 0.1))
    )


@torch.no_grad()
def test_drawn_weights_have_the_moments_that_local_sampling_uses(generator: torch.Generator) -> None:
    own, n = module(), 20_000
    draws = torch.stack([own.draw(own.mean, "average", generator) for _ in range(n)]).double()
    m, v, _ = own.moments()
    assert bool(((draws.mean(0) - m).abs() < 5.0 * (v / n).sqrt()).all())
    fourth = ((draws - draws.mean(0)) ** 4).mean(0)
    assert bool(((draws.var(0) - v).abs() < 5.0 * ((fourth - v.double() ** 2) / n).sqrt()).all())


@torch.no_grad()
def test_the_median_model_draws_what_is_more_likely_in_than_out(generator: torch.Generator) -> None:
    own = module()
    assert own.logit is not None
    draw = own.draw(own.mean, "median", generator)
    assert torch.equal(draw != 0.0, own.logit > 0.0)
    assert torch.equal(own.means(own.mean, "median"), torch.where(own.logit > 0.0, own.mean, 0.0))
    torch.testing.assert_close(own.means(own.mean, "average"), own.moments().mean)


def test_relaxed_weights_become_exact_ones_as_they_cool(generator: torch.Generator) -> None:
    own = module()
    with torch.no_grad():
        cold = own.draw_relaxed(own.mean, 1e-4, generator)
        inclusion = torch.stack([own.draw_relaxed(own.mean, 1e-3, generator).abs() > 1e-3 for _ in range(4000)])
    assert bool(((cold.abs() < 1e-3) | (cold.abs() > 1e-3)).all())
    error = (inclusion.double().mean(0) - own.inclusion()).abs()
    assert error.max().item() < 5.0 * 0.5 / math.sqrt(4000)
    own.draw_relaxed(own.mean, 0.5, generator).sum().backward()
    assert own.logit is not None
    assert own.logit.grad is not None
    assert bool(own.logit.grad.isfinite().all())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inclusion": 0.0}, "a prior inclusion of 0.0 was given; 0 < inclusion < 1 is allowed"),
        ({"inclusion": torch.tensor([0.5, 1.5])}, "a tensor from 0.5 to 1.5 was given"),
        ({"scale": -1.0}, "a prior scale of -1.0 was given"),
        ({"mean": math.nan}, "a prior mean of nan was given"),
        ({"mean": "learned"}, "a prior mean of 'learned' was given"),
        ({"inclusion": "most"}, "a prior inclusion of 'most' was given; allowed are numbers, tensors and 'learned'"),
    ],
)
def test_bad_priors_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError) as error:
        SlabPrior(**options)  # type: ignore[arg-type]
    assert message in str(error.value)


def test_a_prior_that_does_not_fit_the_weights_is_refused() -> None:
    with pytest.raises(DataError, match=r"a prior inclusion of shape \(3,\) was given for weights of shape \(5, 7\)"):
        SlabPrior(torch.full((3,), 0.5)).for_shape(SHAPE)


@torch.no_grad()
def test_learned_inclusion_maximises_the_bound_with_a_beta_prior() -> None:
    """The bound alone has its maximum at the mean of α; with the log of a Beta(2, 2) prior, at the value in use."""
    alpha = torch.tensor([0.9, 0.2, 0.05, 0.6, 0.99], dtype=torch.float64)
    zero = torch.zeros(5, dtype=torch.float64)
    learned = SlabPrior(inclusion="learned").for_shape(alpha.shape).maximize_bound(zero, zero, alpha.logit()).odds
    assert isinstance(learned, torch.Tensor)
    grid = torch.linspace(1e-4, 1 - 1e-4, 99_999, dtype=torch.float64)

    def divergence(p: torch.Tensor) -> torch.Tensor:  # of the inclusions, as a function of the prior's probability
        return (
            alpha[:, None] * (alpha[:, None] / p).log() + (1 - alpha[:, None]) * ((1 - alpha[:, None]) / (1 - p)).log()
        ).sum(0)

    alone = grid[divergence(grid).argmin()]
    with_prior = grid[(divergence(grid) - torch.distributions.Beta(2.0, 2.0).log_prob(grid)).argmin()]
    torch.testing.assert_close(alone, alpha.mean(), atol=2e-5, rtol=0.0)
    torch.testing.assert_close(with_prior, learned.sigmoid(), atol=2e-5, rtol=0.0)


@pytest.mark.parametrize("prior", [WeightPrior(0.5), WeightPrior(0.5, fan_in=True)], ids=str)
def test_biases_of_a_layer_that_becomes_sparse_have_the_prior_of_every_bias(prior: WeightPrior) -> None:
    part = nn.Linear(8, 3)
    ((_, layer),) = sparse_layers(with_weights("sparse", nn.Sequential(part), prior, 0.01))
    assert layer.bias.prior.scale == pytest.approx(prior.scale_of(part.bias))
    assert layer.weight.prior.scale == pytest.approx(prior.scale_of(part.weight))
