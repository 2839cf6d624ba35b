r"""Sampler of the weights of a network, their scales and the noise: Gibbs steps, then a Hamiltonian trajectory.

A sweep has two steps. First, the precisions α of groups of weights and the noise are drawn from their conditional laws
given the weights (:mod:`fathomless.inference.mcmc.scales`). Then a trajectory at fixed noise
(:mod:`fathomless.inference.mcmc.hmc`) moves standardised weights z and log precisions s together,

.. math:: w_j = z_j\, e^{-s_{g(j)} / 2} / \sqrt{n_j}, \qquad
          \log p(z, s) = -\tfrac12 \sum_j z_j^2 + \sum_g (a s_g - b e^{s_g}) + \text{const} ,

with the gradients :math:`\partial_{z_j} = e^{-s/2} n_j^{-1/2}\, \partial_{w_j}` and
:math:`\partial_{s_g} = -\tfrac12 \sum_{j \in g} w_j\, \partial_{w_j}` of the log-likelihood. The draw of α given w is
narrow if a group has many weights, and hardly moves. At fixed z a change of s changes all weights of the group, and
only the rows restrict it. Both parametrisations interweave in each sweep (Yu and Meng, 2011, To center or not to
center: That is not the question). Scales of wide layers have about ten times as many effective draws as with
trajectories at fixed scales (``benchmarks/results/hmc.txt``).

The mass of a coordinate is the precision of its prior plus τ times the information of the rows about it. During burn-in
the information is estimated by the mean square of the gradient of the log-likelihood, divided by τ. For z its mean in
equilibrium is that of the curvature, plus :math:`E z^2 - 1`. Afterwards it is fixed, as is the step size, so that all
kept states come from one transition kernel.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fathomless.inference.mcmc.chains import Arrays, JointSampler
from fathomless.inference.mcmc.hmc import StepSize, leapfrog
from fathomless.inference.mcmc.scales import (
    Groups,
    Noise,
    Observation,
    log_prior_of_log_precision,
    slope_of_log_precision,
)
from fathomless.nn.flat import FlatNetworks
from fathomless.system.errors import DataError

__all__ = ["NetworkSampler", "WeightState"]

_JITTER = 0.2  # relative random variation of the step size, which avoids periodic trajectories
_TARGET = 0.7  # probability of acceptance
_FIRST_STEP = 0.05  # initial step size
_SHARE = 0.1  # first guess of the information, as a share of the number of rows
_ESTIMATED = 0.75  # share of the burn-in in which the information is estimated; only the step is adapted in the rest
_TRUST, _FORGET = 5.0, 0.03  # sweeps that the first guess counts as, and the smallest share of a new sweep
_DIVERGED = 1000.0  # error of the energy in nats from which on a trajectory has diverged


@dataclass(frozen=True)
class WeightState:
    """State of one chain.

    Attributes
    ----------
    weights : ndarray, shape (P,)
        Weights, in the floating-point type of the network.
    alpha : ndarray, shape (G,)
        Precisions of the groups.
    noise : Noise
        Noise of the targets.
    step : StepSize
        Step size of the trajectories.
    information : ndarray, shape (P + G,)
        Information of the rows about each standardised weight and log precision, for noise of precision 1.
    log_likelihood : float
        Mean log-likelihood in nats per row, with the scales of single rows integrated out.
    acceptance : float
        Probability of acceptance of the last trajectory.
    diverged : int
        Number of trajectories with an error of the energy of more than a thousand nats, or an energy that is not
        finite.
    """

    weights: NDArray[Any]
    alpha: NDArray[np.float64]
    noise: Noise
    step: StepSize
    information: NDArray[np.float64]
    log_likelihood: float = math.nan
    acceptance: float = math.nan
    diverged: int = 0


class NetworkSampler(JointSampler[WeightState]):
    """Sampler of the posterior of the weights of one network, their scales, and the noise.

    Parameters
    ----------
    network : nn.Module
        (N, D) -> (N, K); see :class:`~fathomless.nn.flat.FlatNetworks` for the supported layers.
    x : Tensor, shape (N, D)
        Rows, in the floating-point type of the trajectories.
    observed : Observation
        Targets of the rows.
    leapfrogs : int
        Number of leapfrog steps of a trajectory.
    adapting : int
        Number of sweeps during which the step size is adapted.
    """

    def __init__(
        self, network: nn.Module, x: Tensor, observed: Observation, *, leapfrogs: int = 40, adapting: int = 0
    ) -> None:
        self.network = network.to(x.device, x.dtype)
        self.x = x
        self.observed = observed
        self.leapfrogs = leapfrogs
        self.adapting = adapting
        self.groups = Groups.of(network)
        self._target: _Target | None = None

    def start(self, generator: np.random.Generator) -> WeightState:
        """Draw a state from the prior."""
        alpha = self.groups.draw(generator)
        normal = generator.standard_normal(len(self.groups.fan_in))
        weights = normal / np.sqrt(self.groups.precision(alpha))
        information = np.full(len(normal) + len(alpha), _SHARE * len(self.x))
        noise = self.observed.start(generator)
        return WeightState(self._cast(weights), alpha, noise, StepSize.start(_FIRST_STEP), information)

    def begin(self, weights: Tensor, generator: np.random.Generator) -> WeightState:
        """Return a state with given weights (P,), and the rest drawn from the prior."""
        drawn = self.start(generator)
        return replace(drawn, weights=self._cast(weights.double().cpu().numpy()))

    def sweep_all(
        self, states: Sequence[WeightState], done: int, generators: Sequence[np.random.Generator]
    ) -> list[WeightState]:
        """Move all chains by one sweep."""
        target = self._stack(states)
        pairs = list(zip(states, generators, strict=True))
        before = target.networks(self.x)
        outputs = before.double().cpu().numpy()
        alpha = np.array([self.groups.redraw(state.weights.astype(np.float64), g) for state, g in pairs])
        noise = [self.observed.redraw(f, state.noise, g) for f, (state, g) in zip(outputs, pairs, strict=True)]
        tau = np.array([[float(n.precision.mean()) if n.precision.size else 1.0] for n in noise])
        target.set_noise(noise)
        position = target.standardize(alpha)
        information = self._estimate_information(target, position, states, done, tau)
        mass = self.groups.prior_information + tau * information
        step = np.array([[state.step.step * g.uniform(1.0 - _JITTER, 1.0 + _JITTER)] for state, g in pairs])
        momentum = np.array([g.standard_normal(mass.shape[1]) for g in generators]) * np.sqrt(mass)
        after, error = self._trajectory(
            target, position, *(torch.as_tensor(array, device="cpu").to(before) for array in (mass, step, momentum))
        )
        chance = np.where(np.isfinite(error), np.exp(-np.maximum(error, 0.0)), 0.0)
        accepted = np.array([g.random() for g in generators]) < chance
        ends = torch.where(torch.from_numpy(accepted).to(before.device)[:, None, None], after, before)
        log_likelihood = self.observed.row_log_prob(ends, noise).mean(1).tolist()
        end_weights, end_alpha = target.networks.weights.cpu().numpy(), target.precision_of(position)
        return [
            replace(
                state,
                weights=end_weights[i].copy() if accepted[i] else state.weights,
                alpha=end_alpha[i] if accepted[i] else alpha[i],
                noise=noise[i],
                step=self._adapt_step(state.step, done, float(chance[i])),
                information=information[i],
                log_likelihood=log_likelihood[i],
                acceptance=float(chance[i]),
                diverged=state.diverged + (not error[i] < _DIVERGED),
            )
            for i, state in enumerate(states)
        ]

    def _trajectory(
        self, target: "_Target", position: Tensor, mass: Tensor, step: Tensor, momentum: Tensor
    ) -> tuple[Tensor, NDArray[np.float64]]:
        """Move positions along trajectories, in place; return the outputs at the ends and the errors of the energy."""

        def energy() -> tuple[Tensor, Tensor]:
            f, log_density = target.log_density(position)
            return f, 0.5 * (momentum.square() / mass).double().sum(1).cpu() - log_density

        _, initial = energy()
        leapfrog(position, momentum, lambda: target.gradient(position), mass, step, self.leapfrogs)
        end, final = energy()
        return end, (final - initial).numpy()

    def _estimate_information(
        self,
        target: "_Target",
        position: Tensor,
        states: Sequence[WeightState],
        done: int,
        tau: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return the information of the rows about each coordinate, updated in the first part of the burn-in."""
        before = np.array([state.information for state in states])
        if done >= _ESTIMATED * self.adapting:
            return before
        square = target.likelihood_gradient(position).double().cpu().numpy() ** 2 / tau
        rate = max(1.0 / (done + _TRUST), _FORGET)
        estimated: NDArray[np.float64] = (1.0 - rate) * before + rate * square
        return estimated

    def _adapt_step(self, step: StepSize, done: int, chance: float) -> StepSize:
        """Return the step size after a trajectory: adapted during the burn-in, then fixed."""
        if done >= self.adapting:
            return step
        step = step.update(chance, _TARGET)
        return step.freeze() if done + 1 == self.adapting else step

    def follow(self, state: WeightState) -> dict[str, float]:
        """Return the log-likelihood, the probability of acceptance, the noise and the scales."""
        scales = dict(zip((f"scale of {name}" for name in self.groups.names), np.log(state.alpha) * -0.5, strict=True))
        noise = {f"noise {t}": -0.5 * math.log(p) for t, p in enumerate(state.noise.precision)}
        return {
            "log_likelihood": state.log_likelihood,
            "acceptance": state.acceptance,
            **noise,
            **scales,
        }

    def keep(self, state: WeightState) -> Arrays:
        """Return copies of weights, scales and noise."""
        return {
            "weights": state.weights.copy(),
            "alpha": state.alpha,
            "precision": state.noise.precision,
            "df": state.noise.df,
        }

    def noise_of(self, kept: Arrays) -> Noise:
        """Return the noise of a kept state, without the scales of rows."""
        return Noise(kept["precision"], kept["df"], np.zeros((0, 0)))

    def pack(self, state: WeightState) -> Arrays:
        """Return the whole state as arrays."""
        numbers = [*asdict(state.step).values(), state.log_likelihood, state.acceptance, state.diverged]
        noise = {f"noise_{field.name}": getattr(state.noise, field.name) for field in fields(Noise)}
        arrays = {name: getattr(state, name) for name in ("weights", "alpha", "information")}
        return {**arrays, **noise, "numbers": np.array(numbers, dtype=np.float64)}

    def unpack(self, arrays: Arrays) -> WeightState:
        """Restore a state from the result of :meth:`pack`."""
        step, average, centre, error, count, fit, acceptance, diverged = arrays["numbers"].tolist()
        noise = Noise(*(arrays[f"noise_{field.name}"].copy() for field in fields(Noise)))
        size = StepSize(step, average, centre, error, int(count))
        weights, alpha, information = (arrays[name].copy() for name in ("weights", "alpha", "information"))
        if len(information) != len(weights) + len(alpha):
            raise DataError(
                "the checkpoint is of an earlier version, whose trajectories have fixed scales; delete it for a new fit"
            )
        return WeightState(weights, alpha, noise, size, information, fit, acceptance, int(diverged))

    def _cast(self, weights: NDArray[np.float64]) -> NDArray[Any]:
        """Return weights in the floating-point type of the network."""
        cast: NDArray[Any] = torch.from_numpy(weights).to(self.x.dtype).numpy()
        return cast

    def _stack(self, states: Sequence[WeightState]) -> "_Target":
        """Return the target of all chains, whose stacked networks have the weights of their states."""
        if self._target is None or len(self._target.networks) != len(states):
            self._target = _Target(FlatNetworks(self.network, len(states)), self.groups, self.x, self.observed)
        weights = np.array([state.weights for state in states])
        self._target.networks.weights.copy_(torch.as_tensor(weights, device="cpu"))
        return self._target


class _Target:
    """Density of standardised weights and log precisions, at fixed noise. Positions are (z, s), of shape (C, P + G)."""

    noise: Sequence[Noise]
    force: Callable[[Tensor], Tensor]

    def __init__(self, networks: FlatNetworks, groups: Groups, x: Tensor, observed: Observation) -> None:
        self.networks, self.x, self.observed = networks, x, observed
        weights = networks.weights
        self.of_weight = torch.from_numpy(groups.of_weight).to(weights.device)
        members = torch.nn.functional.one_hot(self.of_weight, len(groups.names))
        self.members = members.to(weights)  # (P, G); sums by a product have the same order on every device
        self.over_root = torch.from_numpy(groups.fan_in**-0.5).to(weights)

    def set_noise(self, noise: Sequence[Noise]) -> None:
        """Set the noise of all chains."""
        self.noise, self.force = noise, self.observed.force(noise, self.networks.weights)

    def standardize(self, alpha: NDArray[np.float64]) -> Tensor:
        """Return the position of the present weights, for given precisions (C, G)."""
        s = torch.from_numpy(np.log(alpha)).to(self.networks.weights)
        return torch.cat([self.networks.weights / self._scale(s), s], 1)

    def precision_of(self, position: Tensor) -> NDArray[np.float64]:
        """Return the precisions of a position, (C, G)."""
        precision: NDArray[np.float64] = self._split(position)[1].double().exp().cpu().numpy()
        return precision

    def log_density(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Set the weights of a position; return the outputs (C, N, K), and log densities (C,) up to a constant."""
        z, s = self._split(position)
        self._set_weights(position)
        f = self.networks(self.x)
        prior = log_prior_of_log_precision(s.double()).sum(1) - 0.5 * z.double().square().sum(1)
        return f, self.observed.log_prob(f, self.noise).cpu() + prior.cpu()

    def likelihood_gradient(self, position: Tensor) -> Tensor:
        """Set the weights of a position; return the gradient of the log-likelihood, (C, P + G)."""
        scale = self._set_weights(position)
        gradient = self.networks.gradient(self.x, self.force)
        of_s = ((gradient * self.networks.weights) @ self.members).mul_(-0.5)
        return torch.cat([gradient.mul_(scale), of_s], 1)

    def gradient(self, position: Tensor) -> Tensor:
        """Return the gradient of the log density, (C, P + G)."""
        z, s = self._split(position)
        gradient = self.likelihood_gradient(position)
        of_z, of_s = self._split(gradient)
        of_z.sub_(z)
        of_s.add_(slope_of_log_precision(s))
        return gradient

    def _set_weights(self, position: Tensor) -> Tensor:
        """Set the weights of a position; return their prior standard deviations, (C, P)."""
        z, s = self._split(position)
        scale = self._scale(s)
        torch.mul(z, scale, out=self.networks.weights)
        return scale

    def _split(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Return z (C, P) and s (C, G) as views."""
        return position[:, : len(self.of_weight)], position[:, len(self.of_weight) :]

    def _scale(self, s: Tensor) -> Tensor:
        """Return the prior standard deviation of every weight, (C, P)."""
        return (-0.5 * s).exp().index_select(1, self.of_weight).mul_(self.over_root)
