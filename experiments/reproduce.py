"""Run of an experiment: compare the result with the expected values, and save it."""

import json
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import experiments
from experiments.results import Request, Result, Verdict, expectations, judge
from fathomless.system import checks, io
from fathomless.system.progress import Progress

__all__ = ["Report", "check_expectations", "reproduce"]


@dataclass(frozen=True)
class Report:
    """Result of an experiment, compared with the expected values.

    Attributes
    ----------
    result : Result
        Result of the run.
    verdicts : tuple of Verdict
        One for each expectation.
    """

    result: Result
    verdicts: tuple[Verdict, ...]

    def holds(self) -> bool:
        """Return True if every expectation with a bound or tolerance holds."""
        return all(verdict.holds is not False for verdict in self.verdicts)


def check_expectations(result: Result) -> tuple[Verdict, ...]:
    """Compare a result with the expected values in ``check_expectations.json``."""
    table = io.read_json(Path(__file__).parent / "expected.json")
    return judge(result, expectations(table, result.name, result.mode, result.preset))


def reproduce(
    name: str,
    *,
    mode: str = "smoke",
    preset: str = "default",
    seed: int = 0,
    data: str | PathLike[str] | None = None,
    out: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Run an experiment and compare the result with the expected values.

    Parameters
    ----------
    name : str
        One of :data:`experiments.EXPERIMENTS`.
    mode, preset, seed, data, progress
        As in :class:`experiments.Module`.
    out : path, optional
        Folder for ``result.json``, ``figure.svg`` and the parts of a full run. An interrupted full run resumes from its
        parts; a smoke run always starts from the beginning.

    Raises
    ------
    DataError
        For a name, mode or preset that does not exist, or missing data.
    FileError
        If `out` cannot be written; this is checked before the computation.
    """
    checks.choice("mode", mode, ("smoke", "full"))
    checks.choice("preset", preset, experiments.PRESETS)
    module = experiments.find(name).load()
    if out is not None:
        io.writable(out)
    kept = out if mode == "full" else None
    result = module.run(Request(mode, seed, data, preset, kept, progress))
    verdicts = check_expectations(result)
    if out is not None:
        from fathomless import plots

        io.write_text(Path(out) / "result.json", json.dumps(result.to_json(), indent=1) + "\n")
        io.write_text(Path(out) / "figure.svg", plots.svg(module.figure(result), name) + "\n")
    return Report(result, verdicts)
