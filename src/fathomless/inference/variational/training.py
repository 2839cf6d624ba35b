"""Options of a training, its learning-rate schedules, and the rules for automatic defaults."""

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

SMALL_BATCH = 256  #: batch size for small data; up to this number of rows an epoch is one step, whatever their order


@dataclass(frozen=True)
class Training:
    """Options of a training.

    Attributes
    ----------
    epochs : int
        Number of passes over the data.
    batch_size : int
        Largest batch; the rows of an epoch are split into batches of nearly equal size.
    optimizer : {"adam", "sgd"}
        Fused Adam, or stochastic gradients with momentum.
    learning_rate : float
        Learning rate of the weights, before the schedule.
    structure_rate : float
        Learning rate of the structure's parameters, relative to that of the weights. It determines how fast the
        posterior over depth converges; with too few steps, it affects the final depth.
    structure_optimizer : {"adam", "natural"}
        Adam, or the natural gradient: `structure_rate` times I⁻¹ dE/dη with the Fisher information I, no longer than
        `structure_radius` in the metric I (which bounds the divergence between the old and the new law). Both follow
        the schedule.
    structure_radius : float
        Trust region of one natural step; 0.1 moves a Poisson rate by at most a tenth of its standard deviation.
    structure_delay : int
        Number of epochs without updates of the posterior over structure.
    momentum : float
        Momentum for "sgd".
    nesterov : bool
        If True, Nesterov's momentum for "sgd", which evaluates the step at the place that the momentum leads to.
    schedule : str or tuple of (int, float)
        Learning-rate schedule: "cosine", "constant" or "one_cycle", or consecutive pieces (epochs, factor), of which
        the last one has no end.
    clip_norm : float, optional
        Largest norm of the gradient, in units of the bound divided by N. Networks that are trained jointly are clipped
        separately.
    temperature : float
        Factor T of the divergence of the weights. T = 1 is the model.
    warm_up : float
        Share of the epochs over which the temperature rises from 0. The best state is not chosen from these epochs,
        except by a structure search (:mod:`~fathomless.inference.out_of_fold.search`), which scores the states of all
        epochs in the same way.
    draws : int
        Number of weight draws per step, for families that draw weights.
    precondition : bool, optional
        Divide gradients by the probability that their parameter is used. By default only for "sgd", since adaptive
        optimisers are invariant to the scale of gradients.
    structure_every : int
        Number of steps between updates of the posterior over structure, after which the model may grow. Adam's rate
        for the posterior is multiplied by this number. A larger number costs less and changes the path little.
    max_growth : int, optional
        Largest number of parts created in an epoch (a layer and its head are two).
    evaluate_every : int
        Number of epochs between evaluations: rows of the history, with a score of the validation rows.
    patience : int, optional
        Early stopping: number of consecutive scores without a better one after which the training ends. None disables
        it.
    calibrate : bool
        If True, fit the parameters of the likelihood (such as the scale of the noise) to the validation rows at the
        end, with the network fixed. A network that overfits its training rows underestimates the noise.
    averaging : float
        Length in epochs of an exponential moving average of the weights
        (:class:`~fathomless.inference.runs.averages.Averages`); 0 for none. Validation rows are scored with the
        averaged weights, and the result has them. It improves trainings at a constant rate, and hardly changes those
        whose rate decays to zero.
    mixed : bool
        If True, evaluate the network in bfloat16 where that is safe (``torch.autocast``); the type of the weights does
        not change.
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
    nesterov: bool = False
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
    averaging: float = 0.0
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
        checks.interval("averaging", self.averaging, 0.0, math.inf)
        checks.interval("structure_rate", self.structure_rate, 0.0, math.inf)
        for name in ("optimizer", "structure_optimizer"):
            checks.choice(name, getattr(self, name), ("adam", "sgd") if name == "optimizer" else ("adam", "natural"))
        checks.flag("nesterov", self.nesterov)
        if self.nesterov and (self.optimizer != "sgd" or not self.momentum):
            raise DataError(
                f"nesterov=True was given with optimizer={self.optimizer!r} and momentum={self.momentum}; it needs "
                "optimizer='sgd' and momentum > 0"
            )
        schedule(self.schedule, 0, 1, 1)  # refuse an unknown name now

    def temperature_factor(self, done: float) -> float:
        """Return the factor of the temperature after a share of the training: it rises from 0 to 1.

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
        (epochs, factor), of which the last one has no end.
    step, total : int
        Present step, and total number of steps.
    steps_per_epoch : int
        Number of steps per epoch, used for pieces.

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
            if done < warm:
                return 0.04 + 0.96 * done / warm
            return 0.5 * (1.0 + math.cos(math.pi * (done - warm) / (1 - warm)))
    raise DataError(
        f"schedule={plan!r} was given; allowed are 'constant', 'cosine', 'one_cycle', or pieces such as "
        "((5, 0.1), (195, 1.0))"
    )


def automatic_batch_size(count: float) -> int:
    """Return the default batch size: 256, or 512 for large data, where arithmetic dominates the cost of a step."""
    return SMALL_BATCH if count < 10_000 else 512


def automatic_epochs(steps_per_epoch: int, steps: int = 4000) -> int:
    """Return the number of epochs with about the given number of steps, between 20 and 1,000."""
    return max(20, min(1000, round(steps / steps_per_epoch)))


def automatic_structure_rate(steps: int) -> float:
    """Return the default structure rate: 0.3, and more for fewer than 4,000 steps, so that the law can move as far."""
    return min(3.0, 0.3 * max(1.0, 4000 / steps))


def adam_travel(history: Sequence[Mapping[str, float]], learning_rate: float) -> float:
    """Return the distance that Adam could have moved a parameter in a training: about one learning rate per step.

    Parameters
    ----------
    history : sequence of mappings
        Rows of the history, with "step" and "learning_rate".
    learning_rate : float
        Learning rate at the start.
    """
    rates = [learning_rate, *(row["learning_rate"] for row in history)]
    steps = [0.0, *(row["step"] for row in history)]
    return sum(0.5 * (a + b) * (t - s) for a, b, s, t in zip(rates, rates[1:], steps, steps[1:], strict=False))
