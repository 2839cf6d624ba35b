r"""Decomposition of the uncertainty of a prediction into noise, weights and structure.

The variance of the predictions f of networks with different structures and weights has the parts

.. math:: B = \mathrm{Var}(E[f \mid \text{structure}]), \qquad W = E[\mathrm{Var}(f \mid \text{structure})].

Averages over few networks attribute a part of W to B, since the mean of a structure is itself uncertain. If the draws
allow it, B and W are estimated without bias. The share of structure in the variance without noise is then
max(B, 0) / (max(B, 0) + W). Such an estimate of B may be negative, and clipping makes it too large on average. A mean
over rows therefore sums B and W first and clips once (:meth:`Uncertainty.mean`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

__all__ = ["Groups", "Spread", "Uncertainty", "decompose", "estimate_spread", "standard_error"]

_ROUNDING = 1e-5  # relative, of weights that were computed in single precision


class Spread(NamedTuple):
    """Unbiased estimates of the variances between and within structures.

    Attributes
    ----------
    between : Tensor
        B; may be negative.
    within : Tensor
        W; non-negative.
    """

    between: Tensor
    within: Tensor

    def sum(self, axis: int) -> "Spread":
        """Sum both over an axis, such as that of class probabilities."""
        return Spread(self.between.sum(axis), self.within.sum(axis))


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Uncertainty of a prediction and its parts: ``noise + weights + structure = total``, up to rounding.

    If weights and structure cannot be separated (:attr:`known`), they are NaN, and ``total - noise`` is their sum.

    For regression the parts are variances in squared units of the target, of shape (N, T) or (N,). For classification
    they are entropies in nats, of shape (N,). All are non-negative.

    Attributes
    ----------
    noise : Tensor
        Uncertainty given structure and weights.
    weights : Tensor
        Reduction by knowledge of the weights, given the structure. 0 with one draw per structure. NaN if it cannot be
        separated from `structure`; see :attr:`known`.
    structure : Tensor
        Reduction by knowledge of the structure. 0 with a single structure. NaN if it cannot be separated from
        `weights`.
    total : Tensor
        Variance or entropy of the prediction.
    spread : Spread, optional
        Estimates of B and W by which ``total - noise`` was divided, with the shape of the parts. None if the parts are
        plain averages over the draws.
    """

    noise: Tensor
    weights: Tensor
    structure: Tensor
    total: Tensor
    spread: Spread | None = field(default=None, kw_only=True)

    @property
    def known(self) -> bool:
        """True if weights and structure can be separated. Otherwise both are NaN, and only their sum is known.

        They cannot be separated if each sampled structure has only one independent network. Examples are sampled
        graphs, which two chains rarely share, averages of sparse networks, and sparse networks of unbounded depth.
        """
        return not bool((self.structure.isnan() & self.total.isfinite()).any())  # without rows that overflow

    def mean(self, rows: Any = None) -> "Uncertainty":
        """Average over rows; the result has one row.

        Estimates of B and W are averaged before B is clipped at 0. ``structure`` is therefore not the mean of the
        values of the rows, which would be too large. The sum of the parts is still the total.

        Parameters
        ----------
        rows : index or mask of rows, optional
            Rows to average; all by default.
        """

        def average(part: Tensor) -> Tensor:
            return (part if rows is None else part[rows]).mean(0, keepdim=True)

        noise, total = average(self.noise), average(self.total)
        if self.spread is None:
            return Uncertainty(noise, average(self.weights), average(self.structure), total)
        return decompose(noise, total, Spread(*map(average, self.spread)))

    def __repr__(self) -> str:
        names = ("noise", "weights", "structure", "total") if self.known else ("noise", "total")
        means = (f"{name}={getattr(self, name).mean().item():.4g}" for name in names)
        return f"Uncertainty(rows={len(self.total)}, {', '.join(means)})"


def decompose(
    noise: Tensor, total: Tensor, spread: Spread, transform: Callable[[Tensor], Tensor] = lambda t: t
) -> Uncertainty:
    """Divide ``total - noise`` into weights and structure by the estimated shares; apply `transform` to all parts."""
    between = spread.between.clamp_min(0.0)
    share = between / (between + spread.within).clamp_min(torch.finfo(between.dtype).tiny)
    rest = (total - noise).clamp_min(0.0)
    parts = map(transform, (noise, rest - share * rest, share * rest, total))
    return Uncertainty(*parts, spread=Spread(*map(transform, spread)))


@dataclass(frozen=True, eq=False)
class Groups:
    """Draws grouped by a number, such as that of their structure, for averages within and across groups.

    Weights within and across groups are normalised separately. A group with one draw, and a single group, therefore
    have a weight of exactly 1, and parts of uncertainty that must be 0 are exactly 0.
    """

    member: Tensor  # (S,) group of each draw
    inner: Tensor  # (S,) weight within the group
    outer: Tensor  # (G,) weight of the group

    @classmethod
    def of(cls, log_weight: Tensor, number: Tensor) -> Self:
        """Group draws by their number, in ascending order; both (S,)."""
        names, member = number.unique(return_inverse=True)
        # subtract the largest log weight of each group, since exp of small log weights may underflow
        largest = torch.full((len(names),), -math.inf, dtype=torch.float64, device=log_weight.device)
        largest = largest.scatter_reduce(0, member, log_weight, "amax")
        relative = torch.exp(log_weight - largest[member])
        sums = torch.zeros_like(largest).index_add(0, member, relative)
        return cls(member, relative / sums[member], torch.softmax(largest + sums.log(), 0))

    def within(self, values: Tensor) -> Tensor:
        """Average over the draws of each group: (S, ...) to (G, ...)."""
        weighted = _align(self.inner, values) * values
        empty = values.new_zeros((len(self.outer), *values.shape[1:]))
        return empty.index_add(0, self.member, weighted)

    def across(self, values: Tensor) -> Tensor:
        """Average over groups: (G, ...) to (...)."""
        average: Tensor = torch.tensordot(self.outer, values, 1)
        return average


def estimate_spread(
    values: Tensor, log_weight: Tensor, structure: Tensor, network: Tensor | None, *, sampled: bool
) -> Spread | None:
    """Estimate the variances of values between and within structures.

    Parameters
    ----------
    values : Tensor, shape (S, N, ...)
        Means, or class probabilities, under each draw.
    log_weight : Tensor of float64, shape (S,)
        Log weights of the draws, normalised and finite.
    structure, network, sampled
        See :class:`~fathomless.posterior.model.Draws`.

    Returns
    -------
    Spread of tensors of shape (N, ...), or None
        NaN if there are several sampled structures and some of them have only one independent network: then the
        differences between networks cannot be divided between structure and weights.
        None if the parts are plain averages over the draws. This is the case for listed structures if there is one
        network or one structure, or if networks neither have all structures by the same law nor one structure each.
    """
    if sampled and network is not None:
        return _estimate_sampled(values, log_weight, structure, network)
    if sampled:
        return _estimate_nested(values, Groups.of(log_weight, structure))
    if network is None:
        return None
    crossed = _Crossed.of(log_weight, structure, network) or _Separate.of(log_weight, structure, network)
    return None if crossed is None else crossed.spread(values)


def standard_error(
    values: Tensor, log_weight: Tensor, structure: Tensor, network: Tensor | None, *, sampled: bool
) -> Tensor:
    r"""Return the standard error of the average of values over draws, (N, ...).

    With independent units k of weight w (networks if they have numbers, else sampled structures) and means m_k, m,

    .. math:: \mathrm{se}^2 = \sum_k w_k^2 \; \frac{\sum_k w_k (m_k - m)^2}{\sum_k w_k (1 - w_k)},

    which is Var(m_k) / K for equal weights. Networks with one structure each are compared within this structure. If
    there is only one unit, the draws of each structure are taken as independent, and the errors of the listed
    structures are added: 0 for one draw each. Parameters are those of :func:`estimate_spread`.
    """
    unit = structure if network is None and sampled else network
    separate = None if sampled or network is None else _Separate.of(log_weight, structure, network)
    if separate is not None:
        return separate.error(values)
    if unit is not None and len((groups := Groups.of(log_weight, unit)).outer) > 1:
        w = groups.outer
        means = groups.within(values)
        variance = groups.across((means - groups.across(means)).square()) / (w * (1.0 - w)).sum()
        return (w.square().sum() * variance).sqrt()
    groups = Groups.of(log_weight, structure)
    u = groups.inner
    means = groups.within(values)
    count = groups.within(1.0 - u).clamp_min(torch.finfo(u.dtype).tiny)  # (G,) 1 - Σ u²
    variance = groups.within((values - means[groups.member]).square()) / _align(count, values)
    square: Tensor = torch.tensordot(groups.outer.square() * groups.within(u), variance, 1)
    return square.sqrt()


def _estimate_nested(values: Tensor, groups: Groups) -> Spread:
    r"""Estimate B and W from sampled structures g of weight q, with R_g draws of the weights for each.

    With means m_g, mean m and unbiased variances v_g within groups,

    .. math:: W = \sum_g q_g v_g, \qquad B = \frac{\sum_g q_g (m_g - m)^2 - \sum_g q_g (1 - q_g) v_g / R_g}
              {1 - \sum_g q_g^2} .
    """
    count = _align(torch.bincount(groups.member).to(values), values)  # (G, 1, ...)
    weight = groups.outer.view_as(count)
    means = groups.within(values)
    v = groups.within((values - means[groups.member]).square()) * count / (count - 1.0).clamp_min(1.0)
    between = groups.across((means - groups.across(means)).square() - (1.0 - weight) * v / count)
    between = between / (1.0 - groups.outer.square().sum()).clamp_min(1e-12)
    return Spread(between if len(groups.outer) > 1 else torch.zeros_like(between), groups.across(v))


def _estimate_sampled(values: Tensor, log_weight: Tensor, structure: Tensor, network: Tensor) -> Spread:
    r"""Estimate B and W from sampled structures g of weight q, each with several independent networks.

    With means :math:`m_g` and squares :math:`s_g^2` of their standard errors as in :class:`_Separate`, and mean squares
    :math:`v_g` of the draws about the means,

    .. math:: W = \sum_g q_g (v_g + s_g^2), \qquad B = \frac{\sum_g q_g (m_g - m)^2 - \sum_g q_g (1 - q_g) s_g^2}
              {1 - \sum_g q_g^2} .

    Draws of one network, such as draws of its hidden units or states of one Markov chain, need not be independent.
    """
    groups = Groups.of(log_weight, structure)
    pairs, unit = torch.stack([groups.member, network]).unique(dim=1, return_inverse=True)
    several = torch.bincount(pairs[0]) > 1
    if len(several) > 1 and not bool(several.all()):
        unknown = torch.full_like(values[0], math.nan)
        return Spread(unknown, unknown)
    units = Groups.of(log_weight, unit)
    if len(several) < 2:
        v = groups.across(groups.within((values - groups.within(values)[groups.member]).square()))
        return Spread(torch.zeros_like(v), v)
    estimate = _Separate(groups, units, Groups.of(units.outer.log(), pairs[0])).spread(values)
    return Spread(estimate.between / (1.0 - groups.outer.square().sum()).clamp_min(1e-12), estimate.within)


@dataclass(frozen=True, eq=False)
class _Crossed:
    """Independent networks that all have all structures, with a cell of draws for each pair and product weights."""

    cells: Groups  # (K L,) by network, then structure
    w: Tensor  # (K,) weight of each network
    q: Tensor  # (L,) weight of each structure

    @classmethod
    def of(cls, log_weight: Tensor, structure: Tensor, network: Tensor) -> Self | None:
        """Group draws into cells; None unless there are several of both, no empty cell, and product weights."""
        (structures, g), (networks, k) = (t.unique(return_inverse=True) for t in (structure, network))
        shape = (len(networks), len(structures))
        cells = Groups.of(log_weight, k * shape[1] + g)
        if min(shape) < 2 or len(cells.outer) < shape[0] * shape[1]:
            return None
        mass = cells.outer.view(shape)
        w, q = mass.sum(1), mass.sum(0)
        is_product = torch.allclose(mass, torch.outer(w, q), rtol=_ROUNDING, atol=0.0)
        return cls(cells, w, q) if is_product else None

    def spread(self, values: Tensor) -> Spread:
        r"""Estimate B and W, (N, ...) from (S, N, ...).

        With means :math:`f_{kl}` of the cells, :math:`m_l = \sum_k w_k f_{kl}`, :math:`f_{k\cdot} = \sum_l q_l f_{kl}`,
        :math:`m = \sum_l q_l m_l` and :math:`c = \sum_k w_k^2` (1/K for equal weights),

        .. math::
            I &= \sum_k \sum_l w_k q_l \big((f_{kl} - f_{k\cdot}) - (m_l - m)\big)^2 / (1 - c), \\
            B &= \sum_l q_l (m_l - m)^2 - c I, \qquad
            W = \sum_l q_l \sum_k w_k (f_{kl} - m_l)^2 / (1 - c) + V,

        where V is the weighted mean square of the draws about the mean of their cell, 0 with one draw each. The mean of
        a cell varies with its network and with a part of the variance of its draws, and W contains both in full. The
        estimates are unbiased for independent networks of one law, with weights that do not depend on them.
        """
        shape = (len(self.w), len(self.q))
        of_cell = self.cells.within(values)  # (K L, N, ...)
        f = of_cell.view(*shape, *values.shape[1:])  # (K, L, N, ...)
        m_l, f_k = torch.tensordot(self.w, f, 1), torch.tensordot(self.q, f, ([0], [1]))
        m = torch.tensordot(self.q, m_l, 1)  # (N, ...)
        deviation = f - m_l  # (K, L, N, ...)
        within = torch.tensordot(self.q, torch.tensordot(self.w, deviation.square(), 1), 1)
        crossed = (deviation - (f_k - m).unsqueeze(1)).square()
        interaction = torch.tensordot(self.q, torch.tensordot(self.w, crossed, 1), 1)
        rest = (self.w * (1.0 - self.w)).sum()  # 1 - c
        between = torch.tensordot(self.q, (m_l - m).square(), 1) - (1.0 - rest) / rest * interaction
        within = within / rest
        if len(values) > len(of_cell):
            inside = (values - of_cell[self.cells.member]).square()
            within = within + self.cells.across(self.cells.within(inside))
        return Spread(between, within)


@dataclass(frozen=True, eq=False)
class _Separate:
    """Independent networks of one structure each, such as Markov chains, whose draws need not be independent.

    Units are networks, or the draws of a structure that has only one network.
    """

    structures: Groups  # (L,) of the draws
    units: Groups  # (K,) of the draws
    within: Groups  # (L,) of the units

    @classmethod
    def of(cls, log_weight: Tensor, structure: Tensor, network: Tensor) -> Self | None:
        """Group draws; None unless there are several structures, networks have one each, and some share one."""
        structures = Groups.of(log_weight, structure)
        (_, member), (names, unit) = (t.unique(return_inverse=True) for t in (structure, network))
        owner = torch.zeros_like(names).scatter(0, unit, member)  # of each network
        several = torch.bincount(owner, minlength=len(structures.outer)) > 1
        if len(several) < 2 or not bool(several.any()) or bool((owner[unit] != member).any()):
            return None
        draws = len(names) + torch.arange(len(unit), device=unit.device)  # numbers after those of the networks
        units = Groups.of(log_weight, torch.where(several[member], unit, draws))
        owner = torch.zeros(len(units.outer), dtype=torch.int64, device=member.device).scatter(0, units.member, member)
        return cls(structures, units, Groups.of(units.outer.log(), owner))

    def squares(self, values: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return the means m of the structures, and the squares of their standard errors, (L, N, ...).

        With weights u of the units of a structure, and their means f_k,
        :math:`s^2 = \sum_k u_k^2 \sum_k u_k (f_k - m)^2 / \sum_k u_k (1 - u_k)`.
        """
        f = self.units.within(values)
        u = self.within.inner
        means = self.within.within(f)
        square = self.within.within((f - means[self.within.member]).square())
        rest = self.within.within(1.0 - u).clamp_min(torch.finfo(u.dtype).tiny)
        return means, _align(self.within.within(u) / rest, square) * square

    def spread(self, values: Tensor) -> Spread:
        r"""Estimate B and W, (N, ...).

        With means m_l, their standard errors s_l, and mean squares v_l of the draws about the means,

        .. math:: W = \sum_l q_l (v_l + s_l^2), \qquad B = \sum_l q_l (m_l - m)^2 - \sum_l q_l (1 - q_l) s_l^2 .
        """
        means, errors = self.squares(values)
        across = self.structures.across
        q = _align(self.structures.outer, means)
        v = self.structures.within((values - means[self.structures.member]).square())
        return Spread(across((means - across(means)).square() - (1.0 - q) * errors), across(v + errors))

    def error(self, values: Tensor) -> Tensor:
        """Return the standard error of the average, (N, ...)."""
        _, errors = self.squares(values)
        square: Tensor = torch.tensordot(self.structures.outer.square(), errors, 1)
        return square.sqrt()


def _align(weight: Tensor, values: Tensor) -> Tensor:
    """Reshape numbers of draws or groups so that they broadcast to values: (S,) to (S, 1, ...)."""
    return weight.view(-1, *[1] * (values.ndim - 1))
