"""Stage 3: divergences and integrals against closed forms and Monte Carlo, a posterior that is known exactly."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical as Choice
from torch.distributions import Independent, MixtureSameFamily, MultivariateNormal, Normal, kl_divergence

from fathomless.data.rows import Rows
from fathomless.families.manifold.autoencoder import Decoder
from fathomless.families.manifold.latent import COVARIANCES, DecoderLaw, LatentLaw, select_farthest
from fathomless.families.manifold.model import LatentStage, ProjectedNetwork
from fathomless.families.manifold.network import FlatNetwork
from fathomless.families.manifold.sampling import sample_latent
from fathomless.families.manifold.stages import run_stages
from fathomless.inference.mcmc.diagnostics import mcse_mean
from fathomless.inference.variational.objective import elbo
from fathomless.posterior.likelihoods import Gaussian
from fathomless.system.rng import seeded_globals

NET = FlatNetwork(2, 1, (4,), "tanh")


def noise(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=noise(seed), dtype=torch.float64)


def law(count: int = 3, dimensions: int = 2, covariance: str = "diagonal", seed: int = 0) -> LatentLaw:
    """Return one whose parameters are all at random."""
    found = LatentLaw(normal(count, dimensions, seed=seed), -0.5, covariance)
    with torch.no_grad():
        for i, p in enumerate(found.parameters()):
            p += 0.3 * normal(*p.shape, seed=seed + i)
    return found


def decoder(network: FlatNetwork = NET, dimensions: int = 2, hidden: tuple[int, ...] = (6,), seed: int = 0) -> Decoder:
    with seeded_globals(seed):
        found = Decoder(dimensions, hidden, network.size).double()
    found.mean.copy_(0.3 * normal(network.size, seed=seed))
    found.scale.copy_(normal(network.size, seed=seed + 1).abs() + 0.2)
    found.residual.copy_(0.1 * normal(network.size, seed=seed + 2).square())
    return found


def model(random: str | None = "bias", **of_law: Any) -> ProjectedNetwork:
    own = decoder()
    of_decoder = None if random is None else DecoderLaw(own, random)
    if of_decoder is not None:
        with torch.no_grad():
            of_decoder.offset += 0.2 * normal(*of_decoder.offset.shape, seed=8)
    return ProjectedNetwork(NET, own, law(**of_law), of_decoder).eval()


def table(rows: int = 20, seed: int = 3) -> Rows:
    x = normal(rows, 2, seed=seed)
    return Rows(x, x[:, :1].sin() + 0.1 * normal(rows, 1, seed=seed + 1))


# ---------------------------------------------------------------------------------------------------- q(z)


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_density_of_a_mixture_is_that_of_another_library(covariance: str) -> None:
    one, z = law(covariance=covariance), normal(7, 5, 2, seed=1)
    parts = MultivariateNormal(one.means, scale_tril=one.factors())
    theirs = MixtureSameFamily(Choice(logits=one.logits), parts)
    torch.testing.assert_close(one.log_prob(z), theirs.log_prob(z))


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_draws_of_a_component_have_its_moments(covariance: str) -> None:
    n, one = 20_000, law(covariance=covariance)
    z = one.sample(n, noise(2)).detach()
    true = (one.factors() @ one.factors().mT).detach()
    spread = true.diagonal(dim1=1, dim2=2).sqrt()
    assert ((z.mean(1) - one.means).abs() < 5.0 * spread / math.sqrt(n)).all()
    for k in range(3):
        bound = 5.0 * math.sqrt(2.0 / n) * torch.outer(spread[k], spread[k])
        assert ((z[k].T.cov() - true[k]).abs() < bound).all()


@pytest.mark.parametrize("covariance", COVARIANCES)
def test_the_divergence_of_one_component_is_the_closed_form(covariance: str) -> None:
    """Against another library, and against Monte Carlo within 4 standard errors."""
    one = law(1, 3, covariance)
    prior = MultivariateNormal(torch.zeros(3).double(), torch.eye(3).double())
    theirs = kl_divergence(MultivariateNormal(one.means[0], scale_tril=one.factors()[0]), prior)
    torch.testing.assert_close(one.divergence(one.sample(1, noise())), theirs)
    z = one.sample(20_000, noise(1))[0]
    ratio = (one.log_prob(z) - prior.log_prob(z)).detach()
    assert abs(float(ratio.mean() - theirs.detach())) < 4.0 * float(ratio.std()) / math.sqrt(20_000)


def test_the_divergence_of_a_mixture_is_unbiased() -> None:
    """Of two components in one dimension, against the integral on a grid, within 4 standard errors of 200 estimates."""
    one = law(2, 1)
    grid = torch.linspace(-12.0, 12.0, 40_001, dtype=torch.float64)[:, None]
    log_q = one.log_prob(grid).detach()
    log_p = Normal(0.0, 1.0).log_prob(grid[:, 0])
    true = float(torch.trapezoid(log_q.exp() * (log_q - log_p), grid[:, 0]))
    found = torch.stack([one.divergence(one.sample(20, noise(seed))) for seed in range(200)]).detach()
    assert abs(float(found.mean()) - true) < 4.0 * float(found.std()) / math.sqrt(200)
    assert float(found.std()) < true


def test_divergences_vanish_where_both_laws_are_one() -> None:
    prior = LatentLaw(torch.zeros(1, 4), 0.0)
    assert float(prior.divergence(prior.sample(1, noise())).detach()) == 0.0
    several = LatentLaw(torch.zeros(3, 4, dtype=torch.float64), 0.0)
    assert abs(float(several.divergence(several.sample(5, noise())).detach())) < 1e-12
    own = DecoderLaw(decoder(), "last")
    with torch.no_grad():
        own.log_scale.copy_(own.prior_scale.log().expand_as(own.log_scale))
    assert abs(float(own.divergence().detach())) < 1e-9


def test_families_agree_where_they_meet() -> None:
    """A triangular factor that is diagonal is the diagonal law; equal components are one component."""
    means, z = normal(1, 3), normal(6, 3, seed=1)
    plain, full = LatentLaw(means, -0.7), LatentLaw(means, -0.7, "full")
    three = LatentLaw(means.expand(3, 3), -0.7)
    for other in (full, three):
        torch.testing.assert_close(other.log_prob(z), plain.log_prob(z))
    torch.testing.assert_close(full.divergence(z[None]), plain.divergence(z[None]))
    drawn = three.sample(4000, noise())
    found, true = (float(t.detach()) for t in (three.divergence(drawn), plain.divergence(z[None])))
    ratio = (plain.log_prob(drawn) + 0.5 * drawn.square().sum(-1)).detach()
    assert abs(found - true) < 4.0 * float(ratio.std()) / math.sqrt(12_000)


def test_networks_that_start_components_are_far_apart() -> None:
    f = torch.tensor([0.0, 0.1, 5.0, 4.0, -3.0])[:, None, None]
    assert select_farthest(f, 3).tolist() == [0, 2, 4]
    assert select_farthest(f, 9).tolist()[:4] == [0, 2, 4, 3]
    assert sorted(select_farthest(f, 9).tolist()) == [0, 1, 2, 3, 4]


# ---------------------------------------------------------------------------------------------------- q(φ)


@pytest.mark.parametrize("random", ["bias", "last"])
def test_the_last_layer_is_integrated_out(random: str) -> None:
    """Mean and variance of w given z against draws of the layer itself, within 5 standard errors."""
    n, one = 20_000, model(random)
    own, base = one.decoder_law, one.decoder
    assert own is not None
    z = normal(2, 2, seed=4)
    mean, variance = one.moments(z)
    assert variance is not None
    bar = torch.cat([base.features(z), torch.ones(2, 1).double()], 1)[:, -own.offset.shape[1] :]
    layer = own.offset + own.log_scale.exp() * normal(n, *own.offset.shape, seed=5)  # (n, P, columns)
    w = base(z) + base.scale * torch.einsum("npc,sc->nsp", layer, bar)
    w = w.detach()
    assert ((w.mean(0) - mean).abs() < 5.0 * (variance / n).sqrt()).all()
    assert ((w.var(0) / variance - 1.0).abs() < 5.0 * math.sqrt(2.0 / n)).all()


def test_the_divergence_of_the_decoder_is_that_of_another_library() -> None:
    own = model("last").decoder_law
    assert own is not None
    theirs = kl_divergence(
        Normal(own.offset, own.log_scale.exp()),
        Normal(torch.zeros_like(own.offset), own.prior_scale.expand_as(own.offset)),
    )
    torch.testing.assert_close(own.divergence(), theirs.sum())
    columns = own.offset.shape[1]
    expected = ((decoder().residual + 1e-4) / columns).sqrt()
    torch.testing.assert_close(own.prior_scale[:, 0], expected)


def test_weights_drawn_per_row_have_the_same_expected_log_likelihood() -> None:
    """As weights drawn once for all rows; the means of 300 draws of the sum agree within 5 standard errors."""
    one, rows, likelihood = model("bias"), table(), Gaussian(noise=0.5)
    sums = []
    for training in (True, False):
        one.train(training)
        draws = one.draw(rows.x, 4000, noise(int(training)))
        log_p = likelihood.log_prob(draws.f, rows.y).sum(1).view(3, 4000).detach()
        weight = one.law.log_weight.exp().detach()
        sums.append((float(weight @ log_p.mean(1)), float((weight.square() @ log_p.var(1) / 4000).sqrt())))
    (local, error), (whole, other) = sums
    assert abs(local - whole) < 5.0 * math.hypot(error, other)


def test_a_decoder_without_doubt_is_the_decoder() -> None:
    """With ς → 0 phase B predicts as phase A does."""
    with_law, without = model("bias"), model(None)
    assert with_law.decoder_law is not None
    with torch.no_grad():
        with_law.decoder_law.log_scale.fill_(-60.0)
        with_law.decoder_law.offset.zero_()
    z = normal(5, 2, seed=7)
    torch.testing.assert_close(with_law.moments(z)[0], without.moments(z)[0])
    x = table().x
    f, g = ([one.draw(x, 4, noise(1)).f, one.train().draw(x, 4, noise(1)).f] for one in (with_law, without))
    for a, b in zip(f, g, strict=True):
        torch.testing.assert_close(a, b)


# ---------------------------------------------------------------------------------------------------- draws


def test_draws_have_the_weights_of_their_components() -> None:
    one = model()
    draws = one.draw(table().x, 5, noise())
    assert draws.f.shape == (15, 20, 1)
    assert draws.structure.tolist() == [k for k in range(3) for _ in range(5)]
    mass = draws.log_weight.exp().view(3, 5).sum(1)
    torch.testing.assert_close(mass, one.law.logits.double().softmax(0))
    assert set(draws.divergence) == {"latent", "decoder"}
    assert set(model(None).draw(table().x, 1, noise()).divergence) == {"latent"}


def test_drawn_weights_are_those_of_the_draws() -> None:
    one, x = model(None), table().x
    w, log_weight = one.sample_weights(3, noise(2))
    draws = one.draw(x, 3, noise(2))
    torch.testing.assert_close(NET(w, x), draws.f)
    torch.testing.assert_close(log_weight, draws.log_weight)


def test_the_posterior_over_the_latent_space_is_told() -> None:
    one = model(covariance="full")
    told = one.structure()
    assert sum(told.weights) == pytest.approx(1.0)
    torch.testing.assert_close(torch.tensor(told.means).double(), one.law.means.detach())
    cov = one.law.factors() @ one.law.factors().mT
    torch.testing.assert_close(torch.tensor(told.scales).double(), cov.diagonal(dim1=1, dim2=2).sqrt().detach())
    assert 1.0 <= told.statistics["modes"] <= 3.0
    assert "3 components in 2 dimensions" in told.summary


@pytest.mark.parametrize("random", [None, "bias", "last"])
def test_a_model_is_rebuilt_from_its_blueprint(random: str | None) -> None:
    one = model(random)
    other = ProjectedNetwork(NET, decoder(seed=4), law(1, seed=5), DecoderLaw(decoder(seed=4), "bias")).eval()
    other.rebuild(one.blueprint())
    other.load_state_dict(one.state_dict())
    assert torch.equal(other.draw(table().x, 3, noise()).f, one.draw(table().x, 3, noise()).f)


# ---------------------------------------------------------------------------------------------------- stage 3


def linear() -> tuple[ProjectedNetwork, Rows, Tensor, Tensor, float]:
    """Return a network linear in w with an affine decoder; also the exact posterior of z, and the log evidence."""
    net, sigma = FlatNetwork(3, 1, (), "tanh"), 0.5
    own = decoder(net, dimensions=2, hidden=())
    x = normal(12, 3, seed=2)
    y = x @ torch.tensor([[0.5], [-0.3], [0.2]]).double() + 0.4 + sigma * normal(12, 1, seed=3)
    ones = torch.cat([x, torch.ones(12, 1).double()], 1)
    A = (ones @ (own.scale[:, None] * own.last.weight)).detach()  # y = A z + b + noise
    b = (ones @ (own.mean + own.scale * own.last.bias)).detach()
    precision = torch.eye(2).double() + A.T @ A / sigma**2
    cov = precision.inverse()
    mean = cov @ A.T @ (y[:, 0] - b) / sigma**2
    marginal = MultivariateNormal(b, sigma**2 * torch.eye(12).double() + A @ A.T)
    start = LatentLaw(torch.zeros(1, 2).double(), 0.0, "full")
    return ProjectedNetwork(net, own, start), Rows(x, y), mean, cov, float(marginal.log_prob(y[:, 0]))


def test_a_linear_model_has_its_exact_posterior_and_evidence() -> None:
    """Mean and covariance of z to 1e-2; the bound, by 100,000 draws, is the log evidence to 1e-2."""
    one, rows, mean, cov, evidence = linear()
    likelihood = Gaussian(noise=0.5)
    stage = LatentStage(one, likelihood, rows, steps=1500, draws=32, rate=2e-2)
    run = run_stages({"z": lambda _: stage}, 0)
    torch.testing.assert_close(one.law.means[0].detach(), mean, rtol=0, atol=1e-2)
    L = one.law.factors()[0].detach()
    torch.testing.assert_close(L @ L.T, cov, rtol=0, atol=1e-2)
    with torch.no_grad():
        bound = elbo(one.eval().draw(rows.x, 100_000, noise(5)), likelihood, rows.y, size=12)
    assert float(bound.value) == pytest.approx(evidence, abs=1e-2)
    last = run.history[-1]
    assert last["elbo"] == pytest.approx(last["log_likelihood"] - last["divergence_latent"])


def test_chains_of_a_linear_model_have_its_exact_posterior() -> None:
    """Mean and covariance of 8 chains × 3,000 states, whose effective number is known, within 5 standard errors."""
    one, rows, mean, cov, _ = linear()
    one.law = LatentLaw(normal(8, 2, seed=4))
    told = sample_latent(one.eval(), Gaussian(noise=0.5), rows, seed=0, each=3000)
    assert told["rhat"] < 1.01
    drawn = one.law.points
    assert drawn is not None
    for value, expected in (
        (drawn, mean),
        ((drawn - mean)[..., [0, 0, 1]] * (drawn - mean)[..., [0, 1, 1]], cov.flatten()[[0, 1, 3]]),
    ):
        for d, truth in enumerate(expected.tolist()):
            each = value[..., d].numpy()
            assert abs(each.mean() - truth) < 5.0 * mcse_mean(each)
    again = one.law.sample(50_000, noise(1)).flatten(0, 1)
    torch.testing.assert_close(again.mean(0), drawn.flatten(0, 1).mean(0), rtol=0, atol=0.02)
    assert math.isnan(float(one.draw(rows.x, 2, noise()).divergence["latent"]))


def test_the_loss_is_the_bound_of_the_library_per_row() -> None:
    one, rows, likelihood = model(), table(), Gaussian(noise=0.3)
    stage = LatentStage(one, likelihood, rows, draws=12)
    loss = stage.loss(0.0, noise(4))
    draws = one.train().draw(rows.x, 4, noise(4))
    torch.testing.assert_close(loss, -elbo(draws, likelihood, rows.y, size=20).value / 20)
    heavy = Rows(rows.x, rows.y, torch.full((20,), 2.0).double())
    draws = replace(draws, divergence={name: 0.5 * term for name, term in draws.divergence.items()})
    expected = -elbo(draws, likelihood, rows.y, size=20).value / 20  # twice the rows, halved
    torch.testing.assert_close(LatentStage(one, likelihood, heavy, draws=12).loss(0.0, noise(4)), expected)


def test_batches_of_rows_are_unbiased() -> None:
    """The mean gradient over drawn batches is that of all rows: 300 batches, within 5 standard errors."""
    one, rows, likelihood = model(None, count=1), table(1500), Gaussian(noise=1.0)
    with torch.no_grad():
        one.law.log_scale.fill_(-30.0)  # a point, so that only the rows are drawn
    stage, whole = LatentStage(one, likelihood, rows), one.train().draw(rows.x, 1, noise())
    true = -elbo(whole, likelihood, rows.y, size=1500).value / 1500
    (gradient,) = torch.autograd.grad(true, one.law.means)
    g = noise(1)
    found = [torch.autograd.grad(stage.loss(0.0, g), one.law.means)[0] for _ in range(300)]
    each = torch.stack(found)
    assert ((each.mean(0) - gradient).abs() < 5.0 * each.std(0) / math.sqrt(300)).all()


def test_the_same_seed_finds_the_same_bytes() -> None:
    states = []
    for seed in (1, 1, 2):
        stage = LatentStage(model(), Gaussian(noise=0.3), table(), steps=20)
        states.append(run_stages({"z": lambda _, stage=stage: stage}, seed).found)
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert not torch.equal(states[0]["z/law.means"], states[2]["z/law.means"])


def test_the_maps_of_the_decoder_are_held() -> None:
    one = model()
    before = {name: value.clone() for name, value in one.decoder.state_dict().items()}
    run_stages({"z": lambda _: LatentStage(one, Gaussian(noise=0.3), table(), steps=20)}, 0)
    assert all(torch.equal(value, before[name]) for name, value in one.decoder.state_dict().items())


def test_independent_laws_are_one_component() -> None:
    one = law(1, 3)
    theirs = Independent(Normal(one.means[0], one.log_scale[0].exp()), 1)
    z = normal(5, 3, seed=2)
    torch.testing.assert_close(one.log_prob(z), theirs.log_prob(z))
