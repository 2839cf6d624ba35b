"""Base classes of classifiers, regressors and density estimators of all families."""

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

from fathomless.data.cells import to_narwhals
from fathomless.data.frames import as_numbers, read_target, take
from fathomless.data.schema import rows_of
from fathomless.data.streams import Source
from fathomless.data.targets import ClassLabels, Indicators, TargetScale
from fathomless.estimators.base import Estimator, PredictiveEstimator, require_fitted
from fathomless.estimators.encoding import ClassTask, NumberTask, by_class, labels_of
from fathomless.estimators.options import ClassOptions, NoiseOptions
from fathomless.estimators.predictor import PREDICTED_AT_ONCE, Array
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.system import checks
from fathomless.system.errors import DataError
from fathomless.system.masked import unmask
from fathomless.system.rng import as_generator

if TYPE_CHECKING:
    from fathomless.estimators.botorch import NetworkModel
    from fathomless.estimators.exporting import Exported

__all__ = ["BaseRegressor", "Classifier", "Density", "PredictedDensity", "Regressor", "Supervised"]


class Supervised(PredictiveEstimator, ABC):
    """Base class of classifiers and regressors."""

    def fit_stream(self, source: Source) -> Self:
        """Fit the posterior to data larger than memory, read in chunks.

        The data are read once to fit the encodings, once for the held-out rows (at most 20,000), and once in each
        epoch. Options have the same meaning as in :meth:`fit`, and the result is the same except for the order of the
        rows in training; see :class:`~fathomless.data.rows.Stream`. The held-out rows are not stratified by class.

        Parameters
        ----------
        source : Source
            Data from :func:`fathomless.data.streams.arrays` or :func:`fathomless.data.streams.parquet`.

        Returns
        -------
        self

        Raises
        ------
        DataError, DivergenceError
            As in :meth:`fit`.
        FileError
            If a file cannot be read.
        """
        return self._fit(partial(self._prepare_stream, source))

    def to_module(self, levels: Sequence[float] = (0.05, 0.5, 0.95), *, output: str | None = None) -> nn.Module:
        """Return the fitted estimator as a plain PyTorch module that does not depend on this library.

        The module contains the encoding of the table and fixed draws of the networks, those of the estimator's own
        predictions; its outputs equal the predictions up to rounding. It maps float64 numbers (N, C), computed from a
        table by :meth:`to_numbers`, to a dict: ``mean`` and ``variance`` (N,) or (N, T), ``quantiles`` (N, L) or (N, T,
        L); or ``probabilities`` (N, K). Quantiles of a target on a lattice are those before rounding. The outputs are
        NaN for rows that the estimator refuses (missing values and unknown categories, unless options allow them).
        The module keeps its precision: do not convert it with ``.float()`` or ``.double()``.

        Parameters
        ----------
        levels : sequence of L floats
            Levels of the quantiles, between 0 and 1.
        output : {"mean", "std", "probabilities", "entropy"}, optional
            Single output of a module that returns one tensor with two axes, as gradient explainers need: the mean or
            the standard deviation of T targets, (N, T); or the probabilities of K classes, (N, K), or their entropy in
            nats, (N, 1). For multilabel targets, both have the shape (N, T). By default the module returns a dict.

        Raises
        ------
        DataError
            If a level is out of range, the output does not exist for the task, or the steps of the network depend on
            the values of the rows.
        """
        require_fitted(self)
        from fathomless.estimators import exporting

        return exporting.build_module(self, levels, output)

    def to_botorch(self) -> "NetworkModel":
        """Return a fitted regressor as a model of BoTorch, for Bayesian optimisation.

        Its posterior is the weighted set of the networks of the estimator's own predictions, in units of the columns
        and of the targets. See :mod:`fathomless.estimators.botorch`. Requires the extra ``botorch``.

        Returns
        -------
        NetworkModel
            A ``botorch.models.model.Model``, which does not change if the estimator is fitted again.

        Raises
        ------
        DataError
            If BoTorch is not installed, and for classifiers, columns that are not numbers, a target with frequent
            values that are predicted apart, and fits with ``neighbors=True`` or ``trees=True``.
        """
        require_fitted(self)
        from fathomless.estimators import botorch

        return botorch.build_model(self)

    def ood_p_values(self, X: Any) -> Array:
        """Return the p-value of each row, (N,), for the hypothesis that it is from the distribution of training rows.

        It is the share of training rows that are at least as far from other training rows in the encoded table
        (:mod:`fathomless.posterior.out_of_distribution`). Among rows of the distribution of the training rows, at most
        about 5 % have a p-value up to 0.05. Predictions of rows with small p-values are extrapolations.

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Rows.

        Raises
        ------
        DataError
            If rows do not match the training table, or if the fit was of fewer than 50 rows, of a stream, or of inputs
            that are no table.

        Examples
        --------
        >>> from fathomless import UnboundedDepthRegressor
        >>> X = np.random.default_rng(0).standard_normal((60, 2))
        >>> model = UnboundedDepthRegressor(depth_law=1, width=8, epochs=20, random_state=0).fit(X, X[:, 0])
        >>> model.ood_p_values([[0.1, 0.2], [9.0, 9.0]]) < 0.05
        array([False,  True])
        """
        return self.predictor_.ood_p_values(self._table(X, reset=False))

    def to_numbers(self, X: Any) -> Array:
        """Convert a table to the numeric input of an exported module, shape (N, C), with NaN for missing values.

        Booleans become 0 and 1, dates days since 1970-01-01, and categories their index among the known categories, or
        -1.
        """
        require_fitted(self)
        return as_numbers(self.schema_, self._table(X, reset=False))

    def export(
        self, path: str | PathLike[str], levels: Sequence[float] = (0.05, 0.5, 0.95), **about: Any
    ) -> "Exported":
        """Export the module of :meth:`to_module` to a file, and compare its outputs with the estimator.

        Parameters
        ----------
        path : path
            File name: ``.onnx`` for ONNX Runtime (requires the extra ``export``), ``.pt2`` for
            :func:`torch.export.load`. Both formats accept any number of rows. They contain metadata as JSON under
            ``fathomless`` (ONNX) or ``metadata.json``: columns and their input format, outputs, levels, classes, the
            posterior over structure, and scores.
        levels : sequence of float
            Levels of the quantiles.
        about
            Additional metadata, as plain JSON: names of targets, units.

        Returns
        -------
        Exported
            Path and size of the file, and the largest difference to the estimator.

        Raises
        ------
        DataError
            As in :meth:`to_module`, and if a package is missing or the outputs differ from the estimator.
        FileError
            If the file cannot be written.
        """
        require_fitted(self)
        from fathomless.estimators import exporting

        return exporting.export(self, path, levels, about)


class Classifier(ClassOptions, ClassifierMixin, Supervised, ABC):  # type: ignore[misc]
    """Base class of all classifiers.

    Attributes
    ----------
    classes_ : ndarray, shape (K,)
        Class labels, ascending; for multilabel targets the columns 0, ..., T − 1.
    """

    several_labels: ClassVar[bool] = True  # True if multilabel targets are allowed, in columns of 0 and 1

    @property
    def classes_(self) -> Array:
        """Class labels, ascending, shape (K,); for multilabel targets the columns 0, ..., T − 1."""
        return labels_of(self.target_)

    def _task(self) -> ClassTask:
        return ClassTask(
            class_weight=self.class_weight,
            class_cost=self.class_cost,
            several_labels=self.several_labels,
            ordinal=self.ordinal,
            trees=self.trees,
        )

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None) -> Self:
        """Fit the posterior to a table.

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Features: numbers in an array; or numbers, booleans, categories and dates in a pandas, polars or pyarrow
            frame, with missing values allowed.
        y : array or series, shape (N,) or (N, T)
            Class labels of any type; several columns of 0 and 1 for multilabel targets.
        sample_weight : array, shape (N,), optional
            Sample weights; a row of weight k is equivalent to k equal rows.
        groups : array, shape (N,), optional
            Group of each row, for example a patient; the rows of a group stay together in every fold and split. Without
            groups, the rules of :mod:`fathomless.data.duplicates` determine if equal rows stay together.

        Returns
        -------
        self

        Raises
        ------
        DataError
            If a table, target or option is invalid; the message contains a remedy.
        DivergenceError
            If a value in training was not finite.
        """
        return self._fit(partial(self._prepare, X, y, sample_weight, groups))

    def predict_proba(self, X: Any) -> Array:
        """Return class probabilities, shape (N, K), columns in the order of ``classes_``.

        For multilabel targets, return the probability of each label, shape (N, T).
        """
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithm of :meth:`predict_proba`."""
        return np.concatenate([cast(ClassPredictive, p).log_probs.numpy() for p in self._predictives(X)])

    def predict(self, X: Any) -> Array:
        """Return the most probable class of every row, shape (N,); with `class_cost`, that of least expected cost.

        For multilabel targets, return 1 for labels of probability above one half, and else 0, shape (N, T).
        """
        require_fitted(self)
        if isinstance(self.target_, Indicators):
            return self.target_.decode(self.predict_log_proba(X) > -math.log(2.0))
        log_cost = np.log(self._costs())
        codes = [(cast(ClassPredictive, p).log_probs.numpy() + log_cost).argmax(1) for p in self._predictives(X)]
        return cast(ClassLabels, self.target_).decode(np.concatenate(codes))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy of :meth:`predict`, as in scikit-learn, for labels without missing values."""
        return float(super().score(X, _unmask("y", y), _unmask("sample_weight", sample_weight)))

    def _costs(self) -> Array:
        """Return the cost of every class, (K,)."""
        require_fitted(self)
        return by_class("class_cost", self.class_cost, cast(ClassLabels, self.target_))

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw labels from the predictive distribution, shape (N, n_samples), or (N, T, n_samples) for multilabel.

        Each sample draws a network and applies it to all rows.
        """
        noise = as_generator(random_state)
        draws = self.predict_dist(X).sample(checks.whole("n_samples", n_samples), noise)
        return np.moveaxis(np.asarray(draws), 0, -1)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = self.several_labels
        return tags


def _unmask(name: str, values: Any) -> Any:
    """Return a masked array without masked values as a plain one, and anything else unchanged."""
    plain = unmask(values)
    mask = np.ma.getmaskarray(values) if plain is not values and isinstance(values, np.ma.MaskedArray) else None
    if mask is not None and mask.any():
        rows = np.array(mask.reshape(len(mask), -1).any(axis=1))
        raise DataError(f"Input {name} contains NaN. It is masked in {rows_of(rows)}; drop these rows")
    return plain


class BaseRegressor(RegressorMixin, Supervised, ABC):  # type: ignore[misc]
    """Base class of all regressors."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None, groups: Any = None, censored: Any = None) -> Self:
        """Fit the posterior to a table.

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Features: numbers in an array; or numbers, booleans, categories and dates in a pandas, polars or pyarrow
            frame, with missing values allowed.
        y : array or series, shape (N,) or (N, T)
            Numbers; or lower and upper bounds, (N, 2), with ``censored="interval"``.
        sample_weight : array, shape (N,), optional
            Sample weights; a row of weight k is equivalent to k equal rows.
        groups : array, shape (N,), optional
            Group of each row, for example a patient; the rows of a group stay together in every fold and split. Without
            groups, the rules of :mod:`fathomless.data.duplicates` determine if equal rows stay together.
        censored : array, shape (N,), or "interval", optional
            Kind of each row if some targets are only known to be above or below a value: "exact" (the target is y),
            "right" (it is above y, such as the survival time of a patient who is alive at y) or "left" (it is below y);
            or True for "right" and False for "exact". With "interval", y has two columns, and each target lies between
            them: equal bounds are a known target, and one of them may be infinite or missing. Only for one target; not
            with ``weights="hmc"``, posteriors of the heads, Laplace's approximation and chains. See Notes.

        Returns
        -------
        self

        Raises
        ------
        DataError
            If a table, target or option is invalid; the message contains a remedy.
        DivergenceError
            If a value in training was not finite.

        Notes
        -----
        The likelihood of a censored row is the probability between its bounds under the predictive distribution
        (:mod:`fathomless.posterior.censoring`), in training, in the choice of structure and noise, and in
        ``validation_score_``, which is a mean over log densities of known targets and log probabilities of the others.
        Predictions are distributions of the target without censoring: ``predict_dist(X).sf(t)`` is the survival
        function. This assumes that the bounds have no information about the target beyond the features, as for
        censoring at the end of a study. A censored target has no lattice; give grouped times as intervals.

        Both forms are those of other libraries: an indicator for each row beside y, as in the package survival of R
        and, with events instead of censoring, in lifelines; and two columns of bounds, as in ``type="interval2"`` of
        survival and the bounds of XGBoost. Functions of scikit-learn that split a table also split either form, as a
        parameter of the fit; they need a scorer for censored rows, since the error of a censored row is unknown.
        """
        prepare = partial(self._prepare, X, y, sample_weight, groups, censored)
        return self._fit(prepare, prepare_again=lambda again: prepare(again=again))

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Return the predictive mean, shape (N,) or (N, T), and optionally the standard deviation including noise."""
        mean, std = [], []
        for p in self._predictives(X):
            p = cast(ContinuousPredictive, p)
            mean.append(p.mean.numpy())
            if return_std:
                std.append(p.std.numpy())
        return (np.concatenate(mean), np.concatenate(std)) if return_std else np.concatenate(mean)

    def predict_interval(
        self, X: Any, level: float = 0.9, guarantee: str | None = None, column: str | None = None
    ) -> tuple[Array, Array]:
        r"""Return the bounds of a prediction interval of each row, shape (N,) or (N, T).

        Without a guarantee, it is the central interval of the predictive distribution, from the average of all
        networks. Its coverage depends on the model. For a target on a lattice, such as a count, the bounds are points
        of it, with a probability of at least `level`.

        With a guarantee, it is a conformal interval: CV+ (Barber, Candès, Ramdas and Tibshirani 2021) for cross-fitted
        networks, and split conformal prediction for the held-out rows of a single network. Scores are absolute errors
        of rows under the networks that were not trained on them, divided by their predictive standard deviations. They
        are stored with the estimator, with the categories of these rows in all categorical and boolean columns.

        **What is guaranteed.** If the rows of the fit and a new row are exchangeable (for example, independent draws of
        one population), then the probability that the interval contains the target of the new row is at least
        :math:`1 - 2\alpha - \sqrt{2 / N}` for CV+, with N rows and :math:`\alpha` = 1 − `level`. Usually it is close to
        `level`. With several partitions into folds the scores of all partitions are pooled, and :math:`2\alpha` becomes
        :math:`4\alpha`. For the held-out rows of a single network the probability is at least `level`. It refers to
        the rows of the fit and the new row together. With ``groups`` in the fit, groups are exchangeable instead of
        rows: each group has the same total weight, and the new row belongs to a new group.

        **What is not guaranteed.** The coverage for a given value of the features, or within other subsets of the rows;
        the coverage if the population changes (time series, another site); the joint coverage of several targets, since
        each has its own intervals; the coverage if sample weights are not numbers of equal rows. The networks of a fit
        share the encoding of the columns, the number of epochs, the posterior over structure and the noise. All rows
        have an influence on this choice, and for a single network the held-out rows. The bounds are exact if the choice
        is regarded as fixed.

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Rows.
        level : float
            Level, between 0 and 1.
        guarantee : {"marginal", "group"} or None
            No guarantee (None), on average over all rows ("marginal"), or on average over the rows of each category of
            a column ("group").
        column : str, optional
            Categorical or boolean column for ``guarantee="group"``.

        Returns
        -------
        low, high : ndarrays, shape (N,) or (N, T)
            Bounds in the units of the target. They are infinite, with a warning, if a guarantee needs more rows: at
            least `level` / (1 − `level`), in each category for "group".

        Raises
        ------
        DataError
            If an option is not allowed, if the column is not one of categories or booleans, or if a guarantee is
            requested and the estimator has no scores: it was saved by an earlier version, or fitted without out-of-fold
            and held-out rows or to censored targets, or its posterior was fitted to all rows (``weights="hmc"``).
        """
        if guarantee is not None or column is not None:
            return self.predictor_.predict_interval(self._table(X, reset=False), level, guarantee, column)
        bounds = [cast(ContinuousPredictive, p).interval(level) for p in self._predictives(X)]
        low, high = zip(*bounds, strict=True)
        return np.concatenate([b.numpy() for b in low]), np.concatenate([b.numpy() for b in high])

    def sample_y(self, X: Any, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw targets from the predictive distribution, shape (N, n_samples) or (N, T, n_samples).

        Each sample draws a network and applies it to all rows.
        """
        noise = as_generator(random_state)
        draws = cast(ContinuousPredictive, self.predict_dist(X)).sample(checks.whole("n_samples", n_samples), noise)
        return np.moveaxis(np.asarray(draws), 0, -1)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the coefficient of determination of :meth:`predict`, as in scikit-learn, for targets without NaN."""
        return float(super().score(X, _unmask("y", y), _unmask("sample_weight", sample_weight)))


class Regressor(NoiseOptions, BaseRegressor, ABC):
    """Base class of regressors with a choice of the noise distribution."""

    def _task(self) -> NumberTask:
        calibrate = bool(self._current_options().get("calibrate", True))
        recalibrate = self.recalibrate and calibrate
        return NumberTask(
            law=self.likelihood,
            noise=self.noise,
            recalibrate=recalibrate,
            neighbors=self.neighbors,
            trees=self.trees,
        )


class Density(DensityMixin, Estimator, ABC):  # type: ignore[misc]
    """Base class of density estimators: the columns of the table are the target, and there are no features.

    The inputs of the networks have no columns, (N, 0).
    """

    @abstractmethod
    def score_samples(self, X: Any, return_error: bool = False) -> Any:
        """Return the log density of every row in nats, in the units of the table; shape (N,).

        Parameters
        ----------
        X : array or data frame of numbers, shape (N, T)
            Rows.
        return_error : bool
            True to return also the Monte Carlo error of each log density, shape (N,).
        """

    @abstractmethod
    def sample(self, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw rows, shape (n_samples, T), each from an independently drawn network."""

    def fit(self, X: Any, y: None = None, sample_weight: Any = None) -> Self:
        """Fit the posterior to a table of numbers.

        Parameters
        ----------
        X : array or data frame of numbers, shape (N, T)
            Rows.
        y : None
            Ignored, for compatibility with scikit-learn.
        sample_weight : array, shape (N,), optional
            Sample weights; a row of weight k is equivalent to k equal rows.

        Returns
        -------
        self

        Raises
        ------
        DataError
            If a table or option is invalid; the message contains a remedy.
        """
        _check_numbers(X)
        return self._fit(partial(self._prepare, X, X, sample_weight))

    def score(self, X: Any, y: None = None) -> float:
        """Return the mean log density, in nats per row."""
        return float(np.mean(self.score_samples(X)))


def _check_numbers(X: Any) -> None:
    """Check that all columns of a frame are numeric and finite; arrays are checked by scikit-learn."""
    frame = to_narwhals(X, "X")
    if not isinstance(frame, nw.DataFrame):
        return
    for column in frame.iter_columns():
        name = column.name
        if not column.dtype.is_numeric():
            raise DataError(
                f"column {name!r} has the type {column.dtype}; densities need numbers: encode the column, or drop it"
            )
        values = column.cast(nw.Float64()).to_numpy()
        gaps = int((~np.isfinite(np.asarray(values, dtype=np.float64))).sum())
        if gaps:
            raise DataError(
                f"column {name!r} has {gaps} missing or infinite values; densities need finite numbers: drop these "
                "rows, or the column"
            )


class PredictedDensity(NoiseOptions, Density, PredictiveEstimator, ABC):
    """Base class of densities that are the predictive distribution of a row without features."""

    def _task(self) -> NumberTask:
        return NumberTask(
            density=True, law=self.likelihood, noise=self.noise, neighbors=self.neighbors, trees=self.trees
        )

    def score_samples(self, X: Any, return_error: bool = False) -> Any:
        """Return the log density of every row in nats, and optionally its Monte Carlo error; shape (N,) each."""
        starts = itertools.count(0, PREDICTED_AT_ONCE)
        parts = (
            (p, take(X, slice(start, start + PREDICTED_AT_ONCE)))
            for p, start in zip(self._predictives(X), starts, strict=False)
        )
        pairs = [
            cast(ContinuousPredictive, p).log_prob_and_error(read_target(rows).reshape(len(p), -1)) for p, rows in parts
        ]
        log_p, errors = (np.concatenate([pair[i].numpy() for pair in pairs]) for i in range(2))
        return (log_p, errors) if return_error else log_p

    def sample(self, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw rows, shape (n_samples, T), each from an independently drawn network."""
        require_fitted(self)
        columns = len(cast(TargetScale, self.target_).mean)
        row = cast(ContinuousPredictive, self.predict_dist(np.zeros((1, columns))))
        count = checks.whole("n_samples", n_samples)
        return np.asarray(row.sample(count, as_generator(random_state)))[:, 0]
