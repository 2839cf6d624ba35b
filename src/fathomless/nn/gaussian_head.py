r"""A linear map with jointly normal weights, whose covariance is diagonal in an eigenbasis.

With weights and bias of output k as one row, :math:`W = (w, b)` of shape (K, P), a draw is

.. math:: W = M + U (S \circ E) Q^\top, \qquad E_{kj} \sim N(0, 1),

for orthogonal U, (K, K), and Q, (P, P), and standard deviations S along their directions: the posterior whose precision
is :math:`\Gamma \otimes \Lambda + \alpha I`, with the eigenvectors U of Γ and Q of Λ. If U is the identity, each
output may have its own Q.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fathomless.nn.layers import BayesianLayer
from fathomless.system.draws import normal
from fathomless.system.errors import DataError

__all__ = ["GaussianHead"]


class GaussianHead(BayesianLayer):
    """A linear map with a normal posterior, drawn once for all rows of a batch.

    Parameters
    ----------
    linear : nn.Linear
        Linear map with a bias; the mean is a copy of its weights.
    bases : int
        Number of bases Q: 1, or the number of outputs.

    Attributes
    ----------
    weight, bias : Tensors, shapes (K, P − 1) and (K,)
        The mean M.
    basis : Tensor, shape (bases, P, P)
        Q; the last input is the constant 1 for the bias.
    mixing : Tensor, shape (K, K)
        U.
    scale : Tensor, shape (K, P)
        S; initially 0, and 0 for directions that are point estimates.
    precision : scalar Tensor
        α of the prior N(0, 1/α) of every weight, for the divergence.

    Raises
    ------
    DataError
        If the map has no bias, or the number of bases is wrong.

    Examples
    --------
    >>> head = GaussianHead(nn.Linear(3, 2))
    >>> y, divergence = head(torch.ones(5, 3), torch.Generator().manual_seed(0))
    >>> y.shape, divergence.ndim
    (torch.Size([5, 2]), 0)
    """

    basis: Tensor
    mixing: Tensor
    scale: Tensor
    precision: Tensor

    def __init__(self, linear: nn.Linear, bases: int = 1) -> None:
        super().__init__()
        if linear.bias is None or bases not in (1, linear.out_features):
            raise DataError(
                f"a linear map of {linear.out_features} outputs, with bias={linear.bias is not None}, was given with "
                f"{bases} bases; a bias, and 1 basis or one for each output, are needed"
            )
        self.weight = nn.Parameter(linear.weight.detach().clone())
        self.bias = nn.Parameter(linear.bias.detach().clone())
        like = linear.weight.detach()
        outputs, size = linear.out_features, linear.in_features + 1
        eye = torch.eye(size, dtype=like.dtype, device=like.device)
        self.register_buffer("basis", eye.repeat(bases, 1, 1))
        self.register_buffer("mixing", torch.eye(outputs, dtype=like.dtype, device=like.device))
        self.register_buffer("scale", like.new_zeros(outputs, size))
        self.register_buffer("precision", like.new_ones(()))

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Apply a drawn map; return the output and KL(q ‖ N(0, I/α))."""
        deviation = self.draw_deviation(generator)
        output = F.linear(x, self.weight + deviation[:, :-1], self.bias + deviation[:, -1])
        return output, self.divergence()

    def draw_deviation(self, generator: torch.Generator | None = None) -> Tensor:
        """Draw W − M, (K, P)."""
        noise = self.scale * normal(self.scale, generator)
        return self.mixing @ (self.basis @ noise[:, :, None])[:, :, 0]

    def variance(self, x: Tensor) -> Tensor:
        """Return the variance of every output at inputs (B, P − 1), shape (B, K), in double precision."""
        phi = F.pad(x.double(), (0, 1), value=1.0)
        squares = (phi @ self.basis.double()).square()  # (bases, B, P), in the directions of Q
        variances = (squares * self.scale.double().square()[:, None]).sum(2)  # (K, B), in the directions of U
        return (self.mixing.double().square() @ variances).T

    def divergence(self) -> Tensor:
        """Return KL(q ‖ N(0, I/α)) in nats, in double precision; for point estimates only the terms ½ α w²."""
        alpha = self.precision.double()
        square = self.weight.double().square().sum() + self.bias.double().square().sum()
        ratio = alpha * self.scale.double().square()
        spread = torch.where(ratio > 0.0, ratio - 1.0 - ratio.clamp(min=1e-300).log(), 0.0)
        return 0.5 * (alpha * square + spread.sum())

    @torch.no_grad()
    def mean_map(self) -> nn.Linear:
        """Return the mean as an ordinary linear map with copies of the tensors."""
        outputs, inputs = self.weight.shape
        linear = nn.Linear(
            inputs, outputs, device="meta", dtype=self.weight.dtype
        )  # on this device no initial weights are drawn
        linear.weight = nn.Parameter(self.weight.detach().clone())
        linear.bias = nn.Parameter(self.bias.detach().clone())
        return linear.train(self.training)
