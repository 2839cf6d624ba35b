"""The moves of a sweep as they stand, or compiled: one law, chosen by what is installed.

With numba (the extra ``mcmc``) every function of the rooms beside is compiled, those over rows from their `_loop`
halves; without it the same functions run as they are, vectorised over rows. Compiling takes some seconds, once: the
result is kept beside the code, or not at all where that folder cannot be written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from types import FunctionType
from typing import Any

from fathomless.families.graph import births, edges, fast, grid, hyper, passes
from fathomless.system.checks import choice
from fathomless.system.errors import DataError

__all__ = ["ENGINES", "Engine", "engine"]

#: What may be asked for.
ENGINES = ("auto", "compiled", "numpy")

_MOVES = (
    (passes, "products"),
    (edges, "edges"),
    (edges, "precisions"),
    (births, "birth_or_death"),
    (births, "births_and_deaths"),
    (passes, "slice_pass"),
    (passes, "elliptical_pass"),
    (hyper, "orders"),
    (hyper, "hyperparameters"),
)


@dataclass(frozen=True)
class Engine:
    """The moves of a sweep, each a function that changes a state in place."""

    name: str
    products: Callable[..., Any]
    edges: Callable[..., Any]
    precisions: Callable[..., Any]
    birth_or_death: Callable[..., Any]
    births_and_deaths: Callable[..., Any]
    slice_pass: Callable[..., Any]
    elliptical_pass: Callable[..., Any]
    orders: Callable[..., Any]
    hyperparameters: Callable[..., Any]

    def __reduce__(self) -> tuple[Callable[[str], "Engine"], tuple[str]]:
        return engine, (self.name,)  # another process compiles its own, from the cache


def engine(name: str = "auto") -> Engine:
    """Return the moves, compiled if that is asked for or possible.

    Parameters
    ----------
    name : {"auto", "compiled", "numpy"}
        "auto" compiles where numba is installed.

    Raises
    ------
    DataError
        If "compiled" is asked for and numba is not installed.
    """
    choice("engine", name, ENGINES)
    there = find_spec("numba") is not None
    if name == "compiled" and not there:
        raise DataError(
            "engine='compiled' was given and numba is not installed; pip install 'fathomless[mcmc]' brings it, "
            "engine='numpy' does without"
        )
    if name == "numpy" or not there:
        return Engine("numpy", *(getattr(room, move) for room, move in _MOVES))
    return _compiled()


@cache
def _compiled() -> Engine:
    import numba
    from numba.extending import overload

    rooms = (fast, passes, grid, edges, births, hyper)
    for room in rooms:
        for name, function in vars(room).items():
            if isinstance(function, FunctionType) and function.__module__ == room.__name__ and name[-5:] != "_loop":
                _replace(overload, function, getattr(room, f"{name}_loop", function))
    loops = [getattr(room, f"{move}_loop", getattr(room, move)) for room, move in _MOVES]
    return Engine("compiled", *(_jit(numba, loop) for loop in loops))


def _replace(overload: Callable[..., Any], function: FunctionType, loop: FunctionType) -> None:
    """Tell the compiler what to compile where a function is called."""
    overload(function, jit_options={"nogil": True}, strict=False)(lambda *_: loop)


def _jit(numba: Any, function: FunctionType) -> Callable[..., Any]:
    try:
        compiled: Callable[..., Any] = numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # no folder for it can be written
        compiled = numba.njit(nogil=True)(function)
    return compiled
