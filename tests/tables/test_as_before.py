"""New tables of a run, written in another notation than the one that it was fitted to: read rightly, or refused."""

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fathomless.system.errors import DataError, DataWarning
from fathomless.tables import files as tables

PLAIN: dict[str, str] = {}
COMMAS = {"a": ",", "b": ","}


def values(path: Path, notation: dict[str, str] | None, rows: int = 100, **form: Any) -> dict[str, list[Any]]:
    kinds = {"a": "numeric", "b": "numeric"}
    pieces = pa.concat_tables(tables.batches(path, kinds, rows=rows, notation=notation, **form))
    return pieces.select(["a", "b"]).to_pydict()


@pytest.mark.parametrize(
    ("text", "notation", "moved"),
    [
        ("a;b\n1,500;20,00\n2,250;50,00\n", PLAIN, True),
        ("a\tb\n1,500\t20,00\n2,250\t50,00\n", PLAIN, True),
        ('a,b\n"1,500","20,00"\n"2,250","50,00"\n', PLAIN, True),
        ("a;b;c\n1,500;20;0,5\n2,250;50;0,25\n", PLAIN, True),  # a column that is not used tells
        ("a,b\n1.500,20.00\n2.250,50.00\n", PLAIN, False),
        ("a;b\n1.500;20.00\n2.250;50.00\n", PLAIN, False),
        ("a,b\n1.500,20.00\n2.250,50.00\n", COMMAS, True),
        ("a;b\n1.500;20.00\n2.250;50.00\n", COMMAS, True),
        ("a;b\n1,500;20,00\n2,250;50,00\n", COMMAS, False),
        ("a;b\n1,500;20\n2,250;50\n", COMMAS, False),
        ('{"a": "1,500", "b": "20,00"}\n{"a": "2,250", "b": "50,00"}\n', PLAIN, True),
        ('{"a": 1.5, "b": 20}\n{"a": 2.25, "b": 50}\n', COMMAS, False),
    ],
)
@pytest.mark.parametrize("rows", [1, 100])
def test_the_cells_of_a_new_table_decide(tmp_path: Path, text: str, notation: Any, moved: bool, rows: int) -> None:
    path = tmp_path / "new"
    path.write_text(text, encoding="utf-8")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert values(path, notation, rows) == {"a": [1.5, 2.25], "b": [20.0, 50.0]}
    assert [one.category for one in said] == [DataWarning] * moved
    assert all("--decimal sets the mark" in str(one.message) for one in said)


@pytest.mark.parametrize(
    ("text", "notation"),
    [
        ("a;b\n1,500;20\n", PLAIN),  # nothing else tells, and there were no commas
        ('a,b\n"1,500",20\n', PLAIN),
        ('{"a": "1,500", "b": 20.5}\n', PLAIN),
        ("a,b\n1.500,20\n", COMMAS),  # as commas that cut do not mark decimals as well
        ("a;b\n1,500;20\n", {"a": "."}),
        ("a;b;c;d\n1,500;20;0,5;0.5\n", PLAIN),  # the table contradicts itself
        ("a;b;c;d\n1.500;20;0,5;0.5\n", PLAIN),
        ("a;b;c;d\n1.500;20;0,5;0.5\n", COMMAS),
    ],
)
def test_what_may_be_two_numbers_is_refused(tmp_path: Path, text: str, notation: dict[str, str]) -> None:
    path = tmp_path / "new"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"column 'a', row 1 after the header: '1[.,]500' is ambiguous"):
        values(path, notation)
    for decimal, other in ((".", ","), (",", ".")):
        a = 1.5 if f"1{decimal}500" in text else 1500.0
        found = values(path, {}, decimal=decimal)
        assert found["a"] == [a], other


def test_a_later_piece_may_not_change_the_mark(tmp_path: Path) -> None:
    path = tmp_path / "new.csv"
    path.write_text('a,b\n1.5,2\n"1,5",3\n', encoding="utf-8")
    message = r"row 2 after the header: '1,5' is not a number with a decimal point \(--decimal , changes the mark\)"
    with pytest.raises(DataError, match=message):
        values(path, PLAIN)


@pytest.mark.parametrize("cell", ["45%", "$5", "5 €", "EUR 5"])
@pytest.mark.parametrize("form", ['a,b\n0.5,1\n"{}",2\n', '{{"a": 0.5, "b": 1}}\n{{"a": "{}", "b": 2}}\n'])
def test_a_unit_in_a_column_that_had_none_is_refused(tmp_path: Path, cell: str, form: str) -> None:
    path = tmp_path / "new"
    path.write_text(form.format(cell), encoding="utf-8")
    message = f"column 'a', row 2 after the header: '{cell.replace('$', '.')}' has a unit, which the training data"
    with pytest.raises(DataError, match=message):
        values(path, PLAIN)
    if form.startswith("a"):
        path.write_text(f'a,b\n"{cell}",2\n', encoding="utf-8")
        assert values(path, {"a": "."})["a"] == [45.0 if "45" in cell else 5.0]


@pytest.mark.parametrize("cell", ["0.45", '"45"', '"45 €"', "45"])
def test_a_number_without_the_per_cent_sign_of_the_training_is_refused(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "new"
    train = "a,b\n64%,1\n5.5 %,2\n"
    path.write_text(train, encoding="utf-8")
    notation = tables.read(path).notation
    assert notation == {"a": ".%"}
    assert values(path, dict(notation))["a"] == [64.0, 5.5]
    for text in (f"a,b\n7%,1\n{cell},2\n", f'{{"a": "7%", "b": 1}}\n{{"a": {cell}, "b": 2}}\n'):
        path.write_text(text, encoding="utf-8")
        message = r"column 'a', row 2 after the header: '.*' (has no per cent sign|is not a numb)"
        with pytest.raises(DataError, match=message):
            values(path, dict(notation))


@given(
    st.lists(st.tuples(st.integers(1000, 99999), st.integers(100, 99999)), min_size=1, max_size=5),
    st.sampled_from([".", ","]),
    st.sampled_from([(";", "csv"), (",", "csv"), ("", "jsonl")]),
    st.sampled_from([PLAIN, COMMAS]),
)
def test_a_new_table_is_never_read_as_another_by_a_factor_of_a_thousand(
    tmp_path_factory: Any, numbers: list[tuple[int, int]], mark: str, form: tuple[str, str], notation: dict[str, str]
) -> None:
    """Columns of three decimals can be read in two ways: they are read rightly, or refused."""
    delimiter, _ = form
    path = tmp_path_factory.mktemp("new") / "table"
    rows = [(f"{a / 1000:.3f}".replace(".", mark), f"{b / 100:.2f}".replace(".", mark)) for a, b in numbers]
    if delimiter:
        lines = [f'"{a}"{delimiter}"{b}"' for a, b in rows]
        path.write_text("\n".join([f"a{delimiter}b", *lines]) + "\n", encoding="utf-8")
    else:
        path.write_text("".join(f'{{"a": "{a}", "b": "{b}"}}\n' for a, b in rows), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = values(path, notation)
    assert found == {"a": [a / 1000 for a, _ in numbers], "b": [b / 100 for _, b in numbers]}
