"""Batches that somebody else makes: a ``DataLoader``, or anything that gives batches as often as it is asked to.

What draws at random, an order or an augmentation, draws it from torch's generators. They are seeded anew for every
batch of every pass, so that a pass follows from one seed: a training that is resumed sees what an unbroken one does,
and several processes see the same.
"""

import functools
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fathomless.data.rows import Rows, concatenate
from fathomless.system import checks
from fathomless.system.errors import DataError
from fathomless.system.rng import as_seed, fold_in, seeded_globals

__all__ = ["Batches"]

_MEANT = "(x, y) and (x, y, weight) are allowed, tensors with one row each"


class Batches:
    """Data as batches (x, y) or (x, y, weight), read in a pass of their own for every epoch.

    Parameters
    ----------
    source : DataLoader, or an iterable of batches
        Each pass must bring all batches again: a list will do, a generator will not.
    rows : int, optional
        The number N of rows that the bound is for. By default those of a loader's data set, whatever the loader leaves
        out or repeats, and else those of one pass, which is then read once more.
    steps : int, optional
        Batches in a pass; ``len(source)`` by default. Of a source that brings more, the first ones are taken.
    device : torch.device
        Where batches are moved to.

    Raises
    ------
    DataError
        For a source that can be read only once, is no iterable, does not say how long it is, or brings something else.

    Examples
    --------
    >>> x, y = torch.randn(10, 2), torch.zeros(10, 1)
    >>> batches = Batches(DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4, shuffle=True))
    >>> len(batches), batches.steps(), batches.repeats()
    (10, 3, True)
    """

    def __init__(
        self,
        source: Iterable[Any],
        *,
        rows: int | None = None,
        steps: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        _refuse(source)
        self.source, self.device = source, torch.device(device)
        self._rows = None if rows is None else checks.whole("rows", rows)
        self._steps = _length(source) if steps is None else checks.whole("steps", steps)

    def __len__(self) -> int:
        if self._rows is None:
            self._rows = _data_set(self.source)
        if self._rows is None:
            self._rows = sum(map(len, self._read(0)))
        return self._rows

    @functools.cached_property
    def count(self) -> float:
        """Rows, each as often as it counts; with weights a pass is read."""
        if self.first.weight is None:
            return float(len(self))
        return sum(part.count for part in self._read(0))

    @functools.cached_property
    def first(self) -> Rows:
        """Return some rows to look at: those of the first batch."""
        return next(self._read(0))

    def on(self, device: torch.device) -> "Batches":
        """Return the same batches, moved to a device."""
        return Batches(self.source, rows=self._rows, steps=self._steps, device=device)

    def repeats(self) -> bool:
        """Whether the first batch of two passes with one seed is the same, so that a resumed training sees the same.

        It is not where an order, or an augmentation, draws from generators that are not torch's, or are not known here.
        """
        first, again = self.first, next(self._read(0))
        pairs = ((first.x, again.x), (first.y, again.y))
        return all(a.shape == b.shape and bool(torch.equal(a.nan_to_num(), b.nan_to_num())) for a, b in pairs)

    def parts(self, size: int) -> Iterator[Rows]:
        """Yield the rows of a pass, at most `size` at a time."""
        for part in self._read(0):
            yield from part.parts(size)

    def steps(self, batch_size: int = 0) -> int:
        """Return how many batches an epoch has; their size is the source's."""
        return self._steps

    def batches(self, batch_size: int, order: torch.Generator) -> Iterator[Rows]:
        """Yield the batches of a pass that follows from the generator; their size is the source's."""
        return self._read(as_seed(order))

    def together(self, seed: int) -> Rows:
        """Return all rows of a pass, in memory."""
        return concatenate(list(self._read(seed)))

    def _read(self, seed: int) -> Iterator[Rows]:
        for generator in _generators(self.source):
            generator.manual_seed(fold_in(seed, "loader"))
        with seeded_globals(fold_in(seed, "pass")):
            passing = iter(self.source)
        for i in range(self._steps):
            with seeded_globals(fold_in(seed, i)):
                batch = next(passing, None)
            if batch is None:
                raise DataError(
                    f"a pass over the {_name(self.source)} brought {i} batches, and {self._steps} were expected; each "
                    "pass must bring as many: give an object whose __iter__ begins anew, or say steps="
                )
            yield _as_rows(batch, i, self.device)


def _refuse(source: Any) -> None:
    """Refuse what cannot be read time and again."""
    if isinstance(source, Dataset) and not isinstance(source, IterableDataset):
        raise DataError(f"a {_name(source)} was given for batches; put it into a torch.utils.data.DataLoader")
    if isinstance(source, Iterator):
        raise DataError(
            f"a {_name(source)} was given, which can be read only once, and every epoch reads all batches; give a "
            "DataLoader, a list of batches, or an object whose __iter__ begins anew"
        )
    if not isinstance(source, Iterable):
        raise DataError(f"a {_name(source)} was given; allowed are Rows, a DataLoader and iterables of batches")


def _length(source: Iterable[Any]) -> int:
    """Return the number of batches in a pass."""
    try:
        steps = len(source) if isinstance(source, Sized) else None
    except TypeError:  # as a loader of a data set without a length says it
        steps = None
    if steps is None:
        raise DataError(
            f"a {_name(source)} was given, which does not say how many batches it has, and the bound needs the number "
            "of rows; give Batches(source, rows=N, steps=K), K batches for each epoch"
        )
    if not steps:
        raise DataError(f"a {_name(source)} without batches was given; at least 1 is needed")
    return steps


def _data_set(source: Iterable[Any]) -> int | None:
    """Return the rows of a loader's data set, if its items are rows."""
    if not isinstance(source, DataLoader) or source.batch_sampler is None or not isinstance(source.dataset, Sized):
        return None
    return len(source.dataset)


def _generators(source: Iterable[Any]) -> Iterator[torch.Generator]:
    """Yield the generators that decide about a loader's order, and seed its workers."""
    if not isinstance(source, DataLoader):
        return
    samplers: list[Any] = [source.sampler, source.batch_sampler]
    samplers += [sampler.sampler for sampler in samplers if isinstance(sampler, BatchSampler)]
    drawn = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
    each = [source.generator, *(sampler.generator for sampler in samplers if isinstance(sampler, drawn))]
    yield from (generator for generator in each if isinstance(generator, torch.Generator))


def _as_rows(batch: Any, number: int, device: torch.device) -> Rows:
    """Return a batch as rows on a device."""
    if isinstance(batch, Rows):
        batch = (batch.x, batch.y) if batch.weight is None else (batch.x, batch.y, batch.weight)
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise DataError(f"batch {number} is a {_name(batch)}{size}; {_MEANT}: give the DataLoader a collate_fn for it")
    for name, value in zip(("x", "y", "weight"), batch, strict=False):
        if not isinstance(value, Tensor):
            raise DataError(f"{name} of batch {number} is a {_name(value)}; {_MEANT}")
        if not value.ndim or not len(value) or len(value) != len(batch[0]):
            shapes = " and ".join(str(tuple(part.shape)) for part in batch)
            raise DataError(f"batch {number} has tensors of the shapes {shapes}; {_MEANT}")
    return Rows(*(value.to(device, non_blocking=True) for value in batch))


def _name(thing: Any) -> str:
    return type(thing).__name__
