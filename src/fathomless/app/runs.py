"""The run folder: what was asked, what was found, and how to go on.

::

    runs/price/
      run.json            what was asked: the command, the data, the target, the options
      manifest.json, tensors-….safetensors    the fitted estimator, as its ``save`` writes it
      history.csv, history.jsonl              what happened in training
      relevance.csv       what the posterior says of the use of every column, where weights were sampled
      analysis.json       simple models beside it, what drives it, and which rows it expected least
      evaluations/        scores and what their pictures need, one folder each
      report.html         the page
      log.jsonl           when it was started, paused, resumed and finished
      unfinished.json                         only until the training is done
      checkpoint/                             where it stands; kept at the end if it can be lengthened

A run that is overwritten keeps its old model until the new one is there.
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
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fathomless.app.diagnose import diagnose
from fathomless.app.manifests import ASKED, UNFINISHED, RunManifest, complete, finished, read_manifest, state
from fathomless.app.page.analysis import Analysis, analyse
from fathomless.estimators.base import Estimator, PredictiveEstimator
from fathomless.estimators.densities import evaluate_density
from fathomless.estimators.evaluation import Evaluation, evaluate
from fathomless.estimators.findings import Finding
from fathomless.estimators.tasks import Density
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
    "finish",
    "keep_evaluation",
    "leave",
    "load",
    "log",
    "page",
    "scored",
    "shown_by",
]

_CHECKPOINT = "checkpoint"
_EVALUATIONS, _REPORT, _RELEVANCE, _ANALYSIS = "evaluations", "report.html", "relevance.csv", "analysis.json"
#: Names of the evaluations that are not of a file, and the folders they are in.
OWN = {"held-out rows": "held-out", "out-of-fold rows": "out-of-fold", "training rows": "training"}
_MARKED = re.compile("-[0-9a-f]{16}$")
_COMPARED = 10_000  # training rows that are scored beside the held-out ones

Path_ = str | PathLike[str]
Ints = npt.NDArray[np.int64]


# ------------------------------------------------------------------------------------------- beginning, ending


def begin(folder: Path_, manifest: RunManifest, *, resume: bool, overwrite: bool) -> Path | None:
    """Prepare a folder for a run, or find it as it was left; of several ranks the first one does, and the others wait.

    Returns
    -------
    Path or None
        Where checkpoints go; None if this very run is finished already.

    Raises
    ------
    DataError
        If the folder holds a run and neither `resume` nor `overwrite` says what to do; or if the run to be resumed is
        another one.
    FileError
        If the folder cannot be written.
    """
    folder = io.writable(folder)
    done = ranks().rank == 0 and not _prepared(folder, manifest, resume, overwrite)
    return None if ranks().broadcast(done) else io.real(folder / _CHECKPOINT)


def _prepared(folder: Path, manifest: RunManifest, resume: bool, overwrite: bool) -> bool:
    """Do what :func:`begin` promises; return False if this very run is finished already."""
    found = state(folder)
    if found != "empty" and not (resume or overwrite):
        way = "--resume to go on with it, " if found == "unfinished" else ""
        raise DataError(
            f"{folder} holds {'an' if found == 'unfinished' else 'a'} {found} run already; add {way}--overwrite to "
            "replace it, or choose another --out"
        )
    if resume and found != "empty":
        before = read_manifest(folder, latest=True)
        if before is not None and found == "finished" and manifest.lengthens(before):
            _require_end(folder)
            return True
        different = ["the data"] if before is None else manifest.differences(before)
        if different:
            raise DataError(
                f"the run in {folder} differs from this one in {', '.join(different)}; give what it was started "
                "with, or another --out, or --overwrite"
            )
        if found == "finished":
            return False
        log(folder, "resumed")
        return True
    io.remove(folder / _CHECKPOINT, inside=True)
    io.write_text(folder / UNFINISHED, manifest.to_json())
    log(folder, "started")
    return True


class Lengthened:
    """Makes a finished run an unfinished one once there is more of it: until then it stays as it is."""

    def __init__(self, folder: Path_, manifest: RunManifest) -> None:
        self._folder, self._manifest, self._known = Path(folder), manifest, bool(ranks().rank)

    def __call__(self, run: Any) -> None:
        """Look at the first row of the history that is new."""
        if not self._known and state(self._folder) == "finished":
            io.write_text(self._folder / UNFINISHED, self._manifest.to_json())
            log(self._folder, "lengthened")
        self._known = True


def _require_end(folder: Path) -> None:
    """Refuse to lengthen what was planned for its length."""
    if not io.holds(folder / _CHECKPOINT):
        raise DataError(
            f"the run in {folder} is finished, and was planned for its epochs: rates that fall with them, or rows that "
            "ended it, would have made another of a longer one. Give --overwrite or another --out; one network "
            "(--cv 1 --structure-from elbo) at steady rates (--adam.schedule constant, a number for --elbo.rate) "
            "can be lengthened, and so can --structure graph"
        )


def finish(
    folder: Path_,
    manifest: RunManifest,
    estimator: Estimator,
    take: Callable[[Ints], tuple[Any, Any]],
    keys: Sequence[str] | None = None,
    weight: npt.NDArray[np.float64] | None = None,
) -> tuple[Evaluation, tuple[Finding, ...]]:
    """Save the fitted estimator with its history, its scores on unseen rows and the report; end the run.

    Parameters
    ----------
    take : callable
        Returns X and y of some of the ``manifest.rows`` rows that the estimator was fitted to, by their numbers.
    keys : sequence of str, optional
        What these rows are called.
    weight : ndarray, shape (N,), optional
        How often each of them counts in the scores.

    Returns
    -------
    evaluation, findings
        On the held-out rows, or on all rows by cross-fitted networks that have not seen them; on the training rows if
        none were held out.
    """
    folder, held, fold = Path(folder), estimator.held_out_, estimator.fold_
    count = manifest.rows - (len(held) if fold is None else 0)
    trained = np.arange(0, count, max(1, count // _COMPARED))  # among those that were not held out
    if fold is None:
        trained += np.searchsorted(held - np.arange(len(held)), trained, "right")  # among all

    def judged(rows: Ints, **named: Any) -> Evaluation:
        counts = None if weight is None else weight[rows]
        return scored(estimator, *take(rows), targets=manifest.targets, sample_weight=counts, **named)

    training = judged(trained, name="training rows")
    main, looked, rest = training, trained, np.zeros(0, np.int64)
    if fold is not None:
        seen = np.flatnonzero((fold >= 0).all(0))
        seen = seen[:: max(1, len(seen) // (5 * _COMPARED))]
        main = judged(seen, name="out-of-fold rows", fold=fold[:, seen])
        looked, rest = seen, np.arange(manifest.rows)
    elif len(held):
        looked, rest = held, np.setdiff1d(np.arange(manifest.rows), held)
        main = judged(held, name="held-out rows")
    estimator.save(folder)
    notes = (*manifest.notes, *map(_resumed, estimator.fit_diagnostics_.resumed))
    io.write_text(folder / ASKED, replace(manifest, model=io.digest(folder), notes=notes).to_json())
    write_history(folder, estimator.history_)
    io.remove_file(folder / _RELEVANCE)
    if estimator.relevance_:
        io.write_text(folder / _RELEVANCE, _csv(estimator.relevance_))
    for place in _evaluated(folder):  # also on files: they are of the model that was there before
        io.remove(place)
    for evaluation in (main, training):
        keep_evaluation(folder, evaluation)
    io.remove_file(folder / _ANALYSIS)
    if isinstance(estimator, PredictiveEstimator):
        found = analyse(estimator, take, looked, rest, main, keys=keys, seed=manifest.seed)
        found.save(folder / _ANALYSIS)
    findings = _examined(folder, estimator, [main] if main is not training else [], training, manifest.rows)
    io.write_text(folder / _REPORT, page(folder))
    if not estimator.resumable_:
        io.remove(folder / _CHECKPOINT, inside=True)
    io.remove_file(folder / UNFINISHED)
    log(folder, "finished")
    return main, findings


def _resumed(versions: Mapping[str, str]) -> str:
    """Say under which versions a part of a run was done."""
    return f"a part of the fit was done under {', '.join(f'{name} {versions[name]}' for name in sorted(versions))}"


def _examined(
    folder: Path_, estimator: Estimator, others: Sequence[Evaluation], training: Evaluation | None, rows: int | None
) -> tuple[Finding, ...]:
    found = analysis(folder)
    lead = found.peers.behind["linear"] if found and found.peers else None
    return diagnose(estimator, others, training=training, rows=rows, linear=lead)


def shown_by(folder: Path_, estimator: Estimator, rows: int, found: Evaluation) -> tuple[Finding, ...]:
    """Look a finished run over in the light of new rows; return what was not found without them."""
    places = {name: Path(folder) / _EVALUATIONS / place for name, place in OWN.items()}
    own = {name: Evaluation.load(place) for name, place in places.items() if io.holds(place)}
    training = own.pop("training rows", None)
    before = _examined(folder, estimator, [*own.values()], training, rows)
    after = _examined(folder, estimator, [*own.values(), found], training, rows)
    return tuple(finding for finding in after if finding not in before)


def analysis(folder: Path_) -> Analysis | None:
    """Return what :func:`finish` found out about a run beside its scores, if it did.

    Raises
    ------
    FileError
        If the file is damaged.
    """
    path = Path(folder) / _ANALYSIS
    return Analysis.load(path) if path.exists() else None


def _csv(columns: Mapping[str, Mapping[str, float]]) -> str:
    """Return a row for each column, with a head."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["column", *next(iter(columns.values()))])
    writer.writerows([name, *told.values()] for name, told in columns.items())
    return text.getvalue()


def scored(estimator: Estimator, X: Any, y: Any, **named: Any) -> Evaluation:
    """Score an estimator of any task; a density has no y."""
    if isinstance(estimator, Density):
        return evaluate_density(estimator, X, **named)
    return evaluate(cast(PredictiveEstimator, estimator), X, y, **named)


def leave(folder: Path_, event: str, **values: Any) -> None:
    """Note that a run was left before its end; without a checkpoint there is nothing to go on with."""
    if ranks().rank:
        return
    if not io.holds(Path(folder) / _CHECKPOINT, inside=True):
        io.remove_file(Path(folder) / UNFINISHED)
    log(folder, event, **values)


def log(folder: Path_, event: str, **values: Any) -> None:
    """Add a line to ``log.jsonl``, the one file of a run that tells times; of several ranks the first one does."""
    if ranks().rank:
        return
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    io.append_text(Path(folder) / "log.jsonl", json.dumps({"time": now, "event": event, **values}) + "\n")


# ------------------------------------------------------------------------------------------------- looking back


def load(folder: Path_) -> tuple[Estimator, RunManifest | None]:
    """Load the fitted estimator of a run, or one that was saved from Python.

    Raises
    ------
    FileError
        If there is none, or none yet; the message says how to go on.
    """
    complete(folder)
    return registry.load(folder), read_manifest(folder)


def keep_evaluation(folder: Path_, evaluation: Evaluation) -> None:
    """Put an evaluation into a run; one of the same name is replaced."""
    evaluation.save(io.real(io.real(Path(folder) / _EVALUATIONS) / _plain(evaluation.name)))


def evaluations(folder: Path_) -> list[Evaluation]:
    """Return the evaluations of a run: those on files by name, then the held-out rows, then the training rows."""
    found = [Evaluation.load(place) for place in _evaluated(folder)]
    late = list(OWN)
    return sorted(found, key=lambda e: (late.index(e.name) if e.name in late else -1, e.name))


def _evaluated(folder: Path_) -> list[Path]:
    home = io.real(Path(folder) / _EVALUATIONS)
    return [place for place in sorted(home.iterdir()) if io.holds(place)] if home.is_dir() else []


def page(folder: Path_) -> str:
    """Return the report of a run as HTML."""
    from fathomless.app.page.report import Page, render  # and with it matplotlib, which nothing else needs

    fitted, manifest = registry.load(finished(folder)), read_manifest(folder)
    scored = evaluations(folder)
    training = next((e for e in scored if e.name == "training rows"), None)
    others = [e for e in scored if e is not training]
    data: dict[str, Any] = {"target names": list(manifest.targets) if manifest else ["y"]}
    if manifest is not None:
        data |= {"file": manifest.source, "bytes": manifest.bytes, "sha256": manifest.sha256, "rows": manifest.rows}
        data |= {"columns": len(manifest.columns), "notes": list(manifest.notes)}
        data |= {"weight": manifest.weight} if manifest.weight is not None else {}
    return render(
        Page(
            title=", ".join(data["target names"]),
            command=shlex.join(manifest.command) if manifest else None,
            estimator=fitted,
            evaluations=scored,
            findings=_examined(folder, fitted, others, training, manifest.rows if manifest else None),
            analysis=analysis(folder),
            data=data,
            seed=fitted.seed_,
            versions=_surroundings(fitted, dict(manifest.versions) if manifest else io.header(folder)[1]),
            citation=[reference.text() for reference in registry.references(registry.family_of(fitted).name)],
        )
    )


def _surroundings(fitted: Estimator, versions: Mapping[str, str]) -> dict[str, str]:
    """Return the versions of packages, and the device of the fit if it was an accelerator."""
    return {**versions, **({} if fitted.device_ == "cpu" else {"device": fitted.device_})}


def _plain(name: str) -> str:
    """Return a name that file systems take, whatever they think of case, and another one for every name."""
    if name in OWN:
        return OWN[name]
    plain = re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip(".-")
    if plain == name and 0 < len(name) <= 60 and name not in OWN.values() and not _MARKED.search(name):
        return name
    return f"{plain[:60] or 'file'}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
