"""The posterior over the latent space by sampling: the reference for the mixture that variational inference finds.

Chains begin at the centres of the mixture and move by elliptical slice sampling, with the decoder a point: the prior of
a code is N(0, I), so nothing has to be tuned. Chains that stay in modes of their own say nothing of how much these
weigh; each keeps the weight of the law that it began in, and R-hat tells.
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

__all__ = ["sample_latent", "stands_still"]

_CHUNK = 4096  # rows evaluated at once
_EACH = 300  # transitions before the first state that is kept, and states that are kept


@torch.no_grad()
def sample_latent(
    model: ProjectedNetwork, likelihood: Likelihood, rows: Rows, seed: int, each: int = _EACH
) -> dict[str, float]:
    """Give a model drawn points in the place of normal laws.

    Parameters
    ----------
    model : ProjectedNetwork
        With q(z), and a decoder that is a point. Its laws get the mean and the standard deviation of their chains.
    likelihood : Likelihood
        p(y | f), held as it is.
    rows : Rows
        The table.
    seed : int
        Of the chains.
    each : int
        Transitions before the first state that is kept, and states that are kept, of each chain.

    Returns
    -------
    dict
        "chains", "draws" of each, and "rhat" and "ess" of the log-likelihood.
    """

    def log_likelihood(z: Tensor) -> Tensor:
        weights, total = model.moments(z)[0], z.new_zeros(len(z))
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
    told = torch.stack(values, 1).double().cpu().numpy()  # (C, n)
    found = diagnose(told)
    rhat = math.nan if found.rhat is None else found.rhat
    return {"chains": len(z), "draws": each, "rhat": rhat, "ess": found.ess_bulk}


def stands_still(sampling: Mapping[str, Any]) -> str:
    """Return the warning that chains over the latent space did not move, or ""."""
    rhat = sampling.get("rhat", 1.0)
    if math.isfinite(rhat):
        return ""
    return (
        f"the R-hat of the log-likelihood along the chains over the latent space is {rhat}: they stand still, or it is "
        "not finite, so their agreement is unknown; use the mixture (latent_posterior)"
    )
