"""What a page shows of a path of weights over continuous depth, and what the doctor says of it."""

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
from fathomless.families.continuous.accuracy import counts, coupled, hellinger
from fathomless.families.continuous.dynamics import Weight
from fathomless.families.continuous.estimator import ContinuousDepthClassifier, ContinuousDepthRegressor
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.solve import follow, parted
from fathomless.plots.page import Figure, Group, StructureSection, TextTable, listed, number, percent, picture
from fathomless.posterior.ensemble import list_members
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics
from fathomless.system.draws import normal
from fathomless.system.rng import as_generator

__all__ = ["findings", "page"]

_SHOWN = 3  # weights, and units
_DRAWN = (16, 200)  # paths behind a picture, at least and at most
_NUMBERS = 20_000_000  # weights of all of them at all times, about
_FINE = 20  # steps on T at least, in pictures of paths
_ROWS = 64  # by which numbers of steps are compared
_DOUBLED = 3  # times
_PRIOR = 0.01  # nats along the path, below which it is the prior's
_STILL = 0.002  # posterior by prior deviation, below which weights are known
_EXPLODES = 1.5  # prior standard deviation, times √fan-in
_MOVED = 0.1  # steps of the horizon, back and forth

_ABOUT = (
    "A network is one path of weights: they change along depth, and the hidden state flows by them. A prediction is an "
    "average over drawn paths."
)
_NOTE = (
    "Where there were no rows, doubt is too small, most of all that of a single network: intervals hold for rows like "
    "those of the training."
)
_WEIGHTS = (
    "A weight says how much of the prediction a horizon should have, so that the mixture of all of them predicts best "
    "the rows that its networks have not seen. It is no probability that the network is so deep, and neighbours trade "
    "weight by chance."
)
_GAUSSIAN = (
    "What is maximised, the ELBO, is a lower bound on the log evidence of the whole data set, in nats, estimated with "
    "the paths drawn in training."
)
_POINT = (
    "The weights at depth 0 are point estimates. What is maximised is, in nats, a lower bound on the log evidence of "
    "the whole data set given them, less their decay: no bound on the evidence, and not to be compared with those of "
    "other models."
)
_QUADRATURE = "The divergence of the paths is a quadrature: what is maximised is near a bound, and none."
_TEMPERED = "The temperature is not 1, so the divergence counts for more or less than the model says: it is no bound."

Estimator = ContinuousDepthClassifier | ContinuousDepthRegressor
Floats = npt.NDArray[np.float64]


def page(estimator: Estimator) -> StructureSection:
    """Return where weights and hidden states go, at which price, and how exactly; and the horizon, if it is random."""
    first, *others = networks = _networks(estimator)
    where = f", in the first of {len(networks)} networks" if others else ""
    about = [_ABOUT]
    groups, learning, figures = [], [], []
    if first.random_horizon:
        groups.append(_horizon(estimator, first))
        learning.append(_horizon_path(estimator, first))
        if estimator.fit_diagnostics_.structure is not None:
            about += [f"The summary counts horizons in units of {number(first.unit)} of depth.", _WEIGHTS]
    seen = _followed(first, estimator.schema_.width)
    if first.moving:
        figures += [_weight_paths(first, seen, where), _profile(estimator)]
    figures += [_hidden_paths(seen, where), _accuracy(estimator, first)]
    groups.append(Group("Paths" if first.random_horizon else "", figures, _numbers(estimator, first)))
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


class _Seen(NamedTuple):
    """Times (T,), mean weights (T, M) and drawn ones (S, T, M) in prior deviations, hidden states (S, T, H)."""

    grid: tuple[float, ...]
    mean: Tensor
    weights: Tensor
    hidden: Tensor


@torch.no_grad()
def _followed(model: ContinuousDepth, inputs: int) -> _Seen:
    """Follow drawn paths for the row whose encoded columns are all 0; pictures have more steps than predictions."""
    steps = _steps(model)
    grid = model.grid(steps * math.ceil(_FINE / steps))
    paths = min(max(_NUMBERS // (len(grid) * model.scale.numel()), _DRAWN[0]), _DRAWN[1]) if model.stochastic else 1
    start, path = model.path(paths, grid, as_generator(0))
    moving = sum(weight.size for weight in model.dynamics.moving)
    fixed = parted(start[..., moving:] * model.scale[moving:], model.dynamics.still)
    h = model.dynamics.enter(fixed, model.mean.new_zeros(1, 1, inputs))
    h = h.expand(1, paths, *h.shape[2:])
    weights = [parted(w * model.scale[:moving], model.dynamics.moving) for w in path]
    hidden = follow(model.dynamics, weights, h, grid, range(1, len(grid)), model.options.solver)
    mean = torch.stack(model.path(1, grid, None)[1])[:, 0, 0]
    return _Seen(grid, mean, torch.stack(path, 2)[0], torch.stack([h, *hidden], 2)[0, :, :, 0].flatten(2))


def _weight_paths(model: ContinuousDepth, seen: _Seen, where: str) -> Figure:
    chosen = _farthest(seen.mean.diff(dim=0).abs().sum(0))
    names = [_name(model.dynamics.moving, i) for i in chosen]
    shown = _array(seen.weights[:, :, chosen])
    speed = None if model.drift is None else model.drift.speed(model.prior)
    clock = 1.0 if speed is None else speed.item()
    prior = [math.sqrt(model.prior.variance(clock * t)) / model.prior.scale for t in seen.grid]
    return picture(
        "weights",
        partial(plots.weight_paths, seen.grid, shown, prior=prior, names=names),
        says=f"Medians of weights along depth, in prior standard deviations, with 90 % of {len(shown)} drawn paths: "
        f"{_ways(names, shown)}.",
        caption=f"The weights whose mean moves farthest{where}: medians and 90 % of {len(shown)} drawn paths. Grey: "
        f"90 % before the data, up to ±{1.645 * prior[0]:.3g} at depth 0.",
    )


def _hidden_paths(seen: _Seen, where: str) -> Figure:
    middle = seen.hidden.median(0).values
    chosen = _farthest((middle[-1] - middle[0]).abs())
    names, shown = [f"unit {i + 1}" for i in chosen], _array(seen.hidden[:, :, chosen])
    return picture(
        "hidden",
        partial(plots.hidden_paths, seen.grid, shown, names=names),
        says=f"Medians of units of the hidden state along depth, with 90 % of {len(shown)} drawn paths: "
        f"{_ways(names, shown)}.",
        caption=f"The units that go farthest{where}, for a row whose encoded columns are 0: numbers at their average, "
        "no category that is known.",
    )


def _farthest(way: Tensor) -> list[int]:
    """Return which of W go farthest, in their order."""
    return sorted(torch.argsort(way, descending=True, stable=True)[:_SHOWN].tolist())


def _array(values: Tensor) -> Floats:
    array: Floats = values.double().cpu().numpy()
    return array


def _ways(names: list[str], shown: Floats) -> str:
    """Say where each goes."""
    ends = np.percentile(shown[:, -1], (50.0, 5.0, 95.0), axis=0).T.tolist()
    return "; ".join(
        f"{name} from {number(begin)} to {number(end)}, there between {number(low)} and {number(high)}"
        for name, begin, (end, low, high) in zip(names, np.median(shown[:, 0], axis=0).tolist(), ends, strict=True)
    )


def _name(weights: tuple[Weight, ...], index: int) -> str:
    """Name one of all moving weights: its tensor and its place there."""
    for weight in weights:
        if index < weight.size:
            place = np.unravel_index(index, weight.shape)
            return f"{weight.name}[{', '.join(str(int(i)) for i in place)}]"
        index -= weight.size
    raise AssertionError(index)


def _profile(estimator: Estimator) -> Figure:
    depth, rate = estimator.divergence_profile_.T
    most = int(np.argmax(rate))
    return picture(
        "profile",
        partial(plots.divergence_profile, depth, rate),
        says=f"Divergence of the paths from their prior along depth, in nats per unit of depth, in {len(depth)} steps: "
        f"between {number(rate.min())} and {number(rate.max())}, most at depth {number(depth[most])}.",
        caption="What the paths cost along depth: where the data changed the network.",
    )


# ----------------------------------------------------------------------------------------------- how exactly


def _steps(model: ContinuousDepth) -> int:
    """Return on how many steps up to T predictions are made."""
    (steps,) = counts(model, (model.options.predict_steps or model.options.steps,))
    return steps


@torch.no_grad()
def _accuracy(estimator: Estimator, first: ContinuousDepth) -> Figure:
    """Compare the predictions that are made with those by more steps, on rows of normal numbers."""
    steps, model = _steps(first), estimator.model_
    tried = [steps * 2**k for k in range(_DOUBLED + 1)]
    if not first.random_horizon and steps % 2 == 0:
        tried = [steps // 2, *tried]
    like = torch.empty(0, dtype=model.dtype, device=model.device)
    x = normal(like, as_generator(0), (_ROWS, estimator.schema_.width))
    draws = max(1, math.ceil(estimator.weight_draws / len(_networks(estimator))))
    each = [coupled(model, x, draws, count, tried[-1], 0) for count in tried]
    far = [hellinger(one, each[-1], estimator.likelihood_).mean().item() for one in each[:-1]] + [0.0]
    own = far[tried.index(steps)]
    return picture(
        "steps",
        partial(plots.accuracy, tried, far, chosen=steps),
        says=f"Hellinger distance to the predictions by {tried[-1]} steps: "
        + ", ".join(f"{number(d)} by {count}" for count, d in zip(tried, far, strict=True))
        + f". Predictions are made by {steps} steps.",
        caption=f"Predictions take {steps} steps; their distance to those by {tried[-1]}, on the same paths, is "
        f"{number(own, 2)} (0: the same, 1: apart). For {_ROWS} rows of standard normal numbers in place of columns.",
    )


def _numbers(estimator: Estimator, first: ContinuousDepth) -> TextTable:
    told = estimator.structure_.statistics
    rows = [
        ("Residual layers that would do (effective depth)", f"{estimator.effective_depth_:,}"),
        ("Steps of predictions, up to depth " + number(first.horizon), f"{_steps(first):,}"),
        ("Divergence of the paths from their prior, nats", number(told["path_divergence"])),
        (
            "Decay of the weights at depth 0, nats"
            if first.options.initial == "point"
            else "Divergence of the weights at depth 0, nats",
            number(told["initial_divergence"]),
        ),
        ("How far mean weights move, prior standard deviations", number(told["roughness"])),
        ("Posterior by prior standard deviation, at the end", percent(told["contraction"])),
        ("Weights that move with depth", f"{first.moving:,}"),
    ]
    each = [network.rate for network in _networks(estimator)]
    if first.prior.pace:
        gained = "Half the variance that weights gain per unit of depth"
        name = "Rate by which weights are forgotten with depth" if first.prior.rate else gained
        rows.append((name, number(math.fsum(each) / len(each))))
    networks = len(each)
    means = f", means over {networks} networks" if networks > 1 else ""
    return TextTable(f"The paths in numbers{means}", ("Quantity", "Value"), rows)


# ----------------------------------------------------------------------------------------------- the horizon


def _horizon(estimator: Estimator, first: ContinuousDepth) -> Group:
    """Return the posterior over the horizon with its prior, and its errors if rows have weighed it."""
    posterior, found = estimator.horizon_posterior_, estimator.fit_diagnostics_.structure
    reached = torch.arange(round(max(posterior) / first.unit), dtype=torch.float64, device="cpu")
    log_prior = first.horizon_prior.log_prob(reached).exp().tolist()
    prior = {(k + 1) * first.unit: p for k, p in enumerate(log_prior)}
    errors = {k * first.unit: e for k, e in zip(found.numbers, found.errors, strict=True)} if found else {}
    mean = sum(depth * p for depth, p in posterior.items())
    error = f" ± {number(found.mean_error * first.unit, 2)}" if found else ""
    likely = sorted(posterior, key=lambda depth: -posterior[depth])[:3]
    said = join_words([f"{percent(posterior[depth])} at depth {number(depth)}" for depth in likely])
    caption = f"{'Weight' if found else 'Probability'} of each horizon. Their mean is {number(mean)}{error}."
    if found:
        caption += (
            f" The Poisson law that fits best has a mean of {number(found.poisson_rate * first.unit)} and "
            f"predicts these rows worse by {found.poisson_loss:.1f} nats in all."
        )
    figure = picture(
        "horizon",
        partial(plots.horizon_posterior, posterior, prior=prior, errors=errors or None),
        says=f"Bars: the posterior of the depth at which the state is read, {len(posterior)} depths from "
        f"{number(min(posterior))} to {number(max(posterior))}, most of it {said}; mean {number(mean)}{error}.",
        caption=caption,
    )
    rows = [_horizon_row(estimator, i, depth, p) for i, (depth, p) in enumerate(posterior.items())]
    head = ("Horizon", "Weight", "Single", "Log density") if found else ("Horizon", "Posterior", "Prior")
    if found is None:
        rows = [(*row, percent(prior[depth])) for row, depth in zip(rows, posterior, strict=True)]
    return Group("", [figure], TextTable(f"{head[1]} of each horizon", head, rows, text=0))


def _horizon_row(estimator: Estimator, i: int, depth: float, p: float) -> tuple[str, ...]:
    found = estimator.fit_diagnostics_.structure
    if found is None:
        return (number(depth), percent(p))
    error, single, density = found.errors[i], found.single[i], found.log_density[i]
    return (number(depth), f"{percent(p)} ± {percent(error)}", percent(single), f"{density:.3f}")


def _horizon_path(estimator: Estimator, first: ContinuousDepth) -> Figure:
    path = [row["mean_horizon"] * first.unit for row in estimator.history_]
    return picture(
        "horizons",
        partial(plots.horizon_path, estimator.history_, unit=first.unit),
        says=f"Mean horizon against the epoch. It goes from {number(path[0])} to {number(path[-1])}, never below "
        f"{number(min(path))} or above {number(max(path))}.",
        caption="If the mean still moves at the end, the horizon has not come to rest.",
    )


# ------------------------------------------------------------------------------------------------ the doctor


def findings(summary: FitSummary) -> Iterator[Finding]:
    """Say what a second pair of eyes would of a path of weights."""
    networks = _networks(summary.estimator)
    if not networks:
        return
    first, told = networks[0], summary.estimator.structure_.statistics
    yield from list(_certain(summary, first, told["contraction"])) or _as_before(
        summary, first, told["path_divergence"]
    )
    yield from _coarse(summary, first)
    yield from _explodes(summary)
    if first.random_horizon and cast(CrossFitDiagnostics, summary.estimator.fit_diagnostics_).structure is None:
        yield from _given_its_start(summary, first)
        yield from _not_moved(summary, first)


def _as_before(summary: FitSummary, model: ContinuousDepth, nats: float) -> Iterator[Finding]:
    if model.moving and nats < _PRIOR:
        yield Finding(
            "advice",
            "The paths of the weights are those of the prior",
            f"Their divergence from it is {nats:.2g} nats: the data did not change how weights move with depth, and "
            "predictions have the prior's noise of the paths.",
            f"Raise {summary.now('epochs')}, or set {summary.now('path__rate')} to a smaller number: the prior of "
            "paths then has less noise.",
        )


def _certain(summary: FitSummary, model: ContinuousDepth, contraction: float) -> Iterator[Finding]:
    if contraction < _STILL and not (model.stochastic and not model.moving):
        gaussian = " or set path__initial='gaussian' (now 'point')" if summary.given["path__initial"] == "point" else ""
        yield Finding(
            "advice",
            "Hardly anything is uncertain within a network",
            f"At the end of depth the weights have {contraction:.1%} of the prior's standard deviation: each network "
            "is an ordinary one, and its part of the uncertainty is no estimate of what it does not know.",
            f"Set {summary.show('path__rate')} to a larger number{gaussian}, or let several networks disagree: "
            f"{summary.show('cv')}.",
        )


def _coarse(summary: FitSummary, model: ContinuousDepth) -> Iterator[Finding]:
    needed, steps = summary.estimator.effective_depth_, _steps(model)
    if needed > steps:
        yield Finding(
            "advice",
            "Predictions take fewer steps than they need",
            f"They are made by {steps} steps, and change by more than 0.01 in Hellinger distance until there are "
            f"{needed}.",
            f"Raise {summary.show('solver__predict_steps')} to {needed}; `accuracy` says what that brings.",
        )


def _explodes(summary: FitSummary) -> Iterator[Finding]:
    given = summary.given["weight_prior"]
    if isinstance(given, float | int) and given > _EXPLODES and summary.given["path__initial"] == "gaussian":
        yield Finding(
            "advice",
            "The prior of the weights explodes with depth",
            f"Its standard deviation is {given:.3g} / √fan-in; beyond {_EXPLODES} draws from the "
            "prior grow without bounds along depth, and so may paths that the data do not hold.",
            f"Lower {summary.show('weight_prior')}.",
        )


def _given_its_start(summary: FitSummary, model: ContinuousDepth) -> Iterator[Finding]:
    if model.options.initial == "point":
        yield Finding(
            "advice",
            "The bound that decided about the horizon is given the initial weights",
            "They are point estimates: the bound is one on the evidence given them, less their decay, and charges a "
            "horizon for its path alone.",
            "Set path__initial='gaussian' (now 'point'), or let rows decide: structure_from='held_out'.",
        )


def _not_moved(summary: FitSummary, model: ContinuousDepth) -> Iterator[Finding]:
    horizons = [row["mean_horizon"] for row in summary.history]
    path = sum(abs(b - a) for a, b in itertools.pairwise(horizons))
    if path < _MOVED:
        yield Finding(
            "problem",
            "The horizon has not moved",
            f"Its mean stayed within {path * model.unit:.2g} of depth {horizons[0] * model.unit:.2g}, where it began; "
            "the data had no say in it.",
            f"Raise {summary.show(summary.law_option('rate'))} or {summary.show('epochs')}.",
        )
