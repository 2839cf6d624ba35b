"""Shared functions for the figures of experiments."""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from experiments.results import Result, Value
from fathomless.plots.canvas import BLUE, GREEN, INK, OCHRE, PURPLE, RUST, Axes, figure, legend, start

__all__ = ["colours", "draw_dots", "draw_step_curves", "panels", "set_log_axis"]

_COLOURS = (GREEN, BLUE, OCHRE, PURPLE, RUST)
_MARKERS = ("o", "s", "^", "v", "D", "P", "X", "<", ">")


def panels(count: int, *, across: int = 2, width: float = 4.4, height: float = 3.0) -> tuple[Any, list[Axes]]:
    """Return a figure with `count` axes, row by row."""
    across = min(across, count)
    down = -(-count // across)
    page, first = figure(width * across, height * down)
    first.remove()
    return page, [page.add_subplot(down, across, i + 1, facecolor="none") for i in range(count)]


def colours(names: Sequence[str]) -> dict[str, str]:
    """Assign a colour to each name, cycling through the palette."""
    return dict(zip(names, cycle(_COLOURS), strict=False))


def draw_dots(ax: Axes, rows: Sequence[str], series: Mapping[str, Sequence[Value]]) -> None:
    """Draw values with error bars of two standard errors, one position on the x axis for each row.

    The first series is filled and has the first colour; the others are open and grey, each with its own marker.
    """
    for i, (label, values) in enumerate(series.items()):
        offset = 0.7 * ((i + 0.5) / len(series) - 0.5)
        place = [x + offset for x in range(len(rows))]
        ax.errorbar(
            place,
            [v.value for v in values],
            yerr=[2.0 * (v.error or 0.0) for v in values],
            fmt=_MARKERS[i % len(_MARKERS)],
            color=GREEN if i == 0 else INK,
            mfc=GREEN if i == 0 else "none",
            markersize=4.5,
            linewidth=1.0,
            label=label,
        )
    ax.set_xticks(range(len(rows)), rows)
    ax.set_xlim(-0.5, len(rows) - 0.5)


def draw_step_curves(result: Result, names: Sequence[str], multiples: Mapping[str, float]) -> Any:
    """Draw accuracy, log-likelihood and calibration error of networks against the number of steps of a prediction.

    Parameters
    ----------
    result : Result
        With values NAME/MULTIPLE/SCORE, and the number of steps NAME/steps.
    names : sequence of str
        Names of the networks.
    multiples : mapping of str to float
        Factors on the number of steps, by name.
    """
    page, axes = panels(3, across=3, width=3.4)
    shown = {"accuracy": "share", "log_likelihood": "nats per row", "calibration_error": "share"}
    for ax, (score, unit) in zip(axes, shown.items(), strict=True):
        start(ax, score.replace("_", " ").capitalize(), "steps", unit)
        for name, colour in colours(names).items():
            at = [max(1, round(times * result.values[f"{name}/steps"].value)) for times in multiples.values()]
            row = [result.values[f"{name}/{multiple}/{score}"] for multiple in multiples]
            error = [2.0 * (v.error or 0.0) for v in row]
            ax.errorbar(at, [v.value for v in row], yerr=error, fmt="o-", color=colour, label=name, markersize=3.5)
        set_log_axis(ax, at)
    legend(axes[0])
    return page


def set_log_axis(ax: Any, at: Sequence[float]) -> None:
    """Set a logarithmic horizontal axis with ticks at these numbers only."""
    ax.set_xscale("log")
    ax.set_xticks(at, [f"{n:g}" for n in at])
    ax.minorticks_off()
