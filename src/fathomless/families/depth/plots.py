"""Pictures of a posterior over depth, and of how it was found."""

import math
from collections.abc import Mapping

import numpy as np

from fathomless.plots.canvas import GREEN, INK, OCHRE, Axes, legend, limits, shorten, start, whole_numbers
from fathomless.plots.learning import epoch_axis, epoch_marker
from fathomless.plots.validation import History, column, floats, probabilities

__all__ = ["MOST_COLUMNS", "depth_path", "depth_posterior", "relevance"]

#: Columns that a picture of their relevance can hold and still be read.
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
        Probability of each depth; a part of the support will do.
    errors : mapping of int to float, optional
        Standard error of each probability, drawn as a whisker.
    poisson : mapping of int to float, optional
        Masses of a law of few parameters that was fitted beside it, drawn as a dotted line.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        For depths that are no whole numbers, or probabilities that are none.

    Examples
    --------
    .. plot::

        >>> from fathomless.families.depth import plots
        >>> prior = {1: 0.32, 2: 0.26, 3: 0.18, 4: 0.11, 5: 0.07, 6: 0.04}
        >>> ax = plots.depth_posterior({2: 0.04, 3: 0.31, 4: 0.42, 5: 0.19, 6: 0.04}, prior=prior)
    """
    depth, mass = probabilities("posterior", posterior, whole=True)
    before = None if prior is None else probabilities("prior", prior, whole=False)
    shown = depth
    ax = start(ax, "Posterior over depth", "depth (layers)", "probability")
    ax.bar(depth, mass, 0.8, color=GREEN, label="posterior")
    if errors is not None:
        bars = np.array([errors.get(int(k), 0.0) for k in depth])
        ends = np.stack([np.minimum(bars, mass), np.minimum(bars, 1.0 - mass)])
        ax.errorbar(depth, mass, ends, fmt="none", ecolor=INK, elinewidth=1.0, capsize=3.0, label="± 1 standard error")
    if poisson is not None:
        places, law = probabilities("poisson", poisson, whole=False)
        ax.plot(places, law, color=INK, linestyle=":", linewidth=1.2, label="Poisson law")
    if before is not None:
        ax.plot(*before, color=OCHRE, marker="o", markersize=3.5, linewidth=1.2, label="prior")
        shown = np.append(depth, before[0])
    if not (before is None and errors is None and poisson is None):
        legend(ax)
    ax.set_ylim(bottom=0.0)
    ax.set_xlim(limits(shown.min(), shown.max(), 0.6 if np.ptp(shown) else 1.5))
    whole_numbers(ax.xaxis)
    return ax


def depth_path(history: History, *, ax: Axes | None = None) -> Axes:
    """Draw the mean depth against the epoch, with the deepest network that was kept.

    Parameters
    ----------
    history : sequence of mappings
        Rows with "epoch" and "mean_depth"; where they have them, "deepest" becomes a second line and "std_depth" a band
        of one standard deviation to each side.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        For a history without rows or without these columns.

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
    low = high = mean
    if np.isfinite(spread).any():
        low, high = mean - np.nan_to_num(spread), mean + np.nan_to_num(spread)
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
    """Draw how far the weights that leave each column reach, with intervals, the most relevant column on top.

    Parameters
    ----------
    found : mapping of str to mapping
        "median", "low" and "high" of every column; at most :data:`MOST_COLUMNS` of the greatest medians are drawn.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        For no columns, or numbers that are negative or not finite.

    Examples
    --------
    .. plot::

        >>> from fathomless.families.depth import plots
        >>> one, other = {"median": 2.1, "low": 1.4, "high": 3.3}, {"median": 0.2, "low": 0.1, "high": 0.6}
        >>> ax = plots.relevance({"rooms": one, "crime": other})
    """
    names = sorted(found, key=lambda name: found[name]["median"])[-MOST_COLUMNS:]
    median, low, high = (floats(key, [found[name][key] for name in names], 0.0) for key in ("median", "low", "high"))
    ax = start(ax, "Relevance of columns", "root mean square of their weights", "column")
    ax.errorbar(median, range(len(names)), xerr=[median - low, high - median], fmt="o", color=GREEN, markersize=3.5)
    ax.set_yticks(range(len(names)), [shorten(name, 24) for name in names], parse_math=False)
    ax.set_xlim(left=0.0)
    ax.set_ylim(-0.6, len(names) - 0.4)
    return ax
