"""Summaries and scores of predictions of numbers, and of a constant prediction for comparison."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.data.censoring import fit_bounds, is_known
from fathomless.data.targets import TargetScale
from fathomless.estimators.scores import Score, average, check_finite, concatenate, mean, score
from fathomless.posterior import metrics
from fathomless.posterior.censoring import log_probability
from fathomless.posterior.distributions import ContinuousPredictive, NumberPredictive
from fathomless.posterior.hurdle import HurdlePredictive
from fathomless.posterior.lattice import LatticePredictive
from fathomless.posterior.mixtures import Normal
from fathomless.posterior.transformed import TransformedPredictive
from fathomless.system.draws import uniform
from fathomless.system.errors import DataError

__all__ = [
    "COVERAGES",
    "NumberPredictions",
    "constant_law",
    "constant_prediction",
    "number_scores",
    "round_targets",
    "summarize_numbers",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

#: Levels of the scores of coverage, by their names.
COVERAGES = {"coverage_50": 0.5, "coverage_90": 0.9, "coverage_95": 0.95}
_LEAST_SHARE = 1e-12  # probability of an atom, or of other values, that no row has
_LEAST_SPREAD = 1e-3  # minimum scale of the constant prediction, in standard deviations of the training targets


@dataclass(frozen=True)
class NumberPredictions:
    """Summaries of predictions of N rows from which the scores are computed.

    Attributes
    ----------
    mean : ndarray, shape (N, T)
        Predictive means.
    log_density : ndarray, shape (N,)
        Joint log density of the targets in nats, or log probability.
    crps : ndarray, shape (N, T)
        Continuous ranked probability score; NaN for censored rows.
    pit : ndarray, shape (N, T)
        Distribution function at the target; where it jumps, drawn uniformly between its values before and after.
    low, high : ndarrays, shape (N, T)
        Bounds of the central 90 % interval.
    distance : ndarray, shape (N, T)
        Distance of 1/2 from the probabilities at the target: central intervals of twice this level contain it.
    """

    mean: Floats
    log_density: Floats
    crps: Floats
    pit: Floats
    low: Floats
    high: Floats
    distance: Floats


def summarize_numbers(
    p: NumberPredictive, y: Floats, generator: torch.Generator, *, censored: bool = False
) -> NumberPredictions:
    """Summarize predictions of rows with targets (N, T), or with bounds (N, 2) if they are `censored`."""
    if censored:
        return _predict_bounds(p, y, generator)
    if isinstance(p, LatticePredictive | HurdlePredictive | TransformedPredictive):
        return _predict_points(p, y, generator)
    assert isinstance(p, ContinuousPredictive)
    mixture = p.mixture  # batch (N, T), even if the prediction has no axis of targets
    truth = y[:, 0] if p.squeeze else y
    pit = mixture.cdf(y).numpy()
    return NumberPredictions(
        mixture.mean.numpy(),
        p.log_prob(truth).numpy(),
        p.crps(truth).numpy().reshape(y.shape),
        pit,
        mixture.icdf(0.05).numpy(),
        mixture.icdf(0.95).numpy(),
        np.abs(pit - 0.5),
    )


def _predict_bounds(p: NumberPredictive, bounds: Floats, generator: torch.Generator) -> NumberPredictions:
    """Summarize predictions of rows with bounds; for censored ones F(y) is drawn uniformly between F at the bounds.

    Their CRPS is NaN.
    """
    exact, rest = (np.flatnonzero(mask) for mask in (is_known(bounds), ~is_known(bounds)))
    parts = []
    if len(exact):
        parts.append(summarize_numbers(p.take(exact), bounds[exact, :1], generator))
    if len(rest):
        if isinstance(p, HurdlePredictive):
            raise DataError("censored targets were given for a fit with atoms; fit it with censored targets, too")
        law = p.take(rest)
        law = law.base if isinstance(law, LatticePredictive) else law
        assert isinstance(law, ContinuousPredictive | TransformedPredictive)
        low, high = (torch.tensor(bound).reshape(law.shape) for bound in bounds[rest].T)
        below, up_to = law.cdf(low), law.cdf(high)
        pit = (below + uniform(below, generator) * (up_to - below)).numpy()
        log_p = log_probability(law, low, high, law.logpdf).reshape(-1).numpy()
        shown = (law.mean, torch.full_like(below, math.nan), torch.tensor(pit), law.icdf(0.05), law.icdf(0.95))
        mean_, crps, drawn, lowest, highest = (part.numpy().reshape(-1, 1) for part in shown)
        parts.append(NumberPredictions(mean_, log_p, crps, drawn, lowest, highest, np.abs(drawn - 0.5)))
    order = np.argsort(np.concatenate([exact, rest]))
    merged = concatenate([vars(part) for part in parts])
    return NumberPredictions(**{key: values[order] for key, values in merged.items()})


def _predict_points(
    p: LatticePredictive | HurdlePredictive | TransformedPredictive, y: Floats, generator: torch.Generator
) -> NumberPredictions:
    """Return the summaries of a distribution of a single target that is not a mixture."""
    truth = round_targets(p, torch.tensor(y).reshape(p.shape))
    below, up_to = p.cdf_before(truth), p.cdf(truth)
    pit = below + uniform(below, generator) * (up_to - below)
    distance = torch.maximum(0.5 - up_to, below - 0.5).clamp_min(0.0)
    shown = (part.numpy().reshape(y.shape) for part in (p.crps(truth), pit, *p.interval(0.9), distance))
    return NumberPredictions(p.mean.numpy().reshape(y.shape), p.log_prob(truth).numpy(), *shown)


def round_targets(p: NumberPredictive, y: Tensor) -> Tensor:
    """Return targets, rounded to points of the lattice if they lie on one."""
    base = p.base if isinstance(p, HurdlePredictive) else p
    return base.round(y) if isinstance(base, LatticePredictive) else y


def constant_prediction(
    y: Floats,
    known: TargetScale,
    weight: Floats | None,
    generator: torch.Generator,
    on_lattice: bool,
    atoms: tuple[float, ...],
) -> NumberPredictions:
    """Summarize the normal distribution with the mean and standard deviation of these rows.

    It is rounded if `on_lattice`. With atoms, it is that of the other values, and the atoms have the frequencies of
    these rows.
    """
    others = ~np.isin(y, atoms).any(1)
    rows, of_rows = (y, weight)
    if others.any() and not others.all():
        rows, of_rows = y[others], None if weight is None else weight[others]
    centre = average(rows, of_rows)
    deviation = rows.std(0) if of_rows is None else np.sqrt(average(np.square(rows - centre), of_rows))
    scale = np.maximum(deviation, _LEAST_SPREAD * np.array(known.spread))  # a constant target has deviation zero
    mean, std = np.broadcast_to(centre, y.shape), np.broadcast_to(scale, y.shape)
    normal = Normal(torch.tensor(mean), torch.tensor(std))
    if on_lattice or atoms:
        one = torch.zeros(1, dtype=torch.float64, device="cpu")
        law: Any = ContinuousPredictive(one, one.long(), normal.map_parameters(lambda values: values[None]))
        law = LatticePredictive.of(law, known.lattice[0].step, known.lattice[0].offset) if on_lattice else law
        if atoms:
            member = np.column_stack([others, *(y[:, 0] == atom for atom in atoms)]).astype(np.float64)
            shares = average(member, weight)
            law = HurdlePredictive.of(law, atoms, torch.tensor(shares).clamp_min(_LEAST_SHARE).log())
        return _predict_points(law, y, generator)
    truth = torch.tensor(y)
    log_density = normal.log_prob(truth).sum(1).numpy()
    low, high = (normal.icdf(torch.tensor(p, dtype=torch.float64, device="cpu")).numpy() for p in (0.05, 0.95))
    crps = metrics.crps_gaussian(y, mean, std)
    pit = normal.cdf(truth).numpy()
    return NumberPredictions(mean, log_density, crps, pit, low, high, np.abs(pit - 0.5))


def constant_law(
    bounds: Floats, known: TargetScale, weight: Floats | None, generator: torch.Generator
) -> NumberPredictions:
    """Summarize the normal distribution of maximum likelihood for censored rows."""
    law = fit_bounds(bounds, weight)
    shape = (1, len(bounds), 1)
    scale = max(law.scale[0], _LEAST_SPREAD * known.spread[0])
    loc, spread = (torch.full(shape, value, dtype=torch.float64, device="cpu") for value in (law.mean[0], scale))
    one = torch.zeros(1, dtype=torch.float64, device="cpu")
    return _predict_bounds(ContinuousPredictive(one, one.long(), Normal(loc, spread)), bounds, generator)


def number_scores(
    rows: NumberPredictions, y: Floats, weight: Floats | None, exact: Ints | None = None
) -> dict[str, Score]:
    """Compute the scores; with censored targets, those of errors for the rows of known targets, `exact`."""
    of_all = {
        "log_likelihood": mean(rows.log_density, weight),
        **{key: mean((rows.distance <= 0.5 * level).astype(np.float64), weight) for key, level in COVERAGES.items()},
    }
    if exact is not None:
        rows = NumberPredictions(**{key: values[exact] for key, values in vars(rows).items()})
        y, weight = y[exact, :1], None if weight is None else weight[exact]
    spread = y - average(y, weight)  # (N, T)
    # a power of two, which rounds nothing, so that squares neither overflow nor underflow
    unit = np.ldexp(1.0, np.frexp(np.abs([spread, y - rows.mean]).max((0, 1)))[1])  # (T,)
    square = np.square((y - rows.mean) / unit)
    root = np.sqrt(average(square, weight))  # (T,)
    # derivative of the square root, for the influence values; 0 if all errors are 0
    slope = np.divide(0.5, root, out=np.zeros_like(root), where=root > 0.0)
    scores = {
        "log_likelihood": of_all.pop("log_likelihood"),
        "rmse": score(unit * root, unit * slope * (square - average(square, weight)), weight),
        "mae": mean(unit * np.sqrt(square), weight),
        "r2": _r2(square, np.square(spread / unit), y.max(0) > y.min(0), weight),
        "crps": mean(rows.crps, weight),
        "interval_score_90": mean(metrics.interval_score(y, rows.low, rows.high, 0.9), weight),
    }
    return check_finite({**scores, **of_all})


def _r2(square: Floats, spread: Floats, varies: npt.NDArray[np.bool_], weight: Floats | None) -> Score:
    """Return the coefficient of determination; for a constant target 1 if all errors are 0, else 0.

    `square` and `spread`, (N, T), are the squared distances of the target from the predictions and from its mean, and
    `varies`, (T,), is False for a constant target.
    """
    scale = np.where(varies, average(spread, weight), 1.0)
    ratio = np.where(varies, average(square, weight) / scale, square.any(0))
    return score(1.0 - ratio, np.where(varies, ratio * spread - square, 0.0) / scale, weight)
