r"""Posterior of the weights at depth 0: point estimates, independent Gaussians, or low rank for the moving weights.

In units of prior standard deviations the prior is :math:`\mathcal N(0, I)`. The low-rank posterior is
:math:`\mathcal N(\mu, I - U \operatorname{diag}(1 - \rho^2) U^\top)` with the directions U of the drift: its variance
differs from the prior variance only along U.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fathomless.nn.layers import gaussian_divergence
from fathomless.system.draws import normal

__all__ = ["InitialLaw"]


@dataclass(frozen=True)
class InitialLaw:
    """Posterior of the weights at depth 0, for F stacked networks.

    Attributes
    ----------
    mean : Tensor, shape (F, P)
        μ.
    log_width : Tensor or None
        ln ρ of every weight, (F, P). With directions, ln ρ along these, followed by that of the constant weights. None
        for point estimates.
    directions : Tensor or None
        U, (F, M, m).
    charged : bool
        True if the objective includes the weight decay of point estimates.
    """

    mean: Tensor
    log_width: Tensor | None
    directions: Tensor | None
    charged: bool = True

    def stopped(self) -> "InitialLaw":
        """Return this law with the gradient stopped in its parameters."""
        width = None if self.log_width is None else self.log_width.detach()
        U = None if self.directions is None else self.directions.detach()
        return replace(self, mean=self.mean.detach(), log_width=width, directions=U)

    def draw(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Draw weights (F, n, P)."""
        mean = self.mean[:, None]
        U = self.directions
        shape = (len(self.mean), n, self.mean.shape[1])
        if self.log_width is None:
            return mean.expand(shape)
        eps = normal(mean, generator, shape)
        width = self.log_width.exp()[:, None]
        if U is None:
            return mean + width * eps
        size, rank = U.shape[1:]
        moving = eps[..., :size]
        moving = moving + ((width[..., :rank] - 1.0) * (moving @ U)) @ U.mT
        return mean + torch.cat([moving, width[..., rank:] * eps[..., size:]], -1)

    def closed(self, n: int) -> Tensor:
        """Return the divergence from the prior in nats, or the decay of point estimates, for each of n draws (F, n)."""
        divergence = 0.5 * self.mean.square().sum(1) * float(self.charged or self.log_width is not None)
        if self.log_width is not None:
            zero = torch.zeros_like(self.log_width[0])
            divergence = divergence + torch.stack([gaussian_divergence(zero, width) for width in self.log_width.exp()])
        return divergence[:, None].expand(-1, n)

    def full(self, drawn: Tensor) -> Tensor:
        """Return log q − log p of drawn weights (F, n, P), shape (F, n)."""
        if self.log_width is None:
            return self.closed(drawn.shape[1])
        off = drawn - self.mean[:, None]
        width = self.log_width.exp()[:, None]
        U = self.directions
        if U is None:
            eps = (off / width).square().sum(-1)
        else:
            size, rank = U.shape[1:]
            moving = off[..., :size]
            along = (moving @ U).square() * (width[..., :rank] ** -2 - 1.0)
            still = (off[..., size:] / width[..., rank:]).square().sum(-1)
            eps = moving.square().sum(-1) + along.sum(-1) + still
        return 0.5 * (drawn.square().sum(-1) - eps) - self.log_width.sum(1)[:, None]
