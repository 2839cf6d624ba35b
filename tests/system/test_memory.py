"""Memory: what there is, and refusals that name a size that fits."""

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fathomless.families.depth.estimator import UnboundedDepthRegressor
from fathomless.system import memory
from fathomless.system.errors import DataError

MIB, GIB = 2**20, 2**30
SMALL = 64 * MIB  # what nobody asks about


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Set the memory that there is."""
    return lambda size: monkeypatch.setattr(memory, "available", lambda: size)


# ------------------------------------------------------------------------------------------------- refusing


@given(st.integers(2 * SMALL, 2**60), st.floats(1.001, 1e9), st.integers(1, 10**12))
def test_a_refusal_can_name_the_greatest_size_that_fits(room: int, excess: float, rows: int) -> None:
    need = excess * 0.9 * room  # proportional to the rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "available", lambda: room)
        with pytest.raises(DataError) as refusal:
            memory.require(need, f"{rows:,} rows", lambda share: f"{int(share * rows)} fit")
        found = re.search(r"(\d+) fit$", str(refusal.value))
        assert found
        fitting = int(found[1])
        assert 0 <= fitting < rows
        memory.require(need / rows * fitting * (1 - 1e-12), "so many", lambda share: "no")
        with pytest.raises(DataError):
            memory.require(need / rows * (fitting + 1) * (1 + 1e-12), "one more", lambda share: "no")


def test_a_refusal_tells_the_need_what_is_free_and_what_to_do(free: Callable[[int | None], None]) -> None:
    free(2 * GIB)
    with pytest.raises(DataError) as refusal:
        memory.require(3.5 * GIB, "a table", lambda share: f"take {share:.3f} of it")
    assert str(refusal.value) == (
        "a table needs 3.5 GiB of memory, 2.0 GiB are free, of which 90 % may be taken; take 0.514 of it"
    )


def test_nine_tenths_of_what_is_free_may_be_taken(free: Callable[[int | None], None]) -> None:
    free(1000 * MIB)
    memory.require(900 * MIB, "it", lambda share: "no")
    with pytest.raises(DataError):
        memory.require(901 * MIB, "it", lambda share: "no")


@given(st.floats(0, SMALL), st.integers(0, 2**40))
def test_small_needs_are_never_refused(need: float, room: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "available", lambda: room)
        memory.require(need, "a little", lambda share: "no")


def test_where_the_system_does_not_tell_nothing_is_refused(free: Callable[[int | None], None]) -> None:
    free(None)
    memory.require(1e30, "everything", lambda share: "no")


@pytest.mark.parametrize("weights", ["map", "meanfield"])
@pytest.mark.parametrize("columns", [1, 200])
def test_the_width_that_a_refusal_names_is_accepted(
    free: Callable[[int | None], None], weights: str, columns: int
) -> None:
    X = np.random.default_rng(0).normal(size=(20, columns))
    network = UnboundedDepthRegressor(width=50_000, epochs=1, weights=weights, depth_law=2, random_state=0)
    free(80 * MIB)
    with pytest.raises(DataError, match=r"a network of 2 layers of width 50,000 needs .* 80.0 MiB are free") as refusal:
        network.fit(X, X[:, 0])
    found = re.search(r"a width of about ([\d,]+) fits", str(refusal.value))
    assert found
    width = int(found[1].replace(",", ""))
    assert width > 100
    network.set_params(width=width).fit(X, X[:, 0])


# ------------------------------------------------------------------------------------------------- measuring


def test_what_is_available_is_some_of_what_the_machine_has() -> None:
    found = memory.available()
    assert found is not None
    assert MIB < found <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def told(monkeypatch: pytest.MonkeyPatch, **files: str) -> None:
    """Let the system say this of itself; no other limits."""
    names = {"meminfo": "/proc/meminfo", "statm": "/proc/self/statm"}
    texts = {names.get(name, f"/sys/fs/cgroup/memory.{name}"): text for name, text in files.items()}
    monkeypatch.setattr(memory, "_read", lambda path: texts.get(path, ""))


def test_the_least_of_machine_container_and_limit_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = "MemTotal:       16000000 kB\nMemFree: 100 kB\nMemAvailable:    8000000 kB\n"
    told(monkeypatch, meminfo=meminfo)
    assert memory.available() == 8_000_000 * 1024
    container = {"max": "4000000000\n", "current": "1500000000\n", "stat": "anon 5\ninactive_file 500000000\n"}
    told(monkeypatch, meminfo=meminfo, **container)
    assert memory.available() == 3_000_000_000  # cached files make room
    told(monkeypatch, meminfo=meminfo, **{**container, "max": "max\n"})
    assert memory.available() == 8_000_000 * 1024
    told(monkeypatch, meminfo=meminfo, **{**container, "current": "9000000000\n"})
    assert memory.available() == 0  # a limit that was lowered under us


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such limits on Windows")
def test_the_limit_on_the_address_space_counts_beyond_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    import resource

    told(monkeypatch, meminfo="MemAvailable: 8000000 kB\n", statm="1000 500 100 1 0 300 0\n")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (2 * GIB, resource.RLIM_INFINITY))
    assert memory.available() == 2 * GIB - 1000 * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(sys.platform == "win32", reason="there is no sysconf on Windows")
def test_a_system_that_tells_nothing_has_its_whole_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch)
    assert memory.available() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="needs Linux")
def test_files_that_cannot_be_read_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert memory._read(str(tmp_path / "binary")) == memory._read(str(tmp_path / "nowhere")) == ""
    assert memory._read("/proc/meminfo") != ""


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (99.5 * MIB, "99.5 MiB"),
        (100 * MIB, "100 MiB"),
        (3 * 2**40, "3.0 TiB"),
        (2.0**70, "1048576 PiB"),
    ],
)
def test_sizes_are_written_for_people(size: float, text: str) -> None:
    assert memory.human(size) == text


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="limits of the allocator of glibc")
def test_freed_blocks_are_kept() -> None:
    """After the call, blocks of 40 MiB in total are freed and allocated again without new pages."""
    code = """
import ctypes, resource
from fathomless.system import memory

c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]

def pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [c.malloc(1 << 20) for _ in range(40)]
    for block in blocks:
        ctypes.memset(block, 1, 1 << 20)
    for block in blocks:
        c.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

plain = [pages() for _ in range(4)][-1]
memory.keep_freed()
kept = [pages() for _ in range(4)][-1]
print(plain, kept)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    plain, kept = map(int, done.stdout.split())
    assert plain > 5000
    assert kept < 500
