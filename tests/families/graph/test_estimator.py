"""Estimators over infinite graphs: what scikit-learn asks, what rows and chains do to them, and what they refuse."""

import json
import math
import signal
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate, stats
from sklearn.datasets import load_iris
from sklearn.utils.estimator_checks import parametrize_with_checks

import fathomless
from experiments.kernel_density import hellinger_samples
from fathomless import IndianChefsClassifier, IndianChefsDensity, IndianChefsRegressor
from fathomless.data import datasets
from fathomless.data.targets import TargetScale
from fathomless.estimators.markov_chains import chain_weights, convergence_warnings, mode_gap
from fathomless.estimators.values import CheckpointOptions
from fathomless.families.graph.model import IndianChefs, log_prob_largest
from fathomless.posterior.fit_diagnostics import ChainDiagnostics
from fathomless.system.errors import ConvergenceWarning, DataError, DataWarning, PausedError
from quick_fits import checked

# fits are short on purpose
pytestmark = [
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:.*fewer than 50 effective components:fathomless.system.errors.DataWarning"),
]

SHORT: dict[str, Any] = {"chains": 2, "sweeps": 60, "states": 20, "engine": "numpy", "random_state": 0}
KINDS = [IndianChefsRegressor, IndianChefsClassifier, IndianChefsDensity]


@pytest.fixture(scope="module")
def iris() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_iris(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    return X[order], y[order]


@pytest.fixture(scope="module")
def density(iris: tuple[np.ndarray, np.ndarray]) -> IndianChefsDensity:
    with warnings.catch_warnings(action="ignore"):
        return IndianChefsDensity(**{**SHORT, "sweeps": 300, "states": 50}).fit(iris[0][:, [0, 2]])


def without(estimator: Any) -> dict[str, str]:
    """Return the checks that ask for what chains refuse: that of class_weight gives weights of 1,000 and 0.0001."""
    classifier = isinstance(estimator, IndianChefsClassifier)
    return {"check_class_weight_classifiers": "chains repeat rows: weights are whole numbers"} if classifier else {}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:class_weight sums to:fathomless.system.errors.DataWarning")
@pytest.mark.filterwarnings("ignore:.* given; fewer than 12:fathomless.system.errors.DataWarning")
@parametrize_with_checks(
    [kind(**{**SHORT, "sweeps": 40, "states": 10, "networks": 8}) for kind in KINDS], expected_failed_checks=without
)
def test_estimators_pass_scikit_learn_checks(estimator: Any, check: Any) -> None:
    checked(estimator, check, sweeps=16, states=4)


# ------------------------------------------------------------------------------------------- rows


@pytest.mark.parametrize("kind", KINDS)
def test_row_order_and_weights_give_the_same_bytes(kind: Any, iris: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = iris[0][:60], iris[1][:60]
    count = np.random.default_rng(1).integers(0, 3, size=len(X))
    order = np.random.default_rng(2).permutation(int(count.sum()))
    again = np.repeat(np.arange(len(X)), count)[order]
    target = () if kind is IndianChefsDensity else (y.astype(float) if kind is IndianChefsRegressor else y,)
    weighed = kind(**SHORT).fit(X, *target, sample_weight=count)
    repeated = kind(**SHORT).fit(X[again], *(t[again] for t in target))
    for name, value in weighed.model_.state_dict().items():
        assert torch.equal(value, repeated.model_.state_dict()[name]), name


def test_weights_that_are_no_counts_are_refused(iris: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(DataError, match=r"sample_weight has 0\.5, but chains repeat rows"):
        IndianChefsRegressor(**SHORT).fit(*iris, sample_weight=np.full(150, 0.5))


def test_prediction_does_not_depend_on_other_rows(iris: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = iris
    fitted = IndianChefsClassifier(**SHORT).fit(X, y)
    whole = fitted.predict_log_proba(X)
    np.testing.assert_allclose(fitted.predict_log_proba(X[7:8])[0], whole[7], rtol=1e-12)


def test_covariate_has_no_density() -> None:
    """Rows of a column that has no child change nothing: what inputs are is not modelled."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 1))
    fitted = IndianChefsRegressor(**SHORT).fit(x, rng.normal(size=40))
    model = fitted.model_
    state = model.states()[-1]
    assert (state["biases"][: model.inputs] == 0.0).all()
    assert (state["precisions"][: model.inputs] == 1.0).all()
    assert all(chain["log_likelihood"] < 0.5 for chain in fitted.chains_)  # of y alone: a standard normal has -1.42
    assert all(chain["log_likelihood"] > -2.0 for chain in fitted.chains_)


# ------------------------------------------------------------------------------------------- what is predicted


def test_the_largest_of_normal_variables_has_the_probability_of_a_simulation() -> None:
    means = torch.tensor([[0.3, -0.2, 1.0], [4.0, 0.0, 0.0], [-1.0, -1.0, -1.0]], dtype=torch.float64)
    drawn = means + torch.randn(400_000, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    share = torch.nn.functional.one_hot(drawn.argmax(-1), 3).double().mean(0)
    p = log_prob_largest(means).exp()
    torch.testing.assert_close(p.sum(-1), torch.ones(3, dtype=torch.float64))
    assert float((p - share).abs().max()) < 5 * 0.5 / math.sqrt(400_000)


def network(**more: Any) -> dict[str, np.ndarray]:
    """Input 0, output 1, hidden unit 2: x -> h (2), h -> y (1.5), x -> y (-1)."""
    state = {
        "orders": np.array([1.0, 0.0, 0.5]),
        "biases": np.array([0.0, 0.2, -0.3]),
        "precisions": np.array([1.0, 25.0, 4.0]),
        "parents": np.array([0, 2, 0]),
        "children": np.array([2, 1, 1]),
        "weights": np.array([2.0, 1.5, -1.0]),
        "law": np.ones(3),
    }
    return {**state, **more}


def test_a_network_is_drawn_forward_by_its_law() -> None:
    """The mean over draws is the integral over the hidden unit's activation."""
    model = IndianChefs(1, 2, kind="numbers")
    model.fill([network()], [0], [0.0])
    x = torch.tensor([[0.7], [-1.0]], dtype=torch.float64)
    draws = model.draw(x, 20_000, torch.Generator().manual_seed(0))
    assert draws.f.shape == (20_000, 2, 2)
    assert torch.allclose(draws.f[..., 1], torch.tensor(-0.5 * math.log(25.0), dtype=torch.float64))
    for row, value in enumerate(x[:, 0].tolist()):
        law = stats.norm(-0.3 + 2.0 * value, 0.5)
        u = integrate.quad(lambda a, law=law: law.pdf(a) / (1 + math.exp(-a)), law.ppf(1e-12), law.isf(1e-12))[0]
        f = draws.f[:, row, 0]
        assert abs(float(f.mean()) - (0.2 - value + 1.5 * u)) < 4 * float(f.std()) / math.sqrt(20_000)


def test_a_model_keeps_networks_and_numbers_their_graphs() -> None:
    other = network(parents=np.array([0, 2]), children=np.array([2, 1]), weights=np.array([2.0, 1.5]))
    model = IndianChefs(1, 2, kind="numbers", networks=2)
    model.fill([network(), other, network(weights=np.ones(3))], [0, 0, 1], [math.log(0.5), math.log(0.5), -math.inf])
    assert model.graph.tolist() == [0, 1, 0]
    for state, kept in zip([network(), other], model.states(), strict=False):
        assert all(np.array_equal(state[name], kept[name]) for name in state)
    draws = model.draw(torch.zeros(3, 1, dtype=torch.float64), 4, torch.Generator().manual_seed(0))
    assert draws.structure.tolist() == [0] * 4 + [1] * 4
    assert draws.network is not None
    assert draws.network.tolist() == [0] * 4 + [1] * 4
    assert model.structure().counts["edges"] == {2: 0.5, 3: 0.5}


def test_a_regression_finds_a_planted_column_and_the_noise() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 4))
    y = 3.0 * np.tanh(2.0 * X[:, 1]) + 0.3 * rng.normal(size=200)
    fitted = IndianChefsRegressor(chains=4, sweeps=600, states=50, random_state=0).fit(X[:150], y[:150])
    relevance = fitted.relevance()
    assert relevance["x1"]["used"] == 1.0
    assert max(relevance[f"x{i}"]["used"] for i in (0, 2, 3)) < 0.9
    mean, std = fitted.predict(X[150:], return_std=True)
    assert np.sqrt(np.mean((mean - y[150:]) ** 2)) < 0.5
    assert 0.2 < np.median(std) < 0.5


def test_several_targets_share_hidden_units() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    Y = np.column_stack([X[:, 0], X[:, 0] ** 2]) + 0.1 * rng.normal(size=(60, 2))
    fitted = IndianChefsRegressor(**SHORT).fit(X, Y)
    assert fitted.predict(X).shape == (60, 2)


def test_pure_noise_has_the_constant_prediction() -> None:
    rng = np.random.default_rng(3)
    X, y = rng.normal(size=(150, 3)), rng.normal(2.0, 1.5, size=150)
    fitted = IndianChefsRegressor(**{**SHORT, "sweeps": 200, "engine": "auto"}).fit(X, y)
    mean, std = fitted.predict(X[:50], return_std=True)
    assert np.abs(mean - y.mean()).max() < 0.8
    assert np.abs(std / y.std() - 1.0).max() < 0.3


# ------------------------------------------------------------------------------------------- densities


def test_density_integrates_to_one(density: IndianChefsDensity) -> None:
    low, high = density.support_
    edges = [np.linspace(a, b, 151) for a, b in zip(low, high, strict=True)]
    middles = [0.5 * (e[1:] + e[:-1]) for e in edges]
    grid = np.stack(np.meshgrid(*middles, indexing="ij"), -1).reshape(-1, 2)
    mass = np.exp(density.score_samples(grid)).sum() * np.prod([e[1] - e[0] for e in edges])
    assert mass == pytest.approx(1.0, abs=2e-3)


def test_unit_change_shifts_log_density(iris: tuple[np.ndarray, np.ndarray]) -> None:
    X = iris[0][:, :2]
    plain, scaled = (IndianChefsDensity(**SHORT).fit(X * unit) for unit in ([1.0, 1.0], [1024.0, 1.0]))
    difference = plain.score_samples(X) - scaled.score_samples(X * [1024.0, 1.0])
    np.testing.assert_allclose(difference, math.log(1024.0), rtol=1e-9)


def test_a_column_has_a_law_of_its_own(density: IndianChefsDensity) -> None:
    law = density.marginal(0)
    q = np.array([0.05, 0.5, 0.95])
    np.testing.assert_allclose(law.cdf(law.icdf(q)), q, atol=1e-9)
    drawn = density.sample(20_000, random_state=0)[:, 0]
    assert np.abs(np.array([(drawn < x).mean() for x in law.icdf(q)]) - q).max() < 4 * 0.5 / math.sqrt(20_000)
    with pytest.raises(DataError, match="column 'petal' was given"):
        density.marginal("petal")
    for level in (0.0, 5.0, [0.5, math.nan]):  # a percentage was answered with the end of the support
        with pytest.raises(DataError, match="levels between 0 and 1 are allowed"):
            law.icdf(level)


def test_a_wide_prior_of_biases_keeps_the_shares_of_clusters() -> None:
    noise = np.random.default_rng(0)
    X = np.concatenate([noise.normal(-3.0, 0.3, (150, 1)), noise.normal(3.0, 0.3, (50, 1))])
    with warnings.catch_warnings(action="ignore"):  # so short a run has not converged
        density = IndianChefsDensity(bias_scale=10.0, chains=2, sweeps=300, states=50, random_state=0).fit(X)
    assert (density.sample(4000) < 0.0).mean() == pytest.approx(0.75, abs=0.1)  # 0.59 with a scale of 1


def test_rows_outside_the_support_are_counted(density: IndianChefsDensity, iris: tuple[np.ndarray, np.ndarray]) -> None:
    X = iris[0][:4, [0, 2]].copy()
    X[0] = 99.0
    with pytest.warns(DataWarning, match="1 of 4 rows are outside the support"):
        log_density, error = density.score_samples(X, return_error=True)
    assert np.isneginf(log_density).tolist() == [True, False, False, False]
    assert error[0] == 0.0
    assert (error[1:] > 0.0).all()


def test_chains_can_be_weighed_in_another_way(density: IndianChefsDensity) -> None:
    every = density.weighed_by("all")
    assert [chain["weight"] for chain in every.chains_] == [0.5, 0.5]
    assert float(every.model_.log_weight.exp().sum()) == pytest.approx(1.0)
    assert density.weighed_by("selected").structure_ == density.structure_


@pytest.mark.slow
def test_rings_recovers_reference() -> None:
    """One seed of three: what fantasies lose over the training rows."""
    X = datasets.rings(600, seed=0, classes=1)[0]
    train, test = X[:300], X[300:]
    fitted = IndianChefsDensity(chains=3, sweeps=2000, random_state=0).fit(train)
    baseline = hellinger_samples(train, test).square
    found = np.mean([hellinger_samples(fitted.sample(300, random_state=k), test).square for k in range(3)])
    assert found / baseline <= 2.0


# ------------------------------------------------------------------------------------------- chains


def test_chains_are_weighed() -> None:
    assert chain_weights("selected", [-1.0, -1.05, -1.2]) == [0.5, 0.5, 0.0]
    assert chain_weights("selected", [-1.0, -1.05, -1.2], apart=0.3) == [1 / 3] * 3
    assert chain_weights("all", [-1.0, -3.0]) == [0.5, 0.5]
    assert mode_gap(TargetScale((0.0,), (1.0,), 1)) == mode_gap(TargetScale((0.0,) * 2, (1.0,) * 2, 2)) == 0.08
    assert mode_gap(TargetScale((0.0,) * 8, (1.0,) * 8, 2)) == pytest.approx(0.32)
    held = torch.tensor([[-1.0, -4.0]], dtype=torch.float64).repeat(500, 1)
    first, second = chain_weights("stacked", [-1.0, -1.0], held)
    assert first > 0.95
    assert first + second == pytest.approx(1.0)
    either = torch.tensor([[-1.0, -4.0], [-4.0, -1.0]], dtype=torch.float64)
    counts = torch.tensor([1.0, 300.0])
    assert chain_weights("stacked", [-1.0, -1.0], either, counts)[1] > 0.95


@pytest.mark.parametrize("by", ["all", "stacked"])
def test_held_out_rows_outside_the_support_are_told_and_left_out(by: str, tmp_path: Path) -> None:
    X = np.random.default_rng(0).standard_t(1.5, size=(100, 2))
    with pytest.warns(ConvergenceWarning, match="held-out rows are outside of the support"):
        fitted = IndianChefsDensity(**SHORT, chains_by=by, validation_fraction=0.3).fit(X)
    with pytest.warns(DataWarning, match="outside the support"):
        log_density = fitted.score_samples(X[fitted.held_out_])
    inside = np.isfinite(log_density)
    assert 0 < fitted.fit_diagnostics_.outside == (~inside).sum()
    tolerance = 2e-3 if by == "all" else 2e-2  # other draws; and stacked weights are fitted without the row's part
    assert fitted.validation_score_ == pytest.approx(log_density[inside].mean(), abs=tolerance)
    assert IndianChefsDensity.load(fitted.save(tmp_path / "m")).validation_score_ == fitted.validation_score_


def test_held_out_rows_count_as_they_are_weighted() -> None:
    X = np.random.default_rng(1).normal(size=(60, 2))
    weight = np.where(np.abs(X).max(1) > 1.5, 20.0, 1.0)
    fitted = IndianChefsDensity(**SHORT, validation_fraction=0.3).fit(X, sample_weight=weight)
    held = fitted.held_out_
    log_density = fitted.score_samples(X[held])
    inside = np.isfinite(log_density)
    expected = np.average(log_density[inside], weights=weight[held][inside])
    assert fitted.validation_score_ == pytest.approx(expected, abs=0.01)  # other draws
    assert abs(expected - log_density[inside].mean()) > 0.05


def test_chains_in_different_modes_are_told() -> None:
    record = {"states": 10, "error": ""}
    chains = (
        {"chain": 0, "log_likelihood": -1.0, "weight": 1.0, **record},
        {"chain": 1, "log_likelihood": -1.3, "weight": 0.0, **record},
    )
    told = ChainDiagnostics(apart=0.08, chains=chains, diagnostics={}, diagnostics_of_all={}, traces={})
    (text,) = convergence_warnings(told, "selected")
    assert text.startswith(
        "chains are in different modes: 1 of 2 are within 0.08 nats per row of the best, and the worst is"
    )
    chains[1]["log_likelihood"] = -1.01
    assert convergence_warnings(told, "selected") == []
    told = replace(told, diagnostics={"hidden": {"rhat": 1.3, "ess_bulk": 50.0, "ess_tail": 500.0}})
    assert "R-hat of hidden is 1.30" in convergence_warnings(told, "selected")[0]


def test_stacked_chains_need_rows_that_were_held_out(iris: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(DataError, match="chains_by='stacked' was given"):
        IndianChefsRegressor(**SHORT, chains_by="stacked").fit(*iris)
    fitted = IndianChefsClassifier(**SHORT, chains_by="stacked", validation_fraction=0.3).fit(*iris)
    assert fitted.validation_score_ is not None
    assert 44 <= len(fitted.held_out_) <= 46  # of each class alike
    assert sum(chain["weight"] for chain in fitted.chains_) == pytest.approx(1.0)


@pytest.mark.parametrize("jobs", [1, 4])
def test_resume_is_bit_equal(jobs: int, tmp_path: Path, iris: tuple[np.ndarray, np.ndarray]) -> None:
    X = iris[0]
    whole = IndianChefsDensity(**SHORT).fit(X)

    def pause(run: Any) -> None:
        run.pause = run.epoch in (8, 34)

    options = {**SHORT, "checkpoint": CheckpointOptions(tmp_path, seconds=0.0), "n_jobs": jobs}
    for _ in range(2):
        with pytest.raises(PausedError):
            IndianChefsDensity(**options, callbacks=[pause]).fit(X)
    resumed = IndianChefsDensity(**options).fit(X)
    assert np.array_equal(resumed.score_samples(X), whole.score_samples(X))
    assert resumed.chains_ == whole.chains_
    assert resumed.history_ == whole.history_


def test_a_fit_that_has_ended_goes_on_as_one_long_fit(tmp_path: Path, iris: tuple[np.ndarray, np.ndarray]) -> None:
    X, options = iris[0], {**SHORT, "grow_data": False}
    longer = {**options, "sweeps": 2 * SHORT["sweeps"]}
    short = IndianChefsDensity(**options, checkpoint=tmp_path).fit(X)
    more = IndianChefsDensity(**longer, checkpoint=tmp_path).fit(X)
    whole = IndianChefsDensity(**longer).fit(X)
    assert short.resumable_
    assert more.n_iter_ == whole.n_iter_ == longer["sweeps"]
    assert np.array_equal(more.score_samples(X), whole.score_samples(X))
    assert more.fit_diagnostics_ == whole.fit_diagnostics_


SCRIPT = """
import sys, warnings
from sklearn.datasets import load_iris
from fathomless import CheckpointOptions, IndianChefsDensity
warnings.simplefilter("ignore")
jobs, folder, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
options = dict(chains=2, sweeps=300, states=20, engine="numpy", random_state=0, n_jobs=jobs)
checkpoint = dict(checkpoint=CheckpointOptions(folder, seconds=0.0)) if folder != "-" else {}
IndianChefsDensity(**options, **checkpoint).fit(load_iris().data).save(out)
"""


@pytest.mark.slow
def test_a_run_that_is_killed_at_random_moments_ends_in_the_same_bytes(tmp_path: Path) -> None:
    """Killed, not stopped: whatever was on its way to the disk is lost."""
    script, moments = tmp_path / "fit.py", np.random.default_rng(0)
    script.write_text(SCRIPT, encoding="utf-8")
    with warnings.catch_warnings(action="ignore"):
        theirs = IndianChefsDensity(**{**SHORT, "sweeps": 300}).fit(load_iris().data)
    kills = 0
    for jobs in (1, 4):
        words = [sys.executable, script, str(jobs), tmp_path / "checkpoint", tmp_path / "resumed"]
        run = subprocess.Popen(words)
        deadline = time.monotonic() + float(moments.uniform(3.0, 5.0))
        while run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if run.poll() is not None:
            assert run.returncode == 0
            break
        run.send_signal(signal.SIGKILL)
        run.wait()
        kills += 1
    else:
        subprocess.run(words, check=True)
    ours = fathomless.load(tmp_path / "resumed")
    assert all(torch.equal(ours.model_.state_dict()[k], v) for k, v in theirs.model_.state_dict().items())
    assert kills


@pytest.mark.slow
def test_chains_in_processes_give_the_same_bytes(iris: tuple[np.ndarray, np.ndarray]) -> None:
    """As on a cluster: the sampler, with its compiled moves, travels."""
    options = {**SHORT, "engine": "auto"}
    alone = IndianChefsDensity(**options).fit(iris[0])
    with joblib.parallel_config(backend="loky"):
        apart = IndianChefsDensity(**{**options, "n_jobs": 2}).fit(iris[0])
    assert np.array_equal(apart.score_samples(iris[0]), alone.score_samples(iris[0]))


def test_saved_predictions_are_bit_equal(density: IndianChefsDensity, tmp_path: Path) -> None:
    loaded = fathomless.load(density.save(tmp_path / "run"))
    X = density.sample(50, random_state=1)
    assert np.array_equal(loaded.score_samples(X), density.score_samples(X))
    assert loaded.diagnostics_ == density.diagnostics_
    assert json.dumps(loaded.fit_diagnostics_.to_json()) == json.dumps(density.fit_diagnostics_.to_json())


# ------------------------------------------------------------------------------------------- bad input

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"margin": 0.5}, "margin"),
    ({"mass_prior": (20.0, 2.0)}, "with mean 10"),
    ({"precision_prior": (0.0, 1.0)}, "precision_prior"),
    ({"weight_scale": -1.0}, "weight_scale"),
    ({"burn_in": 1.0}, "burn_in"),
    ({"states": 61}, "states=61"),
    ({"engine": "fortran"}, "engine"),
    ({"prior": "chinese restaurant"}, "prior"),
    ({"device": "meta"}, "device"),
    ({"n_jobs": 0}, "n_jobs"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_options_out_of_range_are_refused(
    options: dict[str, Any], message: str, iris: tuple[np.ndarray, np.ndarray]
) -> None:
    with pytest.raises(DataError, match=message):
        IndianChefsDensity(**{**SHORT, **options}).fit(iris[0])


def test_tables_without_a_density_are_refused(iris: tuple[np.ndarray, np.ndarray]) -> None:
    X = iris[0]
    fit = IndianChefsDensity(**SHORT).fit
    with (
        pytest.warns(DataWarning, match="fewer than 12"),
        pytest.raises(DataError, match="5 samples of 4 columns were given; a density needs at least 10 rows"),
    ):
        fit(X[:5])
    with pytest.raises(DataError, match="column 'x1' is constant; drop it"):
        fit(np.column_stack([X[:, 0], np.ones(150)]))
    with pytest.raises(DataError, match="column 'kind' has the type String; densities need numbers"):
        fit(pd.DataFrame({"length": X[:, 0], "kind": ["a"] * 150}))
    with pytest.raises(DataError, match="column 'length' has 2 missing or infinite values"):
        fit(pd.DataFrame({"length": [math.nan, math.inf, *X[2:, 0]]}))
    with pytest.raises(ValueError, match="NaN"):
        fit(np.where(X > 7.5, math.nan, X))
    with pytest.raises(DataError, match="at most 200 columns"):
        fit(np.random.default_rng(0).normal(size=(20, 201)))


def test_what_chains_cannot_use_is_refused(iris: tuple[np.ndarray, np.ndarray]) -> None:
    X, y = iris
    with pytest.raises(DataError, match="prior='cibp' was given for a regression or classification"):
        IndianChefsClassifier(**SHORT, prior="cibp").fit(X, y)
    with pytest.raises(DataError, match="groups were given"):
        IndianChefsClassifier(**SHORT).fit(X, y, groups=y)
    assert IndianChefsDensity(**SHORT, prior="cibp").fit(X).structure_.statistics["mean_hidden"] >= 0.0


def test_hidden_units_can_be_limited(iris: tuple[np.ndarray, np.ndarray]) -> None:
    fitted = IndianChefsDensity(**SHORT, max_hidden=1).fit(iris[0])
    assert max(fitted.hidden_posterior_) <= 1


@pytest.mark.parametrize("chains", [1, 3])
def test_states_of_a_chain_are_no_independent_networks(chains: int) -> None:
    """The error of a mean is that of means over chains, or over stretches of a single one."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(40, 2))
    options = {"chains": chains, "sweeps": 60, "states": 16, "chains_by": "all", "engine": "numpy", "random_state": 0}
    fitted = IndianChefsRegressor(**options).fit(X, X[:, 0] + 0.1 * rng.normal(size=40))
    p = fitted.predict_dist(X)
    each = p.component.mean[..., 0]  # (S, N)
    units = 4 if chains == 1 else chains  # stretches: the root of the number of states
    means = each.reshape(units, -1, len(X)).mean(1)
    torch.testing.assert_close(p.mc_error, means.std(0) / math.sqrt(units), rtol=1e-6, atol=1e-9)
    assert p.uncertainty().known == (len(p.structure.unique()) == 1)
