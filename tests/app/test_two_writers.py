"""Two writers of a run, and runs that go on under another version of the library."""

import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Call
from fathomless.families import registry
from fathomless.families.depth.estimator import UnboundedDepthRegressor
from fathomless.inference.runs.run import Run
from fathomless.system import io
from fathomless.system.errors import DataWarning, PausedError
from fathomless.system.locks import LOCK, hold_folder
from run_folders import FIT, write_table

pytestmark = pytest.mark.filterwarnings("default::UserWarning")
SHORT = [*FIT, "--epochs", "2", "--cv", "2"]


def test_a_run_that_is_being_written_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fathomless.app.commands.fitted._WAIT", 0.1)
    write_table("data.csv")
    assert call(*SHORT).code == 0
    assert not (tmp_path / "run" / LOCK).exists()
    before = {path.name: path.stat().st_mtime_ns for path in Path("run").iterdir()}
    compare = ["compare", "data.csv", "--target", "price", "--methods", "constant", "--folds", "2", "--out", "run"]
    with hold_folder("run"):
        for words in ([*SHORT, "--overwrite"], [*SHORT, "--resume"], ["evaluate", "run", "data.csv"], compare):
            said = call(*words)
            assert said.code == 2
            assert f"run is being written by another process (number {os.getpid()} on" in said.err
        assert call("predict", "run", "data.csv", "--out", "said.csv").code == 0  # which only reads
    assert {path.name: path.stat().st_mtime_ns for path in Path("run").iterdir()} == before
    assert call("evaluate", "run", "data.csv").code == 0


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, fsync = tmp_path / "file", os.fsync

    def second(handle: int) -> None:
        fsync(handle)
        if threading.current_thread() is threading.main_thread():
            other = threading.Thread(target=io.write_bytes, args=(path, b"second"))
            other.start()
            other.join()
            (tmp_path / "file.partial").write_bytes(b"of a third")

    monkeypatch.setattr(os, "fsync", second)
    with pytest.raises(io.FileError, match="being written by another process"):
        io.write_bytes(path, b"first")
    assert path.read_bytes() == b"second"


def versions() -> dict[str, str]:
    return {"fathomless": "9.9.9", "torch": "2.99", "numpy": np.__version__, "python": "3.99"}


@pytest.mark.parametrize("structure", ["depth", "graph"])
def test_a_run_that_goes_on_under_other_versions_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call, structure: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_table("data.csv")
    chains = ["--structure", "graph", "--sweeps", "24", "--states", "4", "--networks", "4", "--chains", "2", "--quiet"]
    chains += ["--engine", "numpy"]  # which is not compiled first
    words = SHORT if structure == "depth" else ["fit", "data.csv", "--target", "price", "--out", "run", *chains]
    words = [*words, "--checkpoint.seconds", "0"]
    remove, save = io.remove, io.save

    def stopped(folder: Any, **given: Any) -> Path:
        found = save(folder, **given)
        if given["kind"] == "checkpoint":
            raise KeyboardInterrupt
        return found

    monkeypatch.setattr(io, "versions", versions)
    monkeypatch.setattr(io, "save", stopped)
    assert call(*words).code == 130
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert io.remove is remove
    said = call(*words, "--resume")
    assert said.code == 0, said.err
    assert "was written by fathomless 9.9.9 (now" in said.err
    assert registry.load("run").fit_diagnostics_.resumed == (versions(),)
    notes = json.loads((tmp_path / "run" / "run.json").read_text())["notes"]
    assert [note for note in notes if "done under fathomless 9.9.9" in note]
    assert "9.9.9" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
def test_versions_are_kept_from_one_checkpoint_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))

    def pause(run: Run) -> None:
        run.pause = True

    def fit(**more: Any) -> UnboundedDepthRegressor:
        options: dict[str, Any] = {"width": 4, "epochs": 40, "batch_size": 20, "cv": 1, "random_state": 0}
        options |= {"checkpoint": tmp_path, "structure_from": "elbo", **more}
        return UnboundedDepthRegressor(**options).fit(X, X[:, 0])

    others = [{**versions(), "torch": name} for name in ("2.98", "2.97")]
    for number, other in enumerate(others):
        monkeypatch.setattr(io, "versions", lambda other=other: other)
        with (
            pytest.raises(PausedError) if not number else pytest.warns(DataWarning, match=r"torch 2\.98 \(now 2\.97\)")
        ):
            try:
                fit(callbacks=[pause])
            except PausedError:
                if not number:
                    raise
    monkeypatch.undo()
    with pytest.warns(DataWarning, match=r"torch 2\.97"):
        fitted = fit()
    assert list(fitted.fit_diagnostics_.resumed) == others
    assert not fit(checkpoint=None).fit_diagnostics_.resumed
