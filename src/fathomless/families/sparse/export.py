"""The median probability model as a small plain network.

Weights that are not included, or that lie on no path from an input to an output, are left out. Units that become
constants by this are folded into the biases of the next layer, units that nothing uses are removed, and so are columns
of inputs. What remains are ordinary modules of torch, which need nothing of this library but
:mod:`fathomless.families.sparse.plain`.
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
    plain,
    save_sparse,
    weighted,
)
from fathomless.nn.bayesian import Bayesian, sparse_layers
from fathomless.nn.layers import BayesianLayer
from fathomless.nn.sparse_layer import SpikeSlab
from fathomless.system import checks, io

__all__ = ["ExportReport", "LayerReport", "SparseExport", "to_sparse"]

# compressed rows are faster for ten rows of x and more: benchmarks/sparse_products.py
_LARGE, _SPARSE = 2**17, 0.1
_CONVOLUTIONS = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}  # by axes of the weight
_PLAIN = {*ELEMENTWISE, *POOLING, nn.Flatten}


@dataclass(frozen=True)
class LayerReport:
    """One layer before and after.

    Attributes
    ----------
    name : str
        The layer.
    format : {"dense", "csr", "convolution", "none"}
        How its weights are held; "none" if the whole layer was left out.
    inputs, units : (int, int)
        Columns, or channels, that it sees and that it returns.
    weights, kept : int
        Weights before, and those that are not 0 after.
    """

    name: str
    format: str
    inputs: tuple[int, int]
    units: tuple[int, int]
    weights: int
    kept: int


@dataclass(frozen=True)
class ExportReport:
    """What an export saved, and whether it agrees with what it was made of.

    Attributes
    ----------
    layers : tuple of LayerReport
        In order.
    inputs : tuple of int
        Positions of the inputs that are used: columns of the first layer, or its channels.
    bytes_trained, bytes_dense, bytes : int
        Of the parameters of the trained network (means, scales, logits and flows), of a plain network of the same
        size, and of all tensors of the export.
    multiply_adds : (int, int) or None
        For one row, before and after, biases apart. None where there are convolutions and no example to tell the size
        of what they return.
    difference : float or None
        Largest absolute difference from the network that the export was made of, on the example.
    agreement : float or None
        Share of the example whose largest output is the same; None for a single output.
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
        """Weights that are not 0. Biases do not count."""
        return sum(layer.kept for layer in self.layers)

    @property
    def density(self) -> float:
        """Share of the weights that are kept."""
        return self.kept / sum(layer.weights for layer in self.layers)

    @property
    def summary(self) -> str:
        """One line."""
        units = "-".join(str(layer.units[1]) for layer in self.layers[:-1])
        return (
            f"{self.kept:,} weights (density {self.density:.3g}), {len(self.inputs)} of {self.layers[0].inputs[0]} "
            f"inputs" + (f", hidden units {units}" if units else "") + f"; {self.bytes:,} bytes in place of "
            f"{self.bytes_dense:,} ({self.bytes_trained:,} in training)"
        )


@dataclass(frozen=True, eq=False)
class SparseExport:
    """A plain network and how it came about.

    Attributes
    ----------
    network : nn.Module
        Takes the inputs that the original network takes. Its parameters ask for no gradients; it may be copied, moved,
        converted, exported and trained on like any other module, in which what was left out stays left out.
    report : ExportReport
        Sizes before and after.
    """

    network: nn.Module
    report: ExportReport

    def save(self, folder: io.PathLike) -> None:
        """Save it as a folder; :func:`fathomless.families.sparse.plain.load_sparse` returns the network.

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
    """Return the median probability model of a network, with the means of its weights, as a small plain network.

    Its outputs are those of the network in evaluation with ``predict_by="median"`` and ``use_means=True``, to rounding.

    Parameters
    ----------
    network : nn.Module
        A chain, as :func:`~fathomless.families.sparse.paths.read_chain` reads it. It is not changed.
    predict_by : {"median", "average"}
        Keep the weights with α > ½; or all, at their posterior means αμ.
    format : {"auto", "dense", "csr"}
        Of linear maps: dense ones of the size that remains; or compressed rows. "auto" takes compressed rows for at
        least 131,072 places (362 × 362) of which at most 10 % are filled. Convolutions stay dense.
    example : Tensor, shape (B, ...), optional
        Inputs on which both are compared.

    Raises
    ------
    DataError
        If the network is not a chain, or for other options.

    Notes
    -----
    The rule for "auto" is from ``benchmarks/sparse_products.py``, on one CPU thread. At 400 × 784 and 600 × 400 and
    density 0.1, compressed rows are 2.0 to 2.5 times as fast as a dense map for 100 rows of x, 1.3 times for 1000, and
    as fast for 10; at density 0.02, 3.5 to 3.8, 2.0 to 3.8 and 1.4 times; they break even near 0.2 for many rows. For
    a single row they take two to three times as long, 0.1 to 0.2 ms more: choose "dense" if rows come one by one. At
    200 × 200 they gain from 100 rows on, at 64 × 64 never.

    A channel of a convolution that is a constant is folded only if padding and pooling leave it one at the border.
    Grouped convolutions keep all channels.

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
    cuts = _folded(chain)
    small, layers, inputs = _assembled(chain, cuts, _kept(chain, cuts), format)
    outputs, positions = (None, None) if example is None else _outputs(fixed, chain.links, example)
    report = ExportReport(
        layers=tuple(_layer_report(*pair) for pair in zip(chain.links, layers, strict=True)),
        inputs=tuple(inputs.nonzero().flatten().tolist()),
        bytes_trained=_bytes(network.parameters()),
        bytes_dense=_bytes(tensor for cut in cuts for tensor in (cut.weight, cut.bias)),
        bytes=_bytes([*small.parameters(), *small.buffers()]),
        multiply_adds=_multiply_adds(chain.links, layers, positions),
    )
    if example is not None and outputs is not None:
        own, several = small(example), outputs.shape[1] > 1
        agreement = float((own.argmax(1) == outputs.argmax(1)).double().mean()) if several else None
        report = replace(report, difference=float((own - outputs).abs().max()), agreement=agreement)
    return SparseExport(small, report)


# ------------------------------------------------------------------------------------------ what can be left out


@dataclass(frozen=True, eq=False)
class _Cut:
    """One layer, of its first size: weights that stay, biases with constants folded in, what the weights join."""

    weight: Tensor
    bias: Tensor
    there: Tensor
    joins: Tensor


def _folded(chain: Chain) -> list[_Cut]:
    """Go forward: fold sources that are constants into biases, and leave out their weights."""
    cuts: list[_Cut] = []
    varies = first = torch.ones_like(chain.links[0].connections(chain.links[0].included)[0])  # of every source
    value = first * 0.0
    for link in chain.links:
        weight, bias = link.layer.mean_weights() if isinstance(link.layer, SpikeSlab) else _plain_weights(link.layer)
        if cuts:
            value, steady = _through(link, value)
            varies = varies | ~steady
        if link.skip:
            varies, value = torch.cat([varies, first]), torch.cat([value, value.new_zeros(link.skip)])
        value = torch.where(varies, 0.0, value)
        there = link.included & link.spread(varies)
        constant = (weight.double() * link.included * link.spread(value)).flatten(1).sum(1)
        bias = (constant if bias is None else bias + constant).to(weight.dtype)
        cuts.append(_Cut(torch.where(there, weight, 0.0) + 0.0, bias, there, link.connections(there)))  # no −0
        varies = cuts[-1].joins.any(1)
        value = torch.where(varies, 0.0, bias)
    return cuts


def _plain_weights(layer: nn.Module) -> tuple[Tensor, Tensor | None]:
    return cast(Tensor, layer.weight), cast(Tensor | None, layer.bias)


def _through(link: Link, value: Tensor) -> tuple[Tensor, Tensor]:
    """Take constants to a layer; return them, and which of them it sees as constants, at its borders too."""
    steady = torch.ones_like(value, dtype=torch.bool)
    for module in link.before:
        if type(module) in ELEMENTWISE:
            value = module(value)
        elif isinstance(module, nn.AvgPool1d | nn.AvgPool2d | nn.AvgPool3d):
            divisor = None if isinstance(module, nn.AvgPool1d) else module.divisor_override
            bordered = _any(module.padding) and module.count_include_pad
            steady &= (value == 0.0) | (divisor is None and not bordered)
        elif isinstance(module, nn.MaxPool1d | nn.MaxPool2d | nn.MaxPool3d):
            # a window with gaps may see nothing but padding, which is −∞
            steady &= not (_any(module.padding) and _any(module.dilation, 1))
    if link.geometry is not None and link.geometry["padding_mode"] == "zeros" and _any(link.geometry["padding"]):
        steady &= value == 0.0
    return value, steady


def _any(numbers: int | str | Sequence[int], usual: int = 0) -> bool:
    """Whether a number of a convolution or of pooling, one for each axis, is not the usual one."""
    if isinstance(numbers, str):
        return numbers != "valid"
    return any(number != usual for number in ([numbers] if isinstance(numbers, int) else numbers))


def _kept(chain: Chain, cuts: list[_Cut]) -> list[Tensor]:
    """Go backward: return which sources each layer keeps, and which outputs the last one does, namely all."""
    kept, needed = [], torch.ones_like(cuts[-1].bias, dtype=torch.bool)
    kept.append(needed)
    for i, (link, cut) in reversed(list(enumerate(zip(chain.links, cuts, strict=True)))):
        used = (cut.joins & needed[:, None]).any(0)
        if link.groups > 1 or (i and chain.links[i - 1].groups > 1):
            used = torch.ones_like(used)
        if link.geometry is not None and not used.any():  # there is no convolution of no channels
            used[0] = True
        kept.append(used)
        needed = used[: len(used) - link.skip]
    return kept[::-1]


# ---------------------------------------------------------------------------------------------- plain modules


def _assembled(
    chain: Chain, cuts: list[_Cut], kept: list[Tensor], format: str
) -> tuple[nn.Module, list[nn.Module | None], Tensor]:
    """Return the network, what each layer became (None for those that were left out), and the inputs that are used."""
    links, everything, inputs = chain.links, range(len(cuts)), torch.zeros_like(cuts[0].joins[0])
    # the network starts where nothing that comes before has an effect
    start = max((i for i in everything[1:] if not kept[i][: len(cuts[i - 1].bias)].any()), default=0)
    rows = [kept[i + 1][: len(cuts[i].bias)] for i in everything]
    wanted = [kept[i] if links[i].geometry else cuts[i].there[rows[i]].any(0) for i in everything]
    layers = [_layer(links[i], cuts[i], rows[i], wanted[i], format) if i >= start else None for i in everything]
    for i in everything:
        if i == 0 or links[i].skip:
            inputs |= (cuts[i].joins & rows[i][:, None]).any(0)[-len(inputs) :]
    parts = _plain(links[0].before)
    if links[-1].skip:
        picks = [_selection(columns[-len(inputs) :], torch.ones_like(inputs)) for columns in wanted[start:]]
        own = [layer for layer in layers if layer is not None]
        several = [SkipChain(nn.Sequential(*picks), nn.Sequential(*own), *_plain(links[-1].before))]
        parts += several if len(own) > 1 else [*picks, *own]
    elif start:
        flat = links[0].geometry is not None or any(isinstance(part, nn.Flatten) for part in parts)
        parts = [nn.Flatten()] if flat else []
    for i in everything[start:] if not links[-1].skip else ():
        there = links[i].spread(kept[i])[0] if links[i].geometry is None else kept[i]
        if i == start:
            there = torch.ones_like(there)
        else:
            parts += _plain(links[i].before)
        parts += [_selection(wanted[i], there, -1 if links[i].geometry is None else 1 - cuts[i].weight.ndim)]
        parts += [layer for layer in layers[i : i + 1] if layer is not None]
    parts += _plain(chain.after)
    return nn.Sequential(*(part for part in parts if not isinstance(part, nn.Identity))).eval(), layers, inputs


def _plain(modules: Iterable[nn.Module]) -> list[nn.Module]:
    """Copy modules without weights; dropout does nothing in evaluation."""
    return [plain(module) for module in modules if type(module) in _PLAIN]


def _layer(link: Link, cut: _Cut, rows: Tensor, wanted: Tensor, format: str) -> nn.Module:
    """Cut a layer down to the outputs and sources that are kept."""
    weight, bias = cut.weight[rows], cut.bias[rows]
    if link.geometry is not None:
        weight = weight if link.groups > 1 else weight[:, wanted]
        return weighted(_CONVOLUTIONS[weight.ndim], weight, bias, **link.geometry)
    weight = weight[:, wanted]
    sparse = weight.numel() >= _LARGE and weight.count_nonzero() <= _SPARSE * weight.numel()
    if weight.numel() and (format == "csr" or (format == "auto" and sparse)):
        return CompressedLinear.of(weight, bias)
    return weighted(nn.Linear, weight, bias)


def _selection(wanted: Tensor, there: Tensor, dim: int = -1) -> nn.Module:
    """Select those that are wanted of those that are there."""
    if torch.equal(wanted, there):
        return nn.Identity()
    return Select(wanted[there].nonzero().flatten(), dim)


# ------------------------------------------------------------------------------------------------------ report


def _outputs(fixed: nn.Module, links: Sequence[Link], example: Tensor) -> tuple[Tensor, dict[str, int]]:
    """Run the network that the export is made of; return also the positions that each convolution returns."""
    positions = {}

    def note(link: Link, _: nn.Module, __: object, output: Tensor | tuple[Tensor, Tensor]) -> None:
        own = output[0] if isinstance(output, tuple) else output
        positions[link.name] = own.shape[2 - link.included.ndim :].numel()

    for link in links:
        if link.geometry is not None:
            link.layer.register_forward_hook(partial(note, link))
    whole = fixed.network if isinstance(fixed, SparseNetwork) else fixed
    whole = whole if isinstance(whole, BayesianLayer) else Bayesian(whole)
    # nothing is drawn that the outputs depend on
    outputs, _ = whole(example, torch.Generator().manual_seed(0))
    return outputs, positions


def _layer_report(link: Link, layer: nn.Module | None) -> LayerReport:
    inputs, weights = link.included.shape[1] * link.groups, link.included.numel()
    format, after, kept = "none", (0, 0), 0
    if isinstance(layer, CompressedLinear):
        format, after, kept = "csr", (layer.inputs, len(layer.bias)), len(layer.values)
    elif layer is not None:
        weight = layer.get_parameter("weight")
        format, kept = "convolution" if link.geometry else "dense", int(weight.count_nonzero())
        after = (weight.shape[1] * link.groups, len(weight))
    return LayerReport(link.name, format, (inputs, after[0]), (len(link.included), after[1]), weights, kept)


def _multiply_adds(
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


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)
