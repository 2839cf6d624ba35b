import errno
import io as stdio
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fathomless.system import io
from fathomless.system.errors import DataError, FileError

TENSORS = {
    "w": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "zero-d": torch.tensor(2.5, dtype=torch.float64),
    "flags": torch.tensor([True, False]),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "count": torch.tensor([2**62, -1]),
    "none": torch.empty(0, 3),
}


def small(folder, version=1, size=64):
    return io.save(folder, kind="model", tensors={"w": torch.full((size,), float(version))}, meta={"v": version})


def version_in(folder):
    """Return the version, after checking that tensors and metadata belong together."""
    saved = io.load(folder, kinds={"model"})
    assert set(saved.tensors["w"].tolist()) == {float(saved.meta["v"])}
    return saved.meta["v"]


def files(folder):
    return sorted(path.name for path in Path(folder).iterdir())


# --- round trips


def test_tensors_of_all_kinds_round_trip_bit_for_bit(tmp_path):
    saved = io.load(io.save(tmp_path / "m", kind="model", tensors=TENSORS, meta={}), kinds={"model"})
    assert saved.tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert saved.tensors[name].dtype == tensor.dtype
        assert saved.tensors[name].shape == tensor.shape
        assert torch.equal(saved.tensors[name], tensor)


def test_views_tied_and_conjugate_tensors_are_saved_as_values(tmp_path):
    base = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    turned = torch.complex(base, base).conj()
    tensors = {"a": base, "b": base, "t": base.T, "row": base[1], "p": torch.nn.Parameter(base), "c": turned}
    loaded = io.load(io.save(tmp_path, kind="m", tensors=tensors, meta={}), kinds={"m"}).tensors
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor.detach())
        assert loaded[name].is_contiguous()
        assert not loaded[name].requires_grad
    assert not torch.equal(loaded["a"].add_(1), loaded["b"])  # writable, and no longer tied


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=30, deadline=None)
@given(meta=st.dictionaries(st.text(), json_values, max_size=4))
def test_metadata_round_trips_with_types(meta):
    with tempfile.TemporaryDirectory() as folder:
        back = io.load(io.save(folder, kind="m", tensors={}, meta=meta), kinds=["m"]).meta
    assert back == meta
    assert json.dumps(back, sort_keys=True) == json.dumps(meta, sort_keys=True)  # 1 and 1.0 and -0.0 differ here


def test_numpy_scalars_and_tuples_become_plain(tmp_path):
    meta = {"i": np.int32(3), "f": np.float32(0.5), "b": np.bool_(True), "s": np.str_("x"), "t": (1, (2,))}
    back = io.load(io.save(tmp_path, kind="m", tensors={}, meta=meta), kinds=["m"]).meta
    assert back == {"i": 3, "f": 0.5, "b": True, "s": "x", "t": [1, [2]]}
    assert [type(back[k]) for k in "ifbs"] == [int, float, bool, str]


def test_same_input_gives_same_bytes(tmp_path):
    io.save(tmp_path / "a", kind="m", tensors=TENSORS, meta={"x": 1, "y": 2})
    io.save(tmp_path / "b", kind="m", tensors=dict(reversed(TENSORS.items())), meta={"x": 1, "y": 2})
    assert files(tmp_path / "a") == files(tmp_path / "b")
    for name in files(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_order_of_metadata_is_kept(tmp_path):
    """Or a run that is resumed would write its history with other columns first."""
    for meta in ({"x": 1, "y": {"b": 1, "a": 2}}, {"y": {"a": 2, "b": 1}, "x": 1}):
        found = io.load(io.save(tmp_path / "a", kind="m", tensors={}, meta=meta), kinds=["m"]).meta
        assert json.dumps(found) == json.dumps(meta)


def test_versions_are_recorded(tmp_path):
    written_by = io.load(small(tmp_path), kinds=["model"]).written_by
    assert set(written_by) == {"fathomless", "torch", "numpy", "python"}
    assert written_by["torch"] == torch.__version__


def test_saving_again_replaces_and_leaves_foreign_files_alone(tmp_path):
    small(tmp_path, 1)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "tensors.partial").write_text("left by a crash")
    small(tmp_path, 2)
    assert version_in(tmp_path) == 2
    assert [n for n in files(tmp_path) if not re.fullmatch(r"tensors-[0-9a-f]{16}\.safetensors", n)] == [
        "manifest.json",
        "notes.txt",
    ]
    assert len(files(tmp_path)) == 3


# --- what cannot be saved


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        ({"a": [1.0, float("nan")]}, r"meta\['a'\]\[1\] is nan"),
        ({"a": np.float64("inf")}, "is inf"),
        ({1: 2}, "keys must be text"),
        ({"a": np.zeros(2)}, "save arrays as tensors"),
        ({"a": 10**5000}, "JSON"),
    ],
)
def test_metadata_that_json_cannot_hold_is_refused(tmp_path, meta, words):
    small(tmp_path)
    with pytest.raises(DataError, match=words):
        io.save(tmp_path, kind="model", tensors={}, meta=meta)
    assert version_in(tmp_path) == 1


def test_metadata_that_contains_itself_is_refused(tmp_path):
    meta = {}
    meta["self"] = meta
    with pytest.raises(DataError, match="nested deeper"):
        io.save(tmp_path, kind="m", tensors={}, meta=meta)


def test_metadata_that_could_not_be_loaded_is_refused(tmp_path):
    with pytest.raises(DataError, match="make long series tensors"):
        io.save(tmp_path, kind="m", tensors={}, meta={"text": "x" * (33 << 20)})
    assert files(tmp_path) == []


def test_tensors_that_cannot_be_stored_are_refused(tmp_path):
    for tensor in (torch.eye(2).to_sparse(), torch.empty(2, device="meta"), np.zeros(2)):
        with pytest.raises(DataError, match="only dense tensors"):
            io.save(tmp_path, kind="m", tensors={"a": tensor}, meta={})
    with pytest.raises(DataError, match="rename"):
        io.save(tmp_path, kind="m", tensors={"__metadata__": torch.zeros(1)}, meta={})


# --- atomicity


STEPS = {"fsync": 4, "replace": 2, "open": 2}  # calls that one save makes


def fail_at(monkeypatch, name, k, code):
    """Let the k-th call of ``os.<name>`` fail as the operating system would."""
    real, calls = getattr(os, name), iter(range(1000))

    def failing(*args, **kwargs):
        if next(calls) == k:
            raise OSError(code, os.strerror(code))
        return real(*args, **kwargs)

    monkeypatch.setattr(os, name, failing)


@pytest.mark.parametrize(("name", "k"), [(name, k) for name, n in STEPS.items() for k in range(n)])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_failure_at_any_step_keeps_one_whole_version_and_no_leftovers(tmp_path, monkeypatch, name, k, code):
    small(tmp_path, 1)
    with monkeypatch.context() as patch:
        fail_at(patch, name, k, code)
        with pytest.raises(FileError, match="could not be saved") as caught:
            small(tmp_path, 2)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == code
    assert not [n for n in files(tmp_path) if n.endswith(".partial")]
    committed = (name, k) in {("fsync", 3), ("open", 1)}  # the manifest was in place already
    assert version_in(tmp_path) == (2 if committed else 1)
    assert committed or len(files(tmp_path)) == 2
    assert version_in(small(tmp_path, 3)) == 3
    assert len(files(tmp_path)) == 2


def test_steps_are_all_counted(tmp_path, monkeypatch):
    found = dict.fromkeys(STEPS, 0)

    def counted(name, real):
        def call(*args, **kwargs):
            found[name] += 1
            return real(*args, **kwargs)

        return call

    for name in STEPS:
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    small(tmp_path)
    assert found == STEPS


def test_full_disk_while_writing_says_so(tmp_path, monkeypatch):
    small(tmp_path, 1)

    class Full(stdio.FileIO):
        def write(self, data):
            super().write(data[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    real = open
    monkeypatch.setattr(io, "open", lambda p, m="r", **k: Full(p, m) if "x" in m else real(p, m, **k), raising=False)
    with pytest.raises(FileError, match=r"No space left.*untouched.*free some space"):
        small(tmp_path, 2)
    monkeypatch.undo()
    assert version_in(tmp_path) == 1
    assert len(files(tmp_path)) == 2


def test_interrupt_between_commit_and_cleanup_keeps_the_new_thing(tmp_path, monkeypatch):
    small(tmp_path, 1)
    real = os.replace

    def interrupted(source, target):
        real(source, target)
        if Path(target).name == "manifest.json":
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small(tmp_path, 2)
    assert version_in(tmp_path) == 2


def test_file_systems_without_directory_sync_are_accepted(tmp_path, monkeypatch):
    real = os.fsync

    def picky(handle):
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EINVAL, "no")
        real(handle)

    monkeypatch.setattr(os, "fsync", picky)
    assert version_in(small(tmp_path, 1)) == 1


KILLER = """
import os, random, signal, sys, time
import torch
from fathomless.system import io

folder = sys.argv[1]

def save(v):
    io.save(folder, kind="model", tensors={"w": torch.full((20_000,), float(v))}, meta={"v": v})

def check():
    saved = io.load(folder, kinds={"model"})
    assert set(saved.tensors["w"].tolist()) == {float(saved.meta["v"])}, saved.meta
    return saved.meta["v"]

def suicide(name, k):
    real, left = getattr(os, name), [k]
    def call(*args, **kwargs):
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return real(*args, **kwargs)
    setattr(os, name, call)

def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return pid

save(0)
for name, steps in (("fsync", 4), ("replace", 2), ("open", 2)):
    for k in range(steps):  # killed just before the k-th call
        last = check()
        pid = in_child(lambda: (suicide(name, k), save(last + 1)))
        assert os.WIFSIGNALED(os.waitpid(pid, 0)[1])
        committed = (name, k) in {("fsync", 3), ("open", 1)}
        assert check() == last + committed, (name, k)

def endless():
    v = check()
    while True:
        v += 1
        save(v)

rng = random.Random(0)
start = check()
for _ in range(15):
    last = check()
    pid = in_child(endless)
    try:
        time.sleep(0.005 + 0.06 * rng.random())
        seen = max([check() for _ in range(3)])  # a reader beside the writer
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert check() >= seen >= last
assert check() > start
save(-1)
print(len(os.listdir(folder)), check())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="uses fork and SIGKILL")
def test_sigkill_at_any_moment_leaves_a_whole_version(tmp_path):
    source = str(Path(io.__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(KILLER), str(tmp_path / "m")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["2", "-1"]


@pytest.mark.parametrize(("owner", "name"), [(io, "_read_tensors"), (Path, "resolve")])
def test_reader_follows_a_writer_that_replaces_what_it_reads(tmp_path, monkeypatch, owner, name):
    small(tmp_path, 1)
    real, raced = getattr(owner, name), []

    def slow(*args):
        if not raced:
            raced.append(small(tmp_path, 2))  # the file was not yet, or was already, seen to exist
        return real(*args)

    monkeypatch.setattr(owner, name, slow)
    assert version_in(tmp_path) == 2


# --- what is refused on loading


def rewrite(folder, change, checksum=True):
    """Change the manifest as a careful forger would (with a new checksum), or a careless one."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    if checksum:
        manifest["checksum"] = io._checksum({k: v for k, v in manifest.items() if k != "checksum"})
    path.write_text(json.dumps(manifest))


def put(key, value, *, inside=None):
    return lambda manifest: (manifest if inside is None else manifest[inside]).__setitem__(key, value)


@pytest.mark.parametrize(
    ("change", "checksum", "words"),
    [
        (put("v", 9, inside="meta"), False, "altered"),
        (put("format", 2), False, "newer version of fathomless .*upgrade"),
        (put("format", 0), True, "formats start at 1"),
        (put("format", True), True, "is bool, expected int"),
        (put("kind", "chain"), True, "holds a 'chain'; allowed here: 'forest', 'model'"),
        (put("meta", []), True, "'meta' is list, expected dict"),
        (put("tensors", None), True, "'tensors' is NoneType"),
        (lambda m: m.pop("written_by"), True, "lacks 'written_by'"),
        (lambda m: m["tensors"].pop("sha256"), True, "lacks 'tensors.sha256'"),
        (put("bytes", "7", inside="tensors"), True, "'tensors.bytes' is str"),
        (put("bytes", 7, inside="tensors"), True, "the manifest says 7"),
        (put("sha256", "0" * 64, inside="tensors"), True, "checksum does not match"),
        (put("file", "../outside.safetensors", inside="tensors"), True, "never written by us"),
        (put("file", "/etc/passwd", inside="tensors"), True, "never written by us"),
        (put("file", "tensors-0000000000000000.safetensors", inside="tensors"), True, "is missing"),
    ],
)
def test_altered_manifest_is_refused(tmp_path, change, checksum, words):
    rewrite(small(tmp_path), change, checksum)
    with pytest.raises(FileError, match=words):
        io.load(tmp_path, kinds={"model", "forest"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[1]", "holds a list"),
        (b'{"format": NaN}', "not valid JSON"),
        (b"[" * 200_000, "not valid JSON"),
        (b'{"a":' * 100_000, "not valid JSON"),
        (b"1" * 5000, "not valid JSON"),
        (b" " * ((32 << 20) + 1), "larger than"),
    ],
)
def test_manifest_that_is_not_one_is_refused(tmp_path, text, words):
    small(tmp_path)
    (tmp_path / "manifest.json").write_bytes(text)
    with pytest.raises(FileError, match=words):
        io.load(tmp_path, kinds={"model"})


def test_overflowing_number_in_manifest_is_refused(tmp_path):
    small(tmp_path)
    path = tmp_path / "manifest.json"
    path.write_text(path.read_text().replace('"v": 1', '"v": 1e999'))
    with pytest.raises(FileError, match="altered"):
        io.load(tmp_path, kinds={"model"})


def test_missing_folder_file_and_manifest_are_told_apart(tmp_path):
    (tmp_path / "file").write_text("")
    for name, words in (("absent", "no folder"), ("file", "is a file"), ("", "holds no manifest")):
        with pytest.raises(FileError, match=words):
            io.load(tmp_path / name, kinds={"model"})


@pytest.fixture
def tensors_file(tmp_path):
    return next(small(tmp_path).glob("*.safetensors"))


def test_tensors_file_cut_off_flipped_or_replaced_is_refused(tmp_path, tensors_file, monkeypatch):
    data = tensors_file.read_bytes()
    tensors_file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(FileError, match="checksum does not match"):
        io.load(tmp_path, kinds={"model"})
    tensors_file.write_bytes(data[:-1])
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail("read before its size was checked"))
    with pytest.raises(FileError, match=f"has {len(data) - 1} bytes, the manifest says {len(data)}"):
        io.load(tmp_path, kinds={"model"})


def test_file_that_is_not_safetensors_is_refused(tmp_path, tensors_file):
    data = b"\xff" * 100
    digest = io.hashlib.sha256(data).hexdigest()
    tensors_file.write_bytes(data)
    rewrite(tmp_path, lambda m: m["tensors"].update(sha256=digest, bytes=len(data)))
    with pytest.raises(FileError, match="not a safetensors file"):
        io.load(tmp_path, kinds={"model"})


def test_link_out_of_the_folder_is_refused(tmp_path):
    inside = small(tmp_path / "inside")
    tensors = next(inside.glob("*.safetensors"))
    tensors.rename(tmp_path / tensors.name)
    tensors.symlink_to(tmp_path / tensors.name)
    with pytest.raises(FileError, match="link that leaves the folder"):
        io.load(inside, kinds={"model"})
    (tmp_path / "alias").symlink_to(small(tmp_path / "other"))
    assert version_in(tmp_path / "alias") == 1  # a link to the whole folder is fine


def test_planted_link_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "m").mkdir()
    for name in ("tensors.partial", "manifest.json.partial", "manifest.json"):
        (tmp_path / "m" / name).symlink_to(victim)
    with pytest.raises(FileError, match="not written by fathomless"):
        small(tmp_path / "m")
    (tmp_path / "m" / "manifest.json").unlink()
    small(tmp_path / "m")
    assert victim.read_text() == "precious"


def test_manifest_of_another_program_is_not_replaced(tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "my web page"}')
    for attempt in (small, io.writable):
        with pytest.raises(FileError, match="not written by fathomless"):
            attempt(tmp_path)
    assert "web page" in (tmp_path / "manifest.json").read_text()


# --- writable


def test_writable_accepts_what_can_be_written_and_leaves_no_trace(tmp_path):
    assert io.writable(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    io.writable(tmp_path)
    assert files(tmp_path) == []
    assert not io.holds(tmp_path)
    assert io.holds(io.writable(small(tmp_path)))


def test_writable_refuses_files_and_what_lies_below_them(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FileError, match="cannot be written"):
            io.writable(path)
        with pytest.raises(FileError):
            small(path)


@pytest.mark.parametrize(
    ("code", "advice"),
    [(errno.EACCES, "permission"), (errno.EROFS, "read-only"), (errno.ENOSPC, "free some space")],
)
def test_writable_says_why_not(tmp_path, monkeypatch, code, advice):
    def refuse(**_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(FileError, match=advice):
        io.writable(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="permissions do not bind the superuser")
def test_folder_without_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(FileError, match="permission"):
        io.writable(tmp_path)
    with pytest.raises(FileError, match="permission"):
        small(tmp_path)


# --- text, JSON, removal


def test_text_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    io.write_text(tmp_path / "deep" / "t.txt", "old ✓")
    assert (tmp_path / "deep" / "t.txt").read_text(encoding="utf-8") == "old ✓"

    def refuse(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(FileError, match=r"free some space|untouched"):
        io.write_text(tmp_path / "deep" / "t.txt", "new")
    assert (tmp_path / "deep" / "t.txt").read_text(encoding="utf-8") == "old ✓"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["t.txt"]


def test_text_is_appended(tmp_path):
    for line in ("a\n", "b\n"):
        io.append_text(tmp_path / "log", line)
    assert (tmp_path / "log").read_text() == "a\nb\n"
    with pytest.raises(FileError, match="could not be written"):
        io.append_text(tmp_path, "a folder")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "NaN", "\x00"])
def test_json_that_is_not_json_is_refused(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(FileError, match="not valid JSON"):
        io.read_json(tmp_path / "run.json")


def test_removal_takes_our_files_alone(tmp_path):
    small(tmp_path / "a")
    small(tmp_path / "b")
    (tmp_path / "b" / "notes.txt").write_text("mine")
    for name in ("a", "b", "absent"):
        io.remove(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["notes.txt"]


def test_a_file_in_the_place_of_the_folder_is_named(tmp_path):
    (tmp_path / "model").write_text("a file")
    with pytest.raises(FileError, match="model is a file; choose another folder"):
        small(tmp_path / "model")
