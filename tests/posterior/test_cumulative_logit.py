"""Ordered classes by cumulative logits: exact masses, derivatives, and thresholds recovered from data."""

import itertools
import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fathomless.inference.out_of_fold.crossfit import StackedLikelihood
from fathomless.posterior.likelihoods import Bernoulli, CumulativeLogit
from fathomless.posterior.metrics import brier, ranked_probability
from fathomless.system.errors import DataError


def made(classes: int = 5, temperature: float | None = None, **options: Any) -> CumulativeLogit:
    torch.manual_seed(0)
    law = CumulativeLogit(classes, temperature=temperature is not None, **options).double()
    with torch.no_grad():
        for p in law.parameters():
            p.add_(torch.randn_like(p))
        if law.log_temperature is not None and temperature is not None:
            law.log_temperature.fill_(math.log(temperature))
    return law


def exact(law: CumulativeLogit, f: float, temperature: float) -> list[float]:
    """Return the log masses from differences of sigmoids with 350 digits."""
    with localcontext() as context:
        context.prec = 350
        cuts = [(Decimal(c) - Decimal(f)) / Decimal(temperature) for c in law.thresholds().tolist()]
        below = [Decimal(0), *(1 / (1 + (-cut).exp()) for cut in cuts), Decimal(1)]
        return [float((b - a).ln()) for a, b in itertools.pairwise(below)]


@pytest.mark.parametrize("temperature", [None, 0.3, 2.5])
@pytest.mark.parametrize("classes", [2, 3, 5])
def test_log_masses_are_exact_in_both_tails(classes: int, temperature: float | None) -> None:
    law = made(classes, temperature)
    for f in (-200.0, -60.0, -1.5, 0.0, 0.7, 33.0, 190.0):
        found = law.components(torch.full((1, 1, 1), f, dtype=torch.float64)).log_probs[0, 0]
        expected = exact(law, f, temperature or 1.0)
        np.testing.assert_allclose(found.detach(), expected, rtol=1e-12, atol=1e-290)
        at = torch.full((1, 1, 1), f, dtype=torch.float64)
        single = [law.log_prob(at, torch.tensor([k])).item() for k in range(classes)]
        np.testing.assert_allclose(single, expected, rtol=1e-12, atol=1e-290)


def test_derivatives_agree_with_finite_differences() -> None:
    law = made(4, 1.7)
    f = torch.linspace(-6.0, 6.0, 8, dtype=torch.float64).reshape(2, 4, 1).requires_grad_()
    y = torch.tensor([0, 1, 2, 3])
    names = [name for name, _ in law.named_parameters()]

    def density(f: Tensor, *values: Tensor) -> Tensor:
        parameters = dict(zip(names, values, strict=True))
        return torch.func.functional_call(_Density(law), {f"law.{k}": v for k, v in parameters.items()}, (f, y))

    values = [p.detach().clone().requires_grad_() for p in law.parameters()]
    assert torch.autograd.gradcheck(density, (f, *values))


class _Density(torch.nn.Module):
    def __init__(self, law: CumulativeLogit) -> None:
        super().__init__()
        self.law = law

    def forward(self, f: Tensor, y: Tensor) -> Tensor:
        return self.law.log_prob(f, y)


def test_gradients_are_finite_in_the_tails() -> None:
    law = made(4).float()
    f = torch.tensor([-1e4, -90.0, 90.0, 1e4]).reshape(1, 4, 1).requires_grad_()
    for k in range(4):
        (gradient,) = torch.autograd.grad(law.log_prob(f, torch.full((4,), k)).sum(), f)
        assert bool(gradient.isfinite().all())
        assert gradient.abs().max() <= 1.0 + 1e-6


def test_the_information_is_the_expected_curvature() -> None:
    law = made(5, 0.6)
    f = torch.linspace(-4.0, 4.0, 9, dtype=torch.float64).reshape(1, 9, 1)
    probs = law.components(f).log_probs[0].exp().detach()
    expected = torch.zeros(9, dtype=torch.float64)
    for k in range(5):
        at = f.clone().requires_grad_()
        (slope,) = torch.autograd.grad(law.log_prob(at, torch.full((9,), k)).sum(), at, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), at)
        expected -= probs[:, k] * curvature[0, :, 0]
    np.testing.assert_allclose(law.information(f)[0].detach(), expected, rtol=1e-9)


def test_two_classes_are_a_logistic_regression_with_an_offset() -> None:
    law = CumulativeLogit(2, counts=[30.0, 10.0]).double()
    f = torch.randn(3, 6, 1, dtype=torch.float64)
    shifted = Bernoulli().components(f - law.thresholds().double()).log_probs  # type: ignore[union-attr]
    np.testing.assert_allclose(law.components(f).log_probs, shifted, rtol=1e-12)
    assert law.thresholds().item() == pytest.approx(math.log(30.5 / 10.5))
    assert list(law.parameters()) == []


def test_the_first_thresholds_give_the_class_frequencies() -> None:
    counts = [3.0, 50.0, 17.0, 30.0]
    probs = CumulativeLogit(4, counts=counts).components(torch.zeros(1, 1, 1)).log_probs[0, 0].exp().detach()
    np.testing.assert_allclose(probs, (np.array(counts) + 0.5) / 102.0, rtol=1e-6)


def test_ranks_permute_the_classes() -> None:
    law, ranks = made(4), [2, 0, 3, 1]
    other = CumulativeLogit(4, ranks).double()
    other.load_state_dict(law.state_dict())
    f = torch.randn(2, 5, 1, dtype=torch.float64)
    assert torch.equal(other.components(f).log_probs, law.components(f).log_probs[..., ranks])
    y = torch.tensor([0, 1, 2, 3, 1])
    assert torch.equal(other.log_prob(f, y), law.log_prob(f, torch.tensor(ranks)[y]))


def test_stacked_laws_are_the_single_ones() -> None:
    laws = [made(4, temperature) for temperature in (0.5, 2.0)]
    with torch.no_grad():
        assert laws[1].log_gaps is not None
        laws[1].log_gaps.add_(0.5)
    stacked = StackedLikelihood(laws)
    f, y = torch.randn(3, 8, 1, dtype=torch.float64), torch.tensor([0, 1, 2, 3] * 2)
    single = [law.log_prob(part, of) for law, part, of in zip(laws, f.chunk(2, 1), y.chunk(2), strict=True)]
    np.testing.assert_allclose(stacked.log_prob(f, y).detach(), torch.cat(single, 1).detach(), rtol=1e-12)
    wide = stacked.widen(3.0).member(0).components(f).log_probs
    assert torch.equal(wide, laws[0].widen(3.0).components(f).log_probs)


def test_a_temperature_divides_outputs_and_thresholds() -> None:
    law = made(4)
    f = torch.randn(2, 5, 1, dtype=torch.float64)
    assert torch.equal(law.tempered().components(f).log_probs, law.components(f).log_probs)
    warm = law.widen(2.0)
    assert law.log_temperature is None
    half = (law.thresholds() - f) / 2.0
    np.testing.assert_allclose(
        warm.components(f).log_probs.exp().cumsum(-1)[..., :-1].detach(), half.sigmoid().detach(), rtol=1e-6
    )


def test_planted_thresholds_are_recovered() -> None:
    rng = np.random.default_rng(0)
    n, slope, cuts = 6000, 1.5, np.array([-2.0, 0.5, 1.0, 3.0])
    x = rng.normal(size=n)
    y = torch.tensor((slope * x + rng.logistic(size=n))[:, None] > cuts).sum(1)
    law = CumulativeLogit(5).double()
    line = torch.zeros(2, dtype=torch.float64, requires_grad=True)  # slope and offset
    optimizer = torch.optim.LBFGS([line, *law.parameters()], max_iter=200, line_search_fn="strong_wolfe")
    f = torch.tensor(x)

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = -law.log_prob((line[0] * f + line[1])[None, :, None], y).mean()
        value.backward()
        return value

    optimizer.step(loss)
    assert line[0].item() == pytest.approx(slope, abs=0.12)  # 4 standard errors of 0.03
    np.testing.assert_allclose((law.thresholds() - line[1]).detach(), cuts, atol=0.25)


def test_what_does_not_fit_is_refused() -> None:
    for options, message in (
        ({"classes": 1}, "classes was given"),
        ({"classes": 3, "ranks": [0, 1, 1]}, "each once"),
        ({"classes": 3, "counts": [1.0, -1.0, 2.0]}, "counts="),
    ):
        with pytest.raises(DataError, match=message):
            CumulativeLogit(**options)
    with pytest.raises(DataError, match="outputs"):
        CumulativeLogit(3).log_prob(torch.zeros(1, 2, 3), torch.tensor([0, 1]))


def test_the_ranked_probability_score_sums_the_scores_of_all_thresholds() -> None:
    rng = np.random.default_rng(1)
    p, y = rng.dirichlet(np.ones(4), 30), rng.integers(0, 4, 30)
    direct = sum((p[:, : k + 1].sum(1) - (y <= k)) ** 2 for k in range(3))
    np.testing.assert_allclose(ranked_probability(y, p), direct, atol=1e-12)
    two = p[:, :2] / p[:, :2].sum(1, keepdims=True)
    assert ranked_probability(y % 2, two).mean() == pytest.approx(0.5 * brier(y % 2, two))
