"""The reference of ``doubt``: its sampler against a law that is known, its network against the family's own."""

import math

import pytest
import torch

from experiments import doubt
from fathomless.families.continuous.dynamics import MLPDynamics
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.processes import OrnsteinUhlenbeck
from fathomless.families.continuous.solve import PathInference
from fathomless.system.rng import as_generator


def test_the_sampler_has_the_moments_of_a_gaussian() -> None:
    """Two chains of a law with unlike scales and a correlation of 0.8."""
    covariance = torch.tensor([[1.0, 0.8, 0.0], [0.8, 1.0, 0.0], [0.0, 0.0, 0.04]]).double()
    mean = torch.tensor([1.0, -2.0, 0.5]).double()
    law = torch.distributions.MultivariateNormal(mean, covariance)
    start = torch.zeros(2, 3, dtype=torch.float64)
    found = doubt.sample_hamiltonian(law.log_prob, start, warm_up=150, kept=500, leapfrogs=8, generator=as_generator(0))
    assert 0.6 < found.acceptance < 0.95
    assert float(doubt.r_hat(found.points).max()) < 1.05
    points, effective = found.points.flatten(0, 1), 100.0  # far fewer than the 1,000 points
    error = 5.0 * covariance.diagonal().sqrt() / math.sqrt(effective)
    assert ((points.mean(0) - mean).abs() < error).all()
    assert ((points.T.cov() - covariance).abs() < 5.0 * error[:, None] * covariance.diagonal().sqrt()).all()


def test_chains_that_found_other_modes_are_told() -> None:
    apart = torch.randn(200, 2, 1, generator=as_generator(1)) + torch.tensor([0.0, 5.0])[:, None]
    assert float(doubt.r_hat(apart)) > 2.0


def test_the_sampled_network_is_that_of_the_family() -> None:
    """With the numbers that the family would draw, from a start without feedback and shift."""
    net = MLPDynamics(1, 1, width=3, hidden=(4,))
    model = ContinuousDepth(
        net, prior=OrnsteinUhlenbeck(0.3), weight_prior=1.0, options=PathInference(steps=4), dtype=torch.float64
    ).eval()
    x = torch.linspace(-1.0, 1.0, 5, dtype=torch.float64)[:, None]
    noise = as_generator(3)
    steps = [torch.randn(1, 2, model.moving, generator=noise, dtype=torch.float64) for _ in range(4)]
    start = model.mean[:, None].expand(-1, 2, -1).detach()
    with torch.no_grad():
        known = model.draw(x, 2, as_generator(3)).f[:, :, 0]
        assert doubt.prior_output(model, start, steps, x) == pytest.approx(known, abs=1e-12)
