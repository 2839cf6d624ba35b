r"""Hamiltonian Monte Carlo of several chains side by side.

A position w of log density :math:`-U(w)` gets a momentum p of mass m, and both follow

.. math:: \dot w = p / m, \qquad \dot p = -\nabla U(w), \qquad H(w, p) = U(w) + \tfrac12 \sum_j p_j^2 / m_j ,

by the leapfrog scheme, which is reversible, keeps volumes, and misses H by the second order of the step. So accepting
its end with probability min(1, exp(H before − H after)), else staying, leaves the law of w as it is. A step is adapted
by dual averaging to a wanted probability of acceptance, and held afterwards.

References
----------
Neal (2011), MCMC using Hamiltonian dynamics. Hoffman and Gelman (2014), The No-U-Turn Sampler, section 3.2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

__all__ = ["StepSize", "leapfrog"]

_SHRINKAGE, _DELAY, _DECAY = 0.05, 10.0, 0.75  # γ, t₀ and κ of dual averaging


@torch.no_grad()
def leapfrog(
    position: Tensor,
    momentum: Tensor,
    gradient: Callable[[], Tensor],
    mass: Tensor,
    step: Tensor,
    steps: int,
) -> None:
    """Follow C trajectories, in place.

    Parameters
    ----------
    position, momentum : Tensors, shape (C, P)
        Where they are; afterwards, where they end.
    gradient : callable
        () -> gradient of the log density at `position` as it is now, (C, P).
    mass : Tensor, shape (C, P)
        Of every coordinate.
    step : Tensor, shape (C, 1)
        Length of a step of each.
    steps : int
        How many.

    Examples
    --------
    A normal law, half an orbit:

    >>> w, p = torch.zeros(1, 1), torch.ones(1, 1)
    >>> leapfrog(w, p, lambda: -w, torch.ones(1, 1), torch.full((1, 1), math.pi / 100), 100)
    >>> p.round(decimals=3)
    tensor([[-1.]])
    """
    over_mass, half = step / mass, 0.5 * step
    momentum.addcmul_(gradient(), half)
    for left in range(steps - 1, -1, -1):
        position.addcmul_(momentum, over_mass)
        momentum.addcmul_(gradient(), step if left else half)


@dataclass(frozen=True)
class StepSize:
    """The step of a chain, while it is adapted.

    Attributes
    ----------
    step : float
        Now.
    average : float
        Its logarithm, averaged: what is held in the end.
    centre : float
        To which log steps shrink.
    error : float
        Wanted less found probability of acceptance, averaged.
    count : int
        Trajectories that were seen.
    """

    step: float
    average: float = 0.0
    centre: float = 0.0
    error: float = 0.0
    count: int = 0

    @classmethod
    def start(cls, step: float) -> "StepSize":
        """Begin with a step."""
        return cls(step, math.log(step), math.log(10.0 * step))

    def seen(self, acceptance: float, wanted: float) -> "StepSize":
        """Return the step after a trajectory with so large a probability of acceptance."""
        count = self.count + 1
        share = 1.0 / (count + _DELAY)
        error = (1.0 - share) * self.error + share * (wanted - acceptance)
        log_step = self.centre - math.sqrt(count) / _SHRINKAGE * error
        forget = count**-_DECAY
        average = forget * log_step + (1.0 - forget) * self.average
        return StepSize(math.exp(log_step), average, self.centre, error, count)

    def held(self) -> "StepSize":
        """Return the averaged step, which stays."""
        return replace(self, step=math.exp(self.average))
