"""The command line: a table in, a model, predictions and a page out.

What a command needs is imported when it runs; what can be asked is in :mod:`fathomless.app.commands.arguments`.

Exit codes: 0, also where nothing is asked, which the help answers; 2 for an error of the user's, with one line on
standard error; 1 for one of ours, and for an experiment that does not show what is expected of it; 130 and 143 after
Ctrl-C and SIGTERM.
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

from fathomless.app.commands import comparing, explaining, fitted, fitting, reproducing
from fathomless.app.commands.arguments import parser
from fathomless.app.commands.flags import spoken
from fathomless.app.commands.printing import Stopped, Terminated, exit_code, say, show, warn
from fathomless.families import registry
from fathomless.system.errors import FathomlessError, FileError

__all__ = ["main"]

_DEMO = """442 patients with diabetes: ten measurements, and how far the disease went in a year (Efron et al., 2004).

patients.csv      342 of them, to learn from
new.csv           the others
run/              the fit; run/report.html is its page
predictions.csv   what it says of the others
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code.

    Parameters
    ----------
    arguments : sequence of str, optional
        What follows the program's name on the command line; by default that of this process.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal that knows no minus sign is no reason to stop
        sys.stdout.reconfigure(errors="backslashreplace")
    with _terminable():
        code = _command(list(sys.argv[1:] if arguments is None else arguments))
    try:
        if sys.stdout is not None:  # closed by whoever called us
            sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output has seen enough
        _mute()
    except OSError as error:
        _mute()
        return _fail("fathomless", f"error: {error}; check the disk and the path", 2)
    return code


def _command(words: list[str]) -> int:
    name = "fathomless"
    try:
        commands = {
            "fit": fitting.fit,
            "predict": fitted.predict,
            "compare": comparing.compare,
            "evaluate": fitted.evaluate,
            "sample": fitted.sample,
            "explain": explaining.explain,
            "report": fitted.report,
            "export": fitted.export,
            "cite": _cite,
            "reproduce": reproducing.reproduce,
            "demo": _demo,
        }
        with contextlib.redirect_stderr(io.StringIO()) if _follows() else contextlib.nullcontext():
            options = parser(commands).parse_args(words or ["--help"])
        name = f"fathomless {options.command}"
        options.words = words
        with warnings.catch_warnings():
            warnings.showwarning = warn
            return cast(int, options.run(options))
    except SystemExit as stop:  # argparse has said all
        return int(stop.code or 0)
    except Stopped as stop:
        return _fail(name, str(stop), stop.code)
    except KeyboardInterrupt as stop:
        what = "terminated" if isinstance(stop, Terminated) else "interrupted"
        kept = "what was saved before is as it was, and nothing is left half written"
        return _fail(name, f"{what}; {kept}", exit_code(stop))
    except BrokenPipeError:
        _mute()
        return 0
    except FathomlessError as error:
        return _fail(name, f"error: {spoken(str(error))}", 2)
    except OSError as error:
        return _fail(name, f"error: {error}; check the disk and the path", 2)
    except MemoryError:
        return _fail(name, "error: there is not enough memory; give fewer rows or columns, or a smaller width", 2)
    except Exception as error:
        if os.environ.get("FATHOMLESS_TRACE"):
            raise
        what = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        return _fail(
            name,
            f"internal error: {what}. This is a fault of ours: please report it with the trace (FATHOMLESS_TRACE=1)",
            1,
        )


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end a command wherever it is as Ctrl-C does: an exception, on whose way files are taken back."""
    if threading.current_thread() is not threading.main_thread():  # which alone hears of signals
        yield
        return

    def end(*_: object) -> NoReturn:
        raise Terminated

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _follows() -> bool:
    """Whether this is one of the processes that ``torchrun`` started, and not the first, which speaks for all."""
    return "MASTER_ADDR" in os.environ and os.environ.get("RANK", "0") != "0"


def _fail(name: str, message: str, code: int) -> int:
    if message:
        with contextlib.suppress(OSError):
            say(f"{name}: {' '.join(message.split())}")
    return code


def _mute() -> None:
    """Send what is still to be printed nowhere, so that the end of the process does not complain of it."""
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
        raise FileError(f"{home} is there already; give another --out, or remove it")
    import numpy as np

    io.write_text(home / "README.txt", _DEMO)
    data = datasets.load("diabetes")
    order = np.random.default_rng(0).permutation(len(data.X))
    inputs: dict[str, Any] = dict(zip(data.feature_names, data.X.T, strict=True))
    frame = columns.tabled({**inputs, "progression": data.y}).take(order)
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
