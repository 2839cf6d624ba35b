"""Rows of several networks that are trained jointly: every batch has one block of rows per network."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

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
    kept : Tensor of int64, shape (F, M), optional
        Indices of the features of each network, −1 for a feature that is 0; all D features of the table by default.
    whole : StackedRows, optional
        Rows of all networks, if these are the rows of some of them; see :meth:`share`.
    start : int
        Index of the first one of these networks among all.
    counts : bool
        False if another process has the same of several networks, so that sums over processes leave these rows out.
    """

    table: Rows
    index: Tensor
    weight: Tensor
    kept: Tensor | None = None
    whole: "StackedRows | None" = None
    start: int = 0
    counts: bool = True

    @classmethod
    def of(cls, table: Rows, numbers: Sequence[Tensor], used: Tensor | None = None) -> "StackedRows":
        """Build stacked rows.

        Parameters
        ----------
        table : Rows
            All N rows.
        numbers : sequence of F Tensors of int64
            Row numbers of each network.
        used : Tensor of bool, shape (F, D), optional
            Features that each network uses. Its rows have these features alone, and zeros at the end if another network
            uses more.
        """
        longest = max(map(len, numbers))
        device = table.x.device
        index = torch.zeros(len(numbers), longest, dtype=torch.int64)
        dtype = table.y.dtype if table.y.is_floating_point() else table.x.dtype
        weight = torch.zeros(len(numbers), longest, dtype=dtype)
        for k, rows in enumerate(numbers):
            index[k, : len(rows)] = rows
            weight[k, : len(rows)] = 1.0 if table.weight is None else table.weight[rows.to(device)].cpu()
        if used is not None:
            order = (~used).byte().argsort(dim=1, stable=True)  # the used ones first
            kept = order.masked_fill(~used.gather(1, order), -1)[:, : max(1, int(used.sum(1).max()))].to(device)
            table = replace(table, x=table.x.contiguous())
        return cls(table, index.to(device), weight.to(device), None if used is None else kept)

    def share(self, networks: range, *, counts: bool = True) -> "StackedRows":
        """Return the rows of some of the networks; their batches are those that they have among all networks."""
        chosen = slice(networks.start, networks.stop)
        kept = None if self.kept is None else self.kept[chosen]
        return StackedRows(self.table, self.index[chosen], self.weight[chosen], kept, self, networks.start, counts)

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
        count = networks if self.whole is None else len(self.whole.index)
        drawn = torch.rand(count, longest, generator=order, dtype=torch.float32)
        shuffled = drawn[self.start : self.start + networks].argsort(1).to(self.index.device)
        index = self.index.gather(1, shuffled)
        weight = self.weight.gather(1, shuffled)
        edges = [longest * i // steps for i in range(steps + 1)]
        for start, end in itertools.pairwise(edges):
            yield self._take(index[:, start:end], weight[:, start:end])

    def _take(self, index: Tensor, weight: Tensor) -> Rows:
        rows = index.reshape(-1)
        y = self.table.y.index_select(0, rows)  # several times as fast as y[rows]
        if self.kept is None:
            return Rows(self.table.x.index_select(0, rows), y, weight.reshape(-1))
        kept = self.kept[:, None]
        places = index[..., None] * self.table.x.shape[1] + kept.clamp(min=0)  # in the table as a vector, (F, B, M)
        x = self.table.x.view(-1).index_select(0, places.reshape(-1)).view_as(places) * (kept >= 0)
        return Rows(x.reshape(-1, kept.shape[-1]), y, weight.reshape(-1))
