"""Cells given the other cells of a row: closed forms of normal laws, identities of densities, draws, and bad input."""

import math
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.datasets import load_iris

from fathomless import IndianChefsDensity, UnboundedDepthRegressor
from fathomless.app.cli import main
from fathomless.data.targets import TargetScale
from fathomless.families.graph.conditional import ConditionalColumn, effective_components, fill, sample_missing
from fathomless.families.graph.density import LogitScale, Mixture
from fathomless.system.errors import DataError, DataWarning

SHORT: dict[str, Any] = {"chains": 2, "sweeps": 150, "states": 40, "engine": "numpy", "random_state": 0}
quietly = partial(warnings.catch_warnings, action="ignore")  # short chains have not converged
UNITS = TargetScale(mean=(0.0, 0.0, 0.0), scale=(1.0, 1.0, 1.0), ndim=2)


def normal(draws: int = 60_000) -> tuple[Mixture, np.ndarray]:
    """Return a mixture with nearly normal logits, whose means are drawn, and the covariance of the logits."""
    covariance = np.array([[0.5, 0.4, -0.2], [0.4, 0.6, 0.0], [-0.2, 0.0, 0.4]])
    means = np.random.default_rng(0).multivariate_normal(np.zeros(3), covariance, draws)
    precisions = np.array([4.0, 5.0, 2.0])
    scale = LogitScale(np.zeros(3), np.ones(3), 0.1)
    mixture = Mixture(means[None], precisions[None], np.ones(1), np.zeros(1, dtype=np.int64), scale)
    return mixture, covariance + np.diag(1.0 / precisions)


def test_conditionals_are_those_of_a_normal_law() -> None:
    """Means and deviations of logits given one and two others, within the Monte Carlo error of the components."""
    mixture, covariance = normal()
    logits = np.array([[0.3, np.nan, -0.5], [np.nan, np.nan, 0.7], [-0.6, np.nan, np.nan]])
    x = mixture.scale.decode(logits)
    found = ConditionalColumn(mixture, 1, x, UNITS)
    assert (found.effective > 1000.0).all()
    levels = np.array([0.1, 0.5, 0.9])
    for row, known in enumerate(([0, 2], [2], [0])):
        gain = covariance[1, known] @ np.linalg.inv(covariance[np.ix_(known, known)])
        law = stats.norm(gain @ logits[row, known], math.sqrt(covariance[1, 1] - gain @ covariance[known, 1]))
        for level in levels:
            below = found.cdf(mixture.scale.column(1).decode(np.full(3, law.ppf(level))))[row]
            assert abs(below - level) < 5.0 * math.sqrt(0.25 / found.effective[row]) + 1e-3
    quantiles = np.stack([found.icdf(level) for level in levels])
    assert np.stack([found.cdf(line) for line in quantiles]) == pytest.approx(np.tile(levels[:, None], 3), abs=1e-9)


def test_densities_of_cells_multiply_to_the_density_of_the_row() -> None:
    mixture, _ = normal(500)
    x = mixture.sample(20, np.random.default_rng(1))
    total = np.zeros(20)
    for column in range(3):
        known = x.copy()
        known[:, column:] = np.nan
        total += ConditionalColumn(mixture, column, known, UNITS).log_prob(x[:, column])
    assert total == pytest.approx(mixture.log_prob(x, errors=False)[0], abs=1e-9)
    outside = ConditionalColumn(mixture, 0, known, UNITS).log_prob(-1.0)
    assert np.isneginf(outside).all()


def test_draws_and_means_of_missing_cells_agree() -> None:
    """Draws have the conditional distribution function and the mean, and dependent cells are drawn together."""
    mixture, _ = normal(3000)
    x = mixture.scale.decode(np.array([[0.4, np.nan, np.nan], [np.nan, np.nan, np.nan], [0.1, 0.2, -0.3]]))
    n = 20_000
    drawn = sample_missing(mixture, x, n, np.random.default_rng(3))
    assert (drawn[:, 2] == x[2]).all()
    assert (drawn[:, 0, 0] == x[0, 0]).all()
    filled = fill(mixture, x)
    error = drawn.std(0) / math.sqrt(n)
    assert (np.abs(drawn.mean(0) - filled) < 4.5 * error + 1e-9).all()
    law = ConditionalColumn(mixture, 1, x[:1], UNITS)
    assert law.mean[0] == pytest.approx(filled[0, 1])
    below = ConditionalColumn(mixture, 1, np.tile(x[:1], (4000, 1)), UNITS).cdf(drawn[:4000, 0, 1])
    assert stats.kstest(below, "uniform").pvalue > 1e-3
    together = np.corrcoef(drawn[:, 1, 0], drawn[:, 1, 1])[0, 1]
    assert together > 0.4  # of the logits 0.52
    assert effective_components(mixture, x[1:2])[0] == pytest.approx(3000.0)


@pytest.fixture(scope="module")
def iris() -> np.ndarray:
    return load_iris(return_X_y=True)[0]


@pytest.fixture(scope="module")
def density(iris: np.ndarray) -> IndianChefsDensity:
    with quietly():
        return IndianChefsDensity(**SHORT).fit(iris)


def test_missing_cells_are_filled_in(density: IndianChefsDensity, iris: np.ndarray) -> None:
    """Petal lengths given the rest of a row are closer than the mean; known cells keep their bytes."""
    holes = iris[::3].copy()
    holes[:, 2] = np.nan
    with quietly():
        filled = density.impute(holes)
        drawn = density.impute(holes, n_samples=40, random_state=1)
        given = density.conditional("x2", iris[::3])
    others = [0, 1, 3]
    assert np.array_equal(filled[:, others], holes[:, others])
    assert (drawn[..., others] == holes[:, others]).all()
    truth = iris[::3, 2]
    assert np.sqrt(np.mean((filled[:, 2] - truth) ** 2)) < 0.5 * truth.std()
    assert given.mean == pytest.approx(filled[:, 2])
    inside = (given.icdf(0.05) <= truth) & (truth <= given.icdf(0.95))
    assert 0.75 < inside.mean() <= 1.0
    low, high = density.support_[:, 2]
    assert ((drawn[..., 2] > low) & (drawn[..., 2] < high)).all()
    alone = density.conditional("x2", np.full((50, 4), np.nan))
    assert (given.log_prob(truth) - alone.log_prob(truth)).mean() > 0.5  # nats
    assert np.array_equal(density.impute(iris[:5]), iris[:5])


def test_rows_without_known_cells_have_the_marginal(density: IndianChefsDensity) -> None:
    empty = np.full((1, 4), np.nan)
    assert density.conditional(1, empty).icdf(0.3) == pytest.approx(density.marginal(1).icdf([0.3]), abs=1e-9)


def test_frames_with_missing_cells(iris: np.ndarray) -> None:
    frame = pd.DataFrame(iris[:, :3], columns=["a", "b", "c"])
    with quietly():
        fitted = IndianChefsDensity(**{**SHORT, "sweeps": 40, "states": 10}).fit(frame)
        gaps = frame.iloc[:4].copy()
        gaps.loc[1, "b"] = np.nan
        nullable = gaps.convert_dtypes()
        assert nullable["b"].isna().sum() == 1
        assert np.array_equal(fitted.impute(gaps), fitted.impute(nullable))
        assert np.array_equal(fitted.impute(gaps), fitted.impute(gaps.to_numpy()))
    with pytest.raises(DataError, match="column 'b' has the type String"):
        fitted.impute(gaps.assign(b="text"))
    with pytest.raises(DataError, match=r"column 'd' was given; allowed are 'a', 'b', 'c', or their positions"):
        fitted.conditional("d", gaps)
    objects = gaps.astype(object).assign(b=[5.1, None, 5.0, 4.9])
    with quietly():
        assert np.isfinite(fitted.impute(objects)).all()
        assert np.isfinite(fitted.impute(objects.to_numpy().tolist())).all()
        given = fitted.conditional(np.int64(1), gaps)
    with pytest.raises(DataError, match=r"q=1.5 was given; levels between 0 and 1"):
        given.icdf(1.5)
    with pytest.raises(DataError, match=r"x has shape \(2,\); one number, or one for each of the 4 rows"):
        given.cdf([0.1, 0.2])
    with pytest.raises(DataError, match=r"X has missing cells in 1 of 4 rows .*fill them in \(impute\)"):
        fitted.p_values(gaps)
    with pytest.raises(DataError, match=r"X has missing cells in 1 of 4 rows .*fill them in \(impute\)"):
        fitted.score_samples(gaps)
    with pytest.raises(DataError, match="X cannot be read as an array of numbers"):
        fitted.impute([["a", "b", "c"]])
    far = gaps.copy()
    far.loc[0, "a"] = 1000.0
    with pytest.raises(DataError, match=r"1 of 4 rows .*first: 0\) have known cells outside the support"):
        fitted.conditional("c", far)
    far.loc[0, "b"] = np.nan
    with pytest.warns(DataWarning, match=r"1 of 4 rows .*first: 0\) remain missing: known cells are outside"):
        filled = fitted.impute(far)
    assert np.argwhere(np.isnan(filled)).tolist() == [[0, 1]]
    with quietly():
        assert fitted.conditional("a", far).mean.shape == (4,)  # its own values are ignored


def test_few_components_are_warned_of(density: IndianChefsDensity, iris: np.ndarray) -> None:
    odd = np.array([[4.3, 4.4, 6.9, np.nan]])
    with pytest.warns(DataWarning, match="fewer than 50 effective components given their known cells"):
        density.impute(odd)


def test_p_values_of_rows(density: IndianChefsDensity, iris: np.ndarray) -> None:
    """Draws of the density have uniform p-values; with reference rows they are ranks, whatever the density is."""
    drawn = density.sample(2000, random_state=5)
    p = np.sort(density.p_values(drawn))
    assert np.abs(p - (np.arange(2000) + 0.5) / 2000).max() < 1.95 * math.sqrt(1 / 2000 + 1 / 4000)
    shifted = drawn[:400] * 0.9 + 0.3
    ranks = [density.p_values(shifted[k : k + 1], reference=np.delete(shifted, k, 0))[0] for k in range(0, 400, 10)]
    assert abs(np.mean(ranks) - 0.5) < 4.5 * math.sqrt(1 / 12 / 40)
    far = np.array([[4.5, 4.0, 6.5, 0.2]])
    assert density.p_values(far)[0] < 0.01
    assert density.p_values([[1000.0, 0, 0, 0]], reference=iris[:20])[0] == pytest.approx(1 / 21)


def test_missing_cells_are_filled_in_on_the_command_line(
    iris: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    frame = pd.DataFrame(iris[:, :2], columns=["a", "b"])
    with quietly():
        fitted = IndianChefsDensity(**{**SHORT, "sweeps": 40, "states": 10}).fit(frame)
        fitted.save("run")
        rows = frame.iloc[:6].assign(name=list("uvwxyz"))
        rows.loc[2, "b"] = np.nan
        rows.to_csv("rows.csv", index=False)
        assert main(["impute", "run", "rows.csv", "--out", "filled.csv"]) == 0
        filled = pd.read_csv("filled.csv")
        assert list(filled.columns) == ["a", "b", "name"]
        assert filled["name"].tolist() == list("uvwxyz")
        assert filled["b"].to_numpy() == pytest.approx(fitted.impute(rows[["a", "b"]])[:, 1])
        assert main(["impute", "run", "rows.csv", "--draws", "3", "--seed", "1", "--out", "drawn.csv"]) == 0
        drawn = pd.read_csv("drawn.csv")
        assert drawn["draw"].tolist() == [1] * 6 + [2] * 6 + [3] * 6
        assert drawn.loc[drawn.index % 6 == 2, "b"].nunique() == 3
        assert main(["impute", "run", "drawn.csv", "--draws", "3"]) == 2
        UnboundedDepthRegressor(epochs=2, width=4, cv=1, random_state=0).fit(frame[["a"]], frame["b"]).save("other")
        assert main(["impute", "other", "rows.csv"]) == 2
        rows.iloc[:0].to_csv("empty.csv", index=False)
        assert main(["impute", "run", "empty.csv"]) == 2
    said = capsys.readouterr().err
    assert "the table has a column 'draw', which is the name of the column of draws" in said
    assert "missing cells are filled in by a density of graphs" in said
    assert "empty.csv has column names and no rows" in said
