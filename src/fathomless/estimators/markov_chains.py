"""Markov chains as a strategy of inference, and the estimators whose posterior they sample.

Chains are weighed by how well each predicts, since on hard tables they find different modes and seldom change:
"selected" takes those near the best one. That is a device, not a part of the model, and both figures are told.
"""

import math
from abc import ABC
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol, cast

import numpy as np
import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.data.targets import Target, TargetScale
from fathomless.estimators import saving
from fathomless.estimators.base import Estimator
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

__all__ = ["APART", "ChainEstimator", "MarkovChains", "SampledPosterior", "chain_weights", "convergence", "modes_apart"]

APART = 0.08  #: nats per row: chains that differ by more are in different modes; half of it per column beyond two
_JUDGED = 2000  # rows by which chains are compared
_RHAT, _ESS = 1.1, 100.0  # beyond which a warning is due


class SampledPosterior(Protocol):
    """Posterior of a table that chains sample."""

    @property
    def support(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lower ends and lengths of the support of the columns of a density, T each; empty for other targets."""

    def sampler(self, x: Array, y: Array, plan: Plan) -> Sampler[Any]:
        """Return the sampler of rows x (N, D) and encoded targets y, of which it uses more and more by a plan."""

    def log_density(self, chain: Chain[Any], x: Tensor, y: Tensor) -> Tensor:
        """Return the log density of rows under the states that a chain kept, (N,)."""

    def model(self, chains: Sequence[Chain[Any]], weights: Sequence[float]) -> Model:
        """Return the model of the states that chains kept, given the weights of the chains."""


@dataclass(frozen=True)
class MarkovChains:
    """Markov chains of a posterior, weighted by their fit to the rows.

    Attributes
    ----------
    posterior : callable
        Returns the posterior that is sampled, for a problem, a table and the likelihood.
    chains, sweeps, burn_in, states, chains_by, n_jobs
        As the options of estimators.
    unit : str
        Unit of the progress.
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
            raise DataError(f"{ranks().count} processes were started; chains of one fit run in one process: set n_jobs")
        if table.device.type != "cpu":
            raise DataError(
                f"device={str(table.device)!r} was given; chains run on the processor: 'cpu' and 'auto' are allowed"
            )
        with building(table.seed):
            likelihood = problem.task.likelihood(table.target)
        posterior = self.posterior(problem, table, likelihood)
        plan = self._plan(self.sweeps)
        x, y = _counted(table.train, fold_in(table.seed, "order"))

        def fingerprint() -> str:
            rows, facts = (table.train, table.valid), {**session.lasting, "seed": table.seed}
            alike = replace(plan, jobs=1, states=1 if isinstance(self.states, str) else plan.states)
            return saving.fingerprint(*rows, (), alike, facts, without=("sweeps",))

        callbacks, resume = session.with_checkpoint(table, fingerprint)
        planned = [self.sweeps] if resume is None else resume[1]["planned"]
        sampler = posterior.sampler(x, y, self._plan(planned[0]))
        seed, display = fold_in(table.seed, "chains"), session.display(self.unit)
        run = run_chains(sampler, plan, seed, callbacks=callbacks, progress=display, resume=resume)
        return self._weighed(posterior, likelihood, table, x, y, run)

    def _plan(self, sweeps: int) -> Plan:
        return Plan.of(self.chains, sweeps, self.burn_in, self.states, usual=250, jobs=self.n_jobs)

    def _weighed(
        self, posterior: SampledPosterior, likelihood: Likelihood, table: Prepared, x: Array, y: Array, run: Chains[Any]
    ) -> Fitted:
        """Weight the chains, and build a model of them."""
        chains = [chain for chain in run.chains if chain.kept]
        if not chains:
            raise DataError(f"no chain came as far as its first state; the first stopped: {run.chains[0].error}")
        some = np.arange(0, len(x), math.ceil(len(x) / _JUDGED))
        given = torch.from_numpy(x[some]), torch.from_numpy(y[some])
        fits = [float(posterior.log_density(chain, *given).mean()) for chain in chains]
        held, counts, outside = _held_out(posterior, table, chains)
        apart = modes_apart(table.target)
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
            diagnostics=_diagnosed(run, used),
            diagnostics_of_all=_diagnosed(run, [chain.number for chain in chains]),
            traces=_traces(run),
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
            warnings=tuple(convergence(diagnostics, self.chains_by)),
        )

    def _score_of(self, fits: Sequence[float], weights: Sequence[float], held: Tensor, counts: Tensor) -> float:
        """Mean log density of held-out rows (N, C); weights that they choose are fitted without the row's part."""
        part, summed = assign_parts(len(held)), 0.0
        for k in part.unique().tolist():
            own, rest = part == k, part != k
            if self.chains_by == "stacked" and bool(rest.any()):
                weights = chain_weights(self.chains_by, fits, held[rest], counts[rest])
            mixture = torch.logsumexp(held[own] + torch.tensor(weights, dtype=held.dtype).log(), 1)
            summed += float((counts[own] * mixture).sum())
        return summed / float(counts.sum())


def _held_out(
    posterior: SampledPosterior, table: Prepared, chains: Sequence[Chain[Any]]
) -> tuple[Tensor | None, Tensor, int]:
    """Return log densities (N, C) of held-out rows under chains, how often rows count (N,), and how many have none.

    Rows outside the support of every chain are left out: they say nothing of one against another.
    """
    rows = table.valid
    if rows is None:
        return None, torch.zeros(0), 0
    assert isinstance(rows, Rows)
    x, y = rows.x.cpu().double(), rows.y.cpu()
    found = torch.stack([posterior.log_density(chain, x, y) for chain in chains], 1)
    counts = found.new_ones(len(x)) if rows.weight is None else rows.weight.cpu().to(found)
    inside = (found > -math.inf).any(1)
    return found[inside], counts[inside], int((~inside).sum())


class ChainEstimator(ChainOptions, Estimator, ABC):
    """Estimators whose posterior is sampled by chains.

    Attributes
    ----------
    chains_ : list of dict
        A record of each chain: its number, "log_likelihood" (of the rows that it was given, nats per row, in the units
        in which it sees them), its "weight", the "states" it kept, and an "error" if it stopped before its time.
    diagnostics_ : dict of str to Diagnosis
        R-hat, effective sample sizes and Monte Carlo errors of what the chains that are used followed.
    diagnostics_of_all_ : dict of str to Diagnosis
        The same of all chains.
    """

    @property
    def chains_(self) -> list[dict[str, Any]]:
        """A record of each chain, see above."""
        return [dict(record) for record in self._of_chains().chains]

    @property
    def diagnostics_(self) -> dict[str, Diagnosis]:
        """Of the chains that are used, see above."""
        return {name: Diagnosis(**values) for name, values in self._of_chains().diagnostics.items()}

    @property
    def diagnostics_of_all_(self) -> dict[str, Diagnosis]:
        """Of all chains, see above."""
        return {name: Diagnosis(**values) for name, values in self._of_chains().diagnostics_of_all.items()}

    def _of_chains(self) -> ChainDiagnostics:
        return cast(ChainDiagnostics, self.fit_diagnostics_)

    def _chains(
        self, posterior: Callable[[Problem, Prepared, Likelihood], SampledPosterior], unit: str
    ) -> MarkovChains:
        """Return the chains that the options ask for, with the unit of their progress."""
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
            raise DataError("a stream was given; chains need all rows in every sweep: give fit a table")
        if grouped and self.validation_fraction == 0.0:
            raise DataError(
                f"groups were given, and {type(self).__name__} holds out no rows; leave them out, or set "
                "validation_fraction"
            )
        if not 0.0 <= self.validation_fraction < 1.0:
            raise DataError(
                f"validation_fraction={self.validation_fraction} was given; 0 <= validation_fraction < 1 is allowed"
            )
        if self.chains_by == "stacked" and self.validation_fraction == 0.0:
            raise DataError(
                "chains_by='stacked' was given, which weighs chains by rows that were held out; set "
                "validation_fraction, to 0.2 say"
            )
        return SplitPlan(share=self.validation_fraction)


def convergence(diagnostics: ChainDiagnostics, chains_by: str) -> list[str]:
    """Return the warnings that a run of chains calls for, a sentence each."""
    told, found, apart_by = diagnostics.chains, list[str](), diagnostics.apart
    if diagnostics.outside > 0:
        found.append(
            f"{diagnostics.outside} held-out rows are outside of the support, which the other rows say, and have no "
            "density; the score of the held-out rows leaves them out"
        )
    fits = {record["chain"]: record["log_likelihood"] for record in told if "log_likelihood" in record}
    best, worst = max(fits.values()), min(fits.values())
    if best - worst >= apart_by:
        near = sum(best - fit < apart_by for fit in fits.values())
        used = sum(record.get("weight", 0.0) > 0.0 for record in told)
        found.append(
            f"chains are in different modes: {near} of {len(fits)} are within {apart_by:g} nats per row of the best, "
            f"the last is {best - worst:.2g} behind; {used} have weight (chains_by={chains_by!r}). What is said of the "
            "structure is conditional on the modes that were found"
        )
    stopped = [record["error"] for record in told if record["error"]]
    if stopped:
        found.append(f"{len(stopped)} of {len(told)} chains stopped before their time; the first: {stopped[0]}")
    own = diagnostics.diagnostics
    apart = {name: values["rhat"] for name, values in own.items() if not (values["rhat"] or 1.0) <= _RHAT}
    if apart:
        name = max(apart, key=lambda one: math.inf if math.isnan(apart[one]) else apart[one])
        found.append(
            f"the chains that are used have not mixed: R-hat of {name} is {apart[name]:.2f}, and of {len(apart)} of "
            f"{len(own)} quantities above {_RHAT}; raise sweeps"
        )
    few = {name: min(v["ess_bulk"], v["ess_tail"]) for name, v in own.items() if v["rhat"] is not None}
    few = {name: size for name, size in few.items() if size < _ESS}
    if own and all(values["rhat"] is None for values in own.values()):
        found.append("the chains that are used never moved: nothing that they followed has changed; raise sweeps")
    if few and not apart:
        name = min(few, key=few.__getitem__)
        found.append(
            f"{name} has an effective sample size of {few[name]:.0f}, below {_ESS:.0f}; raise sweeps or chains"
        )
    return found


def _counted(rows: Rows, seed: int) -> tuple[Array, Array]:
    """Return rows as often as they count, in an order that depends on the seed and on the rows alone."""
    x, y = rows.x.cpu().double().numpy(), rows.y.cpu().numpy()
    if rows.weight is not None:
        weight = rows.weight.cpu().double().numpy()
        if (weight != np.round(weight)).any():
            odd = float(weight[np.argmax(weight != np.round(weight))])
            raise DataError(f"sample_weight has {odd:g}; chains count rows: give whole numbers, in class_weight too")
        x, y = (np.repeat(part, weight.astype(np.int64), axis=0) for part in (x, y))
    keys = np.column_stack([y.reshape(len(y), -1), x])
    order = np.lexsort(keys.T)[np.random.default_rng(seed).permutation(len(x))]
    return x[order], y[order]


def modes_apart(target: Target) -> float:
    """Return by how many nats per row the log-likelihoods of chains in different modes differ, at least.

    0.08, as it was measured with two columns, and in proportion for more of them: log densities add up over columns.
    """
    columns = len(target.mean) if isinstance(target, TargetScale) else 1
    return APART * max(1.0, 0.5 * columns)


def chain_weights(
    by: str, fits: Sequence[float], held: Tensor | None = None, counts: Tensor | None = None, *, apart: float = APART
) -> list[float]:
    """Return the weight of each chain; they sum to 1.

    Parameters
    ----------
    by : {"selected", "all", "stacked"}
        As the option `chains_by`.
    fits : sequence of C floats
        Mean log-likelihood of the training rows under each chain, in nats per row.
    held : Tensor, shape (N, C)
        Log densities of held-out rows under each chain, for "stacked".
    counts : Tensor, shape (N,), optional
        How often each of these rows counts.
    apart : float
        Within how many nats per row of the best one a chain is selected.
    """
    if by == "stacked":
        assert held is not None
        even = torch.full((len(fits),), -math.log(len(fits)), dtype=torch.float64)
        return cast(list[float], stacking.refit(held, even, counts).tolist())
    kept = [by == "all" or max(fits) - fit < apart for fit in fits]
    return [float(one) / sum(kept) for one in kept]


def _diagnosed(run: Chains[Any], used: Sequence[int]) -> dict[str, Any]:
    """Diagnose everything that was followed by some chains, those that came to the end."""
    whole = [place for place, chain in enumerate(run.alive) if chain.number in used]
    found = {}
    for name in run.alive[0].traces if whole else ():
        draws = run.trace(name)[whole]
        if draws.shape[1] >= LEAST:
            found[name] = asdict(diagnose(draws))
    return found


def _traces(run: Chains[Any], points: int = 200) -> dict[str, Any]:
    """Return thinned traces of what a picture shows, by chain: plain JSON."""
    shown: dict[str, Any] = {}
    for name in ("hidden", "log_likelihood"):
        if name in run.chains[0].traces:
            each = [chain.traces.get(name, []) for chain in run.chains]
            shown[name] = [values[:: max(1, math.ceil(len(values) / points))] for values in each]
    return {"every": run.plan.every, "sweeps": run.plan.sweeps, "burn_in": run.plan.first, **shown}
