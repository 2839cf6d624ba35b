r"""Ensembles: several models of one family side by side, as one model.

The posterior of an ensemble is the mixture :math:`\sum_i w_i\, q_i` of its members' posteriors: its draws are their
draws, and its evidence bound is the weighted mean of their bounds. (The entropy of which member is drawn would raise
the bound further; it does not depend on any parameter, and is left out.)
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from fathomless.posterior.capabilities import Resizable
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.structure import Structure
from fathomless.system.errors import DataError

__all__ = ["Ensemble", "check_apart", "members_of"]


def check_apart(members: Sequence[Model]) -> None:
    """Check that no parameter belongs to two networks, which could then not be trained apart.

    Raises
    ------
    DataError
        If one does, with its names.
    """
    owners: dict[int, tuple[int, str]] = {}
    for number, member in enumerate(members):
        for name, parameter in member.named_parameters():
            if not parameter.numel():
                continue
            other, known = owners.setdefault(parameter.data_ptr(), (number, name))
            if other != number:
                raise DataError(
                    f"networks {other} and {number} share one parameter, {known} and {name}; each network needs "
                    "modules of its own: let the architecture build new ones in every call, or use copy.deepcopy"
                )


def members_of(model: Model) -> list[Model]:
    """Return the members of an ensemble, or the one model that there is."""
    return [cast(Model, member) for member in model.members] if isinstance(model, Ensemble) else [model]


class Ensemble(Resizable):
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
        For no members, members of several classes or with parameters in common, or weights that are not one positive
        number for each.

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
        weight = torch.tensor(
            [1.0] * len(members) if weights is None else list(weights), dtype=torch.float64, device="cpu"
        )
        if weight.shape != (len(members),) or not bool((weight.isfinite() & (weight > 0.0)).all()):
            raise DataError(
                f"weights={weights} were given for {len(members)} members; one positive number for each is needed"
            )
        check_apart(members)
        self.members = nn.ModuleList(members)
        self.register_buffer("log_weight", (weight / weight.sum()).log().to(members[0].device))

    @property
    def stochastic(self) -> bool:
        """Whether the weights of any member are drawn."""
        return any(member.stochastic for member in self._each())

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Put the members' draws side by side, `n` weight draws of each; divergences are weighted means.

        Members are independent networks, whatever is drawn within each: `network` is the number of the member.
        """
        each = [member.draw(x, n, generator) for member in self._each()]
        weight = self.log_weight.exp().unbind()  # scalars
        divergence: dict[str, Tensor] = {}
        for draws, share in zip(each, weight, strict=True):
            for name, term in draws.divergence.items():
                divergence[name] = divergence.get(name, 0.0) + share * term
        return Draws(
            f=torch.cat([draws.f for draws in each]),  # (ΣS, B, K)
            log_weight=torch.cat([d.log_weight + w for d, w in zip(each, self.log_weight, strict=True)]),
            structure=_numbers(each),
            divergence=divergence,
            tempered=each[0].tempered,
            sampled=each[0].sampled,
            network=_networks(each),
        )

    def structure(self) -> Structure:
        """Return the mixture of the members' posteriors over structure."""
        first, *others = (member.structure() for member in self._each())
        return first.mixed(others, self.weights)

    def blueprint(self) -> dict[str, Any]:
        """Return the members' blueprints, in order; {} for members whose parts are fixed."""
        return {"members": [m.blueprint() if isinstance(m, Resizable) else {} for m in self._each()]}

    def rebuild(self, blueprint: dict[str, Any]) -> None:
        """Rebuild every member.

        Raises
        ------
        DataError
            For another number of members: an ensemble cannot build any.
        """
        if len(blueprint["members"]) != len(self.members):
            raise DataError(
                f"the blueprint of {len(blueprint['members'])} members was given to an ensemble of "
                f"{len(self.members)}; build it with as many"
            )
        for member, own in zip(self._each(), blueprint["members"], strict=True):
            if isinstance(member, Resizable):
                member.rebuild(own)

    @property
    def weights(self) -> list[float]:
        """Weight of each member; they sum to 1."""
        return cast(list[float], self.log_weight.double().softmax(0).tolist())

    def _each(self) -> list[Model]:
        return cast(list[Model], list(self.members))


def _networks(each: Sequence[Draws]) -> Tensor | None:
    """Give the draws of each member its number, (ΣS,); those of a single member keep what they have.

    A member's own draws differ from it less than other members do: were each a network of its own, members would seem
    to be more than they are.
    """
    if len(each) == 1:
        return each[0].network
    return torch.cat([torch.full_like(draws.structure, i) for i, draws in enumerate(each)])


def _numbers(each: Sequence[Draws]) -> Tensor:
    """Give the structures of all members' draws their numbers, (ΣS,).

    A listed structure is the same in every member: members that have it differ in their weights alone. The numbers of
    a sample mean something to its own member only, so each member gets numbers of its own.
    """
    if not each[0].sampled:
        return torch.cat([draws.structure for draws in each])
    numbers, first = [], 0
    for draws in each:
        _, number = draws.structure.unique(return_inverse=True)
        numbers.append(number + first)
        first += len(draws.structure)
    return torch.cat(numbers)
