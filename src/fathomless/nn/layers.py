"""Bayesian layers, which return their output and their divergence from the prior.

The prior of every weight is N(0, s²). Scales and shifts of normalisation layers have no sensible prior around 0 and
have none by default. The weights of the first layer can have a scale for each input column (:func:`column_decay`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

from fathomless.nn.stacked import StackedLinear
from fathomless.nn.stateless import call_with
from fathomless.system import checks
from fathomless.system.draws import normal
from fathomless.system.errors import DataError

__all__ = [
    "BayesianLayer",
    "MeanField",
    "WeightPrior",
    "column_decay",
    "gaussian_divergence",
    "prior_scales",
    "weight_decay",
    "weight_decay_of_many",
]

_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


@dataclass(frozen=True)
class WeightPrior:
    """N(0, s²) on every weight, or an inferred scale for each column of the table.

    Attributes
    ----------
    scale : float
        s; with `fan_in`, the standard deviation relative to √(2 / fan-in), the scale for which a layer of rectified
        units preserves the variance of its input. Vectors (biases) then have s = 1.
    fan_in : bool
        If true, s of a matrix or kernel decreases with the number of its inputs.
    norms : bool
        If true, scales and shifts of normalisation layers have the prior too.
    columns : bool
        If true, the weights of each input of the first layer, if this is a linear map, have a common scale that is
        integrated out (:func:`column_decay`): weights of columns without information shrink to 0, and those of other
        columns stay large. Only for point estimates. The head of depth 0, a linear model, has the prior N(0, s²).
    inputs : int, optional
        Number of inputs in this prior for each column; that of the first layer by default. A network without some of
        its inputs has the prior of the whole one.
    """

    scale: float = 1.0
    fan_in: bool = False
    norms: bool = False
    columns: bool = False
    inputs: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 < self.scale < math.inf:
            raise DataError(f"a prior scale of {self.scale} was given; a positive, finite number is allowed")
        checks.scale("the scale of a prior", self.scale)

    def scale_of(self, parameter: Tensor) -> float:
        """Return s of one parameter, by its shape."""
        if not self.fan_in:
            return self.scale
        if parameter.ndim < 2:
            return 1.0
        fan_in = parameter.numel() / len(parameter)
        return self.scale * math.sqrt(2.0 / fan_in)


class BayesianLayer(nn.Module, ABC):
    """A layer whose weights have a posterior.

    In networks of unbounded depth a layer or head must itself be a Bayesian layer; one inside an ``nn.Sequential`` is
    not found. A module that contains Bayesian layers must be a Bayesian layer that returns outputs and divergences.
    """

    @abstractmethod
    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Apply the layer with drawn weights.

        Parameters
        ----------
        x : Tensor, shape (B, ...)
            Inputs.
        generator : torch.Generator, optional
            Random number generator.

        Returns
        -------
        output : Tensor, shape (B, ...)
            Output of the layer for one draw of its weights.
        divergence : Tensor, scalar
            KL(q(weights) ‖ p(weights)) in nats, summed over weights.
        """


class MeanField(BayesianLayer):
    """A module with an independent Gaussian posterior of every weight: w ~ N(μ, σ²), prior N(0, s²).

    The parameters of the module are the means, and the standard deviations are additional parameters. All rows of a
    batch share one draw of the weights. The row of an embedding for padding (`padding_idx`) keeps its value.

    Parameters
    ----------
    module : nn.Module
        Module with one input and one output.
    prior : WeightPrior
        Prior that defines s of every weight; parameters without a prior are point estimates.
    initial_scale : float
        Initial σ.

    Examples
    --------
    >>> layer = MeanField(nn.Linear(3, 2))
    >>> y, divergence = layer(torch.ones(5, 3), torch.Generator().manual_seed(0))
    >>> y.shape, divergence.ndim
    (torch.Size([5, 2]), 0)
    """

    def __init__(self, module: nn.Module, prior: WeightPrior | None = None, initial_scale: float = 0.02) -> None:
        super().__init__()
        if not initial_scale > 0.0:
            raise DataError(f"initial_scale={initial_scale} was given; a positive number is allowed")
        self.module = module
        self._prior = prior_scales(module, prior or WeightPrior())
        self._padding = _find_padding(module)
        parameters = dict(module.named_parameters())
        self.log_scale = nn.ParameterList(
            nn.Parameter(torch.full_like(parameters[name], math.log(initial_scale))) for name in self._prior
        )

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Apply the module with drawn weights."""
        mean = dict(self.module.named_parameters())
        drawn = {}
        divergence = x.new_zeros(())
        for (name, prior_scale), log_scale in zip(self._prior.items(), self.log_scale, strict=True):
            scale = log_scale.exp()
            centre: Tensor = mean[name]
            noise = scale * normal(scale, generator)
            if name in self._padding:  # not drawn, and without divergence
                row = torch.tensor([self._padding[name]], device=scale.device)
                noise, centre = noise.index_fill(0, row, 0.0), centre.index_fill(0, row, 0.0)
                scale = scale.index_fill(0, row, prior_scale)
            drawn[name] = mean[name] + noise
            divergence = divergence + gaussian_divergence(centre, scale, prior_scale)
        return call_with(self.module, drawn, x), divergence

    def scales(self) -> dict[str, Tensor]:
        """Return the standard deviations of weights with a prior, by name; 0 in rows for padding."""
        scales = {name: log_scale.exp() for name, log_scale in zip(self._prior, self.log_scale, strict=True)}
        for name in scales.keys() & self._padding.keys():
            row = torch.tensor([self._padding[name]], device=scales[name].device)
            scales[name] = scales[name].index_fill(0, row, 0.0)
        return scales


def _find_padding(module: nn.Module) -> dict[str, int]:
    """Return the rows for padding of embeddings, by the name of their weight."""
    return {
        f"{prefix}.weight".removeprefix("."): part.padding_idx
        for prefix, part in module.named_modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.padding_idx is not None
    }


def gaussian_divergence(mean: Tensor, scale: Tensor, prior_scale: float = 1.0) -> Tensor:
    """Return KL(N(ν, σ²) ‖ N(0, s²)) = ½ Σ [ν²/s² + σ²/s² − 1 − ln(σ²/s²)], in nats, summed over elements.

    Examples
    --------
    >>> gaussian_divergence(torch.tensor([2.0]), torch.tensor([1.0])).item()
    2.0
    """
    ratio = (scale / prior_scale).square()
    return 0.5 * ((mean / prior_scale).square() + ratio - 1.0 - ratio.log()).sum()


def column_decay(weight: Tensor, scale: float = 1.0, inputs: int | None = None) -> Tensor:
    r"""Return −log p(W) + log p(0) of the first weight matrix, under a prior with a scale for each input column.

    With D columns and H units, the weights :math:`w_j` of column j have a common precision :math:`\alpha_j`,

    .. math:: w_j \mid \alpha_j \sim N(0, s^2 I_H / (\alpha_j \sqrt D)), \qquad
              \alpha_j \sim \mathrm{Gamma}(1, \tfrac12) .

    Integrated over :math:`\alpha_j`, this is a multivariate Student's t with two degrees of freedom:

    .. math:: -\log p(W) = \tfrac12 (H + 2) \sum_j \log (1 + \sqrt D\, |w_j|^2 / s^2) + \text{const} .

    Its gradient is that of weight decay with the conditional mean of the precision,
    :math:`(H + 2) / (1 + \sqrt D\, |w_j|^2 / s^2)`. The decay is strong for columns with small weights and weak for
    those with large weights. The precisions have the same prior in :mod:`fathomless.inference.mcmc.scales`.

    Parameters
    ----------
    weight : Tensor, shape (..., H, D)
        First weight matrix, or those of several networks.
    scale : float
        s.
    inputs : int, optional
        D of the prior; that of the weight matrix by default.

    Returns
    -------
    float64 Tensor, scalar
        Decay in nats, summed over columns and networks.

    References
    ----------
    R. Neal, "Bayesian Learning for Neural Networks", 1996, section 1.2.3 (automatic relevance determination).

    Examples
    --------
    >>> column_decay(torch.tensor([[1.0, 0.0, 0.0, 0.0]], device="cpu")).item()  # 1.5 log 3
    1.6479184...
    """
    units, columns = weight.shape[-2:]
    square = weight.square().sum(-2)
    return 0.5 * (units + 2) * (square * (math.sqrt(inputs or columns) / scale**2)).log1p().double().sum()


def prior_scales(module: nn.Module, prior: "WeightPrior") -> dict[str, float]:
    """Return the prior standard deviation s of every parameter of `module` that has the prior, by name.

    Raises
    ------
    DataError
        If the prior has scales for columns, which only point estimates of networks of unbounded depth can have.
    """
    if prior.columns:
        raise DataError(
            f"{prior} was given; scales for columns need point estimates of a network of layers and heads "
            "(weights='map'): set columns=False"
        )
    names = dict(module.named_parameters()).keys()  # shared parameters once
    return {
        full: prior.scale_of(parameter[0] if isinstance(part, StackedLinear) else parameter)
        for prefix, part in module.named_modules()
        if prior.norms or not isinstance(part, _NORMS)
        for name, parameter in part.named_parameters(recurse=False)
        if (full := f"{prefix}.{name}" if prefix else name) in names
    }


def weight_decay(parameters: Sequence[Tensor], sizes: Tensor) -> Tensor:
    """Return ½|θ|² of every tensor, for point estimates θ.

    Divided by s² this is KL(N(θ, s²I) ‖ N(0, s²I)), the divergence of a posterior as wide as the prior. With the
    likelihood evaluated at θ, as in maximum a posteriori fits, the objective is penalised maximum likelihood, not an
    evidence lower bound. The gradient is computed in closed form and without a graph, except for second derivatives.

    Parameters
    ----------
    parameters : sequence of P Tensors
        Point estimates.
    sizes : Tensor of int64, shape (P,)
        Number of elements of each tensor, on the same device.

    Returns
    -------
    float64 Tensor, shape (P,)
        ½|θ|² of each tensor, summed in double precision for the bound and the gradient of the structure.
    """
    if not parameters:
        return torch.zeros(0, dtype=torch.float64, device=sizes.device)
    decay: Tensor = _WeightDecay.apply(sizes, *parameters)[0]
    return decay


def weight_decay_of_many(parameters: Sequence[Tensor]) -> Tensor:
    """Return the result of :func:`weight_decay`, in the precision of the parameters and without concatenation.

    For stacked networks, with so many weights that a pass over them in double precision would cost as much as a layer.
    """
    decay: Tensor = _DecayOfMany.apply(*parameters)
    return decay


class _DecayOfMany(torch.autograd.Function):
    """Weight decay by norms and products of lists of tensors."""

    @staticmethod
    def forward(*parameters: Tensor) -> Tensor:
        return torch.stack(torch._foreach_norm(parameters)).double().square() * 0.5

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *parameters: Tensor) -> tuple[Tensor, int]:
        return _decay_per_network(info.batch_size, in_dims, parameters), 0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        parameters = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _scale_by(parameters, grad)
        weights = grad.to(parameters[0].dtype).unbind()
        return torch._foreach_mul(parameters, weights)


class _WeightDecay(torch.autograd.Function):
    """Weight decay of the concatenated tensors, with a number of operations independent of their number."""

    @staticmethod
    def forward(sizes: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        flat = _flatten_dense_tensors(parameters)
        # unsafe=True skips a check of the sizes that reads the device
        return torch.segment_reduce(flat.double().square(), "sum", lengths=sizes, unsafe=True) * 0.5, flat

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
        sizes, *parameters = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1], sizes, *parameters)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], _: Tensor, *parameters: Tensor) -> Any:
        decay = _decay_per_network(info.batch_size, in_dims[1:], parameters)
        return (decay, decay.new_zeros(0)), (0, None)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * len(ctx.needs_input_grad)
        flat, sizes, *parameters = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *_scale_by(parameters, grad)
        weight = grad.to(flat.dtype).repeat_interleave(sizes, output_size=len(flat))
        return None, *_unflatten_dense_tensors(flat * weight, parameters)


def _scale_by(parameters: Sequence[Tensor], grad: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients grad_i θ_i of :func:`weight_decay`, with a graph for second derivatives."""
    return tuple(p * share.to(p.dtype) for p, share in zip(parameters, grad.unbind(), strict=True))


def _decay_per_network(count: int, in_dims: Sequence[int | None], parameters: Sequence[Tensor]) -> Tensor:
    """Return ½|θ|² of every tensor of F networks under ``vmap``, (F, P)."""
    stacked = [
        p.expand(count, *p.shape) if axis is None else p.movedim(axis, 0)
        for p, axis in zip(parameters, in_dims, strict=True)
    ]
    return torch.stack([0.5 * p.double().square().reshape(count, -1).sum(1) for p in stacked], 1)
