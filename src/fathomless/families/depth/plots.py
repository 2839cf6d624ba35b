"""Plots of a posterior over depth and of its path during training."""

import math
from collections.abc import Mapping

import numpy as np

from fathomless.plots.canvas import GREEN, INK, OCHRE, Axes, legend, limits, shorten, start, whole_numbers
from fathomless.plots.learning import epoch_axis, epoch_marker
from fathomless.plots.validation import History, column, floats, probabilities

__all__ = ["MOST_COLUMNS", "depth_path", "depth_posterior", "relevance"]

#: Largest number of columns in a plot of their relevance.
MOST_COLUMNS = 20


def depth_posterior(
    posterior: Mapping[int, float],
    *,
    prior: Mapping[int, float] | None = None,
    errors: Mapping[int, float] | None = None,
    poisson: Mapping[int, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the posterior over the number of layers as bars, and the prior as a line.

    Parameters
    ----------
    posterior : mapping of int to float
        Probability of each depth; they sum to 1.
    prior : mapping of int to float, optional
        Probability of each depth; it may cover a part of the support.
    errors : mapping of int to float, optional
        Standard error of each probability, drawn as a whisker.
    poisson : mapping of int to float, optional
        Probabilities of a fitted parametric law, drawn as a dotted line.
    ax : Axes, optional
        Axes to draw on; new ones by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If depths are not whole numbers, or probabilities are invalid.

    Examples
    --------
    .. plot::

        >>> from fathomless.families.depth import plots
        >>> prior = {1: 0.32, 2: 0.26, 3: 0.18, 4: 0.11, 5: 0.07, 6: 0.04}
        >>> ax = plots.depth_posterior({2: 0.04, 3: 0.31, 4: 0.42, 5: 0.19, 6: 0.04}, prior=prior)
    """
    depth, mass = probabilities("posterior", posterior, whole=True)
    prior_points = None if prior is None else probabilities("prior", prior, whole=False)
    shown = depth
    ax = start(ax, "Posterior over depth", "depth (layers)", "weight")
    ax.bar(depth, mass, 0.8, color=GREEN, label="posterior")
    if errors is not None:
        bars = np.array([errors.get(int(k), 0.0) for k in depth])
        ends = np.stack([np.minimum(bars, mass), np.minimum(bars, 1.0 - mass)])
        ax.errorbar(depth, mass, ends, fmt="none", ecolor=INK, elinewidth=1.0, capsize=3.0, label="± 1 standard error")
    if poisson is not None:
        places, law = probabilities("poisson", poisson, whole=False)
        ax.plot(places, law, color=INK, linestyle=":", linewidth=1.2, label="Poisson law")
    if prior_points is not None:
        ax.plot(*prior_points, color=OCHRE, marker="o", markersize=3.5, linewidth=1.2, label="prior")
        shown = np.append(depth, prior_points[0])
    if not (prior_points is None and errors is None and poisson is None):
        legend(ax)
    ax.set_ylim(bottom=0.0)
    ax.set_xlim(limits(shown.min(), shown.max(), 0.6 if np.ptp(shown) else 1.5))
    whole_numbers(ax.xaxis)
    return ax


def depth_path(history: History, *, ax: Axes | None = None) -> Axes:
    """Draw the mean depth by epoch, and the depth of the deepest network.

    Parameters
    ----------
    history : sequence of mappings
        Rows with "epoch" and "mean_depth". An optional "deepest" is drawn as a second line, and an optional "std_depth"
        as a band of one standard deviation on each side.
    ax : Axes, optional
        Axes to draw on; new ones by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If the history has no rows, or lacks these columns.

    Examples
    --------
    .. plot::

        >>> from fathomless.families.depth import plots
        >>> rows = [{"epoch": e, "mean_depth": 5 - 4 / e, "deepest": 5 + (e > 4) + (e > 9)} for e in range(1, 30)]
        >>> ax = plots.depth_path(rows)
    """
    epoch, mean = column(history, "epoch"), column(history, "mean_depth")
    deepest, spread = (column(history, name, gaps=True) for name in ("deepest", "std_depth"))
    ax = start(ax, "Depth during training", "epoch", "depth (layers)")
    ax.plot(epoch, mean, color=GREEN, marker=epoch_marker(epoch), markersize=3, label="mean")
    low = mean
    high = mean
    if np.isfinite(spread).any():
        width = np.nan_to_num(spread)
        low = mean - width
        high = mean + width
        ax.fill_between(epoch, low, high, color=GREEN, alpha=0.3, linewidth=0.0, label="± 1 sd")
    if np.isfinite(deepest).any():
        high = np.fmax(high, deepest)
        ax.plot(
            epoch,
            deepest,
            color=OCHRE,
            marker=epoch_marker(epoch),
            markersize=3,
            linewidth=1.2,
            label="deepest network",
        )
    least, most = math.floor(low.min()), math.ceil(high.max())
    ax.set_ylim(limits(least, most, 0.3 if most > least else 1.0))
    epoch_axis(ax, epoch)
    whole_numbers(ax.yaxis)
    legend(ax)
    return ax


def relevance(found: Mapping[str, Mapping[str, float]], *, ax: Axes | None = None) -> Axes:
    """Draw the root mean square of the first-layer weights of each column, with intervals, in decreasing order.

    Parameters
    ----------
    found : mapping of str to mapping
        "median", "low" and "high" of each column; the :data:`MOST_COLUMNS` columns with the largest medians are drawn.
    ax : Axes, optional
        Axes to draw on; new ones by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If there are no columns, or values are negative or not finite.

    Examples
    --------
    .. plot::

        >>> from fathomless.families.depth import plots
        >>> rooms = {"median": 2.1, "low": 1.4, "high": 3.3}
        >>> crime = {"median": 0.2, "low": 0.1, "high": 0.6}
        >>> ax = plots.relevance({"rooms": rooms, "crime": crime})
    """
    names = sorted(found, key=lambda name: found[name]["median"])[-MOST_COLUMNS:]
    median, low, high = (floats(key, [found[name][key] for name in names], 0.0) for key in ("median", "low", "high"))
    ax = start(ax, "Relevance of columns", "root mean square of first-layer weights", "column")
    ax.errorbar(median, range(len(names)), xerr=[median - low, high - median], fmt="o", color=GREEN, markersize=3.5)
    ax.set_yticks(range(len(names)), [shorten(name, 24) for name in names], parse_math=False)
    ax.set_xlim(left=0.0)
    ax.set_ylim(-0.6, len(names) - 0.4)
    return ax
