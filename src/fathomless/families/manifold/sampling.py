"""Sampled posterior over the latent space: a reference for the variational mixture.

Chains start at the centres of the mixture and move by elliptical slice sampling, with a deterministic decoder. The
prior of a code is N(0, I), so there is no step size to tune. Chains that stay in different modes do not estimate the
weights of the modes: each chain keeps the weight of the component in which it started, and R-hat is large.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.families.manifold.model import ProjectedNetwork
from fathomless.inference.mcmc.diagnostics import diagnose
from fathomless.inference.mcmc.elliptical import elliptical_slice
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system.rng import as_generator

__all__ = ["sample_latent", "warn_if_stuck"]

_CHUNK = 4096  # rows evaluated at once
_EACH = 300  # burn-in transitions, and states kept, of each chain


@torch.no_grad()
def sample_latent(
    model: ProjectedNetwork, likelihood: Likelihood, rows: Rows, seed: int, each: int = _EACH
) -> dict[str, float]:
    """Replace the mixture of a model by points sampled from the posterior over the latent space.

    Parameters
    ----------
    model : ProjectedNetwork
        Model with q(z) and a deterministic decoder, changed in place. The components get the means and standard
        deviations of their chains.
    likelihood : Likelihood
        p(y | f), fixed.
    rows : Rows
        The table.
    seed : int
        Seed of the chains.
    each : int
        Number of burn-in transitions, and of states kept, of each chain.

    Returns
    -------
    dict
        Number of "chains", of "draws" per chain, and "rhat" and "ess" of the log-likelihood.
    """

    def log_likelihood(z: Tensor) -> Tensor:
        weights = model.moments(z)[0]
        total = z.new_zeros(len(z))
        for part in rows.parts(_CHUNK):
            log_p = likelihood.log_prob(model.network(weights, part.x), part.y)  # (C, B)
            total = total + (log_p.sum(1) if part.weight is None else log_p @ part.weight.to(log_p))
        return total

    generator = as_generator(seed)
    z = model.law.means.detach().clone()
    value = log_likelihood(z)
    points, values = [], []
    for step in range(2 * each):
        z, value = elliptical_slice(z, value, log_likelihood, generator)
        if step >= each:
            points.append(z)
            values.append(value)
    model.law.take_points(torch.stack(points, 1))
    trace = torch.stack(values, 1).double().cpu().numpy()  # (C, n)
    diagnosis = diagnose(trace)
    rhat = math.nan if diagnosis.rhat is None else diagnosis.rhat
    return {"chains": len(z), "draws": each, "rhat": rhat, "ess": diagnosis.ess_bulk}


def warn_if_stuck(sampling: Mapping[str, Any]) -> str:
    """Return a warning if chains over the latent space did not move, else ""."""
    rhat = sampling.get("rhat", 1.0)
    if math.isfinite(rhat):
        return ""
    return (
        f"the R-hat of the log-likelihood along the chains over the latent space is {rhat}: the chains did not move, "
        "or the log-likelihood is not finite, so convergence is unknown; use latent_posterior='mixture'"
    )
