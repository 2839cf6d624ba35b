"""Tables, targets, weights and groups in unusual forms: masks, codes, missing values, uncommon types."""

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn.model_selection import TimeSeriesSplit, cross_val_score

import fathomless
from fathomless.data.frames import as_numbers
from fathomless.data.groups import read_groups
from fathomless.data.row_weights import read_weight
from fathomless.estimators.evaluation import evaluate
from fathomless.estimators.importance import dependence, importance
from fathomless.families.depth.estimator import UnboundedDepthRegressor
from fathomless.families.graph.estimator import IndianChefsDensity
from fathomless.families.registry import BUILT_IN
from fathomless.system.errors import DataError, DataWarning
from refusals import classifier as any_classifier
from refusals import nan, numbers
from refusals import regressor as any_regressor

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

ma = np.ma.masked_array


def regressor(**options: Any) -> Any:
    return any_regressor(**{"cv": 1, **options})


def classifier(**options: Any) -> Any:
    return any_classifier(**{"cv": 1, **options})


def refused(message: str, X: Any, y: Any, weight: Any = None, kind: Any = ValueError, make: Any = regressor) -> None:
    with pytest.raises(kind, match=message):
        make().fit(X, y, sample_weight=weight)


first = np.arange(20) < 3  # of 20 rows


# ------------------------------------------------------------------------------------------------- masked arrays


def hiding(values: Any, hidden: Any = first) -> Any:
    """Mask rows, with a number behind the mask that would change the result."""
    found = np.array(values)
    found[hidden] = 77
    return ma(found, np.broadcast_to(np.asarray(hidden).reshape(-1, *[1] * (found.ndim - 1)), found.shape))


def test_hidden_cells_are_missing_values() -> None:
    X, y = numbers(), numbers()[:, 0]
    refused("Input X contains NaN", hiding(X), y)
    gaps = np.where(first[:, None], np.nan, X)
    ours, theirs = (regressor(missing="impute").fit(table, y) for table in (hiding(X), gaps))
    assert ours.schema_ == theirs.schema_
    assert np.array_equal(ours.predict(hiding(X)), theirs.predict(gaps))
    assert np.array_equal(ours.predict_dist(hiding(X)).mean, theirs.predict_dist(gaps).mean)
    with pytest.raises(ValueError, match="Input X contains NaN"):
        regressor().fit(X, y).predict(hiding(X))


def test_masked_arrays_that_hide_nothing_are_arrays() -> None:
    X, y = numbers(), numbers()[:, 0]
    plain, masked = regressor().fit(X, y), regressor().fit(ma(X), ma(y), sample_weight=ma(np.ones(20)))
    assert np.array_equal(plain.predict(X), masked.predict(ma(X)))
    labels = np.array(["a", "b"] * 10)
    assert classifier().fit(ma(X), ma(labels)).classes_.tolist() == ["a", "b"]


def test_hidden_targets_labels_weights_and_groups_are_refused() -> None:
    X, y = numbers(), numbers()[:, 0]
    rows = r"in 3 of 20 rows \(counted from 0, first: 0, 1, 2\)"
    refused(f"Input y contains NaN. It is {rows}", X, hiding(y))
    refused(f"Input y contains NaN. It is {rows}", X, hiding(np.column_stack([y, y])))
    refused(f"Input y contains NaN. It is {rows}", X, list(hiding(y)))
    for labels in (
        np.arange(20) % 2,
        np.arange(20) % 2 == 0,
        np.array(["a", "b"] * 10),
        np.array(["a", "b"] * 10, "O"),
    ):
        refused(f"Labels are missing {rows}", X, hiding(labels), make=classifier)
    refused(f"Input sample_weight contains NaN. It is missing {rows}", X, y, hiding(np.ones(20)))
    for groups in (hiding(np.arange(20)), hiding(np.array(["a", "b"] * 10))):
        with pytest.raises(DataError, match=f"groups are missing .None or NaN. {rows}"):
            regressor(cv=2).fit(X, y, groups=groups)
    with pytest.raises(DataError, match="cv is an array of shape"):
        regressor(cv=hiding(np.arange(20) % 2)).fit(X, y)
    with pytest.raises(DataError, match="Labels are missing"):
        classifier().partial_fit(X, ["a", "b"] * 10, classes=ma(["a", "b", "c"], [False, False, True]))


def test_hidden_targets_are_refused_where_predictions_are_judged() -> None:
    X, y = numbers(), numbers()[:, 0]
    fitted = regressor().fit(X, y)
    with pytest.raises(ValueError, match="NaN"):
        fitted.score(X, hiding(y))
    with pytest.raises(DataError, match="Input y contains NaN"):
        evaluate(fitted, X, hiding(y), name="new rows", targets=["y"])
    with pytest.raises(ValueError, match="NaN"):
        importance(fitted, X, hiding(y))
    assert fitted.predict_dist(X).log_prob(hiding(y)).isnan().tolist() == first.tolist()
    labels = np.arange(20) % 2
    judged = classifier().fit(X, labels)
    with pytest.raises(ValueError, match="NaN"):
        judged.score(X, hiding(labels))
    with pytest.raises(DataError, match="Labels are missing"):
        evaluate(judged, X, hiding(labels), name="new rows", targets=["y"])


def test_hidden_cells_have_no_density() -> None:
    X = numbers()
    make = IndianChefsDensity(sweeps=4, states=2, chains=2, engine="numpy", random_state=0)
    with pytest.raises(ValueError, match="NaN"):
        make.fit(hiding(X))


@pytest.mark.parametrize("library", ["pandas", "arrow types of pandas", "polars", "pyarrow"])
def test_gaps_of_nullable_columns_are_missing_values(library: str) -> None:
    whole, real = pa.array([None, *range(19)]), pa.array([None, *np.linspace(-1, 1, 19)])
    text, truth = pa.array([None, *["a", "b"] * 9, "a"]), pa.array([None, *[True, False] * 9, True])
    days = pa.array([None, *(datetime.date(2024, 1, 1 + i) for i in range(19))])
    table: Any = pa.table({"whole": whole, "real": real, "text": text, "truth": truth, "days": days})
    numpy_nullable = {pa.int64(): pd.Int64Dtype(), pa.float64(): pd.Float64Dtype(), pa.bool_(): pd.BooleanDtype()}
    if library == "pandas":
        table = table.to_pandas(types_mapper=numpy_nullable.get)
    elif library == "arrow types of pandas":
        table = table.to_pandas(types_mapper=pd.ArrowDtype)
    elif library == "polars":
        table = pl.from_arrow(table)
    fitted = regressor().fit(table, numbers()[:, 0])
    kinds = {column.name: (column.kind, column.gaps) for column in fitted.schema_.columns}
    of_kind = {"whole": "numeric", "real": "numeric", "text": "category", "truth": "boolean", "days": "date"}
    assert kinds == {name: (kind, True) for name, kind in of_kind.items()}
    assert fitted.schema_.columns[0].center == 9.0
    assert fitted.schema_.columns[4].center == 19732.0
    for name in ("whole", "real"):
        column = table[name]
        with pytest.raises(DataError, match=r"Input y contains NaN\. It is in 1 of 20 rows"):
            regressor().fit(numbers(), column)
        with pytest.raises(DataError, match=r"Input sample_weight contains NaN\. It is missing in 1 of 20 rows"):
            regressor().fit(numbers(), numbers()[:, 0], sample_weight=column)
        with pytest.raises(DataError, match="groups are missing"):
            regressor(cv=2).fit(numbers(), numbers()[:, 0], groups=column)
    for name in ("text", "truth"):
        with pytest.raises(DataError, match="Labels are missing in 1 of 20 rows"):
            classifier().fit(numbers(), table[name])
        with pytest.raises(DataError, match="groups are missing"):
            regressor(cv=2).fit(numbers(), numbers()[:, 0], groups=table[name])


# ------------------------------------------------------------------------------------------------- hardly any rows


@pytest.mark.filterwarnings("ignore:8 rows were given:fathomless.system.errors.DataWarning")
@pytest.mark.slow
def test_intervals_of_eight_rows_hold_more_than_those_of_a_network_that_saw_them_all() -> None:
    r = np.random.default_rng(800)
    X, new = r.normal(size=(8, 2)), r.normal(size=(200, 2))
    y, truth = X[:, 0] + 0.3 * r.normal(size=8), new[:, 0] + 0.3 * r.normal(size=200)

    def held(cv: str | int) -> float:
        low, high = UnboundedDepthRegressor(cv=cv, random_state=0).fit(X, y).predict_interval(new)
        return float(((low <= truth) & (truth <= high)).mean())

    assert held("auto") > max(0.6, held(1) + 0.1)


def test_hardly_any_rows_are_told_by_every_kind_of_estimator() -> None:
    X, y = numbers(8), numbers(8)[:, 0]
    for fit in (
        lambda: regressor().fit(X, y),
        lambda: classifier().fit(X, ["a", "b"] * 4),
        lambda: IndianChefsDensity(sweeps=4, states=2, chains=2, engine="numpy", random_state=0).fit(numbers(10)),
    ):
        with pytest.warns(
            DataWarning, match="rows were given; fewer than 12 are too few to estimate prediction errors"
        ):
            fit()
    with pytest.warns(DataWarning, match="1 row was given"):
        regressor().fit(X[:1], y[:1])
    regressor().fit(X, y, sample_weight=np.full(8, 2.0))  # sixteen rows


# ----------------------------------------------------------------------------------------------------- sentinels


def spoiled(rows: int = 60) -> tuple[pd.DataFrame, Any]:
    table = pd.DataFrame(np.random.default_rng(2).uniform(-2, 2, (rows, 2)), columns=["a", "b"])
    y = table["a"].to_numpy(copy=True)
    table.loc[[4, 9], "a"] = -999.0
    return table, y


EVERY = [name for family in BUILT_IN for name in family.estimators if name.endswith("Regressor")]


@pytest.mark.parametrize("name", EVERY)
def test_every_family_tells_of_a_code_and_scales_by_the_other_cells(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table, y = spoiled()
    estimator = getattr(fathomless, name)(random_state=0)

    class Prepared(Exception):
        pass

    def stop(self: Any, prepared: Any, session: Any) -> Any:
        raise Prepared(prepared)

    monkeypatch.setattr(type(estimator), "_infer", stop)
    with pytest.warns(DataWarning, match="column 'a' is -999 in 2 of 60 rows"), pytest.raises(Prepared) as seen:
        estimator.fit(table, y)
    prepared = seen.value.args[0]
    rows = prepared.train.x if prepared.valid is None else np.concatenate([prepared.train.x, prepared.valid.x])
    assert np.abs(np.asarray(rows)).max() < 10.0  # in standard deviations of the other cells
    assert prepared.schema.columns[0].scale == pytest.approx(np.delete(y, [4, 9]).std())


def test_a_code_costs_little() -> None:
    table, y = spoiled(200)
    new = np.random.default_rng(3).uniform(-2, 2, (300, 2))
    make = lambda: regressor(width=16, epochs=150)  # noqa: E731
    with pytest.warns(DataWarning, match="column 'a'"):
        told = make().fit(table, y)
    error = np.sqrt(np.mean((told.predict(pd.DataFrame(new, columns=["a", "b"])) - new[:, 0]) ** 2))
    assert error < 0.4  # a constant has 1.15


def test_the_exported_module_knows_the_limits() -> None:
    table, y = spoiled()
    with pytest.warns(DataWarning, match="column 'a'"):
        fitted = regressor().fit(table, y)
    module = fitted.to_module()
    import torch

    said = module(torch.as_tensor(fitted.to_numbers(table)))["mean"]
    np.testing.assert_allclose(said.numpy(), fitted.predict(table), rtol=1e-6)


def test_densities_are_told_and_keep_their_scale() -> None:
    table, _ = spoiled()
    make = IndianChefsDensity(sweeps=4, states=2, chains=2, engine="numpy", random_state=0)
    with pytest.warns(DataWarning, match="^column 'a' is -999 in 2 of 60 rows.*drop these rows"):
        fitted = make.fit(table)
    assert fitted.target_.scale[0] == pytest.approx(table["a"].std(ddof=0))
    assert fitted.schema_.columns[0].limits is None


# ------------------------------------------------------------------------------------------------------- weights


@pytest.mark.parametrize("make", [np.array, list, pd.Series, pl.Series, lambda v: pa.chunked_array([v])])
def test_weights_of_any_kind_are_read(make: Any) -> None:
    given = make([0.5, 2.0, 1.0])
    assert np.array_equal(read_weight(given), [0.5, 2.0, 1.0])
    assert np.array_equal(read_weight(make([True, False])), [1.0, 0.0])
    assert read_weight(2.0) == 2.0


def test_weights_that_are_no_numbers_are_refused() -> None:
    for given in (["a", "b"], pd.Series(["a", "b"]), [(1, 2), 3]):
        with pytest.raises(DataError, match="sample_weight"):
            read_weight(given)
    with pytest.raises(DataError, match=r"sample_weight contains NaN\. It is missing in 1 of 2 rows"):
        read_weight([1.0, None])


def test_weights_that_make_rows_count_as_few_are_told() -> None:
    X, y = numbers(), numbers()[:, 0]
    few = "sample_weight sums to 1, so that 20 rows count as 1 .* have little influence.*multiply them by 20,"
    with pytest.warns(DataWarning, match=few):
        regressor().fit(X, y, sample_weight=np.full(20, 1 / 20))
    with pytest.warns(DataWarning, match=few):
        regressor().partial_fit(X, y, sample_weight=np.full(20, 1 / 20))
    with pytest.warns(DataWarning, match="sample_weight sums to 300, so that 20 rows count as 300"):
        regressor().fit(X, y, sample_weight=np.r_[np.full(10, 10.5), np.full(10, 19.5)])
    with pytest.warns(DataWarning, match="class_weight sums to 0.2,"):
        classifier(class_weight={"a": 0.01, "b": 0.01}).fit(X, ["a", "b"] * 10)


@pytest.mark.parametrize("weight", [1.0, 0.5, 3.0, 100.0])
def test_counts_and_moderate_weights_are_not_told(weight: float) -> None:
    regressor().fit(numbers(), numbers()[:, 0], sample_weight=np.full(20, weight))
    regressor().fit(numbers(), numbers()[:, 0], sample_weight=np.r_[0.0, np.full(19, weight)])


# -------------------------------------------------------------------------------------------------------- groups


ALIKE = np.repeat(np.arange(5), 4)


@pytest.mark.parametrize(
    "groups",
    [
        ALIKE,
        ALIKE.tolist(),
        [("site", i) for i in ALIKE],
        pd.Series([("site", i) for i in ALIKE]),
        pd.MultiIndex.from_tuples([("site", i) for i in ALIKE]),
        pl.Series([f"p{i}" for i in ALIKE]),
        pd.Series([f"p{i}" for i in ALIKE], dtype="category"),
        pa.chunked_array([[f"p{i}" for i in ALIKE]]),
        pd.Series(pd.Timestamp("2024-01-01") + pd.to_timedelta(ALIKE, unit="D")),
        [datetime.date(2024, 1, 1 + i) for i in ALIKE],
        pl.Series(ALIKE).cast(pl.Int128),
        [10**30 + int(i) for i in ALIKE],
        ALIKE % 5 == 0,
        np.array([1, "1", 2.5, ("a",), frozenset("a")], dtype=object)[ALIKE],
    ],
    ids=lambda v: type(v).__name__,
)
def test_groups_of_any_kind_hold_the_same_rows_together(groups: Any) -> None:
    found = read_groups(groups, 20)
    assert found.shape == (20,)
    expected = ALIKE % 5 == 0 if len(np.unique(found)) == 2 else ALIKE
    assert np.array_equal(found[:, None] == found, expected[:, None] == expected)


@pytest.mark.parametrize("gap", [None, nan, pd.NA, pd.NaT, np.datetime64("NaT"), np.float64("nan")], ids=str)
def test_missing_groups_are_refused_with_their_number(gap: Any) -> None:
    message = r"groups are missing \(None or NaN\) in 2 of 20 rows \(counted from 0, first: 4, 7\)"
    for groups in ([f"p{i}" for i in range(20)], [(i, 1) for i in range(20)]):
        values: list[Any] = list(groups)
        values[4] = values[7] = gap
        packed = np.empty(20, dtype=object)
        packed[:] = values
        for given in (values, packed, pd.Series(packed)):
            with pytest.raises(DataError, match=message):
                read_groups(given, 20)
    real = np.arange(20.0)
    real[[4, 7]] = nan
    with pytest.raises(DataError, match=message):
        regressor(cv=2).fit(numbers(), numbers()[:, 0], groups=real)


def test_groups_that_cannot_be_read_are_refused() -> None:
    for groups, message in (
        (np.zeros((20, 2)), r"groups has shape \(20, 2\); give one group for each of the 20 rows"),
        (np.arange(19), r"groups has shape \(19,\)"),
        (pl.LazyFrame({"g": ALIKE}), "groups is a polars LazyFrame.*collect"),
        (pd.Series([[1, 2]] * 20), "groups are of type list, which cannot be compared"),
        ([[1], [1, 2]] * 10, "groups cannot be read"),
    ):
        with pytest.raises(DataError, match=message):
            regressor(cv=2).fit(numbers(), numbers()[:, 0], groups=groups)


# --------------------------------------------------------------------------------------------- labels and targets


@pytest.mark.parametrize("gap", [None, nan, pd.NA, pd.NaT], ids=str)
@pytest.mark.parametrize("make", [list, lambda v: np.array(v, dtype=object), lambda v: pd.Series(v, dtype=object)])
def test_a_class_called_none_is_refused_and_never_lost(gap: Any, make: Any) -> None:
    labels = ["Mild", "Severe", gap, "Mild"] * 5
    refused("Labels are missing in 5 of 20 rows.*use a label such as 'none'", numbers(), make(labels), make=classifier)
    fitted = classifier().fit(numbers(), ["Mild", "Severe", "None", "Mild"] * 5)
    assert fitted.classes_.tolist() == ["Mild", "None", "Severe"]
    with pytest.raises(DataError, match="Labels are missing"):
        evaluate(fitted, numbers(), make(labels), name="new rows", targets=["y"])


def test_targets_with_gaps_of_objects_are_refused() -> None:
    for gap in (None, pd.NA, nan):
        refused("Input y contains NaN. It is in 1 of 20 rows", numbers(), [gap, *range(19)])


# ---------------------------------------------------------------------------------------------------- odd tables


def test_tables_of_other_kinds_are_refused_with_the_way_out() -> None:
    rows = [{"x": float(i)} for i in range(20)]
    y = np.arange(20.0)
    for X, message in (
        (rows, r"X is a list of dicts; convert it to a data frame with pandas\.DataFrame\(X\)"),
        (tuple(rows), "X is a tuple of dicts"),
        ({"x": y.tolist()}, "X is a dict; convert it to a data frame"),
        (pl.LazyFrame({"x": y}), r"X is a polars LazyFrame, which is not computed yet; call collect\(\)"),
        (np.array([(1.0, 2.0)] * 20, dtype=[("a", "f8"), ("b", "f8")]), "X is a structured array with the fields a, b"),
        (pd.DataFrame(np.ones((20, 2)), columns=["a", "a"]), "X has repeated column names; rename them"),
        (pa.table([y, y], names=["a", "a"]), "column names"),
        ([[10**400, 1.0]] * 20, "X has an integer of more than 308 digits"),
        (pd.DataFrame({1: y, "b": y}), r"your input has \['int', 'str'\].*X.columns.astype\(str\)"),
    ):
        refused(message, X, y, kind=DataError)
    refused("arrays must be numeric", [[{1}, 1.0]] * 20, y, kind=TypeError)  # as scikit-learn's checks ask
    fitted = regressor().fit(pd.DataFrame({"a": y}), y)
    with pytest.raises(DataError, match="X has repeated column names"):
        fitted.predict(pd.DataFrame(np.ones((20, 2)), columns=["a", "a"]))
    with pytest.raises(DataError, match="X is a polars LazyFrame"):
        fitted.predict(pl.LazyFrame({"a": y}))
    with pytest.raises(DataError, match="y is a polars LazyFrame"):
        regressor().fit(numbers(), pl.LazyFrame({"y": y}))
    with pytest.raises(DataError, match="sample_weight is a polars LazyFrame"):
        regressor().fit(numbers(), y, sample_weight=pl.LazyFrame({"w": y}))
    with pytest.raises(DataError, match="X has repeated column names"):
        IndianChefsDensity().fit(pd.DataFrame(np.ones((20, 2)), columns=["a", "a"]))
    with pytest.raises(DataError, match="y has repeated column names"):
        regressor().fit(numbers(), pd.DataFrame(np.ones((20, 2)), columns=["a", "a"]))


@pytest.mark.filterwarnings("ignore:column 'never' ha")
@pytest.mark.parametrize("make", [regressor, classifier])
def test_a_column_without_values_changes_nothing(make: Any, tmp_path: Path) -> None:
    X = pd.DataFrame({"never": [np.nan] * 40, "a": np.arange(40.0), "b": ["u", "v"] * 20})
    y = np.arange(40) % 2
    fitted, plain = make().fit(X, y), make().fit(X[["a", "b"]], y)
    later = X.assign(never=np.arange(40.0))
    for rows in (X, later):
        assert np.array_equal(fitted.predict(rows), plain.predict(X[["a", "b"]]))
    again = type(fitted).load(fitted.save(tmp_path / "model"))
    assert np.array_equal(again.predict(later), fitted.predict(X))
    found = importance(fitted, later, y, repeats=2)
    assert found.loss[found.columns.index("never")] == pytest.approx(0.0, abs=1e-12)
    assert len(dependence(fitted, later, "never").points) == 1
    module = fitted.to_module()
    outputs = [module(torch.from_numpy(as_numbers(fitted.schema_, rows))) for rows in (X, later)]
    assert all(torch.equal(value, outputs[1][name]) for name, value in outputs[0].items())
    assert "no values" in fathomless.report(fitted, X, y)._repr_html_()


def test_folds_of_a_time_series_may_have_columns_without_values() -> None:
    X = pd.DataFrame({"old": np.arange(40.0), "new": [np.nan] * 20 + list(range(20))})
    with pytest.warns(DataWarning, match="'new' ha.*no values in the training data"):
        scores = cross_val_score(regressor(), X, np.arange(40.0), cv=TimeSeriesSplit(2))
    assert np.isfinite(scores).all()


def test_numbers_of_128_bits_are_numbers() -> None:
    wide = pl.DataFrame({"x": pl.Series([None, *range(19)]).cast(pl.Int128)})
    narrow = pl.DataFrame({"x": pl.Series([None, *range(19)])})
    y = numbers()[:, 0]
    ours, theirs = regressor().fit(wide, y), regressor().fit(narrow, y)
    assert ours.schema_ == theirs.schema_
    assert np.array_equal(ours.predict(wide), theirs.predict(narrow))
    target, labels = (pl.Series(values).cast(pl.Int128) for values in (range(20), [0, 1] * 10))
    assert regressor().fit(numbers(), target).target_.mean == (9.5,)
    assert classifier().fit(numbers(), labels).classes_.tolist() == [0, 1]


def test_dates_of_numpy_in_a_column_of_objects_are_dates() -> None:
    days = [np.datetime64("2024-01-01") + i for i in range(19)]
    table = pd.DataFrame({"day": pd.Series([*days, None], dtype=object)})
    fitted = regressor().fit(table, numbers()[:, 0])
    column = fitted.schema_.columns[0]
    assert (column.kind, column.gaps, column.center) == ("date", True, 19732.0)


BIG = 2**60


@pytest.mark.parametrize(
    "column",
    [
        pd.Series([BIG + i for i in range(20)]),
        pd.Series([BIG + i for i in range(19)] + [None], dtype="Int64"),
        pd.Series([10**30 + i for i in range(20)], dtype=object),
        pl.Series([BIG + i for i in range(20)]),
        pl.Series([BIG + i for i in range(19)] + [None]),
        pl.Series([2**100 + i for i in range(20)], dtype=pl.Int128),
        pa.array([BIG + i for i in range(20)]),
        pa.array([BIG + i for i in range(19)] + [None]),
    ],
    ids=lambda v: f"{type(v).__module__.partition('.')[0]}-{v.dtype if not isinstance(v, pa.Array) else v.type}",
)
def test_whole_numbers_that_become_equal_are_told(column: Any) -> None:
    make = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}[
        type(column).__module__.partition(".")[0]
    ]
    table = make({"id": column, "x": numbers()[:, 0]})
    with pytest.warns(DataWarning, match=r"column 'id' has integers beyond 2\^53, such as \d+: its (19|20) distinct"):
        regressor().fit(table, numbers()[:, 0])


@pytest.mark.filterwarnings("ignore:y has the value:fathomless.system.errors.DataWarning")
def test_whole_numbers_that_stay_apart_are_not_told() -> None:
    apart = pd.DataFrame({"id": [i * 2**55 for i in range(20)], "near": [2**53 - i for i in range(20)]})
    assert np.isfinite(regressor().fit(apart, numbers()[:, 0]).predict(apart)).all()
    with pytest.warns(DataWarning, match="column 'x0' has integers beyond"):
        regressor().fit(np.array([[BIG + i, i] for i in range(20)]), numbers()[:, 0])
    with pytest.warns(DataWarning, match="column 'y' has integers beyond"):
        regressor().fit(numbers(), np.array([BIG + i for i in range(20)]))


def test_huge_whole_numbers_are_refused_by_the_name_of_their_column() -> None:
    huge = pd.DataFrame({"size": pd.Series([10**400 + i for i in range(20)], dtype=object)})
    refused("column 'size' has an integer of more than 308 digits in row 0", huge, numbers()[:, 0], kind=DataError)
    refused("column 'y' has an integer of more than 308 digits", numbers(), [10**400] * 20, kind=DataError)


def test_classes_beyond_64_bits_are_refused_and_those_within_are_kept() -> None:
    refused("y holds the class 1267650600228229401496703205377", numbers(), [2**100, 2**100 + 1] * 10, make=classifier)
    refused("y holds the class 9223372036854775809", numbers(), [2**63 + 1, -1] * 10, make=classifier)
    kept = classifier().fit(numbers(), [BIG, BIG + 1] * 10)
    assert kept.classes_.tolist() == [BIG, BIG + 1]
