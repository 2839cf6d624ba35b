"""Estimators with posteriors over infinite graphs: density estimation, regression and classification."""

import copy
import math
import warnings
from abc import ABC
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self, cast

import numpy as np
import torch

from fathomless.data.cells import check_table, is_frame
from fathomless.data.frames import read_cells
from fathomless.data.schema import rows_of
from fathomless.data.targets import ClassLabels, TargetScale
from fathomless.estimators.base import require_fitted
from fathomless.estimators.encoding import NumberTask
from fathomless.estimators.markov_chains import ChainEstimator, MarkovChains, chain_weights
from fathomless.estimators.options import documented
from fathomless.estimators.predictor import Array
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.tasks import BaseRegressor, Classifier, Density
from fathomless.families.graph.conditional import ConditionalColumn, effective_components, fill, sample_missing
from fathomless.families.graph.density import LogitScale, Mixture, check_levels, components
from fathomless.families.graph.engine import engine
from fathomless.families.graph.model import IndianChefs
from fathomless.families.graph.networks import GraphNetworks
from fathomless.families.graph.posteriors import ConditionalGraphs, DensityGraphs, GraphMoves
from fathomless.posterior.fit_diagnostics import ChainDiagnostics
from fathomless.posterior.structure import GraphPosterior
from fathomless.system import checks
from fathomless.system.errors import DataError, DataWarning
from fathomless.system.masked import unmask
from fathomless.system.rng import as_seed, fold_in

__all__ = ["IndianChefsClassifier", "IndianChefsDensity", "IndianChefsRegressor", "Marginal"]

_FEW = 50.0  # effective components below which the Monte Carlo error is unreliable
_REFERENCE = 4000  # rows drawn for p-values


class _InfiniteGraph(GraphNetworks, ChainEstimator, ABC):
    """Base of estimators with posteriors over infinite graphs.

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

    def _describe(self) -> None:
        diagnostics = self.fit_diagnostics_
        if not {len(diagnostics.low), len(diagnostics.span)} <= {0, self.model_.observed}:
            raise DataError(
                f"its diagnostics have ranges of {len(diagnostics.low)} columns, not of {self.model_.observed}"
            )
        self.structure_ = self.model_.structure()
        self.hidden_posterior_ = dict(self.structure_.counts["hidden units"])

    def weighed_by(self, chains_by: str) -> Self:
        """Return a copy of the fitted estimator with other weights of its chains.

        The copy has no recalibration and no boosted trees, since these were fitted with the present weights.

        Parameters
        ----------
        chains_by : {"selected", "all"}
            Weight only chains close to the best log-likelihood on training rows, or all chains equally.
        """
        require_fitted(self)
        checks.choice("chains_by", chains_by, ("selected", "all"))
        fits = {record["chain"]: record["log_likelihood"] for record in self.chains_ if record["states"]}
        weights = dict(
            zip(fits, chain_weights(chains_by, list(fits.values()), apart=self._chain_diagnostics().apart), strict=True)
        )
        other = self._copy_with({"chains_by": chains_by, "model_": copy.deepcopy(self.model_)})
        records = tuple(
            {**record, "weight": weights[record["chain"]]} if record["states"] else record for record in self.chains_
        )
        other.fit_diagnostics_ = replace(self._chain_diagnostics(), chains=records, recalibration=(), trees=None)
        other.recalibration_ = None
        other.trees_ = None
        # the states of a chain share its weight equally
        states = {record["chain"]: record["states"] for record in records}
        shares = [weights[number] / states[number] for number in self.model_.chain.tolist()]
        logs = [math.log(share) if share > 0.0 else -math.inf for share in shares]
        other.model_.log_weight.copy_(torch.tensor(logs, dtype=torch.float64, device="cpu"))
        other._describe()
        return other


class _Conditional(_InfiniteGraph, ABC):
    """Base of regression and classification: covariates at the top of the graph, targets at the bottom."""

    def _strategy(self, prepared: Prepared) -> MarkovChains:
        if isinstance(prepared.target, ClassLabels) and prepared.target.ranks:
            raise DataError(
                "ordinal was given, but sampled graphs have a probit model of classes without order; leave it out, or "
                "use another structure"
            )
        posterior = partial(ConditionalGraphs, moves=GraphMoves.of(self), weight_draws=self.weight_draws)
        return self._chains(posterior, f"{engine(self.engine).name} sweep")

    def relevance(self) -> dict[str, dict[str, float]]:
        """Return the posterior relevance of each encoded column.

        Returns
        -------
        dict of str to dict
            "used": posterior probability of a directed path to a target; "direct": posterior probability of an edge to
            a target; "children": posterior mean number of children.
        """
        inputs, outputs = self.model_.inputs, self.model_.observed
        totals = np.zeros((inputs, 3))
        for graph, weight in self.model_.graphs():
            paths = graph.ancestors[:inputs, inputs:outputs].any(1)
            edges = graph.edges[:inputs]
            totals += weight * np.column_stack([paths, edges[:, inputs:outputs].any(1), edges.sum(1)])
        totals[:, :2] = totals[:, :2].clip(max=1.0)  # rounded weights may sum to more than 1
        names = ("used", "direct", "children")
        return {
            column: dict(zip(names, values, strict=True))
            for column, values in zip(self.schema_.encoded_names, totals.tolist(), strict=True)
        }


@documented
class IndianChefsRegressor(_Conditional, BaseRegressor):
    """Regressor with a posterior over graphs of an unlimited number of hidden units, for one or more targets.

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
        return NumberTask(recalibrate=self.recalibrate)


@documented
class IndianChefsClassifier(_Conditional, Classifier):
    """Classifier with a posterior over graphs of an unlimited number of hidden units, with probit outputs.

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


@documented
class IndianChefsDensity(_InfiniteGraph, Density):
    """Density estimator for a table of numbers: belief networks with an unlimited number of hidden units.

    Attributes
    ----------
    support_ : ndarray, shape (2, T)
        Lower and upper ends of the support of each column. The density is 0 outside.

    Notes
    -----
    Columns are mapped into (0, 1) by their range and `margin`; outside this support the density is 0. The draws of
    hidden units are fixed, so the estimate is a proper density. It integrates to one, can be sampled, and its value at
    a row does not depend on other rows of the call.

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
        """Lower and upper ends of the support of each column, shape (2, T)."""
        require_fitted(self)
        scale = self._logit_scale()
        return cast(TargetScale, self.target_).decode(scale.support)

    def _task(self) -> NumberTask:
        return NumberTask(density=True)

    def _strategy(self, prepared: Prepared) -> MarkovChains:
        posterior = partial(DensityGraphs, moves=GraphMoves.of(self), margin=self.margin)
        return self._chains(posterior, f"{engine(self.engine).name} sweep")

    def score_samples(self, X: Any, return_error: bool = False) -> Any:
        """Return the log density of each row, in nats, with respect to the units of the table.

        Parameters
        ----------
        X : array or data frame of numbers, shape (N, T)
            Rows.
        return_error : bool
            Also return the Monte Carlo error of each log density: its variation over repeated runs of as many chains.

        Returns
        -------
        ndarray, shape (N,), or a tuple of two
            Log densities, and their errors if asked for; -inf outside the support, with an error of 0.

        Warns
        -----
        DataWarning
            If rows are outside the support, or have fewer than 50 effective components, so that the error is
            underestimated.
        """
        mixture = self._mixture()
        z = self._encode_rows(X)
        log_p, errors, effective = mixture.log_prob(z, errors=return_error)
        outside = np.isinf(log_p)
        few = effective < _FEW
        if outside.any():
            warnings.warn(
                f"{int(outside.sum())} of {len(z)} rows are outside the support, where the density is 0; fit with a "
                f"larger margin (now {self.margin:g}) if such rows are possible",
                DataWarning,
                stacklevel=2,
            )
        if (few & ~outside).any():
            warnings.warn(
                f"{int((few & ~outside).sum())} of {len(z)} rows have fewer than {_FEW:.0f} effective components: the "
                "log density is inaccurate and its error underestimated; raise density_draws (now "
                f"{self.density_draws})",
                DataWarning,
                stacklevel=2,
            )
        log_p = log_p - self.target_.log_unit
        return (log_p, errors) if return_error else log_p

    def sample(self, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw rows in the units of the table, shape (n_samples, T); each row is drawn from a random network."""
        mixture = self._mixture()
        noise = np.random.default_rng(as_seed(random_state))
        drawn = mixture.sample(checks.whole("n_samples", n_samples), noise)
        return cast(TargetScale, self.target_).decode(drawn)

    def marginal(self, column: int | str) -> "Marginal":
        """Return the marginal distribution of one column, given by its name or position."""
        mixture, place = self._mixture(), self._place(column)
        target = cast(TargetScale, self.target_)
        return Marginal(mixture, place, target.mean[place], target.scale[place])

    def conditional(self, column: int | str, X: Any) -> ConditionalColumn:
        """Return the distribution of one column given the other cells of each row.

        Parameters
        ----------
        column : int or str
            Position or name of the column. Its own values in X are ignored.
        X : array or data frame of numbers, shape (N, T)
            Rows. Missing cells are unknown: the distribution is that given the known cells.

        Returns
        -------
        ConditionalColumn
            Methods `cdf`, `icdf` and `log_prob`, and the `mean`, of each row.

        Raises
        ------
        DataError
            If there is no such column, or a known cell is outside the support.

        Warns
        -----
        DataWarning
            If rows have fewer than 50 effective components, so that their distributions are inaccurate.
        """
        mixture, place = self._mixture(), self._place(column)
        cells = self._cells(X).copy()
        cells[:, place] = np.nan
        z = cast(TargetScale, self.target_).standardise(cells)
        outside = self._is_outside(z, mixture)
        if outside.any():
            raise DataError(
                f"{rows_of(outside)} have known cells outside the support, where the density is 0; fit with a larger "
                f"margin (now {self.margin:g}), or set these cells to missing"
            )
        self._warn_few_components(effective_components(mixture, z))
        return ConditionalColumn(mixture, place, z, cast(TargetScale, self.target_))

    def impute(self, X: Any, n_samples: int | None = None, random_state: Any = 0) -> Array:
        """Fill in missing cells, given the other cells of their rows.

        Parameters
        ----------
        X : array or data frame of numbers, shape (N, T)
            Rows with missing cells.
        n_samples : int, optional
            Number of draws of the missing cells from their joint conditional distribution. By default, each missing
            cell is replaced by its conditional mean.
        random_state : int, Generator or RandomState
            Seed of the draws.

        Returns
        -------
        ndarray, shape (N, T), or (n_samples, N, T)
            Rows in the order of X. Known cells are unchanged.

        Warns
        -----
        DataWarning
            If rows have fewer than 50 effective components, so that their distributions are inaccurate, or known cells
            outside the support, so that their missing cells remain missing.

        Examples
        --------
        >>> import warnings
        >>> from sklearn.datasets import load_iris
        >>> X, _ = load_iris(return_X_y=True)
        >>> holes = X[:2].copy()
        >>> holes[0, 3] = np.nan
        >>> with warnings.catch_warnings(action="ignore"):  # so short a run has not converged
        ...     short = IndianChefsDensity(chains=2, sweeps=40, states=10, engine="numpy", random_state=0).fit(X)
        ...     filled, drawn = short.impute(holes), short.impute(holes, n_samples=5)
        >>> filled.shape, drawn.shape, bool((filled[1] == X[1]).all())
        ((2, 4), (5, 2, 4), True)
        """
        mixture = self._mixture()
        cells = self._cells(X)
        z = cast(TargetScale, self.target_).standardise(cells)
        chosen = np.isnan(z).any(1)
        outside = chosen & self._is_outside(z, mixture)
        if outside.any():
            warnings.warn(
                f"the missing cells of {rows_of(outside)} remain missing: known cells are outside the support, where "
                f"the density is 0; fit with a larger margin (now {self.margin:g}), or set these cells to missing",
                DataWarning,
                stacklevel=2,
            )
        chosen &= ~outside
        if n_samples is not None:
            n_samples = checks.whole("n_samples", n_samples)
        filled = cells.copy() if n_samples is None else np.tile(cells, (n_samples, 1, 1))
        if chosen.any():
            self._warn_few_components(effective_components(mixture, z[chosen]))
            if n_samples is None:
                parts = fill(mixture, z[chosen])
            else:
                noise = np.random.default_rng(as_seed(random_state))
                parts = sample_missing(mixture, z[chosen], n_samples, noise)
            decoded = cast(TargetScale, self.target_).decode(parts)
            filled[..., chosen, :] = np.where(np.isnan(cells[chosen]), decoded, cells[chosen])
        return filled

    def p_values(self, X: Any, reference: Any = None, random_state: Any = 0) -> Array:
        """Return the probability that a row of the same distribution has a log density as low as each row of X.

        Parameters
        ----------
        X : array or data frame of numbers, shape (N, T)
            Rows.
        reference : array or data frame of numbers, shape (R, T), optional
            Rows of the same distribution as the training rows, which the density was not fitted to. The p-values are
            then valid whether or not the density is right: on average over such reference rows, a new row of the
            distribution has a p-value up to q with a probability of at most q (Vovk, Gammerman and Shafer, Algorithmic
            Learning in a Random World, 2005). By default 4,000 rows are drawn from the density itself, and the p-values
            are valid if the density is right.
        random_state : int, Generator or RandomState
            Seed of the draws.

        Returns
        -------
        ndarray, shape (N,)
            (1 + number of reference rows whose log density is not above that of the row) / (1 + R).
        """
        mixture = self._mixture()
        if reference is None:
            rows = mixture.sample(_REFERENCE, np.random.default_rng(as_seed(random_state)))
        else:
            rows = self._encode_rows(reference)
        known = np.sort(mixture.log_prob(rows, errors=False)[0])
        scores = mixture.log_prob(self._encode_rows(X), errors=False)[0]
        return np.asarray((1.0 + np.searchsorted(known, scores, side="right")) / (1.0 + len(known)))

    def dependence(self) -> Array:
        """Return the probability that two columns have a common ancestor among the hidden units, shape (T, T)."""
        columns = self.model_.observed
        probability = np.zeros((columns, columns))
        for graph, weight in self.model_.graphs():
            above = graph.ancestors[columns:, :columns]
            probability += weight * (above[:, :, None] & above[:, None, :]).any(0)
        return probability

    def _place(self, column: int | str) -> int:
        """Return the position of a column that is given by its name or position."""
        names = [entry.name for entry in self.schema_.columns]
        place: Any = names.index(column) if column in names else column
        if isinstance(place, bool) or not isinstance(place, int | np.integer) or not 0 <= place < len(names):
            raise DataError(
                f"column {column!r} was given; allowed are {', '.join(map(repr, names))}, or their positions"
            )
        return int(place)

    def _cells(self, X: Any) -> Array:
        """Return the cells of a table as float64, (N, T), with NaN for missing ones."""
        X = unmask(X)
        if is_frame(X):
            return read_cells(self._table(X, reset=False))
        check_table(X)
        try:
            cells = np.asarray(X, dtype=np.float64)  # None is NaN
        except (TypeError, ValueError) as error:
            raise DataError(f"X cannot be read as an array of numbers: {error}") from error
        gaps = np.isnan(cells)
        return np.where(gaps, np.nan, self._table(np.where(gaps, 0.0, cells), reset=False))

    def _is_outside(self, z: Array, mixture: Mixture) -> Array:
        """Return True for standardised rows with a known cell outside the support, (N,)."""
        return cast(Array, np.isinf(mixture.scale.encode(z)).any(1))

    def _warn_few_components(self, effective: Array) -> None:
        few = int((effective < _FEW).sum())
        if few:
            warnings.warn(
                f"{few} of {len(effective)} rows have fewer than {_FEW:.0f} effective components given their known "
                f"cells: their distributions are inaccurate; raise density_draws (now {self.density_draws})",
                DataWarning,
                stacklevel=3,
            )

    def _mixture(self) -> Mixture:
        """Return the density in standardised units."""
        require_fitted(self)
        model = self.model_
        scale = self._logit_scale()
        chosen, log_weight = model.thin(4 * self.networks)
        states = model.states()
        noise = np.random.default_rng(fold_in(self.seed_, "predict"))
        drawn = components([states[number] for number in chosen.tolist()], model.observed, self.density_draws, noise)
        return Mixture(*drawn, log_weight.exp().numpy(), model.chain[chosen].numpy(), scale)

    def _logit_scale(self) -> LogitScale:
        diagnostics = self._chain_diagnostics()
        if len(diagnostics.low) != self.model_.observed or len(diagnostics.span) != self.model_.observed:
            raise DataError(
                f"its diagnostics have ranges of {len(diagnostics.low)} columns; {self.model_.observed} are needed"
            )
        return LogitScale(np.array(diagnostics.low), np.array(diagnostics.span), self.margin)

    def _encode_rows(self, X: Any) -> Array:
        cells = self._cells(X)
        gaps = cast(Array, np.isnan(cells).any(1))
        if gaps.any():
            raise DataError(f"X has missing cells in {rows_of(gaps)}; fill them in (impute), or drop these rows")
        return cast(TargetScale, self.target_).encode(cells)


class Marginal:
    """Marginal distribution of one column of a density, in the unit of the column."""

    def __init__(self, mixture: Mixture, column: int, mean: float, scale: float) -> None:
        self._mixture = mixture
        self._column = column
        self._mean = mean
        self._scale = scale

    def cdf(self, x: Any) -> Array:
        """Return the cumulative distribution function at x, shape (N,)."""
        return self._mixture.cdf(self._column, (np.atleast_1d(np.asarray(x, dtype=float)) - self._mean) / self._scale)

    def icdf(self, q: Any) -> Array:
        """Return the quantiles of 0 < q < 1, shape (N,)."""
        check_levels(q)
        return self._mean + self._scale * self._mixture.icdf(self._column, np.atleast_1d(np.asarray(q, dtype=float)))
