"""Bayesian layers: each gives its output and its divergence from the prior, and caches nothing.

The prior of every weight is N(0, s²). Scales and shifts of normalisation layers have no sensible prior around 0 and
are left out unless asked for.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.func import functional_call

from fathomless.errors import DataError

__all__ = [
    "BayesianLayer",
    "MeanField",
    "alike_linear",
    "gaussian_divergence",
    "prior_parameters",
    "side_by_side",
    "weight_decay",
]

_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)


class BayesianLayer(nn.Module, ABC):
    """A layer whose weights have a posterior."""

    @abstractmethod
    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw weights, apply them.

        Parameters
        ----------
        x : Tensor, shape (B, ...)
            Inputs.
        generator : torch.Generator, optional
            Source of randomness.

        Returns
        -------
        output : Tensor, shape (B, ...)
            The layer's output under one draw of its weights.
        divergence : Tensor, scalar
            KL(q(weights) ‖ p(weights)) in nats, summed over weights.
        """


class MeanField(BayesianLayer):
    """An independent Gaussian on every weight of any module: w ~ N(μ, σ²), prior N(0, s²).

    The module's own parameters are the means; the standard deviations are parameters beside them. One draw of the
    weights serves the whole batch.

    Parameters
    ----------
    module : nn.Module
        Any module with one input and one output.
    prior_scale : float
        s.
    initial_scale : float
        Initial σ.
    penalise_norms : bool
        Give normalisation scales and shifts a posterior too.

    Examples
    --------
    >>> layer = MeanField(nn.Linear(3, 2))
    >>> y, divergence = layer(torch.ones(5, 3), torch.Generator().manual_seed(0))
    >>> y.shape, divergence.ndim
    (torch.Size([5, 2]), 0)
    """

    def __init__(
        self,
        module: nn.Module,
        prior_scale: float = 1.0,
        initial_scale: float = 0.02,
        penalise_norms: bool = False,
    ) -> None:
        super().__init__()
        if not (prior_scale > 0.0 and initial_scale > 0.0):
            raise DataError(
                f"prior_scale={prior_scale} and initial_scale={initial_scale} were given; both must be positive"
            )
        self.module = module
        self.prior_scale = prior_scale
        self._names = tuple(prior_parameters(module, penalise_norms))
        own = dict(module.named_parameters())
        self.log_scale = nn.ParameterList(
            nn.Parameter(torch.full_like(own[name], math.log(initial_scale))) for name in self._names
        )

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Apply the module with drawn weights."""
        mean = dict(self.module.named_parameters())
        drawn, divergence = {}, x.new_zeros(())
        for name, log_scale in zip(self._names, self.log_scale, strict=True):
            scale = log_scale.exp()
            drawn[name] = mean[name] + scale * torch.empty_like(scale).normal_(generator=generator)
            divergence = divergence + gaussian_divergence(mean[name], scale, self.prior_scale)
        return functional_call(self.module, drawn, (x,)), divergence


def gaussian_divergence(mean: Tensor, scale: Tensor, prior_scale: float = 1.0) -> Tensor:
    """KL(N(ν, σ²) ‖ N(0, s²)) = ½ Σ [ν²/s² + σ²/s² − 1 − ln(σ²/s²)], in nats, summed over elements.

    Examples
    --------
    >>> gaussian_divergence(torch.tensor([2.0]), torch.tensor([1.0])).item()
    2.0
    """
    ratio = (scale / prior_scale).square()
    return 0.5 * ((mean / prior_scale).square() + ratio - 1.0 - ratio.log()).sum()


def prior_parameters(module: nn.Module, penalise_norms: bool = False) -> dict[str, nn.Parameter]:
    """Return the parameters of `module` that carry the prior N(0, s²), by name."""
    return {
        f"{prefix}.{name}" if prefix else name: parameter
        for prefix, part in module.named_modules()
        if penalise_norms or not isinstance(part, _NORMS)
        for name, parameter in part.named_parameters(recurse=False)
    }


def weight_decay(parameters: Sequence[Tensor], sizes: Tensor, prior_scale: float = 1.0) -> Tensor:
    """Return ½|θ|²/s² of each part of a network, for point estimates θ.

    This is KL(N(θ, s²I) ‖ N(0, s²I)): the divergence of a posterior as wide as the prior. Evaluating the likelihood
    at θ, as maximum a posteriori fits do, does not make it an evidence bound; it is penalised maximum likelihood.
    The gradient is added in closed form and leaves no graph.

    Parameters
    ----------
    parameters : sequence of Tensors
        Point estimates, part after part.
    sizes : Tensor of int64, shape (parts,)
        Number of weights of each part; 0 is allowed.
    prior_scale : float
        s.

    Returns
    -------
    Tensor, shape (parts,)
        Nats.
    """
    decay: Tensor = _WeightDecay.apply(sizes, prior_scale, *parameters)
    return decay


def alike_linear(heads: Sequence[nn.Module]) -> list[nn.Linear]:
    """Return the heads if they are linear maps of one shape, which can be applied at once; else nothing."""
    linear = [head for head in heads if type(head) is nn.Linear and head.bias is not None]
    alike = len(linear) == len(heads) > 1 and len({head.weight.shape for head in linear}) == 1
    return linear if alike else []


def side_by_side(heads: Sequence[nn.Linear], hidden: Sequence[Tensor]) -> Tensor:
    """Apply m linear maps of one shape, each to its own input (B, H), at once; (m, B, K)."""
    f: Tensor = _SideBySide.apply(len(heads), *hidden, *(head.weight for head in heads), *(head.bias for head in heads))
    return f


class _SideBySide(torch.autograd.Function):
    """Apply m linear heads to their hidden states by batched products.

    Autograd's own derivative of a batched product multiplies in an order that is slow for few outputs.
    """

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, m: int, *tensors: Tensor) -> Tensor:
        hidden, weight, bias = (torch.stack(tensors[i * m : (i + 1) * m]) for i in range(3))
        ctx.save_for_backward(hidden, weight)
        return torch.baddbmm(bias[:, None], hidden, weight.mT)  # (m, B, K)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors  # type: ignore[attr-defined]
        return None, *torch.bmm(grad, weight).unbind(), *torch.bmm(grad.mT, hidden).unbind(), *grad.sum(1).unbind()


class _WeightDecay(torch.autograd.Function):
    """All tensors are joined into one, so that the number of operations does not grow with theirs."""

    @staticmethod
    def forward(
        ctx: torch.autograd.function.FunctionCtx, sizes: Tensor, prior_scale: float, *parameters: Tensor
    ) -> Tensor:
        flat = _flatten_dense_tensors(parameters)
        ctx.save_for_backward(flat, sizes)
        ctx.precision, ctx.like = prior_scale**-2, parameters  # type: ignore[attr-defined]
        return torch.segment_reduce(flat.square(), "sum", lengths=sizes) * (0.5 * prior_scale**-2)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        flat, sizes = ctx.saved_tensors  # type: ignore[attr-defined]
        weight = (grad * ctx.precision).repeat_interleave(sizes, output_size=len(flat))  # type: ignore[attr-defined]
        return None, None, *_unflatten_dense_tensors(flat * weight, ctx.like)  # type: ignore[attr-defined]
