r"""Ensembles: several models of one family as one model.

The posterior of an ensemble is the mixture :math:`\sum_i w_i\, q_i` of its members' posteriors. Its draws are the draws
of all members, and its evidence bound is the weighted mean of their bounds. (The entropy of the weights would raise the
bound further. It does not depend on any parameter and is left out.)
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from fathomless.posterior.capabilities import JointlyEvaluable, Resizable
from fathomless.posterior.model import Deferred, Draws, Model
from fathomless.posterior.structure import Structure
from fathomless.system.errors import DataError

__all__ = ["Ensemble", "check_no_shared_parameters", "draw_jointly", "list_members"]


def check_no_shared_parameters(members: Sequence[Model]) -> None:
    """Check that no networks share a parameter, so that they can be trained separately.

    Raises
    ------
    DataError
        If two networks share a parameter; the message has its names.
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
                    "separate modules: let the architecture build new ones in every call, or use copy.deepcopy"
                )


def list_members(model: Model) -> list[Model]:
    """Return the members of an ensemble, or a list of the model itself."""
    return [cast(Model, member) for member in model.members] if isinstance(model, Ensemble) else [model]


def draw_jointly(model: Model, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
    """Return ``model.draw(x, n, generator)`` without gradients, except for rounding, in less time for ensembles.

    Members with point estimates are evaluated together. A single row is then predicted several times as fast.
    """
    with torch.no_grad():
        if isinstance(model, Ensemble) and len(model.members) > 1:
            first, *others = list_members(model)
            drawn = first.draw_jointly(others, x) if isinstance(first, JointlyEvaluable) else []
            if drawn:
                return model.join(drawn)
        return model.draw(x, n, generator)


class Ensemble(Resizable):
    """Members of one family, each with a weight.

    Parameters
    ----------
    members : sequence of Model
        Models of one class, for the same inputs and likelihood.
    weights : sequence of float, optional
        Positive weights, divided by their sum. Equal by default.

    Raises
    ------
    DataError
        If there are no members, if they are of several classes or share parameters, or if the weights are not one
        positive number for each member.

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
            raise DataError(f"an ensemble of {', '.join(kinds) or 'no members'} was given; one class is allowed")
        weight = torch.tensor(
            [1.0] * len(members) if weights is None else list(weights), dtype=torch.float64, device="cpu"
        )
        if weight.shape != (len(members),) or not bool((weight.isfinite() & (weight > 0.0)).all()):
            raise DataError(
                f"weights={weights} were given for {len(members)} members; one positive number for each is needed"
            )
        check_no_shared_parameters(members)
        self.members = nn.ModuleList(members)
        self.register_buffer("log_weight", (weight / weight.sum()).log().to(members[0].device))

    @property
    def stochastic(self) -> bool:
        """True if the weights of any member are drawn."""
        return any(member.stochastic for member in self._list_members())

    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Concatenate the draws of all members, `n` weight draws of each; divergences are weighted means.

        Members are independent networks: `network` is the index of the member.
        """
        return self.join([member.draw(x, n, generator) for member in self._list_members()])

    def join(self, member_draws: Sequence[Draws]) -> Draws:
        """Return the draws of all members on one batch as draws of the ensemble."""
        log_weights = self.log_weight.unbind()  # scalars
        weight = self.log_weight.exp().unbind()
        terms = [draws.divergence for draws in member_draws]
        names = dict.fromkeys(name for of_member in terms for name in of_member)
        divergence: Mapping[str, Tensor]
        if all(isinstance(of_member, Deferred) for of_member in terms):
            divergence = Deferred({name: partial(_average, terms, weight, name) for name in names})
        else:
            divergence = {name: _average(terms, weight, name) for name in names}
        return Draws(
            f=torch.cat([draws.f for draws in member_draws]),  # (ΣS, B, K)
            log_weight=torch.cat([d.log_weight + w for d, w in zip(member_draws, log_weights, strict=True)]),
            structure=_number_structures(member_draws),
            divergence=divergence,
            tempered=member_draws[0].tempered,
            sampled=member_draws[0].sampled,
            network=_number_networks(member_draws),
        )

    def structure(self) -> Structure:
        """Return the mixture of the members' posteriors over structure."""
        first, *others = (member.structure() for member in self._list_members())
        return first.mix(others, self.weights)

    def blueprint(self) -> dict[str, Any]:
        """Return the members' blueprints, in order; {} for members whose parts are fixed."""
        return {"members": [m.blueprint() if isinstance(m, Resizable) else {} for m in self._list_members()]}

    def rebuild(self, blueprint: dict[str, Any]) -> None:
        """Rebuild every member.

        Raises
        ------
        DataError
            If the number of members differs: an ensemble cannot create members.
        """
        if len(blueprint["members"]) != len(self.members):
            raise DataError(
                f"a blueprint of {len(blueprint['members'])} members was given to an ensemble of "
                f"{len(self.members)}; the numbers must be equal"
            )
        for member, member_blueprint in zip(self._list_members(), blueprint["members"], strict=True):
            if isinstance(member, Resizable):
                member.rebuild(member_blueprint)

    @property
    def weights(self) -> list[float]:
        """Weight of each member; they sum to 1."""
        return cast(list[float], self.log_weight.double().softmax(0).tolist())

    def _list_members(self) -> list[Model]:
        return cast(list[Model], list(self.members))


def _number_networks(member_draws: Sequence[Draws]) -> Tensor | None:
    """Return the index of the member of each draw, (ΣS,); for a single member its own `network`.

    Draws of one member are more alike than draws of different members. If each draw counted as an independent network,
    Monte Carlo errors would be too small.
    """
    if len(member_draws) == 1:
        return member_draws[0].network
    first = member_draws[0].structure
    numbers = torch.arange(len(member_draws), dtype=first.dtype, device=first.device).unbind()
    return torch.cat([i.expand(len(draws.structure)) for i, draws in zip(numbers, member_draws, strict=True)])


def _number_structures(member_draws: Sequence[Draws]) -> Tensor:
    """Return the structure of each draw of all members, (ΣS,).

    A listed structure has the same number in every member. Numbers of sampled structures are valid within one member
    only, so that those of later members are shifted to be distinct.
    """
    if not member_draws[0].sampled:
        return torch.cat([draws.structure for draws in member_draws])
    numbers: list[Tensor] = []
    first = 0
    for draws in member_draws:
        _, number = draws.structure.unique(return_inverse=True)
        numbers.append(number + first)
        first += len(draws.structure)
    return torch.cat(numbers)


def _average(terms: Sequence[Mapping[str, Tensor]], shares: Sequence[Tensor], name: str) -> Tensor:
    """Return the weighted mean of a divergence of several models; a model without it counts as 0."""
    total = torch.zeros((), device=shares[0].device)
    for of_member, share in zip(terms, shares, strict=True):
        if name in of_member:
            total = total + share * of_member[name]
    return total
