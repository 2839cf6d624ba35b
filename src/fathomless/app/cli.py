"""The command line: a table in, a model, predictions and a page out.

What a command needs is imported when it runs; what can be asked is in :mod:`fathomless.app.arguments`.

Exit codes: 0; 2 for an error of the user's, with one line on standard error; 1 for one of ours, and for an experiment
that does not show what is expected of it; 130 and 143 after Ctrl-C and SIGTERM.
"""

import argparse
import contextlib
import io
import json
import os
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

from fathomless.app.arguments import parser
from fathomless.families import registry
from fathomless.system import checks
from fathomless.system.errors import DataError, FathomlessError, FileError, PausedError

if TYPE_CHECKING:
    from fathomless.app.inputs import Input
    from fathomless.app.runs import RunManifest
    from fathomless.estimators.base import Predictor
    from fathomless.estimators.evaluation import Evaluation
    from fathomless.inference.distributed import Ranks
    from fathomless.inference.run import Run

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
            "fit": _fit,
            "predict": _predict,
            "evaluate": _evaluate,
            "sample": _sample,
            "report": _report,
            "cite": _cite,
            "reproduce": _reproduce,
            "demo": _demo,
        }
        with contextlib.redirect_stderr(io.StringIO()) if _follows() else contextlib.nullcontext():
            options = parser(commands).parse_args(words)
        name = f"fathomless {options.command}"
        options.words = words
        with warnings.catch_warnings():
            warnings.showwarning = _ignore if vars(options).get("quiet") else _warn
            return cast(int, options.run(options))
    except SystemExit as stop:  # argparse has said all
        return int(stop.code or 0)
    except _Stopped as stop:
        return _fail(name, str(stop), stop.code)
    except KeyboardInterrupt:
        return _fail(name, "interrupted; nothing was lost that was saved before", 130)
    except BrokenPipeError:
        _mute()
        return 0
    except FathomlessError as error:
        return _fail(name, f"error: {error}", 2)
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


def _follows() -> bool:
    """Whether this is one of the processes that ``torchrun`` started, and not the first, which speaks for all."""
    return "MASTER_ADDR" in os.environ and os.environ.get("RANK", "0") != "0"


def _fail(name: str, message: str, code: int) -> int:
    if message:
        with contextlib.suppress(OSError):
            _say(f"{name}: {' '.join(message.split())}")
    return code


def _mute() -> None:
    """Send what is still to be printed nowhere, so that the end of the process does not complain of it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _ignore(*_: object, **__: object) -> None:
    pass


def _warn(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
    if not issubclass(category, (DeprecationWarning, FutureWarning)):
        _note(str(message))


def _note(text: str) -> None:
    _say(f"note: {' '.join(text.split())}")


def _say(text: str) -> None:
    if sys.stderr is not None:  # else print would take standard output, where the predictions go
        print(text, file=sys.stderr)


class _Stopped(Exception):
    """A signal ended the command, or another process did; that one tells why, and the message is empty."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


# ------------------------------------------------------------------------------------------------- fitting


def _fit(given: argparse.Namespace) -> int:
    from fathomless.inference.distributed import started  # torch comes here

    with started() as group:
        if group.rank:
            given.quiet, warnings.showwarning = True, _ignore
        try:
            code = _fit_table(given, group)
            group.agree()  # nobody leaves before all is written
        except BaseException as error:
            if group.first("failure"):
                raise
            time.sleep(1.0)  # torchrun ends all when one has ended: let the one that tells why be that one
            raise _Stopped("", error.code if isinstance(error, _Stopped) else 1) from error
        return code


def _fit_table(given: argparse.Namespace, group: "Ranks") -> int:
    named = given.target[0] if given.target else Path(given.data).name.partition(".")[0]
    out = Path(given.out if given.out is not None else Path("runs") / _file_name(named))
    from fathomless.app import inputs, runs
    from fathomless.system.io import writable

    if given.data == "-" and group.count > 1:
        raise DataError(f"{group.count} processes cannot share the standard input (-); give the name of a file")
    writable(out)
    asked = {f.name: vars(given)[f.name] for f in fields(inputs.FitRequest) if f.name != "targets"}
    fit = _Fit(given, inputs.read(inputs.FitRequest(targets=given.target, **asked)), out, group)
    checkpoint = runs.begin(out, fit.manifest, resume=given.resume, overwrite=given.overwrite)
    if checkpoint is None:
        if not group.rank:
            _note(f"the run in {out} is finished already; --overwrite would do it again")
        return 0
    for note in fit.manifest.notes if not given.quiet else ():
        _note(note)
    with _pausing(fit.signals, out, _again(given, group)):
        estimator = fit.estimator(checkpoint)
        fit.table.train(estimator)
        fit.signals.training = False
        if group.rank:
            return 0
        evaluation, findings = runs.finish(out, fit.manifest, estimator, fit.table.take)
    if given.log_json:
        _json(event="finished", run=str(out), structure=estimator.structure_.summary, scores=_scores(evaluation))
    elif not given.quiet:
        print(f"{fit.headline}\n{estimator.structure_.kind}: {estimator.structure_.summary}\n")
        print(_table(evaluation))
        for finding in findings:
            print(f"\n{finding.severity}: {finding.title}\n  {finding.detail}\n  {finding.remedy}")
        print(f"\nThe page is {out / 'report.html'}. Next:")
        print(f"  fathomless predict {shlex.quote(str(out))} NEW.csv --out predictions.csv")
    return 0


class _Fit:
    """What a fit command asks for, once the table has been looked at."""

    def __init__(self, given: argparse.Namespace, table: "Input", out: Path, group: "Ranks") -> None:
        import torch

        from fathomless.app import runs

        self.given, self.table, self.out, self.signals = given, table, out, _Signals(silent=group.rank > 0)
        family = registry.families()[given.structure]
        declared = registry.options(family, table.task)
        self.options = {
            name.removeprefix("option_"): value for name, value in vars(given).items() if name.startswith("option_")
        }
        if foreign := sorted(set(self.options) - set(declared)):
            raise DataError(_foreign(foreign[0], given.structure))
        for name, value in self.options.items():  # now, before a run begins
            checks.option(name, value, **declared[name].metadata)
        if table.task not in family.tasks:
            raise DataError(
                f"--structure {family.name} was given for a {table.task}; it is for {' and '.join(family.tasks)}"
            )
        self.kind: Any = registry.estimator_class(family.tasks[table.task])
        before = runs.read_manifest(out, latest=True) if given.resume else None
        usual = 1 if self.options.get("width", 64) < 256 else torch.get_num_threads()
        threads = given.threads or (before.threads if before else usual)
        torch.set_num_threads(threads)
        self.manifest: RunManifest = runs.RunManifest(
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
            notes=table.notes,
            notation=table.notation,
        )
        what = ", ".join(given.target) or table.name
        self.headline = f"{what}: {table.task} on {len(table.columns)} columns, {table.rows:,} rows"

    def estimator(self, checkpoint: Path) -> Any:
        """Build the estimator, with what watches its training."""
        from fathomless.inference.callbacks import History, TensorBoard

        callbacks: list[Callable[[Run], None]] = [History(self.out), self.signals]
        if self.given.tensorboard:
            callbacks.append(TensorBoard(self.out / "tensorboard"))
        if self.given.log_json:
            callbacks.append(_tell)
        silent = self.given.quiet or self.given.log_json or not sys.stderr.isatty()
        return self.kind(
            **self.options,
            random_state=self.given.seed,
            checkpoint=checkpoint,
            progress=not silent,
            callbacks=callbacks,
        )


class _Signals:
    """Ctrl-C and SIGTERM ask a training to pause; a second one, or one after the training, ends it at once."""

    def __init__(self, silent: bool = False) -> None:
        self.received, self.training, self.silent = 0, True, silent

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
            _say("\nfathomless: stopping after this epoch, with a checkpoint; once more stops at once")


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
            runs.log(out, "paused")
        raise _Stopped(f"{done}. To go on: {again}", 128 + (signals.received or signal.SIGINT)) from None
    except Exception as error:
        with contextlib.suppress(FathomlessError):
            runs.fail(out, f"{type(error).__name__}: {error}")
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _asked(words: Sequence[str]) -> list[str]:
    return [word for word in words if word not in ("--resume", "--overwrite")]


def _foreign(name: str, structure: str) -> str:
    """Say where an option belongs that this task or this structure has not."""
    having = [other for other, family in registry.families().items() if name in registry.options(family, "regression")]
    flag = f"--{name.replace('_', '-')}"
    if structure in having:
        return f"{flag} was given, which is for numbers; the target is a class"
    return f"{flag} was given, which --structure {structure} has not; it is for --structure {' or '.join(having)}"


def _file_name(target: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "-" for c in target).strip(".-") or "run"


# ------------------------------------------------------------------------------------------------- a fitted run


def _predict(given: argparse.Namespace) -> int:
    from dataclasses import replace

    from fathomless.app import columns, runs
    from fathomless.data import files as tables
    from fathomless.data.targets import ClassLabels
    from fathomless.estimators.tasks import Density

    estimator, manifest = runs.load(given.folder)
    _set_threads(given.threads or (manifest.threads if manifest else None))
    if given.interval and isinstance(estimator, Density):
        raise DataError("--interval was given, and a density has no target; leave it out")
    if given.interval and isinstance(estimator.target_, ClassLabels):
        raise DataError("--interval was given, which is for numbers; the target is a class")
    if given.unseen:
        estimator.schema_ = replace(estimator.schema_, unseen=given.unseen)
    key = given.key or (manifest.key if manifest else None)
    targets, levels, unused, done = manifest.targets if manifest else (), given.interval or [0.9], None, 0
    with tables.writer(given.out) as write:
        for piece in tables.batches(given.data, columns.kinds(estimator.schema_), **_notation(given, manifest)):
            if unused is None:
                used = {column.name for column in estimator.schema_.columns} | {key}
                unused = [name for name in piece.column_names if estimator.schema_.named and name not in used]
                if given.key:
                    columns.present(piece.column_names, [given.key])
            if not len(piece):
                raise DataError(f"{given.data} has column names and no rows; give rows to predict")
            names: dict[str, Any] = {key: piece[key]} if key is not None and key in piece.column_names else {}
            X = piece if estimator.schema_.named else piece.drop_columns(list(names))
            X = columns.features(X, estimator.schema_)
            if isinstance(estimator, Density):
                log_density, error = estimator.score_samples(X, return_error=True)
                found = {"log_density": log_density, "monte_carlo_error": error}
            else:
                found = columns.predictions(cast("Predictor", estimator).predict_dist(X), targets, levels)
            if key in found:
                raise DataError(f"the key column {key!r} is called like one of predictions; give it another name")
            write(columns.tabled({**names, **found}))
            done += len(piece)
    if unused:
        _note(f"columns that were not used: {', '.join(unused)}")
    if given.out != "-":
        print(f"{done:,} rows are in {given.out}")
    return 0


def _notation(given: argparse.Namespace, manifest: "RunManifest | None") -> dict[str, Any]:
    """Return how a table is to be read: as the one that was fitted, unless a decimal mark is given."""
    known = manifest.notation.items() if manifest else ()
    kept = {column: way for column, way in known if given.decimal == "auto" or "%" in way}
    return {"delimiter": given.delimiter, "decimal": given.decimal, "notation": kept}


def _set_threads(threads: int | None) -> None:
    """Use as many threads as the training did, if there are so many: a narrow network is slower on many."""
    import torch

    if threads is not None:
        torch.set_num_threads(min(threads, os.cpu_count() or 1))


def _evaluate(given: argparse.Namespace) -> int:
    from fathomless.app import columns, runs
    from fathomless.data import files as tables
    from fathomless.data.targets import ClassLabels
    from fathomless.estimators.tasks import Density

    estimator, manifest = runs.load(given.folder)
    _set_threads(given.threads or (manifest.threads if manifest else None))
    if manifest is None:
        raise DataError(f"{given.folder} was saved from Python, which keeps no name of its target; evaluate it there")
    labels = estimator.target_.labels if isinstance(estimator.target_, ClassLabels) else None
    targets = () if isinstance(estimator, Density) else manifest.targets
    kinds = {**columns.kinds(estimator.schema_), **columns.target_kinds(targets, labels)}
    pieces = tables.batches(given.data, kinds, **_notation(given, manifest))
    frame, notes = columns.joined(pieces), list[str]()
    if targets:
        frame, notes = columns.answered(frame, targets)
    for note in notes:
        _note(note)
    name = "standard input" if given.data == "-" else Path(given.data).name
    if name in runs.OWN:  # and not in their place
        name = f"./{name}"
    X = columns.features(frame, estimator.schema_)
    task = "regression" if labels is None else "classification"
    y = columns.answers(frame.select(targets), task) if targets else None
    found = runs.scored(estimator, X, y, name=name, targets=manifest.targets)
    runs.keep_evaluation(given.folder, found)
    if given.json:
        _json(
            run=str(given.folder),
            data=name,
            rows=found.rows,
            scores=_scores(found),
            constant=_scores(found, "baseline"),
        )
    else:
        print(_table(found))
        _note(f"kept in {given.folder}; fathomless report {shlex.quote(given.folder)} shows it")
    return 0


def _sample(given: argparse.Namespace) -> int:
    from fathomless.app import columns, runs
    from fathomless.data import files as tables
    from fathomless.estimators.tasks import Density

    estimator, _ = runs.load(given.folder)
    if not isinstance(estimator, Density):
        raise DataError(f"{given.folder} predicts a target; rows are drawn from a density (fit --task density)")
    drawn = estimator.sample(given.rows, random_state=given.seed)
    names = [column.name for column in estimator.schema_.columns]
    with tables.writer(given.out) as write:
        write(columns.tabled(dict(zip(names, drawn.T, strict=True))))
    if given.out != "-":
        print(f"{given.rows:,} rows are in {given.out}")
    return 0


def _report(given: argparse.Namespace) -> int:
    from fathomless.app import runs
    from fathomless.system import io

    page = runs.page(given.folder)
    out = Path(given.out) if given.out else Path(given.folder) / "report.html"
    if out.is_dir():
        raise FileError(f"{out} is a folder; give the name of a file, such as report.html")
    io.write_text(out, page)
    print(out)
    if given.open:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
    return 0


def _cite(given: argparse.Namespace) -> int:
    names: list[str] = []
    if given.folder:
        from fathomless.app import runs

        names = [registry.family_of(runs.load(given.folder)[0]).name]
    for reference in registry.references(*names):
        print(reference.bibtex() if given.bibtex else reference.text())
    return 0


def _reproduce(given: argparse.Namespace) -> int:
    from fathomless import experiments

    if given.list:
        print(experiments.listing())
        return 0
    if given.name is None:
        raise DataError("no NAME was given; fathomless reproduce --list names the experiments")
    experiments.find(given.name)  # before torch is loaded
    from fathomless.experiments.reproduce import reproduce
    from fathomless.experiments.results import layout
    from fathomless.system.progress import Terminal

    _set_threads(given.threads)
    mode = "full" if given.full else "smoke"
    out = given.out or f"reproduced/{given.name}-{mode}-{given.preset}"
    report = reproduce(
        given.name,
        mode=mode,
        preset=given.preset,
        seed=given.seed,
        data=given.data,
        out=out,
        progress=Terminal("part") if sys.stderr is not None and sys.stderr.isatty() else None,
    )
    print(layout(report.verdicts))
    for note in report.result.notes:
        _note(note)
    _note(f"{len(report.result.values)} values, the settings and a figure are in {out} ({report.result.seconds:.0f} s)")
    return 0 if report.holds() else 1


def _demo(given: argparse.Namespace) -> int:
    from fathomless.app import columns
    from fathomless.data import datasets
    from fathomless.data import files as tables
    from fathomless.system import io

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
        with tables.writer(home / name) as write:
            write(part)
    run = str(home / "run")
    for words in (
        ["fit", str(home / "patients.csv"), "--target", "progression", "--out", run],
        ["predict", run, str(home / "new.csv"), "--out", str(home / "predictions.csv")],
        ["evaluate", run, str(home / "new.csv")],
        ["report", run],
    ):
        print(f"\n$ {shlex.join(['fathomless', *words])}")
        if code := main(words):
            return code
    return 0


# ------------------------------------------------------------------------------------------------- printing


def _tell(run: "Run") -> None:
    """Print an epoch; of several processes the first one does."""
    from fathomless.inference.distributed import ranks

    if not ranks().rank:
        _json(event="epoch", of=run.epochs, **run.history[-1])


def _json(**values: Any) -> None:
    print(json.dumps(values), flush=True)


def _scores(found: "Evaluation", which: str = "scores") -> dict[str, dict[str, float | None]]:
    scores: Mapping[str, Any] = getattr(found, which)
    return {name: {"value": score.value, "standard_error": score.error} for name, score in scores.items()}


def _table(found: "Evaluation") -> str:
    """Lay out scores beside those of a constant prediction."""
    from fathomless.plots.page import measured

    rows = [(f"{found.name}, {found.rows:,}", "", "constant prediction")]
    for name, score in found.scores.items():
        base = found.baseline[name]
        tidy = [(0.0 if abs(s.value) < 1e-9 else s.value, s.error) for s in (score, base)]  # zero up to rounding
        ours, constant = (" ".join(measured(*pair)).strip() for pair in tidy)
        rows.append((name.replace("_", " "), ours, constant))
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


if __name__ == "__main__":
    sys.exit(main())
