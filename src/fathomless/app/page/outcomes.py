"""Section of a page on predictions and observations: residuals, confusion matrix, and costs of thresholds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt
from sklearn.metrics import precision_recall_curve, roc_curve

from fathomless import plots
from fathomless.data.frames import space_evenly
from fathomless.estimators.evaluation import Evaluation
from fathomless.plots.page import Figure, Group, TextTable, format_count, join_words, number, percent, picture

__all__ = ["TARGETS", "by_target", "predictions", "rarer_class"]

#: Maximum number of targets with pictures.
TARGETS = 4
_CLASSES = 30  # maximum number of classes in a confusion matrix
_POINTS = 200  # maximum number of points of a curve
_COSTS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # cost of a false negative, in false positives

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Predictions:
    """Text, possibly empty, and pictures with tables on predictions."""

    text: str
    groups: Sequence[Group]


def by_target(first: Evaluation, draw: Callable[[Evaluation, int, str], Sequence[Figure]]) -> list[Group]:
    """Return a group of pictures for each of the first targets."""
    return [Group(target, draw(first, t, target)) for t, target in enumerate(first.targets[:TARGETS])]


def predictions(first: Evaluation) -> Predictions:
    """Return pictures of predictions and observations."""
    if first.task == "classification":
        return _confusion(first)
    return Predictions("", by_target(first, _regression_figures))


def _regression_figures(first: Evaluation, t: int, target: str) -> list[Figure]:
    """Return predicted against observed values, intervals and residuals of one target."""
    y, mean, low, high = (first.arrays[name][:, t] for name in ("y", "mean", "low", "high"))
    residual = y - mean
    width = high - low
    worst = int(np.argmax(np.abs(residual)))
    coverage = float(np.mean((low <= y) & (y <= high)))
    return [
        picture(
            f"observed-{t}",
            partial(plots.predicted_against_observed, y, mean, target=target),
            says=f"Predicted against observed {target} for {format_count(len(y), 'row')}. Observations lie between "
            f"{number(y.min())} and {number(y.max())}, predictions between {number(mean.min())} and "
            f"{number(mean.max())}. Largest residual: observed {number(y[worst])}, predicted {number(mean[worst])}.",
            caption="Predicted means against observations. The diagonal is a perfect prediction.",
        ),
        picture(
            f"intervals-{t}",
            partial(plots.intervals, y, mean, low, high, target=target),
            says=f"90 % prediction intervals and observations of {target}, rows sorted by prediction. Coverage over "
            f"{format_count(len(y), 'row')}: {percent(coverage)}. Widths of the intervals: {number(width.min())} to "
            f"{number(width.max())}.",
            caption="90 % prediction intervals and observations, sorted by prediction.",
        ),
        picture(
            f"residuals-{t}",
            partial(plots.residuals, y, mean, target=target),
            says=f"Residuals (observed minus predicted {target}) against the prediction: mean "
            f"{number(float(residual.mean()))}, between {number(float(residual.min()))} and "
            f"{number(float(residual.max()))}.",
            caption="Residuals, with the mean of each tenth of the rows ± two standard errors. A curved mean indicates "
            "bias; a fan indicates noise that depends on the prediction.",
        ),
    ]


def _confusion(first: Evaluation) -> Predictions:
    """Return the confusion matrix, recall and precision of each class, and the most frequent errors."""
    counts = np.rint(cast(Floats, first.confusion)).astype(np.int64)  # sample weights need not be integers
    size = len(first.labels)
    correct, rows, predicted = counts.diagonal(), counts.sum(1), counts.sum(0)
    wrong = counts - np.diag(correct)
    order = [divmod(int(i), size) for i in np.argsort(-wrong, axis=None, kind="stable")[:3]]
    errors = [f"{first.labels[i]} as {first.labels[j]} ({wrong[i, j]:,})" for i, j in order if wrong[i, j]]
    text = f"Most frequent errors: {join_words(errors)}." if errors else "No row was misclassified."
    worst = np.sort(np.argsort(-(wrong.sum(1) + wrong.sum(0)), kind="stable")[:_CLASSES])
    drawn = [first.labels[i] for i in worst]
    some = f" Only the {len(drawn)} classes with the most errors of {size} are shown." if size > _CLASSES else ""
    figure = picture(
        "confusion",
        partial(plots.confusion, counts[np.ix_(worst, worst)], drawn),
        height=min(2.6 + 0.08 * len(drawn), 4.2),
        says=f"Confusion matrix of true against predicted classes, {size} by {size}. {correct.sum():,} of "
        f"{rows.sum():,} rows lie on the diagonal. {text}",
        caption=f"Confusion matrix: true classes in rows, predicted classes in columns.{some}",
    )
    table = []
    for label, n, m, hits in zip(first.labels, rows.tolist(), predicted.tolist(), correct.tolist(), strict=True):
        recall = percent(hits / n) if n else "–"
        precision = percent(hits / m) if m else "–"
        table.append((label, f"{n:,}", recall, precision))
    head = ("Class", "Rows", "Recall", "Precision")
    groups = [Group("Confusion matrix", [figure], TextTable("Recall and precision by class", head, table))]
    return Predictions(text, [*groups, *_two_classes(first)] if size == 2 else groups)


def rarer_class(first: Evaluation) -> int:
    """Return the number of the class with fewer rows, of two; the second one if they have as many."""
    return int(np.mean(first.arrays["y"] == 1) <= 0.5)


def _two_classes(first: Evaluation) -> list[Group]:
    """Return the ROC, precision-recall, lift and threshold curves of the rarer class, and costs of thresholds."""
    shown = rarer_class(first)
    y = first.arrays["y"] == shown
    p = first.arrays["probs"][:, shown]
    label = first.labels[shown]
    if y.all() or not y.any():
        return []
    prevalence = float(y.mean())
    false_positives, true_positives, thresholds = (_thin(values) for values in roc_curve(y, p, drop_intermediate=False))
    precision, recall, _ = (_thin(values) for values in precision_recall_curve(y, p))
    predicted = false_positives * (1.0 - prevalence) + true_positives * prevalence  # share of all rows
    lift = true_positives[predicted > 0.0] / predicted[predicted > 0.0]
    thresholds = np.clip(thresholds, 0.0, 1.0)  # the first one is infinite: no row is predicted as the class
    lift_of_tenth = float(np.interp(0.1, predicted[predicted > 0.0], lift))
    precision_of_half = float(np.interp(0.5, recall[::-1], precision[::-1]))
    figures = [
        picture(
            "roc",
            partial(plots.roc, false_positives, true_positives, label=label),
            says=f"ROC curve (receiver operating characteristic) of {label}: true positive rate "
            f"{percent(float(np.interp(0.1, false_positives, true_positives)))} at a false positive rate of 10 %.",
            caption=f"ROC curve of {label}: true positive rate against false positive rate.",
        ),
        picture(
            "precision-recall",
            partial(plots.precision_recall, recall, precision, prevalence, label=label),
            says=f"Precision against recall of {label}, which is {percent(prevalence)} of the rows: precision "
            f"{percent(precision_of_half)} at a recall of 50 %.",
            caption=f"Precision against recall of {label}.",
        ),
        picture(
            "lift",
            partial(plots.lift, predicted[predicted > 0.0], lift, label=label),
            says=f"Lift of {label}: {number(lift_of_tenth)} among the 10 % of the rows with the highest probability.",
            caption=f"Lift: share of {label} among the most probable rows, divided by its share among all rows.",
        ),
        picture(
            "thresholds",
            partial(plots.thresholds, thresholds, 1.0 - true_positives, false_positives, label=label),
            says=f"False negative rate and false positive rate of {label} by threshold: at 0.5, "
            f"{percent(float(np.interp(0.5, thresholds[::-1], 1.0 - true_positives[::-1])))} and "
            f"{percent(float(np.interp(0.5, thresholds[::-1], false_positives[::-1])))}.",
            caption=f"False negative and false positive rates of {label} by threshold on its probability.",
        ),
    ]
    return [Group(f"Classification as {label}", figures, _costs(y, p, label))]


def _costs(y: npt.NDArray[np.bool_], p: Floats, label: str) -> TextTable:
    """Return the costs at the optimal threshold, 1 / (1 + cost of a false negative in false positives)."""
    rows = []
    for cost in _COSTS:
        threshold = 1.0 / (1.0 + cost)
        predicted = p >= threshold
        false_negatives = float((y & ~predicted).mean())
        false_positives = float((predicted & ~y).mean())
        # Without a model, the cheaper of two choices: predict the class for all rows or for none.
        without = min(cost * float(y.mean()), float((~y).mean()))
        rows.append(
            (
                f"{cost:g}",
                f"{threshold:.3g}",
                percent(float(predicted.mean())),
                percent(false_negatives),
                percent(false_positives),
                number(100.0 * (cost * false_negatives + false_positives)),
                number(100.0 * without),
            )
        )
    head = (
        "Cost of a false negative",
        "Threshold",
        "Predicted positive",
        "False negatives",
        "False positives",
        "Cost per 100 rows",
        "Cost without a model",
    )
    caption = f"Costs of classification as {label}, in units of one false positive; shares of all rows"
    return TextTable(caption, head, rows, text=0)


def _thin(values: npt.ArrayLike) -> Floats:
    """Keep at most 200 evenly spaced points of a curve, including both ends."""
    array = np.asarray(values, dtype=np.float64)
    return array[space_evenly(len(array), _POINTS)]
