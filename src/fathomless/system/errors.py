"""Exceptions and warnings for callers to catch.

Each message says what was given (with the number), what is allowed, and what to do.
"""

from collections.abc import Sequence

__all__ = [
    "ConvergenceWarning",
    "DataError",
    "DataWarning",
    "DepthError",
    "DivergenceError",
    "FathomlessError",
    "FileError",
    "PausedError",
    "RankError",
]


_HEAD, _TAIL = 1000, 300  # characters shown of a longer message, from its start and its end


class FathomlessError(Exception):
    """Base class of the errors of fathomless. The middle of a very long message is left out."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]} … {text[-_TAIL:]}"


class DataError(FathomlessError, ValueError):
    """A table, a target or an option is invalid."""


class FileError(FathomlessError, OSError):
    """A model or checkpoint cannot be written, or is corrupt."""


class DivergenceError(FathomlessError, ArithmeticError):
    """A training produced a value that is not finite.

    Parameters
    ----------
    message : str
        Description.
    networks : sequence of int
        Indices of the networks that diverged, where several were trained in parallel.
    """

    def __init__(self, message: str, networks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.networks = tuple(networks)


class PausedError(FathomlessError, RuntimeError):
    """A training was paused on request. Its checkpoint, if there is one, has its whole state."""


class RankError(FathomlessError, RuntimeError):
    """Processes of one training have different networks."""


class DepthError(FathomlessError, RuntimeError):
    """The posterior over depth needs more layers than allowed."""


class DataWarning(UserWarning):
    """A table or an option limits the reliability of a fit."""


class ConvergenceWarning(UserWarning):
    """The training ended before the posterior over structure converged."""
