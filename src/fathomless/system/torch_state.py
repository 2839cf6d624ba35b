"""State of torch: gradient modes, numbers of threads, and tensors of saved modules."""

import contextlib
import functools
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fathomless.system import rng
from fathomless.system.errors import DataError

__all__ = [
    "WIDE",
    "enable_gradients",
    "evaluating",
    "is_wide",
    "load_state",
    "make_fork_safe",
    "set_threads",
    "threads_for_width",
    "use_threads",
    "without_gradients",
]

#: Width of the layers from which several threads are faster.
WIDE = 256

_INITIAL = torch.get_num_threads()
_chosen = False  # True after `set_threads`


@contextlib.contextmanager
def enable_gradients() -> Iterator[None]:
    """Enable gradients, also inside ``torch.no_grad()`` and ``torch.inference_mode()``.

    Tensors that are created inside are ordinary tensors, and can be used in later trainings.
    """
    make_fork_safe()
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """Disable gradients; tensors that are created inside are ordinary tensors, also in ``torch.inference_mode()``."""
    make_fork_safe()
    with torch.inference_mode(False), torch.no_grad():
        yield


@contextlib.contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Put modules into evaluation mode for a while."""
    parts = [(part, part.training) for module in modules for part in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for part, training in parts:
            part.training = training


def set_threads(count: int) -> None:
    """Set the number of threads of all computations, also of fits of narrow networks."""
    global _chosen
    _chosen = True
    torch.set_num_threads(count)


def is_wide(options: Mapping[str, Any]) -> bool:
    """Return True if the option "width", or a width in "candidates", is at least :data:`WIDE`."""
    candidates = options.get("candidates")
    widths = [options.get("width"), *(candidates.get("width", ()) if isinstance(candidates, Mapping) else ())]
    return any(isinstance(width, int) and width >= WIDE for width in widths)


@contextlib.contextmanager
def threads_for_width(options: Mapping[str, Any]) -> Iterator[None]:
    """Compute with one thread inside if the layers are narrower than :data:`WIDE`, and the user chose no number.

    The operations of narrow layers are too short to be divided. If other programs use the CPU, threads that wait for
    each other make a fit slower: by a factor of 4 to 13 on two cores beside one other process. The number of
    threads is a choice of the user if ``OMP_NUM_THREADS`` or ``MKL_NUM_THREADS`` is set, after :func:`set_threads`, and
    if ``torch.set_num_threads`` has changed it since the import of this library.

    Parameters
    ----------
    options : mapping
        Options of the networks, as for :func:`is_wide`.
    """
    before = torch.get_num_threads()
    chosen = _chosen or before != _INITIAL or any(name in os.environ for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"))
    with use_threads(before if chosen or is_wide(options) else 1):
        yield


@contextlib.contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Set the number of threads inside, and restore it."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_state(module: nn.Module, tensors: Mapping[str, Tensor], message: str) -> None:
    """Load the saved tensors of a module.

    Parameters
    ----------
    module : nn.Module
        Module, which is changed.
    tensors : mapping of str to Tensor
        Result of ``state_dict``.
    message : str
        Message of the error.

    Raises
    ------
    DataError
        If the names or shapes of the tensors are not those of the module.
    """
    expected = {name: value.shape for name, value in module.state_dict().items()}
    if {name: value.shape for name, value in tensors.items()} != expected:
        raise DataError(message)
    module.load_state_dict(dict(tensors))


@functools.cache
def make_fork_safe() -> None:
    """Make forked child processes compute on one thread, since they hang with several.

    The thread pool of OpenMP does not survive a fork. The start methods spawn, forkserver and loky are not affected.
    """
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    torch.set_num_threads(1)
    rng.renew_lock()  # another thread of the parent may have held it
