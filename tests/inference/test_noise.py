"""The noise of an average of networks, from rows that single ones have not seen."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch import Tensor

from fathomless.inference.out_of_fold import stacking
from fathomless.inference.out_of_fold.crossfit import OutOfFold
from fathomless.inference.out_of_fold.noise import (
    KAPPA,
    _maximize,
    _Posterior,
    average_noise_factor,
    average_temperature_factor,
    choose_cells,
    choose_noise,
    estimate_class_disagreement,
    estimate_disagreement,
    fit_noise,
    free_likelihood,
    mixture_log_density,
    to_student_t,
    weigh_without_folds,
)
from fathomless.posterior.likelihoods import Gaussian, StudentT, cell_of
from fathomless.posterior.noise import InputNoise, LearnedNoise


def networks(
    left: float,
    spread: float,
    follow: float,
    n: int = 20_000,
    folds: int = 10,
    repeats: int = 1,
    uneven: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Errors with known parts, (F, N, 1): variance `left` in common, and a `spread` between networks.

    Networks that were fitted to a row reduce the common error by the share `follow`. `uneven` is the standard deviation
    of the log scale of rows.
    """
    g = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=g, dtype=torch.float64)

    unseen = []
    for _ in range(repeats):
        fold = torch.randint(folds, (n,), generator=g)
        unseen += [fold == k for k in range(folds)]
    out = torch.stack(unseen)  # (F, N)
    common = math.sqrt(left) * normal(n)
    error = torch.where(out, common, (1.0 - follow) * common)
    error = error + math.sqrt(spread) * normal(len(out), n)
    return ((uneven * normal(n)).exp() * error)[..., None], out


@pytest.mark.parametrize("uneven", [0.0, 2.0])
@pytest.mark.parametrize("follow", [0.0, 0.8])
@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("repeats", [1, 2])
def test_disagreement_is_told_from_following_rows(spread: float, follow: float, repeats: int, uneven: float) -> None:
    share = estimate_disagreement(*networks(1.0, spread, follow, repeats=repeats, uneven=uneven))
    # the standard error of a correlation in Tyler's scatter of 20,000 pairs is below 0.01
    assert float(share) == pytest.approx(spread / (1.0 + spread), abs=0.03)


@pytest.mark.parametrize("folds", [2, 3, 10])
def test_a_row_may_be_fitted_by_few_networks(folds: int) -> None:
    error, unseen = networks(1.0, 0.25, 0.4, folds=folds)
    assert float(estimate_disagreement(error, unseen)) == pytest.approx(0.2, abs=0.03)


def test_a_few_rows_of_strong_disagreement_have_no_more_weight_than_others() -> None:
    error, unseen = networks(1.0, 0.1, 0.5)
    wild, _ = networks(0.0, 1e4, 0.5)
    error[:, :100] = wild[:, :100]
    assert float(estimate_disagreement(error, unseen)) == pytest.approx(0.1 / 1.1, abs=0.03)
    # shares of mean squares would be more than nine tenths
    first = error[unseen].square().mean()
    assert float(first) > 10.0 * 1.1


@pytest.mark.parametrize("rows", [0, 1, 200, 20_000])
@pytest.mark.parametrize("rounding", [0.0, 1e-9])
def test_networks_that_interpolate_do_not_disagree(rows: int, rounding: float) -> None:
    """Networks that return the rows they were fitted to do not show how they differ on others: nothing is reduced."""
    error, unseen = networks(1.0, 0.5, 0.0, n=rows)
    error = torch.where(unseen[..., None], error, rounding * error)
    assert float(estimate_disagreement(error, unseen)) == pytest.approx(0.1 * 20.0 / (20.0 + rows), abs=1e-3)


def test_few_rows_follow_the_prior_more_than_many() -> None:
    few, many = (float(estimate_disagreement(*networks(1.0, 1.0, 0.2, n=n))) for n in (12, 20_000))
    assert 0.1 <= few < many


def test_equal_networks_and_perfect_predictions_do_not_disagree() -> None:
    error, unseen = networks(1.0, 0.0, 0.0, n=400)
    for values in (error, 0.0 * error):
        assert float(estimate_disagreement(values, unseen)) <= 0.1
    assert float(estimate_disagreement(torch.where(unseen[..., None], 0.0, error), unseen)) <= 0.1
    error[:, 5] = math.nan
    error[:, 6] = math.inf
    assert float(estimate_disagreement(error, unseen)) <= 0.1


def test_weights_are_repetitions_and_targets_apart() -> None:
    error, unseen = networks(1.0, 0.3, 0.2, n=500)
    times = torch.arange(500) % 3
    share = estimate_disagreement(error, unseen, times.double())
    again = torch.arange(500).repeat_interleave(times)
    torch.testing.assert_close(share, estimate_disagreement(error[:, again], unseen[:, again]))
    both = estimate_disagreement(torch.cat([error, error.flip(0)], 2), unseen)
    torch.testing.assert_close(
        both, torch.cat([estimate_disagreement(part, unseen) for part in (error, error.flip(0))])
    )


@pytest.mark.parametrize("spread", [0.05, 0.2, 0.4])
def test_the_narrowed_mixture_has_the_variance_of_its_error(spread: float) -> None:
    """Ten networks on rows that none has seen: noise and spread of the mixture make up the error of the average."""
    left, count = 1.0, 10
    factor = average_noise_factor(torch.tensor([spread / (left + spread)]), 1, count)
    noise = float(factor.square()) * (left + spread)
    mixture = noise + spread * (1.0 - 1.0 / count)
    assert mixture == pytest.approx(left + spread / count, rel=1e-6)


def test_narrowing_has_limits() -> None:
    one, none = torch.tensor([1.0]), torch.tensor([0.0])
    assert float(average_noise_factor(none, 1, 10)) == 1.0
    assert float(average_noise_factor(one, 1, 10)) == pytest.approx(math.sqrt(0.1))
    assert float(average_noise_factor(torch.tensor([0.3]), 5, 5)) == 1.0  # fitted to what it is for


def class_networks(spread: float, n: int = 20_000, classes: int = 3, folds: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Logits of networks (F, N, C) that scatter around those of the classes, the classes, and the unseen rows."""
    g = torch.Generator().manual_seed(1)
    truth = 2.0 * torch.randn(n, classes, generator=g, dtype=torch.float64)
    y = torch.multinomial(truth.softmax(-1), 1, generator=g)[:, 0]
    fold = torch.randint(folds, (n,), generator=g)
    f = truth + spread * torch.randn(folds, n, classes, generator=g, dtype=torch.float64)
    return f, y, fold == torch.arange(folds)[:, None]


def best_temperature(log_p: Callable[[float], Tensor], y: Tensor) -> float:
    """Return the temperature of the highest mean log probability of the classes."""
    found = optimize.minimize_scalar(
        lambda t: -float(log_p(t).gather(-1, y[:, None]).mean()), bounds=(0.3, 3.0), method="bounded"
    )
    return float(found.x)


@pytest.mark.parametrize("spread", [0.0, 0.3, 0.5, 0.8])
def test_the_average_of_classes_is_calibrated(spread: float) -> None:
    f, y, unseen = class_networks(spread)
    networks = len(f)
    single = best_temperature(lambda t: (f[0] / t).log_softmax(-1), y)
    f = f / single
    error = torch.nn.functional.one_hot(y) - f.softmax(-1)
    V, S = estimate_class_disagreement(error, unseen)
    truth = float(f.softmax(-1).var(0).sum(-1).mean())
    assert 0.9 * truth <= V < 1.1 * truth + 2e-3
    assert pytest.approx(float(error.square().sum(-1).mean()), rel=0.05) == S

    def brier(factor: float) -> float:
        p = (f[0] / factor).softmax(-1)
        return float((p * (1.0 - p)).sum(-1).mean())

    factor = average_temperature_factor(brier, V, S, 1, networks)
    best = best_temperature(lambda t: (f / t).log_softmax(-1).logsumexp(0), y)
    assert best - 0.02 < factor < best + 0.06  # rather too high than too low
    assert average_temperature_factor(brier, V, S, networks, networks) == 1.0


def test_classes_without_rows_or_networks_that_differ_keep_their_temperature() -> None:
    f, y, unseen = class_networks(0.0, n=200)
    none = estimate_class_disagreement(f[:, :0], unseen[:, :0])
    assert none == (0.0, 0.0)
    assert average_temperature_factor(lambda _: 0.5, *none, 1, 5) == 1.0
    V, S = estimate_class_disagreement(torch.nn.functional.one_hot(y) - f.softmax(-1), unseen)
    assert V < 0.02 * S


def test_a_scale_is_multiplied_and_brought_back() -> None:
    noise = LearnedNoise(2, 0.5, 1e-3).double()
    before = noise.log_scale().clone()
    noise.rescale(torch.tensor([0.5, 2.0]))
    torch.testing.assert_close((noise.log_scale() - before).exp().detach(), torch.tensor([0.5, 2.0]).double())
    noise.rescale(torch.tensor([2.0, 0.5]))
    torch.testing.assert_close(noise.log_scale(), before)
    noise.rescale(torch.tensor([1e-9, 1.0]))
    assert bool(noise.log_scale().isfinite().all())
    assert float(noise.log_scale()[0].detach()) == pytest.approx(math.log(1e-3), abs=1e-5)


@pytest.mark.parametrize("outlier", [None, 10.0, 1e2, 1e4])
def test_tails_are_found_with_and_without_a_row_far_out(outlier: float | None) -> None:
    g = np.random.default_rng(0)
    y = g.standard_t(3, 600) if outlier is None else np.append(g.standard_t(3, 599), outlier)
    assert isinstance(choose_noise(alone(y), Gaussian().double()), StudentT)


@pytest.mark.parametrize("n", [40, 100, 300])
def test_heavy_tails_are_found_in_few_rows(n: int) -> None:
    chosen = [
        choose_noise(alone(np.random.default_rng([s, n]).standard_t(3, n)), Gaussian().double()) for s in range(8)
    ]
    assert sum(isinstance(law, StudentT) for law in chosen) >= (7 if n > 40 else 6)


@pytest.mark.parametrize("seed", range(4))
def test_light_tails_keep_gaussian_noise(seed: int) -> None:
    y = np.random.default_rng(seed).uniform(-1.0, 1.0, 300)
    assert isinstance(choose_noise(alone(y), Gaussian().double()), Gaussian)


def test_normal_rows_lose_little_by_the_choice() -> None:
    """Student's t chosen by chance has many degrees of freedom."""
    new = alone(np.random.default_rng(99).standard_normal(20_000))
    lost = []
    for seed in range(12):
        rows = alone(np.random.default_rng(seed).standard_normal(100))
        laws = fit_noise(rows, Gaussian().double()), choose_noise(rows, Gaussian().double())
        with torch.no_grad():
            plain, chosen = (float(mixture_log_density(new, law).mean()) for law in laws)
        lost.append(plain - chosen)
    assert np.mean(lost) < 0.005
    assert max(lost) < 0.03


@pytest.mark.parametrize("draw", ["normal", "t"])
def test_evidence_is_the_integral_over_the_parameters(draw: str) -> None:
    """Laplace's approximation of both laws, beside sums over grids of log scales and log (ν − 2)."""
    g = np.random.default_rng(3)
    n, kappa = 60, 0.5
    y = g.standard_normal(n) if draw == "normal" else g.standard_t(3, n)
    u = np.linspace(math.log(0.6) - 2.0, math.log(0.6) + 2.0, 801)
    prior = -0.5 * ((u - math.log(0.6)) / kappa) ** 2
    by_scale = stats.norm.logpdf(y[:, None], scale=np.exp(u)).sum(0) + prior
    gaussian = np.log(np.exp(by_scale - by_scale.max()).sum()) + by_scale.max()
    tails = np.linspace(-2.9, math.log(197.0), 121)  # 2.05 to 199 degrees of freedom, the range of the law
    step = tails[1] - tails[0]
    lines = []
    for tail in tails:
        line = stats.t.logpdf(y[:, None], 2.0 + math.exp(tail), scale=np.exp(u)).sum(0) + prior
        lines.append(line + stats.norm.logpdf(tail, math.log(8.0), 1.0) + math.log(step))
    both = np.concatenate(lines)
    student = np.log(np.exp(both - both.max()).sum()) + both.max()
    found = []
    for law in (Gaussian(initial_noise=0.6).double(), to_student_t(Gaussian(initial_noise=0.6).double())):
        posterior = _Posterior.of(alone(y), law, kappa)
        _maximize(posterior, law)
        found.append(posterior.log_evidence())
    assert found[1] - found[0] == pytest.approx(student - gaussian, abs=0.25)
    assert (found[1] > found[0]) == (student > gaussian)


def test_a_factor_of_predicted_scales_is_stationary() -> None:
    """With z the errors in units of predicted scales, n (1 − mean(z²) exp(−2 c)) + c / κ² = 0 at log factor c."""
    g = np.random.default_rng(0)
    n = 80
    raw = torch.from_numpy(g.normal(size=(1, n, 1)))
    f = torch.cat([torch.zeros(1, n, 1, dtype=torch.float64), raw], 2)
    trained = Gaussian(noise="input").double()
    scale = trained.components(f).scale[0]
    y = 1.7 * scale * torch.from_numpy(g.normal(size=(n, 1)))
    rows = replace(alone(y[:, 0].numpy()), f=f)
    free = free_likelihood(trained, f)
    assert free_likelihood(free, f) is not free
    assert not list(trained.parameters())
    fitted = fit_noise(rows, free)
    (c,) = fitted.state_dict()["noise.log_factor"].tolist()
    z = y / scale
    assert n * (1.0 - float(z.square().mean()) * math.exp(-2.0 * c)) + c / KAPPA**2 == pytest.approx(0.0, abs=1e-4)
    assert c == pytest.approx(math.log(1.7), abs=0.2)
    heavy = replace(rows, y=scale * torch.from_numpy(g.standard_t(3, (n, 1))))
    chosen = choose_noise(heavy, free)
    assert isinstance(chosen, StudentT)
    assert isinstance(chosen.noise, InputNoise)


def test_weights_for_the_noise_are_those_of_other_folds() -> None:
    g = torch.Generator().manual_seed(0)
    n, numbers = 40, (0, 1, 2)
    f = torch.randn(6, n, 1, generator=g, dtype=torch.float64)  # two draws of each structure
    y = f[1] + 0.3 * torch.randn(n, 1, generator=g, dtype=torch.float64)
    structure = torch.tensor([0, 1, 2, 0, 1, 2])
    rows = OutOfFold(f, torch.full((6,), -math.log(6.0)).double(), structure, y, None, torch.arange(n))
    folds = torch.arange(n) % 4
    prior = torch.zeros(3, dtype=torch.float64)
    likelihood = Gaussian().double()
    found = weigh_without_folds(rows, likelihood, folds, prior, numbers)
    torch.testing.assert_close(found.log_weight.exp().sum(0), torch.ones(n).double())
    with torch.no_grad():
        log_p = likelihood.log_prob(f, y)
    table = torch.stack([torch.logsumexp(log_p[structure == number], 0) for number in numbers], 1)
    for k in range(4):
        q = stacking.refit(table[folds != k], prior, None)
        here = found.log_weight[:, folds == k].exp()
        torch.testing.assert_close(here[:3], 0.5 * q[:, None].expand(3, int((folds == k).sum())))
    changed = torch.where((folds == 2)[:, None], y + 5.0, y)
    again = weigh_without_folds(replace(rows, y=changed), likelihood, folds, prior, numbers)
    assert torch.equal(again.log_weight[:, folds == 2], found.log_weight[:, folds == 2])
    some = folds != 1
    assert torch.equal(found.take(some).log_weight, found.log_weight[:, some])
    torch.testing.assert_close(
        mixture_log_density(found.take(some), likelihood), mixture_log_density(found, likelihood)[some]
    )


def alone(y: "np.ndarray[Any, Any]") -> OutOfFold:
    """Rows of one network that predicts 0."""
    rows, one = torch.arange(len(y)), torch.zeros(1, dtype=torch.float64)
    f = torch.zeros(1, len(y), 1, dtype=torch.float64)
    return OutOfFold(f, one, torch.zeros(1, dtype=torch.int64), torch.from_numpy(y)[:, None], None, rows)


@pytest.mark.parametrize("step", [0.5, 2.0])
def test_noise_of_rounded_targets_is_that_before_rounding(step: float) -> None:
    """Masses of cells recover the planted scale, which the density of rounded targets does not."""
    generator = torch.Generator().manual_seed(0)
    count, sigma = 4000, 0.6
    f = torch.randn(1, count, 1, generator=generator, dtype=torch.float64)
    y = ((f[0] + sigma * torch.randn(count, 1, generator=generator, dtype=torch.float64)) / step).round() * step
    held = OutOfFold(f, torch.zeros(1), torch.zeros(1, dtype=torch.int64), y, None, torch.arange(count))
    trained = Gaussian()
    assert cell_of(choose_cells(held, trained)) is None  # no lattice is known
    trained.steps = (step,)
    chosen = choose_cells(held, trained)
    assert cell_of(trained) is None
    assert cell_of(chosen).tolist() == [step]
    scale = fit_noise(held, chosen, kappa=10.0).noise.log_scale().exp().item()
    assert scale == pytest.approx(sigma, rel=4.0 / math.sqrt(count))
    of_density = fit_noise(held, trained, kappa=10.0).noise.log_scale().exp().item()
    error = (y - f[0]).square().mean().sqrt().item()
    assert of_density == pytest.approx(error, rel=1e-3)
    assert of_density > 1.02 * sigma


def test_a_lattice_is_coarse_from_three_tenths_of_the_error_on() -> None:
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(500, 1, generator=generator)
    f = torch.zeros(2, 500, 1)
    weight = torch.tensor([0.5, 0.5]).log()
    held = OutOfFold(f, weight, torch.tensor([1, 2]), y, None, torch.arange(500))
    error = y.square().mean().sqrt().item()
    likelihood = Gaussian()
    for share, coarse in ((0.299, False), (0.301, True)):
        likelihood.steps = (share * error,)
        assert (cell_of(choose_cells(held, likelihood)) is not None) == coarse
    likelihood = Gaussian(2)
    likelihood.steps = (error, error)
    two = replace(held, f=torch.zeros(2, 500, 2), y=y.expand(500, 2))
    assert cell_of(choose_cells(two, likelihood)) is None


def test_fitted_scales_are_at_least_the_rounding_error_of_the_lattice() -> None:
    f = torch.zeros(1, 50, 1)
    held = OutOfFold(f, torch.zeros(1), torch.zeros(1, dtype=torch.int64), torch.zeros(50, 1), None, torch.arange(50))
    likelihood = Gaussian()
    assert fit_noise(held, likelihood).noise.log_scale().exp().item() < 0.1
    likelihood.steps = (1.0,)
    assert fit_noise(held, likelihood).noise.log_scale().exp().item() == pytest.approx(1.0 / math.sqrt(12.0), rel=1e-5)
