"""Tables as they come: a folder of messy files, each with what must come out of it, and the same in other formats."""

import datetime
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fathomless.app.cli import main
from fathomless.app.commands import inputs
from fathomless.data import frames
from fathomless.system.errors import DataError, FileError
from fathomless.tables import files as tables
from fathomless.tables.anomalies import find_observations
from fathomless.tables.writers import writer

MESSY = Path(__file__).parents[1] / "messy"
EXPECTED: list[dict[str, Any]] = json.loads((MESSY / "expected.json").read_text(encoding="utf-8"))


def plain(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {
        name: [str(cell) if isinstance(cell, datetime.datetime) else cell for cell in cells]
        for name, cells in columns.items()
    }


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: " ".join([case["file"], *case.get("form", {})]))
def test_what_comes_out_of_a_messy_file(case: dict[str, Any]) -> None:
    path, form = str(MESSY / case["file"]), case.get("form", {})
    found = inputs.read(inputs.FitRequest(path, [case["target"]], keep=case.get("keep", ()), form=form))
    X, y = found.take(np.arange(found.rows))
    assert found.task == case["task"]
    assert plain(X.to_pydict()) == case["columns"]
    assert y.tolist() == case["answers"]
    assert [note for note in found.notes if not note.startswith("target")] == case["notes"]
    schema = frames.fit_schema(X)
    kinds = {column.name: column.kind for column in schema.columns}
    form = {**form, "notation": found.notation}  # as predictions read it
    if case.get("margins"):  # as evaluations do
        form["used"] = functools.partial(find_observations, targets=[case["target"]], weight=None, drop=())
    rows = pa.concat_tables(tables.batches(path, kinds, rows=2, **form)).select(X.column_names)
    again = frames.encode(schema, rows)
    del form["notation"]
    whole = frames.encode(schema, tables.read(path, **form).frame.select(X.column_names))
    assert np.array_equal(again, whole, equal_nan=True)


def test_every_messy_file_has_its_case() -> None:
    assert {path.name for path in MESSY.iterdir()} == {"expected.json", "text-target.csv"} | {
        case["file"] for case in EXPECTED
    }


def test_a_text_that_differs_in_every_row_is_no_class(capsys: Any, tmp_path: Path) -> None:
    assert main(["fit", str(MESSY / "text-target.csv"), "--target", "note", "--out", str(tmp_path / "run")]) == 2
    assert (
        "too many for classes: if the column is an identifier, a name or a date, choose another target"
        in capsys.readouterr().err
    )


def test_a_sheet_is_read_as_if_it_were_csv(tmp_path: Path) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (
        [None, None, None, None, None, None],
        ["id", " size ", "new", "sold", "kind", "price"],
        [1, "113,56", True, datetime.datetime(2024, 2, 29), "A", 1.5],
        [2, "1.098,2", False, datetime.datetime(2024, 3, 1, 10, 30), 7, 2],
        [None, None, None, None, None, None],
        [3, "#N/A", None, None, " B ", 3.25],
    ):
        book.active.append(row)
    path = tmp_path / "table.dat"  # the name plays no part
    book.save(path)
    found = inputs.read(inputs.FitRequest(str(path), ["price"]))
    X, y = found.take(np.arange(3))
    assert plain(X.to_pydict()) == {
        "size": [113.56, 1098.2, None],
        "new": [True, False, None],
        "sold": ["2024-02-29 00:00:00", "2024-03-01 10:30:00", None],
        "kind": ["A", "7", "B"],
    }
    assert y.tolist() == [1.5, 2.0, 3.25]
    assert "look like identifiers" in "".join(found.notes)
    bare = tables.read(path, header=False, columns=["column_6", "column_5"]).frame
    assert bare.to_pydict() == {"column_6": ["price", "1.5", "2", "3.25"], "column_5": ["kind", "A", "7", "B"]}
    book.active.append([4, 1, True, None, "C", 2, "more"])
    book.save(path)
    with pytest.raises(DataError, match="row 4 after the header, has more cells than the header"):
        tables.read(path)


NAMES = ("table.csv", "table.csv.gz", "table.tsv", "table.jsonl", "table.ndjson.gz", "table.parquet", "table.feather")
TYPED = ("table.parquet", "table.feather")


@pytest.mark.parametrize("name", [*NAMES, "table.arrow", "table.xlsx"])
def test_every_format_gives_back_what_was_written(tmp_path: Path, name: str) -> None:
    frame = pa.table(
        {
            "whole": [1, None, 3],
            "number": [0.1, 1e-300, None],
            "text": ["a, b", None, 'ä\t"c"'],
            "bool": [True, None, False],
            "time": pa.array([datetime.datetime(2024, 2, 29, 1, 2, 3), None, None], pa.timestamp("us")),
        }
    )
    path = tmp_path / name
    with writer(path) as write:
        write(frame[:2])
        write(frame[2:])
    kinds = {"whole": "numeric", "number": "numeric", "bool": "boolean", "time": "date"}
    assert tables.read(path).frame.to_pydict() == frame.to_pydict()
    assert pa.concat_tables(tables.batches(path, kinds, rows=1)).to_pydict() == frame.to_pydict()
    assert tables.read(path, columns=["text", "whole"]).frame.column_names == ["text", "whole"]
    with pytest.raises(DataError, match="'x'"):
        tables.read(path, columns=["x"])
    if "csv" not in name and "tsv" not in name and "xlsx" not in name:
        with pytest.raises(DataError, match="--no-header, which is for CSV and Excel"):
            tables.read(path, header=False)


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"])), min_size=1, max_size=5))
def test_one_rule_of_trimming(tmp_path_factory: Any, texts: list[str]) -> None:
    texts = [f"x{text} " for text in texts]
    frame = pa.table({"text": [*texts, "", "  "], "number": [1.5] * (len(texts) + 2)})
    folder = tmp_path_factory.mktemp("trimming")
    for name in ("table.csv", "table.jsonl", "table.parquet", "table.feather"):
        with writer(folder / name) as write:
            write(frame)
        found = tables.read(folder / name).frame["text"].to_pylist()
        assert found == [*(text.strip() for text in texts), None, None], name


@pytest.mark.parametrize("content", [b"PK\x03\x04 and so on", b"ARROW1\0\0 and so on", b"FEA1"])
def test_what_only_looks_like_a_table_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "table"
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"spreadsheet|damaged|Feather file of version 1"):
        tables.read(path)


def test_a_form_that_cannot_be_is_refused(tmp_path: Path) -> None:
    for form, message in (
        ({"dates": "first"}, "dates is 'first'; allowed are auto, day-first and month-first"),
        ({"encoding": "klingon"}, "encoding is 'klingon', which Python does not know"),
    ):
        with pytest.raises(DataError, match=message):
            tables.read(MESSY / "bars.csv", **form)
    with pytest.raises(FileError, match="is not ascii"):
        tables.read(MESSY / "latin.csv", encoding="ascii")


def rows(count: int, seed: int) -> list[list[str]]:
    """Draw cells of two columns of numbers, the first of which both decimal marks can read, and their target."""
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(1, 9, count), rng.uniform(10, 99, count)
    return [[f"{i:.3f}", f"{j:.2f}", f"{2 * i + j / 10:.2f}"] for i, j in zip(a, b, strict=True)]


def save(name: str, cells: list[list[str]], delimiter: str = ",", mark: str = ".") -> None:
    """Write a table, its header first."""
    lines = [delimiter.join(["a", "b", "y"]), *(delimiter.join(row).replace(".", mark) for row in cells)]
    Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore:.*the training data had decimal:fathomless.system.errors.DataWarning")
@pytest.mark.parametrize("mark", [".", ","])
def test_commands_read_new_tables_by_their_own_notation(workplace: None, capsys: Any, mark: str) -> None:
    """The same rows have the same predictions, scores and explanations, whatever their decimal mark is."""

    def said(*words: str) -> str:
        assert main(list(words)) == 0, capsys.readouterr().err
        return str(capsys.readouterr().out)

    forms = {"points": (",", "."), "commas": (";", ",")}
    for name, (delimiter, own) in forms.items():
        save(f"{name}.csv", rows(40, 1), delimiter, own)
        margins = [["s", "°C", "%"], *rows(40, 1), ["Source: an office", "", ""]]
        save(f"{name}-margins.csv", margins, delimiter, own)
        save(f"{name}-train.csv", rows(60, 0), delimiter, own)
    train = "points-train.csv" if mark == "." else "commas-train.csv"
    said("fit", train, "--target", "y", "--out", "run", "--epochs", "3", "--width", "4", "--cv", "2", "--quiet")
    for command in ("predict", "evaluate", "explain"):
        words = ["--json"] * (command != "predict")
        found = {
            name: said(command, "run", f"{name}.csv", *words).replace(f"{name}.csv", "")
            for name in (*forms, *(f"{name}-margins" for name in forms if command != "predict"))
        }
        assert len(set(found.values())) == 1, command
    assert main(["predict", "run", "points-margins.csv"]) == 2
    assert "column 'a', row 1 after the header: 's' is not a number" in capsys.readouterr().err
