"""The scikit-learn border: what an estimator promises to whoever fits, predicts, saves and loads one."""

import datetime
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fathomless.data import datasets
from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.families.depth.laws import FixedDepth, PoissonPrior, SmoothTruncation, TruncatedPoisson, UniformPrior
from fathomless.nn.architectures import MLP, Architecture
from fathomless.system import io
from fathomless.system.errors import ConvergenceWarning, DataError, FileError

Array = npt.NDArray[Any]
LAWS = ("poisson", "two_sided", "taper", "quantile", "stick_breaking", "categorical")

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")


def problem(n: int = 80, columns: int = 3, targets: int = 1, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, columns))
    y = np.sin(X[:, :1]) + X[:, 1:2] * np.arange(1, targets + 1) + 0.2 * rng.normal(size=(n, targets))
    return X, y[:, 0] if targets == 1 else y


def classes(n: int = 80, k: int = 3, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)) + np.arange(n)[:, None] % k
    return X, np.arange(n) % k


def regressor(**options: Any) -> UnboundedDepthRegressor:
    return UnboundedDepthRegressor(**{"epochs": 8, "width": 8, "random_state": 0, **options})


def classifier(**options: Any) -> UnboundedDepthClassifier:
    return UnboundedDepthClassifier(**{"epochs": 8, "width": 8, "random_state": 0, **options})


# ------------------------------------------------------------------------------------------- scikit-learn


# the regressor as it comes; of the classifier, which shares its training, shorter ones
@parametrize_with_checks([UnboundedDepthClassifier(epochs=250), UnboundedDepthRegressor()])
def test_scikit_learn_finds_nothing_to_complain_about(estimator: Any, check: Any) -> None:
    check(estimator)


def test_pipelines_searches_and_cross_validation_work() -> None:
    X, y = classes()
    pipe = make_pipeline(StandardScaler(), classifier())
    assert pipe.fit(X, y).predict_proba(X).shape == (80, 3)
    search = GridSearchCV(classifier(epochs=3), {"width": [4, 8], "depth_law": ["poisson", 1]}, cv=2).fit(X, y)
    assert set(search.best_params_) == {"width", "depth_law"}
    assert search.best_estimator_.predict(X).shape == (80,)
    assert cross_val_score(classifier(epochs=60), X, y, cv=3).mean() > 0.5
    X, y = problem()
    assert np.isfinite(cross_val_score(regressor(), X, y, cv=3)).all()
    assert cross_val_predict(regressor(), X, y, cv=3).shape == y.shape
    wrapped = TransformedTargetRegressor(regressor(), func=np.exp, inverse_func=np.log, check_inverse=False)
    assert wrapped.fit(X, y).predict(X).shape == y.shape


def test_clone_and_parameters_keep_every_option() -> None:
    law, prior = TruncatedPoisson(3.0, SmoothTruncation()), UniformPrior(20)
    first = regressor(depth_law=law, depth_prior=prior, schedule=((2, 0.1), (8, 1.0)), noise=0.3)
    again = clone(first)
    assert again.get_params() == first.get_params()
    assert again.set_params(width=5, noise="input").get_params()["width"] == 5
    assert not hasattr(clone(first.fit(*problem())), "model_")
    assert "width=8" in repr(first)


# -------------------------------------------------------------------------------------------- data frames


def table(n: int = 70) -> dict[str, list[Any]]:
    rng = np.random.default_rng(1)
    start = datetime.datetime(2024, 1, 1)
    size = [float(v) for v in rng.normal(size=n)]
    colour = [("red", "green", "blue")[i % 3] for i in range(n)]
    return {
        "size": [None if i % 11 == 5 else size[i] for i in range(n)],
        "count": [int(v) for v in rng.integers(0, 9, n)],
        "new": [bool(v) for v in rng.integers(0, 2, n)],
        "colour": [None if i % 13 == 7 else colour[i] for i in range(n)],
        "day": [start + datetime.timedelta(days=3 * i) for i in range(n)],
    }


FRAMES = {
    "pandas": lambda t: pd.DataFrame(t).astype({"colour": "category"}),
    "polars": lambda t: pl.DataFrame(t).with_columns(pl.col("colour").cast(pl.Categorical)),
    "pyarrow": pa.table,
}


@pytest.mark.parametrize("make", FRAMES.values(), ids=FRAMES.keys())
def test_frames_of_numbers_booleans_categories_dates_and_gaps_are_encoded(make: Any) -> None:
    rows = table()
    y = np.array([0.0 if c is None else len(c) for c in rows["colour"]])
    frame = make(rows)
    fitted = regressor(epochs=200, width=16).fit(frame, y)
    assert list(fitted.feature_names_in_) == list(rows)
    assert fitted.n_features_in_ == 5
    names = fitted.schema_.encoded_names
    assert {"size", "size is missing", "new", "colour=red", "colour is missing", "day (weekday, sin)"} <= set(names)
    assert r2_score(y, fitted.predict(frame)) > 0.8  # it has seen the categories
    few = make({name: values[:7] for name, values in rows.items()})
    np.testing.assert_allclose(fitted.predict(few), fitted.predict(frame)[:7], rtol=1e-9)
    labels = classifier(epochs=2).fit(frame, rows["new"])
    assert labels.predict_proba(few).shape == (7, 2)


def test_frames_of_all_kinds_give_the_same_model() -> None:
    rows = table()
    y = np.arange(70.0)
    predictions = [regressor().fit(make(rows), y).predict(make(rows)) for make in FRAMES.values()]
    np.testing.assert_array_equal(predictions[0], predictions[1])
    np.testing.assert_array_equal(predictions[0], predictions[2])


def test_columns_in_another_order_are_refused_as_scikit_learn_prescribes() -> None:
    frame = pd.DataFrame(table())
    fitted = regressor(epochs=1).fit(frame, np.arange(70.0))
    with pytest.raises(ValueError, match="must be in the same order as they were in fit"):
        fitted.predict(frame[list(frame)[::-1]])


@pytest.mark.parametrize(
    "target", [lambda v: pd.Series(v, dtype="category"), pl.Series, pa.chunked_array, list], ids=lambda f: str(f)[:20]
)
def test_targets_may_be_series(target: Any) -> None:
    X, y = classes(k=2)
    words = np.array(["no", "yes"])[y].tolist()
    column = pa.chunked_array([words]) if target is pa.chunked_array else target(words)
    fitted = classifier().fit(X, column)
    assert fitted.classes_.tolist() == ["no", "yes"]
    assert set(fitted.predict(X).tolist()) <= {"no", "yes"}
    weight = np.arange(80) < 50  # rows without weight are dropped, whatever the container
    by_weight = classifier().fit(X, column, sample_weight=weight).predict_proba(X)
    np.testing.assert_allclose(by_weight, classifier().fit(X[:50], words[:50]).predict_proba(X), rtol=1e-9)


def test_several_targets_may_come_as_a_frame() -> None:
    X, y = problem(targets=2)
    by_array = regressor().fit(X, y).predict(X)
    np.testing.assert_array_equal(regressor().fit(X, pd.DataFrame(y, columns=["a", "b"])).predict(X), by_array)
    np.testing.assert_array_equal(regressor().fit(X, pl.DataFrame(y, schema=["a", "b"])).predict(X), by_array)


# ------------------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("names", "dtype"),
    [
        (np.array(["ant", "bee", "cat"]), "U"),
        (np.array([False, True]), "b"),
        (np.array([-5, 0, 7]), "i"),
        (np.array(["ant", "bee", "cat"], dtype=object), "O"),
        (np.array([1.0, 2.0]), "f"),
    ],
    ids=["text", "booleans", "integers", "objects", "whole numbers"],
)
def test_labels_of_every_type_come_back_as_they_were(names: Array, dtype: str, tmp_path: Path) -> None:
    X, codes = classes(k=len(names))
    fitted = classifier(epochs=40).fit(X, names[codes])
    assert fitted.classes_.tolist() == sorted(names.tolist())
    labels = fitted.predict(X)
    assert labels.dtype.kind == fitted.classes_.dtype.kind == dtype
    assert (labels == names[codes]).mean() > 0.4
    assert (labels == fitted.classes_[fitted.predict_proba(X).argmax(1)]).all()
    loaded = UnboundedDepthClassifier.load(fitted.save(tmp_path / "m"))
    assert loaded.predict(X).dtype == labels.dtype
    assert (loaded.predict(X) == labels).all()


def test_many_and_unbalanced_classes_are_learned() -> None:
    rng = np.random.default_rng(0)
    codes = np.concatenate([np.arange(26), np.repeat(0, 500), rng.integers(0, 26, 300)])  # one class has most rows
    X = np.column_stack([codes % 6, codes // 6]) + 0.05 * rng.normal(size=(len(codes), 2))
    y = np.array(list("abcdefghijklmnopqrstuvwxyz"))[codes]
    fitted = classifier(epochs=300, width=32).fit(X, y)
    assert "".join(fitted.classes_) == "abcdefghijklmnopqrstuvwxyz"
    assert fitted.predict_proba(X).shape == (len(X), 26)
    assert fitted.score(X, y) > 0.9


# -------------------------------------------------------------------------------------------- predictions


@pytest.mark.parametrize("weights", ["map", "meanfield"])
def test_probabilities_sum_to_one_and_agree_with_samples(weights: str) -> None:
    X, y = classes()
    fitted = classifier(weights=weights).fit(X, y)
    p = fitted.predict_proba(X[:10])
    np.testing.assert_allclose(p.sum(1), 1.0, atol=1e-12)
    np.testing.assert_allclose(fitted.predict_log_proba(X[:10]), np.log(p), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(fitted.predict_dist(X[:10]).probs, p, rtol=1e-12)
    n = 20_000
    draws = fitted.sample_y(X[:10], n)
    assert draws.shape == (10, n)
    for k, label in enumerate(fitted.classes_):
        share = (draws == label).mean(1)
        assert (np.abs(share - p[:, k]) < 5 * np.sqrt(p[:, k] * (1 - p[:, k]) / n)).all()


@pytest.mark.parametrize(
    "options", [{}, {"weights": "meanfield"}, {"noise": "input"}, {"likelihood": "laplace"}], ids=str
)
@pytest.mark.parametrize("targets", [1, 2])
def test_means_deviations_intervals_and_samples_agree(options: dict[str, Any], targets: int) -> None:
    X, y = problem(targets=targets)
    fitted = regressor(**options).fit(X, y)
    new = X[:6]
    mean, std = fitted.predict(new, return_std=True)
    assert mean.shape == std.shape == (6, targets)[: y.ndim]
    np.testing.assert_array_equal(fitted.predict(new), mean)
    p = fitted.predict_dist(new)
    np.testing.assert_array_equal(p.mean, mean)
    np.testing.assert_array_equal(p.std, std)
    n = 20_000
    draws = fitted.sample_y(new, n, random_state=1)
    assert draws.shape == (*mean.shape, n)
    assert (np.abs(draws.mean(-1) - mean) < 5 * std / math.sqrt(n)).all()
    spread = np.std((draws - mean[..., None]) ** 2, axis=-1) / math.sqrt(n)
    assert (np.abs(((draws - mean[..., None]) ** 2).mean(-1) - std**2) < 5 * spread).all()
    low, high = fitted.predict_interval(new, 0.8)
    np.testing.assert_allclose(p.cdf(low), 0.1, atol=1e-6)
    np.testing.assert_allclose(p.cdf(high), 0.9, atol=1e-6)
    inside = ((low[..., None] <= draws) & (draws <= high[..., None])).mean(-1)
    assert (np.abs(inside - 0.8) < 5 * math.sqrt(0.16 / n)).all()


def test_samples_follow_their_seed() -> None:
    X, y = problem()
    fitted = regressor().fit(X, y)
    np.testing.assert_array_equal(fitted.sample_y(X, 3, random_state=5), fitted.sample_y(X, 3, random_state=5))
    assert (fitted.sample_y(X, 3, random_state=5) != fitted.sample_y(X, 3, random_state=6)).any()


@pytest.mark.parametrize("likelihood", ["gaussian", "student_t", "laplace"])
def test_predictions_are_in_the_units_of_the_target(likelihood: str) -> None:
    X, y = problem()
    y = np.round(y * 1024) / 1024  # exact in binary, and so is what follows
    plain = regressor(likelihood=likelihood).fit(X, y)
    scaled = regressor(likelihood=likelihood).fit(X, 1000 * y + 5000)
    mean, std = plain.predict(X, return_std=True)
    mean_scaled, std_scaled = scaled.predict(X, return_std=True)
    np.testing.assert_allclose(mean_scaled, 1000 * mean + 5000, rtol=1e-9)
    np.testing.assert_allclose(std_scaled, 1000 * std, rtol=1e-9)
    for bound, bound_scaled in zip(plain.predict_interval(X), scaled.predict_interval(X), strict=True):
        np.testing.assert_allclose(bound_scaled, 1000 * bound + 5000, rtol=1e-9)
    density, density_scaled = plain.predict_dist(X).log_prob(y), scaled.predict_dist(X).log_prob(1000 * y + 5000)
    np.testing.assert_allclose(density_scaled, density - math.log(1000), atol=1e-8)


@pytest.mark.parametrize("weights", ["map", "meanfield"])
def test_uncertainty_splits_into_noise_weights_and_structure(weights: str) -> None:
    X, y = problem(targets=2)
    fitted = regressor(weights=weights, epochs=30).fit(X, y)
    u = fitted.predict_dist(X).uncertainty()
    np.testing.assert_allclose(u.noise + u.weights + u.structure, u.total, rtol=1e-9)
    np.testing.assert_allclose(u.total, fitted.predict(X, return_std=True)[1] ** 2, rtol=1e-9)
    assert (u.structure > 0).any()
    assert bool((u.weights > 0).any()) == (weights == "meanfield")
    u = classifier(weights=weights).fit(*classes()).predict_dist(classes()[0]).uncertainty()
    np.testing.assert_allclose(u.noise + u.weights + u.structure, u.total, rtol=1e-9, atol=1e-12)
    assert (u.total <= math.log(3) + 1e-12).all()


def test_predictions_do_not_depend_on_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    from fathomless.estimators import base as scikit

    X, y = problem()
    fitted = regressor(weights="meanfield").fit(X, y)
    whole = fitted.predict(X, return_std=True)
    dist = fitted.predict_dist(X)
    monkeypatch.setattr(scikit, "PREDICTED_AT_ONCE", 7)
    np.testing.assert_allclose(fitted.predict(X, return_std=True), whole, rtol=1e-9)
    np.testing.assert_allclose(fitted.predict_dist(X).log_prob(y), dist.log_prob(y), rtol=1e-9)


# ------------------------------------------------------------------------------------------ what was learned


def test_posterior_structure_and_history_are_told() -> None:
    X, y = problem(200)
    fitted = regressor(epochs=40).fit(X, y)
    assert math.isclose(sum(fitted.depth_posterior_.values()), 1.0, rel_tol=1e-9)
    s = fitted.structure_
    assert s.kind == "depth"
    assert s.names == tuple(map(str, fitted.depth_posterior_))
    assert s.probabilities == tuple(fitted.depth_posterior_.values())
    assert "mean depth" in s.summary
    mean = sum(depth * p for depth, p in fitted.depth_posterior_.items())
    assert math.isclose(s.statistics["mean_depth"], mean, rel_tol=1e-9)
    row = fitted.history_[-1]
    assert {
        "epoch",
        "step",
        "learning_rate",
        "elbo",
        "log_likelihood",
        "divergence_weights",
        "divergence_depth",
        "validation_log_likelihood",
        "mean_depth",
        "deepest",
    } <= set(row)
    parts = row["log_likelihood"] - row["divergence_weights"] - row["divergence_depth"]
    assert math.isclose(row["elbo"], parts, rel_tol=1e-9)
    assert fitted.n_iter_ == row["epoch"] == 40
    best = max(r["validation_log_likelihood"] for r in fitted.history_)  # of the standardised target
    assert fitted.validation_score_ == pytest.approx(best - math.log(fitted.target_.scale[0]), rel=1e-12)
    json.dumps(fitted.history_, allow_nan=False)
    assert regressor(epochs=2, validation_fraction=0.0).fit(X, y).validation_score_ is None


def test_an_integer_depth_is_an_ordinary_network() -> None:
    fitted = regressor(depth_law=2).fit(*problem())
    assert fitted.depth_posterior_ == {2: 1.0}


# ------------------------------------------------------------------------------------- seeds and repetition


@pytest.mark.parametrize("weights", ["map", "meanfield"])
def test_the_same_seed_gives_the_same_bytes(weights: str, tmp_path: Path) -> None:
    X, y = problem(300)
    options = {"weights": weights, "batch_size": 64}
    first, second = (saved(regressor(**options).fit(X, y), tmp_path / name) for name in "ab")
    assert first == second
    assert saved(regressor(**options, random_state=1).fit(X, y), tmp_path / "c") != first


def test_fits_leave_the_global_generators_alone() -> None:
    state, legacy = torch.get_rng_state(), np.random.get_state()[1].tolist()
    fitted = regressor(weights="meanfield").fit(*problem())
    fitted.sample_y(problem()[0])
    assert torch.equal(torch.get_rng_state(), state)
    assert np.random.get_state()[1].tolist() == legacy


def saved(estimator: Any, folder: Path) -> dict[str, bytes]:
    estimator.save(folder)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("options", [{}, {"structure_optimizer": "natural"}, {"clip_norm": 0.1}], ids=str)
def test_a_weight_is_a_repetition(options: dict[str, Any]) -> None:
    X, y = problem(20)
    weight = np.arange(20) % 3
    by_weight = regressor(**options, epochs=30).fit(X, y, sample_weight=weight).predict(X)
    by_rows = regressor(**options, epochs=30).fit(X.repeat(weight, 0), y.repeat(weight)).predict(X)
    np.testing.assert_allclose(by_weight, by_rows, rtol=1e-8, atol=1e-9)


def test_heavy_rows_are_trained_as_long_as_light_ones() -> None:
    X, y = problem(100)
    heavy = UnboundedDepthRegressor(width=8, random_state=0).fit(X, y, sample_weight=np.full(100, 1e4))
    assert r2_score(y, heavy.predict(X)) > 0.9


def test_rows_without_weight_teach_nothing_in_any_container() -> None:
    rows = table()
    weight = np.array([float(c is not None) for c in rows["colour"]])
    y = [0.0 if w else math.inf for w in weight]  # would be refused
    for make in FRAMES.values():
        fitted = regressor(epochs=1).fit(make(rows), y, sample_weight=weight)
        assert "colour is missing" not in fitted.schema_.encoded_names


# ------------------------------------------------------------------------------------- going on, coming back


def test_a_warm_start_goes_on_from_the_fitted_state() -> None:
    X, y = problem(200)
    first = regressor(epochs=20, warm_start=True).fit(X, y)
    reached = first.history_[-1]["elbo"]
    first.fit(X, y)
    assert first.history_[0]["elbo"] > reached - abs(0.2 * reached)
    assert first.history_[-1]["elbo"] > reached
    cold = regressor(epochs=20).fit(X, y)
    started = cold.history_[0]["elbo"]
    cold.fit(X, y)
    assert cold.history_[0]["elbo"] == started


def test_a_warm_start_may_see_more_rows() -> None:
    fitted = regressor(epochs=2, warm_start=True).fit(*problem(100))
    X, y = problem(2500)  # from here on, a cold start would compute in single precision
    assert np.isfinite(fitted.fit(X, y).predict(X)).all()


class Interrupt:
    """A callback that stops the process of a fit the hard way, as Ctrl-C does."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def __call__(self, run: Any) -> None:
        if run.epoch >= self.epoch:
            raise KeyboardInterrupt


@pytest.mark.parametrize("weights", ["map", "meanfield"])
def test_an_interrupted_fit_goes_on_to_the_same_bytes(weights: str, tmp_path: Path) -> None:
    X, y = problem(300)
    options = {"weights": weights, "epochs": 24, "batch_size": 128, "checkpoint_seconds": 0}
    whole = saved(regressor(**options, checkpoint=tmp_path / "never").fit(X, y), tmp_path / "whole")
    folder = tmp_path / "interrupted"
    for epoch in (6, 15):
        halted = regressor(**options, checkpoint=folder, callbacks=[Interrupt(epoch)])
        with pytest.raises(KeyboardInterrupt):
            halted.fit(X, y)
        assert not hasattr(halted, "model_")
        assert io.holds(folder)
    options["checkpoint_seconds"] = 60.0  # how a run is shown and kept may change on the way
    resumed = regressor(**options, checkpoint=folder, progress=True).fit(X, y)
    resumed.set_params(progress=False, checkpoint_seconds=0)
    assert saved(resumed, tmp_path / "resumed") == whole
    options["checkpoint_seconds"] = 0
    assert saved(regressor(**options).fit(X, y), tmp_path / "plain") == whole
    assert [row["epoch"] for row in resumed.history_][-1] == 24


def test_a_finished_fit_is_taken_from_its_checkpoint_even_if_it_stopped_early(tmp_path: Path) -> None:
    X, y = problem(100)
    options = {"epochs": 400, "patience": 2, "learning_rate": 0.05, "checkpoint": tmp_path / "c"}
    first = regressor(**options).fit(X, y)
    assert first.n_iter_ < 400
    second = regressor(**options).fit(X, y)
    assert second.n_iter_ == first.n_iter_
    assert saved(second, tmp_path / "second") == saved(first, tmp_path / "first")


def test_a_warm_start_does_not_take_the_checkpoint_of_the_fit_before_for_its_own(tmp_path: Path) -> None:
    X, y = problem()
    plain = regressor(warm_start=True).fit(X, y)
    kept = regressor(warm_start=True, checkpoint=tmp_path / "c").fit(X, y)
    with pytest.raises(DataError, match="belongs to a fit of other data or other options"):
        kept.fit(X, y)
    kept.set_params(checkpoint=tmp_path / "d").fit(X, y)
    np.testing.assert_array_equal(kept.predict(X), plain.fit(X, y).predict(X))


@pytest.mark.parametrize("change", ["data", "options", "seed"])
def test_a_checkpoint_of_another_fit_is_refused(change: str, tmp_path: Path) -> None:
    X, y = problem()
    regressor(checkpoint=tmp_path).fit(X, y)
    seed = np.random.RandomState(1) if change == "seed" else 0
    other = regressor(checkpoint=tmp_path, width=9 if change == "options" else 8, random_state=seed)
    with pytest.raises(DataError, match="belongs to a fit of other data or other options; give another folder"):
        other.fit(X + (change == "data"), y)


# ----------------------------------------------------------------------------------------- save and load


def deep(inputs: int, outputs: int) -> Architecture:
    """Build an architecture of the user's own."""
    return MLP(inputs, outputs, 6, "tanh", residual=True)


SAVED: dict[str, tuple[Any, dict[str, Any]]] = {
    **{f"law {law}": (UnboundedDepthRegressor, {"depth_law": law}) for law in LAWS},
    "fixed depth": (UnboundedDepthClassifier, {"depth_law": 3}),
    "law object": (
        UnboundedDepthRegressor,
        {"depth_law": FixedDepth((0, 2), (0.25, 0.75)), "depth_prior": PoissonPrior(1.0)},
    ),
    "mean field": (UnboundedDepthRegressor, {"weights": "meanfield"}),
    "mean field classifier": (UnboundedDepthClassifier, {"weights": "meanfield", "depth_law": "stick_breaking"}),
    "residual": (UnboundedDepthClassifier, {"architecture": "residual"}),
    "transformer": (UnboundedDepthRegressor, {"architecture": "transformer", "epochs": 3}),
    "student": (UnboundedDepthRegressor, {"likelihood": "student_t"}),
    "noise by input": (UnboundedDepthRegressor, {"noise": "input", "likelihood": "laplace"}),
    "fixed noise": (UnboundedDepthRegressor, {"noise": 0.2}),
    "several targets": (UnboundedDepthRegressor, {"targets": 3, "precision": "float32"}),
    "frame": (UnboundedDepthClassifier, {"frame": True}),
}

READER = """
import sys, json, warnings
from pathlib import Path
import numpy as np
import pandas as pd
import torch
torch.set_num_threads(1)
import fathomless
for folder in sorted(Path(sys.argv[1]).iterdir()):
    X = pd.read_pickle(folder / "X.pkl") if (folder / "X.pkl").exists() else np.load(folder / "X.npy")
    kind = json.loads((folder / "model" / "manifest.json").read_text())["kind"]
    model = getattr(fathomless, kind).load(folder / "model")
    if "Classifier" in kind:
        found = model.predict_proba(X)
    else:
        mean, std = model.predict(X, return_std=True)
        found = np.stack([mean, std, *model.predict_interval(X)])
    np.save(folder / "found.npy", found)
    model.save(folder / "again")
"""


def test_loading_in_another_process_gives_the_same_bits(tmp_path: Path) -> None:
    expected = {}
    for name, (cls, options) in SAVED.items():
        options = {"epochs": 8, "width": 8, "random_state": 0, **options}
        framed, targets = options.pop("frame", False), options.pop("targets", 1)
        X, y = classes() if cls is UnboundedDepthClassifier else problem(targets=targets)
        folder = tmp_path / name
        folder.mkdir()
        if framed:
            X = pd.DataFrame(table(80))
            X.to_pickle(folder / "X.pkl")
        else:
            np.save(folder / "X.npy", X)
        fitted = cls(**options).fit(X, y)
        fitted.save(folder / "model")
        if cls is UnboundedDepthClassifier:
            expected[name] = fitted.predict_proba(X)
        else:
            expected[name] = np.stack([*fitted.predict(X, return_std=True), *fitted.predict_interval(X)])
    done = subprocess.run([sys.executable, "-W", "error", "-c", READER, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, values in expected.items():
        assert np.load(tmp_path / name / "found.npy").tobytes() == values.tobytes(), name
        for file in (tmp_path / name / "model").iterdir():
            assert (tmp_path / name / "again" / file.name).read_bytes() == file.read_bytes(), name


@pytest.mark.parametrize("name", ["law taper", "mean field", "several targets", "frame"])
def test_a_loaded_estimator_is_the_one_that_was_saved(name: str, tmp_path: Path) -> None:
    cls, options = SAVED[name]
    options = {"epochs": 8, "width": 8, "random_state": 0, **options}
    framed, targets = options.pop("frame", False), options.pop("targets", 1)
    X, y = classes() if cls is UnboundedDepthClassifier else problem(targets=targets)
    X = pd.DataFrame(table(80)) if framed else X
    fitted = cls(**options).fit(X, y)
    loaded = cls.load(fitted.save(tmp_path / "m"))
    assert loaded.get_params() == fitted.get_params()
    assert loaded.score(X, y) == fitted.score(X, y)
    for attribute in ("depth_posterior_", "structure_", "n_iter_", "n_features_in_", "validation_score_", "history_"):
        assert getattr(loaded, attribute) == getattr(fitted, attribute), attribute
    assert hasattr(loaded, "feature_names_in_") == framed
    assert hasattr(loaded, "classes_") == (cls is UnboundedDepthClassifier)
    refitted = saved(loaded.fit(X, y), tmp_path / "refitted")
    assert refitted == saved(fitted, tmp_path / "m")
    assert saved(clone(loaded).fit(X, y), tmp_path / "cloned") == refitted


def test_a_loaded_estimator_goes_on_with_a_warm_start(tmp_path: Path) -> None:
    X, y = problem()
    fitted = regressor(warm_start=True).fit(X, y)
    loaded = UnboundedDepthRegressor.load(fitted.save(tmp_path / "m"))
    np.testing.assert_array_equal(loaded.fit(X, y).predict(X), fitted.fit(X, y).predict(X))


def test_an_architecture_of_ones_own_is_given_again_at_loading(tmp_path: Path) -> None:
    X, y = problem()
    fitted = regressor(architecture=deep).fit(X, y)
    fitted.save(tmp_path / "m")
    with pytest.raises(DataError, match=r"with a function as architecture; give it again: .*load\(path, architecture"):
        UnboundedDepthRegressor.load(tmp_path / "m")
    loaded = UnboundedDepthRegressor.load(tmp_path / "m", architecture=deep)
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    with pytest.raises(FileError, match="does not hold an estimator that this version can rebuild"):
        UnboundedDepthRegressor.load(tmp_path / "m", architecture=lambda i, o: MLP(i, o, 5))


def test_the_wrong_class_is_refused(tmp_path: Path) -> None:
    regressor(epochs=1).fit(*problem()).save(tmp_path / "m")
    with pytest.raises(FileError, match="holds a 'UnboundedDepthRegressor'; allowed here: 'UnboundedDepthClassifier'"):
        UnboundedDepthClassifier.load(tmp_path / "m")


def test_a_model_of_a_machine_with_a_gpu_is_loaded_where_there_is_none(tmp_path: Path) -> None:
    X, y = problem()
    fitted = regressor().fit(X, y)
    expected = fitted.predict(X)
    fitted.set_params(device="cuda:7").save(tmp_path / "m")
    np.testing.assert_array_equal(UnboundedDepthRegressor.load(tmp_path / "m").predict(X), expected)


# -------------------------------------------------------------------------------------------- does it learn


def test_a_sine_is_fitted_and_intervals_cover() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-3, 3, size=(600, 1))
    y = np.sin(2 * X[:, 0]) + 0.15 * rng.normal(size=600)
    fitted = UnboundedDepthRegressor(random_state=0, width=32).fit(X[:300], y[:300])
    assert r2_score(np.sin(2 * X[300:, 0]), fitted.predict(X[300:])) > 0.95
    low, high = fitted.predict_interval(X[300:], 0.9)
    assert 0.80 <= np.mean((low <= y[300:]) & (y[300:] <= high)) <= 0.97


@pytest.mark.parametrize("name", ["german_credit", "wine_red"])
def test_real_data_are_predicted_better_than_by_a_constant(name: str, data_folder: Path) -> None:
    data = datasets.load(name, data_folder)
    order = np.random.default_rng(0).permutation(len(data.y))
    train, test = order[:700], order[700:]
    y = np.asarray(data.y)
    X_train, X_test = (data.X.iloc[i] if isinstance(data.X, pd.DataFrame) else data.X[i] for i in (train, test))
    if data.task == "classification":
        fitted = UnboundedDepthClassifier(random_state=0, epochs=60, width=32).fit(X_train, y[train])
        frequency = {label: (y[train] == label).mean() for label in fitted.classes_}
        constant = np.mean([math.log(frequency[label]) for label in y[test].tolist()])
    else:
        fitted = UnboundedDepthRegressor(random_state=0, epochs=60, width=32).fit(X_train, y[train])
        constant = -0.5 * np.mean(((y[test] - y[train].mean()) / y[train].std()) ** 2)
        constant -= math.log(y[train].std() * math.sqrt(2 * math.pi))
    density = float(fitted.predict_dist(X_test).log_prob(y[test]).mean())
    assert density > constant + 0.05


def test_a_posterior_that_still_moves_is_told() -> None:
    X, y = problem(500)
    hurried = regressor(
        epochs=28, batch_size=64, initial_depth=12.0, structure_rate=10.0, schedule="constant", patience=None
    )
    with pytest.warns(ConvergenceWarning, match=r"has not come to rest: its mean is .* Raise epochs \(now 28\) or s"):
        hurried.fit(X, y)
    assert np.isfinite(hurried.predict(X)).all()  # a warning, even one made an error, does not lose the fit
