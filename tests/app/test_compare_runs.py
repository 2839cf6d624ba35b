"""Command ``compare --on``: runs on the same rows, with the scores of ``evaluate``, and what is refused."""

import json
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Call
from fathomless.app import runs
from fathomless.estimators.scores import mean
from housing import QUICK, N, fit, fitted, houses, predicted, refused, standard_input, write

# fits are short on purpose
pytestmark = [
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning"),
    pytest.mark.usefixtures("houses_csv"),
]


def compared(call: Call, *words: str) -> dict[str, Any]:
    said = call("compare", *words, "--json")
    assert said.code == 0, said.err
    found: dict[str, Any] = json.loads(said.out)
    return found


def fit_fewer(call: Call, data: str = "houses.csv", out: str = "fewer", target: str = "price") -> None:
    """Fit a run with three of the columns."""
    dropped = {"size", "built", "price", "rent", "grade", "level", "sold"} - {target}
    drops = [word for name in sorted(dropped) for word in ("--drop", name)]
    said = call("fit", data, "--target", target, "--key", "id", *drops, "--out", out, *QUICK)
    assert said.code == 0, said.err


def two_runs(call: Call) -> None:
    fitted(call)
    fit_fewer(call)


def test_scores_are_those_of_an_evaluation_and_differences_are_paired(call: Call) -> None:
    two_runs(call)
    test = write("test.csv", houses(seed=1, price=[None, *np.linspace(-1, 2, N - 1)]))
    found = compared(call, "fewer", "run", "--on", test)
    assert (found["targets"], found["data"], found["task"], found["rows"]) == (["price"], test, "regression", N - 1)
    y = np.linspace(-1, 2, N - 1)
    log_p = {}
    for one in found["runs"]:
        alone = json.loads(call("evaluate", one["run"], test, "--json").out)["scores"]
        for name, score in one["scores"].items():
            assert [score["value"], score["error"]] == [alone[name]["value"], alone[name]["standard_error"]]
        estimator = runs.load(one["run"])[0]
        X = houses(seed=1).slice(1).select([column.name for column in estimator.schema_.columns])
        log_p[one["run"]] = estimator.predict_dist(X).log_prob(y).numpy()
        assert not one["training_file"]
    best, other = (one["run"] for one in found["runs"])
    assert log_p[best].mean() > log_p[other].mean()
    apart = mean(log_p[best] - log_p[other], None)
    behind = found["runs"][1]["behind"]
    assert [behind["value"], behind["error"]] == pytest.approx([apart.value, apart.error], rel=1e-6)
    assert found["runs"][0]["behind"]["value"] == 0.0
    assert found["runs"][1]["near_best"] == (apart.value <= 2.0 * (apart.error or 0.0))
    assert len(runs.evaluations("fewer")) == 3  # those of evaluate; a comparison writes no file


def test_the_table_has_a_row_for_each_run_and_names_those_that_are_near(call: Call) -> None:
    two_runs(call)
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    test = write("test.csv", houses(seed=1))
    shutil.copytree("run", "twin")
    said = call("compare", "run", "twin", "--on", test)
    assert (said.code, said.err) == (0, "")
    first, _, head, *rows, _, last = said.out.splitlines()
    assert first == "price: regression, 90 rows of test.csv"
    assert head.split("  ")[0] == "Run"
    assert "Difference" in head
    assert [row.split()[0] for row in rows] == ["run", "twin"]
    assert last == "Best: run. Within two standard errors of it: twin"
    told = compared(call, "run", "twin", "--on", test)
    assert [one["behind"]["value"] for one in told["runs"]] == [0.0, 0.0]
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_run_of_noise_is_worse_by_more_than_two_errors(call: Call) -> None:
    quick = ["--epochs", "60", "--width", "8", "--cv", "2"]
    for out, dropped in (("good", ["rent"]), ("noise", ["rent", "size", "colour"])):
        drops = [word for name in [*dropped, "grade", "level", "sold"] for word in ("--drop", name)]
        call("fit", "houses.csv", "--target", "price", "--key", "id", *drops, "--out", out, *quick)
    test = write("test.csv", houses(seed=1))
    said = call("compare", "noise", "good", "--on", test)
    assert said.out.endswith("\nBest: good, by more than two standard errors\n")


def test_the_training_file_of_a_run_is_noticed(call: Call) -> None:
    two_runs(call)
    Path("copy.csv").write_bytes(Path("houses.csv").read_bytes())
    other = write("more.csv", houses(seed=5))
    fit_fewer(call, other, "other")
    said = call("compare", "run", "other", "--on", "copy.csv")
    assert said.out.startswith("price: regression, 90 rows of copy.csv (training file)\n")
    assert "note: copy.csv is the training file of run: the scores are too good for new rows" in said.err
    found = compared(call, "run", "other", "--on", "copy.csv")
    assert {one["run"]: one["training_file"] for one in found["runs"]} == {"run": True, "other": False}
    assert "training file of run, fewer" in call("compare", "run", "fewer", "--on", "houses.csv").err
    assert "training" not in call("compare", "run", "fewer", "--on", other).err


def test_rows_are_read_from_standard_input_and_from_a_pipe(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    two_runs(call)
    test = write("test.csv", houses(seed=1))
    expected = [one["scores"] for one in compared(call, "run", "fewer", "--on", test)["runs"]]
    standard_input(monkeypatch, Path(test).read_bytes())
    found = compared(call, "run", "fewer", "--on", "-")
    assert found["data"] == "standard input"
    assert [one["scores"] for one in found["runs"]] == expected
    os.mkfifo("pipe")  # can be read once
    writer = threading.Thread(target=lambda: Path("pipe").write_bytes(Path(test).read_bytes()))
    writer.start()
    found = compared(call, "run", "fewer", "--on", "pipe")
    writer.join()
    assert [one["scores"] for one in found["runs"]] == expected


def test_weights_are_those_of_the_fits_or_of_a_named_column(call: Call) -> None:
    fitted(call)
    weight = np.arange(N) % 3
    weighted = write("weighted.csv", houses(w=weight + 1))
    fit(call, "price", "--weight", "w", data=weighted, out="heavy")
    fit(call, "price", "--weight", "w", data=weighted, out="heavier")
    test = write("test.csv", houses(seed=1, w=weight))
    said = call("compare", "run", "heavy", "--on", test)
    refused(said, "the column of --weight in test.csv is none for run and w for heavy; give one for all runs")
    for words in (("heavy", "heavier"), ("run", "heavy", "--weight", "w")):
        for one in compared(call, *words, "--on", test)["runs"]:
            alone = json.loads(call("evaluate", one["run"], test, "--weight", "w", "--json").out)
            assert one["scores"]["log_likelihood"]["value"] == alone["scores"]["log_likelihood"]["value"]
            assert alone["rows"] == weight.sum()
    plain = write("plain.csv", houses(seed=1))
    assert compared(call, "run", "heavy", "--on", plain)["rows"] == N


def test_classes_of_runs_are_compared(call: Call) -> None:
    fitted(call, "grade")
    fit(call, "grade", "--seed", "1", out="other")
    test = write("test.csv", houses(seed=1))
    found = compared(call, "run", "other", "--on", test)
    truth = houses(seed=1)["grade"].to_pylist()
    for one in found["runs"]:
        right = predicted(call, run=one["run"], data=test)["class"].to_pylist()
        assert one["scores"]["accuracy"]["value"] == np.mean([a == b for a, b in zip(right, truth, strict=True)])
    assert "Accuracy" in call("compare", "run", "other", "--on", test).out
    write("new.csv", houses(grade=["middling"] * N))
    refused(call("compare", "run", "other", "--on", "new.csv"), "run: target 'grade' has the classes 'middling'")


def test_notes_on_rows_are_printed_once_and_those_of_a_run_with_its_name(call: Call) -> None:
    two_runs(call)
    test = write("test.csv", houses(seed=1, price=[None, *np.ones(N - 1)], size=[1.0, None, *np.ones(N - 2)]))
    said = call("compare", "run", "fewer", "--on", test)
    assert said.err.splitlines()[0] == "note: 1 row without a target was left out"
    assert said.err.count("without a target") == 1
    assert "note: run: 1 of 89 rows has missing values" in said.err
    assert "fewer" not in said.err
    refused(call("compare", "run", "fewer", "--on", test, "--missing", "error"), "run: ")


def test_a_target_that_runs_read_differently_is_refused(call: Call) -> None:
    """Grades are numbers in one table, and text in the other, which has the grade x."""
    level = [str(value) for value in houses()["level"].to_pylist()]
    fit_fewer(call, out="numbers", target="level")
    fit_fewer(
        call,
        write("words.csv", houses(level=["x" if i % 9 == 0 else k for i, k in enumerate(level)])),
        "words",
        "level",
    )
    test = write("test.csv", houses(seed=1, level=["2", *level[1:]]))
    message = "the target of a row of test.csv is 2.0 for numbers and '2' for words: the runs were fitted to tables"
    refused(call("compare", "numbers", "words", "--on", test), message)


def test_rows_that_only_one_run_leaves_out_are_refused(call: Call) -> None:
    fitted(call)
    fit_fewer(call)
    table = houses(seed=1)
    total = {name: [None if name == "id" else table[name][0].as_py()] for name in table.column_names}
    total |= {"new": [None], "rooms": [None], "colour": [None], "built": [None], "size": ["total"]}
    lines = Path(write("test.csv", table)).read_text().splitlines()
    cells = ["" if total[name][0] is None else str(total[name][0]) for name in table.column_names]
    Path("test.csv").write_text("\n".join([*lines, ",".join(cells)]) + "\n")
    said = call("compare", "run", "fewer", "--on", "test.csv")
    refused(said, "run uses 90 rows of test.csv and fewer uses 91: some rows, such as totals, are left out for one")


REFUSED: list[tuple[list[str], str]] = [
    (["run", "--on", "test.csv"], "one run was given (run); give two or more, or score one: fathomless evaluate run"),
    (["run", "./run", "--on", "test.csv"], "the run run was given twice"),
    (["run", "fewer"], "2 tables were given (run, fewer); methods are compared on one. To compare runs, give --on"),
    (["run", "fewer", "--on", "test.csv", "--target", "price"], "--target was given with --on test.csv; it is for a"),
    (["run", "fewer", "--on", "test.csv", "--folds", "3"], "--folds was given with --on test.csv; it is for a compar"),
    (["houses.csv", "--target", "price", "--weight", "w"], "--weight was given without --on; it is for a comparison"),
    (["houses.csv", "--target", "price", "--threads", "1"], "--threads was given without --on; it is for a compari"),
    (["run", "nowhere", "--on", "test.csv"], "there is no folder nowhere"),
    (["run", "fewer", "--on", "nowhere.csv"], "there is no file nowhere.csv"),
    (["run", "fewer", "--on", "bare.csv"], "run: bare.csv lacks the columns 'price'"),
    (["fewer", "run", "--on", "small.csv"], "run: small.csv lacks the columns 'size'"),
    (["run", "rents", "--on", "test.csv"], "run is a regression of price and rents is a regression of rent; g"),
    (["run", "grades", "--on", "test.csv"], "run is a regression of price and grades is a classification of g"),
    (["run", "other.csv", "--on", "test.csv"], "other.csv is a file; give the folder that holds manifest.json"),
    (["run", "python", "--on", "test.csv"], "python was saved from Python, without the name of the target; compare it"),
    (["run", "elsewhere", "--on", "test.csv"], "run is a regression of price and elsewhere is a regression of y; give"),
    (["run", "fewer", "--on", "test.csv", "--weight", "heft"], "run: test.csv lacks the columns 'heft'"),
]


def test_what_cannot_be_compared_is_refused(call: Call) -> None:
    two_runs(call)
    fit(call, "rent", out="rents")
    fit(call, "grade", out="grades")
    table = houses(seed=1)
    write("test.csv", table)
    write("bare.csv", table.drop_columns("price"))
    write("other.csv", table.select(["size", "rent"]).rename_columns(["x", "y"]))
    assert call("fit", "other.csv", "--target", "y", "--out", "elsewhere", *QUICK).code == 0
    runs.load("run")[0].save("python")
    write("small.csv", table.drop_columns("size"))
    for words, message in REFUSED:
        refused(call("compare", *words), message)


def test_a_density_has_no_target_to_compare(call: Call) -> None:
    fitted(call)
    write("numbers.csv", houses().select(["size", "price"]))
    short = ["--sweeps", "20", "--states", "5", "--chains", "1"]
    said = call("fit", "numbers.csv", "--task", "density", "--structure", "graph", "--out", "density", *short)
    assert said.code == 0, said.err
    test = write("test.csv", houses(seed=1))
    refused(call("compare", "run", "density", "--on", test), "density is a density, which predicts no target")
