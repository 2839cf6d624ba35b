r"""The posterior process: its drift relative to the prior, and its law on a grid.

Weights are in units of their prior standard deviation, :math:`\tilde w = w / s`, so that the prior of those that move
is isotropic and has one rate θ. The posterior is

.. math:: d\tilde w = [-\theta \tilde w - U \kappa(t) U^\top (\tilde w - r)
          + \tilde\sigma\, \{a(t) + g(t, \tilde w)\}]\, dt + \tilde\sigma\, dB

with a shift a, feedback κ in the directions U towards the reference r, and a network g. The reference is the mean of
the initial weights, so that feedback alone can keep weights constant. ``diagonal`` is U = I. With a = κ = g = 0, the
initial values, the posterior is the prior.

a and g are in units of σ: a shift costs ½ ∫ a² dt at every rate, so that random changes by an optimiser cost little at
a slow rate. The speed of the prior's clock, which multiplies θ and σ², may be learned: the more weights may differ
between depths, the larger is their uncertainty. a and κ are constant on pieces of depth; a step across several pieces
uses their average over time.

The weights can be constant outside an interval of depth. The clock of the process then stops there, so that the process
inside is the same, and steps outside have no noise and no divergence.

References
----------
S. Calvo-Ordoñez, M. Meunier, F. Piatti and Y. Shi, "Partially Stochastic Infinitely Deep Bayesian Neural Networks",
ICML 2024 (arXiv:2402.03495), where the weights outside follow an ordinary differential equation.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fathomless.families.continuous.grids import EVERYWHERE, Grid, Span, clip, overlap
from fathomless.families.continuous.processes import Process, Transition, excess, transition
from fathomless.system import checks
from fathomless.system.rng import as_generator, fold_in

__all__ = ["DRIFTS", "PathLaw", "PosteriorDrift"]

DRIFTS = ("shift", "diagonal", "lowrank", "network", "both")  #: "both" is a network on top of low rank
_CLOCK = 10.0  # scale of log speed; with a larger one, rates approach 0 before the weights are learned
_SPEED = 5.0  # scale of the logarithm of a rate, relative to other parameters
_LEAST = 0.9  # κ > −0.9 θ
_MOST = math.log(1e6)  # of log(1 + κ)
_SPREAD = 2.0  # prior standard deviation of the logarithm of the speed


class PosteriorDrift(nn.Module):
    """Difference between the drifts of posterior and prior of M weights, for F stacked networks.

    Parameters
    ----------
    size : int
        Number of weights M.
    kind : {"shift", "diagonal", "lowrank", "network", "both"}
        Type of feedback in addition to the shift.
    rank : int
        Number of directions of "lowrank", and of hidden units of "network".
    width : float
        Length in depth of a piece of a and κ.
    pieces : int
        Number of pieces.
    seed : int
        Seed of the directions and of the network.
    learned : bool
        True to learn the speed of the prior's clock, as a point estimate with a log-normal prior.
    """

    def __init__(
        self,
        size: int,
        kind: str,
        *,
        rank: int,
        width: float,
        pieces: int,
        seed: int,
        dtype: torch.dtype,
        learned: bool = False,
    ) -> None:
        super().__init__()
        self.kind = checks.choice("drift", kind, DRIFTS)
        self.size = size
        self.rank = min(rank, size)
        self.width = width
        self.shift = nn.ParameterList()
        self.log_rate = nn.ParameterList()
        noise = as_generator(fold_in(seed, "drift"))
        self.basis: nn.Parameter | None = None
        if self.rotated:
            self.basis = nn.Parameter(
                torch.randn(1, size, self.rank, generator=noise, dtype=dtype, device=noise.device)
            )
        self.network = _Network(size, rank, noise, dtype) if kind in ("network", "both") else None
        self.log_speed = nn.Parameter(torch.zeros(1, 1, dtype=dtype)) if learned else None
        self._dtype = dtype
        self.extend(pieces)

    @property
    def rotated(self) -> bool:
        """True if feedback acts in a few directions."""
        return self.kind in ("lowrank", "both")

    @property
    def pieces(self) -> int:
        """Number of pieces of depth."""
        return len(self.shift)

    def extend(self, pieces: int) -> int:
        """Extend to at least `pieces` pieces by zeros, where the posterior is the prior; return the number added."""
        created = max(0, pieces - self.pieces)
        like = self.shift[0] if self.pieces else torch.zeros(1, self.size, dtype=self._dtype, device="cpu")
        for _ in range(created):
            self.shift.append(nn.Parameter(torch.zeros_like(like)))
            if self.kind == "diagonal" or self.rotated:
                self.log_rate.append(nn.Parameter(torch.zeros_like(like[:, : self.rank] if self.rotated else like)))
        return created

    def shorten(self, pieces: int) -> None:
        """Delete the pieces beyond the first `pieces`."""
        self.shift = nn.ParameterList(list(self.shift)[:pieces])
        self.log_rate = nn.ParameterList(list(self.log_rate)[:pieces])

    def speed(self, prior: Process) -> Tensor | None:
        """Return the speed of the prior's clock (F, 1, 1), or None if it is fixed at 1.

        The speed is limited such that the rate, or half the variance gained per unit of depth, is at most 1. Beyond
        this limit weights are nearly white noise, and only the prior of the speed would have a gradient.
        """
        if self.log_speed is None:
            return None
        most = -math.log(prior.pace) if prior.pace else math.inf
        return (_CLOCK * self.log_speed).clamp(max=most).exp()[:, None]

    def charge(self) -> Tensor | None:
        """Return the negative log prior of the speed, summed over networks, in nats and up to a constant."""
        return None if self.log_speed is None else 0.5 * (_CLOCK / _SPREAD * self.log_speed).square().sum()

    def directions(self) -> Tensor | None:
        """Return U (F, M, m) with UᵀU = I, or None."""
        return None if self.basis is None else torch.linalg.qr(self.basis)[0]

    def law(
        self,
        prior: Process,
        grid: Grid,
        reference: Tensor,
        *,
        kind: str,
        stopped: bool = False,
        span: Span = EVERYWHERE,
    ) -> "PathLaw":
        """Return the law of paths on a grid.

        Parameters
        ----------
        prior : Process
            Prior process of a weight in units of its prior standard deviation.
        grid : Grid
            Times of n steps.
        reference : Tensor, shape (F, M)
            Reference r of the feedback.
        kind : {"exact", "euler"}
            Type of transitions.
        stopped : bool
            Stop the gradient in all parameters of the posterior, but not in the weights to which it is applied.
        span : Span
            Interval of depth in which the weights vary.
        """
        with torch.autocast(reference.device.type, enabled=False):  # divergences need full precision
            return self._law(prior, grid, reference, kind, stopped, span)

    def _law(self, prior: Process, grid: Grid, reference: Tensor, kind: str, stopped: bool, span: Span) -> "PathLaw":
        def stop(p: Tensor) -> Tensor:
            return p.detach() if stopped else p

        distinct, which = _group_steps(grid, self.width, self.pieces, span)
        table = reference.new_tensor(distinct)  # (k, pieces + 1)
        shares = table[:, :-1]  # (k, pieces)
        dt = table[:, -1, None, None, None]  # (k, 1, 1, 1)
        speed = self.speed(prior)  # never stopped, since the density of the prior depends on it as well
        unit = prior.diffusion * (reference.new_ones(1, 1, 1) if speed is None else stop(speed).sqrt())  # (F, 1, 1)
        shift = torch.einsum("nk,kfm->nfm", shares, torch.stack([stop(p) for p in self.shift]))[:, :, None] * unit
        plain = transition(prior, torch.zeros_like(dt), dt, kind=kind, speed=speed)
        U = self.directions()
        pull = fed = None
        if len(self.log_rate):
            feedback = torch.expm1((_SPEED * torch.stack([stop(p) for p in self.log_rate])).clamp(max=_MOST))
            least = -_LEAST * prior.rate * (feedback.new_ones(()) if speed is None else speed[:, 0])
            feedback = torch.maximum(feedback, least)  # (pieces, F, M or m)
            feedback = torch.einsum("nk,kfm->nfm", shares, feedback)[:, :, None]  # (k, F, 1, M or m)
            fed = transition(prior, feedback, dt, kind=kind, speed=speed)
            U = None if U is None else stop(U)
            r = stop(reference)[:, None]  # (F, 1, M)
            pull = feedback * (r if U is None else r @ U)
        network = None if self.network is None else self.network.bind(unit, stopped=stopped)
        steps = _unstack_steps(plain, fed, shift, pull)
        return PathLaw(grid, {i: steps[k] for i, k in which.items()}, U, network, self.size)


@lru_cache(maxsize=32)
def _group_steps(
    grid: Grid, width: float, pieces: int, span: Span
) -> tuple[tuple[tuple[float, ...], ...], Mapping[int, int]]:
    """Return the distinct steps, each a share of every piece and a length, and the index among them of each step.

    Only the part of a step inside `span` counts, and steps outside have no index. Most steps are equal up to rounding
    and share all computations of a law.
    """
    distinct: dict[tuple[float, ...], tuple[float, ...]] = {}
    names = {}
    for i, part in clip(grid, span).items():
        values = (*overlap(part, width, pieces)[0], part[1] - part[0])
        names[i] = tuple(float(f"{value:.9e}") for value in values)
        distinct.setdefault(names[i], values)
    number = {name: k for k, name in enumerate(distinct)}
    return tuple(distinct.values()), {i: number[name] for i, name in names.items()}


@dataclass(frozen=True)
class Step:
    """Transition of the weights over one step.

    Attributes
    ----------
    plain : Transition
        Transition of the prior, (1, 1, 1).
    fed : Transition or None
        Transition with feedback, (F, 1, M or m).
    shift : Tensor, shape (F, 1, M)
        σ a.
    pull : Tensor or None
        κ r, in the directions of `feedback`.
    widths : Tensor or None
        Divergence due to the variances, (F, 1).
    """

    plain: Transition
    feedback: Transition | None
    shift: Tensor
    pull: Tensor | None
    widths: Tensor | None


def _unstack_steps(plain: Transition, fed: Transition | None, shift: Tensor, pull: Tensor | None) -> list[Step]:
    """Unstack steps at once: indexing at each use would accumulate a gradient of the whole stack every time."""
    if fed is None or pull is None:
        return [Step(prior, None, a, None, None) for prior, a in zip(plain.unbind(), shift.unbind(), strict=True)]
    widths = 0.5 * excess(fed.ratio).sum(-1)
    parts = zip(plain.unbind(), fed.unbind(), shift.unbind(), pull.unbind(), widths.unbind(), strict=True)
    return [Step(*part) for part in parts]


@dataclass(frozen=True)
class PathLaw:
    """Law of paths of weights on a grid of n steps, given their initial values.

    Attributes
    ----------
    grid : Grid
        Times of the steps.
    steps : mapping of int to Step
        Steps in which the weights vary, by their number; equal steps are the same object.
    directions : Tensor or None
        U, (F, M, m).
    network : callable or None
        σ g(t, w).
    size : int
        Number of weights M.
    """

    grid: Grid
    steps: Mapping[int, Step]
    directions: Tensor | None
    network: Callable[[float, Tensor], Tensor] | None
    size: int

    def varies(self, i: int) -> bool:
        """Return True if the weights vary in step i."""
        return i in self.steps

    def change(self, i: int, w: Tensor) -> Tensor:
        """Return m_q − m_p, the difference of the posterior and prior means after step i from w (F, S, M)."""
        step = self.steps[i]
        b = step.shift if self.network is None else step.shift + self.network(self.grid[i], w)
        gain = step.plain.gain
        fed, pull, U = step.feedback, step.pull, self.directions
        if fed is None or pull is None:
            return (gain * b).expand_as(w)
        if U is None:
            return torch.addcmul(fed.gain * (b + pull), fed.turn, w)  # a single pass over the weights in memory
        along = b @ U
        return gain * b + (fed.turn * (w @ U) + fed.gain * (along + pull) - gain * along) @ U.mT

    def spread(self, i: int, eps: Tensor) -> Tensor:
        """Scale standard normal noise (F, S, M) to the noise of step i under q."""
        plain, fed, U = self.steps[i].plain, self.steps[i].feedback, self.directions
        if fed is None or U is None:
            return (plain if fed is None else fed).noise * eps
        return plain.noise * eps + ((fed.noise - plain.noise) * (eps @ U)) @ U.mT

    def whiten(self, i: int, eta: Tensor) -> Tensor:
        """Return standard normal noise, given the noise of step i; the inverse of :meth:`spread`."""
        plain, fed, U = self.steps[i].plain, self.steps[i].feedback, self.directions
        if fed is None or U is None:
            return eta / (plain if fed is None else fed).noise
        return eta / plain.noise + ((1.0 / fed.noise - 1.0 / plain.noise) * (eta @ U)) @ U.mT

    def step(self, i: int, w: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights after step i and m_q − m_p."""
        change = self.change(i, w)
        return torch.addcmul(change, self.steps[i].plain.prior_decay, w) + self.spread(i, eps), change

    def closed(self, i: int, change: Tensor) -> Tensor:
        """Return the divergence of step i given the weights before it, in nats, (F, S)."""
        step = self.steps[i]
        moved = 0.5 * change.square().sum(-1) / step.plain.prior_noise[..., 0].square()
        return moved if step.widths is None else moved + step.widths

    def full(self, i: int, w: Tensor, after: Tensor, stopped: "PathLaw | None" = None) -> Tensor:
        """Return log q − log p of a step from w to `after`, (F, S).

        Parameters
        ----------
        i : int
            Number of the step.
        w, after : Tensor, shape (F, S, M)
            Weights before and after it.
        stopped : PathLaw, optional
            Law whose density is used for q: this law with stopped gradient of its parameters ("sticking the landing").
        """
        q = stopped or self
        plain = self.steps[i].plain
        fed = q.steps[i].feedback
        increment = after - plain.prior_decay * w
        eps = q.whiten(i, increment - q.change(i, w))
        prior_square = (increment / plain.prior_noise).square().sum(-1)
        log_ratio = 0.0 if fed is None else fed.ratio.log().sum(-1)
        return 0.5 * (prior_square - eps.square().sum(-1) - log_ratio)


class _Network(nn.Module):
    """Network g: M → m → m → M, with layers gated by depth; its initial output is 0."""

    def __init__(self, size: int, hidden: int, noise: torch.Generator, dtype: torch.dtype) -> None:
        super().__init__()
        sizes = (size, hidden, hidden, size)
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        self.gates = nn.ParameterList()
        for a, b in pairwise(sizes):
            last = len(self.weights) == 2
            start = torch.randn(1, a, b, generator=noise, dtype=dtype, device=noise.device) / math.sqrt(a)
            self.weights.append(nn.Parameter(torch.zeros_like(start) if last else start))
            self.biases.append(nn.Parameter(torch.zeros(1, 1, b, dtype=dtype)))
            self.gates.append(nn.Parameter(torch.zeros(1, 3, b, dtype=dtype)))

    def bind(self, unit: Tensor, *, stopped: bool) -> "_BoundNetwork":
        """Return the function σ g with the present parameters, with stopped gradient if `stopped`."""
        layers = [
            [p.detach() if stopped else p for p in layer]
            for layer in zip(self.weights, self.biases, self.gates, strict=True)
        ]
        return _BoundNetwork(layers, unit)


@dataclass(frozen=True)
class _BoundNetwork:
    """Function σ g of depth and weights."""

    layers: list[list[Tensor]]
    unit: Tensor

    def __call__(self, t: float, w: Tensor) -> Tensor:
        """Evaluate σ g at depth t; the layer of g is (w W + b) ⊙ sigmoid(a t + c) + d t, with SiLU between."""
        for k, (weight, bias, gate) in enumerate(self.layers):
            a, c, d = (row[:, None] for row in gate.unbind(1))
            factor = torch.sigmoid(a * t + c)
            w = torch.addcmul(bias * factor + d * t, torch.bmm(F.silu(w) if k else w, weight), factor)
        return self.unit * w
