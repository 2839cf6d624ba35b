"""One writer of a folder at a time, whatever became of the one before."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from fathomless.system import locks
from fathomless.system.errors import FileError
from fathomless.system.locks import LOCK, hold_folder

HOLD = """
import sys, time
from fathomless.system.locks import hold_folder
with hold_folder(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path) -> "subprocess.Popen[str]":
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    return child


def test_a_second_writer_is_told_who_the_first_is_and_a_killed_one_holds_nothing(
    tmp_path: Path, holder: "subprocess.Popen[str]"
) -> None:
    try:
        told = json.loads((tmp_path / "run" / LOCK).read_text())
        assert told == {"pid": holder.pid, "host": platform.node()}
        with (
            pytest.raises(FileError, match=rf"another process \(number {holder.pid} on .*wait until"),
            hold_folder(tmp_path / "run"),
        ):
            pass
    finally:
        holder.kill()
        holder.communicate()
    assert (tmp_path / "run" / LOCK).exists()  # which nobody holds
    with hold_folder(tmp_path / "run"):
        assert json.loads((tmp_path / "run" / LOCK).read_text())["pid"] == os.getpid()
        (tmp_path / "run" / "a").write_text("a")
    assert os.listdir(tmp_path / "run") == ["a"]


def test_a_folder_in_which_nothing_was_written_goes_and_a_waiting_writer_comes_next(tmp_path: Path) -> None:
    with (
        hold_folder(tmp_path / "run"),
        pytest.raises(FileError, match="another process"),
        hold_folder(tmp_path / "run", wait=0.12),  # also another one of this process
    ):
        pass
    assert not (tmp_path / "run").exists()
    with pytest.raises(ZeroDivisionError), hold_folder(tmp_path / "run"):
        1 / 0  # noqa: B018
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has its own locks, and no signal that only asks")
def test_without_locks_of_the_system_the_file_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno
    import fcntl

    def flock(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    for pid, host, free in (
        (gone.pid, platform.node(), True),
        (os.getppid(), platform.node(), False),
        (1, "far", False),
    ):
        (tmp_path / LOCK).write_text(json.dumps({"pid": pid, "host": host}))
        (tmp_path / "a").write_text("a")
        if free:
            with hold_folder(tmp_path):
                pass
            continue
        with pytest.raises(FileError, match=f"number {pid} on"), hold_folder(tmp_path):
            pass
    for damaged in ("", "{", "[]", '{"pid": "x", "host": 1}'):
        (tmp_path / LOCK).write_text(damaged)
        with hold_folder(tmp_path):
            pass
    assert locks._describe_owner(b"{") == "unknown"


@pytest.mark.skipif(not hasattr(os, "O_NOFOLLOW"), reason="this system opens links")
def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(FileError, match="cannot be written"), hold_folder(tmp_path / "run"):
        pass
    assert (tmp_path / "precious").read_text() == "precious"
