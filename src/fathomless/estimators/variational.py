"""Base classes of estimators with networks trained by stochastic gradients, with or without cross-fitting.

They convert options to values: a :class:`~fathomless.estimators.problem.Problem`, a session, and a strategy
(:mod:`fathomless.estimators.strategies`), which computes the posterior.
"""

from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

from fathomless.data.rows import Rows
from fathomless.estimators.base import Estimator
from fathomless.estimators.candidates import expand_candidates
from fathomless.estimators.declaring import nested_options
from fathomless.estimators.finalize import automatic_members
from fathomless.estimators.hurdle import leave_out_atoms
from fathomless.estimators.last_layer import fit_heads_in_sample
from fathomless.estimators.options import CrossFitOptions, VariationalOptions, options_of
from fathomless.estimators.preparation import Prepared, SplitPlan
from fathomless.estimators.second_stage import add_second_stage, check_second_stage
from fathomless.estimators.strategies import SVI, CrossFit, SearchOptions, Then, TrainingPlan
from fathomless.estimators.transforms import is_noise_free
from fathomless.estimators.values import Folds, Splitter
from fathomless.inference.variational.batched import fit_batched
from fathomless.inference.variational.training import automatic_epochs
from fathomless.system import checks
from fathomless.system.errors import DataError, DivergenceError
from fathomless.system.rng import fold_in
from fathomless.system.torch_state import enable_gradients

__all__ = ["CrossFitEstimator", "OneNetwork", "VariationalEstimator", "fit_together"]

_FEW = 60  # number of rows below which none are held out
_SHARE = 0.1  # default fraction of the rows that is held out of a single network
_LAW = ("structure_rate", "structure_delay", "structure_optimizer", "structure_radius")  # options of a law


class VariationalEstimator(VariationalOptions, Estimator, ABC):
    """Base class of estimators trained by stochastic gradients."""

    structure_every: ClassVar[int] = 8  # steps between two updates of the posterior over structure
    clip_norm_auto: ClassVar[float | None] = None  # values of "auto" of these options of Adam
    warm_up_auto: ClassVar[float] = 0.0

    def _svi(self) -> SVI:
        """Return the training by the evidence bound."""
        return SVI(self._training_plan(), self._restarts())

    def _training_plan(self) -> TrainingPlan:
        options = self._current_options()
        law = {name: options[name] for name in _LAW if name in options}
        if "structure_from" in options:
            law = self._elbo().law()
        return TrainingPlan(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            temperature=self.temperature,
            **self._value("optimizer").training(self.clip_norm_auto, self.warm_up_auto),
            patience=self.patience,
            calibrate=self.calibrate,
            draws=options.get("training_draws", 1),
            mixed=self.precision == "bfloat16",
            structure_every=self.structure_every,
            law=law or None,
        )

    def _share(self, count: float, *, grouped: bool = False, stream: bool = False) -> float:
        """Return the fraction of rows held out of a single network; the parameters are those of :meth:`_split_plan`."""
        starts = self._restarts().count
        if stream and starts != 1:
            raise DataError(f"n_restarts={starts} was given; streams allow no restarts: set it to 1")
        automatic = isinstance(self.validation_fraction, str)
        fraction = _SHARE if automatic else float(self.validation_fraction)
        if not 0.0 <= fraction < 1.0:
            raise DataError(f"validation_fraction={fraction} was given; 0 <= validation_fraction < 1 is allowed")
        chosen = not isinstance(self.temperature, int | float)  # sparse families choose it with held-out rows
        if grouped and fraction == 0.0 and not chosen:
            raise DataError(
                f"groups were given, but this {type(self).__name__} trains a single network and holds out no rows; "
                "leave them out, set validation_fraction, or set cv above 1 if there is such an option"
            )
        return 0.0 if count < _FEW else fraction

    def _folds(self) -> Folds | None:
        """Return the options of the folds; None for an array or a splitter, a single fold without the option `cv`."""
        return cast("Folds | None", self._value("cv")) if "cv" in self._current_options() else Folds(n_splits=1)

    def _several_networks(self) -> str:
        """Return the text of the option `cv` for messages if it requires several networks, and else ""."""
        folds = self._folds()
        if folds is None:
            return f"cv={self.cv!r}" if isinstance(self.cv, Splitter) else "an array as cv"
        several = not isinstance(folds.n_splits, str) and folds.n_splits > 1
        return f"cv={folds.n_splits}" if several else ""


class OneNetwork(VariationalEstimator, ABC):
    """Base class of estimators of a single network, with optional restarts and without folds."""

    def _split_plan(self, count: float, inputs: int, *, grouped: bool = False, stream: bool = False) -> SplitPlan:
        return SplitPlan(share=self._share(count, grouped=grouped, stream=stream))


class CrossFitEstimator(CrossFitOptions, VariationalEstimator, ABC):
    """Base class of estimators that fit a posterior over a list of structures by cross-fitting.

    Attributes
    ----------
    fold_ : ndarray of int, shape (R, N), or None
        Fold of every row in each partition, if networks were cross-fitted. It is −1 for rows that are in the training
        sets of all networks, including the rows held out of a network that diverged and was discarded. A row of weight
        above 1 may be divided among folds (see :mod:`fathomless.data.duplicates`); this is the fold of its first part.
    """

    def _check_options(self) -> None:
        """Check the options, and those of every candidate, against their declarations."""
        super()._check_options()
        declared = {option.name: option for option in options_of(type(self))}
        for options in expand_candidates(self.candidates):
            for name, value in options.items():
                checks.option(name, value, **declared[name].metadata)

    def _cross_fit_or_svi(self, search: SearchOptions, prepared: Prepared) -> SVI | CrossFit:
        """Return cross-fitting if held-out or out-of-fold rows are used, and else the evidence bound."""
        if not self._uses_held_out_rows(prepared, search):
            return self._svi()
        defaults = {name: inner.default for name, _, _, inner in nested_options(options_of(type(self)))}
        options = self._current_options(deep=True)
        return CrossFit(
            self._svi(),
            search,
            by_bound=self._choice("structure_from") == "elbo",
            free_noise=is_noise_free(self._current_options(), prepared.target),
            candidates=tuple(expand_candidates(self.candidates)),
            given={name: options[name] for name in search.unused if options[name] != defaults[name]},
        )

    def _uses_held_out_rows(self, prepared: Prepared, search: SearchOptions) -> bool:
        if prepared.folds is not None:
            return True
        held = prepared.valid is not None and len(prepared.valid) > 0
        by = self._choice("structure_from")
        if by == "held_out" and not held:
            raise DataError(
                f"structure_from='held_out' was given, but none of the {prepared.train.count:g} rows are held out; "
                "give more rows, set validation_fraction, or use structure_from='elbo'"
            )
        if by == "held_out" and self._choice("weights") == "sparse":
            raise DataError(
                "structure_from='held_out' was given with weights='sparse', where a structure is a depth and the "
                "included weights; use structure_from='elbo', or weights='map' or 'meanfield'"
            )
        drawn = by == "auto" and not search.cross_fit
        return held and by != "elbo" and not drawn and search.free

    def _plan_split(
        self,
        search: SearchOptions,
        multiplications: Callable[[int], float],
        count: float,
        inputs: int,
        *,
        grouped: bool = False,
        stream: bool = False,
    ) -> SplitPlan:
        """Return the split of the rows, given the search and the multiplications per row for a number of columns."""
        if stream:
            return self._plan_stream(count)
        members = self._count_networks(search, multiplications, count, inputs)
        copies = len(expand_candidates(self.candidates))
        if self.candidates and members == 1:
            raise DataError(
                f"candidates={self.candidates!r} was given, but a single network would be trained; candidates are "
                "weighted by out-of-fold rows: set cv above 1, or leave candidates out"
            )
        folds = self._folds()
        if members == 1:
            order = "random" if folds is None else folds.order
            return SplitPlan(folds=order, share=self._share(count, grouped=grouped))
        return SplitPlan(
            members=members,
            repeats=1 if folds is None else folds.n_repeats,
            copies=copies,
            folds=self.cv if folds is None else folds.order,
            optional=folds is not None and folds.n_splits == "auto",
            share=self._share(count),
        )

    def _plan_stream(self, count: float) -> SplitPlan:
        share = self._share(count, stream=True)
        if self.candidates:
            raise DataError(f"candidates={self.candidates!r} was given; streams train a single network: leave it out")
        if several := self._several_networks():
            raise DataError(f"{several} was given; streams train a single network: set it to 1, or to 'auto'")
        return SplitPlan(share=share)

    def _count_networks(
        self, search: SearchOptions, multiplications: Callable[[int], float], count: float, inputs: int
    ) -> int:
        """Return the number of cross-fitted networks, given the number of rows; 2 for any array or splitter."""
        starts = self._restarts().count
        single = (
            [] if isinstance(self.validation_fraction, str) else [f"validation_fraction={self.validation_fraction}"]
        )
        single += [f"n_restarts={starts}"] if starts > 1 else []
        single += [f"warm_start={self.warm_start}"] if self.warm_start else []
        if single and (several := self._several_networks()):
            raise DataError(
                f"{several} was given with {' and '.join(single)}, which requires a single network; leave one of them "
                "out"
            )
        folds = self._folds()
        if folds is None:
            return 2
        if not isinstance(folds.n_splits, str):
            if folds.n_splits > max(count, 1.0):
                raise DataError(
                    f"cv={folds.n_splits} was given for {count:g} rows, counted by their sample weights; it must be at "
                    "most that number"
                )
            if folds.n_splits == 1 and folds.n_repeats > 1:
                raise DataError(
                    f"n_repeats={folds.n_repeats} was given with one fold, which has nothing to repeat; set n_splits "
                    "to 2 or more, or leave n_repeats out"
                )
            return folds.n_splits
        if single or self._choice("structure_from") == "elbo" or not search.cross_fit:
            return 1
        # a rough estimate, with the default batch size
        passes = automatic_epochs(max(1, round(count / 256))) if self.epochs == "auto" else int(self.epochs)
        return automatic_members(count, multiplications(inputs), passes)


@enable_gradients()
def fit_together(estimators: Sequence[VariationalEstimator], tables: Sequence[tuple[Any, Any]]) -> None:
    """Fit estimators with equal options to tables with equal numbers of rows, in one batched training.

    The result is that of ``estimator.fit(X, y)`` for each, up to rounding; seeds may differ.

    Parameters
    ----------
    estimators : sequence of VariationalEstimator
        Estimators of one class. Their callbacks, checkpoints and time limits are ignored, and logarithms of targets are
        not tried.
    tables : sequence of (X, y)
        Table of each estimator.

    Raises
    ------
    DataError
        If options or tables are not compatible; see
        :func:`~fathomless.inference.variational.batched.fit_batched`.
    DivergenceError
        If any of the trainings failed; none of the estimators is fitted then.
    """
    if len(estimators) != len(tables):
        raise DataError(f"{len(estimators)} estimators and {len(tables)} tables were given; one for each is needed")
    prepared = [estimator._prepare(X, y, None) for estimator, (X, y) in zip(estimators, tables, strict=True)]
    for estimator, table in zip(estimators, prepared, strict=True):
        strategy = estimator._strategy(table)
        inference = strategy.strategy if isinstance(strategy, Then) else strategy
        if isinstance(estimator, CrossFitEstimator) and not isinstance(inference, SVI):
            raise DataError(
                f"structure_from={estimator.structure_from!r} and cv={estimator.cv!r} were given; fit_together needs "
                "structure_from='elbo', and weights that are not sampled"
            )
    problems = [estimator._problem() for estimator in estimators]
    for problem, table in zip(problems, prepared, strict=True):
        check_second_stage(problem.task, table)
    without_atoms = [leave_out_atoms(table) for table in prepared]
    starts = [problem.start(table, table.seed) for problem, table in zip(problems, without_atoms, strict=True)]
    train = [cast(Rows, table.train) for table in without_atoms]
    fits = fit_batched(
        [model for model, _ in starts],
        [likelihood for _, likelihood in starts],
        train,
        [table.valid for table in without_atoms if table.valid is not None],
        training=[
            e._training_plan().training(rows.count, len(rows)) for e, rows in zip(estimators, train, strict=True)
        ],
        seeds=[fold_in(table.seed, "training") for table in prepared],
    )
    errors = [fitted.error for fitted in fits if fitted.error]
    if errors:
        raise DivergenceError(f"{len(errors)} of {len(fits)} trainings failed; the first error: {errors[0]}")
    for estimator, problem, table, others, fitted in zip(
        estimators, problems, prepared, without_atoms, fits, strict=True
    ):
        if problem.head != "point":
            fitted = fit_heads_in_sample(fitted, problem.head, others, calibrate=estimator.calibrate)
        estimator._store(*add_second_stage(fitted, others, table, problem))
