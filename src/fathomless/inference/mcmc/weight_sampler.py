r"""Sampler of the weights of a network, their scales and the noise: Gibbs steps, then a Hamiltonian trajectory.

A sweep draws the scales α of groups of weights and the noise, and then moves the weights by a trajectory at fixed
scales and noise (:mod:`fathomless.inference.mcmc.scales`, :mod:`fathomless.inference.mcmc.hmc`). The mass of a weight
is its prior precision plus τ times the information of the rows about it, so that it follows scales and noise between
trajectories. During burn-in the information is estimated by the mean square of the gradient, divided by τ: in
equilibrium, :math:`E\, (\partial_j U)^2 = E\, \partial_j^2 U`. Afterwards it is fixed, as is the step size, so that
all kept states come from one transition kernel.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fathomless.inference.mcmc.chains import Arrays, JointSampler
from fathomless.inference.mcmc.hmc import StepSize, leapfrog
from fathomless.inference.mcmc.scales import Groups, Noise, Observation
from fathomless.nn.flat import FlatNetworks

__all__ = ["NetworkSampler", "WeightState"]

_JITTER = 0.2  # relative random variation of the step size, which avoids periodic trajectories
_TARGET = 0.7  # probability of acceptance
_FIRST_STEP = 0.05  # initial step size
_SHARE = 0.1  # first guess of the information, as a share of its largest value (rows times fan-in)
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
    information : ndarray, shape (P,)
        Information of the rows about each weight, for noise of precision 1.
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
        self._networks: FlatNetworks | None = None

    def start(self, generator: np.random.Generator) -> WeightState:
        """Draw a state from the prior."""
        alpha = self.groups.draw(generator)
        normal = generator.standard_normal(len(self.groups.fan_in))
        weights = normal / np.sqrt(self.groups.precision(alpha))
        information = _SHARE * len(self.x) * self.groups.fan_in
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
        networks = self._stack(states)
        pairs = list(zip(states, generators, strict=True))
        before = networks(self.x)
        outputs = before.double().cpu().numpy()
        alpha = np.array([self.groups.redraw(state.weights.astype(np.float64), g) for state, g in pairs])
        noise = [self.observed.redraw(f, state.noise, g) for f, (state, g) in zip(outputs, pairs, strict=True)]
        precision = self.groups.precision(alpha)
        tau = np.array([[float(n.precision.mean()) if n.precision.size else 1.0] for n in noise])
        information = self._estimate_information(networks, states, done, noise, precision, tau)
        mass = precision + tau * information
        step = np.array([[state.step.step * g.uniform(1.0 - _JITTER, 1.0 + _JITTER)] for state, g in pairs])
        momentum = np.array([g.standard_normal(len(self.groups.fan_in)) for g in generators]) * np.sqrt(mass)
        after, error = self._trajectory(
            networks,
            before,
            noise,
            *(torch.as_tensor(array, device="cpu").to(before) for array in (precision, mass, step, momentum)),
        )
        chance = np.where(np.isfinite(error), np.exp(-np.maximum(error, 0.0)), 0.0)
        accepted = np.array([g.random() for g in generators]) < chance
        ends = torch.where(torch.from_numpy(accepted).to(before.device)[:, None, None], after, before)
        log_likelihood = self.observed.row_log_prob(ends, noise).mean(1).tolist()
        end_weights = networks.weights.cpu().numpy()
        return [
            replace(
                state,
                weights=end_weights[i].copy() if accepted[i] else state.weights,
                alpha=alpha[i],
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
        self,
        networks: FlatNetworks,
        f: Tensor,
        noise: Sequence[Noise],
        precision: Tensor,
        mass: Tensor,
        step: Tensor,
        momentum: Tensor,
    ) -> tuple[Tensor, NDArray[np.float64]]:
        """Move the networks along trajectories; return the outputs at the ends and the errors of the energy."""
        weights = networks.weights
        force = self.observed.force(noise, weights)

        def energy(f: Tensor) -> Tensor:
            inside = (precision * weights.square() + momentum.square() / mass).double().sum(1)
            return (0.5 * inside).cpu() - self.observed.log_prob(f, noise).cpu()

        def gradient() -> Tensor:
            return networks.gradient(self.x, force).addcmul_(weights, precision, value=-1.0)

        initial = energy(f)
        leapfrog(weights, momentum, gradient, mass, step, self.leapfrogs)
        end = networks(self.x)
        return end, (energy(end) - initial).numpy()

    def _estimate_information(
        self,
        networks: FlatNetworks,
        states: Sequence[WeightState],
        done: int,
        noise: Sequence[Noise],
        precision: NDArray[np.float64],
        tau: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        """Return the information of the rows about each weight, (C, P), updated in the first part of the burn-in."""
        before = np.array([state.information for state in states])
        if done >= _ESTIMATED * self.adapting:
            return before
        gradient = networks.gradient(self.x, self.observed.force(noise, networks.weights)).double().cpu().numpy()
        square = (gradient - precision * networks.weights.double().cpu().numpy()) ** 2 / tau
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
        return WeightState(weights, alpha, noise, size, information, fit, acceptance, int(diverged))

    def _cast(self, weights: NDArray[np.float64]) -> NDArray[Any]:
        """Return weights in the floating-point type of the network."""
        cast: NDArray[Any] = torch.from_numpy(weights).to(self.x.dtype).numpy()
        return cast

    def _stack(self, states: Sequence[WeightState]) -> FlatNetworks:
        """Return the networks of all chains, stacked, with the weights of their states."""
        if self._networks is None or len(self._networks) != len(states):
            self._networks = FlatNetworks(self.network, len(states))
        self._networks.weights.copy_(torch.as_tensor(np.array([state.weights for state in states]), device="cpu"))
        return self._networks
