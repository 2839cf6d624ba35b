"""Grids of depth: where a path of weights is looked at, and the same Brownian path on every grid.

A grid is a tuple 0 = t_0 < t_1 < … < t_n = T of plain numbers, so that nothing about it is read from a device.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from fathomless.system import checks
from fathomless.system.errors import DataError
from fathomless.system.rng import as_generator, fold_in

__all__ = ["BrownianTree", "Grid", "check_grid", "jittered", "overlap", "reached", "refined", "uniform"]

Grid = tuple[float, ...]  #: 0 = t_0 < t_1 < … < t_n = T


def uniform(horizon: float, steps: int) -> Grid:
    """Return `steps` equal steps up to the horizon.

    Examples
    --------
    >>> uniform(1.0, 4)
    (0.0, 0.25, 0.5, 0.75, 1.0)
    """
    checks.positive("horizon", horizon)
    checks.whole("steps", steps)
    return tuple(horizon * i / steps for i in range(steps + 1))


def refined(grid: Grid, times: int) -> Grid:
    """Return a grid with every step in so many equal parts."""
    inner = [a + (b - a) * k / times for a, b in pairwise(grid) for k in range(times)]
    return (*inner, grid[-1])


def check_grid(grid: Sequence[float], horizon: float) -> Grid:
    """Refuse a grid that does not go up from 0 to the horizon.

    Raises
    ------
    DataError
        With what was given and what is allowed.
    """
    given = tuple(float(t) for t in grid)
    rises = len(given) > 1 and given[0] == 0.0 and all(a < b for a, b in pairwise(given))
    if not rises or not math.isclose(given[-1], horizon):
        raise DataError(
            f"a grid of {len(given)} times from {given[0] if given else 'nothing'} to "
            f"{given[-1] if given else 'nothing'} was given; allowed are times that increase from 0 to the horizon "
            f"{horizon:g}: give some, for instance uniform({horizon:g}, 10)"
        )
    return (*given[:-1], horizon)


def reached(grid: Grid, times: Sequence[float]) -> list[int]:
    """Return after how many steps of a grid, which ends at the last of some times, each of them is reached.

    Raises
    ------
    DataError
        If one of them is not on the grid, or the grid does not go up to the last.

    Examples
    --------
    >>> reached((0.0, 0.5, 0.75, 1.0), (0.5, 1.0))
    [1, 3]
    """
    given, found = check_grid(grid, times[-1]), []
    for t in times:
        near = min(bisect_left(given, t * (1.0 - 1e-9)), len(given) - 1)
        if not math.isclose(given[near], t):
            raise DataError(
                f"a grid of {len(given) - 1} steps up to {given[-1]:g} was given, on which the horizon {t:g} is not; "
                "allowed are grids with all of them: give a multiple of their number as steps"
            )
        found.append(near)
    return found


def jittered(steps: int, seed: int, multiple: int = 1) -> int:
    """Return a number of steps between half and twice as many, log-uniform, as a multiple of a number.

    Parameters
    ----------
    steps : int
        n.
    seed : int
        Of this draw.
    multiple : int
        Horizons per grid: every one of them must be on it.
    """
    share = (fold_in(seed, "jitter") % 2**32) / 2**32
    drawn: float = steps * 2.0 ** (2.0 * share - 1.0)
    return int(max(1, round(drawn / multiple)) * multiple)


def overlap(grid: Grid, width: float, pieces: int) -> list[list[float]]:
    """Return the share of each step that lies in each of some pieces of a given width, (steps, pieces).

    The last piece has no end.

    Examples
    --------
    >>> overlap((0.0, 0.25, 1.0), 0.5, 2)
    [[1.0, 0.0], [0.3333333333333333, 0.6666666666666666]]
    """
    ends = [*((k + 1) * width for k in range(pieces - 1)), math.inf]
    rows = []
    for a, b in pairwise(grid):
        row, start = [], a
        for end in ends:
            row.append(max(0.0, min(b, end) - start) / (b - a))
            start = max(start, min(b, end))
        rows.append(row)
    return rows


@dataclass(frozen=True)
class BrownianTree:
    """One Brownian path on [0, `horizon`], at any dyadic time, the same in whatever order it is asked for.

    B at the middle of an interval of length L, given its ends, is their mean plus √(L / 4) times a normal number whose
    seed is that of the interval. Asking costs `depth` numbers of the shape and keeps none.

    Parameters
    ----------
    seed : int
        Of the path.
    shape : tuple of int
        Of B at one time.
    horizon : float
        T.
    depth : int
        Times are multiples of T / 2^depth.
    dtype : torch.dtype
        Of the numbers.
    """

    seed: int
    shape: tuple[int, ...]
    horizon: float = 1.0
    depth: int = 16
    dtype: torch.dtype = field(default=torch.float64)

    def at(self, t: float) -> Tensor:
        """Return B(t).

        Raises
        ------
        DataError
            For times outside [0, T], or between those of the tree.
        """
        ticks = 2**self.depth
        place = t / self.horizon * ticks
        if not 0.0 <= t <= self.horizon or abs(place - round(place)) > 1e-6:
            raise DataError(
                f"the time {t:g} was asked of a tree with {ticks:,} steps up to {self.horizon:g}; multiples of "
                f"{self.horizon / ticks:g} are allowed"
            )
        left, right, target = 0, ticks, round(place)
        low, high = (
            torch.zeros(self.shape, dtype=self.dtype, device="cpu"),
            math.sqrt(self.horizon) * self._normal("end"),
        )
        while left < target < right:
            middle = (left + right) // 2
            spread = math.sqrt(0.25 * self.horizon * (right - left) / ticks)
            between = 0.5 * (low + high) + spread * self._normal(left, right)
            if target < middle:
                right, high = middle, between
            else:
                left, low = middle, between
        return low if target == left else high

    def increments(self, grid: Grid) -> Tensor:
        """Return B at the end less B at the start of every step, (steps, ...)."""
        return torch.stack([self.at(t) for t in grid]).diff(dim=0)

    def _normal(self, *place: int | str) -> Tensor:
        noise = as_generator(fold_in(self.seed, "brownian", *place))
        return torch.randn(self.shape, generator=noise, dtype=self.dtype, device=noise.device)
