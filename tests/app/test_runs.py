"""The run folder: what is in it, how it is gone on with, and what it refuses."""

import json
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from commands import Call, Said
from fathomless.app import report, runs
from fathomless.data import files as tables
from fathomless.estimators.evaluation import evaluate
from fathomless.families.depth.estimator import UnboundedDepthRegressor
from fathomless.inference.callbacks import History
from fathomless.inference.run import Run
from fathomless.system import io
from fathomless.system.errors import DataError, DivergenceError, FileError

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

N = 80
FIT = ["fit", "data.csv", "--target", "price", "--out", "run", "--epochs", "24", "--width", "4", "--quiet"]
DONE = {"run.json", "manifest.json", "history.csv", "history.jsonl", "evaluations", "report.html", "log.jsonl"}


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a folder of its own, with a small table, and draw no pictures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "render", lambda page: f"<html>{page.title}</html>\n")
    write_table("data.csv")
    yield
    torch.set_num_threads(1)


def write_table(name: str, seed: int = 0, rows: int = N, **more: Any) -> pa.Table:
    rng = np.random.default_rng(seed)
    size, colour = rng.normal(size=rows), rng.choice(["red", "green"], rows)
    table = pa.table({"size": size, "colour": colour, "price": np.sin(2 * size) + (colour == "red"), **more})
    with tables.writer(name) as write:
        write(table)
    return table


def model_of(folder: str | Path) -> dict[str, bytes]:
    """Return all of a finished run that the same seed makes the same."""
    names = [path.name for path in Path(folder).iterdir() if path.name.startswith(("manifest", "tensors", "history"))]
    found = {name: (Path(folder) / name).read_bytes() for name in names}
    assert len(found) == 4
    return found


def events(folder: str | Path) -> list[str]:
    lines = (Path(folder) / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["event"] for line in lines]


def interrupted(monkeypatch: pytest.MonkeyPatch, at: int, act: Callable[[], object]) -> None:
    """Let something happen in the next training, when it has done so many epochs."""

    class Interrupting(History):
        def __call__(self, run: Run) -> None:
            super().__call__(run)
            if run.epoch == at:
                act()

    monkeypatch.setattr("fathomless.inference.callbacks.History", Interrupting)


def paused(call: Call, *words: Any, at: int = 8) -> Said:
    """Run a fit that a signal interrupts."""
    with pytest.MonkeyPatch.context() as patch:
        interrupted(patch, at, lambda: signal.raise_signal(signal.SIGINT))
        return call(*words)


def manifest(**changes: Any) -> runs.RunManifest:
    plain = runs.RunManifest(
        command=("fathomless", "fit", "data.csv"),
        estimator="UnboundedDepthRegressor",
        source="data.csv",
        sha256="0" * 64,
        bytes=100,
        rows=10,
        columns=("a", "b"),
        targets=("y",),
        seed=0,
        threads=1,
        options={"width": 8, "noise": 0.5, "max_depth": None, "calibrate": False},
    )
    return replace(plain, **changes)


# ------------------------------------------------------------------------------------------------ a finished run


def test_a_finished_run_holds_what_is_promised_and_nothing_else(call: Call) -> None:
    assert call(*FIT).code == 0
    found = {path.name for path in Path("run").iterdir()}
    (tensors,) = found - DONE
    assert found > DONE
    assert tensors.startswith("tensors-")
    assert {path.name for path in Path("run/evaluations").iterdir()} == {"held-out", "training"}
    assert events("run") == ["started", "finished"]
    assert Path("run/report.html").read_text(encoding="utf-8") == "<html>price</html>\n"
    assert runs.state("run") == "finished"


def test_a_finished_run_is_an_estimator_that_python_loads(call: Call) -> None:
    call(*FIT)
    loaded = UnboundedDepthRegressor.load("run")
    table = tables.read("data.csv").frame
    fitted = UnboundedDepthRegressor(epochs=24, width=4, random_state=0)
    fitted.fit(table.drop_columns("price"), table["price"].to_numpy())
    np.testing.assert_array_equal(
        loaded.predict(table.drop_columns("price")), fitted.predict(table.drop_columns("price"))
    )
    assert loaded.history_ == fitted.history_
    lines = Path("run/history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == fitted.history_
    assert Path("run/history.csv").read_text(encoding="utf-8").count("\n") == len(fitted.history_) + 1


def test_the_card_says_what_was_asked(call: Call) -> None:
    write_table("more.csv", key=[f"k{i}" for i in range(N)], w=[2] * N, junk=[0.5] * N)
    words = ["--key", "key", "--weight", "w", "--drop", "junk", "--seed", "3", "--noise", "0.5", "--no-calibrate"]
    call("fit", "more.csv", "--target", "price", "--out", "run", "--epochs", "1", "--width", "4", *words, "--overwrite")
    found = runs.read_manifest("run")
    assert found is not None
    source = tables.read("more.csv")
    assert (found.source, found.sha256, found.bytes, found.rows) == ("more.csv", source.sha256, source.bytes, N)
    assert (found.targets, found.columns, found.key, found.weight) == (("price",), ("size", "colour"), "key", "w")
    assert (found.seed, found.threads, found.estimator) == (3, 1, "UnboundedDepthRegressor")
    assert found.options == {"epochs": 1, "width": 4, "noise": 0.5, "calibrate": False}
    assert found.command[:3] == ("fathomless", "fit", "more.csv")
    assert "--overwrite" not in found.command
    assert found.notes == ("target price: regression, since it is a number (--task changes that)",)
    assert found.versions["torch"] == torch.__version__


def test_small_data_hold_nothing_out_and_the_training_rows_are_scored_alone(call: Call) -> None:
    write_table("data.csv", rows=20)
    assert call(*FIT).code == 0
    assert [found.name for found in runs.evaluations("run")] == ["training rows"]


def test_the_same_command_gives_the_same_bytes(call: Call) -> None:
    call(*FIT)
    shutil.move("run", "first")
    call(*FIT)
    assert model_of("run") == model_of("first")
    assert Path("run/run.json").read_bytes() == Path("first/run.json").read_bytes()
    for name in ("held-out", "training"):
        one, other = (io.load(Path(home) / "evaluations" / name, kinds={"evaluation"}) for home in ("run", "first"))
        assert one.meta == other.meta


# --------------------------------------------------------------------------------------------------- the manifest


def test_a_card_is_read_back_as_it_was_written() -> None:
    for one in (
        manifest(),
        manifest(key="k", weight="w", notes=("a note",), source="caf\udce9.csv", targets=("y", "ü\n\u2028")),
    ):
        read = io.read_json(io.write_text("run.json", one.to_json()))
        assert runs.RunManifest.from_json(read, Path("run.json")) == one


@given(
    st.sampled_from(sorted(asdict(manifest()))),
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(max_value=-1),
        st.floats(),
        st.lists(st.integers() | st.none() | st.lists(st.text()), min_size=1),
        st.dictionaries(st.text(), st.integers(), min_size=1),
    ),
)
def test_an_altered_card_is_refused_or_still_a_card(name: str, value: Any) -> None:
    found = json.loads(manifest().to_json())
    harmless = (name in ("key", "weight") and value is None) or (name == "options" and isinstance(value, dict))
    if harmless:
        assert runs.RunManifest.from_json({**found, name: value}, Path("run.json")).to_json()
    else:
        with pytest.raises(FileError, match=r"run.json was altered; restore it from a backup or fit again"):
            runs.RunManifest.from_json({**found, name: value}, Path("run.json"))


@pytest.mark.parametrize("found", [None, [], "text", 3, {}, {"command": []}], ids=str)
def test_what_is_no_card_is_refused(found: Any) -> None:
    with pytest.raises(
        FileError, match=r"run.json is not what fathomless wrote there; restore it from a backup or fit"
    ):
        runs.RunManifest.from_json(found, Path("run.json"))


def test_a_card_that_lacks_a_field_or_has_one_too_many_is_refused() -> None:
    whole = json.loads(manifest().to_json())
    for name in whole:
        with pytest.raises(FileError, match="is not what fathomless wrote"):
            runs.RunManifest.from_json({key: value for key, value in whole.items() if key != name}, Path("run.json"))
    with pytest.raises(FileError, match="is not what fathomless wrote"):
        runs.RunManifest.from_json({**whole, "more": 1}, Path("run.json"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"sha256": "1" * 64}, ["data"]),
        ({"targets": ("z",)}, ["targets"]),
        ({"columns": ("a",)}, ["columns"]),
        ({"estimator": "UnboundedDepthClassifier"}, ["task or structure"]),
        ({"options": {}}, ["options"]),
        ({"seed": 1, "threads": 2, "weight": "w"}, ["weight", "seed", "threads"]),
        ({"source": "renamed.csv", "notes": ("a",), "command": ("fathomless",), "versions": {}}, []),
    ],
    ids=str,
)
def test_what_makes_runs_differ_is_told_in_words(changes: dict[str, Any], words: list[str]) -> None:
    assert manifest().differences(manifest(**changes)) == words


# ------------------------------------------------------------------------------------------- beginning, going on


def test_a_run_that_is_there_needs_a_word(call: Call) -> None:
    call(*FIT)
    before = model_of("run")
    said = call(*FIT)
    assert (said.code, said.err) == (
        2,
        "fathomless fit: error: run holds a finished run already; add --overwrite to replace it, or choose another "
        "--out\n",
    )
    assert model_of("run") == before


def test_an_unfinished_run_that_is_there_may_be_resumed(call: Call) -> None:
    paused(call, *FIT)
    said = call(*FIT)
    assert (said.code, said.err) == (
        2,
        "fathomless fit: error: run holds an unfinished run already; add --resume to go on with it, --overwrite to "
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
    assert said.err == "note: the run in run is finished already; --overwrite would do it again\n"
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
    assert first == "fathomless: stopping after this epoch, with a checkpoint; once more stops at once"
    assert last == (
        f"fathomless fit: the training was paused after epoch {at} of 24. To go on: fathomless fit --resume "
        "data.csv --target price --out run --epochs 24 --width 4 --quiet"
    )
    assert {path.name for path in Path("run").iterdir()} == {
        "unfinished.json",
        "checkpoint",
        "history.csv",
        "history.jsonl",
        "log.jsonl",
    }
    assert runs.state("run") == "unfinished"
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
    assert "stopped at once; what the last checkpoint holds is kept. To go on: fathomless fit --resume" in said.err
    assert io.load("run/checkpoint", kinds={"checkpoint"}).meta["run"]["epoch"] == 8
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
    assert "stopped at once" in said.err
    assert runs.state("run") == "unfinished"
    assert call(*FIT, "--resume").code == 0
    assert model_of("run") == model_of("whole")
    assert events("run") == ["started", "paused", "resumed", "finished"]


def test_the_command_to_go_on_with_survives_names_that_the_shell_would_read(call: Call) -> None:
    write_table("my data; rm *.csv")
    said = paused(
        call, "fit", "--target", "price", "--out", "a 'run'", "--epochs", "24", "--quiet", "--", "my data; rm *.csv"
    )
    assert said.code == 130
    program, *words = shlex.split(said.err.partition("To go on: ")[2])
    assert program == "fathomless"
    assert call(*words).code == 0
    assert runs.state("a 'run'") == "finished"


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        (["--seed", "1"], "seed"),
        (["--width", "5"], "options"),
        (["--no-calibrate"], "options"),
        (["--drop", "size"], "columns"),
        (["--task", "classification"], "task or structure"),
        (["--threads", "2"], "threads"),
        (["--target", "size"], "targets, columns"),
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
        f"fathomless fit: error: the run in run differs from this one in its {difference}; give what it was started "
        "with, or another --out, or --overwrite\n"
    )
    assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_a_run_is_not_resumed_with_other_data(call: Call) -> None:
    paused(call, *FIT)
    write_table("data.csv", seed=1)
    said = call(*FIT, "--resume")
    assert said.code == 2
    assert "differs from this one in its data; give what it was started with" in said.err


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
    found = runs.read_manifest("run")
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
    assert runs.state("run") == "unfinished"


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
    found = runs.read_manifest("run")
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
    assert {found.name for found in runs.evaluations("run")} == {"test.csv", "held-out rows", "training rows"}
    call(*FIT, "--seed", "1", "--overwrite")
    assert {found.name for found in runs.evaluations("run")} == {"held-out rows", "training rows"}


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
        (["--learning-rate", "-1"], "learning_rate=-1.0 was given"),
        (["--device", "bogus"], "device='bogus' was given"),
        (["--depth-law", "100000"], "a start with up to 1,000 is allowed"),
    ],
    ids=str,
)
def test_a_run_that_fails_before_its_first_checkpoint_is_not_unfinished(
    call: Call, words: list[str], message: str
) -> None:
    said = call(*FIT, *words)
    assert said.code == 2
    assert message in said.err
    assert runs.state("run") == "empty"
    assert events("run") == ["started", "failed"]
    assert call(*FIT).code == 0


def test_a_tensorboard_that_is_not_there_stops_no_later_run(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    said = call(*FIT, "--tensorboard")
    assert (said.code, "pip install 'fathomless[track]'" in said.err) == (2, True)
    assert runs.state("run") == "empty"


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


# --------------------------------------------------------------------------------------------------- looking back


def test_a_run_that_is_damaged_is_refused(call: Call) -> None:
    call(*FIT)
    whole = {path: path.read_bytes() for path in Path("run").iterdir() if path.is_file()}
    (tensors,) = Path("run").glob("tensors-*")
    for path, data, message in (
        (Path("run/manifest.json"), b"{}", "manifest.json lacks 'format'"),
        (Path("run/manifest.json"), whole[Path("run/manifest.json")][:-9], "is not valid JSON"),
        (Path("run/run.json"), b"[]", "run.json is not what fathomless wrote there"),
        (
            Path("run/run.json"),
            whole[Path("run/run.json")].replace(b'"seed": 0', b'"seed": -1'),
            "run.json was altered",
        ),
        (tensors, whole[tensors][:-1], "it was cut off: copy it again"),
    ):
        path.write_bytes(data)
        for words in (["predict", "run", "data.csv"], ["evaluate", "run", "data.csv"], ["report", "run"]):
            said = call(*words)
            assert (said.code, said.out) == (2, "")
            assert message in said.err
        path.write_bytes(whole[path])
    assert call("predict", "run", "data.csv").code == 0


def test_a_damaged_evaluation_is_named_by_the_report(call: Call) -> None:
    call(*FIT)
    Path("run/evaluations/held-out/manifest.json").write_text("{", encoding="utf-8")
    said = call("report", "run")
    assert said.code == 2
    assert "run/evaluations/held-out/manifest.json is not valid JSON" in said.err


def test_an_estimator_that_python_saved_has_no_card(call: Call) -> None:
    table = tables.read("data.csv").frame
    UnboundedDepthRegressor(epochs=1, width=4).fit(table.drop_columns("price"), table["price"].to_numpy()).save("saved")
    estimator, found = runs.load("saved")
    assert found is None
    assert isinstance(estimator, UnboundedDepthRegressor)
    assert runs.evaluations("saved") == []
    assert runs.page("saved") == "<html>y</html>\n"
    said = call(*[word if word != "run" else "saved" for word in FIT], "--resume")
    assert said.code == 2
    assert "differs from this one in its data" in said.err


def test_a_folder_that_holds_nothing_is_empty(call: Call) -> None:
    Path("nothing").mkdir()
    for folder in ("nothing", "nowhere"):
        assert runs.state(folder) == "empty"
        assert runs.read_manifest(folder) is None
        with pytest.raises(FileError):
            runs.load(folder)


def test_a_card_is_begun_once(call: Call) -> None:
    assert runs.begin("run", manifest(), resume=False, overwrite=False) == Path("run/checkpoint")
    with pytest.raises(DataError, match="run holds an unfinished run already; add --resume to go on with it"):
        runs.begin("run", manifest(), resume=False, overwrite=False)
    assert runs.begin("run", manifest(source="moved"), resume=True, overwrite=False) == Path("run/checkpoint")
    assert runs.read_manifest("run") is None
    assert runs.read_manifest("run", latest=True) == manifest()


# -------------------------------------------------------------------------------------------- names of evaluations

NAMES = [
    "test.csv",
    "held-out rows",
    "training rows",
    "held-out",
    "training",
    "held-out-rows",
    "standard input",
    "standard-input",
    "Test.csv",
    "TEST.CSV",
    "a b.csv",
    "a-b.csv",
    "a_b.csv",
    "a  b.csv",
    "été.csv",
    "ete.csv",
    "測試.csv",
    "試測.csv",
    "..",
    ".",
    ".hidden",
    "hidden",
    "a/b.csv",
    "a\\b.csv",
    "a\nb.csv",
    "caf\udce9.csv",
    "x" * 60,
    "x" * 61,
    "x" * 500,
    "x" * 499,
    "",
]


def test_evaluations_of_different_names_are_kept_apart(call: Call) -> None:
    call(*FIT)
    estimator, _ = runs.load("run")
    table = tables.read("data.csv").frame
    X, y = table.drop_columns("price"), table["price"].to_numpy()
    found = evaluate(estimator, X, y, name="?", targets=("price",))
    for name in NAMES:
        runs.keep_evaluation("run", replace(found, name=name))
    kept = [one.name for one in runs.evaluations("run")]
    assert sorted(kept) == sorted(NAMES)
    assert kept[-2:] == ["held-out rows", "training rows"]
    folders = [path.name for path in Path("run/evaluations").iterdir()]
    assert len({name.lower() for name in folders}) == len(folders) == len(NAMES)
    assert all(path.parent == Path("run/evaluations") for path in Path("run/evaluations").iterdir())
    assert {"test.csv", "held-out", "training", "a_b.csv"} <= set(folders)
    runs.keep_evaluation("run", replace(found, name="test.csv"))
    assert len(runs.evaluations("run")) == len(NAMES)


@given(st.lists(st.text(max_size=8) | st.from_regex(r"\A[aA-][ -]?[bB.]{0,3}\Z"), unique=True, max_size=20))
def test_names_of_folders_are_plain_and_never_collide(names: list[str]) -> None:
    folders = [runs._plain(name) for name in names]
    assert len({folder.lower() for folder in folders}) == len(names)
    for folder, name in zip(folders, names, strict=True):
        assert 0 < len(folder) <= 80
        assert set(folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")
        assert folder.strip(".-") == folder
        assert runs._plain(folder) != folder or folder == name  # no name is the folder of another one
