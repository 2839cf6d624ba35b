r"""Accuracy of predictions as a function of the number of solver steps, and the effective depth of a network.

Predictive distributions with different numbers of steps are compared on the same paths: the noise of a step is the sum
of the noise of the finer steps in it, :math:`\eta = e^{-\lambda\Delta/2} \eta_\text{left} + \eta_\text{right}`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fathomless.families.continuous.drift import PathLaw
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.processes import Transition, coarsen
from fathomless.posterior.ensemble import Ensemble, list_members
from fathomless.posterior.likelihoods import Bernoulli, ClassLikelihood, Likelihood
from fathomless.posterior.model import Draws, Model
from fathomless.posterior.predictive import predictive
from fathomless.system.draws import normal
from fathomless.system.errors import DataError
from fathomless.system.rng import as_generator, fold_in

__all__ = ["Accuracy", "draw_coupled", "effective_depth", "find_common_steps", "hellinger", "round_steps"]

_FINEST = 1024  # maximum number of steps
_SAMPLES = 64  # samples of each row in a Monte Carlo estimate of a distance


@dataclass(frozen=True)
class Accuracy:
    """Accuracy and running time of predictions with some number of steps.

    Attributes
    ----------
    steps : int
        Number of steps on the horizon.
    distance : float
        Mean Hellinger distance to the predictive distribution with the most steps, from 0 to 1.
    seconds : float
        Running time of a prediction.
    score : float or None
        Mean log predictive density in nats per row, in the units of the target; None without targets.
    """

    steps: int
    distance: float
    seconds: float
    score: float | None = None


@torch.no_grad()
def draw_coupled(model: Model, x: Tensor, n: int, steps: int, finest: int, seed: int) -> Draws:
    """Evaluate paths with some number of steps, with the noise of a finer grid.

    Parameters
    ----------
    model : ContinuousDepth, or an ensemble of them
        The networks.
    x : Tensor, shape (B, ...)
        Rows.
    n : int
        Number of paths of each network.
    steps, finest : int
        Numbers of steps on the horizon; `steps` divides `finest`.
    seed : int
        Seed of the paths, which are the same for any number of steps.
    """
    if isinstance(model, Ensemble):
        draws = []
        for i, member in enumerate(model.members):
            assert isinstance(member, Model)
            draws.append(draw_coupled(member, x, n, steps, finest, fold_in(seed, i)))
        log_weight = torch.cat([d.log_weight + w for d, w in zip(draws, model.log_weight, strict=True)])
        return Draws(torch.cat([d.f for d in draws]), log_weight, torch.cat([d.structure for d in draws]), {})
    assert isinstance(model, ContinuousDepth)
    if finest % steps or {steps, finest} != set(round_steps(model, (steps, finest))):
        per = f" and multiples of the {model.horizons} horizons" if model.random_horizon else ""
        raise DataError(f"steps={steps} was given with a finest grid of {finest}; divisors of it{per} are allowed")
    noise = as_generator(seed)
    grid, fine = model.grid(steps), model.grid(finest)
    if not model.moving:
        return model.draw_on(x, n, grid, noise)
    law = model.law_of_paths(fine)
    times = (len(fine) - 1) // (len(grid) - 1)
    source = as_generator(fold_in(seed, "steps"))
    shape = (model.members, n, model.moving)

    def coarse(i: int) -> Tensor:
        fine_steps = [k for k in range(i * times, (i + 1) * times) if law.varies(k)]
        eps = [normal(model.mean, source, shape) for _ in fine_steps]
        return _coarsen_noise(law, fine_steps, eps)

    return model.draw_on(x, n, grid, noise, coarse)


def _coarsen_noise(law: PathLaw, fine_steps: Sequence[int], eps: Sequence[Tensor]) -> Tensor:
    """Return the noise of one step that replaces some fine steps with noise `eps`."""
    if len(eps) == 1:
        return eps[0]
    steps = [law.steps[i] for i in fine_steps]
    U = law.directions
    plain = [step.plain for step in steps]
    feedback = [step.feedback for step in steps if step.feedback is not None]
    if not feedback or U is None:
        return coarsen(eps, *_stack_moments(feedback or plain))
    # feedback changes the transition along U alone, so that both parts are coarsened separately
    along = [e @ U for e in eps]
    across = [e - part @ U.mT for e, part in zip(eps, along, strict=True)]
    return coarsen(across, *_stack_moments(plain)) + coarsen(along, *_stack_moments(feedback)) @ U.mT


def _stack_moments(steps: Sequence[Transition]) -> tuple[Tensor, Tensor]:
    """Stack decay and noise of transitions."""
    return torch.stack([step.decay for step in steps]), torch.stack([step.noise for step in steps])


@torch.no_grad()
def hellinger(a: Draws, b: Draws, likelihood: Likelihood, seed: int = 0) -> Tensor:
    """Return the Hellinger distance √(½ ∫ (√p − √q)²) between two predictive distributions for each row, (B,).

    For classes it is an exact sum. Otherwise, and for several labels, it is the mean of ½ (1 − √(q / p))² over samples
    from p. The Monte Carlo error of this estimator is proportional to the squared distance, whereas that of
    1 − ∫ √(p q) would exceed small distances.
    """
    several = isinstance(likelihood, Bernoulli) and likelihood.targets > 1
    if likelihood.discrete and not several:
        p, q = (torch.logsumexp(d.log_weight[:, None, None] + _class_log_probs(d, likelihood), 0) for d in (a, b))
        square = 0.5 * ((0.5 * p).exp() - (0.5 * q).exp()).square().sum(1)
    else:
        law = predictive(a, likelihood)
        y = law.sample(_SAMPLES, as_generator(seed))  # (M, B, T)
        y = torch.as_tensor(y, dtype=a.f.dtype, device=a.f.device).reshape(_SAMPLES, a.f.shape[1], -1)
        ratio = [0.5 * (_log_density(b, likelihood, sample) - _log_density(a, likelihood, sample)) for sample in y]
        square = 0.5 * torch.expm1(torch.stack(ratio)).square().mean(0)
    return square.clamp(max=1.0).sqrt()


def _class_log_probs(draws: Draws, likelihood: Likelihood) -> Tensor:
    rows = draws.f.shape[1]
    log_probs = []
    for k in range(likelihood.classes if isinstance(likelihood, ClassLikelihood) else 2):
        y = torch.full((rows,), k, device=draws.f.device)
        of_classes = isinstance(likelihood, ClassLikelihood)
        log_probs.append(likelihood.log_prob(draws.f, y if of_classes else y.to(draws.f.dtype)[:, None]))
    return torch.stack(log_probs, 2)  # (S, B, K)


def _log_density(draws: Draws, likelihood: Likelihood, y: Tensor) -> Tensor:
    return torch.logsumexp(draws.log_weight[:, None] + likelihood.log_prob(draws.f, y), 0)


def effective_depth(
    model: Model, likelihood: Likelihood, x: Tensor, *, n: int = 16, eps: float = 0.01, seed: int = 0
) -> int:
    """Return the number of residual layers that the posterior needs: 1, 2, 4, … (times the number of random horizons).

    It is the first n for which predictions with n and with 2n steps on the same paths differ by less than `eps` in mean
    Hellinger distance, and at most 512.

    Parameters
    ----------
    model : ContinuousDepth, or an ensemble of them
        The networks.
    likelihood : Likelihood
        p(y | f).
    x : Tensor, shape (B, ...)
        Rows.
    n : int
        Number of paths.
    eps : float
        Threshold of the mean Hellinger distance.
    seed : int
        Seed of the paths.
    """
    if not 0.0 < eps < 1.0:
        raise DataError(f"eps={eps} was given; a distance inside (0, 1) is allowed, for instance 0.01")
    (steps,) = round_steps(model, (1,))
    while 2 * steps < _FINEST:
        pair = [
            draw_coupled(model, x, n, count, 2 * steps, fold_in(seed, "depth", steps)) for count in (steps, 2 * steps)
        ]
        if hellinger(pair[0], pair[1], likelihood).mean().item() < eps:
            break
        steps *= 2
    return steps


def round_steps(model: Model, steps: Sequence[int]) -> tuple[int, ...]:
    """Round numbers of steps to those of valid grids, which include all random horizons; return them in order.

    Raises
    ------
    DataError
        If there are no numbers, or one is below 1.
    """
    if not steps or min(steps) < 1:
        raise DataError(f"steps={tuple(steps)} was given; whole numbers >= 1 are allowed, for instance (5, 10, 20, 40)")
    first = list_members(model)[0]
    assert isinstance(first, ContinuousDepth)
    multiple = first.horizons if first.random_horizon else 1
    return tuple(sorted({multiple * max(1, round(count / multiple)) for count in steps}))


def find_common_steps(steps: Sequence[int]) -> int:
    """Return the number of steps of the coarsest grid that refines the grids of all numbers of steps.

    Raises
    ------
    DataError
        If it has more than 1,024 steps.
    """
    finest = math.lcm(*steps)
    if finest > _FINEST:
        raise DataError(
            f"steps={tuple(steps)} was given, whose common grid has {finest:,} steps; at most {_FINEST:,} are allowed: "
            "give numbers that divide each other, such as (5, 10, 20, 40)"
        )
    return finest
