"""Unbounded depth: section 8 of the method's specification, items 5 to 18, by name (others in test_growth)."""

import copy
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import jacrev, vmap
from torch.fx.experimental.proxy_tensor import make_fx

from depth_models import LAWS, NET, build, data, move_to
from fathomless.data.rows import Rows
from fathomless.families.depth import deploy
from fathomless.families.depth.convergence import depth_drift
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.runs.run import Run
from fathomless.inference.variational.objective import elbo
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP, ConvNet
from fathomless.nn.layers import MeanField, WeightPrior, weight_decay, weight_decay_of_many
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.laws import FixedDepth, FreeCategorical, PoissonPrior, UniformPrior
from fathomless.posterior.likelihoods import Categorical, Gaussian
from fathomless.posterior.model import Deferred, Draws
from fathomless.system.errors import DataError, DepthError


def decay(module: nn.Module) -> Tensor:
    return 0.5 * sum((p**2).sum() for p in module.parameters())  # type: ignore[return-value]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("min_depth", [0, 1, 3])
@pytest.mark.parametrize("head_divergence", ["own", "cumulative"])
def test_divergence_of_weights_is_the_sum_over_depths(law: str, min_depth: int, head_divergence: str) -> None:
    """Σ_ℓ q(ℓ) Σ_{k≤ℓ} KL_k + heads = Σ_k S_k KL_k + heads; a head is charged q(ℓ), or with all deeper ones."""
    net = MLP(2, 3, 6)
    head = (lambda depth: nn.Linear(2 if depth == 0 else 6, 3)) if min_depth == 0 else net.head
    model = UnboundedDepth(
        net.layer, head, law=LAWS[law], min_depth=min_depth, head_divergence=head_divergence, dtype=torch.float64
    )
    q = model.depth_posterior()
    expected = 0.0
    for depth, mass in q.items():
        layers = sum(decay(model.layers[str(k)]).item() for k in range(1, depth + 1))
        charged = [k for k in q if k <= depth] if head_divergence == "cumulative" else [depth]
        expected += mass * (layers + sum(decay(model.heads[str(k)]).item() for k in charged))
    got = model.draw(torch.zeros(4, 2, dtype=torch.float64)).divergence["weights"]
    assert got.item() == pytest.approx(expected, rel=1e-10)


def test_a_readout_is_charged_once_and_layers_by_their_survival() -> None:
    model = build(shared_head=lambda: nn.Linear(3, 3))
    q = model.depth_posterior()
    usage = model.use_probability()
    assert float(usage["readout.weight"]) == pytest.approx(1.0)
    for k in range(1, model.depth + 1):
        assert float(usage[f"layers.{k}.0.weight"]) == pytest.approx(sum(p for depth, p in q.items() if depth >= k))
        assert float(usage[f"heads.{k}.weight"]) == pytest.approx(q[k])


@pytest.mark.parametrize("law", [name for name in LAWS if name != "point"])
def test_gradients_equal_autograd_of_the_whole_objective(law: str) -> None:
    """The closed forms (decay vector, law's Jacobian) against a bound that is written out and differentiated."""
    model, likelihood, (x, y) = build(law), Categorical(3), data()
    e = elbo(model.draw(x), likelihood, y, size=len(x))
    e.value.backward()
    got = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()

    eta = model._eta().detach().requires_grad_()
    with torch.no_grad():
        q0, dq = model.law.probs_and_grad(eta, model._support)
    q = q0 + (dq @ (eta - eta.detach()))  # a value of q whose derivative is the Jacobian
    log_q = q.clamp(min=1e-12).log()
    log_prior = model.prior.log_prob(torch.tensor(model._support, dtype=torch.float64))
    h, total, layers = x, torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for depth in range(1, model.depth + 1):
        h = model.layers[str(depth)](h)
        layers = layers + decay(model.layers[str(depth)])
        if depth - 1 in model._support:
            i = model._support.index(depth - 1)
            ll = F.log_softmax(model.heads[str(depth)](h), -1).gather(1, y[:, None]).sum()
            G = ll - layers - decay(model.heads[str(depth)])
            total = total + q[i] * (G + log_prior[i] - log_q[i])
    assert e.value.item() == pytest.approx(total.item(), rel=1e-10)
    total.backward()
    for name, p in model.named_parameters():
        if p.grad is not None:
            assert torch.allclose(got[name], p.grad, rtol=1e-8, atol=1e-10), name
    law_gradient = torch.stack([got[name] for name in model.structure_parameters()])
    # d(q log q) also gives Σ ∂q = 0
    assert eta.grad is not None
    assert torch.allclose(law_gradient, eta.grad, rtol=1e-7, atol=1e-8)


def test_a_point_mass_trains_bit_for_bit_like_an_ordinary_network() -> None:
    x, y = data(256)
    x = x.float()
    model = build("point", dtype=torch.float32)
    plain = deploy.point_depth(model, 4)
    training = Training(epochs=5, batch_size=64, schedule="constant", structure_every=1)
    order = Run(model, Categorical(3), training, seed=3).order
    fit(model, Categorical(3), Rows(x, y), training=training, seed=3)
    optimizer = torch.optim.Adam(plain.parameters(), lr=5e-3, eps=1e-10, fused=True)
    plain.train()
    for _ in range(5):
        rows = torch.randperm(256, generator=order)
        for batch in rows.split(64):
            f = plain(x[batch])
            log_p = f.log_softmax(1).gather(1, y[batch, None])[:, 0]
            loss = -log_p.sum() / 64 + (0.5 / 256) * sum((p**2).sum() for p in plain.parameters())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    for a, b in zip(plain.parameters(), deploy.point_depth(model, 4).parameters(), strict=True):
        assert torch.equal(a, b)


def test_categorical_law_with_a_shared_head_is_a_depth_uncertainty_network() -> None:
    x, y = data()
    net = MLP(2, 3, 6)
    model = UnboundedDepth(
        net.layer,
        lambda depth: nn.Identity(),
        shared_head=lambda: nn.Linear(6, 3),
        law=FreeCategorical(5),
        prior=UniformPrior(5),
        dtype=torch.float64,
    )
    with torch.no_grad():
        for i, p in enumerate(model.law_parameters):
            p.fill_(0.3 * i)
    got = elbo(model.draw(x), Categorical(3), y, size=len(x), temperature=1.0)
    alpha = torch.softmax(torch.tensor([0.3 * i for i in range(5)], dtype=torch.float64), 0)
    h, expected = x, -(alpha * (alpha * 5).log()).sum()
    assert model.readout is not None
    penalty = decay(model.readout)
    for depth in range(5):
        layer = model.layers[str(depth + 1)]
        h = layer(h)
        expected = expected - alpha[depth] * F.cross_entropy(model.readout(h), y, reduction="sum")
        penalty = penalty + alpha[depth:].sum() * decay(layer)
    assert got.value.item() == pytest.approx((expected - penalty).item(), rel=1e-10)


def test_equal_minibatches_average_to_the_full_batch() -> None:
    x, y = data(60)
    values, gradients = [], []
    for batch in torch.arange(60).split(15):
        model = build()
        e = elbo(model.draw(x[batch]), Categorical(3), y[batch], size=60)
        e.value.backward()
        values.append(e.value.item())
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    model = build()
    e = elbo(model.draw(x), Categorical(3), y, size=60)
    e.value.backward()
    assert sum(values) / 4 == pytest.approx(e.value.item(), rel=1e-10)
    full = [p.grad for p in model.parameters() if p.grad is not None]
    for i, g in enumerate(full):
        assert torch.allclose(sum(row[i] for row in gradients) / 4, g, atol=1e-9)


def test_row_weights_count_as_repetitions() -> None:
    x, y = data(8)
    model, weight = build(), torch.tensor([1.0, 2.0, 0.0, 1.0, 3.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    repeated = torch.arange(8).repeat_interleave(weight.long())
    a = elbo(model.draw(x), Categorical(3), y, size=8, weight=weight).value
    b = elbo(model.draw(x[repeated]), Categorical(3), y[repeated], size=len(repeated)).value
    assert a.item() == pytest.approx(b.item(), rel=1e-12)


@torch.no_grad()
def test_mean_field_bound_matches_monte_carlo_and_is_below_the_importance_weighted_bound() -> None:
    """E log p(y, w)/q(w) by our own draws; the importance-weighted bound E log mean_n p(y, w)/q(w) lies above it."""
    g = torch.Generator().manual_seed(0)
    x, y = data(20)
    model = UnboundedDepth(
        NET.layer, NET.head, law=FixedDepth((0,)), weights="meanfield", weight_scale=0.3, dtype=torch.float64
    )
    n, parts = 4000, [model.layers["1"], model.heads["1"]]
    log_ratio = torch.zeros(n, dtype=torch.float64)  # log p(w) − log q(w)
    drawn: list[dict[str, Tensor]] = []
    for part in parts:
        weights = {}
        for (name, mean), log_scale in zip(part.module.named_parameters(), part.log_scale, strict=True):
            q = torch.distributions.Normal(mean, log_scale.exp())
            w = mean + log_scale.exp() * torch.randn(n, *mean.shape, generator=g, dtype=torch.float64)
            log_ratio += (torch.distributions.Normal(0.0, 1.0).log_prob(w) - q.log_prob(w)).flatten(1).sum(1)
            weights[name] = w
        drawn.append(weights)
    h = torch.vmap(lambda w: torch.func.functional_call(parts[0].module, w, (x,)))(drawn[0])
    f = torch.vmap(lambda w, h: torch.func.functional_call(parts[1].module, w, (h,)))(drawn[1], h)
    log_p = Categorical(3).log_prob(f, y).sum(1) + log_ratio  # (n,)
    draws = model.draw(x, n, g)
    reported = float(elbo(draws, Categorical(3), y, size=20).value) + float(draws.divergence["depth"])
    error = float(log_p.std()) / n**0.5
    assert reported == pytest.approx(float(log_p.mean()), abs=5.0 * error)
    weighted = (log_p.view(-1, 50).logsumexp(1) - math.log(50)).mean()
    assert float(weighted) > reported + 5.0 * error


def test_exact_posterior_over_depth_on_a_conjugate_chain() -> None:
    """Layers are fixed maps, each head is one weight with Gaussian noise: evidence and posterior are closed forms."""
    g = torch.Generator().manual_seed(2)
    n, noise, depths = 12, 0.7, 4
    x = torch.randn(n, 1, generator=g, dtype=torch.float64)
    y = (x**2 - 1.0) * 0.9 + noise * torch.randn(n, 1, generator=g, dtype=torch.float64)

    class Fixed(nn.Module):
        def forward(self, h: Tensor) -> Tensor:
            return torch.sin(1.7 * h) + 0.3 * h**2

    model = UnboundedDepth(
        lambda k: Fixed(),
        lambda k: nn.Linear(1, 1, bias=False),
        law=FreeCategorical(depths),
        prior=PoissonPrior(1.0),
        min_depth=0,
        weights="meanfield",
        dtype=torch.float64,
    )
    likelihood = Gaussian(noise=noise)
    log_evidence, h = [], x
    for depth in range(depths):
        h = Fixed()(h) if depth else h
        precision = 1.0 + float((h**2).sum()) / noise**2
        mean = float((h * y).sum()) / noise**2 / precision
        with torch.no_grad():
            model.heads[str(depth)].module.weight.fill_(mean)
            model.heads[str(depth)].log_scale[0].fill_(-0.5 * math.log(precision))
        covariance = noise**2 * torch.eye(n, dtype=torch.float64) + h @ h.T
        law = torch.distributions.MultivariateNormal(torch.zeros(n, dtype=torch.float64), covariance)
        log_evidence.append(float(law.log_prob(y[:, 0])))
    log_joint = torch.tensor(log_evidence) + PoissonPrior(1.0).log_prob(torch.arange(float(depths)))
    exact = torch.softmax(log_joint.double(), 0)
    with torch.no_grad():
        for p, value in zip(model.law_parameters, exact.log(), strict=True):
            p.fill_(value)
    values, gradients = [], []
    for _ in range(400):
        model.zero_grad()
        e = elbo(model.draw(x, 8, g), likelihood, y, size=n)
        e.value.backward()
        values.append(e.value.item())
        gradients.append([p.grad.item() for p in model.law_parameters])  # type: ignore[union-attr]
    value, slope = torch.tensor(values, dtype=torch.float64), torch.tensor(gradients, dtype=torch.float64)
    error = float(value.std()) / 20.0
    assert float(value.mean()) == pytest.approx(float(log_joint.double().logsumexp(0)), abs=4.0 * error)
    assert bool((slope.mean(0).abs() < 4.0 * slope.std(0) / 20.0 + 1e-12).all())  # stationary at the exact posterior
    with torch.no_grad():
        model.law_parameters[0].add_(0.7)
    wrong = [elbo(model.draw(x, 8, g), likelihood, y, size=n).value.item() for _ in range(400)]
    assert sum(wrong) / 400 < float(value.mean()) - 4.0 * error


def test_gradient_of_the_noise_is_the_closed_form() -> None:
    """d ELBO / d log σ = N (E_q e²/σ² − 1)."""
    x, _ = data()
    y = x[:, :1] * 2.0
    net = MLP(2, 1, 6)
    model = UnboundedDepth(net.layer, net.head, dtype=torch.float64)
    likelihood = Gaussian(noise="learned", min_noise=1e-6).double()
    elbo(model.draw(x), likelihood, y, size=64).value.backward()
    draws = model.draw(x)
    sigma = likelihood.noise.log_scale().exp().item()  # type: ignore[operator, union-attr]
    squares = (draws.log_weight.exp()[:, None, None] * (draws.f - y) ** 2).sum(0)
    expected = ((squares / sigma**2 - 1.0).sum()).item()
    raw = next(likelihood.parameters())
    assert raw.grad is not None
    assert float(raw.grad.sum()) == pytest.approx(expected, rel=1e-6)


def test_a_prior_that_ends_inside_the_support_is_refused() -> None:
    with pytest.raises(DepthError, match="no mass"):
        build("soft", prior=UniformPrior(2))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weights": "mcmc"}, "weights='mcmc'"),
        ({"min_depth": -1}, "min_depth=-1"),
        ({"max_depth": 0}, "max_depth=0"),
        ({"head_divergence": "all"}, "head_divergence"),
        ({"growth": "fast"}, "growth"),
    ],
)
def test_options_that_are_not_allowed_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        build(**options)


def test_the_paper_s_image_architecture_has_its_shapes() -> None:
    """Stages of 3, 5 and endless blocks with 256, 512 and 1,024 channels; head inputs 4,096, 2,048, 1,024."""
    for stem_counts, first in ((False, 1), (True, 2)):
        net = ConvNet(stem_counts=stem_counts)
        inputs = {k: net.head(k)[2].in_features for k in range(1, 13)}  # type: ignore[index, union-attr]
        expected = {k: 4096 if k < first + 3 else 2048 if k < first + 8 else 1024 for k in range(1, 13)}
        assert inputs == expected


def test_draws_are_frozen_and_weigh_one() -> None:
    model, (x, _) = build("soft", weights="meanfield"), data()
    draws = model.draw(x, 5, torch.Generator().manual_seed(1))
    assert isinstance(draws, Draws)
    assert draws.f.shape == (5 * len(model._support), 64, 3)
    assert torch.logsumexp(draws.log_weight, 0).item() == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(AttributeError):
        draws.f = draws.f  # type: ignore[misc]


def test_weighing_follows_the_parameters() -> None:
    """Weights of depths cached between training steps are recomputed after a change of η."""
    model, (x, y) = build("soft"), data()

    def weights() -> list[float]:
        return model.draw(x).log_weight.tolist()

    model.law_parameters[0].requires_grad_(False)
    seen = [weights()]
    with torch.no_grad():
        model.law_parameters[0].add_(0.05)
        model.grow()
    seen.append(weights())
    model.load_state_dict(model.state_dict() | {"law_parameters.0": torch.tensor(1.9, dtype=torch.float64)})
    seen.append(weights())
    model.eval()
    with torch.no_grad():
        model.law_parameters[0].add_(0.05)
    seen.append(weights())
    assert len({tuple(row) for row in seen}) == 4
    with torch.inference_mode():
        model.draw(x)
    model.train()
    elbo(model.draw(x), Categorical(3), y, size=64).value.backward()


def test_the_prior_can_follow_the_shape_of_a_layer() -> None:
    """s² is scale² 2/fan-in for matrices and 1 for vectors; mean-field and point estimates have the same prior."""
    prior = WeightPrior(2.0, fan_in=True)
    model = build("point", weight_prior=prior)
    expected = 0.0
    for part in [*(model.layers[str(k)] for k in range(1, 5)), model.heads["4"]]:
        for p in part.parameters():
            variance = 4.0 * 2.0 / p.shape[1] if p.ndim == 2 else 1.0
            expected += 0.5 * float((p.detach() ** 2).sum()) / variance
    assert model.draw(data()[0]).divergence["weights"].item() == pytest.approx(expected, rel=1e-10)


def test_decay_is_summed_in_double_precision() -> None:
    big = torch.full((2_000_000,), 0.01)
    assert weight_decay([big, big[:100]], torch.tensor([2_000_000, 100]))[0].item() == pytest.approx(100.0, rel=1e-6)


def test_moving_to_another_precision_keeps_the_model_whole() -> None:
    x, y = data()
    model = build("soft", dtype=torch.float32)
    expected = elbo(model.draw(x.float()), Categorical(3), y, size=64).value.item()
    model.double()
    assert model.dtype is torch.float64
    assert elbo(model.draw(x), Categorical(3), y, size=64).value.item() == pytest.approx(expected, rel=1e-4)
    move_to(model, 4.0)
    assert {p.dtype for p in model.layers.parameters()} == {torch.float64}


def test_usage_is_what_the_likelihood_sees_also_with_bundled_heads() -> None:
    model = build("soft", head_divergence="cumulative")
    for depth, q in model.depth_posterior().items():
        assert float(model.use_probability()[f"heads.{depth}.weight"]) == pytest.approx(q)


def test_only_a_path_in_one_direction_is_unsettled() -> None:
    rate = [0.5 * (1.0 + math.cos(math.pi * i / 30)) for i in range(30)]

    def rows(depths: list[float]) -> list[dict[str, float]]:
        return [
            {"epoch": i + 1, "learning_rate": r, "mean_depth": d}
            for i, (r, d) in enumerate(zip(rate, depths, strict=True))
        ]

    assert depth_drift(rows([2.0 + 0.05 * i for i in range(30)])) > 2.0
    assert depth_drift(rows([9.0 - 0.05 * i for i in range(30)])) < -2.0
    assert depth_drift(rows([4.0 + 0.3 * (-1) ** i for i in range(30)])) == 0.0
    assert depth_drift(rows([4.0 + min(i, 15) * 0.2 for i in range(30)])) == 0.0
    assert depth_drift([]) == 0.0


def twice_differentiable() -> tuple[UnboundedDepth, Tensor]:
    net = MLP(inputs=2, outputs=1, width=6, activation="tanh")
    model = UnboundedDepth(net.layer, net.head, dtype=torch.float64)
    return model, torch.randn(3, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()


def test_second_derivatives_through_the_heads_are_those_of_the_networks_one_by_one() -> None:
    model, x = twice_differentiable()
    layers = [model.layers[str(k)] for k in (1, 2, 3)]
    alone = nn.Sequential(*layers, model.heads["3"])
    found = []
    for f in (model(x).f[2], alone(x)):
        (slope,) = torch.autograd.grad(f.sum(), x, create_graph=True)
        found.append(torch.autograd.grad(slope.square().sum(), [x, *alone.parameters()], allow_unused=True))
    for ours, theirs in zip(*found, strict=True):
        assert (ours is None) == (theirs is None)
        torch.testing.assert_close(ours, theirs)
    assert torch.autograd.gradgradcheck(lambda x: model(x).f, (x,))


def test_second_derivatives_under_torch_func_are_those_of_autograd() -> None:
    model, x = twice_differentiable()
    expected = torch.autograd.functional.hessian(lambda x: model(x).f[2].sum(), x.detach())
    found = vmap(jacrev(jacrev(lambda row: model(row[None]).f[:, 0, 0])))(x.detach())
    for i in range(len(x)):
        torch.testing.assert_close(found[i, 2], expected[i, :, i])


def test_gradcheck_takes_networks_of_all_depths() -> None:
    model, x = twice_differentiable()
    assert torch.autograd.gradcheck(lambda x: model(x).f.sum(), (x,))


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_decay_can_be_differentiated_twice(joined: bool, dtype: torch.dtype) -> None:
    """Its second derivative is the identity; first derivatives are bit-identical with and without ``create_graph``."""
    g = torch.Generator().manual_seed(0)
    given = [torch.randn(shape, generator=g, dtype=dtype).requires_grad_() for shape in ((2, 3), (4,))]
    share = torch.tensor([0.3, 2.0], dtype=torch.float64)

    def of(*parameters: Tensor) -> Tensor:
        return (weight_decay(parameters, torch.tensor([6, 4])) if joined else weight_decay_of_many(parameters)) @ share

    once = torch.autograd.grad(of(*given), given)
    again = torch.autograd.grad(of(*given), given, create_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))
    curvature = torch.autograd.grad(sum(s.sum() for s in again), given)
    for found, expected in zip(curvature, share, strict=True):
        assert torch.equal(found, torch.full_like(found, expected.item()))
    vector = given[1].detach()
    of_first = jacrev(jacrev(lambda p: of(p, vector)))(given[0].detach()).reshape(6, 6)
    torch.testing.assert_close(of_first, 0.3 * torch.eye(6, dtype=dtype))


class Tied(nn.Module):
    """Two linear maps with the same weights."""

    def __init__(self, *_: int) -> None:
        super().__init__()
        self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6)
        self.c.weight = self.b.weight

    def forward(self, x: Tensor) -> Tensor:
        tied: Tensor = self.c(self.b(x).tanh())
        return tied


def test_tied_weights_are_charged_once() -> None:
    model = UnboundedDepth(Tied, lambda _: nn.Linear(6, 1), dtype=torch.float64)
    q = model.depth_posterior()
    each = [decay(model.layers[str(k)]).item() for k in range(1, model.depth + 1)]  # whose parameters are listed once
    expected = sum(p * (sum(each[:k]) + decay(model.heads[str(k)]).item()) for k, p in q.items())
    found = model(torch.zeros(2, 6, dtype=torch.float64)).divergence["weights"]
    assert found.item() == pytest.approx(expected, rel=1e-10)
    drawn = MeanField(Tied())
    assert len(drawn.log_scale) == 3  # a matrix, two biases
    assert drawn(torch.zeros(2, 6))[0].shape == (2, 6)


# ---- predictions


@pytest.mark.parametrize("law", LAWS)
def test_predictions_defer_the_same_divergences(law: str) -> None:
    model = build(law).eval()
    both = Ensemble([model, build(law, seed=4).eval()])
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for each in (model, both):
        with_graph = each.draw(x)
        with torch.no_grad():
            draws = each.draw(x)
        assert isinstance(draws.divergence, Deferred)
        assert torch.equal(draws.f, with_graph.f)
        assert torch.equal(draws.log_weight, with_graph.log_weight)
        assert torch.equal(draws.structure, with_graph.structure)
        assert dict(draws.divergence).keys() == with_graph.divergence.keys()
        for name, term in with_graph.divergence.items():
            torch.testing.assert_close(draws.divergence[name], term.detach())
        likelihood, y = Categorical(3), torch.zeros(5, dtype=torch.int64)
        bounds = [elbo(found, likelihood, y, size=5).value.item() for found in (draws, with_graph)]
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-6)


def test_predictions_follow_changed_weights_and_masses() -> None:
    model = build().eval()
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model.weigh({1: 0.5, 2: 0.5})
    with torch.no_grad():
        before = model.draw(x)
        model.weigh({1: 0.9, 2: 0.1})  # the same support
        after = model.draw(x)
        assert before.log_weight.exp().tolist() == pytest.approx([0.5, 0.5])
        assert after.log_weight.exp().tolist() == pytest.approx([0.9, 0.1])
        for parameter in model.layers.parameters():
            parameter.mul_(2.0)
        assert not torch.equal(model.draw(x).f, after.f)
        expected = model.train().draw(x).divergence["weights"]
        torch.testing.assert_close(model.eval().draw(x).divergence["weights"], expected)
    with torch.no_grad():
        assert model.float().draw(x.float()).log_weight.dtype == torch.float32
        model.law = FixedDepth((0, 1), (0.3, 0.7))
        assert model.draw(x.float()).log_weight.exp().tolist() == pytest.approx([0.3, 0.7])


@pytest.mark.parametrize("around", ["inference", "fake", "gradient"])
def test_predictions_leave_no_trace_in_the_model(around: str) -> None:
    """A prediction in another mode of torch does not change a later training, copy or prediction."""
    model = build().eval()
    model.weigh({1: 0.5, 2: 0.5})
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = model.draw(x).f.detach()
    if around == "inference":
        with torch.inference_mode():
            draws = model.draw(x)
    elif around == "fake":
        make_fx(lambda x: model.draw(x).f, tracing_mode="fake", _allow_non_fake_inputs=True)(x)
    else:
        jacrev(lambda x: model.draw(x).f.sum())(x)
    model.train().draw(x).f.sum().backward()
    model.eval()
    with torch.no_grad():
        draws = pickle.loads(pickle.dumps(copy.deepcopy(model).draw(x)))
    assert type(draws.log_weight) is Tensor
    assert torch.equal(draws.f, expected)
    assert draws.divergence["weights"].item() > 0.0
    assert draws.divergence["depth"].item() >= 0.0
