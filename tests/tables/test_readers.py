"""Files of data sets: what is read, and what is refused."""

import bz2
import gzip
import lzma
import sys

import numpy as np
import pytest

from fathomless.system.errors import FileError
from fathomless.tables import readers


def test_arrays_round_trip_and_pickles_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3), name=np.array("n"))
    found = readers.read_arrays(tmp_path / "a.npz")
    assert found["x"].tolist() == [0, 1, 2]
    np.savez(tmp_path / "b.npz", x=np.array([object()]), allow_pickle=True)
    np.save(tmp_path / "c.npy", np.arange(3))
    (tmp_path / "d.npz").write_bytes(b"PK\x03\x04 not a zip")
    for name in ("b.npz", "c.npy", "d.npz", "absent.npz"):
        with pytest.raises(FileError):
            readers.read_arrays(tmp_path / name)


CSV = 'i, f ,t,gap,big,odd\n1,1.5,"a, b",3,99999999999999999999,1_0\n\n-2, 2e3 , ? ,?,1,x\n3,,c,4,2,\n'


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2", ".xz"])
def test_table_types_are_inferred(tmp_path, suffix):
    opener = {"": open, ".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}[suffix]
    with opener(tmp_path / f"t.csv{suffix}", "wt", encoding="utf-8-sig") as file:
        file.write(CSV)
    found = readers.read_table(tmp_path / f"t.csv{suffix}")
    assert list(found) == ["i", "f", "t", "gap", "big", "odd"]
    assert found["i"].dtype == np.int64
    assert found["i"].tolist() == [1, -2, 3]
    assert found["f"].tolist()[:2] == [1.5, 2000.0]
    assert np.isnan(found["f"][2])
    assert found["t"].tolist() == ["a, b", None, "c"]
    assert found["gap"].dtype == np.float64
    assert np.isnan(found["gap"][1])
    assert found["big"].tolist() == [1e20, 1.0, 2.0]
    assert found["odd"].tolist() == ["1_0", "x", None]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"", "is empty"),
        (b"a,b\n1\n", "line 2: 1 fields, the header has 2"),
        (b"a,a\n1,2\n", r"\['a'\] more than once"),
        (b"a\n\xff\n", "not a readable CSV"),
        (b"a\n" + b"x" * 200_000, "not a readable CSV"),
    ],
)
def test_broken_table_is_refused(tmp_path, text, words):
    (tmp_path / "t.csv").write_bytes(text)
    with pytest.raises(FileError, match=words):
        readers.read_table(tmp_path / "t.csv")


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz"])
def test_broken_compression_is_refused(tmp_path, suffix):
    (tmp_path / f"t.csv.{suffix}").write_bytes(b"not compressed")
    with pytest.raises(FileError, match=r"cannot be read|not a readable"):
        readers.read_table(tmp_path / f"t.csv.{suffix}")


def test_picture_is_read_as_red_green_blue(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    image.fromarray(pixels).save(tmp_path / "p.png")
    assert np.array_equal(readers.read_image(tmp_path / "p.png"), pixels)
    (tmp_path / "q.png").write_text("no picture")
    for name, words in (("q.png", "not a readable image"), ("absent.png", "no file")):
        with pytest.raises(FileError, match=words):
            readers.read_image(tmp_path / name)


def test_picture_without_pillow_names_the_extra(tmp_path, monkeypatch):
    (tmp_path / "p.png").write_text("")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(FileError, match=r"fathomless\[images\]"):
        readers.read_image(tmp_path / "p.png")
