"""Exact draws of graphs from their priors.

The buffet in words: each unit, when its turn comes, takes the units above it as parents with probability
(m + phi) / (alpha + t + phi), where t counts the units *already served* below the parent and m those of them that took
it; then it brings new hidden parents, at a rate alpha gamma / (alpha + t) per unit of order, who wait for their turn.
The law does not depend on the order in which units are served.
"""

from collections.abc import Sequence

import numpy as np

from fathomless.families.graph.graphs import Graph
from fathomless.families.graph.priors import GraphPrior
from fathomless.system.checks import whole
from fathomless.system.errors import DataError

__all__ = ["sample"]


def sample(
    prior: GraphPrior,
    orders: Sequence[float | None],
    generator: np.random.Generator,
    *,
    most: int = 100_000,
    breadth_first: bool = False,
) -> Graph:
    """Draw a graph.

    Parameters
    ----------
    prior : GraphPrior
        The law.
    orders : sequence of D floats or None
        Orders of the observed units; None is drawn uniformly. In layers all must be 0.
    generator : numpy.random.Generator
        Source of randomness.
    most : int
        A limit of units: layers have heavy tails when the mass is much above 1.
    breadth_first : bool
        Serve new units after those that wait rather than before; the law is the same.

    Raises
    ------
    DataError
        If orders are not as the prior wants them, or a draw exceeds `most`.
    """
    _check(prior, orders)
    draw = _Kitchen(prior, generator, most, breadth_first)
    if prior.kind == "icp":
        for order in orders:
            draw.observe(generator.random() if order is None else float(order))
    else:
        draw.layers(len(orders))
    return Graph.of(draw.orders, draw.edges, len(orders))


def _check(prior: GraphPrior, orders: Sequence[float | None]) -> None:
    whole("observed units", len(orders))
    if prior.kind == "icp":
        wrong: list[float | None] = [order for order in orders if order is not None and not 0 <= order <= 1]
        allowed = "0 to 1, or None for a random one"
    else:
        wrong = [order for order in orders if order != 0]
        allowed = f"0, for prior={prior.kind!r}"
    if wrong:
        raise DataError(f"orders={wrong[0]!r} was given for an observed unit; allowed is {allowed}")


class _Kitchen:
    """A graph that grows, unit by unit, numbered as they come; in the end observed ones are put first."""

    def __init__(self, prior: GraphPrior, generator: np.random.Generator, most: int, breadth_first: bool) -> None:
        self.prior, self.generator, self.most, self.breadth_first = prior, generator, most, breadth_first
        self.where: list[float] = []
        self.links: list[tuple[int, int]] = []
        self.children: list[int] = []
        self.named: list[bool] = []  # whether observed
        self.served: list[bool] = []

    def enter(self, order: float, named: bool = False) -> int:
        if not named and len(self.where) >= self.most:
            raise DataError(f"a draw has more than {self.most:,} units; lower the mass or raise `most`")
        self.where.append(order)
        self.children.append(0)
        self.named.append(named)
        self.served.append(False)
        return len(self.where) - 1

    def link(self, upper: int, lower: int) -> None:
        self.links.append((upper, lower))
        self.children[upper] += 1

    def takes(self, upper: int, seen: int) -> bool:
        """Draw whether the next of the units below `upper`, `seen` of which were asked before, is its child."""
        extra = self.prior.popularity if self.named[upper] else 0.0
        total = self.prior.concentration + seen + extra
        return bool(self.generator.random() * total < self.children[upper] + extra)

    def observe(self, order: float) -> None:
        """Bring an observed unit, and serve it and all hidden units that follow from it."""
        unit = self.enter(order, named=True)
        below = [other for other in range(unit) if self.where[other] < order]  # all of them are served
        for seen, other in enumerate(below):
            if self.takes(unit, seen):
                self.link(unit, other)
        waiting = [unit]
        while waiting:
            present = waiting.pop(0 if self.breadth_first else -1)
            self.choose(present)
            waiting += self.bring(present)
            self.served[present] = True

    def served_below(self, order: float) -> int:
        """Units served so far whose order is below this one; the one whose turn it is does not count."""
        return sum(served and where < order for served, where in zip(self.served, self.where, strict=True))

    def served_up_to(self, order: float) -> int:
        """Units served so far whose order is at most this one: those that a new unit just above it passed by."""
        return sum(served and where <= order for served, where in zip(self.served, self.where, strict=True))

    def choose(self, present: int) -> None:
        """Choose parents among the units above, whether served or waiting."""
        for upper, order in enumerate(self.where):
            if order > self.where[present] and self.takes(upper, self.served_below(order)):
                self.link(upper, present)

    def bring(self, present: int) -> list[int]:
        """Bring new hidden parents: between two served units the rate is constant."""
        alpha, gamma, low = self.prior.concentration, self.prior.mass, self.where[present]
        cuts = sorted({where for where, served in zip(self.where, self.served, strict=True) if served and where > low})
        new = []
        for start, end in zip([low, *cuts], [*cuts, 1.0], strict=True):
            rate = alpha * gamma / (alpha + self.served_up_to(start))
            for _ in range(self.generator.poisson((end - start) * rate)):
                new.append(self.enter(self.generator.uniform(start, end)))
                self.link(new[-1], present)
        return new

    def layers(self, observed: int) -> None:
        """Draw layer after layer: each is a two-parameter Indian buffet of the one below; "ibp" ends with the first."""
        alpha, gamma, kind = self.prior.concentration, self.prior.mass, self.prior.kind
        layer = [self.enter(0.0, named=True) for _ in range(observed)]
        lower: list[int] = []  # layers below the last one
        while layer:
            new: list[int] = []
            for seen, unit in enumerate(layer):
                for upper in new:
                    if self.takes(upper, seen):
                        self.link(upper, unit)
                for _ in range(self.generator.poisson(alpha * gamma / (alpha + seen))):
                    new.append(self.enter(self.where[unit] + 1))
                    self.link(new[-1], unit)
            for upper in new if kind == "ecibp" else ():  # further down, from the totals of the layer below on
                for seen, unit in enumerate(lower, start=len(layer)):
                    if self.takes(upper, seen):
                        self.link(upper, unit)
            lower += layer
            layer = [] if kind == "ibp" else new

    @property
    def _rank(self) -> dict[int, int]:
        """Number of each unit when observed ones come first."""
        units = sorted(range(len(self.where)), key=lambda unit: not self.named[unit])
        return {unit: rank for rank, unit in enumerate(units)}

    @property
    def orders(self) -> list[float]:
        return [self.where[unit] for unit in self._rank]

    @property
    def edges(self) -> list[tuple[int, int]]:
        rank = self._rank
        return [(rank[upper], rank[lower]) for upper, lower in self.links]
