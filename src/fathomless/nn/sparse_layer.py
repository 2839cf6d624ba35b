"""A layer whose weights may be absent, and draws of structures and weights in turn."""

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

__all__ = ["LinearMap", "SpikeSlab", "nested_draws", "weight_draws"]

Result = TypeVar("Result")

_CONVOLUTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}


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
    predict_by : {"average", "median"}
        What is drawn in evaluation: inclusions from their posterior, or those with α > ½ (the median model).
    use_means : bool
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
        checks.choice("estimator", estimator, ("local", "relaxed"))
        checks.positive("temperature", temperature)
        self.act = LinearMap.of(module)
        self.estimator, self.temperature, self.predict_by, self.use_means = estimator, temperature, "average", False
        self.compiled = compiled
        prior, weight, bias = prior or SlabPrior(), cast(Tensor, module.weight), cast(Tensor | None, module.bias)
        self.weight = SpikeSlabPosterior(
            weight, prior.against(weight.shape), inclusion=inclusion, start=start or SlabStart()
        )
        self.bias = None
        if bias is not None:
            start, own = bias_start or SlabStart(), prior.of_biases().against(bias.shape)
            self.bias = SpikeSlabPosterior(bias, own, inclusion=bias_inclusion, start=start)
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
        if self.use_means and not self.training:
            return self.act(x, *self.mean_weights()), divergence
        weight = self._drawn(self.weight, mean, generator)
        drawn = None if self.bias is None else self._drawn(self.bias, self.bias.mean, generator)
        return self.act(x, weight, drawn), divergence

    def mean_weights(self) -> tuple[Tensor, Tensor | None]:
        """Return weights and biases without randomness, as `predict_by` says, with z at its mean."""
        mean: Tensor = self.weight.mean
        if self.multiplier is not None:
            mean = mean * self.act.along(self.multiplier.mean())
        bias = None if self.bias is None else self.bias.means(self.bias.mean, self.predict_by)
        return self.weight.means(mean, self.predict_by), bias

    def draws_structure(self) -> bool:
        """Whether an evaluation draws which weights there are, and the posterior leaves that open."""
        if self.predict_by != "average" or self.use_means:
            return False
        return any(w.logit is not None and not w.frozen for w in (self.weight, self.bias) if w is not None)

    def _drawn(self, weights: SpikeSlabPosterior, mean: Tensor, generator: torch.Generator | None) -> Tensor:
        if self.training:
            return weights.relaxed(mean, self.temperature, generator)
        return weights.drawn(mean, self.predict_by, generator)

    def _local(
        self, x: Tensor, own: WeightMoments, bias: WeightMoments | None, generator: torch.Generator | None
    ) -> Tensor:
        mean = self.act(x, own.mean, None if bias is None else bias.mean)
        with torch.autocast(x.device.type, enabled=False):  # variances span too many orders for half precision
            square = x.to(own.variance.dtype).square()
            variance = self.act(square, own.variance, None if bias is None else bias.variance)
        return (_noisy_compiled() if self.compiled else _noisy)(mean, variance, normal(mean, generator))


class LinearMap(NamedTuple):
    """How weights act on inputs: a linear map, or a convolution with its stride, padding, dilation and groups."""

    apply: Callable[..., Tensor]
    linear: bool = True
    kernel: int = 0  # axes of a weight after the first
    pad: Callable[..., Tensor] | None = None

    @classmethod
    def of(cls, module: nn.Module) -> "LinearMap":
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
        options: dict[str, Any] = {"stride": module.stride, "dilation": module.dilation, "groups": module.groups}
        kernel = module.weight.ndim - 1
        if module.padding_mode == "zeros":
            return cls(partial(function, padding=module.padding, **options), False, kernel)
        pad = partial(F.pad, pad=list(module._reversed_padding_repeated_twice), mode=module.padding_mode)
        return cls(partial(function, **options), False, kernel, pad)

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


def weight_draws(n: int) -> list[int]:
    """Say how n draws are divided among structures that are drawn too: how many weights each of them gets.

    Two each, and one of them three if n is odd: with fewer what weights and structures leave open cannot be told apart,
    with more there are fewer structures to average over. Below four draws there is one structure.

    Examples
    --------
    >>> weight_draws(8), weight_draws(5), weight_draws(3)
    ([2, 2, 2, 2], [3, 2], [3])
    """
    structures = max(1, n // 2)
    return [n // structures + (i < n % structures) for i in range(structures)]


def nested_draws(
    apply: Callable[[], Result], n: int, layers: Sequence[SpikeSlab], generator: torch.Generator | None
) -> tuple[list[Result], list[int], bool]:
    """Evaluate a network n times; where structures are drawn too, several times under each of them.

    Parameters
    ----------
    apply : callable
        One pass, with weights from `generator`.
    n : int
        Passes.
    layers : sequence of SpikeSlab
        The layers of the network whose weights may be absent.
    generator : torch.Generator, optional
        Source of the weights; that of the structures follows from its state.

    Returns
    -------
    results : list of n
        What the passes gave.
    structures : list of n int
        The structure of each pass, from 0.
    sampled : bool
        Whether structures were drawn: whether any inclusion is open.
    """
    if not any(layer.draws_structure() for layer in layers):
        return [apply() for _ in range(n)], [0] * n, False
    results, structures = [], []
    for i, count in enumerate(weight_draws(n)):
        inclusions = branch(generator, "inclusions", i)
        for _ in range(count):
            inclusions.manual_seed(inclusions.initial_seed())  # the same structure again, with other weights
            with inclusions_from(inclusions):
                results.append(apply())
            structures.append(i)
    return results, structures, True
