"""Stacks of small networks with two hidden layers, which learn laws from encoded features."""

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

__all__ = ["FEATURE_LIMIT", "StackedNetworks"]

FEATURE_LIMIT = 6.0  #: limit of standardised features, which are clipped, since networks extrapolate linearly


class StackedNetworks(nn.Module):
    """Networks of equal sizes with rectified hidden layers, in double precision.

    Their last layer is zero at the start.

    Parameters
    ----------
    stack : sequence of int
        Shape of the stack, for example (K,) or (K, T).
    sizes : sequence of int
        Numbers of inputs, of hidden units of each layer, and of outputs.
    generator : torch.Generator, optional
        Source of the initial weights; zeros if missing.
    """

    def __init__(self, stack: Sequence[int], sizes: Sequence[int], generator: torch.Generator | None = None) -> None:
        super().__init__()
        weights, biases = [], []
        for layer, (before, after) in enumerate(itertools.pairwise(sizes)):
            weight = torch.zeros(*stack, before, after, dtype=torch.float64, device="cpu")
            bias = torch.zeros(*stack, 1, after, dtype=torch.float64, device="cpu")
            if generator is not None and layer < len(sizes) - 2:
                bound = math.sqrt(1.0 / max(before, 1))
                for part in (weight, bias):
                    part.uniform_(-bound, bound, generator=generator)
            weights.append(nn.Parameter(weight))
            biases.append(nn.Parameter(bias))
        self.weights = nn.ParameterList(weights)
        self.biases = nn.ParameterList(biases)

    def outputs(self, features: Tensor) -> Tensor:
        """Return the outputs of all networks, shape (*stack, B, outputs), for features (..., B, D)."""
        h = features
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h = torch.matmul(h, weight) + bias
            h = h if layer == last else h.relu()
        return h
