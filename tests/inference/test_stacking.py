"""Penalised stacking: the maximum of a concave function on the simplex, and what is read off it."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fathomless.inference.out_of_fold.stacking import (
    fit_path,
    marginal_gain,
    poisson,
    pseudo_bma,
    refit,
    standard_errors,
    usable,
    value,
)
from fathomless.system.errors import DataError

L = 6
PRIOR = torch.tensor([1.0, 2.0, 3.0, 2.0, 1.0, 1.0], dtype=torch.float64).log()  # not normalised


def table(n: int = 120, size: int = L, noise: float = 0.4, seed: int = 0) -> Tensor:
    """Log densities of n rows: structure 2 is best on average, all have rows where they are best."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    own = torch.randn(n, size, generator=generator, dtype=torch.float64)
    return -1.0 + 0.5 * rows + noise * own - 0.05 * (torch.arange(size) - 2.0).abs()


def spirals(n: int = 600, size: int = 10) -> Tensor:
    """Log densities as of classes that deep networks separate: −0.7 to −0.001, shallow ones are hopeless."""
    generator = torch.Generator().manual_seed(1)
    level = torch.linspace(math.log(0.7), math.log(0.001), size, dtype=torch.float64).exp()
    rows = (0.3 * torch.randn(n, size, generator=generator, dtype=torch.float64)).exp()
    wrong = (torch.rand(n, size, generator=generator) < 0.01) * torch.rand(n, size, generator=generator)
    return -level * rows - 5.0 * wrong


def neighbours(size: int = 25) -> tuple[Tensor, Tensor]:
    """Rows by the million, and structures that stand in for each other: Newton's steps alone take hundreds."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(250, 1, generator=generator, dtype=torch.float64)
    weight = 1e6 * torch.rand(250, generator=generator, dtype=torch.float64) ** 3
    return -0.5 * (x - torch.linspace(-3.0, 3.0, size, dtype=torch.float64)) ** 2, weight


def left_to_gain(q: Tensor, log_density: Tensor, log_prior: Tensor, weight: Tensor | None = None) -> float:
    """Bound on max F − F(q), from a gradient of its own: max_l g_l − Σ q_l g_l."""
    at = q.clone().requires_grad_()
    row = torch.logsumexp(log_density + at.log(), 1)
    F = (row if weight is None else weight * row).sum() - (at * (at.log() - log_prior)).sum()
    (g,) = torch.autograd.grad(F, at)
    return float(g.max() - q @ g)


def test_refit_without_rows_is_the_prior() -> None:
    prior = PRIOR.softmax(0)
    torch.testing.assert_close(refit(torch.empty(0, L), PRIOR), prior)
    torch.testing.assert_close(refit(table(), PRIOR, torch.zeros(120), start=torch.eye(L)[0]), prior)
    assert value(prior, torch.empty(0, L), PRIOR) == pytest.approx(math.log(10.0))  # the sum of the prior
    assert refit(torch.empty(0, 2), torch.tensor([0.0, -math.inf])).tolist() == [1.0, 0.0]


@pytest.mark.parametrize("rows", [table(5), table(), table(20_000), spirals(), 300.0 * spirals(), table(4, 30, 40.0)])
def test_refit_is_concave_in_categorical_weights(rows: Tensor) -> None:
    """Three starts, two of them in a corner, one maximum, whose bound says so."""
    size = rows.shape[1]
    prior = -torch.arange(size, dtype=torch.float64)
    starts = (None, torch.eye(size)[0], torch.eye(size)[-1])
    first, *others = (refit(rows, prior, start=start) for start in starts)
    assert float(first.sum()) == pytest.approx(1.0, abs=1e-12)
    assert left_to_gain(first, rows, prior) <= 2e-8
    for q in others:
        torch.testing.assert_close(q, first, rtol=0.0, atol=1e-8)


def test_hopeless_structures_do_not_hold_back_the_others() -> None:
    rows, prior = spirals(), torch.zeros(10)
    q = refit(rows, prior)
    assert float(q[:4].sum()) < 1e-12
    assert (q[:4] > 0.0).all()
    assert q[7:].sum() > 0.99


def test_rows_that_count_a_million_times_are_refitted() -> None:
    rows, weight = neighbours()
    prior = -torch.arange(25, dtype=torch.float64)
    q = refit(rows, prior, weight)
    assert left_to_gain(q, rows, prior, weight) <= 1e-14 * 10 * float(weight.sum())
    torch.testing.assert_close(refit(rows, prior, weight, start=torch.eye(25)[3]), q, rtol=0.0, atol=1e-8)


def test_refit_matches_enumeration() -> None:
    rows, prior = table(40, 2), torch.tensor([1.0, 0.0])
    grid = torch.linspace(0.0, 1.0, 2_001, dtype=torch.float64).tolist()
    F = [value(torch.tensor([1.0 - b, b], dtype=torch.float64), rows, prior) for b in grid]
    best = max(range(len(grid)), key=F.__getitem__)
    q = refit(rows, prior)
    assert 0.05 < grid[best] < 0.95
    assert abs(float(q[1]) - grid[best]) <= 1.0 / 2_000
    assert F[best] <= value(q, rows, prior) <= F[best] + 1e-3


def test_refit_gradient_matches_finite_differences() -> None:
    """At the maximum F has no slope on the simplex, at another point that of the formula."""
    rows, weight = table(), torch.rand(120, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    p = rows.exp()

    def slopes(q: Tensor, h: float = 1e-5) -> Tensor:
        to = torch.eye(L, dtype=torch.float64) - q
        F = [[value(q + sign * h * d, rows, PRIOR, weight) for sign in (1.0, -1.0)] for d in to]
        return torch.tensor([(up - down) / (2.0 * h) for up, down in F], dtype=torch.float64)

    q = refit(rows, PRIOR, weight)
    torch.testing.assert_close(slopes(q), torch.zeros(L, dtype=torch.float64), rtol=0.0, atol=1e-5)
    q = PRIOR.softmax(0)
    g = (weight[:, None] * p / (p @ q)[:, None]).sum(0) - q.log() + PRIOR
    torch.testing.assert_close(slopes(q), g - q @ g, rtol=0.0, atol=1e-5)
    assert float((g - q @ g).abs().max()) > 1.0


def test_equal_depths_share_by_the_prior() -> None:
    rows = table()[:, [0, 2, 2, 4, 2, 5]]
    q = refit(rows, PRIOR)
    shares = PRIOR[[1, 2, 4]].softmax(0)
    torch.testing.assert_close(q[[1, 2, 4]] / q[[1, 2, 4]].sum(), shares, rtol=1e-8, atol=0.0)
    torch.testing.assert_close(refit(rows[:, :1].expand(-1, L), PRIOR), PRIOR.softmax(0))


def test_refit_ignores_constants_of_rows() -> None:
    rows = table()
    constant = 1e4 * torch.randn(120, 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    q = refit(rows, PRIOR)
    torch.testing.assert_close(refit(rows + constant, PRIOR), q, rtol=0.0, atol=1e-9)
    assert value(q, rows + constant, PRIOR) == pytest.approx(value(q, rows, PRIOR) + float(constant.sum()))


def test_weight_is_repetition_in_the_refit() -> None:
    rows, weight = table(), torch.arange(120) % 4
    repeated = rows.repeat_interleave(weight, 0)
    q = refit(rows, PRIOR, weight)
    torch.testing.assert_close(q, refit(repeated, PRIOR), rtol=0.0, atol=1e-10)
    assert value(q, rows, PRIOR, weight) == pytest.approx(value(q, repeated, PRIOR))
    assert marginal_gain(rows, PRIOR, weight, 3) == pytest.approx(marginal_gain(repeated, PRIOR, None, 3))
    assert float((q - refit(rows, PRIOR)).abs().max()) > 0.01


def test_named_law_is_the_best_on_a_grid() -> None:
    k = torch.arange(9, dtype=torch.float64)
    deep, shallow = (table(200, 9) - 0.3 * (k - best).abs() for best in (5.0, 1.0))

    def geometric(rate: float) -> Tensor:
        return (k * math.log(rate / (1.0 + rate))).softmax(0)

    def law(rate: float) -> Tensor:
        return (k * math.log(rate) - torch.lgamma(k + 1.0)).softmax(0)

    def check(found: tuple[float, Tensor, float], law: Callable[[float], Tensor], rows: Tensor) -> None:
        rate, q, F = found
        torch.testing.assert_close(q, law(rate))
        assert pytest.approx(value(q, rows, -k)) == F
        on_grid = [value(law(10.0 ** (i / 500.0)), rows, -k) for i in range(-1_000, 701)]
        best = max(range(1_701), key=on_grid.__getitem__)
        assert 100 < best < 1_600
        assert abs(math.log10(rate) - (best - 1_000) / 500.0) <= 1.0 / 500.0
        assert on_grid[best] - 1e-9 <= F <= value(refit(rows, -k), rows, -k)

    check(poisson(deep, -k), law, deep)
    check(poisson(shallow, -k), law, shallow)
    check(fit_path(shallow, -k, None, geometric, 0.02, 20.0), geometric, shallow)
    assert fit_path(deep, -k, None, law, 0.1, 2.0)[0] == 2.0  # at the end of a short path
    _, single_depth, _ = fit_path(deep, -k, None, lambda rate: torch.eye(9)[round(rate)], 0.6, 8.0)  # 0 log 0 = 0
    assert int(single_depth.argmax()) == int((deep.sum(0) - k).argmax())
    with pytest.raises(DataError, match="no mass on structures"):
        fit_path(deep, -k, None, lambda rate: torch.zeros(9), 0.1, 2.0)


def test_more_rows_sharpen() -> None:
    """The score of a row rises with the number of rows, the price paid by q away from the prior too; bars shrink."""
    rows, zero = table(), torch.zeros(L)
    counts = torch.tensor([0.1, 1.0, 10.0, 100.0])
    fits = [refit(rows, zero, n.expand(120)) for n in counts]
    score = [float((rows.exp() @ q).log().mean()) for q in fits]
    price = [float((q * q.log()).sum()) for q in fits]
    error = [standard_errors(q, rows, zero, n.expand(120)).mean for q, n in zip(fits, counts, strict=True)]
    assert score == sorted(score)
    assert price == sorted(price)
    assert error[1] > error[2] > error[3]
    assert score[-1] - score[0] > 1e-3


def test_row_order_does_not_matter() -> None:
    rows, order = table(), torch.randperm(120, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(refit(rows[order], PRIOR), refit(rows, PRIOR), rtol=0.0, atol=1e-12)


@pytest.mark.parametrize(("row_noise", "fold_noise", "least"), [(0.6, 0.0, 0.75), (0.4, 0.2, 0.5)])
def test_error_bars_cover(row_noise: float, fold_noise: float, least: float) -> None:
    """Bars against the spread of weights over 80 tables, whose own error is 8 %; folds are noise that rows hide."""
    n, folds, size, zero = 200, 5, 4, torch.zeros(4)
    generator = torch.Generator().manual_seed(5)
    fold = torch.arange(n) % folds
    fits, found, blind = [], [], []
    for _ in range(80):
        noise = row_noise * torch.randn(n, size, generator=generator, dtype=torch.float64)
        luck = fold_noise * torch.randn(folds, size, generator=generator, dtype=torch.float64)
        rows = noise + luck[fold] - 0.05 * (torch.arange(size) - 1.0).abs()
        fits.append(refit(rows, zero))
        found.append(standard_errors(fits[-1], rows, zero, fold=fold, bootstraps=100))
        blind.append(standard_errors(fits[-1], rows, zero, bootstraps=100).weights)
    q = torch.stack(fits)
    ratio = torch.stack([bar.weights for bar in found]).mean(0) / q.std(0)
    assert least < float(ratio.min()) <= float(ratio.max()) < 1.3
    assert least < sum(bar.mean for bar in found) / 80 / float((q @ torch.arange(4.0).double()).std()) < 1.3
    if fold_noise:
        assert float((torch.stack(blind).mean(0) / q.std(0)).max()) < 0.5


def test_bars_are_the_larger_of_bootstrap_and_jackknife() -> None:
    rows, fold, numbers = table(30), torch.arange(30) % 3 * 7, torch.tensor([1.0, 2, 4, 8, 16, 32])
    q = refit(rows, PRIOR)
    rest = torch.stack([refit(rows[fold != k], PRIOR) for k in (0, 7, 14)])
    theta = torch.cat([rest, (rest @ numbers.double())[:, None]], 1)
    jackknife = (2.0 / 3.0 * ((theta - theta.mean(0)) ** 2).sum(0)).sqrt()
    drawn = standard_errors(q, rows, PRIOR, numbers=numbers)
    both = standard_errors(q, rows, PRIOR, fold=fold, numbers=numbers)
    torch.testing.assert_close(both.weights, torch.maximum(drawn.weights, jackknife[:-1]))
    assert both.mean == pytest.approx(max(drawn.mean, float(jackknife[-1])))
    assert (drawn.weights > jackknife[:-1]).any()
    assert (drawn.weights < jackknife[:-1]).any()
    single_fold = standard_errors(q, rows, PRIOR, fold=torch.full((30,), 3), numbers=numbers)
    assert torch.equal(single_fold.weights, drawn.weights)


def test_rows_of_a_group_are_drawn_together() -> None:
    """Every row twice at half its weight is one row, if the bootstrap is told so; twice as it stands looks surer."""
    rows, twin, half = table(), torch.arange(120).repeat(2), torch.full((240,), 0.5)
    q = refit(rows, PRIOR)
    one, twice = standard_errors(q, rows, PRIOR), rows.repeat(2, 1)
    torch.testing.assert_close(standard_errors(q, twice, PRIOR, half, group=twin).weights, one.weights)
    beside, first = torch.cat([rows, table(seed=9)]), torch.cat([torch.ones(120), torch.zeros(120)])
    torch.testing.assert_close(standard_errors(q, beside, PRIOR, first, group=twin).weights, one.weights)
    sure = refit(twice, PRIOR)
    assert standard_errors(sure, twice, PRIOR).mean < 0.85 * standard_errors(sure, twice, PRIOR, group=twin).mean


@pytest.mark.parametrize("bad", [-math.inf, math.inf, math.nan])
def test_structures_with_infinite_densities_are_left_out(bad: float) -> None:
    rows, rest = table(), [0, 2, 3, 5]
    rows[7, 1] = rows[100, 4] = bad
    q = refit(rows, PRIOR)
    assert usable(rows).tolist() == [True, False, True, True, False, True]
    assert q[[1, 4]].tolist() == [0.0, 0.0]
    torch.testing.assert_close(q[rest], refit(rows[:, rest], PRIOR[rest]))
    assert value(q, rows, PRIOR) == pytest.approx(value(q[rest], rows[:, rest], PRIOR[rest]))
    assert pseudo_bma(rows, PRIOR)[[1, 4]].tolist() == [0.0, 0.0]
    assert standard_errors(q, rows, PRIOR, fold=torch.arange(120) % 3).weights[[1, 4]].tolist() == [0.0, 0.0]
    _, law, F = poisson(rows, PRIOR)
    assert law[[1, 4]].tolist() == [0.0, 0.0]
    assert float(law.sum()) == pytest.approx(1.0)
    assert math.isfinite(F)
    rows[0] = bad
    with pytest.raises(DataError, match="none of 6 structures"):
        refit(rows, PRIOR)


def test_a_prior_of_zero_excludes() -> None:
    prior = PRIOR.clone()
    prior[2] = -math.inf
    rest = [0, 1, 3, 4, 5]
    q = refit(table(), prior, start=torch.eye(L)[2])
    assert float(q[2]) == 0.0
    torch.testing.assert_close(q[rest], refit(table()[:, rest], prior[rest]))
    assert value(torch.eye(L)[2], table(), prior) == -math.inf


def test_worth_of_the_edge() -> None:
    rows = table()
    equal = rows[:, :1].expand(-1, L)
    assert marginal_gain(equal, PRIOR, None, 4)[0] == pytest.approx(math.log(10.0 / 8.0))  # prior mass is all it adds
    assert marginal_gain(rows, PRIOR, None, L) == pytest.approx((0.0, 0.0), abs=1e-12)
    longer = value(refit(rows, PRIOR), rows, PRIOR)
    shorter = value(refit(rows[:, :4], PRIOR[:4]), rows[:, :4], PRIOR[:4])
    assert marginal_gain(rows, PRIOR, None, 4)[0] == pytest.approx(longer - shorter)
    deep = spirals()
    assert marginal_gain(deep, torch.zeros(10), None, 3)[0] > 100.0
    assert 0.0 <= marginal_gain(deep.flip(1), torch.zeros(10), None, 6)[0] < 0.5
    rows[0, :4] = -math.inf
    assert marginal_gain(rows, PRIOR, None, 4) == (math.inf, 0.0)


def test_the_error_of_a_worth_is_the_spread_of_tables() -> None:
    """Over tables, the gain of a better structure spreads as its standard error says."""
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(200):
        rows = torch.randn(300, 2, generator=generator, dtype=torch.float64) + torch.tensor([0.0, 0.5])
        found.append(marginal_gain(rows, torch.zeros(2), None, 1))
    gain, error = torch.tensor(found, dtype=torch.float64).T
    assert 0.85 < float(gain.std() / error.mean()) < 1.15  # three standard errors of a spread of 200


def test_single_reading_shares_between_equal_structures() -> None:
    """Two structures whose totals differ by 3 nats of noise: without the bootstrap the better would have 0.95."""
    rows = table(1_000, 2, noise=0.5)
    rows = rows - rows.mean(0)
    rows[:, 0] += 3.0 / 1_000
    q = pseudo_bma(rows, torch.zeros(2))
    assert float((rows.sum(0)).softmax(0)[0]) > 0.95
    assert 0.5 < float(q[0]) < 0.65
    assert torch.equal(pseudo_bma(rows, torch.zeros(2)), q)
    assert not torch.equal(pseudo_bma(rows, torch.zeros(2), seed=1), q)
    torch.testing.assert_close(
        pseudo_bma(rows[:, [0, 0]], torch.tensor([0.0, 3.0]).log1p()).cpu(), torch.tensor([0.2, 0.8]).double()
    )
    rows[:, 0] += 0.1
    assert float(pseudo_bma(rows, torch.zeros(2))[0]) > 0.99
    thrice = pseudo_bma(rows[:200], torch.zeros(2), torch.full((200,), 3.0))
    torch.testing.assert_close(thrice, pseudo_bma(rows[:200].repeat(3, 1), torch.zeros(2)), rtol=0.0, atol=0.04)


def test_any_dtype_is_taken_and_float64_returned() -> None:
    rows = table().float().requires_grad_()
    q = refit(rows, PRIOR.float(), torch.ones(120, dtype=torch.int64), start=PRIOR.float().softmax(0))
    torch.testing.assert_close(q, refit(rows.detach().double(), PRIOR), rtol=0.0, atol=1e-6)
    assert q.dtype == torch.float64
    assert not q.requires_grad


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: refit(x[0], PRIOR), r"log_density has shape \(6,\)"),
        (lambda x: refit(x, PRIOR[:3]), r"log_prior has shape \(3,\); \(6,\)"),
        (lambda x: refit(x, PRIOR * math.nan), "log_prior holds NaN"),
        (lambda x: refit(x, PRIOR, torch.ones(3)), r"weight has shape \(3,\)"),
        (lambda x: refit(x, PRIOR, -torch.ones(120)), "negative or not finite"),
        (lambda x: refit(x, PRIOR, start=-torch.ones(L)), "to start from is negative"),
        (lambda x: refit(x, PRIOR, start=torch.ones(2)), r"start has shape \(2,\)"),
        (lambda x: value(torch.ones(2), x, PRIOR), r"q has shape \(2,\)"),
        (lambda x: marginal_gain(x, PRIOR, None, 7), "shorter=7 was given; at most 6"),
        (lambda x: marginal_gain(x, PRIOR, None, 0), "shorter=0"),
        (lambda x: pseudo_bma(x, PRIOR, bootstraps=0), "bootstraps=0"),
        (lambda x: standard_errors(PRIOR.softmax(0), x, PRIOR, bootstraps=1), "bootstraps=1"),
        (lambda x: standard_errors(PRIOR.softmax(0), x, PRIOR, fold=torch.ones(3)), "folds or groups have shape"),
        (lambda x: fit_path(x, PRIOR, None, lambda rate: PRIOR.exp(), 2.0, 1.0), "low <= high"),
        (lambda x: fit_path(x, PRIOR, None, lambda rate: PRIOR[:2], 1.0, 2.0), r"law has shape \(2,\)"),
    ],
)
def test_bad_input_is_refused(call: Callable[[Tensor], object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        call(table())


@given(
    st.integers(1, 12),
    st.integers(1, 40),
    st.sampled_from([0.01, 1.0, 100.0]),
    st.sampled_from([0.1, 1.0, 1e4]),
    st.integers(0, 99),
)
def test_whatever_the_table_the_maximum_is_found(size: int, n: int, noise: float, heavy: float, seed: int) -> None:
    rows = table(n, size, noise, seed)
    prior = -0.5 * torch.arange(size, dtype=torch.float64)
    weight = heavy * torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q = refit(rows, prior, weight)
    assert float(q.sum()) == pytest.approx(1.0, abs=1e-12)
    assert left_to_gain(q, rows, prior, weight) <= 1e-8 + 1e-13 * float(weight.sum())
