"""Simple models for comparison: a constant prediction, a linear model and gradient boosting.

All use the library's encoding of the table. The constant prediction is a Gaussian with the mean and standard deviation
of the training rows, or their class frequencies. The linear model is scikit-learn's Bayesian ridge, with its own
predictive density, or logistic regression. Boosting is scikit-learn's gradient boosting with histograms, with the
learning rate 0.05. The number of its iterations minimises the loss of rows to which it was not fitted: all rows by
five-fold cross-validation up to 1,000 training rows and 10 classes, and otherwise a held-out fifth. Groups of rows are
held out as a whole. It has no density for numeric targets: the residuals of these rows give the standard deviation of a
Gaussian. The model is then fitted to all rows. If the target has atoms, the models of numbers are fitted to the other
values, and those of classes predict the atoms.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import BayesianRidge, LogisticRegression

from fathomless.data.duplicates import find_duplicates
from fathomless.data.frames import encode, fit_schema, take
from fathomless.data.schema import Schema
from fathomless.data.targets import ClassLabels, TargetScale, fit_labels, fit_target
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.distributions import ContinuousPredictive, NumberPredictive
from fathomless.posterior.hurdle import HurdlePredictive
from fathomless.posterior.lattice import LatticePredictive
from fathomless.posterior.mixtures import Normal
from fathomless.posterior.predictive import concatenate
from fathomless.posterior.transformed import TransformedPredictive
from fathomless.system.rng import fold_in

__all__ = ["PEERS", "CrossFittedPeer", "Peer", "round_law"]

#: Names and descriptions of the simple models.
PEERS: Mapping[str, str] = {
    "constant": "mean and standard deviation of the target, or its class frequencies",
    "linear": "scikit-learn's Bayesian ridge, or logistic regression",
    "boosting": "scikit-learn's gradient boosting with histograms, stopped by held-out rows",
}
_PARTS = 5  # parts of the training rows, of which one at a time is held out from boosting
_CROSS_VALIDATED = 1_000  # largest number of rows of which every part is held out
_MANY_CLASSES = 10  # above which one part is held out from smaller tables, too
_RATE = 0.05  # learning rate of boosting
_FIRST, _MOST = 64, 512  # iterations at first; twice as many while the loss is smallest near the end
_NEAR_END = 0.8
_LEAST = 1e-9  # minimum probability of a class, so that log densities are finite
Array = npt.NDArray[Any]


class Peer:
    """Simple model with the part of an estimator's interface that an evaluation needs.

    Parameters
    ----------
    name : str
        One of :data:`PEERS`.
    task : {"classification", "regression"}
        Task.
    seed : int
        Seed of the held-out rows and of boosting.
    on_lattice : bool
        True to predict distributions on the lattice of the target.
    groups : array, shape (N,), optional
        Group of each training row; boosting holds out whole groups.
    weight : array, shape (N,), optional
        Weight of each training row.
    like : Peer, optional
        Fitted model of the same kind, whose number of iterations and width of the residuals are used.
    """

    target_: ClassLabels | TargetScale
    stopped_: tuple[int, float] | None = None  # iterations of boosting, and the mean loss of held-out rows
    _predict: Callable[[Array], tuple[Array, ...]]

    def __init__(
        self,
        name: str,
        task: str,
        seed: int,
        *,
        on_lattice: bool = False,
        groups: Array | None = None,
        weight: Array | None = None,
        like: "Peer | None" = None,
    ) -> None:
        self.groups, self.weight, self.like = groups, weight, like
        self.name = name
        self.task = task
        self.seed = seed
        self.on_lattice = on_lattice

    def fit(
        self, X: Any, y: Any, schema: Schema | None = None, target: ClassLabels | TargetScale | None = None
    ) -> Self:
        """Fit the model to a table (N, C) and a target (N,); `schema` and `target` may be fitted to more rows."""
        self.schema_ = schema.plain if schema else fit_schema(X, missing="impute", unseen="ignore")
        x = self._encode(X)
        self.target_ = target or (fit_labels(y) if self.task == "classification" else fit_target(y, hurdle=True))
        if isinstance(self.target_, TargetScale):
            self.target_ = self.target_.without_transform(y)
        z = self.target_.encode(y)
        self._rows = np.arange(len(x))  # rows of the table to which the next model is fitted
        if isinstance(self.target_, ClassLabels):
            self._predict = self._fit_classes(x, z)
            return self
        number = self.target_.number_atoms(cast(Array, z))
        others = np.flatnonzero(number == 0)
        others = others if len(others) else np.arange(len(number))
        self._rows = others
        self._predict = self._fit_numbers(take(x, others), z[others].reshape(-1))
        if self.target_.hurdle:
            numbers = fit_labels(np.repeat(np.arange(len(self.target_.hurdle) + 1), 2))
            like = None if self.like is None else getattr(self.like, "_atoms", None)
            atoms = type(self)(
                self.name, "classification", self.seed, groups=self.groups, weight=self.weight, like=like
            )
            self._atoms = atoms.fit(X, number, self.schema_, numbers)
        return self

    def predict_dist(self, X: Any) -> ClassPredictive | NumberPredictive:
        """Return the predictive distribution of rows."""
        x = self._encode(X)
        parts = self._predict(x)
        log_weight = torch.zeros(1, dtype=torch.float64)  # a mixture of one component
        if isinstance(self.target_, ClassLabels):
            log_p = torch.as_tensor(np.log(parts[0]), dtype=torch.float64)[None]
            return ClassPredictive(log_weight, log_weight.long(), log_p, np.asarray(self.target_.labels))
        scale, shift = self.target_.scale[0], self.target_.mean[0]
        loc, width = (torch.as_tensor(part, dtype=torch.float64)[None, :, None] for part in parts)
        component = Normal(shift + scale * loc, scale * width)
        law: NumberPredictive = ContinuousPredictive(log_weight, log_weight.long(), component, squeeze=True)
        if self.on_lattice:
            law = round_law(law, self.target_)
        if self.target_.hurdle:
            law = HurdlePredictive.of(
                law, self.target_.hurdle, cast(ClassPredictive, self._atoms.predict_dist(X)).log_probs.T
            )
        return law

    def _encode(self, X: Any) -> Any:
        """Return the rows as the models need them: encoded by the schema."""
        return encode(self.schema_, X)

    def _row_weights(self) -> Array | None:
        """Return the weights of the rows to which the next model is fitted."""
        return None if self.weight is None else self.weight[self._rows]

    def _fit_classes(self, x: Array, z: Array) -> Callable[[Array], tuple[Array]]:
        """Return the function that predicts class probabilities."""
        classes = len(cast(ClassLabels, self.target_).labels)
        weight = self._row_weights()
        total = len(z) if weight is None else weight.sum()
        frequency = np.clip(np.bincount(z, weight, minlength=classes) / total, _LEAST, None)
        frequency /= frequency.sum()
        # Boosting and logistic regression need at least two classes.
        if self.name == "constant" or len(np.unique(z)) < 2:
            return lambda rows: (np.tile(frequency, (len(rows), 1)),)
        if self.name == "linear":
            model = LogisticRegression(max_iter=2000).fit(x, z, sample_weight=weight)
        else:
            model = self._boost(x, z)[0]

        def predict(rows: Array) -> tuple[Array]:
            p = np.full((len(rows), classes), _LEAST)
            p[:, model.classes_] = np.clip(model.predict_proba(rows), _LEAST, None)
            return (p / p.sum(1, keepdims=True),)

        return predict

    def _fit_numbers(self, x: Array, z: Array) -> Callable[[Array], tuple[Array, Array]]:
        """Return the function that predicts means and standard deviations."""
        weight = self._row_weights()
        if self.name == "constant":
            centre = np.average(z, weights=weight)
            width = max(float(np.sqrt(np.average((z - centre) ** 2, weights=weight))), _LEAST)
            return lambda rows: (np.full(len(rows), centre), np.full(len(rows), width))
        if self.name == "linear":
            ridge = BayesianRidge().fit(x, z, sample_weight=weight)

            def predict(rows: Array) -> tuple[Array, Array]:
                mean, std = ridge.predict(rows, return_std=True)
                return mean, np.maximum(std, _LEAST)

            return predict
        boosting, loss = self._boost(x, z)
        width = max(float(np.sqrt(loss)), _LEAST)
        return lambda rows: (boosting.predict(rows), np.full(len(rows), width))

    def _boost(self, x: Array, z: Array) -> tuple[Any, float]:
        """Fit boosting with the number of iterations that predicts held-out rows best; return it and their mean loss.

        The loss is the negative log-likelihood of classes, or the squared error.
        """
        kind = HistGradientBoostingRegressor if self.task == "regression" else HistGradientBoostingClassifier
        options = {
            "learning_rate": _RATE,
            "random_state": fold_in(self.seed, "boosting") % 2**32,
            "early_stopping": False,
        }
        known = None if self.like is None else self.like.stopped_  # None for a model of one class, too
        iterations, loss = self.stopped_ = known or self._stop(kind, options, x, z)
        return kind(max_iter=iterations, **options).fit(x, z, sample_weight=self._row_weights()), loss

    def _stop(self, kind: Any, options: Mapping[str, Any], x: Array, z: Array) -> tuple[int, float]:
        """Return the number of iterations with the smallest loss of held-out rows, and this loss, a mean over rows."""
        splits = self._split_rows(x, z)
        weight = self._row_weights()
        weights = np.ones(len(z)) if weight is None else weight
        if self.task == "classification":  # boosting requires two classes
            splits = [(held, rest) for held, rest in splits if len(np.unique(z[rest])) > 1]
        if not splits:
            return _FIRST, 0.0
        models = [kind(warm_start=True, **options) for _ in splits]
        count = _FIRST
        while True:
            total = np.zeros(count)
            for model, (held, rest) in zip(models, splits, strict=True):
                model.set_params(max_iter=count)
                model.fit(take(x, rest), z[rest], sample_weight=None if weight is None else weight[rest])
                total += _sum_losses(model, take(x, held), z[held], weights[held])
            best = int(total.argmin()) + 1
            if best < _NEAR_END * count or count >= _MOST:
                return best, float(total[best - 1]) / sum(float(weights[held].sum()) for held, _ in splits)
            count = min(2 * count, _MOST)

    def _split_rows(self, x: Array, z: Array) -> list[tuple[Array, Array]]:
        """Return splits into held-out rows and the others; rows of a group, or copies, are on the same side."""
        unit = np.arange(len(x))
        if self.groups is not None:
            unit = np.unique(self.groups[self._rows], return_inverse=True)[1].ravel()
        else:
            duplicates = find_duplicates(x, z, None, self.schema_)
            if duplicates.rows > 0 and not duplicates.observations:
                unit = duplicates.unit
        units = int(unit.max()) + 1
        parts = min(_PARTS, units)
        part = np.random.default_rng(fold_in(self.seed, "held out")).permutation(units) % parts
        many = len(x) > _CROSS_VALIDATED or (self.task == "classification" and len(np.unique(z)) > _MANY_CLASSES)
        splits = [
            (np.flatnonzero(part[unit] == k), np.flatnonzero(part[unit] != k)) for k in range(1 if many else parts)
        ]
        return [(held, rest if len(rest) else held) for held, rest in splits]


def _sum_losses(model: Any, x: Array, z: Array, weight: Array) -> Array:
    """Return the loss after each iteration of boosting, summed over rows with their weights."""
    if isinstance(model, HistGradientBoostingRegressor):
        return np.array([(weight * (z - mean) ** 2).sum() for mean in model.staged_predict(x)])
    known = np.isin(z, model.classes_)
    column = np.searchsorted(model.classes_, z[known])
    losses = []
    for p in model.staged_predict_proba(x):
        likelihood = np.full(len(z), _LEAST)
        likelihood[known] = np.clip(p[known, column], _LEAST, None)
        losses.append(-(weight * np.log(likelihood)).sum())
    return np.array(losses)


class CrossFittedPeer:
    """Simple models that were cross-fitted; every row is predicted by the model fitted without its fold.

    Parameters
    ----------
    peers : sequence of Peer
        Fitted models of the same target, one for each fold.
    """

    def __init__(self, peers: Sequence[Peer]) -> None:
        self.peers, self.target_ = peers, peers[0].target_

    def predict_dist(self, X: Any, *, fold: Any) -> ClassPredictive | NumberPredictive:
        """Return the predictive distribution of rows of the folds ``fold[0]``."""
        which = np.asarray(fold)[0]
        parts = [self.peers[k].predict_dist(take(X, np.flatnonzero(which == k))) for k in np.unique(which)]
        back = np.argsort(np.argsort(which, kind="stable"), kind="stable")
        whole = concatenate(parts)
        if isinstance(whole, ClassPredictive):
            return replace(whole, log_p=whole.log_p[:, back])
        return cast(NumberPredictive, whole).take(back)


def round_law(p: NumberPredictive, target: TargetScale) -> NumberPredictive:
    """Return a prediction rounded to the lattice of its target; the prediction itself if it has probabilities.

    Parameters
    ----------
    p : NumberPredictive
        Prediction of one target.
    target : TargetScale
        Target with a lattice.
    """
    if isinstance(p, HurdlePredictive):
        return replace(p, base=round_law(p.base, target))
    (lattice,) = target.lattice
    if not isinstance(p, ContinuousPredictive | TransformedPredictive):
        return p
    return LatticePredictive.of(p, lattice.step, lattice.offset)
