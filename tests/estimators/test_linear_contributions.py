"""Exact contributions to the outputs of piecewise linear networks."""

from typing import Any, cast

import numpy as np
import pytest
import torch

from fathomless import (
    HMC,
    ContinuousDepthRegressor,
    SparseBayesRegressor,
    UnboundedDepthClassifier,
    UnboundedDepthRegressor,
)
from fathomless.data.frames import encode
from fathomless.estimators.linear_contributions import linear_contributions
from fathomless.families.depth.model import UnboundedDepth
from fathomless.posterior.ensemble import list_members
from fathomless.system.errors import DataError
from quick_fits import FRAMES, classes, classifier, problem, regressor, table

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

QUICK: dict[str, Any] = {"epochs": 8, "random_state": 0}
SAMPLED = HMC(chains=2, sweeps=16, states=4, leapfrogs=3)


def test_contributions_are_those_of_the_slopes_of_one_layer() -> None:
    """Closed form: the slope of V relu(W x + b) + c is V diag(W x + b > 0) W."""
    X, y = problem(120)
    fitted = UnboundedDepthRegressor(depth_law=1, cv=1, width=6, recalibrate=False, **QUICK).fit(X, y)
    found = linear_contributions(fitted, X[:9])
    network = cast(UnboundedDepth, list_members(fitted.model_)[0])
    layer, head = network.layers["1"][0], network.heads["1"]
    x = torch.as_tensor(encode(fitted.schema_, X[:9]), dtype=torch.float64)
    weight, bias, last = (p.detach().double() for p in (layer.weight, layer.bias, head.weight))
    open_ = (x @ weight.T + bias > 0.0).double()
    slope = torch.einsum("h,nh,hd->nd", last[0], open_, weight) * fitted.target_.scale[0]
    np.testing.assert_allclose(found.values[:, :, 0], (slope * x).numpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found.prediction[:, 0], fitted.predict(X[:9]), rtol=1e-5)
    assert found.lower is not None
    np.testing.assert_allclose(found.lower, found.values)  # a single network


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (UnboundedDepthRegressor, {"width": 8}),
        (UnboundedDepthRegressor, {"width": 8, "weights": "meanfield", "weight_draws": 4}),
        (UnboundedDepthRegressor, {"width": 8, "activation": "leaky_relu", "architecture": "residual"}),
        (UnboundedDepthClassifier, {"width": 8}),
        (UnboundedDepthRegressor, {"width": 8, "activation": "relu", "weights": SAMPLED, "cv": 2}),
        (SparseBayesRegressor, {"weight_draws": 4}),
        (ContinuousDepthRegressor, {"width": 4, "hidden": 8, "weight_draws": 4}),
    ],
)
def test_contributions_are_exact_near_a_row(kind: type[Any], options: dict[str, Any]) -> None:
    """The affine function of a row is the output of rows that differ by little, up to rounding."""
    X, y = classes(150) if kind is UnboundedDepthClassifier else problem(150)
    fitted = kind(**QUICK, **options).fit(X, y)
    found = linear_contributions(fitted, X[:6])
    np.testing.assert_allclose(found.base + found.values.sum(1), found.prediction, rtol=1e-9, atol=1e-9)
    assert (found.error == 0.0).all()
    assert found.lower is not None
    assert found.upper is not None
    assert (found.lower <= found.upper).all()
    encoded = encode(fitted.schema_, X[:6])
    spread = np.array([column.scale for column in fitted.schema_.columns])
    near = linear_contributions(fitted, X[:6] + 1e-5 * spread)
    assert encoded.shape[1] == X.shape[1]
    slope = np.divide(found.values, encoded[:, :, None])
    change = slope.sum(1) * 1e-5
    size = np.abs(found.prediction).max()
    np.testing.assert_allclose(near.prediction - found.prediction, change, atol=2e-6 * max(size, 1.0))
    if kind is UnboundedDepthClassifier:
        np.testing.assert_allclose(found.values.sum(2), 0.0, atol=1e-9)  # logits with mean 0


@pytest.mark.parametrize("seed", range(3))
def test_columns_without_a_path_contribute_nothing(seed: int) -> None:
    X, y = problem(120)
    fitted = regressor(**QUICK).fit(X, y)
    unused = int(np.random.default_rng(seed).integers(X.shape[1]))
    with torch.no_grad():
        for network in list_members(fitted.model_):
            for name, weight in network.named_parameters():
                if weight.ndim == 2 and weight.shape[1] == X.shape[1] and "layers.1" in name:
                    weight[:, unused] = 0.0
                if name.startswith("heads.0.weight"):
                    weight[:, unused] = 0.0
    found = linear_contributions(fitted, X[:5])
    assert (found.values[:, unused] == 0.0).all()
    others = np.delete(found.values, unused, axis=1)
    assert (others != 0.0).any()


def test_columns_of_all_kinds_have_one_contribution() -> None:
    frame = FRAMES["pandas"](table(80))
    fitted = classifier(**QUICK).fit(frame, np.arange(80) % 3)
    found = linear_contributions(fitted, frame[:4])
    assert found.columns == tuple(column.name for column in fitted.schema_.columns)
    np.testing.assert_allclose(found.base + found.values.sum(1), found.prediction, rtol=1e-9, atol=1e-9)


def test_other_networks_are_refused() -> None:
    X, y = problem(80)
    smooth = regressor(**QUICK, activation="tanh").fit(X, y)
    with pytest.raises(DataError, match=r"not piecewise linear.*activation='relu'"):
        linear_contributions(smooth, X[:3])
    attentive = regressor(**QUICK, architecture="transformer", cv=2).fit(X, y)
    with pytest.raises(DataError, match="not piecewise linear"):
        linear_contributions(attentive, X[:3])
    sampled = regressor(**QUICK, activation="tanh", weights=SAMPLED, cv=2).fit(X, y)
    with pytest.raises(DataError, match="not piecewise linear"):
        linear_contributions(sampled, X[:3])
    fitted = regressor(**QUICK).fit(X, y)
    with pytest.raises(DataError, match="X has 0 rows"):
        linear_contributions(fitted, X[:0])
    with pytest.raises(DataError, match="level=2"):
        linear_contributions(fitted, X[:2], level=2.0)


def test_ordered_classes_are_refused() -> None:
    X, y = classes(90)
    fitted = UnboundedDepthClassifier(ordinal=True, cv=1, **QUICK).fit(X, np.asarray(y).astype(int))
    with pytest.raises(DataError, match="the classes are ordered"):
        linear_contributions(fitted, X[:2])
