"""What families are compared with: a constant, a linear model and boosting, on the library's own encoding of the table.

The constant is a normal law with the mean and standard deviation of the training rows, or the frequencies of its
classes. The linear model is scikit-learn's Bayesian ridge, whose density is its own, or logistic regression. Boosting
is scikit-learn's with histograms. It gives no density of numbers: a fifth of the training rows is held out, their
residuals give the standard deviation of a normal law, and the model is fitted again to all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import BayesianRidge, LogisticRegression

from fathomless.data.duplicates import repeats
from fathomless.data.frames import encode, fit_schema, take
from fathomless.data.schema import Schema
from fathomless.data.targets import ClassLabels, TargetScale, fit_labels, fit_target
from fathomless.posterior.distributions import ClassPredictive, ContinuousPredictive
from fathomless.posterior.mixtures import Normal
from fathomless.posterior.predictive import concatenate
from fathomless.system.rng import fold_in

__all__ = ["PEERS", "Folded", "Peer"]

#: Peers by name, with what they are.
PEERS: Mapping[str, str] = {
    "constant": "the mean and spread of the target, or the frequencies of its classes",
    "linear": "scikit-learn's Bayesian ridge, or logistic regression",
    "boosting": "scikit-learn's gradient boosting with histograms",
}
_HELD = 0.2  # of the training rows, for residuals
_LEAST = 1e-9  # probability of a class, which a peer may say is 0
Array = npt.NDArray[Any]


class Peer:
    """One of :data:`PEERS`, with as much of an estimator's interface as an evaluation needs.

    Parameters
    ----------
    name : str
        One of :data:`PEERS`.
    task : {"classification", "regression"}
        What is predicted.
    seed : int
        Of the rows that are held out, and of boosting.
    """

    target_: ClassLabels | TargetScale

    def __init__(self, name: str, task: str, seed: int) -> None:
        self.name, self.task, self.seed = name, task, seed

    def fit(
        self, X: Any, y: Any, schema: Schema | None = None, target: ClassLabels | TargetScale | None = None
    ) -> Self:
        """Fit it to a table (N, C) and a target (N,), of which columns and classes may be known from more rows."""
        self.schema_ = schema or fit_schema(X, missing="impute", unseen="ignore")
        x = encode(self.schema_, X)
        self.target_ = target or (fit_labels(y) if self.task == "classification" else fit_target(y))
        z = self.target_.encode(y)
        self._say = self._classes(x, z) if self.task == "classification" else self._numbers(x, z.reshape(-1))
        return self

    def predict_dist(self, X: Any) -> ClassPredictive | ContinuousPredictive:
        """Return the predictive distribution of rows."""
        said, one = self._say(encode(self.schema_, X)), torch.zeros(1, dtype=torch.float64)
        if isinstance(self.target_, ClassLabels):
            log_p = torch.as_tensor(np.log(said[0]), dtype=torch.float64)[None]
            return ClassPredictive(one, one.long(), log_p, np.asarray(self.target_.labels))
        scale, shift = self.target_.scale[0], self.target_.mean[0]
        loc, width = (torch.as_tensor(part, dtype=torch.float64)[None, :, None] for part in said)
        return ContinuousPredictive(one, one.long(), Normal(shift + scale * loc, scale * width), squeeze=True)

    def _classes(self, x: Array, z: Array) -> Callable[[Array], tuple[Array]]:
        labels = cast(ClassLabels, self.target_).labels
        frequency = np.clip(np.bincount(z, minlength=len(labels)) / len(z), _LEAST, None)
        frequency /= frequency.sum()
        if len(np.unique(z)) < 2:  # of which no model can be fitted
            return lambda rows: (np.tile(frequency, (len(rows), 1)),)
        if self.name == "constant":
            return lambda rows: (np.tile(frequency, (len(rows), 1)),)
        model = (
            LogisticRegression(max_iter=2000)
            if self.name == "linear"
            else HistGradientBoostingClassifier(random_state=fold_in(self.seed, "boosting") % 2**32)
        ).fit(x, z)

        def say(rows: Array) -> tuple[Array]:
            p = np.full((len(rows), len(labels)), _LEAST)
            p[:, model.classes_] = np.clip(model.predict_proba(rows), _LEAST, None)
            return (p / p.sum(1, keepdims=True),)

        return say

    def _numbers(self, x: Array, z: Array) -> Callable[[Array], tuple[Array, Array]]:
        if self.name == "constant":
            return lambda rows: (np.full(len(rows), z.mean()), np.full(len(rows), max(z.std(), _LEAST)))
        if self.name == "linear":
            ridge = BayesianRidge().fit(x, z)

            def say(rows: Array) -> tuple[Array, Array]:
                mean, std = ridge.predict(rows, return_std=True)
                return mean, np.maximum(std, _LEAST)

            return say
        boosting = HistGradientBoostingRegressor(random_state=fold_in(self.seed, "boosting") % 2**32)
        found = repeats(x, z, None, self.schema_)
        copies = found.rows > 0 and not found.observations
        unit = found.unit if copies else np.arange(len(x))  # copies of a row stay together
        order = np.random.default_rng(fold_in(self.seed, "residuals")).permutation(int(unit.max()) + 1)
        units, others = np.split(order, [max(1, round(_HELD * len(order)))])
        held, rest = (units, others) if not copies else (np.flatnonzero(np.isin(unit, own)) for own in (units, others))
        left = z[held] - boosting.fit(take(x, rest), z[rest]).predict(take(x, held))
        width = max(float(np.sqrt(np.mean(left**2))), _LEAST)
        boosting.fit(x, z)
        return lambda rows: (boosting.predict(rows), np.full(len(rows), width))


class Folded:
    """Peers that were fitted to all folds of the rows but one each; every row is predicted by the one of its fold.

    Parameters
    ----------
    peers : sequence of Peer
        Fitted, of the same target.
    """

    def __init__(self, peers: Sequence[Peer]) -> None:
        self.peers, self.target_ = peers, peers[0].target_

    def predict_dist(self, X: Any, *, fold: Any) -> ClassPredictive | ContinuousPredictive:
        """Return the predictive distribution of rows of the folds ``fold[0]``."""
        which = np.asarray(fold)[0]
        parts = [self.peers[k].predict_dist(take(X, np.flatnonzero(which == k))) for k in np.unique(which)]
        back = np.argsort(np.argsort(which, kind="stable"), kind="stable")
        whole = concatenate(parts)
        if isinstance(whole, ClassPredictive):
            return replace(whole, log_p=whole.log_p[:, back])
        found = cast(ContinuousPredictive, whole)
        return replace(found, component=found.component.map_parameters(lambda values: values[:, back]))
