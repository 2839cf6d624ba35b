"""Steps that are short where the network changes fast, chosen once on rows and kept for all predictions.

Fixed steps are the default, and training has no others: chosen while predicting, steps would let the prediction of a
row depend on the other rows, and they seldom pay. Chosen once, they are a grid like any other.
"""

import math
import warnings

import torch
from torch import Tensor

from fathomless.families.continuous.grids import Grid
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.solve import parted
from fathomless.system import checks
from fathomless.system.errors import DataWarning, DivergenceError
from fathomless.system.rng import as_generator

__all__ = ["fit_grid"]

_FINEST, _LEAST = 256, 8  # steps on T
_COARSE = 0.1  # tolerance from which whole bursts of the slope are stepped over


@torch.no_grad()
def fit_grid(model: ContinuousDepth, x: Tensor, tolerance: float = 0.01, *, n: int = 4, seed: int = 0) -> Grid:
    """Return times of predictions: as few steps as keep the error of each, relative to the state, at a tolerance.

    Each step is at first twice as long as the one before, and halved until it is good enough. Its error is what a
    step of Heun and one of Euler differ by on the same path, the root of the mean square over paths, rows and units,
    in units of 1 + that of the state. A step is 1/256 to 1/8 of the horizon long, and passes no depth at which the
    state is read.

    Parameters
    ----------
    model : ContinuousDepth
        One network, or several side by side.
    x : Tensor, shape (F·B, ...)
        Rows, a block for each network.
    tolerance : float
        Of a step; below 0.1.
    n : int
        Paths of each network.
    seed : int
        Of the paths.

    Raises
    ------
    DataError
        For a tolerance that is not positive.
    DivergenceError
        If a hidden state is not finite; it names the step, and what helps.

    Warns
    -----
    DataWarning
        For a tolerance of 0.1 or more: steps may pass over all of a short burst unnoticed.

    References
    ----------
    Hairer, Nørsett and Wanner, "Solving Ordinary Differential Equations I", section II.4.
    """
    checks.positive("tolerance", tolerance)
    if tolerance >= _COARSE:
        warnings.warn(
            f"tolerance={tolerance:g} was given; from {_COARSE:g} on steps may pass over fast changes unnoticed: give "
            "0.01, and compare with `accuracy`",
            DataWarning,
            stacklevel=2,
        )
    multiple = model.horizons if model.random_horizon else 1
    grid, longest = model.grid(multiple * math.ceil(_FINEST / multiple)), _FINEST // _LEAST
    start, path = model.path(n, grid, as_generator(seed))
    first = model.scale.numel() - sum(weight.size for weight in model.dynamics.still)
    fixed = parted(start[..., first:] * model.scale[first:], model.dynamics.still)
    rows = x.reshape(model.members, -1, *x.shape[1:])
    h = model.dynamics.enter(fixed, rows)
    h = h.expand(model.members, n, *h.shape[2:])

    def slope(i: int, h: Tensor) -> Tensor:
        return model.dynamics.slope(parted(path[i] * model.scale[:first], model.dynamics.moving), grid[i], h)

    def heun(i: int, step: int, h: Tensor, before: Tensor) -> tuple[Tensor, float]:
        dt = grid[i + step] - grid[i]
        change = 0.5 * dt * (slope(i + step, h + dt * before) - before)
        after = h + dt * before + change
        return after, (_size(change) / (1.0 + _size(after))).item() / tolerance

    times, ends, i, step = [0.0], model.marks(grid), 0, longest
    while i < ends[-1]:
        step, before = min(step, next(end for end in ends if end > i) - i), slope(i, h)
        after, error = heun(i, step, h, before)
        while not error <= 1.0 and step > 1:
            step //= 2
            after, error = heun(i, step, h, before)
        if not math.isfinite(error):
            raise DivergenceError(
                f"the hidden state is not finite after step {len(times)}, which ends at depth {grid[i + step]:g}; "
                "train again with more steps, a smaller weight_prior or a smaller rate"
            )
        i, h, step = i + step, after, min(2 * step, longest)
        times.append(grid[i])
    return tuple(times)


def _size(values: Tensor) -> Tensor:
    return values.double().square().mean().sqrt()
