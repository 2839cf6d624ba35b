"""Files and folders that were made to do harm: nothing is obeyed, followed or executed."""

import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pytest

import fathomless
from commands import Call
from fathomless import (
    ContinuousDepthRegressor,
    FiniteNetworkRegressor,
    Heun,
    SparseBayesRegressor,
    UnboundedDepthRegressor,
)
from fathomless.system import io, memory
from fathomless.system.errors import DataError, FathomlessError, FileError
from fathomless.system.terminal import escape_control
from fathomless.tables.files import read
from fathomless.tables.writers import writer
from quick_fits import problem
from run_folders import FIT, write_table

BAIT = ["=1+1", '=HYPERLINK("http://127.0.0.1","x")', "+1", "-1+2", "@SUM(A1)", "#N/A", "plain", "a=b"]
FINITE, SPARSE, PATHS = "finite", "sparse", "paths"
KNOTS = {"class": "PathOptions", "fields": {"knots": 10**8}}


def test_text_in_a_sheet_is_no_formula(workplace: None) -> None:
    with writer("out.xlsx") as write:
        write(pa.table({"=name": BAIT, "number": range(len(BAIT))}))
    sheet = openpyxl.load_workbook("out.xlsx").worksheets[0]
    cells = [row[0] for row in sheet.iter_rows()]
    assert [cell.value for cell in cells] == ["=name", *BAIT]
    assert {cell.data_type for cell in cells} == {"s"}
    assert [cell.quotePrefix for cell in cells] == [value[:1] in "=+-@#" for value in ["=name", *BAIT]]


def test_names_reach_the_terminal_without_control_characters(call: Call, workplace: None) -> None:
    name = "\x1b]0;title\x07price\x1b[2J"
    table = write_table("data.csv")
    with writer("bait.csv") as write:
        write(table.rename_columns(["size", "col\x1b[31mour\u202e", name]))
    said = call("fit", "bait.csv", *FIT[2:], "--target", name, "--cv", "1")
    for one in (
        call(*[name if word == "price" else word for word in ["fit", "bait.csv", *FIT[2:]]]),
        call("predict", "run", "bait.csv", "--out", "p.csv"),
        call("evaluate", "run", "bait.csv"),
        call("fit", "bait.csv", "--target", "\x1b[2Jnone", "--out", "r"),
        call("fit", "bait.csv", "--\x1b[2Jtarget", "x"),
        said,
    ):
        assert not set(one.out + one.err) & set("\x1b\x07\u202e")
    assert escape_control("tab\tand\nline") == "tab\tand\nline"


def test_closed_standard_output_is_told(call: Call, data_csv: None) -> None:
    call(*FIT, "--cv", "1")
    command = f"'{sys.executable}' -m fathomless.app.cli predict run data.csv >&-"
    ended = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "standard output is closed; give a file with --out" in ended.stderr


def test_deep_folders_are_refused(call: Call, data_csv: None) -> None:
    said = call(*FIT[:5], "x/" * 2000)
    assert said.code == 2
    assert "levels; up to 200 are allowed" in said.err


@pytest.mark.parametrize("name", ["log.jsonl", "evaluations", "checkpoint"])
def test_links_inside_a_run_are_not_followed(call: Call, data_csv: None, name: str) -> None:
    call(*FIT, "--cv", "1")
    Path("elsewhere").mkdir()
    bait = Path("elsewhere/manifest.json")
    bait.write_text(json.dumps({"format": io.FORMAT}))
    target = Path("elsewhere/text") if name == "log.jsonl" else Path("elsewhere")
    target.touch() if name == "log.jsonl" else None
    place = Path("run") / name
    if place.exists():
        place.rename(place.with_name("old"))
    os.symlink(target.resolve(), place, target_is_directory=target.is_dir())
    said = call(*FIT, "--cv", "1", "--overwrite")
    assert said.code == 2
    assert name in said.err
    assert bait.exists()
    if name == "log.jsonl":
        assert target.read_text() == ""


def test_checkpoints_of_several_stages_are_removed_together(tmp_path: Path) -> None:
    for part in ("networks", "chains-2"):
        io.save(tmp_path / "checkpoint" / part, kind="checkpoint", tensors={}, meta={})
    other = tmp_path / "checkpoint" / "chains-2" / "notes.txt"
    other.write_text("mine")
    assert io.holds(tmp_path / "checkpoint", inside=True)
    io.remove(tmp_path / "checkpoint", inside=True)
    assert not io.holds(tmp_path / "checkpoint", inside=True)
    assert [path.name for path in (tmp_path / "checkpoint").rglob("*")] == ["chains-2", "notes.txt"]
    os.symlink(tmp_path / "checkpoint", tmp_path / "link")
    with pytest.raises(FileError, match="is a link"):
        io.remove(tmp_path / "link")


def test_text_of_a_sheet_is_read_back(workplace: None) -> None:
    with writer("out.xlsx") as write:
        write(pa.table({"name": BAIT[:3], "number": [1.0, 2.0, 3.0]}))
    assert read("out.xlsx").frame["name"].to_pylist() == BAIT[:3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b',"y":1}\n{"x":1,"y":2}\n', "line 1, is not valid JSON"),
        (b'{"x":"a\\ud800","y":1}\n' * 30, r"line 1, contains a lone surrogate, '\ud800'"),
        (b'{"x\\ud800":1,"y":1}\n' * 30, r"line 1, contains a lone surrogate, '\ud800'"),
        (b"".join(b'{"k%d":1,"y":%d}\n' % (i, i) for i in range(3000)), "give the objects the same keys"),
    ],
    ids=["deep", "cell", "name", "names"],
)
def test_json_that_was_made_to_break_a_reader_is_refused(
    call: Call, workplace: None, monkeypatch: pytest.MonkeyPatch, content: bytes, message: str
) -> None:
    monkeypatch.setattr(memory, "available", lambda: 2**27)
    Path("bait.jsonl").write_bytes(content)
    said = call("fit", "bait.jsonl", "--target", "y", "--out", "run")
    assert said.code == 2
    assert message in said.err


def test_parts_of_different_runs_are_refused(call: Call, data_csv: None) -> None:
    quick = ["--cv", "1", "--epochs", "3", "--quiet"]
    call(*FIT, *quick)
    call(*["other" if word == "run" else "size" if word == "price" else word for word in FIT], *quick)
    for path in Path("run").glob("tensors-*"):
        path.unlink()
    for path in (Path("other/manifest.json"), *Path("other").glob("tensors-*")):
        shutil.copy(path, "run")
    for words in (["predict", "run", "data.csv", "--out", "p.csv"], ["evaluate", "run", "data.csv"], ["report", "run"]):
        said = call(*words)
        assert said.code == 2
        assert "belongs to another model than the one in run" in said.err
        assert "--resume" in said.err


def test_a_run_whose_end_was_interrupted_shows_no_old_scores(call: Call, data_csv: None) -> None:
    call(*FIT, "--cv", "1", "--epochs", "3")
    asked = json.loads(Path("run/run.json").read_text())
    Path("run/unfinished.json").write_text(json.dumps({**asked, "model": ""}))
    for words in (["evaluate", "run", "data.csv"], ["report", "run"]):
        said = call(*words)
        assert said.code == 2
        assert "the end of the run in run was interrupted" in said.err
    assert call("predict", "run", "data.csv", "--out", "p.csv").code == 0
    again = call(*FIT, "--cv", "1", "--epochs", "3", "--resume")
    assert again.code == 0, again.err
    assert call("report", "run").code == 0


KIND = {"options": {}, "weight": 1.0, "networks": 2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weighing": {"kinds": [{**KIND, "networks": 10**7}]}}, "do not have 2 networks in total"),
        ({"weighing": {"kinds": [{**KIND, "options": {"save": 1}}]}}, "there is no option 'save'"),
        ({"changed": {"predict": 1}}, "'predict' is no option"),
        ({"changed": {"width": -1}}, "width=-1 was given; at least 1 is needed"),
        ({"changed": {"activation": "a" * 10**6}}, "activation='aaaa.*…"),
    ],
)
def test_altered_models_build_and_set_nothing(tmp_path: Path, change: dict[str, object], message: str) -> None:
    UnboundedDepthRegressor(width=4, epochs=2, cv=2, random_state=0).fit(*problem(30)).save(tmp_path / "m")
    rewrite(tmp_path / "m", lambda meta: meta.update(change))
    with pytest.raises(FileError, match=message) as told:
        UnboundedDepthRegressor.load(tmp_path / "m")
    assert len(str(told.value)) < 2000


@pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
@pytest.mark.parametrize(
    ("model", "change", "message"),
    [
        (FINITE, lambda meta: meta["layout"].update(law_parameters=10**9), "layout.law_parameters is 1,000,000,000"),
        (FINITE, lambda meta: meta["layout"].update(support=[0] * 10**6), "the length of layout.support is 1,000,000"),
        (FINITE, lambda meta: meta["options"].update(depth=900), "its options build a larger network than its tensors"),
        (FINITE, lambda meta: meta["options"].update(width=10**5), "its width is 100000, and no weights"),
        (SPARSE, lambda meta: meta["options"].update(depth=2 * 10**7), "depth=20000000 was given; at most 1,000"),
        (SPARSE, lambda meta: meta["options"].update(depth=900), "its options build a larger network than its tensors"),
        (SPARSE, lambda meta: meta["options"].update(weight_draws=""), "weight_draws='' was given"),
        (SPARSE, lambda meta: meta["options"].update(weight_draws=10**9), "at most 10,000 is allowed"),
        (PATHS, lambda meta: meta["options"].update(path=KNOTS), "path__knots=100000000 was given; at most 1,000"),
        (PATHS, lambda meta: meta["options"].update(horizon=1e9), "larger network than its tensors"),
    ],
)
def test_numbers_of_a_file_build_no_more_than_its_tensors(
    tmp_path: Path, model: str, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    folder = small(model).save(tmp_path / "m")
    rewrite(folder, change)
    began = time.process_time()
    with pytest.raises(FileError, match=message):
        fathomless.load(folder)
    assert time.process_time() - began < 10.0


def test_wide_tables_and_bombs_ask_for_memory_first(workplace: None, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("wide.csv").write_text(",".join(f"c{i}" for i in range(4000)) + "\n" + ",".join(["1"] * 4000) + "\n")
    for name, head in (("bomb.csv.gz", b"a,b\n"), ("bomb.jsonl.gz", b'{"a":1}\n')):
        with gzip.open(name, "wb", compresslevel=1) as file:
            file.write(head + b" " * (80 << 20))
    monkeypatch.setattr(memory, "available", lambda: 2**26)
    with pytest.raises(
        DataError, match=r"a table of 4,000 columns, needs .* of memory, 64.0 MiB are free.* use at most"
    ):
        read("wide.csv")
    with pytest.raises(DataError, match=r"more of bomb.jsonl.gz \(so far .* needs .* of memory"):
        read("bomb.jsonl.gz")
    with pytest.raises(FathomlessError, match=r"bomb.csv.gz"):
        read("bomb.csv.gz")


@cache
def small(model: str) -> Any:
    """Fit a small model."""
    options = {
        "finite": {"depth": 2},
        "sparse": {"depth": 1},
        "paths": {"hidden": 4, "solver": Heun(steps=2), "cv": 1},
    }[model]
    kind = {"finite": FiniteNetworkRegressor, "sparse": SparseBayesRegressor, "paths": ContinuousDepthRegressor}[model]
    return kind(width=4, epochs=1, random_state=0, **options).fit(*problem(30))


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Alter the metadata of a model, and sign them."""
    path = folder / "manifest.json"
    whole = json.loads(path.read_text())
    change(whole["meta"])
    signed = {name: value for name, value in whole.items() if name != "checksum"}
    text = json.dumps(signed, sort_keys=True, separators=(",", ":"))
    path.write_text(json.dumps({"checksum": hashlib.sha256(text.encode()).hexdigest(), **signed}))
