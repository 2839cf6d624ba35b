"""Tasks: what all classifiers share, all regressors, and all estimators of a density, whatever their family."""

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import narwhals as nw
import numpy as np
from sklearn.base import ClassifierMixin, DensityMixin, RegressorMixin
from sklearn.utils import Tags
from torch import nn

from fathomless.data.cells import eager
from fathomless.data.frames import as_numbers, read_target, take
from fathomless.data.schema import rows_of
from fathomless.data.streams import Source
from fathomless.data.targets import ClassLabels, Indicators, TargetScale
from fathomless.estimators.base import Estimator, PredictiveEstimator, require_fitted
from fathomless.estimators.encoding import ClassTask, NumberTask, by_class, labels_of
from fathomless.estimators.options import ClassOptions, NoiseOptions
from fathomless.estimators.predictor import PREDICTED_AT_ONCE, Array
from fathomless.posterior.distributions import ClassPredictive, ContinuousPredictive
from fathomless.system import checks
from fathomless.system.errors import DataError
from fathomless.system.masked import unmask
from fathomless.system.rng import as_generator

if TYPE_CHECKING:
    from fathomless.estimators.exporting import Exported

__all__ = ["BaseRegressor", "Classifier", "Density", "PredictedDensity", "Regressor", "Supervised"]


class Supervised(PredictiveEstimator, ABC):
    """What classifiers and regressors share: columns that predict, and a target."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit the posterior to a table.

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Numbers in an array; numbers, booleans, categories and dates, with gaps, in a pandas, polars or pyarrow
            frame.
        y : array or series, shape (N,) or (N, T)
            Class labels of any type, or numbers.
        sample_weight : array, shape (N,), optional
            How often each row counts.
        groups : array, shape (N,), optional
            Rows that belong together, a patient's say: a group stays together in every fold and split. Without groups,
            the rules of :mod:`fathomless.data.duplicates` say whether equal rows do.

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
        return self._fit(partial(self._prepare, X, y, sample_weight, groups))

    def fit_stream(self, source: Source) -> Self:
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
        return self._fit(partial(self._prepare_stream, source))

    def to_module(self, levels: Sequence[float] = (0.05, 0.5, 0.95)) -> nn.Module:
        """Return the fitted estimator as one plain module of PyTorch, which needs nothing of this library.

        It holds the encoding of the table, and the networks that the estimator predicts with, drawn once; so it says
        what the estimator does, up to rounding. It maps float64 numbers (N, C), made of a table by :meth:`to_numbers`,
        to a dict: ``mean`` and ``variance`` (N,) or (N, T), ``quantiles`` (N, L) or (N, T, L); or ``probabilities``
        (N, K). What the estimator would refuse (missing values and categories that training did not see, unless
        options allow them) gives NaN.

        Parameters
        ----------
        levels : sequence of L floats
            Of the quantiles, between 0 and 1.

        Raises
        ------
        DataError
            For a level outside, and for a network whose steps depend on the values of the rows.
        """
        require_fitted(self)
        from fathomless.estimators import exporting

        return exporting.module_of(self, levels)

    def to_numbers(self, X: Any) -> Array:
        """Return a table as the numbers that a module reads, shape (N, C); NaN where missing.

        Booleans become 0 and 1, dates days since 1970-01-01, categories their place among those of the training, or -1.
        """
        require_fitted(self)
        return as_numbers(self.schema_, self._table(X, reset=False))

    def export(
        self, path: str | PathLike[str], levels: Sequence[float] = (0.05, 0.5, 0.95), **about: Any
    ) -> "Exported":
        """Write :meth:`to_module` to a file, and compare what the file says with the estimator.

        Parameters
        ----------
        path : path
            ``.onnx`` for ONNX Runtime (needs the extra ``export``), ``.pt2`` for :func:`torch.export.load`. Either
            takes any number of rows, and holds JSON under ``fathomless`` (ONNX) or ``metadata.json``: columns and how
            they are given, outputs, levels, classes, the posterior over structure, scores.
        levels : sequence of float
            Of the quantiles.
        about
            More to be kept there, as plain JSON: names of targets, units.

        Returns
        -------
        Exported
            The path, its bytes, and the largest difference to the estimator.

        Raises
        ------
        DataError
            As :meth:`to_module`; and if a package is missing or the file does not say what the estimator says.
        FileError
            If it cannot be written.
        """
        require_fitted(self)
        from fathomless.estimators import exporting

        return exporting.export(self, path, levels, about)


class Classifier(ClassOptions, ClassifierMixin, Supervised, ABC):  # type: ignore[misc]
    """What all classifiers share.

    Attributes
    ----------
    classes_ : ndarray, shape (K,)
        Labels, ascending; of several labels at once, their columns 0, ..., T − 1.
    """

    several_labels: ClassVar[bool] = True  # whether rows may have any number of labels, in columns of 0 and 1

    @property
    def classes_(self) -> Array:
        """Labels, ascending; shape (K,). Of several labels at once, their columns 0, ..., T − 1."""
        return labels_of(self.target_)

    def _task(self) -> ClassTask:
        return ClassTask(class_weight=self.class_weight, class_cost=self.class_cost, several_labels=self.several_labels)

    def predict_proba(self, X: Any) -> Array:
        """Return class probabilities, shape (N, K), columns in the order of ``classes_``.

        Of several labels at once, the probability that a row has each, shape (N, T).
        """
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithm of :meth:`predict_proba`."""
        return np.concatenate([cast(ClassPredictive, p).log_probs.numpy() for p in self._predictives(X)])

    def predict(self, X: Any) -> Array:
        """Return the most probable class of every row, shape (N,); with `class_cost`, the one that costs least.

        Of several labels at once 1 for those that a row has more probably than not, else 0, shape (N, T).
        """
        require_fitted(self)
        if isinstance(self.target_, Indicators):
            return self.target_.decode(self.predict_log_proba(X) > -math.log(2.0))
        log_cost = np.log(self._costs())
        codes = [(cast(ClassPredictive, p).log_probs.numpy() + log_cost).argmax(1) for p in self._predictives(X)]
        return cast(ClassLabels, self.target_).decode(np.concatenate(codes))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of :meth:`predict`, as scikit-learn does; no label may be missing."""
        return float(super().score(X, _unhidden("y", y), _unhidden("sample_weight", sample_weight)))

    def _costs(self) -> Array:
        """Return the cost of every class, (K,)."""
        require_fitted(self)
        return by_class("class_cost", self.class_cost, cast(ClassLabels, self.target_))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw labels from the predictive distribution, shape (N, n_samples), or (N, T, n_samples) of several.

        Each sample draws one network and applies it to every row.
        """
        noise = as_generator(random_state)
        draws = self.predict_dist(X).sample(checks.whole("n_samples", n_samples), noise)
        return np.moveaxis(np.asarray(draws), 0, -1)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = self.several_labels
        return tags


def _unhidden(name: str, values: Any) -> Any:
    """Return a masked array as a plain one, if it hides nothing; anything else as it is."""
    found = unmask(values)
    hidden = np.ma.getmaskarray(values) if found is not values and isinstance(values, np.ma.MaskedArray) else None
    if hidden is not None and hidden.any():
        rows = np.array(hidden.reshape(len(hidden), -1).any(axis=1))
        raise DataError(f"Input {name} contains NaN. It is masked in {rows_of(rows)}; drop these rows")
    return found


class BaseRegressor(RegressorMixin, Supervised, ABC):  # type: ignore[misc]
    """What all regressors share."""

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
        draws = cast(ContinuousPredictive, self.predict_dist(X)).sample(checks.whole("n_samples", n_samples), noise)
        return np.moveaxis(np.asarray(draws), 0, -1)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination of :meth:`predict`, as scikit-learn does; no target may be NaN."""
        return float(super().score(X, _unhidden("y", y), _unhidden("sample_weight", sample_weight)))


class Regressor(NoiseOptions, BaseRegressor, ABC):
    """Regressors whose noise has a law that is an option."""

    def _task(self) -> NumberTask:
        return NumberTask(law=self.likelihood, noise=self.noise)


class Density(DensityMixin, Estimator, ABC):  # type: ignore[misc]
    """What all estimators of a density share: the columns of the table are the target, and nothing predicts them.

    Networks get rows without columns, (N, 0).
    """

    @abstractmethod
    def score_samples(self, X: Any, return_error: bool = False) -> Any:
        """Return the log density of every row in nats, in the units of the table; shape (N,).

        Parameters
        ----------
        X : array or data frame of numbers, shape (N, T)
            Rows.
        return_error : bool
            Return the Monte Carlo error of each too, shape (N,).
        """

    @abstractmethod
    def sample(self, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw rows, shape (n_samples, T); each comes from a network of its own."""

    def fit(self, X: Any, y: None = None, sample_weight: Any = None) -> Self:
        """Fit the posterior to a table of numbers.

        Parameters
        ----------
        X : array or data frame of numbers, shape (N, T)
            Rows.
        y : None
            Not used; scikit-learn passes it.
        sample_weight : array, shape (N,), optional
            How often each row counts.

        Returns
        -------
        self

        Raises
        ------
        DataError
            For a table or option that cannot be used; the message says what to do.
        """
        _check_numbers(X)
        return self._fit(partial(self._prepare, X, X, sample_weight))

    def score(self, X: Any, y: None = None) -> float:
        """Return the mean log density of the rows, in nats."""
        return float(np.mean(self.score_samples(X)))


def _check_numbers(X: Any) -> None:
    """Refuse a frame with columns that have no density; arrays are checked as scikit-learn does."""
    frame = eager(X, "X")
    if not isinstance(frame, nw.DataFrame):
        return
    for column in frame.iter_columns():
        name = column.name
        if not column.dtype.is_numeric():
            raise DataError(
                f"column {name!r} holds {column.dtype}; a density is of numbers: encode the column, or drop it"
            )
        values = column.cast(nw.Float64()).to_numpy()
        gaps = int((~np.isfinite(np.asarray(values, dtype=np.float64))).sum())
        if gaps:
            raise DataError(
                f"column {name!r} has {gaps} missing or infinite values; a density needs all of them: drop these rows, "
                "or the column"
            )


class PredictedDensity(NoiseOptions, Density, PredictiveEstimator, ABC):
    """A density that is the predictive distribution of a row without columns."""

    def _task(self) -> NumberTask:
        return NumberTask(density=True, law=self.likelihood, noise=self.noise)

    def score_samples(self, X: Any, return_error: bool = False) -> Any:
        """Return the log density of every row in nats, and if asked its Monte Carlo error; shape (N,) each."""
        starts = itertools.count(0, PREDICTED_AT_ONCE)
        parts = (
            (p, take(X, slice(start, start + PREDICTED_AT_ONCE)))
            for p, start in zip(self._predictives(X), starts, strict=False)
        )
        each = [
            cast(ContinuousPredictive, p).log_prob_and_error(read_target(rows).reshape(len(p), -1)) for p, rows in parts
        ]
        log_p, errors = (np.concatenate([pair[i].numpy() for pair in each]) for i in range(2))
        return (log_p, errors) if return_error else log_p

    def sample(self, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw rows, shape (n_samples, T); each comes from a network of its own."""
        require_fitted(self)
        columns = len(cast(TargetScale, self.target_).mean)
        row = cast(ContinuousPredictive, self.predict_dist(np.zeros((1, columns))))
        count = checks.whole("n_samples", n_samples)
        return np.asarray(row.sample(count, as_generator(random_state)))[:, 0]
