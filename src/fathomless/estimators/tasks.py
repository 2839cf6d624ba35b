"""What all classifiers share, and what all regressors share, whatever their family."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import narwhals as nw
import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.exceptions import DataConversionWarning

from fathomless.data.rows import Rows
from fathomless.data.targets import ClassLabels, TargetScale, fit_labels, fit_target
from fathomless.estimators import saving as options
from fathomless.estimators.base import Array, Estimator
from fathomless.estimators.options import NoiseOptions
from fathomless.inference.batched import fit_many
from fathomless.posterior.likelihoods import Categorical, Gaussian, Laplace, Likelihood, StudentT
from fathomless.posterior.predictive import ClassPredictive, ContinuousPredictive
from fathomless.system.errors import DataError, DivergenceError
from fathomless.system.rng import as_generator, derive

__all__ = ["Classifier", "Regressor", "fit_together"]


def fit_together(estimators: Sequence[Estimator], tables: Sequence[tuple[Any, Any]]) -> None:
    """Fit estimators with equal options to tables with equally many rows, side by side.

    Each becomes what ``estimator.fit(X, y)`` makes of it, up to rounding; seeds may differ.

    Parameters
    ----------
    estimators : sequence of Estimator
        Of one class. Their callbacks and checkpoints are not used.
    tables : sequence of (X, y)
        One for each.

    Raises
    ------
    DataError
        For options or tables that differ too much; see :func:`~fathomless.inference.batched.fit_many`.
    DivergenceError
        If any of the trainings failed; then none of the estimators is fitted.
    """
    if len(estimators) != len(tables):
        raise DataError(f"{len(estimators)} estimators and {len(tables)} tables were given; one for each is needed")
    jobs = [estimator._prepare(X, y, None) for estimator, (X, y) in zip(estimators, tables, strict=True)]
    train = [job.train for job in jobs if isinstance(job.train, Rows)]
    runs = fit_many(
        [job.model for job in jobs],
        [job.likelihood for job in jobs],
        train,
        [job.valid for job in jobs if job.valid is not None],
        training=[e._training(rows.count, len(rows)) for e, rows in zip(estimators, train, strict=True)],
        seeds=[derive(job.seed, "training") for job in jobs],
    )
    failed = [member.error for member in runs.members if member.error]
    if failed:
        raise DivergenceError(f"{len(failed)} of {len(jobs)} trainings failed; the first: {failed[0]}")
    for estimator, job, member in zip(estimators, jobs, runs.members, strict=True):
        estimator._adopt(job, member)


class Classifier(ClassifierMixin, Estimator):  # type: ignore[misc]
    """What all classifiers share."""

    @property
    def classes_(self) -> Array:
        """Labels, ascending; shape (K,)."""
        labels = cast(ClassLabels, self.target_)
        return labels.decode(np.arange(len(labels.labels)))

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
        draws = cast(ClassPredictive, self.predict_dist(X)).sample(options.whole("n_samples", n_samples), noise)
        return np.asarray(draws).T

    def _likelihood(self, target: ClassLabels | TargetScale) -> Likelihood:
        return Categorical(len(cast(ClassLabels, target).labels))

    def _fit_target(self, y: Any, weight: Array | None) -> ClassLabels:
        return fit_labels(y)

    def _shaped(self, y: Any) -> Any:
        native = nw.from_native(y, eager_only=True, pass_through=True)
        if isinstance(native, nw.DataFrame | np.ndarray) and len(native.shape) == 2 and native.shape[1] == 1:
            warnings.warn(
                "A column-vector y was passed when a 1d array was expected; give it the shape (rows,) with y.ravel()",
                DataConversionWarning,
                stacklevel=5,
            )
            return native[:, 0].to_native() if isinstance(native, nw.DataFrame) else native[:, 0]
        return y

    def _units(self) -> dict[str, Any]:
        return {"labels": self.classes_}

    @classmethod
    def _target_type(cls) -> type[ClassLabels]:
        return ClassLabels


class Regressor(NoiseOptions, RegressorMixin, Estimator):  # type: ignore[misc]
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
        draws = cast(ContinuousPredictive, self.predict_dist(X)).sample(options.whole("n_samples", n_samples), noise)
        return np.moveaxis(np.asarray(draws), 0, -1)

    def _likelihood(self, target: ClassLabels | TargetScale) -> Likelihood:
        kinds: dict[str, Callable[..., Likelihood]] = {"gaussian": Gaussian, "student_t": StudentT, "laplace": Laplace}
        if self.likelihood not in kinds:
            raise DataError(f"likelihood={self.likelihood!r} was given; allowed are {', '.join(map(repr, kinds))}")
        return kinds[self.likelihood](len(cast(TargetScale, target).mean), noise=self.noise)

    def _fit_target(self, y: Any, weight: Array | None) -> TargetScale:
        return fit_target(y, weight)

    def _shaped(self, y: Any) -> Any:
        return y

    def _units(self) -> dict[str, Any]:
        target = cast(TargetScale, self.target_)
        return {"shift": target.mean, "scale": target.scale, "squeeze": target.ndim == 1}

    @classmethod
    def _target_type(cls) -> type[TargetScale]:
        return TargetScale
