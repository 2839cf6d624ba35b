"""Plots of inclusion probabilities and of the active paths of a network."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fathomless.plots.canvas import BLUE, GREEN, INK, OCHRE, PURPLE, RUST, Axes, legend, start
from fathomless.system.errors import DataError

__all__ = ["active_network", "inclusion_probabilities"]

_COLOURS = (GREEN, BLUE, OCHRE, PURPLE, RUST)
_NODES = 60  # most units of a layer in a readable plot


def inclusion_probabilities(layers: Mapping[str, npt.ArrayLike], *, ax: Axes | None = None) -> Axes:
    """Draw the distribution of the inclusion probabilities of each layer.

    Parameters
    ----------
    layers : mapping of str to array
        Inclusion probabilities of each layer, of any shape.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If there are no layers, or a value is not between 0 and 1.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless.families.sparse import plots
        >>> rng = np.random.default_rng(0)
        >>> ax = plots.inclusion_probabilities({"first": rng.beta(0.3, 2.0, (9, 8)), "second": rng.beta(0.3, 0.5, 9)})
    """
    if not layers:
        raise DataError("no layers were given; give the inclusion probabilities of at least one")
    ax = start(ax, "Inclusion of weights", "inclusion probability", "share of the layer's weights")
    bins = np.linspace(0.0, 1.0, 21)
    for i, (name, values) in enumerate(layers.items()):
        p = np.asarray(values, dtype=np.float64).ravel()
        if p.size == 0 or not bool(np.all((p >= 0.0) & (p <= 1.0))):
            raise DataError(f"layer {name!r} has values that are not probabilities; numbers from 0 to 1 are allowed")
        share, _ = np.histogram(p, bins)
        colour = _COLOURS[i % len(_COLOURS)]
        ax.stairs(share / p.size, bins, color=colour, linewidth=1.4, label=f"layer {name}")
    ax.axvline(0.5, color=INK, linewidth=0.8, linestyle="--")
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(bottom=0.0)
    legend(ax)
    return ax


def active_network(
    weights: Sequence[npt.ArrayLike],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    skip: bool = False,
    ax: Axes | None = None,
) -> Axes:
    """Draw a small network: inputs on the left, outputs on the right, a line for each nonzero weight.

    Positive weights are green, negative ones red; the line width is proportional to the absolute weight. Unconnected
    units are omitted.

    Parameters
    ----------
    weights : sequence of arrays, shape (K, D) each
        Weights of each layer, in order.
    inputs, outputs : sequence of str
        Names of inputs and outputs.
    skip : bool
        True if the last columns of each layer after the first are the inputs (skip connections).
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If shapes do not agree, or a layer has more than 60 units in use.

    Examples
    --------
    .. plot::

        >>> from fathomless.families.sparse import plots
        >>> weights = [[[1.0, 0.0, -0.5], [0.0, 0.0, 0.8]], [[0.7, -1.2]]]
        >>> ax = plots.active_network(weights, inputs=["age", "luck", "size"], outputs=["price"])
    """
    matrices = [np.asarray(w, dtype=np.float64) for w in weights]
    _check(matrices, len(inputs), len(outputs), len(inputs) if skip else 0)
    alive, edges = _find_edges(matrices, len(inputs) if skip else 0)
    crowded = max(map(len, alive))
    if crowded > _NODES:
        raise DataError(f"a layer has {crowded} units in use; up to {_NODES} can be drawn")
    place = {
        (layer, unit): (float(layer), (len(units) - 1) / 2.0 - i)
        for layer, units in enumerate(alive)
        for i, unit in enumerate(sorted(units))
    }
    tallest = max(crowded - 1, 1)
    for layer, units in enumerate(alive):  # spread each layer over the height of the largest
        stretch = tallest / max(len(units) - 1, 1)
        for unit in units:
            x, y = place[layer, unit]
            place[layer, unit] = (x, y * stretch)
    ax = start(ax, "Active paths", "layer", "units in use")
    ax.yaxis.set_label_position("right")  # the names of the inputs are on the left
    ax.grid(False)
    ax.spines["left"].set_visible(False)
    ax.set_yticks([])
    ax.set_xticks(range(len(matrices) + 1), ["inputs", *map(str, range(1, len(matrices))), "outputs"])
    strongest = max((abs(w) for *_, w in edges), default=1.0)
    for source, target, w in edges:
        (x0, y0), (x1, y1) = place[source], place[target]
        width = 0.3 + 1.7 * abs(w) / strongest
        ax.plot([x0, x1], [y0, y1], color=GREEN if w > 0 else RUST, linewidth=width, alpha=0.7, zorder=1)
    for (layer, unit), (x, y) in place.items():
        ax.plot([x], [y], "o", color=INK, markersize=4.0, zorder=2)
        names = {0: inputs, len(matrices): outputs}.get(layer)
        if names is not None:
            side, away = ("right", -0.06) if layer == 0 else ("left", 0.06)
            ax.text(x + away, y, names[unit], ha=side, va="center", color=INK, fontsize=8.0)
    ax.set_xlim(-0.35 * (len(matrices) + 1), len(matrices) + 0.15 * (len(matrices) + 1))
    return ax


def _check(matrices: Sequence[npt.NDArray[np.float64]], inputs: int, outputs: int, skip: int) -> None:
    before = inputs
    for i, w in enumerate(matrices):
        expected = before + (skip if i else 0)
        if w.ndim != 2 or w.shape[1] != expected or not bool(np.isfinite(w).all()):
            raise DataError(
                f"layer {i + 1} has weights of shape {w.shape}; finite numbers of shape (outputs, {expected}) are "
                "needed"
            )
        before = len(w)
    if not matrices or before != outputs:
        raise DataError(f"{len(matrices)} layers with {before} outputs and {outputs} names of outputs were given")


def _find_edges(
    matrices: Sequence[npt.NDArray[np.float64]], skip: int
) -> tuple[list[set[int]], list[tuple[tuple[int, int], tuple[int, int], float]]]:
    """Return the units in use of each layer, and (source, target, weight) of each nonzero weight."""
    alive: list[set[int]] = [set() for _ in range(len(matrices) + 1)]
    alive[-1] = set(range(len(matrices[-1])))
    edges = []
    for layer, w in enumerate(matrices):
        for target, source in zip(*np.nonzero(w), strict=True):
            hidden = w.shape[1] - (skip if layer else 0)
            origin = (layer, int(source)) if source < hidden else (0, int(source) - hidden)
            alive[origin[0]].add(origin[1])
            alive[layer + 1].add(int(target))
            edges.append((origin, (layer + 1, int(target)), float(w[target, source])))
    return alive, edges
