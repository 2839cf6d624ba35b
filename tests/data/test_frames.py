import contextlib
import datetime
import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fathomless import MeanFieldNetworkRegressor, UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.data.frames import encode, fit_schema, load_bundled, make_frame, read_columns, split
from fathomless.data.schema import Schema, choose_max_levels, find_new_levels
from fathomless.system.errors import DataError, DataWarning

UTC = datetime.UTC
BACKENDS = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}
DAY = datetime.datetime(2021, 3, 1, 12)


@pytest.fixture(params=list(BACKENDS))
def table(request):
    """Make a data frame of each library from lists."""
    return BACKENDS[request.param]


def through_json(schema):
    return Schema.from_json(json.loads(json.dumps(schema.to_json(), allow_nan=False)))


# --- numbers


def test_standardized_columns_have_mean_zero_and_deviation_one():
    X = np.random.default_rng(0).normal(5.0, 3.0, size=(200, 4)) * [1.0, 1e-3, 1e6, 1.0]
    Z = encode(fit_schema(X), X)
    np.testing.assert_allclose(Z.mean(axis=0), 0.0, atol=1e-12)
    np.testing.assert_allclose(Z.std(axis=0), 1.0, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:column 'x.' is:fathomless.system.errors.DataWarning")  # of outlying cells
@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(1, 12))
def test_weight_means_repetition(data, n):
    X = data.draw(hnp.arrays(np.float64, (n, 3), elements=st.floats(-100, 100)))
    weight = data.draw(hnp.arrays(np.int64, n, elements=st.integers(0, 4)).filter(np.any))
    weighted, repeated = fit_schema(X, weight=weight), fit_schema(np.repeat(X, weight, axis=0))
    for a, b in zip(weighted.columns, repeated.columns, strict=True):
        assert a.center == pytest.approx(b.center, rel=1e-12, abs=1e-12)
        assert a.scale == pytest.approx(b.scale, rel=1e-6)


def test_weight_means_repetition_for_categories_and_gaps():
    rows = {"c": ["a", "b", None, "d", "e"], "x": [1.0, None, 3.0, 5.0, 9.0]}
    weight = np.array([1, 3, 0, 2, 0])
    weighted = fit_schema(pl.DataFrame(rows), weight=weight, max_levels=2)
    repeated = fit_schema(
        pl.DataFrame({k: np.repeat(np.array(v, dtype=object), weight).tolist() for k, v in rows.items()}),
        max_levels=2,
    )
    assert weighted.encoded_names == repeated.encoded_names == ("c=b", "c=(other)", "x", "x is missing")
    assert weighted.columns[1].center == pytest.approx(repeated.columns[1].center)


@pytest.mark.parametrize("value", [0.1, 1e300, -7.0, 5e-324, 0.0])
@pytest.mark.parametrize("weight", [None, np.array([0.3, 0.3, 1.0, 2.0, 0.7, 0.1, 0.9])])
def test_constant_column_is_encoded_as_exact_zero(value, weight):
    X = np.full((7, 1), value)
    schema = fit_schema(X, weight=weight)
    assert schema.columns[0].scale == 1.0
    assert not encode(schema, X).any()


@pytest.mark.parametrize("size", [1e300, 1.7e308, 1e-300, 5e-324])
def test_huge_and_tiny_values_neither_overflow_nor_vanish(size):
    X = size * np.array([[0.0], [0.5], [1.0]])
    np.testing.assert_allclose(encode(fit_schema(X), X).std(), 1.0, rtol=1e-6 if size > 1e-310 else 1.0)


def test_values_whose_encoding_overflows_are_refused():
    schema = fit_schema(np.array([[0.0, 0.0], [1.0, 1e-200]]), names=["a", "b"])
    with pytest.raises(DataError, match=r"'b'.*too far from the training mean.*1 of 2 rows"):
        encode(schema, np.array([[0.0, 0.0], [1.0, 1e200]]))
    with pytest.raises(DataError, match=r"'b'.*too far"):
        encode(schema, pl.DataFrame({"a": [0.0], "b": [1e200]}))


def test_without_standardization_numbers_pass_through():
    X = np.array([[1.0, 10.0], [2.0, 20.0]])
    assert np.array_equal(encode(fit_schema(X, standardize=False), X), X)
    gaps = pl.DataFrame({"a": [1.0, None, 3.0]})
    assert encode(fit_schema(gaps, standardize=False), gaps).tolist() == [[1, 0], [2, 1], [3, 0]]


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint64, np.bool_])
def test_numeric_arrays_of_any_type_are_read(dtype):
    X = np.array([[0, 1], [1, 0]], dtype=dtype)
    assert encode(fit_schema(X), X).tolist() == [[-1, 1], [1, -1]]
    assert X.dtype == dtype


# --- frames


def mixed(table):
    return table(
        {
            "age": [20, 30, None, 40],
            "member": [True, False, None, True],
            "job": ["clerk", None, "baker", "clerk"],
            "since": [DAY, None, DAY + datetime.timedelta(days=2), DAY],
            "born": [datetime.date(2000, 1, 1), datetime.date(2000, 7, 1), datetime.date(2001, 1, 1), None],
        }
    )


def test_all_kinds_are_encoded_alike_by_all_libraries(table):
    X = mixed(table)
    schema = fit_schema(X)
    assert [column.kind for column in schema.columns] == ["numeric", "boolean", "category", "date", "date"]
    Z = encode(schema, X)
    assert Z.shape == (4, schema.width)
    found = dict(zip(schema.encoded_names, Z.T, strict=True))
    root = math.sqrt(1.5)
    np.testing.assert_allclose(found["age"], [-root, 0, 0, root])
    assert found["age is missing"].tolist() == [0, 0, 1, 0]
    assert found["member"].tolist() == [1, -1, 0, 1]
    assert found["member is missing"].tolist() == [0, 0, 1, 0]
    assert found["job=baker"].tolist() == [0, 0, 1, 0]
    assert found["job=clerk"].tolist() == [1, 0, 0, 1]
    assert found["job is missing"].tolist() == [0, 1, 0, 0]
    np.testing.assert_allclose(found["since"], [-1 / math.sqrt(2), 0, math.sqrt(2), -1 / math.sqrt(2)])
    weekday = [0, math.nan, 2, 0]  # 1 March 2021 was a Monday
    expected = [0.0 if math.isnan(w) else math.cos(2 * math.pi * w / 7) for w in weekday]
    np.testing.assert_allclose(found["since (weekday, cos)"], expected, atol=1e-12)
    np.testing.assert_allclose(found["born (day of year, sin)"][:2], [0, math.sin(2 * math.pi * 182 / 366)], atol=1e-15)
    np.testing.assert_allclose(found["born (day of year, cos)"], [1, math.cos(2 * math.pi * 182 / 366), 1, 0])
    assert found["born is missing"].tolist() == [0, 0, 0, 1]
    assert np.array_equal(Z, encode(fit_schema(mixed(pl.DataFrame)), mixed(pl.DataFrame)))


def test_library_may_change_between_training_and_prediction(table):
    schema = fit_schema(mixed(pl.DataFrame))
    assert np.array_equal(encode(schema, mixed(table)), encode(schema, mixed(pd.DataFrame)))


def test_pandas_and_polars_special_types_agree():
    plain = pl.DataFrame({"i": [1, None, 3], "b": [True, None, False], "c": ["u", "v", None]})
    variants = [
        plain.to_pandas().convert_dtypes(),
        plain.to_pandas().astype({"c": "category"}),
        plain.to_pandas().astype({"c": object}),
        plain.with_columns(pl.col("c").cast(pl.Categorical), pl.col("i").cast(pl.Int8)),
        plain.with_columns(pl.col("c").cast(pl.Enum(["v", "u", "unused"])), pl.col("i").cast(pl.Decimal(10, 2))),
        plain.to_arrow().set_column(2, "c", plain.to_arrow()["c"].dictionary_encode()),
    ]
    expected = fit_schema(plain)
    for variant in variants:
        assert fit_schema(variant) == expected
        assert np.array_equal(encode(expected, variant), encode(expected, plain))


def test_time_zones_are_instants():
    moments = [datetime.datetime(2020, 6, d, 23, 30, tzinfo=UTC) for d in (1, 2, 5)]
    base = pl.DataFrame({"t": moments})
    paris = base.with_columns(pl.col("t").dt.convert_time_zone("Europe/Paris"))
    naive = base.with_columns(pl.col("t").dt.replace_time_zone(None))
    objects = pd.DataFrame({"t": pd.Series(moments, dtype=object)})
    schema = fit_schema(base)
    for other in (paris, paris.to_pandas(), paris.to_arrow(), objects):
        np.testing.assert_allclose(encode(schema, other), encode(schema, base), atol=1e-12)
    assert through_json(schema) == schema
    for fitted, other, had in ((base, naive, "had a"), (naive, paris, "had no"), (naive, objects, "had no")):
        with pytest.warns(DataWarning, match=rf"'t': times {had} time zone in the training data.*taken as UTC"):
            found = encode(fit_schema(fitted), other)
        np.testing.assert_allclose(found, encode(schema, base), atol=1e-12)
    mixed = pd.DataFrame({"t": pd.Series([moments[0], moments[1].replace(tzinfo=None)], dtype=object)})
    with pytest.raises(DataError, match="'t' has times with a time zone and times without one; convert all"):
        fit_schema(mixed)
    dates = pl.DataFrame({"t": [moment.date() for moment in moments]})  # neither with nor without a zone
    encode(schema, dates)
    encode(fit_schema(dates), base)


@pytest.mark.parametrize("missing", [False, True])
def test_other_values_of_constant_columns_are_ignored_with_one_warning(missing):
    gap = [None] if missing else []
    rows = {"x": [1.0, 2.0, 3.0], "c": [5.0, 5.0], "b": [True, True], "d": [datetime.date(2020, 6, 1)] * 2}
    table = pl.DataFrame({n: v if n == "x" else v + (gap or v[:1]) for n, v in rows.items()})
    new = pl.DataFrame({"x": [1.5, 2.5], "c": [5.0, 1e9], "b": [True, False], "d": [datetime.date(2020, 6, 1)] * 2})
    later = new.with_columns(d=pl.lit(datetime.date(2021, 1, 4)))
    for unseen in ("warn", "error", "ignore"):
        schema = fit_schema(table, unseen=unseen)
        assert through_json(schema) == schema
        encode(schema, table)  # warnings are errors in tests
        first = encode(schema, new.head(1))[0]
        text = "columns 'c', 'b', 'd' were constant in the training data, and have other values, such as 1000000000.0"
        context = {"warn": pytest.warns(DataWarning, match=text), "error": pytest.raises(DataError, match=text)}
        with context.get(unseen, contextlib.nullcontext()):
            found = encode(schema, later)
            np.testing.assert_array_equal(found[:, 1:], np.tile(first[1:], (2, 1)))
            assert found[0, 0] == first[0]
    free = encode(schema.unlimited_constants, later)
    assert (free[1] != first).sum() >= 4  # the date has cycles, too
    town = fit_schema(pl.DataFrame({"town": ["Rome", "Rome", *(gap or ["Rome"])]}))
    assert through_json(town) == town
    with pytest.warns(DataWarning, match=r"'town' has categories .*'Oslo'. They are ignored, since the column had one"):
        assert encode(town, pl.DataFrame({"town": ["Oslo", "Rome"]}))[:, 0].tolist() == [1.0, 1.0]
    assert encode(replace(town, unseen="ignore").unlimited_constants, pl.DataFrame({"town": ["Oslo"]}))[0, 0] == 0.0
    with contextlib.nullcontext() if missing else pytest.warns(DataWarning, match="They are ignored, since the column"):
        found = encode(town, pl.DataFrame({"town": [None, "Rome"]}))
    assert found[:, 0].tolist() == [0.0 if missing else 1.0, 1.0]
    array = np.array([[1.0, 5.0], [2.0, 5.0]])
    with pytest.warns(DataWarning, match=r"column 'x1' was constant .* such as 7\.0, in 1 of 2 rows"):
        assert encode(fit_schema(array), array + np.array([[0.0, 2.0], [0.0, 0.0]])).tolist() == [
            [-1.0, 0.0],
            [1.0, 0.0],
        ]


def test_dates_before_the_epoch_and_constant_dates():
    X = pl.DataFrame({"t": [datetime.date(1900, 2, 28)] * 2})  # a Wednesday
    Z = encode(fit_schema(X), X)
    week, year = 2 * math.pi * 2 / 7, 2 * math.pi * 58 / 365
    np.testing.assert_allclose(Z[0], [0, math.sin(year), math.cos(year), math.sin(week), math.cos(week)])


def test_categories_keep_their_type():
    X = pd.DataFrame({"c": pd.Categorical([3, 1, 10, 1])})
    schema = fit_schema(X)
    assert schema.encoded_names == ("c=1", "c=3", "c=10")
    assert encode(schema, pd.DataFrame({"c": [10, 3]})).tolist() == [
        [0, 0, 1],
        [0, 1, 0],
    ]  # numbers, same values
    assert through_json(schema) == schema
    with pytest.raises(DataError, match="had categories such as 1 in the training data and now has '1'"):
        encode(schema, pd.DataFrame({"c": ["1", "3"]}))


@pytest.mark.parametrize(
    ("texts", "warned"),
    [
        ([f"{0.25 * i - 1.0}" for i in range(8)], True),
        ([str(i) for i in range(101)], True),
        ([str(i) for i in range(100)], False),  # codes of few categories
        ([f"{i:04d}" for i in range(200)], False),  # codes begin with zeros
        (["1.5", "2.5", "none"], False),
        (["1.5"], False),
    ],
)
def test_numbers_that_are_stored_as_text_have_a_warning(table, texts, warned):
    columns = table({"a": texts})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if not warned:
            fit_schema(columns, max_levels=1000)
            return
        with pytest.raises(DataWarning, match=f"'a' is text, but its {len(texts)} distinct values are numbers: '"):
            fit_schema(columns, max_levels=1000)


def test_declared_categories_may_be_numbers(recwarn):
    texts = [f"{0.5 * i}" for i in range(8)]
    declared = pd.DataFrame({"a": pd.Categorical(texts)}), pl.DataFrame({"a": texts}, schema={"a": pl.Enum(texts)})
    for columns in declared:
        assert fit_schema(columns).columns[0].kind == "category"
    assert not recwarn


def test_many_levels_keep_the_most_frequent_and_share_the_rest(table):
    values = [f"v{i:03d}" for i in range(150) for _ in range(1 + (i >= 50))]
    schema = fit_schema(table({"c": values}))
    assert schema.width == 100
    assert schema.encoded_names[0] == "c=v050"
    assert schema.encoded_names[98] == "c=v148"  # ties are broken by order
    Z = encode(schema, table({"c": ["v050", "v000", "never seen"]}))
    assert np.flatnonzero(Z[0]).tolist() == [0]
    assert np.flatnonzero(Z[1]).tolist() == np.flatnonzero(Z[2]).tolist() == [99]
    assert fit_schema(table({"c": values[:100]})).columns[0].other is False


def test_unseen_category_is_an_error_or_zeros(table):
    train, new = table({"c": [f"v{i:02d}" for i in range(12)]}), table({"c": ["v01", "w", "w"]})
    with pytest.raises(
        DataError, match=r"'c' has the category 'w' in 2 of 3 rows \(.*first: 1, 2\).*12 in all.*ignore"
    ):
        encode(fit_schema(train, unseen="error"), new)
    zeros = encode(fit_schema(train, unseen="ignore"), new)
    assert zeros.sum(axis=1).tolist() == [1, 0, 0]
    with pytest.warns(DataWarning, match=r"'c' has categories that are not in .* 2 of 3 rows: 'w'\. .*unseen='error'"):
        np.testing.assert_array_equal(encode(fit_schema(train), new), zeros)
    encode(fit_schema(train), train)  # no warning, which would be an error


# --- missing and infinite values


def test_missing_values_in_arrays_follow_the_policy():
    X = np.array([[1.0, 2.0], [np.nan, 4.0], [3.0, 9.0]])
    for policy in ("auto", "error"):
        with pytest.raises(DataError, match=r"'x0' contains NaN .*1 of 3 rows \(counted from 0, first: 1\)"):
            fit_schema(X, missing=policy)
    schema = fit_schema(X, missing="impute")
    assert schema.encoded_names == ("x0", "x0 is missing", "x1")
    np.testing.assert_allclose(encode(schema, X)[:, :2], [[-1, 0], [0, 1], [1, 0]])


def test_missing_values_in_frames_follow_the_policy(table):
    X = table({"a": [1.0, None, 3.0]})
    with pytest.raises(DataError, match="'a' contains NaN"):
        fit_schema(X, missing="error")
    np.testing.assert_allclose(encode(fit_schema(X), X), [[-1, 0], [0, 1], [1, 0]])


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], ["a", "b", "a"], [True, False, True], [DAY, DAY, DAY]])
def test_gap_that_training_never_saw_is_the_mean_or_refused(table, values):
    train, new = table({"a": values}), table({"a": [values[0], None]})
    with pytest.raises(DataError, match=r"'a' has missing values \(NaN\) in 1 of 2 rows.*impute"):
        encode(fit_schema(train, missing="error"), new)
    Z = encode(fit_schema(train, missing="impute"), new)
    assert Z.shape[1] == fit_schema(train).width
    assert not Z[1].any()
    with pytest.warns(DataWarning, match=r"'a' has missing values in 1 of 2 rows, but had none .*missing='error'"):
        np.testing.assert_array_equal(encode(fit_schema(train), new), Z)


def test_gap_of_an_array_that_training_never_saw_is_refused_unless_imputed():
    train, new = np.array([[1.0], [3.0]]), np.array([[np.nan]])
    with pytest.raises(DataError, match="'x0' has missing values"):
        encode(fit_schema(train), new)
    assert encode(fit_schema(train, missing="impute"), new).tolist() == [[0.0]]


@pytest.mark.parametrize("policy", ["auto", "impute"])
def test_a_column_without_values_in_training_is_ignored(table, policy):
    X = table({"a": [None, None], "b": [1.0, 2.0], "c": ["u", "v"]})
    with pytest.warns(DataWarning, match="'a' has no values in the training data; it is ignored"):
        schema = fit_schema(X, missing=policy)
    assert schema.encoded_names == ("b", "c=u", "c=v")
    assert through_json(schema) == schema
    Z = encode(schema, X)
    np.testing.assert_array_equal(Z, [[-1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    for values in ([3.0, 4.0], ["p", "q"], [DAY, DAY]):
        new = table({"a": values, "b": [1.0, 2.0], "c": ["u", "v"]})
        with pytest.warns(DataWarning, match=r"'a' had no values in the training data, and has .* in 2 of 2 rows"):
            np.testing.assert_array_equal(encode(schema, new), Z)
        np.testing.assert_array_equal(encode(replace(schema, unseen="ignore"), new), Z)
        with pytest.raises(DataError, match="Drop the column, or fit with unseen='ignore'"):
            encode(replace(schema, unseen="error"), new)


def test_a_column_without_values_may_be_predicted(table):
    for values in ([1.0, None], ["x", None], [True, None], [DAY, None]):
        Z = encode(fit_schema(table({"a": values})), table({"a": [None, None]}))
        assert Z[:, -1].tolist() == [1, 1]
        assert not Z[:, :-1].any()


def test_a_table_without_values_is_refused(table):
    with pytest.raises(DataError, match="'a' contains NaN"):
        fit_schema(table({"a": [None, None], "b": [1.0, 2.0]}), missing="error")
    with pytest.warns(DataWarning, match="no values"), pytest.raises(DataError, match="no column has values"):
        fit_schema(table({"a": [None, None], "b": [None, None]}))


def test_nan_and_null_are_both_missing_in_polars():
    X = pl.DataFrame({"a": [1.0, math.nan, None, 3.0]})
    assert encode(fit_schema(X), X)[:, 1].tolist() == [0, 1, 1, 0]


@pytest.mark.parametrize("sign", [1, -1])
def test_infinity_is_always_refused(table, sign):
    X = {"a": [0.0, 1.0, 2.0], "b": [0.0, 1.0, sign * math.inf]}
    for policy in ("auto", "error", "impute"):
        with pytest.raises(DataError, match=r"'b' contains infinity in 1 of 3 rows \(counted from 0, first: 2\)"):
            fit_schema(table(X), missing=policy)
        with pytest.raises(DataError, match="'x1' contains infinity"):
            fit_schema(np.array(list(X.values())).T, missing=policy)
    good = fit_schema(np.zeros((2, 1)))
    with pytest.raises(DataError, match="infinity"):
        encode(good, np.array([[sign * math.inf]]))


# --- tables that do not fit


def test_columns_are_matched_by_name(table):
    schema = fit_schema(table({"a": [1, 2], "b": ["x", "y"]}))
    assert np.array_equal(encode(schema, table({"b": ["y"], "a": [2]})), encode(schema, table({"a": [2], "b": ["y"]})))
    with pytest.raises(DataError, match="lacks the columns 'b' and has the columns 'c'"):
        encode(schema, table({"a": [1], "c": ["x"]}))
    with pytest.raises(DataError, match="X lacks the columns 'b'; give"):
        encode(schema, table({"a": [1]}))
    with pytest.raises(DataError, match="has the columns 'c', which the training data did not have"):
        encode(schema, table({"a": [1], "b": ["x"], "c": [0]}))


def test_arrays_are_matched_by_position(table):
    X = np.array([[1.0, 2.0], [3.0, 5.0]])
    by_frame, by_array = fit_schema(table({"a": X[:, 0], "b": X[:, 1]})), fit_schema(X)
    assert np.array_equal(encode(by_frame, X), encode(by_array, X))
    assert np.array_equal(encode(by_array, table({"p": X[:, 0], "q": X[:, 1]})), encode(by_array, X))
    assert np.array_equal(encode(by_array, np.asfortranarray(X)), encode(by_array, X))
    for wrong in (X[:, :1], table({"p": [1.0]})):
        with pytest.raises(DataError, match=r"X has 1 columns \(features\); the training data had 2"):
            encode(by_array, wrong)


KINDS = {
    "numeric": [1.0, 2.0],
    "boolean": [True, False],
    "category": ["1", "2"],
    "date": [DAY, DAY],
}


@pytest.mark.parametrize("trained", KINDS)
@pytest.mark.parametrize("given", KINDS)
def test_column_of_another_kind_is_refused(table, trained, given):
    schema = fit_schema(table({"a": KINDS[trained]}))
    new = table({"a": KINDS[given]})
    if trained == given:
        assert np.isfinite(encode(schema, new)).all()
        return
    with pytest.raises(DataError, match=r"'a'.*give it the type of the training data"):
        encode(schema, new)


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (np.zeros(3), "shape"),
        (np.zeros((0, 2)), "0 rows"),
        (np.zeros((2, 0)), "0 columns"),
        (np.array([["a"]]), "use a data frame"),
        (np.array([[1j]]), "complex"),
        (np.array([[1.0]], dtype=object), "dtype object"),
        ([[1.0]], r"builtins.list; allowed are"),
        (torch.zeros(2, 2), "allowed are"),
        (pl.LazyFrame({"a": [1]}), "collect"),
        (pl.DataFrame({"a": []}), "0 rows"),
        (pl.DataFrame(), "0 rows"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "repeated|more than once"),
        (pd.DataFrame([[1, 2]], columns=["1", 1]), "more than once"),
        (pl.DataFrame({"a": [[1, 2]]}), "'a' has type List"),
        (pd.DataFrame({"a": [[1, 2], [3]]}), "'a' holds values of type list"),
        (pd.DataFrame({"a": [1, "x"]}), "'a' holds values of type int, str"),
        (pd.DataFrame({"a": pd.Categorical([1, "x"])}), "categories of type int, str"),
        (pl.DataFrame({"a": [datetime.timedelta(1)]}), "'a' has type Duration"),
        (pl.DataFrame({"a": [b"x"]}), "'a' has type Binary"),
    ],
)
def test_table_that_cannot_be_read_is_refused(X, words):
    with pytest.raises(DataError, match=words):
        fit_schema(X)


def test_number_names_of_columns_are_read_as_text():
    X = pd.DataFrame([[1.0, 2.0], [2.0, 4.0]])
    schema = fit_schema(X)
    assert schema.encoded_names == ("0", "1")
    assert np.array_equal(encode(schema, X[[1, 0]]), encode(schema, X))


@pytest.mark.parametrize(
    "options",
    [
        {"missing": "maybe"},
        {"unseen": "drop"},
        {"max_levels": 1},
        {"names": ["a"]},
        {"names": ["a", "a"]},
        {"weight": np.ones(3)},
        {"weight": np.array([1.0, -1.0])},
        {"weight": np.array([1.0, np.nan])},
        {"weight": np.zeros(2)},
    ],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(DataError):
        fit_schema(np.array([[1.0, 2.0], [3.0, 4.0]]), **options)


# --- JSON

cells = {
    "n": st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
    "b": st.none() | st.booleans(),
    "c": st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=3),
    "d": st.none() | st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)),
}


def test_automatic_levels_are_those_of_two_rows_or_more() -> None:
    """Of more than 100 categories, those of a single row share a level with unseen ones."""
    names = [f"c{i:03}" for i in range(150)]
    X = pl.DataFrame({"c": names + names[:120]})
    (column,) = fit_schema(X, max_levels="auto").columns
    assert column.other
    assert column.levels == tuple(names[:120])
    new = encode(fit_schema(X, max_levels="auto"), pl.DataFrame({"c": ["c000", "c149", "unseen"]}))
    assert np.array_equal(new.argmax(1), [0, 120, 120])
    # if each category has a single row, one of them has a level; without rare categories, unseen ones are unknown
    (single,) = fit_schema(pl.DataFrame({"c": names}), max_levels="auto").columns
    assert single.other
    assert single.levels == ("c000",)
    (full,) = fit_schema(pl.DataFrame({"c": names * 2}), max_levels="auto").columns
    assert not full.other
    assert len(full.levels) == 150
    (most,) = fit_schema(pl.DataFrame({"c": [f"c{i:04}" for i in range(1001)] * 2}), max_levels="auto").columns
    assert most.other
    assert len(most.levels) == 999
    (few,) = fit_schema(pl.DataFrame({"c": names[:100]}), max_levels="auto").columns
    assert not few.other
    assert len(few.levels) == 100


@pytest.mark.parametrize("scale", [1.0, 0.01, 3.0])
def test_categories_of_one_row_share_a_level(scale: float) -> None:
    """For any number of levels, and for weights of any size below that of two rows."""
    names = ["a"] * 5 + ["b"] * 2 + [f"c{i}" for i in range(6)] + ["zz"] * 2
    weight = np.full(len(names), scale)
    (column,) = fit_schema(pl.DataFrame({"c": names}), weight=weight, counts=weight, max_levels=5).columns
    assert column.other
    assert column.levels == (("a", "b", "zz") if scale < 2.0 else ("a", "b", "c0", "zz"))  # three rows are not one


@pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
@pytest.mark.parametrize(
    "estimator", [UnboundedDepthRegressor(epochs=60, cv=5, random_state=0), MeanFieldNetworkRegressor(random_state=0)]
)
def test_names_of_rows_say_nothing_of_new_rows(estimator: UnboundedDepthRegressor | MeanFieldNetworkRegressor) -> None:
    """Levels were those of the first 99 names, so that new rows were predicted by the targets of the last ones."""
    random = np.random.default_rng(0)
    y = random.normal(size=240)
    names = np.array([f"row {rank:03}" for rank in y.argsort().argsort()])  # in the order of the targets
    new = np.arange(240) >= 140
    X = pl.DataFrame({"name": names, "x": random.normal(size=240)})
    fitted = estimator.fit(X.filter(~new), y[~new])
    assert abs(fitted.predict(X.filter(new)).mean() - y[~new].mean()) < 0.2


def test_automatic_levels_count_sample_weights() -> None:
    names = [f"c{i:03}" for i in range(150)]
    weight = np.where(np.arange(150) < 130, 2.0, 1.0)
    weighted = fit_schema(pl.DataFrame({"c": names}), weight=weight, max_levels="auto")
    assert weighted == fit_schema(pl.DataFrame({"c": names + names[:130]}), max_levels="auto")


def test_levels_do_not_depend_on_the_weights_of_classes() -> None:
    """Otherwise a category of a rare class has a level because of the class of its row."""
    random = np.random.default_rng(0)
    X = pl.DataFrame({"c": [f"c{i}" for i in random.integers(0, 400, 1000)], "x": random.normal(size=1000)})
    y = random.random(1000) < 0.05
    options = {"epochs": 1, "cv": 1, "width": 4, "random_state": 0, "unseen": "ignore"}
    plain, balanced = (
        UnboundedDepthClassifier(**options, class_weight=weight).fit(X, y).schema_ for weight in (None, "balanced")
    )
    assert len(plain.columns[0].levels) > 100
    assert balanced.columns[0] == plain.columns[0]
    counted = fit_schema(X, weight=np.where(y, 9.0, 0.5), counts=np.ones(1000), max_levels="auto")
    assert counted.columns[0] == plain.columns[0]


def test_automatic_levels_have_limited_numbers_of_values() -> None:
    assert choose_max_levels(3000, 1) == 1000
    assert choose_max_levels(100_000, 1) == 500
    assert choose_max_levels(100_000, 2) == 250
    assert choose_max_levels(10_000_000, 3) == 100
    assert choose_max_levels(1000, 1) == 500
    assert choose_max_levels(2500, 3) == 416
    assert choose_max_levels(0, 0) == 100
    with pytest.raises(DataError, match="max_levels is 'all'; allowed are 'auto'"):
        fit_schema(pl.DataFrame({"c": ["a"]}), max_levels="all")


@pytest.mark.filterwarnings("ignore:.* rows, and all other values lie:fathomless.system.errors.DataWarning")
@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.fixed_dictionaries(cells), min_size=1, max_size=12), levels=st.integers(2, 5))
def test_any_table_is_encoded_finite_and_the_same_after_json(rows, levels):
    types = {"n": pl.Float64, "b": pl.Boolean, "c": pl.String, "d": pl.Datetime("us")}
    X = pl.DataFrame({k: pl.Series([row[k] for row in rows], dtype=t) for k, t in types.items()})
    X = X.select([name for name in X.columns if X[name].null_count() < len(rows)])
    if X.width == 0:
        return
    schema = fit_schema(X, max_levels=levels)
    back = through_json(schema)
    assert back == schema
    Z = encode(schema, X)
    assert Z.shape == (len(rows), schema.width)
    assert np.isfinite(Z).all()
    assert np.array_equal(Z, encode(back, X))


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.pop("named"),
        lambda s: s.update(extra=1),
        lambda s: s.update(missing="maybe"),
        lambda s: s.update(columns=[]),
        lambda s: s.update(columns=s["columns"] * 2),
        lambda s: s.update(columns={}),
        lambda s: s["columns"][0].update(scale=0.0),
        lambda s: s["columns"][0].update(scale=-1.0),
        lambda s: s["columns"][0].update(center=math.nan),
        lambda s: s["columns"][0].update(center=1),
        lambda s: s["columns"][0].update(kind="magic"),
        lambda s: s["columns"][0].update(levels=["a"]),
        lambda s: s["columns"][1].update(levels=[]),
        lambda s: s["columns"][1].update(levels=["a", 1]),
        lambda s: s["columns"][1].update(levels=["a", "a"]),
        lambda s: s["columns"][1].update(levels=[None]),
        lambda s: s["columns"][1].update(levels=[["a"]]),
        lambda s: s["columns"].__setitem__(0, 3),
    ],
)
def test_nonsense_is_no_schema(change):
    obj = fit_schema(pl.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})).to_json()
    assert Schema.from_json(obj).width == 3
    change(obj)
    with pytest.raises(DataError):
        Schema.from_json(obj)


@pytest.mark.parametrize("obj", [None, [], 3, "schema", {}])
def test_other_json_is_no_schema(obj):
    with pytest.raises(DataError):
        Schema.from_json(obj)


# --- splits


@settings(max_examples=100, deadline=None)
@given(
    classes=st.lists(st.integers(-3, 3), min_size=1, max_size=60),
    fraction=st.floats(0, 1, exclude_max=True),
    seed=st.integers(0, 2**32),
)
def test_split_is_a_stratified_partition(classes, fraction, seed):
    n, strata = len(classes), torch.tensor(classes)
    train, held = split(n, fraction, torch.Generator().manual_seed(seed), strata=strata)
    again = split(n, fraction, torch.Generator().manual_seed(seed), strata=strata)
    assert torch.equal(train, again[0])
    assert torch.equal(held, again[1])
    assert torch.cat([train, held]).sort().values.tolist() == list(range(n))
    assert set(strata[train].tolist()) == set(classes)
    possible = n - len(set(classes))
    assert len(held) == min(round(n * fraction), possible)
    for label in set(classes):
        count = classes.count(label)
        got = int((strata[held] == label).sum())
        assert got <= count - 1
        if len(held) == round(n * fraction) and min(map(classes.count, set(classes))) * (1 - fraction) >= 2:
            assert abs(got - len(held) * count / n) < 1 + 1e-9


def test_split_without_strata_is_uniform():
    # each row is held out with probability 1/4: over 2000 splits 4 standard errors are 0.039
    generator = torch.Generator().manual_seed(0)
    counts = torch.zeros(8)
    for _ in range(2000):
        counts[split(8, 0.25, generator)[1]] += 1
    assert (counts / 2000 - 0.25).abs().max() < 4 * math.sqrt(0.25 * 0.75 / 2000)


def test_split_refuses_nonsense():
    generator = torch.Generator().manual_seed(0)
    for n, fraction, strata in ((0, 0.1, None), (5, 1.0, None), (5, -0.1, None), (5, 0.2, torch.zeros(4))):
        with pytest.raises(DataError):
            split(n, fraction, generator, strata=strata)


# --- frames and bundled sets


def test_frame_is_made_by_the_first_library_that_is_installed(monkeypatch):
    columns = {"a": np.array([1, 2]), "b": np.array(["x", None], dtype=object)}
    real = __import__("importlib.util").util.find_spec
    for missing, kind in (((), pd.DataFrame), (("pandas",), pl.DataFrame), (("pandas", "polars"), pa.Table)):
        with monkeypatch.context() as patch:
            patch.setattr("importlib.util.find_spec", lambda n, m=missing: None if n in m else real(n))
            found = make_frame(columns)
        assert isinstance(found, kind)
        assert fit_schema(found).encoded_names == ("a", "b=x", "b is missing")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match="pip install pandas"):
        make_frame(columns)


def test_bundled_name_is_checked():
    with pytest.raises(DataError, match="allowed are"):
        load_bundled("boston")


def test_new_levels_are_found_whatever_their_text() -> None:
    """NumPy drops NUL characters at the end of texts."""
    schema = fit_schema(pd.DataFrame({"town": ["Rome", "Bonn"] * 10}))
    new = pd.DataFrame({"town": ["Rome", "Rome\0", "\0", "Oslo", "Rome\0", None]})
    found = find_new_levels(schema.columns[0], read_columns(new)[1]["town"])
    assert {level: np.flatnonzero(rows).tolist() for level, rows in found.items()} == {
        "Rome\0": [1, 4],
        "\0": [2],
        "Oslo": [3],
    }
