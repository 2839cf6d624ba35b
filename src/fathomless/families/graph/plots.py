"""Plots of posteriors over graphs."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fathomless.families.graph.graphs import Graph
from fathomless.plots.canvas import BLUE, GREEN, INK, RUST, Axes, shorten, start, whole_numbers
from fathomless.system.errors import DataError

__all__ = ["MOST_LINKS", "MOST_UNITS", "counts", "dependence", "graph"]

#: Largest numbers of units and edges in a readable plot of a graph.
MOST_UNITS, MOST_LINKS = 40, 120
_WORDS = 45  # total length of names that fit horizontally
_LETTERS = 16  # length at which a name is shortened


def counts(posterior: Mapping[int, float], what: str = "hidden units", *, ax: Axes | None = None) -> Axes:
    """Draw the posterior of a count, such as the number of hidden units.

    Examples
    --------
    .. plot::

        >>> from fathomless.families.graph import plots
        >>> ax = plots.counts({4: 0.2, 5: 0.5, 6: 0.3})
    """
    if not posterior:
        raise DataError("no counts were given; give the posterior probability of at least one")
    ax = start(ax, what.capitalize(), what, "posterior probability")
    ax.bar(list(posterior), list(posterior.values()), color=GREEN, width=0.7)
    middle, half = 0.5 * (min(posterior) + max(posterior)), 0.5 * (max(posterior) - min(posterior))
    ax.set_xlim(middle - max(half, 1.5) - 0.6, middle + max(half, 1.5) + 0.6)
    whole_numbers(ax.xaxis)
    ax.set_ylim(bottom=0.0)
    return ax


def dependence(table: npt.ArrayLike, names: Sequence[str], *, ax: Axes | None = None) -> Axes:
    """Draw the probability that two columns have a common hidden ancestor.

    Parameters
    ----------
    table : array_like, shape (T, T)
        Probabilities.
    names : sequence of T str
        Of the columns.

    Examples
    --------
    .. plot::

        >>> from fathomless.families.graph import plots
        >>> ax = plots.dependence([[1.0, 0.9], [0.9, 1.0]], ["waiting", "eruption"])
    """
    values = np.asarray(table, dtype=np.float64)
    if values.shape != (len(names), len(names)):
        raise DataError(f"a table of shape {values.shape} was given for {len(names)} columns; a square one is needed")
    ax = start(ax, "Common ancestors", "", "")
    ax.grid(False)
    picture = ax.imshow(values, vmin=0.0, vmax=1.0, cmap="Greens", aspect="auto")
    ax.set_xticks(range(len(names)), names, rotation=90 if len(names) > 4 else 0)
    ax.set_yticks(range(len(names)), names)
    bar = ax.figure.colorbar(picture, ax=ax)
    bar.set_label("probability", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return ax


def graph(
    network: Graph,
    weights: npt.ArrayLike,
    names: Sequence[str],
    *,
    inputs: int = 0,
    ax: Axes | None = None,
) -> Axes:
    """Draw a network: height is the order, edge width the effect on the child, dashes are negative weights.

    Parameters
    ----------
    network : Graph
        At most 40 units and 120 edges.
    weights : array_like, shape (K, K)
        Weights of the edges, in standard deviations of the child.
    names : sequence of D str
        Names of the observed units.
    inputs : int
        Number of observed units drawn at the top.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless.families.graph import plots
        >>> from fathomless.families.graph.graphs import Graph
        >>> network = Graph.of([0, 0, 0.3, 0.8], [(2, 0), (2, 1), (3, 2), (3, 1)], observed=2)
        >>> ax = plots.graph(network, np.where(network.edges, [1.0, -2.0, 1.0, 0.5], 0.0), ["x", "y"])
    """
    weight = np.asarray(weights, dtype=np.float64)
    if len(network.orders) > MOST_UNITS or network.links > MOST_LINKS:
        raise DataError(
            f"a graph of {len(network.orders)} units and {network.links} edges was given; up to {MOST_UNITS} units and "
            f"{MOST_LINKS} edges can be drawn"
        )
    ax = start(ax, "A network", "", "order")
    ax.grid(False)
    ax.set_xticks([])
    x = _places(network, inputs)
    y = np.array(network.orders, dtype=float)
    strength = np.abs(weight) / max(float(np.abs(weight).max(initial=0.0)), 1e-12)
    for upper, lower in np.argwhere(network.edges):
        positive = weight[upper, lower] >= 0.0
        ax.annotate(
            "",
            (x[lower], y[lower]),
            (x[upper], y[upper]),
            arrowprops={
                "arrowstyle": "-|>",
                "color": GREEN if positive else RUST,
                "linestyle": "-" if positive else "--",
                "linewidth": 0.4 + 2.0 * strength[upper, lower],
                "shrinkA": 5,
                "shrinkB": 5,
            },
        )
    hidden = np.arange(len(y)) >= network.observed
    ax.scatter(x[hidden], y[hidden], s=45, color=INK, zorder=3)
    ax.scatter(x[~hidden], y[~hidden], s=60, marker="s", color=BLUE, zorder=3)
    upright = sum(map(len, names)) > _WORDS
    for unit, name in enumerate(names):
        above = unit < inputs
        ax.annotate(
            shorten(name, _LETTERS),
            (x[unit], y[unit]),
            (0, 8 if above else -8),
            textcoords="offset points",
            ha="center",
            va="bottom" if above else "top",
            fontsize=7,
            rotation=90 if upright else 0,
        )
    ax.set_xlim(-0.08, 1.08)
    ax.set_ylim(*((-0.45, 1.45) if upright else (-0.2, 1.2)))
    ax.set_yticks([0.0, 0.5, 1.0])
    return ax


def _places(network: Graph, inputs: int) -> npt.NDArray[np.float64]:
    """Return horizontal positions: observed units evenly spaced, hidden units close to their neighbours."""
    observed = network.observed
    x = np.zeros(len(network.orders))
    for begin, end in ((0, inputs), (inputs, observed)):
        x[begin:end] = (np.arange(end - begin) + 0.5) / max(end - begin, 1)
    linked = network.edges | network.edges.T
    hidden = np.argsort(network.orders[observed:], kind="stable") + observed
    x[hidden] = (np.arange(len(hidden)) + 0.5) / max(len(hidden), 1)
    for _ in range(10):  # sort hidden units by the mean position of their neighbours
        centre = np.array([x[linked[unit]].mean() for unit in hidden])
        x[hidden[np.argsort(centre, kind="stable")]] = (np.arange(len(hidden)) + 0.5) / max(len(hidden), 1)
    return x
