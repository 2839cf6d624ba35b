"""Moves of a sweep, interpreted or compiled, with the same distribution.

With numba (the extra ``mcmc``) all functions of the modules of moves are compiled; functions that loop over rows are
compiled from their `_loop` versions. Without numba the same functions run in NumPy, vectorised over rows. Compilation
takes some seconds once: the result is cached next to the code if that folder is writable.
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

#: Values of the option `engine`.
ENGINES = ("auto", "compiled", "numpy")

_MOVES = (
    (passes, "compute_products"),
    (edges, "draw_edges"),
    (edges, "draw_precisions"),
    (births, "try_births_and_deaths"),
    (passes, "slice_pass"),
    (passes, "elliptical_pass"),
    (hyper, "draw_orders"),
    (hyper, "draw_hyperparameters"),
)


@dataclass(frozen=True)
class Engine:
    """Moves of a sweep: functions that change a state in place."""

    name: str
    compute_products: Callable[..., Any]
    draw_edges: Callable[..., Any]
    draw_precisions: Callable[..., Any]
    try_births_and_deaths: Callable[..., Any]
    slice_pass: Callable[..., Any]
    elliptical_pass: Callable[..., Any]
    draw_orders: Callable[..., Any]
    draw_hyperparameters: Callable[..., Any]

    def __reduce__(self) -> tuple[Callable[[str], "Engine"], tuple[str]]:
        return engine, (self.name,)  # compiled functions cannot be pickled; the other process loads them from the cache


def engine(name: str = "auto") -> Engine:
    """Return the moves of a sweep, compiled or in NumPy.

    Parameters
    ----------
    name : {"auto", "compiled", "numpy"}
        "auto" compiles where numba is installed.

    Raises
    ------
    DataError
        If `name` is "compiled" and numba is not installed.
    """
    choice("engine", name, ENGINES)
    installed = find_spec("numba") is not None
    if name == "compiled" and not installed:
        raise DataError(
            "engine='compiled' was given and numba is not installed; pip install 'fathomless[mcmc]' installs it, "
            "engine='numpy' does not need it"
        )
    if name == "numpy" or not installed:
        return Engine("numpy", *(getattr(module, move) for module, move in _MOVES))
    return _compiled()


@cache
def _compiled() -> Engine:
    import numba
    from numba.extending import overload

    for module in (fast, passes, grid, edges, births, hyper):
        for name, function in vars(module).items():
            if isinstance(function, FunctionType) and function.__module__ == module.__name__ and name[-5:] != "_loop":
                _replace(overload, function, getattr(module, f"{name}_loop", function))
    loops = [getattr(module, f"{move}_loop", getattr(module, move)) for module, move in _MOVES]
    return Engine("compiled", *(_jit(numba, loop) for loop in loops))


def _replace(overload: Callable[..., Any], function: FunctionType, loop: FunctionType) -> None:
    """Register the version of a function that numba compiles for calls of it."""
    overload(function, jit_options={"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}, strict=False)(
        lambda *_: loop
    )


def _jit(numba: Any, function: FunctionType) -> Callable[..., Any]:
    try:
        compiled: Callable[..., Any] = numba.njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:  # numba found no writable folder for its cache
        compiled = numba.njit(nogil=True, error_model="numpy")(function)
    return compiled
