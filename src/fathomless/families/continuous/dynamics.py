r"""Dynamics: maps of the input to the hidden state, of its change with depth, and of the state to the output.

A network of continuous depth is :math:`h_0 = \text{enter}(x)`, :math:`dh/dt = \text{slope}(t, h, w_t)`,
:math:`f = \text{leave}(h_T)`. All of its weights are one vector: first the weights of the slope, which vary with depth,
then those of enter and leave, which are constant. S drawn networks of each of F members are evaluated at once: tensors
of weights have shape (F, S, ...), tensors of rows (F, S, B, ...).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fathomless.system import checks
from fathomless.system.errors import DataError
from fathomless.system.rng import as_generator

__all__ = ["ACTIVATIONS", "ConvDynamics", "Dynamics", "MLPDynamics", "Weight", "initial_weights"]

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "tanh": torch.tanh,
}


@dataclass(frozen=True)
class Weight:
    """Description of one tensor of weights.

    Attributes
    ----------
    name : str
        Name for display.
    shape : tuple of int
        Shape of the tensor.
    fan_in : int
        Number of inputs of its layer: the prior standard deviation is ``weight_prior`` / √fan-in.
    gain : float
        Initial values are Gaussian with standard deviation `gain` / √fan-in; 0 for biases.
    """

    name: str
    shape: tuple[int, ...]
    fan_in: int
    gain: float = 0.0

    @property
    def size(self) -> int:
        """Number of weights."""
        return math.prod(self.shape)


class Dynamics(ABC):
    """Maps of a network of continuous depth, given its weights."""

    @property
    @abstractmethod
    def moving(self) -> tuple[Weight, ...]:
        """Weights of the slope."""

    @property
    @abstractmethod
    def still(self) -> tuple[Weight, ...]:
        """Weights of :meth:`enter` and :meth:`leave`."""

    @abstractmethod
    def enter(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return h_0 (F, S, B, ...) for x (F, B, ...), given the constant weights, each (F, S, *shape)."""

    @abstractmethod
    def slope(self, weights: Sequence[Tensor], t: float, h: Tensor) -> Tensor:
        """Return dh/dt, with the shape of h, given the moving weights."""

    @abstractmethod
    def leave(self, weights: Sequence[Tensor], h: Tensor) -> Tensor:
        """Return the parameters of the likelihood (F, S, B, K), given the constant weights."""

    @abstractmethod
    def numbers(self, rows: int) -> int:
        """Return the number of values stored for the gradient of one evaluation of the slope, for one drawn network."""


@dataclass(frozen=True)
class MLPDynamics(Dynamics):
    """Multilayer perceptron as the slope.

    Parameters
    ----------
    inputs, outputs : int
        Numbers of columns D and of outputs K.
    width : int
        Number of units H of the hidden state; with ``encoder="pad"`` it is D + `augment`.
    hidden : tuple of int
        Numbers of units of the hidden layers of the slope.
    encoder : {"linear", "pad"}
        "linear": h_0 is a linear map of x, and the output one of h_T. "pad": h_0 is x with `augment` zeros, and the
        output is the last K coordinates of h_T, as in the paper.
    augment : int
        Number of zeros.
    activation : str
        Activation between linear maps; "swish" has a parameter for each unit, x ⊙ sigmoid(x softplus(β)).
    time : {"none", "gate"}
        "gate": a linear map is (x W + b) ⊙ sigmoid(a t + c) + d t, with weights W, a, b, c, d.

    Examples
    --------
    >>> paper = MLPDynamics(1, 1, hidden=(64, 64), encoder="pad", augment=2, activation="swish", time="gate")
    >>> sum(weight.size for weight in paper.moving)
    5132
    """

    inputs: int
    outputs: int
    width: int = 16
    hidden: tuple[int, ...] = (32,)
    encoder: str = "linear"
    augment: int = 0
    activation: str = "silu"
    time: str = "none"

    def __post_init__(self) -> None:
        checks.choice("encoder", self.encoder, ("linear", "pad"))
        checks.choice("time", self.time, ("none", "gate"))
        checks.choice("activation", self.activation, (*ACTIVATIONS, "swish"))
        for name in ("inputs", "outputs", "width"):
            checks.whole(name, getattr(self, name))
        for units in self.hidden:
            checks.whole("hidden", units)
        if self.augment < 0:
            raise DataError(f"augment={self.augment} was given; 0 or more zeros are allowed")
        if self.encoder == "pad" and self.outputs > self.inputs + self.augment:
            raise DataError(
                f"encoder='pad' was given with {self.inputs} columns, augment={self.augment} and {self.outputs} "
                "outputs, which are coordinates of the hidden state; set augment to at least "
                f"{self.outputs - self.inputs}, or encoder='linear'"
            )

    @property
    def size(self) -> int:
        """Number of units of the hidden state."""
        return self.inputs + self.augment if self.encoder == "pad" else self.width

    @property
    def moving(self) -> tuple[Weight, ...]:
        """Weights of the slope."""
        sizes = (self.size, *self.hidden, self.size)
        weights = list[Weight]()
        for k in range(len(sizes) - 1):
            a, b = sizes[k], sizes[k + 1]
            gain = math.sqrt(2.0) if k + 2 < len(sizes) else 1.0
            weights += [Weight(f"layer{k}.weight", (a, b), a, gain), Weight(f"layer{k}.bias", (b,), a)]
            if self.time == "gate":
                weights += [Weight(f"layer{k}.{name}", (b,), a) for name in ("gate_slope", "gate_bias", "drift")]
            if self.activation == "swish" and k + 2 < len(sizes):
                weights.append(Weight(f"layer{k}.swish", (b,), a))
        return tuple(weights)

    @property
    def still(self) -> tuple[Weight, ...]:
        """Weights of encoder and readout."""
        if self.encoder == "pad":
            return ()
        D, H, K = self.inputs, self.width, self.outputs
        return (
            Weight("encoder.weight", (D, H), D, 1.0),
            Weight("encoder.bias", (H,), D),
            Weight("readout.weight", (H, K), H, 1.0),
            Weight("readout.bias", (K,), H),
        )

    def enter(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the linear map of x (F, B, D), or x padded with zeros."""
        if self.encoder == "pad":
            return F.pad(x, (0, self.augment))[:, None]  # (F, 1, B, H), the same for all paths
        weight, bias = weights[:2]
        return _affine(x[:, None], weight, bias)

    def slope(self, weights: Sequence[Tensor], t: float, h: Tensor) -> Tensor:
        """Return the output of the layers at depth t."""
        rest = list(weights)
        for k in range(len(self.hidden) + 1):
            weight, bias, *rest = rest
            if self.time == "gate":
                a, c, d, *rest = rest
                gate = torch.sigmoid(a * t + c)
                weight, bias = weight * gate[..., None, :], bias * gate + d * t
            h = _affine(h, weight, bias)
            if k == len(self.hidden):
                return h
            if self.activation == "swish":
                beta, *rest = rest
                h = h * torch.sigmoid(h * F.softplus(beta)[..., None, :])
            else:
                h = ACTIVATIONS[self.activation](h)
        return h

    def leave(self, weights: Sequence[Tensor], h: Tensor) -> Tensor:
        """Return the linear map of h_T, or its last coordinates."""
        return h[..., -self.outputs :] if self.encoder == "pad" else _affine(h, *weights[2:])

    def numbers(self, rows: int) -> int:
        """Return the number of inputs and outputs of all layers and activations."""
        return rows * (2 * self.size + 2 * sum(self.hidden))


def _affine(h: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return h W + b for h (F, S or 1, B, a), W (F, S or 1, a, b), b (F, S or 1, b), as (F, S, B, b)."""
    members, draws = weight.shape[0], max(weight.shape[1], h.shape[1])
    h, weight = h.expand(members, draws, -1, -1), weight.expand(members, draws, -1, -1)
    bias = bias[..., None, :].expand(members, draws, -1, -1)
    flat = torch.baddbmm(bias.flatten(0, 1), h.flatten(0, 1), weight.flatten(0, 1))
    output: Tensor = flat.unflatten(0, (members, draws))
    return output


@dataclass(frozen=True)
class ConvDynamics(Dynamics):
    """Convolutional slope for images, with depth as an additional constant channel.

    An image (channels, size, size) is padded with `augment` channels of zeros. The slope consists of 3 × 3 convolutions
    that keep its shape, with activations between them. The output is a linear map of the averages of 2 × 2 patches.

    Parameters
    ----------
    channels, size, outputs : int
        Channels and side of the images, and number of outputs. Rows may be flat.
    augment : int
        Number of channels of zeros.
    hidden : tuple of int
        Numbers of channels between the convolutions.
    activation : str
        Activation between the convolutions.
    squeeze : int
        Side of the pixel blocks that become channels (space-to-depth) before all other operations.
    """

    channels: int
    size: int
    outputs: int
    augment: int = 7
    hidden: tuple[int, ...] = (16, 16)
    activation: str = "softplus"
    squeeze: int = 1

    def __post_init__(self) -> None:
        checks.choice("activation", self.activation, tuple(ACTIVATIONS))
        for name in ("channels", "size", "outputs", "squeeze"):
            checks.whole(name, getattr(self, name))
        if self.size % (2 * self.squeeze):
            raise DataError(
                f"images of side {self.size} were given; with squeeze={self.squeeze} and averages over 2 × 2 patches, "
                f"a multiple of {2 * self.squeeze} is allowed"
            )

    @property
    def _state(self) -> tuple[int, int]:
        """Channels and side of the hidden state."""
        return self.channels * self.squeeze**2 + self.augment, self.size // self.squeeze

    @property
    def moving(self) -> tuple[Weight, ...]:
        """Kernels and biases of the slope."""
        C, _ = self._state
        sizes = (C, *self.hidden, C)
        weights = list[Weight]()
        for k in range(len(sizes) - 1):
            fan_in = 9 * (sizes[k] + 1)
            gain = math.sqrt(2.0) if k + 2 < len(sizes) else 1.0
            weights.append(Weight(f"layer{k}.weight", (sizes[k + 1], sizes[k] + 1, 3, 3), fan_in, gain))
            weights.append(Weight(f"layer{k}.bias", (sizes[k + 1],), fan_in))
        return tuple(weights)

    @property
    def still(self) -> tuple[Weight, ...]:
        """Weights of the readout."""
        C, side = self._state
        fan_in = C * (side // 2) ** 2
        return (
            Weight("readout.weight", (fan_in, self.outputs), fan_in, 1.0),
            Weight("readout.bias", (self.outputs,), fan_in),
        )

    def enter(self, weights: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the padded image, (F, 1, B, C, side, side)."""
        members, rows = x.shape[:2]
        image = x.reshape(members * rows, self.channels, self.size, self.size)
        image = F.pixel_unshuffle(image, self.squeeze) if self.squeeze > 1 else image
        padded = F.pad(image, (0, 0, 0, 0, 0, self.augment))
        return padded.reshape(members, 1, rows, *padded.shape[1:])

    def slope(self, weights: Sequence[Tensor], t: float, h: Tensor) -> Tensor:
        """Return the output of the convolutions at depth t, with drawn networks as groups of one convolution."""
        members, draws = weights[0].shape[:2]
        h = h.expand(members, draws, *h.shape[2:])
        rows, side = h.shape[2], h.shape[-1]
        groups = members * draws
        h = h.flatten(0, 1).transpose(0, 1)  # (B, G, C, side, side)
        for k in range(len(self.hidden) + 1):
            kernel, bias = weights[2 * k], weights[2 * k + 1]
            clock = h.new_full((1, 1, 1, 1, 1), t).expand(rows, groups, 1, side, side)
            h = torch.cat([h, clock], 2).flatten(1, 2)
            h = F.conv2d(h, kernel.flatten(0, 2), bias.flatten(), padding=1, groups=groups)
            h = h.unflatten(1, (groups, -1))
            h = ACTIVATIONS[self.activation](h) if k < len(self.hidden) else h
        slope: Tensor = h.transpose(0, 1).unflatten(0, (members, draws))
        return slope

    def leave(self, weights: Sequence[Tensor], h: Tensor) -> Tensor:
        """Return the linear map of the averages of patches."""
        pooled = F.avg_pool2d(h.flatten(0, 2), 2).reshape(*h.shape[:3], -1)
        return _affine(pooled, *weights)

    def numbers(self, rows: int) -> int:
        """Return the number of inputs and outputs of all convolutions and activations."""
        C, side = self._state
        return rows * side**2 * (2 * C + 2 * sum(self.hidden) + len(self.hidden) + 1)


def initial_weights(
    dynamics: Dynamics, weight_prior: float, seed: int, dtype: torch.dtype, *, fan_in: bool = True
) -> tuple[Tensor, Tensor]:
    """Draw initial weights in units of their prior scales, and return both: (P,) each, moving weights first."""
    noise = as_generator(seed)
    means, scales = [], []
    for weight in (*dynamics.moving, *dynamics.still):
        width = weight_prior if fan_in else weight_prior * math.sqrt(weight.fan_in)
        draw = torch.randn(weight.size, generator=noise, dtype=dtype, device=noise.device) * (weight.gain / width)
        means.append(draw)
        scales.append(torch.full_like(draw, width / math.sqrt(weight.fan_in)))
    return torch.cat(means), torch.cat(scales)
