"""Available memory, and errors before a large allocation, or after a failed one, that say what fits."""

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

__all__ = ["available", "explain_out_of_memory", "human", "keep_freed", "release", "require"]

_SHARE = 0.9  # share of the free memory that one computation may use
_SMALL = 1 << 26  # bytes below which nothing is checked
_MAPPED = (1 << 25) - (1 << 16)  # bytes of the block whose release raises the limits of the allocator


def available() -> int | None:
    """Return the number of bytes that this process may still allocate, or None if the system does not report it.

    The minimum of the free memory of the machine, the limit of a container, and the limit on the address space.

    Notes
    -----
    Other processes may use this memory in the meantime. Memory of accelerators is not included.
    """
    found = [value for value in (_machine(), _container(), _limit()) if value is not None]
    return max(0, min(found)) if found else None


def require(need: float, what: str, remedy: Callable[[float], str]) -> None:
    """Raise an error if a computation needs more memory than is available.

    Parameters
    ----------
    need : float
        Peak number of bytes.
    what : str
        Description of the computation, with its sizes: "a table of 1,000,000 rows as 5,000 features".
    remedy : callable
        Function of the share of `need` that fits, 0 to 1; it returns the advice, with the size that fits.

    Raises
    ------
    DataError
        If `need` exceeds the available memory.

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
def explain_out_of_memory(remedy: str) -> Iterator[None]:
    """Replace the out-of-memory error of torch, on an accelerator or the CPU, by one with advice.

    Parameters
    ----------
    remedy : str
        Advice on how to use less memory.

    Raises
    ------
    DataError
        If torch is out of memory.
    """
    try:
        yield
    except RuntimeError as error:
        import torch  # imported late: most callers of this module do without

        if not isinstance(error, torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        reason = str(error).partition("\n")[0].partition(". GPU")[0][:200]
        raise DataError(f"there is no memory left ({reason}); {remedy}") from error


def release(array: Any) -> None:
    """Release the pages of a memory-mapped array; the system reads them again when they are accessed.

    Other arrays, arrays in copy-on-write mode ("c"), and systems other than Linux are left alone.
    """
    import numpy as np  # imported late: callers that only need the free memory do without

    while isinstance(array, np.ndarray):
        if isinstance(array, np.memmap) and array.mode == "c":
            return
        array = array.base
    if isinstance(array, mmap.mmap) and sys.platform == "linux":
        array.madvise(mmap.MADV_DONTNEED)


def keep_freed() -> None:
    """Let the allocator of the C library keep freed blocks of up to 32 MiB for the next allocation.

    By default, glibc returns a freed block to the system if it is larger than the largest block that was freed so far,
    and it trims its heap beyond twice this size. The hidden states of a training step are such blocks. They are then
    requested again in the next step, and the system clears each page, which takes longer than the layers of a small
    network. One large block that is freed, of which no page is ever used, raises both limits. Other allocators ignore
    it.
    """
    import torch  # imported late: most callers of this module do without

    torch.empty(_MAPPED, dtype=torch.uint8, device="cpu")


def human(size: float) -> str:
    """Format a number of bytes.

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
    """Return the free memory, including reclaimable caches; all memory if that is not reported."""
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    if sys.platform == "win32":
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _container() -> int | None:
    """Return the memory that the control group may still allocate, including reclaimable caches."""
    limit, used, parts = (_read(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current", "stat"))
    if not (limit.isdigit() and used.isdigit()):
        return None
    cached = next((int(line.split()[1]) for line in parts.splitlines() if line.startswith("inactive_file ")), 0)
    return int(limit) - int(used) + cached


def _limit() -> int | None:
    """Return the remaining address space under its limit (``ulimit -v``)."""
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
