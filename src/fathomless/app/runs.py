"""Run folder: files of a fit, and functions to begin, finish and read it.

::

    runs/price/
      run.json            manifest: the command, the data, the target, the options
      manifest.json, tensors-….safetensors    the fitted estimator, as written by its ``save``
      history.csv, history.jsonl              history of the training
      relevance.csv       posterior relevance of every column, if the weights were sampled
      analysis.json       comparison with simple models, importance of columns, rows with large residuals
      evaluations/        scores and data for pictures, one folder for each evaluation
      report.html         HTML page
      log.jsonl           times of start, pauses, resumption and end
      unfinished.json                         manifest of an unfinished run
      checkpoint/                             state of the training; kept at the end if the run can be extended

A run that is overwritten keeps its old model until the new one is saved.
"""

import csv
import datetime
import hashlib
import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from io import StringIO
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fathomless.app.assessing import FitRows, analyse_fit, diagnose_fit, note_versions, render_page, score_fit
from fathomless.app.diagnose import TRAINING_FILE
from fathomless.app.manifests import (
    ASKED,
    UNFINISHED,
    RunManifest,
    finished,
    read_manifest,
    require_complete,
    state,
)
from fathomless.app.page.analysis import Analysis
from fathomless.estimators.base import Estimator
from fathomless.estimators.evaluation import Evaluation
from fathomless.estimators.findings import Finding
from fathomless.families import registry
from fathomless.inference.runs.callbacks import write_history
from fathomless.inference.runs.distributed import ranks
from fathomless.system import io
from fathomless.system.errors import DataError

__all__ = [
    "OWN",
    "Lengthened",
    "analysis",
    "begin",
    "evaluations",
    "find_new_findings",
    "finish",
    "keep_evaluation",
    "load",
    "log",
    "log_end",
    "page",
]

_CHECKPOINT = "checkpoint"
_EVALUATIONS, _REPORT, _RELEVANCE, _ANALYSIS = "evaluations", "report.html", "relevance.csv", "analysis.json"
#: Names of the evaluations on rows of the fitted table, and their folders.
OWN = {"held-out rows": "held-out", "out-of-fold rows": "out-of-fold", "training rows": "training"}
_HASHED = re.compile("-[0-9a-f]{16}$")

Path_ = str | PathLike[str]
Ints = npt.NDArray[np.int64]


# ------------------------------------------------------------------------------------------- beginning, ending


def begin(folder: Path_, manifest: RunManifest, *, resume: bool, overwrite: bool) -> Path | None:
    """Prepare the folder of a new run, or of a run to be resumed; the first of several ranks does, the others wait.

    Returns
    -------
    Path or None
        Folder of the checkpoints; None if the same run is already finished.

    Raises
    ------
    DataError
        If the folder contains a run and neither `resume` nor `overwrite` is given, or if the run to be resumed
        differs from this one.
    FileError
        If the folder cannot be written.
    """
    folder = io.writable(folder)
    done = ranks().rank == 0 and not _prepare(folder, manifest, resume, overwrite)
    return None if ranks().broadcast(done) else io.real(folder / _CHECKPOINT)


def _prepare(folder: Path, manifest: RunManifest, resume: bool, overwrite: bool) -> bool:
    """Prepare a folder as in :func:`begin`; return False if the same run is already finished."""
    status = state(folder)
    if status != "empty" and not (resume or overwrite):
        resume_hint = "--resume to continue it, " if status == "unfinished" else ""
        article = "an" if status == "unfinished" else "a"
        raise DataError(
            f"{folder} already contains {article} {status} run; add {resume_hint}--overwrite to replace it, or choose "
            "another --out"
        )
    if resume and status != "empty":
        before = read_manifest(folder, latest=True)
        if before is not None and status == "finished" and manifest.lengthens(before):
            _require_checkpoint(folder)
            return True
        different = ["the data"] if before is None else manifest.differences(before)
        if different:
            raise DataError(
                f"the run in {folder} differs from this one in {', '.join(different)}; repeat the original command, or "
                "give another --out, or --overwrite"
            )
        if status == "finished":
            return False
        log(folder, "resumed")
        return True
    io.remove(folder / _CHECKPOINT, inside=True)
    io.write_text(folder / UNFINISHED, manifest.to_json())
    log(folder, "started")
    return True


class Lengthened:
    """Callback that marks a finished run as unfinished at its first additional epoch; until then it is unchanged."""

    def __init__(self, folder: Path_, manifest: RunManifest) -> None:
        self._folder = Path(folder)
        self._manifest = manifest
        self._known = bool(ranks().rank)

    def __call__(self, run: Any) -> None:
        """Mark the run at the first new row of the history."""
        if not self._known and state(self._folder) == "finished":
            io.write_text(self._folder / UNFINISHED, self._manifest.to_json())
            log(self._folder, "lengthened")
        self._known = True


def _require_checkpoint(folder: Path) -> None:
    """Raise an error if a finished run has no checkpoint from which it can be extended."""
    if not io.holds(folder / _CHECKPOINT):
        raise DataError(
            f"the run in {folder} is finished and cannot be extended: its learning rates depend on the number of "
            "epochs, or early stopping ended it, so a longer run would differ from the start. Give --overwrite or "
            "another --out. Runs that can be extended: one network (--cv 1 --structure-from elbo) with constant rates "
            "(--adam.schedule constant, a number for --elbo.rate), and --structure graph"
        )


def finish(
    folder: Path_,
    manifest: RunManifest,
    estimator: Estimator,
    take: Callable[[Ints], tuple[Any, Any]],
    keys: Sequence[str] | None = None,
    weight: npt.NDArray[np.float64] | None = None,
    censored: npt.NDArray[Any] | None = None,
) -> tuple[Evaluation, tuple[Finding, ...]]:
    """Save the fitted estimator with its history, scores, analysis and report; end the run.

    Parameters
    ----------
    folder : str or path-like
        Folder of the run.
    manifest : RunManifest
        Manifest of the run.
    estimator : Estimator
        Fitted estimator.
    take : callable
        Function that returns X and y of some of the ``manifest.rows`` rows of the fit, by their numbers.
    keys : sequence of str, optional
        Names of these rows.
    weight : ndarray, shape (N,), optional
        Sample weights of these rows in the scores.
    censored : ndarray, shape (N,), optional
        Kinds of these rows, if targets are censored. There is then no analysis, whose simple models cannot be fitted to
        censored targets.

    Returns
    -------
    evaluation, findings
        Evaluation on the held-out rows, or on all rows out of fold, or on the training rows if none were held out; and
        the findings.
    """
    folder = Path(folder)
    table = FitRows(manifest.rows, take, manifest.targets, keys, weight, censored)
    scores = score_fit(estimator, table)
    # The order of the writes matters: after an interruption here, the digest of the model in run.json shows whether the
    # model is the old or the new one, and unfinished.json remains until everything is in place.
    estimator.save(folder)
    notes = (*manifest.notes, *note_versions(estimator))
    io.write_text(folder / ASKED, replace(manifest, model=io.digest(folder), notes=notes).to_json())
    write_history(folder, estimator.history_)
    io.remove_file(folder / _RELEVANCE)
    if estimator.relevance_:
        io.write_text(folder / _RELEVANCE, _csv(estimator.relevance_))
    for place in _evaluation_folders(folder):  # including evaluations on files, which are of the previous model
        io.remove(place)
    for evaluation in (scores.main, scores.training):
        keep_evaluation(folder, evaluation)
    io.remove_file(folder / _ANALYSIS)
    if (result := analyse_fit(estimator, table, scores, manifest.seed)) is not None:
        result.save(folder / _ANALYSIS)
    findings = _diagnose(folder, estimator, scores.unseen, scores.training, manifest.rows)
    io.write_text(folder / _REPORT, page(folder))
    if not estimator.resumable_:
        io.remove(folder / _CHECKPOINT, inside=True)
    io.remove_file(folder / UNFINISHED)
    log(folder, "finished")
    return scores.main, findings


def _diagnose(
    folder: Path_, estimator: Estimator, others: Sequence[Evaluation], training: Evaluation | None, rows: int | None
) -> tuple[Finding, ...]:
    """Return the findings of a run, including those that depend on its analysis."""
    return diagnose_fit(estimator, others, training, rows, analysis(folder))


def find_new_findings(folder: Path_, estimator: Estimator, rows: int, found: Evaluation) -> tuple[Finding, ...]:
    """Return the additional findings of a finished run with an evaluation on new rows."""
    places = {name: Path(folder) / _EVALUATIONS / place for name, place in OWN.items()}
    saved = {name: Evaluation.load(place) for name, place in places.items() if io.holds(place)}
    training = saved.pop("training rows", None)
    before = _diagnose(folder, estimator, [*saved.values()], training, rows)
    after = _diagnose(folder, estimator, [*saved.values(), found], training, rows)
    return tuple(finding for finding in after if finding not in before)


def analysis(folder: Path_) -> Analysis | None:
    """Return the analysis of a run, or None if it has none.

    Raises
    ------
    FileError
        If the file is damaged.
    """
    path = Path(folder) / _ANALYSIS
    return Analysis.load(path) if path.exists() else None


def _csv(columns: Mapping[str, Mapping[str, float]]) -> str:
    """Return a CSV table with a header and a row for each column."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["column", *next(iter(columns.values()))])
    writer.writerows([name, *values.values()] for name, values in columns.items())
    return text.getvalue()


def log_end(folder: Path_, event: str, **values: Any) -> None:
    """Log that a run ended before its last epoch; without a checkpoint, it cannot be resumed."""
    if ranks().rank:
        return
    if not io.holds(Path(folder) / _CHECKPOINT, inside=True):
        io.remove_file(Path(folder) / UNFINISHED)
    log(folder, event, **values)


def log(folder: Path_, event: str, **values: Any) -> None:
    """Add a line to ``log.jsonl``, the only file of a run with times; only the first of several ranks does."""
    if ranks().rank:
        return
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    io.append_text(Path(folder) / "log.jsonl", json.dumps({"time": now, "event": event, **values}) + "\n")


# ---------------------------------------------------------------------------------------------------- reading


def load(folder: Path_) -> tuple[Estimator, RunManifest | None]:
    """Load the fitted estimator of a run, or one that was saved from Python.

    Raises
    ------
    FileError
        If the folder has no finished fit; the message says how to resume it.
    """
    require_complete(folder)
    return registry.load(folder), read_manifest(folder)


def keep_evaluation(folder: Path_, evaluation: Evaluation) -> None:
    """Save an evaluation in a run; an evaluation of the same name is replaced."""
    evaluation.save(io.real(io.real(Path(folder) / _EVALUATIONS) / _folder_name(evaluation.name)))


def evaluations(folder: Path_) -> list[Evaluation]:
    """Return the evaluations of a run: on new files by name, unseen rows, the file of the fit, and training rows."""
    loaded = [Evaluation.load(place) for place in _evaluation_folders(folder)]
    last = list(OWN)

    def place(name: str) -> float:
        if name.endswith(TRAINING_FILE):
            return last.index("training rows") - 0.5
        return last.index(name) if name in last else -1.0

    return sorted(loaded, key=lambda evaluation: (place(evaluation.name), evaluation.name))


def _evaluation_folders(folder: Path_) -> list[Path]:
    home = io.real(Path(folder) / _EVALUATIONS)
    return [place for place in sorted(home.iterdir()) if io.holds(place)] if home.is_dir() else []


def page(folder: Path_) -> str:
    """Return the page of a run as HTML."""
    fitted = registry.load(finished(folder))
    manifest = read_manifest(folder)
    saved = evaluations(folder)
    training = next((e for e in saved if e.name == "training rows"), None)
    others = [e for e in saved if e is not training]
    data: dict[str, Any] = {"target names": list(manifest.targets) if manifest else ["y"]}
    if manifest is not None:
        data |= {"file": manifest.source, "bytes": manifest.bytes, "sha256": manifest.sha256, "rows": manifest.rows}
        data |= {"columns": len(manifest.columns), "notes": list(manifest.notes)}
        data |= {"weight": manifest.weight} if manifest.weight is not None else {}
    return render_page(
        fitted,
        saved,
        _diagnose(folder, fitted, others, training, manifest.rows if manifest else None),
        analysis(folder),
        data=data,
        versions=dict(manifest.versions) if manifest else io.header(folder)[1],
        command=shlex.join(manifest.command) if manifest else None,
    )


def _folder_name(name: str) -> str:
    """Return a portable and unique folder name, also for file systems that ignore case."""
    if name in OWN:
        return OWN[name]
    plain = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip(".-")
    if plain == name and 0 < len(name) <= 60 and name not in OWN.values() and not _HASHED.search(name):
        return name
    return f"{plain[:60] or 'file'}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
