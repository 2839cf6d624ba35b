r"""Gradient descent on batches at a constant rate, around what was trained: its iterates, and two posteriors from them.

With :math:`\ell_n(\theta) = -\log p(y_n \mid f_\theta(x_n)) + \tfrac1{2N} \lVert \theta / s \rVert^2`, a step on a
batch B of S rows, drawn anew from all of them, is
:math:`\theta \leftarrow \theta - \frac{\epsilon}{S} \sum_{n \in B} \nabla \ell_n(\theta)`. Near a
minimum its stationary law is closest to the posterior for

.. math:: \epsilon = \frac{2 S}{N} \frac{P}{\mathrm{Tr}\, C}, \qquad C = \mathrm{Cov}_n\big(\nabla \ell_n(\theta)\big)

(Mandt, Hoffman and Blei 2017), and it is stable for :math:`\epsilon < 2 / \lambda`, the greatest eigenvalue of the
Hessian of the mean of ℓ. The rate is the smaller of the first and 1/λ, both measured where the training has ended.

**SWAG** takes the iterates' moments for those of a normal law: with their mean m, their variances v and the last K
deviations D from the running mean,

.. math:: \theta = m + \tfrac1{\sqrt2} v^{1/2} \circ \varepsilon_1 + \tfrac1{\sqrt{2 (K - 1)}} D \varepsilon_2 .

**Subspace inference** keeps the plane :math:`m + Z z` of the first principal components of the iterates and samples the
posterior in it. The prior N(0, s²) of weights, restricted to the plane, is normal in z; in its own units it is N(0, I),
and chains move by :mod:`~fathomless.inference.mcmc.elliptical`. The likelihood is not tempered.

References
----------
W. J. Maddox, T. Garipov, P. Izmailov, D. Vetrov and A. G. Wilson, "A Simple Baseline for Bayesian Uncertainty in Deep
Learning", NeurIPS 2019. P. Izmailov, W. J. Maddox, P. Kirichenko, T. Garipov, D. Vetrov and A. G. Wilson, "Subspace
Inference for Bayesian Deep Learning", UAI 2019. S. Mandt, M. D. Hoffman and D. M. Blei, "Stochastic Gradient Descent as
Approximate Bayesian Inference", JMLR 2017.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from fathomless.data.rows import Rows
from fathomless.inference.mcmc.elliptical import elliptical_slice
from fathomless.nn.flat import FlatNetworks, check_flattenable, flatten, unflatten
from fathomless.nn.stateless import call_with
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system.draws import normal, permutation, uniform
from fathomless.system.errors import DivergenceError

__all__ = ["CHAINS", "constant_rate", "iterates", "subspace_draws", "swag_draws"]

_ROWS = 512  # by which the noise of gradients is measured
_POWER = 30  # iterations for the greatest eigenvalue
_CHUNK = 4096  # rows evaluated at once
CHAINS = 4  #: that draw in the plane; draws of one follow each other
_WARM_UP, _THIN = 200, 4

Objective = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _objective(network: nn.Module, likelihood: Likelihood, scale: Tensor, count: float) -> Objective:
    """Return the mean of ℓ over rows as a function of weights (P,), inputs, targets, and how often each row counts."""

    def mean(theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        log_p = likelihood.log_prob(call_with(network, unflatten(network, theta), x)[None], y)[0]
        value: Tensor = 0.5 * (theta / scale).square().sum() / count - (weight * log_p).sum() / weight.sum()
        return value

    return mean


def _weight(rows: Rows) -> Tensor:
    return torch.ones_like(rows.x[:, 0]) if rows.weight is None else rows.weight


def constant_rate(
    network: nn.Module, likelihood: Likelihood, rows: Rows, scale: Tensor, batch: int, seed: int
) -> float:
    """Return ε.

    Parameters
    ----------
    network : nn.Module
        (B, D) -> (B, K), trained.
    likelihood : Likelihood
        p(y | f), held.
    rows : Rows
        Those that it was trained on.
    scale : Tensor, shape (P,)
        s.
    batch : int
        S.
    seed : int
        Of the rows that are looked at, and of the first vector of the power iteration.
    """
    generator = torch.Generator().manual_seed(seed)
    some = rows.take(permutation(len(rows), generator, rows.x.device)[:_ROWS])
    mean, theta, weight = _objective(network, likelihood, scale, rows.count), flatten(network), _weight(some)

    def of_row(x: Tensor, y: Tensor) -> Tensor:
        found: Tensor = grad(mean)(theta, x[None], y[None], torch.ones_like(theta[:1]))
        return found

    each = vmap(of_row)(some.x, some.y)
    share = weight / weight.sum()
    spread = float(share @ (each - share @ each).square().sum(1))
    point = theta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(mean(point, some.x, some.y, weight), point, create_graph=True)
    v = normal(theta, generator)
    greatest = 0.0
    for _ in range(_POWER):
        v = v / v.norm()
        (along,) = torch.autograd.grad(slope, point, v, retain_graph=True)
        greatest, v = float(along.norm()), along
    best = 2.0 * batch / rows.count * len(theta) / max(spread, 1e-30)
    return min(best, 1.0 / max(greatest, 1e-30))


def iterates(
    network: nn.Module,
    likelihood: Likelihood,
    rows: Rows,
    scale: Tensor,
    *,
    rate: float,
    batch: int,
    passes: int,
    seed: int,
) -> Tensor:
    """Return the weights after each pass but the first quarter of them, (n, P).

    Rows that count more are drawn more often.

    Parameters
    ----------
    network, likelihood, rows, scale
        As of :func:`constant_rate`; the network stays as it is.
    rate : float
        ε.
    batch : int
        S.
    passes : int
        Of as many batches as cover the rows.
    seed : int
        Of the batches.

    Raises
    ------
    DivergenceError
        If the weights are not finite any more.
    """
    generator = torch.Generator().manual_seed(seed)
    mean, theta = _objective(network, likelihood, scale, rows.count), flatten(network)
    slope, even = grad(mean), torch.ones_like(rows.x[:batch, 0])
    until = _weight(rows).double().cumsum(0)
    found = []
    for done in range(passes):
        for at in uniform(until, generator, (math.ceil(len(rows) / batch), batch)) * until[-1]:
            part = rows.take(torch.searchsorted(until, at, right=True).clamp(max=len(rows) - 1))
            theta = theta - rate * slope(theta, part.x, part.y, even)
        if not bool(theta.isfinite().all()):
            raise DivergenceError(
                f"descent at the constant rate {rate:.3g} left all bounds; look for huge values in the table"
            )
        if done >= passes // 4:
            found.append(theta)
    return torch.stack(found)


def swag_draws(points: Tensor, rank: int, n: int, generator: torch.Generator) -> Tensor:
    """Draw weights (n, P) by SWAG from iterates (T, P); the last `rank` deviations are used."""
    count = torch.arange(1, len(points) + 1, dtype=points.dtype, device=points.device)[:, None]
    running = points.cumsum(0) / count
    mean, deviations = running[-1], (points - running)[-rank:]  # (K, P)
    variance = (points.square().mean(0) - mean.square()).clamp(min=0.0)
    first = normal(points, generator, (n, points.shape[1]))
    second = normal(points, generator, (n, len(deviations)))
    low = second @ deviations / math.sqrt(2.0 * max(len(deviations) - 1, 1))
    drawn: Tensor = mean + first * (0.5 * variance).sqrt() + low
    return drawn


@torch.no_grad()
def subspace_draws(
    network: nn.Module,
    likelihood: Likelihood,
    rows: Rows,
    scale: Tensor,
    points: Tensor,
    dimensions: int,
    n: int,
    generator: torch.Generator,
) -> Tensor:
    """Draw weights (n, P) from the posterior in the plane of the first principal components of iterates (T, P)."""
    check_flattenable(network)
    mean = points.mean(0)
    axes = torch.linalg.svd(points - mean, full_matrices=False)[2][:dimensions]  # (D, P)
    scaled = axes / scale
    root = torch.linalg.cholesky(scaled @ scaled.mT)  # of the prior's precision in z
    centre = -torch.cholesky_solve((scaled @ (mean / scale))[:, None], root)[:, 0]
    flat = FlatNetworks(network, CHAINS)

    def weights(u: Tensor) -> Tensor:
        z = centre + torch.linalg.solve_triangular(root.mT, u.mT, upper=True).mT
        theta: Tensor = mean + z @ axes
        return theta

    def log_likelihood(u: Tensor) -> Tensor:
        flat.weights.copy_(weights(u))
        total = torch.zeros_like(u[:, 0])
        for part in rows.parts(_CHUNK):
            log_p = likelihood.log_prob(flat(part.x), part.y)
            total = total + (log_p.sum(1) if part.weight is None else log_p @ part.weight.to(log_p))
        return total

    u = (-(centre @ root)).expand(CHAINS, -1).contiguous()  # z = 0, the mean of the iterates
    value, kept = log_likelihood(u), []
    each = math.ceil(n / CHAINS)
    for step in range(_WARM_UP + each * _THIN):
        u, value = elliptical_slice(u, value, log_likelihood, generator)
        if step >= _WARM_UP and step % _THIN == 0:
            kept.append(weights(u))
    return torch.stack(kept, 1).flatten(0, 1)[:n]
