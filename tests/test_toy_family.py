"""A family of another package, registered by an entry point, through every public door: no file of ours knows it."""

import csv
import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import fathomless
from commands import Call
from fathomless.app import runs
from fathomless.app.diagnose import diagnose
from fathomless.families import registry
from fathomless.posterior.distributions import ContinuousPredictive
from fathomless.system import io
from fathomless.system.errors import DataError
from installed import installed
from toy_family import FAMILY, ToyClassifier, ToyDensity, ToyRegressor

Array = npt.NDArray[Any]
Shell = Callable[..., "subprocess.CompletedProcess[str]"]

HERE = Path(__file__).parent
SHORT: dict[str, Any] = {"epochs": 60, "learning_rate": 0.02, "random_state": 0}


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install the package of the family; return where."""
    home = tmp_path / "site"
    home.mkdir()
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.syspath_prepend(str(installed(home, toy="toy_family:FAMILY")))
    return home


@pytest.fixture
def shell(toy: Path, tmp_path: Path) -> Shell:
    """The command line in a process of its own, where the package is installed."""
    places = [toy, HERE, Path(fathomless.__file__).parents[1]]
    path = os.pathsep.join([*map(str, places), os.environ.get("PYTHONPATH", "")])

    def run(*words: Any) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "fathomless.app.cli", *map(str, words)]
        return subprocess.run(
            command, capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}
        )

    return run


def quadratic(n: int = 200, signal: float = 1.0, seed: int = 0) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 1))
    return X, signal * (X[:, 0] ** 2 - 0.5 * X[:, 0]) + 0.3 * rng.normal(size=n)


def labelled() -> tuple[Array, Array]:
    X, y = quadratic()
    return X, np.array(["low", "high"])[(y > np.median(y)).astype(int)]


# ------------------------------------------------------------------------------------------- Python


def test_the_registry_finds_the_family_after_those_of_the_library(toy: Path) -> None:
    found = registry.families()
    assert list(found) == [*(family.name for family in registry.BUILT_IN), "toy"]
    assert found["toy"] is FAMILY
    assert {task: registry.estimator_class(place) for task, place in FAMILY.tasks.items()} == {
        "classification": ToyClassifier,
        "regression": ToyRegressor,
        "density": ToyDensity,
    }
    assert registry.family_of("ToyDensity") is registry.family_of(ToyRegressor()) is FAMILY
    assert {"max_degree", "weight_width", "structure_rate", "noise"} <= set(registry.options(FAMILY, "regression"))
    assert "noise" not in registry.options(FAMILY, "classification")
    assert "weight_draws" not in registry.options(FAMILY, "regression")


def test_without_its_package_there_is_no_such_family(tmp_path: Path) -> None:
    assert "toy" not in registry.families()
    with pytest.raises(DataError, match="belongs to no registered family"):
        registry.family_of(ToyRegressor())


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_it_is_fitted_predicted_split_saved_and_loaded(task: str, toy: Path, tmp_path: Path) -> None:
    X, y = quadratic() if task == "regression" else labelled()
    fitted = registry.estimator_class(FAMILY.tasks[task])(**SHORT).fit(X, y)
    p = fitted.predict_dist(X)
    split = p.uncertainty()
    total = p.variance if isinstance(p, ContinuousPredictive) else p.entropy()
    torch.testing.assert_close(split.noise + split.structure, total)
    assert (split.weights == 0).all()
    assert split.structure.mean() > 0
    assert fitted.score(X, y) > 0.5  # a share of the variance, or of the rows
    loaded = fathomless.load(fitted.save(tmp_path / "saved"))
    assert type(loaded) is type(fitted)
    assert np.array_equal(loaded.predict(X), fitted.predict(X))
    assert loaded.structure_ == fitted.structure_
    assert loaded.get_params()["max_degree"] == 4


def test_a_density_of_rows_without_inputs_is_fitted_sampled_saved_and_loaded(toy: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = np.array([3.0, -1.0]) + np.array([2.0, 0.1]) * rng.normal(size=(400, 2))
    fitted = ToyDensity(**SHORT).fit(X)
    normal = -0.5 * math.log(2.0 * math.pi) * 2 - math.log(2.0 * 0.1) - 1.0  # − the entropy of the law of the rows
    # the mean of 400 terms of variance ½ · 2, and what 60 steps leave undone
    assert fitted.score(X) == pytest.approx(normal, abs=4.0 / math.sqrt(400) + 0.1)
    drawn = fitted.sample(4000)
    np.testing.assert_allclose(drawn.mean(0), X.mean(0), atol=0.2 * 2.0)
    assert drawn.std(0)[0] / drawn.std(0)[1] == pytest.approx(20.0, rel=0.2)
    assert all(weight.shape == (1, 2) for weight in fitted.model_.maps)
    loaded = fathomless.load(fitted.save(tmp_path / "saved"))
    assert np.array_equal(loaded.score_samples(X), fitted.score_samples(X))


@pytest.mark.parametrize("kind", [ToyClassifier, ToyRegressor, ToyDensity])
def test_it_has_a_page_with_its_own_words(kind: type, toy: Path, tmp_path: Path) -> None:
    X, y = labelled() if kind is ToyClassifier else quadratic()
    fitted = kind(**SHORT).fit(X, None if kind is ToyDensity else y)
    page = runs.page(fitted.save(tmp_path / "saved"))
    assert "Probability of each degree" in page
    assert "The degree of the polynomial." in page
    assert fitted.structure_.summary[1:] in page.replace("\N{NO-BREAK SPACE}", " ")
    assert "On the Degrees of Polynomials" in page
    assert "max_degree" in page


def test_it_is_examined_by_its_own_rules_beside_those_of_all(toy: Path) -> None:
    X, y = quadratic()
    narrow = ToyRegressor(**{**SHORT, "max_degree": 1, "epochs": 30}).fit(X, 5.0 * X[:, 0])
    titles = [finding.title for finding in diagnose(narrow, [], rows=len(X))]
    assert "The degree is at its bound" in titles
    assert "Short training" in titles
    advice = next(finding for finding in diagnose(narrow, [], rows=len(X)) if "bound" in finding.title)
    assert "max_degree (now 1)" in advice.remedy
    free = ToyRegressor(**SHORT).fit(X, y)
    assert "The degree is at its bound" not in [finding.title for finding in diagnose(free, [], rows=len(X))]


def test_its_papers_are_cited_with_all_others_and_alone(toy: Path) -> None:
    assert registry.references("toy") == (registry.references()[0], *FAMILY.papers)
    assert registry.references()[-1] == FAMILY.papers[0]


def test_what_the_family_lacks_is_refused_by_name(toy: Path) -> None:
    with pytest.raises(DataError, match=r"PolynomialMixture, which has no .*Mergeable"):
        ToyRegressor(**SHORT, n_restarts=2).fit(*quadratic())
    with pytest.raises(TypeError, match="structure_optimizer"):
        ToyRegressor(structure_optimizer="natural")


def test_a_folder_whose_degree_was_altered_is_refused(toy: Path, tmp_path: Path) -> None:
    folder = ToyRegressor(**SHORT).fit(*quadratic()).save(tmp_path / "saved")
    saved = io.load(folder, kinds={"ToyRegressor"})
    meta = {**saved.meta, "options": {**saved.meta["options"], "max_degree": 7}}
    io.save(folder, kind="ToyRegressor", tensors=saved.tensors, meta=meta)
    with pytest.raises(fathomless.system.errors.FileError, match="maximum degree is 4, but max_degree=7"):
        fathomless.load(folder)


# ------------------------------------------------------------------------------------------- what it finds


@pytest.mark.parametrize("seed", range(3))
def test_the_degree_of_a_planted_quadratic_is_found(seed: int) -> None:
    """A lower degree loses hundreds of nats; a superfluous coefficient gains ½ on average and costs log(s/τ) − ½."""
    X, y = quadratic(seed=seed)
    fitted = ToyRegressor(epochs=800, learning_rate=0.02, validation_fraction=0.0, random_state=seed).fit(X, y)
    posterior = dict(zip(fitted.structure_.names, fitted.structure_.probabilities, strict=True))
    assert max(posterior, key=posterior.__getitem__) == "2"
    assert posterior["0"] + posterior["1"] < 0.01
    assert fitted.score(X, y) > 0.9
    assert "degree 2" in fitted.structure_.summary


@pytest.mark.parametrize("seed", range(3))
def test_without_a_signal_the_degree_does_not_grow(seed: int) -> None:
    """The law starts uniform, with mean 2, and pays for every coefficient that says nothing."""
    X, y = quadratic(signal=0.0, seed=seed)
    fitted = ToyRegressor(epochs=800, learning_rate=0.02, validation_fraction=0.0, random_state=seed).fit(X, y)
    path = [row["mean_degree"] for row in fitted.history_]
    assert fitted.structure_.probabilities[0] == max(fitted.structure_.probabilities)
    assert path[-1] < 1.0 < path[0] <= 2.0


# ------------------------------------------------------------------------------------------- the command line


@pytest.mark.slow
def test_the_command_line_fits_predicts_evaluates_reports_and_cites(
    shell: Shell, toy: Path, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = quadratic(240)
    for name, part in (("data.csv", slice(0, 200)), ("new.csv", slice(200, 240))):
        lines = [f"{a:.6f},{b:.6f}" for a, b in zip(X[part, 0], y[part], strict=True)]
        (tmp_path / name).write_text("\n".join(["x,y", *lines]) + "\n", encoding="utf-8")
    train = ("--structure", "toy", "--max-degree", "3", "--epochs", "200", "--learning-rate", "0.02")
    done = shell("fit", "data.csv", "--target", "y", *train, "--out", "run")
    assert (done.returncode, done.stderr.count("error")) == (0, 0), done.stderr
    assert "degree: most likely degree 2" in done.stdout
    manifest = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert manifest["estimator"] == "ToyRegressor"
    assert manifest["options"] == {"max_degree": 3, "epochs": 200, "learning_rate": 0.02}

    monkeypatch.chdir(tmp_path)
    assert call("predict", "run", "new.csv", "--out", "predicted.csv").code == 0
    with (tmp_path / "predicted.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert np.corrcoef([float(row["mean"]) for row in rows], y[200:])[0, 1] > 0.9
    for row in rows:
        parts = [float(row[f"variance_{name}"]) for name in ("noise", "weights", "structure")]
        assert sum(parts) == pytest.approx(float(row["std"]) ** 2, rel=1e-6)
        assert parts[1] == 0.0

    said = call("evaluate", "run", "new.csv", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["scores"]["r2"]["value"] > 0.9

    assert call("report", "run", "--out", "page.html").code == 0
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Probability of each degree" in page
    assert page == (tmp_path / "run" / "report.html").read_text(encoding="utf-8") or "new.csv" in page

    said = call("cite", "run")
    assert said.code == 0, said.err
    assert [line.partition(".")[0] for line in said.out.splitlines()][-1] == "The toy developers"
    assert "On the Degrees of Polynomials" in said.out
    assert "Infinitely Deep" not in said.out  # of this family alone


def test_help_names_the_family_and_its_options(toy: Path, call: Call) -> None:
    assert "toy a polynomial of the degree that the data ask for" in " ".join(call("fit", "--help").out.split())
    said = " ".join(call("fit", "--help-all").out.split())
    assert "--max-degree N Maximum degree M (toy: 4)" in said
    assert "--weight-width X" in said


def test_the_command_line_refuses_options_that_the_family_has_not(toy: Path, call: Call, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("x,y\n" + "".join(f"{i},{i % 7}.5\n" for i in range(40)), encoding="utf-8")
    fit = ("fit", tmp_path / "data.csv", "--target", "y", "--out", tmp_path / "run")
    said = call(*fit, "--structure", "toy", "--weight-draws", "3")
    assert said.code == 2
    assert "--structure toy does not have" in said.err
    said = call(*fit, "--structure", "depth", "--max-degree", "3")
    assert said.code == 2
    assert "--structure depth does not have; it is for --structure toy" in said.err


def test_a_classification_goes_through_the_command_line(toy: Path, call: Call, tmp_path: Path) -> None:
    X, y = labelled()
    rows = "".join(f"{a:.6f},{b}\n" for a, b in zip(X[:, 0], y, strict=True))
    (tmp_path / "data.csv").write_text("x,y\n" + rows, encoding="utf-8")
    run = tmp_path / "run"
    said = call("fit", tmp_path / "data.csv", "--target", "y", "--structure", "toy", "--epochs", "60", "--out", run)
    assert said.code == 0, said.err
    assert type(fathomless.load(run)) is ToyClassifier
    assert call("predict", run, tmp_path / "data.csv", "--out", tmp_path / "out.csv").code == 0
    assert call("report", run).code == 0


# ------------------------------------------------------------------------------------------- entry points that are none


@pytest.mark.parametrize(
    ("place", "source", "reason"),
    [
        ("toy_nowhere:FAMILY", "", r"cannot be loaded \(ModuleNotFoundError: .*toy_nowhere"),
        ("toy_broken:FAMILY", "1 / 0", r"cannot be loaded \(ZeroDivisionError: division by zero\)"),
        ("toy_empty:FAMILY", "", r"cannot be loaded \(AttributeError: .*FAMILY"),
        ("toy_number:FAMILY", "FAMILY = 7", "is 7; a Family is allowed"),
        (
            "toy_before:FAMILY",
            "from fathomless.families.family import Family\nfrom fathomless.families.depth import FAMILY as DEPTH\n"
            "FAMILY = Family(name='before', title='', options=DEPTH.options, fitted='a:B')",
            r"cannot be loaded \(DataError: .*name a class of fathomless.estimators.networks.Networks as networks",
        ),
        (
            "toy_flat:FAMILY",
            "from dataclasses import dataclass\nfrom fathomless.estimators.options import CrossFitOptions, LawOptions\n"
            "from fathomless.estimators.options import TableOptions\nfrom fathomless.families.family import Family\n"
            "Flat = dataclass(type('Flat', (CrossFitOptions, LawOptions, TableOptions), {}))\n"
            "FAMILY = Family(name='flat', title='', options=Flat)",
            r"cannot be loaded \(DataError: .*structure_delay, structure_rate beside structure_from.*ELBO now\)",
        ),
        (
            "toy_depth:FAMILY",
            "from fathomless.families.depth import FAMILY",
            r"is Family\(name='depth'.*; a Family is allowed, under another name than depth, sparse",
        ),
    ],
    ids=[
        "no module",
        "a module that fails",
        "no such name",
        "no family",
        "a family of before",
        "flat options",
        "a taken name",
    ],
)
def test_an_entry_point_that_brings_no_new_family_is_refused(
    place: str, source: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """By Python and by the command line, in one line that names the entry point."""
    module = place.partition(":")[0]
    if module != "toy_nowhere":
        (tmp_path / f"{module}.py").write_text(source + "\n", encoding="utf-8")
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(str(installed(tmp_path, toy=place)))
    with pytest.raises(DataError, match=rf"the entry point 'toy' = '{place}' of fathomless.families {reason}"):
        registry.families()
    said = call("fit", "--help")
    assert said.code == 2
    assert said.err.startswith("fathomless: error: the entry point 'toy'")
    assert said.err.count("\n") == 1
    sys.modules.pop(module, None)


def test_two_packages_cannot_bring_one_name(tmp_path: Path, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed(tmp_path, name="other", second="toy_family:FAMILY")))
    with pytest.raises(DataError, match=r"under another name than .*toy"):
        registry.families()


@pytest.mark.parametrize("name", ["_infer", "_warn", "_share_held_out", "_set_predictions", "_sampler"])
def test_a_family_with_methods_of_earlier_versions_is_told_what_to_do(name: str) -> None:
    with pytest.raises(
        DataError, match=f"Before defines {name}, .*earlier versions.*(_strategy|Fitted|_split_plan|_build)"
    ):
        type("Before", (ToyRegressor,), {name: lambda self: None})
