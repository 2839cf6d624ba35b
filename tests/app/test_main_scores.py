"""Main scores as text, beside those of simple models."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fathomless import FiniteNetworkClassifier, FiniteNetworkRegressor
from fathomless.app.commands.printing import table_of
from fathomless.app.page.main_scores import describe_coverage, describe_error, describe_rare_class, describe_rows
from fathomless.estimators.evaluation import Evaluation, evaluate
from fathomless.estimators.scores import Score


@pytest.fixture(scope="module")
def evaluations() -> dict[str, Evaluation]:
    X = np.random.default_rng(0).normal(size=(40, 2))
    options: dict[str, Any] = {"epochs": 2, "random_state": 0}
    given = {
        "classification": (FiniteNetworkClassifier(**options), np.where(X[:, 0] > 0.0, "a", "b")),
        "regression": (FiniteNetworkRegressor(**options), X[:, 0]),
        "targets": (FiniteNetworkRegressor(**options), X),
    }
    return {
        name: evaluate(estimator.fit(X, y), X, y, name="new.csv", targets=("a", "b")[: y.ndim])
        for name, (estimator, y) in given.items()
    }


def score(value: float) -> Score:
    return Score(value, 0.1)


def test_the_main_score_is_beside_those_of_simple_models(evaluations: dict[str, Evaluation]) -> None:
    classes = evaluations["classification"]
    classes = replace(classes, scores={"accuracy": score(0.8)}, baseline={"accuracy": score(0.5)})
    others = {"constant": {"accuracy": score(0.45)}, "linear": {"accuracy": score(0.75)}, "boosting": {}}
    assert describe_error(classes, others) == "accuracy 80 % (most frequent class: 45 %, linear model: 75 %)"
    assert describe_error(classes, {}) == "accuracy 80 % (most frequent class: 50 %)"
    assert describe_coverage(classes) == ""
    numbers = replace(
        evaluations["regression"],
        scores={"rmse": score(2.0), "coverage_90": score(0.875)},
        baseline={"rmse": score(4.0), "coverage_90": score(0.9)},
    )
    assert describe_error(numbers, {"linear": {"rmse": score(3.0)}}) == "RMSE 2 (mean: 4, linear model: 3)"
    assert describe_coverage(numbers) == "coverage of the 90 % intervals 87.5 %"
    assert describe_error(evaluations["targets"], {}).startswith("RMSE averaged over the targets ")
    assert describe_rows(numbers) == "Rows of new.csv"
    assert describe_rows(replace(numbers, name="training rows")) == "Training rows (too optimistic for new rows)"


def test_the_table_has_a_column_for_each_model(evaluations: dict[str, Evaluation]) -> None:
    first = evaluations["regression"]
    plain = table_of(first).splitlines()
    assert plain[0].split("  ", 1)[1].split() == ["model", "constant", "prediction"]
    assert [line.split("  ")[0] for line in plain[1:]] == [
        *(name.replace("_", " ") for name in first.scores if name != "log_likelihood"),
        "log likelihood",  # in nats: the last one
    ]
    table = table_of(first, {"boosting": {"rmse": score(7.0)}, "constant": {}}).splitlines()
    assert table[0].endswith("constant prediction  boosting")
    cells = {line.split("  ")[0]: line.split()[-1] for line in table[1:]}
    assert cells.pop("rmse") == "0.10"  # 7.00 ± 0.10
    assert set(cells.values()) == {"–"}  # scores that a model does not have


def test_small_units_are_not_rounded_to_zero(evaluations: dict[str, Evaluation]) -> None:
    scores = {"rmse": Score(1.28e-12, 6e-14), "r2": Score(1e-13, 0.01)}
    table = table_of(replace(evaluations["regression"], scores=scores, baseline=scores))
    rmse, r2 = table.splitlines()[1:]
    assert rmse.count("1.28") == 2
    assert r2.split("  ")[-1].strip().startswith("0.000")


def test_a_rare_class_has_recall_and_precision(evaluations: dict[str, Evaluation]) -> None:
    rare = replace(evaluations["classification"], confusion=np.array([[95, 1], [3, 1]]), labels=("no", "yes"))
    assert describe_rare_class(rare) == "recall of the rarest class, yes (4 % of the rows): 25 %, precision 50 %"
    never = replace(rare, confusion=np.array([[96, 0], [4, 0]]))
    assert describe_rare_class(never) == "recall of the rarest class, yes (4 % of the rows): 0 % (never predicted)"
    assert describe_rare_class(replace(rare, confusion=np.array([[60, 10], [10, 20]]))) == ""
    assert describe_rare_class(evaluations["regression"]) == ""
