r"""Elliptical slice sampling: a posterior under a standard normal prior, without a step size.

From a state z and :math:`\nu \sim N(0, I)`, the ellipse :math:`z \cos\theta + \nu \sin\theta` has the prior as its law
for every θ. A level below the likelihood of z is drawn, and then θ from a bracket around 0 that shrinks towards it
until the likelihood lies above the level. Every transition moves, and leaves the posterior as it is.

References
----------
I. Murray, R. P. Adams and D. J. C. MacKay, "Elliptical slice sampling", AISTATS 2010.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from fathomless.system.draws import normal, uniform
from fathomless.system.errors import DivergenceError

__all__ = ["elliptical_slice"]

_SHRINKS = 200  # a bracket of 10⁻³⁰ or so


def elliptical_slice(
    z: Tensor, log_likelihood: Tensor, of: Callable[[Tensor], Tensor], generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Move chains by one transition each, side by side.

    Parameters
    ----------
    z : Tensor, shape (C, D)
        States, with the prior N(0, I).
    log_likelihood : Tensor, shape (C,)
        Theirs.
    of : callable
        States (C, D) -> log likelihoods (C,). −∞ and NaN are below every level.
    generator : torch.Generator, optional
        Of what is drawn.

    Returns
    -------
    z, log_likelihood
        After it.

    Raises
    ------
    DivergenceError
        If the likelihood of a state is not finite.

    Examples
    --------
    >>> g, z = torch.Generator().manual_seed(0), torch.zeros(3, 2)
    >>> z, log_p = elliptical_slice(z, torch.zeros(3), lambda z: -z.square().sum(1), g)
    >>> z.shape, bool((log_p == -z.square().sum(1)).all())
    (torch.Size([3, 2]), True)
    """
    if not bool(log_likelihood.isfinite().all()):
        raise DivergenceError("a chain stands where its likelihood is not finite; begin where it is")

    def chance() -> Tensor:
        return uniform(log_likelihood, generator)

    nu = normal(z, generator)
    level = log_likelihood + chance().log()
    theta = 2.0 * math.pi * chance()
    low, high = theta - 2.0 * math.pi, theta
    found, value = z, log_likelihood
    waiting = torch.ones_like(level, dtype=torch.bool)
    for _ in range(_SHRINKS):
        there = z * theta.cos()[:, None] + nu * theta.sin()[:, None]
        at = of(there)
        taken = waiting & (at > level)
        found, value = torch.where(taken[:, None], there, found), torch.where(taken, at, value)
        waiting = waiting & ~taken
        if not bool(waiting.any()):
            break
        low, high = torch.where(theta < 0.0, theta, low), torch.where(theta < 0.0, high, theta)
        theta = low + (high - low) * chance()
    return found, value  # a chain that waits still has shrunk to where it was
