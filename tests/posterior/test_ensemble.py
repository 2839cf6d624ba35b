"""Networks side by side: each has weights of its own."""

import copy
from collections.abc import Callable
from typing import cast

import numpy as np
import pytest
import torch
from torch import nn

from fathomless import UnboundedDepthRegressor
from fathomless.families.depth.model import UnboundedDepth
from fathomless.nn.architectures import MLP, Architecture
from fathomless.posterior.ensemble import Ensemble, draw_jointly
from fathomless.system.errors import DataError


def member(seed: int = 0) -> UnboundedDepth:
    net = MLP(inputs=2, outputs=1, width=4)
    return UnboundedDepth(net.layer, net.head, seed=seed)


def test_members_that_share_a_module_are_refused_with_its_name() -> None:
    one, other = member(), member(1)
    assert Ensemble([one, other]).draw(torch.zeros(3, 2)).f.shape[1] == 3
    assert Ensemble([one, copy.deepcopy(one)]).weights == [0.5, 0.5]
    for pair in ([one, one], [one, copy.copy(one)]):
        with pytest.raises(DataError, match=r"networks 0 and 1 share one parameter, .* and .*copy.deepcopy"):
            Ensemble(pair)


def shared_heads(seed: int) -> UnboundedDepth:
    net = MLP(inputs=2, outputs=4, width=4)
    return UnboundedDepth(net.layer, net.head, shared_head=lambda: nn.Linear(4, 1), min_depth=0, seed=seed)


def residual(seed: int) -> UnboundedDepth:
    net = MLP(inputs=2, outputs=1, width=4, residual=True)
    return UnboundedDepth(net.layer, net.head, min_depth=0, seed=seed, dtype=torch.float64)


@pytest.mark.parametrize("build", [member, shared_heads, residual])
@pytest.mark.parametrize("rows", [0, 1, 3000])
def test_joint_draws_are_those_of_the_members(build: Callable[[int], UnboundedDepth], rows: int) -> None:
    members = [build(seed) for seed in range(3)]
    with torch.no_grad():
        members[1].law_parameters[0].add_(1e-3)  # another law, with the same support
    ensemble = Ensemble(members, [1.0, 2.0, 3.0]).eval()
    x = torch.randn(rows, 2, generator=torch.Generator().manual_seed(0), dtype=ensemble.members[0].dtype)  # type: ignore[arg-type]
    first, *others = ensemble.members
    assert isinstance(first, UnboundedDepth)
    assert len(first.draw_jointly([cast(UnboundedDepth, other) for other in others], x)) == 3
    joint = draw_jointly(ensemble, x)
    with torch.no_grad():
        single = ensemble.draw(x)
    torch.testing.assert_close(joint.f, single.f, rtol=1e-5, atol=1e-6)
    for name in ("log_weight", "structure", "network"):
        torch.testing.assert_close(getattr(joint, name), getattr(single, name), rtol=0.0, atol=0.0)
    assert {name: float(term) for name, term in joint.divergence.items()} == {
        name: float(term) for name, term in single.divergence.items()
    }


def test_other_networks_are_evaluated_one_by_one() -> None:
    x = torch.zeros(5, 2)
    deeper = member(1)
    with torch.no_grad():
        for parameter in deeper.law_parameters:
            parameter.add_(2.0)
    deeper.grow()
    net = MLP(inputs=2, outputs=1, width=4)
    drawn = [UnboundedDepth(net.layer, net.head, weights="meanfield", seed=seed) for seed in range(2)]
    for members in ([member(), deeper], drawn):
        ensemble = Ensemble(members).eval()
        assert members[0].draw_jointly(members[1:], x) == []
        joint = draw_jointly(ensemble, x, 2, torch.Generator().manual_seed(0))
        with torch.no_grad():
            single = ensemble.draw(x, 2, torch.Generator().manual_seed(0))
        assert torch.equal(joint.f, single.f)
    ensemble = Ensemble([member(), member(1)])
    assert member().draw_jointly([member(1)], x) == []  # in training mode, as after construction
    assert draw_jointly(ensemble, x).f.requires_grad is False


class Shared(Architecture):
    """Builds its layers anew, and gives out the same head of a depth again and again."""

    def __init__(self, inputs: int, outputs: int, heads: dict[int, nn.Module]) -> None:
        self.inputs, self.outputs, self.own = inputs, outputs, heads

    def layer(self, depth: int) -> nn.Module:
        return nn.Sequential(nn.Linear(self.inputs, self.inputs), nn.ReLU())

    def head(self, depth: int) -> nn.Module:
        return self.own.setdefault(depth, nn.Linear(self.inputs, self.outputs))


@pytest.mark.parametrize("options", [{"cv": 2}, {"cv": 1, "structure_from": "elbo", "n_restarts": 2}])
def test_an_architecture_that_hands_out_one_module_is_refused_before_the_training(options: dict[str, object]) -> None:
    X = np.random.default_rng(0).normal(size=(40, 2))
    heads: dict[int, nn.Module] = {}
    estimator = UnboundedDepthRegressor(
        architecture=lambda i, o: Shared(i, o, heads), epochs=2, random_state=0, **options
    )
    with pytest.raises(DataError, match="share one parameter"):
        estimator.fit(X, X[:, 0])
