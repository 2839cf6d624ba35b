"""Conformal bounds: a direct implementation, exact coverage of split conformal, CV+ and groups by simulation."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from fathomless.posterior.conformal import ConformalScores, interval_bounds
from fathomless.system.errors import DataError


def scores_of(
    score: Any, unit: Any, networks: int, weight: Any = None, category: Any = None, columns: tuple[str, ...] = ()
) -> ConformalScores:
    score = np.asarray(score, dtype=np.float64).reshape(len(unit), -1)
    weight = np.ones(len(unit)) if weight is None else np.asarray(weight, dtype=np.float64)
    category = np.zeros((len(unit), 0), dtype=np.int64) if category is None else np.asarray(category)
    return ConformalScores(score, np.asarray(unit), weight, category, tuple((k,) for k in range(networks)), columns, 1)


def direct(scores: ConformalScores, mean: Any, std: Any, level: float) -> tuple[Any, Any]:
    """Compute CV+ for every new row from all N values."""
    low, high = np.empty(mean.shape[1:]), np.empty(mean.shape[1:])
    needed = level * (1.0 + scores.weight.sum())
    for j in range(mean.shape[1]):
        for t in range(mean.shape[2]):
            center, width = mean[scores.unit, j, t], scores.score[:, t] * std[scores.unit, j, t]
            for sign, out in ((-1.0, low), (1.0, high)):
                values = sign * center + width
                order = values.argsort(kind="stable")
                reached = np.cumsum(scores.weight[order]) >= needed - 1e-9
                out[j, t] = sign * (values[order][reached.argmax()] if reached.any() else math.inf)
    return np.minimum(low, high), np.maximum(low, high)


@pytest.mark.parametrize("level", [0.02, 0.5, 0.8, 0.9, 0.97])
@pytest.mark.parametrize("shift", [0.0, 1e6])
def test_bounds_are_those_of_a_direct_computation(level: float, shift: float) -> None:
    rng = np.random.default_rng(0)
    for networks, weighted in ((1, False), (3, True), (7, False)):
        score = rng.exponential(size=(60, 2)).round(1 if weighted else 9)  # ties
        weight = rng.integers(1, 4, 60) / 2.0 if weighted else None
        scores = scores_of(score, rng.integers(0, networks, 60), networks, weight)
        mean = shift + rng.normal(size=(networks, 25, 2))
        std = np.exp(rng.normal(size=(networks, 25, 2)))
        found, expected = interval_bounds(scores, mean, std, level), direct(scores, mean, std, level)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11 * max(1.0, shift))


def test_bounds_at_the_count_of_rows_are_exact_order_statistics() -> None:
    scores = scores_of(np.arange(1.0, 10.0), np.zeros(9, dtype=int), 1)
    one, zero = np.ones((1, 1, 1)), np.zeros((1, 1, 1))
    for level, expected in ((0.5, 5.0), (0.8, 8.0), (0.9, 9.0), (0.91, math.inf)):
        low, high = interval_bounds(scores, zero, one, level)
        assert high[0, 0] == pytest.approx(expected)
        assert low[0, 0] == pytest.approx(-expected)


def test_a_row_of_weight_two_counts_as_two_rows() -> None:
    rng = np.random.default_rng(1)
    score, unit = rng.exponential(size=30), rng.integers(0, 3, 30)
    mean, std = rng.normal(size=(3, 5, 1)), np.ones((3, 5, 1))
    weighted = scores_of(score, unit, 3, 1.0 + (np.arange(30) < 10))
    repeated = scores_of(np.concatenate([score, score[:10]]), np.concatenate([unit, unit[:10]]), 3)
    np.testing.assert_allclose(interval_bounds(weighted, mean, std, 0.9), interval_bounds(repeated, mean, std, 0.9))


def test_scores_of_networks_without_a_prediction_widen_the_interval() -> None:
    score = np.concatenate([np.arange(1.0, 19.0), [math.inf]])
    scores = scores_of(score, np.zeros(19, dtype=int), 1)
    at = np.zeros((1, 1, 1)), np.ones((1, 1, 1))
    assert interval_bounds(scores, *at, 0.9)[1][0, 0] == pytest.approx(18.0)
    assert interval_bounds(scores, *at, 0.95)[1][0, 0] == math.inf


def covered(rows: int, folds: int, level: float, repetitions: int) -> tuple[float, float]:
    """Return the coverage of new rows by CV+ around means of the other folds, and its Monte Carlo error."""
    rng = np.random.default_rng(2)
    inside = []
    for _ in range(repetitions):
        y = rng.exponential(size=rows)
        unit = np.arange(rows) % folds
        # a single network is fitted to other rows
        center = np.ones(1) if folds == 1 else np.array([y[unit != k].mean() for k in range(folds)])
        scores = scores_of(np.abs(y - center[unit]), unit, folds)
        low, high = interval_bounds(scores, center[:, None, None], np.ones((folds, 1, 1)), level)
        new = rng.exponential(size=20)
        inside.append(((low <= new) & (new <= high)).mean())
    return float(np.mean(inside)), float(np.std(inside) / math.sqrt(repetitions))


@pytest.mark.parametrize(("rows", "level"), [(19, 0.9), (12, 0.8)])
def test_the_coverage_of_split_conformal_is_exact(rows: int, level: float) -> None:
    found, error = covered(rows, 1, level, 500)
    assert abs(found - math.ceil(level * (rows + 1) - 1e-9) / (rows + 1)) < 4.0 * error


@pytest.mark.parametrize("folds", [5, 20])
def test_the_coverage_of_cv_plus_is_that_of_the_theorem(folds: int) -> None:
    found, error = covered(20, folds, 0.8, 200)
    assert found > 1.0 - 2.0 * 0.2 + 4.0 * error  # the theorem, without its small term
    assert abs(found - 0.8) < 0.06  # close to the level, as the authors observe


def test_categories_are_covered_separately() -> None:
    rng = np.random.default_rng(3)
    inside: dict[str, list[float]] = {"all": [], "own": []}
    for _ in range(300):
        loud = np.arange(60) < 20
        y = np.where(loud, 3.0, 0.3) * rng.normal(size=60)
        scores = scores_of(np.abs(y), np.zeros(60, dtype=int), 1, category=loud[:, None].astype(int), columns=("loud",))
        new = 3.0 * rng.normal(size=20)
        for name, chosen in (("all", scores), ("own", scores.of_category(scores.column("loud"), 1))):
            _, high = interval_bounds(chosen, np.zeros((1, 1, 1)), np.ones((1, 1, 1)), 0.9)
            inside[name].append(float((np.abs(new) <= high).mean()))
    error = np.std(inside["own"]) / math.sqrt(300)
    assert abs(np.mean(inside["own"]) - 19 / 21) < 4.0 * error
    assert np.mean(inside["all"]) < 0.8


def test_scores_are_saved_without_loss_and_altered_ones_are_refused() -> None:
    rng = np.random.default_rng(4)
    scores = scores_of(
        rng.exponential(size=(9, 2)), rng.integers(0, 3, 9), 3, None, rng.integers(0, 2, (9, 1)), ("site",)
    )
    again = ConformalScores.from_saved(scores.tensors(), scores.to_json(), 2, 3)
    for name in ("score", "unit", "weight", "category", "networks", "columns", "draws"):
        assert np.array_equal(getattr(again, name), getattr(scores, name))
    changes: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"score": -scores.tensors()["score"]}, {}),
        ({"weight": torch.zeros(9)}, {}),
        ({"unit": torch.full((9,), 3)}, {}),
        ({"category": torch.zeros(9, 2)}, {}),
        ({}, {"networks": [[0], [1], [5]]}),
        ({}, {"networks": [[0], [1], []]}),
        ({}, {"draws": 0}),
        ({}, {"columns": []}),
    ]
    for tensors, meta in changes:
        with pytest.raises(DataError, match="its "):
            ConformalScores.from_saved({**scores.tensors(), **tensors}, {**scores.to_json(), **meta}, 2, 3)
    with pytest.raises(DataError, match="allowed are the columns 'site'"):
        scores.column("sites")
