r"""Probabilities of intervals, the likelihood of censored targets.

The target of a censored row is only known to lie between two bounds a < b, of which one may be infinite. Its likelihood
is the probability

.. math:: P(a < Y < b) = F(b) - F(a),

that is :math:`1 - F(a)` for a row that is censored on the right and :math:`F(b)` for one that is censored on the left.
It is conditional on the bounds: censoring must not depend on the target, given the features and the bounds.

All functions compute the logarithm in the smaller tail, where it has a small error even if the probability underflows.
"""

import math
from typing import Any, Protocol

import torch
from torch import Tensor

from fathomless.posterior.mixtures import Censorable, Component, integrate_log_density

__all__ = ["HasTails", "impute", "log_between", "log_probability"]

_NARROW = 1e-5  # length of an interval in scales below which its probability is density times length
_TINY = 1e-290  # probability below which its log is computed from the density
_LEAST = 1e-300  # least probability of a quantile


class HasTails(Protocol):
    """A law with a distribution function that is accurate in both tails."""

    def cdf(self, y: Any) -> Tensor:
        """Probability below y."""

    def sf(self, y: Any) -> Tensor:
        """Probability above y."""


def log_between(
    law: type[Censorable],
    shape: tuple[float | Tensor, ...],
    bounds: tuple[Tensor, Tensor],
    loc: Tensor,
    log_scale: Tensor,
) -> Tensor:
    """Return log probabilities of intervals under laws of a location-scale family, in double precision.

    The result is differentiable in the parameters and has no branches that depend on values, for
    ``torch.func.vmap``. Where the bounds are equal it is that of an interval of the smallest positive length.

    Parameters
    ----------
    law : type of Censorable
        Family.
    shape : tuple of float or Tensor
        Shape parameters.
    bounds : (Tensor, Tensor)
        Lower and upper bounds, which broadcast to `loc`; one of a pair may be infinite.
    loc, log_scale : Tensors
        Centres and log scales.
    """
    low, high = (bound.double() for bound in bounds)
    open_low, open_high = low.isinf(), high.isinf()
    loc, precision = loc.double(), torch.exp(-log_scale.double())
    shape = tuple(part.double() if isinstance(part, Tensor) else part for part in shape)
    # an infinite bound would have infinite derivatives
    a, b = ((torch.where(end.isinf(), 0.0, end) - loc) * precision for end in (low, high))
    upper = open_high | (~open_low & (a + b > 0.0))  # reflected, so that both ends are in the lower tail
    near, far = torch.where(upper, -a, b), torch.where(upper, -b, a)
    is_open = open_low | open_high
    up_to = law.log_cdf(near, *shape)
    length = torch.where(is_open, 1.0, near - far)
    narrow = ~is_open & (length < _NARROW)
    # branches that are not used must have finite derivatives
    gap = torch.where(is_open | narrow, 1.0, up_to - law.log_cdf(far, *shape))
    difference = up_to + torch.log(-torch.expm1(-gap))
    middle = near - 0.5 * length
    log_density = law.log_constant(*shape) - law.energy(middle, *shape)
    by_density = log_density + length.clamp_min(torch.finfo(length.dtype).tiny).log()
    return torch.where(is_open, up_to, torch.where(narrow, by_density, difference))


def log_probability(law: HasTails, low: Tensor, high: Tensor, log_density: Any) -> Tensor:
    """Return log probabilities of intervals under any law with accurate tails, without derivatives.

    Parameters
    ----------
    law : HasTails
        Law of each row.
    low, high : Tensors of float64
        Bounds, shaped as the rows; one of a pair may be infinite.
    log_density : callable
        Function that returns the log density at values with the shape of the rows.
    """
    below, up_to = law.cdf(low), law.cdf(high)
    above, beyond = law.sf(high), law.sf(low)
    lower, upper = up_to <= 0.5, beyond <= 0.5
    mass = torch.where(lower, up_to - below, torch.where(upper, beyond - above, 1.0 - below - above))
    tiny = mass < _TINY
    log_mass = torch.where(tiny, 1.0, mass).log()
    if not tiny.any():
        return log_mass
    near, far = torch.where(lower, high, low), torch.where(lower, low, high)
    # a tail so far out decreases by many orders within a few percent of the distance from zero
    far = torch.where(far.isinf(), near + torch.where(lower, -1.0, 1.0) * (near.abs() + 1.0), far)
    return torch.where(tiny, integrate_log_density(log_density, near, far), log_mass)


def impute(law: Component, low: Tensor, high: Tensor, count: int) -> Tensor:
    """Return quantiles of laws between bounds, with equal probabilities between them.

    Averages over the quantiles approximate expectations given that the value is between the bounds.

    Parameters
    ----------
    law : Component
        Law of each value, on the CPU.
    low, high : Tensors of float64, shape of the parameters
        Bounds, of which one may be infinite; equal bounds are a known value.
    count : int
        Number of quantiles Q.

    Returns
    -------
    Tensor of float64, shape (Q, ...)
    """
    low, high = low.double(), high.double()
    a, b = law.standardise(low), law.standardise(high)
    upper = (high == math.inf) | ((low > -math.inf) & (a + b > 0.0))
    a, b = torch.where(upper, -b, a), torch.where(upper, -a, b)
    below, up_to = law.standard_cdf(a), law.standard_cdf(b)
    share = (torch.arange(count, dtype=torch.float64, device="cpu") + 0.5) / count
    share = share.view(-1, *[1] * law.loc.ndim)
    z = torch.stack([law.standard_icdf((below + part * (up_to - below)).clamp_min(_LEAST)) for part in share])
    z = torch.where(upper, -z, z)
    return torch.minimum(torch.maximum(law.loc + law.scale * z, low), high)
