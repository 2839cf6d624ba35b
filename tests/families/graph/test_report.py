"""The page, the findings and the pictures of posteriors over graphs, and the command line of a density."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest
import torch
from sklearn.datasets import load_iris

from commands import Call
from fathomless import IndianChefsClassifier, IndianChefsDensity
from fathomless.app import runs
from fathomless.app.diagnose import diagnose
from fathomless.app.page import report as pages
from fathomless.estimators.densities import evaluate_density
from fathomless.estimators.evaluation import Evaluation, evaluate
from fathomless.families.graph import plots, report
from fathomless.families.graph.graphs import Graph
from fathomless.families.registry import load
from fathomless.system.errors import DataError, DataWarning

# fits are short on purpose
pytestmark = [
    pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore:.*fewer than 50 effective components:fathomless.system.errors.DataWarning"),
]

SHORT: dict[str, Any] = {"chains": 2, "sweeps": 80, "states": 20, "engine": "numpy", "random_state": 0}
X, Y = load_iris(return_X_y=True)


@pytest.fixture(scope="module")
def density() -> IndianChefsDensity:
    return IndianChefsDensity(**SHORT).fit(X)


@pytest.fixture(scope="module")
def classifier() -> IndianChefsClassifier:
    return IndianChefsClassifier(**SHORT).fit(X, Y)


def test_the_page_shows_sizes_columns_a_network_and_the_chains(
    density: IndianChefsDensity, classifier: IndianChefsClassifier
) -> None:
    for estimator in (density, classifier):
        section = report.page(estimator)
        groups = {group.heading: group for group in section.groups}
        assert {"Graph size", "Columns", "Sampled network", "Chains"} <= set(groups)
        assert len(groups["Graph size"].figures) == 2
        table = groups["Chains"].table
        assert table is not None
        assert len(table.rows) == 2
        assert all("<svg" in figure.svg for group in section.groups for figure in group.figures)
        assert len(section.learning) == 2
    columns = report.page(classifier).groups[1].table
    assert columns is not None
    relevance = classifier.relevance()
    assert [row[0] for row in columns.rows] == sorted(relevance, key=lambda name: -relevance[name]["used"])


def test_a_diagnosis_of_what_never_changed_says_constant(density: IndianChefsDensity) -> None:
    rows = {row[0]: row for row in report.page(density).groups[-1].table.rows}  # type: ignore[union-attr]
    constant = [name for name, one in density.diagnostics_.items() if one.constant]
    assert all(rows[name.replace("_", " ")][2] == "constant" for name in constant)


def test_findings_tell_of_modes_and_bounds(density: IndianChefsDensity) -> None:
    bounded = IndianChefsDensity(**SHORT, max_hidden=1).fit(X)
    titles = {finding.title for finding in diagnose(bounded, [])}
    assert "The number of hidden units is at its limit" in titles
    apart = density.weighed_by("all")
    chains = tuple({**chain, "log_likelihood": -2.0 * place} for place, chain in enumerate(apart.chains_))
    apart.fit_diagnostics_ = replace(apart.fit_diagnostics_, chains=chains)
    found = {finding.title: finding for finding in diagnose(apart, [])}
    assert found["Chains are in different modes"].severity == "advice"
    assert "1 of 2 are within 0.16" in found["Chains are in different modes"].detail


def test_a_density_is_evaluated_beside_a_normal_law(density: IndianChefsDensity, tmp_path: Path) -> None:
    found = evaluate_density(density, X, name="training rows", targets=["a", "b", "c", "d"])
    assert found.scores["log_likelihood"].value == pytest.approx(density.score(X))
    moments = torch.distributions.MultivariateNormal(torch.tensor(X.mean(0)), torch.tensor(np.cov(X.T, bias=True)))
    expected = moments.log_prob(torch.tensor(X)).mean().item()
    assert found.baseline["log_likelihood"].value == pytest.approx(expected, abs=1e-4)
    again = Evaluation.load(found.save(tmp_path / "evaluation"))
    assert again.scores == found.scores
    assert again.task == "density"
    with (
        pytest.raises(DataError, match="all 3 rows are outside the support"),
        pytest.warns(DataWarning, match="outside"),
    ):
        evaluate_density(density, np.full((3, 4), 99.0), name="far", targets=["a", "b", "c", "d"])


def test_no_share_of_structure_is_shown_where_none_can_be_told(
    classifier: IndianChefsClassifier, tmp_path: Path
) -> None:
    """In the arrays of an evaluation, on the page, and in columns of predictions."""
    found = evaluate(classifier, X, Y, name="training rows")
    again = Evaluation.load(found.save(tmp_path / "evaluation"))
    assert {"noise", "networks"} <= again.arrays.keys()
    assert not {"weights", "structure", "between", "within"} & again.arrays.keys()
    assert np.isfinite(again.arrays["networks"]).all()
    (group,) = pages._uncertainty(again)
    assert group.figures == []
    assert group.table is not None
    assert [row[0] for row in group.table.rows] == ["noise", "networks", "total"]
    assert "are one part (networks)" in group.table.caption
    columns = classifier.predict_dist(X).columns()
    assert [name for name in columns if name.startswith("entropy")] == ["entropy_noise"]


# ------------------------------------------------------------------------------------------- pictures


def test_pictures_refuse_what_cannot_be_drawn() -> None:
    with pytest.raises(DataError, match="no counts"):
        plots.counts({})
    with pytest.raises(DataError, match="square"):
        plots.dependence(np.ones((2, 3)), ["a", "b"])
    large = Graph.of([0.0] * 41, [], observed=41)
    with pytest.raises(DataError, match="41 units"):
        plots.graph(large, np.zeros((41, 41)), [])


def test_edges_are_drawn_once_each_with_the_sign_of_their_weight() -> None:
    network = Graph.of([0, 0, 0.3, 0.8], [(2, 0), (2, 1), (3, 2), (3, 1)], observed=2)
    weights = np.zeros((4, 4))
    weights[2, 0], weights[2, 1], weights[3, 2], weights[3, 1] = 1.0, -2.0, 0.5, 0.1
    ax = plots.graph(network, weights, ["x", "y"])
    arrows = [child for child in ax.texts if child.arrow_patch is not None]  # type: ignore[attr-defined]
    assert len(arrows) == 4
    assert sum(a.arrow_patch.get_linestyle() in ("--", "dashed") for a in arrows) == 1  # type: ignore[attr-defined]
    assert [text.get_text() for text in ax.texts if text.get_text()] == ["x", "y"]


# ------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    head = "length,width,petal,wing,key\n"
    rows = "".join(",".join(map(str, [*row, f"r{i}"])) + "\n" for i, row in enumerate(X.tolist()))
    (tmp_path / "flowers.csv").write_text(head + rows, encoding="utf-8")
    yield tmp_path
    torch.set_num_threads(1)


WORDS = ["--task", "density", "--structure", "graph", "--chains", "2", "--sweeps", "60", "--states", "10"]


def test_a_density_is_fitted_scored_and_drawn_from(call: Call, workplace: Path) -> None:
    said = call("fit", "flowers.csv", *WORDS, "--engine", "numpy", "--key", "key", "--out", "run")
    assert said.code == 0, said.err
    lines = said.out.splitlines()
    assert lines[:2] == [
        "flowers.csv: density on 4 columns, 150 rows",
        "Training rows (too optimistic for new rows):",
    ]
    assert lines[2].startswith("  mean log density in nats ")
    assert "\n\ngraph: " in said.out
    assert (workplace / "run" / "report.html").is_file()
    told = (workplace / "run" / "report.html").read_text(encoding="utf-8")
    assert "Density of 4 columns and 150 rows." in told
    assert "Sample rows: " in told
    assert "<dt>Target</dt>" not in told  # a density has none
    assert told.count("<dt>Column</dt>") == 4
    assert call("predict", "run", "flowers.csv", "--out", "scored.csv").code == 0
    scored = pyarrow.csv.read_csv("scored.csv").to_pydict()
    assert list(scored) == ["key", "log_density", "monte_carlo_error"]
    fitted = load("run")
    assert isinstance(fitted, IndianChefsDensity)
    np.testing.assert_allclose(scored["log_density"], fitted.score_samples(runs_table()), rtol=1e-12)
    evaluated = call("evaluate", "run", "flowers.csv")
    assert evaluated.code == 0, evaluated.err
    assert "log likelihood" in evaluated.out
    assert (
        call("sample", "run", "--rows", "7", "--seed", "3", "--out", "drawn.csv").out == "Wrote 7 rows to drawn.csv\n"
    )
    drawn = pyarrow.csv.read_csv("drawn.csv").to_pydict()
    assert list(drawn) == ["length", "width", "petal", "wing"]
    np.testing.assert_allclose(np.column_stack(list(drawn.values())), fitted.sample(7, random_state=3), rtol=1e-12)
    assert len(runs.evaluations("run")) == 2


def runs_table() -> Any:
    return pyarrow.csv.read_csv("flowers.csv").drop_columns(["key"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["flowers.csv"], "no --target was given"),
        (
            ["flowers.csv", "--task", "density"],
            "and is for classification and regression; give --structure graph",
        ),
        (["flowers.csv", "--target", "wing", *WORDS], "a density has no target; omit it"),
        (["flowers.csv", *WORDS, "--stream"], "a density needs all rows in memory"),
        (["flowers.csv", "--keep", "key", *WORDS], "column 'key' has the type String; densities need numbers"),
        (["flowers.csv", *WORDS, "--epochs", "3"], "--epochs was given, which --structure graph does not have"),
        (["flowers.csv", *WORDS, "--noise", "1"], "--noise was given, which --structure graph does not have"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_density_has_not_is_refused(call: Call, workplace: Path, words: list[str], message: str) -> None:
    said = call("fit", *words)
    assert said.code == 2
    assert message in said.err


def test_rows_are_drawn_from_densities_alone(call: Call, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "render", lambda page: f"<html>{page.title}</html>\n")
    words = ["--structure", "graph", "--chains", "1", "--sweeps", "40", "--states", "5", "--engine", "numpy"]
    said = call("fit", "flowers.csv", "--target", "wing", "--key", "key", "--out", "run", *words)
    assert said.code == 0, said.err
    assert "rows are sampled from a density" in call("sample", "run").err
    assert call("predict", "run", "flowers.csv", "--out", "told.csv").code == 0
    assert math.isfinite(pyarrow.csv.read_csv("told.csv")["mean"][0].as_py())
