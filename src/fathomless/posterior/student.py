r"""Student's t law with :math:`\nu` degrees of freedom: density, distribution function and quantile of z.

SciPy computes both functions. Its quantile ``stdtrit`` is wrong for probabilities below about 1e-100 (off by a factor,
or infinite on the wrong side), so that there it is taken from the inverse of the incomplete beta function and refined.
"""

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["cdf", "cdf_slope", "energy", "icdf", "log_constant"]

_FAR = 1e-40  # probability below which another way is taken; both are exact to 1e-12 there
_LEAST = 1e-300  # probability from which the refinement starts for smaller ones, which are not represented as exactly
_STEPS = 12
_DIFFERENCE = 1e-4  # step of the central difference in the degrees of freedom, relative to them


def energy(z: Tensor, df: float | Tensor) -> Tensor:
    """Return (df + 1) / 2 log(1 + z² / df): minus the log density of z, up to its constant, in nats."""
    return 0.5 * (df + 1.0) * torch.log1p(z.square() / df)


def log_constant(df: float | Tensor) -> float | Tensor:
    """Return the log of Gamma((df + 1) / 2) / (Gamma(df / 2) sqrt(pi df)): of a float in double precision."""
    of: Any = math if isinstance(df, float) else torch
    constant: float | Tensor = of.lgamma(0.5 * (df + 1.0)) - of.lgamma(0.5 * df) - 0.5 * of.log(df * math.pi)
    return constant


def cdf(z: Tensor, df: Tensor) -> Tensor:
    """Return the probability below z, accurate relative to itself in the lower tail; differentiable in both."""
    p: Tensor = _CDF.apply(z, df)
    return p


def cdf_slope(z: Tensor, df: Tensor) -> Tensor:
    """Return the derivative of the probability below z in the degrees of freedom, by a central difference.

    It is taken in the lower tail, where probabilities are exact relative to themselves: the law is symmetric.
    """
    step = _DIFFERENCE * df
    low = torch.where(z < 0.0, z, -z)
    slope = (cdf(low, df + step) - cdf(low, df - step)) / (2.0 * step)
    return torch.where(z < 0.0, slope, -slope)


@torch.no_grad()
def icdf(p: Tensor, df: Tensor) -> Tensor:
    """Return the quantile of z, minus and plus infinity at 0 and 1; without gradients."""
    from scipy import special  # here, since few need it

    p, df = torch.broadcast_tensors(p, df)
    z = torch.as_tensor(special.stdtrit(df.numpy(), p.numpy()), device="cpu")
    far = (p > 0) & (p < _FAR)
    if far.any():
        z = z.masked_scatter(far, _far_icdf(p[far], df[far]))
    return torch.where(p <= 0, -math.inf, torch.where(p >= 1, math.inf, z))


def _far_icdf(p: Tensor, df: Tensor) -> Tensor:
    """Return quantiles of tiny probabilities: Newton's method solves log F(-t) = log p for log t.

    In these coordinates F is concave, and a straight line if its tail is a power.
    """
    from scipy import special

    x = torch.as_tensor(special.betaincinv(0.5 * df.numpy(), 0.5, 2.0 * p.clamp_min(_LEAST).numpy()), device="cpu")
    log_t = 0.5 * (df.log() + torch.log1p(-x) - x.log())  # x = df / (df + t²)
    constant, target = torch.as_tensor(log_constant(df), device="cpu"), p.log()
    for _ in range(_STEPS):
        t = log_t.exp()
        log_tail = torch.as_tensor(special.stdtr(df.numpy(), -t.numpy()), device="cpu").log()
        slope = (log_t + constant - energy(t, df) - log_tail).exp()  # minus the derivative of log F(-t) in log t
        step = (log_tail - target) / slope
        step = torch.where(step.isfinite(), step, 0.0)
        log_t = log_t + step
        if not (step.abs() > 1e-15 * log_t.abs().clamp_min(1.0)).any():
            break
    return -log_t.exp()


class _CDF(torch.autograd.Function):
    """The distribution function by SciPy, with its derivatives."""

    @staticmethod
    def forward(z: Tensor, df: Tensor) -> Tensor:
        from scipy import special  # here, since few need it

        return torch.as_tensor(special.stdtr(df.detach().numpy(), z.detach().numpy()), device="cpu")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        z, df = ctx.saved_tensors
        of_z = grad * (log_constant(df) - energy(z, df)).exp()
        return of_z, grad * cdf_slope(z, df) if ctx.needs_input_grad[1] else None
