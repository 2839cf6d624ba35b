"""Deployment of a fitted network of continuous depth: paths of weights, drawn once, as plain modules."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fathomless.families.continuous.dynamics import Dynamics
from fathomless.families.continuous.grids import Grid
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.solve import follow, split_weights
from fathomless.system.rng import as_generator

__all__ = ["FixedPaths", "fixed_paths", "point_path"]


class FixedPaths(nn.Module):
    """Deterministic networks with given paths of weights on a grid: residual blocks.

    Parameters
    ----------
    dynamics : Dynamics
        Dynamics of the hidden state.
    grid : Grid
        Times of the n + 1 sets of moving weights.
    moving : Tensor, shape (n + 1, F, S, M)
        Weights of the slope.
    fixed : Tensor, shape (F, S, Q)
        Weights of enter and leave.
    marks : sequence of int
        Numbers of steps after which the state is read.
    log_weight : Tensor, shape (S · marks,)
        Log weights of the draws of one network.
    solver : {"heun", "euler"}
        Solver of the hidden state.
    """

    moving: Tensor
    fixed: Tensor
    log_weight: Tensor

    def __init__(
        self,
        dynamics: Dynamics,
        grid: Grid,
        moving: Tensor,
        fixed: Tensor,
        marks: Sequence[int],
        log_weight: Tensor,
        solver: str,
    ) -> None:
        super().__init__()
        self.dynamics = dynamics
        self.grid = grid
        self.marks = tuple(marks)
        self.solver = solver
        self.register_buffer("moving", moving)
        self.register_buffer("fixed", fixed)
        members = fixed.shape[0]
        self.register_buffer("log_weight", log_weight.repeat(members) - math.log(members))

    def forward(self, x: Tensor) -> Tensor:
        """Return the parameters of the likelihood of every network for x (B, ...), (F · S · marks, B, K)."""
        members, paths = self.fixed.shape[:2]
        fixed = split_weights(self.fixed, self.dynamics.still)
        h = self.dynamics.enter(fixed, x.expand(members, *x.shape))
        h = h.expand(members, paths, *h.shape[2:])
        weights = [split_weights(flat, self.dynamics.moving) for flat in self.moving]
        hidden = follow(self.dynamics, weights, h, self.grid, self.marks, self.solver)
        f = torch.stack([self.dynamics.leave(fixed, state) for state in hidden], 2)  # (F, S, marks, B, K)
        return f.flatten(0, 2)


@torch.no_grad()
def fixed_paths(model: ContinuousDepth, paths: int, steps: int | None = None, seed: int = 0) -> FixedPaths:
    """Return drawn paths as a plain module: `paths` · (n + 1) sets of weights for each network.

    Parameters
    ----------
    model : ContinuousDepth
        One network, or several stacked ones.
    paths : int
        Number of paths S.
    steps : int, optional
        Number of steps on the horizon; that of predictions by default.
    seed : int
        Seed of the paths: :meth:`~fathomless.families.continuous.model.ContinuousDepth.draw` gives the same with it.
    """
    return _fix_paths(model, paths, steps, as_generator(seed))


@torch.no_grad()
def point_path(model: ContinuousDepth, steps: int | None = None) -> FixedPaths:
    """Return the posterior mean path as a plain module.

    It is exact, except for a drift with a network, where the path without noise approximates the mean.
    """
    return _fix_paths(model, 1, steps, None)


def _fix_paths(model: ContinuousDepth, paths: int, steps: int | None, noise: torch.Generator | None) -> FixedPaths:
    grid = model.grid(steps)
    start, path = model.path(paths, grid, noise)
    first = model.scale.numel() - sum(weight.size for weight in model.dynamics.still)
    moving = torch.stack([w * model.scale[:first] for w in path])
    log_weight = model.log_weights().repeat(paths) - math.log(paths)
    fixed = start[..., first:] * model.scale[first:]
    marks = model.marks(grid)
    return FixedPaths(
        model.dynamics, grid, moving, fixed, marks, log_weight.to(moving), model.options.solver
    ).requires_grad_(False)
