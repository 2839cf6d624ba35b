"""What a page shows of predictions beside the truth: misses of numbers, and of classes what a threshold costs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np
import numpy.typing as npt
from sklearn.metrics import precision_recall_curve, roc_curve

from fathomless import plots
from fathomless.estimators.evaluation import Evaluation
from fathomless.plots.page import Figure, Group, TextTable, format_count, join_words, number, percent, picture

__all__ = ["TARGETS", "by_target", "predictions"]

#: Targets that get pictures.
TARGETS = 4
_CLASSES = 30  # that a picture of mistakes holds
_POINTS = 200  # of a curve
_COSTS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # of a row of the class that is missed, in false alarms

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Predictions:
    """The part of a page on predictions: a sentence or none, and pictures with tables."""

    text: str
    groups: Sequence[Group]


def by_target(first: Evaluation, draw: Callable[[Evaluation, int, str], Sequence[Figure]]) -> list[Group]:
    """Draw for each of the first targets."""
    return [Group(target, draw(first, t, target)) for t, target in enumerate(first.targets[:TARGETS])]


def predictions(first: Evaluation) -> Predictions:
    """Return pictures of the predictions beside the truth."""
    if first.task == "classification":
        return _confusion(first)
    return Predictions("", by_target(first, _predicted))


def _predicted(first: Evaluation, t: int, target: str) -> list[Figure]:
    y, mean, low, high = (first.arrays[name][:, t] for name in ("y", "mean", "low", "high"))
    worst, width = int(np.argmax(np.abs(y - mean))), high - low
    return [
        picture(
            f"observed-{t}",
            partial(plots.predicted_against_observed, y, mean, target=target),
            says=f"Predicted against observed {target} for {format_count(len(y), 'row')}. Observations lie between "
            f"{number(y.min())} and {number(y.max())}, predictions between {number(mean.min())} and "
            f"{number(mean.max())}. The largest miss: observed {number(y[worst])}, predicted {number(mean[worst])}.",
            caption="Predicted means and observations. A perfect prediction lies on the diagonal.",
        ),
        picture(
            f"intervals-{t}",
            partial(plots.intervals, y, mean, low, high, target=target),
            says=f"90 % intervals and observations of {target}, rows in the order of their prediction. Of "
            f"{format_count(len(y), 'row')} {percent(float(np.mean((low <= y) & (y <= high))))} lie inside; the "
            f"intervals are between {number(width.min())} and {number(width.max())} wide.",
            caption="90 % intervals and observations, sorted by the prediction.",
        ),
        picture(
            f"residuals-{t}",
            partial(plots.residuals, y, mean, target=target),
            says=f"Observed less predicted {target}, against the prediction: {number(float((y - mean).mean()))} on "
            f"average, between {number(float((y - mean).min()))} and {number(float((y - mean).max()))}.",
            caption="Residuals, and the mean of each tenth of the rows, ± two standard errors. A bend says that the "
            "mean misses something; a fan, that the noise follows the prediction.",
        ),
    ]


def _confusion(first: Evaluation) -> Predictions:
    counts = np.rint(cast(Floats, first.confusion)).astype(np.int64)  # weights need not be whole
    size, right, rows, named = len(first.labels), counts.diagonal(), counts.sum(1), counts.sum(0)
    wrong = counts - np.diag(right)
    order = [divmod(int(i), size) for i in np.argsort(-wrong, axis=None, kind="stable")[:3]]
    mistakes = [f"{first.labels[i]} as {first.labels[j]} ({wrong[i, j]:,})" for i, j in order if wrong[i, j]]
    text = f"Taken for another class most often: {join_words(mistakes)}." if mistakes else "No row was misclassified."
    worst = np.sort(np.argsort(-(wrong.sum(1) + wrong.sum(0)), kind="stable")[:_CLASSES])
    drawn = [first.labels[i] for i in worst]
    some = f" Of {size} classes, these are in most mistakes." if size > _CLASSES else ""
    figure = picture(
        "confusion",
        partial(plots.confusion, counts[np.ix_(worst, worst)], drawn),
        height=min(2.6 + 0.08 * len(drawn), 4.2),
        says=f"Matrix of true against predicted classes, {size} by {size}. {right.sum():,} of {rows.sum():,} rows lie "
        f"on the diagonal. {text}",
        caption=f"True classes in rows, predicted classes in columns.{some}",
    )
    table = [
        (label, f"{n:,}", percent(hit / n) if n else "–", percent(hit / m) if m else "–")
        for label, n, m, hit in zip(first.labels, rows.tolist(), named.tolist(), right.tolist(), strict=True)
    ]
    head = ("Class", "Rows", "Found (recall)", "Right when named (precision)")
    groups = [Group("Which class is taken for which", [figure], TextTable("Class by class", head, table))]
    return Predictions(text, [*groups, *_two_classes(first)] if size == 2 else groups)


def _two_classes(first: Evaluation) -> list[Group]:
    """Draw how the probability of the second class orders rows, and what a threshold on it costs."""
    y, p, label = first.arrays["y"] == 1, first.arrays["probs"][:, 1], first.labels[1]
    if y.all() or not y.any():
        return []
    base = float(y.mean())
    alarms, found, at = (_thinned(values) for values in roc_curve(y, p, drop_intermediate=False))
    right, recall, _ = (_thinned(values) for values in precision_recall_curve(y, p))
    taken = alarms * (1.0 - base) + found * base  # share of the rows that are named
    times = found[taken > 0.0] / taken[taken > 0.0]
    at = np.clip(at, 0.0, 1.0)  # the first is infinite: no row is named
    tenth = float(np.interp(0.1, taken[taken > 0.0], times))
    half = float(np.interp(0.5, recall[::-1], right[::-1]))
    figures = [
        picture(
            "roc",
            partial(plots.roc, alarms, found, label=label),
            says=f"Receiver operating characteristic of {label}: with 10 % of false alarms, "
            f"{percent(float(np.interp(0.1, alarms, found)))} are found.",
            caption=f"What is found of {label}, and how many of the others with it, from the most probable on.",
        ),
        picture(
            "precision-recall",
            partial(plots.precision_recall, recall, right, base, label=label),
            says=f"Precision against recall of {label}, {percent(base)} of the rows: where half is found, "
            f"{percent(half)} of those named are right.",
            caption=f"How many of the rows named {label} are so, for what is found of it.",
        ),
        picture(
            "lift",
            partial(plots.lift, taken[taken > 0.0], times, label=label),
            says=f"Lift of {label}: among the most probable 10 % of the rows there are {number(tenth)} times as many "
            "as among as many at random.",
            caption="How many times as many there are among the most probable rows as by chance.",
        ),
        picture(
            "thresholds",
            partial(plots.thresholds, at, 1.0 - found, alarms, label=label),
            says=f"Share of {label} that is missed and of false alarms at each threshold: at 0.5, "
            f"{percent(float(np.interp(0.5, at[::-1], 1.0 - found[::-1])))} and "
            f"{percent(float(np.interp(0.5, at[::-1], alarms[::-1])))}.",
            caption=f"What is missed of {label}, and false alarms, if rows are named from a probability on.",
        ),
    ]
    return [Group(f"Finding {label}", figures, _costs(y, p, label))]


def _costs(y: npt.NDArray[np.bool_], p: Floats, label: str) -> TextTable:
    """Say what the best threshold, 1 / (1 + cost of a miss), costs where misses and false alarms cost unequally."""
    rows = []
    for cost in _COSTS:
        threshold = 1.0 / (1.0 + cost)
        named = p >= threshold
        missed, alarms = float((y & ~named).mean()), float((named & ~y).mean())
        without = min(cost * float(y.mean()), float((~y).mean()))
        rows.append(
            (
                f"{cost:g}",
                f"{threshold:.3g}",
                percent(float(named.mean())),
                percent(missed),
                percent(alarms),
                number(100.0 * (cost * missed + alarms)),
                number(100.0 * without),
            )
        )
    head = ("A miss costs", "Name from", "Named", "Missed", "False alarms", "Cost of 100 rows", "Without the fit")
    return TextTable(f"Costs of finding {label}, in false alarms; shares of all rows", head, rows, text=0)


def _thinned(values: npt.ArrayLike) -> Floats:
    """Keep at most 200 points of a curve, evenly spaced, with its ends."""
    array = np.asarray(values, dtype=np.float64)
    return array[np.unique(np.linspace(0, len(array) - 1, min(len(array), _POINTS)).round().astype(np.int64))]
