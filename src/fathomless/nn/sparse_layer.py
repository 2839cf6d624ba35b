"""A layer with spike-and-slab weights, and nested draws of structures and weights."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fathomless.nn.layers import BayesianLayer
from fathomless.nn.multiplicative_flow import FlowOptions, Multiplier
from fathomless.nn.spike_slab import SlabPrior, SlabStart, SpikeSlabPosterior, WeightMoments, inclusions_from
from fathomless.system import checks
from fathomless.system.draws import normal
from fathomless.system.errors import DataError
from fathomless.system.rng import branch

__all__ = ["LinearMap", "SpikeSlab", "draw_nested", "split_draws"]

Result = TypeVar("Result")

_CONVOLUTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}


class SpikeSlab(BayesianLayer):
    r"""A linear map or convolution with spike-and-slab weights γw, with γ ~ Bernoulli(α), w ~ N(zμ, σ²).

    Options select one of five methods. With `inclusion` and no multiplier it is LBBNN (``estimator="relaxed"``) or
    LBBNN-LRT ("local"); with a `multiplier` it is LBBNN-FLOW. Without `inclusion` it is mean field or, with a
    multiplier, multiplicative normalising flows (MNF).

    In training, "local" draws the outputs from normals with their exact mean and variance,

    .. math:: h_j = \sum_i x_i z_i \alpha_{ij} \mu_{ij} + b_j + \epsilon_j \Big(\sum_i x_i^2 \alpha_{ij}
              (\sigma_{ij}^2 + (1 - \alpha_{ij}) z_i^2 \mu_{ij}^2) + \sigma_{b_j}^2\Big)^{1/2},

    independently for every row (they are normal in the limit of many weights). "relaxed" draws weights with inclusions
    between 0 and 1, once for all rows. In evaluation mode weights are drawn exactly, once for all rows.

    Parameters
    ----------
    module : nn.Linear, nn.Conv1d, nn.Conv2d or nn.Conv3d
        Type of the layer, and initial means. z has one element for each input of a linear map, or for each filter of a
        convolution.
    prior : SlabPrior
        Prior of weights and inclusions.
    inclusion, bias_inclusion : bool
        If true, weights, or biases, have inclusion variables.
    multiplier : FlowOptions, optional
        Law of z; None is z = 1.
    estimator : {"local", "relaxed"}
        Estimator of the expected log-likelihood in training.
    temperature : float
        Temperature of relaxed inclusions.
    compiled : bool
        Compile elementwise operations on weights and outputs. A training step of a large network then takes a sixth to
        a quarter less time (``benchmarks/sparse.py``), but the first one takes some seconds more.
    start, bias_start : SlabStart
        Initial values.

    Attributes
    ----------
    predict_by : {"average", "median"}
        Inclusions in evaluation mode: drawn from their posterior, or those with α > ½ (the median model).
    use_means : bool
        If true, weights in evaluation mode are means and not draws: αμ, or μ for α > ½.

    Raises
    ------
    DataError
        If the module or an option is not allowed.

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
        checks.choice("estimator", estimator, ("local", "relaxed"))
        checks.positive("temperature", temperature)
        self.act = LinearMap.of(module)
        self.estimator = estimator
        self.temperature = temperature
        self.predict_by = "average"
        self.use_means = False
        self.compiled = compiled
        prior = prior or SlabPrior()
        weight, bias = cast(Tensor, module.weight), cast(Tensor | None, module.bias)
        self.weight = SpikeSlabPosterior(
            weight, prior.for_shape(weight.shape), inclusion=inclusion, start=start or SlabStart()
        )
        self.bias = None
        if bias is not None:
            bias_prior = prior.for_biases().for_shape(bias.shape)
            self.bias = SpikeSlabPosterior(bias, bias_prior, inclusion=bias_inclusion, start=bias_start or SlabStart())
        self.multiplier = None
        if multiplier is not None:
            self.multiplier = Multiplier(weight.shape[1 if self.act.linear else 0], multiplier)

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Apply the layer with drawn outputs or weights; the divergence is in float64."""
        mean: Tensor = self.weight.mean
        latent = None
        if self.multiplier is not None:
            z, log_q = latent = self.multiplier(generator)
            mean = mean * self.act.align(z)
        moments = self.weight.moments(mean, compiled=self.compiled)
        bias = None if self.bias is None else self.bias.moments()
        divergence = moments.divergence if bias is None else moments.divergence + bias.divergence
        if self.multiplier is not None and latent is not None:
            # log q(z) − log r(z | W, Γ), with the moments of eᵀ(W∘Γ) for r
            e = self.multiplier.combine
            m, v = map(self.act.to_matrix, moments[:2])
            log_r = self.multiplier.log_auxiliary(z, m @ e, v @ e.square(), generator)
            divergence = divergence + log_q - log_r
        if self.training and self.estimator == "local":
            return self._draw_outputs(x, moments, bias, generator), divergence
        if self.use_means and not self.training:
            return self.act(x, *self.mean_weights()), divergence
        weight = self._draw(self.weight, mean, generator)
        bias_draw = None if self.bias is None else self._draw(self.bias, self.bias.mean, generator)
        return self.act(x, weight, bias_draw), divergence

    def mean_weights(self) -> tuple[Tensor, Tensor | None]:
        """Return the means of weights and biases according to `predict_by`, with z at its mean."""
        mean: Tensor = self.weight.mean
        if self.multiplier is not None:
            mean = mean * self.act.align(self.multiplier.mean())
        bias = None if self.bias is None else self.bias.means(self.bias.mean, self.predict_by)
        return self.weight.means(mean, self.predict_by), bias

    def is_structure_random(self) -> bool:
        """Return True if evaluation draws inclusions, and any of them is not fixed."""
        if self.predict_by != "average" or self.use_means:
            return False
        return any(w.logit is not None and not w.frozen for w in (self.weight, self.bias) if w is not None)

    def _draw(self, weights: SpikeSlabPosterior, mean: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.training:
            return weights.draw_relaxed(mean, self.temperature, generator)
        return weights.draw(mean, self.predict_by, generator)

    def _draw_outputs(
        self, x: Tensor, weight: WeightMoments, bias: WeightMoments | None, generator: torch.Generator | None
    ) -> Tensor:
        mean = self.act(x, weight.mean, None if bias is None else bias.mean)
        with torch.autocast(x.device.type, enabled=False):  # the range of variances is too large for half precision
            square = x.to(weight.variance.dtype).square()
            variance = self.act(square, weight.variance, None if bias is None else bias.variance)
        add_noise = _add_noise_compiled() if self.compiled else _add_noise
        return add_noise(mean, variance, normal(mean, generator))


class LinearMap(NamedTuple):
    """Linear function of inputs and weights: a linear map, or a convolution with its options."""

    apply: Callable[..., Tensor]
    linear: bool = True
    kernel: int = 0  # number of axes of a weight after the first
    pad: Callable[..., Tensor] | None = None

    @classmethod
    def of(cls, module: nn.Module) -> "LinearMap":
        """Build the function of a module.

        Raises
        ------
        DataError
            If the module is neither a linear map nor a convolution.
        """
        if type(module) is nn.Linear:
            return cls(F.linear)
        function = _CONVOLUTIONS.get(type(module))
        if function is None:
            names = "nn.Linear, nn.Conv1d, nn.Conv2d and nn.Conv3d"
            raise DataError(f"a layer of type {type(module).__name__} was given; spike-and-slab weights are in {names}")
        module = cast(nn.Conv2d, module)
        options: dict[str, Any] = {"stride": module.stride, "dilation": module.dilation, "groups": module.groups}
        kernel = module.weight.ndim - 1
        if module.padding_mode == "zeros":
            return cls(partial(function, padding=module.padding, **options), False, kernel)
        pad = partial(F.pad, pad=list(module._reversed_padding_repeated_twice), mode=module.padding_mode)
        return cls(partial(function, **options), False, kernel, pad)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Apply weights (outputs, inputs, ...) to x (B, inputs, ...)."""
        return self.apply(x if self.pad is None else self.pad(x), weight, bias)

    def align(self, z: Tensor) -> Tensor:
        """Reshape z, one number per input of a linear map or per filter, so that it broadcasts to weights."""
        return z if self.linear else z.reshape(-1, *(1,) * self.kernel)

    def to_matrix(self, weight: Tensor) -> Tensor:
        """Return weights as a matrix, with z along its rows."""
        return weight if self.linear else weight.flatten(1).mT


def _add_noise(mean: Tensor, variance: Tensor, noise: Tensor) -> Tensor:
    # without a bias a row of zeros has variance 0, at which the root has no derivative
    return mean + variance.clamp_min(1e-12).sqrt() * noise


@cache
def _add_noise_compiled() -> Callable[..., Tensor]:
    return torch.compile(_add_noise, dynamic=True)


def split_draws(n: int) -> list[int]:
    """Divide n draws among sampled structures; return the number of weight draws for each structure.

    There are two for each, and three for the first if n is odd. With one draw per structure the uncertainty of weights
    and structure cannot be separated, and with more there are fewer structures. For n < 4 there is one structure.

    Examples
    --------
    >>> split_draws(8), split_draws(5), split_draws(3)
    ([2, 2, 2, 2], [3, 2], [3])
    """
    structures = max(1, n // 2)
    return [n // structures + (i < n % structures) for i in range(structures)]


def draw_nested(
    apply: Callable[[], Result], n: int, layers: Sequence[SpikeSlab], generator: torch.Generator | None
) -> tuple[list[Result], list[int], bool]:
    """Evaluate a network n times, with several draws of the weights for each sampled structure.

    Parameters
    ----------
    apply : callable
        Function that runs one pass, with weights from `generator`.
    n : int
        Number of passes.
    layers : sequence of SpikeSlab
        Spike-and-slab layers of the network.
    generator : torch.Generator, optional
        Generator of the weights; the generators of structures are derived from its state.

    Returns
    -------
    results : list of n
        Results of the passes.
    structures : list of n int
        Structure of each pass, from 0.
    sampled : bool
        True if structures are drawn, that is, if any inclusion is not fixed.
    """
    if not any(layer.is_structure_random() for layer in layers):
        return [apply() for _ in range(n)], [0] * n, False
    results: list[Result] = []
    structures: list[int] = []
    for i, count in enumerate(split_draws(n)):
        inclusions = branch(generator, "inclusions", i)
        for _ in range(count):
            inclusions.manual_seed(inclusions.initial_seed())  # the same structure, with other weights
            with inclusions_from(inclusions):
                results.append(apply())
            structures.append(i)
    return results, structures, True
