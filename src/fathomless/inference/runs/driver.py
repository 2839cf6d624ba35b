"""Loop of every resumable inference: rounds of work, each followed by callbacks and the display.

An inference keeps its state in a :class:`ResumableRun` and passes the work of one round to :func:`drive`. Callbacks
receive that state only, so checkpoints, history files and pauses work in the same way for all inferences.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from torch import Tensor

from fathomless.inference.runs.distributed import Ranks
from fathomless.system import memory
from fathomless.system.errors import PausedError
from fathomless.system.progress import Progress, Silent

__all__ = ["ResumableRun", "State", "drive"]

#: Tensors and plain JSON of a run, as its checkpoint holds them.
State = tuple[Mapping[str, Tensor], Mapping[str, Any]]


class ResumableRun(Protocol):
    """State of an inference between two rounds: everything that is needed to continue it.

    Attributes
    ----------
    epoch : int
        Number of epochs done; a sweep of all chains, or a round of a stage, counts as an epoch.
    history : list of dict
        One row per round.
    stop : bool
        Set it in a callback to end the run after this round.
    pause : bool
        Set it in a callback to leave the run after this round with :class:`~fathomless.system.errors.PausedError`;
        the same call continues from the checkpoint. It has no effect on a run that has ended or will stop.
    divided : bool
        True if every process has another part of the state.
    """

    epoch: int
    history: list[dict[str, float]]
    stop: bool
    pause: bool
    divided: bool = False

    @property
    @abstractmethod
    def epochs(self) -> int:
        """Number of planned epochs, which may still grow."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return the state's tensors by name."""

    @abstractmethod
    def meta(self) -> dict[str, Any]:
        """Return the rest of the state as plain JSON."""

    @abstractmethod
    def resume(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Restore a state that :meth:`tensors` and :meth:`meta` returned."""


R = TypeVar("R", bound=ResumableRun)


def drive(
    run: R,
    advance: Callable[[], None],
    *,
    callbacks: Sequence[Callable[[R], None]] = (),
    progress: Progress | None = None,
    ranks: Ranks | None = None,
    unit: str = "epoch",
) -> None:
    """Advance a run to its end, round by round.

    After each round the callbacks are called in their order, the display is updated, and a requested pause takes
    effect. The display is closed also after an error.

    Parameters
    ----------
    run : ResumableRun
        State, new or restored.
    advance : callable
        Does one round: it moves ``run.epoch`` and appends a row to ``run.history``.
    callbacks : sequence of callables
        Called with the run after every round.
    progress : Progress, optional
        A display.
    ranks : Ranks, optional
        Processes that share the run: the first one displays it, and a stop or pause requested in one applies to all.
    unit : str
        Name of an epoch in the message of a pause.

    Raises
    ------
    PausedError
        If a callback has requested a pause, before the end of the run.
    """
    memory.keep_freed()
    ranks = ranks or Ranks()
    display = Silent() if progress is None or ranks.rank else progress
    display.start(run.epochs, run.epoch)
    try:
        while run.epoch < run.epochs and not run.stop:
            advance()
            for callback in callbacks:
                callback(run)
                run.stop, run.pause = ranks.agree(run.stop, run.pause)
            display.advance(run.epoch, run.history[-1])
            if run.pause and run.epoch < run.epochs and not run.stop:
                raise PausedError(
                    f"the fit was paused after {unit} {run.epoch} of {run.epochs}; with a checkpoint, the same call "
                    "continues from there"
                )
    finally:
        display.close()
