"""Laplace's approximation for all weights: conjugate cases, Hessians, and errors."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.functional import hessian
from torch.func import functional_call

from fathomless.data.rows import Rows
from fathomless.families.baselines.laplace import LaplacePosterior, jacobian, laplace_posterior, linearise
from fathomless.posterior.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from fathomless.system.errors import DataError

F64 = torch.float64


def table(rows: int, columns: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=g, dtype=F64)
    return x, x[:, :1].sin() + 0.1 * torch.randn(rows, 1, generator=g, dtype=F64)


def mlp(inputs: int, outputs: int, width: int = 4, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), nn.Linear(width, outputs)).to(F64)


def size(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


def by_hessian(network: nn.Module, likelihood: Likelihood, rows: Rows) -> Tensor:
    """The Hessian of the negative log-likelihood of the linearised network in δ, at 0."""
    weight = torch.ones(len(rows), dtype=F64) if rows.weight is None else rows.weight
    value = network(rows.x).detach()
    columns = []
    for k in range(value.shape[1]):
        for row in rows.x:
            found = torch.autograd.grad(network(row)[k], list(network.parameters()))
            columns.append(torch.cat([one.flatten() for one in found]))
    derivative = torch.stack(columns).view(value.shape[1], len(value), -1).transpose(0, 1)  # (N, K, P)

    def loss(deviation: Tensor) -> Tensor:
        return -(likelihood.log_prob((value + derivative @ deviation)[None], rows.y)[0] * weight).sum()

    return hessian(loss, torch.zeros(size(network), dtype=F64))


@pytest.mark.parametrize("rows", [5, 60], ids=["fewer rows than weights", "more"])
@pytest.mark.parametrize("task", ["numbers", "classes", "weighed"])
def test_the_precision_is_the_hessian_of_the_linear_model(task: str, rows: int) -> None:
    """It is exact: the Hessian of the log-likelihood of a linear model is minus its Fisher information."""
    x, y = table(rows, 3)
    outputs, likelihood, weight = 1, Gaussian(noise=0.7).double(), None
    if task == "classes":
        outputs, likelihood, y = 3, Categorical(3).double(), torch.arange(rows) % 3
    if task == "weighed":
        weight = torch.arange(rows, dtype=F64) % 3 + 1.0
    network, data = mlp(3, outputs), Rows(x, y, weight)
    scale = torch.linspace(0.5, 2.0, size(network), dtype=F64)
    found = laplace_posterior(network, likelihood, data, scale, precision=0.8)
    precision = by_hessian(network, likelihood, data) + torch.diag(0.8 / scale.square())
    torch.testing.assert_close(found.covariance() @ precision, torch.eye(len(scale), dtype=F64), rtol=0, atol=1e-8)


def test_draws_have_the_covariance() -> None:
    x, y = table(12, 2)
    network = mlp(2, 1, width=3)
    found = laplace_posterior(network, Gaussian(noise=0.5).double(), Rows(x, y), torch.ones(size(network), dtype=F64))
    n = 40_000
    drawn = found.deviations(n, torch.Generator().manual_seed(1))
    truth = found.covariance()
    error = ((truth.diagonal()[:, None] * truth.diagonal() + truth.square()) / n).sqrt()
    assert bool(((drawn.T @ drawn / n - truth).abs() < 5.0 * error).all())
    assert bool((drawn.mean(0).abs() < 5.0 * (truth.diagonal() / n).sqrt()).all())


@pytest.mark.parametrize("rows", [6, 50])
def test_the_prior_has_the_greatest_evidence(rows: int) -> None:
    """ln p(θ* | α) + ½ ln det 2πΣ on a grid, from determinants."""
    x, y = table(rows, 2)
    network, likelihood = mlp(2, 1), Gaussian(noise=0.3).double()
    scale = torch.linspace(0.5, 1.5, size(network), dtype=F64)
    found = laplace_posterior(network, likelihood, Rows(x, y), scale)
    mode = torch.cat([p.detach().flatten() for p in network.parameters()])
    h = by_hessian(network, likelihood, Rows(x, y))

    def evidence(alpha: float) -> float:
        prior = alpha / scale.square()
        return float(0.5 * (prior.log().sum() - prior @ mode.square() - torch.logdet(h + torch.diag(prior))))

    assert 1e-4 < found.precision < 1e4
    best = max((evidence(math.exp(t)), t) for t in torch.linspace(-9.0, 9.0, 721).tolist())
    assert math.log(found.precision) == pytest.approx(best[1], abs=0.03)


@pytest.mark.parametrize("rows", [6, 50])
def test_weights_that_move_only_the_scale_say_nothing_of_the_prior(rows: int) -> None:
    """The evidence is that of the other weights, with the scale unchanged; for one target and for two."""
    for targets in (1, 2):
        (x, y), network = table(rows, 2), mlp(2, 2 * targets)
        y, likelihood = y.expand(-1, targets), Gaussian(targets, noise="input").double()
        scale = torch.linspace(0.5, 1.5, size(network), dtype=F64)
        found = laplace_posterior(network, likelihood, Rows(x, y), scale)
        f, derivative = network(x), jacobian(network, x)[:, :targets]
        sigma = likelihood.noise.split(f[None])[1][0].exp()
        h = torch.einsum("ntp,nt,ntq->pq", derivative, sigma.pow(-2), derivative).detach()
        told = h.diagonal() > 0.0
        assert int((~told).sum()) == 5 * targets  # weights and bias of the head of the scale
        mode = torch.cat([p.detach().flatten() for p in network.parameters()])[told]
        h, prior = h[told][:, told], scale[told].square().reciprocal()

        def evidence(t: float, h: Tensor = h, prior: Tensor = prior, mode: Tensor = mode) -> float:
            alpha = math.exp(t) * prior
            return float(0.5 * (alpha.log().sum() - alpha @ mode.square() - torch.logdet(h + torch.diag(alpha))))

        best = max((evidence(t), t) for t in torch.linspace(-9.0, 9.0, 721).tolist())
        assert math.log(found.precision) == pytest.approx(best[1], abs=0.03)


def test_deviations_move_only_the_outputs_that_have_a_posterior() -> None:
    network, (x, _) = mlp(2, 4), table(7, 2)
    apart = 0.3 * torch.randn(3, size(network), dtype=F64, generator=torch.Generator().manual_seed(0))
    whole, part = linearise(network, x, apart), linearise(network, x, apart, 2)
    assert torch.allclose(part[..., :2], whole[..., :2], atol=1e-12)
    assert torch.equal(part[..., 2:], network(x)[:, 2:].expand(3, -1, -1))


def test_deviations_move_a_network_along_its_derivative() -> None:
    network, (x, _) = mlp(2, 2), table(7, 2)
    apart = 0.3 * torch.randn(4, size(network), dtype=F64, generator=torch.Generator().manual_seed(0))
    found = linearise(network, x, apart)
    own = list(network.parameters())
    for row in range(4):
        pieces = apart[row].split([p.numel() for p in own])
        step = 1e-6
        moved = {
            name: p + step * piece.view_as(p)
            for (name, p), piece in zip(network.named_parameters(), pieces, strict=True)
        }
        slope = (functional_call(network, moved, (x,)) - network(x)) / step
        torch.testing.assert_close(found[row], (network(x) + slope).detach(), rtol=0, atol=1e-5)


def test_without_rows_that_say_anything_it_is_the_prior() -> None:
    network = mlp(2, 1)
    scale = torch.full((size(network),), 0.6, dtype=F64)
    none = Rows(torch.zeros(3, 2, dtype=F64), torch.zeros(3, 1, dtype=F64), torch.zeros(3, dtype=F64))
    found = laplace_posterior(network, Gaussian(noise=1.0).double(), none, scale, precision=2.0)
    torch.testing.assert_close(found.covariance(), torch.diag(scale.square() / 2.0))


def test_what_it_is_not_for_is_refused() -> None:
    x, y = table(5, 2)
    with pytest.raises(DataError, match="with the likelihood Bernoulli"):
        laplace_posterior(mlp(2, 1), Bernoulli(1).double(), Rows(x, y), torch.ones(17, dtype=F64))
    batch = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1))
    with pytest.raises(DataError, match="batch statistics"):
        laplace_posterior(batch, Gaussian(noise=1.0), Rows(x, y), torch.ones(5))
    wide = nn.Linear(2, 9000)
    with pytest.raises(DataError, match="use last_layer='laplace'"):
        laplace_posterior(wide, Gaussian(9000, noise=1.0), Rows(x, y.expand(-1, 9000)), torch.ones(27_000))


def test_the_posterior_is_a_value() -> None:
    found = LaplacePosterior(torch.ones(2), torch.eye(2), torch.tensor([3.0, 0.0]), 1.0)
    assert found.covariance().tolist() == [[0.25, 0.0], [0.0, 1.0]]
