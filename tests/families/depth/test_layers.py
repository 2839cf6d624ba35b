"""Errors in layers and heads that a user's function builds name the layer or head by its number."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fathomless import ContinuousDepthRegressor, ProjectedBayesRegressor, SparseBayesRegressor, UnboundedDepthRegressor
from fathomless.data.rows import Rows
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import Training
from fathomless.posterior.laws import TruncatedPoisson
from fathomless.posterior.likelihoods import Categorical
from fathomless.system.errors import DataError, DivergenceError

Build = Callable[[int], Any]
X = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
Y = torch.arange(12) % 3


def layer(depth: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2 if depth == 1 else 8, 8), nn.ReLU())


def head(depth: int) -> nn.Module:
    return nn.Linear(8, 3)


def instead(of: Build, at: int, part: Callable[[], Any]) -> Build:
    """Replace the builder of the part at one depth."""
    return lambda depth: part() if depth == at else of(depth)


def model(layer: Build = layer, head: Build = head, **options: Any) -> UnboundedDepth:
    return UnboundedDepth(layer, head, **options)


class Function(nn.Module):
    """A module with a forward method."""

    def __init__(self, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Any:
        return self.function(self.linear(x))


class Listed(nn.Module):
    """A module with its layers in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [nn.Linear(8, 8)]


class Loose(nn.Module):
    """A module with a plain tensor as its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.ones(8, requires_grad=True)


def double(x: Tensor) -> Tensor:
    return x * torch.ones(1, dtype=torch.float64)


BUILT = {
    "a function": (lambda: torch.relu, r"layer 3 is a builtin.*layer\(depth\) must return a torch.nn.Module"),
    "nothing": (lambda: None, "layer 3 is a NoneType"),
    "a list": (Listed, "layer 3 has a Listed with parameters in the list 'blocks'.*use nn.ModuleList"),
    "a tensor": (Loose, "layer 3 has a Loose with parameters in the Tensor 'weight'"),
}


@pytest.mark.parametrize(("part", "message"), BUILT.values(), ids=BUILT)
def test_a_layer_that_is_no_module_or_hides_parameters_is_refused_when_it_is_built(part: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"(?i){message}"):
        model(instead(layer, 3, part))
    with pytest.raises(DataError, match=f"(?i){message.replace('layer', 'head')}"):
        model(head=instead(head, 3, part))


def test_the_same_weights_at_several_depths_are_refused_when_they_are_built() -> None:
    once = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    told = r"layer 3 shares parameters with layer 2: .*must return a new module at every call$"
    with pytest.raises(DataError, match=told):
        model(lambda depth: layer(depth) if depth == 1 else once)
    with pytest.raises(DataError, match=told):  # inside another one
        model(lambda depth: layer(depth) if depth == 1 else nn.Sequential(once, nn.Tanh()))
    one = nn.Linear(8, 3)
    with pytest.raises(
        DataError, match=r"head 2 shares parameters with head 1: .*for one head at all depths, give shared_head"
    ):
        model(head=lambda depth: one)
    nothing = nn.Identity()  # without weights one will do
    model(head=lambda depth: nothing, shared_head=lambda: nn.Linear(8, 3)).draw(X)


def test_layers_are_brought_to_the_type_of_the_model() -> None:
    for dtype in (torch.float32, torch.float64):
        mixed = model(lambda depth: layer(depth).double(), dtype=dtype)
        assert {p.dtype for part in (mixed.layers, mixed.heads) for p in part.parameters()} == {dtype}
        assert mixed.draw(X.to(dtype)).f.dtype == dtype


APPLIED = {
    "takes another width": (
        lambda: nn.Linear(7, 8),
        {},
        r"layer 3, a Linear, cannot be applied to a float32 tensor of shape \(12, 8\), the output of layer 2: mat1",
    ),
    "gives another width": (
        lambda: nn.Linear(8, 9),
        {},
        r"layer 4, a Sequential, cannot be applied to a float32 tensor of shape \(12, 9\), the output of layer 3",
    ),
    "gives a tuple": (
        lambda: nn.GRU(8, 8),
        {},
        "layer 4, a Sequential, cannot be applied to a tuple, the output of layer 3",
    ),
    "gives another type": (
        lambda: Function(double),
        {},
        r"layer 4, a Sequential, cannot be applied to a float64 tensor of shape \(12, 8\), the output of layer 3",
    ),
    "is Bayesian": (lambda: nn.Linear(7, 8), {"weights": "meanfield"}, "layer 3, a MeanField, cannot be applied"),
}


@pytest.mark.parametrize(("part", "options", "message"), APPLIED.values(), ids=APPLIED)
def test_a_layer_that_does_not_fit_is_named(part: Any, options: dict[str, Any], message: str) -> None:
    wrong = model(instead(layer, 3, part), **options)
    with pytest.raises(DataError, match=message):
        wrong.draw(X)
    with pytest.raises(DataError, match=message.replace("12", "2")):  # the rows that are tried before the first step
        fit(wrong, Categorical(3), Rows(X, Y))


def test_a_first_layer_that_does_not_take_the_input_is_named() -> None:
    with pytest.raises(DataError, match=r"layer 1, a Linear, cannot be applied to .* \(12, 2\), the input: mat1"):
        model(instead(layer, 1, lambda: nn.Linear(3, 8))).draw(X)


def test_a_head_that_does_not_fit_is_named() -> None:
    """Linear heads of one shape are applied at once; the error still names the head that fails."""
    with pytest.raises(DataError, match=r"head 3, a \w+, cannot be applied to .* \(12, 8\), the output of layer 3"):
        model(head=instead(head, 3, lambda: nn.Sequential(nn.Linear(7, 3)))).draw(X)
    told = r"different shapes: .*head 2 a float32 tensor of shape \(12, 3\), head 3 a float32 .* \(12, 4\), head 4"
    with pytest.raises(DataError, match=told):
        model(head=instead(head, 3, lambda: nn.Linear(8, 4))).draw(X)
    narrow = model(instead(layer, 6, lambda: nn.Linear(8, 7)))  # all heads take 8
    with pytest.raises(DataError, match=r"head 6, a Linear, cannot be applied to .* \(12, 7\), the output of layer 6"):
        narrow.draw(X)


def test_a_shared_head_that_does_not_fit_is_told() -> None:
    shared = model(head=lambda depth: nn.Identity(), shared_head=lambda: nn.Linear(7, 3))
    with pytest.raises(DataError, match=r"the shared head, a Linear, cannot be applied to .* the output of the heads"):
        shared.draw(X)


def test_heads_of_another_width_than_the_likelihood_asks_for_are_told() -> None:
    with pytest.raises(DataError, match=r"gave outputs of shape \(6, 2, 3\); allowed is \(S, B, 4\)"):
        fit(model(), Categorical(4), Rows(X, Y))


@pytest.mark.parametrize("function", [torch.log, lambda x: x / 0.0], ids=["logarithm", "division"])
def test_values_that_are_not_finite_are_traced_to_their_layer(function: Any) -> None:
    wrong = model(instead(layer, 3, lambda: Function(function)))
    with pytest.raises(DivergenceError, match=r"before the first step .* check layers\.3 \(a Function\)"):
        fit(wrong, Categorical(3), Rows(X, Y))


def test_values_that_cease_to_be_finite_in_training_are_traced_to_their_layer() -> None:
    class Late(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.clamp(max=0.5) if not self.training else x * float("inf")

    wrong = model(instead(layer, 2, lambda: nn.Sequential(nn.Linear(8, 8), Late())))
    with pytest.raises(DivergenceError, match="not finite is"):
        fit(wrong, Categorical(3), Rows(X, Y), training=Training(epochs=1))


def test_outputs_of_another_type_are_traced_to_their_layer() -> None:
    wrong = model(head=lambda depth: nn.Sequential(nn.Linear(8, 3), Function(double)) if depth == 2 else head(depth))
    wrong.heads["2"][1].linear = nn.Identity()
    with pytest.raises(DataError, match=r"torch.float64 .* torch.float32: heads\.2\.1 \(a Function\) returns"):
        fit(wrong, Categorical(3), Rows(X, Y))


def test_a_layer_that_comes_in_mid_training_is_named() -> None:
    growing = model(instead(layer, 6, lambda: nn.Linear(7, 8)), law=TruncatedPoisson(0.5))
    assert growing.depth < 6
    growing.draw(X)
    with torch.no_grad():
        growing.law_parameters[0].fill_(5.0)
    growing.grow()
    with pytest.raises(DataError, match="layer 6, a Linear, cannot be applied"):
        growing.draw(X)


@pytest.mark.parametrize(
    ("kind", "needed"),
    [
        (UnboundedDepthRegressor, "Architecture"),
        (ContinuousDepthRegressor, "Dynamics"),
        (SparseBayesRegressor, "Module"),
        (ProjectedBayesRegressor, "Module"),
    ],
)
def test_an_architecture_that_returns_something_else_is_refused(kind: Any, needed: str) -> None:
    with pytest.raises(DataError, match=f"architecture returned 'mlp', a str; it must return an? {needed}"):
        kind(architecture=lambda inputs, outputs: "mlp").fit(X.numpy(), X[:, 0].numpy())
