r"""What drives predictions: what is lost where a column is shuffled, and how predictions follow one column.

A column is moved in the encoded table, with all its features at once: a category, a date and the mark of a gap stay
whole, and no value appears that the table does not hold.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fathomless.data.frames import encode, read_target
from fathomless.data.schema import Column, Schema
from fathomless.data.targets import TargetScale
from fathomless.estimators.base import PredictiveEstimator
from fathomless.estimators.predictor import AnyPredictive
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.system.errors import DataError
from fathomless.system.masked import unmask
from fathomless.system.rng import fold_in

__all__ = ["Dependence", "Importance", "dependence", "importance", "row_groups"]

_AT_ONCE = 4096  # rows that are predicted together

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Importance:
    """What is lost where a column is shuffled.

    Attributes
    ----------
    columns : tuple of str
        Most important first.
    loss : ndarray of float64, shape (C,)
        Nats per row by which the log density of the target falls.
    error : ndarray of float64, shape (C,)
        Standard error of each, over the rows.
    """

    columns: tuple[str, ...]
    loss: Floats
    error: Floats


@dataclass(frozen=True)
class Dependence:
    """How predictions follow one column, the others as they are.

    Attributes
    ----------
    column : str
        Its name.
    points : tuple of float or str
        Values of the column: numbers, ascending, or categories; dates are ISO text.
    mean, lower, upper : ndarray of float64, shape (G, K)
        Average prediction of K targets, or probability of K classes, at each point; and the interval that holds this
        average with the probability `level` under the posterior over structure and weights, without the noise.
    level : float
        That probability.
    """

    column: str
    points: tuple[float | str, ...]
    mean: Floats
    lower: Floats
    upper: Floats
    level: float


def importance(
    estimator: PredictiveEstimator, X: Any, y: Any, *, fold: Any = None, repeats: int = 3, random_state: int = 0
) -> Importance:
    """Shuffle one column after the other, and see how much less likely the target becomes.

    A column that others can stand in for is less important than its part in the truth is.

    Parameters
    ----------
    estimator : PredictiveEstimator
        A fitted classifier or regressor.
    X : array or data frame, shape (N, C)
        Rows; better those that training has not seen.
    y : array, shape (N,) or (N, T)
        Their targets.
    fold : array of int, shape (R, N), optional
        As of ``predict_dist``.
    repeats : int
        Shuffles of each column, over which the loss is averaged.
    random_state : int
        Of the shuffles.

    Returns
    -------
    Importance
        Of all columns.

    Raises
    ------
    DataError
        For tables that do not fit the estimator, and fewer than 2 rows.
    """
    if len(X) < 2 or repeats < 1:
        raise DataError(f"{len(X)} rows and {repeats} repeats were given; 2 and 1 are the least that can be shuffled")
    x = encode(estimator.schema_, X)
    y = read_target(y) if isinstance(estimator.target_, TargetScale) else np.asarray(unmask(y))
    before = _log_density(estimator, x, y, fold)
    random = np.random.default_rng(fold_in(random_state, "shuffle"))
    names, spans = zip(*_spans(estimator.schema_), strict=True)
    lost, many = np.zeros((len(spans), len(x))), max(1, _AT_ONCE // len(x))
    for _ in range(repeats):
        order = random.permutation(len(x))  # the same for all columns: their losses are compared
        for start in range(0, len(spans), many):
            part = spans[start : start + many]
            moved = np.tile(x, (len(part), 1, 1))
            for one, span in zip(moved, part, strict=True):
                one[:, span] = x[order, span]
            after = _log_density(
                estimator,
                moved.reshape(-1, x.shape[1]),
                np.concatenate([y] * len(part)),
                None if fold is None else np.tile(fold, len(part)),
            )
            lost[start : start + many] += (before - after.reshape(len(part), -1)) / repeats
    loss = lost.mean(1)
    first = np.argsort(-loss, kind="stable")
    error = lost.std(1, ddof=1) / np.sqrt(len(x))
    return Importance(tuple(names[i] for i in first), loss[first], error[first])


def dependence(
    estimator: PredictiveEstimator, X: Any, column: str, *, points: int = 15, level: float = 0.9
) -> Dependence:
    """Give all rows one value of a column after the other, and average the predictions (Friedman, 2001).

    Parameters
    ----------
    estimator : PredictiveEstimator
        A fitted classifier or regressor.
    X : array or data frame, shape (N, C)
        Rows whose other columns are kept.
    column : str
        Name of one of ``schema_.columns``.
    points : int
        Values, at most: quantiles of the rows, or the most frequent categories.
    level : float
        Probability of the intervals.

    Raises
    ------
    DataError
        If there is no such column, and for tables that do not fit.
    """
    spans = dict(_spans(estimator.schema_))
    if column not in spans:
        raise DataError(f"there is no column {column!r}; the columns are {', '.join(map(repr, spans))}")
    if not 0.0 < level < 1.0 or points < 1 or not len(X):
        raise DataError(f"level={level}, {points} points and {len(X)} rows were given; 0 < level < 1 and 1 are needed")
    known = next(one for one in estimator.schema_.columns if one.name == column)
    x, span = encode(estimator.schema_, X), spans[column]
    shown, rows = _points(known, x[:, span], points)
    found, many = [], max(1, _AT_ONCE // len(x))
    for start in range(0, len(rows), many):
        part = rows[start : start + many]
        moved = np.tile(x, (len(part), 1, 1))
        moved[:, :, span] = x[part, span][:, None]
        found.append(_averages(estimator.predict_encoded(moved.reshape(-1, x.shape[1])), len(part), level))
    mean, lower, upper = (np.concatenate(part) for part in zip(*found, strict=True))
    return Dependence(column, shown, mean, lower, upper, level)


def row_groups(schema: Schema, X: Any, *, parts: int = 4) -> Iterator[tuple[str, str, Bools]]:
    """Yield groups of rows that have a column in common: its name, what they have in common, and which rows they are.

    Parameters
    ----------
    schema : Schema
        Of the table.
    X : array or data frame, shape (N, C)
        Rows.
    parts : int
        Groups of a column of numbers or dates, of about as many rows each; categories are groups of their own, and so
        are rows with a gap.

    Raises
    ------
    DataError
        For tables that do not fit.
    """
    x = encode(schema, X)
    for column, (name, span) in zip(schema.columns, _spans(schema), strict=True):
        features = x[:, span]
        gaps = features[:, -1] > 0 if column.gaps else np.zeros(len(x), bool)
        if gaps.any():
            yield name, "missing", gaps
        if column.kind == "category":
            names = [*map(str, column.levels), *["(other)"] * column.other]
            level = features[:, : len(names)].argmax(1)
            for k in np.unique(level[~gaps]).tolist():
                yield name, names[k], ~gaps & (level == k)
            continue
        first = features[:, 0]
        values = np.unique(first[~gaps])
        few = len(values) <= parts
        cuts = values if few else np.unique(np.quantile(first[~gaps], np.linspace(0.0, 1.0, parts + 1)))
        for low, high in zip(cuts, cuts if few else cuts[1:], strict=False):
            inside = ~gaps & (first >= low) & ((first <= high) if few or high == cuts[-1] else (first < high))
            if inside.any():
                own = first[inside]
                both = (_value(column, float(end)) for end in (own.min(), own.max()))
                ends = dict.fromkeys(v if isinstance(v, str) else f"{v:.5g}" for v in both)
                yield name, " to ".join(ends), inside


def _spans(schema: Schema) -> list[tuple[str, slice]]:
    """Return which encoded features each column has."""
    stops = np.cumsum([len(column.features) for column in schema.columns])
    return [
        (column.name, slice(int(stop) - len(column.features), int(stop)))
        for column, stop in zip(schema.columns, stops, strict=True)
    ]


def _log_density(estimator: PredictiveEstimator, x: Array, y: Any, fold: Any) -> Floats:
    found = estimator.predict_encoded(x, fold=fold).log_prob(y).numpy()
    return cast(Floats, found if found.ndim == 1 else found.sum(1))


def _points(column: Column, features: Array, points: int) -> tuple[tuple[float | str, ...], list[int]]:
    """Choose values of a column, and rows that have them."""
    gaps = features[:, -1] > 0 if column.gaps else np.zeros(len(features), bool)
    there = np.flatnonzero(~gaps)
    if not len(there):
        return ("missing",), [0]
    if column.kind == "category":
        names = [*map(str, column.levels), *["(other)"] * column.other]
        level = features[there, : len(names)].argmax(1)
        usual = np.argsort(-np.bincount(level, minlength=len(names)), kind="stable")[:points]
        found = [(names[i], there[level == i]) for i in usual]
        return tuple(name for name, rows in found if len(rows)), [int(rows[0]) for _, rows in found if len(rows)]
    values, rows = np.unique(features[there, 0], return_index=True)
    spread = np.quantile(features[there, 0], np.linspace(0.0, 1.0, points), method="nearest")
    rows = there[rows[np.searchsorted(values, np.unique(spread))]]
    return tuple(_value(column, float(features[row, 0])) for row in rows), [int(row) for row in rows]


def _value(column: Column, encoded: float) -> float | str:
    if column.kind == "boolean":
        return "true" if encoded > 0 else "false"
    value = encoded * column.scale + column.center
    return str(np.datetime64("1970-01-01") + round(value)) if column.kind == "date" else float(f"{value:.12g}")


def _averages(p: AnyPredictive, points: int, level: float) -> tuple[Floats, Floats, Floats]:
    """Return the average prediction of all rows of each point, and quantiles of it over networks, (G, K) each."""
    each = p.component.mean if isinstance(p, ContinuousPredictive) else p.each_probs  # (S, N, K)
    of_networks = each.unflatten(1, (points, -1)).mean(2).numpy()  # (S, G, K)
    weight = p.log_weight.exp().numpy()
    weight = weight / weight.sum()
    return (
        np.einsum("s,sgk->gk", weight, of_networks),
        _quantile(of_networks, weight, 0.5 - level / 2),
        _quantile(of_networks, weight, 0.5 + level / 2),
    )


def _quantile(values: Floats, weight: Floats, p: float) -> Floats:
    """Return the quantiles of weighted values (S, ...) along the first axis."""
    flat = values.reshape(len(values), -1)
    order = flat.argsort(0)
    below = np.cumsum(weight[order], 0) - 0.5 * weight[order]
    ascending = np.take_along_axis(flat, order, 0)
    found = [np.interp(p, *pair) for pair in zip(below.T, ascending.T, strict=True)]
    return np.array(found).reshape(values.shape[1:])
