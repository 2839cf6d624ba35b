"""Plots of predictions: intervals, functions, residuals, and the sources of uncertainty."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fathomless.plots.canvas import BLUE, GREEN, INK, PURPLE, RUST, Axes, diagonal, legend, limits, space_ticks, start
from fathomless.plots.validation import check_shapes, floats
from fathomless.system.errors import DataError

__all__ = ["functions", "interval_widths", "intervals", "predicted_against_observed", "residuals", "uncertainty_split"]

_MOST = 100  # largest number of intervals, or groups of rows, in a plot


def intervals(
    y: npt.ArrayLike,
    mean: npt.ArrayLike,
    low: npt.ArrayLike,
    high: npt.ArrayLike,
    *,
    target: str = "y",
    ax: Axes | None = None,
) -> Axes:
    """Draw prediction intervals and observations of up to 100 rows, sorted by the predicted mean.

    If there are more rows, 100 evenly spaced ones in this order are drawn; the shares in the legend are of all rows.

    Parameters
    ----------
    y, mean, low, high : array_like, shape (N,)
        Observation, predicted mean, and ends of the interval, in the units of y.
    target : str
        Name of y, for the axis.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If an interval has low above high.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless import plots
        >>> mean, noise = np.random.default_rng(0).normal(size=(2, 60))
        >>> ax = plots.intervals(mean + noise / 2, mean, mean - 0.8, mean + 0.8)
    """
    names = {"y": y, "mean": mean, "low": low, "high": high}
    arrays = {name: floats(name, values) for name, values in names.items()}
    check_shapes(**arrays)
    crossed = int((arrays["low"] > arrays["high"]).sum())
    if crossed:
        raise DataError(f"{crossed} intervals have low above high; low <= high is needed")
    inside = (arrays["low"] <= arrays["y"]) & (arrays["y"] <= arrays["high"])
    share = 100.0 * inside.mean()
    order = np.argsort(arrays["mean"], kind="stable")
    order = order[np.linspace(0, len(order) - 1, min(len(order), 100)).round().astype(int)]
    truth, centre, below, above = (arrays[name][order] for name in names)
    place = np.arange(len(order))
    covered = inside[order]
    ax = start(ax, "Intervals and observations", "rows, sorted by predicted mean", target)
    for chosen, colour, label in (
        (covered, BLUE, f"inside {share:.3g} %"),
        (~covered, RUST, f"outside {100 - share:.3g} %"),
    ):
        if chosen.any():
            ax.vlines(place[chosen], below[chosen], above[chosen], color=colour, alpha=0.4, linewidth=1.6)
            ax.plot(place[chosen], truth[chosen], "o", color=colour, markersize=2.8, label=label)
    ax.plot(place, centre, "_", color=INK, markersize=3.5, label="mean")
    ax.set_xticks([])
    legend(ax)
    return ax


def interval_widths(
    y: npt.ArrayLike,
    mean: npt.ArrayLike,
    low: npt.ArrayLike,
    high: npt.ArrayLike,
    *,
    quarters: Sequence[tuple[float, float]] | None = None,
    level: float = 0.9,
    target: str = "y",
    ax: Axes | None = None,
) -> Axes:
    """Draw the width of prediction intervals against the prediction, with the coverage in quarters by prediction.

    The bands are quarters of the rows, numbered from the lowest predictions. Where coverages differ from the level by
    more than their errors, the width of the intervals does not follow the size of the errors.

    Parameters
    ----------
    y, mean, low, high : array_like, shape (N,)
        Observations, predicted means and ends of the intervals, in the units of y.
    quarters : sequence of four pairs, optional
        Number of rows and coverage of each quarter, for instance of all rows if only a sample is drawn; by default
        those of the rows drawn.
    level : float
        Nominal level of the intervals, between 0 and 1. It gives the binomial error of the coverages.
    target : str
        Name of y, for the axes.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If the arrays have different lengths, an interval has low above high, or `quarters` are not four.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless import plots
        >>> mean, noise = np.random.default_rng(1).normal(size=(2, 200))
        >>> half = 1.64 + 0.2 * np.abs(mean)
        >>> ax = plots.interval_widths(mean + np.exp(mean / 2) * noise, mean, mean - half, mean + half)
    """
    names = ("y", "mean", "low", "high")
    arrays = {name: floats(name, values) for name, values in zip(names, (y, mean, low, high), strict=True)}
    check_shapes(**arrays)
    truth, centre, below, above = arrays.values()
    if (below > above).any():
        raise DataError(f"{int((below > above).sum())} intervals have low above high; low <= high is needed")
    if not 0.0 < level < 1.0 or (quarters is not None and (len(quarters) != 4 or min(q[0] for q in quarters) <= 0)):
        raise DataError(
            f"level={level} and quarters={quarters} were given; allowed are a level between 0 and 1, and four pairs "
            "of a positive number of rows and a coverage, or None"
        )
    inside = (below <= truth) & (truth <= above)
    width = above - below
    parts = [part for part in np.array_split(np.argsort(centre, kind="stable"), 4) if len(part)]
    counted = quarters or [(len(part), float(inside[part].mean())) for part in parts]
    edges = [*(float(centre[part[0]]) for part in parts), float(centre.max())]
    ax = start(ax, "Width of the intervals", f"predicted {target}", f"width of the {100 * level:.3g} % interval")
    style: dict[str, Any] = {"markersize": 2.8, "alpha": max(0.6, _opacity(len(truth)))}
    for chosen, colour, label in ((inside, BLUE, "inside"), (~inside, RUST, "outside")):
        if chosen.any():
            ax.plot(centre[chosen], width[chosen], "o", color=colour, label=label, **style)
    ends = limits(edges[0], edges[-1])
    place: dict[str, Any] = {
        "transform": ax.get_xaxis_transform(),
        "ha": "center",
        "va": "top",
        "color": INK,
        "fontsize": 8.0,
    }
    for k, ((left, right), (rows, share)) in enumerate(zip(itertools.pairwise(edges), counted, strict=False)):
        if k % 2 == 0:
            ax.axvspan(left, right, facecolor=INK, alpha=0.08, linewidth=0.0, zorder=0.5)
        if right - left > 0.04 * (ends[1] - ends[0]):
            ax.text(0.5 * (left + right), 0.98, str(k + 1), **place)
        error = 100.0 * math.sqrt(level * (1.0 - level) / rows)
        ax.plot([], [], " ", label=f"{k + 1}: {100 * share:.3g} ± {error:.2g} % of {rows:,.0f}")
    ax.set(xlim=ends, ylim=(0.0, 1.15 * float(width.max()) or 1.0))
    space_ticks(ax)
    legend(ax)
    return ax


def functions(
    x: npt.ArrayLike,
    quantiles: npt.ArrayLike,
    levels: npt.ArrayLike,
    *,
    X: npt.ArrayLike | None = None,
    y: npt.ArrayLike | None = None,
    feature: str = "x",
    target: str = "y",
    ax: Axes | None = None,
) -> Axes:
    """Draw a function of one input as bands between quantiles, with the observations.

    Levels are paired from the outside in, the lowest with the highest; an odd one in the middle is drawn as a line.

    Parameters
    ----------
    x : array_like, shape (N,)
        Inputs, in any order.
    quantiles : array_like, shape (L, N)
        Quantiles at each input, one row per level.
    levels : array_like, shape (L,)
        Levels of the quantiles, increasing, between 0 and 1.
    X, y : array_like, shape (M,), optional
        Observations; give both or neither.
    feature, target : str
        Names of x and y, for the axes.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If levels do not increase, quantiles decrease with the level, or only one of X and y is given.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless import plots
        >>> x, X = np.linspace(-3, 3, 61), np.array([-1.6, -0.9, -0.4, 0.3, 1.1])
        >>> spread = np.array([-1.6, -0.7, 0, 0.7, 1.6])[:, None] * (0.1 + x**2 / 8)
        >>> ax = plots.functions(x, np.sin(2 * x) + spread, [0.05, 0.25, 0.5, 0.75, 0.95], X=X, y=np.sin(2 * X))
    """
    at = floats("x", x)
    level = floats("levels", levels, 0.0, 1.0)
    values = floats("quantiles", quantiles, dims=2)
    if values.shape != (len(level), len(at)):
        raise DataError(f"quantiles have shape {values.shape}; (levels, x) = {(len(level), len(at))} is needed")
    if (np.diff(level) <= 0.0).any() or (np.diff(values, axis=0) < 0.0).any():
        raise DataError("levels or quantiles decrease; sort the levels, and the quantiles with them")
    if (X is None) != (y is None):
        raise DataError("only one of X and y was given; give both or neither")
    rows = (np.empty(0), np.empty(0)) if X is None or y is None else (floats("X", X), floats("y", y))
    check_shapes(X=rows[0], y=rows[1])
    order = np.argsort(at, kind="stable")
    at, values = at[order], values[:, order]
    last = len(level) - 1
    ax = start(ax, "Predicted function", feature, target)
    for i, alpha in enumerate(np.linspace(0.2, 0.5, len(level) // 2)):
        label = f"{100 * (level[last - i] - level[i]):.3g} %"
        ax.fill_between(at, values[i], values[last - i], color=BLUE, alpha=alpha, linewidth=0.0, label=label)
    if len(level) % 2:
        middle = level[last // 2]
        label = "median" if middle == 0.5 else f"{100 * middle:.3g} % quantile"
        ax.plot(at, values[last // 2], color=BLUE, label=label)
    if X is not None:
        ax.plot(*rows, "o", color=RUST, markersize=3.0, alpha=_opacity(len(rows[0])), label="observed")
    space_ticks(ax)
    legend(ax)
    return ax


def predicted_against_observed(
    y: npt.ArrayLike, mean: npt.ArrayLike, *, target: str = "y", ax: Axes | None = None
) -> Axes:
    """Draw each observation against its predicted mean, on equal scales.

    The axes include the central 99 % of the values and half their range on each side; the legend has the number of rows
    outside.

    Parameters
    ----------
    y, mean : array_like, shape (N,)
        Observations and predicted means, in the units of y. All rows are drawn; for an HTML page, choose a sample of
        about 2,000.
    target : str
        Name of y, for the axes.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If the arrays have different lengths.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless import plots
        >>> mean, noise = np.random.default_rng(1).normal(size=(2, 150))
        >>> ax = plots.predicted_against_observed(mean + noise / 3, mean)
    """
    truth, centre = floats("y", y), floats("mean", mean)
    check_shapes(y=truth, mean=centre)
    both = np.concatenate([truth, centre])
    low, inner, outer, high = np.quantile(both, [0.0, 0.005, 0.995, 1.0]).tolist()
    if outer > inner:
        low, high = max(low, 1.5 * inner - 0.5 * outer), min(high, 1.5 * outer - 0.5 * inner)
    left, right = limits(low, high)
    beyond = int(((np.minimum(truth, centre) < left) | (np.maximum(truth, centre) > right)).sum())
    ax = start(ax, "Predicted and observed", f"predicted mean of {target}", f"observed {target}")
    label = f"rows ({beyond} beyond the edges)" if beyond else "rows"
    ax.plot(
        centre, truth, "o", color=BLUE, markersize=3.0, alpha=_opacity(len(truth)), markeredgewidth=0.0, label=label
    )
    diagonal(ax, low, high, "equal")
    if beyond:
        legend(ax)
    return ax


def residuals(y: npt.ArrayLike, mean: npt.ArrayLike, *, target: str = "y", ax: Axes | None = None) -> Axes:
    """Draw residuals against the predicted mean, with the mean residual of each tenth of the rows.

    Parameters
    ----------
    y, mean : array_like, shape (N,)
        Observations and predicted means, in the units of y.
    target : str
        Name of y, for the axes.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If shapes differ, or numbers are not finite.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless import plots
        >>> mean, noise = np.random.default_rng(0).normal(size=(2, 200))
        >>> ax = plots.residuals(mean + noise * np.exp(mean / 3), mean)
    """
    arrays = {"y": floats("y", y), "mean": floats("mean", mean)}
    check_shapes(**arrays)
    centre = arrays["mean"]
    residual = arrays["y"] - centre
    ax = start(ax, "Residuals", f"predicted mean of {target}", "observed − predicted")
    ax.plot(centre, residual, "o", color=BLUE, markersize=2.4, alpha=0.45, markeredgewidth=0.0)
    ax.axhline(0.0, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    parts = np.array_split(np.argsort(centre, kind="stable"), max(1, min(10, len(residual) // 10)))
    if len(parts) > 1:
        place, middle = ([float(values[rows].mean()) for rows in parts] for values in (centre, residual))
        width = [2.0 * float(residual[rows].std(ddof=1)) / math.sqrt(len(rows)) for rows in parts]
        ax.errorbar(place, middle, yerr=width, fmt="o-", color=RUST, markersize=3.0, linewidth=1.0, capsize=2.0)
    space_ticks(ax)
    return ax


def uncertainty_split(
    noise: npt.ArrayLike, weights: npt.ArrayLike, structure: npt.ArrayLike, *, ax: Axes | None = None
) -> Axes:
    """Draw the shares of noise, weights and structure in the uncertainty of each row.

    Rows are sorted by their total uncertainty. More than 100 rows are drawn in 100 groups, with the shares of the sum
    of each group. A row without uncertainty has no shares.

    Parameters
    ----------
    noise, weights, structure : array_like, shape (N,)
        Parts of the variance, or of the entropy in nats; not negative, except for rounding.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If a part is negative.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless import plots
        >>> u = np.linspace(0.1, 1, 40)
        >>> ax = plots.uncertainty_split(0.3 + 0 * u, 0.3 * u, 0.4 * u**2)
    """
    parts = {"noise": floats("noise", noise), "weights": floats("weights", weights)}
    parts["structure"] = floats("structure", structure)
    check_shapes(**parts)
    total = np.sum(list(parts.values()), axis=0)
    for name, part in parts.items():
        if (part < -1e-6 * max(float(np.abs(total).max()), 1e-30)).any():
            raise DataError(f"{name} has the value {part.min()}; numbers of 0 or more are allowed")
    groups = np.array_split(np.argsort(total, kind="stable"), min(len(total), _MOST))
    sums = np.array([[part[group].clip(min=0.0).sum() for group in groups] for part in parts.values()])
    whole = sums.sum(0)
    shares = np.divide(sums, whole, out=np.zeros_like(sums), where=whole > 0.0)
    edges = np.append(0.0, np.cumsum([len(group) for group in groups])) / len(total)
    ax = start(ax, "Sources of uncertainty", "share of rows, from least to most uncertain", "share of uncertainty")
    bottom = np.zeros(len(groups))
    for name, share, colour in zip(parts, shares, (BLUE, PURPLE, GREEN), strict=True):
        ax.stairs(bottom + share, edges, baseline=bottom, fill=True, color=colour, alpha=0.8, linewidth=0.0, label=name)
        bottom = bottom + share
    ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    legend(ax)
    return ax


def _opacity(points: int) -> float:
    """Return an opacity at which dense regions of many points remain visible."""
    return min(0.85, max(0.35, 12.0 / math.sqrt(points)))
