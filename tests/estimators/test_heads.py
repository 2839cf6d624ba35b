"""Estimators with posteriors of the heads."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fathomless import Folds, Restarts, UnboundedDepthClassifier, UnboundedDepthRegressor, load
from fathomless.data import streams
from fathomless.families.depth import deploy
from fathomless.families.depth.model import UnboundedDepth
from fathomless.inference.out_of_fold.heads import head_variance, replace_heads_by_means
from fathomless.nn.gaussian_head import GaussianHead
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.likelihoods import LocationScale
from fathomless.posterior.noise import LearnedNoise
from fathomless.system.errors import DataError, DepthError
from quick_fits import Array, classes, problem

SHORT: dict[str, Any] = {"epochs": 30, "width": 8, "cv": 1, "random_state": 0, "last_layer": "laplace"}

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")  # fits are short


def regressor(**options: Any) -> UnboundedDepthRegressor:
    return UnboundedDepthRegressor(**{**SHORT, **options})


def classifier(**options: Any) -> UnboundedDepthClassifier:
    return UnboundedDepthClassifier(**{**SHORT, **options})


def networks(fitted: Any) -> list[UnboundedDepth]:
    return [part for part in fitted.model_.modules() if isinstance(part, UnboundedDepth)]


def drawn(fitted: Any) -> bool:
    """Return True if all heads in use are normal."""
    return all(isinstance(h, GaussianHead) for model in networks(fitted) for h in model.heads_in_use().values())


def scale_of(fitted: UnboundedDepthRegressor) -> float:
    assert isinstance(fitted.likelihood_, LocationScale)
    assert isinstance(fitted.likelihood_.noise, LearnedNoise)
    return float(fitted.likelihood_.noise.log_scale().detach().exp()[0])


def of_one_network(fitted: UnboundedDepthRegressor) -> float:
    """Return the scale of the noise of single networks, before it was reduced to that of the average."""
    return scale_of(fitted) / (fitted.fit_diagnostics_.narrowing or (1.0,))[0]


# ---------------------------------------------------------------------------------------------------- what it means


@pytest.mark.parametrize("kind", ["laplace", "conjugate", "classes"])
def test_doubt_grows_off_the_data(kind: str) -> None:
    """The uncertainty about the weights of a network increases at 2, 4 and 8 standard deviations from the mean."""
    X, y = problem(120)
    direction = np.random.default_rng(1).normal(size=(400, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    estimator = classifier(epochs=150) if kind == "classes" else regressor(epochs=150, last_layer=kind)
    fitted = estimator.fit(X, y > 0.0 if kind == "classes" else y)
    near, far, farther = (float(fitted.predict_dist(r * direction).uncertainty().weights.mean()) for r in (2, 4, 8))
    assert 0.0 < near < far < farther


@pytest.mark.parametrize("members", [1, 5])
def test_head_variance_is_not_counted_twice(members: int) -> None:
    """Noise and head variance together do not exceed the noise without heads: it is fitted with the heads fixed."""
    X, y = problem(100, seed=3)
    options: dict[str, Any] = {"epochs": 150, "width": 64, "cv": members, "likelihood": "gaussian"}
    point, doubtful = (regressor(**options, last_layer=kind).fit(X, y) for kind in ("point", "laplace"))
    x = torch.as_tensor(point._encode(point.schema_, X), dtype=point.model_.dtype)
    unseen = [point.held_out_] if doubtful.fold_ is None else [doubtful.fold_[0] == k for k in range(members)]
    each = [head_variance(m, x[rows]).mean().item() for m, rows in zip(networks(doubtful), unseen, strict=True)]
    noise, before = (of_one_network(fitted) ** 2 for fitted in (doubtful, point))
    doubt = float(np.mean(each))
    assert doubt > 0.1 * before  # else this says nothing
    assert 0.6 * before < noise + doubt < before + 0.1 * doubt  # where it was counted twice, it would be before + doubt


def test_means_are_those_of_the_trained_heads() -> None:
    """With the trained heads as means, mean predictions are those of point estimates, and the variance is larger."""
    X, y = problem(100)
    fitted = regressor(weight_draws=256).fit(X, y)
    points = copy.deepcopy(fitted)
    replace_heads_by_means(points.model_)
    mean, std = fitted.predict(X, return_std=True)
    plain, narrow = points.predict(X, return_std=True)
    np.testing.assert_allclose(mean, plain, atol=5.0 * float(std.max()) / 16.0)
    assert std.mean() > narrow.mean()


def test_the_split_calls_doubt_about_heads_weights() -> None:
    X, y = problem(100)
    parts = regressor(weight_draws=64).fit(X, y).predict_dist(X).uncertainty()
    assert bool((parts.weights >= 0.0).all())
    assert float(parts.weights.mean()) > 0.0
    assert torch.allclose(parts.noise + parts.weights + parts.structure, parts.total)
    assert float(regressor(last_layer="point").fit(X, y).predict_dist(X).uncertainty().weights.max()) == 0.0


# ------------------------------------------------------------------------------------------------------- everywhere

TABLES: dict[str, tuple[Array, Array]] = {"one": problem(90), "two": problem(90, targets=2), "classes": classes(90)}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "one network": ("one", {}),
    "the posterior's mean": ("one", {"last_layer": "conjugate"}),
    "cross-fitted": ("one", {"cv": 3, "last_layer": "conjugate"}),
    "twice": ("one", {"cv": Folds(n_splits=3, n_repeats=2)}),
    "kinds": ("one", {"cv": 3, "candidates": {"activation": ["relu", "tanh"]}}),
    "best of two": ("one", {"cv": "auto", "n_restarts": 2}),
    "average of two": ("one", {"cv": "auto", "n_restarts": Restarts(count=2, keep="average")}),
    "several targets": ("two", {"last_layer": "conjugate"}),
    "input": ("two", {"noise": "input", "last_layer": "conjugate"}),
    "student": ("one", {"likelihood": "student_t", "last_layer": "conjugate"}),
    "free noise": ("one", {"likelihood": "auto", "cv": 3}),
    "laplace noise": ("one", {"likelihood": "laplace"}),
    "known noise": ("one", {"noise": 0.3, "calibrate": False}),
    "by the bound": ("one", {"structure_from": "elbo", "cv": "auto"}),
    "average by the bound": (
        "one",
        {"structure_from": "elbo", "cv": "auto", "n_restarts": Restarts(count=2, keep="average")},
    ),
    "depth given": ("one", {"depth_law": 2}),
    "nothing held out": ("one", {"validation_fraction": 0.0}),
    "classes": ("classes", {}),
    "classes, cross-fitted": ("classes", {"cv": 3}),
    "single precision": ("classes", {"precision": "float32"}),
}


@pytest.mark.parametrize("name", VARIANTS)
def test_heads_are_drawn_saved_and_loaded(name: str, tmp_path: Path) -> None:
    task, options = VARIANTS[name]
    X, y = TABLES[task]
    fitted: Any = (classifier if task == "classes" else regressor)(**options).fit(X, y)
    assert drawn(fitted)
    assert fitted.model_.stochastic
    found = fitted.predict_dist(X)
    assert bool(found.log_prob(y).isfinite().all())
    assert float(found.uncertainty().weights.max()) > 0.0
    again = load(fitted.save(tmp_path / "kept"))
    assert drawn(again)
    assert torch.equal(again.predict_dist(X).log_prob(y), found.log_prob(y))
    if fitted.fold_ is not None:
        assert bool(fitted.predict_dist(X, fold=fitted.fold_).log_prob(y).isfinite().all())
    if isinstance(fitted.model_, Ensemble) and "kinds" not in name and "bound" not in name:
        laws = [model.depth_posterior() for model in networks(fitted)]
        assert all(law == laws[0] for law in laws)


def test_one_law_is_fitted_anew_under_the_heads() -> None:
    X, y = problem(100)
    fitted, point = regressor(cv=4).fit(X, y), regressor(cv=4, last_layer="point").fit(X, y)
    assert fitted.depth_posterior_ != point.depth_posterior_
    assert fitted.validation_score_ != point.validation_score_
    assert sum(fitted.depth_posterior_.values()) == pytest.approx(1.0)
    assert set(fitted.depth_posterior_error_) == set(fitted.depth_posterior_)


def test_weight_equals_repetition() -> None:
    X, y = problem(70)
    weight = np.where(np.arange(70) < 20, 2.0, 1.0)
    rows = np.repeat(np.arange(70), weight.astype(int))
    options: dict[str, Any] = {"validation_fraction": 0.0, "epochs": 40, "last_layer": "conjugate", "patience": None}
    weighted = regressor(**options).fit(X, y, sample_weight=weight)
    repeated = regressor(**options).fit(X[rows], y[rows])
    for a, b in zip(networks(weighted), networks(repeated), strict=True):
        one, other = a.heads_in_use()[0], b.heads_in_use()[0]  # on the columns themselves, which are scaled alike
        assert isinstance(one, GaussianHead)
        assert isinstance(other, GaussianHead)
        assert torch.allclose(one.weight, other.weight, atol=0.02)
        assert torch.allclose(one.scale.sort().values, other.scale.sort().values, rtol=0.05)


def test_streams_have_heads_too() -> None:
    X, y = problem(400)
    fitted = regressor(epochs=3, last_layer="conjugate").fit_stream(streams.arrays(X, y))
    assert drawn(fitted)
    assert float(fitted.predict_dist(X).uncertainty().weights.mean()) > 0.0


def test_a_warm_start_goes_on_from_the_means() -> None:
    X, y = problem(90)
    fitted = regressor(warm_start=True, cv="auto").fit(X, y)
    before = fitted.model_
    fitted.fit(X, y)
    assert fitted.model_ is not before
    assert drawn(fitted)


def test_exports_have_the_means() -> None:
    X, y = problem(90)
    fitted = regressor(cv=1, precision="float64").fit(X, y)
    (model,) = networks(fitted)
    points = copy.deepcopy(model)
    replace_heads_by_means(points)
    x = torch.as_tensor(fitted._encode(fitted.schema_, X))
    for depth, f in zip(model.depth_posterior(), points.draw(x).f, strict=True):
        assert torch.allclose(deploy.point_depth(model, depth)(x), f)
    draws = points.draw(x)
    mean = torch.einsum("s,snk->nk", draws.log_weight.exp(), draws.f)
    assert torch.allclose(deploy.mean_network(model)(x), mean)
    deepest = max(model.depth_posterior(), key=lambda depth: model.depth_posterior()[depth])
    assert set(deploy.compress(model, 0.99).depth_posterior()) == {deepest}
    with pytest.raises(DepthError, match="last_layer='point'"):
        deploy.classify_early(model, x)


# -------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (regressor, {"last_layer": "full"}, "last_layer"),
        (regressor, {"weights": "meanfield"}, "weights='meanfield'"),
        (classifier, {"last_layer": "conjugate"}, "keeps the trained head"),
        (regressor, {"last_layer": "conjugate", "likelihood": "laplace"}, "keeps the trained head"),
        (regressor, {"architecture": "transformer"}, "heads of type Sequential"),
    ],
)
def test_what_has_no_posterior_is_refused_before_the_training(make: Any, options: dict[str, Any], words: str) -> None:
    X, y = classes(80) if make is classifier else problem(80)
    estimator = make(**options, callbacks=[lambda run: pytest.fail("it was trained")])
    with pytest.raises(DataError, match=words):
        estimator.fit(X, y)
