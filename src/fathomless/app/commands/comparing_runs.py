"""Command ``compare`` with ``--on``: fitted runs on the same rows, ranked."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fathomless.app.commands.fitted import KnownRows, is_training_file, read_rows
from fathomless.app.commands.printing import note, show, show_json
from fathomless.app.commands.ranks import lines_of, plain, ranks
from fathomless.system.errors import DataError

if TYPE_CHECKING:
    from fathomless.app.comparison import Comparison
    from fathomless.app.manifests import RunManifest

__all__ = ["compare_runs"]


def compare_runs(given: argparse.Namespace) -> int:
    """Score runs on the same rows with known targets, and print them by log-likelihood; no file is written."""
    from fathomless.app.compare_fitted import compare_fitted
    from fathomless.app.diagnose import TRAINING_FILE

    known = _read_runs(given)
    first = next(iter(known.values()))
    comparison = compare_fitted(
        {name: rows.estimator for name, rows in known.items()},
        {name: rows.X for name, rows in known.items()},
        first.y,
        targets=first.manifest.targets,
        sample_weight=first.weight,
        censored=first.censored,
    )
    trained = [name for name, rows in known.items() if is_training_file(given.on, rows.manifest)]
    data = "standard input" if given.on == "-" else Path(given.on).name
    if given.json:
        show_json(**plain(_record(comparison, first.manifest.targets, data, trained)))
        return 0
    targets = ", ".join(first.manifest.targets)
    of = f"{data}{TRAINING_FILE}" if trained else data
    show(f"{targets}: {comparison.task}, {comparison.rows:,} rows of {of}\n\n{lines_of(ranks(comparison))}\n")
    show(_describe_ranks(comparison))
    for text in comparison.notes:
        note(text)
    if trained:
        note(
            f"{data} is the training file of {', '.join(trained)}: the scores are too good for new rows, and the ranks "
            "can be wrong. Compare on rows to which no run was fitted"
        )
    return 0


def _read_runs(given: argparse.Namespace) -> dict[str, KnownRows]:
    """Read the same rows for each run; print the notes on them."""
    from fathomless.app import runs
    from fathomless.tables.files import keep_source

    places = [Path(name).resolve() for name in given.data]
    if len(given.data) < 2:
        raise DataError(
            f"one run was given ({given.data[0]}); give two or more, or score one: fathomless evaluate "
            f"{given.data[0]} {given.on}"
        )
    if len(set(places)) < len(places):
        twice = next(name for name, place in zip(given.data, places, strict=True) if places.count(place) > 1)
        raise DataError(f"the run {twice} was given twice; give different runs")
    loaded = {name: runs.load(name) for name in given.data}
    _check_targets(loaded)
    source = keep_source(given.on)
    known = dict[str, KnownRows]()
    for name, run in loaded.items():
        one = argparse.Namespace(**{**vars(given), "folder": name, "data": source})
        try:
            known[name] = read_rows(one, given.weight, given.censored, run=run)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
    for text in dict.fromkeys(text for rows in known.values() for text in rows.notes):
        note(text)
    for name, rows in known.items():
        for text in rows.filled:
            note(f"{name}: {text}")
    _check_rows(known, given.on)
    return known


def _check_targets(loaded: "Mapping[str, tuple[Any, RunManifest | None]]") -> None:
    """Check that runs have the same task and targets."""
    from fathomless.data.targets import ClassLabels
    from fathomless.estimators.tasks import Density

    found = dict[str, tuple[str, tuple[str, ...]]]()
    for name, (estimator, manifest) in loaded.items():
        if manifest is None:
            raise DataError(
                f"{name} was saved from Python, without the name of the target; compare it in Python, with "
                "fathomless.app.compare_fitted"
            )
        if isinstance(estimator, Density):
            raise DataError(
                f"{name} is a density, which predicts no target; runs that predict a target are compared. "
                "fathomless evaluate scores a density"
            )
        task = "classification" if isinstance(vars(estimator)["target_"], ClassLabels) else "regression"
        found[name] = (task, manifest.targets)
    (first, same), *others = found.items()
    for name, other in others:
        if other != same:
            shown = (
                f"{of} is a {task} of {', '.join(targets)}" for of, (task, targets) in ((first, same), (name, other))
            )
            raise DataError(
                f"{' and '.join(shown)}; give runs of the same task and the same targets, in the same order"
            )


def _check_rows(known: Mapping[str, KnownRows], data: str) -> None:
    """Check that runs read the same rows, targets, weights and kinds."""
    import numpy as np

    (first, rows), *others = known.items()
    for name, other in others:
        if len(other.y) != len(rows.y):
            raise DataError(
                f"{first} uses {len(rows.y):,} rows of {data} and {name} uses {len(other.y):,}: some rows, such as "
                "totals, are left out for one of them. Remove these rows from the table"
            )
        differ = np.array([a != b for a, b in zip(rows.y.tolist(), other.y.tolist(), strict=True)])
        if differ.any() or rows.y.dtype.kind != other.y.dtype.kind:
            row = int(differ.argmax())
            pair = (
                f"{of!r} for {run}"
                for run, of in ((first, rows.y[row : row + 1].tolist()[0]), (name, other.y[row : row + 1].tolist()[0]))
            )
            raise DataError(
                f"the target of a row of {data} is {' and '.join(pair)}: the runs were fitted to tables "
                "with different notations of the target. Fit them to tables with the same notation"
            )
        for flag, of, of_other in zip(("--weight", "--censored"), rows.columns, other.columns, strict=True):
            if of != of_other:
                pair = (f"{column or 'none'} for {run}" for run, column in ((first, of), (name, of_other)))
                raise DataError(
                    f"the column of {flag} in {data} is {' and '.join(pair)}; give one for all runs: {flag} "
                    f"{of or of_other}, or a table without this column"
                )


def _describe_ranks(comparison: "Comparison") -> str:
    """Return a sentence on the best run and the runs near it."""
    best, near = comparison.methods[0].name, comparison.near_best
    if near:
        return f"Best: {best}. Within two standard errors of it: {', '.join(near)}"
    return f"Best: {best}, by more than two standard errors"


def _record(comparison: "Comparison", targets: tuple[str, ...], data: str, trained: list[str]) -> dict[str, Any]:
    """Return a comparison for JSON."""
    return {
        "targets": list(targets),
        "data": data,
        "task": comparison.task,
        "rows": comparison.rows,
        "runs": [
            {
                "run": method.name,
                "estimator": method.title,
                "scores": {name: asdict(score) for name, score in method.scores.items()},
                "behind": asdict(method.behind),
                "near_best": method is comparison.methods[0] or method.name in comparison.near_best,
                "training_file": method.name in trained,
                "predict_seconds": method.predict_seconds,
            }
            for method in comparison.methods
        ],
        "notes": list(comparison.notes),
    }
