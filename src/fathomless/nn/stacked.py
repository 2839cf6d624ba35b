"""Networks side by side: F modules of one kind as one module, on rows that lie in F blocks of equal length.

Row r of a batch of F·B rows belongs to module r // B. What is made of linear maps and of functions of single elements
becomes batched products of stacked weights, (F, …) each; anything else is kept apart and applied block by block.

Linear maps of one network that have inputs of their own, such as the heads of all depths, are applied at once too.
"""

import copy
from collections.abc import Collection, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from fathomless.nn.architectures import Residual

__all__ = [
    "Apart",
    "StackedLinear",
    "alike_linear",
    "owners",
    "scale_gradients",
    "stack",
    "stacked_linear",
    "unstack",
]

_ELEMENTWISE = (
    nn.ReLU,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.Softplus,
    nn.Identity,
    nn.Dropout,
    nn.Flatten,
)


class StackedLinear(nn.Module):
    """F linear maps of one shape, each on its block of rows.

    Parameters
    ----------
    maps : sequence of F nn.Linear
        Of one shape; their weights are copied; frozen ones stay frozen.

    Attributes
    ----------
    weight : Tensor, shape (F, out, in)
    bias : Tensor, shape (F, out), or None
    """

    bias: nn.Parameter | None

    def __init__(self, maps: Sequence[nn.Linear]) -> None:
        super().__init__()
        weights, biases = [one.weight for one in maps], [one.bias for one in maps if one.bias is not None]
        self.weight = _stacked(weights)
        self.bias = _stacked(biases) if biases else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply each map to its block: (F·B, …, in) to (F·B, …, out)."""
        blocks, shape = x.reshape(len(self.weight), -1, x.shape[-1]), (*x.shape[:-1], self.weight.shape[1])
        if self.bias is None:
            return torch.bmm(blocks, self.weight.mT).reshape(shape)
        return torch.baddbmm(self.bias[:, None], blocks, self.weight.mT).reshape(shape)


def _stacked(parameters: Sequence[Tensor]) -> nn.Parameter:
    trained = any(p.requires_grad for p in parameters)
    return nn.Parameter(torch.stack([p.detach() for p in parameters]), requires_grad=trained)


class Apart(nn.Module):
    """F modules of any kind, applied block by block: batch statistics, attention and the like stay each one's own."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """Apply each module to its block of rows."""
        blocks = x.chunk(len(self.members)) if len(x) else [x] * len(self.members)
        return torch.cat([member(block) for member, block in zip(self.members, blocks, strict=True)])


def stack(modules: Sequence[nn.Module]) -> nn.Module:
    """Return F modules, built alike, as one for rows in F blocks.

    Examples
    --------
    >>> both = stack([nn.Linear(2, 3), nn.Linear(2, 3)])
    >>> both(torch.zeros(8, 2)).shape  # four rows for each
    torch.Size([8, 3])
    """
    first, kinds = modules[0], {type(module) for module in modules}
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in modules)
    if len(kinds) == 1 and not hooked:
        if type(first) is nn.Linear and len({module.weight.shape for module in modules}) == 1:
            return StackedLinear([module for module in modules if isinstance(module, nn.Linear)])
        if type(first) in _ELEMENTWISE:
            return copy.deepcopy(first)
        if type(first) is nn.Sequential:
            chains = [list(module) for module in modules if isinstance(module, nn.Sequential)]  # also what occurs twice
            if len({len(chain) for chain in chains}) == 1:
                return nn.Sequential(*map(stack, zip(*chains, strict=True)))
        if type(first) is Residual:
            return Residual(stack([module.branch for module in modules if isinstance(module, Residual)]))
    return Apart(modules)


def unstack(module: nn.Module, i: int, prefix: str = "") -> dict[str, Tensor]:
    """Return the state of the i-th of the modules that :func:`stack` joined, by the names that it had there."""
    if isinstance(module, Apart):
        return {prefix + name: value for name, value in module.members[i].state_dict().items()}
    if isinstance(module, StackedLinear):
        return {prefix + name: value[i] for name, value in module.state_dict().items()}
    state: dict[str, Tensor] = {}
    for name, child in module.named_children():
        state |= unstack(child, i, f"{prefix}{name}.")
    return state


def owners(module: nn.Module) -> dict[str, int]:
    """Return the number of the network that each parameter of an :class:`Apart` belongs to, by its full name.

    Every other parameter of networks side by side has a row for each network.
    """
    found: dict[str, int] = {}
    for prefix, part in module.named_modules():
        if isinstance(part, Apart):
            for i, member in enumerate(part.members):
                start = f"{prefix}.members.{i}" if prefix else f"members.{i}"
                found |= dict.fromkeys((name for name, _ in member.named_parameters(start)), i)
    return found


@torch.no_grad()
def scale_gradients(
    modules: Sequence[nn.Module],
    factor: Tensor,
    *,
    longest: float | None = None,
    units: Tensor | None = None,
    without: Collection[Tensor] = (),
) -> None:
    """Multiply the gradient of each of F networks side by side by a factor of its own, after an own limit of length.

    Parameters
    ----------
    modules : sequence of nn.Module
        Parts of the networks. The parameters of each have a row for each network or belong to one; see :func:`owners`.
    factor : Tensor, shape (F,)
        Factors.
    longest : float, optional
        Longest gradient of one network, over all its parameters in `modules`.
    units : Tensor, shape (F,), optional
        Multiply the length of each gradient before it is compared with `longest`.
    without : collection of Tensor
        Parameters that are left as they are and have no part in the length.
    """
    skipped, mine, shared = {id(p) for p in without}, [], []
    for module in modules:
        own = owners(module)
        for name, p in sorted(module.named_parameters()):
            if p.grad is None or id(p) in skipped:
                continue
            if name in own:
                mine.append((own[name], p.grad))
            else:
                shared.append(p.grad)
    if longest is not None:
        square = torch.zeros(len(factor), dtype=torch.float64, device=factor.device)
        for grad in shared:
            square += grad.double().flatten(1).square().sum(1) if grad.ndim > 1 else grad.double().square()
        for i, grad in mine:
            square[i] += grad.double().square().sum()
        length = square.sqrt() if units is None else square.sqrt() * units
        factor = factor * (longest / (length + 1e-6)).clamp(max=1.0)
    for grad in shared:
        grad.mul_(factor.to(grad.dtype).view(-1, *[1] * (grad.ndim - 1)))
    for i, grad in mine:
        grad.mul_(factor[i].to(grad.dtype))


def alike_linear(heads: Sequence[nn.Module]) -> list[nn.Linear]:
    """Return the heads if they are linear maps of one shape, which can be applied at once; else nothing."""
    linear = [head for head in heads if type(head) is nn.Linear and head.bias is not None]
    alike = len(linear) == len(heads) > 1 and len({head.weight.shape for head in linear}) == 1
    return linear if alike else []


def stacked_linear(heads: Sequence[nn.Linear], hidden: Sequence[Tensor]) -> Tensor:
    """Apply m linear maps of one shape, each to its own input (B, H), at once; (m, B, K)."""
    weights, biases = (head.weight for head in heads), (head.bias for head in heads)
    f, _, _ = _StackedLinear.apply(len(heads), *hidden, *weights, *biases)
    return cast(Tensor, f)


class _StackedLinear(torch.autograd.Function):
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
