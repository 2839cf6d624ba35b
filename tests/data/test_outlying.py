"""Sentinels such as -999 do not decide the scale of a column; ordinary columns are encoded as before."""

import json
import warnings

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fathomless.data import streams
from fathomless.data.frames import encode, fit_schema
from fathomless.data.outliers import Subsample, find_outliers
from fathomless.data.schema import Schema
from fathomless.data.targets import TargetScale, fit_target
from fathomless.system.errors import DataError, DataWarning

BACKENDS = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}


def spoiled(value=-999.0, cells=8, rows=400, seed=2):
    values = np.random.default_rng(seed).uniform(-2.0, 2.0, rows)
    values[np.random.default_rng(seed + 1).choice(rows, cells, replace=False)] = value
    return values


# ---- the rule


@pytest.mark.parametrize("value", [-999.0, -99.0, 999.0, 1e6, 9.97e36, -1.7e308])
@pytest.mark.parametrize("cells", [1, 2, 8, 80])
def test_a_code_is_found_whatever_its_size_and_share(value, cells):
    if cells == 1 and abs(value) < 200.0:
        return  # a single cell must be a hundred times as far as any other
    values = spoiled(value, cells)
    found = find_outliers(values)
    assert (found.values, found.rows) == ((value,), cells)
    others = values[values != value]
    assert (found.low, found.high) == (others.min(), others.max())
    assert np.array_equal(found.inside(values), values != value)


def test_several_codes_are_found_together():
    values = spoiled()
    values[:20] = 9999.0
    found = find_outliers(values)
    assert found.values == (-999.0, 9999.0)
    assert found.describe(400).startswith("-999 or 9999 in ")


@pytest.mark.parametrize("options", [[0.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
def test_a_code_is_found_among_few_levels(options):
    values = np.random.default_rng(0).choice(options, 300)
    values[:6] = -999.0
    assert find_outliers(values).values == (-999.0,)


def test_a_code_is_found_among_zeros_and_other_numbers():
    values = np.where(np.arange(300) % 5 == 0, np.random.default_rng(0).exponential(1.0, 300), 0.0)
    values[7] = values[11] = -999.0
    assert find_outliers(values).values == (-999.0,)


DRAWN = {
    "normal": lambda r, n: r.normal(size=n),
    "exponential": lambda r, n: r.exponential(size=n),
    "lognormal": lambda r, n: r.lognormal(0.0, 1.5, n),
    "student": lambda r, n: r.standard_t(3, n),
    "counts": lambda r, n: r.negative_binomial(0.3, 0.05, n).astype(float),
    "rare": lambda r, n: (r.random(n) < 0.01).astype(float),
    "zero-inflated": lambda r, n: np.where(r.random(n) < 0.9, 0.0, r.lognormal(5.0, 1.0, n)),
    "two clusters": lambda r, n: np.where(r.random(n) < 0.3, 50.0, 0.0) + r.normal(size=n),
    "pixels": lambda r, n: r.choice([0.0, 1.0, 16.0], n, p=[0.98, 0.01, 0.01]),
}


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize("rows", [12, 30, 300, 3000])
def test_ordinary_columns_have_no_outlying_cells(kind, rows):
    random = np.random.default_rng(0)
    found = [find_outliers(DRAWN[kind](random, rows)) for _ in range(200)]
    assert sum(one is not None for one in found) <= 1  # a single cell may be far out by chance


def test_columns_of_bundled_tables_have_no_outlying_cells():
    from sklearn import datasets

    for load in (datasets.load_breast_cancer, datasets.load_diabetes, datasets.load_digits, datasets.load_wine):
        assert all(find_outliers(column) is None for column in load().data.astype(float).T)


def test_constant_and_empty_spreads_say_nothing():
    for values in ([1.0], [1.0, 1.0], [1.0, 5.0], [0.0] * 50 + [1e6], [0.0] * 50 + [1.0, 1e6]):
        assert find_outliers(np.array(values)) is None


@pytest.mark.parametrize("cells", [1, 3])
def test_repeating_rows_or_counting_them_more_often_changes_nothing(cells):
    values = spoiled(cells=cells)
    weight = np.random.default_rng(5).integers(1, 4, len(values))
    counted, repeated = find_outliers(values, weight.astype(float)), find_outliers(np.repeat(values, weight))
    assert (counted.values, counted.limits) == (repeated.values, repeated.limits)
    twice = find_outliers(np.tile(values, 3))
    assert twice.limits == find_outliers(values).limits


# ---- the encoding


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_other_cells_alone_give_the_scale(backend):
    values = spoiled()
    table = BACKENDS[backend]({"a": values, "b": np.arange(400.0)})
    with pytest.warns(
        DataWarning, match=r"column 'a' is -999 in 8 of 400 rows, and all other values lie between -1\.9"
    ):
        schema = fit_schema(table)
    a, b = schema.columns
    others = values[values > -999.0]
    assert a.center == pytest.approx(others.mean())
    assert a.scale == pytest.approx(others.std())
    assert a.fill == a.center
    assert b.limits is None
    low, high = others.min(), others.max()
    assert a.limits == (2 * low - high, 2 * high - low)
    encoded = encode(schema, table)[:, 0]
    np.testing.assert_allclose(encoded[values > -999.0], (others - others.mean()) / others.std())
    np.testing.assert_allclose(encoded[values == -999.0], (a.limits[0] - others.mean()) / others.std())


def test_arrays_are_encoded_as_frames_are():
    values = np.column_stack([spoiled(), spoiled(1e6, seed=7)])
    with pytest.warns(DataWarning, match="column 'x[01]' is"):
        array = fit_schema(values)
    with pytest.warns(DataWarning, match="column 'x[01]' is"):
        table = fit_schema(pd.DataFrame(values, columns=["x0", "x1"]))
    assert array.columns == table.columns
    before = values.copy()
    assert np.array_equal(encode(array, values), encode(table, pd.DataFrame(values, columns=["x0", "x1"])))
    assert np.array_equal(values, before)


def test_gaps_and_weights_stay_out():
    values = spoiled()
    gaps = np.append(values, [np.nan, 1e6, 1e6])
    weight = np.append(np.ones(400), [1.0, 0.0, 0.0])
    with pytest.warns(DataWarning, match="-999 in 8 of 400 rows"):
        schema = fit_schema(pd.DataFrame({"a": gaps}), weight=weight)
    with pytest.warns(DataWarning, match="-999 in 8 of 400 rows"):
        alone = fit_schema(pd.DataFrame({"a": values}))
    assert schema.columns[0].center == pytest.approx(alone.columns[0].center)
    assert schema.columns[0].limits == alone.columns[0].limits


def test_dates_of_no_calendar_are_told_as_dates():
    days = pd.Series(pd.date_range("2024-01-01", periods=200)).astype("datetime64[us]")
    days[[3, 9]] = pd.Timestamp("1900-01-01")
    with pytest.warns(
        DataWarning, match="column 'day' is 1900-01-01 in 2 of 200 rows.*between 2024-01-01 and 2024-07-18"
    ):
        column = fit_schema(pd.DataFrame({"day": days})).columns[0]
    assert column.scale == pytest.approx(np.delete(np.arange(200.0), [3, 9]).std())


def test_limits_go_to_json_and_back_and_are_checked():
    with pytest.warns(DataWarning):
        schema = fit_schema(pd.DataFrame({"a": spoiled(), "b": np.arange(400.0)}))
    plain = json.loads(json.dumps(schema.to_json()))
    assert Schema.from_json(plain) == schema
    assert "limits" not in plain["columns"][1]
    for wrong in ([1.0, -1.0], [0.0], ["a", "b"], [0.0, float("inf")], [0, 1]):
        altered = json.loads(json.dumps(plain))
        altered["columns"][0]["limits"] = wrong
        with pytest.raises(DataError, match="the saved schema was altered"):
            Schema.from_json(altered)


def test_raw_numbers_and_limits_can_be_left_alone():
    values = spoiled()[:, None]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit_schema(values, standardize=False).columns[0].limits is None
        column = fit_schema(values, limit=False).columns[0]
    assert column.scale == pytest.approx(values.std())


# ---- targets


@pytest.mark.parametrize("make", [np.array, pd.Series, pl.Series, lambda v: pa.chunked_array([v]), list])
def test_a_target_with_a_code_is_told_and_scaled_as_before(make):
    values = spoiled()
    with pytest.warns(DataWarning, match=r"^y is -999 in 8 of 400 rows.*drop these rows"):
        scale = fit_target(make(values))
    assert scale.scale == pytest.approx((values.std(),))


def test_a_target_of_several_columns_names_them():
    table = pd.DataFrame({"height": spoiled(), "mass": np.arange(400.0)})
    with pytest.warns(DataWarning, match="^column 'height' is -999"):
        fit_target(table)
    with pytest.warns(DataWarning, match="^y, output 0, is -999"):
        fit_target(table.to_numpy())


# ---- streams


@pytest.mark.parametrize("rows", [400, 40_000])  # all are kept, or every second one
def test_streams_learn_what_the_table_teaches(tmp_path, rows):
    table = pa.table({"a": spoiled(rows=rows), "b": np.arange(float(rows)), "y": spoiled(1e6, rows=rows, seed=9)})
    pq.write_table(table, tmp_path / "table.parquet", row_group_size=1000)
    source = streams.parquet(tmp_path / "table.parquet", "y")
    with pytest.warns(DataWarning) as told:
        schema, target = streams.learn(source, TargetScale)
    texts = [str(one.message) for one in told]
    assert any(f"column 'a' is -999 in 8 of {rows:,} rows" in text for text in texts)
    assert any(text.startswith("y is 1e+06 in ") for text in texts)
    with pytest.warns(DataWarning):
        whole = fit_schema(table.select(["a", "b"]))
    with pytest.warns(DataWarning):
        known = fit_target(table["y"])
    for ours, theirs in zip(schema.columns, whole.columns, strict=True):
        assert ours.center == pytest.approx(theirs.center)
        assert ours.scale == pytest.approx(theirs.scale)
    assert schema.columns[0].limits == pytest.approx(whole.columns[0].limits, rel=1e-3)
    assert target.scale == pytest.approx(known.scale)


def test_a_thinned_column_keeps_every_kth_value_and_its_ends():
    values = np.random.default_rng(0).normal(size=100_000)
    values[12345] = 1e9
    kept = Subsample()
    for part in np.array_split(values, 37):
        kept.add(part)
    assert kept.step == 4
    assert np.array_equal(kept.values, values[::4])
    assert kept.find_outliers(values.min(), values.max()).values == (1e9,)
