"""Predictive distributions of labels that a row may have or not, any number of them at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fathomless.posterior.distributions import ClassPredictive, Labels, Predictive, Values, check_alike, doubles
from fathomless.posterior.uncertainty import Spread, Uncertainty
from fathomless.system.draws import bernoulli
from fathomless.system.errors import DataError

__all__ = ["IndicatorPredictive"]


@dataclass(frozen=True, eq=False, repr=False)
class IndicatorPredictive(Predictive):
    """Predictive distribution over T columns of 0 and 1, independent given the network.

    Attributes
    ----------
    logit : Tensor of float64, shape (S, N, T)
        Log odds of 1 under each drawn network.

    Examples
    --------
    >>> one = torch.zeros(1, dtype=torch.int64)
    >>> p = IndicatorPredictive(torch.zeros(1, dtype=torch.float64), one, torch.zeros(1, 1, 2, dtype=torch.float64))
    >>> p.probs, p.log_prob([[0, 1]]).exp()
    (tensor([[0.5000, 0.5000]], dtype=torch.float64), tensor([0.2500], dtype=torch.float64))
    """

    logit: Tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one set of labels for each row, (N, T)."""
        return tuple(self.logit.shape[1:])

    @property
    def nbytes(self) -> int:
        """Bytes that the log odds take."""
        return self.logit.nbytes

    @cached_property
    def each(self) -> ClassPredictive:
        """Every column of every row by itself: N · T rows with the classes 0 and 1."""
        logit = self.logit.flatten(1)[..., None]  # (S, N · T, 1)
        log_p, labels = F.logsigmoid(torch.cat([-logit, logit], -1)), np.arange(2)
        return ClassPredictive(
            self.log_weight, self.structure, log_p, labels, sampled=self.sampled, network=self.network
        )

    @property
    def each_probs(self) -> Tensor:
        """Probability of 1 under each drawn network, shape (S, N, T)."""
        return self.logit.sigmoid()

    @property
    def log_probs(self) -> Tensor:
        """Log of the averaged probability of 1, shape (N, T); accurate for tiny probabilities."""
        return self._shaped(self.each.log_probs[:, 1])

    @property
    def probs(self) -> Tensor:
        """Averaged probability of 1, shape (N, T)."""
        return self.log_probs.exp()

    def predict(self) -> Labels:
        """Return 1 where it is more probable than 0, shape (N, T)."""
        return (self.probs > 0.5).long().numpy()

    def log_prob(self, y: Values) -> Tensor:
        """Log mass of each row's labels together, shape (N,), in nats.

        Parameters
        ----------
        y : array_like of 0 and 1, shape (N, T)
            Labels.

        Raises
        ------
        DataError
            If the shape differs or another number is among them.
        """
        given = doubles(y)
        if given.shape != self.shape or not bool(((given == 0.0) | (given == 1.0)).all()):
            raise DataError(
                f"log_prob was given labels of shape {tuple(given.shape)}; allowed are 0 and 1 in the shape "
                f"{self.shape}"
            )
        log_p = -F.binary_cross_entropy_with_logits(self.logit, given.expand_as(self.logit), reduction="none").sum(-1)
        return torch.logsumexp(self.log_weight[:, None] + log_p, 0)

    def sample(self, n: int, generator: torch.Generator) -> Labels:
        """Draw labels, shape (n, N, T): one network for each of the n samples, shared by its rows and columns."""
        return bernoulli(self.logit[self._networks(n, generator)].sigmoid(), generator).long().numpy()

    def columns(self, targets: Sequence[str] = (), levels: Sequence[float] = (0.9,)) -> dict[str, npt.NDArray[Any]]:
        """Lay the distribution out as columns, one value for each row.

        They are NAME, 0 or 1, and NAME_probability, that of 1, for every target; y0, y1, ... if none were named. Levels
        are for numbers.
        """
        named = targets or [f"y{t}" for t in range(self.logit.shape[2])]
        columns: dict[str, npt.NDArray[Any]] = {}
        for t, name in enumerate(named):
            columns |= {name: self.predict()[:, t], f"{name}_probability": self.probs[:, t].detach().numpy()}
        return columns

    def entropy(self) -> Tensor:
        """Entropy of every column by itself in nats, shape (N, T); that of a whole row is not their sum."""
        return self._shaped(self.each.entropy())

    @property
    def mc_error(self) -> Tensor:
        """Standard error of ``probs`` due to the finite number of networks, shape (N, T)."""
        return self._shaped(self.each.mc_error[:, 1])

    def uncertainty(self) -> Uncertainty:
        """Split the entropy of every column, shape (N, T); see :meth:`ClassPredictive.uncertainty`."""
        split = self.each.uncertainty()
        parts = (self._shaped(part) for part in (split.noise, split.weights, split.structure, split.total))
        spread = None if split.spread is None else Spread(*map(self._shaped, split.spread))
        return Uncertainty(*parts, spread=spread)

    def concatenated(self, others: Sequence[Predictive]) -> Self:
        """Return one prediction for these rows followed by those of the others."""
        chunks = [self, *(other for other in others if isinstance(other, type(self)))]
        check_alike([self, *others], [chunk.logit.shape[2] for chunk in chunks])
        return replace(self, logit=torch.cat([chunk.logit for chunk in chunks], 1))

    def _shaped(self, values: Tensor) -> Tensor:
        return values.reshape(self.shape)
