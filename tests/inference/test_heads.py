"""The posterior of linear heads: closed forms, sums that add, refusals."""

import copy
import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.linear_model import BayesianRidge
from torch import Tensor, nn

from fathomless.data.rows import Rows, Stream
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.out_of_fold.heads import (
    Statistics,
    check_heads,
    head_posterior,
    head_statistics,
    head_variance,
    replace_heads_by_means,
    set_head_posterior,
)
from fathomless.inference.runs.distributed import Ranks
from fathomless.nn.architectures import MLP
from fathomless.nn.gaussian_head import GaussianHead
from fathomless.posterior.laws import FixedDepth
from fathomless.posterior.likelihoods import Bernoulli, Categorical, Gaussian, Laplace, Likelihood, StudentT
from fathomless.system.errors import DataError


def table(n: int = 60, inputs: int = 4, targets: int = 1, seed: int = 0) -> Rows:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, inputs, generator=g, dtype=torch.float64)
    w = torch.randn(inputs, targets, generator=g, dtype=torch.float64)
    y = x @ w + 0.5 + 0.3 * torch.randn(n, targets, generator=g, dtype=torch.float64)
    return Rows(x, y)


def network(inputs: int = 4, outputs: int = 1, depths: tuple[int, ...] = (0, 1, 2)) -> UnboundedDepth:
    net = MLP(inputs, outputs, 5)
    law = FixedDepth(depths, tuple(1.0 / len(depths) for _ in depths))
    return UnboundedDepth(net.layer, net.head, law=law, min_depth=0, dtype=torch.float64, seed=2).eval()


def sums(rows: Rows, likelihood: Likelihood, f: Tensor | None = None) -> Statistics:
    f = rows.y if f is None else f
    return Statistics.of(rows.x, f, rows.y, rows.weight, likelihood)


def full(posterior: object) -> Tensor:
    """Covariance of all weights of a head, output by output: (K P, K P)."""
    basis, mixing, scale = posterior.basis, posterior.mixing, posterior.scale  # type: ignore[attr-defined]
    K, P = scale.shape
    factor = torch.einsum("ak,kpj->apkj", mixing, basis.expand(K, P, P)).reshape(K * P, K, P)
    return torch.einsum("akj,bkj->ab", factor * scale, factor * scale)


# ------------------------------------------------------------------------------------------------- closed forms


@pytest.mark.parametrize("alpha", [0.01, 1.0, 30.0])
def test_head_posterior_matches_bayesian_ridge(alpha: float) -> None:
    rows, sigma, sure = table(), 0.4, 1e14
    found = head_posterior(sums(rows, Gaussian(noise=sigma)), torch.zeros(1, 5), "conjugate", alpha)
    X = np.column_stack([rows.x.numpy(), np.ones(60)])
    # hyperpriors that leave no doubt hold both precisions where they are
    held = {"alpha_1": sure / sigma**2, "alpha_2": sure, "lambda_1": sure * alpha, "lambda_2": sure}
    ridge = BayesianRidge(fit_intercept=False, max_iter=5, **held).fit(X, rows.y[:, 0].numpy())
    assert ridge.alpha_ == pytest.approx(1.0 / sigma**2)
    assert ridge.lambda_ == pytest.approx(alpha)
    np.testing.assert_allclose(found.mean[0].numpy(), ridge.coef_, rtol=1e-7)
    np.testing.assert_allclose(full(found).numpy(), ridge.sigma_, rtol=1e-6, atol=1e-12)


def test_precision_has_the_greatest_evidence_of_a_linear_model() -> None:
    """The density of the targets, N(0, σ² I + Φ Φᵀ / α), has its maximum at the α that is found."""
    rows, sigma = table(30), 0.3
    found = head_posterior(sums(rows, Gaussian(noise=sigma)), torch.zeros(1, 5), "conjugate")
    phi = nn.functional.pad(rows.x, (0, 1), value=1.0)

    def evidence(alpha: float) -> float:
        covariance = sigma**2 * torch.eye(30, dtype=torch.float64) + phi @ phi.T / alpha
        law = torch.distributions.MultivariateNormal(torch.zeros(30, dtype=torch.float64), covariance)
        return float(law.log_prob(rows.y[:, 0]))

    assert evidence(found.precision) > max(evidence(0.97 * found.precision), evidence(found.precision / 0.97))


def test_precision_stays_within_its_bounds() -> None:
    rows = table()
    silent = dataclasses.replace(rows, y=torch.zeros(60, 1, dtype=torch.float64))
    loud = dataclasses.replace(rows, y=1e5 * rows.y)
    for kind in ("laplace", "conjugate"):
        for data, expected in ((silent, 1e4), (loud, 1e-4)):
            trained = torch.linalg.lstsq(nn.functional.pad(data.x, (0, 1), value=1.0), data.y).solution.T
            found = head_posterior(sums(data, Gaussian(noise=0.5)), trained, kind)
            assert found.precision == pytest.approx(expected, rel=1e-3)


def test_several_targets_are_as_many_heads() -> None:
    rows = table(targets=3)
    likelihood = Gaussian(3).double()
    with torch.no_grad():
        likelihood.noise.raw.copy_(torch.tensor([0.1, 0.5, 2.0]).log())  # type: ignore[union-attr, operator]
    together = head_posterior(sums(rows, likelihood), torch.zeros(3, 5), "conjugate", 0.7)
    assert together.basis.shape == (1, 5, 5)  # one eigendecomposition serves all
    scales = likelihood.noise.log_scale().exp().tolist()  # type: ignore[union-attr, operator]
    for t, sigma in enumerate(scales):
        own = dataclasses.replace(rows, y=rows.y[:, t : t + 1])
        alone = head_posterior(sums(own, Gaussian(noise=sigma)), torch.zeros(1, 5), "conjugate", 0.7)
        assert torch.allclose(together.mean[t], alone.mean[0], rtol=1e-6)
        assert torch.allclose(together.scale[t], alone.scale[0], rtol=1e-6)


def test_student_noise_has_its_fisher_information() -> None:
    """1/σ² becomes (ν + 1) / ((ν + 3) σ²), the expectation of minus the second derivative of the log density."""
    rows, df, sigma = table(), 5.0, 0.3
    found = sums(rows, StudentT(df=df, noise=sigma)).information / 60.0
    assert found.item() == pytest.approx((df + 1.0) / ((df + 3.0) * sigma**2))
    z = torch.linspace(-400.0, 400.0, 2_000_001, dtype=torch.float64, requires_grad=True)
    log_p = torch.distributions.StudentT(df, 0.0, sigma).log_prob(z)
    (slope,) = torch.autograd.grad(log_p.sum(), z)
    expected = torch.trapezoid(log_p.exp() * slope.square(), z).item()
    assert found.item() == pytest.approx(expected, rel=1e-4)


def test_noise_of_each_input_weighs_its_row() -> None:
    rows, likelihood = table(targets=2), Gaussian(2, noise="input")
    f = torch.cat([rows.y, torch.randn(60, 2, generator=torch.Generator().manual_seed(3), dtype=torch.float64)], 1)
    found = head_posterior(sums(rows, likelihood, f), torch.zeros(2, 5), "conjugate", 0.9)
    _, log_scale = likelihood.noise.split(f[None])
    phi = nn.functional.pad(rows.x, (0, 1), value=1.0)
    for t in range(2):
        w = torch.exp(-2.0 * log_scale[0, :, t])
        A = (w[:, None] * phi).T @ phi + 0.9 * torch.eye(5, dtype=torch.float64)
        assert torch.allclose(found.mean[t], torch.linalg.solve(A, phi.T @ (w * rows.y[:, t])))
        assert torch.allclose(full(found)[5 * t : 5 * t + 5, 5 * t : 5 * t + 5], torch.linalg.inv(A))


@pytest.mark.parametrize("equal", [True, False])
def test_classes_match_a_full_laplace_approximation(equal: bool) -> None:
    """Exact where all rows have the same probabilities; else near, with the same total information."""
    g, K = torch.Generator().manual_seed(1), 3
    x = torch.randn(50, 2, generator=g, dtype=torch.float64)
    y = torch.arange(50) % K
    weight = torch.rand(50, generator=g, dtype=torch.float64) + 0.5
    trained = torch.randn(K, 3, generator=g, dtype=torch.float64)
    trained[:, :2] *= 0.0 if equal else 0.3
    phi = nn.functional.pad(x, (0, 1), value=1.0)

    def loss(flat: Tensor) -> Tensor:
        log_p = (phi @ flat.view(K, 3).T).log_softmax(1)
        return -(weight * log_p.gather(1, y[:, None])[:, 0]).sum() + 0.35 * flat.square().sum()

    hessian = torch.autograd.functional.hessian(loss, trained.flatten())
    statistics = Statistics.of(x, phi @ trained.T, y, weight, Categorical(K))
    found = full(head_posterior(statistics, trained, "laplace", 0.7))
    expected = torch.linalg.inv(hessian)  # type: ignore[arg-type]
    assert torch.allclose(found, expected, atol=1e-12 if equal else 0.2 * float(expected.abs().max()))
    assert not equal or float(expected.abs().max()) > 0.1


def test_evidence_of_classes_is_that_of_laplace() -> None:
    """½ log det of the prior's precision over the posterior's, less ½ α |W|², is greatest at the α that is found."""
    g = torch.Generator().manual_seed(1)
    x, trained = (
        torch.randn(80, 2, generator=g, dtype=torch.float64),
        torch.tensor([[0.3, -0.1, 0.2], [-0.3, 0.1, 0.0]]),
    )
    f = nn.functional.pad(x, (0, 1), value=1.0) @ trained.double().T
    statistics = Statistics.of(x, f, torch.zeros(80, dtype=torch.int64), None, Categorical(2))

    def evidence(alpha: float) -> float:
        covariance = full(head_posterior(statistics, trained.double(), "laplace", alpha))
        return float(3.0 * math.log(alpha) + 0.5 * torch.logdet(covariance) - 0.5 * alpha * trained.square().sum())

    found = head_posterior(statistics, trained.double()).precision
    assert 1e-3 < found < 1e3
    assert evidence(found) > max(evidence(0.95 * found), evidence(found / 0.95))


# ------------------------------------------------------------------------------------------------------- sums


@pytest.mark.parametrize(
    "likelihood", [Gaussian(noise=0.3), StudentT(noise=0.4), Gaussian(noise="input"), Categorical(2)]
)
def test_head_statistics_add_over_chunks_and_ranks(likelihood: Likelihood, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, model = table(101), network(outputs=likelihood.outputs)
    if likelihood.discrete:
        rows = dataclasses.replace(rows, y=(rows.y[:, 0] > 0).long())
    rows = dataclasses.replace(rows, weight=torch.rand(101, generator=torch.Generator().manual_seed(0)).double() + 0.5)
    whole = head_statistics(model, likelihood, rows)

    def near(found: dict[int, Statistics]) -> None:
        assert found.keys() == whole.keys() == {0, 1, 2}
        for number, one in whole.items():
            for a, b in zip(one.tensors, found[number].tensors, strict=True):
                assert torch.allclose(a, b, rtol=1e-12)

    parts = [head_statistics(model, likelihood, rows.take(slice(i, i + 25))) for i in range(0, 101, 25)]
    summed = {}
    for number in whole:
        first, *others = (part[number] for part in parts)
        summed[number] = sum(others, first)
    near(summed)
    stream = Stream(lambda i: rows.take(slice(40 * i, 40 * i + 40)), (40, 40, 21))
    near(head_statistics(model, likelihood, stream))

    class Told(Ranks):
        """A rank whose sums are made by this test."""

        def add(self, tensors: object) -> None:
            """Leave the share as it is."""

    shares = []
    for rank in range(3):
        monkeypatch.setattr("fathomless.inference.out_of_fold.heads.ranks", lambda rank=rank: Told(rank, 3))
        shares.append(head_statistics(model, likelihood, rows))
    near({number: shares[0][number] + shares[1][number] + shares[2][number] for number in whole})


def test_weight_is_repetition() -> None:
    rows, model = table(40), network()
    twice = Rows(torch.cat([rows.x, rows.x[:10]]), torch.cat([rows.y, rows.y[:10]]))
    weight = torch.ones(40, dtype=torch.float64)
    weight[:10] = 2.0
    weighted = dataclasses.replace(rows, weight=weight)
    found = [head_statistics(model, Gaussian(noise=0.3), data) for data in (twice, weighted)]
    for number in found[0]:
        for one, other in zip(found[0][number].tensors, found[1][number].tensors, strict=True):
            assert torch.allclose(one, other, rtol=1e-12)


def test_the_order_of_the_rows_does_not_matter() -> None:
    rows, model = table(40), network()
    shuffled = rows.take(torch.randperm(40, generator=torch.Generator().manual_seed(0)))
    for kind in ("laplace", "conjugate"):
        models = [copy.deepcopy(model) for _ in range(2)]
        for one, data in zip(models, (rows, shuffled), strict=True):
            set_head_posterior(one, Gaussian(noise=0.3), data, kind)
        x = table(7, seed=5).x
        assert torch.allclose(head_variance(models[0], x), head_variance(models[1], x), rtol=1e-9)


# ------------------------------------------------------------------------------------------------------ heads


@torch.no_grad()
def test_draws_of_heads_have_their_mean_and_variance() -> None:
    rows, model, x = table(60), network(), table(5, seed=9).x
    set_head_posterior(model, Gaussian(noise=0.3), rows, "conjugate")
    points = copy.deepcopy(model)
    replace_heads_by_means(points)
    n = 4000
    draws = model.draw(x, n, torch.Generator().manual_seed(0))
    assert draws.f.shape == (3 * n, 5, 1)
    assert draws.network is not None
    assert draws.network.unique().numel() == n
    assert torch.logsumexp(draws.log_weight, 0).item() == pytest.approx(0.0, abs=1e-9)
    for i, (number, features) in enumerate(model.features(x).items()):
        own = draws.f[draws.structure == number][..., 0]  # (n, 5)
        head = model.heads_in_use()[number]
        assert isinstance(head, GaussianHead)
        variance = head.variance(features)[:, 0]
        assert torch.allclose(own.mean(0), points.draw(x).f[i, :, 0], atol=5.0 * float((variance.max() / n).sqrt()))
        assert torch.allclose(own.var(0), variance, rtol=5.0 * math.sqrt(2.0 / n))


@torch.no_grad()
def test_draws_of_classes_mix_outputs() -> None:
    rows, model, x = table(60), network(outputs=3), table(4, seed=9).x
    rows = dataclasses.replace(rows, y=torch.arange(60) % 3)
    set_head_posterior(model, Categorical(3), rows, "laplace")
    draws, n = model.draw(x, 4000, torch.Generator().manual_seed(0)), 4000
    for number, features in model.features(x).items():
        own, head = draws.f[draws.structure == number], model.heads_in_use()[number]
        assert isinstance(head, GaussianHead)
        assert torch.allclose(own.var(0), head.variance(features), rtol=5.0 * math.sqrt(2.0 / n))


def test_the_divergence_of_a_head_is_that_of_normal_laws() -> None:
    rows, model = table(60), network(depths=(1,))
    set_head_posterior(model, Gaussian(noise=0.3), rows, "conjugate")
    (head,) = model.heads_in_use().values()
    assert isinstance(head, GaussianHead)
    mean = torch.cat([head.weight[0], head.bias])
    covariance = head.basis[0] @ torch.diag(head.scale[0].square()) @ head.basis[0].T
    eye = torch.eye(6, dtype=torch.float64)
    q = torch.distributions.MultivariateNormal(mean, covariance)
    p = torch.distributions.MultivariateNormal(torch.zeros(6, dtype=torch.float64), eye / head.precision)
    assert head.divergence().item() == pytest.approx(torch.distributions.kl_divergence(q, p).item(), rel=1e-9)


def test_points_are_the_mean_and_nothing_is_shared() -> None:
    rows, model, x = table(60), network(), table(5, seed=9).x
    before = model.draw(x).f
    set_head_posterior(model, Gaussian(noise=0.3), rows, "laplace")
    assert model.stochastic
    points = copy.deepcopy(model)
    replace_heads_by_means(points)
    assert not points.stochastic
    assert torch.equal(points.draw(x).f, before)  # the trained heads are the means
    replace_heads_by_means(points)  # nothing is left to be done


def test_networks_with_drawn_heads_are_rebuilt_restricted_and_joined() -> None:
    rows, model, x = table(60), network(), table(5, seed=9).x
    set_head_posterior(model, Gaussian(noise=0.3), rows, "conjugate")
    again = network()
    again.rebuild(model.blueprint())
    again.load_state_dict(model.state_dict())
    drawn = [m.draw(x, 3, torch.Generator().manual_seed(1)).f for m in (model, again)]
    assert torch.equal(*drawn)
    small = model.restrict({0: 0.5, 2: 0.5})
    assert set(small.heads) == {"0", "2"}
    assert torch.equal(small.heads["2"].scale, model.heads["2"].scale)
    whole = model.merge([again])
    assert torch.equal(whole.draw(x, 3, torch.Generator().manual_seed(1)).f, drawn[0])
    with pytest.raises(DataError, match="no drawn heads"):
        model.stack([again])


# --------------------------------------------------------------------------------------------------- refusals


def shared() -> UnboundedDepth:
    return UnboundedDepth(MLP(4, 1, 4).layer, lambda _: nn.Identity(), shared_head=lambda: nn.Linear(4, 1))


def curved() -> UnboundedDepth:
    return UnboundedDepth(MLP(4, 1, 4).layer, lambda _: nn.Sequential(nn.Linear(4, 1), nn.Tanh()))


def drawn() -> UnboundedDepth:
    net = MLP(4, 1, 4)
    return UnboundedDepth(net.layer, net.head, weights="meanfield")


@pytest.mark.parametrize(
    ("make", "likelihood", "kind", "words"),
    [
        (shared, Gaussian(), "laplace", "shared_head=True"),
        (curved, Gaussian(), "laplace", "heads of type Sequential"),
        (drawn, Gaussian(), "conjugate", "weights='meanfield'"),
        (network, Bernoulli(1), "laplace", "Bernoulli as likelihood"),
        (network, Categorical(2), "conjugate", "keeps the trained head"),
        (network, Laplace(), "conjugate", "keeps the trained head"),
    ],
)
def test_heads_that_have_no_posterior_are_refused(
    make: Callable[[], UnboundedDepth], likelihood: Likelihood, kind: str, words: str
) -> None:
    with pytest.raises(DataError, match=words):
        check_heads(make(), likelihood, kind)


def test_a_head_without_a_bias_is_refused() -> None:
    with pytest.raises(DataError, match="a bias"):
        GaussianHead(nn.Linear(2, 3, bias=False))
    with pytest.raises(DataError, match="2 bases"):
        GaussianHead(nn.Linear(2, 3), bases=2)
