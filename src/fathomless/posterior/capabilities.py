"""Optional capabilities of models, one abstract class each.

A model has a capability if it inherits from its class. An inference that needs one checks once at its start with
``isinstance``, and otherwise raises the error of :func:`missing_capability`. Models have no stubs of capabilities that
they lack.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

from torch import Tensor, nn

from fathomless.posterior.model import Draws, Model
from fathomless.system.errors import DataError

__all__ = [
    "Growing",
    "HasLogJoint",
    "HasStructureLaw",
    "JointlyEvaluable",
    "JointlyTrainable",
    "LinearHeads",
    "ListedStructure",
    "Mergeable",
    "NaturalGradient",
    "Recordable",
    "Resizable",
    "SelectsInputs",
    "get_blueprint",
    "missing_capability",
    "rebuild",
]


class Resizable(Model, ABC):
    """A model whose parts are created during training, so that a ``state_dict`` alone cannot be loaded."""

    @abstractmethod
    def blueprint(self) -> dict[str, Any]:
        """Return the list of parts that must exist before a ``state_dict`` can be loaded, as plain JSON."""

    @abstractmethod
    def rebuild(self, blueprint: dict[str, Any]) -> None:
        """Create the parts that a blueprint names, and no others; ``load_state_dict`` sets their values."""


class Growing(Resizable, ABC):
    """A model that creates and freezes parts to follow the support of its posterior over structure."""

    @abstractmethod
    def grow(self, limit: int | None = None) -> int:
        """Create, freeze or unfreeze parts to match the posterior over structure; return the number of created parts.

        Call this between training steps, not in evaluation, and after each change of the parameters of the posterior
        over structure. It reads the device. Unused parameters have ``requires_grad=False`` and no gradient, so that
        no optimizer changes them.

        Parameters
        ----------
        limit : int, optional
            Largest number of parts to create in this call.
        """

    @abstractmethod
    def use_probability(self) -> dict[str, Tensor]:
        """Return the posterior probability that each named parameter is used, as scalars on the device.

        Parameters that are not named are always used. Stochastic gradient descent divides gradients by it, so that
        rarely used parts learn as fast as the others. Adaptive optimizers do not need this.
        """


class HasStructureLaw(Model, ABC):
    """A model whose posterior over structure has parameters that are trained by gradients."""

    @abstractmethod
    def structure_parameters(self) -> dict[str, nn.Parameter]:
        """Return the variational parameters of the posterior over structure, by their full names."""


class NaturalGradient(HasStructureLaw, ABC):
    """A model whose law over structure has few enough parameters to invert its Fisher information."""

    @abstractmethod
    def fisher(self) -> Tensor:
        """Return the Fisher information matrix of the parameters of the posterior over structure, shape (P, P)."""


class ListedStructure(Resizable, ABC):
    """A posterior over a finite or infinite list of structures, whose weights can be set from outside."""

    @abstractmethod
    def list_structures(self, count: int) -> dict[int, float]:
        """Return the log priors of the first `count` structures by number; of fewer if the list or the prior ends.

        The numbers are those in ``structure`` of :class:`~fathomless.posterior.model.Draws`.
        """

    @abstractmethod
    def weigh(self, masses: Mapping[int, float], *, only: bool = False) -> int:
        """Set the posterior over structure to fixed masses, which are not trained any more.

        Parts that these structures need are created. Parts that they do not use are frozen, or deleted if `only` is
        true. Masses are positive and sum to 1.

        Returns
        -------
        int
            Number of created parts.
        """


class HasLogJoint(Model, ABC):
    """A model whose networks, given their structure, are functions of finitely many weights with a log joint density.

    The positions of a Markov chain are the parameters of such a network.
    """

    @abstractmethod
    def network(self, number: int) -> nn.Module:
        """Return the network of one structure as a plain module, (B, D) -> (B, K), with its own parameters."""


class LinearHeads(Model, ABC):
    """A model in which each listed structure has its own head, a map from features to outputs.

    Features are functions of the input that do not depend on the head. The posterior of a linear head therefore has a
    closed form.
    """

    @abstractmethod
    def features(self, x: Tensor) -> dict[int, Tensor]:
        """Return the features (B, H) of every structure in use, by number."""

    @abstractmethod
    def heads_in_use(self) -> dict[int, nn.Module]:
        """Return the head of every structure in use, by number.

        Raises
        ------
        DataError
            If structures share a head, or features are drawn.
        """

    @abstractmethod
    def replace_heads(self, heads: Mapping[int, nn.Module]) -> None:
        """Replace the heads of some structures."""


class SelectsInputs(Model, ABC):
    """A model with a linear map of its D inputs, of which it can leave some out."""

    @abstractmethod
    def first_weight(self) -> Tensor:
        """Return the weights of the first map, shape (H, D)."""

    @abstractmethod
    def keep_inputs(self, kept: Tensor) -> None:
        """Leave out inputs, in place, until :meth:`restore_inputs`.

        Parameters
        ----------
        kept : Tensor of int64, shape (M,)
            Index of the original input at each of the M inputs; −1 for an input that is always 0.
        """

    @abstractmethod
    def restore_inputs(self) -> None:
        """Restore all inputs, in place; the weights of those that were left out are 0."""

    @abstractmethod
    def add_inputs(self, places: Tensor, count: int) -> None:
        """Add inputs with the weight 0 to a trained network, in place.

        Parameters
        ----------
        places : Tensor of int64, shape (M,)
            Index of each of the M present inputs among all inputs.
        count : int
            Number of all inputs, D.
        """

    @abstractmethod
    def start_without(self, inputs: Tensor, count: int) -> None:
        """Set the initial weights of some inputs to 0, in place, in existing linear maps of all inputs.

        Parameters
        ----------
        inputs : Tensor of int64, shape (M,)
            Indices of these inputs.
        count : int
            Number of all inputs, D.
        """


class JointlyTrainable(Model, ABC):
    """A model that can be trained jointly with others of its class as one stacked model, on rows in F blocks.

    Row r of F·B rows belongs to model r // B. The divergence is the sum over models. All share one law over structure.
    """

    @abstractmethod
    def stack(self, others: Sequence[Model]) -> Self:
        """Return one model that contains this one and `others`.

        Each parameter has a row for each model or is inside a :class:`~fathomless.nn.stacked.Apart`, except for those
        of the law over structure.

        Raises
        ------
        DataError
            If the models differ in their layers, or draw their weights.
        """

    @abstractmethod
    def unstack(self, models: Sequence[Model]) -> None:
        """Copy the state of a model that :meth:`stack` returned into the single models."""


class JointlyEvaluable(Model, ABC):
    """A model that can be evaluated together with others of its class, by fewer and larger products."""

    @abstractmethod
    def draw_jointly(self, others: Sequence[Model], x: Tensor) -> list[Draws]:
        """Return the draws of this model and of `others` for the same rows, (B, …), without gradients.

        They are those of ``draw`` except for rounding. The list is empty if the models have different layers, draw
        their weights, or are in training mode.
        """


class Mergeable(Model, ABC):
    """A model that can be evaluated in parallel with others of its class, as one network with stacked parameters."""

    @abstractmethod
    def merge(self, others: Sequence[Model]) -> Self:
        """Return a copy that has the union of the parts of this model and of `others`.

        With the parameters of one of these models, and any finite values for parts that the model lacks, the copy
        computes the outputs of that model. Many models can therefore be evaluated at once.

        Raises
        ------
        DataError
            If the models differ in their layers.
        """


class Recordable(Model, ABC):
    """A model whose training steps are the same computation as long as its structure does not change.

    On a GPU, such a step is recorded once and then replayed.
    """

    @abstractmethod
    def step_key(self) -> Any:
        """Return a value that determines the computation; None if it draws random numbers, or may differ by step.

        Two equal values stand for the same operations on the same constants. Parameters may change.
        """

    @abstractmethod
    def constants(self) -> Any:
        """Return the tensors, other than rows and parameters, that the next step in training mode reads."""


def missing_capability(model: Model, capability: type, what: str, instead: str) -> DataError:
    """Return the error for an inference that needs a capability that a model does not have.

    Parameters
    ----------
    model : Model
        Model of any family.
    capability : type
        One of the classes of this module.
    what : str
        Option with its value, or name of the computation, for the message.
    instead : str
        Advice, for the message.
    """
    meaning = _MEANING.get(capability, capability.__name__)
    return DataError(f"{what} is not possible for a {type(model).__name__}, which has no {meaning}; {instead}")


_MEANING: dict[type, str] = {
    Resizable: "parts that can be rebuilt (Resizable)",
    Growing: "parts that grow (Growing)",
    SelectsInputs: "inputs that can be left out or added (SelectsInputs)",
    HasStructureLaw: "law over structure with parameters (HasStructureLaw)",
    NaturalGradient: "Fisher information of its law over structure (NaturalGradient)",
    LinearHeads: "heads on features (LinearHeads)",
    ListedStructure: "list of structures whose weights can be set (ListedStructure)",
    HasLogJoint: "networks of finitely many weights given their structure (HasLogJoint)",
    JointlyTrainable: "support for training with other networks as one (JointlyTrainable)",
    Mergeable: "support for evaluation in parallel with other networks (Mergeable)",
}


def get_blueprint(model: Model) -> dict[str, Any]:
    """Return the blueprint of a model, which is needed to load its state; {} if its parts are fixed."""
    return model.blueprint() if isinstance(model, Resizable) else {}


def rebuild(model: Model, blueprint: dict[str, Any]) -> None:
    """Create the parts that a blueprint names, unless the parts of the model are fixed."""
    if isinstance(model, Resizable):
        model.rebuild(blueprint)
