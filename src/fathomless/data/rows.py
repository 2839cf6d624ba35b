"""Rows on the device, in memory or read chunk by chunk."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Rows", "Stream", "concatenate"]

_NUMBERS = 2**22  # of images or sequences in a part of the rows


@dataclass(frozen=True)
class Rows:
    """Rows in the memory of the device.

    Attributes
    ----------
    x : Tensor, shape (N, ...)
        Inputs.
    y : Tensor, shape (N, ...)
        Targets.
    weight : Tensor, shape (N,), optional
        Sample weights; a row of weight w counts as w rows.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)

    @functools.cached_property
    def count(self) -> float:
        """Sum of the sample weights, or the number of rows without weights; read from the device once."""
        return float(len(self.x)) if self.weight is None else float(self.weight.double().sum())

    @property
    def counts(self) -> Tensor:
        """Sample weights, or ones without them; float64 on the CPU, shape (N,)."""
        ones = torch.ones(len(self.x), dtype=torch.float64, device="cpu")
        return ones if self.weight is None else self.weight.double().cpu()

    @property
    def average(self) -> Tensor:
        """Weighted mean of the inputs, shape (...), float64."""
        weight = self.x.new_ones(len(self.x)) if self.weight is None else self.weight
        summed: Tensor = torch.tensordot(weight.double(), self.x.double(), 1)
        return summed / self.count

    @property
    def first(self) -> "Rows":
        """Sample of the rows: all of them."""
        return self

    def take(self, index: Tensor | slice) -> "Rows":
        """Return the rows at the given positions."""
        return Rows(self.x[index], self.y[index], None if self.weight is None else self.weight[index])

    def parts(self, size: int) -> Iterator["Rows"]:
        """Yield the rows in order, at most `size` at a time, and at most 2²² numbers of images or sequences."""
        if self.x.ndim > 2:
            size = min(size, max(1, _NUMBERS // max(1, math.prod(self.x.shape[1:]))))
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))

    def steps(self, batch_size: int) -> int:
        """Return the number of batches per epoch."""
        return math.ceil(len(self) / batch_size)

    def batches(self, batch_size: int, order: torch.Generator) -> Iterator["Rows"]:
        """Yield minibatches of nearly equal size in random order; a single batch is not shuffled."""
        steps = self.steps(batch_size)
        if steps == 1:
            yield self
            return
        shuffled = self.take(torch.randperm(len(self), generator=order).to(self.x.device))
        edges = [len(self) * i // steps for i in range(steps + 1)]
        for start, end in itertools.pairwise(edges):
            yield shuffled.take(slice(start, end))


@dataclass(frozen=True)
class Stream:
    """Data larger than the memory, read chunk by chunk in every epoch.

    An epoch reads the chunks in random order and collects them in a shuffle buffer, the pool. The pool is shuffled and
    split into batches; the remaining rows go to the next pool. Each row occurs once per epoch. The order is determined
    by the generator alone.

    Attributes
    ----------
    read : callable
        Function of i that returns the i-th chunk on the device, the same at each call.
    sizes : tuple of int
        Number of rows of each chunk.
    pool : int
        Minimum number of rows that are shuffled together; the last chunk of a pool may exceed it.
    digest : str
        Checksum of the data, so that training is not resumed with other data; "" if training is never resumed.

    Notes
    -----
    The orders of the rows are not equally probable, as they are for :class:`Rows`: rows of one chunk stay within a pool
    of each other. Chunks should therefore be much smaller than the pool, or the rows be in random order.
    """

    read: Callable[[int], Rows]
    sizes: tuple[int, ...]
    pool: int = 65536
    digest: str = ""

    def __len__(self) -> int:
        return sum(self.sizes)

    @property
    def count(self) -> float:
        """Number of rows."""
        return float(len(self))

    @functools.cached_property
    def first(self) -> Rows:
        """Sample of the rows: up to 256 rows of the first nonempty chunk."""
        return self.read(next((i for i, size in enumerate(self.sizes) if size), 0)).take(slice(0, 256))

    def parts(self, size: int) -> Iterator[Rows]:
        """Yield the rows in order, at most `size` at a time."""
        for i in range(len(self.sizes)):
            yield from self.read(i).parts(size)

    def steps(self, batch_size: int) -> int:
        """Return the number of batches per epoch."""
        return math.ceil(len(self) / batch_size)

    def batches(self, batch_size: int, order: torch.Generator) -> Iterator[Rows]:
        """Yield minibatches of nearly equal size in random order."""
        steps = self.steps(batch_size)
        sizes = [len(self) * (i + 1) // steps - len(self) * i // steps for i in range(steps)][::-1]
        chunks = torch.randperm(len(self.sizes), generator=order, device="cpu").tolist()
        pending: list[Rows] = []
        for place, i in enumerate(chunks):
            pending.append(self.read(i))
            if sum(map(len, pending)) < self.pool and place + 1 < len(chunks):
                continue
            pool = concatenate(pending)
            start = 0
            pending.clear()
            shuffled = torch.randperm(len(pool), generator=order).to(pool.x.device)
            while sizes and start + sizes[-1] <= len(pool):
                stop = start + sizes.pop()
                yield pool.take(shuffled[start:stop])
                start = stop
            pending.append(pool.take(shuffled[start:]))
            del pool  # free its memory before the next chunk is read


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Concatenate rows; either all parts have weights, or none."""
    weights = [part.weight for part in parts if part.weight is not None]
    weight = torch.cat(weights) if weights else None
    return Rows(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]), weight)
