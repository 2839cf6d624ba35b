"""Permutation importance and partial dependence, compared with scikit-learn's inspection and with closed forms."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.inspection import partial_dependence, permutation_importance

from fathomless.data.frames import fit_schema
from fathomless.estimators.importance import (
    dependence,
    importance,
    row_groups,
    spread_dependence,
    spread_importance,
)
from fathomless.posterior.classes import ClassPredictive
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.posterior.mixtures import Normal
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
    with pytest.raises(DataError, match="X has 1 row; at least 2 are needed"):
        importance(estimator, X[:1], y[:1])


# ------------------------------------------------------------------------------------------------ of the spread


def known_law(X, law):
    """Return an estimator that predicts a given law of the columns."""
    schema = fit_schema(X)
    centre, scale = (np.array([getattr(column, name) for column in schema.columns]) for name in ("center", "scale"))
    one = torch.zeros(1, dtype=torch.float64)

    def predict_encoded(x, fold=None):
        return law(one, torch.from_numpy(x * scale + centre))

    return SimpleNamespace(schema_=schema, target_=None, predict_encoded=predict_encoded)


def numbers(one, x):
    """Two targets: exp(0.5 x0) is the deviation of the first, 3 exp(-0.25 x0 + 2 x1) of the second."""
    log_std = torch.stack([0.5 * x[:, 0], np.log(3.0) - 0.25 * x[:, 0] + 2.0 * x[:, 1]], 1)
    return ContinuousPredictive(one, one.long(), Normal(x[:, [2, 2]][None], log_std.exp()[None]))


def two_classes(one, x):
    logit = torch.stack([torch.zeros(len(x), dtype=torch.float64), 3.0 * x[:, 1]], 1)
    return ClassPredictive(one, one.long(), logit.log_softmax(1)[None], np.array(["a", "b"]))


def entropy(x):
    p = 1.0 / (1.0 + np.exp(-3.0 * x))
    return -p * np.log(p) - (1.0 - p) * np.log(1.0 - p)


def pairs(values):
    """Return the mean absolute difference of two random rows, which may be the same row."""
    return np.abs(values[:, None] - values).mean()


def test_importance_for_the_spread_is_the_closed_form():
    X = np.random.default_rng(0).normal(size=(40, 3))
    found = spread_importance(known_law(X, numbers), X, repeats=400)
    assert found.columns == ("x1", "x0", "x2")
    expected = [pairs(X[:, 1]), 0.5 * (0.5 + 0.25) * pairs(X[:, 0]), 0.0]  # averaged over targets
    np.testing.assert_allclose(found.change, expected, rtol=0.02, atol=1e-12)
    rows = [np.abs(X[:, 1, None] - X[:, 1]).mean(1), 0.375 * np.abs(X[:, 0, None] - X[:, 0]).mean(1)]
    errors = [row.std(ddof=1) / np.sqrt(40) for row in rows]
    np.testing.assert_allclose(found.error[:2], errors, rtol=0.1)
    found = spread_importance(known_law(X, two_classes), X, repeats=400)
    assert found.columns[0] == "x1"
    np.testing.assert_allclose(found.change, [pairs(entropy(X[:, 1])), 0.0, 0.0], rtol=0.02, atol=1e-12)


def test_the_shuffles_are_those_of_the_importance_and_follow_the_seed():
    """The log density at the mean is minus the log deviation, which is smallest for the columns of a row's own."""
    X = np.random.default_rng(0).normal(size=(30, 3))
    estimator = known_law(X, numbers)
    first, again, other = (spread_importance(estimator, X, random_state=seed).change.tolist() for seed in (3, 3, 4))
    assert first == again != other

    def least_at_own(one, x):
        scale = (x[:, 0] - torch.from_numpy(np.resize(X[:, 0], len(x)))).abs().exp()
        return ContinuousPredictive(one, one.long(), Normal(0.0 * scale, scale).map_parameters(single), squeeze=True)

    def single(values):
        return values[None, :, None]

    both = known_law(X, least_at_own)
    lost, changed = importance(both, X, np.zeros(30), random_state=3), spread_importance(both, X, random_state=3)
    assert lost.loss[0] > 0.5
    np.testing.assert_allclose(changed.change, lost.loss, atol=1e-6)


def test_dependence_of_the_spread_is_the_closed_form():
    X = np.random.default_rng(0).normal(size=(40, 3))
    found = spread_dependence(known_law(X, numbers), X, "x0", points=6)
    points = np.array(found.points)
    assert found.points == dependence(known_law(X, numbers), X, "x0", points=6).points
    np.testing.assert_allclose(found.spread[:, 0], np.exp(0.5 * points))
    np.testing.assert_allclose(found.spread[:, 1], 3.0 * np.exp(-0.25 * points) * np.exp(2.0 * X[:, 1]).mean())
    found = spread_dependence(known_law(X, two_classes), X, "x1", points=6)
    np.testing.assert_allclose(found.spread[:, 0], entropy(np.array(found.points)))


def test_the_column_of_the_noise_is_told_from_that_of_the_mean():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 3))
    y = 2.0 * X[:, 1] + 0.5 * np.exp(0.7 * X[:, 0]) * rng.normal(size=300)
    estimator = regressor(width=16, epochs=100, noise="input", recalibrate=False).fit(X, y)
    new = rng.normal(size=(200, 3))
    found = spread_importance(estimator, new)
    assert importance(estimator, new, 2.0 * new[:, 1]).columns[0] == "x1"
    assert found.columns[0] == "x0"
    assert found.change[0] - found.change[1] > 5.0 * np.hypot(*found.error[:2])
    along = spread_dependence(estimator, new, "x0", points=5).spread[:, 0]
    assert (np.diff(along) > 0.0).all()
    assert along[-1] > 2.0 * along[0]


@pytest.mark.parametrize("frame", FRAMES.values(), ids=FRAMES)
def test_the_spread_along_columns_of_all_kinds(frame):
    X = frame(table())
    estimator = classifier().fit(X, np.arange(70) % 3)
    found = spread_importance(estimator, X, repeats=1)
    assert sorted(found.columns) == sorted(column.name for column in estimator.schema_.columns)
    assert (found.change >= 0.0).all()
    along = spread_dependence(estimator, X, "colour")
    assert set(along.points) == {"red", "green", "blue"}
    assert ((along.spread > 0.0) & (along.spread <= np.log(3.0) + 1e-9)).all()


def test_what_has_no_spread_importance_is_refused(fitted):
    estimator, X, _ = fitted
    with pytest.raises(DataError, match="no column 'rooms'; the columns are 'x0', 'x1', 'x2'"):
        spread_dependence(estimator, X, "rooms")
    with pytest.raises(DataError, match="0 points and 120 rows were given"):
        spread_dependence(estimator, X, "x0", points=0)
    with pytest.raises(DataError, match="X has 1 row; at least 2 are needed"):
        spread_importance(estimator, X[:1])
    with pytest.raises(DataError, match="level=1 was given; a number between 0 and 1"):
        dependence(estimator, X, "x0", level=1)
