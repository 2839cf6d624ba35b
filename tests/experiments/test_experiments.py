"""Experiments: their small versions run and show what they must; results, verdicts and parts are what they say."""

import dataclasses
import functools
import itertools
import json
import math
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import experiments
import fathomless
from experiments import cifar, clusters, images, logistic, sequences, spiral, uci
from experiments.reproduce import check_expectations, reproduce
from experiments.results import (
    Expectation,
    Request,
    Result,
    Value,
    average,
    expectations,
    judge,
    layout,
    paired_difference,
)
from fathomless import plots
from fathomless.app import cli
from fathomless.data import datasets
from fathomless.families.depth.estimator import UnboundedDepthRegressor
from fathomless.inference.runs.callbacks import Checkpoint
from fathomless.inference.variational.training import schedule
from fathomless.nn.architectures import SequenceTransformer
from fathomless.posterior.laws import TruncatedPoisson
from fathomless.system import io
from fathomless.system.errors import DataError, FileError, PausedError
from fathomless.system.jobs import run_parts
from fathomless.system.rng import seeded_globals

# fits are short on purpose
pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

NAMES = [experiment.name for experiment in experiments.EXPERIMENTS]
EXPECTED: dict[str, Any] = io.read_json(Path(experiments.__file__).parent / "expected.json")
NEEDS_DATA = {"cifar", "continuous_images", "images", "logistic"}
FINITE = st.floats(-1e6, 1e6)


# ------------------------------------------------------------------------------------------------- the experiments


IN_CLONE = pytest.mark.skipif(
    Path(fathomless.__file__).parents[1].name != "src", reason="needs the package of the clone, not an installed one"
)


@pytest.fixture(autouse=True, scope="module")
def data_sets_are_read_once() -> Iterator[None]:
    """Keep data sets, whose reading takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "load", functools.cache(datasets.load))
        yield


@pytest.fixture(scope="session")
def smoke(request: pytest.FixtureRequest) -> Callable[[str], Result]:
    """The small version of an experiment, run once for all tests."""
    kept: dict[str, Result] = {}

    def run(name: str) -> Result:
        if name not in kept:
            data = request.getfixturevalue("data_folder") if name in NEEDS_DATA else None
            kept[name] = experiments.find(name).load().run(Request("smoke", data=data))
        return kept[name]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_small_version_shows_what_is_expected_and_survives_its_file(
    name: str, smoke: Callable[[str], Result]
) -> None:
    result = smoke(name)
    verdicts = check_expectations(result)
    assert verdicts
    assert all(verdict.holds for verdict in verdicts), layout(verdicts)
    again = Result.from_json(json.loads(json.dumps(result.to_json())))
    module = experiments.find(name).load()
    assert again.values == result.values
    assert plots.svg(module.figure(again)) == plots.svg(module.figure(result))


@pytest.mark.parametrize("name", NAMES)
def test_what_is_expected_can_be_read_and_says_where_it_comes_from(name: str) -> None:
    modes = {"smoke", "full", *(f"{mode}/{preset}" for mode in ("smoke", "full") for preset in experiments.PRESETS)}
    assert set(EXPECTED[name]) <= modes
    for mode, preset in itertools.product(("smoke", "full"), experiments.PRESETS):
        entries = expectations(EXPECTED, name, mode, preset)
        assert any(entry.demands() for entry in entries), f"{name} {mode}/{preset} demands nothing"
        assert all(entry.source for entry in entries)
        assert len({entry.key for entry in entries}) == len(entries)


class _Begun(Exception):
    """The parts of an experiment were asked for."""


@pytest.mark.parametrize("mode", ["smoke", "full"])
@pytest.mark.parametrize("preset", experiments.PRESETS)
@pytest.mark.parametrize("name", NAMES)
def test_settings_are_plain_json(
    name: str, preset: str, mode: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(parts: Any, *, settings: Any, **_: Any) -> Any:
        json.dumps(settings)
        raise _Begun

    module = experiments.find(name).load()
    monkeypatch.setattr(module, "run_parts", begin)
    data = request.getfixturevalue("data_folder") if name in NEEDS_DATA else None
    refused = name == "cifar" and (mode, preset) == ("full", "paper") and not torch.cuda.is_available()
    with pytest.raises(DataError if refused else _Begun):
        module.run(Request(mode, data=data, preset=preset))


def test_nothing_is_expected_of_experiments_that_do_not_exist() -> None:
    assert set(EXPECTED) <= set(NAMES)


# ------------------------------------------------------------------------------------------------ results, verdicts


@given(st.lists(FINITE, min_size=2, max_size=20))
def test_values_are_summed_up_as_numpy_does(values: list[float]) -> None:
    found = average(values)
    scale = max(map(abs, values), default=0.0) + 1e-300
    assert found.n == len(values)
    assert found.value == pytest.approx(np.mean(values), abs=1e-9 * scale)
    assert found.error == pytest.approx(np.std(values, ddof=1) / math.sqrt(len(values)), abs=1e-9 * scale)


def test_one_repetition_has_no_error_and_none_is_refused() -> None:
    assert average([3.0]) == Value(3.0, None, 1)
    with pytest.raises(DataError, match="0 repetitions"):
        average([])


def test_a_paired_difference_does_not_see_what_both_share() -> None:
    found = paired_difference([1.0, 11.0, 101.0], [0.0, 10.0, 100.0])
    assert (found.value, found.error) == (1.0, 0.0)


@given(FINITE, FINITE, st.floats(0.0, 1e6), st.floats(0.0, 1e3), st.floats(0.0, 3.0))
def test_a_tolerance_is_a_distance_that_errors_widen(
    found: float, value: float, tolerance: float, error: float, errors: float
) -> None:
    entry = Expectation("key", "source", value, tolerance, errors=errors)
    low, high = value - tolerance - errors * error, value + tolerance + errors * error
    assert entry.holds(Value(found, error, 5)) == (low <= found <= high)


@pytest.mark.parametrize(
    ("bounds", "found", "holds"),
    [
        ({"at_least": 1.0}, 1.0, True),
        ({"at_least": 1.0}, 0.9, False),
        ({"at_most": 1.0}, 1.1, False),
        ({"at_least": 0.0, "at_most": 1.0}, 0.5, True),
        ({"value": 1.0, "tolerance": 0.1, "at_least": 1.0}, 0.95, False),
        ({"at_least": 0.0}, math.nan, False),
    ],
)
def test_bounds_bind(bounds: dict[str, float], found: float, holds: bool) -> None:
    assert Expectation("key", "source", **bounds).holds(Value(found)) == holds


def test_a_demand_on_a_missing_value_fails_and_a_mere_comparison_is_left_out() -> None:
    result = Result("name", "smoke", "default", 0, {"here": Value(2.0, 0.1, 4)})
    verdicts = judge(
        result,
        [
            Expectation("gone", "Table 1", at_least=0.0),
            Expectation("lost", "Table 1", value=1.0),
            Expectation("here", "Table 2", value=1.0),
        ],
    )
    assert [(verdict.expectation.key, verdict.holds) for verdict in verdicts] == [("gone", False), ("here", None)]
    table = layout(verdicts).splitlines()
    assert "missing" in table[1]
    assert "does not hold" in table[1]
    assert "2 ± 0.1 (n = 4)" in table[2]
    assert table[2].endswith("Table 2")


def test_the_expectations_of_a_preset_come_before_those_of_its_mode() -> None:
    table = {"name": {"full": [{"key": "a", "source": "s"}], "full/paper": [{"key": "b", "source": "s"}]}}
    assert [e.key for e in expectations(table, "name", "full", "paper")] == ["b"]
    assert [e.key for e in expectations(table, "name", "full", "default")] == ["a"]
    assert expectations(table, "other", "full", "paper") == ()


def test_what_is_no_result_is_refused() -> None:
    with pytest.raises(DataError, match="not the result of an experiment"):
        Result.from_json({"values": {"a": {"worth": 1.0}}, "notes": []})


# ----------------------------------------------------------------------------------------------------------- parts


def test_a_part_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    done: list[str] = []

    def part(name: str, fail: bool = False) -> Callable[[], dict[str, Any]]:
        def make() -> dict[str, Any]:
            if fail:
                raise KeyboardInterrupt
            done.append(name)
            return {"name": name}

        return make

    with pytest.raises(KeyboardInterrupt):
        run_parts({"a/1": part("a"), "b": part("b", fail=True)}, settings={"seed": 0}, out=tmp_path)
    found, seconds = run_parts({"a/1": part("a"), "b": part("b")}, settings={"seed": 0}, out=tmp_path)
    assert done == ["a", "b"]
    assert found == {"a/1": {"name": "a"}, "b": {"name": "b"}}
    assert seconds >= 0.0
    with pytest.raises(DataError, match=r"other settings \(seed\)"):
        run_parts({"a/1": part("a")}, settings={"seed": 1}, out=tmp_path)


def test_a_file_that_is_no_part_is_refused(tmp_path: Path) -> None:
    io.write_text(tmp_path / "parts" / "a.json", "[1]")
    with pytest.raises(DataError, match="does not hold a part"):
        run_parts({"a": dict}, settings={}, out=tmp_path)
    io.write_text(tmp_path / "parts" / "a.json", "{")
    with pytest.raises(FileError):
        run_parts({"a": dict}, settings={}, out=tmp_path)


# -------------------------------------------------------------------------------------------------------- the tables


def test_a_split_is_a_partition_of_which_a_tenth_is_tested() -> None:
    train, test = uci.split(103, 5)
    assert sorted([*train, *test]) == list(range(103))
    assert len(test) == 10
    assert not np.array_equal(train, uci.split(103, 6)[0])


def test_fits_side_by_side_end_where_fits_one_by_one_do() -> None:
    data = datasets.load("diabetes")
    tables = [(data.X[part], data.y[part]) for part in (slice(0, 150), slice(150, 300))]
    options: dict[str, Any] = {"epochs": 12, "width": 8, "precision": "float64", "structure_from": "elbo"}
    together, alone = ([UnboundedDepthRegressor(random_state=s, **options) for s in (3, 4)] for _ in range(2))
    uci.fit_together(together, tables)
    for one, other, (X, y) in zip(together, alone, tables, strict=True):
        other.fit(X, y)
        np.testing.assert_allclose(one.predict(X), other.predict(X), rtol=1e-6)
        assert one.validation_score_ == pytest.approx(other.validation_score_, rel=1e-6)


def test_the_best_depth_is_chosen_by_validation_rows_not_by_the_test() -> None:
    def scores(validation: float, test: float) -> dict[str, list[float]]:
        return {name: [1.0] for name in uci._SCORES} | {
            "validation": [validation],
            "log_likelihood": [test],
            "scale": [2.0],
        }

    values = uci._compare("t", {"udn": scores(0.0, -0.5), "L2": scores(-1.0, -2.0), "L3": scores(-3.0, 5.0)})
    assert values["t/best_depth"].value == 2.0
    assert values["t/log_likelihood_gained"].value == 1.5
    assert values["t/udn/rmse_original"].value == 2.0


@pytest.mark.slow
def test_the_preset_of_the_paper_fixes_the_noise(smoke: Callable[[str], Result]) -> None:
    result = uci.run(Request("smoke", preset="paper"))
    bound = -0.5 * math.log(2 * math.pi)  # no density with a scale of 1 is higher
    assert result.values["diabetes/udn/log_likelihood"].value < bound
    assert all(verdict.holds for verdict in check_expectations(result)), layout(check_expectations(result))


# -------------------------------------------------------------------------------------------------------- the images


def test_skip_networks_are_trained_again_at_their_structure(data_folder: Path) -> None:
    """Networks with pixels in every layer learn, and are refitted after their structure is frozen."""
    protocol = images.PROTOCOLS["default"]
    short = {**protocol["nets"]["skip"], "epochs": 2, "refit": {**protocol["nets"]["skip"]["refit"], "epochs": 1}}
    settings = {"seed": 0, "rows": 600, "paper": False, **protocol, "nets": {"skip": short}, "draws": 2}
    part = images._part("skip", "mnist", "lrt", settings, data_folder, torch.device("cpu"))
    assert part["scores"]["median/accuracy"] > 0.3
    assert part["curve"][-1]["epoch"] == 2


def test_the_paper_schedule_has_five_hundred_epochs() -> None:
    training = cifar.setup("full", "paper", accelerator=True).training
    rates = {e: 0.1 * schedule(training.schedule, e, 500, 1) for e in (0, 4, 5, 199, 200, 299, 300, 499)}
    expected_rates = [0.01, 0.01, 0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
    assert training.epochs == 500
    assert list(rates.values()) == pytest.approx(expected_rates)


@pytest.mark.slow
@pytest.mark.parametrize("law", [TruncatedPoisson(2.0), None], ids=["bound", "held-out"])
def test_a_training_on_images_that_was_paused_goes_on_to_the_same_bytes(
    data_folder: Path, tmp_path: Path, law: TruncatedPoisson | None
) -> None:
    chosen = cifar.setup("smoke", "default", accelerator=False)
    chosen = dataclasses.replace(chosen, images=40, training=dataclasses.replace(chosen.training, epochs=3))
    rows = cifar._load_images(datasets.load("cifar10", data_folder), chosen, torch.device("cpu"))["deer_car"][0]
    whole = cifar.train(rows, chosen, law, seed=1)
    keeper = Checkpoint(tmp_path, 0.0)
    with pytest.raises(PausedError):
        cifar.train(rows, chosen, law, seed=1, keeper=keeper, stop_at=2)
    resumed = cifar.train(rows, chosen, law, seed=1, keeper=keeper)
    assert resumed.history == whole.history
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


@pytest.mark.slow
def test_an_interrupted_part_goes_on_from_its_checkpoint(
    data_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = cifar.setup("smoke", "default", accelerator=False)
    tiny = dataclasses.replace(small, images=20, training=dataclasses.replace(small.training, epochs=2))
    images = datasets.load("cifar10", data_folder)
    monkeypatch.setattr(cifar, "setup", lambda *_: tiny)
    monkeypatch.setattr(datasets, "load", lambda *_: images)
    whole = cifar.run(Request("full"))
    train, epochs = cifar.train, []

    def interrupted(*given: Any) -> Any:
        return train(*given, stop_at=1)

    def followed(*given: Any) -> Any:
        state = given[-1].load()
        epochs.append(None if state is None else state[1]["epoch"])
        return train(*given)

    monkeypatch.setattr(cifar, "train", interrupted)
    with pytest.raises(PausedError):
        cifar.run(Request("full", out=tmp_path))
    monkeypatch.setattr(cifar, "train", followed)
    assert cifar.run(Request("full", out=tmp_path)).values == whole.values
    assert epochs == [1, None]
    names = sorted(path.name for path in (tmp_path / "parts").iterdir())
    assert names == ["deer_car-held_out-0.json", "deer_car-udn_2-0.json"]


def test_the_preset_of_the_paper_needs_an_accelerator() -> None:
    with pytest.raises(DataError, match="needs a GPU"):
        cifar.setup("full", "paper", accelerator=False)


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_settings_for_accelerators_train_small_networks_without_one(data_folder: Path, preset: str) -> None:
    chosen = cifar.setup("full", preset, accelerator=True)
    training = dataclasses.replace(chosen.training, epochs=2, batch_size=16)
    chosen = dataclasses.replace(
        chosen, tasks=("deer_car",), base=4, stages=(1, 1), images=24, held_out=0.25, training=training
    )
    train, test = cifar._load_images(datasets.load("cifar10", data_folder), chosen, torch.device("cpu"))["deer_car"]
    for law in (cifar._law(chosen, 2.0), cifar._law(chosen, 2), None):
        fitted = cifar.train(train, chosen, law, seed=0)
        scores = cifar.evaluate(fitted, test.take(slice(0, 50)))
        assert all(map(math.isfinite, scores.values()))
        assert (fitted.score is None) == (law is not None)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an accelerator")
@pytest.mark.slow
def test_on_an_accelerator_images_train_in_mixed_precision_and_channels_last(data_folder: Path) -> None:
    chosen = cifar.setup("full", "default", accelerator=True)
    short = dataclasses.replace(chosen.training, epochs=2)
    chosen = dataclasses.replace(chosen, base=16, tasks=("deer_car",), training=short)
    train, test = cifar._load_images(datasets.load("cifar10", data_folder), chosen, torch.device("cuda"))["deer_car"]
    run = cifar.train(train, chosen, TruncatedPoisson(2.0), seed=0)
    normalised = run.model.layers["1"][0](test.x[:4])
    assert normalised.is_contiguous(memory_format=torch.channels_last)
    assert cifar.evaluate(run, test)["accuracy"] > 0.7


# ------------------------------------------------------------------------------------------- the logistic regression


def test_the_best_of_a_group_is_chosen_by_the_bound_not_by_the_truth() -> None:
    def fit(bound: float, *found: int) -> dict[str, Any]:
        return {"bound": bound, "inclusion": [0.9 if j in found else 0.5 for j in range(1, 21)]}

    groups = [[fit(-3.0, *logistic.SUPPORT), fit(-2.0, 1, 2)], [fit(-1.0), fit(-4.0, *range(1, 21))]]
    values = logistic._summarise("m", groups)
    assert [values[f"m/{s}"].value for s in ("tpr", "fpr", "bound")] == pytest.approx([19 / 36, 3 / 11, -2.5])
    assert [values[f"m*2/{s}"].value for s in ("tpr", "fpr", "bound")] == pytest.approx([1 / 18, 1 / 22, -1.5])
    assert (values["m/share/x2"].value, values["m*2/share/x3"].value) == (0.5, 0.0)


def test_regenerated_responses_have_the_stored_support_and_rate(data_folder: Path) -> None:
    found = datasets.load("lbbnn_logistic", data_folder)
    assert tuple(logistic._COEFFICIENTS) == logistic.SUPPORT
    drawn = [logistic.regenerate_responses(found.X, seed) for seed in range(20)]
    flips = [np.mean(y != found.y) for y in drawn]
    # rows with logits far from 0 have one response; two draws differ where they are near
    assert max(flips) < 0.04
    assert np.mean(drawn) == pytest.approx(found.y.mean(), abs=0.01)
    assert not np.array_equal(drawn[0], drawn[1])


def test_a_case_is_a_block_of_rows_and_its_logits_are_those_of_the_rows(data_folder: Path) -> None:
    found = datasets.load("lbbnn_logistic", data_folder)
    x = logistic._standardise(found.X, 6)
    np.testing.assert_array_equal(x[:, :6], found.X[:, :6])
    np.testing.assert_allclose(x[:, 6:].std(0, ddof=1), 1.0)
    rows = logistic._rows(x, found.y.astype(np.float64), 400)
    model = logistic.network(None, logistic.PROTOCOLS["paper"], seed=0).eval().set_prediction("average", use_means=True)
    weight, bias = model.sparse_layers()[0][1].mean_weights()
    whole = torch.tensor(x).float() @ weight[0] + bias
    torch.testing.assert_close(model.draw(rows.x).f[0], whole.reshape(5, 400))
    assert torch.equal(rows.y.flatten(), torch.tensor(found.y).float())


# ----------------------------------------------------------------------------------------------------- the sequences


def test_rows_of_an_image_are_the_steps_of_a_sequence() -> None:
    whole = sequences.ImageRows(side=4, outputs=3, width=8)
    plain = SequenceTransformer(4, 3, 4, tokens=False, width=8, hidden=16)
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    ours, theirs = [], []
    for blocks, kept in ((whole, ours), (plain, theirs)):
        with seeded_globals(0):
            kept += [blocks.layer(1), blocks.head(1)]
    h = theirs[0](x.reshape(5, 4, 4))
    torch.testing.assert_close(ours[0](x), h)
    torch.testing.assert_close(ours[1](h), theirs[1](h))


# ------------------------------------------------------------------------------------------------------ the clusters


def test_clusters_have_the_covariances_that_a_sampler_by_singular_values_draws_from() -> None:
    printed = np.array([[[6, -1], [-1, 3.5]], [[0, 3], [3, 0]], [[-3, 4], [-5, 1]], [[0, 5], [4, 2]], [[0, 9], [9, 0]]])
    for matrix, covariance in zip(printed, clusters.law().covariance_matrix.numpy(), strict=True):
        _, singular, right = np.linalg.svd(matrix)
        np.testing.assert_allclose(covariance, right.T @ np.diag(singular) @ right, atol=1e-4)


def test_cases_are_drawn_from_the_clusters_that_bayes_rule_knows() -> None:
    count = 20_000
    x, y = clusters.sample(count, torch.Generator().manual_seed(0))
    law = clusters.law()
    for k in range(5):
        own = x[y == k]
        spread = law.covariance_matrix[k]
        error = spread.diagonal().sqrt() / count**0.5
        assert ((own.mean(0) - law.mean[k]).abs() < 4.5 * error).all()
        torch.testing.assert_close(own.mT.cov(), spread, rtol=0.06, atol=0.2)
    density = [stats.multivariate_normal(law.mean[k], law.covariance_matrix[k]).pdf(x[:50]) for k in range(5)]
    share = np.stack(density, 1) / np.sum(density, 0)[:, None]
    np.testing.assert_allclose(clusters.posterior(x[:50]).exp(), share, atol=1e-12)


def test_training_cases_fill_the_unit_square_and_bayes_rule_follows() -> None:
    cases = clusters._Cases(size=10, repetition=0, seed=0, tests=4)
    assert cases.train.x.aminmax(dim=0).min.tolist() == [0.0, 0.0]
    assert cases.train.x.aminmax(dim=0).max.tolist() == [1.0, 1.0]
    raw = cases.low + (cases.high - cases.low) * cases.test
    torch.testing.assert_close(cases.posterior(cases.test), clusters.posterior(raw))


def test_confidence_is_that_of_the_middle_case() -> None:
    probs = torch.tensor([[0.9, 0.1], [0.3, 0.7], [0.4, 0.6], [0.2, 0.8]], dtype=torch.float64)
    scores = clusters._score_labels(probs.log(), torch.tensor([0, 0, 1, 1]))
    assert (scores["accuracy"], scores["confidence"]) == (0.75, pytest.approx(0.8))
    assert scores["log_likelihood"] == pytest.approx(np.mean(np.log([0.9, 0.3, 0.6, 0.8])))


# ---------------------------------------------------------------------------------------------------- the command


@IN_CLONE
def test_the_list_needs_no_torch_and_names_every_experiment() -> None:
    code = (
        "import sys; from fathomless.app.cli import main; assert main(['reproduce', '--list']) == 0; "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == NAMES


@IN_CLONE
@pytest.mark.slow
def test_the_command_finds_the_experiments_of_its_clone_from_any_folder(tmp_path: Path) -> None:
    path = dict(os.environ, PYTHONPATH=str(Path(experiments.__file__).parents[1] / "src"))
    words = [sys.executable, "-m", "fathomless", "reproduce", "landing", "--out", "out"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path, env=path)
    assert done.returncode == 0, done.stderr
    assert "holds" in done.stdout
    assert (tmp_path / "out" / "result.json").exists()


@pytest.mark.parametrize("words", [["--list"], ["chefs"], []])
def test_an_installed_package_says_where_experiments_are_run(words: list[str], tmp_path: Path) -> None:
    source = Path(experiments.__file__).parents[1] / "src" / "fathomless"
    shutil.copytree(source, tmp_path / "fathomless", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "experiments").mkdir()  # of somebody else
    done = subprocess.run(
        [sys.executable, "-m", "fathomless", "reproduce", *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=dict(os.environ, PYTHONPATH=str(tmp_path)),
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "in a clone of its repository" in done.stderr
    assert "pip install --editable" in done.stderr


@IN_CLONE
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no NAME was given"),
        (["moon"], "there is no experiment 'moon'"),
        (["uci", "--preset", "best"], "invalid choice"),
        (["uci", "--seed", "-1"], "a whole number"),
    ],
)
def test_the_command_refuses_what_it_does_not_know(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["reproduce", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_mode_that_does_not_exist_is_refused() -> None:
    with pytest.raises(DataError, match="mode='whole'"):
        reproduce("uci", mode="whole")


class _Fake:
    """An experiment that finds one value."""

    found = 1.0

    def run(self, request: Request) -> Result:
        return Result("uci", request.mode, request.preset, request.seed, {"x": Value(self.found)}, notes=("a note",))

    def figure(self, result: Result) -> Any:
        return plots.figure()[0]


@IN_CLONE
@pytest.mark.parametrize(("found", "code"), [(1.0, 0), (2.0, 1)])
def test_the_exit_code_says_whether_expectations_hold(
    found: float,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake = _Fake()
    fake.found = found
    monkeypatch.setattr(experiments.Experiment, "load", lambda self: fake)
    table = {"uci": {"full/paper": [{"key": "x", "at_most": 1.5, "source": "Figure 9"}]}}
    monkeypatch.setattr("experiments.reproduce.io.read_json", lambda path: table)
    out = tmp_path / "out"
    words = ["reproduce", "uci", "--full", "--preset", "paper", "--out", str(out), "--seed", "7"]
    assert cli.main(words) == code
    said = capsys.readouterr()
    assert "Figure 9" in said.out
    assert ("does not hold" in said.out) == bool(code)
    assert "a note" in said.err
    kept = json.loads((out / "result.json").read_text())
    assert (kept["seed"], kept["preset"], kept["mode"]) == (7, "paper", "full")
    assert (out / "figure.svg").read_text().startswith("<svg")


def test_spirals_end_when_every_network_is_done_early() -> None:
    quick = dataclasses.replace(spiral.PROTOCOLS["default"], epochs=400, learning_rate=0.02)
    cells = [(0, 0), (0, 1)]
    found = spiral.train("L2", quick, cells, rows=128, early=True)
    assert [one["epochs"] < 400 and one["rotation"] == 0 for one in found] == [True, True]
