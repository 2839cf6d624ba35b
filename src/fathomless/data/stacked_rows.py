"""Rows of several networks at once: each network's rows are a block of every batch."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fathomless.data.rows import Rows

__all__ = ["StackedRows"]


@dataclass(frozen=True)
class StackedRows:
    """Some of the rows of one table for each of F networks.

    A batch holds F blocks of equal length one after the other; where a network has fewer rows than others, its block is
    filled up with rows of weight 0.

    Attributes
    ----------
    table : Rows
        All N rows.
    index : Tensor of int64, shape (F, M)
        Numbers of each network's rows.
    weight : Tensor, shape (F, M)
        How often they count; 0 for filling.
    """

    table: Rows
    index: Tensor
    weight: Tensor

    @classmethod
    def of(cls, table: Rows, numbers: Sequence[Tensor]) -> "StackedRows":
        """Lay out the rows with the given numbers, one set for each network."""
        longest, device = max(map(len, numbers)), table.x.device
        index = torch.zeros(len(numbers), longest, dtype=torch.int64)
        weight = torch.zeros(
            len(numbers), longest, dtype=table.y.dtype if table.y.is_floating_point() else table.x.dtype
        )
        for k, own in enumerate(numbers):
            index[k, : len(own)] = own
            weight[k, : len(own)] = 1.0 if table.weight is None else table.weight[own.to(device)].cpu()
        return cls(table, index.to(device), weight.to(device))

    def __len__(self) -> int:
        return self.index.numel()

    @property
    def count(self) -> float:
        """Rows of all networks, each as often as it counts; reads the device."""
        return float(self.weight.double().sum())

    @property
    def first(self) -> Rows:
        """Return one row of each network."""
        return self._taken(self.index[:, :1], self.weight[:, :1])

    def parts(self, size: int) -> Iterator[Rows]:
        """Yield blocks in their order, at most `size` rows at a time, but one of each network at least."""
        width = max(1, size // len(self.index))
        for start in range(0, self.index.shape[1], width):
            yield self._taken(self.index[:, start : start + width], self.weight[:, start : start + width])

    def steps(self, batch_size: int) -> int:
        """Return how many batches of at most `batch_size` rows for each network an epoch has."""
        return math.ceil(self.index.shape[1] / batch_size)

    def batches(self, batch_size: int, order: torch.Generator) -> Iterator[Rows]:
        """Yield batches of nearly equal size, each network's rows in an order of its own; one batch keeps its order."""
        steps, (networks, longest) = self.steps(batch_size), self.index.shape
        if steps == 1:
            yield self._taken(self.index, self.weight)
            return
        shuffled = torch.rand(networks, longest, generator=order, dtype=torch.float32).argsort(1).to(self.index.device)
        index, weight = self.index.gather(1, shuffled), self.weight.gather(1, shuffled)
        edges = [longest * i // steps for i in range(steps + 1)]
        for start, end in itertools.pairwise(edges):
            yield self._taken(index[:, start:end], weight[:, start:end])

    def _taken(self, index: Tensor, weight: Tensor) -> Rows:
        rows = index.reshape(-1)
        return Rows(self.table.x[rows], self.table.y[rows], weight.reshape(-1))
