r"""Stage 1: candidate networks, trained in parallel, from which a weight manifold is learned.

R networks minimise the sum over r of independent objectives in their weights w and noise precisions :math:`\tau_t`,

.. math:: J_r = -\frac{N}{\sum_n k_{rn}} \sum_n k_{rn} \log p(y_n \mid f_w(x_n), \tau)
          + \tfrac12 \sum_p \frac{(w_p - a_{rp})^2}{v_p} - \sum_t (a_0 \log \tau_t - b_0 \tau_t),

with :math:`k_{rn}` the weight of row n, 0 in the fold held out from network r. The Gamma(1, 0.01) prior on the
precision, as a density of its logarithm, keeps the optimum finite. Anchors :math:`a_{rp}` are 0, or drawn from the
prior N(0, v): then candidates keep the spread of the prior away from the data (randomised maximum a posteriori).

The held-out rows of each network are used for two purposes: to identify bad local optima, and to estimate the noise.

:math:`-J_r` depends on the rows that were held out from network r. Where candidates are modes of the posterior, and are
compared by their densities alone, all rows count (:func:`sum_log_joint`).
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

__all__ = [
    "BATCH",
    "WHOLE",
    "CandidateStage",
    "gather_out_of_fold",
    "mask_unseen",
    "select_candidates",
    "squared_errors",
    "sum_log_joint",
]

BATCH = 256  #: rows per network and step, for tables of more than `WHOLE` rows
WHOLE = 1000  #: number of rows up to which each step uses all rows
_SHAPE, _RATE = 1.0, 0.01  # a0 and b0
_NATS, _NATS_PER_ROW = 5.0, 0.02  # tolerated distance from the best log joint
_WORSE = 1.5  # tolerated squared error, in medians
_CHUNK = 4096  # rows evaluated at once


def mask_unseen(folds: Tensor, candidates: int) -> Tensor:
    """Return a mask, bool of shape (R, N), that is True where a row is held out from a network.

    Parameters
    ----------
    folds : Tensor of int64, shape (Q, N)
        Fold 0 … K − 1 of each row in Q partitions; −1 for rows in the training set of all networks.
    candidates : int
        Number of networks R. Fold r mod K of partition r // K mod Q is held out from network r.
    """
    number = torch.arange(candidates, device=folds.device)
    count = int(folds.max()) + 1
    return folds[number // count % len(folds)] == (number % count)[:, None]


@dataclass(frozen=True)
class _Law:
    """Likelihood p(y | f, noise) with separate noise for each network; log scales are appended to the outputs."""

    likelihood: Likelihood

    def log_prob(self, f: Tensor, log_scale: Tensor | None, y: Tensor) -> Tensor:
        """Return log densities (R, B) of rows y (B, …), or of separate rows for each network (R, B, …)."""
        if log_scale is not None:
            f = torch.cat([f, log_scale[:, None].expand(*f.shape[:2], -1)], -1)
        if y.ndim == 1 or (y.ndim == 2 and y.is_floating_point()):
            return self.likelihood.log_prob(f, y)
        return self.likelihood.log_prob(f.flatten(0, 1)[None], y.flatten(0, 1)).view(f.shape[:2])


class CandidateStage(Stage):
    """Stage that trains candidate networks in parallel; a network that diverges does not affect the others.

    Parameters
    ----------
    network : FlatNetwork or FlatModule
        Network of the candidates.
    likelihood : Likelihood
        p(y | f). With `log_noise`, f has the outputs of the network and the log scales.
    rows : Rows
        Training rows.
    unseen : bool Tensor, shape (R, N)
        True where a row is held out from a network.
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
        self.network = network
        self.law = _Law(likelihood)
        self.rows = rows
        self.rate = rate
        self.anchor = anchor
        self.prior_scale = prior_scale
        weight = torch.ones_like(rows.x[:, 0]) if rows.weight is None else rows.weight
        seen = ~unseen * weight  # (R, N)
        # scaled to N, so that all objectives have the same balance of likelihood and prior
        self.counts = seen * (rows.count / seen.sum(1, keepdim=True))
        self.weights = start.clone().requires_grad_()
        self.log_noise = None if log_noise is None else log_noise.clone().requires_grad_()

    def groups(self) -> Sequence[tuple[Sequence[Tensor], float]]:
        """Return weights and log scales of the noise, with one learning rate."""
        return [([self.weights] if self.log_noise is None else [self.weights, self.log_noise], self.rate)]

    def loss(self, share: float, generator: torch.Generator) -> Tensor:
        """Return the sum of the objectives per row; for many rows estimated on a minibatch of each network."""
        total = len(self.rows)
        if total <= WHOLE:
            return self._objectives(self.rows.x, self.rows.y, self.counts).sum() / self.rows.count
        shape = (len(self.weights), BATCH)
        index = integers(total, shape, generator, self.rows.x.device)
        counts = self.counts.gather(1, index) * (total / BATCH)
        return self._objectives(self.rows.x[index], self.rows.y[index], counts).sum() / self.rows.count

    def _objectives(self, x: Tensor, y: Tensor, counts: Tensor) -> Tensor:
        """Return J, (R,), on rows with counts (R, B)."""
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
        total = -self._penalty()
        for first in range(0, len(self.rows), _CHUNK):
            chunk = slice(first, first + _CHUNK)
            part = self.rows.take(chunk)
            log_p = self.law.log_prob(self.network(self.weights, part.x), self.log_noise, part.y)
            total = total + (self.counts[:, chunk] * log_p).sum(1)
        return total

    def metrics(self) -> dict[str, float]:
        """Return the median log joint and the number of finite networks; raise DivergenceError for fewer than two."""
        joint = self.log_joint()
        finite = joint[joint.isfinite()]
        if len(finite) < min(2, len(joint)):
            raise DivergenceError(
                f"{len(joint) - len(finite)} of {len(joint)} candidate networks are not finite; at least two finite "
                "ones are needed: lower learning_rate, or check the table for extreme values"
            )
        return {"log_joint": float(finite.median()), "candidates": float(len(finite))}

    def finish(self) -> dict[str, Tensor]:
        """Return weights (R, P), log joints and log priors (R,), and log scales of the noise (R, T)."""
        log_prior = -self._penalty().detach()
        results = {"weights": self.weights.detach(), "log_joint": self.log_joint(), "log_prior": log_prior}
        return results if self.log_noise is None else {**results, "log_noise": self.log_noise.detach()}


def sum_log_joint(
    likelihood: Likelihood, f: Tensor, log_noise: Tensor | None, log_prior: Tensor, y: Tensor, counts: Tensor
) -> Tensor:
    """Return the log joint density of each network and of rows, (R,), up to a constant.

    Rows count for all networks, also those that were held out from some of them.

    Parameters
    ----------
    likelihood : Likelihood
        Likelihood of the candidates, as of :class:`CandidateStage`.
    f : Tensor, shape (R, N, K)
        Outputs.
    log_noise : Tensor, shape (R, T), optional
        Log scales of the noise.
    log_prior : Tensor, shape (R,)
        Log prior densities.
    y : Tensor, shape (N, ...)
        Targets.
    counts : Tensor, shape (N,)
        Number of times that each row counts; rows with 0 are left out.
    """
    log_p = _Law(likelihood).log_prob(f, log_noise, y)  # (R, N)
    return log_prior + torch.where(counts > 0.0, counts * log_p, 0.0).sum(1)


def squared_errors(centre: Tensor, y: Tensor, unseen: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean squared error of each network on its held-out rows, (R,).

    Parameters
    ----------
    centre : Tensor, shape (R, N, T)
        Predictions: means, or probabilities of classes.
    y : Tensor, shape (N, T) or (N, 2 T), or (N,) of int64
        Targets: numbers, bounds of censored ones, or classes. The error of a censored one is the distance to its
        interval, 0 inside.
    unseen : bool Tensor, shape (R, N)
        True where a row is held out from a network.
    weight : Tensor, shape (N,), optional
        Sample weights.
    """
    if not y.is_floating_point():
        target = torch.nn.functional.one_hot(y, centre.shape[-1]).to(centre)
    elif y.shape[1] == 2 * centre.shape[-1]:
        low, high = y.split(centre.shape[-1], 1)
        target = torch.minimum(torch.maximum(centre, low), high)
    else:
        target = y
    counts = unseen.to(centre) * (1.0 if weight is None else weight)
    errors = (centre - target).square().sum(-1)  # (R, N)
    return torch.where(counts > 0.0, counts * errors, counts).sum(1) / counts.sum(1).clamp(min=1e-12)


def select_candidates(log_joint: Tensor, errors: Tensor, count: float, least: int, *, strict: bool = False) -> Tensor:
    """Return the indices of the networks that are not bad local optima, in decreasing order of the log joint.

    A network is dropped if it is not finite, or if both its log joint is more than max(5, N/50) nats below the best
    and its squared error on held-out rows is above 1.5 times the median.

    Parameters
    ----------
    log_joint, errors : Tensors, shape (R,)
        Log joint density and squared error of each network.
    count : float
        Number of rows N.
    least : int
        Number of finite networks to keep in any case, those with the smallest errors.
    strict : bool
        True to drop networks by their log joint alone.
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


def gather_out_of_fold(f: Tensor, unseen: Tensor, rows: Rows) -> OutOfFold:
    """Return out-of-fold predictions of all rows, for :mod:`fathomless.inference.out_of_fold.noise`.

    Each row gets as many predictions as the row with the most networks. A row with fewer networks, since some were
    dropped, repeats its own in turn. Rows in the training set of all networks are omitted.

    Parameters
    ----------
    f : Tensor, shape (R, N, K)
        Outputs.
    unseen : bool Tensor, shape (R, N)
        True where a row is held out from a network.
    rows : Rows
        All rows.
    """
    count = unseen.sum(0)  # (N,)
    numbers = count.nonzero()[:, 0]
    most = int(count.max())
    first = (~unseen[:, numbers]).to(torch.int8).argsort(dim=0, stable=True)  # (R, n): unseen first
    place = torch.arange(most, device=f.device)[:, None] % count[numbers]
    network = first.gather(0, place)  # (most, n)
    log_weight = torch.full((most,), -math.log(most), dtype=torch.float64, device="cpu")
    structure = torch.zeros(most, dtype=torch.int64, device="cpu")
    held_out = rows.take(numbers)
    return OutOfFold(f[network, numbers], log_weight, structure, held_out.y, held_out.weight, numbers.cpu())
