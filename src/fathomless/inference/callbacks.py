"""What happens around a training: schedules, the best state, checkpoints."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from fathomless import io
from fathomless.errors import DataError
from fathomless.models.interface import Model

if TYPE_CHECKING:
    from fathomless.inference.svi import Run

__all__ = ["Best", "Checkpoint", "schedule"]


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


@dataclass
class Best:
    """The best validation score so far, and the state it was reached in.

    Attributes
    ----------
    score : float or None
        Best mean log predictive density, in nats per row.
    epoch : int
        When.
    since : int
        Scores since then.
    layout : dict or None
        What :meth:`Model.layout` said then.
    state : dict of str to Tensor
        Copies of the tensors of model and likelihood.
    """

    score: float | None = None
    epoch: int = 0
    since: int = 0
    layout: dict[str, Any] | None = None
    state: Mapping[str, Tensor] = field(default_factory=dict)

    def offer(self, score: float, epoch: int, model: Model, likelihood: nn.Module) -> None:
        """Keep the present state if its score is better."""
        if not math.isfinite(score) or (self.score is not None and score <= self.score):
            self.since += 1
            return
        self.score, self.epoch, self.since, self.layout = score, epoch, 0, model.layout()
        self.state = {
            f"{prefix}/{name}": value.clone()
            for prefix, module in (("model", model), ("likelihood", likelihood))
            for name, value in module.state_dict().items()
        }


class Checkpoint:
    """Write the run to a folder, atomically: at the first row of the history, then at most every so many seconds.

    The end of a run is written too.

    Parameters
    ----------
    folder : Path
        Where.
    seconds : float
        Least time between two checkpoints; 0 writes one at every evaluation.
    extra : mapping
        More JSON to keep beside the run, for instance a fingerprint of the data.
    """

    kind = "checkpoint"

    def __init__(
        self, folder: str | PathLike[str], seconds: float = 30.0, extra: Mapping[str, Any] | None = None
    ) -> None:
        io.writable(folder)
        self.folder, self.seconds, self.extra = Path(folder), seconds, dict(extra or {})
        self._last = -math.inf

    def __call__(self, run: "Run") -> None:
        """Write, if it is time."""
        ended = run.stop or run.epoch >= run.training.epochs
        if ended or time.monotonic() - self._last >= self.seconds:
            io.save(self.folder, kind=self.kind, tensors=run.tensors(), meta={"run": run.meta(), "extra": self.extra})
            self._last = time.monotonic()

    def found(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Return the state in the folder, or None if there is none.

        Raises
        ------
        FileError
            If the checkpoint is damaged.
        DataError
            If it belongs to another run (its `extra` differs).
        """
        if not io.holds(self.folder):
            return None
        saved = io.load(self.folder, kinds={self.kind})
        if saved.meta["extra"] != self.extra:
            raise DataError(
                f"the checkpoint in {self.folder} belongs to a fit of other data or other options; give another "
                "folder, or delete this one to start anew"
            )
        return saved.tensors, saved.meta["run"]
