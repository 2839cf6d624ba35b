r"""Active paths: which weights of the median probability model lie on a path from an input to an output.

A weight that is included may still have no effect that depends on the inputs: what feeds it may be a constant, or what
it feeds may end nowhere. With boolean connections C of every layer,

.. math:: \text{reached}_l = C_l\, \text{reached}_{l-1}, \qquad
          \text{needed}_{l-1} = C_l^\top\, \text{needed}_l,

and a weight is active if its source is reached and its target is needed. For a convolution C joins channels: it is 1
where any weight of the kernel is included.
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
from fathomless.nn.sparse_layer import LinearMap, SpikeSlab
from fathomless.system.draws import uniform
from fathomless.system.errors import DataError

__all__ = ["ActivePaths", "Chain", "LayerPaths", "Link", "active_paths", "drawn_inputs", "read_chain"]

_NOTHING = (nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout)
_LAYERS = (SpikeSlab, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True, eq=False)
class Link:
    """One layer with weights.

    Attributes
    ----------
    name : str
        As in the network before it was made Bayesian.
    layer : nn.Module
        ``SpikeSlab``, ``nn.Linear`` or a convolution.
    before : tuple of nn.Module
        Modules without weights between the layer before and this one.
    included : Tensor of bool
        Weights of the median probability model.
    geometry : dict or None
        Stride, padding, dilation, groups and padding mode of a convolution.
    block : int
        Columns for each channel of a convolution that was flattened before; 1 otherwise.
    skip : int
        Columns at the end that are inputs of the network.
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
        """Groups of a convolution."""
        return 1 if self.geometry is None else int(self.geometry["groups"])

    @property
    def variables(self) -> bool:
        """Whether the weights have inclusion variables."""
        return isinstance(self.layer, SpikeSlab) and self.layer.weight.logit is not None

    def connections(self, there: Tensor) -> Tensor:
        """Return which units or channels (outputs, sources) a boolean mask of weights joins."""
        if self.geometry is None:
            return there.reshape(len(there), -1, self.block).any(-1)
        rows = torch.arange(len(there), device=there.device)
        whole = there.new_zeros(len(there), self.groups, there.shape[1])
        whole[rows, rows * self.groups // len(there)] = there.flatten(2).any(-1)
        return whole.flatten(1)

    def spread(self, sources: Tensor) -> Tensor:
        """Give a value of every source the shape that weights multiply: (outputs or 1, inputs, 1, ...)."""
        if self.geometry is None:
            return sources.repeat_interleave(self.block)[None]
        rows = sources.reshape(self.groups, -1).repeat_interleave(len(self.included) // self.groups, 0)
        return rows.reshape(*rows.shape, *(1,) * (self.included.ndim - 2))


@dataclass(frozen=True, eq=False)
class Chain:
    """A network as a chain of layers: nothing else joins its first to its last.

    Attributes
    ----------
    links : tuple of Link
        Layers with weights.
    after : tuple of nn.Module
        Modules without weights that follow the last.
    """

    links: tuple[Link, ...]
    after: tuple[nn.Module, ...]


@dataclass(frozen=True, eq=False)
class LayerPaths:
    """What is active in one layer.

    Attributes
    ----------
    name : str
        The layer.
    included, active : Tensor of bool, shape of the weight
        Weights of the median probability model, and those of them that lie on a path from an input to an output.
    units : Tensor of bool, shape (K,)
        Units or channels on such a path. The others are constants, or are not used.
    variables : bool
        Whether its weights have inclusion variables. If not, all are included.
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
    """The active paths of a network. Biases are not counted anywhere.

    Attributes
    ----------
    layers : tuple of LayerPaths
        In order.
    inputs : Tensor of bool, shape (D,)
        Inputs that start a path: columns of the first layer, or its channels if it is a convolution.
    """

    layers: tuple[LayerPaths, ...]
    inputs: Tensor

    @property
    def counts(self) -> tuple[int, int, int]:
        """Weights with inclusion variables, those that are included, and those that are active."""
        own = [layer for layer in self.layers if layer.variables] or self.layers
        pairs = [(int(layer.included.sum()), int(layer.active.sum())) for layer in own]
        return sum(layer.active.numel() for layer in own), sum(i for i, _ in pairs), sum(a for _, a in pairs)

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
        """One line."""
        weights, included, active = self.counts
        units = "-".join(str(int(layer.units.sum())) for layer in self.layers[:-1])
        return (
            f"{active:,} of {weights:,} weights on active paths (density {active / weights:.3g}; {included:,} "
            f"included), {int(self.inputs.sum())} of {len(self.inputs)} inputs used"
            + (f", hidden units {units}" if units else "")
        )


@torch.no_grad()
def active_paths(network: nn.Module) -> ActivePaths:
    """Return which weights, units and inputs of the median probability model lie on a path from input to output.

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
    return _traced(read_chain(network).links)


@torch.no_grad()
def drawn_inputs(network: nn.Module, draws: int = 200, generator: torch.Generator | None = None) -> Tensor:
    """Draw structures from the posterior and return which inputs have an active path in each, bool (draws, D).

    The mean over draws is the posterior probability that an input is used, with a standard error of at most
    1 / (2 √draws); that any of several inputs is used (those of one category, or substitutes for each other) is the
    mean of ``any`` over them.

    Parameters
    ----------
    network : nn.Module
        A chain, as :func:`read_chain` reads it.
    draws : int
        Structures drawn.
    generator : torch.Generator, optional
        Source of randomness.

    Raises
    ------
    DataError
        If the network is not such a chain.
    """
    links = read_chain(network).links
    each = ([replace(link, included=_drawn(link, generator)) for link in links] for _ in range(draws))
    return torch.stack([_traced(drawn).inputs for drawn in each])


def _drawn(link: Link, generator: torch.Generator | None) -> Tensor:
    if not isinstance(link.layer, SpikeSlab) or not link.variables:
        return link.included
    alpha = link.layer.weight.inclusion()
    return uniform(alpha, generator) < alpha


def _traced(links: Sequence[Link]) -> ActivePaths:
    joins = [link.connections(link.included) for link in links]
    first = reached = torch.ones_like(joins[0][0])
    seen = []
    for link, join in zip(links, joins, strict=True):
        seen.append(torch.cat([reached, first]) if link.skip else reached)
        reached = (join & seen[-1]).any(1)
    layers, inputs, needed = [], torch.zeros_like(first), torch.ones_like(reached)
    for link, join, source in reversed(list(zip(links, joins, seen, strict=True))):
        active = link.included & link.spread(source) & needed.reshape(-1, *(1,) * (link.included.ndim - 1))
        used = link.connections(active)
        layers.append(LayerPaths(link.name, link.included, active, used.any(1), link.variables))
        needed = (join & needed[:, None]).any(0)
        if link.skip or link is links[0]:
            inputs |= used.any(0)[-len(inputs) :]
            needed = needed[: -len(inputs)]
    return ActivePaths(tuple(reversed(layers)), inputs)


def read_chain(network: nn.Module) -> Chain:
    """Read a network that is a chain of layers.

    Parameters
    ----------
    network : nn.Module
        A ``SparseNetwork``, ``Bayesian`` or plain module: nested ``nn.Sequential`` of linear maps, convolutions,
        elementwise activations, pooling, ``nn.Flatten`` and dropout; or with one ``InputSkip`` that holds all layers.

    Raises
    ------
    DataError
        For anything else.
    """
    links: list[Link] = []
    waiting: list[nn.Module] = []
    for name, module, skip in _flat("", network):
        if type(module) in _LAYERS:
            links, waiting = [*links, _link(name, module, waiting, links, skip)], []
        else:
            waiting = [*waiting, _checked(name, module, links)]
    if not links:
        raise DataError(f"a {type(network).__name__} without linear maps or convolutions was given; it has no paths")
    if len({link.skip for link in links[1:]}) > 1:
        raise DataError("an InputSkip was given beside other layers; paths are followed where it holds all of them")
    return Chain(tuple(links), tuple(waiting))


def _flat(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module, int]]:
    """Yield the modules of a chain in order: name, module, and how many inputs it sees beside what is before it."""
    module, start = _layer(module), f"{name}." if name else ""
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        for key, part in zip(module._modules, module, strict=True):  # children are told once each
            yield from _flat(f"{start}{key}", part)
    elif isinstance(module, InputSkip):
        layers = [_layer(layer) for layer in module.layers]
        yield f"{start}layers.0", layers[0], 0
        for i, layer in enumerate(layers[1:], 1):
            yield f"{start}activation", module.activation, 0
            yield f"{start}layers.{i}", layer, _weight(layers[0]).shape[1]
    else:
        yield name, module, 0


def _layer(module: nn.Module) -> nn.Module:
    """Return what is inside the modules that make a network Bayesian."""
    match module:
        case SparseNetwork():
            return _layer(module.network)
        case Bayesian():
            return _layer(module.module)
        case BayesianSlot():
            return module.layer
    return module


def _checked(name: str, module: nn.Module, links: list[Link]) -> nn.Module:
    """Return a module without weights, if paths can be followed through it."""
    kind, linear = type(module), bool(links) and links[-1].geometry is None
    whole = isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim == -1
    if kind in (*ELEMENTWISE, *_NOTHING) or whole or (kind in POOLING and not linear):
        return module
    allowed = ", ".join(kind.__name__ for kind in ELEMENTWISE)
    raise DataError(
        f"{name or 'the network'} is a {kind.__name__}; paths are followed through nn.Sequential, "
        f"linear maps, convolutions, pooling after convolutions, nn.Flatten(), dropout, {allowed}, and one InputSkip"
    )


def _link(name: str, layer: nn.Module, before: list[nn.Module], links: list[Link], skip: int) -> Link:
    weight, geometry, block = _weight(layer), _geometry(layer), 1
    included = torch.ones_like(weight, dtype=torch.bool)
    if isinstance(layer, SpikeSlab) and layer.weight.logit is not None:
        included = layer.weight.logit.detach() > 0.0
    if links:
        units, flat = len(links[-1].included), any(isinstance(module, nn.Flatten) for module in before)
        flattened = geometry is None and links[-1].geometry is not None and flat
        block = weight.shape[1] // units if flattened else 1
        alike = flattened or ((geometry is None) == (links[-1].geometry is None) and not (geometry and flat))
        if not alike or weight.shape[1] * (geometry or {"groups": 1})["groups"] - skip != units * block:
            raise DataError(
                f"{name} has weights of shape {tuple(weight.shape)} after a layer with {units} outputs; paths are "
                "followed where each layer takes those of the one before, or their nn.Flatten() after convolutions"
            )
    return Link(name, layer, tuple(before), included, geometry, block, skip)


def _weight(layer: nn.Module) -> Tensor:
    return layer.weight.mean if isinstance(layer, SpikeSlab) else cast(Tensor, layer.weight)


def _geometry(layer: nn.Module) -> dict[str, Any] | None:
    """Return the arguments of a convolution beside its sizes."""
    act = layer.act if isinstance(layer, SpikeSlab) else LinearMap.of(layer)
    if act.linear:
        return None
    how, pad = cast("partial[Tensor]", act.apply).keywords, cast("partial[Tensor] | None", act.pad)
    if pad is None:
        return {**how, "padding_mode": "zeros"}
    ends = pad.keywords["pad"][::-1]  # of each axis after and before, from the first axis
    sides = tuple(ends[::2])
    return {**how, "padding": sides if sides == tuple(ends[1::2]) else "same", "padding_mode": pad.keywords["mode"]}
