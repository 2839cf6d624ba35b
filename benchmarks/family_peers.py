"""Methods of other libraries with the settings of their own examples, with the interface that scoring needs.

Each method has the encoded table and the standardised target of :class:`fathomless.app.peers.Peer`. scikit-learn's
Gaussian process is always available. The others need an environment with catboost, ngboost, laplace-torch,
bayesian-torch and torch-uncertainty. If the example of a library is for images, the class docstring states which
settings were taken from it.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fathomless.app.peers import Peer
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.mixtures import Normal
from fathomless.system.rng import seeded_globals

Array = npt.NDArray[Any]
_LEAST = 1e-9  # smallest probability or standard deviation


class Process(Peer):
    """scikit-learn's Gaussian process: one length scale for each column, noise, and two restarts of the optimiser."""

    def _fit_numbers(self, x: Array, z: Array) -> Callable[[Array], tuple[Array, Array]]:
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

        lengths = RBF(np.ones(x.shape[1]), (1e-2, 1e3))
        kernel = ConstantKernel(1.0, (1e-3, 1e3)) * lengths + WhiteKernel(0.1, (1e-6, 10.0))
        model = GaussianProcessRegressor(kernel, n_restarts_optimizer=2, random_state=self.seed).fit(x, z)

        def say(rows: Array) -> tuple[Array, Array]:
            mean, std = model.predict(rows, return_std=True)
            return mean, np.maximum(std, _LEAST)

        return say


class Boosting(Peer):
    """CatBoost with its loss for a mean and a variance, and otherwise default options."""

    def _fit_classes(self, x: Array, z: Array) -> Callable[[Array], tuple[Array]]:
        from catboost import CatBoostClassifier

        model = CatBoostClassifier(**self._given()).fit(x, z)
        return lambda rows: (_probabilities(model.predict_proba(rows)),)

    def _fit_numbers(self, x: Array, z: Array) -> Callable[[Array], tuple[Array, Array]]:
        from catboost import CatBoostRegressor

        model = CatBoostRegressor(loss_function="RMSEWithUncertainty", **self._given()).fit(x, z)

        def say(rows: Array) -> tuple[Array, Array]:
            mean, variance = model.predict(rows).T
            return mean, np.sqrt(np.maximum(variance, _LEAST**2))

        return say

    def _given(self) -> dict[str, Any]:
        return {"random_seed": self.seed, "verbose": False, "thread_count": 1, "allow_writing_files": False}


class Natural(Peer):
    """NGBoost with default options: a normal law, or class probabilities."""

    def _fit_classes(self, x: Array, z: Array) -> Callable[[Array], tuple[Array]]:
        from ngboost import NGBClassifier
        from ngboost.distns import k_categorical

        law = k_categorical(int(z.max()) + 1)
        model = NGBClassifier(Dist=law, random_state=self.seed, verbose=False).fit(x, z)
        return lambda rows: (_probabilities(model.predict_proba(rows)),)

    def _fit_numbers(self, x: Array, z: Array) -> Callable[[Array], tuple[Array, Array]]:
        from ngboost import NGBRegressor

        model = NGBRegressor(random_state=self.seed, verbose=False).fit(x, z)

        def say(rows: Array) -> tuple[Array, Array]:
            told = model.pred_dist(rows).params
            return told["loc"], np.maximum(told["scale"], _LEAST)

        return say


class LaplaceTorch(Peer):
    """laplace-torch's regression example: 50 tanh units, 1,000 steps of Adam at 0.01, all weights, the evidence.

    Classification follows its calibration example: the same network, the last layer, Kronecker factors. A step takes
    all rows, as in the example, but at most 1,024.
    """

    def _fit_classes(self, x: Array, z: Array) -> Callable[[Array], tuple[Array]]:
        from laplace import Laplace

        with seeded_globals(self.seed):
            net = self._trained(x, torch.as_tensor(z), int(z.max()) + 1, nn.functional.cross_entropy)
            la = Laplace(net, "classification", subset_of_weights="last_layer", hessian_structure="kron")
            la.fit(_loader(x, z, 128))
            la.optimize_prior_precision(method="marglik")
        return lambda rows: (_probabilities(la(_float(rows)).detach().numpy()),)

    def _fit_numbers(self, x: Array, z: Array) -> Callable[[Array], tuple[Array, Array]]:
        from laplace import Laplace

        target = _float(z)[:, None]
        with seeded_globals(self.seed):
            net = self._trained(x, target, 1, nn.functional.mse_loss)
            la = Laplace(net, "regression", subset_of_weights="all", hessian_structure="full")
            la.fit(DataLoader(TensorDataset(_float(x), target), batch_size=1024))
            free = [torch.ones(1, requires_grad=True) for _ in range(2)]  # log precision and log noise
            optimizer = torch.optim.Adam(free, lr=0.1)
            for _ in range(1000):
                optimizer.zero_grad()
                torch.autograd.backward(-la.log_marginal_likelihood(free[0].exp(), free[1].exp()))
                optimizer.step()

        def say(rows: Array) -> tuple[Array, Array]:
            mean, variance = la(_float(rows))
            std = (variance.reshape(-1) + la.sigma_noise.reshape(()).square()).sqrt()
            return mean.detach().reshape(-1).numpy(), std.detach().numpy()

        return say

    def _trained(self, x: Array, target: Tensor, outputs: int, loss: Callable[..., Tensor]) -> nn.Module:
        net = nn.Sequential(nn.Linear(x.shape[1], 50), nn.Tanh(), nn.Linear(50, outputs))
        optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
        rows = _float(x)
        order = torch.randperm(len(rows))
        parts = order.chunk(math.ceil(len(rows) / 1024))
        for step in range(1000):
            part = parts[step % len(parts)]
            optimizer.zero_grad()
            torch.autograd.backward(loss(net(rows[part]), target[part]))
            optimizer.step()
        return net


class Drawn(Peer):
    """Network with weights drawn for every prediction; the prediction is the mixture over draws."""

    def predict_dist(self, X: Any) -> ClassPredictive | ContinuousPredictive:
        """Return the predictive distribution of rows."""
        from fathomless.data.frames import encode
        from fathomless.data.targets import ClassLabels

        said = self._predict(encode(self.schema_, X))
        draws = len(said[0])
        weight = torch.full((draws,), -math.log(draws), dtype=torch.float64)
        if isinstance(self.target_, ClassLabels):
            log_p = torch.as_tensor(np.log(said[0]), dtype=torch.float64)
            return ClassPredictive(weight, torch.zeros(draws).long(), log_p, np.asarray(self.target_.labels))
        scale, shift = self.target_.scale[0], self.target_.mean[0]
        loc, width = (torch.as_tensor(part, dtype=torch.float64)[:, :, None] for part in said)
        law = Normal(shift + scale * loc, scale * width)
        return ContinuousPredictive(weight, torch.zeros(draws).long(), law, squeeze=True)


class BayesianTorch(Drawn):
    """bayesian-torch: its conversion of a network of 50 units with the priors of its README, the training of its MNIST.

    Batches of 64, five draws per step, 20 draws in predictions, Adadelta, and 14 epochs with a learning rate multiplied
    by 0.7 after each epoch, and by 0.1 in the second half. The number of epochs is increased to give at least 2,000
    steps, with the same total decay. For regression the noise is learned.
    """

    def _fit_classes(self, x: Array, z: Array) -> Callable[[Array], tuple[Array]]:
        with seeded_globals(self.seed):
            net, _ = self._trained(x, torch.as_tensor(z), int(z.max()) + 1)

        @torch.no_grad()
        def say(rows: Array) -> tuple[Array]:
            with seeded_globals(self.seed):
                return (np.stack([_probabilities(net(_float(rows)).softmax(-1).numpy()) for _ in range(20)]),)

        return say

    def _fit_numbers(self, x: Array, z: Array) -> Callable[[Array], tuple[Array, Array]]:
        with seeded_globals(self.seed):
            net, noise = self._trained(x, _float(z), 1)

        @torch.no_grad()
        def say(rows: Array) -> tuple[Array, Array]:
            with seeded_globals(self.seed):
                mean = np.stack([net(_float(rows))[:, 0].numpy() for _ in range(20)])
            return mean, np.full_like(mean, float(noise.exp()))

        return say

    def _trained(self, x: Array, z: Tensor, outputs: int) -> tuple[nn.Module, Tensor]:
        from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss

        net = nn.Sequential(nn.Linear(x.shape[1], 50), nn.ReLU(), nn.Linear(50, outputs))
        prior = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -3.0}
        dnn_to_bnn(net, {**prior, "type": "Reparameterization", "moped_enable": False, "moped_delta": 0.5})
        noise = torch.zeros((), requires_grad=True)  # log
        optimizer = torch.optim.Adadelta([*net.parameters(), noise], lr=1.0)
        loader = _loader(x, z, 64)
        epochs = max(14, math.ceil(2000 / len(loader)))
        for epoch in range(epochs):
            past = 14 * epoch / epochs
            optimizer.param_groups[0]["lr"] = 0.7**past * (1.0 if past < 7 else 0.1)
            for rows, target in loader:
                optimizer.zero_grad()
                drawn = [(net(rows), get_kl_loss(net)) for _ in range(5)]
                f = torch.stack([f for f, _ in drawn]).mean(0)
                kl = torch.stack([kl for _, kl in drawn]).mean(0)
                fit = (
                    nn.functional.cross_entropy(f, target)
                    if outputs > 1
                    else nn.functional.gaussian_nll_loss(f[:, 0], target, (2.0 * noise).exp().expand_as(target))
                )
                torch.autograd.backward(fit + kl / len(x))
                optimizer.step()
        return net, noise.detach()


class TorchUncertainty(Drawn):
    """torch-uncertainty's Bayesian network of its UCI experiments: 50 units, a normal head, 40 epochs of Adam at 0.005.

    Batches of 128, three draws per step and ten in predictions, divergence multiplied by 0.00002, also for
    classification.
    """

    def _fit_classes(self, x: Array, z: Array) -> Callable[[Array], tuple[Array]]:
        with seeded_globals(self.seed):
            net = self._trained(x, torch.as_tensor(z), int(z.max()) + 1, None)

        @torch.no_grad()
        def say(rows: Array) -> tuple[Array]:
            with seeded_globals(self.seed):
                p = net(_float(rows)).softmax(-1).unflatten(0, (10, len(rows)))
            return (_probabilities(p.numpy()),)

        return say

    def _fit_numbers(self, x: Array, z: Array) -> Callable[[Array], tuple[Array, Array]]:
        with seeded_globals(self.seed):
            net = self._trained(x, _float(z)[:, None], 1, "normal")

        @torch.no_grad()
        def say(rows: Array) -> tuple[Array, Array]:
            with seeded_globals(self.seed):
                found = net(_float(rows))
            mean, std = (found[key].reshape(10, len(rows)).numpy() for key in ("loc", "scale"))
            return mean, np.maximum(std, _LEAST)

        return say

    def _trained(self, x: Array, z: Tensor, outputs: int, law: str | None) -> nn.Module:
        from torch_uncertainty.losses import DistributionNLLLoss, ELBOLoss
        from torch_uncertainty.models.mlp import bayesian_mlp

        net: nn.Module = bayesian_mlp(x.shape[1], outputs, [50], num_samples=10, dist_family=law)
        inner = DistributionNLLLoss() if law else nn.CrossEntropyLoss()
        loss = ELBOLoss(net, inner, kl_weight=2e-5, num_samples=3, dist_family=law)
        optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
        for _ in range(40):
            for rows, target in _loader(x, z, 128):
                optimizer.zero_grad()
                torch.autograd.backward(loss(rows, target).sum())
                optimizer.step()
        return net.eval()


def _float(x: Array) -> Tensor:
    return torch.as_tensor(x, dtype=torch.float32)


def _loader(x: Array, z: Any, size: int) -> "DataLoader[Any]":
    return DataLoader(TensorDataset(_float(x), torch.as_tensor(z)), batch_size=size, shuffle=True)


def _probabilities(p: Array) -> Array:
    p = np.clip(np.asarray(p, dtype=np.float64), _LEAST, None)
    normal: Array = p / p.sum(-1, keepdims=True)
    return normal


PEERS: dict[str, type[Peer]] = {
    "gp": Process,
    "catboost": Boosting,
    "ngboost": Natural,
    "laplace-torch": LaplaceTorch,
    "bayesian-torch": BayesianTorch,
    "torch-uncertainty": TorchUncertainty,
}
