"""The command ``compare``: every method on one table, ranked, on the terminal and as a page."""

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fathomless.app.commands.arguments import form
from fathomless.app.commands.printing import Stopped, exit_code, note, show
from fathomless.system.errors import DataError
from fathomless.system.nonfinite import name_nonfinite

if TYPE_CHECKING:
    from fathomless.app.compare import Compared, Comparison
    from fathomless.plots.page import Figure, TextTable

__all__ = ["compare"]

_SHOWN = {  # scores that are laid out beside the log-likelihood, and how they are headed
    "rmse": "RMSE",
    "crps": "CRPS",
    "coverage_90": "Inside 90 %",
    "accuracy": "Accuracy",
    "brier": "Brier",
    "ece": "Calibration error",
    "auroc": "Area under ROC",
}


def compare(given: argparse.Namespace) -> int:
    """Compare methods on a table; what is done is kept, and the same command goes on with the rest."""
    import numpy as np

    from fathomless.app.commands import inputs
    from fathomless.app.compare import compare as compared
    from fathomless.system import io
    from fathomless.system.progress import Silent, Terminal

    if len(given.target) != 1:
        raise DataError(f"{len(given.target)} targets were given (--target); a comparison is of one")
    if given.task == "density":
        raise DataError("--task density was given; densities are not compared: fit them with --structure graph")
    request = inputs.FitRequest(
        given.data,
        given.target,
        given.task,
        given.key,
        groups=given.groups,
        drop=given.drop,
        keep=given.keep,
        form=form(given),
    )
    table = inputs.read(request)
    for text in (*table.remarks, *table.notes):
        note(text)
    X, y = table.take(np.arange(table.rows))
    out = Path(given.out if given.out is not None else f"runs/compare-{given.target[0]}")
    again = shlex.join(["fathomless", *given.words])
    try:
        found = compared(
            X,
            y,
            task=table.task,
            methods=[name.strip() for name in given.methods.split(",")] if given.methods else (),
            folds=given.folds,
            seed=given.seed,
            groups=table.groups,
            jobs=given.jobs,
            out=out,
            progress=Terminal("fit") if sys.stderr is not None and sys.stderr.isatty() else Silent(),
        )
    except KeyboardInterrupt as stop:
        raise Stopped(f"stopped; what is done is kept in {out}. To go on: {again}", exit_code(stop)) from None
    told = {"target": given.target[0], "data": table.name, "command": again, **asdict(found)}
    io.write_text(out / "compare.json", json.dumps(_plain(told), indent=1) + "\n")
    io.write_text(out / "compare.html", page(found, given.target[0], table.name, again))
    if given.json:
        show(json.dumps(_plain(told)))
        return 0
    show(f"{given.target[0]}: {found.task}, {found.rows:,} rows, {found.folds} folds\n")
    show(_lines(ranks(found)))
    for text in [*found.notes, *(f"{one.name} has no result: {one.failed}" for one in found.methods if one.failed)]:
        note(text)
    show(f"\nThe page is {out / 'compare.html'}.")
    return 0


def page(found: "Comparison", target: str, data: str, command: str) -> str:
    """Return the page of a comparison."""
    from fathomless.app.page.markup import render_template
    from fathomless.plots.page import TextTable

    done = [method for method in found.methods if not method.failed]
    lost = [method for method in found.methods if method.failed]
    return render_template(
        "compare.html.j2",
        title=f"Which method for {target}?",
        lede=_lede(done),
        figures=_figures(done),
        table=ranks(found),
        notes=found.notes,
        failed=TextTable("", ("Method", "Why"), [(one.name, one.failed) for one in lost], text=2) if lost else None,
        made=f"{found.rows:,} rows of {data} in {found.folds} folds, the same for all methods. Each method predicts a "
        "fold after it was fitted to the others, as it comes; categories that a training did not see count as missing. "
        "Log-likelihood is the mean log density of rows in nats, in units of the target. Behind is how much less it is "
        "than under the best method, row by row, with the standard error over rows, which count as independent. "
        "Seconds are those of one fit, and of the predictions of one fold, on one thread.",
        command=command,
    )


def ranks(found: "Comparison") -> "TextTable":
    """Return the methods in their order, with their scores, as text."""
    from fathomless.plots.page import TextTable, format_with_error, number

    done = [method for method in found.methods if not method.failed]
    names = [name for name in _SHOWN if any(name in method.scores for method in done)]
    rows = []
    for method in done:
        scores = [method.scores.get(name) for name in names]
        first = " ".join(
            format_with_error(method.scores["log_likelihood"].value, method.scores["log_likelihood"].error)
        )
        behind = "–" if method is done[0] else " ".join(format_with_error(method.behind.value, method.behind.error))
        others = ["" if score is None else number(score.value) for score in scores]
        seconds = [number(method.fit_seconds), number(method.predict_seconds)]
        rows.append((method.name, first.strip(), behind.strip(), *others, *seconds))
    head = ("Method", "Log-likelihood", "Behind", *(_SHOWN[name] for name in names), "Fit, s", "Predict, s")
    return TextTable("Methods, the best first", head, rows)


def _lede(done: "list[Compared]") -> list[str]:
    """Say what the ranks come to."""
    if not done:
        return ["No method could be fitted."]
    close = [one.name for one in done[1:] if one.behind.value <= 2.0 * (one.behind.error or 0.0)]
    first = f"{done[0].name} predicts unseen rows best"
    if not close:
        return [f"{first}, by more than two standard errors."]
    return [f"{first}. Within two standard errors of it: {', '.join(close)}."]


def _figures(done: "list[Compared]") -> "list[Figure]":
    from fathomless.plots.page import picture

    if not done:
        return []
    height = 1.2 + 0.24 * len(done)
    best = done[0].name
    return [
        picture(
            "behind",
            partial(_behind, done),
            says=f"{best} is best; the others lie up to {max(one.behind.value for one in done):.2f} nats behind.",
            caption="How far each method's log density of a row lies behind that of the best: mean and two standard "
            "errors of the paired difference.",
            height=height,
        ),
        picture(
            "seconds",
            partial(_seconds, done),
            says=f"{best} takes {done[0].fit_seconds:.1f} seconds a fit.",
            caption="Seconds of one fit, on one thread.",
            height=height,
        ),
    ]


def _behind(done: "list[Compared]", ax: Any) -> Any:
    from fathomless.plots.canvas import GRID, INK, start

    ax = start(ax, "", "nats per row behind the best", "")
    place = range(len(done))
    errors = [2.0 * (one.behind.error or 0.0) for one in done]
    ax.errorbar([one.behind.value for one in done], place, xerr=errors, fmt="o", color=INK, markersize=4, lw=1)
    ax.axvline(0.0, color=GRID, lw=1, zorder=0)
    _named(ax, done)
    return ax


def _seconds(done: "list[Compared]", ax: Any) -> Any:
    from fathomless.plots.canvas import INK, start

    ax = start(ax, "", "seconds of a fit", "")
    ax.plot([max(one.fit_seconds, 1e-3) for one in done], range(len(done)), "o", color=INK, markersize=4)
    ax.set_xscale("log")
    _named(ax, done)
    return ax


def _named(ax: Any, done: "list[Compared]") -> None:
    ax.set_yticks(range(len(done)), [one.name for one in done])
    ax.invert_yaxis()


def _lines(table: "TextTable") -> str:
    rows = [table.head, *table.rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _plain(told: Any) -> Any:
    """Return plain JSON: what is no number is none."""
    if isinstance(told, dict):
        return {key: _plain(value) for key, value in told.items()}
    if isinstance(told, list | tuple):
        return [_plain(value) for value in told]
    return None if isinstance(told, float) and told != told else name_nonfinite(told)
