"""Given networks with a posterior over their weights."""

import copy

import pytest
import torch
from torch import nn

from fathomless.families import pytorch
from fathomless.families.pytorch import Categorical, Gaussian, Rows, Training, bayesian_network, fit, predictive
from fathomless.system.errors import DataError


def test_one_weight_has_the_posterior_of_linear_regression() -> None:
    """q(w) = N(m, s²) with 1/s² = Σx²/σ² + 1 and m = s² Σxy/σ²."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 1, generator=generator)
    y = 0.7 * x + 0.5 * torch.randn(40, 1, generator=generator)
    network = nn.Linear(1, 1, bias=False)
    model = bayesian_network(network)
    training = Training(epochs=1500, batch_size=40, learning_rate=0.02, draws=16)
    fit(model, Gaussian(noise=0.5), Rows(x, y), training=training, seed=0)
    variance = 1.0 / (x.square().sum() / 0.25 + 1.0)
    layer = model.layers["1"]
    mean, scale = layer.module.weight.item(), layer.log_scale[0].exp().item()
    assert mean == pytest.approx((variance * (x * y).sum() / 0.25).item(), abs=0.1 * variance.sqrt().item())
    assert scale == pytest.approx(variance.sqrt().item(), rel=0.1)


@pytest.mark.parametrize("weights", ["map", "meanfield", "matrix", "sparse"])
def test_a_network_is_copied_and_predicts_with_each_posterior(weights: str) -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    before = copy.deepcopy(network.state_dict())
    model = bayesian_network(network, weights, weight_scale=1e-4)
    x, y = torch.randn(30, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    likelihood = Categorical(3)
    if weights in ("map", "meanfield", "matrix"):  # the initial means are the given weights
        f = model.eval().draw(x, 1, torch.Generator().manual_seed(0)).f[0]
        torch.testing.assert_close(f, network(x), atol=0.02, rtol=0.0)
    fit(model, likelihood, Rows(x, y), training=Training(epochs=2), seed=0)
    with torch.no_grad():
        dist = predictive(model.eval()(x, 8, torch.Generator().manual_seed(0)), likelihood)
    assert dist.probs.shape == (30, 3)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    parts = dist.uncertainty()
    assert bool((parts.total - parts.noise > 1e-9).any()) == (weights != "map")


def test_frozen_weights_stay() -> None:
    network = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    network[0].requires_grad_(False)
    model = bayesian_network(network)
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    fit(model, Gaussian(), Rows(x, x[:, :1]), training=Training(epochs=3), seed=0)
    own = model.layers["1"].module
    assert torch.equal(own[0].weight, network[0].weight)
    assert not torch.equal(own[2].weight, network[2].weight)


def test_an_unknown_posterior_is_refused() -> None:
    with pytest.raises(DataError, match="weights='flat' was given"):
        bayesian_network(nn.Linear(1, 1), "flat")


def test_the_names_of_the_interface_exist() -> None:
    assert all(hasattr(pytorch, name) for name in pytorch.__all__)
    assert sorted(pytorch.__all__) == sorted(set(pytorch.__all__))
