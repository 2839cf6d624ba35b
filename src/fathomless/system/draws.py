"""Random numbers for tensors on any device, drawn on the device of the generator.

A CPU generator gives the same numbers for every device: they are drawn on the CPU and copied. Predictions use such
generators. A generator on the device of the tensor draws in place, which is faster; training steps use these.
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
        Tensor with the data type and the device of the result, and its shape unless `shape` is given.
    generator : torch.Generator, optional
        Generator on the CPU or on the device of the tensor; the global one of that device by default.
    shape : sequence of int, optional
        Shape of the result.

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
    numbers = torch.empty(
        like.shape if shape is None else tuple(shape), dtype=like.dtype, device=_where(like.device, generator)
    )
    return numbers.exponential_(generator=generator).to(like.device)


def bernoulli(p: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw ones with the given probabilities, and zeros otherwise, with the data type of the probabilities."""
    return torch.bernoulli(p.to(_where(p.device, generator)), generator=generator).to(p.device)


def multinomial(weight: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """Draw indices with replacement, (..., n) int64, by weights (..., K)."""
    there = weight.to(_where(weight.device, generator))
    return torch.multinomial(there, n, replacement=True, generator=generator).to(weight.device)


def integers(high: int, shape: Sequence[int], generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Draw integers in [0, high), int64, and copy them to a device."""
    return torch.randint(high, tuple(shape), generator=generator, device=_where(device, generator)).to(device)


def permutation(n: int, generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Draw a random permutation of 0, ..., n − 1, int64, and copy it to a device."""
    return torch.randperm(n, generator=generator, device=_where(device, generator)).to(device)


def _where(device: torch.device, generator: torch.Generator | None) -> torch.device:
    return device if generator is None else generator.device


def _empty(like: Tensor, where: torch.device) -> Tensor:
    """Return an uninitialised, contiguous tensor, so that draws do not depend on the strides of `like`."""
    return torch.empty_like(like, device=where, memory_format=torch.contiguous_format)
