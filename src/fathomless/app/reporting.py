"""Report of a fitted estimator: the page of ``fathomless fit``, for Python and notebooks."""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

import numpy as np

from fathomless.app.assessing import (
    FitRows,
    analyse_fit,
    diagnose_fit,
    note_versions,
    render_page,
    score_fit,
    score_rows,
    write_page,
)
from fathomless.app.page.analysis import Analysis, analyse
from fathomless.data.cells import as_series, get_column_names
from fathomless.data.censoring import read_bounds
from fathomless.data.frames import read_labels, read_target, take, to_readable
from fathomless.data.given_rows import digest_rows
from fathomless.data.targets import Indicators, TargetScale
from fathomless.estimators.base import Estimator, require_fitted
from fathomless.estimators.encoding import NumberTask
from fathomless.estimators.evaluation import Evaluation
from fathomless.estimators.findings import Finding
from fathomless.estimators.scores import row_weights
from fathomless.estimators.tasks import Density, Supervised
from fathomless.system import io
from fathomless.system.errors import DataError
from fathomless.system.masked import unmask

__all__ = ["Report", "report"]

_NEW = "new rows"  # name of their evaluation
_HEIGHT = "40rem"  # of the page in a notebook, which scrolls inside


@dataclass(frozen=True, eq=False)
class Report:
    """Page of a fitted estimator, from :func:`report`.

    A notebook shows the page below the cell. :meth:`save` writes it to a file.

    Attributes
    ----------
    html : str
        Complete HTML document, without scripts, fonts or network access.
    evaluations : tuple of Evaluation
        Scores of new rows, of out-of-fold or held-out rows, and of training rows, as far as they were given. The first
        one is that of the headline and the pictures.
    findings : tuple of Finding
        Warnings, problems first.
    analysis : Analysis or None
        Comparison with simple models, importance of columns and rows with large residuals; None for densities and
        censored targets.
    """

    html: str = field(repr=False)
    evaluations: tuple[Evaluation, ...] = field(repr=False)
    findings: tuple[Finding, ...]
    analysis: Analysis | None = field(repr=False)

    def save(self, path: str | PathLike[str]) -> Path:
        """Write the page to a file in UTF-8.

        Raises
        ------
        FileError
            If the path is a folder, or the file cannot be written.
        """
        return write_page(path, self.html)

    def _repr_html_(self) -> str:
        """Return a frame that contains the page, so that its style does not change that of the notebook."""
        # without a base, links to sections of the page would load the notebook into the frame
        page = self.html.replace("<head>", '<head>\n<base href="about:srcdoc">', 1)
        return (
            f'<iframe title="Report" sandbox srcdoc="{html.escape(page)}" '
            f'style="width: 100%; height: {_HEIGHT}; box-sizing: border-box; border: 1px solid #8888"></iframe>'
        )


def report(
    estimator: Estimator,
    X: Any = None,
    y: Any = None,
    *,
    new: tuple[Any, Any] | None = None,
    sample_weight: Any = None,
    censored: Any = None,
    targets: str | Sequence[str] | None = None,
) -> Report:
    """Return the report of a fitted estimator: the HTML page that ``fathomless fit`` writes.

    It contains warnings, scores beside those of simple models, importance of columns, rows with large residuals,
    calibration, uncertainty, structure and training.

    Parameters
    ----------
    estimator : Estimator
        Fitted classifier, regressor or density.
    X, y : array or data frame, shape (N, C), and array, series or frame, shape (N,) or (N, T), optional
        Rows that were given to ``fit``, in the same order. Cross-fitted networks are scored out of fold, and a single
        network on its held-out rows, as by the command line. The page has the folds of the fit, so groups are not
        needed. A density has no y.
    new : pair of X and y, optional
        Rows that were not given to ``fit``. Their scores come first and have the pictures. The comparison with simple
        models and the importance of columns remain those of X and y. Without X and y, the importance is that of the new
        rows, and there are no simple models, which need training rows. For a density, y is None.
    sample_weight : array, shape (N,), optional
        Sample weights of X, as in ``fit``.
    censored : array, shape (N,), or "interval", optional
        Kinds of the targets of X, as in ``fit`` of a regressor.
    targets : str or sequence of T str, optional
        Names of the targets on the page; by default those of a series or frame y, and otherwise y or y1, y2, ...

    Returns
    -------
    Report
        Page, with scores and findings as values.

    Raises
    ------
    NotFittedError
        If the estimator is not fitted.
    DataError
        If the object is no estimator of this library, no rows are given, tables do not match the fit, X and y are not
        the rows of the fit in their order, or jinja2 or matplotlib is not installed. For multilabel targets, there is
        no report.

    Examples
    --------
    >>> import fathomless
    >>> X = np.random.default_rng(0).normal(size=(80, 2))
    >>> model = fathomless.UnboundedDepthRegressor(depth_law=1, width=8, epochs=20, random_state=0).fit(X, X[:, 0])
    >>> page = fathomless.report(model, X, X[:, 0])
    >>> page.evaluations[0].name, page.html[:15]
    ('out-of-fold rows', '<!DOCTYPE html>')
    """
    _check(estimator, X, y, new, {"sample_weight": sample_weight, "censored": censored})
    names = _target_names(estimator, new[1] if new is not None and X is None else y, targets)
    unseen, training, analysis = list[Evaluation](), None, None
    if X is not None:
        table = _read_rows(estimator, X, y, names, sample_weight, censored)
        _check_same_rows(estimator, table)
        scores = score_fit(estimator, table)
        unseen, training = scores.unseen, scores.training
        analysis = analyse_fit(estimator, table, scores, estimator.seed_)
    if new is not None:
        added = _read_rows(estimator, *new, names)
        rows = np.arange(added.count)
        X_new, y_new = added.take(rows)
        first = score_rows(estimator, X_new, y_new, name=_NEW, targets=names)
        unseen = [first, *unseen]
        if training is None and isinstance(estimator, Supervised):
            analysis = analyse(estimator, added.take, rows, rows[:0], first, new=True, seed=estimator.seed_)
    evaluations = [*unseen, *([] if training is None else [training])]
    count = None if estimator._rows is None else estimator._rows.count
    findings = diagnose_fit(estimator, unseen, training, count, analysis)
    data: dict[str, Any] = {
        "target names": names,
        "columns": estimator.n_features_in_,
        "notes": note_versions(estimator),
    }
    data |= {} if count is None else {"rows": count}
    data |= {} if sample_weight is None else {"weight": str(_name_of(sample_weight) or "sample_weight")}
    page = render_page(estimator, evaluations, findings, analysis, data=data, versions=io.versions())
    return Report(page, tuple(evaluations), findings, analysis)


def _check(estimator: Any, X: Any, y: Any, new: Any, of_rows: dict[str, Any]) -> None:
    """Raise an error for an estimator without a report, and for rows that do not suit it."""
    if not isinstance(estimator, Estimator):
        raise DataError(
            f"report was given a {type(estimator).__name__}; give a fitted estimator of fathomless. Of a pipeline, "
            "give the last step, with X as the steps before it return it"
        )
    require_fitted(estimator)
    if isinstance(estimator.target_, Indicators):
        raise DataError("the fit is of multilabel targets, which have no report; fit one classifier for each column")
    if X is None and new is None:
        raise DataError("no rows were given; give those of the fit as X and y, or others as new=(X_new, y_new)")
    if new is not None and not (isinstance(new, tuple | list) and len(new) == 2):
        raise DataError(f"new is a {type(new).__name__}; give the pair new=(X_new, y_new)")
    for name, given in ({"y": y} | of_rows).items():
        if X is None and given is not None:
            raise DataError(f"{name} was given without X; give the rows of the fit as X and y")
    density = isinstance(estimator, Density)
    pairs = {"y": (X, y), "y_new": (None, None) if new is None else new}
    for name, (rows, target) in pairs.items():
        if rows is not None and (target is None) != density:
            problem = "is missing; give the targets of the rows" if target is None else "was given; a density has none"
            raise DataError(f"{name} {problem}")


def _check_same_rows(estimator: Estimator, table: FitRows) -> None:
    """Raise an error if the rows are not those of the fit, in the same order."""
    given = estimator._rows
    if given is None:
        return
    if given.count != table.count:
        raise DataError(
            f"X has {table.count} rows, and the fit was of {given.count}; give the rows of the fit, and others as "
            "new=(X_new, y_new)"
        )
    if not given.digest:
        return
    X, y = table.take(table.weighted)
    task = estimator._task()
    if table.censored is not None:
        task = replace(cast(NumberTask, task), censored=True)
    x = task.encode_rows(estimator.schema_, X)
    z = task.encode_target(estimator.target_, X if y is None else y)  # the columns of a density are its target
    weight = None if table.weight is None else table.weight[table.weighted]
    if digest_rows(estimator.schema_, x, z, weight) != given.digest:
        raise DataError(
            "X, y and sample_weight are not the rows and weights of the fit, or are in another order, so that rows "
            "cannot be assigned to the networks that were not fitted to them; give X, y and sample_weight as in fit, "
            "and other rows as new=(X_new, y_new)"
        )


def _read_rows(
    estimator: Estimator, X: Any, y: Any, names: Sequence[str], sample_weight: Any = None, censored: Any = None
) -> FitRows:
    """Return checked rows, whose targets are arrays."""
    X = estimator._table(X, reset=False)
    if isinstance(estimator, Density):
        values = None
    elif isinstance(estimator.target_, TargetScale):
        values = read_target(to_readable(y)) if censored is None else read_bounds(y, censored)
        if censored is None and values.ndim != estimator.target_.ndim:
            values = values.reshape(len(values), -1)
            values = values[:, 0] if estimator.target_.ndim == 1 and values.shape[1] == 1 else values
    elif censored is not None:
        raise DataError("censored was given for a classifier; leave it out")
    else:
        values = read_labels(estimator._task().shape_target(to_readable(y)))
    if values is not None and len(values) != len(X):
        raise DataError(f"X has {len(X)} rows and y has {len(values)}; they must agree")
    weight = None
    if sample_weight is not None:
        row_weights(sample_weight, len(X))  # checks them; scores scale them by the rows that they are of
        weight = np.asarray(unmask(sample_weight), dtype=np.float64)
    return FitRows(
        len(X),
        lambda rows: (take(X, rows), None if values is None else values[rows]),
        names,
        weight=weight,
        censored=None if censored is None else "interval",  # as values are bounds
    )


def _target_names(estimator: Estimator, y: Any, given: str | Sequence[str] | None) -> list[str]:
    """Return the names of the targets: as given, of a series or a frame, or numbered."""
    if given is not None:
        return [given] if isinstance(given, str) else list(map(str, given))
    if isinstance(estimator, Density):
        return [str(column.name) for column in estimator.schema_.columns]
    count = len(estimator.target_.mean) if isinstance(estimator.target_, TargetScale) else 1
    names = get_column_names(y, "y") or [str(_name_of(y) or "y")]
    return names if len(names) == count else [f"y{t + 1}" for t in range(count)] if count > 1 else ["y"]


def _name_of(values: Any) -> Any:
    """Return the name of a series; None for other objects."""
    series = as_series(values, "y")
    return None if series is None else series.name
