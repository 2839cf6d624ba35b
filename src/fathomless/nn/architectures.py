"""Architectures: layers and heads of networks for every depth.

An architecture is a value with two methods. ``layer(k)`` builds layer k = 1, 2, …, whose input is the output of layer
k − 1. ``head(k)`` builds the map from the hidden state at depth k to the parameters of the likelihood. Depth 0 is the
input, so ``head(0)`` is a linear model. Any object with these methods, or any two callables, can be used.
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
    "WideResNet",
    "make_activation",
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


def make_activation(name: str) -> nn.Module:
    """Build an activation by name.

    Raises
    ------
    DataError
        If the name is unknown.
    """
    checks.choice("activation", name, tuple(_ACTIVATIONS))
    return _ACTIVATIONS[name]()


class Architecture(ABC):
    """Base class of architectures, which build layers and heads."""

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
        """Return the sum of the input and the branch."""
        y: Tensor = x + self.branch(x)
        return y


class CombinedHeads(nn.Module):
    """Σ q(ℓ) (V_ℓ h_ℓ + c_ℓ): linear heads of several depths as one linear map of the concatenated hidden states."""

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
        """Run the layers once, concatenate the hidden states of all depths, apply the linear map."""
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
        Numbers of input columns and of parameters of the likelihood.
    width : int
        Number of units per layer.
    activation : str
        One of relu, leaky_relu, elu, gelu, silu, tanh.
    residual : bool
        If true, layers from the second on return x + W activation(x) + b.
    initialisation : {"he", "default"}
        Hidden weights N(0, 2/fan-in) and zero biases, or the default of ``nn.Linear``.
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
        _check_positive(inputs=self.inputs, outputs=self.outputs, width=self.width)

    def layer(self, depth: int) -> nn.Module:
        """Build a linear map and an activation."""
        linear = nn.Linear(self.inputs if depth == 1 else self.width, self.width)
        between = make_activation(self.activation)
        branch = self.residual and depth > 1
        if self.initialisation == "he":
            nn.init.kaiming_normal_(linear.weight)
            nn.init.zeros_(linear.bias)
            if branch:  # with branches of full size the variance would double in every layer
                with torch.no_grad():
                    linear.weight.mul_(0.5)
        return Residual(nn.Sequential(between, linear)) if branch else nn.Sequential(linear, between)

    def head(self, depth: int) -> nn.Module:
        """Build a linear map."""
        return nn.Linear(self.inputs if depth == 0 else self.width, self.outputs)


@dataclass(frozen=True)
class ConvNet(Architecture):
    """Residual bottleneck blocks in three stages of growing width, for images of shape (channels, size, size).

    A block is a 1×1, a 3×3 and a 1×1 convolution to c, c and 4c channels, each followed by normalisation and ReLU.
    The last ReLU is after the shortcut. Stage i has c = base·2^i, and its first block has stride 2. The third stage has
    unlimited length. The defaults are the architecture of Nazaret and Blei (2022) for CIFAR-10; a small `base` makes
    narrow networks. The head averages 4×4 patches and applies a linear map.

    Parameters
    ----------
    channels, size, outputs : int
        Number of image channels, image side in pixels, and number of parameters of the likelihood.
    base : int
        Bottleneck channels of the first stage.
    stages : (int, int)
        Numbers of blocks in the first and second stages.
    norm : {"batch", "group"}
        Batch normalisation as in the paper, or group normalisation, which has no running statistics.
    stem_counts : bool
        If true, layer 1 is the initial 3×3 convolution alone, as in the code of the paper. Otherwise layer 1 is this
        convolution and the first block.
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
        _check_positive(channels=self.channels, size=self.size, outputs=self.outputs, base=self.base)

    def layer(self, depth: int) -> nn.Module:
        """Build the stem, a block, or both."""
        stem = nn.Sequential(
            nn.Conv2d(self.channels, self.base, 3, padding=1, bias=False), _make_norm(self.norm, self.base), nn.ReLU()
        )
        block = depth - self.stem_counts  # blocks count from 1
        if block == 0:
            return stem
        stage = self._stage_of(block)
        channels_in = self.base if block == 1 else 4 * self.base * 2 ** self._stage_of(block - 1)
        is_first = block == 1 or stage != self._stage_of(block - 1)  # of its stage
        body = self._make_block(channels_in, self.base * 2**stage, stride=2 if is_first else 1)
        return nn.Sequential(*stem, body) if depth == 1 else body

    def head(self, depth: int) -> nn.Module:
        """Build the average over 4×4 patches and a linear map."""
        block = depth - self.stem_counts
        if depth == 0:
            return nn.Sequential(nn.Flatten(), nn.Linear(self.channels * self.size**2, self.outputs))
        channels, size = self.base, self.size
        if block > 0:
            stage = self._stage_of(block)
            channels = 4 * self.base * 2**stage
            size = math.ceil(self.size / 2 ** (stage + 1))
        patch = min(4, size)
        features = channels * (size // patch) ** 2
        return nn.Sequential(nn.AvgPool2d(patch), nn.Flatten(), nn.Linear(features, self.outputs))

    def _stage_of(self, block: int) -> int:
        first, second = self.stages
        if block <= first:
            return 0
        return 1 if block <= first + second else 2

    def _make_block(self, channels_in: int, channels: int, stride: int) -> nn.Module:
        channels_out = 4 * channels
        branch = nn.Sequential(
            nn.Conv2d(channels_in, channels, 1, bias=False),
            _make_norm(self.norm, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, stride, padding=1, bias=False),
            _make_norm(self.norm, channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels_out, 1, bias=False),
            _make_norm(self.norm, channels_out),
        )
        if channels_in == channels_out and stride == 1:
            return nn.Sequential(Residual(branch), nn.ReLU())
        shortcut = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), _make_norm(self.norm, channels_out)
        )
        return nn.Sequential(_Sum(shortcut, branch), nn.ReLU())


@dataclass(frozen=True)
class WideResNet(Architecture):
    """Residual blocks of two 3×3 convolutions in three stages of growing width, for images (channels, size, size).

    A block adds a branch to its input: normalisation, ReLU, convolution, normalisation, ReLU, convolution. Stage i = 0,
    1, 2 has base·2^i channels. The first block of a stage has stride 2, unless it is the first block of the network.
    The third stage has unlimited length. The last convolution of a branch is zero at first, so that the network starts
    as one without these blocks. Layer 1 is the first convolution (the stem) and the first block. The head is a
    normalisation, ReLU, the average over the image and a linear map, which is zero at first.

    Parameters
    ----------
    channels, size, outputs : int
        Number of image channels, image side in pixels, and number of parameters of the likelihood. The side matters at
        depth 0 only. Other depths accept images of any size, also those that are not square.
    base : int
        Channels of stage 0.
    stages : (int, int)
        Numbers of blocks in the first and second stages. A stage without blocks is left out; with (0, 0) all blocks are
        equal, with 4·base channels.
    stride : int
        Stride of the stem, whose kernel has the side `stride` + 2: 1 keeps the size of the image, 2 halves it.
    norm : {"batch", "group"}
        Batch normalisation, or group normalisation, which has no running statistics.

    References
    ----------
    S. Zagoruyko and N. Komodakis, "Wide residual networks", BMVC 2016.
    """

    channels: int = 3
    size: int = 32
    outputs: int = 10
    base: int = 64
    stages: tuple[int, int] = (2, 2)
    stride: int = 1
    norm: str = "batch"

    def __post_init__(self) -> None:
        checks.choice("norm", self.norm, ("batch", "group"))
        _check_positive(channels=self.channels, size=self.size, outputs=self.outputs, base=self.base)
        _check_positive(stride=self.stride)
        if not isinstance(self.stages, Sequence) or len(self.stages) != 2:
            raise DataError(f"stages={self.stages!r} was given; two numbers of blocks are needed")
        for i, blocks in enumerate(self.stages):
            checks.whole(f"stages[{i}]", blocks, least=0)

    def layer(self, depth: int) -> nn.Module:
        """Build a block; the first layer also has the stem."""
        stage = self._stage_of(depth)
        channels = self.base * 2**stage
        if depth > 1 and stage != self._stage_of(depth - 1):
            return self._make_first(self.base * 2 ** self._stage_of(depth - 1), channels)
        block = Residual(nn.Sequential(*self._activate(channels), *self._make_branch(channels, channels)))
        if depth > 1:
            return block
        stem = nn.Conv2d(self.channels, channels, self.stride + 2, self.stride, padding=1, bias=False)
        nn.init.kaiming_normal_(stem.weight, nonlinearity="linear")
        return nn.Sequential(stem, block)

    def head(self, depth: int) -> nn.Module:
        """Build the average over the image and a linear map; at depth 0 a linear model."""
        inputs = self.channels * self.size**2 if depth == 0 else self.base * 2 ** self._stage_of(depth)
        linear = nn.Linear(inputs, self.outputs)
        nn.init.zeros_(linear.weight)
        nn.init.zeros_(linear.bias)
        if depth == 0:
            return nn.Sequential(nn.Flatten(), linear)
        return nn.Sequential(*self._activate(inputs), nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear)

    def _stage_of(self, block: int) -> int:
        first, second = self.stages
        return (block > first) + (block > first + second)

    def _activate(self, channels: int) -> tuple[nn.Module, nn.Module]:
        return _make_norm(self.norm, channels), nn.ReLU()

    def _make_first(self, channels_in: int, channels: int) -> nn.Module:
        """Build the first block of a stage, whose shortcut is a convolution of the activated input."""
        shortcut = nn.Conv2d(channels_in, channels, 1, 2, bias=False)
        nn.init.kaiming_normal_(shortcut.weight, nonlinearity="linear")
        branch = nn.Sequential(*self._make_branch(channels_in, channels, stride=2))
        return nn.Sequential(*self._activate(channels_in), _Sum(shortcut, branch))

    def _make_branch(self, channels_in: int, channels: int, stride: int = 1) -> list[nn.Module]:
        """Build the convolutions of a block, without the first normalisation and ReLU."""
        first = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        last = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(first.weight)
        nn.init.zeros_(last.weight)
        return [first, *self._activate(channels), last]


@dataclass(frozen=True)
class SequenceTransformer(Architecture):
    """Pre-norm transformer blocks over sequences of tokens or of feature vectors.

    Parameters
    ----------
    inputs : int
        Size of the vocabulary, or number of features per step.
    outputs : int
        Number of parameters of the likelihood.
    length : int
        Largest length of a sequence.
    tokens : bool
        If true, inputs are integer tokens (B, T), otherwise features (B, T, D).
    width, heads, hidden : int
        Model width, number of attention heads, and units of the feed-forward layer (0: four times the width).
    """

    inputs: int
    outputs: int
    length: int
    tokens: bool = True
    width: int = 64
    heads: int = 4
    hidden: int = 0

    def __post_init__(self) -> None:
        _check_positive(inputs=self.inputs, outputs=self.outputs, length=self.length)
        _check_attention(self.width, self.heads)

    def layer(self, depth: int) -> nn.Module:
        """Build a pre-norm block; the first layer also has the embedding."""
        block = _transformer_block(self.width, self.heads, self.hidden)
        if depth > 1:
            return block
        embed = nn.Embedding(self.inputs, self.width) if self.tokens else nn.Linear(self.inputs, self.width)
        return nn.Sequential(embed, _Positions(self.length, self.width), block)

    def head(self, depth: int) -> nn.Module:
        """Build a normalisation, the average over steps and a linear map."""
        if depth == 0:
            raise DataError(
                "min_depth=0 was given for sequences, for which there is no linear model; use min_depth >= 1"
            )
        return nn.Sequential(nn.LayerNorm(self.width), _MeanOverSteps(), nn.Linear(self.width, self.outputs))


@dataclass(frozen=True)
class TabularTransformer(Architecture):
    """Pre-norm transformer blocks over the columns of a table: each column becomes a token x_j v_j + b_j.

    Parameters
    ----------
    inputs, outputs : int
        Numbers of input columns and of parameters of the likelihood.
    width, heads, hidden : int
        Model width, number of attention heads, and units of the feed-forward layer (0: four times the width).
    """

    inputs: int
    outputs: int
    width: int = 32
    heads: int = 4
    hidden: int = 0

    def __post_init__(self) -> None:
        _check_positive(inputs=self.inputs, outputs=self.outputs)
        _check_attention(self.width, self.heads)

    def layer(self, depth: int) -> nn.Module:
        """Build a pre-norm block; the first layer also converts columns to tokens."""
        block = _transformer_block(self.width, self.heads, self.hidden)
        return nn.Sequential(_ColumnTokens(self.inputs, self.width), block) if depth == 1 else block

    def head(self, depth: int) -> nn.Module:
        """Build a normalisation, the average over tokens and a linear map; at depth 0 a linear model."""
        if depth == 0:
            return nn.Linear(self.inputs, self.outputs)
        return nn.Sequential(nn.LayerNorm(self.width), _MeanOverSteps(), nn.Linear(self.width, self.outputs))


def make_identity(part: nn.Module) -> None:
    """Initialise a layer as the identity, so that it can still be trained.

    In a residual layer the last affine map of the branch is set to zero. A square linear map before a ReLU is set to
    the identity, so that the layer is the identity for non-negative inputs, such as the output of an earlier ReLU. A
    layer that changes the shape cannot be the identity and is unchanged.

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
                "growth='identity' was given, but a new layer has neither residual branches that end in an affine "
                "map (zeros before an activation would have no gradient) nor the form Linear, ReLU with a square map; "
                "use growth='default' or such layers"
            )


def _last_affine(branch: nn.Module) -> nn.Module | None:
    """Return the last module of a branch if it is an affine map, otherwise None."""
    leaves = [module for module in branch.modules() if not list(module.children())]
    affine = (nn.Linear, nn.Conv2d, nn.BatchNorm2d, nn.GroupNorm)
    return leaves[-1] if leaves and isinstance(leaves[-1], affine) else None


def _make_norm(name: str, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if name == "batch" else nn.GroupNorm(math.gcd(8, channels), channels)


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
    """Self-attention between steps."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.attend(x, x, x, need_weights=False)[0]
        return y


class _Positions(nn.Module):
    """Sum of the input and a learned vector for each position."""

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


def _check_positive(**sizes: object) -> None:
    for name, size in sizes.items():
        if not isinstance(size, Integral) or size < 1:
            raise DataError(f"{name}={size!r} was given; at least 1 is needed, a whole number")


def _check_attention(width: int, heads: int) -> None:
    _check_positive(width=width, heads=heads)
    if width % heads:
        raise DataError(f"width={width} and heads={heads} were given; the width must be a multiple of the heads")
