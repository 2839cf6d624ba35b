"""Lock of a folder for one writer, which is released when the process ends, even if it is killed.

The file ``writer.lock`` has the process and its host, for messages. The lock is one of the operating system on that
file, and it is free as soon as the process has ended. On file systems without locks, the folder counts as locked while
the process in the file is alive.
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

__all__ = ["LOCK", "hold_folder"]

#: Name of the lock file in a folder.
LOCK = "writer.lock"

_PLACE = 1 << 20  # byte that Windows locks; it lies beyond the content, so that other processes can read the content
_FLAGS = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)  # do not follow a link
_WITHOUT = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}  # errors of file systems without locks


@contextlib.contextmanager
def hold_folder(folder: PathLike, wait: float = 0.0) -> Iterator[None]:
    """Lock a folder for writing. It is created if needed, and removed again if it is empty at the end.

    Parameters
    ----------
    folder : path
        The folder.
    wait : float
        Seconds to wait for another writer to finish.

    Raises
    ------
    FileError
        If another process, or another thread of this one, still has the lock after that time; the message names the
        process and its host. Also if the folder cannot be written.

    Notes
    -----
    Writers that do not use this lock are not excluded.
    """
    folder = Path(folder)
    end = time.monotonic() + wait
    while True:
        with as_file_error(f"{folder} cannot be written"):
            folder.mkdir(parents=True, exist_ok=True)
            handle, other = _acquire(folder / LOCK)
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
        _release(folder / LOCK, handle)


def _acquire(path: Path) -> tuple[int | None, str]:
    """Return the open file if the lock was acquired, otherwise None and a description of its owner.

    The file is opened for reading, so that its file system can still become read-only. Some network file systems lock
    only files that are open for writing; on these it is opened again for writing.
    """
    mode = os.O_RDWR if sys.platform == "win32" else os.O_RDONLY
    while True:
        handle = os.open(path, mode | _FLAGS, 0o666)
        try:
            found = os.read(handle, 4096)
            try:
                free = _try_lock(handle, found)
            except OSError:
                if mode == os.O_RDWR:
                    raise
                mode = os.O_RDWR
            else:
                if not free:
                    os.close(handle)
                    return None, _describe_owner(found)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(
                        os.fstat(handle), os.stat(path)
                    ):  # otherwise its last owner has just removed it
                        _write_owner(path)
                        return handle, ""
        except BaseException:
            with contextlib.suppress(OSError):
                os.close(handle)
            raise
        os.close(handle)


def _write_owner(path: Path) -> None:
    """Write the process and the host into a lock file."""
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC | _FLAGS, 0o666)
    try:
        os.write(handle, json.dumps({"pid": os.getpid(), "host": platform.node()}).encode() + b"\n")
    finally:
        os.close(handle)


def _release(path: Path, handle: int) -> None:
    """Remove and close the lock file, which releases the lock, and remove the folder if it is empty."""
    with contextlib.suppress(OSError):
        if sys.platform != "win32":
            path.unlink()
        os.close(handle)
        if sys.platform == "win32":  # Windows cannot remove an open file
            path.unlink()
        path.parent.rmdir()


def _try_lock(handle: int, found: bytes) -> bool:
    """Try to lock an open file; on a file system without locks, check whether the process in it is alive."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, _PLACE, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno == errno.EBADF:  # the file must be open for writing
            raise
        if error.errno not in _WITHOUT:
            return False
        return not _is_alive(found)
    return True


def _owner(found: bytes) -> tuple[int, str] | None:
    """Return the process and the host in a lock file, or None."""
    try:
        owner = json.loads(found)
        return int(owner["pid"]), str(owner["host"])
    except (KeyError, TypeError, ValueError):
        return None


def _describe_owner(found: bytes) -> str:
    owner = _owner(found)
    return "unknown" if owner is None else f"number {owner[0]} on {owner[1]}"


def _is_alive(found: bytes) -> bool:
    """Return True if the process in a lock file may be alive, which is always so for another host."""
    owner = _owner(found)
    if owner is None:
        return False
    pid, host = owner
    if host != platform.node():
        return True
    if sys.platform == "win32" or pid <= 0:  # Windows has no signal that only tests for existence
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
