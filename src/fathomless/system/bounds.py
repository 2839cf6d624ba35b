"""Bounds of what is built from a file: its numbers make nothing that the tensors beside them cannot fill."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from fathomless.system.errors import DataError

__all__ = ["at_most", "check_counts"]

_COUNTS = 100_000  # what a number may be, however few tensors there are
_EACH = 8  # times that a number of the file may be made: ways to build a module go over others
_SPARE = {"parameters": 1 << 10, "numbers": 1 << 20}  # that may be made beside those


def check_counts(value: Any, numbers: int, name: str = "layout") -> None:
    """Refuse whole numbers, and lengths of lists, that are greater than the numbers which a file holds.

    Parameters
    ----------
    value
        Plain JSON, of which every whole number counts something.
    numbers : int
        In the tensors of the file.
    name : str
        Of the value, for messages.

    Raises
    ------
    DataError
        For the first of them, with its place.

    Examples
    --------
    >>> check_counts({"layers": 3}, 200)
    >>> check_counts({"layers": 10**9}, 200)
    Traceback (most recent call last):
    ...
    fathomless.system.errors.DataError: layout.layers is 1,000,000,000, and its tensors hold 200 numbers
    """
    most = max(numbers, _COUNTS)
    if isinstance(value, dict):
        for key, one in value.items():
            check_counts(one, numbers, f"{name}.{key}")
    elif isinstance(value, list):
        check_counts(len(value), numbers, f"the length of {name}")
        for one in value:
            check_counts(one, numbers, name)
    elif isinstance(value, int) and abs(value) > most:
        raise DataError(f"{name} is {value:,}, and its tensors hold {numbers:,} numbers")


@contextlib.contextmanager
def at_most(numbers: int) -> Iterator[None]:
    """Refuse to build modules with many more parameters than a file has numbers for.

    Parameters and their numbers count when a module takes them, as a rule before they are initialised. Modules that
    other threads build meanwhile do not count.

    Parameters
    ----------
    numbers : int
        In the tensors of the file.

    Raises
    ------
    DataError
        When more is built.
    """
    left, own = {kind: _EACH * numbers + spare for kind, spare in _SPARE.items()}, threading.get_ident()

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is None or threading.get_ident() != own:
            return
        left["parameters"] -= 1
        left["numbers"] -= parameter.numel()
        if min(left.values()) < 0:
            raise DataError(f"its options build a larger network than its tensors, of {numbers:,} numbers, can fill")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()
