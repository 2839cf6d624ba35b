"""Classifiers with multilabel targets, in columns of 0 and 1."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import fathomless
from fathomless.estimators.evaluation import evaluate
from fathomless.estimators.importance import dependence
from fathomless.families.depth.estimator import UnboundedDepthClassifier
from fathomless.posterior.indicators import IndicatorPredictive
from fathomless.system.errors import DataError
from quick_fits import Array, classifier

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
UNABLE = ("IndianChefsClassifier", "LaplaceNetworkClassifier", "ProjectedBayesClassifier")


def labelled(n: int = 80) -> tuple[Array, Array]:
    X = np.random.default_rng(0).normal(size=(n, 2))
    return X, np.column_stack([X[:, 0] > 0, X[:, 1] > 1, X.sum(1) > -0.5]).astype(np.int64)


@pytest.mark.parametrize("options", [{}, {"cv": 3}, {"weights": "meanfield"}], ids=str)
def test_columns_of_labels_are_learned_together(options: dict[str, Any], tmp_path: Path) -> None:
    X, y = labelled()
    fitted = classifier(epochs=150, learning_rate=0.02, **options).fit(X, y)
    p, predicted = fitted.predict_proba(X), fitted.predict(X)
    assert p.shape == predicted.shape == y.shape
    assert predicted.dtype == y.dtype
    assert (predicted == (p > 0.5)).all()
    assert (predicted == y).mean() > 0.85
    assert fitted.score(X, y) == (predicted == y).all(1).mean()
    assert fitted.classes_.tolist() == [0, 1, 2]
    dist = fitted.predict_dist(X)
    assert isinstance(dist, IndicatorPredictive)
    np.testing.assert_allclose(dist.probs, p, rtol=1e-12)
    assert fitted.sample_y(X[:4], 5).shape == (4, 3, 5)
    loaded = UnboundedDepthClassifier.load(fitted.save(tmp_path / "m"))
    assert (loaded.predict_proba(X) == p).all()
    assert (loaded.predict(X) == predicted).all()
    assert loaded.predict(X).dtype == y.dtype


def test_frames_and_lists_of_labels_are_as_good_as_arrays() -> None:
    X, y = labelled()
    by_array = classifier().fit(X, y).predict_proba(X)
    for given in (pd.DataFrame(y, columns=list("abc")), y.tolist(), y.astype(float), y > 0):
        assert (classifier().fit(X, given).predict_proba(X) == by_array).all()
    assert classifier(epochs=1).fit(X, y > 0).predict(X).dtype == bool


def test_several_labels_are_exported_and_followed() -> None:
    X, y = labelled()
    fitted = classifier().fit(X, y)
    told = fitted.to_module()(torch.from_numpy(fitted.to_numbers(X)))
    np.testing.assert_allclose(told["probabilities"], fitted.predict_proba(X), atol=1e-6)
    assert dependence(fitted, X, "x0").mean.shape[1] == 3


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (lambda y: 2 * y, {}, "the value 2; multi-label targets are several columns of 0 and 1"),
        (lambda y: y, {"class_weight": "balanced"}, "class_weight='balanced' was given with 3 columns of labels"),
        (lambda y: y, {"class_cost": {0: 2.0}}, r"class_cost=.* was given with 3 columns of labels"),
        (lambda y: y, {"last_layer": "laplace"}, "last_layer='laplace' was given with Bernoulli"),
    ],
    ids=["other numbers", "class_weight", "class_cost", "last_layer"],
)
def test_what_does_not_go_with_several_labels_is_refused(change: Any, options: dict[str, Any], message: str) -> None:
    X, y = labelled()
    with pytest.raises(DataError, match=message):
        classifier(**options).fit(X, change(y))


def test_families_that_cannot_say_so() -> None:
    X, y = labelled()
    for name in UNABLE:
        with pytest.raises(DataError, match=f"{name}: y has 3 columns, but this estimator predicts one class"):
            getattr(fathomless, name)().fit(X, y)
    with pytest.raises(DataError, match="score each column of predict_proba"):
        evaluate(classifier(epochs=1).fit(X, y), X, y, name="rows")


def test_other_numbers_of_columns_are_refused_when_scored() -> None:
    X, y = labelled()
    fitted = classifier(epochs=1).fit(X, y)
    with pytest.raises(DataError, match=r"allowed are 0 and 1 in the shape \(80, 3\)"):
        fitted.predict_dist(X).log_prob(y[:, :2])
