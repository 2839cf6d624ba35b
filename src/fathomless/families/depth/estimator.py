"""Estimators of networks of unbounded depth, and the base class of estimators of networks of layers and heads."""

from abc import ABC
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch

from fathomless.estimators.base import require_fitted
from fathomless.estimators.encoding import BinsDefault
from fathomless.estimators.incremental import Incremental
from fathomless.estimators.options import documented
from fathomless.estimators.preparation import Prepared, SplitPlan
from fathomless.estimators.problem import Problem
from fathomless.estimators.selection import share_using
from fathomless.estimators.strategies import SearchOptions, Strategy, Then
from fathomless.estimators.tasks import Classifier, Regressor
from fathomless.estimators.values import HMC
from fathomless.estimators.variational import CrossFitEstimator, VariationalEstimator
from fathomless.families.depth import FAMILY
from fathomless.families.depth.convergence import DepthWarnings
from fathomless.families.depth.hamiltonian import Hamiltonian, StructureSamples
from fathomless.families.depth.law_fit import make_law_fit
from fathomless.families.depth.networks import DepthNetworks, LayeredNetworks, compute_relevance
from fathomless.families.depth.sampled import SampledDepth, States
from fathomless.inference.out_of_fold.search import FIRST, Law
from fathomless.posterior.capabilities import SelectsInputs
from fathomless.posterior.ensemble import list_members
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics
from fathomless.posterior.laws import (
    DepthLaw,
    FixedDepth,
    FreeCategorical,
    StickBreaking,
)
from fathomless.posterior.likelihoods import Gaussian, Likelihood, LocationScale, StudentT, without_cells
from fathomless.posterior.noise import LearnedNoise
from fathomless.posterior.structure import ListedPosterior, with_errors
from fathomless.system.errors import DataError
from fathomless.system.rng import building

__all__ = ["LayeredNetwork", "UnboundedDepthClassifier", "UnboundedDepthRegressor"]

_PRIORS = ({"weight_prior": 1.0}, {"weight_prior": "columns"})  # trials of weight_prior="auto"


class LayeredNetwork(LayeredNetworks, VariationalEstimator, ABC):
    """Base class of estimators of networks of layers and heads.

    Attributes
    ----------
    depth_posterior_ : dict of int to float
        Posterior weight of each depth.
    depth_posterior_error_ : dict of int to float
        Standard error of each of these weights, if they were estimated on held-out rows; else empty.
    depth_posterior_single_ : dict of int to float
        Weight of each depth used alone (pseudo-BMA+), on the held-out rows on which `depth_posterior_` is the best
        mixture; empty if the evidence lower bound set the weights.
    kinds_ : list of dict
        Candidate architectures (`candidates`): "options", "weight" and number of "networks" of each; else empty.
    trials_ : list of dict
        Options compared by a short training (``weight_prior="auto"``, ``numbers="auto"``): "options", "gain" in
        out-of-fold log-likelihood over the first ones in nats per row, its standard "error", and "chosen"; else empty.
        Trials with selected columns also have the number of "columns" of each network.
    columns_used_ : dict of str to float
        Share of the networks that use each column, if columns were selected (``weight_prior="auto"``); else empty.
    """

    fit_diagnostics_: CrossFitDiagnostics
    structure_: ListedPosterior
    depth_posterior_: dict[int, float]
    depth_posterior_error_: dict[int, float]
    depth_posterior_single_: dict[int, float]
    kinds_: list[dict[str, Any]]
    trials_: list[dict[str, Any]]
    columns_used_: dict[str, float]
    sampling_: dict[int, dict[str, Any]]

    shown = FAMILY.progress

    def _describe(self) -> None:
        diagnostics = self.fit_diagnostics_
        stacked = diagnostics.structure
        self.kinds_ = [kind.to_json() for kind in diagnostics.kinds]
        self.trials_ = [trial.to_json() for trial in diagnostics.trials]
        selected = any(trial.chosen and trial.columns for trial in diagnostics.trials)
        networks = cast(list[SelectsInputs], list_members(self.model_))
        self.columns_used_ = share_using(networks, self.schema_) if selected else {}
        self.sampling_ = {int(number): dict(record) for number, record in diagnostics.sampling.items()}
        # cross-fitted networks of one architecture have the same weights of depths; the first one stands for all
        one_law = stacked is not None and not self.kinds_
        first = list_members(self.model_)[0] if one_law else self.model_
        self.structure_ = cast(ListedPosterior, first.structure())
        if stacked is not None:
            self.structure_ = with_errors(self.structure_, stacked)
        pairs = zip(self.structure_.names, self.structure_.probabilities, strict=True)
        self.depth_posterior_ = {int(name): p for name, p in pairs}
        self.depth_posterior_error_ = dict(zip(stacked.numbers, stacked.errors, strict=True)) if stacked else {}
        self.depth_posterior_single_ = dict(zip(stacked.numbers, stacked.single, strict=True)) if stacked else {}
        if isinstance(self.model_, SampledDepth) and self.model_.reach.shape[1]:
            self.relevance_ = compute_relevance(self.model_, self.schema_.encoded_names, 0.9)


class _UnboundedDepth(DepthNetworks, Incremental, CrossFitEstimator, LayeredNetwork, ABC):
    """Base class of the estimators of unbounded depth.

    Attributes
    ----------
    sampling_ : dict of int to dict
        Records and convergence diagnostics of the chains of each depth, if weights were sampled; else empty.
        "chains" has a record of each chain. "rhat" and "rhat_median" are the 95th percentile and the median of R-hat
        over predictions at 100 rows and 100 random points. "ess" and "mcse" are medians of the effective sample size
        and of the Monte Carlo error in standard deviations. "doubtful" is the share of rows with an unreliable
        leave-one-out density. "followed" has diagnostics of scales, noise and log-likelihood.
    """

    # a transformer has a token for each feature, and drawn weights were not measured
    _bins = BinsDefault(classes=500, numbers=2000, options={"weights": ("map",), "architecture": ("mlp", "residual")})

    @classmethod
    def preset(cls, name: str, **options: Any) -> Self:
        """Return an estimator with the options of a preset.

        Parameters
        ----------
        name : {"fast", "best"}
            "fast": five networks and no selection of columns, for first results. "best": twenty networks with boosted
            trees, and with the nearest training rows for numbers, for the best predictions. If out-of-fold rows give
            nearest rows weight, the fit cannot be exported, and its file contains them.
        **options
            Further options, which replace those of the preset.

        Raises
        ------
        DataError
            If there is no such preset.

        Examples
        --------
        >>> UnboundedDepthRegressor.preset("fast", random_state=0)
        UnboundedDepthRegressor(cv=Folds(n_splits=5), random_state=0, weight_prior=1.0)
        """
        chosen = FAMILY.preset(name, {option.name for option in fields(cls)}, options)
        return cls(**options).set_params(**chosen)

    def relevance(self, level: float = 0.9) -> dict[str, dict[str, float]]:
        """Return the root mean square of the first-layer weights of each encoded column, of sampled weights.

        Parameters
        ----------
        level : float
            Level of the credible intervals.

        Returns
        -------
        dict of str to dict
            "median", "low" and "high" of the root mean square of these weights, for standardised columns. Under the
            prior of networks with hidden layers, the median times the fourth root of the number of columns is 0.85,
            with a 90 % interval from 0.41 to 3.1. A value far below means that a column has little influence.

        Raises
        ------
        DataError
            If weights were not sampled, or the first layer of the architecture is not a linear map.
        """
        require_fitted(self)
        if not 0.0 < level < 1.0:
            raise DataError(f"level={level} was given; a number between 0 and 1 is allowed")
        model = self.model_
        if not isinstance(model, SampledDepth) or not model.reach.shape[1]:
            raise DataError(
                f"relevance was called on networks with weights={self.weights!r} and architecture="
                f"{self.architecture!r}; it needs weights='hmc' and a linear first layer"
            )
        return compute_relevance(model, self.schema_.encoded_names, level)

    def _split_plan(self, count: float, inputs: int, *, grouped: bool = False, stream: bool = False) -> SplitPlan:
        return self._plan_split(self._search(), self._multiplications, count, inputs, grouped=grouped, stream=stream)

    def _strategy(self, prepared: Prepared) -> Strategy:
        if not self._uses_hmc():
            search = self._search()
            linear = self.architecture in ("mlp", "residual")  # "columns" needs a linear first layer
            free = self.weight_prior == "auto" and self._choice("weights") == "map" and linear
            several = prepared.with_numbers().inputs > 1
            priors: tuple[Mapping[str, Any], ...] = _PRIORS if free and several else ({},)
            trials = priors
            if prepared.default_numbers == "plain":
                trials = (*({"numbers": "plain", **prior} for prior in priors), {"numbers": "binned", **priors[0]})
            elif prepared.default_numbers == "binned":
                trials = (*({"numbers": "binned", **prior} for prior in priors), {"numbers": "plain", **priors[-1]})
            # from the last ones, so that bins are kept in the elimination if they have a clear gain
            scaled = [i for i, options in enumerate(trials) if options.get("weight_prior") == "columns"]
            search = replace(search, trials=trials, eliminates=scaled[::-1])
            return Then(
                self._cross_fit_or_svi(search, prepared),
                (DepthWarnings("structure_from__rate", "structure_from__initial_depth"),),
            )
        checkpoint = self._checkpoint()
        if checkpoint.folder is not None:
            checkpoint = replace(checkpoint, folder=Path(checkpoint.folder) / "networks")
        start = self._copy_with(
            {
                "weights": "map",
                "activation": self._choose_activation(),
                "width": self._choose_width(),
                "checkpoint": checkpoint,
            }
        )
        return Hamiltonian(
            start=start._cross_fit_or_svi(start._search(), prepared),
            start_problem=start._problem(),
            start_session=start._session(),
            assemble=_assemble_model,
            state_noise=_use_stated_noise,
            options=self.weights if isinstance(self.weights, HMC) else HMC(),
            double=self.precision == "float64",
        )

    def _search(self) -> SearchOptions:
        free = not isinstance(self.depth_law, FixedDepth | int) or isinstance(self.depth_law, bool)
        return SearchOptions(
            free=free,
            law=self._make_law_fit() if free and self._choice("structure_from") != "elbo" else None,
            cross_fit=self._choice("weights") in ("map", "hmc"),
            # the noise of training rows is too small for held-out ones: it would end training early, at deep networks
            settings={"widened": self.calibrate},
            unused=("optimizer__schedule",),
        )

    def _multiplications(self, inputs: int) -> float:
        return float(inputs * self._choose_width() + FIRST * self._choose_width() ** 2)

    def _make_law_fit(self) -> Law | None:
        """Return the fit of a parametric law chosen by the user; None for free weights of the depths."""
        if isinstance(self.depth_law, str):
            law = None if self.depth_law in ("auto", "categorical", "stick_breaking") else self._law()
        else:
            law = (
                None if isinstance(self.depth_law, FreeCategorical | StickBreaking) else cast(DepthLaw, self.depth_law)
            )
        return make_law_fit(law, self.min_depth) if isinstance(law, DepthLaw) else None


def _assemble_model(
    problem: Problem, table: Prepared, masses: Mapping[int, float], samples: Mapping[int, StructureSamples]
) -> SampledDepth:
    """Return the model of the retained states of the chains."""
    with building(table.seed):
        likelihood = problem.task.likelihood(table.target)
        model = problem.networks._build_model(table.inputs, likelihood, table.seed, table.dtype)
    assert isinstance(model, SampledDepth)
    model.fill(masses, {number: _collect_states(sample) for number, sample in samples.items()})
    return model.to(table.device)


def _use_stated_noise(likelihood: Likelihood) -> Likelihood:
    """Replace a likelihood with a fitted noise scale by one that reads the noise from the outputs of the networks."""
    learned = isinstance(likelihood, LocationScale) and isinstance(likelihood.noise, LearnedNoise)
    if not learned:
        return without_cells(likelihood)  # chains have densities
    targets = cast(LocationScale, likelihood).targets
    heavy = isinstance(likelihood, StudentT)
    return StudentT(targets, df="stated", noise="stated") if heavy else Gaussian(targets, noise="stated")


def _collect_states(samples: StructureSamples) -> States:
    """Concatenate the retained states of the chains of one depth."""
    states = [(chain.number, state) for chain in samples.run.chains for state in chain.kept]
    weights, precision, df = (
        torch.as_tensor(np.array([state[name] for _, state in states]), device="cpu")
        for name in ("weights", "precision", "df")
    )
    inputs = samples.groups.inputs
    first = weights[:, : int((samples.groups.of_weight < inputs).sum())]  # first layer, one row of inputs per unit
    reach = first.double().square().reshape(len(weights), -1, max(inputs, 1)).mean(1).sqrt()[:, :inputs]
    df = df if bool(df.isfinite().all()) else df[:, :0]
    return States(weights, precision.rsqrt(), df, reach, torch.tensor([number for number, _ in states], device="cpu"))


@documented
class UnboundedDepthClassifier(_UnboundedDepth, Classifier):
    """Classifier by a neural network whose number of layers is inferred.

    Notes
    -----
    With ``weights="map"`` the objective is a penalised likelihood with depth-weighted decay, not an evidence lower
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
    """Regressor for one target or several, by a neural network whose number of layers is inferred.

    Targets are standardised internally; predictions are in the units of y.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = UnboundedDepthRegressor(epochs=60, random_state=0).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, std.shape
    ((3,), (3,))
    """
