r"""Networks of one kind with all their weights in one matrix: what samplers move, and what is kept of them.

Networks that are chains of linear maps and functions of single elements are evaluated by batched products over units ×
rows, :math:`h_k = \varphi(W_k h_{k-1} + b_k)`, and their gradients by the same products backwards. Others go the usual
way of automatic differentiation.
"""

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fathomless.nn.stacked import Apart, stack
from fathomless.system.errors import DataError

__all__ = ["FlatNetworks", "flattened", "refuse", "unflattened"]

aten = torch.ops.aten


class FlatNetworks:
    """F networks of one kind, side by side, that see the rows of one matrix as their weights.

    Parameters
    ----------
    network : nn.Module
        (N, D) -> (N, K). It is copied; its own weights do not matter.
    count : int
        F.

    Attributes
    ----------
    weights : Tensor, shape (F, P)
        All parameters of each network, in the order of ``network.parameters()``. Change them in place.

    Raises
    ------
    DataError
        If a network has buffers or drops units out: then its outputs are no function of its weights and a row.

    Examples
    --------
    >>> pair = FlatNetworks(nn.Linear(3, 2), 2)
    >>> _ = pair.weights.zero_()
    >>> pair(torch.ones(5, 3)).shape
    torch.Size([2, 5, 2])
    """

    def __init__(self, network: nn.Module, count: int) -> None:
        refuse(network)
        first = next(network.parameters())
        size = sum(parameter.numel() for parameter in network.parameters())
        self.weights = torch.zeros(count, size, dtype=first.dtype, device=first.device)
        steps = _chain(network, self.weights)
        self._way: _Chain | _Module = _Module(network, self.weights) if steps is None else _Chain(steps)

    def __len__(self) -> int:
        """Return F."""
        return len(self.weights)

    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate all networks on rows x (N, D): outputs (F, N, K), without gradients."""
        with torch.no_grad():
            return self._way.outputs(x)

    def gradient(self, x: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the gradient of a sum in the weights, (F, P).

        Parameters
        ----------
        x : Tensor, shape (N, D)
            Rows.
        score : callable
            Outputs (F, N, K) -> the derivative of the sum in them.
        """
        return self._way.gradient(x, score)


def flattened(network: nn.Module) -> Tensor:
    """Return the parameters of one network as a row, (P,)."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])


def unflattened(network: nn.Module, weights: Tensor) -> dict[str, Tensor]:
    """Return weights (…, P) as parameters of a network by name, (…, *shape) each: views of the weights.

    Examples
    --------
    >>> {name: part.shape for name, part in unflattened(nn.Linear(3, 2), torch.zeros(5, 8, device="cpu")).items()}
    {'weight': torch.Size([5, 2, 3]), 'bias': torch.Size([5, 2])}
    """
    named = dict(network.named_parameters())
    parts = weights.split([p.numel() for p in named.values()], -1)
    return {name: part.view(part.shape[:-1] + p.shape) for (name, p), part in zip(named.items(), parts, strict=True)}


def refuse(network: nn.Module) -> None:
    """Refuse a network whose outputs are no function of its parameters and a row.

    Raises
    ------
    DataError
        If it has buffers, drops units out, or shares weights.
    """
    named = [name for name, _ in network.named_buffers()]
    dropped = [name for name, part in network.named_modules() if isinstance(part, nn.Dropout) and part.p > 0.0]
    if len(list(network.named_parameters())) < len(list(network.named_parameters(remove_duplicate=False))):
        raise DataError("the network shares weights between its parts; weights can be sampled where each has its own")
    if named or dropped:
        raise DataError(
            f"the network has {', '.join(named or dropped)}; weights can be sampled of networks without buffers (batch "
            "statistics, say) and without dropout"
        )


class _Elementwise(NamedTuple):
    """A function of single elements, and its derivative times a gradient, from what went in and came out."""

    value: Callable[[Tensor], Tensor]
    back: Callable[[Tensor, Tensor, Tensor], Tensor]


class _Linear(NamedTuple):
    """W (F, out, in) and b (F, out, 1) as views of the weights, and where they lie in a row."""

    weight: Tensor
    bias: Tensor | None
    begin: int
    end: int


_Step = _Linear | _Elementwise


def _tanh(z: Tensor) -> Tensor:
    return torch.sigmoid(2.0 * z).mul_(2.0).sub_(1.0)  # several times as fast as torch.tanh on a processor


def _elementwise(part: nn.Module) -> _Elementwise | None:
    match part:
        case nn.Tanh():
            return _Elementwise(_tanh, lambda g, _, h: aten.tanh_backward(g, h))
        case nn.ReLU():
            return _Elementwise(torch.relu, lambda g, _, h: aten.threshold_backward(g, h, 0.0))
        case nn.SiLU():
            return _Elementwise(nn.functional.silu, lambda g, z, _: aten.silu_backward(g, z))
        case nn.GELU(approximate="none"):
            return _Elementwise(nn.functional.gelu, lambda g, z, _: aten.gelu_backward(g, z))
        case nn.LeakyReLU(negative_slope=slope):
            return _Elementwise(part, lambda g, z, _: aten.leaky_relu_backward(g, z, slope, False))
    return None


def _chain(network: nn.Module, weights: Tensor) -> list[_Step] | None:
    """Return the steps of a network that is a chain of linear maps and known functions; else None."""
    parts, steps, begin = [network], list[_Step](), 0
    while parts:
        part = parts.pop(0)
        if type(part) is nn.Sequential:
            parts = [*part, *parts]
        elif type(part) is nn.Linear:
            middle = begin + part.weight.numel()
            end = middle + (0 if part.bias is None else len(part.bias))
            own = weights[:, begin:middle].view(len(weights), *part.weight.shape)
            steps.append(_Linear(own, weights[:, middle:end].unsqueeze(-1) if end > middle else None, begin, end))
            begin = end
        elif (step := _elementwise(part)) is not None:
            steps.append(step)
        elif type(part) is not nn.Identity:
            return None
    return steps


class _Chain:
    """Products over units × rows, forwards and backwards."""

    def __init__(self, steps: Sequence[_Step]) -> None:
        self.steps = steps

    def outputs(self, x: Tensor) -> Tensor:
        """Return outputs (F, N, K)."""
        h = x.mT
        for step in self.steps:
            h = step.value(h) if isinstance(step, _Elementwise) else _mapped(step, h)
        return h.mT

    @torch.no_grad()
    def gradient(self, x: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        """Return gradients (F, P)."""
        seen = [x.mT]
        for step in self.steps:
            seen.append(step.value(seen[-1]) if isinstance(step, _Elementwise) else _mapped(step, seen[-1]))
        g = score(seen[-1].mT).mT
        first = next(place for place, step in enumerate(self.steps) if isinstance(step, _Linear))
        pieces = []
        for place in range(len(self.steps) - 1, -1, -1):
            step, before, after = self.steps[place], seen[place], seen[place + 1]
            if isinstance(step, _Elementwise):
                g = step.back(g, before, after)
                continue
            if step.bias is not None:
                pieces.append(g.sum(-1))
            shared = before.ndim == 2  # all networks see the rows themselves
            # in this order the product is several times as fast where columns are few
            own = (before @ g.reshape(-1, g.shape[-1]).mT).mT if shared else torch.bmm(g, before.mT)
            pieces.append(own.reshape(len(g), -1))
            if place > first:
                g = torch.bmm(step.weight.mT, g)
        return torch.cat(pieces[::-1], 1)


def _mapped(step: _Linear, h: Tensor) -> Tensor:
    """Apply linear maps to (F, in, N), or to what all share, (in, N)."""
    h = h.expand(len(step.weight), *h.shape[-2:])
    return torch.bmm(step.weight, h) if step.bias is None else torch.baddbmm(step.bias, step.weight, h)


class _Module:
    """Any networks, stacked as far as they can be, by automatic differentiation."""

    def __init__(self, network: nn.Module, weights: Tensor) -> None:
        count = len(weights)
        module = stack([network] * count)
        parts = list(module.modules())
        self.apart = any(isinstance(part, Apart) for part in parts)
        self.rows = self.apart or any(isinstance(part, nn.Flatten) for part in parts)  # need blocks of rows
        self.module = (Apart([copy.deepcopy(network) for _ in range(count)]) if self.apart else module).eval()
        for name, own in unflattened(network, weights).items():
            if not self.apart:
                _bind(self.module, name, own)
            for number in range(count if self.apart else 0):
                _bind(self.module, f"members.{number}.{name}", own[number])
        self.parameters, self.count = list(self.module.parameters()), count

    def outputs(self, x: Tensor) -> Tensor:
        """Return outputs (F, N, K)."""
        rows = x.expand(self.count, *x.shape)
        f: Tensor = self.module(rows.reshape(-1, *x.shape[1:]) if self.rows else rows)
        return f.reshape(self.count, x.shape[0], -1)

    def gradient(self, x: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        """Return gradients (F, P)."""
        with torch.enable_grad():
            f = self.outputs(x)
        found = torch.autograd.grad(f, self.parameters, score(f.detach()))
        if not self.apart:
            return torch.cat([one.reshape(self.count, -1) for one in found], 1)
        each = len(found) // self.count
        rows = [torch.cat([one.reshape(-1) for one in found[k : k + each]]) for k in range(0, len(found), each)]
        return torch.stack(rows)


def _bind(module: nn.Module, name: str, view: Tensor) -> None:
    """Make a parameter share the memory of a view."""
    path, _, last = name.rpartition(".")
    setattr(module.get_submodule(path), last, nn.Parameter(view))
