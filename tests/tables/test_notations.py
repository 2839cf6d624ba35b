"""How text writes numbers and dates: what is recognised, what is not, and that pieces are read as the whole."""

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fathomless.system.errors import DataError
from fathomless.tables import files as tables
from fathomless.tables.notations import AMBIGUOUS, infer_decimal_mark, parse_dates, parse_numbers
from fathomless.tables.writers import writer

Write = Callable[[str], Path]


@pytest.fixture
def file(tmp_path: Path) -> Write:
    def write(text: str) -> Path:
        path = tmp_path / "table.csv"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def column(*cells: str | None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(cells, pa.string())])


def day(*numbers: int) -> datetime.datetime:
    return datetime.datetime(*numbers)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cells", "mark", "values"),
    [
        (["113,56", "-7", ",5", "1,5e3"], ",", [113.56, -7.0, 0.5, 1500.0]),
        (["6.544,61", "12.345.678", "9"], ",", [6544.61, 12345678.0, 9.0]),
        (["6,544.61", "12,345,678", "9"], ".", [6544.61, 12345678.0, 9.0]),
        (["1 234,5", "12\u202f345", "1'000"], ",", [1234.5, 12345.0, 1000.0]),
        (["1\u00a0234,5\u00a0€", "12\u00a0345 €"], ",", [1234.5, 12345.0]),
        (["(5.20)", "3.10", "\u22124", "($1,234.50)"], ".", None),  # one unit for all numbers
        (["($5.20)", "$3.10", "-$4", "$ (1,234.50)"], ".", None),
        (["(5.20)", "3.10", "\u22124", " (1,234.50) "], ".", [-5.2, 3.1, -4.0, -1234.5]),
        (["($5.20)", "$3.10", "\u2212$4"], ".", [-5.2, 3.1, -4.0]),
        (["(-5)", "3"], ".", None),
        (["()", "3"], ".", None),
        (["5 %", "12%", None], ".", [5.0, 12.0, None]),
        (["$1,200.50", "-$3", "$ 4"], ".", [1200.5, -3.0, 4.0]),
        (["1.200,50 €", "3 €", "-4€"], ",", [1200.5, 3.0, -4.0]),
        (["EUR 5", "EUR 7.5"], ".", [5.0, 7.5]),
        (["5 €", "5 $"], ".", None),
        (["5 %", "5"], ".", None),
        (["1.5", "2"], ",", None),
        (["1.23.456", "2"], ",", None),
        (["0.125", "2"], ",", None),
        (["1,23", "2"], ".", None),
        (["12,34,567"], ".", None),
        (["a", "1"], ".", None),
        (["%", "€"], ".", None),
        (["1-2", "3"], ".", None),
        (["192.168.1.1"], ",", None),
        (["+49 30 123"], ",", None),
    ],
)
def test_numbers_are_read_by_their_mark(cells: list[Any], mark: str, values: list[Any] | None) -> None:
    found = parse_numbers(column(*cells), mark)
    assert (None if found is None else found.to_pylist()) == values


@given(
    st.lists(st.floats(-1e9, 1e9, allow_nan=False).map(lambda x: round(x, 2)), min_size=1, max_size=8),
    st.sampled_from([(".", ","), (",", "."), (",", " "), (".", "'")]),
)
def test_what_is_written_with_marks_is_read_again(values: list[float], marks: tuple[str, str]) -> None:
    own, between = marks
    swap = str.maketrans({",": between, ".": own})
    found = parse_numbers(column(*(f"{value:,.2f}".translate(swap) for value in values)), own)
    assert found is not None
    assert found.to_pylist() == values


@pytest.mark.parametrize(
    ("cells", "form", "first"),
    [
        (["01.02.2024", "3.4.2023", None], "%d.%m.%Y", day(2024, 2, 1)),
        (["01.02.2024 10:30", "03.04.2023 09:00"], "%d.%m.%Y %H:%M", day(2024, 2, 1, 10, 30)),
        (["13/02/2024", "01/02/2024"], "%d/%m/%Y", day(2024, 2, 13)),
        (["02/13/2024", "01/02/2024"], "%m/%d/%Y", day(2024, 2, 13)),
        (["2024/02/13 01:02:03"], "%Y/%m/%d %H:%M:%S", day(2024, 2, 13, 1, 2, 3)),
        (["01/02/2024", "03/04/2024"], AMBIGUOUS, None),
        (["13/02/2024", "02/13/2024"], None, None),
        (["31.02.2024"], None, None),
        (["1.2.24"], None, None),
        (["1.2.2024", "x"], None, None),
    ],
)
def test_dates_are_read_where_one_order_fits(cells: list[Any], form: str | None, first: Any) -> None:
    found = parse_dates(column(*cells))
    assert (None if found is None else found[1]) == form
    if found is not None and form != AMBIGUOUS:
        assert found[0].to_pylist()[0] == first


def test_who_knows_the_order_of_days_and_months_decides_where_cells_do_not() -> None:
    unclear, clear = column("01/02/2024", "03/04/2024"), column("02/13/2024")
    for dates, first in (("day-first", day(2024, 2, 1)), ("month-first", day(2024, 1, 2))):
        found = parse_dates(unclear, dates=dates)
        assert found is not None
        assert found[0].to_pylist()[0] == first
        told = parse_dates(clear, dates=dates)
        assert told is not None
        assert told[1] == "%m/%d/%Y"


def test_days_that_are_months_too_leave_no_doubt() -> None:
    assert parse_dates(column("05/05/2024", "06/06/2023")) is not None


@pytest.mark.parametrize(
    ("columns", "mark"),
    [
        ([["1,5", "2"], ["1.234", "5.678"], ["x", "y"]], ","),
        ([["1.5", "2"], ["1,234"]], "."),
        ([["1.234"], ["5"]], "."),
        ([["1,5"], ["0.5"]], "."),  # columns disagree: each is read as it can be
        ([[None], ["a"]], "."),
        ([], "."),
    ],
)
def test_the_columns_of_a_table_decide_on_its_mark(columns: list[list[str]], mark: str) -> None:
    assert infer_decimal_mark(column(*cells) for cells in columns) == mark


@pytest.mark.parametrize(
    ("cells", "decimal", "notation"),
    [
        (["1.5", "-2e3"], "auto", {}),
        ([" 1.5", "NA", "-.5 "], "auto", {}),
        (["1", "2"], ",", {}),
        (["1,5"], "auto", {"x": ","}),
        (["1,000"], ".", {"x": "."}),
    ],
)
def test_plain_numbers_need_no_notation(file: Write, cells: list[str], decimal: str, notation: dict[str, str]) -> None:
    text = "y;x\n" + "".join(f"a;{cell}\n" for cell in cells)
    assert tables.read(file(text), decimal=decimal).notation == notation


GERMAN = (
    "id;fläche;preis;datum;rabatt;ort\n"
    "1;103,77;6.544,61 €;21.03.2024;15 %;Bonn\n"
    "2;96,04;12.430,00 €;05.06.2023;4 %;Berlin\n"
    "3;;980,5 €;01.01.2024;;Bonn\n"
)


def test_a_table_with_decimal_commas_is_read_as_it_comes(file: Write) -> None:
    found = tables.read(file(GERMAN))
    assert found.frame.to_pydict() == {
        "id": [1, 2, 3],
        "fläche": [103.77, 96.04, None],
        "preis": [6544.61, 12430.0, 980.5],
        "datum": [day(2024, 3, 21), day(2023, 6, 5), day(2024, 1, 1)],
        "rabatt": [15, 4, None],
        "ort": ["Bonn", "Berlin", "Bonn"],
    }
    assert found.notation == {"fläche": ",", "preis": ",", "datum": "%d.%m.%Y", "rabatt": ",%"}


def test_pieces_are_read_as_the_whole_was(file: Write) -> None:
    whole = tables.read(file(GERMAN))
    kinds = dict.fromkeys(("id", "fläche", "preis", "rabatt"), "numeric") | {"datum": "date"}
    pieces = list(tables.batches(file(GERMAN), kinds, rows=1, notation=whole.notation))
    assert [len(piece) for piece in pieces] == [1, 1, 1]
    joined = pa.concat_tables(pieces).to_pydict()
    assert joined == {name: list(values) for name, values in whole.frame.to_pydict().items()}
    # a cell alone can be read by both marks
    one = file("x\n1.234\n")
    for notation, value in (({"x": ","}, 1234.0), ({}, 1.234)):
        assert next(tables.batches(one, {"x": "numeric"}, notation=notation)).to_pydict() == {"x": [value]}


def test_a_mark_that_is_given_is_the_only_one(file: Write) -> None:
    text = "x;y\n1,5;2.5\n2,5;3.5\n"
    assert tables.read(file(text)).frame.to_pydict() == {"x": [1.5, 2.5], "y": [2.5, 3.5]}
    assert tables.read(file(text), decimal=".").frame.to_pydict()["x"] == ["1,5", "2,5"]
    assert tables.read(file(text), decimal=",").frame.to_pydict()["y"] == ["2.5", "3.5"]
    with pytest.raises(DataError, match="'1,5' is not a number"):
        list(tables.batches(file(text), {"x": "numeric"}, decimal="."))


def test_long_columns_of_text_are_left_alone(file: Write) -> None:
    rng = np.random.default_rng(0)
    words = [f"w{k}" for k in rng.integers(0, 9, 3000)]
    late = ["1,5"] * 2999 + ["x"]
    found = tables.read(file("a;b\n" + "\n".join(map(";".join, zip(words, late, strict=True)))))
    assert found.frame.to_pydict() == {"a": words, "b": late}
    assert found.notation == {}


@pytest.mark.parametrize("ending", [".jsonl", ".xlsx", ".parquet"])
def test_numbers_that_are_no_text_have_no_notation(file: Write, ending: str) -> None:
    if ending == ".xlsx":
        pytest.importorskip("openpyxl")
    whole = tables.read(file("size;price\n1,5;2.125,0\n2,25;122,6\n3,0;4,0\n"))
    assert whole.notation == {"size": ",", "price": ","}
    new = pa.table({"size": [2.125, 1e-7, None, -0.5], "price": [122.6, 1234.0, 2125.125, 1e300]})
    path = file("").with_suffix(ending)
    with writer(path) as write:
        write(new)
    kinds = dict.fromkeys(new.column_names, "numeric")
    for rows in (1, 3, 100):
        pieces = list(tables.batches(path, kinds, rows=rows, notation=whole.notation))
        assert pa.concat_tables(pieces).to_pydict() == new.to_pydict()
    assert pa.concat_tables(tables.batches(path, kinds, decimal=",")).to_pydict() == new.to_pydict()
    for form in ({}, {"decimal": ","}):
        found = tables.read(path, **form)
        assert found.frame.to_pydict() == new.to_pydict()
        assert found.notation == {}


def test_cells_of_text_follow_the_notation_beside_numbers_that_have_none(file: Write) -> None:
    path = file(
        '{"x": 2.125, "y": "1.234,5", "z": 2.5, "t": 0.5, "n": 1}\n'
        '{"x": "2.125", "y": 4, "z": "red", "t": "true", "n": 2.0}\n'
        '{"x": null, "y": 0.5, "z": 4.0, "t": true, "n": 9007199254740993}\n'
    )
    found = tables.read(path)
    values = {
        "x": [2.125, 2125.0, None],
        "y": [1234.5, 4.0, 0.5],
        "z": ["2.5", "red", "4"],
        "t": ["0.5", "true", "true"],
        "n": [1, 2, 9007199254740993],
    }
    assert found.frame.to_pydict() == values
    assert found.notation == {"x": ",", "y": ","}
    kinds = dict.fromkeys("xyn", "numeric") | dict.fromkeys("zt", "category")
    for rows in (1, 2, 3):
        pieces = list(tables.batches(path, kinds, rows=rows, notation=found.notation))
        assert pa.concat_tables(pieces).to_pydict() == {**values, "n": [float(n) for n in values["n"]]}
    with pytest.raises(DataError, match="row 2 after the header: 'big' is not a number with a decimal comma"):
        list(tables.batches(file('{"x": 2.125}\n{"x": "big"}'), {"x": "numeric"}, notation=found.notation))
    with pytest.raises(DataError, match=r"column 'x', row 1 after the header: '2\.125' is not an ISO date"):
        list(tables.batches(file('{"x": 2.125}'), {"x": "date"}))


@pytest.mark.parametrize(
    ("kind", "notation", "cell", "message"),
    [
        ("numeric", ",", "122.6", r"'122\.6' is not a number with a decimal comma \(--decimal \. changes the mark\)"),
        ("numeric", ".", "122,6", r"'122,6' is not a number with a decimal point \(--decimal , changes the mark\)"),
        ("date", "%d.%m.%Y", "12/31/2024", r"'12/31/2024' is not a date such as 31\.12\.2024 \(%d\.%m\.%Y\)"),
        ("date", "%m/%d/%Y %H:%M", "red", r"'red' is not a date such as 12/31/2024 00:00 \(%m/%d/%Y %H:%M\)"),
    ],
)
def test_a_cell_that_does_not_fit_is_told_the_notation_of_its_column(
    file: Write, kind: str, notation: str, cell: str, message: str
) -> None:
    other = {",": '"1,5"', ".": '"1.5"'}.get(notation, "")  # else the whole table has the other decimal mark
    with pytest.raises(DataError, match=f"row 1 after the header: {message}"):
        list(tables.batches(file(f'x,y\n"{cell}",{other}\n'), {"x": kind}, notation={"x": notation}))
