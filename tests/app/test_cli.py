"""The command line as its users meet it: what it says, what it writes, and how it ends."""

import contextlib
import functools
import gzip
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

import fathomless
from commands import Call, Said
from fathomless.app import report, runs
from fathomless.app.cli import main
from fathomless.data import files as tables
from fathomless.estimators.options import options_of
from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.families.registry import references
from fathomless.system import memory
from fathomless.system.errors import ConvergenceWarning

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

N = 90
DRAWN = report.render  # with pictures, which take their time
QUICK = ["--epochs", "4", "--width", "8"]
COLOURS = ("red", "green", "blue")
SCORES = ["log_likelihood", "rmse", "mae", "r2", "crps", "coverage_50", "coverage_90", "coverage_95"]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work in a folder of its own, with a small table, and draw no pictures."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "render", lambda page: f"<html>{page.title}</html>\n")
    write("houses.csv", houses())
    yield
    torch.set_num_threads(1)


def houses(rows: int = N, seed: int = 0, **changes: Any) -> pa.Table:
    """A table with a column of every kind."""
    rng = np.random.default_rng(seed)
    size, colour = rng.normal(size=rows), rng.choice(COLOURS, rows)
    price = np.sin(2 * size) + (colour == "red") + 0.1 * rng.normal(size=rows)
    columns = {
        "id": [f"h{i}" for i in range(rows)],
        "size": size,
        "rooms": rng.integers(1, 30, rows),
        "colour": colour,
        "new": rng.random(rows) < 0.5,
        "built": np.datetime64("2001-02-03") + rng.integers(0, 9999, rows),
        "price": price,
        "rent": price / 7 - size,
        "grade": np.where(price > 0.4, "high", "low"),
        "level": np.digitize(price, [0.0, 1.0]),
        "sold": price > 0.4,
    }
    return pa.table({name: pa.array(values) for name, values in {**columns, **changes}.items()})


def write(name: str, table: pa.Table) -> str:
    with tables.writer(name) as put:
        put(table)
    return name


TARGETS = ("price", "rent", "grade", "level", "sold")


def fit(call: Call, target: str = "price", *words: str, data: str = "houses.csv", out: str = "run") -> Said:
    """Fit one target with the columns that are none, quickly."""
    others = [name for name in TARGETS if name not in (target, *words)]
    drops = [word for name in others for word in ("--drop", name)]
    said = call("fit", data, "--target", target, "--key", "id", *drops, "--out", out, *QUICK, *words)
    assert said.code == 0, said.err
    return said


FITTED: dict[str, dict[Path, bytes]] = {}  # the runs of the small table, each fitted once


def fitted(call: Call, target: str = "price") -> None:
    """Put the run of a target there, with the same bytes that its fit would write."""
    if target not in FITTED:
        fit(call, target)
        FITTED[target] = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    for path, data in FITTED[target].items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def features(table: pa.Table) -> pa.Table:
    return table.select(["size", "rooms", "colour", "new", "built"])


def predicted(call: Call, *words: str, run: str = "run", data: str = "houses.csv") -> pa.Table:
    said = call("predict", run, data, "--out", "predictions.csv", *words)
    assert said.code == 0, said.err
    return tables.read("predictions.csv").frame


def column(table: pa.Table, name: str) -> npt.NDArray[Any]:
    return np.asarray(table[name].to_numpy())


def refused(said: Said, message: str) -> None:
    """Check that a user's error is told in one line; notes may stand before it."""
    assert (said.code, said.out) == (2, ""), said
    *notes, line = said.err.splitlines()
    assert all(note.startswith("note: ") for note in notes)
    assert re.match(r"fathomless [a-z]+: error: ", line)
    assert message in line
    assert "Traceback" not in line
    assert len(line) < 600


def standard_input(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


# --------------------------------------------------------------------------------------------- errors: the table

FITTING: dict[str, tuple[list[str], str]] = {
    "no file": (["nowhere.csv", "--target", "price"], "there is no file nowhere.csv; check the path"),
    "a folder": ([".", "--target", "price"], ". is a folder; give a CSV or Parquet file"),
    "no column": (["houses.csv", "--target", "prise"], "there is no column 'prise'; did you mean 'price'? The columns"),
    "no such key": (["houses.csv", "--target", "price", "--key", "ID"], "there is no column 'ID'; did you mean 'id'?"),
    "no such weight": (["houses.csv", "--target", "price", "--weight", "w"], "there is no column 'w'. The columns are"),
    "no such drop": (["houses.csv", "--target", "price", "--drop", "zzz"], "there is no column 'zzz'. The columns are"),
    "empty name": (["houses.csv", "--target", ""], "there is no column ''. The columns are"),
    "target twice": (["houses.csv", "--target", "price", "--target", "price"], "'price' was given two roles"),
    "target dropped": (["houses.csv", "--target", "price", "--drop", "price"], "'price' was given two roles"),
    "target is key": (["houses.csv", "--target", "price", "--key", "price"], "'price' was given two roles"),
    "two classes": (
        ["houses.csv", "--target", "grade", "--target", "level", "--task", "classification"],
        "2 targets were given; classification is of one column",
    ),
    "text among targets": (
        ["houses.csv", "--target", "grade", "--target", "price"],
        "column 'grade' holds string such as",
    ),
    "text as number": (
        ["houses.csv", "--target", "grade", "--task", "regression"],
        "numbers are needed here: give --task classification if these are classes",
    ),
    "number as class": (["houses.csv", "--target", "price", "--task", "classification"], "Unknown label type: contin"),
    "date as class": (["houses.csv", "--target", "built"], "target 'built' holds timestamp[us] such as"),
    "option of numbers": (
        ["houses.csv", "--target", "grade", "--likelihood", "laplace"],
        "--likelihood was given, which is for numbers; the target is a class",
    ),
    "text as weight": (["houses.csv", "--target", "price", "--weight", "colour"], "column 'colour' holds string such"),
    "negative weight": (["houses.csv", "--target", "price", "--weight", "size"], "column 'size' says how often each"),
    "long delimiter": (["houses.csv", "--target", "price", "--delimiter", "ab"], "delimiter is 'ab'; allowed are"),
    "no device": (["houses.csv", "--target", "price", "--device", "gpu9"], "'cpu' always works"),
    "no cuda": (["houses.csv", "--target", "price", "--device", "cuda:99"], "'cpu' always works"),
    "not finite": (["houses.csv", "--target", "price", "--noise", "nan"], "noise=nan was given; a finite number"),
    "too deep": (["houses.csv", "--target", "price", "--min-depth", "5000"], "a start with up to 1,000 is allowed"),
    "above its end": (["houses.csv", "--target", "price", "--max-depth", "1", "--min-depth", "3"], "max_depth"),
}


@pytest.mark.parametrize("what", FITTING)
def test_what_cannot_be_fitted_is_refused_in_one_line(call: Call, what: str) -> None:
    words, message = FITTING[what]
    refused(call("fit", *words, "--out", "run", "--epochs", "1", "--quiet"), message)
    assert runs.state("run") == "empty"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"price": [None] * N}, "target 'price' has no value in any of the 90 rows; choose another column"),
        ({"price": ["one"] * N}, "y holds one class only ('one'); a classifier needs at least two classes"),
        ({"price": [5] * N}, "y holds one class only (5)"),
        ({"price": [float("inf")] + [0.5] * (N - 1)}, "infinity"),
        ({"price": [1e300] + [0.5] * (N - 1)}, "y holds values up to 1e+300, too large"),
        ({"size": [float("inf")] + [0.5] * (N - 1)}, "column 'size' contains infinity in 1 of 90 rows (first: 0)"),
        ({"w": [0] * N}, "column 'w' says how often each row counts and is 0 in all 90 rows"),
        ({"w": [None] + [1] * (N - 1)}, "column 'w' says how often each row counts and has None in 1 of 90 rows"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else v[:20],
)
def test_tables_that_cannot_be_fitted_are_refused(call: Call, changes: dict[str, Any], message: str) -> None:
    write("bad.csv", houses(**changes))
    words = ["--weight", "w"] if "w" in changes else []
    refused(call("fit", "bad.csv", "--target", "price", "--out", "run", *QUICK, "--quiet", *words), message)


def test_a_table_without_features_is_refused(call: Call) -> None:
    write("bad.csv", houses().select(["id", "price"]))
    said = call("fit", "bad.csv", "--target", "price", "--key", "id")
    refused(said, "no column is left to predict 'price' from; the table has 'id', 'price'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "bad.csv is empty; give a CSV or Parquet table"),
        ("size,price\n", "bad.csv has column names and no rows; give a table with at least one row"),
        ("size,size,price\n1,2,3\n", "size"),
        ("size,price\n1,2\n3,4,5\n", "bad.csv"),
        ("PK\x03\x04 and so on", "bad.csv is a zip archive or a spreadsheet"),
    ],
    ids=["empty", "no rows", "repeated names", "uneven rows", "spreadsheet"],
)
def test_files_that_are_no_tables_are_refused(call: Call, text: str, message: str) -> None:
    Path("bad.csv").write_text(text, encoding="utf-8")
    refused(call("fit", "bad.csv", "--target", "price"), message)


RANGES = {
    option.name: [str(int(option.metadata["least"]) - 1), "-5"]
    for option in options_of(UnboundedDepthRegressor)
    if option.metadata["kind"] == "whole"
} | {
    "learning_rate": ["0", "-1"],
    "structure_rate": ["-1"],
    "structure_radius": ["0", "-1"],
    "temperature": ["0", "-1"],
    "clip_norm": ["0", "-1"],
    "validation_fraction": ["1", "-0.1"],
    "initial_depth": ["0", "-1", "1e9"],
    "depth_prior": ["0", "-1", "1e9"],
    "weight_prior": ["0", "-1"],
    "noise": ["0", "-1"],
    "depth_law": ["-1"],
}


@pytest.mark.parametrize(
    "option", [option for option in options_of(UnboundedDepthRegressor) if option.metadata["kind"] in ("whole", "real")]
)
def test_options_out_of_range_are_refused_and_leave_no_run(call: Call, option: Any) -> None:
    real = option.metadata["kind"] == "real"
    for text in [*RANGES.get(option.name, []), *["nan", "inf", "1e400"] * real]:
        said = call(
            "fit", "houses.csv", "--target", "price", "--out", "run", f"--{option.name.replace('_', '-')}={text}"
        )
        refused(said, "")
        assert runs.state("run") == "empty"


@pytest.mark.parametrize("word", ["--device=meta", "--width=99999999999999999999", "--structure-delay=-1"])
def test_options_that_no_training_can_use_are_refused(call: Call, word: str) -> None:
    said = call("fit", "houses.csv", "--target", "price", "--out", "run", "--epochs", "1", "--quiet", word)
    refused(said, "")


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("houses.csv", "houses.csv cannot be written: houses.csv is a file; choose another folder"),
        ("houses.csv/run", "houses.csv/run cannot be written: houses.csv is a file; choose another folder"),
        ("x" * 300, "cannot be written: File name too long"),
        ("/proc/run", "/proc/run cannot be written"),
    ],
)
def test_places_that_cannot_be_written_are_refused_before_the_table_is_read(
    call: Call, monkeypatch: pytest.MonkeyPatch, out: str, message: str
) -> None:
    monkeypatch.setattr(tables, "read", lambda *_, **__: pytest.fail("the table was read"))
    refused(call("fit", "houses.csv", "--target", "price", "--out", out), message)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_without_permission_is_refused(call: Call) -> None:
    Path("locked").mkdir(mode=0o500)
    refused(call("fit", "houses.csv", "--target", "price", "--out", "locked/run"), "permission is missing")


def test_a_network_that_does_not_fit_is_refused_with_one_that_does(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 10 << 20 << 10)
    said = call("fit", "houses.csv", "--target", "price", "--out", "run", "--width", "1000000000")
    refused(said, "a network of 5 layers of width 1,000,000,000 needs")
    assert "10.0 GiB are free" in said.err
    assert re.search(r"; a width of about \d,\d\d\d fits$", said.err.rstrip())


def test_other_faults_are_ours(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("two\nlines")

    monkeypatch.setattr(tables, "read", fail)
    said = call("fit", "houses.csv", "--target", "price")
    assert (said.code, said.out, said.err.count("\n")) == (1, "", 1)
    assert said.err.startswith(
        "fathomless fit: internal error: RuntimeError: two. This is a fault of ours: please report"
    )
    monkeypatch.setenv("FATHOMLESS_TRACE", "1")
    with pytest.raises(RuntimeError, match="two"):
        call("fit", "houses.csv", "--target", "price")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (MemoryError(), 2, "error: there is not enough memory; give fewer rows or columns, or a smaller width"),
        (OSError(28, "No space left on device"), 2, "error: [Errno 28] No space left on device; check the disk and"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was lost that was saved before"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, BaseException) else None,
)
def test_what_the_system_says_is_told_in_one_line(
    call: Call, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(tables, "read", fail)
    said = call("fit", "houses.csv", "--target", "price")
    assert (said.code, said.out, said.err.count("\n")) == (code, "", 1)
    assert said.err.startswith(f"fathomless fit: {message}")


# --------------------------------------------------------------------------------------------- errors: a run

NEEDING = [["predict", "RUN", "houses.csv"], ["evaluate", "RUN", "houses.csv"], ["report", "RUN"], ["cite", "RUN"]]


@pytest.mark.parametrize("words", NEEDING, ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "there is no folder nowhere; check the path"),
        ("houses.csv", "houses.csv is a file; give the folder that holds manifest.json"),
        ("empty", "empty holds no manifest.json, so nothing was saved there; check the path"),
        ("foreign", "foreign/manifest.json lacks 'format'"),
        ("unfinished", "the run in unfinished is not finished; repeat its fit command with --resume"),
        ("x" * 300, "cannot be read: File name too long"),
    ],
    ids=["missing", "file", "empty", "foreign", "unfinished", "long"],
)
def test_what_is_no_run_is_refused(call: Call, words: list[str], place: str, message: str) -> None:
    for folder in ("empty", "foreign", "unfinished"):
        Path(folder).mkdir()
    Path("foreign/manifest.json").write_text('{"name": "a web page"}', encoding="utf-8")
    Path("unfinished/unfinished.json").write_text("{}", encoding="utf-8")
    refused(call(*[place if word == "RUN" else word for word in words]), message)


PREDICTING: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "new category": ({"colour": ["mauve"] * N}, [], "column 'colour' has the category 'mauve' in 90 of 90 rows"),
    "missing value": ({"size": [None] + [0.5] * (N - 1)}, [], "column 'size' has missing values (NaN) in 1 of 90 rows"),
    "text for number": ({"size": ["big"] * N}, [], "column 'size', row 1 after the header: 'big' is not a number"),
    "number for truth": ({"new": [7] * N}, [], "column 'new'"),
    "infinity": ({"size": [float("inf")] * N}, [], "column 'size' contains infinity in 90 of 90 rows"),
    "no such key": ({}, ["--key", "ident"], "there is no column 'ident'; did you mean"),
    "other ending": ({}, ["--out", "x.txt"], "x.txt ends with none of .csv, .csv.gz, .parquet and .pq; choose one"),
    "no folder": ({}, ["--out", "nowhere/x.csv"], "nowhere/x.csv cannot be written: No such file or directory"),
    "a folder": ({}, ["--out", "run/evaluations.csv"], "run/evaluations.csv is a folder; give the name of a file"),
}


@pytest.mark.parametrize("what", PREDICTING)
def test_what_cannot_be_predicted_is_refused(call: Call, what: str) -> None:
    changes, words, message = PREDICTING[what]
    fitted(call)
    Path("run/evaluations.csv").mkdir()
    write("new.csv", houses(**changes))
    refused(call("predict", "run", "new.csv", *words), message)
    assert not list(Path().glob("*.partial"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,size,rooms,colour,new,built\n", "new.csv has column names and no rows; give rows to predict"),
        ("size,rooms\n1,2\n", "new.csv lacks the columns 'colour', 'new', 'built'; it has 'size', 'rooms'"),
        ("", "new.csv is empty; give a CSV or Parquet table"),
    ],
    ids=["no rows", "no columns", "empty"],
)
def test_tables_that_cannot_be_predicted_are_refused(call: Call, text: str, message: str) -> None:
    fitted(call)
    Path("new.csv").write_text(text, encoding="utf-8")
    refused(call("predict", "run", "new.csv", "--out", "predictions.csv"), message)
    assert not Path("predictions.csv").exists()


def test_a_prediction_that_fails_leaves_the_old_one(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(call)
    before = predicted(call)
    monkeypatch.setattr(tables, "batches", functools.partial(tables.batches, rows=40))
    write("new.csv", houses(size=[0.5] * (N - 1) + [None]))
    refused(call("predict", "run", "new.csv", "--out", "predictions.csv"), "column 'size' has missing values")
    assert tables.read("predictions.csv").frame.equals(before)


def test_empty_standard_input_is_refused(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(call)
    for words in (["predict", "run", "-"], ["evaluate", "run", "-"], ["fit", "-", "--target", "price"]):
        standard_input(monkeypatch, b"")
        refused(call(*words), "standard input is empty; give a CSV or Parquet table")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"price": [None] * N}, "target 'price' has no value in any of the 90 rows"),
        ({"price": ["dear"] * N}, "column 'price', row 1 after the header: 'dear' is not a number"),
        ({"price": [float("inf")] * N}, "infinity"),
        ({"colour": ["mauve"] * N}, "column 'colour' has the category 'mauve'"),
    ],
    ids=["no answers", "text", "infinity", "new category"],
)
def test_what_cannot_be_evaluated_is_refused_and_not_kept(call: Call, changes: dict[str, Any], message: str) -> None:
    fitted(call)
    write("test.csv", houses(**changes))
    refused(call("evaluate", "run", "test.csv"), message)
    assert len(runs.evaluations("run")) == 2


def test_a_class_that_training_did_not_see_cannot_be_evaluated(call: Call) -> None:
    fitted(call, "grade")
    write("test.csv", houses(grade=["middling"] * N))
    refused(call("evaluate", "run", "test.csv"), "y holds the classes 'middling', which training did not see")


def test_answers_are_needed_to_evaluate(call: Call) -> None:
    fitted(call)
    write("test.csv", houses().drop_columns("price"))
    refused(call("evaluate", "run", "test.csv"), "test.csv lacks the columns 'price'")


@pytest.mark.parametrize("out", [".", "houses.csv/page.html"])
def test_a_page_that_cannot_be_written_is_refused(call: Call, out: str) -> None:
    fitted(call)
    refused(call("report", "run", "--out", out), out)


# ------------------------------------------------------------------------------------------------ predictions


def test_predictions_are_those_of_python_bit_for_bit(call: Call) -> None:
    fitted(call)
    table = houses()
    python = UnboundedDepthRegressor(epochs=4, width=8, random_state=0)
    python.fit(features(tables.read("houses.csv").frame), column(table, "price"))
    new = write("new.csv", houses(seed=1))
    found = predicted(call, data=new)
    mean, std = python.predict(features(tables.read(new).frame), return_std=True)
    low, high = python.predict_interval(features(tables.read(new).frame))
    for name, values in {"mean": mean, "std": std, "lower_90": low, "upper_90": high}.items():
        np.testing.assert_array_equal(column(found, name), values)
    assert found["id"].to_pylist() == table["id"].to_pylist()
    assert found.column_names == [
        "id",
        *("mean", "std", "lower_90", "upper_90"),
        *("variance_noise", "variance_weights", "variance_structure"),
    ]


@pytest.mark.parametrize("target", ["grade", "level", "sold"])
def test_classes_are_those_of_python_and_keep_their_type(call: Call, target: str) -> None:
    fitted(call, target)
    table = tables.read("houses.csv").frame
    python = UnboundedDepthClassifier(epochs=4, width=8, random_state=0)
    python.fit(features(table), np.array(table[target].to_pylist()))
    found = predicted(call)
    assert found["class"].type == table[target].type
    assert found["class"].to_pylist() == python.predict(features(table)).tolist()
    names = [f"probability_{label}" for label in python.classes_.tolist()]
    assert found.column_names == [
        *("id", "class", "probability", *names),
        *("entropy_noise", "entropy_weights", "entropy_structure"),
    ]
    probs = np.column_stack([column(found, name) for name in names])
    dist = python.predict_dist(features(table))
    np.testing.assert_array_equal(probs, dist.probs.numpy())
    np.testing.assert_allclose(probs.sum(1), 1.0, rtol=1e-12)


def test_several_targets_are_predicted_together(call: Call) -> None:
    fit(call, "price", "--target", "rent")
    table = tables.read("houses.csv").frame
    python = UnboundedDepthRegressor(epochs=4, width=8, random_state=0)
    y = np.column_stack([column(table, "price"), column(table, "rent")])
    mean = python.fit(features(table), y).predict(features(table))
    found = predicted(call)
    np.testing.assert_array_equal(np.column_stack([column(found, "price_mean"), column(found, "rent_mean")]), mean)
    assert call("evaluate", "run", "houses.csv").code == 0


def test_weights_count_as_repetitions(call: Call) -> None:
    table = houses(rows=40)
    twice = pa.concat_tables([table, table.slice(0, 10)])
    weight = pa.array([2] * 10 + [1] * 30)
    fit(call, data=write("twice.csv", twice), out="twice")
    fit(call, "price", "--weight", "w", data=write("weighted.csv", table.append_column("w", weight)))
    assert predicted(call).equals(predicted(call, run="twice"))


def test_a_row_of_the_weight_zero_is_as_if_it_were_not_there(call: Call) -> None:
    table = houses(colour=["mauve", *["red", "blue"] * 44, "red"], w=[0, *[1] * (N - 1)])
    said = fit(call, "price", "--weight", "w", data=write("weighted.csv", table))
    assert "note: 1 row of the weight 0 was left out\n" in said.err
    fit(call, data=write("without.csv", table.slice(1).drop_columns("w")), out="without")
    assert predicted(call, data="without.csv").equals(predicted(call, run="without", data="without.csv"))


def test_the_order_and_number_of_other_columns_do_not_matter(call: Call) -> None:
    fitted(call)
    expected = predicted(call)
    table = houses()
    mixed = table.select(sorted(table.column_names, reverse=True)).append_column("more", pa.array(["x"] * N))
    said = call("predict", "run", write("mixed.csv", mixed), "--out", "mixed_out.csv")
    assert (said.code, said.out) == (0, "90 rows are in mixed_out.csv\n")
    assert said.err == "note: columns that were not used: sold, rent, price, level, grade, more\n"
    assert tables.read("mixed_out.csv").frame.equals(expected)


def test_a_category_that_training_did_not_see_may_be_ignored(call: Call) -> None:
    fitted(call)
    new = write("new.csv", houses(colour=["mauve", *["red"] * (N - 1)]))
    found = predicted(call, "--unseen", "ignore", data=new)
    assert len(found) == N
    refused(call("predict", "run", new, "--unseen", "error"), "column 'colour' has the category 'mauve' in 1 of 90")
    fit(call, "price", "--unseen", "ignore", out="lenient")
    assert call("predict", "lenient", new).code == 0
    refused(call("predict", "lenient", new, "--unseen", "error"), "mauve")


def test_gaps_are_filled_where_training_had_some_or_was_told_to(call: Call) -> None:
    gaps = write("gaps.csv", houses(size=[None, *np.linspace(0, 1, N - 1)]))
    empty = write("empty.csv", houses(size=[None] * N))
    fit(call, data=gaps, out="with_gaps")
    fit(call, "price", "--missing", "impute", out="told")
    for run in ("with_gaps", "told"):
        for data in (gaps, empty):
            assert len(predicted(call, run=run, data=data)) == N
            assert call("evaluate", run, data).code == 0


def test_intervals_are_named_by_their_levels(call: Call) -> None:
    fitted(call)
    found = predicted(call, "--interval", "0.5", "--interval", "0.99", "--interval", "0.9999999")
    lower = [column(found, name) for name in ("lower_99.99999", "lower_99", "lower_50")]
    upper = [column(found, name) for name in ("upper_50", "upper_99", "upper_99.99999")]
    assert (np.diff([*lower, *upper], axis=0) > 0).all()
    assert "lower_90" not in found.column_names


def test_classes_have_no_intervals(call: Call) -> None:
    fitted(call, "grade")
    said = call("predict", "run", "houses.csv", "--interval", "0.5")
    refused(said, "--interval was given, which is for numbers; the target is a class")


def test_classes_of_any_text_are_told_apart(call: Call) -> None:
    labels = ['a,"b"', "ü\nü", " x", "x", "", "NA"]
    table = houses(grade=[labels[i % 6] for i in range(N)])
    pyarrow.parquet.write_table(table, "odd.parquet")
    fit(call, "grade", data="odd.parquet")
    found = predicted(call, data="odd.parquet")
    assert sorted(found.column_names[3:9]) == sorted(f"probability_{label}" for label in labels)
    assert call("evaluate", "run", "odd.parquet").code == 0


def test_the_key_may_be_another_or_absent(call: Call) -> None:
    fitted(call)
    assert predicted(call, "--key", "rooms").column_names[0] == "rooms"
    assert predicted(call, data=write("new.csv", houses().drop_columns("id"))).column_names[0] == "mean"


def test_a_key_that_is_called_like_a_prediction_is_refused(call: Call) -> None:
    fitted(call)
    new = write("new.csv", houses().append_column("mean", pa.array(range(N))))
    refused(call("predict", "run", new, "--key", "mean"), "the key column 'mean' is called like one of predictions")


def test_keys_keep_what_they_are(call: Call) -> None:
    keys = ["007", "a,b", 'quo"te', "new\nline", "ü", " x ", *map(str, range(N - 6))]
    table = houses(id=keys)
    fit(call, data=write("keys.parquet", table))
    said = call("predict", "run", "keys.parquet", "--out", "keys_out.parquet")
    assert said.code == 0
    assert pyarrow.parquet.read_table("keys_out.parquet")["id"].to_pylist() == keys


@pytest.mark.parametrize("rows", [7, 89, 90, 1000])
def test_predictions_do_not_depend_on_the_pieces(call: Call, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    fitted(call)
    whole = predicted(call)
    monkeypatch.setattr(tables, "batches", functools.partial(tables.batches, rows=rows))
    pieces = predicted(call)
    assert pieces.column_names == whole.column_names
    assert pieces["id"].equals(whole["id"])
    for name in whole.column_names[1:]:  # a product of matrices may depend on their size in its last bits
        np.testing.assert_allclose(column(pieces, name), column(whole, name), rtol=1e-12, atol=1e-12)


def test_drawn_weights_are_the_same_in_every_piece(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(call, "price", "--weights", "meanfield", "--weight-draws", "3")
    whole = predicted(call)
    assert (column(whole, "variance_weights") > 0).all()
    monkeypatch.setattr(tables, "batches", functools.partial(tables.batches, rows=40))
    np.testing.assert_allclose(column(predicted(call), "mean"), column(whole, "mean"), rtol=1e-12)


# ------------------------------------------------------------------------------------------------- formats


def model_of(folder: str) -> dict[str, bytes]:
    names = [path.name for path in Path(folder).iterdir() if path.name.startswith(("manifest", "tensors"))]
    return {name: (Path(folder) / name).read_bytes() for name in names}


def test_the_format_of_a_table_does_not_matter(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Path("houses.csv").read_bytes()
    table = tables.read("houses.csv").frame
    write("houses.parquet", table)
    Path("houses.csv.gz").write_bytes(gzip.compress(plain))
    semicolons = plain.decode().replace(",", ";").replace(".", ",")
    Path("houses.txt").write_text(semicolons, encoding="utf-8-sig")
    Path("houses.tsv").write_bytes(plain.replace(b",", b"\t").replace(b"\n", b"\r\n"))
    standard_input(monkeypatch, plain)
    fitted(call)
    expected, found = model_of("run"), predicted(call)
    for data, words in (
        ("houses.parquet", []),
        ("houses.csv.gz", []),
        ("houses.txt", ["--decimal", ","]),
        ("houses.tsv", []),
        ("houses.tsv", ["--delimiter", "tab"]),
        ("-", []),
    ):
        fit(call, "price", *words, "--overwrite", data=data, out="other")
        assert model_of("other") == expected, data
        if data != "-":
            assert predicted(call, *words, data=data).equals(found), data
    manifest = runs.read_manifest("other")
    assert manifest is not None
    assert (manifest.source, manifest.bytes) == ("standard input", len(plain))


def test_the_format_of_predictions_does_not_matter(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(call)
    expected = predicted(call)
    for out in ("x.csv.gz", "x.parquet", "x.pq", "X.CSV"):
        assert call("predict", "run", "houses.csv", "--out", out).code == 0
        assert tables.read(out).frame.to_pydict() == expected.to_pydict()
    assert call("predict", "run", "houses.csv").out == Path("predictions.csv").read_text(encoding="utf-8")
    standard_input(monkeypatch, Path("houses.csv").read_bytes())
    assert call("predict", "run", "-", "--out", "-").out == Path("predictions.csv").read_text(encoding="utf-8")


def test_an_old_file_of_predictions_is_replaced(call: Call) -> None:
    fitted(call)
    Path("predictions.csv").write_text("old", encoding="utf-8")
    assert len(predicted(call)) == N


def test_names_of_files_need_not_be_text(call: Call) -> None:
    name = os.fsdecode(b"caf\xe9 \xf0.csv")
    try:
        os.replace("houses.csv", name)
    except OSError:
        pytest.skip("this file system takes text alone")
    fit(call, data=name)
    manifest = runs.read_manifest("run")
    assert manifest is not None
    assert manifest.source == name
    assert call("evaluate", "run", name).code == 0
    assert call("report", "run").code == 0
    assert call("predict", "run", name).code == 0


# ------------------------------------------------------------------------------------ estimators saved from Python


@pytest.fixture
def saved() -> UnboundedDepthRegressor:
    table = tables.read("houses.csv").frame
    y = np.column_stack([column(table, "price"), column(table, "rent")])
    python = UnboundedDepthRegressor(epochs=2, width=4, random_state=0).fit(features(table), y)
    python.save("saved")
    return python


def test_an_estimator_that_python_saved_predicts(call: Call, saved: UnboundedDepthRegressor) -> None:
    found = predicted(call, "--key", "id", run="saved")
    assert found.column_names[:2] == ["id", "y0_mean"]
    mean = saved.predict(features(tables.read("houses.csv").frame))
    np.testing.assert_array_equal(np.column_stack([column(found, "y0_mean"), column(found, "y1_mean")]), mean)


def test_an_estimator_that_python_saved_is_reported_and_cited(call: Call, saved: UnboundedDepthRegressor) -> None:
    said = call("report", "saved")
    assert (said.code, said.out) == (0, f"{Path('saved/report.html')}\n")
    assert call("cite", "saved").code == 0


def test_an_estimator_that_python_saved_is_not_evaluated(call: Call, saved: UnboundedDepthRegressor) -> None:
    said = call("evaluate", "saved", "houses.csv")
    refused(said, "saved was saved from Python, which keeps no name of its target; evaluate it there")


def test_an_estimator_of_an_array_takes_columns_by_position(call: Call) -> None:
    X = np.random.default_rng(0).normal(size=(N, 2))
    python = UnboundedDepthRegressor(epochs=2, width=4, random_state=0).fit(X, X[:, 0])
    python.save("saved")
    write("new.csv", pa.table({"any": X[:, 0], "name": X[:, 1]}))
    np.testing.assert_array_equal(column(predicted(call, run="saved", data="new.csv"), "mean"), python.predict(X))
    write("keyed.csv", pa.table({"id": range(N), "any": X[:, 0], "name": X[:, 1]}))
    found = predicted(call, "--key", "id", run="saved", data="keyed.csv")
    np.testing.assert_array_equal(column(found, "mean"), python.predict(X))
    refused(call("predict", "saved", "keyed.csv"), "the table has 3 columns; the model was trained on an array of 2")


# ---------------------------------------------------------------------------------------------- other commands


def test_a_fit_says_what_it_did_and_what_is_next(call: Call) -> None:
    said = fit(call)
    assert said.err == "note: target price: regression, since it is a number (--task changes that)\n"
    assert said.out.startswith("price: regression on 5 columns, 90 rows\ndepth: mean depth ")
    assert "held-out rows, 9" in said.out
    for name in SCORES:
        assert f"\n{name.replace('_', ' ')}  " in said.out
    assert "\nThe page is run/report.html. Next:\n  fathomless predict run NEW.csv --out predictions.csv\n" in said.out


def test_the_folder_of_a_run_follows_from_the_target(call: Call) -> None:
    table = houses().rename_columns([name.replace("price", "price, €/m²") for name in houses().column_names])
    write("odd.csv", table.drop_columns("rent"))
    assert call("fit", "odd.csv", "--target", "price, €/m²", "--quiet", *QUICK).code == 0
    assert [path.name for path in Path("runs").iterdir()] == ["price----m²"]


def test_what_was_done_to_the_table_is_noted(call: Call) -> None:
    changes = {"price": [None, None, *np.linspace(0, 1, N - 2)], "blank": [None] * N}
    said = fit(call, data=write("odd.csv", houses(**changes)))
    assert "note: 2 rows without a target were left out\n" in said.err
    assert "note: left out, since they hold no value: 'blank'\n" in said.err
    manifest = runs.read_manifest("run")
    assert manifest is not None
    assert manifest.rows == N - 2
    assert len(manifest.notes) == 3


def test_a_quiet_fit_says_nothing(call: Call) -> None:
    assert fit(call, "price", "--quiet") == Said(0, "", "")


def test_a_task_that_was_asked_for_is_not_explained(call: Call) -> None:
    assert fit(call, "level", "--task", "regression").err == ""
    assert "mean" in predicted(call).column_names
    assert fit(call, "level", "--overwrite").err.startswith("note: target level: classification, since it has 3 dist")


def test_warnings_are_notes_unless_it_shall_be_quiet(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def warn(self: Any, run: Any) -> None:
        warnings.warn("depth is\nnot at rest", ConvergenceWarning, stacklevel=2)

    monkeypatch.setattr(UnboundedDepthRegressor, "_warn", warn)
    warnings.simplefilter("default", ConvergenceWarning)
    assert fit(call).err.endswith("note: depth is not at rest\n")
    assert fit(call, "price", "--quiet", "--overwrite").err == ""


def test_a_log_is_json_line_by_line(call: Call) -> None:
    said = fit(call, "price", "--log-json", "--epochs", "40")
    *rows, last = (json.loads(line) for line in said.out.splitlines())
    history = [json.loads(line) for line in Path("run/history.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows == [{"event": "epoch", "of": 40, **row} for row in history]
    assert len(rows) == 5
    assert (last["event"], last["run"], list(last["scores"])) == ("finished", "run", SCORES)
    assert last["scores"]["rmse"].keys() == {"value", "standard_error"}


def test_tensorboard_is_written_where_it_is_said(call: Call) -> None:
    pytest.importorskip("tensorboard")
    fit(call, "price", "--tensorboard")
    assert [path.name.startswith("events.out.tfevents") for path in Path("run/tensorboard").iterdir()] == [True]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("words", "shown"), [([], True), (["--quiet"], False), (["--log-json"], False)])
def test_progress_is_shown_on_a_terminal_alone(
    call: Call, monkeypatch: pytest.MonkeyPatch, words: list[str], shown: bool
) -> None:
    assert "epoch/s" not in fit(call, "price", *words).err
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    fit(call, "price", *words, "--overwrite")
    assert ("4/4 [" in screen.getvalue()) == shown
    assert ("epoch/s, ELBO=" in screen.getvalue()) == shown


def test_an_evaluation_is_printed_and_kept(call: Call) -> None:
    fitted(call)
    write("test.csv", houses(seed=1))
    said = call("evaluate", "run", "test.csv")
    assert said.code == 0
    assert said.err == "note: kept in run; fathomless report run shows it\n"
    first, *rows = said.out.splitlines()
    assert first.split("  ")[0] == "test.csv, 90"
    assert [row.split("  ")[0].replace(" ", "_") for row in rows] == SCORES
    assert [found.name for found in runs.evaluations("run")] == ["test.csv", "held-out rows", "training rows"]


def test_an_evaluation_as_json_is_that_of_the_predictions(call: Call) -> None:
    fitted(call)
    test = write("test.csv", houses(seed=1, price=[None, *np.linspace(-1, 2, N - 1)]))
    said = call("evaluate", "run", test, "--json")
    assert said.err == "note: 1 row without a target was left out\n"
    found = json.loads(said.out)
    assert (found["run"], found["data"], found["rows"]) == ("run", "test.csv", N - 1)
    assert list(found["scores"]) == list(found["constant"]) == SCORES
    y, mean = np.linspace(-1, 2, N - 1), column(predicted(call, data=test), "mean")[1:]
    assert found["scores"]["rmse"]["value"] == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)), rel=1e-12)
    assert found["scores"]["mae"]["value"] == pytest.approx(np.mean(np.abs(y - mean)), rel=1e-12)
    assert found["constant"]["rmse"]["value"] == pytest.approx(y.std(), rel=1e-12)


@pytest.mark.parametrize("target", ["grade", "level", "sold"])
def test_an_evaluation_of_classes_counts_those_that_are_right(call: Call, target: str) -> None:
    fitted(call, target)
    test = write("test.csv", houses(seed=1))
    found = json.loads(call("evaluate", "run", test, "--json").out)
    right = predicted(call, data=test)["class"].to_pylist()
    truth = tables.read(test).frame[target].to_pylist()
    assert found["scores"]["accuracy"]["value"] == pytest.approx(
        np.mean([a == b for a, b in zip(right, truth, strict=True)])
    )
    assert ("auroc" in found["scores"]) == (target != "level")


def test_an_evaluation_again_replaces_the_first(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(call)
    for seed in (1, 2):
        write("test.csv", houses(seed=seed))
        assert call("evaluate", "run", "test.csv").code == 0
    standard_input(monkeypatch, Path("houses.csv").read_bytes())
    assert call("evaluate", "run", "-").code == 0
    names = [found.name for found in runs.evaluations("run")]
    assert names == ["standard input", "test.csv", "held-out rows", "training rows"]


def test_the_page_of_a_run_is_drawn_with_its_pictures(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(call)
    monkeypatch.setattr(report, "render", DRAWN)
    assert call("report", "run", "--out", "pages/page.html") == Said(0, "pages/page.html\n", "")
    page = Path("pages/page.html").read_text(encoding="utf-8")
    assert "houses.csv" in page
    assert page.count("<svg") > 5


def test_a_fit_and_a_report_write_the_same_page(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "render", lambda page: f"{page.options}\n{page.command}\n{page.data}\n{page.findings}")
    fit(call)
    first = Path("run/report.html").read_bytes()
    assert call("report", "run").code == 0
    assert Path("run/report.html").read_bytes() == first


def test_the_page_shows_all_evaluations(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "render", lambda page: "\n".join(one.name for one in page.evaluations))
    fitted(call)
    for name in ("b.csv", "a.csv", "training rows"):
        with open(name, "wb") as file:
            file.write(Path("houses.csv").read_bytes())
        assert call("evaluate", "run", name).code == 0
    assert call("report", "run") == Said(0, "run/report.html\n", "")
    shown = Path("run/report.html").read_text(encoding="utf-8").splitlines()
    assert shown[:4] == ["./training rows", "a.csv", "b.csv", "held-out rows"]


def test_a_page_can_be_opened(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    fitted(call)
    assert call("report", "run", "--open").code == 0
    assert opened == [Path("run/report.html").resolve().as_uri()]


def test_what_to_cite_is_the_software_and_the_method(call: Call) -> None:
    fitted(call)
    plain, every = call("cite", "run"), call("cite")
    assert (plain.code, every.code) == (0, 0)
    assert set(plain.out.splitlines()) < set(every.out.splitlines())  # without a run, all methods
    assert "Dropout as a Bayesian Approximation" in every.out
    assert plain.out.splitlines() == [reference.text() for reference in references("depth")]
    assert f"Version {fathomless.__version__}." in plain.out
    assert "Nazaret and David Blei. Variational Inference for Infinitely Deep Neural Networks" in plain.out
    entries = call("cite", "run", "--bibtex").out
    assert re.findall(r"^@(\w+)\{(\w+),$", entries, re.MULTILINE) == [
        ("misc", "fathomless"),
        ("inproceedings", "nazaret2022variational"),
    ]
    assert entries.count("{") == entries.count("}")


def test_the_version_is_told(call: Call) -> None:
    assert call("--version") == Said(0, f"fathomless {fathomless.__version__}\n", "")


def test_the_demo_runs_through(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fathomless.estimators.variational.automatic_epochs", lambda steps: 4)
    said = call("demo", "--out", "there/demo")
    assert said.code == 0
    assert re.findall(r"^\$ fathomless (\w+)", said.out, re.MULTILINE) == ["fit", "predict", "evaluate", "report"]
    assert {"patients.csv", "new.csv", "run", "predictions.csv"} <= {path.name for path in Path("there/demo").iterdir()}
    assert len(tables.read("there/demo/predictions.csv").frame) == 100
    refused(call("demo", "--out", "there/demo"), "there/demo is there already; give another --out, or remove it")
    refused(call("demo", "--out", "houses.csv"), "houses.csv is there already")


# --------------------------------------------------------------------------------------------- real processes

PROGRAM = [sys.executable, "-m", "fathomless.app.cli"]
LONG = ["fit", "houses.csv", "--target", "price", "--epochs", "400", "--width", "4", "--depth-law", "1"]
LONG += ["--patience", "none"]


def process(*words: str, **how: Any) -> "subprocess.Popen[bytes]":
    paths = [str(Path(fathomless.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([*PROGRAM, *words], env=environment, **{"stdout": -1, "stderr": -1, **how})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the model of a long fit that nothing stopped."""
    home = tmp_path_factory.mktemp("whole")
    write(str(home / "houses.csv"), houses())
    words = [str(home / word) if word == "houses.csv" else word for word in LONG]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "render", lambda page: "")
        assert main([*words, "--out", str(home / "run"), "--quiet"]) == 0
    return model_of(str(home / "run"))


def goes_on(call: Call, command: str, whole: dict[str, bytes]) -> None:
    """Check that a printed command finishes a run to the bytes of one that was never stopped."""
    program, *words = shlex.split(command)
    assert program == "fathomless"
    assert call(*words).code == 0
    assert model_of("run") == whole


@pytest.mark.skipif(os.name == "nt", reason="needs signals")
def test_a_process_that_is_terminated_leaves_a_checkpoint_and_says_how_to_go_on(
    call: Call, whole: dict[str, bytes]
) -> None:
    with process(*LONG, "--out", "run", "--log-json") as child:
        assert child.stdout is not None
        assert json.loads(child.stdout.readline())["event"] == "epoch"
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate()
    assert child.returncode == 143
    assert all(json.loads(line)["event"] == "epoch" for line in out.splitlines())
    assert Path("run/checkpoint/manifest.json").is_file()
    goes_on(call, err.decode().partition("To go on: ")[2], whole)


@pytest.mark.skipif(os.name == "nt", reason="needs a pseudo-terminal")
def test_a_terminal_shows_the_progress_and_ctrl_c_pauses(call: Call, whole: dict[str, bytes]) -> None:
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    with process(*LONG, "--out", "run", stdin=theirs, stderr=theirs, start_new_session=True) as child:
        os.close(theirs)
        screen = b""
        with contextlib.suppress(OSError):  # the end of a pseudo-terminal
            while data := os.read(ours, 4096):
                screen += data
                if b"ELBO=" in screen and child.poll() is None:
                    child.send_signal(signal.SIGINT)
                    break
            while data := os.read(ours, 4096):
                screen += data
        assert child.wait() == 130
    os.close(ours)
    shown = re.search(rb"(\d+)/400 \[\d\d:\d\d<\d\d:\d\d, .*epoch/s, ELBO=\S+, depth=\S+, validation=\S+\]", screen)
    assert shown, screen
    text = screen.decode()
    assert "fathomless: stopping after this epoch, with a checkpoint; once more stops at once" in text
    goes_on(call, text.partition("To go on: ")[2].strip(), whole)


@pytest.mark.skipif(os.name == "nt", reason="pipes are other there")
def test_a_reader_that_has_seen_enough_is_no_error(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for words in (["cite"], ["fit", "--help"]):
        with process(*words) as child:
            assert child.stdout is not None
            assert child.stderr is not None
            child.stdout.close()
            assert (child.stderr.read(), child.wait()) == (b"", 0)
    fitted(call)
    for words in (["predict", "run", "houses.csv"], ["evaluate", "run", "houses.csv"]):
        ours, theirs = os.pipe()
        os.close(ours)
        with monkeypatch.context() as patch, os.fdopen(theirs, "w", encoding="utf-8") as pipe:
            patch.setattr(sys, "stdout", pipe)
            assert main(words) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a full disk")
def test_a_full_disk_is_told_in_one_line() -> None:
    with open("/dev/full", "wb") as full, process("cite", stdout=full) as child:
        _, err = child.communicate()
    assert child.returncode == 2
    assert err.decode().count("\n") == 1
    assert "No space left on device" in err.decode()


def test_a_console_that_knows_no_minus_sign_is_no_error() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*PROGRAM, "fit", "--help"], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"Depth \u2212 min_depth" in done.stdout
