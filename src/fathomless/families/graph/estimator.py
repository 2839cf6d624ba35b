"""Estimators over infinite graphs: a density of a table, a regression, a classification."""

import copy
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor

from fathomless.data.frames import read_target
from fathomless.data.rows import Rows
from fathomless.data.targets import ClassLabels, TargetScale
from fathomless.estimators.base import require_fitted
from fathomless.estimators.chains import ChainEstimator, chain_weights
from fathomless.estimators.encoding import NumberTask
from fathomless.estimators.options import documented
from fathomless.estimators.predictor import Array
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.tasks import BaseRegressor, Classifier, Density
from fathomless.families.graph.density import LogitScale, Mixture, components, log_components
from fathomless.families.graph.engine import engine
from fathomless.families.graph.model import IndianChefs, units_of
from fathomless.families.graph.networks import GraphNetworks
from fathomless.families.graph.priors import PRIORS, GraphPrior
from fathomless.families.graph.sampler import GraphSampler
from fathomless.families.graph.state import COVARIATE, FIXED, FREE
from fathomless.inference.mcmc.chains import Chain, Plan
from fathomless.inference.variational.objective import log_predictive
from fathomless.posterior.diagnostics import ChainDiagnostics
from fathomless.posterior.likelihoods import Likelihood
from fathomless.posterior.structure import GraphPosterior
from fathomless.system import checks, memory
from fathomless.system.errors import DataError, DataWarning
from fathomless.system.rng import as_generator, as_seed, building, fold_in

__all__ = ["IndianChefsClassifier", "IndianChefsDensity", "IndianChefsRegressor", "Marginal"]

_FORWARD = 80  # draws of each state by which chains are compared, in densities; 4 elsewhere
_LARGE, _WIDE = 20_000, 40  # rows and columns from which on the time is estimated first
_TIMED = 20  # sweeps
_FEW_ROWS, _COLUMNS = 10, 200  # that a density needs, and can have
_LARGEST_MASS = 5.0  # prior mean of the mass beyond which graphs are huge
_FEW = 50.0  # components below which a density has no error to be trusted


class _InfiniteGraph(GraphNetworks, ChainEstimator, ABC):
    """How the options of the family become chains, and chains a model.

    Attributes
    ----------
    hidden_posterior_ : dict of int to float
        Posterior probability of each number of hidden units.
    """

    fit_diagnostics_: ChainDiagnostics
    model_: IndianChefs
    structure_: GraphPosterior
    hidden_posterior_: dict[int, float]

    shown: ClassVar[Mapping[str, str]] = {"mean_hidden": "hidden units", "mean_edges": "edges"}

    @abstractmethod
    def _observed(self, prepared: Prepared, x: Array, y: Array) -> tuple[Array, Array | None]:
        """Return activations of output units, (T, N), and classes where these are latent."""

    def _describe(self) -> None:
        told = self.fit_diagnostics_
        if not {len(told.low), len(told.span)} <= {0, self.model_.observed}:
            raise DataError(f"its diagnostics have ranges of {len(told.low)} columns, not of {self.model_.observed}")
        self.structure_ = self.model_.structure()
        self.hidden_posterior_ = dict(self.structure_.counts["hidden units"])

    def _sampler(self, prepared: Prepared, x: Array, y: Array, plan: Plan) -> GraphSampler:
        self._check_priors(prepared.inputs)
        outputs, labels = self._observed(prepared, x, y)
        roles = [COVARIATE] * prepared.inputs + [FREE if labels is None else FIXED] * len(outputs)
        observed, rows = len(roles), len(x)
        need = 8.0 * rows * max(32, 2 * observed)
        memory.require(
            24.0 / 8.0 * self.chains * need + 24.0 * self.chains * plan.states * (observed**2 + 64),
            f"{self.chains} chains on {rows:,} rows of {observed} columns",
            lambda share: f"about chains={max(1, int(share * self.chains))} fit, or {int(share * rows):,} rows",
        )
        sampler = GraphSampler(
            values=np.concatenate([x.T, outputs]),
            orders=np.array([1.0] * prepared.inputs + [0.0] * len(outputs)),
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
            _tell_the_time(sampler, plan, fold_in(prepared.seed, "time"))
        return sampler

    def _check_priors(self, inputs: int) -> None:
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

    def weighed_by(self, chains_by: str) -> Self:
        """Return the estimator with its chains weighed in another way: "selected" or "all"."""
        require_fitted(self)
        checks.choice("chains_by", chains_by, ("selected", "all"))
        fits = {one["chain"]: one["log_likelihood"] for one in self.chains_ if one["states"]}
        weights = dict(
            zip(fits, chain_weights(chains_by, list(fits.values()), apart=self._of_chains().apart), strict=True)
        )
        other = self._with({"chains_by": chains_by, "model_": copy.deepcopy(self.model_)})
        told = tuple({**one, "weight": weights[one["chain"]]} if one["states"] else one for one in self.chains_)
        other.fit_diagnostics_ = replace(self._of_chains(), chains=told)
        states = {one["chain"]: one["states"] for one in told}
        shares = [weights[number] / states[number] for number in self.model_.chain.tolist()]
        logs = [math.log(share) if share > 0.0 else -math.inf for share in shares]
        other.model_.log_weight.copy_(torch.tensor(logs, dtype=torch.float64, device="cpu"))
        other._describe()
        return other

    def _unit(self) -> str:
        return f"{engine(self.engine).name} sweep"

    def _model_of(self, prepared: Prepared, chains: Sequence[Chain[Any]], weights: Sequence[float]) -> IndianChefs:
        with building(prepared.seed):
            model = self._build_model(prepared.inputs, self._noise_of(prepared), prepared.seed, torch.float64)
        states = [state for chain in chains for state in chain.kept]
        number = [chain.number for chain in chains for _ in chain.kept]
        share = [weight / len(chain.kept) for chain, weight in zip(chains, weights, strict=True) for _ in chain.kept]
        model.fill(states, number, [math.log(one) if one > 0.0 else -math.inf for one in share])
        return model

    def _noise_of(self, prepared: Prepared) -> Likelihood:
        with building(prepared.seed):
            return self._task().likelihood(prepared.target)


class _Conditional(_InfiniteGraph, ABC):
    """Columns that predict are inputs of the graph, at the top; targets stand at its bottom."""

    def _log_density(self, prepared: Prepared, chain: Chain[Any], x: Tensor, y: Tensor) -> Tensor:
        model, likelihood = self._model_of(prepared, [chain], [1.0]), self._noise_of(prepared)
        noise = as_generator(fold_in(prepared.seed, "weigh"))
        return log_predictive(model.draw(x, self.weight_draws, noise), likelihood, y)

    def _support(self, prepared: Prepared) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return (), ()

    def relevance(self) -> dict[str, dict[str, float]]:
        """Return for each encoded column what the posterior says of its use.

        Returns
        -------
        dict of str to dict
            "used": probability that a directed path leads to a target; "direct": that an edge does; "children": mean
            number of its children.
        """
        inputs, outputs = self.model_.inputs, self.model_.observed
        told = np.zeros((inputs, 3))
        for graph, weight in self.model_.graphs():
            paths = graph.ancestors[:inputs, inputs:outputs].any(1)
            edges = graph.edges[:inputs]
            told += weight * np.column_stack([paths, edges[:, inputs:outputs].any(1), edges.sum(1)])
        told[:, :2] = told[:, :2].clip(max=1.0)  # probabilities, sums of rounded weights
        names = ("used", "direct", "children")
        return {
            column: dict(zip(names, values, strict=True))
            for column, values in zip(self.schema_.encoded_names, told.tolist(), strict=True)
        }


@documented
class IndianChefsRegressor(_Conditional, BaseRegressor):
    """Regressor, for one target or several, whose network is a graph without an upper limit on its hidden units.

    Notes
    -----
    Columns are units of order 1, targets of order 0, and hidden units lie between; every unit may be a parent of every
    unit below it. Graph, weights and noise are sampled together. Each fit takes some ten seconds to minutes.

    References
    ----------
    P. Dallaire, L. Trottier, P. Giguère, B. Chaib-draa and F. Laviolette, "Bayesian Nonparametric Deep Learning", 2016.

    Examples
    --------
    >>> import warnings
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> with warnings.catch_warnings(action="ignore"):  # so short a run has not converged
    ...     reg = IndianChefsRegressor(chains=2, sweeps=40, states=10, engine="numpy", random_state=0).fit(X, y)
    >>> reg.predict(X[:3]).shape, len(reg.chains_)
    ((3,), 2)
    """

    def _task(self) -> NumberTask:
        return NumberTask()

    def _observed(self, prepared: Prepared, x: Array, y: Array) -> tuple[Array, Array | None]:
        return y.T, None


@documented
class IndianChefsClassifier(_Conditional, Classifier):
    """Classifier whose network is a graph without an upper limit on its hidden units, with probit outputs.

    References
    ----------
    P. Dallaire, L. Trottier, P. Giguère, B. Chaib-draa and F. Laviolette, "Bayesian Nonparametric Deep Learning", 2016.

    Examples
    --------
    >>> import warnings
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> with warnings.catch_warnings(action="ignore"):  # so short a run has not converged
    ...     clf = IndianChefsClassifier(chains=2, sweeps=40, states=10, engine="numpy", random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape
    (2, 3)
    """

    several_labels = False

    def _observed(self, prepared: Prepared, x: Array, y: Array) -> tuple[Array, Array | None]:
        classes = len(cast(ClassLabels, prepared.target).labels)
        return np.zeros((units_of(classes, "classes"), len(y))), y.astype(np.int64)


@documented
class IndianChefsDensity(_InfiniteGraph, Density):
    """Density of a table of numbers, by a belief network whose hidden units have no upper limit.

    Attributes
    ----------
    support_ : ndarray, shape (2, T)
        Where the density is positive: the ends of each column.

    Notes
    -----
    Columns are mapped into (0, 1) by their range and `margin`; outside of that support the density is 0. With its draws
    fixed, what is said is a density: it integrates to one, can be sampled, and says the same of a row whatever else is
    asked.

    References
    ----------
    P. Dallaire, L. Trottier, P. Giguère, B. Chaib-draa and F. Laviolette, "Bayesian Nonparametric Deep Learning", 2016.

    Examples
    --------
    >>> import warnings
    >>> from sklearn.datasets import load_iris
    >>> X, _ = load_iris(return_X_y=True)
    >>> with warnings.catch_warnings(action="ignore"):  # so short a run has not converged
    ...     short = IndianChefsDensity(chains=2, sweeps=40, states=10, engine="numpy", random_state=0).fit(X)
    ...     log_density = short.score_samples(X[:3])
    >>> log_density.shape, short.sample(5, random_state=1).shape
    ((3,), (5, 4))
    """

    @property
    def support_(self) -> Array:
        """Where the density is positive: the ends of each column, shape (2, T)."""
        require_fitted(self)
        scale = self._logits()
        return cast(TargetScale, self.target_).decode(scale.support)

    def _task(self) -> NumberTask:
        return NumberTask(density=True)

    def _observed(self, prepared: Prepared, x: Array, y: Array) -> tuple[Array, Array | None]:
        if y.shape[1] > _COLUMNS or len(y) < _FEW_ROWS:
            raise DataError(
                f"{len(y)} sample{'s' * (len(y) > 1)} of {y.shape[1]} columns were given; a density needs {_FEW_ROWS} "
                f"rows or more, and {_COLUMNS} columns at most: give more rows, or drop columns"
            )
        constant = np.flatnonzero(np.ptp(y, axis=0) == 0.0)
        if len(constant):
            name = prepared.schema.columns[constant[0]].name
            raise DataError(f"column {name!r} is constant; drop it, a density needs spread")
        return LogitScale.of(y, self.margin).encode(y).T, None

    def _support(self, prepared: Prepared) -> tuple[tuple[float, ...], tuple[float, ...]]:
        scale = LogitScale.of(cast(Rows, prepared.train).y.cpu().numpy(), self.margin)
        return tuple(scale.low.tolist()), tuple(scale.span.tolist())

    def _log_density(self, prepared: Prepared, chain: Chain[Any], x: Tensor, y: Tensor) -> Tensor:
        scale = LogitScale.of(cast(Rows, prepared.train).y.cpu().numpy(), self.margin)
        noise = np.random.default_rng(fold_in(prepared.seed, "weigh"))
        means, precisions = components(chain.kept, y.shape[1], _FORWARD, noise)
        a = scale.encode(y.numpy())
        inside = np.isfinite(a).all(1)
        found = np.full(len(a), -np.inf)
        logs = log_components(means, precisions, a[inside])
        found[inside] = torch.as_tensor(logs, device="cpu").logsumexp(1).numpy() - math.log(logs.shape[1])
        found[inside] += scale.log_jacobian(a[inside])
        return torch.as_tensor(found, device="cpu")

    def score_samples(self, X: Any, return_error: bool = False) -> Any:
        """Return the log density of every row in nats, in the units of the table.

        Parameters
        ----------
        X : array or data frame of numbers, shape (N, T)
            Rows.
        return_error : bool
            Return the Monte Carlo error of each too: what other chains, as many, would change of it.

        Returns
        -------
        ndarray, shape (N,), or a tuple of two
            -inf outside of the support, with an error of 0.

        Warns
        -----
        DataWarning
            If rows are outside of the support, or so far out that fewer than 50 components reach them and the error
            is too small.
        """
        mixture, z = self._mixture(), self._encoded(X)
        log_p, errors, effective = mixture.log_prob(z, errors=return_error)
        outside, few = np.isinf(log_p), effective < _FEW
        if outside.any():
            warnings.warn(
                f"{int(outside.sum())} of {len(z)} rows are outside of the support, where the density is 0; fit with "
                f"more margin (now {self.margin:g}) if such rows are possible",
                DataWarning,
                stacklevel=2,
            )
        if (few & ~outside).any():
            warnings.warn(
                f"{int((few & ~outside).sum())} of {len(z)} rows are reached by fewer than {_FEW:.0f} components: "
                f"their log density is rough and its error too small; raise density_draws (now {self.density_draws})",
                DataWarning,
                stacklevel=2,
            )
        log_p = log_p - self.target_.log_unit
        return (log_p, errors) if return_error else log_p

    def sample(self, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw rows in the units of the table, shape (n_samples, T); each comes from a network of its own."""
        mixture = self._mixture()
        noise = np.random.default_rng(as_seed(random_state))
        drawn = mixture.sample(checks.whole("n_samples", n_samples), noise)
        return cast(TargetScale, self.target_).decode(drawn)

    def marginal(self, column: int | str) -> "Marginal":
        """Return the law of one column, by its place or name."""
        mixture = self._mixture()
        names = [one.name for one in self.schema_.columns]
        place = names.index(column) if column in names else column
        if not isinstance(place, int) or not 0 <= place < len(names):
            raise DataError(
                f"column {column!r} was asked for; allowed are {', '.join(map(repr, names))}, or their places"
            )
        target = cast(TargetScale, self.target_)
        return Marginal(mixture, place, target.mean[place], target.scale[place])

    def dependence(self) -> Array:
        """Return the probability that two columns have a common ancestor among the hidden units, shape (T, T)."""
        columns = self.model_.observed
        told = np.zeros((columns, columns))
        for graph, weight in self.model_.graphs():
            above = graph.ancestors[columns:, :columns]
            told += weight * (above[:, :, None] & above[:, None, :]).any(0)
        return told

    def _mixture(self) -> Mixture:
        """Return the density in standardised units."""
        require_fitted(self)
        model, scale = self.model_, self._logits()
        chosen, log_weight = model.thinned(4 * self.networks)
        states = model.states()
        noise = np.random.default_rng(fold_in(self.seed_, "predict"))
        drawn = components([states[number] for number in chosen.tolist()], model.observed, self.density_draws, noise)
        return Mixture(*drawn, log_weight.exp().numpy(), model.chain[chosen].numpy(), scale)

    def _logits(self) -> LogitScale:
        found = self._of_chains()
        if len(found.low) != self.model_.observed or len(found.span) != self.model_.observed:
            raise DataError(
                f"ranges of {len(found.low)} columns are in its diagnostics; {self.model_.observed} are needed"
            )
        return LogitScale(np.array(found.low), np.array(found.span), self.margin)

    def _encoded(self, X: Any) -> Array:
        target = cast(TargetScale, self.target_)
        return target.encode(read_target(self._table(X, reset=False)).reshape(len(X), -1))


class Marginal:
    """The law of one column of a density, in its own unit."""

    def __init__(self, mixture: Mixture, column: int, mean: float, scale: float) -> None:
        self._mixture, self._column, self._mean, self._scale = mixture, column, mean, scale

    def cdf(self, x: Any) -> Array:
        """Return the probability below x, shape (N,)."""
        return self._mixture.cdf(self._column, (np.atleast_1d(np.asarray(x, dtype=float)) - self._mean) / self._scale)

    def icdf(self, q: Any) -> Array:
        """Return quantiles at 0 < q < 1, shape (N,)."""
        return self._mean + self._scale * self._mixture.icdf(self._column, np.atleast_1d(np.asarray(q, dtype=float)))


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
        stacklevel=6,
    )
