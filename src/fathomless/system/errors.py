"""The few exceptions and warnings that a caller would catch.

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


_HEAD, _TAIL = 1000, 300  # characters that are shown of a longer message


class FathomlessError(Exception):
    """Any error that fathomless raises on purpose; of a very long message the middle is left out."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= _HEAD + _TAIL else f"{text[:_HEAD]} … {text[-_TAIL:]}"


class DataError(FathomlessError, ValueError):
    """A table, a target or an option that cannot be used as given."""


class FileError(FathomlessError, OSError):
    """A model or checkpoint that cannot be written, or that is not to be trusted."""


class DivergenceError(FathomlessError, ArithmeticError):
    """A training that produced a value which is not finite.

    Parameters
    ----------
    message : str
        What happened.
    networks : sequence of int
        Of networks that were trained side by side, those that did.
    """

    def __init__(self, message: str, networks: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.networks = tuple(networks)


class PausedError(FathomlessError, RuntimeError):
    """A training that was asked to pause; its checkpoint, if there is one, holds all that was done."""


class RankError(FathomlessError, RuntimeError):
    """Processes that train one network together, and do not hold the same one."""


class DepthError(FathomlessError, RuntimeError):
    """A depth posterior that asks for more layers than allowed."""


class DataWarning(UserWarning):
    """Something about a table or an option that limits what can be said, and does not stop a fit."""


class ConvergenceWarning(UserWarning):
    """The training ended before the posterior over structure came to rest."""
