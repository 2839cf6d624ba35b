r"""The accuracy knob: how much a prediction depends on the number of steps, and how many layers it needs.

Predictives at several numbers of steps are compared on the same paths: the noise of a step is what the noise of the
finer steps in it adds up to, :math:`\eta = e^{-\lambda\Delta/2} \eta_\text{left} + \eta_\text{right}`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fathomless.families.continuous.drift import PathLaw
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.processes import Transition, coarser
from fathomless.posterior.ensemble import Ensemble, list_members
from fathomless.posterior.likelihoods import Bernoulli, Likelihood
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.predictive import predictive
from fathomless.system.draws import normal
from fathomless.system.errors import DataError
from fathomless.system.rng import as_generator, fold_in

__all__ = ["Accuracy", "counts", "coupled", "effective_depth", "finest_of", "hellinger"]

_FINEST = 1024  # steps
_SAMPLES = 64  # of each row, where a distance is an integral


@dataclass(frozen=True)
class Accuracy:
    """What a number of steps gives.

    Attributes
    ----------
    steps : int
        On the horizon.
    distance : float
        Mean Hellinger distance to the predictive with the most steps, from 0 to 1.
    seconds : float
        Of a prediction.
    score : float or None
        Mean log predictive density in nats per row, in the units of the target, if targets are known.
    """

    steps: int
    distance: float
    seconds: float
    score: float | None = None


@torch.no_grad()
def coupled(model: Model, x: Tensor, n: int, steps: int, finest: int, seed: int) -> Draws:
    """Evaluate paths with some number of steps on the noise of a finer grid.

    Parameters
    ----------
    model : ContinuousDepth, or an ensemble of them
        The networks.
    x : Tensor, shape (B, ...)
        Rows.
    n : int
        Paths of each.
    steps, finest : int
        On the horizon; `steps` divides `finest`.
    seed : int
        Of the paths: the same for any number of steps.
    """
    if isinstance(model, Ensemble):
        each = []
        for i, member in enumerate(model.members):
            assert isinstance(member, Model)
            each.append(coupled(member, x, n, steps, finest, fold_in(seed, i)))
        log_weight = torch.cat([d.log_weight + w for d, w in zip(each, model.log_weight, strict=True)])
        return Draws(torch.cat([d.f for d in each]), log_weight, torch.cat([d.structure for d in each]), {})
    assert isinstance(model, ContinuousDepth)
    if finest % steps or {steps, finest} != set(counts(model, (steps, finest))):
        per = f" and multiples of the {model.horizons} horizons" if model.random_horizon else ""
        raise DataError(f"steps={steps} was given with a finest grid of {finest}; divisors of it{per} are allowed")
    noise = as_generator(seed)
    grid, fine = model.grid(steps), model.grid(finest)
    if not model.moving:
        return model.draw_on(x, n, grid, noise)
    law, times = model.law_of_paths(fine), (len(fine) - 1) // (len(grid) - 1)
    source = as_generator(fold_in(seed, "steps"))
    shape, like = (model.members, n, model.moving), model.mean

    def coarse(i: int) -> Tensor:
        eps = [normal(like, source, shape) for _ in range(times)]
        return _joined(law, i * times, eps)

    return model.draw_on(x, n, grid, noise, coarse)


def _joined(law: PathLaw, first: int, eps: Sequence[Tensor]) -> Tensor:
    """Return the noise of one step that stands for the fine steps from `first` on."""
    if len(eps) == 1:
        return eps[0]
    steps, U = law.steps[first : first + len(eps)], law.directions
    plain, fed = [step.plain for step in steps], [step.fed for step in steps if step.fed is not None]
    if not fed or U is None:
        return coarser(eps, *_moments(fed or plain))
    along = [one @ U for one in eps]
    across = [one - own @ U.mT for one, own in zip(eps, along, strict=True)]
    return coarser(across, *_moments(plain)) + coarser(along, *_moments(fed)) @ U.mT


def _moments(steps: Sequence[Transition]) -> tuple[Tensor, Tensor]:
    """Return decay and noise, stacked."""
    return torch.stack([step.decay for step in steps]), torch.stack([step.noise for step in steps])


@torch.no_grad()
def hellinger(a: Draws, b: Draws, likelihood: Likelihood, seed: int = 0) -> Tensor:
    """Return the Hellinger distance √(½ ∫ (√p − √q)²) between two predictives for each row, (B,).

    A sum over classes; else (and for several labels at once) the mean of ½ (1 − √(q / p))² over samples from p, whose
    error is a share of the square of the distance, however small that is; that of 1 − ∫ √(p q) would drown it.
    """
    several = isinstance(likelihood, Bernoulli) and likelihood.targets > 1
    if likelihood.discrete and not several:
        p, q = (torch.logsumexp(d.log_weight[:, None, None] + _class_log_probs(d, likelihood), 0) for d in (a, b))
        square = 0.5 * ((0.5 * p).exp() - (0.5 * q).exp()).square().sum(1)
    else:
        law = predictive(a, likelihood)
        y = law.sample(_SAMPLES, as_generator(seed))  # (M, B, T)
        y = torch.as_tensor(y, dtype=a.f.dtype, device=a.f.device).reshape(_SAMPLES, a.f.shape[1], -1)
        ratio = [0.5 * (_log_density(b, likelihood, one) - _log_density(a, likelihood, one)) for one in y]
        square = 0.5 * torch.expm1(torch.stack(ratio)).square().mean(0)
    return square.clamp(max=1.0).sqrt()


def _class_log_probs(draws: Draws, likelihood: Likelihood) -> Tensor:
    rows = draws.f.shape[1]
    classes = draws.f.shape[2] if likelihood.outputs > 1 else 2
    each = []
    for k in range(classes):
        y = torch.full((rows,), k, device=draws.f.device)
        each.append(likelihood.log_prob(draws.f, y if likelihood.outputs > 1 else y.to(draws.f.dtype)[:, None]))
    return torch.stack(each, 2)  # (S, B, K)


def _log_density(draws: Draws, likelihood: Likelihood, y: Tensor) -> Tensor:
    return torch.logsumexp(draws.log_weight[:, None] + likelihood.log_prob(draws.f, y), 0)


def effective_depth(
    model: Model, likelihood: Likelihood, x: Tensor, *, n: int = 16, eps: float = 0.01, seed: int = 0
) -> int:
    """Return the least number of steps 1, 2, 4, … (times the horizons, if these are random) that the posterior needs.

    That is the first n for which the predictives with n and with 2n steps, on the same paths, are closer than `eps` in
    mean Hellinger distance: how many residual layers would do. At most 512.

    Parameters
    ----------
    model : ContinuousDepth, or an ensemble of them
        The networks.
    likelihood : Likelihood
        p(y | f).
    x : Tensor, shape (B, ...)
        Rows.
    n : int
        Paths.
    eps : float
        Of the distance.
    seed : int
        Of the paths.
    """
    if not 0.0 < eps < 1.0:
        raise DataError(f"eps={eps} was given; a distance inside (0, 1) is allowed, for instance 0.01")
    (steps,) = counts(model, (1,))
    while 2 * steps < _FINEST:
        pair = [coupled(model, x, n, count, 2 * steps, fold_in(seed, "depth", steps)) for count in (steps, 2 * steps)]
        if hellinger(pair[0], pair[1], likelihood).mean().item() < eps:
            break
        steps *= 2
    return steps


def counts(model: Model, steps: Sequence[int]) -> tuple[int, ...]:
    """Return which numbers of steps grids have instead of some, ascending: random horizons are on all of them.

    Raises
    ------
    DataError
        If one of them is none.
    """
    if not steps or min(steps) < 1:
        raise DataError(f"steps={tuple(steps)} was given; whole numbers >= 1 are allowed, for instance (5, 10, 20, 40)")
    first = list_members(model)[0]
    assert isinstance(first, ContinuousDepth)
    multiple = first.horizons if first.random_horizon else 1
    return tuple(sorted({multiple * max(1, round(count / multiple)) for count in steps}))


def finest_of(steps: Sequence[int]) -> int:
    """Return the grid on which all numbers of steps are coarser ones.

    Raises
    ------
    DataError
        If it is too fine.
    """
    finest = math.lcm(*steps)
    if finest > _FINEST:
        raise DataError(
            f"steps={tuple(steps)} was given, whose common grid has {finest:,} steps; at most {_FINEST:,} are allowed: "
            "give numbers that divide each other, such as (5, 10, 20, 40)"
        )
    return finest
