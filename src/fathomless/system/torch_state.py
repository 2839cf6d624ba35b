"""Modes of torch and processes around the library: gradients that were switched off, and children by fork."""

import contextlib
import functools
import os
import sys
from collections.abc import Iterator

import torch

from fathomless.system import rng

__all__ = ["recording", "survive_forks", "without_gradients"]


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Switch gradients on, also inside ``torch.no_grad()`` and ``torch.inference_mode()``.

    Tensors that are made inside are ordinary ones, which later trainings can use.
    """
    survive_forks()
    with torch.inference_mode(False), torch.enable_grad():
        yield


@contextlib.contextmanager
def without_gradients() -> Iterator[None]:
    """Switch gradients off; tensors that are made inside are ordinary ones, also in ``torch.inference_mode()``."""
    survive_forks()
    with torch.inference_mode(False), torch.no_grad():
        yield


@functools.cache
def survive_forks() -> None:
    """Let children that are forked from now on compute on one thread, since they hang on several.

    The pool of threads that torch has used (OpenMP) does not survive a fork. Children of spawn, forkserver and loky are
    not concerned.
    """
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    torch.set_num_threads(1)
    rng.renew_lock()  # another thread of the parent may hold it
