"""Deployment of a fitted network of unbounded depth: fewer depths, one depth, the mean of all, or early exit."""

import copy

import torch
from torch import Tensor, nn

from fathomless.families.depth.model import UnboundedDepth
from fathomless.families.depth.parts import mean_head
from fathomless.nn.architectures import CombinedHeads
from fathomless.nn.gaussian_head import GaussianHead
from fathomless.nn.layers import BayesianLayer
from fathomless.system.errors import DataError, DepthError
from fathomless.system.torch_state import evaluating

__all__ = ["classify_early", "compress", "mean_network", "point_depth"]


def compress(model: UnboundedDepth, eps: float = 0.0) -> UnboundedDepth:
    """Return a copy with the fewest depths that hold 1 − `eps` of the posterior, renormalised.

    Unused layers and heads are deleted. The total variation distance between the old and the new predictive
    distribution is at most `eps` for every input.

    Raises
    ------
    DepthError
        If the model has several members or sampled weights.
    """
    _refuse_several(model, "compress")
    if not 0.0 <= eps < 1.0:
        raise DataError(f"eps={eps} was given; 0 <= eps < 1 is allowed")
    largest: dict[int, float] = {}
    for depth, p in sorted(model.depth_posterior().items(), key=lambda item: -item[1]):
        if p > 0.0 and (sum(largest.values()) < 1.0 - eps or not largest):
            largest[depth] = p
    total = sum(largest.values())
    return model.restrict({depth: largest[depth] / total for depth in sorted(largest)})


def point_depth(model: UnboundedDepth, depth: int) -> nn.Module:
    """Return a copy of the network of one depth as a plain ``nn.Sequential``.

    A head with a posterior is replaced by its mean, without its uncertainty.

    Raises
    ------
    DepthError
        If the depth is outside the support, the model has several members, or weights are not point estimates.
    """
    _refuse_drawn(model, "point_depth", heads=True)
    if str(depth) not in model.heads or depth > len(model.layers):
        raise DepthError(f"depth={depth} was given; depths with a head are {sorted(map(int, model.heads))}")
    return model.network(depth)


def mean_network(model: UnboundedDepth) -> nn.Module:
    """Return a network that computes Σ q(ℓ) (V_ℓ h_ℓ + c_ℓ) by one product with the concatenated hidden states.

    If the mean of the likelihood is the output of the head, this is the predictive mean over all depths. Heads with a
    posterior are replaced by their means.

    Raises
    ------
    DepthError
        If a head is not linear, the model has several members, or weights are not point estimates.
    """
    _refuse_drawn(model, "mean_network", heads=True)
    posterior = model.depth_posterior()
    heads = [mean_head(model.heads[str(depth)]) for depth in posterior]
    linear = [head for head in heads if isinstance(head, nn.Linear) and head.bias is not None]
    if model.readout is not None or len(linear) < len(heads):
        raise DepthError("mean_network was called on a model whose heads are not all nn.Linear with a bias")
    layers = [copy.deepcopy(model.layers[str(k)]) for k in range(1, model.depth + 1)]
    return CombinedHeads(layers, linear, posterior).eval()


@torch.no_grad()
def classify_early(model: UnboundedDepth, x: Tensor) -> tuple[Tensor, Tensor]:
    """Classify rows with early exit, at the first depth after which deeper networks cannot change the class.

    After depth ℓ, with partial mixture Σ_{k ≤ ℓ} q(k) p(y | Ω_k) and remaining mass r = 1 − Σ_{k ≤ ℓ} q(k), a row
    exits when the probabilities of its two most likely classes differ by more than r plus a margin for rounding. The
    class is that of the full mixture.

    Returns
    -------
    label, depth : int64 Tensors, shape (B,)
        Class of each row, and the depth of its exit.

    Raises
    ------
    DepthError
        If the model has several members, or weights are not point estimates.
    """
    _refuse_drawn(model, "classify_early", heads=False)
    posterior = model.depth_posterior()
    label = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    stopped = torch.full_like(label, model.depth)
    rows = torch.arange(len(x), device=x.device)  # rows that have not exited
    h = x
    mixture = torch.zeros((), device=x.device)
    remaining = 1.0  # posterior mass of deeper networks
    with evaluating(model):
        for depth in range(model.depth + 1):
            h = model.layers[str(depth)](h) if depth else h
            if depth not in posterior:
                continue
            remaining -= posterior[depth]
            f = model.heads[str(depth)](h)
            f = f if model.readout is None else model.readout(f)
            if f.shape[-1] < 2:
                raise DepthError(
                    "classify_early was called on a network with one output; it needs logits of all classes"
                )
            mixture = mixture + posterior[depth] * f.double().softmax(-1)  # (rows, K)
            top = mixture.topk(2, -1).values
            # the margin covers rounding errors of the outputs and of the sum, too
            margin = max(remaining, 0.0) + 64.0 * torch.finfo(f.dtype).eps
            done = (top[:, 0] - top[:, 1] > margin) | (depth == model.depth)
            label[rows] = mixture.argmax(-1)
            stopped[rows] = depth
            rows, h, mixture = rows[~done], h[~done], mixture[~done]
            if len(rows) == 0:
                break
    return label, stopped


def _refuse_several(model: object, what: str) -> None:
    """Raise an error for an ensemble or sampled networks."""
    if not isinstance(model, UnboundedDepth):
        raise DepthError(
            f"{what} was called on {type(model).__name__}; it needs one network: cv=1, n_restarts=1, weights='map'"
        )


def _refuse_drawn(model: UnboundedDepth, what: str, *, heads: bool) -> None:
    """Raise an error for a model with drawn weights; `heads` allows heads with a posterior."""
    _refuse_several(model, what)
    checked = [head for head in model.heads.values() if not (heads and isinstance(head, GaussianHead))]
    if any(isinstance(part, BayesianLayer) for part in (*model.layers.values(), *checked, model.readout)):
        needed = "weights='map'" if heads else "weights='map' and last_layer='point'"
        raise DepthError(f"{what} was called on a model whose weights are drawn; it needs {needed}")
