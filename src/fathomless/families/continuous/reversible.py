r"""Reversible Heun method: gradients of paths in memory independent of the number of steps.

Weights and hidden state are one state z with an auxiliary one ẑ. With slopes v at (t, ẑ) and the same noise for both,

.. math:: \hat z' = 2z - \hat z + v\Delta + \sigma\Delta B, \qquad z' = z + \tfrac12 (v + v')\Delta + \sigma\Delta B,

and the same two equations recover ẑ and z from z' and ẑ'. No states are stored: the backward pass reconstructs them
and draws the noise again from its seed. Up to rounding, the gradient is that of the discrete solution, not of a limit.

There are two costs. Weights no longer have Gaussian transitions, so that their divergence is a quadrature: the sum over
steps of :math:`\tfrac12 |u|^2 \Delta`, averaged over both ends of a step, with u = c / σ and the difference c between
the drifts of posterior and prior. The objective with it is **not a bound** for a finite number of steps. Also, rounding
errors grow in the backward pass where weights contract.

References
----------
P. Kidger, J. Foster, X. Li and T. Lyons, "Efficient and Accurate Gradients for Neural SDEs", NeurIPS 2021.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fathomless.families.continuous.drift import PathLaw, PosteriorDrift
from fathomless.families.continuous.dynamics import Dynamics
from fathomless.families.continuous.grids import Grid
from fathomless.families.continuous.processes import Process
from fathomless.families.continuous.solve import Noise, Solution, split_weights
from fathomless.system.draws import normal
from fathomless.system.errors import DataError
from fathomless.system.rng import as_seed, fold_in

__all__ = ["Slopes", "make_cell_law", "make_repeatable_noise", "solve"]

_MOST = {torch.float32: 0.025, torch.float64: 0.05}  # maximum of rate times step: errors of 1e-5 and 1e-9 in 200 steps


def make_repeatable_noise(generator: torch.Generator | None, like: Tensor) -> Noise:
    """Return a source of noise that gives the same numbers for a step at every call and stores nothing."""
    seed = as_seed(generator or torch.default_generator)
    step_generator = torch.Generator((generator or like).device)

    def draw(i: int) -> Tensor:
        step_generator.manual_seed(fold_in(seed, "step", i))
        return normal(like, step_generator)

    return draw


def make_cell_law(drift: PosteriorDrift, prior: Process, grid: Grid, reference: Tensor) -> tuple[PathLaw, list[float]]:
    """Return the law of paths on cells around the times of a grid, and the lengths of the cells.

    Cells end at the midpoints between times, and shift and feedback are averages over a cell, so that the trapezoidal
    rule gives their integral exactly.
    """
    edges = (grid[0], *(0.5 * (a + b) for a, b in pairwise(grid)), grid[-1])
    law = drift.law(prior, edges, reference, kind="euler")
    return replace(law, grid=grid), [b - a for a, b in pairwise(edges)]


@dataclass(frozen=True)
class Slopes:
    """Slopes of weights and hidden state at the times of a grid.

    Attributes
    ----------
    dynamics : Dynamics
        Dynamics of the hidden state.
    scale : Tensor, shape (M,)
        Prior standard deviations of the moving weights.
    law, cells : PathLaw and list of float
        As :func:`make_cell_law` returns them.
    prior : Process
        Prior process, with θ and σ.
    """

    dynamics: Dynamics
    scale: Tensor
    law: PathLaw
    cells: list[float]
    prior: Process

    def __call__(self, i: int, w: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the slope of the weights w (F, S, M), that of h, and ½|u|² (F, S), at time i."""
        with torch.autocast(w.device.type, enabled=False):  # reconstruction of states needs full precision
            change = self.law.change(i, w)
            flow = self.dynamics.slope(split_weights(w * self.scale, self.dynamics.moving), self.law.grid[i], h)
            drift = torch.add(change / self.cells[i], w, alpha=-self.prior.rate)
            return drift, flow, (self.law.closed(i, change) / self.cells[i]).expand(w.shape[:2])

    def noise(self, i: int, eps: Tensor) -> Tensor:
        """Scale the noise of step i."""
        return eps * (self.prior.diffusion * math.sqrt(self.law.grid[i + 1] - self.law.grid[i]))

    def tensors(self, i: int) -> list[Tensor]:
        """Return the tensors of the law at time i that require gradients, without those of its network."""
        step = self.law.steps[i]
        turn = None if step.feedback is None else step.feedback.turn
        tensors = (step.shift, step.pull, turn, self.law.directions)
        return [tensor for tensor in tensors if tensor is not None and tensor.requires_grad]


def solve(
    dynamics: Dynamics,
    scale: Tensor,
    drift: PosteriorDrift,
    prior: Process,
    reference: Tensor,
    grid: Grid,
    start: Tensor,
    h: Tensor,
    noise: Noise | torch.Generator | None,
    *,
    marks: Sequence[int],
) -> Solution:
    """Move weights and hidden states along a grid by the reversible scheme.

    Parameters
    ----------
    dynamics : Dynamics
        Slope of the hidden state.
    scale : Tensor, shape (M,)
        Prior standard deviations of the moving weights.
    drift : PosteriorDrift
        Difference between the drifts of posterior and prior.
    prior : Process
        Prior process in units of its scale.
    reference : Tensor, shape (F, M)
        Point to which feedback pulls.
    grid : Grid
        Times of n steps.
    start : Tensor, shape (F, S, M)
        Weights at depth 0, in units of their prior standard deviation.
    h : Tensor, shape (F, S or 1, B, ...)
        Hidden states at depth 0.
    noise : torch.Generator or callable
        Noise of each step. A callable is called twice for each step and must return the same numbers.
    marks : sequence of int
        Numbers of steps after which states are returned.

    Raises
    ------
    DataError
        If weights contract by a fraction of more than 0.025 (float64: 0.05) in a step.
    """
    law, cells = make_cell_law(drift, prior, grid, reference)
    _check(law, cells, prior, start.dtype)
    source = noise if callable(noise) else make_repeatable_noise(noise, start)
    law, origins, leaves = _detach_law(law)
    slopes = Slopes(dynamics, scale, law, cells, prior)
    network = [] if drift.network is None else list(drift.network.parameters())
    h = h.expand(*start.shape[:2], *h.shape[2:])
    parameters = [*network, *leaves]
    divergence, *states = _Path.apply(slopes, source, tuple(marks), parameters, start, h, *network, *origins)
    return Solution(states[1::2], divergence, states[::2])


def _detach_law(law: PathLaw) -> tuple[PathLaw, list[Tensor], list[Tensor]]:
    """Return the law with its tensors replaced by leaves, the original tensors, and the leaves."""
    origins, leaves = list[Tensor](), list[Tensor]()

    def leaf(tensor: Tensor) -> Tensor:
        if not tensor.requires_grad:
            return tensor
        origins.append(tensor)
        leaves.append(tensor.detach().requires_grad_())
        return leaves[-1]

    steps = {}
    for step in law.steps.values():
        if id(step) not in steps:
            pull = None if step.pull is None else leaf(step.pull)
            feedback = None if step.feedback is None else replace(step.feedback, turn=leaf(step.feedback.turn))
            steps[id(step)] = replace(step, shift=leaf(step.shift), pull=pull, feedback=feedback)
    directions = None if law.directions is None else leaf(law.directions)
    replaced = {i: steps[id(step)] for i, step in law.steps.items()}
    return replace(law, steps=replaced, directions=directions), origins, leaves


def _check(law: PathLaw, cells: Sequence[float], prior: Process, dtype: torch.dtype) -> None:
    """Raise an error if weights contract too fast, since rounding errors grow when states are reconstructed."""
    fed = {
        id(s): (-s.feedback.turn.detach() / c).max()
        for s, c in zip(law.steps.values(), cells, strict=True)
        if s.feedback is not None
    }
    rate = prior.rate + (torch.stack(list(fed.values())).max().item() if fed else 0.0)
    longest = max(b - a for a, b in pairwise(law.grid))
    most = _MOST.get(dtype, 0.025)
    if rate * longest > most * (1.0 + 1e-6):
        raise DataError(
            f"solver__gradient='reversible' was given, but weights contract at rate {rate:.3g} in steps of "
            f"{longest:.3g}, so by {rate * longest:.3g} in a step; at most {most} is allowed in "
            f"{str(dtype).removeprefix('torch.')} for accurate gradients: set solver__gradient='checkpointed', or use "
            f"{math.ceil(rate / most):,} steps per unit of depth"
        )


class _Path(torch.autograd.Function):
    """Forward pass without a graph, and backward pass with a separate graph for each step."""

    @staticmethod
    def forward(
        ctx: Any,
        slopes: Slopes,
        source: Noise,
        marks: tuple[int, ...],
        parameters: list[Tensor],
        w: Tensor,
        h: Tensor,
        *_: Tensor,
    ) -> tuple[Tensor, ...]:
        grid = slopes.law.grid
        other_w, other_h = w, h
        states: list[Tensor] = []
        a, b, rate = slopes(0, w, h)
        divergence = rate.new_empty(len(grid) - 1, *w.shape[:2])
        for i, (t, end) in enumerate(pairwise(grid)):
            dt = end - t
            noise = slopes.noise(i, source(i))
            other_w = 2.0 * w - other_w + a * dt + noise
            other_h = 2.0 * h - other_h + b * dt
            a_end, b_end, rate_end = slopes(i + 1, other_w, other_h)
            w = w + (a + a_end) * (0.5 * dt) + noise
            h = h + (b + b_end) * (0.5 * dt)
            divergence[i] = (rate + rate_end) * (0.5 * dt)
            a, b, rate = a_end, b_end, rate_end
            states += [w, h] if i + 1 in marks else []
        ctx.save_for_backward(w, h, other_w, other_h)
        ctx.arguments = slopes, source, marks, parameters
        return (divergence, *states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_divergence: Tensor, *of_states: Tensor) -> tuple[Tensor | None, ...]:
        slopes, source, marks, parameters = ctx.arguments
        w, h, other_w, other_h = ctx.saved_tensors
        graph = _LocalGraph(slopes, parameters)
        at_mark = dict(zip(marks, zip(of_states[::2], of_states[1::2], strict=True), strict=True))
        dw, dh, da, db = (torch.zeros_like(value) for value in (w, h, w, h))  # gradients of z, and of the slopes
        d_other_w, d_other_h = dw, dh
        d_rate = torch.zeros_like(of_divergence[0])
        a, b = graph.evaluate(len(slopes.law.grid) - 1, other_w, other_h)
        for i in reversed(range(len(of_divergence))):
            dt = slopes.law.grid[i + 1] - slopes.law.grid[i]
            if i + 1 in at_mark:
                dw, dh = dw + at_mark[i + 1][0], dh + at_mark[i + 1][1]
            half_w, half_h, half = dw * (0.5 * dt), dh * (0.5 * dt), of_divergence[i] * (0.5 * dt)
            to_w, to_h = graph.pull(da + half_w, db + half_h, d_rate + half)
            d_other_w, d_other_h = d_other_w + to_w, d_other_h + to_h
            noise = slopes.noise(i, source(i))
            # the forward equations, solved for the state before the step
            other_w = 2.0 * w - other_w - a * dt - noise
            other_h = 2.0 * h - other_h - b * dt
            a_start, b_start = graph.evaluate(i, other_w, other_h)
            w = w - (a + a_start) * (0.5 * dt) - noise
            h = h - (b + b_start) * (0.5 * dt)
            a, b = a_start, b_start
            da, db, d_rate = d_other_w * dt + half_w, d_other_h * dt + half_h, half
            dw, dh = dw + 2.0 * d_other_w, dh + 2.0 * d_other_h
            d_other_w, d_other_h = -d_other_w, -d_other_h
        to_w, to_h = graph.pull(da, db, d_rate)
        return (None, None, None, None, dw + d_other_w + to_w, dh + d_other_h + to_h, *graph.gradients)


class _LocalGraph:
    """Graph of the slopes at one time, and accumulated gradients of their parameters."""

    def __init__(self, slopes: Slopes, parameters: Sequence[Tensor]) -> None:
        self._slopes = slopes
        self._place = {id(parameter): k for k, parameter in enumerate(parameters)}
        law = {id(tensor) for i in range(len(slopes.cells)) for tensor in slopes.tensors(i)}
        self._network = [parameter for parameter in parameters if id(parameter) not in law]  # used at every time
        self.gradients: list[Tensor | None] = [None] * len(parameters)

    def evaluate(self, i: int, w: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return both slopes at time i, without their graph."""
        with torch.enable_grad():
            self._state = [w.detach().requires_grad_(), h.detach().requires_grad_()]
            self._values = self._slopes(i, *self._state)
        self._used = [*self._network, *self._slopes.tensors(i)]
        return self._values[0].detach(), self._values[1].detach()

    def pull(self, *of_values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of the state, given those of the values; accumulate those of the parameters."""
        to_w, to_h, *gradients = torch.autograd.grad(
            self._values, [*self._state, *self._used], of_values, allow_unused=True, materialize_grads=True
        )
        for parameter, gradient in zip(self._used, gradients, strict=True):
            k = self._place[id(parameter)]
            total = self.gradients[k]
            self.gradients[k] = gradient if total is None else total + gradient
        return to_w, to_h
