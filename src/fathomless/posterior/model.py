"""Interface of all families of networks: a weighted set of drawn networks.

Every model returns :class:`Draws`. The evidence lower bound, the predictive distribution and the decomposition of
uncertainty are computed from them, independent of the family. Optional capabilities of some families are in
:mod:`fathomless.posterior.capabilities`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import final

import torch
from torch import Tensor, nn

from fathomless.posterior.structure import Structure
from fathomless.system import checks
from fathomless.system.errors import DataError

__all__ = ["Deferred", "Draws", "Model"]


class Deferred(Mapping[str, Tensor]):
    """Mapping of terms, some of which are computed when they are read, from the parameters at that time.

    Parameters
    ----------
    terms : mapping of str to Tensor or callable
        Value of each key, or a function that returns it.

    Examples
    --------
    >>> terms = Deferred({"weights": lambda: torch.zeros((), device="cpu")})
    >>> list(terms), terms["weights"].item()
    (['weights'], 0.0)
    """

    def __init__(self, terms: Mapping[str, Tensor | Callable[[], Tensor]]) -> None:
        self._terms = dict(terms)

    def __getitem__(self, name: str) -> Tensor:
        term = self._terms[name]
        return term if isinstance(term, Tensor) else term()

    def __iter__(self) -> Iterator[str]:
        return iter(self._terms)

    def __len__(self) -> int:
        return len(self._terms)


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
        Structure of each draw; draws with equal entries differ in their weights only. A family that draws structures
        draws several sets of weights for each, so that both parts of the uncertainty can be separated.
    divergence : mapping of str to scalar Tensor
        Named Kullback-Leibler terms in nats, for the whole data set (not per row). Predictions do not need them: a
        model may compute them when they are read (:class:`Deferred`).
    tempered : frozenset of str
        Terms that are multiplied by a temperature: those of the weights.
    sampled : bool
        True if the structures are a sample, as the weights are; their numbers are then valid within these draws only.
        Otherwise structures are listed with their exact weights, and a number means the same structure in every model
        of the family.
    network : Tensor of int64, shape (S,), optional
        Independent network of each draw, such as a member of an ensemble or a joint draw of all layers. Draws with one
        number share weights across structures, or are several draws by one member. Structures and networks are then
        crossed, not nested, which affects the decomposition of uncertainty and the Monte Carlo error of a prediction.
        None if draws depend on each other only through `structure`.
    """

    f: Tensor
    log_weight: Tensor
    structure: Tensor
    divergence: Mapping[str, Tensor]
    tempered: frozenset[str] = frozenset({"weights"})
    sampled: bool = False
    network: Tensor | None = None

    def __post_init__(self) -> None:
        """Check the shapes, without reading the device."""
        per_draw = {"log_weight": self.log_weight, "structure": self.structure}
        if self.network is not None:
            per_draw["network"] = self.network
        if self.f.dim() < 3 or any(t.shape != self.f.shape[:1] for t in per_draw.values()):
            shapes = ", ".join(f"{name} {tuple(t.shape)}" for name, t in {"f": self.f, **per_draw}.items())
            raise DataError(
                f"Draws were given {shapes}; allowed are f (S, B, ...), the outputs of S networks for B rows, and "
                "tensors of shape (S,) for the others; for one network use f[None], of shape (1, B, K)"
            )


class Model(nn.Module, ABC):
    """Base class of the models of all families: a posterior over structure and weights of networks."""

    @property
    @abstractmethod
    def stochastic(self) -> bool:
        """True if weights are drawn. Otherwise :meth:`draw` returns one draw for each structure, for every n."""

    @abstractmethod
    def draw(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Evaluate drawn networks on a batch.

        Parameters
        ----------
        x : Tensor, shape (B, ...)
            Inputs.
        n : int
            Number of weight draws. Finite sums over structures, such as depths, are computed exactly.
        generator : torch.Generator, optional
            Random number generator, for families that sample.
        """

    @abstractmethod
    def structure(self) -> Structure:
        """Return the posterior over structure. Reads the device once."""

    @final  # type: ignore[misc]
    def forward(self, x: Tensor, n: int = 1, generator: torch.Generator | None = None) -> Draws:
        """Call :meth:`draw`; ``fathomless.posterior.predictive.predictive`` converts the result to a distribution."""
        return self.draw(x, checks.whole("n", n), generator)

    @final
    @property
    def dtype(self) -> torch.dtype:
        """Floating-point type of the weights: the smallest type, since a law over structure may be in float64."""
        parameters = [p for p in self.parameters() if p.is_floating_point()]
        return min(parameters or self.buffers(), key=lambda t: t.dtype.itemsize).dtype

    @final
    @property
    def device(self) -> torch.device:
        """Device of the parameters."""
        return next((t.device for t in chain(self.parameters(), self.buffers())), torch.device("cpu"))
