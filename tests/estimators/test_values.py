"""Options as values: nested names, old names, searches, saved models."""

import inspect
import pickle
import warnings
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV

import fathomless
from fathomless import (
    ELBO,
    HMC,
    Adam,
    CheckpointOptions,
    ContinuousDepthRegressor,
    Euler,
    PathOptions,
    RandomHorizon,
    UnboundedDepthClassifier,
    UnboundedDepthRegressor,
)
from fathomless.app import manifests
from fathomless.estimators.declaring import having_option, nested_options, value_of
from fathomless.estimators.options import options_of
from fathomless.estimators.renamed import MOVED, moved
from fathomless.families import registry
from fathomless.posterior.laws import PoissonPrior
from fathomless.system import io
from fathomless.system.errors import DataError
from quick_fits import problem

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")  # fits are short
KINDS = [getattr(fathomless, name) for family in registry.BUILT_IN for name in family.estimators]
WITH_VALUES = [kind for kind in KINDS if any(option.metadata["values"] for option in options_of(kind))]
SHORT: dict[str, Any] = {"epochs": 4, "width": 4, "members": 2, "random_state": 0}


def test_some_families_have_values() -> None:
    assert {UnboundedDepthRegressor, UnboundedDepthClassifier, ContinuousDepthRegressor} <= set(WITH_VALUES)


@pytest.mark.parametrize("kind", WITH_VALUES, ids=lambda kind: kind.__name__)
def test_every_option_of_a_value_can_be_read_set_cloned_and_pickled(kind: Any) -> None:
    for nested, option, key, inner in nested_options(options_of(kind)):
        named = kind(**{option.name: key})
        value = 7 if inner.metadata["kind"] == "whole" else 0.25 if inner.metadata["kind"] == "real" else "other"
        class_ = option.metadata["values"][key]
        assert named.get_params()[nested] == inner.default == getattr(class_(), inner.name)
        assert nested not in named.get_params(deep=False)
        changed = clone(named).set_params(**{nested: value})
        assert getattr(changed, option.name) == class_(**{inner.name: value})
        assert getattr(named, option.name) == key  # and the first is as it was
        for other in (clone(changed), pickle.loads(pickle.dumps(changed)), kind().set_params(**changed.get_params())):
            assert other.get_params() == changed.get_params()
        assert repr(changed) == f"{kind.__name__}({option.name}={class_.__name__}({inner.name}={value!r}))"
        assert kind(**{option.name: key}).set_params(**named.get_params()).get_params() == named.get_params()
        for other in sorted(set(option.metadata["names"]) - set(having_option(option, inner.name)))[:1]:
            with pytest.raises(
                DataError, match=rf"{nested}={value!r} was given with {option.name}='{other}'.*{option.name}='{key}'"
            ):
                kind(**{option.name: other}).set_params(**{nested: value})
        assert f"{inner.name} : " in (class_.__doc__ or "")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_values_are_frozen_and_their_names_are_choices(kind: Any) -> None:
    for option in options_of(kind):
        assert set(option.metadata["values"]) <= {*option.metadata["names"], *option.metadata["special"], None}
        for key, class_ in option.metadata["values"].items():
            value = value_of(option, key)
            assert type(value) is class_
            assert hash(value) == hash(class_())
            with pytest.raises(FrozenInstanceError):
                setattr(value, fields(class_)[0].name, 3)
            assert set(option.metadata["without"]) <= {f.name for f in fields(class_)}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_signatures_have_the_options_and_no_old_names(kind: Any) -> None:
    names = {option.name for option in options_of(kind)}
    assert set(inspect.signature(kind).parameters) == names == set(kind().get_params(deep=False))
    assert not names & moved(kind).keys()


def test_a_name_is_its_value() -> None:
    X, y = problem(60)
    one = UnboundedDepthRegressor(**SHORT, structure_from="elbo").fit(X, y)
    other = UnboundedDepthRegressor(**SHORT, structure_from=ELBO()).fit(X, y)
    assert np.array_equal(one.predict(X), other.predict(X))
    third = UnboundedDepthRegressor(**SHORT, structure_from=ELBO(initial_depth=6.0)).fit(X, y)
    assert not np.array_equal(one.predict(X), third.predict(X))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"weights": ELBO()},
            r"weights=ELBO\(\) was given; allowed are 'map', .* and HMC\(...\)",
        ),
        ({"weights": HMC}, "weights=<class .* was given; allowed are"),
        ({"weights": 3}, "weights=3 was given; allowed are"),
        ({"weights": HMC(chains=1)}, "weights__chains=1 was given; at least 2 is needed"),
        ({"weights": HMC(structure_weights="x")}, "weights__structure_weights='x' was given; allowed are 'fit' and"),
        ({"structure_from": ELBO(delay=-1.0)}, "structure_from__delay=-1.0 was given; 0 or more is allowed"),
    ],
)
def test_values_are_checked_at_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        UnboundedDepthRegressor(**options).fit(*problem(30))


def test_options_of_a_value_without_effect_are_refused() -> None:
    with pytest.raises(DataError, match="optimizer has no effect here: leave it out"):
        ContinuousDepthRegressor(structure_from=ELBO(optimizer="natural")).fit(*problem(30))
    with pytest.raises(DataError, match=r"options of structure_from=.* are rate, delay"):
        ContinuousDepthRegressor(structure_from="elbo").set_params(structure_from__radius=1.0)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(DataError, match=r"weights__rate=1 was given; options of weights=HMC\(\) are chains, sweeps"):
        UnboundedDepthRegressor(weights="hmc").set_params(weights__rate=1)
    with pytest.raises(ValueError, match="Invalid parameter"):
        UnboundedDepthRegressor().set_params(no__thing=1)
    with pytest.raises(TypeError, match="weights__chains"):
        UnboundedDepthRegressor(weights="hmc", weights__chains=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["structure_from__initial_depth", "initial_depth"])
def test_searches_go_over_options_of_values(name: str) -> None:
    X, y = problem(60)
    base = UnboundedDepthRegressor(**{**SHORT, "members": 1}, structure_from="elbo")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        found = GridSearchCV(base, {name: [0.5, 6.0]}, cv=2).fit(X, y)
        drawn = RandomizedSearchCV(base, {name: [0.5, 6.0]}, n_iter=2, cv=2, random_state=0).fit(X, y)
    assert len(set(found.cv_results_["mean_test_score"])) == 2
    assert found.best_params_ == drawn.best_params_
    assert found.best_estimator_.structure_from == ELBO(initial_depth=found.best_params_[name])


# ------------------------------------------------------------------------------------------------ old names


def old_cases() -> list[Any]:
    return [
        pytest.param(kind, old, place, id=f"{kind.__name__}-{old}")
        for kind in (UnboundedDepthRegressor, ContinuousDepthRegressor)
        for old, place in moved(kind).items()
    ]


@pytest.mark.parametrize(("kind", "old", "place"), old_cases())
def test_old_names_are_taken_with_a_warning_that_names_the_new(kind: Any, old: str, place: Any) -> None:
    declared = {name: (option, inner) for name, option, _, inner in nested_options(options_of(kind))}
    option, inner = declared[place.nested]
    class_ = option.metadata["values"][place.choice]
    value = 7 if inner.metadata["kind"] == "whole" else 0.25 if inner.metadata["kind"] == "real" else "other"
    new = rf"{old} will be removed in the next version; use {option.name}={class_.__name__}\({inner.name}={value!r}\)"
    with pytest.warns(FutureWarning, match=new) as seen:
        built = kind(**{option.name: place.choice, old: value})
    assert seen[0].filename == __file__
    with pytest.warns(FutureWarning, match=new) as seen:
        changed = kind(**{option.name: place.choice}).set_params(**{old: value})
    assert seen[0].filename == __file__
    for one in (built, changed):
        assert getattr(one, option.name) == class_(**{inner.name: value})
    with pytest.raises(DataError, match=rf"{old}=.* was given with {option.name}=.* leave it out"):
        kind(**{option.name: class_(), old: value})
    with pytest.raises(DataError, match=rf"{old}=.* was given with {place.nested}=.* leave it out"):
        kind(**{option.name: place.choice}).set_params(**{old: value, place.nested: value})
    if value_of(option, option.default) is None:
        with pytest.warns(FutureWarning, match=rf"has no effect unless {option.name} is '{place.choice}'"):
            idle = kind(**{old: value})
        assert getattr(idle, option.name) == option.default


def test_auto_is_the_bound_where_weights_are_drawn() -> None:
    with pytest.warns(FutureWarning, match=r"use structure_from=ELBO\(rate=3.0\)"):
        drawn = UnboundedDepthRegressor(weights="meanfield", structure_rate=3.0)
    assert drawn.structure_from == ELBO(rate=3.0)


def test_the_table_of_old_names_is_of_options_there_are() -> None:
    groups = {base.__name__: base for family in registry.BUILT_IN for base in family.options.__mro__}
    for name, places in MOVED.items():
        nested = {(one, key, option.name) for one, option, key, _ in nested_options(options_of(groups[name]))}
        for old, place in places.items():
            assert (place.nested, place.choice, place.option) in nested, old
            assert old not in {option.name for option in options_of(groups[name])}


def test_a_folder_stands_for_its_checkpoints() -> None:
    new = UnboundedDepthRegressor(checkpoint="run").set_params(checkpoint__seconds=5.0)
    assert new.checkpoint == CheckpointOptions("run", seconds=5.0)
    assert UnboundedDepthRegressor(checkpoint=Path("run")).get_params()["checkpoint__folder"] == Path("run")
    with pytest.warns(FutureWarning, match=r"use checkpoint=CheckpointOptions\('run', seconds=5.0\)"):
        old = UnboundedDepthRegressor(checkpoint="run", checkpoint_seconds=5.0)
    assert old.checkpoint == new.checkpoint
    with pytest.raises(DataError, match=r"checkpoint=3 was given; allowed are None and CheckpointOptions\(...\)"):
        UnboundedDepthRegressor(checkpoint=3).fit(*problem(30))
    with pytest.raises(DataError, match=r"checkpoint__seconds=-1\.0 was given; 0 or more is allowed"):
        UnboundedDepthRegressor(checkpoint=CheckpointOptions("run", seconds=-1.0)).fit(*problem(30))


def test_old_options_of_steps_and_horizons_join_the_choice_that_is_there() -> None:
    with pytest.warns(FutureWarning, match=r"use solver=Euler\(steps=3, jitter='none'\)"):
        built = ContinuousDepthRegressor(solver="euler", steps=3, jitter="none")
    assert built.solver == Euler(steps=3, jitter="none")
    with pytest.warns(FutureWarning, match=r"use solver=Euler\(predict_steps=7\)"):
        assert built.set_params(predict_steps=7).solver == Euler(steps=3, jitter="none", predict_steps=7)
    with pytest.warns(FutureWarning, match="horizons will be removed .* has no effect unless horizon is 'random'"):
        assert ContinuousDepthRegressor(horizon=2.0, horizons=3).horizon == 2.0
    with pytest.warns(FutureWarning, match=r"use optimizer=Adam\(clip_norm=None, warm_up=0.0\)"):
        plain = ContinuousDepthRegressor(clip_norm=None, warm_up=0.0)
    assert plain.optimizer == Adam(clip_norm=None, warm_up=0.0)


@pytest.mark.parametrize(
    "changed",
    [
        {"path__rank": 7},
        {"solver": "euler"},
        {"solver__steps": 2},
        {"horizon": "random"},
        {"path__initial": "gaussian"},
    ],
    ids=str,
)
def test_a_fit_that_continues_needs_the_options_of_its_network(changed: dict[str, Any]) -> None:
    X, y = problem(40)
    own = {"epochs": 1, "width": 4, "hidden": 4, "members": 1, "random_state": 0, "warm_start": True}
    fitted = ContinuousDepthRegressor(**own).fit(X, y)
    fitted.set_params(path=PathOptions(), optimizer=Adam(clip_norm=1.0)).fit(X, y)  # equal, and of the training
    with pytest.raises(DataError, match=f"{next(iter(changed)).partition('__')[0]}=.* was given; set it back"):
        fitted.set_params(**changed).fit(X, y)


@pytest.mark.parametrize(
    ("kind", "clip_norm", "warm_up"),
    [(ContinuousDepthRegressor, 10.0, 0.5), (UnboundedDepthRegressor, None, 0.0)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_families_resolve_automatic_options_of_adam(kind: Any, clip_norm: float | None, warm_up: float) -> None:
    plan = kind()._training_plan()
    assert (plan.schedule, plan.clip_norm, plan.warm_up) == ("cosine", clip_norm, warm_up)
    given = kind(optimizer=Adam(schedule="constant", clip_norm=3.0, warm_up=0.25))._training_plan()
    assert (given.schedule, given.clip_norm, given.warm_up) == ("constant", 3.0, 0.25)


# ------------------------------------------------------------------------------------------------- files


def as_before(folder: Path, **changed: Any) -> None:
    """Write the options of a saved model as the version before did: all of them, flat."""
    saved = io.load(folder, kinds={"UnboundedDepthRegressor"})
    flat = {"chains": 8, "sweeps": 400, "leapfrogs": 100, "states": "auto", "structure_weights": "stacking"}
    flat |= {"structure_rate": "auto", "structure_delay": 0.0, "structure_optimizer": "adam", "structure_radius": 0.1}
    options = {**saved.meta["options"], **flat, "initial_depth": 2.0, **changed}
    io.save(folder, kind="UnboundedDepthRegressor", tensors=saved.tensors, meta={**saved.meta, "options": options})


def test_values_are_saved_as_plain_json_and_loaded(tmp_path: Path) -> None:
    X, y = problem(40)
    chains = HMC(chains=2, sweeps=16, leapfrogs=2, states=4)
    fitted = UnboundedDepthRegressor(**SHORT, weights=chains).fit(X, y)
    fitted.save(tmp_path / "new")
    for loaded in (UnboundedDepthRegressor.load(tmp_path / "new"), fathomless.load(tmp_path / "new")):
        assert loaded.weights == chains
        assert np.array_equal(loaded.predict(X), fitted.predict(X))
    as_before(tmp_path / "new", weights="hmc", chains=2, sweeps=16, leapfrogs=2, states=4, structure_rate=3.0)
    with pytest.warns(FutureWarning, match=r"old names \(chains, .* now weights__chains=2, .* save it again"):
        before = UnboundedDepthRegressor.load(tmp_path / "new")
    assert (before.weights, before.structure_from) == (chains, "auto")
    assert np.array_equal(before.predict(X), fitted.predict(X))
    with pytest.warns(FutureWarning, match="old names"):
        predictor = registry.predictor(tmp_path / "new")
    assert np.array_equal(np.asarray(predictor.predict_dist(X).mean), np.asarray(fitted.predict_dist(X).mean))
    before.save(tmp_path / "again")
    assert UnboundedDepthRegressor.load(tmp_path / "again").weights == chains


def test_old_defaults_are_loaded_without_a_word(tmp_path: Path) -> None:
    X, y = problem(40)
    fitted = UnboundedDepthRegressor(**SHORT).fit(X, y)
    fitted.save(tmp_path / "m")
    as_before(tmp_path / "m")
    assert UnboundedDepthRegressor.load(tmp_path / "m").get_params() == fitted.get_params()


def test_continuous_depth_of_the_version_before_is_loaded(tmp_path: Path) -> None:
    X, y = problem(40)
    own: dict[str, Any] = {"epochs": 2, "width": 4, "hidden": 4, "members": 1, "random_state": 0}
    horizon = RandomHorizon(count=4, prior=PoissonPrior(3.0))
    given = {"path": PathOptions(rate=0.2, rank=3), "solver": Euler(steps=3), "horizon": horizon}
    fitted = ContinuousDepthRegressor(**own, **given, optimizer=Adam(schedule="constant")).fit(X, y)
    folder = fitted.save(tmp_path / "m")
    saved = io.load(folder, kinds={"ContinuousDepthRegressor"})
    prior = {"class": "PoissonPrior", "fields": {"rate": 3.0}}
    flat = {"prior": "ou", "rate": 0.2, "initial": "point", "drift": "diagonal", "rank": 3, "knots": 4, "steps": 3}
    flat |= {"solver": "euler", "predict_steps": None, "jitter": "count", "gradient": "auto", "estimator": "closed"}
    flat |= {"horizon": "random", "horizons": 4, "horizon_prior": prior, "transition": "exact"}
    flat |= {"schedule": "constant", "clip_norm": 10.0, "warm_up": 0.5, "checkpoint_seconds": 30.0}
    options = {name: value for name, value in saved.meta["options"].items() if name not in ("path", "optimizer")}
    meta = {**saved.meta, "options": {**options, **flat}}
    io.save(folder, kind="ContinuousDepthRegressor", tensors=saved.tensors, meta=meta)
    with pytest.warns(FutureWarning, match="old names .*path__rate=0.2.*solver__steps=3.*horizon__count=4"):
        before = ContinuousDepthRegressor.load(folder)
    assert before.get_params() == fitted.get_params()
    assert np.array_equal(before.predict(X), fitted.predict(X))


def test_a_fixed_horizon_of_the_version_before_is_loaded_whatever_the_depths_were(tmp_path: Path) -> None:
    """`horizons` had no effect on a fixed horizon, but stood in the layout."""
    X, y = problem(40)
    own: dict[str, Any] = {"epochs": 2, "width": 4, "hidden": 4, "members": 1, "random_state": 0}
    fitted = ContinuousDepthRegressor(**own).fit(X, y)
    folder = fitted.save(tmp_path / "m")
    saved = io.load(folder, kinds={"ContinuousDepthRegressor"})
    options = {**saved.meta["options"], "horizons": 4}
    meta = {**saved.meta, "options": options, "layout": {**saved.meta["layout"], "support": [3]}}
    io.save(folder, kind="ContinuousDepthRegressor", tensors=saved.tensors, meta=meta)
    loaded = ContinuousDepthRegressor.load(folder)
    assert np.array_equal(loaded.predict(X), fitted.predict(X))


def test_manifests_of_runs_have_the_new_names() -> None:
    texts = {"estimator": "UnboundedDepthRegressor", "source": "", "sha256": "", "key": None, "weight": None}
    lists = {"command": [], "columns": ["x"], "targets": ["y"], "notes": [], "versions": {}}
    asked: dict[str, Any] = {**texts, **lists, "bytes": 0, "rows": 1, "seed": 0, "threads": 1}
    old = {"weights": "hmc", "chains": 4, "structure_rate": 1.0, "epochs": 3}
    read = manifests.RunManifest.from_json({**asked, "options": old}, Path("run.json"))
    assert read.options == {"weights": "hmc", "weights__chains": 4, "epochs": 3}
    new = manifests.RunManifest.from_json(
        {**asked, "options": {**read.options, "weights__chains": 5}}, Path("run.json")
    )
    assert new.differences(read) == ["--hmc.chains (here 5, there 4)"]
    assert manifests.RunManifest.from_json({**asked, "options": new.options}, Path("run.json")).options == new.options
