r"""Matching of hidden units across networks, since many vectors of weights compute the same function.

Units of a layer can be permuted. The sign of a unit can be flipped if its activation is odd or even. The incoming
weights of a rectified unit can be multiplied by c > 0 if its outgoing weights are divided by c. An autoencoder cannot
learn these symmetries from a few dozen networks, so each network is transformed without changing its function:

1. rectified units: :math:`c = \sqrt{\lVert w_\text{out} \rVert / \lVert w_\text{in} \rVert}`, repeated over layers
   until both sides have equal norms. This is coordinate descent on the sum of squares of all weights, which is convex
   in log c, so the result does not depend on the start;
2. units are assigned to those of a reference by the largest sum of inner products of (incoming, bias, outgoing)
   vectors, each with the better sign if signs are free. A first pass from the inputs upwards uses only incoming
   vectors, which do not depend on the order of later layers; then the layers are assigned in turn until nothing
   changes.

Given the reference, equivalent networks are mapped to the same vector, for weights in general position.
"""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fathomless.families.manifold.network import Affine, FlatNetwork

__all__ = ["align", "balance", "match"]

_SWEEPS = 50  # most sweeps over the layers of a deep network
_BALANCED = 1e-12  # relative change of the scales of units at which the iteration stops


def match(network: FlatNetwork, weights: Tensor, reference: int = 0, sweeps: int = 2) -> Tensor:
    """Match the hidden units of networks, first to a reference network, then `sweeps` times to their mean.

    Parameters
    ----------
    network : FlatNetwork
        Network of the weights.
    weights : Tensor, shape (R, P)
        Weights of the networks.
    reference : int
        Index of the network to which the others are aligned first.
    sweeps : int
        Rounds of alignment with the mean.

    Returns
    -------
    Tensor, shape (R, P)
        Weights of the same functions, up to rounding.
    """
    weights = balance(network, weights)
    aligned = align(network, weights, weights[reference])
    for _ in range(sweeps):
        aligned = align(network, aligned, aligned.mean(0))
    return aligned


def balance(network: FlatNetwork, weights: Tensor) -> Tensor:
    """Equalise the norms of incoming and outgoing weights of each rectified unit; do nothing for other activations."""
    if network.symmetry != "positive" or not network.widths:
        return weights
    layers = network.layers(weights)
    for _ in range(_SWEEPS):
        moved = 0.0  # largest change of a log scale
        for place in range(len(network.widths)):
            (w, b), (out, out_bias) = layers[place], layers[place + 1]
            inner = torch.cat([w, b[..., None]], -1).norm(dim=-1)  # (R, H)
            outer = out.norm(dim=-2)
            c = torch.where((inner > 0.0) & (outer > 0.0), (outer / inner).sqrt(), torch.ones_like(inner))
            layers[place] = Affine(w * c[..., None], b * c)
            layers[place + 1] = Affine(out / c[..., None, :], out_bias)
            moved = max(moved, float(c.log().abs().max()))
        if moved < _BALANCED or len(network.widths) == 1:
            break
    return network.flat(layers)


def align(network: FlatNetwork, weights: Tensor, reference: Tensor) -> Tensor:
    """Permute the hidden units of networks, and flip their signs, to be as close as possible to a reference.

    Parameters
    ----------
    network : FlatNetwork
        Network of the weights.
    weights : Tensor, shape (R, P)
        Weights of the networks; balanced if units are rectified.
    reference : Tensor, shape (P,)
        Weights of the reference, unchanged.
    """
    layers, target = network.layers(weights), network.layers(reference)
    hidden = range(len(network.widths))
    for place in hidden:
        layers, _ = _assign_layer(network, layers, target, place, outgoing=False)
    for _ in range(_SWEEPS):
        moved = False
        for place in hidden:
            layers, changed = _assign_layer(network, layers, target, place, outgoing=True)
            moved = moved or changed
        if not moved:
            break
    return network.flat(layers)


def _assign_layer(
    network: FlatNetwork, layers: list[Affine], target: list[Affine], place: int, *, outgoing: bool
) -> tuple[list[Affine], bool]:
    """Assign the units of one hidden layer; return the layers, and True if a unit was moved."""
    (w, b), (out, out_bias) = layers[place], layers[place + 1]
    incoming = torch.cat([w, b[..., None]], -1)  # (R, H, in + 1)
    target_incoming = torch.cat([target[place].weight, target[place].bias[..., None]], -1)
    inner = incoming @ target_incoming.mT  # (R, H, H): unit of the network, unit of the reference
    outer = out.mT @ target[place + 1].weight if outgoing else torch.zeros_like(inner)
    gain = inner + outer
    flipped = {"odd": -(inner + outer), "even": outer - inner}.get(network.symmetry)  # gain with the other sign
    best = gain if flipped is None else torch.maximum(gain, flipped)
    order = torch.stack([_assign_units(matrix) for matrix in best]).to(w.device)  # (R, H): unit for each place
    sign = torch.ones_like(b)
    if flipped is not None:
        negative = (flipped > gain).gather(1, order[:, None])[:, 0]
        sign = torch.where(negative, -sign, sign)
    w = sign[..., None] * w.gather(1, order[..., None].expand_as(w))
    b = sign * b.gather(1, order)
    out = out.gather(2, order[:, None].expand_as(out))
    if network.symmetry == "odd":
        out = out * sign[:, None]
    identity = torch.arange(order.shape[1], device=order.device)
    moved = bool((order != identity).any() or (sign < 0.0).any())
    return [*layers[:place], Affine(w, b), Affine(out, out_bias), *layers[place + 2 :]], moved


def _assign_units(gain: Tensor) -> Tensor:
    """Return the row assigned to each column, with the largest sum of gains."""
    _, rows = linear_sum_assignment(gain.T.cpu().double().numpy(), maximize=True)
    return torch.as_tensor(rows, device="cpu")
