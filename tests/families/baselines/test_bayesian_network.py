"""Given networks with a posterior over their weights."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from fathomless.families import pytorch
from fathomless.families.pytorch import (
    Categorical,
    Gaussian,
    Rows,
    SpikeSlab,
    Training,
    bayesian_network,
    fit,
    predictive,
    weight_moments,
)
from fathomless.nn.bayesian import bayesian
from fathomless.nn.layers import MeanField
from fathomless.nn.matrix_normal import MatrixNormal
from fathomless.nn.multiplicative_flow import FlowOptions
from fathomless.system.errors import DataError, DataWarning


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


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_the_row_for_padding_is_neither_drawn_nor_trained(value: float) -> None:
    embedding = nn.Embedding(5, 3, padding_idx=2)
    with torch.no_grad():
        embedding.weight[2] = value
    network = nn.Sequential(embedding, nn.Flatten(), nn.Linear(6, 1))
    model = bayesian_network(network, weight_scale=0.3)
    x = torch.randint(0, 5, (60, 2), generator=torch.Generator().manual_seed(0))
    y = (x == 1).float().sum(1, keepdim=True)
    fit(model, Gaussian(), Rows(x, y), training=Training(epochs=20), seed=0)
    layer = model.eval().layers["1"]
    assert torch.equal(layer.module[0].weight[2], torch.full((3,), value))
    moments = weight_moments(layer)
    assert moments["0.weight"].std[2].tolist() == [0.0, 0.0, 0.0]
    assert moments["0.weight"].std[[0, 1, 3, 4]].min() > 0.0
    without = nn.Sequential(nn.Embedding(5, 3, padding_idx=2))
    _, whole = MeanField(nn.Embedding(5, 3), initial_scale=0.5)(x)
    with torch.no_grad():
        without[0].weight.zero_()
    drawn, divergence = MeanField(without, initial_scale=0.5)(torch.full((4, 2), 2))
    assert torch.equal(drawn, torch.zeros(4, 2, 3))
    expected = 4 * 3 * 0.5 * (0.25 - 1.0 - math.log(0.25))  # of four rows of five
    assert divergence.item() == pytest.approx(expected, rel=1e-6) != whole.item()


@pytest.mark.parametrize("weights", ["map", "meanfield", "matrix", "sparse"])
def test_moments_have_the_names_and_shapes_of_the_network(weights: str) -> None:
    network = nn.Sequential(nn.Conv1d(2, 3, 2), nn.Flatten(), nn.Linear(6, 2))
    model = bayesian_network(network, weights)
    moments = weight_moments(model.layers["1"])
    assert {name: m.shape for name, (m, _) in moments.items()} == {n: p.shape for n, p in network.named_parameters()}
    assert all(bool((std > 0.0).all()) == (weights != "map") for _, std in moments.values())
    assert list(weight_moments(model)) == [f"layers.1.{name}" for name in moments]


@pytest.mark.parametrize("kind", [MeanField, MatrixNormal, SpikeSlab])
def test_moments_are_those_of_draws(kind: Any) -> None:
    layer = kind(nn.Linear(6, 2)).double().eval()
    torch.manual_seed(0)
    for p in layer.parameters():
        p.data += 0.5 * torch.randn_like(p)
    generator, x = torch.Generator().manual_seed(1), torch.cat([torch.zeros(1, 6), torch.eye(6)]).double()
    with torch.no_grad():
        f = torch.stack([layer(x, generator)[0] for _ in range(4000)])  # (S, 7, 2)
    draws = {"bias": f[:, 0], "weight": (f[:, 1:] - f[:, :1]).mT}
    for name, (mean, std) in weight_moments(layer).items():
        assert bool(((draws[name].mean(0) - mean).abs() <= 5.0 * std / math.sqrt(4000)).all())
        assert bool(((draws[name].std(0) / std - 1.0).abs() < 0.15).all())


def test_weights_with_flows_have_no_moments() -> None:
    layer = bayesian(nn.Linear(2, 1), lambda _, part: SpikeSlab(part, multiplier=FlowOptions()))
    with pytest.raises(DataError, match="has a normalising flow, whose weights have no moments in closed form"):
        weight_moments(layer)


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


class Recurrent(nn.Module):
    """A recurrent layer, a normalisation and a linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.norm, self.out = nn.LSTM(2, 4, batch_first=True), nn.LayerNorm(4), nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(self.norm(self.cell(x)[0][:, -1]))
        return y


@pytest.mark.parametrize("weights", ["matrix", "sparse"])
def test_parameters_without_a_posterior_are_named(weights: str) -> None:
    with pytest.warns(DataWarning, match=r"128 parameters of cell keep point estimates"):
        bayesian_network(Recurrent(), weights)
    bayesian_network(Recurrent(), "meanfield")  # without a warning, as networks of linear maps and normalisations
    bayesian_network(nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Linear(4, 1)), weights)


def test_the_data_type_is_that_of_the_network() -> None:
    assert bayesian_network(nn.Linear(2, 1).double()).dtype == torch.float64
    assert bayesian_network(nn.Linear(2, 1).double(), dtype=torch.float32).dtype == torch.float32


def test_some_layers_are_bayesian() -> None:
    network = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
    last = bayesian(network, lambda name, layer: MeanField(layer) if name == "2" else None)
    model = bayesian_network(last, "map")
    draws = model.draw(torch.randn(6, 2), 3, torch.Generator().manual_seed(0))
    assert draws.f.std(0).min() > 0.0
    assert draws.divergence["weights"].detach().sum() > 0.0


@pytest.mark.parametrize("name", ["prior", "prior_inclusion", "law"])
def test_other_options_are_refused(name: str) -> None:
    with pytest.raises(DataError, match=f"{name} was given; allowed options are weight_prior"):
        bayesian_network(nn.Linear(2, 1), **{name: 1.0})


def test_other_weights_of_a_bayesian_module_need_point_estimates() -> None:
    inside = bayesian(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1)))
    for weights in ("meanfield", "matrix", "sparse"):
        with pytest.raises(DataError, match="for a Bayesian, which has posteriors of its own; give weights='map'"):
            bayesian_network(inside, weights)
    assert bayesian_network(inside, "map").stochastic


@pytest.mark.parametrize("n", [0, -1, 1.5, torch.zeros(2)])
def test_numbers_of_draws_that_are_none_are_refused(n: Any) -> None:
    with pytest.raises(DataError, match=r"n=.* was given; at least 1 is needed, a whole number"):
        bayesian_network(nn.Linear(2, 1))(torch.zeros(5, 2), n)


def test_a_calibrated_noise_is_loaded_into_a_new_likelihood() -> None:
    noise = Gaussian(noise="input")
    noise.add_factor(torch.zeros(5, 1))
    with torch.no_grad():
        noise.noise.log_factor.fill_(0.7)
    new = Gaussian(noise="input")
    new.load_state_dict(noise.state_dict())
    assert new.noise.log_factor.item() == pytest.approx(0.7)
