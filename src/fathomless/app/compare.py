r"""Every family, baseline and peer on one table, cross-validated and ranked.

Rows are dealt into folds once, copies of a row into the same one (:mod:`fathomless.data.duplicates`) and classes in
proportion. Every method predicts each fold after it was fitted to the others, as it comes; but categories that a
training did not see count as missing, so that no fold has to be refused. Methods are ranked by the mean log density of
all rows, in nats, in units of the table. The error of the difference to the best is that of the mean over rows of
:math:`\\log p_a(y_i) - \\log p_b(y_i)`; rows count as independent, and trainings that share rows do not make it larger.
"""

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from fathomless import __version__
from fathomless.app.peers import PEERS, Peer
from fathomless.data.duplicates import repeats
from fathomless.data.folds import fold_rows
from fathomless.data.frames import encode, fit_schema, take
from fathomless.data.targets import fit_labels, fit_target
from fathomless.estimators.base import PredictiveEstimator
from fathomless.estimators.evaluation import evaluate
from fathomless.estimators.scores import Score
from fathomless.families import registry
from fathomless.posterior.metrics import standard_error
from fathomless.system import checks
from fathomless.system.errors import DataError, DataWarning
from fathomless.system.jobs import run_parts
from fathomless.system.progress import Progress

__all__ = ["LONG", "Compared", "Comparison", "compare", "held_out", "method", "methods_for"]

#: Rows above which chains over graphs, which take minutes or hours, are compared only if they are named.
LONG = 300
_SLOW = "graph"
_LEAST = 20  # rows
Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Compared:
    """What one method did.

    Attributes
    ----------
    name, title : str
        Of the method.
    scores : mapping of str to Score
        "log_likelihood" with its error over rows; others are means over folds with the error of that mean.
    behind : Score
        Log density of the best method less that of this one, mean over rows, paired.
    fit_seconds, predict_seconds : float
        Mean over folds.
    failed : str
        Why there are no scores, if there are none.
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
    """Methods on one table.

    Attributes
    ----------
    task : str
        "classification" or "regression".
    rows, folds : int
        How many there are.
    methods : tuple of Compared
        The best first, those that failed last.
    notes : tuple of str
        What was left out, and why.
    """

    task: str
    rows: int
    folds: int
    methods: tuple[Compared, ...]
    notes: tuple[str, ...] = ()

    def columns(self) -> dict[str, list[Any]]:
        """Return the ranks as columns, for a data frame; None where a method failed."""
        names = list(dict.fromkeys(name for method in self.methods for name in method.scores))
        found: dict[str, list[Any]] = {"method": [method.name for method in self.methods]}
        for name in names:
            each = [method.scores.get(name) for method in self.methods]
            found[name] = [None if score is None else score.value for score in each]
            found[f"{name}_error"] = [None if score is None else score.error for score in each]
        done = [not method.failed for method in self.methods]
        found["behind"] = [m.behind.value if ok else None for m, ok in zip(self.methods, done, strict=True)]
        found["behind_error"] = [m.behind.error if ok else None for m, ok in zip(self.methods, done, strict=True)]
        for name in ("fit_seconds", "predict_seconds"):
            found[name] = [getattr(m, name) if ok else None for m, ok in zip(self.methods, done, strict=True)]
        return {**found, "failed": [method.failed for method in self.methods]}


def methods_for(task: str, rows: int) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the methods that are compared by default, with their titles; and what was left out, and why."""
    known = _known(task)
    if rows <= LONG or _SLOW not in known:
        return known, ()
    return (
        {name: title for name, title in known.items() if name != _SLOW},
        (f"{_SLOW} was left out: its chains take long on more than {LONG} rows; name it among the methods to have it",),
    )


def compare(
    X: Any,
    y: Any,
    *,
    task: str,
    methods: Sequence[str] = (),
    folds: int = 5,
    seed: int = 0,
    jobs: int = 1,
    groups: Any = None,
    out: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare methods on a table by cross-validation.

    Parameters
    ----------
    X : array or data frame, shape (N, C)
        As estimators take it.
    y : array, shape (N,)
        Class labels, or numbers.
    task : {"classification", "regression"}
        What y is.
    methods : sequence of str
        Names of families, baselines and :data:`~fathomless.app.peers.PEERS`; all that are not too slow by default.
    folds : int
        K, at least 2.
    seed : int
        Of the folds and of every fit.
    jobs : int
        Processes; each works with one thread.
    groups : array, shape (N,), optional
        Rows of a group share a fold.
    out : path, optional
        Folder in which what is done is kept, and taken up again.
    progress : Progress, optional
        Display.

    Raises
    ------
    DataError
        For methods that are not known, too few rows, a table that cannot be read, and a folder of another comparison.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> found = compare(X, y, task="classification", methods=["constant", "linear"], folds=3)
    >>> [method.name for method in found.methods], found.rows
    (['linear', 'constant'], 150)
    """
    checks.choice("task", task, ("classification", "regression"))
    checks.whole("folds", folds, least=2)
    z = (fit_labels(y) if task == "classification" else fit_target(y)).encode(y)
    if len(z) < max(_LEAST, 2 * folds):
        raise DataError(f"{len(z)} rows were given for {folds} folds; at least {max(_LEAST, 2 * folds)} are needed")
    chosen, notes = methods_for(task, len(z))
    if methods:
        chosen, notes = _named(methods, task), ()
    schema = fit_schema(X)
    x = encode(schema, X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # of rows in no fold, which are told below
        together = not repeats(x, z, None, schema).observations
        own = None if groups is None else np.asarray(groups)
        dealt = fold_rows(x, z, folds, 1, seed, groups=own, together=together)[0].numpy()
    folds = int(dealt.max()) + 1  # as many as groups, if these are fewer
    digest = hashlib.sha256(np.ascontiguousarray(x).tobytes() + np.ascontiguousarray(z).tobytes()).hexdigest()
    parts = {f"{name}/{k}": partial(_part, name, task, seed, X, y, dealt, k) for name in chosen for k in range(folds)}
    if groups is not None:
        digest = hashlib.sha256(digest.encode() + dealt.tobytes()).hexdigest()
    settings = {"seed": seed, "folds": folds, "table": digest, "version": __version__}
    found, _ = run_parts(parts, settings=settings, out=out, progress=progress, jobs=jobs)
    each = {name: [found[f"{name}/{k}"] for k in range(folds)] for name in chosen}
    tested = int((dealt >= 0).sum())
    if tested < len(z):
        notes = (*notes, f"{len(z) - tested} rows of rare classes were in every training, and are not tested")
    return Comparison(task, tested, folds, _ranked(each, chosen), notes)


def _known(task: str) -> dict[str, str]:
    families = {name: family.title for name, family in registry.families().items() if task in family.tasks}
    return {**families, **PEERS}


def _named(methods: Sequence[str], task: str) -> dict[str, str]:
    known, methods = _known(task), [registry.full_name(name) for name in methods]
    if unknown := [name for name in methods if name not in known]:
        raise DataError(f"methods={unknown[0]!r} was given; allowed for a {task} are {', '.join(known)}")
    return {name: known[name] for name in dict.fromkeys(methods)}


class _Watched:
    """An estimator that keeps what it predicts, so that rows are predicted once."""

    def __init__(self, estimator: Any) -> None:
        self.estimator, self.target_, self.found, self.seconds = estimator, estimator.target_, list[Any](), 0.0

    def predict_dist(self, X: Any) -> Any:
        """Predict rows."""
        start = time.perf_counter()
        self.found.append(self.estimator.predict_dist(X))
        self.seconds += time.perf_counter() - start
        return self.found[-1]


def _part(name: str, task: str, seed: int, X: Any, y: Any, dealt: Array, fold: int) -> dict[str, Any]:
    """Fit one method to all folds but one; return its log densities of that fold, its scores and times."""
    train, test = np.flatnonzero(dealt != fold), np.flatnonzero(dealt == fold)
    rows = [(take(X, part), take(y, part)) for part in (train, test)]
    torch.set_num_threads(1)
    return held_out(partial(method, name, task, seed), *rows)


def held_out(make: Callable[[], Any], train: tuple[Any, Any], test: tuple[Any, Any]) -> dict[str, Any]:
    """Fit an estimator to rows, and score it on others.

    Parameters
    ----------
    make : callable
        Returns the estimator, or anything with ``fit``, ``target_`` and ``predict_dist``.
    train, test : tuple of a table and its target
        Both have the same columns.

    Returns
    -------
    dict
        "log_density" of each row of `test`, "scores", "fit_seconds" and "predict_seconds"; or "failed", the reason.

    Examples
    --------
    >>> rows = np.arange(40.0)[:, None]
    >>> sorted(held_out(lambda: method("linear", "regression", 0), (rows, rows[:, 0]), (rows, rows[:, 0])))
    ['fit_seconds', 'log_density', 'predict_seconds', 'scores']
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of one fit among many
            start = time.perf_counter()
            fitted = make().fit(*train)
            seconds = time.perf_counter() - start
            watched = _Watched(fitted)
            found = evaluate(cast(PredictiveEstimator, watched), *test, name="new rows")
            truth, first, log_p = test[1], 0, list[float]()
            for p in watched.found:
                log_p += p.log_prob(truth[first : first + len(p)]).tolist()
                first += len(p)
    except (Exception, RecursionError) as error:  # of one method: the others go on, and it is told
        return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    return {
        "log_density": log_p,
        "scores": {key: score.value for key, score in found.scores.items()},
        "fit_seconds": seconds,
        "predict_seconds": watched.seconds,
    }


def method(name: str, task: str, seed: int, **options: Any) -> Any:
    """Return a family, a baseline or a peer as it comes, but for `options`; new categories count as missing.

    Examples
    --------
    >>> method("depth", "classification", 0).unseen
    'ignore'
    """
    if name in PEERS:
        return Peer(name, task, seed)
    family = registry.families()[registry.full_name(name)]
    unseen: dict[str, Any] = {"unseen": "ignore"} if "unseen" in registry.options(family, task) else {}
    return registry.estimator_class(family.tasks[task])(random_state=seed, **{**unseen, **options})


def _ranked(each: Mapping[str, Sequence[Mapping[str, Any]]], titles: Mapping[str, str]) -> tuple[Compared, ...]:
    """Order methods by the mean log density of all rows; those that failed in any fold come last."""
    log_p, done = dict[str, Array](), dict[str, dict[str, Any]]()
    for name, folds in each.items():
        if not any("failed" in fold for fold in folds):
            log_p[name] = np.concatenate([fold["log_density"] for fold in folds])
            sizes = [len(fold["log_density"]) for fold in folds]
            done[name] = {
                "scores": _scores(folds, sizes) | {"log_likelihood": _mean(log_p[name])},
                "fit_seconds": float(np.mean([fold["fit_seconds"] for fold in folds])),
                "predict_seconds": float(np.mean([fold["predict_seconds"] for fold in folds])),
            }
    order = sorted(done, key=lambda name: -log_p[name].mean())
    ranked = [Compared(name, titles[name], behind=_mean(log_p[order[0]] - log_p[name]), **done[name]) for name in order]
    lost = [
        Compared(name, titles[name], {}, Score(math.nan, None), 0.0, 0.0, next(filter(None, reasons)))
        for name, reasons in ((name, [fold.get("failed") for fold in folds]) for name, folds in each.items())
        if name not in done
    ]
    return (*ranked, *lost)


def _scores(folds: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> dict[str, Score]:
    """Average scores over folds, weighed by their rows; one that a fold lacks is left out."""
    names = [name for name in folds[0]["scores"] if all(name in fold["scores"] for fold in folds)]
    found = {}
    for name in names:
        values = np.array([fold["scores"][name] for fold in folds])
        found[name] = Score(float(np.average(values, weights=sizes)), standard_error(values))
    return found


def _mean(values: Array) -> Score:
    return Score(float(values.mean()), standard_error(values))
