"""Options as values: nested names, old names, searches, saved models."""

import inspect
import pickle
import re
import warnings
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, KFold, RandomizedSearchCV

import fathomless
from fathomless import (
    ELBO,
    HMC,
    Adam,
    CheckpointOptions,
    ContinuousDepthRegressor,
    DeepEnsembleRegressor,
    Euler,
    FiniteNetworkRegressor,
    Folds,
    PathOptions,
    RandomHorizon,
    Restarts,
    UnboundedDepthClassifier,
    UnboundedDepthRegressor,
)
from fathomless.app import manifests
from fathomless.estimators import saving
from fathomless.estimators.declaring import classes_with_option, nested_options, simplify, value_of
from fathomless.estimators.options import options_of
from fathomless.estimators.renamed import MOVED, RENAMED, moved_options, rename_saved
from fathomless.families import registry
from fathomless.posterior.laws import PoissonPrior
from fathomless.system import io
from fathomless.system.errors import DataError
from quick_fits import problem

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")  # fits are short
KINDS = [getattr(fathomless, name) for family in registry.BUILT_IN for name in family.estimators]
WITH_VALUES = [kind for kind in KINDS if any(option.metadata["values"] for option in options_of(kind))]
SHORT: dict[str, Any] = {"epochs": 4, "width": 4, "cv": 2, "random_state": 0}


def test_some_families_have_values() -> None:
    assert {UnboundedDepthRegressor, UnboundedDepthClassifier, ContinuousDepthRegressor} <= set(WITH_VALUES)


@pytest.mark.parametrize("kind", WITH_VALUES, ids=lambda kind: kind.__name__)
def test_every_option_of_a_value_can_be_read_set_cloned_and_pickled(kind: Any) -> None:
    for nested, option, key, inner in nested_options(options_of(kind)):
        class_ = option.metadata["values"][key]
        usual = option.default if class_.plain else key
        named, before = kind(**{option.name: usual}), value_of(option, usual)
        value = 7 if inner.metadata["kind"] == "whole" else 0.25 if inner.metadata["kind"] == "real" else "other"
        assert named.get_params()[nested] == inner.default == getattr(before, inner.name)
        assert nested not in named.get_params(deep=False)
        changed = clone(named).set_params(**{nested: value})
        assert getattr(changed, option.name) == replace(before, **{inner.name: value})  # type: ignore[type-var]
        assert getattr(named, option.name) == usual  # and the first is as it was
        assert named.set_params(**named.get_params()).get_params() == kind(**{option.name: usual}).get_params()
        for other in (clone(changed), pickle.loads(pickle.dumps(changed)), kind().set_params(**changed.get_params())):
            assert other.get_params() == changed.get_params()
        assert repr(changed) == f"{kind.__name__}({option.name}={replace(before, **{inner.name: value})!r})"  # type: ignore[type-var]
        assert f"{inner.name} : " in (class_.__doc__ or "")
        if class_.plain:
            continue
        for other in sorted(set(option.metadata["names"]) - set(classes_with_option(option, inner.name)))[:1]:
            with pytest.raises(
                DataError, match=rf"{nested}={value!r} was given with {option.name}='{other}'.*{option.name}='{key}'"
            ):
                kind(**{option.name: other}).set_params(**{nested: value})


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_values_are_frozen_and_their_names_are_choices(kind: Any) -> None:
    for option in options_of(kind):
        for key, class_ in option.metadata["values"].items():
            named = key is None or key in {*option.metadata["names"], *option.metadata["special"]}
            assert named is not bool(class_.plain)
            value = value_of(option, option.default if class_.plain else key)
            assert type(value) is class_
            assert hash(value) == hash(replace(value))  # type: ignore[type-var]
            with pytest.raises(FrozenInstanceError):
                setattr(value, fields(class_)[0].name, 3)
            assert set(option.metadata["without"]) <= {f.name for f in fields(class_)}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_signatures_have_the_options_and_no_old_names(kind: Any) -> None:
    names = {option.name for option in options_of(kind)}
    assert set(inspect.signature(kind).parameters) == names == set(kind().get_params(deep=False))
    assert not names & moved_options(kind).keys()


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
    with pytest.raises(DataError, match=r"structure_from=.* has the options rate, delay"):
        ContinuousDepthRegressor(structure_from="elbo").set_params(structure_from__radius=1.0)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(DataError, match=r"weights__rate=1 was given; weights=HMC\(\) has the options chains, sweeps"):
        UnboundedDepthRegressor(weights="hmc").set_params(weights__rate=1)
    with pytest.raises(ValueError, match="Invalid parameter"):
        UnboundedDepthRegressor().set_params(no__thing=1)
    with pytest.raises(TypeError, match="weights__chains"):
        UnboundedDepthRegressor(weights="hmc", weights__chains=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", ["structure_from__initial_depth", "initial_depth"])
def test_searches_go_over_options_of_values(name: str) -> None:
    X, y = problem(60)
    base = UnboundedDepthRegressor(**{**SHORT, "cv": 1}, structure_from="elbo")
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
        for kind in (UnboundedDepthRegressor, ContinuousDepthRegressor, FiniteNetworkRegressor, DeepEnsembleRegressor)
        for old, place in moved_options(kind).items()
    ]


@pytest.mark.parametrize(("kind", "old", "place"), old_cases())
def test_old_names_are_taken_with_a_warning_that_names_the_new(kind: Any, old: str, place: Any) -> None:
    declared = {name: (option, inner) for name, option, _, inner in nested_options(options_of(kind))}
    option, inner = declared[place.nested]
    class_ = option.metadata["values"][place.choice]
    value = 7 if inner.metadata["kind"] == "whole" else 0.25 if inner.metadata["kind"] == "real" else "other"
    choice = {} if class_.plain else {option.name: place.choice}
    expected = replace(value_of(option, option.default if class_.plain else place.choice), **{inner.name: value})  # type: ignore[type-var]
    new = re.escape(f"{old} will be removed in the next version; use {option.name}={simplify(option, expected)!r}")
    with pytest.warns(FutureWarning, match=new) as seen:
        built = kind(**choice, **{old: value})
    assert seen[0].filename == __file__
    with pytest.warns(FutureWarning, match=new) as seen:
        changed = kind(**choice).set_params(**{old: value})
    assert seen[0].filename == __file__
    for one in (built, changed):
        assert value_of(option, getattr(one, option.name)) == expected
    with pytest.raises(DataError, match=rf"{old}=.* was given with {option.name}=.* leave it out"):
        kind(**{option.name: class_(), old: value})
    with pytest.raises(DataError, match=rf"{old}=.* was given with {place.nested}=.* leave it out"):
        kind(**choice).set_params(**{old: value, place.nested: value})
    if class_.plain or value_of(option, option.default) is not None:
        return
    with pytest.warns(FutureWarning, match=rf"has no effect unless {option.name} is '{place.choice}'"):
        idle = kind(**{old: value})
    assert getattr(idle, option.name) == option.default


FOLDS = np.arange(60) % 3 + 5


@pytest.mark.parametrize(
    ("old", "cv"),
    [
        ({"members": 3, "repeats": 2, "folds": "blocks"}, Folds(n_splits=3, n_repeats=2, order="blocks")),
        ({"members": 3, "repeats": 1, "folds": "random"}, 3),
        ({"repeats": 2, "cv": 4}, Folds(n_splits=4, n_repeats=2)),
        ({"members": 3, "folds": FOLDS}, FOLDS),
        ({"folds": FOLDS, "repeats": 2}, FOLDS),
        ({"members": 1, "folds": FOLDS}, 1),
    ],
    ids=str,
)
@pytest.mark.parametrize("by", ["constructor", "set_params", "saved"])
def test_old_options_of_folds_are_put_together(old: dict[str, Any], cv: Any, by: str) -> None:
    if by == "saved":
        saved = {name: saving.encode(value, {}) for name, value in old.items()}
        with pytest.warns(FutureWarning, match="a saved model has options with old names"):
            found = rename_saved(UnboundedDepthRegressor, {"epochs": 3, **saved}, {})[0]["cv"]
    else:
        with pytest.warns(FutureWarning, match="will be removed in the next version"):
            made = (
                UnboundedDepthRegressor(**old) if by == "constructor" else UnboundedDepthRegressor().set_params(**old)
            )
        found = made.cv
    assert type(found) is type(cv) or isinstance(cv, np.ndarray)
    several = UnboundedDepthRegressor(cv=Folds(n_splits=5, n_repeats=2))
    with pytest.warns(FutureWarning, match=r"use cv=Folds\(n_splits=3, n_repeats=2\)"):
        assert several.set_params(members=3).cv == Folds(n_splits=3, n_repeats=2)
    assert np.array_equal(found, cv)


def test_old_and_new_options_of_folds_are_refused_together() -> None:
    for old in ({"members": 3, "cv": 4}, {"folds": FOLDS, "cv": 4}, {"repeats": 2, "cv": Folds()}):
        with pytest.raises(DataError, match=r"is the old name of cv__.*; leave it out"):
            UnboundedDepthRegressor(**old)


def test_numbers_stand_for_values() -> None:
    one = UnboundedDepthRegressor(cv=5).set_params(cv__n_repeats=3)
    assert one.cv == Folds(n_splits=5, n_repeats=3)
    assert UnboundedDepthRegressor().set_params(cv__n_splits=4, cv__order="blocks").cv == Folds(
        n_splits=4, order="blocks"
    )
    assert UnboundedDepthRegressor(cv=FOLDS).get_params().keys() >= {"cv"}
    with pytest.raises(DataError, match=r"which has no such option; set cv=Folds\(...\) or its n_splits alone"):
        UnboundedDepthRegressor(cv=FOLDS).set_params(cv__n_repeats=3)
    assert DeepEnsembleRegressor(n_restarts=3).set_params(n_restarts__count=4).n_restarts == Restarts(
        count=4, keep="average"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cv": 0}, r"cv=0 was given; at least 1 is needed, a whole number, or 'auto', or Folds\(...\)"),
        ({"cv": True}, "cv=True was given; a whole number is allowed"),
        ({"cv": "folds"}, "cv='folds' was given"),
        ({"cv": None}, "cv=None was given"),
        ({"cv": Folds}, "cv=<class .*Folds'> was given"),
        ({"cv": KFold}, r"cv=KFold was given, which is a class; use cv=KFold\(\)"),
        ({"cv": Folds(order="x")}, "cv__order='x' was given; allowed are 'random' and 'blocks'"),
        ({"cv": Folds(n_repeats=0)}, "cv__n_repeats=0 was given; at least 1"),
        ({"cv": FOLDS, "validation_fraction": 0.2}, "an array as cv was given with validation_fraction=0.2"),
        ({"cv": KFold(3), "warm_start": True}, r"cv=KFold\(.*\) was given with warm_start=True"),
        ({"cv": 3, "n_restarts": Restarts(count=2)}, "cv=3 was given with n_restarts=2"),
        ({"n_restarts": Restarts(count=0)}, "n_restarts__count=0 was given; at least 1"),
        ({"n_restarts": "average"}, r"n_restarts='average' was given; at least 1 is needed, .* or Restarts\(...\)"),
    ],
    ids=str,
)
def test_folds_and_starts_are_checked_at_fit(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        UnboundedDepthRegressor(**options).fit(*problem(60))


def test_groups_are_not_torn_by_given_folds() -> None:
    X, y = problem(60)
    groups = np.arange(60) // 4
    for cv in (FOLDS, KFold(3, shuffle=True, random_state=0)):
        with pytest.raises(DataError, match="rows of one group into several folds"):
            UnboundedDepthRegressor(**{**SHORT, "cv": cv}).fit(X, y, groups=groups)
    fitted = UnboundedDepthRegressor(**{**SHORT, "cv": GroupKFold(3)}).fit(X, y, groups=groups)
    assert all(len(set(fitted.fold_[0, groups == group])) == 1 for group in set(groups))


def test_a_list_of_splits_is_its_splitter_and_may_be_of_rows_without_weight(tmp_path: Path) -> None:
    X, y = problem(60)
    splits = list(KFold(3).split(X))
    one, other = (UnboundedDepthRegressor(**{**SHORT, "cv": cv}).fit(X, y) for cv in (splits, KFold(3)))
    assert np.array_equal(one.predict(X), other.predict(X))
    weight = (np.arange(60) >= 10) * 1.0
    some = UnboundedDepthRegressor(**{**SHORT, "cv": splits}).fit(X, y, sample_weight=weight)
    assert some.fold_.tolist() == [[-1] * 10 + [0] * 10 + [1] * 20 + [2] * 20]
    order = np.random.default_rng(0).permutation(60)
    moved_rows = UnboundedDepthRegressor(**{**SHORT, "cv": one.fold_[:, order]}).fit(X[order], y[order])
    assert np.array_equal(moved_rows.predict(X), one.predict(X))
    one.save(tmp_path / "m")
    assert np.array_equal(UnboundedDepthRegressor.load(tmp_path / "m").cv, one.fold_)
    with pytest.raises(DataError, match="a list of splits as cv does not test every row"):
        UnboundedDepthRegressor(**{**SHORT, "cv": splits[:2]}).fit(X, y)


def test_a_splitter_that_was_set_after_the_fit_is_not_saved(tmp_path: Path) -> None:
    fitted = UnboundedDepthRegressor(**{**SHORT, "cv": KFold(2)}).fit(*problem(40))
    with pytest.raises(DataError, match=r"cv=KFold\(n_splits=3.* was set after the fit.*fit again"):
        fitted.set_params(cv=KFold(3)).save(tmp_path / "m")


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
    with pytest.warns(FutureWarning, match=r"use checkpoint=CheckpointOptions\(folder='run', seconds=5.0\)"):
        old = UnboundedDepthRegressor(checkpoint="run", checkpoint_seconds=5.0)
    assert old.checkpoint == new.checkpoint
    with pytest.raises(
        DataError, match=r"checkpoint=3 was given; allowed are None, a path and CheckpointOptions\(...\)"
    ):
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
    own = {"epochs": 1, "width": 4, "hidden": 4, "cv": 1, "random_state": 0, "warm_start": True}
    fitted = ContinuousDepthRegressor(**own).fit(X, y)
    fitted.set_params(path=PathOptions(), optimizer=Adam(clip_norm=1.0)).fit(X, y)  # equal, and of the training
    name = next(iter(changed)).partition("__")[0]
    with pytest.raises(DataError, match=f"{name}=.* was given, but the fit continues from a network"):
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
    own: dict[str, Any] = {"epochs": 2, "width": 4, "hidden": 4, "cv": 1, "random_state": 0}
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
    own: dict[str, Any] = {"epochs": 2, "width": 4, "hidden": 4, "cv": 1, "random_state": 0}
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
    folded = {"cv": 3, "cv__n_repeats": 2, "n_restarts": 2, "n_restarts__keep": "average"}
    old = {"members": 3, "repeats": 2, "n_restarts": 2, "restarts": "average"}
    for options in (folded, old):
        assert manifests.RunManifest.from_json({**asked, "options": options}, Path("run.json")).options == folded
    new = manifests.RunManifest.from_json(
        {**asked, "options": {**read.options, "weights__chains": 5}}, Path("run.json")
    )
    assert new.differences(read) == ["--hmc.chains (here 5, there 4)"]
    assert manifests.RunManifest.from_json({**asked, "options": new.options}, Path("run.json")).options == new.options


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        (UnboundedDepthRegressor, {"head": "bayes"}, {"last_layer": "conjugate"}),
        (UnboundedDepthRegressor, {"head": "laplace"}, {"last_layer": "laplace"}),
        (UnboundedDepthRegressor, {"vary": {"activation": ["relu"]}}, {"candidates": {"activation": ["relu"]}}),
        (ContinuousDepthRegressor, {"vary": {"activation": ["relu"]}}, {"candidates": {"activation": ["relu"]}}),
    ],
)
def test_renamed_options_are_taken_with_a_warning(kind: Any, old: dict[str, Any], new: dict[str, Any]) -> None:
    (name,) = old
    ((expected, wanted),) = new.items()
    message = re.escape(f"{name} will be removed in the next version; use {expected}={wanted!r}")
    with pytest.warns(FutureWarning, match=message) as seen:
        built = kind(**old)
    assert seen[0].filename == __file__
    with pytest.warns(FutureWarning, match=message) as seen:
        changed = kind().set_params(**old)
    assert seen[0].filename == __file__
    for estimator in (built, changed):
        assert getattr(estimator, expected) == wanted
        assert name not in estimator.get_params()
    with pytest.raises(DataError, match=rf"{name} is the old name of {expected}; leave it out"):
        kind(**old, **new)
    assert rename_saved(kind, old, {}) == (new, {})


def test_the_table_of_renamed_options_is_of_options_there_are() -> None:
    groups = {base.__name__: base for family in registry.BUILT_IN for base in family.options.__mro__}
    for group, renamed in RENAMED.items():
        names = {option.name for option in options_of(groups[group])}
        for old, new in renamed.items():
            assert new.name in names
            assert old not in names
