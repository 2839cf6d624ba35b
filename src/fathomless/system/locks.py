"""One writer at a time in a folder: a lock that ends with the process that holds it, however that ends.

The file ``writer.lock`` names the process and its host for a message. The lock itself is the system's, on that file:
it is free as soon as the process is gone, so what a kill leaves behind is taken over. Where a file system has no locks,
the file alone decides, by whether its process is alive.
"""

import contextlib
import errno
import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fathomless.system.errors import FileError
from fathomless.system.io import PathLike, as_file_error

__all__ = ["LOCK", "writing"]

#: Name of the file in a folder that is being written.
LOCK = "writer.lock"

_PLACE = 1 << 20  # byte that Windows locks, behind what the file holds, which others may read
_FLAGS = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # no link is followed
_WITHOUT = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}  # file systems that have no locks


@contextlib.contextmanager
def writing(folder: PathLike, wait: float = 0.0) -> Iterator[None]:
    """Hold a folder as its only writer; it is created if needed, and removed again if nothing was written.

    Parameters
    ----------
    folder : path
        The folder.
    wait : float
        Seconds to wait for another writer to end.

    Raises
    ------
    FileError
        If another process, or another thread of this one, holds it after that time; the message names the process
        and its host. Or if the folder cannot be written.

    Notes
    -----
    Not guaranteed: anything against writers that do not ask for the lock.
    """
    folder = Path(folder)
    end = time.monotonic() + wait
    while True:
        with as_file_error(f"{folder} cannot be written"):
            folder.mkdir(parents=True, exist_ok=True)
            handle, other = _taken(folder / LOCK)
        if handle is not None:
            break
        if time.monotonic() >= end:
            raise FileError(
                f"{folder} is being written by another process ({other}); wait until it has ended, or stop it, or "
                "choose another folder"
            )
        time.sleep(0.05)
    try:
        yield
    finally:
        _given_up(folder / LOCK, handle)


def _taken(path: Path) -> tuple[int | None, str]:
    """Return the open file if the lock is ours now, and else None and who has it.

    The file is open for reading, so that its file system can still turn read-only; network file systems that lock
    nothing but what is open for writing get the latter.
    """
    mode = os.O_RDWR if sys.platform == "win32" else os.O_RDONLY
    while True:
        handle = os.open(path, mode | _FLAGS, 0o666)
        try:
            found = os.read(handle, 4096)
            try:
                free = _free(handle, found)
            except OSError:
                if mode == os.O_RDWR:
                    raise
                mode = os.O_RDWR
            else:
                if not free:
                    os.close(handle)
                    return None, _named(found)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(handle), os.stat(path)):  # else its last holder has just removed it
                        _name(path)
                        return handle, ""
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(handle)
            raise
        os.close(handle)


def _name(path: Path) -> None:
    """Write process and host into a lock file."""
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC | _FLAGS, 0o666)
    try:
        os.write(handle, json.dumps({"pid": os.getpid(), "host": platform.node()}).encode() + b"\n")
    finally:
        os.close(handle)


def _given_up(path: Path, handle: int) -> None:
    """Remove the file and close it, which frees the lock; and its folder, if that is empty."""
    with contextlib.suppress(OSError):
        if sys.platform != "win32":
            path.unlink()
        os.close(handle)
        if sys.platform == "win32":  # which removes no file that is open
            path.unlink()
        path.parent.rmdir()


def _free(handle: int, found: bytes) -> bool:
    """Try to lock an open file; where that cannot be done, look at the process that it names."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, _PLACE, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EBADF:  # it must be open for writing
            raise
        if error.errno not in _WITHOUT:
            return False
        return not _alive(found)
    return True


def _owner(found: bytes) -> tuple[int, str] | None:
    """Return the process and the host that a lock file names, if it does."""
    try:
        told = json.loads(found)
        return int(told["pid"]), str(told["host"])
    except (KeyError, TypeError, ValueError):
        return None


def _named(found: bytes) -> str:
    owner = _owner(found)
    return "it has not said which" if owner is None else f"number {owner[0]} on {owner[1]}"


def _alive(found: bytes) -> bool:
    """Return True if the process that a lock file names may be alive; that of another host always may."""
    owner = _owner(found)
    if owner is None:
        return False
    pid, host = owner
    if host != platform.node():
        return True
    if sys.platform == "win32" or pid <= 0:  # which has no signal that only asks
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
