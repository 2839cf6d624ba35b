"""Exact Gaussian process regression with one input, the reference for the toys of ``paths``."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.mixtures import Normal

__all__ = ["gaussian_process"]

Array = npt.NDArray[Any]


def gaussian_process(x: Array, y: Array) -> tuple[Callable[[Array], ContinuousPredictive], float]:
    """Fit a Gaussian process with a squared exponential kernel and noise to x and y (N,), by maximum evidence.

    Returns
    -------
    callable, float
        Function that predicts at x, and the log evidence in nats.
    """
    X, Y = torch.as_tensor(x), torch.as_tensor(y)
    log = torch.tensor([y.std(), 0.3 * np.abs(x).max(), 0.1 * y.std()]).double().log().requires_grad_()
    ascent = torch.optim.LBFGS([log], max_iter=200, line_search_fn="strong_wolfe")

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return (2.0 * log[0]).exp() * (-0.5 * ((a[:, None] - b) / log[1].exp()).square()).exp()

    def loss() -> Tensor:
        K = kernel(X, X) + (2.0 * log[2]).exp() * torch.eye(len(X), dtype=torch.float64)
        evidence: Tensor = torch.distributions.MultivariateNormal(torch.zeros_like(Y), K).log_prob(Y)
        return -evidence

    def closure() -> float:
        ascent.zero_grad()
        value = loss()
        value.backward()
        return value.item()

    ascent.step(closure)
    log = log.detach()
    noise = (2.0 * log[2]).exp()
    L = torch.linalg.cholesky(kernel(X, X) + noise * torch.eye(len(X), dtype=torch.float64))

    def predict(at: Array) -> ContinuousPredictive:
        across = torch.linalg.solve_triangular(L, kernel(X, torch.as_tensor(at)), upper=False)  # (N, B)
        mean = across.mT @ torch.linalg.solve_triangular(L, Y[:, None], upper=False)[:, 0]
        std = ((2.0 * log[0]).exp() + noise - across.square().sum(0)).sqrt()
        law = Normal(mean[None, :, None], std[None, :, None])
        return ContinuousPredictive(torch.zeros(1).double(), torch.zeros(1, dtype=torch.int64), law, squeeze=True)

    return predict, -float(loss())
