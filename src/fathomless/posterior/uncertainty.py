r"""Where the uncertainty of a prediction comes from: noise, weights and structure.

What networks of different structure predict, f, varies by

.. math:: B = \mathrm{Var}(E[f \mid \text{structure}]), \qquad W = E[\mathrm{Var}(f \mid \text{structure})].

Averages over few networks put a part of W into B: the mean of a structure is itself uncertain. Where networks are drawn
so that both can be told apart, B and W are estimated without bias, and the share of structure in what the mixture shows
beside its noise is max(B, 0) / (max(B, 0) + W). Such an estimate of B may be negative; clipping makes it too large on
average, so a mean over rows sums B and W first and clips once (:meth:`Uncertainty.mean`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

__all__ = ["Groups", "Spread", "Uncertainty", "decompose", "spread", "standard_error"]

_ROUNDING = 1e-5  # relative, of weights that were computed in single precision


class Spread(NamedTuple):
    """Unbiased estimates of what structure and weights leave open.

    Attributes
    ----------
    between : Tensor
        B; it may be negative.
    within : Tensor
        W; not negative.
    """

    between: Tensor
    within: Tensor

    def summed(self, axis: int) -> "Spread":
        """Sum both over an axis: over class probabilities, say."""
        return Spread(self.between.sum(axis), self.within.sum(axis))


@dataclass(frozen=True, eq=False)
class Uncertainty:
    """Where the uncertainty of a prediction comes from: ``noise + weights + structure = total``, to rounding.

    Where weights and structure cannot be told apart (:attr:`known`), they are NaN, and ``total - noise`` is their sum.

    For regression the parts are variances in squared units of the target, of shape (N, T) or (N,); for
    classes they are entropies in nats, of shape (N,). All are non-negative.

    Attributes
    ----------
    noise : Tensor
        What remains when structure and weights are known.
    weights : Tensor
        What knowing the weights would remove, once the structure is known. 0 with one draw per structure. NaN if it
        cannot be told from what structure leaves open; see :attr:`known`.
    structure : Tensor
        What knowing the structure would remove. 0 with a single structure. NaN likewise.
    total : Tensor
        The variance, or the entropy, of the prediction.
    spread : Spread, optional
        The estimates of B and W by which ``total - noise`` was divided, shaped like the parts. None where the parts
        are averages over the draws as they are.
    """

    noise: Tensor
    weights: Tensor
    structure: Tensor
    total: Tensor
    spread: Spread | None = field(default=None, kw_only=True)

    @property
    def known(self) -> bool:
        """True if weights and structure can be told apart; if not, both are NaN, and only their sum is known.

        They cannot where each sampled structure has but one independent network: in sampled graphs, which are hardly
        ever found by two chains, in averages of sparse networks, and in sparse networks of unbounded depth.
        """
        return not bool(self.structure.isnan().any())

    def mean(self, rows: Any = None) -> "Uncertainty":
        """Average over rows; the result has one row.

        Estimates of B and W are averaged before B is clipped at 0, so ``structure`` is not the mean of the rows'
        ``structure``, which is too large; the parts add up all the same.

        Parameters
        ----------
        rows : index or mask of rows, optional
            Which rows; all by default.
        """

        def average(part: Tensor) -> Tensor:
            return (part if rows is None else part[rows]).mean(0, keepdim=True)

        noise, total = average(self.noise), average(self.total)
        if self.spread is None:
            return Uncertainty(noise, average(self.weights), average(self.structure), total)
        return decompose(noise, total, Spread(*map(average, self.spread)))

    def __repr__(self) -> str:
        names = ("noise", "weights", "structure", "total")
        shown = names if self.known else ("noise", "total")
        means = (f"{name}={getattr(self, name).mean().item():.4g}" for name in shown)
        return f"Uncertainty(rows={len(self.total)}, {', '.join(means)})"


def decompose(
    noise: Tensor, total: Tensor, spread: Spread, shown: Callable[[Tensor], Tensor] = lambda t: t
) -> Uncertainty:
    """Divide what the noise leaves of the total into structure, by its share, and weights."""
    between = spread.between.clamp_min(0.0)
    share = between / (between + spread.within).clamp_min(torch.finfo(between.dtype).tiny)
    rest = (total - noise).clamp_min(0.0)
    parts = map(shown, (noise, rest - share * rest, share * rest, total))
    return Uncertainty(*parts, spread=Spread(*map(shown, spread)))


@dataclass(frozen=True, eq=False)
class Groups:
    """Draws sorted by a number, such as that of their structure: averages within each group and across all.

    Both weights are normalised by themselves, so a structure with one draw, and a single structure, have a
    weight of exactly 1 and the parts of uncertainty that must vanish do so exactly.
    """

    member: Tensor  # (S,) which group a draw belongs to
    inner: Tensor  # (S,) weight within the group
    outer: Tensor  # (G,) weight of the group

    @classmethod
    def of(cls, log_weight: Tensor, number: Tensor) -> Self:
        """Sort draws by their number, in ascending order; both (S,)."""
        names, member = number.unique(return_inverse=True)
        largest = torch.full((len(names),), -math.inf, dtype=torch.float64, device=log_weight.device)
        largest = largest.scatter_reduce(0, member, log_weight, "amax")
        relative = torch.exp(log_weight - largest[member])
        sums = torch.zeros_like(largest).index_add(0, member, relative)
        return cls(member, relative / sums[member], torch.softmax(largest + sums.log(), 0))

    def within(self, values: Tensor) -> Tensor:
        """Average over the draws of each group: (S, ...) to (G, ...)."""
        weighted = _along(self.inner, values) * values
        empty = values.new_zeros((len(self.outer), *values.shape[1:]))
        return empty.index_add(0, self.member, weighted)

    def across(self, values: Tensor) -> Tensor:
        """Average over groups: (G, ...) to (...)."""
        average: Tensor = torch.tensordot(self.outer, values, 1)
        return average


def spread(
    values: Tensor, log_weight: Tensor, structure: Tensor, network: Tensor | None, *, sampled: bool
) -> Spread | None:
    """Estimate what structure and weights leave open of values under each draw.

    Parameters
    ----------
    values : Tensor, shape (S, N, ...)
        Means, or class probabilities.
    log_weight : Tensor of float64, shape (S,)
        Normalised and finite.
    structure, network, sampled
        As in :class:`~fathomless.posterior.model.Draws`.

    Returns
    -------
    Spread of tensors of shape (N, ...), or None
        NaN where structures are a sample and some of them, of several, have one independent network alone: then what
        networks differ by cannot be divided between structure and weights.
        None where the parts are to be averages over the draws as they are: structures are listed, and there is one
        network, or one structure, or networks neither have all structures, by the same law, nor one each.
    """
    if sampled and network is not None:
        return _sampled(values, log_weight, structure, network)
    if sampled:
        return _nested(values, Groups.of(log_weight, structure))
    if network is None:
        return None
    crossed = _Crossed.of(log_weight, structure, network) or _Apart.of(log_weight, structure, network)
    return None if crossed is None else crossed.spread(values)


def standard_error(
    values: Tensor, log_weight: Tensor, structure: Tensor, network: Tensor | None, *, sampled: bool
) -> Tensor:
    r"""Return the standard error of the average of values over draws, (N, ...).

    With independent units k of weight w (networks if they have numbers, else sampled structures) and means m_k, m,

    .. math:: \mathrm{se}^2 = \sum_k w_k^2 \; \frac{\sum_k w_k (m_k - m)^2}{\sum_k w_k (1 - w_k)},

    which is Var(m_k) / K for equal weights. Networks that have one structure each are compared within it. Without
    several of them the draws of each structure are taken as independent, and the structures, being listed, add up their
    own: 0 for one draw each. Parameters are those of :func:`spread`.
    """
    unit = structure if network is None and sampled else network
    apart = None if sampled or network is None else _Apart.of(log_weight, structure, network)
    if apart is not None:
        return apart.error(values)
    if unit is not None and len((groups := Groups.of(log_weight, unit)).outer) > 1:
        w, means = groups.outer, groups.within(values)
        variance = groups.across((means - groups.across(means)).square()) / (w * (1.0 - w)).sum()
        return (w.square().sum() * variance).sqrt()
    groups = Groups.of(log_weight, structure)
    u, means = groups.inner, groups.within(values)
    count = groups.within(1.0 - u).clamp_min(torch.finfo(u.dtype).tiny)  # (G,) 1 - Σ u²
    variance = groups.within((values - means[groups.member]).square()) / _along(count, values)
    square: Tensor = torch.tensordot(groups.outer.square() * groups.within(u), variance, 1)
    return square.sqrt()


def _nested(values: Tensor, groups: Groups) -> Spread:
    r"""Estimate B and W from sampled structures g of weight q, and R draws of the weights of each.

    With means m_g, mean m and unbiased variances v_g within groups,

    .. math:: W = \sum_g q_g v_g, \qquad B = \frac{\sum_g q_g (m_g - m)^2 - \sum_g q_g (1 - q_g) v_g / R_g}
              {1 - \sum_g q_g^2} .
    """
    count = _along(torch.bincount(groups.member).to(values), values)  # (G, 1, ...)
    weight = groups.outer.view_as(count)
    means = groups.within(values)
    v = groups.within((values - means[groups.member]).square()) * count / (count - 1.0).clamp_min(1.0)
    between = groups.across((means - groups.across(means)).square() - (1.0 - weight) * v / count)
    between = between / (1.0 - groups.outer.square().sum()).clamp_min(1e-12)
    return Spread(between if len(groups.outer) > 1 else torch.zeros_like(between), groups.across(v))


def _sampled(values: Tensor, log_weight: Tensor, structure: Tensor, network: Tensor) -> Spread:
    r"""Estimate B and W from sampled structures g of weight q, each with several independent networks.

    With means :math:`m_g` and squares :math:`s_g^2` of their standard errors as of :class:`_Apart`, and the draws' mean
    squares :math:`v_g` about them,

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
    apart = _Apart(groups, units, Groups.of(units.outer.log(), pairs[0]))
    if len(several) < 2:
        v = groups.across(groups.within((values - groups.within(values)[groups.member]).square()))
        return Spread(torch.zeros_like(v), v)
    found = apart.spread(values)
    return Spread(found.between / (1.0 - groups.outer.square().sum()).clamp_min(1e-12), found.within)


@dataclass(frozen=True, eq=False)
class _Crossed:
    """Independent networks that all have all structures, a cell of draws for each pair; weights are products."""

    cells: Groups  # (K L,) by network, then structure
    w: Tensor  # (K,) weight of each network
    q: Tensor  # (L,) weight of each structure

    @classmethod
    def of(cls, log_weight: Tensor, structure: Tensor, network: Tensor) -> Self | None:
        """Sort draws into cells; None unless there are several of both and all cells, with product weights."""
        (structures, g), (networks, k) = (t.unique(return_inverse=True) for t in (structure, network))
        shape = len(networks), len(structures)
        cells = Groups.of(log_weight, k * shape[1] + g)
        if min(shape) < 2 or len(cells.outer) < shape[0] * shape[1]:
            return None
        mass = cells.outer.view(shape)
        w, q = mass.sum(1), mass.sum(0)
        return cls(cells, w, q) if torch.allclose(mass, torch.outer(w, q), rtol=_ROUNDING, atol=0.0) else None

    def spread(self, values: Tensor) -> Spread:
        r"""Estimate B and W, (N, ...) from (S, N, ...).

        With means :math:`f_{kl}` of the cells, :math:`m_l = \sum_k w_k f_{kl}`, :math:`f_{k\cdot} = \sum_l q_l f_{kl}`,
        :math:`m = \sum_l q_l m_l` and :math:`c = \sum_k w_k^2` (1/K for equal weights),

        .. math::
            I &= \sum_k \sum_l w_k q_l \big((f_{kl} - f_{k\cdot}) - (m_l - m)\big)^2 / (1 - c), \\
            B &= \sum_l q_l (m_l - m)^2 - c I, \qquad
            W = \sum_l q_l \sum_k w_k (f_{kl} - m_l)^2 / (1 - c) + V,

        where V is the weighted mean square of the draws about the mean of their cell, 0 with one draw each. As the
        mean of a cell varies by its network and by a part of what its draws vary by, W has the whole of both. Unbiased
        for independent networks of one law and weights that do not depend on them.
        """
        shape = len(self.w), len(self.q)
        of_cell = self.cells.within(values)  # (K L, N, ...)
        f = of_cell.view(*shape, *values.shape[1:])  # (K, L, N, ...)
        m_l, f_k = torch.tensordot(self.w, f, 1), torch.tensordot(self.q, f, ([0], [1]))
        m = torch.tensordot(self.q, m_l, 1)  # (N, ...)
        apart = f - m_l  # (K, L, N, ...)
        within = torch.tensordot(self.q, torch.tensordot(self.w, apart.square(), 1), 1)
        alone = (apart - (f_k - m).unsqueeze(1)).square()
        interaction = torch.tensordot(self.q, torch.tensordot(self.w, alone, 1), 1)
        rest = (self.w * (1.0 - self.w)).sum()  # 1 - c
        between = torch.tensordot(self.q, (m_l - m).square(), 1) - (1.0 - rest) / rest * interaction
        within = within / rest
        if len(values) > len(of_cell):
            inside = (values - of_cell[self.cells.member]).square()
            within = within + self.cells.across(self.cells.within(inside))
        return Spread(between, within)


@dataclass(frozen=True, eq=False)
class _Apart:
    """Independent networks of one structure each, such as Markov chains, whose draws need not be independent.

    Units are networks; where a structure has but one, its draws.
    """

    structures: Groups  # (L,) of the draws
    units: Groups  # (K,) of the draws
    within: Groups  # (L,) of the units

    @classmethod
    def of(cls, log_weight: Tensor, structure: Tensor, network: Tensor) -> Self | None:
        """Sort draws; None unless there are several structures, networks have one each, and some have several."""
        structures = Groups.of(log_weight, structure)
        (_, member), (names, unit) = (t.unique(return_inverse=True) for t in (structure, network))
        owner = torch.zeros_like(names).scatter(0, unit, member)  # of each network
        several = torch.bincount(owner, minlength=len(structures.outer)) > 1
        if len(several) < 2 or not bool(several.any()) or bool((owner[unit] != member).any()):
            return None
        units = Groups.of(
            log_weight, torch.where(several[member], unit, len(names) + torch.arange(len(unit), device=unit.device))
        )
        owner = torch.zeros(len(units.outer), dtype=torch.int64, device=member.device).scatter(0, units.member, member)
        return cls(structures, units, Groups.of(units.outer.log(), owner))

    def squares(self, values: Tensor) -> tuple[Tensor, Tensor]:
        r"""Return the means m of the structures, and the squares of their standard errors, (L, N, ...).

        With weights u of the units of a structure, and their means f_k,
        :math:`s^2 = \sum_k u_k^2 \sum_k u_k (f_k - m)^2 / \sum_k u_k (1 - u_k)`.
        """
        f, u = self.units.within(values), self.within.inner
        means = self.within.within(f)
        square = self.within.within((f - means[self.within.member]).square())
        rest = self.within.within(1.0 - u).clamp_min(torch.finfo(u.dtype).tiny)
        return means, _along(self.within.within(u) / rest, square) * square

    def spread(self, values: Tensor) -> Spread:
        r"""Estimate B and W, (N, ...).

        With means m_l, their standard errors s_l, and the draws' mean squares v_l about them,

        .. math:: W = \sum_l q_l (v_l + s_l^2), \qquad B = \sum_l q_l (m_l - m)^2 - \sum_l q_l (1 - q_l) s_l^2 .
        """
        means, errors = self.squares(values)
        across, q = self.structures.across, _along(self.structures.outer, means)
        v = self.structures.within((values - means[self.structures.member]).square())
        return Spread(across((means - across(means)).square() - (1.0 - q) * errors), across(v + errors))

    def error(self, values: Tensor) -> Tensor:
        """Return the standard error of the average, (N, ...)."""
        _, errors = self.squares(values)
        square: Tensor = torch.tensordot(self.structures.outer.square(), errors, 1)
        return square.sqrt()


def _along(weight: Tensor, values: Tensor) -> Tensor:
    """Give one number for each draw, or group, the shape that multiplies values: (S,) to (S, 1, ...)."""
    return weight.view(-1, *[1] * (values.ndim - 1))
