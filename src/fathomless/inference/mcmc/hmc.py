r"""Hamiltonian Monte Carlo for a batch of chains.

A position w of log density :math:`-U(w)` gets a momentum p of mass m, and both follow

.. math:: \dot w = p / m, \qquad \dot p = -\nabla U(w), \qquad H(w, p) = U(w) + \tfrac12 \sum_j p_j^2 / m_j ,

by the leapfrog scheme. The scheme is reversible, preserves volumes, and has an error in H of second order in the step.
Accepting its end with probability min(1, exp(H before − H after)), and staying otherwise, therefore leaves the law of w
invariant. During burn-in the step is adapted by dual averaging to a target probability of acceptance; afterwards it is
fixed.

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
        Starts of the trajectories, replaced by their ends.
    gradient : callable
        () -> gradient of the log density at the present values of `position`, (C, P).
    mass : Tensor, shape (C, P)
        Mass of every coordinate.
    step : Tensor, shape (C, 1)
        Step size of each trajectory.
    steps : int
        Number of steps.

    Examples
    --------
    Half an orbit under a normal law:

    >>> w, p = torch.zeros(1, 1), torch.ones(1, 1)
    >>> leapfrog(w, p, lambda: -w, torch.ones(1, 1), torch.full((1, 1), math.pi / 100), 100)
    >>> p.round(decimals=3)
    tensor([[-1.]])
    """
    over_mass = step / mass
    half = 0.5 * step
    momentum.addcmul_(gradient(), half)
    for remaining in range(steps - 1, -1, -1):
        position.addcmul_(momentum, over_mass)
        # the half steps of the momentum at the end of a step and the start of the next one are taken together
        momentum.addcmul_(gradient(), step if remaining else half)


@dataclass(frozen=True)
class StepSize:
    """Step size of a chain, with the state of its adaptation by dual averaging.

    Attributes
    ----------
    step : float
        Present step size.
    average : float
        Averaged logarithm of the step size, which is used after the adaptation.
    centre : float
        Value towards which the logarithm of the step size shrinks.
    error : float
        Average of the target probability of acceptance minus the observed one.
    count : int
        Number of trajectories so far.
    """

    step: float
    average: float = 0.0
    centre: float = 0.0
    error: float = 0.0
    count: int = 0

    @classmethod
    def start(cls, step: float) -> "StepSize":
        """Return the state of the adaptation before the first trajectory."""
        return cls(step, math.log(step), math.log(10.0 * step))

    def update(self, acceptance: float, target: float) -> "StepSize":
        """Return the adapted step size after a trajectory with the given probability of acceptance."""
        count = self.count + 1
        share = 1.0 / (count + _DELAY)
        error = (1.0 - share) * self.error + share * (target - acceptance)
        log_step = self.centre - math.sqrt(count) / _SHRINKAGE * error
        forget = count**-_DECAY  # the average forgets early steps, which are far from the final size
        average = forget * log_step + (1.0 - forget) * self.average
        return StepSize(math.exp(log_step), average, self.centre, error, count)

    def freeze(self) -> "StepSize":
        """Return the averaged step size, for use after the adaptation."""
        return replace(self, step=math.exp(self.average))
