"""Grids of depth: times at which a path of weights is evaluated, and relations between grids.

A grid is a tuple 0 = t_0 < t_1 < … < t_n = T of Python numbers, so that using it needs no transfer from a device.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise

from fathomless.system import checks
from fathomless.system.errors import DataError
from fathomless.system.rng import fold_in

__all__ = ["EVERYWHERE", "Grid", "Span", "check_grid", "clip", "find_steps", "jitter_steps", "overlap", "uniform_grid"]

Grid = tuple[float, ...]  #: 0 = t_0 < t_1 < … < t_n = T
Span = tuple[float, float]  #: an interval of depth
EVERYWHERE: Span = (0.0, math.inf)  #: all depths
_NONE = 1e-9  # share of a step up to which an overlap is rounding


def uniform_grid(horizon: float, steps: int) -> Grid:
    """Return a grid of `steps` equal steps up to the horizon.

    Examples
    --------
    >>> uniform_grid(1.0, 4)
    (0.0, 0.25, 0.5, 0.75, 1.0)
    """
    checks.positive("horizon", horizon)
    checks.whole("steps", steps)
    return tuple(horizon * i / steps for i in range(steps + 1))


def check_grid(grid: Sequence[float], horizon: float) -> Grid:
    """Check that a grid increases from 0 to the horizon, and return it.

    Raises
    ------
    DataError
        If it does not.
    """
    times = tuple(float(t) for t in grid)
    increasing = len(times) > 1 and times[0] == 0.0 and all(a < b for a, b in pairwise(times))
    if not increasing or not math.isclose(times[-1], horizon):
        span = f" from {times[0]} to {times[-1]}" if times else ""
        raise DataError(
            f"a grid of {len(times)} times{span} was given; allowed are times that increase from 0 to the horizon "
            f"{horizon:g}, for instance uniform_grid({horizon:g}, 10)"
        )
    return (*times[:-1], horizon)


def find_steps(grid: Grid, times: Sequence[float]) -> list[int]:
    """Return the number of steps of a grid up to each of some times, the last of which is the end of the grid.

    Raises
    ------
    DataError
        If a time is not on the grid, or the last one is not its end.

    Examples
    --------
    >>> find_steps((0.0, 0.5, 0.75, 1.0), (0.5, 1.0))
    [1, 3]
    """
    grid = check_grid(grid, times[-1])
    steps = []
    for t in times:
        nearest = min(bisect_left(grid, t * (1.0 - 1e-9)), len(grid) - 1)
        if not math.isclose(grid[nearest], t):
            raise DataError(
                f"a grid of {len(grid) - 1} steps up to {grid[-1]:g} was given, which does not include the horizon "
                f"{t:g}; it must include all horizons: set steps to a multiple of their number"
            )
        steps.append(nearest)
    return steps


def jitter_steps(steps: int, seed: int, multiple: int = 1) -> int:
    """Draw a number of steps, log-uniform between half and twice a number, and round it to a multiple.

    Parameters
    ----------
    steps : int
        Number of steps n.
    seed : int
        Seed of the draw.
    multiple : int
        Number of horizons, all of which must be on the grid.
    """
    share = (fold_in(seed, "jitter") % 2**32) / 2**32
    drawn: float = steps * 2.0 ** (2.0 * share - 1.0)
    return int(max(1, round(drawn / multiple)) * multiple)


def clip(grid: Grid, span: Span) -> dict[int, Span]:
    """Return the part of each step that lies in an interval of depth, without the steps outside of it.

    Examples
    --------
    >>> clip((0.0, 0.25, 0.75, 1.0), (0.5, 2.0))
    {1: (0.5, 0.75), 2: (0.75, 1.0)}
    """
    low, high = span
    parts = {i: (max(a, low), min(b, high)) for i, (a, b) in enumerate(pairwise(grid))}
    return {i: (a, b) for i, (a, b) in parts.items() if b - a > _NONE * (grid[i + 1] - grid[i])}


def overlap(grid: Grid, width: float, pieces: int) -> list[list[float]]:
    """Return the share of each step that lies in each of some pieces of equal width, (steps, pieces).

    The last piece is unbounded.

    Examples
    --------
    >>> overlap((0.0, 0.25, 1.0), 0.5, 2)
    [[1.0, 0.0], [0.3333333333333333, 0.6666666666666666]]
    """
    ends = [*((k + 1) * width for k in range(pieces - 1)), math.inf]
    rows = []
    for a, b in pairwise(grid):
        row = []
        start = a
        for end in ends:
            row.append(max(0.0, min(b, end) - start) / (b - a))
            start = max(start, min(b, end))
        rows.append(row)
    return rows
