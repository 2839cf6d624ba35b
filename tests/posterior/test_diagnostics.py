"""Diagnostics of fits become JSON and back, and refuse what is missing, unknown or inconsistent."""

import json
from dataclasses import replace
from typing import Any

import pytest

from fathomless.families.continuous.networks import ContinuousDiagnostics
from fathomless.families.manifold.networks import ManifoldDiagnostics
from fathomless.families.sparse.networks import SparseDiagnostics, TemperatureChosen
from fathomless.posterior.fit_diagnostics import (
    Candidate,
    ChainDiagnostics,
    CrossFitDiagnostics,
    Diagnostics,
    EqualRows,
    StructureWeights,
)
from fathomless.system.errors import DataError

WEIGHTS = StructureWeights(
    numbers=(0, 2),
    weights=(0.25, 0.75),
    errors=(0.1, 0.1),
    mean=1.5,
    mean_error=0.2,
    single=(0.0, 1.0),
    poisson=(0.5, 0.5),
    poisson_rate=1.0,
    poisson_loss=0.1,
    log_density=(-1.0, -0.5),
    rows=100,
    members=10,
)
KINDS = tuple(Candidate(options={"activation": name}, weight=0.5, networks=5) for name in ("relu", "tanh"))
CHAIN = {"chain": 0, "error": "", "states": 3}
EVERY: list[Diagnostics] = [
    CrossFitDiagnostics(),
    CrossFitDiagnostics(structure=WEIGHTS, kinds=KINDS, narrowing=(0.9,), repeats=EqualRows(rows=4, kind="copies")),
    CrossFitDiagnostics(structure=WEIGHTS, prior=(0.5, 0.5), sampling={"2": {"rhat": 1.0, "traces": [[0.1, 0.2]]}}),
    ContinuousDiagnostics(structure=WEIGHTS, effective_depth=4),
    SparseDiagnostics(choice=TemperatureChosen(temperature=0.3, note="of 100 rows", candidates=())),
    SparseDiagnostics(),
    ChainDiagnostics(apart=0.1, outside=0, chains=(CHAIN,), diagnostics={}, diagnostics_of_all={}, traces={}),
    ManifoldDiagnostics(kept=(0, 3), score=None, gate={"reconstruction": 0.1}, average=(0.0, 1.0)),
]


@pytest.mark.parametrize("found", EVERY)
def test_json_brings_back_the_same_values(found: Diagnostics) -> None:
    written = json.dumps(found.to_json())
    assert type(found).from_json(json.loads(written)) == found


def test_fields_of_the_posterior_over_structure_stand_beside_the_others() -> None:
    written = CrossFitDiagnostics(structure=WEIGHTS, narrowing=(0.9,)).to_json()
    assert written["numbers"] == [0, 2]
    assert written["narrowing"] == [0.9]
    assert CrossFitDiagnostics().to_json() == {}


@pytest.mark.parametrize(
    ("meta", "message"),
    [
        ({"numbers": [1]}, "lack"),
        ({"unknown": 1}, "unknown"),
        ({**WEIGHTS.to_json(), "errors": [0.1]}, "equal length"),
        ({**WEIGHTS.to_json(), "errors": 0.1}, "equal length"),
        ({"kinds": [{"options": {}, "weight": 1.0, "networks": 0}]}, "at least one network"),
        ({"kinds": [{"options": [], "weight": 1.0, "networks": 1}]}, "options"),
    ],
)
def test_altered_json_is_refused(meta: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        CrossFitDiagnostics.from_json(meta)


def test_lists_of_other_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="equal length"):
        replace(WEIGHTS, single=(1.0,))
