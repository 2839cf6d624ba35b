"""The estimators of networks of continuous depth."""

import math
import time
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, cast

import torch

from fathomless.data.frames import take
from fathomless.estimators.base import require_fitted
from fathomless.estimators.options import documented
from fathomless.estimators.predictor import Array
from fathomless.estimators.preparation import Prepared, SplitPlan
from fathomless.estimators.strategies import SearchOptions, Strategy, Then
from fathomless.estimators.tasks import Classifier, Regressor
from fathomless.estimators.variational import CrossFitEstimator
from fathomless.families.continuous.accuracy import Accuracy, counts, coupled, effective_depth, finest_of, hellinger
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

_FOCUS = 1.0  # of the planned epochs: the noise of paths lets the rate fall for longer than without it
_LOOKED = 4  # paths by which epochs are compared: they differ little from each other if they start at one point
_ROWS = 256  # of the training, from which the effective depth is found


@dataclass(frozen=True)
class EffectiveDepth:
    """Step after a training that counts the layers which the posterior needs.

    Attributes
    ----------
    draws : int
        Weight draws of all networks.
    """

    draws: int

    def __call__(self, fitted: Fitted, table: Prepared) -> Fitted:
        """Measure the effective depth on rows of the training."""
        x = table.train.first.x[:_ROWS]
        draws = max(1, self.draws // len(list_members(fitted.model)))
        layers = effective_depth(fitted.model, fitted.likelihood, x, n=draws, seed=fold_in(table.seed, "depth"))
        return replace(fitted, diagnostics=ContinuousDiagnostics(**vars(fitted.diagnostics), effective_depth=layers))


class _ContinuousDepth(ContinuousNetworks, CrossFitEstimator, ABC):
    """How the options of the family become a model.

    Attributes
    ----------
    effective_depth_ : int
        How many residual layers the posterior needs: the least number of steps 1, 2, 4, … (times the `count`
        of a random horizon) whose predictions differ from those with twice as many by less than 0.01 in mean Hellinger
        distance, on at most 256 rows of the training. 0 of estimators that were fitted together, which do not look.
    horizon_posterior_ : dict of float to float
        Posterior weight of each depth at which the state is read; the horizon alone if it is fixed.
    divergence_profile_ : ndarray, shape (n, 2)
        Depth, and the divergence of the path of the weights from its prior there, in nats per unit of depth: where the
        data changed the network. Of several networks the mean.
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
        first, *_ = networks = self._networks()
        structure = cast(ListedPosterior, self.model_.structure())
        parts = [f"{len(networks)} networks"] if len(networks) > 1 else []
        found = self.fit_diagnostics_.structure
        if found is not None and first.random_horizon:
            statistics, unit = structure.statistics, first.unit
            structure = replace(with_errors(first.structure(), found), statistics=statistics)
            parts.append(f"mean horizon {found.mean * unit:.2f} ± {found.mean_error * unit:.2f} by unseen rows")
        elif first.random_horizon:
            parts.append(f"mean horizon {structure.statistics['mean_horizon'] * first.unit:.2f}")
        told = ", ".join(parts)
        own = first.summary(structure.statistics)
        self.structure_ = replace(structure, summary=f"{told}; {own}" if told else own)
        self.effective_depth_ = self.fit_diagnostics_.effective_depth
        self.horizon_posterior_ = {first.horizon: 1.0}
        if first.random_horizon:
            pairs = zip(structure.names, structure.probabilities, strict=True)
            self.horizon_posterior_ = {int(name) * first.unit: p for name, p in pairs}
        each = [network.divergence_profile() for network in networks]
        depth = max((one.depth for one in each), key=len)
        rates = [torch.nn.functional.pad(one.rate, (0, len(depth) - len(one.depth))) for one in each]
        profile = [torch.tensor(depth, dtype=torch.float64, device="cpu"), torch.stack(rates).mean(0)]
        self.divergence_profile_ = torch.stack(profile, 1).numpy()

    structure_every: ClassVar[int] = 1
    clip_norm_auto: ClassVar[float | None] = 10.0
    warm_up_auto: ClassVar[float] = 0.5

    def _split_plan(self, count: float, inputs: int, *, grouped: bool = False, stream: bool = False) -> SplitPlan:
        return self._plan_split(self._search(), self._multiplications, count, inputs, grouped=grouped, stream=stream)

    def _strategy(self, prepared: Prepared) -> Strategy:
        return Then(self._cross_fit_or_svi(self._search(), prepared), (EffectiveDepth(self.weight_draws),))

    def _search(self) -> SearchOptions:
        few = {"draws": _LOOKED} if self._value("path").initial == "point" else {}
        long = {"focus": _FOCUS} if self.epochs == "auto" else {}
        return SearchOptions(
            free=True,  # a horizon that is given is a list of one; unseen rows set the pace of training all the same
            law=None,
            cross_fit=True,
            settings={"widened": self.calibrate, **few, **long},
            unused=("optimizer__schedule",),
        )

    def _multiplications(self, inputs: int) -> float:
        weights = sum(weight.size for weight in self._dynamics(inputs, 1).moving)
        evaluations = 2 if self._choice("solver") == "heun" else 1
        return float(weights * self._value("solver").steps * evaluations * self.training_draws)

    def accuracy(
        self, X: Any, y: Any = None, *, steps: Sequence[int] = (5, 10, 20, 40), random_state: int = 0
    ) -> list[Accuracy]:
        """Return what each number of steps gives, on the same paths of weights.

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Rows.
        y : array, optional
            Targets, for the score.
        steps : sequence of int
            On the horizon; they should divide each other. With a random one the nearest multiples of its `count`.
        random_state : int
            Of the paths.

        Raises
        ------
        DataError
            For numbers of steps whose common grid is too fine.
        """
        networks, steps = self._networks(), counts(self.model_, steps)
        finest = finest_of(steps)
        draws = max(1, math.ceil(self.weight_draws / len(networks)))
        x = torch.as_tensor(
            self._encode(self.schema_, self._table(X, reset=False)), dtype=self.model_.dtype, device="cpu"
        )
        x = x.to(self.model_.device)
        most = coupled(self.model_, x, draws, max(steps), finest, random_state)
        each = []
        for count in steps:
            begun = time.perf_counter()
            found = coupled(self.model_, x, draws, count, count, random_state)
            seconds = time.perf_counter() - begun
            found = coupled(self.model_, x, draws, count, finest, random_state)
            distance = hellinger(found, most, self.likelihood_).mean().item()
            each.append(Accuracy(count, distance, seconds, None if y is None else self._score_of(found, y)))
        return each

    def _score_of(self, draws: Draws, y: Any) -> float:
        z = torch.as_tensor(self.target_.encode(y)).to(draws.f.device)
        z = z.to(draws.f.dtype) if z.is_floating_point() else z
        return log_predictive(draws, self.likelihood_, z).mean().item() - self.target_.log_unit

    def fit_grid(self, X: Any, tolerance: float = 0.01) -> Self:
        """Choose the steps of predictions once, on rows: short ones where the network changes fast.

        They are kept, saved, and the same for all predictions; `solver__predict_steps` has no effect from then on.
        Compare what they bring with :meth:`accuracy`: equal steps are often as good.

        Parameters
        ----------
        X : array or data frame, shape (N, C)
            Rows such as those of the training, of which at most 256 are used.
        tolerance : float
            Error of a step, relative to the size of the hidden state.

        Returns
        -------
        self

        Warns
        -----
        DataWarning
            For a tolerance of 0.1 or more.
        """
        networks = self._networks()
        table = take(self._table(X, reset=False), slice(0, _ROWS))
        x = torch.as_tensor(self._encode(self.schema_, table), dtype=self.model_.dtype).to(self.model_.device)
        times = fit_grid(_together(networks), x.repeat(len(networks), *[1] * (x.ndim - 1)), tolerance)
        for network in networks:
            network.predict_by(grid=times)
        self._describe()
        return self

    def point_path(self, steps: int | None = None) -> FixedPaths:
        """Return the posterior mean path as a plain module of residual blocks, for encoded rows.

        It takes ``fathomless.data.frames.encode(estimator.schema_, X)`` as a tensor, and returns the parameters of the
        likelihood, (1, B, K). Several networks: as many, (F, B, K).
        """
        return point_path(_together(self._networks()), steps)

    def fixed_paths(self, paths: int, *, steps: int | None = None, random_state: int = 0) -> FixedPaths:
        """Return drawn paths of weights as a plain module, for fast and repeatable predictions.

        It takes encoded rows, and returns the parameters of the likelihood of every path of every network,
        (F · paths, B, K); its `log_weight` has their weights.
        """
        return fixed_paths(_together(self._networks()), paths, steps, random_state)


def _together(networks: Sequence[ContinuousDepth]) -> ContinuousDepth:
    first, *others = networks
    return first.stack(others) if others else first


@documented
class ContinuousDepthClassifier(_ContinuousDepth, Classifier):
    """Classifier whose network is a flow through a continuum of layers, along a random path of weights.

    Notes
    -----
    With ``PathOptions(initial="point")``, the default, the weights at depth 0 are point estimates, and the objective is
    a bound on the evidence given them, less their decay, not on the evidence of a Bayesian network.

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
    """Regressor, for one target or several, whose network is a flow along a random path of weights.

    Targets are centred and scaled inside; predictions are in the units of y.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> reg = ContinuousDepthRegressor(epochs=20, random_state=0).fit(X, y)
    >>> mean, std = reg.predict(X[:3], return_std=True)
    >>> mean.shape, std.shape
    ((3,), (3,))
    """
