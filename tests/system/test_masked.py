"""What a mask hides is missing."""

import numpy as np
import pytest

from fathomless.system.masked import unmask


@pytest.mark.parametrize("dtype", ["i4", "u1", "f4", "f8", "?"])
def test_hidden_numbers_are_nan(dtype):
    found = unmask(np.ma.masked_array(np.array([1, 0, 1], dtype), [False, True, False]))
    assert found.dtype == np.float64
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, [1.0, np.nan, 1.0])


def test_hidden_dates_text_and_objects_are_missing():
    days = unmask(np.ma.masked_array(np.array(["2020-01-01", "2020-01-02"], "M8[D]"), [False, True]))
    assert np.isnat(days).tolist() == [False, True]
    assert unmask(np.ma.masked_array(["a", "b"], [True, False])).tolist() == [None, "b"]
    assert unmask(np.ma.masked_array([(1, 2), 3], [True, False], dtype=object)).tolist() == [None, 3]


def test_arrays_that_hide_nothing_keep_their_type():
    found = unmask(np.ma.masked_array([1, 2], dtype="i4"))
    assert (type(found), found.dtype) == (np.ndarray, np.dtype("i4"))


def test_lists_of_masked_rows_and_cells_are_read():
    assert unmask([1.0, np.ma.masked]) == [1.0, None]
    rows = unmask([np.ma.masked_array([1.0, 2.0], [True, False]), np.ma.masked_array([3.0, 4.0])])
    np.testing.assert_array_equal(rows, [[np.nan, 2.0], [3.0, 4.0]])


def test_other_things_are_returned_as_they_are():
    for given in (np.ones(3), [1, 2], None, "text", {"a": 1}):
        assert unmask(given) is given
