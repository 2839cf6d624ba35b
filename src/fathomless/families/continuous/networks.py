"""Networks of continuous depth, built from options, and their diagnostics."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from fathomless.estimators.networks import Networks
from fathomless.families.continuous.dynamics import Dynamics, MLPDynamics
from fathomless.families.continuous.grids import EVERYWHERE, Span
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.options import ContinuousOptions, PathOptions, RandomHorizon
from fathomless.families.continuous.processes import Brownian, OrnsteinUhlenbeck, Process
from fathomless.families.continuous.solve import PathInference
from fathomless.posterior.fit_diagnostics import CrossFitDiagnostics, Diagnostics
from fathomless.posterior.laws import PoissonPrior, TruncatedPoisson, UniformPrior
from fathomless.posterior.likelihoods import Likelihood
from fathomless.system import checks
from fathomless.system.errors import DataError, DataWarning
from fathomless.system.rng import fold_in

__all__ = ["ContinuousDiagnostics", "ContinuousNetworks"]

_EXPLODES = 1.5  # maximum prior standard deviation times √fan-in; twice that with gates, which halve a layer
_PRIORS = {"point": 2.0 * math.sqrt(2.0), "gaussian": 1.0}
_WIDE = 8.0 * math.sqrt(2.0)  # for point estimates with a learned rate or 0; at a given rate, paths would explode
_RATE = 0.0001  # median of the prior of a learned rate


@dataclass(frozen=True, kw_only=True)
class ContinuousDiagnostics(CrossFitDiagnostics):
    """Diagnostics of networks of continuous depth.

    Attributes
    ----------
    effective_depth : int
        Number of residual layers that the posterior needs; 0 if it was not measured.
    """

    effective_depth: int = 0


class ContinuousNetworks(ContinuousOptions, Networks):
    """Networks of continuous depth."""

    diagnostics_class: ClassVar[type[Diagnostics]] = ContinuousDiagnostics

    saved_values: ClassVar[dict[str, type]] = {"PoissonPrior": PoissonPrior, "UniformPrior": UniformPrior}

    def _dynamics(self, inputs: int, outputs: int) -> Dynamics:
        if callable(self.architecture):
            dynamics: Dynamics = checks.check_returned("architecture", self.architecture(inputs, outputs), Dynamics)
            return dynamics
        checks.choice("architecture", self.architecture, ("mlp",))
        hidden = (self.hidden,) if isinstance(self.hidden, int) else tuple(self.hidden)
        options = (self.encoder, self.augment, self.activation, self.time)
        return MLPDynamics(inputs, outputs, self.width, hidden, *options)

    def _build_model(self, inputs: int, likelihood: Likelihood, seed: int, dtype: torch.dtype) -> ContinuousDepth:
        path: PathOptions = self._value("path")
        calm = path.initial == "point" and (path.rate in ("learned", 0) or not path.stochastic)
        weight_prior = _WIDE if calm else _PRIORS[path.initial]
        if self.weight_prior != "auto":
            weight_prior = checks.scale("weight_prior", self.weight_prior, "auto")
        most = _EXPLODES * (2.0 if self.time == "gate" else 1.0)
        if weight_prior > most and path.initial == "gaussian":
            warnings.warn(
                f"weight_prior={weight_prior:g} was given; above {most:g}, hidden states under the prior grow without "
                "bound along depth: lower it",
                DataWarning,
                stacklevel=7,
            )
        rate = _RATE if path.rate == "learned" else checks.real("path__rate", path.rate)
        rate = rate if path.stochastic else 0.0
        prior: Process = OrnsteinUhlenbeck(rate)
        if checks.choice("path__prior", path.prior, ("ou", "brownian")) == "brownian" and rate > 0.0:
            prior = Brownian(math.sqrt(2.0 * rate))
        random: RandomHorizon | None = self._value("horizon")
        horizon = checks.scale("horizon", self.horizon, "random") if random is None else 1.0
        horizons = (random or RandomHorizon()).count
        return ContinuousDepth(
            self._dynamics(inputs, likelihood.outputs),
            prior=prior,
            weight_prior=weight_prior,
            options=self._path_inference(horizon),
            horizon=horizon,
            horizons=horizons,
            law=TruncatedPoisson(max(horizons - 1.0, 0.5)) if random else None,
            horizon_prior=random.prior if random else None,
            seed=fold_in(seed, "weights"),
            dtype=dtype,
        )

    def _path_inference(self, horizon: float) -> PathInference:
        path: PathOptions = self._value("path")
        options = {name: value for name, value in vars(path).items() if name not in ("prior", "rate", "stochastic")}
        solver = {"solver": self._choice("solver"), **vars(self._value("solver"))}
        return PathInference(
            **options, **solver, learned=path.rate == "learned", span=_find_span(path.stochastic, horizon)
        )

    def _check_saved(self, blueprint: dict[str, Any], shapes: Mapping[str, Sequence[int]]) -> None:
        for member in blueprint.get("members", [blueprint]):
            if not {"pieces", "support", "law_parameters"} <= set(member):
                raise DataError(f"its layout is {sorted(member)}, not that of a network of continuous depth")
            if self._value("horizon") is None and (len(member["support"]) != 1 or "masses" in member):
                raise DataError(f"its horizons are {member['support']}, and horizon={self.horizon}")


def _find_span(stochastic: float | str, horizon: float) -> Span:
    """Return the interval of depth of the option `stochastic`."""
    if isinstance(stochastic, str):
        spans = {"all": EVERYWHERE, "first": (0.0, 0.5 * horizon), "last": (0.5 * horizon, math.inf)}
        return spans[checks.choice("path__stochastic", stochastic, tuple(spans))]
    share = checks.real("path__stochastic", stochastic)
    return EVERYWHERE if share in (0.0, 1.0) else (0.0, share * horizon)
