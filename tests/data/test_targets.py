import datetime
import json
import math
import re
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fathomless.data.frames import read_target
from fathomless.data.targets import ClassLabels, TargetScale, fit_labels, fit_target
from fathomless.system.errors import DataError

TEXT = ["no", "yes", "no", "maybe"]


def through_json(value):
    return type(value).from_json(json.loads(json.dumps(value.to_json(), allow_nan=False)))


# --- class labels


@pytest.mark.parametrize(
    ("y", "dtype"),
    [
        (TEXT, "<U5"),
        (np.array(TEXT), "<U5"),
        (np.array(TEXT, dtype=object), "object"),
        (pd.Series(TEXT), "object"),
        (pd.Series(TEXT, dtype="category"), "object"),
        (pl.Series(TEXT), "object"),
        (pl.Series(TEXT, dtype=pl.Categorical), "object"),
        (pl.Series(TEXT, dtype=pl.Enum(["yes", "no", "maybe", "unused"])), "object"),
        (pa.chunked_array([TEXT]), "object"),
        (pa.chunked_array([TEXT]).dictionary_encode(), "object"),
        ([3, -1, 3], "int64"),
        (np.array([3, -1, 3], dtype=np.int8), "int8"),
        (np.array([3, 1], dtype=np.uint64), "uint64"),
        (np.array([3, 1], dtype=object), "object"),
        (pd.Series([3, 1]), "int64"),
        (pd.Series([3, 1], dtype="Int32"), "int32"),
        (pd.Series(pd.Categorical([3, 1])), "int64"),
        (pl.Series([3, 1], dtype=pl.UInt8), "uint8"),
        ([2.0, 1.0, 2.0], "float64"),
        (np.array([2.0, 1.0], dtype=np.float32), "float32"),
        ([True, False], "bool"),
        (pd.Series([True, False]), "bool"),
        (pl.Series([True, False]), "bool"),
    ],
)
def test_labels_round_trip_with_their_type(y, dtype):
    labels = fit_labels(y)
    assert labels.dtype == dtype
    assert list(labels.labels) == sorted(set(np.asarray(y).tolist()))
    codes = labels.encode(y)
    assert codes.dtype == np.int64
    back = labels.decode(codes)
    assert back.dtype == np.dtype(dtype)
    assert back.tolist() == np.asarray(y).tolist()
    again = through_json(labels)
    assert again == labels
    assert [type(label) for label in again.labels] == [type(label) for label in labels.labels]
    assert labels.decode(codes[:, None]).shape == (len(codes), 1)


@settings(max_examples=60, deadline=None)
@given(
    y=st.one_of(
        st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))), min_size=2, max_size=20),
        st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=20),
        st.lists(st.integers(-(2**40), 2**40).map(float), min_size=2, max_size=20),
    ).filter(lambda y: len(set(y)) > 1)
)
def test_any_labels_round_trip(y):
    labels = fit_labels(y)
    assert labels.decode(through_json(labels).encode(y)).tolist() == y


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([0, 0], "only one class"),
        (["a"], "only one class"),
        ([0.5, 1.5, 2.0], "Unknown label type: continuous"),
        (np.array([0.5, 1.5], dtype=object), "Unknown label type"),
        (pl.Series([0.1, 0.2]), "Unknown label type"),
        ([1, "a"], "Unknown label type.*int, str"),
        ([True, 2], "Unknown label type.*bool, int"),
        ([1.0, math.inf], "Unknown label type"),
        (["a", None], r"missing in 1 of 2 rows \(counted from 0, first: 1\)"),
        ([1.0, math.nan, 2.0], "NaN"),
        (np.array(["a", math.nan], dtype=object), "missing"),
        (pd.Series(["a", None, "b"]), "missing"),
        (pd.Series([1, None, 2], dtype="Int64"), "missing"),
        (pl.Series([1, None, 2]), "missing"),
        (pa.chunked_array([["a", None, "b"]]).dictionary_encode(), "missing"),
        ([[0, 1], [1, 0]], "Unknown label type|shape"),
        (np.eye(2), "shape"),
        ([], "shape"),
        (np.array([b"a", b"b"]), "convert them"),
        (pl.Series([datetime.date(2020, 1, 1)] * 2), "Unknown label type"),
        (3, "allowed are"),
    ],
)
def test_labels_that_are_none_are_refused(y, words):
    with pytest.raises(DataError, match=words):
        fit_labels(y)


def test_unseen_class_is_refused():
    with pytest.raises(DataError, match=r"class 'b' in 1 of 2 rows \(.*first: 1\).*known classes are 'a', 'c'"):
        fit_labels(["a", "c"]).encode(["a", "b"])
    with pytest.raises(DataError, match="class '1'"):
        fit_labels([1, 2]).encode(["1"])


@pytest.mark.parametrize(
    "obj",
    [
        None,
        {"labels": ["a", "b"]},
        {"labels": ["a"], "dtype": "object"},
        {"labels": ["a", "a"], "dtype": "object"},
        {"labels": ["a", 1], "dtype": "object"},
        {"labels": [None, "a"], "dtype": "object"},
        {"labels": [["a"], ["b"]], "dtype": "object"},
        {"labels": ["a", "b"], "dtype": "int64"},
        {"labels": ["aa", "ab"], "dtype": "<U1"},
        {"labels": [1, 300], "dtype": "uint8"},
        {"labels": [1, 2], "dtype": "nonsense"},
    ],
)
def test_nonsense_is_no_labels(obj):
    with pytest.raises(DataError):
        ClassLabels.from_json(obj)


# --- numeric targets


@pytest.mark.filterwarnings("ignore:.* rows, and all other values lie:fathomless.system.errors.DataWarning")
@settings(max_examples=60, deadline=None)
@given(
    y=hnp.arrays(
        np.float64,
        hnp.array_shapes(min_dims=1, max_dims=2, max_side=6),
        elements=st.floats(-1e150, 1e150),
    )
)
def test_target_round_trips(y):
    scale = fit_target(y)
    assert through_json(scale) == scale
    z = scale.encode(y)
    assert z.shape == (len(y), 1 if y.ndim == 1 else y.shape[1])
    back = scale.decode(z)
    assert back.shape == y.shape
    np.testing.assert_allclose(back, y, rtol=1e-9, atol=1e-9 * np.abs(y).max())


@pytest.mark.parametrize("weight", [None, np.array([1.0, 0.0, 2.0, 3.0])])
def test_target_scale_is_weighted_mean_and_deviation(weight):
    y = np.array([[1.0, 5.0], [2.0, 5.0], [4.0, 5.0], [8.0, 5.0]])
    rows = np.repeat(y, weight.astype(int), axis=0) if weight is not None else y
    scale = fit_target(y, weight)
    assert scale.mean == pytest.approx(rows.mean(axis=0))
    assert scale.scale == pytest.approx((rows[:, 0].std(), 1.0))
    assert scale.ndim == 2


@pytest.mark.parametrize(
    "y",
    [
        [1, 2],
        (1.0, 2.0),
        np.array([1, 2], dtype=np.int8),
        np.array([1, 2], dtype=object),
        pd.Series([1, 2], dtype="Int64"),
        pl.Series([1, 2], dtype=pl.Decimal(5, 1)),
        pa.chunked_array([[1, 2]]),
    ],
)
def test_vectors_of_any_origin_are_read(y):
    assert fit_target(y) == TargetScale((1.5,), (0.5,), 1)


def test_frames_are_matrices():
    for y in (pd.DataFrame({"a": [1, 2], "b": [0.0, 4.0]}), pl.DataFrame({"a": [1, 2], "b": [0.0, 4.0]})):
        assert fit_target(y) == TargetScale((1.5, 2.0), (0.5, 2.0), 2)


@pytest.mark.parametrize(
    "y",
    [
        np.array([True, False, True]),
        pd.Series([True, False, True]),
        pd.Series([True, False, True], dtype="boolean"),
        pl.Series([True, False, True]),
        pd.DataFrame({"a": [True, False, True]}),
    ],
    ids=str,
)
def test_booleans_are_zero_and_one_in_every_container(y):
    assert read_target(y).ravel().tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize(
    ("y", "words"),
    [
        ([1.0, math.nan], r"Input y contains NaN.*1 of 2 rows \(counted from 0, first: 1\)"),
        ([1.0, -math.inf], "Input y contains infinity or a value too large for"),
        (pl.Series([1, None]), "Input y contains NaN"),
        (pl.DataFrame({"a": [1, None]}), "Input y contains NaN"),
        (["1", "2"], "category values such as '1'"),
        (pd.Series(["a", "b"]), "give a numeric target"),
        (np.array(["1", None], dtype=object), "give a numeric target"),
        ([None, None], "NaN"),
        ([], "shape"),
        (3.0, "allowed|give an array"),
        (np.zeros((2, 2, 2)), "shape"),
        ([[1.0], [1.0, 2.0]], "cannot be read"),
    ],
)
def test_targets_that_are_no_numbers_are_refused(y, words):
    with pytest.raises(DataError, match=words):
        fit_target(y)


def test_target_of_another_shape_or_size_is_refused():
    scale = fit_target([[1.0, 2.0], [3.0, 4.0]])
    with pytest.raises(DataError, match="1 outputs; the training data had 2"):
        scale.encode([1.0, 2.0])
    with pytest.raises(DataError, match="last axis must have length 2"):
        scale.decode(np.zeros(3))
    with pytest.raises(DataError, match=r"too far.*finite"):
        fit_target([0.0, 1e-200]).encode([1e200])


@pytest.mark.parametrize(
    "obj",
    [
        [],
        {"mean": [0.0], "scale": [1.0]},
        {"mean": [0.0], "scale": [0.0], "ndim": 1},
        {"mean": [0.0], "scale": [math.nan], "ndim": 1},
        {"mean": [0], "scale": [1.0], "ndim": 1},
        {"mean": [0.0, 1.0], "scale": [1.0], "ndim": 2},
        {"mean": [0.0, 1.0], "scale": [1.0, 1.0], "ndim": 1},
        {"mean": [], "scale": [], "ndim": 2},
        {"mean": [0.0], "scale": [1.0], "ndim": 3},
    ],
)
def test_nonsense_is_no_target_scale(obj):
    with pytest.raises(DataError):
        TargetScale.from_json(obj)


def test_targets_whose_variance_would_overflow_are_refused() -> None:
    with pytest.raises(DataError, match=r"1e\+200, whose variance would overflow"):
        fit_target([0.0, 1e200])
    assert np.isfinite(fit_target([0.0, 1e150]).encode([5e149])).all()


@pytest.mark.parametrize(
    ("y", "reason"),
    [
        ([f"{k},{k % 7}5" for k in range(40)], "decimal comma; read the file with --decimal ,"),
        ([f"{k}.000,50 €" for k in range(40)], "with a unit or thousands separators"),
        ([f"house {k}" for k in range(40)], "an identifier, a name or a date"),
        (list(range(40)), "--task regression"),
    ],
)
def test_labels_of_single_rows_are_no_classes(y: list[Any], reason: str) -> None:
    with pytest.raises(DataError, match=re.escape(reason)) as told:
        fit_labels(y)
    assert "y has 40 distinct values in 40 rows" in str(told.value)
    assert len(fit_labels([*y, *y]).labels) == 40
    assert len(fit_labels(y[:20]).labels) == 20
