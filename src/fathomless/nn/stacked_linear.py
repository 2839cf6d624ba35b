"""Linear maps of one shape applied at once, each to its own input."""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

__all__ = ["alike_linear", "side_by_side"]


def alike_linear(heads: Sequence[nn.Module]) -> list[nn.Linear]:
    """Return the heads if they are linear maps of one shape, which can be applied at once; else nothing."""
    linear = [head for head in heads if type(head) is nn.Linear and head.bias is not None]
    alike = len(linear) == len(heads) > 1 and len({head.weight.shape for head in linear}) == 1
    return linear if alike else []


def side_by_side(heads: Sequence[nn.Linear], hidden: Sequence[Tensor]) -> Tensor:
    """Apply m linear maps of one shape, each to its own input (B, H), at once; (m, B, K)."""
    weights, biases = (head.weight for head in heads), (head.bias for head in heads)
    f, _, _ = _SideBySide.apply(len(heads), *hidden, *weights, *biases)
    return cast(Tensor, f)


class _SideBySide(torch.autograd.Function):
    """Apply m linear heads to their hidden states by batched products.

    Autograd's own derivative of a batched product multiplies in an order that is slow for few outputs. What was stacked
    is returned too, so that it can be kept for the way back. The inputs are kept beside it: where the way back is to be
    differentiated itself, they are stacked anew.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(m: int, *tensors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden, weight, bias = (torch.stack(tensors[i * m : (i + 1) * m]) for i in range(3))
        return torch.baddbmm(bias[:, None], hidden, weight.mT), hidden, weight  # (m, B, K)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        _, hidden, weight = output
        ctx.mark_non_differentiable(hidden, weight)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, *inputs[1 : 2 * len(hidden) + 1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        hidden, weight, *given = ctx.saved_tensors
        if torch.is_grad_enabled():
            m = len(given) // 2
            hidden, weight = torch.stack(given[:m]), torch.stack(given[m:])
        return None, *torch.bmm(grad, weight).unbind(), *torch.bmm(grad.mT, hidden).unbind(), *grad.sum(1).unbind()
