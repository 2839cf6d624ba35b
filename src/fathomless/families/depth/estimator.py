"""The estimators of networks of unbounded depth, and what they share with other networks of layers and heads."""

from abc import ABC
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from fathomless.estimators.base import require_fitted
from fathomless.estimators.incremental import Incremental
from fathomless.estimators.options import documented
from fathomless.estimators.preparation import Prepared, SplitPlan
from fathomless.estimators.problem import Problem
from fathomless.estimators.strategies import SearchOptions, Strategy, Then
from fathomless.estimators.tasks import Classifier, Regressor
from fathomless.estimators.values import HMC
from fathomless.estimators.variational import CrossFitEstimator, VariationalEstimator
from fathomless.families.depth import FAMILY
from fathomless.families.depth.convergence import DepthWarnings
from fathomless.families.depth.hamiltonian import Hamiltonian, Sampled
from fathomless.families.depth.law_fit import fitting
from fathomless.families.depth.networks import DepthNetworks, LayeredNetworks, relevance
from fathomless.families.depth.sampled import SampledDepth, States
from fathomless.inference.out_of_fold.search import FIRST, Law
from fathomless.posterior.ensemble import list_members
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics
from fathomless.posterior.laws import (
    DepthLaw,
    FixedDepth,
    FreeCategorical,
    StickBreaking,
)
from fathomless.posterior.likelihoods import Gaussian, LearnedNoise, Likelihood, LocationScale, StudentT
from fathomless.posterior.structure import ListedPosterior, with_errors
from fathomless.system.errors import DataError
from fathomless.system.rng import building

__all__ = ["LayeredNetwork", "UnboundedDepthClassifier", "UnboundedDepthRegressor"]


class LayeredNetwork(LayeredNetworks, VariationalEstimator, ABC):
    """What families of layers and heads share.

    Attributes
    ----------
    depth_posterior_ : dict of int to float
        Posterior weight of each depth.
    depth_posterior_error_ : dict of int to float
        Standard error of each of these weights, if held-out rows decided; else empty.
    depth_posterior_single_ : dict of int to float
        Which single depth predicts the held-out rows best (pseudo-BMA+), where `depth_posterior_` is the mixture that
        does; empty if the evidence bound decided.
    kinds_ : list of dict
        Options, "weight" and number of "networks" of each candidate architecture (`candidates`); empty without
        candidates.
    """

    fit_diagnostics_: CrossFitDiagnostics
    structure_: ListedPosterior
    depth_posterior_: dict[int, float]
    depth_posterior_error_: dict[int, float]
    depth_posterior_single_: dict[int, float]
    kinds_: list[dict[str, Any]]
    sampling_: dict[int, dict[str, Any]]

    shown = FAMILY.progress

    def _describe(self) -> None:
        told = self.fit_diagnostics_
        found = told.structure
        self.kinds_ = [kind.to_json() for kind in told.kinds]
        self.sampling_ = {int(number): dict(record) for number, record in told.sampling.items()}
        one_law = found is not None and not self.kinds_
        first = list_members(self.model_)[0] if one_law else self.model_
        self.structure_ = cast(ListedPosterior, first.structure())
        if found is not None:
            self.structure_ = with_errors(self.structure_, found)
        pairs = zip(self.structure_.names, self.structure_.probabilities, strict=True)
        self.depth_posterior_ = {int(name): p for name, p in pairs}
        self.depth_posterior_error_ = dict(zip(found.numbers, found.errors, strict=True)) if found else {}
        self.depth_posterior_single_ = dict(zip(found.numbers, found.single, strict=True)) if found else {}
        if isinstance(self.model_, SampledDepth) and self.model_.reach.shape[1]:
            self.relevance_ = relevance(self.model_, self.schema_.encoded_names, 0.9)


class _UnboundedDepth(DepthNetworks, Incremental, CrossFitEstimator, LayeredNetwork, ABC):
    """How the options of the family become a model.

    Attributes
    ----------
    sampling_ : dict of int to dict
        Of sampled weights, for each depth: a record of every chain, and what the chains say of their convergence:
        "rhat" (the 95th percentile of R-hat over what networks predict at 100 rows and 100 random points,
        "rhat_median" beside), "ess" and "mcse" (medians; in standard deviations), "doubtful" (share of rows whose
        leave-one-out densities are not reliable), "followed" (scales, noise, log-likelihood). Else empty.
    """

    def relevance(self, level: float = 0.9) -> dict[str, dict[str, float]]:
        """Return the root mean square of the weights that leave each encoded column, where weights were sampled.

        Parameters
        ----------
        level : float
            Of the credible intervals.

        Returns
        -------
        dict of str to dict
            "median", "low" and "high" of the root mean square of these weights, for standardised columns. Under the
            prior of networks with hidden layers, times the fourth root of the number of columns, the median is 0.85,
            and 90 % lie between 0.41 and 3.1: a column is found out if it is far below.

        Raises
        ------
        DataError
            If weights were not sampled, or the architecture has no first linear map.
        """
        require_fitted(self)
        if not 0.0 < level < 1.0:
            raise DataError(f"level={level} was given; a number between 0 and 1 is allowed")
        model = self.model_
        if not isinstance(model, SampledDepth) or not model.reach.shape[1]:
            raise DataError(
                f"relevance was asked of networks with weights={self.weights!r} and architecture={self.architecture!r}"
                "; columns have scales where weights='hmc' and a network begins with a linear map"
            )
        return relevance(model, self.schema_.encoded_names, level)

    def _split_plan(self, count: float, inputs: int, *, grouped: bool = False, stream: bool = False) -> SplitPlan:
        return self._plan_split(self._search(), self._multiplications, count, inputs, grouped=grouped, stream=stream)

    def _strategy(self, prepared: Prepared) -> Strategy:
        if not self._sampled():
            return Then(
                self._cross_fit_or_svi(self._search(), prepared),
                (DepthWarnings("structure_from__rate", "structure_from__initial_depth"),),
            )
        checkpoint = self._checkpoint()
        if checkpoint.folder is not None:
            checkpoint = replace(checkpoint, folder=Path(checkpoint.folder) / "networks")
        start = self._copy_with(
            {"weights": "map", "activation": self._between(), "width": self._hidden(), "checkpoint": checkpoint}
        )
        return Hamiltonian(
            start=start._cross_fit_or_svi(start._search(), prepared),
            start_problem=start._problem(),
            start_session=start._session(),
            assemble=_sampled_model,
            state_noise=_stated,
            options=self.weights if isinstance(self.weights, HMC) else HMC(),
            double=self.precision == "float64",
        )

    def _search(self) -> SearchOptions:
        free = not isinstance(self.depth_law, FixedDepth | int) or isinstance(self.depth_law, bool)
        return SearchOptions(
            free=free,
            law=self._named_law() if free and self._choice("structure_from") != "elbo" else None,
            cross_fit=self._choice("weights") in ("map", "hmc"),
            unused=("optimizer__schedule",),
        )

    def _multiplications(self, inputs: int) -> float:
        return float(inputs * self._hidden() + FIRST * self._hidden() ** 2)

    def _named_law(self) -> Law | None:
        """Return the fit of a law of the user's choice; None for categorical weights."""
        if isinstance(self.depth_law, str):
            law = None if self.depth_law in ("auto", "categorical", "stick_breaking") else self._law()
        else:
            law = (
                None if isinstance(self.depth_law, FreeCategorical | StickBreaking) else cast(DepthLaw, self.depth_law)
            )
        return fitting(law, self.min_depth) if isinstance(law, DepthLaw) else None


def _sampled_model(
    problem: Problem, table: Prepared, masses: Mapping[int, float], found: Mapping[int, Sampled]
) -> SampledDepth:
    """Return the model of what chains kept."""
    with building(table.seed):
        likelihood = problem.task.likelihood(table.target)
        model = problem.networks._build_model(table.inputs, likelihood, table.seed, table.dtype)
    assert isinstance(model, SampledDepth)
    model.fill(masses, {number: _states(one) for number, one in found.items()})
    return model.to(table.device)


def _stated(likelihood: Likelihood) -> Likelihood:
    """Return the likelihood of networks that state their noise, in place of one that learned it."""
    learned = isinstance(likelihood, LocationScale) and isinstance(likelihood.noise, LearnedNoise)
    if not learned:
        return likelihood
    targets = cast(LocationScale, likelihood).targets
    heavy = isinstance(likelihood, StudentT)
    return StudentT(targets, df="stated", noise="stated") if heavy else Gaussian(targets, noise="stated")


def _states(found: Sampled) -> States:
    """Put together what the chains of one depth have kept, chain after chain."""
    kept = [(chain.number, one) for chain in found.run.chains for one in chain.kept]
    weights, precision, df = (
        torch.as_tensor(np.array([one[name] for _, one in kept]), device="cpu")
        for name in ("weights", "precision", "df")
    )
    inputs = found.groups.inputs
    leaving = weights[:, : int((found.groups.of_weight < inputs).sum())]  # unit after unit, input by input
    reach = leaving.double().square().reshape(len(weights), -1, max(inputs, 1)).mean(1).sqrt()[:, :inputs]
    df = df if bool(df.isfinite().all()) else df[:, :0]
    return States(weights, precision.rsqrt(), df, reach, torch.tensor([number for number, _ in kept], device="cpu"))


@documented
class UnboundedDepthClassifier(_UnboundedDepth, Classifier):
    """Classifier whose network has as many layers as the data ask for.

    Notes
    -----
    With ``weights="map"`` the objective is penalised maximum likelihood with depth-weighted decay, not an evidence
    bound. The posterior over depth is an approximation by a parametric family; it need not find the best depth.

    References
    ----------
    A. Nazaret and D. Blei, "Variational Inference for Infinitely Deep Neural Networks", ICML 2022.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = UnboundedDepthClassifier(epochs=60, random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape
    (2, 3)
    """


@documented
class UnboundedDepthRegressor(_UnboundedDepth, Regressor):
    """Regressor, for one target or several, whose network has as many layers as the data ask for.

    Targets are centred and scaled inside; predictions are in the units of y.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = UnboundedDepthRegressor(random_state=0).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, std.shape
    ((3,), (3,))
    """
