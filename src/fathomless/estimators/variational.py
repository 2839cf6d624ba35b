"""Estimators whose networks are trained by stochastic gradients, by the evidence bound or by cross-fitting.

They turn options into values: a :class:`~fathomless.estimators.problem.Problem`, a session, and a strategy
(:mod:`fathomless.estimators.strategies`), which finds the posterior.
"""

from abc import ABC
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

from fathomless.data.rows import Rows
from fathomless.estimators.base import Estimator
from fathomless.estimators.candidates import expand_candidates
from fathomless.estimators.declaring import nested_options
from fathomless.estimators.finalize import automatic_members
from fathomless.estimators.last_layer import fit_heads_in_sample
from fathomless.estimators.options import CrossFitOptions, VariationalOptions, options_of
from fathomless.estimators.preparation import Prepared, SplitPlan
from fathomless.estimators.strategies import SVI, CrossFit, SearchOptions, Then, TrainingPlan
from fathomless.estimators.values import Folds, Splitter
from fathomless.inference.runs.distributed import ranks
from fathomless.inference.variational.batched import fit_batched
from fathomless.inference.variational.training import automatic_epochs
from fathomless.system.errors import DataError, DivergenceError
from fathomless.system.rng import fold_in
from fathomless.system.torch_state import enable_gradients

__all__ = ["CrossFitEstimator", "OneNetwork", "VariationalEstimator", "fit_together"]

_FEW = 60  # rows below which none are held out
_SHARE = 0.1  # of the rows that are held out of one network
_LAW = ("structure_rate", "structure_delay", "structure_optimizer", "structure_radius")  # options of a law


class VariationalEstimator(VariationalOptions, Estimator, ABC):
    """Estimators of networks that are trained."""

    structure_every: ClassVar[int] = 8  # steps between two moves of the posterior over structure
    clip_norm_auto: ClassVar[float | None] = None  # what "auto" of these options of Adam stands for
    warm_up_auto: ClassVar[float] = 0.0

    def _svi(self) -> SVI:
        """Return the training by the evidence bound."""
        return SVI(self._training_plan(), self._restarts())

    def _training_plan(self) -> TrainingPlan:
        given = self._options_given()
        law = {name: given[name] for name in _LAW if name in given}
        if "structure_from" in given:
            law = self._elbo().law()
        return TrainingPlan(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            temperature=self.temperature,
            **self._value("optimizer").training(self.clip_norm_auto, self.warm_up_auto),
            patience=self.patience,
            calibrate=self.calibrate,
            draws=given.get("training_draws", 1),
            mixed=self.precision == "bfloat16",
            structure_every=self.structure_every,
            law=law or None,
        )

    def _share(self, count: float, *, grouped: bool = False, stream: bool = False) -> float:
        """Return the share of so many rows that is held out of one network; the rest as in :meth:`_split_plan`."""
        starts = self._restarts().count
        if stream and starts != 1:
            raise DataError(f"n_restarts={starts} was given; streams are fitted once: set it to 1")
        automatic = isinstance(self.validation_fraction, str)
        fraction = _SHARE if automatic else float(self.validation_fraction)
        if not 0.0 <= fraction < 1.0:
            raise DataError(f"validation_fraction={fraction} was given; 0 <= validation_fraction < 1 is allowed")
        chosen = not isinstance(self.temperature, int | float)  # a sparse family's, by held-out rows
        if grouped and fraction == 0.0 and not chosen:
            raise DataError(
                f"groups were given, and this {type(self).__name__} trains one network and holds out no rows; leave "
                "them out, set validation_fraction, or set cv above 1 where there is such an option"
            )
        return 0.0 if count < _FEW else fraction

    def _folds(self) -> Folds | None:
        """Return the plan of the folds; None if an array or a splitter has them. Without `cv` there is one network."""
        return cast("Folds | None", self._value("cv")) if "cv" in self._options_given() else Folds(n_splits=1)

    def _cross_fitted(self) -> str:
        """Return the option `cv` as messages name it if it asks for several networks; "" if it does not."""
        folds = self._folds()
        if folds is None:
            return f"cv={self.cv!r}" if isinstance(self.cv, Splitter) else "an array as cv"
        several = not isinstance(folds.n_splits, str) and folds.n_splits > 1
        return f"cv={folds.n_splits}" if several else ""


class OneNetwork(VariationalEstimator, ABC):
    """Estimators of one network, or of restarts, of which no rows are folded."""

    def _split_plan(self, count: float, inputs: int, *, grouped: bool = False, stream: bool = False) -> SplitPlan:
        return SplitPlan(share=self._share(count, grouped=grouped, stream=stream))


class CrossFitEstimator(CrossFitOptions, VariationalEstimator, ABC):
    """How a posterior over a list of structures is found from rows that the networks were not fitted to.

    Attributes
    ----------
    fold_ : ndarray of int, shape (R, N), or None
        The fold of every row in each partition, if networks were cross-fitted; −1 for rows that all were fitted to,
        those among them that were kept from a network that diverged and was left out. A row that counts several times
        may be divided among folds (see :mod:`fathomless.data.duplicates`); this is the fold of its first part.
    """

    def _by_rows_or_bound(self, search: SearchOptions, prepared: Prepared) -> SVI | CrossFit:
        """Return cross-fitting if out-of-fold rows judge the networks, and else the evidence bound."""
        if not self._judged_by_rows(prepared, search):
            return self._svi()
        declared = {name: inner.default for name, _, _, inner in nested_options(options_of(type(self)))}
        every = self._options_given(deep=True)
        given = {name: every[name] for name in search.unused if every[name] != declared[name]}
        free = self._options_given().get("likelihood", "") == "auto"
        return CrossFit(
            self._svi(),
            search,
            self._choice("structure_from") == "elbo",
            free,
            tuple(expand_candidates(self.candidates)),
            given,
        )

    def _judged_by_rows(self, prepared: Prepared, search: SearchOptions) -> bool:
        if prepared.folds is not None:
            return True
        held, by = prepared.valid is not None and len(prepared.valid) > 0, self._choice("structure_from")
        if by == "held_out" and not held:
            raise DataError(
                f"structure_from='held_out' was given, and of these {prepared.train.count:g} rows none are held out; "
                "give more rows, set validation_fraction, or use structure_from='elbo'"
            )
        if by == "held_out" and self._choice("weights") == "sparse":
            raise DataError(
                "structure_from='held_out' was given with weights='sparse', where a structure is a depth and what is "
                "included in its layers; take structure_from='elbo', or weights='map' or 'meanfield'"
            )
        drawn = by == "auto" and not search.cross_fit
        return held and by != "elbo" and not drawn and search.free

    def _plan_of(
        self,
        search: SearchOptions,
        multiplications: Callable[[int], float],
        count: float,
        inputs: int,
        *,
        grouped: bool = False,
        stream: bool = False,
    ) -> SplitPlan:
        """Return the split of rows for a search and networks of so many multiplications for a row, by their columns."""
        if stream:
            return self._plan_of_stream(count)
        members, copies = self._members(search, multiplications, count, inputs), len(expand_candidates(self.candidates))
        if copies > 1 and members == 1:
            raise DataError(
                f"candidates={self.candidates!r} was given, and one network would be trained; candidates are "
                "weighed by out-of-fold rows: set cv above 1, or leave candidates out"
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

    def _plan_of_stream(self, count: float) -> SplitPlan:
        share = self._share(count, stream=True)
        if several := self._cross_fitted():
            raise DataError(f"{several} was given; streams train one network: set it to 1, or to 'auto'")
        return SplitPlan(share=share)

    def _members(
        self, search: SearchOptions, multiplications: Callable[[int], float], count: float, inputs: int
    ) -> int:
        """Return how many networks are cross-fitted to so many rows; 2 stands for those of an array or a splitter."""
        starts = self._restarts().count
        asked = [] if isinstance(self.validation_fraction, str) else [f"validation_fraction={self.validation_fraction}"]
        asked += [f"n_restarts={starts}"] if starts > 1 else []
        asked += [f"warm_start={self.warm_start}"] if self.warm_start else []
        if asked and (several := self._cross_fitted()):
            raise DataError(
                f"{several} was given with {' and '.join(asked)}, which ask for one network; leave one of them out"
            )
        folds = self._folds()
        if folds is None:
            return 2
        if not isinstance(folds.n_splits, str):
            if folds.n_splits > max(count, 1.0):
                raise DataError(f"cv={folds.n_splits} was given for {count:g} rows; at most as many are allowed")
            return folds.n_splits
        if asked or self._choice("structure_from") == "elbo" or not search.cross_fit or ranks().count > 1:
            return 1
        passes = automatic_epochs(max(1, round(count / 256))) if self.epochs == "auto" else int(self.epochs)
        return automatic_members(count, multiplications(inputs), passes)


@enable_gradients()
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
        For options or tables that differ too much; see :func:`~fathomless.inference.variational.batched.fit_batched`.
    DivergenceError
        If any of the trainings failed; then none of the estimators is fitted.
    """
    if len(estimators) != len(tables):
        raise DataError(f"{len(estimators)} estimators and {len(tables)} tables were given; one for each is needed")
    prepared = [estimator._prepare(X, y, None) for estimator, (X, y) in zip(estimators, tables, strict=True)]
    for estimator, one in zip(estimators, prepared, strict=True):
        strategy = estimator._strategy(one)
        inference = strategy.strategy if isinstance(strategy, Then) else strategy
        if isinstance(estimator, CrossFitEstimator) and not isinstance(inference, SVI):
            raise DataError(
                f"structure_from={estimator.structure_from!r} and cv={estimator.cv!r} were given; estimators "
                "that are fitted together have structure_from='elbo', and weights that are not sampled"
            )
    problems = [estimator._problem() for estimator in estimators]
    starts = [problem.start(one, one.seed) for problem, one in zip(problems, prepared, strict=True)]
    train = [cast(Rows, one.train) for one in prepared]
    every = fit_batched(
        [model for model, _ in starts],
        [likelihood for _, likelihood in starts],
        train,
        [one.valid for one in prepared if one.valid is not None],
        training=[
            e._training_plan().training(rows.count, len(rows)) for e, rows in zip(estimators, train, strict=True)
        ],
        seeds=[fold_in(one.seed, "training") for one in prepared],
    )
    failed = [fitted.error for fitted in every if fitted.error]
    if failed:
        raise DivergenceError(f"{len(failed)} of {len(every)} trainings failed; the first: {failed[0]}")
    for estimator, problem, one, fitted in zip(estimators, problems, prepared, every, strict=True):
        if problem.head != "point":
            fitted = fit_heads_in_sample(fitted, problem.head, one, calibrate=estimator.calibrate)
        estimator._take_over(one, fitted)
