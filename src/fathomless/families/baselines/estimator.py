"""The estimators of the baselines: networks to compare with."""

import copy
import math
from abc import ABC, abstractmethod
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from fathomless.data.rows import Rows
from fathomless.estimators.incremental import Incremental
from fathomless.estimators.options import documented
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.strategies import Strategy, Then
from fathomless.estimators.tasks import Classifier, Regressor
from fathomless.estimators.variational import OneNetwork
from fathomless.families.baselines.drawn import DrawnNetworks
from fathomless.families.baselines.laplace import doubted, laplace_posterior
from fathomless.families.baselines.networks import (
    DepthUncertaintyNetworks,
    DropoutNetworks,
    EnsembleNetworks,
    FiniteNetworks,
    LaplaceNetworks,
    MatrixNormalNetworks,
    MeanFieldNetworks,
    SubspaceNetworks,
    SWAGNetworks,
    TrajectoryNetworks,
)
from fathomless.families.baselines.options import (
    DrawnNetworksOptions,
)
from fathomless.families.baselines.trajectories import CHAINS, constant_rate, iterates, subspace_draws, swag_draws
from fathomless.families.depth.estimator import LayeredNetwork
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.svi import calibrate
from fathomless.nn.flat import flattened
from fathomless.posterior.ensemble import members_of
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system.errors import DataError
from fathomless.system.rng import fold_in

__all__ = [
    "DeepEnsembleClassifier",
    "DeepEnsembleRegressor",
    "DepthUncertaintyNetworkClassifier",
    "DepthUncertaintyNetworkRegressor",
    "DropoutNetworkClassifier",
    "DropoutNetworkRegressor",
    "FiniteNetworkClassifier",
    "FiniteNetworkRegressor",
    "LaplaceNetworkClassifier",
    "LaplaceNetworkRegressor",
    "MatrixNormalNetworkClassifier",
    "MatrixNormalNetworkRegressor",
    "MeanFieldNetworkClassifier",
    "MeanFieldNetworkRegressor",
    "SWAGNetworkClassifier",
    "SWAGNetworkRegressor",
    "SubspaceNetworkClassifier",
    "SubspaceNetworkRegressor",
]

_BATCH = 32  # rows of a step at a constant rate


class _Trained(LayeredNetwork, OneNetwork, ABC):
    """Estimators of a network that is trained, and no more."""

    def _strategy(self, prepared: Prepared) -> Strategy:
        return self._svi()


class _FiniteNetwork(FiniteNetworks, _Trained):
    """How it is trained."""


class _DepthUncertaintyNetwork(DepthUncertaintyNetworks, Incremental, _Trained):
    """How it is trained."""


class _DropoutNetwork(DropoutNetworks, Incremental, _Trained):
    """How it is trained."""


class _MeanFieldNetwork(MeanFieldNetworks, Incremental, _Trained):
    """How it is trained."""


class _MatrixNormalNetwork(MatrixNormalNetworks, Incremental, _Trained):
    """How it is trained."""


class _DrawnAfterTraining(DrawnNetworksOptions, OneNetwork, ABC):
    """Estimators whose posterior is drawn around a trained network."""

    def _strategy(self, prepared: Prepared) -> Strategy:
        return Then(self._svi(), (self._draw,))

    def _draw(self, fitted: Fitted, table: Prepared) -> Fitted:
        """Draw networks; fit the noise anew, which held a part of the doubt about weights."""
        if not isinstance(table.train, Rows):
            raise DataError("a posterior around what is trained was asked for of a stream; it needs all rows at once")
        for k, model in enumerate(members_of(fitted.model)):
            self._take(cast(DrawnNetworks, model), fitted.likelihood, table.train, fold_in(table.seed, "drawn", k))
        valid = table.valid
        if valid is None or not len(valid):
            return fitted
        score = calibrate(fitted.model, fitted.likelihood, valid, 1, fitted.seed, move=self.calibrate)
        return replace(fitted, score=score)

    @abstractmethod
    def _take(self, model: DrawnNetworks, likelihood: Likelihood, rows: Rows, seed: int) -> None:
        """Find the posterior of a trained network, and draw from it."""


class _LaplaceNetwork(LaplaceNetworks, _DrawnAfterTraining, LayeredNetwork):
    """How the options of the family become a model."""

    def _take(self, model: DrawnNetworks, likelihood: Likelihood, rows: Rows, seed: int) -> None:
        scale = model.prior_scale()
        posterior = laplace_posterior(model.network, likelihood, rows, scale)
        generator = torch.Generator().manual_seed(seed)
        told = doubted(likelihood)
        part = told if told < likelihood.outputs else None
        model.take(posterior.deviations(self.networks, generator), posterior.precision, part)


class _AlongTrajectory(TrajectoryNetworks, _DrawnAfterTraining, LayeredNetwork, ABC):
    """How iterates of descent at a constant rate become a model."""

    def _take(self, model: DrawnNetworks, likelihood: Likelihood, rows: Rows, seed: int) -> None:
        held, network, scale = copy.deepcopy(likelihood).requires_grad_(False), model.network, model.prior_scale()
        batch = min(_BATCH, len(rows))
        rate = constant_rate(network, held, rows, scale, batch, fold_in(seed, "rate"))
        points = iterates(
            network, held, rows, scale, rate=rate, batch=batch, passes=self.passes, seed=fold_in(seed, "batches")
        )
        generator = torch.Generator().manual_seed(fold_in(seed, "draws"))
        apart, stretch = self._along(model, held, rows, points, generator)
        model.take(apart - flattened(network), stretch=stretch)

    @abstractmethod
    def _along(
        self, model: DrawnNetworks, likelihood: Likelihood, rows: Rows, points: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, int | None]:
        """Draw weights (n, P), given iterates (T, P); return how many of them are of one chain, if chains drew them."""


class _SWAGNetwork(SWAGNetworks, _AlongTrajectory):
    """How the options of the family become a model."""

    def _along(
        self, model: DrawnNetworks, likelihood: Likelihood, rows: Rows, points: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, int | None]:
        return swag_draws(points, self.rank, self.networks, generator), None


class _SubspaceNetwork(SubspaceNetworks, _AlongTrajectory):
    """How the options of the family become a model."""

    def _along(
        self, model: DrawnNetworks, likelihood: Likelihood, rows: Rows, points: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, int | None]:
        scale, d = model.prior_scale(), self.subspace_dimension
        drawn = subspace_draws(model.network, likelihood, rows, scale, points, d, self.networks, generator)
        return drawn, math.ceil(self.networks / CHAINS)


class _DeepEnsemble(EnsembleNetworks, _FiniteNetwork):
    """A finite network, several times."""


@documented
class FiniteNetworkClassifier(Incremental, _FiniteNetwork, Classifier):
    """Classifier by an ordinary network of one depth."""


@documented
class FiniteNetworkRegressor(Incremental, _FiniteNetwork, Regressor):
    """Regressor by an ordinary network of one depth."""


@documented
class DepthUncertaintyNetworkClassifier(_DepthUncertaintyNetwork, Classifier):
    """Classifier by a network with a posterior over a given number of depths.

    References
    ----------
    J. Antorán, J. Allingham and J. M. Hernández-Lobato, "Depth Uncertainty in Neural Networks", NeurIPS 2020.
    """


@documented
class DepthUncertaintyNetworkRegressor(_DepthUncertaintyNetwork, Regressor):
    """Regressor by a network with a posterior over a given number of depths."""


@documented
class DropoutNetworkClassifier(_DropoutNetwork, Classifier):
    """Classifier by an ordinary network with Monte Carlo dropout.

    Notes
    -----
    Dropout follows every layer, in training and in prediction; a prediction averages `weight_draws` sets of masks.

    References
    ----------
    Y. Gal and Z. Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016.
    """


@documented
class DropoutNetworkRegressor(_DropoutNetwork, Regressor):
    """Regressor by an ordinary network with Monte Carlo dropout."""


@documented
class MeanFieldNetworkClassifier(_MeanFieldNetwork, Classifier):
    """Classifier by a network with an independent Gaussian on every weight.

    References
    ----------
    C. Blundell, J. Cornebise, K. Kavukcuoglu and D. Wierstra, "Weight Uncertainty in Neural Networks", ICML 2015.
    """


@documented
class MeanFieldNetworkRegressor(_MeanFieldNetwork, Regressor):
    """Regressor by a network with an independent Gaussian on every weight."""


@documented
class LaplaceNetworkClassifier(_LaplaceNetwork, Classifier):
    """Classifier by a network that is linear in its weights, with Laplace's approximation of their posterior.

    References
    ----------
    A. Immer, M. Korzepa and M. Bauer, "Improving Predictions of Bayesian Neural Nets via Local Linearization", AISTATS
    2021.
    """

    several_labels = False


@documented
class LaplaceNetworkRegressor(_LaplaceNetwork, Regressor):
    """Regressor by a network that is linear in its weights, with Laplace's approximation of their posterior."""


@documented
class MatrixNormalNetworkClassifier(_MatrixNormalNetwork, Classifier):
    """Classifier by a network with a matrix normal posterior of each layer.

    References
    ----------
    C. Louizos and M. Welling, "Structured and Efficient Variational Deep Learning with Matrix Gaussian Posteriors",
    ICML 2016.
    """


@documented
class MatrixNormalNetworkRegressor(_MatrixNormalNetwork, Regressor):
    """Regressor by a network with a matrix normal posterior of each layer."""


@documented
class DeepEnsembleClassifier(_DeepEnsemble, Classifier):
    """Classifier by several ordinary networks, trained from different initial weights.

    References
    ----------
    B. Lakshminarayanan, A. Pritzel and C. Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep
    Ensembles", NeurIPS 2017.
    """


@documented
class DeepEnsembleRegressor(_DeepEnsemble, Regressor):
    """Regressor by several ordinary networks, trained from different initial weights."""


@documented
class SWAGNetworkClassifier(_SWAGNetwork, Classifier):
    """Classifier by a network whose weights have the moments of descent at a constant rate.

    References
    ----------
    W. J. Maddox, T. Garipov, P. Izmailov, D. Vetrov and A. G. Wilson, "A Simple Baseline for Bayesian Uncertainty in
    Deep Learning", NeurIPS 2019.
    """


@documented
class SWAGNetworkRegressor(_SWAGNetwork, Regressor):
    """Regressor by a network whose weights have the moments of descent at a constant rate.

    References
    ----------
    W. J. Maddox, T. Garipov, P. Izmailov, D. Vetrov and A. G. Wilson, "A Simple Baseline for Bayesian Uncertainty in
    Deep Learning", NeurIPS 2019.
    """


@documented
class SubspaceNetworkClassifier(_SubspaceNetwork, Classifier):
    """Classifier by a network whose weights are sampled in a plane of few dimensions.

    References
    ----------
    P. Izmailov, W. J. Maddox, P. Kirichenko, T. Garipov, D. Vetrov and A. G. Wilson, "Subspace Inference for Bayesian
    Deep Learning", UAI 2019.
    """


@documented
class SubspaceNetworkRegressor(_SubspaceNetwork, Regressor):
    """Regressor by a network whose weights are sampled in a plane of few dimensions.

    References
    ----------
    P. Izmailov, W. J. Maddox, P. Kirichenko, T. Garipov, D. Vetrov and A. G. Wilson, "Subspace Inference for Bayesian
    Deep Learning", UAI 2019.
    """
