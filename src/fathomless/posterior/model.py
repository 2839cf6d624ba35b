"""What a family of networks is to the rest of the library: a weighted set of networks.

Every family answers the same question in the same way. :class:`Draws` is the answer; the evidence bound, the
predictive distribution and the split of uncertainty follow from it without knowing the family.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Draws", "Model", "Structure", "credible_interval"]


@dataclass(frozen=True)
class Draws:
    """Networks drawn from a posterior over structure and weights, evaluated on one batch.

    Attributes
    ----------
    f : Tensor, shape (S, B, K)
        Parameters of the likelihood under each drawn network.
    log_weight : Tensor, shape (S,)
        Log posterior weight of each draw; ``logsumexp`` over draws is 0.
    structure : Tensor of int64, shape (S,)
        Which structure each draw belongs to: draws with equal entries differ in their weights alone.
    divergence : mapping of str to scalar Tensor
        Named Kullback-Leibler terms in nats, for the whole data set (not divided by anything).
    """

    f: Tensor
    log_weight: Tensor
    structure: Tensor
    divergence: Mapping[str, Tensor]


@dataclass(frozen=True)
class Structure:
    """A posterior over structure, as a plain value.

    Attributes
    ----------
    kind : str
        What is inferred, for instance ``"depth"``.
    names : tuple of str
        One name for each structure in the support.
    probabilities : tuple of float
        Posterior probability of each, in the same order; they sum to 1.
    statistics : mapping of str to float
        Named scalars that a training history follows, for instance the mean depth.
    summary : str
        One line for a person.
    """

    kind: str
    names: tuple[str, ...]
    probabilities: tuple[float, ...]
    statistics: Mapping[str, float] = field(default_factory=dict)
    summary: str = ""


def credible_interval(posterior: Mapping[int, float], level: float) -> tuple[int, int]:
    """Return the central interval that holds at least `level` of a posterior over numbers, such as depths.

    Examples
    --------
    >>> credible_interval({1: 0.02, 2: 0.5, 3: 0.45, 4: 0.03}, 0.9)
    (2, 3)
    """
    tail, below = 0.5 * (1.0 - level), 0.0
    low = high = min(posterior)
    for value in sorted(posterior):
        low = value if below <= tail else low
        below += posterior[value]
        high = value
        if below >= 1.0 - tail:
            break
    return low, high


class Model(nn.Module, ABC):
    """A family of networks: draw from it, look at its structure, let it grow."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the model lives."""

    @property
    @abstractmethod
    def stochastic(self) -> bool:
        """Whether weights are drawn; if not, :meth:`draw` returns one row of networks whatever n is."""

    def forward(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Call :meth:`draw`; ``fathomless.posterior.predictive.predictive`` turns the result into a distribution."""
        return self.draw(x, n, generator)

    @abstractmethod
    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Evaluate drawn networks on a batch.

        Parameters
        ----------
        x : Tensor, shape (B, ...)
            Inputs.
        n : int
            Number of weight draws. Sums that a family can carry out exactly (over depths, say) are exact.
        generator : torch.Generator, optional
            Source of randomness; needed by families that sample.
        """

    @abstractmethod
    def structure(self) -> Structure:
        """Return the posterior over structure as a plain value. Reads the device once."""

    @abstractmethod
    def grow(self, limit: int | None = None) -> int:
        """Create, retire or wake parts, as the posterior over structure asks; return how many were created.

        Called between training steps, never by evaluation. Reads the device. Parameters that are not in use have
        ``requires_grad`` false and no gradient, so that no optimiser moves them. Whoever changes the parameters of the
        posterior over structure calls this before the next training step.

        Parameters
        ----------
        limit : int, optional
            Create at most this many now.
        """

    @abstractmethod
    def structure_parameters(self) -> dict[str, nn.Parameter]:
        """Return the variational parameters of the posterior over structure, by their full names."""

    @abstractmethod
    def fisher(self) -> Tensor:
        """Return the Fisher information of the posterior over structure in its parameters, shape (P, P)."""

    @abstractmethod
    def usage(self) -> dict[str, Tensor]:
        """Return the posterior probability that each named parameter is used, as scalars on the device.

        Parameters that are not named are always used. Plain stochastic gradients divide by it, so that a
        part which is seldom used learns as fast as the others; adaptive optimisers do so by themselves.
        """

    @abstractmethod
    def layout(self) -> dict[str, Any]:
        """Return, as plain JSON, what must exist before a ``state_dict`` of this model can be loaded."""

    @abstractmethod
    def restore(self, layout: dict[str, Any]) -> None:
        """Create what a layout from :meth:`layout` names; the values come from the ``state_dict``."""

    @abstractmethod
    def joined(self, others: Sequence["Model"]) -> "Model":
        """Return a copy that has every part that this model or any of `others` has.

        Its forward pass, with the parameters of one of them put in (and anything finite where that one has none), gives
        what that one gives; so that many models can be evaluated at once.

        Raises
        ------
        DataError
            If the models are not built alike.
        """
