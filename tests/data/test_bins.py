"""Further features of columns of numbers: bounded copies, indicators of frequent values, and bins."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fathomless import FiniteNetworkClassifier, SparseBayesRegressor, UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.data import streams
from fathomless.data.bins import BIN_SCALE, Bins, BinsOfColumns, choose_bin_count, fit_bins
from fathomless.data.frames import encode, fit_schema
from fathomless.data.schema import Schema
from fathomless.data.targets import TargetScale
from fathomless.estimators.encoding import BinsDefault, ColumnOptions
from fathomless.estimators.importance import dependence, importance
from fathomless.nn.architectures import Architecture
from fathomless.system.errors import DataError


def with_mass(rows: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(rows) < 0.7, 0.0, rng.exponential(size=rows))


def fitted(values: Any, weight: Any = None, count: int = 8) -> Bins:
    found = fit_bins(np.asarray(values, dtype=np.float64), weight, count)
    assert found is not None
    return found


@given(
    st.lists(st.floats(-1e6, 1e6).map(lambda v: round(v, 3)), min_size=5, max_size=60).filter(
        lambda v: len(set(v)) > 3
    ),
    st.integers(4, 16),
    st.lists(st.floats(-2e6, 2e6), min_size=1, max_size=20),
)
def test_bins_add_up_to_the_clipped_value(values: list[float], count: int, new: list[float]) -> None:
    bins = fitted(values, count=count)
    assert bins.is_valid()
    assert (bins.knots[0], bins.knots[-1]) == (min(values), max(values))
    assert len(bins.knots) <= count + 1
    features = bins.encode(np.array(new))
    spikes = len(bins.spikes)
    inside = features[:, 1 + spikes :] / BIN_SCALE + np.array(bins.means[spikes:])
    total = bins.knots[0] + inside @ np.diff(bins.knots)
    np.testing.assert_allclose(total, np.clip(new, min(values), max(values)), rtol=1e-9, atol=1e-6)
    assert (np.abs(features[:, 0]) <= 3.0).all()
    np.testing.assert_allclose(bins.encode(np.array(values))[:, 1:].mean(0), 0.0, atol=1e-9)


def test_few_values_are_all_knots() -> None:
    assert fitted([3.0, 1.0, 2.0, 5.0, 5.0]).knots == (1.0, 2.0, 3.0, 5.0)
    assert fit_bins(np.array([1.0, 2.0, 3.0, 1.0]), None, 8) is None


def test_a_mass_takes_few_of_the_knots() -> None:
    values = with_mass(2000)
    bins = fitted(values)
    plain = np.unique(np.quantile(values, np.linspace(0.0, 1.0, 9)))
    assert len(plain) <= 4  # of nine quantiles
    assert len(bins.knots) >= 8
    counts = np.histogram(values, bins.knots)[0]
    assert counts[1:].max() < 200  # the other values are spread over the bins


def test_frequent_values_are_found() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([np.zeros(300), np.full(60, 2.0), rng.normal(size=1000)])
    assert fitted(values).spikes == (0.0, 2.0)
    assert fitted(rng.integers(0, 20, 2000)).spikes == ()  # equally frequent
    assert fitted(np.round(rng.normal(size=3000), 1)).spikes == ()  # no value is far above its neighbours
    many = np.concatenate([np.repeat(np.arange(30.0), 40), rng.uniform(0, 30, 2000)])
    assert len(fitted(many).spikes) == 12


def test_the_scale_without_an_interquartile_range_is_that_of_the_other_values() -> None:
    values = np.concatenate([np.zeros(80), [1.0, 2.0, 3.0, 4.0, 5.0]])
    bins = fitted(values)
    assert (bins.median, bins.spread) == (0.0, 3.0)
    assert bins.encode(np.array([0.0, 1e300]))[:, 0].tolist() == [0.0, pytest.approx(3.0)]


def test_weights_are_repetitions_and_the_order_has_no_effect() -> None:
    rng = np.random.default_rng(1)
    values = np.round(with_mass(300, 1), 2)
    weight = rng.integers(1, 4, 300)
    repeated = np.repeat(values, weight)
    expected = fitted(repeated)
    for found in (fitted(values, weight.astype(float)), fitted(rng.permutation(repeated))):
        assert (found.knots, found.spikes, found.median) == (expected.knots, expected.spikes, expected.median)
        np.testing.assert_allclose(found.means, expected.means, rtol=1e-12, atol=1e-15)


def test_the_number_of_bins_decreases_with_the_number_of_columns() -> None:
    assert [choose_bin_count(columns) for columns in (0, 1, 16, 20, 57, 500)] == [16, 16, 16, 12, 4, 4]


def table(rows: int = 240, seed: int = 0) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(
        {
            "amount": with_mass(rows, seed),
            "size": rng.normal(size=rows),
            "few": rng.integers(0, 3, rows),
            "kind": rng.choice(["u", "v"], rows),
        }
    )
    X.loc[3, "size"] = np.nan
    y = 2.0 * (X["amount"] == 0.0) + (X["amount"] > 1.0) + 0.2 * rng.normal(size=rows)
    return X, y.to_numpy()


def test_a_column_stays_one_column() -> None:
    schema = fit_schema(table()[0], numbers="binned")
    by_name = {column.name: column for column in schema.columns}
    assert by_name["few"].bins is None
    assert by_name["kind"].bins is None
    assert by_name["amount"].features[:3] == ("amount", "amount (bounded)", "amount = 0.0")
    assert by_name["size"].features[-1] == "size is missing"
    assert len(set(schema.encoded_names)) == schema.width
    plain = fit_schema(table()[0])
    assert schema.plain == plain
    first = [schema.encoded_names.index(name) for name in plain.encoded_names]
    assert np.array_equal(encode(schema, table()[0])[:, first], encode(plain, table()[0]))


def test_columns_are_encoded_at_once_as_one_by_one() -> None:
    rng = np.random.default_rng(0)
    columns = [with_mass(400), rng.normal(size=400), np.zeros(400), np.repeat([1.0, 2.0, 3.0, 9.0], 100)]
    bins = [fit_bins(column, None, 6) for column in columns]
    assert [each is None for each in bins] == [False, False, True, False]
    values = np.stack([rng.permutation(column) for column in columns], 1)
    table = BinsOfColumns(bins)
    expected = [each.encode(values[:, i]) for i, each in enumerate(bins) if each is not None]
    np.testing.assert_array_equal(table.encode(values), np.concatenate(expected, 1))
    np.testing.assert_array_equal(table.column, np.repeat([0, 1, 3], [each.shape[1] for each in expected]))
    found = bins[0]
    assert found is not None
    direct = [(values[:, 0] - found.median) / found.spread]
    direct = [direct[0] / np.sqrt(1.0 + direct[0] ** 2 / 9.0)]
    direct += [(values[:, 0] == v) - m for v, m in zip(found.spikes, found.means, strict=False)]
    limits = zip(found.knots, found.knots[1:], found.means[len(found.spikes) :], strict=False)
    direct += [BIN_SCALE * (np.clip((values[:, 0] - a) / (b - a), 0.0, 1.0) - m) for a, b, m in limits]
    np.testing.assert_allclose(expected[0], np.stack(direct, 1), rtol=1e-12, atol=1e-15)
    assert BinsOfColumns([None]).encode(values[:, :1]).shape == (400, 0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("numbers", ["plain", "binned"])
def test_arrays_and_data_frames_have_the_same_features(numbers: str) -> None:
    rng = np.random.default_rng(1)
    X = np.column_stack([with_mass(3000), rng.normal(size=3000), rng.integers(0, 2, 3000)])
    X[0, 1] = 1e7  # limits the column
    training = X.copy()
    training[::9, 0] = np.nan  # the column has an indicator of missing values
    names = list("abc")
    schema = fit_schema(pd.DataFrame(training, columns=names), numbers=numbers)
    of_frame = encode(schema, pd.DataFrame(X, columns=names))
    np.testing.assert_array_equal(encode(schema, X), of_frame)  # all columns at once, in blocks of rows
    far = X.copy()
    far[1500, 2] = 1e308
    schema = fit_schema(pd.DataFrame(X * [1.0, 1.0, 1e-3], columns=names), numbers=numbers)
    for wrong in (far, pd.DataFrame(far, columns=names)):
        with pytest.raises(DataError, match=r"column 'c' has values too far .*1 of 3000 rows .*first: 1500"):
            encode(schema, wrong)


def test_a_schema_with_bins_is_saved_and_an_altered_one_is_refused() -> None:
    schema = fit_schema(table()[0], numbers="binned")
    saved = json.dumps(schema.to_json())
    assert Schema.from_json(json.loads(saved)) == schema
    for name, value in {"knots": [1.0], "spread": 0.0, "means": [0.5], "spikes": [2.0, 1.0]}.items():
        altered = json.loads(saved)
        altered["columns"][0]["bins"][name] = value
        with pytest.raises(DataError, match="altered"):
            Schema.from_json(altered)
    altered = json.loads(saved)
    del altered["columns"][0]["bins"]["knots"]
    with pytest.raises(DataError, match="bins of a column"):
        Schema.from_json(altered)


def test_outliers_are_outside_the_bins() -> None:
    X = table()[0]
    X.loc[:1, "size"] = -99_999.0
    with pytest.warns(UserWarning, match="outliers"):
        schema = fit_schema(X, numbers="binned")
    bins = schema.columns[1].bins
    assert bins is not None
    assert bins.knots[0] > -5.0
    far, least = (encode(schema, X.assign(size=value)) for value in (-99_999.0, bins.knots[0]))
    assert np.array_equal(far[:, -20:-4], least[:, -20:-4])  # bins are constant below their first knot


def test_streams_have_the_bins_of_tables_in_memory(tmp_path: Path) -> None:
    X, y = table(400)
    frame = pa.table({**{name: X[name] for name in X}, "y": y})
    for i in range(2):
        pq.write_table(frame.slice(200 * i, 200), tmp_path / f"{i}.parquet")
    source = streams.parquet([tmp_path / "0.parquet", tmp_path / "1.parquet"], "y")
    schema, _ = streams.learn(source, TargetScale, numbers="binned")
    expected = fit_schema(X, numbers="binned")
    assert [column.bins for column in schema.columns] == [column.bins for column in expected.columns]


QUICK: dict[str, Any] = {"epochs": 40, "cv": 3, "width": 8, "random_state": 0, "numbers": "binned"}


@pytest.fixture(scope="module")
def estimator() -> UnboundedDepthRegressor:
    return UnboundedDepthRegressor(**{**QUICK, "epochs": 80}).fit(*table())


def test_estimators_are_saved_and_exported_with_bins(estimator: UnboundedDepthRegressor, tmp_path: Path) -> None:
    X, _ = table(60, 1)
    again = UnboundedDepthRegressor.load(estimator.save(tmp_path / "saved"))
    assert np.array_equal(again.predict(X), estimator.predict(X))
    out = estimator.to_module()(torch.as_tensor(estimator.to_numbers(X)))
    np.testing.assert_allclose(out["mean"].numpy(), estimator.predict(X), rtol=1e-5, atol=1e-5)
    assert estimator.export(tmp_path / "model.onnx").difference < 1e-4


def test_initial_weights_of_bins_are_zero() -> None:
    """With a learning rate near 0, the fitted weights are the initial ones."""
    X, y = table(400)
    options: dict[str, Any] = {"epochs": 1, "learning_rate": 1e-9, "cv": 1, "width": 512, "random_state": 0}
    weights = {}
    heads = {}
    for numbers in ("plain", "binned"):
        found = UnboundedDepthRegressor(
            numbers=numbers, weight_prior=1.0, recalibrate=False, min_depth=0, **options
        ).fit(X, y)
        weights[numbers] = found.model_.first_weight()
        heads[numbers] = found.model_.heads["0"].weight.detach()
        schema = found.schema_
    plain, further = (list(features) for features in (schema.plain_features, schema.further_features))
    assert sorted(plain + further) == list(range(schema.width))
    assert schema.plain.encoded_names == tuple(schema.encoded_names[i] for i in plain)
    for of_layer in (weights["binned"], heads["binned"]):
        assert of_layer[:, further].abs().max() < 1e-6
        assert of_layer[:, plain].abs().min() > 0.0
    expected = float(weights["plain"].std()) * (len(plain) / schema.width) ** 0.5  # sqrt(2 / D) for D features
    assert weights["binned"][:, plain].std() == pytest.approx(expected, rel=0.1)


class FirstTwo(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[..., :2]


class OfTwo(Architecture):
    """A first layer whose linear map has other inputs than the table."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs = inputs, outputs

    def layer(self, depth: int) -> nn.Module:
        parts = [FirstTwo(), nn.Linear(2, 4)] if depth == 1 else [nn.Linear(4, 4)]
        return nn.Sequential(*parts, nn.ReLU(inplace=True))

    def head(self, depth: int) -> nn.Module:
        return nn.Linear(4 if depth else self.inputs, self.outputs)


@pytest.mark.filterwarnings("ignore")
def test_maps_of_other_features_keep_their_initial_weights() -> None:
    X, y = table(100)
    found = UnboundedDepthRegressor(
        architecture=OfTwo, numbers="binned", epochs=1, learning_rate=1e-9, cv=2, min_depth=1, random_state=0
    ).fit(X, y)
    for member in found.model_.members:
        assert bool((member.layers["1"][1].weight != 0.0).all())
    array = X.select_dtypes("number").fillna(0.0).to_numpy()
    other = UnboundedDepthRegressor(epochs=1, cv=2, random_state=0).fit(array, y)
    np.testing.assert_array_equal(other.predict(np.matrix(array)), other.predict(array))


def test_importance_and_dependence_are_of_columns(estimator: UnboundedDepthRegressor) -> None:
    X, y = table(200, 2)
    found = importance(estimator, X, y)
    assert set(found.columns) == set(X)
    assert found.columns[0] == "amount"
    curve = dependence(estimator, X, "amount", points=9)
    assert curve.points[0] == 0.0
    assert curve.mean[0, 0] > curve.mean[1, 0] + 0.4  # the mass at zero


@pytest.mark.parametrize("task", ["numbers", "classes"])
def test_a_planted_mass_and_step_are_learned_better(task: str) -> None:
    X, y = table(400, 3)
    new_X, new_y = table(2000, 4)
    kind: Any = UnboundedDepthRegressor
    if task == "classes":
        kind, y, new_y = UnboundedDepthClassifier, y > 1.0, new_y > 1.0
    scores = {}
    for numbers in ("plain", "binned"):
        fit = kind(**{**QUICK, "numbers": numbers}).fit(X, y)
        scores[numbers] = float(np.asarray(fit.predict_dist(new_X).log_prob(new_y)).mean())
    assert scores["binned"] > scores["plain"] + 0.03


@pytest.mark.filterwarnings("ignore:inclusion logits")
def test_other_families_have_bins_too() -> None:
    fit = SparseBayesRegressor(epochs=5, width=4, random_state=0, numbers="binned").fit(*table())
    assert fit.schema_.width > 20
    assert set(fit.feature_relevance()) == set(table()[0])


AUTOMATIC: list[tuple[Any, dict[str, Any], int, bool]] = [
    (UnboundedDepthClassifier, {}, 500, True),
    (UnboundedDepthClassifier, {"cv": 1}, 499, False),
    (UnboundedDepthClassifier, {"numbers": "plain"}, 500, False),
    (UnboundedDepthClassifier, {"architecture": "transformer", "width": 8}, 500, False),
    (UnboundedDepthClassifier, {"weights": "meanfield"}, 500, False),
    (UnboundedDepthRegressor, {}, 2000, True),
    (UnboundedDepthRegressor, {}, 1999, False),
    (FiniteNetworkClassifier, {}, 500, False),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "options", "rows", "binned"), AUTOMATIC, ids=str)
def test_the_default_has_bins_for_classes_of_enough_rows(
    kind: Any, options: dict[str, Any], rows: int, binned: bool
) -> None:
    X, y = table(rows)
    target = y if kind is UnboundedDepthRegressor else y > 1.0
    fit = kind(
        **{"epochs": 1, "cv": 1, "width": 4, "random_state": 0, "recalibrate": False, **options}
        if kind is UnboundedDepthRegressor
        else {"epochs": 1, "width": 4, "random_state": 0, **options}
    )
    fit.fit(X, target)
    assert any(column.bins for column in fit.schema_.columns) == binned


def test_the_default_of_wide_tables_is_plain() -> None:
    options = ColumnOptions(bins=BinsDefault(classes=500, numbers=2000, options={}))
    assert options.choose_numbers(600, 120, classes=True) == "binned"
    assert options.choose_numbers(600, 121, classes=True) == "plain"
    assert options.choose_numbers(1999, 3, classes=False) == "plain"
    assert ColumnOptions(numbers="binned").choose_numbers(10, 100, classes=False) == "binned"


def test_unseen_rows_choose_the_encoding_of_smaller_and_of_wide_tables() -> None:
    options = ColumnOptions(bins=BinsDefault(classes=500, numbers=2000, options={}))
    assert options.compares_numbers(1999, 3, classes=False)
    assert not options.compares_numbers(2000, 3, classes=False)
    assert options.compares_numbers(499, 3, classes=True)
    assert not options.compares_numbers(500, 3, classes=True)
    assert options.compares_numbers(100, 20, classes=False)
    assert options.compares_numbers(2499, 50, classes=False)  # fewer than 50 rows for each column
    assert not options.compares_numbers(2500, 50, classes=False)
    assert not options.compares_numbers(99, 3, classes=False)
    assert not options.compares_numbers(199, 40, classes=False)
    assert not ColumnOptions(numbers="plain", bins=options.bins).compares_numbers(300, 3, classes=False)
    assert not ColumnOptions().compares_numbers(300, 3, classes=False)


def test_an_unknown_encoding_is_refused() -> None:
    with pytest.raises(DataError, match="numbers="):
        UnboundedDepthRegressor(numbers="bins").fit(*table())
    with pytest.raises(DataError, match="numbers is 'bins'; allowed are 'plain', 'binned'"):
        fit_schema(table()[0], numbers="bins")
    column = fit_schema(table()[0]).columns[3]
    with pytest.raises(DataError, match="altered"):
        Schema.from_json(Schema((replace(column, bins=fitted(with_mass(50))),), True).to_json())
