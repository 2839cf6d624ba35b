"""Command ``explain``: importance and partial dependence of scores or the spread, contributions to predictions."""

import argparse
from typing import TYPE_CHECKING, Any

from fathomless.app.commands.fitted import KnownRows, is_training_file, read_rows
from fathomless.app.commands.printing import note, show, show_json
from fathomless.system.errors import DataError

if TYPE_CHECKING:
    from fathomless.estimators.contributions import Contributions
    from fathomless.estimators.importance import Dependence, SpreadDependence

__all__ = ["explain"]

_DEPENDENCE = 3  # columns with partial dependence by default


def explain(given: argparse.Namespace) -> int:
    """Compute importance and partial dependence, of scores or of the spread of predictions; or contributions."""
    known = read_rows(given, labelled=given.of == "score" and not given.row)
    known.show_notes()
    if given.row:
        return _explain_rows(given, known)
    if given.of == "linear":
        raise DataError("--of linear was given without --row; it explains single rows: add --row N, or omit --of")
    if given.of == "score" and is_training_file(given.data, known.manifest):
        note(
            f"{given.data} is the training file, whose rows the networks have seen: importances are too large. Use "
            "rows to which the run was not fitted; the page shows those of out-of-fold or held-out rows"
        )
    X, y = _choose_rows(given, known)
    return _explain_score(given, known, X, y) if given.of == "score" else _explain_spread(given, known, X)


def _choose_rows(given: argparse.Namespace, known: KnownRows) -> tuple[Any, Any]:
    """Return at most ``given.rows`` rows of a table and their targets, evenly spaced."""
    import numpy as np

    from fathomless.app.commands.columns import check_columns
    from fathomless.data.censoring import is_known, read_bounds
    from fathomless.data.frames import space_evenly, take

    X, y = known.X, known.y
    _refuse_density(given, known)
    if y is not None and known.censored is not None:
        exact = np.flatnonzero(is_known(read_bounds(y, known.censored)))
        note(f"using the {len(exact):,} of {len(X):,} rows whose target is not censored")
        X, y = take(X, exact), y[exact]
    check_columns([column.name for column in known.estimator.schema_.columns], given.column or ())
    rows = space_evenly(len(X), given.rows)
    if len(rows) < len(X):
        note(f"using {len(rows):,} of {len(X):,} rows, evenly spaced (--rows changes that)")
    return take(X, rows), None if y is None else y[rows]


def _refuse_density(given: argparse.Namespace, known: KnownRows) -> None:
    """Raise an error for runs without a target."""
    from fathomless.estimators.base import PredictiveEstimator

    if not isinstance(known.estimator, PredictiveEstimator):
        raise DataError(f"{given.folder} is a density, which predicts no target; explain needs a run with a target")


def _explain_rows(given: argparse.Namespace, known: KnownRows) -> int:
    """Divide the predictions of single rows, or their spread, among the columns."""
    import numpy as np

    from fathomless.data.targets import ClassLabels

    X, count = known.X, len(known.X)
    _refuse_density(given, known)
    if given.column:
        raise DataError("--column was given with --row, which shows all columns; leave one of them out")
    if (last := max(given.row)) > count:
        raise DataError(f"--row {last} was given; {given.data} has {count:,} rows, counted from 1")
    chosen = np.array(given.row) - 1
    of = "prediction" if given.of == "score" else given.of
    found = _divide(given, X, chosen, known, of)
    target = known.estimator.target_
    classes = isinstance(target, ClassLabels)
    if of == "spread":
        names = ["entropy"] if classes else [f"standard deviation of {name}" for name in known.manifest.targets]
    else:
        names = [str(label) for label in target.labels] if classes else list(known.manifest.targets)
    values = [[_cell(X, int(i), place) for place in range(len(found.columns))] for i in chosen]
    exact = of == "linear"
    if given.json:
        show_json(rows=[_row_of(found, i, row, values[i], names, exact=exact) for i, row in enumerate(given.row)])
        return 0
    quantities = {
        ("prediction", True): "probability of ",
        ("linear", True): "logit of ",
        ("linear", False): "output for ",
    }
    quantity = quantities.get((of, classes), "")
    for i, row in enumerate(given.row):
        shown = [int(found.prediction[i].argmax())] if classes and of != "spread" else range(len(names))
        for k in shown:
            _show_contributions(found, i, k, f"Row {row}: {quantity}{names[k]}", values[i], exact=exact)
    return 0


def _divide(given: argparse.Namespace, X: Any, chosen: Any, known: KnownRows, of: str) -> "Contributions":
    """Return the contributions to the predictions, spreads or outputs of the chosen rows."""
    import numpy as np

    from fathomless.data.frames import space_evenly, take
    from fathomless.estimators.contributions import contributions
    from fathomless.estimators.linear_contributions import linear_contributions

    if of == "linear":
        return linear_contributions(known.estimator, take(X, chosen))
    others = np.setdiff1d(np.arange(len(X)), chosen)
    if not len(others):
        raise DataError(f"{given.data} has no other rows to compare with; add rows, such as those of the training file")
    others = others[space_evenly(len(others), given.rows)]
    return contributions(known.estimator, take(X, chosen), take(X, others), of=of, random_state=given.seed)


def _cell(X: Any, row: int, place: int) -> Any:
    """Return the cell of a row and a column as a number, text or truth value; None if it is missing."""
    import datetime

    import numpy as np

    value = X[row, place].item() if isinstance(X, np.ndarray) else X.column(place)[row].as_py()
    if isinstance(value, float) and value != value:
        return None
    return value.isoformat().removesuffix("T00:00:00") if isinstance(value, datetime.date) else value


def _row_of(
    found: "Contributions", i: int, row: int, values: list[Any], names: list[str], *, exact: bool
) -> dict[str, Any]:
    """Return the contributions to the predictions of a row as JSON."""
    bounds = {} if found.lower is None or found.upper is None else {"lower": found.lower, "upper": found.upper}
    return {
        "row": row,
        "of": names,
        "intercept" if exact else "average": found.base[i].tolist(),
        "prediction": found.prediction[i].tolist(),
        "level": found.level if bounds else None,
        "contributions": [
            {
                "column": column,
                "value": values[c],
                "contribution": found.values[i, c].tolist(),
                "error": found.error[i, c].tolist(),
                **{name: bound[i, c].tolist() for name, bound in bounds.items()},
            }
            for c, column in enumerate(found.columns)
        ],
    }


def _show_contributions(found: "Contributions", i: int, k: int, title: str, values: list[Any], *, exact: bool) -> None:
    """Print the contributions to the quantity k of the row i, the largest first."""
    from fathomless.plots.page import number

    base = "intercept" if exact else "average of the other rows"
    show(f"{title} {number(float(found.prediction[i, k]))}; {base} {number(float(found.base[i, k]))}")
    intervals = found.lower is not None and found.upper is not None
    more = f", with {100 * found.level:.0f} % intervals over the networks" if intervals else ""
    show(f"Contributions{'' if exact else ' ± error of the random walks'}{more}\n")
    cells = ["missing" if value is None else str(value) for value in values]
    wide, cell = max(map(len, found.columns)), max(map(len, cells))
    for c in abs(found.values[i, :, k]).argsort()[::-1]:
        interval = ""
        if found.lower is not None and found.upper is not None:
            interval = "  " + " to ".join(number(float(bound[i, c, k])) for bound in (found.lower, found.upper))
        value, error = (number(float(part[i, c, k])) for part in (found.values, found.error))
        error = "" if exact else f" ± {error:<7}"
        show(f"  {found.columns[c]:<{wide}}  {cells[c]:>{cell}}  {value:>9}{error}{interval}")
    show("")


def _explain_score(given: argparse.Namespace, known: KnownRows, X: Any, y: Any) -> int:
    """Explain the score of rows with known targets."""
    from fathomless.data.targets import ClassLabels
    from fathomless.estimators.importance import dependence, importance

    permuted = importance(known.estimator, X, y, random_state=given.seed)
    losses = list(zip(permuted.columns, permuted.loss.tolist(), permuted.error.tolist(), strict=True))
    curves = [dependence(known.estimator, X, name) for name in given.column or permuted.columns[:_DEPENDENCE]]
    target = known.estimator.target_
    names = [str(label) for label in target.labels] if isinstance(target, ClassLabels) else list(known.manifest.targets)
    if given.json:
        show_json(
            importance=[{"column": name, "loss": loss, "error": error} for name, loss, error in losses],
            dependence=[
                {
                    "column": curve.column,
                    "points": list(curve.points),
                    "of": names,
                    "mean": curve.mean.tolist(),
                    "lower": curve.lower.tolist(),
                    "upper": curve.upper.tolist(),
                    "level": curve.level,
                }
                for curve in curves
            ],
        )
        return 0
    show("Permutation importance: decrease of the log-likelihood, nats per row, ± standard error\n")
    _show_columns(losses)
    for curve in curves:
        for k, name in enumerate(names):
            show(f"\nPartial dependence on {curve.column}: average {name}, {100 * curve.level:.0f} % intervals\n")
            _show_curve(curve, curve.mean[:, k], curve.lower[:, k], curve.upper[:, k])
    return 0


def _explain_spread(given: argparse.Namespace, known: KnownRows, X: Any) -> int:
    """Explain the spread of predictions, which needs no targets."""
    from fathomless.data.targets import ClassLabels
    from fathomless.estimators.importance import spread_dependence, spread_importance

    permuted = spread_importance(known.estimator, X, random_state=given.seed)
    changes = list(zip(permuted.columns, permuted.change.tolist(), permuted.error.tolist(), strict=True))
    curves = [spread_dependence(known.estimator, X, name) for name in given.column or permuted.columns[:_DEPENDENCE]]
    targets, classes = list(known.manifest.targets), isinstance(known.estimator.target_, ClassLabels)
    if given.json:
        show_json(
            spread="entropy" if classes else "standard deviation",
            importance=[{"column": name, "change": change, "error": error} for name, change, error in changes],
            dependence=[
                {
                    "column": curve.column,
                    "points": list(curve.points),
                    "of": targets,
                    "spread": curve.spread.tolist(),
                }
                for curve in curves
            ],
        )
        return 0
    measure = "entropy of the classes" if classes else "log standard deviation"
    show(f"Importance for the spread: mean absolute change of the {measure}, nats per row, ± standard error")
    show("" if classes else "(0.1 is a change of the standard deviation of about 10 %)\n")
    _show_columns(changes)
    for curve in curves:
        for k, name in enumerate(targets):
            of = f"entropy of {name}, nats" if classes else f"standard deviation of {name}"
            show(f"\nPartial dependence of the spread on {curve.column}: average {of}\n")
            _show_curve(curve, curve.spread[:, k])
    return 0


def _show_columns(values: list[tuple[str, float, float]]) -> None:
    """Print the name, the importance and the standard error of each column."""
    width = max((len(name) for name, *_ in values), default=0)
    for name, value, error in values:
        show(f"  {name:<{width}}  {value:8.4f} ± {error:.4f}")


def _show_curve(curve: "Dependence | SpreadDependence", mean: Any, *bounds: Any) -> None:
    """Print the average at each value of a column, with the bounds of its interval if they are given."""
    from fathomless.plots.page import number

    wide = max(len(str(point)) for point in curve.points)
    for k, point in enumerate(curve.points):
        interval = "  " + " to ".join(number(float(bound[k])) for bound in bounds) if bounds else ""
        show(f"  {point!s:<{wide}}  {number(float(mean[k])):>9}{interval}")
