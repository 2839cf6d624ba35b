"""Progress as an object: something that is told how far a computation is, and may not disturb it."""

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping

from tqdm import tqdm

__all__ = ["Lines", "Progress", "Silent", "Terminal"]

_SHOWN = {"elbo": "ELBO", "validation_log_likelihood": "validation"}


class Progress(ABC):
    """A display of how far a computation is."""

    @abstractmethod
    def start(self, total: int, done: int = 0) -> None:
        """Say how many rounds there are, and how many are done already."""

    @abstractmethod
    def advance(self, done: int, values: Mapping[str, float]) -> None:
        """Say how many rounds are done and what the latest values are."""

    @abstractmethod
    def close(self) -> None:
        """Say that nothing more will come."""


class Silent(Progress):
    """No display."""

    def start(self, total: int, done: int = 0) -> None:
        """Do nothing."""

    def advance(self, done: int, values: Mapping[str, float]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class _Shown(Progress):
    """What displays of values share: the unit of a round, and the words for values.

    Parameters
    ----------
    unit : str
        What a round is.
    shown : mapping of str to str
        More values that are shown, with the words for them.
    """

    def __init__(self, unit: str = "epoch", shown: Mapping[str, str] | None = None) -> None:
        self._unit, self._words = unit, {**_SHOWN, **(shown or {})}

    def _texts(self, values: Mapping[str, float]) -> dict[str, str]:
        return {self._words[name]: f"{value:.4g}" for name, value in values.items() if name in self._words}


class Terminal(_Shown):
    """A progress bar on standard error: rounds done, the time left, the bound, the validation score, the structure."""

    def __init__(self, unit: str = "epoch", shown: Mapping[str, str] | None = None) -> None:
        super().__init__(unit, shown)
        self._bar: tqdm[None] | None = None

    def start(self, total: int, done: int = 0) -> None:
        """Draw an empty bar."""
        self._bar = tqdm(total=total, initial=done, unit=self._unit, dynamic_ncols=True)

    def advance(self, done: int, values: Mapping[str, float]) -> None:
        """Move the bar and show the values beside it."""
        if self._bar is not None:
            self._bar.set_postfix(self._texts(values), refresh=False)
            self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()


class Lines(_Shown):
    """A line on standard error whenever there is something new: for files, logs and notebooks."""

    _total = 0

    def start(self, total: int, done: int = 0) -> None:
        """Remember how many rounds there are."""
        self._total = total

    def advance(self, done: int, values: Mapping[str, float]) -> None:
        """Write a line."""
        shown = ", ".join(f"{word} {text}" for word, text in self._texts(values).items())
        with contextlib.suppress(OSError, ValueError):  # of a standard error that is closed
            sys.stderr.write(f"{self._unit} {done} of {self._total}{': ' if shown else ''}{shown}\n")
            sys.stderr.flush()

    def close(self) -> None:
        """Do nothing."""
