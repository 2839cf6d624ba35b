"""The estimators of the baselines: networks to compare with."""

from abc import ABC

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
    AlongTrajectory,
    DrawNetworks,
    LaplaceDraws,
    SubspaceDraws,
    SWAGDraws,
)
from fathomless.families.depth.convergence import DepthWarnings
from fathomless.families.depth.estimator import LayeredNetwork

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
    """Estimators of a network that is trained, and no more."""

    def _strategy(self, prepared: Prepared) -> Strategy:
        return Then(self._svi(), (DepthWarnings(),))


class _LaplaceNetwork(LaplaceNetworks, LayeredNetwork, OneNetwork):
    """Estimators of a network with Laplace's approximation."""

    def _strategy(self, prepared: Prepared) -> Strategy:
        return Then(self._svi(), (DrawNetworks(LaplaceDraws(self.networks), self.calibrate),))


class _SWAGNetwork(SWAGNetworks, LayeredNetwork, OneNetwork):
    """Estimators of a network whose weights have the moments of a descent."""

    def _strategy(self, prepared: Prepared) -> Strategy:
        posterior = AlongTrajectory(SWAGDraws(self.rank, self.networks), self.passes)
        return Then(self._svi(), (DrawNetworks(posterior, self.calibrate),))


class _SubspaceNetwork(SubspaceNetworks, LayeredNetwork, OneNetwork):
    """Estimators of a network whose weights are sampled in a plane."""

    def _strategy(self, prepared: Prepared) -> Strategy:
        posterior = AlongTrajectory(SubspaceDraws(self.subspace_dimension, self.networks), self.passes)
        return Then(self._svi(), (DrawNetworks(posterior, self.calibrate),))


@documented
class FiniteNetworkClassifier(FiniteNetworks, Incremental, _Trained, Classifier):
    """Classifier by an ordinary network of one depth."""


@documented
class FiniteNetworkRegressor(FiniteNetworks, Incremental, _Trained, Regressor):
    """Regressor by an ordinary network of one depth."""


@documented
class DepthUncertaintyNetworkClassifier(DepthUncertaintyNetworks, Incremental, _Trained, Classifier):
    """Classifier by a network with a posterior over a given number of depths.

    References
    ----------
    J. Antorán, J. Allingham and J. M. Hernández-Lobato, "Depth Uncertainty in Neural Networks", NeurIPS 2020.
    """


@documented
class DepthUncertaintyNetworkRegressor(DepthUncertaintyNetworks, Incremental, _Trained, Regressor):
    """Regressor by a network with a posterior over a given number of depths."""


@documented
class DropoutNetworkClassifier(DropoutNetworks, Incremental, _Trained, Classifier):
    """Classifier by an ordinary network with Monte Carlo dropout.

    Notes
    -----
    Dropout follows every layer, in training and in prediction; a prediction averages `weight_draws` sets of masks.

    References
    ----------
    Y. Gal and Z. Ghahramani, "Dropout as a Bayesian Approximation", ICML 2016.
    """


@documented
class DropoutNetworkRegressor(DropoutNetworks, Incremental, _Trained, Regressor):
    """Regressor by an ordinary network with Monte Carlo dropout."""


@documented
class MeanFieldNetworkClassifier(MeanFieldNetworks, Incremental, _Trained, Classifier):
    """Classifier by a network with an independent Gaussian on every weight.

    References
    ----------
    C. Blundell, J. Cornebise, K. Kavukcuoglu and D. Wierstra, "Weight Uncertainty in Neural Networks", ICML 2015.
    """


@documented
class MeanFieldNetworkRegressor(MeanFieldNetworks, Incremental, _Trained, Regressor):
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
    """Classifier by several ordinary networks, trained from different initial weights.

    References
    ----------
    B. Lakshminarayanan, A. Pritzel and C. Blundell, "Simple and Scalable Predictive Uncertainty Estimation using Deep
    Ensembles", NeurIPS 2017.
    """


@documented
class DeepEnsembleRegressor(EnsembleNetworks, _Trained, Regressor):
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
