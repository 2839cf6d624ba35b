r"""A linear map or convolution whose weights have a matrix normal posterior with diagonal covariances.

With weights and bias of an output as one row, :math:`W = (w, b)` of shape (K, P), and prior standard deviations s,

.. math:: W = s \circ (M + \mathrm{diag}(v)^{1/2} E \, \mathrm{diag}(u)^{1/2}), \qquad E_{kj} \sim N(0, 1),

with K + P variances, where independent Gaussians have K P. For the prior N(0, s²) of each weight

.. math:: \mathrm{KL} = \tfrac12 \Big[ \sum_j u_j \sum_k v_k + \lVert M \rVert^2 - K P - K \sum_j \ln u_j
          - P \sum_k \ln v_k \Big] ,

which is unchanged if u is multiplied and v divided by the same number.

References
----------
C. Louizos and M. Welling, "Structured and Efficient Variational Deep Learning with Matrix Gaussian Posteriors", ICML
2016.
"""

import math

import torch
from torch import Tensor, nn

from fathomless.nn.layers import BayesianLayer, WeightPrior
from fathomless.nn.stateless import call_with
from fathomless.system.draws import normal
from fathomless.system.errors import DataError

__all__ = ["MatrixNormal"]


class MatrixNormal(BayesianLayer):
    """A linear map or convolution with a matrix normal posterior; all rows of a batch share one draw of the weights.

    Parameters
    ----------
    module : nn.Linear, nn.Conv1d, nn.Conv2d or nn.Conv3d
        Initial mean; rows of its matrix are outputs.
    prior : WeightPrior
        Prior that defines s of every weight.
    initial_scale : float
        Initial standard deviation of every weight of the matrix.

    Attributes
    ----------
    log_scale_in, log_scale_out : Parameters, shapes (P,) and (K,)
        ½ ln u and ½ ln v.

    Raises
    ------
    DataError
        If the module has another type, or the scale is not positive.

    Examples
    --------
    >>> layer = MatrixNormal(nn.Linear(3, 2))
    >>> y, divergence = layer(torch.ones(5, 3), torch.Generator().manual_seed(0))
    >>> y.shape, divergence.ndim
    (torch.Size([5, 2]), 0)
    """

    def __init__(self, module: nn.Module, prior: WeightPrior | None = None, initial_scale: float = 0.02) -> None:
        super().__init__()
        if not initial_scale > 0.0:
            raise DataError(f"initial_scale={initial_scale} was given; a positive number is allowed")
        if type(module) not in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d):
            names = "nn.Linear, nn.Conv1d, nn.Conv2d and nn.Conv3d"
            raise DataError(f"a layer of type {type(module).__name__} was given; matrix normal weights are in {names}")
        prior = prior or WeightPrior()
        parameters = dict(module.named_parameters())
        weight, bias = parameters["weight"], parameters.get("bias")
        self.module = module
        self.weight_scale = prior.scale_of(weight)
        self.bias_scale = None if bias is None else prior.scale_of(bias)
        outputs = len(weight)
        inputs = weight[0].numel() + (bias is not None)
        start = 0.5 * math.log(initial_scale / self.weight_scale)
        self.log_scale_in = nn.Parameter(torch.full((inputs,), start, dtype=weight.dtype, device=weight.device))
        self.log_scale_out = nn.Parameter(torch.full((outputs,), start, dtype=weight.dtype, device=weight.device))

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Apply the map with drawn weights."""
        mean = self.mean()
        noise = normal(mean, generator)
        drawn = mean + self.log_scale_out.exp()[:, None] * noise * self.log_scale_in.exp()
        weight = dict(self.module.named_parameters())["weight"]
        count = weight[0].numel()
        parts = {"weight": self.weight_scale * drawn[:, :count].reshape(weight.shape)}
        if self.bias_scale is not None:
            parts["bias"] = self.bias_scale * drawn[:, count]
        return call_with(self.module, parts, x), self.divergence()

    def mean(self) -> Tensor:
        """Return M, (K, P)."""
        parameters = dict(self.module.named_parameters())
        weight = parameters["weight"].flatten(1) / self.weight_scale
        if self.bias_scale is None:
            return weight
        return torch.cat([weight, parameters["bias"][:, None] / self.bias_scale], 1)

    def scales(self) -> dict[str, Tensor]:
        """Return the standard deviations of weight and bias, by name."""
        weight = dict(self.module.named_parameters())["weight"]
        std = self.log_scale_out.exp()[:, None] * self.log_scale_in.exp()
        count = weight[0].numel()
        parts = {"weight": self.weight_scale * std[:, :count].reshape(weight.shape)}
        return parts if self.bias_scale is None else {**parts, "bias": self.bias_scale * std[:, count]}

    def divergence(self) -> Tensor:
        """Return KL(q ‖ p) in nats."""
        mean = self.mean()
        rows, columns = len(self.log_scale_out), len(self.log_scale_in)
        spread = (2.0 * self.log_scale_in).exp().sum() * (2.0 * self.log_scale_out).exp().sum()
        logs = rows * self.log_scale_in.sum() + columns * self.log_scale_out.sum()
        return 0.5 * (spread + mean.square().sum() - rows * columns) - logs
