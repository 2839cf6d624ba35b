"""Files that cannot be read, those that are damaged, pipes, and what memory they take."""

import builtins
import datetime
import errno
import hashlib
import os
import random
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pytest

from fathomless.system import memory
from fathomless.system.errors import DataError, FileError
from fathomless.tables import files as tables
from fathomless.tables.writers import writer
from table_files import PACKED, SMALL, columns, gzipped, parquet_bytes

# --------------------------------------------------------------------------------------------- refusals

NO_TEXT = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 2], dtype=np.int32)), pa.py_buffer(b"\xff\xfe"))


@pytest.mark.parametrize(
    ("content", "error", "message"),
    [
        (b"", FileError, "is empty"),
        (b"\n \n", FileError, "is empty; a table needs a header line"),
        (
            b"1,2.5\n3,4\n",
            DataError,
            r"has only numbers in its first line \('1, 2.5'\); add a header line with the column names",
        ),
        (b"a,,c\n1,2,3\n", DataError, "column 2 of 3 has no name"),
        (b"a,b, a\n1,2,3\n", DataError, "column names 'a' more than once"),
        (
            b"red,1,0.5,1\nblue,2,3,4\n",
            DataError,
            "'1' more than once; rename them. The first row seems .* --no-header",
        ),
        (b"red,1,0.5,\nblue,2,3,4\n", DataError, "column 4 of 4 has no name; .* The first row seems .* --no-header"),
        (b'a,"b\n1,2\n', FileError, "header that cannot be parsed; remove stray quotes"),
        (b"a,b\n1,2\n3\n", FileError, "row 2 after the header: expected 2 cells, found 1: '3'"),
        (
            b"a,b\n\n1,2\n3,4,5\n",
            FileError,
            "row 2 after the header: expected 2 cells, found 3: '3,4,5'; correct the row",
        ),
        (b'a,b\n1,"2\n3,4\n', FileError, "a quote that is never closed, before '2 3,4'"),
        (b'a,b\n1,"' + b"2,3\n" * 10**6, FileError, "a quote that is never closed"),
        (b"a,b\n1,caf\xe9\n", FileError, r"byte 9, in line 2, is 0xe9; give its encoding \(often --encoding cp1252"),
        (b"caf\xe9,b\n1,2\n", FileError, r"byte 3, in line 1, is 0xe9"),
        (b"a,b\n1," + b"\xc3\xa9" * 2_000_000 + b"\xc3", FileError, r"byte 4000006, in line 2, is 0xc3"),
        ("a,b\n1,é\n".encode("utf-16")[:-1], FileError, "is not utf-16 .*truncated data.*; give another"),
        (b"a,b\n1,\x002\n", FileError, "neither Parquet nor text: byte 6 is zero"),
        (bytes(range(256)), FileError, "neither Parquet nor text"),
        (b"PK\x03\x04 and so on", FileError, "a zip archive or a spreadsheet"),
        (b"ARROW1\0\0", FileError, "cannot be read: the file is damaged"),
        (b'{"a": 1}\n{"a": 2', FileError, "line 2, is not valid JSON"),
        (b'{"a": 1}\n3\n', FileError, "line 2, is not a JSON object"),
        (b'{"a": 1}\n{"a": [2]}\n', DataError, "object 2: 'a' is a list or an object"),
        (b'[{"a": 1}, 2]', FileError, "line 1, is not a JSON object"),
        (b'{"a": "\xff"}\n', FileError, "is not UTF-8"),
        (
            gzipped(gzipped(SMALL)),
            FileError,
            "is compressed but does not contain CSV or JSON lines; decompress it first",
        ),
        (gzipped(b""), FileError, "is empty"),
        *(
            (pack(SMALL * 99)[:-3], FileError, "the file is damaged")
            for form, pack in PACKED.items()
            if form != "plain"
        ),
        (gzipped(SMALL) + b"and more", FileError, "the file is damaged"),
        (b"PAR1", FileError, "the file is damaged"),
        (parquet_bytes(pa.table({"a": [1]}))[:-9], FileError, "the file is damaged"),
        (parquet_bytes(pa.table({})), DataError, "there are no columns"),
        (parquet_bytes(pa.table({"a": NO_TEXT})), FileError, "the file is damaged"),
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
    with pytest.raises(FileError, match=r"is a folder; give a table file"):
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
        with pytest.raises(DataError, match="lacks the columns 'c'; its columns are 'a', 'b'"):
            next(tables.batches(file(content), {"c": "category"}))


def test_without_pyarrow_the_way_to_install_it_is_told(file, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for way in (
        lambda: tables.read(file(SMALL)),
        lambda: next(tables.batches("-", {})),
        lambda: writer("-").__enter__(),
    ):
        with pytest.raises(FileError, match=r"needs pyarrow, which is not installed: pip install 'fathomless\[cli\]'"):
            way()


def test_importing_the_module_loads_neither_torch_nor_pyarrow_nor_numpy():
    code = "import sys, fathomless.tables.files; sys.exit(len({'torch', 'pyarrow', 'numpy'} & set(sys.modules)))"
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


READ = """
import sys
import pyarrow as pa
from fathomless.tables import files as tables
start, peak, count = pa.total_allocated_bytes(), 0, 0
for piece in tables.batches(sys.argv[1], {"x": "numeric"}, rows=10_000):
    count += len(piece)
    peak = max(peak, pa.total_allocated_bytes() - start)
print(count, peak)
"""


def test_memory_holds_a_few_blocks_however_many_rows_there_are(file):
    """A process of its own: threads of readers that earlier tests left may still allocate in this one."""
    rows = 2_000_000
    path = file(gzipped(b"x,y\n" + b"1.25,some text\n" * rows))  # 30 MB, of which less than 1 MB is left
    done = subprocess.run([sys.executable, "-c", READ, str(path)], capture_output=True, text=True, check=True)
    count, peak = map(int, done.stdout.split())
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
    with pytest.raises(DataError, match=r"more of .* \(so far .*\) needs 256 MiB of memory, 128 MiB are free"):
        tables.read(file(SMALL))
    frame = pa.table({"a": pa.array(np.zeros(20_000_000, dtype=np.int8))})
    with pytest.raises(DataError, match=r"with 20000000 rows and 1 columns, needs .*; give fewer"):
        tables.read(file(parquet_bytes(frame)))
    assert len(next(tables.batches(file(SMALL), {}))) == 2
