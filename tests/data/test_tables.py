import builtins
import bz2
import csv
import datetime
import decimal
import errno
import gc
import gzip
import hashlib
import io
import lzma
import math
import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from fathomless.data import files as tables
from fathomless.data import frames as data
from fathomless.system import memory
from fathomless.system.errors import DataError, FileError


def gzipped(data: bytes) -> bytes:
    """Compress without the time, so that tests have the same names in every process."""
    return gzip.compress(data, mtime=0)


WORDS = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", "None", "?"]
PACKED = {
    "plain": lambda text: text,
    "gz": gzipped,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda text: pa.compress(text, codec="zstd", asbytes=True),
}


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Write bytes or text to a file and return its path; the name says nothing of the content."""
    path = tmp_path_factory.mktemp("tables") / "table.dat"

    def write(content):
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture
def standard(monkeypatch):
    """Put bytes on standard input and return what was written to standard output."""

    def replace(content=b""):
        out = io.BytesIO()
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(content))))
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=out))
        return out

    return replace


def columns(found):
    return (found.frame if isinstance(found, tables.Table) else found).to_pydict()


def kinds_of(frame):
    """The kinds that a schema would deduce; columns without a value have none."""
    found = {}
    for field in frame.schema:
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
            found[field.name] = "numeric"
        elif not pa.types.is_null(field.type):
            found[field.name] = {"bool": "boolean", "string": "category"}.get(str(field.type), "date")
    return found


def parquet_bytes(table, **options):
    out = io.BytesIO()
    parquet.write_table(table, out, **options)
    return out.getvalue()


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
        (["1,000.5", "1"], ["1,000.5", "1"]),
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
            [datetime.datetime(2024, 2, 29, 10), datetime.datetime(2024, 2, 29, 8)],
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
        assert str(column.type) in {"int64", "double", "bool", "timestamp[us]", "string", "null"}


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
        with pytest.raises(DataError, match=r"lacks the columns 'z'; it has 'a', 'b\.c', 'd'"):
            tables.read(file(content), columns=["d", "z"])
        with pytest.raises(DataError, match="columns: there are no columns"):
            tables.read(file(content), columns=[])
        with pytest.raises(DataError, match="columns has the column names 'a' more than once"):
            tables.read(file(content), columns=["a", "a"])


def test_rows_may_be_as_long_as_wide_tables_make_them(file):
    names = [f"{i} {'a long name ' * 20}".strip() for i in range(1000)]
    found = tables.read(file(",".join(names) + "\n" + ",".join(["x" * 4000] * len(names))))
    assert found.frame.num_columns == len(names)


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


# --------------------------------------------------------------------------------------------- refusals

SMALL = b"a,b\n1,2\n3,4\n"
NO_TEXT = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 2], dtype=np.int32)), pa.py_buffer(b"\xff\xfe"))


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", FileError, "is empty"),
        (b"\n \n", FileError, "is empty; a table needs a header line"),
        (b"1,2.5\n3,4\n", DataError, r"starts with numbers \('1, 2.5'\); add a line with the column names"),
        (b"a,,c\n1,2,3\n", DataError, "column 2 of 3 has no name"),
        (b"a,b, a\n1,2,3\n", DataError, "column names 'a' more than once"),
        (b'a,"b\n1,2\n', FileError, "header that cannot be read; look for a stray quote"),
        (b"a,b\n1,2\n3\n", FileError, "row 2 after the header: expected 2 cells, found 1: '3'"),
        (b"a,b\n\n1,2\n3,4,5\n", FileError, "row 2 after the header: expected 2 cells, found 3: '3,4,5'; repair"),
        (b'a,b\n1,"2\n3,4\n', FileError, "a quote that is never closed, before '2 3,4'"),
        (b'a,b\n1,"' + b"2,3\n" * 10**6, FileError, "a quote that is never closed"),
        (b"a,b\n1,caf\xe9\n", FileError, r"byte 9, in line 2, is 0xe9; convert it: iconv -f latin1 -t utf8"),
        (b"caf\xe9,b\n1,2\n", FileError, r"byte 3, in line 1, is 0xe9"),
        (b"a,b\n1," + b"\xc3\xa9" * 2_000_000 + b"\xc3", FileError, r"byte 4000006, in line 2, is 0xc3"),
        ("a,b\n1,é\n".encode("utf-16"), FileError, "iconv -f utf16 -t utf8"),
        (b"a,b\n1,\x002\n", FileError, "neither Parquet nor text: byte 6 is zero"),
        (bytes(range(256)), FileError, "neither Parquet nor text"),
        (b"PK\x03\x04 and so on", FileError, "a zip archive or a spreadsheet"),
        (b"ARROW1\0\0", FileError, "an Arrow or Feather file; write the table as CSV or Parquet"),
        (gzipped(gzipped(SMALL)), FileError, "is compressed and holds no CSV; decompress it first"),
        (gzipped(b""), FileError, "is empty"),
        *((pack(SMALL * 99)[:-3], FileError, "it is damaged") for form, pack in PACKED.items() if form != "plain"),
        (gzipped(SMALL) + b"and more", FileError, "it is damaged"),
        (b"PAR1", FileError, "it is damaged"),
        (parquet_bytes(pa.table({"a": [1]}))[:-9], FileError, "it is damaged"),
        (parquet_bytes(pa.table({})), DataError, "there are no columns"),
        (parquet_bytes(pa.table({"a": NO_TEXT})), FileError, "it is damaged"),
        (parquet_bytes(pa.table([[1], [2]], names=["a", "a"])), DataError, "column names 'a' more than once"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(file, content, error, message):
    for way in (tables.read, lambda path: list(tables.batches(path, {}))):
        with pytest.raises(error, match=message) as caught:
            way(file(content))
        assert "\n" not in str(caught.value)
        assert str(file(content)) in str(caught.value)


def test_a_column_may_be_called_like_parquet(file):
    assert columns(tables.read(file("PAR1,x\n1,2\n"))) == {"PAR1": [1], "x": [2]}


def test_a_quote_at_the_very_end_is_no_stray_one(file):
    assert columns(tables.read(file('a,b\n1,"2\n3,4\n"\n')))["b"] == ["2\n3,4"]
    assert columns(tables.read(file('a,b\n"x\ny",5"\n')))["b"] == ['5"']


def test_paths_that_are_no_files_are_refused(tmp_path, monkeypatch):
    with pytest.raises(FileError, match=r"there is no file .*absent.csv; check the path"):
        tables.read(tmp_path / "absent.csv")
    with pytest.raises(FileError, match=r"is a folder; give a CSV or Parquet file"):
        tables.read(tmp_path)
    path = tmp_path / "secret.csv"
    path.write_bytes(SMALL)

    def closed(name, *rest, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(name))

    monkeypatch.setattr(builtins, "open", closed)
    with pytest.raises(FileError, match=r"cannot be read: Permission denied \(errno 13\); permission is missing"):
        tables.read(path)


@pytest.mark.parametrize(
    "options", [{"delimiter": ""}, {"delimiter": ",,"}, {"delimiter": '"'}, {"delimiter": "é"}, {"decimal": ";"}]
)
def test_options_that_csv_cannot_have_are_refused(file, options):
    for way in (tables.read, lambda path, **rest: list(tables.batches(path, {}, **rest))):
        with pytest.raises(DataError, match=f"{next(iter(options))} is .*; allowed are"):
            way(file(SMALL), **options)


def test_kinds_must_be_known_and_their_columns_present(file):
    with pytest.raises(DataError, match=r"kinds has \['number'\]"):
        next(tables.batches(file(SMALL), {"a": "number"}))
    with pytest.raises(DataError, match="rows is 0"):
        next(tables.batches(file(SMALL), {}, rows=0))
    for content in (SMALL, parquet_bytes(pa.table({"a": [1], "b": [2]}))):
        with pytest.raises(DataError, match="lacks the columns 'c'; it has 'a', 'b'"):
            next(tables.batches(file(content), {"c": "category"}))


def test_without_pyarrow_the_way_to_install_it_is_told(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for way in (
        lambda: tables.read(file(SMALL)),
        lambda: next(tables.batches("-", {})),
        lambda: tables.writer("-").__enter__(),
    ):
        with pytest.raises(FileError, match=r"needs pyarrow, which is not installed: pip install 'fathomless\[cli\]'"):
            way()


def test_importing_the_module_loads_neither_torch_nor_pyarrow_nor_numpy():
    code = "import sys, fathomless.data.files; sys.exit(len({'torch', 'pyarrow', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def mutated(content, rng):
    content = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4, 8])):
        start = rng.randrange(len(content) + 1)
        stop = min(len(content), start + rng.choice([1, 2, 8, 40]))
        piece = content[start:stop]
        match rng.randrange(5):
            case 0 if piece:
                content[start] ^= 1 << rng.randrange(8)
            case 1:
                content[start:stop] = rng.choice([b"", b'"', b",", b"\n", b"\r", b"\0", b"\xff", b'""'])
            case 2:
                content[start:start] = rng.randbytes(8)
            case 3:
                content[start:start] = piece
            case 4:
                del content[start:]
    return bytes(content)


@pytest.mark.parametrize("form", [*PACKED, "parquet", "plain parquet"])
def test_a_damaged_file_gives_a_table_or_one_of_our_errors(file, form):
    day = datetime.date(2024, 2, 29)
    rows = [{"a": i, "b": f"text {i % 5}", "c": i / 3, "d": day, "e": None if i % 3 else True} for i in range(40)]
    frame = pa.Table.from_pylist(rows)
    lines = ["a,b,c,d,e", *(f'{r["a"]},"{r["b"]}",{r["c"]},{r["d"]},{r["e"] or ""}' for r in rows)]
    if form in PACKED:
        content = PACKED[form]("\n".join(lines).encode())
    else:
        plain = form == "plain parquet"
        content = parquet_bytes(
            frame, row_group_size=9, use_dictionary=not plain, compression="none" if plain else "gzip"
        )
    kinds = {"a": "numeric", "b": "category", "c": "numeric", "d": "date", "e": "boolean"}
    rng = random.Random(form)
    outcomes = set()
    for _ in range(60):
        path = file(mutated(content, rng))
        for way in (lambda p: tables.read(p).frame.to_pydict(), lambda p: list(tables.batches(p, kinds, rows=7))):
            try:
                way(path)
                outcomes.add("table")
            except (FileError, DataError) as error:
                assert "\n" not in str(error)  # noqa: PT017 - any number of outcomes is fine
                outcomes.add("error")
    assert "error" in outcomes


# ------------------------------------------------------------------------------------- pipes and memory


@pytest.mark.parametrize("form", [*PACKED, "parquet"])
def test_standard_input_is_read_once_and_stays_open(standard, form):
    content = parquet_bytes(pa.table({"a": [1, 3], "b": [2, 4]})) if form == "parquet" else PACKED[form](SMALL)
    standard(content)
    found = tables.read("-")
    assert columns(found) == {"a": [1, 3], "b": [2, 4]}
    assert (found.sha256, found.bytes) == (hashlib.sha256(content).hexdigest(), len(content))
    assert found.name == "standard input"
    assert not sys.stdin.buffer.closed
    standard(content)
    assert [len(piece) for piece in tables.batches("-", {"a": "numeric"}, rows=1)] == [1, 1]
    assert not sys.stdin.buffer.closed


def test_standard_input_is_read_from_where_it_stands(standard):
    standard(b"skip" + parquet_bytes(pa.table({"a": [1]})))
    sys.stdin.buffer.read(4)
    assert columns(tables.read("-")) == {"a": [1]}


@pytest.mark.skipif(os.name == "nt", reason="needs named pipes")
@pytest.mark.parametrize("content", [SMALL, gzipped(SMALL), parquet_bytes(pa.table({"a": [1, 3], "b": [2, 4]}))])
def test_named_pipes_are_read_however_small_the_portions(tmp_path, content):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def feed():
        with open(pipe, "wb", buffering=0) as out:
            for i in range(len(content)):
                out.write(content[i : i + 1])

    thread = threading.Thread(target=feed)
    thread.start()
    found = tables.read(pipe)
    thread.join()
    assert columns(found) == {"a": [1, 3], "b": [2, 4]}
    assert found.sha256 == hashlib.sha256(content).hexdigest()


def test_memory_holds_a_few_blocks_however_many_rows_there_are(file):
    rows = 2_000_000
    path = file(gzipped(b"x,y\n" + b"1.25,some text\n" * rows))  # 30 MB, of which less than 1 MB is left
    gc.collect()
    start, peak, count = pa.total_allocated_bytes(), 0, 0
    for piece in tables.batches(path, {"x": "numeric"}, rows=10_000):
        count += len(piece)
        peak = max(peak, pa.total_allocated_bytes() - start)
    assert count == rows
    assert peak < 12e6


def test_pieces_may_be_left_before_the_end(file):
    path = file(b"x,y\n" + b"1.25,some text\n" * 300_000)
    for _ in range(20):
        pieces = tables.batches(path, {"x": "numeric"}, rows=100)
        assert len(next(pieces)) == 100
        pieces.close()


def test_a_table_that_does_not_fit_is_refused_before_memory_ends(file, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 1 << 27)
    with pytest.raises(DataError, match=r"more of .* \(so far .* of text\) needs 256 MiB of memory, 128 MiB are free"):
        tables.read(file(SMALL))
    frame = pa.table({"a": pa.array(np.zeros(20_000_000, dtype=np.int8))})
    with pytest.raises(DataError, match=r"with 20000000 rows and 1 columns, needs .*; give fewer"):
        tables.read(file(parquet_bytes(frame)))
    assert len(next(tables.batches(file(SMALL), {}))) == 2


# ---------------------------------------------------------------------------------------------- Parquet


def arrow_columns():
    day, time = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 10)
    return {
        "text": (pa.array(["a", None, "b "]), "category"),
        "large text": (pa.array(["a", None, "b"], pa.large_string()), "category"),
        "dictionary": (pa.array(["a", None, "b"]).dictionary_encode(), "category"),
        "bool": (pa.array([True, None, False]), "boolean"),
        "day": (pa.array([day, None, day]), "date"),
        "time": (pa.array([time, None, time], pa.timestamp("us")), "date"),
        "zoned": (pa.array([time, None, time], pa.timestamp("ns", "Europe/Paris")), "date"),
        "int": (pa.array([1, None, 3]), "numeric"),
        "byte": (pa.array([1, None, 3], pa.uint8()), "numeric"),
        "half": (pa.array(np.array([1.5, 2, 3], dtype=np.float16)), "numeric"),
        "float": (pa.array([1.5, None, math.nan]), "numeric"),
        "decimal": (pa.array([decimal.Decimal("1.50"), None, decimal.Decimal("-2.25")]), "numeric"),
    }


def test_parquet_keeps_its_types_and_its_numbers_become_double_in_pieces(file):
    found = {name: column for name, (column, _) in arrow_columns().items()}
    kinds = {name: kind for name, (_, kind) in arrow_columns().items()}
    frame = pa.table(found)
    path = file(parquet_bytes(frame, row_group_size=2))
    whole = tables.read(path)
    assert whole.frame.schema.equals(frame.schema)
    assert str(columns(whole)) == str(columns(frame))  # as text, since nan is not nan
    joined = pa.concat_tables(tables.batches(path, kinds, rows=2))
    for name, kind in kinds.items():
        assert joined.schema.field(name).type == (pa.float64() if kind == "numeric" else found[name].type)
        values = [float(v) if kind == "numeric" and v is not None else v for v in found[name].to_pylist()]
        assert str(joined[name].to_pylist()) == str(values)


def test_text_of_parquet_is_read_as_the_kind_that_is_known(file):
    frame = pa.table({"x": ["1.5", " 2", None], "day": ["2024-02-29", "", "NA"], "key": ["007", "NA", " a"]})
    (found,) = tables.batches(file(parquet_bytes(frame)), {"x": "numeric", "day": "date", "key": "category"})
    assert columns(found) == {
        "x": [1.5, 2.0, None],
        "day": [datetime.datetime(2024, 2, 29), None, None],
        "key": ["007", "NA", " a"],
    }
    with pytest.raises(DataError, match="column 'key', row 3 after the header: 'a' is not a number"):
        list(tables.batches(file(parquet_bytes(frame)), {"key": "numeric"}))


def test_pandas_and_polars_read_what_we_write_and_the_other_way_round(tmp_path):
    frame = pa.table({"a": [1, None, 3], "b": ["x", None, 'y"z'], "c": [0.1, None, 1e-300]})
    path = tmp_path / "table.parquet"
    with tables.writer(path) as write:
        write(frame)
    assert pl.read_parquet(path).to_dict(as_series=False) == columns(frame)
    pd.read_parquet(path).to_parquet(tmp_path / "pandas.parquet")
    assert columns(tables.read(tmp_path / "pandas.parquet"))["b"] == ["x", None, 'y"z']
    pl.read_parquet(path).write_parquet(tmp_path / "polars.parquet")
    assert columns(tables.read(tmp_path / "polars.parquet")) == columns(frame)
    with tables.writer(tmp_path / "table.csv") as write:
        write(frame)
    assert pl.read_csv(tmp_path / "table.csv").to_dict(as_series=False) == columns(frame)


# ------------------------------------------------------------------------------- what estimators make of it


def test_what_is_read_can_be_encoded(file):
    text = "n,x,b,t,d\n1,0.5,true,a,2024-02-29\n2,,false,b,2024-03-01\n,1.5,,a,\n"
    whole = tables.read(file(text)).frame
    schema = data.fit_schema(whole)
    assert [column.kind for column in schema.columns] == ["numeric", "numeric", "boolean", "category", "date"]
    kinds = {column.name: column.kind for column in schema.columns}
    pieces = tables.batches(file(text), kinds, rows=1)
    assert np.array_equal(np.concatenate([data.encode(schema, piece) for piece in pieces]), data.encode(schema, whole))
    by_pandas = pd.read_csv(io.StringIO(text), parse_dates=["d"])
    assert np.array_equal(data.encode(data.fit_schema(by_pandas), by_pandas), data.encode(schema, whole))


def test_types_of_parquet_can_be_encoded(file):
    found = {name: column for name, (column, _) in arrow_columns().items()}
    path = file(parquet_bytes(pa.table(found)))
    schema = data.fit_schema(tables.read(path).frame)
    kinds = {column.name: column.kind for column in schema.columns}
    assert kinds == {name: kind for name, (_, kind) in arrow_columns().items()}
    joined = np.concatenate([data.encode(schema, piece) for piece in tables.batches(path, kinds, rows=2)])
    assert np.array_equal(joined, data.encode(schema, tables.read(path).frame))


@pytest.mark.parametrize(
    "column",
    [
        pa.array([datetime.time(10), None]),
        pa.array([datetime.timedelta(1), None], pa.duration("us")),
        pa.array([[1, 2], None]),
        pa.array([{"a": 1}, None]),
        pa.array([b"bytes", None]),
        pa.nulls(2),
    ],
    ids=lambda column: str(column.type),
)
def test_types_that_mean_nothing_to_a_network_are_refused_by_name(file, column):
    found = tables.read(file(parquet_bytes(pa.table({"odd one": column})))).frame
    with pytest.raises(DataError, match="column 'odd one' ha"):
        data.fit_schema(found)


def test_a_column_of_csv_without_a_value_is_refused_by_name(file):
    found = tables.read(file("x,nothing\n1,\n2,NA\n")).frame
    assert pa.types.is_null(found.schema.field("nothing").type)
    with pytest.raises(DataError, match="column 'nothing' has no value at all in training; drop the column"):
        data.fit_schema(found)


# ---------------------------------------------------------------------------------------------- writing

VALUES = {
    "text": (
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")).map("a{}b".format),
        pa.string(),
    ),
    "float": (st.floats(allow_nan=False), pa.float64()),
    "int": (st.integers(-(2**63), 2**63 - 1), pa.int64()),
    "bool": (st.booleans(), pa.bool_()),
    "time": (st.datetimes(), pa.timestamp("us")),
}


@st.composite
def arrow_tables(draw):
    rows = draw(st.integers(1, 8))
    chosen = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4))
    drawn = {}
    for i, kind in enumerate(chosen):
        values, type_ = VALUES[kind]
        cells = draw(st.lists(values | st.none(), min_size=rows, max_size=rows))
        drawn[f"{kind} {i}"] = pa.array(cells, type_)
    return pa.table(drawn)


@given(arrow_tables(), st.sampled_from([".csv", ".csv.gz", ".parquet"]), st.integers(1, 8))
def test_what_is_written_reads_back_exactly(file, frame, ending, rows):
    path = file("").with_name("table" + ending)
    with tables.writer(path) as write:
        for start in range(0, len(frame), rows):
            write(frame.slice(start, rows))
    found = tables.read(path, delimiter="auto" if frame.num_columns > 1 else ",").frame
    assert columns(found) == columns(frame)
    for ours, theirs in zip(found.columns, frame.columns, strict=True):
        if pa.types.is_floating(ours.type):  # a column of whole numbers may have become int64, which has one zero
            assert np.array_equal(np.signbit(ours.to_numpy()), np.signbit(theirs.to_numpy()))


def test_missing_values_are_nothing_and_in_a_table_of_one_column_a_word(standard):
    out = standard()
    with tables.writer("-") as write:
        write(pa.table({"a": ["x", None, "NA", ""], "b": [0.1, math.nan, None, math.inf]}))
    assert out.getvalue() == b'"a","b"\n"x",0.1\n,nan\n"NA",\n"",inf\n'
    out = standard()
    with tables.writer("-") as write:
        write(pa.table({"a": [1, None]}))
        write(pa.table({"a": [2, 3]}))
    assert out.getvalue() == b'"a"\n1\nNA\n2\n3\n'
    assert not out.closed


def write_and_fail(path, pieces):
    with tables.writer(path) as write:
        for piece in pieces:
            write(piece)
        _ = 1 / 0


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet", ".PQ"])
def test_a_file_appears_when_all_went_well_and_not_before(tmp_path, ending):
    path = tmp_path / f"out{ending}"
    for _ in range(2):
        before = path.read_bytes() if path.exists() else None
        with tables.writer(path) as write:
            write(pa.table({"a": [1], "b": ["x"]}))
            assert (path.read_bytes() if path.exists() else None) == before
        assert columns(tables.read(path)) == {"a": [1], "b": ["x"]}
        assert before in (None, path.read_bytes())  # the same table gives the same bytes
        if ending == ".csv.gz":
            assert path.read_bytes()[3:8] == bytes(5)  # neither a name nor a time
    for pieces in ([], [pa.table({"a": [2]})]):
        with pytest.raises(ZeroDivisionError):
            write_and_fail(path, pieces)
        assert columns(tables.read(path)) == {"a": [1], "b": ["x"]}
        assert os.listdir(tmp_path) == [path.name]


def test_tables_that_cannot_be_written_are_refused_and_leave_nothing_behind(tmp_path):
    path = tmp_path / "out.csv"
    first = pa.table({"a": [1], "b": [2]})
    for later in (pa.table({"a": [1]}), pa.table({"a": [1], "b": ["x"]})):
        with pytest.raises(DataError, match=r"has the columns 'a \(int64\)', 'b \(int64\)'; a later piece has"):
            write_and_fail(path, [first, later])
    with pytest.raises(DataError, match=r"cannot hold 'a \(list<.*int64>\)'"), tables.writer(path) as write:
        write(pa.table({"a": [[1]]}))
    with pytest.raises(DataError, match="was given no table"), tables.writer(path):
        pass
    with pytest.raises(DataError, match=r"ends with none of .csv, .csv.gz, .parquet and .pq"):
        tables.writer(tmp_path / "out.xlsx").__enter__()
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(FileError, match="is a folder"):
        tables.writer(tmp_path / "folder.csv").__enter__()
    with pytest.raises(FileError, match=r"cannot be written: No such file.*create that folder"):
        tables.writer(tmp_path / "absent" / "out.csv").__enter__()
    assert os.listdir(tmp_path) == ["folder.csv"]


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet"])
def test_a_full_disk_is_one_of_our_errors_and_the_old_file_stays(tmp_path, monkeypatch, ending):
    path = tmp_path / f"out{ending}"
    path.write_bytes(b"old")
    real = builtins.open

    class Full(io.FileIO):
        def write(self, content):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(builtins, "open", lambda name, mode="r", **rest: Full(name, mode.replace("b", "")))
    with pytest.raises(FileError, match=r"cannot be written: .*No space left"), tables.writer(path) as write:
        write(pa.table({"a": np.random.default_rng(0).standard_normal(100_000)}))
    monkeypatch.setattr(builtins, "open", real)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_devices_are_written_to_and_not_replaced(tmp_path):
    link = tmp_path / "full.csv"
    link.symlink_to("/dev/full")
    with pytest.raises(FileError, match="No space left on device"), tables.writer(link) as write:
        write(pa.table({"a": list(range(100_000))}))
    assert link.is_symlink()
    assert Path("/dev/full").is_char_device()


def test_links_are_followed(tmp_path):
    (tmp_path / "real.csv").write_bytes(b"old")
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    with tables.writer(tmp_path / "link.csv") as write:
        write(pa.table({"a": [1]}))
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_bytes() == b'"a"\n1\n'


def test_a_closed_pipe_is_a_broken_pipe(monkeypatch):
    class Closed(io.BytesIO):
        def write(self, content):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=Closed()))
    with pytest.raises(BrokenPipeError), tables.writer("-") as write:
        write(pa.table({"a": [1]}))
