r"""Spike-and-slab weights, which are exactly zero with some probability and otherwise Gaussian.

A weight is :math:`\gamma w` with :math:`\gamma \sim \mathrm{Bernoulli}(\alpha)`, :math:`w \sim N(\mu, \sigma^2)`. The
parameters are the logit λ of α and the logarithm of σ. The divergence of one weight from the prior
:math:`\gamma \sim \mathrm{Bernoulli}(\alpha_0)`, :math:`w \sim N(\mu_0, \sigma_0^2)` is

.. math:: k = \alpha (S + \lambda - \lambda_0) - \log(1 + e^\lambda) + \log(1 + e^{\lambda_0}), \qquad
          S = \log\frac{\sigma_0}{\sigma} - \frac12 + \frac{\sigma^2 + (\mu - \mu_0)^2}{2 \sigma_0^2}

(equation 6 of Skaaret-Lund, Storvik and Hubin, 2023, in logits: finite for every λ). The output of a linear map is
drawn from the first two moments of the weights, M = αμ and V = α(σ² + (1 − α)μ²).
"""

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fathomless.system import checks
from fathomless.system.draws import normal, uniform
from fathomless.system.errors import DataError

__all__ = [
    "Prior",
    "SlabPrior",
    "SlabStart",
    "SpikeSlabPosterior",
    "WeightMoments",
    "inclusions_from",
    "moments",
]

_FROZEN = 1e4  # absolute logit of fixed inclusions


@dataclass(frozen=True)
class SlabPrior:
    """γ ~ Bernoulli(α₀), w ~ N(μ₀, σ₀²), independent over weights.

    Attributes
    ----------
    inclusion : float, Tensor or "learned"
        α₀, between 0 and 1. A tensor broadcasts to the weight, so that columns (inputs) or single weights may differ.
        If learned, it is one value for each layer, (1 + Σ α) / (2 + P): the maximiser of the bound plus the log of a
        Beta(2, 2) prior on α₀. (The bound alone, or with a uniform prior, has its maximum at the mean of α, which may
        be 0 or 1 with an infinite logit.) The log of the Beta prior is not part of the reported bound.
    scale : float, Tensor or "learned"
        σ₀. If learned, it is the value that maximises the bound: σ₀² = Σ α (σ² + (μ − μ₀)²) / Σ α.
    mean : float or Tensor
        μ₀.
    bias_scale : float
        Standard deviation of biases, whose mean is 0.

    Raises
    ------
    DataError
        For probabilities outside (0, 1), scales that are not positive, and values that are not finite.
    """

    inclusion: float | str | Tensor = 0.1
    scale: float | str | Tensor = 1.0
    mean: float | Tensor = 0.0
    bias_scale: float = 1.0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("inclusion", 0.0, 1.0),
            ("scale", 0.0, math.inf),
            ("mean", -math.inf, math.inf),
            ("bias_scale", 0.0, math.inf),
        ):
            option = getattr(self, name)
            if isinstance(option, str):
                if option != "learned" or name not in ("inclusion", "scale"):
                    raise DataError(
                        f"a prior {name} of {option!r} was given; allowed are numbers, tensors and 'learned'"
                    )
                continue
            value = torch.as_tensor(option, dtype=torch.float64, device="cpu")
            if not bool(((value > least) & (value < most)).all()):
                shown = f"{option}" if value.ndim == 0 else f"a tensor from {value.min():.3g} to {value.max():.3g}"
                raise DataError(f"a prior {name} of {shown} was given; {least:g} < {name} < {most:g} is allowed")
            if name.endswith("scale"):
                for extreme in (value.min(), value.max()):
                    checks.scale(f"a prior {name}", float(extreme))

    def for_biases(self) -> "SlabPrior":
        """Return the prior of biases, with α₀ = ½ if that of the weights is a tensor or learned."""
        return SlabPrior(self.inclusion if isinstance(self.inclusion, float) else 0.5, self.bias_scale)

    def for_shape(self, shape: torch.Size) -> "Prior":
        """Return logit α₀, μ₀ and σ₀ for weights of this shape.

        Raises
        ------
        DataError
            If one of them does not broadcast.
        """
        for name in ("inclusion", "scale", "mean"):
            option = getattr(self, name)
            option_shape = option.shape if isinstance(option, Tensor) else torch.Size()
            try:
                # torch.broadcast_shapes would import SymPy
                fits = np.broadcast_shapes(option_shape, shape) == shape
            except ValueError:
                fits = False
            if not fits:
                raise DataError(
                    f"a prior {name} of shape {tuple(option_shape)} was given for weights of shape {tuple(shape)}; "
                    "give a number, or a tensor that broadcasts to the weights"
                )
        odds = self.inclusion
        if isinstance(odds, Tensor):
            odds = odds.logit()
        elif isinstance(odds, float):
            odds = _logit(odds)
        return Prior(odds, self.mean, self.scale)


class Prior(NamedTuple):
    """Prior of the weights of one layer: numbers, tensors that broadcast to the weights, or "learned".

    Attributes
    ----------
    odds : float, Tensor or "learned"
        logit α₀.
    mean : float or Tensor
        μ₀.
    scale : float, Tensor or "learned"
        σ₀.
    """

    odds: float | str | Tensor
    mean: float | Tensor
    scale: float | str | Tensor

    def maximize_bound(self, mean: Tensor, log_scale: Tensor, logit: Tensor | None) -> "Prior":
        """Return the prior with learned values replaced by the constants that maximise the bound."""
        if not isinstance(self.odds, str) and not isinstance(self.scale, str):
            return self
        with torch.no_grad():
            alpha = torch.ones_like(mean) if logit is None else logit.sigmoid()
            total = alpha.sum()
            odds, scale = self.odds, self.scale
            if isinstance(odds, str):
                odds = ((1.0 + total) / (2.0 + mean.numel())).logit()
            if isinstance(scale, str):
                spread = (2.0 * log_scale).exp() + (mean - self.mean).square()
                scale = ((alpha * spread).sum() / total.clamp_min(1e-6)).sqrt()
        return Prior(odds, self.mean, scale)


class WeightMoments(NamedTuple):
    """Moments of the weights of one layer and their divergence from the prior.

    Attributes
    ----------
    mean, variance : Tensor
        M and V, with the shape of the weight.
    divergence : Tensor, scalar
        Σ k in nats, float64.
    """

    mean: Tensor
    variance: Tensor
    divergence: Tensor


def moments(
    mean: Tensor, log_scale: Tensor, logit: Tensor | None, prior: Prior, *, compiled: bool = False
) -> WeightMoments:
    """Return the moments of weights and their divergence from the prior.

    Parameters
    ----------
    mean, log_scale : Tensor, any shape
        μ and log σ of the slabs.
    logit : Tensor or None
        λ; None for Gaussian weights, which are always included.
    prior : Prior
        Result of :meth:`SlabPrior.for_shape`, without learned values.
    compiled : bool
        Fuse all operations into one loop over the weights by ``torch.compile``. The first call then takes seconds.

    Raises
    ------
    RuntimeError
        If torch cannot compile, for instance without a C++ compiler.

    Examples
    --------
    >>> prior = SlabPrior(inclusion=0.5).for_shape(torch.Size([2]))
    >>> zero = torch.zeros(2)
    >>> moments(zero, zero, zero, prior).divergence.item()  # the prior itself
    0.0
    """
    return (_compiled() if compiled else _moments)(mean, log_scale, logit, prior)


def _moments(mean: Tensor, log_scale: Tensor, logit: Tensor | None, prior: Prior) -> WeightMoments:
    variance = (2.0 * log_scale).exp()
    slab = _slab(mean, log_scale, variance, prior)
    if logit is None:
        return WeightMoments(mean, variance, slab.sum(dtype=torch.float64))
    alpha = logit.sigmoid()
    odds = prior.odds
    k = alpha * (slab + logit - cast(Any, odds)) - F.softplus(logit)
    without = F.softplus(torch.as_tensor(cast(Any, odds), dtype=torch.float64, device=mean.device))
    divergence = k.sum(dtype=torch.float64) + without.mean() * mean.numel()
    return WeightMoments(alpha * mean, alpha * (variance + (1.0 - alpha) * mean.square()), divergence)


def _slab(mean: Tensor, log_scale: Tensor, variance: Tensor, prior: Prior) -> Tensor:
    """Return S of every weight."""
    scale = cast(Any, prior.scale)
    log_prior_scale = scale.log() if isinstance(scale, Tensor) else math.log(scale)
    slab: Tensor = (variance + (mean - prior.mean).square()) * (0.5 / scale**2) + (log_prior_scale - 0.5) - log_scale
    return slab


@dataclass(frozen=True)
class SlabStart:
    """Initial values of the posterior of weights.

    Attributes
    ----------
    mean : float, optional
        μ is uniform on ±`mean`. With None the initial values of the module are used.
    log_scale : (float, float)
        Mean and standard deviation of log σ.
    logit : (float, float)
        Bounds of the uniform law of λ.
    """

    mean: float | None = None
    log_scale: tuple[float, float] = (-6.0, 0.1)
    logit: tuple[float, float] = (0.5, 1.5)


class SpikeSlabPosterior(nn.Module):
    """The posterior of the weights, or the biases, of one layer.

    Parameters
    ----------
    values : Tensor
        Initial means, unless `start` has a law of them.
    prior : Prior
        Result of :meth:`SlabPrior.for_shape`.
    inclusion : bool
        If true, every weight has an inclusion variable.
    start : SlabStart
        Laws of the initial values, drawn from the global generator of torch as in other modules.
    """

    def __init__(self, values: Tensor, prior: Prior, *, inclusion: bool, start: SlabStart) -> None:
        super().__init__()
        values = values.detach()
        bound = start.mean
        mean = values.clone() if bound is None else torch.empty_like(values).uniform_(-bound, bound)
        self.mean = nn.Parameter(mean)
        self.log_scale = nn.Parameter(torch.empty_like(values).normal_(*start.log_scale))
        self.logit = nn.Parameter(torch.empty_like(values).uniform_(*start.logit)) if inclusion else None
        self.frozen = False  # True if all inclusions are fixed
        self.register_load_state_dict_post_hook(_update_frozen)
        self._plain = tuple(None if isinstance(value, Tensor) else value for value in prior)
        for name, value in zip(prior._fields, prior, strict=True):
            tensor = value.to(values) if isinstance(value, Tensor) else None
            self.register_buffer(f"prior_{name}", tensor, persistent=False)

    @torch.no_grad()
    def freeze(self) -> None:
        """Fix all inclusions at their more probable value, in place, by large logits that are not trained."""
        if self.logit is not None:
            self.logit.copy_(torch.where(self.logit > 0.0, _FROZEN, -_FROZEN)).requires_grad_(False)
            self.frozen = True

    @property
    def prior(self) -> Prior:
        """Prior of the weights."""
        pairs = zip(self._plain, Prior._fields, strict=True)
        values: list[Any] = [getattr(self, f"prior_{name}") if value is None else value for value, name in pairs]
        return Prior(*values)

    def moments(self, mean: Tensor | None = None, *, compiled: bool = False) -> WeightMoments:
        """Return M, V and Σ k, with `mean` in place of the means of the slabs if it is given."""
        mean = self.mean if mean is None else mean
        prior = self.prior.maximize_bound(mean, self.log_scale, self.logit)
        return moments(mean, self.log_scale, self.logit, prior, compiled=compiled)

    def draw_relaxed(self, mean: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
        """Draw weights with relaxed (concrete) inclusions between 0 and 1, which are differentiable.

        References
        ----------
        C. Maddison, A. Mnih and Y. Teh, "The Concrete Distribution", ICLR 2017.
        """
        weight = mean + self.log_scale.exp() * normal(mean, generator)
        if self.logit is None:
            return weight
        edge = torch.finfo(mean.dtype).eps
        u = uniform(mean, generator).clamp(edge, 1.0 - edge)
        return weight * ((self.logit + u.logit()) / temperature).sigmoid()

    def draw(self, mean: Tensor, predict_by: str, generator: torch.Generator | None) -> Tensor:
        """Draw weights with drawn inclusions ("average"), or those with α > ½ ("median"); other weights are exactly 0.

        Inside :func:`inclusions_from` the inclusions come from its generator.
        """
        weight = mean + self.log_scale.exp() * normal(mean, generator)
        if self.logit is None:
            return weight
        if predict_by == "median":
            return torch.where(self.logit > 0.0, weight, 0.0)
        u = uniform(mean, _INCLUSIONS.get() or generator)
        return torch.where(u < self.logit.sigmoid(), weight, 0.0)

    def means(self, mean: Tensor, predict_by: str) -> Tensor:
        """Return αμ ("average"), or μ for α > ½ and 0 otherwise ("median")."""
        if self.logit is None:
            return mean
        return mean * (self.logit > 0.0 if predict_by == "median" else self.logit.sigmoid())

    def inclusion(self) -> Tensor:
        """Return α; ones if there are no inclusion variables."""
        return torch.ones_like(self.mean) if self.logit is None else self.logit.detach().sigmoid()


def _update_frozen(weights: nn.Module, _: object) -> None:
    """Set `frozen` from the logits after they are loaded."""
    assert isinstance(weights, SpikeSlabPosterior)
    weights.frozen = weights.logit is not None and bool((weights.logit.abs() >= _FROZEN).all())


_INCLUSIONS: ContextVar[torch.Generator | None] = ContextVar("fathomless_inclusions", default=None)


@contextmanager
def inclusions_from(generator: torch.Generator) -> Iterator[None]:
    """Draw inclusions from a separate generator, so that a structure can be repeated with other weights."""
    token = _INCLUSIONS.set(generator)
    try:
        yield
    finally:
        _INCLUSIONS.reset(token)


@functools.cache
def _compiled() -> Callable[..., WeightMoments]:
    return torch.compile(_moments, dynamic=True)


def _logit(p: float) -> float:
    return math.log(p) - math.log1p(-p)
