"""What a fitted network of unbounded depth is deployed as: fewer depths, one depth, the mean of all, or early exit."""

import copy

import torch
from torch import Tensor, nn

from fathomless.families.depth.model import UnboundedDepth
from fathomless.families.depth.parts import mean_of
from fathomless.nn.architectures import CombinedHeads
from fathomless.nn.gaussian_head import GaussianHead
from fathomless.nn.layers import BayesianLayer
from fathomless.system.errors import DataError, DepthError

__all__ = ["classify_early", "compress", "mean_network", "point_depth"]


def compress(model: UnboundedDepth, eps: float = 0.0) -> UnboundedDepth:
    """Return a copy with the fewest depths that hold 1 − `eps` of the posterior, renormalised.

    What these depths do not use is dropped. The total variation between the old and the new predictive
    distribution is at most `eps` for every input.

    Raises
    ------
    DepthError
        If the model is not one network: of several members, or of sampled weights.
    """
    _refuse_several(model, "compress")
    if not 0.0 <= eps < 1.0:
        raise DataError(f"eps={eps} was given; 0 <= eps < 1 is allowed")
    kept: dict[int, float] = {}
    for depth, p in sorted(model.depth_posterior().items(), key=lambda item: -item[1]):
        if p > 0.0 and (sum(kept.values()) < 1.0 - eps or not kept):
            kept[depth] = p
    total = sum(kept.values())
    return model.restricted({depth: kept[depth] / total for depth in sorted(kept)})


def point_depth(model: UnboundedDepth, depth: int) -> nn.Module:
    """Return the ordinary network of one depth, as a plain ``nn.Sequential`` that shares nothing with the model.

    Of a head with a posterior it has the mean, and says nothing of the doubt.

    Raises
    ------
    DepthError
        If the depth is outside the support, the model is not one network, or weights are not point estimates.
    """
    _refuse_drawn(model, "point_depth", heads=True)
    if str(depth) not in model.heads or depth > len(model.layers):
        raise DepthError(f"depth {depth} was asked for; depths with a head are {sorted(map(int, model.heads))}")
    return model.network(depth)


def mean_network(model: UnboundedDepth) -> nn.Module:
    """Return a network that computes Σ q(ℓ) (V_ℓ h_ℓ + c_ℓ) by one matrix product on the joined hidden states.

    For linear heads and a likelihood whose mean is the head's output this is the predictive mean of all depths. Of
    heads with a posterior it has the means.

    Raises
    ------
    DepthError
        If a head is not linear, the model is not one network, or weights are not point estimates.
    """
    _refuse_drawn(model, "mean_network", heads=True)
    posterior = model.depth_posterior()
    heads = [mean_of(model.heads[str(depth)]) for depth in posterior]
    linear = [head for head in heads if isinstance(head, nn.Linear) and head.bias is not None]
    if model.readout is not None or len(linear) < len(heads):
        raise DepthError("mean_network was called on a model whose heads are not all nn.Linear with a bias")
    layers = [copy.deepcopy(model.layers[str(k)]) for k in range(1, model.depth + 1)]
    return CombinedHeads(layers, linear, posterior).eval()


@torch.no_grad()
def classify_early(model: UnboundedDepth, x: Tensor) -> tuple[Tensor, Tensor]:
    """Classify, stopping at the first depth after which no deeper network can change the answer.

    After depth ℓ, with partial mixture Σ_{k ≤ ℓ} q(k) p(y | Ω_k) and remaining mass r = 1 − Σ_{k ≤ ℓ} q(k), a row
    stops when its two largest classes differ by more than r (and by more than rounding could undo). The class is
    that of the full mixture.

    Returns
    -------
    label, depth : int64 Tensors, shape (B,)
        Class of every row, and the depth it stopped at.

    Raises
    ------
    DepthError
        If the model is not one network, or weights are not point estimates.
    """
    _refuse_drawn(model, "classify_early", heads=False)
    posterior = model.depth_posterior()
    label = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    stopped = torch.full_like(label, model.depth)
    was_training = model.training
    model.eval()
    rows, h, mixture, left = torch.arange(len(x), device=x.device), x, torch.zeros((), device=x.device), 1.0
    for depth in range(model.depth + 1):
        h = model.layers[str(depth)](h) if depth else h
        if depth not in posterior:
            continue
        left -= posterior[depth]
        f = model.heads[str(depth)](h)
        f = f if model.readout is None else model.readout(f)
        mixture = mixture + posterior[depth] * f.double().softmax(-1)  # (rows, K)
        top = mixture.topk(2, -1).values
        # the margin must beat rounding as well, in the outputs and in the sum
        margin = max(left, 0.0) + 64.0 * torch.finfo(h.dtype).eps
        done = (top[:, 0] - top[:, 1] > margin) | (depth == model.depth)
        label[rows], stopped[rows] = mixture.argmax(-1), depth
        rows, h, mixture = rows[~done], h[~done], mixture[~done]
        if len(rows) == 0:
            break
    model.train(was_training)
    return label, stopped


def _refuse_several(model: object, what: str) -> None:
    """Refuse what is not one network: the members of an ensemble, the states of chains."""
    if not isinstance(model, UnboundedDepth):
        kind = type(model).__name__
        raise DepthError(f"{what} was called on {kind}; it needs one network: cv=1, n_restarts=1, weights='map'")


def _refuse_drawn(model: UnboundedDepth, what: str, *, heads: bool) -> None:
    """Refuse a model whose weights are drawn; with `heads`, those of heads with a posterior may be."""
    _refuse_several(model, what)
    own = [head for head in model.heads.values() if not (heads and isinstance(head, GaussianHead))]
    if any(isinstance(part, BayesianLayer) for part in (*model.layers.values(), *own, model.readout)):
        needed = "weights='map'" if heads else "weights='map' and last_layer='point'"
        raise DepthError(f"{what} was called on a model whose weights are drawn; it needs {needed}")
