r"""Student's t law with :math:`\nu` degrees of freedom: density, distribution function and quantile of z.

SciPy computes the distribution function and the quantile. Its quantile ``stdtrit`` is wrong for probabilities below
about 1e-100 (by a factor, or with an infinite value of the wrong sign). For small probabilities the quantile is
therefore computed from the inverse of the incomplete beta function and refined by Newton's method.
"""

import math
from typing import Any

import torch
from torch import Tensor

__all__ = ["cdf", "cdf_slope", "energy", "icdf", "log_cdf", "log_constant"]

_FAR = 1e-40  # largest probability of the second method; both methods are exact to 1e-12 there
_LEAST = 1e-300  # start of the refinement for smaller probabilities, which may be subnormal numbers
_STEPS = 12  # largest number of Newton steps
_DIFFERENCE = 1e-4  # relative step of the central difference in the degrees of freedom
_TINY = 1e-290  # probability below which its log is that of the leading term of the tail


def energy(z: Tensor, df: float | Tensor) -> Tensor:
    """Return (df + 1) / 2 log(1 + z² / df), the negative log density of z without its constant, in nats."""
    return 0.5 * (df + 1.0) * torch.log1p(z.square() / df)


def log_constant(df: float | Tensor) -> float | Tensor:
    """Return log(Gamma((df + 1) / 2) / (Gamma(df / 2) sqrt(pi df))); for a float in double precision."""
    lib: Any = math if isinstance(df, float) else torch
    constant: float | Tensor = lib.lgamma(0.5 * (df + 1.0)) - lib.lgamma(0.5 * df) - 0.5 * lib.log(df * math.pi)
    return constant


def cdf(z: Tensor, df: Tensor) -> Tensor:
    """Return the probability below z, with a small relative error in the lower tail; differentiable in z and df."""
    p: Tensor = _CDF.apply(z, df)
    return p


def log_cdf(z: Tensor, df: float | Tensor) -> Tensor:
    """Return the log of the probability below z, accurate in both tails and twice differentiable in z and df.

    It is computed in double precision on the CPU, and also under ``torch.func.vmap``.

    Parameters
    ----------
    z : Tensor
        Values, in any floating-point type and on any device.
    df : float or Tensor
        Degrees of freedom, which broadcast to z.
    """
    z64 = z.double().cpu()
    df64 = df.double().cpu() if isinstance(df, Tensor) else torch.full_like(z64, df)
    log_p: Tensor = _LogCDF.apply(*torch.broadcast_tensors(z64, df64))
    return log_p.to(z)


def cdf_slope(z: Tensor, df: Tensor) -> Tensor:
    """Return the derivative of the probability below z in the degrees of freedom, by a central difference.

    By symmetry it is computed in the lower tail, where the relative error of probabilities is small.
    """
    step = _DIFFERENCE * df
    low = torch.where(z < 0.0, z, -z)
    slope = (cdf(low, df + step) - cdf(low, df - step)) / (2.0 * step)
    return torch.where(z < 0.0, slope, -slope)


@torch.no_grad()
def icdf(p: Tensor, df: Tensor) -> Tensor:
    """Return the quantile of z without gradients; minus and plus infinity at 0 and 1."""
    from scipy import special  # imported on first use, since it is slow and rarely needed

    p, df = torch.broadcast_tensors(p, df)
    z = torch.as_tensor(special.stdtrit(df.numpy(), p.numpy()), device="cpu")
    far = (p > 0) & (p < _FAR)
    if far.any():
        z = z.masked_scatter(far, _far_icdf(p[far], df[far]))
    return torch.where(p <= 0, -math.inf, torch.where(p >= 1, math.inf, z))


def _far_icdf(p: Tensor, df: Tensor) -> Tensor:
    """Return quantiles of very small probabilities: solve log F(-t) = log p for log t by Newton's method.

    In these coordinates F is concave, and linear for a tail that is a power of t, so that a few steps suffice.
    """
    from scipy import special

    x = torch.as_tensor(special.betaincinv(0.5 * df.numpy(), 0.5, 2.0 * p.clamp_min(_LEAST).numpy()), device="cpu")
    log_t = 0.5 * (df.log() + torch.log1p(-x) - x.log())  # x = df / (df + t²)
    constant = torch.as_tensor(log_constant(df), device="cpu")
    target = p.log()
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
        from scipy import special  # imported on first use, since it is slow and rarely needed

        return torch.as_tensor(special.stdtr(df.detach().numpy(), z.detach().numpy()), device="cpu")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        z, df = ctx.saved_tensors
        grad_z = grad * (log_constant(df) - energy(z, df)).exp()
        grad_df = grad * cdf_slope(z, df) if ctx.needs_input_grad[1] else None
        return grad_z, grad_df


class _LogCDF(torch.autograd.Function):
    """The log of the distribution function by SciPy, for tensors of one shape, with its derivatives."""

    @staticmethod
    def forward(z: Tensor, df: Tensor) -> Tensor:
        from scipy import special  # imported on first use, since it is slow and rarely needed

        low, nu = -z.detach().abs(), df.detach()
        tail = torch.as_tensor(special.stdtr(nu.numpy(), low.numpy()), device="cpu")
        # the leading term g(t) (t + ν/t) / ν of the tail, for probabilities that underflow
        far = torch.as_tensor(log_constant(nu), device="cpu") - energy(low, nu) + torch.log((nu / -low - low) / nu)
        log_tail = torch.where(tail > _TINY, tail.clamp_min(_TINY).log(), far)
        return torch.where(z < 0.0, log_tail, torch.log1p(-tail))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        z, df = ctx.saved_tensors
        grad_z = grad * (log_constant(df) - energy(z, df) - log_cdf(z, df)).exp()
        if not ctx.needs_input_grad[1]:
            return grad_z, None
        step = _DIFFERENCE * df.detach()
        return grad_z, grad * (log_cdf(z, df + step) - log_cdf(z, df - step)) / (2.0 * step)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None], z: Tensor, df: Tensor) -> tuple[Tensor, int]:
        pairs = zip((z, df), in_dims, strict=True)
        parts = (part[None] if axis is None else part.movedim(axis, 0) for part, axis in pairs)
        log_p: Tensor = _LogCDF.apply(*torch.broadcast_tensors(*parts))
        return log_p, 0
