"""Rows of several networks that are trained jointly: every batch has one block of rows per network."""

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
    """Subsets of the rows of one table for F networks.

    A batch consists of F consecutive blocks of equal length. Blocks of networks with fewer rows are padded with rows of
    weight 0.

    Attributes
    ----------
    table : Rows
        All N rows.
    index : Tensor of int64, shape (F, M)
        Row numbers of each network.
    weight : Tensor, shape (F, M)
        Sample weights of these rows; 0 for padding.
    used : Tensor of bool, shape (F, D), optional
        Features that each network uses. The others are 0.
    """

    table: Rows
    index: Tensor
    weight: Tensor
    used: Tensor | None = None

    @classmethod
    def of(cls, table: Rows, numbers: Sequence[Tensor], used: Tensor | None = None) -> "StackedRows":
        """Build the stacked rows from the row numbers of each network, and from the features that it uses."""
        longest = max(map(len, numbers))
        device = table.x.device
        index = torch.zeros(len(numbers), longest, dtype=torch.int64)
        dtype = table.y.dtype if table.y.is_floating_point() else table.x.dtype
        weight = torch.zeros(len(numbers), longest, dtype=dtype)
        for k, rows in enumerate(numbers):
            index[k, : len(rows)] = rows
            weight[k, : len(rows)] = 1.0 if table.weight is None else table.weight[rows.to(device)].cpu()
        return cls(table, index.to(device), weight.to(device), None if used is None else used.to(device))

    def __len__(self) -> int:
        return self.index.numel()

    @property
    def count(self) -> float:
        """Sum of the sample weights of all networks; read from the device."""
        return float(self.weight.double().sum())

    @property
    def first(self) -> Rows:
        """Sample of the rows: one of each network."""
        return self._take(self.index[:, :1], self.weight[:, :1])

    def parts(self, size: int) -> Iterator[Rows]:
        """Yield the rows in order, at most `size` at a time, but at least one per network."""
        width = max(1, size // len(self.index))
        for start in range(0, self.index.shape[1], width):
            yield self._take(self.index[:, start : start + width], self.weight[:, start : start + width])

    def steps(self, batch_size: int) -> int:
        """Return the number of batches per epoch, with at most `batch_size` rows per network."""
        return math.ceil(self.index.shape[1] / batch_size)

    def batches(self, batch_size: int, order: torch.Generator) -> Iterator[Rows]:
        """Yield minibatches of nearly equal size, shuffled separately per network; a single batch is not shuffled."""
        steps = self.steps(batch_size)
        networks, longest = self.index.shape
        if steps == 1:
            yield self._take(self.index, self.weight)
            return
        shuffled = torch.rand(networks, longest, generator=order, dtype=torch.float32).argsort(1).to(self.index.device)
        index = self.index.gather(1, shuffled)
        weight = self.weight.gather(1, shuffled)
        edges = [longest * i // steps for i in range(steps + 1)]
        for start, end in itertools.pairwise(edges):
            yield self._take(index[:, start:end], weight[:, start:end])

    def _take(self, index: Tensor, weight: Tensor) -> Rows:
        rows = index.reshape(-1)
        x, y = (part.index_select(0, rows) for part in (self.table.x, self.table.y))  # several times as fast as x[rows]
        if self.used is not None:
            networks, features = self.used.shape
            x = (x.reshape(networks, -1, features) * self.used[:, None]).reshape(-1, features)
        return Rows(x, y, weight.reshape(-1))
