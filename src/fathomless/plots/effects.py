"""Plots of the effects of columns: permutation importance, partial dependence, contributions to one prediction."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fathomless.plots.canvas import BLUE, GREEN, INK, PURPLE, RUST, Axes, dates, legend, shorten, start
from fathomless.plots.validation import check_shapes, floats
from fathomless.system.errors import DataError

__all__ = ["contributions", "dependence", "importance"]

_MOST = 12  # largest number of columns in a plot
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def importance(columns: Sequence[str], loss: npt.ArrayLike, error: npt.ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Draw the permutation importance of the first twelve columns, with two standard errors.

    Parameters
    ----------
    columns : sequence of str, length C
        Names of the columns, the most important first.
    loss, error : array_like, shape (C,)
        Loss of log-likelihood after a permutation of each column, in nats per row, and its standard error.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If names and numbers have different lengths.

    Examples
    --------
    .. plot::

        >>> from fathomless import plots
        >>> ax = plots.importance(["rooms", "age", "street"], [0.4, 0.1, 0.01], [0.03, 0.02, 0.01])
    """
    arrays = {"loss": floats("loss", loss), "error": floats("error", error)}
    check_shapes(**arrays)
    if len(columns) != len(arrays["loss"]):
        raise DataError(f"{len(columns)} columns and {len(arrays['loss'])} numbers were given; they must agree")
    names = [shorten(name) for name in columns[:_MOST]]
    value = arrays["loss"][:_MOST]
    width = 2.0 * arrays["error"][:_MOST]
    place = np.arange(len(names))[::-1]
    ax = start(ax, "Permutation importance", "nats per row, ± two standard errors", "column")
    ax.barh(place, np.maximum(value, 0.0), color=GREEN, height=0.62)
    ax.errorbar(value, place, xerr=width, fmt="none", color=INK, ecolor=INK, elinewidth=0.9, capsize=2.0)
    ax.set_yticks(place, names, parse_math=False)
    ax.grid(visible=False, axis="y")
    return ax


def contributions(
    columns: Sequence[str],
    values: npt.ArrayLike,
    lower: npt.ArrayLike | None = None,
    upper: npt.ArrayLike | None = None,
    *,
    target: str = "prediction",
    ax: Axes | None = None,
) -> Axes:
    """Draw the contributions of columns to one prediction: the twelve largest, or eleven and the sum of the others.

    Parameters
    ----------
    columns : sequence of str, length C
        Names of the columns, which may contain their values in the row.
    values : array_like, shape (C,)
        Contributions, in units of the prediction.
    lower, upper : array_like, shape (C,), optional
        Bounds of their intervals. The sum of the others has none.
    target : str
        Name of the predicted quantity.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If names and numbers have different lengths.

    Examples
    --------
    .. plot::

        >>> from fathomless import plots
        >>> names = ["rooms = 7", "age = 80", "street = north"]
        >>> ax = plots.contributions(names, [3.1, -1.2, 0.1], [2.5, -1.9, -0.2], [3.6, -0.7, 0.3], target="price")
    """
    value = floats("values", values)
    low, high = (value if bound is None else floats("bounds", bound) for bound in (lower, upper))
    check_shapes(values=value, lower=low, upper=high)
    if len(columns) != len(value):
        raise DataError(f"{len(columns)} columns and {len(value)} numbers were given; they must agree")
    order = np.argsort(-np.abs(value), kind="stable")
    shown = order if len(order) <= _MOST else order[: _MOST - 1]
    names = [shorten(columns[i], 24) for i in shown]
    size, ends = value[shown], np.abs(np.stack([low[shown] - value[shown], high[shown] - value[shown]]))
    if len(shown) < len(order):
        names.append(f"{len(order) - len(shown)} others")
        size, ends = np.append(size, value[order[len(shown) :]].sum()), np.pad(ends, ((0, 0), (0, 1)))
    place = np.arange(len(names))[::-1]
    ax = start(ax, "Contributions to a prediction", f"change of {shorten(target)}", "column")
    ax.barh(place, size, color=[BLUE if v >= 0.0 else RUST for v in size], height=0.62)
    if lower is not None or upper is not None:
        ax.errorbar(size, place, xerr=ends, fmt="none", color=INK, ecolor=INK, elinewidth=0.9, capsize=2.0)
    ax.axvline(0.0, color=INK, linewidth=0.8)
    ax.set_yticks(place, names, parse_math=False)
    ax.grid(visible=False, axis="y")
    return ax


def dependence(
    points: Sequence[float | str],
    mean: npt.ArrayLike,
    lower: npt.ArrayLike,
    upper: npt.ArrayLike,
    *,
    names: Sequence[str] = ("average prediction",),
    column: str = "x",
    target: str = "y",
    ax: Axes | None = None,
) -> Axes:
    """Draw the partial dependence on a column, with intervals: a curve for numbers, points for categories.

    Parameters
    ----------
    points : sequence of float or str, length G
        Values of the column: numbers, categories, or dates as YYYY-MM-DD.
    mean, lower, upper : array_like, shape (G, K)
        Average prediction of K quantities, and the ends of its intervals.
    names : sequence of str, length K
        Names of the quantities.
    column, target : str
        Names of the axes.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If shapes do not agree, or there are more than four quantities.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless import plots
        >>> x = np.linspace(0, 3, 15)
        >>> curve = np.sin(x)[:, None]
        >>> ax = plots.dependence(x.tolist(), curve, curve - 0.1, curve + 0.1, column="age", target="price")
    """
    arrays = {
        name: floats(name, values, dims=2) for name, values in (("mean", mean), ("lower", lower), ("upper", upper))
    }
    check_shapes(**arrays)
    if arrays["mean"].shape != (len(points), len(names)) or len(names) > 4:
        raise DataError(
            f"mean has shape {arrays['mean'].shape}; for {len(points)} points and {len(names)} names "
            f"({len(points)}, {len(names)}) is needed, with at most 4 names"
        )
    ax = start(ax, f"Partial dependence on {shorten(column)}", shorten(column, 40), shorten(target, 40))
    are_dates = all(isinstance(point, str) and _DATE.fullmatch(point) for point in points)
    numeric = are_dates or not any(isinstance(point, str) for point in points)
    kind = "datetime64[D]" if are_dates else np.float64
    place: npt.NDArray[Any] = np.array(points, kind) if numeric else np.arange(len(points))
    for k, colour in zip(range(len(names)), (BLUE, RUST, GREEN, PURPLE), strict=False):
        centre, low, high = (arrays[part][:, k] for part in ("mean", "lower", "upper"))
        label = shorten(names[k]) if len(names) > 1 else None
        if numeric:
            ax.fill_between(place, low, high, color=colour, alpha=0.2, linewidth=0.0)
            ax.plot(place, centre, color=colour, linewidth=1.6, label=label)
            ax.plot(place, np.full(len(place), arrays["lower"].min()), "|", color=INK, markersize=4.0, alpha=0.6)
        else:
            ax.errorbar(
                place,
                centre,
                yerr=np.stack([centre - np.minimum(low, centre), np.maximum(high, centre) - centre]),
                fmt="o",
                color=colour,
                markersize=4.0,
                capsize=2.5,
                label=label,
            )
    if are_dates:
        dates(ax)
    elif not numeric:
        few = len(points) <= 8  # the labels of more points are vertical
        names_of = [shorten(str(point), 10) for point in points]
        ax.set_xticks(place, names_of, rotation=30 if few else 90, ha="right" if few else "center", parse_math=False)
    if len(names) > 1:
        legend(ax)
    return ax
