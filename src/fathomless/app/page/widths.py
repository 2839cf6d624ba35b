"""Parts of the page on the width of prediction intervals: coverage by width, by prediction and by category."""

import math
from functools import partial

from fathomless import plots
from fathomless.app.page.outcomes import TARGETS
from fathomless.estimators.conditional import OWN, ConditionalCoverage, CoverageGroup
from fathomless.estimators.evaluation import Evaluation
from fathomless.plots.page import Figure, Group, TextTable, join_words, number, percent, picture

__all__ = ["width_groups"]

_LEVEL = 0.9
_HEAD = ("Rows", "Number", "Coverage", "Error if calibrated", "Mean width", "Relative size of the errors")
_CATEGORIES = 30  # maximum number of listed categories


def width_groups(first: Evaluation) -> list[Group]:
    """Return a picture and a table on the width of the intervals of each target, and tables of categories."""
    groups = []
    for t, target in enumerate(first.targets[:TARGETS]):
        found = {one.variable: one for one in first.conditional if one.target == target and one.kind == "own"}
        if found:
            groups.append(Group(f"{target}: width of the intervals", [_picture(first, t, found)], _quarters(found)))
        if (table := _categories(first, target)) is not None:
            groups.append(Group(f"{target}: categories", [], table))
    return groups


def _picture(first: Evaluation, t: int, found: dict[str, ConditionalCoverage]) -> Figure:
    """Return the picture of widths against predictions."""
    y, mean, low, high = (first.arrays[name][:, t] for name in ("y", "mean", "low", "high"))
    target = first.targets[t]
    quarters = None
    says = f"Widths of the 90 % intervals of {target} between {number(float((high - low).min()))} and "
    says += f"{number(float((high - low).max()))}, against the prediction."
    if (by_prediction := found.get("prediction")) is not None:
        if len(by_prediction.groups) == 4:
            quarters = [(group.rows, group.coverage) for group in by_prediction.groups]
        shares = join_words([percent(group.coverage) for group in by_prediction.groups])
        says += f" Coverage by prediction, from the lowest: {shares}."
    return picture(
        f"widths-{t}",
        partial(plots.interval_widths, y, mean, low, high, quarters=quarters, target=target),
        says=says,
        caption="Width of the 90 % prediction intervals against the prediction. Bands are quarters of the rows by "
        "prediction, with their coverage ± the binomial error of a calibrated forecast, and their number of rows.",
    )


def _quarters(found: dict[str, ConditionalCoverage]) -> TextTable:
    """Return the coverage by halves and quarters of the width, and by quarters of the prediction."""
    rows = []
    if (by_width := found.get(OWN[0])) is not None:
        if len(by_width.groups) == 4:
            rows += [
                _row(name, _merge(by_width.groups[2 * half : 2 * half + 2]))
                for half, name in enumerate(("narrow half", "wide half"))
            ]
        rows += [_row(f"width {_minus(group.label)}", group) for group in by_width.groups]
    if (by_prediction := found.get(OWN[1])) is not None:
        rows += [_row(f"prediction {_minus(group.label)}", group) for group in by_prediction.groups]
    return TextTable("Coverage of the 90 % intervals by their width and by prediction", _HEAD, rows)


def _categories(first: Evaluation, target: str) -> TextTable | None:
    """Return the coverage of the categories with the lowest coverage; None without a categorical column."""
    found = [one for one in first.conditional if one.target == target and one.kind in ("category", "boolean")]
    parts = [(group.coverage, f"{one.variable} {group.label}", group) for one in found for group in one.groups]
    parts.sort(key=lambda part: part[:2])
    if not parts:
        return None
    few = "" if len(parts) <= _CATEGORIES else f" (the {_CATEGORIES} lowest of {len(parts)})"
    caption = f"Coverage of the 90 % intervals by category{few}"
    return TextTable(caption, _HEAD, [_row(name, group) for _, name, group in parts[:_CATEGORIES]])


def _minus(label: str) -> str:
    """Return a range of numbers with minus signs."""
    return label.replace("-", "−")


def _merge(groups: tuple[CoverageGroup, ...]) -> CoverageGroup:
    """Return the summary of several groups together."""
    rows = sum(group.rows for group in groups)
    coverage, square, width = (
        sum(group.rows * value(group) for group in groups) / rows
        for value in (lambda g: g.coverage, lambda g: g.size**2, lambda g: g.width)
    )
    return CoverageGroup("", rows, coverage, math.sqrt(square), width)


def _row(name: str, group: CoverageGroup) -> tuple[str, ...]:
    error = math.sqrt(_LEVEL * (1.0 - _LEVEL) / group.rows)
    return (
        name,
        f"{group.rows:,.0f}",
        percent(group.coverage),
        f"± {percent(error)}",
        number(group.width),
        number(group.size, 2),
    )
