"""Hamiltonian Monte Carlo of the weights, for each structure, initialised at the networks of a fit.

The weights of the structures come from the fit, or from leave-one-out densities of the sampled networks. Convergence
diagnostics are those of functions, scales and noise, because the weights themselves are not identified.
"""

import copy
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
from fathomless.estimators.left_out import count_left_out, predict_left_out
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.problem import Problem, Session
from fathomless.estimators.strategies import SVI, CrossFit
from fathomless.estimators.values import HMC
from fathomless.inference.mcmc.chains import Chains, Plan, run_chains
from fathomless.inference.mcmc.diagnostics import diagnose, ess_bulk
from fathomless.inference.mcmc.psis import MOST_UNRELIABLE, TRUSTED, leave_one_out
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
from fathomless.posterior.likelihoods import ClassLikelihood, Likelihood, LocationScale
from fathomless.posterior.model import Model
from fathomless.posterior.noise import InputNoise
from fathomless.posterior.structure import ListedPosterior
from fathomless.system.errors import DataError
from fathomless.system.rng import building, fold_in

__all__ = ["UNRELIABLE_SHARE", "Hamiltonian", "StructureSamples", "describe_nonconvergence"]

UNRELIABLE_SHARE = 0.05  #: share of rows with a large k-hat beyond which a finding is reported
_LEAST = 0.02  # smallest weight of a structure that is sampled
_MOST = 4  # largest number of structures that are sampled
_FEWEST = 3  # smallest number of chains of a structure
_POINTS = 100  # number of training rows, and of random inputs, at which functions are compared

_RHAT = 1.1
_HOUR = 3600.0
_TIMED = 3  # number of gradients in the estimate of the running time
_MARGIN = 2.0  # factor on the estimate, for other work and other loads


@dataclass(frozen=True)
class StructureSamples:
    """Posterior samples of one structure with their leave-one-out densities and diagnostics.

    Attributes
    ----------
    run : Chains
        Chains with their retained states.
    loo, shape : Tensors, shape (N,)
        Log leave-one-out densities, and k̂ of their importance weights.
    groups : Groups
        Groups of weights that share a scale.
    record : dict
        Records and diagnostics of the chains, as plain JSON.
    """

    run: Chains[WeightState]
    loo: Tensor
    shape: Tensor
    groups: Groups
    record: dict[str, Any]


@dataclass(frozen=True)
class Hamiltonian:
    """Inference by Hamiltonian chains of the weights, within each structure to which a fit gives weight.

    Attributes
    ----------
    start : SVI or CrossFit
        Fit whose networks are the initial states of the chains.
    start_problem, start_session
        Problem and session of that fit.
    assemble : callable
        Builds the model of the retained states from a problem, a table, the masses of the structures and their samples.
    state_noise : callable
        Replaces a fitted likelihood by one whose noise parameters are part of the outputs f.
    options : HMC
        Options of the chains.
    double : bool
        True if weights are sampled in double precision.
    """

    start: SVI | CrossFit
    start_problem: Problem
    start_session: Session
    assemble: Callable[[Problem, Prepared, Mapping[int, float], Mapping[int, StructureSamples]], Model]
    state_noise: Callable[[Likelihood], Likelihood]
    options: HMC
    double: bool = False

    def infer(self, problem: Problem, table: Prepared, session: Session) -> Fitted:
        """Fit networks, then sample their weights."""
        train = table.train
        if isinstance(self.start, CrossFit) and any(self.start.candidates):
            raise DataError("weights='hmc' was given with candidates, which it does not support; leave candidates out")
        if not isinstance(train, Rows) or ranks().count > 1:
            raise DataError(
                "weights='hmc' was given with a stream or several processes; it needs a table in memory and one process"
            )
        if problem.head != "point":
            raise DataError(
                f"weights='hmc' was given with last_layer={problem.head!r}; sampled heads already have a posterior: "
                "leave out last_layer"
            )
        self._refuse_long(table, session)
        fitted = self.start.infer(self.start_problem, table, self.start_session)
        likelihood, factor = _drop_factor(fitted)
        members = list_members(fitted.model)
        first = members[0]
        if not isinstance(first, HasLogJoint) or not isinstance(first, ListedStructure):
            raise missing_capability(first, HasLogJoint, "weights='hmc'", "use weights='map'")
        posterior = cast(ListedPosterior, first.structure())
        masses = _select_structures(dict(zip(map(int, posterior.names), posterior.probabilities, strict=True)))
        samples = {}
        for number, chains in _allocate_chains(self.options.chains, masses).items():
            networks = [cast(HasLogJoint, member).network(number) for member in members]
            samples[number] = self._run_structure(table, session, number, networks, likelihood, chains)
        structure = _restrict_weights(cast(CrossFitDiagnostics, fitted.diagnostics).structure, masses)
        narrowing = factor if structure else ()
        log_density = torch.stack([samples[number].loo for number in masses], 1)
        known = max(sample.record["unknown"] for sample in samples.values()) <= MOST_UNRELIABLE
        if self.options.structure_weights == "stacking" and len(masses) > 1 and known:
            prior = log_prior_of(first, list(masses))
            weight = None if train.weight is None else train.weight.double().cpu()
            q = stacking.refit(log_density, prior, weight)
            rows = torch.arange(len(train), device="cpu")
            densities = LogDensities(tuple(masses), log_density, rows, weight)
            narrowing = ()  # of the fitted noise, which the sampled noise replaces
            structure = fit_structure_weights(first, densities, q, None, None, table.seed)
            masses = {number: p for number, p in zip(masses, q.tolist(), strict=True) if p > 0.0}
        log_q = torch.tensor([masses.get(number, 0.0) for number in samples], dtype=torch.float64, device="cpu").log()
        row_log_density = torch.logsumexp(log_density + log_q, 1)
        records = {str(number): sample.record for number, sample in samples.items()}
        prior_mass = log_prior_of(first, list(masses)).softmax(0).tolist()
        diagnostics = CrossFitDiagnostics(
            structure=structure, narrowing=narrowing, prior=tuple(prior_mass), sampling=records
        )
        model = self.assemble(problem, table, masses, {number: samples[number] for number in masses})
        likelihood = self.state_noise(likelihood)
        return Fitted(
            model=model,
            likelihood=likelihood,
            history=[{**row, "structure": number} for number, sample in samples.items() for row in sample.run.history],
            n_iter=self.options.sweeps,
            score=float((train.counts @ row_log_density) / train.counts.sum()) if known else None,
            seed=table.seed,
            diagnostics=diagnostics,
            left_out=predict_left_out(model, likelihood, table) if problem.is_recalibrated else None,
            warnings=tuple(describe_nonconvergence(diagnostics)),
        )

    def _run_structure(
        self,
        table: Prepared,
        session: Session,
        number: int,
        networks: Sequence[nn.Module],
        likelihood: Likelihood,
        chains: int,
    ) -> StructureSamples:
        """Run the chains of one structure."""
        rows = cast(Rows, table.train)
        x = rows.x.to(self._weights_dtype())
        plan = Plan.of(chains, self.options.sweeps, 0.5, self.options.states, usual=30)
        likelihood = likelihood.to(x.dtype).requires_grad_(False)
        y = rows.y.to(x.dtype) if rows.y.is_floating_point() else rows.y
        observed = observation(likelihood, y, rows.weight)
        sampler = NetworkSampler(networks[0], x, observed, leapfrogs=self.options.leapfrogs, adapting=plan.first)
        starts = [flatten(network) for network in networks]

        def fingerprint() -> str:
            options = {**session.lasting, "seed": table.seed}
            return saving.fingerprint(rows, table.valid, starts, plan, options)

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
        return _summarize_chains(sampler, run, fold_in(table.seed, "box", number), *count_left_out(table))

    def _weights_dtype(self) -> torch.dtype:
        """Return the floating-point type of the sampled weights."""
        return torch.float64 if self.double else torch.float32

    def _refuse_long(self, table: Prepared, session: Session) -> None:
        """Refuse a time limit, and a run of more than an hour, by timing a few gradients before any training."""
        if session.limit is not None:
            raise DataError(
                f"minutes={session.limit.minutes:g} was given with weights='hmc', whose time depends on the number of "
                "sweeps; set weights__sweeps instead"
            )
        rows = cast(Rows, table.train)
        options = self.options
        with building(table.seed):
            problem = self.start_problem
            likelihood = problem.task.likelihood(table.target)
            model = problem.networks._build_model(table.inputs, likelihood, table.seed, self._weights_dtype()).to(
                table.device
            )
        if not isinstance(model, HasLogJoint):
            raise missing_capability(model, HasLogJoint, "weights='hmc'", "use weights='map'")
        largest = max(map(int, cast(ListedPosterior, model.structure()).names))
        networks = FlatNetworks(model.network(largest), options.chains)
        x = rows.x.to(self._weights_dtype())
        begun = time.perf_counter()
        for _ in range(_TIMED):
            networks.gradient(x, lambda f: f)
        seconds = _MARGIN * (time.perf_counter() - begun) / _TIMED * options.leapfrogs * options.sweeps
        if seconds > _HOUR:
            raise DataError(
                f"weights='hmc' was given for {len(rows):,} rows and networks of up to {networks.weights.shape[1]:,} "
                f"weights, which takes about {seconds / _HOUR:.1f} hours for each structure; up to 1 hour is allowed: "
                f"lower weights__sweeps (now {options.sweeps}), weights__leapfrogs (now {options.leapfrogs}) or "
                f"weights__chains (now {options.chains}), or use weights='map'"
            )


def describe_nonconvergence(diagnostics: Diagnostics) -> list[str]:
    """Return the warnings about sampled weights, one sentence each."""
    sampling = diagnostics.sampling if isinstance(diagnostics, CrossFitDiagnostics) else {}
    texts = []
    # "not <=", since R-hat is NaN where it is undefined
    unmixed = {number: record for number, record in sampling.items() if not record["rhat"] <= _RHAT}
    if unmixed:
        worst = max(unmixed.values(), key=lambda record: math.inf if math.isnan(record["rhat"]) else record["rhat"])
        texts.append(
            f"the chains of depth {', '.join(unmixed)} have not mixed: R-hat of 5 % of the predictions is above "
            f"{worst['rhat']:.2f} (median {worst['rhat_median']:.2f}); raise weights__sweeps or weights__leapfrogs"
        )
    still = [number for number, record in sampling.items() if record.get("still", False)]
    if still:
        texts.append(
            f"the chains of depth {', '.join(still)} never moved: every state equals the initial one; "
            "raise weights__sweeps or weights__leapfrogs"
        )
    unknown = {number: record for number, record in sampling.items() if record.get("unknown", 0.0) > MOST_UNRELIABLE}
    if unknown:
        largest = max(record["unknown"] for record in unknown.values())
        texts.append(
            f"leave-one-out densities of depth {', '.join(unknown)} cannot be estimated: k-hat is above {TRUSTED} for "
            f"{largest:.0%} of the rows. There is no validation score, and the depths keep the weights of the fit "
            "before sampling. Duplicate rows make the posterior too narrow for these estimates: give each row once"
        )
    return texts


def _drop_factor(fitted: Fitted) -> tuple[Likelihood, tuple[float, ...]]:
    """Return the likelihood of the chains, and the factor that it has for the average of point estimates.

    Predicted scales lose the factor that suits point estimates, and classes have the temperature of single networks.
    """
    likelihood, narrowing = copy.deepcopy(fitted.likelihood), cast(CrossFitDiagnostics, fitted.diagnostics).narrowing
    if isinstance(likelihood, LocationScale) and isinstance(likelihood.noise, InputNoise):
        likelihood.noise.log_factor = None
    if isinstance(likelihood, ClassLikelihood) and narrowing:
        return likelihood.widen(1.0 / narrowing[0]), ()
    return likelihood, narrowing


def _percentile(values: NDArray[np.float64], share: float) -> float:
    """Return a percentile; without interpolation if values are infinite."""
    finite = bool(np.isfinite(values).all())
    return float(np.percentile(values, share, method="linear" if finite else "higher"))


def _select_structures(posterior: Mapping[int, float]) -> dict[int, float]:
    """Return the structures to sample, at most four with a weight above 2 %, with their weights renormalised."""
    likely = sorted((number for number, p in posterior.items() if p > _LEAST), key=lambda number: -posterior[number])
    chosen = sorted(likely[:_MOST])
    total = sum(posterior[number] for number in chosen)
    return {number: posterior[number] / total for number in chosen}


def _allocate_chains(chains: int, masses: Mapping[int, float]) -> dict[int, int]:
    """Return the number of chains of each structure: all for the largest weight, others in proportion, at least 3."""
    most = max(masses.values())
    return {number: max(min(_FEWEST, chains), round(chains * p / most)) for number, p in masses.items()}


def _restrict_weights(fit: StructureWeights | None, masses: Mapping[int, float]) -> StructureWeights | None:
    """Restrict the weights of a fit to the sampled structures."""
    if fit is None:
        return None
    places = [fit.numbers.index(number) for number in masses]
    return replace(
        fit,
        numbers=tuple(fit.numbers[place] for place in places),
        weights=tuple(masses.values()),
        errors=tuple(fit.errors[place] for place in places),
        single=tuple(fit.single[place] for place in places),
        poisson=tuple(fit.poisson[place] for place in places),
        log_density=tuple(fit.log_density[place] for place in places),
    )


@torch.no_grad()
def _summarize_chains(
    sampler: NetworkSampler,
    run: Chains[WeightState],
    seed: int,
    counts: NDArray[np.float64] | None,
    unit: NDArray[np.int64] | None,
) -> StructureSamples:
    """Compute leave-one-out densities of the rows, and compare the chains by the values of their functions."""
    x = sampler.x
    chains = run.chains
    states = len(chains[0].kept)
    noise = np.random.default_rng(seed)
    rows = x[torch.as_tensor(np.sort(noise.permutation(len(x))[:_POINTS]), device="cpu")]
    low, high = x.min(0).values, x.max(0).values
    # random points show whether chains agree beyond the training rows as well
    box = low + (high - low) * torch.from_numpy(noise.random((_POINTS, x.shape[1]))).to(x)
    networks = FlatNetworks(sampler.network, len(chains))
    outputs, densities = [], []
    for place in range(states):  # one state of every chain at once
        states_now = [chain.kept[place] for chain in chains]
        networks.weights.copy_(torch.as_tensor(np.array([state["weights"] for state in states_now]), device="cpu"))
        densities.append(sampler.observed.row_log_prob(networks(x), [sampler.noise_of(state) for state in states_now]))
        outputs.append(networks(torch.cat([rows, box])).double())
    values = torch.stack(outputs, 1).flatten(2).cpu().numpy()  # (C, states, points)
    table = torch.stack(densities, 1).flatten(0, 1).cpu().double().numpy()  # (S, N)
    functions = [diagnose(values[:, :, point]) for point in range(values.shape[2])] if states >= 4 else []
    rhats = np.array([1.0 if function.rhat is None else function.rhat for function in functions] or [math.inf])
    rhats = np.where(np.isnan(rhats), math.inf, rhats)  # an undefined R-hat counts as not mixed
    # relative efficiency of the draws, by which the length of the smoothed tail is set
    share = ess_bulk(table.mean(1).reshape(len(chains), states)) / len(table) if states >= 4 else 1.0
    loo, shape = leave_one_out(table, min(1.0, share), counts=counts, unit=unit)
    followed = {name: asdict(result) for name, result in run.diagnose().items() if name != "acceptance"}
    record = {
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
        "ess": float(np.median([function.ess_bulk for function in functions])) if functions else 0.0,
        "mcse": float(np.median([f.mcse / max(f.sd, 1e-300) for f in functions])) if functions else 1.0,
        "doubtful": float((shape > TRUSTED).mean()),
        "unknown": float((np.isfinite(shape) & (shape > TRUSTED)).mean()),  # k̂ is infinite if there are too few draws
        "followed": followed,
        "traces": [chain.traces["log_likelihood"] for chain in chains],
        "every": run.plan.every,
        **({"still": True} if functions and all(function.constant for function in functions) else {}),
    }
    return StructureSamples(
        run, torch.as_tensor(loo, device="cpu"), torch.as_tensor(shape, device="cpu"), sampler.groups, record
    )
