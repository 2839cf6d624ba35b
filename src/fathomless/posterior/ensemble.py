r"""Ensembles: several models of one family side by side, as one model.

The posterior of an ensemble is the mixture :math:`\sum_i w_i\, q_i` of its members' posteriors: its draws are their
draws, and its evidence bound is the weighted mean of their bounds. (The entropy of which member is drawn would raise
the bound further; it does not depend on any parameter, and is left out.)
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from fathomless.posterior.model import Draws, Model, Structure
from fathomless.system.errors import DataError

__all__ = ["Ensemble"]


class Ensemble(Model):
    """Members of one family, each with a weight.

    Parameters
    ----------
    members : sequence of Model
        Of one class and for the same inputs and likelihood.
    weights : sequence of float, optional
        Positive; divided by their sum. Equal by default.

    Raises
    ------
    DataError
        For no members, members of several classes, or weights that are not one positive number for each.

    Examples
    --------
    >>> from fathomless.nn.architectures import MLP
    >>> from fathomless.families.depth.model import UnboundedDepth
    >>> net = MLP(inputs=2, outputs=1, width=4)
    >>> both = Ensemble([UnboundedDepth(net.layer, net.head, seed=seed) for seed in (0, 1)])
    >>> draws = both.draw(torch.zeros(5, 2))
    >>> draws.f.shape, round(draws.log_weight.exp().sum().item(), 6)
    (torch.Size([12, 5, 1]), 1.0)
    """

    log_weight: Tensor  # (M,)

    def __init__(self, members: Sequence[Model], weights: Sequence[float] | None = None) -> None:
        super().__init__()
        kinds = sorted({type(member).__name__ for member in members})
        if len(kinds) != 1:
            raise DataError(f"an ensemble of {', '.join(kinds) or 'no members'} was asked for; one class is allowed")
        weight = torch.tensor([1.0] * len(members) if weights is None else list(weights), dtype=torch.float64)
        if weight.shape != (len(members),) or not bool((weight.isfinite() & (weight > 0.0)).all()):
            raise DataError(
                f"weights={weights} were given for {len(members)} members; one positive number for each is needed"
            )
        self.members = nn.ModuleList(members)
        self.register_buffer("log_weight", (weight / weight.sum()).log().to(members[0].device))

    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights."""
        return self._each()[0].dtype

    @property
    def device(self) -> torch.device:
        """Where the members live."""
        return self._each()[0].device

    @property
    def stochastic(self) -> bool:
        """Whether the weights of any member are drawn."""
        return any(member.stochastic for member in self._each())

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Put the members' draws side by side, `n` weight draws of each; divergences are weighted means."""
        each = [member.draw(x, n, generator) for member in self._each()]
        weight = self.log_weight.exp().unbind()  # scalars
        divergence: dict[str, Tensor] = {}
        for draws, share in zip(each, weight, strict=True):
            for name, term in draws.divergence.items():
                divergence[name] = divergence.get(name, 0.0) + share * term
        return Draws(
            f=torch.cat([draws.f for draws in each]),  # (ΣS, B, K)
            log_weight=torch.cat([d.log_weight + w for d, w in zip(each, self.log_weight, strict=True)]),
            structure=torch.cat([draws.structure for draws in each]),
            divergence=divergence,
        )

    def structure(self) -> Structure:
        """Average the members' posteriors over structure, by name; a structure that a member has not counts as 0."""
        each, weight = [member.structure() for member in self._each()], self.weights
        mass: dict[str, float] = {}
        statistics: dict[str, float] = {}
        for one, share in zip(each, weight, strict=True):
            for name, p in zip(one.names, one.probabilities, strict=True):
                mass[name] = mass.get(name, 0.0) + share * p
            for name, value in one.statistics.items():
                statistics[name] = statistics.get(name, 0.0) + share * value
        mass = {name: mass[name] for name in sorted(mass, key=_natural)}
        likely = max(mass, key=lambda name: mass[name])
        count, kind = f"{len(each)} member{'s' if len(each) > 1 else ''}", each[0].kind
        told = f"most likely {kind} {likely} ({100.0 * mass[likely]:.0f} %)" if len(mass) > 1 else each[0].summary
        return Structure(kind, tuple(mass), tuple(mass.values()), statistics, f"{count}, {told}")

    def grow(self, limit: int | None = None) -> int:
        """Let every member grow; `limit` is for all of them together."""
        created = 0
        for member in self._each():
            created += member.grow(None if limit is None else max(limit - created, 0))
        return created

    def structure_parameters(self) -> dict[str, nn.Parameter]:
        """Return the members' parameters, as ``members.0.…``."""
        return self._joined(lambda member: member.structure_parameters())

    def fisher(self) -> Tensor:
        """Fisher information of the posterior over member and structure: blocks w_i I_i.

        A natural step on the ensemble's bound is then the natural step of each member on its own.
        """
        blocks = zip(self.log_weight.exp().unbind(), self._each(), strict=True)
        whole: Tensor = torch.block_diag(*(share * member.fisher() for share, member in blocks))
        return whole

    def usage(self) -> dict[str, Tensor]:
        """Return the probability that a parameter's member is drawn, and uses it."""
        used: dict[str, Tensor] = {}
        for i, (share, member) in enumerate(zip(self.log_weight.exp().unbind(), self._each(), strict=True)):
            own, structure = member.usage(), member.structure_parameters()
            for name, _ in member.named_parameters():
                if name not in structure:
                    used[f"members.{i}.{name}"] = share * own.get(name, 1.0)
        return used

    def layout(self) -> dict[str, Any]:
        """Return the members' layouts, in order."""
        return {"members": [member.layout() for member in self._each()]}

    def restore(self, layout: dict[str, Any]) -> None:
        """Restore every member.

        Raises
        ------
        DataError
            For another number of members: an ensemble cannot build any.
        """
        if len(layout["members"]) != len(self.members):
            raise DataError(
                f"the layout of {len(layout['members'])} members was given to an ensemble of {len(self.members)}; "
                "build it with as many"
            )
        for member, own in zip(self._each(), layout["members"], strict=True):
            member.restore(own)

    def joined(self, others: Sequence[Model]) -> "Ensemble":
        """Join the first members of all ensembles, the second, and so on.

        Raises
        ------
        DataError
            If the ensembles, or their members, are not built alike.
        """
        alike = [other for other in others if isinstance(other, Ensemble) and other.weights == self.weights]
        if len(alike) < len(others):
            raise DataError(
                f"an ensemble of {len(self.members)} members was joined with another kind of model, or with an "
                "ensemble of other weights; networks that are trained side by side must be built alike"
            )
        rows = zip(*(ensemble._each() for ensemble in (self, *alike)), strict=True)
        return Ensemble([first.joined(rest) for first, *rest in rows], self.weights)

    @property
    def weights(self) -> list[float]:
        """Weight of each member; they sum to 1."""
        return cast(list[float], self.log_weight.double().softmax(0).tolist())

    def _each(self) -> list[Model]:
        return cast(list[Model], list(self.members))

    def _joined(self, of: Callable[[Model], dict[str, nn.Parameter]]) -> dict[str, nn.Parameter]:
        return {f"members.{i}.{name}": value for i, m in enumerate(self._each()) for name, value in of(m).items()}


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sort "2" before "10"."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name) if part]
