"""Report of an estimator: the page of the command line, its scores, its frame in a notebook, and what is refused."""

import html
import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression

import fathomless
from commands import Call
from fathomless import IndianChefsDensity, SparseBayesRegressor, UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.estimators.evaluation import evaluate
from fathomless.system import io
from fathomless.system.errors import DataError, FileError
from html_tree import Tree

pd = pytest.importorskip("pandas")

pytestmark = pytest.mark.filterwarnings("ignore::fathomless.system.errors.ConvergenceWarning")

N = 90
COMMANDS = {
    "numbers": ["--target", "price", "--cv", "2"],
    "classes": ["--target", "colour", "--cv", "1", "--weight", "copies"],
    "censored numbers": ["--target", "price", "--cv", "1", "--censored", "kind"],
}


def table() -> Any:
    rng = np.random.default_rng(0)
    size, colour = rng.normal(size=N).round(3), rng.choice(["red", "green"], N)
    price = (np.sin(2 * size) + (colour == "red") + 0.1 * rng.normal(size=N)).round(3)
    kind = np.where(np.arange(N) % 7 == 0, "right", "exact")
    return pd.DataFrame({"size": size, "colour": colour, "price": price, "copies": 1 + np.arange(N) % 3, "kind": kind})


def small(kind: Any, **options: Any) -> Any:
    return kind(**{"random_state": 0, "epochs": 6, "width": 4, "cv": 2, **options})


@pytest.fixture(scope="module")
def fitted() -> Any:
    """Return a cross-fitted regressor with its rows."""
    rows = table()
    X, y = rows[["size", "colour"]], rows["price"]
    with warnings.catch_warnings(action="ignore"):
        return small(UnboundedDepthRegressor).fit(X, y), X, y


def plain(page: str) -> str:
    """Return a page without the parts that only a run has: command, file, notes, and texts with its flags."""
    page = re.sub(r"<p><span class=\"lead\">What to do:</span>.*?</p>\n", "", page, flags=re.DOTALL)
    page = re.sub(r"<section id=\"next\".*?</section>", "", page, flags=re.DOTALL)
    page = re.sub(r"<dt>(File|SHA-256)</dt><dd[^\n]*\n", "", page)
    page = re.sub(r"</dl>\n<ul class=\"prose\">.*?</ul>", "</dl>", page, count=1, flags=re.DOTALL)
    return re.sub(r"<pre>.*?</pre>\n", "", page, flags=re.DOTALL)


def lede(page: str) -> str:
    return " ".join(p["text"] for p in Tree(page).all("p") if p["attrs"].get("class") == "lede")


@pytest.mark.parametrize("case", COMMANDS)
def test_the_report_is_the_page_of_the_command_line(
    case: str, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = table().drop(columns=[name for name in ("copies", "kind") if name not in COMMANDS[case]])
    rows.to_csv("rows.csv", index=False)
    words = ["--out", "run", "--epochs", "6", "--width", "4", "--quiet"]
    assert call("fit", "rows.csv", *COMMANDS[case], *words).code == 0
    X = rows.drop(columns=["price" if case != "classes" else "colour", "copies", "kind"], errors="ignore")
    y = rows["colour" if case == "classes" else "price"]
    more = {"sample_weight": rows["copies"]} if case == "classes" else {}
    more |= {"censored": rows["kind"]} if case == "censored numbers" else {}
    expected = Path("run/report.html").read_text(encoding="utf-8")
    found = fathomless.report(fathomless.load("run"), X, y, **more)
    assert plain(found.html) == plain(expected)
    assert len(plain(expected)) > 0.9 * len(expected)
    assert found.html != expected
    assert "rows.csv" not in found.html
    if case == "numbers":
        fresh = small(UnboundedDepthRegressor).fit(X, y)
        assert plain(fathomless.report(fresh, X, y).html) == plain(expected)


def test_new_rows_come_first_with_the_scores_of_evaluate(fitted: Any) -> None:
    estimator, X, y = fitted
    X_new, y_new = X[::-1].reset_index(drop=True)[:40], y[::-1].reset_index(drop=True)[:40] + 1.0
    found = fathomless.report(estimator, X, y, new=(X_new, y_new))
    assert [e.name for e in found.evaluations] == ["new rows", "out-of-fold rows", "training rows"]
    expected = evaluate(estimator, X_new, y_new, name="new rows", targets=["price"])
    assert found.evaluations[0].scores == expected.scores
    own = fathomless.report(estimator, X, y)
    assert [e.scores for e in own.evaluations] == [e.scores for e in found.evaluations[1:]]
    assert found.analysis is not None
    assert found.analysis.rows == "out-of-fold rows"
    assert "New rows: RMSE" in lede(found.html)
    assert "linear model:" in lede(own.html)
    assert "linear model:" not in lede(found.html)  # its scores are those of other rows
    assert any("new rows" in finding.title for finding in found.findings)  # their targets are shifted
    assert not any("new rows" in finding.title for finding in own.findings)


def test_new_rows_alone_have_importance_and_no_simple_models(fitted: Any) -> None:
    estimator, X, y = fitted
    found = fathomless.report(estimator, new=(X[:40], y[:40]))
    assert [e.name for e in found.evaluations] == ["new rows"]
    assert found.evaluations[0].scores == evaluate(estimator, X[:40], y[:40], name="", targets=["y"]).scores
    assert found.analysis is not None
    assert found.analysis.peers is None
    assert found.analysis.importance is not None
    assert set(found.analysis.importance.columns) == {"size", "colour"}
    heads = [h["text"] for h in Tree(found.html).all("h2")]
    assert "Comparison with simple models" not in heads
    assert "Permutation importance and partial dependence" in heads
    text = Tree(found.html).text
    assert f"Regression of price on 2 columns and {N} rows." in lede(found.html)  # of the fit
    assert "The pictures above show the new rows." in text


def test_targets_are_named_as_given(fitted: Any) -> None:
    estimator, X, y = fitted

    def title(y: Any, **more: Any) -> str:
        return str(Tree(fathomless.report(estimator, new=(X[:30], y), **more).html).all("h1")[0]["text"])

    assert title(y[:30]) == "price"
    assert title(y[:30].to_numpy()[:, None]) == "y"  # a column of one target is a target
    assert title(y[:30], targets="€ per m²") == "€ per m²"
    with pytest.raises(DataError, match="one name for each of the 1 target columns"):
        title(y[:30], targets=["a", "b"])


def test_several_targets_and_rows_of_arrays() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, 2))
    y = X + rng.normal(size=(N, 2))
    estimator = small(UnboundedDepthRegressor).fit(X.tolist(), y)
    found = fathomless.report(estimator, X.tolist(), y.tolist())
    assert found.evaluations[0].targets == ("y1", "y2")
    assert Tree(found.html).all("h1")[0]["text"] == "y1, y2"


def test_a_density_is_reported_without_y() -> None:
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 2)), columns=["height", "weight"])
    estimator = IndianChefsDensity(chains=2, sweeps=20, states=4, engine="numpy", random_state=0).fit(X)
    found = fathomless.report(estimator, X, new=(X[:9], None))
    assert [e.name for e in found.evaluations] == ["new rows", "training rows"]
    assert found.evaluations[0].scores["log_likelihood"].value == pytest.approx(estimator.score(X[:9]))
    assert found.analysis is None
    assert "Density of 2 columns and 30 rows." in lede(found.html)
    with pytest.raises(DataError, match="y was given; a density has none"):
        fathomless.report(estimator, X, X)


def test_a_notebook_shows_the_page_in_a_frame_of_its_own(fitted: Any, tmp_path: Path) -> None:
    estimator, X, y = fitted
    found = fathomless.report(estimator, X, y)
    shown = found._repr_html_()
    assert re.fullmatch(r"<iframe [^<>]*></iframe>", shown)
    (page,) = re.findall(r'srcdoc="([^"]*)"', shown)
    assert html.unescape(page).replace('\n<base href="about:srcdoc">', "") == found.html
    assert re.search(r"height: \d+rem", shown)
    assert len(repr(found)) < 2000
    path = found.save(tmp_path / "new" / "page.html")
    assert path.read_text(encoding="utf-8") == found.html
    with pytest.raises(FileError, match="is a folder; give the name of a file"):
        found.save(tmp_path)


def test_links_inside_the_frame_scroll_to_their_sections(fitted: Any, tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright to look at the page")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs chromium to look at the page")
    estimator, X, y = fitted
    notebook = tmp_path / "notebook.html"
    notebook.write_text(f"<p>Before</p>{fathomless.report(estimator, X, y)._repr_html_()}", encoding="utf-8")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--headless", "--no-sandbox", "--disable-gpu"])
        tab = browser.new_page(viewport={"width": 900, "height": 900})
        tab.goto(notebook.as_uri())
        frame = tab.frames[1]
        assert frame.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        frame.locator("nav a", has_text="Scores").click()
        frame.wait_for_function("() => scrollY > 1000", timeout=5000)
        assert frame.locator("h1").inner_text() == "price"
        assert tab.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgba(0, 0, 0, 0)"
        browser.close()


@pytest.mark.parametrize("cv", [1, 2])
def test_the_number_of_rows_is_that_of_the_fit(cv: int, tmp_path: Path) -> None:
    rows = table()
    X, y = rows[["size"]], rows["price"]
    weight = np.ones(N)
    weight[:5] = 0.0  # these rows count too
    estimator = small(UnboundedDepthRegressor, cv=cv).fit(X, y, sample_weight=weight)
    estimator.save(tmp_path / "saved")
    for one in (estimator, fathomless.load(tmp_path / "saved")):
        with pytest.raises(DataError, match=f"X has {N - 1} rows, and the fit was of {N}; give the rows of the fit"):
            fathomless.report(one, X[1:], y[1:])
        found = fathomless.report(one, X, y, sample_weight=weight)
        assert sum(e.rows for e in found.evaluations[: 3 - cv]) == N - 5  # all rows out of fold, or both parts


def _of_kind(kind: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Return an estimator, its X and y, and further arguments of the fit."""
    rows = table()
    X, y = rows[["size", "colour"]], rows["price"]
    match kind:
        case "classes":
            return small(UnboundedDepthClassifier), X[["size"]], rows["colour"], {}
        case "censored":
            return small(UnboundedDepthRegressor, cv=1), X, y, {"censored": rows["kind"]}
        case "density":
            options: dict[str, Any] = {"chains": 2, "sweeps": 5, "states": 2, "engine": "numpy", "random_state": 0}
            return IndianChefsDensity(**options), rows[["size", "price"]], None, {}
        case "bins":
            return small(UnboundedDepthRegressor, numbers="binned"), X, y, {}
        case "weights":
            return small(UnboundedDepthRegressor), X, y, {"sample_weight": 0.7 * (rows["copies"] - 1.0)}
        case "skewed":
            return small(UnboundedDepthRegressor), X, np.exp(3.0 * y), {}
        case "counts":
            return small(UnboundedDepthRegressor), X, (3 * y - (3 * y).min()).round(), {}
        case "single":
            return small(UnboundedDepthRegressor, cv=1), X, y, {}
    return SparseBayesRegressor(random_state=0, epochs=6, width=4), X, y, {}


def rows_of_weight(weight: Any) -> Any:
    """Return other weights, with the same rows of weight zero."""
    return weight * np.where(np.arange(len(weight)) % 2, 1.0, 2.5)


@pytest.mark.parametrize(
    "kind", ["classes", "censored", "density", "bins", "weights", "skewed", "counts", "single", "other family"]
)
def test_rows_of_the_fit_are_recognised_by_their_order(kind: str, tmp_path: Path) -> None:
    estimator, X, y, more = _of_kind(kind)
    named = {} if y is None else {"y": y}
    estimator.fit(X, **named, **more).save(tmp_path / "saved")
    other = np.random.default_rng(1).permutation(len(X))
    moved = {name: rows.iloc[other] for name, rows in {**named, **more}.items()}
    for one in (estimator, fathomless.load(tmp_path / "saved")):
        assert fathomless.report(one, X, **named, **more).evaluations
        with pytest.raises(DataError, match="are not the rows and weights of the fit, or are in another order"):
            fathomless.report(one, X.iloc[other], **moved)
        if kind == "weights":
            with pytest.raises(DataError, match="are not the rows and weights of the fit, or are in another order"):
                fathomless.report(one, X, y, sample_weight=rows_of_weight(more["sample_weight"]))
        if y is not None:
            with pytest.raises(DataError, match="are not the rows and weights of the fit, or are in another order"):
                fathomless.report(one, X, **{**named, "y": moved["y"]}, **more)


def test_a_run_of_an_earlier_version_has_no_checksum_of_its_rows(fitted: Any, tmp_path: Path) -> None:
    estimator, X, y = fitted
    folder = estimator.save(tmp_path / "saved")
    saved = io.load(folder, kinds={"UnboundedDepthRegressor"})
    meta = {name: value for name, value in saved.meta.items() if name != "rows_digest"}
    tensors = {name: values for name, values in saved.tensors.items() if name != "row_hashes"}
    io.save(folder, kind=saved.kind, tensors=tensors, meta=meta)
    assert fathomless.report(fathomless.load(folder), X[::-1], y[::-1]).evaluations
    io.save(folder, kind=saved.kind, tensors=saved.tensors, meta={**meta, "rows_digest": "abc"})
    with pytest.raises(FileError, match="its checksum of the rows is 'abc'"):
        fathomless.load(folder)
    io.save(folder, kind=saved.kind, tensors={**tensors, "row_hashes": torch.zeros(3)}, meta=saved.meta)
    with pytest.raises(FileError, match=rf"its hashes of {N} rows have shape \(3,\)"):
        fathomless.load(folder)


def test_bad_input_is_refused_with_a_remedy(fitted: Any) -> None:
    estimator, X, y = fitted
    classifier = small(UnboundedDepthClassifier, cv=1, epochs=1).fit(X[["size"]], X["colour"])
    several = small(UnboundedDepthClassifier, cv=1, epochs=1).fit(X[["size"]], np.eye(2, dtype=int)[np.arange(N) % 2])
    for call, message in (
        (lambda: fathomless.report(LinearRegression(), X, y), "was given a LinearRegression; give a fitted"),
        (lambda: fathomless.report(estimator), "no rows were given; give those of the fit"),
        (lambda: fathomless.report(estimator, X), "y is missing; give the targets of the rows"),
        (lambda: fathomless.report(estimator, new=(X, None)), "y_new is missing"),
        (lambda: fathomless.report(estimator, new=X), "new is a DataFrame; give the pair"),
        (lambda: fathomless.report(estimator, y=y, new=(X, y)), "y was given without X"),
        (lambda: fathomless.report(estimator, new=(X, y), sample_weight=y), "sample_weight was given without X"),
        (lambda: fathomless.report(estimator, X, y[1:]), f"X has {N} rows and y has {N - 1}"),
        (lambda: fathomless.report(estimator, X, y, sample_weight=-np.ones(N)), "sample_weight is -1 in row 0"),
        (lambda: fathomless.report(estimator, X, y.astype(str) + "?"), "give a numeric target"),
        (lambda: fathomless.report(estimator, X.rename(columns={"size": "area"}), y), "area"),
        (lambda: fathomless.report(classifier, X[["size"]], y > 0), "which is not in the training data"),
        (lambda: fathomless.report(classifier, X[["size"]], X["colour"], censored=y > 0), "for a classifier"),
        (lambda: fathomless.report(several, X[["size"]], y), "multilabel targets, which have no report"),
    ):
        with pytest.raises((DataError, ValueError), match=re.escape(message)):
            call()
    with pytest.raises(NotFittedError):
        fathomless.report(UnboundedDepthRegressor(), X, y)
