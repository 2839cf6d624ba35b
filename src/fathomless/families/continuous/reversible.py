r"""Reversible Heun: the gradient of a path in memory that does not grow with the number of steps.

Weights and hidden state are one state z with an auxiliary one ẑ. With slopes v at (t, ẑ) and the same noise for both,

.. math:: \hat z' = 2z - \hat z + v\Delta + \sigma\Delta B, \qquad z' = z + \tfrac12 (v + v')\Delta + \sigma\Delta B,

and with z' and ẑ' the same two lines give ẑ and z back. So nothing is kept: backwards, states are rebuilt and noise is
drawn once more from its seed. The gradient is that of this solution, to rounding, not of a limit.

The price: weights no longer move by Gaussian steps, so that their divergence is a quadrature, the sum over steps of
:math:`\tfrac12 |u|^2 \Delta` with u = c / σ, c what the posterior adds to the drift, averaged over both ends of a step.
What it is part of is **not a bound** for a number of steps. And rounding errors grow backwards where weights contract.

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
from fathomless.families.continuous.solve import Noise, Solution, parted
from fathomless.system.draws import normal
from fathomless.system.errors import DataError
from fathomless.system.rng import as_seed, fold_in

__all__ = ["Slopes", "points", "repeatable", "solve"]

_MOST = {torch.float32: 0.025, torch.float64: 0.05}  # of the rate times a step: errors of 1e-5 and 1e-9 in 200 steps


def repeatable(generator: torch.Generator | None, like: Tensor) -> Noise:
    """Return a source of noise that gives the same numbers whenever a step is asked for; nothing is kept."""
    seed, own = as_seed(generator or torch.default_generator), torch.Generator((generator or like).device)

    def draw(i: int) -> Tensor:
        own.manual_seed(fold_in(seed, "step", i))
        return normal(like, own)

    return draw


def points(drift: PosteriorDrift, prior: Process, grid: Grid, reference: Tensor) -> tuple[PathLaw, list[float]]:
    """Return what the posterior adds at the times of a grid, as steps over cells around them, and their lengths.

    A cell ends in the middle between two times, and shift and feedback are averages over it: the trapezoidal rule gives
    their integral exactly.
    """
    edges = (grid[0], *(0.5 * (a + b) for a, b in pairwise(grid)), grid[-1])
    law = drift.law(prior, edges, reference, kind="euler")
    return replace(law, grid=grid), [b - a for a, b in pairwise(edges)]


@dataclass(frozen=True)
class Slopes:
    """The slopes of weights and hidden state at the times of a grid.

    Attributes
    ----------
    dynamics : Dynamics
        Of the hidden state.
    scale : Tensor, shape (M,)
        Prior standard deviations of the moving weights.
    law, cells : PathLaw and list of float
        As :func:`points` returns them.
    prior : Process
        θ and σ.
    """

    dynamics: Dynamics
    scale: Tensor
    law: PathLaw
    cells: list[float]
    prior: Process

    def __call__(self, i: int, w: Tensor, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the slope of the weights w (F, S, M), that of h, and ½|u|² (F, S), at time i."""
        with torch.autocast(w.device.type, enabled=False):  # states that are rebuilt need all digits
            change = self.law.change(i, w)
            flow = self.dynamics.slope(parted(w * self.scale, self.dynamics.moving), self.law.grid[i], h)
            drift = torch.add(change / self.cells[i], w, alpha=-self.prior.rate)
            return drift, flow, (self.law.closed(i, change) / self.cells[i]).expand(w.shape[:2])

    def noise(self, i: int, eps: Tensor) -> Tensor:
        """Scale the noise of step i."""
        return eps * (self.prior.diffusion * math.sqrt(self.law.grid[i + 1] - self.law.grid[i]))

    def tensors(self, i: int) -> list[Tensor]:
        """Return what the law is made of at time i, apart from its network."""
        step, U = self.law.steps[i], self.law.directions
        fed = None if step.fed is None else step.fed.turn
        return [one for one in (step.shift, step.pull, fed, U) if one is not None and one.requires_grad]


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
        The slope.
    scale : Tensor, shape (M,)
        Prior standard deviations of the moving weights.
    drift : PosteriorDrift
        What the posterior adds.
    prior : Process
        In units of its scale.
    reference : Tensor, shape (F, M)
        Towards which feedback acts.
    grid : Grid
        Of n steps.
    start : Tensor, shape (F, S, M)
        Weights at depth 0, in units of their prior standard deviation.
    h : Tensor, shape (F, S or 1, B, ...)
        Hidden states at depth 0.
    noise : torch.Generator or callable
        A callable is asked for each step twice, and must give the same.
    marks : sequence of int
        Numbers of steps after which states are returned.

    Raises
    ------
    DataError
        If weights contract by more than a share of 0.025 (float64: 0.05) in a step.
    """
    law, cells = points(drift, prior, grid, reference)
    _check(law, cells, prior, start.dtype)
    source = noise if callable(noise) else repeatable(noise, start)
    law, origins, leaves = _cut(law)
    slopes = Slopes(dynamics, scale, law, cells, prior)
    network = [] if drift.network is None else list(drift.network.parameters())
    h = h.expand(*start.shape[:2], *h.shape[2:])
    own = [*network, *leaves]
    divergence, *kept = _Path.apply(slopes, source, tuple(marks), own, start, h, *network, *origins)
    return Solution(kept[1::2], divergence, kept[::2])


def _cut(law: PathLaw) -> tuple[PathLaw, list[Tensor], list[Tensor]]:
    """Return a law that is made of leaves, what these stand for, and them."""
    origins, leaves = list[Tensor](), list[Tensor]()

    def leaf(one: Tensor) -> Tensor:
        if not one.requires_grad:
            return one
        origins.append(one)
        leaves.append(one.detach().requires_grad_())
        return leaves[-1]

    steps = {}
    for step in law.steps:
        if id(step) not in steps:
            pull = None if step.pull is None else leaf(step.pull)
            fed = None if step.fed is None else replace(step.fed, turn=leaf(step.fed.turn))
            steps[id(step)] = replace(step, shift=leaf(step.shift), pull=pull, fed=fed)
    directions = None if law.directions is None else leaf(law.directions)
    return replace(law, steps=tuple(steps[id(step)] for step in law.steps), directions=directions), origins, leaves


def _check(law: PathLaw, cells: Sequence[float], prior: Process, dtype: torch.dtype) -> None:
    """Refuse contraction, under which errors of rounding grow when states are rebuilt."""
    fed = {id(s): (-s.fed.turn.detach() / c).max() for s, c in zip(law.steps, cells, strict=True) if s.fed is not None}
    rate = prior.rate + (torch.stack(list(fed.values())).max().item() if fed else 0.0)
    longest, most = max(b - a for a, b in pairwise(law.grid)), _MOST.get(dtype, 0.025)
    if rate * longest > most * (1.0 + 1e-6):
        raise DataError(
            f"solver__gradient='reversible' was given where weights contract at rate {rate:.3g} in steps of "
            f"{longest:.3g}, so by {rate * longest:.3g} in a step; at most {most} is allowed in "
            f"{str(dtype).removeprefix('torch.')}, or what is rebuilt backwards is wrong: set "
            "solver__gradient='checkpointed', or take "
            f"{math.ceil(rate / most):,} steps per unit of depth"
        )


class _Path(torch.autograd.Function):
    """Forwards without a graph; backwards step by step, each with a graph of its own."""

    @staticmethod
    def forward(
        ctx: Any,
        slopes: Slopes,
        source: Noise,
        marks: tuple[int, ...],
        made_of: list[Tensor],
        w: Tensor,
        h: Tensor,
        *_: Tensor,
    ) -> tuple[Tensor, ...]:
        grid = slopes.law.grid
        other_w, other_h, kept = w, h, []
        a, b, price = slopes(0, w, h)
        divergence = price.new_empty(len(grid) - 1, *w.shape[:2])
        for i, (t, end) in enumerate(pairwise(grid)):
            dt, noise = end - t, slopes.noise(i, source(i))
            other_w = 2.0 * w - other_w + a * dt + noise
            other_h = 2.0 * h - other_h + b * dt
            a_end, b_end, price_end = slopes(i + 1, other_w, other_h)
            w = w + (a + a_end) * (0.5 * dt) + noise
            h = h + (b + b_end) * (0.5 * dt)
            divergence[i] = (price + price_end) * (0.5 * dt)
            a, b, price = a_end, b_end, price_end
            kept += [w, h] if i + 1 in marks else []
        ctx.save_for_backward(w, h, other_w, other_h)
        ctx.given = slopes, source, marks, made_of
        return (divergence, *kept)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_divergence: Tensor, *of_kept: Tensor) -> tuple[Tensor | None, ...]:
        slopes, source, marks, made_of = ctx.given
        w, h, other_w, other_h = ctx.saved_tensors
        own = _Local(slopes, made_of)
        at_mark = dict(zip(marks, zip(of_kept[::2], of_kept[1::2], strict=True), strict=True))
        dw, dh, da, db = (torch.zeros_like(one) for one in (w, h, w, h))  # of z, and of the slopes
        d_other_w, d_other_h, d_price = dw, dh, torch.zeros_like(of_divergence[0])
        a, b = own.evaluate(len(slopes.law.grid) - 1, other_w, other_h)
        for i in reversed(range(len(of_divergence))):
            dt = slopes.law.grid[i + 1] - slopes.law.grid[i]
            if i + 1 in at_mark:
                dw, dh = dw + at_mark[i + 1][0], dh + at_mark[i + 1][1]
            half_w, half_h, half = dw * (0.5 * dt), dh * (0.5 * dt), of_divergence[i] * (0.5 * dt)
            to_w, to_h = own.pull(da + half_w, db + half_h, d_price + half)
            d_other_w, d_other_h = d_other_w + to_w, d_other_h + to_h
            noise = slopes.noise(i, source(i))
            other_w = 2.0 * w - other_w - a * dt - noise
            other_h = 2.0 * h - other_h - b * dt
            a_start, b_start = own.evaluate(i, other_w, other_h)
            w = w - (a + a_start) * (0.5 * dt) - noise
            h = h - (b + b_start) * (0.5 * dt)
            a, b = a_start, b_start
            da, db, d_price = d_other_w * dt + half_w, d_other_h * dt + half_h, half
            dw, dh = dw + 2.0 * d_other_w, dh + 2.0 * d_other_h
            d_other_w, d_other_h = -d_other_w, -d_other_h
        to_w, to_h = own.pull(da, db, d_price)
        return (None, None, None, None, dw + d_other_w + to_w, dh + d_other_h + to_h, *own.gradients)


class _Local:
    """The slopes at one time with a graph, and the sum of the gradients of what they are made of."""

    def __init__(self, slopes: Slopes, made_of: Sequence[Tensor]) -> None:
        self._slopes, self._made_of = slopes, made_of
        self._place = {id(one): k for k, one in enumerate(made_of)}
        law = {id(one) for i in range(len(slopes.cells)) for one in slopes.tensors(i)}
        self._always = [one for one in made_of if id(one) not in law]  # of the network
        self.gradients: list[Tensor | None] = [None] * len(made_of)

    def evaluate(self, i: int, w: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return both slopes."""
        with torch.enable_grad():
            self._state = [w.detach().requires_grad_(), h.detach().requires_grad_()]
            self._values = self._slopes(i, *self._state)
        self._used = [*self._always, *self._slopes.tensors(i)]
        return self._values[0].detach(), self._values[1].detach()

    def pull(self, *of_values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of the state, given those of the values; add up those of the rest."""
        to_w, to_h, *found = torch.autograd.grad(
            self._values, [*self._state, *self._used], of_values, allow_unused=True, materialize_grads=True
        )
        for one, own in zip(self._used, found, strict=True):
            k = self._place[id(one)]
            before = self.gradients[k]
            self.gradients[k] = own if before is None else before + own
        return to_w, to_h
