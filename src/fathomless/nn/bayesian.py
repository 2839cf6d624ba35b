"""Any network with its layers made Bayesian: the layers are replaced, the code that calls them stays."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from fathomless.nn.layers import BayesianLayer, MeanField, WeightPrior, prior_scales
from fathomless.nn.matrix_normal import MatrixNormal
from fathomless.nn.sparse_layer import SpikeSlab
from fathomless.nn.spike_slab import SlabPrior, SlabStart
from fathomless.system.errors import DataError

__all__ = ["WEIGHT_KINDS", "Bayesian", "BayesianSlot", "bayesian", "sparse_layers", "with_weights"]

#: Kinds of weights that :func:`with_weights` knows.
WEIGHT_KINDS = ("map", "meanfield", "matrix", "sparse")

Make = Callable[[str, nn.Module], nn.Module | None]


class Bayesian(BayesianLayer):
    """A module that holds Bayesian layers somewhere inside, as one Bayesian layer.

    Its code calls them like any others. It must call each at most once in a pass.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Run the module; sum the divergences of the layers that it called."""
        with _passing(generator) as current:
            output: Tensor = self.module(x)
        total = torch.zeros((), dtype=torch.float64, device=output.device)
        for divergence in current.divergences.values():
            total = total + divergence
        return output, total


class BayesianSlot(nn.Module):
    """A place in a network that a Bayesian layer has taken: returns its output, and hands its divergence up."""

    def __init__(self, layer: BayesianLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer.

        Raises
        ------
        DataError
            If it is called by itself and not by the network that it is part of, or twice in one pass.
        """
        current = _PASS.get()
        if current is None:
            raise DataError("a part of a Bayesian network was called by itself; call the whole network")
        if id(self) in current.divergences:
            raise DataError(
                "a Bayesian layer was called twice in one pass, where its weights would be drawn twice and charged "
                "twice; give each place a layer of its own"
            )
        output: Tensor
        output, current.divergences[id(self)] = self.layer(x, current.generator)
        return output


def bayesian(module: nn.Module, make: Make | None = None) -> Bayesian:
    """Return a copy of a network in which linear maps and convolutions are Bayesian.

    A linear map inside :class:`torch.nn.MultiheadAttention` stays as it is, since that module never calls the map but
    reads its weights. The fast path that :class:`torch.nn.TransformerEncoderLayer` takes in evaluation reads weights
    too; it is switched off where these are Bayesian.

    Parameters
    ----------
    module : nn.Module
        Any network with one input and one output; its weights are where the posterior means start.
    make : callable (name, layer) -> layer or None, optional
        What replaces a linear map or a convolution, found under `name`; None leaves it as it is: a network may be
        Bayesian in its last layer alone. By default :class:`~fathomless.nn.sparse_layer.SpikeSlab`.

    Raises
    ------
    DataError
        If nothing was replaced, or weights that would be occur in two places.

    Examples
    --------
    >>> network = bayesian(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)))
    >>> y, divergence = network(torch.ones(5, 3))
    >>> y.shape, [name for name, _ in sparse_layers(network)]
    (torch.Size([5, 2]), ['0', '2'])
    """
    make = make or (lambda _, layer: SpikeSlab(layer))
    whole = nn.Sequential()  # a parent for the module itself, should it be a layer
    whole.append(copy.deepcopy(module))
    places: dict[int, list[str]] = {}
    for name, parameter in whole.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append(name.removeprefix("0."))
    for name, part in list(whole.named_modules()):
        owner, _, leaf = name.rpartition(".")
        if isinstance(part, nn.Linear | nn.modules.conv._ConvNd) and not isinstance(
            whole.get_submodule(owner), nn.MultiheadAttention
        ):
            new = make(name.removeprefix("0."), part)
            if new is not None:
                _once(part, places)
                setattr(whole.get_submodule(owner), leaf, BayesianSlot(new) if isinstance(new, BayesianLayer) else new)
    if not any(isinstance(part, BayesianSlot) for part in whole.modules()):
        raise DataError(
            f"no layer of the {type(module).__name__} was made Bayesian; linear maps and convolutions can be, those "
            "for which `make` returns a layer"
        )
    for part in whole.modules():
        _without_fast_path(part)
    return Bayesian(whole[0])


def _without_fast_path(part: nn.Module) -> None:
    """Let a transformer call the layers inside, and not read their weights, if any of them is Bayesian."""
    if not any(isinstance(inner, BayesianSlot) for inner in part.modules()):
        return
    if isinstance(part, nn.TransformerEncoderLayer):
        part.activation_relu_or_gelu = 0  # of no other use; the activation itself stays
    elif isinstance(part, nn.TransformerEncoder):
        part.enable_nested_tensor = part.use_nested_tensor = False


def _once(part: nn.Module, places: dict[int, list[str]]) -> None:
    """Refuse weights that are shared, which would be free in one place, or have two posteriors."""
    for names in (places.get(id(parameter), []) for parameter in part.parameters()):
        if len(names) > 1:
            raise DataError(
                f"the same weights are found as {' and '.join(names)}; weights in one place are allowed where they "
                "become Bayesian: give each place a layer of its own, or let `make` return None for them"
            )


def with_weights(kind: str, module: nn.Module, prior: WeightPrior, scale: float) -> nn.Module:
    """Return a module with weights of one kind; what is Bayesian, or has no weights, stays as it is.

    Parameters
    ----------
    kind : {"map", "meanfield", "matrix", "sparse"}
        Point estimates, an independent Gaussian on each, a matrix normal or spikes and slabs in linear maps and
        convolutions.
    module : nn.Module
        Any module.
    prior : WeightPrior
        Standard deviation of Gaussian weights, or of slabs.
    scale : float
        Initial standard deviation of the posterior.
    """
    if kind == "map" or isinstance(module, BayesianLayer) or not prior_scales(module, prior):
        return module
    if kind == "meanfield":
        return MeanField(module, prior, scale)
    if kind == "matrix":
        return bayesian(module, lambda _, part: MatrixNormal(part, prior, scale))
    start = SlabStart(log_scale=(math.log(scale), 0.1))

    def make(_: str, part: nn.Module) -> SpikeSlab:
        of_bias = prior.scale if part.bias is None else prior.scale_of(cast(Tensor, part.bias))
        own = SlabPrior(0.1, prior.scale_of(cast(Tensor, part.weight)), bias_scale=of_bias)
        return SpikeSlab(part, own, start=start, bias_start=start)

    return bayesian(module, make)


def sparse_layers(module: nn.Module) -> list[tuple[str, SpikeSlab]]:
    """Return the layers with spikes and slabs inside a network, by the names they had before :func:`bayesian`."""
    own = {id(part): part for part in module.modules() if isinstance(part, Bayesian | BayesianSlot)}
    inside = {id(part.module if isinstance(part, Bayesian) else part.layer) for part in own.values()}
    found = []
    for path, part in module.named_modules():
        if isinstance(part, SpikeSlab):
            pieces, at, name = path.split(".") if path else [], module, []
            for piece in pieces:
                at = at.get_submodule(piece)
                name += [] if id(at) in inside else [piece]
            found.append((".".join(name), part))
    return found


@dataclass
class _Pass:
    """One pass through a network: where its randomness comes from, and what its layers hand up."""

    generator: torch.Generator | None
    divergences: dict[int, Tensor] = field(default_factory=dict)


_PASS: ContextVar[_Pass | None] = ContextVar("fathomless_pass", default=None)


@contextmanager
def _passing(generator: torch.Generator | None) -> Iterator[_Pass]:
    current = _Pass(generator)
    token = _PASS.set(current)
    try:
        yield current
    finally:
        _PASS.reset(token)
