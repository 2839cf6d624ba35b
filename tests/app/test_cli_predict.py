"""The command line as its users meet it: predictions, and the formats of tables."""

import datetime
import functools
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from commands import Call
from fathomless.app import manifests, runs
from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.tables import files as tables
from housing import QUICK, N, column, fit, fitted, houses, model_of, predicted, refused, standard_input, write

# fits are short on purpose
pytestmark = [
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning"),
    pytest.mark.usefixtures("houses_csv"),
]


def features(table: pa.Table) -> pa.Table:
    return table.select(["size", "rooms", "colour", "new", "built"])


# --------------------------------------------------------------------------------------------- errors: a run

PREDICTING: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "new category": (
        {"colour": ["mauve"] * N},
        ["--unseen", "error"],
        "column 'colour' has the category 'mauve' in 90 of 90 rows",
    ),
    "missing value": (
        {"size": [None] + [0.5] * (N - 1)},
        ["--missing", "error"],
        "column 'size' has missing values (NaN) in 1 of 90 rows",
    ),
    "text for number": ({"size": ["big"] * N}, [], "column 'size', row 1 after the header: 'big' is not a number"),
    "number for truth": ({"new": [7] * N}, [], "column 'new'"),
    "infinity": ({"size": [float("inf")] * N}, [], "column 'size' contains infinity in 90 of 90 rows"),
    "no such key": ({}, ["--key", "ident"], "there is no column 'ident'; did you mean"),
    "other ending": ({}, ["--out", "x.txt"], "x.txt has an unknown ending; allowed are .csv, .tsv, .jsonl"),
    "no folder": ({}, ["--out", "nowhere/x.csv"], "nowhere/x.csv cannot be written: No such file or directory"),
    "a folder": ({}, ["--out", "run/evaluations.csv"], "run/evaluations.csv is a folder; give the name of a file"),
}


def test_times_with_a_zone_are_the_same_in_all_formats(call: Call) -> None:
    """Times without one are predicted with a note, once, whatever the format of the training table."""
    hours = [datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC) + datetime.timedelta(hours=7 * i) for i in range(N)]
    cells = [f"{(t + datetime.timedelta(hours=2)).isoformat(' ').removesuffix('+00:00')}+02:00" for t in hours]
    y = [float(t.hour) for t in hours]
    write("typed.parquet", pa.table({"when": pa.array(hours, pa.timestamp("us", "UTC")), "y": y}))
    write("text.csv", pa.table({"when": cells, "y": y}))
    write("plain.csv", pa.table({"when": [cell.removesuffix("+02:00") for cell in cells], "y": y}))
    found = []
    for table in ("typed.parquet", "text.csv"):
        said = call("fit", table, "--target", "y", "--out", f"run-{table}", *QUICK)
        assert said.code == 0, said.err
        for new in ("typed.parquet", "text.csv"):
            said = call("predict", f"run-{table}", new, "--out", "-")
            assert "time zone" not in said.err
            found.append(said.out)
        said = call("predict", f"run-{table}", "plain.csv", "--out", "-")
        assert said.err.count("times had a time zone in the training data, and now they have none") == 1
        assert said.out != found[-1]
    assert len(set(found)) == 1


def test_words_for_missing_values_are_those_of_the_run(call: Call) -> None:
    """A fit with words equals that of a table with empty cells, and its run reads new tables with them."""
    sizes = [f"{value:.4f}" for value in np.random.default_rng(0).normal(size=N)]
    for name, gap in (("empty.csv", None), ("words.csv", "k.A."), ("more.csv", "gone")):
        write(name, houses(size=[gap if i in (4, 7) else size for i, size in enumerate(sizes)]))
    said = fit(call, "price", "--na", "k.A.,unknown", data="words.csv", out="words")
    assert "categorical, although" not in said.err
    fit(call, "price", data="empty.csv", out="empty")
    expected = predicted(call, run="empty", data="empty.csv")
    assert predicted(call, run="words", data="words.csv").equals(expected)
    assert predicted(call, "--na", "lost", "--na", "gone", run="words", data="more.csv").equals(expected)
    assert manifests.read_manifest("words").missing == ("k.A.", "unknown")  # type: ignore[union-attr]
    refused(call("predict", "words", "more.csv"), "column 'size', row 5 after the header: 'gone' is not a number")
    said = call("evaluate", "words", "words.csv", "--json")
    assert said.code == 0
    assert json.loads(said.out)["rows"] == N
    said = call("explain", "words", "words.csv", "--json")
    assert said.code == 0, said.err
    again = ["fit", "words.csv", "--target", "price", "--key", "id", "--out", "words", "--resume", *QUICK]
    assert "--na" in call(*again).err
    write("stream.parquet", houses())
    drops = [word for name in ("rent", "grade", "level", "sold") for word in ("--drop", name)]
    stream = ["fit", "stream.parquet", "--target", "price", "--key", "id", *drops, "--stream", "--na", "x"]
    refused(call(*stream), "--na x was given, and a stream has no words for missing values")


def test_predictions_need_no_scikit_learn_and_no_pandas(call: Call) -> None:
    fitted(call)
    write("new.csv", houses())
    code = (
        "import sys; from fathomless.app.cli import main; code = main(['predict', 'run', 'new.csv']); "
        "slow = {'sklearn', 'scipy', 'pandas', 'joblib'} & set(sys.modules); sys.exit(f'{code} {sorted(slow)}')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == "0 []"
    assert done.stdout == call("predict", "run", "new.csv").out


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
        ("size,rooms\n1,2\n", "new.csv lacks the columns 'colour', 'new', 'built'; its columns are 'size', 'rooms'"),
        ("", "new.csv is empty; give a table, such as CSV or Parquet"),
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
    refused(call("predict", "run", "new.csv", "--out", "predictions.csv", "--missing", "error"), "missing values")
    assert tables.read("predictions.csv").frame.equals(before)


def test_empty_standard_input_is_refused(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted(call)
    for words in (["predict", "run", "-"], ["evaluate", "run", "-"], ["fit", "-", "--target", "price"]):
        standard_input(monkeypatch, b"")
        refused(call(*words), "standard input is empty; give a table, such as CSV or Parquet")


# ------------------------------------------------------------------------------------------------ predictions


def test_predictions_are_those_of_python_bit_for_bit(call: Call) -> None:
    fitted(call)
    table = houses()
    python = UnboundedDepthRegressor(epochs=4, width=8, cv=2, random_state=0)
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


def test_intervals_with_a_guarantee_are_those_of_python(call: Call) -> None:
    fitted(call)
    python = manifests.load_predictor("run")[0]
    X = features(tables.read("houses.csv").frame)
    for words, options in (
        (["--guarantee", "marginal"], {"guarantee": "marginal"}),
        (["--guarantee", "group", "--by", "colour"], {"guarantee": "group", "column": "colour"}),
    ):
        found = predicted(call, *words, "--interval", "0.5")
        for name, values in zip(("lower_50", "upper_50"), python.predict_interval(X, 0.5, **options), strict=True):
            np.testing.assert_array_equal(column(found, name), values)
    refused(call("predict", "run", "houses.csv", "--by", "colour"), "--guarantee group and --by COLUMN require each")
    refused(call("predict", "run", "houses.csv", "--guarantee", "group"), "--guarantee group and --by COLUMN require")
    said = call("predict", "run", "houses.csv", "--guarantee", "group", "--by", "size")
    refused(said, "column='size' was given; a column of categories or booleans is needed: allowed are the columns")


@pytest.mark.parametrize("target", ["price", "grade"])
def test_p_values_of_rows_are_those_of_python(call: Call, target: str) -> None:
    fitted(call, target)
    python = manifests.load_predictor("run")[0]
    new = write("new.csv", houses(seed=1, size=np.linspace(0.0, 60.0, N)))
    said = call("predict", "run", new, "--ood", "--out", "new-predictions.csv")
    found = column(tables.read("new-predictions.csv").frame, "ood_p")
    np.testing.assert_array_equal(found, python.ood_p_values(features(tables.read(new).frame)))
    assert found.min() < 0.05 < found.max()
    small = int((found <= 0.05).sum())
    assert f"note: {small} of {N} rows have a p-value up to 0.05 (ood_p); at most about 5 % are expected\n" in said.err
    assert "ood_p" not in predicted(call, data=new).column_names


def test_ordered_classes_are_those_of_python(call: Call) -> None:
    table = tables.read("houses.csv").frame
    names = ["low", "high"]
    for target, words, ordinal in (("level", ["--ordinal"], True), ("grade", ["--ordinal", "low, high"], names)):
        fit(call, target, *words, "--overwrite")
        python = UnboundedDepthClassifier(epochs=4, width=8, cv=2, random_state=0, ordinal=ordinal)
        python.fit(features(table), np.array(table[target].to_pylist()))
        found = predicted(call)
        for label, values in zip(python.classes_, python.predict_proba(features(table)).T, strict=True):
            np.testing.assert_allclose(column(found, f"probability_{label}"), values, rtol=1e-12)
    said = call("fit", "houses.csv", "--target", "grade", "--ordinal", *QUICK, "--overwrite", "--out", "run")
    assert said.code == 2
    assert "the order of text labels is unknown" in said.err


def test_the_order_of_classes_on_the_command_line_has_their_types(call: Call) -> None:
    halves = np.arange(N) % 2 == 0
    write("classes.csv", houses(size_class=np.where(halves, "so, so", "good").tolist(), code=halves.tolist()))
    for target, order, expected in (
        ("size_class", 'good, "so, so"', ["good", "so, so"]),
        ("level", ",".join(str(level) for level in (3, 1, 2, 0)), [3, 1, 2, 0]),
        ("code", "true,false", [True, False]),
    ):
        fit(call, target, "--ordinal", order, "--overwrite", data="classes.csv")
        labels = runs.load("run")[0].target_
        ranked = sorted(zip(labels.ranks, labels.labels, strict=True))
        assert [label for _, label in ranked] == [label for label in expected if label in labels.labels]


@pytest.mark.parametrize("target", ["grade", "level", "sold"])
def test_classes_are_those_of_python_and_keep_their_type(call: Call, target: str) -> None:
    fitted(call, target)
    table = tables.read("houses.csv").frame
    python = UnboundedDepthClassifier(epochs=4, width=8, cv=2, random_state=0)
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
    python = UnboundedDepthRegressor(epochs=4, width=8, cv=2, random_state=0)
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


def test_columns_that_name_the_rows_are_left_out_of_streams_as_of_tables(call: Call) -> None:
    table = houses().select(["id", "size", "rooms", "price"]).append_column("serial", pa.array(range(N)))
    table = table.append_column("nr", pa.array([7 * i for i in range(N)]))
    pa.parquet.write_table(table, "houses.parquet", row_group_size=40)
    words = ["--target", "price", *QUICK, "--cv", "1"]
    seen = []
    for place, more in (("whole", []), ("streamed", ["--stream"])):
        said = call("fit", "houses.parquet", "--out", place, *words, *more)
        assert said.code == 0, said.err
        manifest = manifests.read_manifest(place)
        assert manifest is not None
        seen.append(
            (manifest.columns, [text for text in manifest.notes if "identifiers" in text or "row numbers" in text])
        )
    assert seen[0] == seen[1]
    assert "id" not in seen[1][0]
    said = call("fit", "houses.parquet", "--out", "kept", *words, "--stream", "--keep", "id", "--max-levels", "200")
    assert said.code == 0, said.err
    assert "id" in manifests.read_manifest("kept").columns
    refused(
        call("fit", "houses.parquet", "--out", "x", *words, "--stream", "--keep", "idd"), "there is no column 'idd'"
    )


@pytest.mark.parametrize("target", ["price", "grade"])
def test_scores_count_rows_by_their_weight(call: Call, target: str) -> None:
    table, weight = houses(rows=40), np.arange(40) % 3 + 1
    weighted = write("weighted.csv", table.append_column("w", pa.array(weight)))
    copies = write("copies.csv", table.take(np.repeat(np.arange(40), weight)))
    fit(call, target, "--weight", "w", data=weighted)
    found = {
        name: json.loads(call("evaluate", "run", *words, "--json").out)
        for name, words in {
            "kept": [weighted],
            "named": [weighted, "--weight", "w"],
            "copies": [copies],
            "other": [write("other.csv", table.append_column("v", pa.array(weight / 7.0))), "--weight", "v"],
            "once": [write("once.csv", table)],
        }.items()
    }
    scores = {name: {key: one["value"] for key, one in told["scores"].items()} for name, told in found.items()}
    assert found["kept"]["rows"] == found["copies"]["rows"] == weight.sum()
    assert scores["kept"] == scores["named"] == pytest.approx(scores["copies"], rel=1e-9)
    assert scores["other"] == pytest.approx(scores["copies"], rel=1e-9)
    assert scores["once"] != pytest.approx(scores["copies"], rel=1e-3)
    own = {one.name: one.rows for one in runs.evaluations("run")}
    assert own["training rows"] == weight.sum()
    refused(call("evaluate", "run", "once.csv", "--weight", "w"), "'w'")


def test_groups_share_a_fold_and_predict_nothing(call: Call) -> None:
    group = [f"p{i // 6}" for i in range(N)]
    write("grouped.csv", houses(patient=group))
    fit(call, "price", "--groups", "patient", "--cv", "3", data="grouped.csv")
    found, manifest = manifests.load_predictor("run")
    assert manifest is not None
    assert manifest.groups == "patient"
    assert "patient" not in manifest.columns
    fold = found.fold
    assert fold is not None
    for name in set(group):
        own = fold[:, [i for i, other in enumerate(group) if other == name]]
        assert (own == own[:, :1]).all()
    assert "patient" not in call("predict", "run", "grouped.csv").err
    assert call("evaluate", "run", "grouped.csv").code == 0
    said = call("fit", "grouped.csv", "--target", "price", "--out", "run", "--resume", "--cv", "3")
    refused(said, "--groups (here None, there patient)")


def test_censored_rows_are_named_by_a_column(call: Call) -> None:
    price = np.array(houses()["price"].to_pylist(), dtype=float)
    end = float(np.median(price))
    words = np.where(price > end, "right", "exact")
    write("censored.csv", houses(price=np.minimum(price, end), status=words))
    fit(call, "price", "--censored", "status", "--cv", "3", data="censored.csv")
    manifest = manifests.load_predictor("run")[1]
    assert manifest is not None
    assert manifest.censored == "status"
    assert "status" not in manifest.columns
    own = {one.name: one for one in runs.evaluations("run")}
    assert own["out-of-fold rows"].censored == int((words == "right").sum())
    assert "status" not in call("predict", "run", "censored.csv").err
    assert not Path("run/analysis.json").exists()
    Path("same.csv").write_bytes(Path("censored.csv").read_bytes() + b"\n")  # not the file of the fit
    evaluated = call("evaluate", "run", "same.csv")
    assert f"{(words == 'right').sum()} targets are censored" in evaluated.out
    write("numbers.csv", houses(price=np.minimum(price, end), flag=(words == "right").astype(int)))
    again = call("evaluate", "run", "numbers.csv", "--censored", "flag")
    assert again.out.splitlines()[1:] == evaluated.out.splitlines()[1:]
    assert f"using the {(words == 'exact').sum()} of {N} rows" in call("explain", "run", "censored.csv").err
    said = call("fit", "censored.csv", "--target", "price", "--out", "run", "--resume", "--cv", "3")
    refused(said, "--censored (here None, there status)")
    refused(call("fit", "censored.csv", "--target", "colour", "--censored", "status"), "targets of a regression")
    refused(call("fit", "censored.csv", "--task", "density", "--censored", "status"), "a density has no target")
    write("gaps.csv", houses(status=["", *["exact"] * (N - 1)]))
    refused(call("fit", "gaps.csv", "--target", "price", "--censored", "status"), "has no value in 1 of 90 rows")


def test_a_row_of_the_weight_zero_is_as_if_it_were_not_there(call: Call) -> None:
    table = houses(colour=["mauve", *["red", "blue"] * 44, "red"], w=[0, *[1] * (N - 1)])
    said = fit(call, "price", "--weight", "w", data=write("weighted.csv", table))
    assert "note: 1 row with weight 0 was left out\n" in said.err
    fit(call, data=write("without.csv", table.slice(1).drop_columns("w")), out="without")
    assert predicted(call, data="without.csv").equals(predicted(call, run="without", data="without.csv"))


def test_the_order_and_number_of_other_columns_do_not_matter(call: Call) -> None:
    fitted(call)
    expected = predicted(call)
    table = houses()
    mixed = table.select(sorted(table.column_names, reverse=True)).append_column("more", pa.array(["x"] * N))
    said = call("predict", "run", write("mixed.csv", mixed), "--out", "mixed_out.csv")
    assert (said.code, said.out) == (0, "Wrote 90 rows to mixed_out.csv\n")
    assert said.err == "note: unused columns: sold, rent, price, level, grade, more\n"
    assert tables.read("mixed_out.csv").frame.equals(expected)


def test_a_category_that_training_did_not_see_is_predicted_with_a_note(call: Call) -> None:
    fitted(call)
    new = write("new.csv", houses(colour=["mauve", "grey", "mauve", *["red"] * (N - 4), "grey"]))
    said = call("predict", "run", new, "--out", "new_out.csv")
    assert said.code == 0
    assert "4 of 90 rows have categories that the training table does not have: " in said.err
    assert "'colour' is 'mauve' in rows 1, 3; 'colour' is 'grey' in rows 2, 90. They were encoded as none" in said.err
    assert "warning" not in said.err.lower()
    found = predicted(call, "--unseen", "ignore", data=new)
    assert len(found) == N
    assert found.equals(tables.read("new_out.csv").frame)
    for command in ("evaluate", "explain"):
        said = call(command, "run", new)
        assert said.code == 0
        assert "'colour' is 'mauve' in 2 of them" in said.err
    refused(call("predict", "run", new, "--unseen", "error"), "column 'colour' has the category 'mauve' in 4 of 90")
    fit(call, "price", "--unseen", "error", out="strict")
    for command in ("predict", "evaluate", "explain"):
        refused(call(command, "strict", new), "Correct it, or give --unseen ignore")
        assert call(command, "strict", new, "--unseen", "ignore").code == 0


def test_gaps_are_filled_where_training_had_some_or_was_told_to(call: Call) -> None:
    gaps = write("gaps.csv", houses(size=[None, *np.linspace(0, 1, N - 1)]))
    empty = write("empty.csv", houses(size=[None] * N))
    fit(call, data=gaps, out="with_gaps")
    fit(call, "price", "--missing", "impute", out="told")
    for run in ("with_gaps", "told"):
        for data in (gaps, empty):
            assert len(predicted(call, run=run, data=data)) == N
            assert call("evaluate", run, data).code == 0


def test_gaps_that_training_did_not_have_are_filled_with_a_note(call: Call) -> None:
    """A row with a missing number has the prediction of the mean, and other rows those of a complete table."""
    fitted(call)
    expected = predicted(call)
    size, colour = houses()["size"].to_pylist(), houses()["colour"].to_pylist()
    new = write("gaps.csv", houses(size=[size[0], None, *size[2:]], colour=[*colour[:3], None, *colour[4:]]))
    said = call("predict", "run", new, "--out", "filled.csv")
    assert said.code == 0
    assert "2 of 90 rows have missing values in columns that had none in the training table" in said.err
    assert "in the training table: 'size' in row 2; 'colour' in row 4. Numbers were replaced by" in said.err
    assert "--missing error refuses such rows" in said.err
    found = tables.read("filled.csv").frame
    others = np.setdiff1d(np.arange(N), [1, 3])
    assert found.take(others).equals(expected.take(others))
    mean = np.mean(size)
    at_mean = predicted(call, data=write("mean.csv", houses(size=[size[0], mean, *size[2:]])))
    numbers = [name for name in found.column_names if column(found, name).dtype.kind == "f"]
    assert numbers
    for name in numbers:
        assert column(found, name)[1] == pytest.approx(column(at_mean, name)[1], rel=1e-9)
    for command in ("evaluate", "explain"):
        said = call(command, "run", new).err
        assert "2 of 90 rows have missing values" in said
        assert "'size' in 1 of them; 'colour' in 1 of them" in said
        refused(call(command, "run", new, "--missing", "error"), "has missing values (NaN) in 1 of 90 rows")
    fit(call, "price", "--missing", "error", out="strict")
    refused(call("predict", "strict", new), "missing values")
    assert call("predict", "strict", new, "--missing", "impute").code == 0


def test_rows_that_are_not_in_the_order_of_time_have_a_note(call: Call) -> None:
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(days=i) for i in range(N)]
    short = ["--epochs", "2", "--width", "4", "--cv", "2", "--overwrite", "--folds.order", "blocks"]
    for order in (days, [*days[5:], *days[:5]]):
        data = write("dated.csv", houses(built=order))
        said = call("fit", data, "--target", "price", "--out", "ordered", *short)
        assert said.code == 0
        compared = call("compare", data, "--target", "price", "--methods", "constant", "--order", "forward", "--json")
        for text in (said.err, compared.err):
            assert ("rows are not in the order of 'built'" in text) == (order != days)
    assert "in the order of" not in call("fit", data, "--target", "price", "--out", "random", *short[:-2]).err


def test_rows_far_from_the_training_rows_have_a_note(call: Call) -> None:
    fitted(call)
    assert "unlike the training rows" not in call("predict", "run", write("same.csv", houses())).err
    size = np.asarray(houses()["size"].to_pylist())
    for factor, count in ((1000.0, N), (1.0, 30)):
        moved = np.where(np.arange(N) < count, 1e4 + factor * size, size)
        said = call("predict", "run", write("far.csv", houses(size=moved.tolist())))
        assert said.code == 0
        found = re.search(r"note: (\d+) of 90 rows are unlike the training rows: their p-values are up to", said.err)
        assert found is not None
        assert count <= int(found[1]) <= min(N, count + 15)
    assert "unlike" not in call("predict", "run", "far.csv", "--ood").err.replace("--ood", "")


def test_many_gaps_are_counted(call: Call) -> None:
    fitted(call)
    said = call("predict", "run", write("gaps.csv", houses(size=[None] * N)))
    assert "90 of 90 rows have missing values" in said.err
    assert "'size' in rows 1, 2, 3, 4, 5 and 85 more" in said.err


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
    refused(said, "--interval was given, which is for numeric targets; the target is a class")


def test_classes_of_any_text_are_told_apart(call: Call) -> None:
    labels = ['a,"b"', "ü\nü", "x", "X", "x y", "NA"]
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
    refused(
        call("predict", "run", new, "--key", "mean"), "the key column 'mean' has the name of a column of predictions"
    )


def test_keys_keep_what_they_are(call: Call) -> None:
    keys = ["007", "a,b", 'quo"te', "new\nline", "ü", "x  y", *map(str, range(N - 6))]
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
    fit(call, "price", "--weights", "meanfield", "--weight-draws", "3", "--cv", "auto")
    whole = predicted(call)
    assert (column(whole, "variance_weights") > 0).all()
    monkeypatch.setattr(tables, "batches", functools.partial(tables.batches, rows=40))
    np.testing.assert_allclose(column(predicted(call), "mean"), column(whole, "mean"), rtol=1e-12)


# ------------------------------------------------------------------------------------------------- formats


@pytest.mark.filterwarnings("ignore:.*with decimal commas:fathomless.system.errors.DataWarning")
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
        ("houses.txt", []),
        ("houses.tsv", []),
        ("houses.tsv", ["--delimiter", "tab"]),
        ("-", []),
    ):
        fit(call, "price", *words, "--overwrite", data=data, out="other")
        assert model_of("other") == expected, data
        if data != "-":
            assert predicted(call, *words, data=data).equals(found), data
    manifest = manifests.read_manifest("other")
    assert manifest is not None
    assert (manifest.source, manifest.bytes) == ("standard input", len(plain))


def test_one_row_is_read_as_its_table_was(call: Call) -> None:
    """Decimal commas, points between thousands and days first: alone, a cell could be read otherwise."""
    rng = np.random.default_rng(0)
    size, day = rng.integers(1001, 9999, 60), rng.integers(1, 28, 60)
    swap = str.maketrans(",.", ".,")
    features = [f"{n:,};{d:02d}.03.2024".translate(str.maketrans(",", ".")) for n, d in zip(size, day, strict=True)]
    prices = [f"{n / 7:,.2f} €".translate(swap) for n in size]
    lines = ["size;day;price", *map(";".join, zip(features, prices, strict=True))]
    Path("german.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    said = call("fit", "german.csv", "--target", "price", "--epochs", "4", "--cv", "1", "--out", "german")
    assert "price: regression on 2 columns, 60 rows" in said.out
    assert "note: read as numbers with decimal commas, thousands separators or units" in said.err
    assert "note: read as dates of the form %d.%m.%Y (--dates changes that): day" in said.err
    whole = predicted(call, data="german.csv", run="german")
    Path("one.csv").write_text("size;day\n" + features[0] + "\n", encoding="utf-8")
    one = predicted(call, data="one.csv", run="german")
    assert one["mean"].to_pylist() == pytest.approx(whole["mean"].to_pylist()[:1])


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
    manifest = manifests.read_manifest("run")
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
    python = UnboundedDepthRegressor(epochs=2, width=4, cv=3, random_state=0).fit(features(table), y)
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
    refused(said, "saved was saved from Python, without the name of the target; evaluate it in Python")


def test_an_estimator_of_an_array_takes_columns_by_position(call: Call) -> None:
    X = np.random.default_rng(0).normal(size=(N, 2))
    python = UnboundedDepthRegressor(epochs=2, width=4, cv=3, random_state=0).fit(X, X[:, 0])
    python.save("saved")
    write("new.csv", pa.table({"any": X[:, 0], "name": X[:, 1]}))
    np.testing.assert_array_equal(column(predicted(call, run="saved", data="new.csv"), "mean"), python.predict(X))
    write("keyed.csv", pa.table({"id": range(N), "any": X[:, 0], "name": X[:, 1]}))
    found = predicted(call, "--key", "id", run="saved", data="keyed.csv")
    np.testing.assert_array_equal(column(found, "mean"), python.predict(X))
    refused(call("predict", "saved", "keyed.csv"), "the table has 3 columns; the model was trained on an array of 2")
