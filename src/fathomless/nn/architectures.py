"""Architectures: what a layer and a head look like at every depth.

An architecture is a value with two methods. ``layer(k)`` builds layer k = 1, 2, … and accepts what layer k − 1
returns; ``head(k)`` turns the hidden state at depth k into the parameters of the likelihood. Depth 0 is the input
itself, so ``head(0)`` alone is a linear model. Any object with these methods, or any two callables, will do.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral

import torch
from torch import Tensor, nn

from fathomless.system import checks
from fathomless.system.errors import DataError

__all__ = [
    "MLP",
    "Architecture",
    "CombinedHeads",
    "ConvNet",
    "Residual",
    "SequenceTransformer",
    "TabularTransformer",
    "activation",
    "make_identity",
]

_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


def activation(name: str) -> nn.Module:
    """Return an activation by name.

    Raises
    ------
    DataError
        For a name that is not known.
    """
    checks.choice("activation", name, tuple(_ACTIVATIONS))
    return _ACTIVATIONS[name]()


class Architecture(ABC):
    """A generator of layers and heads."""

    @abstractmethod
    def layer(self, depth: int) -> nn.Module:
        """Build layer `depth`, counted from 1."""

    @abstractmethod
    def head(self, depth: int) -> nn.Module:
        """Build the head on the hidden state at `depth` = 0, 1, …; depth 0 is the input."""


class Residual(nn.Module):
    """x + branch(x)."""

    def __init__(self, branch: nn.Module) -> None:
        super().__init__()
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch to its input."""
        y: Tensor = x + self.branch(x)
        return y


class CombinedHeads(nn.Module):
    """Σ q(ℓ) (V_ℓ h_ℓ + c_ℓ): linear heads of several depths as one linear map on their hidden states side by side."""

    def __init__(self, layers: Sequence[nn.Module], heads: Sequence[nn.Linear], posterior: Mapping[int, float]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.depths = tuple(posterior)
        shares = list(posterior.values())
        weight = torch.cat([q * head.weight for q, head in zip(shares, heads, strict=True)], 1).detach()  # (K, ΣH)
        self.head = nn.Linear(weight.shape[1], weight.shape[0], device=weight.device, dtype=weight.dtype)
        with torch.no_grad():
            self.head.weight.copy_(weight)
            self.head.bias.copy_(torch.stack([q * head.bias for q, head in zip(shares, heads, strict=True)]).sum(0))

    def forward(self, x: Tensor) -> Tensor:
        """Run the layers once, join what the depths see, map it."""
        hidden = [x]
        for layer in self.layers:
            hidden.append(layer(hidden[-1]))
        mean: Tensor = self.head(torch.cat([hidden[depth] for depth in self.depths], -1))
        return mean


@dataclass(frozen=True)
class MLP(Architecture):
    """Multilayer perceptron: linear maps and activations, plain or residual from the second layer on.

    Parameters
    ----------
    inputs, outputs : int
        Columns of the input and of the likelihood's parameters.
    width : int
        Units per layer.
    activation : str
        One of relu, leaky_relu, elu, gelu, silu, tanh.
    residual : bool
        Layers from the second on return x + W activation(x) + b.
    initialisation : {"he", "default"}
        Hidden weights N(0, 2/fan-in) and zero biases, or what ``nn.Linear`` does by itself.
    """

    inputs: int
    outputs: int
    width: int = 32
    activation: str = "relu"
    residual: bool = False
    initialisation: str = "he"

    def __post_init__(self) -> None:
        checks.choice("activation", self.activation, tuple(_ACTIVATIONS))
        checks.choice("initialisation", self.initialisation, ("he", "default"))
        _positive(inputs=self.inputs, outputs=self.outputs, width=self.width)

    def layer(self, depth: int) -> nn.Module:
        """Linear map and activation."""
        linear = nn.Linear(self.inputs if depth == 1 else self.width, self.width)
        between = activation(self.activation)
        branch = self.residual and depth > 1
        if self.initialisation == "he":
            nn.init.kaiming_normal_(linear.weight)
            nn.init.zeros_(linear.bias)
            if branch:  # a sum of full-sized branches would double its variance with every layer
                with torch.no_grad():
                    linear.weight.mul_(0.5)
        return Residual(nn.Sequential(between, linear)) if branch else nn.Sequential(linear, between)

    def head(self, depth: int) -> nn.Module:
        """Linear map."""
        return nn.Linear(self.inputs if depth == 0 else self.width, self.outputs)


@dataclass(frozen=True)
class ConvNet(Architecture):
    """Residual bottleneck blocks in three stages of growing width, for images of shape (channels, size, size).

    A block is a 1×1, a 3×3 and a 1×1 convolution to c, c and 4c channels, each followed by normalisation and ReLU,
    the last ReLU after the shortcut. Stage i has c = base·2^i and opens with stride 2. The third stage has no end.
    With the defaults this is the architecture of Nazaret and Blei (2022) for CIFAR-10; a small `base` makes narrow
    networks. The head averages 4×4 patches and maps them linearly.

    Parameters
    ----------
    channels, size, outputs : int
        Image channels, image side in pixels, columns of the likelihood's parameters.
    base : int
        Bottleneck channels of the first stage.
    stages : (int, int)
        Blocks in the first and in the second stage.
    norm : {"batch", "group"}
        Batch normalisation as in the paper, or group normalisation, which keeps no running statistics.
    stem_counts : bool
        Let the opening 3×3 convolution be layer 1 by itself, as in the paper's code; else it is part of layer 1.
    """

    channels: int = 3
    size: int = 32
    outputs: int = 10
    base: int = 64
    stages: tuple[int, int] = (3, 5)
    norm: str = "batch"
    stem_counts: bool = False

    def __post_init__(self) -> None:
        checks.choice("norm", self.norm, ("batch", "group"))
        _positive(channels=self.channels, size=self.size, outputs=self.outputs, base=self.base)

    def layer(self, depth: int) -> nn.Module:
        """Stem, block, or both."""
        stem = nn.Sequential(
            nn.Conv2d(self.channels, self.base, 3, padding=1, bias=False), self._norm(self.base), nn.ReLU()
        )
        block = depth - self.stem_counts  # blocks count from 1
        if block == 0:
            return stem
        stage = self._stage(block)
        entering = self.base if block == 1 else 4 * self.base * 2 ** self._stage(block - 1)
        opens = block == 1 or stage != self._stage(block - 1)
        body = self._block(entering, self.base * 2**stage, stride=2 if opens else 1)
        return nn.Sequential(*stem, body) if depth == 1 else body

    def head(self, depth: int) -> nn.Module:
        """Average 4×4 patches, flatten, map linearly."""
        block = depth - self.stem_counts
        if depth == 0:
            return nn.Sequential(nn.Flatten(), nn.Linear(self.channels * self.size**2, self.outputs))
        channels, size = self.base, self.size
        if block > 0:
            stage = self._stage(block)
            channels, size = 4 * self.base * 2**stage, math.ceil(self.size / 2 ** (stage + 1))
        patch = min(4, size)
        features = channels * (size // patch) ** 2
        return nn.Sequential(nn.AvgPool2d(patch), nn.Flatten(), nn.Linear(features, self.outputs))

    def _stage(self, block: int) -> int:
        first, second = self.stages
        return 0 if block <= first else 1 if block <= first + second else 2

    def _norm(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(channels) if self.norm == "batch" else nn.GroupNorm(math.gcd(8, channels), channels)

    def _block(self, entering: int, channels: int, stride: int) -> nn.Module:
        leaving = 4 * channels
        branch = nn.Sequential(
            nn.Conv2d(entering, channels, 1, bias=False),
            self._norm(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False),
            self._norm(channels),
            nn.ReLU(),
            nn.Conv2d(channels, leaving, 1, bias=False),
            self._norm(leaving),
        )
        if entering == leaving and stride == 1:
            return nn.Sequential(Residual(branch), nn.ReLU())
        shortcut = nn.Sequential(nn.Conv2d(entering, leaving, 1, stride, bias=False), self._norm(leaving))
        return nn.Sequential(_Sum(shortcut, branch), nn.ReLU())


@dataclass(frozen=True)
class SequenceTransformer(Architecture):
    """Pre-norm transformer blocks over sequences of tokens or of feature vectors.

    Parameters
    ----------
    inputs : int
        Size of the vocabulary, or features per step.
    outputs : int
        Columns of the likelihood's parameters.
    length : int
        Longest sequence.
    tokens : bool
        Inputs are integer tokens (B, T); else features (B, T, D).
    width, heads, hidden : int
        Model width, attention heads, and units of the feed-forward part (0: four times the width).
    """

    inputs: int
    outputs: int
    length: int
    tokens: bool = True
    width: int = 64
    heads: int = 4
    hidden: int = 0

    def __post_init__(self) -> None:
        _positive(inputs=self.inputs, outputs=self.outputs, length=self.length)
        _attention(self.width, self.heads)

    def layer(self, depth: int) -> nn.Module:
        """Pre-norm block; the first one embeds."""
        block = _transformer_block(self.width, self.heads, self.hidden)
        if depth > 1:
            return block
        embed = nn.Embedding(self.inputs, self.width) if self.tokens else nn.Linear(self.inputs, self.width)
        return nn.Sequential(embed, _Positions(self.length, self.width), block)

    def head(self, depth: int) -> nn.Module:
        """Normalise, average over steps, map linearly."""
        if depth == 0:
            raise DataError("min_depth=0 was given for sequences, which have no linear head; use min_depth >= 1")
        return nn.Sequential(nn.LayerNorm(self.width), _MeanOverSteps(), nn.Linear(self.width, self.outputs))


@dataclass(frozen=True)
class TabularTransformer(Architecture):
    """Pre-norm transformer blocks over the columns of a table: each column becomes a token x_j v_j + b_j.

    Parameters
    ----------
    inputs, outputs : int
        Columns of the input and of the likelihood's parameters.
    width, heads, hidden : int
        Model width, attention heads, and units of the feed-forward part (0: four times the width).
    """

    inputs: int
    outputs: int
    width: int = 32
    heads: int = 4
    hidden: int = 0

    def __post_init__(self) -> None:
        _positive(inputs=self.inputs, outputs=self.outputs)
        _attention(self.width, self.heads)

    def layer(self, depth: int) -> nn.Module:
        """Pre-norm block; the first one makes tokens."""
        block = _transformer_block(self.width, self.heads, self.hidden)
        return nn.Sequential(_ColumnTokens(self.inputs, self.width), block) if depth == 1 else block

    def head(self, depth: int) -> nn.Module:
        """Normalise, average over tokens, map linearly; at depth 0 a linear model of the columns."""
        if depth == 0:
            return nn.Linear(self.inputs, self.outputs)
        return nn.Sequential(nn.LayerNorm(self.width), _MeanOverSteps(), nn.Linear(self.width, self.outputs))


def make_identity(part: nn.Module) -> None:
    """Make a layer compute its input, in a way that still lets it learn.

    A residual layer gets a branch that ends in zeros; a square linear map before a ReLU becomes the identity, which it
    is on what an earlier ReLU returns. A layer that changes the shape cannot be the identity and stays as built.

    Raises
    ------
    DataError
        If the layer has neither form.
    """
    branches = [module.branch for module in part.modules() if isinstance(module, Residual)]
    ends = [_last_affine(branch) for branch in branches]
    leaves = list(part) if isinstance(part, nn.Sequential) and len(part) == 2 else [None, None]
    linear = leaves[0] if isinstance(leaves[0], nn.Linear) and isinstance(leaves[1], nn.ReLU) else None
    reshapes = any(isinstance(module, _Sum) for module in part.modules())
    with torch.no_grad():
        if linear is not None and linear.in_features == linear.out_features:
            linear.weight.copy_(torch.eye(linear.in_features, device=linear.weight.device))
            if linear.bias is not None:
                linear.bias.zero_()
        elif branches and all(end is not None for end in ends):
            for end in ends:
                for parameter in end.parameters():  # type: ignore[union-attr]
                    parameter.zero_()
        elif linear is None and not reshapes:
            raise DataError(
                "growth='identity' was given, but a grown layer has neither residual branches that end in an affine "
                "map (before an activation its zeros would never learn) nor the form Linear, ReLU with a square map; "
                "use growth='default' or such layers"
            )


def _last_affine(branch: nn.Module) -> nn.Module | None:
    """Return the affine map that a branch ends in, or None if it ends in something else."""
    leaves = [module for module in branch.modules() if not list(module.children())]
    affine = (nn.Linear, nn.Conv2d, nn.BatchNorm2d, nn.GroupNorm)
    return leaves[-1] if leaves and isinstance(leaves[-1], affine) else None


class _Sum(nn.Module):
    """shortcut(x) + branch(x)."""

    def __init__(self, shortcut: nn.Module, branch: nn.Module) -> None:
        super().__init__()
        self.shortcut = shortcut
        self.branch = branch

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.shortcut(x) + self.branch(x)
        return y


class _Attention(nn.Module):
    """Self-attention among steps."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attend(x, x, x, need_weights=False)[0]
        return y


class _Positions(nn.Module):
    """Add a learned vector for each position."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(0.02 * torch.randn(length, width))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > len(self.table):
            raise DataError(f"a sequence of {x.shape[1]} steps was given; at most length={len(self.table)} are allowed")
        return x + self.table[: x.shape[1]]


class _ColumnTokens(nn.Module):
    """(B, D) → (B, D, width): token j is x_j v_j + b_j."""

    def __init__(self, columns: int, width: int) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.randn(columns, width) / math.sqrt(width))
        self.origin = nn.Parameter(torch.randn(columns, width) / math.sqrt(width))

    def forward(self, x: Tensor) -> Tensor:
        return x[..., None] * self.direction + self.origin


class _MeanOverSteps(nn.Module):
    """(B, T, H) → (B, H)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def _transformer_block(width: int, heads: int, hidden: int) -> nn.Module:
    hidden = hidden or 4 * width
    return nn.Sequential(
        Residual(nn.Sequential(nn.LayerNorm(width), _Attention(width, heads))),
        Residual(nn.Sequential(nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))),
    )


def _positive(**sizes: object) -> None:
    for name, size in sizes.items():
        if not isinstance(size, Integral) or size < 1:
            raise DataError(f"{name}={size!r} was given; at least 1 is needed, a whole number")


def _attention(width: int, heads: int) -> None:
    _positive(width=width, heads=heads)
    if width % heads:
        raise DataError(f"width={width} and heads={heads} were given; the width must be a multiple of the heads")
