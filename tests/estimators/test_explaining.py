"""Permutation importance and partial dependence, compared with scikit-learn's inspection of the same fit."""

import numpy as np
import pytest
from sklearn.inspection import partial_dependence, permutation_importance

from fathomless.estimators.importance import dependence, importance, row_groups
from fathomless.system.errors import DataError
from quick_fits import FRAMES, classes, classifier, problem, regressor, table

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")


@pytest.fixture(scope="module")
def fitted():
    X, y = problem(120)
    return regressor(epochs=40).fit(X, y), X, y


def test_importance_is_what_scikit_learn_finds_for_the_log_density(fitted):
    estimator, X, y = fitted
    ours = importance(estimator, X, y, repeats=40)
    score = lambda fit, X, y: float(fit.predict_dist(X).log_prob(y).mean())  # noqa: E731
    theirs = permutation_importance(estimator, X, y, scoring=score, n_repeats=40, random_state=1)
    for name, loss in zip(ours.columns, ours.loss, strict=True):
        shuffles = theirs.importances[int(name.removeprefix("x"))]
        assert abs(loss - shuffles.mean()) < 4.0 * np.sqrt(2.0 * shuffles.var(ddof=1) / 40) + 1e-6
    assert list(ours.loss) == sorted(ours.loss, reverse=True)
    assert ours.columns[-1] == "x2"  # the target does not know it
    assert importance(estimator, X, y).loss.tolist() == importance(estimator, X, y).loss.tolist()


def test_dependence_is_what_scikit_learn_finds(fitted):
    estimator, X, _ = fitted
    ours = dependence(estimator, X, "x0", points=7)
    theirs = partial_dependence(estimator, X, [0], custom_values={0: np.array(ours.points)}, method="brute")
    np.testing.assert_allclose(ours.mean[:, 0], theirs["average"][0], rtol=0, atol=2e-6)
    assert (ours.lower <= ours.mean + 1e-9).all()
    assert (ours.mean <= ours.upper + 1e-9).all()
    assert ours.points[0] == pytest.approx(X[:, 0].min())
    assert ours.points[-1] == pytest.approx(X[:, 0].max())


def test_probabilities_along_a_column_sum_to_one():
    X, y = classes(90)
    found = dependence(classifier().fit(X, y), X, "x1")
    np.testing.assert_allclose(found.mean.sum(1), 1.0, atol=1e-6)


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_columns_of_all_kinds_move_whole(frame):
    X = frame(table())
    y = np.random.default_rng(0).normal(size=70)
    estimator = regressor().fit(X, y)
    names = [column.name for column in estimator.schema_.columns]
    assert sorted(importance(estimator, X, y).columns) == sorted(names)
    assert set(dependence(estimator, X, "colour").points) == {"red", "green", "blue"}
    assert dependence(estimator, X, "new").points == ("false", "true")
    assert dependence(estimator, X, "day").points[0] == "2024-01-01"
    assert None not in dependence(estimator, X, "size").points


def test_groups_of_a_column_are_disjoint_and_hold_every_row():
    X = FRAMES["pandas"](table())
    estimator = regressor().fit(X, np.arange(70.0))
    covered = {}
    for column, value, rows in row_groups(estimator.schema_, X):
        covered.setdefault(column, {})[value] = rows
    for groups in covered.values():
        assert (np.sum(list(groups.values()), 0) == 1).all()
    assert covered["colour"]["missing"].sum() == X["colour"].isna().sum()
    assert (covered["colour"]["red"] == (X["colour"] == "red")).all()
    assert set(covered["new"]) == {"false", "true"}
    assert len(covered["size"]) == 5  # four quarters, and what is missing


def test_a_column_that_is_not_there_is_refused_with_those_that_are(fitted):
    estimator, X, y = fitted
    with pytest.raises(DataError, match="no column 'rooms'; the columns are 'x0', 'x1', 'x2'"):
        dependence(estimator, X, "rooms")
    with pytest.raises(DataError, match="1 rows and 3 repeats were given"):
        importance(estimator, X[:1], y[:1])
