"""Invalid input: the result is a prediction, or an error with the given value and a remedy."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.exceptions import NotFittedError

from fathomless.estimators.predictor import PREDICTED_AT_ONCE
from fathomless.estimators.values import ELBO, Adam
from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.system.errors import DataError, DataWarning, DepthError, DivergenceError, FathomlessError
from refusals import Array, classifier, frame, inf, nan, numbers, refused, regressor

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")


def replaced(X: Array, value: Any, row: int = 3, column: int = 1) -> Array:
    X = X.astype(object if isinstance(value, str) else np.result_type(X, type(value)))
    X[(row, column)[: X.ndim]] = value
    return X


# -------------------------------------------------------------------------------------------------- tables


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (replaced(numbers(), nan), "Input X contains NaN"),
        (replaced(numbers(), inf), "Input X contains infinity or a value too large"),
        (replaced(numbers(), "red"), r"could not convert string to float: 'red'; .*set_output\(transform='pandas'\)"),
        ([*numbers().astype(str).tolist(), ["x", "y"]], "could not convert string|dtype"),
        (numbers() + 1j, "Complex data not supported"),
        (numbers()[:, 0], r"Expected 2D array, got 1D array instead.*[\s\S]*reshape"),
        (numbers()[:, :, None], "Found array with dim 3"),
        (numbers()[:, :0], r"0 feature\(s\) \(shape=\(20, 0\)\) while a minimum of 1 is required"),
        (numbers(0), r"Found array with 0 sample\(s\)"),
        (np.array([[{"a": 1}, 2.0]] * 20, dtype=object), "dict"),
        ([[1.0, 2.0], [3.0]] * 10, "inhomogeneous|sequence"),
        (
            (1e9 * numbers()).astype("datetime64[s]"),
            r"X is an array of dtype datetime64\[s\]; arrays must hold numbers: give dates",
        ),
    ],
    ids=lambda v: None if not isinstance(v, str) else v[:20],
)
def test_arrays_that_cannot_be_used_are_refused(X: Any, message: str) -> None:
    rows = len(X)
    refused(message, X, np.arange(float(rows)), kind=(ValueError, TypeError))


def test_sparse_matrices_are_refused() -> None:
    sparse = scipy.sparse.csr_array(numbers())
    message = r"^UnboundedDepthRegressor: Sparse data was passed.*toarray.*OneHotEncoder\(sparse_output=False\)"
    refused(message, sparse, numbers()[:, 0], kind=DataError)
    with pytest.raises(DataError, match=message):
        regressor().fit(numbers(), numbers()[:, 0]).predict(sparse)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": [inf] + [1.0] * 19}, r"column 'size' contains infinity in .*0.*; replace these values or drop"),
        ({"size": [1.0, "big"] * 10}, "column 'size' holds values of type float, str; convert them all to"),
        ({"size": [{"a": 1}] * 20}, "column 'size' holds .*dict|column 'size' has the type Struct|nested"),
        ({"size": [[1, 2]] * 20}, "column 'size' .*(list|List|nested)"),
        ({"size": [1j] * 20}, "column 'size' .*complex"),
        ({"size": pd.to_timedelta(range(20), unit="s")}, "column 'size' has type Duration.*; convert it to numbers"),
    ],
    ids=lambda v: None if not isinstance(v, str) else v[:20],
)
def test_frames_that_cannot_be_used_are_refused(changes: dict[str, Any], message: str) -> None:
    refused(message, frame().assign(**changes), numbers()[:, 0], kind=DataError)


def test_gaps_are_predicted_with_a_warning_unless_refused() -> None:
    gaps = frame().assign(colour=[None, "red"] * 10)
    refused("column 'colour' contains NaN .*not allowed here.*", gaps, numbers()[:, 0], kind=DataError, missing="error")
    fitted = regressor().fit(frame(), numbers()[:, 0])
    with pytest.warns(DataWarning, match=r"column 'colour' has missing values in 10 of 20 rows"):
        found = fitted.predict(gaps)
    impute = regressor(missing="impute").fit(frame(), numbers()[:, 0])
    np.testing.assert_array_equal(impute.predict(gaps), found)
    strict = regressor(missing="error").fit(frame(), numbers()[:, 0])
    with pytest.raises(DataError, match=r"column 'colour' has missing values"):
        strict.predict(gaps)


def test_tables_without_rows_or_columns_are_refused() -> None:
    message = r"0 rows|0 sample|0 feature|at least one"
    refused(message, frame()[:0], np.array([]))
    refused(message, frame()[[]], numbers()[:, 0])
    fitted = regressor().fit(frame(), numbers()[:, 0])
    labels = classifier().fit(pl.from_pandas(frame()), ["a", "b"] * 10)
    for call in (fitted.predict, fitted.predict_dist, fitted.predict_interval, fitted.sample_y):
        with pytest.raises(DataError, match=r"X has 0 rows \(samples\) and 2 columns; at least one of each is needed"):
            call(frame()[:0])
    with pytest.raises(DataError, match="X has 0 rows"):
        labels.predict(pl.from_pandas(frame())[:0])


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_columns_that_are_missing_extra_or_repeated_are_refused(kind: str) -> None:
    make: Callable[[pd.DataFrame], Any] = pl.from_pandas if kind == "polars" else pd.DataFrame
    fitted = regressor().fit(make(frame()), numbers()[:, 0])
    with pytest.raises(ValueError, match=r"feature names should match[\s\S]*yet now missing:\n- colour"):
        fitted.predict(make(frame()[["size"]]))
    with pytest.raises(ValueError, match=r"feature names should match[\s\S]*unseen at fit time:\n- weight"):
        fitted.predict(make(frame().assign(weight=1.0)))
    with pytest.raises(ValueError, match="X has 3 features, but UnboundedDepthRegressor is expecting 2 features"):
        regressor().fit(numbers(), numbers()[:, 0]).predict(numbers(columns=3))


def test_repeated_columns_are_refused() -> None:
    twice = pd.DataFrame(numbers(), columns=["a", "a"])
    refused(r"'a'|column names", twice, numbers()[:, 0])
    table = pa.table([pa.array(numbers()[:, 0]), pa.array(numbers()[:, 1])], names=["a", "a"])
    refused(r"'a'|column names", table, numbers()[:, 0])


def test_new_categories_and_retyped_columns_are_refused() -> None:
    fitted = regressor(unseen="error").fit(frame(), numbers()[:, 0])
    with pytest.raises(DataError, match=r"colour.*'green'.*"):
        fitted.predict(frame().assign(colour="green"))
    with pytest.raises(DataError, match="size"):
        fitted.predict(frame().assign(size="big"))
    ignoring = regressor(unseen="ignore").fit(frame(), numbers()[:, 0])
    found = ignoring.predict(frame().assign(colour="green"))
    assert np.isfinite(found).all()
    warning = regressor().fit(frame(), numbers()[:, 0])
    with pytest.warns(DataWarning, match=r"column 'colour' has categories .*: 'green'"):
        np.testing.assert_array_equal(warning.predict(frame().assign(colour="green")), found)


def test_rows_of_an_error_are_counted_from_a_named_one() -> None:
    many = pd.concat([frame()] * (PREDICTED_AT_ONCE // len(frame()) + 2), ignore_index=True)
    many.loc[PREDICTED_AT_ONCE + 3, "colour"] = "green"
    fitted = regressor(unseen="error").fit(frame(), numbers()[:, 0])
    with pytest.raises(DataError, match=rf"first: 3\).*rows from {PREDICTED_AT_ONCE} on, and counted"):
        fitted.predict(many)


@pytest.mark.parametrize(
    "X", [object(), "data.csv", 5, {"a": [1.0]}, pl.DataFrame({"a": [1.0]}).lazy()], ids=lambda X: type(X).__name__
)
def test_things_that_are_no_tables_are_refused(X: Any) -> None:
    with pytest.raises((FathomlessError, ValueError, TypeError), match=r"array|frame|collect|float"):
        regressor().fit(X, [1.0])


# ------------------------------------------------------------------------------------- few rows, odd values


@pytest.mark.filterwarnings("ignore:.* given; fewer than 12:fathomless.system.errors.DataWarning")
def test_one_row_is_fitted_without_nan() -> None:
    fitted = regressor().fit(numbers(1), [3.0])
    with pytest.warns(DataWarning, match="columns 'x0', 'x1' were constant in the training data"):
        assert np.isfinite(fitted.predict(numbers(), return_std=True)).all()
    refused(r"y has only one class \('a'\)", numbers(1), ["a"], make=classifier)


def test_constant_columns_and_targets_work() -> None:
    X = numbers()
    X[:, 0] = 7.0
    fitted = regressor().fit(X, X[:, 1])
    with pytest.warns(DataWarning, match="'x0' was constant in the training data, and has other values, such as 12.0"):
        np.testing.assert_array_equal(fitted.predict(X + np.array([5.0, 0.0])), fitted.predict(X))
    with pytest.warns(DataWarning, match=r"y has the value 1e\+06 in all 20 rows"):
        constant = regressor(epochs=30).fit(X, np.full(20, 1e6))
    mean, std = constant.predict(X, return_std=True)
    assert np.isfinite(mean).all()
    assert (std > 0).all()
    assert (np.abs(mean - 1e6) < 10).all()


HUGE = (1e20, 1e150, 1e300, 1e308)


def predicts_or_tells(fit: Callable[[], Any], new: Array) -> None:
    """Check that a fit and its predictions have no NaN, or that an error names the value out of range."""
    try:
        fitted = fit()
        p = fitted.predict_dist(new)
        if isinstance(fitted, UnboundedDepthClassifier):
            found = [fitted.predict_proba(new)]
        else:
            found = [*fitted.predict(new, return_std=True), *fitted.predict_interval(new)]
        found.append(np.asarray(p.uncertainty().total))
    except FathomlessError as error:
        assert re.search(r"too|overflow|far from|not finite|scale", str(error)), error  # noqa: PT017
    else:
        assert not any(np.isnan(values).any() for values in found)
        assert np.isfinite(found[0]).all()


@pytest.mark.parametrize("huge", HUGE)
@pytest.mark.parametrize("where", ["X", "X sign", "y", "both"])
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_huge_values_of_training_give_no_nan(huge: float, where: str, precision: str) -> None:
    X = numbers()
    y = X[:, 0].copy()
    if where in ("X", "both"):
        X[:, 0] *= huge / np.abs(X[:, 0]).max()
    if where == "X sign":
        X[::2, 0], X[1::2, 0] = huge, -huge
    if where in ("y", "both"):
        y *= huge / np.abs(y).max()
    predicts_or_tells(lambda: regressor(precision=precision).fit(X, y), X)
    if where in ("X", "X sign"):  # the classes are the same in all four
        predicts_or_tells(lambda: classifier(precision=precision).fit(X, y > 0), X)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("make", [regressor, classifier])
def test_huge_values_in_predictions_give_no_nan(make: Callable[..., Any], precision: str) -> None:
    X = numbers()
    fitted = make(precision=precision).fit(X, X[:, 0] if make is regressor else X[:, 0] > 0)
    for huge in HUGE:
        one = X.copy()
        one[4, 1] = huge
        for new in (one, huge * np.sign(X)):
            predicts_or_tells(lambda: fitted, new)


@pytest.mark.filterwarnings("ignore:.* given; fewer than 12:fathomless.system.errors.DataWarning")
@pytest.mark.filterwarnings("ignore:.* rows, and all other values lie:fathomless.system.errors.DataWarning")
@pytest.mark.filterwarnings("ignore:y has the value:fathomless.system.errors.DataWarning")
@settings(max_examples=25, deadline=None)
@given(
    arrays(np.float64, (8, 2), elements=st.floats(allow_nan=True, allow_infinity=True)),
    arrays(np.float64, 8, elements=st.floats(allow_nan=True, allow_infinity=True)),
)
def test_any_numbers_give_predictions_or_a_clear_error(X: Array, y: Array) -> None:
    try:
        mean = regressor(epochs=1).fit(X, y).predict(X)
    except (FathomlessError, ValueError) as error:
        assert re.search("NaN|infinity|too large|overflow|not finite|far", str(error)), error  # noqa: PT017
    else:
        assert np.isfinite(mean).all()


# ------------------------------------------------------------------------------------------ targets, weights


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (
            replaced(numbers()[:, 0], nan),
            r"Input y contains NaN. It is in 1 of 20 rows \(counted from 0, first: 3\); drop these rows",
        ),
        (
            replaced(numbers()[:, 0], inf),
            r"Input y contains infinity .* It is in 1 of 20 rows \(counted from 0, first: 3\); drop these rows",
        ),
        (["1", "two"] * 10, "y holds category values such as '1'; give a numeric target"),
        (numbers(19)[:, 0], "X has 20 rows and y has 19; they must agree"),
        (numbers()[:, 0] + 1j, "'y' holds values of type complex; convert them all to numbers"),
        (numbers()[:, :, None], r"y has shape \(20, 2, 1\)"),
        (3.0, "y is a single float; give one value for each row of X"),
        (None, "requires y to be passed, but the target y is None"),
        ([{"a": 1}] * 20, "y.*dict"),
        ([[1.0], [2.0, 3.0]] * 10, "y cannot be read as an array of numbers"),
    ],
    ids=lambda v: None if not isinstance(v, str) else v[:20],
)
def test_targets_that_cannot_be_used_are_refused(y: Any, message: str) -> None:
    refused(message, numbers(), y)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (["a", None] * 10, "Input y contains NaN. Labels are missing in .*; drop these rows"),
        ([1.0, nan] * 10, "Input y contains NaN"),
        ([1.0, inf] * 10, "infinity|Unknown label type"),
        (numbers()[:, 0], "Unknown label type: continuous.* Give class labels, or use a regressor"),
        (["a", 1] * 10, "Unknown label type: y holds class labels of type int, str; give"),
        ([[1], [2]] * 10, "Unknown label type|nested|unhashable|type list"),
        (numbers(), r"the value 0\.12573; multi-label targets are several columns of 0 and 1"),
        (["a"] * 20, r"y has only one class \('a'\); a classifier needs at least two classes"),
        (["a", "b"], "X has 20 rows and y has 2; they must agree"),
        (None, "requires y to be passed"),
    ],
    ids=lambda v: None if not isinstance(v, str) else v[:20],
)
def test_labels_that_cannot_be_used_are_refused(y: Any, message: str) -> None:
    refused(message, numbers(), y, make=classifier)


def test_one_class_is_left_after_rows_without_weight() -> None:
    weight = np.arange(20) % 2
    refused("y has only one class", numbers(), ["a", "b"] * 10, weight=weight, make=classifier)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.r_[-1.0, np.ones(19)], "Negative values in data passed to `sample_weight`"),
        (np.r_[nan, np.ones(19)], "Input sample_weight contains NaN"),
        (np.r_[inf, np.ones(19)], "Input sample_weight contains infinity"),
        (np.ones(19), r"sample_weight.shape == \(19,\), expected \(20,\)"),
        (np.ones((20, 2)), "Sample weights must be 1D array or scalar"),
        (np.zeros(20), "ample weights must contain at least one non-zero number|every sample_weight is zero"),
        (["heavy"] * 20, "could not convert string to float"),
    ],
    ids=["negative", "NaN", "infinite", "short", "matrix", "zero", "text"],
)
def test_weights_that_cannot_be_used_are_refused(weight: Any, message: str) -> None:
    refused(message, numbers(), numbers()[:, 0], weight=weight)


def test_other_targets_are_refused_when_a_fit_goes_on() -> None:
    fitted = classifier(warm_start=True).fit(numbers(), ["a", "b"] * 10)
    expected = fitted.predict_proba(numbers())
    with pytest.raises(
        DataError, match=r"y has the class 'c' in .*, which is not in the training data; known classes are"
    ):
        fitted.fit(numbers(), ["a", "c"] * 10)
    with pytest.raises(ValueError, match="X has 3 features, but UnboundedDepthClassifier is expecting 2"):
        fitted.fit(numbers(columns=3), ["a", "b"] * 10)
    np.testing.assert_array_equal(fitted.predict_proba(numbers()), expected)
    wide = regressor(warm_start=True).fit(numbers(), numbers())
    with pytest.raises(DataError, match="y has 3 outputs; the training data had 2"):
        wide.fit(numbers(), numbers(columns=3))


# -------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"architecture": "resnet"},
            "architecture='resnet' was given; allowed are 'mlp', 'residual' and 'transformer'",
        ),
        ({"architecture": 3}, "architecture=3 was given; allowed are"),
        ({"architecture": "transformer", "width": 6}, "width=6 and heads=4 were given; the width must be a multiple"),
        ({"width": 0}, "width=0 was given; at least 1 is needed"),
        ({"width": 2.5}, "width=2.5 was given"),
        ({"activation": "sigmoid2"}, "activation='sigmoid2' was given; allowed are 'auto', 'relu'"),
        ({"depth_law": "geometric"}, "depth_law='geometric' was given; allowed are 'auto', 'poisson'"),
        ({"depth_law": 1, "min_depth": 2}, "depth_law=1 was given; .* at least min_depth=2"),
        ({"depth_law": None}, "depth_law=None was given; allowed are"),
        ({"structure_from": ELBO(initial_depth=-1.0)}, "-1"),
        ({"structure_from": ELBO(initial_depth=nan)}, "nan"),
        ({"depth_prior": 0.0}, r"depth_prior=0\.0 was given; 0 < depth_prior <= 10,000 is allowed"),
        ({"depth_prior": 1e5}, r"depth_prior=100000\.0 was given; at most 10,000 is allowed"),
        ({"depth_prior": "flat"}, "depth_prior='flat'|'flat'"),
        ({"min_depth": -1}, "min_depth=-1 was given; at least 0 is needed"),
        ({"max_depth": 0}, "max_depth=0 was given; at least 1 is needed"),
        ({"weights": "laplace"}, "weights='laplace' was given; allowed are 'map', 'meanfield', 'sparse' and 'hmc'"),
        ({"weight_prior": 1e-300}, r"the scale of a prior=1e-300 was given; from 1e-10 to 1e\+10 is allowed"),
        ({"weight_prior": 1e300}, r"the scale of a prior=1e\+300 was given; from 1e-10 to 1e\+10 is allowed"),
        ({"weight_draws": 10**9}, "weight_draws=1000000000 was given; at most 10,000 is allowed"),
        ({"n_restarts": 2**31 - 1}, "n_restarts=2147483647 was given; at most 10,000 is allowed"),
        (
            {"weight_prior": 0.0},
            r"weight_prior=0\.0 was given; a positive, finite number is allowed, or 'auto', or 'columns'",
        ),
        ({"weight_prior": -1.0}, r"weight_prior=-1\.0 was given"),
        (
            {"weight_prior": "wide"},
            "weight_prior='wide' was given; a finite number is allowed, or 'auto', or 'columns'",
        ),
        ({"weight_prior": "columns", "weights": "meanfield"}, r"scales for columns need point estimates"),
        ({"weight_prior": "columns", "weights": "sparse"}, r"scales for columns need point estimates"),
        ({"temperature": 0.0}, "temperature=0.0 was given; a positive, finite number is allowed"),
        ({"weight_draws": 0}, "weight_draws=0 was given"),
        (
            {"likelihood": "poisson"},
            "likelihood='poisson' was given; allowed are 'auto', 'gaussian', 'student_t' and 'laplace'",
        ),
        ({"noise": "loud"}, "noise.*'loud'"),
        ({"noise": -0.1}, r"noise=-0\.1 was given; a positive, finite number is allowed, or 'learned', or 'input'$"),
        ({"epochs": 0}, "epochs=0 was given; at least 1 is needed"),
        ({"epochs": -3}, "epochs=-3 was given; at least 1 is needed"),
        ({"epochs": "many"}, "epochs='many' was given"),
        ({"batch_size": 0}, "batch_size=0 was given; at least 1 is needed"),
        ({"batch_size": "big"}, "batch_size='big' was given"),
        ({"learning_rate": 0.0}, "learning_rate=0.0 was given; a positive, finite number is allowed"),
        ({"learning_rate": nan}, "learning_rate=nan was given"),
        ({"structure_from": ELBO(rate=-1.0)}, "structure_from__rate=-1.0 was given; 0 or more is allowed"),
        ({"structure_from": ELBO(rate="fast")}, "structure_from__rate='fast' was given"),
        (
            {"structure_from": ELBO(optimizer="lbfgs")},
            "structure_from__optimizer='lbfgs' was given; allowed are 'adam' and 'natural'",
        ),
        ({"structure_from": ELBO(radius=0.0, optimizer="natural")}, r"structure_from__radius=0\.0 was given"),
        (
            {"optimizer": Adam(schedule="linear")},
            "optimizer__schedule='linear' was given; allowed are 'cosine', 'constant' and 'one_cycle'",
        ),
        ({"optimizer": Adam(schedule=())}, r"schedule=\(\) was given"),
        ({"optimizer": Adam(schedule=("fast", "slow"))}, "schedule=.* was given"),
        ({"patience": 0}, "patience=0 was given"),
        ({"optimizer": Adam(clip_norm=0.0)}, r"optimizer__clip_norm=0\.0 was given"),
        ({"validation_fraction": 1.0}, "validation_fraction=1.0 was given; 0 <= validation_fraction < 1 is allowed"),
        ({"validation_fraction": nan}, "validation_fraction=nan was given"),
        ({"missing": "skip"}, "missing='skip'|missing .*'skip'"),
        ({"unseen": "guess"}, "unseen.*'guess'"),
        ({"device": "tpu9"}, "device='tpu9' was given, which torch cannot use here"),
        ({"device": "cuda:99"}, "device='cuda:99' was given, which torch cannot use here"),
        ({"precision": "float8"}, "precision='float8' was given; allowed are 'auto', 'float32', 'float64'"),
        ({"random_state": "lucky"}, "a seed was given as str; allowed are an integer"),
        ({"checkpoint": "somewhere", "random_state": None}, "checkpoint was given without random_state; .*set random_"),
    ],
    ids=lambda v: None if isinstance(v, str) else ",".join(f"{name}={value}" for name, value in v.items()),
)
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any], message: str) -> None:
    refused(message, numbers(), numbers()[:, 0], kind=(DataError, ValueError, TypeError), **options)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'hidden'"):
        UnboundedDepthRegressor(hidden=3)
    with pytest.raises(ValueError, match="Invalid parameter 'depth' for estimator"):
        regressor().set_params(depth=3)


def test_an_option_that_is_misspelt_is_told_its_name_and_subclasses_may_have_their_own() -> None:
    with pytest.raises(TypeError, match=r"argument 'learnig_rate'. Did you mean 'learning_rate'\?"):
        UnboundedDepthRegressor(learnig_rate=0.1)

    class Narrow(UnboundedDepthRegressor):
        def __init__(self, epoch: int = 2, **options: Any) -> None:
            super().__init__(width=4, **options)
            self.epoch = epoch

    narrow = Narrow(epoch=3, epochs=5)
    assert (narrow.epoch, narrow.epochs, narrow.width) == (3, 5, 4)
    assert set(inspect.signature(UnboundedDepthRegressor).parameters) == set(
        UnboundedDepthRegressor().get_params(deep=False)
    )


def test_a_category_limit_of_one_is_refused() -> None:
    refused("max_levels=1 was given; at least 2 is needed", frame(), numbers()[:, 0], max_levels=1)


def test_a_callback_that_fails_leaves_nothing_behind() -> None:
    def fail(run: Any) -> None:
        raise RuntimeError("from a callback")

    refused("from a callback", numbers(), numbers()[:, 0], kind=RuntimeError, callbacks=[fail])


def test_a_training_that_diverges_says_what_to_do() -> None:
    def spoil(run: Any) -> None:
        with torch.no_grad():
            next(iter(run.model.parameters())).fill_(nan)

    X = numbers(40)
    estimator = regressor(epochs=30, callbacks=[spoil])
    with pytest.raises(DivergenceError, match=r"the first tensor that is not finite is model/.*Lower learning_rate"):
        estimator.fit(X, X[:, 0])
    assert not hasattr(estimator, "model_")
    with pytest.raises(DivergenceError, match=r"Lower learning_rate \(now 1e\+100\)"):
        regressor(epochs=40, learning_rate=1e100).fit(X, X[:, 0])


def test_a_depth_without_prior_mass_is_refused() -> None:
    from fathomless.posterior.laws import UniformPrior

    with pytest.raises((DepthError, DataError), match=r"prior|reaches"):
        regressor(depth_prior=UniformPrior(2), structure_from=ELBO(initial_depth=5.0)).fit(numbers(), numbers()[:, 0])


# ------------------------------------------------------------------------------------ predicting too early


@pytest.mark.parametrize("call", ["predict", "predict_dist", "predict_interval", "sample_y", "save", "score"])
def test_nothing_is_predicted_or_saved_before_fit(call: str, tmp_path: Path) -> None:
    argument = (tmp_path / "m",) if call == "save" else (numbers(),)
    for estimator in (regressor(), classifier()):
        if call == "predict_interval" and isinstance(estimator, UnboundedDepthClassifier):
            continue
        y = (numbers()[:, 0],) if call == "score" else ()
        with pytest.raises(NotFittedError, match=r"instance is not fitted yet. Call 'fit'"):
            getattr(estimator, call)(*argument, *y)
    assert not (tmp_path / "m").exists()
    assert not hasattr(classifier(), "classes_")


@pytest.mark.parametrize("level", [0.0, 1.0, -0.5, 2.0, nan])
def test_impossible_levels_are_refused(level: float) -> None:
    fitted = regressor().fit(numbers(), numbers()[:, 0])
    with pytest.raises(DataError, match=re.escape(str(level))):
        fitted.predict_interval(numbers(), level)


@pytest.mark.parametrize("n", [0, -1])
def test_impossible_sample_sizes_are_refused(n: int) -> None:
    for fitted in (regressor().fit(numbers(), numbers()[:, 0]), classifier().fit(numbers(), ["a", "b"] * 10)):
        with pytest.raises(DataError, match=str(n)):
            fitted.sample_y(numbers(), n)
