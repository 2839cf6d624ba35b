"""Plots of the calibration of predictions: reliability, PIT, coverage and confusion."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from fathomless.plots.canvas import BLUE, INK, RUST, Axes, diagonal, label_classes, legend, start
from fathomless.plots.validation import check_counts, check_shapes, floats
from fathomless.system.errors import DataError

__all__ = ["confusion", "coverage", "pit_histogram", "reliability"]


def reliability(
    confidence: npt.ArrayLike, accuracy: npt.ArrayLike, count: npt.ArrayLike, *, ax: Axes | None = None
) -> Axes:
    """Draw the accuracy of predictions against their confidence, with the share of rows at each confidence.

    Calibrated predictions lie on the diagonal. Vertical lines are 95 % Wilson intervals of each bin's accuracy.

    Parameters
    ----------
    confidence, accuracy : array_like, shape (bins,)
        Mean probability of the predicted class, and accuracy, in each bin, as returned by ``metrics.reliability``.
    count : array_like, shape (bins,)
        Number of rows in each bin, 1 or more.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If values are outside 0 to 1, or counts are not positive.

    Examples
    --------
    .. plot::

        >>> from fathomless import plots
        >>> ax = plots.reliability([0.45, 0.6, 0.75, 0.97], [0.41, 0.55, 0.78, 0.96], [20, 41, 65, 300])
    """
    x = floats("confidence", confidence, 0.0, 1.0)
    share = floats("accuracy", accuracy, 0.0, 1.0)
    n = check_counts("count", count)
    check_shapes(confidence=x, accuracy=share, count=n)
    if not n.all():
        raise DataError(f"count has {int((n == 0).sum())} empty bins; leave out bins without rows")
    ax = start(ax, "Reliability", "confidence (predicted probability)", "share of rows")
    z = 1.959964  # 97.5 % quantile of the normal law
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    ax.plot(x, share, "o", color=BLUE, markersize=4.5, label="accuracy")
    ax.vlines(x, centre - half, centre + half, color=BLUE, linewidth=1.2)
    ax.bar(x, n / n.sum(), 0.03, color=BLUE, alpha=0.35, label="share of all rows")
    diagonal(ax, 0.0, 1.0, "calibrated")
    legend(ax)
    return ax


def pit_histogram(counts: npt.ArrayLike, *, level: float = 0.95, ax: Axes | None = None) -> Axes:
    """Draw a histogram of probability integral transforms (PIT), with the band of a calibrated forecast.

    If forecasts are calibrated and rows are independent, the count of one of B bins is Binomial(n, 1 / B) for n rows.
    The band is its central interval, bin by bin, so that about one of 20 bins lies outside. A slope indicates bias, a U
    shape intervals that are too narrow, and a hump intervals that are too wide.

    Parameters
    ----------
    counts : array_like, shape (bins,)
        Number of rows, or sum of their weights, in each of the equal bins from 0 to 1.
    level : float
        Probability of the band, between 0 and 1.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If counts are negative or all zero, or the level is outside 0 to 1.

    Examples
    --------
    .. plot::

        >>> from fathomless import plots
        >>> ax = plots.pit_histogram([31, 22, 18, 20, 17, 19, 16, 21, 25, 33])
    """
    n = check_counts("counts", counts)
    if not 0.0 < level < 1.0:
        raise DataError(f"level={level} was given; a number between 0 and 1 is allowed")
    total = max(1, round(float(n.sum())))
    bins = len(n)
    low, high = _band(total, 1.0 / bins, level)
    ax = start(ax, "PIT histogram", "predicted probability of a smaller value", "share of rows")
    inside = (low <= n) & (n <= high)
    middle = (np.arange(bins) + 0.5) / bins
    for chosen, colour, label in ((inside, BLUE, "inside"), (~inside, RUST, "outside")):
        if chosen.any():
            ax.bar(middle[chosen], n[chosen] / total, 0.9 / bins, color=colour, zorder=2.0, label=label)
    band = f"{100 * level:.3g} % if calibrated"
    ax.axhspan(low / total, high / total, facecolor=INK, alpha=0.2, linewidth=0.0, zorder=1.0, label=band)
    for edge, style in ((low / total, "-"), (high / total, "-"), (1.0 / bins, (0, (4, 3)))):
        ax.axhline(edge, color=INK, linewidth=0.8, linestyle=style, zorder=3.0)
    ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.08 * max(float(n.max()), high) / total))
    legend(ax)
    return ax


def coverage(
    levels: npt.ArrayLike, coverage: npt.ArrayLike, *, rows: int | None = None, ax: Axes | None = None
) -> Axes:
    """Draw the coverage of central intervals against their nominal level.

    Intervals are too narrow below the diagonal and too wide above it.

    Parameters
    ----------
    levels, coverage : array_like, shape (L,)
        Nominal level of each interval, between 0 and 1, and observed share of rows inside it.
    rows : int, optional
        Number of rows; adds the central 95 % interval of the coverage of a calibrated forecast, level by level.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If levels or shares are outside 0 to 1, or `rows` is below 1.

    Examples
    --------
    .. plot::

        >>> from fathomless import plots
        >>> ax = plots.coverage([0.1, 0.3, 0.5, 0.7, 0.9], [0.14, 0.33, 0.48, 0.67, 0.86], rows=200)
    """
    nominal = floats("levels", levels, 0.0, 1.0)
    observed = floats("coverage", coverage, 0.0, 1.0)
    check_shapes(levels=nominal, coverage=observed)
    if rows is not None and rows < 1:
        raise DataError(f"rows={rows} was given; 1 or more, or None, is allowed")
    order = np.argsort(nominal, kind="stable")
    ax = start(ax, "Coverage of the intervals", "nominal level", "share of rows inside")
    ax.plot(nominal[order], observed[order], "o-", color=BLUE, markersize=3.5, linewidth=1.2, label="observed")
    diagonal(ax, 0.0, 1.0, "calibrated")
    if rows is not None:
        steps = [0.0, *nominal[order].tolist(), 1.0]
        low, high = np.transpose([_band(int(rows), p, 0.95) for p in steps]) / rows
        ax.fill_between(steps, low, high, color=INK, alpha=0.2, linewidth=0.0, label="95 % if calibrated")
    legend(ax)
    return ax


def confusion(counts: npt.ArrayLike, labels: Sequence[str], *, ax: Axes | None = None) -> Axes:
    """Draw a confusion matrix: numbers of rows by true and predicted class.

    The tint is the share of the true class, in blue for correct and rust for wrong predictions. Up to 10 classes have
    numbers.

    Parameters
    ----------
    counts : array_like, shape (K, K)
        Number of rows of true class i predicted as class j.
    labels : sequence of str
        Names of the classes; long ones are shortened in the middle.
    ax : Axes, optional
        Axes to draw on; a new figure by default. Many classes need a figure of 4.4 x 4.4 inches or more.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If counts are negative or all zero, or the number of labels is not K.

    Examples
    --------
    .. plot::

        >>> from fathomless import plots
        >>> ax = plots.confusion([[50, 0, 0], [0, 46, 4], [0, 3, 47]], ["setosa", "versicolor", "virginica"])
    """
    table = check_counts("counts", counts, dims=2)
    size = len(labels)
    if table.shape != (size, size):
        raise DataError(f"counts have shape {table.shape} for {size} labels; {(size, size)} is needed")
    ax = start(ax, "Confusion", "predicted class", "true class", height=min(2.8 + 0.08 * size, 4.8))
    share = np.sqrt(table / np.maximum(table.sum(1, keepdims=True), 1))  # the square root makes small shares visible
    true, predicted = np.nonzero(table)
    tints = [(BLUE if i == j else RUST, 0.12 + 0.36 * float(share[i, j])) for i, j in zip(true, predicted, strict=True)]
    ax.bar(predicted, 0.94, 0.94, true - 0.47, color=tints)
    ax.set(xlim=(-0.5, size - 0.5), ylim=(size - 0.5, -0.5))
    label_classes(ax, labels)
    if size <= 10:
        for i, j in zip(true.tolist(), predicted.tolist(), strict=True):
            number = _abbreviate(round(float(table[i, j])), size)
            ax.text(j, i, number, ha="center", va="center", color=INK, fontsize=8.5 - 0.2 * size)
    return ax


def _band(rows: int, share: float, level: float) -> tuple[int, int]:
    """Return the quantiles (1 ± level) / 2 of a Binomial(rows, share) variable."""
    if share in (0.0, 1.0):
        return int(rows * share), int(rows * share)
    reach = 20.0 + 12.0 * math.sqrt(rows * share * (1.0 - share))  # the mass further from the mean is negligible
    k = np.arange(max(0, int(rows * share - reach)), min(rows, int(rows * share + reach)) + 1)
    log_mass = np.append(0.0, np.cumsum(np.log((rows - k[1:] + 1) / k[1:] * share / (1.0 - share))))
    mass = np.exp(log_mass - log_mass.max())
    low, high = k[np.searchsorted(np.cumsum(mass) / mass.sum(), [0.5 - 0.5 * level, 0.5 + 0.5 * level])]
    return int(low), int(high)


def _abbreviate(count: int, size: int) -> str:
    """Format a count to fit into one of `size` adjacent cells."""
    text = str(count)
    if len(text) <= max(4, 24 // size):
        return text
    return f"{count / 1e3:.3g}k" if count < 999_500 else f"{count / 1e6:.3g}M"
