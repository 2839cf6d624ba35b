"""Modules called with other weights: what torch.func.functional_call returns, and nothing is written to the module."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import prune

from fathomless.families.pytorch import bayesian_network
from fathomless.nn.layers import MeanField
from fathomless.nn.stateless import call_with, with_tensors
from fathomless.system.errors import DataError


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.second(self.first(x).tanh())
        return found


class Listed(nn.Module):
    """Layers that are also in a plain list, a bound method of one of them, and a parameter in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.shift = nn.Linear(4, 4), nn.Parameter(torch.ones(4))
        self.inside = [("linear", self.linear)]
        self.named = {"shift": self.shift}
        self.own = self.apply_linear

    def apply_linear(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(x)
        return found

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.inside[0][1](x) + self.own(x) + self.named["shift"]
        return found


class Last(nn.Module):
    """The output of a recurrent network."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(4, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.cells(x[:, None])[0][:, 0]
        return found


MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(4, 2),
    "sequential": lambda: nn.Sequential(nn.Linear(4, 3), nn.Sequential(nn.SiLU(), nn.Linear(3, 2))),
    "batch-norm": lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)),
    "recurrent": Last,
    "attention": lambda: nn.TransformerEncoderLayer(4, 2, dropout=0.0),
    "weight-norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)),
    "tied": Tied,
}


def others(module: nn.Module) -> dict[str, Tensor]:
    return {name: torch.randn_like(p) for name, p in module.named_parameters()}


def bits(module: nn.Module) -> dict[str, bytes]:
    return {name: value.numpy().tobytes() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("name", MODULES)
def test_calls_are_those_of_functional_call_and_leave_the_module_alone(name: str) -> None:
    module, x = MODULES[name]().eval().requires_grad_(requires_grad=name != "attention"), torch.randn(5, 4)
    own, before, parameters = others(module), bits(module), list(module.parameters())
    assert torch.equal(call_with(module, own, x), functional_call(module, own, (x,)))
    assert not torch.equal(call_with(module, own, x), module(x))
    assert bits(module) == before
    assert all(p is q for p, q in zip(module.parameters(), parameters, strict=True))


@pytest.mark.parametrize("some", [("linear.weight",), ("linear.weight", "linear.bias", "shift")])
def test_what_plain_attributes_refer_to_is_replaced_too(some: tuple[str, ...]) -> None:
    module, x = Listed(), torch.randn(5, 4)
    every = others(module)
    own = {**dict(module.named_parameters()), **{name: every[name] for name in some}}
    expected = 2.0 * nn.functional.linear(x, own["linear.weight"], own["linear.bias"]) + own["shift"]
    found = call_with(module, {name: own[name] for name in some}, x)
    torch.testing.assert_close(found, expected)


def test_buffers_are_shared() -> None:
    module, twin = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
    x = torch.randn(7, 4)
    call_with(module, others(module), x)
    twin(x)
    assert bits(module)["running_mean"] == bits(twin)["running_mean"]
    assert int(module.num_batches_tracked or 0) == 1


def test_derivatives_pass_through() -> None:
    module, x = MODULES["sequential"](), torch.randn(5, 4)
    own = {name: value.detach() for name, value in module.named_parameters()}
    each = vmap(grad(lambda p, row: call_with(module, p, row[None]).sum()), in_dims=(None, 0))(own, x)
    module(x).sum().backward()
    for name, p in module.named_parameters():
        torch.testing.assert_close(each[name].sum(0), p.grad)


@pytest.mark.parametrize("weights", ["map", "meanfield", "matrix", "sparse"])
def test_compiled_networks_are_refused(weights: str) -> None:
    """Compiled code uses the weights that it was compiled with, so that all draws of a posterior were equal."""
    plain = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    inside = nn.Sequential(torch.compile(nn.Linear(2, 3)), nn.Tanh(), nn.Linear(3, 1))
    for network in (torch.compile(plain), inside):
        with pytest.raises(DataError, match=r"compiled by torch\.compile was given \(OptimizedModule\)"):
            bayesian_network(network, weights)
    plain.compile()
    with pytest.raises(DataError, match=r"compiled by torch\.compile was given"):
        with_tensors(plain, {})


@pytest.mark.parametrize("weights", ["map", "meanfield"])
def test_complex_weights_are_refused(weights: str) -> None:
    """The conversion to the data type of the model dropped their imaginary part."""
    network = nn.Sequential(nn.Linear(2, 1))
    network.register_parameter("filter", nn.Parameter(torch.ones(2, dtype=torch.complex64)))
    with pytest.raises(DataError, match="filter are complex; use real weights"):
        bayesian_network(network, weights)


def test_networks_that_cannot_be_copied_are_refused_by_name() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    prune.random_unstructured(network[0], "weight", 0.3)  # type: ignore[no-untyped-call]
    with pytest.raises(DataError, match=r"the network cannot be copied .*prune\.remove"):
        bayesian_network(network)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit.trace
def test_modules_that_cannot_be_copied_are_refused() -> None:
    scripted: Any = torch.jit.trace(nn.Linear(4, 2), torch.zeros(1, 4))  # type: ignore[no-untyped-call]
    with pytest.raises(DataError, match=r"compiled by torch\.jit was given"):
        with_tensors(nn.Sequential(scripted), {})


def test_a_pass_leaves_a_layer_with_drawn_weights_as_it_was() -> None:
    layer = MeanField(nn.Linear(4, 2))
    seen: list[bool] = []
    parameters = dict(layer.module.named_parameters())
    layer.module.register_forward_hook(lambda *_: seen.append(dict(layer.module.named_parameters()) == parameters))
    layer(torch.zeros(3, 4))
    assert seen == [True]
