"""Solution along depth: Gaussian transitions of the weights, and a solver of the hidden state given the weights."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fathomless.families.continuous.drift import DRIFTS, PathLaw
from fathomless.families.continuous.dynamics import Dynamics, Weight
from fathomless.families.continuous.grids import EVERYWHERE, Span
from fathomless.system import checks, draws
from fathomless.system.errors import DataError

__all__ = [
    "ESTIMATORS",
    "SOLVERS",
    "DivergenceProfile",
    "Noise",
    "PathDivergence",
    "PathInference",
    "PathOutput",
    "Solution",
    "follow",
    "make_noise",
    "segment_length",
    "solve",
    "split_weights",
]

SOLVERS = ("euler", "heun")  #: solvers of the hidden state
ESTIMATORS = ("closed", "full", "sticking")  #: estimators of the divergence of a step

Noise = Callable[[int], Tensor]  #: standard normal numbers (F, S, M) of a step


@dataclass(frozen=True)
class PathInference:
    """Options of the inference and the solution of paths of weights.

    Attributes
    ----------
    initial : {"point", "gaussian"}
        Weights at depth 0: point estimates with weight decay, or a Gaussian posterior.
    charged : bool
        True if the objective includes the weight decay of point estimates.
    drift : {"shift", "diagonal", "lowrank", "network", "both"}
        Difference between the drifts of posterior and prior.
    rank, knots : int
        Number of low-rank directions and of units of the network; pieces of shift and feedback per unit of depth.
    transition : {"exact", "euler"}
        Transitions of the weights.
    solver : {"heun", "euler"}
        Solver of the hidden state.
    steps : int
        Number of steps n on the fixed horizon.
    predict_steps : int, optional
        Number of steps in evaluation; `steps` by default.
    jitter : {"count", "times", "none"}
        Randomisation in training, so that the network does not adapt to one grid: the number of steps is drawn from
        half to twice `steps`, or their times are drawn.
    gradient : {"auto", "unrolled", "checkpointed", "reversible"}
        Keep all states for the gradient, or recompute segments of √n steps. "reversible" trains by another scheme, in
        memory independent of the number of steps. Its divergence is a quadrature, not a bound (see
        :mod:`~fathomless.families.continuous.reversible`). Evaluation is unchanged.
    estimator : {"closed", "full", "sticking"}
        Estimator of the divergence in training; "full" in evaluation.
    learned : bool
        True if the speed of the prior's clock is learned, see :mod:`~fathomless.families.continuous.drift`.
    span : Span
        Interval of depth in which the weights vary; they are constant before and after it.
    """

    initial: str = "point"
    charged: bool = True
    drift: str = "diagonal"
    rank: int = 32
    knots: int = 4
    transition: str = "exact"
    solver: str = "heun"
    steps: int = 10
    predict_steps: int | None = None
    jitter: str = "count"
    gradient: str = "auto"
    estimator: str = "closed"
    learned: bool = False
    span: Span = EVERYWHERE

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            checks.choice(name, getattr(self, name), allowed)
        for name in ("rank", "knots", "steps"):
            checks.whole(name, getattr(self, name))
        if self.predict_steps is not None:
            checks.whole("predict_steps", self.predict_steps)
        if self.gradient == "reversible" and (self.solver, self.estimator) != ("heun", "closed"):
            raise DataError(
                f"solver__gradient='reversible' was given with solver={self.solver!r} and path__estimator="
                f"{self.estimator!r}; its divergence is a quadrature, for which only solver='heun' and "
                "path__estimator='closed' are allowed: set these, or solver__gradient='checkpointed'"
            )
        if self.gradient == "reversible" and self.learned:
            raise DataError(
                "solver__gradient='reversible' was given with a learned rate; only a fixed rate is allowed: set "
                "path__rate to a number, or solver__gradient='checkpointed'"
            )
        if self.gradient == "reversible" and self.span != EVERYWHERE:
            raise DataError(
                "solver__gradient='reversible' was given with weights that vary in a part of the depth; only "
                "path__stochastic='all' is allowed: set it, or solver__gradient='checkpointed'"
            )

    @property
    def bound(self) -> str:
        """Type of the objective: "chain", a bound for every number of steps, or "quadrature", not a bound."""
        return "quadrature" if self.gradient == "reversible" else "chain"


_CHOICES: dict[str, tuple[str, ...]] = {
    "initial": ("point", "gaussian"),
    "drift": DRIFTS,
    "transition": ("exact", "euler"),
    "solver": SOLVERS,
    "jitter": ("count", "times", "none"),
    "gradient": ("auto", "unrolled", "checkpointed", "reversible"),
    "estimator": ESTIMATORS,
}


@dataclass(frozen=True)
class Solution:
    """Paths of weights and hidden states.

    Attributes
    ----------
    hidden : list of Tensors (F, S, B, ...)
        Hidden states at the requested steps.
    divergence : Tensor, shape (n, F, S)
        Divergence of each step, in nats.
    weights : list of Tensors (F, S, M)
        Weights at the same steps, in units of their prior standard deviation.
    """

    hidden: list[Tensor]
    divergence: Tensor
    weights: list[Tensor]


class PathDivergence(NamedTuple):
    """Divergences in nats: of the `initial` weights (F, n), and of the `path`, step by step (steps, F, n)."""

    initial: Tensor
    path: Tensor


class DivergenceProfile(NamedTuple):
    """Midpoints of steps, and the divergence of each step in nats per unit of depth, float64 (steps,)."""

    depth: tuple[float, ...]
    rate: Tensor


class PathOutput(NamedTuple):
    """Outputs, states and divergences of solved paths.

    Attributes
    ----------
    f : Tensor, shape (marks, n, F·B, K)
        Parameters of the likelihood.
    hidden : list of Tensors (F, n, B, ...)
        Hidden states at the marks.
    weights : list of Tensors (F, n, M)
        Moving weights at the marks, in units of their prior scale.
    divergence : PathDivergence
        Divergences in nats.
    """

    f: Tensor
    hidden: list[Tensor]
    weights: list[Tensor]
    divergence: PathDivergence


def make_noise(generator: torch.Generator | None, like: Tensor, shape: tuple[int, ...]) -> Noise:
    """Return a source of noise that draws each step in turn and stores nothing."""

    def draw(_: int) -> Tensor:
        return draws.normal(like, generator, shape)

    return draw


def split_weights(flat: Tensor, weights: Sequence[Weight]) -> list[Tensor]:
    """Split a vector (..., P) into views of the shapes of some weights."""
    parts = flat.split([weight.size for weight in weights], -1)
    return [part.unflatten(-1, weight.shape) for part, weight in zip(parts, weights, strict=True)]


def solve(
    dynamics: Dynamics,
    scale: Tensor,
    law: PathLaw,
    start: Tensor,
    h: Tensor,
    noise: Noise | torch.Generator,
    *,
    marks: Sequence[int],
    solver: str = "heun",
    estimator: str = "closed",
    stopped: PathLaw | None = None,
    segment: int = 0,
) -> Solution:
    """Move weights and hidden states along a grid of n steps.

    Parameters
    ----------
    dynamics : Dynamics
        Slope of the hidden state.
    scale : Tensor, shape (M,)
        Prior standard deviations of the moving weights.
    law : PathLaw
        Law of the paths of the weights.
    start : Tensor, shape (F, S, M)
        Weights at depth 0, in units of their prior standard deviation.
    h : Tensor, shape (F, S or 1, B, ...)
        Hidden states at depth 0.
    noise : callable or torch.Generator
        Noise of each step, drawn in turn and independently of x, so that a result does not depend on other rows.
    marks : sequence of int
        Numbers of steps after which states are returned, in increasing order.
    solver : {"heun", "euler"}
        Solver of the hidden state.
    estimator : {"closed", "full", "sticking"}
        Estimator of the divergence of each step.
    stopped : PathLaw, optional
        Law with stopped gradient, for "sticking".
    segment : int
        Length of segments whose states are recomputed for the gradient; 0 keeps all states. `noise` must be a generator
        then, and the result is bit-identical.
    """
    checks.choice("solver", solver, SOLVERS)
    checks.choice("estimator", estimator, ESTIMATORS)
    n = len(law.grid) - 1
    shape = tuple(start.shape)
    drawn = make_noise(noise, start, shape) if isinstance(noise, torch.Generator) else noise
    h = h.expand(*start.shape[:2], *h.shape[2:])
    states: dict[int, Tensor] = {}

    def run(first: int, last: int, w: Tensor, h: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        source = drawn
        if segment and isinstance(noise, torch.Generator):  # the recomputation draws the same noise again
            if first in states:
                source = make_noise(torch.Generator(noise.device).set_state(states[first]), start, shape)
            else:
                states[first] = noise.get_state()
        divergence, at_marks = [], []
        for i in range(first, last):
            after, weights_after = w, weights
            if law.varies(i):
                with torch.autocast(w.device.type, enabled=False):  # only the slope may be in reduced precision
                    after, change = law.step(i, w, source(i))
                    closed = estimator == "closed"
                    divergence.append(law.closed(i, change) if closed else law.full(i, w, after, stopped))
                weights_after = tuple(split_weights(after * scale, dynamics.moving))
            else:
                divergence.append(w.new_zeros(w.shape[:2]))
            h = _step(dynamics, solver, law.grid[i], law.grid[i + 1], weights, weights_after, h)
            w, weights = after, weights_after
            at_marks += [w, h] if i + 1 in marks else []
        return (w, h, *weights, torch.stack(divergence), *at_marks)

    edges = [*range(0, n, segment or n), n]
    divergence, hidden, paths = [], [], []
    state = (
        start,
        h,
        *split_weights(start * scale, dynamics.moving),
    )  # scaled once, for equal rounding in all segments
    for first, last in pairwise(edges):
        if segment and torch.is_grad_enabled():
            values = checkpoint(run, first, last, *state, use_reentrant=False, preserve_rng_state=False)
        else:
            values = run(first, last, *state)
        divergence.append(values[len(state)])
        at_marks = values[len(state) + 1 :]
        state = values[: len(state)]
        paths += at_marks[::2]
        hidden += at_marks[1::2]
    return Solution(hidden, torch.cat(divergence), paths)


def follow(
    dynamics: Dynamics,
    weights: Sequence[Sequence[Tensor]],
    h: Tensor,
    grid: Sequence[float],
    marks: Sequence[int],
    solver: str,
) -> list[Tensor]:
    """Move hidden states with given weights at every time of the grid; return the states at the marks."""
    states = []
    for i, (a, b) in enumerate(pairwise(grid)):
        h = _step(dynamics, solver, a, b, weights[i], weights[i + 1], h)
        states += [h] if i + 1 in marks else []
    return states


def _step(
    dynamics: Dynamics, solver: str, t: float, end: float, before: Sequence[Tensor], after: Sequence[Tensor], h: Tensor
) -> Tensor:
    """Advance the hidden state by one step, with the weights at both ends of it."""
    slope = dynamics.slope(before, t, h)
    if slope.shape != h.shape:
        raise DataError(
            f"{type(dynamics).__name__}.slope returned shape {tuple(slope.shape)} for a hidden state of shape "
            f"{tuple(h.shape)}; it must return the shape of the hidden state"
        )
    if solver == "euler":
        return h + (end - t) * slope
    again = dynamics.slope(after, end, h + (end - t) * slope)
    return h + (0.5 * (end - t)) * (slope + again)


def segment_length(steps: int) -> int:
    """Return √n, rounded up: the length of segments that needs the least memory."""
    return math.ceil(math.sqrt(steps))
