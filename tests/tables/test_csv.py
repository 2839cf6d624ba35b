"""CSV: cells, types, delimiters, pieces, against other readers and by rules of our own."""

import csv
import datetime
import hashlib
import io
import lzma
import math
import random

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fathomless.system.errors import DataError, FileError
from fathomless.tables import files as tables
from table_files import PACKED, columns, parquet_bytes

WORDS = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?"]


def kinds_of(frame):
    """The kinds that a schema would deduce; columns without a value have none."""
    found = {}
    for field in frame.schema:
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
            found[field.name] = "numeric"
        elif not pa.types.is_null(field.type):
            found[field.name] = {"bool": "boolean", "string": "category"}.get(str(field.type), "date")
    return found


# ---------------------------------------------------------------------------------- independent readers


@pytest.mark.parametrize("name", ["adult", "german_credit", "bank_marketing_additional"])
def test_public_tables_are_read_as_pandas_and_polars_read_them(data_folder, name):
    path = data_folder / "tabular" / f"{name}.csv.xz"
    found = tables.read(path)
    by_pandas = pd.read_csv(path, na_values=WORDS, keep_default_na=False)
    by_polars = pl.read_csv(lzma.decompress(path.read_bytes()), null_values=WORDS, infer_schema_length=None)
    assert found.frame.column_names == list(by_pandas.columns) == by_polars.columns
    for label, column in columns(found).items():
        theirs = by_pandas[label]
        assert column == theirs.astype(object).where(theirs.notna(), None).tolist(), label
        assert column == by_polars[label].to_list(), label
    assert found.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (found.bytes, found.name) == (path.stat().st_size, str(path))


def test_pieces_of_a_public_table_make_up_the_whole(data_folder):
    path = data_folder / "tabular" / "adult.csv.xz"
    whole = tables.read(path).frame
    pieces = list(tables.batches(path, kinds_of(whole), rows=10_000))
    assert [len(piece) for piece in pieces] == [10_000] * 4 + [8842]
    assert columns(pa.concat_tables(pieces)) == columns(whole)


# ----------------------------------------------------------------------------------------- types of CSV


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1", "-2", "007", " 3 ", ""], [1, -2, 7, 3, None]),
        (["1.5", "NAN", "-nan"], [1.5, None, None]),
        (["9223372036854775807", "-9223372036854775808"], [2**63 - 1, -(2**63)]),
        (["9223372036854775808", "1"], [2.0**63, 1.0]),
        (["9007199254740993", "1"], [9007199254740993, 1]),
        (["1e-308", "5e-324", "-0.5", ".5", "1.", "1E5"], [1e-308, 5e-324, -0.5, 0.5, 1.0, 1e5]),
        (["inf", "-Infinity", "1"], [math.inf, -math.inf, 1.0]),
        (["0x10", "1"], ["0x10", "1"]),
        (["1_000", "1"], ["1_000", "1"]),
        (["1,000.5", "1"], [1000.5, 1.0]),
        (["1,000.5", "1,00"], ["1,000.5", "1,00"]),
        (["true", "FALSE", " True", "NA"], [True, False, True, None]),
        (["true", "0", "1"], [True, False, True]),
        (["yes", "no"], ["yes", "no"]),
        (["2024-02-29", "1500-01-01"], [datetime.datetime(2024, 2, 29), datetime.datetime(1500, 1, 1)]),
        (
            ["2024-02-29T10:11:12.345678912", "2024-02-29 10:11"],
            [datetime.datetime(2024, 2, 29, 10, 11, 12, 345678), datetime.datetime(2024, 2, 29, 10, 11)],
        ),
        (
            ["2024-02-29T10:00Z", "2024-02-29T10:00+02:00"],
            [datetime.datetime(2024, 2, 29, hour, tzinfo=datetime.UTC) for hour in (10, 8)],
        ),
        (["2024-02-29T10:00Z", "2024-02-29T10:00"], ["2024-02-29T10:00Z", "2024-02-29T10:00"]),
        (["2023-02-29", "2024-02-29"], ["2023-02-29", "2024-02-29"]),
        (["10:20", "11:30"], ["10:20", "11:30"]),
        ([" a ", "a", "", "  ", " NA ", "NAN"], ["a", "a", None, None, None, "NAN"]),
        (WORDS, [None] * len(WORDS)),
    ],
)
def test_a_column_has_the_type_of_all_its_cells(file, cells, values):
    for quote in ("", '"'):
        text = "x\tz\n" + "".join(f"{quote}{cell}{quote}\t.\n" for cell in cells)
        column = tables.read(file(text)).frame.column("x")
        if quote and values[-1] == "NAN":  # the words are text, in quotes
            values = ["NA" if cell == " NA " else value for cell, value in zip(cells, values, strict=True)]
        assert column.to_pylist() == values
        assert str(column.type) in {"int64", "double", "bool", *TIMES, "string", "null"}


def test_quoted_words_are_missing_in_numbers_and_text_among_text(file):
    found = columns(tables.read(file('x,y,z\n"NA","NA",NA\n"1","a",a\n"","",""\n')))
    assert found == {"x": [None, 1, None], "y": ["NA", "a", None], "z": [None, "a", None]}


@pytest.mark.parametrize("form", PACKED)
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_packing_line_ends_and_byte_order_marks_change_nothing(file, form, newline, mark):
    text = newline.join([mark + 'name,"x, y"', "é😀,1", '"two\nlines",2', "", "a"]) + ",3"
    content = PACKED[form](text.encode())
    found = tables.read(file(content))
    assert columns(found) == {"name": ["é😀", "two\nlines", "a"], "x, y": [1, 2, 3]}
    assert (found.sha256, found.bytes) == (hashlib.sha256(content).hexdigest(), len(content))


def test_the_fingerprint_is_of_all_bytes(file):
    content = lzma.compress(b"a,b\n1,2\n") + random.Random(0).randbytes(5 << 20)  # which no xz stream begins with
    found = tables.read(file(content))
    assert columns(found) == {"a": [1], "b": [2]}
    assert (found.sha256, found.bytes) == (hashlib.sha256(content).hexdigest(), len(content))


def test_lines_in_cells_may_cross_the_blocks_that_are_cut(file):
    rows = 100_000
    path = file("x,y\n" + '"two, or\nmore lines",1\n' * rows)
    assert len(path.read_bytes()) > 2 << 20
    assert columns(tables.read(path)) == {"x": ["two, or\nmore lines"] * rows, "y": [1] * rows}


@pytest.mark.parametrize(
    ("header", "row", "names"),
    [
        ("a,b,c", "x,y,z", ["a", "b", "c"]),
        ("a;b,c;d", "x;y;z", ["a", "b,c", "d"]),
        ("a\tb c", "x\ty", ["a", "b c"]),
        ('"a|b"|c|d', "x|y|z", ["a|b", "c", "d"]),
        ('"a;b;c",d', "x,y", ["a;b;c", "d"]),
        (' a , "b"', "x,y", ["a", '"b"']),
        ("only", "x,y", None),
        ("only", "x;y", ["only"]),
    ],
)
def test_the_delimiter_is_found_in_the_header(file, header, row, names):
    path = file(f"{header}\n{row}\n")
    if names is None:
        with pytest.raises(FileError, match="expected 1 cells, found 2"):
            tables.read(path)
    else:
        assert tables.read(path).frame.column_names == names


def test_a_delimiter_may_be_given(file):
    assert columns(tables.read(file("a;b\n1;2"), delimiter=",")) == {"a;b": ["1;2"]}
    for tab in ("tab", "\\t", "\t"):
        assert columns(tables.read(file("a,b\tc\n1\t2"), delimiter=tab)) == {"a,b": [1], "c": [2]}


def test_a_decimal_comma_is_the_only_mark_then(file):
    text = 'x;y\n1,5;1.5\n"-2,25e3";2\n3;1,0\n'
    assert columns(tables.read(file(text), decimal=",")) == {"x": [1.5, -2250.0, 3.0], "y": ["1.5", "2", "1,0"]}
    with pytest.raises(DataError, match=r"column 'y', row 1 after the header: '1.5' is not a number"):
        list(tables.batches(file(text), {"x": "numeric", "y": "numeric"}, decimal=","))


def test_wanted_columns_come_in_the_order_asked_for(file):
    frame = pa.table({"a": [1], "b.c": ["x"], "d": [2.5]})
    for content in ("a,b.c,d\n1,x,2.5\n", parquet_bytes(frame)):
        assert list(columns(tables.read(file(content), columns=["d", "b.c"])).items()) == [("d", [2.5]), ("b.c", ["x"])]
        with pytest.raises(DataError, match=r"lacks the columns 'z'; its columns are 'a', 'b\.c', 'd'"):
            tables.read(file(content), columns=["d", "z"])
        with pytest.raises(DataError, match="columns: there are no columns"):
            tables.read(file(content), columns=[])
        with pytest.raises(DataError, match="columns has the column names 'a' more than once"):
            tables.read(file(content), columns=["a", "a"])


def test_rows_may_be_as_long_as_wide_tables_make_them(file):
    names = [f"{i} {'a long name ' * 20}".strip() for i in range(1000)]
    found = tables.read(file(",".join(names) + "\n" + ",".join(["x" * 4000] * len(names))))
    assert found.frame.num_columns == len(names)


TIMES = ("timestamp[us]", "timestamp[us, tz=UTC]")
CELLS = {
    "numeric": ["1", "-2.5", "1e-308", "007", "+5", " 3 ", "inf", "9223372036854775808", "1e400", "0x10", "12345"],
    "boolean": ["true", "FALSE", " True ", "1", "0"],
    "date": ["2024-02-29", "1500-01-01 10:00", "2024-02-29T10:11:12.345678912", "9999-12-31"],
    "zoned": ["2024-02-29T10:00Z", "2024-02-29T10:00:01.5+02:00"],
    "text": ["a", " b c ", 'q"q', "é😀", "x,y", "l\nm", "NAN", "-", "2024-13-01"],
    "missing": [*WORDS, " NA", "  "],
}


@st.composite
def csv_texts(draw):
    pools = st.lists(st.sampled_from(sorted(CELLS)), min_size=1, max_size=3)
    rows = draw(st.integers(1, 12))
    drawn = []
    for _ in range(draw(st.integers(1, 4))):
        cells = sorted({cell for pool in draw(pools) for cell in CELLS[pool]})
        drawn.append(draw(st.lists(st.sampled_from(cells), min_size=rows, max_size=rows)))
    out = io.StringIO(newline="")
    quoting = draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
    delimiter = draw(st.sampled_from(",;\t|"))
    writer = csv.writer(out, delimiter=delimiter, quoting=quoting)
    writer.writerows([[f"column {i}" for i in range(len(drawn))], *zip(*drawn, strict=True)])
    return out.getvalue(), delimiter


@given(csv_texts(), st.integers(1, 13))
def test_pieces_hold_the_values_of_the_whole(file, drawn, rows):
    text, delimiter = drawn
    whole = tables.read(file(text), delimiter=delimiter).frame
    pieces = list(tables.batches(file(text), kinds_of(whole), rows=rows, delimiter=delimiter))
    assert [len(piece) for piece in pieces[:-1]] == [rows] * (len(pieces) - 1)
    assert len({str(piece.schema) for piece in pieces}) == 1
    joined = columns(pa.concat_tables(pieces))
    for name, column in zip(whole.column_names, whole.columns, strict=True):
        if pa.types.is_integer(column.type):
            column = column.cast(pa.float64())
        if pa.types.is_null(column.type):  # of no kind, and text then
            assert set(joined[name]) <= {None, "NAN", *WORDS}
            continue
        assert joined[name] == column.to_pylist(), name


@pytest.mark.parametrize(
    ("kind", "cell", "expected"),
    [
        ("numeric", "abc", "a number"),
        ("numeric", "true", "a number"),
        ("boolean", "maybe", "true, false, 1 or 0"),
        ("date", "31.12.2024", "an ISO date"),
    ],
)
def test_a_cell_of_another_kind_is_named_with_its_row(file, kind, cell, expected):
    good = {"numeric": "1.5", "boolean": "1", "date": "2024-12-31"}[kind]
    text = "name,x\n" + f"a,{good}\n" * 70 + f"b,{cell}\n" + f"a,{good}\n" * 9 + "c,also wrong\n"
    pieces = tables.batches(file(text), {"x": kind}, rows=16)
    assert [len(next(pieces)) for _ in range(4)] == [16] * 4
    with pytest.raises(DataError, match=f"column 'x', row 71 after the header: '{cell}' is not {expected}"):
        next(pieces)
    (ok,) = tables.batches(file(f"x,key\n{good},007\n"), {"x": kind})
    assert columns(ok)["key"] == ["007"]


@pytest.mark.parametrize("last", ["2024-02-29T10:00", ""])
def test_the_first_date_that_disagrees_on_its_zone_is_named(file, last):
    cells = ["2024-02-29T10:00Z", "2024-03-01T10:00+02:00", "2024-03-02T10:00", "2024-03-03T10:00Z", last]
    text = "x,y\n" + "".join(f"{cell},1\n" for cell in cells)
    with pytest.raises(DataError, match="row 3 after the header: '2024-03-02T10:00' is not an ISO date"):
        list(tables.batches(file(text), {"x": "date"}))


def test_a_table_without_rows_is_one_piece_without_rows(file):
    frame = pa.table({"x": pa.array([], pa.float64()), "y": pa.array([], pa.string())})
    for content in ("x,y\n", "x,y\n\n\n", "x,y", parquet_bytes(frame)):
        (piece,) = tables.batches(file(content), {"x": "numeric"})
        assert piece.schema.equals(frame.schema)
        assert len(piece) == 0
        with pytest.raises(DataError, match="no rows"):
            tables.read(file(content))


@pytest.mark.parametrize(
    ("values", "doubtful"),
    [
        (["426", "850", "999", "1.653", "12.500", "2.700"], True),
        (["426", "850", "999", "1.653", "12.500", "2.7"], False),  # a point before one digit is a decimal point
        (["1.653", "12.500", "2.700", "0.426", "0.850", "0.999"], False),
        (["1", "2", "3", "1.653", "12.500", "2.700"], False),  # zeros may have been stripped from 1.000
        (["1426", "850", "999", "1.653", "12.500", "2.700"], False),
    ],
)
def test_a_note_names_columns_whose_points_may_be_thousands_separators(file, values, doubtful):
    table = tables.read(file("price;x\n" + "".join(f"{value};1\n" for value in values)))
    assert table.frame["price"].to_pylist() == [float(value) for value in values]
    assert [note.startswith("read with decimal points: price") for note in table.notes] == [True] * int(doubtful)
    assert tables.read(file("price;x\n" + "1.653;1\n426;1\n" * 3), decimal=".").notes == ()
