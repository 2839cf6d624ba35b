"""Plots of paths and horizons show the given values; tests of all plots are in tests/plots."""

from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot as plt

from fathomless.families.continuous import plots
from fathomless.system.errors import DataError
from pictures import fresh


@pytest.fixture(autouse=True)
def closed() -> Any:
    yield
    plt.close("all")


def lines(ax: Any) -> dict[str, np.ndarray]:
    return {line.get_label(): np.array(line.get_data()) for line in ax.lines}


def test_paths_are_drawn_by_their_percentiles() -> None:
    t, draws = np.linspace(0.0, 2.0, 5), np.random.default_rng(0).normal(size=(50, 5, 2))
    for draw in (plots.weight_paths, plots.hidden_paths):
        ax = draw(t, draws, names=["one", "two"], ax=fresh())
        np.testing.assert_allclose(lines(ax)["two"], [t, np.median(draws[:, :, 1], 0)])
        low, _, high = np.percentile(draws[:, :, 0], (5, 50, 95), axis=0)
        corners = ax.collections[0].get_paths()[0].vertices
        assert {*low, *high} <= {*corners[:, 1]}


def test_the_prior_of_weights_is_a_band_of_ninety_percent() -> None:
    ax = plots.weight_paths([0.0, 1.0], np.zeros((3, 2, 1)), prior=[1.0, 2.0], ax=fresh())
    (band,) = (found for found in ax.collections if found.get_label() == "prior, 90 %")
    corners = {tuple(np.round(corner, 3)) for corner in band.get_paths()[0].vertices}
    assert corners >= {(0.0, 1.645), (0.0, -1.645), (1.0, 3.29), (1.0, -3.29)}


@pytest.mark.parametrize(("spread", "whole"), [(1.0, True), (0.01, False)])
def test_paths_are_seen_beside_a_prior_that_is_much_wider(spread: float, whole: bool) -> None:
    drawn = 0.1 + spread * np.random.default_rng(0).normal(size=(50, 2, 1))
    ax = plots.weight_paths([0.0, 1.0], drawn, prior=[1.0, 1.0], ax=fresh())
    low, high = ax.get_ylim()
    assert (high > 1.645) == whole
    assert low < np.percentile(drawn, 5.0) < np.percentile(drawn, 95.0) < high


def test_a_divergence_profile_has_the_steps_whose_middles_were_given() -> None:
    ax = plots.divergence_profile([0.05, 0.2, 0.65], [3.0, 0.0, 1.0], ax=fresh())
    values, edges, _ = ax.patches[-1].get_data()
    np.testing.assert_allclose(edges, [0.0, 0.1, 0.3, 1.0])
    np.testing.assert_allclose(values, [3.0, 0.0, 1.0])


def test_scores_have_an_axis_of_their_own() -> None:
    ax = plots.accuracy([5, 10, 20], [0.2, 0.1, 0.0], score=[-2.0, -1.5, -1.4], chosen=10, ax=fresh())
    np.testing.assert_allclose(lines(ax)["distance"], [[5, 10, 20], [0.2, 0.1, 0.0]])
    assert set(lines(ax)["predictions: 10"][0]) == {10}
    (beside,) = (other for other in ax.figure.axes if other is not ax)
    np.testing.assert_allclose(beside.lines[0].get_data(), [[5, 10, 20], [-2.0, -1.5, -1.4]])
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["5", "10", "20"]
    assert len(plots.accuracy([5, 10], [0.2, 0.0], ax=fresh()).figure.axes) == 1


def test_horizons_are_bars_with_errors_that_stay_probabilities() -> None:
    masses = {1.0: 0.3, 0.5: 0.7}
    ax = plots.horizon_posterior(masses, prior={0.5: 0.2, 1.5: 0.1}, errors={0.5: 0.1, 1.0: 0.4}, ax=fresh())
    bars = sorted((p.get_x() + p.get_width() / 2, p.get_height()) for p in ax.patches)
    np.testing.assert_allclose(bars, [[0.5, 0.7], [1.0, 0.3]])
    np.testing.assert_allclose(lines(ax)["prior"], [[0.5, 1.5], [0.2, 0.1]])
    whiskers = [segment.tolist() for found in ax.collections for segment in found.get_segments()]
    np.testing.assert_allclose(whiskers, [[[0.5, 0.6], [0.5, 0.8]], [[1.0, 0.0], [1.0, 0.7]]], atol=1e-12)


def test_the_path_of_the_horizon_is_in_units_of_depth() -> None:
    rows = [{"epoch": 1, "mean_horizon": 8.0}, {"epoch": 2, "mean_horizon": 4.0}]
    ax = plots.horizon_path(rows, unit=0.25, ax=fresh())
    np.testing.assert_allclose(ax.lines[0].get_data(), [[1, 2], [2.0, 1.0]])


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.weight_paths([0.0, 1.0], np.zeros((3, 4, 1))), "shape"),
        (lambda: plots.weight_paths([0.0], np.zeros((3, 1, 6))), "at most 5"),
        (lambda: plots.hidden_paths([0.0, 0.0], np.zeros((3, 2, 1))), "not strictly increasing"),
        (lambda: plots.hidden_paths([0.0], np.zeros((3, 1, 2)), names=["one"]), "names"),
        (lambda: plots.weight_paths([0.0], np.zeros((3, 1, 1)), prior=[1.0, 1.0]), "different shapes"),
        (lambda: plots.divergence_profile([0.1, 0.2], [1.0, 1.0]), "midpoints of consecutive steps"),
        (lambda: plots.divergence_profile([0.1], [-1.0]), "rate"),
        (lambda: plots.accuracy([0, 1], [0.1, 0.0]), "steps"),
        (lambda: plots.accuracy([2, 1], [0.1, 0.0]), "not strictly increasing"),
        (lambda: plots.accuracy([1], [1.5]), "distance"),
        (lambda: plots.horizon_posterior({0.0: 1.0}), "positive horizons"),
        (lambda: plots.horizon_posterior({1.0: 0.5}), "sum"),
        (lambda: plots.horizon_posterior({1.0: 1.0}, prior={1.0: 0.7, 2.0: 0.7}), "prior"),
        (lambda: plots.horizon_path([]), "has no rows"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        draw()
