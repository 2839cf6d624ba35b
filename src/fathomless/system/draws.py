"""Random numbers for tensors on any device, drawn where the generator is.

A generator of the processor gives the same numbers for every device: they are drawn there and moved. What predicts
draws so. One of the tensor's own device draws in place, which is faster; the steps of a training draw so.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["bernoulli", "exponential", "integers", "multinomial", "normal", "permutation", "uniform"]


def normal(like: Tensor, generator: torch.Generator | None, shape: Sequence[int] | None = None) -> Tensor:
    """Draw standard normal numbers.

    Parameters
    ----------
    like : Tensor
        Gives the data type and the device, and the shape unless another is given.
    generator : torch.Generator, optional
        On the processor or on the device of the tensor; by default the global one of that device.
    shape : sequence of int, optional
        Of the result.

    Examples
    --------
    >>> normal(torch.zeros(2), torch.Generator().manual_seed(0))
    tensor([ 1.5410, -0.2934])
    """
    where = _where(like.device, generator)
    if shape is None:
        return _empty(like, where).normal_(generator=generator).to(like.device)
    return torch.randn(tuple(shape), generator=generator, dtype=like.dtype, device=where).to(like.device)


def uniform(like: Tensor, generator: torch.Generator | None, shape: Sequence[int] | None = None) -> Tensor:
    """Draw uniform numbers in [0, 1); arguments as of :func:`normal`."""
    where = _where(like.device, generator)
    if shape is None:
        return _empty(like, where).uniform_(generator=generator).to(like.device)
    return torch.rand(tuple(shape), generator=generator, dtype=like.dtype, device=where).to(like.device)


def exponential(like: Tensor, generator: torch.Generator | None, shape: Sequence[int] | None = None) -> Tensor:
    """Draw standard exponential numbers; arguments as of :func:`normal`."""
    found = torch.empty(
        like.shape if shape is None else tuple(shape), dtype=like.dtype, device=_where(like.device, generator)
    )
    return found.exponential_(generator=generator).to(like.device)


def bernoulli(p: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw ones with the given probabilities, and zeros, in the type of the probabilities."""
    return torch.bernoulli(p.to(_where(p.device, generator)), generator=generator).to(p.device)


def multinomial(weight: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Draw indices with replacement, (..., n) int64, by weights (..., K)."""
    there = weight.to(_where(weight.device, generator))
    return torch.multinomial(there, n, replacement=True, generator=generator).to(weight.device)


def integers(high: int, shape: Sequence[int], generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Draw whole numbers in [0, high), int64, for a device."""
    return torch.randint(high, tuple(shape), generator=generator, device=_where(device, generator)).to(device)


def permutation(n: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Draw an order of 0, ..., n − 1, int64, for a device."""
    return torch.randperm(n, generator=generator, device=_where(device, generator)).to(device)


def _where(device: torch.device, generator: torch.Generator | None) -> torch.device:
    return device if generator is None else generator.device


def _empty(like: Tensor, where: torch.device) -> Tensor:
    """Return memory to draw into; in the order of its indices, whatever the strides of the tensor are."""
    return torch.empty_like(like, device=where, memory_format=torch.contiguous_format)
