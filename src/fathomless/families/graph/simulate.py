"""Exact draws of graphs from their priors.

Units are processed ("served") one at a time. Each unit draws the units above it as parents with probability
(m + phi) / (alpha + t + phi), where t is the number of units *already served* below the parent and m the number of its
children among them. It then adds new hidden parents, at a rate alpha gamma / (alpha + t) per unit of order, which wait
to be served. The distribution does not depend on the order in which units are served.
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
        Prior over graphs.
    orders : sequence of D floats or None
        Orders of the observed units; None is drawn uniformly. For priors with layers all must be 0.
    generator : numpy.random.Generator
        Source of randomness.
    most : int
        Largest number of units: with layers its distribution is heavy-tailed for masses much above 1.
    breadth_first : bool
        Serve new units after waiting units rather than before; the distribution is the same.

    Raises
    ------
    DataError
        If the prior does not allow the orders, or a draw exceeds `most` units.
    """
    _check(prior, orders)
    draw = _GrowingGraph(prior, generator, most, breadth_first)
    if prior.kind == "icp":
        for order in orders:
            draw.observe(generator.random() if order is None else float(order))
    else:
        draw.draw_layers(len(orders))
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


class _GrowingGraph:
    """Graph under construction; units are numbered in the order of their creation, observed ones first at the end."""

    def __init__(self, prior: GraphPrior, generator: np.random.Generator, most: int, breadth_first: bool) -> None:
        self.prior = prior
        self.generator = generator
        self.most = most
        self.breadth_first = breadth_first
        self.heights: list[float] = []
        self.links: list[tuple[int, int]] = []
        self.children: list[int] = []
        self.observed: list[bool] = []
        self.served: list[bool] = []

    def add_unit(self, order: float, observed: bool = False) -> int:
        if not observed and len(self.heights) >= self.most:
            raise DataError(f"a draw has more than {self.most:,} units; lower the mass or raise `most`")
        self.heights.append(order)
        self.children.append(0)
        self.observed.append(observed)
        self.served.append(False)
        return len(self.heights) - 1

    def link(self, upper: int, lower: int) -> None:
        self.links.append((upper, lower))
        self.children[upper] += 1

    def draw_is_parent(self, upper: int, seen: int) -> bool:
        """Draw whether `upper` is a parent of the next unit below it, after `seen` units below it were served."""
        extra = self.prior.popularity if self.observed[upper] else 0.0
        total = self.prior.concentration + seen + extra
        return bool(self.generator.random() * total < self.children[upper] + extra)

    def observe(self, order: float) -> None:
        """Add an observed unit; serve it and all hidden units added for it."""
        unit = self.add_unit(order, observed=True)
        below = [other for other in range(unit) if self.heights[other] < order]  # all of these are served
        for seen, other in enumerate(below):
            if self.draw_is_parent(unit, seen):
                self.link(unit, other)
        waiting = [unit]
        while waiting:
            present = waiting.pop(0 if self.breadth_first else -1)
            self.choose_parents(present)
            waiting += self.add_parents(present)
            self.served[present] = True

    def count_served_below(self, order: float) -> int:
        """Return the number of served units with a smaller order; the unit being served is not counted."""
        return sum(served and where < order for served, where in zip(self.served, self.heights, strict=True))

    def count_served_up_to(self, order: float) -> int:
        """Return the number of served units with at most this order: those that could have added a unit just above."""
        return sum(served and where <= order for served, where in zip(self.served, self.heights, strict=True))

    def choose_parents(self, present: int) -> None:
        """Draw parents among the units above, served or waiting."""
        for upper, order in enumerate(self.heights):
            if order > self.heights[present] and self.draw_is_parent(upper, self.count_served_below(order)):
                self.link(upper, present)

    def add_parents(self, present: int) -> list[int]:
        """Add new hidden parents; their rate is constant between the orders of two served units."""
        alpha = self.prior.concentration
        gamma = self.prior.mass
        low = self.heights[present]
        cuts = sorted(
            {where for where, served in zip(self.heights, self.served, strict=True) if served and where > low}
        )
        new = []
        for start, end in zip([low, *cuts], [*cuts, 1.0], strict=True):
            rate = alpha * gamma / (alpha + self.count_served_up_to(start))
            for _ in range(self.generator.poisson((end - start) * rate)):
                new.append(self.add_unit(self.generator.uniform(start, end)))
                self.link(new[-1], present)
        return new

    def draw_layers(self, observed: int) -> None:
        """Draw the layers: each is a two-parameter Indian buffet of the one below; "ibp" has only one."""
        alpha = self.prior.concentration
        gamma = self.prior.mass
        kind = self.prior.kind
        layer = [self.add_unit(0.0, observed=True) for _ in range(observed)]
        lower: list[int] = []  # layers below the last one
        while layer:
            new: list[int] = []
            for seen, unit in enumerate(layer):
                for upper in new:
                    if self.draw_is_parent(upper, seen):
                        self.link(upper, unit)
                for _ in range(self.generator.poisson(alpha * gamma / (alpha + seen))):
                    new.append(self.add_unit(self.heights[unit] + 1))
                    self.link(new[-1], unit)
            for upper in new if kind == "ecibp" else ():  # units of lower layers may be children as well
                for seen, unit in enumerate(lower, start=len(layer)):
                    if self.draw_is_parent(upper, seen):
                        self.link(upper, unit)
            lower += layer
            layer = [] if kind == "ibp" else new

    @property
    def _rank(self) -> dict[int, int]:
        """Index of each unit in the numbering with observed units first."""
        units = sorted(range(len(self.heights)), key=lambda unit: not self.observed[unit])
        return {unit: rank for rank, unit in enumerate(units)}

    @property
    def orders(self) -> list[float]:
        return [self.heights[unit] for unit in self._rank]

    @property
    def edges(self) -> list[tuple[int, int]]:
        rank = self._rank
        return [(rank[upper], rank[lower]) for upper, lower in self.links]
