"""The part of a page that answers an analyst: is it worth its while, what drives it, which rows it misses."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fathomless import plots
from fathomless.app.page.analysis import Analysis, Peers
from fathomless.estimators.evaluation import Evaluation
from fathomless.estimators.importance import Dependence
from fathomless.estimators.scores import Score
from fathomless.plots.page import (
    Figure,
    TextTable,
    format_count,
    format_with_error,
    join_words,
    number,
    percent,
    picture,
)

__all__ = ["Insights", "insights"]

_NAMES = {"constant": "a constant", "linear": "a linear model", "boosting": "gradient boosting"}
_HEADS = {"constant": "Constant", "linear": "Linear", "boosting": "Boosting"}
_SHOWN = {  # scores of the first table
    "log_likelihood": ("Log-likelihood, nats per row", False),
    "rmse": ("RMSE", False),
    "mae": ("Mean absolute error", False),
    "crps": ("CRPS", False),
    "coverage_90": ("Inside 90 % intervals", True),
    "accuracy": ("Accuracy", True),
    "brier": ("Brier score", False),
    "auroc": ("Area under the ROC curve", False),
}
_CLASSES = 4  # that a picture of probabilities holds


@dataclass(frozen=True)
class Insights:
    """What the page shows of an analysis.

    Attributes
    ----------
    rows : str
        Which rows it is of.
    verdict : str
        Sentences: is the fit better than simple models?
    beside : TextTable or None
        Scores of the fit and of simple models.
    drivers : str
        Sentences: which columns matter.
    figures : sequence of Figure
        How much, and how.
    odd : TextTable or None
        The rows that were expected least.
    grouped : str
        Sentences: in which groups are predictions worse?
    groups : TextTable or None
        These groups.
    """

    rows: str
    verdict: str
    beside: TextTable | None
    drivers: str
    figures: Sequence[Figure]
    odd: TextTable | None
    grouped: str
    groups: TextTable | None


def insights(analysis: Analysis, first: Evaluation, labels: Sequence[str], target: str) -> Insights:
    """Put an analysis into words, tables and pictures."""
    return Insights(
        analysis.rows,
        "" if analysis.peers is None else _verdict(analysis.peers),
        None if analysis.peers is None else _beside(analysis.peers, first),
        _drivers(analysis),
        _figures(analysis, labels, target),
        _odd(analysis),
        _grouped(analysis),
        _groups(analysis, first),
    )


def _verdict(peers: Peers) -> str:
    """Say how the fit stands beside simple models, by its log density of the same rows."""
    ahead: list[str] = []
    level: list[str] = []
    back: list[str] = []
    for name, lead in peers.behind.items():
        width = 2.0 * (lead.error or 0.0)
        place = ahead if lead.value > width else back if lead.value < -width else level
        place.append(f"{_NAMES[name]} ({_signed(lead)})")
    said = [f"ahead of {join_words(ahead)}"] if ahead else []
    said += [f"not to be told from {join_words(level)}"] if level else []
    said += [f"behind {join_words(back)}"] if back else []
    text = f"By the probability that it gave to what happened, this fit is {', '.join(said)}: nats per row, ± one "
    text += "standard error. "
    if any(_NAMES["linear"] in one for one in (*level, *back)):
        much = "more" if any(_NAMES["linear"] in one for one in back) else "about as much"
        text += f"A linear model says {much}: prefer it, unless the intervals of this fit are what you need."
    elif any(_NAMES["boosting"] in one for one in back):
        text += "Boosting finds more in these columns: look at what it does with them before you settle."
    return text.strip()


def _signed(score: Score) -> str:
    value, error = format_with_error(score.value, score.error)
    return f"{'' if score.value < 0 else '+'}{value} {error}".strip()


def _beside(peers: Peers, first: Evaluation) -> TextTable:
    names = [name for name in _SHOWN if name in first.scores]
    models = [first.scores, *peers.scores.values()]
    return TextTable(
        f"On {first.name}, none of which a model was fitted to",
        ("Score", "This fit", *(_HEADS[name] for name in peers.scores)),
        [[_SHOWN[name][0], *(_written(model.get(name), *_SHOWN[name][1:]) for model in models)] for name in names],
    )


def _written(score: Score | None, share: bool) -> str:
    if score is None:
        return "–"
    if share:
        return percent(score.value)
    return " ".join(part for part in format_with_error(score.value, score.error) if part)


def _drivers(analysis: Analysis) -> str:
    moved = analysis.importance
    if moved is None:
        return "There are too many columns to move each; fathomless explain does it on demand."
    clear = [
        name for name, loss, error in zip(moved.columns, moved.loss, moved.error, strict=True) if loss > 2.0 * error
    ]
    if not clear:
        return "No column is missed where it is shuffled, by more than chance would have it."
    idle = len(moved.columns) - len(clear)
    rest = f" Of {'the other' if idle == 1 else f'the other {idle:,}'} that cannot be said." if idle else ""
    return (
        f"Predictions rest on {join_words(clear, 6)}: shuffled, they leave what happened less likely, by more than two "
        f"standard errors.{rest} A column that others can stand in for is missed less than its part in the truth is. "
        "The curves give all rows one value of a column after the other, the rest as it is, and average predictions; "
        "their bands are doubt about networks, without the noise."
    )


def _figures(analysis: Analysis, labels: Sequence[str], target: str) -> list[Figure]:
    moved = analysis.importance
    if moved is None:
        return []
    strongest = "; ".join(
        f"{name} {number(loss)}" for name, loss in zip(moved.columns[:6], moved.loss[:6].tolist(), strict=True)
    )
    found = [
        picture(
            "importance",
            partial(plots.importance, moved.columns, moved.loss, moved.error),
            says=f"Nats per row that are lost where a column is shuffled: {strongest}.",
            caption=f"Permutation importance on {analysis.rows}: three shuffles of each column.",
        )
    ]
    return found + [_curve(one, i, labels, target) for i, one in enumerate(analysis.dependence) if len(one.points) > 1]


def _curve(one: Dependence, i: int, labels: Sequence[str], target: str) -> Figure:
    which = _classes(one, labels)
    mean, lower, upper = (part[:, which] for part in (one.mean, one.lower, one.upper))
    names = [labels[k] for k in which] if labels else [target] if len(which) == 1 else [str(k + 1) for k in which]
    what = f"probability of {names[0]}" if labels and len(names) == 1 else "probability" if labels else target
    ends = f"from {number(float(mean[0, 0]))} at {one.points[0]} to {number(float(mean[-1, 0]))} at {one.points[-1]}"
    return picture(
        f"dependence-{i}",
        partial(
            plots.dependence, one.points, mean, lower, upper, names=names, column=one.column, target=f"average {what}"
        ),
        says=f"Average {what} along {one.column}: {ends}.",
        caption=f"Partial dependence on {one.column}, with {percent(one.level)} intervals.",
    )


def _classes(one: Dependence, labels: Sequence[str]) -> list[int]:
    """Choose which of several targets or classes are drawn: of two classes the second, of many those that move."""
    count = one.mean.shape[1]
    if len(labels) == 2:
        return [1]
    moving = np.argsort(-(one.mean.max(0) - one.mean.min(0)), kind="stable")[:_CLASSES]
    return sorted(moving.tolist()) if count > _CLASSES else list(range(count))


def _odd(analysis: Analysis) -> TextTable | None:
    if not analysis.odd:
        return None
    return TextTable(
        "The rows that were expected least",
        ("Row", "Target", "Expected", "Log density"),
        [(one.name, one.target, one.predicted, number(one.log_density)) for one in analysis.odd],
        text=3,
    )


def _grouped(analysis: Analysis) -> str:
    if not analysis.looked:
        return ""
    looked = f"{format_count(analysis.looked, 'group')} of rows with a column in common"
    if not analysis.groups:
        return f"Of {looked}, none is predicted worse than the rest by more than chance would have it."
    return (
        f"Of {looked}, {len(analysis.groups)} {'is' if len(analysis.groups) == 1 else 'are'} predicted worse than the "
        "rest by more than chance would have it: the noise may be larger there, the columns may tell less, or "
        "something is amiss with these rows."
    )


def _groups(analysis: Analysis, first: Evaluation) -> TextTable | None:
    if not analysis.groups:
        return None
    classes = first.task == "classification"
    single = classes or len(first.targets) == 1  # errors of several targets have no common unit
    head = ["Rows with", "Number", "Behind the rest, nats"]
    head += ["Wrong", "Wrong elsewhere"] if classes else ["Mean miss", "Elsewhere"] if single else []
    rows = []
    for one in analysis.groups:
        cells = [f"{one.column} {one.value}", f"{one.rows:,}", _written(one.behind, False)]
        write = percent if classes else number
        cells += [write(one.miss), write(one.others)] if single else []
        rows.append(cells if one.inside is None else [*cells, percent(one.inside)])
    if not classes:
        head.append("Inside 90 %")
    return TextTable("Groups that are predicted worse", tuple(head), rows)
