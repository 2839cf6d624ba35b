"""Convergence checks of a law over depth, and its dependence on the initial value."""

import warnings
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from fathomless import UnboundedDepthRegressor
from fathomless.app.diagnose import diagnose
from fathomless.estimators.values import ELBO
from fathomless.families.depth.convergence import LawDrift, depth_drift, law_drift
from fathomless.inference.variational.training import adam_travel
from fathomless.posterior.laws import (
    DepthLaw,
    FixedDepth,
    FreeCategorical,
    PoissonPrior,
    QuantilePoisson,
    StickBreaking,
    TruncatedPoisson,
    UniformPrior,
)
from fathomless.system.errors import ConvergenceWarning

START = "the posterior over depth depends on its initial value"


def noise(n: int = 200) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 3)), rng.normal(size=n)


def told(**options: Any) -> tuple[UnboundedDepthRegressor, str]:
    """Fit to pure noise by the bound, with some of its options; return the warnings."""
    own = {f.name: options.pop(f.name) for f in fields(ELBO) if f.name in options}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        fitted = UnboundedDepthRegressor(structure_from=ELBO(**own), width=6, random_state=0, **options).fit(*noise())
    return fitted, " ".join(str(w.message) for w in seen if issubclass(w.category, ConvergenceWarning))


def test_adam_travels_by_the_area_under_its_rate() -> None:
    rows = [{"step": 10.0, "learning_rate": 0.1}, {"step": 30.0, "learning_rate": 0.0}]
    assert adam_travel(rows, 0.1) == pytest.approx(10 * 0.1 + 20 * 0.05)


@pytest.mark.parametrize("law", [TruncatedPoisson(8.0), QuantilePoisson(8.0), StickBreaking(8.0)], ids=repr)
def test_the_way_back_to_the_prior_is_that_of_the_raw_parameter(law: Any) -> None:
    rows = [{"step": 100.0, "learning_rate": 0.01}]
    found = law_drift(law, PoissonPrior(0.5), rows, learning_rate=0.01, structure_rate=2.0)
    start, prior = law.start(0), type(law)(0.5).start(0)
    assert found == LawDrift(pytest.approx(2.0), pytest.approx(abs(start - prior)), pytest.approx(0.5))
    assert found.start_dominates(stopped=False) is (found.distance > 2.0)
    assert law_drift(law, UniformPrior(17), rows, learning_rate=0.01, structure_rate=2.0).distance == 0.0  # type: ignore[union-attr]


@pytest.mark.parametrize("law", [FixedDepth((3,)), FreeCategorical(4)], ids=repr)
def test_laws_without_a_rate_have_no_such_way(law: DepthLaw) -> None:
    assert law_drift(law, PoissonPrior(0.5), [], learning_rate=0.01, structure_rate=1.0) is None


def test_pure_noise_from_a_deep_start_is_warned_of() -> None:
    """The training is too short to return to the prior, and a warning says so."""
    fitted, warned = told(initial_depth=8.0, epochs=60, patience=None)
    assert fitted.structure_.statistics["mean_depth"] > 5.0
    assert START in warned
    assert "Raise epochs (now 60) or structure_from__rate" in warned
    findings = {finding.title: finding for finding in diagnose(fitted, [], rows=200)}
    assert findings["Depth posterior stayed near its initial value"].severity == "problem"
    assert "structure_from__initial_depth (now 8)" in findings["Depth posterior stayed near its initial value"].remedy


def test_a_start_near_the_prior_is_not_warned_of() -> None:
    _, warned = told(initial_depth=0.6, epochs=60, patience=None)
    assert START not in warned
    _, warned = told(initial_depth=8.0, epochs=60, patience=None, rate=80.0)
    assert START not in warned


def test_natural_steps_are_not_measured_by_adam_s() -> None:
    _, warned = told(initial_depth=8.0, epochs=60, patience=None, optimizer="natural")
    assert START not in warned


def test_a_training_that_its_rows_ended_is_warned_of_only_if_it_was_far_too_short() -> None:
    assert not LawDrift(travel=1.0, distance=2.0, prior_mean=0.5).start_dominates(stopped=True)
    assert LawDrift(travel=1.0, distance=2.0, prior_mean=0.5).start_dominates(stopped=False)
    assert LawDrift(travel=1.0, distance=5.0, prior_mean=0.5).start_dominates(stopped=True)


def test_only_a_path_in_one_direction_drifts() -> None:
    def path(*depths: float) -> list[dict[str, float]]:
        return [{"epoch": e + 1.0, "learning_rate": 0.01, "mean_depth": d} for e, d in enumerate(depths)]

    assert depth_drift(path(*np.linspace(1, 5, 20))) == pytest.approx(4.0, rel=0.2)
    assert depth_drift(path(*[2.0, 3.0] * 10)) == 0.0
    assert depth_drift(path(*[2.0] * 20)) == 0.0
