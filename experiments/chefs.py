"""Sizes of graphs drawn from the Indian chefs process and the related layered priors.

The number of hidden units, the number of edges and the depth are summarised over exact draws, for several
concentrations and masses, with three observed units at the bottom. No data are used. Under the layered priors the
number of hidden units has a heavy tail: graphs with more than 60 units are left out, and their share is reported.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from experiments.results import Request, Result, Value, average
from fathomless.families.graph.priors import PRIORS, GraphPrior
from fathomless.families.graph.simulate import sample
from fathomless.system.errors import DataError
from fathomless.system.jobs import run_parts
from fathomless.system.rng import fold_in

__all__ = ["LAWS", "figure", "run"]

#: Concentration and mass of each setting.
LAWS = {"1, 1": (1.0, 1.0), "2.5, 1.6": (2.5, 1.6), "0.3, 1": (0.3, 1.0), "10, 1": (10.0, 1.0), "1, 0.5": (1.0, 0.5)}
_OBSERVED = 3
_MOST = 60  # hidden units


def run(request: Request) -> Result:
    """Draw graphs from every prior; see :class:`experiments.Module`.

    Both presets are the same.
    """
    settings: dict[str, Any] = {"seed": request.seed, "draws": 20_000 if request.mode == "full" else 800}
    parts = {
        f"{kind}/{name}": partial(_part, settings, kind, concentration, mass)
        for kind in PRIORS
        for name, (concentration, mass) in LAWS.items()
    }
    results, seconds = run_parts(parts, settings=settings, out=request.out, progress=request.progress)
    values: dict[str, Value] = {}
    for name, part in results.items():
        for quantity in ("hidden", "edges", "depth"):
            values[f"{name}/{quantity}"] = average(part[quantity])
        values[f"{name}/left_out"] = Value(part["left_out"])
    curves = {name: [part["orders"], part["links"]] for name, part in results.items()}
    return Result("chefs", request.mode, request.preset, request.seed, values, settings, seconds, curves)


def _part(settings: Mapping[str, Any], kind: str, concentration: float, mass: float) -> dict[str, Any]:
    """Draw graphs from one prior; the first graph closest to the mean size is kept for the figure."""
    prior = GraphPrior(concentration, mass, kind=kind)
    generator = np.random.default_rng(fold_in(settings["seed"], "chefs", kind, f"{concentration}", f"{mass}"))
    graphs = []
    lost = 0
    for _ in range(settings["draws"]):
        try:
            graphs.append(sample(prior, [0.0] * _OBSERVED, generator, most=_MOST + _OBSERVED))
        except DataError:
            lost += 1
    sizes = np.array([(graph.hidden, graph.links, graph.depth) for graph in graphs], dtype=float)
    shown = graphs[int(np.argmin(np.abs(sizes[:, :2] - sizes[:, :2].mean(0)).sum(1)))]
    return {
        "hidden": sizes[:, 0].tolist(),
        "edges": sizes[:, 1].tolist(),
        "depth": sizes[:, 2].tolist(),
        "left_out": lost / settings["draws"],
        "orders": shown.orders.tolist(),
        "links": np.argwhere(shown.edges).tolist(),
    }


def figure(result: Result) -> Any:
    """Draw a graph of average size of every prior and setting."""
    from experiments.pictures import panels
    from fathomless.families.graph import plots
    from fathomless.families.graph.graphs import Graph

    page, axes = panels(len(PRIORS) * len(LAWS), across=len(LAWS), width=2.6, height=2.4)
    cells = [(kind, name) for kind in PRIORS for name in LAWS]
    for ax, (kind, name) in zip(axes, cells, strict=True):
        orders, links = result.curves[f"{kind}/{name}"]
        edges = [(int(upper), int(lower)) for upper, lower in links]
        drawn = Graph.of([float(order) for order in orders], edges, observed=_OBSERVED)
        if len(orders) <= plots.MOST_UNITS and len(edges) <= plots.MOST_LINKS:
            plots.graph(drawn, drawn.edges.astype(float), [""] * _OBSERVED, ax=ax)
        ax.set_title(f"{kind}: {name}", loc="left", fontsize=9)
        ax.set_ylim(-0.1, max(1.1, max(orders) + 0.3))
    return page
