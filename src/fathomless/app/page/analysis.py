"""What an analyst asks of a fit: whether it is better than simple models, what drives it, which rows it misses."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fathomless.data.targets import ClassLabels, TargetScale
from fathomless.estimators.base import PredictiveEstimator
from fathomless.estimators.evaluation import Evaluation, evaluate
from fathomless.estimators.importance import Dependence, Importance, dependence, importance, row_groups
from fathomless.estimators.scores import Score
from fathomless.plots.page import number
from fathomless.posterior.distributions import ClassPredictive
from fathomless.system import io
from fathomless.system.errors import FileError

__all__ = ["Analysis", "GroupOfRows", "OddRow", "Peers", "analyse", "beside", "odd_rows"]

_FITTED = 20_000  # rows to which simple models are fitted
_EXPLAINED = 300  # rows whose columns are moved
_DRAWN = 5  # columns whose dependence is drawn
_ODD = 8  # rows that are listed
_LEAST = 20  # rows of a group
_MOST = 200  # columns above which none is moved unless asked for

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Take = Callable[[Ints], tuple[Any, Any]]


@dataclass(frozen=True)
class Peers:
    """Simple models on the rows of an evaluation, none of which they were fitted to.

    Attributes
    ----------
    scores : mapping of str to mapping of str to Score
        Of each of :data:`fathomless.app.peers.PEERS`.
    behind : mapping of str to Score
        Nats per row by which the log density of each is below that of the fit, and its standard error: both on the
        same rows, so that the difference is known better than either.
    """

    scores: Mapping[str, Mapping[str, Score]]
    behind: Mapping[str, Score]


@dataclass(frozen=True)
class OddRow:
    """A row that the fit expected least.

    Attributes
    ----------
    name : str
        Its key, or its number.
    log_density : float
        Of its target, in nats.
    target, predicted : str
        What it is, and what was expected.
    """

    name: str
    log_density: float
    target: str
    predicted: str


@dataclass(frozen=True)
class GroupOfRows:
    """Rows with a column in common, of whose targets the fit expects less than of the others.

    Attributes
    ----------
    column, value : str
        What they have in common: a category, or the ends of a quarter of the rows.
    rows : int
        How many there are.
    behind : Score
        Nats per row by which their mean log density is below that of the others, and its standard error.
    miss, others : float
        Mean absolute error, or share of rows that are given a wrong class: in the group, and of the others.
    inside : float or None
        Share inside the 90 % intervals, of numbers.
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
    """What :func:`analyse` found; a part that does not apply is None or empty.

    Attributes
    ----------
    rows : str
        Name of the rows that were looked at.
    peers : Peers or None
        Simple models beside the fit.
    importance : Importance or None
        Of all columns.
    dependence : tuple of Dependence
        Of the most important columns.
    odd : tuple of OddRow
        The least expected rows, the oddest first.
    groups : tuple of GroupOfRows
        Groups of rows that are predicted worse than the others, by more than chance would have it; the clearest first.
    looked : int
        How many groups were looked at.
    gaps : mapping of str to float
        Share of the rows that lack a value, of each column that has gaps.
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
        """Write it as JSON."""
        io.write_text(path, json.dumps(_plain(asdict(self)), indent=1) + "\n")

    @staticmethod
    def load(path: Path) -> "Analysis":
        """Read what :meth:`save` wrote.

        Raises
        ------
        FileError
            If it is none.
        """
        found = io.read_json(path)
        try:
            peers, moved = found["peers"], found["importance"]
            return Analysis(
                found["rows"],
                None
                if peers is None
                else Peers(
                    {
                        name: {key: Score(**one) for key, one in scores.items()}
                        for name, scores in peers["scores"].items()
                    },
                    {name: Score(**one) for name, one in peers["behind"].items()},
                ),
                None
                if moved is None
                else Importance(
                    tuple(map(_text, moved["columns"])),
                    *(_numbers(moved[name], len(moved["columns"])) for name in ("loss", "error")),
                ),
                tuple(
                    Dependence(
                        column=_text(one["column"]),
                        points=tuple(one["points"]),
                        level=float(one["level"]),
                        **{part: _numbers(one[part], len(one["points"])) for part in ("mean", "lower", "upper")},
                    )
                    for one in found["dependence"]
                ),
                tuple(OddRow(**one) for one in found["odd"]),
                tuple(GroupOfRows(**{**one, "behind": Score(**one["behind"])}) for one in found["groups"]),
                found["looked"],
                found["gaps"],
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileError(f"{path} is not what fathomless wrote; fit again, or run fathomless explain") from error


def _text(value: Any) -> str:
    """Return a text that a file should hold."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.80} is no text")
    return value


def _numbers(values: Any, rows: int) -> Floats:
    """Return numbers that a file should hold, so many rows of them."""
    found = np.array(values, dtype=np.float64)
    if found.shape[:1] != (rows,):
        raise ValueError(f"{found.shape} numbers for {rows} rows")
    return found


def analyse(
    estimator: PredictiveEstimator,
    take: Take,
    rows: Ints,
    training: Ints,
    evaluation: Evaluation,
    *,
    keys: Sequence[str] | None = None,
    seed: int = 0,
) -> Analysis:
    """Look at a fit on rows that it has not seen.

    Parameters
    ----------
    estimator : PredictiveEstimator
        Fitted.
    take : callable
        Returns X and y of rows by their numbers.
    rows, training : ndarray of int64
        Rows that were evaluated, and those that simple models are fitted to: with cross-fitted networks the same.
    evaluation : Evaluation
        Of `rows`.
    keys : sequence of str, optional
        Name of each row of the table.
    seed : int
        Of everything drawn.
    """
    fold = None if estimator.fold_ is None else estimator.fold_[:, rows]
    X, y = take(rows)
    ours = _predicted(estimator, X, y, fold)
    peers = None
    if len(evaluation.targets) == 1 and len(training) > 1:
        peers = beside(estimator, take, rows, training, evaluation, ours.density, seed=seed)
    some = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), _EXPLAINED)).round().astype(np.int64))
    some_X, some_y = take(rows[some])
    moved, drawn = None, tuple[Dependence, ...]()
    if len(estimator.schema_.columns) <= _MOST and len(some) > 1:
        own = None if fold is None else fold[:, some]
        moved = importance(estimator, some_X, some_y, fold=own, random_state=seed)
        drawn = tuple(dependence(estimator, some_X, column) for column in moved.columns[:_DRAWN])
    names = [str(keys[i]) for i in rows] if keys is not None else [f"row {i + 1:,}" for i in rows]
    odd = odd_rows(estimator, X, y, names, ours.density, fold=fold)
    groups, looked, gaps = _groups(estimator, X, ours)
    return Analysis(evaluation.name, peers, moved, drawn, odd, groups, looked, gaps)


def beside(
    estimator: PredictiveEstimator,
    take: Take,
    rows: Ints,
    training: Ints,
    evaluation: Evaluation,
    density: Floats,
    *,
    seed: int = 0,
) -> Peers:
    """Fit simple models as the networks were fitted, without the rows that they predict, and score them there.

    `density` (N,) is the log density of these rows under the fit.
    """
    from fathomless.app.peers import PEERS, Folded, Peer  # and with them boosting, which nothing else needs

    X, y = take(rows)
    target = cast(ClassLabels | TargetScale, estimator.target_)  # runs have no others
    folded = None if estimator.fold_ is None else estimator.fold_[0]
    fold = np.zeros((1, len(rows)), np.int64) if folded is None else folded[None, rows]
    scores, behind = {}, {}
    for name in PEERS:
        fitted = []
        for k in range(int(fold.max()) + 1):
            others = training if folded is None else training[folded[training] != k]
            others = others[:: max(1, math.ceil(len(others) / _FITTED))]
            fitted.append(Peer(name, evaluation.task, seed).fit(*take(others), estimator.schema_, target))
        peer = cast(PredictiveEstimator, Folded(fitted))
        found = evaluate(peer, X, y, name=name, targets=evaluation.targets, fold=fold)
        scores[name] = found.scores
        lead = density - _predicted(peer, X, y, fold).density
        error = float(lead.std(ddof=1) / math.sqrt(len(lead))) if len(lead) > 1 else None
        behind[name] = Score(float(lead.mean()), error)
    return Peers(scores, behind)


def odd_rows(
    estimator: PredictiveEstimator, X: Any, y: Any, names: Sequence[str], density: Floats, *, fold: Any = None
) -> tuple[OddRow, ...]:
    """Return the rows whose targets were expected least, by their log density (N,)."""
    odd = np.argsort(density, kind="stable")[:_ODD]
    p = estimator.predict_dist(_at(X, odd), **({} if fold is None else {"fold": fold[:, odd]}))
    if isinstance(estimator.target_, ClassLabels):
        probs = cast(Any, p).probs.numpy()
        labels = [str(label) for label in estimator.target_.labels]
        said = [f"{labels[row.argmax()]} ({100 * row.max():.0f} %)" for row in probs]
    else:
        low, high = (part.numpy().reshape(len(odd), -1) for part in cast(Any, p).interval(0.9))
        said = [
            "; ".join(f"{number(a, 4)} to {number(b, 4)}" for a, b in zip(one, other, strict=True))
            for one, other in zip(low, high, strict=True)
        ]
    true = [np.atleast_1d(np.asarray(y, dtype=object)[i]) for i in odd]
    told = ["; ".join(number(v, 4) if isinstance(v, float) else str(v) for v in row) for row in true]
    return tuple(
        OddRow(names[i], float(density[i]), target, expected)
        for i, target, expected in zip(odd, told, said, strict=True)
    )


def _groups(
    estimator: PredictiveEstimator, X: Any, ours: "_Rows"
) -> tuple[tuple[GroupOfRows, ...], int, dict[str, float]]:
    """Return groups that are predicted worse than the others, how many were looked at, and the shares of gaps.

    A group is told if it is behind by so many standard errors that, were all alike, one table in twenty would have one.
    """
    found, gaps = [], {}
    for column, value, inside in row_groups(estimator.schema_, X):
        if value == "missing":
            gaps[column] = float(inside.mean())
        if min(int(inside.sum()), int((~inside).sum())) < _LEAST:
            continue
        own, rest = ours.density[inside], ours.density[~inside]
        error = math.sqrt(own.var(ddof=1) / len(own) + rest.var(ddof=1) / len(rest))
        miss = ours.miss.mean(1)
        found.append(
            GroupOfRows(
                column,
                value,
                len(own),
                Score(float(rest.mean() - own.mean()), error),
                float(miss[inside].mean()),
                float(miss[~inside].mean()),
                None if ours.inside is None else float(ours.inside[inside].mean()),
            )
        )
    if not found:
        return (), 0, gaps
    far = NormalDist().inv_cdf(1.0 - 0.05 / len(found))
    clear = [one for one in found if one.behind.value > far * cast(float, one.behind.error)]
    clear.sort(key=lambda one: -one.behind.value / max(cast(float, one.behind.error), 1e-300))
    return tuple(clear[:_ODD]), len(found), gaps


@dataclass(frozen=True)
class _Rows:
    """Predictions of rows beside their targets.

    Attributes
    ----------
    density : ndarray of float64, shape (N,)
        Log density.
    miss : ndarray of float64, shape (N, T)
        Absolute error of the mean; of classes 1 where another one is the most probable, else 0.
    inside : ndarray of bool, shape (N,), or None
        Whether all targets are inside their 90 % intervals; None of classes.
    """

    density: Floats
    miss: Floats
    inside: npt.NDArray[np.bool_] | None


def _predicted(estimator: PredictiveEstimator, X: Any, y: Any, fold: Any) -> _Rows:
    density, miss, inside = [], [], []
    for start in range(0, len(X), _FITTED):
        part = slice(start, start + _FITTED)
        p = estimator.predict_dist(X[part], **({} if fold is None else {"fold": fold[:, part]}))
        log_p = p.log_prob(y[part]).numpy()
        density.append(log_p.reshape(len(log_p), -1).sum(1))
        if isinstance(p, ClassPredictive):
            guess = np.asarray(cast(ClassLabels, estimator.target_).labels, dtype=object)[p.probs.argmax(1).numpy()]
            miss.append((guess != np.asarray(y[part], dtype=object)).astype(np.float64)[:, None])
        else:
            own = cast(Any, p)
            miss.append(np.abs(own.mean.numpy() - np.asarray(y[part])).reshape(len(log_p), -1))
            below = own.cdf(y[part]).numpy().reshape(len(log_p), -1)
            inside.append(((below >= 0.05) & (below <= 0.95)).all(1))
    return _Rows(np.concatenate(density), np.concatenate(miss), np.concatenate(inside) if inside else None)


def _at(X: Any, rows: Ints) -> Any:
    from fathomless.data.frames import take

    return take(X, rows)


def _plain(value: Any) -> Any:
    """Turn arrays into lists."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value.tolist() if isinstance(value, np.ndarray) else value
