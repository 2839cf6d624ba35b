"""Networks drawn around a trained one: outputs that remain point estimates."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fathomless.families.baselines.drawn import DrawnNetworks
from fathomless.families.baselines.estimator import (
    LaplaceNetworkRegressor,
    SubspaceNetworkRegressor,
    SWAGNetworkRegressor,
)
from fathomless.families.registry import load
from fathomless.posterior.ensemble import list_members


def table(n: int = 90, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, X[:, 0] ** 2 + 0.2 * rng.normal(size=n)


def as_trained(fitted: Any) -> None:
    """Delete the draws."""
    for model in list_members(fitted.model_):
        assert isinstance(model, DrawnNetworks)
        model.set_draws(model.apart[:0])


@pytest.mark.parametrize("options", [{}, {"likelihood": "student_t"}], ids=str)
@pytest.mark.parametrize("targets", [1, 2])
def test_a_predicted_scale_is_that_of_the_trained_network(options: Any, targets: int, tmp_path: Path) -> None:
    """For all draws, and in the loaded model."""
    X, y = table()
    y = y if targets == 1 else np.stack([y, X[:, 1] - y], 1)
    fitted = LaplaceNetworkRegressor(noise="input", epochs=20, width=8, networks=30, random_state=0, **options)
    fitted.fit(X, y)
    loaded: Any = load(fitted.save(tmp_path / "m"))
    found = [one.predict_dist(X).uncertainty() for one in (fitted, loaded)]
    as_trained(fitted)
    point = fitted.predict_dist(X).uncertainty()
    for one in found:
        torch.testing.assert_close(one.noise, point.noise, rtol=1e-4, atol=1e-6)
        assert float(one.weights.mean()) > 1e-4  # the location is uncertain nevertheless
    assert float(point.weights.abs().max()) == 0.0


@pytest.mark.parametrize("kind", [LaplaceNetworkRegressor, SWAGNetworkRegressor, SubspaceNetworkRegressor])
def test_the_score_is_that_of_what_was_drawn(kind: Any) -> None:
    """Without calibration up to rounding, and different from the score of the trained network."""
    X, y = table(200)
    short = {} if kind is LaplaceNetworkRegressor else {"passes": 16}
    fitted = kind(epochs=40, width=10, networks=20, calibrate=False, random_state=0, **short).fit(X, y)
    rows = fitted.held_out_
    ours = float(fitted.predict_dist(X[rows]).log_prob(y[rows]).mean())
    assert fitted.validation_score_ == pytest.approx(ours, abs=1e-5)
    best = max(row["validation_log_likelihood"] for row in fitted.history_) - fitted.target_.log_unit
    assert abs(fitted.validation_score_ - best) > 1e-4


def test_noise_is_fitted_after_networks_were_drawn() -> None:
    """SWAG fixes the noise during gradient descent, and releases it afterwards."""
    X, y = table(200)
    plain, fitted = (
        SWAGNetworkRegressor(epochs=40, width=10, passes=16, calibrate=calibrate, random_state=0).fit(X, y)
        for calibrate in (False, True)
    )
    assert all(p.requires_grad for p in fitted.likelihood_.parameters())
    rows = fitted.held_out_
    scores = [float(one.predict_dist(X[rows]).log_prob(y[rows]).mean()) for one in (plain, fitted)]
    assert scores[1] > scores[0]
    assert fitted.validation_score_ < scores[1] + 0.02  # each part under a noise that was fitted to the others


def test_draws_of_one_chain_are_no_independent_networks(tmp_path: Path) -> None:
    """The subspace is sampled by four chains; the error of a mean is computed from the means of the chains."""
    X, y = table(200)
    fitted = SubspaceNetworkRegressor(epochs=40, width=10, networks=20, passes=16, random_state=0).fit(X, y)
    p = load(fitted.save(tmp_path / "m")).predict_dist(X)
    means = p.component.mean[..., 0].reshape(4, 5, -1).mean(1)  # (chains, N)
    torch.testing.assert_close(p.mc_error, means.std(0) / 2.0, rtol=1e-4, atol=1e-7)
