"""Laws over depth: families of mass functions with finite but unbounded support.

A family Q = {q(k; η)} over offsets k = 0, 1, 2, … (depth minus least depth) must satisfy

* U1: every member has finite support, which the CPU computes in time linear in its last element;
* U2: every offset is a mode of some member;
* U3: η ↦ q is continuous in total variation and differentiable almost everywhere, also where the support grows.

The truncated Poisson family (:class:`TruncatedPoisson`) and lazy stick-breaking (:class:`StickBreaking`) satisfy all
three. The family of Nazaret and Blei (2022), :class:`QuantilePoisson`, breaks U3: its members jump when the support
grows. :class:`FreeCategorical` and :class:`FixedDepth` are bounded.

A law is a value without state. Its parameter η is a vector of raw real numbers that lives in the model; arithmetic
is in float64, whatever the dtype of η. All probabilities come with their derivatives in closed form.

References
----------
A. Nazaret and D. Blei, "Variational Inference for Infinitely Deep Neural Networks", ICML 2022.
J. Antorán et al., "Depth Uncertainty in Neural Networks", NeurIPS 2020.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from fathomless.system.errors import DataError, DepthError

__all__ = [
    "DepthLaw",
    "DepthPrior",
    "FixedDepth",
    "FreeCategorical",
    "HardTruncation",
    "PoissonPrior",
    "QuantilePoisson",
    "SmoothTruncation",
    "StickBreaking",
    "TruncatedPoisson",
    "Truncation",
    "UniformPrior",
    "depth_terms",
]

_MOST = 10_000  # largest mean number of layers; larger networks cannot be built

_LEAST_LOG = 1e-12  # −q log q has an infinite, logarithmic slope at 0; log q is bounded below at this q


class Truncation(ABC):
    """A continuous, increasing map S of [0, 1] onto itself with S(u) = 0 for u ≤ lower and 1 for u ≥ upper."""

    lower: float
    upper: float

    @abstractmethod
    def __call__(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return S(u) and its derivative S'(u), each shaped as `u`."""


@dataclass(frozen=True)
class HardTruncation(Truncation):
    """S(u) = clip((u − lower)/(upper − lower), 0, 1).

    With ``lower = 0`` the last atom keeps only the part of its mass below ``upper``. With ``lower > 0`` the support
    becomes an interval, and shallow depths that do not fit the data no longer affect the shared layers.

    Examples
    --------
    >>> S, slope = HardTruncation(0.0, 0.5)(torch.tensor([0.25, 0.75]))
    >>> S.tolist(), slope.tolist()
    ([0.5, 1.0], [2.0, 0.0])
    """

    lower: float = 0.0
    upper: float = 0.95

    def __post_init__(self) -> None:
        if not 0.0 <= self.lower < self.upper < 1.0:
            raise DataError(
                f"a truncation was given as ({self.lower}, {self.upper}); 0 <= lower < upper < 1 is allowed, "
                "for instance HardTruncation(0.0, 0.95)"
            )

    def __call__(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return S(u) and S'(u)."""
        slope = 1.0 / (self.upper - self.lower)
        inside = (u > self.lower) & (u < self.upper)
        return ((u - self.lower) * slope).clamp(0.0, 1.0), inside.to(torch.float32) * slope


@dataclass(frozen=True)
class SmoothTruncation(Truncation):
    """S that is linear up to ``start`` and quadratic from there to 1 at ``upper``: continuously differentiable."""

    start: float = 0.85
    upper: float = 0.99
    lower: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        if not 0.0 < self.start < self.upper < 1.0:
            raise DataError(
                f"a taper was given as ({self.start}, {self.upper}); 0 < start < upper < 1 is allowed, "
                "for instance SmoothTruncation(0.85, 0.99)"
            )

    def __call__(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return S(u) and S'(u); the two pieces have equal values and slopes at ``start``."""
        ease = self.upper - self.start
        slope = 1.0 / (self.start + 0.5 * ease)
        rest = (self.upper - u).clamp(0.0)  # distance to the end of the quadratic piece
        S = torch.where(u < self.start, slope * u, 1.0 - 0.5 * slope / ease * rest**2)
        return S, torch.where(u < self.start, slope, slope / ease * rest)


class DepthLaw(ABC):
    """A family q(k; η) of laws over the offset k = 0, 1, 2 and so on."""

    @abstractmethod
    def start(self, k: int) -> float | None:
        """Return the initial raw value of the parameter that is added with offset `k`, or None if there is none."""

    @abstractmethod
    def support(self, eta: Tensor) -> Sequence[int]:
        """Return the offsets of positive mass in ascending order. Copies η to the CPU."""

    @abstractmethod
    def lower_bound(self) -> float | None:
        """Return the lower bound of the raw parameters, or None if there is none.

        Below it a member would have one offset and zero slope, and training could not move it any more.
        """

    @abstractmethod
    def probs_and_grad(self, eta: Tensor, support: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the mass of each offset of `support` and its derivative in η, on the device of η.

        `support` may be older than η, so that the CPU need not read η at every step. A truncated law adds the mass
        beyond either end to the atom at that end, which keeps q continuous in η. Other laws renormalise.

        Returns
        -------
        q : float64 Tensor, shape (m,)
            Masses; they sum to 1.
        dq : float64 Tensor, shape (m, P)
            Derivatives with respect to the raw parameters.
        """


@dataclass(frozen=True)
class TruncatedPoisson(DepthLaw):
    r"""Poisson law with a truncated distribution function, the default.

    With :math:`F_k = P(\mathrm{Poisson}(\lambda) \le k)` and a truncation S,

    .. math:: Q_k = S(F_k), \qquad q(k) = Q_k - Q_{k-1}, \qquad
              \partial_\lambda q(k) = S'(F_{k-1})\, p_{k-1} - S'(F_k)\, p_k .

    A new last atom enters with weight exactly 0 and grows continuously. For ``HardTruncation(0, δ)`` the support is 0,
    …, a with :math:`a = \min\{k : F_k \ge \delta\}`, and n is a mode of the depth 1 + k at λ = n − ½.

    Parameters
    ----------
    rate : float
        Initial λ, the mean offset before truncation.
    truncation : Truncation
        The map S.
    """

    rate: float = 2.0
    truncation: Truncation = HardTruncation()

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def start(self, k: int) -> float | None:
        """One raw parameter: λ = softplus(η)."""
        return _inverse_softplus(self.rate) if k == 0 else None

    def lower_bound(self) -> float | None:
        """Raw rate at which the mass of the second atom is about 0.25 %."""
        return _least_rate(self.truncation.upper)

    def support(self, eta: Tensor) -> Sequence[int]:
        """Offsets whose mass is positive."""
        _, F_k = _poisson_until(eta, self.truncation.upper)
        return _find_support(F_k, self.truncation)

    def probs_and_grad(self, eta: Tensor, support: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Masses and derivatives, by the formulas above."""
        rate, slope = _softplus(eta)
        p, F_k = _poisson(rate, support[-1] + 1)
        return _truncate(F_k, (-slope * p)[:, None], self.truncation, support[0])


@dataclass(frozen=True)
class QuantilePoisson(DepthLaw):
    r"""Poisson law cut at its δ-quantile and renormalised, the family of the paper.

    .. math:: q(k) = p_k / F_a, \quad k \le a = \min\{k : F_k \ge \delta\}, \qquad
              \partial_\lambda q(k) = q(k)\,(k - \mathbb{E} k)/\lambda .

    The support grows at :math:`F_a(\lambda) = \delta`, where the new atom appears with mass
    :math:`p_{a+1}/(\delta + p_{a+1})` at once. The objective jumps there, which is not part of any gradient. The paper
    has an unshifted Poisson law on 1, 2, …; here, as in its prior, the offset is Poisson.
    """

    rate: float = 1.0
    quantile: float = 0.95

    def __post_init__(self) -> None:
        _check_rate(self.rate)
        if not 0.0 < self.quantile < 1.0:
            raise DataError(
                f"a quantile was given as {self.quantile}; a value inside (0, 1) is allowed, for instance 0.95"
            )

    def start(self, k: int) -> float | None:
        """One raw parameter: λ = softplus(η)."""
        return _inverse_softplus(self.rate) if k == 0 else None

    def lower_bound(self) -> float | None:
        """Raw rate at which the mass of the second atom is about 0.25 %."""
        return _least_rate(self.quantile)

    def support(self, eta: Tensor) -> Sequence[int]:
        """Offsets up to the quantile."""
        _, F_k = _poisson_until(eta, self.quantile)
        return range(int((F_k < self.quantile).sum()) + 1)

    def probs_and_grad(self, eta: Tensor, support: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Masses and derivatives, by the formulas above."""
        rate, slope = _softplus(eta)
        p, F_k = _poisson(rate, support[-1] + 1)
        q = p * (F_k - p < self.quantile)  # offset k is inside while F_{k-1} < δ
        q = q / q.sum()
        k = _offsets(len(q), q.device)[0]
        return q, (q * (k - (q * k).sum()) / rate * slope)[:, None]


@dataclass(frozen=True)
class StickBreaking(DepthLaw):
    r"""Truncated lazy stick-breaking: a free hazard for every layer that exists, and a default hazard beyond.

    .. math:: F_k = 1 - \prod_{j \le k} (1 - h_j), \quad h_j = \sigma(\eta_j), \qquad
              \partial F_k / \partial \eta_j = (1 - F_k)\, h_j \;\; (j \le k).

    The shape is free and the support unbounded: beyond the existing layers the default hazard gives a geometric tail.

    Parameters
    ----------
    rate : float
        Mean offset of the geometric law that the default hazard 1/(1 + rate) gives.
    truncation : Truncation
        The map S.
    """

    rate: float = 2.0
    truncation: Truncation = HardTruncation()

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def start(self, k: int) -> float | None:
        """One hazard for each layer, initially the default hazard."""
        return -math.log(self.rate)

    def lower_bound(self) -> float | None:
        """None: hazards are always below 1."""
        return None

    def support(self, eta: Tensor) -> Sequence[int]:
        """Offsets whose mass is positive; the default hazard continues beyond the parameters that exist."""
        hazard = torch.sigmoid(eta.detach().double().cpu())
        remaining = float((1.0 - hazard).prod())
        default = 1.0 / (1.0 + self.rate)
        beyond = 0.0  # number of default hazards after which less than 1 − upper remains
        if remaining > 1.0 - self.truncation.upper:
            beyond = math.log((1.0 - self.truncation.upper) / remaining) / math.log1p(-default)
        tail = torch.full((math.ceil(beyond) + 1,), default, dtype=torch.float64, device=hazard.device)
        hazard = torch.cat([hazard, tail])
        F_k = 1.0 - (1.0 - hazard).cumprod(0)
        return _find_support(F_k, self.truncation)

    def probs_and_grad(self, eta: Tensor, support: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Masses and derivatives, by the formulas above."""
        size = support[-1] + 1
        hazard = torch.sigmoid(eta.detach().double())
        remaining = (1.0 - hazard[:size]).cumprod(0)
        dF = (remaining[:, None] * hazard).tril()  # (size, P)
        return _truncate(1.0 - remaining, dF, self.truncation, support[0])


@dataclass(frozen=True)
class FreeCategorical(DepthLaw):
    """Categorical law with free masses on 0, …, size − 1, by softmax (depth uncertainty networks). Bounded."""

    size: int

    def __post_init__(self) -> None:
        if self.size < 1:
            raise DataError(f"a categorical law was given {self.size} depths; at least 1 is needed")

    def start(self, k: int) -> float | None:
        """One logit for each offset, initially 0."""
        return 0.0 if k < self.size else None

    def lower_bound(self) -> float | None:
        """None: logits are unbounded."""
        return None

    def support(self, eta: Tensor) -> Sequence[int]:
        """All offsets."""
        return range(self.size)

    def probs_and_grad(self, eta: Tensor, support: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Softmax of the first m logits and its Jacobian diag(q) − q qᵀ; the other logits have no influence."""
        q = torch.softmax(eta.detach().double()[: len(support)], 0)
        dq = q.new_zeros(len(q), len(eta))
        dq[:, : len(q)] = torch.diag(q) - q[:, None] * q
        return q, dq


@dataclass(frozen=True)
class FixedDepth(DepthLaw):
    """Fixed masses on fixed offsets from the minimum depth, without parameters; one offset is a network of fixed depth.

    Examples
    --------
    >>> law = FixedDepth((3,))
    >>> list(law.support(torch.empty(0)))
    [3]
    """

    offsets: tuple[int, ...]
    probabilities: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not isinstance(self.offsets, tuple):
            raise DataError(f"offsets={self.offsets!r} was given; a tuple is allowed, such as (1,)")
        ascending = list(self.offsets) == sorted(set(self.offsets)) and bool(self.offsets) and self.offsets[0] >= 0
        proper = len(self.offsets) == len(self.probabilities) and abs(sum(self.probabilities) - 1.0) < 1e-9
        if not (ascending and proper and min(self.probabilities) > 0.0):
            raise DataError(
                f"a fixed law was given offsets {self.offsets} with probabilities {self.probabilities}; allowed are "
                "ascending offsets >= 0, each with a positive probability, that sum to 1"
            )

    def start(self, k: int) -> float | None:
        """No parameters."""
        return None

    def lower_bound(self) -> float | None:
        """No parameters."""
        return None

    def support(self, eta: Tensor) -> Sequence[int]:
        """Return the fixed offsets."""
        return self.offsets

    def probs_and_grad(self, eta: Tensor, support: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the fixed masses, renormalised on `support`."""
        mass = dict(zip(self.offsets, self.probabilities, strict=True))
        masses = [mass.get(k, 0.0) for k in support]
        total = sum(masses)
        shares = [p / total if total else 1.0 / len(masses) for p in masses]
        q = torch.tensor(shares, dtype=torch.float64, device=eta.device)
        return q, q.new_zeros(len(q), len(eta))


class DepthPrior(ABC):
    """A prior over the offset."""

    @abstractmethod
    def log_prob(self, k: Tensor) -> Tensor:
        """Return log p(k), shaped as `k`."""


@dataclass(frozen=True)
class PoissonPrior(DepthPrior):
    """Offset ~ Poisson(rate)."""

    rate: float = 0.5

    def __post_init__(self) -> None:
        _check_rate(self.rate)

    def log_prob(self, k: Tensor) -> Tensor:
        """Return k log λ − λ − log Γ(k + 1)."""
        return k * math.log(self.rate) - self.rate - torch.lgamma(k + 1.0)


@dataclass(frozen=True)
class UniformPrior(DepthPrior):
    """Offset uniform on 0, …, size − 1; impossible beyond."""

    size: int

    def log_prob(self, k: Tensor) -> Tensor:
        """−log size inside, −∞ outside."""
        inside = (k >= 0) & (k < self.size)
        level = torch.full_like(k, -math.log(self.size), dtype=torch.result_type(k, 0.5))
        return level.masked_fill(~inside, -math.inf)


def depth_terms(law: DepthLaw, eta: Tensor, support: Sequence[int], log_prior: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, log q and KL(q ‖ prior), differentiable in η by the closed forms of the law.

    For E = Σ q(k) g(k) the gradient in η is Σ ∂q(k) g(k); for the truncated Poisson this is, by Abel
    summation, (1/δ) Σ p_k (g(k+1) − g(k)): the expected gain of one more layer. In the divergence the "−1" of
    differentiating q log q cancels, and log q is at least log 1e-12 where q vanishes.

    Parameters
    ----------
    law : DepthLaw
        The family.
    eta : Tensor, shape (P,)
        Raw parameters.
    support : sequence of int
        Offsets; see :meth:`DepthLaw.probs_and_grad`.
    log_prior : float64 Tensor, shape (m,)
        Log prior of each offset of the support.

    Returns
    -------
    q, log_q : float64 Tensors, shape (m,)
        Masses and their logarithms.
    divergence : float64 Tensor, scalar
        Σ q (log q − log prior), in nats.
    """
    with torch.no_grad():
        q, dq = law.probs_and_grad(eta, support)
        log_q = q.clamp(min=_LEAST_LOG).log()
        gap = log_q - log_prior
        tiny = torch.finfo(q.dtype).tiny
    change = dq @ (eta - eta.detach()).double()  # has the value zero and the derivative of q
    return q + change, q.log() + change / q.clamp(min=tiny), ((q + change) * gap).sum()


def _check_rate(rate: float) -> None:
    if not 0.0 < rate <= _MOST:
        raise DataError(f"a rate was given as {rate}; a positive number up to {_MOST:,} (layers) is allowed")


def _inverse_softplus(value: float) -> float:
    return value + math.log(-math.expm1(-value))


def _least_rate(level: float) -> float:
    """Return the raw rate at which F_0 is just below `level`: a second atom remains, of mass about 0.25 %."""
    return _inverse_softplus(-math.log(level) + 0.0025)


def _softplus(eta: Tensor) -> tuple[Tensor, Tensor]:
    """Return λ and dλ/dη, scalars in float64."""
    raw = eta.detach().double()[0]
    return F.softplus(raw), torch.sigmoid(raw)


@lru_cache(maxsize=64)
def _offsets(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return k and log k! for k = 0, …, size − 1."""
    k = torch.arange(size, dtype=torch.float64, device=device)
    return k, torch.lgamma(k + 1.0)


def _poisson(rate: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the mass and distribution function of Poisson(rate) at 0, …, size − 1."""
    k, log_factorial = _offsets(size, rate.device)
    p = (k * rate.log() - rate - log_factorial).exp()  # −λ is inside the exponent, since exp(−λ) alone may underflow
    return p, p.cumsum(0).clamp(max=1.0)


def _poisson_until(eta: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Return the mass and distribution function on the CPU, up to where the latter reaches `level`."""
    rate, _ = _softplus(eta.detach().cpu())
    if not bool(rate.isfinite()) or not 0.0 < rate < 1e7:
        raise DepthError(f"the mean of the depth law is {float(rate)}; it must be positive and below 1e7")
    size = int(rate + 4.0 * rate.sqrt()) + 8
    while True:
        p, F_k = _poisson(rate, size)
        if F_k[-1] >= level:
            return p, F_k
        size *= 2


def _find_support(F_k: Tensor, truncation: Truncation) -> range:
    """Return the offsets of positive truncated mass; with ``lower = 0`` from 0, even if its mass underflows."""
    first = int((F_k <= truncation.lower).sum()) if truncation.lower > 0.0 else 0
    return range(first, int((F_k < truncation.upper).sum()) + 1)


def _truncate(F_k: Tensor, dF: Tensor, truncation: Truncation, first: int) -> tuple[Tensor, Tensor]:
    """Return masses and derivatives of a truncated law; mass beyond either end is added to the atom at that end."""
    S, slope = truncation(F_k)
    S = S[first:].clone()
    dS = (slope[:, None] * dF)[first:]
    S[-1] = 1.0
    dS[-1] = 0.0
    q, dq = S.clone(), dS.clone()
    q[1:] -= S[:-1]
    dq[1:] -= dS[:-1]
    return q, dq
