"""Whether a posterior over depth has come to rest, and whether it could have left its start, by its history."""

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

_DEEPEST = 10_000  # offsets over which the mean of a prior is summed
_SHALLOWEST = 0.05  # mean offset below which a law is as good as at its lower bound


def depth_drift(history: Sequence[Mapping[str, float]]) -> float:
    """Return the layers that the mean depth would still go by, if it has not come to rest; else 0.

    Depth is still on its way if, in the last half of a training, the mean depth went almost always in one direction,
    at a pace which, without the decay of the learning rate, would carry it more than a layer in another training of
    the same length. Then the depth that is reported says how fast it was learned, not what the data ask for.
    """
    late = [row for row in history if row["epoch"] > history[-1]["epoch"] / 2]
    steps = [b["mean_depth"] - a["mean_depth"] for a, b in itertools.pairwise(late)]
    length = sum(map(abs, steps))
    share = sum(row["learning_rate"] for row in late) / max(sum(row["learning_rate"] for row in history), 1e-300)
    if len(steps) < 3 or length == 0.0 or share == 0.0 or abs(sum(steps)) < 0.9 * length:
        return 0.0
    drift = sum(steps) / share
    return drift if abs(drift) > 1.0 else 0.0


class LawDrift(NamedTuple):
    """How far a law over depth could have moved, in its raw parameter.

    Attributes
    ----------
    travel : float
        The longest way that its optimiser could have taken it.
    distance : float
        From its start to the law that has the mean of the prior.
    prior_mean : float
        That mean.
    """

    travel: float
    distance: float
    prior_mean: float

    def short(self, stopped: bool) -> bool:
        """Whether the start decided: the way back to the prior was longer than the training.

        Of a training that its validation rows ended, only if it was four times as long: most of these end before the
        law has gone the whole way, and their scores no longer rose.
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
    """Return how far Adam could have moved a law, by about one rate per step; None for laws without a rate.

    Data that say nothing about depth should leave the posterior at the prior; if the law could not have got there,
    where it ended says where it began.

    Parameters
    ----------
    law, prior
        The law at its start, and the prior over the offset.
    history : sequence of mappings
        Rows with "step" and "learning_rate".
    learning_rate, structure_rate : float
        Rate of the weights at the start, and of the law relative to it.

    Examples
    --------
    >>> from fathomless.posterior.laws import PoissonPrior
    >>> rows = [{"step": 1000.0, "learning_rate": 0.005}]
    >>> found = law_drift(TruncatedPoisson(8.0), PoissonPrior(0.5), rows, learning_rate=0.005, structure_rate=0.3)
    >>> round(found.travel, 2), round(found.distance, 1)
    (1.5, 8.4)
    """
    if not isinstance(law, TruncatedPoisson | QuantilePoisson | StickBreaking):
        return None
    k = torch.arange(_DEEPEST, dtype=torch.float64, device="cpu")
    mass = prior.log_prob(k).exp()
    mean = float((k * mass).sum() / mass.sum())
    start, back = (one.start(0) for one in (law, dataclasses.replace(law, rate=max(mean, _SHALLOWEST))))
    assert start is not None
    assert back is not None
    return LawDrift(structure_rate * adam_travel(history, learning_rate), abs(start - back), mean)


@dataclasses.dataclass(frozen=True)
class DepthWarnings:
    """Step that adds warnings of a law over depth that gradients have not brought to rest.

    Attributes
    ----------
    rate : str
        Name of the option that is the rate of the law.
    start : str
        Name of the option that says where the law starts; "" if there is none.
    """

    rate: str = "structure_rate"
    start: str = ""

    def __call__(self, fitted: Fitted, table: Prepared) -> Fitted:
        """Add the warnings."""
        return dataclasses.replace(fitted, warnings=(*fitted.warnings, *self._texts(fitted)))

    def _texts(self, fitted: Fitted) -> Iterator[str]:
        t = fitted.training
        model = next((part for part in fitted.model.modules() if isinstance(part, UnboundedDepth)), None)
        if t is None or model is None or fitted.log_densities is not None or "mean_depth" not in fitted.history[-1]:
            return
        mean = fitted.history[-1]["mean_depth"]
        remedy = f"Raise epochs (now {t.epochs}) or {self.rate} (now {t.structure_rate:.2g})"
        drift = depth_drift(fitted.history)
        if drift and not fitted.stopped:
            yield (
                f"the posterior over depth has not come to rest: its mean is {mean:.1f} and at the pace of the last "
                f"half of the training it would go by {drift:+.1f} layers in another one. {remedy}"
            )
        rates = {"learning_rate": t.learning_rate, "structure_rate": t.structure_rate}
        how_far = (
            law_drift(model.law, model.prior, fitted.history, **rates) if t.structure_optimizer == "adam" else None
        )
        if how_far is not None and how_far.short(fitted.stopped):
            mean = fitted.model.structure().statistics["mean_depth"]  # of the epoch that was kept
            yield (
                f"the posterior over depth could not have gone far from its start: its parameter could move by "
                f"{how_far.travel:.2g}, and {how_far.distance:.2g} lead to the mean of the prior, so that the mean "
                f"depth of {mean:.1f} says where it began. {remedy}"
                + (f", or start nearer to the prior ({self.start})" if self.start else "")
            )
