"""Memory: how much there is, and refusals, before a large allocation and after one that failed, that say what fits."""

import contextlib
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fathomless.system.errors import DataError

if sys.platform != "win32":
    import resource

__all__ = ["available", "human", "release", "require", "told"]

_SHARE = 0.9  # of what is free that one computation may ask for
_SMALL = 1 << 26  # bytes below which nobody asks


def available() -> int | None:
    """Return the bytes that this process may still take, or None where the system does not tell.

    The least of what the machine has free, what a container allows, and the limit on the address space.

    Notes
    -----
    Not guaranteed: that the bytes are still there a moment later. Memory of other devices is not looked at.
    """
    found = [value for value in (_machine(), _container(), _limit()) if value is not None]
    return max(0, min(found)) if found else None


def require(need: float, what: str, remedy: Callable[[float], str]) -> None:
    """Refuse a computation that needs more memory than there is.

    Parameters
    ----------
    need : float
        Bytes at the peak.
    what : str
        What needs them, with its sizes: "a table of 1,000,000 rows as 5,000 features".
    remedy : callable
        Called with the share of the need that fits, 0 to 1; returns what to do, with the size that fits.

    Raises
    ------
    DataError
        If the need is greater than what is available.

    Examples
    --------
    >>> require(1e18, "a table of 10⁹ rows", lambda share: "give fewer rows")
    Traceback (most recent call last):
    ...
    fathomless.system.errors.DataError: a table of 10⁹ rows needs 888 PiB of memory, ... may be taken; give fewer rows
    """
    if need <= _SMALL:
        return
    free = available()
    if free is not None and need > _SHARE * free:
        raise DataError(
            f"{what} needs {human(need)} of memory, {human(free)} are free, of which 90 % may be taken; "
            f"{remedy(_SHARE * free / need)}"
        )


@contextlib.contextmanager
def told(remedy: str) -> Iterator[None]:
    """Say what to do where torch finds no memory, on an accelerator or on the processor.

    Parameters
    ----------
    remedy : str
        What needs less.

    Raises
    ------
    DataError
        In place of torch's error.
    """
    try:
        yield
    except RuntimeError as error:
        import torch  # here, since most who ask for memory do without

        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        reason = str(error).partition("\n")[0].partition(". GPU")[0][:200]
        raise DataError(f"there is no memory left ({reason}); {remedy}") from error


def release(array: Any) -> None:
    """Give the pages of a memory-mapped array back to the system, which reads them again when they are asked for.

    Does nothing to other arrays, to those that keep their changes to themselves (mode "c"), and where the system takes
    no such advice.
    """
    import numpy as np  # here, so that whoever asks for free memory alone does without

    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap) and array.mode == "c":
            return
        array = array.base
    if isinstance(array, mmap.mmap) and sys.platform == "linux":
        array.madvise(mmap.MADV_DONTNEED)


def human(size: float) -> str:
    """Write a number of bytes for people.

    Examples
    --------
    >>> human(1536), human(3 * 2**40)
    ('1.5 KiB', '3.0 TiB')
    """
    units = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
    for unit in units:
        if abs(size) < 1024 or unit == units[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"


def _machine() -> int | None:
    """Return the free memory, with caches that would make room; where that is not told, all memory."""
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _container() -> int | None:
    """Return what the control group allows beyond what it has in use; cached files would make room."""
    limit, used, parts = (_read(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current", "stat"))
    if not (limit.isdigit() and used.isdigit()):
        return None
    cached = next((int(line.split()[1]) for line in parts.splitlines() if line.startswith("inactive_file ")), 0)
    return int(limit) - int(used) + cached


def _limit() -> int | None:
    """Return what the limit on the address space (``ulimit -v``) leaves."""
    if sys.platform == "win32":
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    used = _read("/proc/self/statm").split()
    if soft == resource.RLIM_INFINITY or not used:
        return None
    return soft - int(used[0]) * os.sysconf("SC_PAGE_SIZE")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
