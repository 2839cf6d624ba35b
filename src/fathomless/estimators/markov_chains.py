"""Markov chains as an inference strategy, and the base class of estimators with sampled posteriors.

On difficult tables, chains find different modes and rarely move between them. Chains are therefore weighted by their
log-likelihood: "selected" uses those close to the best one. This is a heuristic, not part of the model; diagnostics are
reported for the selected chains and for all chains.
"""

import math
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.data.targets import Target, TargetScale
from fathomless.estimators import saving
from fathomless.estimators.base import Estimator
from fathomless.estimators.left_out import predict_left_out
from fathomless.estimators.options import ChainOptions
from fathomless.estimators.predictor import Array
from fathomless.estimators.preparation import Prepared, SplitPlan
from fathomless.estimators.problem import Problem, Session
from fathomless.inference.mcmc.chains import Chain, Chains, Plan, Sampler, run_chains
from fathomless.inference.mcmc.diagnostics import LEAST, Diagnosis, diagnose
from fathomless.inference.out_of_fold import stacking
from fathomless.inference.runs.distributed import ranks
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.svi import assign_parts
from fathomless.posterior.fit_diagnostics import ChainDiagnostics
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.model import Model
from fathomless.system.errors import DataError
from fathomless.system.rng import building, fold_in

__all__ = [
    "MODE_GAP",
    "ChainEstimator",
    "MarkovChains",
    "SampledPosterior",
    "chain_weights",
    "convergence_warnings",
    "mode_gap",
]

MODE_GAP = 0.08  #: nats per row: chains that differ by more are in different modes; half of it per column beyond two
_JUDGED = 2000  # maximum number of rows for the comparison of chains
_FORWARD = 64  # draws of the hidden units of each state for leave-one-out laws
_RHAT, _ESS = 1.1, 100.0  # largest R-hat and smallest effective sample size without a warning


class SampledPosterior(Protocol):
    """Posterior of a table, sampled by chains."""

    @property
    def support(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lower bounds and lengths of the support of the columns of a density, T each; empty for other targets."""

    def sampler(self, x: Array, y: Array, plan: Plan) -> Sampler[Any]:
        """Return the sampler for rows x (N, D) and encoded targets y; the plan increases the number of rows in use."""

    def log_density(self, chain: Chain[Any], x: Tensor, y: Tensor) -> Tensor:
        """Return the log density of rows under the stored states of a chain, (N,)."""

    def model(self, chains: Sequence[Chain[Any]], weights: Sequence[float]) -> Model:
        """Return the model of the stored states of chains, given the weights of the chains."""


@dataclass(frozen=True)
class MarkovChains:
    """Markov chains of a posterior, weighted by their log-likelihood.

    Attributes
    ----------
    posterior : callable
        Function that returns the posterior for a problem, a table and the likelihood.
    chains, sweeps, burn_in, states, chains_by, n_jobs
        As the options of estimators.
    unit : str
        Unit of the progress bar.
    """

    posterior: Callable[[Problem, Prepared, Likelihood], SampledPosterior]
    chains: int
    sweeps: int
    burn_in: float
    states: int | str
    chains_by: str
    n_jobs: int = 1
    unit: str = "sweep"

    def infer(self, problem: Problem, table: Prepared, session: Session) -> Fitted:
        """Run the chains, weight them, and build a model of their states."""
        assert isinstance(table.train, Rows)
        if ranks().count > 1:
            raise DataError(
                f"{ranks().count} processes were started; chains run in a single process, set n_jobs instead"
            )
        if table.device.type != "cpu":
            raise DataError(
                f"device={str(table.device)!r} was given; chains run on the CPU: 'cpu' and 'auto' are allowed"
            )
        with building(table.seed):
            likelihood = problem.task.likelihood(table.target)
        posterior = self.posterior(problem, table, likelihood)
        plan = self._plan(self.sweeps)
        x, y = _repeat_rows(table.train, fold_in(table.seed, "order"))

        def fingerprint() -> str:
            facts = {**session.lasting, "seed": table.seed}
            # the number of parallel chains and of sweeps may change between a run and its continuation
            comparable = replace(plan, jobs=1, states=1 if isinstance(self.states, str) else plan.states)
            return saving.fingerprint(table.train, table.valid, (), comparable, facts, without=("sweeps",))

        callbacks, resume = session.with_checkpoint(table, fingerprint)
        # an extended run keeps the schedule of its first plan, by which the sampler adds rows
        planned = [self.sweeps] if resume is None else resume[1]["planned"]
        sampler = posterior.sampler(x, y, self._plan(planned[0]))
        seed = fold_in(table.seed, "chains")
        display = session.display(self.unit)
        run = run_chains(sampler, plan, seed, callbacks=callbacks, progress=display, resume=resume)
        fitted = self._combine(posterior, likelihood, table, x, y, run)
        if not problem.is_recalibrated:
            return fitted
        return replace(fitted, left_out=predict_left_out(fitted.model, likelihood, table, _FORWARD))

    def _plan(self, sweeps: int) -> Plan:
        return Plan.of(self.chains, sweeps, self.burn_in, self.states, usual=250, jobs=self.n_jobs)

    def _combine(
        self, posterior: SampledPosterior, likelihood: Likelihood, table: Prepared, x: Array, y: Array, run: Chains[Any]
    ) -> Fitted:
        """Weight the chains, and build a model of their states."""
        chains = [chain for chain in run.chains if chain.kept]
        if not chains:
            raise DataError(
                f"all chains stopped before their first stored state; the first error: {run.chains[0].error}"
            )
        subset = np.arange(0, len(x), math.ceil(len(x) / _JUDGED))
        rows = torch.from_numpy(x[subset]), torch.from_numpy(y[subset])
        fits = [float(posterior.log_density(chain, *rows).mean()) for chain in chains]
        held, counts, outside = _score_held_out(posterior, table, chains)
        apart = mode_gap(table.target)
        weights = chain_weights(self.chains_by, fits, held, counts, apart=apart)
        score = None if held is None or not len(held) else self._score_of(fits, weights, held, counts)
        used = [chain.number for chain, weight in zip(chains, weights, strict=True) if weight > 0.0]
        records: list[dict[str, Any]] = [{"chain": c.number, "error": c.error, "states": 0} for c in run.chains]
        for chain, fit, weight in zip(chains, fits, weights, strict=True):
            records[chain.number] |= {"states": len(chain.kept), "log_likelihood": fit, "weight": weight}
        low, span = posterior.support
        diagnostics = ChainDiagnostics(
            apart=apart,
            outside=outside,
            chains=tuple(records),
            diagnostics=_diagnose_traces(run, used),
            diagnostics_of_all=_diagnose_traces(run, [chain.number for chain in chains]),
            traces=_thin_traces(run),
            low=low,
            span=span,
        )
        return Fitted(
            model=posterior.model(chains, weights),
            likelihood=likelihood,
            history=run.history,
            n_iter=run.epoch,
            score=score,
            seed=table.seed,
            resumable=True,
            diagnostics=diagnostics,
            warnings=tuple(convergence_warnings(diagnostics, self.chains_by)),
        )

    def _score_of(self, fits: Sequence[float], weights: Sequence[float], held: Tensor, counts: Tensor) -> float:
        """Return the mean log density of held-out rows (N, C).

        Stacking weights are cross-fitted: those of each part of the rows are fitted to the other parts.
        """
        part = assign_parts(len(held))
        summed = 0.0
        for k in part.unique().tolist():
            inside, rest = part == k, part != k
            if self.chains_by == "stacked" and bool(rest.any()):
                weights = chain_weights(self.chains_by, fits, held[rest], counts[rest])
            mixture = torch.logsumexp(held[inside] + torch.tensor(weights, dtype=held.dtype).log(), 1)
            summed += float((counts[inside] * mixture).sum())
        return summed / float(counts.sum())


def _score_held_out(
    posterior: SampledPosterior, table: Prepared, chains: Sequence[Chain[Any]]
) -> tuple[Tensor | None, Tensor, int]:
    """Return log densities (N, C) and weights (N,) of held-out rows under chains, and the number of rows left out.

    Rows outside the support of every chain are left out, since they cannot distinguish chains.
    """
    rows = table.valid
    if rows is None:
        return None, torch.zeros(0), 0
    assert isinstance(rows, Rows)
    x, y = rows.x.cpu().double(), rows.y.cpu()
    log_density = torch.stack([posterior.log_density(chain, x, y) for chain in chains], 1)
    counts = log_density.new_ones(len(x)) if rows.weight is None else rows.weight.cpu().to(log_density)
    inside = (log_density > -math.inf).any(1)
    return log_density[inside], counts[inside], int((~inside).sum())


class ChainEstimator(ChainOptions, Estimator, ABC):
    """Base class of estimators with posteriors sampled by chains.

    Attributes
    ----------
    chains_ : list of dict
        Record of each chain: its number, "log_likelihood" (of its training rows, in nats per row and in the units of
        the encoded rows), its "weight", the number of stored "states", and an "error" if it stopped early.
    diagnostics_ : dict of str to Diagnosis
        R-hat, effective sample sizes and Monte Carlo errors of the traced quantities, over the chains with weight.
    diagnostics_of_all_ : dict of str to Diagnosis
        The same diagnostics over all chains.
    """

    allows_censored: ClassVar[bool] = False

    @property
    def chains_(self) -> list[dict[str, Any]]:
        """Record of each chain, see above."""
        return [dict(record) for record in self._chain_diagnostics().chains]

    @property
    def diagnostics_(self) -> dict[str, Diagnosis]:
        """Diagnostics over the chains with weight, see above."""
        return {name: Diagnosis(**values) for name, values in self._chain_diagnostics().diagnostics.items()}

    @property
    def diagnostics_of_all_(self) -> dict[str, Diagnosis]:
        """Diagnostics over all chains, see above."""
        return {name: Diagnosis(**values) for name, values in self._chain_diagnostics().diagnostics_of_all.items()}

    def _chain_diagnostics(self) -> ChainDiagnostics:
        return cast(ChainDiagnostics, self.fit_diagnostics_)

    def _chains(
        self, posterior: Callable[[Problem, Prepared, Likelihood], SampledPosterior], unit: str
    ) -> MarkovChains:
        """Return the chains for the options, with the unit of their progress bar."""
        return MarkovChains(
            posterior,
            self.chains,
            self.sweeps,
            self.burn_in,
            self.states,
            self.chains_by,
            n_jobs=self.n_jobs,
            unit=unit,
        )

    def _split_plan(self, count: float, inputs: int, *, grouped: bool = False, stream: bool = False) -> SplitPlan:
        if stream:
            raise DataError("a stream was given, but chains need all rows in every sweep; call fit with a table")
        if grouped and self.validation_fraction == 0.0:
            raise DataError(
                f"groups were given, but {type(self).__name__} holds out no rows; leave them out, or set "
                "validation_fraction"
            )
        if not 0.0 <= self.validation_fraction < 1.0:
            raise DataError(
                f"validation_fraction={self.validation_fraction} was given; 0 <= validation_fraction < 1 is allowed"
            )
        if self.chains_by == "stacked" and self.validation_fraction == 0.0:
            raise DataError(
                "chains_by='stacked' was given, which weights chains by held-out rows; set validation_fraction, for "
                "example to 0.2"
            )
        return SplitPlan(share=self.validation_fraction)


def convergence_warnings(diagnostics: ChainDiagnostics, chains_by: str) -> list[str]:
    """Return the warnings of a run of chains, one sentence each."""
    records = diagnostics.chains
    gap = diagnostics.apart
    messages: list[str] = []
    if diagnostics.outside > 0:
        messages.append(
            f"{diagnostics.outside} held-out rows are outside of the support, which is estimated from the other rows, "
            "and have density zero; they are excluded from the held-out score"
        )
    fits = {record["chain"]: record["log_likelihood"] for record in records if "log_likelihood" in record}
    best, worst = max(fits.values()), min(fits.values())
    if best - worst >= gap:
        near = sum(best - fit < gap for fit in fits.values())
        used = sum(record.get("weight", 0.0) > 0.0 for record in records)
        messages.append(
            f"chains are in different modes: {near} of {len(fits)} are within {gap:g} nats per row of the best, and "
            f"the worst is {best - worst:.2g} below it; {used} have weight (chains_by={chains_by!r}). The posterior "
            "over structure is conditional on the modes that were found"
        )
    errors = [record["error"] for record in records if record["error"]]
    if errors:
        messages.append(f"{len(errors)} of {len(records)} chains stopped early; the first error: {errors[0]}")
    return messages + _mixing_warnings(diagnostics.diagnostics)


def _mixing_warnings(diagnoses: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return warnings of large R-hat, small effective sample sizes and constant traces of the chains with weight."""
    messages: list[str] = []
    rhats = {name: values["rhat"] for name, values in diagnoses.items() if not (values["rhat"] or 1.0) <= _RHAT}
    if rhats:
        name = max(rhats, key=lambda key: math.inf if math.isnan(rhats[key]) else rhats[key])
        messages.append(
            f"the chains with weight have not mixed: R-hat of {name} is {rhats[name]:.2f}, and it is above {_RHAT} for "
            f"{len(rhats)} of {len(diagnoses)} quantities; raise sweeps"
        )
    sizes = {name: min(v["ess_bulk"], v["ess_tail"]) for name, v in diagnoses.items() if v["rhat"] is not None}
    few = {name: size for name, size in sizes.items() if size < _ESS}
    if diagnoses and all(values["rhat"] is None for values in diagnoses.values()):
        messages.append("the chains with weight never moved: all traced quantities are constant; raise sweeps")
    if few and not rhats:
        name = min(few, key=few.__getitem__)
        messages.append(
            f"{name} has an effective sample size of {few[name]:.0f}, below {_ESS:.0f}; raise sweeps or chains"
        )
    return messages


def _repeat_rows(rows: Rows, seed: int) -> tuple[Array, Array]:
    """Repeat rows by their sample weights, in an order that depends only on the seed and the rows."""
    x, y = rows.x.cpu().double().numpy(), rows.y.cpu().numpy()
    if rows.weight is not None:
        weight = rows.weight.cpu().double().numpy()
        if (weight != np.round(weight)).any():
            fraction = float(weight[np.argmax(weight != np.round(weight))])
            raise DataError(
                f"sample_weight has {fraction:g}, but chains repeat rows; give whole numbers, also in class_weight"
            )
        x, y = (np.repeat(part, weight.astype(np.int64), axis=0) for part in (x, y))
    # sorting removes the order of the table, so that it does not affect the result
    keys = np.column_stack([y.reshape(len(y), -1), x])
    order = np.lexsort(keys.T)[np.random.default_rng(seed).permutation(len(x))]
    return x[order], y[order]


def mode_gap(target: Target) -> float:
    """Return the smallest difference in log-likelihood between chains in different modes, in nats per row.

    It is 0.08, as measured with two columns, and proportional to the number of columns above two, since log densities
    are sums over columns.
    """
    columns = len(target.mean) if isinstance(target, TargetScale) else 1
    return MODE_GAP * max(1.0, 0.5 * columns)


def chain_weights(
    by: str, fits: Sequence[float], held: Tensor | None = None, counts: Tensor | None = None, *, apart: float = MODE_GAP
) -> list[float]:
    """Compute the weights of the chains, which sum to 1.

    Parameters
    ----------
    by : {"selected", "all", "stacked"}
        As the option `chains_by`.
    fits : sequence of C floats
        Mean log-likelihood of the training rows under each chain, in nats per row.
    held : Tensor, shape (N, C)
        Log densities of held-out rows under each chain, for "stacked".
    counts : Tensor, shape (N,), optional
        Sample weights of these rows.
    apart : float
        Largest difference in nats per row to the best chain, for "selected".
    """
    if by == "stacked":
        assert held is not None
        even = torch.full((len(fits),), -math.log(len(fits)), dtype=torch.float64)
        return cast(list[float], stacking.refit(held, even, counts).tolist())
    selected = [by == "all" or max(fits) - fit < apart for fit in fits]
    return [float(is_selected) / sum(selected) for is_selected in selected]


def _diagnose_traces(run: Chains[Any], used: Sequence[int]) -> dict[str, Any]:
    """Diagnose all traces of the given chains, without those that stopped early."""
    complete = [place for place, chain in enumerate(run.alive) if chain.number in used]
    diagnoses = {}
    for name in run.alive[0].traces if complete else ():
        draws = run.trace(name)[complete]
        if draws.shape[1] >= LEAST:
            diagnoses[name] = asdict(diagnose(draws))
    return diagnoses


def _thin_traces(run: Chains[Any], points: int = 200) -> dict[str, Any]:
    """Return thinned traces for plots, by chain, as plain JSON."""
    thinned: dict[str, Any] = {}
    for name in ("hidden", "log_likelihood"):
        if name in run.chains[0].traces:
            traces = [chain.traces.get(name, []) for chain in run.chains]
            thinned[name] = [values[:: max(1, math.ceil(len(values) / points))] for values in traces]
    return {"every": run.plan.every, "sweeps": run.plan.sweeps, "burn_in": run.plan.first, **thinned}
