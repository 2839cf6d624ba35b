"""Fit of a parametric law over depth to out-of-fold log-likelihoods."""

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from fathomless.inference.out_of_fold import stacking
from fathomless.inference.out_of_fold.search import Law
from fathomless.posterior.laws import DepthLaw, QuantilePoisson, TruncatedPoisson
from fathomless.system.errors import DataError

__all__ = ["make_law_fit"]


def make_law_fit(law: DepthLaw, min_depth: int) -> Law:
    """Return a function that fits the rate of a law to the log densities of rows at each depth.

    The law over the offset ℓ − `min_depth` is restricted to the given depths ℓ and renormalised. Its rate maximises the
    penalised log-likelihood of the mixture, on a grid and then by golden-section search, see
    :func:`fathomless.inference.out_of_fold.stacking.fit_path`.

    Raises
    ------
    DataError
        If the law has no rate.
    """
    if not isinstance(law, TruncatedPoisson | QuantilePoisson):
        raise DataError(
            f"{law} was given; only laws with a rate can be fitted to held-out rows: use one, or depth_law='auto'"
        )

    def fit(depths: Sequence[int], log_density: Tensor, log_prior: Tensor, weight: Tensor | None) -> Tensor:
        offsets = [depth - min_depth for depth in depths]

        def masses(rate: float) -> Tensor:
            start = torch.tensor([dataclasses.replace(law, rate=rate).start(0)], dtype=torch.float64, device="cpu")
            support = law.support(start)
            mass = dict(zip(support, law.probs_and_grad(start, support)[0].tolist(), strict=True))
            return torch.tensor([mass.get(k, 0.0) for k in offsets], dtype=torch.float64, device="cpu")

        _, q, _ = stacking.fit_path(log_density, log_prior, weight, masses, 0.02, 2.0 * (max(offsets) + 1))
        return q

    return fit
