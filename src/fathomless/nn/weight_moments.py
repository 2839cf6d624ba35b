"""Means and standard deviations of the weights of a network under their posterior, by name."""

from collections.abc import Iterator
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
    return dict(_collect(module, ""))


def _collect(part: nn.Module, prefix: str) -> Iterator[tuple[str, Moments]]:
    """Yield the names of the weights of a part, which begin with `prefix`, and their moments."""
    match part:
        case Bayesian():
            yield from _collect(part.module, prefix)
        case BayesianSlot():
            yield from _collect(part.layer, prefix)
        case MeanField() | MatrixNormal():
            scales = part.scales()
            for name, p in part.module.named_parameters():
                yield prefix + name, Moments(p.clone(), scales.get(name, torch.zeros_like(p)))
        case SpikeSlab():
            if part.multiplier is not None:
                raise DataError(
                    f"{prefix.removesuffix('.') or 'the layer'} has a normalising flow, whose weights have no moments "
                    "in closed form; average draws of the network instead"
                )
            for name, weights in (("weight", part.weight), ("bias", part.bias)):
                if weights is not None:
                    mean, variance, _ = weights.moments()
                    yield prefix + name, Moments(mean.clone(), variance.sqrt())
        case _:
            for name, p in part.named_parameters(recurse=False):
                yield prefix + name, Moments(p.clone(), torch.zeros_like(p))
            for name, child in part.named_children():
                yield from _collect(child, f"{prefix}{name}.")
