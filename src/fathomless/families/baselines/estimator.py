"""Estimators of the baselines."""

from abc import ABC
from typing import ClassVar

from fathomless.estimators.incremental import Incremental
from fathomless.estimators.options import documented
from fathomless.estimators.preparation import Prepared
from fathomless.estimators.strategies import Strategy, Then
from fathomless.estimators.tasks import Classifier, Regressor
from fathomless.estimators.variational import OneNetwork
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
)
from fathomless.families.baselines.steps import (
    DrawNetworks,
    LaplaceDraws,
    SubspaceDraws,
    SWAGDraws,
    TrajectoryDraws,
)
from fathomless.families.depth.convergence import DepthWarnings
from fathomless.families.depth.estimator import LayeredNetwork
from fathomless.system.errors import DataError

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


class _Trained(LayeredNetwork, OneNetwork, ABC):
    """Base class of estimators of one trained network."""

    def _strategy(self, prepared: Prepared) -> Strategy:
        return Then(self._svi(), (DepthWarnings(),))


def _check_single(estimator: OneNetwork) -> None:
    """Check that there is one network, around which weights are drawn."""
    if (count := estimator._restarts().count) > 1:
        raise DataError(
            f"n_restarts={count} was given; the weights of {type(estimator).__name__} are drawn around one network: "
            "set n_restarts=1, and average the predictions of fits with different values of random_state"
        )


class _LaplaceNetwork(LaplaceNetworks, LayeredNetwork, OneNetwork):
    """Base class of estimators with Laplace's approximation."""

    allows_censored: ClassVar[bool] = False  # the information of a censored row depends on its bounds

    def _strategy(self, prepared: Prepared) -> Strategy:
        _check_single(self)
        return Then(self._svi(), (DrawNetworks(LaplaceDraws(self.networks), self.calibrate),))


class _SWAGNetwork(SWAGNetworks, LayeredNetwork, OneNetwork):
    """Base class of estimators with SWAG draws of the weights."""

    def _strategy(self, prepared: Prepared) -> Strategy:
        _check_single(self)
        posterior = TrajectoryDraws(SWAGDraws(self.rank, self.networks), self.passes)
        return Then(self._svi(), (DrawNetworks(posterior, self.calibrate),))


class _SubspaceNetwork(SubspaceNetworks, LayeredNetwork, OneNetwork):
    """Base class of estimators with draws of the weights in a subspace."""

    def _strategy(self, prepared: Prepared) -> Strategy:
        _check_single(self)
        posterior = TrajectoryDraws(SubspaceDraws(self.subspace_dimension, self.networks), self.passes)
        return Then(self._svi(), (DrawNetworks(posterior, self.calibrate),))


@documented
class FiniteNetworkClassifier(FiniteNetworks, Incremental, _Trained, Classifier):
    """Classifier by a neural network of fixed depth."""


@documented
class FiniteNetworkRegressor(FiniteNetworks, Incremental, _Trained, Regressor):
    """Regressor by a neural network of fixed depth."""


@documented
class DepthUncertaintyNetworkClassifier(DepthUncertaintyNetworks, Incremental, _Trained, Classifier):
    """Classifier by a depth uncertainty network, with a posterior over a fixed number of depths.

    References
    ----------
    J. Antorán, J. Allingham and J. M. Hernández-Lobato, "Depth Uncertainty in Neural Networks", NeurIPS 2020.
    """


@documented
class DepthUncertaintyNetworkRegressor(DepthUncertaintyNetworks, Incremental, _Trained, Regressor):
    """Regressor by a depth uncertainty network, with a posterior over a fixed number of depths."""


@documented
class DropoutNetworkClassifier(DropoutNetworks, Incremental, _Trained, Classifier):
    """Classifier by a neural network with Monte Carlo dropout.

    Notes
    -----
    Dropout is applied after every layer, in training and in prediction. A prediction is an average over `weight_draws`
    sets of masks.

    References
    ----------
    Y. Gal and Z. Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016.
    """


@documented
class DropoutNetworkRegressor(DropoutNetworks, Incremental, _Trained, Regressor):
    """Regressor by a neural network with Monte Carlo dropout."""


@documented
class MeanFieldNetworkClassifier(MeanFieldNetworks, Incremental, _Trained, Classifier):
    """Classifier by a mean-field network, with an independent Gaussian posterior of each weight.

    References
    ----------
    C. Blundell, J. Cornebise, K. Kavukcuoglu and D. Wierstra, "Weight Uncertainty in Neural Networks", ICML 2015.
    """


@documented
class MeanFieldNetworkRegressor(MeanFieldNetworks, Incremental, _Trained, Regressor):
    """Regressor by a mean-field network, with an independent Gaussian posterior of each weight."""


@documented
class LaplaceNetworkClassifier(_LaplaceNetwork, Classifier):
    """Classifier by a network linearised in its weights, with Laplace's approximation of their posterior.

    References
    ----------
    A. Immer, M. Korzepa and M. Bauer, "Improving Predictions of Bayesian Neural Nets via Local Linearization", AISTATS
    2021.
    """

    several_labels = False


@documented
class LaplaceNetworkRegressor(_LaplaceNetwork, Regressor):
    """Regressor by a network linearised in its weights, with Laplace's approximation of their posterior."""


@documented
class MatrixNormalNetworkClassifier(MatrixNormalNetworks, Incremental, _Trained, Classifier):
    """Classifier by a network with a matrix normal posterior of each layer.

    References
    ----------
    C. Louizos and M. Welling, "Structured and Efficient Variational Deep Learning with Matrix Gaussian Posteriors",
    ICML 2016.
    """


@documented
class MatrixNormalNetworkRegressor(MatrixNormalNetworks, Incremental, _Trained, Regressor):
    """Regressor by a network with a matrix normal posterior of each layer."""


@documented
class DeepEnsembleClassifier(EnsembleNetworks, _Trained, Classifier):
    """Classifier by a deep ensemble: several networks trained from different initial weights.

    References
    ----------
    B. Lakshminarayanan, A. Pritzel and C. Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep
    Ensembles", NeurIPS 2017.
    """


@documented
class DeepEnsembleRegressor(EnsembleNetworks, _Trained, Regressor):
    """Regressor by a deep ensemble: several networks trained from different initial weights."""


@documented
class SWAGNetworkClassifier(_SWAGNetwork, Classifier):
    """Classifier by SWAG: Gaussian weights with the moments of gradient descent at a constant learning rate.

    References
    ----------
    W. J. Maddox, T. Garipov, P. Izmailov, D. Vetrov and A. G. Wilson, "A Simple Baseline for Bayesian Uncertainty in
    Deep Learning", NeurIPS 2019.
    """


@documented
class SWAGNetworkRegressor(_SWAGNetwork, Regressor):
    """Regressor by SWAG: Gaussian weights with the moments of gradient descent at a constant learning rate.

    References
    ----------
    W. J. Maddox, T. Garipov, P. Izmailov, D. Vetrov and A. G. Wilson, "A Simple Baseline for Bayesian Uncertainty in
    Deep Learning", NeurIPS 2019.
    """


@documented
class SubspaceNetworkClassifier(_SubspaceNetwork, Classifier):
    """Classifier by subspace inference: weights sampled in a subspace of few dimensions.

    References
    ----------
    P. Izmailov, W. J. Maddox, P. Kirichenko, T. Garipov, D. Vetrov and A. G. Wilson, "Subspace Inference for Bayesian
    Deep Learning", UAI 2019.
    """


@documented
class SubspaceNetworkRegressor(_SubspaceNetwork, Regressor):
    """Regressor by subspace inference: weights sampled in a subspace of few dimensions.

    References
    ----------
    P. Izmailov, W. J. Maddox, P. Kirichenko, T. Garipov, D. Vetrov and A. G. Wilson, "Subspace Inference for Bayesian
    Deep Learning", UAI 2019.
    """
