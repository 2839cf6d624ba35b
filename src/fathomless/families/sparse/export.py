"""Export of the median probability model as a compact plain network.

Weights that are not included, or not on a path from an input to an output, are removed. Units that become constant are
folded into the biases of the next layer. Unused units and columns of inputs are removed. The result consists of
ordinary torch modules; of this library it needs only :mod:`fathomless.families.sparse.plain`.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from fathomless.families.sparse.model import SparseNetwork
from fathomless.families.sparse.paths import Chain, Link, read_chain
from fathomless.families.sparse.plain import (
    ELEMENTWISE,
    POOLING,
    CompressedLinear,
    Select,
    SkipChain,
    build_weighted,
    copy_without_tensors,
    save_sparse,
)
from fathomless.nn.bayesian import Bayesian, sparse_layers
from fathomless.nn.layers import BayesianLayer
from fathomless.nn.sparse_layer import SpikeSlab
from fathomless.system import checks, io

__all__ = ["ExportReport", "LayerReport", "SparseExport", "to_sparse"]

# compressed rows are faster from about ten rows of x on: benchmarks/sparse_products.py
_LARGE, _SPARSE = 2**17, 0.1
_CONVOLUTIONS = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}  # by number of axes of the weight
_PLAIN = {*ELEMENTWISE, *POOLING, nn.Flatten}


@dataclass(frozen=True)
class LayerReport:
    """Sizes of one layer before and after an export.

    Attributes
    ----------
    name : str
        Name of the layer.
    format : {"dense", "csr", "convolution", "none"}
        Storage of the weights; "none" if the whole layer was removed.
    inputs, units : (int, int)
        Numbers of input and output columns, or channels, before and after.
    weights, kept : int
        Number of weights before, and of nonzero weights after.
    """

    name: str
    format: str
    inputs: tuple[int, int]
    units: tuple[int, int]
    weights: int
    kept: int


@dataclass(frozen=True)
class ExportReport:
    """Sizes before and after an export, and its agreement with the original network.

    Attributes
    ----------
    layers : tuple of LayerReport
        Layers in order.
    inputs : tuple of int
        Indices of the inputs in use: columns of the first layer, or its channels.
    bytes_trained, bytes_dense, bytes : int
        Sizes in bytes of the parameters of the trained network (means, scales, logits and flows), of a plain network of
        the same shape, and of all tensors of the export.
    multiply_adds : (int, int) or None
        Multiply-add operations for one row, before and after, without biases. None for convolutions without an example,
        since their output size is unknown.
    difference : float or None
        Largest absolute difference from the outputs of the original network on the example.
    agreement : float or None
        Share of rows of the example with the same largest output; None for a single output.
    """

    layers: tuple[LayerReport, ...]
    inputs: tuple[int, ...]
    bytes_trained: int
    bytes_dense: int
    bytes: int
    multiply_adds: tuple[int, int] | None
    difference: float | None = None
    agreement: float | None = None

    @property
    def kept(self) -> int:
        """Number of nonzero weights, without biases."""
        return sum(layer.kept for layer in self.layers)

    @property
    def density(self) -> float:
        """Share of the weights that are kept."""
        return self.kept / sum(layer.weights for layer in self.layers)

    @property
    def summary(self) -> str:
        """Summary in one line."""
        units = "-".join(str(layer.units[1]) for layer in self.layers[:-1])
        return (
            f"{self.kept:,} weights (density {self.density:.3g}), {len(self.inputs)} of {self.layers[0].inputs[0]} "
            f"inputs" + (f", hidden units {units}" if units else "") + f"; {self.bytes:,} bytes instead of "
            f"{self.bytes_dense:,} ({self.bytes_trained:,} in training)"
        )


@dataclass(frozen=True, eq=False)
class SparseExport:
    """Plain network with a report of the export.

    Attributes
    ----------
    network : nn.Module
        Network with the same inputs as the original network. Its parameters do not require gradients. It can be copied,
        moved, converted, exported and trained further like any other module; removed weights stay removed.
    report : ExportReport
        Sizes before and after.
    """

    network: nn.Module
    report: ExportReport

    def save(self, folder: io.PathLike) -> None:
        """Save the export as a folder; :func:`fathomless.families.sparse.plain.load_sparse` returns the network.

        Raises
        ------
        FileError
            If the folder cannot be written.
        """
        save_sparse(self.network, folder, asdict(self.report))


@torch.no_grad()
def to_sparse(
    network: nn.Module, *, predict_by: str = "median", format: str = "auto", example: Tensor | None = None
) -> SparseExport:
    """Return the median probability model of a network, with posterior means of weights, as a compact plain network.

    Its outputs equal those of the network in evaluation with ``predict_by="median"`` and ``use_means=True``, up to
    rounding.

    Parameters
    ----------
    network : nn.Module
        A chain as accepted by :func:`~fathomless.families.sparse.paths.read_chain`. It is not modified.
    predict_by : {"median", "average"}
        Keep the weights with α > ½; or all weights, at their posterior means αμ.
    format : {"auto", "dense", "csr"}
        Format of linear maps: dense matrices of the reduced size, or compressed rows. "auto" uses compressed rows for
        matrices of at least 131,072 entries (362 × 362) with at most 10 % nonzero. Convolutions stay dense.
    example : Tensor, shape (B, ...), optional
        Inputs on which the export is compared with the original network.

    Raises
    ------
    DataError
        If the network is not a chain, or an option is invalid.

    Notes
    -----
    The rule for "auto" is from ``benchmarks/sparse_products.py``, on one CPU thread. At 400 × 784 and 600 × 400 and
    density 0.1, compressed rows are 2.0 to 2.5 times as fast as a dense map for 100 rows of x, 1.3 times for 1000, and
    equally fast for 10. At density 0.02 the factors are 3.5 to 3.8, 2.0 to 3.8 and 1.4. They break even near density
    0.2 for many rows. For a single row they take two to three times as long, 0.1 to 0.2 ms more: choose "dense" if rows
    are predicted one at a time. At 200 × 200 they are faster from 100 rows on, at 64 × 64 never.

    A constant channel of a convolution is folded only if padding and pooling keep it constant at the border. Grouped
    convolutions keep all channels.

    Examples
    --------
    >>> from fathomless.nn.bayesian import bayesian
    >>> network = bayesian(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)))
    >>> network.module[0].layer.weight.logit.data = torch.tensor([[1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]])
    >>> to_sparse(network).network
    Sequential(
      (0): Select()
      (1): Linear(in_features=1, out_features=1, bias=True)
      (2): ReLU()
      (3): Linear(in_features=1, out_features=1, bias=True)
    )
    """
    checks.choice("predict_by", predict_by, ("median", "average"))
    checks.choice("format", format, ("auto", "dense", "csr"))
    fixed = copy.deepcopy(network).eval()
    for _, layer in sparse_layers(fixed):
        layer.predict_by, layer.use_means = predict_by, True
    chain = read_chain(fixed)
    if predict_by == "average":
        links = [replace(link, included=torch.ones_like(link.included)) for link in chain.links]
        chain = replace(chain, links=tuple(links))
    cuts = _fold_constants(chain)
    small, layers, inputs = _assemble(chain, cuts, _find_needed(chain, cuts), format)
    outputs = positions = None
    if example is not None:
        outputs, positions = _run_example(fixed, chain.links, example)
    report = ExportReport(
        layers=tuple(_report_layer(*pair) for pair in zip(chain.links, layers, strict=True)),
        inputs=tuple(inputs.nonzero().flatten().tolist()),
        bytes_trained=_count_bytes(network.parameters()),
        bytes_dense=_count_bytes(tensor for cut in cuts for tensor in (cut.weight, cut.bias)),
        bytes=_count_bytes([*small.parameters(), *small.buffers()]),
        multiply_adds=_count_multiply_adds(chain.links, layers, positions),
    )
    if example is not None and outputs is not None:
        exported = small(example)
        several = outputs.shape[1] > 1
        agreement = float((exported.argmax(1) == outputs.argmax(1)).double().mean()) if several else None
        report = replace(report, difference=float((exported - outputs).abs().max()), agreement=agreement)
    return SparseExport(small, report)


# ------------------------------------------------------------------------------------------ what can be removed


@dataclass(frozen=True, eq=False)
class _Cut:
    """Layer of the original size: weights kept, biases with folded constants, mask and connections of the weights."""

    weight: Tensor
    bias: Tensor
    there: Tensor
    joins: Tensor


def _fold_constants(chain: Chain) -> list[_Cut]:
    """Go forward: fold constant sources into biases, and remove their weights."""
    cuts: list[_Cut] = []
    varies = first = torch.ones_like(
        chain.links[0].connections(chain.links[0].included)[0]
    )  # True for sources that depend on the inputs
    value = first * 0.0
    for link in chain.links:
        weight, bias = link.layer.mean_weights() if isinstance(link.layer, SpikeSlab) else _plain_weights(link.layer)
        if cuts:
            value, steady = _propagate_constants(link, value)
            varies = varies | ~steady
        if link.skip:
            varies, value = torch.cat([varies, first]), torch.cat([value, value.new_zeros(link.skip)])
        value = torch.where(varies, 0.0, value)
        present = link.included & link.spread(varies)
        constant = (weight.double() * link.included * link.spread(value)).flatten(1).sum(1)
        bias = (constant if bias is None else bias + constant).to(weight.dtype)
        cuts.append(
            _Cut(torch.where(present, weight, 0.0) + 0.0, bias, present, link.connections(present))
        )  # + 0.0: no −0
        varies = cuts[-1].joins.any(1)
        value = torch.where(varies, 0.0, bias)
    return cuts


def _plain_weights(layer: nn.Module) -> tuple[Tensor, Tensor | None]:
    return cast(Tensor, layer.weight), cast(Tensor | None, layer.bias)


def _propagate_constants(link: Link, value: Tensor) -> tuple[Tensor, Tensor]:
    """Propagate constants to a layer; return them with a mask of those that stay constant, also at borders."""
    steady = torch.ones_like(value, dtype=torch.bool)
    for module in link.before:
        if type(module) in ELEMENTWISE:
            value = module(value)
        elif isinstance(module, nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d):
            divisor = None if isinstance(module, nn.AvgPool1d) else module.divisor_override
            bordered = _has_other_than(module.padding) and module.count_include_pad
            steady &= (value == 0.0) | (divisor is None and not bordered)
        elif isinstance(module, nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d):
            # a dilated window may contain only padding, which is −∞
            steady &= not (_has_other_than(module.padding) and _has_other_than(module.dilation, 1))
    if (
        link.geometry is not None
        and link.geometry["padding_mode"] == "zeros"
        and _has_other_than(link.geometry["padding"])
    ):
        steady &= value == 0.0
    return value, steady


def _has_other_than(numbers: int | str | Sequence[int], usual: int = 0) -> bool:
    """Return True if an argument of a convolution or pooling differs from `usual` on some axis."""
    if isinstance(numbers, str):
        return numbers != "valid"
    return any(number != usual for number in ([numbers] if isinstance(numbers, int) else numbers))


def _find_needed(chain: Chain, cuts: list[_Cut]) -> list[Tensor]:
    """Go backward: return masks of the sources that each layer keeps, and of the outputs of the last layer (all)."""
    needed = torch.ones_like(cuts[-1].bias, dtype=torch.bool)
    kept = [needed]
    for i, (link, cut) in reversed(list(enumerate(zip(chain.links, cuts, strict=True)))):
        used = (cut.joins & needed[:, None]).any(0)
        if link.groups > 1 or (i and chain.links[i - 1].groups > 1):
            used = torch.ones_like(used)
        if link.geometry is not None and not used.any():  # torch has no convolution without channels
            used[0] = True
        kept.append(used)
        needed = used[: len(used) - link.skip]
    return kept[::-1]


# ---------------------------------------------------------------------------------------------- plain modules


def _assemble(
    chain: Chain, cuts: list[_Cut], kept: list[Tensor], format: str
) -> tuple[nn.Module, list[nn.Module | None], Tensor]:
    """Return the network, its layers (None for removed ones), and a mask of the inputs in use."""
    links = chain.links
    everything = range(len(cuts))
    inputs = torch.zeros_like(cuts[0].joins[0])
    # the first layer that needs no output of the previous one; layers before it have no effect
    start = max((i for i in everything[1:] if not kept[i][: len(cuts[i - 1].bias)].any()), default=0)
    rows = [kept[i + 1][: len(cuts[i].bias)] for i in everything]
    wanted = [kept[i] if links[i].geometry else cuts[i].there[rows[i]].any(0) for i in everything]
    layers = [_layer(links[i], cuts[i], rows[i], wanted[i], format) if i >= start else None for i in everything]
    for i in everything:
        if i == 0 or links[i].skip:
            inputs |= (cuts[i].joins & rows[i][:, None]).any(0)[-len(inputs) :]
    parts = _copy_plain(links[0].before)
    if links[-1].skip:
        picks = [_select(columns[-len(inputs) :], torch.ones_like(inputs)) for columns in wanted[start:]]
        rest = [layer for layer in layers if layer is not None]
        several = [SkipChain(nn.Sequential(*picks), nn.Sequential(*rest), *_copy_plain(links[-1].before))]
        parts += several if len(rest) > 1 else [*picks, *rest]
    elif start:
        flat = links[0].geometry is not None or any(isinstance(part, nn.Flatten) for part in parts)
        parts = [nn.Flatten()] if flat else []
    for i in everything[start:] if not links[-1].skip else ():
        present = links[i].spread(kept[i])[0] if links[i].geometry is None else kept[i]
        if i == start:
            present = torch.ones_like(present)
        else:
            parts += _copy_plain(links[i].before)
        parts += [_select(wanted[i], present, -1 if links[i].geometry is None else 1 - cuts[i].weight.ndim)]
        parts += [layer for layer in layers[i : i + 1] if layer is not None]
    parts += _copy_plain(chain.after)
    return nn.Sequential(*(part for part in parts if not isinstance(part, nn.Identity))).eval(), layers, inputs


def _copy_plain(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Copy modules without weights, except dropout, which has no effect in evaluation."""
    return [copy_without_tensors(module) for module in modules if type(module) in _PLAIN]


def _layer(link: Link, cut: _Cut, rows: Tensor, wanted: Tensor, format: str) -> nn.Module:
    """Return a layer reduced to the outputs and sources that are kept."""
    weight, bias = cut.weight[rows], cut.bias[rows]
    if link.geometry is not None:
        weight = weight if link.groups > 1 else weight[:, wanted]
        return build_weighted(_CONVOLUTIONS[weight.ndim], weight, bias, **link.geometry)
    weight = weight[:, wanted]
    sparse = weight.numel() >= _LARGE and weight.count_nonzero() <= _SPARSE * weight.numel()
    if weight.numel() and (format == "csr" or (format == "auto" and sparse)):
        return CompressedLinear.of(weight, bias)
    return build_weighted(nn.Linear, weight, bias)


def _select(wanted: Tensor, present: Tensor, dim: int = -1) -> nn.Module:
    """Return a module that selects the `wanted` entries from those `present`."""
    if torch.equal(wanted, present):
        return nn.Identity()
    return Select(wanted[present].nonzero().flatten(), dim)


# ------------------------------------------------------------------------------------------------------ report


def _run_example(fixed: nn.Module, links: Sequence[Link], example: Tensor) -> tuple[Tensor, dict[str, int]]:
    """Run the original network; return its outputs, and the number of output positions of each convolution."""
    positions = {}

    def note(link: Link, _: nn.Module, __: object, output: Tensor | tuple[Tensor, Tensor]) -> None:
        values = output[0] if isinstance(output, tuple) else output
        positions[link.name] = values.shape[2 - link.included.ndim :].numel()

    for link in links:
        if link.geometry is not None:
            link.layer.register_forward_hook(partial(note, link))
    whole = fixed.network if isinstance(fixed, SparseNetwork) else fixed
    whole = whole if isinstance(whole, BayesianLayer) else Bayesian(whole)
    # with use_means the outputs do not depend on the generator
    outputs, _ = whole(example, torch.Generator().manual_seed(0))
    return outputs, positions


def _report_layer(link: Link, layer: nn.Module | None) -> LayerReport:
    inputs = link.included.shape[1] * link.groups
    weights = link.included.numel()
    format = "none"
    after = (0, 0)
    kept = 0
    if isinstance(layer, CompressedLinear):
        format = "csr"
        after = (layer.inputs, len(layer.bias))
        kept = len(layer.values)
    elif layer is not None:
        weight = layer.get_parameter("weight")
        format = "convolution" if link.geometry else "dense"
        after = (weight.shape[1] * link.groups, len(weight))
        kept = int(weight.count_nonzero())
    return LayerReport(link.name, format, (inputs, after[0]), (len(link.included), after[1]), weights, kept)


def _count_multiply_adds(
    links: Sequence[Link], layers: list[nn.Module | None], positions: Mapping[str, int] | None
) -> tuple[int, int] | None:
    before = after = 0
    for link, layer in zip(links, layers, strict=True):
        if link.geometry is not None and positions is None:
            return None
        times = 1 if link.geometry is None or positions is None else positions[link.name]
        before += times * link.included.numel()
        if layer is not None:
            held = layer.values if isinstance(layer, CompressedLinear) else layer.get_parameter("weight")
            after += times * held.numel()
    return before, after


def _count_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
