r"""Shapley values of single predictions, and of their spread, with their uncertainty over networks.

A walk begins at a background row b and sets one column after another to its value in the row x, in random order. The
contribution of a column is the mean change of the prediction f at its step:

.. math:: \varphi_j(x) = \mathbb E_{b, \pi} \big[ f(x_{S \cup j}, b_{\text{rest}}) - f(x_S, b_{\text{rest}}) \big],
          \qquad \sum_j \varphi_j(x) = f(x) - \mathbb E_b f(b),

where S are the columns before j in the order π. The steps of each walk add up to f(x) − f(b), so the contributions add
up to the difference of the predictions whatever the number of walks. Every order is used together with its reverse:
the values are then exact for the drawn background rows if at most two columns interact. A column changes with all its
features. The values are those of Štrumbelj and Kononenko, "Explaining prediction models and individual predictions
with feature contributions", 2014, with the pairs of orders of Mitchell, Cooper, Frank and Holmes, "Sampling
permutations for Shapley value estimation", 2022.

The credible interval of a contribution has the quantiles of the contributions to the predictions of the networks, whose
average is moved to the contribution to the prediction itself.
"""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from fathomless.data.frames import encode
from fathomless.estimators.base import PredictiveEstimator
from fathomless.estimators.importance import feature_spans, spread_of, weighted_quantile
from fathomless.estimators.predictor import AnyPredictive
from fathomless.posterior.distributions import NumberPredictive
from fathomless.system import checks
from fathomless.system.errors import DataError
from fathomless.system.rng import fold_in

__all__ = ["Contributions", "contributions"]

_AT_ONCE = 4096  # rows predicted at once
_ROUNDING = 1e-12  # change of a prediction that is rounding, relative to the predictions

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Contributions:
    """Contributions of the C columns to the predictions of N rows.

    Attributes
    ----------
    columns : tuple of str
        Names of the columns, in the order of the table.
    base : ndarray of float64, shape (N, K)
        Average prediction of the background rows of each row.
    prediction : ndarray of float64, shape (N, K)
        Prediction of each row; `base` plus the sum of `values`.
    values : ndarray of float64, shape (N, C, K)
        Contributions.
    error : ndarray of float64, shape (N, C, K)
        Standard errors of the contributions due to the number of walks.
    lower, upper : ndarray of float64, shape (N, C, K), or None
        Bounds of credible intervals over structures and weights; None for the spread.
    level : float
        Level of the intervals.
    """

    columns: tuple[str, ...]
    base: Floats
    prediction: Floats
    values: Floats
    error: Floats
    lower: Floats | None
    upper: Floats | None
    level: float


def contributions(
    estimator: PredictiveEstimator,
    X: Any,
    background: Any = None,
    *,
    of: str = "prediction",
    pairs: int = 128,
    level: float = 0.9,
    random_state: int = 0,
) -> Contributions:
    """Divide predictions, or their spread, among the columns (Shapley values).

    Parameters
    ----------
    estimator : PredictiveEstimator
        Fitted classifier or regressor.
    X : array or data frame, shape (N, C)
        Rows to explain.
    background : array or data frame, shape (B, C), optional
        Rows to compare with, such as the training rows. By default, the other rows of X.
    of : {"prediction", "spread"}
        The K predicted means of numbers or probabilities of classes; or the standard deviations of numbers, or the
        entropy of the classes in nats.
    pairs : int
        Number of background rows drawn for each row, without replacement as far as possible, each with an order of the
        columns and its reverse. Each row needs 2 · `pairs` · (C + 1) predictions.
    level : float
        Level of the credible intervals.
    random_state : int
        Seed of background rows and orders.

    Returns
    -------
    Contributions
        Contributions, which add up to the difference to the average prediction of the background rows.

    Raises
    ------
    DataError
        If a table does not match the estimator, or there are no background rows.
    """
    checks.choice("of", of, ("prediction", "spread"))
    checks.whole("pairs", pairs)
    checks.interval("level", level, 0.0, 1.0)
    schema = estimator.schema_
    x = encode(schema, X)
    others = None if background is None else encode(schema, background)
    if len(x if others is None else others) < (2 if others is None else 1):
        raise DataError("there are no background rows; give background=, such as the training rows")
    found = []
    for i, row in enumerate(x):
        rows = np.delete(x, i, axis=0) if others is None else others
        random = np.random.default_rng(fold_in(random_state, "contributions"))  # the same for all rows
        found.append(_explain_row(estimator, row, rows, of, pairs, level, random))
    base, prediction, values, error, lower, upper = (np.stack(part) for part in zip(*found, strict=True))
    names = tuple(name for name, _ in feature_spans(schema))
    if of == "spread":
        return Contributions(names, base, prediction, values, error, None, None, level)
    return Contributions(names, base, prediction, values, error, lower, upper, level)


def _explain_row(
    estimator: PredictiveEstimator,
    row: Array,
    rows: Array,
    of: str,
    pairs: int,
    level: float,
    random: np.random.Generator,
) -> tuple[Floats, ...]:
    """Return base and prediction (K,), contributions, their errors, and the bounds of their intervals, (C, K) each."""
    spans = [span for _, span in feature_spans(estimator.schema_)]
    count = len(spans)
    start = rows[np.resize(random.permutation(len(rows)), pairs)]
    order = random.permuted(np.tile(np.arange(count), (pairs, 1)), axis=1)
    place = np.stack([order, count - 1 - order], 1)  # (P, 2, C), the step at which each column is set
    widths = [span.stop - span.start for span in spans]
    part = max(1, _AT_ONCE // (2 * (count + 1)))
    first, last, steps, of_networks, weight = [], [], [], 0.0, np.ones(1)
    for low in range(0, pairs, part):
        at = place[low : low + part]
        taken = np.repeat(at, widths, axis=2)[:, :, None] < np.arange(count + 1)[:, None]  # (P, 2, C + 1, D)
        points = np.where(taken, row, start[low : low + part, None, None])
        p = estimator.predict_encoded(points.reshape(-1, len(row)))
        f = (_predict(p) if of == "prediction" else spread_of(p)).reshape(*taken.shape[:3], -1)  # (P, 2, C + 1, K)
        first.append(f[:, :, 0])
        last.append(f[:, :, -1])
        steps.append(_assign_steps(f, at).mean(1))
        if of == "prediction":
            networks = _predict_by_networks(p)
            networks = networks.reshape(len(networks), *f.shape)
            of_networks = of_networks + _assign_steps(networks, at[None]).mean(2).sum(1) / pairs  # (S, C, K)
            weight = p.log_weight.exp().numpy()
    change = np.concatenate(steps)  # (pairs, C, K)
    values = change.mean(0)
    error = change.std(0, ddof=1) / np.sqrt(pairs) if pairs > 1 else np.full_like(values, np.nan)
    base, prediction = (np.concatenate(ends).mean((0, 1)) for ends in (first, last))
    if of == "spread":
        return base, prediction, values, error, values, values
    weight = weight / weight.sum()
    centred = of_networks - np.einsum("s,sck->ck", weight, of_networks)
    bounds = (values + weighted_quantile(centred, weight, 0.5 + sign * level / 2) for sign in (-1, 1))
    return base, prediction, values, error, *bounds


def _assign_steps(f: Floats, place: Array) -> Floats:
    """Return the changes of walks (..., C + 1, K) by column, (..., C, K); `place`, (..., C), has the step of each.

    Changes within rounding are 0: equal rows can differ by it in different batches.
    """
    change = np.diff(f, axis=-2)
    change[np.abs(change) <= _ROUNDING * np.abs(f).max()] = 0.0
    return cast(Floats, np.take_along_axis(change, place[..., None], axis=-2))


def _predict(p: AnyPredictive) -> Floats:
    """Return means of numbers, or probabilities of classes, (N, K)."""
    values = p.mean if isinstance(p, NumberPredictive) else p.probs
    return cast(Floats, values.numpy().reshape(len(p), -1))


def _predict_by_networks(p: AnyPredictive) -> Floats:
    """Return the predictions of the drawn networks, (S, N, K)."""
    values = p.network_means if isinstance(p, NumberPredictive) else p.each_probs
    return cast(Floats, values.numpy().reshape(len(p.log_weight), len(p), -1))
