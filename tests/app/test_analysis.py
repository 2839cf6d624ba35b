"""What an analyst asks of a fit: simple models beside it, groups that it misses, what drives it."""

import datetime
import json
import math

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import BayesianRidge
from sklearn.preprocessing import StandardScaler

from commands import Call
from fathomless.app import runs
from fathomless.app.page.analysis import Analysis, analyse
from fathomless.app.page.outcomes import predictions
from fathomless.estimators.contributions import contributions
from fathomless.estimators.evaluation import evaluate
from fathomless.estimators.importance import spread_dependence, spread_importance
from fathomless.system.errors import FileError
from housing import fitted, houses, refused, write
from quick_fits import classifier, regressor

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")
N = 400


@pytest.fixture(scope="module")
def found():
    """A line, with noise that is five times as large in the east, and one wrong row."""
    rng = np.random.default_rng(0)
    x, east = rng.normal(size=N), rng.random(N) < 0.3
    y = x + np.where(east, 1.0, 0.2) * rng.normal(size=N)
    y[7] = 50.0
    X = pd.DataFrame({"x": x, "side": np.where(east, "east", "west"), "idle": rng.normal(size=N)})
    estimator = regressor(epochs=60).fit(X, y)
    held = estimator.held_out_
    rest = np.setdiff1d(np.arange(N), held)
    take = lambda rows: (X.iloc[rows], y[rows])  # noqa: E731
    rows = np.union1d(held, np.arange(0, N, 2))
    return (
        analyse(estimator, take, rows, rest, evaluate(estimator, *take(rows), name="held-out rows")),
        X,
        y,
        rest,
        rows,
    )


def test_a_planted_group_is_told_first(found):
    analysis, *_ = found
    group = analysis.groups[0]
    assert (group.column, group.value) == ("side", "east")
    assert len(analysis.groups) <= 2  # of ten; the ends of a column can be hard for a fit
    assert group.behind.value > 3.0 * group.behind.error
    assert group.miss > 2.0 * group.others
    assert analysis.looked == 10  # four quarters of two columns of numbers, two sides


def test_the_linear_model_beside_it_is_scikit_learns(found):
    analysis, X, y, rest, rows = found
    design = lambda part: np.column_stack([part["x"], (part["side"] == "east") * 1.0, part["idle"]])  # noqa: E731
    scale = StandardScaler().fit(design(X.iloc[rest]))
    model = BayesianRidge().fit(scale.transform(design(X.iloc[rest])), y[rest])
    missed = y[rows] - model.predict(scale.transform(design(X.iloc[rows])))
    assert analysis.peers.scores["linear"]["rmse"].value == pytest.approx(np.sqrt(np.mean(missed**2)), rel=0.02)
    assert analysis.peers.behind["constant"].value > 0.0


@pytest.mark.parametrize("rare", ["defect", "worn"])  # the first and the second of the sorted labels
def test_curves_of_two_classes_are_those_of_the_rarer_one(rare: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 2))
    y = np.where(X[:, 0] > 1.0, rare, "intact")
    first = evaluate(classifier(epochs=2).fit(X, y), X, y, name="rows")
    group = predictions(first).groups[-1]
    assert group.heading == f"Classification as {rare}"
    precision = next(figure for figure in group.figures if figure.caption.startswith("Precision"))
    assert f"which is {100 * np.mean(y == rare):.1f} % of the rows" in precision.svg


def test_simple_models_have_the_weights_of_the_fit() -> None:
    """Noisy rows of a large weight: the weighted errors of the linear model, and its mean lead, are direct ones."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=200)
    weight = np.where(x > 0.5, 9.0, 1.0)
    y = x + np.where(x > 0.5, 3.0, 0.1) * rng.normal(size=200)
    X = pd.DataFrame({"x": x})
    estimator = regressor(epochs=2).fit(X, y, sample_weight=weight)
    rest = np.setdiff1d(np.arange(200), estimator.held_out_)
    rows = np.arange(200)
    take = lambda part: (X.iloc[part], y[part])  # noqa: E731
    first = evaluate(estimator, X, y, name="held-out rows", sample_weight=weight)
    analysis = analyse(estimator, take, rows, rest, first, weight=weight)
    scale = StandardScaler().fit(x[rest, None], sample_weight=weight[rest])
    model = BayesianRidge().fit(scale.transform(x[rest, None]), y[rest], sample_weight=weight[rest])
    missed = y - model.predict(scale.transform(x[:, None]))
    rmse = np.sqrt(np.average(missed**2, weights=weight))
    assert analysis.peers.scores["linear"]["rmse"].value == pytest.approx(rmse, rel=0.02)
    assert rmse > 1.3 * np.sqrt(np.mean(missed**2))  # the errors without weights are smaller
    lead = first.scores["log_likelihood"].value - analysis.peers.scores["constant"]["log_likelihood"].value
    assert analysis.peers.behind["constant"].value == pytest.approx(lead, abs=1e-9)


def test_an_analysis_reads_back_as_it_was(found, tmp_path):
    analysis, *_ = found
    analysis.save(tmp_path / "analysis.json")
    again = Analysis.load(tmp_path / "analysis.json")
    assert again.groups == analysis.groups
    assert (again.odd, again.gaps, again.looked, again.peers) == (
        analysis.odd,
        analysis.gaps,
        analysis.looked,
        analysis.peers,
    )
    assert again.importance.loss.tolist() == analysis.importance.loss.tolist()
    assert [one.mean.tolist() for one in again.dependence] == [one.mean.tolist() for one in analysis.dependence]
    whole = json.loads((tmp_path / "analysis.json").read_text())
    for part, name, value in (
        ("importance", "columns", [1, 2]),
        ("importance", "loss", 0.5),
        ("dependence", "mean", 1),
    ):
        altered = json.loads(json.dumps(whole))
        (altered[part] if part == "importance" else altered[part][0])[name] = value
        (tmp_path / "altered.json").write_text(json.dumps(altered))
        with pytest.raises(FileError, match="is not an analysis of fathomless"):
            Analysis.load(tmp_path / "altered.json")


@pytest.mark.usefixtures("houses_csv")
def test_explain_says_what_drives_a_run(call: Call) -> None:
    fitted(call)
    said = call("explain", "run", "houses.csv", "--column", "colour", "--json")
    assert said.code == 0, said.err
    told = json.loads(said.out)
    losses = [one["loss"] for one in told["importance"]]
    assert losses == sorted(losses, reverse=True)
    assert all(math.isfinite(value) for value in losses)
    assert [one["column"] for one in told["dependence"]] == ["colour"]
    plain = call("explain", "run", "houses.csv")
    assert plain.out.startswith("Permutation importance: decrease of the log-likelihood, nats per row")
    assert plain.out.count("Partial dependence on ") == 3
    refused(call("explain", "run", "houses.csv", "--column", "nothing"), "there is no column 'nothing'")
    refused(call("explain", "run", "houses.csv", "--column", "color"), "'color'; did you mean 'colour'?")


@pytest.mark.usefixtures("houses_csv")
@pytest.mark.parametrize("target", ["price", "grade"])
def test_explain_divides_single_predictions_among_the_columns(call: Call, target: str) -> None:
    fitted(call, target)
    rows = houses(seed=1)
    write("bare.csv", rows.drop_columns(target))
    said = call("explain", "run", "bare.csv", "--row", "3", "--row", "1", "--json")
    assert said.code == 0, said.err
    estimator = runs.load("run")[0]
    X = rows.select([column.name for column in estimator.schema_.columns])
    others = [i for i in range(len(X)) if i not in (0, 2)]
    expected = contributions(estimator, X.take([2, 0]), X.take(others))
    told = json.loads(said.out)["rows"]
    assert [row["row"] for row in told] == [3, 1]
    for i, row in enumerate(told):
        assert row["prediction"] == expected.prediction[i].tolist()
        assert row["average"] == expected.base[i].tolist()
        assert [part["contribution"] for part in row["contributions"]] == expected.values[i].tolist()
        assert [part["lower"] for part in row["contributions"]] == expected.lower[i].tolist()
        cells = [X[name][2 - 2 * i].as_py() for name in X.column_names]
        shown = [str(cell) if isinstance(cell, datetime.date) else cell for cell in cells]
        assert [part["value"] for part in row["contributions"]] == shown
    plain = call("explain", "run", "bare.csv", "--row", "3")
    assert plain.out.startswith("Row 3: price " if target == "price" else "Row 3: probability of ")
    assert all(name in plain.out for name in X.column_names)
    spread = call("explain", "run", "bare.csv", "--row", "3", "--of", "spread")
    assert spread.out.startswith("Row 3: standard deviation of price " if target == "price" else "Row 3: entropy ")
    assert "intervals" not in spread.out
    exact = call("explain", "run", "bare.csv", "--row", "3", "--of", "linear")
    assert exact.out.startswith("Row 3: output for price " if target == "price" else "Row 3: logit of ")
    assert "; intercept " in exact.out
    assert "±" not in exact.out
    (row,) = json.loads(call("explain", "run", "bare.csv", "--row", "3", "--of", "linear", "--json").out)["rows"]
    total = np.sum([part["contribution"] for part in row["contributions"]], 0) + row["intercept"]
    np.testing.assert_allclose(total, row["prediction"])
    refused(call("explain", "run", "bare.csv", "--of", "linear"), "--of linear was given without --row")
    refused(call("explain", "run", "bare.csv", "--row", "9999"), "--row 9999 was given; bare.csv has")
    refused(call("explain", "run", "bare.csv", "--row", "0"), "argument --row: '0' was given; rows are counted from 1")
    refused(call("explain", "run", "bare.csv", "--row", "1", "--column", "colour"), "--column was given with --row")
    write("one.csv", rows.slice(0, 1))
    refused(call("explain", "run", "one.csv", "--row", "1"), "one.csv has no other rows to compare with")


@pytest.mark.usefixtures("houses_csv")
@pytest.mark.parametrize(("target", "measure"), [("price", "standard deviation"), ("grade", "entropy")])
def test_explain_says_what_drives_the_spread_without_targets(call: Call, target: str, measure: str) -> None:
    fitted(call, target)
    rows = houses(seed=1)
    gaps = [None if i < 3 else value for i, value in enumerate(rows[target].to_pylist())]
    write("bare.csv", rows.drop_columns(target))
    write("gaps.csv", rows.set_column(rows.column_names.index(target), target, [gaps]))
    said = call("explain", "run", "bare.csv", "--of", "spread", "--column", "colour", "--json")
    assert said.code == 0, said.err
    assert call("explain", "run", "gaps.csv", "--of", "spread", "--column", "colour", "--json").out == said.out
    told = json.loads(said.out)
    estimator = runs.load("run")[0]
    X = rows.select([column.name for column in estimator.schema_.columns])
    expected = spread_importance(estimator, X)
    assert [one["column"] for one in told["importance"]] == list(expected.columns)
    assert [one["change"] for one in told["importance"]] == expected.change.tolist()
    assert [one["error"] for one in told["importance"]] == expected.error.tolist()
    (curve,) = told["dependence"]
    assert (told["spread"], curve["column"], curve["of"]) == (measure, "colour", [target])
    assert curve["spread"] == spread_dependence(estimator, X, "colour").spread.tolist()
    plain = call("explain", "run", "bare.csv", "--of", "spread")
    assert plain.out.startswith("Importance for the spread: mean absolute change of the ")
    assert plain.out.count("Partial dependence of the spread on ") == 3
    assert plain.out.count(f"average {measure} of {target}") == 3
    refused(call("explain", "run", "bare.csv"), f"bare.csv lacks the columns '{target}'")
    refused(call("explain", "run", "bare.csv", "--of", "spread", "--column", "color"), "did you mean 'colour'?")
    refused(call("explain", "run", "bare.csv", "--of", "noise"), "invalid choice: 'noise'")
