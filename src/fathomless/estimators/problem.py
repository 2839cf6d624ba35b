"""Arguments of an inference strategy in addition to the rows: the networks of a problem, and the session of a fit."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from fathomless.estimators.encoding import NumberTask, Task
from fathomless.estimators.networks import Networks
from fathomless.estimators.preparation import Prepared
from fathomless.inference.out_of_fold.heads import check_heads, replace_heads_by_means
from fathomless.inference.runs.callbacks import open_checkpoint
from fathomless.inference.runs.driver import State
from fathomless.inference.runs.limits import Pace, TimeLimit
from fathomless.posterior.capabilities import SelectsInputs
from fathomless.posterior.likelihoods import Likelihood, without_cells
from fathomless.posterior.model import Model
from fathomless.system import checks
from fathomless.system.errors import DataError
from fathomless.system.progress import Lines, Progress, Silent, Terminal
from fathomless.system.rng import building, fold_in

__all__ = ["TRAINING", "Problem", "Session"]

TRAINING = 0.9  #: share of the time limit for training; the rest is for the laws that are fitted afterwards


@dataclass(frozen=True)
class Problem:
    """Networks and task of a fit.

    Attributes
    ----------
    networks : Networks
        Options that build a network.
    task : Task
        Task that builds the likelihood.
    head : {"point", "laplace", "conjugate"}
        Posterior of the heads.
    fitted : (Model, Likelihood), optional
        Network that the fit continues from.
    """

    networks: Networks
    task: Task
    head: str = "point"
    fitted: tuple[Model, Likelihood] | None = None

    @property
    def is_recalibrated(self) -> bool:
        """True if laws of the standardised residual are learned after the inference."""
        return isinstance(self.task, NumberTask) and self.task.is_recalibrated

    def start(self, table: Prepared, seed: int) -> tuple[Model, Likelihood]:
        """Build an untrained network, or copy the fitted one, which must stay unchanged if training fails."""
        if self.fitted is not None:
            model, likelihood = copy.deepcopy(self.fitted)
            replace_heads_by_means(model)
            return model, without_cells(likelihood)  # out-of-fold rows choose them again
        with building(fold_in(seed, "start")):
            likelihood = self.task.likelihood(table.target).to(table.device, table.dtype)
            model = self.networks._build_model(table.inputs, likelihood, seed, table.dtype)
        further = table.schema.further_features
        if further and isinstance(model, SelectsInputs):
            model.start_without(torch.tensor(further, device="cpu"), table.inputs)
        if self.head != "point":
            check_heads(model, likelihood, self.head)  # an error now is better than after the training
        return model.to(table.device), likelihood

    def starts(self, table: Prepared, count: int) -> list[tuple[Model, Likelihood]]:
        """Return several untrained networks with different seeds."""
        if count > 1 and self.fitted is not None:
            raise DataError(
                f"n_restarts={count} was given, but warm_start continues from a single network; set it to 1"
            )
        seeds = [table.seed, *(fold_in(table.seed, "restart", i) for i in range(1, count))]
        return [self.start(table, seed) for seed in seeds]


@dataclass(frozen=True)
class Session:
    """Callbacks, checkpoint and display of a fit.

    Attributes
    ----------
    callbacks : sequence of callables
        Callbacks of the user.
    checkpoint : path, optional
        Folder of checkpoints.
    seconds : float
        Minimum time between two checkpoints in seconds.
    lasting : mapping
        Options in the fingerprint of a checkpoint, as plain JSON.
    verbose : int
        Level of output.
    shown : mapping of str to str
        Columns of the history in the display, with their labels.
    limit : TimeLimit, optional
        Time limit of the fit.
    """

    callbacks: Sequence[Callable[[Any], None]] = ()
    checkpoint: str | PathLike[str] | None = None
    seconds: float = 30.0
    lasting: Mapping[str, Any] = field(default_factory=dict)
    verbose: int = 0
    shown: Mapping[str, str] = field(default_factory=dict)
    limit: TimeLimit | None = None

    def subsession(self, folder: str, **lasting: Any) -> "Session":
        """Return the session of a part of the fit, with a subfolder for checkpoints and additional options."""
        checkpoint = None if self.checkpoint is None else Path(self.checkpoint) / folder
        return replace(self, checkpoint=checkpoint, lasting={**self.lasting, **lasting})

    def with_checkpoint(
        self, table: Prepared, fingerprint: Callable[[], str]
    ) -> tuple[list[Callable[[Any], None]], State | None]:
        """Return the callbacks of a run, including its checkpoint, and the state to resume from."""
        pace = [] if self.limit is None else [Pace(self.limit.part(TRAINING))]
        callbacks: list[Callable[[Any], None]] = [*pace, *self.callbacks]
        return open_checkpoint(callbacks, self.checkpoint, self.seconds, fingerprint, table.device, table.resumed)

    def display(self, unit: str = "epoch", shown: Mapping[str, str] | None = None) -> Progress:
        """Return the display of a run, with the unit of its progress."""
        level = checks.whole("verbose", self.verbose, least=0)
        labels = self.shown if shown is None else shown
        if level == 0:
            return Silent()
        return Terminal(unit, labels) if level == 1 else Lines(unit, labels)
