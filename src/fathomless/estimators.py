"""The scikit-learn border: arrays or data frames in, calibrated predictions out.

Estimators are thin: they encode a table, build a model of a family, hand it to the training loop, and show the
posterior through :mod:`fathomless.predictive`. All mathematics is elsewhere.
"""

import contextlib
import hashlib
import json
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self, cast

import narwhals as nw
import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import Tags
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from fathomless import io
from fathomless.data import encode, fit_schema, split
from fathomless.distributions import (
    Clip,
    ClippedPoisson,
    DepthLaw,
    DepthPrior,
    FixedDepth,
    FreeCategorical,
    PoissonPrior,
    QuantilePoisson,
    StickBreaking,
    Taper,
    UniformPrior,
)
from fathomless.errors import ConvergenceWarning, DataError, FileError
from fathomless.inference.callbacks import Checkpoint
from fathomless.inference.svi import Rows, Run, Training, fit
from fathomless.likelihoods import Categorical, Gaussian, Laplace, Likelihood, StudentT
from fathomless.models.blocks import MLP, Architecture, TabularTransformer
from fathomless.models.depth import UnboundedDepth
from fathomless.predictive import ClassPredictive, ContinuousPredictive, concatenate, predictive
from fathomless.progress import Silent, Terminal
from fathomless.rng import as_generator, as_seed, derive
from fathomless.schema import Schema
from fathomless.targets import ClassLabels, TargetScale, fit_labels, fit_target

__all__ = ["UnboundedDepthClassifier", "UnboundedDepthRegressor"]

Array = npt.NDArray[Any]
Blocks = str | Callable[[int, int], Architecture]
Law = str | int | DepthLaw

_CHUNK = 16384  # rows predicted at once
_SMALL = 2000  # rows below which double precision costs nothing
_FEW = 60  # rows below which none are held out

_LAWS: dict[str, Callable[[float], DepthLaw]] = {
    "poisson": lambda rate: ClippedPoisson(rate),
    "two_sided": lambda rate: ClippedPoisson(rate, Clip(0.05, 0.95)),
    "taper": lambda rate: ClippedPoisson(rate, Taper()),
    "quantile": lambda rate: QuantilePoisson(rate),
    "stick_breaking": lambda rate: StickBreaking(rate),
    "categorical": lambda rate: FreeCategorical(10),
}
_VALUES = {
    kind.__name__: kind
    for kind in (
        Clip,
        ClippedPoisson,
        FixedDepth,
        FreeCategorical,
        PoissonPrior,
        QuantilePoisson,
        StickBreaking,
        Taper,
        UniformPrior,
    )
}


class _UnboundedDepth(BaseEstimator, ABC):  # type: ignore[misc]
    """What classifier and regressor share."""

    architecture: Blocks
    width: int
    activation: str
    depth_law: Law
    initial_depth: float
    depth_prior: float | DepthPrior
    min_depth: int
    max_depth: int | None
    weights: str
    prior_scale: float
    temperature: float
    weight_draws: int
    epochs: int | Literal["auto"]
    batch_size: int | Literal["auto"]
    learning_rate: float
    structure_rate: float
    structure_optimizer: str
    structure_radius: float
    schedule: str | tuple[tuple[int, float], ...]
    patience: int | None
    clip_norm: float | None
    validation_fraction: float
    missing: str
    unseen: str
    max_levels: int
    device: str
    precision: str
    checkpoint: str | PathLike[str] | None
    checkpoint_seconds: float
    progress: bool
    callbacks: Sequence[Callable[[Run], None]] | None
    warm_start: bool
    random_state: Any

    # ---- what a leaf says

    @abstractmethod
    def _fit_target(self, y: Any, weight: Array | None) -> ClassLabels | TargetScale:
        """Learn how to encode the target."""

    @abstractmethod
    def _likelihood(self, target: ClassLabels | TargetScale) -> Likelihood:
        """Build p(y | f)."""

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
        seed = self._seed()
        X, y, weight = self._read(X, y, sample_weight)
        warm = self.warm_start and hasattr(self, "model_")
        if not warm:
            self.schema_ = fit_schema(
                X, weight=weight, missing=self.missing, unseen=self.unseen, max_levels=self.max_levels
            )
            self.target_ = self._fit_target(y, weight)
        x, z = encode(self.schema_, X), self.target_.encode(y)
        count = float(len(x) if weight is None else weight.sum())
        precision = self._precision(count)
        device = self._device()
        rows = Rows(
            torch.as_tensor(x, dtype=precision),
            torch.as_tensor(z, dtype=torch.int64 if z.dtype.kind == "i" else precision),
            None if weight is None else torch.as_tensor(weight, dtype=precision),
        )
        train, valid = self._hold_out(rows, count, seed)
        if not warm:
            self.likelihood_ = self._likelihood(self.target_).to(device, precision)
            self.model_ = self._model(x.shape[1], self.likelihood_.outputs, seed, precision).to(device)
        run = self._train(_on(train, device), None if valid is None else _on(valid, device), count, seed)
        self._conclude(run, seed)
        return self

    def _seed(self) -> int:
        if self.checkpoint is not None and self.random_state is None:
            raise DataError(
                "checkpoint was given without random_state; a run can only go on from a checkpoint with its own seed: "
                "set random_state to an integer"
            )
        return as_seed(self.random_state)

    def _read(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, Any, Array | None]:
        """Check the table the way scikit-learn does, and drop rows that count for nothing."""
        if y is None:
            raise ValueError(f"This {type(self).__name__} estimator requires y to be passed, but the target y is None")
        X = self._table(X, reset=not (self.warm_start and hasattr(self, "model_")))
        if len(X) != len(y):
            raise DataError(f"X has {len(X)} rows and y has {len(y)}; they must agree")
        if sample_weight is None:
            return X, y, None
        weight = _check_sample_weight(sample_weight, np.empty((len(X), 1)), dtype=np.float64, ensure_non_negative=True)
        kept = np.flatnonzero(weight)
        if len(kept) == 0:
            raise DataError("every sample_weight is zero; at least one row must count")
        if len(kept) < len(weight):
            X, y, weight = _take(X, kept), _take(y, kept), weight[kept]
        return X, y, weight

    def _table(self, X: Any, reset: bool) -> Any:
        frame = nw.from_native(X, eager_only=True, pass_through=True)
        if isinstance(frame, nw.DataFrame):
            validate_data(self, X, reset=reset, skip_check_array=True)
            return X
        finite = "allow-nan" if self.missing == "impute" else True
        return validate_data(self, X, reset=reset, dtype=np.float64, ensure_all_finite=finite)

    def _precision(self, count: float) -> torch.dtype:
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
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            raise DataError(
                f"device={self.device!r} was given, which torch cannot use here ({error}); 'cpu' always works"
            ) from error
        return device

    def _hold_out(self, rows: Rows, count: float, seed: int) -> tuple[Rows, Rows | None]:
        fraction = self.validation_fraction
        if not 0.0 <= fraction < 1.0:
            raise DataError(f"validation_fraction={fraction} was given; 0 <= validation_fraction < 1 is allowed")
        if fraction == 0.0 or count < _FEW:
            return rows, None
        strata = None if rows.y.is_floating_point() else rows.y
        train, valid = split(len(rows), fraction, as_generator(derive(seed, "split")), strata=strata)
        return (rows.take(train), rows.take(valid)) if len(valid) else (rows, None)

    def _model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        blocks = self._blocks(inputs, outputs)
        return UnboundedDepth(
            blocks.layer,
            blocks.head,
            law=self._law(),
            prior=self.depth_prior if isinstance(self.depth_prior, DepthPrior) else PoissonPrior(self.depth_prior),
            min_depth=self.min_depth,
            weights=self.weights,
            prior_scale=self.prior_scale,
            max_depth=self.max_depth,
            seed=derive(seed, "weights"),
            dtype=dtype,
        )

    def _blocks(self, inputs: int, outputs: int) -> Architecture:
        match self.architecture:
            case "mlp" | "residual":
                return MLP(inputs, outputs, self.width, self.activation, residual=self.architecture == "residual")
            case "transformer":
                return TabularTransformer(inputs, outputs, self.width)
            case str():
                raise DataError(
                    f"architecture={self.architecture!r} was given; allowed are 'mlp', 'residual', 'transformer', or a "
                    "callable (inputs, outputs) -> Architecture"
                )
        return self.architecture(inputs, outputs)

    def _law(self) -> DepthLaw:
        match self.depth_law:
            case DepthLaw():
                return self.depth_law
            case int() if self.depth_law >= self.min_depth:
                return FixedDepth((self.depth_law - self.min_depth,))
            case str() if self.depth_law in _LAWS:
                return _LAWS[self.depth_law](self.initial_depth)
        raise DataError(
            f"depth_law={self.depth_law!r} was given; allowed are {', '.join(map(repr, _LAWS))}, a DepthLaw, or the "
            f"depth of an ordinary network, at least min_depth={self.min_depth}"
        )

    def _train(self, train: Rows, valid: Rows | None, count: float, seed: int) -> Run:
        training = self._training(count)
        callbacks = list(self.callbacks or ())
        resume = None
        if self.checkpoint is not None:
            extra = {"fingerprint": _fingerprint(train, valid, training, self._options())}
            keeper = Checkpoint(self.checkpoint, self.checkpoint_seconds, extra)
            resume = keeper.found()
            callbacks.append(keeper)
        return fit(
            self.model_,
            self.likelihood_,
            train,
            valid,
            training=training,
            seed=derive(seed, "training"),
            callbacks=callbacks,
            progress=Terminal() if self.progress else Silent(),
            resume=resume,
        )

    def _training(self, count: float) -> Training:
        batch = _batch_size(count) if self.batch_size == "auto" else int(self.batch_size)
        steps_per_epoch = max(1, math.ceil(count / batch))
        epochs = _epochs(steps_per_epoch) if self.epochs == "auto" else int(self.epochs)
        return Training(
            epochs=epochs,
            batch_size=batch,
            learning_rate=self.learning_rate,
            structure_rate=self.structure_rate,
            structure_optimizer=self.structure_optimizer,
            structure_radius=self.structure_radius,
            schedule=self.schedule,
            clip_norm=self.clip_norm,
            temperature=self.temperature,
            evaluate_every=max(1, round(8 / steps_per_epoch)),
            patience=self.patience,
            calibrate=True,
            mixed=self.precision == "bfloat16",
        )

    def _conclude(self, run: Run, seed: int) -> None:
        self.seed_ = seed
        self.history_ = run.history
        self.n_iter_ = run.epoch
        self.validation_score_ = run.best.score
        self._describe()
        drift = run.history[-1].get("drift", 0.0)
        move = self.model_.remaining_move(run.gradient) if len(run.gradient) == len(self.model_.law_parameters) else 0.0
        if drift > 0.8 and abs(move) > 1.0:
            warnings.warn(
                f"the posterior over depth has not converged: its mean is {self.structure_.statistics['mean_depth']:.1f} "
                f"and would still move by about {move:+.1f}. Raise epochs (now {run.training.epochs}) or structure_rate "
                f"(now {run.training.structure_rate})",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _describe(self) -> None:
        self.structure_ = self.model_.structure()
        self.depth_posterior_ = self.model_.depth_posterior()

    # ---- predicting

    def predict_dist(self, X: Any) -> ClassPredictive | ContinuousPredictive:
        """Return the predictive distribution of every row: a mixture over depths (and weight draws).

        It holds the parameters of every component, S × N × K numbers.
        """
        return cast(ClassPredictive | ContinuousPredictive, concatenate(list(self._predictives(X))))

    def _predictives(self, X: Any) -> Iterator[ClassPredictive | ContinuousPredictive]:
        """Predict chunk after chunk, with the same weight draws for all of them."""
        check_is_fitted(self, "model_")
        X, device = self._table(X, reset=False), self.model_.device
        for start in range(0, len(X), _CHUNK):
            x = torch.as_tensor(encode(self.schema_, X[start : start + _CHUNK]), dtype=self.model_.dtype).to(device)
            noise = as_generator(derive(self.seed_, "predict"), device=x.device)
            with torch.no_grad():
                yield predictive(self.model_.draw(x, self.weight_draws, noise), self.likelihood_, **self._units())

    @abstractmethod
    def _units(self) -> dict[str, Any]:
        """Return what turns components into the user's units."""

    # ---- saving

    def save(self, path: str | PathLike[str]) -> Path:
        """Save the fitted estimator as a folder: tensors and a JSON manifest, no pickle.

        Predictions after :meth:`load` are bit-equal. ``callbacks`` and ``checkpoint`` are not kept; an `architecture`
        that is a function must be given again to :meth:`load`.

        Raises
        ------
        FileError
            If the folder cannot be written; what was there before is untouched.
        """
        check_is_fitted(self, "model_")
        tensors = {
            **{f"model/{name}": value for name, value in self.model_.state_dict().items()},
            **{f"likelihood/{name}": value for name, value in self.likelihood_.state_dict().items()},
        }
        meta = {
            "options": self._options(),
            "schema": self.schema_.to_json(),
            "target": self.target_.to_json(),
            "layout": self.model_.layout(),
            "precision": str(self.model_.dtype).removeprefix("torch."),
            "seed": self.seed_,
            "history": self.history_,
            "n_iter": self.n_iter_,
            "validation_score": self.validation_score_,
            "n_features_in": self.n_features_in_,
            "feature_names_in": list(getattr(self, "feature_names_in_", ())),
        }
        return io.save(path, kind=type(self).__name__, tensors=tensors, meta=meta)

    @classmethod
    def load(cls, path: str | PathLike[str], *, architecture: Callable[[int, int], Architecture] | None = None) -> Self:
        """Load an estimator that :meth:`save` wrote.

        Parameters
        ----------
        path : path
            The folder.
        architecture : callable, optional
            Needed if the estimator was fitted with a function as its architecture.

        Raises
        ------
        FileError
            If the folder is missing, damaged, altered, foreign, or written by a newer version.
        """
        saved = io.load(path, kinds={cls.__name__})
        meta = saved.meta
        with _foreign(path):
            estimator = cls(**_decoded(meta["options"]))
            if architecture is not None:
                estimator.architecture = architecture
            elif meta["options"]["architecture"] is None:
                raise DataError(
                    "the model was fitted with a function as its architecture; give it again: "
                    f"{cls.__name__}.load(path, architecture=...)"
                )
            estimator.schema_ = Schema.from_json(meta["schema"])
            estimator.target_ = cls._target_type().from_json(meta["target"])
            dtype = {"float32": torch.float32, "float64": torch.float64}[meta["precision"]]
            device = estimator._device()
            estimator.likelihood_ = estimator._likelihood(estimator.target_).to(device, dtype)
            outputs = estimator.likelihood_.outputs
            estimator.model_ = estimator._model(estimator.schema_.width, outputs, meta["seed"], dtype).to(device)
            estimator.model_.restore(meta["layout"])
            for prefix, module in (("model/", estimator.model_), ("likelihood/", estimator.likelihood_)):
                module.load_state_dict(
                    {k.removeprefix(prefix): v for k, v in saved.tensors.items() if k.startswith(prefix)}
                )
                module.eval()
            estimator.seed_, estimator.history_ = meta["seed"], meta["history"]
            estimator.n_iter_, estimator.validation_score_ = meta["n_iter"], meta["validation_score"]
            estimator.n_features_in_ = meta["n_features_in"]
            if meta["feature_names_in"]:
                estimator.feature_names_in_ = np.array(meta["feature_names_in"], dtype=object)
            estimator._describe()
        return estimator

    @classmethod
    @abstractmethod
    def _target_type(cls) -> type[ClassLabels] | type[TargetScale]: ...

    def _options(self) -> dict[str, Any]:
        """Return the constructor's options as plain JSON; functions and folders become None."""
        options = self.get_params(deep=False)
        for name in ("callbacks", "checkpoint"):
            options[name] = None
        if callable(options["architecture"]):
            options["architecture"] = None
        if not isinstance(options["random_state"], int | np.integer):
            options["random_state"] = None
        return cast(dict[str, Any], _encoded(options))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "impute"
        return tags


class UnboundedDepthClassifier(ClassifierMixin, _UnboundedDepth):  # type: ignore[misc]
    """Classifier whose network has as many layers as the data ask for.

    Parameters
    ----------
    architecture : {"mlp", "residual", "transformer"} or callable
        What a layer is; or a function (inputs, outputs) -> Architecture.
    width : int
        Units per layer.
    activation : str
        relu, leaky_relu, elu, gelu, silu or tanh.
    depth_law : str, int or DepthLaw
        Family of the posterior over depth: "poisson" (soft truncation), "two_sided", "taper", "quantile" (the
        paper's), "stick_breaking", "categorical" (ten depths); an integer is an ordinary network of that depth.
    initial_depth : float
        Where the posterior over depth starts: its mean offset above `min_depth` before clipping.
    depth_prior : float or DepthPrior
        Depth − min_depth ~ Poisson(depth_prior), or any prior.
    min_depth, max_depth : int
        Least depth (0: a linear model is one of the networks), and greatest, if there must be one.
    weights : {"map", "meanfield"}
        Point estimates with the prior's decay, or an independent Gaussian per weight.
    prior_scale : float
        Standard deviation of the prior of every weight.
    temperature : float
        T multiplies the divergence of the weights; 1 is the model.
    weight_draws : int
        Weight draws in predictions; used with "meanfield" alone.
    epochs, batch_size : int or "auto"
        Passes over the data, rows per step.
    learning_rate, structure_rate : float
        Rate of the weights; rate of the depth law relative to it.
    schedule : str or tuple
        See :class:`~fathomless.inference.svi.Training`.
    patience : int, optional
        Stop after so many validation scores without a better one.
    clip_norm : float, optional
        Longest gradient.
    validation_fraction : float
        Share of the rows that is held out to choose the best epoch; 0 trains on all. Below 60 rows none are.
    missing, unseen, max_levels : str, str, int
        See :func:`~fathomless.data.fit_schema`.
    device : str
        "auto" takes a GPU if there is one.
    precision : {"auto", "float32", "float64", "bfloat16"}
        "auto" is double below 2,000 rows, where it costs nothing, else single.
    checkpoint : path, optional
        Folder for checkpoints. A fit that was interrupted goes on from there, to the same bytes.
    checkpoint_seconds : float
        Least time between two checkpoints.
    progress : bool
        Show a progress bar.
    callbacks : sequence of callables, optional
        Called with the :class:`~fathomless.inference.svi.Run` after every row of the history.
    warm_start : bool
        Go on from the fitted state at the next call of fit.
    random_state : int, RandomState, Generator or None
        Seed. The same seed, data, machine and number of threads give the same bytes.

    Attributes
    ----------
    classes_ : ndarray, shape (K,)
        Labels.
    structure_ : Structure
        Posterior over depth, with a summary.
    depth_posterior_ : dict of int to float
        p(depth | data).
    history_ : list of dict
        What happened in training: see :class:`~fathomless.inference.svi.Run`.
    n_iter_ : int
        Epochs done.
    validation_score_ : float or None
        Best mean log predictive density of the held-out rows, in nats.
    model_, likelihood_ : nn.Module
        The fitted network and p(y | f).

    Notes
    -----
    With ``weights="map"`` the objective is penalised maximum likelihood with depth-weighted decay, not an evidence
    bound. The posterior over depth is an approximation by a parametric family; it need not find the best depth.

    References
    ----------
    A. Nazaret and D. Blei, "Variational Inference for Infinitely Deep Neural Networks", ICML 2022.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = UnboundedDepthClassifier(random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape
    (2, 3)
    """

    def __init__(
        self,
        *,
        architecture: Blocks = "mlp",
        width: int = 64,
        activation: str = "relu",
        depth_law: Law = "poisson",
        initial_depth: float = 2.0,
        depth_prior: float | DepthPrior = 0.5,
        min_depth: int = 0,
        max_depth: int | None = None,
        weights: str = "map",
        prior_scale: float = 0.5,
        temperature: float = 1.0,
        weight_draws: int = 16,
        epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        learning_rate: float = 5e-3,
        structure_rate: float = 0.3,
        structure_optimizer: str = "adam",
        structure_radius: float = 0.1,
        schedule: str | tuple[tuple[int, float], ...] = "cosine",
        patience: int | None = 30,
        clip_norm: float | None = None,
        validation_fraction: float = 0.1,
        missing: str = "auto",
        unseen: str = "error",
        max_levels: int = 100,
        device: str = "auto",
        precision: str = "auto",
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_seconds: float = 30.0,
        progress: bool = False,
        callbacks: Sequence[Callable[[Run], None]] | None = None,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        for name, value in locals().items():
            if name not in ("self", "__class__"):
                setattr(self, name, value)

    def predict_proba(self, X: Any) -> Array:
        """Return class probabilities, shape (N, K), columns in the order of ``classes_``."""
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> Array:
        """Return log class probabilities, shape (N, K)."""
        return np.concatenate([cast(ClassPredictive, p).log_probs.numpy() for p in self._predictives(X)])

    def predict(self, X: Any) -> Array:
        """Return the most probable class of every row, shape (N,)."""
        codes = [cast(ClassPredictive, p).mode.numpy() for p in self._predictives(X)]
        return cast(ClassLabels, self.target_).decode(np.concatenate(codes))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw labels from the predictive distribution, shape (N, n_samples).

        Each sample draws one network and applies it to every row.
        """
        noise = as_generator(random_state)
        draws = cast(ClassPredictive, self.predict_dist(X)).sample(n_samples, noise)
        return np.asarray(draws).T

    def _fit_target(self, y: Any, weight: Array | None) -> ClassLabels:
        labels = fit_labels(y)
        self.classes_ = np.array(labels.labels, dtype=labels.dtype)
        return labels

    def _likelihood(self, target: ClassLabels | TargetScale) -> Likelihood:
        labels = cast(ClassLabels, target)
        self.classes_ = labels.decode(np.arange(len(labels.labels)))
        return Categorical(len(labels.labels))

    def _units(self) -> dict[str, Any]:
        return {"labels": self.classes_}

    @classmethod
    def _target_type(cls) -> type[ClassLabels]:
        return ClassLabels


class UnboundedDepthRegressor(RegressorMixin, _UnboundedDepth):  # type: ignore[misc]
    """Regressor, for one target or several, whose network has as many layers as the data ask for.

    Targets are centred and scaled inside; predictions are in the units of y.

    Parameters
    ----------
    likelihood : {"gaussian", "student_t", "laplace"}
        Law of the noise. Student's t has 4 degrees of freedom.
    noise : {"learned", "input"} or float
        One scale per target, learned; a scale that depends on the input; or a fixed scale, in standard deviations of
        the target.
    architecture, width, activation, depth_law, initial_depth, depth_prior, min_depth, max_depth, weights, prior_scale, \
    temperature, weight_draws, epochs, batch_size, learning_rate, structure_rate, schedule, patience, clip_norm, \
    validation_fraction, missing, unseen, max_levels, device, precision, checkpoint, checkpoint_seconds, progress, \
    callbacks, warm_start, random_state
        As in :class:`UnboundedDepthClassifier`.

    Attributes
    ----------
    structure_, depth_posterior_, history_, n_iter_, validation_score_, model_, likelihood_
        As in :class:`UnboundedDepthClassifier`.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = UnboundedDepthRegressor(random_state=0).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, std.shape
    ((3,), (3,))
    """

    def __init__(
        self,
        *,
        likelihood: Literal["gaussian", "student_t", "laplace"] = "gaussian",
        noise: float | Literal["learned", "input"] = "learned",
        architecture: Blocks = "mlp",
        width: int = 64,
        activation: str = "relu",
        depth_law: Law = "poisson",
        initial_depth: float = 2.0,
        depth_prior: float | DepthPrior = 0.5,
        min_depth: int = 0,
        max_depth: int | None = None,
        weights: str = "map",
        prior_scale: float = 0.5,
        temperature: float = 1.0,
        weight_draws: int = 16,
        epochs: int | Literal["auto"] = "auto",
        batch_size: int | Literal["auto"] = "auto",
        learning_rate: float = 5e-3,
        structure_rate: float = 0.3,
        structure_optimizer: str = "adam",
        structure_radius: float = 0.1,
        schedule: str | tuple[tuple[int, float], ...] = "cosine",
        patience: int | None = 30,
        clip_norm: float | None = None,
        validation_fraction: float = 0.1,
        missing: str = "auto",
        unseen: str = "error",
        max_levels: int = 100,
        device: str = "auto",
        precision: str = "auto",
        checkpoint: str | PathLike[str] | None = None,
        checkpoint_seconds: float = 30.0,
        progress: bool = False,
        callbacks: Sequence[Callable[[Run], None]] | None = None,
        warm_start: bool = False,
        random_state: Any = None,
    ) -> None:
        for name, value in locals().items():
            if name not in ("self", "__class__"):
                setattr(self, name, value)

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Return the predictive mean, shape (N,) or (N, T), and if asked the standard deviation, noise included."""
        mean, std = [], []
        for p in self._predictives(X):
            p = cast(ContinuousPredictive, p)
            mean.append(p.mean.numpy())
            if return_std:
                std.append(p.std.numpy())
        return (np.concatenate(mean), np.concatenate(std)) if return_std else np.concatenate(mean)

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[Array, Array]:
        """Return the bounds of the central interval that holds `level` of the predictive distribution."""
        bounds = [cast(ContinuousPredictive, p).interval(level) for p in self._predictives(X)]
        low, high = zip(*bounds, strict=True)
        return np.concatenate([b.numpy() for b in low]), np.concatenate([b.numpy() for b in high])

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw targets from the predictive distribution, shape (N, n_samples) or (N, T, n_samples).

        Each sample draws one network and applies it to every row.
        """
        noise = as_generator(random_state)
        draws = cast(ContinuousPredictive, self.predict_dist(X)).sample(n_samples, noise)
        return np.moveaxis(np.asarray(draws), 0, -1)

    def _fit_target(self, y: Any, weight: Array | None) -> TargetScale:
        return fit_target(y, weight)

    def _likelihood(self, target: ClassLabels | TargetScale) -> Likelihood:
        kinds: dict[str, Callable[..., Likelihood]] = {"gaussian": Gaussian, "student_t": StudentT, "laplace": Laplace}
        if self.likelihood not in kinds:
            raise DataError(f"likelihood={self.likelihood!r} was given; allowed are {', '.join(map(repr, kinds))}")
        return kinds[self.likelihood](len(cast(TargetScale, target).mean), noise=self.noise)

    def _units(self) -> dict[str, Any]:
        target = cast(TargetScale, self.target_)
        return {"shift": target.mean, "scale": target.scale, "squeeze": target.ndim == 1}

    @classmethod
    def _target_type(cls) -> type[TargetScale]:
        return TargetScale


def _batch_size(count: float) -> int:
    """Rows per step: 256, and more for large data, where the cost of a step is in the arithmetic."""
    return 256 if count < 10_000 else 512


def _epochs(steps_per_epoch: int) -> int:
    """Epochs that make about 4,000 steps, within 20 and 1,000."""
    return max(20, min(1000, round(4000 / steps_per_epoch)))


def _take(rows: Any, index: Array) -> Any:
    """Return rows of an array, a list or a data frame."""
    native = nw.from_native(rows, eager_only=True, allow_series=True, pass_through=True)
    if isinstance(native, nw.DataFrame | nw.Series):
        return native[index.tolist()].to_native()
    return np.asarray(rows)[index]


def _on(rows: Rows, device: torch.device) -> Rows:
    return Rows(rows.x.to(device), rows.y.to(device), None if rows.weight is None else rows.weight.to(device))


def _fingerprint(train: Rows, valid: Rows | None, training: Training, options: dict[str, Any]) -> str:
    """Name the data and the options of a fit, so that a checkpoint of another one is not taken up."""
    digest = hashlib.sha256(json.dumps([asdict(training), options], sort_keys=True, default=str).encode())
    for rows in (train, *([valid] if valid is not None else [])):
        for tensor in (rows.x, rows.y, *([rows.weight] if rows.weight is not None else [])):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@contextlib.contextmanager
def _foreign(path: str | PathLike[str]) -> Iterator[None]:
    """Turn whatever a manifest that passed its checks may still do wrong into one clear error."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, DataError) and "architecture=" in str(error):
            raise
        raise FileError(
            f"{path} does not hold an estimator that this version can rebuild ({type(error).__name__}: {error}); "
            "save it again with the version that wrote it"
        ) from error


def _encoded(value: Any) -> Any:
    """Write options as plain JSON: laws and priors by name and fields."""
    match value:
        case dict():
            return {name: _encoded(entry) for name, entry in value.items()}
        case list() | tuple():
            return [_encoded(entry) for entry in value]
        case np.generic():
            return value.item()
        case None | bool() | int() | float() | str():
            return value
    name = type(value).__name__
    if _VALUES.get(name) is not type(value):
        raise DataError(f"an option of type {name} cannot be saved; allowed are plain values and {', '.join(_VALUES)}")
    return {"class": name, "fields": {f.name: _encoded(getattr(value, f.name)) for f in fields(value) if f.init}}


def _decoded(value: Any) -> Any:
    """Undo :func:`_encoded`; lists become tuples."""
    match value:
        case {"class": str(name), "fields": dict(entries)} if name in _VALUES:
            return _VALUES[name](**_decoded(entries))
        case dict():
            return {name: _decoded(entry) for name, entry in value.items()}
        case list():
            return tuple(_decoded(entry) for entry in value)
    return value
