"""What a fit leaves, without scikit-learn: a model, its noise, and how tables are encoded; it is read, and predicts.

Whoever only predicts from a folder needs no more: see :func:`fathomless.families.registry.fitted`. Estimators are this,
and scikit-learn's way to fit it (:mod:`fathomless.estimators.base`).
"""

import contextlib
import copy
from abc import ABC, ABCMeta, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, ClassVar, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.data.frames import encode, take
from fathomless.data.schema import Schema
from fathomless.data.targets import ClassLabels, Indicators, Target, TargetScale
from fathomless.estimators import saving
from fathomless.estimators.options import ClassOptions, DrawnWeightsOptions, NoiseOptions, TableOptions, options_of
from fathomless.inference.distributed import local_device
from fathomless.posterior.capabilities import rebuild
from fathomless.posterior.distributions import ClassPredictive, ContinuousPredictive
from fathomless.posterior.ensemble import Ensemble, members_of
from fathomless.posterior.indicators import IndicatorPredictive
from fathomless.posterior.likelihoods import Bernoulli, Categorical, Gaussian, Laplace, Likelihood, StudentT
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.predictive import concatenate, predictive
from fathomless.posterior.structure import ListedPosterior, Structure
from fathomless.system import checks, io, memory
from fathomless.system.errors import DataError, DivergenceError, FileError
from fathomless.system.masked import unmasked
from fathomless.system.rng import as_generator, building, fold_in
from fathomless.system.surroundings import recording, without_gradients

__all__ = [
    "PREDICTED_AT_ONCE",
    "AnyPredictive",
    "Array",
    "FittedModel",
    "FittedPredictor",
    "NamedNoise",
    "OfClasses",
    "OfNumbers",
    "OfRows",
    "WithoutChecks",
    "fitted_class",
    "named",
    "require_fitted",
]

#: NumPy arrays of any type.
Array = npt.NDArray[Any]

PREDICTED_AT_ONCE = 16384  #: rows

#: The predictive distribution of some task.
AnyPredictive: TypeAlias = ClassPredictive | ContinuousPredictive | IndicatorPredictive


@contextlib.contextmanager
def named(estimator: "FittedModel") -> Iterator[None]:
    """Let errors say whose they are, for whoever has several estimators."""
    try:
        yield
    except (ValueError, DivergenceError) as error:  # what scikit-learn refuses is a ValueError, and so is a DataError
        name = type(estimator).__name__
        if len(error.args) and name not in str(error):
            error.args = (f"{name}: {error}", *error.args[1:])
        raise


def require_fitted(estimator: "FittedModel") -> None:
    """Refuse what is not fitted, as scikit-learn does, which is imported for that alone."""
    if "model_" not in vars(estimator):
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(estimator, "model_")


class FittedModel(TableOptions, ABC):
    """What is fitted, as it is read from a folder; how it was found it does not know."""

    on_processor: ClassVar[bool] = False  # whether device="auto" never takes an accelerator
    saved_values: ClassVar[dict[str, type]] = {}  # classes of options, beyond plain values, that a manifest may hold

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
    weighing_: dict[str, Any]
    _fitted_with: dict[str, Any]  # the options of the fit, which may have been changed since

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

    # ---- what a task says

    @abstractmethod
    def _likelihood(self, target: Target, saved: Collection[str] = ()) -> Likelihood:
        """Build p(y | f); of a saved one by the names of its tensors, which tell what was chosen in the fit."""

    @abstractmethod
    def _table(self, X: Any, reset: bool) -> Any:
        """Check a table; `reset` is for one that is fitted."""

    @abstractmethod
    def _predictors(self, schema: Schema, X: Any) -> Array:
        """Encode what predicts, shape (N, D)."""

    @abstractmethod
    def _width(self, schema: Schema) -> int:
        """Return D."""

    @classmethod
    @abstractmethod
    def _target_type(cls) -> type[ClassLabels] | type[TargetScale]:
        """Return the class that encodes targets."""

    # ---- reading

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
        given, changed = meta.get("options", {}), meta.get("changed", {})
        if not isinstance(given, dict) or not isinstance(changed, dict):
            raise FileError(f"{path} was altered: its options are no mapping; restore it from a backup or save again")
        every = [*given.items(), *changed.items()]
        lacking = {name for name, value in every if value == saving.FUNCTION} - set(functions)
        if lacking:
            raise DataError(
                f"the estimator in {path} was fitted with a function as {', '.join(sorted(lacking))}; give it again: "
                f"{cls.__name__}.load(path, {', '.join(f'{name}=...' for name in sorted(lacking))})"
            )
        with saving.foreign(path), recording(), building(0):
            known = saving.current(given, (option.name for option in options_of(cls)))
            estimator = cls(**{**saving.decoded(known, cls.saved_values), **functions})
            estimator._rebuild(saved)
            estimator._fitted_with = estimator._given()
            own = {option.name for option in options_of(cls)}
            for name, value in saving.decoded(changed, cls.saved_values).items():
                if name not in own:
                    raise DataError(f"{name!r} is no option of {cls.__name__}")
                setattr(estimator, name, functions[name] if value == saving.FUNCTION else value)
        return estimator

    def _given(self) -> dict[str, Any]:
        """Return the options as they are now."""
        return {option.name: getattr(self, option.name) for option in options_of(type(self))}

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
        if any(type(kind["networks"]) is not int or kind["networks"] < 1 for kind in kinds) or (
            sum(kind["networks"] for kind in kinds) != len(members)
        ):
            raise DataError(f"its kinds do not have {len(members)} networks between them")
        if unknown := {name for kind in kinds for name in kind["options"]} - {
            one.name for one in options_of(type(self))
        }:
            raise DataError(f"there is no option {min(unknown)!r}")
        built = []
        for kind in kinds:
            one, sizes = self._with(kind["options"]), (self._width(self.schema_), self.likelihood_.outputs)
            built += [one._build_model(*sizes, meta["seed"], dtype) for _ in range(kind["networks"])]
        self.model_ = Ensemble(built) if "members" in meta["layout"] else built[0]
        rebuild(self.model_, meta["layout"])
        self.model_.to(device)  # with all that was rebuilt
        for prefix, module in (("model/", self.model_), ("likelihood/", self.likelihood_)):
            state = {name.removeprefix(prefix): t for name, t in saved.tensors.items() if name.startswith(prefix)}
            module.load_state_dict(state)
            module.eval()
        self.seed_, self.history_, self.n_iter_ = meta["seed"], meta["history"], meta["n_iter"]
        self._score, self.n_features_in_ = meta["validation_score"], meta["n_features_in"]
        self.held_out_ = saved.tensors["held_out"].numpy()
        self.fold_ = saved.tensors["fold"].numpy() if "fold" in saved.tensors else None
        self.weighing_, self.device_ = meta.get("weighing", {}), str(meta.get("device", "cpu"))
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

    def _device(self) -> torch.device:
        if self.device == "auto":
            return torch.device("cpu") if self.on_processor else local_device()
        try:
            device = torch.device(self.device)
            torch.zeros(1, device=device).tolist()
        except (RuntimeError, AssertionError) as error:
            reason = str(error).partition("\n")[0][:200]
            raise DataError(
                f"device={self.device!r} was given, which torch cannot use here ({reason}); 'cpu' always works"
            ) from error
        return device


class FittedPredictor(FittedModel, ABC):
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
        require_fitted(self)
        given = np.asarray(unmasked(fold))
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
        with named(self):
            require_fitted(self)
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
            likelihood.noise.rescale(1.0 / torch.tensor(self.weighing_["narrowing"], dtype=torch.float32))  # type: ignore[operator, union-attr]
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
            # not around the yield: the mode is the caller's there
            with memory.told("predict fewer rows at once, or set device='cpu'"), without_gradients():
                x = torch.as_tensor(found, dtype=self.model_.dtype).to(device)
                noise = as_generator(fold_in(self.seed_, "predict"))
                draws = self.model_.draw(x, self._draws(), noise)
                _check_finite(draws.f, start)
                if networks_of is not None:
                    draws = _of_networks(draws, networks_of[:, start : start + PREDICTED_AT_ONCE])
                chunk = predictive(draws, likelihood, **self._units())
            yield chunk

    def _draws(self) -> int:
        """Return the weight draws of a prediction; also a family of point estimates may be given layers that draw."""
        return (self if isinstance(self, DrawnWeightsOptions) else DrawnWeightsOptions).weight_draws


class OfRows(FittedPredictor, ABC):
    """What predicts from columns of a table."""

    def _predictors(self, schema: Schema, X: Any) -> Array:
        return encode(schema, X)

    def _width(self, schema: Schema) -> int:
        return schema.width


class OfClasses(ClassOptions, OfRows, ABC):
    """What predicts classes."""

    @property
    def classes_(self) -> Array:
        """Labels, ascending; shape (K,). Of several labels at once, their columns 0, ..., T − 1."""
        if isinstance(self.target_, Indicators):
            return np.arange(len(self.target_.counts))
        labels = cast(ClassLabels, self.target_)
        return labels.decode(np.arange(len(labels.labels)))

    def _likelihood(self, target: Target, saved: Collection[str] = ()) -> Likelihood:
        if isinstance(target, Indicators):
            return Bernoulli(len(target.counts))
        tempered = "likelihood/log_temperature" in saved
        return Categorical(len(cast(ClassLabels, target).labels), temperature=tempered)

    def _units(self) -> dict[str, Any]:
        return {} if isinstance(self.target_, Indicators) else {"labels": self.classes_}

    @classmethod
    def _target_type(cls) -> type[ClassLabels]:
        return ClassLabels


class OfNumbers:
    """What is about numbers: a scale to undo."""

    target_: Target

    def _units(self) -> dict[str, Any]:
        target = cast(TargetScale, self.target_)
        return {"shift": target.mean, "scale": target.scale, "squeeze": target.ndim == 1}

    @classmethod
    def _target_type(cls) -> type[TargetScale]:
        return TargetScale


class NamedNoise(NoiseOptions):
    """What is about numbers whose noise has a law that the user names."""

    def _likelihood(self, target: Target, saved: Collection[str] = ()) -> Likelihood:
        targets = len(cast(TargetScale, target).mean)
        if "likelihood/raw_df" in saved:
            return StudentT(targets, df="learned")
        if "model/noise_scale" in saved:  # of networks that state theirs
            heavy = "model/noise_df" in saved
            return StudentT(targets, df="stated", noise="stated") if heavy else Gaussian(targets, noise="stated")
        kinds: dict[str, Callable[..., Likelihood]] = {
            "auto": Gaussian,
            "gaussian": Gaussian,
            "student_t": StudentT,
            "laplace": Laplace,
        }
        return kinds[checks.choice("likelihood", self.likelihood, tuple(kinds))](targets, noise=self.noise)


class WithoutChecks:
    """What takes tables as they are: encoding them refuses what is not as in training."""

    def _table(self, X: Any, reset: bool) -> Any:
        return X


def fitted_class(name: str, family: type[FittedModel], task: str, noise: bool) -> type[FittedModel]:
    """Return what an estimator of this name leaves: a family's networks for a task.

    Parameters
    ----------
    name : str
        Of the estimator, which folders tell.
    family : type
        What a family names as `fitted`.
    task : {"classification", "regression"}
        What it predicts.
    noise : bool
        Whether its regressions have a noise whose law is an option.
    """
    of_numbers: tuple[type, ...] = (NamedNoise, OfNumbers, OfRows) if noise else (OfNumbers, OfRows)
    parts = (family, WithoutChecks, *((OfClasses,) if task == "classification" else of_numbers))
    kind = cast(type[FittedModel], ABCMeta(name, parts, {}))
    return dataclass(kw_only=True, eq=False, repr=False)(kind)


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
