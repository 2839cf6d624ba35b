"""The score of unseen rows is the score of what predicts them."""

import copy
from typing import Any

import numpy as np
import pytest

from battery.cases import CASES, TRAINED, Case, fitted, named
from fathomless.families.registry import options

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

_DRAWS = 64  # of weights, where they are drawn


def score(estimator: Any, case: Case) -> float:
    """Mean log density of the unseen rows under what predicts them."""
    X, y = case.table()
    if estimator.fold_ is not None:
        return float(estimator.predict_dist(X, fold=estimator.fold_).log_prob(y).mean())
    rows = estimator.held_out_
    if case.task == "density":
        return float(np.mean(estimator.score_samples(X[rows])))
    return float(estimator.predict_dist(X[rows]).log_prob(y[rows]).mean())


def judged(case: Case) -> bool:
    """Whether rows that are named are scored: those of a manifold are known to its candidates alone."""
    return case.family.name != "manifold"


PLAIN = [case for case in TRAINED if judged(case) and case.plain and "calibrate" in options(case.family, case.task)]
AGAIN = [case for case in PLAIN if case.task != "density" and case.family.name not in ("continuous", "sparse")]
FIXED = [
    case
    for case in TRAINED
    if judged(case) and case.task == "classification" and case.family.name in ("finite", "depth-uncertainty", "dropout")
]


@pytest.mark.parametrize(**named(AGAIN))
def test_without_calibration_it_is_that_of_the_same_rows(case: Case) -> None:
    """To rounding, unless weights are drawn or rows choose a law over structure."""
    estimator = case.estimator(calibrate=False).fit(*case.table())
    tolerance = 0.1 if estimator.model_.stochastic or estimator.fit_diagnostics_.to_json() else 1e-6
    assert estimator.validation_score_ == pytest.approx(score(estimator, case), abs=tolerance)


@pytest.mark.parametrize(**named([case for case in CASES if judged(case)]))
def test_it_is_near_that_of_the_same_rows(case: Case) -> None:
    """Noise, structure and weights of recalibration were fitted without the row that is scored, on few rows."""
    estimator = copy.copy(fitted(case))
    if "weight_draws" in options(case.family, case.task):
        estimator.weight_draws = _DRAWS
    loose = estimator.model_.stochastic or estimator.fold_ is not None or case.task == "density"
    assert estimator.validation_score_ == pytest.approx(score(estimator, case), abs=0.45 if loose else 0.1)


@pytest.mark.parametrize(**named(FIXED))
def test_it_is_the_best_of_the_history_where_nothing_is_fitted_afterwards(case: Case) -> None:
    estimator = fitted(case)
    best = max(row["validation_log_likelihood"] for row in estimator.history_)
    assert estimator.validation_score_ == best
