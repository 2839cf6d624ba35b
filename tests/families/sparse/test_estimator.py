"""The estimators of networks whose weights may be absent."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from fathomless import Restarts, SparseBayesClassifier, SparseBayesRegressor
from fathomless.app import cli
from fathomless.data.frames import encode
from fathomless.families.registry import families, load
from fathomless.families.sparse.paths import active_paths
from fathomless.families.sparse.plain import load_sparse
from fathomless.families.sparse.report import page
from fathomless.nn.multiplicative_flow import FlowOptions
from fathomless.system.errors import ConvergenceWarning, DataError
from quick_fits import checked

# most trainings here are too short for the structure to move
pytestmark = pytest.mark.filterwarnings("ignore:inclusion logits start:fathomless.system.errors.ConvergenceWarning")
QUICK: dict[str, Any] = {"temperature": 0.1, "epochs": 20, "width": 8, "random_state": 0}


def table(n: int = 200, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Two numbers and a category matter, two columns do not."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({name: rng.standard_normal(n) for name in ("size", "age", "luck", "mood")})
    frame.insert(2, "town", rng.choice(["A", "B", "C"], n))
    y = 2.0 * frame["size"] - frame["age"] + 1.5 * (frame["town"] == "B") + 0.3 * rng.standard_normal(n)
    return frame, y.to_numpy()


@pytest.mark.filterwarnings("ignore:class_weight sums to:fathomless.system.errors.DataWarning")
@pytest.mark.filterwarnings("ignore:.* given; fewer than 12:fathomless.system.errors.DataWarning")
@parametrize_with_checks(
    [
        SparseBayesClassifier(temperature=0.02, learning_rate=0.03, epochs=40, depth=1, width=8, random_state=0),
        SparseBayesRegressor(temperature=0.1, learning_rate=0.03, epochs=60, depth=1, width=16, random_state=0),
    ]
)
def test_scikit_learn_finds_nothing_to_complain_about(estimator: Any, check: Any) -> None:
    checked(estimator, check, epochs=4)


def test_a_linear_model_selects_the_columns_that_matter() -> None:
    X, y = table()
    fitted = SparseBayesRegressor(depth=0, temperature=1.0, random_state=0).fit(X, y)
    assert fitted.selected_features_ == ["size", "age", "town"]
    relevance = fitted.feature_relevance()
    assert list(relevance) == list(X.columns)
    assert min(relevance[name] for name in ("size", "age", "town")) > 0.95
    assert max(relevance["luck"], relevance["mood"]) < 0.5
    assert fitted.inclusion_probability_["0"].shape == (1, 7)
    assert fitted.score(*table(seed=1)) > 0.9


@pytest.mark.parametrize("posterior", ["lrt", "flow", "relaxed", "slab", "mnf"])
@pytest.mark.parametrize("kind", [SparseBayesClassifier, SparseBayesRegressor])
def test_every_posterior_is_fitted_saved_and_loaded_to_the_same_predictions(
    kind: type[Any], posterior: str, tmp_path: Path
) -> None:
    X, y = table(80)
    y = y if kind is SparseBayesRegressor else np.where(y > 0, "yes", "no")
    fitted = kind(posterior=posterior, flow=FlowOptions(hidden=(4,)), **QUICK).fit(X, y)
    fitted.save(tmp_path / "m")
    again = load(tmp_path / "m")
    assert type(again) is kind
    assert again.flow == FlowOptions(hidden=(4,))
    if kind is SparseBayesRegressor:
        assert np.array_equal(fitted.predict(X), again.predict(X))
    else:
        assert np.array_equal(fitted.predict_proba(X), again.predict_proba(X))
    assert again.feature_relevance(20) == fitted.feature_relevance(20)


@pytest.mark.parametrize("posterior", ["slab", "mnf"])
def test_dense_slab_has_no_structure(posterior: str) -> None:
    """Without inclusion variables all uncertainty about the network is uncertainty about weights."""
    X, y = table(80)
    fitted = SparseBayesRegressor(posterior=posterior, flow=FlowOptions(hidden=(4,)), **QUICK).fit(X, y)
    parts = fitted.predict_dist(X).uncertainty()
    assert float(parts.weights.min()) > 0.0
    assert torch.equal(parts.structure, torch.zeros_like(parts.structure))


def test_median_predictions_are_those_of_the_export(tmp_path: Path) -> None:
    X, y = load_iris(return_X_y=True)
    fitted = SparseBayesClassifier(temperature=0.1, epochs=300, depth=1, predict_by="median", random_state=0).fit(X, y)
    export = fitted.to_sparse()
    export.save(tmp_path / "small")
    rows = torch.as_tensor(encode(fitted.schema_, X), dtype=fitted.model_.dtype)
    fitted.model_.set_prediction("median", use_means=True)
    expected = fitted.model_.draw(rows).f[0]
    torch.testing.assert_close(export.network(rows), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(load_sparse(tmp_path / "small")(rows), export.network(rows))
    assert np.mean(export.network(rows).argmax(1).numpy() == y) > 0.9
    assert export.report.density < 0.5


def test_priors_of_single_columns_and_learned_ones() -> None:
    X, y = table(100)
    given = [0.5, 0.5, 0.001, 0.001, 0.001, 0.5, 0.5]  # the three levels of town come third
    fitted = SparseBayesRegressor(depth=0, prior_inclusion=given, **QUICK).fit(X, y)
    layer = fitted.model_.sparse_layers()[0][1]
    assert layer.weight.prior.odds.sigmoid().tolist() == pytest.approx(given)
    learned = SparseBayesRegressor(prior_inclusion="learned", weight_prior="learned", **QUICK).fit(X, y)
    assert learned.model_.sparse_layers()[0][1].weight.prior.odds == "learned"


def test_restarts_are_trained_side_by_side() -> None:
    X, y = table(80)
    best = SparseBayesRegressor(n_restarts=2, **QUICK).fit(X, y)
    assert best.to_sparse().report.layers
    average = SparseBayesRegressor(n_restarts=Restarts(count=2, keep="average"), **QUICK).fit(X, y)
    assert len(average.model_.members) == 2
    with pytest.raises(DataError, match="an average of 2 networks"):
        average.to_sparse()


def test_inputs_are_seen_by_every_layer_of_a_skip_network() -> None:
    X, y = table(80)
    fitted = SparseBayesRegressor(architecture="skip", **QUICK).fit(X, y)
    assert [p.shape[1] for p in fitted.inclusion_probability_.values()] == [7, 15, 15]
    assert fitted.to_sparse().report.inputs


def test_columns_enter_the_layers_of_a_skip_network() -> None:
    X, y = table(80)
    fitted = SparseBayesRegressor(architecture="skip", **QUICK).fit(X, y)
    entries, used = fitted.feature_entries(), fitted.feature_relevance()
    assert list(entries) == list(used) == list(X.columns)
    for name, probability in entries.items():
        assert probability.shape == (3,)
        assert probability.max() <= used[name] <= min(1.0, probability.sum() + 1e-9)
    plain = SparseBayesRegressor(**QUICK).fit(X, y)
    for name, probability in plain.feature_entries().items():
        assert probability.tolist() == [plain.feature_relevance()[name], 0.0, 0.0]
    table_of_columns = next(group for group in page(fitted).groups if group.table and "Column" in group.table.head)
    assert table_of_columns.table.head == ("Column", "Kept", "Probability", "Layer 1", "Layer 2", "Layer 3")


LONG = {
    "architecture": "skip",
    "width": 8,
    "temperature": 1.0,
    "epochs": 800,
    "learning_rate": 0.015,
    "random_state": 0,
}


def test_the_median_model_of_a_linear_truth_is_linear() -> None:
    """No hidden layer keeps a weight, which is no reason for a warning about a constant."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 3))
    y = X @ [2.0, -1.0, 0.0] + 0.3 * rng.standard_normal(300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = SparseBayesRegressor(**LONG).fit(X, y)
    paths = active_paths(fitted.model_)
    assert [int(layer.active.sum()) for layer in paths.layers] == [0, 0, 2]
    assert fitted.selected_features_ == ["x0", "x1"]
    entries = np.array(list(fitted.feature_entries().values()))  # (columns, layers)
    assert entries[:2, 2].min() > 0.95
    assert entries[:, :2].max() < 0.5 > entries[2].max()


def test_a_column_whose_effect_is_not_linear_enters_a_hidden_layer() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((600, 4))
    y = 2.0 * X[:, 0] - X[:, 1] + np.abs(2.0 * X[:, 2]) + 0.2 * rng.standard_normal(600)
    entries = np.array(list(SparseBayesRegressor(**LONG).fit(X, y).feature_entries().values()))
    assert entries[:2, 2].min() > 0.95
    assert entries[2, :2].max() > 0.95 > 0.5 > entries[2, 2]
    assert entries[3].max() < 0.5


def test_a_network_of_one_s_own() -> None:
    X, y = table(60)

    def build(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, outputs))

    fitted = SparseBayesRegressor(architecture=build, **QUICK).fit(X, y)
    assert list(fitted.inclusion_probability_) == ["0", "3"]
    with pytest.raises(DataError, match="LayerNorm"):
        fitted.to_sparse()


def test_a_network_that_is_pruned_away_says_so() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 3)), rng.standard_normal(60)
    with pytest.warns(ConvergenceWarning, match="keeps no weight of layer"):
        SparseBayesRegressor(temperature=1.0, epochs=300, width=8, random_state=0).fit(X, y)


def test_a_training_in_which_no_weight_could_leave_says_so() -> None:
    X, y = table(80)
    with pytest.warns(ConvergenceWarning, match="could move by about 0.16, .*: the number of weights kept"):
        SparseBayesRegressor(**QUICK).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SparseBayesRegressor(posterior="slab", **QUICK).fit(X, y)
        SparseBayesRegressor(**QUICK | {"epochs": 250}).fit(X, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"posterior": "vi"}, "posterior='vi' was given; allowed are 'lrt', 'flow', 'relaxed', 'slab'"),
        ({"predict_by": "mean"}, "predict_by='mean' was given; allowed are 'average' and 'median'"),
        ({"architecture": "cnn"}, "architecture='cnn' was given"),
        ({"prior_inclusion": 1.0}, "prior_inclusion=1.0 was given; 0 < prior_inclusion < 1 is allowed, or 'learned'"),
        ({"prior_inclusion": [0.5]}, "prior_inclusion has 1 numbers and the encoded table 7 columns"),
        ({"prior_inclusion": "some"}, "prior_inclusion='some' was given"),
        ({"weight_prior": -1.0}, "weight_prior=-1.0 was given; a positive, finite number is allowed, or 'learned'"),
        ({"width": 10**7}, "a width of about"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError) as error:
        SparseBayesRegressor(**{**QUICK, **options}).fit(*table(40))
    assert message in str(error.value)


def test_the_command_line_fits_predicts_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, y = table(120)
    X.assign(price=y).to_csv(tmp_path / "houses.csv", index=False)
    run, fit = tmp_path / "run", ["fit", str(tmp_path / "houses.csv"), "--target", "price", "--structure", "sparse"]
    options = ["--depth", "1", "--epochs", "60", "--predict-by", "median", "--architecture", "skip", "--seed", "1"]
    assert cli.main([*fit, "--out", str(run), *options, "--quiet"]) == 0
    assert cli.main(["predict", str(run), str(tmp_path / "houses.csv"), "--out", str(tmp_path / "p.csv")]) == 0
    assert len(pd.read_csv(tmp_path / "p.csv")) == 120
    assert cli.main(["report", str(run)]) == 0
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "median probability model" in page


def test_families_know_the_sparse_estimators() -> None:
    assert list(families()["sparse"].estimators) == ["SparseBayesClassifier", "SparseBayesRegressor"]
