"""The scikit-learn border, for every family: arrays or data frames in, calibrated predictions out.

An estimator is thin: it encodes a table, has its family build a model, hands it to the training loop, and shows the
posterior through :mod:`fathomless.posterior.predictive`. The leaves in :mod:`fathomless.families.estimators` say what
their family is.
"""

import contextlib
import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import narwhals as nw
import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import Tags
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from fathomless.data import streams
from fathomless.data.frames import encode, fit_schema, merged, readable, split, take
from fathomless.data.rows import Rows, Stream
from fathomless.data.schema import Schema
from fathomless.data.targets import ClassLabels, TargetScale
from fathomless.estimators import saving as options
from fathomless.estimators.options import (
    DrawnWeightsOptions,
    LawOptions,
    NaturalLawOptions,
    TableOptions,
    VariationalOptions,
    options_of,
)
from fathomless.inference.batched import Member
from fathomless.inference.callbacks import Checkpoint
from fathomless.inference.distributed import local_device
from fathomless.inference.restarts import restarted
from fathomless.inference.run import Run
from fathomless.inference.svi import fit
from fathomless.inference.training import (
    SMALL_BATCH,
    Training,
    automatic_batch_size,
    automatic_epochs,
    automatic_structure_rate,
)
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Model, Structure
from fathomless.posterior.predictive import ClassPredictive, ContinuousPredictive, concatenate, predictive
from fathomless.system import io, memory
from fathomless.system.errors import DataError, FileError
from fathomless.system.progress import Silent, Terminal
from fathomless.system.rng import as_generator, as_seed, derive

__all__ = ["Array", "Estimator", "Job"]

#: NumPy arrays of any type.
Array = npt.NDArray[Any]

_CHUNK = 16384  # rows predicted at once
_SMALL = 2000  # rows below which double precision costs nothing
_FEW = 60  # rows below which none are held out


@dataclass(frozen=True)
class Job:
    """A table, encoded, and the network that is to be trained on it.

    Attributes
    ----------
    schema, target
        How the table was encoded.
    model, likelihood
        Untrained, or what a warm start goes on from; trained in place.
    train, valid : Rows
        On the model's device; what is trained on may be a stream.
    held_out : ndarray of int
        Numbers of the rows of the table that `valid` holds.
    seed : int
        Of everything that is drawn.
    """

    schema: Schema
    target: ClassLabels | TargetScale
    model: Model
    likelihood: Likelihood
    train: Rows | Stream
    valid: Rows | None
    held_out: Array
    seed: int


class Estimator(VariationalOptions, TableOptions, BaseEstimator, ABC):  # type: ignore[misc]
    """What all estimators share: tables, training, chunks of predictions, files."""

    saved_values: ClassVar[dict[str, type]] = {}  # classes of options, beyond plain values, that a manifest may hold

    shown: ClassVar[Mapping[str, str]] = {}  # columns of the history that a progress bar shows, with their words

    structure_every: ClassVar[int] = 8  # steps between two moves of the posterior over structure

    schema_: Schema
    target_: ClassLabels | TargetScale
    likelihood_: Likelihood
    model_: Model
    structure_: Structure
    held_out_: Array

    # ---- what a family says

    @abstractmethod
    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> Model:
        """Build the untrained model."""

    @abstractmethod
    def _likelihood(self, target: ClassLabels | TargetScale) -> Likelihood:
        """Build p(y | f)."""

    @abstractmethod
    def _check_saved(self, layout: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        """Refuse options and a layout that would build another network than the one that was saved."""

    @abstractmethod
    def _describe(self) -> None:
        """Set the attributes that show the posterior over structure."""

    @abstractmethod
    def _warn(self, run: Run | Member) -> None:
        """Warn of what a training did not reach."""

    # ---- what a task says

    @abstractmethod
    def _fit_target(self, y: Any, weight: Array | None) -> ClassLabels | TargetScale:
        """Learn how to encode the target."""

    @abstractmethod
    def _shaped(self, y: Any) -> Any:
        """Return a target without an axis that it should not have."""

    @classmethod
    @abstractmethod
    def _target_type(cls) -> type[ClassLabels] | type[TargetScale]:
        """Return the class of what :meth:`_fit_target` learns."""

    @abstractmethod
    def _units(self) -> dict[str, Any]:
        """Return what turns components into the user's units."""

    # ---- fitting

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Fit the posterior over depth and weights.

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Numbers in an array; numbers, booleans, categories and dates, with gaps, in a pandas, polars or pyarrow
            frame.
        y : array or series, shape (N,) or (N, T)
            Class labels of any type, or numbers.
        sample_weight : array, shape (N,), optional
            How often each row counts.

        Returns
        -------
        self

        Raises
        ------
        DataError
            For a table, target or option that cannot be used; the message says what to do.
        DivergenceError
            If the training produced a value that is not finite.
        """
        with _restored_on_error(self):
            job = self._prepare(X, y, sample_weight)
            run = self._train(job)
            self._adopt(job, run)
        self._warn(run)
        return self

    def _prepare(self, X: Any, y: Any, sample_weight: Any) -> "Job":
        """Read the table and build what is to be trained; only the names of the columns are set here."""
        self._check_options()
        seed = self._seed()
        X, y, weight, kept = self._read(X, y, sample_weight)
        warm = self._warm()
        schema = self.schema_ if warm else self._fit_schema(X, weight)
        target = self.target_ if warm else self._fit_target(y, weight)
        x, z = encode(schema, X), target.encode(y)
        count = float(len(x) if weight is None else weight.sum())
        place = np.arange(len(x))
        if count <= SMALL_BATCH:
            x, z, weight, place = merged(x, z, weight)
        dtype = self.model_.dtype if warm else self._dtype(count)
        device = self._device()
        rows = Rows(
            torch.as_tensor(x, dtype=dtype),
            torch.as_tensor(z, dtype=torch.int64 if z.dtype.kind == "i" else dtype),
            None if weight is None else torch.as_tensor(weight, dtype=dtype),
        )
        train, valid, held = self._hold_out(rows, count, seed)
        valid = None if valid is None else _on(valid, device)
        model, likelihood = self._built(schema, target, seed, dtype, device)
        return Job(schema, target, model, likelihood, _on(train, device), valid, kept[np.isin(place, held)], seed)

    def fit_stream(self, source: streams.Source) -> Self:
        """Fit the posterior to data that are larger than the memory, read chunk by chunk.

        One pass learns how to encode the table, one reads the rows that are held out (20,000 at most), and each epoch
        is another. Options mean what they mean in :meth:`fit`, and what is learned is the same, but for the order of
        the rows: see :class:`~fathomless.data.rows.Stream`. Classes are held out as they come, not in proportion.

        Parameters
        ----------
        source : Source
            From :func:`fathomless.data.streams.arrays` or :func:`fathomless.data.streams.parquet`.

        Returns
        -------
        self

        Raises
        ------
        DataError, DivergenceError
            As :meth:`fit` does.
        FileError
            If a file cannot be read.
        """
        with _restored_on_error(self):
            job = self._prepare_stream(source)
            run = self._train(job)
            self._adopt(job, run)
        self._warn(run)
        return self

    def _prepare_stream(self, source: streams.Source) -> "Job":
        """Learn how the table is encoded and build what is to be trained on it."""
        self._check_options()
        if self.n_restarts != 1:
            raise DataError(f"n_restarts={self.n_restarts} was given; streams are fitted once: set it to 1")
        seed, warm = self._seed(), self._warm()
        how = {"missing": self.missing, "unseen": self.unseen, "max_levels": self.max_levels}
        schema, target = (
            (self.schema_, self.target_) if warm else streams.learn(source, self._target_type(), **how)  # type: ignore[arg-type]
        )
        self._table(source.take(np.zeros(1, dtype=np.int64))[0], reset=not warm)
        held = streams.held_out(source.rows, self._share(source.rows), derive(seed, "split"))
        dtype = self.model_.dtype if warm else self._dtype(source.rows)
        device, digest = self._device(), "" if self.checkpoint is None else source.digest()
        train, valid = streams.encoded(source, schema, target, held, dtype, device, digest)
        model, likelihood = self._built(schema, target, seed, dtype, device)
        return Job(schema, target, model, likelihood, train, valid, held, seed)

    def _built(
        self, schema: Schema, target: ClassLabels | TargetScale, seed: int, dtype: torch.dtype, device: torch.device
    ) -> tuple[Model, Likelihood]:
        """Build what is to be trained, or copy it: a training that fails must not spoil what is fitted."""
        if self._warm():
            return copy.deepcopy((self.model_, self.likelihood_))
        likelihood = self._likelihood(target).to(device, dtype)
        return self._build_model(schema.width, likelihood.outputs, seed, dtype).to(device), likelihood

    def _adopt(self, job: "Job", run: Run | Member) -> None:
        """Take over what a training made of a job."""
        self.schema_, self.target_, self.held_out_, self.seed_ = job.schema, job.target, job.held_out, job.seed
        self.model_, self.likelihood_ = run.model, run.likelihood
        self.history_, self.n_iter_, self.validation_score_ = run.history, run.epoch, run.best.score
        self._describe()

    def _check_options(self) -> None:
        for option in options_of(type(self)):
            options.check(option.name, getattr(self, option.name), **option.metadata)

    def _warm(self) -> bool:
        return bool(self.warm_start) and "model_" in vars(self)

    def _fit_schema(self, X: Any, weight: Array | None) -> Schema:
        return fit_schema(X, weight=weight, missing=self.missing, unseen=self.unseen, max_levels=self.max_levels)

    def _seed(self) -> int:
        if self.checkpoint is not None and self.random_state is None:
            raise DataError(
                "checkpoint was given without random_state; a run can only go on from a checkpoint with its own seed: "
                "set random_state to an integer"
            )
        return as_seed(self.random_state)

    def _read(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Array | None, Array]:
        """Check the table the way scikit-learn does, and drop rows that count for nothing; say which are kept."""
        if y is None:
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None")
        X, y = self._table(X, reset=not self._warm()), self._shaped(readable(y))
        if len(X) != len(y):
            raise DataError(f"X has {len(X)} rows and y has {len(y)}; they must agree")
        kept = np.arange(len(X))
        if sample_weight is None:
            return X, y, None, kept
        weight = _check_sample_weight(sample_weight, np.empty((len(X), 1)), dtype=np.float64, ensure_non_negative=True)
        kept = np.flatnonzero(weight)
        if len(kept) == 0:
            raise DataError("every sample_weight is zero; at least one row must count")
        if len(kept) < len(weight):
            X, y, weight = take(X, kept), take(y, kept), weight[kept]
        return X, y, weight, kept

    def _table(self, X: Any, reset: bool) -> Any:
        frame = nw.from_native(X, eager_only=True, pass_through=True)
        if isinstance(frame, nw.DataFrame):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        if isinstance(X, np.ndarray) and X.dtype.kind in "mM":
            raise DataError(f"X is an array of dtype {X.dtype}; arrays hold numbers: give dates in a data frame")
        finite = "allow-nan" if self.missing == "impute" else True
        with options.explained(), np.errstate(over="ignore", invalid="ignore"):  # of sums of huge values
            return validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite=finite)

    def _dtype(self, count: float) -> torch.dtype:
        match self.precision:
            case "auto":
                return torch.float64 if count < _SMALL else torch.float32
            case "float64":
                return torch.float64
            case "float32" | "bfloat16":
                return torch.float32
        raise DataError(
            f"precision={self.precision!r} was given; allowed are 'auto', 'float32', 'float64' and 'bfloat16'"
        )

    def _device(self) -> torch.device:
        if self.device == "auto":
            return local_device()
        try:
            device = torch.device(self.device)
            torch.zeros(1, device=device).tolist()
        except (RuntimeError, AssertionError) as error:
            reason = str(error).partition("\n")[0][:200]
            raise DataError(
                f"device={self.device!r} was given, which torch cannot use here ({reason}); 'cpu' always works"
            ) from error
        return device

    def _hold_out(self, rows: Rows, count: float, seed: int) -> tuple[Rows, Rows | None, Array]:
        """Split the rows; return also the numbers of those held out."""
        fraction, none = self._share(count), np.zeros(0, dtype=np.int64)
        if fraction == 0.0:
            return rows, None, none
        strata = None if rows.y.is_floating_point() else rows.y
        train, valid = split(len(rows), fraction, as_generator(derive(seed, "split")), strata=strata)
        return (rows.take(train), rows.take(valid), valid.numpy()) if len(valid) else (rows, None, none)

    def _share(self, count: float) -> float:
        """Return the share of the rows that is held out."""
        fraction = self.validation_fraction
        if not 0.0 <= fraction < 1.0:
            raise DataError(f"validation_fraction={fraction} was given; 0 <= validation_fraction < 1 is allowed")
        return 0.0 if count < _FEW else fraction

    def _train(self, job: "Job") -> Run | Member:
        model, likelihood, train, valid, seed = job.model, job.likelihood, job.train, job.valid, job.seed
        training = self._training(train.count, len(train))
        callbacks = list(self.callbacks or ())
        resume = None
        if self.checkpoint is not None:
            start = (*model.state_dict().values(), *likelihood.state_dict().values())
            told = {name: v for name, v in self._options().items() if name not in ("progress", "checkpoint_seconds")}
            name = options.fingerprint(train, valid, start, training, {**told, "seed": seed})
            keeper = Checkpoint(self.checkpoint, self.checkpoint_seconds, {"fingerprint": name})
            resume = keeper.found()
            callbacks.append(keeper)
        how: dict[str, Any] = {
            "training": training,
            "seed": derive(seed, "training"),
            "callbacks": callbacks,
            "progress": Terminal(shown=self.shown) if self.progress else Silent(),
            "resume": resume,
        }
        if self.n_restarts == 1:
            return fit(model, likelihood, train, valid, **how)
        return restarted(self._starts(job), cast(Rows, train), valid, self.restarts, **how)

    def _starts(self, job: "Job") -> list[tuple[Model, Likelihood]]:
        """Build a network for every restart; the first is the one that would be trained alone."""
        if self._warm():
            raise DataError(
                f"warm_start goes on from one network, and n_restarts={self.n_restarts} was given; set it to 1"
            )
        seeds = (derive(job.seed, "restart", i) for i in range(1, self.n_restarts))
        others = [self._built(job.schema, job.target, s, job.model.dtype, job.model.device) for s in seeds]
        return [(job.model, job.likelihood), *others]

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

    # ---- predicting

    def predict_dist(self, X: Any) -> ClassPredictive | ContinuousPredictive:
        """Return the predictive distribution of every row: a mixture over depths (and weight draws).

        It holds the parameters of every component, S × N × K numbers.
        """
        chunks: list[ClassPredictive | ContinuousPredictive] = []
        for chunk in self._predictives(X):
            if not chunks:  # its size tells that of the rest; joining needs each number twice
                memory.require(
                    2.0 * chunk.nbytes / len(chunk) * len(X),
                    f"the predictive distribution of {len(X):,} rows",
                    lambda share: (
                        f"about {int(share * len(X)):,} rows fit: predict part by part, or lower weight_draws"
                    ),
                )
            chunks.append(chunk)
        return cast(ClassPredictive | ContinuousPredictive, concatenate(chunks))

    def _predictives(self, X: Any) -> Iterator[ClassPredictive | ContinuousPredictive]:
        """Predict chunk after chunk, with the same weight draws for all of them."""
        check_is_fitted(self, "model_")
        if not (whole := isinstance(X, np.ndarray) and X.ndim == 2):  # arrays are checked, and copied, part by part
            X = self._table(X, reset=False)
        device = self.model_.device
        passes = self._draws() if self.model_.stochastic else 1
        networks = len(self.structure_.names) * (len(self.model_.members) if isinstance(self.model_, Ensemble) else 1)
        memory.require(
            2.0 * 8.0 * passes * networks * min(len(X), _CHUNK) * self.likelihood_.outputs,
            f"weight_draws={passes:,} of {min(len(X), _CHUNK):,} rows",
            lambda share: f"weight_draws={max(1, int(share * passes)):,} fits",
        )
        for start in range(0, max(1, len(X)), _CHUNK):
            rows = take(X, slice(start, start + _CHUNK))
            rows = self._table(rows, reset=False) if whole else rows
            x = torch.as_tensor(encode(self.schema_, rows), dtype=self.model_.dtype).to(device)
            memory.release(X)
            noise = as_generator(derive(self.seed_, "predict"), device=x.device)
            with torch.no_grad():
                draws = self.model_.draw(x, self._draws(), noise)
                _check_finite(draws.f, start)
                yield predictive(draws, self.likelihood_, **self._units())

    def _draws(self) -> int:
        """Return the weight draws of a prediction; also a family of point estimates may be given layers that draw."""
        return (self if isinstance(self, DrawnWeightsOptions) else DrawnWeightsOptions).weight_draws

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
        }
        meta = {
            "options": self._options(),
            "schema": self.schema_.to_json(),
            "target": self.target_.to_json(),
            "layout": self.model_.layout(),
            "dtype": str(self.model_.dtype).removeprefix("torch."),
            "seed": self.seed_,
            "history": self.history_,
            "n_iter": self.n_iter_,
            "validation_score": self.validation_score_,
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
        lacking = {name for name, value in given.items() if value == options.FUNCTION} - set(functions)
        if lacking:
            raise DataError(
                f"the estimator in {path} was fitted with a function as {', '.join(sorted(lacking))}; give it again: "
                f"{cls.__name__}.load(path, {', '.join(f'{name}=...' for name in sorted(lacking))})"
            )
        with options.foreign(path):
            estimator = cls(**{**options.decoded(meta["options"], cls.saved_values), **functions})
            estimator._rebuild(saved)
        return estimator

    def _rebuild(self, saved: io.Saved) -> None:
        """Take over the fitted state that a folder holds."""
        meta = saved.meta
        self.schema_ = Schema.from_json(meta["schema"])
        names = [column.name for column in self.schema_.columns]
        if meta["n_features_in"] != len(names) or meta["feature_names_in"] not in ([], names):
            raise DataError("its columns are not those of its schema")
        self.target_ = self._target_type().from_json(meta["target"])
        dtype = {"float32": torch.float32, "float64": torch.float64}[meta["dtype"]]
        try:
            device = self._device()
        except DataError:  # fitted on another machine
            self.device = "auto"
            device = self._device()
        self.likelihood_ = self._likelihood(self.target_).to(device, dtype)
        self._check_saved(meta["layout"], {name: t.shape for name, t in saved.tensors.items()})
        each = len(meta["layout"].get("members", "1"))  # an ensemble of restarts tells of its members
        built = [
            self._build_model(self.schema_.width, self.likelihood_.outputs, meta["seed"], dtype) for _ in range(each)
        ]
        self.model_ = (Ensemble(built) if "members" in meta["layout"] else built[0]).to(device)
        self.model_.restore(meta["layout"])
        for prefix, module in (("model/", self.model_), ("likelihood/", self.likelihood_)):
            own = {name.removeprefix(prefix): t for name, t in saved.tensors.items() if name.startswith(prefix)}
            module.load_state_dict(own)
            module.eval()
        self.seed_, self.history_, self.n_iter_ = meta["seed"], meta["history"], meta["n_iter"]
        self.validation_score_, self.n_features_in_ = meta["validation_score"], meta["n_features_in"]
        self.held_out_ = saved.tensors["held_out"].numpy()
        if meta["feature_names_in"]:
            self.feature_names_in_ = np.array(meta["feature_names_in"], dtype=object)
        self._describe()

    def _options(self) -> dict[str, Any]:
        """Return the constructor's options as plain JSON; what belongs to one run alone becomes None."""
        given = {**self.get_params(deep=False), "callbacks": None, "checkpoint": None}
        if not isinstance(given["random_state"], int | np.integer):
            given["random_state"] = None
        return {name: options.encoded(value, self.saved_values) for name, value in given.items()}

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        tags.target_tags.multi_output = self._target_type() is TargetScale
        return tags


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


def _check_finite(f: Tensor, start: int) -> None:
    """Refuse outputs of drawn networks, shape (S, B, K), that are not finite."""
    bad = ~f.isfinite().all(2).all(0)  # (B,)
    if bool(bad.any()):
        raise DataError(
            f"row {start + int(bad.int().argmax())} of X is so far from the training data that the network's output "
            f"is not finite in {str(f.dtype).removeprefix('torch.')}; check the units of its columns"
        )


def _on(rows: Rows, device: torch.device) -> Rows:
    return Rows(rows.x.to(device), rows.y.to(device), None if rows.weight is None else rows.weight.to(device))
