"""Rows of a batched training in one tensor, and checks of the models that can be trained in one batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fathomless.data.rows import Rows
from fathomless.inference.variational.training import Training
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system.errors import DataError

__all__ = ["INDIVIDUAL_OPTIONS", "PaddedRows", "refuse_buffers", "refuse_shapes", "refuse_unlike"]

#: Options that may differ between the members of a batched training.
INDIVIDUAL_OPTIONS = ("learning_rate", "structure_rate", "temperature")


@dataclass(frozen=True)
class PaddedRows:
    """Rows of F members.

    Attributes
    ----------
    rows : Rows
        (F, N, …) if each member has its own rows, else (N, …).
    separate : bool
        True if each member has its own rows.
    counts : sequence of F floats
        Sum of the sample weights of each member's rows.
    """

    rows: Rows
    separate: bool
    counts: Sequence[float]

    @classmethod
    def of(cls, name: str, data: Rows | Sequence[Rows], members: int) -> "PaddedRows":
        """Stack the rows of all members, or share one set of rows.

        Raises
        ------
        DataError
            If the sets differ in size, or their number is not that of the members.
        """
        if isinstance(data, Rows):
            return cls(data, False, [data.count] * members)
        if len(data) != members:
            raise DataError(f"{members} models and {len(data)} sets of {name} rows were given; give one, or one each")
        if len({(len(rows), rows.weight is None) for rows in data}) > 1:
            raise DataError(
                f"the sets of {name} rows have {', '.join(str(len(rows)) for rows in data)} rows; a batched training "
                "needs sets of equal size, and sample weights in all of them or in none"
            )
        weights = [rows.weight for rows in data if rows.weight is not None]
        x = torch.stack([rows.x for rows in data])
        y = torch.stack([rows.y for rows in data])
        return cls(Rows(x, y, torch.stack(weights) if weights else None), True, [rows.count for rows in data])

    def __len__(self) -> int:
        return self.rows.x.shape[int(self.separate)]

    def take(self, members: Sequence[int], index: Tensor | slice) -> Rows:
        """Return rows (F, B, …) of the given members; the index is (F, B), or one slice for all members."""
        device = self.rows.x.device
        if isinstance(index, slice):
            index = torch.arange(*index.indices(len(self)), device=device).expand(len(members), -1)
        if not self.separate:
            return self.rows.take(index)
        member = torch.tensor(members, device=device)[:, None]
        weight = self.rows.weight
        x, y = self.rows.x[member, index], self.rows.y[member, index]
        return Rows(x, y, None if weight is None else weight[member, index])

    def member(self, i: int) -> Rows:
        """Return all rows of one member."""
        if not self.separate:
            return self.rows
        return Rows(self.rows.x[i], self.rows.y[i], None if self.rows.weight is None else self.rows.weight[i])


def refuse_unlike(trainings: Sequence[Training], likelihoods: Sequence[Likelihood]) -> None:
    """Check that options and likelihoods can be used in one batch."""
    first = trainings[0]
    for other in trainings:
        if replace(other, **{name: getattr(first, name) for name in INDIVIDUAL_OPTIONS}) != first:
            options = ", ".join(INDIVIDUAL_OPTIONS)
            raise DataError(f"the trainings differ in options other than {options}; a batched training shares the rest")
    needed = {"optimizer": "adam", "structure_optimizer": "adam", "max_growth": None, "averaging": 0.0}
    for name, allowed in needed.items():
        if getattr(first, name) != allowed:
            raise DataError(f"{name}={getattr(first, name)!r} was given; a batched training needs {allowed!r}")
    if len({_describe(likelihood) for likelihood in likelihoods}) > 1:
        raise DataError("the likelihoods differ; a batched training needs the same class with the same options")


def refuse_shapes(name: str, filler: Tensor, rows: Sequence[Tensor | None]) -> None:
    """Check that the parameters of one name have the same shape in all models."""
    shapes = {tuple(row.shape) for row in rows if row is not None}
    if shapes - {tuple(filler.shape)}:
        raise DataError(f"{name} has the shapes {sorted(shapes)} in the models; a batched training needs equal shapes")


def refuse_buffers(pair: nn.Module) -> None:
    """Check that networks have no buffers, such as running statistics."""
    buffers = sorted(set(pair.state_dict()) - {name for name, _ in pair.named_parameters()})
    if buffers:
        raise DataError(
            f"the networks have the buffer {buffers[0]}, and a batched training supports parameters only; use layers "
            "without running statistics, for instance norm='group', and normalise images before"
        )


def _describe(likelihood: Likelihood) -> tuple[Any, ...]:
    """Return the classes and options of a likelihood and its parts, without learned parameters."""
    parts = []
    for part in likelihood.modules():
        options = ((name, v) for name, v in sorted(vars(part).items()) if isinstance(v, int | float | str))
        parts.append((type(part).__name__, *((name, v) for name, v in options if name != "training")))
    return tuple(parts)
