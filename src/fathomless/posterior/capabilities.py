"""What only some families can do, each as an abstract class of its own.

A model has a capability by inheriting from its class. An inference that needs one asks once, when it starts, with
``isinstance``, and its refusal (:func:`lacks`) names what the family lacks. No family carries a stub of what it cannot
do.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from torch import Tensor, nn

from fathomless.posterior.model import Model
from fathomless.system.errors import DataError

__all__ = [
    "Growing",
    "HasLogJoint",
    "HasStructureLaw",
    "JointlyTrainable",
    "LinearHeads",
    "ListedStructure",
    "Mergeable",
    "NaturalGradient",
    "Resizable",
    "blueprint_of",
    "lacks",
    "rebuild",
]


class Resizable(Model, ABC):
    """A model whose parts are created while it is trained: a ``state_dict`` alone cannot be loaded."""

    @abstractmethod
    def blueprint(self) -> dict[str, Any]:
        """Return, as plain JSON, what must exist before a ``state_dict`` of this model can be loaded."""

    @abstractmethod
    def rebuild(self, blueprint: dict[str, Any]) -> None:
        """Have exactly the parts that a blueprint names; their values come from the ``state_dict``."""


class Growing(Resizable, ABC):
    """A model that creates parts, and puts parts to rest, as its posterior over structure asks."""

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
    def use_probability(self) -> dict[str, Tensor]:
        """Return the posterior probability that each named parameter is used, as scalars on the device.

        Parameters that are not named are always used. Plain stochastic gradients divide by it, so that a
        part which is seldom used learns as fast as the others; adaptive optimisers do so by themselves.
        """


class HasStructureLaw(Model, ABC):
    """A model whose posterior over structure has parameters of its own, moved by gradients."""

    @abstractmethod
    def structure_parameters(self) -> dict[str, nn.Parameter]:
        """Return the variational parameters of the posterior over structure, by their full names."""


class NaturalGradient(HasStructureLaw, ABC):
    """A law over structure of so few parameters that its Fisher information can be inverted."""

    @abstractmethod
    def fisher(self) -> Tensor:
        """Return the Fisher information of the posterior over structure in its parameters, shape (P, P)."""


class ListedStructure(Resizable, ABC):
    """A posterior over a list of structures, which may have no end, that can be weighed from outside."""

    @abstractmethod
    def listed(self, count: int) -> dict[int, float]:
        """Return number -> log prior of the first `count` structures; of fewer if the list, or the prior, ends.

        The numbers are those that ``structure`` of :class:`~fathomless.posterior.model.Draws` has for them.
        """

    @abstractmethod
    def weigh(self, masses: Mapping[int, float], *, only: bool = False) -> int:
        """Take these structures, and no others, with these masses as the posterior; nothing is left to be learned.

        What they need is created, what they do not use is put to rest; with `only` it is dropped. Masses are positive
        and sum to 1.

        Returns
        -------
        int
            How many parts were created.
        """


class HasLogJoint(Model, ABC):
    """A model whose networks, given their structure, are functions of finitely many weights with a log joint density.

    A position is the parameters of such a network; a chain moves them, and hands back what it has kept.
    """

    @abstractmethod
    def network(self, number: int) -> nn.Module:
        """Return the network of one structure as a plain module, (B, D) -> (B, K), with parameters of its own."""


class LinearHeads(Model, ABC):
    """A model that gives each structure of its list a head of its own: a map from features to outputs.

    Features are functions of the input that a head has no part in, so that the posterior of a linear head is in closed
    form.
    """

    @abstractmethod
    def features(self, x: Tensor) -> dict[int, Tensor]:
        """Return the features (B, H) of every structure in use, by its number."""

    @abstractmethod
    def heads_in_use(self) -> dict[int, nn.Module]:
        """Return the head of every structure in use, by its number.

        Raises
        ------
        DataError
            If structures share a head, or features are drawn.
        """

    @abstractmethod
    def replace_heads(self, heads: Mapping[int, nn.Module]) -> None:
        """Put others in the place of the heads of some structures."""


class JointlyTrainable(Model, ABC):
    """A model that can be trained together with others of its kind as one model, on rows that lie in blocks.

    Row r of F·B rows belongs to model r // B, and the divergence is the sum of theirs. All have one law over structure.
    """

    @abstractmethod
    def stack(self, others: Sequence[Model]) -> Self:
        """Return one model that stands for this one and `others`.

        Each of its parameters, but for those of the law over structure, has a row for each model, or is inside a
        :class:`~fathomless.nn.stacked.Apart`.

        Raises
        ------
        DataError
            If the models are not built alike, or draw their weights.
        """

    @abstractmethod
    def unstack(self, models: Sequence[Model]) -> None:
        """Write the state of what :meth:`stack` returned into the models that it stands for."""


class Mergeable(Model, ABC):
    """A model that can be evaluated side by side with others of its kind, as one network with stacked parameters."""

    @abstractmethod
    def merge(self, others: Sequence[Model]) -> Self:
        """Return a copy that has every part that this model or any of `others` has.

        Its forward pass, with the parameters of one of them put in (and anything finite where that one has none), gives
        what that one gives; so that many models can be evaluated at once.

        Raises
        ------
        DataError
            If the models are not built alike.
        """


def lacks(model: Model, capability: type, what: str, instead: str) -> DataError:
    """Return the refusal of an inference that needs a capability which a model has not.

    Parameters
    ----------
    model : Model
        Any family.
    capability : type
        One of the classes of this module.
    what : str
        What was asked for, with its value.
    instead : str
        What to do.
    """
    meaning = _MEANING.get(capability, capability.__name__)
    return DataError(f"{what} was asked of a {type(model).__name__}, which has no {meaning}; {instead}")


_MEANING: dict[type, str] = {
    Resizable: "parts that can be rebuilt (Resizable)",
    Growing: "parts that grow (Growing)",
    HasStructureLaw: "law over structure with parameters (HasStructureLaw)",
    NaturalGradient: "Fisher information of its law over structure (NaturalGradient)",
    LinearHeads: "heads on features (LinearHeads)",
    ListedStructure: "list of structures that can be weighed (ListedStructure)",
    HasLogJoint: "networks of finitely many weights given their structure (HasLogJoint)",
    JointlyTrainable: "support for training with other networks as one (JointlyTrainable)",
    Mergeable: "support for evaluation in parallel with other networks (Mergeable)",
}


def blueprint_of(model: Model) -> dict[str, Any]:
    """Return what must exist before the state of a model can be loaded; {} if its parts are fixed."""
    return model.blueprint() if isinstance(model, Resizable) else {}


def rebuild(model: Model, blueprint: dict[str, Any]) -> None:
    """Have the parts that a blueprint names, unless the parts of the model are fixed."""
    if isinstance(model, Resizable):
        model.rebuild(blueprint)
