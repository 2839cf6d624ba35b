"""Data on the device, and whether a model can take them."""

import functools
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
