"""Networks of PyTorch whose modules read the weights of their layers, and do not call them."""

import pytest
import torch
from torch import nn

from fathomless.nn.bayesian import bayesian, sparse_layers
from fathomless.nn.layers import MeanField, WeightPrior
from fathomless.system.errors import DataError


def layer() -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)


@pytest.mark.parametrize("depth", [0, 2])
@pytest.mark.parametrize("grad", [True, False])
def test_a_bayesian_transformer_predicts_in_evaluation_what_it_does_in_training(depth: int, grad: bool) -> None:
    plain = nn.TransformerEncoder(layer(), depth) if depth else layer()
    network = bayesian(plain, lambda _, part: MeanField(part, WeightPrior(1.0), 1e-9))
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1))
    with torch.set_grad_enabled(grad):
        found = [network.train(mode)(x, torch.Generator().manual_seed(0))[0] for mode in (True, False)]
        torch.testing.assert_close(found[0], found[1])
        torch.testing.assert_close(found[1], plain.eval()(x), atol=1e-4, rtol=1e-4)


def test_maps_whose_weights_an_attention_reads_stay_as_they_are() -> None:
    network = bayesian(layer())
    assert [name for name, _ in sparse_layers(network)] == ["linear1", "linear2"]
    with pytest.raises(DataError, match="no layer of the MultiheadAttention was made Bayesian"):
        bayesian(nn.MultiheadAttention(8, 2))


def test_a_network_without_bayesian_layers_inside_keeps_its_fast_path() -> None:
    whole = nn.Sequential(layer(), nn.Linear(8, 1))
    network = bayesian(whole, lambda name, part: MeanField(part, WeightPrior(1.0), 0.1) if name == "1" else None)
    inside = next(part for part in network.modules() if isinstance(part, nn.TransformerEncoderLayer))
    assert inside.activation_relu_or_gelu
