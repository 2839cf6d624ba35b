r"""Permutation importance, partial dependence, and groups of rows by the values of a column.

A column is changed in the encoded table, with all its features at once: the features of a category, a date and an
indicator of missing values stay consistent, and every value occurs in the table.
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
from fathomless.posterior.distributions import NumberPredictive
from fathomless.system.errors import DataError
from fathomless.system.masked import unmask
from fathomless.system.rng import fold_in

__all__ = ["Dependence", "Importance", "dependence", "importance", "row_groups"]

_AT_ONCE = 4096  # rows predicted at once

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Importance:
    """Permutation importance of all columns.

    Attributes
    ----------
    columns : tuple of str
        Names of the columns, most important first.
    loss : ndarray of float64, shape (C,)
        Decrease of the log density of the target, in nats per row.
    error : ndarray of float64, shape (C,)
        Standard error of each decrease over the rows.
    """

    columns: tuple[str, ...]
    loss: Floats
    error: Floats


@dataclass(frozen=True)
class Dependence:
    """Partial dependence of predictions on one column.

    Attributes
    ----------
    column : str
        Name of the column.
    points : tuple of float or str
        Values of the column: numbers in ascending order, or categories; dates are ISO text.
    mean, lower, upper : ndarray of float64, shape (G, K)
        Average prediction of K targets, or probability of K classes, at each point, with the bounds of its credible
        interval. The interval includes the uncertainty about structure and weights, not the noise.
    level : float
        Level of the interval.
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
    """Compute the permutation importance of all columns: the loss of log density if a column is shuffled.

    The importance of correlated columns is underestimated, since each can replace the others.

    Parameters
    ----------
    estimator : PredictiveEstimator
        Fitted classifier or regressor.
    X : array or data frame, shape (N, C)
        Rows, preferably not those of training.
    y : array, shape (N,) or (N, T)
        Targets of the rows.
    fold : array of int, shape (R, N), optional
        Fold of each row, as in ``predict_dist``.
    repeats : int
        Number of shuffles of each column, over which the loss is averaged.
    random_state : int
        Seed of the shuffles.

    Returns
    -------
    Importance
        Importance of all columns.

    Raises
    ------
    DataError
        If the table does not match the estimator, or there are fewer than 2 rows.
    """
    if len(X) < 2 or repeats < 1:
        raise DataError(f"{len(X)} rows and {repeats} repeats were given; at least 2 rows and 1 repeat are needed")
    x = encode(estimator.schema_, X)
    y = read_target(y) if isinstance(estimator.target_, TargetScale) else np.asarray(unmask(y))
    before = _log_density(estimator, x, y, fold)
    random = np.random.default_rng(fold_in(random_state, "shuffle"))
    names, spans = zip(*_feature_spans(estimator.schema_), strict=True)
    losses = np.zeros((len(spans), len(x)))
    columns_at_once = max(1, _AT_ONCE // len(x))
    for _ in range(repeats):
        order = random.permutation(len(x))  # the same for all columns, so that their losses are comparable
        for start in range(0, len(spans), columns_at_once):
            part = spans[start : start + columns_at_once]
            moved = np.tile(x, (len(part), 1, 1))
            for shuffled, span in zip(moved, part, strict=True):
                shuffled[:, span] = x[order, span]
            after = _log_density(
                estimator,
                moved.reshape(-1, x.shape[1]),
                np.concatenate([y] * len(part)),
                None if fold is None else np.tile(fold, len(part)),
            )
            losses[start : start + columns_at_once] += (before - after.reshape(len(part), -1)) / repeats
    loss = losses.mean(1)
    error = losses.std(1, ddof=1) / np.sqrt(len(x))
    descending = np.argsort(-loss, kind="stable")
    return Importance(tuple(names[i] for i in descending), loss[descending], error[descending])


def dependence(
    estimator: PredictiveEstimator, X: Any, column: str, *, points: int = 15, level: float = 0.9
) -> Dependence:
    """Compute the partial dependence on a column: average predictions with the column set to each of its values.

    Parameters
    ----------
    estimator : PredictiveEstimator
        Fitted classifier or regressor.
    X : array or data frame, shape (N, C)
        Rows whose other columns are used.
    column : str
        Name of one of ``schema_.columns``.
    points : int
        Maximum number of values: quantiles of the rows, or the most frequent categories.
    level : float
        Level of the intervals.

    Raises
    ------
    DataError
        If there is no such column, or the table does not match the estimator.

    References
    ----------
    J. H. Friedman, *Greedy function approximation: a gradient boosting machine*, Annals of Statistics 29 (2001).
    """
    spans = dict(_feature_spans(estimator.schema_))
    if column not in spans:
        raise DataError(f"there is no column {column!r}; the columns are {', '.join(map(repr, spans))}")
    if not 0.0 < level < 1.0 or points < 1 or not len(X):
        raise DataError(
            f"level={level}, {points} points and {len(X)} rows were given; 0 < level < 1, at least 1 point and at "
            "least 1 row are needed"
        )
    declared = next(entry for entry in estimator.schema_.columns if entry.name == column)
    x = encode(estimator.schema_, X)
    span = spans[column]
    values, rows = _choose_points(declared, x[:, span], points)
    averages = []
    points_at_once = max(1, _AT_ONCE // len(x))
    for start in range(0, len(rows), points_at_once):
        part = rows[start : start + points_at_once]
        moved = np.tile(x, (len(part), 1, 1))
        moved[:, :, span] = x[part, span][:, None]
        averages.append(
            _average_predictions(estimator.predict_encoded(moved.reshape(-1, x.shape[1])), len(part), level)
        )
    mean, lower, upper = (np.concatenate(part) for part in zip(*averages, strict=True))
    return Dependence(column, values, mean, lower, upper, level)


def row_groups(schema: Schema, X: Any, *, parts: int = 4) -> Iterator[tuple[str, str, Bools]]:
    """Yield groups of rows with similar values of a column: name of the column, text of the values, mask of the rows.

    Parameters
    ----------
    schema : Schema
        Schema of the table.
    X : array or data frame, shape (N, C)
        Rows.
    parts : int
        Number of groups of a numeric or date column, of about equal size. Each category is a group, and so are the rows
        with a missing value.

    Raises
    ------
    DataError
        If the table does not match the schema.
    """
    x = encode(schema, X)
    for column, (name, span) in zip(schema.columns, _feature_spans(schema), strict=True):
        features = x[:, span]
        # the last feature of a column with missing values is their indicator
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
                values_inside = first[inside]
                bounds = (_decode_value(column, float(end)) for end in (values_inside.min(), values_inside.max()))
                ends = dict.fromkeys(v if isinstance(v, str) else f"{v:.5g}" for v in bounds)  # once if equal
                yield name, " to ".join(ends), inside


def _feature_spans(schema: Schema) -> list[tuple[str, slice]]:
    """Return the name of each column with the slice of its encoded features."""
    stops = np.cumsum([len(column.features) for column in schema.columns])
    return [
        (column.name, slice(int(stop) - len(column.features), int(stop)))
        for column, stop in zip(schema.columns, stops, strict=True)
    ]


def _log_density(estimator: PredictiveEstimator, x: Array, y: Any, fold: Any) -> Floats:
    log_p = estimator.predict_encoded(x, fold=fold).log_prob(y).numpy()
    return cast(Floats, log_p if log_p.ndim == 1 else log_p.sum(1))


def _choose_points(column: Column, features: Array, points: int) -> tuple[tuple[float | str, ...], list[int]]:
    """Choose values of a column; return them with the index of a row that has each value."""
    gaps = features[:, -1] > 0 if column.gaps else np.zeros(len(features), bool)
    present = np.flatnonzero(~gaps)
    if not len(present):
        return ("missing",), [0]
    if column.kind == "category":
        names = [*map(str, column.levels), *["(other)"] * column.other]
        level = features[present, : len(names)].argmax(1)
        frequent = np.argsort(-np.bincount(level, minlength=len(names)), kind="stable")[:points]
        groups = [(names[i], present[level == i]) for i in frequent]
        return tuple(name for name, rows in groups if len(rows)), [int(rows[0]) for _, rows in groups if len(rows)]
    values, rows = np.unique(features[present, 0], return_index=True)
    quantiles = np.quantile(features[present, 0], np.linspace(0.0, 1.0, points), method="nearest")
    rows = present[rows[np.searchsorted(values, np.unique(quantiles))]]
    return tuple(_decode_value(column, float(features[row, 0])) for row in rows), [int(row) for row in rows]


def _decode_value(column: Column, encoded: float) -> float | str:
    if column.kind == "boolean":
        return "true" if encoded > 0 else "false"
    value = encoded * column.scale + column.center
    return str(np.datetime64("1970-01-01") + round(value)) if column.kind == "date" else float(f"{value:.12g}")


def _average_predictions(p: AnyPredictive, points: int, level: float) -> tuple[Floats, Floats, Floats]:
    """Return the average prediction over all rows at each point, and its quantiles over networks, (G, K) each."""
    predictions = p.network_means if isinstance(p, NumberPredictive) else p.each_probs  # (S, N, K)
    of_networks = predictions.unflatten(1, (points, -1)).mean(2).numpy()  # (S, G, K)
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
    quantiles = [np.interp(p, *pair) for pair in zip(below.T, ascending.T, strict=True)]
    return np.array(quantiles).reshape(values.shape[1:])
