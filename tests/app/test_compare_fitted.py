"""Fitted estimators on the same rows: ranks by arithmetic by hand, laws with atoms and on lattices, and refusals."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.datasets import load_diabetes, load_iris

from fathomless.app.compare_fitted import compare_fitted
from fathomless.app.comparison import Compared, Comparison
from fathomless.app.peers import Peer
from fathomless.data.targets import fit_target
from fathomless.estimators.evaluation import evaluate
from fathomless.estimators.scores import Score
from fathomless.plots.page import number
from fathomless.system.errors import DataError
from quick_fits import classifier, problem, regressor

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

Array = Any
NAMES = ("constant", "linear", "boosting")


@pytest.fixture(scope="module")
def rows() -> tuple[Array, Array]:
    X, y = load_diabetes(return_X_y=True)
    return X[:160, :4], y[:160] + 0.123 * np.sin(np.arange(160))  # not on a lattice


@pytest.fixture(scope="module")
def peers(rows: tuple[Array, Array]) -> dict[str, Peer]:
    X, y = rows
    return {name: Peer(name, "regression", 0).fit(X[:100], y[:100]) for name in NAMES}


def of(found: Comparison, name: str) -> Compared:
    return next(method for method in found.methods if method.name == name)


def log_densities(peer: Any, X: Array, y: Array) -> Array:
    return peer.predict_dist(X).log_prob(y).numpy()


def test_ranks_are_those_of_arithmetic_by_hand(rows: tuple[Array, Array], peers: dict[str, Peer]) -> None:
    X, y = (part[100:] for part in rows)
    found = compare_fitted(peers, X, y)
    log_p = {name: log_densities(peer, X, y) for name, peer in peers.items()}
    order = sorted(NAMES, key=lambda name: -log_p[name].mean())
    assert [method.name for method in found.methods] == order
    assert (found.task, found.rows, found.folds, found.notes) == ("regression", 60, 0, ())
    for name in NAMES:
        one = of(found, name)
        apart = log_p[order[0]] - log_p[name]
        assert one.scores["log_likelihood"].value == pytest.approx(log_p[name].mean())
        assert one.scores["log_likelihood"].error == pytest.approx(log_p[name].std(ddof=1) / 60**0.5)
        assert one.behind.value == pytest.approx(apart.mean())
        assert one.behind.error == pytest.approx(apart.std(ddof=1) / 60**0.5)
        mean = peers[name].predict_dist(X).mean.numpy()
        assert one.scores["rmse"].value == pytest.approx(np.sqrt(np.mean((mean - y) ** 2)))
        assert one.scores.keys() >= {"crps", "coverage_90", "interval_score_90"}
        assert math.isnan(one.fit_seconds)
    assert found.columns()["method"] == order


def test_a_weight_is_a_number_of_rows(rows: tuple[Array, Array], peers: dict[str, Peer]) -> None:
    X, y = (part[100:] for part in rows)
    weight = np.arange(60) % 4
    copies = np.repeat(np.arange(60), weight)
    weighted = compare_fitted(peers, X, y, sample_weight=weight)
    repeated = compare_fitted(peers, X[copies], y[copies])
    assert weighted.rows == repeated.rows == len(copies)
    for name in NAMES:
        one, other = of(weighted, name), of(repeated, name)
        assert [one.behind.value, one.behind.error] == pytest.approx([other.behind.value, other.behind.error])
        for key, score in one.scores.items():
            assert [score.value, score.error] == pytest.approx([other.scores[key].value, other.scores[key].error]), key


def test_each_estimator_gets_its_own_columns(rows: tuple[Array, Array]) -> None:
    X, y = rows
    frame = pd.DataFrame(X, columns=list("abcd"))
    first, second = frame[["a", "b", "c"]], frame[["d", "b"]]
    estimators = {"first": regressor().fit(first[:100], y[:100]), "second": regressor().fit(second[:100], y[:100])}
    new = compare_fitted(estimators, frame[100:], y[100:])
    expected = {"first": first[100:], "second": second[100:]}
    for found in (new, compare_fitted(estimators, expected, y[100:])):
        for name, table in expected.items():
            log_p = log_densities(estimators[name], table, y[100:])
            assert of(found, name).scores["log_likelihood"].value == pytest.approx(log_p.mean())
    with pytest.raises(DataError, match="second: X lacks the columns 'd'; it has the columns 'a', 'b', 'c'"):
        compare_fitted(estimators, frame[["a", "b", "c"]][100:], y[100:])


def test_targets_of_another_size_are_a_note(rows: tuple[Array, Array], peers: dict[str, Peer]) -> None:
    X, y = rows
    linear, boosting = peers["linear"], peers["boosting"]
    thousands = Peer("linear", "regression", 0).fit(X[:100], y[:100] / 1000.0)
    found = compare_fitted({"linear": linear, "thousands": thousands, "boosting": boosting}, X, y)
    assert found.methods[2].name == "thousands"
    assert len(found.notes) == 1
    spread = y[:100].std()
    expected = f"is {number(spread / 1000.0)} for thousands and {number(spread)} for linear; check that the target"
    assert expected in found.notes[0]
    assert compare_fitted({"linear": linear, "boosting": boosting}, X, y).notes == ()


def test_classes_are_compared() -> None:
    X, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    estimators = {name: Peer(name, "classification", 0).fit(X[::2], names[::2]) for name in ("constant", "linear")}
    found = compare_fitted(estimators, X[1::2], names[1::2])
    linear = found.methods[0]
    assert linear.name == "linear"
    p = estimators["linear"].predict_dist(X[1::2])
    assert linear.scores["accuracy"].value == np.mean(p.predict() == names[1::2])
    apart = linear.scores["log_likelihood"].value - np.log(1.0 / 3.0)
    assert found.methods[1].behind.value == pytest.approx(apart, abs=1e-6)


def test_densities_are_rounded_to_the_lattice_of_the_others(rows: tuple[Array, Array]) -> None:
    X, y = rows[0], np.round(rows[1])
    plain, rounded = (Peer("linear", "regression", 0, on_lattice=way).fit(X[:100], y[:100]) for way in (False, True))
    other = Peer("constant", "regression", 0).fit(X[:100], y[:100])
    found = compare_fitted({"plain": plain, "rounded": rounded, "other": other}, X[100:], y[100:])
    assert of(found, "plain").scores["log_likelihood"] == of(found, "rounded").scores["log_likelihood"]
    law = stats.norm(y[:100].mean(), y[:100].std())
    mass = np.log(law.cdf(y[100:] + 0.5) - law.cdf(y[100:] - 0.5))
    assert of(found, "other").scores["log_likelihood"].value == pytest.approx(mass.mean(), rel=1e-9)
    found = compare_fitted({"plain": plain, "other": other}, X[100:], y[100:])
    assert of(found, "other").scores["log_likelihood"].value == pytest.approx(law.logpdf(y[100:]).mean(), rel=1e-9)
    halves = Peer("linear", "regression", 0, on_lattice=True).fit(X[:100], y[:100] / 2.0)
    with pytest.raises(DataError, match=r"different points of the target \(rounded: 0 \+ 1 k; halves: 0 \+ 0\.5 k\)"):
        compare_fitted({"plain": plain, "rounded": rounded, "halves": halves}, X[100:], y[100:])


@pytest.mark.parametrize("weighted", [False, True])
def test_densities_get_the_average_probabilities_of_the_atoms(rows: tuple[Array, Array], weighted: bool) -> None:
    X, y = rows
    zero = np.arange(160) % 5 < 2
    amounts = np.where(zero, 0.0, y)
    having = Peer("linear", "regression", 0).fit(X[:100], amounts[:100])
    lacking = Peer("constant", "regression", 0).fit(X[:100], amounts[:100], target=fit_target(amounts[:100]))
    weight = 1.0 + np.arange(60) % 3 if weighted else np.ones(60)
    estimators = {"lacking": lacking, "having": having}
    found = compare_fitted(estimators, X[100:], amounts[100:], sample_weight=weight if weighted else None)
    mass = np.average(having.predict_dist(X[100:]).mass[1].numpy(), weights=weight)
    assert 0.2 < mass < 0.6
    law = stats.norm(amounts[:100].mean(), amounts[:100].std())
    log_p = np.where(zero[100:], np.log(mass), np.log1p(-mass) + law.logpdf(amounts[100:]))
    expected = np.average(log_p, weights=weight)
    assert of(found, "lacking").scores["log_likelihood"].value == pytest.approx(expected, rel=1e-9)
    own = np.average(log_densities(having, X[100:], amounts[100:]), weights=weight)
    assert of(found, "having").scores["log_likelihood"].value == pytest.approx(own)
    assert found.notes == (
        "lacking: predictions have no probabilities of the single value 0; the log-likelihood was computed with the "
        "average ones of having",
    )
    ends = Peer("linear", "regression", 0).fit(X[:100], np.where(zero[:100], 300.5, y[:100]))
    with pytest.raises(DataError, match=r"different single values of the target \(having: 0; ends: 300\.5\)"):
        compare_fitted({**estimators, "ends": ends}, X[100:], amounts[100:])


def test_censored_rows_have_the_scores_of_an_evaluation() -> None:
    X, y = problem(120)
    end = np.quantile(y, 0.7)
    kind = np.where(y > end, "right", "exact")
    y = np.minimum(y, end)
    estimators = {f"{n}": regressor(epochs=n).fit(X[:80], y[:80], censored=kind[:80]) for n in (5, 40)}
    weight = np.arange(40) % 3
    found = compare_fitted(estimators, X[80:], y[80:], censored=kind[80:], sample_weight=weight)
    for name, estimator in estimators.items():
        one = evaluate(estimator, X[80:], y[80:], name="new", censored=kind[80:], sample_weight=weight)
        for key, score in one.scores.items():
            other = of(found, name).scores[key]
            assert [other.value, other.error] == pytest.approx([score.value, score.error]), key
    low, high = (np.where(kind == "right", end, y), np.where(kind == "right", np.inf, y))
    bounds = np.column_stack([low, high])
    same = compare_fitted(estimators, X[80:], bounds[80:], censored="interval", sample_weight=weight)
    assert [one.scores for one in same.methods] == [one.scores for one in found.methods]
    exact = compare_fitted(estimators, X[:5], y[:5], censored=["exact"] * 5)
    plain = compare_fitted(estimators, X[:5], y[:5])
    assert [one.scores for one in exact.methods] == [one.scores for one in plain.methods]


def test_several_targets_are_compared_by_their_joint_density() -> None:
    X, y = problem(60, targets=2)
    estimators = {f"{n}": regressor(epochs=n).fit(X[:40], y[:40]) for n in (5, 40)}
    found = compare_fitted(estimators, X[40:], y[40:])
    for name, estimator in estimators.items():
        log_p = log_densities(estimator, X[40:], y[40:])
        assert of(found, name).scores["log_likelihood"].value == pytest.approx(log_p.mean())


@pytest.mark.parametrize(
    ("behind", "near"),
    [(Score(0.2, 0.1), True), (Score(0.21, 0.1), False), (Score(0.0, None), True), (Score(0.1, None), False)],
)
def test_two_standard_errors_are_near(behind: Score, near: bool) -> None:
    best = Compared("a", "", {}, Score(0.0, 0.0), 0.0, 0.0)
    other = Compared("b", "", {}, behind, 0.0, 0.0)
    failed = Compared("c", "", {}, Score(math.nan, None), 0.0, 0.0, "failed")
    assert Comparison("regression", 9, 0, (best, other, failed)).near_best == ("b",) * near


def test_what_cannot_be_compared_is_refused(rows: tuple[Array, Array], peers: dict[str, Peer]) -> None:
    X, y = rows
    high = np.where(y > y.mean(), "high", "low")
    classes = classifier(epochs=1).fit(X, high)
    both = regressor(epochs=1).fit(X, np.column_stack([y, y]))
    linear = peers["linear"]
    cases: list[tuple[dict[str, Any], Any, Any, str]] = [
        ({"a": linear}, X, y, "1 estimators were given; a comparison needs two or more"),
        ({"a": linear, "b": regressor()}, X, y, "b is a UnboundedDepthRegressor that is not fitted"),
        ({"a": linear, "b": classes}, X, y, "a is a regression of 1 target and b is a classification of 1 target;"),
        ({"a": linear, "c": linear, "b": both}, X, y, "a is a regression of 1 target and b is a regression of 2"),
        ({"a": linear, "b": linear}, {"a": X}, y, r"X has the tables 'a'; one for each estimator is needed: 'a', 'b'"),
        ({"a": linear, "b": linear}, X[1:], y, "a: X has 159 rows and y has 160"),
        ({"a": classes, "b": classes}, X, np.where(high == "low", "mid", high), "a: target 'y' has the classes 'mid'"),
    ]
    for estimators, table, truth, message in cases:
        with pytest.raises(DataError, match=message):
            compare_fitted(estimators, table, truth)
    with pytest.raises(DataError, match="b: target 'grade' has the classes 'mid'"):
        compare_fitted({"b": classes, "a": classes}, X, np.full(160, "mid"), targets=["grade"])
    with pytest.raises(DataError, match="a: censored was given, but the estimator is a classifier"):
        compare_fitted({"a": classes, "b": classes}, X, high, censored=["exact"] * 160)
    with pytest.raises(DataError, match="sample_weight is -1"):
        compare_fitted(peers, X, y, sample_weight=-np.ones(160))
