r"""Hidden units of several networks, brought into one order: many vectors of weights compute the same function.

Units of a layer may be permuted; a unit's sign may be turned where its activation is odd or even; and with rectified
units its incoming weights may be multiplied by c > 0 if the outgoing ones are divided by it. An autoencoder cannot
learn these orbits from a few dozen networks, so each network is moved along its own, without changing its function:

1. rectified units: :math:`c = \sqrt{\lVert w_\text{out} \rVert / \lVert w_\text{in} \rVert}`, repeated over layers
   until both sides have one norm. It is coordinate descent on the sum of squares of all weights, which is convex in
   log c, so where it ends does not depend on where it starts;
2. units are assigned to those of a reference by the greatest sum of inner products of (incoming, bias, outgoing)
   vectors, each with the better sign where there is a choice. A first pass from the inputs upwards looks at incoming
   vectors alone, which do not depend on how later layers are ordered; then all layers are assigned in turn until
   nothing changes.

Given the reference, vectors of one orbit end in the same one, for weights in general position.
"""

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fathomless.families.manifold.network import Affine, FlatNetwork

__all__ = ["align", "balance", "match"]

_SWEEPS = 50  # at most, over the layers of a deep network
_BALANCED = 1e-12  # relative change of a norm at which the scales of units have come to rest


def match(network: FlatNetwork, weights: Tensor, reference: int = 0, sweeps: int = 2) -> Tensor:
    """Bring networks into one order: that of one of them first, then, so many times, that of their mean.

    Parameters
    ----------
    network : FlatNetwork
        What the weights are of.
    weights : Tensor, shape (R, P)
        Networks.
    reference : int
        Which network the others are aligned with at first.
    sweeps : int
        Rounds of alignment with the mean.

    Returns
    -------
    Tensor, shape (R, P)
        Of the same functions, up to rounding.
    """
    weights = balance(network, weights)
    aligned = align(network, weights, weights[reference])
    for _ in range(sweeps):
        aligned = align(network, aligned, aligned.mean(0))
    return aligned


def balance(network: FlatNetwork, weights: Tensor) -> Tensor:
    """Give the incoming and the outgoing weights of every rectified unit one norm; others stay as they are."""
    if network.symmetry != "positive" or not network.widths:
        return weights
    layers = network.layers(weights)
    for _ in range(_SWEEPS):
        moved = 0.0
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
    """Permute, and turn, the hidden units of networks so that they are as near to a reference as may be.

    Parameters
    ----------
    network : FlatNetwork
        What the weights are of.
    weights : Tensor, shape (R, P)
        Networks; of rectified units, balanced.
    reference : Tensor, shape (P,)
        Stays as it is.
    """
    layers, target = network.layers(weights), network.layers(reference)
    hidden = range(len(network.widths))
    for place in hidden:
        layers, _ = _assigned(network, layers, target, place, outgoing=False)
    for _ in range(_SWEEPS):
        moved = False
        for place in hidden:
            layers, one = _assigned(network, layers, target, place, outgoing=True)
            moved = moved or one
        if not moved:
            break
    return network.flat(layers)


def _assigned(
    network: FlatNetwork, layers: list[Affine], target: list[Affine], place: int, *, outgoing: bool
) -> tuple[list[Affine], bool]:
    """Assign the units of one hidden layer; say whether any was moved."""
    (w, b), (out, out_bias) = layers[place], layers[place + 1]
    own = torch.cat([w, b[..., None]], -1)  # (R, H, in + 1)
    theirs = torch.cat([target[place].weight, target[place].bias[..., None]], -1)
    inner = own @ theirs.mT  # (R, H, H): unit of the network, unit of the reference
    outer = out.mT @ target[place + 1].weight if outgoing else torch.zeros_like(inner)
    turned = {"odd": -(inner + outer), "even": outer - inner}.get(network.symmetry)
    gain = inner + outer
    best = gain if turned is None else torch.maximum(gain, turned)
    order = torch.stack([_assignment(one) for one in best]).to(w.device)  # (R, H): which unit takes each place
    sign = torch.ones_like(b)
    if turned is not None:
        less = (turned > gain).gather(1, order[:, None])[:, 0]
        sign = torch.where(less, -sign, sign)
    w, b = (sign[..., None] * w.gather(1, order[..., None].expand_as(w))), sign * b.gather(1, order)
    out = out.gather(2, order[:, None].expand_as(out))
    if network.symmetry == "odd":
        out = out * sign[:, None]
    rest = torch.arange(order.shape[1], device=order.device)
    moved = bool((order != rest).any() or (sign < 0.0).any())
    return [*layers[:place], Affine(w, b), Affine(out, out_bias), *layers[place + 2 :]], moved


def _assignment(gain: Tensor) -> Tensor:
    """Return which row goes to each column, so that the sum of the gains is the greatest."""
    _, rows = linear_sum_assignment(gain.T.cpu().double().numpy(), maximize=True)
    return torch.as_tensor(rows, device="cpu")
