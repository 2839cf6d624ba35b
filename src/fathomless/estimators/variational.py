"""Estimators whose posterior is found by variational training: stochastic gradients on the evidence bound."""

import copy
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import torch

from fathomless.data.folds import without
from fathomless.data.rows import Rows, concatenate
from fathomless.estimators import saving
from fathomless.estimators.base import Estimator
from fathomless.estimators.crossfitting import automatic_members, best_alone, concluded, for_average, weighed
from fathomless.estimators.heads import heads_by_bound, heads_by_rows
from fathomless.estimators.kinds import joined, kinds
from fathomless.estimators.options import (
    CrossFitOptions,
    DrawnTrainingOptions,
    LawOptions,
    NaturalLawOptions,
    VariationalOptions,
)
from fathomless.estimators.preparation import Prepared, SplitPlan
from fathomless.inference.batched import fit_batched
from fathomless.inference.callbacks import open_checkpoint
from fathomless.inference.crossfit import Held, crossfit, folded, held
from fathomless.inference.distributed import ranks
from fathomless.inference.heads import as_points, check_heads
from fathomless.inference.looks import Law, Looks
from fathomless.inference.restarts import restarted
from fathomless.inference.run import Fitted
from fathomless.inference.svi import fit
from fathomless.inference.training import (
    Training,
    automatic_batch_size,
    automatic_epochs,
    automatic_structure_rate,
)
from fathomless.posterior.diagnostics import CrossFitDiagnostics
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Model
from fathomless.system import checks
from fathomless.system.errors import DataError, DataWarning, DivergenceError
from fathomless.system.rng import building, fold_in
from fathomless.system.surroundings import recording

__all__ = ["CrossFitEstimator", "Sampling", "VariationalEstimator", "fit_together"]

_FEW = 60  # rows below which none are held out
_SHARE = 0.1  # of the rows that are held out of one network
_PATIENCE = 30  # scores without a better one
_STEPS = 4000  # of a training, about, where the number of epochs is left open
_STEPS_OF_TEN = 2000  # of more than five networks side by side


class VariationalEstimator(VariationalOptions, Estimator, ABC):
    """How a variational posterior is found, from one start or several."""

    structure_every: ClassVar[int] = 8  # steps between two moves of the posterior over structure

    def _infer(self, prepared: Prepared) -> Fitted:
        """Train the family's network, or networks, on a table; sample from there, if that was asked for."""
        if isinstance(self, Sampling) and self._samples():
            sampled: Fitted = self._from_chains(prepared)
            return sampled
        if isinstance(self, CrossFitEstimator) and self._judged_by_rows(prepared):
            return self._from_rows(prepared)
        training = self._training(prepared.train.count, len(prepared.train))
        return self._with_heads(self._from_bound(prepared, training), prepared)

    def _from_bound(self, prepared: Prepared, training: Training) -> Fitted:
        """Let gradients of the evidence bound find the posterior."""
        starts, train, valid = self._starts(prepared, self.n_restarts), prepared.train, prepared.valid
        goes_on = self._goes_on(training)
        settings = self._settings(prepared, starts[0], training, without=("epochs",) if goes_on else ())
        if self.n_restarts == 1:
            return replace(fit(*starts[0], train, valid, **settings), goes_on=goes_on)
        return restarted(starts, cast(Rows, train), valid, self.restarts, **settings)

    def _goes_on(self, training: Training) -> bool:
        """Whether more epochs are the same training for longer: nothing in it follows from how many are planned."""
        law = not isinstance(self, LawOptions) or (self.structure_rate != "auto" and self.structure_delay == 0.0)
        alone = self.n_restarts == 1 and not self.warm_start
        steady = training.schedule not in ("cosine", "one_cycle") and training.warm_up == 0.0
        return law and alone and steady and training.epochs % training.evaluate_every == 0

    def _with_heads(self, fitted: Fitted, prepared: Prepared) -> Fitted:
        """Give networks that the bound has found posteriors of their heads, if they are to have some."""
        if self._kind_of_heads() == "point":
            return fitted
        return heads_by_bound(fitted, self._kind_of_heads(), prepared, calibrate=self.calibrate)

    def _kind_of_heads(self) -> str:
        return self._heads() if isinstance(self, CrossFitEstimator) else "point"

    def _settings(
        self,
        prepared: Prepared,
        start: tuple[Model, Likelihood],
        training: Training,
        without: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Return what every kind of training is told; a checkpoint may differ in the options named by `without`."""
        seed = prepared.seed

        def fingerprint() -> str:
            state = (*start[0].state_dict().values(), *start[1].state_dict().values())
            own = {**self._lasting(), "seed": seed}
            if prepared.folds is not None:
                own["dealt"] = prepared.folds.tolist()
            return saving.fingerprint(prepared.train, prepared.valid, state, training, own, without)

        callbacks, resume = open_checkpoint(
            self.callbacks, self.checkpoint, self.checkpoint_seconds, fingerprint, prepared.device, prepared.resumed
        )
        return {
            "training": training,
            "seed": fold_in(seed, "training"),
            "callbacks": callbacks,
            "progress": self._display(),
            "resume": resume,
        }

    def _starts(self, prepared: Prepared, count: int) -> list[tuple[Model, Likelihood]]:
        """Return several untrained networks, each with a seed of its own."""
        if count > 1 and self._continued():
            raise DataError(
                f"warm_start goes on from one network, and n_restarts={self.n_restarts} was given; set it to 1"
            )
        seeds = [prepared.seed, *(fold_in(prepared.seed, "restart", i) for i in range(1, count))]
        return [self._start(prepared, seed) for seed in seeds]

    def _start(self, prepared: Prepared, seed: int) -> tuple[Model, Likelihood]:
        """Build what is to be trained, or copy it: a training that fails must not spoil what is fitted."""
        if self._continued():
            self._require_as_fitted()
            model, likelihood = copy.deepcopy((self.model_, self.likelihood_))
            as_points(model)
            return model, likelihood
        with building(fold_in(seed, "start")):
            likelihood = self._task().likelihood(prepared.target).to(prepared.device, prepared.dtype)
            model = self._build_model(prepared.inputs, likelihood, seed, prepared.dtype)
        if self._kind_of_heads() != "point":
            check_heads(model, likelihood, self._kind_of_heads())  # now rather than after the training
        return model.to(prepared.device), likelihood

    def _against_streams(self) -> str:
        if self.n_restarts != 1:
            return f"n_restarts={self.n_restarts} was given; streams are fitted once: set it to 1"
        if isinstance(self, CrossFitOptions) and not isinstance(self.members, str) and self.members > 1:
            return f"members={self.members} was given; streams train one network: set it to 1, or to 'auto'"
        return ""

    def _split_plan(self, count: float, inputs: int, grouped: bool) -> SplitPlan:
        folds = self._fold_plan(count, inputs) if isinstance(self, CrossFitEstimator) else SplitPlan()
        if folds.members > 1:
            return folds
        chosen = not isinstance(self.temperature, int | float)  # a sparse family's, by held-out rows
        if grouped and self._share_held_out(math.inf) == 0.0 and not chosen:
            raise DataError(
                f"groups were given, and this {type(self).__name__} trains one network and holds out no rows; leave "
                "them out, set validation_fraction, or set members above 1 where there is such an option"
            )
        return replace(folds, share=self._share_held_out(count))

    def _share_held_out(self, count: float) -> float:
        automatic = isinstance(self.validation_fraction, str)
        fraction = _SHARE if automatic else float(self.validation_fraction)
        if not 0.0 <= fraction < 1.0:
            raise DataError(f"validation_fraction={fraction} was given; 0 <= validation_fraction < 1 is allowed")
        return 0.0 if count < _FEW else fraction

    def _training(self, count: float, rows: int, networks: int = 1) -> Training:
        batch = automatic_batch_size(count) if self.batch_size == "auto" else int(self.batch_size)
        steps_per_epoch = max(1, math.ceil(rows / batch))
        steps = _STEPS if networks <= 5 else _STEPS_OF_TEN
        epochs = automatic_epochs(steps_per_epoch, steps) if self.epochs == "auto" else int(self.epochs)
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
            warm_up=self.warm_up,
            draws=self.training_draws if isinstance(self, DrawnTrainingOptions) else 1,
            evaluate_every=max(1, round(8 / steps_per_epoch)),
            patience=_PATIENCE if self.patience == "auto" else cast("int | None", self.patience),
            calibrate=self.calibrate,
            mixed=self.precision == "bfloat16",
        )


class Sampling(ABC):
    """What can go on from trained networks by Markov chains."""

    @abstractmethod
    def _samples(self) -> bool:
        """Whether weights are sampled."""

    @abstractmethod
    def _from_chains(self, prepared: Prepared) -> Fitted:
        """Train networks on a table, and sample from there."""


class CrossFitEstimator(CrossFitOptions, VariationalEstimator, ABC):
    """How a posterior over a list of structures is found from rows that the networks were not fitted to.

    Attributes
    ----------
    fold_ : ndarray of int, shape (R, N), or None
        The fold of every row in each partition, if networks were cross-fitted; −1 for rows that all were fitted to,
        those among them that were kept from a network that diverged and was left out. A row that counts several times
        may be divided among folds (see :mod:`fathomless.data.repeats`); this is the fold of its first part.
    """

    @abstractmethod
    def _law_is_free(self) -> bool:
        """Whether a posterior over structure is to be found, be it on a list of one; if not, it is given."""

    @abstractmethod
    def _named_law(self) -> Law | None:
        """Return how a law of the user's choice is fitted; None for categorical weights."""

    @abstractmethod
    def _folds_by_default(self) -> bool:
        """Whether networks are cross-fitted, and rows decide about structure, unless options say otherwise."""

    @abstractmethod
    def _looking(self) -> Mapping[str, Any]:
        """Return how held-out rows are looked at: options of :class:`~fathomless.inference.looks.Looks`."""

    @abstractmethod
    def _multiplications(self, inputs: int) -> float:
        """Return how many multiplications one network takes for a row, about."""

    @abstractmethod
    def _heads(self) -> str:
        """Return what the heads of networks are: "point", "laplace" or "bayes"."""

    @abstractmethod
    def _without_effect(self) -> tuple[str, ...]:
        """Return the names of options that have no effect if rows decide."""

    def _fold_plan(self, count: float, inputs: int) -> SplitPlan:
        """Return the folds of so many rows of so many encoded columns."""
        members, copies = self._members(count, inputs), len(kinds(self.vary))
        if copies > 1 and members == 1:
            raise DataError(
                f"vary={self.vary!r} was given, and one network would be trained; kinds are weighed by rows that "
                "they have not seen: set members above 1, or leave vary out"
            )
        if members == 1:
            return SplitPlan(folds=self.folds)
        if isinstance(self.folds, str):
            checks.choice("folds", self.folds, ("random", "blocks"))
        return SplitPlan(
            members=members,
            repeats=self.repeats,
            copies=copies,
            folds=self.folds,
            optional=self.members == "auto",
            share=self._share_held_out(count),
        )

    def _members(self, count: float, inputs: int) -> int:
        """Return how many networks are cross-fitted to so many rows."""
        alone = {
            "validation_fraction": not isinstance(self.validation_fraction, str),
            "n_restarts": self.n_restarts > 1,
            "warm_start": bool(self.warm_start),
        }
        asked = [f"{name}={getattr(self, name)}" for name, given in alone.items() if given]
        if not isinstance(self.members, str):
            if self.members > 1 and asked:
                raise DataError(
                    f"members={self.members} was given with {' and '.join(asked)}, which ask for one network; leave "
                    "one of them out"
                )
            if self.members > max(count, 1.0):
                raise DataError(f"members={self.members} was given for {count:g} rows; at most as many are allowed")
            return self.members
        if asked or self.structure_from == "elbo" or not self._folds_by_default() or ranks().count > 1:
            return 1
        passes = automatic_epochs(max(1, round(count / 256))) if self.epochs == "auto" else int(self.epochs)
        return automatic_members(count, self._multiplications(inputs), passes)

    def _judged_by_rows(self, prepared: Prepared) -> bool:
        if prepared.folds is not None:
            return True
        held = prepared.valid is not None and len(prepared.valid) > 0
        if self.structure_from == "held_out" and not held:
            raise DataError(
                f"structure_from='held_out' was given, and of these {prepared.train.count:g} rows none are held out; "
                "give more rows, set validation_fraction, or use structure_from='elbo'"
            )
        if self.structure_from == "held_out" and getattr(self, "weights", "") == "sparse":
            raise DataError(
                "structure_from='held_out' was given with weights='sparse', where a structure is a depth and what is "
                "included in its layers; take structure_from='elbo', or weights='map' or 'meanfield'"
            )
        drawn = self.structure_from == "auto" and not self._folds_by_default()
        return held and self.structure_from != "elbo" and not drawn and self._law_is_free()

    def _from_rows(self, prepared: Prepared) -> Fitted:
        """Let rows that the networks were not fitted to find the posterior over structure and the noise."""
        noise, options = self._frees_noise(), kinds(self.vary)
        if len(options) > 1:
            assert prepared.folds is not None
            fits = self._of_kinds(prepared, options)
            fitted = joined(fits, options, prepared.folds[0], calibrate=self.calibrate, free_noise=noise)
            return self._narrowed(fitted, prepared)
        fitted, seen, looks = self._judged(prepared)
        of_row = None
        if prepared.folds is not None:
            of_row = torch.from_numpy(without(prepared.folds.numpy(), fitted.lost))[0][seen.rows]
        fitted = concluded(fitted, seen, folds=of_row, looks=looks, calibrate=self.calibrate, free_noise=noise)
        return self._narrowed(fitted, prepared)

    def _frees_noise(self) -> bool:
        """Whether unseen rows choose the law of the noise."""
        return getattr(self, "likelihood", "") == "auto"

    def _narrowed(self, fitted: Fitted, prepared: Prepared) -> Fitted:
        """Take the noise of single networks for that of their average, if it is to be fitted at all."""
        if prepared.folds is None or not self.calibrate or not isinstance(prepared.train, Rows):
            return fitted
        return for_average(fitted, prepared.train, torch.from_numpy(without(prepared.folds.numpy(), fitted.lost)))

    def _of_kinds(self, prepared: Prepared, options: Sequence[dict[str, Any]]) -> list[tuple[Fitted, Held]]:
        """Cross-fit each kind of network by itself, on the same folds."""
        assert prepared.folds is not None
        each, repeats, networks = [], len(prepared.folds) // len(options), 0
        for i, own in enumerate(options):
            folder = None if self.checkpoint is None else Path(self.checkpoint) / f"kind-{i}"
            kind = self._with({**own, "vary": None, "checkpoint": folder})
            seed = fold_in(prepared.seed, "kind", i) if i else prepared.seed
            fitted, seen, _ = kind._judged(replace(prepared, folds=prepared.folds[:repeats], seed=seed))
            each.append((replace(fitted, lost=tuple(networks + k for k in fitted.lost)), seen))
            networks += repeats * (int(prepared.folds.max()) + 1)
        return each

    def _judged(self, prepared: Prepared) -> tuple[Fitted, Held, Looks | None]:
        """Train networks, and weigh structures by the rows that they were not fitted to; noise is as trained."""
        table, valid, folds = prepared.train, prepared.valid, prepared.folds
        warm = self._continued()
        share = 1.0 if folds is None else int(folds.max()) / (int(folds.max()) + 1)
        networks = self.n_restarts if folds is None else len(folds) * (int(folds.max()) + 1)
        training = replace(self._training(table.count, math.ceil(share * len(table)), networks), calibrate=False)
        looks = None
        if self.structure_from != "elbo" and self._law_is_free():
            looks = Looks(
                training.epochs,
                self._named_law(),
                lengthen=self.epochs == "auto",
                focusing=warm,
                **self._looking(),
            )
            if self.patience == "auto":
                looks.patience = max(1, round(0.25 * looks.focus * training.epochs))
            elif self.patience is not None:
                looks.patience = training.evaluate_every * int(self.patience)
        starts = self._starts(prepared, networks)
        unused = () if looks is None else self._without_effect()
        for name in (name for name in unused if getattr(self, name) != getattr(type(self), name)):
            warnings.warn(
                f"{name}={getattr(self, name)!r} has no effect where held-out rows decide about structure; use "
                "structure_from='elbo', or leave it out",
                DataWarning,
                stacklevel=5,
            )
        settings = {**self._settings(prepared, starts[0], training), "looks": looks}
        seed = fold_in(prepared.seed, "training")
        if networks == 1:
            assert valid is not None
            fitted = fit(*starts[0], table, valid, **settings)
            seen = held(fitted.model, valid, seed)
        elif folds is not None:
            assert isinstance(table, Rows)
            fitted, seen = crossfit(starts, table, *folded(folds), **settings)
            folds = torch.from_numpy(without(folds.numpy(), fitted.lost))
        else:
            assert isinstance(table, Rows)
            assert valid is not None
            numbers = torch.arange(len(table) + len(valid))
            parts = [numbers[: len(table)]] * networks, [numbers[len(table) :]] * networks
            fitted, seen = crossfit(starts, concatenate([table, valid]), *parts, **settings)
            if self.restarts == "best":
                fitted, seen = best_alone(fitted, seen, looks)
        if (kind := self._heads()) != "point":
            fitted, seen = heads_by_rows(
                fitted, seen, looks, kind, prepared, calibrate=self.calibrate, free_noise=self._frees_noise()
            )
        if looks is None or fitted.found is None:
            return fitted, seen, looks
        q = torch.tensor([looks.q[number] for number in fitted.found.numbers], dtype=torch.float64)
        found_folds = None if folds is None else folds[0][fitted.found.rows]
        group = None if prepared.group is None else prepared.group[fitted.found.rows]
        weights = weighed(fitted.model, fitted.found, q, found_folds, group, prepared.seed)
        return replace(fitted, diagnostics=CrossFitDiagnostics(structure=weights)), seen, looks


@recording()
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
    for estimator, one in zip(estimators, prepared, strict=True):
        if isinstance(estimator, CrossFitEstimator) and estimator._judged_by_rows(one):
            raise DataError(
                f"structure_from={estimator.structure_from!r} and members={estimator.members!r} were given; estimators "
                "that are fitted together have structure_from='elbo'"
            )
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
        estimator._take_over(one, estimator._with_heads(fitted, one))
