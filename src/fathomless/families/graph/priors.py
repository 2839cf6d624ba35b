"""Priors over graphs with an unlimited number of hidden units: the Indian chefs process and its layered relatives.

Each hidden unit is a point of a beta process with concentration alpha and mass gamma. It is a parent of each unit
below with a probability, its popularity, which is integrated out. With m children among d eligible units,

    log p(Z, theta) = - alpha gamma S
                      + sum over hidden k    log [ alpha gamma Gamma(m) Gamma(alpha + d - m) / Gamma(alpha + d) ]
                      + sum over observed k  log [ phi^(m) alpha^(d-m) / (alpha + phi)^(d) ]     (rising factorials)

where S accounts for the absence of further hidden units: with Psi(j) = sum_{r<j} 1 / (alpha + r),

    icp             orders theta in (0, 1); a parent's is above its child's; S = integral of Psi(units below t) dt
    cibp, ecibp     layers 1, 2, ...; a parent is in the next layer (any higher one); S = sum over layers of Psi(size)
    ibp             one layer of hidden units above the observed ones; S = Psi(D)

The density is that of a *set* of hidden units (Lebesgue measure on sorted orders, counting measure on edges), so it has
no factorials. In layers each unit has an unused uniform mark, so that the same holds.

References
----------
Dallaire, Trottier, Giguère, Chaib-draa and Laviolette (2016), Bayesian Nonparametric Deep Learning, equations 6-9 with
corrected rising factorials. Adams, Wallach and Ghahramani (2010) for cascading buffets; the extended one is our
reconstruction of Dallaire, Giguère and Chaib-draa (2014), without access to its text.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fathomless.families.graph.graphs import Graph
from fathomless.system.checks import choice, positive

__all__ = ["PRIORS", "GraphPrior"]

#: Priors by name: the Indian chefs process, cascading and extended cascading buffets, one Indian buffet.
PRIORS = ("icp", "cibp", "ecibp", "ibp")


@dataclass(frozen=True)
class GraphPrior:
    """Prior over graphs.

    Parameters
    ----------
    concentration : float
        alpha; for small values hidden units are shared by many children.
    mass : float
        gamma: a unit of order theta has Poisson(gamma (1 - theta)) hidden parents; Poisson(gamma) in layers.
    popularity : float
        phi: an observed unit below another is its child with probability phi / (alpha + phi). Only "icp" has it.
    kind : {"icp", "cibp", "ecibp", "ibp"}
        Kind of the prior.

    Examples
    --------
    >>> GraphPrior().log_prob(Graph.of([0, 0.4], [(1, 0)], observed=1))
    -1.3
    """

    concentration: float = 1.0
    mass: float = 1.0
    popularity: float = 1.0
    kind: str = "icp"

    def __post_init__(self) -> None:
        positive("concentration", self.concentration)
        positive("mass", self.mass)
        positive("popularity", self.popularity)
        choice("kind", self.kind, PRIORS)

    def eligible(self, orders: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Return a table, shape (K, K), that is True where unit k may be a parent of unit i."""
        upper, lower = orders[:, None], orders[None, :]
        return upper == lower + 1 if self.kind in ("cibp", "ibp") else upper > lower

    def allows(self, graph: Graph) -> bool:
        """Return True if a graph is in the support of the prior."""
        hidden = graph.orders[graph.observed :]
        if self.kind == "icp":
            return bool(np.all((graph.orders >= 0) & (graph.orders <= 1)) and np.all((hidden > 0) & (hidden < 1)))
        layered = np.all(graph.orders[: graph.observed] == 0) and np.all((hidden >= 1) & (hidden == np.floor(hidden)))
        near = graph.edges & (graph.orders[:, None] == graph.orders + 1)  # a child in the layer directly below
        highest = np.all(hidden == 1) if self.kind == "ibp" else True
        within = not np.any(graph.edges & ~self.eligible(graph.orders))
        return bool(layered and highest and within and near[graph.observed :].any(1).all())

    def exposure(self, orders: NDArray[np.float64], observed: int) -> float:
        """Return S for K orders, D of them observed: alpha gamma S is the expected number of hidden units."""
        psi = np.cumsum(1 / (self.concentration + np.arange(len(orders))))  # Psi(1) ... Psi(K)
        match self.kind:
            case "icp":
                return float(np.diff(np.sort(orders), append=1.0) @ psi)
            case "ibp":
                return float(psi[observed - 1])
        return float(psi[np.unique(orders, return_counts=True)[1] - 1].sum())

    def log_prob(self, graph: Graph) -> float:
        """Return the log density of a graph, -inf outside the support of the prior.

        Densities of graphs with different numbers of hidden units have different units and are not comparable.
        """
        if not self.allows(graph):
            return -math.inf
        alpha, gamma, phi = self.concentration, self.mass, self.popularity
        below = self.eligible(graph.orders).sum(1)
        total = -alpha * gamma * self.exposure(graph.orders, graph.observed)
        for unit, (m, d) in enumerate(zip(graph.out_degrees.tolist(), below.tolist(), strict=True)):
            if unit < graph.observed:
                total += _log_rising(phi, m) + _log_rising(alpha, d - m) - _log_rising(alpha + phi, d)
            else:  # Gamma ratios as sums: exact however large alpha is
                total += math.log(alpha * gamma) + math.lgamma(m) + _log_rising(alpha, d - m) - _log_rising(alpha, d)
        return total


def _log_rising(start: float, factors: int) -> float:
    """Return the log of the rising factorial start (start + 1) ... with this number of factors."""
    return math.fsum(math.log(start + step) for step in range(factors))
