"""Candidate architectures for one table, weighted by out-of-fold rows."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
import torch

from commands import Call
from fathomless import ContinuousDepthRegressor, UnboundedDepthClassifier, UnboundedDepthRegressor, load
from fathomless.estimators.candidates import average_weights, expand_candidates
from fathomless.estimators.values import CheckpointOptions
from fathomless.families.depth.model import UnboundedDepth
from fathomless.families.depth.report import page
from fathomless.inference.runs.run import Run
from fathomless.posterior.ensemble import Ensemble, list_members
from fathomless.posterior.fit_diagnostics import StructureWeights
from fathomless.system.errors import DataError, PausedError
from quick_fits import classes, problem

SHORT: dict[str, Any] = {"epochs": 40, "width": 8, "cv": 3, "random_state": 0}
LONGER = {**SHORT, "epochs": 200}
BOTH = {"activation": ["relu", "tanh"]}

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")  # fits are short


@pytest.fixture(scope="module")
def fitted() -> UnboundedDepthRegressor:
    return UnboundedDepthRegressor(**SHORT, candidates=BOTH).fit(*problem(210))


def test_kinds_are_all_combinations() -> None:
    found = expand_candidates({"activation": ("relu", "tanh"), "weight_prior": (0.3, 1.0, 3.0)})
    assert len(found) == 6
    assert {"activation": "tanh", "weight_prior": 0.3} in found


def test_each_kind_is_what_it_is_alone(fitted: UnboundedDepthRegressor) -> None:
    """The first candidate has the seed of the fit: its networks are bit-identical to those of a separate fit."""
    X, y = problem(210)
    alone = UnboundedDepthRegressor(**SHORT, activation="relu").fit(X, y)
    assert isinstance(fitted.model_, Ensemble)
    assert isinstance(alone.model_, Ensemble)
    assert len(fitted.model_.members) == 6
    for member, other in zip(fitted.model_.members[:3], alone.model_.members, strict=True):
        assert all(
            torch.equal(a, b) for a, b in zip(member.state_dict().values(), other.state_dict().values(), strict=True)
        )
    assert fitted.fold_ is not None
    assert alone.fold_ is not None
    assert np.array_equal(fitted.fold_, np.repeat(alone.fold_, 2, axis=0))
    kept = {name: getattr(alone.fit_diagnostics_.structure, name) for name in ("numbers", "weights")}
    tanh = fitted.kinds_[1]["weight"]
    for number, weight in zip(kept["numbers"], kept["weights"], strict=True):
        assert fitted.depth_posterior_[number] >= (1.0 - tanh) * weight - 1e-9


def test_the_mixture_predicts_unseen_rows_as_well_as_its_parts(fitted: UnboundedDepthRegressor) -> None:
    X, y = problem(210)
    assert [one["options"]["activation"] for one in fitted.kinds_] == ["relu", "tanh"]
    assert math.isclose(sum(one["weight"] for one in fitted.kinds_), 1.0)
    both = fitted.predict_dist(X, fold=fitted.fold_).log_prob(y)
    relu = UnboundedDepthRegressor(**SHORT, activation="relu").fit(X, y)
    alone = relu.predict_dist(X, fold=relu.fold_).log_prob(y)
    assert float(both.mean()) > float(alone.mean()) - 0.02  # the noise is fitted to the mixture


@pytest.fixture(scope="module")
def encodings() -> UnboundedDepthRegressor:
    """Fit both encodings of numbers to a table with a mass and missing values."""
    return UnboundedDepthRegressor(**LONGER, candidates={"numbers": ["plain", "binned"]}).fit(*masses())


def masses() -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(3)
    values = rng.normal(size=(240, 2))
    values[rng.random(240) < 0.4, 0] = 0.0
    y = (values[:, 0] == 0.0) + values[:, 1] + 0.1 * rng.normal(size=240)
    return pd.DataFrame(values, columns=["mass", "gaps"]).mask(rng.random((240, 2)) < (0.0, 0.1)), y


def test_networks_of_plain_numbers_are_those_of_a_fit_of_their_own(encodings: UnboundedDepthRegressor) -> None:
    """The first candidate has the seed of the fit. Its networks have weights of 0 for the features of bins."""
    X, y = masses()
    alone = UnboundedDepthRegressor(**LONGER, numbers="plain", weight_prior=1.0).fit(X, y)
    plain = torch.from_numpy(alone._encode(alone.schema_, X)).to(alone.model_.dtype)
    whole = torch.from_numpy(encodings._encode(encodings.schema_, X)).to(alone.model_.dtype)
    further = list(encodings.schema_.further_features)
    assert plain.shape[1] + len(further) == whole.shape[1]
    assert len(further) > 20
    for member, other in zip(list_members(alone.model_), list_members(encodings.model_)[:3], strict=True):
        assert isinstance(other, UnboundedDepth)
        assert not other.first_weight()[:, further].any()
        f, of_whole = member.draw(plain, 1, torch.Generator()).f, other.draw(whole, 1, torch.Generator()).f
        assert torch.allclose(f, of_whole, atol=1e-5)


def test_bins_have_the_weight_if_they_are_needed(encodings: UnboundedDepthRegressor, tmp_path: Path) -> None:
    X, _ = masses()
    plain, binned = encodings.kinds_
    assert plain["options"] == {"numbers": "plain"}
    assert binned["weight"] > 0.9
    again = load(encodings.save(tmp_path / "m"))
    assert np.array_equal(again.predict(X), encodings.predict(X))


def test_a_single_candidate_has_its_options() -> None:
    X, y = problem(120)
    one = UnboundedDepthRegressor(**SHORT, candidates={"activation": ["tanh"]}).fit(X, y)
    alone = UnboundedDepthRegressor(**SHORT, activation="tanh", weight_prior=1.0).fit(X, y)
    assert one.kinds_ == [{"options": {"activation": "tanh"}, "weight": 1.0, "networks": 3}]
    for member, other in zip(list_members(one.model_), list_members(alone.model_), strict=True):
        assert all(map(torch.equal, member.state_dict().values(), other.state_dict().values()))


def test_a_kind_that_cannot_learn_gets_little_weight() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 2))
    y = np.sin(2.0 * X[:, 0]) + 0.1 * rng.normal(size=240)
    options = {**SHORT, "epochs": 150, "learning_rate": 0.02}
    found = UnboundedDepthRegressor(**options, candidates={"weight_prior": (1.0, 1e-3)}).fit(X, y)
    assert found.kinds_[0]["weight"] > 0.9


@pytest.mark.parametrize("kind", [UnboundedDepthRegressor, ContinuousDepthRegressor])
def test_widths_are_weighted_by_unseen_rows(kind: type[Any], tmp_path: Path) -> None:
    """A target of two columns that interact needs more than one unit."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(240, 2))
    y = np.sin(2.0 * X[:, 0]) * X[:, 1] + 0.1 * rng.normal(size=240)
    options = {**SHORT, "epochs": 100, "learning_rate": 0.02}
    found = kind(**options, candidates={"width": [1, 32]}).fit(X, y)
    again = load(found.save(tmp_path / "m"))
    assert np.array_equal(again.predict(X), found.predict(X))
    if kind is ContinuousDepthRegressor:
        widths = [cast(Any, one).dynamics.width for one in list_members(found.model_)]
        assert widths == [1, 1, 1, 32, 32, 32]
    else:
        assert [one["options"] for one in found.kinds_] == [{"width": 1}, {"width": 32}]
        assert found.kinds_[1]["weight"] > 0.9
        widths = [cast(UnboundedDepth, one).heads["1"].in_features for one in list_members(found.model_)]
        assert widths == [1, 1, 1, 32, 32, 32]
        module = found.to_module()
        mean = module(torch.as_tensor(X))["mean"].numpy().ravel()
        assert np.allclose(mean, found.predict(X), atol=1e-4)


def test_the_command_line_fits_candidates(tmp_path: Path, call: Call) -> None:
    X, y = problem(210)
    table = tmp_path / "table.csv"
    pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y).to_csv(table, index=False)
    words = ("--target", "y", "--cv", 3, "--epochs", 20, "--width", "auto", "--out", tmp_path / "run")
    assert call("fit", table, *words, "--candidates", "width=4,8 activation=tanh").code == 0
    assert call("predict", tmp_path / "run", table, "--out", tmp_path / "p.csv").code == 0
    fitted = load(tmp_path / "run")
    assert [one["options"]["width"] for one in fitted.kinds_] == [4, 8]
    said = call("fit", table, *words, "--overwrite", "--candidates", 3)
    assert said.code == 2
    assert "--candidates 3 was given; None and a dict of lists are allowed" in said.err
    assert load(tmp_path / "run").kinds_ == fitted.kinds_


def test_few_rows_weigh_kinds_alike() -> None:
    few = UnboundedDepthClassifier(**SHORT, candidates=BOTH).fit(*classes(60))
    assert [one["weight"] for one in few.kinds_] == [0.5, 0.5]
    assert np.allclose(few.predict_proba(classes(60)[0]).sum(1), 1.0)


def test_out_of_fold_predictions_weigh_kinds_as_predictions_do(fitted: UnboundedDepthRegressor) -> None:
    X, _ = problem(210)
    assert fitted.fold_ is not None
    assert isinstance(fitted.model_, Ensemble)
    expected = np.zeros(len(X))
    for c, one in enumerate(fitted.kinds_):
        for k in range(3):
            rows = fitted.fold_[c] == k
            member = fitted.model_.members[3 * c + k]
            alone = fitted._copy_with({"fold_": None, "model_": member, "recalibration_": None})
            expected[rows] += one["weight"] * alone.predict(X[rows])
    mixture = fitted.predict_dist(X, fold=fitted.fold_).network_mixture
    assert np.allclose(mixture.mean.numpy().ravel(), expected, atol=1e-9)


def test_kinds_are_saved_with_their_weights(fitted: UnboundedDepthRegressor, tmp_path: Path) -> None:
    X, _ = problem(50, seed=1)
    again = load(fitted.save(tmp_path / "m"))
    assert np.array_equal(again.predict(X), fitted.predict(X))
    assert again.kinds_ == fitted.kinds_
    assert again.depth_posterior_ == fitted.depth_posterior_


def test_kinds_resume_to_the_same_bytes(fitted: UnboundedDepthRegressor, tmp_path: Path) -> None:
    X, y = problem(210)
    seen = []

    def pause(run: Run) -> None:
        seen.append(run.epoch)
        run.pause = seen.count(16) == 2  # in the second kind

    options = {**SHORT, "candidates": BOTH, "checkpoint": CheckpointOptions(tmp_path / "c", seconds=0.0)}
    with pytest.raises(PausedError):
        UnboundedDepthRegressor(**options, callbacks=[pause]).fit(X, y)
    again = UnboundedDepthRegressor(**options).fit(X, y)
    assert np.array_equal(again.predict(X), fitted.predict(X))
    assert again.kinds_ == fitted.kinds_


def test_the_page_tells_kinds(fitted: UnboundedDepthRegressor) -> None:
    tables = [group.table for group in page(fitted).groups]
    assert tables[1] is not None
    assert [row[0] for row in tables[1].rows] == ["activation relu", "activation tanh"]


def test_averages_of_what_posteriors_rest_on() -> None:
    one = StructureWeights(
        numbers=(0, 1),
        weights=(0.4, 0.6),
        errors=(0.1, 0.1),
        mean=0.6,
        mean_error=0.1,
        single=(0.5, 0.5),
        poisson=(0.5, 0.5),
        poisson_rate=1.0,
        poisson_loss=0.0,
        log_density=(-1.0, -2.0),
        rows=10,
        members=3,
    )
    both = average_weights([one, replace(one, numbers=(1, 2), mean=1.6)], [0.25, 0.75])
    assert both is not None
    assert both.numbers == (0, 1, 2)
    assert both.weights == pytest.approx((0.1, 0.45, 0.45))
    assert both.log_density == pytest.approx((-1.0, -1.25, -2.0))
    assert both.mean == pytest.approx(1.35)
    assert both.members == 6
    assert average_weights([one, None], [0.5, 0.5]) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"candidates": {"depth_law": ("poisson",)}}, "'width', 'numbers', 'weight_prior' is allowed"),
        ({"candidates": {"width": (0, 8)}}, "width=0"),
        ({"candidates": {"width": (2.5, 8)}}, "width=2.5"),
        ({"candidates": {"numbers": ("plain",), "weight_prior": ("rows", 1.0)}}, "weight_prior='rows'"),
        ({"candidates": 3}, "candidates=3 was given; None and a dict of lists are allowed"),
        ({"candidates": {"width": ("wide", 8)}}, "width='wide'"),
        ({"candidates": {"numbers": ("plain", "auto")}}, "plain and binned"),
        ({"candidates": {"numbers": ("plain", "binned")}, "architecture": "transformer"}, "'mlp' or 'residual'"),
        ({"candidates": {"numbers": ("plain", "binned")}, "weights": "meanfield"}, "point estimates"),
        ({"candidates": {"numbers": ("plain", "binned")}, "last_layer": "laplace"}, "last_layer='laplace'"),
        ({"candidates": {"activation": ("tanh",)}, "cv": 1}, "set cv above 1"),
        ({"candidates": {"activation": ("tanh",)}, "weights": "hmc"}, "leave candidates out"),
        ({"candidates": {"activation": ()}}, "at least one"),
        ({"candidates": {"activation": ("relu", "relu")}}, "different"),
        ({"candidates": {"activation": "relu"}}, "a list of different names"),
        ({"candidates": BOTH, "cv": 1}, "set cv above 1"),
        ({"candidates": BOTH, "cv": "auto", "structure_from": "elbo"}, "set cv above 1"),
    ],
)
def test_what_cannot_be_varied_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        UnboundedDepthRegressor(**{**SHORT, **options}).fit(*problem(60))


def test_a_fixed_depth_has_kinds_too() -> None:
    found = UnboundedDepthRegressor(**SHORT, depth_law=2, candidates=BOTH).fit(*problem(60))
    assert found.depth_posterior_ == pytest.approx({2: 1.0})
    assert len(found.kinds_) == 2
