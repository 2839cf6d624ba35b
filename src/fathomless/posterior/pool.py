r"""Linear pool of mixtures: their average with weights that may differ by column.

.. math:: F(y) = \sum_j q_j F_j(y)

The laws :math:`F_j` are mixtures of different families, for example the law of the networks and laws of the
standardised residual (:mod:`fathomless.posterior.recalibration`). Moments, density and distribution function are sums.
Quantiles are solved as those of a :class:`~fathomless.posterior.mixtures.Mixture`, inside a bracket of the quantiles of
all components.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.posterior.mixtures import Mixture, solve_quantile
from fathomless.posterior.quantile_gradients import attach_first_derivatives
from fathomless.system.draws import multinomial
from fathomless.system.errors import DataError

__all__ = ["Pool"]

Values = npt.ArrayLike | Tensor


@dataclass(frozen=True, eq=False)
class Pool:
    """The laws Σ_j q_j F_j, one for each element of the batch (N, T); arguments broadcast as those of a mixture.

    Attributes
    ----------
    share : Tensor of float64, shape (J, T)
        Weights q of the laws, for each column; they sum to one over j.
    laws : sequence of J Mixture, batch (N, T)
        The laws.

    Raises
    ------
    DataError
        If there is no law, or the number of weights differs from that of the laws.

    Examples
    --------
    >>> from fathomless.posterior.mixtures import Normal
    >>> zero, one = torch.zeros(1, 1, 1, device="cpu"), torch.ones(1, 1, 1, device="cpu")
    >>> law, wide = (Mixture(torch.zeros(1, device="cpu"), Normal(zero, scale)) for scale in (one, 3.0 * one))
    >>> Pool(torch.tensor([[0.75], [0.25]], device="cpu"), (law, wide)).variance
    tensor([[3.]], dtype=torch.float64)
    """

    share: Tensor
    laws: Sequence[Mixture]

    def __post_init__(self) -> None:
        share = self.share.double().cpu()
        if not self.laws or share.ndim != 2 or len(share) != len(self.laws):
            raise DataError(
                f"a pool was given weights of shape {tuple(self.share.shape)} and {len(self.laws)} laws; allowed are "
                "one row of weights for each law"
            )
        object.__setattr__(self, "share", share)
        object.__setattr__(self, "laws", tuple(self.laws))

    @property
    def batch_shape(self) -> torch.Size:
        """Shape of the batch."""
        return self.laws[0].batch_shape

    @property
    def mean(self) -> Tensor:
        """Mean, shape (*batch)."""
        return self._average(lambda law: law.mean)

    @property
    def variance(self) -> Tensor:
        """Variance by the law of total variance, shape (*batch), in squared units of y."""
        mean = self.mean
        return self._average(lambda law: law.variance + (law.mean - mean).square())

    @property
    def std(self) -> Tensor:
        """Standard deviation, shape (*batch)."""
        mean = self.mean
        parts = [torch.hypot(law.std, law.mean - mean) for law in self.laws]
        unit = torch.stack([part.detach() for part in parts]).amax(0).clamp_min(1e-300)  # squares must not underflow
        squares = [share * (part / unit).square() for share, part in zip(self.share, parts, strict=True)]
        return unit * torch.stack(squares).sum(0).sqrt()

    def log_prob(self, y: Values) -> Tensor:
        """Log density at y, shape (..., *batch)."""
        terms = [
            torch.where(share > 0.0, share.log() + law.log_prob(y), -math.inf)  # a law without weight may have none
            for share, law in zip(self.share, self.laws, strict=True)
        ]
        return torch.logsumexp(torch.stack(terms), 0)

    def cdf(self, y: Values) -> Tensor:
        """Probability below y, shape (..., *batch), with a small relative error in the lower tail."""
        return self._average(lambda law: law.cdf(y)).clamp_max(1.0)

    def sf(self, y: Values) -> Tensor:
        """Probability above y, shape (..., *batch), with a small relative error in the upper tail."""
        return self._average(lambda law: law.sf(y)).clamp_max(1.0)

    def icdf(self, p: Values) -> Tensor:
        """Quantile: the y with F(y) = p, shape (..., *batch), with first derivatives; see :meth:`Mixture.icdf`.

        Raises
        ------
        DataError
            If a probability is outside [0, 1] or NaN.
        """
        prob = torch.as_tensor(p, dtype=torch.float64, device="cpu")
        if not ((prob >= 0) & (prob <= 1)).all():
            raise DataError(
                f"icdf was given probabilities between {prob.min().item()} and {prob.max().item()}; allowed are 0 to 1"
            )
        prob = prob.expand(torch.broadcast_shapes(prob.shape, self.batch_shape))
        inside = (prob > 0) & (prob < 1)
        y = self._quantile(torch.where(inside, prob, 0.5))
        return torch.where(inside, y, torch.where(prob > 0, math.inf, -math.inf))

    def isf(self, q: Values) -> Tensor:
        """Upper quantile: the y exceeded with probability q, shape (..., *batch), accurate for small q."""
        mirrored = [Mixture(law.log_weight, replace(law.component, loc=-law.component.loc)) for law in self.laws]
        return -Pool(self.share, mirrored).icdf(q)

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n times, independently for each element of the batch; shape (n, *batch)."""
        draws = torch.stack([law.sample(n, generator) for law in self.laws])  # (J, n, *batch)
        share = self.share.detach().expand(len(self.laws), self.batch_shape[-1])
        rows = math.prod(self.batch_shape[:-1])
        index = multinomial(share.T, n * rows, generator).T.reshape(1, n, *self.batch_shape)
        return draws.gather(0, index)[0]

    def _average(self, function: Callable[[Mixture], Tensor]) -> Tensor:
        """Return the average of a function of the laws; laws of weight zero are not evaluated."""
        used = [j for j, share in enumerate(self.share) if bool((share > 0).any())]
        total = self.share[used[0]] * function(self.laws[used[0]])
        for j in used[1:]:
            total = total + self.share[j] * function(self.laws[j])
        return total

    def _quantile(self, p: Tensor) -> Tensor:
        """Solve F(y) = p for 0 < p < 1, shape (..., *batch)."""
        y = self._solve(p.detach())
        if not torch.is_grad_enabled():
            return y
        return attach_first_derivatives(y, p, self.cdf(y), self.log_prob(y))

    @torch.no_grad()
    def _solve(self, p: Tensor) -> Tensor:
        used = [j for j, share in enumerate(self.share) if bool((share > 0).any())]
        brackets = [self.laws[j].bracket(p) for j in used]
        low = torch.stack([bracket[0] for bracket in brackets]).amin(0)
        high = torch.stack([bracket[1] for bracket in brackets]).amax(0)
        start = brackets[0][2]  # the quantiles of the first law

        def tail_and_density(y: Tensor, sign: Tensor) -> tuple[Tensor, Tensor]:
            parts = [self.laws[j].tail_and_density(y, sign) for j in used]
            tails = torch.stack([part[0] for part in parts], -1)
            densities = torch.stack([part[1] for part in parts], -1)
            share = self.share[used].T  # (T, J)
            return (tails * share).sum(-1), (densities * share).sum(-1)

        return solve_quantile(p, (low, high), start, tail_and_density)
