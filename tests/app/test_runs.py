"""The run folder: what is in it, its card, and what is kept of evaluations."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from commands import Call
from fathomless.app import manifests, runs
from fathomless.estimators.evaluation import evaluate
from fathomless.families.depth.estimator import UnboundedDepthRegressor
from fathomless.system import io
from fathomless.system.errors import DataError, FileError
from fathomless.tables import files as tables
from run_folders import FIT, N, events, model_of, write_table

# fits are short on purpose
pytestmark = [
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning"),
    pytest.mark.usefixtures("data_csv"),
]

DONE = {"run.json", "manifest.json", "history.csv", "history.jsonl", "evaluations", "report.html", "log.jsonl"}
DONE |= {"analysis.json"}


def manifest(**changes: Any) -> manifests.RunManifest:
    plain = manifests.RunManifest(
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
    assert {path.name for path in Path("run/evaluations").iterdir()} == {"out-of-fold", "training"}
    assert events("run") == ["started", "finished"]
    assert Path("run/report.html").read_text(encoding="utf-8") == "<html>price</html>\n"
    assert manifests.state("run") == "finished"


def test_a_finished_run_is_an_estimator_that_python_loads(call: Call) -> None:
    call(*FIT)
    loaded = UnboundedDepthRegressor.load("run")
    table = tables.read("data.csv").frame
    fitted = UnboundedDepthRegressor(epochs=24, width=4, cv=2, random_state=0)
    fitted.fit(table.drop_columns("price"), table["price"].to_numpy())
    np.testing.assert_array_equal(
        loaded.predict(table.drop_columns("price")), fitted.predict(table.drop_columns("price"))
    )
    assert loaded.history_ == fitted.history_
    lines = Path("run/history.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == fitted.history_
    assert Path("run/history.csv").read_text(encoding="utf-8").count("\n") == len(fitted.history_) + 1


def test_relevance_of_columns_is_written_where_weights_are_sampled(call: Call) -> None:
    short = ["--depth-law", "1", "--hmc.chains", "2", "--hmc.sweeps", "16"]
    short += ["--hmc.leapfrogs", "3", "--hmc.states", "4"]
    assert call(*FIT, "--weights", "hmc", *short).code == 0
    head, *rows = Path("run/relevance.csv").read_text(encoding="utf-8").splitlines()
    assert head == "column,median,low,high"
    loaded = UnboundedDepthRegressor.load("run")
    assert [row.partition(",")[0] for row in rows] == list(loaded.schema_.encoded_names) == list(loaded.relevance_)
    assert call(*FIT, "--overwrite").code == 0
    assert not Path("run/relevance.csv").exists()


def test_the_card_says_what_was_asked(call: Call) -> None:
    write_table("more.csv", key=[f"k{i}" for i in range(N)], w=[2] * N, junk=[0.5] * N)
    words = ["--key", "key", "--weight", "w", "--drop", "junk", "--seed", "3", "--noise", "0.5", "--no-calibrate"]
    words += ["--cv", "2"]
    call("fit", "more.csv", "--target", "price", "--out", "run", "--epochs", "1", "--width", "4", *words, "--overwrite")
    found = manifests.read_manifest("run")
    assert found is not None
    source = tables.read("more.csv")
    assert (found.source, found.sha256, found.bytes, found.rows) == ("more.csv", source.sha256, source.bytes, N)
    assert (found.targets, found.columns, found.key, found.weight) == (("price",), ("size", "colour"), "key", "w")
    assert (found.seed, found.threads, found.estimator) == (3, 1, "UnboundedDepthRegressor")
    assert found.options == {"epochs": 1, "width": 4, "noise": 0.5, "calibrate": False, "cv": 2}
    assert found.command[:3] == ("fathomless", "fit", "more.csv")
    assert "--overwrite" not in found.command
    assert found.notes == ("target price: regression, because it is numeric (--task changes that)",)
    assert found.versions["torch"] == torch.__version__


def test_small_data_hold_nothing_out_and_the_training_rows_are_scored_alone(call: Call) -> None:
    write_table("data.csv", rows=20)
    assert call(*FIT, "--cv", "1").code == 0
    assert [found.name for found in runs.evaluations("run")] == ["training rows"]


def test_the_same_command_gives_the_same_bytes(call: Call) -> None:
    call(*FIT)
    shutil.move("run", "first")
    call(*FIT)
    assert model_of("run") == model_of("first")
    assert Path("run/run.json").read_bytes() == Path("first/run.json").read_bytes()
    for name in ("out-of-fold", "training"):
        one, other = (io.load(Path(home) / "evaluations" / name, kinds={"evaluation"}) for home in ("run", "first"))
        assert one.meta == other.meta


# --------------------------------------------------------------------------------------------------- the manifest


def test_a_card_is_read_back_as_it_was_written() -> None:
    for one in (
        manifest(),
        manifest(key="k", weight="w", notes=("a note",), source="caf\udce9.csv", targets=("y", "ü\n\u2028")),
    ):
        read = io.read_json(io.write_text("run.json", one.to_json()))
        assert manifests.RunManifest.from_json(read, Path("run.json")) == one


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
    harmless = (name in ("key", "weight", "groups", "censored") and value is None) or (
        name == "options" and isinstance(value, dict)
    )
    if harmless:
        assert manifests.RunManifest.from_json({**found, name: value}, Path("run.json")).to_json()
    else:
        with pytest.raises(FileError, match=r"run.json was altered; restore it from a backup or fit again"):
            manifests.RunManifest.from_json({**found, name: value}, Path("run.json"))


@pytest.mark.parametrize("found", [None, [], "text", 3, {}, {"command": []}], ids=str)
def test_what_is_no_card_is_refused(found: Any) -> None:
    with pytest.raises(
        FileError, match=r"run.json is not a run manifest of fathomless; restore it from a backup or fit"
    ):
        manifests.RunManifest.from_json(found, Path("run.json"))


def test_a_card_that_lacks_a_field_or_has_one_too_many_is_refused() -> None:
    whole = json.loads(manifest().to_json())
    later = ("notation", "missing", "groups", "censored", "model")  # which runs did not always have
    older = {key: value for key, value in whole.items() if key not in later}
    assert manifests.RunManifest.from_json(older, Path("run.json")) == manifest()
    for name in older:
        with pytest.raises(FileError, match="is not a run manifest of fathomless"):
            manifests.RunManifest.from_json(
                {key: value for key, value in whole.items() if key != name}, Path("run.json")
            )
    with pytest.raises(FileError, match="is not a run manifest of fathomless"):
        manifests.RunManifest.from_json({**whole, "more": 1}, Path("run.json"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"sha256": "1" * 64}, ["the data"]),
        ({"targets": ("z",)}, ["--target (here y, there z)"]),
        ({"columns": ("a",)}, ["the columns"]),
        ({"estimator": "UnboundedDepthClassifier"}, ["the task or the structure"]),
        (
            {"options": {"width": 16, "noise": 0.5, "max_depth": None}},
            ["--calibrate (here False, there left out)", "--width (here 8, there 16)"],
        ),
        (
            {"seed": 1, "threads": 2, "weight": "w"},
            ["--seed (here 0, there 1)", "--weight (here None, there w)", "--threads (here 1, there 2)"],
        ),
        ({"source": "renamed.csv", "notes": ("a",), "command": ("fathomless",), "versions": {}}, []),
    ],
    ids=str,
)
def test_what_makes_runs_differ_is_told_in_words(changes: dict[str, Any], words: list[str]) -> None:
    assert manifest().differences(manifest(**changes)) == words


# --------------------------------------------------------------------------------------------------- looking back


def test_a_run_that_is_damaged_is_refused(call: Call) -> None:
    call(*FIT)
    whole = {path: path.read_bytes() for path in Path("run").iterdir() if path.is_file()}
    (tensors,) = Path("run").glob("tensors-*")
    for path, data, message in (
        (Path("run/manifest.json"), b"{}", "manifest.json lacks 'format'"),
        (Path("run/manifest.json"), whole[Path("run/manifest.json")][:-9], "is not valid JSON"),
        (Path("run/run.json"), b"[]", "run.json is not a run manifest of fathomless"),
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
    Path("run/evaluations/out-of-fold/manifest.json").write_text("{", encoding="utf-8")
    said = call("report", "run")
    assert said.code == 2
    assert "run/evaluations/out-of-fold/manifest.json is not valid JSON" in said.err


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
    assert "differs from this one in the data" in said.err


def test_a_folder_that_holds_nothing_is_empty(call: Call) -> None:
    Path("nothing").mkdir()
    for folder in ("nothing", "nowhere"):
        assert manifests.state(folder) == "empty"
        assert manifests.read_manifest(folder) is None
        with pytest.raises(FileError):
            runs.load(folder)


def test_a_card_is_begun_once(call: Call) -> None:
    assert runs.begin("run", manifest(), resume=False, overwrite=False) == Path("run/checkpoint")
    with pytest.raises(DataError, match="run already contains an unfinished run; add --resume to continue it"):
        runs.begin("run", manifest(), resume=False, overwrite=False)
    assert runs.begin("run", manifest(source="moved"), resume=True, overwrite=False) == Path("run/checkpoint")
    assert manifests.read_manifest("run") is None
    assert manifests.read_manifest("run", latest=True) == manifest()


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
    call(*FIT, "--cv", "1")
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
    folders = [runs._folder_name(name) for name in names]
    assert len({folder.lower() for folder in folders}) == len(names)
    for folder, name in zip(folders, names, strict=True):
        assert 0 < len(folder) <= 80
        assert set(folder) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-")
        assert folder.strip(".-") == folder
        assert runs._folder_name(folder) != folder or folder == name  # no name is the folder of another one
