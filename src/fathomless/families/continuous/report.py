"""Page section and findings of networks of continuous depth."""

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.estimators.findings import Finding, FitSummary
from fathomless.families.continuous import plots
from fathomless.families.continuous.accuracy import draw_coupled, hellinger, round_steps
from fathomless.families.continuous.dynamics import Weight
from fathomless.families.continuous.estimator import ContinuousDepthClassifier, ContinuousDepthRegressor
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.solve import follow, split_weights
from fathomless.plots.page import Figure, Group, StructureSection, TextTable, join_words, number, percent, picture
from fathomless.posterior.ensemble import list_members
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics
from fathomless.system.draws import normal
from fathomless.system.rng import as_generator

__all__ = ["findings", "page"]

_SHOWN = 3  # number of weights, and of units, in a plot
_DRAWN = (16, 200)  # minimum and maximum number of paths in a plot
_NUMBERS = 20_000_000  # approximate maximum of the weights of all paths at all times
_FINE = 20  # minimum number of steps on T in plots of paths
_ROWS = 64  # number of rows in the comparison of step counts
_DOUBLED = 3  # doublings of the step count in that comparison
_PRIOR = 0.01  # nats: divergence of the paths below which the posterior equals the prior
_STILL = 0.002  # ratio of posterior to prior standard deviation below which weights are certain
_EXPLODES = 1.5  # prior standard deviation times √fan-in above which hidden states grow with depth
_MOVED = 0.1  # steps of the horizon: total variation of its mean below which the posterior did not change

_ABOUT = (
    "A network is one path of weights along depth; the hidden state follows a differential equation with these "
    "weights. A prediction is an average over drawn paths."
)
_NOTE = (
    "Away from the training rows the predictive uncertainty is too small, especially that of a single network. "
    "Prediction intervals are valid for rows similar to the training rows."
)
_WEIGHTS = (
    "The weights are stacking weights: the mixture of all horizons with these weights has the best log-likelihood on "
    "out-of-fold rows. A weight is not the probability of a horizon, and neighbouring horizons share their weight at "
    "random."
)
_GAUSSIAN = (
    "The objective, the ELBO, is a lower bound on the log evidence of the whole data set in nats, estimated with "
    "the paths drawn in training."
)
_POINT = (
    "The weights at depth 0 are point estimates. The objective is a lower bound in nats on the log evidence of the "
    "whole data set given these weights, less their weight decay. It is not a bound on the evidence and cannot be "
    "compared with the bounds of other models."
)
_QUADRATURE = "The divergence of the paths is a quadrature, so the objective approximates a bound but is not one."
_TEMPERED = "The temperature is not 1, so the divergence is rescaled and the objective is not a bound."

Estimator = ContinuousDepthClassifier | ContinuousDepthRegressor
Floats = npt.NDArray[np.float64]


def page(estimator: Estimator) -> StructureSection:
    """Return plots of weights, hidden states, divergence and accuracy along depth, and of a random horizon."""
    networks = _networks(estimator)
    first = networks[0]
    where = f", in the first of {len(networks)} networks" if len(networks) > 1 else ""
    about = [_ABOUT]
    groups, learning, figures = [], [], []
    if first.random_horizon:
        groups.append(_horizon_group(estimator, first))
        learning.append(_horizon_figure(estimator, first))
        if estimator.fit_diagnostics_.structure is not None:
            about += [f"The summary gives horizons in units of {number(first.unit)} of depth.", _WEIGHTS]
    paths = _follow_row(first, estimator.schema_.width)
    if first.moving:
        figures += [_weight_figure(first, paths, where), _profile_figure(estimator)]
    figures += [_hidden_figure(paths, where), _accuracy_figure(estimator, first)]
    groups.append(Group("Paths" if first.random_horizon else "", figures, _numbers_table(estimator, first)))
    return StructureSection(groups, learning, " ".join(about), _NOTE, _objective(estimator, first))


def _objective(estimator: Estimator, first: ContinuousDepth) -> str:
    if first.options.bound == "quadrature":
        return _QUADRATURE
    if estimator.temperature != 1.0:
        return _TEMPERED
    given = " The rate of the prior is a point estimate." if first.options.learned and first.moving else ""
    return (_POINT if first.options.initial == "point" else _GAUSSIAN) + given


def _networks(estimator: Estimator) -> list[ContinuousDepth]:
    return [member for member in list_members(estimator.model_) if isinstance(member, ContinuousDepth)]


# ------------------------------------------------------------------------------------------------- the paths


class _Paths(NamedTuple):
    """Times (T,), mean (T, M) and drawn weights (S, T, M) in prior standard deviations, and hidden states (S, T, H)."""

    grid: tuple[float, ...]
    mean: Tensor
    weights: Tensor
    hidden: Tensor


@torch.no_grad()
def _follow_row(model: ContinuousDepth, inputs: int) -> _Paths:
    """Return drawn paths for a row whose encoded columns are all 0, with more steps than predictions have."""
    steps = _steps(model)
    grid = model.grid(steps * math.ceil(_FINE / steps))
    paths = min(max(_NUMBERS // (len(grid) * model.scale.numel()), _DRAWN[0]), _DRAWN[1]) if model.stochastic else 1
    start, path = model.path(paths, grid, as_generator(0))
    moving = sum(weight.size for weight in model.dynamics.moving)
    fixed = split_weights(start[..., moving:] * model.scale[moving:], model.dynamics.still)
    h = model.dynamics.enter(fixed, model.mean.new_zeros(1, 1, inputs))
    h = h.expand(1, paths, *h.shape[2:])
    weights = [split_weights(w * model.scale[:moving], model.dynamics.moving) for w in path]
    hidden = follow(model.dynamics, weights, h, grid, range(1, len(grid)), model.options.solver)
    mean = torch.stack(model.path(1, grid, None)[1])[:, 0, 0]
    return _Paths(grid, mean, torch.stack(path, 2)[0], torch.stack([h, *hidden], 2)[0, :, :, 0].flatten(2))


def _weight_figure(model: ContinuousDepth, paths: _Paths, where: str) -> Figure:
    chosen = _find_largest(paths.mean.diff(dim=0).abs().sum(0))
    names = [_name_weight(model.dynamics.moving, i) for i in chosen]
    shown = _array(paths.weights[:, :, chosen])
    speed = None if model.drift is None else model.drift.speed(model.prior)
    clock = 1.0 if speed is None else speed.item()
    prior = [math.sqrt(model.prior.variance(clock * model.clock(t))) / model.prior.scale for t in paths.grid]
    return picture(
        "weights",
        partial(plots.weight_paths, paths.grid, shown, prior=prior, names=names),
        says=f"Medians of weights along depth, in prior standard deviations, with 90 % bands of {len(shown)} drawn "
        f"paths: {_describe_changes(names, shown)}.",
        caption=f"Weights with the largest change of their mean{where}: median and 90 % band of {len(shown)} drawn "
        f"paths, in prior standard deviations. Grey: 90 % prior band, ±{1.645 * prior[0]:.3g} at depth 0.",
    )


def _hidden_figure(paths: _Paths, where: str) -> Figure:
    middle = paths.hidden.median(0).values
    chosen = _find_largest((middle[-1] - middle[0]).abs())
    names = [f"unit {i + 1}" for i in chosen]
    shown = _array(paths.hidden[:, :, chosen])
    return picture(
        "hidden",
        partial(plots.hidden_paths, paths.grid, shown, names=names),
        says=f"Medians of units of the hidden state along depth, with 90 % bands of {len(shown)} drawn paths: "
        f"{_describe_changes(names, shown)}.",
        caption=f"Units with the largest change{where}, for a row with all encoded columns at 0 (numbers at their "
        "mean, unknown categories): median and 90 % band.",
    )


def _find_largest(change: Tensor) -> list[int]:
    """Return the indices of the largest changes, in increasing order."""
    return sorted(torch.argsort(change, descending=True, stable=True)[:_SHOWN].tolist())


def _array(values: Tensor) -> Floats:
    array: Floats = values.double().cpu().numpy()
    return array


def _describe_changes(names: list[str], shown: Floats) -> str:
    """Describe the initial median, and the final median and 90 % interval, of each name."""
    ends = np.percentile(shown[:, -1], (50.0, 5.0, 95.0), axis=0).T.tolist()
    return "; ".join(
        f"{name} from {number(begin)} to {number(end)} (90 % from {number(low)} to {number(high)})"
        for name, begin, (end, low, high) in zip(names, np.median(shown[:, 0], axis=0).tolist(), ends, strict=True)
    )


def _name_weight(weights: tuple[Weight, ...], index: int) -> str:
    """Return the name of one of the moving weights: its tensor and its index in it."""
    for weight in weights:
        if index < weight.size:
            place = np.unravel_index(index, weight.shape)
            return f"{weight.name}[{', '.join(str(int(i)) for i in place)}]"
        index -= weight.size
    raise AssertionError(index)


def _profile_figure(estimator: Estimator) -> Figure:
    depth, rate = estimator.divergence_profile_.T
    most = int(np.argmax(rate))
    return picture(
        "profile",
        partial(plots.divergence_profile, depth, rate),
        says=f"Divergence of the paths from their prior along depth, in nats per unit of depth, in {len(depth)} steps: "
        f"between {number(rate.min())} and {number(rate.max())}, largest at depth {number(depth[most])}.",
        caption="Divergence of the posterior over paths from the prior along depth; large where the data changed the "
        "weights.",
    )


# -------------------------------------------------------------------------------------------------- accuracy


def _steps(model: ContinuousDepth) -> int:
    """Return the number of steps of predictions up to T."""
    (steps,) = round_steps(model, (model.options.predict_steps or model.options.steps,))
    return steps


@torch.no_grad()
def _accuracy_figure(estimator: Estimator, first: ContinuousDepth) -> Figure:
    """Return a plot of the distance between predictions with different numbers of steps, on standard normal rows."""
    steps = _steps(first)
    model = estimator.model_
    tried = [steps * 2**k for k in range(_DOUBLED + 1)]
    if not first.random_horizon and steps % 2 == 0:
        tried = [steps // 2, *tried]
    like = torch.empty(0, dtype=model.dtype, device=model.device)
    x = normal(like, as_generator(0), (_ROWS, estimator.schema_.width))
    draws = max(1, math.ceil(estimator.weight_draws / len(_networks(estimator))))
    outputs = [draw_coupled(model, x, draws, count, tried[-1], 0) for count in tried]
    distances = [hellinger(output, outputs[-1], estimator.likelihood_).mean().item() for output in outputs[:-1]]
    distances.append(0.0)
    chosen = distances[tried.index(steps)]
    return picture(
        "steps",
        partial(plots.accuracy, tried, distances, chosen=steps),
        says=f"Hellinger distance to predictions with {tried[-1]} steps: "
        + ", ".join(f"{number(distance)} with {count}" for count, distance in zip(tried, distances, strict=True))
        + f". Predictions use {steps} steps.",
        caption=f"Mean Hellinger distance between predictions with {steps} steps, the number in use, and with "
        f"{tried[-1]} steps on the same paths: {number(chosen, 2)} (0 equal, 1 disjoint). Measured on {_ROWS} rows of "
        "standard normal numbers.",
    )


def _numbers_table(estimator: Estimator, first: ContinuousDepth) -> TextTable:
    statistics = estimator.structure_.statistics
    initial = "Weight decay" if first.options.initial == "point" else "Divergence"
    rows = [
        ("Effective depth, residual layers", f"{estimator.effective_depth_:,}"),
        ("Steps of predictions, up to depth " + number(first.horizon), f"{_steps(first):,}"),
        ("Divergence of the paths from their prior, nats", number(statistics["path_divergence"])),
        (f"{initial} of the weights at depth 0, nats", number(statistics["initial_divergence"])),
        ("Change of mean weights along depth, prior standard deviations", number(statistics["roughness"])),
        ("Ratio of posterior to prior standard deviation at the end", percent(statistics["contraction"])),
        ("Number of weights that vary with depth", f"{first.moving:,}"),
    ]
    rates = [network.rate for network in _networks(estimator)]
    if first.prior.pace:
        gain = "Half the prior variance gained by weights per unit of depth"
        name = "Rate of the Ornstein-Uhlenbeck prior" if first.prior.rate else gain
        rows.append((name, number(math.fsum(rates) / len(rates))))
    means = f", means over {len(rates)} networks" if len(rates) > 1 else ""
    return TextTable(f"Statistics of the paths{means}", ("Quantity", "Value"), rows)


# ----------------------------------------------------------------------------------------------- the horizon


def _horizon_group(estimator: Estimator, first: ContinuousDepth) -> Group:
    """Return the posterior over the horizon with its prior, and with standard errors if it was stacked."""
    posterior = estimator.horizon_posterior_
    stacked = estimator.fit_diagnostics_.structure
    reached = torch.arange(round(max(posterior) / first.unit), dtype=torch.float64, device="cpu")
    log_prior = first.horizon_prior.log_prob(reached).exp().tolist()
    prior = {(k + 1) * first.unit: p for k, p in enumerate(log_prior)}
    errors = {k * first.unit: e for k, e in zip(stacked.numbers, stacked.errors, strict=True)} if stacked else {}
    mean = sum(depth * p for depth, p in posterior.items())
    error = f" ± {number(stacked.mean_error * first.unit, 2)}" if stacked else ""
    likely = sorted(posterior, key=lambda depth: -posterior[depth])[:3]
    largest = join_words([f"{percent(posterior[depth])} at depth {number(depth)}" for depth in likely])
    caption = f"{'Weight' if stacked else 'Probability'} of each horizon; mean {number(mean)}{error}."
    if stacked:
        caption += (
            f" The best-fitting Poisson law has a mean of {number(stacked.poisson_rate * first.unit)}; its total "
            f"log-likelihood on out-of-fold rows is {stacked.poisson_loss:.1f} nats lower."
        )
    figure = picture(
        "horizon",
        partial(plots.horizon_posterior, posterior, prior=prior, errors=errors or None),
        says=f"Posterior over the horizon as bars, {len(posterior)} depths from {number(min(posterior))} to "
        f"{number(max(posterior))}; largest: {largest}; mean {number(mean)}{error}.",
        caption=caption,
    )
    rows = [_horizon_row(estimator, i, depth, p) for i, (depth, p) in enumerate(posterior.items())]
    head = ("Horizon", "Weight", "Single", "Log density") if stacked else ("Horizon", "Posterior", "Prior")
    if stacked is None:
        rows = [(*row, percent(prior[depth])) for row, depth in zip(rows, posterior, strict=True)]
    return Group("", [figure], TextTable(f"{head[1]} of each horizon", head, rows, text=0))


def _horizon_row(estimator: Estimator, i: int, depth: float, p: float) -> tuple[str, ...]:
    stacked = estimator.fit_diagnostics_.structure
    if stacked is None:
        return (number(depth), percent(p))
    error, single, density = stacked.errors[i], stacked.single[i], stacked.log_density[i]
    return (number(depth), f"{percent(p)} ± {percent(error)}", percent(single), f"{density:.3f}")


def _horizon_figure(estimator: Estimator, first: ContinuousDepth) -> Figure:
    path = [row["mean_horizon"] * first.unit for row in estimator.history_]
    return picture(
        "horizons",
        partial(plots.horizon_path, estimator.history_, unit=first.unit),
        says=f"Mean horizon by epoch: from {number(path[0])} to {number(path[-1])}, with a minimum of "
        f"{number(min(path))} and a maximum of {number(max(path))}.",
        caption="Mean horizon by epoch. A trend at the end means that the posterior has not converged.",
    )


# -------------------------------------------------------------------------------------------------- findings


def findings(summary: FitSummary) -> Iterator[Finding]:
    """Yield the findings about networks of continuous depth."""
    networks = _networks(summary.estimator)
    if not networks:
        return
    first = networks[0]
    statistics = summary.estimator.structure_.statistics
    certain = list(_check_uncertainty(summary, first, statistics["contraction"]))
    yield from certain or _check_prior_paths(summary, first, statistics["path_divergence"])
    yield from _check_steps(summary, first)
    yield from _check_prior_scale(summary)
    if first.random_horizon and cast(CrossFitDiagnostics, summary.estimator.fit_diagnostics_).structure is None:
        yield from _check_bound(summary, first)
        yield from _check_movement(summary, first)


def _check_prior_paths(summary: FitSummary, model: ContinuousDepth, nats: float) -> Iterator[Finding]:
    if model.moving and nats < _PRIOR:
        yield Finding(
            "advice",
            "Posterior over weight paths equals the prior",
            f"Divergence of the paths from the prior: {nats:.2g} nats. The data did not change the weights along "
            "depth, and predictions include the prior noise of the paths.",
            f"Raise {summary.show('epochs')}, or set {summary.show('path__rate')} to a smaller number, which reduces "
            "the prior noise of the paths.",
        )


def _check_uncertainty(summary: FitSummary, model: ContinuousDepth, contraction: float) -> Iterator[Finding]:
    if contraction < _STILL and not (model.stochastic and not model.moving):
        gaussian = " or set path__initial='gaussian' (now 'point')" if summary.given["path__initial"] == "point" else ""
        yield Finding(
            "advice",
            "Almost no posterior uncertainty within a network",
            f"At the final depth the posterior standard deviation of the weights is {contraction:.1%} of the prior "
            "one. Each network is almost deterministic, and its epistemic uncertainty is underestimated.",
            f"Set {summary.show('path__rate')} to a larger number{gaussian}, or use several networks: "
            f"{summary.show('cv')}.",
        )


def _check_steps(summary: FitSummary, model: ContinuousDepth) -> Iterator[Finding]:
    needed = summary.estimator.effective_depth_
    steps = _steps(model)
    if needed > steps:
        yield Finding(
            "advice",
            "Too few solver steps in predictions",
            f"Predictions use {steps} steps. Doubling the number of steps changes them by more than 0.01 in Hellinger "
            f"distance up to {needed} steps.",
            f"Raise {summary.show('solver__predict_steps')} to {needed}; `accuracy` measures the effect.",
        )


def _check_prior_scale(summary: FitSummary) -> Iterator[Finding]:
    given = summary.given["weight_prior"]
    if isinstance(given, float | int) and given > _EXPLODES and summary.given["path__initial"] == "gaussian":
        yield Finding(
            "advice",
            "Weight prior is too wide for the depth",
            f"Its standard deviation is {given:.3g} / √fan-in. Above {_EXPLODES} / √fan-in, hidden states under the "
            "prior grow without bound along depth, and so may those of posterior paths away from the data.",
            f"Lower {summary.show('weight_prior')}.",
        )


def _check_bound(summary: FitSummary, model: ContinuousDepth) -> Iterator[Finding]:
    if model.options.initial == "point":
        yield Finding(
            "advice",
            "Horizon was inferred from a conditional bound",
            "The initial weights are point estimates. The bound is one on the evidence given these weights, less their "
            "weight decay, and it penalises a horizon only for its path.",
            "Set path__initial='gaussian' (now 'point'), or structure_from='held_out'.",
        )


def _check_movement(summary: FitSummary, model: ContinuousDepth) -> Iterator[Finding]:
    horizons = [row["mean_horizon"] for row in summary.history]
    path = sum(abs(b - a) for a, b in itertools.pairwise(horizons))
    if path < _MOVED:
        yield Finding(
            "problem",
            "Horizon posterior did not change in training",
            f"The mean horizon changed by at most {path * model.unit:.2g} from its initial value, depth "
            f"{horizons[0] * model.unit:.2g}.",
            f"Raise {summary.show(summary.law_option('rate'))} or {summary.show('epochs')}.",
        )
