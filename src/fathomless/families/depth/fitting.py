"""A law over depth with a rate, fitted to rows that the networks were not fitted to."""

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from fathomless.inference import stacking
from fathomless.posterior.laws import DepthLaw, QuantilePoisson, TruncatedPoisson
from fathomless.system.errors import DataError

__all__ = ["fitting"]


def fitting(law: DepthLaw) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
    """Return how a law with a rate is fitted to densities of rows under the depths of a support.

    The law's masses are restricted to the support and renormalised; its rate is found on a grid and by golden section,
    see :func:`fathomless.inference.stacking.best_on_path`.

    Raises
    ------
    DataError
        For a law without a rate.
    """
    if not isinstance(law, TruncatedPoisson | QuantilePoisson):
        raise DataError(f"{law} was given; laws with a rate can be fitted to held-out rows, or use depth_law='auto'")

    def fitted(log_density: Tensor, log_prior: Tensor, weight: Tensor | None) -> Tensor:
        size = len(log_prior)

        def masses(rate: float) -> Tensor:
            start = torch.tensor([dataclasses.replace(law, rate=rate).start(0)], dtype=torch.float64)
            support = law.support(start)
            q, _ = law.probs_and_grad(start, support)
            inside = torch.zeros(size, dtype=torch.float64)
            for k, p in zip(support, q.tolist(), strict=True):
                inside[min(k, size - 1)] += p
            return inside / inside.sum()

        _, q, _ = stacking.best_on_path(log_density, log_prior, weight, masses, 0.02, 2.0 * size)
        return q

    return fitted
