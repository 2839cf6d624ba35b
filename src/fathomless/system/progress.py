"""Progress as an object: something that is told how far a computation is, and may not disturb it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from tqdm import tqdm

__all__ = ["Progress", "Silent", "Terminal"]

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


class Terminal(Progress):
    """A progress bar on standard error: rounds done, the time left, the bound, the validation score, the structure.

    Parameters
    ----------
    unit : str
        What a round is.
    shown : mapping of str to str
        More values that are shown, with the words for them.
    """

    def __init__(self, unit: str = "epoch", shown: Mapping[str, str] | None = None) -> None:
        self._unit, self._shown = unit, {**_SHOWN, **(shown or {})}
        self._bar: tqdm[None] | None = None

    def start(self, total: int, done: int = 0) -> None:
        """Draw an empty bar."""
        self._bar = tqdm(total=total, initial=done, unit=self._unit, dynamic_ncols=True)

    def advance(self, done: int, values: Mapping[str, float]) -> None:
        """Move the bar and show the values beside it."""
        if self._bar is not None:
            shown = {self._shown[name]: f"{value:.4g}" for name, value in values.items() if name in self._shown}
            self._bar.set_postfix(shown, refresh=False)
            self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it stands."""
        if self._bar is not None:
            self._bar.close()
