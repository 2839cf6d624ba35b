"""Data on the device, and whether a model can take them."""

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fathomless.errors import DataError, FathomlessError
from fathomless.likelihoods import Categorical, Likelihood
from fathomless.models.interface import Model
from fathomless.rng import as_generator

__all__ = ["Rows", "check"]


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


@torch.no_grad()
def check(model: Model, likelihood: Likelihood, rows: Rows) -> None:
    """Try the first rows, so that what does not fit together is told before a training starts."""
    for name, value in (("x", rows.x), ("y", rows.y), ("weight", rows.weight)):
        if name == "weight" and value is None:
            continue
        if not isinstance(value, Tensor):
            raise DataError(f"{name} was given as {type(value).__name__}; a torch.Tensor is allowed")
        if value.ndim == 0 or len(value) != len(rows.x):
            raise DataError(f"{name} has shape {tuple(value.shape)} and x {tuple(rows.x.shape)}; rows must agree")
    if not len(rows):
        raise DataError("0 rows were given; at least 1 is needed")
    if rows.x.is_floating_point() and rows.x.dtype != model.dtype:
        raise DataError(f"x is {rows.x.dtype} and the model {model.dtype}; convert one of them, for instance x.float()")
    if isinstance(likelihood, Categorical):
        classes = likelihood.classes
        if rows.y.dtype != torch.int64 or bool(((rows.y < 0) | (rows.y >= classes)).any()):
            raise DataError(
                f"y is {rows.y.dtype} from {rows.y.min()} to {rows.y.max()}; classes are int64 from 0 to {classes - 1}"
            )
    was_training = model.training
    model.eval()
    try:
        draws = model.draw(rows.x[:2], 1, as_generator(0, device=rows.x.device))
        likelihood.log_prob(draws.f, rows.y[:2])
    except (RuntimeError, TypeError, IndexError) as error:
        if isinstance(error, FathomlessError):
            raise
        raise DataError(
            f"the network cannot be applied to x of shape {tuple(rows.x.shape)} and y of shape {tuple(rows.y.shape)}: "
            f"{error}; check that each layer accepts what the one before it returns"
        ) from error
    finally:
        model.train(was_training)
