"""Classifiers of ordered classes: the order of the labels, every family, files, scores and exports."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pandas as pd
import polars as pl
import pytest
import torch

import fathomless
from fathomless import HMC, FiniteNetworkClassifier, UnboundedDepthClassifier
from fathomless.app import manifests
from fathomless.data.streams import arrays
from fathomless.data.targets import ClassLabels, fit_labels, rank_labels
from fathomless.estimators.evaluation import Evaluation, evaluate
from fathomless.families.registry import load
from fathomless.posterior.likelihoods import CumulativeLogit
from fathomless.system.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")  # fits are short

Array = npt.NDArray[Any]
NAMES = np.array(["low", "mid", "high", "top"])


def planted(n: int, seed: int = 0, columns: int = 3) -> tuple[Array, Array]:
    """Return rows whose class is a latent number, with logistic noise, between thresholds."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, columns))
    latent = 2.0 * X[:, 0] + np.sin(2.0 * X[:, 1]) + rng.logistic(size=n)
    return X, (latent[:, None] > np.array([-2.0, 0.5, 2.5])).sum(1)


def classifier(**options: Any) -> UnboundedDepthClassifier:
    return UnboundedDepthClassifier(**{"epochs": 6, "width": 6, "cv": 3, "random_state": 0, "ordinal": True, **options})


@pytest.mark.parametrize(
    ("y", "ordinal", "ranks"),
    [
        ([3, 1, 2] * 2, True, (0, 1, 2)),
        ([1.0, 0.0] * 2, True, (0, 1)),
        ([True, False] * 2, True, (0, 1)),
        ([3, 1, 2] * 2, [3, 2, 1], (2, 1, 0)),
        ([3, 1, 2] * 2, np.array([3, 2, 1]).tolist(), (2, 1, 0)),
        (["low", "mid", "high"] * 2, ["low", "mid", "high"], (2, 0, 1)),
        (["low", "mid", "high"] * 2, ("none", "low", "mid", "high"), (2, 0, 1)),
        (pd.Series(pd.Categorical(["b", "a"] * 3, categories=["b", "z", "a"], ordered=True)), True, (1, 0)),
        (pl.Series(["b", "a"] * 3, dtype=pl.Enum(["b", "a"])), True, (1, 0)),
        (["b", "a"] * 3, False, ()),
    ],
    ids=str,
)
def test_the_order_of_labels(y: Any, ordinal: Any, ranks: tuple[int, ...]) -> None:
    labels = rank_labels(fit_labels(y), ordinal, y)
    assert labels.ranks == ranks
    assert ClassLabels.from_json(labels.to_json()) == labels


def test_the_order_of_categories_is_that_of_every_vector_of_pandas() -> None:
    codes = pd.Categorical.from_codes([0, 1, 2] * 4, [3, 1, 2], ordered=True)
    for y in (codes, pd.CategoricalIndex(codes), pd.Series(codes)):
        assert classifier(ordinal=True).fit(np.arange(12.0)[:, None], y).target_.ranks == (1, 2, 0)


@pytest.mark.parametrize(
    ("y", "ordinal", "message"),
    [
        (["b", "a"] * 3, True, "the order of text labels is unknown"),
        (pd.Series(["b", "a"] * 3, dtype="category"), True, "the order of text labels is unknown"),
        (["b", "a"] * 3, ["b", "A"], "'a' is not"),
        (["b", "a"] * 3, ["b", "a", "b"], "a label is repeated"),
        ([1, 2] * 3, ["1", "2"], "1 is not"),
        ([1, 2] * 3, "a,b", "True, False and a list of at least two labels are allowed"),
        ([1, 2] * 3, 1, "True, False and a list of at least two labels are allowed"),
        (np.eye(3, dtype=int)[[0, 1, 2] * 2], True, "ordinal=True was given with 3 columns of labels"),
    ],
    ids=str,
)
def test_unknown_orders_are_refused(y: Any, ordinal: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        classifier(ordinal=ordinal).fit(np.arange(6.0)[:, None], y)


def test_altered_ranks_are_refused() -> None:
    labels = rank_labels(fit_labels([1, 2, 3] * 2), True).to_json()
    for ranks in ([0, 1, 1], [0, 1], [0, 1, 2.0], [True, 0, 2]):
        with pytest.raises(DataError, match="altered"):
            ClassLabels.from_json({**labels, "ranks": ranks})


def test_text_in_a_given_order(tmp_path: Path) -> None:
    X, y = planted(90)
    fitted = classifier(ordinal=list(NAMES)).fit(X, NAMES[y])
    assert isinstance(fitted.likelihood_, CumulativeLogit)
    assert fitted.classes_.tolist() == sorted(NAMES)
    assert set(fitted.predict(X)) <= set(NAMES)
    probs = fitted.predict_proba(X)
    below = probs[:, [sorted(NAMES).index(name) for name in NAMES]].cumsum(1)[:, :-1]
    odds = np.log(below / (1.0 - below))
    assert (np.diff(odds) > 0.0).all()
    fitted.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert np.array_equal(again.predict_proba(X), probs)
    told = manifests.load_predictor(tmp_path / "m")[0].predict_dist(X).probs.numpy()
    np.testing.assert_allclose(told, probs, rtol=1e-12)
    assert again.get_params()["ordinal"] == tuple(NAMES)
    ordered = pd.Series(pd.Categorical(NAMES[y], categories=list(NAMES), ordered=True))
    assert np.array_equal(classifier().fit(X, ordered).predict_proba(X), probs)


def test_ordered_logits_are_better_on_few_ordered_rows() -> None:
    X, y = planted(200, columns=6)
    new = planted(3000, 1, columns=6)
    options: dict[str, Any] = {"epochs": 150, "width": 16, "cv": 5}
    scores = [
        evaluate(classifier(ordinal=ordinal, **options).fit(X, y), *new, name="new").scores for ordinal in (True, False)
    ]
    gain = scores[0]["log_likelihood"].value - scores[1]["log_likelihood"].value
    assert gain > 0.01
    assert scores[0]["rps"].value > 0.0
    assert "rps" not in scores[1]


FAMILIES: dict[str, dict[str, Any]] = {
    "SparseBayesClassifier": {"temperature": 1.0},
    "ContinuousDepthClassifier": {"cv": 2},
    "DeepEnsembleClassifier": {},
    "DepthUncertaintyNetworkClassifier": {},
    "DropoutNetworkClassifier": {},
    "LaplaceNetworkClassifier": {},
    "MatrixNormalNetworkClassifier": {},
    "SWAGNetworkClassifier": {},
    "SubspaceNetworkClassifier": {},
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_of_networks_has_ordered_classes(name: str, tmp_path: Path) -> None:
    X, y = planted(80)
    options = {"epochs": 3, "width": 4, "random_state": 0, "ordinal": True, **FAMILIES[name]}
    fitted = getattr(fathomless, name)(**options).fit(X, y)
    assert isinstance(fitted.likelihood_, CumulativeLogit)
    fitted.save(tmp_path / "m")
    assert np.array_equal(load(tmp_path / "m").predict_proba(X), fitted.predict_proba(X))


@pytest.mark.parametrize(
    "options",
    [
        {"cv": 1, "weights": "meanfield"},
        {"last_layer": "laplace"},
        {"candidates": {"activation": ("relu", "tanh")}},
        {"cv": 1, "n_restarts": 2},
        {"weights": HMC(chains=2, sweeps=16, leapfrogs=2)},
        {"structure_from": "elbo", "cv": 1},
        {"precision": "float32", "calibrate": False},
    ],
    ids=str,
)
def test_every_inference_of_depth_has_ordered_classes(options: dict[str, Any]) -> None:
    X, y = planted(80)
    fitted = classifier(**options).fit(X, y)
    assert isinstance(fitted.likelihood_, CumulativeLogit)
    assert np.isfinite(fitted.predict_log_proba(X)).all()


def test_what_has_no_ordered_classes_says_so() -> None:
    X, y = planted(60)
    for name in ("IndianChefsClassifier", "ProjectedBayesClassifier"):
        with pytest.raises(DataError, match="ordinal was given"):
            getattr(fathomless, name)(ordinal=True, random_state=0).fit(X, y)
    with pytest.raises(DataError, match="CumulativeLogit as likelihood, under which the mean"):
        classifier(last_layer="conjugate").fit(X, y)


def test_parts_and_streams_have_an_order() -> None:
    X, y = planted(120)
    fitted = FiniteNetworkClassifier(epochs=2, width=4, random_state=0, ordinal=list(NAMES))
    for part in (slice(0, 60), slice(60, 120)):
        fitted.partial_fit(X[part], NAMES[y[part]], classes=NAMES)
    assert fitted.target_.ranks == (2, 0, 1, 3)  # type: ignore[union-attr]
    streamed = classifier(cv=1).fit_stream(arrays(X, y))
    assert isinstance(streamed.likelihood_, CumulativeLogit)


def test_a_fit_continues_only_with_the_same_order() -> None:
    X, y = planted(60)
    fitted = FiniteNetworkClassifier(epochs=2, width=4, random_state=0, warm_start=True, ordinal=True).fit(X, y)
    fitted.fit(X, y)
    with pytest.raises(DataError, match=r"ordinal=False \(was True\)"):
        fitted.set_params(ordinal=False).fit(X, y)


def test_evaluations_keep_the_score(tmp_path: Path) -> None:
    X, y = planted(60)
    fitted = classifier(ordinal=list(NAMES)).fit(X, NAMES[y])
    evaluation = evaluate(fitted, X, NAMES[y], name="rows")
    below = fitted.predict_proba(X)[:, [1, 2, 0, 3]].cumsum(1)  # in the order of NAMES
    direct = np.square(below - (np.arange(4) >= y[:, None]))[:, :3].sum(1).mean()
    assert evaluation.scores["rps"].value == pytest.approx(direct)
    assert evaluation.baseline["rps"].value > direct
    evaluation.save(tmp_path / "evaluation")
    assert Evaluation.load(tmp_path / "evaluation").scores["rps"] == evaluation.scores["rps"]


def test_exports_agree(tmp_path: Path) -> None:
    X, y = planted(60)
    fitted = classifier(ordinal=[3, 2, 1, 0]).fit(X, y)
    probs = fitted.predict_proba(X)
    module = fitted.to_module()
    found = module(torch.from_numpy(fitted.to_numbers(X)))["probabilities"]
    np.testing.assert_allclose(found.numpy(), probs, atol=1e-12)
    exported = fitted.export(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    (name,) = [one.name for one in session.get_inputs()]
    (outputs,) = session.run(["probabilities"], {name: fitted.to_numbers(X)})
    np.testing.assert_allclose(outputs, probs, atol=1e-9)
