r"""Evidence lower bound of all families: in nats, for the whole data set, with named parts.

.. math:: \mathrm{ELBO} = \frac{N}{B} \sum_b \sum_s w_s \log p(y_b \mid f_{sb}) - T \, \mathrm{KL}_\text{weights}
          - \sum_{\text{others}} \mathrm{KL}

No term is averaged over weights, layers or batches. T = 1 is the model; T < 1 is a cold posterior. The attribute
``tempered`` of :class:`~fathomless.posterior.model.Draws` names the terms that T multiplies.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Draws
from fathomless.system.errors import DataError

__all__ = ["EvidenceBound", "elbo", "log_predictive"]


class EvidenceBound(NamedTuple):
    """Evidence lower bound and its parts, scalars in nats.

    Attributes
    ----------
    value : Tensor
        The bound: `log_likelihood` minus the (tempered) divergences.
    log_likelihood : Tensor
        Expected log-likelihood of the whole data set, estimated from the batch.
    divergence : mapping of str to Tensor
        Kullback-Leibler divergences by name, not tempered.
    """

    value: Tensor
    log_likelihood: Tensor
    divergence: Mapping[str, Tensor]


def elbo(
    draws: Draws,
    likelihood: Likelihood,
    y: Tensor,
    *,
    size: float,
    weight: Tensor | None = None,
    temperature: float | Tensor = 1.0,
) -> EvidenceBound:
    """Estimate the evidence lower bound of a data set from one batch.

    The mean over a partition of the data into equal batches equals the value on all data at once.

    Parameters
    ----------
    draws : Draws
        Networks evaluated on the batch.
    likelihood : Likelihood
        p(y | f).
    y : Tensor, shape (B, ...)
        Targets of the batch.
    size : float
        Number of rows N of the whole data set, or of the part of it that this batch represents.
    weight : Tensor, shape (B,), optional
        Sample weights.
    temperature : float or scalar Tensor
        Temperature T.

    Raises
    ------
    DataError
        If the likelihood does not return one number for each network and row.
    """
    log_p = _of_rows(draws, likelihood, y)
    per_draw = log_p.sum(1) if weight is None else log_p @ weight.to(log_p)  # (S,)
    log_likelihood = (size / len(y)) * (draws.log_weight.exp() @ per_draw)
    value = log_likelihood
    for name, term in draws.divergence.items():
        value = value - (temperature * term if name in draws.tempered else term)
    return EvidenceBound(value, log_likelihood, draws.divergence)


def log_predictive(draws: Draws, likelihood: Likelihood, y: Tensor) -> Tensor:
    """Return the log density of each row under the mixture, logsumexp_s (log w_s + log p(y_b | f_sb)), shape (B,)."""
    return torch.logsumexp(draws.log_weight[:, None] + _of_rows(draws, likelihood, y), 0)


def _of_rows(draws: Draws, likelihood: Likelihood, y: Tensor) -> Tensor:
    """Return the log density of each row under each draw, (S, B), and check its shape."""
    log_p = likelihood.log_prob(draws.f, y)
    if log_p.shape != draws.f.shape[:2]:
        raise DataError(
            f"log_prob of {type(likelihood).__name__} returned shape {tuple(log_p.shape)}; allowed is "
            f"{tuple(draws.f.shape[:2])}: one log density for each of S networks and B rows, summed over targets, not "
            "over rows"
        )
    return log_p
