r"""The posterior process: what is added to the prior's drift, and its law on a grid.

Weights are in units of their prior standard deviation, :math:`\tilde w = w / s`, so that the prior of those that move
is isotropic and has one rate θ. The posterior is

.. math:: d\tilde w = [-\theta \tilde w - U \kappa(t) U^\top (\tilde w - r)
          + \tilde\sigma\, \{a(t) + g(t, \tilde w)\}]\, dt + \tilde\sigma\, dB

with a shift a, feedback κ towards the reference r, the mean of the initial weights (so that weights can be held still
without a shift), in the directions U, and a network g. ``diagonal`` is U = I. With all of them 0, as at the start, it
is the prior. a and g are in units of σ: a shift costs ½ ∫ a² dt at every rate, so that what an optimizer's steps add to
it by chance costs little at a slow one. The speed of the prior's clock, which multiplies θ and σ², may be learned: the
more weights may differ between depths, the more doubt they have. a and κ are constant on pieces of depth; a step that
lies in several takes their average over time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fathomless.families.continuous.grids import Grid, overlap
from fathomless.families.continuous.processes import Process, Transition, excess, transition
from fathomless.system import checks
from fathomless.system.rng import as_generator, fold_in

__all__ = ["DRIFTS", "PathLaw", "PosteriorDrift"]

DRIFTS = ("shift", "diagonal", "lowrank", "network", "both")  #: "both" is a network on top of low rank
_CLOCK = 10.0  # of the logarithm of the speed: faster, it leaves for rates near 0 before the weights are learned
_SPEED = 5.0  # of the logarithm of a rate, relative to other parameters
_LEAST = 0.9  # κ > −0.9 θ
_MOST = math.log(1e6)  # of log(1 + κ)
_SPREAD = 2.0  # prior standard deviation of the logarithm of the speed


class PosteriorDrift(nn.Module):
    """What the data add to the drift of M weights, for F networks side by side.

    Parameters
    ----------
    size : int
        M.
    kind : {"shift", "diagonal", "lowrank", "network", "both"}
        Feedback that there is beside the shift.
    rank : int
        Directions of "lowrank", and units of the hidden layers of "network".
    width : float
        Depth that a piece of a and κ covers.
    pieces : int
        How many.
    seed : int
        Of the directions and of the network.
    learned : bool
        Whether the speed of the prior's clock is learned, by a point estimate with a log-normal prior.
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
        self.size, self.rank, self.width = size, min(rank, size), width
        self.shift, self.log_rate = nn.ParameterList(), nn.ParameterList()
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
        """Whether feedback acts in a few directions."""
        return self.kind in ("lowrank", "both")

    @property
    def pieces(self) -> int:
        """Pieces of depth that there are."""
        return len(self.shift)

    def extend(self, pieces: int) -> int:
        """Have at least so many pieces; new ones are 0, so that the posterior is the prior there. Return how many."""
        created = max(0, pieces - self.pieces)
        like = self.shift[0] if self.pieces else torch.zeros(1, self.size, dtype=self._dtype, device="cpu")
        for _ in range(created):
            self.shift.append(nn.Parameter(torch.zeros_like(like)))
            if self.kind == "diagonal" or self.rotated:
                self.log_rate.append(nn.Parameter(torch.zeros_like(like[:, : self.rank] if self.rotated else like)))
        return created

    def shorten(self, pieces: int) -> None:
        """Drop the pieces beyond so many."""
        self.shift = nn.ParameterList(list(self.shift)[:pieces])
        self.log_rate = nn.ParameterList(list(self.log_rate)[:pieces])

    def speed(self, prior: Process) -> Tensor | None:
        """Return the speed of the prior's clock (F, 1, 1), or None if it is 1 by choice.

        It makes no rate, and no half of a variance per unit of depth, greater than 1: beyond, weights are white noise,
        and no gradient would lead back but that of the speed's own prior.
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

    def law(self, prior: Process, grid: Grid, reference: Tensor, *, kind: str, stopped: bool = False) -> "PathLaw":
        """Return the law of paths on a grid.

        Parameters
        ----------
        prior : Process
            Of a weight in units of its prior standard deviation.
        grid : Grid
            Of n steps.
        reference : Tensor, shape (F, M)
            r.
        kind : {"exact", "euler"}
            Of transitions.
        stopped : bool
            Stop the gradient in all parameters of the posterior; not in the weights that it is applied to.
        """
        with torch.autocast(reference.device.type, enabled=False):  # a divergence is never in a narrower type
            return self._law(prior, grid, reference, kind, stopped)

    def _law(self, prior: Process, grid: Grid, reference: Tensor, kind: str, stopped: bool) -> "PathLaw":
        def own(p: Tensor) -> Tensor:
            return p.detach() if stopped else p

        kinds, which = _kinds(grid, self.width, self.pieces)
        table = reference.new_tensor(kinds)  # (k, pieces + 1)
        shares, dt = table[:, :-1], table[:, -1, None, None, None]  # (k, pieces), (k, 1, 1, 1)
        speed = self.speed(prior)  # never stopped: it is one of the prior too, whose density has to know
        unit = prior.diffusion * (reference.new_ones(1, 1, 1) if speed is None else own(speed).sqrt())  # (F, 1, 1)
        shift = torch.einsum("nk,kfm->nfm", shares, torch.stack([own(p) for p in self.shift]))[:, :, None] * unit
        plain = transition(prior, torch.zeros_like(dt), dt, kind=kind, speed=speed)
        U, pull, fed = self.directions(), None, None
        if len(self.log_rate):
            feedback = torch.expm1((_SPEED * torch.stack([own(p) for p in self.log_rate])).clamp(max=_MOST))
            least = -_LEAST * prior.rate * (feedback.new_ones(()) if speed is None else speed[:, 0])
            feedback = torch.maximum(feedback, least)  # (pieces, F, M or m)
            feedback = torch.einsum("nk,kfm->nfm", shares, feedback)[:, :, None]  # (k, F, 1, M or m)
            fed = transition(prior, feedback, dt, kind=kind, speed=speed)
            U = None if U is None else own(U)
            r = own(reference)[:, None]  # (F, 1, M)
            pull = feedback * (r if U is None else r @ U)
        network = None if self.network is None else self.network.frozen(unit, stopped=stopped)
        alike = _steps(plain, fed, shift, pull)
        return PathLaw(grid, tuple(alike[k] for k in which), U, network, self.size)


@lru_cache(maxsize=32)
def _kinds(grid: Grid, width: float, pieces: int) -> tuple[tuple[tuple[float, ...], ...], tuple[int, ...]]:
    """Return the different kinds of steps, each a share of every piece and a length, and which of them each step is.

    Most steps are alike to rounding, and then share whatever is computed of a law.
    """
    kinds: dict[tuple[float, ...], tuple[float, ...]] = {}
    names = []
    for shares, (a, b) in zip(overlap(grid, width, pieces), pairwise(grid), strict=True):
        names.append(tuple(float(f"{value:.9e}") for value in (*shares, b - a)))
        kinds.setdefault(names[-1], (*shares, b - a))
    number = {name: k for k, name in enumerate(kinds)}
    return tuple(kinds.values()), tuple(number[name] for name in names)


@dataclass(frozen=True)
class Step:
    """What is added to the weights over one step.

    Attributes
    ----------
    plain : Transition
        Of the prior, (1, 1, 1).
    fed : Transition or None
        Where feedback acts, (F, 1, M or m).
    shift : Tensor, shape (F, 1, M)
        σ a.
    pull : Tensor or None
        κ r, in the directions of `fed`.
    widths : Tensor or None
        Divergence due to variances, (F, 1).
    """

    plain: Transition
    fed: Transition | None
    shift: Tensor
    pull: Tensor | None
    widths: Tensor | None


def _steps(plain: Transition, fed: Transition | None, shift: Tensor, pull: Tensor | None) -> list[Step]:
    """Take apart what is stacked: a slice at every use would cost a gradient of all of them each time."""
    if fed is None or pull is None:
        return [Step(one, None, a, None, None) for one, a in zip(plain.unbind(), shift.unbind(), strict=True)]
    widths = 0.5 * excess(fed.ratio).sum(-1)
    parts = zip(plain.unbind(), fed.unbind(), shift.unbind(), pull.unbind(), widths.unbind(), strict=True)
    return [Step(*part) for part in parts]


@dataclass(frozen=True)
class PathLaw:
    """The law of paths of weights on a grid of n steps, given their start.

    Attributes
    ----------
    grid : Grid
        Times.
    steps : tuple of Step
        One for each; those that are alike are the same object.
    directions : Tensor or None
        U, (F, M, m).
    network : callable or None
        σ g(t, w).
    size : int
        M.
    """

    grid: Grid
    steps: tuple[Step, ...]
    directions: Tensor | None
    network: Callable[[float, Tensor], Tensor] | None
    size: int

    def change(self, i: int, w: Tensor) -> Tensor:
        """Return m_q − m_p of step i from w (F, S, M): how far the posterior mean is from the prior's, after it."""
        step = self.steps[i]
        b = step.shift if self.network is None else step.shift + self.network(self.grid[i], w)
        gain, fed, pull, U = step.plain.gain, step.fed, step.pull, self.directions
        if fed is None or pull is None:
            return (gain * b).expand_as(w)
        if U is None:
            return torch.addcmul(fed.gain * (b + pull), fed.turn, w)  # one pass over the weights
        along = b @ U
        return gain * b + (fed.turn * (w @ U) + fed.gain * (along + pull) - gain * along) @ U.mT

    def spread(self, i: int, eps: Tensor) -> Tensor:
        """Turn standard normal noise (F, S, M) into that of step i under q."""
        plain, fed, U = self.steps[i].plain, self.steps[i].fed, self.directions
        if fed is None or U is None:
            return (plain if fed is None else fed).noise * eps
        return plain.noise * eps + ((fed.noise - plain.noise) * (eps @ U)) @ U.mT

    def whiten(self, i: int, eta: Tensor) -> Tensor:
        """Undo :meth:`spread`."""
        plain, fed, U = self.steps[i].plain, self.steps[i].fed, self.directions
        if fed is None or U is None:
            return eta / (plain if fed is None else fed).noise
        return eta / plain.noise + ((1.0 / fed.noise - 1.0 / plain.noise) * (eta @ U)) @ U.mT

    def step(self, i: int, w: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights after step i and m_q − m_p."""
        change = self.change(i, w)
        return torch.addcmul(change, self.steps[i].plain.prior_decay, w) + self.spread(i, eps), change

    def closed(self, i: int, change: Tensor) -> Tensor:
        """Divergence of step i given the weights before it, in nats, (F, S)."""
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
            Whose density is taken for q: this law with the gradient stopped in its parameters ("sticking the landing").
        """
        q = stopped or self
        plain, fed = self.steps[i].plain, q.steps[i].fed
        gone = after - plain.prior_decay * w
        eps = q.whiten(i, gone - q.change(i, w))
        far = (gone / plain.prior_noise).square().sum(-1)
        log_ratio = 0.0 if fed is None else fed.ratio.log().sum(-1)
        return 0.5 * (far - eps.square().sum(-1) - log_ratio)


class _Network(nn.Module):
    """g: M → m → m → M, each layer gated by depth; 0 at the start."""

    def __init__(self, size: int, hidden: int, noise: torch.Generator, dtype: torch.dtype) -> None:
        super().__init__()
        sizes = (size, hidden, hidden, size)
        self.weights, self.biases, self.gates = nn.ParameterList(), nn.ParameterList(), nn.ParameterList()
        for a, b in pairwise(sizes):
            last = len(self.weights) == 2
            start = torch.randn(1, a, b, generator=noise, dtype=dtype, device=noise.device) / math.sqrt(a)
            self.weights.append(nn.Parameter(torch.zeros_like(start) if last else start))
            self.biases.append(nn.Parameter(torch.zeros(1, 1, b, dtype=dtype)))
            self.gates.append(nn.Parameter(torch.zeros(1, 3, b, dtype=dtype)))

    def frozen(self, unit: Tensor, *, stopped: bool) -> "_Frozen":
        own = [
            [p.detach() if stopped else p for p in layer]
            for layer in zip(self.weights, self.biases, self.gates, strict=True)
        ]
        return _Frozen(own, unit)


@dataclass(frozen=True)
class _Frozen:
    layers: list[list[Tensor]]
    unit: Tensor

    def __call__(self, t: float, w: Tensor) -> Tensor:
        """Evaluate σ g at depth t; the layer of g is (w W + b) ⊙ sigmoid(a t + c) + d t, with SiLU between."""
        for k, (weight, bias, gate) in enumerate(self.layers):
            a, c, d = (row[:, None] for row in gate.unbind(1))
            factor = torch.sigmoid(a * t + c)
            w = torch.addcmul(bias * factor + d * t, torch.bmm(F.silu(w) if k else w, weight), factor)
        return self.unit * w
