"""Base class of the options of a family, which build its networks for fits and for saved models."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import Field
from typing import Any, ClassVar, Self, cast

import torch

from fathomless.estimators.declaring import choice_name, nested_values, value_of
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
    """Options of a family and the construction of its networks, independent of scikit-learn and of inference."""

    diagnostics_class: ClassVar[type[Diagnostics]] = CrossFitDiagnostics
    on_processor: ClassVar[bool] = False  # True if device="auto" is always the CPU
    saved_values: ClassVar[dict[str, type]] = {}  # classes of saved options, in addition to declared option values
    weight_draws: int = DrawnWeightsOptions.weight_draws  # an option of families with sampled weights

    @abstractmethod
    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> Model:
        """Build the untrained model for a number of encoded columns."""

    @abstractmethod
    def _check_saved(self, blueprint: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        """Check that the options and a blueprint build the saved network."""

    def _current_options(self, deep: bool = False) -> dict[str, Any]:
        """Return the current options; with `deep` also nested ones, including those of the evidence bound if unused."""
        options = {option.name: getattr(self, option.name) for option in options_of(type(self))}
        if deep:
            by_bound = {"structure_from": self._elbo()} if "structure_from" in options else {}
            options.update(nested_values(options_of(type(self)), {**options, **by_bound}))
        return options

    def _choice(self, name: str) -> Any:
        """Return the name of the choice of an option, also for an option value; None if the family lacks the option."""
        declared = self._declaration(name)
        return None if declared is None else choice_name(declared, getattr(self, name))

    def _value(self, name: str) -> Any:
        """Return the option value of an option; None if the choice has no options, or the family lacks the option."""
        declared = self._declaration(name)
        return None if declared is None else value_of(declared, getattr(self, name))

    def _declaration(self, name: str) -> Field[Any] | None:
        """Return the declaration of an option; None if the family lacks it."""
        return next((option for option in options_of(type(self)) if option.name == name), None)

    def _checkpoint(self) -> CheckpointOptions:
        """Return the options of checkpoints."""
        return cast(CheckpointOptions, self._value("checkpoint"))

    def _elbo(self) -> ELBO:
        """Return the options of the evidence bound; the defaults unless they were given."""
        return cast(ELBO, self._value("structure_from") or ELBO())

    def _restarts(self) -> Restarts:
        """Return the options of restarts; a single start for families without them."""
        return cast(Restarts, self._value("n_restarts") or Restarts())

    @classmethod
    def _saved_values(cls) -> dict[str, type]:
        """Return the classes of options that a manifest may contain in addition to plain values."""
        nested = (kind for option in options_of(cls) for kind in option.metadata["values"].values())
        return {**cls.saved_values, **{kind.__name__: kind for kind in nested}}

    def _check_options(self) -> None:
        """Check the options against their declarations."""
        for option in options_of(type(self)):
            checks.option(option.name, getattr(self, option.name), **option.metadata)

    def _copy_with(self, options: Mapping[str, Any]) -> Self:
        """Return a copy with other options."""
        other = copy.copy(self)
        for name, value in options.items():
            setattr(other, name, value)
        return other

    def _device(self) -> torch.device:
        """Return the device of the option `device`."""
        if self.device == "auto":
            return torch.device("cpu") if self.on_processor else local_device()
        try:
            device = torch.device(self.device)
            torch.zeros(1, device=device).tolist()  # torch.device accepts names of devices that do not exist
        except (RuntimeError, AssertionError) as error:
            reason = str(error).partition("\n")[0][:200]
            raise DataError(
                f"device={self.device!r} was given, which torch cannot use here ({reason}); 'cpu' always works"
            ) from error
        return device
