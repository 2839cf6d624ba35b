"""Estimators of networks of continuous depth."""

import math
import time
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import torch

from fathomless.data.frames import take
from fathomless.data.targets import TargetScale
from fathomless.estimators.base import require_fitted
from fathomless.estimators.options import documented
from fathomless.estimators.predictor import Array
from fathomless.estimators.preparation import Prepared, SplitPlan
from fathomless.estimators.strategies import SearchOptions, Strategy, Then
from fathomless.estimators.tasks import Classifier, Regressor
from fathomless.estimators.variational import CrossFitEstimator
from fathomless.families.continuous.accuracy import (
    Accuracy,
    draw_coupled,
    effective_depth,
    find_common_steps,
    hellinger,
    round_steps,
)
from fathomless.families.continuous.adaptive import fit_grid
from fathomless.families.continuous.deploy import FixedPaths, fixed_paths, point_path
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.networks import ContinuousDiagnostics, ContinuousNetworks
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.objective import log_predictive
from fathomless.posterior.ensemble import list_members
from fathomless.posterior.model import Draws
from fathomless.posterior.structure import ListedPosterior, with_errors
from fathomless.system.rng import fold_in

__all__ = ["ContinuousDepthClassifier", "ContinuousDepthRegressor"]

_FOCUS = 1.0  # share of the planned epochs: with the noise of paths, the learning rate decays for longer
_EVALUATED = 4  # number of paths in the comparison of epochs; paths from one initial point differ little
_ROWS = 256  # number of training rows in the measurement of the effective depth


@dataclass(frozen=True)
class EffectiveDepth:
    """Step after a training that measures the effective depth.

    Attributes
    ----------
    draws : int
        Number of weight draws over all networks.
    """

    draws: int

    def __call__(self, fitted: Fitted, table: Prepared) -> Fitted:
        """Measure the effective depth on training rows."""
        x = table.train.first.x[:_ROWS]
        draws = max(1, self.draws // len(list_members(fitted.model)))
        layers = effective_depth(fitted.model, fitted.likelihood, x, n=draws, seed=fold_in(table.seed, "depth"))
        return replace(fitted, diagnostics=ContinuousDiagnostics(**vars(fitted.diagnostics), effective_depth=layers))


class _ContinuousDepth(ContinuousNetworks, CrossFitEstimator, ABC):
    """Base class of the estimators of continuous depth.

    Attributes
    ----------
    effective_depth_ : int
        Number of residual layers that the posterior needs: the smallest number of steps 1, 2, 4, … (times the `count`
        of a random horizon) whose predictions differ from those with twice as many steps by less than 0.01 in mean
        Hellinger distance, on at most 256 training rows. 0 for estimators fitted jointly, which do not measure it.
    horizon_posterior_ : dict of float to float
        Posterior weight of each horizon, the depth at which the state is read.
    divergence_profile_ : ndarray, shape (n, 2)
        Depth, and the divergence of the paths of the weights from their prior there, in nats per unit of depth. It is
        large where the data changed the weights. For several networks it is their mean.
    """

    fit_diagnostics_: ContinuousDiagnostics
    structure_: ListedPosterior
    effective_depth_: int
    horizon_posterior_: dict[float, float]
    divergence_profile_: Array

    def _networks(self) -> list[ContinuousDepth]:
        """Return the fitted network, or those of an ensemble."""
        require_fitted(self)
        return cast(list[ContinuousDepth], list_members(self.model_))

    def _describe(self) -> None:
        networks = self._networks()
        first = networks[0]
        structure = cast(ListedPosterior, self.model_.structure())
        parts = [f"{len(networks)} networks"] if len(networks) > 1 else []
        stacked = self.fit_diagnostics_.structure
        if stacked is not None and first.random_horizon:
            mean, error = stacked.mean * first.unit, stacked.mean_error * first.unit
            structure = replace(with_errors(first.structure(), stacked), statistics=structure.statistics)
            parts.append(f"mean horizon {mean:.2f} ± {error:.2f} on out-of-fold rows")
        elif first.random_horizon:
            parts.append(f"mean horizon {structure.statistics['mean_horizon'] * first.unit:.2f}")
        paths = first.summary(structure.statistics)
        self.structure_ = replace(structure, summary="; ".join([", ".join(parts), paths] if parts else [paths]))
        self.effective_depth_ = self.fit_diagnostics_.effective_depth
        self.horizon_posterior_ = {first.horizon: 1.0}
        if first.random_horizon:
            pairs = zip(structure.names, structure.probabilities, strict=True)
            self.horizon_posterior_ = {int(name) * first.unit: p for name, p in pairs}
        profiles = [network.divergence_profile() for network in networks]
        depth = max((profile.depth for profile in profiles), key=len)
        # networks with a shorter horizon have no divergence beyond it
        rates = [torch.nn.functional.pad(profile.rate, (0, len(depth) - len(profile.depth))) for profile in profiles]
        columns = [torch.tensor(depth, dtype=torch.float64, device="cpu"), torch.stack(rates).mean(0)]
        self.divergence_profile_ = torch.stack(columns, 1).numpy()

    structure_every: ClassVar[int] = 1
    clip_norm_auto: ClassVar[float | None] = 10.0
    warm_up_auto: ClassVar[float] = 0.5

    def _split_plan(self, count: float, inputs: int, *, grouped: bool = False, stream: bool = False) -> SplitPlan:
        return self._plan_split(self._search(), self._multiplications, count, inputs, grouped=grouped, stream=stream)

    def _strategy(self, prepared: Prepared) -> Strategy:
        return Then(self._cross_fit_or_svi(self._search(), prepared), (EffectiveDepth(self.weight_draws),))

    def _search(self) -> SearchOptions:
        draws = {"draws": _EVALUATED} if self._value("path").initial == "point" else {}
        focus = {"focus": _FOCUS} if self.epochs == "auto" else {}
        return SearchOptions(
            free=True,  # a fixed horizon is a list of one; held-out rows control the training in this case, too
            law=None,
            cross_fit=True,
            settings={"widened": self.calibrate, **draws, **focus},
            unused=("optimizer__schedule",),
        )

    def _multiplications(self, inputs: int) -> float:
        weights = sum(weight.size for weight in self._dynamics(inputs, 1).moving)
        evaluations = 2 if self._choice("solver") == "heun" else 1
        return float(weights * self._value("solver").steps * evaluations * self.training_draws)

    def accuracy(
        self, X: Any, y: Any = None, *, steps: Sequence[int] = (5, 10, 20, 40), random_state: int = 0
    ) -> list[Accuracy]:
        """Return accuracy and running time of predictions with each number of steps, on the same paths of weights.

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Rows.
        y : array, optional
            Targets, for the score.
        steps : sequence of int
            Numbers of steps on the horizon, which should divide each other. With a random horizon they are rounded to
            multiples of its `count`.
        random_state : int
            Seed of the paths.

        Raises
        ------
        DataError
            If the common grid of the numbers of steps is too fine.
        """
        networks = self._networks()
        steps = round_steps(self.model_, steps)
        finest = find_common_steps(steps)
        draws = max(1, math.ceil(self.weight_draws / len(networks)))
        x = torch.as_tensor(
            self._encode(self.schema_, self._table(X, reset=False)), dtype=self.model_.dtype, device="cpu"
        )
        x = x.to(self.model_.device)
        reference = draw_coupled(self.model_, x, draws, max(steps), finest, random_state)
        results = []
        for count in steps:
            # timed without the finer grid, which only couples the noise for the comparison
            begun = time.perf_counter()
            draw_coupled(self.model_, x, draws, count, count, random_state)
            seconds = time.perf_counter() - begun
            output = draw_coupled(self.model_, x, draws, count, finest, random_state)
            distance = hellinger(output, reference, self.likelihood_).mean().item()
            results.append(Accuracy(count, distance, seconds, None if y is None else self._score_of(output, y)))
        return results

    def _score_of(self, draws: Draws, y: Any) -> float:
        z = torch.as_tensor(self.target_.encode(y)).to(draws.f.device)
        z = z.to(draws.f.dtype) if z.is_floating_point() else z
        score = log_predictive(draws, self.likelihood_, z).mean().item()
        return (
            score if not isinstance(self.target_, TargetScale) else score + float(self.target_.log_jacobian(y).mean())
        )

    def fit_grid(self, X: Any, tolerance: float = 0.01) -> Self:
        """Fit an adaptive grid of steps for predictions, with short steps where the network changes fast.

        The grid is saved with the estimator and used for all predictions; `solver__predict_steps` then has no effect.
        Compare it with equal steps by :meth:`accuracy`; equal steps are often as good.

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Rows similar to the training rows, of which at most 256 are used.
        tolerance : float
            Tolerance of the error of a step, relative to the size of the hidden state.

        Returns
        -------
        self

        Warns
        -----
        DataWarning
            If the tolerance is 0.1 or more.
        """
        networks = self._networks()
        table = take(self._table(X, reset=False), slice(0, _ROWS))
        x = torch.as_tensor(self._encode(self.schema_, table), dtype=self.model_.dtype).to(self.model_.device)
        times = fit_grid(_stack_networks(networks), x.repeat(len(networks), *[1] * (x.ndim - 1)), tolerance)
        for network in networks:
            network.predict_by(grid=times)
        self._describe()
        return self

    def point_path(self, steps: int | None = None) -> FixedPaths:
        """Return the posterior mean path as a plain module of residual blocks, for encoded rows.

        Its input is ``fathomless.data.frames.encode(estimator.schema_, X)`` as a tensor. Its output are the parameters
        of the likelihood of each network, (F, B, K).
        """
        return point_path(_stack_networks(self._networks()), steps)

    def fixed_paths(self, paths: int, *, steps: int | None = None, random_state: int = 0) -> FixedPaths:
        """Return drawn paths of weights as a plain module, for fast and reproducible predictions.

        Its input are encoded rows. Its output are the parameters of the likelihood of every path of every network,
        (F · paths, B, K), whose log weights are its attribute `log_weight`.
        """
        return fixed_paths(_stack_networks(self._networks()), paths, steps, random_state)


def _stack_networks(networks: Sequence[ContinuousDepth]) -> ContinuousDepth:
    first, *others = networks
    return first.stack(others) if others else first


@documented
class ContinuousDepthClassifier(_ContinuousDepth, Classifier):
    """Classifier by a network of continuous depth, with a posterior over paths of its weights.

    Notes
    -----
    With ``PathOptions(initial="point")``, the default, the weights at depth 0 are point estimates. The objective is
    then a bound on the evidence given these weights, less their weight decay. It is not a bound on the evidence of the
    Bayesian network.

    References
    ----------
    W. Xu, R. T. Q. Chen, X. Li and D. Duvenaud, "Infinitely Deep Bayesian Neural Networks with Stochastic Differential
    Equations", AISTATS 2022.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = ContinuousDepthClassifier(epochs=40, random_state=0).fit(X, y)
    >>> clf.predict_proba(X[:2]).shape
    (2, 3)
    """


@documented
class ContinuousDepthRegressor(_ContinuousDepth, Regressor):
    """Regressor for one target or several, by a network of continuous depth with a posterior over weight paths.

    Targets are standardised internally; predictions are in the units of y.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = ContinuousDepthRegressor(epochs=20, random_state=0).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, std.shape
    ((3,), (3,))
    """
