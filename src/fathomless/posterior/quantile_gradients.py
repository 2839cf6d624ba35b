r"""Derivatives of the quantiles of a mixture, the solutions y of :math:`\sum_s w_s F_s(y) = p`.

.. math:: dy = \frac{dp - \sum_s F_s\, dw_s - \sum_s w_s\, \partial_\nu F_s\, d\nu_s}{f}
          + \sum_s r_s (d\mu_s + z_s\, d\sigma_s), \qquad r_s = w_s f_s / f

The shares r are ratios of densities. They are computed from logarithms and are correct even if all densities underflow.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["attach_derivatives", "attach_first_derivatives"]

_MOST = 700.0  # log of the largest quotient by a density, so that sums of a few are finite


def attach_derivatives(y: Tensor, p: Tensor, log_weight: Tensor, family: type, parts: Sequence[Tensor]) -> Tensor:
    """Return quantiles as differentiable functions of probabilities and parameters.

    Parameters
    ----------
    y : Tensor, shape (..., *batch)
        Quantiles.
    p : Tensor, shape (..., 1, *batch)
        Their probabilities.
    log_weight : Tensor, shape (S,)
        Log weights, finite and normalised.
    family : type
        A :class:`~fathomless.posterior.mixtures.Component`.
    parts : sequence of Tensor, each (S, *batch)
        Parameters of the components: centre, scale, and shape parameters.
    """
    quantiles: Tensor = _Root.apply(y, family, p, log_weight, *parts)
    return quantiles


def attach_first_derivatives(y: Tensor, p: Tensor, below: Tensor, log_density: Tensor) -> Tensor:
    """Return quantiles as functions with first derivatives, by implicit differentiation of F(y) = p.

    Parameters
    ----------
    y, p : Tensors
        Quantiles and their probabilities.
    below, log_density : Tensors
        Probability below y as a differentiable function of the parameters of the law, and the log density at y.
    """
    if not (below.requires_grad or p.requires_grad):
        return y
    excess = p - below
    return y + (excess - excess.detach()) * (-log_density.detach()).clamp_max(_MOST).exp()  # the value is y


class _Root(torch.autograd.Function):
    """Identity on the known solution of an equation, with the derivatives of the solution."""

    @staticmethod
    def forward(y: Tensor, family: type, p: Tensor, log_weight: Tensor, *parts: Tensor) -> Tensor:
        return y.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.family = inputs[1]
        ctx.save_for_backward(output, *inputs[2:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        y, p, log_weight, *parts = ctx.saved_tensors
        component = ctx.family(*parts)
        wanted = ctx.needs_input_grad[2:]
        axis = -parts[0].ndim
        grad, y = grad.unsqueeze(axis), y.unsqueeze(axis)  # (..., 1, *batch)
        log_weight = log_weight.log_softmax(0).view(-1, *[1] * (parts[0].ndim - 1))  # (S, 1, ...)
        z = component.standardise(y)  # (..., S, *batch)
        log_terms = log_weight + component.log_prob(y)  # (..., S, *batch)
        log_density = torch.logsumexp(log_terms, axis, keepdim=True)
        share = (log_terms - log_density).exp()

        def over_density(values: Tensor) -> Tensor:
            return grad * values * (-log_density).clamp_max(_MOST).exp()

        gradients: list[Tensor | None] = [None] * len(wanted)
        if wanted[0]:
            gradients[0] = over_density(torch.ones_like(p))
        if wanted[1]:
            sign = torch.where(p <= 0.5, 1.0, -1.0)
            tail = torch.where(p <= 0.5, p, 1.0 - p)
            gap = sign * (tail - component.standard_cdf(sign * z))  # p - F_s, without cancellation in the upper tail
            gradients[1] = over_density(log_weight.exp() * gap).sum_to_size(log_weight.shape).flatten()
        if wanted[2]:
            gradients[2] = (grad * share).sum_to_size(parts[0].shape)
        if wanted[3]:
            gradients[3] = (grad * share * z).sum_to_size(parts[1].shape)
        if any(wanted[4:]):
            per_probability = over_density(-log_weight.exp())
            gradients[4:] = _shape_gradients(ctx.family, z, parts, wanted[4:], per_probability)
        return None, None, *gradients


def _shape_gradients(
    family: Any, z: Tensor, parts: Sequence[Tensor], wanted: Sequence[bool], grad: Tensor
) -> list[Tensor | None]:
    """Return the derivatives of the probability below z in the shape parameters, times `grad`."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        shapes = [part.view_as(part) for part in parts[2:]]  # views, on which z does not depend: z is held fixed
        below = family(*parts[:2], *shapes).standard_cdf(z)
        inputs = [shape for shape, needed in zip(shapes, wanted, strict=True) if needed]
        gradients = iter(torch.autograd.grad(below, inputs, grad, create_graph=create_graph))
    return [next(gradients) if needed else None for needed in wanted]
