"""Displays of the progress of a computation."""

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from tqdm import tqdm

__all__ = ["Lines", "Progress", "Silent", "Terminal"]

_SHOWN = {"elbo": "ELBO", "validation_log_likelihood": "validation"}
_UNBOUNDED = 1_000  # characters of a line, beyond which it would be cut


class Progress(ABC):
    """Display of the progress of a computation."""

    @abstractmethod
    def start(self, total: int, done: int = 0) -> None:
        """Start a display of `total` rounds, of which `done` are already complete."""

    @abstractmethod
    def advance(self, done: int, values: Mapping[str, float]) -> None:
        """Update the number of complete rounds and the latest values."""

    @abstractmethod
    def close(self) -> None:
        """Close the display."""


class Silent(Progress):
    """No display."""

    def start(self, total: int, done: int = 0) -> None:
        """Do nothing."""

    def advance(self, done: int, values: Mapping[str, float]) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class _Shown(Progress):
    """Base class of displays with values.

    Parameters
    ----------
    unit : str
        Name of a round.
    shown : mapping of str to str
        Further values to show, with their labels.
    """

    def __init__(self, unit: str = "epoch", shown: Mapping[str, str] | None = None) -> None:
        self._unit, self._words = unit, {**_SHOWN, **(shown or {})}

    def _texts(self, values: Mapping[str, float]) -> dict[str, str]:
        return {self._words[name]: f"{value:.4g}" for name, value in values.items() if name in self._words}


class Terminal(_Shown):
    """Progress bar on standard error with the remaining time, the bound, the validation score and the structure.

    The bar has the width of the terminal. In notebooks and files it is ten characters wide, and the values are not cut.
    """

    def __init__(self, unit: str = "epoch", shown: Mapping[str, str] | None = None) -> None:
        super().__init__(unit, shown)
        self._bar: tqdm[None] | None = None

    def start(self, total: int, done: int = 0) -> None:
        """Draw an empty bar."""
        width: dict[str, Any] = {"dynamic_ncols": True}
        if sys.stderr is None or not sys.stderr.isatty():
            # in a notebook, tqdm would find the width of the terminal from which Jupyter was started
            width = {"ncols": _UNBOUNDED, "bar_format": "{l_bar}{bar:10}{r_bar}"}
        self._bar = tqdm(total=total, initial=done, unit=self._unit, **width)

    def advance(self, done: int, values: Mapping[str, float]) -> None:
        """Move the bar and show the values beside it."""
        if self._bar is not None:
            self._bar.set_postfix(self._texts(values), refresh=False)
            self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Close the bar and leave it visible."""
        if self._bar is not None:
            self._bar.close()


class Lines(_Shown):
    """One line on standard error for each update: for files, logs and notebooks."""

    _total = 0

    def start(self, total: int, done: int = 0) -> None:
        """Store the number of rounds."""
        self._total = total

    def advance(self, done: int, values: Mapping[str, float]) -> None:
        """Write a line."""
        shown = ", ".join(f"{word} {text}" for word, text in self._texts(values).items())
        with contextlib.suppress(OSError, ValueError):  # standard error may be closed
            sys.stderr.write(f"{self._unit} {done} of {self._total}{': ' if shown else ''}{shown}\n")
            sys.stderr.flush()

    def close(self) -> None:
        """Do nothing."""
