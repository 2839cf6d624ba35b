r"""Networks as functions of one vector of weights.

With layers :math:`i = 1, \dots, L` of weights :math:`W_i` (out × in) and biases :math:`b_i`,

.. math:: f_w(x) = W_L\, a(\cdots a(W_1 x + b_1) \cdots) + b_L, \qquad
          w = (\mathrm{vec}\, W_1, b_1, \dots, \mathrm{vec}\, W_L, b_L),

in the order of the parameters of an ``nn.Sequential`` of linear maps. Many vectors are evaluated at once, by batched
products. For independent Gaussian weights the pre-activations of a layer are drawn directly: for inputs u they are
:math:`N(u M^\top + m_b,\ u^2 V^\top + v_b)`, independently over rows (local
reparameterisation). This is valid only for sums over rows, since the rows of one drawn function are dependent.

Other networks are evaluated once for each vector.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from fathomless.nn.flat import check_flattenable, flatten, unflatten
from fathomless.nn.layers import WeightPrior, prior_scales
from fathomless.nn.stateless import call_with
from fathomless.system import checks
from fathomless.system.draws import normal
from fathomless.system.errors import DataError

__all__ = ["ACTIVATIONS", "Affine", "Flat", "FlatModule", "FlatNetwork"]


def _bump(a: Tensor) -> Tensor:
    return torch.exp(-a.square())


_FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "relu": (torch.relu, "positive"),
    "tanh": (torch.tanh, "odd"),
    "rbf": (_bump, "even"),
    "silu": (torch.nn.functional.silu, "none"),
}
#: Names of the activations; "rbf" is exp(−a²).
ACTIVATIONS = tuple(_FUNCTIONS)


class Affine(NamedTuple):
    """Weights (…, out, in) and biases (…, out) of one layer."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class FlatNetwork:
    """Multilayer perceptron as a function of its weights.

    Parameters
    ----------
    inputs, outputs : int
        Numbers of inputs D and outputs K.
    widths : tuple of int
        Units of the hidden layers; an empty tuple is a linear model.
    activation : str
        One of :data:`ACTIVATIONS`.

    Examples
    --------
    >>> net = FlatNetwork(2, 1, (3,), "tanh")
    >>> net.size, net(torch.zeros(7, net.size), torch.zeros(5, 2)).shape
    (13, torch.Size([7, 5, 1]))
    """

    inputs: int
    outputs: int
    widths: tuple[int, ...] = (50,)
    activation: str = "relu"

    def __post_init__(self) -> None:
        checks.choice("activation", self.activation, ACTIVATIONS)
        if min(self.inputs, self.outputs, *self.widths) < 1:
            raise DataError(
                f"a network of {self.inputs} inputs, {self.outputs} outputs and hidden layers of {self.widths} was "
                "given; every number must be at least 1"
            )

    @cached_property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Shape (out, in) of each layer."""
        sizes = (self.inputs, *self.widths, self.outputs)
        return tuple((b, a) for a, b in pairwise(sizes))

    @property
    def size(self) -> int:
        """Number P of weights."""
        return sum(self.blocks)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Number of weights of each layer."""
        return tuple(out * (fan_in + 1) for out, fan_in in self.shapes)

    @property
    def units(self) -> int:
        """Largest number of hidden values of one row in memory at once."""
        return max((1, *self.widths))

    @property
    def symmetry(self) -> str:
        """Symmetry of a hidden unit that does not change the function.

        "positive": incoming weights times c > 0, outgoing weights divided by c; "odd": the sign of both; "even": the
        sign of the incoming weights; "none".
        """
        return _FUNCTIONS[self.activation][1]

    def layers(self, w: Tensor) -> list[Affine]:
        """Return weights (…, out, in) and biases (…, out) of each layer, as views of w (…, P)."""
        sizes = [size for out, fan_in in self.shapes for size in (out * fan_in, out)]
        parts = iter(w.split(sizes, -1))
        return [Affine(next(parts).unflatten(-1, shape), next(parts)) for shape in self.shapes]

    def flat(self, layers: list[Affine]) -> Tensor:
        """Return the vectors (…, P) of layers, the inverse of :meth:`layers`."""
        return torch.cat([part for layer in layers for part in (layer.weight.flatten(-2), layer.bias)], -1)

    def __call__(self, w: Tensor, x: Tensor) -> Tensor:
        """Evaluate networks.

        Parameters
        ----------
        w : Tensor, shape (S, P)
            Weights.
        x : Tensor, shape (B, D) or (S, B, D)
            Rows, the same for all networks or separate for each network.

        Returns
        -------
        Tensor, shape (S, B, K)
        """
        act = _FUNCTIONS[self.activation][0]
        hidden = _expand_rows(x, len(w))
        *inner, last = self.layers(w)
        for layer in inner:
            hidden = act(_apply(layer, hidden))
        return _apply(last, hidden)

    def sample_outputs(self, mean: Tensor, variance: Tensor, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Evaluate networks with weights N(mean, variance), drawn separately for each row; shapes as for a call."""
        act = _FUNCTIONS[self.activation][0]
        hidden = _expand_rows(x, len(mean))
        pairs = list(zip(self.layers(mean), self.layers(variance), strict=True))
        for place, (centre, spread) in enumerate(pairs):
            mean_out = _apply(centre, hidden)
            scale_out = _apply(spread, hidden.square()).sqrt()
            hidden = mean_out + scale_out * normal(mean_out, generator)
            hidden = hidden if place + 1 == len(pairs) else act(hidden)
        return hidden

    def prior_scale(self, prior: WeightPrior) -> Tensor:
        """Return the prior standard deviation of each weight, shape (P,)."""
        layers = self.layers(torch.zeros(self.size, dtype=torch.float32, device="cpu"))
        return self.flat([Affine(*(part + prior.scale_of(part) for part in layer)) for layer in layers])


class FlatModule:
    """Arbitrary network as a function of its weights.

    Parameters
    ----------
    module : nn.Module
        Module (B, D) -> (B, K). Its weights are the initial weights of the training.

    Attributes
    ----------
    start : Tensor, shape (P,)
        Initial weights, in the order of ``module.parameters()``.

    Raises
    ------
    DataError
        If the module has buffers, dropout or shared weights.

    Examples
    --------
    >>> net = FlatModule(nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 1)))
    >>> net.size, net(torch.zeros(7, net.size), torch.zeros(5, 2)).shape
    (13, torch.Size([7, 5, 1]))
    """

    def __init__(self, module: nn.Module) -> None:
        check_flattenable(module)
        self.module = module.eval()
        self.start = flatten(module)

    @property
    def size(self) -> int:
        """Number P of weights."""
        return len(self.start)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Number of weights of each submodule that has weights of its own."""
        sizes = (sum(p.numel() for p in part.parameters(recurse=False)) for part in self.module.modules())
        return tuple(filter(None, sizes))

    @property
    def units(self) -> int:
        """1: vectors of weights are evaluated one after another."""
        return 1

    def __call__(self, w: Tensor, x: Tensor) -> Tensor:
        """Evaluate networks; shapes as of :class:`FlatNetwork`."""
        rows = x if x.ndim == 3 else [x] * len(w)
        return torch.stack(
            [call_with(self.module, unflatten(self.module, vector), part) for vector, part in zip(w, rows, strict=True)]
        )

    def sample_outputs(self, mean: Tensor, variance: Tensor, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Evaluate networks with weights N(mean, variance), drawn once for all rows."""
        return self(mean + variance.sqrt() * normal(mean, generator), x)

    def prior_scale(self, prior: WeightPrior) -> Tensor:
        """Return the prior standard deviation of each weight, (P,); infinite without a prior."""
        scales = prior_scales(self.module, prior)
        named = self.module.named_parameters()
        return torch.cat(
            [
                torch.full((p.numel(),), scales.get(name, torch.inf), dtype=torch.float32, device="cpu")
                for name, p in named
            ]
        )


#: A network as a function of its weights.
Flat: TypeAlias = FlatNetwork | FlatModule


def _expand_rows(x: Tensor, count: int) -> Tensor:
    return x if x.ndim == 3 else x.expand(count, *x.shape)  # (S, B, D)


def _apply(layer: Affine, hidden: Tensor) -> Tensor:
    return torch.baddbmm(layer.bias[:, None], hidden, layer.weight.mT)  # (S, B, out)
