"""Networks side by side: each has weights of its own."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from fathomless import UnboundedDepthRegressor
from fathomless.families.depth.model import UnboundedDepth
from fathomless.nn.architectures import MLP, Architecture
from fathomless.posterior.ensemble import Ensemble
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
