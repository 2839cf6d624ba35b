"""Robustness to full or read-only disks, killed processes and damaged files."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fathomless.app.cli import main

sys.path.insert(0, str(Path(__file__).parent))
import fuzz
import storm

# fits are short on purpose, and of an option without effect the command tells in a note
pytestmark = [
    pytest.mark.filterwarnings(f"ignore::fathomless.system.errors.{kind}")
    for kind in ("ConvergenceWarning", "DataWarning")
]


def small_disk(place: Path, size: str) -> Iterator[Path]:
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", place], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("needs the right to mount a small file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=False)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Return a separate file system of one megabyte."""
    yield from small_disk(tmp_path / "disk", "1m")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    storm.table(tmp_path / "table.csv")
    return tmp_path / "table.csv"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return runs for fuzzing, in the folder of their table."""
    return fuzz.prepare(tmp_path_factory.mktemp("fuzzed"))


@pytest.fixture
def runs(prepared: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """Return a copy of the folder, since commands write to it."""
    shutil.copytree(prepared["side"].parent, tmp_path, dirs_exist_ok=True)
    return {name: tmp_path / name for name in prepared}


def fit(table: Path, out: Path, *words: str) -> list[str]:
    roles = ["--target", "side", "--drop", "height", "--out", str(out)]
    return ["fit", str(table), *roles, "--epochs", "4", "--cv", "3", *words]


def test_a_disk_that_fills_up_costs_neither_the_old_model_nor_the_checkpoint(
    disk: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = disk / "run"
    assert main([*fit(table, out, "--width", "8"), "--quiet"]) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.suffix in {".json", ".safetensors"}}
    capsys.readouterr()
    # a far larger network: its checkpoint cannot be written
    assert main([*fit(table, out, "--width", "200"), "--overwrite", "--quiet"]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("note: ")]
    assert len(said) == 1
    assert "No space left" in said[0]
    assert "free some space" in said[0]
    after = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert {name: after[name] for name in before} == before
    assert not list(disk.rglob("*.partial"))
    assert main(["predict", str(out), str(table), "--out", str(tmp_path / "p.csv")]) == 0


def test_predictions_that_do_not_fit_leave_nothing_behind(disk: Path, table: Path, tmp_path: Path) -> None:
    assert main([*fit(table, tmp_path / "run", "--width", "8"), "--quiet"]) == 0
    rows = table.read_text().splitlines()
    (tmp_path / "many.csv").write_text("\n".join([rows[0], *rows[1:] * 200]) + "\n")
    (disk / "p.csv").write_text("old")
    assert main(["predict", str(tmp_path / "run"), str(tmp_path / "many.csv"), "--out", str(disk / "p.csv")]) == 2
    assert [path.name for path in disk.iterdir()] == ["p.csv"]
    assert (disk / "p.csv").read_text() == "old"


RUN = ["fit", "../table.csv", "--out", "run", "--target", "side", "--depth-law", "poisson", "--epochs", "30"]
RUN += ["--structure-from", "elbo", "--elbo.rate", "1", "--width", "6", "--batch-size", "32", "--patience", "none"]
RUN += ["--resume", "--checkpoint.seconds", "0", "--log-json"]


def start(home: Path) -> "subprocess.Popen[str]":
    """Start a fit of a table in the parent folder, which prints its epochs."""
    home.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "fathomless.app.cli", *RUN]
    one = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=home, env=one, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(home: Path, capsys: pytest.CaptureFixture[str]) -> list[int]:
    """Finish the fit in this process; return the number of epochs."""
    home.mkdir(parents=True, exist_ok=True)
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setattr("fathomless.app.page.report.render", lambda page: "page")
        code = main(RUN)
    out, err = capsys.readouterr()
    assert code == 0, err
    events = [json.loads(line) for line in out.splitlines()]
    return [event["epoch"] for event in events if event["event"] == "epoch"]


def contents(run: Path) -> dict[str, bytes]:
    """Return every file of a run by name, without the log, which contains times."""
    files = (path for path in sorted(run.rglob("*")) if path.is_file() and path.name != "log.jsonl")
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def test_a_folder_that_turns_read_only_in_mid_run_stops_it_and_it_resumes(
    disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storm.table(tmp_path / "table.csv")
    shutil.copy(tmp_path / "table.csv", disk)
    finish(tmp_path / "whole", capsys)
    child = start(disk / "home")
    assert child.stdout is not None
    for _ in zip(range(3), child.stdout, strict=False):
        pass
    for _ in range(100):  # refused while a file is just being written
        if not subprocess.run(["mount", "-o", "remount,ro", disk], check=False).returncode:
            break
        time.sleep(0.05)
    _, err = child.communicate()
    subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
    said = [line for line in err.splitlines() if not line.startswith("note: ")]
    assert child.returncode == 2, err
    assert len(said) == 1
    assert "read-only" in said[0]
    assert finish(disk / "home", capsys)[0] >= 3
    assert contents(disk / "home" / "run") == contents(tmp_path / "whole" / "run")


def test_files_may_not_grow_beyond_a_limit(table: Path, tmp_path: Path) -> None:
    """Simulate a quota in a single process."""
    code = (
        "import resource, sys; from fathomless.app.cli import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, *fit(table, tmp_path / "run", "--width", "64")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ, check=False)
    assert done.returncode == 2, done.stderr
    assert "ulimit -f" in done.stderr.splitlines()[-1]
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.parametrize(("campaign", "count"), [("models", 60), ("tables", 80), ("options", 8)])
def test_damaged_input_ends_in_an_answer_or_one_line(
    campaign: str, count: int, runs: dict[str, Path], tmp_path: Path
) -> None:
    found = fuzz.campaign(campaign, count, seed=1, home=tmp_path, runs=runs)
    assert not found["faults"], json.dumps(found, indent=1)
    assert found["codes"].get(2, 0) > 0
    assert found["codes"].get(0, 0) > 0


def test_messy_tables_are_read_as_clean_ones_or_a_note_says_so(tmp_path: Path) -> None:
    found = fuzz.messes(60, seed=1, home=tmp_path)
    assert not found["faults"], json.dumps(found, indent=1)


def test_the_fuzzer_can_find_faults(runs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> str:
        raise KeyError("a fault of ours")

    module: ModuleType = sys.modules["fathomless.app.runs"]
    monkeypatch.setattr(module, "page", broken)
    assert fuzz.wrong(*fuzz.outcome(["report", str(runs["side"])]))
