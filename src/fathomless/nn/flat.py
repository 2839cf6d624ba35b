r"""Networks of one architecture with all weights in one matrix, for samplers.

Sequences of linear maps and elementwise functions are evaluated by batched products over units × rows,
:math:`h_k = \varphi(W_k h_{k-1} + b_k)`, and their gradients by backpropagation with such products. Other networks use
automatic differentiation.
"""

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fathomless.nn.stacked import Apart, stack
from fathomless.system.errors import DataError

__all__ = ["FlatNetworks", "check_flattenable", "flatten", "unflatten"]

aten = torch.ops.aten


class FlatNetworks:
    """F networks of one architecture, whose weights are the rows of one matrix.

    Parameters
    ----------
    network : nn.Module
        Architecture, (N, D) -> (N, K). It is copied, and its weights are not used.
    count : int
        Number of networks F.

    Attributes
    ----------
    weights : Tensor, shape (F, P)
        All parameters of each network, in the order of ``network.parameters()``, to be changed in place.

    Raises
    ------
    DataError
        If the network has buffers or dropout: its outputs are then not a function of its weights and a row.

    Examples
    --------
    >>> pair = FlatNetworks(nn.Linear(3, 2), 2)
    >>> _ = pair.weights.zero_()
    >>> pair(torch.ones(5, 3)).shape
    torch.Size([2, 5, 2])
    """

    def __init__(self, network: nn.Module, count: int) -> None:
        check_flattenable(network)
        first = next(network.parameters())
        size = sum(parameter.numel() for parameter in network.parameters())
        self.weights = torch.zeros(count, size, dtype=first.dtype, device=first.device)
        steps = _list_steps(network, self.weights)
        self._evaluator: _Chain | _Module = _Module(network, self.weights) if steps is None else _Chain(steps)

    def __len__(self) -> int:
        """Return the number of networks F."""
        return len(self.weights)

    def __call__(self, x: Tensor) -> Tensor:
        """Evaluate all networks on rows x (N, D): outputs (F, N, K), with gradients in x if x requires them."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and x.requires_grad):
            return self._evaluator.outputs(x)

    def gradient(self, x: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the gradient of a sum over outputs in the weights, (F, P).

        Parameters
        ----------
        x : Tensor, shape (N, D)
            Rows.
        score : callable
            Function of the outputs (F, N, K) that returns the derivative of the sum in them.
        """
        return self._evaluator.gradient(x, score)


def flatten(network: nn.Module) -> Tensor:
    """Return the parameters of one network as a vector, (P,)."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in network.parameters()])


def unflatten(network: nn.Module, weights: Tensor) -> dict[str, Tensor]:
    """Return weights (…, P) as parameters of a network by name, views of shape (…, *shape).

    Examples
    --------
    >>> {name: part.shape for name, part in unflatten(nn.Linear(3, 2), torch.zeros(5, 8, device="cpu")).items()}
    {'weight': torch.Size([5, 2, 3]), 'bias': torch.Size([5, 2])}
    """
    named = dict(network.named_parameters())
    parts = weights.split([p.numel() for p in named.values()], -1)
    return {name: part.view(part.shape[:-1] + p.shape) for (name, p), part in zip(named.items(), parts, strict=True)}


def check_flattenable(network: nn.Module) -> None:
    """Check that the outputs of a network are a function of its parameters and a row.

    Raises
    ------
    DataError
        If it has buffers, dropout, or shared weights.
    """
    named = [name for name, _ in network.named_buffers()]
    dropped = [name for name, part in network.named_modules() if isinstance(part, nn.Dropout) and part.p > 0.0]
    if len(list(network.named_parameters())) < len(list(network.named_parameters(remove_duplicate=False))):
        raise DataError(
            "the network shares weights between its parts; weights can only be sampled if they are not shared"
        )
    if named or dropped:
        raise DataError(
            f"the network has {', '.join(named or dropped)}; weights can be sampled of networks without buffers, such "
            "as batch statistics, and without dropout"
        )


class _Elementwise(NamedTuple):
    """An elementwise function, and its derivative times a gradient as a function of (gradient, input, output)."""

    value: Callable[[Tensor], Tensor]
    back: Callable[[Tensor, Tensor, Tensor], Tensor]


class _Linear(NamedTuple):
    """W (F, out, in) and b (F, out, 1) as views of the weights, and their range of columns there."""

    weight: Tensor
    bias: Tensor | None
    begin: int
    end: int


_Step = _Linear | _Elementwise


def _tanh(z: Tensor) -> Tensor:
    half = torch.sigmoid(2.0 * z)  # several times as fast as torch.tanh on a CPU
    if half.requires_grad or type(half) is not Tensor:  # gradients need the sigmoid, also those of traced modules
        return 2.0 * half - 1.0
    return half.mul_(2.0).sub_(1.0)


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


def _list_steps(network: nn.Module, weights: Tensor) -> list[_Step] | None:
    """Return the steps of a sequence of linear maps and known functions; None for other networks."""
    parts = [network]
    steps = list[_Step]()
    begin = 0  # first column of the next weights
    while parts:
        part = parts.pop(0)
        if type(part) is nn.Sequential:
            parts = [*part, *parts]
        elif type(part) is nn.Linear:
            middle = begin + part.weight.numel()
            end = middle + (0 if part.bias is None else len(part.bias))
            weight = weights[:, begin:middle].view(len(weights), *part.weight.shape)
            bias = weights[:, middle:end].unsqueeze(-1) if end > middle else None
            steps.append(_Linear(weight, bias, begin, end))
            begin = end
        elif (step := _elementwise(part)) is not None:
            steps.append(step)
        elif type(part) is not nn.Identity:
            return None
    return steps


class _Chain:
    """Evaluator by batched products over units × rows, forwards and backwards."""

    def __init__(self, steps: Sequence[_Step]) -> None:
        self.steps = steps

    def outputs(self, x: Tensor) -> Tensor:
        """Return outputs (F, N, K)."""
        h = x.mT
        for step in self.steps:
            h = step.value(h) if isinstance(step, _Elementwise) else _apply(step, h)
        return h.mT

    @torch.no_grad()
    def gradient(self, x: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        """Return gradients (F, P)."""
        states = [x.mT]
        for step in self.steps:
            states.append(step.value(states[-1]) if isinstance(step, _Elementwise) else _apply(step, states[-1]))
        g = score(states[-1].mT).mT
        first = next(place for place, step in enumerate(self.steps) if isinstance(step, _Linear))
        pieces = []
        for place in range(len(self.steps) - 1, -1, -1):
            step = self.steps[place]
            before, after = states[place], states[place + 1]
            if isinstance(step, _Elementwise):
                g = step.back(g, before, after)
                continue
            if step.bias is not None:
                pieces.append(g.sum(-1))
            pieces.append(_weight_gradient(g, before).reshape(len(g), -1))
            if place > first:
                g = torch.bmm(step.weight.mT, g)
        return torch.cat(pieces[::-1], 1)


def _weight_gradient(g: Tensor, h: Tensor) -> Tensor:
    """Return the gradient of linear maps with inputs h, (F, in, N) or shared (in, N), from that of their outputs."""
    if h.ndim == 2:  # in this order the product is several times as fast if there are few inputs
        return (h @ g.reshape(-1, g.shape[-1]).mT).mT
    return torch.bmm(g, h.mT)


def _apply(step: _Linear, h: Tensor) -> Tensor:
    """Apply linear maps to (F, in, N), or to shared inputs (in, N)."""
    h = h.expand(len(step.weight), *h.shape[-2:])
    return torch.bmm(step.weight, h) if step.bias is None else torch.baddbmm(step.bias, step.weight, h)


class _Module:
    """Evaluator of any networks by automatic differentiation, stacked where possible."""

    def __init__(self, network: nn.Module, weights: Tensor) -> None:
        count = len(weights)
        module = stack([network] * count)
        parts = list(module.modules())
        self.separate = any(isinstance(part, Apart) for part in parts)
        self.rows = self.separate or any(
            isinstance(part, nn.Flatten) for part in parts
        )  # True for inputs in blocks of rows
        self.module = (Apart([copy.deepcopy(network) for _ in range(count)]) if self.separate else module).eval()
        for name, views in unflatten(network, weights).items():
            if not self.separate:
                _bind(self.module, name, views)
            for number in range(count if self.separate else 0):
                _bind(self.module, f"members.{number}.{name}", views[number])
        self.parameters = list(self.module.parameters())
        self.count = count

    def outputs(self, x: Tensor) -> Tensor:
        """Return outputs (F, N, K)."""
        rows = x.expand(self.count, *x.shape)
        f: Tensor = self.module(rows.reshape(-1, *x.shape[1:]) if self.rows else rows)
        return f.reshape(self.count, x.shape[0], -1)

    def gradient(self, x: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
        """Return gradients (F, P)."""
        with torch.enable_grad():
            f = self.outputs(x)
        gradients = torch.autograd.grad(f, self.parameters, score(f.detach()))
        if not self.separate:
            return torch.cat([g.reshape(self.count, -1) for g in gradients], 1)
        size = len(gradients) // self.count  # number of parameters of one network
        rows = [torch.cat([g.reshape(-1) for g in gradients[k : k + size]]) for k in range(0, len(gradients), size)]
        return torch.stack(rows)


def _bind(module: nn.Module, name: str, view: Tensor) -> None:
    """Replace a parameter by one that shares the memory of a view."""
    path, _, last = name.rpartition(".")
    setattr(module.get_submodule(path), last, nn.Parameter(view))
