"""Command ``reproduce``: run an experiment of the papers and compare it with the published results.

The experiments are not part of the installed package. They are in the folder ``experiments`` of a clone of the
repository, next to ``src``, and are available if the package is imported from that clone.
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
    """Run an experiment, compare it with the expected results, and return the exit code: 1 if they differ.

    Raises
    ------
    DataError
        If no experiment is named, or one that does not exist.
    FileError
        If the package is not imported from a clone with the experiments.
    """
    with _importable():
        return _reproduce(given)


@contextlib.contextmanager
def _importable() -> Iterator[None]:
    """Put the clone in front of the import path for `experiments`, and remove it afterwards."""
    source = Path(fathomless.__file__).parents[1]
    clone = str(source.parent)
    if source.name != "src" or not (source.parent / "experiments" / "__init__.py").is_file():
        raise FileError(
            "the experiments are not in the installed package, but in a clone of its repository: run pip install "
            "--editable '.[cli]' there, and then this command"
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
    note(f"wrote {len(report.result.values)} values, settings and a figure to {out} ({report.result.seconds:.0f} s)")
    return 0 if report.holds() else 1
