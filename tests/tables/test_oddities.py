"""Cells and rows that do not fit: they are told of, and they do not decide what a column is."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fathomless.app.commands import inputs
from fathomless.system.errors import DataError, DataWarning, FileError
from fathomless.tables.anomalies import OddCells, find_odd_cells

N = 40
RNG = np.random.default_rng(0)
NUMBERS = [f"{value:.3f}" for value in RNG.uniform(1.1, 99, N)]
Y = [f"{value:.3f}" for value in RNG.normal(size=N)]
NOTE = "categorical, although most cells are"


def column(*cells: str | None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(cells, pa.string())])


def fitted(path: Path, target: str = "y", **asked: Any) -> tuple[dict[str, str], tuple[str, ...], inputs.Input]:
    """Return the types of the columns that predict, the notes, and all."""
    found = inputs.read(inputs.FitRequest(str(path), [target], **asked))
    X = found.take(np.arange(found.rows))[0]
    return dict(zip(X.column_names, map(str, X.schema.types), strict=True)), found.notes, found


def written(tmp_path: Path, columns: dict[str, list[Any]], form: str = "csv") -> Path:
    """Write cells, as CSV in which all are in quotes, as JSON lines or as a sheet of Excel."""
    path = tmp_path / f"table.{form}"
    rows = list(zip(*columns.values(), strict=True))
    if form == "xlsx":
        book = pytest.importorskip("openpyxl").Workbook()
        for row in (list(columns), *rows):
            book.active.append(row)
        book.save(path)
    elif form == "jsonl":
        path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
    else:
        lines = [",".join("" if cell is None else f'"{cell}"' for cell in row) for row in (list(columns), *rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


# ------------------------------------------------------------------------------------------------- cells

ODD = ["unknown", "<5", "1,5", "1.234,5", "5%", "$5", "5 €", "1,00,000", "12,34,567.5", "5 kg", "1-2", "5e", "x"]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("place", [0, 7, N - 1])
@pytest.mark.parametrize("form", ["csv", "jsonl"])
@pytest.mark.parametrize("repeat", [False, True], ids=["differ", "repeat"])
def test_one_odd_cell_among_numbers_is_told(tmp_path: Path, odd: str, place: int, form: str, repeat: bool) -> None:
    cells = [NUMBERS[i % 15] for i in range(N)] if repeat else list(NUMBERS)
    cells[place] = odd
    types, notes, _ = fitted(written(tmp_path, {"v": cells, "z": NUMBERS[::-1], "y": Y}, form))
    assert types == {"v": "string", "z": "double"}  # and not left out as names of the rows
    (note,) = [note for note in notes if NOTE in note]
    assert note.endswith(f"'v', for {odd!r} in row {place + 1}")


@pytest.mark.parametrize("levels", [["1", "2", "3"], ["0", "1"]])
def test_one_odd_cell_among_few_whole_numbers_is_told(tmp_path: Path, levels: list[str]) -> None:
    cells = [levels[i % len(levels)] for i in range(N)]
    cells[5] = "unknown"
    _, notes, _ = fitted(written(tmp_path, {"v": cells, "y": Y}))
    assert any(note.endswith("'v', for 'unknown' in row 6") for note in notes)
    assert find_odd_cells(column(*["1", "2", "3", "4", "5+"] * 10)) is None  # a frequent one is a level


DAYS = [str(day) for day in np.datetime64("2020-01-01") + np.arange(N)]


@pytest.mark.parametrize("odd", ["unknown", "2020-02-30", "0000-00-00", "2023-02-29", "05.01.2020", "5-Jan-24", "1.5"])
def test_one_odd_cell_among_dates_is_told(tmp_path: Path, odd: str) -> None:
    days = [*DAYS[:9], odd, *DAYS[10:]]
    types, notes, _ = fitted(written(tmp_path, {"day": days, "y": Y}))
    assert types == {"day": "string"}
    assert next(note for note in notes if NOTE in note).endswith(f"dates {REST}: 'day', for {odd!r} in row 10")


REST = "(correct the other cells, leave them empty, or name their words with --na; --keep COLUMN confirms it)"


@pytest.mark.parametrize(
    "cells",
    [
        ["31.12.23", "01.01.24", "05.06.23", "07.08.23"],
        ["5-Jan-24", "17 Feb 2024", "5. Mai 2024", "1-Dec-23"],
        ["Jan 5, 2024", "Feb 17, 2024", "March 1, 2024", "Dec 3, 2023"],
        ["01/02/2024 3:04 PM", "12/31/2024 11:04 AM", "01/02/2024 3:05 PM", "02/03/2024 9:00 AM"],
        ["2024-01-05", "05.01.2024", "2024/01/05", "01/05/2024"],
        ["31.02.2024", "01.02.2024", "02.02.2024", "03.02.2024", "04.02.2024"],
        ["2024-02-29T10:00Z", "2024-02-29T10:00", "2024-02-28T10:00Z", "2024-02-27T10:00Z"],
    ],
    ids=lambda cells: str(cells[0]),
)
def test_dates_that_are_not_read_are_told(tmp_path: Path, cells: list[str]) -> None:
    found = find_odd_cells(column(*cells))
    assert found is not None
    assert found.what == "dates"
    _, notes, _ = fitted(written(tmp_path, {"day": [cells[i % len(cells)] for i in range(N)], "y": Y}))
    assert any(NOTE in note and "'day'" in note for note in notes)


@pytest.mark.parametrize(
    ("cells", "odd"),
    [
        (["5 €", "5 $", "7 €", "9 $", "3 €"], ["5 $", "9 $"]),
        (["1,00,000", "2,50,000", "12,34,567", "3,00,000"], ["1,00,000", "2,50,000", "12,34,567", "3,00,000"]),
        (["1,5", "2.5", "3,5", "4,5", "5,5", "6,5"], ["2.5"]),
    ],
)
def test_numbers_of_several_notations_are_told(cells: list[str], odd: list[str]) -> None:
    found = find_odd_cells(column(*cells))
    assert found is not None
    assert [cell for cell, _ in found.cells] == odd


@pytest.mark.parametrize(
    "cells",
    [
        ["red", "blue", "12", "14", "red"],
        ["192.168.0.1", "10.0.0.1", "10.0.0.2", "10.0.0.3"],
        ["A12", "B13", "C14", "D15"],
        ["007", "0815", "0123", "4711"],
        ["01/02/2024", "03/04/2024", "05/06/2024", "07/08/2024"],  # told as ambiguous
        ["10:20", "11:30", "12:40", "13:50"],
        ["+49 30 123", "+49 30 124", "+49 30 125"],
        [None, None],
        [],
        ["5", "x"],
    ],
)
def test_text_has_no_odd_cells(cells: list[Any]) -> None:
    assert find_odd_cells(column(*cells)) is None


def test_rows_of_a_note_are_those_of_the_file(tmp_path: Path) -> None:
    cells, targets = list(NUMBERS), list(Y)
    targets[2] = targets[4] = ""
    cells[9] = "unknown"
    _, notes, _ = fitted(written(tmp_path, {"v": cells, "w": ["0", *["1"] * (N - 1)], "y": targets}), weight="w")
    assert notes[:2] == ("2 rows without a target were left out", "1 row with weight 0 was left out")
    assert notes[2].endswith("'v', for 'unknown' in row 10")
    assert find_odd_cells(column("1", "2", "3", "4", "?", "5 kg")) == OddCells("numbers", (("5 kg", 5),))


@pytest.mark.parametrize("percent", [False, True])
def test_shares_and_per_cent_in_a_sheet_are_not_mixed(tmp_path: Path, percent: bool) -> None:
    for form in ("xlsx", "jsonl"):
        shares: list[Any] = [f"{cell}%" for cell in NUMBERS] if percent else [float(cell) / 100 for cell in NUMBERS]
        shares[3] = 0.45 if percent else "45%"
        types, notes, _ = fitted(written(tmp_path, {"share": shares, "y": list(map(float, Y))}, form))
        assert types == {"share": "string"}
        assert any(note.endswith(f"'share', for '{shares[3]}' in row 4") for note in notes)


# -------------------------------------------------------------------------------------------------- rows


def table(tmp_path: Path, text: str, form: str = "csv") -> Path:
    """Write lines of CSV, or the same cells in another format: those that Python reads as numbers are numbers."""
    if form == "csv":
        path = tmp_path / "table.csv"
        path.write_text(text, encoding="utf-8")
        return path

    def cell(text: str) -> Any:
        try:
            return float(text)
        except ValueError:
            return text or None

    names, *rows = [line.split(",") for line in text.splitlines()]
    return written(tmp_path, {name: [cell(row[i]) for row in rows] for i, name in enumerate(names)}, form)


BODY = "".join(f"{a},{b},{c}\n" for a, b, c in zip(NUMBERS, NUMBERS[::-1], Y, strict=True))
MARGINS = {
    "no target": ("", "unknown,n/a,\n", "1 row without a target was left out"),
    "source": ("", "Source: statistics office,,\n", "1 row without a target was left out"),
    "source below the target": (
        "",
        ",,Source: office\n",
        "row 41 after the header was left out, since it seems to be f",
    ),
    "two footers": (
        "",
        ",,Source: office\n,,* estimated\n",
        "rows 41, 42 after the header were left out, since they seem",
    ),
    "units": ("s,°C,%\n", "", "row 1 after the header was left out, since it seems to be units: 's, °C, %'"),
    "a unit without a name": ("m,1,kg\n", "", "since it seems to be units: 'm, kg'"),
    "total": ("", "Total,1234,5678\n", "row 41 after the header was left out, since it seems to be totals: 'Total'"),
    "total of some": ("", "Grand total:,,5678\n", "since it seems to be totals: 'Grand total:'"),
}


@pytest.mark.parametrize("name", MARGINS)
@pytest.mark.parametrize("form", ["csv", "jsonl", "xlsx"])
def test_rows_that_are_no_observations_do_not_give_types(tmp_path: Path, name: str, form: str) -> None:
    first, last, note = MARGINS[name]
    types, notes, found = fitted(table(tmp_path, f"a,b,y\n{first}{BODY}{last}", form))
    clean, _, expected = fitted(table(tmp_path, f"a,b,y\n{BODY}", form))
    assert types == clean == {"a": "double", "b": "double"}
    assert any(note in told for told in notes)
    assert found.take(np.arange(N))[0].equals(expected.take(np.arange(N))[0])
    assert found.take(np.arange(N))[1].tolist() == expected.take(np.arange(N))[1].tolist()


def test_rows_of_the_weight_zero_do_not_give_types(tmp_path: Path) -> None:
    for zero in ("0", "0.0", "-0", "0e5", ",0"):
        rows = "".join(f"{a},1,{c}\n" for a, c in zip(NUMBERS, Y, strict=True))
        types, notes, _ = fitted(table(tmp_path, f'a,w,y\n{rows}broken,"{zero}",1.5\n'), weight="w")
        assert types == {"a": "double"}
        assert notes == ("1 row with weight 0 was left out",)


def test_a_total_among_names_is_left_out_where_it_adds_up(tmp_path: Path) -> None:
    rows = [(f"town {i % 7}", i % 5 + 1, i * i % 31) for i in range(N)]
    text = "town,a,y\n" + "".join(f"{town},{a},{y}\n" for town, a, y in rows)
    total = sum(a for _, a, _ in rows), sum(y for *_, y in rows)
    for last, left in ((f"Total,{total[0]},{total[1]}\n", 1), ("Total,4,17\n", 0)):
        found = inputs.read(inputs.FitRequest(str(table(tmp_path, text + last)), ["y"]))
        assert found.rows == N + 1 - left


def test_real_rows_are_not_left_out(tmp_path: Path) -> None:
    """First and last rows with gaps or odd cells, and sparse tables, are used."""
    for first, last in (
        ("unknown,1.5,2\n", "unknown,2.5,3\n"),
        (",,2\n", ",,3\n"),
        ("1.5,1.5,2\n", ",unknown,3\n"),
    ):
        found = inputs.read(inputs.FitRequest(str(table(tmp_path, f"a,b,y\n{first}{BODY}{last}")), ["y"]))
        assert found.rows == N + 2
    words = "".join(f"{'xyz'[i % 3]},{'uv'[i % 2]},{'pq'[i % 2]}\n" for i in range(N))
    assert inputs.read(inputs.FitRequest(str(table(tmp_path, f"a,b,y\n{words}")), ["y"])).rows == N
    sparse = "".join(("x,,\n", ",y,\n", ",,z\n")[i % 3] for i in range(N))
    for target in ("a", "c"):
        found = inputs.read(
            inputs.FitRequest(str(table(tmp_path, f"a,b,c,d\n{sparse.replace(chr(10), f',1{chr(10)}')}")), [target])
        )
        assert found.rows == -(-N // 3) - (target == "c")


# ----------------------------------------------------------------------------------------------- the file


@pytest.mark.parametrize("word", ["None", "NA", "null", "NaN", "?"])
def test_a_class_with_the_name_of_a_gap_is_told(tmp_path: Path, word: str) -> None:
    labels = ["mild", "severe", word]
    text = "a,y\n" + "".join(f"{a},{labels[i % 3]}\n" for i, a in enumerate(NUMBERS))
    count = sum(i % 3 == 2 for i in range(N))
    for form in ("csv", "xlsx"):
        if form == "xlsx" and word == "NaN":
            continue  # a number there
        _, notes, found = fitted(table(tmp_path, text, form))
        assert found.rows == N - count
        assert (
            f"target y: {count} of the dropped rows have the word {word!r}, which is read as a missing value"
            in notes[1]
        )
    _, notes, found = fitted(table(tmp_path, text.replace(word, f'"{word}"')))
    assert (found.rows, notes) == (N, ())
    empty = text.replace(word, "")
    assert fitted(table(tmp_path, empty))[1] == (f"{count} rows without a target were left out",)


@pytest.mark.parametrize("form", ["jsonl", "xlsx"])
def test_text_with_zeros_in_front_stays_text(tmp_path: Path, form: str) -> None:
    codes = [f"{i % 13:03d}" for i in range(N)]
    types, notes, found = fitted(written(tmp_path, {"code": codes, "y": list(map(float, Y))}, form))
    assert types == {"code": "large_string"}
    assert found.take(np.arange(N))[0]["code"].to_pylist() == codes
    assert notes == ()


def test_whole_numbers_of_many_digits_are_told(tmp_path: Path) -> None:
    beyond = [2**53 + 1 + 2 * (i % 9) for i in range(N)]
    for form in ("csv", "jsonl"):
        types, notes, found = fitted(written(tmp_path, {"v": beyond, "y": Y}, form))
        assert types == {"v": "int64"}
        assert notes[0].startswith(f"rounded to the 16 digits of a 64-bit float: 'v', for instance {2**53 + 1} (")
        huge = [10**20 + i % 9 for i in range(N)]
        types, notes, found = fitted(written(tmp_path, {"v": huge, "y": Y}, form))
        assert types == {"v": "string"}
        assert found.take(np.arange(N))[0]["v"].to_pylist() == list(map(str, huge))
        assert notes == (
            f"categorical, because its integers exceed the 16 digits of a 64-bit float: 'v', for instance {10**20}",
        )
        with pytest.raises(DataError, match=f"target 'v' has the class {2**53 + 1}; whole numbers beyond 2"):
            fitted(written(tmp_path, {"v": beyond, "y": Y}, form), target="v")


def test_a_line_that_names_the_delimiter_is_heeded(tmp_path: Path) -> None:
    for line, text in (
        ("sep=;", "a;b,c\n1;2\n"),
        ('"sep=;"', "a;b,c\n1;2\n"),
        ("SEP=,", 'a,"b,c"\n1,2\n'),
        ("\ufeffsep=\t", "a\tb,c\n1\t2\n"),
        ("sep=;;", "a;b,c\n1;2\n"),
    ):
        path = table(tmp_path, f"{line}\r\n{text}")
        assert inputs.tables.read(path).frame.to_pydict() == {"a": [1], "b,c": [2]}
        (piece,) = inputs.tables.batches(path, {"a": "numeric"})
        assert piece.to_pydict() == {"a": [1.0], "b,c": ["2"]}
        bare = inputs.tables.read(path, header=False).frame
        assert bare.to_pydict() == {"column_1": ["a", "1"], "column_2": ["b,c", "2"]}
    assert inputs.tables.read(table(tmp_path, "sep=x,b\n1,2\n")).frame.column_names == ["sep=x", "b"]


def test_delimiters_at_the_end_of_lines_are_no_columns(tmp_path: Path) -> None:
    for text in ("a,b,\n1,2,\n3,4,\n", "a,b\n1,2,\n3,4,\n", "a,b,,\n1,2,,\n3,4,,\n", "a,b, \n\n1,2, \n3,4,\n"):
        assert inputs.tables.read(table(tmp_path, text)).frame.to_pydict() == {"a": [1, 3], "b": [2, 4]}
        (piece,) = inputs.tables.batches(tmp_path / "table.csv", {"a": "numeric"})
        assert piece.column_names == ["a", "b"]
    for text in ("a,b,\n1,2,\n3,4,5\n", "a,b\n1,2,\n3,4,5\n"):
        with pytest.raises(
            DataError, match="row 2 after the header, has more cells than the header; name every column"
        ):
            inputs.tables.read(table(tmp_path, text))
    with pytest.raises(DataError, match="column 3 of 3 has no name"):
        inputs.tables.read(table(tmp_path, "a,b,\n1,2,5\n"))


@pytest.mark.parametrize("comment", ["# made by a program", "~ a, b, c", "// one\n// two", "% x"])
def test_comments_before_the_header_are_named(tmp_path: Path, comment: str) -> None:
    with pytest.raises(FileError, match=r"begins with [12] comment lines? .*; remove everything before the header"):
        inputs.tables.read(table(tmp_path, f"{comment}\na,b\n1,2\n"))
    assert inputs.tables.read(table(tmp_path, "#a,b\n1,2\n")).frame.column_names == ["#a", "b"]
    with pytest.raises(
        FileError, match="expected 2 cells, found 1: '# end'; correct the row, or remove it if it is a title"
    ):
        inputs.tables.read(table(tmp_path, "a,b\n1,2\n# end\n"))
    with pytest.raises(FileError, match="or remove a title before the header"):
        inputs.tables.read(table(tmp_path, "Sales of 2024\na,b\n1,2\n"))


def test_a_sheet_before_that_of_the_table_and_a_title_are_named(tmp_path: Path) -> None:
    book = pytest.importorskip("openpyxl").Workbook()
    book.active.title = "Readme"
    book.active.append(["Measurements of 2024"])
    sheet = book.create_sheet("data")
    for row in (["a", "b"], [1, 2], [3, 4]):
        sheet.append(row)
    book.save(tmp_path / "two.xlsx")
    with pytest.raises(DataError, match=r"the first sheet, 'Readme', has no rows .*\(others: 'data'\)"):
        inputs.tables.read(tmp_path / "two.xlsx")
    for row in (["a", "b"], [1, 2]):
        book.active.append(row)
    book.save(tmp_path / "title.xlsx")
    with pytest.raises(DataError, match="name every column, or remove a title before the header"):
        inputs.tables.read(tmp_path / "title.xlsx")


FORMS = {
    "times of the day or durations (write them as numbers, such as hours: 8.5 for 08:30": [
        [f"{i % 24:02d}:{i % 4 * 15:02d}" for i in range(N)],
        [f"{i % 24}:{i % 60:02d}:59" for i in range(N)],
        [f"{1 + i % 12}:30 {'ap'[i % 2]}m" for i in range(N)],
        [f"1:{10 + i % 13}.{i % 13 * 7 + 100}" for i in range(N)],
        [f"{i % 24}h{i % 4 * 15:02d}" for i in range(N)],
    ],
    "months or quarters (write them as dates, such as 2021-03-01": [
        [f"{2010 + i % 15}-{1 + i % 12:02d}" for i in range(N)],
        [f"{1 + i % 12}/{2010 + i % 15}" for i in range(N)],
        [f"{['Jan', 'March', 'Dez.'][i % 3]} {2010 + i % 15}" for i in range(N)],
        [f"{['Jan', 'mar', 'Oct'][i % 3]}-{10 + i % 15}" for i in range(N)],
        [f"{2010 + i % 15}-Q{1 + i % 4}" for i in range(N)],
    ],
    "numbers with a unit (write the numbers alone, in one unit": [
        [f"{40 + i % 30} kg" for i in range(N)],
        [f"{i % 30 * 0.7:.1f}\u00a0cm" for i in range(N)],
        [f"{40 + i % 30}{['kg', 'kg', 'lb'][i % 3]}" for i in range(N)],
        [f"{1 + i % 9}h {i % 30}m" for i in range(N)],
        [f"{4 + i % 3}′{i % 12}″" for i in range(N)],
        [f"-{i % 15 + 1},5 °C" for i in range(N)],
        [f"{i % 30} m2" for i in range(N)],
        [f"{i % 30} sq ft" for i in range(N)],
    ],
}


@pytest.mark.parametrize(
    ("what", "cells"), [(what, cells) for what, lists in FORMS.items() for cells in lists], ids=str
)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_times_months_and_units_are_told(tmp_path: Path, what: str, cells: list[str], form: str) -> None:
    path = written(tmp_path, {"a": [*cells[:20], *cells[:19], None], "x": NUMBERS, "y": Y}, form)
    types, notes, _ = fitted(path)
    assert types["a"] == "string"
    (note,) = [note for note in notes if "'a'" in note]
    assert note.startswith(f"categorical, although nearly all cells are {what}; --keep COLUMN confirms it): 'a', for ")
    assert note.endswith(f"instance {' '.join(cells[0].split())!r}")
    assert not [note for note in fitted(path, keep=["a"])[1] if "'a'" in note]


@pytest.mark.parametrize(
    "cells",
    [
        [["08:00", "12:30", "17:45"][i % 3] for i in range(N)],
        [f"{i % 20}{'ABCDE'[i % 5]}" for i in range(N)],
        [f"{i % 20:03d}A" for i in range(N)],
        [f"{i % 20 + 1}A{i % 20}" for i in range(N)],
        [f"{i % 20}-{i % 20 + 9}" for i in range(N)],
        [f"10.0.0.{i % 20}" for i in range(N)],
        [["Jan", "March", "December"][i % 3] for i in range(N)],
        [f"Martin {i % 20}" for i in range(N)],
        [f"{i % 20} kg" if i % 4 else f"about {i % 20}" for i in range(N)],
    ],
    ids=str,
)
def test_other_text_is_told_of_no_form(tmp_path: Path, cells: list[str]) -> None:
    _, notes, _ = fitted(written(tmp_path, {"a": cells[:20] * 2, "x": NUMBERS, "y": Y}))
    assert not [note for note in notes if "nearly all cells are" in note]


def test_the_form_of_a_column_that_is_dropped_as_an_identifier_is_told(tmp_path: Path) -> None:
    path = written(tmp_path, {"a": [f"{i + 40} kg" for i in range(N)], "x": NUMBERS, "y": Y})
    types, notes, _ = fitted(path)
    assert "a" not in types
    assert "dropped, although nearly all cells are numbers with a unit" in "\n".join(notes)
    assert "--keep COLUMN makes it categorical): 'a', for instance '40 kg'" in "\n".join(notes)
    assert fitted(path, keep=["a"])[0]["a"] == "string"


def test_merged_cells_of_a_sheet_are_told_and_not_filled(tmp_path: Path) -> None:
    book = pytest.importorskip("openpyxl").Workbook()
    sheet = book.active
    sheet.append([])  # the table begins in the second row
    sheet.append(["region", "a", "b", "y"])
    for i in range(24):
        sheet.append([["north", "east", "south", "west"][i // 6] if i % 6 == 0 else None, i * 0.37, i % 5, i * 0.5])
    sheet.append(["Source: the office"])
    for cells in ("A3:A8", "A9:A14", "A15:A20", "A21:A26", "B4:C4", "A27:D27", "F3:F9"):
        sheet.merge_cells(cells)  # the last three: a value and an empty cell, a footer, and no column of the table
    book.save(tmp_path / "merged.xlsx")
    _, notes, found = fitted(tmp_path / "merged.xlsx")
    (note,) = [note for note in notes if "merged" in note]
    assert ": A3:A8, A9:A14, A15:A20, A21:A26, B4:C4, in 'region', 'a', 'b'; unmerge them, and repeat the value" in note
    X = found.take(np.arange(24))[0]
    assert X["region"].to_pylist()[:7] == ["north", *[None] * 5, "east"]
    with pytest.warns(DataWarning, match=r"merged.xlsx: the sheet has merged cells, .* missing values: A3:A8, "):
        list(inputs.tables.batches(tmp_path / "merged.xlsx", {"region": "category"}))
    assert not [note for note in inputs.tables.read(tmp_path / "merged.xlsx", columns=["y"]).notes if "merged" in note]


def test_many_merged_cells_are_counted_and_those_without_a_value_are_not(tmp_path: Path) -> None:
    book = pytest.importorskip("openpyxl").Workbook()
    sheet = book.active
    sheet.append(["x", "y"])
    for i in range(40):
        sheet.append([f"group {i // 2}" if i % 2 == 0 else None, i * 0.37])
    for i in range(20):
        sheet.merge_cells(f"A{2 + 2 * i}:A{3 + 2 * i}")
    sheet.merge_cells("C2:C9")
    book.save(tmp_path / "many.xlsx")
    (note,) = inputs.tables.read(tmp_path / "many.xlsx").notes
    assert "A2:A3, A4:A5, A6:A7, A8:A9, A10:A11, ... (20 in all), in 'x'" in note
