"""Reproducibility: repeated fits, resumed fits, and saved and loaded estimators."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.metrics import r2_score

from fathomless.estimators.values import ELBO, Adam, CheckpointOptions
from fathomless.families.depth.estimator import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.nn.architectures import MLP, Architecture
from fathomless.posterior.laws import FixedDepth, PoissonPrior
from fathomless.system import io
from fathomless.system.errors import DataError, DataWarning, FileError
from quick_fits import FRAMES, classes, problem, regressor, table

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

LAWS = ("poisson", "two_sided", "taper", "quantile", "stick_breaking", "categorical")


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


@pytest.mark.parametrize(
    "options", [{}, {"structure_from": ELBO(optimizer="natural")}, {"optimizer": Adam(clip_norm=0.1)}], ids=str
)
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
    y = [float(i % 2) if w else math.inf for i, w in enumerate(weight)]  # would be refused
    for make in FRAMES.values():
        fitted = regressor(epochs=1).fit(make(rows), y, sample_weight=weight)
        assert "colour is missing" not in fitted.schema_.encoded_names


# ------------------------------------------------------------------------------------- going on, coming back


def test_a_warm_start_goes_on_from_the_fitted_state() -> None:
    X, y = problem(200)
    first = regressor(epochs=20, structure_from="elbo", warm_start=True).fit(X, y)
    reached = first.history_[-1]["elbo"]
    first.fit(X, y)
    assert first.history_[0]["elbo"] > reached - abs(0.2 * reached)
    assert first.history_[-1]["elbo"] > reached
    cold = regressor(epochs=20, structure_from="elbo").fit(X, y)
    started = cold.history_[0]["elbo"]
    cold.fit(X, y)
    assert cold.history_[0]["elbo"] == started


def test_a_warm_start_may_see_more_rows() -> None:
    fitted = regressor(epochs=2, warm_start=True).fit(*problem(100))
    X, y = problem(2500)  # from here on, a cold start would compute in single precision
    assert np.isfinite(fitted.fit(X, y).predict(X)).all()


def test_a_warm_start_tells_of_other_units_of_the_target() -> None:
    X, y = problem(60)
    fitted = regressor(epochs=2, warm_start=True).fit(X, y)
    fitted.fit(X[:40], y[:40] + y.std())  # warnings are errors in tests
    for other in (5.0 * y, y + 5.0 * y.std(), 0.2 * (y - y.mean()) + y.mean()):
        with pytest.warns(DataWarning, match="continues from an earlier one, in whose units the targets have the mean"):
            fitted.fit(X, other)


class Interrupt:
    """Callback that interrupts a fit, as Ctrl-C does."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch

    def __call__(self, run: Any) -> None:
        if run.epoch >= self.epoch:
            raise KeyboardInterrupt


@pytest.mark.parametrize("weights", ["map", "meanfield"])
def test_an_interrupted_fit_goes_on_to_the_same_bytes(weights: str, tmp_path: Path) -> None:
    X, y = problem(300)
    options = {"weights": weights, "epochs": 24, "batch_size": 128}
    whole = saved(regressor(**options, checkpoint=tmp_path / "never").fit(X, y), tmp_path / "whole")
    folder = tmp_path / "interrupted"
    for epoch in (6, 15):
        halted = regressor(**options, checkpoint=CheckpointOptions(folder, seconds=0), callbacks=[Interrupt(epoch)])
        with pytest.raises(KeyboardInterrupt):
            halted.fit(X, y)
        assert not hasattr(halted, "model_")
        assert io.holds(folder)
    keeper = CheckpointOptions(folder, seconds=60.0)  # how a run is shown and kept may change on the way
    resumed = regressor(**options, checkpoint=keeper, verbose=1).fit(X, y)
    resumed.set_params(verbose=0)
    assert saved(resumed, tmp_path / "resumed") == whole
    assert saved(regressor(**options).fit(X, y), tmp_path / "plain") == whole
    assert 15 < resumed.n_iter_ <= 24


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
    with pytest.raises(DataError, match="belongs to a fit with other data or other options"):
        kept.fit(X, y)
    kept.set_params(checkpoint=tmp_path / "d").fit(X, y)
    np.testing.assert_array_equal(kept.predict(X), plain.fit(X, y).predict(X))


@pytest.mark.parametrize("change", ["data", "options", "seed"])
def test_a_checkpoint_of_another_fit_is_refused(change: str, tmp_path: Path) -> None:
    X, y = problem()
    regressor(checkpoint=tmp_path).fit(X, y)
    seed = np.random.RandomState(1) if change == "seed" else 0
    other = regressor(checkpoint=tmp_path, width=9 if change == "options" else 8, random_state=seed)
    with pytest.raises(DataError, match="belongs to a fit with other data or other options; give another folder"):
        other.fit(X + (change == "data"), y)


# ----------------------------------------------------------------------------------------- save and load


def deep(inputs: int, outputs: int) -> Architecture:
    """Build a user-defined architecture."""
    return MLP(inputs, outputs, 6, "tanh", residual=True)


SAVED: dict[str, tuple[Any, dict[str, Any]]] = {
    **{f"law {law}": (UnboundedDepthRegressor, {"depth_law": law}) for law in LAWS},
    "fixed depth": (UnboundedDepthClassifier, {"depth_law": 3}),
    "law object": (
        UnboundedDepthRegressor,
        {"depth_law": FixedDepth((0, 2), (0.25, 0.75)), "depth_prior": PoissonPrior(1.0)},
    ),
    "mean field": (UnboundedDepthRegressor, {"weights": "meanfield", "cv": 1}),
    "mean field classifier": (
        UnboundedDepthClassifier,
        {"weights": "meanfield", "cv": 1, "depth_law": "stick_breaking"},
    ),
    "residual": (UnboundedDepthClassifier, {"architecture": "residual"}),
    "transformer": (UnboundedDepthRegressor, {"architecture": "transformer", "epochs": 2}),
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
        options = {"epochs": 2, "width": 8, "cv": 2, "random_state": 0, **options}
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
    options = {"epochs": 4, "width": 8, "cv": 2, "random_state": 0, **options}
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


def test_options_that_were_changed_after_the_fit_are_kept_beside_those_of_the_fit(tmp_path: Path) -> None:
    X, y = problem()
    fitted = regressor(noise=0.3).fit(X, y)
    fitted.set_params(noise=0.6, width=30, activation="tanh", likelihood="laplace", verbose=1)
    first = UnboundedDepthRegressor.load(fitted.save(tmp_path / "first"))
    second = UnboundedDepthRegressor.load(first.save(tmp_path / "second"))
    for loaded in (first, second):
        assert loaded.get_params() == fitted.get_params()
        for mine, its in zip(fitted.predict(X, return_std=True), loaded.predict(X, return_std=True), strict=True):
            np.testing.assert_array_equal(mine, its)


@pytest.mark.parametrize("way", ["warm_start", "partial_fit"])
def test_going_on_refuses_options_of_another_network(way: str) -> None:
    X, y = problem()
    fitted = regressor(width=8).fit(X, y).set_params(width=9, learning_rate=1e-3)
    before = fitted.predict(X)
    with pytest.raises(DataError, match=r"width=9 \(was 8\) was given, but the fit continues from a network"):
        fitted.set_params(warm_start=True).fit(X, y) if way == "warm_start" else fitted.partial_fit(X, y)
    np.testing.assert_array_equal(fitted.predict(X), before)
    fitted.set_params(width=8).fit(X, y)


def test_an_architecture_of_ones_own_is_given_again_at_loading(tmp_path: Path) -> None:
    X, y = problem()
    fitted = regressor(architecture=deep).fit(X, y)
    fitted.save(tmp_path / "m")
    with pytest.raises(DataError, match=r"with a function as architecture; pass it again: .*load\(path, architecture"):
        UnboundedDepthRegressor.load(tmp_path / "m")
    loaded = UnboundedDepthRegressor.load(tmp_path / "m", architecture=deep)
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    with pytest.raises(FileError, match="does not contain an estimator that this version can load"):
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
