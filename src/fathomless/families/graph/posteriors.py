"""Posteriors over infinite graphs for Markov chains: regression, classification and density estimation."""

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.data.targets import ClassLabels
from fathomless.estimators.predictor import Array
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.problem import Problem
from fathomless.families.graph.density import LogitScale, components, log_components
from fathomless.families.graph.engine import engine
from fathomless.families.graph.model import IndianChefs, count_output_units
from fathomless.families.graph.options import GraphOptions
from fathomless.families.graph.priors import PRIORS, GraphPrior
from fathomless.families.graph.sampler import GraphSampler
from fathomless.families.graph.state import COVARIATE, FIXED, FREE
from fathomless.inference.mcmc.chains import Chain, Plan
from fathomless.inference.variational.objective import log_predictive
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system import checks, memory
from fathomless.system.errors import DataError, DataWarning
from fathomless.system.rng import as_generator, building, fold_in

__all__ = ["ConditionalGraphs", "DensityGraphs", "GraphMoves", "Graphs"]

_FORWARD = 80  # draws per state when chains of a density are compared
_LARGE, _WIDE = 20_000, 40  # numbers of rows and columns above which the runtime is estimated first
_TIMED = 20  # sweeps timed for the estimate
_FEW_ROWS, _COLUMNS = 10, 200  # least rows and most columns of a density
_LARGEST_MASS = 5.0  # largest prior mean of the mass; graphs above are huge


@dataclass(frozen=True)
class GraphMoves:
    """Options of a sampler of graphs.

    Attributes
    ----------
    prior, engine, births, grow_data, max_hidden, weight_scale, bias_scale
        As the options of estimators.
    precision_prior, mass_prior, concentration_prior, popularity_prior : (float, float)
        As the options of estimators.
    """

    prior: str
    engine: str
    births: int
    grow_data: bool
    max_hidden: int | None
    weight_scale: float
    bias_scale: float
    precision_prior: tuple[float, float]
    mass_prior: tuple[float, float]
    concentration_prior: tuple[float, float]
    popularity_prior: tuple[float, float]

    @classmethod
    def of(cls, options: GraphOptions) -> "GraphMoves":
        """Return the sampler options of an estimator."""
        return cls(**{name: getattr(options, name) for name in cls.__dataclass_fields__})

    def check(self, inputs: int) -> None:
        """Check the priors, and that they allow this number of covariates."""
        checks.choice("prior", self.prior, PRIORS)
        for name in ("weight_scale", "bias_scale"):
            checks.scale(name, getattr(self, name))
        for name in ("precision_prior", "mass_prior", "concentration_prior", "popularity_prior"):
            pair = getattr(self, name)
            numbers = isinstance(pair, tuple | list) and all(isinstance(value, int | float) for value in pair)
            if not numbers or len(pair) != 2 or not all(0.0 < value < math.inf for value in pair):
                raise DataError(f"{name}={pair!r} was given; a shape and a rate, both above 0, are allowed")
        mean = self.mass_prior[0] / self.mass_prior[1]
        if mean > _LARGEST_MASS:
            raise DataError(
                f"mass_prior={self.mass_prior} was given, with mean {mean:g}; a mean of up to {_LARGEST_MASS:g} is "
                f"allowed, since a unit has about exp(mass) = {math.exp(min(mean, 700.0)):.3g} units above it"
            )
        if inputs and self.prior != "icp":
            raise DataError(
                f"prior={self.prior!r} was given for a regression or classification; use 'icp': the other priors are "
                "for densities only"
            )

    def sampler(self, x: Array, outputs: Array, labels: Array | None, plan: Plan, seed: int) -> GraphSampler:
        """Return the sampler for covariates x (N, D), output units (T, N), and classes (N,) if outputs are latent."""
        rows, inputs = x.shape
        roles = [COVARIATE] * inputs + [FREE if labels is None else FIXED] * len(outputs)
        observed = len(roles)
        per_chain = 8.0 * rows * max(32, 2 * observed)  # bytes of one array of units by rows
        memory.require(
            24.0 / 8.0 * plan.chains * per_chain + 24.0 * plan.chains * plan.states * (observed**2 + 64),
            f"{plan.chains} chains on {rows:,} rows of {observed} columns",
            lambda share: f"about chains={max(1, int(share * plan.chains))}, or {int(share * rows):,} rows, fit",
        )
        sampler = GraphSampler(
            values=np.concatenate([x.T, outputs]),
            orders=np.array([1.0] * inputs + [0.0] * len(outputs)),
            roles=np.array(roles, dtype=np.int8),
            prior=GraphPrior(kind=self.prior),
            engine=engine(self.engine),
            hyper=np.array([self.concentration_prior, self.mass_prior, self.popularity_prior], dtype=np.float64),
            scales=(self.bias_scale, self.weight_scale),
            precision=(float(self.precision_prior[0]), float(self.precision_prior[1])),
            births=self.births,
            most=-1 if self.max_hidden is None else self.max_hidden,
            growing=plan.first // 2 if self.grow_data else 0,
            labels=labels,
        )
        if rows > _LARGE or observed > _WIDE:
            _warn_runtime(sampler, plan, fold_in(seed, "time"))
        return sampler


@dataclass(frozen=True)
class Graphs:
    """Posterior over graphs of a table.

    Attributes
    ----------
    problem, table, likelihood
        Problem, its table, and p(y | f).
    moves : GraphMoves
        Options of the sampler.
    """

    problem: Problem
    table: Prepared
    likelihood: Likelihood
    moves: GraphMoves

    def model(self, chains: Sequence[Chain[Any]], weights: Sequence[float]) -> IndianChefs:
        """Return the model of the states kept by the chains, given the weights of the chains."""
        inputs = self.table.inputs
        seed = self.table.seed
        with building(seed):
            model = cast(IndianChefs, self.problem.networks._build_model(inputs, self.likelihood, seed, torch.float64))
        states = [state for chain in chains for state in chain.kept]
        number = [chain.number for chain in chains for _ in chain.kept]
        # the states of a chain share its weight equally
        shares = [weight / len(chain.kept) for chain, weight in zip(chains, weights, strict=True) for _ in chain.kept]
        model.fill(states, number, [math.log(share) if share > 0.0 else -math.inf for share in shares])
        return model


@dataclass(frozen=True)
class ConditionalGraphs(Graphs):
    """Posterior over graphs of a regression or classification.

    Covariates are inputs at the top of the graph; targets are units at the bottom.

    Attributes
    ----------
    weight_draws : int
        Draws of the hidden units per state when chains are compared.
    """

    weight_draws: int

    @property
    def support(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Two empty tuples: only densities have a support."""
        return (), ()

    def sampler(self, x: Array, y: Array, plan: Plan) -> GraphSampler:
        """Return the sampler for rows x (N, D) and encoded targets y."""
        self.moves.check(x.shape[1])
        if isinstance(self.table.target, ClassLabels):
            latent = np.zeros((count_output_units(len(self.table.target.labels), "classes"), len(y)))
            return self.moves.sampler(x, latent, y.astype(np.int64), plan, self.table.seed)
        return self.moves.sampler(x, y.T, None, plan, self.table.seed)

    def log_density(self, chain: Chain[Any], x: Tensor, y: Tensor) -> Tensor:
        """Return the log density of rows under the states that a chain kept, (N,)."""
        noise = as_generator(fold_in(self.table.seed, "weigh"))
        return log_predictive(self.model([chain], [1.0]).draw(x, self.weight_draws, noise), self.likelihood, y)


@dataclass(frozen=True)
class DensityGraphs(Graphs):
    """Posterior over graphs of the density of a table.

    Attributes
    ----------
    margin : float
        As the option of estimators.
    """

    margin: float

    @property
    def support(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lower ends and lengths of the support of the columns, T each."""
        scale = self._scale()
        return tuple(scale.low.tolist()), tuple(scale.span.tolist())

    def sampler(self, x: Array, y: Array, plan: Plan) -> GraphSampler:
        """Return the sampler for encoded columns y (N, T); x (N, 0) has no columns."""
        self.moves.check(x.shape[1])
        if y.shape[1] > _COLUMNS or len(y) < _FEW_ROWS:
            raise DataError(
                f"{len(y)} sample{'s' * (len(y) > 1)} of {y.shape[1]} columns were given; a density needs at least "
                f"{_FEW_ROWS} rows and at most {_COLUMNS} columns: give more rows, or drop columns"
            )
        constant = np.flatnonzero(np.ptp(y, axis=0) == 0.0)
        if len(constant):
            name = self.table.schema.columns[constant[0]].name
            raise DataError(f"column {name!r} is constant; drop it: a density needs columns that vary")
        return self.moves.sampler(x, LogitScale.of(y, self.margin).encode(y).T, None, plan, self.table.seed)

    def log_density(self, chain: Chain[Any], x: Tensor, y: Tensor) -> Tensor:
        """Return the log density of rows under the states that a chain kept, (N,)."""
        scale = self._scale()
        noise = np.random.default_rng(fold_in(self.table.seed, "weigh"))
        means, precisions = components(chain.kept, y.shape[1], _FORWARD, noise)
        a = scale.encode(y.numpy())
        inside = np.isfinite(a).all(1)
        log_density = np.full(len(a), -np.inf)
        logs = log_components(means, precisions, a[inside])
        log_density[inside] = torch.as_tensor(logs, device="cpu").logsumexp(1).numpy() - math.log(logs.shape[1])
        log_density[inside] += scale.log_jacobian(a[inside])
        return torch.as_tensor(log_density, device="cpu")

    def _scale(self) -> LogitScale:
        return LogitScale.of(cast(Rows, self.table.train).y.cpu().numpy(), self.margin)


def _warn_runtime(sampler: GraphSampler, plan: Plan, seed: int) -> None:
    """Estimate the runtime of the chains from a few timed sweeps on all rows, and warn."""
    noise = np.random.default_rng(seed)
    done = sampler.growing
    state = sampler.sweep(sampler.start(noise), done, noise)  # compiles the moves; not timed
    begun = time.perf_counter()
    for _ in range(_TIMED):
        state = sampler.sweep(state, done, noise)
    seconds = (time.perf_counter() - begun) / _TIMED * plan.sweeps * plan.chains
    warnings.warn(
        f"{sampler.values.shape[1]:,} rows of {len(sampler.roles)} columns: the chains take about {seconds / 3600:.2g} "
        "hours on one core, and longer as the graph grows; raise n_jobs, or use fewer rows, sweeps or chains",
        DataWarning,
        stacklevel=8,
    )
