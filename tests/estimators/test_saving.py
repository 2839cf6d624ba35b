"""Encoding of options for saving, and names of version 0.1.0."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fathomless
from fathomless import DropoutNetworkRegressor, FiniteNetworkClassifier, SparseBayesRegressor, UnboundedDepthRegressor
from fathomless.estimators import saving
from fathomless.posterior.laws import HardTruncation, SmoothTruncation, TruncatedPoisson
from fathomless.system import io
from fathomless.system.errors import FileError

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

VALUES = {kind.__name__: kind for kind in (TruncatedPoisson, HardTruncation, SmoothTruncation)}


def as_version_one(folder: Path, **options: Any) -> None:
    """Rewrite a saved model in the format of version 0.1.0."""
    saved = io.load(folder, kinds={io.header(folder)[0]})
    meta = {**saved.meta, "options": {**saved.meta["options"], **options}}
    if "predict_by" in meta["options"]:
        meta["options"]["structure"] = meta["options"].pop("predict_by")
        meta["layout"] = {"sparse": True}
    io.save(folder, kind=saved.kind, tensors=saved.tensors, meta=meta)


def table() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(70, 3))
    return X, X[:, 0] + 0.1 * rng.normal(size=70)


@pytest.mark.parametrize(
    ("kind", "old"),
    [
        (FiniteNetworkClassifier, {"weight_draws": 16, "structure_rate": "auto", "structure_optimizer": "adam"}),
        (DropoutNetworkRegressor, {"structure_radius": 0.1, "structure_delay": 0.0}),
        (SparseBayesRegressor, {"structure_optimizer": "adam", "structure_radius": 0.1}),
    ],
)
def test_options_that_families_had_and_did_not_use_are_left_out(kind: Any, old: dict[str, Any], tmp_path: Path) -> None:
    X, y = table()
    fitted = kind(epochs=3, width=6, random_state=0).fit(X, y > 0 if kind is FiniteNetworkClassifier else y)
    as_version_one(fitted.save(tmp_path / "old"), **old)
    loaded = fathomless.load(tmp_path / "old")
    assert type(loaded) is kind
    assert loaded.get_params() == fitted.get_params()
    assert np.array_equal(loaded.predict(X), fitted.predict(X))


def test_laws_that_were_renamed_are_found(tmp_path: Path) -> None:
    law = TruncatedPoisson(1.5, SmoothTruncation(0.7, 0.9))
    old = {
        "class": "ClippedPoisson",
        "fields": {"rate": 1.5, "clip": {"class": "Taper", "fields": {"start": 0.7, "upper": 0.9}}},
    }
    assert saving.decode(old, VALUES) == law == saving.decode(saving.encode(law, VALUES), VALUES)
    assert saving.decode({"class": "Clip", "fields": {"lower": 0.0, "upper": 0.9}}, VALUES) == HardTruncation(0.0, 0.9)
    X, y = table()
    fitted = UnboundedDepthRegressor(depth_law=law, epochs=3, width=6, random_state=0).fit(X, y)
    as_version_one(fitted.save(tmp_path / "old"), depth_law=old)
    loaded = UnboundedDepthRegressor.load(tmp_path / "old")
    assert loaded.depth_law == law
    assert np.array_equal(loaded.predict(X), fitted.predict(X))


def test_options_that_nobody_had_are_refused(tmp_path: Path) -> None:
    X, y = table()
    as_version_one(UnboundedDepthRegressor(epochs=3, width=6, random_state=0).fit(X, y).save(tmp_path / "m"), girth=3)
    with pytest.raises(FileError, match="girth"):
        fathomless.load(tmp_path / "m")


def test_the_score_is_told_in_the_units_of_the_target_and_saved_as_it_was_found(tmp_path: Path) -> None:
    X, y = table()
    options: dict[str, Any] = {"epochs": 20, "width": 6, "structure_from": "elbo", "random_state": 0}
    small = UnboundedDepthRegressor(**options).fit(X, y)
    large = UnboundedDepthRegressor(**options).fit(X, 1000.0 * y)
    assert small.validation_score_ is not None
    assert large.validation_score_ == pytest.approx(small.validation_score_ - np.log(1000.0), abs=1e-6)
    assert fathomless.load(small.save(tmp_path / "m")).validation_score_ == small.validation_score_
    held = small.held_out_
    density = small.set_params(calibrate=False).fit(X, y).predict_dist(X[held]).log_prob(y[held]).mean().item()
    assert density == pytest.approx(small.validation_score_, abs=1e-9)
