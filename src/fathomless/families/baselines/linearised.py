"""A network of one depth, made linear in its weights, with Laplace's approximation of their posterior."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from fathomless.data.rows import Rows
from fathomless.inference.laplace import laplace_posterior, linearised
from fathomless.nn.architectures import Architecture
from fathomless.nn.layers import WeightPrior, prior_scales
from fathomless.posterior.capabilities import Resizable
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Draws
from fathomless.posterior.structure import ListedPosterior, depth_structure
from fathomless.system.errors import DataError
from fathomless.system.rng import fold_in, seeded_globals

__all__ = ["LinearisedNetwork"]


class LinearisedNetwork(Resizable):
    """A network, and what is drawn of its weights once it is trained: :math:`f_{θ*}(x) + J(x)(θ - θ*)`.

    Parameters
    ----------
    architecture : Architecture
        Of layers and head.
    depth : int
        Layers before the head.
    weight_prior : WeightPrior
        s of every weight; normalisation layers have to have one.
    seed : int
        Of the weights at their start.
    dtype : torch.dtype
        Of the weights.

    Attributes
    ----------
    apart : Tensor, shape (S, P)
        What was drawn, from the mode; without rows until :meth:`take_posterior`.
    precision : scalar Tensor
        α of the prior N(0, s²/α) that has the greatest evidence; 1 while it is trained.

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
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.depth = depth
        with seeded_globals(fold_in(seed, "network")):
            parts = [*map(architecture.layer, range(1, depth + 1)), architecture.head(depth)]
        self.network = nn.Sequential(*parts).to(dtype)
        self._scales = prior_scales(self.network, weight_prior)
        without = [name for name, _ in self.network.named_parameters() if name not in self._scales]
        if without:
            raise DataError(
                f"the network has weights without a prior ({', '.join(without[:3])}); Laplace's approximation needs "
                "one of every weight: give weight_prior=WeightPrior(norms=True)"
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
        f = linearised(self.network, x, self.apart) if drawn else self.network(x)[None]
        even = f.new_full((len(f),), -math.log(len(f)))
        number = torch.full((len(f),), self.depth, device=f.device)
        return Draws(f, even, number, {"weights": decay})

    def structure(self) -> ListedPosterior:
        """Return the one depth."""
        return depth_structure({self.depth: 1.0})

    def take_posterior(self, likelihood: Likelihood, rows: Rows, draws: int, seed: int) -> None:
        """Find the posterior of the weights around what was trained, and draw from it."""
        own = self.network.named_parameters()
        scale = torch.cat([torch.full((p.numel(),), self._scales[name], device=p.device) for name, p in own])
        posterior = laplace_posterior(self.network, likelihood, rows, scale)
        generator = torch.Generator(scale.device).manual_seed(seed)
        self.apart = posterior.deviations(draws, generator).to(self.apart)
        self.precision.fill_(posterior.precision)

    def blueprint(self) -> dict[str, Any]:
        """Return how many networks were drawn."""
        return {"networks": len(self.apart)}

    def rebuild(self, blueprint: dict[str, Any]) -> None:
        """Have as many."""
        self.apart = self.apart.new_zeros(int(blueprint["networks"]), self.apart.shape[1])
