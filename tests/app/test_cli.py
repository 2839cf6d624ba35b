"""The command line as its users meet it: fits, what is refused of them, and how processes end."""

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fathomless
from commands import Call, Said
from fathomless.app import manifests
from fathomless.app.cli import main
from fathomless.app.page import report
from fathomless.estimators.options import options_of
from fathomless.families.depth.convergence import DepthWarnings
from fathomless.families.depth.estimator import UnboundedDepthRegressor
from fathomless.system import memory
from fathomless.system.errors import ConvergenceWarning
from fathomless.tables import files as tables
from housing import QUICK, SCORES, N, fit, fitted, houses, model_of, predicted, refused, write

# fits are short on purpose
RENDER = report.render  # which other tests replace

pytestmark = [
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning"),
    pytest.mark.usefixtures("houses_csv"),
]


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
        "column 'grade' holds text such as",
    ),
    "text as number": (
        ["houses.csv", "--target", "grade", "--task", "regression"],
        "numbers are needed here: give --task classification if these are classes",
    ),
    "number as class": (
        ["houses.csv", "--target", "price", "--task", "classification"],
        "--task classification was given, and target 'price' has numbers with decimals such as",
    ),
    "date as class": (["houses.csv", "--target", "built"], "target 'built' holds dates such as 20"),
    "date as number": (
        ["houses.csv", "--target", "built", "--task", "regression"],
        "; numbers are needed here: choose another column",
    ),
    "text as kind": (
        ["houses.csv", "--target", "price", "--censored", "colour"],
        "; allowed are exact, right and left, or 0 for exact and 1 for right: correct the column, or choose another",
    ),
    "order without a class": (
        ["houses.csv", "--target", "grade", "--ordinal", '"so, so",low'],
        """--ordinal '"so, so",low' was given; each class of y must be in it once, and 'high' is not: give all""",
    ),
    "prior of the depth": (
        ["houses.csv", "--target", "price", "--depth-prior", "-1"],
        "error: --depth-prior -1.0 was given; 0 < --depth-prior <= 10,000 is allowed",
    ),
    "scale of the noise": (
        ["houses.csv", "--target", "price", "--noise", "-1"],
        "error: --noise -1.0 was given; a positive, finite number is allowed, or 'learned', or 'input'",
    ),
    "inclusion": (
        ["houses.csv", "--target", "price", "--structure", "sparse", "--prior-inclusion", "1"],
        "error: --prior-inclusion 1.0 was given; 0 < --prior-inclusion < 1 is allowed, or 'learned'",
    ),
    "option of numbers": (
        ["houses.csv", "--target", "grade", "--likelihood", "laplace"],
        "--likelihood was given, which is for numeric targets; the target is a class",
    ),
    "text as weight": (
        ["houses.csv", "--target", "price", "--weight", "colour"],
        "are allowed, such as how many times each row counts: choose another column for --weight, or omit it",
    ),
    "negative weight": (["houses.csv", "--target", "price", "--weight", "size"], "column 'size' of sample weights has"),
    "no such groups": (["houses.csv", "--target", "price", "--groups", "w"], "there is no column 'w'. The columns are"),
    "target is groups": (["houses.csv", "--target", "price", "--groups", "price"], "'price' was given two roles"),
    "groups of one network": (
        ["houses.csv", "--target", "price", "--groups", "colour", "--cv", "1", "--validation-fraction", "0"],
        "groups were given, but this UnboundedDepthRegressor trains a single network",
    ),
    "long delimiter": (["houses.csv", "--target", "price", "--delimiter", "ab"], "delimiter is 'ab'; allowed are"),
    "no device": (["houses.csv", "--target", "price", "--device", "gpu9"], "'cpu' always works"),
    "no cuda": (["houses.csv", "--target", "price", "--device", "cuda:99"], "'cpu' always works"),
    "not finite": (["houses.csv", "--target", "price", "--noise", "nan"], "--noise nan was given; a finite number"),
    "too deep": (["houses.csv", "--target", "price", "--min-depth", "5000"], "up to 1,000 are allowed"),
    "above its end": (
        ["houses.csv", "--target", "price", "--max-depth", "1", "--min-depth", "3"],
        "--max-depth 1 was given; at least 3 is needed",
    ),
}


@pytest.mark.parametrize("what", FITTING)
def test_what_cannot_be_fitted_is_refused_in_one_line(call: Call, what: str) -> None:
    words, message = FITTING[what]
    refused(call("fit", *words, "--out", "run", "--epochs", "1", "--quiet"), message)
    assert manifests.state("run") == "empty"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"price": [None] * N}, "target 'price' has no value in any of the 90 rows; choose another column"),
        ({"price": ["one"] * N}, "y has only one class ('one'); a classifier needs at least two classes"),
        ({"price": [5] * N}, "y has only one class (5)"),
        ({"price": [3.5] * N}, "target 'price' has the value 3.5 in all 90 rows; choose another column"),
        ({"price": [3.5] * (N - 1) + [None]}, "target 'price' has the value 3.5 in all 89 rows"),
        ({"price": [float("inf")] + [0.5] * (N - 1)}, "infinity"),
        ({"price": [1e300] + [0.5] * (N - 1)}, "y has values up to 1e+300, whose variance would overflow"),
        (
            {"size": [float("inf")] + [0.5] * (N - 1)},
            "infinity in 1 of 90 rows (counted from 0, first: 0)",
        ),
        ({"w": [0] * N}, "column 'w' of sample weights is 0 in all 90 rows"),
        ({"w": [None] + [1] * (N - 1)}, "column 'w' of sample weights has None in 1 of 90 rows"),
        ({"g": [None] + [1] * (N - 1)}, "column 'g' of groups has no value in 1 of 90 rows"),
        ({"g": ["x"] * N}, "column 'g' of groups has only one value"),
    ],
    ids=lambda v: next(iter(v)) if isinstance(v, dict) else v[:20],
)
def test_tables_that_cannot_be_fitted_are_refused(call: Call, changes: dict[str, Any], message: str) -> None:
    write("bad.csv", houses(**changes))
    words = ["--weight", "w"] if "w" in changes else ["--groups", "g"] if "g" in changes else []
    refused(call("fit", "bad.csv", "--target", "price", "--out", "run", *QUICK, "--quiet", *words), message)


def test_several_targets_must_each_vary(call: Call) -> None:
    write("bad.csv", houses(rent=[0.5] * N))
    said = call("fit", "bad.csv", "--target", "price", "--target", "rent", "--out", "run", *QUICK, "--quiet")
    refused(said, "target 'rent' has the value 0.5 in all 90 rows")


def test_a_table_without_features_is_refused(call: Call) -> None:
    write("bad.csv", houses().select(["id", "price"]))
    said = call("fit", "bad.csv", "--target", "price", "--key", "id")
    refused(said, "no column is left to predict 'price' from; the table has 'id', 'price'")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "bad.csv is empty; give a table, such as CSV or Parquet"),
        ("size,price\n", "bad.csv has a header but no rows; give a table with at least one row"),
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
    "temperature": ["0", "-1"],
    "validation_fraction": ["1", "-0.1"],
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
        assert f"{option.name}=" not in said.err
        assert manifests.state("run") == "empty"


PATHS = ["--structure", "continuous", "--hidden", "4", "--epochs", "2"]


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["--structure-from", "elbo", "--elbo.rate", "-1"], "--elbo.rate"),
        (["--structure-from", "elbo", "--elbo.rate", "nan"], "--elbo.rate"),
        (["--structure-from", "elbo", "--elbo.delay", "-1"], "--elbo.delay"),
        (["--structure-from", "elbo", "--elbo.radius", "0"], "--elbo.radius"),
        (["--structure-from", "elbo", "--elbo.initial-depth", "0"], "--elbo.initial-depth"),
        (["--structure-from", "elbo", "--elbo.initial-depth", "1e9"], "--elbo.initial-depth"),
        (["--weights", "hmc", "--hmc.chains", "1"], "--hmc.chains 1 was given; at least 2 is needed"),
        (["--weights", "hmc", "--hmc.sweeps", "15"], "--hmc.sweeps 15 was given; at least 16 is needed"),
        (["--hmc.chains", "3"], "--hmc.chains was given with --weights map; it is an option of --weights hmc: add"),
        (["--adam.clip-norm", "0"], "--adam.clip-norm 0.0 was given; a positive, finite number is allowed, or 'auto'"),
        (["--adam.clip-norm", "nan"], "--adam.clip-norm nan was given"),
        (["--adam.warm-up", "1"], "--adam.warm-up 1.0 was given; 0 <= --adam.warm-up < 1 is allowed"),
        (
            ["--path.rate", "0"],
            "--path.rate was given, which --structure depth does not have; it is for --structure cont",
        ),
        ([*PATHS, "--path.rate", "-1"], "--path.rate -1.0 was given; 0 or more is allowed"),
        ([*PATHS, "--solver.steps", "0"], "--solver.steps 0 was given; at least 1 is needed"),
        ([*PATHS, "--solver.gradient", "reversible"], "--solver.gradient reversible was given with a learned rate"),
        (
            [*PATHS, "--solver", "euler", "--solver.gradient", "reversible", "--path.rate", "0.1"],
            "--solver.gradient reversible was given with --solver euler and --path.estimator closed",
        ),
        ([*PATHS, "--horizon", "random", "--horizon.count", "0"], "--horizon.count 0 was given; at least 1 is needed"),
        (
            [*PATHS, "--horizon.count", "3"],
            "--horizon.count was given with --horizon 1.0; it is an option of --horizon random: add --horizon random",
        ),
        ([*PATHS, "--steps", "3", "--solver.steps", "3"], "leave it out"),
        (["--class-cost", "balanced"], "--class-cost was given, which is for classes; the target is numeric"),
        (["--elbo.rate", "1"], "--elbo.rate was given with --structure-from auto; it is an option of --structure-from"),
        (
            ["--structure", "graph", "--hmc.chains", "3"],
            "which --structure graph does not have; it is for --structure depth",
        ),
        (
            ["--structure", "continuous", "--elbo.radius", "1"],
            "--structure continuous does not have; it is for",
        ),
        (["--weights", "hmc", "--chains", "3", "--hmc.chains", "3"], "leave it out"),
        (["--cv", "0"], "--cv 0 was given; at least 1 is needed"),
        (["--members", "3", "--cv", "4"], "--members 3 was given with --cv 4"),
        (["--folds.n-repeats", "0"], "--folds.n-repeats 0 was given; at least 1 is needed"),
        (["--n-restarts", "0"], "--n-restarts 0 was given; at least 1 is needed"),
        (["--structure", "sparse", "--folds.order", "blocks"], "--structure sparse does not have; it is for"),
        (["--structure", "graph", "--restarts.keep", "best"], "--structure graph does not have; it is for"),
    ],
)
def test_options_of_values_are_refused_and_leave_no_run(call: Call, words: list[str], flag: str) -> None:
    said = call("fit", "houses.csv", "--target", "price", "--out", "run", *words)
    refused(said, flag)
    assert "__" not in said.err
    assert manifests.state("run") == "empty"


def test_old_flags_of_continuous_depth_are_taken_with_a_note(call: Call) -> None:
    quick = [*PATHS, "--width", "4", "--cv", "1", "--quiet", "--horizon", "random", "--solver", "euler"]
    quick += ["--structure-from", "elbo"]
    old = ["--steps", "3", "--prior", "brownian", "--rate", "0.2", "--horizons", "3", "--schedule", "constant"]
    new = ["--solver.steps", "3", "--path.prior", "brownian", "--path.rate", "0.2", "--horizon.count", "3"]
    for name, words in (
        ("old", [*old, "--checkpoint-seconds", "5"]),
        ("new", [*new, "--adam.schedule", "constant", "--checkpoint.seconds", "5"]),
    ):
        said = call("fit", "houses.csv", "--target", "price", "--out", name, *quick, *words)
        assert said.code == 0, said.err
        assert ("note: --steps is deprecated; use --solver.steps" in said.err) == (name == "old")
        assert ("note: --prior is deprecated; use --path.prior" in said.err) == (name == "old")
        assert ("note: --checkpoint-seconds is deprecated; use --checkpoint.seconds" in said.err) == (name == "old")
    tensors = [next(Path(name).glob("tensors-*")).read_bytes() for name in ("old", "new")]
    assert tensors[0] == tensors[1]
    before, after = (manifests.read_manifest(name) for name in ("old", "new"))
    assert before is not None
    assert after is not None
    assert before.options == after.options


def test_old_flags_are_taken_with_a_note(call: Call) -> None:
    quick = ["--depth-law", "1", "--width", "4", "--epochs", "2", "--quiet"]
    old = ["--weights", "hmc", "--chains", "2", "--sweeps", "16", "--leapfrogs", "3", "--states", "4"]
    new = ["--weights", "hmc", "--hmc.chains", "2", "--hmc.sweeps", "16", "--hmc.leapfrogs", "3", "--hmc.states", "4"]
    said = call("fit", "houses.csv", "--target", "price", "--out", "old", *quick, *old, "--cv", "2")
    assert said.code == 0
    assert "note: --chains is deprecated; use --hmc.chains" in said.err
    said = call("fit", "houses.csv", "--target", "price", "--out", "new", *quick, *new, "--cv", "2")
    assert said.code == 0
    assert "deprecated" not in said.err
    tensors = [next(Path(name).glob("tensors-*")).read_bytes() for name in ("old", "new")]
    assert tensors[0] == tensors[1]
    before, after = (manifests.read_manifest(name) for name in ("old", "new"))
    assert before is not None
    assert after is not None
    assert before.options == after.options
    folds = {
        "before": ["--members", "2", "--repeats", "2", "--folds", "blocks"],
        "after": ["--cv", "2", "--folds.n-repeats", "2", "--folds.order", "blocks"],
    }
    for name, words in folds.items():
        said = call("fit", "houses.csv", "--target", "price", "--out", name, *quick, *words)
        assert said.code == 0
        assert ("note: --members is deprecated; use --cv" in said.err) is (name == "before")
    assert next(Path("before").glob("tensors-*")).read_bytes() == next(Path("after").glob("tensors-*")).read_bytes()
    said = call("fit", "houses.csv", "--target", "price", "--out", "idle", *quick, "--leapfrogs", "3", "--cv", "1")
    assert said.code == 0
    assert "note: --leapfrogs is deprecated, and has no effect without --weights hmc; use --hmc.leapfrogs" in said.err


@pytest.mark.parametrize("word", ["--device=meta", "--width=99999999999999999999", "--elbo.delay=-1"])
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
        "fathomless fit: internal error: RuntimeError: two. This is a bug in fathomless: please report"
    )
    monkeypatch.setenv("FATHOMLESS_TRACE", "1")
    with pytest.raises(RuntimeError, match="two"):
        call("fit", "houses.csv", "--target", "price")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (MemoryError(), 2, "error: there is not enough memory; give fewer rows or columns, or a smaller width"),
        (OSError(28, "No space left on device"), 2, "error: [Errno 28] No space left on device; check the disk and"),
        (KeyboardInterrupt(), 130, "interrupted; existing files are unchanged, unfinished ones were removed"),
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


# ----------------------------------------------------------------------------------- what a fit says and writes


def test_a_fit_says_what_it_did_and_what_is_next(call: Call) -> None:
    said = fit(call)
    assert said.err == "note: target price: regression, because it is numeric (--task changes that)\n"
    lines = said.out.splitlines()
    assert lines[0] == "price: regression on 5 columns, 90 rows"
    assert lines[1] == "Out-of-fold rows (each predicted by the networks that were not trained on it):"
    assert re.fullmatch(r"  RMSE \S+ \(mean: \S+, linear model: \S+, boosting: \S+\)", lines[2])
    assert re.fullmatch(r"  coverage of the 90 % intervals \S+ %", lines[3])
    assert re.fullmatch(r"out-of-fold rows, 90 +model +constant prediction +linear model +boosting", lines[5])
    assert "\n\ndepth: mean depth " in said.out
    assert said.out.index("log likelihood  ") < said.out.index("depth: mean depth ")  # scores come first
    for name in SCORES:
        assert f"\n{name.replace('_', ' ')}  " in said.out
    assert (
        "\nReport: run/report.html\nPredict new rows:\n  fathomless predict run NEW.csv --out predictions.csv\n"
        in said.out
    )


def test_a_page_of_cross_fitted_networks_says_so(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "render", RENDER)
    fit(call)
    html = Path("run/report.html").read_text(encoding="utf-8")
    assert "(each predicted by the networks that were not trained on it): RMSE" in re.sub("<[^>]*>", "", html)
    assert "not the probability of a number of layers" in html
    assert "Each network is a point estimate" in html
    assert "0 by assumption" not in html
    assert "initial-depth" not in html


def test_the_folder_of_a_run_follows_from_the_target(call: Call) -> None:
    table = houses().rename_columns([name.replace("price", "price, €/m²") for name in houses().column_names])
    write("odd.csv", table.drop_columns("rent"))
    assert call("fit", "odd.csv", "--target", "price, €/m²", "--quiet", *QUICK).code == 0
    assert [path.name for path in Path("runs").iterdir()] == ["price----m²"]


def test_what_was_done_to_the_table_is_noted(call: Call) -> None:
    changes = {"price": [None, None, *np.linspace(0, 1, N - 2)], "blank": [None] * N}
    said = fit(call, data=write("odd.csv", houses(**changes)))
    assert "note: 2 rows without a target were left out\n" in said.err
    assert "note: dropped columns without any value: 'blank'\n" in said.err
    manifest = manifests.read_manifest("run")
    assert manifest is not None
    assert manifest.rows == N - 2
    assert len(manifest.notes) == 3


def test_a_quiet_fit_says_nothing_but_what_was_done_to_the_table(call: Call) -> None:
    assert fit(call, "price", "--quiet") == Said(0, "", "")
    changes = {"price": [None, None, *np.linspace(0, 1, N - 2)], "blank": [None] * N}
    said = fit(call, "price", "--quiet", "--overwrite", data=write("odd.csv", houses(**changes)))
    note = "note: 2 rows without a target were left out\nnote: dropped columns without any value: 'blank'\n"
    assert said == Said(0, "", note)


def test_a_command_without_words_is_answered_with_help(call: Call) -> None:
    assert call() == call("--help")
    assert call().code == 0
    assert call().out.startswith("usage: fathomless")


@pytest.mark.parametrize("rows", [1, 9])
def test_a_table_of_too_few_rows_is_refused(call: Call, rows: int) -> None:
    said = call("fit", write("few.csv", houses(rows)), "--target", "price", "--out", "run")
    refused(said, f"few.csv has {rows} row{'s' * (rows > 1)} with a target, too few to estimate the uncertainty")
    assert manifests.state("run") == "empty"


def test_a_task_that_was_asked_for_is_not_explained(call: Call) -> None:
    assert fit(call, "level", "--task", "regression").err == ""
    assert "mean" in predicted(call).column_names
    assert fit(call, "level", "--overwrite").err.startswith("note: target level: classification, because it has 3 dist")


def test_warnings_are_notes(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def unmet(self: Any, fitted: Any, table: Any) -> Any:
        return replace(fitted, warnings=("depth is\nnot at rest",))

    monkeypatch.setattr(DepthWarnings, "__call__", unmet)
    warnings.simplefilter("default", ConvergenceWarning)
    assert fit(call).err.endswith("note: depth is not at rest\n")
    assert fit(call, "price", "--quiet", "--overwrite").err == "note: depth is not at rest\n"


def test_a_log_is_json_line_by_line(call: Call) -> None:
    said = fit(call, "price", "--log-json", "--epochs", "40")
    *rows, last = (json.loads(line) for line in said.out.splitlines())
    history = [json.loads(line) for line in Path("run/history.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows == [{"event": "epoch", "of": 40, **row} for row in history]
    assert len(rows) == 5
    assert (last["event"], last["run"], list(last["scores"])) == ("finished", "run", SCORES)
    assert "Short training" in [finding["title"] for finding in last["findings"]]
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


# --------------------------------------------------------------------------------------------- real processes

PROGRAM = [sys.executable, "-m", "fathomless.app.cli"]
LONG = ["fit", "houses.csv", "--target", "price", "--epochs", "400", "--width", "4", "--depth-law", "1"]
LONG += ["--patience", "none", "--cv", "2"]


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
    goes_on(call, err.decode().partition("To resume: ")[2], whole)


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
    assert "fathomless: stopping after this epoch, with a checkpoint; a second signal stops immediately" in text
    goes_on(call, text.partition("To resume: ")[2].strip(), whole)


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
    done = subprocess.run([*PROGRAM, "fit", "--help-all"], env=environment, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"depth \u2212 min_depth" in done.stdout
