"""The command ``fit``: a table in, a run out; a signal pauses it."""

import argparse
import contextlib
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fathomless.app.commands.arguments import form
from fathomless.app.commands.flags import options_asked
from fathomless.app.commands.printing import (
    Stopped,
    findings_of,
    ignore,
    note,
    say,
    scores_of,
    show,
    show_findings,
    show_json,
    table_of,
)
from fathomless.families import registry
from fathomless.system.errors import DataError, FathomlessError, PausedError

if TYPE_CHECKING:
    from fathomless.app.commands.inputs import Input
    from fathomless.app.manifests import RunManifest
    from fathomless.inference.runs.distributed import Ranks
    from fathomless.inference.runs.run import Run

__all__ = ["fit"]

_LEAST = 10  # rows, below which not even the spread of the target is known to within a quarter of itself


def fit(given: argparse.Namespace) -> int:
    """Fit a network to a table."""
    from fathomless.inference.runs.distributed import start_group  # torch comes here

    with start_group() as group:
        if group.rank:
            given.quiet, warnings.showwarning = True, ignore  # the first process speaks for all
        try:
            code = _fit_table(given, group)
            group.agree()  # nobody leaves before all is written
        except BaseException as error:
            if group.is_first("failure"):
                raise
            time.sleep(1.0)  # torchrun ends all when one has ended: let the one that tells why be that one
            raise Stopped("", error.code if isinstance(error, Stopped) else 1) from error
        return code


def _fit_table(given: argparse.Namespace, group: "Ranks") -> int:
    named = given.target[0] if given.target else Path(given.data).name.partition(".")[0]
    out = Path(given.out if given.out is not None else Path("runs") / _file_name(named))
    from fathomless.app.commands import inputs
    from fathomless.system.io import writable
    from fathomless.system.locks import hold_folder

    if given.data == "-" and group.count > 1:
        raise DataError(f"{group.count} processes cannot share the standard input (-); give the name of a file")
    writable(out)
    asked = {f.name: vars(given)[f.name] for f in fields(inputs.FitRequest) if f.name not in ("targets", "form")}
    fit = _Fit(given, inputs.read(inputs.FitRequest(targets=given.target, form=form(given), **asked)), out, group)
    with contextlib.nullcontext() if group.rank else hold_folder(out):
        return _fitted(given, group, fit)


def _fitted(given: argparse.Namespace, group: "Ranks", fit: "_Fit") -> int:
    """Fit, save, and say what was found."""
    from fathomless.app import runs

    out = fit.out
    checkpoint = runs.begin(out, fit.manifest, resume=given.resume, overwrite=given.overwrite)
    if checkpoint is None:
        if not group.rank:
            note(f"the run in {out} is finished already; --overwrite would do it again")
        return 0
    if not group.rank:
        for text in (*(() if given.quiet else fit.table.remarks), *fit.table.notes):
            note(text)
    with _pausing(fit.signals, out, _again(given, group)):
        estimator = fit.estimator(checkpoint)
        fit.table.train(estimator)
        fit.signals.training = False
        if group.rank:
            return 0
        evaluation, findings = runs.finish(
            out, fit.manifest, estimator, fit.table.take, fit.table.names, fit.table.weight
        )
    if given.log_json:
        show_json(
            event="finished",
            run=str(out),
            structure=estimator.structure_.summary,
            scores=scores_of(evaluation),
            findings=findings_of(findings),
        )
    elif not given.quiet:
        show(f"{fit.headline}\n{estimator.structure_.kind}: {estimator.structure_.summary}\n")
        show(table_of(evaluation))
        show_findings(findings)
        show(f"\nThe page is {out / 'report.html'}. Next:")
        flag = "" if given.header else " --no-header"
        show(f"  fathomless predict {shlex.quote(str(out))} NEW.csv{flag} --out predictions.csv")
    return 0


class _Fit:
    """What a fit command asks for, once the table has been looked at."""

    def __init__(self, given: argparse.Namespace, table: "Input", out: Path, group: "Ranks") -> None:
        import torch

        from fathomless.app import manifests

        self.given, self.table, self.out, self.signals = given, table, out, _Signals(silent=group.rank > 0)
        if table.rows < _LEAST:
            from fathomless.plots.page import format_count

            raise DataError(
                f"{table.name} has {format_count(table.rows, 'row')} to learn from, too few to say how far to trust "
                f"predictions; at least {_LEAST} are needed: collect more, or fit from Python, which takes any"
            )
        family = registry.families()[given.structure]
        asked = {
            name.removeprefix("option_"): value for name, value in vars(given).items() if name.startswith("option_")
        }
        self.options, deprecated = options_asked(asked, family, table.task)
        for text in () if group.rank else deprecated:
            note(text)
        if table.task not in family.tasks:
            raise DataError(
                f"--structure {family.name} was given for a {table.task}; it is for {' and '.join(family.tasks)}"
            )
        self.kind: Any = registry.estimator_class(family.tasks[table.task])
        before = manifests.read_manifest(out, latest=True) if given.resume else None
        usual = 1 if self.options.get("width", 64) < 256 else torch.get_num_threads()
        threads = given.threads or (before.threads if before else usual)
        torch.set_num_threads(threads)
        self.manifest: RunManifest = manifests.RunManifest(
            command=("fathomless", *_asked(given.words)),
            estimator=self.kind.__name__,
            source=table.name,
            sha256=table.sha256,
            bytes=table.bytes,
            rows=table.rows,
            columns=table.columns,
            targets=tuple(given.target) or table.columns,
            seed=given.seed,
            threads=threads,
            options=self.options,
            key=given.key,
            weight=given.weight,
            groups=given.groups,
            notes=(*table.remarks, *table.notes),
            notation=table.notation,
        )
        what = ", ".join(given.target) or table.name
        self.headline = f"{what}: {table.task} on {len(table.columns)} columns, {table.rows:,} rows"

    def estimator(self, checkpoint: Path) -> Any:
        """Build the estimator, with what watches its training."""
        from fathomless.app import runs
        from fathomless.inference.runs.callbacks import History, TensorBoard

        callbacks: list[Callable[[Run], None]] = [
            self.signals.begin,
            runs.Lengthened(self.out, self.manifest),
            History(self.out),
            self.signals,
        ]
        if self.given.tensorboard:
            callbacks.append(TensorBoard(self.out / "tensorboard"))
        if self.given.log_json:
            callbacks.append(_tell)
        silent = self.given.quiet or self.given.log_json or not sys.stderr.isatty()
        nested = {name: value for name, value in self.options.items() if "__" in name}
        made = self.kind(
            **{name: value for name, value in self.options.items() if name not in nested},
            random_state=self.given.seed,
            verbose=int(not silent),
            callbacks=callbacks,
        )
        return made.set_params(**nested, checkpoint__folder=checkpoint)


class _Signals:
    """Ctrl-C and SIGTERM ask a training to pause; a second one, or one before or after it, ends the command at once."""

    def __init__(self, silent: bool = False) -> None:
        self.received, self.training, self.silent = 0, False, silent

    def begin(self, run: "Run") -> None:
        """Take notice that there is something to keep."""
        self.training = True

    def __call__(self, run: "Run") -> None:
        """Hand the wish on to the run, between two epochs."""
        run.pause = bool(self.received)

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Take a signal."""
        again, self.received = self.received, number
        if again or not self.training:
            raise KeyboardInterrupt
        if self.silent:
            return
        with contextlib.suppress(OSError, RuntimeError):  # standard error may be gone, or at work when this comes
            say("\nfathomless: stopping after this epoch, with a checkpoint; once more stops at once")


def _again(given: argparse.Namespace, group: "Ranks") -> str:
    command, *words = _asked(given.words)
    several = "torchrun --nproc-per-node ... --no-python " if group.count > 1 else ""
    return several + shlex.join(["fathomless", command, "--resume", *words])


@contextlib.contextmanager
def _pausing(signals: _Signals, out: Path, again: str) -> Iterator[None]:
    """Let signals pause the training, and say how to go on; note what ended it."""
    from fathomless.app import runs

    before = {number: signal.signal(number, signals.receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except (PausedError, KeyboardInterrupt) as stop:
        done = str(stop).partition(";")[0] or "stopped at once; what the last checkpoint holds is kept"
        with contextlib.suppress(FathomlessError):
            runs.leave(out, "paused")
        raise Stopped(f"{done}. To go on: {again}", 128 + (signals.received or signal.SIGINT)) from None
    except Exception as error:
        with contextlib.suppress(FathomlessError):
            runs.leave(out, "failed", reason=f"{type(error).__name__}: {error}")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _asked(words: Sequence[str]) -> list[str]:
    return [word for word in words if word not in ("--resume", "--overwrite")]


def _file_name(target: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in target).strip(".-") or "run"


def _tell(run: "Run") -> None:
    """Print an epoch; of several processes the first one does."""
    from fathomless.inference.runs.distributed import ranks

    if not ranks().rank:
        show_json(event="epoch", of=run.epochs, **run.history[-1])
