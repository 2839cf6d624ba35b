"""Presets: options by name, in Python and on the command line."""

import numpy as np
import pytest
from sklearn.base import clone

from commands import Call
from fathomless import Folds, UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.app import manifests
from fathomless.families.depth import FAMILY
from fathomless.families.registry import families, options, preset
from fathomless.system.errors import DataError
from housing import QUICK, houses, refused, write

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")


@pytest.mark.parametrize("name", list(FAMILY.presets))
def test_presets_of_python_and_of_the_registry_agree(name: str) -> None:
    for kind, task in ((UnboundedDepthClassifier, "classification"), (UnboundedDepthRegressor, "regression")):
        chosen = kind.preset(name, random_state=3)
        expected = kind(random_state=3).set_params(**preset(FAMILY, name, task))
        assert repr(chosen) == repr(expected) == repr(clone(chosen))
        assert chosen.get_params()["random_state"] == 3


def test_given_options_replace_those_of_a_preset() -> None:
    assert (
        repr(UnboundedDepthRegressor.preset("best", cv=3, trees=False))
        == "UnboundedDepthRegressor(cv=3, neighbors=True)"
    )
    assert UnboundedDepthRegressor.preset("best").cv == Folds(n_repeats=2)
    assert UnboundedDepthRegressor.preset("fast", cv=7).cv == 7
    ordered = preset(FAMILY, "fast", "regression", ["cv__order"])  # as --folds.order blocks
    assert ordered == {"cv__n_splits": 5, "weight_prior": 1.0}
    assert preset(FAMILY, "fast", "regression", ["cv"]) == {"weight_prior": 1.0}
    assert preset(FAMILY, "fast", "regression", ["cv__n_splits", "weight_prior"]) == {}


def test_options_of_presets_exist() -> None:
    for family in families().values():
        for chosen in family.presets.values():
            known = {name for task in family.tasks for name in options(family, task)}
            assert {name.partition("__")[0] for name in chosen} <= known


def test_unknown_presets_are_refused() -> None:
    with pytest.raises(DataError, match="preset='quick' was given; allowed are 'fast' and 'best'"):
        UnboundedDepthClassifier.preset("quick")
    with pytest.raises(DataError, match="for sparse, which has no presets; only depth has them"):
        preset(families()["sparse"], "fast", "regression")


def test_a_fit_of_the_best_preset_uses_trees() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    y = np.where(X[:, 0] > 0.3, 2.0, 0.0) + 0.1 * rng.normal(size=120)  # a step, which trees learn
    fitted = UnboundedDepthRegressor.preset("best", epochs=20, width=8, random_state=0).fit(X, y)
    assert fitted.fold_ is not None
    assert fitted.fold_.shape == (2, 120)
    plain = UnboundedDepthRegressor(epochs=20, width=8, random_state=0).fit(X, y)
    new = rng.normal(size=(200, 2))
    truth = np.where(new[:, 0] > 0.3, 2.0, 0.0) + 0.1 * rng.normal(size=200)
    scores = [model.predict_dist(new).log_prob(truth).mean() for model in (plain, fitted)]
    assert scores[1] > scores[0] + 0.1
    assert fitted.recalibration_ is not None
    assert fitted.recalibration_.trees is not None


def test_the_command_line_has_presets(call: Call, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(str(tmp_path))
    write("houses.csv", houses().select(["size", "colour", "price", "grade"]))
    short = [word for word in QUICK if word not in ("--cv", "2")]
    said = call("fit", "houses.csv", "--target", "price", "--drop", "grade", "--preset", "best", "--cv", "2", *short)
    assert said.code == 0, said.err
    manifest = manifests.read_manifest("runs/price")
    assert manifest is not None
    assert manifest.options == {"cv": 2, "epochs": 4, "width": 8, "trees": True, "neighbors": True}
    said = call("fit", "houses.csv", "--target", "price", "--structure", "sparse", "--preset", "fast")
    refused(said, "preset='fast' was given for sparse")
