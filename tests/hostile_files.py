"""Malicious files for the readers: each raises a documented error, or is read correctly.

python tests/hostile_files.py

Every file is read in a forked child, as ``fit`` and as ``predict`` do, with little memory and little time.
"""

import argparse
import bz2
import collections
import gzip
import io
import json
import lzma
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pyarrow as pa
import torch
from pyarrow import feather, ipc, parquet

from altered import apart
from fathomless.system.errors import FathomlessError
from fathomless.tables import files

WIDE = 200_001  # columns
SECONDS = 60  # that one file may take
BOMB = 2 << 30  # bytes that a bomb unpacks to
ZEROS = b"\0" * (1 << 20)


@dataclass(frozen=True)
class Hostile:
    """File with its expected content.

    Attributes
    ----------
    name : str
        What is wrong with it.
    write : callable
        Writes it to a path.
    truth : mapping of str to list, or None
        Values of some columns, if it may be read.
    """

    name: str
    write: Callable[[Path], object]
    truth: Mapping[str, list[Any]] | None = None


def raw(name: str, content: bytes, truth: Mapping[str, list[Any]] | None = None) -> Hostile:
    """Return a file of these bytes."""
    return Hostile(name, lambda path: path.write_bytes(content), truth)


# ------------------------------------------------------------------------------------------------- text


def texts() -> Iterator[Hostile]:
    """CSV files."""
    for columns in (5_000, WIDE):
        names, rows = [f"c{i}" for i in range(columns)], [[i % 7 + 0.5 * k for i in range(columns)] for k in range(3)]
        lines = [",".join(names), *(",".join(map(str, row)) for row in rows)]
        truth = {"c0": [0.0, 0.5, 1.0], f"c{columns - 1}": [row[-1] for row in rows]}
        yield raw(f"csv of {columns} columns", "\n".join(lines).encode(), truth)
        yield raw(f"csv of {columns} columns, gzip", gzip.compress("\n".join(lines).encode(), 1), truth)
        words = [",".join(names), *(",".join(f"w{i % 5}" for i in range(columns)) for _ in range(3))]
        yield raw(f"csv of {columns} columns of text", "\n".join(words).encode(), {"c1": ["w1"] * 3})
    yield raw("csv of 2,000,000 columns", b",".join(b"c%d" % i for i in range(2_000_000)) + b"\n1\n")
    yield raw("header of 5 MB", b"a" * (5 << 20) + b",b\n1,2\n")
    yield raw("header of commas", b"," * 300_000 + b"\n" + b"," * 300_000)
    yield raw("row of commas", b"a,b\n1,2\n" + b"," * 10_000_000)
    yield raw("names repeated 100,000 times", b",".join([b"a"] * 100_000) + b"\n" + b",".join([b"1"] * 100_000))
    yield raw("name of 1 MB", b"a" * (1 << 20) + b",b\n1,2\n3,4\n", {"b": [2, 4]})
    yield raw("cell of 50 MB", b"a,b\n" + b"x" * (50 << 20) + b",1\ny,2\n", {"b": [1, 2]})
    yield raw("quote never closed, 50 MB", b'a,b\n1,2\n"' + b"x,y\n" * (12 << 20))
    yield raw("10,000,000 empty lines", b"a,b\n" + b"\n" * 10_000_000 + b"1,2\n", {"a": [1], "b": [2]})
    yield raw("returns alone", b"a,b\r1,2\r3,4\r", {"a": [1, 3]})
    yield raw("zeros", b"a,b\n" + ZEROS)
    yield raw("bytes of no encoding", b"a,b\n\xff\xfe\xfd,1\n")
    yield raw("utf-32", "a,b\n1,2\n".encode("utf-32"))
    yield raw("utf-16 cut off", "a,b\n1,2\n3,4".encode("utf-16")[:-1])
    yield raw("utf-7", b"a,b\n+AGE-,1\n+AGE-,2\n", {"b": [1, 2]})
    yield raw("half surrogates", b"a,b\n\xed\xa0\x80,1\n")
    yield raw("overlong slash", b"a,b\n\xc0\xaf,1\n")
    yield raw("numbers beyond double", b"a,b\n1e400,1\n-1e400,2\n", {"b": [1, 2]})
    yield raw("number of 1,000,000 digits", b"a,b\n" + b"9" * 1_000_000 + b",1\n1,2\n", {"b": [1, 2]})
    yield raw("denormal numbers", b"a\n1e-320\n5e-324\n", {"a": [1e-320, 5e-324]})
    yield raw("digits of other scripts", "a,b\n١,1\n२,2\n".encode(), {"b": [1, 2]})
    yield raw("right to left", "\u202ea,b\n1,2\n3,4\n".encode(), {"b": [2, 4]})
    yield raw("terminal sequences", b"\x1b]0;x\x07a,b\n\x1b[2J,1\nz,2\n", {"b": [1, 2]})
    yield raw("sep of nothing", b"sep=\na,b\n1,2\n")
    yield raw("sep of a quote", b'sep="\na"b\n1"2\n')
    yield raw("a million categories", b"a,b\n" + b"".join(b"%d_x,1\n" % i for i in range(1_000_000)))
    yield raw("dates that are none", b"a,b\n2024-02-30,1\n9999999-01-01,2\n", {"b": [1, 2]})
    yield raw("dates at the ends", b"a,b\n0001-01-01,1\n9999-12-31,2\n", {"b": [1, 2]})
    yield raw(
        "patterns for a backtracking expression",
        b"a,b\n" + (b"1," * 1)[:1] + b"1 " * 500_000 + b",1\n2,2\n",
        {"b": [1, 2]},
    )
    yield raw("a header alone", b"a,b\n")
    yield raw("nothing", b"")
    yield raw("a space", b" ")
    yield raw("a mark alone", b"\xef\xbb\xbf")
    yield raw("lines of comments, 20 MB", b"# x\n" * (5 << 20))
    yield raw("formulas", b"a,b\n=1+1,1\n@x,2\n", {"a": ["=1+1", "@x"], "b": [1, 2]})


# ------------------------------------------------------------------------------------------------- JSON


def jsons() -> Iterator[Hostile]:
    """JSON lines and lists."""
    for columns in (5_000, WIDE):
        row = {f"c{i}": 0.5 * i for i in range(columns)}
        truth = {f"c{columns - 1}": [0.5 * (columns - 1)] * 3}
        yield raw(f"json of {columns} columns", (json.dumps(row) + "\n").encode() * 3, truth)
    yield raw("list of 5,000 columns", json.dumps([dict(list(row.items())[:5000])] * 3).encode(), {"c9": [4.5] * 3})
    yield raw("20,000 objects with one key each", b"".join(b'{"k%d":1,"y":%d}\n' % (i, i) for i in range(20_000)))
    yield raw(
        "1,000 objects with one key each",
        b"".join(b'{"k%d":1,"y":%d}\n' % (i, i) for i in range(1_000)),
        {"y": list(range(1000))},
    )
    yield raw("list nested 100,000 times", b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n")
    yield raw("objects nested 100,000 times", b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n")
    yield raw("list of lists", b"[" * 1_000_000)
    yield raw("list never closed", b'[{"a":1},' * 100)
    yield raw("half surrogates in a cell", b'{"a":"\\ud800","b":1}\n' * 3)
    yield raw("half surrogates in a name", b'{"\\udfff":1}\n' * 3)
    yield raw("names that repeat", b'{"a":1,"a":2}\n' * 3, {"a": [2, 2, 2]})
    yield raw("number of 100,000 digits", b'{"a":' + b"9" * 100_000 + b',"b":1}\n')
    yield raw("numbers beyond double", b'{"a":1e999,"b":1}\n{"a":-1e999,"b":2}\n', {"b": [1, 2]})
    yield raw("NaN and Infinity", b'{"a":NaN,"b":1}\n{"a":Infinity,"b":2}\n', {"b": [1, 2]})
    yield raw("cell of 50 MB", b'{"a":"' + b"x" * (50 << 20) + b'","b":1}\n{"a":"y","b":2}\n', {"b": [1, 2]})
    yield raw("cells that are objects", b'{"a":{"b":1}}\n' * 3)
    yield raw("no objects", b"[1,2,3]")
    yield raw("empty objects", b"{}\n" * 100_000)
    yield raw("names that are empty", b'{"":1,"b":2}\n' * 3)
    yield raw("names of __proto__", b'{"__proto__":1,"__class__":2}\n' * 3, {"__class__": [2, 2, 2]})
    yield raw("zeros inside", b'{"a":"\\u0000x","b":1}\n' * 3, {"b": [1, 1, 1]})
    yield raw("zero bytes", b'{"a":1}\n\0\0\n')
    yield raw("kinds that change", b'{"a":1,"b":1}\n{"a":"x","b":2}\n{"a":true,"b":3}\n', {"b": [1, 2, 3]})


# ------------------------------------------------------------------------------------------------- compression


def bomb(kind: str, head: bytes, filler: bytes, size: int = BOMB) -> Callable[[Path], None]:
    """Return a function that writes a small file which unpacks to a large one: a header and filler bytes."""
    opened: Any = {"gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open}.get(kind)
    block = filler * max(1, (1 << 20) // len(filler))

    def write(path: Path) -> None:
        if kind == "zstd":
            with pa.OSFile(str(path), "wb") as file, pa.CompressedOutputStream(file, "zstd") as packed:
                packed.write(head)
                for _ in range(size // len(block)):
                    packed.write(block)
            return
        options = {"preset": 0} if kind == "xz" else {"compresslevel": 1}
        with opened(path, "wb", **options) as file:
            file.write(head)
            for _ in range(size // len(block)):
                file.write(block)

    return write


def packed() -> Iterator[Hostile]:
    """Compressed files."""
    for kind in ("gzip", "bz2", "xz", "zstd"):
        size = BOMB if kind in ("gzip", "zstd") else BOMB >> 4
        yield Hostile(f"{kind} bomb of zeros", bomb(kind, b"", b"\0", size))
        yield Hostile(f"{kind} bomb of JSON", bomb(kind, b'{"a":1}\n', b'{"a":1}\n', size))
        yield Hostile(f"{kind} bomb of CSV", bomb(kind, b"a,b\n", b"1,2\n", size))
    yield Hostile("gzip bomb of one list", bomb("gzip", b"[", b'{"a":1},'))
    yield Hostile("gzip bomb of spaces", bomb("gzip", b'{"a":1}\n', b" "))
    yield Hostile("gzip bomb of one cell", bomb("gzip", b'a,b\n1,"', b"x"))
    yield Hostile("gzip bomb of a header", bomb("gzip", b"a", b"a"))
    good = gzip.compress(b"a,b\n1,2\n3,4\n")
    yield raw("gzip in gzip in gzip", gzip.compress(gzip.compress(good)))
    yield raw("gzip cut off", good[:-9])
    yield raw("gzip of two members", good + gzip.compress(b"5,6\n"), {"a": [1, 3, 5]})
    yield raw("gzip with a wrong checksum", good[:-8] + b"\0\0\0\0" + good[-4:])
    yield raw("gzip and garbage", good + b"garbage")
    yield raw("gzip header alone", good[:10])
    yield raw("bz2 header alone", b"BZh91AY&SY")
    yield raw("xz header alone", b"\xfd7zXZ\x00\x00")
    yield raw("zstd of a window of 2 GB", b"\x28\xb5\x2f\xfd\x00\xa8" + b"\0" * 20)


# ------------------------------------------------------------------------------------------------- typed files


def table(columns: Mapping[str, Any], **options: Any) -> Callable[[Path], object]:
    """Return a function that writes a table as Parquet."""
    return lambda path: parquet.write_table(pa.table(dict(columns)), path, **options)


def in_pieces(rows: int, value: str) -> Callable[[Path], None]:
    """Return a function that writes a repeated text as a dictionary, which takes few bytes."""

    def write(path: Path) -> None:
        block = 1 << 20
        words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(block, dtype=np.int32)), pa.array([value]))
        piece = pa.table({"a": words, "b": np.zeros(block)})
        with parquet.ParquetWriter(path, piece.schema) as writer:
            for _ in range(rows // block):
                writer.write_table(piece)

    return write


def typed() -> Iterator[Hostile]:
    """Parquet and Feather files."""
    for columns in (5_000, WIDE):
        wide = {f"c{i}": np.arange(3) * 0.5 + i for i in range(columns)}
        truth = {f"c{columns - 1}": [columns - 1 + 0.5 * k for k in range(3)]}
        yield Hostile(f"parquet of {columns} columns", table(wide), truth)
        yield Hostile(
            f"feather of {columns} columns", lambda path, wide=wide: feather.write_feather(pa.table(wide), path), truth
        )
    yield Hostile("parquet, one text of 1 KB, 16 million times", in_pieces(16 << 20, "x" * 1000))
    yield Hostile("parquet, one text of 1 MB, a million times", in_pieces(1 << 20, "x" * (1 << 20)))
    yield Hostile("parquet, one text, 64 million times", in_pieces(64 << 20, "x"))
    words = pa.array(["red", "blue", None, "red"]).dictionary_encode()
    yield Hostile(
        "parquet of a dictionary", table({"a": words, "b": [1, 2, 3, 4]}), {"a": ["red", "blue", None, "red"]}
    )
    gaps = pa.DictionaryArray.from_arrays(pa.array([0, 1, 1]), pa.array(["x", None]))
    held = pa.table({"a": gaps, "b": [1, 2, 3]})
    truth = {"a": ["x", None, None], "b": [1, 2, 3]}
    yield Hostile("feather of a dictionary with a gap", lambda path: feather.write_feather(held, path), truth)
    numbers = pa.array([1.5, 2.5, 1.5]).dictionary_encode()
    yield Hostile("parquet of a dictionary of numbers", table({"a": numbers, "b": [1, 2, 3]}), {"b": [1, 2, 3]})
    for name, column in {
        "lists": pa.array([[1], [2, 3], []]),
        "structs": pa.array([{"x": 1}, {"x": 2}, None]),
        "maps": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "bytes": pa.array([b"\xff\xfe", b"", None]),
        "decimals": pa.array([10**30, 1, None], pa.decimal128(38, 0)),
        "halves": pa.array(np.array([1.0, 2.0, np.nan], dtype=np.float16)),
        "durations": pa.array([1, 2, None], pa.duration("ns")),
        "times": pa.array([1, 2, None], pa.time64("ns")),
        "nulls": pa.nulls(3),
        "large whole numbers": pa.array([2**64 - 1, 0, 1], pa.uint64()),
        "extreme instants": pa.array([-(2**63) + 1, 2**63 - 1, 0], pa.timestamp("us")),
        "zones that are none": pa.array([0, 1, 2], pa.timestamp("us", "No/Where")),
        "infinite numbers": pa.array([np.inf, -np.inf, np.nan]),
    }.items():
        yield Hostile(f"parquet of {name}", table({"a": column, "b": [1, 2, 3]}), {"b": [1, 2, 3]})
    yield Hostile("parquet without columns", lambda path: parquet.write_table(pa.table({}), path))
    yield Hostile("parquet without rows", table({"a": pa.array([], pa.float64())}))
    yield Hostile(
        "parquet with names that repeat",
        lambda path: parquet.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), path),
    )
    sink = io.BytesIO()
    parquet.write_table(pa.table({"a": np.arange(1000.0), "b": ["x"] * 1000}), sink)
    good = sink.getvalue()
    yield raw("parquet with a footer of 2 GB", good[:-8] + b"\xff\xff\xff\x7fPAR1")
    yield raw("parquet with a negative footer", good[:-8] + b"\xff\xff\xff\xffPAR1")
    yield raw("parquet cut off", good[: len(good) // 2])
    yield raw("parquet of zeros", b"PAR1" + ZEROS + b"PAR1")
    rng = np.random.default_rng(0)
    for number in range(12):
        spoiled = bytearray(good)
        first = 4 if number < 6 else len(good) - 800  # pages, or the footer
        for place in rng.integers(first, len(good) - 8, 20):
            spoiled[place] = rng.integers(256)
        yield raw(f"parquet with spoiled bytes {number}", bytes(spoiled))
    sink = io.BytesIO()
    with ipc.new_file(sink, pa.schema([("a", pa.float64()), ("b", pa.string())])) as writer:
        writer.write_table(pa.table({"a": np.arange(1000.0), "b": ["x"] * 1000}))
    good = sink.getvalue()
    for number in range(12):
        spoiled = bytearray(good)
        first = 8 if number < 6 else len(good) - 400
        for place in rng.integers(first, len(good) - 10, 20):
            spoiled[place] = rng.integers(256)
        yield raw(f"arrow with spoiled bytes {number}", bytes(spoiled))


# ------------------------------------------------------------------------------------------------- sheets

SPACE = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
SHEET = f'<worksheet xmlns="{SPACE}"><sheetData>{{}}</sheetData></worksheet>'


def empty() -> dict[str, bytes]:
    """Return the parts of a workbook, without its sheet."""
    content = io.BytesIO()
    openpyxl.Workbook().save(content)
    with zipfile.ZipFile(content) as archive:
        return {name: archive.read(name) for name in archive.namelist() if "sheet1" not in name}


def book(rows: str, head: str = "", fill: str = "", times: int = 0, **parts: str) -> Callable[[Path], None]:
    """Return a function that writes a workbook with a sheet of these rows and repeated filler."""

    def write(path: Path) -> None:
        before, after = (head + SHEET).split("{}")
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for name, text in {**empty(), **parts}.items():
                archive.writestr(name, text)
            with archive.open("xl/worksheets/sheet1.xml", "w", force_zip64=True) as sheet:
                sheet.write((before + rows).encode())
                for _ in range(times // 1000):
                    sheet.write((fill * 1000).encode())
                sheet.write(after.encode())

    return write


def row(*cells: Any) -> str:
    """Return a row of a sheet."""
    each = [
        f"<c><v>{c}</v></c>" if isinstance(c, int | float) else f'<c t="inlineStr"><is><t>{c}</t></is></c>'
        for c in cells
    ]
    return f"<row>{''.join(each)}</row>"


def sheets() -> Iterator[Hostile]:
    """Workbook files."""
    start = row("a", "b") + row(1, 2)
    laughs = (
        "<!DOCTYPE x ["
        + '<!ENTITY l0 "ha">'
        + "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 10))
        + "]>"
    )
    outside = '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/hostname">]>'
    yield Hostile("xlsx", book(start), {"a": [1], "b": [2]})
    yield Hostile("xlsx bomb of rows", book(start, fill=row(1, 2), times=20_000_000))
    yield Hostile("xlsx bomb of spaces", book(start, fill=" " * 1000, times=2_000_000))
    yield Hostile("xlsx of a billion laughs", book(row("a", "b") + row("&l9;", 2), head=laughs))
    yield Hostile("xlsx of an entity outside", book(row("a", "b") + row("&e;", 2), head=outside))
    yield Hostile(
        "xlsx of 16,384 columns", book(row(*[f"c{i}" for i in range(16384)]) + row(*range(16384))), {"c9": [9]}
    )
    yield Hostile("xlsx with a cell in a far column", book(row("a", "b") + '<row><c r="XFD2"><v>1</v></c></row>'))
    yield Hostile(
        "xlsx with a cell in a far row",
        book(row("a", "b") + '<row r="1048576"><c><v>1</v></c><c><v>2</v></c></row>'),
        {"b": [2]},
    )
    yield Hostile(
        "xlsx with a row beyond all", book(row("a", "b") + '<row r="99999999999"><c><v>1</v></c><c><v>2</v></c></row>')
    )
    yield Hostile("xlsx with a wrong text", book(row("a", "b") + '<row><c t="s"><v>99999</v></c><c><v>1</v></c></row>'))
    yield Hostile("xlsx with a wrong number", book(row("a", "b") + "<row><c><v>1e9x</v></c><c><v>1</v></c></row>"))
    yield Hostile("xlsx that is cut off", book(row("a", "b") + "<row><c>"))
    yield Hostile("xlsx with a path that leaves", book(start, **{"../../x.xml": "x"}), {"a": [1]})
    yield raw("zip of nothing", b"PK\x05\x06" + b"\0" * 18)
    yield raw("zip and garbage", b"PK\x03\x04" + b"\xff" * 1000)


PARTS: dict[str, Callable[[], Iterator[Hostile]]] = {
    "texts": texts,
    "jsons": jsons,
    "packed": packed,
    "typed": typed,
    "sheets": sheets,
}


# ------------------------------------------------------------------------------------------------- answers


def answer(path: Path, hostile: Hostile) -> str:
    """Read a file at once and in chunks; return "read", the name of an error, or a description of the failure."""
    try:
        found = files.read(path)
        pieces = sum(len(piece) for piece in files.batches(path, {}))
    except FathomlessError as error:
        known = str(error)
        return f"{type(error).__name__}: {known}" if len(known) < 2000 else "wrong: long message"
    except BaseException as error:
        return f"wrong: {type(error).__name__}: {error}"
    if pieces != len(found.frame):
        return f"wrong: {len(found.frame)} rows at once, {pieces} in pieces"
    for name, values in (hostile.truth or {}).items():
        own = found.frame[name].to_pylist()
        if own != values:
            return f"wrong: {name} is {own[:4]}, not {values[:4]}"
    return "read"


def campaign(home: Path, parts: Iterable[str], memory: int = 3 << 29) -> dict[str, Any]:
    """Read all files of some parts; return their outcomes."""
    counted, faults = collections.Counter[str](), list[str]()
    for hostile in (one for part in parts for one in PARTS[part]()):
        path = home / "hostile"
        path.unlink(missing_ok=True)
        hostile.write(path)
        said, spent = apart(
            lambda path=path, hostile=hostile: answer(path, hostile),
            home,
            SECONDS * (10 if str(WIDE) in hostile.name else 1),
            memory,
        )
        counted[said.partition(":")[0]] += 1
        print(f"{spent:6.1f} s  {hostile.name}: {said[:230]}", flush=True)
        if said.startswith("wrong"):
            faults.append(f"{hostile.name}: {said}")
    return {"cases": counted.total(), "wrong": len(faults), "answers": dict(counted), "faults": faults}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=f"some of {', '.join(PARTS)}")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        result = campaign(Path(place), given.parts)
    print(f"files: {result['cases']} cases, {result['wrong']} wrong, {result['answers']}")
    sys.exit(result["wrong"] > 0)
