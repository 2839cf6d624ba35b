r"""How good a fitted estimator is on rows whose answers are known: scores with errors, calibration, rows for pictures.

Every score is a mean over rows, or a smooth function of such means. Its standard error is that of the mean of its
influence values, see :mod:`~fathomless.estimators.scores`; rows count as independent.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.data.frames import read_labels, read_target, take
from fathomless.data.schema import check_fields, some
from fathomless.data.targets import ClassLabels, Indicators, TargetScale
from fathomless.estimators.base import PredictiveEstimator
from fathomless.estimators.scores import Score, auroc, average, counted, mean, reliability, row_weights, score
from fathomless.posterior import metrics
from fathomless.posterior.distributions import ClassPredictive, ContinuousPredictive, Predictive
from fathomless.posterior.mixtures import Mixture, Normal
from fathomless.posterior.uncertainty import Uncertainty
from fathomless.system import io
from fathomless.system.errors import DataError, FileError

__all__ = ["Evaluation", "evaluate"]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_CHUNK = 16384  # rows predicted at once
_SHOWN = 2000  # rows kept for pictures
_PIT_BINS = 20
_LEVELS = np.arange(1, 20) / 20.0  # of central intervals
_PAIRED = 32  # components up to which the exact score of a Gaussian mixture, quadratic in them, is the faster one
_DRAWS = 100  # per row, for the other mixtures
_LEAST_SPREAD = 1e-3  # of the constant prediction, in standard deviations of the training targets

_COVERAGES = {"coverage_50": 0.5, "coverage_90": 0.9, "coverage_95": 0.95}
_SCORES = {
    "classification": ("log_likelihood", "accuracy", "brier", "ece", "auroc"),
    "regression": ("log_likelihood", "rmse", "mae", "r2", "crps", *_COVERAGES),
    "density": ("log_likelihood",),
}


@dataclass(frozen=True, eq=False)
class Evaluation:
    r"""What :func:`evaluate` found.

    Attributes
    ----------
    name : str
        Which rows: "held-out rows", "training rows" or the name of a file.
    task : str
        "classification", "regression" or "density".
    rows : int
        How many rows the scores are of; a row that counts more than once is as many.
    scores : mapping of str to Score
        Regression: log_likelihood (joint log density, nats per row in the units of y), rmse, mae, r2, crps,
        coverage_50, coverage_90, coverage_95 (share of rows inside the central interval); all but the first are
        averaged over targets. Classification: log_likelihood, accuracy, brier, ece, and auroc of the second class
        where there are two and both occur.
    baseline : mapping of str to Score
        The same scores of a constant prediction that knows these rows: their class frequencies, or a normal with
        their mean and standard deviation.
    labels : tuple of str
        Names of the K classes; () in regression.
    targets : tuple of str
        Names of the T target columns.
    arrays : mapping of str to ndarray
        At most 2,000 rows, evenly spaced, for pictures. Classification: "y" (n,) int64 codes into `labels`, "probs"
        (n, K), and "noise", "weights", "structure" (n,), entropies in nats. Regression: "y", "mean", "std", "low",
        "high" (90 % interval), "pit", and "noise", "weights", "structure", variances, all (n, T). Where weights and
        structure cannot be told apart, "networks" has their sum.
    calibration : mapping of str to ndarray
        Of all rows. Classification: "confidence", "accuracy", "count" of those of 15 equal bins that hold rows.
        Regression: "pit" (20, T) int64, the histogram of :math:`F(y)`; "levels" (19,) of central intervals and their
        "coverage" (19, T).
    confusion : ndarray of int64, shape (K, K), or None
        True by predicted class, of all rows; None in regression.
    """

    name: str
    task: str
    rows: int
    scores: Mapping[str, Score]
    baseline: Mapping[str, Score]
    labels: tuple[str, ...]
    targets: tuple[str, ...]
    arrays: Mapping[str, Array]
    calibration: Mapping[str, Array]
    confusion: Ints | None

    def save(self, folder: str | PathLike[str]) -> Path:
        """Save as a folder, in one step; :meth:`load` gives the same bits.

        Raises
        ------
        FileError
            If the folder cannot be written; what was there before is untouched.
        """
        tensors = {f"arrays/{key}": torch.tensor(array) for key, array in self.arrays.items()}
        tensors |= {f"calibration/{key}": torch.tensor(array) for key, array in self.calibration.items()}
        if self.confusion is not None:
            tensors["confusion"] = torch.tensor(self.confusion)
        meta = {
            "name": self.name,
            "task": self.task,
            "rows": self.rows,
            # lists, since JSON objects are written in alphabetical order
            "scores": [[key, score.value, score.error] for key, score in self.scores.items()],
            "baseline": [[key, score.value, score.error] for key, score in self.baseline.items()],
            "labels": self.labels,
            "targets": self.targets,
        }
        return io.save(folder, kind="evaluation", tensors=tensors, meta=meta)

    @staticmethod
    def load(folder: str | PathLike[str]) -> "Evaluation":
        """Load what :meth:`save` wrote.

        Raises
        ------
        FileError
            If the folder is missing, damaged, altered, foreign, or written by a newer version.
        """
        saved = io.load(folder, kinds={"evaluation"})
        try:
            return _rebuilt(saved.meta, {key: tensor.numpy() for key, tensor in saved.tensors.items()})
        except (DataError, KeyError, TypeError, ValueError) as error:
            raise FileError(
                f"{folder} does not hold an evaluation that this version can read ({error}); evaluate again"
            ) from error


def evaluate(
    estimator: PredictiveEstimator,
    X: Any,
    y: Any,
    *,
    name: str,
    targets: Sequence[str] = ("y",),
    fold: Any = None,
    sample_weight: Any = None,
) -> Evaluation:
    """Score a fitted estimator on rows whose answers are known, 16,384 of them at a time.

    Parameters
    ----------
    estimator : PredictiveEstimator
        A fitted classifier or regressor.
    X : array or data frame, shape (N, C)
        As for ``estimator.predict``.
    y : array, series or frame, shape (N,) or (N, T)
        Class labels, or numbers; none missing.
    name : str
        What these rows are called.
    targets : sequence of str, length T
        Names of the target columns.
    fold : array of int, shape (R, N), optional
        Predict each row by the networks that were kept from its fold, see
        :meth:`~fathomless.estimators.base.PredictiveEstimator.predict_dist`.
    sample_weight : array, shape (N,), optional
        How often each row counts; once by default. A row of weight k is k equal rows in every score, error and count,
        and a row of weight 0 none. Weights that are not all whole are scaled so that their sum is the number of rows.

    Returns
    -------
    Evaluation

    Raises
    ------
    DataError
        For missing targets, labels that training did not see, and tables that do not fit each other or the estimator.

    Notes
    -----
    The continuous ranked probability score is exact for Gaussian noise and up to 32 networks. Otherwise it is the
    unbiased estimate from 100 fixed draws for each row, whose noise adds about one part in a hundred to its standard
    error. Errors are NOT those of another training: they say what other rows of the same kind would have changed. The
    error of auroc is that of DeLong, DeLong & Clarke-Pearson, Biometrics 44 (1988).

    Memory, beyond X, grows with a few numbers for each row.

    Examples
    --------
    >>> from fathomless import UnboundedDepthClassifier
    >>> X = np.arange(80.0)[:, None]
    >>> classifier = UnboundedDepthClassifier(depth_law=1, width=8, epochs=100, random_state=0).fit(X, X[:, 0] > 40)
    >>> found = evaluate(classifier, X, X[:, 0] > 40, name="training rows")
    >>> found.rows, found.labels, found.scores["accuracy"].value > 0.9
    (80, ('False', 'True'), True)
    """
    if "target_" not in vars(estimator):
        raise DataError(f"this {type(estimator).__name__} is not fitted yet; call fit first")
    match estimator.target_:
        case ClassLabels() as known:
            codes = _codes(known, y, targets)
            _check_lengths(X, codes, 1, targets)
            X, codes, fold, weight = _counting(X, codes, fold, sample_weight)
            return _classification(estimator, known, X, codes, name, tuple(targets), fold, weight)
        case Indicators():
            raise DataError(
                "scores are of one class for each row; of several labels at once score each column of predict_proba, "
                "for instance with sklearn.metrics"
            )
        case TargetScale() as known:
            values = read_target(y)
            matrix = values.reshape(len(values), -1)  # (N, T)
            if matrix.shape[1] != len(known.mean):
                raise DataError(f"y has {matrix.shape[1]} columns; the estimator was fitted to {len(known.mean)}")
            _check_lengths(X, matrix, len(known.mean), targets)
            X, matrix, fold, weight = _counting(X, matrix, fold, sample_weight)
            with np.errstate(over="ignore", invalid="ignore"):  # a score that is not finite is refused
                return _regression(estimator, known, X, matrix, name, tuple(targets), fold, weight)


def _counting(X: Any, y: Array, fold: Any, weight: Any) -> tuple[Any, Array, Any, Floats | None]:
    """Return the rows that count, and how often."""
    found = row_weights(weight, len(y))
    if found is None or found.all():
        return X, y, fold, found
    kept = np.flatnonzero(found)
    return take(X, kept), y[kept], None if fold is None else np.asarray(fold)[:, kept], found[kept]


def _rows(y: Array, weight: Floats | None) -> int:
    return len(y) if weight is None else round(float(weight.sum()))


def _codes(known: ClassLabels, y: Any, targets: Sequence[str]) -> Ints:
    """Turn labels into numbers; name all that training did not see."""
    values = read_labels(y)
    new = set(values.tolist()) - set(known.labels)
    if new:
        raise DataError(
            f"target {some(targets)} holds the classes {some(sorted(new))}, which training did not see; known are "
            f"{some(known.labels)}. Drop these rows, or train with them"
        )
    return known.encode(values)


def _check_lengths(X: Any, y: Array, columns: int, targets: Sequence[str]) -> None:
    if len(X) != len(y):
        raise DataError(f"X has {len(X)} rows and y has {len(y)}; they must agree")
    if isinstance(targets, str) or len(targets) != columns:
        raise DataError(f"targets={targets!r} was given; one name for each of the {columns} target columns is needed")


def _chunks(estimator: PredictiveEstimator, X: Any, rows: int, fold: Any) -> Iterator[tuple[slice, Predictive, Ints]]:
    """Predict part after part; yield which rows it holds, their prediction, and which of them are for pictures."""
    shown = np.linspace(0, rows - 1, min(rows, _SHOWN)).round().astype(np.int64)
    by_position = getattr(X, "iloc", X)  # all tables but those of pandas are cut by position
    for start in range(0, rows, _CHUNK):
        part = slice(start, min(start + _CHUNK, rows))
        picked = shown[np.searchsorted(shown, part.start) : np.searchsorted(shown, part.stop)] - start
        own = {} if fold is None else {"fold": np.asarray(fold)[:, part]}
        yield part, estimator.predict_dist(by_position[part], **own), picked


# ------------------------------------------------------------------------------------------ classification


@dataclass(frozen=True)
class _ClassRows:
    """What the scores of a classification are made of, all (N,)."""

    log_p: Floats  # log probability of the true class
    top: Floats  # largest probability
    guess: Ints  # its class
    distance: Floats  # squared distance between probabilities and outcome
    odds: Floats  # log odds of the second class against the first

    @staticmethod
    def of(log_probs: Floats, y: Ints) -> "_ClassRows":
        """Look at log probabilities (N, K) and true classes (N,)."""
        log_p, probs = log_probs[np.arange(len(y)), y], np.exp(log_probs)
        distance = np.square(probs).sum(1) - 2.0 * np.exp(log_p) + 1.0
        with np.errstate(invalid="ignore"):  # two classes that do not occur
            odds = log_probs[:, 1] - log_probs[:, 0]
        return _ClassRows(log_p, probs.max(1), probs.argmax(1), distance, odds)

    @staticmethod
    def constant(y: Ints, classes: int, weight: Floats | None) -> "_ClassRows":
        """Look at the class frequencies of these rows, given to every row."""
        with np.errstate(divide="ignore"):  # a class that does not occur
            counts = np.bincount(y, weight, minlength=classes)
            frequency = np.log(counts / counts.sum())
        of_class = _ClassRows.of(np.broadcast_to(frequency, (classes, classes)), np.arange(classes))
        return _ClassRows(**{key: values[y] for key, values in vars(of_class).items()})


def _classification(
    estimator: PredictiveEstimator,
    known: ClassLabels,
    X: Any,
    y: Ints,
    name: str,
    targets: tuple[str, ...],
    fold: Any,
    weight: Floats | None,
) -> Evaluation:
    found, pictures = [], []
    for part, p, picked in _chunks(estimator, X, len(y), fold):
        p = cast(ClassPredictive, p)
        found.append(_ClassRows.of(p.log_probs.numpy(), y[part]))
        if len(picked):
            pictures.append(_picture_of_classes(replace(p, log_p=p.log_p[:, picked]), y[part][picked]))
    rows = _ClassRows(**_joined([vars(part) for part in found]))
    classes = len(known.labels)
    confidence, accuracy, count = reliability(rows.top, rows.guess == y, weight)
    return Evaluation(
        name=name,
        task="classification",
        rows=_rows(y, weight),
        scores=_class_scores(rows, y, classes, weight),
        baseline=_class_scores(_ClassRows.constant(y, classes, weight), y, classes, weight),
        labels=tuple(map(str, known.labels)),
        targets=targets,
        arrays=_joined(pictures),
        calibration={"confidence": confidence, "accuracy": accuracy, "count": count},
        confusion=counted(np.bincount(y * classes + rows.guess, weight, classes**2)).reshape(classes, classes),
    )


def _picture_of_classes(p: ClassPredictive, y: Ints) -> dict[str, Array]:
    parts = p.uncertainty()
    shown = {"probs": p.probs, **_parts(parts)}
    return {"y": y, **{key: value.numpy() for key, value in shown.items()}}


def _parts(parts: Uncertainty) -> dict[str, Tensor]:
    """Return the parts of each row's uncertainty, and the variances by which they were divided, if they were.

    Where weights and structure cannot be told apart, their sum is "networks".
    """
    if not parts.known:
        return {"noise": parts.noise, "networks": (parts.total - parts.noise).clamp_min(0.0)}
    shown = {"noise": parts.noise, "weights": parts.weights, "structure": parts.structure}
    return shown if parts.spread is None else {**shown, **parts.spread._asdict()}


def _class_scores(rows: _ClassRows, y: Ints, classes: int, weight: Floats | None) -> dict[str, Score]:
    hit = rows.guess == y
    confidence, accuracy, count = reliability(rows.top, hit, weight)
    scores = {
        "log_likelihood": mean(rows.log_p, weight),
        "accuracy": mean(hit.astype(np.float64), weight),
        "brier": mean(rows.distance, weight),
        "ece": Score(float(np.sum(count * np.abs(confidence - accuracy)) / count.sum()), None),
    }
    if classes == 2 and 0 < y.sum() < len(y):
        scores["auroc"] = auroc(rows.odds, y == 1, weight)
    return _finite(scores)


# ---------------------------------------------------------------------------------------------- regression


@dataclass(frozen=True)
class _NumberRows:
    """What the scores of a regression are made of, (N, T) unless said."""

    mean: Floats
    log_density: Floats  # (N,)
    crps: Floats
    pit: Floats  # F(y)


def _regression(
    estimator: PredictiveEstimator,
    known: TargetScale,
    X: Any,
    y: Floats,
    name: str,
    targets: tuple[str, ...],
    fold: Any,
    weight: Floats | None,
) -> Evaluation:
    generator = torch.Generator().manual_seed(0)
    found, pictures = [], []
    for part, p, picked in _chunks(estimator, X, len(y), fold):
        p = cast(ContinuousPredictive, p)
        found.append(_number_rows(p, y[part], generator))
        if len(picked):
            pictures.append(_picture_of_numbers(_some_rows(p, picked), y[part][picked]))
    rows = _NumberRows(**_joined([vars(part) for part in found]))
    distance = np.abs(rows.pit - 0.5)  # an interval of level a holds y if this is at most a / 2
    inside = [[average(column <= 0.5 * level, weight) for level in _LEVELS] for column in distance.T]
    bins = np.minimum((rows.pit * _PIT_BINS).astype(np.int64), _PIT_BINS - 1)
    return Evaluation(
        name=name,
        task="regression",
        rows=_rows(y, weight),
        scores=_number_scores(rows, y, weight),
        baseline=_number_scores(_constant(y, known, weight), y, weight),
        labels=(),
        targets=targets,
        arrays=_joined(pictures),
        calibration={
            "pit": counted(np.stack([np.bincount(column, weight, _PIT_BINS) for column in bins.T], 1)),
            "levels": _LEVELS.copy(),
            "coverage": np.array(inside).T,
        },
        confusion=None,
    )


def _number_rows(p: ContinuousPredictive, y: Floats, generator: torch.Generator) -> _NumberRows:
    mixture = p.mixture  # batch (N, T), also where the prediction drops the axis of targets
    return _NumberRows(
        mixture.mean.numpy(),
        p.log_prob(y[:, 0] if p.squeeze else y).numpy(),
        _crps(mixture, y, generator),
        mixture.cdf(y).numpy(),
    )


def _crps(mixture: Mixture, y: Floats, generator: torch.Generator) -> Floats:
    """Continuous ranked probability score, (N, T): exact for few Gaussians, else unbiased, from draws."""
    match mixture.component:
        case Normal(loc, scale) if len(loc) <= _PAIRED:
            return metrics.crps_normal_mixture(y, mixture.weight, loc, scale)
    return metrics.crps_samples(y, mixture.sample(_DRAWS, generator))


def _some_rows(p: ContinuousPredictive, index: Ints) -> ContinuousPredictive:
    return replace(p, component=p.component.map_parameters(lambda values: values[:, index]))


def _picture_of_numbers(p: ContinuousPredictive, y: Floats) -> dict[str, Array]:
    low, high = p.interval(0.9)
    parts = p.uncertainty()
    shown = {
        "mean": p.mean,
        "std": p.std,
        "low": low,
        "high": high,
        "pit": p.cdf(y[:, 0] if p.squeeze else y),
        **_parts(parts),
    }
    return {"y": y, **{key: value.numpy().reshape(y.shape) for key, value in shown.items()}}


def _constant(y: Floats, known: TargetScale, weight: Floats | None) -> _NumberRows:
    """Look at the normal law with the mean and standard deviation of these rows."""
    centre = average(y, weight)
    mean = np.broadcast_to(centre, y.shape)
    own = y.std(0) if weight is None else np.sqrt(average(np.square(y - centre), weight))
    spread = np.maximum(own, _LEAST_SPREAD * np.array(known.scale))  # a constant target has none
    std = np.broadcast_to(spread, y.shape)
    normal, truth = Normal(torch.tensor(mean), torch.tensor(std)), torch.tensor(y)
    log_density = normal.log_prob(truth).sum(1).numpy()
    return _NumberRows(mean, log_density, metrics.crps_gaussian(y, mean, std), normal.cdf(truth).numpy())


def _number_scores(rows: _NumberRows, y: Floats, weight: Floats | None) -> dict[str, Score]:
    square = np.square(y - rows.mean)  # (N, T)
    root = np.sqrt(average(square, weight))  # (T,)
    slope = np.divide(0.5, root, out=np.zeros_like(root), where=root > 0.0)
    scores = {
        "log_likelihood": mean(rows.log_density, weight),
        "rmse": score(root, slope * (square - average(square, weight)), weight),
        "mae": mean(np.sqrt(square), weight),
        "r2": _r2(square, y, weight),
        "crps": mean(rows.crps, weight),
    }
    for key, level in _COVERAGES.items():
        scores[key] = mean((np.abs(rows.pit - 0.5) <= 0.5 * level).astype(np.float64), weight)
    return _finite(scores)


def _r2(square: Floats, y: Floats, weight: Floats | None) -> Score:
    """One minus a ratio of means; for a constant target 1 if every error is 0, else 0."""
    spread = np.square(y - average(y, weight))  # (N, T)
    varies = y.max(0) > y.min(0)  # (T,)
    scale = np.where(varies, average(spread, weight), 1.0)
    ratio = np.where(varies, average(square, weight) / scale, square.any(0))
    return score(1.0 - ratio, np.where(varies, ratio * spread - square, 0.0) / scale, weight)


# ---------------------------------------------------------------------------------------- what both share


def _joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _finite(scores: dict[str, Score]) -> dict[str, Score]:
    for key, one in scores.items():
        if not math.isfinite(one.value) or not math.isfinite(one.error or 0.0):
            raise DataError(
                f"the score {key} is {one.value}: y holds values so far from every prediction that it leaves double "
                "precision; check the units of y"
            )
    return scores


def _rebuilt(meta: dict[str, Any], arrays: dict[str, Array]) -> Evaluation:
    """Rebuild an evaluation; what :meth:`Evaluation.save` would not write raises an error."""
    kinds = {"name": str, "task": str, "rows": int, "scores": list, "baseline": list, "labels": list, "targets": list}
    check_fields(meta, kinds, "an evaluation")
    texts = [*meta["labels"], *meta["targets"]]
    columns = len(meta["targets"]) if meta["task"] == "classification" else 1
    if meta["task"] not in _SCORES or meta["rows"] < 1 or columns != 1 or {*map(type, texts)} != {str}:
        raise DataError("its task, number of rows or names were altered")
    scores, baseline = _scores_from(meta, "scores"), _scores_from(meta, "baseline")
    if list(scores) != list(baseline):
        raise DataError("its scores and those of the constant prediction differ in kind")
    _check_arrays(meta, arrays)
    groups: dict[str, dict[str, Array]] = {"arrays": {}, "calibration": {}}
    for key in sorted(arrays.keys() - {"confusion"}):
        group, _, short = key.partition("/")
        groups[group][short] = arrays[key]
    return Evaluation(
        name=meta["name"],
        task=meta["task"],
        rows=meta["rows"],
        scores=scores,
        baseline=baseline,
        labels=tuple(meta["labels"]),
        targets=tuple(meta["targets"]),
        arrays=groups["arrays"],
        calibration=groups["calibration"],
        confusion=arrays.get("confusion"),
    )


def _scores_from(meta: Mapping[str, Any], group: str) -> dict[str, Score]:
    scores = {key: Score(value, error) for key, value, error in meta[group]}
    allowed = _SCORES[meta["task"]]
    if tuple(scores) not in (allowed, tuple(key for key in allowed if key != "auroc")):
        raise DataError(f"its {group} are {list(scores)}; expected are {list(allowed)}")
    for one in scores.values():
        if type(one.value) is not float or type(one.error) not in (float, type(None)) or (one.error or 0.0) < 0.0:
            raise DataError(f"its {group} hold {one.value} with the error {one.error}")
    return scores


def _check_arrays(meta: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Check names, data types, shapes and ranges, so that whoever draws an evaluation can trust it."""
    count = ("calibration/count", "calibration/pit", "confusion")  # not whole where weights are not
    found = {
        key: ("int64" if key in count and array.dtype == np.float64 else array.dtype.name, array.shape)
        for key, array in arrays.items()
    }
    shown = min(meta["rows"], _SHOWN, len(arrays.get("arrays/y", ())))  # fewer if rows count more than once
    classes, targets = len(meta["labels"]), len(meta["targets"])
    divided = ("between", "within") if "arrays/between" in found else ()  # where draws are a sample
    doubt = ("networks",) if "arrays/networks" in found else ("weights", "structure")
    expected: dict[str, tuple[str, tuple[int, ...]]]
    if meta["task"] == "classification":
        bins = arrays["calibration/count"].size
        expected = {f"arrays/{key}": ("float64", (shown,)) for key in ("noise", *doubt, *divided)}
        expected |= {f"calibration/{key}": ("float64", (bins,)) for key in ("confidence", "accuracy")}
        expected |= {
            "arrays/y": ("int64", (shown,)),
            "arrays/probs": ("float64", (shown, classes)),
            "calibration/count": ("int64", (bins,)),
            "confusion": ("int64", (classes, classes)),
        }
        counts = [arrays["calibration/count"], arrays["confusion"]]
    elif meta["task"] == "density":
        expected, counts = {}, []
    else:
        keys = ("y", "mean", "std", "low", "high", "pit", "noise", *doubt, *divided)
        expected = {f"arrays/{key}": ("float64", (shown, targets)) for key in keys}
        expected |= {
            "calibration/pit": ("int64", (_PIT_BINS, targets)),
            "calibration/levels": ("float64", _LEVELS.shape),
            "calibration/coverage": ("float64", (len(_LEVELS), targets)),
        }
        counts = list(arrays["calibration/pit"].T)
    wrong = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
    if wrong:
        raise DataError(
            f"its {wrong[0]} has the type and shape {found.get(wrong[0])}; expected {expected.get(wrong[0])}"
        )
    broken = [key for key, array in arrays.items() if not np.isfinite(array).all()]
    if broken:
        raise DataError(f"its {broken[0]} holds values that are not finite")
    if any(count.min() < 0 or abs(count.sum() / meta["rows"] - 1.0) > 1e-9 for count in counts):
        raise DataError(f"its counts do not add up to its {meta['rows']} rows")
    if classes and not 0 <= arrays["arrays/y"].min() <= arrays["arrays/y"].max() < classes:
        raise DataError(f"its arrays/y holds classes beyond the {classes} labels")
