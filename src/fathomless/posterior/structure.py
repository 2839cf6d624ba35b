"""A posterior over structure as a plain value: one class for each form that it can have.

Whoever shows a posterior asks for the form it knows (:class:`ListedPosterior`, :class:`InclusionPosterior`,
:class:`GraphPosterior`, :class:`LatentPosterior`), and shows its `summary` else.
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
    "depth_structure",
    "with_errors",
]


@dataclass(frozen=True, kw_only=True)
class Structure(ABC):
    """A posterior over structure.

    Attributes
    ----------
    kind : str
        What is inferred, for instance ``"depth"``.
    summary : str
        One line for a person.
    statistics : mapping of str to float
        Named scalars that a training history follows, for instance the mean depth.
    """

    kind: str
    summary: str = ""
    statistics: Mapping[str, float] = field(default_factory=dict)

    @abstractmethod
    def mixed(self, others: Sequence[Self], shares: Sequence[float]) -> Self:
        """Return the mixture of this posterior and others of its form, as an ensemble has it.

        Parameters
        ----------
        others : sequence of M − 1 posteriors
            Of the other members.
        shares : sequence of M floats
            Weight of each member, this one first; they sum to 1.
        """


@dataclass(frozen=True, kw_only=True)
class ListedPosterior(Structure):
    """A posterior over a list of structures, such as depths.

    Attributes
    ----------
    names : tuple of str
        One name for each structure in the support.
    probabilities : tuple of float
        Posterior probability of each, in the same order; they sum to 1.
    errors : tuple of float
        Standard error of each probability, if it was estimated from held-out rows; else empty.
    """

    names: tuple[str, ...]
    probabilities: tuple[float, ...]
    errors: tuple[float, ...] = ()

    def mixed(self, others: Sequence[Self], shares: Sequence[float]) -> Self:
        """Average by name; a structure that a member has not counts as 0."""
        each, mass = [self, *others], dict[str, float]()
        for one, share in zip(each, shares, strict=True):
            for name, p in zip(one.names, one.probabilities, strict=True):
                mass[name] = mass.get(name, 0.0) + share * p
        mass = {name: mass[name] for name in sorted(mass, key=_natural)}
        likely = max(mass, key=lambda name: mass[name])
        likeliest = (
            f"most likely {self.kind} {likely} ({100.0 * mass[likely]:.0f} %)" if len(mass) > 1 else self.summary
        )
        return replace(
            self,
            names=tuple(mass),
            probabilities=tuple(mass.values()),
            errors=(),
            statistics=_averages(each, shares),
            summary=f"{_members(each)}, {likeliest}",
        )


@dataclass(frozen=True)
class InclusionRow:
    """What is included in one layer.

    Attributes
    ----------
    layer : str
        Name.
    weights, kept : int
        Weights with inclusion variables, and those with α > ½. Biases do not count.
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
    """A posterior over which weights are in a network: too many structures to list, so a table of layers.

    Attributes
    ----------
    rows : tuple of InclusionRow
        A row for each layer with inclusion variables; none where all weights are included by choice.
    """

    rows: tuple[InclusionRow, ...] = ()

    def mixed(self, others: Sequence[Self], shares: Sequence[float]) -> Self:
        """Put the weights of all members together, layer by layer; shares of weights are averages by share."""
        each = [self, *others]
        rows = [
            InclusionRow(
                layer=of_layer[0].layer,
                weights=sum(row.weights for row in of_layer),
                kept=sum(row.kept for row in of_layer),
                expected=sum(share * row.expected for row, share in zip(of_layer, shares, strict=True)),
                undecided=sum(share * row.undecided for row, share in zip(of_layer, shares, strict=True)),
            )
            for of_layer in zip(*(one.rows for one in each), strict=True)
        ]
        summary = f"{_members(each)}, {self.summary}"
        return replace(self, rows=tuple(rows), statistics=_averages(each, shares), summary=summary)


@dataclass(frozen=True, kw_only=True)
class GraphPosterior(Structure):
    """A posterior over directed graphs, by quantities that do not depend on how units are labelled.

    Attributes
    ----------
    counts : mapping of str to mapping of int to float
        Quantity, for instance ``"units"``, ``"layers"`` and ``"edges"`` -> number -> posterior probability.
    """

    counts: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def mixed(self, others: Sequence[Self], shares: Sequence[float]) -> Self:
        """Average the probability of every number."""
        each, counts = [self, *others], dict[str, dict[int, float]]()
        for one, share in zip(each, shares, strict=True):
            for quantity, law in one.counts.items():
                mass = counts.setdefault(quantity, {})
                for number, p in law.items():
                    mass[number] = mass.get(number, 0.0) + share * p
        ascending = {quantity: dict(sorted(mass.items())) for quantity, mass in counts.items()}
        summary = f"{_members(each)}, {self.summary}"
        return replace(self, counts=ascending, statistics=_averages(each, shares), summary=summary)


@dataclass(frozen=True, kw_only=True)
class LatentPosterior(Structure):
    """A posterior over points of a latent space that are decoded into networks: a mixture of M normal laws.

    Attributes
    ----------
    weights : tuple of M floats
        Of the laws; they sum to 1.
    means, scales : tuple of M tuples of floats
        Centre and standard deviations of each law, a number for each latent dimension.
    """

    weights: tuple[float, ...]
    means: tuple[tuple[float, ...], ...]
    scales: tuple[tuple[float, ...], ...]

    def mixed(self, others: Sequence[Self], shares: Sequence[float]) -> Self:
        """Put the laws of all members side by side."""
        each = [self, *others]
        return replace(
            self,
            weights=tuple(share * w for one, share in zip(each, shares, strict=True) for w in one.weights),
            means=tuple(mean for one in each for mean in one.means),
            scales=tuple(scale for one in each for scale in one.scales),
            statistics=_averages(each, shares),
            summary=f"{_members(each)}, {self.summary}",
        )


def with_errors(posterior: ListedPosterior, found: StructureWeights) -> ListedPosterior:
    """Return a posterior with the standard errors that rows have given it.

    Parameters
    ----------
    posterior : ListedPosterior
        Over numbers, such as depths.
    found : StructureWeights
        Weights of these numbers with their errors.
    """
    errors = {str(number): error for number, error in zip(found.numbers, found.errors, strict=True)}
    likely = max(zip(posterior.probabilities, posterior.names, strict=True))[1]
    networks = f"{found.members} networks" if found.members > 1 else "one network"
    return replace(
        posterior,
        errors=tuple(errors.get(name, 0.0) for name in posterior.names),
        summary=f"mean {posterior.kind} {found.mean:.2f} ± {found.mean_error:.2f}, largest weight on "
        f"{likely}; from {found.rows:,} rows that {networks} did not see",
    )


def depth_structure(posterior: Mapping[int, float]) -> ListedPosterior:
    """Return a posterior over depth, depth -> probability, with a summary."""
    mean = sum(depth * p for depth, p in posterior.items())
    mode = max(posterior, key=lambda depth: posterior[depth])
    low, high = credible_interval(posterior, 0.9)
    return ListedPosterior(
        kind="depth",
        names=tuple(map(str, posterior)),
        probabilities=tuple(posterior.values()),
        statistics={"mean_depth": mean, "deepest": float(max(posterior))},
        summary=f"mean depth {mean:.2f}, most likely {mode}, 90 % between {low} and {high}"
        if len(posterior) > 1
        else f"depth {mode}, fixed",
    )


def credible_interval(posterior: Mapping[int, float], level: float) -> tuple[int, int]:
    """Return the central interval that holds at least `level` of a posterior over numbers, such as depths.

    Examples
    --------
    >>> credible_interval({1: 0.02, 2: 0.5, 3: 0.45, 4: 0.03}, 0.9)
    (2, 3)
    """
    tail, below = 0.5 * (1.0 - level), 0.0
    low = high = min(posterior)
    for value in sorted(posterior):
        low = value if below <= tail else low
        below += posterior[value]
        high = value
        if below >= 1.0 - tail:
            break
    return low, high


def _averages(each: Sequence[Structure], shares: Sequence[float]) -> dict[str, float]:
    """Average the statistics of the members by share."""
    statistics: dict[str, float] = {}
    for one, share in zip(each, shares, strict=True):
        for name, value in one.statistics.items():
            statistics[name] = statistics.get(name, 0.0) + share * value
    return statistics


def _members(each: Sequence[Structure]) -> str:
    return f"{len(each)} member{'s' if len(each) > 1 else ''}"


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Sort "2" before "10"."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name) if part]
