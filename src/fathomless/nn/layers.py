"""Bayesian layers: each gives its output and its divergence from the prior, and caches nothing.

The prior of every weight is N(0, s²). Scales and shifts of normalisation layers have no sensible prior around 0 and
are left out unless asked for.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.func import functional_call
from torch.nn import functional as F

from fathomless.nn.multiplicative_flow import FlowOptions, Multiplier
from fathomless.nn.spike_slab import Moments, SlabPrior, SlabStart, Weights
from fathomless.system.errors import DataError

__all__ = [
    "Act",
    "BayesianLayer",
    "MeanField",
    "SpikeSlab",
    "WeightPrior",
    "alike_linear",
    "gaussian_divergence",
    "prior_scales",
    "side_by_side",
    "weight_decay",
]

_NORMS = (
    nn.modules.batchnorm._NormBase,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.RMSNorm,
)
_CONVOLUTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}


@dataclass(frozen=True)
class WeightPrior:
    """N(0, s²) on every weight.

    Attributes
    ----------
    scale : float
        s; or, with `fan_in`, the standard deviation relative to √(2 / fan-in), the scale at which a layer of rectified
        units passes on the variance of its input. Vectors (biases) have s = 1 then.
    fan_in : bool
        Let s of a matrix or kernel shrink with the number of its inputs.
    norms : bool
        Extend the prior to scales and shifts of normalisation layers.
    """

    scale: float = 1.0
    fan_in: bool = False
    norms: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.scale < math.inf:
            raise DataError(f"a prior scale of {self.scale} was given; a positive, finite number is allowed")

    def scale_of(self, parameter: Tensor) -> float:
        """Return s of one parameter, by its shape."""
        if not self.fan_in:
            return self.scale
        return 1.0 if parameter.ndim < 2 else self.scale * math.sqrt(2.0 / (parameter.numel() / len(parameter)))


class BayesianLayer(nn.Module, ABC):
    """A layer whose weights have a posterior.

    Networks of unbounded depth look for it at the top of a layer or head, not inside an ``nn.Sequential``: a module
    that contains one is itself a Bayesian layer that passes outputs and divergences on.
    """

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
    prior : WeightPrior
        s of every weight; parameters without a prior stay point estimates.
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
        own = dict(module.named_parameters())
        self.log_scale = nn.ParameterList(
            nn.Parameter(torch.full_like(own[name], math.log(initial_scale))) for name in self._prior
        )

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Apply the module with drawn weights."""
        mean = dict(self.module.named_parameters())
        drawn, divergence = {}, x.new_zeros(())
        for (name, prior_scale), log_scale in zip(self._prior.items(), self.log_scale, strict=True):
            scale = log_scale.exp()
            drawn[name] = mean[name] + scale * torch.empty_like(scale).normal_(generator=generator)
            divergence = divergence + gaussian_divergence(mean[name], scale, prior_scale)
        return functional_call(self.module, drawn, (x,)), divergence


class SpikeSlab(BayesianLayer):
    r"""A linear map or convolution whose weights may be absent: γw with γ ~ Bernoulli(α), w ~ N(zμ, σ²).

    Two switches give five known methods. With `inclusion` and no multiplier it is LBBNN (``estimator="relaxed"``) or
    LBBNN-LRT ("local"), with a `multiplier` LBBNN-FLOW; without `inclusion`, mean field and, with a multiplier,
    multiplicative normalising flows (MNF).

    In training, "local" draws the outputs from normals with their exact mean and variance,

    .. math:: h_j = \sum_i x_i z_i \alpha_{ij} \mu_{ij} + b_j + \epsilon_j \Big(\sum_i x_i^2 \alpha_{ij}
              (\sigma_{ij}^2 + (1 - \alpha_{ij}) z_i^2 \mu_{ij}^2) + \sigma_{b_j}^2\Big)^{1/2},

    independently for every row (they are normal in the limit of many weights); "relaxed" draws weights with inclusions
    between 0 and 1, once for all rows. In evaluation weights are drawn exactly, once for all rows.

    Parameters
    ----------
    module : nn.Linear, nn.Conv1d, nn.Conv2d or nn.Conv3d
        What the layer computes given weights, and the initial means. z has one number for each input of a linear map,
        and for each filter of a convolution.
    prior : SlabPrior
        Of weights and inclusions.
    inclusion, bias_inclusion : bool
        Give weights, and biases, inclusion variables.
    multiplier : FlowOptions, optional
        Draw z; None is z = 1.
    estimator : {"local", "relaxed"}
        Of the expected log-likelihood in training.
    temperature : float
        Of relaxed inclusions.
    compiled : bool
        Compile what is done for every weight and every output, where torch can: a training step of a large network
        takes a sixth to a quarter less time (``benchmarks/sparse.py``), the first one some seconds more.
    start, bias_start : SlabStart
        Initial values.

    Attributes
    ----------
    structure : {"average", "median"}
        What is drawn in evaluation: inclusions from their posterior, or those with α > ½ (the median model).
    point : bool
        In evaluation, take means in place of draws: αμ, or μ where α > ½.

    Raises
    ------
    DataError
        For another module or option.

    References
    ----------
    L. Skaaret-Lund, G. Storvik and A. Hubin, "Sparsifying Bayesian neural networks with latent binary variables and
    normalizing flows", 2023, arXiv:2305.03395.

    Examples
    --------
    >>> layer = SpikeSlab(nn.Linear(3, 2))
    >>> y, divergence = layer(torch.ones(5, 3), torch.Generator().manual_seed(0))
    >>> y.shape, layer.weight.inclusion().shape
    (torch.Size([5, 2]), torch.Size([2, 3]))
    """

    def __init__(
        self,
        module: nn.Module,
        prior: SlabPrior | None = None,
        *,
        inclusion: bool = True,
        bias_inclusion: bool = False,
        multiplier: FlowOptions | None = None,
        estimator: str = "local",
        temperature: float = 0.1,
        compiled: bool = False,
        start: SlabStart | None = None,
        bias_start: SlabStart | None = None,
    ) -> None:
        super().__init__()
        if estimator not in ("local", "relaxed"):
            raise DataError(f"estimator={estimator!r} was given; allowed are 'local' and 'relaxed'")
        if not temperature > 0.0:
            raise DataError(f"temperature={temperature} was given; a positive number is allowed")
        self.act = Act.of(module)
        self.estimator, self.temperature, self.structure, self.point = estimator, temperature, "average", False
        self.compiled = compiled
        prior, weight, bias = prior or SlabPrior(), cast(Tensor, module.weight), cast(Tensor | None, module.bias)
        self.weight = Weights(weight, prior.against(weight.shape), inclusion=inclusion, start=start or SlabStart())
        self.bias = None
        if bias is not None:
            start, own = bias_start or SlabStart(), prior.of_biases().against(bias.shape)
            self.bias = Weights(bias, own, inclusion=bias_inclusion, start=start)
        self.multiplier = None
        if multiplier is not None:
            self.multiplier = Multiplier(weight.shape[1 if self.act.linear else 0], multiplier)

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Draw outputs or weights; the divergence is in float64."""
        mean: Tensor = self.weight.mean
        latent = None
        if self.multiplier is not None:
            z, log_q = latent = self.multiplier(generator)
            mean = mean * self.act.along(z)
        own = self.weight.moments(mean, compiled=self.compiled)
        bias = None if self.bias is None else self.bias.moments()
        divergence = own.divergence if bias is None else own.divergence + bias.divergence
        if self.multiplier is not None and latent is not None:
            e, (m, v) = self.multiplier.combine, map(self.act.matrix, own[:2])
            log_r = self.multiplier.log_auxiliary(z, m @ e, v @ e.square(), generator)
            divergence = divergence + log_q - log_r
        if self.training and self.estimator == "local":
            return self._local(x, own, bias, generator), divergence
        if self.point and not self.training:
            return self.act(x, *self.point_weights()), divergence
        weight = self._drawn(self.weight, mean, generator)
        drawn = None if self.bias is None else self._drawn(self.bias, self.bias.mean, generator)
        return self.act(x, weight, drawn), divergence

    def point_weights(self) -> tuple[Tensor, Tensor | None]:
        """Return weights and biases without randomness, as `structure` says, with z at its mean."""
        mean: Tensor = self.weight.mean
        if self.multiplier is not None:
            mean = mean * self.act.along(self.multiplier.mean())
        bias = None if self.bias is None else self.bias.point(self.bias.mean, self.structure)
        return self.weight.point(mean, self.structure), bias

    def _drawn(self, weights: Weights, mean: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.training:
            return weights.relaxed(mean, self.temperature, generator)
        return weights.drawn(mean, self.structure, generator)

    def _local(self, x: Tensor, own: Moments, bias: Moments | None, generator: torch.Generator | None) -> Tensor:
        mean = self.act(x, own.mean, None if bias is None else bias.mean)
        with torch.autocast(x.device.type, enabled=False):  # variances span too many orders for half precision
            square = x.to(own.variance.dtype).square()
            variance = self.act(square, own.variance, None if bias is None else bias.variance)
        return (_noisy_compiled() if self.compiled else _noisy)(
            mean, variance, torch.empty_like(mean).normal_(generator=generator)
        )


class Act(NamedTuple):
    """How weights act on inputs: a linear map, or a convolution with its stride, padding, dilation and groups."""

    apply: Callable[..., Tensor]
    linear: bool = True
    kernel: int = 0  # axes of a weight after the first
    pad: Callable[..., Tensor] | None = None

    @classmethod
    def of(cls, module: nn.Module) -> "Act":
        """Read it off a module.

        Raises
        ------
        DataError
            For modules that are neither linear nor a convolution.
        """
        if type(module) is nn.Linear:
            return cls(F.linear)
        function = _CONVOLUTIONS.get(type(module))
        if function is None:
            names = "nn.Linear, nn.Conv1d, nn.Conv2d and nn.Conv3d"
            raise DataError(f"a layer of type {type(module).__name__} was given; weights with spikes are in {names}")
        module = cast(nn.Conv2d, module)
        how: dict[str, Any] = {"stride": module.stride, "dilation": module.dilation, "groups": module.groups}
        kernel = module.weight.ndim - 1
        if module.padding_mode == "zeros":
            return cls(partial(function, padding=module.padding, **how), False, kernel)
        pad = partial(F.pad, pad=list(module._reversed_padding_repeated_twice), mode=module.padding_mode)
        return cls(partial(function, **how), False, kernel, pad)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Apply weights (outputs, inputs, ...) to x (B, inputs, ...)."""
        return self.apply(x if self.pad is None else self.pad(x), weight, bias)

    def along(self, z: Tensor) -> Tensor:
        """Give z, one number per input of a linear map or per filter, the shape that multiplies weights."""
        return z if self.linear else z.reshape(-1, *(1,) * self.kernel)

    def matrix(self, weight: Tensor) -> Tensor:
        """Return weights as a matrix whose rows z runs along."""
        return weight if self.linear else weight.flatten(1).mT


def _noisy(mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
    # without a bias a row of zeros has no variance, where the root has no derivative
    return mean + variance.clamp_min(1e-12).sqrt() * noise


@cache
def _noisy_compiled() -> Callable[..., Tensor]:
    return torch.compile(_noisy, dynamic=True)


def gaussian_divergence(mean: Tensor, scale: Tensor, prior_scale: float = 1.0) -> Tensor:
    """KL(N(ν, σ²) ‖ N(0, s²)) = ½ Σ [ν²/s² + σ²/s² − 1 − ln(σ²/s²)], in nats, summed over elements.

    Examples
    --------
    >>> gaussian_divergence(torch.tensor([2.0]), torch.tensor([1.0])).item()
    2.0
    """
    ratio = (scale / prior_scale).square()
    return 0.5 * ((mean / prior_scale).square() + ratio - 1.0 - ratio.log()).sum()


def prior_scales(module: nn.Module, prior: "WeightPrior") -> dict[str, float]:
    """Return the prior's standard deviation s of every parameter of `module` that carries it, by name."""
    return {
        f"{prefix}.{name}" if prefix else name: prior.scale_of(parameter)
        for prefix, part in module.named_modules()
        if prior.norms or not isinstance(part, _NORMS)
        for name, parameter in part.named_parameters(recurse=False)
    }


def weight_decay(parameters: Sequence[Tensor], sizes: Tensor) -> Tensor:
    """Return ½|θ|² of every tensor, for point estimates θ.

    Divided by s² this is KL(N(θ, s²I) ‖ N(0, s²I)): the divergence of a posterior as wide as the prior. Evaluating
    the likelihood at θ, as maximum a posteriori fits do, does not make it an evidence bound; it is penalised maximum
    likelihood. The gradient is added in closed form and leaves no graph.

    Parameters
    ----------
    parameters : sequence of P Tensors
        Point estimates.
    sizes : Tensor of int64, shape (P,)
        Number of elements of each, on the same device.

    Returns
    -------
    float64 Tensor, shape (P,)
        Summed in double precision, since the bound and the gradient of the structure rest on it.
    """
    if not parameters:
        return torch.zeros(0, dtype=torch.float64, device=sizes.device)
    decay: Tensor = _WeightDecay.apply(sizes, *parameters)
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
    def forward(ctx: torch.autograd.function.FunctionCtx, sizes: Tensor, *parameters: Tensor) -> Tensor:
        flat = _flatten_dense_tensors(parameters)
        ctx.save_for_backward(flat, sizes)
        ctx.like = parameters  # type: ignore[attr-defined]
        # "unsafe" leaves out a check of the sizes that reads the device
        return torch.segment_reduce(flat.double().square(), "sum", lengths=sizes, unsafe=True) * 0.5

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        flat, sizes = ctx.saved_tensors  # type: ignore[attr-defined]
        weight = grad.to(flat.dtype).repeat_interleave(sizes, output_size=len(flat))
        return None, *_unflatten_dense_tensors(flat * weight, ctx.like)  # type: ignore[attr-defined]
