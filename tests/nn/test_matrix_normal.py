"""Layers with a matrix normal posterior: against the multivariate normal of all their weights."""

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal, kl_divergence

from fathomless.nn.bayesian import bayesian
from fathomless.nn.layers import WeightPrior
from fathomless.nn.matrix_normal import MatrixNormal
from fathomless.system.errors import DataError


def spread(layer: MatrixNormal, seed: int = 0) -> MatrixNormal:
    """Give a layer variances that differ."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (layer.log_scale_in, layer.log_scale_out):
            parameter.copy_(torch.randn(parameter.shape, generator=g, dtype=parameter.dtype) / 2.0 - 0.5)
    return layer


def scales(layer: MatrixNormal) -> torch.Tensor:
    """Prior standard deviations, output by output."""
    outputs, inputs = len(layer.log_scale_out), len(layer.log_scale_in)
    s = torch.full((outputs, inputs), layer.weight_scale, dtype=torch.float64)
    if layer.bias_scale is not None:
        s[:, -1] = layer.bias_scale
    return s


def joint(layer: MatrixNormal) -> MultivariateNormal:
    """The law of all weights, output by output."""
    s = scales(layer).flatten()
    covariance = torch.kron(torch.diag((2.0 * layer.log_scale_out).exp()), torch.diag((2.0 * layer.log_scale_in).exp()))
    return MultivariateNormal(s * layer.mean().flatten(), covariance * s * s[:, None])


@pytest.mark.parametrize("prior", [WeightPrior(), WeightPrior(0.7), WeightPrior(1.3, fan_in=True)], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_the_divergence_is_that_of_the_joint_normals(prior: WeightPrior, bias: bool) -> None:
    layer = spread(MatrixNormal(nn.Linear(3, 2, bias=bias, dtype=torch.float64), prior))
    s = scales(layer).flatten()
    expected = kl_divergence(joint(layer), MultivariateNormal(torch.zeros_like(s), torch.diag(s.square())))
    torch.testing.assert_close(layer.divergence(), expected, rtol=1e-10, atol=0.0)


def test_only_the_product_of_variances_matters() -> None:
    layer = spread(MatrixNormal(nn.Linear(4, 3, dtype=torch.float64)))
    x, before = torch.randn(6, 4, dtype=torch.float64), layer.divergence()
    y, _ = layer(x, torch.Generator().manual_seed(1))
    with torch.no_grad():
        layer.log_scale_in += 0.8
        layer.log_scale_out -= 0.8
    again, after = layer(x, torch.Generator().manual_seed(1))
    torch.testing.assert_close(before, after)
    torch.testing.assert_close(y, again)


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.Linear(2, 3, dtype=torch.float64), torch.tensor([[0.5, -2.0]], dtype=torch.float64)),
        (nn.Conv1d(1, 2, 2, dtype=torch.float64), torch.tensor([[[0.5, -2.0]]], dtype=torch.float64)),
    ],
    ids=["linear", "convolution"],
)
def test_outputs_have_the_moments_of_the_posterior(module: nn.Module, x: torch.Tensor) -> None:
    """Var f_k = v_k Σ_j u_j s_j² x_j², with independent outputs: n draws, in standard errors of mean and variance."""
    layer, g, n = spread(MatrixNormal(module, WeightPrior(0.8))), torch.Generator().manual_seed(2), 4000
    with torch.no_grad():
        f = torch.cat([layer(x, g)[0].flatten(1) for _ in range(n)])
        mean = module(x).flatten()
    phi = torch.cat([x.flatten(), torch.ones(1, dtype=torch.float64)])
    variance = 0.64 * (2.0 * layer.log_scale_out).exp() * ((2.0 * layer.log_scale_in).exp() @ phi.square())
    assert bool(((f.mean(0) - mean).abs() < 4.5 * (variance / n).sqrt()).all())
    assert bool(((f.var(0) / variance - 1.0).abs() < 4.5 * (2.0 / n) ** 0.5).all())
    correlation = torch.corrcoef(f.T) - torch.eye(f.shape[1])
    assert float(correlation.abs().max()) < 4.5 * n**-0.5


def test_a_network_has_one_on_every_map() -> None:
    network = bayesian(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)), lambda _, part: MatrixNormal(part))
    y, divergence = network(torch.ones(5, 3))
    own = [part for part in network.modules() if isinstance(part, MatrixNormal)]
    assert y.shape == (5, 1)
    assert float(divergence.detach()) == pytest.approx(sum(float(part.divergence().detach()) for part in own), rel=1e-6)
    assert len(own) == 2


def test_scales_must_be_positive() -> None:
    with pytest.raises(DataError, match="initial_scale=0"):
        MatrixNormal(nn.Linear(2, 1), initial_scale=0.0)


def test_modules_whose_rows_are_no_outputs_are_refused() -> None:
    with pytest.raises(DataError, match=r"of type ConvTranspose2d was given; matrix normal weights are in nn.Linear, "):
        MatrixNormal(nn.ConvTranspose2d(3, 5, 2))
