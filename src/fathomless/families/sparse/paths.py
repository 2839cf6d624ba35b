r"""Active paths: the weights of the median probability model on a path from an input to an output.

The effect of an included weight may not depend on the inputs: its source may be a constant, or its target may have no
path to an output. With boolean connections C of each layer,

.. math:: \text{reached}_l = C_l\, \text{reached}_{l-1}, \qquad
          \text{needed}_{l-1} = C_l^\top\, \text{needed}_l,

and a weight is active if its source is reached and its target is needed. For a convolution, C connects channels: it
is 1 if any weight of the kernel is included.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from fathomless.families.sparse.model import InputSkip, SparseNetwork
from fathomless.families.sparse.plain import ELEMENTWISE, POOLING
from fathomless.nn.bayesian import Bayesian, BayesianSlot
from fathomless.nn.images import Augment
from fathomless.nn.sparse_layer import LinearMap, SpikeSlab
from fathomless.system.draws import uniform
from fathomless.system.errors import DataError

__all__ = [
    "ActivePaths",
    "Chain",
    "LayerPaths",
    "Link",
    "active_paths",
    "draw_entries",
    "draw_used_inputs",
    "read_chain",
]

#: Modules that are the identity in evaluation mode.
_NOTHING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, Augment)
_LAYERS = (SpikeSlab, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, eq=False)
class Link:
    """Layer with weights in a chain.

    Attributes
    ----------
    name : str
        Name of the layer in the network before it was made Bayesian.
    layer : nn.Module
        ``SpikeSlab``, ``nn.Linear`` or a convolution.
    before : tuple of nn.Module
        Modules without weights between the previous layer and this one.
    included : Tensor of bool
        Weights of the median probability model.
    geometry : dict or None
        Stride, padding, dilation, groups and padding mode of a convolution.
    block : int
        Number of columns per channel of a preceding convolution that was flattened; 1 otherwise.
    skip : int
        Number of last columns that are inputs of the network (skip connections).
    """

    name: str
    layer: nn.Module
    before: tuple[nn.Module, ...]
    included: Tensor
    geometry: dict[str, Any] | None
    block: int = 1
    skip: int = 0

    @property
    def groups(self) -> int:
        """Number of groups of a convolution; 1 for a linear map."""
        return 1 if self.geometry is None else int(self.geometry["groups"])

    @property
    def variables(self) -> bool:
        """True if the weights have inclusion variables."""
        return isinstance(self.layer, SpikeSlab) and self.layer.weight.logit is not None

    def connections(self, mask: Tensor) -> Tensor:
        """Return the connections between units or channels, (outputs, sources), of a mask of weights."""
        if self.geometry is None:
            return mask.reshape(len(mask), -1, self.block).any(-1)
        rows = torch.arange(len(mask), device=mask.device)
        whole = mask.new_zeros(len(mask), self.groups, mask.shape[1])
        whole[rows, rows * self.groups // len(mask)] = mask.flatten(2).any(-1)
        return whole.flatten(1)

    def spread(self, sources: Tensor) -> Tensor:
        """Broadcast a value per source to the shape of the weights: (outputs or 1, inputs, 1, ...)."""
        if self.geometry is None:
            return sources.repeat_interleave(self.block)[None]
        rows = sources.reshape(self.groups, -1).repeat_interleave(len(self.included) // self.groups, 0)
        return rows.reshape(*rows.shape, *(1,) * (self.included.ndim - 2))


@dataclass(frozen=True, eq=False)
class Chain:
    """Network as a chain of layers.

    Attributes
    ----------
    links : tuple of Link
        Layers with weights.
    after : tuple of nn.Module
        Modules without weights after the last layer.
    """

    links: tuple[Link, ...]
    after: tuple[nn.Module, ...]


@dataclass(frozen=True, eq=False)
class LayerPaths:
    """Active weights and units of one layer.

    Attributes
    ----------
    name : str
        Name of the layer.
    included, active : Tensor of bool, shape of the weight
        Weights of the median probability model, and those of them on a path from an input to an output.
    units : Tensor of bool, shape (K,)
        Units or channels on such a path. Other units are constant or unused.
    variables : bool
        True if the weights have inclusion variables. Otherwise all are included.
    """

    name: str
    included: Tensor
    active: Tensor
    units: Tensor
    variables: bool

    @property
    def density(self) -> float:
        """Share of the weights that are included."""
        return float(self.included.double().mean())

    @property
    def active_density(self) -> float:
        """Share of the weights that are active."""
        return float(self.active.double().mean())


@dataclass(frozen=True, eq=False)
class ActivePaths:
    """Active paths of a network. Biases are not counted.

    Attributes
    ----------
    layers : tuple of LayerPaths
        Layers in order.
    entries : Tensor of bool, shape (L, D)
        Inputs that enter each layer on an active path: columns of the first layer, or its channels if it is a
        convolution. Layers after the first have entries with skip connections only.
    """

    layers: tuple[LayerPaths, ...]
    entries: Tensor

    @property
    def inputs(self) -> Tensor:
        """Inputs on an active path, bool, shape (D,)."""
        return self.entries.any(0)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of weights with inclusion variables, of included weights, and of active weights."""
        layers = [layer for layer in self.layers if layer.variables] or self.layers
        weights = sum(layer.active.numel() for layer in layers)
        included = sum(int(layer.included.sum()) for layer in layers)
        active = sum(int(layer.active.sum()) for layer in layers)
        return weights, included, active

    @property
    def density(self) -> float:
        """Share of the weights with inclusion variables that are included."""
        return self.counts[1] / self.counts[0]

    @property
    def active_density(self) -> float:
        """Share of the weights with inclusion variables that are active."""
        return self.counts[2] / self.counts[0]

    @property
    def summary(self) -> str:
        """Summary in one line."""
        weights, included, active = self.counts
        units = "-".join(str(int(layer.units.sum())) for layer in self.layers[:-1])
        return (
            f"{active:,} of {weights:,} weights on active paths (density {active / weights:.3g}; {included:,} "
            f"included), {int(self.inputs.sum())} of {len(self.inputs)} inputs used"
            + (f", hidden units {units}" if units else "")
        )


@torch.no_grad()
def active_paths(network: nn.Module) -> ActivePaths:
    """Return the weights, units and inputs of the median probability model on a path from an input to an output.

    Parameters
    ----------
    network : nn.Module
        A chain, as :func:`read_chain` reads it.

    Raises
    ------
    DataError
        If the network is not such a chain.

    Examples
    --------
    >>> from fathomless.nn.bayesian import bayesian
    >>> network = bayesian(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)))
    >>> network.module[0].layer.weight.logit.data = torch.tensor([[1.0, -1.0, -1.0], [-1.0, 1.0, -1.0]])
    >>> network.module[2].layer.weight.logit.data = torch.tensor([[1.0, -1.0]])
    >>> active_paths(network).summary
    '2 of 8 weights on active paths (density 0.25; 3 included), 1 of 3 inputs used, hidden units 1'
    """
    return _trace(read_chain(network).links)


@torch.no_grad()
def draw_used_inputs(network: nn.Module, draws: int = 200, generator: torch.Generator | None = None) -> Tensor:
    """Draw structures from the posterior; return a mask of the inputs with an active path in each, bool (draws, D).

    The mean over draws is the posterior probability that an input is used, with a standard error of at most
    1 / (2 √draws). For a group of inputs (the levels of a category, or redundant inputs), the mean of ``any`` over the
    group is the posterior probability that at least one is used.

    Parameters
    ----------
    network : nn.Module
        A chain, as :func:`read_chain` reads it.
    draws : int
        Number of structures drawn.
    generator : torch.Generator, optional
        Source of randomness.

    Raises
    ------
    DataError
        If the network is not such a chain.
    """
    return draw_entries(network, draws, generator).any(1)


@torch.no_grad()
def draw_entries(network: nn.Module, draws: int = 200, generator: torch.Generator | None = None) -> Tensor:
    """Draw structures from the posterior; return a mask of the inputs that enter each layer on an active path.

    Parameters
    ----------
    network, draws, generator
        As for :func:`draw_used_inputs`.

    Returns
    -------
    Tensor of bool, shape (draws, L, D)
        See :attr:`ActivePaths.entries`.

    Raises
    ------
    DataError
        If the network is not a chain of layers.
    """
    links = read_chain(network).links
    structures = ([replace(link, included=_draw_inclusion(link, generator)) for link in links] for _ in range(draws))
    return torch.stack([_trace(structure).entries for structure in structures])


def _draw_inclusion(link: Link, generator: torch.Generator | None) -> Tensor:
    if not isinstance(link.layer, SpikeSlab) or not link.variables:
        return link.included
    alpha = link.layer.weight.inclusion()
    return uniform(alpha, generator) < alpha


def _trace(links: Sequence[Link]) -> ActivePaths:
    joins = [link.connections(link.included) for link in links]
    first = reached = torch.ones_like(joins[0][0])
    sources = []
    for link, join in zip(links, joins, strict=True):  # forward: sources that depend on the inputs
        sources.append(torch.cat([reached, first]) if link.skip else reached)
        reached = (join & sources[-1]).any(1)
    layers = []
    entries = []
    needed = torch.ones_like(reached)
    for link, join, source in reversed(list(zip(links, joins, sources, strict=True))):  # backward: units in use
        active = link.included & link.spread(source) & needed.reshape(-1, *(1,) * (link.included.ndim - 1))
        used = link.connections(active)
        layers.append(LayerPaths(link.name, link.included, active, used.any(1), link.variables))
        needed = (join & needed[:, None]).any(0)
        enters = link.skip > 0 or link is links[0]
        entries.append(used.any(0)[-len(first) :] if enters else torch.zeros_like(first))
        needed = needed[: -len(first)] if enters else needed
    return ActivePaths(tuple(reversed(layers)), torch.stack(entries[::-1]))


def read_chain(network: nn.Module) -> Chain:
    """Read a network as a chain of layers.

    Parameters
    ----------
    network : nn.Module
        A ``SparseNetwork``, ``Bayesian`` or plain module: nested ``nn.Sequential`` of linear maps, convolutions,
        elementwise activations, pooling, ``nn.Flatten`` and dropout; or one ``InputSkip`` with all layers.

    Raises
    ------
    DataError
        If the network is not a chain of these modules.
    """
    links: list[Link] = []
    waiting: list[nn.Module] = []
    for name, module, skip in _walk("", network):
        if type(module) in _LAYERS:
            links.append(_link(name, module, waiting, links, skip))
            waiting = []
        else:
            waiting = [*waiting, _check_module(name, module, links)]
    if not links:
        raise DataError(
            f"a {type(network).__name__} without linear maps or convolutions was given; it has no active paths"
        )
    if len({link.skip for link in links[1:]}) > 1:
        raise DataError("an InputSkip was given beside other layers; one InputSkip with all layers is allowed")
    return Chain(tuple(links), tuple(waiting))


def _walk(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module, int]]:
    """Yield the modules of a chain in order: name, module, and number of inputs from skip connections."""
    module = _layer(module)
    start = f"{name}." if name else ""
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        for key, part in zip(
            module._modules, module, strict=True
        ):  # iterate over all entries: named_children() skips repeated modules
            yield from _walk(f"{start}{key}", part)
    elif isinstance(module, InputSkip):
        layers = [_layer(layer) for layer in module.layers]
        yield f"{start}layers.0", layers[0], 0
        for i, layer in enumerate(layers[1:], 1):
            yield f"{start}activation", module.activation, 0
            yield f"{start}layers.{i}", layer, _weight(layers[0]).shape[1]
    else:
        yield name, module, 0


def _layer(module: nn.Module) -> nn.Module:
    """Return the module inside the wrappers that make a network Bayesian."""
    match module:
        case SparseNetwork():
            return _layer(module.network)
        case Bayesian():
            return _layer(module.module)
        case BayesianSlot():
            return module.layer
    return module


def _check_module(name: str, module: nn.Module, links: list[Link]) -> nn.Module:
    """Check that paths can be traced through a module without weights, and return it."""
    kind = type(module)
    linear = bool(links) and links[-1].geometry is None
    whole = isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1
    if kind in (*ELEMENTWISE, *_NOTHING) or whole or (kind in POOLING and not linear):
        return module
    allowed = ", ".join(kind.__name__ for kind in ELEMENTWISE)
    raise DataError(
        f"{name or 'the network'} is a {kind.__name__}; allowed are nn.Sequential, linear maps, convolutions, pooling "
        f"after convolutions, nn.Flatten(), dropout, {allowed}, and one InputSkip"
    )


def _link(name: str, layer: nn.Module, before: list[nn.Module], links: list[Link], skip: int) -> Link:
    weight = _weight(layer)
    geometry = _geometry(layer)
    block = 1
    included = torch.ones_like(weight, dtype=torch.bool)
    if isinstance(layer, SpikeSlab) and layer.weight.logit is not None:
        included = layer.weight.logit.detach() > 0.0
    if links:
        units = len(links[-1].included)
        flat = any(isinstance(module, nn.Flatten) for module in before)
        flattened = geometry is None and links[-1].geometry is not None and flat
        block = weight.shape[1] // units if flattened else 1
        alike = flattened or ((geometry is None) == (links[-1].geometry is None) and not (geometry and flat))
        if not alike or weight.shape[1] * (geometry or {"groups": 1})["groups"] - skip != units * block:
            raise DataError(
                f"{name} has weights of shape {tuple(weight.shape)} after a layer with {units} outputs; each layer "
                "must take the outputs of the previous one, or their nn.Flatten() after convolutions"
            )
    return Link(name, layer, tuple(before), included, geometry, block, skip)


def _weight(layer: nn.Module) -> Tensor:
    return layer.weight.mean if isinstance(layer, SpikeSlab) else cast(Tensor, layer.weight)


def _geometry(layer: nn.Module) -> dict[str, Any] | None:
    """Return the arguments of a convolution other than its sizes; None for a linear map."""
    act = layer.act if isinstance(layer, SpikeSlab) else LinearMap.of(layer)
    if act.linear:
        return None
    arguments = cast("partial[Tensor]", act.apply).keywords
    pad = cast("partial[Tensor] | None", act.pad)
    if pad is None:
        return {**arguments, "padding_mode": "zeros"}
    ends = pad.keywords["pad"][::-1]  # after and before each axis, from the first axis
    sides = tuple(ends[::2])
    return {
        **arguments,
        "padding": sides if sides == tuple(ends[1::2]) else "same",
        "padding_mode": pad.keywords["mode"],
    }
