"""Data on the device: in memory, or read chunk by chunk."""

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Rows", "Stream", "concatenate"]


@dataclass(frozen=True)
class Rows:
    """Data on the device.

    Attributes
    ----------
    x : Tensor, shape (N, ...)
        Inputs.
    y : Tensor, shape (N, ...)
        Targets.
    weight : Tensor, shape (N,), optional
        How often each row counts.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)

    @functools.cached_property
    def count(self) -> float:
        """Rows, each as often as it counts; reads the device once."""
        return float(len(self.x)) if self.weight is None else float(self.weight.double().sum())

    @property
    def average(self) -> Tensor:
        """Return the mean of the inputs, rows weighted, shape (...), float64."""
        weight = self.x.new_ones(len(self.x)) if self.weight is None else self.weight
        summed: Tensor = torch.tensordot(weight.double(), self.x.double(), 1)
        return summed / self.count

    @property
    def first(self) -> "Rows":
        """Return some rows to look at: here, all."""
        return self

    def take(self, index: Tensor | slice) -> "Rows":
        """Return the rows of an index."""
        return Rows(self.x[index], self.y[index], None if self.weight is None else self.weight[index])

    def parts(self, size: int) -> Iterator["Rows"]:
        """Yield the rows in their order, at most `size` at a time."""
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))

    def steps(self, batch_size: int) -> int:
        """Return how many batches an epoch has."""
        return math.ceil(len(self) / batch_size)

    def batches(self, batch_size: int, order: torch.Generator) -> Iterator["Rows"]:
        """Yield batches of nearly equal size, in random order; one batch keeps its order."""
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
    """Data that are read chunk by chunk, time and again, because they are larger than the memory.

    An epoch takes the chunks in random order, puts as many together as make a pool, and cuts the pool, in random order,
    into batches; what is left of it goes into the next one. Each row comes once per epoch. The order follows from the
    generator alone.

    Attributes
    ----------
    read : callable
        Given i, returns the i-th chunk, on the device; the same one each time.
    sizes : tuple of int
        Rows of each chunk.
    pool : int
        Rows that are shuffled together, at least; the last chunk of a pool may go beyond.
    digest : str
        Names the data, so that a training of other data is not taken up; "" where nobody will ask.

    Notes
    -----
    Not guaranteed: that each order of the rows is equally probable, as it is for :class:`Rows`. Rows of one chunk stay
    within a pool of each other. So chunks should be much smaller than the pool, or the rows in random order.
    """

    read: Callable[[int], Rows]
    sizes: tuple[int, ...]
    pool: int = 65536
    digest: str = ""

    def __len__(self) -> int:
        return sum(self.sizes)

    @property
    def count(self) -> float:
        """Rows."""
        return float(len(self))

    @functools.cached_property
    def first(self) -> Rows:
        """Return some rows to look at: those of the first chunk that has any."""
        return self.read(next((i for i, size in enumerate(self.sizes) if size), 0)).take(slice(0, 256))

    def parts(self, size: int) -> Iterator[Rows]:
        """Yield the rows in their order, at most `size` at a time."""
        for i in range(len(self.sizes)):
            yield from self.read(i).parts(size)

    def steps(self, batch_size: int) -> int:
        """Return how many batches an epoch has."""
        return math.ceil(len(self) / batch_size)

    def batches(self, batch_size: int, order: torch.Generator) -> Iterator[Rows]:
        """Yield batches of nearly equal size, in random order."""
        steps = self.steps(batch_size)
        sizes = [len(self) * (i + 1) // steps - len(self) * i // steps for i in range(steps)][::-1]
        chunks = torch.randperm(len(self.sizes), generator=order, device="cpu").tolist()
        held: list[Rows] = []
        for place, i in enumerate(chunks):
            held.append(self.read(i))
            if sum(map(len, held)) < self.pool and place + 1 < len(chunks):
                continue
            pool, start = concatenate(held), 0
            held.clear()
            shuffled = torch.randperm(len(pool), generator=order).to(pool.x.device)
            while sizes and start + sizes[-1] <= len(pool):
                stop = start + sizes.pop()
                yield pool.take(shuffled[start:stop])
                start = stop
            held.append(pool.take(shuffled[start:]))
            del pool  # before the next one is gathered


def concatenate(parts: Sequence[Rows]) -> Rows:
    """Put rows after each other; all have weights, or none."""
    weights = [part.weight for part in parts if part.weight is not None]
    weight = torch.cat(weights) if weights else None
    return Rows(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]), weight)
