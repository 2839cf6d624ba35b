"""Analysis of a fit: comparison with simple models, importance of columns, and rows with large residuals."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fathomless.data.frames import space_evenly
from fathomless.data.targets import ClassLabels, TargetScale
from fathomless.estimators.base import PredictiveEstimator
from fathomless.estimators.evaluation import Evaluation, evaluate
from fathomless.estimators.importance import Dependence, Importance, dependence, importance, row_groups
from fathomless.estimators.scores import Score, mean, row_weights
from fathomless.plots.page import number
from fathomless.posterior.classes import ClassPredictive
from fathomless.system import io
from fathomless.system.errors import FileError

__all__ = ["Analysis", "GroupOfRows", "OddRow", "Peers", "analyse", "find_odd_rows", "score_peers"]

_FITTED = 20_000  # maximum number of rows to fit simple models to
_EXPLAINED = 300  # maximum number of rows for permutation importance and partial dependence
_DRAWN = 5  # number of columns with partial dependence
_ODD = 8  # maximum number of listed rows and groups
_LEAST = 20  # minimum number of rows inside and outside a group
_MOST = 200  # maximum number of columns for permutation importance

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Take = Callable[[Ints], tuple[Any, Any]]


@dataclass(frozen=True)
class Peers:
    """Scores of simple models on the rows of an evaluation; no model was fitted to the rows that it predicts.

    Attributes
    ----------
    scores : mapping of str to mapping of str to Score
        Scores of each of :data:`fathomless.app.peers.PEERS`.
    behind : mapping of str to Score
        Mean difference between the log density of the fit and that of each model, in nats per row, with its standard
        error. The rows are paired, so the error of the difference is smaller than that of either mean.
    """

    scores: Mapping[str, Mapping[str, Score]]
    behind: Mapping[str, Score]


@dataclass(frozen=True)
class OddRow:
    """Row with a low log density.

    Attributes
    ----------
    name : str
        Key of the row, or its number.
    log_density : float
        Log density of the observed target, in nats.
    target, predicted : str
        Observed target, and the predicted class with its probability or the 90 % interval.
    """

    name: str
    log_density: float
    target: str
    predicted: str


@dataclass(frozen=True)
class GroupOfRows:
    """Group of rows whose log density is lower than that of the other rows.

    Attributes
    ----------
    column, value : str
        Column that defines the group and its common value: a level, or the range of a quarter of the rows.
    rows : int
        Number of rows.
    behind : Score
        Mean log density of the other rows minus that of the group, in nats per row, with its standard error.
    miss, others : float
        Mean absolute error, or error rate of a classification: in the group, and of the other rows.
    inside : float or None
        Coverage of the 90 % intervals; None for a classification.
    """

    column: str
    value: str
    rows: int
    behind: Score
    miss: float
    others: float
    inside: float | None


@dataclass(frozen=True)
class Analysis:
    """Result of :func:`analyse`; a part that does not apply is None or empty.

    Attributes
    ----------
    rows : str
        Name of the rows of the analysis.
    peers : Peers or None
        Scores of simple models.
    importance : Importance or None
        Permutation importance of all columns.
    dependence : tuple of Dependence
        Partial dependence on the most important columns.
    odd : tuple of OddRow
        Rows with the lowest log density, in ascending order.
    groups : tuple of GroupOfRows
        Groups of rows with a significantly lower log density, the most significant first.
    looked : int
        Number of groups that were tested.
    gaps : mapping of str to float
        Share of missing values of each column that has any.
    """

    rows: str
    peers: Peers | None = None
    importance: Importance | None = None
    dependence: tuple[Dependence, ...] = ()
    odd: tuple[OddRow, ...] = ()
    groups: tuple[GroupOfRows, ...] = ()
    looked: int = 0
    gaps: Mapping[str, float] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the analysis as JSON."""
        io.write_text(path, json.dumps(_plain(asdict(self)), indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> "Analysis":
        """Read a file written by :meth:`save`.

        Raises
        ------
        FileError
            If the file is not an analysis.
        """
        values = io.read_json(path)
        try:
            return Analysis(
                values["rows"],
                _parse_peers(values["peers"]),
                _parse_importance(values["importance"]),
                tuple(map(_parse_dependence, values["dependence"])),
                tuple(OddRow(**row) for row in values["odd"]),
                tuple(GroupOfRows(**{**group, "behind": Score(**group["behind"])}) for group in values["groups"]),
                values["looked"],
                values["gaps"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileError(f"{path} is not an analysis of fathomless; fit again, or run fathomless explain") from error


def _parse_peers(values: Any) -> Peers | None:
    """Return the scores of simple models in a file, or None."""
    if values is None:
        return None
    scores = {name: {key: Score(**score) for key, score in scores.items()} for name, scores in values["scores"].items()}
    return Peers(scores, {name: Score(**score) for name, score in values["behind"].items()})


def _parse_importance(values: Any) -> Importance | None:
    """Return the permutation importance in a file, or None."""
    if values is None:
        return None
    columns = tuple(map(_check_text, values["columns"]))
    return Importance(columns, *(_check_numbers(values[name], len(columns)) for name in ("loss", "error")))


def _parse_dependence(values: Any) -> Dependence:
    """Return the partial dependence on one column in a file."""
    points = tuple(values["points"])
    bands = {name: _check_numbers(values[name], len(points)) for name in ("mean", "lower", "upper")}
    return Dependence(column=_check_text(values["column"]), points=points, level=float(values["level"]), **bands)


def _check_text(value: Any) -> str:
    """Return a value of a file that has to be a text."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is not a text")
    return value


def _check_numbers(values: Any, rows: int) -> Floats:
    """Return values of a file that have to be numbers, with the given length of the first axis."""
    array = np.array(values, dtype=np.float64)
    if array.shape[:1] != (rows,):
        raise ValueError(f"{array.shape} numbers for {rows} rows")
    return array


def analyse(
    estimator: PredictiveEstimator,
    take: Take,
    rows: Ints,
    training: Ints,
    evaluation: Evaluation,
    *,
    keys: Sequence[str] | None = None,
    weight: Floats | None = None,
    new: bool = False,
    seed: int = 0,
) -> Analysis:
    """Analyse a fit on rows outside its training.

    Parameters
    ----------
    estimator : PredictiveEstimator
        Fitted estimator.
    take : callable
        Function that returns X and y of rows by their numbers.
    rows, training : ndarray of int64
        Rows of the evaluation, and rows to fit simple models to; the same for cross-fitted networks.
    evaluation : Evaluation
        Evaluation on `rows`.
    keys : sequence of str, optional
        Name of each row of the table.
    weight : ndarray, optional
        Sample weight of each row of the table, for fits and scores of simple models.
    new : bool
        True if the table is not that of the fit, whose folds then have no meaning.
    seed : int
        Seed of permutations and simple models.
    """
    fold = None if new or estimator.fold_ is None else estimator.fold_[:, rows]
    X, y = take(rows)
    predictions = _score_rows(estimator, X, y, fold)
    peers = None
    if len(evaluation.targets) == 1 and len(training) > 1:
        density = predictions.density
        peers = score_peers(estimator, take, rows, training, evaluation, density, weight=weight, seed=seed)
    # Permutation importance predicts all rows several times for each column, so a sample of the rows is used.
    sampled = space_evenly(len(rows), _EXPLAINED)
    sampled_X, sampled_y = take(rows[sampled])
    permuted = None
    curves = tuple[Dependence, ...]()
    if len(estimator.schema_.columns) <= _MOST and len(sampled) > 1:
        sampled_fold = None if fold is None else fold[:, sampled]
        permuted = importance(estimator, sampled_X, sampled_y, fold=sampled_fold, random_state=seed)
        curves = tuple(dependence(estimator, sampled_X, column) for column in permuted.columns[:_DRAWN])
    names = [str(keys[i]) for i in rows] if keys is not None else [f"row {i + 1:,}" for i in rows]
    odd = find_odd_rows(estimator, X, y, names, predictions.density, fold=fold)
    groups, tested, gaps = _compare_groups(estimator, X, predictions)
    return Analysis(evaluation.name, peers, permuted, curves, odd, groups, tested, gaps)


def score_peers(
    estimator: PredictiveEstimator,
    take: Take,
    rows: Ints,
    training: Ints,
    evaluation: Evaluation,
    density: Floats,
    *,
    weight: Floats | None = None,
    seed: int = 0,
) -> Peers:
    """Fit simple models to the same folds as the networks, and score them on the rows that they were not fitted to.

    The number of iterations of boosting, and the width of its residuals, are those of the first fold. Whole folds are
    held out there, so that rows of a group stay together.
    `density` (N,) is the log density of these rows under the fit, and `weight` has the weights of the whole table.
    """
    from fathomless.app.peers import (  # imports scikit-learn's boosting, which nothing else needs
        PEERS,
        CrossFittedPeer,
        Peer,
    )

    X, y = take(rows)
    target = cast(ClassLabels | TargetScale, estimator.target_)  # the only kinds of targets of a run
    folds = None if estimator.fold_ is None else estimator.fold_[0]
    fold = np.zeros((1, len(rows)), np.int64) if folds is None else folds[None, rows]
    scores = {}
    behind = {}
    for name in PEERS:
        fitted = list[Peer]()
        for k in range(int(fold.max()) + 1):
            others = training if folds is None else training[folds[training] != k]
            # An evenly spaced sample of a large table bounds the time of the simple models.
            others = others[:: max(1, math.ceil(len(others) / _FITTED))]
            groups = None if folds is None or len(np.unique(folds[others])) < 2 else folds[others]
            like = fitted[0] if fitted else None
            of_rows = row_weights(None if weight is None else weight[others], len(others))
            on_lattice = evaluation.on_lattice
            peer_of_fold = Peer(
                name, evaluation.task, seed, on_lattice=on_lattice, groups=groups, weight=of_rows, like=like
            )
            fitted.append(peer_of_fold.fit(*take(others), estimator.schema_, target))
        peer = cast(PredictiveEstimator, CrossFittedPeer(fitted))
        counts = None if weight is None else weight[rows]
        found = evaluate(peer, X, y, name=name, targets=evaluation.targets, fold=fold, sample_weight=counts)
        scores[name] = dict(found.scores)
        if name == "constant" and "auroc" in found.scores:  # the shares of the folds differ, and would rank the rows
            scores[name]["auroc"] = evaluation.baseline["auroc"]
        lead = density - _score_rows(peer, X, y, fold).density
        behind[name] = mean(lead, row_weights(counts, len(rows)))
    return Peers(scores, behind)


def find_odd_rows(
    estimator: PredictiveEstimator, X: Any, y: Any, names: Sequence[str], density: Floats, *, fold: Any = None
) -> tuple[OddRow, ...]:
    """Return the rows with the lowest log density; `density` (N,) is that of all rows."""
    odd = np.argsort(density, kind="stable")[:_ODD]
    p = estimator.predict_dist(_select_rows(X, odd), **({} if fold is None else {"fold": fold[:, odd]}))
    if isinstance(estimator.target_, ClassLabels):
        probs = cast(Any, p).probs.numpy()
        labels = [str(label) for label in estimator.target_.labels]
        predicted = [f"{labels[row.argmax()]} ({100 * row.max():.0f} %)" for row in probs]
    else:
        lower, upper = (part.numpy().reshape(len(odd), -1) for part in cast(Any, p).interval(0.9))
        predicted = [
            "; ".join(f"{number(low, 4)} to {number(high, 4)}" for low, high in zip(lows, highs, strict=True))
            for lows, highs in zip(lower, upper, strict=True)
        ]
    targets = [np.atleast_1d(np.asarray(y, dtype=object)[i]) for i in odd]
    observed = ["; ".join(number(v, 4) if isinstance(v, float) else str(v) for v in row) for row in targets]
    return tuple(
        OddRow(names[i], float(density[i]), target, prediction)
        for i, target, prediction in zip(odd, observed, predicted, strict=True)
    )


def _compare_groups(
    estimator: PredictiveEstimator, X: Any, predictions: "_RowScores"
) -> tuple[tuple[GroupOfRows, ...], int, dict[str, float]]:
    """Return the groups with a significantly lower log density, the number of tested groups, and shares of gaps.

    The level is 5 % over all tests (Bonferroni): without any difference, one table in twenty has a significant group.
    """
    groups = []
    gaps = {}
    for column, value, inside in row_groups(estimator.schema_, X):
        if value == "missing":
            gaps[column] = float(inside.mean())
        if min(int(inside.sum()), int((~inside).sum())) < _LEAST:
            continue
        group, rest = predictions.density[inside], predictions.density[~inside]
        error = math.sqrt(group.var(ddof=1) / len(group) + rest.var(ddof=1) / len(rest))
        miss = predictions.miss.mean(1)
        groups.append(
            GroupOfRows(
                column,
                value,
                len(group),
                Score(float(rest.mean() - group.mean()), error),
                float(miss[inside].mean()),
                float(miss[~inside].mean()),
                None if predictions.inside is None else float(predictions.inside[inside].mean()),
            )
        )
    if not groups:
        return (), 0, gaps
    errors = NormalDist().inv_cdf(1.0 - 0.05 / len(groups))
    clear = [group for group in groups if group.behind.value > errors * cast(float, group.behind.error)]
    clear.sort(key=lambda group: -group.behind.value / max(cast(float, group.behind.error), 1e-300))
    return tuple(clear[:_ODD]), len(groups), gaps


@dataclass(frozen=True)
class _RowScores:
    """Scores of single rows.

    Attributes
    ----------
    density : ndarray of float64, shape (N,)
        Log density.
    miss : ndarray of float64, shape (N, T)
        Absolute error of the mean; for classes 1 if the most probable class is wrong, else 0.
    inside : ndarray of bool, shape (N,), or None
        True if all targets are inside their 90 % intervals; None for classes.
    """

    density: Floats
    miss: Floats
    inside: npt.NDArray[np.bool_] | None


def _score_rows(estimator: PredictiveEstimator, X: Any, y: Any, fold: Any) -> _RowScores:
    """Score rows in batches."""
    density, miss, inside = [], [], []
    for start in range(0, len(X), _FITTED):
        part = slice(start, start + _FITTED)
        p = estimator.predict_dist(_select_rows(X, part), **({} if fold is None else {"fold": fold[:, part]}))
        log_p = p.log_prob(y[part]).numpy()
        density.append(log_p.reshape(len(log_p), -1).sum(1))
        if isinstance(p, ClassPredictive):
            guess = np.asarray(cast(ClassLabels, estimator.target_).labels, dtype=object)[p.probs.argmax(1).numpy()]
            miss.append((guess != np.asarray(y[part], dtype=object)).astype(np.float64)[:, None])
        else:
            continuous = cast(Any, p)
            miss.append(np.abs(continuous.mean.numpy() - np.asarray(y[part])).reshape(len(log_p), -1))
            up_to, below = (
                cdf(y[part]).numpy().reshape(len(log_p), -1) for cdf in (continuous.cdf, continuous.cdf_before)
            )
            inside.append(((up_to >= 0.05) & (below <= 0.95)).all(1))
    return _RowScores(np.concatenate(density), np.concatenate(miss), np.concatenate(inside) if inside else None)


def _select_rows(X: Any, rows: Ints | slice) -> Any:
    from fathomless.data.frames import take

    return take(X, rows)


def _plain(value: Any) -> Any:
    """Replace arrays by lists, for JSON."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray) else value
