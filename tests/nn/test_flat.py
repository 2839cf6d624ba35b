"""Networks whose weights are one matrix: their outputs and gradients are those of the modules."""

import copy
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fathomless.nn.architectures import MLP, TabularTransformer
from fathomless.nn.flat import FlatNetworks, flatten, unflatten
from fathomless.system.errors import DataError

BETWEEN = [nn.Tanh(), nn.ReLU(), nn.SiLU(), nn.GELU(), nn.LeakyReLU(), nn.ELU(), nn.Identity()]


class Scaled(nn.Module):
    """A linear map times a number."""

    def __init__(self) -> None:
        super().__init__()
        self.factor, self.map = nn.Parameter(torch.tensor(2.0)), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * self.map(x)


def network(architecture, depth: int) -> nn.Module:
    return nn.Sequential(*(architecture.layer(k) for k in range(1, depth + 1)), architecture.head(depth))


def compared(build, rows: int, columns: int, count: int = 3) -> None:
    """Compare with each network by itself, in double precision."""
    torch.manual_seed(0)
    each = [build().double().eval() for _ in range(count)]
    x, pull = torch.randn(rows, columns, dtype=torch.float64), None
    flat = FlatNetworks(each[0], count)
    flat.weights.copy_(torch.stack([flatten(one) for one in each]))
    f = torch.stack([one(x) for one in each])
    pull = torch.randn(f.shape, dtype=torch.float64)
    found = torch.autograd.grad((f * pull).sum(), [p for one in each for p in one.parameters()])
    size = flat.weights.shape[1]
    gradient = torch.cat([one.reshape(-1) for one in found]).view(count, size)
    torch.testing.assert_close(flat(x), f.detach(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(flat.gradient(x, lambda _: pull), gradient, rtol=1e-9, atol=1e-9)


@given(
    st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.sampled_from(BETWEEN), st.booleans()
)
def test_chains_of_maps_are_their_modules(columns, width, outputs, depth, between, bias) -> None:
    sizes = [columns, *[width] * depth]
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b, bias=bias), between)]
    compared(lambda: _fresh(nn.Sequential(*layers, nn.Linear(width, outputs))), rows=4, columns=columns)


def _fresh(module: nn.Module) -> nn.Module:
    """Copy a module with new weights."""
    copied = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.normal_()
    return copied


@pytest.mark.parametrize("depth", [0, 1, 3])
@pytest.mark.parametrize("residual", [False, True])
def test_layers_and_heads_are_their_modules(depth: int, residual: bool) -> None:
    compared(lambda: network(MLP(3, 2, 6, "tanh", residual=residual), depth), rows=7, columns=3)


def test_other_networks_go_the_usual_way() -> None:
    compared(lambda: network(TabularTransformer(3, 2, 8), 2), rows=5, columns=3)
    compared(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), rows=5, columns=3)


def test_changing_the_matrix_changes_the_networks() -> None:
    for build in (lambda: nn.Linear(2, 1), lambda: nn.Sequential(nn.Linear(2, 2), nn.ELU(), nn.Linear(2, 1))):
        flat, x = FlatNetworks(build(), 2), torch.ones(3, 2)
        flat.weights.zero_()
        assert float(flat(x).abs().max()) == 0.0
        flat.weights[1].fill_(1.0)
        assert float(flat(x)[0].abs().max()) == 0.0
        assert float(flat(x)[1].abs().min()) > 0.0


@pytest.mark.parametrize("part", [nn.BatchNorm1d(4), nn.Dropout(0.5)], ids=["statistics", "dropout"])
def test_what_is_no_function_of_its_weights_is_refused(part: nn.Module) -> None:
    with pytest.raises(DataError, match="weights can be sampled of networks without"):
        FlatNetworks(nn.Sequential(nn.Linear(3, 4), part, nn.Linear(4, 1)), 2)


def test_shared_weights_are_refused() -> None:
    twice = nn.Linear(3, 3)
    with pytest.raises(DataError, match="shares weights"):
        FlatNetworks(nn.Sequential(twice, nn.Tanh(), twice), 2)


@pytest.mark.parametrize("lead", [(), (4,), (2, 3)])
def test_flat_weights_are_views_of_every_parameter(lead: tuple[int, ...]) -> None:
    module = Scaled()
    weights = torch.randn(*lead, len(flatten(module)))
    parts = unflatten(module, weights)
    assert {name: part.shape for name, part in parts.items()} == {
        name: (*lead, *p.shape) for name, p in module.named_parameters()
    }
    joined = torch.cat([part.reshape(*lead, -1) for part in parts.values()], -1)
    assert torch.equal(joined, weights)
    parts["map.weight"].zero_()
    assert (weights == 0.0).sum() == parts["map.weight"].numel()  # the memory is shared


def test_weights_that_are_flattened_and_split_are_the_parameters() -> None:
    module = Scaled()
    parts = unflatten(module, flatten(module))
    assert all(torch.equal(parts[name], p) for name, p in module.named_parameters())


def test_flat_weights_of_numbers_are_those_of_the_modules() -> None:
    compared(lambda: _fresh(Scaled()), rows=4, columns=3)
