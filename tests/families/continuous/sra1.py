r"""SRA1: a solver of strong order 3/2 of the hidden state, for tests of the others.

Heun's error along one path is of order 1, since a path of weights is rough and is seen at the ends of steps alone. SRA1
sees its average over a step too, which is jointly Gaussian with both ends: given them, with :math:`x = \lambda \Delta`
and :math:`k = (1 - \tanh(x/2) / (x/2)) / x^2`,

.. math:: \bar w \sim \mathcal N\big((1 - x^2 k)\, \tfrac12 (w_i + w_{i+1}) + k x \Delta\, b,\; \sigma^2 \Delta k\big).

A step is :math:`h' = h + \tfrac13 \Delta f(t, h, w_i) + \tfrac23 \Delta f(t + \tfrac34 \Delta, h + \tfrac34 \Delta
f(t, h, w_i), \tfrac32 \bar w - \tfrac12 w_i)`. Weights are exact, so that there is no drift of a network.

References
----------
A. Rößler, "Runge-Kutta Methods for the Strong Approximation of Solutions of Stochastic Differential Equations", SIAM
Journal on Numerical Analysis 48, 2010.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from fathomless.families.continuous.drift import PathLaw
from fathomless.families.continuous.dynamics import Dynamics
from fathomless.families.continuous.grids import Grid
from fathomless.families.continuous.processes import Process
from fathomless.system.errors import DataError


def average(law: PathLaw, prior: Process, i: int, w: Tensor, after: Tensor, eps: Tensor) -> Tensor:
    """Draw the average of the weights over step i, given both of its ends (F, S, M) and standard normal noise.

    Raises
    ------
    DataError
        For a drift with directions or a network.
    """
    if law.directions is not None or law.network is not None:
        raise DataError(
            "the average over a step was asked of a drift that turns weights or has a network; drift='shift' and "
            "drift='diagonal' are allowed"
        )
    step, dt = law.steps[i], law.grid[i + 1] - law.grid[i]
    b = step.shift if step.pull is None else step.shift + step.pull
    x = -(step.plain if step.feedback is None else step.feedback).decay.log()
    near = x.abs() < 0.1
    away = torch.where(near, torch.ones_like(x), x)
    series = 1 / 12 - x**2 * (1 / 120 - x**2 * (17 / 20160 - x**2 * 31 / 362880))
    k = torch.where(near, series, (1.0 - torch.tanh(0.5 * away) / (0.5 * away)) / away**2)
    middle = (1.0 - x**2 * k) * 0.5 * (w + after) + k * x * dt * b
    return middle + (prior.diffusion**2 * dt * k).sqrt() * eps


def sra1(
    dynamics: Dynamics,
    weights: Sequence[Sequence[Tensor]],
    averages: Sequence[Sequence[Tensor]],
    h: Tensor,
    grid: Grid,
) -> Tensor:
    """Move hidden states along a grid by given weights, those of every time, and their averages over every step.

    Weights are the tensors that the slope takes, in their own units.
    """
    for i, (t, end) in enumerate(pairwise(grid)):
        dt = end - t
        first = dynamics.slope(weights[i], t, h)
        between = [1.5 * mean - 0.5 * w for mean, w in zip(averages[i], weights[i], strict=True)]
        second = dynamics.slope(between, t + 0.75 * dt, h + (0.75 * dt) * first)
        h = h + dt * (first / 3.0 + second * (2.0 / 3.0))
    return h
