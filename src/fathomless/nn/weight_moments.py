"""Means and standard deviations of the weights of a network under their posterior, by name."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fathomless.nn.bayesian import Bayesian, BayesianSlot
from fathomless.nn.layers import MeanField
from fathomless.nn.matrix_normal import MatrixNormal
from fathomless.nn.sparse_layer import SpikeSlab
from fathomless.system.errors import DataError

__all__ = ["Moments", "weight_moments"]


class Moments(NamedTuple):
    """Moments of the weights of one tensor.

    Attributes
    ----------
    mean, std : Tensor
        Posterior means and standard deviations, with the shape of the weights; the standard deviation of a point
        estimate is 0. Those of spike-and-slab weights include the inclusion variables.
    """

    mean: Tensor
    std: Tensor


@torch.no_grad()
def weight_moments(module: nn.Module) -> dict[str, Moments]:
    """Return the posterior moments of all weights of a network, by their names before it was made Bayesian.

    Parameters
    ----------
    module : nn.Module
        Model, Bayesian layer or any network. In the model of
        :func:`~fathomless.families.baselines.model.bayesian_network`, the names begin with ``layers.1.``.

    Raises
    ------
    DataError
        For weights with a normalising flow, whose moments have no closed form.

    Examples
    --------
    >>> network = MeanField(nn.Linear(2, 1), initial_scale=0.1)
    >>> {name: (tuple(mean.shape), round(std.max().item(), 3)) for name, (mean, std) in weight_moments(network).items()}
    {'weight': ((1, 2), 0.1), 'bias': ((1,), 0.1)}
    """
    return {name.removeprefix("."): moments for name, moments in _collect(module, "").items()}


def _collect(part: nn.Module, prefix: str) -> dict[str, Moments]:
    match part:
        case Bayesian():
            return _collect(part.module, prefix)
        case BayesianSlot():
            return _collect(part.layer, prefix)
        case MeanField():
            scales = part.scales()
            means = dict(part.module.named_parameters())
            own = {name: Moments(p.clone(), scales.get(name, torch.zeros_like(p))) for name, p in means.items()}
        case MatrixNormal():
            std = part.std()
            own = {name: Moments(p.clone(), std[name]) for name, p in part.module.named_parameters()}
        case SpikeSlab():
            own = _moments_of_slabs(part, prefix)
        case _:
            own = {
                name: Moments(p.detach().clone(), torch.zeros_like(p))
                for name, p in part.named_parameters(recurse=False)
            }
            for name, child in part.named_children():
                own |= _collect(child, f".{name}")
    return {f"{prefix}.{name.removeprefix('.')}": moments for name, moments in own.items()}


def _moments_of_slabs(layer: SpikeSlab, prefix: str) -> dict[str, Moments]:
    """Return the moments of spike-and-slab weights and biases."""
    if layer.multiplier is not None:
        raise DataError(
            f"{prefix.removeprefix('.') or 'the layer'} has a normalising flow, whose weights have no moments in "
            "closed form; average draws of the network instead"
        )
    parts = {"weight": layer.weight} | ({} if layer.bias is None else {"bias": layer.bias})
    found = {name: part.moments() for name, part in parts.items()}
    return {name: Moments(values.mean.clone(), values.variance.sqrt()) for name, values in found.items()}
