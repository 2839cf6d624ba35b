"""Options of a family as a value that builds its networks, for fits and for saved models alike."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import Field
from typing import Any, ClassVar, Self, cast

import torch

from fathomless.estimators.declaring import chosen, nested_of, value_of
from fathomless.estimators.options import DrawnWeightsOptions, TableOptions, options_of
from fathomless.estimators.values import ELBO, CheckpointOptions, Restarts
from fathomless.inference.runs.distributed import local_device
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics, Diagnostics
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Model
from fathomless.system import checks
from fathomless.system.errors import DataError

__all__ = ["Networks"]


class Networks(TableOptions, ABC):
    """Options of a family, and the networks that they build. It knows no scikit-learn and no inference."""

    diagnostics_class: ClassVar[type[Diagnostics]] = CrossFitDiagnostics
    on_processor: ClassVar[bool] = False  # whether device="auto" never takes an accelerator
    saved_values: ClassVar[dict[str, type]] = {}  # classes of saved options, without those that options declare
    weight_draws: int = DrawnWeightsOptions.weight_draws  # an option of families that draw weights

    @abstractmethod
    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> Model:
        """Build the untrained model for so many encoded columns."""

    @abstractmethod
    def _check_saved(self, blueprint: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        """Refuse options and a blueprint that would build another network than the saved one."""

    def _options_given(self, deep: bool = False) -> dict[str, Any]:
        """Return the options as they are now; with `deep` also those of values, and of the evidence bound anyway."""
        found = {option.name: getattr(self, option.name) for option in options_of(type(self))}
        if deep:
            by_bound = {"structure_from": self._elbo()} if "structure_from" in found else {}
            found.update(nested_of(options_of(type(self)), {**found, **by_bound}))
        return found

    def _choice(self, name: str) -> Any:
        """Return the name of a choice, also where a value with options was given; None without such an option."""
        declared = self._declared(name)
        return None if declared is None else chosen(declared, getattr(self, name))

    def _value(self, name: str) -> Any:
        """Return the value with options that an option stands for; None for a choice, or a family, that has none."""
        declared = self._declared(name)
        return None if declared is None else value_of(declared, getattr(self, name))

    def _declared(self, name: str) -> Field[Any] | None:
        """Return the declaration of an option, if the family has it."""
        return next((option for option in options_of(type(self)) if option.name == name), None)

    def _checkpoint(self) -> CheckpointOptions:
        """Return the options of checkpoints."""
        return cast(CheckpointOptions, self._value("checkpoint"))

    def _elbo(self) -> ELBO:
        """Return the options of the evidence bound; the defaults where "auto" ends in it."""
        return cast(ELBO, self._value("structure_from") or ELBO())

    def _restarts(self) -> Restarts:
        """Return the number of starts and the choice among them; one start in families without such an option."""
        return cast(Restarts, self._value("n_restarts") or Restarts())

    @classmethod
    def _saved_values(cls) -> dict[str, type]:
        """Return the classes of options, beyond plain values, that a manifest may hold."""
        nested = (kind for option in options_of(cls) for kind in option.metadata["values"].values())
        return {**cls.saved_values, **{kind.__name__: kind for kind in nested}}

    def _check_options(self) -> None:
        """Check options as they are declared."""
        for option in options_of(type(self)):
            checks.option(option.name, getattr(self, option.name), **option.metadata)

    def _with(self, options: Mapping[str, Any]) -> Self:
        """Return a copy with other options."""
        other = copy.copy(self)
        for name, value in options.items():
            setattr(other, name, value)
        return other

    def _device(self) -> torch.device:
        """Return the device that the option names."""
        if self.device == "auto":
            return torch.device("cpu") if self.on_processor else local_device()
        try:
            device = torch.device(self.device)
            torch.zeros(1, device=device).tolist()
        except (RuntimeError, AssertionError) as error:
            reason = str(error).partition("\n")[0][:200]
            raise DataError(
                f"device={self.device!r} was given, which torch cannot use here ({reason}); 'cpu' always works"
            ) from error
        return device
