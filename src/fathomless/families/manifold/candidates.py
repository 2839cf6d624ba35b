r"""Stage 1: candidate networks, trained at once, from which a weight manifold is learned.

R networks minimise the sum over r of independent objectives in their weights w and noise precisions :math:`\tau_t`,

.. math:: J_r = -\frac{N}{\sum_n k_{rn}} \sum_n k_{rn} \log p(y_n \mid f_w(x_n), \tau)
          + \tfrac12 \sum_p \frac{(w_p - a_{rp})^2}{v_p} - \sum_t (a_0 \log \tau_t - b_0 \tau_t),

with :math:`k_{rn}` the weight of row n, 0 in the fold that network r does not see, and a Gamma(1, 0.01) prior on the
precision, a density of its logarithm, which keeps the optimum finite. Anchors :math:`a_{rp}` are 0, or drawn from the
prior N(0, v): then candidates keep its spread where there are no data (randomised maximum a posteriori).

Each network's rows out of its folds tell two things that its training rows cannot: whether it is a bad local optimum,
and how large the noise is.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.families.manifold.network import Flat
from fathomless.families.manifold.stages import Stage
from fathomless.inference.out_of_fold.crossfit import OutOfFold
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system.draws import integers
from fathomless.system.errors import DivergenceError

__all__ = ["BATCH", "WHOLE", "CandidateStage", "kept_from", "out_of_fold", "squared_errors", "worth_keeping"]

BATCH = 256  #: rows of each network in a step, where there are more than `WHOLE`
WHOLE = 1000  #: rows that are all in every step
_SHAPE, _RATE = 1.0, 0.01  # a0 and b0
_NATS, _NATS_PER_ROW = 5.0, 0.02  # below the best log joint
_WORSE = 1.5  # times the median squared error
_CHUNK = 4096  # rows evaluated at once


def kept_from(folds: Tensor, candidates: int) -> Tensor:
    """Return which network does not see which row, bool of shape (R, N).

    Parameters
    ----------
    folds : Tensor of int64, shape (Q, N)
        The fold 0 … K − 1 of each row in Q partitions; −1 for rows that all networks see.
    candidates : int
        R. Network r is kept from fold r mod K of partition r // K mod Q.
    """
    number = torch.arange(candidates, device=folds.device)
    count = int(folds.max()) + 1
    return folds[number // count % len(folds)] == (number % count)[:, None]


@dataclass(frozen=True)
class _Law:
    """p(y | f, noise) of every network's own noise: log scales as more outputs, if there are any."""

    likelihood: Likelihood

    def log_prob(self, f: Tensor, log_scale: Tensor | None, y: Tensor) -> Tensor:
        """Return log densities (R, B) of rows y (B, …), or of each network's own (R, B, …)."""
        if log_scale is not None:
            f = torch.cat([f, log_scale[:, None].expand(*f.shape[:2], -1)], -1)
        if y.ndim == 1 or (y.ndim == 2 and y.is_floating_point()):
            return self.likelihood.log_prob(f, y)
        return self.likelihood.log_prob(f.flatten(0, 1)[None], y.flatten(0, 1)).view(f.shape[:2])


class CandidateStage(Stage):
    """Train networks side by side; one that fails does not touch the others.

    Parameters
    ----------
    network : FlatNetwork or FlatModule
        What they are.
    likelihood : Likelihood
        p(y | f). Where `log_noise` is given, f has the outputs of the network and the log scales.
    rows : Rows
        The table.
    unseen : bool Tensor, shape (R, N)
        Which network is kept from which row.
    start, anchor : Tensor, shape (R, P)
        Initial weights, and a.
    prior_scale : Tensor, shape (P,)
        Square roots of v.
    log_noise : Tensor, shape (R, T), optional
        Initial log scales of the noise.
    steps, rate
        As of :class:`~fathomless.families.manifold.stages.Stage`.
    """

    def __init__(
        self,
        network: Flat,
        likelihood: Likelihood,
        rows: Rows,
        unseen: Tensor,
        start: Tensor,
        anchor: Tensor,
        prior_scale: Tensor,
        log_noise: Tensor | None = None,
        *,
        steps: int = 1200,
        rate: float = 1e-2,
    ) -> None:
        super().__init__(steps)
        self.network, self.law, self.rows, self.rate = network, _Law(likelihood), rows, rate
        self.anchor, self.prior_scale = anchor, prior_scale
        each = torch.ones_like(rows.x[:, 0]) if rows.weight is None else rows.weight
        seen = ~unseen * each  # (R, N)
        self.counts = seen * (rows.count / seen.sum(1, keepdim=True))
        self.weights = start.clone().requires_grad_()
        self.log_noise = None if log_noise is None else log_noise.clone().requires_grad_()

    def groups(self) -> Sequence[tuple[Sequence[Tensor], float]]:
        """Weights and log scales of the noise, at one rate."""
        return [([self.weights] if self.log_noise is None else [self.weights, self.log_noise], self.rate)]

    def loss(self, share: float, generator: torch.Generator) -> Tensor:
        """Sum of the objectives per row; of many rows by a batch of each network's own."""
        total = len(self.rows)
        if total <= WHOLE:
            return self._objectives(self.rows.x, self.rows.y, self.counts).sum() / self.rows.count
        shape = (len(self.weights), BATCH)
        index = integers(total, shape, generator, self.rows.x.device)
        counts = self.counts.gather(1, index) * (total / BATCH)
        return self._objectives(self.rows.x[index], self.rows.y[index], counts).sum() / self.rows.count

    def _objectives(self, x: Tensor, y: Tensor, counts: Tensor) -> Tensor:
        """Return J, (R,), of rows that count so often, (R, B)."""
        log_p = self.law.log_prob(self.network(self.weights, x), self.log_noise, y)  # (R, B)
        return self._penalty() - (counts * log_p).sum(1)

    def _penalty(self) -> Tensor:
        penalty = 0.5 * ((self.weights - self.anchor) / self.prior_scale).square().sum(1)
        if self.log_noise is None:
            return penalty
        return penalty + (2.0 * _SHAPE * self.log_noise + _RATE * torch.exp(-2.0 * self.log_noise)).sum(1)

    @torch.no_grad()
    def log_joint(self) -> Tensor:
        """Return −J of every network on all rows, (R,)."""
        found = -self._penalty()
        for first in range(0, len(self.rows), _CHUNK):
            part, some = self.rows.take(slice(first, first + _CHUNK)), slice(first, first + _CHUNK)
            log_p = self.law.log_prob(self.network(self.weights, part.x), self.log_noise, part.y)
            found = found + (self.counts[:, some] * log_p).sum(1)
        return found

    def told(self) -> dict[str, float]:
        """Return the median log joint and how many networks are finite; refuse to go on without two of them."""
        joint = self.log_joint()
        finite = joint[joint.isfinite()]
        if len(finite) < min(2, len(joint)):
            raise DivergenceError(
                f"{len(joint) - len(finite)} of {len(joint)} candidate networks are not finite; at least two are "
                "needed: lower learning_rate, or look for huge values in the table"
            )
        return {"log_joint": float(finite.median()), "candidates": float(len(finite))}

    def finish(self) -> dict[str, Tensor]:
        """Return weights (R, P), log joints (R,) and log scales of the noise (R, T)."""
        found = {"weights": self.weights.detach(), "log_joint": self.log_joint()}
        return found if self.log_noise is None else {**found, "log_noise": self.log_noise.detach()}


def squared_errors(centre: Tensor, y: Tensor, unseen: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean squared error of each network on the rows that it has not seen, (R,).

    Parameters
    ----------
    centre : Tensor, shape (R, N, T)
        What networks predict: numbers, or probabilities of classes.
    y : Tensor, shape (N, T), or (N,) of int64
        Numbers, or classes.
    unseen : bool Tensor, shape (R, N)
        Which network is kept from which row.
    weight : Tensor, shape (N,), optional
        How often each row counts.
    """
    target = y if y.is_floating_point() else torch.nn.functional.one_hot(y, centre.shape[-1]).to(centre)
    counts = unseen.to(centre) * (1.0 if weight is None else weight)
    errors = (centre - target).square().sum(-1)  # (R, N)
    return torch.where(counts > 0.0, counts * errors, counts).sum(1) / counts.sum(1).clamp(min=1e-12)


def worth_keeping(log_joint: Tensor, errors: Tensor, count: float, least: int, *, strict: bool = False) -> Tensor:
    """Return the numbers of the networks that are no bad local optima, the best log joint first.

    One is left out if it is not finite; or if its log joint is more than max(5, N/50) nats below the best, and its
    squared error on unseen rows above 1.5 times the median.

    Parameters
    ----------
    log_joint, errors : Tensors, shape (R,)
        Of each network.
    count : float
        N.
    least : int
        Of the finite ones, so many are kept, those of the least error.
    strict : bool
        Whether the log joint alone leaves one out.
    """
    finite = log_joint.isfinite() & errors.isfinite()
    joint = torch.where(finite, log_joint, torch.full_like(log_joint, -math.inf))
    bad = joint < joint.max() - max(_NATS, _NATS_PER_ROW * count)
    if not strict:
        bad &= errors > _WORSE * errors[finite].median()
    rank = torch.where(finite, errors, torch.full_like(errors, math.inf)).argsort(stable=True)
    among = torch.zeros_like(finite)
    among[rank[:least]] = True
    kept = finite & (~bad | among)
    order = joint.argsort(descending=True, stable=True)
    return order[kept[order]]


def out_of_fold(f: Tensor, unseen: Tensor, rows: Rows) -> OutOfFold:
    """Return rows under networks that have not seen them, for :mod:`fathomless.inference.out_of_fold.noise`.

    Each row has as many networks as the row with most of them; where it has fewer, since some were left out, its own
    are repeated in turn. Rows that every network has seen are left out.

    Parameters
    ----------
    f : Tensor, shape (R, N, K)
        Outputs.
    unseen : bool Tensor, shape (R, N)
        Which network is kept from which row.
    rows : Rows
        The table.
    """
    count = unseen.sum(0)  # (N,)
    numbers = count.nonzero()[:, 0]
    most = int(count.max())
    first = (~unseen[:, numbers]).to(torch.int8).argsort(dim=0, stable=True)  # (R, n): unseen first
    place = torch.arange(most, device=f.device)[:, None] % count[numbers]
    network = first.gather(0, place)  # (most, n)
    log_weight = torch.full((most,), -math.log(most), dtype=torch.float64, device="cpu")
    structure = torch.zeros(most, dtype=torch.int64, device="cpu")
    some = rows.take(numbers)
    return OutOfFold(f[network, numbers], log_weight, structure, some.y, some.weight, numbers.cpu())
