"""Ranks of compared methods or runs as text and as JSON."""

from typing import TYPE_CHECKING, Any

from fathomless.system.nonfinite import name_nonfinite

if TYPE_CHECKING:
    from fathomless.app.comparison import Comparison
    from fathomless.plots.page import TextTable

__all__ = ["lines_of", "plain", "ranks"]

_SCORES = {  # scores beside the log-likelihood, and their headings
    "rmse": "RMSE",
    "crps": "CRPS",
    "interval_score_90": "Interval score 90 %",
    "coverage_90": "Coverage 90 %",
    "accuracy": "Accuracy",
    "brier": "Brier",
    "ece": "ECE",
    "auroc": "ROC AUC",
}


def ranks(comparison: "Comparison") -> "TextTable":
    """Return the methods, or fitted runs, in ranked order, with their scores, as text."""
    from fathomless.plots.page import TextTable, format_with_error, number

    done = [method for method in comparison.methods if not method.failed]
    names = [name for name in _SCORES if any(name in method.scores for method in done)]
    rows = []
    for method in done:
        scores = [method.scores.get(name) for name in names]
        first = " ".join(
            format_with_error(method.scores["log_likelihood"].value, method.scores["log_likelihood"].error)
        )
        behind = "–" if method is done[0] else " ".join(format_with_error(method.behind.value, method.behind.error))
        others = ["" if score is None else number(score.value) for score in scores]
        seconds = [number(method.fit_seconds), number(method.predict_seconds)] if comparison.folds else []
        rows.append((method.name, first.strip(), behind.strip(), *others, *seconds))
    what, times = ("Method", ("Fit, s", "Predict, s")) if comparison.folds else ("Run", ())
    head = (what, "Log-likelihood", "Difference", *(_SCORES[name] for name in names), *times)
    return TextTable(f"{what}s by log-likelihood per row, in nats", head, rows)


def lines_of(table: "TextTable") -> str:
    """Return a table as lines with columns of equal width."""
    rows = [table.head, *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def plain(value: Any) -> Any:
    """Return a value for JSON, with None in place of NaN."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and value != value else name_nonfinite(value)
