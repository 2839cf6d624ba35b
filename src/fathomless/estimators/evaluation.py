r"""Evaluation of a fitted estimator on labelled rows: scores with standard errors, calibration, and rows for plots.

Every score is a mean over rows, or a smooth function of such means. Its standard error is that of the mean of its
influence values, see :mod:`~fathomless.estimators.scores`; it assumes independent rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.data.censoring import is_known, read_bounds
from fathomless.data.frames import read_labels, read_target, take
from fathomless.data.schema import check_fields, some
from fathomless.data.targets import ClassLabels, Indicators, TargetScale
from fathomless.estimators.base import PredictiveEstimator
from fathomless.estimators.conditional import ConditionalCoverage, coverage_by_group, pack, unpack
from fathomless.estimators.number_predictions import (
    COVERAGES,
    NumberPredictions,
    constant_law,
    constant_prediction,
    number_scores,
    round_targets,
    summarize_numbers,
)
from fathomless.estimators.scores import (
    Score,
    as_counts,
    auroc,
    average,
    check_finite,
    concatenate,
    mean,
    reliability,
    row_weights,
)
from fathomless.posterior import metrics
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.distributions import NumberPredictive, Predictive
from fathomless.posterior.hurdle import HurdlePredictive
from fathomless.posterior.out_of_distribution import OOD_LEVEL
from fathomless.posterior.uncertainty import Uncertainty
from fathomless.system import io
from fathomless.system.errors import DataError, FileError

__all__ = ["Evaluation", "evaluate"]

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_CHUNK = 16384  # rows predicted at once
# types of the entries that only some evaluations have
_WRITTEN_IF_SET = {"on_lattice": bool, "atoms": list, "censored": int, "gain": list, "ood_share": float}
_SHOWN = 2000  # maximum number of rows kept for plots
_PIT_BINS = 20
_LEVELS = np.arange(1, 20) / 20.0  # levels of central intervals

_SCORES = {
    "classification": ("log_likelihood", "accuracy", "brier", "ece", "rps", "auroc"),
    "regression": ("log_likelihood", "rmse", "mae", "r2", "crps", "interval_score_90", *COVERAGES),
    "density": ("log_likelihood",),
}
_OPTIONAL = {"rps", "auroc", "interval_score_90"}  # not defined for all rows, or not written by older versions


@dataclass(frozen=True, eq=False)
class Evaluation:
    r"""Scores, calibration and predictions of a fitted estimator on a set of rows, from :func:`evaluate`.

    Attributes
    ----------
    name : str
        Name of the rows: "held-out rows", "training rows" or the name of a file.
    task : str
        "classification", "regression" or "density".
    rows : int
        Number of rows of the scores; a row of weight k counts as k rows.
    scores : mapping of str to Score
        Regression: log_likelihood (joint log density, nats per row in the units of y; log probability if `on_lattice`,
        and for rows at `atoms`), rmse, mae, r2, crps, interval_score_90 (of the central 90 % interval), coverage_50,
        coverage_90, coverage_95 (fraction of rows inside the central interval); all but the first are averaged over
        targets. Evaluations of
        older versions have no interval_score_90. Classification: log_likelihood, accuracy, brier, ece, rps (ranked
        probability score) if the classes are ordered, and auroc of the second class if there are two classes and both
        occur.
    baseline : mapping of str to Score
        The same scores of a constant prediction fitted to these rows: their class frequencies, or a normal distribution
        with their mean and standard deviation.
    labels : tuple of str
        Names of the K classes; () in regression.
    targets : tuple of str
        Names of the T target columns.
    arrays : mapping of str to ndarray
        Predictions of at most 2,000 rows, evenly spaced, for plots. Classification: "y" (n,) int64 codes into `labels`,
        "probs" (n, K), and "noise", "weights", "structure" (n,), entropies in nats. Regression: "y", "mean", "std",
        "low", "high" (90 % interval), "pit", and "noise", "weights", "structure", variances, all (n, T). If the
        contributions of weights and structure cannot be separated, "networks" is their sum.
    calibration : mapping of str to ndarray
        Calibration of all rows. Classification: "confidence", "accuracy", "count" of the nonempty bins among 15 equal
        ones. Regression: "pit" (20, T) int64, the histogram of :math:`F(y)`; "levels" (19,) of central intervals and
        their "coverage" (19, T). On a lattice F(y) is drawn uniformly between the probabilities below and up to y, and
        both are exactly uniform for the true law, unlike the coverage of `scores`, whose intervals end at points.
    confusion : ndarray of int64, shape (K, K), or None
        Counts of true class by predicted class, over all rows; None in regression.
    conditional : tuple of ConditionalCoverage
        Coverage of the 90 % intervals in quarters by width and by prediction, and in groups of columns; empty in
        classification, and in evaluations of older versions.
    on_lattice : bool
        True if predictions are distributions on a lattice, see
        :class:`~fathomless.posterior.lattice.LatticePredictive`.
    atoms : tuple of float
        Values of the target that are predicted apart from others, see
        :class:`~fathomless.posterior.hurdle.HurdlePredictive`.
    censored : int
        Number of censored rows; each counts once, whatever its weight. In log_likelihood they have the log probability
        between their bounds. In coverage and calibration, F(y) of a censored row is drawn uniformly between the values
        at its bounds, which makes F(y) of all rows uniform under the true law. The other scores and `arrays` are those
        of rows with known targets. With censoring on the right these are the rows with small targets: their errors and
        their coverage differ from those of all rows.
    gain : Score, optional
        Difference of the log-likelihoods of the predictions and of the constant prediction, in nats per row, with the
        standard error of the paired difference. None in classification, and in evaluations of older versions.
    ood_share : float, optional
        Share of rows with a p-value up to 0.05 for the hypothesis that they are from the distribution of the training
        rows (``ood_p_values``); it is at most about 0.05 if they are. None for out-of-fold rows, and if the fit has
        no p-values.
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
    conditional: tuple[ConditionalCoverage, ...] = ()
    on_lattice: bool = False
    atoms: tuple[float, ...] = ()
    censored: int = 0
    gain: Score | None = None
    ood_share: float | None = None

    def save(self, folder: str | PathLike[str]) -> Path:
        """Save to a folder, atomically and without loss of precision.

        Raises
        ------
        FileError
            If the folder cannot be written; existing files are then unchanged.
        """
        tensors = {f"arrays/{key}": torch.tensor(array) for key, array in self.arrays.items()}
        tensors |= {f"calibration/{key}": torch.tensor(array) for key, array in self.calibration.items()}
        if self.confusion is not None:
            tensors["confusion"] = torch.tensor(self.confusion)
        meta = {
            "name": self.name,
            "task": self.task,
            "rows": self.rows,
            # lists keep the order of the scores; JSON objects are written in alphabetical order
            "scores": [[key, score.value, score.error] for key, score in self.scores.items()],
            "baseline": [[key, score.value, score.error] for key, score in self.baseline.items()],
            "labels": self.labels,
            "targets": self.targets,
            **({"on_lattice": True} if self.on_lattice else {}),
            **({"atoms": list(self.atoms)} if self.atoms else {}),
            **({"censored": self.censored} if self.censored else {}),
            **({} if self.gain is None else {"gain": [self.gain.value, self.gain.error]}),
            **({} if self.ood_share is None else {"ood_share": self.ood_share}),
        }
        if self.conditional:
            meta["conditional"] = pack(self.conditional)
        return io.save(folder, kind="evaluation", tensors=tensors, meta=meta)

    @staticmethod
    def load(folder: str | PathLike[str]) -> "Evaluation":
        """Load an evaluation saved by :meth:`save`.

        Raises
        ------
        FileError
            If the folder is missing, damaged, altered, of another kind, or written by a newer version.
        """
        saved = io.load(folder, kinds={"evaluation"})
        try:
            return _rebuild(saved.meta, {key: tensor.numpy() for key, tensor in saved.tensors.items()})
        except (DataError, KeyError, TypeError, ValueError) as error:
            raise FileError(
                f"{folder} does not contain an evaluation that this version can load ({error}); evaluate again"
            ) from error


def evaluate(
    estimator: PredictiveEstimator,
    X: Any,
    y: Any,
    *,
    name: str,
    targets: Sequence[str] | None = None,
    fold: Any = None,
    sample_weight: Any = None,
    censored: Any = None,
) -> Evaluation:
    """Score a fitted estimator on labelled rows, in chunks of 16,384 rows.

    Parameters
    ----------
    estimator : PredictiveEstimator
        Fitted classifier or regressor.
    X : array or data frame, shape (N, C)
        Rows, as for ``estimator.predict``.
    y : array, series or frame, shape (N,) or (N, T)
        Class labels or numbers, without missing values; two columns of bounds with ``censored="interval"``.
    name : str
        Name of these rows.
    targets : sequence of str, length T, optional
        Names of the target columns; "y", or "y0", "y1", … for several, by default.
    fold : array of int, shape (R, N), optional
        Fold of each row, for out-of-fold predictions; see
        :meth:`~fathomless.estimators.base.PredictiveEstimator.predict_dist`.
    sample_weight : array, shape (N,), optional
        Sample weights; 1 by default. A row of weight k is equivalent to k equal rows in every score, error and count,
        and rows of weight 0 are ignored. Unless all are whole numbers, weights are scaled so that their sum is the
        number of rows with a positive weight.
    censored : array, shape (N,), or "interval", optional
        Kind of each row, as in the fit of a regressor. :class:`Evaluation` has the scores of censored rows.

    Returns
    -------
    Evaluation

    Raises
    ------
    DataError
        If targets are missing, labels are unknown, or tables do not match each other or the estimator; if all targets
        are censored.

    Notes
    -----
    The continuous ranked probability score is exact for mixtures of up to 64 Gaussian or Laplace laws and for one
    Student's t law. Otherwise it is computed by quadrature of the distribution function
    (:func:`~fathomless.posterior.metrics.crps_law`). Standard errors describe the variation over samples of rows, NOT
    over repeated training. The error of auroc is that of DeLong, DeLong & Clarke-Pearson, Biometrics 44 (1988).

    In addition to X, memory is needed for a few numbers for each row.

    Examples
    --------
    >>> from fathomless import UnboundedDepthClassifier
    >>> X = np.arange(80.0)[:, None]
    >>> classifier = UnboundedDepthClassifier(depth_law=1, width=8, epochs=100, random_state=0).fit(X, X[:, 0] > 40)
    >>> evaluation = evaluate(classifier, X, X[:, 0] > 40, name="training rows")
    >>> evaluation.rows, evaluation.labels, evaluation.scores["accuracy"].value > 0.9
    (80, ('False', 'True'), True)
    """
    if "target_" not in vars(estimator):
        raise DataError(f"this {type(estimator).__name__} is not fitted yet; call fit first")
    count = len(estimator.target_.mean) if isinstance(estimator.target_, TargetScale) else 1
    if targets is None:
        targets = ("y",) if count == 1 else [f"y{t}" for t in range(count)]
    if censored is not None and not isinstance(estimator.target_, TargetScale):
        raise DataError("censored was given, but the estimator is a classifier; leave it out")
    match estimator.target_:
        case ClassLabels() as known:
            codes = _encode_labels(known, y, targets)
            _check_lengths(X, codes, 1, targets)
            X, codes, fold, weight = _drop_zero_weights(X, codes, fold, sample_weight)
            evaluation = _evaluate_classes(estimator, known, X, codes, name, tuple(targets), fold, weight)
        case Indicators():
            raise DataError(
                "evaluate needs one class for each row; for multilabel targets, score each column of predict_proba, "
                "for example with sklearn.metrics"
            )
        case TargetScale() as known:
            values = read_target(y) if censored is None else read_bounds(y, censored)
            matrix = values.reshape(len(values), -1)  # (N, T), or (N, 2) bounds
            columns = matrix.shape[1] if censored is None else 1
            if columns != len(known.mean):
                raise DataError(f"y has {columns} columns; the estimator was fitted to {len(known.mean)}")
            _check_lengths(X, matrix, len(known.mean), targets)
            X, matrix, fold, weight = _drop_zero_weights(X, matrix, fold, sample_weight)
            with np.errstate(over="ignore", invalid="ignore"):  # scores that are not finite raise an error later
                evaluation = _evaluate_numbers(estimator, known, X, matrix, name, tuple(targets), fold, weight)
    return replace(evaluation, ood_share=_share_unlike_training(estimator, X, fold, weight))


def _share_unlike_training(estimator: PredictiveEstimator, X: Any, fold: Any, weight: Floats | None) -> float | None:
    """Return the share of rows with a p-value up to 0.05; None for out-of-fold rows and without p-values."""
    predictor = getattr(estimator, "predictor_", None)  # simple models, which are scored for comparison, have none
    if fold is not None or predictor is None or predictor.training is None:
        return None
    return float(np.average(predictor.ood_p_values(X) <= OOD_LEVEL, weights=weight))


def _drop_zero_weights(X: Any, y: Array, fold: Any, weight: Any) -> tuple[Any, Array, Any, Floats | None]:
    """Return the rows with a positive weight, and their weights."""
    weights = row_weights(weight, len(y))
    if weights is None or weights.all():
        return X, y, fold, weights
    positive = np.flatnonzero(weights)
    fold = None if fold is None else np.asarray(fold)[:, positive]
    return take(X, positive), y[positive], fold, weights[positive]


def _count_rows(y: Array, weight: Floats | None) -> int:
    return len(y) if weight is None else round(float(weight.sum()))


def _encode_labels(known: ClassLabels, y: Any, targets: Sequence[str]) -> Ints:
    """Encode labels; raise an error that lists labels outside the training set."""
    values = read_labels(y)
    new = set(values.tolist()) - set(known.labels)
    if new:
        raise DataError(
            f"target {some(targets)} has the classes {some(sorted(new))}, which are not in the training set; known "
            f"classes are {some(known.labels)}. Drop these rows, or include them in training"
        )
    return known.encode(values)


def _check_lengths(X: Any, y: Array, columns: int, targets: Sequence[str]) -> None:
    if len(X) != len(y):
        raise DataError(f"X has {len(X)} rows and y has {len(y)}; they must agree")
    if isinstance(targets, str) or len(targets) != columns:
        raise DataError(f"targets={targets!r} was given; one name for each of the {columns} target columns is needed")


def _predict_chunks(
    estimator: PredictiveEstimator, X: Any, rows: int, fold: Any, among: Ints | None = None
) -> Iterator[tuple[slice, Predictive, Ints]]:
    """Yield the slice of each chunk of rows, their prediction, and the indices of its rows for plots.

    The rows for plots are evenly spaced among all rows, or among those with the ascending numbers `among`.
    """
    count = rows if among is None else len(among)
    shown = np.linspace(0, count - 1, min(count, _SHOWN)).round().astype(np.int64)
    shown = shown if among is None else among[shown]
    by_position = getattr(X, "iloc", X)  # only pandas frames need iloc for slices by position
    for start in range(0, rows, _CHUNK):
        part = slice(start, min(start + _CHUNK, rows))
        picked = shown[np.searchsorted(shown, part.start) : np.searchsorted(shown, part.stop)] - start
        options = {} if fold is None else {"fold": np.asarray(fold)[:, part]}
        yield part, estimator.predict_dist(by_position[part], **options), picked


# ------------------------------------------------------------------------------------------ classification


@dataclass(frozen=True)
class _ClassPredictions:
    """Summaries of class probabilities from which the scores are computed, all (N,)."""

    log_p: Floats  # log probability of the true class
    top: Floats  # largest probability
    guess: Ints  # its class
    distance: Floats  # squared distance between probabilities and outcome
    odds: Floats  # log odds of the second class against the first
    ranked: Floats  # ranked probability score; 0 for classes without order

    @staticmethod
    def of(log_probs: Floats, y: Ints, ranks: Sequence[int] = ()) -> "_ClassPredictions":
        """Summarize log probabilities (N, K), given the true classes (N,) and the ranks of ordered classes."""
        log_p = log_probs[np.arange(len(y)), y]
        probs = np.exp(log_probs)
        distance = np.square(probs).sum(1) - 2.0 * np.exp(log_p) + 1.0  # |p - e_y|², without a one-hot matrix
        with np.errstate(invalid="ignore"):  # both classes may have probability zero
            odds = log_probs[:, 1] - log_probs[:, 0]
        ranked = np.zeros(len(y))
        if ranks:
            ranked = metrics.ranked_probability(np.array(ranks)[y], probs[:, np.argsort(ranks)])
        return _ClassPredictions(log_p, probs.max(1), probs.argmax(1), distance, odds, ranked)

    @staticmethod
    def constant(y: Ints, classes: int, weight: Floats | None, ranks: Sequence[int] = ()) -> "_ClassPredictions":
        """Summarize the constant prediction of the class frequencies of these rows."""
        with np.errstate(divide="ignore"):  # the frequency of a class may be zero
            counts = np.bincount(y, weight, minlength=classes)
            frequency = np.log(counts / counts.sum())
        of_class = _ClassPredictions.of(np.broadcast_to(frequency, (classes, classes)), np.arange(classes), ranks)
        return _ClassPredictions(**{key: values[y] for key, values in vars(of_class).items()})


def _evaluate_classes(
    estimator: PredictiveEstimator,
    known: ClassLabels,
    X: Any,
    y: Ints,
    name: str,
    targets: tuple[str, ...],
    fold: Any,
    weight: Floats | None,
) -> Evaluation:
    predictions: list[_ClassPredictions] = []
    pictures = []
    for part, p, picked in _predict_chunks(estimator, X, len(y), fold):
        p = cast(ClassPredictive, p)
        predictions.append(_ClassPredictions.of(p.log_probs.numpy(), y[part], known.ranks))
        if len(picked):
            pictures.append(_picture_of_classes(replace(p, log_p=p.log_p[:, picked]), y[part][picked]))
    rows = _ClassPredictions(**concatenate([vars(part) for part in predictions]))
    classes = len(known.labels)
    confidence, accuracy, count = reliability(rows.top, rows.guess == y, weight)
    return Evaluation(
        name=name,
        task="classification",
        rows=_count_rows(y, weight),
        scores=_class_scores(rows, y, known, weight),
        baseline=_class_scores(_ClassPredictions.constant(y, classes, weight, known.ranks), y, known, weight),
        labels=tuple(map(str, known.labels)),
        targets=targets,
        arrays=concatenate(pictures),
        calibration={"confidence": confidence, "accuracy": accuracy, "count": count},
        confusion=as_counts(np.bincount(y * classes + rows.guess, weight, classes**2)).reshape(classes, classes),
    )


def _picture_of_classes(p: ClassPredictive, y: Ints) -> dict[str, Array]:
    parts = p.uncertainty()
    shown = {"probs": p.probs, **_uncertainty_arrays(parts)}
    return {"y": y, **{key: value.numpy() for key, value in shown.items()}}


def _uncertainty_arrays(parts: Uncertainty) -> dict[str, Tensor]:
    """Return the uncertainty components of each row, and the variances of their decomposition if it was computed.

    If the contributions of weights and structure cannot be separated, their sum is "networks".
    """
    if not parts.known:
        return {"noise": parts.noise, "networks": (parts.total - parts.noise).clamp_min(0.0)}
    shown = {"noise": parts.noise, "weights": parts.weights, "structure": parts.structure}
    return shown if parts.spread is None else {**shown, **parts.spread._asdict()}


def _class_scores(rows: _ClassPredictions, y: Ints, known: ClassLabels, weight: Floats | None) -> dict[str, Score]:
    hit = rows.guess == y
    confidence, accuracy, count = reliability(rows.top, hit, weight)
    scores = {
        "log_likelihood": mean(rows.log_p, weight),
        "accuracy": mean(hit.astype(np.float64), weight),
        "brier": mean(rows.distance, weight),
        "ece": Score(float(np.sum(count * np.abs(confidence - accuracy)) / count.sum()), None),
    }
    if known.ranks:
        scores["rps"] = mean(rows.ranked, weight)
    if len(known.labels) == 2 and 0 < y.sum() < len(y):
        scores["auroc"] = auroc(rows.odds, y == 1, weight)
    return check_finite(scores)


# ---------------------------------------------------------------------------------------------- regression


def _evaluate_numbers(
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
    predictions: list[NumberPredictions] = []
    pictures = []
    on_lattice, atoms = False, tuple[float, ...]()
    if y.shape[1] > len(known.mean) and is_known(y).all():
        y = y[:, :1]
    exact = None if y.shape[1] == len(known.mean) else np.flatnonzero(is_known(y))
    if exact is not None and not len(exact):
        raise DataError(f"all {len(y)} targets are censored; rows with known targets are needed for the scores")
    for part, p, picked in _predict_chunks(estimator, X, len(y), fold, exact):
        p = cast(NumberPredictive, p)
        on_lattice, atoms = p.discrete, p.atoms if isinstance(p, HurdlePredictive) else ()
        predictions.append(summarize_numbers(p, y[part], generator, censored=exact is not None))
        if len(picked):
            pictures.append(_picture_of_numbers(p.take(picked), y[part][picked][:, : len(known.mean)]))
    rows = NumberPredictions(**concatenate([vars(part) for part in predictions]))
    distance = np.abs(rows.pit - 0.5)  # the central interval of level a contains y if this is at most a / 2
    inside = [[average(column <= 0.5 * level, weight) for level in _LEVELS] for column in distance.T]
    bins = np.minimum((rows.pit * _PIT_BINS).astype(np.int64), _PIT_BINS - 1)
    if exact is None:
        constant = constant_prediction(y, known, weight, generator, on_lattice, atoms)
    else:
        constant = constant_law(y, known, weight, generator)
    scores, baseline = (number_scores(part, y, weight, exact) for part in (rows, constant))
    return Evaluation(
        name=name,
        task="regression",
        rows=_count_rows(y, weight),
        scores=scores,
        baseline=baseline,
        labels=(),
        targets=targets,
        arrays=concatenate(pictures),
        calibration={
            "pit": as_counts(np.stack([np.bincount(column, weight, _PIT_BINS) for column in bins.T], 1)),
            "levels": _LEVELS.copy(),
            "coverage": np.array(inside).T,
        },
        confusion=None,
        conditional=coverage_by_group(
            vars(estimator).get("schema_"),
            X,
            targets,
            mean=rows.mean,
            low=rows.low,
            high=rows.high,
            cdf=rows.pit,
            weight=weight,
        ),
        on_lattice=on_lattice,
        atoms=atoms,
        censored=0 if exact is None else len(y) - len(exact),
        gain=mean(rows.log_density - constant.log_density, weight),
    )


def _picture_of_numbers(p: NumberPredictive, y: Floats) -> dict[str, Array]:
    low, high = p.interval(0.9)
    truth = y[:, 0] if p.squeeze else y
    point = round_targets(p, torch.tensor(truth))
    pit = 0.5 * (p.cdf_before(point) + p.cdf(point))  # the middle of the probabilities below and up to y
    parts = p.uncertainty()
    shown = {
        "mean": p.mean,
        "std": p.std,
        "low": low,
        "high": high,
        "pit": pit,
        **_uncertainty_arrays(parts),
    }
    return {"y": y, **{key: value.numpy().reshape(y.shape) for key, value in shown.items()}}


# ------------------------------------------------------------------------------------------------------- files


def _rebuild(meta: dict[str, Any], arrays: dict[str, Array]) -> Evaluation:
    """Rebuild an evaluation; raise an error for content that :meth:`Evaluation.save` does not write."""
    kinds = {"name": str, "task": str, "rows": int, "scores": list, "baseline": list, "labels": list, "targets": list}
    groups_of_rows = unpack(meta.get("conditional", []))  # evaluations of older versions have none
    kinds |= {key: kind for key, kind in _WRITTEN_IF_SET.items() if key in meta}
    check_fields({key: value for key, value in meta.items() if key != "conditional"}, kinds, "an evaluation")
    texts = [*meta["labels"], *meta["targets"]]
    columns = len(meta["targets"]) if meta["task"] == "classification" else 1
    if meta["task"] not in _SCORES or meta["rows"] < 1 or columns != 1 or {*map(type, texts)} != {str}:
        raise DataError("its task, number of rows or names were altered")
    if not 0.0 <= meta.get("ood_share", 0.0) <= 1.0:
        raise DataError("its share of rows unlike the training rows is not between 0 and 1")
    scores = _scores_from(meta, "scores")
    baseline = _scores_from(meta, "baseline")
    if list(scores) != list(baseline):
        raise DataError("its scores and those of the constant prediction have different names")
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
        conditional=groups_of_rows,
        on_lattice=meta.get("on_lattice", False),
        atoms=tuple(map(float, meta.get("atoms", []))),
        censored=meta.get("censored", 0),
        gain=Score(*meta["gain"]) if "gain" in meta else None,
        ood_share=meta.get("ood_share"),
    )


def _scores_from(meta: Mapping[str, Any], group: str) -> dict[str, Score]:
    scores = {key: Score(value, error) for key, value, error in meta[group]}
    allowed = _SCORES[meta["task"]]
    if tuple(scores) != tuple(key for key in allowed if key in scores or key not in _OPTIONAL):
        raise DataError(f"its {group} are {list(scores)}; expected are {list(allowed)}")
    for entry in scores.values():
        value, error = entry.value, entry.error
        if type(value) is not float or type(error) not in (float, type(None)) or (error or 0.0) < 0.0:
            raise DataError(f"its {group} contain {value} with the error {error}")
    return scores


def _check_arrays(meta: Mapping[str, Any], arrays: Mapping[str, Array]) -> None:
    """Check names, data types, shapes and ranges, so that plots of a loaded evaluation need no checks."""
    count = ("calibration/count", "calibration/pit", "confusion")  # float64 if sample weights are not whole numbers
    actual = {
        key: ("int64" if key in count and array.dtype == np.float64 else array.dtype.name, array.shape)
        for key, array in arrays.items()
    }
    shown = min(meta["rows"], _SHOWN, len(arrays.get("arrays/y", ())))  # fewer if rows have weights above 1
    classes = len(meta["labels"])
    targets = len(meta["targets"])
    divided = ("between", "within") if "arrays/between" in actual else ()  # variances, only for sampled draws
    doubt = ("networks",) if "arrays/networks" in actual else ("weights", "structure")
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
        expected = {}
        counts = []
    else:
        keys = ("y", "mean", "std", "low", "high", "pit", "noise", *doubt, *divided)
        expected = {f"arrays/{key}": ("float64", (shown, targets)) for key in keys}
        expected |= {
            "calibration/pit": ("int64", (_PIT_BINS, targets)),
            "calibration/levels": ("float64", _LEVELS.shape),
            "calibration/coverage": ("float64", (len(_LEVELS), targets)),
        }
        counts = list(arrays["calibration/pit"].T)
    wrong = sorted(key for key in actual.keys() | expected.keys() if actual.get(key) != expected.get(key))
    if wrong:
        raise DataError(
            f"its {wrong[0]} has the type and shape {actual.get(wrong[0])}; expected {expected.get(wrong[0])}"
        )
    broken = [key for key, array in arrays.items() if not np.isfinite(array).all()]
    if broken:
        raise DataError(f"its {broken[0]} has values that are not finite")
    if any(count.min() < 0 or abs(count.sum() / meta["rows"] - 1.0) > 1e-9 for count in counts):
        raise DataError(f"its counts do not add up to its {meta['rows']} rows")
    if classes and not 0 <= arrays["arrays/y"].min() <= arrays["arrays/y"].max() < classes:
        raise DataError(f"its arrays/y has classes beyond the {classes} labels")
