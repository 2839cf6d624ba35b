"""Settings, published values and averages of graphs for the tests of priors over graphs."""

from collections.abc import Iterable

import numpy as np

from fathomless.families.graph.graphs import Graph
from fathomless.families.graph.priors import GraphPrior

SETTINGS = {"A": GraphPrior(1, 1, 1), "B": GraphPrior(2.5, 1.6, 0.5)}
#: Orders of observed units: two random ones, three at 0, two inputs and an output.
PLACES: dict[str, list[float | None]] = {"R2": [None, None], "Z3": [0, 0, 0], "F": [1, 1, 0]}

GRAPHS = {
    "G1": Graph.of([0, 0.4], [(1, 0)], 1),
    "G2": Graph.of([0, 0, 0.3, 0.8], [(2, 0), (2, 1), (3, 2), (3, 1)], 2),
    "G3": Graph.of([1, 0, 0.25, 0.6], [(0, 1), (0, 2), (2, 1), (3, 2), (3, 1)], 2),
    "G4": Graph.of([0.2, 0.7, 0.5, 0.9], [(1, 0), (2, 0), (3, 1), (3, 2), (1, 2)], 2),
}

#: Means and their errors over 400,000 exact draws of an independent program.
REFERENCE = {
    ("A", "R2"): [(0.9424, 0.0018), (2.0101, 0.0036), (1.2376, 0.0016), (0.5700, 0.0011), (0.6652, 0.0013)],
    ("A", "Z3"): [(2.0514, 0.0025), (3.9926, 0.0062), (1.4429, 0.0016), (1.3184, 0.0014), (0.9996, 0.0016)],
    ("A", "F"): [(1.2498, 0.0021), (3.8383, 0.0059), (1.7893, 0.0018), (0.2028, 0.0007), (1.0014, 0.0016)],
    ("B", "R2"): [(1.9639, 0.0032), (2.9014, 0.0054), (1.4540, 0.0019), (1.1911, 0.0017), (1.5124, 0.0024)],
    ("B", "Z3"): [(4.9440, 0.0045), (8.4131, 0.0100), (2.4820, 0.0020), (2.6303, 0.0021), (3.0211, 0.0029)],
    ("B", "F"): [(2.6514, 0.0038), (4.6509, 0.0077), (2.0828, 0.0023), (1.0163, 0.0016), (2.1189, 0.0028)],
}
#: Further rows: largest out-degree of hidden units, mean hidden order where there is one, S, P(H = 0, 1, 2, 3).
FURTHER = {
    ("A", "R2"): [0.8473, 0.6738, 0.9434, 0.4571, 0.2965, 0.1472, 0.0629],
    ("A", "Z3"): [2.1231, 0.5191, 2.0499, 0.1599, 0.2586, 0.2433, 0.1689],
    ("A", "F"): [0.8876, 0.5364, 1.2481, 0.3678, 0.2887, 0.1803, 0.0933],
    ("B", "R2"): [1.1822, 0.7045, 0.4901, 0.2752, 0.2383, 0.1760, 0.1194],
    ("B", "Z3"): [2.8139, 0.5474, 1.2357, 0.0264, 0.0692, 0.1085, 0.1360],
    ("B", "F"): [1.3085, 0.5772, 0.6619, 0.2011, 0.1933, 0.1674, 0.1354],
}
FURTHER_ERRORS = [0.0027, 0.0005, 0.0006, 0.0008, 0.0007, 0.0007, 0.0006]


def statistics(graph: Graph) -> list[float]:
    """Hidden units, edges, depth, orphans, singletons: the columns of `REFERENCE`."""
    return [graph.hidden, graph.links, graph.depth, graph.orphans, graph.singletons]


def further(graph: Graph, prior: GraphPrior) -> list[float]:
    """The columns of `FURTHER`; NaN where there is no hidden unit to speak of."""
    hidden = graph.orders[graph.observed :]
    return [
        max(graph.out_degrees[graph.observed :], default=0),
        float(hidden.mean()) if len(hidden) else np.nan,
        prior.exposure(graph.orders, graph.observed),
        *(float(graph.hidden == h) for h in range(4)),
    ]


def distances(draws: Iterable[list[float]], reference: list[tuple[float, float]]) -> np.ndarray:
    """Differences of means from a reference, in standard errors of both."""
    x = np.array(list(draws))
    means, errors = np.nanmean(x, 0), np.nanstd(x, 0) / np.sqrt((~np.isnan(x)).sum(0))
    return np.array([(m - r) / np.hypot(e, s) for m, e, (r, s) in zip(means, errors, reference, strict=True)])
