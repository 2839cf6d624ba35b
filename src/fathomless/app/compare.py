r"""Comparison of all families, baselines and simple models on one table by cross-validation.

Rows are assigned to stratified folds once, with all copies of a row in the same fold
(:mod:`fathomless.data.duplicates`). Every method has its default options and predicts each fold after a fit to the
other folds. Levels that are not in the training rows count as missing, so that every fold can be predicted. Methods are
ranked by the mean log density of all rows, in nats, with the target in its own unit. The standard error of the
difference to the best method is that of the mean over rows of :math:`\\log p_a(y_i) - \\log p_b(y_i)`. It treats rows
as independent, and does not include the correlation of fits that share training rows.
"""

import hashlib
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from os import PathLike
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fathomless import __version__
from fathomless.app.comparison import Compared, Comparison, Recorder, comparable_law, rank_methods
from fathomless.app.peers import PEERS, Peer
from fathomless.data.duplicates import find_duplicates
from fathomless.data.folds import fold_rows
from fathomless.data.frames import encode, fit_schema, take
from fathomless.data.targets import TargetScale, fit_labels, fit_target
from fathomless.estimators.base import PredictiveEstimator
from fathomless.estimators.evaluation import evaluate
from fathomless.estimators.scores import Score, mean
from fathomless.families import registry
from fathomless.posterior.metrics import standard_error
from fathomless.system import checks
from fathomless.system.errors import DataError, DataWarning
from fathomless.system.jobs import iterate_parts
from fathomless.system.progress import Progress
from fathomless.system.torch_state import use_threads

__all__ = [
    "LONG",
    "VARIANTS",
    "compare",
    "compare_in_turn",
    "evaluate_split",
    "method",
    "methods_for",
]

#: Maximum number of rows for Markov chains over graphs in the default comparison; they take minutes or hours.
LONG = 300
_SLOW = "graph"
_LEAST = 20  # minimum number of rows
_FIRST = (*PEERS, "depth")  # methods that are compared before all others
#: Methods that are a family with options: family, options and title.
VARIANTS: Mapping[str, tuple[str, dict[str, Any], str]] = {
    "depth-neighbors": ("depth", {"neighbors": True}, "unbounded depth with nearest training rows"),
    "depth-trees": ("depth", {"trees": True}, "unbounded depth with boosted trees"),
}
Array = npt.NDArray[Any]


def methods_for(task: str, rows: int) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the methods of the default comparison with their titles, and notes on omitted methods."""
    known = _methods(task)
    if rows <= LONG or _SLOW not in known:
        return known, ()
    return (
        {name: title for name, title in known.items() if name != _SLOW},
        (f"{_SLOW} was omitted: it takes long on more than {LONG} rows; name it in the methods to include it",),
    )


def compare(
    X: Any,
    y: Any,
    *,
    task: str,
    methods: Sequence[str] = (),
    folds: int = 5,
    order: str = "random",
    seed: int = 0,
    jobs: int = 1,
    minutes: float | None = None,
    groups: Any = None,
    out: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare methods on a table by cross-validation.

    Parameters
    ----------
    X : array or data frame, shape (N, C)
        Features, as for ``fit`` of the estimators.
    y : array, shape (N,)
        Class labels, or numbers.
    task : {"classification", "regression"}
        Task.
    methods : sequence of str
        Names of families, baselines, :data:`VARIANTS` and :data:`~fathomless.app.peers.PEERS`; by default all that are
        not too slow. Constant, linear model, boosting and unbounded depth are first in any case.
    folds : int
        Number of folds, at least 2.
    order : {"random", "forward"}
        Random folds. Or forward folds, for rows in the order of time: consecutive blocks of rows, each of which is
        predicted after a fit to all rows before it. The first of ``folds + 1`` blocks is in all training sets.
    seed : int
        Seed of the folds and of every fit.
    jobs : int
        Number of processes, with one thread each.
    minutes : float, optional
        Time after which no fit is started. Methods that are not finished are left out, with a note.
    groups : array, shape (N,), optional
        Group of each row; rows of a group share a fold. Methods get the groups of their training rows, if there are two
        or more.
    out : path, optional
        Folder for finished fits, from which an interrupted comparison resumes.
    progress : Progress, optional
        Progress display.

    Raises
    ------
    DataError
        For unknown methods, too few rows, a table that cannot be read, and the folder of another comparison; and if no
        method is finished in time.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> found = compare(X, y, task="classification", methods=["constant", "linear"], folds=3)
    >>> [method.name for method in found.methods], found.rows
    (['linear', 'constant'], 150)
    """
    *_, last = compare_in_turn(
        X,
        y,
        task=task,
        methods=methods,
        folds=folds,
        order=order,
        seed=seed,
        jobs=jobs,
        minutes=minutes,
        groups=groups,
        out=out,
        progress=progress,
    )
    return last


def compare_in_turn(
    X: Any,
    y: Any,
    *,
    task: str,
    methods: Sequence[str] = (),
    folds: int = 5,
    order: str = "random",
    seed: int = 0,
    jobs: int = 1,
    minutes: float | None = None,
    groups: Any = None,
    out: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Iterator[Comparison]:
    """Yield the comparison of the finished methods after each method; see :func:`compare`."""
    checks.choice("task", task, ("classification", "regression"))
    checks.whole("folds", folds, least=2)
    checks.choice("order", order, ("random", "forward"))
    if minutes is not None:
        checks.positive("minutes", minutes)
    deadline = None if minutes is None else time.time() + 60.0 * minutes
    z = (fit_labels(y) if task == "classification" else fit_target(y)).encode(y)
    if len(z) < max(_LEAST, 2 * folds):
        raise DataError(f"{len(z)} rows were given for {folds} folds; at least {max(_LEAST, 2 * folds)} are needed")
    chosen, notes = methods_for(task, len(z))
    if methods:
        chosen, notes = _select_methods(methods, task), ()
    chosen = {**{name: chosen[name] for name in _FIRST if name in chosen}, **chosen}
    schema = fit_schema(X)
    x = encode(schema, X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)  # about rows in no fold; there is a note on them below
        together = not find_duplicates(x, z, None, schema).observations
        group_numbers = None if groups is None else np.asarray(groups)
        dealt: dict[str, Any] = {"groups": group_numbers, "together": together}
        if order == "forward":  # numbers of blocks, without rows of rare classes that are in all training sets
            blocks = fold_rows(x, z.astype(np.float64), folds + 1, 1, seed, blocks=True, **dealt)
            fold_numbers = blocks[0].numpy() - 1
        else:
            fold_numbers = fold_rows(x, z, folds, 1, seed, **dealt)[0].numpy()
    folds = int(fold_numbers.max()) + 1  # the number of groups, if that is smaller
    # The digest of the encoded table identifies a comparison, so that a folder is not resumed with other data.
    digest = hashlib.sha256(np.ascontiguousarray(x).tobytes() + np.ascontiguousarray(z).tobytes()).hexdigest()
    if groups is not None or order == "forward":
        digest = hashlib.sha256(digest.encode() + fold_numbers.tobytes()).hexdigest()
    settings = {"seed": seed, "folds": folds, "table": digest, "version": __version__}
    tested = int((fold_numbers >= 0).sum())
    if order == "forward":
        notes = (*notes, f"the first {len(z) - tested} rows were training rows in all folds, and are not tested")
    elif tested < len(z):
        notes = (*notes, f"{len(z) - tested} rows of rare classes were training rows in all folds, and are not tested")
    parts = {
        f"{name}/{k}": partial(_fit_fold, name, task, seed, X, y, *_split(fold_numbers, k, order), group_numbers)
        for name in chosen
        for k in range(folds)
    }
    found = dict[str, dict[str, Any]]()
    by_method = dict[str, list[dict[str, Any]]]()
    for part, values, _ in iterate_parts(
        parts, settings=settings, out=out, progress=progress, jobs=jobs, deadline=deadline
    ):
        found[part] = values
        done = [name for name in chosen if all(f"{name}/{k}" in found for k in range(folds))]
        if len(done) > len(by_method):
            by_method = {name: [found[f"{name}/{k}"] for k in range(folds)] for name in done}
            if len(done) < len(chosen):
                yield Comparison(task, tested, folds, _rank(by_method, chosen), notes, order)
    if not by_method:
        raise DataError(f"no method was finished in {minutes:g} minutes; give more time, or fewer methods or folds")
    if left := [name for name in chosen if name not in by_method]:
        notes = (*notes, f"left out after {minutes:g} minutes: {', '.join(left)}; give more to include them")
    yield Comparison(task, tested, folds, _rank(by_method, chosen), notes, order)


def _split(fold_numbers: Array, fold: int, order: str) -> tuple[Array, Array]:
    """Return the indices of the training rows and of the test rows of a fold."""
    known = fold_numbers < fold if order == "forward" else fold_numbers != fold
    return np.flatnonzero(known), np.flatnonzero(fold_numbers == fold)


def _methods(task: str) -> dict[str, str]:
    families = {name: family.title for name, family in registry.families().items() if task in family.tasks}
    variants = {
        name: title
        for name, (family, options, title) in VARIANTS.items()
        if family in families and options.keys() <= registry.options(registry.families()[family], task).keys()
    }
    return {**families, **variants, **PEERS}


def _select_methods(methods: Sequence[str], task: str) -> dict[str, str]:
    known = _methods(task)
    if unknown := [name for name in methods if name not in known]:
        raise DataError(f"methods={unknown[0]!r} was given; allowed for a {task} are {', '.join(known)}")
    return {name: known[name] for name in dict.fromkeys(methods)}


def _fit_fold(
    name: str, task: str, seed: int, X: Any, y: Any, train: Array, test: Array, groups: Array | None
) -> dict[str, Any]:
    """Fit one method to training rows; return its log densities on test rows, its scores and times."""
    known, new = ((take(X, part), take(y, part)) for part in (train, test))
    own = None if groups is None or len(np.unique(groups[train])) < 2 else groups[train]
    with use_threads(1):
        if name in PEERS:
            return evaluate_split(partial(Peer, name, task, seed, groups=own), known, new)
        return evaluate_split(partial(method, name, task, seed), known, new, own)


def evaluate_split(
    make: Callable[[], Any], train: tuple[Any, Any], test: tuple[Any, Any], groups: Array | None = None
) -> dict[str, Any]:
    """Fit an estimator to training rows, and score it on test rows.

    Parameters
    ----------
    make : callable
        Function that returns the estimator, or an object with ``fit``, ``target_`` and ``predict_dist``.
    train, test : tuple of a table and its target
        Training and test rows, with the same columns.
    groups : array, shape (N,), optional
        Groups of the training rows, for ``fit``.

    Returns
    -------
    dict
        "log_density" of each row of `test` (log probability if "on_lattice" is true, and at "atoms"), its "log_mass"
        for a single number, "scores", "fit_seconds" and "predict_seconds"; or "failed", the error. The log mass is that
        of the prediction rounded to the lattice of the target, if there is one. Atoms have the probabilities of the
        prediction, or else their shares in the training rows.

    Examples
    --------
    >>> rows = np.arange(40.0)[:, None]
    >>> sorted(evaluate_split(lambda: method("linear", "regression", 0), (rows, rows[:, 0]), (rows, rows[:, 0])))
    ['atoms', 'fit_seconds', 'log_density', 'log_mass', 'on_lattice', 'predict_seconds', 'scores']
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # there is one fit for each method and fold
            start = time.perf_counter()
            estimator = make()
            # without held-out rows, groups have no meaning
            grouped = groups is not None and vars(estimator).get("validation_fraction") != 0.0
            fitted = estimator.fit(*train, groups=groups) if grouped else estimator.fit(*train)
            seconds = time.perf_counter() - start
            truth, target = test[1], fitted.target_
            single = isinstance(target, TargetScale) and len(target.lattice) == 1
            atoms, shares = _share_atoms(target, train[1]) if single else ((), None)

            def log_densities(p: Any, part: slice) -> tuple[list[float], list[float]]:
                mass = comparable_law(p, target, atoms, shares).log_prob(truth[part]).tolist() if single else []
                return p.log_prob(truth[part]).tolist(), mass

            recorder = Recorder(fitted, log_densities)
            evaluation = evaluate(cast(PredictiveEstimator, recorder), *test, name="new rows")
            log_p, log_mass = (list(chain.from_iterable(parts)) for parts in zip(*recorder.found, strict=True))
    except (Exception, RecursionError) as error:  # one failed method does not end the comparison
        return {"failed": f"{type(error).__name__}: {' '.join(str(error).split())}"}
    return {
        "log_density": log_p,
        "log_mass": log_mass,
        "on_lattice": evaluation.on_lattice,
        "atoms": list(evaluation.atoms),
        "scores": {key: score.value for key, score in evaluation.scores.items()},
        "fit_seconds": seconds,
        "predict_seconds": recorder.seconds,
    }


def _share_atoms(target: TargetScale, y: Any) -> tuple[tuple[float, ...], Array]:
    """Return the atoms of targets, and the shares of other values and of each atom."""
    atoms = fit_target(y, hurdle=True).hurdle
    number = replace(target, hurdle=atoms).number_atoms(cast(Array, target.encode(y)))
    return atoms, np.bincount(number, minlength=len(atoms) + 1) / len(number)


def method(name: str, task: str, seed: int, **options: Any) -> Any:
    """Return a family, a baseline or a simple model with default options except `options`; new levels are missing.

    Examples
    --------
    >>> method("depth", "classification", 0).unseen
    'ignore'
    """
    if name in PEERS:
        return Peer(name, task, seed)
    name, more, _ = VARIANTS.get(name, (name, {}, ""))
    options = {**more, **options}
    family = registry.families()[registry.full_name(name)]
    unseen: dict[str, Any] = {"unseen": "ignore"} if "unseen" in registry.options(family, task) else {}
    return registry.estimator_class(family.tasks[task])(random_state=seed, **{**unseen, **options})


def _rank(by_method: Mapping[str, Sequence[Mapping[str, Any]]], titles: Mapping[str, str]) -> tuple[Compared, ...]:
    """Sort methods by the mean log density of all rows; methods that failed in a fold are last.

    If a method predicts distributions on a lattice or with atoms, all methods are scored so: the laws of the others are
    rounded, and get the shares of the atoms.
    """
    every = [fold for folds in by_method.values() for fold in folds if "failed" not in fold]
    has_mass = any(fold.get("on_lattice") or fold.get("atoms") for fold in every)
    kind = "log_mass" if has_mass else "log_density"
    log_p = dict[str, Array]()
    done = dict[str, dict[str, Any]]()
    for name, folds in by_method.items():
        if not any("failed" in fold for fold in folds):
            log_p[name] = np.concatenate([fold[kind] for fold in folds])
            sizes = [len(fold["log_density"]) for fold in folds]
            done[name] = {
                "scores": _scores(folds, sizes) | {"log_likelihood": mean(log_p[name], None)},
                "fit_seconds": float(np.mean([fold["fit_seconds"] for fold in folds])),
                "predict_seconds": float(np.mean([fold["predict_seconds"] for fold in folds])),
            }
    ranked = rank_methods(log_p, titles, done)
    failed = []
    for name, folds in by_method.items():
        if name not in done:
            reason = next(fold["failed"] for fold in folds if fold.get("failed"))
            failed.append(Compared(name, titles[name], {}, Score(math.nan, None), 0.0, 0.0, reason))
    return (*ranked, *failed)


def _scores(folds: Sequence[Mapping[str, Any]], sizes: Sequence[int]) -> dict[str, Score]:
    """Average scores over folds, weighted by numbers of rows; a score that is not in all folds is omitted."""
    names = [name for name in folds[0]["scores"] if all(name in fold["scores"] for fold in folds)]
    scores = {}
    for name in names:
        values = np.array([fold["scores"][name] for fold in folds])
        scores[name] = Score(float(np.average(values, weights=sizes)), standard_error(values))
    return scores
