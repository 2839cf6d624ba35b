r"""Elliptical slice sampling: transitions for a posterior with a standard normal prior, without a step size.

From a state z and :math:`\nu \sim N(0, I)`, the ellipse :math:`z \cos\theta + \nu \sin\theta` has the prior as its law
for every θ. A level below the likelihood of z is drawn, and then θ from a bracket around 0 that shrinks towards it
until the likelihood lies above the level. Every transition moves the state and leaves the posterior invariant.

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

_SHRINKS = 200  # largest number of times the bracket shrinks, to a width of about 10⁻³⁰


def elliptical_slice(
    z: Tensor, log_likelihood: Tensor, of: Callable[[Tensor], Tensor], generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Move a batch of chains by one transition each.

    Parameters
    ----------
    z : Tensor, shape (C, D)
        States, with the prior N(0, I).
    log_likelihood : Tensor, shape (C,)
        Log-likelihoods of the states.
    of : callable
        States (C, D) -> log-likelihoods (C,). −∞ and NaN are below every level.
    generator : torch.Generator, optional
        Random generator.

    Returns
    -------
    z, log_likelihood
        States and their log-likelihoods after the transition.

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
        raise DivergenceError("the log-likelihood of a state is not finite; start the chains at states where it is")

    def draw_uniform() -> Tensor:
        return uniform(log_likelihood, generator)

    nu = normal(z, generator)
    level = log_likelihood + draw_uniform().log()
    theta = 2.0 * math.pi * draw_uniform()
    low, high = theta - 2.0 * math.pi, theta
    accepted = z
    accepted_log_likelihood = log_likelihood
    waiting = torch.ones_like(level, dtype=torch.bool)
    for _ in range(_SHRINKS):
        proposal = z * theta.cos()[:, None] + nu * theta.sin()[:, None]
        value = of(proposal)
        taken = waiting & (value > level)
        accepted = torch.where(taken[:, None], proposal, accepted)
        accepted_log_likelihood = torch.where(taken, value, accepted_log_likelihood)
        waiting = waiting & ~taken
        if not bool(waiting.any()):
            break
        # the rejected angle becomes the end of the bracket on its side of 0, where the present state is
        low, high = torch.where(theta < 0.0, theta, low), torch.where(theta < 0.0, high, theta)
        theta = low + (high - low) * draw_uniform()
    return accepted, accepted_log_likelihood  # chains still waiting have a bracket of width 0 and do not move
