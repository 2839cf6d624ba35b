"""Convergence checks of a posterior over depth: trend of its mean, and reachable distance from its initial value."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from fathomless.estimators.preparation import Prepared
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.runs.run import Fitted
from fathomless.inference.variational.training import adam_travel
from fathomless.posterior.laws import DepthLaw, DepthPrior, QuantilePoisson, StickBreaking, TruncatedPoisson

__all__ = ["DepthWarnings", "LawDrift", "depth_drift", "law_drift"]

_DEEPEST = 10_000  # number of offsets in the sum for the mean of a prior
_SHALLOWEST = 0.05  # mean offset below which a law counts as at its lower bound


def depth_drift(history: Sequence[Mapping[str, float]]) -> float:
    """Return the extrapolated change of the mean depth in layers if it has not converged; else 0.

    Depth has not converged if two conditions hold. In the second half of the training, the mean depth moved almost
    always in one direction. At that pace, and without decay of the learning rate, it would change by more than one
    layer in another training of the same length. The reported depth then reflects the rate of the law rather than the
    data.
    """
    late = [row for row in history if row["epoch"] > history[-1]["epoch"] / 2]
    steps = [b["mean_depth"] - a["mean_depth"] for a, b in itertools.pairwise(late)]
    length = sum(map(abs, steps))
    # the learning rate decays, so that the second half has less than half of the total step length
    share = sum(row["learning_rate"] for row in late) / max(sum(row["learning_rate"] for row in history), 1e-300)
    if len(steps) < 3 or length == 0.0 or share == 0.0 or abs(sum(steps)) < 0.9 * length:
        return 0.0
    drift = sum(steps) / share
    return drift if abs(drift) > 1.0 else 0.0


class LawDrift(NamedTuple):
    """Reachable and required change of the raw parameter of a law over depth.

    Attributes
    ----------
    travel : float
        Largest change that the optimiser could have made.
    distance : float
        Distance from the initial value to the law with the mean of the prior.
    prior_mean : float
        Mean of the prior.
    """

    travel: float
    distance: float
    prior_mean: float

    def start_dominates(self, stopped: bool) -> bool:
        """Return True if the training was too short to reach the prior from the initial value.

        After early stopping, the distance must be more than four times the reachable change. Most such trainings stop
        before the law has covered the distance, once the validation score has stopped improving.
        """
        return self.travel < (0.25 if stopped else 1.0) * self.distance


def law_drift(
    law: DepthLaw,
    prior: DepthPrior,
    history: Sequence[Mapping[str, float]],
    *,
    learning_rate: float,
    structure_rate: float,
) -> LawDrift | None:
    """Return the change that Adam could have made to a law, about one rate per step; None for laws without a rate.

    With data that carry no information about depth, the posterior should equal the prior. If the law could not have
    reached the prior, its final value depends on its initial value.

    Parameters
    ----------
    law, prior
        Initial law, and the prior over the offset.
    history : sequence of mappings
        Rows with "step" and "learning_rate".
    learning_rate, structure_rate : float
        Initial learning rate of the weights, and rate of the law relative to it.

    Examples
    --------
    >>> from fathomless.posterior.laws import PoissonPrior
    >>> rows = [{"step": 1000.0, "learning_rate": 0.005}]
    >>> drift = law_drift(TruncatedPoisson(8.0), PoissonPrior(0.5), rows, learning_rate=0.005, structure_rate=0.3)
    >>> round(drift.travel, 2), round(drift.distance, 1)
    (1.5, 8.4)
    """
    if not isinstance(law, TruncatedPoisson | QuantilePoisson | StickBreaking):
        return None
    k = torch.arange(_DEEPEST, dtype=torch.float64, device="cpu")
    mass = prior.log_prob(k).exp()
    mean = float((k * mass).sum() / mass.sum())
    start = law.start(0)
    target = dataclasses.replace(law, rate=max(mean, _SHALLOWEST)).start(0)
    assert start is not None
    assert target is not None
    return LawDrift(structure_rate * adam_travel(history, learning_rate), abs(start - target), mean)


@dataclasses.dataclass(frozen=True)
class DepthWarnings:
    """Step after a training that warns if the posterior over depth has not converged.

    Attributes
    ----------
    rate : str
        Name of the option for the rate of the law.
    start : str
        Name of the option for the initial depth; "" if there is none.
    """

    rate: str = "structure_rate"
    start: str = ""

    def __call__(self, fitted: Fitted, table: Prepared) -> Fitted:
        """Add the warnings."""
        return dataclasses.replace(fitted, warnings=(*fitted.warnings, *self._texts(fitted)))

    def _texts(self, fitted: Fitted) -> Iterator[str]:
        t = fitted.training
        model = next((part for part in fitted.model.modules() if isinstance(part, UnboundedDepth)), None)
        # out-of-fold weights and chains have no law that gradients move
        if t is None or model is None or fitted.log_densities is not None or "mean_depth" not in fitted.history[-1]:
            return
        mean = fitted.history[-1]["mean_depth"]
        remedy = f"Raise epochs (now {t.epochs}) or {self.rate} (now {t.structure_rate:.2g})"
        drift = depth_drift(fitted.history)
        if drift and not fitted.stopped:
            yield (
                f"the posterior over depth has not converged: its mean is {mean:.1f} layers, and at the pace of the "
                f"second half of the training it would change by {drift:+.1f} layers in another one. {remedy}"
            )
        rates = {"learning_rate": t.learning_rate, "structure_rate": t.structure_rate}
        if t.structure_optimizer != "adam":
            return
        law_change = law_drift(model.law, model.prior, fitted.history, **rates)
        if law_change is not None and law_change.start_dominates(fitted.stopped):
            mean = fitted.model.structure().statistics["mean_depth"]  # at the best epoch, not at the last one
            yield (
                f"the posterior over depth depends on its initial value: its parameter could change by "
                f"{law_change.travel:.2g} in this training, and the mean of the prior is {law_change.distance:.2g} "
                f"away (mean depth {mean:.1f} layers). {remedy}"
                + (f", or choose an initial depth nearer to the prior ({self.start})" if self.start else "")
            )
