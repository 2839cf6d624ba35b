"""What commands say: lines for people, lines for programs, and the end of a command."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fathomless.system.nonfinite import name_nonfinite
from fathomless.system.terminal import escape_control

if TYPE_CHECKING:
    from fathomless.estimators.evaluation import Evaluation
    from fathomless.estimators.findings import Finding

__all__ = [
    "Stopped",
    "Terminated",
    "exit_code",
    "findings_of",
    "ignore",
    "note",
    "say",
    "scores_of",
    "show",
    "show_findings",
    "show_json",
    "table_of",
    "warn",
]


def ignore(*_: object, **__: object) -> None:
    """Say nothing of a warning."""


def warn(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    """Say a warning as a note, unless it is for programmers."""
    if not issubclass(category, (DeprecationWarning, FutureWarning)):
        note(str(message))


class Stopped(Exception):
    """A signal ended the command, or another process did; that one tells why, and the message is empty."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Terminated(KeyboardInterrupt):
    """SIGTERM came: a command ends as after Ctrl-C, and what it was writing is taken back."""


def exit_code(stop: KeyboardInterrupt) -> int:
    """Return the exit code of a command that a signal ended."""
    return 143 if isinstance(stop, Terminated) else 130


def note(text: str) -> None:
    """Say what was done unasked, or is worth knowing, on standard error."""
    say(f"note: {' '.join(text.split())}")


def say(text: str) -> None:
    """Print a line on standard error."""
    if sys.stderr is not None:  # else print would take standard output, where the predictions go
        print(escape_control(text), file=sys.stderr)


def show(text: object) -> None:
    """Print on standard output."""
    print(escape_control(str(text)))


def show_json(**values: Any) -> None:
    """Print an object on standard output, on one line and at once."""
    print(json.dumps(name_nonfinite(values)), flush=True)


def show_findings(findings: "Sequence[Finding]") -> None:
    """Print what the doctor found, its remedies in the words of the command line."""
    for told in findings_of(findings):
        show(f"\n{told['severity']}: {told['title']}\n  {told['detail']}\n  {told['remedy']}")


def findings_of(findings: "Sequence[Finding]") -> list[dict[str, str]]:
    """Return what the doctor found as plain text, its remedies in the words of the command line."""
    from fathomless.app.commands.flags import spoken

    return [{**asdict(finding), "remedy": spoken(finding.remedy)} for finding in findings]


def scores_of(found: "Evaluation", which: str = "scores") -> dict[str, dict[str, float | None]]:
    """Return scores, or those of a constant prediction ("baseline"), as plain numbers."""
    scores: Mapping[str, Any] = getattr(found, which)
    return {name: {"value": score.value, "standard_error": score.error} for name, score in scores.items()}


def table_of(found: "Evaluation") -> str:
    """Lay out scores beside those of a constant prediction."""
    from fathomless.plots.page import format_with_error

    rows = [(f"{found.name}, {found.rows:,}", "", "constant prediction")]
    for name, score in found.scores.items():
        base = found.baseline[name]
        tidy = [(0.0 if abs(s.value) < 1e-9 else s.value, s.error) for s in (score, base)]  # zero up to rounding
        ours, constant = (" ".join(format_with_error(*pair)).strip() for pair in tidy)
        rows.append((name.replace("_", " "), ours, constant))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
