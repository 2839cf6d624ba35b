"""Predictive distributions of classes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.posterior.distributions import Labels, Predictive, Values, check_alike, known_parts, to_array
from fathomless.posterior.uncertainty import Groups, Uncertainty, decompose
from fathomless.system.draws import multinomial
from fathomless.system.errors import DataError
from fathomless.system.masked import unmask

__all__ = ["ClassPredictive"]


@dataclass(frozen=True, eq=False, repr=False)
class ClassPredictive(Predictive):
    """Predictive distribution over C classes.

    Attributes
    ----------
    log_p : Tensor of float64, shape (S, N, C)
        Log probability of each class under each drawn network.
    labels : ndarray, shape (C,)
        Names of the classes; 0, 1, ... by default.
    """

    log_p: Tensor
    labels: Labels

    @property
    def discrete(self) -> bool:
        """True."""
        return True

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the labels of all rows, (N,)."""
        return (self.log_p.shape[1],)

    @property
    def nbytes(self) -> int:
        """Size of the log probabilities in bytes."""
        return self.log_p.nbytes

    def take(self, rows: Any) -> Self:
        """Return the prediction of some rows, given by an index or a mask."""
        return replace(self, log_p=self.log_p[:, rows])

    @property
    def each_probs(self) -> Tensor:
        """Class probabilities under each drawn network, shape (S, N, C)."""
        return self.log_p.exp()

    @cached_property
    def log_probs(self) -> Tensor:
        """Log of the averaged class probabilities, shape (N, C), accurate for small probabilities."""
        with torch.enable_grad():  # the result is cached, and a later caller may need gradients
            return torch.logsumexp(self.log_weight[:, None, None] + self.log_p, 0)

    @property
    def probs(self) -> Tensor:
        """Averaged class probabilities, shape (N, C)."""
        return self.log_probs.exp()

    @property
    def mode(self) -> Tensor:
        """Index of the most probable class, int64, shape (N,)."""
        return self.log_probs.argmax(-1)

    def predict(self) -> Labels:
        """Return the label of the most probable class, shape (N,)."""
        labels: Labels = self.labels[self.mode.numpy()]
        return labels

    def log_prob(self, y: Values) -> Tensor:
        """Log probability of the label of each row, shape (N,), in nats.

        Parameters
        ----------
        y : array_like, shape (N,)
            Labels, as in ``labels``.

        Raises
        ------
        DataError
            If the shape differs or a label is unknown.
        """
        index = self._index(y)
        return self.log_probs.gather(-1, index[:, None]).squeeze(-1)

    def sample(self, n: int, generator: torch.Generator) -> Labels:
        """Draw labels, shape (n, N); the rows of a sample share one drawn network."""
        index = self._networks(n, generator)
        drawn = multinomial(self.log_p[index].exp().flatten(0, 1), 1, generator).view(n, len(self))
        labels: Labels = self.labels[drawn.numpy()]
        return labels

    def logpmf(self, y: Values) -> npt.NDArray[Any]:
        """Log probability of the label of each row, as :meth:`log_prob`, under the name of SciPy."""
        return to_array(self.log_prob(y))

    def pmf(self, y: Values) -> npt.NDArray[Any]:
        """Probability of the label of each row."""
        return to_array(self.log_prob(y).exp())

    def columns(self, targets: Sequence[str] = (), levels: Sequence[float] = (0.9,)) -> dict[str, npt.NDArray[Any]]:
        """Return summaries of the distribution as columns, one value for each row.

        The columns are class, probability (of that class), probability_LABEL for every class, entropy_noise,
        entropy_weights and entropy_structure. The last two are left out if they are unknown. The arguments are for
        continuous targets and are ignored.
        """
        probs = to_array(self.probs)
        return {
            "class": self.predict(),
            "probability": probs.max(1),
            **{f"probability_{label}": probs[:, k] for k, label in enumerate(self.labels.tolist())},
            **{f"entropy_{name}": values for name, values in known_parts(self.uncertainty()).items()},
        }

    def entropy(self) -> Tensor:
        """Entropy of the averaged probabilities in nats, shape (N,)."""
        return _entropy(self.probs)

    @property
    def mc_error(self) -> Tensor:
        """Standard error of ``probs`` due to the finite number of networks, shape (N, C).

        It is computed as for the mean of a continuous target (:attr:`ContinuousPredictive.mc_error`). All rows share
        the draws, so that their errors are correlated. It is 0 if nothing is drawn.
        """
        return self._error(self.log_p.exp())

    def uncertainty(self) -> Uncertainty:
        r"""Split the entropy by the chain rule of mutual information.

        .. math:: H[p] = E_s H[p_s] + E_g \left(H[p_g] - E_{s \mid g} H[p_s]\right)
                  + \left(H[p] - E_g H[p_g]\right)

        with draws s, each in one structure g, and averaged probabilities p_g within a structure and p over
        all. For sampled structures, and for several networks that have all structures by one law, the sum of the last
        two terms is divided in the ratio of the estimated variances of the probabilities, summed over classes.
        """
        groups = Groups.of(self.log_weight, self.structure)
        probs = self.log_p.exp()  # (S, N, C)
        draw_entropy = groups.within(_entropy(probs))  # (G, N), mean entropy of the draws of a structure
        group_probs = groups.within(probs)  # (G, N, C)
        total = _entropy(groups.across(group_probs))  # (N,)
        noise = groups.across(draw_entropy)
        if (estimates := self._spread(probs)) is not None:
            return decompose(noise, total, estimates.sum(-1))
        group_entropy = _entropy(group_probs)  # (G, N)
        weights = groups.across((group_entropy - draw_entropy).clamp_min(0.0))
        structure = (total - groups.across(group_entropy)).clamp_min(0.0)
        return Uncertainty(noise, weights, structure, total)

    def with_log_p(self, log_p: Tensor) -> Self:
        """Return the prediction of the same draws with other log probabilities, shape (S, N, C)."""
        return replace(self, log_p=log_p)

    def concatenate(self, others: Sequence[Predictive]) -> Self:
        """Return one prediction for these rows followed by those of the others."""
        chunks = [self, *(other for other in others if isinstance(other, type(self)))]
        check_alike([self, *others], [tuple(chunk.labels.tolist()) for chunk in chunks])
        return replace(self, log_p=torch.cat([chunk.log_p for chunk in chunks], 1))

    def _index(self, y: Values) -> Tensor:
        labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(unmask(y))
        if labels.shape != self.shape:
            raise DataError(f"labels of shape {labels.shape} were given; allowed is {self.shape}: one for each row")
        index_of = {label: index for index, label in enumerate(self.labels.tolist())}
        unknown = sorted({repr(label) for label in labels.tolist() if label not in index_of})
        if unknown:
            raise DataError(
                f"labels were given that are not classes: {', '.join(unknown[:10])}; allowed are {self.labels.tolist()}"
            )
        return torch.tensor([index_of[label] for label in labels.tolist()], dtype=torch.int64, device="cpu")


def _entropy(probs: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(probs).sum(-1)
    return entropy
