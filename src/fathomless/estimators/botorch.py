r"""Model of BoTorch for a fitted regressor, for Bayesian optimisation.

A function f of the posterior is one network: a member of the ensemble with one structure and one draw of the weights.
With networks :math:`f_1, \dots, f_S` of weights :math:`w_1, \dots, w_S`, the joint law at any points is discrete, and

.. math:: \mu(x) = \sum_s w_s f_s(x), \qquad \sigma^2(x) = \sum_s w_s \left( f_s(x) - \mu(x) \right)^2 .

The networks and their weights are those of ``predict_dist``; :math:`f_s` is the mean of the target under a network, in
units of the target. The recalibration describes single targets, without functions of x to draw, and is not part of the
model.

References
----------
M. Balandat et al., "BoTorch: a framework for efficient Monte-Carlo Bayesian optimization", NeurIPS 2020.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn

from fathomless.data.targets import TargetScale
from fathomless.estimators.base import PredictiveEstimator
from fathomless.estimators.exporting import build_networks, match_moments
from fathomless.posterior.mixtures import Component
from fathomless.posterior.transformed import limit_rows
from fathomless.system.errors import DataError
from fathomless.system.rng import as_generator
from fathomless.system.transforms import LogTransform

try:
    from botorch.models.model import Model
    from botorch.posteriors.ensemble import EnsemblePosterior
except ImportError:  # the package is optional; build_model names its extra
    Model, EnsemblePosterior = nn.Module, object

__all__ = ["NetworkModel", "NetworkPosterior", "build_model"]


class NetworkPosterior(EnsemblePosterior):  # type: ignore[misc]
    r"""Joint law of weighted networks at q points, with the sampling of BoTorch's ``EnsemblePosterior``.

    A sample is one network at all q points. BoTorch's variance is divided by :math:`1 - \sum_s w_s^2`, as for a sample
    of networks; the variance here is that of the discrete law, which its samples have.

    Parameters
    ----------
    law : Component, parameters of shape (..., S, q, m)
        Law of the target under each network.
    weights : Tensor, shape (S,)
        Weights of the networks.
    transform : LogTransform, optional
        Transform of the target, if `law` is the law of the transformed target.
    noise : bool
        True to add the noise of each network: independent for each sample, point and target.
    """

    def __init__(
        self, law: Component, weights: Tensor, transform: LogTransform | None = None, *, noise: bool = False
    ) -> None:
        moments = law
        if transform is not None:
            moments = match_moments(law, transform, limit_rows(weights[:, None, None], law, transform))
        super().__init__(moments.mean, weights)
        self.noise_variance = moments.variance if noise else torch.zeros_like(moments.mean)
        self.law, self.transform, self.noise, self.seed = law, transform, noise, 0

    @property
    def variance(self) -> Tensor:
        """Variance of f at each point, and of the noise if it is included, (..., q, m)."""
        squares = (self.values - self.mean.unsqueeze(-3)).square() + self.noise_variance
        return cast(Tensor, (self.weights[:, None, None] * squares).sum(-3))

    def rsample(self, sample_shape: torch.Size | None = None) -> Tensor:
        """Draw networks, and new noise if it is included: (*sample_shape, ..., q, m), differentiable."""
        self.seed = int(torch.randint(1 << 31, ()))  # samples of BoTorch are drawn from the global generator
        return cast(Tensor, super().rsample(sample_shape))

    def rsample_from_base_samples(self, sample_shape: torch.Size, base_samples: Tensor) -> Tensor:
        """Return the networks with these indices, with the same noise in each call: (*sample_shape, ..., q, m)."""
        if not self.noise:
            return cast(Tensor, super().rsample_from_base_samples(sample_shape, base_samples))
        law = self.law.map_parameters(
            lambda values: EnsemblePosterior(values).rsample_from_base_samples(sample_shape, base_samples)
        )
        sample = law.sample(as_generator(self.seed))
        return sample if self.transform is None else self.transform.invert(sample)


class NetworkModel(Model):  # type: ignore[misc]
    """Networks of a fitted regressor as a model of BoTorch; :func:`build_model` returns it.

    Parameters
    ----------
    networks : nn.Module
        Maps numbers (N, C) to the parameters of the law of the target under each network, (S, N, T) each.
    weights : Tensor, shape (S,)
        Weights of the networks.
    law : type
        Class of the law.
    columns, targets : int
        Numbers of columns C and of targets T.
    transform : LogTransform, optional
        Transform of the target.

    Attributes
    ----------
    num_outputs : int
        Number of targets T.
    batch_shape : torch.Size
        Empty: the model has no batches of its own.
    """

    def __init__(
        self,
        networks: nn.Module,
        weights: Tensor,
        law: type[Component],
        columns: int,
        targets: int,
        transform: LogTransform | None = None,
    ) -> None:
        super().__init__()
        self.networks, self.law, self.columns, self.targets, self.transform = networks, law, columns, targets, transform
        self.register_buffer("weights", weights)

    @property
    def num_outputs(self) -> int:
        """Number of targets."""
        return self.targets

    @property
    def batch_shape(self) -> torch.Size:
        """Empty shape."""
        return torch.Size()

    def posterior(
        self,
        X: Tensor,
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: Any = None,
    ) -> Any:
        """Return the joint law of the networks at q points.

        Parameters
        ----------
        X : Tensor of float64, shape (..., q, C)
            Points, in the units of the columns.
        output_indices : list of int, optional
            Targets; all by default.
        observation_noise : bool
            True to include the noise of each network.
        posterior_transform : PosteriorTransform, optional
            Applied to the result.

        Returns
        -------
        NetworkPosterior
            Values (..., q, T), in units of the targets.

        Raises
        ------
        DataError
            If the points have another number of columns, or the noise is given as a tensor.
        """
        if X.shape[-1] != self.columns:
            raise DataError(f"X has {X.shape[-1]} columns; this model has {self.columns}, those of its training table")
        if isinstance(observation_noise, Tensor):
            raise DataError("observation_noise was given as a tensor; True and False are allowed")
        shape = (*X.shape[:-1], self.targets)
        rows = X.reshape(-1, self.columns).double()
        parameters = [values.unflatten(1, shape[:-1]).movedim(0, -3) for values in self.networks(rows)]
        if output_indices is not None:
            parameters = [values[..., output_indices] for values in parameters]
        law = self.law(*parameters)  # (..., S, q, T)
        result = NetworkPosterior(law, cast(Tensor, self.weights), self.transform, noise=observation_noise)
        return result if posterior_transform is None else posterior_transform(posterior=result, X=X)

    def condition_on_observations(self, X: Tensor, Y: Tensor, **options: Any) -> Any:
        """Refuse new rows: networks are fitted, not conditioned."""
        return _refuse_rows("condition_on_observations")

    def fantasize(self, X: Tensor, sampler: Any, **options: Any) -> Any:
        """Refuse new rows, as :meth:`condition_on_observations`."""
        return _refuse_rows("fantasize")


def _refuse_rows(method: str) -> Any:
    raise DataError(
        f"NetworkModel has no {method}: networks are not conditioned on new rows. Use an acquisition function without "
        "fantasies, such as qLogExpectedImprovement with X_pending, and fit the estimator again with the new rows"
    )


def build_model(estimator: PredictiveEstimator) -> NetworkModel:
    """Build the model; see :meth:`~fathomless.estimators.tasks.Supervised.to_botorch`."""
    if EnsemblePosterior is object:
        raise DataError("to_botorch needs the package botorch; pip install 'fathomless[botorch]'")
    name, target = type(estimator).__name__, estimator.target_
    if not isinstance(target, TargetScale):
        raise DataError(f"{name} predicts classes; a model of BoTorch needs a regressor")
    others = [f"{column.name!r} ({column.kind})" for column in estimator.schema_.columns if column.kind != "numeric"]
    if others:
        raise DataError(
            f"a model of BoTorch needs columns of numbers, but {', '.join(others)} are not; encode these columns as "
            "numbers, or fit without them"
        )
    if target.hurdle:
        raise DataError(
            f"the target has the value {target.hurdle[0]:g} in many rows, which is predicted apart from the networks; "
            "fit with recalibrate=False for a model of BoTorch"
        )
    networks, weights, law = build_networks(estimator)
    return NetworkModel(networks, weights, law, len(estimator.schema_.columns), len(target.mean), target.transform)
