"""Results of comparisons, and the parts that all comparisons have: comparable log densities and ranks."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fathomless.app.peers import round_law
from fathomless.data.targets import TargetScale
from fathomless.estimators.scores import Score, mean
from fathomless.posterior.distributions import NumberPredictive
from fathomless.posterior.hurdle import HurdlePredictive

__all__ = ["Compared", "Comparison", "Recorder", "comparable_law", "rank_methods"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Compared:
    """Result of one method.

    Attributes
    ----------
    name, title : str
        Name and title of the method.
    scores : mapping of str to Score
        "log_likelihood" with its standard error over rows; others are means over folds with the error of that mean.
    behind : Score
        Log density of the best method minus that of this one: paired mean over rows.
    fit_seconds, predict_seconds : float
        Mean times over folds. The time of a fit is NaN for fitted estimators.
    failed : str
        Error message of a method without scores, otherwise "".
    """

    name: str
    title: str
    scores: Mapping[str, Score]
    behind: Score
    fit_seconds: float
    predict_seconds: float
    failed: str = ""


@dataclass(frozen=True)
class Comparison:
    """Comparison of methods on one table.

    Attributes
    ----------
    task : str
        "classification" or "regression".
    rows, folds : int
        Number of test rows and of folds; no folds for fitted estimators.
    methods : tuple of Compared
        Methods by log-likelihood, the best first, failed ones last.
    notes : tuple of str
        Notes on omitted methods and rows.
    order : {"random", "forward"}
        Order of the folds.
    """

    task: str
    rows: int
    folds: int
    methods: tuple[Compared, ...]
    notes: tuple[str, ...] = ()
    order: str = "random"

    @property
    def near_best(self) -> tuple[str, ...]:
        """Names of the methods that are at most two standard errors of the difference behind the best one."""
        done = [method for method in self.methods if not method.failed]
        return tuple(method.name for method in done[1:] if method.behind.value <= 2.0 * (method.behind.error or 0.0))

    def columns(self) -> dict[str, list[Any]]:
        """Return the results as columns, for a data frame; values of failed methods are None."""
        names = list(dict.fromkeys(name for method in self.methods for name in method.scores))
        table: dict[str, list[Any]] = {"method": [method.name for method in self.methods]}
        for name in names:
            scores = [method.scores.get(name) for method in self.methods]
            table[name] = [None if score is None else score.value for score in scores]
            table[f"{name}_error"] = [None if score is None else score.error for score in scores]
        table["behind"] = [None if m.failed else m.behind.value for m in self.methods]
        table["behind_error"] = [None if m.failed else m.behind.error for m in self.methods]
        for name in ("fit_seconds", "predict_seconds"):
            table[name] = [None if m.failed else getattr(m, name) for m in self.methods]
        return {**table, "failed": [method.failed for method in self.methods]}


class Recorder:
    """Estimator that records a measure of its predictions and their time, so that rows are predicted only once.

    Parameters
    ----------
    estimator : object
        Fitted estimator.
    measure : callable
        Function of a prediction and of the slice of its rows.
    """

    def __init__(self, estimator: Any, measure: Callable[[Any, slice], Any]) -> None:
        self.estimator = estimator
        self.target_ = estimator.target_
        self.measure = measure
        self.found = list[Any]()
        self.rows = 0
        self.seconds = 0.0

    def predict_dist(self, X: Any) -> Any:
        """Predict the next rows."""
        start = time.perf_counter()
        p = self.estimator.predict_dist(X)
        self.seconds += time.perf_counter() - start
        self.found.append(self.measure(p, slice(self.rows, self.rows + len(p))))
        self.rows += len(p)
        return p


def comparable_law(
    p: NumberPredictive, target: TargetScale | None, atoms: tuple[float, ...] = (), shares: Array | None = None
) -> NumberPredictive:
    """Return a prediction with the probabilities of single values that the target may have.

    Parameters
    ----------
    p : NumberPredictive
        Prediction of a single target.
    target : TargetScale, optional
        Target to whose lattice the prediction is rounded, if it has one.
    atoms : tuple of A float
        Atoms that the prediction gets unless it has atoms.
    shares : ndarray, shape (A + 1,), optional
        Their probabilities, after that of other values.
    """
    law = round_law(p, target) if target is not None and target.lattice[0].step else p
    if atoms and shares is not None and not isinstance(p, HurdlePredictive):
        law = HurdlePredictive.of(law, atoms, torch.from_numpy(np.log(shares)))
    return law


def rank_methods(
    log_p: Mapping[str, Array],
    titles: Mapping[str, str],
    others: Mapping[str, Mapping[str, Any]],
    weight: Array | None = None,
) -> list[Compared]:
    """Sort methods by the mean log density of the same rows, with the paired difference to the best.

    Parameters
    ----------
    log_p : mapping of str to ndarray, shape (N,)
        Log densities of the rows.
    titles : mapping of str to str
        Titles of the methods.
    others : mapping of str to mapping
        The other fields of :class:`Compared`.
    weight : ndarray, shape (N,), optional
        Sample weights.
    """
    means = {name: mean(values, weight).value for name, values in log_p.items()}
    order = sorted(log_p, key=lambda name: -means[name])
    return [
        Compared(name, titles[name], behind=mean(log_p[order[0]] - log_p[name], weight), **others[name])
        for name in order
    ]
