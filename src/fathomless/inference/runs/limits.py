"""Time limits of fits: trainings are planned so that they end in time.

The speed of a training is measured while it runs. If the planned epochs do not fit into the time that is left, their
number is reduced, so that the learning rate still decays to its final value. A fit with a limit depends on the speed of
the machine, and is not reproducible by its seed.
"""

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from fathomless.inference.runs.distributed import ranks
from fathomless.inference.runs.driver import ResumableRun
from fathomless.system import checks

__all__ = ["Pace", "Planned", "TimeLimit"]

_MEASURED = 0.1  # share of the time during which the speed of a training is measured
_LATEST = 0.5  # share of the time after which shorter measurements are trusted, too

Clock = Callable[[], float]


class Planned(ResumableRun, Protocol):
    """Run whose number of epochs can be reduced."""

    @abstractmethod
    def shorten(self, epochs: int) -> None:
        """Reduce the planned epochs to a number, or to the next possible one."""


@dataclass(frozen=True)
class TimeLimit:
    """Time within which a fit, or a part of it, should end.

    Attributes
    ----------
    seconds : float
        Length of the time.
    begun : float
        Beginning, by the clock.
    clock : callable
        Function that returns the time in seconds.

    Examples
    --------
    >>> now = 100.0
    >>> limit = TimeLimit(60.0, begun=90.0, clock=lambda: now)
    >>> limit.left(), limit.part(0.5).left(), limit.allows(50.0), limit.allows(51.0)
    (50.0, 25.0, True, False)
    """

    seconds: float
    begun: float
    clock: Clock = time.monotonic

    @staticmethod
    def of(minutes: float | None, begun: float | None = None) -> "TimeLimit | None":
        """Return the limit of a fit that began at a time of the monotonic clock, or now; None without minutes."""
        if minutes is None:
            return None
        return TimeLimit(60.0 * checks.positive("minutes", minutes), time.monotonic() if begun is None else begun)

    @property
    def minutes(self) -> float:
        """Length of the time in minutes."""
        return self.seconds / 60.0

    def left(self) -> float:
        """Return the remaining seconds, at least 0."""
        return max(0.0, self.seconds - (self.clock() - self.begun))

    def part(self, share: float) -> "TimeLimit":
        """Return a limit that begins now, of a share of the remaining time."""
        return TimeLimit(share * self.left(), self.clock(), self.clock)

    def allows(self, seconds: float) -> bool:
        """Return True if at least so many seconds remain; several processes have the answer of the first one."""
        return ranks().broadcast(float(self.left() >= seconds)) > 0.0


@dataclass(eq=False)
class Pace:
    """Callback that reduces the planned epochs of a training to those that end in time.

    The speed is that after the first round, which is slower than later ones, since libraries are loaded in it. The time
    is therefore exceeded by up to two rounds if rounds are long.

    Parameters
    ----------
    limit : TimeLimit
        Time of this training.
    stops : bool
        If True, a training whose planned epochs do not fit into the time is stopped instead.

    Attributes
    ----------
    exceeded : bool
        True if the planned epochs did not fit.
    """

    limit: TimeLimit
    stops: bool = False
    exceeded: bool = False
    _done: int = field(default=0, init=False)
    _last: int = field(default=-1, init=False)
    _first: tuple[float, int] | None = field(default=None, init=False)

    def __call__(self, run: Planned) -> None:
        """Compare the planned epochs with the remaining time."""
        # a resumed run does not begin with epoch 0, and one that is trained again begins there a second time
        before = [int(row["epoch"]) for row in run.history[-2:-1]]
        self._done += run.epoch - (self._last if 0 <= self._last < run.epoch else sum(before))
        self._last = run.epoch
        total, left = self.limit.seconds, self.limit.left()
        elapsed = total - left
        self._first = self._first or (elapsed, self._done)
        since, done = elapsed - self._first[0], self._done - self._first[1]
        affordable = run.epochs
        if left == 0.0:
            affordable = run.epoch
        elif done and (since >= _MEASURED * total or elapsed >= _LATEST * total):
            affordable = run.epoch + int(left * done / max(since, 1e-9))
        affordable = int(ranks().broadcast(float(affordable)))
        if affordable >= run.epochs:
            return
        self.exceeded = True
        if self.stops:
            run.stop = True
        else:
            run.shorten(max(affordable, run.epoch))
