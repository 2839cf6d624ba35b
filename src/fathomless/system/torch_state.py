"""State of torch: gradient modes, threads after a fork, and tensors of saved modules."""

import contextlib
import functools
import os
import sys
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor, nn

from fathomless.system import rng
from fathomless.system.errors import DataError

__all__ = ["enable_gradients", "load_state", "make_fork_safe", "without_gradients"]


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
