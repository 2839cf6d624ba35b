"""Command ``fit``: train a network on a table and write a run; a signal pauses the training."""

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
from fathomless.app.commands.flags import check_options
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

_LEAST = 10  # minimum number of rows: the relative error of a standard deviation is about 1/4 with fewer


def fit(given: argparse.Namespace) -> int:
    """Fit a network to a table."""
    from fathomless.inference.runs.distributed import start_group  # torch comes here

    with start_group() as group:
        if group.rank:
            given.quiet = True  # only the first process prints
            warnings.showwarning = ignore
        try:
            code = _fit_table(given, group)
            group.agree()  # wait until all files are written
        except BaseException as error:
            if group.is_first("failure"):
                raise
            time.sleep(1.0)  # torchrun ends all processes with the first: wait for the one that prints the reason
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
    names = [field.name for field in fields(inputs.FitRequest) if field.name not in ("targets", "form")]
    request = inputs.FitRequest(targets=given.target, form=form(given), **{name: vars(given)[name] for name in names})
    fit = _Fit(given, inputs.read(request), out, group)
    with contextlib.nullcontext() if group.rank else hold_folder(out):
        return _run_fit(given, group, fit)


def _run_fit(given: argparse.Namespace, group: "Ranks", fit: "_Fit") -> int:
    """Fit and save, and print scores, structure and findings."""
    from fathomless.app import runs
    from fathomless.app.page.main_scores import describe_coverage, describe_error, describe_rare_class, describe_rows

    out = fit.out
    checkpoint = runs.begin(out, fit.manifest, resume=given.resume, overwrite=given.overwrite)
    if checkpoint is None:
        if not group.rank:
            note(f"the run in {out} is already finished; use --overwrite to repeat it")
        return 0
    if not group.rank:
        for text in (*(() if given.quiet else fit.table.remarks), *fit.table.notes, *_note_unsorted_dates(fit)):
            note(text)
    with _pause_on_signal(fit.signals, out, _resume_command(given, group)):
        estimator = fit.estimator(checkpoint)
        fit.table.train(estimator)
        fit.signals.training = False
        if group.rank:
            return 0
        evaluation, findings = runs.finish(
            out, fit.manifest, estimator, fit.table.take, fit.table.names, fit.table.weight, fit.table.censored
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
        analysis = runs.analysis(out)
        peers = analysis.peers.scores if analysis and analysis.peers else {}
        show(f"{fit.headline}\n{describe_rows(evaluation)}:\n  {describe_error(evaluation, peers)}")
        if more := describe_coverage(evaluation) or describe_rare_class(evaluation):
            show(f"  {more}")
        show(f"\n{table_of(evaluation, peers)}")
        show(f"\n{estimator.structure_.kind}: {estimator.structure_.summary}\n{_show_columns(estimator)}".rstrip("\n"))
        show_findings(findings)
        show(f"\nReport: {out / 'report.html'}\nPredict new rows:")
        flag = "" if given.header else " --no-header"
        show(f"  fathomless predict {shlex.quote(str(out))} NEW.csv{flag} --out predictions.csv")
    return 0


def _note_unsorted_dates(fit: "_Fit") -> list[str]:
    """Return a note if blocks of rows are to be folds, and the rows are not in the order of a column of dates."""
    import numpy as np

    from fathomless.app.commands import columns

    if fit.options.get("cv__order") != "blocks":
        return []
    return columns.note_unsorted_dates(fit.table.take(np.arange(fit.table.rows))[0])


def _show_columns(estimator: Any) -> str:
    """Return a line on the columns that the networks use, if they were selected; else an empty text."""
    from fathomless.data.schema import some

    shares = getattr(estimator, "columns_used_", {})
    used = [name for name, share in shares.items() if share > 0.0]
    return f"columns: the networks use {len(used)} of {len(shares)}: {some(used)}\n" if shares else ""


class _Fit:
    """Estimator, options and manifest of a fit command, after the table was read."""

    def __init__(self, given: argparse.Namespace, table: "Input", out: Path, group: "Ranks") -> None:
        from fathomless.app import manifests
        from fathomless.app.commands import columns
        from fathomless.system.torch_state import set_threads

        self.given = given
        self.table = table
        self.out = out
        self.signals = _Signals(silent=group.rank > 0)
        if table.rows < _LEAST:
            from fathomless.plots.page import format_count

            raise DataError(
                f"{table.name} has {format_count(table.rows, 'row')} with a target, too few to estimate the "
                f"uncertainty of predictions; at least {_LEAST} are needed: collect more, or fit from Python, without "
                "this minimum"
            )
        family = registry.families()[given.structure]
        asked = {
            name.removeprefix("option_"): value for name, value in vars(given).items() if name.startswith("option_")
        }
        self.options, deprecated = check_options(asked, family, table.task)
        for text in () if group.rank else deprecated:
            note(text)
        if table.task not in family.tasks:
            suited = [other.name for other in registry.families().values() if table.task in other.tasks]
            raise DataError(
                f"--structure is {family.name} for a {table.task}, and is for {' and '.join(family.tasks)}; give "
                f"--structure {' or '.join(suited)}"
            )
        if isinstance(order := self.options.get("ordinal"), list):
            self.options["ordinal"] = columns.order_labels(order, table.classes())
        if given.preset:
            self.options |= registry.preset(family, given.preset, table.task, self.options)
        threads = self._choose_threads()
        self.kind: Any = registry.estimator_class(family.tasks[table.task])
        set_threads(threads)
        self.manifest: RunManifest = manifests.RunManifest(
            command=("fathomless", *_drop_mode(given.words)),
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
            censored=given.censored,
            notes=(*table.remarks, *table.notes),
            notation=table.notation,
            missing=form(given)["missing"],
        )
        subject = ", ".join(given.target) or table.name
        self.headline = f"{subject}: {table.task} on {len(table.columns)} columns, {table.rows:,} rows"

    def _choose_threads(self) -> int:
        """Return the number of threads: as requested, of the run to be resumed, or by the width."""
        import torch

        from fathomless.app import manifests
        from fathomless.system.torch_state import is_wide

        before = manifests.read_manifest(self.out, latest=True) if self.given.resume else None
        usual = torch.get_num_threads() if is_wide(self.options) else 1
        return int(self.given.threads or (before.threads if before else usual))

    def estimator(self, checkpoint: Path) -> Any:
        """Build the estimator with its callbacks."""
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
            callbacks.append(_print_epoch)
        silent = self.given.quiet or self.given.log_json or not sys.stderr.isatty()
        nested = {name: value for name, value in self.options.items() if "__" in name}
        estimator = self.kind(
            **{name: value for name, value in self.options.items() if name not in nested},
            random_state=self.given.seed,
            verbose=int(not silent),
            callbacks=callbacks,
        )
        return estimator.set_params(**nested, checkpoint__folder=checkpoint)


class _Signals:
    """Handler of Ctrl-C and SIGTERM.

    The first signal during the training pauses it after the epoch. A second signal, or one outside the training, ends
    the command immediately.
    """

    def __init__(self, silent: bool = False) -> None:
        self.received = 0
        self.training = False
        self.silent = silent

    def begin(self, run: "Run") -> None:
        """Note that the training has started."""
        self.training = True

    def __call__(self, run: "Run") -> None:
        """Pass the request for a pause to the run, between two epochs."""
        run.pause = bool(self.received)

    def receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        again, self.received = self.received, number
        if again or not self.training:
            raise KeyboardInterrupt
        if self.silent:
            return
        with contextlib.suppress(OSError, RuntimeError):  # standard error may be closed, or in use by this thread
            say("\nfathomless: stopping after this epoch, with a checkpoint; a second signal stops immediately")


def _resume_command(given: argparse.Namespace, group: "Ranks") -> str:
    command, *words = _drop_mode(given.words)
    several = "torchrun --nproc-per-node ... --no-python " if group.count > 1 else ""
    return several + shlex.join(["fathomless", command, "--resume", *words])


@contextlib.contextmanager
def _pause_on_signal(signals: _Signals, out: Path, resume: str) -> Iterator[None]:
    """Pause the training on a signal, with a message on how to resume; log how the run ended."""
    from fathomless.app import runs

    before = {number: signal.signal(number, signals.receive) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except (PausedError, KeyboardInterrupt) as stop:
        done = str(stop).partition(";")[0] or "stopped immediately; the last checkpoint is kept"
        with contextlib.suppress(FathomlessError):
            runs.log_end(out, "paused")
        raise Stopped(f"{done}. To resume: {resume}", 128 + (signals.received or signal.SIGINT)) from None
    except Exception as error:
        with contextlib.suppress(FathomlessError):
            runs.log_end(out, "failed", reason=f"{type(error).__name__}: {error}")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _drop_mode(words: Sequence[str]) -> list[str]:
    """Return the words of a command without ``--resume`` and ``--overwrite``."""
    return [word for word in words if word not in ("--resume", "--overwrite")]


def _file_name(target: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in target).strip(".-") or "run"


def _print_epoch(run: "Run") -> None:
    """Print an epoch as JSON; only the first of several processes does."""
    from fathomless.inference.runs.distributed import ranks

    if not ranks().rank:
        show_json(event="epoch", of=run.epochs, **run.history[-1])
