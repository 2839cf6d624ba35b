r"""Hierarchical scales of weights, and noise, with exact conditional draws.

Weights are :math:`w_j = v_j / \sqrt{n_j}` with the fan-in n of their unit, and

.. math:: v_j \mid \alpha \sim N(0, 1/\alpha_{g(j)}), \qquad \alpha_g \sim \mathrm{Gamma}(a, b) ,

where a group g holds the weights of one input, the weights of a later layer, or the biases of a layer. For the weights
of an input, n is the square root of the number of inputs D. Functions under the prior are then equally rough for few
and many columns, if about √D columns matter. The conditional law is

.. math:: \alpha_g \mid v \sim \mathrm{Gamma}\Big(a + \tfrac12 n_g,\; b + \tfrac12 \sum_{j \in g} v_j^2\Big) .

Numeric targets have Gaussian noise of precision τ, or Student's t noise with ν degrees of freedom, as a mixture over
scales u. With errors e and sample weights s,

.. math::
    u_i \mid \nu, \tau &\sim \mathrm{Gamma}\big(\tfrac12 s_i (\nu + 1),\; \tfrac12 (\nu + \tau e_i^2)\big), \\
    \tau \mid u &\sim \mathrm{Gamma}\Big(a_\tau + \tfrac12 \sum_i s_i,\; b_\tau + \tfrac12 \sum_i u_i e_i^2\Big) ,

(u of a row is the sum over its copies). ν is sampled by Metropolis steps with u integrated out, under the prior
:math:`\log (\nu - 2) \sim N(\log 8, 1)`.

References
----------
Neal (1996), Bayesian Learning for Neural Networks, chapters 1 and 3.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln
from torch import Tensor, nn

from fathomless.posterior.likelihoods import Gaussian, Likelihood, LocationScale, StudentT
from fathomless.posterior.noise import LearnedNoise
from fathomless.system.errors import DataError

__all__ = [
    "GivenLikelihood",
    "Groups",
    "Noise",
    "Observation",
    "ScaledNoise",
    "log_prior_of_log_precision",
    "observation",
    "slope_of_log_precision",
]

Array = NDArray[np.float64]

_SHAPE, _RATE = 1.0, 0.5  # a and b
_NOISE_SHAPE, _NOISE_RATE = 1.0, 0.01  # of the prior of τ, for a target of unit variance
_DF_CENTRE, _DF_SPREAD = math.log(8.0), 1.0  # mean and standard deviation of the prior of log(ν - 2)
_DF_LOW, _DF_HIGH = 2.05, 200.0  # range of ν
_DF_MOVES, _DF_STEP = 5, 0.6  # Metropolis steps in a sweep, and standard deviation of their proposals


@dataclass(frozen=True, eq=False)
class Groups:
    """Groups of weights that share a scale.

    Attributes
    ----------
    names : tuple of G str
        Names of the groups: inputs by their number, then parameters by their name.
    of_weight : ndarray of int, shape (P,)
        Group of each weight.
    fan_in : ndarray, shape (P,)
        n of each weight: 1 for biases, √D for the weights of one of D inputs.
    inputs : int
        Number of groups that are inputs; they come first.
    """

    names: tuple[str, ...]
    of_weight: NDArray[np.int64]
    fan_in: Array
    inputs: int

    @classmethod
    def of(cls, network: nn.Module) -> "Groups":
        """Group the parameters of a network; each input has its own scale if the first layer is linear.

        Examples
        --------
        >>> Groups.of(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))).names
        ('input 0', 'input 1', '0.bias', '2.weight', '2.bias')
        """
        named = list(network.named_parameters())
        first = next((part for part in network.modules() if list(part.parameters(recurse=False))), None)
        inputs = first.in_features if isinstance(first, nn.Linear) else 0
        names = [f"input {i}" for i in range(inputs)]
        groups, fans = [], []
        for i, (name, parameter) in enumerate(named):
            shape = parameter.shape
            if i == 0 and inputs:  # the first weight matrix: its columns belong to the inputs
                groups.append(np.tile(np.arange(inputs), shape[0]))
                fans.append(np.full(shape.numel(), math.sqrt(inputs)))
                continue
            groups.append(np.full(shape.numel(), len(names)))
            fans.append(np.full(shape.numel(), float(shape[1:].numel() if len(shape) > 1 else 1)))
            names.append(name)
        return cls(tuple(names), np.concatenate(groups).astype(np.int64), np.concatenate(fans), inputs)

    def draw(self, generator: np.random.Generator) -> Array:
        """Draw α from its prior, (G,)."""
        return generator.gamma(_SHAPE, 1.0 / _RATE, len(self.names))

    def redraw(self, weights: Array, generator: np.random.Generator) -> Array:
        """Draw α from its conditional law given weights (P,); (G,)."""
        square = np.bincount(self.of_weight, self.fan_in * weights**2)
        count = np.bincount(self.of_weight, np.ones(len(weights)))
        return generator.standard_gamma(_SHAPE + 0.5 * count) / (_RATE + 0.5 * square)

    @property
    def prior_information(self) -> Array:
        """Information of the prior about standardised weights and log precisions, (P + G,): 1, and E(bα) = a."""
        return np.concatenate([np.ones(len(self.fan_in)), np.full(len(self.names), _SHAPE)])

    def precision(self, alpha: Array) -> Array:
        """Return the prior precision of every weight, (..., P) from (..., G)."""
        return alpha[..., self.of_weight] * self.fan_in


def log_prior_of_log_precision(s: Tensor) -> Tensor:
    """Return the log prior density of s = log α, up to a constant.

    Examples
    --------
    >>> log_prior_of_log_precision(torch.tensor([0.0, 1.0], device="cpu")).round(decimals=3)
    tensor([-0.5000, -0.3590])
    """
    return _SHAPE * s - _RATE * s.exp()


def slope_of_log_precision(s: Tensor) -> Tensor:
    """Return the derivative of :func:`log_prior_of_log_precision`."""
    return _SHAPE - _RATE * s.exp()


@dataclass(frozen=True)
class Noise:
    """Noise of one chain, for T targets.

    Attributes
    ----------
    precision : ndarray, shape (T,)
        Precision τ.
    df : ndarray, shape (T,)
        Degrees of freedom ν; infinite for Gaussian noise.
    scales : ndarray, shape (N, T)
        Scales u, summed over the copies of a row; the sample weights s for Gaussian noise.
    """

    precision: Array
    df: Array
    scales: Array


class Observation(ABC):
    """Targets and their law p(y | f), as a sampler needs them."""

    @abstractmethod
    def start(self, generator: np.random.Generator) -> Noise:
        """Draw the noise from its prior."""

    @abstractmethod
    def redraw(self, f: Array, noise: Noise, generator: np.random.Generator) -> Noise:
        """Sample the noise of one chain, given its outputs (N, K)."""

    @abstractmethod
    def log_prob(self, f: Tensor, noise: Sequence[Noise]) -> Tensor:
        """Return the log density of all rows, up to a constant in f, (C,) from (C, N, K)."""

    @abstractmethod
    def force(self, noise: Sequence[Noise], like: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the function f -> derivative of the log density in f, (C, N, K), with type and device of `like`."""

    @abstractmethod
    def row_log_prob(self, f: Tensor, noise: Sequence[Noise]) -> Tensor:
        """Return the log density of each row with scales integrated out, as in predictions, (C, N)."""


def observation(likelihood: Likelihood, y: Tensor, weight: Tensor | None) -> Observation:
    """Return the observation of a likelihood: its noise is sampled if it has a learned scale, and fixed otherwise.

    Raises
    ------
    DataError
        If the likelihood has a learned scale and is neither Gaussian nor Student's t.
    """
    count = torch.ones(len(y), dtype=torch.float64, device="cpu") if weight is None else weight.double().cpu()
    if not isinstance(likelihood, LocationScale) or not isinstance(likelihood.noise, LearnedNoise):
        return GivenLikelihood(likelihood, y, count)
    if isinstance(likelihood, Gaussian):
        return ScaledNoise(y, count, math.inf, free=False)
    if isinstance(likelihood, StudentT):
        return ScaledNoise(y, count, float(likelihood.df().detach().mean()), free=likelihood.raw_df is not None)
    raise DataError(
        f"likelihood={type(likelihood).__name__} was given; noise can be sampled for 'auto', 'gaussian' and 'student_t'"
    )


class ScaledNoise(Observation):
    """Numeric targets with noise of unknown scale.

    Parameters
    ----------
    y : Tensor, shape (N, T)
        Standardised targets.
    count : Tensor, shape (N,)
        Sample weights.
    df : float
        Initial degrees of freedom; infinite for Gaussian noise.
    free : bool
        If True, the degrees of freedom are sampled.
    """

    def __init__(self, y: Tensor, count: Tensor, df: float, *, free: bool) -> None:
        self.y = y
        self.count = count.numpy()[:, None]
        self.target = y.double().cpu().numpy()
        self.df = df
        self.free = free

    def start(self, generator: np.random.Generator) -> Noise:
        """Draw τ, ν and u from their priors."""
        targets = self.y.shape[1]
        precision = generator.gamma(_NOISE_SHAPE, 1.0 / _NOISE_RATE, targets)
        df = np.full(targets, self.df)
        while self.free:  # rejection sampling from the prior truncated at _DF_HIGH
            df = 2.0 + np.exp(generator.normal(_DF_CENTRE, _DF_SPREAD, targets))
            if (df < _DF_HIGH).all():
                break
        return replace(Noise(precision, df, self._unit_scales()), scales=self._prior_scales(df, generator))

    def redraw(self, f: Array, noise: Noise, generator: np.random.Generator) -> Noise:
        """Sample ν with u integrated out, then u and τ from their conditional laws."""
        square = (self.target - f) ** 2
        df = noise.df
        if math.isinf(self.df):
            scales = self._unit_scales()
        else:
            z2 = noise.precision * square
            for _ in range(_DF_MOVES if self.free else 0):
                df = self._sample_df(df, z2, generator)
            scales = generator.standard_gamma(0.5 * self.count * (df + 1.0)) / (0.5 * (df + z2))
        shape = _NOISE_SHAPE + 0.5 * self.count.sum()
        rate = _NOISE_RATE + 0.5 * (scales * square).sum(0)
        return Noise(generator.standard_gamma(shape, len(rate)) / rate, df, scales)

    def log_prob(self, f: Tensor, noise: Sequence[Noise]) -> Tensor:
        """Return -τ/2 Σ u e²."""
        error = (f - self.y).double()
        return -0.5 * (self._weights(noise, error) * error.square()).sum((1, 2))

    def force(self, noise: Sequence[Noise], like: Tensor) -> Callable[[Tensor], Tensor]:
        """Return f -> τ u (y - f)."""
        weights = self._weights(noise, like)
        pull = weights * self.y
        return lambda f: torch.addcmul(pull, weights, f, value=-1.0)

    def row_log_prob(self, f: Tensor, noise: Sequence[Noise]) -> Tensor:
        """Return the log density of the Gaussian or Student's t law."""
        precision, df = (
            torch.tensor(np.array([getattr(n, name) for n in noise]), device=f.device)[:, None]
            for name in ("precision", "df")
        )
        z2 = precision * (f.double() - self.y).square()
        if math.isinf(self.df):
            log_p = 0.5 * (precision / (2.0 * math.pi)).log() - 0.5 * z2
        else:
            constant = torch.lgamma(0.5 * (df + 1.0)) - torch.lgamma(0.5 * df) - 0.5 * (df * math.pi).log()
            log_p = constant + 0.5 * precision.log() - 0.5 * (df + 1.0) * torch.log1p(z2 / df)
        return log_p.sum(-1)

    def _unit_scales(self) -> Array:
        """Return u = 1 for all copies of each row, (N, T)."""
        return np.broadcast_to(self.count, self.target.shape).copy()

    def _weights(self, noise: Sequence[Noise], like: Tensor) -> Tensor:
        """Return τ u of all chains, (C, N, T), with type and device of `like`."""
        weights = np.array([n.precision * n.scales for n in noise])
        return torch.from_numpy(weights).to(like)

    def _prior_scales(self, df: Array, generator: np.random.Generator) -> Array:
        """Draw u from its prior given ν, (N, T)."""
        if math.isinf(self.df):
            return self._unit_scales()
        return generator.standard_gamma(0.5 * self.count * df) / (0.5 * df)

    def _sample_df(self, df: Array, z2: Array, generator: np.random.Generator) -> Array:
        """Take a Metropolis step in log(ν - 2) for every target."""

        def log_density(nu: Array) -> Array:
            constant = gammaln(0.5 * (nu + 1.0)) - gammaln(0.5 * nu) - 0.5 * np.log(nu)
            rows = self.count * (constant - 0.5 * (nu + 1.0) * np.log1p(z2 / nu))
            total: Array = rows.sum(0) - 0.5 * ((np.log(nu - 2.0) - _DF_CENTRE) / _DF_SPREAD) ** 2
            return total

        new = 2.0 + np.exp(np.log(df - 2.0) + _DF_STEP * generator.standard_normal(len(df)))
        inside = (new > _DF_LOW) & (new < _DF_HIGH)
        gain = log_density(np.where(inside, new, df)) - log_density(df)
        return np.where(inside & (np.log(generator.random(len(df))) < gain), new, df)


class GivenLikelihood(Observation):
    """Likelihood without a learned scale: classes, noise that depends on the input, or known noise."""

    def __init__(self, likelihood: Likelihood, y: Tensor, count: Tensor) -> None:
        self.likelihood = likelihood
        self.y = y
        self.count = count

    def start(self, generator: np.random.Generator) -> Noise:
        """Return a noise without targets, since nothing is sampled."""
        return Noise(np.zeros(0), np.zeros(0), np.zeros((0, 0)))

    def redraw(self, f: Array, noise: Noise, generator: np.random.Generator) -> Noise:
        """Return the noise unchanged."""
        return noise

    def log_prob(self, f: Tensor, noise: Sequence[Noise]) -> Tensor:
        """Return Σ s log p(y | f)."""
        return self.row_log_prob(f, noise) @ self.count.to(f.device)

    def force(self, noise: Sequence[Noise], like: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the derivative by automatic differentiation."""
        count = self.count.to(like)

        def derivative(f: Tensor) -> Tensor:
            with torch.enable_grad():
                leaf = f.detach().requires_grad_()
                total = (self.likelihood.log_prob(leaf, self.y) * count).sum()
            return torch.autograd.grad(total, leaf)[0]

        return derivative

    def row_log_prob(self, f: Tensor, noise: Sequence[Noise]) -> Tensor:
        """Return log p(y | f)."""
        return self.likelihood.log_prob(f.detach(), self.y).double().detach()
