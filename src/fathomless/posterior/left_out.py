"""Laws of training rows under the posterior without each of them, as plain values.

They are computed from states of Markov chains, which are draws from the posterior of all rows
(:mod:`fathomless.inference.mcmc.left_out`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["LeftOutLaws", "mix_left_out"]


@dataclass(frozen=True)
class LeftOutLaws:
    """Leave-one-out laws of N training rows; float64 on the CPU, in units of the encoded target.

    Attributes
    ----------
    mean, std, log_density : Tensors, shape (N, T)
        Mean and standard deviation of the law of each target, and its log density at the target.
    unreliable : Tensor, shape (N,)
        Share of the law that is unreliable, since its importance weights have k̂ above 0.7: 0 or 1 for one posterior.
    """

    mean: Tensor
    std: Tensor
    log_density: Tensor
    unreliable: Tensor


def mix_left_out(laws: Sequence[LeftOutLaws], weights: Sequence[float]) -> LeftOutLaws:
    """Return the mixture of the laws of several posteriors, such as one for each structure.

    Parameters
    ----------
    laws : sequence of LeftOutLaws
        Laws of the same rows.
    weights : sequence of float
        Weights of the posteriors; they sum to 1.
    """
    used = [(law, weight) for law, weight in zip(laws, weights, strict=True) if weight > 0.0]
    weight = torch.tensor([weight for _, weight in used], dtype=torch.float64, device="cpu")[:, None, None]
    means = torch.stack([law.mean for law, _ in used])
    mean = (weight * means).sum(0)
    variance = (weight * (torch.stack([law.std for law, _ in used]).square() + (means - mean).square())).sum(0)
    log_density = torch.logsumexp(weight.log() + torch.stack([law.log_density for law, _ in used]), 0)
    unreliable = (weight[:, :, 0] * torch.stack([law.unreliable for law, _ in used])).sum(0)
    return LeftOutLaws(mean, variance.sqrt(), log_density, unreliable)
