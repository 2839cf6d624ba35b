"""Commands of a fitted run: ``predict``, ``evaluate``, ``sample``, ``impute``, ``report`` and ``export``."""

import argparse
import contextlib
import gc
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fathomless.app.commands.arguments import form
from fathomless.app.commands.printing import findings_of, note, scores_of, show, show_findings, show_json, table_of
from fathomless.system.errors import DataError

if TYPE_CHECKING:
    from fathomless.app.manifests import RunManifest

__all__ = [
    "KnownRows",
    "evaluate",
    "export",
    "impute",
    "is_training_file",
    "predict",
    "read_rows",
    "report",
    "sample",
    "set_threads",
    "table_form",
]

_WAIT = 10.0  # seconds to wait for another writer of a run


def set_threads(threads: int | None) -> None:
    """Set the number of threads, at most that of the cores; a narrow network is slower on many threads."""
    from fathomless.system import torch_state

    if threads is not None:
        torch_state.set_threads(min(threads, os.cpu_count() or 1))


def predict(given: argparse.Namespace) -> int:
    """Predict the rows of a table, in batches."""
    with _pause_garbage_collection():
        from fathomless.app import predicting
        from fathomless.tables.writers import writer

    run = predicting.load_run(given.folder, given.unseen, given.missing)
    manifest = run.manifest
    set_threads(given.threads or (manifest.threads if manifest else None))
    predicting.check_intervals(run, {"--interval": given.interval, "--guarantee": given.guarantee, "--by": given.by})
    if bool(given.by) != (given.guarantee == "group"):
        raise DataError("--guarantee group and --by COLUMN require each other; give both, or neither")
    notes = list[str]()
    done = 0
    with writer(given.out) as write:
        for table in predicting.predict_table(
            run,
            given.data,
            table_form(form(given), manifest),
            levels=given.interval or [0.9],
            guarantee=given.guarantee,
            by=given.by,
            ood=given.ood,
            key=given.key,
            notes=notes,
        ):
            write(table)
            done += len(table)
    for text in notes:
        note(text)
    if given.out != "-":
        show(f"Wrote {done:,} rows to {given.out}")
    return 0


@contextlib.contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Disable garbage collection during the import of torch, which leaves no garbage; it takes a tenth of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def table_form(words: Mapping[str, Any], manifest: "RunManifest | None") -> dict[str, Any]:
    """Return the format and notation of a table: those of the fitted table, unless a decimal mark is given.

    `words` are options of :class:`fathomless.tables.csv.Dialect`.
    """
    from fathomless.tables.notations import is_numeric

    known = manifest.notation.items() if manifest else ()
    kept = {column: way for column, way in known if words.get("decimal", "auto") == "auto" or not is_numeric(way)}
    missing = dict.fromkeys([*(manifest.missing if manifest else ()), *words.get("missing", ())])
    return {**words, "missing": tuple(missing), "notation": kept}


def evaluate(given: argparse.Namespace) -> int:
    """Score a run on rows with known targets, print scores and findings, and save the scores."""
    from fathomless.app import assessing, runs
    from fathomless.app.diagnose import TRAINING_FILE
    from fathomless.system.locks import hold_folder

    known = read_rows(given, given.weight, given.censored)
    known.show_notes()
    estimator, manifest = known.estimator, known.manifest
    name = "standard input" if given.data == "-" else Path(given.data).name
    if name in runs.OWN:  # a file must not replace the evaluation of the run
        name = f"./{name}"
    trained = is_training_file(given.data, manifest)
    shown, name = name, f"{name}{TRAINING_FILE}" if trained else name
    options = {} if known.censored is None else {"censored": known.censored}
    named = {"name": name, "targets": manifest.targets, **options}
    evaluation = assessing.score_rows(estimator, known.X, known.y, sample_weight=known.weight, **named)
    findings = runs.find_new_findings(given.folder, estimator, manifest.rows, evaluation)
    with hold_folder(given.folder, wait=_WAIT):
        runs.keep_evaluation(given.folder, evaluation)
    if given.json:
        show_json(
            run=str(given.folder),
            data=shown,
            training_file=trained,
            rows=evaluation.rows,
            scores=scores_of(evaluation),
            constant=scores_of(evaluation, "baseline"),
            coverage_by_group=[asdict(found) for found in evaluation.conditional],
            ood_share=evaluation.ood_share,
            findings=findings_of(findings),
        )
    else:
        show(table_of(evaluation))
        show_findings(findings)
        note(f"saved in {given.folder}; fathomless report {shlex.quote(given.folder)} adds it to the page")
    return 0


def is_training_file(data: str, manifest: "RunManifest") -> bool:
    """Return True if a file is the one of the fit of a run, by its size and its digest."""
    from fathomless.tables.readers import hash_files

    path = Path(data)
    same_size = data != "-" and path.is_file() and path.stat().st_size == manifest.bytes
    return same_size and hash_files([path])[0] == manifest.sha256


@dataclass(frozen=True, eq=False)
class KnownRows:
    """Rows of a table for a run, from :func:`read_rows`.

    Attributes
    ----------
    estimator, manifest : Estimator, RunManifest
        The run.
    X : table or array
        Features.
    y : ndarray, optional
        Targets; None for a density, and if they were not asked for.
    weight, censored : ndarray, shape (N,), optional
        Sample weights, and kinds of censored rows.
    columns : tuple of str or None
        Columns of the weights and of the kinds.
    notes : tuple of str
        Notes on rows that were left out.
    filled : tuple of str
        Notes on missing values and categories that the training table did not have.
    """

    estimator: Any
    manifest: "RunManifest"
    X: Any
    y: Any
    weight: Any
    censored: Any
    columns: tuple[str | None, str | None]
    notes: tuple[str, ...]
    filled: tuple[str, ...]

    def show_notes(self) -> None:
        """Print the notes."""
        for text in (*self.notes, *self.filled):
            note(text)


def read_rows(
    given: argparse.Namespace,
    weight: str | None = None,
    censored: str | None = None,
    *,
    labelled: bool = True,
    run: "tuple[Any, RunManifest | None] | None" = None,
) -> KnownRows:
    """Read the rows of the table ``given.data`` for the run ``given.folder``, or for a `run` that is loaded already.

    The columns of weights and kinds are those of the fit, if the table has them, unless others are named. Without them,
    weights and kinds are None. If `labelled`, rows without a target are left out. Otherwise the table may lack the
    targets, and all rows are read.

    Raises
    ------
    DataError, FileError
        For runs and tables that do not fit.
    """
    from fathomless.app import runs
    from fathomless.app.commands import columns
    from fathomless.data.targets import ClassLabels
    from fathomless.estimators.tasks import Density
    from fathomless.tables import files as tables
    from fathomless.tables.anomalies import UsedRows, find_observations

    estimator, manifest = run or runs.load(given.folder)
    set_threads(given.threads or (manifest.threads if manifest else None))
    if manifest is None:
        raise DataError(f"{given.folder} was saved from Python, without the name of the target; evaluate it in Python")
    labels = estimator.target_.labels if isinstance(estimator.target_, ClassLabels) else None
    density = isinstance(estimator, Density)
    estimator.schema_ = columns.treat_new_values(estimator.schema_, given.unseen, given.missing, density=density)
    targets = () if density or not labelled else manifest.targets
    kinds = {**columns.kinds(estimator.schema_), **columns.target_kinds(targets, labels)}
    kinds |= {} if weight is None else {weight: "numeric"}
    kinds |= {} if censored is None else {censored: "category"}
    observation_notes = list[str]()

    def used(table: Any) -> UsedRows:
        rows = find_observations(table, targets, None, [name for name in table.column_names if name not in kinds])
        observation_notes.extend(rows.notes)
        return rows

    frame = columns.concatenate(tables.batches(given.data, kinds, used=used, **table_form(form(given), manifest)))
    notes = list[str]()
    if targets:
        frame, notes, _ = columns.drop_missing_targets(frame, targets)
    weights, kind = (
        name if name in frame.column_names else None
        for name in (weight or manifest.weight, censored or manifest.censored)
    )
    X = columns.select_features(frame, estimator.schema_)
    new_values = columns.NewValues(estimator.schema_)
    new_values.add(X)
    task = "regression" if labels is None else "classification"
    return KnownRows(
        estimator,
        manifest,
        X,
        columns.target_array(frame.select(targets), task) if targets else None,
        None if weights is None else columns.read_weights(frame[weights], weights),
        None if kind is None else columns.read_censored(frame[kind], kind),
        (weights, kind),
        (*observation_notes, *notes),
        tuple(new_values.describe(numbers=False)),  # without numbers, since some rows of the file may be left out
    )


def sample(given: argparse.Namespace) -> int:
    """Sample rows from a density."""
    from fathomless.app import runs
    from fathomless.app.commands import columns
    from fathomless.estimators.tasks import Density
    from fathomless.tables.writers import writer

    estimator, _ = runs.load(given.folder)
    if not isinstance(estimator, Density):
        raise DataError(f"{given.folder} predicts a target; rows are sampled from a density (fit --task density)")
    sampled = estimator.sample(given.rows, random_state=given.seed)
    names = [column.name for column in estimator.schema_.columns]
    with writer(given.out) as write:
        write(columns.make_table(dict(zip(names, sampled.T, strict=True))))
    if given.out != "-":
        show(f"Wrote {given.rows:,} rows to {given.out}")
    return 0


def impute(given: argparse.Namespace) -> int:
    """Fill in missing cells of a table by a density, in batches."""
    from fathomless.app import predicting
    from fathomless.app.commands.flags import translate_message
    from fathomless.tables.writers import writer

    run = predicting.load_run(given.folder, None, None)
    set_threads(run.manifest.threads if run.manifest else None)
    known = table_form(form(given), run.manifest)
    notes = list[str]()
    done = 0
    with writer(given.out) as write:
        for table in predicting.impute_table(run, given.data, known, draws=given.draws, seed=given.seed, notes=notes):
            write(table)
            done += len(table)
    for text in notes:
        note(translate_message(text))
    if given.out != "-":
        show(f"Wrote {done:,} rows to {given.out}")
    return 0


def report(given: argparse.Namespace) -> int:
    """Write the page of a run."""
    from fathomless.app import assessing, manifests, runs

    manifests.require_complete(given.folder)
    page = runs.page(given.folder)
    out = Path(given.out) if given.out else Path(given.folder) / "report.html"
    assessing.write_page(out, page)
    show(out)
    if given.open:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
    return 0


def export(given: argparse.Namespace) -> int:
    """Export a run for ONNX Runtime or PyTorch."""
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
        evaluation.name: {name: score.value for name, score in evaluation.scores.items()}
        for evaluation in runs.evaluations(given.folder)
    }
    metadata: dict[str, Any] = {}
    if manifest:
        metadata = {"targets": list(manifest.targets), "notation": dict(manifest.notation), "scores": scores}
    if given.format == "onnx":
        note(f"writing {out}; the conversion to ONNX takes up to a minute")
    exported = estimator.export(out, given.level or [0.05, 0.5, 0.95], **metadata)
    show(exported.path)
    note(f"{exported.bytes:,} bytes; maximum difference from the run on artificial rows: {exported.difference:.1e}")
    return 0
