"""The scikit-learn border, for every family: arrays or data frames in, calibrated predictions out.

An estimator prepares a table and passes it to a strategy of inference, from
:mod:`fathomless.estimators.variational` or :mod:`fathomless.estimators.markov_chains`. Tasks (classification,
regression, density) are in :mod:`fathomless.estimators.tasks`.
"""

import contextlib
import html
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted, validate_data

from fathomless.data import streams
from fathomless.data.cells import check_table, is_frame
from fathomless.data.folds import without
from fathomless.data.frames import take
from fathomless.data.schema import Schema
from fathomless.data.targets import Target
from fathomless.estimators import saving
from fathomless.estimators.declaring import chosen, nested_of, replaced, value_of
from fathomless.estimators.encoding import ClassTask, ColumnOptions, NumberTask, Task
from fathomless.estimators.networks import Networks
from fathomless.estimators.options import GOING_ON, OF_A_RUN, options_of
from fathomless.estimators.predictor import (
    AnyPredictive,
    Array,
    Predictor,
    Restored,
    joined,
    named,
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
from fathomless.estimators.renamed import check_methods, moved, rename, renamed, renaming, warn, warn_renamed
from fathomless.estimators.strategies import Strategy
from fathomless.inference.out_of_fold.heads import HEADS
from fathomless.inference.runs.distributed import device_name
from fathomless.inference.runs.run import Fitted
from fathomless.posterior.capabilities import get_blueprint
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.fit_diagnostics import Diagnostics
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Model
from fathomless.posterior.structure import Structure
from fathomless.system import checks, io, memory, nonfinite
from fathomless.system.errors import ConvergenceWarning, DataError
from fathomless.system.masked import unmask
from fathomless.system.rng import as_seed, building
from fathomless.system.torch_state import enable_gradients

__all__ = ["Estimator", "PredictiveEstimator", "require_fitted"]


class Estimator(Networks, BaseEstimator, ABC):  # type: ignore[misc]
    """What all estimators share: fitting, and files.

    Attributes
    ----------
    structure_ : Structure
        Posterior over structure, with a summary.
    history_ : list of dict
        What happened in training: see :class:`~fathomless.inference.runs.run.Run`.
    n_iter_ : int
        Epochs done.
    validation_score_ : float or None
        Mean log predictive density of rows that a network was not fitted to, in nats per row and in the units of the
        target. Of cross-fitted networks: of all rows, each under the networks that have not seen it, with a posterior
        over structure and a noise that were fitted without its fold. Of one network: of the held-out rows under what
        predicts, heads with a posterior and networks that were drawn after the training included; the rows chose the
        epoch too, and noise and law are those that were fitted without the row's part of ten. Of sampled weights: the
        mean leave-one-out density, copies of a row left out together, or None if it cannot be estimated.
    held_out_ : ndarray of int
        Numbers of the rows that were held out; of cross-fitted networks all rows, each of them from one network.
    fit_diagnostics_ : Diagnostics
        Diagnostics of the fit, of a class for each kind of inference (:mod:`fathomless.posterior.fit_diagnostics`): the
        posterior over structure with its errors, weights of kinds of network, the relative noise of their average,
        records of chains, equal rows of the table, and the versions of the library, torch, NumPy and Python under
        which parts were done, if these are others than now.
    relevance_ : dict of str to dict
        For every encoded column, what the posterior says of its use, where weights were sampled; else empty.
    model_, likelihood_ : nn.Module
        The fitted network and p(y | f).
    device_ : str
        Where it was fitted: "cpu", or the kind of an accelerator and its name.
    resumable_ : bool
        Whether a longer fit with the same `checkpoint` goes on from where this one has ended, to the bytes of one long
        fit. False of what was loaded.
    """

    schema_: Schema
    target_: Target
    likelihood_: Likelihood
    model_: Model
    structure_: Structure
    relevance_: dict[str, dict[str, float]]
    history_: list[dict[str, float]]
    n_iter_: int
    held_out_: Array
    fold_: Array | None
    seed_: int
    fit_diagnostics_: Diagnostics
    _fitted_with: dict[str, Any]  # the options of the fit, which may have been changed since

    warm_start = False  # an option of some
    callbacks: Sequence[Callable[[Any], None]] | None = None  # an option of most
    cv: Any = None  # an option of some
    resumable_ = False
    _split_by: tuple[Any, Any] = (None, None)  # a splitter, and the folds that it made

    shown: ClassVar[Mapping[str, str]] = {}  # columns of the history that a progress bar shows, with their words

    def __init_subclass__(cls, **options: Any) -> None:
        """Refuse methods that only earlier versions call."""
        super().__init_subclass__(**options)
        check_methods(cls)

    def __new__(cls, *given: Any, **options: Any) -> Self:
        """Say which option may be meant by one that there is not, as Python does from 3.13 on."""
        known = {*cls._get_param_names(), *(option.name for option in options_of(cls))}
        for name in options.keys() - known - moved(cls).keys() - renamed(cls).keys():
            if near := get_close_matches(name, known, 1):
                raise TypeError(
                    f"{cls.__name__}() got an unexpected keyword argument {name!r}. Did you mean {near[0]!r}?"
                )
        new: Self = super().__new__(cls)
        return new

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the options by name; with `deep` also those of values with options, such as ``weights__chains``.

        Parameters
        ----------
        deep : bool
            True for options of values too.
        """
        found: dict[str, Any] = super().get_params(deep)
        return {**found, **(nested_of(options_of(type(self)), found) if deep else {})}

    def set_params(self, **params: Any) -> Self:
        """Set options, by name; ``weights__chains=4`` replaces the value of `weights` by one with four chains.

        Parameters
        ----------
        params
            Options.

        Raises
        ------
        DataError
            For an option of a value where the choice has none, or not this one.
        """
        given, used = rename(type(self), params)
        warn_renamed(type(self), params, used)
        before = self.get_params(deep=False)
        if moved(type(self)).keys() & given.keys():
            found = renaming(type(self), given, before)
            warn(type(self), found, given)
            given = {**found.options, **found.nested}
        declared, own = {option.name: option for option in options_of(type(self))}, dict[str, dict[str, Any]]()
        for name in list(given):
            option, _, inner = name.partition("__")
            if inner and option in declared and declared[option].metadata["values"]:
                own.setdefault(option, {})[inner] = given.pop(name)
        for name, entries in own.items():
            now = given.get(name, before[name])
            made = replaced(declared[name], now, entries)
            given[name] = now if made == value_of(declared[name], now) else made
        super().set_params(**given)
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
        """Set the attributes that show the posterior over structure."""

    def _predictors(self, schema: Schema, X: Any) -> Array:
        """Encode the predictors of a table, shape (N, D)."""
        return self._task().predictors(schema, X)

    # ---- inference

    @abstractmethod
    def _split_plan(self, count: float, inputs: int, *, grouped: bool = False, stream: bool = False) -> SplitPlan:
        """Return the split of rows, by their number, their encoded columns, and whether they have groups.

        The columns of a stream are not known yet, and its plan is a share. A DataError says why streams cannot be used.
        """

    @abstractmethod
    def _strategy(self, prepared: Prepared) -> Strategy:
        """Return the strategy that the options ask for."""

    def _infer(self, prepared: Prepared) -> Fitted:
        """Find the posterior by the strategy."""
        return self._strategy(prepared).infer(self._problem(), prepared, self._session())

    def _problem(self) -> Problem:
        """Return the networks that the options build, or the fitted one that a fit continues from."""
        fitted = None
        if self._continued():
            self._require_as_fitted()
            fitted = self.model_, self.likelihood_
        return Problem(self, self._task(), self._head(), fitted)

    def _head(self) -> str:
        """Return the posterior of the heads."""
        head: str = self._options_given().get("last_layer", "point")
        checks.choice("last_layer", head, ("auto", "point", *HEADS))
        return "point" if head == "auto" else head

    def _continued(self) -> bool:
        """Return True if a fit continues from the fitted network, with its encodings."""
        return bool(self.warm_start) and "model_" in vars(self)

    # ---- preparation

    def _prepare(self, X: Any, y: Any, sample_weight: Any, groups: Any = None) -> Prepared:
        """Encode and split a table; only the names of the columns are set here, and the folds of a splitter."""
        self._check_options()
        seed, before, dtype = self._seed(), self._encodings(), self.model_.dtype if self._continued() else None
        self._require_target(y)
        X = self._table(X, reset=before is None)
        table = read(X, y, sample_weight, groups, task=self._task(), columns=self._column_options(), before=before)
        plan = self._split_plan(table.count, table.inputs, grouped=groups is not None)
        prepared = prepare(table, plan, seed, self.precision, self._device(), dtype)
        made = prepared.fold_of_row
        self._split_by = self.cv, None if made is None else made[: len(made) // plan.copies]
        return prepared

    def _prepare_part(self, X: Any, y: Any, sample_weight: Any, classes: Any) -> Prepared:
        """Encode a part of the rows; later parts keep the encodings, seed and type of the first one."""
        self._check_options()
        first = "model_" not in vars(self)
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
        """Learn how a stream is encoded, and read the rows that are held out."""
        self._check_options()
        plan = self._split_plan(source.rows, 0, stream=True)
        task, columns = self._task(), self._column_options()
        if isinstance(task, ClassTask) and task.class_weight is not None:
            raise DataError(
                f"class_weight={task.class_weight!r} was given; rows of a stream count once: leave it out, and say "
                "with class_cost what mistakes cost"
            )
        seed, before = self._seed(), self._encodings()
        encodings = before or streams.learn(source, task.encodes, **vars(columns))
        self._table(source.take(np.zeros(1, dtype=np.int64))[0], reset=before is None)
        return prepare_stream(
            source,
            plan.share,
            task=task,
            encodings=encodings,
            seed=seed,
            dtype=self.model_.dtype if self._continued() else choose_dtype(self.precision, source.rows),
            device=self._device(),
            digest="" if self._checkpoint().folder is None else source.digest(),
        )

    def _column_options(self) -> ColumnOptions:
        return ColumnOptions(self.missing, self.unseen, self.max_levels)

    def _encodings(self) -> tuple[Schema, Target] | None:
        """Return the encodings that a fit continues with."""
        return (self.schema_, self.target_) if self._continued() else None

    def _seed(self) -> int:
        if self._checkpoint().folder is not None and self.random_state is None:
            raise DataError(
                "checkpoint was given without random_state; a run can only go on from a checkpoint with its own seed: "
                "set random_state to an integer"
            )
        return as_seed(self.random_state)

    def _require_target(self, y: Any) -> None:
        """Refuse a missing target, as scikit-learn does."""
        if y is None:
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None")

    def _table(self, X: Any, reset: bool) -> Any:
        """Check a table as scikit-learn does; set the names of its columns if `reset`."""
        X = unmask(X)
        if is_frame(X):
            with saving.explained():
                validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        check_table(X)
        finite = "allow-nan" if self.missing == "impute" else True
        with saving.explained(), np.errstate(over="ignore", invalid="ignore"):  # of sums of huge values
            return validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite=finite)

    # ---- fitting

    def _fit(self, prepare: Callable[[], Prepared], infer: Callable[[Prepared], Fitted] | None = None) -> Self:
        """Read a table, find the posterior, show it; what fails leaves the estimator as it was."""
        with (
            enable_gradients(),
            _restored_on_error(self),
            named(type(self).__name__),
            memory.explain_out_of_memory(_SMALLER),
        ):
            prepared = prepare()
            fitted = (infer or self._infer)(prepared)
            self._take_over(prepared, fitted)
        for text in fitted.warnings:
            warnings.warn(text, ConvergenceWarning, stacklevel=3)
        return self

    def _session(self) -> Session:
        """Return callbacks, checkpoint and display."""
        checkpoint = self._checkpoint()
        return Session(
            callbacks=tuple(self.callbacks or ()),
            checkpoint=checkpoint.folder,
            seconds=checkpoint.seconds,
            lasting=self._lasting() if checkpoint.folder is not None else {},
            verbose=self.verbose,
            shown=self.shown,
        )

    def _require_as_fitted(self) -> None:
        """Refuse options that would make another network than the one that the fit goes on from."""
        before, now = (self._plain(self._without_nested(one)) for one in (self._fitted_with, self._options_given()))
        changed = [name for name in now if name not in GOING_ON and now[name] != before[name]]
        if changed:
            given = ", ".join(f"{name}={getattr(self, name)!r} (was {self._fitted_with[name]!r})" for name in changed)
            raise DataError(
                f"the fit goes on with a network that was built by other options, and {given} was given; set it back, "
                "or fit a new estimator"
            )

    def _without_nested(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return options with names in place of values with options that only say how a posterior is found."""
        declared = {option.name: option for option in options_of(type(self))}
        values = {name: value_of(option, given[name]) for name, option in declared.items()}
        kept = {name: value for name, value in values.items() if value is not None and value.of_network}
        return {name: kept.get(name, chosen(option, given[name])) for name, option in declared.items()}

    def _lasting(self) -> dict[str, Any]:
        """Return the options that a fit depends on, as plain JSON."""
        return {name: value for name, value in self._options().items() if name not in OF_A_RUN}

    def _take_over(self, prepared: Prepared, fitted: Fitted) -> None:
        """Show what an inference made of a table."""
        self.schema_, self.target_ = prepared.schema, prepared.target
        self.held_out_, self.seed_ = prepared.held_out, prepared.seed
        self.model_, self.likelihood_ = fitted.model, fitted.likelihood
        self.history_, self.n_iter_, self._score = fitted.history, fitted.n_iter, fitted.score
        found = {**vars(fitted.diagnostics), "repeats": prepared.repeats, "resumed": tuple(prepared.resumed)}
        self.fit_diagnostics_ = self.diagnostics_class(**found)
        self.resumable_, self.fold_ = fitted.resumable, None
        self._fitted_with, self.device_ = self._options_given(), device_name(prepared.device)
        if prepared.fold_of_row is not None:
            if isinstance(fitted.model, Ensemble):
                self.fold_ = without(prepared.fold_of_row, fitted.diverged)
            else:  # the folds were for networks from which this posterior was found, which has seen all rows
                self.held_out_ = prepared.held_out[:0]
        self.relevance_ = {}
        self._describe()

    @property
    def validation_score_(self) -> float | None:
        """Mean log predictive density of rows that a network was not fitted to, see above.

        In nats per row, in the units of the target; None if there are no such rows.
        """
        return None if self._score is None else self._score - self.target_.log_unit

    def _html_repr(self) -> str:
        """Return scikit-learn's display, and below it what was found, as HTML."""
        display = str(super()._html_repr())
        if "model_" not in vars(self):
            return display
        lines = [f"{self.structure_.kind}: {self.structure_.summary}"]
        if self.validation_score_ is not None:
            lines.append(f"unseen rows: {self.validation_score_:.4g} nats per row (mean log predictive density)")
        text = "<br>".join(map(html.escape, lines))
        return f'{display}<div style="font: 0.9em/1.4 sans-serif; margin: 0.2em 0.5em">{text}</div>'

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
        """Load an estimator that :meth:`save` wrote.

        Parameters
        ----------
        path : path
            The folder. A `device` that this machine has not becomes "auto".
        functions
            Options that were functions, by name: they cannot be saved and must be given again.

        Raises
        ------
        FileError
            If the folder is missing, damaged, altered, foreign, or written by a newer version.
        DataError
            If an option that was a function is not given.
        """
        saved = io.load(path, kinds={cls.__name__})
        given, changed = read_options(saved, path, cls, functions)
        own, classes = {option.name for option in options_of(cls)}, cls._saved_values()
        with saving.foreign(path), enable_gradients(), building(0):
            known = saving.current(given, own)
            estimator = cls(**{**saving.decoded(known, classes), **functions})
            estimator._check_options()
            estimator._adopt(restore(saved, cls.__name__, estimator, estimator._task()))
            estimator._fitted_with = estimator._options_given()
            for name, value in saving.decoded(changed, classes).items():
                if name not in own:
                    raise DataError(f"{name!r} is no option of {cls.__name__}")
                setattr(estimator, name, functions[name] if value == saving.FUNCTION else value)
            estimator._check_options()
        return estimator

    def _adopt(self, restored: Restored) -> None:
        """Set the attributes of a fitted state that was saved."""
        found = restored.predictor
        self.schema_, self.target_, self.seed_, self.fold_ = found.schema, found.target, found.seed, found.fold
        self.model_, self.likelihood_, self.fit_diagnostics_ = found.model, found.likelihood, found.diagnostics
        self.history_, self.n_iter_, self._score = restored.history, restored.n_iter, restored.score
        self.held_out_, self.n_features_in_, self.device_ = restored.held_out, restored.columns, restored.device
        if restored.names:
            self.feature_names_in_ = np.array(restored.names, dtype=object)
        self.relevance_ = {}
        self._describe()

    def save(self, path: str | PathLike[str]) -> Path:
        """Save the fitted estimator as a folder: tensors and a JSON manifest, no pickle.

        Predictions after :meth:`load` are bit-equal, also where options were changed after the fit. ``callbacks`` and
        ``checkpoint`` are not kept; an option that is a function must be given again to :meth:`load`.

        Raises
        ------
        FileError
            If the folder cannot be written; what was there before is untouched.
        """
        require_fitted(self)
        tensors = {
            **{f"model/{name}": value for name, value in self.model_.state_dict().items()},
            **{f"likelihood/{name}": value for name, value in self.likelihood_.state_dict().items()},
            "held_out": torch.from_numpy(self.held_out_),
            **({} if self.fold_ is None else {"fold": torch.from_numpy(self.fold_)}),
        }
        now = self._options()
        of_a_run = {name: getattr(self, name) for name in OF_A_RUN if name in now}
        options = self._plain({**self._fitted_with, **of_a_run})
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
            "validation_score": nonfinite.encode_nonfinite(self._score),
            "weighing": nonfinite.encode_nonfinite(self.fit_diagnostics_.to_json()),
            "n_features_in": self.n_features_in_,
            "feature_names_in": list(getattr(self, "feature_names_in_", ())),
            **({} if self.device_ == "cpu" else {"device": self.device_}),
        }
        return io.save(path, kind=type(self).__name__, tensors=tensors, meta=meta)

    def _options(self) -> dict[str, Any]:
        """Return the constructor's options as plain JSON; what belongs to one run alone becomes None."""
        return self._plain(self._options_given())

    def _plain(self, given: Mapping[str, Any]) -> dict[str, Any]:
        given = {**given, "callbacks": None, "checkpoint": None}
        if "cv" in given:
            given["cv"] = saving.saved_folds(given["cv"], self._split_by)
        if not isinstance(given["random_state"], int | np.integer):
            given["random_state"] = None
        return {name: saving.encoded(given[name], self._saved_values()) for name in sorted(given)}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        tags.target_tags.multi_output = isinstance(self._task(), NumberTask)
        return tags


class PredictiveEstimator(Estimator, ABC):
    """Estimators with a predictive distribution for each row."""

    @property
    def predictor_(self) -> Predictor:
        """Fitted networks with their encodings, as one value that needs no scikit-learn."""
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
        )

    def predict_dist(self, X: Any, *, fold: Any = None) -> AnyPredictive:
        """Return the predictive distribution of every row: a mixture over structures and weight draws.

        It holds the parameters of every component, S × N × K numbers.

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Rows.
        fold : array of int, shape (R, N), optional
            Predict each row by those cross-fitted networks alone that were kept from its fold: with rows of the
            training and their ``fold_``, predictions by networks that have not seen them.
        """
        return joined(self._predictives(X, fold), len(X))

    def predict_encoded(self, x: Array, *, fold: Any = None) -> AnyPredictive:
        """Return the predictive distribution of rows encoded by ``schema_``, (N, D); see :meth:`predict_dist`."""
        return joined(self.predictor_.predict_parts(lambda part: x[part], len(x), fold), len(x))

    def _predictives(self, X: Any, fold: Any = None) -> Iterator[AnyPredictive]:
        """Predict part by part, with the same weight draws for all parts."""
        with named(type(self).__name__):
            predictor = self.predictor_
            if not (whole := isinstance(X, np.ndarray) and X.ndim == 2):  # arrays are checked, and copied, part by part
                X = self._table(X, reset=False)

            def encoded(part: slice) -> Array:
                rows = take(X, part)
                rows = self._table(rows, reset=False) if whole else rows
                x = self._predictors(self.schema_, rows)
                memory.release(X)
                return x

            yield from predictor.predict_parts(encoded, len(X), fold)


def require_fitted(estimator: Estimator) -> None:
    """Refuse an estimator that is not fitted, as scikit-learn does."""
    check_is_fitted(estimator, "model_")


#: What a fit that finds no memory can do.
_SMALLER = "lower batch_size, width, cv or weight_draws, or set device='cpu' if an accelerator is full"


@contextlib.contextmanager
def _restored_on_error(estimator: Estimator) -> Iterator[None]:
    """Leave an estimator whose fit fails or is interrupted as it was."""
    before = dict(vars(estimator))
    try:
        yield
    except BaseException:
        estimator.__dict__.clear()
        estimator.__dict__.update(before)
        raise
