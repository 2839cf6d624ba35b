"""Command ``compare``: all methods on one table, ranked, on the terminal and as an HTML page.

Runs are compared by :mod:`fathomless.app.commands.comparing_runs`.
"""

import argparse
import json
import shlex
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fathomless.app.commands.arguments import form, refuse_other_form
from fathomless.app.commands.comparing_runs import compare_runs
from fathomless.app.commands.printing import Stopped, exit_code, note, show
from fathomless.app.commands.ranks import lines_of, plain, ranks
from fathomless.system.errors import DataError

if TYPE_CHECKING:
    from fathomless.app.comparison import Compared, Comparison
    from fathomless.plots.page import Figure

__all__ = ["compare"]

_FOLDS = {"random": "folds", "forward": "forward folds"}
_KNOWN = {"random": "the other folds", "forward": "all rows before it"}  # training rows of a fold, by the order


def compare(given: argparse.Namespace) -> int:
    """Compare methods on a table, or runs on new rows."""
    refuse_other_form(given)
    if given.on is not None:
        return compare_runs(given)
    if len(given.data) > 1:
        raise DataError(
            f"{len(given.data)} tables were given ({', '.join(given.data)}); methods are compared on one. To compare "
            "runs, give --on DATA"
        )
    return _compare_methods(given)


def _compare_methods(given: argparse.Namespace) -> int:
    """Compare methods; finished fits are kept, and the same command resumes the comparison."""
    import numpy as np

    from fathomless.app.commands import columns, inputs
    from fathomless.app.compare import compare_in_turn
    from fathomless.system import io
    from fathomless.system.progress import Silent, Terminal

    if len(given.target) != 1:
        raise DataError(f"{len(given.target)} targets were given (--target); a comparison needs exactly one")
    if given.task == "density":
        raise DataError("--task density was given; densities are not compared: fit them with --structure graph")
    request = inputs.FitRequest(
        given.data[0],
        given.target,
        given.task,
        given.key,
        groups=given.groups,
        drop=given.drop,
        keep=given.keep,
        form=form(given),
    )
    table = inputs.read(request)
    X, y = table.take(np.arange(table.rows))
    for text in (*table.remarks, *table.notes, *(columns.note_unsorted_dates(X) if given.order == "forward" else ())):
        note(text)
    out = Path(given.out if given.out is not None else f"runs/compare-{given.target[0]}")
    command = shlex.join(["fathomless", *given.words])
    seen = set[str]()
    try:
        for comparison in compare_in_turn(
            X,
            y,
            task=table.task,
            methods=[name.strip() for name in given.methods.split(",")] if given.methods else (),
            folds=given.folds,
            order=given.order,
            seed=given.seed,
            groups=table.groups,
            jobs=given.jobs,
            minutes=given.minutes,
            out=out,
            progress=Terminal("fit") if sys.stderr is not None and sys.stderr.isatty() else Silent(),
        ):
            for text in _rank_new(comparison, seen):
                note(text)
    except KeyboardInterrupt as stop:
        raise Stopped(f"stopped; finished fits are kept in {out}. To resume: {command}", exit_code(stop)) from None
    record = {"target": given.target[0], "data": table.name, "command": command, **asdict(comparison)}
    io.write_text(out / "compare.json", json.dumps(plain(record), indent=1) + "\n")
    io.write_text(out / "compare.html", page(comparison, given.target[0], table.name, command))
    if given.json:
        show(json.dumps(plain(record)))
        return 0
    rows = f"{comparison.rows:,} rows, {comparison.folds} {_FOLDS[comparison.order]}"
    show(f"{given.target[0]}: {comparison.task}, {rows}\n\n{lines_of(ranks(comparison))}")
    failed = [f"{method.name} has no result: {method.failed}" for method in comparison.methods if method.failed]
    for text in [*comparison.notes, *failed]:
        note(text)
    show(f"\nReport: {out / 'compare.html'}")
    return 0


def _rank_new(comparison: "Comparison", seen: set[str]) -> list[str]:
    """Return a line with the rank of each new method, and add the methods to those that were seen."""
    from fathomless.plots.page import number

    done = [method for method in comparison.methods if not method.failed]
    lines = [
        f"{method.name}: log-likelihood {number(method.scores['log_likelihood'].value)}, "
        f"{method.fit_seconds:.1f} s a fit, rank {rank} of {len(done)} so far"
        for rank, method in enumerate(done, 1)
        if method.name not in seen
    ]
    seen.update(method.name for method in done)
    return lines


def page(comparison: "Comparison", target: str, data: str, command: str) -> str:
    """Return the HTML page of a comparison."""
    from fathomless.app.page.markup import render_template
    from fathomless.plots.page import TextTable

    done = [method for method in comparison.methods if not method.failed]
    failed = [(method.name, method.failed) for method in comparison.methods if method.failed]
    return render_template(
        "compare.html.j2",
        title=f"Comparison of methods: {target}",
        lede=_lede(comparison, done),
        figures=_figures(done),
        table=ranks(comparison),
        notes=comparison.notes,
        failed=TextTable("Methods that failed", ("Method", "Error"), failed, text=2) if failed else None,
        made=f"{comparison.rows:,} rows of {data} in {comparison.folds} folds, the same for all methods. Each method "
        f"has its default options and predicts every fold after a fit to {_KNOWN[comparison.order]}. Levels that are "
        "not in the training rows count as missing. Log-likelihood is the mean log density per row, in nats, with the "
        "target in its own unit; if a method predicts probabilities of counts or grades, it is the mean log "
        "probability for all methods. Difference is the log-likelihood of the best method minus that of the method, "
        "paired by row, ± one standard error over independent rows. Times are those of one fit and of the predictions "
        "of one fold, on one thread.",
        command=command,
    )


def _lede(comparison: "Comparison", done: "list[Compared]") -> list[str]:
    """Return the headline: the best method, and those within two standard errors."""
    if not done:
        return ["No method could be fitted."]
    first = f"Highest log-likelihood on unseen rows: {done[0].name}"
    if not comparison.near_best:
        return [f"{first}, by more than two standard errors."]
    return [f"{first}. Within two standard errors: {', '.join(comparison.near_best)}."]


def _figures(done: "list[Compared]") -> "list[Figure]":
    from fathomless.plots.page import picture

    if not done:
        return []
    height = 1.2 + 0.24 * len(done)
    best = done[0].name
    return [
        picture(
            "behind",
            partial(_draw_differences, done),
            says=f"{best} has the highest log-likelihood; largest difference to it: "
            f"{max(method.behind.value for method in done):.2f} nats per row.",
            caption="Log-likelihood of the best method minus that of each method, in nats per row: paired mean ± two "
            "standard errors.",
            height=height,
        ),
        picture(
            "seconds",
            partial(_draw_seconds, done),
            says=f"{best} takes {done[0].fit_seconds:.1f} seconds a fit.",
            caption="Seconds of one fit, on one thread.",
            height=height,
        ),
    ]


def _draw_differences(done: "list[Compared]", ax: Any) -> Any:
    from fathomless.plots.canvas import GRID, INK, start

    ax = start(ax, "", "nats per row below the best", "")
    place = range(len(done))
    errors = [2.0 * (method.behind.error or 0.0) for method in done]
    ax.errorbar([method.behind.value for method in done], place, xerr=errors, fmt="o", color=INK, markersize=4, lw=1)
    ax.axvline(0.0, color=GRID, lw=1, zorder=0)
    _label_methods(ax, done)
    return ax


def _draw_seconds(done: "list[Compared]", ax: Any) -> Any:
    from fathomless.plots.canvas import INK, start

    ax = start(ax, "", "seconds of a fit", "")
    ax.plot([max(method.fit_seconds, 1e-3) for method in done], range(len(done)), "o", color=INK, markersize=4)
    ax.set_xscale("log")
    _label_methods(ax, done)
    return ax


def _label_methods(ax: Any, done: "list[Compared]") -> None:
    ax.set_yticks(range(len(done)), [method.name for method in done])
    ax.invert_yaxis()
