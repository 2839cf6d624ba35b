"""Pictures of how a network was found: its depth, and the bound."""

import math
from collections.abc import Mapping
from itertools import cycle

import numpy as np

from fathomless.errors import DataError
from fathomless.plots.canvas import BLUE, GREEN, OCHRE, PURPLE, RUST, Axes, legend, limits, start, whole_numbers
from fathomless.plots.checks import Floats, History, column, probabilities

__all__ = ["depth_path", "depth_posterior", "learning_curves"]

_TERM = "divergence_"  # what a history calls the parts of the bound


def depth_posterior(
    posterior: Mapping[int, float], *, prior: Mapping[int, float] | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the posterior over the number of layers as bars, and the prior as a line.

    Parameters
    ----------
    posterior : mapping of int to float
        Probability of each depth; they sum to 1.
    prior : mapping of int to float, optional
        Probability of each depth; a part of the support will do.
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

        >>> from fathomless import plots
        >>> prior = {1: 0.32, 2: 0.26, 3: 0.18, 4: 0.11, 5: 0.07, 6: 0.04}
        >>> ax = plots.depth_posterior({2: 0.04, 3: 0.31, 4: 0.42, 5: 0.19, 6: 0.04}, prior=prior)
    """
    depth, mass = probabilities("posterior", posterior, whole=True)
    before = None if prior is None else probabilities("prior", prior, whole=False)
    shown = depth
    ax = start(ax, "Posterior over depth", "depth (layers)", "probability")
    ax.bar(depth, mass, 0.8, color=GREEN, label="posterior")
    if before is not None:
        ax.plot(*before, color=OCHRE, marker="o", markersize=3.5, linewidth=1.2, label="prior")
        shown = np.append(depth, before[0])
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

        >>> from fathomless import plots
        >>> rows = [{"epoch": e, "mean_depth": 5 - 4 / e, "deepest": 5 + (e > 4) + (e > 9)} for e in range(1, 30)]
        >>> ax = plots.depth_path(rows)
    """
    epoch, mean = column(history, "epoch"), column(history, "mean_depth")
    deepest, spread = (column(history, name, gaps=True) for name in ("deepest", "std_depth"))
    ax = start(ax, "Depth during training", "epoch", "depth (layers)")
    ax.plot(epoch, mean, color=GREEN, marker=_marker(epoch), markersize=3, label="mean")
    low = high = mean
    if np.isfinite(spread).any():
        low, high = mean - np.nan_to_num(spread), mean + np.nan_to_num(spread)
        ax.fill_between(epoch, low, high, color=GREEN, alpha=0.3, linewidth=0.0, label="± 1 sd")
    if np.isfinite(deepest).any():
        high = np.fmax(high, deepest)
        ax.plot(
            epoch, deepest, color=OCHRE, marker=_marker(epoch), markersize=3, linewidth=1.2, label="deepest network"
        )
    least, most = math.floor(low.min()), math.ceil(high.max())
    ax.set_ylim(limits(least, most, 0.3 if most > least else 1.0))
    _epochs(ax, epoch)
    whole_numbers(ax.yaxis)
    legend(ax)
    return ax


def learning_curves(history: History, *, rows: float | None = None, ax: Axes | None = None) -> Axes:
    """Draw the expected log-likelihood, the divergences that the bound takes off it, and the bound.

    The divergences are bands below the log-likelihood, one under the other; at temperature 1 they end at the bound.
    The first tenth of a history does not stretch the scale: what falls below it is not seen.

    Parameters
    ----------
    history : sequence of mappings
        Rows with "epoch", "elbo", "log_likelihood", any "divergence_…" (all in nats, summed over the data set), and
        perhaps "validation_log_likelihood" (nats per row).
    rows : float, optional
        Number of training rows. Everything is then in nats per row, and the validation rows are drawn too; without it
        they are left out, as their scale is another one.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        For a history without rows or without these columns, or `rows` that is not a positive number.

    Examples
    --------
    .. plot::

        >>> from fathomless import plots
        >>> steps = [(e, -300 - 900 / e, 40 + 3 * e) for e in range(1, 40)]
        >>> names = "epoch", "elbo", "log_likelihood", "divergence_weights", "validation_log_likelihood"
        >>> history = [dict(zip(names, (e, f - d, f, d, (f - 40) / 500 - e / 300))) for e, f, d in steps]
        >>> ax = plots.learning_curves(history, rows=500)
    """
    if rows is not None and not 0.0 < rows < math.inf:
        raise DataError(f"rows={rows} was given; allowed is a positive, finite number, or None")
    scale = rows or 1.0
    epoch, elbo, fit = (column(history, name) for name in ("epoch", "elbo", "log_likelihood"))
    valid = column(history, "validation_log_likelihood", gaps=True)
    names = dict.fromkeys(name for row in history for name in row if name.startswith(_TERM))
    terms = {name: np.nan_to_num(column(history, name, gaps=True)) / scale for name in names}
    lines = {"log-likelihood": (fit / scale, BLUE), "ELBO": (elbo / scale, OCHRE)}
    if rows is not None and np.isfinite(valid).any():
        lines["validation"] = valid, RUST
    ax = start(ax, "Training", "epoch", "nats" if rows is None else "nats per row")
    for label, (line, colour) in lines.items():
        ax.plot(epoch, line, color=colour, marker=_marker(epoch), markersize=3, linewidth=1.4, label=label)
    top = fit / scale
    colours = dict(zip(terms, cycle((PURPLE, GREEN)), strict=False))
    for name in reversed(terms):  # the divergence of the weights, which comes first, ends at the bound
        bottom = top - terms[name]
        label = f"KL of {name.removeprefix(_TERM)}"
        ax.fill_between(epoch, bottom, top, color=colours[name], alpha=0.3, linewidth=0.0, label=label)
        top = bottom
    late = np.concatenate([line[len(line) // 10 :] for line, _ in lines.values()])
    ax.set_ylim(limits(float(np.nanmin(late)), float(np.nanmax(late))))
    _epochs(ax, epoch)
    legend(ax)
    return ax


def _marker(epoch: Floats) -> str:
    """Mark the points of a short line one by one: a single one has no line."""
    return "o" if len(epoch) <= 15 else ""


def _epochs(ax: Axes, epoch: Floats) -> None:
    """Show all epochs, with ticks at whole ones."""
    ax.set_xlim(limits(epoch.min(), epoch.max(), 0.4 if np.ptp(epoch) else 1.0))
    whole_numbers(ax.xaxis)
