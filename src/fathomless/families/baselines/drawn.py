"""A network of one depth, and what is drawn around it once it is trained: as it is, or linear in its weights."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap

from fathomless.families.baselines.laplace import linearised
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

_CHUNK = 1024  # rows evaluated at once


class DrawnNetworks(Resizable):
    """A network, and what is drawn of its weights once it is trained.

    Drawn networks are :math:`f_θ(x)`, or linear in their weights: :math:`f_{θ*}(x) + J(x)(θ - θ*)`. Outputs without a
    posterior, such as a scale that depends on the input under Laplace's approximation, stay :math:`f_{θ*}(x)`.

    Parameters
    ----------
    architecture : Architecture
        Of layers and head.
    depth : int
        Layers before the head.
    weight_prior : WeightPrior
        s of every weight; normalisation layers have to have one.
    linear : bool
        Whether drawn networks are linear in their weights.
    seed : int
        Of the weights at their start.
    dtype : torch.dtype
        Of the weights.

    Attributes
    ----------
    apart : Tensor, shape (S, P)
        What was drawn, from the mode; without rows until :meth:`take`.
    doubted : int, optional
        How many outputs, the first ones, have a posterior; None for all.
    stretch : int, optional
        How many draws, one after the other, are of one Markov chain; None for draws that are independent.
    precision : scalar Tensor
        α of the prior N(0, s²/α) of Laplace's approximation that has the greatest evidence; else 1.

    Raises
    ------
    DataError
        If weights have no prior.
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
        self.depth, self.linear = depth, linear
        self.doubted: int | None = None
        self.stretch: int | None = None
        with building(fold_in(seed, "network")):
            parts = [*map(architecture.layer, range(1, depth + 1)), architecture.head(depth)]
        self.network = nn.Sequential(*parts).to(dtype)
        self._scales = prior_scales(self.network, weight_prior)
        without = [name for name, _ in self.network.named_parameters() if name not in self._scales]
        if without:
            raise DataError(
                f"the network has weights without a prior ({', '.join(without[:3])}); a posterior around what is "
                "trained needs one of every weight: give weight_prior=WeightPrior(norms=True)"
            )
        weights = sum(p.numel() for p in self.network.parameters())
        self.register_buffer("apart", torch.zeros(0, weights, dtype=dtype))
        self.register_buffer("precision", torch.ones((), dtype=torch.float64))

    @property
    def stochastic(self) -> bool:
        """False: all networks that were drawn are used."""
        return False

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Evaluate the network while it is trained, and every network that was drawn afterwards."""
        square = [p.square().sum() / self._scales[name] ** 2 for name, p in self.network.named_parameters()]
        decay = 0.5 * torch.stack(square).sum()
        drawn = len(self.apart) > 0 and not self.training
        f = self._drawn(x) if drawn else self.network(x)[None]
        even = torch.full((len(f),), -math.log(len(f)), dtype=f.dtype, device=f.device)
        number = torch.full((len(f),), self.depth, device=f.device)
        chains = torch.arange(len(f), device=f.device) // self.stretch if drawn and self.stretch else None
        return Draws(f, even, number, {"weights": decay}, network=chains)

    def _drawn(self, x: Tensor) -> Tensor:
        if self.linear:
            return linearised(self.network, x, self.apart, self.doubted)
        if torch.is_grad_enabled():  # the products of FlatNetworks take no part in it
            each = torch.cat([p.reshape(-1) for p in self.network.parameters()]) + self.apart
            found: Tensor = vmap(lambda own: call_with(self.network, own, x))(unflatten(self.network, each))
            return found
        flat = FlatNetworks(self.network, len(self.apart))
        flat.weights.copy_(flatten(self.network) + self.apart)
        return torch.cat([flat(part) for part in x.split(_CHUNK)], 1)

    def structure(self) -> ListedPosterior:
        """Return the one depth."""
        return make_depth_posterior({self.depth: 1.0})

    def prior_scale(self) -> Tensor:
        """Return s of every weight, (P,)."""
        own = self.network.named_parameters()
        return torch.cat([torch.full((p.numel(),), self._scales[name], dtype=torch.float32).to(p) for name, p in own])

    def take(
        self, apart: Tensor, precision: float = 1.0, doubted: int | None = None, stretch: int | None = None
    ) -> None:
        """Take what was drawn, (S, P) from the mode; if networks are linear, `doubted` outputs have a posterior."""
        self.apart, self.doubted, self.stretch = apart.to(self.apart), doubted, stretch
        self.precision.fill_(precision)

    def blueprint(self) -> dict[str, Any]:
        """Return how many networks were drawn, how many outputs have a posterior if not all have, and chains."""
        own = {"doubted": self.doubted, "stretch": self.stretch}
        return {"networks": len(self.apart), **{name: number for name, number in own.items() if number is not None}}

    def rebuild(self, blueprint: dict[str, Any]) -> None:
        """Have as many."""
        self.apart = self.apart.new_zeros(int(blueprint["networks"]), self.apart.shape[1])
        self.doubted, self.stretch = blueprint.get("doubted"), blueprint.get("stretch")
