"""Assessment of a fit: scores of its rows and of new rows, analysis, findings and page.

``fathomless fit`` and :func:`~fathomless.app.reporting.report` use the same functions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fathomless.app.diagnose import diagnose
from fathomless.app.page.analysis import Analysis, analyse
from fathomless.estimators.base import Estimator, PredictiveEstimator
from fathomless.estimators.densities import evaluate_density
from fathomless.estimators.evaluation import Evaluation, evaluate
from fathomless.estimators.findings import Finding
from fathomless.estimators.tasks import Density
from fathomless.families import registry
from fathomless.system import io
from fathomless.system.errors import DataError, FileError

__all__ = [
    "FitRows",
    "FitScores",
    "analyse_fit",
    "diagnose_fit",
    "note_versions",
    "render_page",
    "score_fit",
    "score_rows",
    "write_page",
]

_COMPARED = 10_000  # maximum number of training rows that are scored

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FitRows:
    """Rows that were given to a fit.

    Attributes
    ----------
    count : int
        Number of rows.
    take : callable
        Function that returns X and y of rows, given by their numbers in ascending order; the y of a density is None.
    targets : sequence of str
        Names of the target columns.
    names : sequence of str, optional
        Names of the rows.
    weight : ndarray, shape (N,), optional
        Sample weights of the rows in the scores.
    censored : ndarray, shape (N,), or "interval", optional
        Kinds of the rows, if targets are censored. There is then no analysis, whose simple models cannot be fitted to
        censored targets.
    """

    count: int
    take: Callable[[Ints], tuple[Any, Any]]
    targets: Sequence[str]
    names: Sequence[str] | None = None
    weight: npt.NDArray[np.float64] | None = None
    censored: npt.NDArray[Any] | str | None = None

    @property
    def weighted(self) -> Ints:
        """Numbers of the rows with a positive weight."""
        return np.arange(self.count) if self.weight is None else np.flatnonzero(self.weight)

    def score(self, estimator: Estimator, rows: Ints, **options: Any) -> Evaluation:
        """Evaluate an estimator on some of the rows; `options` are those of :func:`score_rows`."""
        if self.censored is not None:
            options["censored"] = self.censored if isinstance(self.censored, str) else self.censored[rows]
        counts = None if self.weight is None else self.weight[rows]
        return score_rows(estimator, *self.take(rows), targets=self.targets, sample_weight=counts, **options)


@dataclass(frozen=True)
class FitScores:
    """Scores of a fit on its own rows.

    Attributes
    ----------
    main : Evaluation
        Evaluation on the held-out rows, or on all rows out of fold, or on the training rows if none were held out.
    training : Evaluation
        Evaluation on the training rows.
    rows : ndarray of int64
        Rows of `main`.
    others : ndarray of int64
        Rows to fit simple models to: all rows with a positive weight if networks are cross-fitted.
    """

    main: Evaluation
    training: Evaluation
    rows: Ints
    others: Ints

    @property
    def unseen(self) -> list[Evaluation]:
        """Evaluations on rows outside the training."""
        return [] if self.main is self.training else [self.main]


def score_rows(estimator: Estimator, X: Any, y: Any, **named: Any) -> Evaluation:
    """Evaluate an estimator of any task; a density has no y."""
    if isinstance(estimator, Density):
        return evaluate_density(estimator, X, **named)
    return evaluate(cast(PredictiveEstimator, estimator), X, y, **named)


def score_fit(estimator: Estimator, table: FitRows) -> FitScores:
    """Score a fit on the rows that were given to it: out of fold or held out, and in training.

    Parameters
    ----------
    estimator : Estimator
        Fitted estimator.
    table : FitRows
        Rows of the fit, in the order of the fit.
    """
    held, fold = estimator.held_out_, estimator.fold_
    # Training rows are scored only for comparison, so an evenly spaced sample is enough.
    count = table.count - (len(held) if fold is None else 0)
    trained = np.arange(0, count, max(1, count // _COMPARED))  # numbers among the rows that were not held out
    if fold is None:
        trained += np.searchsorted(held - np.arange(len(held)), trained, "right")  # numbers among all rows
    trained = np.intersect1d(trained, table.weighted)
    training = table.score(estimator, trained, name="training rows")
    if fold is not None:
        unseen = np.flatnonzero((fold >= 0).all(0))
        unseen = unseen[:: max(1, len(unseen) // (5 * _COMPARED))]
        main = table.score(estimator, unseen, name="out-of-fold rows", fold=fold[:, unseen])
        return FitScores(main, training, unseen, table.weighted)
    if len(held):
        main = table.score(estimator, held, name="held-out rows")
        return FitScores(main, training, held, np.setdiff1d(table.weighted, held))
    return FitScores(training, training, trained, np.zeros(0, np.int64))


def analyse_fit(estimator: Estimator, table: FitRows, scores: FitScores, seed: int) -> Analysis | None:
    """Analyse a fit on the rows of its main scores; None for densities without predictions and censored targets."""
    if not isinstance(estimator, PredictiveEstimator) or table.censored is not None:
        return None
    return analyse(
        estimator,
        table.take,
        scores.rows,
        scores.others,
        scores.main,
        keys=table.names,
        weight=table.weight,
        seed=seed,
    )


def diagnose_fit(
    estimator: Estimator,
    others: Sequence[Evaluation],
    training: Evaluation | None,
    rows: int | None,
    analysis: Analysis | None,
) -> tuple[Finding, ...]:
    """Return the findings of a fit, including those that depend on its analysis."""
    lead = analysis.peers.behind["linear"] if analysis and analysis.peers else None
    importance = analysis.importance if analysis else None
    return diagnose(estimator, others, training=training, rows=rows, linear=lead, importance=importance)


def note_versions(estimator: Estimator) -> list[str]:
    """Return notes on other versions of packages under which parts of a resumed fit were done."""
    listed = (", ".join(f"{name} {then[name]}" for name in sorted(then)) for then in estimator.fit_diagnostics_.resumed)
    return [f"a part of the fit was done under {versions}" for versions in listed]


def render_page(
    estimator: Estimator,
    evaluations: Sequence[Evaluation],
    findings: Sequence[Finding],
    analysis: Analysis | None,
    *,
    data: Mapping[str, Any],
    versions: Mapping[str, str],
    command: str | None = None,
) -> str:
    """Return the page of a fit as HTML.

    Parameters
    ----------
    estimator : Estimator
        Fitted estimator.
    evaluations, findings, analysis, data, versions, command
        As in :class:`~fathomless.app.page.report.Page`. The title is the names of the targets in `data`.

    Raises
    ------
    DataError
        If jinja2 or matplotlib is not installed.
    """
    try:
        from fathomless.app.page.report import Page, render  # imports matplotlib, which nothing else needs
    except ImportError as error:
        raise DataError(f"the page needs jinja2 and matplotlib ({error}); pip install 'fathomless[cli]'") from error
    device = {} if estimator.device_ == "cpu" else {"device": estimator.device_}  # only an accelerator is shown
    return render(
        Page(
            title=", ".join(data["target names"]),
            command=command,
            estimator=estimator,
            evaluations=evaluations,
            findings=findings,
            analysis=analysis,
            data=data,
            seed=estimator.seed_,
            versions={**versions, **device},
            citation=[reference.text() for reference in registry.references(registry.family_of(estimator).name)],
        )
    )


def write_page(path: str | PathLike[str], html: str) -> Path:
    """Write a page to a file.

    Raises
    ------
    FileError
        If the path is a folder, or the file cannot be written.
    """
    path = Path(path)
    if path.is_dir():
        raise FileError(f"{path} is a folder; give the name of a file, such as report.html")
    return io.write_text(path, html)
