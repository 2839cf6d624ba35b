"""The search for a transform: leave-one-out densities by refitting, and planted skew."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist

from fathomless.inference.out_of_fold.transforms import leave_one_out, list_transforms, propose_transform

CPU = torch.device("cpu")


def plant(rows, seed, law="normal"):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2.0, 2.0, (rows, 3))
    t = np.sin(1.5 * X[:, 0]) + 0.5 * X[:, 1] + 0.5 * rng.normal(size=rows)
    y = {"normal": t, "log_normal": np.exp(t), "mirrored": 7.0 - np.exp(t)}[law]
    return torch.tensor(X, device=CPU), torch.tensor(y, device=CPU)


def refit(X, y):
    """Return the log density of each row by processes fitted to the other rows, with the best covariance."""
    n = len(y)
    Z = (X - X.mean(0)) / X.std(0)
    linear = Z @ Z.T / X.shape[1] + 1.0
    squares = cdist(Z, Z) ** 2
    median = np.sort(squares[squares > 0.0])[(np.sum(squares > 0.0) - 1) // 2]
    kernels = [linear, *(0.5 * linear + np.exp(-0.5 * squares / (f * median)) for f in (0.25, 1.0, 4.0))]
    y = y - y.mean()
    best = np.full(n, -np.inf)
    for kernel in kernels:
        for noise in np.logspace(-3.0, 1.5, 12):
            mean, variance = np.empty(n), np.empty(n)
            for i in range(n):
                rest = np.arange(n) != i
                K = kernel[np.ix_(rest, rest)] + noise * np.eye(n - 1)
                weights = np.linalg.solve(K, kernel[rest, i])
                mean[i] = weights @ y[rest]
                variance[i] = kernel[i, i] + noise - weights @ kernel[rest, i]
            scale = np.mean((y - mean) ** 2 / variance)
            density = -0.5 * ((y - mean) ** 2 / (scale * variance) + np.log(2.0 * np.pi * scale * variance))
            best = density if density.mean() > best.mean() else best
    return best


def test_leave_one_out_densities_are_those_of_refits():
    X, y = plant(12, 0)
    share = torch.full((12,), 1.0 / 12.0, dtype=torch.float64, device=CPU)
    both = leave_one_out(X, torch.stack([y, y.square()], 1), share)
    for column, target in zip(both.T, (y, y.square()), strict=True):
        assert column.numpy() == pytest.approx(refit(X.numpy(), target.numpy()), rel=1e-6)


@pytest.mark.parametrize(("law", "sign"), [("log_normal", 1.0), ("mirrored", -1.0)])
def test_a_planted_logarithm_is_proposed_with_its_direction(law, sign):
    for seed in range(3):
        X, y = plant(100, seed, law)
        found = propose_transform(X, y)
        assert found is not None
        assert found.transform.sign == sign
        assert found.gain > 0.3
        t = sign * found.transform.transform(y)
        truth = torch.log(y if sign > 0.0 else 7.0 - y)
        assert torch.corrcoef(torch.stack([t, truth]))[0, 1] > 0.97


def test_no_transform_is_proposed_for_gaussian_noise():
    found = [propose_transform(*plant(80, seed)) for seed in range(40)]
    assert sum(each is not None for each in found) <= 1


def test_a_weight_of_two_counts_as_a_copy_in_the_average():
    X, y = plant(60, 1, "log_normal")
    weight = torch.ones(60, dtype=torch.float64, device=CPU)
    even, doubled = propose_transform(X, y), propose_transform(X, y, 2.0 * weight)
    assert even is not None
    assert doubled is not None
    assert doubled.transform == even.transform
    assert doubled.gain == pytest.approx(even.gain, rel=1e-9)


def test_few_many_and_constant_rows_have_no_proposal():
    X, y = plant(1200, 0, "log_normal")
    assert propose_transform(X[:29], y[:29]) is None
    assert propose_transform(X, y) is None
    assert propose_transform(X[:50], torch.ones_like(y[:50])) is None


def test_columns_without_spread_and_no_columns_are_allowed():
    _, y = plant(60, 0, "log_normal")
    for X in (torch.ones(60, 2, dtype=torch.float64, device=CPU), torch.zeros(60, 0, dtype=torch.float64, device=CPU)):
        found = propose_transform(X, y)
        assert found is not None
        assert math.isfinite(found.gain)


def test_transforms_begin_at_the_extreme_values():
    y = torch.tensor([1.0, 2.0, 4.0, 9.0], dtype=torch.float64, device=CPU)
    transforms = list_transforms(y)
    assert {(each.threshold, each.sign) for each in transforms} == {(1.0, 1.0), (9.0, -1.0)}
    for each in transforms:
        farthest = each.invert_limited(
            torch.tensor(each.sign * 1e3, dtype=torch.float64, device=CPU), math.log1p(each.limit)
        )
        assert farthest.item() == pytest.approx(each.threshold + each.sign * 16.0)  # twice the range of the rows
