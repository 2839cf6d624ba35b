"""Plots of networks of continuous depth: paths, their divergence from the prior, and accuracy by number of steps."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from fathomless.plots.canvas import BLUE, GREEN, INK, OCHRE, PURPLE, RUST, Axes, legend, limits, space_ticks, start
from fathomless.plots.learning import epoch_axis, epoch_marker
from fathomless.plots.validation import Floats, History, check_shapes, column, floats
from fathomless.system.errors import DataError

__all__ = ["accuracy", "divergence_profile", "hidden_paths", "horizon_path", "horizon_posterior", "weight_paths"]

_COLOURS = (GREEN, BLUE, RUST, PURPLE, OCHRE)
_NAMED = 5  # maximum number of paths in a plot
_PERCENTILES = (5.0, 50.0, 95.0)
_MUCH = 5.0  # ratio of the widths of prior and paths above which the prior is clipped
_TICKS = 8  # maximum number of tick labels of steps


def weight_paths(
    depth: npt.ArrayLike,
    paths: npt.ArrayLike,
    *,
    prior: npt.ArrayLike | None = None,
    names: Sequence[str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the posterior of a few weights along depth: medians, and bands from the 5th to the 95th percentile.

    Parameters
    ----------
    depth : array_like, shape (T,)
        Increasing times.
    paths : array_like, shape (S, T, W)
        Draws of at most five weights, in units of their prior standard deviations.
    prior : array_like, shape (T,), optional
        Prior standard deviation at each time, in the same units, drawn as a 90 % band. If the band is more than five
        times as wide as the paths, it is clipped.
    names : sequence of str, optional
        Names of the weights.
    ax : Axes, optional
        Axes to draw on; new ones by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If shapes do not match, or there are more than five weights.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless.families.continuous import plots
        >>> t = np.linspace(0.0, 1.0, 21)
        >>> noise = np.random.default_rng(0).normal(size=(100, 21, 2)).cumsum(1)
        >>> mean = np.stack([1.2 - t, 0.3 + t**2], 1)
        >>> ax = plots.weight_paths(t, mean + 0.05 * noise, prior=np.ones(21), names=["first", "second"])
    """
    t, drawn, names = _check_draws(depth, paths, names, "weight")
    ax = start(ax, "Weights along depth", "depth", "weight (prior deviations)")
    if prior is not None:
        wide = 1.6449 * floats("prior", prior, 0.0)
        check_shapes(depth=t, prior=wide)
        ax.fill_between(t, -wide, wide, color=INK, alpha=0.13, linewidth=0.0, label="prior, 90 %")
        low, _, high = np.percentile(drawn, _PERCENTILES, axis=0)
        if 2.0 * wide.max() > _MUCH * (high.max() - low.min()) > 0.0:
            ax.set_ylim(limits(low.min(), high.max()))
    return _draw_bands(ax, t, drawn, names)


def hidden_paths(
    depth: npt.ArrayLike, states: npt.ArrayLike, *, names: Sequence[str] | None = None, ax: Axes | None = None
) -> Axes:
    """Draw units of the hidden state of one row along depth: medians, and bands from the 5th to the 95th percentile.

    Parameters
    ----------
    depth : array_like, shape (T,)
        Increasing times.
    states : array_like, shape (S, T, H)
        Hidden states of drawn networks, at most five units.
    names : sequence of str, optional
        Names of the units.
    ax : Axes, optional
        Axes to draw on; new ones by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If shapes do not match, or there are more than five units.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless.families.continuous import plots
        >>> t, slope = np.linspace(0.0, 1.0, 21), np.random.default_rng(0).normal(size=(100, 1, 2))
        >>> ax = plots.hidden_paths(t, np.sin(3 * t)[:, None] * [1.0, -0.5] + 0.2 * slope * t[:, None])
    """
    t, drawn, names = _check_draws(depth, states, names, "unit")
    return _draw_bands(start(ax, "Hidden state along depth", "depth", "hidden state"), t, drawn, names)


def divergence_profile(depth: npt.ArrayLike, rate: npt.ArrayLike, *, ax: Axes | None = None) -> Axes:
    """Draw the divergence of the posterior over paths from the prior along depth, in nats per unit of depth.

    Parameters
    ----------
    depth : array_like, shape (n,)
        Midpoints of consecutive steps from 0.
    rate : array_like, shape (n,)
        Divergence of each step, in nats per unit of depth.
    ax : Axes, optional
        Axes to draw on; new ones by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If shapes differ, rates are negative, or depths are not the midpoints of consecutive steps.

    Examples
    --------
    .. plot::

        >>> from fathomless.families.continuous import plots
        >>> ax = plots.divergence_profile([0.1, 0.3, 0.5, 0.7, 0.9], [3.1, 5.2, 4.4, 1.9, 0.6])
    """
    t = _check_rising(depth)
    nats = floats("rate", rate, 0.0)
    check_shapes(depth=t, rate=nats)
    edges = [0.0]
    for middle in t.tolist():
        edges.append(2.0 * middle - edges[-1])
    if (np.diff(edges) <= 0.0).any():
        raise DataError(f"depth was given with {len(t)} values that are not midpoints of consecutive steps from 0")
    ax = start(ax, "Divergence along depth", "depth", "nats per unit of depth")
    ax.stairs(nats, edges, color=PURPLE, fill=True, alpha=0.25)
    ax.stairs(nats, edges, color=PURPLE, linewidth=1.5)
    ax.set_xlim(limits(0.0, edges[-1]))
    ax.set_ylim(0.0, 1.08 * float(nats.max()) or 1.0)
    space_ticks(ax)
    return ax


def accuracy(
    steps: npt.ArrayLike,
    distance: npt.ArrayLike,
    *,
    score: npt.ArrayLike | None = None,
    chosen: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the distance of predictions from those with the most steps and, optionally, their score.

    Parameters
    ----------
    steps : array_like, shape (n,)
        Increasing numbers of steps.
    distance : array_like, shape (n,)
        Mean Hellinger distance to the predictions with the most steps.
    score : array_like, shape (n,), optional
        Mean log density in nats per row, on a second axis.
    chosen : int, optional
        Number of steps of predictions, drawn as a dashed line.
    ax : Axes, optional
        Axes to draw on; new ones by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If shapes differ, steps are below 1 or not increasing, or distances are outside [0, 1].

    Examples
    --------
    .. plot::

        >>> from fathomless.families.continuous import plots
        >>> ax = plots.accuracy([5, 10, 20, 40], [0.031, 0.014, 0.005, 0.0], score=[-1.02, -0.98, -0.97, -0.97])
    """
    n = _check_rising(steps, "steps", 1.0)
    far = floats("distance", distance, 0.0, 1.0)
    check_shapes(steps=n, distance=far)
    ax = start(ax, "Predictions and the number of steps", "steps", "Hellinger distance")
    ax.set_xscale("log", base=2)
    if chosen is not None:
        ax.axvline(chosen, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), label=f"predictions: {chosen}")
    ax.plot(n, far, color=BLUE, marker="o", markersize=4, linewidth=1.4, label="distance")
    ax.set_ylim(0.0, 1.1 * float(far.max()) or 0.01)
    if score is not None:
        nats = floats("score", score)
        check_shapes(steps=n, score=nats)
        beside = start(ax.twinx(), "", "", "log density, nats per row")
        beside.grid(visible=False)
        beside.spines["right"].set_visible(True)
        beside.spines["left"].set_visible(False)
        beside.plot(n, nats, color=OCHRE, marker="s", markersize=4, linewidth=1.4)
        beside.set_ylim(limits(nats.min(), nats.max(), 0.01))
        ax.plot([], [], color=OCHRE, marker="s", markersize=4, linewidth=1.4, label="log density (right)")
    shown = n[:: -(-len(n) // _TICKS)]
    ax.set_xticks(shown, [f"{count:g}" for count in shown])
    ax.minorticks_off()
    if chosen is not None or score is not None:
        legend(ax)
    return ax


def horizon_posterior(
    posterior: Mapping[float, float],
    *,
    prior: Mapping[float, float] | None = None,
    errors: Mapping[float, float] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the posterior over the horizon as bars, and the prior as a line.

    Parameters
    ----------
    posterior : mapping of float to float
        Probability of each horizon; they sum to 1.
    prior : mapping of float to float, optional
        Probability of each horizon; it may cover a part of the support.
    errors : mapping of float to float, optional
        Standard error of each probability, drawn as a whisker.
    ax : Axes, optional
        Axes to draw on; new ones by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If horizons are not positive, or probabilities are invalid.

    Examples
    --------
    .. plot::

        >>> from fathomless.families.continuous import plots
        >>> masses = {0.5: 0.1, 0.625: 0.2, 0.75: 0.35, 0.875: 0.25, 1.0: 0.1}
        >>> ax = plots.horizon_posterior(masses, errors=dict.fromkeys(masses, 0.04))
    """
    depth, mass = _check_masses("posterior", posterior, least=1.0 - 1e-4)
    width = 0.8 * (float(np.diff(depth).min()) if len(depth) > 1 else 0.25 * float(depth[0]))
    shown = depth
    ax = start(ax, "Posterior over the horizon", "horizon (depth)", "weight")
    ax.bar(depth, mass, width, color=GREEN, label="posterior")
    if errors is not None:
        bars = np.array([errors.get(k, 0.0) for k in sorted(posterior)])
        ends = np.stack([np.minimum(bars, mass), np.minimum(bars, 1.0 - mass)])
        cap = 3.0 if len(depth) <= 16 else 1.5
        label = "± 1 standard error"
        ax.errorbar(depth, mass, ends, fmt="none", color=INK, elinewidth=1.0, capsize=cap, label=label)
    if prior is not None:
        places, law = _check_masses("prior", prior)
        ax.plot(places, law, color=OCHRE, marker="o", markersize=3, linewidth=1.2, label="prior")
        shown = np.append(depth, places)
    if not (prior is None and errors is None):
        legend(ax)
    ax.set_ylim(bottom=0.0)
    ax.set_xlim(limits(shown.min(), shown.max(), width))
    space_ticks(ax)
    return ax


def horizon_path(history: History, *, unit: float = 1.0, ax: Axes | None = None) -> Axes:
    """Draw the mean horizon by epoch.

    Parameters
    ----------
    history : sequence of mappings
        Rows with "epoch" and "mean_horizon".
    unit : float
        Depth of one step of the horizon, by which "mean_horizon" is multiplied.
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

        >>> from fathomless.families.continuous import plots
        >>> rows = [{"epoch": e, "mean_horizon": 8 + 5 * (1 - 0.9**e)} for e in range(1, 40)]
        >>> ax = plots.horizon_path(rows, unit=0.125)
    """
    epoch, mean = column(history, "epoch"), unit * column(history, "mean_horizon")
    ax = start(ax, "Horizon during training", "epoch", "mean horizon (depth)")
    ax.plot(epoch, mean, color=GREEN, marker=epoch_marker(epoch), markersize=3)
    ax.set_ylim(limits(mean.min(), mean.max(), 0.5 * unit))
    epoch_axis(ax, epoch)
    return ax


def _draw_bands(ax: Axes, t: Floats, drawn: Floats, names: Sequence[str]) -> Axes:
    """Draw percentile bands of draws (S, T, W) along t."""
    low, middle, high = np.percentile(drawn, _PERCENTILES, axis=0)  # (T, W) each
    for k, name in enumerate(names):
        colour = _COLOURS[k]
        ax.fill_between(t, low[:, k], high[:, k], color=colour, alpha=0.25, linewidth=0.0)
        ax.plot(t, middle[:, k], color=colour, linewidth=1.5, label=name)
    ax.set_xlim(limits(t.min(), t.max()))
    space_ticks(ax)
    legend(ax)
    return ax


def _check_draws(
    depth: npt.ArrayLike, draws: npt.ArrayLike, names: Sequence[str] | None, what: str
) -> tuple[Floats, Floats, Sequence[str]]:
    """Check the shapes of times and draws (S, T, W); return them with W names."""
    t = _check_rising(depth)
    drawn = floats("draws", draws, dims=3)
    names = [f"{what} {k + 1}" for k in range(drawn.shape[2])] if names is None else names
    if drawn.shape[1:] != (len(t), len(names)) or len(names) > _NAMED:
        raise DataError(
            f"draws were given with shape {drawn.shape}, {len(t)} times and {len(names)} names; allowed is (draws, "
            f"times, names) with at most {_NAMED} names"
        )
    return t, drawn, names


def _check_rising(values: npt.ArrayLike, name: str = "depth", least: float = 0.0) -> Floats:
    array = floats(name, values, least)
    if (np.diff(array) <= 0.0).any():
        raise DataError(f"{name} was given with values that are not strictly increasing; sort them and drop duplicates")
    return array


def _check_masses(name: str, mapping: Mapping[float, float], least: float = 0.0) -> tuple[Floats, Floats]:
    """Check the probabilities of horizons; return horizons and probabilities in increasing order of horizons."""
    depth = floats(f"horizons of the {name}", list(mapping), 0.0)
    mass = floats(name, list(mapping.values()), 0.0, 1.0 + 1e-4)
    if depth.min() <= 0.0 or not least <= mass.sum() <= 1.0 + 1e-4:
        raise DataError(
            f"{name} was given with horizons from {depth.min():g} and probabilities that sum to {mass.sum():.6g}; "
            f"allowed are positive horizons and a sum of {'1' if least else 'at most 1'}"
        )
    order = np.argsort(depth)
    return depth[order], mass[order]
