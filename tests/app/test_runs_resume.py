"""The run folder: how it is begun, gone on with and overwritten, and what it refuses."""

import shlex
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from commands import Call, Said
from fathomless.app import manifests, runs
from fathomless.app.page import report
from fathomless.inference.runs.callbacks import History
from fathomless.inference.runs.run import Run
from fathomless.system import io
from fathomless.system.errors import DivergenceError
from run_folders import FIT, N, events, model_of, write_table

# fits are short on purpose
pytestmark = [
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning"),
    pytest.mark.usefixtures("data_csv"),
]


def interrupted(monkeypatch: pytest.MonkeyPatch, at: int, act: Callable[[], object]) -> None:
    """Let something happen in the next training, when it has done so many epochs."""

    class Interrupting(History):
        def __call__(self, run: Run) -> None:
            super().__call__(run)
            if run.epoch == at:
                act()

    monkeypatch.setattr("fathomless.inference.runs.callbacks.History", Interrupting)


def paused(call: Call, *words: Any, at: int = 8) -> Said:
    """Run a fit that a signal interrupts."""
    with pytest.MonkeyPatch.context() as patch:
        interrupted(patch, at, lambda: signal.raise_signal(signal.SIGINT))
        return call(*words)


# ------------------------------------------------------------------------------------------- beginning, going on


def test_a_run_that_is_there_needs_a_word(call: Call) -> None:
    call(*FIT)
    before = model_of("run")
    said = call(*FIT)
    assert (said.code, said.err) == (
        2,
        "fathomless fit: error: run already contains a finished run; add --overwrite to replace it, or choose another "
        "--out\n",
    )
    assert model_of("run") == before


def test_an_unfinished_run_that_is_there_may_be_resumed(call: Call) -> None:
    paused(call, *FIT)
    said = call(*FIT)
    assert (said.code, said.err) == (
        2,
        "fathomless fit: error: run already contains an unfinished run; add --resume to continue it, --overwrite to "
        "replace it, or choose another --out\n",
    )


def test_resuming_nothing_starts(call: Call) -> None:
    assert call(*FIT, "--resume").code == 0
    assert events("run") == ["started", "finished"]


def test_resuming_a_finished_run_says_so_and_changes_nothing(call: Call) -> None:
    call(*FIT)
    before = {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")}
    said = call(*FIT, "--resume")
    assert (said.code, said.out) == (0, "")
    assert said.err == "note: the run in run is already finished; use --overwrite to repeat it\n"
    assert {path: path.stat().st_mtime_ns for path in Path("run").rglob("*")} == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("at", [8, 16])
def test_an_interrupted_fit_goes_on_to_the_same_bytes(
    call: Call, monkeypatch: pytest.MonkeyPatch, number: int, at: int
) -> None:
    call(*FIT)
    shutil.move("run", "whole")
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        interrupted(patch, at, lambda: signal.raise_signal(number))
        said = call(*FIT)
    assert signal.getsignal(number) is before
    assert said.code == 128 + number
    assert said.out == ""
    first, last = said.err.strip().splitlines()
    assert first == "fathomless: stopping after this epoch, with a checkpoint; a second signal stops immediately"
    assert last == (
        f"fathomless fit: the fit was paused after epoch {at} of 24. To resume: fathomless fit --resume "
        "data.csv --target price --out run --epochs 24 --width 4 --quiet --cv 2"
    )
    assert {path.name for path in Path("run").iterdir()} == {
        "unfinished.json",
        "checkpoint",
        "history.csv",
        "history.jsonl",
        "log.jsonl",
    }
    assert manifests.state("run") == "unfinished"
    assert (
        "the run in run is not finished; repeat its fit command with --resume" in call("predict", "run", "data.csv").err
    )
    assert call(*FIT, "--resume").code == 0
    assert model_of("run") == model_of("whole")
    assert Path("run/run.json").read_bytes() == Path("whole/run.json").read_bytes()
    assert not {"unfinished.json", "checkpoint"} & {path.name for path in Path("run").iterdir()}
    assert events("run") == ["started", "paused", "resumed", "finished"]


def test_a_run_may_pause_more_than_once(call: Call) -> None:
    call(*FIT)
    shutil.move("run", "whole")
    assert paused(call, *FIT, at=8).code == 130
    assert paused(call, *FIT, "--resume", at=16).code == 130
    assert call(*FIT, "--resume").code == 0
    assert model_of("run") == model_of("whole")
    assert events("run") == ["started", "paused", "resumed", "paused", "resumed", "finished"]


def test_a_second_signal_stops_at_once(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        interrupted(patch, 16, twice)
        said = call(*FIT)
    assert said.code == 128 + signal.SIGTERM
    assert "stopped immediately; the last checkpoint is kept. To resume: fathomless fit --resume" in said.err
    assert io.load("run/checkpoint", kinds={"checkpoint"}).meta["run"]["epoch"] == 5  # the first look
    assert call(*FIT, "--resume").code == 0


def test_a_signal_while_the_page_is_drawn_stops_at_once_and_the_run_can_be_ended(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    call(*FIT)
    shutil.move("run", "whole")
    with monkeypatch.context() as patch:
        patch.setattr(report, "render", lambda page: signal.raise_signal(signal.SIGTERM))
        said = call(*FIT)
    assert said.code == 143
    assert "stopped immediately" in said.err
    assert manifests.state("run") == "unfinished"
    assert call(*FIT, "--resume").code == 0
    assert model_of("run") == model_of("whole")
    assert events("run") == ["started", "paused", "resumed", "finished"]


def test_the_command_to_go_on_with_survives_names_that_the_shell_would_read(call: Call) -> None:
    write_table("my data; rm *.csv")
    two = ["--cv", "2", "--quiet"]
    said = paused(
        call, "fit", "--target", "price", "--out", "a 'run'", "--epochs", "24", *two, "--", "my data; rm *.csv"
    )
    assert said.code == 130
    program, *words = shlex.split(said.err.partition("To resume: ")[2])
    assert program == "fathomless"
    assert call(*words).code == 0
    assert manifests.state("a 'run'") == "finished"


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        (["--seed", "1"], "--seed (here 1, there 0)"),
        (["--width", "5"], "--width (here 5, there 4)"),
        (["--no-calibrate"], "--calibrate (here False, there left out)"),
        (["--drop", "size"], "the columns"),
        (["--task", "classification"], "the task or the structure"),
        (["--threads", "2"], "--threads (here 2, there 1)"),
        (["--target", "size"], "the columns, --target (here price, size, there price)"),
    ],
    ids=str,
)
@pytest.mark.parametrize("finished", [False, True])
def test_only_the_same_run_is_resumed(call: Call, changes: list[str], difference: str, finished: bool) -> None:
    write_table("data.csv", price=np.arange(N) % 3)
    words = [*FIT, "--task", "regression"]
    assert (call(*words) if finished else paused(call, *words)).code == 130 * (not finished)
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    said = call(*words, "--resume", *changes)
    assert said.code == 2
    assert said.err == (
        f"fathomless fit: error: the run in run differs from this one in {difference}; repeat the original command, "
        "or give another --out, or --overwrite\n"
    )
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


STEADY = ["--adam.schedule", "constant", "--cv", "1", "--structure-from", "elbo", "--elbo.rate", "0.3"]


def test_a_finished_run_at_steady_rates_can_be_lengthened(call: Call) -> None:
    words = [*FIT, *STEADY]
    call(*words)
    longer = [*words, "--epochs", "48"]
    assert paused(call, *longer, "--resume", at=32).code == 130
    assert call(*longer, "--resume").code == 0
    assert events("run") == ["started", "finished", "lengthened", "paused", "resumed", "finished"]
    assert call(*longer, "--out", "whole").code == 0
    assert model_of("run") == model_of("whole")
    less = call(*words, "--epochs", "16", "--resume")
    assert (less.code, "--epochs 16 was given, and the checkpoint has 48 epochs" in less.err) == (2, True)
    assert manifests.state("run") == "finished"
    assert model_of("run") == model_of("whole")


def test_a_run_that_was_planned_for_its_epochs_is_not_lengthened(call: Call) -> None:
    call(*FIT)
    before = model_of("run")
    said = call(*FIT, "--resume", "--epochs", "48")
    assert said.code == 2
    assert "is finished and cannot be extended" in said.err
    assert "Give --overwrite or another --out" in said.err
    assert (model_of("run"), manifests.state("run")) == (before, "finished")


def test_a_run_is_not_resumed_with_other_data(call: Call) -> None:
    paused(call, *FIT)
    write_table("data.csv", seed=1)
    said = call(*FIT, "--resume")
    assert said.code == 2
    assert "differs from this one in the data; repeat the original command" in said.err


def test_a_file_that_moved_is_the_same_data(call: Call) -> None:
    paused(call, *FIT)
    shutil.move("data.csv", "moved.csv")
    words = ["moved.csv" if word == "data.csv" else word for word in FIT]
    assert call(*words, "--resume").code == 0


def test_a_resumed_run_keeps_its_threads(call: Call) -> None:
    threads: list[int] = []
    assert paused(call, *FIT, "--threads", "2").code == 130
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        interrupted(patch, 16, lambda: threads.append(torch.get_num_threads()))
        assert call(*FIT, "--resume").code == 0
    assert threads == [2]
    found = manifests.read_manifest("run")
    assert found is not None
    assert found.threads == 2


def test_a_damaged_run_is_refused_not_resumed(call: Call) -> None:
    paused(call, *FIT)
    Path("run/unfinished.json").write_text("{", encoding="utf-8")
    said = call(*FIT, "--resume")
    assert said.code == 2
    assert "unfinished.json is not valid JSON" in said.err
    assert call(*FIT, "--overwrite").code == 0


def test_a_damaged_checkpoint_is_refused_and_stays(call: Call) -> None:
    paused(call, *FIT)
    Path("run/checkpoint/manifest.json").write_text("{}", encoding="utf-8")
    said = call(*FIT, "--resume")
    assert said.code == 2
    assert "checkpoint" in said.err
    assert manifests.state("run") == "unfinished"


# ------------------------------------------------------------------------------------------------- overwriting


def predictions(call: Call) -> str:
    said = call("predict", "run", "data.csv")
    assert said.code == 0
    return said.out


def test_a_run_that_is_overwritten_keeps_its_old_model_until_the_new_one_is_there(call: Call) -> None:
    new = [*FIT, "--seed", "1"]
    call(*new)
    shutil.move("run", "whole")
    call(*FIT)
    old = predictions(call)
    assert paused(call, *new, "--overwrite").code == 130
    assert predictions(call) == old
    found = manifests.read_manifest("run")
    assert found is not None
    assert found.seed == 0
    assert call("report", "run").code == 0
    assert call(*new, "--resume").code == 0
    assert model_of("run") == model_of("whole")
    assert predictions(call) != old


def test_a_run_whose_overwriting_fails_keeps_its_old_model(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def diverge() -> None:
        raise DivergenceError("the evidence bound is nan")

    call(*FIT)
    old = predictions(call)
    with monkeypatch.context() as patch:
        interrupted(patch, 16, diverge)
        said = call(*FIT, "--seed", "1", "--overwrite")
    assert (said.code, said.err) == (2, "fathomless fit: error: the evidence bound is nan\n")
    assert predictions(call) == old
    assert events("run") == ["started", "finished", "started", "failed"]
    assert call(*FIT, "--seed", "1", "--resume").code == 0
    assert events("run")[-2:] == ["resumed", "finished"]


def test_overwriting_removes_what_was_found_of_the_old_model(call: Call) -> None:
    call(*FIT)
    write_table("test.csv", seed=1)
    call("evaluate", "run", "test.csv")
    assert {found.name for found in runs.evaluations("run")} == {"test.csv", "out-of-fold rows", "training rows"}
    call(*FIT, "--seed", "1", "--overwrite")
    assert {found.name for found in runs.evaluations("run")} == {"out-of-fold rows", "training rows"}


def test_overwriting_leaves_other_files_alone(call: Call) -> None:
    call(*FIT)
    Path("run/notes.txt").write_text("mine", encoding="utf-8")
    call(*FIT, "--seed", "1", "--overwrite")
    assert Path("run/notes.txt").read_text(encoding="utf-8") == "mine"
    assert len(list(Path("run").glob("tensors-*"))) == 1


def test_overwriting_an_unfinished_run_begins_anew(call: Call) -> None:
    paused(call, *FIT, at=16)
    call(*FIT, "--seed", "1", "--overwrite")
    shutil.move("run", "whole")
    call(*FIT, "--seed", "1")
    assert model_of("run") == model_of("whole")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning-rate", "-1"], "--learning-rate -1.0 was given"),
        (["--device", "bogus"], "--device bogus was given"),
        (["--depth-law", "100000"], "up to 1,000 are allowed"),
    ],
    ids=str,
)
def test_a_run_that_fails_before_its_first_checkpoint_is_not_unfinished(
    call: Call, words: list[str], message: str
) -> None:
    said = call(*FIT, *words)
    assert said.code == 2
    assert message in said.err
    assert manifests.state("run") == "empty"
    assert events("run") == ["started", "failed"]
    assert call(*FIT).code == 0


def test_a_tensorboard_that_is_not_there_stops_no_later_run(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    said = call(*FIT, "--tensorboard")
    assert (said.code, "pip install 'fathomless[track]'" in said.err) == (2, True)
    assert manifests.state("run") == "empty"


def test_an_option_that_is_out_of_range_is_refused_before_anything_is_written(call: Call) -> None:
    assert call(*FIT, "--width", "0").code == 2
    assert not Path("run").exists()


def test_a_folder_of_another_program_is_left_alone(call: Call) -> None:
    Path("run").mkdir()
    Path("run/manifest.json").write_text('{"name": "a web page"}', encoding="utf-8")
    for words in ([], ["--resume"], ["--overwrite"]):
        said = call(*FIT, *words)
        assert said.code == 2
        assert "run/manifest.json was not written by fathomless; choose another folder or move it away" in said.err
    assert [path.name for path in Path("run").iterdir()] == ["manifest.json"]
