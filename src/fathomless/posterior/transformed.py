r"""Predictive distributions of a target that was transformed for the fit.

Networks, noise and laws of the residual describe :math:`t = T(y)`, with an increasing transform T
(:mod:`fathomless.system.transforms`). Probabilities and quantiles carry over, and densities have the factor
:math:`T'(y)`:

.. math:: F(y) = F_t(T(y)), \qquad p(y) = p_t(T(y))\, T'(y)

**Moments** are those of y, not of t. Every component is a Gaussian of t, and the mean and variance of
:math:`T^{-1}(t)` have a closed form (:func:`match_moments`). A logarithm makes moments sensitive to tails: the mean of
:math:`e^t` can be dominated by values that no data support. In moments, values beyond a limit therefore count as the
limit (:func:`limit_rows`). Densities, probabilities, quantiles and samples have no limit.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from fathomless.posterior.censoring import log_between
from fathomless.posterior.derived import MappedPredictive
from fathomless.posterior.distributions import (
    ContinuousPredictive,
    Values,
    match_type,
    to_double,
)
from fathomless.posterior.mixtures import Component, Mixture, Normal
from fathomless.system.errors import DataError
from fathomless.system.transforms import LogTransform

__all__ = ["TransformedPredictive", "limit_rows", "match_moments"]

_LEAST = 1e-200  # variance of a component, in squared units
_NORMAL_95 = 1.6448536269514722  # quantile of the standard normal distribution
_LARGEST = 300.0  # of the logarithm of a limit, so that squares are finite


def limit_rows(weight: Tensor, component: Component, transform: LogTransform) -> Tensor:
    r"""Return the largest distance from the threshold that counts in the moments of each row, as log(1 + L).

    L is the limit of the transform. If the networks agree on larger values, where no training row is, it is the 95 %
    quantile of a Gaussian of t with the average location and scale of the networks: otherwise the standard deviation
    would tend to zero there. A single network that is far from the others hardly raises the limit.

    Parameters
    ----------
    weight : Tensor, broadcasts to (..., S, N, T)
        Weights of the networks.
    component : Normal, parameters of shape (..., S, N, T)
        Law of the transformed target under each network.
    transform : LogTransform
        The transform.

    Returns
    -------
    Tensor, shape (..., 1, N, T)
    """
    weight = weight / weight.sum(-3, keepdim=True)
    centre = (weight * transform.sign * component.loc).sum(-3, keepdim=True)
    highest = centre + _NORMAL_95 * (weight * component.scale).sum(-3, keepdim=True)
    least = math.log1p(transform.limit)
    return torch.where(highest < least, least, torch.where(highest > _LARGEST, _LARGEST, highest))


def match_moments(component: Component, transform: LogTransform, highest: Tensor) -> Normal:
    r"""Return Gaussians with the mean and variance of the target under each Gaussian of its transform.

    With :math:`t \sim N(m, s^2)` and the limit L, moments of the distance in units are sums of those of three parts:

    .. math:: u = t \;(t < 0), \qquad u = e^t - 1 \;(0 \le t \le \log(1 + L)), \qquad u = L .

    The first is a truncated Gaussian, and the second has :math:`E[e^{k t}] = e^{k m + k^2 s^2 / 2} P_k`, with the
    probability :math:`P_k` of the interval under :math:`N(m + k s^2, s^2)`.

    Parameters
    ----------
    component : Normal
        Gaussians of the transformed target.
    transform : LogTransform
        The transform.
    highest : Tensor, broadcasts to the parameters
        log(1 + L), of :func:`limit_rows`.
    """
    m, s = transform.sign * component.loc, component.scale
    zero, highest = torch.zeros_like(m), highest.expand_as(m)
    limit = highest.expm1()

    def exponential(k: float) -> Tensor:  # E[exp(k t)] of the second part
        inside = log_between(Normal, (), (zero, highest), m + k * s.square(), s.log())
        return (inside + k * m + 0.5 * (k * s).square()).exp()

    law = Normal(m, s)
    below, beyond, density = law.cdf(zero), law.sf(highest), law.log_prob(zero).exp() * s
    once, twice, inside = exponential(1.0), exponential(2.0), exponential(0.0)
    mean = m * below - s * density + once - inside + limit * beyond
    square = (m.square() + s.square()) * below - m * s * density + twice - 2.0 * once + inside
    square = square + limit.square() * beyond
    variance = (square - mean.square()).clamp_min(_LEAST)
    return Normal(transform.threshold + transform.sign * transform.unit * mean, transform.unit * variance.sqrt())


@dataclass(frozen=True, eq=False, repr=False)
class TransformedPredictive(MappedPredictive):
    """Predictive distribution of one target, given that of its transform.

    Arguments and results have the shape (N,), or (N, 1) if the target was given as a column. Everything is float64 on
    the CPU, in units of the target.

    Attributes
    ----------
    base : ContinuousPredictive
        Law of the transformed target, a mixture of Gaussians.
    transform : LogTransform
        Transform of the target.

    Raises
    ------
    DataError
        If the law has several targets, or is not a mixture of Gaussians.

    Examples
    --------
    >>> one, zeros = torch.zeros(1, device="cpu"), torch.zeros(1, 3, 1, device="cpu")
    >>> law = ContinuousPredictive(one, one.long(), Normal(zeros, zeros + 0.5), squeeze=True)
    >>> p = TransformedPredictive.of(law, LogTransform(threshold=0.0, unit=1.0, limit=100.0))
    >>> p.median
    tensor([0., 0., 0.], dtype=torch.float64)
    """

    _constant: ClassVar[str] = "transforms"

    base: ContinuousPredictive
    transform: LogTransform

    def __post_init__(self) -> None:
        super().__post_init__()
        components = [self.base.component, *(law.component for law in self.base.residual_laws)]
        other = [type(part).__name__ for part in components if not isinstance(part, Normal)]
        if other:
            raise DataError(f"a law of a transformed target was given {other[0]} components; allowed are Gaussians")

    @classmethod
    def of(cls, base: ContinuousPredictive, transform: LogTransform) -> Self:
        """Return the law of the target, given that of its transform."""
        return cls._derive(base, transform)

    @property
    def discrete(self) -> bool:
        """False."""
        return False

    @cached_property
    def moments(self) -> ContinuousPredictive:
        """The law with a Gaussian of the same mean and variance in place of the law of y in each component.

        Moments of y, and the parts of its variance, are those of this law; its density is another one.
        """
        with torch.enable_grad():  # the result is cached, and a later caller may need gradients
            component = self.base.component
            highest = limit_rows(self.base.log_weight.exp()[:, None, None], component, self.transform)
            laws = [
                Mixture(law.log_weight, match_moments(law.component, self.transform, highest))
                for law in self.base.residual_laws
            ]
            component = match_moments(component, self.transform, highest)
            return replace(self.base, component=component, residual_laws=tuple(laws))

    def cdf(self, y: Values) -> Tensor:
        """Probability that the target is below y, which broadcasts to the rows."""
        return self.base.cdf(self.transform.transform(to_double(y)))

    def sf(self, y: Values) -> Tensor:
        """Probability that the target is above y, accurate in the upper tail."""
        return self.base.sf(self.transform.transform(to_double(y)))

    def cdf_before(self, y: Values) -> Tensor:
        """Probability that the target is below y, as :meth:`cdf`."""
        return self.cdf(y)

    def icdf(self, p: Values) -> Tensor:
        """Quantile; p broadcasts to the rows."""
        return self.transform.invert(self.base.icdf(p))

    def isf(self, q: Values) -> Any:
        """Value that the target exceeds with probability q, accurate for small q."""
        return match_type(q, self.transform.invert(to_double(self.base.isf(q))))

    def logpdf(self, y: Values) -> Any:
        """Log density in nats; y broadcasts to the rows."""
        values = to_double(y)
        density = to_double(self.base.logpdf(self.transform.transform(values)))
        return match_type(y, density + self.transform.log_slope(values))

    def pdf(self, y: Values) -> Any:
        """Density, in the inverse of the units of the target; see :meth:`logpdf`."""
        return np.exp(self.logpdf(y)) if not isinstance(y, Tensor) else self.logpdf(y).exp()

    def log_prob(self, y: Values) -> Tensor:
        """Log density of each row's target in nats, shape (N,).

        Raises
        ------
        DataError
            If y does not have one value for each row.
        """
        return self.log_prob_and_error(self._require_shape(y, "row"))[0]

    def log_prob_and_error(self, y: Values) -> tuple[Tensor, Tensor]:
        """Return :meth:`log_prob` and its Monte Carlo error, both (N,), in nats."""
        values = to_double(y)
        log_p, error = self.base.log_prob_and_error(self.transform.transform(values))
        return log_p + self.transform.log_slope(values).reshape(log_p.shape), error

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw from the joint law, shape (n, N) or (n, N, 1); the rows of a sample share one drawn network."""
        return self.transform.invert(self.base.sample(n, generator))

    def crps(self, y: Values) -> Tensor:
        """Continuous ranked probability score of each row's target, with the shape of the rows, in units of y.

        It is computed by quadrature (:func:`fathomless.posterior.metrics.crps_law`).
        """
        from fathomless.posterior import metrics  # imports SciPy, which predictions do not need

        return torch.as_tensor(metrics.crps_law(to_double(y).reshape(self.shape), self), device="cpu")

    def _constants(self) -> tuple[Any, ...]:
        return (self.transform,)
