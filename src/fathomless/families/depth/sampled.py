"""Networks of several depths with sampled weights: the retained states of the chains, each with its own noise."""

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

_AT_ONCE = 2**21  # rows times networks in one evaluation
_NOISE = ("noise_scale", "noise_df")  # in the order of the columns of f


@dataclass(frozen=True)
class States:
    """Retained states of the chains of one depth.

    Attributes
    ----------
    weights : Tensor, shape (S, P)
        Weights of the networks.
    scale, df : Tensors, shape (S, T) or (S, 0)
        Scale and degrees of freedom of the noise of each state; without columns if the likelihood has no such
        parameter, or a fixed one.
    reach : Tensor, shape (S, D)
        Root mean square of the first-layer weights of each input; without columns if inputs have no scales.
    chain : Tensor of int64, shape (S,)
        Number of the chain of each state.
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
        Builds a network from its depth and its number of outputs; its initial weights are not used.
    outputs : int
        Number of outputs of the networks; sampled noise parameters are appended to them.

    Attributes
    ----------
    weights_0, weights_1, … : Tensors, shape (states of the depth, weights of a network)
    depth, chain : Tensors of int64, shape (S,)
        Depth and chain of all states, ordered by depth.
    log_weight : Tensor of float64, shape (S,)
        Log weights; states of one depth have equal weights.
    noise_scale, noise_df, reach : Tensors, shape (S, …)
        See :class:`States`; a noise parameter that was not sampled is missing, for example ``noise_df`` of Gaussian
        noise.
    """

    depth: Tensor
    chain: Tensor
    log_weight: Tensor
    reach: Tensor

    def __init__(self, network: Callable[[int, int], nn.Module], outputs: int) -> None:
        super().__init__()
        self._network = network
        self.outputs = outputs

    def fill(self, masses: Mapping[int, float], kept: Mapping[int, States]) -> None:
        """Set the states, and the weights of their depths."""
        for depth, states in kept.items():
            self.register_buffer(f"weights_{depth}", states.weights)
        counts = {depth: len(states.weights) for depth, states in kept.items()}
        weights = [masses[depth] / counts[depth] for depth in kept for _ in range(counts[depth])]
        depths = [depth for depth in kept for _ in range(counts[depth])]
        device = next(iter(kept.values())).weights.device
        self.register_buffer("log_weight", torch.tensor(weights, dtype=torch.float64, device=device).log())
        self.register_buffer("depth", torch.tensor(depths, device=device))
        self.register_buffer("chain", torch.cat([states.chain for states in kept.values()]))
        columns = min(states.reach.shape[1] for states in kept.values())  # 0 if a depth has no matrix of the columns
        self.register_buffer("reach", torch.cat([states.reach[:, :columns] for states in kept.values()]))
        for name, part in (("noise_scale", "scale"), ("noise_df", "df")):
            whole = torch.cat([getattr(states, part) for states in kept.values()])
            if whole.shape[1]:
                self.register_buffer(name, whole)

    @property
    def stochastic(self) -> bool:
        """False: predictions use all retained states."""
        return False

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Evaluate every network on a batch; sampled noise parameters are appended to its outputs."""
        f = torch.cat([self._evaluate_depth(depth, x) for depth in self.depth_posterior()])
        states = dict(self.named_buffers())
        noise = [states[name].to(f)[:, None].expand(-1, x.shape[0], -1) for name in _NOISE if name in states]
        if noise:
            f = torch.cat([f, noise[0].log(), *noise[1:]], -1)
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
        layout = {
            name: {"dtype": str(buffer.dtype).removeprefix("torch."), "shape": list(buffer.shape)}
            for name, buffer in self.named_buffers()
        }
        return {"outputs": self.outputs, "states": layout}

    def rebuild(self, blueprint: dict[str, Any]) -> None:
        """Allocate states of the types and shapes of a blueprint, on the CPU."""
        self.outputs = int(blueprint["outputs"])
        for name, layout in blueprint["states"].items():
            shape = layout["shape"]
            self.register_buffer(name, torch.zeros(shape, dtype=getattr(torch, layout["dtype"]), device="cpu"))
            if name.startswith("weights_"):
                network = self._build_network(int(name.rpartition("_")[2]))
                size = sum(parameter.numel() for parameter in network.parameters())
                if size != shape[1]:
                    raise DataError(
                        f"its networks of {name} have {shape[1]:,} weights, but its options define {size:,}"
                    )

    def _build_network(self, depth: int) -> nn.Module:
        """Build a network whose initial weights are not used."""
        with building(depth):
            return self._network(depth, self.outputs)

    def _evaluate_depth(self, depth: int, x: Tensor) -> Tensor:
        """Return the outputs (S, B, K) of the states of one depth."""
        weights: Tensor = getattr(self, f"weights_{depth}")
        network = self._build_network(depth).to(weights.device, weights.dtype)
        parts = weights.split(max(1, _AT_ONCE // max(x.shape[0], 1)))
        return torch.cat([_evaluate(network, part, x) for part in parts])


def _evaluate(network: nn.Module, weights: Tensor, x: Tensor) -> Tensor:
    networks = FlatNetworks(network, len(weights))
    networks.weights.copy_(weights)
    return networks(x)
