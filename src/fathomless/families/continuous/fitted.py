"""Networks of continuous depth, as they are read from a folder."""

import math
import warnings
from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, cast

import torch

from fathomless.estimators.fitted import Array, FittedPredictor, require_fitted
from fathomless.families.continuous.dynamics import Dynamics, MLPDynamics
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.options import ContinuousOptions
from fathomless.families.continuous.processes import Brownian, OrnsteinUhlenbeck, Process
from fathomless.families.continuous.solve import PathOptions
from fathomless.posterior.ensemble import members_of
from fathomless.posterior.laws import PoissonPrior, TruncatedPoisson, UniformPrior
from fathomless.posterior.structure import ListedPosterior, with_errors
from fathomless.system import checks
from fathomless.system.errors import DataError, DataWarning
from fathomless.system.rng import fold_in

__all__ = ["FittedContinuous"]

_EXPLODES = 1.5  # prior standard deviation, times √fan-in; twice that with gates, which halve a layer
_PRIORS = {"point": 2.0 * math.sqrt(2.0), "gaussian": 1.0}
_WIDE = 8.0 * math.sqrt(2.0)  # of point estimates whose rate is learned, or 0: a given one would make paths explode
_RATE = 0.0001  # median of the prior of a learned rate


class FittedContinuous(ContinuousOptions, FittedPredictor, ABC):
    """How the options of the family become a model, and what it shows."""

    saved_values: ClassVar[dict[str, type]] = {"PoissonPrior": PoissonPrior, "UniformPrior": UniformPrior}
    structure_: ListedPosterior
    effective_depth_: int
    horizon_posterior_: dict[float, float]
    divergence_profile_: Array

    def _dynamics(self, inputs: int, outputs: int) -> Dynamics:
        if callable(self.architecture):
            found: Dynamics = checks.returned("architecture", self.architecture(inputs, outputs), Dynamics)
            return found
        checks.choice("architecture", self.architecture, ("mlp",))
        hidden = (self.hidden,) if isinstance(self.hidden, int) else tuple(self.hidden)
        options = (self.encoder, self.augment, self.activation, self.time)
        return MLPDynamics(inputs, outputs, self.width, hidden, *options)

    def _build_model(self, inputs: int, outputs: int, seed: int, dtype: torch.dtype) -> ContinuousDepth:
        calm = self.initial == "point" and self.rate in ("learned", 0)
        weight_prior = _WIDE if calm else _PRIORS[self.initial]
        if self.weight_prior != "auto":
            weight_prior = checks.scale("weight_prior", self.weight_prior, "auto")
        most = _EXPLODES * (2.0 if self.time == "gate" else 1.0)
        if weight_prior > most and self.initial == "gaussian":
            warnings.warn(
                f"weight_prior={weight_prior:g} was given; beyond {most:g} draws from the prior explode with depth: "
                "lower it",
                DataWarning,
                stacklevel=7,
            )
        rate = _RATE if self.rate == "learned" else checks.real("rate", self.rate)
        prior: Process = OrnsteinUhlenbeck(rate)
        if checks.choice("prior", self.prior, ("ou", "brownian")) == "brownian" and rate > 0.0:
            prior = Brownian(math.sqrt(2.0 * rate))
        random = self.horizon == "random"
        horizon = 1.0 if random else checks.scale("horizon", self.horizon, "random")
        return ContinuousDepth(
            self._dynamics(inputs, outputs),
            prior=prior,
            weight_prior=weight_prior,
            options=self._path_options(),
            horizon=horizon,
            horizons=self.horizons,
            law=TruncatedPoisson(max(self.horizons - 1.0, 0.5)) if random else None,
            horizon_prior=self.horizon_prior,
            seed=fold_in(seed, "weights"),
            dtype=dtype,
        )

    def _path_options(self) -> PathOptions:
        own = {f.name: getattr(self, f.name) for f in fields(PathOptions) if f.name not in ("charged", "learned")}
        return PathOptions(**own, learned=self.rate == "learned")

    def _check_saved(self, blueprint: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        for own in blueprint.get("members", [blueprint]):
            if not {"pieces", "support", "law_parameters"} <= set(own):
                raise DataError(f"its layout is {sorted(own)}, not that of a network of continuous depth")
            if self.horizon != "random" and (own["support"] != [self.horizons - 1] or "masses" in own):
                raise DataError(f"its horizons are {own['support']}, and horizon={self.horizon}")

    def _networks(self) -> list[ContinuousDepth]:
        """Return the fitted network, or those of an ensemble."""
        require_fitted(self)
        return cast(list[ContinuousDepth], members_of(self.model_))

    def _describe(self) -> None:
        first, *_ = networks = self._networks()
        for network in networks:
            if network.times is None:  # those of a saved one win
                network.predict_by(steps=self.predict_steps)
        structure = cast(ListedPosterior, self.model_.structure())
        parts = [f"{len(networks)} networks"] if len(networks) > 1 else []
        if "numbers" in self.weighing_ and first.random_horizon:
            found, statistics, unit = self.weighing_, structure.statistics, first.unit
            structure = replace(with_errors(first.structure(), found), statistics=statistics)
            parts.append(f"mean horizon {found['mean'] * unit:.2f} ± {found['mean_error'] * unit:.2f} by unseen rows")
        elif first.random_horizon:
            parts.append(f"mean horizon {structure.statistics['mean_horizon'] * first.unit:.2f}")
        told = ", ".join(parts)
        own = first.summary(structure.statistics)
        self.structure_ = replace(structure, summary=f"{told}; {own}" if told else own)
        self.effective_depth_ = self.weighing_.get("effective_depth", 0)
        self.horizon_posterior_ = {first.horizon: 1.0}
        if first.random_horizon:
            pairs = zip(structure.names, structure.probabilities, strict=True)
            self.horizon_posterior_ = {int(name) * first.unit: p for name, p in pairs}
        each = [network.divergence_profile() for network in networks]
        depth = max((one.depth for one in each), key=len)
        rates = [torch.nn.functional.pad(one.rate, (0, len(depth) - len(one.depth))) for one in each]
        profile = [torch.tensor(depth, dtype=torch.float64), torch.stack(rates).mean(0)]
        self.divergence_profile_ = torch.stack(profile, 1).numpy()
