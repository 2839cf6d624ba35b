r"""Iterates of minibatch gradient descent at a constant rate, from the trained weights, and two posteriors from them.

With :math:`\ell_n(\theta) = -\log p(y_n \mid f_\theta(x_n)) + \tfrac1{2N} \lVert \theta / s \rVert^2`, a step on a
minibatch B of S rows, drawn with replacement, is
:math:`\theta \leftarrow \theta - \frac{\epsilon}{S} \sum_{n \in B} \nabla \ell_n(\theta)`. Near a
minimum its stationary distribution is closest to the posterior for

.. math:: \epsilon = \frac{2 S}{N} \frac{P}{\mathrm{Tr}\, C}, \qquad C = \mathrm{Cov}_n\big(\nabla \ell_n(\theta)\big)

(Mandt, Hoffman and Blei 2017), and it is stable for :math:`\epsilon < 2 / \lambda`, the greatest eigenvalue of the
Hessian of the mean of ℓ. The rate is the smaller of the first value and 1/λ, both measured at the trained weights.

**SWAG** approximates the posterior by a Gaussian with the moments of the iterates. With their mean m, their variances v
and the last K deviations D from the running mean, a draw is

.. math:: \theta = m + \tfrac1{\sqrt2} v^{1/2} \circ \varepsilon_1 + \tfrac1{\sqrt{2 (K - 1)}} D \varepsilon_2 .

**Subspace inference** samples the posterior in the subspace :math:`m + Z z` of the leading principal components of the
iterates. The prior N(0, s²) of the weights, restricted to this subspace, is Gaussian in z. After whitening it is
N(0, I), and chains use elliptical slice sampling (:mod:`~fathomless.inference.mcmc.elliptical`). The likelihood is not
tempered.

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

__all__ = ["CHAINS", "choose_constant_rate", "collect_iterates", "draw_subspace", "draw_swag"]

_ROWS = 512  # number of rows on which the noise of gradients is measured
_POWER = 30  # power iterations for the largest eigenvalue
_CHUNK = 4096  # number of rows in one evaluation
CHAINS = 4  #: number of chains in the subspace; draws of one chain are consecutive
_WARM_UP = 200  # discarded steps of a chain
_THIN = 4  # steps between retained states

Objective = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _make_objective(network: nn.Module, likelihood: Likelihood, scale: Tensor, count: float) -> Objective:
    """Return the mean of ℓ over rows as a function of weights (P,), inputs, targets and sample weights."""

    def mean(theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        log_p = likelihood.log_prob(call_with(network, unflatten(network, theta), x)[None], y)[0]
        value: Tensor = 0.5 * (theta / scale).square().sum() / count - (weight * log_p).sum() / weight.sum()
        return value

    return mean


def _row_weights(rows: Rows) -> Tensor:
    return torch.ones_like(rows.x[:, 0]) if rows.weight is None else rows.weight


def choose_constant_rate(
    network: nn.Module, likelihood: Likelihood, rows: Rows, scale: Tensor, batch: int, seed: int
) -> float:
    """Return the learning rate ε.

    Parameters
    ----------
    network : nn.Module
        Trained network, (B, D) -> (B, K).
    likelihood : Likelihood
        p(y | f), with fixed parameters.
    rows : Rows
        Training rows.
    scale : Tensor, shape (P,)
        Prior standard deviations s.
    batch : int
        Minibatch size S.
    seed : int
        Seed of the random subset of rows, and of the initial vector of the power iteration.
    """
    generator = torch.Generator().manual_seed(seed)
    subset = rows.take(permutation(len(rows), generator, rows.x.device)[:_ROWS])
    mean = _make_objective(network, likelihood, scale, rows.count)
    theta = flatten(network)
    weight = _row_weights(subset)

    def row_gradient(x: Tensor, y: Tensor) -> Tensor:
        gradient: Tensor = grad(mean)(theta, x[None], y[None], torch.ones_like(theta[:1]))
        return gradient

    gradients = vmap(row_gradient)(subset.x, subset.y)
    share = weight / weight.sum()
    trace = float(share @ (gradients - share @ gradients).square().sum(1))  # of the covariance C
    point = theta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(mean(point, subset.x, subset.y, weight), point, create_graph=True)
    v = normal(theta, generator)
    eigenvalue = 0.0
    for _ in range(_POWER):  # power iteration with products of the Hessian and a vector
        v = v / v.norm()
        (product,) = torch.autograd.grad(slope, point, v, retain_graph=True)
        eigenvalue = float(product.norm())
        v = product
    best = 2.0 * batch / rows.count * len(theta) / max(trace, 1e-30)
    return min(best, 1.0 / max(eigenvalue, 1e-30))


def collect_iterates(
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
    """Return the weights after each pass except the first quarter of the passes, (n, P).

    Rows are drawn with probabilities proportional to their sample weights.

    Parameters
    ----------
    network, likelihood, rows, scale
        As of :func:`choose_constant_rate`; the network is not modified.
    rate : float
        Learning rate ε.
    batch : int
        Minibatch size S.
    passes : int
        Number of passes, each of ⌈N/S⌉ minibatches.
    seed : int
        Seed of the minibatches.

    Raises
    ------
    DivergenceError
        If the weights become non-finite.
    """
    generator = torch.Generator().manual_seed(seed)
    mean = _make_objective(network, likelihood, scale, rows.count)
    theta = flatten(network)
    slope = grad(mean)
    even = torch.ones_like(rows.x[:batch, 0])  # the sampling accounts for the weights of the rows
    cumulative = _row_weights(rows).double().cumsum(0)
    points = []
    for done in range(passes):
        for u in uniform(cumulative, generator, (math.ceil(len(rows) / batch), batch)) * cumulative[-1]:
            part = rows.take(torch.searchsorted(cumulative, u, right=True).clamp(max=len(rows) - 1))
            theta = theta - rate * slope(theta, part.x, part.y, even)
        if not bool(theta.isfinite().all()):
            raise DivergenceError(
                f"gradient descent at the constant rate {rate:.3g} diverged; look for extreme values in the table"
            )
        if done >= passes // 4:
            points.append(theta)
    return torch.stack(points)


def draw_swag(points: Tensor, rank: int, n: int, generator: torch.Generator) -> Tensor:
    """Draw weights (n, P) by SWAG from iterates (T, P), with the last `rank` deviations."""
    count = torch.arange(1, len(points) + 1, dtype=points.dtype, device=points.device)[:, None]
    running = points.cumsum(0) / count
    mean = running[-1]
    deviations = (points - running)[-rank:]  # (K, P)
    variance = (points.square().mean(0) - mean.square()).clamp(min=0.0)
    first = normal(points, generator, (n, points.shape[1]))
    second = normal(points, generator, (n, len(deviations)))
    low = second @ deviations / math.sqrt(2.0 * max(len(deviations) - 1, 1))
    drawn: Tensor = mean + first * (0.5 * variance).sqrt() + low
    return drawn


@torch.no_grad()
def draw_subspace(
    network: nn.Module,
    likelihood: Likelihood,
    rows: Rows,
    scale: Tensor,
    points: Tensor,
    dimensions: int,
    n: int,
    generator: torch.Generator,
) -> Tensor:
    """Draw weights (n, P) from the posterior in the subspace of the leading principal components of iterates (T, P)."""
    check_flattenable(network)
    mean = points.mean(0)
    axes = torch.linalg.svd(points - mean, full_matrices=False)[2][:dimensions]  # (D, P)
    scaled = axes / scale
    root = torch.linalg.cholesky(scaled @ scaled.mT)  # Cholesky factor of the prior precision of z
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
    value = log_likelihood(u)
    states = []
    per_chain = math.ceil(n / CHAINS)
    for step in range(_WARM_UP + per_chain * _THIN):
        u, value = elliptical_slice(u, value, log_likelihood, generator)
        if step >= _WARM_UP and step % _THIN == 0:
            states.append(weights(u))
    return torch.stack(states, 1).flatten(0, 1)[:n]
