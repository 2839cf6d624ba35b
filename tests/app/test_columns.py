"""What is predicted, what predicts, and what a prediction looks like as a table."""

import datetime
import decimal
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fathomless.app.commands import columns
from fathomless.data.schema import Schema
from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.system.errors import DataError

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

N = 30
RNG = np.random.default_rng(0)


def frame(**more: Any) -> pa.Table:
    table = {"id": [f"r{i}" for i in range(N)], "size": RNG.normal(size=N), "price": np.arange(N) / 4, **more}
    return pa.table({name: pa.array(values) for name, values in table.items()})


# ------------------------------------------------------------------------------------------------ dividing


def test_every_column_has_one_role() -> None:
    table = frame(count=[1.0] * N, junk=[2] * N)
    parts = columns.divide(table, ["price"], key="id", weight="count", drop=["junk"])
    assert parts.X.column_names == ["size"]
    assert parts.targets.column_names == ["price"]
    assert parts.weight is not None
    assert parts.weight.tolist() == [1.0] * N
    assert parts.notes == ()


def test_a_column_may_be_dropped_twice() -> None:
    assert columns.divide(frame(), ["price"], drop=["id", "id"]).X.column_names == ["size"]


@pytest.mark.parametrize(
    "roles",
    [
        {"targets": ["price", "price"]},
        {"targets": ["price"], "key": "price"},
        {"targets": ["price"], "weight": "price"},
        {"targets": ["price"], "drop": ["price"]},
        {"targets": ["size"], "key": "price", "weight": "price"},
        {"targets": ["size"], "key": "price", "drop": ["price"]},
    ],
    ids=str,
)
def test_a_column_with_two_roles_is_refused(roles: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="column 'price' was given two roles; a column is a target, a key, a weight, a"):
        columns.divide(frame(), **roles)


@pytest.mark.parametrize("role", ["targets", "key", "weight", "drop"])
def test_a_column_that_is_not_there_is_refused_with_the_one_that_was_perhaps_meant(role: str) -> None:
    roles: dict[str, Any] = {"targets": ["price"], role: "sise" if role in ("key", "weight") else ["sise"]}
    with pytest.raises(
        DataError, match=r"there is no column 'sise'; did you mean 'size'\? The columns are 'id', 'size', 'price'$"
    ):
        columns.divide(frame(), **roles)


def test_a_column_that_is_like_no_other_is_refused_with_all_of_them() -> None:
    with pytest.raises(DataError, match=r"there is no column 'zzz'\. The columns are 'id', 'size', 'price'$"):
        columns.divide(frame(), ["zzz"])


def test_rows_without_a_target_are_left_out_with_their_weights_and_it_is_said() -> None:
    price = [None if i < 2 else float(i) for i in range(N)]
    other = [float("nan") if i == 5 else float(i) for i in range(N)]
    parts = columns.divide(frame(price=price, other=other, w=np.arange(N)), ["price", "other"], key="id", weight="w")
    kept = [i for i in range(N) if i not in (0, 1, 5)]
    assert parts.targets["price"].to_pylist() == kept
    assert parts.weight is not None
    assert parts.weight.tolist() == kept
    assert parts.X.num_rows == len(kept)
    assert parts.notes == ("3 rows without a target were left out",)


def test_rows_of_the_weight_zero_are_left_out_and_it_is_said() -> None:
    parts = columns.divide(frame(w=[0.0, 0.5, 2.0] * (N // 3)), ["price"], weight="w", key="id")
    assert parts.weight is not None
    assert parts.weight.tolist() == [0.5, 2.0] * (N // 3)
    assert parts.targets["price"].to_pylist() == [i / 4 for i in range(N) if i % 3]
    assert len(parts.X) == 2 * N // 3
    assert parts.notes == ("10 rows of the weight 0 were left out",)


def test_one_row_is_one_row() -> None:
    parts = columns.divide(frame(price=[None, *range(N - 1)]), ["price"], keep=["id"])
    assert parts.notes == ("1 row without a target was left out",)


def test_numbers_that_a_few_words_make_categories_are_named() -> None:
    cells = [f"{i},5" for i in range(N - 2)] + ["k.A.", "100 m²"]
    parts = columns.divide(frame(area=cells), ["price"], keep=["id"])
    assert parts.notes == (
        "categorical, although most cells are numbers (correct the other cells, leave them empty, or name their "
        "words with --na; --keep COLUMN confirms it): 'area', for 'k.A.' in row 29, '100 m²' in row 30",
    )
    few = ["1", "2", "3+"] * (N // 3)
    for meant in (
        columns.divide(frame(area=cells), ["price"], keep=["id", "area"]),
        columns.divide(frame(area=few), ["price"], keep=["id"]),
    ):
        assert not meant.notes


def test_a_table_without_rows_is_refused_as_such() -> None:
    with pytest.raises(DataError, match="the table has column names and no rows"):
        columns.divide(frame().slice(0, 0), ["price"])


@pytest.mark.parametrize("gaps", [[None] * N, [float("nan")] * N], ids=["null", "nan"])
def test_a_target_without_any_value_is_refused(gaps: list[Any]) -> None:
    with pytest.raises(DataError, match="target 'price' has no value in any of the 30 rows; choose another column"):
        columns.divide(frame(price=gaps), ["price"])


def test_columns_without_any_value_are_left_out_and_it_is_said() -> None:
    parts = columns.divide(frame(empty=pa.nulls(N), blank=pa.nulls(N, pa.float64())), ["price"], keep=["id"])
    assert parts.X.column_names == ["id", "size"]
    assert parts.notes == ("dropped columns without any value: 'empty', 'blank'",)


def test_a_column_that_is_empty_where_the_target_is_known_is_left_out() -> None:
    only = [1.0, *[None] * (N - 1)]
    parts = columns.divide(frame(only=only, price=[None, *range(N - 1)]), ["price"], keep=["id"])
    assert parts.X.column_names == ["id", "size"]


def test_nothing_left_to_predict_from_is_refused() -> None:
    with pytest.raises(DataError, match=r"no column is left to predict 'price' from; the table has 'id', 'size', 'pri"):
        columns.divide(frame(), ["price"], drop=["id", "size"])


@pytest.mark.parametrize("name", ["id", "ID", "customer_id", "patientID", "Unnamed: 0", "index", "row", "uuid"])
def test_what_is_called_like_a_name_of_rows_and_differs_in_all_is_left_out(name: str) -> None:
    y = [float(i) for i in range(5)]
    for values in ([7, 3, 5, 1, 9], ["a", "b", "c", "d", "e"]):
        table = pa.table({name: values, "x": y, "y": y})
        assert columns.divide(table, ["y"]).X.column_names == ["x"]
        assert columns.divide(table, ["y"], keep=[name]).X.column_names == [name, "x"]
    for values in ([7, 3, 5, 1, 7], y):
        assert columns.divide(pa.table({name: values, "y": y}), ["y"]).notes == ()
    with pytest.raises(
        DataError, match="was given with --keep, and is also a target, a key, a weight, a group, censored or dropped"
    ):
        columns.divide(table, ["y"], drop=[name], keep=[name])
    with pytest.raises(DataError, match="there is no column 'absent'"):
        columns.divide(table, ["y"], keep=["absent"])


def test_columns_that_are_only_called_alike_are_kept() -> None:
    y = [float(i) for i in range(5)]
    table = pa.table({name: [7, 3, 5, 1, 9] for name in ("paid", "humid", "price_index", "bid", "grid", "number")})
    assert columns.divide(table.append_column("y", pa.array(y)), ["y"]).notes == ()


def test_a_text_that_only_names_the_rows_is_left_out() -> None:
    names = [f"house {i}" for i in range(200)]
    table = pa.table({"name": names, "kind": ["a", "b"] * 100, "y": np.arange(200.0)})
    parts = columns.divide(table, ["y"])
    assert parts.notes == ("dropped columns that look like identifiers (--keep COLUMN keeps one): 'name'",)
    assert parts.X.column_names == ["kind"]
    assert columns.divide(table, ["y"], keep=["name"]).notes == ()
    assert columns.divide(table, ["y"], key="name").notes == ()


COUNTS = [
    range(1, N + 1),
    range(1930, 1930 + N),
    range(10, 10 * N + 1, 10),
    range(-N, 0),
    np.random.default_rng(1).permutation(N),
    np.sort(np.random.default_rng(1).permutation(2 * N)[:N]),  # of a part of the customers
    np.arange(N, dtype=np.int8),
    np.arange(N, dtype=np.uint64) + 2**63,
]


@pytest.mark.parametrize("values", COUNTS, ids=lambda v: f"{v[0]} {v[1]}")
def test_whole_numbers_that_only_number_the_rows_predict_and_are_noted(values: Any) -> None:
    table = frame(kundennr=values)
    note, *more = columns.divide(table, ["price"], drop=["id"]).notes
    assert note.startswith("features that look like row numbers, because all values are different integers")
    assert [one[:7] for one in more] == ["rounded"] * int(max(values) > 2**53)
    assert note.endswith("(--drop or --key COLUMN removes one, --keep COLUMN confirms it): 'kundennr'")
    assert columns.divide(table, ["price"], drop=["id"]).X.column_names == ["size", "kundennr"]
    for choice in ({"drop": ["id", "kundennr"]}, {"drop": ["id"], "keep": ["kundennr"]}):
        assert columns.divide(table, ["price"], **choice).notes == ()
    gaps = frame(kundennr=values, price=[None, None, *range(N - 2)])  # rows that are left out make no gaps
    assert len(columns.divide(gaps, ["price"], drop=["id"]).notes) == 2 + len(more)


@pytest.mark.parametrize(
    "values",
    [
        [i * i for i in range(N)],  # a measure may grow
        [*range(N - 1), 0],
        [None, *range(1, N)],
        [float(i) for i in range(N)],
        [5] * N,
    ],
    ids=["squares", "a tie", "a gap", "not whole", "one value"],
)
def test_measures_are_not_noted(values: list[Any]) -> None:
    assert columns.divide(frame(other=values), ["price"], drop=["id"]).notes == ()


def test_a_small_table_is_too_small_to_tell_what_numbers_its_rows() -> None:
    table = pa.table({"x": range(15), "name": [f"h{i}" for i in range(15)], "y": np.arange(15.0)})
    assert columns.divide(table, ["y"]).notes == ()


def test_a_text_that_is_another_one_in_each_of_twenty_rows_is_left_out() -> None:
    names = [f"house {i}" for i in range(20)]
    table = pa.table({"name": names, "again": ["house 0", *names[:19]], "y": np.arange(20.0)})
    parts = columns.divide(table, ["y"])
    assert parts.notes == ("dropped columns that look like identifiers (--keep COLUMN keeps one): 'name'",)
    assert parts.X.column_names == ["again"]


@pytest.mark.parametrize("targets", ["size,price", "size, price"])
def test_targets_in_one_word_are_refused_with_how_to_name_them(targets: str) -> None:
    with pytest.raises(
        DataError, match=r"repeat --target for several numeric targets\. Multilabel classification is only"
    ):
        columns.divide(frame(), [targets])
    named = columns.divide(frame(**{targets: np.arange(N) / 8}), [targets], drop=["id"])  # such a name may be
    assert named.targets.column_names == [targets]


def test_names_that_look_like_values_bring_the_header_to_mind() -> None:
    for names, told in (
        (["1", "0.844", "blue", "2024-02-29"], True),
        (["1,5", "-.5e-3", "x"], True),
        (["size", "price", "2023"], False),
        (["0", "1", "2"], False),  # as pandas calls columns
    ):
        with pytest.raises(DataError, match="there is no column 'y'") as caught:
            columns.check_columns(names, ["y"])
        assert ("give --no-header" in str(caught.value)) == told


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (
            [-1.0] * N,
            r"column 'w' of sample weights has -1\.0 in 30 of 30 rows \(.*first: 0, 1, 2, 3, 4\)",
        ),
        (
            [1.0] * (N - 1) + [None],
            r"has None in 1 of 30 rows \(.*first: 29\); finite numbers, 0 or more, are allowed",
        ),
        ([1.0] * (N - 1) + [float("nan")], "has nan in 1 of 30 rows"),
        ([float("inf")] + [1.0] * (N - 1), "has inf in 1 of 30 rows"),
        ([0] * N, "column 'w' of sample weights is 0 in all 30 rows"),
        (
            ["1"] * (N - 1) + ["much"],
            "column 'w' of sample weights holds text such as 'much'; finite numbers, 0 or more",
        ),
    ],
    ids=["negative", "null", "nan", "infinite", "zero", "text"],
)
def test_weights_that_are_none_are_refused(weight: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        columns.divide(frame(w=weight), ["price"], weight="w")


# ------------------------------------------------------------------------------------------------- the task


@pytest.mark.parametrize(
    ("values", "task", "why"),
    [
        (["a", "b"], "classification", "it is text"),
        (pa.array(["a", "b"]).dictionary_encode(), "classification", "it is text"),
        (pa.array(["a", "b"], pa.large_string()), "classification", "it is text"),
        ([True, False], "classification", "it is boolean"),
        (list(range(10)) * 3, "classification", "it has 10 distinct integers"),
        (list(range(11)) * 3, "regression", "it is numeric"),
        ([1.0, 2.0], "regression", "it is numeric"),
        ([decimal.Decimal("1.5"), decimal.Decimal("2.5")], "regression", "it is numeric"),
    ],
    ids=lambda v: v if isinstance(v, str) else None,
)
def test_the_task_follows_from_the_target(values: Any, task: str, why: str) -> None:
    assert columns.infer_task(pa.table({"y": values})) == (task, why)


def test_several_targets_are_numbers() -> None:
    found = columns.infer_task(pa.table({"a": ["x", "y"], "b": [1, 2]}))
    assert found == ("regression", "there are several targets")
    found = columns.infer_task(pa.table({"a": [1, 0], "b": [1, 1]}))
    assert found[0] == "regression"
    assert found[1].endswith("with 0 and 1 as numbers (multilabel classification is only available from Python)")


@given(st.lists(st.integers(-5, 5), min_size=1), st.booleans())
def test_answers_keep_their_values_and_their_kind(values: list[int], truth: bool) -> None:
    given_: list[Any] = [value > 0 for value in values] if truth else values
    found = columns.target_array(pa.table({"y": given_}), "classification")
    assert found.tolist() == given_
    assert found.dtype.kind == ("b" if truth else "i")
    numbers = columns.target_array(pa.table({"y": values}), "regression")
    assert (numbers.dtype, numbers.tolist()) == (np.dtype(np.float64), values)


@pytest.mark.parametrize("array", [pa.array(["no", "yes"]), pa.array(["no", "yes"]).dictionary_encode()])
def test_classes_of_text_are_text(array: pa.Array) -> None:
    found = columns.target_array(pa.table({"y": array}), "classification")
    assert (found.dtype, found.tolist()) == (np.dtype(object), ["no", "yes"])


def test_several_targets_are_a_matrix_in_their_order() -> None:
    found = columns.target_array(pa.table({"b": [1, 2], "a": [0.5, 1.5]}), "regression")
    assert found.tolist() == [[1.0, 0.5], [2.0, 1.5]]


def test_whole_numbers_beyond_double_precision_are_rounded() -> None:
    found = columns.target_array(pa.table({"y": pa.array([2**63 + 5, 2**53 + 1], pa.uint64())}), "regression")
    assert found.tolist() == [2.0**63, 2.0**53]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", "b"], "column 'y' holds text such as 'a'; numbers are needed here: give --task classification"),
        ([True, False], "target 'y' holds true and false; give --task classification, or numbers such as 1 and 0"),
        (
            [datetime.date(2024, 1, 1)] * 2,
            "column 'y' holds dates such as 2024-01-01; numbers are needed here: choose another column",
        ),
        ([[1], [2]], r"column 'y' holds list<.*> such as \[1\]; numbers are needed here"),
    ],
)
def test_what_is_no_number_is_no_answer_of_a_regression(values: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        columns.target_array(pa.table({"y": values}), "regression")


@pytest.mark.parametrize(
    "values",
    [[datetime.datetime(2024, 1, 1)] * 2, [[1], [2]], [b"a", b"b"], [{"a": 1}] * 2, [1.0, float("inf")]],
    ids=["dates", "lists", "bytes", "structs", "infinity"],
)
def test_what_is_no_class_is_no_answer_of_a_classification(values: list[Any]) -> None:
    with pytest.raises(
        DataError, match=r"target 'y' holds .* such as .*; classes are text, whole numbers, or true and"
    ):
        columns.target_array(pa.table({"y": values}), "classification")


def test_a_classification_has_one_target() -> None:
    with pytest.raises(DataError, match="2 targets were given; classification is of one column"):
        columns.target_array(pa.table({"a": [1, 2], "b": [1, 2]}), "classification")


# ---------------------------------------------------------------------------------------------- predictions


def rich_frame() -> pa.Table:
    days = [datetime.date(2024, 1, 1) + datetime.timedelta(days=i) for i in range(N)]
    return pa.table(
        {
            "size": RNG.normal(size=N),
            "colour": ["red", "blue", None] * (N // 3),
            "new": [True, False] * (N // 2),
            "built": days,
            "zip": pa.array([1, 2] * (N // 2)).dictionary_encode(),
        }
    )


def regressor(y: npt.NDArray[Any], X: Any = None) -> UnboundedDepthRegressor:
    fitted = UnboundedDepthRegressor(epochs=2, width=4, random_state=0)
    return fitted.fit(rich_frame().select(["size", "colour"]) if X is None else X, y)


@pytest.fixture(scope="module")
def forecast() -> ContinuousPredictive:
    found = regressor(np.arange(N) / 2).predict_dist(rich_frame().select(["size", "colour"]))
    assert isinstance(found, ContinuousPredictive)
    return found


def classes(labels: list[Any]) -> ClassPredictive:
    X = rich_frame().select(["size", "colour"])
    y = np.array([labels[i % len(labels)] for i in range(N)])
    found = UnboundedDepthClassifier(epochs=2, width=4, random_state=0).fit(X, y).predict_dist(X)
    assert isinstance(found, ClassPredictive)
    return found


def test_a_schema_tells_how_its_columns_are_to_be_read() -> None:
    fitted = regressor(np.arange(N) / 2, rich_frame())
    assert columns.kinds(fitted.schema_) == {
        "size": "numeric",
        "colour": "category",
        "new": "boolean",
        "built": "date",
        "zip": "numeric",  # categories that are numbers
    }
    assert columns.kinds(Schema(fitted.schema_.columns, named=False)) == {}


@pytest.mark.parametrize(
    ("labels", "kind"),
    [(None, "numeric"), (("a", "b"), "category"), ((False, True), "boolean"), ((0, 1, 2), "numeric")],
)
def test_answers_are_read_as_what_training_saw(labels: Any, kind: str) -> None:
    assert columns.target_kinds(["y"], labels) == {"y": kind}


def test_features_are_chosen_by_name_whatever_their_order() -> None:
    schema = regressor(np.arange(N) / 2).schema_
    table = rich_frame().select(["new", "colour", "size"])
    assert columns.select_features(table, schema).equals(table.select(["size", "colour"]))
    with pytest.raises(DataError, match=r"there is no column 'size'\. The columns are 'new'"):
        columns.select_features(table.select(["new"]), schema)


def test_features_of_a_model_without_names_are_chosen_by_position() -> None:
    schema = regressor(np.arange(N) / 2, RNG.normal(size=(N, 2))).schema_
    table = pa.table({"b": [1, 2], "a": [0.5, 1.5]})
    assert columns.select_features(table, schema).tolist() == [[1.0, 0.5], [2.0, 1.5]]
    with pytest.raises(DataError, match="the table has 1 columns; the model was trained on an array of 2 columns"):
        columns.select_features(table.select(["a"]), schema)


def test_a_forecast_is_laid_out_as_its_own_numbers(forecast: ContinuousPredictive) -> None:
    found = forecast.columns(["price"], [0.5])
    names = ["mean", "std", "lower_50", "upper_50", "variance_noise", "variance_weights", "variance_structure"]
    assert list(found) == names
    low, high = forecast.interval(0.5)
    split = forecast.uncertainty()
    expected = [forecast.mean, forecast.std, low, high, split.noise, split.weights, split.structure]
    for name, values in zip(names, expected, strict=True):
        np.testing.assert_array_equal(found[name], values.numpy())


def test_parts_of_the_uncertainty_add_up_to_the_variance(forecast: ContinuousPredictive) -> None:
    found = forecast.columns(["price"], [0.9])
    total = found["variance_noise"] + found["variance_weights"] + found["variance_structure"]
    np.testing.assert_allclose(total, found["std"] ** 2, rtol=1e-12)


@settings(max_examples=30)
@given(st.lists(st.floats(0.001, 0.999), min_size=2, max_size=4, unique=True))
def test_intervals_are_nested(forecast: ContinuousPredictive, levels: list[float]) -> None:
    levels = sorted(round(level, 6) for level in levels)
    found = forecast.columns(["price"], levels)
    lower = [values for name, values in found.items() if name.startswith("lower")]
    upper = [values for name, values in found.items() if name.startswith("upper")]
    for narrow, wide in itertools.pairwise(lower):
        assert (wide <= narrow).all()
    for narrow, wide in itertools.pairwise(upper):
        assert (wide >= narrow).all()
    assert (lower[0] < upper[0]).all()


@pytest.mark.parametrize(
    ("level", "name"),
    [(0.9, "90"), (0.58, "58"), (0.955, "95.5"), (0.9999999, "99.99999"), (0.000001, "0.0001")],
)
def test_levels_are_named_in_percent_each_by_its_own_name(
    forecast: ContinuousPredictive, level: float, name: str
) -> None:
    found = forecast.columns(["price"], [level, 0.25])
    assert {f"lower_{name}", f"upper_{name}", "lower_25", "upper_25"} < set(found)


def test_several_targets_bring_their_names() -> None:
    y = np.column_stack([np.arange(N) / 2, -np.arange(N)])
    forecast = regressor(y).predict_dist(rich_frame().select(["size", "colour"]))
    found = forecast.columns(["price", "rent"], [0.9])
    assert [name for name in found if name.endswith("mean")] == ["price_mean", "rent_mean"]
    assert len(found) == 14
    np.testing.assert_array_equal(np.column_stack([found["price_mean"], found["rent_mean"]]), forecast.mean.numpy())
    unnamed = forecast.columns((), [0.9])
    assert list(unnamed) == [name.replace("price", "y0").replace("rent", "y1") for name in found]


@pytest.mark.parametrize("labels", [["no", "yes"], [False, True], [1, 2, 5], ["a", "b", "ü/ä", ""]], ids=str)
def test_classes_keep_their_type_and_probabilities_sum_to_one(labels: list[Any]) -> None:
    dist = classes(labels)
    found = dist.columns(["y"], [0.9])
    probs = np.column_stack([found[f"probability_{label}"] for label in sorted(labels)])
    assert list(found) == [
        "class",
        "probability",
        *(f"probability_{label}" for label in sorted(labels)),
        "entropy_noise",
        "entropy_weights",
        "entropy_structure",
    ]
    np.testing.assert_allclose(probs.sum(1), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(found["probability"], probs.max(1))
    assert found["class"].tolist() == [sorted(labels)[k] for k in probs.argmax(1)]
    assert {type(value) for value in found["class"].tolist()} == {type(labels[0])}
    total = found["entropy_noise"] + found["entropy_weights"] + found["entropy_structure"]
    np.testing.assert_allclose(total, -(probs * np.log(probs)).sum(1), rtol=1e-10)
