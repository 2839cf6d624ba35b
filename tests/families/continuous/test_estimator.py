"""Estimators of networks of continuous depth: attributes, and deployment."""

import warnings
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from fathomless import (
    ELBO,
    Adam,
    ContinuousDepthClassifier,
    ContinuousDepthRegressor,
    Euler,
    Heun,
    PathOptions,
    RandomHorizon,
    Restarts,
)
from fathomless.data import streams
from fathomless.data.frames import encode
from fathomless.estimators.variational import fit_together
from fathomless.families.continuous.dynamics import ConvDynamics, Dynamics, MLPDynamics
from fathomless.families.continuous.model import ContinuousDepth
from fathomless.families.continuous.processes import Brownian, OrnsteinUhlenbeck
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.laws import FixedDepth
from fathomless.posterior.likelihoods import Gaussian
from fathomless.system.errors import DataError, DataWarning
from quick_fits import checked

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

Array = npt.NDArray[Any]
QUICK: dict[str, Any] = {
    "epochs": 30,
    "width": 4,
    "hidden": 6,
    "weight_prior": 1.0,
    "path__rate": 0.5,
    "precision": "float64",
    "cv": 1,
    "weight_draws": 8,
    "random_state": 0,
}


CHECKED: dict[str, Any] = {
    "cv": 1,
    "width": 8,
    "hidden": 12,
    "weight_draws": 2,
    "solver": Heun(steps=2),
    "precision": "float64",  # rows by themselves and together are compared to 1e-7
    "random_state": 0,
}


def problem(n: int = 80) -> tuple[Array, Array]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    return X, 3.0 + np.sin(X[:, 0]) + 0.1 * rng.normal(size=n)


def quick(**options: Any) -> ContinuousDepthRegressor:
    """Return a regressor that fits fast, with options given by their nested names."""
    return ContinuousDepthRegressor().set_params(**{**QUICK, **options})


@cache
def fitted(*options: tuple[str, Any]) -> ContinuousDepthRegressor:
    return quick(**dict(options)).fit(*problem())


RANDOM = (("horizon", "random"), ("horizon__count", 3), ("solver__steps", 6))


def test_attributes_show_a_fixed_horizon() -> None:
    own = fitted(("horizon", 2.0), ("solver__steps", 4))
    assert own.horizon_posterior_ == {2.0: 1.0}
    assert own.structure_.names == ("all",)
    assert own.effective_depth_ in {2**k for k in range(10)}
    assert own.divergence_profile_.shape == (4, 2)
    np.testing.assert_allclose(own.divergence_profile_[:, 0], [0.25, 0.75, 1.25, 1.75])
    assert (own.divergence_profile_[:, 1] >= 0.0).all()
    assert own.divergence_profile_[:, 1].max() > 0.0
    assert {"path_divergence", "initial_divergence", "roughness", "contraction"} <= set(own.structure_.statistics)
    spent = 0.5 * own.divergence_profile_[:, 1].sum()  # steps are a half long
    assert own.structure_.statistics["path_divergence"] == pytest.approx(spent, rel=1e-9)
    assert "point estimates" in own.structure_.summary


def test_rows_choose_the_epoch_of_a_fixed_horizon_by_a_noise_that_suits_them() -> None:
    """On pure noise an early state is best; its score is that after the noise is refitted."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 3)), rng.normal(size=60)
    own = ContinuousDepthRegressor(epochs=150, cv=3, width=8, hidden=12, weight_draws=4, random_state=0).fit(X, y)
    assert "mean_path" not in own.history_[0]  # a list of one has no mean
    scores = {row["epoch"]: row["validation_log_likelihood"] for row in own.history_}
    best = max(scores, key=lambda epoch: scores[epoch])
    assert best < 0.5 * 150  # in the warm-up
    assert len(own.history_) < 150 / 2
    assert own.validation_score_ is not None
    assert own.validation_score_ == pytest.approx(scores[best], abs=0.2)
    spread = float(np.std(np.asarray(own.predict(X))))
    assert spread < 0.6 * y.std()  # a network that ran on to its last epoch has learned the rows by heart


def test_options_that_rows_leave_no_effect_are_told() -> None:
    short = quick(epochs=2, cv=2, optimizer=Adam(schedule="constant"))
    with pytest.warns(DataWarning, match="optimizer__schedule='constant' has no effect"):
        short.fit(*problem(30))


@pytest.mark.parametrize(("initial", "paths"), [("point", 4), ("gaussian", 16)])
def test_few_paths_compare_epochs_if_they_start_at_one_point(
    initial: str, paths: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw, asked = ContinuousDepth.draw, []

    def counted(self: ContinuousDepth, x: torch.Tensor, n: int = 1, generator: Any = None) -> Any:
        asked.append((self.training, n))
        return draw(self, x, n, generator)

    monkeypatch.setattr(ContinuousDepth, "draw", counted)
    quick(epochs=2, cv=2, path__initial=initial).fit(*problem(30))
    assert next(n for training, n in asked if not training and n > 1) == paths


def test_attributes_show_a_random_horizon() -> None:
    own = fitted(*RANDOM)
    masses = own.horizon_posterior_
    assert sum(masses.values()) == pytest.approx(1.0)
    assert all(3.0 * depth == pytest.approx(round(3.0 * depth)) for depth in masses)
    assert own.structure_.kind == "horizon"
    mean = sum(3.0 * depth * mass for depth, mass in masses.items())
    assert own.structure_.statistics["mean_horizon"] == pytest.approx(mean)
    assert own.effective_depth_ % 3 == 0
    split = own.predict_dist(problem()[0]).uncertainty()
    assert (split.structure > 0).any()


def test_accuracy_compares_numbers_of_steps() -> None:
    own, (X, y) = fitted(), problem()
    found = own.accuracy(X, y, steps=(20, 2, 5, 40))
    assert [one.steps for one in found] == [2, 5, 20, 40]
    assert found[-1].distance == 0.0
    assert found[0].distance > found[1].distance > found[2].distance > 0.0
    assert all(one.seconds > 0.0 and one.score is not None for one in found)
    assert own.accuracy(X, steps=(4, 4))[0].score is None
    scaled = quick().fit(X, 1000.0 * y).accuracy(X, 1000.0 * y, steps=(5,))
    plain = own.accuracy(X, y, steps=(5,))
    assert plain[0].score is not None
    assert scaled[0].score == pytest.approx(plain[0].score - np.log(1000.0), abs=1e-6)  # in units of the target


def test_accuracy_of_random_horizons_takes_their_multiples() -> None:
    found = fitted(*RANDOM).accuracy(problem()[0], steps=(1, 2, 6, 12))
    assert [one.steps for one in found] == [3, 6, 12]
    assert found[0].distance > found[1].distance > found[2].distance == 0.0
    with pytest.raises(DataError, match=r"steps=\(0, 5\) was given; whole numbers >= 1"):
        fitted().accuracy(problem()[0], steps=(0, 5))


@pytest.mark.parametrize("options", [(), RANDOM, (("cv", 2), ("epochs", 12))], ids=["fixed", "random", "two"])
def test_fixed_paths_predict_alone(options: tuple[tuple[str, Any], ...]) -> None:
    """Their mixture is a predictive mean of the estimator, up to the paths that were drawn."""
    own, (X, _) = fitted(*options), problem()
    x = torch.as_tensor(encode(own.schema_, X))
    paths = own.fixed_paths(200, random_state=1)
    weight = paths.log_weight.exp()
    assert float(weight.sum()) == pytest.approx(1.0)
    f = paths(x)[..., 0]
    own_mean = own.target_.mean + own.target_.scale * (weight @ f).numpy()
    draws = 200 * (len(own.model_.members) if isinstance(own.model_, Ensemble) else 1)
    spread = own.target_.scale * f.std(0).numpy()
    predicted = own.predict(X)
    error = 6.0 * spread * np.sqrt(1.0 / draws + 1.0 / own.weight_draws)
    assert (np.abs(own_mean - predicted) < error + 1e-9).all()
    point = own.point_path()(x)
    members = len(own.model_.members) if isinstance(own.model_, Ensemble) else 1
    assert point.shape[1:] == (len(X), 1)
    assert len(point) == members * len(own.horizon_posterior_)


def test_deployed_paths_can_be_exported() -> None:
    own, (X, _) = fitted(), problem()
    x = torch.as_tensor(encode(own.schema_, X))
    for module in (own.point_path(3), own.fixed_paths(4, steps=3)):
        exported = torch.export.export(module, (x,)).module()
        torch.testing.assert_close(exported(x), module(x))


def test_options_become_the_model() -> None:
    def model(**options: Any) -> ContinuousDepth:
        return quick(**options)._build_model(2, Gaussian(1), 0, torch.float64)

    assert model().prior == OrnsteinUhlenbeck(0.5)
    assert model(path__prior="brownian").prior == Brownian(1.0)  # which gains 2 θ of variance in a unit of depth
    assert model(path__prior="brownian", path__rate=0.0).moving == 0
    assert model(hidden=(3, 4), time="gate").dynamics == MLPDynamics(2, 1, 4, (3, 4), activation="relu", time="gate")
    assert model(horizon="random").random_horizon
    assert isinstance(model().law, FixedDepth)
    assert not model().random_horizon
    assert model(horizon=3).horizon == 3.0
    assert model(path__initial="gaussian").log_width is not None
    path = PathOptions(drift="both", rank=3, knots=2, transition="euler")
    options = model(path=path, solver=Euler(steps=7)).options
    assert (options.transition, options.solver) == ("euler", "euler")
    assert (options.drift, options.rank, options.knots, options.steps) == ("both", 3, 2, 7)


def test_images_are_classified_by_convolutions() -> None:
    def images(inputs: int, outputs: int) -> Dynamics:
        assert inputs == 16
        return ConvDynamics(1, 4, outputs, augment=1, hidden=(4,))

    rng = np.random.default_rng(0)
    y = np.arange(60) % 2
    X = rng.normal(size=(60, 16))
    X[:, :8] += 3.0 * y[:, None]  # a bright half
    options = {**QUICK, "precision": "float32", "solver__steps": 2, "batch_size": 16, "learning_rate": 0.02}
    own = ContinuousDepthClassifier(architecture=images).set_params(**options).fit(X, y)
    assert own.score(X, y) > 0.9
    assert own.accuracy(X, y, steps=(2, 4))[1].distance == 0.0


def test_predictions_are_followed_with_their_own_steps() -> None:
    """More steps in predictions are another discretisation of the same posterior."""
    X, y = problem()
    few, many = (quick(solver=Heun(predict_steps=n)).fit(X, y) for n in (None, 40))
    first, second = (own.model_.state_dict() for own in (few, many))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not np.array_equal(few.predict(X), many.predict(X))
    assert np.abs(few.predict(X) - many.predict(X)).max() < 0.5


def test_networks_are_fitted_together() -> None:
    """Joint fits, each to its own table, do not measure the effective depth."""
    X, y = problem()
    own = [quick(epochs=10, structure_from="elbo", random_state=seed) for seed in range(2)]
    fit_together(own, [(X, y), (X, -y)])
    assert [one.effective_depth_ for one in own] == [0, 0]
    assert own[0].predict(X).mean() > 0.0 > own[1].predict(X).mean()


@pytest.mark.parametrize("restarts", [1, 2])
def test_the_support_of_a_horizon_follows_the_bound(restarts: int) -> None:
    """For one network and for several: the reported rate is the final one of the law."""
    X, y = problem()
    more: dict[str, Any] = {"n_restarts": Restarts(count=restarts, keep="average")} if restarts > 1 else {}
    horizon, bound = RandomHorizon(count=2), ELBO(rate=3.0)
    own = quick(horizon=horizon, solver=Heun(steps=4), structure_from=bound, **more, learning_rate=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own.fit(X, y)
    assert sum(own.horizon_posterior_.values()) == pytest.approx(1.0)
    for network in own._networks():
        law = network.law.support(torch.stack(list(network.law_parameters)).detach())
        assert list(network.horizon_posterior()) == [k + 1 for k in law]


def test_data_that_are_read_in_parts_are_learned() -> None:
    """One network fitted to a stream; its effective depth is measured on the first rows."""
    X, y = problem(160)
    options = {"weight_prior": "auto", "learning_rate": 0.03, "epochs": 60, "batch_size": 40}
    streamed = quick(**options, path__rate="learned").fit_stream(streams.arrays(X, y))
    assert streamed.effective_depth_ >= 1
    assert np.mean((streamed.predict(X) - y) ** 2) < 0.8 * np.var(y)


@pytest.mark.filterwarnings("ignore:class_weight sums to:fathomless.system.errors.DataWarning")
@pytest.mark.filterwarnings("ignore:.* given; fewer than 12:fathomless.system.errors.DataWarning")
@parametrize_with_checks(
    [
        ContinuousDepthClassifier(**CHECKED, epochs=20, learning_rate=0.03),
        ContinuousDepthRegressor(**CHECKED, epochs=40, learning_rate=0.03),
    ]
)
def test_scikit_learn_accepts_the_estimators(estimator: Any, check: Any) -> None:
    checked(estimator, check, epochs=4)
