"""Comparison of fitted estimators on new rows.

Estimators are ranked as methods are (:mod:`fathomless.app.compare`): by the mean log density of all rows, in nats, with
the paired difference to the best. Its standard error is that over rows. It describes these estimators, not repeated
fits.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self, cast

import numpy as np
import numpy.typing as npt
import torch

from fathomless.app.comparison import Comparison, Recorder, comparable_law, rank_methods
from fathomless.data.censoring import is_known, read_bounds
from fathomless.data.frames import read_labels, read_target, select_columns, take
from fathomless.data.schema import some
from fathomless.data.targets import ClassLabels, TargetScale
from fathomless.estimators.base import PredictiveEstimator
from fathomless.estimators.evaluation import Evaluation, evaluate
from fathomless.estimators.number_predictions import summarize_numbers
from fathomless.estimators.scores import average, mean, row_weights
from fathomless.plots.page import number
from fathomless.posterior.distributions import NumberPredictive
from fathomless.posterior.hurdle import HurdlePredictive
from fathomless.system.errors import DataError

__all__ = ["compare_fitted"]

Array = npt.NDArray[Any]

_UNITS = 20.0  # ratio of standard deviations of the target above which a note asks for its unit
_LEAST_SHARE = 1e-12  # minimum of an average probability of atoms or of other values


def compare_fitted(
    estimators: Mapping[str, Any],
    X: Any,
    y: Any,
    *,
    targets: Sequence[str] = (),
    sample_weight: Any = None,
    censored: Any = None,
) -> Comparison:
    """Compare fitted estimators on the same rows with known targets, to which none of them should have been fitted.

    Estimators may have different families, options and columns. Log densities are those of the target in its own unit,
    as in :func:`~fathomless.app.compare.compare`. If the predictions of an estimator are distributions on a lattice,
    those of the others are rounded to it. If some predict the probabilities of atoms, such as zeros, the others get
    their average ones.

    Parameters
    ----------
    estimators : mapping of str to PredictiveEstimator
        Two or more fitted classifiers, or regressors, of the same target.
    X : array, data frame, or mapping of str to these, shape (N, C)
        Rows. Each estimator gets its own columns of a data frame. A mapping has a table of the same rows for each
        estimator, by its name.
    y : array, shape (N,) or (N, T)
        Class labels or numbers.
    targets : sequence of str, length T, optional
        Names of the targets, for messages.
    sample_weight : array, shape (N,), optional
        Sample weights, as in :func:`~fathomless.estimators.evaluation.evaluate`.
    censored : array, shape (N,), or "interval", optional
        Kind of each row, as in :func:`~fathomless.estimators.evaluation.evaluate`.

    Returns
    -------
    Comparison
        Estimators by log-likelihood, the best first. All scores have standard errors over rows.

    Raises
    ------
    DataError
        For fewer than two estimators, estimators of different tasks, and predictions with different atoms or on
        different lattices, whose probabilities cannot be compared. And as
        :func:`~fathomless.estimators.evaluation.evaluate`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from fathomless.app.peers import Peer
    >>> X, y = load_iris(return_X_y=True)
    >>> peers = {name: Peer(name, "classification", 0).fit(X[::2], y[::2]) for name in ("constant", "linear")}
    >>> found = compare_fitted(peers, X[1::2], y[1::2])
    >>> [method.name for method in found.methods], found.near_best
    (['linear', 'constant'], ())
    """
    task = _common_task(estimators)
    if isinstance(X, Mapping) and set(X) != set(estimators):
        raise DataError(
            f"X has the tables {some(sorted(X))}; one for each estimator is needed: {some(list(estimators))}"
        )
    if censored is not None and task == "regression":
        y, censored = read_bounds(y, censored), "interval"
    truth = y if censored is not None else read_labels(y) if task == "classification" else read_target(y)
    weight = row_weights(sample_weight, len(truth))
    rows = np.arange(len(truth)) if weight is None else np.flatnonzero(weight)
    weight = None if weight is None else weight[rows]
    tables = dict[str, Any]()
    for name, estimator in estimators.items():
        with _name_errors(name):
            tables[name] = X[name] if isinstance(X, Mapping) else select_columns(estimator.schema_, X)
    if len(rows) < len(truth):
        tables = {name: take(table, rows) for name, table in tables.items()}
        truth = take(truth, rows)
    rows_of = _Rows(truth, tuple(targets), weight, censored)
    support = _Support.of(estimators, tables)
    log_p, others, count = dict[str, Array](), dict[str, dict[str, Any]](), 0
    for name in sorted(estimators, key=lambda name: name in support.without_atoms):  # which need those of the others
        with _name_errors(name):
            log_p[name], evaluation, seconds = _score(estimators[name], tables[name], rows_of, support)
        others[name] = {
            "scores": {**evaluation.scores, "log_likelihood": mean(log_p[name], weight)},
            "fit_seconds": math.nan,
            "predict_seconds": seconds,
        }
        count = evaluation.rows
    notes = (*_note_units(estimators), *support.notes)
    titles = {name: type(estimator).__name__ for name, estimator in estimators.items()}
    return Comparison(task, count, 0, tuple(rank_methods(log_p, titles, others, weight)), notes)


@contextlib.contextmanager
def _name_errors(name: str) -> Iterator[None]:
    """Name the estimator in errors."""
    try:
        yield
    except DataError as error:
        raise DataError(f"{name}: {error}") from error


def _common_task(estimators: Mapping[str, Any]) -> str:
    """Return the task of fitted estimators of one target."""
    if len(estimators) < 2:
        raise DataError(f"{len(estimators)} estimators were given; a comparison needs two or more")
    shapes = dict[str, tuple[str, int]]()
    for name, estimator in estimators.items():
        target = vars(estimator).get("target_")
        if isinstance(target, ClassLabels):
            shapes[name] = ("classification", 1)
        elif isinstance(target, TargetScale):
            shapes[name] = ("regression", len(target.mean))
        else:
            raise DataError(
                f"{name} is a {type(estimator).__name__} that is not fitted, or is of several labels or a density; "
                "fitted classifiers and regressors can be compared"
            )
    (first, shape), *rest = shapes.items()
    if different := next((name for name, other in rest if other != shape), None):
        tasks = [
            f"{name} is a {kind} of {count} target{'s' * (count > 1)}"
            for name, (kind, count) in shapes.items()
            if name in (first, different)
        ]
        raise DataError(f"{' and '.join(tasks)}; give estimators of the same target")
    return shape[0]


def _note_units(estimators: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a note if the spread of a target in the training rows differs so much that its unit may differ."""
    if not all(isinstance(estimator.target_, TargetScale) for estimator in estimators.values()):
        return ()
    for spreads in zip(*(estimator.target_.spread for estimator in estimators.values()), strict=True):
        of = dict(zip(estimators, spreads, strict=True))
        small, large = min(of, key=of.__getitem__), max(of, key=of.__getitem__)
        if of[large] > _UNITS * of[small]:
            return (
                f"the standard deviation of the target in the training rows is {number(of[small])} for {small} and "
                f"{number(of[large])} for {large}; check that the target has the same unit for both",
            )
    return ()


@dataclass(frozen=True)
class _Rows:
    """Targets with their names, weights and kinds of the rows of a comparison."""

    y: Array
    names: tuple[str, ...]
    weight: Array | None
    censored: Any


@dataclass
class _Support:
    """Values of the target that have probabilities: a lattice, and atoms.

    Attributes
    ----------
    target : TargetScale, optional
        Target with the lattice on which some estimators predict.
    atoms : tuple of float
        Atoms that some estimators predict.
    with_atoms, without_atoms : tuple of str
        Names of the estimators that predict atoms, and of the others; both empty without atoms.
    shares : list of ndarray, shape (A + 1,)
        Average probabilities of other values and of each atom, of the estimators that were scored.
    """

    target: TargetScale | None = None
    atoms: tuple[float, ...] = ()
    with_atoms: tuple[str, ...] = ()
    without_atoms: tuple[str, ...] = ()
    shares: list[Array] = field(default_factory=list)

    @classmethod
    def of(cls, estimators: Mapping[str, Any], tables: Mapping[str, Any]) -> Self:
        """Return the support of the predictions of estimators, from the first row.

        Raises
        ------
        DataError
            If estimators have different atoms, or predict on different lattices.
        """
        lattices = dict[str, TargetScale]()
        atoms = dict[str, tuple[float, ...]]()
        for name, estimator in estimators.items():
            with _name_errors(name):
                p = estimator.predict_dist(take(tables[name], slice(0, 1)))
            if isinstance(p, NumberPredictive):
                atoms[name] = p.atoms if isinstance(p, HurdlePredictive) else ()
                if p.discrete:
                    lattices[name] = estimator.target_
        _check_equal({name: ", ".join(map("{:g}".format, of)) for name, of in atoms.items() if of}, "single values")
        points = {name: target.lattice[0] for name, target in lattices.items()}
        _check_equal({name: f"{of.offset:g} + {of.step:g} k" for name, of in points.items()}, "points")
        having = tuple(name for name, of in atoms.items() if of)
        lacking = tuple(name for name in atoms if having and name not in having)
        return cls(next(iter(lattices.values()), None), max(atoms.values(), default=()), having, lacking)

    @property
    def notes(self) -> tuple[str, ...]:
        """Note on the estimators without atoms."""
        if not self.without_atoms:
            return ()
        values = f"the single value{'s' * (len(self.atoms) > 1)} {', '.join(map('{:g}'.format, self.atoms))}"
        return (
            f"{', '.join(self.without_atoms)}: predictions have no probabilities of {values}; the log-likelihood was "
            f"computed with the average ones of {', '.join(self.with_atoms)}",
        )

    def make_comparable(self, p: Any) -> Any:
        """Return a prediction with the probabilities of these values."""
        if not isinstance(p, NumberPredictive):
            return p
        shares = np.clip(np.mean(self.shares, 0), _LEAST_SHARE, None) if self.shares else None
        return comparable_law(p, self.target, self.atoms, shares)


def _check_equal(shown: Mapping[str, str], what: str) -> None:
    """Raise an error if the values of the target that have probabilities differ between estimators."""
    if len(set(shown.values())) > 1:
        listed = "; ".join(f"{name}: {text}" for name, text in shown.items())
        raise DataError(
            f"estimators predict the probabilities of different {what} of the target ({listed}), which cannot be "
            "compared; give estimators of the same training rows, or of targets that are rounded in the same way"
        )


def _score(estimator: Any, table: Any, rows: _Rows, support: _Support) -> tuple[Array, Evaluation, float]:
    """Return the comparable log densities of rows, (N,), the evaluation, and the seconds of the predictions."""
    bounded = rows.censored is not None and isinstance(estimator.target_, TargetScale)  # refused for classes below
    known = not bounded or bool(is_known(rows.y).all())
    truth = rows.y[:, 0] if bounded and known else rows.y
    generator = torch.Generator().manual_seed(0)
    masses = list[Array]()

    def log_density(p: Any, part: slice) -> Array:
        if isinstance(p, HurdlePredictive):
            masses.append(p.mass.reshape(len(p.mass), -1).T.numpy())
        law = support.make_comparable(p)
        if known:
            return np.asarray(law.log_prob(truth[part]))
        return summarize_numbers(law, truth[part], generator, censored=True).log_density

    recorder = Recorder(estimator, log_density)
    target = estimator.target_
    unnamed = [f"y{k}" for k in range(len(target.mean))] if isinstance(target, TargetScale) else ["y"]
    evaluation = evaluate(
        cast(PredictiveEstimator, recorder),
        table,
        rows.y,
        name="new rows",
        targets=rows.names or unnamed,
        sample_weight=rows.weight,
        censored=rows.censored,
    )
    if masses:
        support.shares.append(average(np.concatenate(masses), rows.weight))
    return np.concatenate(recorder.found), evaluation, recorder.seconds
