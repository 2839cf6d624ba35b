"""Tables: the types of Parquet, what estimators make of a table that was read, and writing."""

import builtins
import datetime
import decimal
import errno
import io
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fathomless.data import frames as data
from fathomless.system.errors import DataError, DataWarning, FileError
from fathomless.tables import files as tables
from fathomless.tables.writers import writer
from table_files import columns, parquet_bytes

# ---------------------------------------------------------------------------------------------- Parquet


def arrow_columns():
    day, time = datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29, 10)
    return {
        "text": (pa.array(["a", None, "b"]), "category"),
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
    types = {name: column.type for name, column in found.items()}
    types["dictionary"] = pa.string()  # the one that is not kept
    assert {field.name: field.type for field in whole.frame.schema} == types
    assert str(columns(whole)) == str(columns(frame))  # as text, since nan is not nan
    joined = pa.concat_tables(tables.batches(path, kinds, rows=2))
    for name, kind in kinds.items():
        assert joined.schema.field(name).type == (pa.float64() if kind == "numeric" else types[name])
        values = [float(v) if kind == "numeric" and v is not None else v for v in found[name].to_pylist()]
        assert str(joined[name].to_pylist()) == str(values)


def test_text_of_parquet_is_read_as_the_kind_that_is_known(file):
    frame = pa.table({"x": ["1.5", " 2", None], "day": ["2024-02-29", "", "NA"], "key": ["007", "NA", " a"]})
    (found,) = tables.batches(file(parquet_bytes(frame)), {"x": "numeric", "day": "date", "key": "category"})
    assert columns(found) == {
        "x": [1.5, 2.0, None],
        "day": [datetime.datetime(2024, 2, 29), None, None],
        "key": ["007", "NA", "a"],
    }
    with pytest.raises(DataError, match="column 'key', row 3 after the header: 'a' is not a number"):
        list(tables.batches(file(parquet_bytes(frame)), {"key": "numeric"}))


def test_pandas_and_polars_read_what_we_write_and_the_other_way_round(tmp_path):
    frame = pa.table({"a": [1, None, 3], "b": ["x", None, 'y"z'], "c": [0.1, None, 1e-300]})
    path = tmp_path / "table.parquet"
    with writer(path) as write:
        write(frame)
    assert pl.read_parquet(path).to_dict(as_series=False) == columns(frame)
    pd.read_parquet(path).to_parquet(tmp_path / "pandas.parquet")
    assert columns(tables.read(tmp_path / "pandas.parquet"))["b"] == ["x", None, 'y"z']
    pl.read_parquet(path).write_parquet(tmp_path / "polars.parquet")
    assert columns(tables.read(tmp_path / "polars.parquet")) == columns(frame)
    with writer(tmp_path / "table.csv") as write:
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
    ],
    ids=lambda column: str(column.type),
)
def test_types_that_mean_nothing_to_a_network_are_refused_by_name(file, column):
    found = tables.read(file(parquet_bytes(pa.table({"odd one": column})))).frame
    with pytest.raises(DataError, match="column 'odd one' ha"):
        data.fit_schema(found)


def written_with_words(ending: str) -> bytes:
    """Return a table with the words "k.A." and "unknown" for missing values."""
    frame = pd.DataFrame({"size": ["1.5", "k.A.", "2.5", " unknown "], "town": ["Ulm", "K.A.", "k.A.", "unknown!"]})
    if ending == "csv":
        return b'size,town\n1.5,Ulm\nk.A.,K.A.\n2.5,"k.A."\n unknown ,unknown!\n'
    if ending == "json":
        return frame.to_json(orient="records", lines=True).encode()
    if ending == "parquet":
        return parquet_bytes(pa.Table.from_pandas(frame))
    pytest.importorskip("openpyxl")
    out = io.BytesIO()
    frame["size"] = [1.5, "k.A.", 2.5, " unknown "]
    frame.to_excel(out, index=False, engine="openpyxl")
    return out.getvalue()


@pytest.mark.parametrize("ending", ["csv", "json", "xlsx", "parquet"])
def test_given_words_are_missing_values_in_every_format(file, ending):
    path = file(written_with_words(ending))
    missing = ("k.A.", "unknown")
    expected = {"size": [1.5, None, 2.5, None], "town": ["Ulm", "K.A.", None, "unknown!"]}
    kinds = {"size": "numeric", "town": "category"}
    pieces = list(tables.batches(path, kinds, rows=3, missing=missing))
    assert pa.concat_tables(pieces).to_pydict() == expected
    whole = tables.read(path, missing=missing).frame.to_pydict()
    if ending == "parquet":  # its text is not parsed without a known kind
        expected["size"] = ["1.5", None, "2.5", None]
    assert whole == expected
    plain = tables.read(path).frame.to_pydict()
    assert plain["size"][1] == "k.A."
    assert plain["town"] == ["Ulm", "K.A.", "k.A.", "unknown!"]


def test_a_given_number_is_a_missing_value_in_csv(file):
    frame = tables.read(file("a,b\n1,-999\n-999,2\n3,-9990\n"), missing=("-999",)).frame
    assert frame.to_pydict() == {"a": [1, None, 3], "b": [None, 2, -9990]}


def test_a_column_of_csv_without_a_value_is_ignored(file):
    found = tables.read(file("x,nothing\n1,\n2,NA\n")).frame
    assert pa.types.is_null(found.schema.field("nothing").type)
    with pytest.warns(DataWarning, match="column 'nothing' has no values in the training data; it is ignored"):
        assert data.fit_schema(found).encoded_names == ("x",)


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
    with writer(path) as write:
        for start in range(0, len(frame), rows):
            write(frame.slice(start, rows))
    found = tables.read(path, delimiter="auto" if frame.num_columns > 1 else ",").frame
    assert columns(found) == columns(frame)
    for ours, theirs in zip(found.columns, frame.columns, strict=True):
        if pa.types.is_floating(ours.type):  # a column of whole numbers may have become int64, which has one zero
            assert np.array_equal(np.signbit(ours.to_numpy()), np.signbit(theirs.to_numpy()))


def test_missing_values_are_nothing_and_in_a_table_of_one_column_a_word(standard):
    out = standard()
    with writer("-") as write:
        write(pa.table({"a": ["x", None, "NA", ""], "b": [0.1, math.nan, None, math.inf]}))
    assert out.getvalue() == b'"a","b"\n"x",0.1\n,nan\n"NA",\n"",inf\n'
    out = standard()
    with writer("-") as write:
        write(pa.table({"a": [1, None]}))
        write(pa.table({"a": [2, 3]}))
    assert out.getvalue() == b'"a"\n1\nNA\n2\n3\n'
    assert not out.closed
    out = standard()
    with writer("-") as write:
        write(pa.table({"a": ['x"y', None, "", "a\n\nb", "NA"]}))
    assert out.getvalue() == b'"a"\n"x""y"\nNA\n""\n"a\n\nb"\n"NA"\n'
    day = datetime.datetime(2024, 2, 29, 12)
    for values in ([True, False], [0.1, -1e300], [day, day.replace(hour=0)], ["a", "b"]):  # as with other columns
        lines = []
        for cells in (values, [None, *values]):
            out = standard()
            with writer("-") as write:
                write(pa.table({"a": cells}))
            lines.append(out.getvalue())
        assert lines[1] == lines[0].replace(b'"a"\n', b'"a"\nNA\n', 1)


def write_and_fail(path, pieces):
    with writer(path) as write:
        for piece in pieces:
            write(piece)
        _ = 1 / 0


@pytest.mark.parametrize("ending", [".csv", ".csv.gz", ".parquet", ".PQ"])
def test_a_file_appears_when_all_went_well_and_not_before(tmp_path, ending):
    path = tmp_path / f"out{ending}"
    for _ in range(2):
        before = path.read_bytes() if path.exists() else None
        with writer(path) as write:
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
    with pytest.raises(DataError, match=r"cannot hold 'a \(list<.*int64>\)'"), writer(path) as write:
        write(pa.table({"a": [[1]]}))
    with pytest.raises(DataError, match="no table was written to"), writer(path):
        pass
    with pytest.raises(DataError, match=r"has an unknown ending; allowed are .csv, .tsv, .*, .xlsx, and - for"):
        writer(tmp_path / "out.ods").__enter__()
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(FileError, match="is a folder"):
        writer(tmp_path / "folder.csv").__enter__()
    with pytest.raises(FileError, match=r"cannot be written: No such file.*create that folder"):
        writer(tmp_path / "absent" / "out.csv").__enter__()
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
    with pytest.raises(FileError, match=r"cannot be written: .*No space left"), writer(path) as write:
        write(pa.table({"a": np.random.default_rng(0).standard_normal(100_000)}))
    monkeypatch.setattr(builtins, "open", real)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == [path.name]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_devices_are_written_to_and_not_replaced(tmp_path):
    link = tmp_path / "full.csv"
    link.symlink_to("/dev/full")
    with pytest.raises(FileError, match="No space left on device"), writer(link) as write:
        write(pa.table({"a": list(range(100_000))}))
    assert link.is_symlink()
    assert Path("/dev/full").is_char_device()


def test_links_are_followed(tmp_path):
    (tmp_path / "real.csv").write_bytes(b"old")
    (tmp_path / "link.csv").symlink_to(tmp_path / "real.csv")
    with writer(tmp_path / "link.csv") as write:
        write(pa.table({"a": [1]}))
    assert (tmp_path / "link.csv").is_symlink()
    assert (tmp_path / "real.csv").read_bytes() == b'"a"\n1\n'


def test_a_closed_pipe_is_a_broken_pipe(monkeypatch):
    class Closed(io.BytesIO):
        def write(self, content):
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=Closed()))
    with pytest.raises(BrokenPipeError), writer("-") as write:
        write(pa.table({"a": [1]}))
