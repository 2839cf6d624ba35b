"""Posteriors over infinite graphs that chains sample: of a regression or classification, and of a density."""

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
from fathomless.families.graph.model import IndianChefs, units_of
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

_FORWARD = 80  # draws of each state by which chains of a density are compared
_LARGE, _WIDE = 20_000, 40  # rows and columns from which on the time is estimated first
_TIMED = 20  # sweeps
_FEW_ROWS, _COLUMNS = 10, 200  # that a density needs, and can have
_LARGEST_MASS = 5.0  # prior mean of the mass beyond which graphs are huge


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
        """Take them from the options of an estimator."""
        return cls(**{name: getattr(options, name) for name in cls.__dataclass_fields__})

    def check(self, inputs: int) -> None:
        """Refuse priors that there are not, or that have no place for so many columns that predict."""
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
                f"mass_prior={self.mass_prior} was given, with mean {mean:g}; up to {_LARGEST_MASS:g} is allowed, "
                f"since a unit has about exp(mass) = {math.exp(min(mean, 700.0)):.3g} units above it"
            )
        if inputs and self.prior != "icp":
            raise DataError(
                f"prior={self.prior!r} was given, which has no place for columns that predict; 'icp' has: the others "
                "are for densities"
            )

    def sampler(self, x: Array, outputs: Array, labels: Array | None, plan: Plan, seed: int) -> GraphSampler:
        """Return the sampler of columns x (N, D), output units (T, N), and classes (N,) where outputs are latent."""
        rows, inputs = x.shape
        roles = [COVARIATE] * inputs + [FREE if labels is None else FIXED] * len(outputs)
        observed = len(roles)
        need = 8.0 * rows * max(32, 2 * observed)
        memory.require(
            24.0 / 8.0 * plan.chains * need + 24.0 * plan.chains * plan.states * (observed**2 + 64),
            f"{plan.chains} chains on {rows:,} rows of {observed} columns",
            lambda share: f"about chains={max(1, int(share * plan.chains))} fit, or {int(share * rows):,} rows",
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
            _tell_the_time(sampler, plan, fold_in(seed, "time"))
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
        """Return the model of the states that chains kept, given the weights of the chains."""
        inputs, seed = self.table.inputs, self.table.seed
        with building(seed):
            model = cast(IndianChefs, self.problem.networks._build_model(inputs, self.likelihood, seed, torch.float64))
        states = [state for chain in chains for state in chain.kept]
        number = [chain.number for chain in chains for _ in chain.kept]
        share = [weight / len(chain.kept) for chain, weight in zip(chains, weights, strict=True) for _ in chain.kept]
        model.fill(states, number, [math.log(one) if one > 0.0 else -math.inf for one in share])
        return model


@dataclass(frozen=True)
class ConditionalGraphs(Graphs):
    """Posterior over graphs of a regression or classification.

    Columns that predict are inputs of the graph, at the top; targets stand at its bottom.

    Attributes
    ----------
    weight_draws : int
        Draws of the hidden units of each state, by which chains are compared.
    """

    weight_draws: int

    @property
    def support(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Empty: only densities have a support."""
        return (), ()

    def sampler(self, x: Array, y: Array, plan: Plan) -> GraphSampler:
        """Return the sampler of rows x (N, D) and encoded targets y, by a plan."""
        self.moves.check(x.shape[1])
        if isinstance(self.table.target, ClassLabels):
            latent = np.zeros((units_of(len(self.table.target.labels), "classes"), len(y)))
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
        """Return the sampler of rows without columns that predict (N, 0), and encoded columns y (N, T), by a plan."""
        self.moves.check(x.shape[1])
        if y.shape[1] > _COLUMNS or len(y) < _FEW_ROWS:
            raise DataError(
                f"{len(y)} sample{'s' * (len(y) > 1)} of {y.shape[1]} columns were given; a density needs {_FEW_ROWS} "
                f"rows or more, and {_COLUMNS} columns at most: give more rows, or drop columns"
            )
        constant = np.flatnonzero(np.ptp(y, axis=0) == 0.0)
        if len(constant):
            name = self.table.schema.columns[constant[0]].name
            raise DataError(f"column {name!r} is constant; drop it, a density needs spread")
        return self.moves.sampler(x, LogitScale.of(y, self.margin).encode(y).T, None, plan, self.table.seed)

    def log_density(self, chain: Chain[Any], x: Tensor, y: Tensor) -> Tensor:
        """Return the log density of rows under the states that a chain kept, (N,)."""
        scale, noise = self._scale(), np.random.default_rng(fold_in(self.table.seed, "weigh"))
        means, precisions = components(chain.kept, y.shape[1], _FORWARD, noise)
        a = scale.encode(y.numpy())
        inside = np.isfinite(a).all(1)
        found = np.full(len(a), -np.inf)
        logs = log_components(means, precisions, a[inside])
        found[inside] = torch.as_tensor(logs, device="cpu").logsumexp(1).numpy() - math.log(logs.shape[1])
        found[inside] += scale.log_jacobian(a[inside])
        return torch.as_tensor(found, device="cpu")

    def _scale(self) -> LogitScale:
        return LogitScale.of(cast(Rows, self.table.train).y.cpu().numpy(), self.margin)


def _tell_the_time(sampler: GraphSampler, plan: Plan, seed: int) -> None:
    """Estimate how long chains will take, by some sweeps of one on all rows, and say so."""
    noise, done = np.random.default_rng(seed), sampler.growing
    state = sampler.sweep(sampler.start(noise), done, noise)  # what is compiled is not counted
    begun = time.perf_counter()
    for _ in range(_TIMED):
        state = sampler.sweep(state, done, noise)
    seconds = (time.perf_counter() - begun) / _TIMED * plan.sweeps * plan.chains
    warnings.warn(
        f"{sampler.values.shape[1]:,} rows of {len(sampler.roles)} columns: the chains take about {seconds / 3600:.2g} "
        "hours of one core, and more as the graph grows; give n_jobs cores, fewer rows, or fewer sweeps and chains",
        DataWarning,
        stacklevel=8,
    )
