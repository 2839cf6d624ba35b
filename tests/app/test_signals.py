"""SIGTERM at any moment of any command: one line, its exit code, and no file that is half written."""

import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import Call
from housing import fit, fitted, houses, write

pytestmark = [
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning"),
    pytest.mark.usefixtures("houses_csv"),
]

SAID = r"fathomless {}: terminated; existing files are unchanged, unfinished ones were removed\n"
MOMENTS = {  # command -> words, and where the signal comes
    "predict": (["run", "new.csv", "--out", "out.parquet"], "fathomless.estimators.predictor.Predictor.encode"),
    "evaluate": (["run", "new.csv"], "fathomless.app.assessing.score_rows"),
    "explain": (["run", "new.csv"], "fathomless.estimators.importance.importance"),
    "compare": (["run", "twin", "--on", "new.csv"], "fathomless.app.compare_fitted.compare_fitted"),
    "report": (["run", "--out", "out.html"], "fathomless.app.page.report.render"),
    "export": (["run", "--format", "torch", "--out", "out.pt2"], "fathomless.estimators.exporting.build_module"),
}


def contents() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def terminated(patch: pytest.MonkeyPatch, place: str) -> None:
    """Let the signal come when something is called."""

    def arrive(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGTERM)

    patch.setattr(place, arrive)


def test_commands_of_a_run_end_with_a_line_and_leave_no_file(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(call)
    shutil.copytree("run", "twin")
    write("new.csv", houses(seed=1))
    before, handler = contents(), signal.getsignal(signal.SIGTERM)
    for command, (words, place) in MOMENTS.items():
        with monkeypatch.context() as patch:
            terminated(patch, place)
            said = call(command, *words)
        assert (said.code, said.out) == (143, ""), said.err
        assert re.fullmatch(SAID.format(command), said.err), said.err
        assert contents() == before
        assert signal.getsignal(signal.SIGTERM) is handler


@pytest.mark.parametrize(
    "place", ["fathomless.tables.files.read", "fathomless.app.commands.inputs._task", "fathomless.app.runs.begin"]
)
def test_a_fit_that_is_terminated_while_it_reads_leaves_nothing(
    call: Call, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    before = contents()
    terminated(monkeypatch, place)
    said = call("fit", "houses.csv", "--target", "price", "--out", "run")
    assert said.code == 143
    assert re.fullmatch(SAID.format("fit"), said.err)
    assert contents() == before


@pytest.mark.parametrize(
    "place",
    ["fathomless.estimators.encoding.fit_schema", "fathomless.estimators.problem.Problem.starts"],
)
def test_a_fit_that_is_terminated_before_its_training_can_begin_anew(
    call: Call, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    with monkeypatch.context() as patch:
        terminated(patch, place)
        said = call("fit", "houses.csv", "--target", "price", "--drop", "id", "--out", "run", "--quiet")
    assert said.code == 143
    assert said.err.count("\n") == 1
    assert "stopped immediately; the last checkpoint is kept. To resume: fathomless fit --resume" in said.err
    assert sorted(path.name for path in Path("run").iterdir()) == ["log.jsonl"]
    assert fit(call, "price").code == 0


def test_a_comparison_that_is_terminated_keeps_what_is_done(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["compare", "houses.csv", "--target", "price", "--methods", "constant,linear", "--folds", "2"]
    words += ["--out", "compared"]
    with monkeypatch.context() as patch:
        terminated(patch, "fathomless.app.compare._rank")
        said = call(*words)
    assert said.code == 143
    assert said.err.endswith(f"stopped; finished fits are kept in compared. To resume: fathomless {' '.join(words)}\n")
    assert {path.parent.name for path in Path("compared").rglob("*") if path.is_file()} == {"parts"}
    assert call(*words).code == 0


def test_a_part_of_a_file_is_taken_back_when_the_signal_comes_between_pieces(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted(call)
    write("new.csv", houses())
    from fathomless.app.commands import columns

    before, tabled, calls = contents(), columns.make_table, iter(range(9))

    def second(found: Any) -> Any:
        if next(calls):
            assert list(Path().glob("*.partial"))  # it is being written
            signal.raise_signal(signal.SIGTERM)
        return tabled(found)

    from fathomless.tables import files

    whole: Callable[..., Any] = files.batches
    monkeypatch.setattr(columns, "make_table", second)
    monkeypatch.setattr(
        files, "batches", lambda *words, **how: (part for _ in range(2) for part in whole(*words, **how))
    )
    assert call("predict", "run", "new.csv", "--out", "out.csv").code == 143
    assert contents() == before
