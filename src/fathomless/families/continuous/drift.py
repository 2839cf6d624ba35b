r"""The posterior process: what is added to the prior's drift, and its law on a grid.

Weights are in units of their prior standard deviation, :math:`\tilde w = w / s`, so that the prior of those that move
is isotropic and has one rate θ. The posterior is

.. math:: d\tilde w = [-\theta \tilde w + a(t) - U \kappa(t) U^\top (\tilde w - r) + g(t, \tilde w)]\, dt
          + \tilde\sigma\, dB

with a shift a, feedback κ towards the reference r, the mean of the initial weights (so that weights can be held still
without a shift), in the directions U, and a network g. ``diagonal`` is U = I. With all of them 0, as at the start, it
is the prior. a and κ are constant on pieces of depth; a step that lies in several takes their average over time.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fathomless.families.continuous.grids import Grid, overlap
from fathomless.families.continuous.processes import Prior, Transition, excess, transition
from fathomless.system import checks
from fathomless.system.rng import as_generator, fold_in

__all__ = ["DRIFTS", "PathLaw", "PosteriorDrift"]

DRIFTS = ("shift", "diagonal", "lowrank", "network", "both")  #: "both" is a network on top of low rank
_SPEED = 5.0  # of the logarithm of a rate, relative to other parameters
_LEAST = math.log(0.1)  # of a rate relative to the prior's: κ > −0.9 θ
_MOST = math.log(1e6)
_UNIT = 1.0  # rate that takes the place of the prior's where that is 0


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
    """

    def __init__(
        self, size: int, kind: str, *, rank: int, width: float, pieces: int, seed: int, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.kind = checks.choice("drift", kind, DRIFTS)
        self.size, self.rank, self.width = size, min(rank, size), width
        self.shift, self.log_rate = nn.ParameterList(), nn.ParameterList()
        noise = as_generator(fold_in(seed, "drift"))
        self.basis: nn.Parameter | None = None
        if self.rotated:
            self.basis = nn.Parameter(torch.randn(1, size, self.rank, generator=noise, dtype=dtype))
        self.network = _Network(size, self.rank, noise, dtype) if kind in ("network", "both") else None
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
        like = self.shift[0] if self.pieces else torch.zeros(1, self.size, dtype=self._dtype)
        for _ in range(created):
            self.shift.append(nn.Parameter(torch.zeros_like(like)))
            if self.kind == "diagonal" or self.rotated:
                self.log_rate.append(nn.Parameter(torch.zeros_like(like[:, : self.rank] if self.rotated else like)))
        return created

    def shorten(self, pieces: int) -> None:
        """Drop the pieces beyond so many."""
        self.shift = nn.ParameterList(list(self.shift)[:pieces])
        self.log_rate = nn.ParameterList(list(self.log_rate)[:pieces])

    def directions(self) -> Tensor | None:
        """Return U (F, M, m) with UᵀU = I, or None."""
        return None if self.basis is None else torch.linalg.qr(self.basis)[0]

    def law(self, prior: Prior, grid: Grid, reference: Tensor, *, kind: str, stopped: bool = False) -> "PathLaw":
        """Return the law of paths on a grid.

        Parameters
        ----------
        prior : Prior
            Of a weight in units of its prior standard deviation.
        grid : Grid
            Of n steps.
        reference : Tensor, shape (F, M)
            r.
        kind : {"exact", "euler"}
            Of transitions.
        stopped : bool
            Stop the gradient in all parameters; not in the weights that it is applied to.
        """

        def own(p: Tensor) -> Tensor:
            return p.detach() if stopped else p

        shares = reference.new_tensor(overlap(grid, self.width, self.pieces))  # (n, pieces)
        shift = torch.einsum("nk,kfm->nfm", shares, torch.stack([own(p) for p in self.shift]))[:, :, None]
        dt = reference.new_tensor([b - a for a, b in pairwise(grid)])[:, None, None, None]  # (n, 1, 1, 1)
        plain = transition(prior, torch.zeros_like(dt), dt, kind=kind)
        U, pull, fed = self.directions(), None, None
        if len(self.log_rate):
            log_rate = _SPEED * torch.stack([own(p) for p in self.log_rate])
            log_rate = log_rate.clamp(_LEAST if prior.rate else 0.0, _MOST)
            feedback = (prior.rate or _UNIT) * torch.expm1(log_rate)  # (pieces, F, M or m)
            feedback = torch.einsum("nk,kfm->nfm", shares, feedback)[:, :, None]  # (n, F, 1, M or m)
            fed = transition(prior, feedback, dt, kind=kind)
            U = None if U is None else own(U)
            r = own(reference)[:, None]  # (F, 1, M)
            pull = feedback * (r if U is None else r @ U)
        network = None if self.network is None else self.network.frozen(stopped=stopped)
        return PathLaw(grid, plain, fed, U, shift, pull, network, self.size)


@dataclass(frozen=True)
class PathLaw:
    """The law of paths of weights on a grid of n steps, given their start.

    Attributes
    ----------
    grid : Grid
        Times.
    plain : Transition
        Of the prior, (n, 1, 1, 1).
    fed : Transition or None
        Where feedback acts, (n, F, 1, M or m).
    directions : Tensor or None
        U, (F, M, m).
    shift : Tensor, shape (n, F, 1, M)
        a.
    pull : Tensor or None
        κ r, in the directions of `fed`.
    network : callable or None
        g(t, w).
    size : int
        M.
    """

    grid: Grid
    plain: Transition
    fed: Transition | None
    directions: Tensor | None
    shift: Tensor
    pull: Tensor | None
    network: "_Frozen | None"
    size: int

    def change(self, i: int, w: Tensor) -> Tensor:
        """Return m_q − m_p of step i from w (F, S, M): how far the posterior mean is from the prior's, after it."""
        b = self.shift[i]
        if self.network is not None:
            b = b + self.network(self.grid[i], w)
        if self.fed is None or self.pull is None:
            return self.plain.gain[i] * b
        fed, pull = self.fed, self.pull[i]
        if self.directions is None:
            return fed.turn[i] * w + fed.gain[i] * (b + pull)
        U = self.directions
        along = b @ U
        turned = fed.turn[i] * (w @ U) + fed.gain[i] * (along + pull) - self.plain.gain[i] * along
        return self.plain.gain[i] * b + turned @ U.mT

    def spread(self, i: int, eps: Tensor) -> Tensor:
        """Turn standard normal noise (F, S, M) into that of step i under q."""
        if self.fed is None:
            return self.plain.noise[i] * eps
        if self.directions is None:
            return self.fed.noise[i] * eps
        U = self.directions
        return self.plain.noise[i] * eps + ((self.fed.noise[i] - self.plain.noise[i]) * (eps @ U)) @ U.mT

    def whiten(self, i: int, eta: Tensor) -> Tensor:
        """Undo :meth:`spread`."""
        if self.fed is None:
            return eta / self.plain.noise[i]
        if self.directions is None:
            return eta / self.fed.noise[i]
        U = self.directions
        return eta / self.plain.noise[i] + ((1.0 / self.fed.noise[i] - 1.0 / self.plain.noise[i]) * (eta @ U)) @ U.mT

    def step(self, i: int, w: Tensor, eps: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weights after step i and m_q − m_p."""
        change = self.change(i, w)
        return self.plain.prior_decay[i] * w + change + self.spread(i, eps), change

    def closed(self, i: int, change: Tensor) -> Tensor:
        """Divergence of step i given the weights before it, in nats, (F, S)."""
        moved = (change / self.plain.prior_noise[i]).square().sum(-1)
        widths = 0.0 if self.fed is None else excess(self.fed.ratio[i]).sum(-1)
        return 0.5 * (moved + widths)

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
        gone = after - self.plain.prior_decay[i] * w
        eps = q.whiten(i, gone - q.change(i, w))
        far = (gone / self.plain.prior_noise[i]).square().sum(-1)
        log_ratio = 0.0 if q.fed is None else q.fed.ratio[i].log().sum(-1)
        return 0.5 * (far - eps.square().sum(-1) - log_ratio)


class _Network(nn.Module):
    """g: M → m → m → M, each layer gated by depth; 0 at the start."""

    def __init__(self, size: int, hidden: int, noise: torch.Generator, dtype: torch.dtype) -> None:
        super().__init__()
        sizes = (size, hidden, hidden, size)
        self.weights, self.biases, self.gates = nn.ParameterList(), nn.ParameterList(), nn.ParameterList()
        for a, b in pairwise(sizes):
            last = len(self.weights) == 2
            start = torch.randn(1, a, b, generator=noise, dtype=dtype) / math.sqrt(a)
            self.weights.append(nn.Parameter(torch.zeros_like(start) if last else start))
            self.biases.append(nn.Parameter(torch.zeros(1, 1, b, dtype=dtype)))
            self.gates.append(nn.Parameter(torch.zeros(1, 3, b, dtype=dtype)))

    def frozen(self, *, stopped: bool) -> "_Frozen":
        own = [
            [p.detach() if stopped else p for p in layer]
            for layer in zip(self.weights, self.biases, self.gates, strict=True)
        ]
        return _Frozen(own)


@dataclass(frozen=True)
class _Frozen:
    layers: list[list[Tensor]]

    def __call__(self, t: float, w: Tensor) -> Tensor:
        """Evaluate at depth t; the layer (w W + b) ⊙ sigmoid(a t + c) + d t, with SiLU between."""
        for k, (weight, bias, gate) in enumerate(self.layers):
            a, c, d = gate.unbind(1)
            w = F.silu(w) if k else w
            w = torch.baddbmm(bias, w, weight) * torch.sigmoid(a * t + c)[:, None] + (d * t)[:, None]
        return w
