"""Rows of many trainings in one tensor, and what may be trained side by side."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fathomless.data.rows import Rows
from fathomless.inference.variational.training import Training
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system.errors import DataError

__all__ = ["OWN", "PaddedRows", "refuse_buffers", "refuse_shapes", "refuse_unlike"]

#: Options in which trainings side by side may differ.
OWN = ("learning_rate", "structure_rate", "temperature")  # options that may differ


@dataclass(frozen=True)
class PaddedRows:
    """Rows of F members.

    Attributes
    ----------
    rows : Rows
        (F, N, …) if each member has its own, else (N, …).
    apart : bool
        Whether each has its own.
    counts : sequence of F floats
        How much each member's rows count.
    """

    rows: Rows
    apart: bool
    counts: Sequence[float]

    @classmethod
    def of(cls, name: str, given: Rows | Sequence[Rows], members: int) -> "PaddedRows":
        """Stack the rows of every member, unless one set serves all.

        Raises
        ------
        DataError
            If the sets differ in size, or are not one for each member.
        """
        if isinstance(given, Rows):
            return cls(given, False, [given.count] * members)
        if len(given) != members:
            raise DataError(f"{members} models and {len(given)} sets of {name} rows were given; give one, or one each")
        if len({(len(rows), rows.weight is None) for rows in given}) > 1:
            raise DataError(
                f"the sets of {name} rows have {', '.join(str(len(rows)) for rows in given)} rows; trainings side by "
                "side need equally many, and weights for all or for none"
            )
        weights = [rows.weight for rows in given if rows.weight is not None]
        x, y = torch.stack([rows.x for rows in given]), torch.stack([rows.y for rows in given])
        return cls(Rows(x, y, torch.stack(weights) if weights else None), True, [rows.count for rows in given])

    def __len__(self) -> int:
        return self.rows.x.shape[int(self.apart)]

    def take(self, members: Sequence[int], index: Tensor | slice) -> Rows:
        """Return rows (F, B, …) of some members; the index is (F, B), or a slice for all of them."""
        device = self.rows.x.device
        if isinstance(index, slice):
            index = torch.arange(*index.indices(len(self)), device=device).expand(len(members), -1)
        if not self.apart:
            return self.rows.take(index)
        member, weight = torch.tensor(members, device=device)[:, None], self.rows.weight
        x, y = self.rows.x[member, index], self.rows.y[member, index]
        return Rows(x, y, None if weight is None else weight[member, index])

    def one(self, i: int) -> Rows:
        """Return all rows of one member."""
        if not self.apart:
            return self.rows
        return Rows(self.rows.x[i], self.rows.y[i], None if self.rows.weight is None else self.rows.weight[i])


def refuse_unlike(trainings: Sequence[Training], likelihoods: Sequence[Likelihood]) -> None:
    """Refuse options and likelihoods that cannot go side by side."""
    first = trainings[0]
    for other in trainings:
        if replace(other, **{name: getattr(first, name) for name in OWN}) != first:
            raise DataError(f"the trainings differ in more than {', '.join(OWN)}; side by side they share the rest")
    for name, allowed in (("optimizer", "adam"), ("structure_optimizer", "adam"), ("max_growth", None)):
        if getattr(first, name) != allowed:
            raise DataError(f"{name}={getattr(first, name)!r} was given; trainings side by side have {allowed!r}")
    if len({_character(likelihood) for likelihood in likelihoods}) > 1:
        raise DataError("the likelihoods differ; trainings side by side need the same kind with the same options")


def refuse_shapes(name: str, filler: Tensor, rows: Sequence[Tensor | None]) -> None:
    """Refuse parameters of one name and several shapes."""
    shapes = {tuple(row.shape) for row in rows if row is not None}
    if shapes - {tuple(filler.shape)}:
        raise DataError(f"{name} has the shapes {sorted(shapes)} in the models given; side by side they must be equal")


def refuse_buffers(pair: nn.Module) -> None:
    """Refuse networks that keep more than parameters, such as running statistics."""
    buffers = sorted(set(pair.state_dict()) - {name for name, _ in pair.named_parameters()})
    if buffers:
        raise DataError(
            f"the networks keep {buffers[0]} beside their weights, which trainings side by side cannot; use layers "
            "without running statistics, for instance norm='group'"
        )


def _character(likelihood: Likelihood) -> tuple[Any, ...]:
    """Return what a likelihood is, but for what it learns."""
    parts = []
    for part in likelihood.modules():
        plain = ((name, v) for name, v in sorted(vars(part).items()) if isinstance(v, int | float | str))
        parts.append((type(part).__name__, *((name, v) for name, v in plain if name != "training")))
    return tuple(parts)
