"""Limits on the objects that are built from a file: none is larger than the tensors of the file can fill."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from fathomless.system.errors import DataError

__all__ = ["check_counts", "limit_parameters"]

_COUNTS = 100_000  # largest number that is always allowed, even with few tensors
_EACH = 8  # times that each number of the file may be allocated: building a module may pass through other modules
_SPARE = {"parameters": 1 << 10, "numbers": 1 << 20}  # further parameters and numbers that may be allocated


def check_counts(value: Any, numbers: int, name: str = "layout") -> None:
    """Refuse whole numbers, and lengths of lists, that exceed the number of elements in the tensors of a file.

    Parameters
    ----------
    value
        Plain JSON in which every whole number is a count.
    numbers : int
        Number of elements in the tensors of the file.
    name : str
        Name of the value, for messages.

    Raises
    ------
    DataError
        For the first such number, with its place.

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
        for key, entry in value.items():
            check_counts(entry, numbers, f"{name}.{key}")
    elif isinstance(value, list):
        check_counts(len(value), numbers, f"the length of {name}")
        for entry in value:
            check_counts(entry, numbers, name)
    elif isinstance(value, int) and abs(value) > most:
        raise DataError(f"{name} is {value:,}, and its tensors hold {numbers:,} numbers")


@contextlib.contextmanager
def limit_parameters(numbers: int) -> Iterator[None]:
    """Refuse to build modules with many more parameters than the tensors of a file can fill.

    Parameters and their elements are counted when they are registered, usually before they are initialised. Modules
    that other threads build at the same time are not counted.

    Parameters
    ----------
    numbers : int
        Number of elements in the tensors of the file.

    Raises
    ------
    DataError
        If more is built.
    """
    left = {kind: _EACH * numbers + spare for kind, spare in _SPARE.items()}
    this_thread = threading.get_ident()

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is None or threading.get_ident() != this_thread:
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
