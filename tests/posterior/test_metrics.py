import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from sklearn import metrics as sklearn_metrics

from fathomless.posterior import metrics
from fathomless.posterior.mixtures import Laplace, Mixture, Normal, StudentT
from fathomless.posterior.tabulated import TabulatedT, tabulate
from fathomless.system.errors import DataError


@pytest.fixture
def classified():
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(4), 300)
    return rng.integers(0, 4, 300), probs


def test_accuracy_matches_sklearn(classified):
    y, probs = classified
    expected = sklearn_metrics.accuracy_score(y, probs.argmax(1))
    assert metrics.accuracy(y, probs) == expected
    assert metrics.accuracy(y, probs.argmax(1)) == expected
    assert metrics.accuracy(torch.tensor(y), torch.tensor(probs)) == expected
    assert metrics.accuracy(["a", "b"], ["a", "c"]) == 0.5


def test_brier_matches_sklearn(classified):
    y, probs = classified
    expected = sklearn_metrics.brier_score_loss(y, probs, labels=range(4), scale_by_half=False)
    assert metrics.brier(y, probs) == pytest.approx(expected, rel=1e-12)
    two = np.stack([1 - probs[:, 0], probs[:, 0]], 1)
    expected = sklearn_metrics.brier_score_loss(y % 2, probs[:, 0])
    assert metrics.brier(y % 2, two) == pytest.approx(2 * expected, rel=1e-12)


def test_nll_matches_sklearn_log_loss(classified):
    y, probs = classified
    ours = metrics.nll(np.log(probs[np.arange(300), y]))
    assert ours == pytest.approx(sklearn_metrics.log_loss(y, probs), rel=1e-12)


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_calibration_error_matches_a_loop_over_bins(classified, bins):
    y, probs = classified
    top, hit = probs.max(1), probs.argmax(1) == y
    edges = np.linspace(0, 1, bins + 1)
    total = 0.0
    for low, high in itertools.pairwise(edges):
        inside = (low < top) & (top <= high)
        if inside.any():
            total += inside.mean() * abs(top[inside].mean() - hit[inside].mean())
    assert metrics.expected_calibration_error(y, probs, bins) == pytest.approx(total, rel=1e-12)
    confidence, accuracy, count = metrics.reliability(y, probs, bins)
    assert count.sum() == 300
    assert (count > 0).all()
    assert (np.diff(confidence) > 0).all()
    assert np.sum(accuracy * count) == pytest.approx(hit.sum())


def test_calibration_error_of_known_cases():
    sure = [[1.0, 0.0]] * 4
    assert metrics.expected_calibration_error([0, 0, 0, 0], sure) == 0.0
    assert metrics.expected_calibration_error([1, 1, 1, 1], sure) == 1.0
    assert metrics.expected_calibration_error([0, 0, 0, 1], [[0.75, 0.25]] * 4) == pytest.approx(0.0, abs=1e-15)


def test_rmse_matches_sklearn():
    rng = np.random.default_rng(1)
    y, mean = rng.normal(size=(2, 50, 1))
    assert metrics.rmse(y, mean) == pytest.approx(sklearn_metrics.root_mean_squared_error(y, mean), rel=1e-12)


def test_standard_error_matches_scipy():
    values = np.random.default_rng(2).normal(size=40)
    assert metrics.standard_error(values) == pytest.approx(stats.sem(values), rel=1e-12)


def test_paired_difference_matches_the_t_test():
    a, b = np.random.default_rng(3).normal(size=(2, 30))
    mean, error = metrics.paired_difference(a, b)
    assert mean == pytest.approx(np.mean(a) - np.mean(b))
    assert mean / error == pytest.approx(stats.ttest_rel(a, b).statistic, rel=1e-12)


def crps_by_integration(y: float, cdf) -> float:
    left, _ = integrate.quad(lambda t: cdf(t) ** 2, -60, y, limit=200)
    right, _ = integrate.quad(lambda t: (1 - cdf(t)) ** 2, y, 60, limit=200)
    return left + right


@pytest.mark.parametrize(("y", "mean", "std"), [(0.3, 0.0, 1.0), (-2.0, 1.0, 0.5), (4.0, 3.0, 2.5)])
def test_crps_of_a_gaussian_matches_its_definition(y, mean, std):
    expected = crps_by_integration(y, stats.norm(mean, std).cdf)
    assert metrics.crps_gaussian([y], [mean], [std])[0] == pytest.approx(expected, abs=1e-7)


def test_crps_of_a_mixture_matches_its_definition():
    weight, mean, std = np.array([0.2, 0.5, 0.3]), np.array([-2.0, 0.0, 3.0]), np.array([0.5, 1.0, 2.0])
    y = np.array([-3.0, 0.1, 5.0])
    ours = metrics.crps_normal_mixture(y, weight, np.tile(mean[:, None], 3), np.tile(std[:, None], 3))
    mixture = Mixture(torch.tensor(weight).log(), Normal(torch.tensor(mean), torch.tensor(std)))
    expected = [crps_by_integration(v, lambda t: mixture.cdf(t).item()) for v in y]
    np.testing.assert_allclose(ours, expected, atol=1e-6)


def test_crps_of_a_mixture_of_one_is_that_of_the_gaussian():
    y, mean = np.random.default_rng(4).normal(size=(2, 6, 2))
    ours = metrics.crps_normal_mixture(y, [1.0], mean[None], np.full((1, 6, 2), 0.7))
    np.testing.assert_allclose(ours, metrics.crps_gaussian(y, mean, np.full((6, 2), 0.7)), rtol=1e-12)


@pytest.mark.parametrize("y", [0.3, -4.0])
@pytest.mark.parametrize("df", [1.5, 2.1, 5.0, 1e6])
def test_crps_of_student_s_law_matches_its_definition(y, df):
    law = stats.t(df, loc=1.0, scale=0.5)
    left, _ = integrate.quad(lambda t: law.cdf(t) ** 2, -np.inf, y, limit=400)
    right, _ = integrate.quad(lambda t: law.sf(t) ** 2, y, np.inf, limit=400)
    ours = metrics.crps_student([y], [1.0], [0.5], [df])[0]
    assert ours == pytest.approx(left + right, rel=1e-6)
    if df == 1e6:
        assert ours == pytest.approx(metrics.crps_gaussian([y], [1.0], [0.5])[0], rel=1e-5)


def test_crps_of_laplace_mixtures_matches_its_definition():
    rng = np.random.default_rng(0)
    loc, scale = rng.normal(size=(4, 5)), np.exp(rng.normal(size=(4, 5)))
    scale[1] = scale[0] * np.array([1.0, 1.0 + 1e-12, 1.0 + 1e-8, 1.0 - 1e-5, 1.1])  # (almost) equal scales
    weight, y = rng.dirichlet(np.ones(4), 5).T, rng.normal(size=5)
    ours = metrics.crps_laplace_mixture(y, weight, loc, scale)
    for j in range(5):
        cdf = partial(lambda t, j: weight[:, j] @ stats.laplace.cdf(t, loc[:, j], scale[:, j]), j=j)
        assert ours[j] == pytest.approx(crps_by_integration(y[j], cdf), rel=1e-6)
    one = metrics.crps_laplace(y, loc[0], scale[0])
    np.testing.assert_allclose(metrics.crps_laplace_mixture(y, [1.0], loc[:1], scale[:1]), one, rtol=1e-12)
    far = metrics.crps_laplace_mixture([0.0], [0.5, 0.5], [[-1e3], [1e3]], [[1e-3], [1.0]])  # exponentials underflow
    assert far[0] == pytest.approx(500.0 - 0.125 * 0.75 * 1.001 * 2, rel=1e-6)


def test_crps_with_weights_of_each_row_is_that_of_each_row():
    rng = np.random.default_rng(1)
    mean, std, y = rng.normal(size=(3, 6)), np.exp(rng.normal(size=(3, 6))), rng.normal(size=6)
    weight = rng.dirichlet(np.ones(3), 6).T
    for score in (metrics.crps_normal_mixture, metrics.crps_laplace_mixture):
        one = [score(y[j], weight[:, j], mean[:, j], std[:, j]) for j in range(6)]
        np.testing.assert_allclose(score(y, weight, mean, std), one, rtol=1e-12)


@pytest.mark.parametrize(
    ("draws", "apart", "sizes", "one", "all_"),
    [
        (1, 0.0, 0.0, 1e-4, 1e-5),
        (20, 0.5, 0.3, 1e-4, 1e-5),
        (3, 10.0, 1.5, 0.05, 1e-3),  # distant, narrow modes
    ],
)
def test_crps_by_quadrature_matches_the_exact_one(draws, apart, sizes, one, all_):
    rng = np.random.default_rng(2)
    loc, scale = apart * rng.normal(size=(draws, 400)), np.exp(sizes * rng.normal(size=(draws, 400)))
    weight = rng.dirichlet(np.ones(draws))
    for family, exact in ((Normal, metrics.crps_normal_mixture), (Laplace, metrics.crps_laplace_mixture)):
        law = Mixture(np.log(weight), family(loc, scale))
        y = law.sample(1, torch.Generator().manual_seed(0))[0].numpy()
        y[:2] = loc.min() - 50.0, loc.max() + 50.0  # beyond all quantiles
        ours, expected = metrics.crps_law(y, law), exact(y, weight, loc, scale)
        np.testing.assert_allclose(ours, expected, rtol=one)
        assert ours.mean() == pytest.approx(expected.mean(), rel=all_)


@pytest.mark.parametrize("df", [2.05, 5.0, 1e6])
def test_crps_by_quadrature_with_a_tabulated_distribution_function(df):
    n = 20_000
    law = Mixture(np.zeros(1), StudentT(np.zeros((1, n)), np.full((1, n), 2.0), df))
    table = tabulate(law)
    assert isinstance(table.component, TabulatedT)
    y = law.sample(1, torch.Generator().manual_seed(0))[0]
    y[:2] = torch.tensor([-1e20, 1e20])
    np.testing.assert_allclose(table.cdf(y), law.cdf(y), atol=1e-8)
    assert table.icdf(0.05)[0].item() == pytest.approx(2.0 * stats.t.ppf(0.05, df), rel=1e-7)
    exact = metrics.crps_student(y, np.zeros(n), np.full(n, 2.0), np.full(n, df))
    np.testing.assert_allclose(metrics.crps_law(y, table), exact, rtol=1e-4)


def test_only_large_mixtures_of_one_student_s_law_have_a_table():
    loc = np.zeros((2, 20_000))
    for law in (StudentT(loc[:, :5], 1.0, 5.0), StudentT(loc, 1.0, [[5.0], [6.0]]), Normal(loc, 1.0)):
        mixture = Mixture(np.zeros(2), law)
        assert tabulate(mixture) is mixture


def test_the_interval_score_is_the_sum_of_two_quantile_losses():
    rng = np.random.default_rng(3)
    y, ends = 2.0 * rng.normal(size=50), np.sort(rng.normal(size=(2, 50)), 0)
    loss = sum(sklearn_metrics.mean_pinball_loss(y, q, alpha=p) for q, p in zip(ends, (0.1, 0.9), strict=True))
    ours = metrics.interval_score(y, *ends, 0.8)
    assert ours.mean() == pytest.approx(2.0 / 0.2 * loss, rel=1e-12)
    assert metrics.interval_score([0.0], [0.0], [1.0], 0.5)[0] == 1.0


def test_groups_are_compared_as_in_scipy_and_weights_repeat_rows():
    rng = np.random.default_rng(4)
    values, group = rng.normal(size=90).round(1), rng.integers(0, 4, 90)
    parts = [values[group == k] for k in range(4)]
    assert metrics.kruskal_wallis(values, group) == pytest.approx(stats.kruskal(*parts).pvalue, rel=1e-9)
    weight = rng.integers(1, 4, 90)
    repeated = metrics.kruskal_wallis(np.repeat(values, weight), np.repeat(group, weight))
    assert metrics.kruskal_wallis(values, group, weight) == pytest.approx(repeated, rel=1e-9)
    assert metrics.kruskal_wallis(np.ones(5), [0, 0, 1, 1, 1]) == 1.0


def test_normal_scores_are_bounded():
    found = metrics.normal_scores([0.0, 0.05, 0.5, 1.0])
    np.testing.assert_allclose(found, [-8.0, stats.norm.ppf(0.05), 0.0, 8.0], rtol=1e-12)


def test_crps_from_samples_matches_all_pairs():
    rng = np.random.default_rng(5)
    y, x = rng.normal(size=3), rng.normal(size=(8, 3))
    pairs = np.abs(x[:, None] - x[None]).sum((0, 1)) / (8 * 7)
    np.testing.assert_allclose(metrics.crps_samples(y, x), np.abs(x - y).mean(0) - 0.5 * pairs, rtol=1e-12)


def test_crps_from_few_samples_is_unbiased():
    rng = np.random.default_rng(6)
    y = np.full(40_000, 0.4)
    ours = metrics.crps_samples(y, rng.normal(size=(3, 40_000)))
    expected = metrics.crps_gaussian([0.4], [0.0], [1.0])[0]
    assert abs(ours.mean() - expected) < 4.5 * metrics.standard_error(ours)


def test_coverage_of_gaussian_intervals_is_their_level():
    y = np.random.default_rng(7).normal(size=20_000)
    low, high = (np.full_like(y, q) for q in stats.norm.interval(0.8))
    assert abs(metrics.coverage(y, low, high) - 0.8) < 4.5 * math.sqrt(0.16 / 20_000)
    assert metrics.coverage([0.0, 1.0, 2.0], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0]) == pytest.approx(2 / 3)


def test_pit_uniformity_matches_the_kolmogorov_smirnov_distance():
    u = np.random.default_rng(8).beta(2, 3, 200)
    assert metrics.pit_uniformity(u) == pytest.approx(stats.kstest(u, "uniform").statistic, rel=1e-12)
    assert np.array_equal(metrics.pit(u), np.sort(u))
    assert metrics.pit_uniformity([0.5]) == 0.5


def test_hellinger_of_known_distributions():
    assert metrics.hellinger([1.0, 0.0], [0.0, 1.0]) == 1.0
    assert metrics.hellinger([0.3, 0.7], [0.3, 0.7]) == 0.0
    p, q = np.random.default_rng(9).dirichlet(np.ones(5), (2, 7))
    affinity = np.sqrt(p * q).sum(-1)
    np.testing.assert_allclose(metrics.hellinger(p, q), np.sqrt(1 - affinity), rtol=1e-10)


@settings(max_examples=50, deadline=None)
@given(
    outside=st.lists(st.integers(-3, 3), min_size=1, max_size=20),
    inside=st.lists(st.integers(-3, 3), min_size=1, max_size=20),
)
def test_auroc_matches_sklearn_with_ties(outside, inside):
    truth = [1] * len(outside) + [0] * len(inside)
    expected = sklearn_metrics.roc_auc_score(truth, outside + inside)
    assert metrics.auroc(outside, inside) == pytest.approx(expected, abs=1e-12)


def test_tensors_of_any_precision_are_taken():
    assert metrics.rmse(torch.zeros(3, dtype=torch.bfloat16), torch.ones(3, requires_grad=True)) == 1.0
    assert metrics.accuracy(torch.tensor([1, 0]), torch.tensor([[0.1, 0.9], [0.2, 0.8]])) == 0.5


@pytest.mark.parametrize(
    "call",
    [
        lambda: metrics.accuracy([0, 1], [0, 1, 1]),
        lambda: metrics.accuracy([0], [[0.5, 0.4]]),
        lambda: metrics.accuracy([], []),
        lambda: metrics.brier([0, 1], [[0.5, 0.5]]),
        lambda: metrics.brier([2], [[0.5, 0.5]]),
        lambda: metrics.brier([-1], [[0.5, 0.5]]),
        lambda: metrics.brier([0.5], [[0.5, 0.5]]),
        lambda: metrics.brier([0], [[1.5, -0.5]]),
        lambda: metrics.brier([0], [0.5]),
        lambda: metrics.expected_calibration_error([0], [[0.5, 0.5]], bins=0),
        lambda: metrics.reliability([0], [[0.5, math.nan]]),
        lambda: metrics.nll([]),
        lambda: metrics.nll([math.nan]),
        lambda: metrics.rmse([0.0, 1.0], [[0.0], [1.0]]),
        lambda: metrics.standard_error([1.0]),
        lambda: metrics.paired_difference([1.0, 2.0], [1.0]),
        lambda: metrics.crps_gaussian([0.0], [0.0], [0.0]),
        lambda: metrics.crps_gaussian([0.0], [0.0, 1.0], [1.0, 1.0]),
        lambda: metrics.crps_normal_mixture([0.0], [0.5, 0.4], [[0.0], [0.0]], [[1.0], [1.0]]),
        lambda: metrics.crps_normal_mixture([0.0], [1.0], [[0.0], [0.0]], [[1.0], [1.0]]),
        lambda: metrics.crps_normal_mixture([0.0], [[0.5], [0.4]], [[0.0], [0.0]], [[1.0], [1.0]]),
        lambda: metrics.crps_laplace([0.0], [0.0], [-1.0]),
        lambda: metrics.crps_laplace_mixture([0.0], [1.0], [[0.0]], [[0.0]]),
        lambda: metrics.crps_student([0.0], [0.0], [1.0], [1.0]),
        lambda: metrics.interval_score([0.0], [1.0], [0.0], 0.9),
        lambda: metrics.interval_score([0.0], [0.0], [1.0], 1.0),
        lambda: metrics.kruskal_wallis([0.0, 1.0], [1, 1]),
        lambda: metrics.kruskal_wallis([0.0, 1.0], [1, 2], [0.0, 1.0]),
        lambda: metrics.normal_scores([1.5]),
        lambda: metrics.crps_samples([0.0], [[0.0]]),
        lambda: metrics.crps_samples([0.0, 1.0], [[0.0], [1.0]]),
        lambda: metrics.coverage([0.0], [1.0], [0.0]),
        lambda: metrics.pit([0.5, 1.1]),
        lambda: metrics.pit_uniformity([-0.1]),
        lambda: metrics.hellinger([0.5, 0.4], [0.5, 0.5]),
        lambda: metrics.hellinger([1.0], [0.5, 0.5]),
        lambda: metrics.auroc([], [1.0]),
        lambda: metrics.auroc([1.0], [math.nan]),
    ],
)
def test_bad_input_is_refused(call):
    with pytest.raises(DataError):
        call()
