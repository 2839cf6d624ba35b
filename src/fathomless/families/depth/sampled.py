"""Networks of several depths whose weights were sampled: the states that chains have kept, each with its own noise."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fathomless.nn.flat import FlatNetworks
from fathomless.posterior.capabilities import Resizable
from fathomless.posterior.model import Draws
from fathomless.posterior.structure import ListedPosterior, make_depth_posterior
from fathomless.system.errors import DataError
from fathomless.system.rng import building

__all__ = ["SampledDepth", "States"]

_AT_ONCE = 2**21  # rows times networks
_NOISE = ("noise_scale", "noise_df")  # in the order in which f states them


@dataclass(frozen=True)
class States:
    """What the chains of one depth have kept.

    Attributes
    ----------
    weights : Tensor, shape (S, P)
        Networks.
    scale, df : Tensors, shape (S, T) or (S, 0)
        Scale of the noise of each, and degrees of freedom; without columns where a likelihood has them.
    reach : Tensor, shape (S, D)
        Root mean square of the weights that leave each input; without columns where inputs have no scales.
    chain : Tensor of int64, shape (S,)
        Which chain each is of.
    """

    weights: Tensor
    scale: Tensor
    df: Tensor
    reach: Tensor
    chain: Tensor


class SampledDepth(Resizable):
    """Sampled networks of several depths.

    Parameters
    ----------
    network : callable
        Builds a network from its depth and its number of outputs; its own weights do not matter.
    outputs : int
        Of the networks; what was inferred of the noise comes beside them.

    Attributes
    ----------
    weights_0, weights_1, … : Tensors, shape (states of the depth, weights of a network)
    depth, chain : Tensors of int64, shape (S,)
        Of all states, depth after depth.
    log_weight : Tensor of float64, shape (S,)
        States of a depth have equal weights.
    noise_scale, noise_df, reach : Tensors, shape (S, …)
        See :class:`States`; ``noise_df`` is missing where noise is Gaussian, both where a likelihood has them.
    """

    depth: Tensor
    chain: Tensor
    log_weight: Tensor
    reach: Tensor

    def __init__(self, network: Callable[[int, int], nn.Module], outputs: int) -> None:
        super().__init__()
        self._network, self.outputs = network, outputs

    def fill(self, masses: Mapping[int, float], kept: Mapping[int, States]) -> None:
        """Take these states, and these weights of their depths."""
        for depth, states in kept.items():
            self.register_buffer(f"weights_{depth}", states.weights)
        counts = {depth: len(states.weights) for depth, states in kept.items()}
        every = [masses[depth] / counts[depth] for depth in kept for _ in range(counts[depth])]
        numbers = [depth for depth in kept for _ in range(counts[depth])]
        where = next(iter(kept.values())).weights.device
        self.register_buffer("log_weight", torch.tensor(every, dtype=torch.float64, device=where).log())
        self.register_buffer("depth", torch.tensor(numbers, device=where))
        self.register_buffer("chain", torch.cat([states.chain for states in kept.values()]))
        self.register_buffer("reach", torch.cat([states.reach for states in kept.values()]))
        for name, part in (("noise_scale", "scale"), ("noise_df", "df")):
            whole = torch.cat([getattr(states, part) for states in kept.values()])
            if whole.shape[1]:
                self.register_buffer(name, whole)

    @property
    def stochastic(self) -> bool:
        """False: all states that were kept are used."""
        return False

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Evaluate every network on a batch; what was inferred of its noise stands beside its outputs."""
        f = torch.cat([self._of_depth(depth, x) for depth in self.depth_posterior()])
        states = dict(self.named_buffers())
        told = [states[name].to(f)[:, None].expand(-1, x.shape[0], -1) for name in _NOISE if name in states]
        if told:
            f = torch.cat([f, told[0].log(), *told[1:]], -1)
        network = self.depth * (int(self.chain.max()) + 1) + self.chain  # chains of different depths are independent
        none = {"weights": f.new_zeros(())}
        return Draws(f, self.log_weight.to(f.dtype), self.depth, none, network=network)

    def structure(self) -> ListedPosterior:
        """Return the weights of the depths."""
        return make_depth_posterior(self.depth_posterior())

    def depth_posterior(self) -> dict[int, float]:
        """Return the weight of every depth."""
        return {
            depth: float(self.log_weight[self.depth == depth].exp().sum()) for depth in self.depth.unique().tolist()
        }

    def blueprint(self) -> dict[str, Any]:
        """Return the outputs of the networks, and the types and shapes of the states."""
        kinds = {
            name: {"dtype": str(buffer.dtype).removeprefix("torch."), "shape": list(buffer.shape)}
            for name, buffer in self.named_buffers()
        }
        return {"outputs": self.outputs, "states": kinds}

    def rebuild(self, blueprint: dict[str, Any]) -> None:
        """Have states of the types and shapes that :meth:`blueprint` returned, on the processor."""
        self.outputs = int(blueprint["outputs"])
        for name, kind in blueprint["states"].items():
            shape = kind["shape"]
            self.register_buffer(name, torch.zeros(shape, dtype=getattr(torch, kind["dtype"]), device="cpu"))
            if name.startswith("weights_"):
                network = self._built(int(name.rpartition("_")[2]))
                size = sum(parameter.numel() for parameter in network.parameters())
                if size != shape[1]:
                    raise DataError(
                        f"its networks of {name} have {shape[1]:,} weights, and its options ask for {size:,}"
                    )

    def _built(self, depth: int) -> nn.Module:
        """Build a network, whose own weights do not matter."""
        with building(depth):
            return self._network(depth, self.outputs)

    def _of_depth(self, depth: int, x: Tensor) -> Tensor:
        """Return outputs (S, B, K) of the states of one depth."""
        weights: Tensor = getattr(self, f"weights_{depth}")
        network = self._built(depth).to(weights.device, weights.dtype)
        parts = weights.split(max(1, _AT_ONCE // max(x.shape[0], 1)))
        return torch.cat([_evaluated(network, part, x) for part in parts])


def _evaluated(network: nn.Module, weights: Tensor, x: Tensor) -> Tensor:
    networks = FlatNetworks(network, len(weights))
    networks.weights.copy_(weights)
    return networks(x)
