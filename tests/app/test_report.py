"""Page of a run: texts against the numbers, markup, and layout in a browser."""

import dataclasses
import functools
import itertools
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import load_breast_cancer, load_diabetes

from fathomless import UnboundedDepthClassifier, UnboundedDepthRegressor
from fathomless.app.diagnose import diagnose
from fathomless.app.page.analysis import analyse
from fathomless.app.page.glossary import TERMS
from fathomless.app.page.markup import _linker
from fathomless.app.page.report import Page, _describe_neighbors, _next_steps, render
from fathomless.app.page.widths import width_groups
from fathomless.estimators.evaluation import evaluate
from fathomless.estimators.findings import Finding
from fathomless.nn.architectures import MLP
from fathomless.plots.page import format_with_error, number, percent
from fathomless.system.errors import ConvergenceWarning
from html_tree import Tree

pd = pytest.importorskip("pandas")

INSIGHTS = ["Comparison with simple models", "Permutation importance and partial dependence", "Largest residuals"]
SECTIONS = ["Warnings", "Predictions", "Calibration", "Uncertainty", "Depth", "Training", "Scores"]
ALWAYS = ["Data", "Next steps", "Command and settings", "Glossary"]
SCRIPT, IMAGE, MATHS = "<script>alert(1)</script>", '"><img src=x onerror="alert(1)">', r"$x^2$ \frac{1 ` & 'c'"
LONG = "a-name-that-is-much-too-long-for-a-column" * 4


parsed = functools.lru_cache(maxsize=16)(Tree)  # of pages that many tests look at


def page(
    estimator, X, y, targets=("y",), *, title="price", findings=(), notes=(), command="fathomless fit", analysed=False
):
    """Fit, evaluate on the rows that were held out and on the others, and put together a page."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        estimator.fit(X, y)
    held = estimator.held_out_
    rows = {"held-out rows": held, "training rows": np.setdiff1d(np.arange(len(X)), held)}

    def take(which):
        return getattr(X, "iloc", X)[which], y[which]

    found = [
        evaluate(estimator, *take(which), name=name, targets=targets) for name, which in rows.items() if len(which)
    ]
    return Page(
        title=title,
        command=command,
        estimator=estimator,
        evaluations=found,
        analysis=analyse(estimator, take, held, rows["training rows"], found[0]) if analysed else None,
        findings=findings,
        data={
            "file": f"{title}.csv",
            "bytes": 1_234_567,
            "sha256": "0123456789abcdef" * 4,
            "rows": len(X),
            "columns": X.shape[1],
            "target names": targets,
            "notes": notes,
        },
        seed=0,
        versions={"fathomless": "0.1.0", "torch": "2.13.0+cpu"},
        citation=("A. Nazaret and D. Blei, Variational Inference for Infinitely Deep Neural Networks, ICML 2022.",),
    )


def small(kind, **options):
    return kind(**{"random_state": 0, "epochs": 6, "width": 16, "cv": 1, **options})


@pytest.fixture(scope="module")
def regression():
    X, y = load_diabetes(return_X_y=True)
    return page(
        small(UnboundedDepthRegressor),
        X,
        y,
        ("progression",),
        notes=("12 rows without a target: left out.",),
        analysed=True,
    )


@pytest.fixture(scope="module")
def classification():
    X, y = load_breast_cancer(return_X_y=True)
    labels = np.array(["malignant", "benign"])[y]
    found = page(small(UnboundedDepthClassifier), X, labels, ("diagnosis",), command=None, analysed=True)
    later = dataclasses.replace(found.evaluations[0], name="rows of another hospital, two years later.csv")
    return dataclasses.replace(found, evaluations=[*found.evaluations, later])


@pytest.fixture(scope="module")
def letters():
    """26 classes."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(780, 4))
    codes = np.arange(780) % 26
    X[:, 0] += codes
    return page(small(UnboundedDepthClassifier), X, np.array([*map(chr, range(65, 91))])[codes], ("letter",))


@pytest.fixture(scope="module")
def two_targets():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    Y = np.column_stack([X[:, 0] + 0.3 * rng.normal(size=200), 1000 * X[:, 1] ** 2 + rng.normal(size=200)])
    return page(small(UnboundedDepthRegressor, weights="meanfield"), X, Y, ("heating", LONG), analysed=True)


@pytest.fixture(scope="module")
def few_rows():
    """No rows are held out."""
    X = np.linspace(-1, 1, 40)[:, None]
    return page(small(UnboundedDepthRegressor), X, X[:, 0] ** 2)


@pytest.fixture(scope="module")
def hostile():
    """Texts that mean something to HTML, SVG, CSS or matplotlib, wherever a text can stand."""
    rng = np.random.default_rng(0)
    numbers = {name: rng.normal(size=200) for name in (SCRIPT, IMAGE, MATHS, LONG)}
    X = pd.DataFrame({**numbers, "</style><b>": rng.choice(["<i>x</i>", "'\"&amp;", "ü", LONG], 200)})
    y = np.array([SCRIPT, IMAGE, MATHS, LONG])[(rng.normal(size=200) + X[SCRIPT] > 0) * 1 + 2 * (X[IMAGE] > 0)]
    findings = [
        Finding("problem" if i % 3 else "advice", f"Title {i} {SCRIPT}", f"{IMAGE} {LONG}", f"`--epochs {i}` {SCRIPT}")
        for i in range(10)
    ]
    estimator = small(UnboundedDepthClassifier)
    told = {"title": SCRIPT, "findings": findings, "notes": (SCRIPT,), "command": f"fit {LONG} '{IMAGE}'"}
    return page(estimator, X, y, (IMAGE,), **told, analysed=True)


@pytest.fixture(
    scope="module", params=["regression", "classification", "letters", "two_targets", "few_rows", "hostile"]
)
def any_page(request) -> Page:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def html_of() -> Callable[[Page], str]:
    """Render each page once, since drawing takes a second."""
    known: dict[int, str] = {}
    return lambda page: known[id(page)] if id(page) in known else known.setdefault(id(page), render(page))


@pytest.fixture(scope="module")
def any_html(any_page, html_of) -> str:
    return html_of(any_page)


# ------------------------------------------------------------------------------------------------------ markup


def test_a_page_is_one_document_whose_parts_refer_to_each_other(any_page, any_html):
    assert any_html.startswith("<!DOCTYPE html>\n")
    tree = parsed(any_html)
    assert tree.all("html")[0]["attrs"]["lang"] == "en"
    assert tree.all("title")[0]["text"] == f"{any_page.title} · fathomless"
    assert [len(tree.all(tag)) for tag in ("h1", "header", "nav", "main", "footer")] == [1] * 5
    ids = [element["attrs"]["id"] for element in tree.elements if "id" in element["attrs"]]
    assert len(set(ids)) == len(ids)
    for element in tree.elements:
        for name in ("aria-labelledby", "aria-describedby"):
            assert set(element["attrs"].get(name, "").split()) <= set(ids)
        reference = element["attrs"].get("href") or element["attrs"].get("xlink:href") or "#"
        assert reference == "#" or reference[1:] in ids
    for reference in re.findall(r"url\(#([^)]*)\)", any_html):
        assert reference in ids


def test_headings_come_in_the_promised_order_without_gaps(any_page, any_html):
    headings = parsed(any_html).all("h1", "h2", "h3", "h4", "h5", "h6")
    found = [h["text"] for h in headings if h["tag"] == "h2"]
    assert [name for name in found if name not in INSIGHTS] == SECTIONS + ALWAYS
    verdict = INSIGHTS[0] if any_page.analysis and any_page.analysis.peers else SECTIONS[0]  # of one target
    assert found[0] == verdict
    assert [name for name in found if name in INSIGHTS[1:]] == (INSIGHTS[1:] if any_page.analysis else [])
    levels = [int(h["tag"][1]) for h in headings]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_every_picture_has_a_caption_and_says_its_content_in_numbers(any_html):
    tree = parsed(any_html)
    pictures = [element for element in tree.all("svg") if "svg" not in element["in"]]
    assert len(pictures) == len(tree.all("figure")) == len(tree.all("figcaption"))
    assert len(pictures) >= 6
    for picture in pictures:
        assert "figure" in picture["in"]
        assert picture["attrs"]["role"] == "img"
        assert len(re.findall(r"\d", picture["attrs"]["aria-label"])) >= 2
        assert not re.search(r"\bnan\b|not a number", picture["attrs"]["aria-label"])
    assert not tree.all("img")


def test_every_table_has_a_caption_and_heads_with_a_scope(any_html):
    tree = parsed(any_html)
    tables = tree.all("table")
    assert len(tree.all("caption")) == len(tables) >= 4
    assert all(caption["text"] for caption in tree.all("caption"))
    assert all(head["attrs"]["scope"] in ("col", "row", "colgroup") for head in tree.all("th"))
    rows = [row for row in tree.all("tr") if "tbody" in row["in"]]
    assert sum(head["attrs"]["scope"] == "row" for head in tree.all("th")) == len(rows)


def test_nothing_is_fetched_or_run(any_html):
    tree = parsed(any_html)
    policy = next(e for e in tree.all("meta") if e["attrs"].get("http-equiv") == "Content-Security-Policy")
    assert policy["attrs"]["content"] == "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert not tree.all("script", "link", "iframe", "object", "embed", "base", "form", "img", "image", "video", "audio")
    for element in tree.elements:
        for name, value in element["attrs"].items():
            assert not name.startswith("on"), f"{element['tag']} has {name}"
            if name in ("href", "xlink:href", "src", "srcset", "action", "formaction", "data", "poster", "background"):
                assert value.startswith("#"), f"{element['tag']} refers to {value}"
            assert name.startswith("xmlns") or "://" not in value
    styles = " ".join([e["text"] for e in tree.all("style")] + [e["attrs"].get("style", "") for e in tree.elements])
    assert "@import" not in styles
    assert not re.findall(r"url\((?!#)", styles)


def test_texts_from_data_are_shown_as_they_are(hostile, html_of):
    tree = parsed(html_of(hostile))
    allowed = {"html", "head", "meta", "title", "style", "body", "div", "header", "p", "h1", "h2", "h3", "nav", "ul"}
    allowed |= {"li", "a", "main", "section", "figure", "figcaption", "table", "caption", "thead", "tbody", "tr", "th"}
    allowed |= {"td", "details", "summary", "dl", "dt", "dd", "pre", "code", "span", "small", "footer", "svg", "g"}
    allowed |= {"path", "defs", "use", "text", "tspan", "clippath", "rect", "pattern"}
    assert {element["tag"] for element in tree.elements} <= allowed
    assert tree.all("h1")[0]["text"] == SCRIPT
    columns = [head["text"] for head in tree.all("th") if head["attrs"]["scope"] == "row"]
    assert {SCRIPT, IMAGE, MATHS, LONG, "</style><b>"} <= set(columns)
    assert any(SCRIPT in text["text"] and "advice" in text["text"].lower() for text in tree.all("li"))
    confusion = next(e["attrs"]["aria-label"] for e in tree.all("svg") if "true against" in e["attrs"]["aria-label"])
    mistaken = next(p["text"] for p in tree.all("p") if p["text"].startswith("Most frequent errors"))
    assert any(label in confusion and label in mistaken for label in (SCRIPT, IMAGE, MATHS, LONG))
    assert re.sub(r"\s+", " ", tree.all("pre")[0]["text"]) == hostile.command


@settings(max_examples=5)
@given(text=st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40))
def test_any_text_survives(few_rows, text):
    finding = Finding("advice", text, "seen", "do")
    tree = Tree(render(dataclasses.replace(few_rows, title=text, findings=[finding], evaluations=[])))
    assert tree.all("h1")[0]["text"].replace("\xa0%", " %") == text.replace("\xa0%", " %")
    assert any(h["text"].replace("\xa0%", " %") == text.replace("\xa0%", " %") for h in tree.all("h3"))


def test_the_same_page_gives_the_same_bytes(regression, letters, html_of):
    first = html_of(regression)
    html_of(letters)
    assert render(regression) == first


# ------------------------------------------------------------------------------------------- words and numbers


@given(st.floats(-1e300, 1e300), st.integers(2, 6))
def test_a_number_is_written_to_its_digits(value, digits):
    text = number(value, digits).replace(",", "").replace("−", "-").replace("⁻", "-")
    superscripts = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹", "0123456789")
    read = float(text.translate(superscripts).replace(" × 10", "e"))
    assert read == pytest.approx(value, rel=0.51 * 10.0 ** (1 - digits), abs=0.0)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_a_value_and_its_error_end_at_the_same_digit(value, error):
    shown, spread = format_with_error(value, error)
    if error <= 1e-9 * abs(value):  # what rounding leaves of 0
        assert (shown, spread) == (number(value), "")
    elif "×" not in shown + spread and max(abs(value), error) >= 1e-3:
        value_, error_ = (float(text.replace(",", "").replace("−", "-")) for text in (shown, spread[2:]))
        assert error_ == pytest.approx(error, rel=0.051)
        assert abs(value_ - value) <= 0.051 * error * (1 + 1e-9)
        assert len(shown.partition(".")[2]) == len(spread.partition(".")[2])


def test_the_headline_tells_the_first_scores(regression, classification, two_targets, html_of):
    text = " ".join(p["text"] for p in parsed(html_of(regression)).all("p") if p["attrs"].get("class") == "lede")
    scores = regression.evaluations[0].scores
    assert "Regression of progression on 10 columns and 442 rows" in text
    assert f"RMSE {number(scores['rmse'].value)} (mean: " in text
    assert f"{100 * scores['coverage_90'].value:.1f}".removesuffix(".0") in text
    text = " ".join(p["text"] for p in parsed(html_of(classification)).all("p") if p["attrs"].get("class") == "lede")
    assert "diagnosis into 2 classes" in text
    assert f"{100 * classification.evaluations[0].baseline['accuracy'].value:.1f}".removesuffix(".0") in text
    assert "averaged over the targets" in parsed(html_of(two_targets)).text


def test_scores_stand_beside_those_of_a_constant_prediction(any_page, any_html):
    rows = [row["text"].replace("\xa0", " ") for row in parsed(any_html).all("tr")]
    for name, start, scale in (("rmse", "RMSE", 1.0), ("accuracy", "Accuracy", 100.0)):
        for evaluation in any_page.evaluations:
            for score in (evaluation.scores.get(name), evaluation.baseline.get(name)):
                if score is not None and score.error:
                    shown = "".join(format_with_error(scale * score.value, scale * score.error))
                    assert any(row.startswith(start) and shown in row for row in rows)


def test_the_picture_of_depth_says_the_posterior(regression, html_of):
    labels = [svg["attrs"]["aria-label"].replace("\xa0", " ") for svg in parsed(html_of(regression)).all("svg")]
    (label,) = [label for label in labels if "each number of layers" in label]
    for depth, p in regression.estimator.depth_posterior_.items():
        if p >= 5e-3:
            assert f"{depth}: {100 * p:.1f} %" in label


def test_problems_stand_before_advice(hostile, html_of):
    tree = parsed(html_of(hostile))
    sorts = [p["text"] for p in tree.all("p") if p["attrs"].get("class") == "sort"]
    assert sorts == ["Problem"] * 6 + ["Advice"] * 4
    assert "Resolve the warnings first" in tree.text


def test_without_findings_the_page_lists_the_checks(regression, html_of):
    text = parsed(html_of(regression)).text
    assert "No warnings." in text
    assert "Checks: bounds and convergence of the depth" in text
    assert "Resolve the warnings" not in text


def test_terms_are_linked_once_in_a_section_and_not_inside_names(any_html):
    tree = parsed(any_html)
    entries = [dt["attrs"]["id"] for dt in tree.all("dt") if dt["attrs"].get("id", "").startswith("term-")]
    assert entries == sorted(entries) == [term.anchor for term in sorted(TERMS, key=lambda term: term.anchor)]
    assert len(entries) >= 30
    for section in any_html.split("<section")[1:]:
        linked = re.findall(r'class="term" href="#([\w-]+)"', section)
        assert len(set(linked)) == len(linked)
    assert "term-log-likelihood" in any_html
    named = _linker(TERMS, ["residual sugar", "level"])
    assert named("residual sugar, a residual & level") == (
        'residual sugar, a <a class="term" href="#term-residual">residual</a> &amp; level'
    )
    assert _linker((), ())("<b> residual") == "&lt;b&gt; residual"


def test_many_classes_are_folded_away(letters, classification, html_of):
    tree = parsed(html_of(letters))
    assert any("Recall and precision by class (26)" in summary["text"] for summary in tree.all("summary"))
    assert not any(
        "Recall and precision" in summary["text"] for summary in parsed(html_of(classification)).all("summary")
    )


def test_each_target_has_its_pictures_up_to_four(two_targets, few_rows, html_of):
    headings = [h["text"] for h in parsed(html_of(two_targets)).all("h3")]
    assert headings.count("heating") == headings.count(LONG) == 3
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(80, 2)), rng.normal(size=(80, 6))
    six = page(small(UnboundedDepthRegressor), X, Y, tuple("abcdef"))
    tree = Tree(render(six))
    headings = [h["text"] for h in tree.all("h3")]
    assert [headings.count(name) for name in "abcdef"] == [3, 3, 3, 3, 0, 0]
    assert "No pictures of 2 further targets." in tree.text


def test_the_page_has_the_coverage_by_width_prediction_and_category() -> None:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"size": rng.normal(size=300), "kind": rng.choice(["<i>a</i>", "b"], 300)})
    y = X["size"].to_numpy() + np.where(X["kind"] == "b", 1.0, 0.1) * rng.normal(size=300)
    one = page(small(UnboundedDepthRegressor, cv=3), X, y, ("price",))
    tree = Tree(render(one))
    assert "price: width of the intervals" in [h["text"] for h in tree.all("h3")]
    rows = [cell["text"] for cell in tree.all("th")]
    groups = {c.variable: c.groups for c in one.evaluations[0].conditional}
    for variable, name in (("interval width", "width"), ("prediction", "prediction"), ("kind", "kind")):
        assert [f"{name} {group.label}".replace("-", "−") in rows for group in groups[variable]] == [True] * len(
            groups[variable]
        )
    assert {"narrow half", "wide half", "kind <i>a</i>"} <= set(rows)
    coverages = [f"{percent(group.coverage)}" for group in groups["kind"]]
    assert all(coverage in tree.text for coverage in coverages)
    halves = [width_groups(one.evaluations[0])[0].table.rows[half] for half in (0, 1)]
    quarters = groups["interval width"]
    for row, pair in zip(halves, (quarters[:2], quarters[2:]), strict=True):
        assert row[2] == percent(sum(g.rows * g.coverage for g in pair) / sum(g.rows for g in pair))
    older = dataclasses.replace(one.evaluations[0], conditional=())
    assert width_groups(older) == []
    assert "narrow half" not in render(dataclasses.replace(one, evaluations=[older]))


def test_rows_that_were_trained_on_are_called_so(few_rows, regression, html_of):
    text = parsed(html_of(few_rows)).text
    assert "No held-out rows" in text
    assert "Scores on training rows are too optimistic for new rows." in text
    assert "Training rows (too optimistic for new rows): " in html_of(few_rows)
    assert "they chose the epoch and the scale of the noise" in parsed(html_of(regression)).text


def test_the_page_claims_no_more_than_the_options_allow(regression, classification, two_targets, html_of):
    assert "not a bound on the evidence" in parsed(html_of(regression)).text
    assert "weight uncertainty is 0 by assumption" in parsed(html_of(regression)).text
    assert "a lower bound on the log evidence" in parsed(html_of(two_targets)).text
    assert "0 by assumption" not in parsed(html_of(two_targets)).text
    text = parsed(html_of(classification)).text
    assert "they chose the epoch and the temperature of the probabilities. Scores on new rows" in text


def test_what_was_not_evaluated_is_not_shown(regression):
    html = render(dataclasses.replace(regression, evaluations=[]))
    assert [h["text"] for h in Tree(html).all("h2")] == ["Warnings", "Depth", "Training", *ALWAYS]
    assert "Not evaluated." in html


def test_rows_of_a_file_are_named_by_it(regression):
    new = dataclasses.replace(regression.evaluations[0], name="later <rows>.csv")
    html = render(dataclasses.replace(regression, evaluations=[new, *regression.evaluations]))
    assert "Rows of later &lt;rows&gt;.csv: " in html
    assert "Evaluate the model on rows outside the training" not in html
    assert "The pictures above show rows of later <rows>.csv." in Tree(html).text
    assert "Scores on held-out rows that were not used to fit the respective model" in Tree(html).text
    html = render(dataclasses.replace(regression, evaluations=[dataclasses.replace(new, rows=9000)]))
    assert f"single rows show {len(new.arrays['y'])} of them" in Tree(html).text


def test_changed_options_are_listed_and_functions_without_their_address(few_rows, html_of):
    estimator = small(UnboundedDepthRegressor, architecture=lambda inputs, outputs: MLP(inputs, outputs, 8))
    html = render(page(estimator, np.linspace(-1, 1, 40)[:, None], np.linspace(0, 1, 40)))
    assert "0x" not in html
    rows = [row["text"] for row in Tree(html).all("tr")]
    assert "architecturea functionmlp" in rows  # name, value, default
    for shown in (rows, [row["text"] for row in parsed(html_of(few_rows)).all("tr")]):
        assert sum(row.startswith("epochs") for row in shown) == 2  # among the changed ones and among all
        assert sum(row.startswith("learning_rate") for row in shown) == 1
        assert sum(row.startswith("random_state") for row in shown) == 1


@pytest.mark.parametrize(
    ("shape", "hint"),
    [("normal", None), ("heavy", "--likelihood student_t"), ("uneven", "--noise input")],
)
def test_heavy_tailed_or_uneven_residuals_suggest_another_noise(regression, shape, hint):
    rng, n = np.random.default_rng(1), 400
    mean = np.linspace(0, 10, n)[:, None]
    z = rng.normal(size=(n, 1))
    z = {"normal": z, "heavy": rng.standard_t(2, size=(n, 1)), "uneven": z * np.linspace(0.2, 1.5, n)[:, None]}[shape]
    first = regression.evaluations[0]
    arrays = {**{name: np.resize(a, (n, 1)) for name, a in first.arrays.items()}, "mean": mean, "std": np.ones((n, 1))}
    shown = dataclasses.replace(first, arrays={**arrays, "y": mean + z})
    steps = " ".join(_next_steps(dataclasses.replace(regression, evaluations=[shown]), shown))
    for option in ("--likelihood student_t", "--noise input"):
        assert (option in steps) == (option == hint)


def test_the_next_steps_stand_on_the_page(regression, html_of):
    sections = [section["text"] for section in parsed(html_of(regression)).all("section")]
    shown = next(text for text in sections if "Next steps" in text).replace("\xa0", " ")
    steps = _next_steps(regression, regression.evaluations[0])
    assert len(steps) > 2
    assert all(step.replace("`", "") in shown for step in steps)


# --------------------------------------------------------------------------------------------------- a browser

ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
ARGUMENTS += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]

# what is wrong with how a page is laid out, as "kind: where"; kinds are wide, outside, spills, overlap, pale, mute
FAULTS = r"""() => {
  const faults = [];
  const root = document.documentElement;
  const styles = new Map();
  const style = e => styles.get(e) ?? styles.set(e, getComputedStyle(e)).get(e);
  const name = e => `${e.tagName.toLowerCase()} "${(e.textContent ?? "").trim().slice(0, 40)}"`;
  const above = e => e.parentElement ? [e.parentElement, ...above(e.parentElement)] : [];
  const scrolls = e => ["auto", "scroll"].includes(style(e).overflowX);
  const shown = e => e.checkVisibility({visibilityProperty: true, contentVisibilityAuto: true})
    && e.getBoundingClientRect().width > 1 && e.getBoundingClientRect().height > 1;
  const all = [...document.body.querySelectorAll("*")].filter(shown);
  const plain = all.filter(e => !e.closest("svg") || e.matches("svg"));

  if (root.scrollWidth > innerWidth) faults.push(`wide: the page has ${root.scrollWidth} of ${innerWidth} px`);
  for (const e of plain) {
    const box = e.getBoundingClientRect();
    if (!above(e).some(scrolls) && (box.left < -0.5 || box.right > innerWidth + 0.5))
      faults.push(`outside: ${name(e)}`);
    if (style(e).display == "inline" || e.matches("svg") || scrolls(e)) continue;
    if (e.scrollWidth > e.clientWidth + 1 && e.clientWidth) faults.push(`spills: ${name(e)}`);
    if (style(e).overflowY == "hidden" && e.scrollHeight > e.clientHeight + 1) faults.push(`spills: ${name(e)}`);
  }

  // boxes of what is read or looked at, cut to the boxes that they scroll in
  const read = "h1, h2, h3, p, li, figure, figcaption, svg, caption, th, td, dt, dd, pre, summary";
  const blocks = plain.filter(e => e.matches(read));
  const boxes = blocks.map(e => {
    const box = e.getBoundingClientRect();
    const clip = above(e).filter(scrolls).map(a => a.getBoundingClientRect());
    const left = Math.max(box.left, ...clip.map(c => c.left)), right = Math.min(box.right, ...clip.map(c => c.right));
    return {e, left, right, top: box.top, bottom: box.bottom};
  });
  const meet = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  boxes.forEach((a, i) => boxes.slice(i + 1).forEach(b => {
    if (meet(a, b) && !a.e.contains(b.e) && !b.e.contains(a.e)) faults.push(`overlap: ${name(a.e)} and ${name(b.e)}`);
  }));

  const channels = text => { const c = text.match(/[\d.]+/g).map(Number); return [c[0], c[1], c[2], c[3] ?? 1]; };
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = c => [0.2126, 0.7152, 0.0722].reduce((sum, w, i) => sum + w * linear(c[i] / 255), 0);
  const over = (top, below) => [0, 1, 2].map(i => top[3] * top[i] + (1 - top[3]) * below[i]);
  const ground = e => [e, ...above(e)].reverse()
    .reduce((below, a) => over(channels(style(a).backgroundColor), below), [255, 255, 255]);
  const contrast = (colour, below) => {
    const [high, low] = [light(over(channels(colour), below)), light(below)].sort((a, b) => b - a);
    return (high + 0.05) / (low + 0.05);
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walk.nextNode(); text; text = walk.nextNode()) {
    const e = text.parentElement;
    if (!text.textContent.trim() || !shown(e)) continue;
    if (contrast(style(e).color, ground(e)) < 4.5) faults.push(`pale: ${name(e)}`);
  }
  for (const e of document.querySelectorAll('svg [style*="--ink"]')) {  // the letters of pictures are paths
    const colour = /fill: var\(--ink/.test(e.getAttribute("style")) ? style(e).fill : style(e).stroke;
    if (contrast(colour, ground(e.closest("svg"))) < 4.5) faults.push(`pale: ${colour} in a picture`);
  }
  for (const e of document.querySelectorAll("svg, img"))
    if (!e.getAttribute("aria-label") && !e.getAttribute("alt")) faults.push(`mute: ${e.outerHTML.slice(0, 60)}`);
  return faults;
}"""


@pytest.fixture(scope="module")
def chromium() -> Iterator:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright to look at the page")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs chromium to look at the page")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@dataclasses.dataclass
class View:
    """A page in the browser, and what went wrong while it loaded."""

    tab: object
    noise: list[str]

    def faults(self) -> list[str]:
        return [*self.noise, *self.tab.evaluate(FAULTS)]


def show(browser, path: Path, html: str, width: int = 1280, scheme: str = "light") -> View:
    path.write_text(html, encoding="utf-8")
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    noise: list[str] = []
    tab.on("console", lambda message: noise.append(f"noise: {message.text}"))
    tab.on("pageerror", lambda error: noise.append(f"noise: {error}"))
    tab.on("requestfailed", lambda request: noise.append(f"noise: {request.url} failed"))
    tab.on("request", lambda request: noise.append(f"noise: {request.url}") if request.url != path.as_uri() else None)
    tab.goto(path.as_uri())
    return View(tab, noise)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_a_page_without_faults(chromium, tmp_path, any_html, width, scheme):
    view = show(chromium, tmp_path / "report.html", any_html, width, scheme)
    assert view.faults() == []
    view.tab.evaluate("() => document.querySelectorAll('details').forEach(e => e.open = true)")
    assert view.faults() == []
    light = view.tab.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", light)[:3])) > 384) == (scheme == "light")
    view.tab.close()


BREAKS = {
    "wide": "<table style='width: 900px'><caption>wide</caption></table>",
    "outside": "<p style='margin-left: -60px'>Too far to the left.</p>",
    "spills": "<p style='width: 60px; overflow: hidden; white-space: nowrap'>Too long for its box.</p>",
    "overlap": "<p>One.</p><p style='margin-top: -40px'>Another upon it.</p>",
    "pale": "<p style='color: #8a8a8a'>Hard to read.</p>",
    "pale ": "<svg aria-label='1'><rect width='9' height='9' style='--ink: #8a8a8a; fill: var(--ink)'/></svg>",
    "mute": "<svg width='20' height='20'><rect width='9' height='9'/></svg>",
    "noise": "<img alt='x' src='https://example.invalid/x.png'>",
    "noise ": "<script>document.title = 'run'</script>",
}


@pytest.mark.parametrize("kind", BREAKS)
def test_a_browser_finds_what_is_broken_on_purpose(chromium, tmp_path, few_rows, kind, html_of):
    broken = html_of(few_rows).replace("</main>", f"<div style='max-width: 20rem'>{BREAKS[kind]}</div></main>")
    view = show(chromium, tmp_path / "report.html", broken, 390)
    assert {fault.partition(":")[0] for fault in view.faults()} >= {kind.strip()}
    assert view.tab.title() != "run"
    view.tab.close()


def test_a_page_prints_whole(chromium, tmp_path, any_html):
    view = show(chromium, tmp_path / "report.html", any_html)
    pdf = view.tab.pdf(format="A4", prefer_css_page_size=True)
    assert pdf.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf)) > 1
    view.tab.set_viewport_size({"width": 680, "height": 990})  # what A4 leaves between the margins, in CSS pixels
    view.tab.emulate_media(media="print", color_scheme="dark")
    assert view.faults() == []
    figures = view.tab.locator("figure")
    heights = [figures.nth(i).bounding_box()["height"] for i in range(figures.count())]
    assert len(heights) == any_html.count("<figure>")
    assert max(heights) < 990
    assert view.tab.locator("details td").last.is_visible()  # what is folded on the screen is printed
    assert not view.tab.locator("nav").is_visible()
    assert view.tab.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert view.tab.evaluate("() => getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    view.tab.close()


def test_the_page_states_that_training_rows_are_stored() -> None:
    rng = np.random.default_rng(0)
    of = rng.integers(50, size=130)  # experiments with several rows of one target
    X, y = rng.normal(size=(50, 2))[of] + 1e-3 * rng.normal(size=(130, 2)), rng.normal(size=50)[of]
    found = page(small(UnboundedDepthRegressor, validation_fraction=0.3, neighbors=True), X, y)
    estimator = found.estimator
    (fit,) = estimator.fit_diagnostics_.recalibration
    near = fit.neighbors
    text = Tree(render(found)).text
    assert near.stored
    assert near.repeated > 0.5
    assert f"{percent(near.repeated)} of the rows that a network was not trained on have the same target" in text
    assert f"the fit contains all {near.rows:,} training rows with their targets" in text
    own, training = found.evaluations
    assert training.scores["log_likelihood"].value > own.scores["log_likelihood"].value + 0.2
    assert "Overfitting" not in [finding.title for finding in diagnose(estimator, [own], training=training)]
    assert "no training rows are stored" in _describe_neighbors(fit, dataclasses.replace(near, stored=False), "")


def test_the_page_reports_the_weight_of_boosted_trees() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, 3))
    steps = (X[:, 0] > 0.3) & (X[:, 1] < 0.6)
    y = steps + 0.1 * rng.normal(size=300)
    found = page(small(UnboundedDepthRegressor, validation_fraction=0.3, trees=True), X, y)
    (fit,) = found.estimator.fit_diagnostics_.trees_of_targets
    text = Tree(render(found)).text
    assert fit.weight > 0.5
    assert f"{fit.iterations} trees for each score have weight {percent(fit.weight)} in the prediction" in text
    own, training = found.evaluations
    titles = [finding.title for finding in diagnose(found.estimator, [own], training=training)]
    assert "Boosted trees have most of the weight" in titles
    assert "Overfitting" not in titles
    labels = rng.permutation(steps.astype(int))
    found = page(small(UnboundedDepthClassifier, validation_fraction=0.3, trees=True), X, labels)
    assert found.estimator.trees_ is None
    assert "Boosted trees are not used" in Tree(render(found)).text
