"""Linear pools of mixtures and laws of the standardised residual, against quadrature, simulation and differences."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.mixtures import Laplace, Mixture, Normal, StudentT
from fathomless.posterior.pool import Pool
from fathomless.posterior.recalibration import KINDS, Recalibration, ResidualNetworks, read_recalibration
from fathomless.system.errors import DataError

TARGETS = 2
FAMILIES = {"normal": Normal, "laplace": Laplace, "student_t": StudentT}


def random_recalibration(seed: int, inputs: int = 3, targets: int = TARGETS, size: float = 1.0) -> Recalibration:
    """Networks with random weights, which are never zero, and random weights of the laws."""
    generator = torch.Generator().manual_seed(seed)
    laws = {name: ResidualNetworks(kind, 3, targets, inputs, generator) for name, kind in KINDS.items()}
    for law in laws.values():
        for parameter in law.parameters():
            parameter.data += size * torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 8.0
    share = torch.rand(len(laws) + 1, targets, generator=generator, dtype=torch.float64) + 0.05
    return Recalibration(laws, share / share.sum(0), torch.zeros(targets, dtype=torch.float64))


def random_prediction(seed: int, family: str = "normal", rows: int = 4, targets: int = TARGETS) -> ContinuousPredictive:
    """A prediction of five networks with laws of the residual that differ by row and target."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shape = (5, rows, targets)
    degrees = (torch.full(shape, 4.5, dtype=torch.float64),) if family == "student_t" else ()
    component = FAMILIES[family](0.5 * draw(*shape), (0.3 * draw(*shape)).exp(), *degrees)
    log_weight = draw(5).log_softmax(0)
    law = Mixture(log_weight, component)
    recalibration = random_recalibration(seed, targets=targets)
    laws = recalibration.mixtures(draw(rows, 3), law.mean, law.std)
    structure = torch.tensor([1, 1, 2, 2, 3])
    return ContinuousPredictive(
        log_weight, structure, component, squeeze=targets == 1, share=recalibration.share, residual_laws=laws
    )


def test_the_law_of_a_kind_is_the_average_of_the_laws_of_its_networks() -> None:
    recalibration = random_recalibration(0)
    generator = torch.Generator().manual_seed(1)
    x, mean, y = (torch.randn(6, size, generator=generator, dtype=torch.float64) for size in (3, TARGETS, TARGETS))
    std = mean.exp()
    averages = recalibration.mixtures(x, mean, std)
    single = [recalibration.mixtures(x, mean, std, torch.full((6,), k)) for k in range(3)]
    for c, average in enumerate(averages):
        densities = torch.stack([laws[c].log_prob(y).exp() for laws in single])
        torch.testing.assert_close(average.log_prob(y).exp(), densities.mean(0), rtol=1e-12, atol=0.0)
        means = torch.stack([laws[c].mean for laws in single])
        torch.testing.assert_close(average.mean, means.mean(0), rtol=1e-12, atol=1e-12)


def test_laws_in_units_are_changed_laws() -> None:
    recalibration = random_recalibration(0)
    generator = torch.Generator().manual_seed(1)
    x, mean = (torch.randn(6, size, generator=generator, dtype=torch.float64) for size in (3, TARGETS))
    shift, scale = torch.arange(float(TARGETS), dtype=torch.float64), torch.full((TARGETS,), 3.0, dtype=torch.float64)
    plain = recalibration.mixtures(x, mean, mean.exp())
    changed = recalibration.mixtures(x, mean, mean.exp(), units=(shift, scale))
    y = mean[None]
    for law, other in zip(plain, changed, strict=True):
        assert torch.equal(law.affine(shift, scale).log_prob(y), other.log_prob(y))
        torch.testing.assert_close(other.log_prob(shift + scale * y), law.log_prob(y) - scale.log())


@pytest.mark.parametrize("far", [-60.0, 60.0])
def test_the_joint_density_is_finite_where_a_law_underflows(far: float) -> None:
    """Only the law of the networks has a density in double precision there."""
    law = random_prediction(0, "student_t")
    narrow = [
        Mixture(each.log_weight, Normal(0.0 * each.component.loc, torch.full_like(each.component.scale, 0.01)))
        for each in law.residual_laws
    ]
    law = replace(law, residual_laws=tuple(narrow))
    y = torch.full((4, TARGETS), far, dtype=torch.float64)
    assert all(bool((each.log_prob(y) < -1e6).all()) for each in law.residual_laws)
    given = law.component.log_prob(y) + law.share[0].log()  # type: ignore[index]
    expected = torch.logsumexp(law.log_weight[:, None] + given.sum(-1), 0)
    torch.testing.assert_close(law.log_prob(y), expected, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
def test_density_integrates_to_one_and_gives_the_moments(family: str, seed: int) -> None:
    p = random_prediction(seed, family, rows=1, targets=1)
    mean, std = p.mean.item(), p.std.item()

    t = torch.linspace(-14.0, 14.0, 40_001, dtype=torch.float64)  # y = mean + std sinh(t) reaches heavy tails
    y = mean + std * t.sinh()
    density = p.take(torch.zeros(len(t), dtype=torch.long)).log_prob(y).exp() * std * t.cosh()

    def moment(k: int) -> float:
        return float(torch.trapezoid((y - mean) ** k * density, t))

    assert moment(0) == pytest.approx(1.0, abs=1e-7)
    assert moment(1) == pytest.approx(0.0, abs=1e-6 * std)
    assert moment(2) == pytest.approx(std**2, rel=1e-3 if family == "student_t" else 1e-6)
    assert p.mixture.variance.sqrt().item() == pytest.approx(std, rel=1e-12)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(sorted(FAMILIES)))
def test_quantiles_invert_the_distribution_function(seed: int, family: str) -> None:
    p = random_prediction(seed, family)
    levels = torch.logspace(-300, math.log10(0.5), 40, dtype=torch.float64).view(-1, 1, 1)
    low, high = p.icdf(levels), p.mixture.isf(levels)
    torch.testing.assert_close(p.cdf(low).log(), levels.log().expand_as(low), rtol=0.0, atol=1e-8)
    torch.testing.assert_close(p.sf(high).log(), levels.log().expand_as(high), rtol=0.0, atol=1e-8)
    assert (low.diff(dim=0) > 0.0).all()
    assert (high.diff(dim=0) < 0.0).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_density_is_the_derivative_of_the_distribution_function(family: str) -> None:
    p = random_prediction(7, family)
    y = torch.linspace(-3.0, 3.0, 13, dtype=torch.float64).view(-1, 1, 1).expand(-1, 4, 2).clone().requires_grad_()
    (slope,) = torch.autograd.grad(p.mixture.cdf(y).sum(), y)
    torch.testing.assert_close(slope, p.mixture.log_prob(y).detach().exp(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_follow_the_distribution_function(family: str) -> None:
    p = random_prediction(3, family)
    draws = torch.as_tensor(p.rvs((2000, 4, 2), random_state=0))
    for row in range(4):
        for target in range(2):
            below = p.cdf(draws)[:, row, target].numpy()
            assert stats.kstest(below, "uniform").pvalue > 1e-4
    pooled = p.mixture.sample(2000, torch.Generator().manual_seed(1))
    assert stats.kstest(p.mixture.cdf(pooled)[:, 0, 0].numpy(), "uniform").pvalue > 1e-4


def test_the_joint_density_of_two_targets_integrates_to_one_and_has_the_marginals() -> None:
    p = random_prediction(5, rows=1)
    grid = torch.linspace(-12.0, 12.0, 141, dtype=torch.float64)
    step = float(grid[1] - grid[0])
    first, second = torch.meshgrid(grid, grid, indexing="ij")
    points = torch.stack([first.flatten(), second.flatten()], -1)  # (G², 2)
    rows = p.take(torch.zeros(len(points), dtype=torch.long))
    density = rows.log_prob(points).exp().view(len(grid), len(grid))
    assert float(density.sum()) * step**2 == pytest.approx(1.0, abs=1e-3)
    marginal = p.mixture.log_prob(torch.stack([grid, grid], -1).unsqueeze(1)).exp()[:, 0]
    torch.testing.assert_close(density.sum(1) * step, marginal[:, 0], rtol=0.0, atol=2e-3)
    torch.testing.assert_close(density.sum(0) * step, marginal[:, 1], rtol=0.0, atol=2e-3)


def test_samples_of_two_targets_have_the_dependence_of_the_joint_density() -> None:
    p = random_prediction(11, rows=1)
    draws = torch.as_tensor(p.rvs((4000, 1, 2), random_state=0))[:, 0]
    grid = torch.linspace(-12.0, 12.0, 121, dtype=torch.float64)
    first, second = torch.meshgrid(grid, grid, indexing="ij")
    points = torch.stack([first.flatten(), second.flatten()], -1)
    density = p.take(torch.zeros(len(points), dtype=torch.long)).log_prob(points).exp()
    centred = points - p.mean
    exact = float((density * centred.prod(-1)).sum()) * float(grid[1] - grid[0]) ** 2
    products = (draws - p.mean).prod(-1)
    assert abs(float(products.mean()) - exact) < 4.0 * float(products.std()) / math.sqrt(len(products)) + 1e-3


def test_gradients_of_quantiles_agree_with_differences() -> None:
    p = random_prediction(2)
    laws = p.residual_laws

    def quantile(shift: Tensor) -> Tensor:
        moved = [Mixture(law.log_weight, Normal(law.component.loc + shift, law.component.scale)) for law in laws]
        return Pool(p.share, (p.network_mixture, *moved)).icdf(torch.tensor(0.3, dtype=torch.float64)).sum()

    shift = torch.zeros((), dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(quantile(shift), shift)
    step = 1e-5
    with torch.no_grad():
        difference = (quantile(shift + step) - quantile(shift - step)) / (2.0 * step)
    assert gradient.item() == pytest.approx(difference.item(), rel=1e-6)


def test_parts_of_the_uncertainty_add_up() -> None:
    for seed in range(5):
        p = random_prediction(seed)
        parts = p.uncertainty()
        torch.testing.assert_close(parts.noise + parts.weights + parts.structure, p.variance)
        assert all(bool((part >= 0.0).all()) for part in (parts.noise, parts.weights, parts.structure))


def test_rows_can_be_taken_and_concatenated() -> None:
    p = random_prediction(4)
    whole = p.take(slice(0, 1)).concatenate([p.take([1, 2]), p.take(slice(3, 4))])
    y = torch.zeros(4, 2, dtype=torch.float64)
    assert torch.equal(whole.log_prob(y), p.log_prob(y))
    assert torch.equal(whole.icdf(0.9), p.icdf(0.9))


def test_untrained_laws_are_close_to_the_standard_gaussian() -> None:
    generator = torch.Generator().manual_seed(0)
    for kind in KINDS.values():
        law = ResidualNetworks(kind, 2, 1, 3, generator)
        features = torch.randn(1, 1, 5, 4, generator=generator, dtype=torch.float64)
        z = torch.linspace(-2.0, 2.0, 5, dtype=torch.float64).view(1, 1, 5)
        with torch.no_grad():
            log_density = law.law(law(features), torch.full((1, 1, 5), -9.0, dtype=torch.float64)).log_prob(z)
        expected = torch.from_numpy(stats.norm.logpdf(z.numpy())).expand_as(log_density)
        torch.testing.assert_close(log_density, expected, rtol=0.0, atol=0.12)


def test_scales_are_at_least_those_of_a_cell_of_the_lattice() -> None:
    recalibration = random_recalibration(0)
    recalibration.step.fill_(3.0)
    std = torch.full((4, TARGETS), 0.5, dtype=torch.float64)
    for law in recalibration.law_parameters(torch.zeros(4, 3), torch.zeros(4, TARGETS, dtype=torch.float64), std):
        assert float(law.log_scale.exp().min()) >= 3.0 / math.sqrt(12.0)


def test_a_state_is_restored_exactly_and_altered_states_are_refused() -> None:
    recalibration = random_recalibration(1)
    state = recalibration.state_dict()
    again = read_recalibration(state, TARGETS, 3)
    assert again is not None
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in state.items())
    assert read_recalibration({}, TARGETS, 3) is None
    altered = {
        "other columns": (state, 4),
        "no networks": ({"share": state["share"]}, 3),
        "not finite": ({**state, "share": state["share"] * math.nan}, 3),
        "weights": ({**state, "share": state["share"] * 2.0}, 3),
        "precision": ({**state, "share": state["share"].float()}, 3),
        "shape": ({**state, "step": torch.zeros(5, dtype=torch.float64)}, 3),
        "missing": ({name: value for name, value in state.items() if name != "step"}, 3),
    }
    for tensors, inputs in altered.values():
        with pytest.raises(DataError, match="recalibration"):
            read_recalibration(tensors, TARGETS, inputs)


def test_a_pool_refuses_weights_that_do_not_fit() -> None:
    law = Mixture(torch.zeros(1), Normal(torch.zeros(1, 2, 1), torch.ones(1, 2, 1)))
    with pytest.raises(DataError, match="one row of weights for each law"):
        Pool(torch.ones(2, 1), (law,))
    with pytest.raises(DataError, match="probabilities"):
        Pool(torch.ones(1, 1), (law,)).icdf(np.array([[1.5], [0.5]]))
