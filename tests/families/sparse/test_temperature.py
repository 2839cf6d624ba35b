"""The temperature of sparse networks: rows that they were not fitted to choose it, and a number stays a number."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fathomless
from fathomless import Restarts, SparseBayesClassifier, SparseBayesRegressor
from fathomless.data import streams
from fathomless.families.sparse import temperature
from fathomless.families.sparse.options import TEMPERATURES, candidate_temperatures
from fathomless.families.sparse.temperature import compare_candidates
from fathomless.inference.variational import batched
from fathomless.inference.variational.svi import fit
from fathomless.posterior.ensemble import Ensemble
from fathomless.posterior.likelihoods import Gaussian, StudentT
from fathomless.system.errors import ConvergenceWarning, DataError, DivergenceError
from fathomless.system.rng import fold_in

# most trainings here are too short for the structure to move
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
TWO = (1.0, 0.03)
QUICK: dict[str, Any] = {"epochs": 20, "depth": 1, "width": 8, "random_state": 0}


def table(n: int = 100, columns: int = 4, noise: float = 0.3, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The first two columns matter."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, columns))
    return X, 2.0 * X[:, 0] - X[:, 1] + noise * rng.standard_normal(n)


def state(estimator: Any) -> dict[str, Tensor]:
    return dict(estimator.model_.state_dict())


# ------------------------------------------------------------------------------------------------- the rule


def test_the_highest_temperature_within_one_standard_error_is_chosen() -> None:
    """By hand: the second is behind by 0.1 ± √(4 · 0.01) / 4 = 0.05, the third by 0.1 ± √(4 · 0.09) / 4 = 0.15."""
    best = torch.tensor([-1.0, -2.0, -3.0, -4.0])
    steady, noisy = torch.tensor([0.2, 0.0, 0.2, 0.0]), torch.tensor([0.4, -0.2, 0.4, -0.2])
    found = compare_candidates(torch.stack([best - 1.0, best - steady, best - noisy, best]))
    assert found.chosen == 2
    assert found.mean.tolist() == pytest.approx([-3.5, -2.6, -2.6, -2.5])
    assert found.behind.tolist() == pytest.approx([1.0, 0.1, 0.1, 0.0])
    assert found.behind_error.tolist() == pytest.approx([0.0, 0.05, 0.15, 0.0])
    assert found.error.tolist() == pytest.approx(
        [float(row.double().std(correction=0)) / 2.0 for row in (best, best - steady, best - noisy, best)]
    )


def test_a_weight_is_repetition() -> None:
    rows, weight = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 2, 3, 1, 2, 1])
    once, repeated = compare_candidates(rows, weight), compare_candidates(rows.repeat_interleave(weight, 1))
    for ours, theirs in zip(once, repeated, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_is_asked_for() -> None:
    assert candidate_temperatures("auto") == TEMPERATURES == tuple(sorted(TEMPERATURES, reverse=True))
    assert candidate_temperatures([0.1, 1, 0.1]) == (1.0, 0.1)
    assert candidate_temperatures(0.1) == candidate_temperatures(np.float64(0.1)) == ()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("cold", "temperature='cold' was given"),
        ((), r"temperature=\(\) was given; a number, a list of at least one, or 'auto' is allowed"),
        ((1.0, -0.1), "temperature=-0.1 was given; a positive, finite number is allowed"),
        ((1.0, "auto"), "temperature='auto' was given; a positive, finite number is allowed"),
        (float("nan"), "temperature=nan was given"),
        (0.0, "temperature=0.0 was given; a positive, finite number is allowed"),
    ],
)
def test_what_is_no_temperature_is_refused(given: Any, message: str) -> None:
    for rows in (40, 100):
        with pytest.raises(DataError, match=message):
            SparseBayesRegressor(temperature=given, **QUICK).fit(*table(rows))


# ------------------------------------------------------------------------------------------------- candidates


def test_candidates_side_by_side_are_those_that_are_trained_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the noise of the draws, which comes from one stream for all: here it is the same for every row."""
    monkeypatch.setattr(
        "fathomless.nn.sparse_layer._add_noise",
        lambda mean, variance, noise: mean + 0.5 * variance.clamp_min(1e-12).sqrt() + 0.0 * noise,
    )

    def same(inputs: int, outputs: int) -> nn.Module:
        network = nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))
        for layer in (network[0], network[2]):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
        return network

    X, y = table()
    options = {**QUICK, "temperature": (1.0, 0.1, 0.01), "precision": "float64", "batch_size": 20}
    together = SparseBayesRegressor(**options).fit(X, y)
    alone = SparseBayesRegressor(**{**options, "architecture": same}).fit(X, y)
    assert together.temperature_ == alone.temperature_
    for ours, theirs in zip(together.candidates_, alone.candidates_, strict=True):
        assert ours.pop("failed") == theirs.pop("failed") == ""
        assert ours == pytest.approx(theirs, rel=1e-6, abs=1e-9)
    assert len({row["log_density"] for row in alone.candidates_}) == 3


def test_what_is_kept_is_the_network_of_all_rows_at_the_chosen_temperature() -> None:
    X, y = table()
    chosen = SparseBayesRegressor(temperature=TWO, **QUICK).fit(X, y)
    given = SparseBayesRegressor(temperature=chosen.temperature_, **QUICK).fit(X, y)
    assert all(map(torch.equal, state(chosen).values(), state(given).values()))
    assert chosen.history_ == given.history_
    assert [row["temperature"] for row in chosen.candidates_] == list(TWO)
    assert given.candidates_ == []
    assert given.temperature_ == chosen.temperature_
    assert not len(chosen.held_out_)
    best = max(chosen.candidates_, key=lambda row: row["log_density"])
    assert best["behind"] == best["behind_error"] == 0.0
    own = next(row for row in chosen.candidates_ if row["temperature"] == chosen.temperature_)
    assert own["behind"] <= own["behind_error"]
    assert chosen.validation_score_ == pytest.approx(own["log_density"])


def test_a_number_trains_as_it_always_did() -> None:
    """Nothing comes between the options and the training loop: the same bytes."""
    X, y = table()
    fitted = SparseBayesRegressor(temperature=0.1, **QUICK).fit(X, y)
    prepared = fitted._prepare(X, y, None)
    model, likelihood = fitted._problem().start(prepared, prepared.seed)
    training = fitted._training_plan().training(prepared.train.count, len(prepared.train))
    assert training.temperature == 0.1
    assert prepared.valid is None
    fit(model, likelihood, prepared.train, training=training, seed=fold_in(prepared.seed, "training"))
    assert all(map(torch.equal, state(fitted).values(), model.state_dict().values()))
    assert "temperature" not in fitted.structure_.summary


# ------------------------------------------------------------------------------------------------- what is chosen


@pytest.mark.parametrize("seed", range(3))
def test_a_sparse_linear_table_keeps_its_support(seed: int) -> None:
    X, y = table(150, 12, noise=0.5, seed=seed)
    fitted = SparseBayesRegressor(depth=0, epochs=400, learning_rate=0.03, random_state=seed).fit(X, y)
    assert fitted.selected_features_ == ["x0", "x1"]
    assert fitted.temperature_ >= 0.3
    assert fitted.candidates_[-1]["kept"] > fitted.candidates_[0]["kept"]


def test_a_table_of_little_noise_wants_a_low_temperature() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-2.0, 2.0, (200, 2))
    y = np.sin(3.0 * X[:, 0]) + X[:, 1] ** 2 + 0.02 * rng.standard_normal(200)
    fitted = SparseBayesRegressor(width=16, epochs=200, learning_rate=0.03, random_state=0).fit(X, y)
    assert fitted.temperature_ <= 0.1
    first = fitted.candidates_[0]
    assert first["behind"] > 2.0 * first["behind_error"]


def test_a_table_of_noise_wants_the_highest() -> None:
    rng = np.random.default_rng(0)
    options: dict[str, Any] = {"depth": 1, "width": 8, "epochs": 200, "learning_rate": 0.02, "random_state": 0}
    with pytest.warns(ConvergenceWarning, match="a constant.*lower temperatures do not predict held-out rows better"):
        fitted = SparseBayesRegressor(**options).fit(rng.standard_normal((150, 3)), rng.standard_normal(150))
    assert fitted.temperature_ == 1.0
    assert fitted.candidates_[0]["kept"] == 0.0


def test_the_noise_is_that_of_rows_which_the_candidate_has_not_seen() -> None:
    """At a low temperature a network fits its rows too well: what it takes for the scale of the noise is too small."""
    (X, y), fresh = table(80, 10, noise=1.0), table(1000, 10, noise=1.0, seed=1)
    options: dict[str, Any] = {**QUICK, "epochs": 180, "learning_rate": 0.03, "width": 32, "temperature": (0.001,)}
    fitted = SparseBayesRegressor(likelihood="gaussian", **options).fit(X, y)
    plain = SparseBayesRegressor(likelihood="gaussian", calibrate=False, **options).fit(X, y)
    assert all(map(torch.equal, state(fitted).values(), state(plain).values()))
    ours, theirs = (one.predict_dist(fresh[0]) for one in (fitted, plain))
    assert float(theirs.std.mean()) < 0.7 * float(ours.std.mean())
    assert float(ours.log_prob(fresh[1]).mean()) > float(theirs.log_prob(fresh[1]).mean()) + 0.5


def test_noise_of_long_tails_is_found() -> None:
    rng = np.random.default_rng(0)
    X, y = table(150)
    y = y + 3.0 * (rng.random(150) < 0.1) * rng.standard_normal(150)
    options = {**QUICK, "epochs": 120, "learning_rate": 0.03, "temperature": (0.3,)}
    assert isinstance(SparseBayesRegressor(**options).fit(X, y).likelihood_, StudentT)
    assert isinstance(SparseBayesRegressor(likelihood="gaussian", **options).fit(X, y).likelihood_, Gaussian)


# ------------------------------------------------------------------------------------------------- where it is known


@pytest.mark.parametrize("kind", [SparseBayesClassifier, SparseBayesRegressor])
def test_the_choice_is_saved(kind: type[Any], tmp_path: Path) -> None:
    X, y = table()
    y = y if kind is SparseBayesRegressor else np.where(y > 0, "yes", "no")
    fitted = kind(temperature=TWO, **QUICK).fit(X, y)
    again = fathomless.load(fitted.save(tmp_path / "m"))
    assert again.temperature == TWO
    assert again.temperature_ == fitted.temperature_
    assert again.candidates_ == fitted.candidates_ == json.loads(json.dumps(fitted.candidates_))
    assert again.structure_ == fitted.structure_
    assert fitted.structure_.summary.endswith(f"temperature {fitted.temperature_:g}, chosen from 2 on 20 held-out rows")
    predicted = [one.predict_dist(X) for one in (fitted, again)]
    assert torch.equal(*(one.log_prob(y) for one in predicted))


def test_the_page_shows_the_candidates(tmp_path: Path) -> None:
    from fathomless.families.sparse.report import page

    X, y = table()
    for posterior in ("lrt", "slab"):
        fitted = SparseBayesRegressor(posterior=posterior, temperature=(1e300, *TWO), **QUICK).fit(X, y)
        shown = next(group.table for group in page(fitted).groups if group.heading == "Temperature")
        assert [row[0] for row in shown.rows] == ["1e+300", "1", "0.03"]
        assert [row[4] for row in shown.rows[1:]].count("yes") == 1
        assert shown.rows[0][1] == "failed"
        assert (shown.rows[1][3] == "all") == (posterior == "slab")


# ------------------------------------------------------------------------------------------------- where there is none


def test_few_rows_choose_nothing() -> None:
    fitted = SparseBayesRegressor(**QUICK).fit(*table(59))
    assert fitted.temperature_ == 0.1
    assert fitted.candidates_ == []
    told = "temperature 0.1, not chosen: 59 rows, and rows are held out from 60 rows on"
    assert fitted.structure_.summary.endswith(told)
    plain = SparseBayesRegressor(temperature=0.1, **QUICK).fit(*table(59))
    assert all(map(torch.equal, state(fitted).values(), state(plain).values()))


def test_data_that_are_read_in_parts_choose_nothing() -> None:
    X, y = table(100)
    fitted = SparseBayesRegressor(**QUICK).fit_stream(streams.arrays(X, y))
    assert fitted.temperature_ == 0.1
    assert fitted.structure_.summary.endswith("temperature 0.1, not chosen: the data were read in parts")


def test_several_processes_choose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temperature, "ranks", lambda: SimpleNamespace(count=2))
    fitted = SparseBayesRegressor(**QUICK).fit(*table())
    assert fitted.temperature_ == 0.1
    assert fitted.structure_.summary.endswith("temperature 0.1, not chosen: 2 processes trained one network")


@pytest.mark.parametrize("between", [nn.BatchNorm1d(5), nn.Identity()])
def test_networks_of_one_s_own_are_trained_one_by_one(between: nn.Module) -> None:
    def build(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(nn.Linear(inputs, 5), copy.deepcopy(between), nn.Tanh(), nn.Linear(5, outputs))

    fitted = SparseBayesRegressor(architecture=build, temperature=(1e300, *TWO), **QUICK).fit(*table())
    assert [row["temperature"] for row in fitted.candidates_] == [1e300, *TWO]
    assert fitted.temperature_ in TWO
    if isinstance(between, nn.Identity):
        assert fitted.candidates_[0]["failed"].startswith("the evidence bound is ")


def test_a_warm_start_keeps_the_temperature() -> None:
    X, y = table()
    fitted = SparseBayesRegressor(temperature=TWO, warm_start=True, **QUICK).fit(X, y)
    before, candidates = fitted.temperature_, fitted.candidates_
    weights, noise = (copy.deepcopy(part.state_dict()) for part in (fitted.model_, fitted.likelihood_))
    fitted.fit(X, y)
    assert fitted.temperature_ == before
    assert fitted.candidates_ == candidates
    assert not all(map(torch.equal, state(fitted).values(), weights.values()))
    assert all(map(torch.equal, fitted.likelihood_.state_dict().values(), noise.values()))  # that of unseen rows
    assert fitted.structure_.summary.endswith("from the network that was trained on")


def test_restarts_are_trained_at_the_chosen_temperature() -> None:
    X, y = table()
    one = SparseBayesRegressor(temperature=TWO, **QUICK).fit(X, y)
    two = SparseBayesRegressor(temperature=TWO, n_restarts=Restarts(count=2, keep="average"), **QUICK).fit(X, y)
    assert isinstance(two.model_, Ensemble)
    assert two.candidates_ == one.candidates_
    assert two.temperature_ == one.temperature_


def test_rows_that_the_user_holds_out_weigh_the_candidates_too() -> None:
    X, y = table()
    fitted = SparseBayesRegressor(temperature=TWO, validation_fraction=0.3, **QUICK).fit(X, y)
    assert len(fitted.held_out_) == 30
    assert fitted.structure_.summary.endswith("chosen from 2 on 30 held-out rows")
    plain = SparseBayesRegressor(temperature=fitted.temperature_, validation_fraction=0.3, **QUICK).fit(X, y)
    assert np.array_equal(fitted.predict(X), plain.predict(X))


# ------------------------------------------------------------------------------------------------- what goes wrong


def test_a_training_that_fails_is_left_out_and_told() -> None:
    X, y = table()
    fitted = SparseBayesRegressor(temperature=(1e300, 0.1), **QUICK).fit(X, y)
    failed, fine = fitted.candidates_
    assert failed["failed"].startswith("the evidence bound is ")
    assert failed["log_density"] is None
    assert not fine["failed"]
    assert fitted.temperature_ == 0.1
    with pytest.raises(DivergenceError, match="the evidence bound is"):
        SparseBayesRegressor(temperature=(1e300, 1e299), **QUICK).fit(X, y)


def test_candidates_are_kept_while_the_fit_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = table()
    options: dict[str, Any] = {"temperature": TWO, **QUICK}
    whole = SparseBayesRegressor(**options).fit(X, y)
    with monkeypatch.context() as broken:

        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        broken.setattr(temperature, "predict_held_out", interrupt)
        with pytest.raises(KeyboardInterrupt):
            SparseBayesRegressor(checkpoint=tmp_path / "c", **options).fit(X, y)
    with monkeypatch.context() as watched:
        watched.setattr(batched, "_epoch", None)  # no candidate is trained again
        again = SparseBayesRegressor(checkpoint=tmp_path / "c", **options).fit(X, y)
    assert again.candidates_ == whole.candidates_
    assert np.array_equal(again.predict(X), whole.predict(X))
    assert not (tmp_path / "c" / "temperature").exists()


def test_candidates_of_another_fit_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = table()
    with monkeypatch.context() as broken:
        broken.setattr(temperature, "compare_candidates", None)
        with pytest.raises(TypeError):
            SparseBayesRegressor(checkpoint=tmp_path, temperature=TWO, **QUICK).fit(X, y)
    options = {**QUICK, "width": 6, "temperature": TWO}
    again = SparseBayesRegressor(checkpoint=tmp_path, **options).fit(X, y)
    assert again.candidates_ == SparseBayesRegressor(**options).fit(X, y).candidates_
