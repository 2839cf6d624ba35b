"""The scikit-learn border, for every family: arrays or data frames in, calibrated predictions out.

An estimator is thin: it prepares a table, asks its family for a posterior, and shows it. How a posterior is found it
does not know: that is :mod:`fathomless.estimators.variational` or :mod:`fathomless.estimators.chains`. What a target
is, is :mod:`fathomless.estimators.tasks`.
"""

import contextlib
import copy
import html
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, cast

import numpy as np
import torch
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from fathomless.data.folds import without
from fathomless.data.frames import take
from fathomless.data.schema import Schema
from fathomless.data.targets import Indicators, Target, TargetScale
from fathomless.estimators import saving
from fathomless.estimators.options import OF_A_RUN, DrawnWeightsOptions, options_of
from fathomless.estimators.preparation import Array, Prepared, TableReader
from fathomless.inference.run import Fitted, blueprint_of, rebuild
from fathomless.posterior.distributions import ClassPredictive, ContinuousPredictive
from fathomless.posterior.ensemble import Ensemble, members_of
from fathomless.posterior.indicators import IndicatorPredictive
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.predictive import concatenate, predictive
from fathomless.posterior.structure import ListedPosterior, Structure
from fathomless.system import checks, io, memory
from fathomless.system.errors import DataError, DivergenceError, FileError
from fathomless.system.progress import Lines, Progress, Silent, Terminal
from fathomless.system.rng import as_generator, fold_in

__all__ = ["PREDICTED_AT_ONCE", "AnyPredictive", "Estimator", "Predictor"]

PREDICTED_AT_ONCE = 16384  #: rows

#: The predictive distribution of some task.
AnyPredictive: TypeAlias = ClassPredictive | ContinuousPredictive | IndicatorPredictive


class Estimator(TableReader, ABC):
    """What all estimators share: fitting, and files.

    Attributes
    ----------
    structure_ : Structure
        Posterior over structure, with a summary.
    history_ : list of dict
        What happened in training: see :class:`~fathomless.inference.run.Run`.
    n_iter_ : int
        Epochs done.
    validation_score_ : float or None
        Mean log predictive density of rows that a network was not fitted to, in nats per row and in the units of the
        target. Of cross-fitted networks: of all rows, each under the networks that have not seen it, with a posterior
        over structure and a noise that were fitted without its fold. Of one network: of the held-out rows, which chose
        the epoch too, before calibration, and before heads have a posterior.
    held_out_ : ndarray of int
        Numbers of the rows that were held out; of cross-fitted networks all rows, each of them from one network.
    weighing_ : dict
        What was decided by rows that the networks had not seen, as plain JSON: what the posterior over structure rests
        on (:func:`~fathomless.estimators.crossfitting.weighed`), the weights of kinds of network, how much narrower
        the noise of their average is, the temperature of a sparse one; empty if nothing was.
    relevance_ : dict of str to dict
        For every encoded column, what the posterior says of its use, where weights were sampled; else empty.
    model_, likelihood_ : nn.Module
        The fitted network and p(y | f).
    """

    saved_values: ClassVar[dict[str, type]] = {}  # classes of options, beyond plain values, that a manifest may hold
    shown: ClassVar[Mapping[str, str]] = {}  # columns of the history that a progress bar shows, with their words

    likelihood_: Likelihood
    model_: Model
    structure_: Structure
    relevance_: dict[str, dict[str, float]]
    history_: list[dict[str, float]]
    n_iter_: int
    held_out_: Array
    fold_: Array | None
    seed_: int
    weighing_: dict[str, Any]

    # ---- what a family says

    @abstractmethod
    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> Model:
        """Build the untrained model."""

    @abstractmethod
    def _check_saved(self, blueprint: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        """Refuse options and a blueprint that would build another network than the one that was saved."""

    @abstractmethod
    def _describe(self) -> None:
        """Set the attributes that show the posterior over structure."""

    @abstractmethod
    def _warn(self, fitted: Fitted) -> None:
        """Warn of what an inference did not reach."""

    # ---- what an inference says

    @abstractmethod
    def _infer(self, prepared: Prepared) -> Fitted:
        """Find the posterior."""

    # ---- what a task says

    @abstractmethod
    def _likelihood(self, target: Target, saved: Collection[str] = ()) -> Likelihood:
        """Build p(y | f); of a saved one by the names of its tensors, which tell what was chosen in the fit."""

    # ---- fitting

    def _fit(self, prepare: Callable[[], Prepared], infer: Callable[[Prepared], Fitted] | None = None) -> Self:
        """Read a table, find the posterior, show it; what fails leaves the estimator as it was."""
        with _restored_on_error(self), _named(self):
            prepared = prepare()
            fitted = (infer or self._infer)(prepared)
            self._take_over(prepared, fitted)
        if infer is None:  # and not a step on the way
            self._warn(fitted)
        return self

    def _display(self, unit: str = "epoch", shown: Mapping[str, str] | None = None) -> Progress:
        """Return what `verbose` asks to be shown of a fit, in some unit; with the words for what is shown."""
        level = checks.whole("verbose", self.verbose, least=0)
        words = self.shown if shown is None else shown
        return Silent() if level == 0 else Terminal(unit, words) if level == 1 else Lines(unit, words)

    def _lasting(self) -> dict[str, Any]:
        """Return the options that a fit depends on, as plain JSON."""
        return {name: value for name, value in self._options().items() if name not in OF_A_RUN}

    def _take_over(self, prepared: Prepared, fitted: Fitted) -> None:
        """Show what an inference made of a table."""
        self.schema_, self.target_ = prepared.schema, prepared.target
        self.held_out_, self.seed_ = prepared.held_out, prepared.seed
        self.model_, self.likelihood_ = fitted.model, fitted.likelihood
        self.history_, self.n_iter_, self._score = fitted.history, fitted.n_iter, fitted.score
        self.weighing_, self.fold_ = fitted.weighing, None
        if prepared.fold_of_row is not None:
            if isinstance(fitted.model, Ensemble):
                self.fold_ = without(prepared.fold_of_row, fitted.lost)
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

    # ---- saving

    def save(self, path: str | PathLike[str]) -> Path:
        """Save the fitted estimator as a folder: tensors and a JSON manifest, no pickle.

        Predictions after :meth:`load` are bit-equal. ``callbacks`` and ``checkpoint`` are not kept; an option that is a
        function must be given again to :meth:`load`.

        Raises
        ------
        FileError
            If the folder cannot be written; what was there before is untouched.
        """
        check_is_fitted(self, "model_")
        tensors = {
            **{f"model/{name}": value for name, value in self.model_.state_dict().items()},
            **{f"likelihood/{name}": value for name, value in self.likelihood_.state_dict().items()},
            "held_out": torch.from_numpy(self.held_out_),
            **({} if self.fold_ is None else {"fold": torch.from_numpy(self.fold_)}),
        }
        meta = {
            "options": self._options(),
            "schema": self.schema_.to_json(),
            "target": self.target_.to_json(),
            "layout": blueprint_of(self.model_),
            "dtype": str(self.model_.dtype).removeprefix("torch."),
            "seed": self.seed_,
            "history": self.history_,
            "n_iter": self.n_iter_,
            "validation_score": self._score,
            "weighing": self.weighing_,
            "n_features_in": self.n_features_in_,
            "feature_names_in": list(getattr(self, "feature_names_in_", ())),
        }
        return io.save(path, kind=type(self).__name__, tensors=tensors, meta=meta)

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
        meta = saved.meta
        given = meta.get("options", {})
        if not isinstance(given, dict):
            raise FileError(f"{path} was altered: its options are no mapping; restore it from a backup or save again")
        lacking = {name for name, value in given.items() if value == saving.FUNCTION} - set(functions)
        if lacking:
            raise DataError(
                f"the estimator in {path} was fitted with a function as {', '.join(sorted(lacking))}; give it again: "
                f"{cls.__name__}.load(path, {', '.join(f'{name}=...' for name in sorted(lacking))})"
            )
        with saving.foreign(path):
            known = saving.current(given, (option.name for option in options_of(cls)))
            estimator = cls(**{**saving.decoded(known, cls.saved_values), **functions})
            estimator._rebuild(saved)
        return estimator

    def _rebuild(self, saved: io.Saved) -> None:
        """Take over the fitted state that a folder holds."""
        meta = saved.meta
        self.schema_ = Schema.from_json(meta["schema"])
        names = [column.name for column in self.schema_.columns]
        if meta["n_features_in"] != len(names) or meta["feature_names_in"] not in ([], names):
            raise DataError("its columns are not those of its schema")
        several = isinstance(meta["target"], dict) and "indicators" in meta["target"]
        self.target_ = (Indicators if several else self._target_type()).from_json(meta["target"])
        dtype = {"float32": torch.float32, "float64": torch.float64}[meta["dtype"]]
        try:
            device = self._device()
        except DataError:  # fitted on another machine
            self.device = "auto"
            device = self._device()
        self.likelihood_ = self._likelihood(self.target_, saved.tensors).to(device, dtype)
        self._check_saved(meta["layout"], {name: t.shape for name, t in saved.tensors.items()})
        members = meta["layout"].get("members", [{}])  # only an ensemble tells of them
        kinds = meta.get("weighing", {}).get("kinds", [{"options": {}, "networks": len(members)}])
        built = []
        for kind in kinds:
            one, sizes = self._with(kind["options"]), (self._width(self.schema_), self.likelihood_.outputs)
            built += [one._build_model(*sizes, meta["seed"], dtype) for _ in range(kind["networks"])]
        self.model_ = (Ensemble(built) if "members" in meta["layout"] else built[0]).to(device)
        rebuild(self.model_, meta["layout"])
        for prefix, module in (("model/", self.model_), ("likelihood/", self.likelihood_)):
            state = {name.removeprefix(prefix): t for name, t in saved.tensors.items() if name.startswith(prefix)}
            module.load_state_dict(state)
            module.eval()
        self.seed_, self.history_, self.n_iter_ = meta["seed"], meta["history"], meta["n_iter"]
        self._score, self.n_features_in_ = meta["validation_score"], meta["n_features_in"]
        self.held_out_ = saved.tensors["held_out"].numpy()
        self.fold_ = saved.tensors["fold"].numpy() if "fold" in saved.tensors else None
        self.weighing_ = meta.get("weighing", {})
        if meta["feature_names_in"]:
            self.feature_names_in_ = np.array(meta["feature_names_in"], dtype=object)
        self.relevance_ = {}
        self._describe()

    def _with(self, options: Mapping[str, Any]) -> Self:
        """Return a copy, fitted as this one is, with other options."""
        other = copy.copy(self)
        for name, value in options.items():
            setattr(other, name, value)
        return other

    def _options(self) -> dict[str, Any]:
        """Return the constructor's options as plain JSON; what belongs to one run alone becomes None."""
        given = {**self.get_params(deep=False), "callbacks": None, "checkpoint": None}
        if not isinstance(given["random_state"], int | np.integer):
            given["random_state"] = None
        return {name: saving.encoded(value, self.saved_values) for name, value in given.items()}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        tags.target_tags.multi_output = self._target_type() is TargetScale
        return tags


class Predictor(Estimator, ABC):
    """What estimators share whose posterior says something of rows with a law for each."""

    @abstractmethod
    def _units(self) -> dict[str, Any]:
        """Return what turns components into the user's units."""

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
        chunks: list[AnyPredictive] = []
        for chunk in self._predictives(X, self._kept_from(X, fold)):
            if not chunks:  # its size tells that of the rest; joining needs each number twice
                memory.require(
                    2.0 * chunk.nbytes / len(chunk) * len(X),
                    f"the predictive distribution of {len(X):,} rows",
                    lambda share: (
                        f"about {int(share * len(X)):,} rows fit: predict part by part, or lower weight_draws"
                    ),
                )
            chunks.append(chunk)
        return cast(AnyPredictive, concatenate(chunks))

    def _kept_from(self, X: Any, fold: Any) -> Array | None:
        """Return the numbers of the networks that have not seen each row, (R, N)."""
        if fold is None:
            return None
        check_is_fitted(self, "model_")
        given = np.asarray(fold)
        if self.fold_ is None or not isinstance(self.model_, Ensemble):
            raise DataError("fold was given, and no networks were cross-fitted; leave it out")
        members = self.fold_.max(1, keepdims=True) + 1  # of each partition, since one that diverged is left out
        if given.shape != (len(members), len(X)) or given.min(initial=0) < 0 or np.any(given >= members):
            raise DataError(
                f"fold has shape {given.shape}; for these {len(X)} rows ({len(members)}, {len(X)}) is allowed, with "
                f"numbers from 0 to {members.min() - 1}: rows of fold -1 were seen by all networks, leave them out"
            )
        return cast(Array, given + np.cumsum(members, 0) - members)

    def _predictives(self, X: Any, networks_of: Array | None = None) -> Iterator[AnyPredictive]:
        """Predict chunk after chunk, with the same weight draws for all of them."""
        with _named(self):
            check_is_fitted(self, "model_")
            if not (whole := isinstance(X, np.ndarray) and X.ndim == 2):  # arrays are checked, and copied, part by part
                X = self._table(X, reset=False)

            def encoded(part: slice) -> Array:
                rows = take(X, part)
                rows = self._table(rows, reset=False) if whole else rows
                x = self._predictors(self.schema_, rows)
                memory.release(X)
                return x

            yield from self._drawn(encoded, len(X), networks_of)

    def predict_encoded(self, x: Array, *, fold: Any = None) -> AnyPredictive:
        """Return the predictive distribution of rows encoded by ``schema_``, (N, D); see :meth:`predict_dist`."""
        return cast(
            AnyPredictive,
            concatenate(list(self._drawn(lambda part: x[part], len(x), self._kept_from(x, fold)))),
        )

    def _drawn(
        self, encoded: Callable[[slice], Array], count: int, networks_of: Array | None
    ) -> Iterator[AnyPredictive]:
        """Predict so many rows, of which some at a time are encoded."""
        device, likelihood = self.model_.device, self.likelihood_
        if networks_of is not None and "narrowing" in self.weighing_:
            likelihood = copy.deepcopy(likelihood)  # that of single networks
            likelihood.noise.rescale(1.0 / torch.tensor(self.weighing_["narrowing"]))  # type: ignore[operator, union-attr]
        passes = self._draws() if self.model_.stochastic else 1
        networks = len(self.structure_.names) if isinstance(self.structure_, ListedPosterior) else 1
        networks *= len(members_of(self.model_))
        memory.require(
            2.0 * 8.0 * passes * networks * min(count, PREDICTED_AT_ONCE) * self.likelihood_.outputs,
            f"weight_draws={passes:,} of {min(count, PREDICTED_AT_ONCE):,} rows",
            lambda share: f"weight_draws={max(1, int(share * passes)):,} fits",
        )
        for start in range(0, max(1, count), PREDICTED_AT_ONCE):
            found = encoded(slice(start, start + PREDICTED_AT_ONCE))
            x = torch.as_tensor(found, dtype=self.model_.dtype).to(device)
            noise = as_generator(fold_in(self.seed_, "predict"), device=x.device)
            with torch.no_grad():
                draws = self.model_.draw(x, self._draws(), noise)
                _check_finite(draws.f, start)
                if networks_of is not None:
                    draws = _of_networks(draws, networks_of[:, start : start + PREDICTED_AT_ONCE])
                yield predictive(draws, likelihood, **self._units())

    def _draws(self) -> int:
        """Return the weight draws of a prediction; also a family of point estimates may be given layers that draw."""
        return (self if isinstance(self, DrawnWeightsOptions) else DrawnWeightsOptions).weight_draws


@contextlib.contextmanager
def _named(estimator: Estimator) -> Iterator[None]:
    """Let errors say whose they are, for whoever has several estimators."""
    try:
        yield
    except (ValueError, DivergenceError) as error:  # what scikit-learn refuses is a ValueError, and so is a DataError
        name = type(estimator).__name__
        if len(error.args) and name not in str(error):
            error.args = (f"{name}: {error}", *error.args[1:])
        raise


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


def _of_networks(draws: Draws, numbers: Array) -> Draws:
    """Keep, for each row, the draws of some networks: numbers (R, B); those of one line have one law over structure."""
    assert draws.network is not None
    lines: list[Tensor] = []
    log_weight, structure = [], []
    for line in torch.as_tensor(numbers, device=draws.f.device):
        chosen, place = line.unique(return_inverse=True)
        each = [draws.f[draws.network == number] for number in chosen]  # (S, B, K)
        own = draws.network == chosen[0] if len(chosen) else draws.network == 0
        lines.append(torch.stack(each, 2)[:, torch.arange(len(line)), place] if each else draws.f[own])
        log_weight.append(draws.log_weight[own])
        structure.append(draws.structure[own])
    joined = torch.cat(log_weight)
    network = torch.cat([torch.full_like(own, r) for r, own in enumerate(structure)]) if len(lines) > 1 else None
    return Draws(torch.cat(lines), joined - torch.logsumexp(joined, 0), torch.cat(structure), {}, network=network)


def _check_finite(f: Tensor, start: int) -> None:
    """Refuse outputs of drawn networks, shape (S, B, K), that are not finite."""
    bad = ~f.isfinite().all(2).all(0)  # (B,)
    if bool(bad.any()):
        raise DataError(
            f"row {start + int(bad.int().argmax())} of X is so far from the training data that the network's output "
            f"is not finite in {str(f.dtype).removeprefix('torch.')}; check the units of its columns"
        )
