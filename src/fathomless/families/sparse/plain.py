"""Compact plain networks, exported from sparse Bayesian ones, and their files.

They consist of ordinary torch modules in an ``nn.Sequential`` and of three module classes defined here. This module
does not use posteriors, so that an exported network can be loaded without the rest of the library.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fathomless.system import io
from fathomless.system.errors import DataError, FileError

__all__ = [
    "ELEMENTWISE",
    "POOLING",
    "CompressedLinear",
    "Select",
    "SkipChain",
    "build_weighted",
    "copy_without_tensors",
    "load_sparse",
    "save_sparse",
]

KIND = "sparse-network"

_AVERAGE = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
_MAX = ("kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode")
_CONVOLUTION = ("stride", "padding", "dilation", "groups", "padding_mode")

# modules without tensors, and the arguments that reconstruct them
#: Activations allowed in a compact network.
ELEMENTWISE: dict[type[nn.Module], tuple[str, ...]] = {
    **dict.fromkeys((nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid, nn.Softsign), ()),
    **dict.fromkeys((nn.Hardsigmoid, nn.Hardswish, nn.LogSigmoid, nn.Tanhshrink), ()),
    **dict.fromkeys((nn.Hardshrink, nn.Softshrink), ("lambd",)),
    **dict.fromkeys((nn.ELU, nn.CELU), ("alpha",)),
    nn.LeakyReLU: ("negative_slope",),
    nn.GELU: ("approximate",),
    nn.Hardtanh: ("min_val", "max_val"),
    nn.Softplus: ("beta", "threshold"),
    nn.Threshold: ("threshold", "value"),
}
#: Pooling modules allowed in a compact network.
POOLING: dict[type[nn.Module], tuple[str, ...]] = {
    nn.AvgPool1d: _AVERAGE,
    **dict.fromkeys((nn.AvgPool2d, nn.AvgPool3d), (*_AVERAGE, "divisor_override")),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d), _MAX),
    **dict.fromkeys((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d), ("output_size",)),
    **dict.fromkeys((nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d), ("output_size",)),
}


class Select(nn.Module):
    """Selection of entries along one axis.

    Parameters
    ----------
    columns : Tensor of int, shape (n,)
        Indices of the entries.
    dim : int
        Axis, counted from the end.
    """

    columns: Tensor

    def __init__(self, columns: Tensor, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("columns", columns.to(torch.int32))

    def forward(self, x: Tensor) -> Tensor:
        """Return x with n entries along the axis."""
        return x.index_select(self.dim, self.columns)


class CompressedLinear(nn.Module):
    """Linear map that stores only nonzero weights, in compressed sparse rows.

    The product is an ``F.embedding_bag`` whose table is the transposed input. For hundreds of rows of x it is at least
    as fast as torch's product with compressed rows (slower for a few rows), and it can be differentiated and exported.

    Parameters
    ----------
    starts : Tensor of int, shape (K + 1,)
        Index of the first weight of each output.
    columns : Tensor of int, shape (nnz,)
        Input column of each weight.
    values, bias : Tensor, shapes (nnz,) and (K,)
        Weights and biases.
    inputs : int
        Number of columns of x.

    Examples
    --------
    >>> starts, columns = torch.tensor([0, 2, 2]), torch.tensor([0, 2])
    >>> layer = CompressedLinear(starts, columns, torch.tensor([1.0, 2.0]), torch.tensor([0.0, 5.0]), inputs=3)
    >>> layer(torch.ones(1, 3))
    tensor([[3., 5.]])
    """

    starts: Tensor
    columns: Tensor

    def __init__(self, starts: Tensor, columns: Tensor, values: Tensor, bias: Tensor, inputs: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.values = nn.Parameter(values, requires_grad=False)
        self.bias = nn.Parameter(bias, requires_grad=False)
        self.register_buffer("columns", columns.to(torch.int32))
        self.register_buffer("starts", starts.to(torch.int32))

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor) -> "CompressedLinear":
        """Return a layer from a matrix of weights (outputs, inputs), without its zeros."""
        return cls(*_compress(weight), bias, weight.shape[1])

    def forward(self, x: Tensor) -> Tensor:
        """Map x (..., inputs) to (..., outputs)."""
        rows = x.reshape(-1, self.inputs)
        if not torch.compiler.is_compiling() and len(rows) == 1:
            two: Tensor = self(rows.expand(2, -1))  # a table of one column is slower than one of two
            return two[:1].reshape(*x.shape[:-1], len(self.bias))
        table = rows.mT.contiguous()  # (inputs, B)
        options: dict[str, Any] = {"mode": "sum", "include_last_offset": True}
        total = F.embedding_bag(self.columns, table, self.starts, per_sample_weights=self.values, **options)
        return (total.mT + self.bias).reshape(*x.shape[:-1], len(self.bias))


class SkipChain(nn.Module):
    """Multilayer perceptron with skip connections: each layer reads the previous layer and a selection of the inputs.

    Parameters
    ----------
    selections, layers : sequence of modules
        Layers, and the selection of inputs of each.
    activation : nn.Module
        Activation between layers.
    """

    def __init__(self, selections: nn.Sequential, layers: nn.Sequential, activation: nn.Module) -> None:
        super().__init__()
        self.selections = selections
        self.layers = layers
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        """Map x (B, D) to (B, K)."""
        h: Tensor = self.layers[0](self.selections[0](x))
        for select, layer in zip([*self.selections][1:], [*self.layers][1:], strict=True):
            h = layer(torch.cat([self.activation(h), select(x)], -1))
        return h


# modules that can be described in a manifest, with the arguments to save: modules with weights, and all modules
_WEIGHTED: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Linear: (),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _CONVOLUTION),
}
_ARGUMENTS: dict[type[nn.Module], tuple[str, ...]] = {
    **dict.fromkeys((nn.Sequential, SkipChain, nn.Identity, nn.Flatten), ()),
    **{Select: ("dim",), CompressedLinear: ("inputs",)},
    **ELEMENTWISE,
    **POOLING,
    **_WEIGHTED,
}
_BY_NAME = {kind.__name__: kind for kind in _ARGUMENTS}


def copy_without_tensors(like: nn.Module) -> nn.Module:
    """Return a new module with the type and arguments of a module without tensors."""
    return type(like)(**_arguments(like))


def build_weighted(kind: type[nn.Module], weight: Tensor, bias: Tensor | None, **arguments: Any) -> nn.Module:
    """Return a linear map or convolution with these weights and arguments; its sizes are those of the weights."""
    layer: Any
    if kind is nn.Linear:
        # created with one column, since torch warns about layers with none
        layer = nn.Linear(1, weight.shape[0], bias is not None, device="meta", **arguments)
        layer.in_features = weight.shape[1]
    else:
        sizes = (weight.shape[1] * arguments["groups"], weight.shape[0], tuple(weight.shape[2:]))
        layer = kind(*sizes, bias=bias is not None, device="meta", **arguments)
    layer.weight = nn.Parameter(weight, requires_grad=False)
    layer.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
    return cast(nn.Module, layer)


def save_sparse(network: nn.Module, folder: io.PathLike, report: Mapping[str, Any] | None = None) -> None:
    """Save a network from :func:`~fathomless.families.sparse.export.to_sparse` in a compact format.

    Each layer is stored as its nonzero weights and their positions: one bit per entry, or one byte per gap, whichever
    is shorter.

    Parameters
    ----------
    network : nn.Module
        Network of the modules supported here.
    folder : path
        As for :func:`fathomless.system.io.save`.
    report : mapping, optional
        Report to save with the network.

    Raises
    ------
    DataError
        If a module is of another type.
    FileError
        If the folder cannot be written.
    """
    tensors: dict[str, Tensor] = {}
    meta = {"network": _describe(network, "network", tensors), "report": report}
    io.save(folder, kind=KIND, tensors=tensors, meta=meta)


def load_sparse(folder: io.PathLike) -> nn.Module:
    """Load a network saved by :func:`save_sparse`; its outputs are bit-identical.

    Raises
    ------
    FileError
        If the folder does not exist, or its files were altered or truncated.
    """
    saved = io.load(folder, kinds={KIND})
    try:
        return _build(saved.meta["network"], "network", saved.tensors).eval()
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise FileError(
            f"{folder} describes a network that cannot be built ({type(error).__name__}: {error}); it was written by "
            "another version of fathomless, or altered: upgrade fathomless, or save the network again"
        ) from error


# -------------------------------------------------------------------------------- modules as JSON, and back


def _arguments(module: nn.Module) -> dict[str, Any]:
    return {name: getattr(module, name) for name in _ARGUMENTS[type(module)]}


def _describe(module: nn.Module, path: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Return the description of a module in JSON values; add its tensors to `tensors`."""
    if type(module) not in _ARGUMENTS:
        raise DataError(
            f"{path} is a {type(module).__name__}, which cannot be saved; allowed are {', '.join(sorted(_BY_NAME))}"
        )
    description: dict[str, Any] = {"type": type(module).__name__, "arguments": _arguments(module)}
    parts: dict[str, Tensor | None] = {}
    if isinstance(module, Select):
        parts = {"columns": module.columns}
    elif isinstance(module, CompressedLinear):
        parts = {**_pack(module.starts, module.columns, module.values, module.inputs), "bias": module.bias}
    elif type(module) in _WEIGHTED:
        weight = cast(Tensor, module.weight)
        parts = {**_pack(*_compress(weight.flatten(1)), weight[0].numel()), "bias": cast(Tensor | None, module.bias)}
        description["shape"] = tuple(weight.shape)
    tensors |= {f"{path}.{name}": tensor for name, tensor in parts.items() if tensor is not None}
    inner = module if isinstance(module, nn.Sequential) else module.children()  # children() skips repeated modules
    return {**description, "children": [_describe(child, f"{path}.{i}", tensors) for i, child in enumerate(inner)]}


def _build(description: Mapping[str, Any], path: str, tensors: Mapping[str, Tensor]) -> nn.Module:
    """Build a module from a description by :func:`_describe`."""
    kind = _BY_NAME[description["type"]]
    arguments: dict[str, Any] = dict(description["arguments"])
    arguments |= {name: tuple(value) for name, value in arguments.items() if isinstance(value, list)}
    parts = {name.removeprefix(f"{path}."): tensor for name, tensor in tensors.items() if name.startswith(f"{path}.")}
    if kind in (nn.Sequential, SkipChain):
        children = [_build(child, f"{path}.{i}", tensors) for i, child in enumerate(description["children"])]
        return cast(nn.Module, cast(Any, kind)(*children))
    if kind is Select:
        return Select(parts["columns"], **arguments)
    if kind is CompressedLinear:
        return CompressedLinear(*_unpack(parts, len(parts["bias"]), arguments["inputs"]), parts["bias"], **arguments)
    if kind not in _WEIGHTED:
        return kind(**arguments)
    shape = torch.Size(description["shape"])
    starts, columns, values = _unpack(parts, shape[0], shape[1:].numel())
    weight = values.new_zeros(shape).flatten(1)
    weight[torch.arange(shape[0], device=starts.device).repeat_interleave(starts.diff()), columns] = values
    return build_weighted(kind, weight.reshape(shape), parts.get("bias"), **arguments)


def _compress(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return starts, columns and values of the compressed rows of a matrix."""
    nonzero = weight != 0
    starts = F.pad(nonzero.sum(1).cumsum(0), (1, 0))
    return starts, nonzero.nonzero()[:, 1], weight.detach()[nonzero]


def _pack(starts: Tensor, columns: Tensor, values: Tensor, width: int) -> dict[str, Tensor]:
    """Return values and their positions in the fewest bytes: one byte per gap between them, or one bit per entry.

    A gap byte of 255 stands for 255 zeros; the next byte continues the gap.
    """
    size = (len(starts) - 1) * width
    if len(values) == size:
        return {"values": values}
    rows = torch.arange(len(starts) - 1, device=starts.device).repeat_interleave(starts.diff())
    places = (rows * width + columns).cpu().numpy()
    whole, rest = np.divmod(np.diff(places, prepend=-1) - 1, 255)
    if len(places) + whole.sum() < -(-size // 8):
        gaps = np.full(len(places) + whole.sum(), 255, np.uint8)
        gaps[np.cumsum(whole + 1) - 1] = rest
        return {"values": values, "gaps": torch.as_tensor(gaps, device="cpu")}
    nonzero = np.zeros(size, bool)
    nonzero[places] = True
    return {"values": values, "mask": torch.as_tensor(np.packbits(nonzero), device="cpu")}


def _unpack(parts: Mapping[str, Tensor], rows: int, width: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return starts, columns and values, the inverse of :func:`_pack`."""
    values = parts["values"]
    nonzero = np.ones(rows * width, bool)
    if "gaps" in parts:
        gaps = parts["gaps"].numpy()
        nonzero[:] = False
        nonzero[np.cumsum(np.where(gaps < 255, gaps.astype(np.int64) + 1, 255))[gaps < 255] - 1] = True
    elif "mask" in parts:
        nonzero = np.unpackbits(parts["mask"].numpy(), count=rows * width)
    starts, columns, _ = _compress(torch.as_tensor(nonzero.reshape(rows, width), device="cpu"))
    if not (len(starts) == rows + 1 and int(starts[-1]) == len(columns) == len(values)):
        raise ValueError(f"{len(values)} weights for {len(columns)} places in {rows} rows")
    return starts, columns, values
