"""Learning curves: the evidence lower bound and its parts."""

import math
from itertools import cycle

import numpy as np

from fathomless.plots.canvas import BLUE, GREEN, OCHRE, PURPLE, RUST, Axes, legend, limits, start, whole_numbers
from fathomless.plots.validation import Floats, History, column
from fathomless.system.errors import DataError

__all__ = ["epoch_axis", "epoch_marker", "learning_curves"]

_TERM = "divergence_"  # prefix of the divergences in a history


def learning_curves(history: History, *, rows: float | None = None, ax: Axes | None = None) -> Axes:
    """Draw the expected log-likelihood, the divergences and the evidence lower bound over the epochs.

    The divergences are bands below the log-likelihood, one under the other; at temperature 1 they end at the bound. The
    first tenth of the history does not affect the scale and may lie outside the plot.

    Parameters
    ----------
    history : sequence of mappings
        Rows with "epoch", "elbo", "log_likelihood", any "divergence_…" (all in nats, summed over the data set), and
        optionally "validation_log_likelihood" (nats per row).
    rows : float, optional
        Number of training rows. All curves are then in nats per row, with the validation score. Without it the
        validation score is not drawn, since it has another scale.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If the history has no rows or lacks these columns, or `rows` is not a positive number.

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
        raise DataError(f"rows={rows} was given; a positive, finite number or None is allowed")
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
        ax.plot(epoch, line, color=colour, marker=epoch_marker(epoch), markersize=3, linewidth=1.4, label=label)
    top = fit / scale
    colours = dict(zip(terms, cycle((PURPLE, GREEN)), strict=False))
    for name in reversed(terms):  # the first one, of the weights, is the lowest band and ends at the bound
        bottom = top - terms[name]
        label = f"KL of {name.removeprefix(_TERM)}"
        ax.fill_between(epoch, bottom, top, color=colours[name], alpha=0.3, linewidth=0.0, label=label)
        top = bottom
    late = np.concatenate([line[len(line) // 10 :] for line, _ in lines.values()])
    ax.set_ylim(limits(float(np.nanmin(late)), float(np.nanmax(late))))
    epoch_axis(ax, epoch)
    legend(ax)
    return ax


def epoch_marker(epoch: Floats) -> str:
    """Return the marker of a line: points for up to 15 values, since a line of one point is not visible."""
    return "o" if len(epoch) <= 15 else ""


def epoch_axis(ax: Axes, epoch: Floats) -> None:
    """Set the limits to all epochs, with ticks at whole numbers."""
    ax.set_xlim(limits(epoch.min(), epoch.max(), 0.4 if np.ptp(epoch) else 1.0))
    whole_numbers(ax.xaxis)
