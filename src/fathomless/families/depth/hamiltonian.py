"""Sampling of weights: Hamiltonian chains for each structure, from the networks of a fit.

Structures are weighed by the fit, or by leave-one-out densities of the sampled networks. What the chains say of their
own convergence is told of functions, of scales and of the noise: weights themselves are not identified.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fathomless.data.rows import Rows
from fathomless.estimators import saving
from fathomless.estimators.finalize import fit_structure_weights
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.problem import Problem, Session
from fathomless.estimators.strategies import SVI, CrossFit
from fathomless.estimators.values import HMC
from fathomless.inference.mcmc.chains import Chains, Plan, run_chains
from fathomless.inference.mcmc.diagnostics import diagnose, ess_bulk
from fathomless.inference.mcmc.psis import TRUSTED, leave_one_out
from fathomless.inference.mcmc.scales import Groups, observation
from fathomless.inference.mcmc.weight_sampler import NetworkSampler, WeightState
from fathomless.inference.out_of_fold import stacking
from fathomless.inference.out_of_fold.search import LogDensities, log_prior_of
from fathomless.inference.runs.distributed import ranks
from fathomless.inference.runs.run import Fitted
from fathomless.nn.flat import FlatNetworks, flatten
from fathomless.posterior.capabilities import HasLogJoint, ListedStructure, missing_capability
from fathomless.posterior.ensemble import list_members
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics, Diagnostics, StructureWeights
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Model
from fathomless.posterior.structure import ListedPosterior
from fathomless.system.errors import DataError
from fathomless.system.rng import building, fold_in

__all__ = ["DOUBTED", "Hamiltonian", "Sampled", "unconverged"]

DOUBTED = 0.05  #: share of rows with a large k-hat beyond which it is told
_UNKNOWN = 0.25  # share of rows with a large k-hat beyond which leave-one-out densities are not used
_LEAST, _MOST = 0.02, 4  # weight of a structure that is sampled, and how many are
_FEWEST = 3  # chains of a structure
_POINTS = 100  # training rows, and random inputs, where functions are compared

_RHAT = 1.1
_HOUR = 3600.0
_TIMED = 3  # gradients by which time is estimated
_MARGIN = 2.0  # of the estimate: other work, other loads


@dataclass(frozen=True)
class Sampled:
    """What the chains of one structure have come to.

    Attributes
    ----------
    run : Chains
        With the states that were kept.
    loo, shape : Tensors, shape (N,)
        Log leave-one-out densities, and k̂ of their weights.
    groups : Groups
        Which weights share a scale.
    told : dict
        Records and diagnostics, as plain JSON.
    """

    run: Chains[WeightState]
    loo: Tensor
    shape: Tensor
    groups: Groups
    told: dict[str, Any]


@dataclass(frozen=True)
class Hamiltonian:
    """Hamiltonian chains of the weights, within each structure that a fit has given weight.

    Attributes
    ----------
    start : SVI or CrossFit
        Fit whose networks the chains begin at.
    start_problem, start_session
        Problem and session of that fit.
    assemble : callable
        Returns the model of what the chains kept, for a problem, a table, the masses of structures and their chains.
    state_noise : callable
        Returns p(y | f) of that model, whose networks state their noise, in place of a fitted one.
    options : HMC
        Options of the chains.
    double : bool
        True if weights move in double precision.
    """

    start: SVI | CrossFit
    start_problem: Problem
    start_session: Session
    assemble: Callable[[Problem, Prepared, Mapping[int, float], Mapping[int, Sampled]], Model]
    state_noise: Callable[[Likelihood], Likelihood]
    options: HMC
    double: bool = False

    def infer(self, problem: Problem, table: Prepared, session: Session) -> Fitted:
        """Fit networks, then sample."""
        train, several = table.train, isinstance(self.start, CrossFit) and len(self.start.kinds) > 1
        if not isinstance(train, Rows) or ranks().count > 1 or several:
            raise DataError(
                "weights='hmc' was given with a stream, several processes, or several candidate architectures "
                "(candidates); weights are sampled for a table, by one process, for one architecture: leave the other "
                "option out"
            )
        if problem.head != "point":
            raise DataError(
                f"weights='hmc' was given with last_layer={problem.head!r}; sampled heads have a posterior "
                "already: leave last_layer out"
            )
        self._refuse_long(table)
        fitted = self.start.infer(self.start_problem, table, self.start_session)
        members = list_members(fitted.model)
        first = members[0]
        if not isinstance(first, HasLogJoint) or not isinstance(first, ListedStructure):
            raise missing_capability(first, HasLogJoint, "weights='hmc'", "use weights='map'")
        posterior = cast(ListedPosterior, first.structure())
        masses = _heaviest(dict(zip(map(int, posterior.names), posterior.probabilities, strict=True)))
        found = {}
        for number, chains in _shared_out(self.options.chains, masses).items():
            networks = [cast(HasLogJoint, member).network(number) for member in members]
            found[number] = self._chains_of(table, session, number, networks, fitted.likelihood, chains)
        structure = _restricted(cast(CrossFitDiagnostics, fitted.diagnostics).structure, masses)
        narrowing = cast(CrossFitDiagnostics, fitted.diagnostics).narrowing if structure else ()
        log_density = torch.stack([found[number].loo for number in masses], 1)
        known = max(one.told["unknown"] for one in found.values()) <= _UNKNOWN
        if self.options.structure_weights == "stacking" and len(masses) > 1 and known:
            prior = log_prior_of(first, list(masses))
            weight = None if train.weight is None else train.weight.double().cpu()
            q = stacking.refit(log_density, prior, weight)
            rows = torch.arange(len(train), device="cpu")
            densities, narrowing = LogDensities(tuple(masses), log_density, rows, weight), ()
            structure = fit_structure_weights(first, densities, q, None, None, table.seed)
            masses = {number: p for number, p in zip(masses, q.tolist(), strict=True) if p > 0.0}
        log_q = torch.tensor([masses.get(number, 0.0) for number in found], dtype=torch.float64, device="cpu").log()
        each = torch.logsumexp(log_density + log_q, 1)
        count = (
            torch.ones(len(each), dtype=torch.float64, device="cpu")
            if train.weight is None
            else train.weight.double().cpu()
        )
        told = {str(number): one.told for number, one in found.items()}
        prior_mass = log_prior_of(first, list(masses)).softmax(0).tolist()
        diagnostics = CrossFitDiagnostics(
            structure=structure, narrowing=narrowing, prior=tuple(prior_mass), sampling=told
        )
        return Fitted(
            model=self.assemble(problem, table, masses, {number: found[number] for number in masses}),
            likelihood=self.state_noise(fitted.likelihood),
            history=[{**row, "structure": number} for number, one in found.items() for row in one.run.history],
            n_iter=self.options.sweeps,
            score=float((count @ each) / count.sum()) if known else None,
            seed=table.seed,
            diagnostics=diagnostics,
            warnings=tuple(unconverged(diagnostics)),
        )

    def _chains_of(
        self,
        table: Prepared,
        session: Session,
        number: int,
        networks: Sequence[nn.Module],
        likelihood: Likelihood,
        chains: int,
    ) -> Sampled:
        """Run the chains of one structure."""
        rows = cast(Rows, table.train)
        x, plan = rows.x.to(self._moving()), Plan.of(chains, self.options.sweeps, 0.5, self.options.states, usual=30)
        likelihood = likelihood.to(x.dtype).requires_grad_(False)
        y = rows.y.to(x.dtype) if rows.y.is_floating_point() else rows.y
        observed = observation(likelihood, y, rows.weight)
        sampler = NetworkSampler(networks[0], x, observed, leapfrogs=self.options.leapfrogs, adapting=plan.first)
        starts = [flatten(network) for network in networks]

        def fingerprint() -> str:
            own = {**session.lasting, "seed": table.seed}
            return saving.fingerprint(rows, table.valid, starts, plan, own)

        callbacks, resume = session.subsession(f"chains-{number}").with_checkpoint(table, fingerprint)
        run = run_chains(
            sampler,
            plan,
            fold_in(table.seed, "chains", number),
            start=lambda k, generator: sampler.begin(starts[k % len(starts)], generator),
            callbacks=callbacks,
            progress=session.display("sweep", {"mean_log_likelihood": "nats per row"}),
            resume=resume,
        )
        counts = None if rows.weight is None else rows.weight.double().cpu().numpy()
        if counts is not None and table.apart:
            counts = np.minimum(counts, 1.0)  # one observation of several that are equal
        unit = None if table.group is None else table.group.numpy()
        return _concluded(sampler, run, fold_in(table.seed, "box", number), counts, unit)

    def _moving(self) -> torch.dtype:
        """Return the type in which weights move."""
        return torch.float64 if self.double else torch.float32

    def _refuse_long(self, table: Prepared) -> None:
        """Refuse what would take longer than an hour, before anything is trained."""
        rows, own = cast(Rows, table.train), self.options
        with building(table.seed):
            problem = self.start_problem
            likelihood = problem.task.likelihood(table.target)
            model = problem.networks._build_model(table.inputs, likelihood, table.seed, self._moving()).to(table.device)
        if not isinstance(model, HasLogJoint):
            raise missing_capability(model, HasLogJoint, "weights='hmc'", "use weights='map'")
        largest = max(map(int, cast(ListedPosterior, model.structure()).names))
        networks = FlatNetworks(model.network(largest), own.chains)
        x = rows.x.to(self._moving())
        begun = time.perf_counter()
        for _ in range(_TIMED):
            networks.gradient(x, lambda f: f)
        seconds = _MARGIN * (time.perf_counter() - begun) / _TIMED * own.leapfrogs * own.sweeps
        if seconds > _HOUR:
            raise DataError(
                f"weights='hmc' was given for {len(rows):,} rows and networks of up to {networks.weights.shape[1]:,} "
                f"weights, which takes about {seconds / _HOUR:.1f} hours for a structure; up to one is allowed: lower "
                f"weights__sweeps (now {own.sweeps}), weights__leapfrogs (now {own.leapfrogs}) or weights__chains (now "
                f"{own.chains}), or use weights='map'"
            )


def unconverged(diagnostics: Diagnostics) -> list[str]:
    """Return the warnings that sampled weights call for, a sentence each."""
    sampling, found = diagnostics.sampling if isinstance(diagnostics, CrossFitDiagnostics) else {}, []
    apart = {number: told for number, told in sampling.items() if not told["rhat"] <= _RHAT}
    if apart:
        worst = max(apart.values(), key=lambda told: math.inf if math.isnan(told["rhat"]) else told["rhat"])
        found.append(
            f"the chains of depth {', '.join(apart)} have not mixed: R-hat of 5 % of what networks predict is above "
            f"{worst['rhat']:.2f} (median {worst['rhat_median']:.2f}); raise weights__sweeps or weights__leapfrogs"
        )
    still = [number for number, told in sampling.items() if told.get("still", False)]
    if still:
        found.append(
            f"the chains of depth {', '.join(still)} never moved: every state is that of the network they began with; "
            "raise weights__sweeps or weights__leapfrogs"
        )
    unknown = {number: told for number, told in sampling.items() if told.get("unknown", 0.0) > _UNKNOWN}
    if unknown:
        worst = max(told["unknown"] for told in unknown.values())
        found.append(
            f"leave-one-out densities of depth {', '.join(unknown)} cannot be estimated: k-hat is above {TRUSTED} for "
            f"{worst:.0%} of the rows. There is no validation score, and depths keep the weights of the fit before "
            "sampling. Copies of rows make the posterior too narrow for this: give each row once"
        )
    return found


def _percentile(values: NDArray[np.float64], share: float) -> float:
    """Return a percentile, which may be infinite: that of values between which nothing can be interpolated."""
    finite = bool(np.isfinite(values).all())
    return float(np.percentile(values, share, method="linear" if finite else "higher"))


def _heaviest(posterior: Mapping[int, float]) -> dict[int, float]:
    """Keep the structures that are sampled, in their order, renormalised."""
    kept = sorted((number for number, p in posterior.items() if p > _LEAST), key=lambda number: -posterior[number])
    chosen = sorted(kept[:_MOST])
    total = sum(posterior[number] for number in chosen)
    return {number: posterior[number] / total for number in chosen}


def _shared_out(chains: int, masses: Mapping[int, float]) -> dict[int, int]:
    """Return how many chains each structure gets: all of them the heaviest, others in proportion, three at least."""
    most = max(masses.values())
    return {number: max(min(_FEWEST, chains), round(chains * p / most)) for number, p in masses.items()}


def _restricted(found: StructureWeights | None, masses: Mapping[int, float]) -> StructureWeights | None:
    """Keep the structures that are sampled."""
    if found is None:
        return None
    places = [found.numbers.index(number) for number in masses]
    return replace(
        found,
        numbers=tuple(found.numbers[place] for place in places),
        weights=tuple(masses.values()),
        errors=tuple(found.errors[place] for place in places),
        single=tuple(found.single[place] for place in places),
        poisson=tuple(found.poisson[place] for place in places),
        log_density=tuple(found.log_density[place] for place in places),
    )


@torch.no_grad()
def _concluded(
    sampler: NetworkSampler,
    run: Chains[WeightState],
    seed: int,
    counts: NDArray[np.float64] | None,
    unit: NDArray[np.int64] | None,
) -> Sampled:
    """Score the rows, each without what is left out with it, and compare the chains as functions."""
    x, chains, states = sampler.x, run.chains, len(run.chains[0].kept)
    noise = np.random.default_rng(seed)
    rows = x[torch.as_tensor(np.sort(noise.permutation(len(x))[:_POINTS]), device="cpu")]
    low, high = x.min(0).values, x.max(0).values
    box = low + (high - low) * torch.from_numpy(noise.random((_POINTS, x.shape[1]))).to(x)
    networks = FlatNetworks(sampler.network, len(chains))
    seen, densities = [], []
    for place in range(states):  # a state of every chain at once
        kept = [chain.kept[place] for chain in chains]
        networks.weights.copy_(torch.as_tensor(np.array([one["weights"] for one in kept]), device="cpu"))
        densities.append(sampler.observed.row_log_prob(networks(x), [sampler.noise_of(one) for one in kept]))
        seen.append(networks(torch.cat([rows, box])).double())
    values = torch.stack(seen, 1).flatten(2).cpu().numpy()  # (C, states, points)
    table = torch.stack(densities, 1).flatten(0, 1).cpu().double().numpy()  # (S, N)
    functions = [diagnose(values[:, :, point]) for point in range(values.shape[2])] if states >= 4 else []
    rhats = np.array([1.0 if one.rhat is None else one.rhat for one in functions] or [math.inf])
    rhats = np.where(np.isnan(rhats), math.inf, rhats)  # undefined is as bad
    share = ess_bulk(table.mean(1).reshape(len(chains), states)) / len(table) if states >= 4 else 1.0
    loo, shape = leave_one_out(table, min(1.0, share), counts=counts, unit=unit)
    followed = {name: asdict(one) for name, one in run.diagnose().items() if name != "acceptance"}
    told = {
        "chains": [
            {
                "chain": chain.number,
                "log_likelihood": float(table.reshape(len(chains), states, -1)[chain.number].mean()),
                "acceptance": float(np.mean(chain.traces["acceptance"][run.plan.first // run.plan.every :])),
                "diverged": chain.state.diverged,
                "states": states,
            }
            for chain in chains
        ],
        "rhat": _percentile(rhats, 95.0),
        "rhat_median": _percentile(rhats, 50.0),
        "ess": float(np.median([one.ess_bulk for one in functions])) if functions else 0.0,
        "mcse": float(np.median([one.mcse / max(one.sd, 1e-300) for one in functions])) if functions else 1.0,
        "doubtful": float((shape > TRUSTED).mean()),
        "unknown": float((np.isfinite(shape) & (shape > TRUSTED)).mean()),  # not for want of draws
        "followed": followed,
        "traces": [chain.traces["log_likelihood"] for chain in chains],
        "every": run.plan.every,
        **({"still": True} if functions and all(one.constant for one in functions) else {}),
    }
    return Sampled(run, torch.as_tensor(loo, device="cpu"), torch.as_tensor(shape, device="cpu"), sampler.groups, told)
