"""Base classes of all estimators: the scikit-learn interface to fitting, predicting, saving and loading.

An estimator prepares a table and passes it to a strategy, from :mod:`fathomless.estimators.variational` or
:mod:`fathomless.estimators.markov_chains`. Tasks are in :mod:`fathomless.estimators.tasks`.
"""

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from fathomless.data import streams
from fathomless.data.cells import check_table, is_frame
from fathomless.data.censoring import read_bounds
from fathomless.data.folds import without
from fathomless.data.frames import take
from fathomless.data.given_rows import GivenRows, fold_tensors
from fathomless.data.schema import Schema
from fathomless.data.targets import ClassLabels, Target, TargetScale
from fathomless.estimators import saving
from fathomless.estimators.conformal import score_rows
from fathomless.estimators.declaring import choice_name, nested_values, replace_options, value_of
from fathomless.estimators.display import add_summary
from fathomless.estimators.encoding import BinsDefault, ClassTask, ColumnOptions, NumberTask, Task
from fathomless.estimators.hurdle import leave_out_atoms, require_other_values
from fathomless.estimators.networks import Networks
from fathomless.estimators.options import CHANGEABLE, RUN_OPTIONS, options_of
from fathomless.estimators.out_of_distribution import fit_training_distribution
from fathomless.estimators.predictor import (
    AnyPredictive,
    Array,
    Predictor,
    Restored,
    concatenate_parts,
    name_errors,
    read_options,
    restore,
)
from fathomless.estimators.preparation import (
    Prepared,
    SplitPlan,
    choose_dtype,
    prepare,
    prepare_part,
    prepare_stream,
    read,
)
from fathomless.estimators.problem import Problem, Session
from fathomless.estimators.renamed import check_methods, old_names, rename_options, warn_renamed
from fathomless.estimators.second_stage import add_second_stage, check_second_stage
from fathomless.estimators.strategies import Strategy
from fathomless.estimators.transforms import try_transform
from fathomless.estimators.values import Splitter
from fathomless.inference.out_of_fold.heads import HEADS
from fathomless.inference.runs.distributed import device_name
from fathomless.inference.runs.limits import TimeLimit
from fathomless.inference.runs.run import Fitted, add_prefix
from fathomless.posterior.capabilities import get_blueprint
from fathomless.posterior.conformal import ConformalScores
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.fit_diagnostics import Diagnostics
from fathomless.posterior.hurdle import AtomNetworks
from fathomless.posterior.likelihoods import Likelihood, cell_of
from fathomless.posterior.model import Model
from fathomless.posterior.out_of_distribution import TrainingDistribution
from fathomless.posterior.recalibration import Recalibration
from fathomless.posterior.structure import Structure
from fathomless.posterior.trees import TreePool
from fathomless.system import checks, io, memory, nonfinite
from fathomless.system.errors import ConvergenceWarning, DataError
from fathomless.system.masked import unmask
from fathomless.system.rng import as_seed, building
from fathomless.system.torch_state import enable_gradients, threads_for_width

__all__ = ["Estimator", "PredictiveEstimator", "require_fitted"]


class Estimator(Networks, BaseEstimator, ABC):  # type: ignore[misc]
    """Base class of all estimators.

    Attributes
    ----------
    structure_ : Structure
        Posterior over structure, with a summary.
    history_ : list of dict
        Training history: see :class:`~fathomless.inference.runs.run.Run`.
    n_iter_ : int
        Number of completed epochs.
    validation_score_ : float or None
        Mean log predictive density on rows that a network was not fitted to, in nats per row and in the units of the
        target. For cross-fitted networks it is the out-of-fold mean over all rows; the posterior over structure and the
        noise are also fitted without the fold of each row. For a single network it is the mean over the held-out rows,
        which also chose the epoch. It then includes posteriors of the heads and networks drawn after training, and the
        noise and the law over structure are cross-fitted on ten parts of these rows. For sampled weights it is the mean
        leave-one-out log density, with copies of a row left out together, or None if it cannot be estimated. The
        cross-validated gain of a recalibration is included.
    held_out_ : ndarray of int
        Indices of the held-out rows. For cross-fitted networks these are all rows, each held out of one network.
    fit_diagnostics_ : Diagnostics
        Diagnostics of the fit, with a class for each kind of inference (:mod:`fathomless.posterior.fit_diagnostics`):
        the posterior over structure with standard errors, weights of the candidate architectures, the relative noise of
        the average, records of the chains, and equal rows of the table. If parts of a resumed fit ran under other
        versions of the library, torch, NumPy or Python, these versions are listed too.
    relevance_ : dict of str to dict
        Posterior relevance of every encoded column, for sampled weights; empty otherwise.
    model_, likelihood_ : nn.Module
        The fitted network and p(y | f).
    recalibration_ : Recalibration or None
        Laws of the standardised residual of a regression (`recalibrate`); None if they do not improve the
        cross-validated log-likelihood. ``fit_diagnostics_.recalibration`` has their weights and the gain. With the
        option `neighbors`, ``recalibration_.neighbors`` has the encoded training rows, or is None if they were not
        needed.
    trees_ : TreePool or None
        Boosted trees beside the networks of a classifier (option `trees`); see ``recalibration_.trees`` for numbers.
    hurdle_ : AtomNetworks or None
        Probabilities of the atoms of the target of a regression, which are in ``target_.hurdle``; None without atoms.
    device_ : str
        Device of the fit: "cpu", or the kind of an accelerator and its name.
    resumable_ : bool
        True if a longer fit with the same `checkpoint` resumes from the end of this one, bit-identical to a single long
        fit. False for loaded estimators.
    """

    schema_: Schema
    target_: Target
    likelihood_: Likelihood
    recalibration_: Recalibration | None
    hurdle_: AtomNetworks | None
    trees_: TreePool | None
    model_: Model
    structure_: Structure
    relevance_: dict[str, dict[str, float]]
    history_: list[dict[str, float]]
    n_iter_: int
    held_out_: Array
    fold_: Array | None
    seed_: int
    fit_diagnostics_: Diagnostics
    _rows: GivenRows | None = None  # rows given to fit, if they are known
    _conformal: ConformalScores | None = None  # scores of prediction intervals with a guarantee
    _training: TrainingDistribution | None = None  # for p-values of new rows
    _fitted_with: dict[str, Any]  # options of the fit; the attributes may have been changed since

    warm_start = False  # an option of some
    callbacks: Sequence[Callable[[Any], None]] | None = None  # an option of most
    cv: Any = None  # an option of some
    resumable_ = False
    allows_censored: ClassVar[bool] = True  # False if the inference does not support censored targets
    _split_by: tuple[Any, Any] = (None, None)  # a splitter, and the folds that it made

    _bins: ClassVar[BinsDefault | None] = None  # rule of the family by which numbers="auto" is "binned"
    shown: ClassVar[Mapping[str, str]] = {}  # columns of the history in the progress bar, with their labels

    def __init_subclass__(cls, **options: Any) -> None:
        """Check that a subclass defines no methods that only earlier versions called."""
        super().__init_subclass__(**options)
        check_methods(cls)

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Suggest a similar name for an unknown option, as Python does from version 3.13 on."""
        known = {*cls._get_param_names(), *(option.name for option in options_of(cls))}
        for name in options.keys() - known - old_names(cls):
            if near := get_close_matches(name, known, 1):
                raise TypeError(
                    f"{cls.__name__}() got an unexpected keyword argument {name!r}. Did you mean {near[0]!r}?"
                )
        estimator: Self = super().__new__(cls)
        return estimator

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options by name.

        Parameters
        ----------
        deep : bool
            True to include the options of option values, such as ``weights__chains``.
        """
        params: dict[str, Any] = super().get_params(deep)
        if deep:
            params |= nested_values(options_of(type(self)), params)
        return params

    def set_params(self, **params: Any) -> Self:
        """Set options by name.

        A nested name sets an option of an option value: ``weights__chains=4`` replaces the value of `weights` by one
        with four chains.

        Parameters
        ----------
        params
            Options.

        Raises
        ------
        DataError
            If the current choice of an option does not have the nested option.
        """
        changes = dict(params)
        before = self.get_params(deep=False)
        if old_names(type(self)) & changes.keys():
            renaming = rename_options(type(self), changes, before)
            warn_renamed(type(self), renaming, changes)
            changes = {**renaming.options, **renaming.nested}
        declared = {option.name: option for option in options_of(type(self))}
        nested: dict[str, dict[str, Any]] = {}
        for name in list(changes):
            option, _, inner = name.partition("__")
            if inner and option in declared and declared[option].metadata["values"]:
                nested.setdefault(option, {})[inner] = changes.pop(name)
        for name, entries in nested.items():
            current = changes.get(name, before[name])
            value = replace_options(declared[name], current, entries)
            # an unchanged value keeps its short form, such as a name
            changes[name] = current if value == value_of(declared[name], current) else value
        super().set_params(**changes)
        return self

    @property
    def goes_on_(self) -> bool:
        """Deprecated name of ``resumable_``."""
        warnings.warn("goes_on_ will be removed in the next version; use resumable_", FutureWarning, stacklevel=2)
        return self.resumable_

    @abstractmethod
    def _task(self) -> Task:
        """Return the encoding of rows and targets."""

    @abstractmethod
    def _describe(self) -> None:
        """Set the attributes that describe the posterior over structure."""

    def _encode(self, schema: Schema, X: Any) -> Array:
        """Encode the predictors of a table, shape (N, D)."""
        return self._task().encode_rows(schema, X)

    # ---- inference

    @abstractmethod
    def _split_plan(self, count: float, inputs: int, *, grouped: bool = False, stream: bool = False) -> SplitPlan:
        """Return the split of the rows, given their number, the number of encoded columns, and if they have groups.

        The columns of a stream are not known yet; its plan is a held-out fraction. Raises DataError if the options do
        not allow streams.
        """

    @abstractmethod
    def _strategy(self, prepared: Prepared) -> Strategy:
        """Return the inference strategy for the options."""

    def _infer(self, prepared: Prepared, session: Session) -> tuple[Prepared, Fitted]:
        """Compute the posterior with the strategy and the second stage; return also the table with its encoding."""
        problem = self._problem()
        check_second_stage(problem.task, prepared)
        others = leave_out_atoms(prepared)
        fitted = self._strategy(others).infer(problem, others, session)
        return add_second_stage(fitted, others, prepared, problem)

    def _problem(self) -> Problem:
        """Return the networks of the options, or the fitted network that a fit continues from."""
        fitted = None
        if self._is_continued():
            self._check_same_options()
            fitted = self.model_, self.likelihood_
        return Problem(self, self._task(), self._head(), fitted)

    def _head(self) -> str:
        """Return the name of the posterior of the heads."""
        head: str = self._current_options().get("last_layer", "point")
        checks.choice("last_layer", head, ("auto", "point", *HEADS))
        return "point" if head == "auto" else head

    def _is_continued(self) -> bool:
        """Return True if a fit continues from the fitted network and its encodings."""
        return bool(self.warm_start) and "model_" in vars(self)

    # ---- preparation

    def _prepare(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        groups: Any = None,
        censored: Any = None,
        again: Prepared | None = None,
    ) -> Prepared:
        """Encode and split a table; set only the names of the columns and the folds of a splitter.

        Encodings are fitted to the table, or those of the fitted network. With `again`, they are those of an earlier
        preparation of the same table, and so are the seed and the folds of a splitter.
        """
        self._check_options()
        task = self._task()
        seed = self._seed() if again is None else again.seed
        before = self._encodings() if again is None else (again.schema, again.target)
        dtype = self.model_.dtype if self._is_continued() else None
        self._require_target(y)
        if censored is not None and isinstance(task, NumberTask):
            self._refuse_censored()
            if before is not None and cast(TargetScale, before[1]).cells:
                raise DataError(
                    "censored was given, but the fit continues from one to the cells of a target on a lattice; fit a "
                    "new estimator"
                )
            task, y = replace(task, censored=True), read_bounds(y, censored)
        X = self._table(X, reset=before is None)
        table = read(X, y, sample_weight, groups, task=task, columns=self._column_options(), before=before)
        table = table if again is None else replace(table, default_numbers=again.default_numbers)
        plan = self._split_plan(table.count, table.inputs, grouped=groups is not None)
        if again is not None and again.fold_of_row is not None and isinstance(plan.folds, Splitter):
            plan = replace(plan, folds=again.fold_of_row[: len(again.fold_of_row) // plan.copies])
        prepared = require_other_values(prepare(table, plan, seed, self.precision, self._device(), dtype))
        fold = prepared.fold_of_row
        # the partitions are repeated for every candidate architecture; one copy suffices for saving
        self._split_by = self.cv, None if fold is None else fold[: len(fold) // plan.copies]
        return prepared

    def _list_uncensored(self) -> list[str]:
        """Return the options that do not support censored targets."""
        weights = self._current_options().get("weights")
        refused = {
            f"weights={weights!r}": weights is not None and self._choice("weights") == "hmc",
            f"last_layer={self._head()!r}": self._head() != "point",
            **{f"{name}=True": bool(self._current_options().get(name)) for name in ("neighbors", "trees")},
            type(self).__name__: not self.allows_censored,
        }
        return [name for name, is_refused in refused.items() if is_refused]

    def _refuse_censored(self) -> None:
        """Raise an error if the inference does not support censored targets."""
        if given := self._list_uncensored():
            raise DataError(
                f"censored was given with {given[0]}, which does not support censored targets; use weights='map', "
                "last_layer='point', neighbors=False and trees=False, or an estimator that is trained by gradients, "
                "such as UnboundedDepthRegressor"
            )

    def _prepare_part(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> Prepared:
        """Encode a part of the rows with the encodings, seed and data type of the first part."""
        self._check_options()
        first = "model_" not in vars(self)
        if not first and isinstance(self.target_, TargetScale) and self.target_.hurdle:
            raise DataError(
                f"partial_fit was called after a fit that predicts the values {list(self.target_.hurdle)} of the "
                "target apart from others, which partial_fit does not update; set recalibrate=False and fit again"
            )
        self._require_target(y)
        return prepare_part(
            self._table(X, reset=first),
            y,
            sample_weight,
            classes,
            task=self._task(),
            columns=self._column_options(),
            before=None if first else (self.schema_, self.target_),
            seed=self._seed() if first else self.seed_,
            dtype=self.precision if first else self.model_.dtype,
            device=self._device(),
        )

    def _prepare_stream(self, source: streams.Source) -> Prepared:
        """Fit the encodings of a stream, and read its held-out rows."""
        self._check_options()
        plan = self._split_plan(source.rows, 0, stream=True)
        task, columns = self._task(), self._column_options()
        if isinstance(task, ClassTask) and task.class_weight is not None:
            raise DataError(
                f"class_weight={task.class_weight!r} was given, but rows of a stream have equal weights; leave it out, "
                "and set class_cost for unequal costs of misclassification"
            )
        before = self._encodings()
        first = source.take(np.zeros(1, dtype=np.int64))[0]
        encodings = before or streams.learn(
            source,
            task.target_class,
            missing=columns.missing,
            unseen=columns.unseen,
            max_levels=columns.fixed_levels,
            numbers=columns.choose_numbers(source.rows, first.shape[1], classes=task.of_classes),
        )
        if before is None and isinstance(task, ClassTask):
            encodings = encodings[0], task.rank(cast(ClassLabels, encodings[1]))
        self._table(first, reset=before is None)  # a row has all column names
        return prepare_stream(
            source,
            plan.share,
            task=task,
            encodings=encodings,
            seed=self._seed(),
            dtype=self.model_.dtype if self._is_continued() else choose_dtype(self.precision, source.rows),
            device=self._device(),
            digest="" if self._checkpoint().folder is None else source.digest(),
        )

    def _column_options(self) -> ColumnOptions:
        return ColumnOptions.of(self.get_params(deep=False), self._bins)

    def _encodings(self) -> tuple[Schema, Target] | None:
        """Return the encodings that a fit continues with."""
        return (self.schema_, self.target_) if self._is_continued() else None

    def _seed(self) -> int:
        if self._checkpoint().folder is not None and self.random_state is None:
            raise DataError(
                "checkpoint was given without random_state; a run can only resume with the seed of its checkpoint: set "
                "random_state to an integer"
            )
        return as_seed(self.random_state)

    def _require_target(self, y: Any) -> None:
        """Check that a target is given, as scikit-learn does."""
        if y is None:
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None")

    def _table(self, X: Any, reset: bool) -> Any:
        """Check a table as scikit-learn does; if `reset`, set the names of its columns."""
        X = unmask(X)
        if is_frame(X):
            with saving.explain_errors():
                validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        check_table(X)
        finite = "allow-nan" if self.missing == "impute" else True
        # scikit-learn sums all values for its check, and the sum of huge ones overflows
        with saving.explain_errors(), np.errstate(over="ignore", invalid="ignore"):
            return validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite=finite)

    # ---- fitting

    def _fit(
        self,
        prepare: Callable[[], Prepared],
        infer: Callable[[Prepared], tuple[Prepared, Fitted]] | None = None,
        prepare_again: Callable[[Prepared], Prepared] | None = None,
    ) -> Self:
        """Read a table, compute the posterior and store it; a failure leaves the estimator unchanged.

        A transform of the target is tried if the table can be prepared again, with another encoding of the target.
        """
        with (
            enable_gradients(),
            threads_for_width(vars(self)),
            saving.restore_on_error(self),
            name_errors(type(self).__name__),
            memory.explain_out_of_memory(_MEMORY_REMEDY),
        ):
            begun = time.monotonic()
            prepared = prepare()
            session = self._session(begun)
            table, fitted = self._infer(prepared, session) if infer is None else infer(prepared)
            if prepare_again is not None and not self._is_continued():
                table, fitted = self._try_transform(prepared, table, fitted, prepare_again, session)
            self._store(table, fitted)
        # after the state is stored: if warnings are errors, the estimator is fitted nevertheless
        for text in fitted.warnings:
            warnings.warn(text, ConvergenceWarning, stacklevel=3)
        return self

    def _try_transform(
        self,
        prepared: Prepared,
        table: Prepared,
        fitted: Fitted,
        prepare_again: Callable[[Prepared], Prepared],
        session: Session,
    ) -> tuple[Prepared, Fitted]:
        """Fit a transformed target too, if the rows suggest it, and return the better table and fit."""
        refused = self._list_uncensored()
        if set(refused) - {"neighbors=True", "trees=True"}:  # chains, and heads whose predictions are not Gaussian
            return table, fitted

        def fit_again(target: TargetScale) -> tuple[Prepared, Fitted]:
            return self._infer(prepare_again(replace(prepared, target=target)), session.subsession("transformed"))

        split_by = self._split_by
        chosen = try_transform(table, fitted, self._task(), fit_again, bounds=not refused, limit=session.limit)
        if chosen[0] is table:
            self._split_by = split_by
        return chosen

    def _session(self, begun: float | None = None) -> Session:
        """Return the callbacks, checkpoint and display of a fit."""
        checkpoint = self._checkpoint()
        return Session(
            callbacks=tuple(self.callbacks or ()),
            checkpoint=checkpoint.folder,
            seconds=checkpoint.seconds,
            lasting=self._fit_options() if checkpoint.folder is not None else {},
            verbose=self.verbose,
            shown=self.shown,
            limit=TimeLimit.of(vars(self).get("minutes"), begun),
        )

    def _check_same_options(self) -> None:
        """Check that the options build the network that the fit continues from."""
        before = self._plain(self._network_options(self._fitted_with))
        now = self._plain(self._network_options(self._current_options()))
        changed = [name for name in now if name not in CHANGEABLE and now[name] != before[name]]
        if changed:
            listed = ", ".join(f"{name}={getattr(self, name)!r} (was {self._fitted_with[name]!r})" for name in changed)
            raise DataError(
                f"{listed} was given, but the fit continues from a network that was built with other options; set the "
                "previous value again, or fit a new estimator"
            )

    def _network_options(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options, with choice names in place of option values that do not change the network."""
        declared = {option.name: option for option in options_of(type(self))}
        values = {name: value_of(option, given[name]) for name, option in declared.items()}
        of_network = {name: value for name, value in values.items() if value is not None and value.of_network}
        return {name: of_network.get(name, choice_name(option, given[name])) for name, option in declared.items()}

    def _fit_options(self) -> dict[str, Any]:
        """Return the options that a checkpoint depends on, as plain JSON."""
        return {name: value for name, value in self._options().items() if name not in RUN_OPTIONS}

    def _store(self, prepared: Prepared, fitted: Fitted) -> None:
        """Set the attributes of the fitted state."""
        self.schema_ = prepared.schema
        self.target_ = prepared.target
        self.held_out_ = prepared.held_out
        self._rows = prepared.given
        self.seed_ = prepared.seed
        self.model_ = fitted.model
        self.likelihood_ = fitted.likelihood
        self.recalibration_ = fitted.recalibration
        self.hurdle_ = fitted.hurdle
        self.trees_ = fitted.trees
        self._training = fit_training_distribution(prepared, self._task())
        self.history_ = fitted.history
        self.n_iter_ = fitted.n_iter
        self._score = fitted.score
        if fitted.score is not None and prepared.censored:
            # only the densities of known targets have a unit, which `validation_score_` subtracts for all rows
            self._score = fitted.score + (1.0 - prepared.share_known) * prepared.target.log_unit
        diagnostics = {**vars(fitted.diagnostics), "repeats": prepared.repeats, "resumed": tuple(prepared.resumed)}
        self.fit_diagnostics_ = self.diagnostics_class(**diagnostics)
        self.resumable_ = fitted.resumable
        self._fitted_with = self._current_options()
        self.device_ = device_name(prepared.device)
        self.fold_ = None
        if prepared.fold_of_row is not None:
            if isinstance(fitted.model, Ensemble):
                self.fold_ = without(prepared.fold_of_row, fitted.diverged)
            else:
                # cross-fitted networks were only an intermediate step: the posterior itself was fitted to all rows
                self.held_out_ = prepared.held_out[:0]
        self._conformal = score_rows(prepared, fitted, self._task(), self.weight_draws)
        self.relevance_ = {}
        self._describe()

    @property
    def validation_score_(self) -> float | None:
        """Mean log predictive density on rows that a network was not fitted to, see above.

        In nats per row and in the units of the target; None if there are no such rows. For a target on a coarse lattice
        it is the mean log probability (``likelihood_.cell`` is not None, or ``target_.cells``), which has no units.
        Censored rows have the log probability between their bounds.
        """
        if self._score is None or cell_of(self.likelihood_) is not None:
            return self._score
        return self._score - self.target_.log_unit

    def _scores_mass(self) -> bool:
        """Return True if scores are log probabilities of points of a lattice."""
        return (isinstance(self.target_, TargetScale) and self.target_.cells) or cell_of(self.likelihood_) is not None

    def _html_repr(self) -> str:
        """Return scikit-learn's display, followed by a summary of the fit, as HTML."""
        display = str(super()._html_repr())
        if "model_" not in vars(self):
            return display
        return add_summary(display, self.structure_, self.validation_score_, mass=self._scores_mass())

    @property
    def weighing_(self) -> dict[str, Any]:
        """Diagnostics of the fit as plain JSON.

        .. deprecated:: 0.2
            Use `fit_diagnostics_`, whose attributes have types.
        """
        warnings.warn("weighing_ is deprecated; use the attributes of fit_diagnostics_", FutureWarning, stacklevel=2)
        return self.fit_diagnostics_.to_json()

    # ---- files

    @classmethod
    def load(cls, path: str | PathLike[str], **functions: Any) -> Self:
        """Load an estimator saved by :meth:`save`.

        Parameters
        ----------
        path : path
            Folder of the saved estimator. If its `device` is not available, it becomes "auto".
        functions
            Options that were functions, by name. They cannot be saved and must be passed again.

        Raises
        ------
        FileError
            If the folder is missing, damaged, altered, of another kind, or written by a newer version.
        DataError
            If an option that was a function is not passed.
        """
        saved = io.load(path, kinds={cls.__name__})
        options, changed = read_options(saved, path, cls, functions)
        names = {option.name for option in options_of(cls)}
        classes = cls._saved_values()
        with saving.convert_errors(path), enable_gradients(), building(0):
            known = saving.update_names(options, names)
            estimator = cls(**{**saving.decode(known, classes), **functions})
            estimator._check_options()
            estimator._restore(restore(saved, cls.__name__, estimator, estimator._task()))
            estimator._fitted_with = estimator._current_options()
            # only now: the networks are built with the options of the fit, not with those changed afterwards
            for name, value in saving.decode(changed, classes).items():
                if name not in names:
                    raise DataError(f"{name!r} is no option of {cls.__name__}")
                setattr(estimator, name, functions[name] if value == saving.FUNCTION else value)
            estimator._check_options()
        return estimator

    def _restore(self, restored: Restored) -> None:
        """Set the attributes of a saved fitted state."""
        predictor = restored.predictor
        self.schema_ = predictor.schema
        self.target_ = predictor.target
        self.seed_ = predictor.seed
        self.fold_ = predictor.fold
        self._conformal = predictor.conformal
        self.model_ = predictor.model
        self.likelihood_ = predictor.likelihood
        self.recalibration_ = predictor.recalibration
        self.hurdle_ = predictor.hurdle
        self.trees_ = predictor.trees
        self._training = predictor.training
        self.fit_diagnostics_ = predictor.diagnostics
        self.history_ = restored.history
        self.n_iter_ = restored.n_iter
        self._score = restored.score
        self.held_out_ = restored.held_out
        self._rows = predictor.rows
        self.n_features_in_ = restored.columns
        self.device_ = restored.device
        if restored.names:
            self.feature_names_in_ = np.array(restored.names, dtype=object)
        self.relevance_ = {}
        self._describe()

    def save(self, path: str | PathLike[str]) -> Path:
        """Save the fitted estimator to a folder of tensors and a JSON manifest, without pickle.

        Predictions after :meth:`load` are bit-identical, even if options were changed after the fit. ``callbacks`` and
        ``checkpoint`` are not saved. An option that is a function must be passed to :meth:`load` again.

        Raises
        ------
        FileError
            If the folder cannot be written; existing files are then unchanged.
        """
        require_fitted(self)
        tensors = {
            **{f"model/{name}": value for name, value in self.model_.state_dict().items()},
            **{f"likelihood/{name}": value for name, value in self.likelihood_.state_dict().items()},
            "held_out": torch.from_numpy(self.held_out_),
            **fold_tensors(self._rows, self.fold_),
        }
        parts = (self.recalibration_, self.hurdle_, self.trees_, self._training)
        for name, part in zip(("recalibration", "hurdle", "trees", "training"), parts, strict=True):
            tensors |= {} if part is None else add_prefix(name, part.state_dict())
        if self._conformal is not None:
            tensors |= {f"conformal/{name}": values for name, values in self._conformal.tensors().items()}
        now = self._options()
        run_options = {name: getattr(self, name) for name in RUN_OPTIONS if name in now}
        options = self._plain({**self._fitted_with, **run_options})
        meta = {
            "options": options,
            "changed": {name: value for name, value in now.items() if value != options[name]},
            "schema": self.schema_.to_json(),
            "target": self.target_.to_json(),
            "layout": get_blueprint(self.model_),
            "dtype": str(self.model_.dtype).removeprefix("torch."),
            "seed": self.seed_,
            "history": nonfinite.encode_nonfinite(self.history_),
            "n_iter": self.n_iter_,
            **({} if self._rows is None else self._rows.to_json()),
            "validation_score": nonfinite.encode_nonfinite(self._score),
            "weighing": nonfinite.encode_nonfinite(self.fit_diagnostics_.to_json()),
            "n_features_in": self.n_features_in_,
            "feature_names_in": list(getattr(self, "feature_names_in_", ())),
            **({} if self.device_ == "cpu" else {"device": self.device_}),
            **({} if self._conformal is None else {"conformal": self._conformal.to_json()}),
        }
        return io.save(path, kind=type(self).__name__, tensors=tensors, meta=meta)

    def _options(self) -> dict[str, Any]:
        """Return the constructor's options as plain JSON, with None for options of a single run."""
        return self._plain(self._current_options())

    def _plain(self, given: Mapping[str, Any]) -> dict[str, Any]:
        given = {**given, "callbacks": None, "checkpoint": None}
        if "cv" in given:
            given["cv"] = saving.saved_folds(given["cv"], self._split_by)
        if not isinstance(given["random_state"], int | np.integer):
            given["random_state"] = None
        return {name: saving.encode(given[name], self._saved_values()) for name in sorted(given)}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        tags.target_tags.multi_output = isinstance(self._task(), NumberTask)
        return tags


class PredictiveEstimator(Estimator, ABC):
    """Base class of all estimators with a predictive distribution for each row."""

    @property
    def predictor_(self) -> Predictor:
        """Fitted networks with their encodings, as a value that does not depend on scikit-learn."""
        require_fitted(self)
        return Predictor(
            name=type(self).__name__,
            task=self._task(),
            schema=self.schema_,
            target=self.target_,
            model=self.model_,
            likelihood=self.likelihood_,
            structure=self.structure_,
            diagnostics=self.fit_diagnostics_,
            seed=self.seed_,
            weight_draws=self.weight_draws,
            fold=self.fold_,
            rows=self._rows,
            recalibration=self.recalibration_,
            hurdle=self.hurdle_,
            conformal=self._conformal,
            trees=self.trees_,
            training=self._training,
        )

    def predict_dist(self, X: Any, *, fold: Any = None) -> AnyPredictive:
        """Return the predictive distribution of every row: a mixture over structures and weight draws.

        It stores the parameters of every component, S × N × K numbers. For counts, grades and coarsely rounded targets
        it is a :class:`~fathomless.posterior.lattice.LatticePredictive`, whose ``log_prob`` is a log probability. If
        single values have many rows, such as zero in a column of amounts, it is a
        :class:`~fathomless.posterior.hurdle.HurdlePredictive`.

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Rows.
        fold : array of int, shape (R, N), optional
            Fold of each row. A row is predicted only by the cross-fitted networks that were not trained on its fold.
            The training rows with their ``fold_`` give out-of-fold predictions; folds of other rows raise an error.
        """
        return concatenate_parts(self._predictives(X, fold), len(X))

    def predict_encoded(self, x: Array, *, fold: Any = None) -> AnyPredictive:
        """Return the predictive distribution of rows (N, D) encoded by ``schema_``, with any folds."""
        return concatenate_parts(self.predictor_.predict_parts(lambda part: x[part], len(x), fold), len(x))

    def _predictives(self, X: Any, fold: Any = None) -> Iterator[AnyPredictive]:
        """Predict part by part, with the same weight draws for all parts."""
        with name_errors(type(self).__name__):
            predictor = self.predictor_
            # the check copies an array: checking arrays part by part needs less memory
            by_part = isinstance(X, np.ndarray) and X.ndim == 2
            if not by_part:
                X = self._table(X, reset=False)

            def encode_part(part: slice) -> Array:
                rows = take(X, part)
                rows = self._table(rows, reset=False) if by_part else rows
                x = predictor.check_folds(self._encode(self.schema_, rows), fold, part)
                memory.release(X)
                return x

            yield from predictor.predict_parts(encode_part, len(X), fold)


def require_fitted(estimator: Estimator) -> None:
    """Check that an estimator is fitted, as scikit-learn does."""
    check_is_fitted(estimator, "model_")


_MEMORY_REMEDY = "lower batch_size, width, cv or weight_draws, or set device='cpu' if an accelerator is full"
