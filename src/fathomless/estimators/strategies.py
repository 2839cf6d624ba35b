"""Inference strategies: frozen dataclasses that compute a posterior for a problem and a table.

A strategy may contain another one. Steps after an inference are functions ``(fitted, table) -> Fitted``, applied by
:class:`Then`.
"""

import itertools
import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from fathomless.data.folds import without
from fathomless.data.rows import Rows, concatenate
from fathomless.estimators import saving
from fathomless.estimators.candidates import combine
from fathomless.estimators.finalize import finalize, fit_structure_weights, keep_best, shrink_noise
from fathomless.estimators.last_layer import fit_heads_in_sample, fit_heads_out_of_fold
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.problem import Problem, Session
from fathomless.estimators.selection import eliminate, number_columns, spread
from fathomless.estimators.trials import STRUCTURES, Attempt, RowScores, choose, describe, join_folds, shorten
from fathomless.estimators.values import Restarts
from fathomless.inference.out_of_fold.crossfit import OutOfFold, crossfit, fold_indices, predict_held_out
from fathomless.inference.out_of_fold.search import Law, StructureSearch
from fathomless.inference.runs.limits import Pace
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.restarts import fit_restarts
from fathomless.inference.variational.svi import fit
from fathomless.inference.variational.training import (
    Training,
    automatic_batch_size,
    automatic_epochs,
    automatic_structure_rate,
)
from fathomless.posterior.capabilities import SelectsInputs, missing_capability
from fathomless.posterior.ensemble import list_members
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics, Trial, choose_options
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Model
from fathomless.system.errors import ConvergenceWarning, DataError, DataWarning, DivergenceError
from fathomless.system.rng import fold_in

__all__ = ["SVI", "CrossFit", "SearchOptions", "Step", "Strategy", "Then", "TrainingPlan"]

_PATIENCE = 30  # validation scores without improvement before early stopping
_STEPS = 4000  # approximate number of training steps if the number of epochs is automatic
_STEPS_OF_TEN = 2000  # the same for more than five networks trained together
_TRIALS = 0.4  # share of the time limit for trials

#: Step after an inference.
Step = Callable[[Fitted, Prepared], Fitted]


class Strategy(Protocol):
    """Inference strategy."""

    def infer(self, problem: Problem, table: Prepared, session: Session) -> Fitted:
        """Compute the posterior of a problem, given a table."""


@dataclass(frozen=True)
class TrainingPlan:
    """Training options before the number of rows is known, which determines the values of "auto".

    Attributes
    ----------
    epochs, batch_size, learning_rate, schedule, clip_norm, temperature, warm_up, patience, calibrate
        As the options of estimators.
    draws : int
        Number of weight draws of a step.
    mixed : bool
        True for mixed precision with bfloat16.
    structure_every : int
        Number of steps between two updates of the law over structure.
    law : mapping, optional
        Options of the law over structure, if there is one: "structure_rate", "structure_delay" as a fraction of the
        epochs, and optionally "structure_optimizer" and "structure_radius".
    """

    epochs: int | str
    batch_size: int | str
    learning_rate: float
    schedule: str | tuple[tuple[int, float], ...]
    clip_norm: float | None
    temperature: float
    warm_up: float
    patience: int | str | None
    calibrate: bool
    draws: int = 1
    mixed: bool = False
    structure_every: int = 8
    law: Mapping[str, Any] | None = None

    def training(self, count: float, rows: int, networks: int = 1) -> Training:
        """Return the options of a training.

        Parameters
        ----------
        count : float
            Number of rows of the table, or the sum of the sample weights.
        rows : int
            Number of training rows of each network.
        networks : int
            Number of networks trained together.
        """
        batch = automatic_batch_size(count) if self.batch_size == "auto" else int(self.batch_size)
        steps_per_epoch = max(1, math.ceil(rows / batch))
        steps = _STEPS if networks <= 5 else _STEPS_OF_TEN
        epochs = automatic_epochs(steps_per_epoch, steps) if self.epochs == "auto" else int(self.epochs)
        law: dict[str, Any] = {}
        if self.law is not None:
            rate = self.law["structure_rate"]
            law = {
                **self.law,
                "structure_rate": automatic_structure_rate(epochs * steps_per_epoch) if rate == "auto" else float(rate),
                "structure_delay": round(self.law["structure_delay"] * epochs),
            }
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
            draws=self.draws,
            evaluate_every=max(1, round(8 / steps_per_epoch)),
            patience=_PATIENCE if self.patience == "auto" else cast("int | None", self.patience),
            calibrate=self.calibrate,
            mixed=self.mixed,
        )

    def resumable(self, training: Training) -> bool:
        """Return True if a longer training starts with the same steps: nothing depends on the number of epochs."""
        law = self.law is None or (self.law["structure_rate"] != "auto" and self.law["structure_delay"] == 0.0)
        steady = training.schedule not in ("cosine", "one_cycle") and training.warm_up == 0.0
        return law and steady and training.epochs % training.evaluate_every == 0


@dataclass(frozen=True)
class SVI:
    """Stochastic variational inference, from one start or several.

    Attributes
    ----------
    plan : TrainingPlan
        Options of the training.
    restarts : Restarts
        Number of restarts, and their selection or average.
    """

    plan: TrainingPlan
    restarts: Restarts = field(default_factory=Restarts)

    def infer(self, problem: Problem, table: Prepared, session: Session) -> Fitted:
        """Train the networks, and compute posteriors of their heads if required."""
        training = self.plan.training(table.train.count, len(table.train))
        count = self.restarts.count
        resumable = count == 1 and problem.fitted is None and self.plan.resumable(training)
        starts = problem.starts(table, count)
        settings = _settings(table, session, starts[0], training, without=("epochs",) if resumable else ())
        if count == 1:
            fitted = replace(fit(*starts[0], table.train, table.valid, **settings), resumable=resumable)
        else:
            fitted = fit_restarts(starts, cast(Rows, table.train), table.valid, self.restarts.keep, **settings)
        fitted = _name_limit(fitted, session)
        if problem.head == "point":
            return fitted
        return fit_heads_in_sample(fitted, problem.head, table, calibrate=self.plan.calibrate)


@dataclass(frozen=True)
class SearchOptions:
    """Options of the search for a posterior over structure with out-of-fold rows.

    Attributes
    ----------
    free : bool
        True if the posterior is fitted, even to a list of one structure; False if it is fixed.
    law : callable, optional
        Function that fits a named law; the posterior is categorical by default.
    cross_fit : bool
        True if the default is to cross-fit networks, and to fit the posterior over structure to out-of-fold rows.
    settings : mapping
        Options of :class:`~fathomless.inference.out_of_fold.search.StructureSearch`.
    unused : tuple of str
        Names of options without effect if the posterior is fitted to out-of-fold rows.
    trials : sequence of mappings
        Options of the networks, of which a short training of cross-fitted networks chooses one; the first by default.
    eliminates : sequence of int
        Indices of trials. Further trials eliminate columns from the first of these trials, or from another one of them
        with a clear gain over it.
    """

    free: bool
    law: Law | None
    cross_fit: bool
    settings: Mapping[str, Any] = field(default_factory=dict)
    unused: tuple[str, ...] = ()
    trials: Sequence[Mapping[str, Any]] = ()
    eliminates: Sequence[int] = ()


@dataclass(frozen=True)
class CrossFit:
    """Cross-fitting: networks whose structure and noise are fitted to out-of-fold or held-out rows.

    Attributes
    ----------
    svi : SVI
        Training of the networks.
    search : SearchOptions
        Options of the search for the posterior over structure.
    by_bound : bool
        True if the law over structure is fitted by the evidence bound, and only the noise by out-of-fold rows.
    free_noise : bool
        True if out-of-fold rows also choose the distribution of the noise.
    candidates : sequence of mappings
        Options of the candidate architectures; a single one without options by default.
    given : mapping of str to value
        Options of the user without effect here, with their values.
    """

    svi: SVI
    search: SearchOptions
    by_bound: bool = False
    free_noise: bool = False
    candidates: Sequence[Mapping[str, Any]] = ({},)
    given: Mapping[str, Any] = field(default_factory=dict)

    def infer(self, problem: Problem, table: Prepared, session: Session) -> Fitted:
        """Compute the networks, the posterior over structure and the noise."""
        settings = {"calibrate": self.svi.plan.calibrate, "free_noise": self.free_noise}
        if any(self.candidates):
            assert table.folds is not None
            fits = self._cross_fit_candidates(problem, table, session)
            fitted = combine(fits, self.candidates, table.folds[0], **settings)
            return self._shrink_noise(fitted, table.with_numbers())
        trials, used, complete = self._compare_trials(problem, table, session)
        chosen = choose_options(trials)
        if chosen:
            problem = replace(problem, networks=problem.networks._copy_with(chosen))
            session = _with_features(replace(session, lasting={**session.lasting, **chosen}), used)
        table = table.with_numbers(chosen.get("numbers"))
        fitted, seen, search = self.train_networks(problem, table, session, used)
        fitted = _name_limit(fitted, session, complete=complete)
        if trials:
            fitted = replace(fitted, diagnostics=replace(cast(CrossFitDiagnostics, fitted.diagnostics), trials=trials))
        of_row = None
        if table.folds is not None:
            of_row = torch.from_numpy(without(table.folds.numpy(), fitted.diverged))[0][seen.rows]
        return self._shrink_noise(finalize(fitted, seen, folds=of_row, search=search, **settings), table)

    def _compare_trials(
        self, problem: Problem, table: Prepared, session: Session
    ) -> tuple[tuple[Trial, ...], Tensor | None, bool]:
        """Compare the options of the trials by short trainings on the same folds, without callbacks and display.

        The first trials have all columns. Further ones eliminate columns. If this has a gain, the other options are
        compared on the columns that remain, too. Trials that would exceed their share of a time limit are left out.

        Returns
        -------
        trials : tuple of Trial
            Empty if there is nothing to compare.
        used : Tensor of bool, shape (networks of the fit, D), optional
            Features that each network uses, if the chosen trial has selected columns.
        complete : bool
            False if the time limit left out trials.
        """
        if len(self.search.trials) < 2 or self.by_bound or not self.search.free or table.folds is None:
            return (), None, True
        assert isinstance(table.train, Rows)
        inside, outside = fold_indices(join_folds(table.folds[:1]))
        longest = max(len(rows) for rows in inside)
        training = shorten(self.svi.plan.training(table.train.count, longest, len(inside)), longest)
        if training is None:
            return (), None, True
        number = itertools.count()
        timing = _Timing(session)

        def train(options: Mapping[str, Any], kept: Tensor | None = None) -> Attempt:
            """Train the networks of a trial with the given options, and with the columns of a mask."""
            folder = f"trial-{next(number)}"
            if not timing.allows_another():
                return Attempt(options, None)
            encoded = table.with_numbers(options.get("numbers"))
            used = None if kept is None else kept[:, number_columns(encoded.schema)]
            part = _with_features(replace(session, callbacks=timing.callbacks(), verbose=0, limit=None), used)
            part = part.subsession(folder, **options)
            tried = replace(problem, networks=problem.networks._copy_with(options))
            scores, networks = self._train_trial(tried, encoded, part, training, (inside, outside), used)
            return Attempt(options, scores, networks, kept) if timing.end() else Attempt(options, None)

        found: list[Attempt] = []
        for options in self.search.trials:
            found.append(train(options))
            if found[0].scores is None:
                return (), None, timing.complete
        best = choose(found, table.group)
        starts = [found[i] for i in self.search.eliminates if found[i].scores is not None]
        # heads with a posterior are fitted to all features
        if starts and len(table.folds) == 1 and problem.head == "point":
            start = choose(starts, table.group)
            encoded = table.with_numbers(start.options.get("numbers"))
            assert isinstance(encoded.train, Rows)
            rounds = eliminate(found, start, encoded.train.x, inside, encoded.schema, train, table.group)
            found += rounds
            if rounds and (fewer := choose([start, *rounds], table.group)).kept is not None:
                others = [train(options, fewer.kept) for options in self.search.trials if options != fewer.options]
                found += others
                best = choose([best, choose([fewer, *others], table.group)], table.group)
        trials = describe(found, best, table.group)
        if best.kept is None:
            return trials, None, timing.complete
        column = number_columns(table.with_numbers(best.options.get("numbers")).schema)
        return trials, spread(best.kept[:, column], int(table.folds.max()) + 1), timing.complete

    def _train_trial(
        self,
        problem: Problem,
        table: Prepared,
        session: Session,
        training: Training,
        folds: tuple[Sequence[Tensor], Sequence[Tensor]],
        used: Tensor | None,
    ) -> tuple[RowScores | None, Sequence[Model]]:
        """Train the networks of one trial; return their scores, None if they diverged, and the networks."""
        assert isinstance(table.train, Rows)
        # the support does not grow
        settings = {**self.search.settings, "first": STRUCTURES, "widest": sys.maxsize}
        search = StructureSearch(training.epochs, self.search.law, **settings)
        try:
            with warnings.catch_warnings():  # of networks that are not those of the fit
                warnings.simplefilter("ignore", ConvergenceWarning)
                starts = problem.starts(table, len(folds[0]))
                given = _settings(table, session, starts[0], training)
                fitted, _ = crossfit(starts, table.train, *folds, used=used, search=search, **given)
        except DivergenceError:
            return None, ()
        densities = fitted.log_densities
        assert densities is not None
        q = torch.tensor([search.q[n] for n in densities.numbers], dtype=torch.float64, device="cpu")
        scores = RowScores(densities.rows, densities.mix(q), densities.weight)
        return scores, () if fitted.diverged else list_members(fitted.model)

    def _shrink_noise(self, fitted: Fitted, table: Prepared) -> Fitted:
        """Reduce the noise from that of single networks to that of their average, if it was fitted."""
        if table.folds is None or not self.svi.plan.calibrate or not isinstance(table.train, Rows):
            return fitted
        return shrink_noise(fitted, table.train, torch.from_numpy(without(table.folds.numpy(), fitted.diverged)))

    def _cross_fit_candidates(
        self, problem: Problem, table: Prepared, session: Session
    ) -> list[tuple[Fitted, OutOfFold]]:
        """Cross-fit each candidate architecture separately, on the same folds."""
        assert table.folds is not None
        if problem.head != "point" and any("numbers" in options for options in self.candidates):
            raise DataError(
                f"last_layer={problem.head!r} was given with 'numbers' in candidates; heads with a posterior get no "
                "further inputs: leave one of them out"
            )
        repeats = len(table.folds) // len(self.candidates)
        whole = table.with_numbers()
        fits = []
        networks = 0  # number of networks of the candidates before
        for i, options in enumerate(self.candidates):
            candidate = replace(problem, networks=problem.networks._copy_with({**options, "candidates": None}))
            part = session.subsession(f"kind-{i}", **options, candidates=None)
            if session.limit is not None:  # equal shares of the remaining time
                part = replace(part, limit=session.limit.part(1.0 / (len(self.candidates) - i)))
            # the first candidate has the seed of a fit without candidates, and the same networks
            seed = fold_in(table.seed, "kind", i) if i else table.seed
            folded = replace(table, folds=table.folds[:repeats], seed=seed).with_numbers(options.get("numbers"))
            _add_inputs(candidate.start(folded, seed)[0], folded, whole)  # an error now is better than after training
            fitted, seen, _ = self.train_networks(candidate, folded, part)
            _add_inputs(fitted.model, folded, whole)
            fitted = _name_limit(fitted, session)
            fits.append((replace(fitted, diverged=tuple(networks + k for k in fitted.diverged)), seen))
            networks += repeats * (int(table.folds.max()) + 1)
        return fits

    def train_networks(
        self, problem: Problem, table: Prepared, session: Session, used: Tensor | None = None
    ) -> tuple[Fitted, OutOfFold, StructureSearch | None]:
        """Train networks, and fit the posterior over structure to out-of-fold rows; the noise is that of training.

        Cross-fitted networks use the features in the mask `used`, of shape (networks, D), or all features.
        """
        rows, valid, folds = table.train, table.valid, table.folds
        plan = self.svi.plan
        # with K folds, each network is trained on (K - 1) / K of the rows
        share = 1.0 if folds is None else int(folds.max()) / (int(folds.max()) + 1)
        networks = self.svi.restarts.count if folds is None else len(folds) * (int(folds.max()) + 1)
        # no calibration in training: the noise is fitted to the out-of-fold predictions of all networks afterwards
        training = replace(plan.training(rows.count, math.ceil(share * len(rows)), networks), calibrate=False)
        search = self._start_search(training, warm=problem.fitted is not None)
        starts = problem.starts(table, networks)
        for name, value in self.given.items() if search is not None else ():
            warnings.warn(
                f"{name}={value!r} has no effect if the posterior over structure is fitted to held-out rows; use "
                "structure_from='elbo', or leave it out",
                DataWarning,
                stacklevel=5,
            )
        settings = {**_settings(table, session, starts[0], training), "search": search}
        seed = fold_in(table.seed, "training")
        if networks == 1:
            assert valid is not None
            fitted = fit(*starts[0], rows, valid, **settings)
            seen = predict_held_out(fitted.model, valid, seed)
        elif folds is not None:
            assert isinstance(rows, Rows)
            fitted, seen = crossfit(starts, rows, *fold_indices(folds), used=used, **settings)
            folds = torch.from_numpy(without(folds.numpy(), fitted.diverged))
        else:
            assert isinstance(rows, Rows)
            assert valid is not None
            # several starts: all are trained on the same rows, and share the held-out rows
            numbers = torch.arange(len(rows) + len(valid), device="cpu")
            parts = [numbers[: len(rows)]] * networks, [numbers[len(rows) :]] * networks
            fitted, seen = crossfit(starts, concatenate([rows, valid]), *parts, **settings)
            if self.svi.restarts.keep == "best":
                fitted, seen = keep_best(fitted, seen, search)
        if problem.head != "point":
            fitted, seen = fit_heads_out_of_fold(
                fitted, seen, search, problem.head, table, calibrate=plan.calibrate, free_noise=self.free_noise
            )
        if search is None or fitted.log_densities is None:
            return fitted, seen, search
        q = torch.tensor([search.q[n] for n in fitted.log_densities.numbers], dtype=torch.float64, device="cpu")
        found_folds = None if folds is None else folds[0][fitted.log_densities.rows]
        group = None if table.group is None else table.group[fitted.log_densities.rows]
        weights = fit_structure_weights(fitted.model, fitted.log_densities, q, found_folds, group, table.seed)
        return replace(fitted, diagnostics=CrossFitDiagnostics(structure=weights)), seen, search

    def _start_search(self, training: Training, warm: bool) -> StructureSearch | None:
        """Return the initial state of the search; None if the posterior over structure is not fitted to rows."""
        if self.by_bound or not self.search.free:
            return None
        plan = self.svi.plan
        search = StructureSearch(
            training.epochs, self.search.law, lengthen=plan.epochs == "auto", focusing=warm, **self.search.settings
        )
        if plan.patience == "auto":
            search.patience = max(1, round(0.25 * search.focus * training.epochs))
        elif plan.patience is not None:
            search.patience = training.evaluate_every * int(plan.patience)
        return search


@dataclass(frozen=True)
class Then:
    """Strategy followed by steps.

    Attributes
    ----------
    strategy : Strategy
        Strategy of the inference.
    steps : sequence of Step
        Steps after the inference, in order.
    """

    strategy: Strategy
    steps: Sequence[Step]

    def infer(self, problem: Problem, table: Prepared, session: Session) -> Fitted:
        """Infer, then apply the steps."""
        fitted = self.strategy.infer(problem, table, session)
        for step in self.steps:
            fitted = step(fitted, table)
        return fitted


class _Timing:
    """Time of the trials of a fit with a time limit; nothing is limited without one."""

    def __init__(self, session: Session) -> None:
        self.limit = None if session.limit is None else session.limit.part(_TRIALS)
        self.longest = 0.0  # seconds of the longest trial so far
        self.complete = True
        self._pace: Pace | None = None
        self._begun = 0.0

    def allows_another(self) -> bool:
        """Return True if a trial as long as the longest one ends in time; the next trial begins now."""
        self._begun = time.monotonic()
        self.complete = self.complete and (self.limit is None or self.limit.allows(self.longest))
        return self.complete

    def callbacks(self) -> tuple[Pace, ...]:
        """Return the callbacks of the next trial, which stop it if it is too slow; the first one leaves half the time.

        A single trial has nothing to be compared with.
        """
        share = 1.0 if self.longest else 0.5
        self._pace = None if self.limit is None else Pace(self.limit.part(share), stops=True)
        return () if self._pace is None else (self._pace,)

    def end(self) -> bool:
        """Record the end of a trial; return True if it was not stopped."""
        self.longest = max(self.longest, time.monotonic() - self._begun)
        self.complete = self.complete and (self._pace is None or not self._pace.exceeded)
        return self.complete


def _name_limit(fitted: Fitted, session: Session, *, complete: bool = True) -> Fitted:
    """Add a warning to a fit if a time limit shortened its training, or if the trials are not complete."""
    effects = [] if complete else ["left out short trainings that compare options"]
    if fitted.planned is not None and fitted.planned > fitted.n_iter:
        effects.append(f"reduced the planned epochs from {fitted.planned} to {fitted.n_iter}")
    if not effects or session.limit is None:
        return fitted
    text = f"minutes={session.limit.minutes:g} {' and '.join(effects)}; more minutes may give better predictions"
    return replace(fitted, warnings=(*fitted.warnings, text))


def _add_inputs(model: Model, table: Prepared, whole: Prepared) -> None:
    """Add the inputs of the whole table to networks of the table with plain numbers, in place, with the weight 0."""
    if table.inputs == whole.inputs:
        return
    for network in list_members(model):
        if not isinstance(network, SelectsInputs):
            raise missing_capability(
                network, SelectsInputs, "a mixture of encodings", "leave 'numbers' out of candidates"
            )
        network.add_inputs(torch.tensor(whole.schema.plain_features, device="cpu"), whole.inputs)


def _with_features(session: Session, used: Tensor | None) -> Session:
    """Return a session whose checkpoints depend on the features that each network uses."""
    return session if used is None else replace(session, lasting={**session.lasting, "features": used.int().tolist()})


def _settings(
    table: Prepared,
    session: Session,
    start: tuple[Model, Likelihood],
    training: Training,
    without: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the settings common to all trainings; a checkpoint may differ in the options named by `without`."""

    def fingerprint() -> str:
        state = (*start[0].state_dict().values(), *start[1].state_dict().values())
        facts = {**session.lasting, "seed": table.seed}
        if table.folds is not None:
            facts["dealt"] = table.folds.tolist()
        return saving.fingerprint(table.train, table.valid, state, training, facts, without)

    callbacks, resume = session.with_checkpoint(table, fingerprint)
    return {
        "training": training,
        "seed": fold_in(table.seed, "training"),
        "callbacks": callbacks,
        "progress": session.display(),
        "resume": resume,
    }
