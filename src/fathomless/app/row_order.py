"""Findings on tables whose rows may be in the order of time or place."""

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from fathomless.estimators.evaluation import Evaluation
from fathomless.estimators.findings import Finding, FitSummary

__all__ = ["find_last_rows", "find_ordered_rows"]

Array = npt.NDArray[np.float64]

_ORDERED = 0.2  # smallest reported correlation of the targets of neighbouring rows
_MANY_ORDERED = 5.0  # number of its standard errors in random order
_SHARED_FOLDS = 0.2  # share of neighbours in one fold, beyond that of random folds, if folds depend on the order
_LEVEL = 0.9  # of the intervals whose coverage is compared
_ERRORS = 3.0  # number of standard errors of a significant difference
_MATERIAL = 0.05  # smallest reported decrease of coverage, and of the log probability of classes in nats
_FEW = 20  # smallest number of rows of the last block


def find_ordered_rows(summary: FitSummary) -> Iterator[Finding]:
    """Report targets that are similar in neighbouring rows, if random folds take these apart."""
    unseen = summary.unseen
    y = None if unseen is None else unseen.arrays.get("y")
    if unseen is None or y is None or _folds_keep_neighbours(summary.estimator.fold_):
        return
    correlation = _agreement(y) if unseen.labels else max(_rank_autocorrelation(column) for column in y.T)
    error = 1.0 / math.sqrt(len(y))
    if correlation < max(_ORDERED, _MANY_ORDERED * error):
        return
    blocks = f"set {summary.show('cv__order')} to 'blocks', or " if "cv__order" in summary.given else ""
    yield Finding(
        "advice",
        "Rows may be in the order of time",
        f"The targets of neighbouring rows are similar: their correlation is {correlation:.2f}, and 0 ± {error:.2g} in "
        "random order. Folds are random, so that most rows have neighbours in the training rows of every network.",
        f"If rows are in the order of time or place, scores of later rows will be lower: {blocks}give groups, and "
        "measure them by fathomless compare --order forward. If the table was sorted by a column, ignore this.",
    )


def find_last_rows(summary: FitSummary) -> Iterator[Finding]:
    """Report a last block of rows that is predicted worse than the others.

    The networks of the last block of consecutive rows were fitted to earlier rows alone, as for rows to come. Other
    blocks have training rows on both sides.
    """
    fold, unseen = summary.estimator.fold_, summary.unseen
    if fold is None or unseen is None or "y" not in unseen.arrays:
        return
    blocks = fold[0][fold[0] >= 0]
    count = len(unseen.arrays["y"])
    last = round(count * float((blocks == blocks.max()).mean()))
    if (np.diff(blocks) < 0).any() or not _FEW <= last < count:
        return
    if text := _compare_classes(unseen, last) if unseen.labels else _compare_numbers(unseen, last):
        yield Finding(
            "problem",
            "Later rows are predicted worse",
            f"The last of {int(blocks.max()) + 1} blocks of rows was predicted by networks that were fitted to earlier "
            f"rows alone. {text} Expect this, or worse, of rows to come: the scores on this page are those of all "
            "blocks, most of which have training rows on both sides.",
            "Measure later rows by fathomless compare --order forward. Add columns that describe the change, such as "
            "values of earlier rows, or fit the difference from the last known value.",
        )


def _compare_numbers(unseen: Evaluation, last: int) -> str | None:
    """Return a text on the target whose intervals contain clearly too few of the last rows; None without one."""
    inside = np.abs(unseen.arrays["pit"] - 0.5) <= 0.5 * _LEVEL  # (N, T)
    wrong = unseen.arrays["y"] - unseen.arrays["mean"]
    found = []
    for t, name in enumerate(unseen.targets or ("y",)):
        others, ours = inside[:-last, t].astype(float), inside[-last:, t].astype(float)
        limit = _ERRORS * math.hypot(_error(others), _error(ours, _LEVEL))
        if others.mean() - ours.mean() > max(_MATERIAL, limit):
            of_target = f" of {name}" if inside.shape[1] > 1 else ""
            ratio = float(np.sqrt(np.mean(wrong[-last:, t] ** 2) / np.mean(wrong[:-last, t] ** 2)))
            found.append(
                f"{ours.mean():.0%} of its values{of_target} are inside the {_LEVEL:.0%} intervals, and "
                f"{others.mean():.0%} of the other blocks. Its root mean square error is {ratio:.2g} times theirs."
            )
    return found[0] if found else None


def _compare_classes(unseen: Evaluation, last: int) -> str | None:
    """Return a text on a clearly lower log probability of the classes of the last rows; None without it."""
    y, probs = unseen.arrays["y"], unseen.arrays["probs"]
    score = np.log(np.maximum(probs[np.arange(len(y)), y], 1e-12))
    right = probs.argmax(1) == y
    others, ours = score[:-last], score[-last:]
    loss = float(others.mean() - ours.mean())
    if loss <= max(_MATERIAL, _ERRORS * math.hypot(_error(others), _error(ours))):
        return None
    return (
        f"The log-likelihood of its classes is lower by {loss:.2g} nats per row than that of the other blocks, and its "
        f"accuracy is {right[-last:].mean():.0%} in place of {right[:-last].mean():.0%}."
    )


def _error(values: Array, mean: float | None = None) -> float:
    """Return the standard error of a mean of neighbouring rows, whose values may be correlated.

    The variance is that of independent rows times (1 + r) / (1 - r), for the correlation r of neighbours. With `mean`,
    it is that of a share with this expectation, so that a share of one has an error too.
    """
    centred = values - values.mean()
    variance = float(centred @ centred) / len(values)
    r = float(centred[1:] @ centred[:-1]) / (variance * len(values)) if variance > 0.0 else 0.0
    r = min(max(r, 0.0), 0.9)
    variance = variance if mean is None else max(variance, mean * (1.0 - mean))
    return math.sqrt(variance * (1.0 + r) / (1.0 - r) / len(values))


def _folds_keep_neighbours(fold: npt.NDArray[np.int64] | None) -> bool:
    """Return True if the folds of neighbouring rows are equal more often than by chance: blocks, or groups."""
    if fold is None or fold.shape[1] < 2:
        return False
    shares = np.bincount(fold[0][fold[0] >= 0]) / max(1, (fold[0] >= 0).sum())
    return float((fold[0, 1:] == fold[0, :-1]).mean()) > float((shares**2).sum()) + _SHARED_FOLDS


def _agreement(codes: npt.NDArray[np.int64]) -> float:
    """Return the agreement of the classes of neighbouring rows beyond chance; 0 if rows are sorted by class."""
    same = codes[1:] == codes[:-1]
    shares = np.bincount(codes) / len(codes)
    chance = float((shares**2).sum())
    if chance == 1.0 or int((~same).sum()) < (shares > 0.0).sum():
        return 0.0
    return (float(same.mean()) - chance) / (1.0 - chance)


def _rank_autocorrelation(values: Array) -> float:
    """Return the correlation of the ranks of neighbouring values; 0 if they are sorted or constant."""
    steps = np.diff(values)
    if len(values) < 3 or (steps >= 0.0).all() or (steps <= 0.0).all():
        return 0.0
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - 0.5 * counts)[place.ravel()]
    return float(np.corrcoef(ranks[1:], ranks[:-1])[0, 1]) if ranks[1:].std() * ranks[:-1].std() > 0.0 else 0.0
