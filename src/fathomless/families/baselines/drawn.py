"""Networks of one depth with weights drawn around a trained network: unchanged, or linearised in the weights."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from fathomless.families.baselines.laplace import linearise
from fathomless.nn.architectures import Architecture
from fathomless.nn.flat import FlatNetworks, flatten, unflatten
from fathomless.nn.layers import WeightPrior, prior_scales
from fathomless.nn.stateless import call_with
from fathomless.posterior.capabilities import Resizable
from fathomless.posterior.model import Draws
from fathomless.posterior.structure import ListedPosterior, make_depth_posterior
from fathomless.system.errors import DataError
from fathomless.system.rng import building, fold_in

__all__ = ["DrawnNetworks"]

_CHUNK = 1024  # number of rows in one evaluation


class DrawnNetworks(Resizable):
    """A trained network together with draws from a posterior of its weights.

    Drawn networks are :math:`f_θ(x)`, or linear in their weights: :math:`f_{θ*}(x) + J(x)(θ - θ*)`. Outputs without a
    posterior, such as a scale that depends on the input under Laplace's approximation, stay :math:`f_{θ*}(x)`.

    Parameters
    ----------
    architecture : Architecture
        Layers and head.
    depth : int
        Number of layers before the head.
    weight_prior : WeightPrior
        Prior standard deviation s of each weight, including those of normalisation layers.
    linear : bool
        True if drawn networks are linear in their weights.
    seed : int
        Seed of the initial weights.
    dtype : torch.dtype
        Floating-point type of the weights.

    Attributes
    ----------
    apart : Tensor, shape (S, P)
        Deviations of the draws from the trained weights; no rows before :meth:`set_draws`.
    uncertain_outputs : int, optional
        Number of leading outputs with a posterior; None for all.
    chain_length : int, optional
        Number of consecutive draws from one Markov chain; None for independent draws.
    precision : scalar Tensor
        α of the prior N(0, s²/α) that maximises the evidence of Laplace's approximation; else 1.

    Raises
    ------
    DataError
        If a weight has no prior.
    """

    apart: Tensor
    precision: Tensor

    def __init__(
        self,
        architecture: Architecture,
        depth: int,
        *,
        weight_prior: WeightPrior,
        linear: bool = True,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.depth = depth
        self.linear = linear
        self.uncertain_outputs: int | None = None
        self.chain_length: int | None = None
        with building(fold_in(seed, "network")):
            parts = [*map(architecture.layer, range(1, depth + 1)), architecture.head(depth)]
        self.network = nn.Sequential(*parts).to(dtype)
        self._scales = prior_scales(self.network, weight_prior)
        without = [name for name, _ in self.network.named_parameters() if name not in self._scales]
        if without:
            raise DataError(
                f"the network has weights without a prior ({', '.join(without[:3])}); a posterior of the weights "
                "needs a prior for each of them: give weight_prior=WeightPrior(norms=True)"
            )
        weights = sum(p.numel() for p in self.network.parameters())
        self.register_buffer("apart", torch.zeros(0, weights, dtype=dtype))
        self.register_buffer("precision", torch.ones((), dtype=torch.float64))

    @property
    def stochastic(self) -> bool:
        """False: predictions use all drawn networks."""
        return False

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Evaluate the network itself in training or without draws; else evaluate all drawn networks."""
        square = [p.square().sum() / self._scales[name] ** 2 for name, p in self.network.named_parameters()]
        decay = 0.5 * torch.stack(square).sum()
        drawn = len(self.apart) > 0 and not self.training
        f = self._evaluate_draws(x) if drawn else self.network(x)[None]
        even = torch.full((len(f),), -math.log(len(f)), dtype=f.dtype, device=f.device)
        number = torch.full((len(f),), self.depth, device=f.device)
        chains = torch.arange(len(f), device=f.device) // self.chain_length if drawn and self.chain_length else None
        return Draws(f, even, number, {"weights": decay}, network=chains)

    def _evaluate_draws(self, x: Tensor) -> Tensor:
        if self.linear:
            return linearise(self.network, x, self.apart, self.uncertain_outputs)
        if torch.is_grad_enabled():  # FlatNetworks has no gradients in the weights
            weights = torch.cat([p.reshape(-1) for p in self.network.parameters()]) + self.apart
            f: Tensor = vmap(lambda own: call_with(self.network, own, x))(unflatten(self.network, weights))
            return f
        flat = FlatNetworks(self.network, len(self.apart))
        flat.weights.copy_(flatten(self.network) + self.apart)
        return torch.cat([flat(part) for part in x.split(_CHUNK)], 1)

    def structure(self) -> ListedPosterior:
        """Return a point mass on the depth of the network."""
        return make_depth_posterior({self.depth: 1.0})

    def prior_scale(self) -> Tensor:
        """Return the prior standard deviation s of each weight, (P,)."""
        scales = [
            torch.full((p.numel(),), self._scales[name], dtype=torch.float32).to(p)
            for name, p in self.network.named_parameters()
        ]
        return torch.cat(scales)

    def set_draws(
        self,
        apart: Tensor,
        precision: float = 1.0,
        uncertain_outputs: int | None = None,
        chain_length: int | None = None,
    ) -> None:
        """Set the draws, given as deviations (S, P) from the trained weights, and the attributes of their posterior."""
        self.apart = apart.to(self.apart)
        self.uncertain_outputs = uncertain_outputs
        self.chain_length = chain_length
        self.precision.fill_(precision)

    def blueprint(self) -> dict[str, Any]:
        """Return the number of draws and, if they are set, the numbers of uncertain outputs and of draws per chain."""
        optional = {"doubted": self.uncertain_outputs, "stretch": self.chain_length}
        given = {name: value for name, value in optional.items() if value is not None}
        return {"networks": len(self.apart), **given}

    def rebuild(self, blueprint: dict[str, Any]) -> None:
        """Allocate the draws of a blueprint."""
        self.apart = self.apart.new_zeros(int(blueprint["networks"]), self.apart.shape[1])
        self.uncertain_outputs = blueprint.get("doubted")
        self.chain_length = blueprint.get("stretch")
