r"""Permutation importance and partial dependence, of scores and of the spread, and groups of rows by a column.

The spread of a prediction is its standard deviation for numbers, and its entropy for classes. A column is changed in
the encoded table, with all its features at once: the features of a category, a date and an indicator of missing values
stay consistent, and every value occurs in the table.
"""

from collections.abc import Callable, Iterator
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
from fathomless.system import checks
from fathomless.system.errors import DataError
from fathomless.system.masked import unmask
from fathomless.system.rng import fold_in

__all__ = [
    "Dependence",
    "Importance",
    "SpreadDependence",
    "SpreadImportance",
    "dependence",
    "feature_spans",
    "importance",
    "row_groups",
    "spread_dependence",
    "spread_importance",
    "spread_of",
    "weighted_quantile",
]

_AT_ONCE = 4096  # rows predicted at once
_LEAST = np.finfo(np.float64).tiny  # minimum of a standard deviation, which can underflow beside atoms

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


@dataclass(frozen=True)
class SpreadImportance:
    """Permutation importance of all columns for the spread of predictions.

    Attributes
    ----------
    columns : tuple of str
        Names of the columns, most important first.
    change : ndarray of float64, shape (C,)
        Mean absolute change of the log standard deviation of numbers, or of the entropy of classes, in nats.
    error : ndarray of float64, shape (C,)
        Standard error of each change over the rows.
    """

    columns: tuple[str, ...]
    change: Floats
    error: Floats


@dataclass(frozen=True)
class SpreadDependence:
    """Partial dependence of the spread of predictions on one column.

    Attributes
    ----------
    column : str
        Name of the column.
    points : tuple of float or str
        Values of the column, as in :class:`Dependence`.
    spread : ndarray of float64, shape (G, T)
        Mean predictive standard deviation of T targets at each point, in units of the target; or the mean entropy of
        the classes in nats, T = 1.
    """

    column: str
    points: tuple[float | str, ...]
    spread: Floats


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
    x = _encode_rows(estimator, X, repeats)
    y = read_target(y) if isinstance(estimator.target_, TargetScale) else np.asarray(unmask(y))

    def log_density(p: AnyPredictive, copies: int) -> Floats:
        log_p = p.log_prob(np.concatenate([y] * copies)).numpy()
        return cast(Floats, log_p if log_p.ndim == 1 else log_p.sum(1))

    losses = -_permute_columns(estimator, x, log_density, fold=fold, repeats=repeats, random_state=random_state)
    return Importance(*_sort_columns(estimator.schema_, losses))


def spread_importance(
    estimator: PredictiveEstimator, X: Any, *, fold: Any = None, repeats: int = 3, random_state: int = 0
) -> SpreadImportance:
    r"""Compute the permutation importance of all columns for the spread of predictions.

    For numbers the importance of column c is the mean over rows and shuffles of

    .. math:: |\log \sigma(x_i^{(c)}) - \log \sigma(x_i)|

    with the predictive standard deviation σ and the row :math:`x_i^{(c)}` whose column c has the value of another row.
    A small value is the mean relative change of σ: 0.1 is about 10 %. It is averaged over targets. For classes it is
    the mean absolute change of the entropy of the predicted probabilities. Both are in nats per row: the log standard
    deviation of a Gaussian is its entropy up to a constant.

    The importance is not negative, and 0 only for a column that does not change the spread of any row. That of
    correlated columns is underestimated, as in :func:`importance`. The spread is that of the prediction, with noise and
    the uncertainty about structure and weights. Targets are not needed.

    Parameters
    ----------
    estimator : PredictiveEstimator
        Fitted classifier or regressor.
    X : array or data frame, shape (N, C)
        Rows.
    fold : array of int, shape (R, N), optional
        Fold of each row, as in ``predict_dist``.
    repeats : int
        Number of shuffles of each column, over which the change is averaged.
    random_state : int
        Seed of the shuffles, which are those of :func:`importance`.

    Returns
    -------
    SpreadImportance
        Importance of all columns.

    Raises
    ------
    DataError
        If the table does not match the estimator, or there are fewer than 2 rows.
    """
    x = _encode_rows(estimator, X, repeats)

    def log_spread(p: AnyPredictive, copies: int) -> Floats:
        spread = spread_of(p)
        return np.log(np.maximum(spread, _LEAST)) if isinstance(p, NumberPredictive) else spread

    changes = _permute_columns(
        estimator, x, log_spread, fold=fold, repeats=repeats, random_state=random_state, absolute=True
    )
    return SpreadImportance(*_sort_columns(estimator.schema_, changes))


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
    if not 0.0 < level < 1.0:
        raise DataError(f"level={level} was given; a number between 0 and 1 is allowed")
    values, averages = _set_column(estimator, X, column, points, lambda p, count: _average_predictions(p, count, level))
    mean, lower, upper = (np.concatenate(part) for part in zip(*averages, strict=True))
    return Dependence(column, values, mean, lower, upper, level)


def spread_dependence(estimator: PredictiveEstimator, X: Any, column: str, *, points: int = 15) -> SpreadDependence:
    """Compute the partial dependence of the spread on a column: the average with the column set to each of its values.

    Parameters
    ----------
    estimator : PredictiveEstimator
        Fitted classifier or regressor.
    X : array or data frame, shape (N, C)
        Rows whose other columns are used.
    column : str
        Name of one of ``schema_.columns``.
    points : int
        Maximum number of values, as in :func:`dependence`.

    Returns
    -------
    SpreadDependence
        Mean predictive standard deviations, or mean entropies of classes.

    Raises
    ------
    DataError
        If there is no such column, or the table does not match the estimator.
    """

    def average(p: AnyPredictive, count: int) -> Floats:
        spread = spread_of(p)  # (G * N, T)
        return cast(Floats, spread.reshape(count, -1, spread.shape[1]).mean(1))

    values, averages = _set_column(estimator, X, column, points, average)
    return SpreadDependence(column, values, np.concatenate(averages))


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
    for column, (name, span) in zip(schema.columns, feature_spans(schema), strict=True):
        if column.kind == "empty":
            continue
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


def feature_spans(schema: Schema) -> list[tuple[str, slice]]:
    """Return the name of each column with the slice of its encoded features."""
    stops = np.cumsum([len(column.features) for column in schema.columns])
    return [
        (column.name, slice(int(stop) - len(column.features), int(stop)))
        for column, stop in zip(schema.columns, stops, strict=True)
    ]


def _encode_rows(estimator: PredictiveEstimator, X: Any, repeats: int) -> Array:
    """Encode the rows of which columns are shuffled, (N, D)."""
    if len(X) < 2:
        raise DataError(f"X has {len(X)} row{'s' * (len(X) != 1)}; at least 2 are needed to permute columns")
    checks.whole("repeats", repeats)
    return encode(estimator.schema_, X)


def _permute_columns(
    estimator: PredictiveEstimator,
    x: Array,
    measure: Callable[[AnyPredictive, int], Floats],
    *,
    fold: Any,
    repeats: int,
    random_state: int,
    absolute: bool = False,
) -> Floats:
    """Return the change of a measure of predictions if a column is shuffled, averaged over shuffles, (C, N).

    Parameters
    ----------
    estimator : PredictiveEstimator
        Fitted classifier or regressor.
    x : ndarray, shape (N, D)
        Encoded rows.
    measure : callable
        Function that returns the measure, (P * N,) or (P * N, T), of the predictions of P copies of the rows.
    fold, repeats, random_state
        As in :func:`importance`.
    absolute : bool
        True for absolute changes.
    """
    before = measure(estimator.predict_encoded(x, fold=fold), 1)
    random = np.random.default_rng(fold_in(random_state, "shuffle"))
    spans = [span for _, span in feature_spans(estimator.schema_)]
    changes = np.zeros((len(spans), len(x)))
    columns_at_once = max(1, _AT_ONCE // len(x))
    for _ in range(repeats):
        order = random.permutation(len(x))  # the same for all columns, so that their changes are comparable
        for start in range(0, len(spans), columns_at_once):
            part = spans[start : start + columns_at_once]
            moved = np.tile(x, (len(part), 1, 1))
            for shuffled, span in zip(moved, part, strict=True):
                shuffled[:, span] = x[order, span]
            of_copies = None if fold is None else np.tile(fold, len(part))
            p = estimator.predict_encoded(moved.reshape(-1, x.shape[1]), fold=of_copies)
            change = measure(p, len(part)).reshape(len(part), *before.shape) - before  # (P, N) or (P, N, T)
            change = np.abs(change) if absolute else change
            changes[start : start + columns_at_once] += change.reshape(*change.shape[:2], -1).mean(2) / repeats
    return changes


def _sort_columns(schema: Schema, values: Floats) -> tuple[tuple[str, ...], Floats, Floats]:
    """Return the names of the columns, the means of their values (C, N) in descending order, and standard errors."""
    names = [name for name, _ in feature_spans(schema)]
    mean = values.mean(1)
    error = values.std(1, ddof=1) / np.sqrt(values.shape[1])
    descending = np.argsort(-mean, kind="stable")
    return tuple(names[i] for i in descending), mean[descending], error[descending]


def spread_of(p: AnyPredictive) -> Floats:
    """Return the standard deviations of numbers, or the entropies of classes, (N, T)."""
    values = p.std if isinstance(p, NumberPredictive) else p.entropy()
    return cast(Floats, values.numpy().reshape(len(p), -1))


def _set_column(
    estimator: PredictiveEstimator,
    X: Any,
    column: str,
    points: int,
    average: Callable[[AnyPredictive, int], Any],
) -> tuple[tuple[float | str, ...], list[Any]]:
    """Set a column of all rows to each of its values; return the values, and averages of the predictions in parts.

    The function `average` has the predictions of all rows at some of the points, and the number of these points.
    """
    spans = dict(feature_spans(estimator.schema_))
    if column not in spans:
        raise DataError(f"there is no column {column!r}; the columns are {', '.join(map(repr, spans))}")
    if points < 1 or not len(X):
        raise DataError(f"{points} points and {len(X)} rows were given; at least 1 point and 1 row are needed")
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
        averages.append(average(estimator.predict_encoded(moved.reshape(-1, x.shape[1])), len(part)))
    return values, averages


def _choose_points(column: Column, features: Array, points: int) -> tuple[tuple[float | str, ...], list[int]]:
    """Choose values of a column; return them with the index of a row that has each value."""
    gaps = features[:, -1] > 0 if column.gaps else np.zeros(len(features), bool)
    present = np.flatnonzero(~gaps)
    if not len(present) or column.kind == "empty":
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
    return str(np.datetime64(round(value), "D")) if column.kind == "date" else float(f"{value:.12g}")


def _average_predictions(p: AnyPredictive, points: int, level: float) -> tuple[Floats, Floats, Floats]:
    """Return the average prediction over all rows at each point, and its quantiles over networks, (G, K) each."""
    predictions = p.network_means if isinstance(p, NumberPredictive) else p.each_probs  # (S, N, K)
    of_networks = predictions.unflatten(1, (points, -1)).mean(2).numpy()  # (S, G, K)
    weight = p.log_weight.exp().numpy()
    weight = weight / weight.sum()
    return (
        np.einsum("s,sgk->gk", weight, of_networks),
        weighted_quantile(of_networks, weight, 0.5 - level / 2),
        weighted_quantile(of_networks, weight, 0.5 + level / 2),
    )


def weighted_quantile(values: Floats, weight: Floats, p: float) -> Floats:
    """Return the quantiles of weighted values (S, ...) along the first axis."""
    flat = values.reshape(len(values), -1)
    order = flat.argsort(0)
    below = np.cumsum(weight[order], 0) - 0.5 * weight[order]
    ascending = np.take_along_axis(flat, order, 0)
    quantiles = [np.interp(p, *pair) for pair in zip(below.T, ascending.T, strict=True)]
    return np.array(quantiles).reshape(values.shape[1:])
