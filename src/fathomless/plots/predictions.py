"""Pictures of predictions: intervals, functions, and where their uncertainty comes from."""

import math

import numpy as np
import numpy.typing as npt

from fathomless.plots.canvas import BLUE, GREEN, INK, PURPLE, RUST, Axes, diagonal, legend, limits, spaced, start
from fathomless.plots.validation import floats, same
from fathomless.system.errors import DataError

__all__ = ["functions", "intervals", "predicted_against_observed", "residuals", "uncertainty_split"]

_MOST = 100  # intervals, or groups of rows, that one picture holds


def intervals(
    y: npt.ArrayLike,
    mean: npt.ArrayLike,
    low: npt.ArrayLike,
    high: npt.ArrayLike,
    *,
    target: str = "y",
    ax: Axes | None = None,
) -> Axes:
    """Draw predictive intervals and observations of up to 100 rows, sorted by the predicted mean.

    Of more rows, 100 are drawn, evenly spaced in that order; the share in the legend is of all rows.

    Parameters
    ----------
    y, mean, low, high : array_like, shape (N,)
        Observation, predicted mean, and ends of the interval, in the units of y.
    target : str
        Name of y, for the axis.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        For intervals with low above high.

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
    same(**arrays)
    crossed = int((arrays["low"] > arrays["high"]).sum())
    if crossed:
        raise DataError(f"{crossed} intervals have low above high; allowed are low <= high")
    inside = (arrays["low"] <= arrays["y"]) & (arrays["y"] <= arrays["high"])
    share = 100.0 * inside.mean()
    order = np.argsort(arrays["mean"], kind="stable")
    order = order[np.linspace(0, len(order) - 1, min(len(order), 100)).round().astype(int)]
    truth, centre, below, above = (arrays[name][order] for name in names)
    place, held = np.arange(len(order)), inside[order]
    ax = start(ax, "Intervals and observations", "rows, sorted by predicted mean", target)
    for chosen, colour, label in (
        (held, BLUE, f"inside {share:.3g} %"),
        (~held, RUST, f"outside {100 - share:.3g} %"),
    ):
        if chosen.any():
            ax.vlines(place[chosen], below[chosen], above[chosen], color=colour, alpha=0.4, linewidth=1.6)
            ax.plot(place[chosen], truth[chosen], "o", color=colour, markersize=2.8, label=label)
    ax.plot(place, centre, "_", color=INK, markersize=3.5, label="mean")
    ax.set_xticks([])
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

    Levels are paired from the outside in, the lowest with the highest; one that is left over becomes a line.

    Parameters
    ----------
    x : array_like, shape (N,)
        Inputs, in any order.
    quantiles : array_like, shape (L, N)
        Quantiles at each input, one row per level.
    levels : array_like, shape (L,)
        Levels of the quantiles, increasing, between 0 and 1.
    X, y : array_like, shape (M,), optional
        Observations; both or neither.
    feature, target : str
        Names of x and y, for the axes.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        For levels that do not increase, quantiles that decrease with the level, or X without y.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless import plots
        >>> x, X = np.linspace(-3, 3, 61), np.array([-1.6, -0.9, -0.4, 0.3, 1.1])
        >>> spread = np.array([-1.6, -0.7, 0, 0.7, 1.6])[:, None] * (0.1 + x**2 / 8)
        >>> ax = plots.functions(x, np.sin(2 * x) + spread, [0.05, 0.25, 0.5, 0.75, 0.95], X=X, y=np.sin(2 * X))
    """
    at, level, values = floats("x", x), floats("levels", levels, 0.0, 1.0), floats("quantiles", quantiles, dims=2)
    if values.shape != (len(level), len(at)):
        raise DataError(f"quantiles {values.shape} were given; allowed is (levels, x) = {(len(level), len(at))}")
    if (np.diff(level) <= 0.0).any() or (np.diff(values, axis=0) < 0.0).any():
        raise DataError("levels or quantiles were given that decrease; sort the levels, and the quantiles with them")
    if (X is None) != (y is None):
        raise DataError("X or y was given alone; give both or neither")
    rows = (np.empty(0), np.empty(0)) if X is None or y is None else (floats("X", X), floats("y", y))
    same(X=rows[0], y=rows[1])
    order, last = np.argsort(at, kind="stable"), len(level) - 1
    at, values = at[order], values[:, order]
    ax = start(ax, "Predicted function", feature, target)
    for i, alpha in enumerate(np.linspace(0.2, 0.5, len(level) // 2)):
        label = f"{100 * (level[last - i] - level[i]):.3g} %"
        ax.fill_between(at, values[i], values[last - i], color=BLUE, alpha=alpha, linewidth=0.0, label=label)
    if len(level) % 2:
        middle = level[last // 2]
        label = "median" if middle == 0.5 else f"{100 * middle:.3g} % quantile"
        ax.plot(at, values[last // 2], color=BLUE, label=label)
    if X is not None:
        ax.plot(*rows, "o", color=RUST, markersize=3.0, alpha=_faint(len(rows[0])), label="observed")
    spaced(ax)
    legend(ax)
    return ax


def predicted_against_observed(
    y: npt.ArrayLike, mean: npt.ArrayLike, *, target: str = "y", ax: Axes | None = None
) -> Axes:
    """Draw each observation against its predicted mean, on equal scales.

    The axes hold the central 99 % of the values and half their range to each side; the legend counts rows beyond.

    Parameters
    ----------
    y, mean : array_like, shape (N,)
        Observations and predicted means, in the units of y. All rows are drawn: a page is lighter with 2,000 than with
        a million.
    target : str
        Name of y, for the axes.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        For arrays of different lengths.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless import plots
        >>> mean, noise = np.random.default_rng(1).normal(size=(2, 150))
        >>> ax = plots.predicted_against_observed(mean + noise / 3, mean)
    """
    truth, centre = floats("y", y), floats("mean", mean)
    same(y=truth, mean=centre)
    both = np.concatenate([truth, centre])
    low, inner, outer, high = np.quantile(both, [0.0, 0.005, 0.995, 1.0]).tolist()
    if outer > inner:
        low, high = max(low, 1.5 * inner - 0.5 * outer), min(high, 1.5 * outer - 0.5 * inner)
    left, right = limits(low, high)
    beyond = int(((np.minimum(truth, centre) < left) | (np.maximum(truth, centre) > right)).sum())
    ax = start(ax, "Predicted and observed", f"predicted mean of {target}", f"observed {target}")
    label = f"rows ({beyond} beyond the edges)" if beyond else "rows"
    ax.plot(centre, truth, "o", color=BLUE, markersize=3.0, alpha=_faint(len(truth)), markeredgewidth=0.0, label=label)
    diagonal(ax, low, high, "equal")
    if beyond:
        legend(ax)
    return ax


def residuals(y: npt.ArrayLike, mean: npt.ArrayLike, *, target: str = "y", ax: Axes | None = None) -> Axes:
    """Draw observed less predicted against the prediction, with the mean of each tenth of the rows.

    Parameters
    ----------
    y, mean : array_like, shape (N,)
        Observations and predicted means, in the units of y.
    target : str
        Name of y, for the axes.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        For shapes that differ, and numbers that are not finite.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless import plots
        >>> mean, noise = np.random.default_rng(0).normal(size=(2, 200))
        >>> ax = plots.residuals(mean + noise * np.exp(mean / 3), mean)
    """
    arrays = {"y": floats("y", y), "mean": floats("mean", mean)}
    same(**arrays)
    centre, left = arrays["mean"], arrays["y"] - arrays["mean"]
    ax = start(ax, "Residuals", f"predicted mean of {target}", "observed less predicted")
    ax.plot(centre, left, "o", color=BLUE, markersize=2.4, alpha=0.45, markeredgewidth=0.0)
    ax.axhline(0.0, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    parts = np.array_split(np.argsort(centre, kind="stable"), max(1, min(10, len(left) // 10)))
    if len(parts) > 1:
        place, middle = ([float(values[rows].mean()) for rows in parts] for values in (centre, left))
        width = [2.0 * float(left[rows].std(ddof=1)) / math.sqrt(len(rows)) for rows in parts]
        ax.errorbar(place, middle, yerr=width, fmt="o-", color=RUST, markersize=3.0, linewidth=1.0, capsize=2.0)
    spaced(ax)
    return ax


def uncertainty_split(
    noise: npt.ArrayLike, weights: npt.ArrayLike, structure: npt.ArrayLike, *, ax: Axes | None = None
) -> Axes:
    """Draw how the uncertainty of each row divides into noise, weights and structure.

    Rows are sorted by their total, from left to right. More than 100 are drawn in 100 groups, with the shares of each
    group's sum. A row without uncertainty has no shares.

    Parameters
    ----------
    noise, weights, structure : array_like, shape (N,)
        Parts of the variance, or of the entropy in nats; not negative, but for rounding.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        For negative parts.

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
    same(**parts)
    total = np.sum(list(parts.values()), axis=0)
    for name, part in parts.items():
        if (part < -1e-6 * max(float(np.abs(total).max()), 1e-30)).any():
            raise DataError(f"{name} was given with {part.min()}; allowed are numbers from 0")
    groups = np.array_split(np.argsort(total, kind="stable"), min(len(total), _MOST))
    sums = np.array([[part[group].clip(min=0.0).sum() for group in groups] for part in parts.values()])
    whole = sums.sum(0)
    shares = np.divide(sums, whole, out=np.zeros_like(sums), where=whole > 0.0)
    edges = np.append(0.0, np.cumsum([len(group) for group in groups])) / len(total)
    ax = start(
        ax, "Where the uncertainty comes from", "share of rows, from least to most uncertain", "share of uncertainty"
    )
    bottom = np.zeros(len(groups))
    for name, share, colour in zip(parts, shares, (BLUE, PURPLE, GREEN), strict=True):
        ax.stairs(bottom + share, edges, baseline=bottom, fill=True, color=colour, alpha=0.8, linewidth=0.0, label=name)
        bottom = bottom + share
    ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0))
    legend(ax)
    return ax


def _faint(points: int) -> float:
    """Return an opacity at which many points still show where they lie close."""
    return min(0.85, max(0.35, 12.0 / math.sqrt(points)))
