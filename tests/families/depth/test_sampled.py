"""Estimators of networks of several depths with sampled weights."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_iris

from fathomless import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.app.diagnose import diagnose
from fathomless.estimators.values import HMC, CheckpointOptions
from fathomless.families.depth.deploy import compress, mean_network, point_depth
from fathomless.families.depth.report import page
from fathomless.system.errors import ConvergenceWarning, DataError, DepthError, PausedError

CHAINS = HMC(chains=3, sweeps=24, leapfrogs=5, states=6)
SHORT = {"weights": CHAINS, "epochs": 30, "width": 6}
X, Y = load_diabetes(return_X_y=True)
X, Y = X[:120], Y[:120]


def fitted(kind=UnboundedDepthRegressor, x=X, y=Y, **options):
    """Fit without warnings about chains that are too short."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return kind(random_state=0, **{**SHORT, **options}).fit(x, y)


@pytest.fixture(scope="module")
def regression() -> UnboundedDepthRegressor:
    return fitted()


def test_depth_weights_sum_to_one(regression) -> None:
    assert sum(regression.depth_posterior_.values()) == pytest.approx(1.0)
    assert set(regression.depth_posterior_) == set(regression.sampling_)
    assert 1 <= len(regression.sampling_) <= 4
    assert regression.fold_ is None
    assert len(regression.held_out_) == 0
    assert np.isfinite(regression.validation_score_)


def test_the_heaviest_depth_has_all_chains(regression) -> None:
    heaviest = max(regression.depth_posterior_, key=regression.depth_posterior_.__getitem__)
    assert len(regression.sampling_[heaviest]["chains"]) == CHAINS.chains


def test_predictions_are_mixtures_over_states(regression) -> None:
    """The mean is the weighted average over retained networks, each with its own noise."""
    dist = regression.predict_dist(X[:5])
    model = regression.model_
    drawn = model.draw(torch.as_tensor(regression._encode(regression.schema_, X[:5]), dtype=model.dtype))
    means = torch.einsum("s,snt->nt", drawn.log_weight.exp(), drawn.f[..., :1]).double().numpy()[:, 0]
    np.testing.assert_allclose(dist.mean, regression.target_.decode(means[:, None]), rtol=1e-4)
    parts = dist.uncertainty()
    np.testing.assert_allclose(parts.noise + parts.weights + parts.structure, parts.total, rtol=1e-6)
    assert float(parts.weights.min()) > 0.0


def test_saved_networks_predict_the_same_bytes(regression, tmp_path) -> None:
    again = UnboundedDepthRegressor.load(regression.save(tmp_path / "model"))
    assert np.array_equal(again.predict(X), regression.predict(X))
    assert again.relevance() == regression.relevance()
    assert again.sampling_ == regression.sampling_
    assert np.array_equal(again.predict_interval(X[:9])[0], regression.predict_interval(X[:9])[0])


def test_options_of_another_network_are_refused(regression, tmp_path) -> None:
    folder = regression.save(tmp_path / "model")
    text = (folder / "manifest.json").read_text()
    (folder / "manifest.json").write_text(text.replace('"width": 6', '"width": 7'))
    with pytest.raises(Exception, match=r"weights|altered|digest"):
        UnboundedDepthRegressor.load(folder)


def test_student_noise_is_sampled_and_kept(tmp_path) -> None:
    heavy = fitted(likelihood="student_t", depth_law=1)
    assert heavy.depth_posterior_ == {1: pytest.approx(1.0)}
    again = UnboundedDepthRegressor.load(heavy.save(tmp_path / "model"))
    assert np.array_equal(again.predict_dist(X[:7]).log_prob(Y[:7]), heavy.predict_dist(X[:7]).log_prob(Y[:7]))
    assert float(heavy.model_.noise_df.min()) == 4.0


def test_classes_and_several_targets() -> None:
    x, y = load_iris(return_X_y=True)
    clf = fitted(UnboundedDepthClassifier, x[::2], y[::2], depth_law=1)
    assert clf.predict_proba(x[:3]).sum(1) == pytest.approx([1.0] * 3)
    assert clf.score(x, y) > 0.8
    both = fitted(y=np.column_stack([Y, -2.0 * Y]), depth_law=0)
    assert both.predict(X[:4]).shape == (4, 2)


def test_known_and_predicted_noise() -> None:
    for noise in (0.5, "input"):
        assert np.isfinite(fitted(noise=noise, likelihood="gaussian", depth_law=1).predict(X[:4])).all()


def test_hmc_fit_resumes_to_the_same_bytes(tmp_path) -> None:
    """After a stop between two blocks of sweeps, the same call resumes and gives the same predictions."""
    whole, calls = fitted(depth_law=1), []

    def stop(run) -> None:
        calls.append(run)
        run.pause = hasattr(run, "chains") and run.epoch == 14

    options = {"checkpoint": CheckpointOptions(tmp_path / "run", seconds=0.0), "depth_law": 1}
    with pytest.raises(PausedError):
        fitted(callbacks=[stop], **options)
    assert np.array_equal(fitted(**options).predict(X), whole.predict(X))


def test_leave_one_out_densities_weigh_depths(regression) -> None:
    """Weights of depths are stacking weights of the retained networks, or those of the fit by option."""
    table = np.array(regression.fit_diagnostics_.structure.log_density)
    assert regression.fit_diagnostics_.structure.members == 1
    assert np.mean(table) == pytest.approx(regression.validation_score_ + regression.target_.log_unit, abs=1.0)
    as_fitted = fitted(weights=replace(CHAINS, structure_weights="fit"))
    assert as_fitted.fit_diagnostics_.structure.members > 1
    assert as_fitted.depth_posterior_ != regression.depth_posterior_


def test_chains_that_have_not_mixed_are_told() -> None:
    with pytest.warns(ConvergenceWarning, match="have not mixed: R-hat"):
        UnboundedDepthRegressor(random_state=0, **{**SHORT, "depth_law": 2}).fit(X, Y)


def test_heads_are_sampled_like_all_weights() -> None:
    with pytest.raises(DataError, match=r"last_layer='laplace'; sampled heads already have a posterior"):
        fitted(last_layer="laplace")


def test_page_and_doctor_tell_of_the_chains(regression) -> None:
    section = page(regression)
    tables = {group.heading: group.table for group in section.groups}
    assert [row[0] for row in tables["Chains"].rows] == [str(depth) for depth in regression.sampling_]
    assert [row[0] for row in tables["Relevance of columns"].rows] == sorted(
        regression.relevance_, key=lambda name: -regression.relevance_[name]["median"]
    )
    assert len(section.learning) == len(regression.sampling_)
    assert f"{regression.validation_score_:.2f}".replace("-", "\N{MINUS SIGN}") in section.about
    assert {found.title for found in diagnose(regression, [])} >= {"Chains have not mixed"}


def test_relevance_needs_a_level_and_sampled_weights(regression) -> None:
    assert regression.relevance() == regression.relevance_
    narrow = regression.relevance(0.2)
    assert all(told["low"] <= narrow[name]["low"] <= told["median"] for name, told in regression.relevance_.items())
    with pytest.raises(DataError, match=r"level=1.0"):
        regression.relevance(1.0)
    with pytest.raises(DataError, match="weights='map'"):
        UnboundedDepthRegressor(epochs=2, cv=1, depth_law=1).fit(X, Y).relevance()


def test_relevance_finds_columns() -> None:
    """Two of eight columns matter: their intervals lie above those of all others."""
    g = np.random.default_rng(0)
    x = g.normal(size=(200, 8))
    y = np.sin(2.0 * x[:, 2]) * x[:, 5] + 0.1 * g.normal(size=200)
    chains = HMC(chains=3, sweeps=120, leapfrogs=40, states=15)
    model = fitted(x=x, y=y, depth_law=1, width=16, weights=chains, epochs=100)
    found = model.relevance()
    least = min(found[name]["low"] for name in ("x2", "x5"))
    assert least > max(told["median"] for name, told in found.items() if name not in ("x2", "x5"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": {"activation": ["tanh", "silu"]}}, "leave candidates out"),
        ({"weights": HMC(sweeps=10**9, leapfrogs=1000)}, r"hours for each structure"),
    ],
)
def test_what_cannot_be_sampled_is_refused(options, message) -> None:
    with pytest.raises(DataError, match=message):
        fitted(**options)


@pytest.mark.parametrize("how", [compress, lambda model: point_depth(model, 1), mean_network])
def test_chains_are_not_deployed_as_one_network(regression, how) -> None:
    with pytest.raises(DepthError, match="SampledDepth; it needs one network"):
        how(regression.model_)


def test_doubt_grows_off_the_data(regression) -> None:
    directions = np.random.default_rng(1).normal(size=(64, X.shape[1]))
    directions *= X.std(0) / np.linalg.norm(directions, axis=1, keepdims=True)
    splits = [regression.predict_dist(X.mean(0) + d * directions).uncertainty() for d in (2.0, 4.0, 8.0)]
    near, far, farther = (float((split.weights + split.structure).mean()) for split in splits)
    assert 0.0 < near < far < farther


def test_a_time_limit_is_refused() -> None:
    with pytest.raises(DataError, match=r"minutes=2 was given with weights='hmc'.*set weights__sweeps instead"):
        UnboundedDepthRegressor(weights="hmc", minutes=2.0).fit(X, Y)


def test_relevance_of_trained_networks_is_refused() -> None:
    with pytest.raises(DataError, match="weights='hmc'"):
        UnboundedDepthRegressor(epochs=1, cv=1).fit(X, Y).relevance()


def test_relevance_is_that_of_the_weights_which_leave_a_column(regression) -> None:
    """Computed directly for one depth from the first matrix of every retained network."""
    depth = max(regression.depth_posterior_)
    model = regression.model_
    weights = getattr(model, f"weights_{depth}")
    first = regression.schema_.width
    matrix = weights[:, : first * regression.width].reshape(len(weights), regression.width, first)
    assert torch.allclose(model.reach[model.depth == depth], matrix.double().square().mean(1).sqrt())


def test_copies_give_no_score_that_new_rows_do_not_confirm() -> None:
    """Four copies of 30 rows of noise: the networks interpolate them, and importance weights cannot correct that."""
    g = np.random.default_rng(0)
    x, y = g.normal(size=(30, 6)), g.normal(size=30)
    place = np.repeat(np.arange(30), 4)
    options = {"weights": HMC(chains=3, sweeps=100, states=30, leapfrogs=10), "width": 12, "depth_law": 1}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        copied = UnboundedDepthRegressor(random_state=0, **{**SHORT, **options}).fit(x[place], y[place])
    assert any("cannot be estimated: k-hat is above 0.7 for" in str(one.message) for one in caught)
    assert copied.validation_score_ is None
    assert "leave-one-out log-likelihood cannot be estimated" in page(copied).about
    once = fitted(x=x, y=y, **options)
    new = g.normal(size=(1000, 6)), g.normal(size=1000)
    assert once.validation_score_ == pytest.approx(float(once.predict_dist(new[0]).log_prob(new[1]).mean()), abs=0.4)
