"""Option `trees`: gains on steps, folds, saving, refusals, and fits in which trees cannot be used."""

import copy
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch

from fathomless import (
    HMC,
    FiniteNetworkClassifier,
    FiniteNetworkRegressor,
    IndianChefsClassifier,
    SparseBayesClassifier,
    UnboundedDepthClassifier,
    UnboundedDepthRegressor,
)
from fathomless.data import streams
from fathomless.estimators import trees
from fathomless.estimators.exporting import build_networks
from fathomless.inference.out_of_fold.trees import TreeRows, grow_trees
from fathomless.system.errors import ConvergenceWarning, DataError, DataWarning
from quick_fits import classes as easy_classes

Array = npt.NDArray[Any]
QUICK: dict[str, Any] = {"epochs": 30, "width": 8, "random_state": 0}


def boxes(rows: int, seed: int) -> tuple[Array, Array]:
    """Numbers that depend on boxes of four columns."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(rows, 4))
    inside = (X[:, 0] > 0.3) & (X[:, 0] < 0.6) & (X[:, 1] > 0.5)
    return X, 2.0 * inside + (X[:, 2] > 0.4) * (X[:, 3] < 0.7) + 0.2 * rng.normal(size=rows)


def grades(rows: int, seed: int) -> tuple[Array, Array]:
    X, y = boxes(rows, seed)
    return X, np.array(["high", "low", "mid"])[np.digitize(y, [0.5, 1.5])]


@pytest.fixture(scope="module")
def regressor() -> UnboundedDepthRegressor:
    return UnboundedDepthRegressor(cv=4, trees=True, **QUICK).fit(*boxes(400, 0))


@pytest.fixture(scope="module")
def classifier() -> UnboundedDepthClassifier:
    return UnboundedDepthClassifier(cv=4, trees=True, **QUICK).fit(*grades(400, 0))


def test_numbers_with_steps_are_predicted_better(regressor: UnboundedDepthRegressor) -> None:
    X, y = boxes(2000, 1)
    plain = UnboundedDepthRegressor(cv=4, **QUICK).fit(*boxes(400, 0))
    gain = np.asarray(regressor.predict_dist(X).log_prob(y) - plain.predict_dist(X).log_prob(y))
    (fit,) = regressor.fit_diagnostics_.recalibration
    assert fit.trees is not None
    assert fit.trees.weight > 0.5
    assert sum(fit.weights.values()) == pytest.approx(1.0)
    assert gain.mean() > 0.3
    assert fit.trees.gain == pytest.approx(gain.mean(), abs=0.2)
    low, high = regressor.predict_interval(X)
    assert 0.86 < np.mean((y > low) & (y < high)) < 0.98  # a linear pool is wider than its parts
    assert np.mean((regressor.predict(X) - y) ** 2) < 0.5 * np.mean((plain.predict(X) - y) ** 2)


def test_classes_with_steps_are_predicted_better(classifier: UnboundedDepthClassifier) -> None:
    X, y = grades(2000, 1)
    pool, fit = classifier.trees_, classifier.fit_diagnostics_.trees
    assert pool is not None
    assert fit is not None
    assert fit.weight > 0.3
    p = classifier.predict_dist(X)
    alone = copy.copy(classifier)
    alone.trees_ = None
    gain = np.asarray(p.log_prob(y) - alone.predict_dist(X).log_prob(y))
    assert gain.mean() > 0.1
    assert fit.gain == pytest.approx(gain.mean(), abs=4.0 * fit.error + 0.03)
    np.testing.assert_allclose(classifier.predict_proba(X).sum(1), 1.0)
    parts = p.uncertainty()
    torch.testing.assert_close(parts.noise + parts.weights + parts.structure, p.entropy())


def test_the_score_is_that_of_out_of_fold_predictions(
    regressor: UnboundedDepthRegressor, classifier: UnboundedDepthClassifier
) -> None:
    X, y = grades(400, 0)
    unseen = float(classifier.predict_dist(X, fold=classifier.fold_).log_prob(y).mean())
    assert classifier.validation_score_ == pytest.approx(unseen, abs=0.02)
    X, y = boxes(400, 0)
    unseen = float(regressor.predict_dist(X, fold=regressor.fold_).log_prob(y).mean())
    assert regressor.validation_score_ == pytest.approx(unseen, abs=0.06)
    assert float(regressor.predict_dist(X).log_prob(y).mean()) > unseen  # trees that saw the rows


def test_networks_have_the_bytes_of_a_fit_without_trees(classifier: UnboundedDepthClassifier) -> None:
    plain = UnboundedDepthClassifier(cv=4, **QUICK).fit(*grades(400, 0))
    own, others = classifier.model_.state_dict(), plain.model_.state_dict()
    assert own.keys() == others.keys()
    assert all(torch.equal(value, others[name]) for name, value in own.items())


def test_saved_fits_predict_the_same_bytes(
    regressor: UnboundedDepthRegressor, classifier: UnboundedDepthClassifier, tmp_path: Path
) -> None:
    for fitted in (regressor, classifier):
        X = boxes(50, 2)[0]
        fitted.save(tmp_path / type(fitted).__name__)
        again = type(fitted).load(tmp_path / type(fitted).__name__)
        assert again.fit_diagnostics_ == fitted.fit_diagnostics_
        if isinstance(fitted, UnboundedDepthClassifier):
            np.testing.assert_array_equal(again.predict_proba(X), fitted.predict_proba(X))
        else:
            np.testing.assert_array_equal(again.predict(X), fitted.predict(X))


def test_an_exported_module_has_the_trees(
    regressor: UnboundedDepthRegressor, classifier: UnboundedDepthClassifier, tmp_path: Path
) -> None:
    X = boxes(50, 3)[0]
    outputs = regressor.to_module((0.5,))(torch.as_tensor(X))
    p = regressor.predict_dist(X)
    np.testing.assert_allclose(outputs["mean"].numpy(), p.mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(outputs["quantiles"][:, 0].numpy(), p.quantile(0.5), rtol=1e-5, atol=1e-5)
    module = classifier.to_module()
    np.testing.assert_allclose(module(torch.as_tensor(X))["probabilities"], classifier.predict_proba(X), atol=1e-6)
    rows = torch.as_tensor(X).requires_grad_()
    module(rows)["probabilities"][:, 0].sum().backward()  # through the networks
    assert rows.grad is not None
    assert bool((rows.grad != 0.0).any())
    assert classifier.export(tmp_path / "model.onnx").difference < 1e-6


def test_a_model_of_botorch_has_no_trees(regressor: UnboundedDepthRegressor) -> None:
    with pytest.raises(DataError, match="trees have no gradients"):
        build_networks(regressor)


@pytest.mark.parametrize("options", [{"recalibrate": False}, {"likelihood": "gaussian"}, {"noise": 0.5}])
def test_trees_of_numbers_need_a_recalibration(options: dict[str, Any]) -> None:
    with pytest.raises(DataError, match="trees=True"):
        UnboundedDepthRegressor(trees=True, **options).fit(*boxes(50, 0))


def test_tables_without_trees_are_refused() -> None:
    X, y = boxes(60, 0)
    labels = np.stack([y > 0.5, y > 1.0], 1).astype(int)
    with pytest.raises(DataError, match="2 columns of labels"):
        UnboundedDepthClassifier(trees=True, **QUICK).fit(X, labels)
    with pytest.raises(DataError, match="a stream"):
        UnboundedDepthRegressor(trees=True, cv=1, **QUICK).fit_stream(streams.arrays(X, y))
    with pytest.raises(DataError, match="trees=True"):
        UnboundedDepthRegressor(trees=True, cv=3, **QUICK).fit(X, y, censored=y > 1.0)
    for name in ("trees", "neighbors"):
        with pytest.raises(DataError, match=f"{name}=True"):
            FiniteNetworkRegressor(**{name: True}, **QUICK).partial_fit(X, y)


def test_a_fit_without_enough_rows_warns_that_trees_have_no_effect() -> None:
    X, y = grades(28, 0)
    with pytest.warns(ConvergenceWarning, match="trees=True has no effect"):
        fitted = UnboundedDepthClassifier(cv=2, trees=True, **QUICK).fit(X, y)
    assert fitted.trees_ is None
    with pytest.warns(ConvergenceWarning, match="trees=True has no effect"):
        UnboundedDepthRegressor(cv=2, trees=True, **QUICK).fit(*boxes(28, 0))


def test_trees_that_do_not_help_are_not_used() -> None:
    X, y = easy_classes(150, k=2)
    shuffled = np.random.default_rng(0).permutation(y)
    fitted = UnboundedDepthClassifier(cv=3, trees=True, **QUICK).fit(X, shuffled)
    assert fitted.trees_ is None
    fit = fitted.fit_diagnostics_.trees
    assert fit is not None
    assert fit.weight == 0.0


def test_trees_of_a_single_network_are_weighted_by_its_held_out_rows() -> None:
    X, y = grades(600, 0)
    fitted = FiniteNetworkClassifier(validation_fraction=0.3, trees=True, **QUICK).fit(X, y)
    fit = fitted.fit_diagnostics_.trees
    assert fit is not None
    assert fit.rows == len(fitted.held_out_)
    assert fitted.trees_ is not None
    assert fitted.trees_.trees.ensembles == 1
    X, y = boxes(600, 0)
    reg = FiniteNetworkRegressor(validation_fraction=0.3, trees=True, **QUICK).fit(X, y)
    assert reg.recalibration_ is not None
    assert reg.recalibration_.trees is not None
    assert reg.recalibration_.trees.boosted.ensembles == 1
    # the trees were not fitted to the held-out rows: their error there is the scale of their residuals
    held = torch.as_tensor(reg.predictor_.encode(X[reg.held_out_]))
    z = torch.as_tensor(reg.target_.encode(y[reg.held_out_])).reshape(-1, 1)
    error = (reg.recalibration_.trees.boosted(held) - z).square().mean().sqrt()
    torch.testing.assert_close(error, reg.recalibration_.trees.scale[0])


def test_other_families_columns_and_orders() -> None:
    X, y = grades(300, 0)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(kind=np.where(X[:, 0] > 0.5, "x", "y"))
    frame.loc[::7, "a"] = np.nan
    sparse = SparseBayesClassifier(trees=True, numbers="binned", validation_fraction=0.3, temperature=0.5, **QUICK)
    with pytest.warns(ConvergenceWarning, match="inclusion logits"):
        fitted = sparse.fit(frame, y)
    assert fitted.trees_ is not None
    names = np.array(fitted.schema_.encoded_names)
    used = set(names[fitted.trees_.trees.feature.unique()])
    assert used <= set(fitted.schema_.plain.encoded_names)
    assert len(used) > 2
    ordered = UnboundedDepthClassifier(cv=3, trees=True, ordinal=["low", "mid", "high"], **QUICK).fit(X, y)
    assert ordered.trees_ is not None
    np.testing.assert_allclose(ordered.predict_proba(X).sum(1), 1.0)


def test_several_targets_counts_and_amounts() -> None:
    X, y = boxes(150, 0)
    both = UnboundedDepthRegressor(cv=3, trees=True, **QUICK).fit(X, np.stack([y, -3.0 * y], 1))
    assert len(both.fit_diagnostics_.trees_of_targets) == 2
    assert both.predict(X).shape == (150, 2)
    counts = UnboundedDepthRegressor(cv=3, trees=True, **QUICK).fit(X, np.rint(2.0 * y))
    p = counts.predict_dist(X[:20])
    assert p.discrete
    points = torch.arange(-60.0, 60.0, dtype=torch.float64)[:, None]
    torch.testing.assert_close(p.pmf(points).sum(0), torch.ones(20, dtype=torch.float64), rtol=0.0, atol=1e-4)
    amounts = UnboundedDepthRegressor(cv=3, trees=True, **QUICK).fit(X, np.where(y > 0.5, y, 0.0))
    assert amounts.hurdle_ is not None
    assert amounts.fit_diagnostics_.trees_of_targets


@pytest.mark.parametrize("rows", [250, 270])  # equal rows are merged up to 256 rows
def test_equal_rows_of_small_tables_can_be_split(rows: int) -> None:
    rng = np.random.default_rng(0)
    X = rng.integers(0, 2, (rows, 3)).astype(float)
    parity = (X.sum(1) % 2).astype(int)
    y = np.where(rng.uniform(size=rows) < 0.1, 1 - parity, parity)
    fitted = UnboundedDepthClassifier(cv=3, trees=True, depth_law=0, **QUICK).fit(X, y)
    assert fitted.trees_ is not None
    assert np.mean(fitted.predict(X) == parity) > 0.95


def listen(monkeypatch: pytest.MonkeyPatch) -> list[TreeRows]:
    """Return a list of the rows of all later fits of trees."""
    found: list[TreeRows] = []

    def grow(rows: TreeRows, *more: Any) -> Any:
        found.append(rows)
        return grow_trees(rows, *more)

    monkeypatch.setattr(trees, "grow_trees", grow)
    return found


def test_no_ensemble_is_trained_on_the_group_of_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    found = listen(monkeypatch)
    rng = np.random.default_rng(0)
    groups = np.repeat(np.arange(60), 3)
    X, y = rng.normal(size=(60, 2))[groups] + 1e-6 * rng.normal(size=(180, 2)), rng.normal(size=60)[groups]
    UnboundedDepthRegressor(cv=4, trees=True, **QUICK).fit(X, y, groups=groups)
    options = {"depth_law": 1, "epochs": 10, "width": 2, "cv": 1, "validation_fraction": 0.4, "random_state": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        UnboundedDepthRegressor(weights=HMC(chains=2, sweeps=40), trees=True, **options).fit(X, y, groups=groups)
    assert len(found) == 2
    for rows in found:
        for inside, outside in zip(rows.inside, rows.outside, strict=True):
            trained, scored = (rows.x[part].round(4) for part in (inside, outside))
            assert not {*map(tuple, trained)} & {*map(tuple, scored)}


def test_rows_of_rare_classes_are_in_every_training(monkeypatch: pytest.MonkeyPatch) -> None:
    found = listen(monkeypatch)
    X, y = grades(120, 0)
    y = y.astype(object)
    y[:2] = "rare"
    with pytest.warns(DataWarning):
        UnboundedDepthClassifier(cv=4, trees=True, **QUICK).fit(X, y)
    (rows,) = found
    assert all((rows.y[inside] == 3).sum() == 2 for inside in rows.inside)  # the last of four labels
    assert sum(map(len, rows.outside)) == 118


def test_other_weights_of_chains_have_no_trees() -> None:
    X, y = grades(90, 0)
    chains = IndianChefsClassifier(
        chains=2, sweeps=30, states=5, engine="numpy", validation_fraction=0.4, trees=True, random_state=0
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = chains.fit(X, y)
    assert fitted.fit_diagnostics_.trees is not None
    other = fitted.weighed_by("all")
    assert other.trees_ is None
    assert other.fit_diagnostics_.trees is None
