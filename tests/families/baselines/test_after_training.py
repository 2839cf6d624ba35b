"""Networks that are drawn around one that was trained: what stays a point estimate."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fathomless.families.baselines.drawn import DrawnNetworks
from fathomless.families.baselines.estimator import LaplaceNetworkRegressor
from fathomless.families.registry import load
from fathomless.posterior.ensemble import members_of


def table(n: int = 90, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    return X, X[:, 0] ** 2 + 0.2 * rng.normal(size=n)


def as_trained(fitted: Any) -> None:
    """Leave out what was drawn."""
    for model in members_of(fitted.model_):
        assert isinstance(model, DrawnNetworks)
        model.take(model.apart[:0])


@pytest.mark.parametrize("options", [{}, {"likelihood": "student_t"}], ids=str)
@pytest.mark.parametrize("targets", [1, 2])
def test_a_predicted_scale_is_that_of_the_trained_network(options: Any, targets: int, tmp_path: Path) -> None:
    """Under all that is drawn, and in the model that is loaded."""
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
        assert float(one.weights.mean()) > 1e-4  # the location is doubted all the same
    assert float(point.weights.abs().max()) == 0.0
