"""Posteriors over structure as plain values, one class for each form.

Forms are :class:`ListedPosterior`, :class:`InclusionPosterior`, :class:`GraphPosterior` and :class:`LatentPosterior`.
Every posterior has a one-line `summary`, which is shown for forms that a page or a plot does not know.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from fathomless.posterior.fit_diagnostics import StructureWeights

__all__ = [
    "GraphPosterior",
    "InclusionPosterior",
    "InclusionRow",
    "LatentPosterior",
    "ListedPosterior",
    "Structure",
    "credible_interval",
    "make_depth_posterior",
    "with_errors",
]


@dataclass(frozen=True, kw_only=True)
class Structure(ABC):
    """A posterior over structure.

    Attributes
    ----------
    kind : str
        Name of the structure, for instance ``"depth"``.
    summary : str
        Description in one line.
    statistics : mapping of str to float
        Named scalars for the training history, for instance the mean depth.
    """

    kind: str
    summary: str = ""
    statistics: Mapping[str, float] = field(default_factory=dict)

    @abstractmethod
    def mix(self, others: Sequence[Self], shares: Sequence[float]) -> Self:
        """Return the mixture of this posterior and others of its form, for an ensemble.

        Parameters
        ----------
        others : sequence of M − 1 posteriors
            Posteriors of the other members.
        shares : sequence of M floats
            Weights of the members, this one first; they sum to 1.
        """


@dataclass(frozen=True, kw_only=True)
class ListedPosterior(Structure):
    """A posterior over a list of structures, such as depths.

    Attributes
    ----------
    names : tuple of str
        Names of the structures in the support.
    probabilities : tuple of float
        Posterior probabilities in the same order; they sum to 1.
    errors : tuple of float
        Standard errors of the probabilities if they were estimated from held-out rows; otherwise empty.
    """

    names: tuple[str, ...]
    probabilities: tuple[float, ...]
    errors: tuple[float, ...] = ()

    def mix(self, others: Sequence[Self], shares: Sequence[float]) -> Self:
        """Average the probabilities by name; a structure outside the support of a member has probability 0 there."""
        members = [self, *others]
        mass: dict[str, float] = {}
        for member, share in zip(members, shares, strict=True):
            for name, p in zip(member.names, member.probabilities, strict=True):
                mass[name] = mass.get(name, 0.0) + share * p
        mass = {name: mass[name] for name in sorted(mass, key=_natural_key)}
        mode = max(mass, key=lambda name: mass[name])
        summary = self.summary
        if len(mass) > 1:
            summary = f"most likely {self.kind} {mode} ({100.0 * mass[mode]:.0f} %)"
        return replace(
            self,
            names=tuple(mass),
            probabilities=tuple(mass.values()),
            errors=(),
            statistics=_average_statistics(members, shares),
            summary=f"{_describe_members(members)}, {summary}",
        )


@dataclass(frozen=True)
class InclusionRow:
    """Summary of the inclusion variables of one layer.

    Attributes
    ----------
    layer : str
        Name of the layer.
    weights, kept : int
        Number of weights with inclusion variables, and of those with α > ½. Biases are not counted.
    expected : float
        Mean α.
    undecided : float
        Share of the weights whose inclusion logit is between −1 and 1.
    """

    layer: str
    weights: int
    kept: int
    expected: float
    undecided: float

    @property
    def density(self) -> float:
        """Share of the weights that the median probability model keeps."""
        return self.kept / max(self.weights, 1)


@dataclass(frozen=True, kw_only=True)
class InclusionPosterior(Structure):
    """A posterior over the weights that are included in a network, summarised for each layer.

    Attributes
    ----------
    rows : tuple of InclusionRow
        A row for each layer with inclusion variables; empty if all weights are always included.
    """

    rows: tuple[InclusionRow, ...] = ()

    def mix(self, others: Sequence[Self], shares: Sequence[float]) -> Self:
        """Add up the numbers of weights of all members for each layer, and average their shares."""
        members = [self, *others]
        rows = [
            InclusionRow(
                layer=of_layer[0].layer,
                weights=sum(row.weights for row in of_layer),
                kept=sum(row.kept for row in of_layer),
                expected=sum(share * row.expected for row, share in zip(of_layer, shares, strict=True)),
                undecided=sum(share * row.undecided for row, share in zip(of_layer, shares, strict=True)),
            )
            for of_layer in zip(*(member.rows for member in members), strict=True)
        ]
        summary = f"{_describe_members(members)}, {self.summary}"
        return replace(self, rows=tuple(rows), statistics=_average_statistics(members, shares), summary=summary)


@dataclass(frozen=True, kw_only=True)
class GraphPosterior(Structure):
    """A posterior over directed graphs, summarised by quantities that do not depend on the labels of units.

    Attributes
    ----------
    counts : mapping of str to mapping of int to float
        Posterior probability of each number, for every quantity, such as ``"units"``, ``"layers"`` and ``"edges"``.
    """

    counts: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def mix(self, others: Sequence[Self], shares: Sequence[float]) -> Self:
        """Average the probability of every number."""
        members = [self, *others]
        counts: dict[str, dict[int, float]] = {}
        for member, share in zip(members, shares, strict=True):
            for quantity, law in member.counts.items():
                mass = counts.setdefault(quantity, {})
                for number, p in law.items():
                    mass[number] = mass.get(number, 0.0) + share * p
        ascending = {quantity: dict(sorted(mass.items())) for quantity, mass in counts.items()}
        summary = f"{_describe_members(members)}, {self.summary}"
        return replace(self, counts=ascending, statistics=_average_statistics(members, shares), summary=summary)


@dataclass(frozen=True, kw_only=True)
class LatentPosterior(Structure):
    """A posterior over points of a latent space that are decoded into networks: a mixture of M Gaussians.

    Attributes
    ----------
    weights : tuple of M floats
        Weights of the components; they sum to 1.
    means, scales : tuple of M tuples of floats
        Means and standard deviations of the components, one number for each latent dimension.
    """

    weights: tuple[float, ...]
    means: tuple[tuple[float, ...], ...]
    scales: tuple[tuple[float, ...], ...]

    def mix(self, others: Sequence[Self], shares: Sequence[float]) -> Self:
        """Concatenate the components of all members, with weights multiplied by the shares."""
        members = [self, *others]
        return replace(
            self,
            weights=tuple(share * w for member, share in zip(members, shares, strict=True) for w in member.weights),
            means=tuple(mean for member in members for mean in member.means),
            scales=tuple(scale for member in members for scale in member.scales),
            statistics=_average_statistics(members, shares),
            summary=f"{_describe_members(members)}, {self.summary}",
        )


def with_errors(posterior: ListedPosterior, weights: StructureWeights) -> ListedPosterior:
    """Return a copy of a posterior with standard errors estimated from held-out rows.

    Parameters
    ----------
    posterior : ListedPosterior
        Posterior over numbers, such as depths.
    weights : StructureWeights
        Weights of these numbers with their standard errors.
    """
    errors = {str(number): error for number, error in zip(weights.numbers, weights.errors, strict=True)}
    mode = max(zip(posterior.probabilities, posterior.names, strict=True))[1]
    networks = f"{weights.members} networks" if weights.members > 1 else "one network"
    return replace(
        posterior,
        errors=tuple(errors.get(name, 0.0) for name in posterior.names),
        summary=f"mean {posterior.kind} {weights.mean:.2f} ± {weights.mean_error:.2f}, largest weight on "
        f"{mode}; from {weights.rows:,} held-out rows of {networks}",
    )


def make_depth_posterior(posterior: Mapping[int, float]) -> ListedPosterior:
    """Return a posterior over depth, with statistics and a summary, from the probability of each depth."""
    mean = sum(depth * p for depth, p in posterior.items())
    mode = max(posterior, key=lambda depth: posterior[depth])
    low, high = credible_interval(posterior, 0.9)
    summary = f"depth {mode}, fixed"
    if len(posterior) > 1:
        summary = f"mean depth {mean:.2f}, most likely {mode}, 90 % between {low} and {high}"
    return ListedPosterior(
        kind="depth",
        names=tuple(map(str, posterior)),
        probabilities=tuple(posterior.values()),
        statistics={"mean_depth": mean, "deepest": float(max(posterior))},
        summary=summary,
    )


def credible_interval(posterior: Mapping[int, float], level: float) -> tuple[int, int]:
    """Return the central interval with a probability of at least `level` under a posterior over numbers.

    Examples
    --------
    >>> credible_interval({1: 0.02, 2: 0.5, 3: 0.45, 4: 0.03}, 0.9)
    (2, 3)
    """
    tail = 0.5 * (1.0 - level)
    below = 0.0  # probability below the value
    low = high = min(posterior)
    for value in sorted(posterior):
        low = value if below <= tail else low
        below += posterior[value]
        high = value
        if below >= 1.0 - tail:
            break
    return low, high


def _average_statistics(members: Sequence[Structure], shares: Sequence[float]) -> dict[str, float]:
    """Return the weighted averages of the statistics of the members."""
    statistics: dict[str, float] = {}
    for member, share in zip(members, shares, strict=True):
        for name, value in member.statistics.items():
            statistics[name] = statistics.get(name, 0.0) + share * value
    return statistics


def _describe_members(members: Sequence[Structure]) -> str:
    return f"{len(members)} member{'s' if len(members) > 1 else ''}"


def _natural_key(name: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts "2" before "10"."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name) if part]
