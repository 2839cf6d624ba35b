"""Conversion of any network to a Bayesian one: layers are replaced, and the code that calls them is unchanged."""

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
from fathomless.nn.stateless import refuse_compiled
from fathomless.system.errors import DataError

__all__ = ["WEIGHT_KINDS", "Bayesian", "BayesianSlot", "bayesian", "sparse_layers", "with_weights"]

#: Kinds of weights that :func:`with_weights` knows.
WEIGHT_KINDS = ("map", "meanfield", "matrix", "sparse")

Make = Callable[[str, nn.Module], nn.Module | None]


class Bayesian(BayesianLayer):
    """A module with Bayesian layers anywhere inside, as one Bayesian layer.

    Its code calls them like other layers. It must call each of them at most once in a pass.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Run the module and sum the divergences of the layers that it calls."""
        with _open_pass(generator) as current:
            output: Tensor = self.module(x)
        total = torch.zeros((), dtype=torch.float64, device=output.device)
        for divergence in current.divergences.values():
            total = total + divergence
        return output, total


class BayesianSlot(nn.Module):
    """Wrapper of a Bayesian layer inside a network: returns its output and records its divergence."""

    def __init__(self, layer: BayesianLayer) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer.

        Raises
        ------
        DataError
            If it is called outside its network, or twice in one pass.
        """
        current = _PASS.get()
        if current is None:
            raise DataError("a part of a Bayesian network was called outside the network; call the whole network")
        if id(self) in current.divergences:
            raise DataError(
                "a Bayesian layer was called twice in one pass, so that its weights and its divergence would count "
                "twice; use a separate layer for each call"
            )
        output: Tensor
        output, current.divergences[id(self)] = self.layer(x, current.generator)
        return output


def bayesian(module: nn.Module, make: Make | None = None) -> Bayesian:
    """Return a copy of a network in which linear maps and convolutions are Bayesian.

    A linear map inside :class:`torch.nn.MultiheadAttention` is not replaced, since that module reads the weights of the
    map without a call. The fast path of :class:`torch.nn.TransformerEncoderLayer` in evaluation also reads weights
    directly. It is disabled if these are Bayesian.

    Parameters
    ----------
    module : nn.Module
        Network with one input and one output; its weights are the initial posterior means.
    make : callable (name, layer) -> layer or None, optional
        Function that returns the replacement of a linear map or a convolution, or None to keep it, for instance to
        make only the last layer Bayesian. By default :class:`~fathomless.nn.sparse_layer.SpikeSlab`.

    Raises
    ------
    DataError
        If no layer is replaced, or if weights to be replaced are shared.

    Examples
    --------
    >>> network = bayesian(nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)))
    >>> y, divergence = network(torch.ones(5, 3))
    >>> y.shape, [name for name, _ in sparse_layers(network)]
    (torch.Size([5, 2]), ['0', '2'])
    """
    refuse_compiled(module)
    make = make or (lambda _, layer: SpikeSlab(layer))
    whole = nn.Sequential()  # a parent of the module, which may itself be a layer to replace
    whole.append(copy.deepcopy(module))
    places: dict[int, list[str]] = {}
    for name, parameter in whole.named_parameters(remove_duplicate=False):
        places.setdefault(id(parameter), []).append(name.removeprefix("0."))
    for name, part in list(whole.named_modules()):  # a list, since modules are replaced in the loop
        owner, _, leaf = name.rpartition(".")
        if isinstance(part, nn.Linear | nn.modules.conv._ConvNd) and not isinstance(
            whole.get_submodule(owner), nn.MultiheadAttention
        ):
            new = make(name.removeprefix("0."), part)
            if new is not None:
                _check_unshared(part, places)
                setattr(whole.get_submodule(owner), leaf, BayesianSlot(new) if isinstance(new, BayesianLayer) else new)
    if not any(isinstance(part, BayesianSlot) for part in whole.modules()):
        raise DataError(
            f"no layer of the {type(module).__name__} was made Bayesian: it has no linear map or convolution, or "
            "`make` returns None for all of them"
        )
    for part in whole.modules():
        _disable_fast_path(part)
    return Bayesian(whole[0])


def _disable_fast_path(part: nn.Module) -> None:
    """Make a transformer call its layers, and not read their weights, if any of them is Bayesian."""
    if not any(isinstance(inner, BayesianSlot) for inner in part.modules()):
        return
    if isinstance(part, nn.TransformerEncoderLayer):
        part.activation_relu_or_gelu = 0  # used by the fast path only; the activation is unchanged
    elif isinstance(part, nn.TransformerEncoder):
        part.enable_nested_tensor = part.use_nested_tensor = False


def _check_unshared(part: nn.Module, places: dict[int, list[str]]) -> None:
    """Check that the weights of a layer are not shared, since they would then have two posteriors."""
    for names in (places.get(id(parameter), []) for parameter in part.parameters()):
        if len(names) > 1:
            raise DataError(
                f"the weights {' and '.join(names)} are shared; Bayesian layers cannot share weights: use separate "
                "layers, or let `make` return None for them"
            )


def with_weights(kind: str, module: nn.Module, prior: WeightPrior, scale: float) -> nn.Module:
    """Return a module with a posterior of one kind; Bayesian modules and modules without weights are unchanged.

    Parameters
    ----------
    kind : {"map", "meanfield", "matrix", "sparse"}
        Point estimates, an independent Gaussian on each weight, or a matrix normal or spike-and-slab posterior in
        linear maps and convolutions.
    module : nn.Module
        Any module.
    prior : WeightPrior
        Prior with the standard deviation of Gaussian weights or of slabs.
    scale : float
        Initial standard deviation of the posterior.
    """
    refuse_compiled(module)
    _refuse_complex(module)
    if kind == "map" or isinstance(module, BayesianLayer) or not prior_scales(module, prior):
        return module
    if kind == "meanfield":
        return MeanField(module, prior, scale)
    if kind == "matrix":
        return bayesian(module, lambda _, part: MatrixNormal(part, prior, scale))
    start = SlabStart(log_scale=(math.log(scale), 0.1))

    def make(_: str, part: nn.Module) -> SpikeSlab:
        bias_scale = prior.scale if part.bias is None else prior.scale_of(cast(Tensor, part.bias))
        slab = SlabPrior(0.1, prior.scale_of(cast(Tensor, part.weight)), bias_scale=bias_scale)
        return SpikeSlab(part, slab, start=start, bias_start=start)

    return bayesian(module, make)


def _refuse_complex(module: nn.Module) -> None:
    """Raise an error for complex weights, whose imaginary part the conversion to the data type of the model drops."""
    names = [name for name, tensor in (*module.named_parameters(), *module.named_buffers()) if tensor.is_complex()]
    if names:
        raise DataError(
            f"the weights {' and '.join(names)} are complex; use real weights, such as torch.view_as_real(...) of "
            "them, and torch.view_as_complex in the forward pass"
        )


def sparse_layers(module: nn.Module) -> list[tuple[str, SpikeSlab]]:
    """Return the spike-and-slab layers of a network, with the names that they had before :func:`bayesian`."""
    wrappers = [part for part in module.modules() if isinstance(part, Bayesian | BayesianSlot)]
    wrapped = {id(part.module if isinstance(part, Bayesian) else part.layer) for part in wrappers}
    layers = []
    for path, part in module.named_modules():
        if isinstance(part, SpikeSlab):
            name: list[str] = []
            parent = module
            for piece in path.split(".") if path else []:
                parent = parent.get_submodule(piece)
                if id(parent) not in wrapped:  # leave out the level that a wrapper adds
                    name.append(piece)
            layers.append((".".join(name), part))
    return layers


@dataclass
class _Pass:
    """State of one pass through a network: its random number generator and the divergences of its layers."""

    generator: torch.Generator | None
    divergences: dict[int, Tensor] = field(default_factory=dict)


_PASS: ContextVar[_Pass | None] = ContextVar("fathomless_pass", default=None)


@contextmanager
def _open_pass(generator: torch.Generator | None) -> Iterator[_Pass]:
    current = _Pass(generator)
    token = _PASS.set(current)
    try:
        yield current
    finally:
        _PASS.reset(token)
