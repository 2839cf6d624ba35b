"""One pass along depth: weights move by their Gaussian transitions, the hidden state by a solver given the weights."""

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
from fathomless.system import checks, draws
from fathomless.system.errors import DataError

__all__ = [
    "ESTIMATORS",
    "SOLVERS",
    "DivergenceProfile",
    "Followed",
    "Noise",
    "PathDivergence",
    "PathInference",
    "Solution",
    "automatic_segment",
    "follow",
    "normal",
    "parted",
    "solve",
]

SOLVERS = ("euler", "heun")  #: of the hidden state
ESTIMATORS = ("closed", "full", "sticking")  #: of the divergence of a step

Noise = Callable[[int], Tensor]  #: standard normal numbers (F, S, M) of a step


@dataclass(frozen=True)
class PathInference:
    """How paths of weights are inferred and followed.

    Attributes
    ----------
    initial : {"point", "gaussian"}
        Weights at depth 0 are point estimates, charged by their prior, or have a Gaussian posterior.
    charged : bool
        Whether point estimates are charged.
    drift : {"shift", "diagonal", "lowrank", "network", "both"}
        What the data add to the prior's drift.
    rank, knots : int
        Directions of low rank and units of the network; pieces of shift and feedback per unit of depth.
    transition : {"exact", "euler"}
        Of the weights.
    solver : {"heun", "euler"}
        Of the hidden state.
    steps : int
        n, on the fixed horizon.
    predict_steps : int, optional
        n in evaluation; the same by default.
    jitter : {"count", "times", "none"}
        In training the number of steps is drawn between half and twice as many, or their times are drawn, so that the
        network does not learn its grid.
    gradient : {"auto", "unrolled", "checkpointed", "reversible"}
        Keep all states for the gradient, or compute segments of √n steps again. "reversible" trains by another scheme,
        whose memory does not grow with the steps and whose divergence is a quadrature, not a bound (see
        :mod:`~fathomless.families.continuous.reversible`); evaluation is as ever.
    estimator : {"closed", "full", "sticking"}
        Of the divergence, in training; "full" in evaluation.
    learned : bool
        Whether the speed of the prior's clock is learned, see :mod:`~fathomless.families.continuous.drift`.
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

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            checks.choice(name, getattr(self, name), allowed)
        for name in ("rank", "knots", "steps"):
            checks.whole(name, getattr(self, name))
        if self.predict_steps is not None:
            checks.whole("predict_steps", self.predict_steps)
        given = (self.solver, self.estimator)
        if self.gradient == "reversible" and given != ("heun", "closed"):
            raise DataError(
                f"solver__gradient='reversible' was given with solver={given[0]!r} and path__estimator={given[1]!r}; "
                "its divergence is a quadrature, and allowed are solver='heun' and path__estimator='closed': set "
                "these, or solver__gradient='checkpointed'"
            )
        if self.gradient == "reversible" and self.learned:
            raise DataError(
                "solver__gradient='reversible' was given with a learned rate; a number is allowed: set path__rate, or "
                "solver__gradient='checkpointed'"
            )

    @property
    def bound(self) -> str:
        """What the training maximises: "chain", a bound for the steps taken, or "quadrature", which is none."""
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
    """Paths of weights, and the hidden states that they move.

    Attributes
    ----------
    hidden : list of Tensors (F, S, B, ...)
        At the steps that were asked for.
    divergence : Tensor, shape (n, F, S)
        Of each step, in nats.
    weights : list of Tensors (F, S, M)
        At the same steps as `hidden`, in units of their prior standard deviation.
    """

    hidden: list[Tensor]
    divergence: Tensor
    weights: list[Tensor]


class PathDivergence(NamedTuple):
    """Divergences in nats: of the `initial` weights (F, n), and of the `path`, step by step (steps, F, n)."""

    initial: Tensor
    path: Tensor


class DivergenceProfile(NamedTuple):
    """Times in the middle of steps, and the divergence there in nats per unit of depth, float64 (steps,)."""

    depth: tuple[float, ...]
    rate: Tensor


class Followed(NamedTuple):
    """What following paths gives.

    Attributes
    ----------
    f : Tensor, shape (marks, n, F·B, K)
        Outputs.
    hidden : list of Tensors (F, n, B, ...)
        Hidden states at the marks.
    weights : list of Tensors (F, n, M)
        Moving weights there, in units of their prior scale.
    divergence : PathDivergence
        In nats.
    """

    f: Tensor
    hidden: list[Tensor]
    weights: list[Tensor]
    divergence: PathDivergence


def normal(generator: torch.Generator | None, like: Tensor, shape: tuple[int, ...]) -> Noise:
    """Return a source of noise that draws step after step; nothing is kept."""

    def draw(_: int) -> Tensor:
        return draws.normal(like, generator, shape)

    return draw


def parted(flat: Tensor, weights: Sequence[Weight]) -> list[Tensor]:
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
        The slope.
    scale : Tensor, shape (M,)
        Prior standard deviations of the moving weights.
    law : PathLaw
        Of the weights.
    start : Tensor, shape (F, S, M)
        Weights at depth 0, in units of their prior standard deviation.
    h : Tensor, shape (F, S or 1, B, ...)
        Hidden states at depth 0.
    noise : callable or torch.Generator
        Of each step. Drawn step after step and independently of x, so that neither other rows nor their number matter.
    marks : sequence of int
        Numbers of steps after which states are returned, ascending.
    solver : {"heun", "euler"}
        Of the hidden state.
    estimator : {"closed", "full", "sticking"}
        Of the divergence of each step.
    stopped : PathLaw, optional
        The law with its gradient stopped, for "sticking".
    segment : int
        Steps whose states are computed again for the gradient rather than kept; 0 keeps all. `noise` is a generator
        then, and the result is the same bit for bit.
    """
    checks.choice("solver", solver, SOLVERS)
    checks.choice("estimator", estimator, ESTIMATORS)
    n, shape = len(law.grid) - 1, tuple(start.shape)
    drawn = normal(noise, start, shape) if isinstance(noise, torch.Generator) else noise
    h = h.expand(*start.shape[:2], *h.shape[2:])
    states: dict[int, Tensor] = {}

    def run(first: int, last: int, w: Tensor, h: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        source = drawn
        if segment and isinstance(noise, torch.Generator):  # the second time the same numbers are drawn once more
            if first in states:
                source = normal(torch.Generator(noise.device).set_state(states[first]), start, shape)
            else:
                states[first] = noise.get_state()
        divergence, kept = [], []
        for i in range(first, last):
            with torch.autocast(w.device.type, enabled=False):  # only the slope may be in a narrower type
                after, change = law.step(i, w, source(i))
                divergence.append(law.closed(i, change) if estimator == "closed" else law.full(i, w, after, stopped))
            weights_after = tuple(parted(after * scale, dynamics.moving))
            h = _step(dynamics, solver, law.grid[i], law.grid[i + 1], weights, weights_after, h)
            w, weights = after, weights_after
            kept += [w, h] if i + 1 in marks else []
        return (w, h, *weights, torch.stack(divergence), *kept)

    edges = [*range(0, n, segment or n), n]
    divergence, hidden, paths = [], [], []
    state = (start, h, *parted(start * scale, dynamics.moving))  # weights are scaled once: sums have the same order
    for first, last in pairwise(edges):
        if segment and torch.is_grad_enabled():
            found = checkpoint(run, first, last, *state, use_reentrant=False, preserve_rng_state=False)
        else:
            found = run(first, last, *state)
        state, own, kept = found[: len(state)], found[len(state)], found[len(state) + 1 :]
        divergence.append(own)
        paths += kept[::2]
        hidden += kept[1::2]
    return Solution(hidden, torch.cat(divergence), paths)


def follow(
    dynamics: Dynamics,
    weights: Sequence[Sequence[Tensor]],
    h: Tensor,
    grid: Sequence[float],
    marks: Sequence[int],
    solver: str,
) -> list[Tensor]:
    """Move hidden states by given weights, those of every time of the grid; return the states at the marks."""
    kept = []
    for i, (a, b) in enumerate(pairwise(grid)):
        h = _step(dynamics, solver, a, b, weights[i], weights[i + 1], h)
        kept += [h] if i + 1 in marks else []
    return kept


def _step(
    dynamics: Dynamics, solver: str, t: float, end: float, before: Sequence[Tensor], after: Sequence[Tensor], h: Tensor
) -> Tensor:
    """One step of the hidden state, with the weights at both of its ends."""
    slope = dynamics.slope(before, t, h)
    if slope.shape != h.shape:
        raise DataError(
            f"a slope of shape {tuple(slope.shape)} was given for a hidden state of shape {tuple(h.shape)}; equal "
            f"shapes are allowed: let {type(dynamics).__name__}.slope return one number for each of its state"
        )
    if solver == "euler":
        return h + (end - t) * slope
    again = dynamics.slope(after, end, h + (end - t) * slope)
    return h + (0.5 * (end - t)) * (slope + again)


def automatic_segment(steps: int) -> int:
    """Return √n, rounded up: the length of segments for which least is kept."""
    return math.ceil(math.sqrt(steps))
