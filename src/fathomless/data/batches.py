"""Batches from a user's source: a ``DataLoader``, or any iterable that can be read repeatedly.

Random orders and augmentations must draw from torch's generators. These are seeded for every batch of every pass, so
that a pass is determined by one seed. A resumed training therefore sees the same batches as an uninterrupted one, and
so do several processes.
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

_MEANT = "allowed are (x, y) and (x, y, weight), tensors with equally many rows"


class Batches:
    """Data as batches (x, y) or (x, y, weight), read anew in every epoch.

    Parameters
    ----------
    source : DataLoader, or an iterable of batches
        Each pass must yield all batches: a list is allowed, a generator is not.
    rows : int, optional
        Number N of rows in the evidence lower bound. The default is the size of a loader's data set, even if the loader
        drops or repeats rows; for other sources it is the number of rows of one pass, which is then read once more.
    steps : int, optional
        Number of batches in a pass; ``len(source)`` by default. Further batches of the source are not read.
    device : torch.device
        Device to which batches are moved.

    Raises
    ------
    DataError
        If the source can be read only once, is not iterable, has no length, or yields anything other than batches.

    Examples
    --------
    >>> x, y = torch.randn(10, 2), torch.zeros(10, 1)
    >>> batches = Batches(DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=4, shuffle=True))
    >>> len(batches), batches.steps(), batches.is_reproducible()
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
        _check_source(source)
        self.source, self.device = source, torch.device(device)
        self._rows = None if rows is None else checks.whole("rows", rows)
        self._steps = _count_batches(source) if steps is None else checks.whole("steps", steps)

    def __len__(self) -> int:
        if self._rows is None:
            self._rows = _count_rows(self.source)
        if self._rows is None:
            self._rows = sum(map(len, self._read(0)))
        return self._rows

    def size_for(self, rows: int) -> int:
        """Return the number of rows of the bound that a batch of `rows` rows estimates, so that all rows count equally.

        It is N for equal batches. If the last batch of a pass is smaller, it is `rows` times the number of batches: the
        sum of the log-likelihood over a pass is then that of all rows.
        """
        full = len(self.first)
        return self._steps * rows if 0 <= self._steps * full - len(self) < full else len(self)

    @functools.cached_property
    def count(self) -> float:
        """Sum of the sample weights, or the number of rows without weights; with weights, a pass is read."""
        if self.first.weight is None:
            return float(len(self))
        return sum(part.count for part in self._read(0))

    @functools.cached_property
    def first(self) -> Rows:
        """Rows of the first batch, as a sample."""
        return next(self._read(0))

    def on(self, device: torch.device) -> "Batches":
        """Return the same batches, moved to a device."""
        return Batches(self.source, rows=self._rows, steps=self._steps, device=device)

    def is_reproducible(self) -> bool:
        """Return True if two passes with one seed have the same first batch, so that training can be resumed exactly.

        Return False if an order or augmentation draws from another generator than torch's, or from an unknown one.
        """
        first = self.first
        again = next(self._read(0))
        pairs = ((first.x, again.x), (first.y, again.y))
        return all(a.shape == b.shape and bool(torch.equal(a.nan_to_num(), b.nan_to_num())) for a, b in pairs)

    def parts(self, size: int) -> Iterator[Rows]:
        """Yield the rows of a pass, at most `size` at a time."""
        for part in self._read(0):
            yield from part.parts(size)

    def steps(self, batch_size: int = 0) -> int:
        """Return the number of batches per epoch; the source sets the batch size."""
        return self._steps

    def batches(self, batch_size: int, order: torch.Generator) -> Iterator[Rows]:
        """Yield the batches of a pass seeded by the generator; the source sets the batch size."""
        return self._read(as_seed(order))

    def read_all(self, seed: int) -> Rows:
        """Return all rows of a pass in memory."""
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
                    f"a pass over the {_type_name(self.source)} yielded {i} batches, expected {self._steps}; every "
                    "pass must yield as many: give an object whose __iter__ starts a new pass, or set steps="
                )
            yield _as_rows(batch, i, self.device)


def _check_source(source: Any) -> None:
    """Raise an error if a source cannot be read repeatedly."""
    if isinstance(source, Dataset) and not isinstance(source, IterableDataset):
        raise DataError(
            f"a {_type_name(source)} was given instead of batches; pass it to a torch.utils.data.DataLoader"
        )
    if isinstance(source, Iterator):
        raise DataError(
            f"a {_type_name(source)} was given, which can be read only once, but every epoch reads all batches; give a "
            "DataLoader, a list of batches, or an object whose __iter__ starts a new pass"
        )
    if not isinstance(source, Iterable):
        raise DataError(f"a {_type_name(source)} was given; allowed are Rows, a DataLoader and iterables of batches")


def _count_batches(source: Iterable[Any]) -> int:
    """Return the number of batches in a pass."""
    try:
        steps = len(source) if isinstance(source, Sized) else None
    except TypeError:  # raised by a loader whose data set has no length
        steps = None
    if steps is None:
        raise DataError(
            f"a {_type_name(source)} was given, which has no length, but the evidence lower bound needs the number of "
            "rows; give Batches(source, rows=N, steps=K) with K batches per epoch"
        )
    if not steps:
        raise DataError(f"a {_type_name(source)} without batches was given; at least one batch is needed")
    return steps


def _count_rows(source: Iterable[Any]) -> int | None:
    """Return the number of rows of a loader's data set, or None if its items are not rows."""
    if not isinstance(source, DataLoader) or source.batch_sampler is None or not isinstance(source.dataset, Sized):
        return None
    return len(source.dataset)


def _generators(source: Iterable[Any]) -> Iterator[torch.Generator]:
    """Yield the generators that determine the order of a loader and seed its workers."""
    if not isinstance(source, DataLoader):
        return
    samplers: list[Any] = [source.sampler, source.batch_sampler]
    samplers += [sampler.sampler for sampler in samplers if isinstance(sampler, BatchSampler)]
    random = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
    generators = [source.generator, *(sampler.generator for sampler in samplers if isinstance(sampler, random))]
    yield from (generator for generator in generators if isinstance(generator, torch.Generator))


def _as_rows(batch: Any, number: int, device: torch.device) -> Rows:
    """Return a batch as rows on a device."""
    if isinstance(batch, Rows):
        batch = (batch.x, batch.y) if batch.weight is None else (batch.x, batch.y, batch.weight)
    if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
        size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise DataError(
            f"batch {number} is a {_type_name(batch)}{size}; {_MEANT}: give the DataLoader a suitable collate_fn"
        )
    for name, value in zip(("x", "y", "weight"), batch, strict=False):
        if not isinstance(value, Tensor):
            raise DataError(f"{name} of batch {number} is a {_type_name(value)}; {_MEANT}")
        if not value.ndim or not len(value) or len(value) != len(batch[0]):
            shapes = " and ".join(str(tuple(part.shape)) for part in batch)
            raise DataError(f"batch {number} has tensors of shapes {shapes}; {_MEANT}")
    return Rows(*(value.to(device, non_blocking=True) for value in batch))


def _type_name(thing: Any) -> str:
    return type(thing).__name__
