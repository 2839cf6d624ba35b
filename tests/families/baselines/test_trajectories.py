"""Gradient descent at a constant rate, SWAG and subspaces: laws of linear models, moments, and errors."""

import pytest
import torch
from torch import Tensor, nn

from fathomless.data.rows import Rows
from fathomless.families.baselines.trajectories import choose_constant_rate, collect_iterates, draw_subspace, draw_swag
from fathomless.nn.flat import flatten
from fathomless.posterior.likelihoods import Gaussian
from fathomless.system.errors import DivergenceError

F64 = torch.float64
SCALE = torch.tensor([0.8, 1.2, 0.5], dtype=F64)
NOISE = 0.9


def linear(rows: int = 16, weighed: bool = False) -> tuple[nn.Linear, Gaussian, Rows, Tensor]:
    """Two columns and a constant; the features (N, 3) in the order of the weights."""
    g = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 2, generator=g, dtype=F64)
    y = x @ torch.tensor([[1.0], [-0.5]], dtype=F64) + 0.3 + NOISE * torch.randn(rows, 1, generator=g, dtype=F64)
    weight = torch.arange(rows, dtype=F64) % 3 + 1.0 if weighed else None
    features = torch.cat([x, torch.ones(rows, 1, dtype=F64)], 1)
    return nn.Linear(2, 1).to(F64), Gaussian(noise=NOISE).double().requires_grad_(False), Rows(x, y, weight), features


def share(rows: Rows) -> Tensor:
    weight = torch.ones(len(rows), dtype=F64) if rows.weight is None else rows.weight
    return weight / weight.sum()


def curvature(rows: Rows, features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the Hessian (N, 3, 3) and the negative gradient at θ = 0 (N, 3) of each row."""
    each = features[:, :, None] * features[:, None] / NOISE**2 + torch.diag(1.0 / SCALE.square()) / rows.count
    return each, features * rows.y / NOISE**2


@pytest.mark.parametrize("weighed", [False, True])
def test_iterates_have_the_stationary_law_of_a_linear_model(weighed: bool) -> None:
    """Its mean is the mode, its covariance solves the recursion of second moments, which is linear."""
    network, likelihood, rows, features = linear(weighed=weighed)
    hessians, right = curvature(rows, features)
    p, batch, rate = share(rows), 4, 0.1
    hessian = torch.einsum("n,nij->ij", p, hessians)
    mode = torch.linalg.solve(hessian, p @ right)
    slopes = hessians @ mode - right
    noise = torch.einsum("n,ni,nj->ij", p, slopes, slopes) / batch
    step = torch.eye(3, dtype=F64) - rate * hessian
    second = torch.einsum("n,nij,nkl->ikjl", p, hessians, hessians).reshape(9, 9) - torch.kron(hessian, hessian)
    moments = torch.kron(step, step) + rate**2 / batch * second
    covariance = torch.linalg.solve(torch.eye(9, dtype=F64) - moments, rate**2 * noise.flatten()).view(3, 3)

    found = collect_iterates(network, likelihood, rows, SCALE, rate=rate, batch=batch, passes=1600, seed=1)
    assert found.shape == (1200, 3)
    # a pass is four steps: the slowest direction forgets in as many passes as this
    forgets = 1.0 / (1.0 - float(torch.linalg.eigvalsh(step).max()) ** 4)
    effective = len(found) / (2.0 * forgets)
    error = (covariance.diagonal() / effective).sqrt()
    assert bool(((found.mean(0) - mode).abs() < 5.0 * error).all())
    variances = covariance.diagonal()
    spread = ((variances[:, None] * variances + covariance.square()) / effective).sqrt()
    assert bool(((found.T.cov() - covariance).abs() < 5.0 * spread).all())


def test_the_rate_is_the_best_one_and_stays_stable() -> None:
    network, likelihood, rows, features = linear()
    hessians, right = curvature(rows, features)
    theta = flatten(network).detach()
    slopes = hessians @ theta - right
    spread = slopes.T.cov(correction=0).trace()
    greatest = torch.linalg.eigvalsh(hessians.mean(0)).max()
    for batch in (1, 4, 1000):
        truth = min(2.0 * batch / 16 * 3 / float(spread), 1.0 / float(greatest))
        assert choose_constant_rate(network, likelihood, rows, SCALE, batch, seed=0) == pytest.approx(truth, rel=1e-3)


@pytest.mark.parametrize("weighed", [False, True])
def test_a_subspace_of_all_weights_has_the_posterior_of_a_linear_model(weighed: bool) -> None:
    network, likelihood, rows, features = linear(weighed=weighed)
    weight = share(rows) * rows.count
    precision = features.T @ (weight[:, None] * features) / NOISE**2 + torch.diag(1.0 / SCALE.square())
    covariance = torch.linalg.inv(precision)
    mean = covariance @ (features.T @ (weight * rows.y[:, 0])) / NOISE**2
    points = torch.randn(12, 3, generator=torch.Generator().manual_seed(2), dtype=F64)
    g = torch.Generator().manual_seed(4)
    drawn = draw_subspace(network, likelihood, rows, SCALE, points, 3, 3000, g)
    assert drawn.shape == (3000, 3)
    effective = len(drawn) / 8  # chains that are kept every fourth step
    assert bool(((drawn.mean(0) - mean).abs() < 5.0 * (covariance.diagonal() / effective).sqrt()).all())
    variances = covariance.diagonal()
    spread = ((variances[:, None] * variances + covariance.square()) / effective).sqrt()
    assert bool(((drawn.T.cov() - covariance).abs() < 5.0 * spread).all())


def test_a_subspace_contains_the_mean_and_the_first_components_of_iterates() -> None:
    network, likelihood, rows, _ = linear()
    g = torch.Generator().manual_seed(5)
    points = torch.randn(30, 3, generator=g, dtype=F64) * torch.tensor([3.0, 0.3, 0.01], dtype=F64)
    drawn = draw_subspace(network, likelihood, rows, SCALE, points, 1, 50, g)
    axes = torch.linalg.svd(points - points.mean(0), full_matrices=False)[2]
    off = (drawn - points.mean(0)) @ axes[1:].T
    assert float(off.abs().max()) < 1e-12
    assert float(((drawn - points.mean(0)) @ axes[0]).std()) > 0.01


def test_swag_has_the_moments_of_its_iterates() -> None:
    """Half of their variances on the diagonal, half of the covariance of the last deviations from the running mean."""
    points = torch.randn(9, 4, generator=torch.Generator().manual_seed(6), dtype=F64) * torch.arange(1.0, 5.0)
    rank, n = 5, 200_000
    deviations = torch.stack([points[i] - points[: i + 1].mean(0) for i in range(9)])[-rank:]
    truth = 0.5 * torch.diag(points.var(0, correction=0)) + 0.5 * deviations.T @ deviations / (rank - 1)
    drawn = draw_swag(points, rank, n, torch.Generator().manual_seed(7))
    variances = truth.diagonal()
    error = ((variances[:, None] * variances + truth.square()) / n).sqrt()
    assert bool(((drawn.T.cov() - truth).abs() < 5.0 * error).all())
    assert bool(((drawn.mean(0) - points.mean(0)).abs() < 5.0 * (variances / n).sqrt()).all())


def test_descent_that_leaves_all_bounds_is_told() -> None:
    network, likelihood, rows, _ = linear()
    with pytest.raises(DivergenceError, match="constant rate 1e\\+04 diverged"):
        collect_iterates(network, likelihood, rows, SCALE, rate=1e4, batch=4, passes=200, seed=0)
