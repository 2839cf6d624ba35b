"""Reading of censored targets, and their scale by maximum likelihood."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import optimize, stats

from fathomless.data.censoring import encode_bounds, fit_bounds, is_known, read_bounds
from fathomless.data.targets import TargetScale, fit_target
from fathomless.system.errors import DataError

INF = np.inf


@pytest.mark.parametrize(
    "kinds",
    [
        ["exact", "right", "none"],
        np.array(["exact", "Right", "exact"]),
        pd.Series(["exact", "right", "exact"], dtype="category"),
        pl.Series(["exact", "right", "exact"]),
        [False, True, False],
        np.array([0, 1, 0]),
        pd.Series([0.0, 1.0, 0.0]),
    ],
    ids=lambda kinds: type(kinds).__name__,
)
def test_kinds_of_rows(kinds):
    assert read_bounds([1.0, 2.0, 3.0], kinds).tolist() == [[1.0, 1.0], [2.0, INF], [3.0, 3.0]]


def test_intervals_with_open_ends():
    expected = [[1.0, 1.0], [2.0, INF], [-INF, 3.0], [0.0, 5.0]]
    gaps = [[1.0, 1.0], [2.0, np.nan], [np.nan, 3.0], [0.0, 5.0]]
    for y in (np.array(expected), gaps, pd.DataFrame(gaps), pl.DataFrame(np.array(gaps))):
        assert read_bounds(y, "interval").tolist() == expected
    assert is_known(np.array(expected)).tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    ("y", "censored", "message"),
    [
        ([1, 2], "right", "censored='right' was given; allowed are an array"),
        ([1, 2], ["exact", "maybe"], "censored has the value 'maybe' in 1 of 2 rows"),
        ([1, 2], [0, 2], "censored has the value 2 in 1 of 2 rows"),
        ([1, 2], [None, "right"], "censored is missing in 1 of 2 rows"),
        ([1, 2], pd.Series([pd.NA, True], dtype="boolean"), "censored is missing in 1 of 2 rows"),
        ([1, 2], ["right"], r"censored has shape \(1,\); give one value for each of the 2 rows"),
        ([[1, 2], [3, 4]], ["right", "right"], "censored was given with 2 columns of y"),
        ([1, np.inf], ["exact", "right"], "Input y contains infinity"),
        ([1, 2], "interval", "censored='interval' was given with 1 columns of y"),
        (pd.Series([1, 2]), "interval", "censored='interval' was given with 1 columns of y"),
        ([[2, 1], [1, 2]], "interval", "lower bound 2 and the upper bound 1 in 1 of 2 rows"),
        ([[INF, INF], [1, 2]], "interval", "lower bound inf"),
        ([[-INF, INF], [1, 2]], "interval", "y has no finite bound in 1 of 2 rows"),
        (pd.DataFrame({"a": ["x", "y"], "b": [1, 2]}), "interval", "y holds category values in column 'a'"),
    ],
)
def test_refusals(y, censored, message):
    with pytest.raises(DataError, match=message):
        read_bounds(y, censored)


def minus_log_likelihood(parameters, bounds, weight):
    mean, scale = parameters[0], np.exp(parameters[1])
    law = stats.norm(mean, scale)
    low, high = bounds.T
    with np.errstate(divide="ignore"):
        between = np.log(law.cdf(high) - law.cdf(low))
    rows = np.where(low == high, law.logpdf(low), np.where(np.isinf(high), law.logsf(low), between))
    return -float(weight @ rows)


def test_the_scale_maximises_the_likelihood_of_a_tobit_model():
    rng = np.random.default_rng(0)
    target, end = rng.normal(3.0, 2.0, 2000), rng.normal(4.0, 2.0, 2000)
    bounds = read_bounds(np.minimum(target, end), target > end)
    bounds[:300] = np.column_stack([np.floor(target[:300]), np.floor(target[:300]) + 1.0])
    bounds[300:500, 0] = -INF
    bounds[300:500, 1] = target[300:500] + rng.exponential(size=200)
    weight = rng.uniform(0.5, 2.0, 2000)
    found = fit_bounds(bounds, weight)
    best = optimize.minimize(minus_log_likelihood, [2.0, 0.3], (bounds, weight)).x
    assert found.mean[0] == pytest.approx(best[0], abs=2e-3)
    assert found.scale[0] == pytest.approx(np.exp(best[1]), rel=2e-3)
    assert abs(found.mean[0] - 3.0) < 0.25 < 3.0 - np.minimum(target, end).mean()


def test_known_targets_have_their_mean_and_deviation():
    y = np.random.default_rng(1).normal(size=50)
    found, plain = fit_bounds(np.column_stack([y, y])), fit_target(y)
    assert (*found.mean, *found.scale) == pytest.approx((*plain.mean, *plain.scale))


def test_scales_that_do_not_exist_are_refused():
    for bounds, side in (([[1.0, INF], [2.0, INF]], "right"), ([[-INF, 1.0], [-INF, 2.0]], "left")):
        with pytest.raises(DataError, match=f"all 2 targets are censored on the {side}"):
            fit_bounds(np.array(bounds))
    assert fit_bounds(np.array([[1.0, 1.0], [1.0, INF]])).scale == (1.0,)


def test_short_intervals_are_known_targets():
    target = TargetScale((1.0,), (2.0,), 1)
    z = encode_bounds(target, np.array([[3.0, 3.0], [3.0, INF], [-INF, 3.0], [3.0, 5.0], [3.0, 3.0 + 1e-7]]))
    assert z[:4].tolist() == [[1.0, 1.0], [1.0, INF], [-INF, 1.0], [1.0, 2.0]]
    assert z[4, 0] == z[4, 1] == pytest.approx(1.0, abs=1e-7)
    with pytest.raises(DataError, match="too far from the training mean"):
        encode_bounds(TargetScale((0.0,), (1e-300,), 1), np.array([[1e150, INF]]))
