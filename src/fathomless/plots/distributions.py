"""Plot of the predictive distributions of single rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt

from fathomless.plots.canvas import (
    BLUE,
    INK,
    OCHRE,
    RUST,
    Axes,
    legend,
    limits,
    shorten,
    space_ticks,
    start,
    whole_numbers,
)
from fathomless.plots.validation import Floats, floats
from fathomless.system.errors import DataError

__all__ = ["predictive"]

_MOST_ROWS, _FIRST_ROWS = 12, 5
_MOST_CLASSES = 12
_MOST_NUMBERS = 6  # rows and classes of which probabilities are written above the bars
_MOST_BARS = 120  # points of a lattice; more are drawn as a line
_LEVELS = (np.arange(400) + 0.5) / 400  # of quantiles, at which densities are drawn and points are found
_ENDS = (0.005, 0.995)  # levels of the quantiles at the ends of the axis
_HEIGHT = 0.75  # of the highest distribution; rows have the distance 1
_ATOM = 1e-3  # least probability of a value that is drawn


@runtime_checkable
class ClassLaw(Protocol):
    """Distribution over classes of each row of a table, with the names of ``ClassPredictive``."""

    labels: Any
    probs: Any

    def __getitem__(self, rows: Any) -> Any:
        """Return the distributions of some rows."""


@runtime_checkable
class NumberLaw(Protocol):
    """Distribution of a number of each row of a table, with the names of ``NumberPredictive``."""

    discrete: bool
    shape: tuple[int, ...]

    def __getitem__(self, rows: Any) -> Any:
        """Return the distributions of some rows."""

    def ppf(self, q: Any) -> Any:
        """Return quantiles."""

    def cdf(self, y: Any) -> Any:
        """Return probabilities of values up to y."""

    def cdf_before(self, y: Any) -> Any:
        """Return probabilities of values below y."""


def predictive(
    dist: Any,
    rows: Sequence[int] | None = None,
    *,
    y: npt.ArrayLike | None = None,
    names: Sequence[str] | None = None,
    level: float = 0.9,
    column: int = 0,
    target: str = "y",
    ax: Axes | None = None,
) -> Axes:
    """Draw the predictive distributions of up to twelve rows, one below the other, on one scale.

    Numbers have densities with their central intervals. Counts and other targets on a lattice have bars, which are
    dark inside the interval. Values with a positive probability beside a density, such as zero, are vertical lines,
    whose full height is the probability 1. Classes have bars of their probabilities.

    Parameters
    ----------
    dist : predictive distribution of N rows
        Result of ``predict_dist``.
    rows : sequence of int, optional
        Rows to draw, from top to bottom; by default the first five.
    y : array_like, shape (N,) or (N, T), optional
        Observed values, or labels of classes, of all N rows.
    names : sequence of str, optional
        Names of the drawn rows; by default their numbers.
    level : float
        Probability of the intervals, between 0 and 1.
    column : int
        Number of the target, if there are several.
    target : str
        Name of the target, for the axis.
    ax : Axes, optional
        Axes to draw on; a new figure by default.

    Returns
    -------
    Axes

    Raises
    ------
    DataError
        If the object is no distribution of numbers or of classes, there are more than twelve rows, or rows, names, y
        or the level do not suit the distribution.

    Examples
    --------
    .. plot::

        >>> import numpy as np
        >>> from fathomless import UnboundedDepthRegressor, plots
        >>> x, noise = np.linspace(0, 3, 90), np.random.default_rng(0).normal(size=90)
        >>> y = np.sin(2 * x) + 0.2 * (1 + x) * noise
        >>> reg = UnboundedDepthRegressor(noise="input", cv=3, epochs=60, random_state=0).fit(x[:, None], y)
        >>> ax = plots.predictive(reg.predict_dist(x[:, None]), [0, 30, 60, 89], y=y)
    """
    if not isinstance(dist, ClassLaw | NumberLaw):
        raise DataError(
            f"dist is a {type(dist).__name__}; allowed are distributions of numbers or classes, from predict_dist"
        )
    count = len(cast(Any, dist))
    chosen = _check_rows(rows, count)
    if names is not None and len(names) != len(chosen):
        raise DataError(f"{len(names)} names were given for {len(chosen)} rows; give one for each")
    if not 0.0 < level < 1.0:
        raise DataError(f"level={level} was given; a number between 0 and 1 is allowed")
    observed = None if y is None else np.asarray(y)
    if observed is not None and (observed.ndim not in (1, 2) or len(observed) != count):
        raise DataError(f"y has shape {observed.shape} for {count} rows; give one value for each of these rows")
    labels = [shorten(str(name), 24) for name in names] if names is not None else [f"row {row}" for row in chosen]
    observed = None if observed is None else observed[chosen]
    if isinstance(dist, ClassLaw):
        ax = _draw_classes(dist[chosen], dist.labels, observed, target, ax)
    else:
        ax = _draw_numbers(dist[chosen], dist.shape, observed, column, level, target, ax)
    ax.set_yticks([-float(row) for row in range(len(chosen))], labels, parse_math=False)
    ax.set_ylim(-len(chosen) + 0.6, 1.0)
    ax.tick_params(axis="y", length=0.0)
    legend(ax)
    return ax


def _check_rows(rows: Sequence[int] | None, count: int) -> list[int]:
    """Return the numbers of the rows to draw."""
    if rows is None:
        return list(range(min(count, _FIRST_ROWS)))
    given = np.asarray(rows)
    if given.ndim != 1 or given.dtype.kind not in "iu" or not 1 <= len(given) <= _MOST_ROWS:
        raise DataError(f"rows={rows!r:.80} was given; allowed are 1 to {_MOST_ROWS} numbers of rows")
    if given.min() < 0 or given.max() >= count:
        raise DataError(f"rows has {given.min()} to {given.max()}; the distribution has the rows 0 to {count - 1}")
    return [int(row) for row in given]


def _start(rows: int, x: str, ax: Axes | None) -> Axes:
    """Return axes for rows one below the other."""
    ax = start(ax, "Predictive distributions", x, "rows", height=max(2.4, 1.2 + 0.45 * rows))
    ax.grid(visible=False)
    for row in range(rows):
        ax.axhline(-row, color=INK, linewidth=0.6, alpha=0.6)
    return ax


def _draw_classes(law: Any, labels: Any, observed: Any, target: str, ax: Axes | None) -> Axes:
    """Draw the probabilities of classes."""
    probs = np.asarray(law.probs, dtype=np.float64)  # (R, K)
    known = {label: k for k, label in enumerate(np.asarray(labels).tolist())}
    values = [] if observed is None else observed.ravel().tolist()
    for value in values:
        if value not in known:
            raise DataError(f"y has the value {value!r}; allowed are the classes {', '.join(map(str, known))}")
    codes = [known[value] for value in values]
    shown = np.argsort(-probs.max(0), kind="stable")[:_MOST_CLASSES]
    shown = np.unique([*shown.tolist(), *codes])
    rest = len(known) - len(shown)
    ax = _start(len(probs), f"class of {target}" + (f" ({rest} others are not shown)" if rest else ""), ax)
    for row, p in enumerate(probs):
        hit = np.array([bool(codes) and codes[row] == k for k in shown])
        for chosen, colour, label in ((~hit, BLUE, "probability"), (hit, RUST, "observed class")):
            if chosen.any():
                place = np.flatnonzero(chosen)
                _bars(ax, place, p[shown][chosen], row, 0.8, colour, 0.8, label)
        if len(shown) <= _MOST_NUMBERS and len(probs) <= _MOST_NUMBERS:
            for k, value in enumerate(p[shown]):
                style: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 7.0, "color": INK}
                ax.text(k, _HEIGHT * value - row, f"{value:.2f}", **style)
    names = [shorten(str(labels[k]), 12) for k in shown]
    ax.set_xticks(range(len(shown)), names, parse_math=False)
    ax.set_xlim(-0.6, len(shown) - 0.4)
    if sum(map(len, names)) + 2 * len(names) > 60:
        ax.tick_params(axis="x", labelrotation=90)
    return ax


def _bars(ax: Axes, x: Any, p: Any, row: int, width: float, colour: str, alpha: float, label: str) -> None:
    """Draw bars of probabilities on the baseline of a row; a label is in the legend once."""
    label = "_" if label in ax.get_legend_handles_labels()[1] else label
    ax.bar(x, _HEIGHT * p, width, bottom=-row, color=colour, alpha=alpha, linewidth=0.0, label=label)


def _draw_numbers(
    law: Any, shape: tuple[int, ...], observed: Any, column: int, level: float, target: str, ax: Axes | None
) -> Axes:
    """Draw densities and probabilities of numbers."""
    several = shape[1] if len(shape) > 1 else 1
    if not 0 <= column < several:
        raise DataError(f"column={column} was given; the distribution has the targets 0 to {several - 1}")
    if observed is not None and observed.ndim > 1:
        if observed.shape[1] != several:
            raise DataError(f"y has {observed.shape[1]} columns; the distribution has {several} targets")
        observed = observed[:, column]
    values = None if observed is None else floats("y", observed)
    one = _OneTarget(law, len(shape) > 1, column)
    levels = np.array([*_ENDS, 0.5 - level / 2, 0.5 + level / 2, *_LEVELS])
    found = one.ask(law.ppf, levels[:, None])  # (4 + L, R)
    ends, interval, quantiles = found[:2], found[2:4], found[4:]
    everything = ends if values is None else np.concatenate([ends, values[None]])
    low, high = limits(float(everything.min()), float(everything.max()))
    ax = _start(quantiles.shape[1], target, ax)
    label = f"{100 * level:.3g} % interval"
    if law.discrete:
        _draw_points(ax, one, quantiles, interval, label)
    else:
        _draw_densities(ax, one, quantiles, interval, (low, high), label)
    if values is not None:
        ax.plot(values, -np.arange(len(values)), "o", color=RUST, markersize=4.0, label="observed", zorder=3)
    ax.set_xlim(low, high)
    space_ticks(ax)
    if law.discrete and (quantiles == np.rint(quantiles)).all():
        whole_numbers(ax.xaxis)
    return ax


@dataclass(frozen=True)
class _OneTarget:
    """One target of a distribution of R rows."""

    law: Any
    several: bool
    column: int

    def ask(self, method: Callable[[Any], Any], values: Floats) -> Floats:
        """Return the results of a method at values that broadcast to (G, R)."""
        array = np.asarray(method(values[..., None] if self.several else values), dtype=np.float64)
        return array[..., self.column] if self.several else array

    def mass(self, values: Floats) -> Floats:
        """Return the probabilities of single values (G,) in all rows, (G, R)."""
        at = values[:, None]
        return self.ask(self.law.cdf, at) - self.ask(self.law.cdf_before, at)


def _draw_points(ax: Axes, one: _OneTarget, quantiles: Floats, interval: Floats, label: str) -> None:
    """Draw the probabilities of the points of a lattice."""
    found = np.unique(quantiles)
    step = float(np.diff(found).min()) if len(found) > 1 else 1.0
    count = round((found[-1] - found[0]) / step) + 1
    points = found if count > 10 * _MOST_BARS else found[0] + step * np.arange(count)
    mass = one.mass(points)
    scale = _HEIGHT / float(mass.max())
    for row in range(mass.shape[1]):
        p = scale * mass[:, row]
        inside = (points >= interval[0, row] - step / 4) & (points <= interval[1, row] + step / 4)
        if count > _MOST_BARS:
            _outline(ax, points, p, row, inside, "probability", label)
            continue
        for chosen, alpha, name in ((inside, 0.85, label), (~inside, 0.35, "outside")):
            if (chosen & (p > 0.0)).any():
                _bars(ax, points[chosen], p[chosen] / _HEIGHT, row, 0.8 * step, BLUE, alpha, name)


def _draw_densities(
    ax: Axes, one: _OneTarget, quantiles: Floats, interval: Floats, ends: tuple[float, float], label: str
) -> None:
    """Draw densities, and values that have a positive probability beside them."""
    rows = quantiles.shape[1]
    grid = np.repeat(np.linspace(*ends, len(_LEVELS))[:, None], rows, axis=1)
    x = np.sort(np.concatenate([grid, quantiles, interval]), axis=0)  # (G, R)
    density = one.ask(one.law.pdf, x)
    density = np.where(np.isfinite(density), density, 0.0)
    scale = _HEIGHT / float(density.max())
    for row in range(rows):
        inside = (x[:, row] >= interval[0, row]) & (x[:, row] <= interval[1, row])
        _outline(ax, x[:, row], scale * density[:, row], row, inside, "density", label)
    values, times = np.unique(quantiles, return_counts=True)
    atoms = values[times > 1]
    atoms = atoms[one.mass(atoms).max(1) > _ATOM] if len(atoms) else atoms
    if len(atoms):
        mass = one.mass(atoms)  # (A, R)
        place = -np.tile(np.arange(rows), len(atoms))
        name = "probability of a value"
        ax.vlines(np.repeat(atoms, rows), place, place + _HEIGHT * mass.ravel(), color=OCHRE, linewidth=2.5, label=name)


def _outline(ax: Axes, x: Floats, height: Floats, row: int, inside: Any, name: str, label: str) -> None:
    """Draw a curve on the baseline of a row, and fill the part inside its interval."""
    known = ax.get_legend_handles_labels()[1]
    ax.plot(x, height - row, color=BLUE, linewidth=1.2, label="_" if name in known else name)
    style: dict[str, Any] = {"color": BLUE, "linewidth": 0.0}
    shown = "_" if label in known else label
    ax.fill_between(x, -row, height - row, alpha=0.12, **style)
    ax.fill_between(x, -row, height - row, where=inside, alpha=0.4, label=shown, **style)
