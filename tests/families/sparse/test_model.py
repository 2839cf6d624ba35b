"""Layers with spikes and slabs, networks of them, and multipliers."""

import copy
import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fathomless.data.rows import Rows
from fathomless.families.depth.model import UnboundedDepth
from fathomless.families.sparse.model import InputSkip, SparseNetwork, inclusion_table, parameter_groups
from fathomless.inference.runs.run import Run
from fathomless.inference.variational.batched import fit_batched
from fathomless.inference.variational.objective import elbo
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP
from fathomless.nn.bayesian import Bayesian, bayesian, sparse_layers
from fathomless.nn.layers import MeanField, gaussian_divergence
from fathomless.nn.multiplicative_flow import FlowOptions, Multiplier
from fathomless.nn.sparse_layer import SpikeSlab
from fathomless.nn.spike_slab import SlabPrior, SlabStart
from fathomless.posterior.likelihoods import Categorical, Gaussian
from fathomless.system.errors import DataError
from trainings import state_of

WIDE = SlabStart(logit=(-2.0, 2.0), log_scale=(-1.0, 0.3))
FLOW = FlowOptions(hidden=(8, 8), output=2.0, gate=0.5)

MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(6, 4), (6,)),
    "linear without bias": (lambda: nn.Linear(6, 4, bias=False), (6,)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), (4, 9)),
    "conv2d": (lambda: nn.Conv2d(2, 4, 3, padding=1, dilation=2, groups=2), (2, 7, 6)),
    "conv2d same": (lambda: nn.Conv2d(2, 3, 3, padding="same"), (2, 5, 5)),
    "conv2d reflect": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 5, 5)),
    "conv3d": (lambda: nn.Conv3d(2, 2, 2, stride=(1, 2, 1)), (2, 3, 4, 3)),
}


def layer(name: str, seed: int = 0, **options: Any) -> SpikeSlab:
    torch.manual_seed(seed)
    return SpikeSlab(MODULES[name][0](), SlabPrior(0.3), start=WIDE, bias_start=WIDE, **options)


def inputs(name: str, rows: int = 3) -> Tensor:
    return torch.randn(rows, *MODULES[name][1], generator=torch.Generator().manual_seed(1))


def network(*sizes: int, **options: Any) -> Bayesian:
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for a, b in pairwise(sizes):
        parts += [nn.Linear(a, b), nn.ReLU()]
    return bayesian(nn.Sequential(*parts[:-1]), lambda _, part: SpikeSlab(part, **{"start": WIDE, **options}))


# ---- one layer


@pytest.mark.parametrize("multiplier", [None, FLOW], ids=["plain", "flow"])
@pytest.mark.parametrize("name", MODULES)
@torch.no_grad()
def test_local_outputs_have_the_moments_of_drawn_weights(
    name: str, multiplier: FlowOptions | None, generator: torch.Generator
) -> None:
    own, x, n = layer(name, multiplier=multiplier), inputs(name, 1), 1000
    if own.multiplier is not None:
        fixed = own.multiplier(generator)
        own.multiplier.forward = lambda *_: fixed  # type: ignore[method-assign]
        own.multiplier.log_auxiliary = lambda *_: torch.zeros(())  # type: ignore[method-assign]
    local = own(x.expand(10 * n, *x.shape[1:]), generator)[0].double()  # noise is drawn for every row
    own.eval()
    exact = torch.cat([own(x, generator)[0] for _ in range(n)]).double()
    error = (local.var(0) / len(local) + exact.var(0) / n).sqrt()
    assert bool(((local.mean(0) - exact.mean(0)).abs() < 5.0 * error + 1e-6).all())
    fourth = [(((f - f.mean(0)) ** 4).mean(0) - f.var(0) ** 2) / len(f) for f in (local, exact)]
    assert bool(((local.var(0) - exact.var(0)).abs() < 5.0 * (fourth[0] + fourth[1]).sqrt() + 1e-6).all())


def test_multiplier_one_reproduces_the_layer_without_it_given_the_same_noise() -> None:
    plain, flowing = layer("linear"), layer("linear", multiplier=FLOW)
    flowing.load_state_dict(plain.state_dict(), strict=False)
    assert flowing.multiplier is not None
    flowing.multiplier.forward = lambda *_: (torch.ones(6), torch.zeros(()))  # type: ignore[method-assign]
    flowing.multiplier.log_auxiliary = lambda *_: torch.zeros(())  # type: ignore[method-assign]
    x = inputs("linear")
    a, b = (own(x, torch.Generator().manual_seed(3)) for own in (plain, flowing))
    assert torch.equal(a[0], b[0])
    assert torch.equal(a[1], b[1])


def test_without_inclusion_it_is_mean_field() -> None:
    own, x = layer("linear", inclusion=False), inputs("linear")
    assert own.bias is not None
    _, divergence = own(x, torch.Generator().manual_seed(0))
    parts = ((own.weight.mean, own.weight.log_scale), (own.bias.mean, own.bias.log_scale))
    expected = sum(gaussian_divergence(m.detach(), s.detach().exp()).item() for m, s in parts)
    assert divergence.item() == pytest.approx(expected, rel=1e-6)
    field = MeanField(nn.Linear(6, 4))
    with torch.no_grad():
        for to, value in zip(field.module.parameters(), (p[0] for p in parts), strict=True):
            to.copy_(value)
        for to, value in zip(field.log_scale, (p[1] for p in parts), strict=True):
            to.copy_(value)
    assert field(x, torch.Generator())[1].item() == pytest.approx(expected, rel=1e-6)


@torch.no_grad()
def test_surely_included_weights_give_the_dense_layer() -> None:
    sparse, dense = layer("conv2d"), layer("conv2d", inclusion=False)
    dense.load_state_dict(sparse.state_dict(), strict=False)
    assert sparse.weight.logit is not None
    sparse.weight.logit.fill_(60.0)
    x = inputs("conv2d")
    (a, ka), (b, kb) = (own(x, torch.Generator().manual_seed(3)) for own in (sparse, dense))
    torch.testing.assert_close(a, b)
    assert ka.item() == pytest.approx(kb.item() + sparse.weight.logit.numel() * math.log(1.0 / 0.3), rel=1e-6)


@torch.no_grad()
def test_surely_excluded_weights_leave_the_bias() -> None:
    own = layer("linear").eval()
    assert own.weight.logit is not None
    assert own.bias is not None
    own.weight.logit.fill_(-800.0)
    own.predict_by, own.use_means = "median", True
    torch.testing.assert_close(own(inputs("linear"))[0], own.bias.mean.expand(3, 4))


def test_a_row_of_zeros_without_bias_has_finite_gradients() -> None:
    own = layer("linear without bias")
    own(torch.zeros(2, 6), torch.Generator())[0].sum().backward()
    assert all(p.grad is None or bool(p.grad.isfinite().all()) for p in own.parameters())


def test_half_precision_keeps_variances_and_divergences_in_single() -> None:
    own, x = layer("linear"), inputs("linear")
    plain = own(x, torch.Generator().manual_seed(0))
    with torch.autocast("cpu", torch.bfloat16):
        half = own(x, torch.Generator().manual_seed(0))
    assert half[1].dtype == torch.float64
    assert torch.equal(half[1], plain[1])
    torch.testing.assert_close(half[0].float(), plain[0], atol=0.1, rtol=0.05)


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (nn.LayerNorm(3), {}, "a layer of type LayerNorm was given"),
        (nn.ConvTranspose1d(2, 2, 2), {}, "a layer of type ConvTranspose1d was given"),
        (nn.Linear(3, 2), {"estimator": "flipout"}, "estimator='flipout' was given"),
        (nn.Linear(3, 2), {"temperature": 0.0}, "temperature=0.0 was given"),
    ],
)
def test_what_a_layer_cannot_be_is_refused(module: nn.Module, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as error:
        SpikeSlab(module, **options)
    assert message in str(error.value)


# ---- the auxiliary density


class _Tiny:
    """One weight, a normal z without flow, and r = N(a, c²) in place of the auxiliary density."""

    m0, s0, mu, sigma, alpha, alpha0 = 0.8, 0.6, 1.1, 0.4, 0.6, 0.25

    def estimate(self, log_r: Callable[[Tensor, Tensor, Tensor], Tensor], n: int = 400_000) -> tuple[float, float]:
        g = torch.Generator().manual_seed(0)
        noise = torch.randn(n, 2, generator=g, dtype=torch.float64)
        z = self.m0 + self.s0 * noise[:, 0]
        included = torch.rand(n, generator=g, dtype=torch.float64) < self.alpha
        w = torch.where(included, z * self.mu + self.sigma * noise[:, 1], 0.0)
        slab = math.log(1.0 / self.sigma) - 0.5 + (self.sigma**2 + (z * self.mu) ** 2) / 2.0
        k = self.alpha * (slab + math.log(self.alpha / self.alpha0))
        k = k + (1.0 - self.alpha) * math.log((1.0 - self.alpha) / (1.0 - self.alpha0))
        log_q = torch.distributions.Normal(self.m0, self.s0).log_prob(z)
        total = k + log_q - log_r(z, w, included)
        return total.mean().item(), total.std().item() / math.sqrt(n)

    def posterior(self, z: Tensor, w: Tensor, included: Tensor) -> Tensor:
        precision = 1.0 / self.s0**2 + self.mu**2 / self.sigma**2
        mean = (self.m0 / self.s0**2 + w * self.mu / self.sigma**2) / precision
        on = torch.distributions.Normal(mean, precision**-0.5).log_prob(z)
        return torch.where(included, on, torch.distributions.Normal(self.m0, self.s0).log_prob(z))

    def marginal(self) -> float:
        spread = self.sigma**2 + self.mu**2 * self.s0**2
        slab = -0.5 * math.log(spread) - 0.5 + (spread + (self.mu * self.m0) ** 2) / 2.0
        on = self.alpha * (slab + math.log(self.alpha / self.alpha0))
        return on + (1.0 - self.alpha) * math.log((1.0 - self.alpha) / (1.0 - self.alpha0))


def test_the_penalty_is_the_marginal_divergence_for_the_true_auxiliary_density_and_larger_for_others() -> None:
    tiny = _Tiny()
    assert tiny.marginal() == pytest.approx(0.5403, abs=1e-4)
    best, error = tiny.estimate(tiny.posterior)
    assert abs(best - tiny.marginal()) < 4.0 * error
    own = torch.distributions.Normal(tiny.m0, tiny.s0)
    for density, expected in ((own, 0.934), (torch.distributions.Normal(0.0, 1.0), 1.444)):
        value, error = tiny.estimate(lambda z, w, i, density=density: density.log_prob(z))
        assert abs(value - expected) < 4.0 * error + 5e-4
        assert value > tiny.marginal()


def multiplier(d: int, **options: Any) -> Multiplier:
    torch.manual_seed(d)
    return Multiplier(
        d, FlowOptions(**{"hidden": (8,), "gate": 0.3, "output": 2.0, "summary": 0.7, **options})
    ).double()


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("d", [1, 2, 3])
@torch.no_grad()
def test_the_auxiliary_density_sums_to_one(d: int, intercept: bool) -> None:
    own, n = multiplier(d, intercept=intercept, base_mean=(0.3, 0.2), base_log_variance=(1.0, 0.0)), 20_000
    mean, variance = torch.tensor([0.4, -0.2], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    g = torch.Generator().manual_seed(0)
    z = 4.0 * torch.randn(n, d, generator=g, dtype=torch.float64)
    each = (z, mean.expand(n, 2), variance.expand(n, 2))
    log_r = torch.vmap(lambda *one: own.log_auxiliary(*one, g), randomness="different")(*each)
    log_t = torch.distributions.Normal(0.0, 4.0).log_prob(z).sum(1)
    ratio = (log_r - log_t).exp()
    assert abs(ratio.mean().item() - 1.0) < 5.0 * ratio.std().item() / math.sqrt(n)


@torch.no_grad()
def test_the_auxiliary_density_uses_every_coordinate_and_their_order_only_through_its_parameters() -> None:
    own = multiplier(3, steps=0)
    z, still = torch.randn(3, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    mean = torch.tensor([0.5, 0.1], dtype=torch.float64)
    first = own.log_auxiliary(z, mean, still, torch.Generator())
    order = torch.tensor([2, 0, 1])
    other = copy.deepcopy(own)
    for name in ("centre", "spread", "centre_intercept", "spread_intercept"):
        getattr(other, name).copy_(getattr(own, name)[order])
    assert other.log_auxiliary(z[order], mean, still, torch.Generator()).item() == pytest.approx(first.item())
    for i in range(3):
        moved = z.clone()
        moved[i] += 1.0
        assert own.log_auxiliary(moved, mean, still, torch.Generator()).item() != pytest.approx(first.item())


@pytest.mark.parametrize("name", ["linear", "conv2d"])
@torch.no_grad()
def test_the_summary_of_the_weights_has_the_moments_of_drawn_weights(name: str, generator: torch.Generator) -> None:
    own, n = layer(name, multiplier=FLOW), 20_000
    assert own.multiplier is not None
    z, _ = own.multiplier(generator)
    mean = own.weight.mean * own.act.align(z)
    m, v, _ = own.weight.moments(mean)
    e = own.multiplier.combine
    drawn = torch.stack([own.act.to_matrix(own.weight.draw(mean, "average", generator)) @ e for _ in range(n)]).double()
    variance = own.act.to_matrix(v) @ e.square()
    assert bool(((drawn.mean(0) - own.act.to_matrix(m) @ e).abs() < 5.0 * (variance / n).sqrt()).all())
    fourth = ((drawn - drawn.mean(0)) ** 4).mean(0) - variance**2
    assert bool(((drawn.var(0) - variance).abs() < 5.0 * (fourth / n).sqrt() + 1e-6).all())


def test_a_multiplier_starts_near_one_and_its_penalty_near_zero() -> None:
    torch.manual_seed(0)
    own = Multiplier(200, FlowOptions())
    z, log_q = own(torch.Generator().manual_seed(0))
    assert abs(z.mean().item() - 1.0) < 0.05
    assert z.std().item() < 0.3
    log_r = own.log_auxiliary(z, torch.zeros(4), torch.ones(4), torch.Generator().manual_seed(1))
    assert abs((log_q - log_r).item()) < 0.2 * 200


# ---- networks


def test_any_network_can_be_converted_and_keeps_its_code() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.module = nn.Linear(3, 5), nn.ModuleDict({"out": nn.Linear(5, 2)})

        def forward(self, x: Tensor) -> Tensor:
            hidden: Tensor = self.module["out"](self.layer(x).relu())
            return hidden

    own = bayesian(Two(), lambda name, part: SpikeSlab(part) if name == "module.out" else None)
    assert [name for name, _ in sparse_layers(own)] == ["module.out"]
    whole = bayesian(Two())
    assert [name for name, _ in sparse_layers(whole)] == ["layer", "module.out"]
    output, divergence = whole(torch.zeros(4, 3), torch.Generator())
    parts = [part(torch.zeros(4, part.weight.mean.shape[1]))[1] for _, part in sparse_layers(whole)]
    assert output.shape == (4, 2)
    assert divergence.item() == pytest.approx(sum(p.item() for p in parts))


def test_a_single_layer_and_a_conversion_without_layers() -> None:
    assert bayesian(nn.Linear(3, 2))(torch.zeros(4, 3))[0].shape == (4, 2)
    with pytest.raises(DataError, match="no layer of the ReLU was made Bayesian"):
        bayesian(nn.ReLU())
    with pytest.raises(DataError, match="no layer of the Linear"):
        bayesian(nn.Linear(3, 2), lambda *_: None)


def test_a_part_called_by_itself_or_twice_is_refused() -> None:
    own = network(3, 2)
    with pytest.raises(DataError, match="called outside the network"):
        own.module(torch.zeros(1, 3))

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden: Tensor = self.part(self.part(x))
            return hidden

    with pytest.raises(DataError, match="called twice in one pass"):
        bayesian(Twice())(torch.zeros(1, 3))


@pytest.mark.parametrize("whole", [True, False], ids=["layers", "weights"])
def test_weights_in_two_places_are_refused(whole: bool) -> None:
    """They would be free in one of them, or have two posteriors."""
    act, first, second = nn.ReLU(), nn.Linear(3, 3), nn.Linear(3, 3)
    if whole:
        second = first
    second.weight = first.weight
    module = nn.Sequential(first, act, second, act, nn.Linear(3, 2))
    with pytest.raises(DataError, match=r"the weights 0.weight and 2.weight are shared; .*use separate layers"):
        bayesian(module)
    own = bayesian(module, lambda name, part: SpikeSlab(part) if name == "4" else None)
    assert own(torch.zeros(4, 3))[0].shape == (4, 2)


def test_posterior_starts_at_the_weights_of_the_network_that_is_converted() -> None:
    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model = SparseNetwork(bayesian(plain)).set_prediction("median", use_means=True).eval()
    x = torch.randn(5, 3)
    torch.testing.assert_close(model.draw(x).f[0], plain(x))


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 9))
@settings(max_examples=20)
@torch.no_grad()
def test_batches_of_an_epoch_add_up_to_the_whole(rows: int, batch: int, seed: int) -> None:
    model = SparseNetwork(network(2, 3, 1), use_means=True).eval().double()
    likelihood = Gaussian(1, noise=0.5).double()
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(rows, 2, generator=g).double(), torch.randn(rows, 1, generator=g).double()
    whole = elbo(model.draw(x), likelihood, y, size=rows).value
    parts = [slice(i, i + batch) for i in range(0, rows, batch)]
    pieces = [elbo(model.draw(x[p]), likelihood, y[p], size=len(y[p])) for p in parts]
    total = sum(p.log_likelihood for p in pieces) - pieces[0].divergence["weights"]
    assert float(total) == pytest.approx(whole.item(), rel=1e-9)


def test_draws_are_whole_networks_whatever_the_rows_they_are_applied_to() -> None:
    model = SparseNetwork(network(3, 8, 2)).eval()
    x = torch.randn(6, 3)
    whole = model.draw(x, 5, torch.Generator().manual_seed(0)).f
    parts = torch.cat([model.draw(p, 5, torch.Generator().manual_seed(0)).f for p in x.split(2)], 1)
    torch.testing.assert_close(whole, parts)


@torch.no_grad()
def test_average_over_structures_by_enumeration(generator: torch.Generator) -> None:
    model = SparseNetwork(network(2, 1)).eval()
    (_, own), n = model.sparse_layers()[0], 1000
    assert own.weight.logit is not None
    assert own.bias is not None
    own.weight.log_scale.fill_(-12.0)
    own.bias.log_scale.fill_(-12.0)
    alpha, mu = own.weight.inclusion()[0].double(), own.weight.mean[0].double()
    x = torch.tensor([[0.7, -1.3]])
    f = model.draw(x, n, generator).f[:, 0, 0].double()
    expected, second = 0.0, 0.0
    for a in (0.0, 1.0):
        for b in (0.0, 1.0):
            p = (alpha[0] if a else 1 - alpha[0]) * (alpha[1] if b else 1 - alpha[1])
            q = torch.sigmoid(0.7 * a * mu[0] - 1.3 * b * mu[1] + own.bias.mean[0])
            expected, second = expected + float(p * q), second + float(p * q * q)
    assert abs(f.sigmoid().mean().item() - expected) < 4.0 * math.sqrt((second - expected**2) / n) + 1e-5


def test_density_counts_weights_by_hand_and_leaves_biases_out() -> None:
    model = SparseNetwork(network(3, 2, 1, bias_inclusion=True))
    for (_, own), logits in zip(
        model.sparse_layers(), ([[1.0, -1.0, 2.0], [-3.0, -0.5, 0.1]], [[-1.0, 4.0]]), strict=True
    ):
        assert own.weight.logit is not None
        own.weight.logit.data = torch.tensor(logits)
    rows = inclusion_table(model)
    assert [(row.layer, row.weights, row.kept) for row in rows] == [("0", 6, 3), ("2", 2, 1)]
    assert rows[0].density == 0.5
    assert rows[0].undecided == pytest.approx(2 / 6)
    found = model.structure()
    assert found.statistics["density"] == 0.5
    assert found.summary.startswith("4 of 8 weights")


def test_frozen_networks_keep_their_structure_in_training() -> None:
    model = SparseNetwork(network(4, 6, 2))
    before = [own.weight.inclusion() > 0.5 for _, own in model.sparse_layers()]
    model.freeze()
    x = torch.randn(50, 4)
    fit(model, Categorical(2), Rows(x, (x[:, 0] > 0).long()), training=Training(epochs=20, structure_every=1))
    assert all(
        torch.equal(b, own.weight.inclusion() > 0.5) for b, (_, own) in zip(before, model.sparse_layers(), strict=True)
    )
    draws = model.draw(x, 2, torch.Generator().manual_seed(0)).f
    model.set_prediction("median")
    torch.testing.assert_close(draws, draws)


def test_parameter_groups_hold_every_parameter_once() -> None:
    model = SparseNetwork(network(4, 6, 2, multiplier=FLOW))
    groups = parameter_groups(model, 1e-3)
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert [group["lr"] for group in groups] == [1e-3, 0.03, 1e-3]
    torch.optim.Adam(groups)


def test_what_a_sparse_network_refuses() -> None:
    with pytest.raises(DataError, match="without spike-and-slab layers"):
        SparseNetwork(MeanField(nn.Linear(2, 1)))
    with pytest.raises(DataError, match="predict_by='mean' was given"):
        SparseNetwork(network(2, 1), predict_by="mean")
    natural = Training(structure_optimizer="natural", epochs=1)
    with pytest.raises(DataError, match=r"for a SparseNetwork, which has no Fisher information .*; use .*='adam'"):
        fit(SparseNetwork(network(5, 1)), Gaussian(1), regression(2, 5, 60, 0), training=natural)
    with pytest.raises(DataError, match="must be equal"):
        SparseNetwork(network(2, 1)).merge([SparseNetwork(network(3, 1))])


def test_input_skip_is_linear_without_hidden_units() -> None:
    torch.manual_seed(0)
    own = InputSkip(3, [5, 4], 2, nn.ReLU())
    with torch.no_grad():
        own.layers[-1].weight[:, :4] = 0.0
    x, last = torch.randn(7, 3), own.layers[-1]
    torch.testing.assert_close(own(x), x @ last.weight[:, 4:].T + last.bias)


# ---- training


def regression(active: int, inputs: int, n: int, seed: int) -> Rows:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, inputs, generator=g)
    beta = torch.zeros(inputs)
    beta[:active] = torch.tensor([1.0, -1.0] * active)[:active]
    return Rows(x, (x @ beta + 0.5 * torch.randn(n, generator=g))[:, None])


def test_the_support_of_a_linear_problem_is_recovered() -> None:
    """Five of fifty inputs matter; the median probability model finds them for nine of ten seeds, or more."""
    sets = [regression(5, 50, 500, seed) for seed in range(10)]
    models = [SparseNetwork(bayesian(nn.Linear(50, 1))) for _ in sets]
    training = Training(epochs=200, batch_size=125, learning_rate=0.01, structure_rate=3.0, structure_every=1)
    fit_batched(models, [Gaussian(1) for _ in sets], sets, training=[training] * 10, seeds=list(range(10)))
    kept = [(model.sparse_layers()[0][1].weight.inclusion()[0] > 0.5).tolist() for model in models]
    assert sum(one == [True] * 5 + [False] * 45 for one in kept) >= 9


@pytest.mark.parametrize("multiplier", [None, FLOW], ids=["plain", "flow"])
def test_resumed_trainings_end_in_the_same_bytes(multiplier: FlowOptions | None) -> None:
    rows = regression(2, 5, 60, 0)
    training = Training(epochs=6, structure_every=1, batch_size=20)

    def start() -> SparseNetwork:
        return SparseNetwork(network(5, 6, 1, multiplier=multiplier))

    kept: list[Any] = []

    def keep(run: Run) -> None:
        if run.epoch == 3:
            kept.append(copy.deepcopy((run.tensors(), run.meta())))

    whole = state_of(fit, start(), Gaussian(1), rows, training=training, callbacks=[keep])
    again = state_of(fit, start(), Gaussian(1), rows, training=training, resume=kept[0])
    for name, value in whole.tensors().items():
        assert torch.equal(value, again.tensors()[name]), name


def test_depth_and_sparsity_are_inferred_together() -> None:
    net = MLP(inputs=6, outputs=1, width=8)
    model, rows = UnboundedDepth(net.layer, net.head, weights="sparse", min_depth=0), regression(2, 6, 200, 0)
    draws = model.draw(rows.x, 1, torch.Generator().manual_seed(0))
    expected = {}
    for name, part in model._parts:
        zeros = torch.zeros(1, 6 if name in ("layers.1", "heads.0") else 8)
        expected[name] = part(zeros, torch.Generator())[1].item()
    q, m = model.depth_posterior(), 0.0
    for name, value in expected.items():
        kind, _, number = name.partition(".")
        deep = (p for depth, p in q.items() if (depth == int(number) if kind == "heads" else depth >= int(number)))
        m += value * sum(deep)
    assert draws.divergence["weights"].item() == pytest.approx(m, rel=1e-6)
    before = inclusion_table(model)
    fit(model, Gaussian(1), rows, training=Training(epochs=60, learning_rate=0.02))
    assert sum(row.expected * row.weights for row in inclusion_table(model)) < sum(
        r.expected * r.weights for r in before
    )
    assert inclusion_table(model)[0].layer.startswith("layers.1")
