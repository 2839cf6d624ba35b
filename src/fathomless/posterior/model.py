"""What a family of networks is to the rest of the library: a weighted set of networks.

Every family answers one question in one way. :class:`Draws` is the answer; the evidence bound, the predictive
distribution and the split of uncertainty follow from it without knowing the family. What only some families can do is
in :mod:`fathomless.posterior.capabilities`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import final

import torch
from torch import Tensor, nn

from fathomless.posterior.structure import Structure
from fathomless.system.errors import DataError

__all__ = ["Draws", "Model"]


@dataclass(frozen=True)
class Draws:
    """Networks drawn from a posterior over structure and weights, evaluated on one batch.

    Attributes
    ----------
    f : Tensor, shape (S, B, K), or (S, B, ...) of networks without a head
        Parameters of the likelihood under each drawn network.
    log_weight : Tensor, shape (S,)
        Log posterior weight of each draw; ``logsumexp`` over draws is 0.
    structure : Tensor of int64, shape (S,)
        Which structure each draw belongs to: draws with equal entries differ in their weights alone. A family that
        draws structures too draws several weights for each, so that both parts of the uncertainty can be told apart.
    divergence : mapping of str to scalar Tensor
        Named Kullback-Leibler terms in nats, for the whole data set (not divided by anything).
    tempered : frozenset of str
        The terms that a temperature multiplies: those of the weights.
    sampled : bool
        Whether the structures are a sample, drawn as the weights are; their numbers then mean something within these
        draws alone. Else they are listed with their exact weights, and a number is the same structure in every model
        of the family.
    network : Tensor of int64, shape (S,), optional
        Which network each draw is of. Draws of different numbers are independent: other members of an ensemble, or
        other joint draws of all layers. Draws of one number share weights across structures, or are several draws by
        one member. So structures and networks are crossed, not nested, which the split of the uncertainty and the
        Monte Carlo error of a prediction must know. None: nothing but `structure` ties draws together.
    """

    f: Tensor
    log_weight: Tensor
    structure: Tensor
    divergence: Mapping[str, Tensor]
    tempered: frozenset[str] = frozenset({"weights"})
    sampled: bool = False
    network: Tensor | None = None

    def __post_init__(self) -> None:
        """Compare shapes, which reads nothing from the device."""
        one_each = {"log_weight": self.log_weight, "structure": self.structure}
        if self.network is not None:
            one_each["network"] = self.network
        if self.f.dim() < 3 or any(t.shape != self.f.shape[:1] for t in one_each.values()):
            found = ", ".join(f"{name} {tuple(t.shape)}" for name, t in {"f": self.f, **one_each}.items())
            raise DataError(
                f"Draws were given {found}; allowed are f (S, B, ...), the outputs of S networks for B rows, and one "
                "entry of shape (S,) for each of them; f[None] makes one network's outputs (1, B, K)"
            )


class Model(nn.Module, ABC):
    """A family of networks: draw from it, look at its structure."""

    @property
    @abstractmethod
    def stochastic(self) -> bool:
        """Whether weights are drawn; if not, :meth:`draw` returns one row for each structure, whatever n is."""

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

    @final  # type: ignore[misc]
    def forward(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Call :meth:`draw`; ``fathomless.posterior.predictive.predictive`` turns the result into a distribution."""
        return self.draw(x, n, generator)

    @final
    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights: the narrowest there is, since a law over structure may be in double."""
        parameters = [p for p in self.parameters() if p.is_floating_point()]
        return min(parameters or self.buffers(), key=lambda t: t.dtype.itemsize).dtype

    @final
    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next((t.device for t in chain(self.parameters(), self.buffers())), torch.device("cpu"))
