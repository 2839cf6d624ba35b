"""Predictive distributions of several binary labels for each row (multilabel classification)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.distributions import Labels, Predictive, Values, check_alike, to_double
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
    def discrete(self) -> bool:
        """True."""
        return True

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the labels of all rows, (N, T)."""
        return tuple(self.logit.shape[1:])

    @property
    def nbytes(self) -> int:
        """Size of the log odds in bytes."""
        return self.logit.nbytes

    def take(self, rows: Any) -> Self:
        """Return the prediction of some rows, given by an index or a mask."""
        return replace(self, logit=self.logit[:, rows])

    @cached_property
    def as_classes(self) -> ClassPredictive:
        """Prediction of every column of every row separately: N · T rows with the classes 0 and 1."""
        logit = self.logit.flatten(1)[..., None]  # (S, N · T, 1)
        log_p = F.logsigmoid(torch.cat([-logit, logit], -1))
        return ClassPredictive(
            self.log_weight, self.structure, log_p, np.arange(2), sampled=self.sampled, network=self.network
        )

    @property
    def each_probs(self) -> Tensor:
        """Probability of 1 under each drawn network, shape (S, N, T)."""
        return self.logit.sigmoid()

    @property
    def log_probs(self) -> Tensor:
        """Log of the averaged probability of 1, shape (N, T), accurate for small probabilities."""
        return self._reshape(self.as_classes.log_probs[:, 1])

    @property
    def probs(self) -> Tensor:
        """Averaged probability of 1, shape (N, T)."""
        return self.log_probs.exp()

    def predict(self) -> Labels:
        """Return 1 where it is more probable than 0, shape (N, T)."""
        return (self.probs > 0.5).long().numpy()

    def log_prob(self, y: Values) -> Tensor:
        """Log joint probability of the labels of each row, shape (N,), in nats.

        Parameters
        ----------
        y : array_like of 0 and 1, shape (N, T)
            Labels.

        Raises
        ------
        DataError
            If the shape differs, or if there are other values than 0 and 1.
        """
        labels = to_double(y)
        if labels.shape != self.shape or not bool(((labels == 0.0) | (labels == 1.0)).all()):
            raise DataError(
                f"log_prob was given labels of shape {tuple(labels.shape)}; allowed are 0 and 1 in the shape "
                f"{self.shape}"
            )
        log_p = -F.binary_cross_entropy_with_logits(self.logit, labels.expand_as(self.logit), reduction="none").sum(-1)
        return torch.logsumexp(self.log_weight[:, None] + log_p, 0)

    def sample(self, n: int, generator: torch.Generator) -> Labels:
        """Draw labels, shape (n, N, T); the rows and columns of a sample share one drawn network."""
        return bernoulli(self.logit[self._networks(n, generator)].sigmoid(), generator).long().numpy()

    def columns(self, targets: Sequence[str] = (), levels: Sequence[float] = (0.9,)) -> dict[str, npt.NDArray[Any]]:
        """Return summaries of the distribution as columns, one value for each row.

        The columns are NAME, 0 or 1, and NAME_probability, the probability of 1, for every target. Default names are
        y0, y1, ... `levels` is for continuous targets and is ignored.
        """
        names = targets or [f"y{t}" for t in range(self.logit.shape[2])]
        columns: dict[str, npt.NDArray[Any]] = {}
        for t, name in enumerate(names):
            columns |= {name: self.predict()[:, t], f"{name}_probability": self.probs[:, t].detach().numpy()}
        return columns

    def entropy(self) -> Tensor:
        """Entropy of every column in nats, shape (N, T); their sum is not the entropy of a row."""
        return self._reshape(self.as_classes.entropy())

    @property
    def mc_error(self) -> Tensor:
        """Standard error of ``probs`` due to the finite number of networks, shape (N, T)."""
        return self._reshape(self.as_classes.mc_error[:, 1])

    def uncertainty(self) -> Uncertainty:
        """Decompose the entropy of every column, shape (N, T); see :meth:`ClassPredictive.uncertainty`."""
        split = self.as_classes.uncertainty()
        parts = (self._reshape(part) for part in (split.noise, split.weights, split.structure, split.total))
        spread = None if split.spread is None else Spread(*map(self._reshape, split.spread))
        return Uncertainty(*parts, spread=spread)

    def concatenate(self, others: Sequence[Predictive]) -> Self:
        """Return one prediction for these rows followed by those of the others."""
        chunks = [self, *(other for other in others if isinstance(other, type(self)))]
        check_alike([self, *others], [chunk.logit.shape[2] for chunk in chunks])
        return replace(self, logit=torch.cat([chunk.logit for chunk in chunks], 1))

    def _reshape(self, values: Tensor) -> Tensor:
        return values.reshape(self.shape)
