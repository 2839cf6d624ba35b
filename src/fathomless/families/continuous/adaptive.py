"""Adaptive grids: steps that are short where the network changes fast, chosen once on rows for all predictions.

Equal steps are the default, and training always uses them. If steps were adapted during prediction, the prediction of a
row would depend on other rows, and adapted steps are seldom much better. A grid chosen once is used like any other.
"""

import math
import warnings

import torch
from torch import Tensor

from fathomless.families.continuous.grids import Grid
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.solve import split_weights
from fathomless.system import checks
from fathomless.system.errors import DataWarning, DivergenceError
from fathomless.system.rng import as_generator

__all__ = ["fit_grid"]

_FINEST, _LEAST = 256, 8  # maximum and minimum number of steps on T
_COARSE = 0.1  # tolerance from which steps may skip short bursts of the slope


@torch.no_grad()
def fit_grid(model: ContinuousDepth, x: Tensor, tolerance: float = 0.01, *, n: int = 4, seed: int = 0) -> Grid:
    """Return the times of a grid with few steps, each with a relative error of at most a tolerance.

    Each step is at first twice as long as the previous one and is halved until its error is at most the tolerance. The
    error is the difference between a step of Heun's and of Euler's method on the same path. It is the root mean square
    over paths, rows and units, divided by 1 + the root mean square of the state. A step is 1/256 to 1/8 of the horizon
    long and ends at every depth at which the state is read.

    Parameters
    ----------
    model : ContinuousDepth
        One network, or several stacked ones.
    x : Tensor, shape (F·B, ...)
        Rows, a block for each network.
    tolerance : float
        Tolerance of the relative error of a step, below 0.1.
    n : int
        Number of paths of each network.
    seed : int
        Seed of the paths.

    Raises
    ------
    DataError
        If the tolerance is not positive.
    DivergenceError
        If a hidden state is not finite; the message names the step and a remedy.

    Warns
    -----
    DataWarning
        If the tolerance is 0.1 or more: steps may skip short bursts of the slope.

    References
    ----------
    Hairer, Nørsett and Wanner, "Solving Ordinary Differential Equations I", section II.4.
    """
    checks.positive("tolerance", tolerance)
    if tolerance >= _COARSE:
        warnings.warn(
            f"tolerance={tolerance:g} was given; from {_COARSE:g} on, steps may skip fast changes: give 0.01, and "
            "compare with `accuracy`",
            DataWarning,
            stacklevel=2,
        )
    multiple = model.horizons if model.random_horizon else 1
    grid = model.grid(multiple * math.ceil(_FINEST / multiple))
    longest = _FINEST // _LEAST
    start, path = model.path(n, grid, as_generator(seed))
    first = model.scale.numel() - sum(weight.size for weight in model.dynamics.still)
    fixed = split_weights(start[..., first:] * model.scale[first:], model.dynamics.still)
    rows = x.reshape(model.members, -1, *x.shape[1:])
    h = model.dynamics.enter(fixed, rows)
    h = h.expand(model.members, n, *h.shape[2:])

    def slope(i: int, h: Tensor) -> Tensor:
        return model.dynamics.slope(split_weights(path[i] * model.scale[:first], model.dynamics.moving), grid[i], h)

    def heun(i: int, step: int, h: Tensor, before: Tensor) -> tuple[Tensor, float]:
        dt = grid[i + step] - grid[i]
        change = 0.5 * dt * (slope(i + step, h + dt * before) - before)
        after = h + dt * before + change
        return after, (_size(change) / (1.0 + _size(after))).item() / tolerance

    times = [0.0]
    ends = model.marks(grid)
    i = 0  # index in the finest grid
    step = longest  # length of the next step on the finest grid
    while i < ends[-1]:
        step = min(step, next(end for end in ends if end > i) - i)
        before = slope(i, h)
        after, error = heun(i, step, h, before)
        while not error <= 1.0 and step > 1:  # the error may be NaN
            step //= 2
            after, error = heun(i, step, h, before)
        if not math.isfinite(error):
            raise DivergenceError(
                f"the hidden state is not finite after step {len(times)}, which ends at depth {grid[i + step]:g}; "
                "train again with more steps, a smaller weight_prior or a smaller rate"
            )
        i += step
        h = after
        step = min(2 * step, longest)
        times.append(grid[i])
    return tuple(times)


def _size(values: Tensor) -> Tensor:
    return values.double().square().mean().sqrt()
