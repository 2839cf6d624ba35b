"""Plots of the ranking of rows by the probability of a class, and of the errors at each threshold."""

import numpy as np
import numpy.typing as npt

from fathomless.plots.canvas import BLUE, GREEN, INK, RUST, Axes, legend, shorten, start
from fathomless.plots.validation import check_shapes, floats

__all__ = ["lift", "precision_recall", "roc", "thresholds"]

_SHARE = (-0.02, 1.02)


def roc(false_alarms: npt.ArrayLike, found: npt.ArrayLike, *, label: str = "class 1", ax: Axes | None = None) -> Axes:
    """Draw the receiver operating characteristic: the true positive rate against the false positive rate.

    Parameters
    ----------
    false_alarms, found : array_like, shape (G,)
        False and true positive rate at decreasing thresholds.
    label : str
        Name of the class.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If a share is outside 0 to 1.

    Examples
    --------
    .. plot::

        >>> from fathomless import plots
        >>> ax = plots.roc([0.0, 0.1, 0.3, 1.0], [0.0, 0.6, 0.9, 1.0], label="yes")
    """
    x, y = _shares(false_alarms=false_alarms, found=found)
    ax = start(ax, f"ROC curve of {shorten(label)}", "false positive rate", "true positive rate")
    ax.plot([0.0, 1.0], [0.0, 1.0], color=INK, linewidth=1.0, linestyle=(0, (4, 3)), label="random")
    ax.plot(x, y, color=BLUE, linewidth=1.6, label="this fit")
    ax.set(xlim=_SHARE, ylim=_SHARE)
    legend(ax)
    return ax


def precision_recall(
    found: npt.ArrayLike, right: npt.ArrayLike, base: float, *, label: str = "class 1", ax: Axes | None = None
) -> Axes:
    """Draw precision against recall for one class.

    Parameters
    ----------
    found, right : array_like, shape (G,)
        Recall and precision at increasing thresholds.
    base : float
        Share of the class among all rows: the precision of a random ranking.
    label : str
        Name of the class.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If a share is outside 0 to 1.

    Examples
    --------
    .. plot::

        >>> from fathomless import plots
        >>> ax = plots.precision_recall([1.0, 0.8, 0.4, 0.0], [0.3, 0.6, 0.9, 1.0], 0.3, label="yes")
    """
    x, y = _shares(found=found, right=right)
    (level,) = _shares(base=[base])
    ax = start(ax, f"Precision and recall of {shorten(label)}", "recall", "precision")
    ax.axhline(float(level[0]), color=INK, linewidth=1.0, linestyle=(0, (4, 3)), label="random")
    ax.plot(x, y, color=BLUE, linewidth=1.6, drawstyle="steps-post", label="this fit")
    ax.set(xlim=_SHARE, ylim=_SHARE)
    legend(ax)
    return ax


def lift(taken: npt.ArrayLike, times: npt.ArrayLike, *, label: str = "class 1", ax: Axes | None = None) -> Axes:
    """Draw the lift: the share of a class among the most probable rows, divided by its share among all rows.

    Parameters
    ----------
    taken : array_like, shape (G,)
        Share of the rows that are selected, the most probable first.
    times : array_like, shape (G,)
        Share of the class among them, divided by its share among all rows.
    label : str
        Name of the class.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If a share is outside 0 to 1, or shapes differ.

    Examples
    --------
    .. plot::

        >>> from fathomless import plots
        >>> ax = plots.lift([0.1, 0.3, 0.6, 1.0], [3.0, 2.2, 1.5, 1.0], label="yes")
    """
    (x,) = _shares(taken=taken)
    y = floats("times", times, 0.0)
    check_shapes(taken=x, times=y)
    ax = start(ax, f"Lift of {shorten(label)}", "share of rows selected, the most probable first", "lift")
    ax.axhline(1.0, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), label="random")
    ax.plot(x, y, color=GREEN, linewidth=1.6, label="this fit")
    ax.set(xlim=_SHARE, ylim=(0.0, 1.08 * max(1.0, float(y.max()))))
    legend(ax)
    return ax


def thresholds(
    threshold: npt.ArrayLike,
    missed: npt.ArrayLike,
    false_alarms: npt.ArrayLike,
    *,
    label: str = "class 1",
    ax: Axes | None = None,
) -> Axes:
    """Draw the false negative rate and the false positive rate of a class at each threshold.

    Parameters
    ----------
    threshold : array_like, shape (G,)
        Probability from which on a row is assigned to the class.
    missed, false_alarms : array_like, shape (G,)
        False negative and false positive rate.
    label : str
        Name of the class.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If a share is outside 0 to 1.

    Examples
    --------
    .. plot::

        >>> from fathomless import plots
        >>> ax = plots.thresholds([0.0, 0.3, 0.6, 1.0], [0.0, 0.2, 0.6, 1.0], [1.0, 0.4, 0.1, 0.0], label="yes")
    """
    x, below, above = _shares(threshold=threshold, missed=missed, false_alarms=false_alarms)
    ax = start(ax, "Errors at each threshold", f"threshold on the probability of {shorten(label)}", "rate")
    ax.plot(x, below, color=RUST, linewidth=1.6, label="false negatives")
    ax.plot(x, above, color=BLUE, linewidth=1.6, label="false positives")
    ax.set(xlim=_SHARE, ylim=_SHARE)
    legend(ax)
    return ax


def _shares(**values: npt.ArrayLike) -> list[npt.NDArray[np.float64]]:
    """Check that values are between 0 and 1 and have equal shapes; return them as arrays."""
    arrays = {name: floats(name, array, 0.0, 1.0) for name, array in values.items()}
    check_shapes(**arrays)
    return list(arrays.values())
