"""Command line: fit a table, predict, evaluate, and write reports.

A command imports its modules when it runs. The parser is in :mod:`fathomless.app.commands.arguments`.

Exit codes: 0 for success (without arguments, the help is printed); 2 for an error of the user, with one line on
standard error; 1 for an internal error, or an experiment that differs from its expected results; 130 and 143 after
Ctrl-C and SIGTERM, which end ``serve`` with 0.
"""

import argparse
import contextlib
import io
import os
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, cast

from fathomless.app.commands import comparing, explaining, fitted, fitting, reproducing, serving
from fathomless.app.commands.arguments import parser
from fathomless.app.commands.flags import translate_message
from fathomless.app.commands.printing import Stopped, Terminated, exit_code, notes_of_warnings, say, show
from fathomless.families import registry
from fathomless.system.errors import FathomlessError, FileError

__all__ = ["main"]

_DEMO = """442 patients with diabetes: ten measurements, progression of the disease after a year (Efron et al., 2004).

patients.csv      342 patients, for the fit
new.csv           the other 100 patients
run/              the fit, with the page run/report.html
predictions.csv   predictions for new.csv
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        Arguments after the program's name; by default those of this process.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # for terminals whose encoding has no minus sign
        sys.stdout.reconfigure(errors="backslashreplace")
    with _handle_sigterm(), _draw_to_files():
        code = _command(list(sys.argv[1:] if arguments is None else arguments))
    try:
        if sys.stdout is not None:  # None if the caller has closed it
            sys.stdout.flush()
    except BrokenPipeError:  # the reader of the output has ended, for instance head
        _discard_output()
    except OSError as error:
        _discard_output()
        return _fail("fathomless", f"error: {error}; check the disk and the path", 2)
    return code


def _command(words: list[str]) -> int:
    name = "fathomless"
    try:
        commands = {
            "fit": fitting.fit,
            "predict": fitted.predict,
            "serve": serving.serve,
            "compare": comparing.compare,
            "evaluate": fitted.evaluate,
            "sample": fitted.sample,
            "impute": fitted.impute,
            "explain": explaining.explain,
            "report": fitted.report,
            "export": fitted.export,
            "cite": _cite,
            "reproduce": reproducing.reproduce,
            "demo": _demo,
        }
        with contextlib.redirect_stderr(io.StringIO()) if _is_follower() else contextlib.nullcontext():
            options = parser(commands).parse_args(words or ["--help"])
        name = f"fathomless {options.command}"
        options.words = words
        with warnings.catch_warnings():
            warnings.showwarning = notes_of_warnings()
            return cast(int, options.run(options))
    except SystemExit as stop:  # argparse has printed the message
        return int(stop.code or 0)
    except Stopped as stop:
        return _fail(name, str(stop), stop.code)
    except KeyboardInterrupt as stop:
        event = "terminated" if isinstance(stop, Terminated) else "interrupted"
        return _fail(name, f"{event}; existing files are unchanged, unfinished ones were removed", exit_code(stop))
    except BrokenPipeError:
        _discard_output()
        return 0
    except FathomlessError as error:
        return _fail(name, f"error: {translate_message(str(error))}", 2)
    except OSError as error:
        return _fail(name, f"error: {error}; check the disk and the path", 2)
    except MemoryError:
        return _fail(name, "error: there is not enough memory; give fewer rows or columns, or a smaller width", 2)
    except Exception as error:
        if os.environ.get("FATHOMLESS_TRACE"):
            raise
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return _fail(
            name,
            f"internal error: {reason}. This is a bug in fathomless: please report it with the traceback "
            "(FATHOMLESS_TRACE=1)",
            1,
        )


@contextlib.contextmanager
def _handle_sigterm() -> Iterator[None]:
    """Raise an exception at SIGTERM, as Ctrl-C does, so that unfinished files are removed."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread can handle signals
        yield
        return

    def end(*_: object) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


@contextlib.contextmanager
def _draw_to_files() -> Iterator[None]:
    """Select the backend of matplotlib for files; the one of a notebook (MPLBACKEND) may not be installed here."""
    given = os.environ.get("MPLBACKEND")
    os.environ["MPLBACKEND"] = "agg"
    try:
        yield
    finally:
        del os.environ["MPLBACKEND"]
        os.environ.update({} if given is None else {"MPLBACKEND": given})


def _is_follower() -> bool:
    """Return True in a process of ``torchrun`` other than the first, which alone prints messages."""
    return "MASTER_ADDR" in os.environ and os.environ.get("RANK", "0") != "0"


def _fail(name: str, message: str, code: int) -> int:
    if message:
        with contextlib.suppress(OSError):
            say(f"{name}: {' '.join(message.split())}")
    return code


def _discard_output() -> None:
    """Redirect standard output to nowhere, so that Python prints no error when it flushes at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# ------------------------------------------------------------------------------------------------- other commands


def _cite(given: argparse.Namespace) -> int:
    names: list[str] = []
    if given.folder:
        from fathomless.app import runs

        names = [registry.family_of(runs.load(given.folder)[0]).name]
    for reference in registry.references(*names):
        show(reference.bibtex() if given.bibtex else reference.text())
    return 0


def _demo(given: argparse.Namespace) -> int:
    from fathomless.app.commands import columns
    from fathomless.data import datasets
    from fathomless.system import io
    from fathomless.tables.writers import writer

    home = Path(given.out)
    if home.exists() and not (home.is_dir() and not any(home.iterdir())):
        raise FileError(f"{home} already exists; give another --out, or remove it")
    import numpy as np

    io.write_text(home / "README.txt", _DEMO)
    data = datasets.load("diabetes")
    order = np.random.default_rng(0).permutation(len(data.X))
    inputs: dict[str, Any] = dict(zip(data.feature_names, data.X.T, strict=True))
    frame = columns.make_table({**inputs, "progression": data.y}).take(order)
    for name, part in (("patients.csv", frame[:342]), ("new.csv", frame[342:])):
        with writer(home / name) as write:
            write(part)
    run = str(home / "run")
    for words in (
        ["fit", str(home / "patients.csv"), "--target", "progression", "--out", run],
        ["predict", run, str(home / "new.csv"), "--out", str(home / "predictions.csv")],
        ["evaluate", run, str(home / "new.csv")],
        ["report", run],
    ):
        show(f"\n$ {shlex.join(['fathomless', *words])}")
        if code := main(words):
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
