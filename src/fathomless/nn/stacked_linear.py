"""Linear maps of one shape applied at once, each to its own input."""

from collections.abc import Sequence

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
    f: Tensor = _SideBySide.apply(len(heads), *hidden, *(head.weight for head in heads), *(head.bias for head in heads))
    return f


class _SideBySide(torch.autograd.Function):
    """Apply m linear heads to their hidden states by batched products.

    Autograd's own derivative of a batched product multiplies in an order that is slow for few outputs.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, m: int, *tensors: Tensor) -> Tensor:
        hidden, weight, bias = (torch.stack(tensors[i * m : (i + 1) * m]) for i in range(3))
        ctx.save_for_backward(hidden, weight)
        return torch.baddbmm(bias[:, None], hidden, weight.mT)  # (m, B, K)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        return None, *torch.bmm(grad, weight).unbind(), *torch.bmm(grad.mT, hidden).unbind(), *grad.sum(1).unbind()
