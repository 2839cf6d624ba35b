"""Pictures of how well probabilities of one class order rows, and of what a threshold costs."""

import numpy as np
import numpy.typing as npt

from fathomless.plots.canvas import BLUE, GREEN, INK, RUST, Axes, legend, shorten, start
from fathomless.plots.validation import floats, same

__all__ = ["lift", "precision_recall", "roc", "thresholds"]

_SHARE = (-0.02, 1.02)


def roc(false_alarms: npt.ArrayLike, found: npt.ArrayLike, *, label: str = "class 1", ax: Axes | None = None) -> Axes:
    """Draw the receiver operating characteristic: what is found of a class against what is named so by mistake.

    Parameters
    ----------
    false_alarms, found : array_like, shape (G,)
        False and true positive rate at falling thresholds.
    label : str
        Name of the class.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        For shares outside 0 to 1.

    Examples
    --------
    .. plot::

        >>> from fathomless import plots
        >>> ax = plots.roc([0.0, 0.1, 0.3, 1.0], [0.0, 0.6, 0.9, 1.0], label="yes")
    """
    x, y = _shares(false_alarms=false_alarms, found=found)
    ax = start(
        ax, "What is found, at what price", "false alarms, share of the others", f"found, share of {shorten(label)}"
    )
    ax.plot([0.0, 1.0], [0.0, 1.0], color=INK, linewidth=1.0, linestyle=(0, (4, 3)), label="by chance")
    ax.plot(x, y, color=BLUE, linewidth=1.6, label="this fit")
    ax.set(xlim=_SHARE, ylim=_SHARE)
    legend(ax)
    return ax


def precision_recall(
    found: npt.ArrayLike, right: npt.ArrayLike, base: float, *, label: str = "class 1", ax: Axes | None = None
) -> Axes:
    """Draw precision against recall: how many of the rows that are named belong to the class, for what is found of it.

    Parameters
    ----------
    found, right : array_like, shape (G,)
        Recall and precision at rising thresholds.
    base : float
        Share of the class among all rows: the precision of chance.
    label : str
        Name of the class.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        For shares outside 0 to 1.

    Examples
    --------
    .. plot::

        >>> from fathomless import plots
        >>> ax = plots.precision_recall([1.0, 0.8, 0.4, 0.0], [0.3, 0.6, 0.9, 1.0], 0.3, label="yes")
    """
    x, y = _shares(found=found, right=right)
    (level,) = _shares(base=[base])
    ax = start(ax, "How many named are right", f"found, share of {shorten(label)}", "right, share of those named")
    ax.axhline(float(level[0]), color=INK, linewidth=1.0, linestyle=(0, (4, 3)), label="by chance")
    ax.plot(x, y, color=BLUE, linewidth=1.6, drawstyle="steps-post", label="this fit")
    ax.set(xlim=_SHARE, ylim=_SHARE)
    legend(ax)
    return ax


def lift(taken: npt.ArrayLike, times: npt.ArrayLike, *, label: str = "class 1", ax: Axes | None = None) -> Axes:
    """Draw how many times as many rows of a class are among the most probable rows as among as many at random.

    Parameters
    ----------
    taken : array_like, shape (G,)
        Share of the rows that are taken, the most probable first.
    times : array_like, shape (G,)
        Share of the class among them, over its share among all rows.
    label : str
        Name of the class.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        For shares outside 0 to 1, and shapes that differ.

    Examples
    --------
    .. plot::

        >>> from fathomless import plots
        >>> ax = plots.lift([0.1, 0.3, 0.6, 1.0], [3.0, 2.2, 1.5, 1.0], label="yes")
    """
    (x,) = _shares(taken=taken)
    y = floats("times", times, 0.0)
    same(taken=x, times=y)
    ax = start(ax, "Lift", "rows taken, the most probable first", f"times as many of {shorten(label)} as at random")
    ax.axhline(1.0, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), label="by chance")
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
    """Draw what is missed of a class, and how many of the others are taken for it, at each threshold.

    Parameters
    ----------
    threshold : array_like, shape (G,)
        Probability from which on a row is named.
    missed, false_alarms : array_like, shape (G,)
        Share of the class that is not named, and of the others that are.
    label : str
        Name of the class.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        For shares outside 0 to 1.

    Examples
    --------
    .. plot::

        >>> from fathomless import plots
        >>> ax = plots.thresholds([0.0, 0.3, 0.6, 1.0], [0.0, 0.2, 0.6, 1.0], [1.0, 0.4, 0.1, 0.0], label="yes")
    """
    x, below, above = _shares(threshold=threshold, missed=missed, false_alarms=false_alarms)
    ax = start(ax, "What a threshold costs", f"named from this probability of {shorten(label)} on", "share")
    ax.plot(x, below, color=RUST, linewidth=1.6, label=f"missed of {shorten(label)}")
    ax.plot(x, above, color=BLUE, linewidth=1.6, label="false alarms among the others")
    ax.set(xlim=_SHARE, ylim=_SHARE)
    legend(ax)
    return ax


def _shares(**given: npt.ArrayLike) -> list[npt.NDArray[np.float64]]:
    """Check numbers between 0 and 1, of one shape."""
    arrays = {name: floats(name, values, 0.0, 1.0) for name, values in given.items()}
    same(**arrays)
    return list(arrays.values())
