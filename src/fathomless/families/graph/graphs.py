"""Directed acyclic graphs with labelled observed units and unlabelled hidden units, as frozen values.

An edge leads from a parent to a child of strictly lower order. A unit is part of the graph if a directed path leads
from it to an observed unit. A hidden unit therefore needs a child, since only observed units can be sinks.
"""

import hashlib
import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fathomless.system.errors import DataError

__all__ = ["Graph"]

_MOST_PERMUTATIONS = 5040  # 7!: most relabellings searched for a canonical form


@dataclass(frozen=True, eq=False)
class Graph:
    """Graph of K active units, the D observed ones first.

    Attributes
    ----------
    orders : array of float, shape (K,)
        Order theta of each unit, in [0, 1]; layers 0, 1, ... for priors with layers.
    edges : array of bool, shape (K, K)
        ``edges[k, i]``: unit k is a parent of unit i.
    observed : int
        Number D of observed units.

    Raises
    ------
    DataError
        If shapes do not agree, an edge does not lead to a lower order, or a hidden unit has no child.

    Examples
    --------
    >>> graph = Graph.of([0, 0, 0.3, 0.8], [(2, 0), (2, 1), (3, 2), (3, 1)], observed=2)
    >>> graph.hidden, graph.depth, graph.orphans, graph.singletons
    (2, 2, 1, 0)
    """

    orders: NDArray[np.float64]
    edges: NDArray[np.bool_]
    observed: int

    def __post_init__(self) -> None:
        size = len(self.orders)
        if self.orders.shape != (size,) or self.edges.shape != (size, size) or not 1 <= self.observed <= size:
            raise DataError(
                f"a graph was given with orders {self.orders.shape}, edges {self.edges.shape} and {self.observed} "
                "observed units; (K,), (K, K) and 1 to K are allowed"
            )
        if np.any(self.edges & ~(self.orders[:, None] > self.orders)):
            upper, lower = np.argwhere(self.edges & ~(self.orders[:, None] > self.orders))[0]
            raise DataError(
                f"the edge {upper}->{lower} was given with orders {self.orders[upper]:g} and {self.orders[lower]:g}; "
                "a parent's order must be above its child's"
            )
        childless = np.flatnonzero(self.out_degrees[self.observed :] == 0)
        if len(childless):
            raise DataError(
                f"the hidden unit {self.observed + childless[0]} was given without a child; every hidden unit needs a "
                "child: remove units without one"
            )

    @classmethod
    def of(cls, orders: "list[float] | NDArray[np.float64]", edges: list[tuple[int, int]], observed: int) -> "Graph":
        """Return the graph of a list of edges (parent, child); units are numbered from 0, observed ones first."""
        table = np.zeros((len(orders), len(orders)), dtype=bool)
        for upper, lower in edges:
            table[upper, lower] = True
        return cls(np.asarray(orders, dtype=np.float64), table, observed)

    @cached_property
    def out_degrees(self) -> NDArray[np.int64]:
        """Number m of children of each unit, shape (K,)."""
        return np.asarray(self.edges.sum(1, dtype=np.int64))

    @property
    def hidden(self) -> int:
        """Number H of hidden units."""
        return len(self.orders) - self.observed

    @property
    def links(self) -> int:
        """Number of edges."""
        return int(self.edges.sum())

    @property
    def depth(self) -> int:
        """Number of edges of the longest directed path."""
        heights = np.zeros(len(self.orders), dtype=np.int64)
        for unit in np.argsort(self.orders, kind="stable"):
            heights[unit] = max((1 + heights[child] for child in np.flatnonzero(self.edges[unit])), default=0)
        return int(heights.max())

    @property
    def orphans(self) -> int:
        """Number of hidden units without parents."""
        return int((self.edges.sum(0) == 0)[self.observed :].sum())

    @property
    def singletons(self) -> int:
        """Number of hidden units with one child."""
        return int((self.out_degrees[self.observed :] == 1).sum())

    @cached_property
    def ancestors(self) -> NDArray[np.bool_]:
        """Reachability, shape (K, K): ``ancestors[k, i]`` is True if a directed path leads from unit k to unit i."""
        reach: NDArray[np.bool_] = self.edges.copy()
        for unit in np.argsort(
            self.orders, kind="stable"
        ):  # from lower to higher orders: the rows of children are complete
            reach[unit] |= (self.edges[unit][:, None] & reach).any(0)
        return reach

    @cached_property
    def _canonical(self) -> tuple[bytes, bool]:
        colours = _refine(self.edges, self.observed)
        classes: dict[bytes, list[int]] = {}
        for unit in sorted(range(self.observed, len(colours)), key=colours.__getitem__):
            classes.setdefault(colours[unit], []).append(unit)
        if math.prod(math.factorial(len(members)) for members in classes.values()) > _MOST_PERMUTATIONS:
            return _digest(b"colours", *sorted(colours)), False
        named = range(self.observed)
        tables = (
            self.edges[np.ix_(order, order)].tobytes()
            for parts in itertools.product(*map(itertools.permutations, classes.values()))
            for order in [[*named, *itertools.chain(*parts)]]
        )
        return _digest(b"edges", min(tables)), True

    @property
    def key(self) -> bytes:
        """Canonical key: equal for two graphs that differ only in the labels of hidden units.

        Orders are ignored. If a canonical form needs a search over more than 5040 relabellings, graphs that colour
        refinement does not distinguish share a key as well; see :attr:`key_is_exact`.
        """
        return self._canonical[0]

    @property
    def key_is_exact(self) -> bool:
        """True if graphs with this key are equal up to the labels of hidden units."""
        return self._canonical[1]


def _refine(edges: NDArray[np.bool_], observed: int) -> list[bytes]:
    """Refine the colours of units by those of their neighbours until stable; observed units start with their labels."""
    colours = [_digest(b"%d" % min(unit, observed)) for unit in range(len(edges))]
    while True:
        finer = [
            _digest(
                colours[unit],
                *sorted(colours[other] for other in np.flatnonzero(edges[:, unit])),
                b"/",
                *sorted(colours[other] for other in np.flatnonzero(edges[unit])),
            )
            for unit in range(len(edges))
        ]
        if len(set(finer)) == len(set(colours)):
            return colours
        colours = finer


def _digest(*parts: bytes) -> bytes:
    return hashlib.blake2b(b"|".join(parts), digest_size=16).digest()
