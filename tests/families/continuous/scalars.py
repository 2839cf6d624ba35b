"""One weight whose chains have known laws: moments by quadrature, exact for a drift that is linear in the weight."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fathomless.families.continuous.drift import PathLaw, PosteriorDrift
from fathomless.families.continuous.grids import Grid, uniform_grid
from fathomless.families.continuous.processes import OrnsteinUhlenbeck, Process, Transition, transition

DOUBLE = torch.float64
SIGMA = 0.5  # of the example of one weight, whose rate is 1 and whose start is 0.7
START = 0.7
PRIOR = OrnsteinUhlenbeck(rate=1.0, scale=SIGMA / math.sqrt(2.0))
NODES = torch.tensor([-math.sqrt(3.0), 0.0, math.sqrt(3.0)], dtype=DOUBLE)  # exact up to degree 5
SHARES = torch.tensor([1.0, 4.0, 1.0], dtype=DOUBLE) / 6.0


def scalar(
    grid: Grid,
    *,
    feedback: float | Sequence[float] = 0.0,
    shift: float | Sequence[float] = 0.0,
    kind: str = "exact",
    prior: Process = PRIOR,
    network: Callable[[float, Tensor], Tensor] | None = None,
) -> PathLaw:
    """Return the law of one weight, in its own units, with a κ and a shift, of all steps or of each equal one."""
    kappas, shifts = (own if isinstance(own, Sequence) else [own] for own in (feedback, shift))
    pieces = max(len(kappas), len(shifts))
    fed = "diagonal" if any(kappas) else "shift"
    drift = PosteriorDrift(1, fed, rank=1, width=1.0 / pieces, pieces=pieces, seed=0, dtype=DOUBLE)
    with torch.no_grad():
        for p, value in zip(drift.shift, [*shifts] * (pieces // len(shifts)), strict=True):
            p.fill_(value / prior.diffusion)
        for p, value in zip(drift.log_rate, [*kappas] * (pieces // len(kappas)), strict=False):
            p.fill_(parameter(value))
    with torch.no_grad():
        law = drift.law(prior, grid, torch.zeros(1, 1, dtype=DOUBLE), kind=kind)
    return replace(law, network=network)


def parameter(feedback: float) -> float:
    """Return the value of the parameter that gives a feedback κ."""
    return math.log1p(feedback) / 5.0


def feedback_of(p: Tensor, prior: Process) -> Tensor:
    """Return κ of a parameter."""
    return torch.expm1(5.0 * p).clamp(min=-0.9 * prior.rate)


def prior_steps(grid: Grid, kind: str, prior: Process = PRIOR) -> Transition:
    """Return the prior's transitions, (steps,)."""
    dt = torch.tensor(grid, dtype=DOUBLE).diff()
    return transition(prior, torch.zeros_like(dt), dt, kind=kind)


def drifts(
    size: int,
    kind: str,
    *,
    rank: int = 2,
    pieces: int = 4,
    seed: int = 0,
    spread: float = 0.0,
    dtype: torch.dtype = DOUBLE,
    learned: bool = False,
) -> PosteriorDrift:
    """Return a drift of `pieces` pieces on [0, 1] whose parameters are moved from their start by `spread`."""
    drift = PosteriorDrift(
        size, kind, rank=rank, width=1.0 / pieces, pieces=pieces, seed=seed, dtype=dtype, learned=learned
    )
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in drift.named_parameters():
            own = spread * (0.2 if "log_" in name else 1.0)
            p += own * torch.randn(p.shape, generator=g, dtype=dtype)
    return drift


@torch.no_grad()
def steps_of(law: PathLaw, w: Tensor, i: int) -> tuple[Tensor, Tensor]:
    """Return the means after step i from some weights, and its divergence given each of them."""
    after, change = law.step(i, w, torch.zeros_like(w))
    return after[0, :, 0], law.closed(i, change)[0]


@dataclass(frozen=True)
class Moments:
    """A chain of one weight: its divergence from the prior in nats, and mean and variance after each step."""

    divergence: float
    mean: list[float]
    variance: list[float]


def moments(law: PathLaw, mean: float = START, variance: float = 0.0) -> Moments:
    """Follow mean and variance of one weight, and add up the expected divergence of the steps."""
    total, means, variances = 0.0, [mean], [variance]
    for i in range(len(law.grid) - 1):
        after, charged = steps_of(law, (mean + math.sqrt(variance) * NODES)[None, :, None], i)
        total += float(SHARES @ charged)
        noise = law.spread(i, torch.ones(1, 1, 1, dtype=DOUBLE)).square().item()
        mean = float(SHARES @ after)
        variance = float(SHARES @ (after - mean).square()) + noise
        means.append(mean)
        variances.append(variance)
    return Moments(total, means, variances)


# ---- one observation of the last weight, y ~ N(w_T, 0.3²)

OBSERVED, NOISE = 1.3, 0.3
#: log p(y) with exact transitions, for any number of steps
EVIDENCE = -2.8526


def log_normal(value: float, mean: float, variance: float) -> float:
    return -0.5 * ((value - mean) ** 2 / variance + math.log(2.0 * math.pi * variance))


def evidence(kind: str, grid: Grid) -> float:
    """Return log p(y) of the chain."""
    prior = moments(scalar(grid, kind=kind))
    return log_normal(OBSERVED, prior.mean[-1], prior.variance[-1] + NOISE**2)


def bound(law: PathLaw) -> float:
    """Return E log p(y | w_T) less the divergence of the path."""
    q = moments(law)
    expected = log_normal(OBSERVED, q.mean[-1], NOISE**2) - 0.5 * q.variance[-1] / NOISE**2
    return expected - q.divergence


def bridge(phi: Sequence[float] | Tensor = (1.0, 1.0, 0.0, 0.0)) -> Callable[[float, Tensor], Tensor]:
    """Return σ u(t, w), which at (1, 1, 0, 0) is the drift of the exact posterior in continuous time.

    u = σ e^{−θr} (φ₁ y − φ₂ w e^{−θr}) / (0.09 + v_r) + φ₃ sin πt + 0.3 φ₄ tanh w, r = T − t.
    """
    a, b, c, d = phi if isinstance(phi, Sequence) else phi[:, :, None, None].unbind(1)

    def drift(t: float, w: Tensor) -> Tensor:
        left = math.exp(-(1.0 - t))
        width = NOISE**2 + SIGMA**2 * (1.0 - left**2) / 2.0
        u = SIGMA * left * (a * OBSERVED - b * w * left) / width
        return SIGMA * (u + c * math.sin(math.pi * t) + 0.3 * d * w.tanh())

    return drift


def each_gradient(
    phi: Sequence[float], steps: int, estimator: str, members: int, seed: int, *, weight: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return divergence less log-likelihood of one path each, (members,), and their gradients in φ, (members, 4).

    Chains are those of Euler and Maruyama. `weight` multiplies the stochastic term of "sticking"; "frozen" is the same
    with the gradient stopped in the weights that the drift is applied to, too.
    """
    own = torch.tensor([list(phi)], dtype=DOUBLE).repeat(members, 1).requires_grad_()
    law = scalar(uniform_grid(1.0, steps), kind="euler", network=bridge(own))
    stopped, noise = replace(law, network=bridge(own.detach())), prior_steps(law.grid, "euler").noise
    g = torch.Generator().manual_seed(seed)
    w, total = torch.full((members, 1, 1), START, dtype=DOUBLE), torch.zeros(members, 1, dtype=DOUBLE)
    for i in range(steps):
        eps = torch.randn(members, 1, 1, generator=g, dtype=DOUBLE)
        after, change = law.step(i, w, eps)
        closed = law.closed(i, change)
        match estimator:
            case "closed":
                total = total + closed
            case "full":
                total = total + law.full(i, w, after)
            case "sticking":
                total = total + closed + weight * (law.full(i, w, after, stopped) - closed)
            case "frozen":
                u = stopped.change(i, w.detach()) / noise[i]
                total = total + closed + (u * eps).sum(-1)
        w = after
    log_p = -0.5 * ((OBSERVED - w[:, :, 0]) / NOISE).square() - math.log(NOISE * math.sqrt(2.0 * math.pi))
    value = (total - log_p)[:, 0]
    (gradient,) = torch.autograd.grad(value.sum(), own)
    return value.detach(), gradient


def standard_error(samples: Tensor) -> Tensor:
    """Return that of the mean along the first axis."""
    return samples.std(0) / math.sqrt(len(samples))
