r"""Gaussian processes of weights over depth, and their divergence: Ornstein-Uhlenbeck and Brownian laws on a grid.

A weight moves by :math:`dw = -\theta w\,dt + \sigma\,dB`, or, under a posterior, by
:math:`dw = [-\lambda w + b]\,dt + \sigma\,dB` with the same diffusion, since laws of paths with other diffusions are
mutually singular. Both are used only on a grid. Over a step Δ the laws are Gaussian,

.. math:: w \mapsto \mathcal N\big(e^{-\lambda\Delta} w + \varphi(\lambda)\, b,\; \sigma^2 \varphi(2\lambda)\big),
          \qquad \varphi(\lambda) = \frac{1 - e^{-\lambda\Delta}}{\lambda},

for the exact transition, and :math:`\mathcal N(w + (b - \lambda w)\Delta, \sigma^2\Delta)` for the Euler-Maruyama
transition. The divergence of two chains on a grid is the sum over steps of

.. math:: \tfrac12 \Big[\frac{(m_q - m_p)^2}{v_p} + \rho - 1 - \ln\rho\Big], \qquad \rho = v_q / v_p,

in expectation under q. It is the exact divergence of these chains, not an approximation of the divergence of their
limits, so that the objective is a bound for every number of steps.

References
----------
W. Xu, R. T. Q. Chen, X. Li and D. Duvenaud, "Infinitely Deep Bayesian Neural Networks with Stochastic Differential
Equations", AISTATS 2022.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from fathomless.system import checks
from fathomless.system.errors import DataError

__all__ = ["Brownian", "OrnsteinUhlenbeck", "Process", "Transition", "coarsen", "excess", "relaxation", "transition"]


class Process(ABC):
    """Prior process of one weight over depth.

    Attributes
    ----------
    rate : float
        Rate θ of mean reversion to 0.
    diffusion : float
        Diffusion coefficient σ.
    scale : float
        Standard deviation s at depth 0.
    """

    rate: float
    diffusion: float
    scale: float

    @property
    def pace(self) -> float:
        """Rate θ or, for Brownian motion, half the variance gained per unit of depth, in units of s²."""
        return self.rate or 0.5 * self.unit().diffusion ** 2

    @abstractmethod
    def variance(self, t: float) -> float:
        """Return the variance at depth t."""

    @abstractmethod
    def unit(self) -> "Process":
        """Return the same process in units of its scale."""


@dataclass(frozen=True)
class OrnsteinUhlenbeck(Process):
    """Stationary process: N(0, s²) at every depth, correlation e^{−θ|t − t'|}, diffusion σ = s √(2θ).

    With rate 0 a weight is constant over depth.

    Examples
    --------
    >>> OrnsteinUhlenbeck(rate=1.0, scale=0.5).diffusion ** 2
    0.5000000000000001
    """

    rate: float = 0.25
    scale: float = 1.0

    def __post_init__(self) -> None:
        _check(self.rate, self.scale)

    @property
    def diffusion(self) -> float:  # type: ignore[override]
        """Diffusion coefficient σ = s √(2θ)."""
        return self.scale * math.sqrt(2.0 * self.rate)

    def variance(self, t: float) -> float:
        """Return s²."""
        return self.scale**2

    def unit(self) -> "OrnsteinUhlenbeck":
        """Return the same process with a scale of 1."""
        return replace(self, scale=1.0)


@dataclass(frozen=True)
class Brownian(Process):
    """Brownian motion from N(0, s²): variance s² + σ² t."""

    diffusion: float = 1.0
    scale: float = 1.0
    rate = 0.0

    def __post_init__(self) -> None:
        _check(0.0, self.scale)
        checks.positive("diffusion", self.diffusion)

    def variance(self, t: float) -> float:
        """Return s² + σ² t."""
        return self.scale**2 + self.diffusion**2 * t

    def unit(self) -> "Brownian":
        """Return the same process with a scale of 1."""
        return replace(self, diffusion=self.diffusion / self.scale, scale=1.0)


def _check(rate: float, scale: float) -> None:
    if checks.real("rate", rate) < 0.0:
        raise DataError(f"rate={rate} was given; a finite number >= 0 is allowed (0: the same weights at every depth)")
    checks.scale("scale", scale)


def relaxation(x: Tensor) -> Tensor:
    """Return (1 − e^{−x}) / x, 1 at x = 0, with full precision of the value and of its derivative."""
    value: Tensor = _Relaxation.apply(x)
    return value


class _Relaxation(torch.autograd.Function):
    """Function (1 − e^{−x}) / x with an explicit derivative; autograd of both branches costs several times more."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        series = 1.0 - x / 2.0 * (1.0 - x / 3.0 * (1.0 - x / 4.0 * (1.0 - x / 5.0)))
        return torch.where(x.abs() < 1e-2, series, -torch.expm1(-x) / x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, value = ctx.saved_tensors
        series = -0.5 * (1.0 - x * (2 / 3) * (1.0 - x * (3 / 8) * (1.0 - x * (4 / 15) * (1.0 - x * (5 / 24)))))
        return grad * torch.where(x.abs() < 1e-2, series, (1.0 - (x + 1.0) * value) / x)


def excess(ratio: Tensor) -> Tensor:
    """Return ρ − 1 − ln ρ, at least 0 and 0 at ρ = 1 exactly."""
    value: Tensor = _Excess.apply(ratio)
    return value


class _Excess(torch.autograd.Function):
    """Function ρ − 1 − ln ρ by a series near 1, with an explicit derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(ratio: Tensor) -> Tensor:
        d = ratio - 1.0
        series = d * d * (1 / 2 - d * (1 / 3 - d * (1 / 4 - d * (1 / 5 - d * (1 / 6 - d / 7)))))
        return torch.where(d.abs() < 3e-2, series, d - torch.log1p(d))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (ratio,) = ctx.saved_tensors
        slope: Tensor = (ratio - 1.0) / ratio
        return grad * slope


@dataclass(frozen=True)
class Transition:
    """Gaussian transitions with the rate λ = θ + κ and with the rate θ of the prior, over steps of given lengths.

    All attributes are tensors that broadcast with each other, with a factor for each step and each coordinate.

    Attributes
    ----------
    decay : Tensor
        Factor of w in the mean under q.
    turn : Tensor
        Difference of this factor from that of the prior: m_q − m_p is ``turn * w + gain * b``.
    gain : Tensor
        Factor in the mean of a drift b that does not depend on w.
    noise : Tensor
        Standard deviation under q.
    prior_decay, prior_noise : Tensor
        Factor of w and standard deviation under the prior.
    ratio : Tensor
        Ratio ρ of the variances.
    """

    decay: Tensor
    turn: Tensor
    gain: Tensor
    noise: Tensor
    prior_decay: Tensor
    prior_noise: Tensor
    ratio: Tensor

    def unbind(self) -> "list[Transition]":
        """Split along the first axis."""
        unbound = (getattr(self, f.name).unbind() for f in fields(self))
        return [Transition(*parts) for parts in zip(*unbound, strict=True)]


def transition(
    prior: Process, feedback: Tensor, dt: Tensor, *, kind: str = "exact", speed: Tensor | None = None
) -> Transition:
    """Return the transitions over steps.

    Parameters
    ----------
    prior : Process
        Prior process, with θ and σ.
    feedback : Tensor
        κ, added to the rate.
    dt : Tensor
        Step length Δ > 0, broadcast with `feedback`.
    kind : {"exact", "euler"}
        Transitions of the process, or of its Euler-Maruyama discretisation.
    speed : Tensor, optional
        Speed of the prior's clock, broadcast with `feedback`; it multiplies θ and σ².

    Examples
    --------
    >>> step = transition(OrnsteinUhlenbeck(rate=1.0), torch.tensor(2.0), torch.tensor(0.5))
    >>> round(step.decay.item(), 4), round(step.noise.item() ** 2, 4)
    (0.2231, 0.3167)
    """
    checks.choice("transition", kind, ("exact", "euler"))
    speed = torch.ones_like(dt) if speed is None else speed
    theta = prior.rate * speed
    diffusion = prior.diffusion * speed.sqrt()
    behind, ahead = theta * dt, (theta + feedback) * dt  # decay exponents of prior and posterior
    if kind == "euler":
        noise = diffusion * dt.sqrt()
        return Transition(
            decay=1.0 - ahead,
            turn=-feedback * dt,
            gain=dt,
            noise=noise,
            prior_decay=1.0 - behind,
            prior_noise=noise,
            ratio=torch.ones_like(dt),
        )
    decay, prior_decay = (-ahead).exp(), (-behind).exp()
    relaxed, prior_relaxed = relaxation(ahead), relaxation(behind)
    ratio = relaxed * (1.0 + decay) / (prior_relaxed * (1.0 + prior_decay))  # φ(2λ) = φ(λ) (1 + e^{−λΔ}) / 2
    prior_noise = diffusion * (prior_relaxed * (0.5 * (1.0 + prior_decay)) * dt).sqrt()
    return Transition(
        decay=decay,
        turn=prior_decay * torch.expm1(-feedback * dt),
        gain=relaxed * dt,
        noise=prior_noise * ratio.sqrt(),
        prior_decay=prior_decay,
        prior_noise=prior_noise,
        ratio=ratio,
    )


def coarsen(noise: Sequence[Tensor], decay: Tensor, scale: Tensor) -> Tensor:
    """Return the standard normal noise of one step that replaces several fine steps: their scaled total noise.

    Parameters
    ----------
    noise : sequence of Tensors
        Standard normal noise ε of each fine step.
    decay, scale : Tensors, shape (steps, ...)
        Decay and standard deviation of each fine step.
    """
    total = scale[0] * noise[0]
    variance = scale[0].square()
    for eps, factor, std in zip(noise[1:], decay[1:], scale[1:], strict=True):
        total = factor * total + std * eps
        variance = factor.square() * variance + std.square()
    return total / variance.sqrt()
