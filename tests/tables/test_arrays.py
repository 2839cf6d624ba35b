"""Arrow columns to arrays and back: what pyarrow says, without its detour through pandas."""

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fathomless.tables.arrays import missing_value, to_column, to_number_array, to_numpy, to_text_array

DAY = datetime.date(2024, 2, 29)
COLUMNS = [
    pa.array([1, 2, 3], pa.int8()),
    pa.array([1, None, 2**53 + 1], pa.int64()),
    pa.array([1.5, None, float("nan")], pa.float32()),
    pa.array([], pa.float64()),
    pa.array([True, False, True]),
    pa.array([DAY, None], pa.date32()),
    pa.array([datetime.datetime(2024, 2, 29, 12), None], pa.timestamp("us")),
    pa.array([datetime.datetime(1969, 2, 28)], pa.timestamp("ns")),
    pa.array(["a", None]),
]


@pytest.mark.parametrize("values", COLUMNS, ids=lambda values: str(values.type))
def test_columns_become_the_arrays_that_pyarrow_makes(values: Any) -> None:
    chunks = pa.chunked_array([values[1:], values[:0], values[:1]], values.type)  # also from the middle of a buffer
    ours, theirs = to_numpy(chunks), chunks.to_numpy()
    if ours.dtype.kind == "M":
        ours, theirs = ours.astype("datetime64[ns]"), theirs.astype("datetime64[ns]")
    assert ours.dtype == theirs.dtype
    assert np.array_equal(ours, theirs, equal_nan=ours.dtype.kind in "fM")


@pytest.mark.parametrize(
    "values",
    [
        np.array([0.5, np.nan, -np.inf]),
        np.arange(6.0)[::2],
        np.array([1, -2]),
        np.array(["", "é", "long"]),
        np.array(["a", "b"], dtype=object),
        np.array([True, False]),
        np.array(["a", None], dtype=object),
        np.float32([1, 2]),
    ],
    ids=str,
)
def test_arrays_become_the_columns_that_pyarrow_makes(values: Any) -> None:
    ours, theirs = to_column(values), pa.array(values)
    assert ours.type == theirs.type
    assert str(ours) == str(theirs)


def test_words_and_what_is_missing() -> None:
    for kind in (pa.string(), pa.large_string()):
        assert to_text_array(["NA", "", "ü"], kind).equals(pa.array(["NA", "", "ü"], kind))
        assert not missing_value(kind).is_valid
        for words in (["NA", None, "ü", *[None] * 9, ""], [None], []):
            assert to_text_array(words, kind).equals(pa.array(words, kind))
    for numbers in ([0.5, None, -0.0, *[None] * 9, 1e300], [None], [], [float("inf"), 2.0]):
        assert to_number_array(numbers).equals(pa.array(numbers, pa.float64()))
