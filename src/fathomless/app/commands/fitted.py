"""Commands of a fitted run: ``predict``, ``evaluate``, ``sample``, ``report`` and ``export``."""

import argparse
import contextlib
import gc
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fathomless.app.commands.arguments import form
from fathomless.app.commands.printing import findings_of, note, scores_of, show, show_findings, show_json, table_of
from fathomless.system.errors import DataError, FileError

if TYPE_CHECKING:
    from fathomless.app.manifests import RunManifest
    from fathomless.estimators.tasks import Density

__all__ = ["evaluate", "export", "known_rows", "predict", "report", "sample", "set_threads"]

_WAIT = 10.0  # seconds for which another writer of a run is waited for


def set_threads(threads: int | None) -> None:
    """Use as many threads as the training did, if there are so many: a narrow network is slower on many."""
    import torch

    if threads is not None:
        torch.set_num_threads(min(threads, os.cpu_count() or 1))


def predict(given: argparse.Namespace) -> int:
    """Predict the rows of a table, piece by piece."""
    from dataclasses import replace

    with _uncollected():
        from fathomless.app import manifests
        from fathomless.app.commands import columns
        from fathomless.data.targets import ClassLabels
        from fathomless.estimators.predictor import Predictor
        from fathomless.tables import files as tables
        from fathomless.tables.writers import writer

    found, manifest = manifests.predictor(given.folder)  # and no scikit-learn, which takes as long as all the rest
    set_threads(given.threads or (manifest.threads if manifest else None))
    predictor: Predictor | None = found if isinstance(found, Predictor) else None
    if given.interval and predictor is None:
        raise DataError("--interval was given, and a density has no target; leave it out")
    if given.interval and predictor is not None and isinstance(predictor.target, ClassLabels):
        raise DataError("--interval was given, which is for numbers; the target is a class")
    schema = found.schema if isinstance(found, Predictor) else found.schema_
    schema = replace(schema, unseen=given.unseen) if given.unseen else schema
    if predictor is not None:
        predictor = replace(predictor, schema=schema)
    key = given.key or (manifest.key if manifest else None)
    targets, levels, unused, done = manifest.targets if manifest else (), given.interval or [0.9], None, 0
    with writer(given.out) as write:
        for piece in tables.batches(given.data, columns.kinds(schema), **_notation(given, manifest)):
            if unused is None:
                used = {column.name for column in schema.columns} | {key, manifest and manifest.groups}
                unused = [name for name in piece.column_names if schema.named and name not in used]
                if given.key:
                    columns.present(piece.column_names, [given.key])
            if not len(piece):
                raise DataError(f"{given.data} has column names and no rows; give rows to predict")
            names: dict[str, Any] = {key: piece[key]} if key is not None and key in piece.column_names else {}
            X = piece if schema.named else piece.drop_columns(list(names))
            X = columns.features(X, schema)
            if predictor is not None:
                shown = predictor.predict_dist(X).columns(targets, levels)
            else:
                log_density, error = cast("Density", found).score_samples(X, return_error=True)
                shown = {"log_density": log_density, "monte_carlo_error": error}
            if key in shown:
                raise DataError(f"the key column {key!r} is called like one of predictions; give it another name")
            write(columns.tabled({**names, **shown}))
            done += len(piece)
    if unused:
        note(f"columns that were not used: {', '.join(unused)}")
    if given.out != "-":
        show(f"{done:,} rows are in {given.out}")
    return 0


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Look for no garbage while torch is imported, which leaves none: that takes a tenth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _notation(given: argparse.Namespace, manifest: "RunManifest | None") -> dict[str, Any]:
    """Return how a table is to be read: as the one that was fitted, unless a decimal mark is given."""
    from fathomless.tables.notations import is_numeric

    known = manifest.notation.items() if manifest else ()
    kept = {column: way for column, way in known if given.decimal == "auto" or not is_numeric(way)}
    return {**form(given), "notation": kept}


def evaluate(given: argparse.Namespace) -> int:
    """Score a run on rows with known answers, say what they show, and keep the scores."""
    from fathomless.app import runs
    from fathomless.system.locks import hold_folder

    estimator, manifest, X, y, weight = known_rows(given, given.weight)
    name = "standard input" if given.data == "-" else Path(given.data).name
    if name in runs.OWN:  # and not in their place
        name = f"./{name}"
    found = runs.scored(estimator, X, y, name=name, targets=manifest.targets, sample_weight=weight)
    findings = runs.shown_by(given.folder, estimator, manifest.rows, found)
    with hold_folder(given.folder, wait=_WAIT):
        runs.keep_evaluation(given.folder, found)
    if given.json:
        show_json(
            run=str(given.folder),
            data=name,
            rows=found.rows,
            scores=scores_of(found),
            constant=scores_of(found, "baseline"),
            findings=findings_of(findings),
        )
    else:
        show(table_of(found))
        show_findings(findings)
        note(f"kept in {given.folder}; fathomless report {shlex.quote(given.folder)} shows it")
    return 0


def known_rows(given: argparse.Namespace, weight: str | None = None) -> "tuple[Any, RunManifest, Any, Any, Any]":
    """Return the estimator of a run, what was asked of it, rows with known answers, and how often each counts, or None.

    The column of weights is that of the fit, where the table has it, unless another one is named.

    Raises
    ------
    DataError, FileError
        For runs and tables that do not fit.
    """
    from dataclasses import replace

    from fathomless.app import runs
    from fathomless.app.commands import columns
    from fathomless.data.targets import ClassLabels
    from fathomless.estimators.tasks import Density
    from fathomless.tables import files as tables
    from fathomless.tables.oddities import Used, observations

    estimator, manifest = runs.load(given.folder)
    set_threads(given.threads or (manifest.threads if manifest else None))
    if manifest is None:
        raise DataError(f"{given.folder} was saved from Python, which keeps no name of its target; evaluate it there")
    labels = estimator.target_.labels if isinstance(estimator.target_, ClassLabels) else None
    if given.unseen:
        estimator.schema_ = replace(estimator.schema_, unseen=given.unseen)
    targets = () if isinstance(estimator, Density) else manifest.targets
    kinds = {**columns.kinds(estimator.schema_), **columns.target_kinds(targets, labels)}
    if weight is not None:
        kinds |= {weight: "numeric"}
    left = list[str]()

    def used(table: Any) -> Used:
        found = observations(table, targets, None, [name for name in table.column_names if name not in kinds])
        left.extend(found.notes)
        return found

    pieces = tables.batches(given.data, kinds, used=used, **_notation(given, manifest))
    frame, notes = columns.joined(pieces), list[str]()
    if targets:
        frame, notes, _ = columns.answered(frame, targets)
    for text in (*left, *notes):
        note(text)
    name = weight or manifest.weight
    counts = columns.weights(frame[name], name) if name is not None and name in frame.column_names else None
    X = columns.features(frame, estimator.schema_)
    task = "regression" if labels is None else "classification"
    return estimator, manifest, X, columns.answers(frame.select(targets), task) if targets else None, counts


def sample(given: argparse.Namespace) -> int:
    """Draw rows from a density."""
    from fathomless.app import runs
    from fathomless.app.commands import columns
    from fathomless.estimators.tasks import Density
    from fathomless.tables.writers import writer

    estimator, _ = runs.load(given.folder)
    if not isinstance(estimator, Density):
        raise DataError(f"{given.folder} predicts a target; rows are drawn from a density (fit --task density)")
    drawn = estimator.sample(given.rows, random_state=given.seed)
    names = [column.name for column in estimator.schema_.columns]
    with writer(given.out) as write:
        write(columns.tabled(dict(zip(names, drawn.T, strict=True))))
    if given.out != "-":
        show(f"{given.rows:,} rows are in {given.out}")
    return 0


def report(given: argparse.Namespace) -> int:
    """Write the page of a run."""
    from fathomless.app import manifests, runs
    from fathomless.system import io

    manifests.complete(given.folder)
    page = runs.page(given.folder)
    out = Path(given.out) if given.out else Path(given.folder) / "report.html"
    if out.is_dir():
        raise FileError(f"{out} is a folder; give the name of a file, such as report.html")
    io.write_text(out, page)
    show(out)
    if given.open:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
    return 0


def export(given: argparse.Namespace) -> int:
    """Write a run as one plain module, for other programs."""
    from fathomless.app import runs
    from fathomless.estimators.tasks import Supervised

    estimator, manifest = runs.load(given.folder)
    if not isinstance(estimator, Supervised):
        raise DataError(f"{given.folder} is a density; runs that predict a target can be exported")
    set_threads(manifest.threads if manifest else None)
    suffix = {"onnx": ".onnx", "torch": ".pt2"}[given.format]
    out = Path(given.out) if given.out else Path(given.folder) / f"model{suffix}"
    if out.suffix != suffix:
        raise DataError(f"--out {out} was given; a name that ends with {suffix} is allowed for --format {given.format}")
    scores = {
        one.name: {name: score.value for name, score in one.scores.items()} for one in runs.evaluations(given.folder)
    }
    about = (
        {"targets": list(manifest.targets), "notation": dict(manifest.notation), "scores": scores} if manifest else {}
    )
    if given.format == "onnx":
        note(f"writing {out}; the conversion to ONNX takes up to a minute")
    found = estimator.export(out, given.level or [0.05, 0.5, 0.95], **about)
    show(found.path)
    note(f"{found.bytes:,} bytes; differs from the run by {found.difference:.1e} at most on rows that were made up")
    return 0
