"""The finite model whose limit the Indian chefs process is, for tests of it: its density and its draws.

Popularities of K units are Beta(alpha gamma / K, alpha - alpha gamma / K), with phi more for observed units;
K is larger than gamma.
"""

import math
from collections.abc import Sequence

import numpy as np

from fathomless.families.graph.graphs import Graph
from fathomless.families.graph.priors import GraphPrior


def finite_log_prob(prior: GraphPrior, graph: Graph, units: int) -> float:
    """Log density of a graph; units that reach no observed one are integrated out."""
    alpha, phi, share = prior.concentration, prior.popularity, prior.concentration * prior.mass / units
    rest = alpha - share
    spare = np.cumprod((rest + np.arange(len(graph.orders))) / (alpha + np.arange(len(graph.orders))))
    gaps = np.diff(np.concatenate([[0.0], np.sort(graph.orders), [1.0]]))
    silent = float(gaps @ np.concatenate([[1.0], spare]))  # that a unit has no edge to those there are
    total = (units - len(graph.orders)) * math.log(silent)
    total += sum(math.log(units - graph.observed - unit) for unit in range(graph.hidden))
    below = prior.eligible(graph.orders).sum(1)
    for unit, (m, d) in enumerate(zip(graph.out_degrees.tolist(), below.tolist(), strict=True)):
        more = phi if unit < graph.observed else 0.0
        total += _log_rising(share + more, m) + _log_rising(rest, d - m) - _log_rising(alpha + more, d)
    return total


def _log_rising(start: float, factors: int) -> float:
    """Log of start (start + 1) ... with some factors."""
    return math.fsum(math.log(start + step) for step in range(factors))


def sample_finite(
    prior: GraphPrior, orders: Sequence[float | None], units: int, generator: np.random.Generator
) -> Graph:
    """Draw a graph. Popularities are tiny: they are drawn by their logarithms so that none underflows."""
    observed, share = len(orders), prior.concentration * prior.mass / units
    where = generator.random(units)
    where[:observed] = [where[unit] if order is None else order for unit, order in enumerate(orders)]
    first = share + np.where(np.arange(units) < observed, prior.popularity, 0.0)
    small = np.log(generator.standard_gamma(first + 1)) + np.log1p(-generator.random(units)) / first
    popularity = np.exp(
        small - np.logaddexp(small, np.log(generator.standard_gamma(prior.concentration - share, units)))
    )
    active, edges = list(range(observed)), []
    number = {unit: unit for unit in active}
    for unit in active:  # grows while it runs
        for upper in np.flatnonzero((where > where[unit]) & (generator.random(units) < popularity)).tolist():
            if upper not in number:
                number[upper] = len(active)
                active.append(upper)
            edges.append((number[upper], number[unit]))
    return Graph.of(where[active], edges, observed)
