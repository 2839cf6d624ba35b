"""Sections of a page on the comparison with simple models, the importance of columns, and large residuals."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from fathomless import plots
from fathomless.app.page.analysis import Analysis, Peers
from fathomless.app.page.outcomes import rarer_class
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

_NAMES = {"constant": "a constant prediction", "linear": "a linear model", "boosting": "gradient boosting"}
_HEADS = {"constant": "Constant", "linear": "Linear", "boosting": "Boosting"}
_SCORES = {  # scores of the comparison: label, and True for a share
    "log_likelihood": ("Log-likelihood, nats per row", False),
    "rmse": ("RMSE, units of the target", False),
    "mae": ("Mean absolute error, units of the target", False),
    "crps": ("CRPS, units of the target", False),
    "interval_score_90": ("Interval score of 90 % intervals, units of the target", False),
    "coverage_90": ("Coverage of 90 % intervals", True),
    "accuracy": ("Accuracy", True),
    "brier": ("Brier score, 0 to 2", False),
    "auroc": ("Area under the ROC curve", False),
}
_CLASSES = 4  # maximum number of classes in a picture of probabilities


@dataclass(frozen=True)
class Insights:
    """Texts, tables and pictures of an analysis.

    Attributes
    ----------
    rows : str
        Name of the rows of the analysis.
    verdict : str
        Differences in log-likelihood between the fit and simple models, as sentences.
    beside : TextTable or None
        Scores of the fit and of simple models.
    drivers : str
        Columns with a measurable importance, as sentences.
    figures : sequence of Figure
        Permutation importance and partial dependence.
    odd : TextTable or None
        Rows with the lowest log-likelihood.
    grouped : str
        Number of groups of rows with worse predictions, as sentences.
    groups : TextTable or None
        Groups of rows with worse predictions.
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
    """Return the texts, tables and pictures of an analysis."""
    return Insights(
        analysis.rows,
        "" if analysis.peers is None else _compare_with_peers(analysis.peers, first.name),
        None if analysis.peers is None else _score_table(analysis.peers, first),
        _describe_importance(analysis),
        _figures(analysis, first, labels, target),
        _residual_table(analysis, first),
        _describe_groups(analysis),
        _group_table(analysis, first),
    )


def _compare_with_peers(peers: Peers, rows: str) -> str:
    """State the difference in log-likelihood to simple models on the same rows."""
    better: list[str] = []
    equal: list[str] = []
    worse: list[str] = []
    for name, lead in peers.behind.items():
        width = 2.0 * (lead.error or 0.0)
        if lead.value > width:
            better.append(name)
        elif lead.value < -width:
            worse.append(name)
        else:
            equal.append(name)
    relations = (
        (better, "higher than that of {}"),
        (equal, "not significantly different from that of {}"),
        (worse, "lower than that of {}"),
    )
    parts = [
        relation.format(join_words([f"{_NAMES[name]} ({_signed(peers.behind[name])})" for name in names]))
        for names, relation in relations
        if names
    ]
    text = (
        f"Log-likelihood of this fit on {rows}: {'; '.join(parts)}. Differences are in nats per row, ± one standard "
        "error."
    )
    if "linear" in worse:
        text += " Prefer the linear model, unless you need the intervals of this fit."
    elif "linear" in equal:
        text += " The linear model is as good: prefer it, unless you need the intervals of this fit."
    elif "boosting" in worse:
        text += " Gradient boosting uses these columns better; examine its fit before you choose this one."
    return text


def _signed(score: Score) -> str:
    value, error = format_with_error(score.value, score.error)
    return f"{'' if score.value < 0 else '+'}{value} {error}".strip()


def _score_table(peers: Peers, first: Evaluation) -> TextTable:
    """Return the scores of the fit and of simple models."""
    rows = []
    models = [first.scores, *peers.scores.values()]
    for name, (label, share) in _SCORES.items():
        if name in first.scores:
            rows.append([label, *(_format_score(model.get(name), share) for model in models)])
    return TextTable(
        f"Scores on {first.name} that were not used to fit the respective model, ± standard error",
        ("Score", "This fit", *(_HEADS[name] for name in peers.scores)),
        rows,
    )


def _format_score(score: Score | None, share: bool) -> str:
    if score is None:
        return "–"
    if share:
        return percent(score.value)
    return " ".join(part for part in format_with_error(score.value, score.error) if part)


def _describe_importance(analysis: Analysis) -> str:
    """State which columns have a measurable importance."""
    importance = analysis.importance
    if importance is None:
        return "Permutation importance is not computed for so many columns by default; use fathomless explain."
    clear = [
        name
        for name, loss, error in zip(importance.columns, importance.loss, importance.error, strict=True)
        if loss > 2.0 * error
    ]
    if not clear:
        return "Permuting a column does not lower the log-likelihood by more than two standard errors, for any column."
    rest = len(importance.columns) - len(clear)
    others = ""
    if rest:
        others = " The other column has" if rest == 1 else f" The other {rest:,} columns have"
        others += " no measurable effect."
    return (
        f"Permuting {join_words(clear, 6)} lowers the log-likelihood by more than two standard errors.{others} "
        "Importance is small for a column that others can replace."
    )


def _figures(analysis: Analysis, first: Evaluation, labels: Sequence[str], target: str) -> list[Figure]:
    """Return the pictures of permutation importance and partial dependence."""
    importance = analysis.importance
    if importance is None:
        return []
    strongest = "; ".join(
        f"{name} {number(loss)}"
        for name, loss in zip(importance.columns[:6], importance.loss[:6].tolist(), strict=True)
    )
    figures = [
        picture(
            "importance",
            partial(plots.importance, importance.columns, importance.loss, importance.error),
            says=f"Decrease of the log-likelihood when a column is permuted, in nats per row: {strongest}.",
            caption=f"Permutation importance on {analysis.rows}, in nats per row; mean of three permutations.",
        )
    ]
    for i, curve in enumerate(analysis.dependence):
        if len(curve.points) > 1:
            shown = [rarer_class(first)] if len(labels) == 2 else _most_variable(curve)
            figures.append(_curve(curve, i, shown, labels, target))
    return figures


def _curve(curve: Dependence, i: int, shown: list[int], labels: Sequence[str], target: str) -> Figure:
    """Return the picture of partial dependence on one column, for the shown classes or targets."""
    mean, lower, upper = (part[:, shown] for part in (curve.mean, curve.lower, curve.upper))
    if labels:
        names = [labels[k] for k in shown]
        quantity = f"probability of {names[0]}" if len(names) == 1 else "probability"
    else:
        names = [target] if len(shown) == 1 else [str(k + 1) for k in shown]
        quantity = target
    first, last = (
        f"{number(float(mean[k, 0]))} at {curve.points[k]}"  # of the first class or target
        for k in (0, -1)
    )
    return picture(
        f"dependence-{i}",
        partial(
            plots.dependence,
            curve.points,
            mean,
            lower,
            upper,
            names=names,
            column=curve.column,
            target=f"average {quantity}",
        ),
        says=f"Average {quantity} against {curve.column}: from {first} to {last}.",
        caption=f"Partial dependence on {curve.column}, {percent(curve.level)} credible intervals (without noise).",
    )


def _most_variable(curve: Dependence) -> list[int]:
    """Return the classes or targets to draw: all, or the most variable of many."""
    count = curve.mean.shape[1]
    variable = np.argsort(-(curve.mean.max(0) - curve.mean.min(0)), kind="stable")[:_CLASSES]
    return sorted(variable.tolist()) if count > _CLASSES else list(range(count))


def _residual_table(analysis: Analysis, first: Evaluation) -> TextTable | None:
    """Return the rows with the lowest log-likelihood."""
    if not analysis.odd:
        return None
    predicted = "Predicted class" if first.task == "classification" else "90 % interval"
    return TextTable(
        "Rows with the lowest log-likelihood",
        ("Row", "Observed", predicted, "Log-likelihood, nats"),
        [(row.name, row.target, row.predicted, number(row.log_density)) for row in analysis.odd],
        text=3,
    )


def _describe_groups(analysis: Analysis) -> str:
    """State in how many groups of rows the predictions are worse than in the others."""
    if not analysis.looked:
        return ""
    tested = f"{format_count(analysis.looked, 'tested group')} of rows with a common column value"
    if not analysis.groups:
        return f"The log-likelihood is not significantly lower in any of the {tested}."
    return (
        f"The log-likelihood is significantly lower in {len(analysis.groups)} of the {tested}: larger noise, less "
        "informative columns or errors in these rows are possible causes."
    )


def _group_table(analysis: Analysis, first: Evaluation) -> TextTable | None:
    """Return the groups of rows with worse predictions, beside the other rows."""
    if not analysis.groups:
        return None
    classes = first.task == "classification"
    single = classes or len(first.targets) == 1  # errors of several targets have no common unit
    head = ["Group", "Rows", "Log-likelihood below the others, nats per row"]
    if classes:
        head += ["Error rate", "Error rate of the others"]
    elif single:
        head += ["Mean absolute error", "Mean absolute error of the others"]
    format_error = percent if classes else number
    rows = []
    for group in analysis.groups:
        cells = [f"{group.column} {group.value}", f"{group.rows:,}", _format_score(group.behind, False)]
        if single:
            cells += [format_error(group.miss), format_error(group.others)]
        if group.inside is not None:
            cells.append(percent(group.inside))
        rows.append(cells)
    if not classes:
        head.append("Coverage of 90 % intervals")
    return TextTable("Groups with a significantly lower log-likelihood (level 5 % over all groups)", tuple(head), rows)
