"""The estimators of the baselines: networks to compare with."""

from abc import ABC
from typing import cast

import torch

from fathomless.data.rows import Rows
from fathomless.estimators.base import Estimator
from fathomless.estimators.options import documented
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.tasks import Classifier, Regressor
from fathomless.estimators.variational import VariationalEstimator
from fathomless.families.baselines.linearised import LinearisedNetwork
from fathomless.families.baselines.model import (
    depth_uncertainty_network,
    dropout_network,
    finite_network,
    matrix_normal_network,
    mean_field_network,
)
from fathomless.families.baselines.options import (
    DepthUncertaintyOptions,
    DropoutOptions,
    EnsembleOptions,
    FiniteOptions,
    LaplaceOptions,
    MatrixNormalOptions,
    MeanFieldOptions,
)
from fathomless.families.depth.estimator import LayeredNetwork
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.run import Fitted
from fathomless.inference.svi import calibrate
from fathomless.posterior.ensemble import members_of
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
]


class _FiniteNetwork(FiniteOptions, LayeredNetwork):
    """How the options of the family become a model."""

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._room(inputs, outputs, dtype, layers=self.depth, heads=1)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return finite_network(self._blocks(inputs, outputs), self.depth, **start)


class _DepthUncertaintyNetwork(DepthUncertaintyOptions, LayeredNetwork):
    """How the options of the family become a model."""

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._room(inputs, outputs, dtype, layers=self.depths, heads=1 if self.shared_head else self.depths)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        blocks, shared = self._blocks(inputs, outputs), bool(self.shared_head)
        return depth_uncertainty_network(blocks, self.depths, shared_head=shared, **start)


class _DropoutNetwork(DropoutOptions, LayeredNetwork):
    """How the options of the family become a model."""

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._room(inputs, outputs, dtype, layers=self.depth, heads=1)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return dropout_network(self._blocks(inputs, outputs), self.depth, self.dropout, **start)


class _MeanFieldNetwork(MeanFieldOptions, LayeredNetwork):
    """How the options of the family become a model."""

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._room(inputs, outputs, dtype, layers=self.depth, heads=1, copies=2.0)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return mean_field_network(self._blocks(inputs, outputs), self.depth, **start)


class _MatrixNormalNetwork(MatrixNormalOptions, LayeredNetwork):
    """How the options of the family become a model."""

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> UnboundedDepth:
        self._room(inputs, outputs, dtype, layers=self.depth, heads=1)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return matrix_normal_network(self._blocks(inputs, outputs), self.depth, **start)


class AfterTraining(LaplaceOptions, Estimator, ABC):
    """How a posterior is found around what was trained."""

    def _infer(self, prepared: Prepared) -> Fitted:
        """Train; draw networks; fit the noise anew, which held a part of the doubt about weights."""
        fitted = VariationalEstimator._infer(cast(VariationalEstimator, self), prepared)
        if not isinstance(prepared.train, Rows):
            raise DataError("Laplace's approximation was asked for of a stream; it needs all rows at once")
        for k, model in enumerate(members_of(fitted.model)):
            seed = fold_in(prepared.seed, "laplace", k)
            cast(LinearisedNetwork, model).take_posterior(fitted.likelihood, prepared.train, self.networks, seed)
        valid = prepared.valid
        if self.calibrate and valid is not None and len(valid):
            calibrate(fitted.model, fitted.likelihood, valid, 1, fitted.seed)
        return fitted


class _LaplaceNetwork(AfterTraining, LayeredNetwork):
    """How the options of the family become a model."""

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> LinearisedNetwork:
        self._room(inputs, outputs, dtype, layers=self.depth, heads=1)
        start = self._options_of_model(self.weight_prior, seed, dtype)
        return LinearisedNetwork(self._blocks(inputs, outputs), self.depth, **start)


class _DeepEnsemble(EnsembleOptions, _FiniteNetwork):
    """A finite network, several times."""


@documented
class FiniteNetworkClassifier(_FiniteNetwork, Classifier):
    """Classifier by an ordinary network of one depth."""


@documented
class FiniteNetworkRegressor(_FiniteNetwork, Regressor):
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
