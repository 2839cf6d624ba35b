"""Estimators whose posterior is found by variational training: stochastic gradients on the evidence bound."""

import copy
import math
from abc import ABC
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import torch

from fathomless.data.rows import Rows
from fathomless.estimators import saving
from fathomless.estimators.base import Estimator
from fathomless.estimators.options import LawOptions, NaturalLawOptions, VariationalOptions
from fathomless.estimators.preparation import Prepared
from fathomless.inference.batched import fit_batched
from fathomless.inference.callbacks import Checkpoint
from fathomless.inference.restarts import restarted
from fathomless.inference.run import Fitted
from fathomless.inference.svi import fit
from fathomless.inference.training import (
    Training,
    automatic_batch_size,
    automatic_epochs,
    automatic_structure_rate,
)
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Model
from fathomless.system.errors import DataError, DivergenceError
from fathomless.system.progress import Silent, Terminal
from fathomless.system.rng import fold_in

__all__ = ["VariationalEstimator", "fit_together"]

_FEW = 60  # rows below which none are held out


class VariationalEstimator(VariationalOptions, Estimator, ABC):
    """How a variational posterior is found, from one start or several."""

    structure_every: ClassVar[int] = 8  # steps between two moves of the posterior over structure

    def _infer(self, prepared: Prepared) -> Fitted:
        """Train the family's network on a table."""
        model, likelihood = self._start(prepared, prepared.seed)
        train, valid, seed = prepared.train, prepared.valid, prepared.seed
        training = self._training(train.count, len(train))
        callbacks = list(self.callbacks or ())
        resume = None
        if self.checkpoint is not None:
            start = (*model.state_dict().values(), *likelihood.state_dict().values())
            options = {name: v for name, v in self._options().items() if name not in ("progress", "checkpoint_seconds")}
            name = saving.fingerprint(train, valid, start, training, {**options, "seed": seed})
            keeper = Checkpoint(self.checkpoint, self.checkpoint_seconds, {"fingerprint": name})
            resume = keeper.found()
            callbacks.append(keeper)
        settings: dict[str, Any] = {
            "training": training,
            "seed": fold_in(seed, "training"),
            "callbacks": callbacks,
            "progress": Terminal(shown=self.shown) if self.progress else Silent(),
            "resume": resume,
        }
        if self.n_restarts == 1:
            return fit(model, likelihood, train, valid, **settings)
        if self._fitted_before() is not None:
            raise DataError(
                f"warm_start goes on from one network, and n_restarts={self.n_restarts} was given; set it to 1"
            )
        seeds = (fold_in(seed, "restart", i) for i in range(1, self.n_restarts))
        starts = [(model, likelihood), *(self._start(prepared, one) for one in seeds)]
        return restarted(starts, cast(Rows, train), valid, self.restarts, **settings)

    def _start(self, prepared: Prepared, seed: int) -> tuple[Model, Likelihood]:
        """Build what is to be trained, or copy it: a training that fails must not spoil what is fitted."""
        if self._fitted_before() is not None:
            return copy.deepcopy((self.model_, self.likelihood_))
        likelihood = self._likelihood(prepared.target).to(prepared.device, prepared.dtype)
        model = self._build_model(prepared.inputs, likelihood.outputs, seed, prepared.dtype)
        return model.to(prepared.device), likelihood

    def _fitted_before(self) -> torch.dtype | None:
        return self.model_.dtype if self.warm_start and "model_" in vars(self) else None

    def _refuse_streams(self) -> None:
        if self.n_restarts != 1:
            raise DataError(f"n_restarts={self.n_restarts} was given; streams are fitted once: set it to 1")

    def _share_held_out(self, count: float) -> float:
        fraction = self.validation_fraction
        if not 0.0 <= fraction < 1.0:
            raise DataError(f"validation_fraction={fraction} was given; 0 <= validation_fraction < 1 is allowed")
        return 0.0 if count < _FEW else fraction

    def _training(self, count: float, rows: int) -> Training:
        batch = automatic_batch_size(count) if self.batch_size == "auto" else int(self.batch_size)
        steps_per_epoch = max(1, math.ceil(rows / batch))
        epochs = automatic_epochs(steps_per_epoch) if self.epochs == "auto" else int(self.epochs)
        law: dict[str, Any] = {}
        if isinstance(self, LawOptions):
            automatic, steps = self.structure_rate == "auto", epochs * steps_per_epoch
            law["structure_rate"] = automatic_structure_rate(steps) if automatic else float(self.structure_rate)
            law["structure_delay"] = round(self.structure_delay * epochs)
        if isinstance(self, NaturalLawOptions):
            law |= {"structure_optimizer": self.structure_optimizer, "structure_radius": self.structure_radius}
        return Training(
            epochs=epochs,
            batch_size=batch,
            learning_rate=self.learning_rate,
            **law,
            structure_every=self.structure_every,
            schedule=self.schedule,
            clip_norm=self.clip_norm,
            temperature=self.temperature,
            evaluate_every=max(1, round(8 / steps_per_epoch)),
            patience=self.patience,
            calibrate=self.calibrate,
            mixed=self.precision == "bfloat16",
        )


def fit_together(estimators: Sequence[VariationalEstimator], tables: Sequence[tuple[Any, Any]]) -> None:
    """Fit estimators with equal options to tables with equally many rows, side by side.

    Each becomes what ``estimator.fit(X, y)`` makes of it, up to rounding; seeds may differ.

    Parameters
    ----------
    estimators : sequence of VariationalEstimator
        Of one class. Their callbacks and checkpoints are not used.
    tables : sequence of (X, y)
        One for each.

    Raises
    ------
    DataError
        For options or tables that differ too much; see :func:`~fathomless.inference.batched.fit_batched`.
    DivergenceError
        If any of the trainings failed; then none of the estimators is fitted.
    """
    if len(estimators) != len(tables):
        raise DataError(f"{len(estimators)} estimators and {len(tables)} tables were given; one for each is needed")
    prepared = [estimator._prepare(X, y, None) for estimator, (X, y) in zip(estimators, tables, strict=True)]
    starts = [estimator._start(one, one.seed) for estimator, one in zip(estimators, prepared, strict=True)]
    train = [cast(Rows, one.train) for one in prepared]
    every = fit_batched(
        [model for model, _ in starts],
        [likelihood for _, likelihood in starts],
        train,
        [one.valid for one in prepared if one.valid is not None],
        training=[e._training(rows.count, len(rows)) for e, rows in zip(estimators, train, strict=True)],
        seeds=[fold_in(one.seed, "training") for one in prepared],
    )
    failed = [fitted.error for fitted in every if fitted.error]
    if failed:
        raise DivergenceError(f"{len(failed)} of {len(every)} trainings failed; the first: {failed[0]}")
    for estimator, one, fitted in zip(estimators, prepared, every, strict=True):
        estimator._take_over(one, fitted)
