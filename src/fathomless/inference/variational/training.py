"""How a training goes: its options, the schedule of its rates, and the rules that fill in what is left open."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fathomless.system import checks
from fathomless.system.errors import DataError

__all__ = [
    "SMALL_BATCH",
    "Training",
    "adam_travel",
    "automatic_batch_size",
    "automatic_epochs",
    "automatic_structure_rate",
    "schedule",
]

SMALL_BATCH = 256  #: rows that make one step, whatever their order


@dataclass(frozen=True)
class Training:
    """Options of a training.

    Attributes
    ----------
    epochs : int
        Passes over the data.
    batch_size : int
        Largest batch; the rows of an epoch are split into batches of nearly equal size.
    optimizer : {"adam", "sgd"}
        Fused Adam, or stochastic gradients with momentum.
    learning_rate : float
        Rate of the weights, before the schedule.
    structure_rate : float
        Rate of the structure's parameters, relative to the weights'. It decides how fast depth is found, and with
        too few steps how deep it ends.
    structure_optimizer : {"adam", "natural"}
        The weights' kind of step, or the natural gradient: `structure_rate` times I⁻¹ dE/dη with the Fisher information
        I, no longer than `structure_radius` in the metric I (which bounds the divergence between old and new). Both
        follow the schedule.
    structure_radius : float
        Trust region of one natural step; 0.1 moves a Poisson rate by at most a tenth of its standard deviation.
    structure_delay : int
        Epochs during which the posterior over structure stays where it is.
    momentum : float
        For "sgd".
    schedule : str or tuple of (int, float)
        "cosine", "constant" or "one_cycle", or pieces (epochs, rate) one after the other, the last one without end.
    clip_norm : float, optional
        Longest gradient allowed, in the units of the bound divided by N. Each of several networks that are trained side
        by side is clipped by its own gradient.
    temperature : float
        T multiplies the divergence of the weights. T = 1 is the model.
    warm_up : float
        Share of the epochs over which the temperature rises from 0. States of these epochs are not kept as the best
        ones, except by a structure search (:mod:`~fathomless.inference.out_of_fold.search`), which evaluates every
        state on held-out rows alike.
    draws : int
        Weight draws per step, for families that draw.
    precondition : bool, optional
        Divide gradients by the probability that their parameter is used. Default: for "sgd" alone, since adaptive
        optimisers do so by themselves.
    structure_every : int
        The posterior over structure moves, and the model may grow, every so many steps; Adam's rate for it is
        multiplied by this number. Looking more rarely costs less and changes the path little.
    max_growth : int, optional
        Once this many parts (a layer and its head are two) were created in an epoch, no more are.
    evaluate_every : int
        Epochs between rows of the history and scores of the validation rows.
    patience : int, optional
        Stop after this many scores in a row without a better one. None: never.
    calibrate : bool
        At the end, fit the likelihood's own parameters (the scale of the noise, say) to the validation rows, with the
        network as it is: a network that fits its training rows too well takes the noise for too small.
    mixed : bool
        Run the network in bfloat16 where that is safe (``torch.autocast``), weights stay as they are.
    """

    epochs: int = 200
    batch_size: int = 256
    optimizer: str = "adam"
    learning_rate: float = 5e-3
    structure_rate: float = 0.3
    structure_optimizer: str = "adam"
    structure_radius: float = 0.1
    structure_delay: int = 0
    momentum: float = 0.9
    schedule: str | tuple[tuple[int, float], ...] = "cosine"
    clip_norm: float | None = None
    temperature: float = 1.0
    warm_up: float = 0.0
    draws: int = 1
    precondition: bool | None = None
    structure_every: int = 8
    max_growth: int | None = None
    evaluate_every: int = 1
    patience: int | None = None
    calibrate: bool = False
    mixed: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "draws", "structure_every", "evaluate_every"):
            checks.whole(name, getattr(self, name))
        for name in ("learning_rate", "temperature", "structure_radius"):
            checks.positive(name, getattr(self, name))
        for name in ("clip_norm", "patience", "max_growth"):
            if getattr(self, name) is not None:
                checks.positive(name, getattr(self, name), None)
        checks.interval("momentum", self.momentum, 0.0, 1.0)
        checks.interval("warm_up", self.warm_up, 0.0, 1.0)
        checks.interval("structure_rate", self.structure_rate, 0.0, math.inf)
        for name in ("optimizer", "structure_optimizer"):
            checks.choice(name, getattr(self, name), ("adam", "sgd") if name == "optimizer" else ("adam", "natural"))
        schedule(self.schedule, 0, 1, 1)  # refuse an unknown name now

    def temperature_factor(self, done: float) -> float:
        """Return the factor of the temperature where a share of the training is done: it rises from 0 to 1.

        Examples
        --------
        >>> [Training(warm_up=0.5).temperature_factor(done) for done in (0.0, 0.25, 0.5, 1.0)]
        [0.0, 0.5, 1.0, 1.0]
        """
        return min(1.0, done / self.warm_up) if self.warm_up else 1.0


def schedule(plan: str | tuple[tuple[int, float], ...], step: int, total: int, steps_per_epoch: int) -> float:
    """Return the factor of the learning rate at a step.

    Parameters
    ----------
    plan : str or tuple of (int, float)
        "constant"; "cosine": from 1 down to 0; "one_cycle": up over the first 30 % and down again; or pieces
        (epochs, factor), the last one without end.
    step, total : int
        This step, and how many there will be.
    steps_per_epoch : int
        For pieces.

    Examples
    --------
    >>> [round(schedule("cosine", step, 4, 1), 3) for step in range(4)]
    [1.0, 0.854, 0.5, 0.146]
    >>> schedule(((5, 0.1), (10, 1.0)), step=7, total=20, steps_per_epoch=1)
    1.0
    """
    if isinstance(plan, tuple) and plan and all(isinstance(piece, tuple) and len(piece) == 2 for piece in plan):
        epoch = step // steps_per_epoch
        for epochs, factor in plan:
            if epoch < epochs:
                return factor
            epoch -= epochs
        return plan[-1][1]
    done = step / max(total, 1)
    match plan:
        case "constant":
            return 1.0
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * done))
        case "one_cycle":
            warm = 0.3
            return (
                0.04 + 0.96 * done / warm
                if done < warm
                else 0.5 * (1.0 + math.cos(math.pi * (done - warm) / (1 - warm)))
            )
    raise DataError(
        f"schedule={plan!r} was given; allowed are 'constant', 'cosine', 'one_cycle', or pieces such as "
        "((5, 0.1), (195, 1.0))"
    )


def automatic_batch_size(count: float) -> int:
    """Rows per step: 256, and more for large data, where the cost of a step is in the arithmetic."""
    return SMALL_BATCH if count < 10_000 else 512


def automatic_epochs(steps_per_epoch: int, steps: int = 4000) -> int:
    """Epochs that make about so many steps, within 20 and 1,000."""
    return max(20, min(1000, round(steps / steps_per_epoch)))


def automatic_structure_rate(steps: int) -> float:
    """Rate of the structure's parameters: 0.3 in 4,000 steps, and more in fewer, so that they can go as far."""
    return min(3.0, 0.3 * max(1.0, 4000 / steps))


def adam_travel(history: Sequence[Mapping[str, float]], learning_rate: float) -> float:
    """Return how far Adam could have moved a parameter, by the history of a training: about one rate per step.

    Parameters
    ----------
    history : sequence of mappings
        Rows with "step" and "learning_rate".
    learning_rate : float
        At the start.
    """
    rates = [learning_rate, *(row["learning_rate"] for row in history)]
    steps = [0.0, *(row["step"] for row in history)]
    return sum(0.5 * (a + b) * (t - s) for a, b, s, t in zip(rates, rates[1:], steps, steps[1:], strict=False))
