"""Output of commands: text for people, JSON for programs, and exit codes."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fathomless.system.nonfinite import name_nonfinite
from fathomless.system.terminal import escape_control

if TYPE_CHECKING:
    from fathomless.estimators.evaluation import Evaluation
    from fathomless.estimators.findings import Finding
    from fathomless.estimators.scores import Score

__all__ = [
    "Stopped",
    "Terminated",
    "exit_code",
    "findings_of",
    "ignore",
    "note",
    "notes_of_warnings",
    "say",
    "scores_of",
    "show",
    "show_findings",
    "show_json",
    "table_of",
]


def ignore(*_: object, **__: object) -> None:
    """Ignore a warning."""


def notes_of_warnings() -> Callable[..., None]:
    """Return a function that prints warnings as notes with flags, each text once; see ``warnings.showwarning``.

    Deprecation warnings are not printed, since they are for programmers.
    """
    from fathomless.app.commands.flags import translate_message

    printed = set[str]()

    def print_once(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        if issubclass(category, (DeprecationWarning, FutureWarning)) or str(message) in printed:
            return
        printed.add(str(message))
        note(translate_message(str(message)))

    return print_once


class Stopped(Exception):
    """End of the command by a signal, or by another process, which prints the reason; the message is then empty."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Terminated(KeyboardInterrupt):
    """SIGTERM: the command ends as after Ctrl-C, and removes the files that it has not finished."""


def exit_code(stop: KeyboardInterrupt) -> int:
    """Return the exit code of a command that a signal ended."""
    return 143 if isinstance(stop, Terminated) else 130


def note(text: str) -> None:
    """Print a note on standard error."""
    say(f"note: {' '.join(text.split())}")


def say(text: str) -> None:
    """Print a line on standard error."""
    if sys.stderr is not None:  # otherwise print would use standard output, which has the predictions
        print(escape_control(text), file=sys.stderr)


def show(text: object) -> None:
    """Print on standard output."""
    print(escape_control(str(text)))


def show_json(**values: Any) -> None:
    """Print a JSON object on one line of standard output, and flush it."""
    print(json.dumps(name_nonfinite(values)), flush=True)


def show_findings(findings: "Sequence[Finding]") -> None:
    """Print findings, with flags in the remedies."""
    for finding in findings_of(findings):
        show(f"\n{finding['severity']}: {finding['title']}\n  {finding['detail']}\n  {finding['remedy']}")


def findings_of(findings: "Sequence[Finding]") -> list[dict[str, str]]:
    """Return findings as plain text, with flags in the remedies."""
    from fathomless.app.commands.flags import translate_message

    return [{**asdict(finding), "remedy": translate_message(finding.remedy)} for finding in findings]


def scores_of(evaluation: "Evaluation", which: str = "scores") -> dict[str, dict[str, float | None]]:
    """Return scores, or those of a constant prediction ("baseline"), as plain numbers."""
    scores: Mapping[str, Any] = getattr(evaluation, which)
    return {name: {"value": score.value, "standard_error": score.error} for name, score in scores.items()}


def table_of(evaluation: "Evaluation", peers: "Mapping[str, Mapping[str, Score]] | None" = None) -> str:
    """Return a text table of the scores of a model, of a constant prediction, and of simple models on the same rows."""
    from fathomless.app.page.main_scores import IN_UNITS, REFERENCES, constant_scores
    from fathomless.plots.page import format_with_error

    def cell(name: str, score: "Score | None") -> str:
        if score is None:
            return "–"
        zero = name not in IN_UNITS and abs(score.value) < 1e-9  # up to rounding
        return " ".join(format_with_error(0.0 if zero else score.value, score.error)).strip()

    peers = peers or {}
    others = {text: peers[key] for key, text in REFERENCES.items() if key in peers}
    rows = [(f"{evaluation.name}, {evaluation.rows:,}", "model", "constant prediction", *others)]
    names = sorted(evaluation.scores, key=lambda name: name == "log_likelihood")  # in nats: the last one
    for name in names:
        models = (evaluation.scores, {**evaluation.baseline, **constant_scores(evaluation, peers)}, *others.values())
        rows.append((name.replace("_", " "), *(cell(name, scores.get(name)) for scores in models)))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    if evaluation.censored:
        lines.append(f"{evaluation.censored:,} targets are censored; scores of errors are those of the other rows")
    return "\n".join(lines)
