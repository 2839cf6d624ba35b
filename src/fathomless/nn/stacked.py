"""Stacked networks: F modules with equal layers as one module, on rows in F blocks of equal length.

Row r of a batch of F·B rows belongs to module r // B. Linear maps and elementwise functions become batched products
with stacked weights, (F, …) each. Other modules are kept separate and applied block by block.

Linear maps with separate inputs, such as the heads of all depths, can be applied in one function too.
:func:`apply_each` evaluates modules in the same way without a copy of their weights in a module.
"""

import copy
from collections.abc import Collection, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fathomless.nn.architectures import Residual

__all__ = [
    "Apart",
    "StackedLinear",
    "apply_each",
    "apply_stackable",
    "find_owners",
    "is_deterministic",
    "scale_gradients",
    "select_stackable",
    "stack",
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
        Linear maps of one shape, whose weights are copied. Frozen weights remain frozen.

    Attributes
    ----------
    weight : Tensor, shape (F, out, in)
    bias : Tensor, shape (F, out), or None
    """

    bias: nn.Parameter | None

    def __init__(self, maps: Sequence[nn.Linear]) -> None:
        super().__init__()
        biases = [linear.bias for linear in maps if linear.bias is not None]
        self.weight = _stack_parameters([linear.weight for linear in maps])
        self.bias = _stack_parameters(biases) if biases else None

    def forward(self, x: Tensor) -> Tensor:
        """Apply each map to its block: (F·B, …, in) to (F·B, …, out)."""
        blocks = x.reshape(len(self.weight), -1, x.shape[-1])
        shape = (*x.shape[:-1], self.weight.shape[1])
        if self.bias is None:
            return torch.bmm(blocks, self.weight.mT).reshape(shape)
        return torch.baddbmm(self.bias[:, None], blocks, self.weight.mT).reshape(shape)


def _stack_parameters(parameters: Sequence[Tensor]) -> nn.Parameter:
    trained = any(p.requires_grad for p in parameters)
    return nn.Parameter(torch.stack([p.detach() for p in parameters]), requires_grad=trained)


class Apart(nn.Module):
    """F modules of any type, applied block by block, so that batch statistics or attention are within one module."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """Apply each module to its block of rows."""
        blocks = x.chunk(len(self.members)) if len(x) else [x] * len(self.members)
        return torch.cat([member(block) for member, block in zip(self.members, blocks, strict=True)])


def stack(modules: Sequence[nn.Module]) -> nn.Module:
    """Return F modules with equal layers as one module for rows in F blocks.

    Examples
    --------
    >>> both = stack([nn.Linear(2, 3), nn.Linear(2, 3)])
    >>> both(torch.zeros(8, 2)).shape  # four rows for each
    torch.Size([8, 3])
    """
    first = modules[0]
    if _are_alike(modules):
        if type(first) is nn.Linear and len({module.weight.shape for module in modules}) == 1:
            return StackedLinear([module for module in modules if isinstance(module, nn.Linear)])
        if type(first) in _ELEMENTWISE:
            return copy.deepcopy(first)
        if type(first) is nn.Sequential:
            chains = [
                list(module) for module in modules if isinstance(module, nn.Sequential)
            ]  # with repeated modules, unlike children()
            if len({len(chain) for chain in chains}) == 1:
                return nn.Sequential(*map(stack, zip(*chains, strict=True)))
        if type(first) is Residual:
            return Residual(stack([module.branch for module in modules if isinstance(module, Residual)]))
    return Apart(modules)


def _are_alike(modules: Sequence[nn.Module]) -> bool:
    """Return True if modules have one type and no hooks."""
    kind = type(modules[0])
    return all(type(m) is kind and not m._forward_hooks and not m._forward_pre_hooks for m in modules)


def apply_each(modules: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Apply F modules with equal layers, each to its own rows: (F, B, …) to (F, B, …).

    The first linear maps are a single product if all modules have the same rows, as a view ``rows.expand(F, …)``.
    Modules that cannot be stacked are applied one by one. Random parts, such as dropout, are not for this function.

    Examples
    --------
    >>> maps = [nn.Linear(2, 3), nn.Linear(2, 3)]
    >>> apply_each(maps, torch.zeros(4, 2, device="cpu").expand(2, 4, 2)).shape
    torch.Size([2, 4, 3])
    """
    first = modules[0]
    if _are_alike(modules):
        if type(first) is nn.Linear:
            maps = cast(Sequence[nn.Linear], modules)
            weights, biases = [linear.weight for linear in maps], [linear.bias for linear in maps]
            if len({(w.shape, b is None) for w, b in zip(weights, biases, strict=True)}) == 1:
                return _apply_maps(weights, biases, x)
        elif type(first) is nn.Sequential:
            chains = [list(module) for module in cast(Sequence[nn.Sequential], modules)]
            if len({len(chain) for chain in chains}) == 1:
                for parts in zip(*chains, strict=True):
                    x = apply_each(parts, x)
                return x
        elif type(first) is Residual:
            return x + apply_each([cast(Residual, module).branch for module in modules], x)
        elif type(first) in _ELEMENTWISE and type(first) is not nn.Flatten:
            return cast(Tensor, first(x.clone() if x.stride(0) == 0 else x))  # it may change its input in place
    return torch.stack([module(rows) for module, rows in zip(modules, x.unbind(), strict=True)])


def _apply_maps(weights: Sequence[Tensor], biases: Sequence[Tensor | None], x: Tensor) -> Tensor:
    """Apply F linear maps of one shape to x, (F, B, …, in)."""
    weight = torch.stack([*weights])
    bias = None if biases[0] is None else torch.stack([cast(Tensor, bias) for bias in biases])
    count, outputs = weight.shape[:2]
    if x.stride(0) == 0:  # one set of rows for all maps
        merged: Tensor = F.linear(x[0], weight.flatten(0, 1), None if bias is None else bias.flatten())
        return merged.view(*merged.shape[:-1], count, outputs).movedim(-2, 0)
    rows = x.flatten(1, -2)
    product = torch.bmm(rows, weight.mT) if bias is None else torch.baddbmm(bias[:, None], rows, weight.mT)
    return product.view(*x.shape[:-1], outputs)


def is_deterministic(module: nn.Module) -> bool:
    """Return True if all parts are of known types that draw no random numbers and have no state but parameters.

    Examples
    --------
    >>> is_deterministic(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))
    True
    >>> is_deterministic(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.1)))
    False
    """
    known = {nn.Linear, nn.LayerNorm, nn.Sequential, nn.ModuleList, Residual, StackedLinear, Apart, *_ELEMENTWISE}
    known.remove(nn.Dropout)
    parts = list(module.modules())
    hooked = any(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks for part in parts)
    return not hooked and all(type(part) in known for part in parts)


def unstack(module: nn.Module, i: int, prefix: str = "") -> dict[str, Tensor]:
    """Return the state of the i-th module of a result of :func:`stack`, by its original names."""
    if isinstance(module, Apart):
        return {prefix + name: value for name, value in module.members[i].state_dict().items()}
    if isinstance(module, StackedLinear):
        return {prefix + name: value[i] for name, value in module.state_dict().items()}
    state: dict[str, Tensor] = {}
    for name, child in module.named_children():
        state |= unstack(child, i, f"{prefix}{name}.")
    return state


def find_owners(module: nn.Module) -> dict[str, int]:
    """Return the index of the network of each parameter inside an :class:`Apart`, by its full name.

    Every other parameter of stacked networks has a row for each network.
    """
    networks: dict[str, int] = {}
    for prefix, part in module.named_modules():
        if isinstance(part, Apart):
            for i, member in enumerate(part.members):
                start = f"{prefix}.members.{i}" if prefix else f"members.{i}"
                networks |= dict.fromkeys((name for name, _ in member.named_parameters(start)), i)
    return networks


@torch.no_grad()
def scale_gradients(
    modules: Sequence[nn.Module],
    factor: Tensor,
    *,
    longest: float | None = None,
    units: Tensor | None = None,
    without: Collection[Tensor] = (),
) -> None:
    """Clip the gradient of each of F stacked networks, then multiply it by the factor of the network.

    Parameters
    ----------
    modules : sequence of nn.Module
        Parts of the networks. Parameters have a row for each network or belong to one network; see
        :func:`find_owners`.
    factor : Tensor, shape (F,)
        Factors.
    longest : float, optional
        Largest norm of the gradient of one network, over all its parameters in `modules`.
    units : Tensor, shape (F,), optional
        Factors of the norms before they are compared with `longest`.
    without : collection of Tensor
        Parameters whose gradients are unchanged and not part of the norm.
    """
    skipped = {id(p) for p in without}
    single: list[tuple[int, Tensor]] = []  # gradients of one network, with its index
    stacked: list[Tensor] = []  # gradients with a row for each network
    for module in modules:
        owner = find_owners(module)
        for name, p in sorted(module.named_parameters()):
            if p.grad is None or id(p) in skipped:
                continue
            if name in owner:
                single.append((owner[name], p.grad))
            else:
                stacked.append(p.grad)
    if longest is not None:
        square = torch.zeros(len(factor), dtype=torch.float64, device=factor.device)
        for grad in stacked:
            square += grad.double().flatten(1).square().sum(1) if grad.ndim > 1 else grad.double().square()
        for i, grad in single:
            square[i] += grad.double().square().sum()
        length = square.sqrt() if units is None else square.sqrt() * units
        factor = factor * (longest / (length + 1e-6)).clamp(max=1.0)
    for grad in stacked:
        grad.mul_(factor.to(grad.dtype).view(-1, *[1] * (grad.ndim - 1)))
    for i, grad in single:
        grad.mul_(factor[i].to(grad.dtype))


def select_stackable(heads: Sequence[nn.Module]) -> list[nn.Linear | StackedLinear]:
    """Return the heads if :func:`apply_stackable` can be applied to them, and an empty list otherwise.

    They must be several linear maps of one shape with biases, or stacks of linear maps with biases and one number of
    outputs.
    """
    linear = [head for head in heads if type(head) in (nn.Linear, StackedLinear) and head.bias is not None]
    found = cast(list[nn.Linear | StackedLinear], linear)
    shapes = {head.weight.shape if head.weight.ndim == 2 else head.weight.shape[:2] for head in found}
    return found if len(found) == len(heads) > 1 and len(shapes) == 1 else []


def apply_stackable(heads: Sequence[nn.Linear | StackedLinear], hidden: Sequence[Tensor]) -> Tensor:
    """Apply m heads, each to its own input (B, H); (m, B, K)."""
    return cast(Tensor, _Heads.apply(len(heads), *hidden, *(head.weight for head in heads), *(h.bias for h in heads)))


class _Heads(torch.autograd.Function):
    """Apply m linear maps of one network in one batched product, or m stacks of linear maps in m of them.

    The gradient of a weight is computed in its own layout. Autograd computes its transpose, by a product that is
    several times slower for few outputs. One function for all heads has less overhead than one for each.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(m: int, *tensors: Tensor) -> Tensor:
        hidden, weights, biases = tensors[:m], tensors[m : 2 * m], tensors[2 * m :]
        bias_of = biases if weights[0].ndim == 3 else (torch.stack(biases),)
        products = [
            torch.baddbmm(bias[:, None], rows, weight.mT)
            for bias, (rows, weight) in zip(bias_of, _list_products(hidden, weights), strict=True)
        ]
        if len(products) == 1:
            return products[0]
        return torch.stack(products).view(m, len(hidden[0]), biases[0].shape[-1])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        m, *tensors = inputs
        ctx.save_for_backward(*tensors[: 2 * m])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        m = len(grad)
        hidden, weights = ctx.saved_tensors[:m], ctx.saved_tensors[m:]
        products = _list_products(hidden, weights)
        grads = [
            part.reshape(*rows.shape[:2], grad.shape[-1])
            for part, (rows, _) in zip(grad.chunk(len(products)), products, strict=True)
        ]
        of_weight = [torch.bmm(part.mT, rows) for part, (rows, _) in zip(grads, products, strict=True)]
        of_bias = [part.sum(1) for part in grads]
        if weights[0].ndim == 2:
            return None, *torch.bmm(grads[0], products[0][1]), *of_weight[0], *of_bias[0]
        needed = ctx.needs_input_grad[1 : m + 1]  # the input of depth 0 is data
        of_hidden = [
            torch.bmm(part, weight).view(h.shape) if need else None
            for part, weight, h, need in zip(grads, weights, hidden, needed, strict=True)
        ]
        return None, *of_hidden, *of_weight, *of_bias


def _list_products(hidden: Sequence[Tensor], weights: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return rows (F, B, H) and weights (F, K, H) of each batched product: of each stack, or of all heads at once."""
    if weights[0].ndim == 2:
        return [(torch.stack([*hidden]), torch.stack([*weights]))]
    return [
        (h.reshape(len(weight), len(h) // len(weight), h.shape[-1]), weight)
        for h, weight in zip(hidden, weights, strict=True)
    ]
