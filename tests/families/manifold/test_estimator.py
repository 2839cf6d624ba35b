"""Estimators of weight manifolds: scikit-learn's rules, files, pauses, refusals, and what they say of their modes."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from fathomless.data.frames import encode
from fathomless.data.rows import Rows
from fathomless.families.manifold import fit
from fathomless.families.manifold.autoencoder import AutoencoderOptions
from fathomless.families.manifold.candidates import mask_unseen
from fathomless.families.manifold.dimensions import DimensionSearch
from fathomless.families.manifold.estimator import ProjectedBayesClassifier, ProjectedBayesRegressor
from fathomless.families.manifold.network import FlatNetwork
from fathomless.families.manifold.stages import run_stages
from fathomless.nn.layers import WeightPrior
from fathomless.posterior.likelihoods import Gaussian
from fathomless.system import io
from fathomless.system.errors import ConvergenceWarning, DataError, FileError, PausedError
from quick_fits import Array, checked, classes, problem

# fits are short on purpose
pytestmark = [
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.DataWarning"),
]

QUICK: dict[str, Any] = {
    "width": 8,
    "candidates": 20,
    "candidate_steps": 120,
    "latent_dim": 4,
    "decoder_width": 16,
    "decoder_steps": 150,
    "components": 4,
    "latent_steps": 60,
    "random_state": 0,
}
CHECKED = {**QUICK, "candidates": 10, "candidate_steps": 150, "decoder_steps": 80, "latent_steps": 20, "latent_dim": 2}
KINDS = [ProjectedBayesClassifier, ProjectedBayesRegressor]


def task(kind: type) -> tuple[Array, Array]:
    return classes() if kind is ProjectedBayesClassifier else problem()


@pytest.fixture(scope="module")
def whole() -> ProjectedBayesRegressor:
    """Return a fit that was not paused."""
    return ProjectedBayesRegressor(**QUICK).fit(*problem())


def said(estimator: Any, X: Array) -> Array:
    if isinstance(estimator, ProjectedBayesClassifier):
        return estimator.predict_proba(X)
    return np.stack(estimator.predict(X, return_std=True))


@pytest.mark.filterwarnings("ignore:class_weight sums to:fathomless.system.errors.DataWarning")
@pytest.mark.filterwarnings("ignore:.* given; fewer than 12:fathomless.system.errors.DataWarning")
@parametrize_with_checks([kind(**CHECKED) for kind in KINDS])
def test_scikit_learn_finds_nothing_to_complain_about(estimator: Any, check: Any) -> None:
    checked(estimator, check, candidate_steps=20, decoder_steps=10, latent_steps=10)


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_and_says_what_its_modes_are(kind: type) -> None:
    X, y = task(kind)
    fitted = kind(**QUICK).fit(X, y)
    assert fitted.score(X, y) > 0.6
    modes, posterior = fitted.modes(X), fitted.latent_posterior_
    assert modes.shape == (len(posterior.weights), *((len(X), 3) if kind is ProjectedBayesClassifier else (len(X),)))
    assert sum(posterior.weights) == pytest.approx(1.0)
    assert len(posterior.means[0]) == 4
    assert fitted.structure_ == posterior
    assert set(fitted.decoder_gate_) == {"reconstruction", "log_likelihood", "of_candidates", "apart"}
    unit = fitted.target_.log_unit
    assert fitted.validation_score_ == pytest.approx(fitted.candidates_["score"] - unit)
    assert [row["stage"] for row in fitted.history_] == [stage for stage in range(4) for _ in range(10)]
    assert fitted.n_iter_ == 40


@pytest.mark.parametrize(
    ("kind", "law"),
    [(ProjectedBayesClassifier, "bias"), (ProjectedBayesRegressor, "last"), (ProjectedBayesRegressor, "none")],
)
def test_what_is_loaded_is_bit_equal(kind: type, law: str, tmp_path: Path) -> None:
    X, y = task(kind)
    fitted = kind(**{**QUICK, "decoder_law": law, "weight_prior": WeightPrior(0.8)}).fit(X, y)
    loaded = kind.load(fitted.save(tmp_path / "saved"))
    assert np.array_equal(said(loaded, X), said(fitted, X))
    assert np.array_equal(loaded.modes(X), fitted.modes(X))
    assert loaded.structure_ == fitted.structure_
    assert loaded.decoder_gate_ == fitted.decoder_gate_
    assert loaded.get_params()["weight_prior"] == WeightPrior(0.8)


def test_a_folder_of_another_latent_space_is_refused(tmp_path: Path) -> None:
    folder = ProjectedBayesRegressor(**QUICK).fit(*problem()).save(tmp_path / "saved")
    saved = io.load(folder, kinds={"ProjectedBayesRegressor"})
    meta = {**saved.meta, "options": {**saved.meta["options"], "latent_dim": 7}}
    io.save(folder, kind="ProjectedBayesRegressor", tensors=saved.tensors, meta=meta)
    with pytest.raises(FileError, match="4 dimensions, and latent_dim=7"):
        ProjectedBayesRegressor.load(folder)


@pytest.mark.parametrize("at", [5, 10, 17, 33])
def test_a_fit_that_was_paused_ends_in_the_same_bytes(at: int, whole: ProjectedBayesRegressor, tmp_path: Path) -> None:
    X, y = problem()

    def pause(run: Any) -> None:
        run.pause = run.epoch == at

    with pytest.raises(PausedError, match=f"after epoch {at} of 40"):
        ProjectedBayesRegressor(**QUICK, checkpoint=tmp_path, callbacks=[pause]).fit(X, y)
    with pytest.raises(DataError, match="belongs to a fit with other data or other options"):
        ProjectedBayesRegressor(**{**QUICK, "latent_steps": 61}, checkpoint=tmp_path).fit(X, y)
    again = ProjectedBayesRegressor(**QUICK, checkpoint=tmp_path).fit(X, y)
    assert again.history_ == whole.history_
    assert np.array_equal(said(again, X), said(whole, X))


def test_several_targets_and_weights_of_rows_are_taken() -> None:
    X, y = problem()
    both = np.stack([y, -2.0 * y], 1)
    fitted = ProjectedBayesRegressor(**QUICK).fit(X, both, sample_weight=np.arange(len(y)) % 3)
    assert fitted.predict(X).shape == both.shape
    assert fitted.modes(X).shape == (4, *both.shape)


def test_of_several_dimensions_unseen_rows_choose(tmp_path: Path) -> None:
    """Scores of trials equal those of fits without the held-out rows; the best is fitted to all rows."""
    X, y = problem()
    fitted = ProjectedBayesRegressor(**{**QUICK, "latent_dim": (4, 1, 2)}).fit(X, y)
    told = fitted.latent_dims_
    assert list(told) == [1, 2, 4]
    assert sum(trial["weight"] for trial in told.values()) == pytest.approx(1.0)
    best = max(told, key=lambda number: told[number]["log_density"])
    assert fitted.latent_dim_ == best
    alone = ProjectedBayesRegressor(**{**QUICK, "latent_dim": best}).fit(X, y)
    assert np.array_equal(said(fitted, X), said(alone, X))
    assert (alone.latent_dim_, alone.latent_dims_) == (best, {})
    loaded = ProjectedBayesRegressor.load(fitted.save(tmp_path / "saved"))
    assert np.array_equal(said(loaded, X), said(fitted, X))
    assert loaded.latent_dims_ == told


def test_trials_do_not_see_the_rows_that_judge_them() -> None:
    """Rows that are left out may say anything: what the trials find does not change."""
    x = torch.linspace(-2.0, 2.0, 60, dtype=torch.float64)[:, None]
    rows, held = Rows(x, x.sin()), torch.arange(60) % 10 == 0
    wild = Rows(torch.where(held[:, None], 99.0, x), torch.where(held[:, None], -99.0, x.sin()))
    folds = torch.arange(60)[None] % 10
    quick = fit.ManifoldConfig(candidates=10, candidate_steps=60, components=2, latent_steps=20)

    def manifold_of(table: Rows) -> Any:
        def one(used: torch.Tensor, dimensions: int) -> fit.Manifold:
            recipe = replace(quick, autoencoder=AutoencoderOptions(dimensions=dimensions, hidden=(5,), steps=40))
            net = FlatNetwork(1, 1, (5,), "tanh")
            return fit.Manifold(net, Gaussian().double(), table.take(used), folds[:, used], recipe, 0)

        return one

    found = []
    for table in (rows, wild):
        plan = DimensionSearch(manifold_of(table), table, held, (1, 2), 0).plan()
        trials = {name: begin for name, begin in plan.items() if name[0] in "t12"}
        assert len(trials) == 7
        found.append(run_stages(trials, 0, rounds=2).found)
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def test_a_sampled_posterior_is_told_and_kept(tmp_path: Path) -> None:
    X, y = problem()
    fitted = ProjectedBayesRegressor(**QUICK, latent_posterior="sampled").fit(X, y)
    assert fitted.model_.decoder_law is None
    assert set(fitted.sampling_) == {"chains", "draws", "rhat", "ess"}
    assert fitted.sampling_["chains"] == 4
    loaded = ProjectedBayesRegressor.load(fitted.save(tmp_path / "saved"))
    assert np.array_equal(said(loaded, X), said(fitted, X))
    assert loaded.structure_ == fitted.structure_
    assert loaded.sampling_ == fitted.sampling_
    assert ProjectedBayesRegressor(**QUICK).fit(X, y).sampling_ == {}


@pytest.mark.parametrize("options", [
    {"decoder_width": 0},
    {"decoder_width": (12, 12), "width": (6, 5), "activation": "tanh"},
    {"components": 1, "covariance": "full"},
    {"holdout": 0.0},
    {"anchored": True, "matching": False, "activation": "rbf"},
    {"noise": "input"},
    {"noise": 0.4, "likelihood": "laplace"},
])  # fmt: skip
def test_variants_find_a_posterior(options: dict[str, Any]) -> None:
    X, y = problem()
    fitted = ProjectedBayesRegressor(**{**QUICK, **options}).fit(X, y)
    assert fitted.score(X, y) > 0.3
    assert (fitted.validation_score_ is None) == (options.get("holdout") == 0.0)


def own_network(inputs: int, outputs: int) -> nn.Module:
    """Build a network with a layer that is no linear map, and one without a prior."""
    return nn.Sequential(
        nn.Unflatten(1, (1, inputs)), nn.Conv1d(1, 4, 2), nn.Flatten(), nn.LayerNorm(4 * (inputs - 1)), nn.GELU(),
        nn.Linear(4 * (inputs - 1), outputs),
    )  # fmt: skip


@pytest.mark.parametrize("last", ["whole", "layers", "chunks"])
def test_networks_of_ones_own_by_snapshots(last: str, tmp_path: Path) -> None:
    X, y = problem()
    options = {**QUICK, "candidate_steps": 600, "architecture": own_network, "snapshots": 10, "decoder_map": last}
    fitted = ProjectedBayesRegressor(**options).fit(X, y)
    assert fitted.score(X, y) > 0.5
    assert [row["stage"] for row in fitted.history_] == [stage for stage in range(13) for _ in range(10)]
    assert fitted.validation_score_ is not None
    loaded = ProjectedBayesRegressor.load(fitted.save(tmp_path / "saved"), architecture=own_network)
    assert np.array_equal(said(loaded, X), said(fitted, X))


def test_snapshots_are_paused_and_taken_up(tmp_path: Path) -> None:
    X, y = problem()
    options = {**QUICK, "snapshots": 4, "architecture": own_network}

    def pause(run: Any) -> None:
        run.pause = run.epoch == 25

    with pytest.raises(PausedError, match="after epoch 25 of 70"):
        ProjectedBayesRegressor(**options, checkpoint=tmp_path, callbacks=[pause]).fit(X, y)
    again = ProjectedBayesRegressor(**options, checkpoint=tmp_path).fit(X, y)
    assert np.array_equal(said(again, X), said(ProjectedBayesRegressor(**options).fit(X, y), X))


def test_candidates_see_groups_whole_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = problem()
    groups, masks = np.arange(len(y)) // 4, []

    def recorded(*given: Any) -> Any:
        masks.append(mask_unseen(*given))
        return masks[-1]

    monkeypatch.setattr(fit, "mask_unseen", recorded)
    ProjectedBayesRegressor(**QUICK).fit(X, y, groups=groups)
    (unseen,) = masks
    assert unseen.any(1).all()
    assert all((unseen[:, groups == group].float().mean(1) % 1.0 == 0.0).all() for group in set(groups))


def test_modes_along_a_column_are_those_of_rows_with_averages_elsewhere() -> None:
    X, y = problem()
    fitted = ProjectedBayesRegressor(**QUICK).fit(X, y)
    grid, values = fitted.modes_along("x1")
    rows = np.tile(X.mean(0), (len(grid), 1))
    rows[:, 1] = grid
    assert np.allclose(values, fitted.modes(rows), atol=1e-5)
    with pytest.raises(DataError, match="column='x9' was given; allowed are numeric columns: x0, x1"):
        fitted.modes_along("x9")


def test_modes_along_a_column_leave_categories_at_their_shares() -> None:
    X, y = problem()
    kind = np.resize(["b", "b", "a"], len(X))
    fitted = ProjectedBayesRegressor(**QUICK).fit(pd.DataFrame({"x0": X[:, 0], "kind": kind}), y)
    grid, values = fitted.modes_along("x0")
    encoded = encode(fitted.schema_, pd.DataFrame({"x0": grid, "kind": "a"}))
    for level in ("a", "b"):
        encoded[:, fitted.schema_.encoded_names.index(f"kind={level}")] = (kind == level).mean()
    assert np.allclose(values, fitted._modes(encoded), atol=1e-5)


def test_a_decoder_that_has_collapsed_is_told() -> None:
    X, y = problem()
    with pytest.warns(ConvergenceWarning, match="map different candidates to the same function"):
        ProjectedBayesRegressor(**{**QUICK, "latent_dim": 1, "decoder_width": 1}).fit(X, y)


@pytest.mark.parametrize(("options", "message"), [
    ({"holdout": 0.9}, "holdout=0.9 was given"),
    ({"candidate_rate": 0.0}, "candidate_rate=0.0 was given"),
    ({"weight_prior": -1.0}, "weight_prior=-1.0 was given"),
    ({"decoder_law": "first"}, "decoder_law='first' was given"),
    ({"activation": "cos"}, "activation='cos' was given"),
    ({"width": (3, 0)}, "width=0 was given"),
    ({"candidates": 1}, "candidates=1 was given"),
    ({"latent_dim": ()}, r"latent_dim=\(\) was given"),
    ({"latent_dim": (2, 0)}, "latent_dim=0 was given"),
    ({"latent_dim": (2, 3), "holdout": 0}, "without held-out rows"),
    ({"snapshots": 30}, "snapshots=30 was given for 20 candidates"),
    ({"decoder_map": "small"}, "decoder_map='small' was given"),
    ({"decoder_map": "chunks", "decoder_law": "last"}, "decoder_map='chunks' was given with decoder_width=16"),
    ({"architecture": "conv"}, "architecture='conv' was given"),
    ({"architecture": lambda i, o: nn.Sequential(nn.BatchNorm1d(i), nn.Linear(i, o))}, "networks without buffers"),
])  # fmt: skip
def test_options_that_cannot_be_used_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ProjectedBayesRegressor(**{**QUICK, **options}).fit(*problem())


def test_a_manifold_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fathomless.system.memory.available", lambda: 1 << 30)
    with pytest.raises(DataError, match=r"a manifold of .* weights, learned from 20 candidates"):
        ProjectedBayesRegressor(**{**QUICK, "width": (3000, 3000)}).fit(*problem())


def test_doubt_is_split_into_modes_and_weights() -> None:
    X, y = problem()
    p = ProjectedBayesRegressor(**QUICK).fit(X, y).predict_dist(X)
    parts = p.uncertainty()
    torch.testing.assert_close(parts.noise + parts.weights + parts.structure, p.variance)
    assert parts.structure.mean() > 0.0
    assert parts.weights.mean() > 0.0
    assert math.isfinite(float(p.log_prob(y).mean()))
