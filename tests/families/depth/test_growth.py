"""Unbounded depth: layers that are created, frozen and unfrozen."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from depth_models import LAWS, build, data, move_to
from fathomless.data.rows import Rows
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.out_of_fold.crossfit import crossfit, fold_indices
from fathomless.inference.variational.objective import elbo
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.nn.architectures import MLP, ConvNet, SequenceTransformer, TabularTransformer
from fathomless.posterior.laws import TruncatedPoisson
from fathomless.posterior.likelihoods import Categorical
from fathomless.system.errors import ConvergenceWarning, DataError


def test_objective_is_continuous_where_a_layer_enters() -> None:
    x, y = data()
    model = build("soft")
    likelihood = Categorical(3)

    def bound(eta: float) -> tuple[float, int]:
        move_to(model, eta)
        return elbo(model.draw(x), likelihood, y, size=len(x)).value.item(), model.depth

    low, high = 0.5, 4.0
    shallow = bound(low)[1]
    while high - low > 1e-9:  # the raw rate at which the next layer enters
        middle = 0.5 * (low + high)
        low, high = (middle, high) if bound(middle)[1] == shallow else (low, middle)
    before, after = bound(low), bound(high)
    assert after[1] == before[1] + 1
    assert after[0] == pytest.approx(before[0], abs=1e-4)


@pytest.mark.parametrize("residual", [False, True])
def test_identity_growth_preserves_the_function(residual: bool) -> None:
    net = MLP(2, 3, 6, residual=residual)
    model = UnboundedDepth(net.layer, net.head, law=LAWS["soft"], growth="identity", dtype=torch.float64)
    x, _ = data()
    old = model.depth
    move_to(model, 4.0)
    f = dict(zip(model.depth_posterior(), model.draw(x).f, strict=True))
    assert model.depth > old
    for depth in range(old + 1, model.depth + 1):
        assert torch.equal(f[depth], f[old])


def test_identity_growth_is_refused_where_it_has_no_meaning() -> None:
    for net in (MLP(2, 3, 6, activation="tanh"), MLP(2, 3, 6, activation="gelu")):
        with pytest.raises(DataError, match="identity"):
            UnboundedDepth(net.layer, net.head, growth="identity")


def test_identity_growth_leaves_layers_that_learn() -> None:
    """Zeros before a ReLU would never have a gradient."""
    for net, x in (
        (MLP(2, 3, 6, residual=True), data()[0].float()),
        (ConvNet(base=4, size=16, outputs=3, norm="group", stages=(30, 5)), torch.randn(64, 3, 16, 16)),
        (TabularTransformer(2, 3, width=8, heads=2), data()[0].float()),
    ):
        model = UnboundedDepth(net.layer, net.head, growth="identity", law=TruncatedPoisson(1.0))
        old = model.depth
        move_to(model, 4.0)
        elbo(model.draw(x), Categorical(3), data()[1], size=64).value.backward()
        for depth in range(old + 1, model.depth + 1):
            gradients = [p.grad for p in model.layers[str(depth)].parameters()]
            assert any(g is not None and float(g.abs().max()) > 1e-8 for g in gradients)


def test_initial_weights_do_not_depend_on_when_a_layer_is_made_or_on_evaluations() -> None:
    x, _ = data()
    early, late = build("soft"), build("soft")
    move_to(early, 6.0)
    for eta in (2.5, 0.1, 3.9):
        late.draw(x)
        torch.rand(3)  # the global stream must not matter, and must not be touched
        move_to(late, eta)
    move_to(late, 6.0)
    state = early.state_dict()
    assert state.keys() == late.state_dict().keys()
    assert all(torch.equal(state[name], value) for name, value in late.state_dict().items())


def test_building_leaves_the_global_random_stream_alone() -> None:
    before = torch.get_rng_state()
    move_to(build("soft"), 8.0)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("kind", ["adam", "sgd"])
@pytest.mark.parametrize("to_none", [True, False])
def test_layers_at_rest_stay_bit_for_bit(kind: str, to_none: bool) -> None:
    model, (x, y) = build("soft"), data()
    move_to(model, 4.0)
    weights = [p for name, p in model.named_parameters() if not name.startswith("law")]
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(weights, lr=0.01)
        if kind == "adam"
        else torch.optim.SGD(weights, lr=0.01, momentum=0.9, weight_decay=0.1)
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=to_none)
        (-elbo(model.draw(x), Categorical(3), y, size=64).value / 64).backward()
        optimizer.step()

    for _ in range(3):
        step()
    deep = model.depth
    move_to(model, 0.5)
    resting = [p for k in range(model.depth + 1, deep + 1) for p in model.layers[str(k)].parameters()]
    kept = [p.clone() for p in resting]
    states = [{k: v.clone() for k, v in optimizer.state[p].items()} for p in resting]
    for _ in range(5):
        step()
    for p, value, state in zip(resting, kept, states, strict=True):
        assert torch.equal(p, value)
        assert p.grad is None
        assert all(torch.equal(v, optimizer.state[p][k]) for k, v in state.items())
    move_to(model, 4.0)
    step()
    assert not torch.equal(resting[0], kept[0])  # awake again


@pytest.mark.parametrize("law", LAWS)
def test_state_is_loaded_by_name_at_any_depth(law: str) -> None:
    """Loading into a deeper and into a shallower model works, too."""
    x, _ = data()
    model = build(law)
    move_to(model, 2.5)
    move_to(model, 0.3)
    for eta in (0.1, 5.0):
        other = build(law, seed=9)
        move_to(other, eta)
        other.rebuild(model.blueprint())
        other.load_state_dict(model.state_dict())
        a, b = model.draw(x), other.draw(x)
        assert torch.equal(a.f, b.f)
        assert torch.equal(a.log_weight, b.log_weight)
        assert other.blueprint() == model.blueprint()


def test_depth_stays_below_max_depth_with_a_warning() -> None:
    model = build("soft", max_depth=7)
    with pytest.warns(ConvergenceWarning, match="max_depth=7"):
        move_to(model, 20.0)
    assert model.depth == len(model.layers) == 7
    assert sum(model.depth_posterior().values()) == pytest.approx(1.0)


def test_growth_obeys_its_rate_limit() -> None:
    model = build("soft")
    with torch.no_grad():
        model.law_parameters[0].fill_(20.0)
    before = len(model.layers)
    assert model.grow(limit=2) == 4  # with their heads
    assert len(model.layers) == model.depth == before + 2
    assert sum(model.depth_posterior().values()) == pytest.approx(1.0)


def test_a_task_without_structure_keeps_the_network_shallow() -> None:
    x, y = data()
    model = build("soft")
    fit(
        model,
        Categorical(3),
        Rows(x, torch.zeros_like(y)),
        training=Training(epochs=400, structure_rate=4.0, structure_every=1),
        seed=0,
    )
    assert model.structure().statistics["mean_depth"] < 2.0
    assert model.depth <= 4


@pytest.mark.parametrize(
    ("net", "x"),
    [
        (ConvNet(base=4, size=16, outputs=2), torch.randn(3, 3, 16, 16)),
        (ConvNet(base=4, size=28, channels=1, outputs=2, norm="group"), torch.randn(3, 1, 28, 28)),
        (ConvNet(base=4, outputs=2, stem_counts=True), torch.randn(3, 3, 32, 32)),
        (TabularTransformer(5, 2, width=8, heads=2), torch.randn(3, 5)),
        (SequenceTransformer(11, 2, length=7, width=8, heads=2), torch.randint(11, (3, 7))),
        (SequenceTransformer(4, 2, length=7, tokens=False, width=8, heads=2), torch.randn(3, 7, 4)),
        (MLP(5, 2, activation="gelu", residual=True), torch.randn(3, 5)),
    ],
    ids=lambda value: repr(value)[:60] if not isinstance(value, Tensor) else "",
)
@pytest.mark.parametrize("weights", ["map", "meanfield"])
def test_every_architecture_trains_and_grows(net: MLP | ConvNet, x: Tensor, weights: str) -> None:
    model = UnboundedDepth(net.layer, net.head, law=TruncatedPoisson(1.0), weights=weights)
    y = torch.tensor([0, 1, 1])
    run = fit(model, Categorical(2), Rows(x, y), training=Training(epochs=4, structure_every=1, structure_rate=60.0))
    assert all(math.isfinite(row["elbo"]) for row in run.history)
    assert run.history[-1]["deepest"] != run.history[0]["deepest"] or len(model.layers) > 4
    draws = model.draw(x, 2, torch.Generator().manual_seed(0))
    assert draws.f.shape[1:] == (3, 2)
    assert draws.log_weight.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    assert len(draws.structure) == len(draws.f)


@pytest.mark.parametrize("law", ["soft", "hard", "two_sided", "taper"])
def test_the_least_depth_is_no_trap(law: str) -> None:
    """After any step of η, an evaluation keeps a second depth, whose gradient can raise η again."""
    model, (x, y) = build(law, min_depth=0), data()
    move_to(model, -40.0)
    assert len(model.depth_posterior()) >= 2
    with torch.no_grad():
        model.heads["1"].weight.copy_(model.heads["0"].weight.new_zeros(model.heads["1"].weight.shape))
        model.heads["0"].weight.fill_(30.0)  # depth 0 is hopeless
        model.heads["0"].bias.copy_(torch.tensor([60.0, -60.0, 60.0], dtype=torch.float64))
    elbo(model.draw(x), Categorical(3), y, size=64).value.backward()
    gradient = model.law_parameters[0].grad
    assert gradient is not None
    assert gradient.item() > 1.0


@pytest.mark.parametrize("together", [1, 2])
def test_what_its_owner_has_frozen_stays_frozen(together: int) -> None:
    """Also if the support shrinks and grows again, and if networks are trained in parallel."""
    torch.manual_seed(0)
    given, net = nn.Linear(2, 6), MLP(2, 3, 6)

    def layer(depth: int) -> nn.Module:
        if depth > 1:
            return net.layer(depth)
        first = nn.Sequential(copy.deepcopy(given), nn.ReLU())
        first[0].requires_grad_(False)
        return first

    x, y = data()
    models = [UnboundedDepth(layer, net.head, dtype=torch.float64, seed=seed) for seed in range(together)]
    frozen = models[0].layers["1"][0]  # type: ignore[index]
    for eta in (4.0, 0.6, 4.0):
        move_to(models[0], eta)
        assert not frozen.weight.requires_grad
        assert all(p.requires_grad for _, part in models[0]._parts[1:] for p in part.parameters())
    before = [copy.deepcopy(model.state_dict()) for model in models]
    training = Training(epochs=3, batch_size=20)
    if together == 1:
        fitted = [fit(models[0], Categorical(3), Rows(x, y), training=training).model]
    else:
        folds = torch.arange(len(x))[None] % 2
        starts = [(model, Categorical(3)) for model in models]
        whole, _ = crossfit(starts, Rows(x, y), *fold_indices(folds), training=training)
        fitted = list(whole.model.members)  # type: ignore[union-attr, arg-type]
    for state, model in zip(before, fitted, strict=True):
        after = model.state_dict()
        assert torch.equal(after["layers.1.0.weight"], given.weight.double())
        assert not torch.equal(after["heads.1.weight"], state["heads.1.weight"])
