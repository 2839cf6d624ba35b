r"""Flows on vectors: invertible steps with a gated update, whose log-determinant is a sum.

One step maps z to

.. math:: z' = \kappa \odot z + (1 - \kappa) \odot m, \qquad (m, s) = \mathrm{NN}(z), \quad \kappa = \sigma(s),

where coordinate i of m and s depends only on coordinates of z that precede i in the ordering of the step. The Jacobian
is therefore triangular with diagonal κ, and :math:`\log|\det| = \sum_i \log \sigma(s_i)`. The inverse is not needed.
"""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fathomless.system.errors import DataError

__all__ = ["Flow", "GatedStep"]

_SLOPE = 1e-3  # slope of the hidden units below zero


class GatedStep(nn.Module):
    r"""One step: a masked network and the gated update.

    Parameters
    ----------
    ranks : Tensor of int64, shape (d,)
        Coordinate i depends on the coordinates of smaller rank; distinct ranks give an inverse autoregressive step.
    hidden : tuple of int
        Numbers of units of the hidden layers.
    coupling : bool
        Leave coordinates of rank 0 unchanged.
    gate : float
        Initial s; κ ≈ 1 for large values.
    shift : float
        Initial m.
    scale : float
        Factor on the initial weights of the last layer.

    References
    ----------
    D. Kingma et al., "Improving Variational Inference with Inverse Autoregressive Flow", NeurIPS 2016.
    L. Dinh, J. Sohl-Dickstein and S. Bengio, "Density Estimation Using Real NVP", ICLR 2017.
    """

    moved: Tensor  # (d,) 1 for coordinates that are changed
    mask_0: Tensor

    def __init__(
        self, ranks: Tensor, hidden: tuple[int, ...], *, coupling: bool, gate: float, shift: float, scale: float
    ) -> None:
        super().__init__()
        d = len(ranks)
        sizes = [d, *hidden, 2 * d]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        last = int(ranks.max())
        # a hidden unit of rank r depends on inputs of rank up to r, and only outputs of rank above r depend on it
        ladder = [torch.arange(units, device="cpu") * max(last, 1) // units for units in hidden]
        outputs = torch.cat([ranks, ranks])
        for i, (before, after) in enumerate(pairwise([ranks, *ladder, outputs])):
            is_last = i == len(hidden)
            mask = before[None, :] < after[:, None] if is_last else before[None, :] <= after[:, None]
            self.register_buffer(f"mask_{i}", mask.to(torch.get_default_dtype()), persistent=False)
        moved = (ranks > 0) if coupling else torch.ones_like(ranks)
        self.register_buffer("moved", moved.to(torch.get_default_dtype()), persistent=False)
        with torch.no_grad():
            for i, layer in enumerate(self._linears()):
                layer.weight.mul_(getattr(self, f"mask_{i}"))
            output = self._linears()[-1]
            output.weight.mul_(scale)
            output.bias.mul_(scale)
            output.bias[:d] += shift
            output.bias[d:] += gate

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the image of z (..., d) and the log-determinant (...)."""
        h = z
        for i, layer in enumerate(self._linears()):
            h = F.leaky_relu(h, _SLOPE) if i else h
            h = _Masked.apply(h, layer.weight, layer.bias, getattr(self, f"mask_{i}"))
        m, s = h.chunk(2, -1)  # (..., d) each
        image = z + self.moved * torch.sigmoid(-s) * (m - z)
        return image, (self.moved * F.logsigmoid(s)).sum(-1)

    def _linears(self) -> list[nn.Linear]:
        return [layer for layer in self.layers if isinstance(layer, nn.Linear)]


class Flow(nn.Module):
    """Sequence of steps with alternately reversed ordering.

    Parameters
    ----------
    d : int
        Number of coordinates. For d = 1 a step is an affine map.
    kind : {"iaf", "coupling"}
        Inverse autoregressive steps, or coupling of the coordinates with even and odd indices.
    steps : int
        Number of steps; 0 is the identity.
    hidden : tuple of int
        Numbers of units of the hidden layers in the network of each step.
    gate, shift, scale : float
        Initial values; see :class:`GatedStep`.

    Examples
    --------
    >>> flow = Flow(3, steps=2, hidden=(8,))
    >>> image, log_det = flow(torch.randn(5, 3))
    >>> image.shape, log_det.shape
    (torch.Size([5, 3]), torch.Size([5]))
    """

    def __init__(
        self,
        d: int,
        kind: str = "iaf",
        steps: int = 2,
        hidden: tuple[int, ...] = (50, 50),
        *,
        gate: float = 2.0,
        shift: float = 0.0,
        scale: float = 0.1,
    ) -> None:
        super().__init__()
        if kind not in ("iaf", "coupling"):
            raise DataError(f"kind={kind!r} was given for a flow; allowed are 'iaf' and 'coupling'")
        if d < 1 or steps < 0 or not all(units > 0 for units in hidden):
            raise DataError(
                f"a flow of {steps} steps on {d} coordinates with hidden layers of {hidden} units was given; at "
                "least 0 steps, one coordinate and positive numbers of units are needed"
            )
        coupling = kind == "coupling" and d > 1
        order = torch.arange(d, device="cpu") % 2 if coupling else torch.arange(d, device="cpu")
        options: dict[str, Any] = {
            "hidden": hidden,
            "coupling": coupling,
            "gate": gate,
            "shift": shift,
            "scale": scale,
        }
        ranks = (order if k % 2 == 0 else order.max() - order for k in range(steps))
        self.steps = nn.ModuleList(GatedStep(rank, **options) for rank in ranks)

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the image of z (..., d) and the sum of the log-determinants (...)."""
        total = z.new_zeros(z.shape[:-1])
        for step in self.steps:
            z, log_det = step(z)
            total = total + log_det
        return z, total


class _Masked(torch.autograd.Function):
    """A linear map whose stored weight is already masked, so that only its gradient needs the mask."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, mask: Tensor) -> Tensor:
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        x, weight, _, mask = inputs
        ctx.save_for_backward(x, weight, mask)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, mask = ctx.saved_tensors
        if torch.is_grad_enabled():
            weight = weight * mask  # the same values, but with a masked second derivative
        rows, columns = grad.reshape(-1, grad.shape[-1]), x.reshape(-1, x.shape[-1])
        return grad @ weight, (rows.mT @ columns) * mask, rows.sum(0), None
