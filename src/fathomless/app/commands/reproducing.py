"""The command ``reproduce``: an experiment of the papers beside what is published.

The experiments are no part of the installed package. They are the folder ``experiments`` of a clone of the repository,
beside ``src``, and are found there if the package is imported from that clone.
"""

import argparse
import contextlib
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import fathomless
from fathomless.app.commands.fitted import set_threads
from fathomless.app.commands.printing import note, show
from fathomless.system.errors import DataError, FileError

__all__ = ["reproduce"]


def reproduce(given: argparse.Namespace) -> int:
    """Run an experiment, compare it with what is expected, and return the exit code: 1 if a demand is not met.

    Raises
    ------
    DataError
        If no experiment is named, or one that does not exist.
    FileError
        If the package is not imported from a clone, which has the experiments.
    """
    with _importable():
        return _reproduce(given)


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """Let `experiments` be imported: put the clone in front of the import path, and take it away afterwards."""
    source = Path(fathomless.__file__).parents[1]
    clone = str(source.parent)
    if source.name != "src" or not (source.parent / "experiments" / "__init__.py").is_file():
        raise FileError(
            "the experiments are not in the installed package, they are run from a clone of its repository: "
            "run pip install --editable '.[cli]' there, and then this command"
        )
    sys.path.insert(0, clone)
    try:
        yield
    finally:
        sys.path.remove(clone)


def _reproduce(given: argparse.Namespace) -> int:
    experiments = importlib.import_module("experiments")
    if given.list:
        show(experiments.listing())
        return 0
    if given.name is None:
        raise DataError("no NAME was given; fathomless reproduce --list names the experiments")
    experiments.find(given.name)  # before torch is loaded
    run = importlib.import_module("experiments.reproduce").reproduce
    layout = importlib.import_module("experiments.results").layout
    from fathomless.system.progress import Terminal

    set_threads(given.threads)
    mode = "full" if given.full else "smoke"
    out = given.out or f"reproduced/{given.name}-{mode}-{given.preset}"
    report = run(
        given.name,
        mode=mode,
        preset=given.preset,
        seed=given.seed,
        data=given.data,
        out=out,
        progress=Terminal("part") if sys.stderr is not None and sys.stderr.isatty() else None,
    )
    show(layout(report.verdicts))
    for text in report.result.notes:
        note(text)
    note(f"{len(report.result.values)} values, the settings and a figure are in {out} ({report.result.seconds:.0f} s)")
    return 0 if report.holds() else 1
