import functools
import inspect
import itertools
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex, to_rgb
from scipy import stats

from fathomless import plots
from fathomless.families.depth import plots as depth_plots
from fathomless.families.sparse import plots as sparse_plots
from fathomless.plots import canvas
from fathomless.system.errors import DataError

matplotlib.use("Agg")

DATA_COLOURS = {canvas.BLUE, canvas.RUST, canvas.GREEN, canvas.PURPLE, canvas.OCHRE}
LONG = "average selling price per m² in 2024 (k$)"
XLINK = "{http://www.w3.org/1999/xlink}href"


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def fresh(height: float = 3.0):
    return plots.figure(4.4, height)[1]


# One call of each function on plain data, and on data that are hard to draw


def history(epochs: int, *, valid: bool = True) -> list[dict[str, float]]:
    rng = np.random.default_rng(epochs)
    rows = []
    for e in range(1, epochs + 1):
        fit, weights, depth = -900 - 8000 * np.exp(-e / 6) + 20 * rng.normal(), 300 * (1 - np.exp(-e / 25)) + 80, 2.5
        row = {"epoch": e, "elbo": fit - weights - depth, "log_likelihood": fit}
        row |= {"divergence_weights": weights, "divergence_depth": depth}
        row |= {"mean_depth": 3.5 - 2 * np.exp(-e / 30), "deepest": 6.0 - (e < 10)}
        rows.append(row | ({"validation_log_likelihood": fit / 1000 - 0.1} if valid else {}))
    return rows


def law(low: int, high: int, mean: float) -> dict[int, float]:
    depth = np.arange(low, high + 1)
    mass = stats.poisson.pmf(depth, mean)
    return dict(zip(depth.tolist(), (mass / mass.sum()).tolist(), strict=True))


def table(classes: int, rows: int = 3000) -> np.ndarray:
    rng = np.random.default_rng(classes)
    true = rng.integers(0, classes, rows)
    predicted = np.where(rng.random(rows) < 0.8, true, rng.integers(0, classes, rows))
    return np.histogram2d(true, predicted, bins=np.arange(classes + 1) - 0.5)[0].astype(int)


Y, NOISE = np.random.default_rng(0).normal(size=(2, 2000))
MEAN = Y + 0.4 * NOISE
LEVELS = np.arange(1, 20) / 20
X = np.linspace(-3, 3, 50)
BANDS = np.sin(2 * X) + np.array([-1.6, -0.7, 0.0, 0.7, 1.6])[:, None] * (0.1 + X**2 / 12)
PARTS = np.random.default_rng(1).gamma(2.0, size=(3, 2000))
SEGMENTS = [f"customer segment of the northern region {i}" for i in range(4)]

INCLUSION = {"first": np.random.default_rng(2).beta(0.3, 2.0, (9, 8)), "second": np.random.default_rng(3).random(9)}
NETWORK = [[[1.0, 0.0, -0.5], [0.0, 0.0, 0.8], [0.0, 0.0, 0.0]], [[0.7, -1.2, 0.0], [0.0, 0.4, 0.0]]]
SKIP = [[[1.0, 0.0]], [[0.5, 0.0, -2.0]]]

PLAIN = {
    "inclusion_probabilities": lambda ax: sparse_plots.inclusion_probabilities(INCLUSION, ax=ax),
    "active_network": lambda ax: sparse_plots.active_network(NETWORK, inputs="abc", outputs=["yes", "no"], ax=ax),
    "depth_posterior": lambda ax: depth_plots.depth_posterior(law(1, 8, 3.5), prior=law(1, 8, 2.0), ax=ax),
    "depth_path": lambda ax: depth_plots.depth_path(history(60), ax=ax),
    "learning_curves": lambda ax: plots.learning_curves(history(60), rows=1000, ax=ax),
    "reliability": lambda ax: plots.reliability([0.4, 0.6, 0.9], [0.3, 0.6, 0.85], [20, 40, 300], ax=ax),
    "pit_histogram": lambda ax: plots.pit_histogram([40, 22, 18, 20, 17, 19, 16, 21, 5, 22], ax=ax),
    "coverage": lambda ax: plots.coverage(LEVELS, LEVELS**1.2, rows=200, ax=ax),
    "intervals": lambda ax: plots.intervals(Y, MEAN, MEAN - 0.6, MEAN + 0.6, ax=ax),
    "functions": lambda ax: plots.functions(X, BANDS, [0.05, 0.25, 0.5, 0.75, 0.95], X=X, y=np.sin(2 * X), ax=ax),
    "confusion": lambda ax: plots.confusion([[50, 0, 0], [0, 46, 4], [0, 3, 47]], ["one", "two", "three"], ax=ax),
    "uncertainty_split": lambda ax: plots.uncertainty_split(*PARTS, ax=ax),
    "predicted_against_observed": lambda ax: plots.predicted_against_observed(Y, MEAN, ax=ax),
}
HARD = {
    "one weight": lambda ax: sparse_plots.inclusion_probabilities({"only": [1.0]}, ax=ax),
    "many layers": lambda ax: sparse_plots.inclusion_probabilities({str(i): [0.1 * i] for i in range(9)}, ax=ax),
    "a network that sees its inputs twice": lambda ax: sparse_plots.active_network(
        SKIP, inputs=["size", LONG], outputs=["price"], skip=True, ax=ax
    ),
    "a network without weights": lambda ax: sparse_plots.active_network([[[0.0]]], inputs="a", outputs="b", ax=ax),
    "depths 0 to 40": lambda ax: depth_plots.depth_posterior(law(0, 40, 22), prior=law(0, 40, 10), ax=ax),
    "one depth": lambda ax: depth_plots.depth_posterior({3: 1.0}, ax=ax),
    "two depths": lambda ax: depth_plots.depth_posterior({3: 0.5, 4: 0.5}, ax=ax),
    "depth after one epoch": lambda ax: depth_plots.depth_path(history(1), ax=ax),
    "depth at rest": lambda ax: depth_plots.depth_path([{"epoch": e, "mean_depth": 3.0} for e in range(5)], ax=ax),
    "spread of the depth": lambda ax: depth_plots.depth_path([row | {"std_depth": 0.6} for row in history(30)], ax=ax),
    "depth over 2000 epochs": lambda ax: depth_plots.depth_path(history(2000), ax=ax),
    "curves of one epoch": lambda ax: plots.learning_curves(history(1), rows=1000, ax=ax),
    "curves of 2000 epochs": lambda ax: plots.learning_curves(history(2000), rows=1000, ax=ax),
    "curves without validation": lambda ax: plots.learning_curves(history(20, valid=False), ax=ax),
    "one bin": lambda ax: plots.reliability([1.0], [1.0], [40], ax=ax),
    "fifteen bins": lambda ax: plots.reliability((np.arange(15) + 0.5) / 15, np.arange(15) / 15, [200] * 15, ax=ax),
    "forecasts of a million rows": lambda ax: plots.pit_histogram(50_000 + 100 * np.arange(-10, 11), ax=ax),
    "forecasts of four rows": lambda ax: plots.pit_histogram([0, 1, 0, 2, 0, 1], ax=ax),
    "forecasts all too narrow": lambda ax: plots.pit_histogram([500, *[0] * 18, 300], ax=ax),
    "large numbers": lambda ax: plots.intervals(*(1e6 * np.stack([Y, MEAN, MEAN - 1, MEAN + 1])), target=LONG, ax=ax),
    "one interval": lambda ax: plots.intervals([1.0], [1.1], [0.5], [1.6], ax=ax),
    "intervals without width": lambda ax: plots.intervals(*np.ones((4, 9)), ax=ax),
    "two quantiles": lambda ax: plots.functions(X, BANDS[[0, 4]], [0.05, 0.95], feature=LONG, target=LONG, ax=ax),
    "one class": lambda ax: plots.confusion([[7]], ["only"], ax=ax),
    "ten classes": lambda ax: plots.confusion(table(10, 60_000), "0123456789", ax=ax),
    "26 classes": lambda ax: plots.confusion(table(26), [chr(65 + i) for i in range(26)], ax=ax),
    "100 classes": lambda ax: plots.confusion(table(100), [f"class {i}" for i in range(100)], ax=ax),
    "long names of classes": lambda ax: plots.confusion(table(4), SEGMENTS, ax=ax),
    "one row": lambda ax: plots.uncertainty_split([0.1], [0.2], [0.3], ax=ax),
    "rows without uncertainty": lambda ax: plots.uncertainty_split([0, 0, 1], [0, 0, 1], [0, 0, 1], ax=ax),
    "long tails": lambda ax: plots.predicted_against_observed(np.exp(3 * Y), np.exp(3 * MEAN), target=LONG, ax=ax),
    "constant targets": lambda ax: plots.predicted_against_observed([5.0] * 9, [5.0] * 9, ax=ax),
    "small numbers": lambda ax: plots.predicted_against_observed(1e-7 * Y, 1e-7 * MEAN, ax=ax),
    "small numbers far from zero": lambda ax: plots.predicted_against_observed(1e6 + Y, 1e6 + MEAN, ax=ax),
}
ALL = PLAIN | HARD


@functools.cache
def drawn(name: str):
    """Draw a case once; return its axes and its SVG."""
    ax = ALL[name](fresh())
    return ax, plots.svg(ax)


# What holds for all pictures


def test_every_picture_is_tried_here():
    others = {"figure", "svg", "GRID", "INK"}
    families = {*depth_plots.__all__, *sparse_plots.__all__}
    assert {*plots.__all__, *families} - others == set(PLAIN)


@pytest.mark.parametrize("name", PLAIN)
def test_the_axes_given_are_drawn_on_and_returned(name):
    ax = fresh()
    assert PLAIN[name](ax) is ax
    assert ax.get_title(loc="left")
    assert ax.get_xlabel()
    assert ax.get_ylabel()
    assert not plt.get_fignums()


@pytest.mark.parametrize("name", PLAIN)
def test_without_axes_a_transparent_figure_opens(name):
    ax = PLAIN[name](None)
    assert plt.get_fignums() == [ax.figure.number]
    assert ax.get_facecolor()[3] == ax.figure.get_facecolor()[3] == 0.0


def test_settings_and_backend_stay_as_they_are():
    before, backend = dict(matplotlib.rcParams), matplotlib.get_backend()
    for draw in PLAIN.values():
        draw(fresh())
    plots.svg(PLAIN["coverage"](fresh()))
    assert dict(matplotlib.rcParams) == before
    assert matplotlib.get_backend() == backend


@pytest.mark.parametrize("name", PLAIN)
def test_every_function_documents_itself_with_a_picture(name):
    home = next(module for module in (plots, depth_plots, sparse_plots) if name in module.__all__)
    text = inspect.getdoc(getattr(home, name))
    for part in ("Parameters\n---", "Returns\n---", "Raises\n---", "Examples\n---", ".. plot::\n\n    >>> "):
        assert part in text


@pytest.mark.parametrize("name", ALL)
def test_no_text_is_cut_and_no_labels_overlap(name):
    ax, _ = drawn(name)
    ax.figure.draw_without_rendering()
    page = ax.figure.bbox
    key = [] if ax.get_legend() is None else ax.get_legend().get_texts()
    ticks = [
        [label for place, label in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True) if low <= place <= high]
        for axis, (low, high) in ((ax.xaxis, sorted(ax.get_xlim())), (ax.yaxis, sorted(ax.get_ylim())))
    ]
    one_sided = {"intervals", "large numbers", "one interval", "intervals without width", "active_network"}
    assert name in one_sided or "a network" in name or all(ticks)
    groups = [*ticks, key, [ax._left_title, ax.xaxis.label, ax.yaxis.label, *key[:1]], ax.texts]
    for texts in groups:
        boxes = [text.get_window_extent() for text in texts if text.get_text()]
        for box in boxes:
            assert page.x0 - 1 <= box.x0 < box.x1 <= page.x1 + 1
            assert page.y0 - 1 <= box.y0 < box.y1 <= page.y1 + 1
        for one, other in itertools.combinations(boxes, 2):
            assert not one.padded(-0.5).overlaps(other.padded(-0.5))
    labels = [label.get_text() for label in ticks[1]]
    assert len(set(labels)) == len(labels)
    width, height = ax.bbox.width / page.width, ax.bbox.height / page.height
    assert width > 0.4
    assert height > 0.35


@pytest.mark.parametrize("name", ALL)
def test_only_the_house_colours_appear(name):
    _, text = drawn(name)
    assert set(re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[;\"])", text)) <= DATA_COLOURS | {plots.INK, plots.GRID}
    assert plots.INK in text
    assert not re.search(r"black|white|rgb\(|<image", text)
    for element, style in shapes(ET.fromstring(text)):
        assert re.search(r"fill: (none|#)", style), f"{element.tag} is filled black by default"


def shapes(element: ET.Element, style: str = ""):
    """What an SVG paints, each with the styles that it inherits."""
    tag = element.tag.rpartition("}")[2]
    style += element.get("style", "")
    if tag in {"path", "use", "rect"}:
        yield element, style
    elif tag not in {"defs", "clipPath"}:
        for child in element:
            yield from shapes(child, style)


@pytest.mark.parametrize("name", PLAIN)
def test_the_same_picture_gives_the_same_bytes(name):
    ax, text = drawn(name)
    assert plots.svg(PLAIN[name](fresh())) == text
    assert plots.svg(ax.figure) == text


@pytest.mark.parametrize("name", ALL)
def test_svg_can_stand_in_a_page(name):
    _, text = drawn(name)
    root = ET.fromstring(text)
    assert text.startswith("<svg ")
    assert root.get("viewBox") == "0 0 316.8 216"
    assert root.get("aria-label")
    assert not re.search(r"<!|<\?|<style|<metadata|<text|<title", text)
    ids = [element.get("id") for element in root.iter() if element.get("id")]
    assert len(set(ids)) == len(ids)
    assert all(one.startswith("plot-") for one in ids)
    used = {element.get(XLINK) for element in root.iter() if element.get(XLINK)}
    used |= set(re.findall(r"url\((#[^)]+)\)", text))
    assert used == {f"#{one}" for one in ids}


def test_two_pictures_with_two_prefixes_share_no_id():
    ax = PLAIN["coverage"](fresh())
    one, two = (set(re.findall(r' id="([^"]+)"', plots.svg(ax, prefix))) for prefix in ("left", "right"))
    assert one
    assert not one & two


@pytest.mark.parametrize("prefix", ["", "1a", "a b", 'a"', "a#"])
def test_a_prefix_that_is_no_id_is_refused(prefix):
    with pytest.raises(DataError, match="prefix="):
        plots.svg(fresh(), prefix)


def test_a_picture_of_2000_rows_is_small():
    assert len(drawn("predicted_against_observed")[1]) < 200_000


def test_svg_writes_a_figure_of_others_without_background():
    page, (left, right) = plt.subplots(1, 2)
    plots.coverage(LEVELS, LEVELS, ax=left)
    depth_plots.depth_posterior({1: 1.0}, ax=right)
    text = plots.svg(right)
    assert plots.svg(page) == text
    assert "#ffffff" not in text
    assert ET.fromstring(text).get("aria-label") == "Coverage of the intervals"


def test_figure_is_transparent_and_unknown_to_pyplot():
    page, ax = plots.figure(5.0, 2.0)
    assert page.get_size_inches().tolist() == [5.0, 2.0]
    assert page.get_facecolor()[3] == ax.get_facecolor()[3] == 0.0
    assert not plt.get_fignums()
    for size in ((0.0, 1.0), (1.0, -1.0), (np.nan, 1.0), (1.0, np.inf)):
        with pytest.raises(DataError, match="inches"):
            plots.figure(*size)


def luminance(colour: str) -> float:
    c = np.array(to_rgb(colour))
    return float(np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("colour", sorted(DATA_COLOURS | {canvas.INK}))
def test_colours_stand_out_on_white_and_on_a_dark_page(colour):
    dark = luminance("#14191f")
    assert 1.05 / (luminance(colour) + 0.05) >= 3.0
    assert (luminance(colour) + 0.05) / (dark + 0.05) >= 3.0
    assert colour == colour.lower()


# what eyes without one kind of cone see (Machado, Oliveira & Fernandes 2009), in linear RGB
SIGHT = {
    "all cones": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_CONES = [
    [0.41222147, 0.53633254, 0.05144599],
    [0.2119035, 0.68069955, 0.10739696],
    [0.08830246, 0.28171884, 0.62997870],
]
TO_LAB = [
    [0.21045426, 0.79361779, -0.00407205],
    [1.97799850, -2.42859221, 0.45059371],
    [0.02590404, 0.78277177, -0.80867577],
]


@pytest.mark.parametrize("sight", SIGHT)
def test_data_colours_differ_for_every_eye(sight):
    def seen(colour):
        c = np.array(to_rgb(colour))
        linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        return 100 * np.array(TO_LAB) @ np.cbrt(np.array(TO_CONES) @ np.clip(np.array(SIGHT[sight]) @ linear, 0, 1))

    apart = [np.linalg.norm(seen(a) - seen(b)) for a, b in itertools.combinations(sorted(DATA_COLOURS), 2)]
    assert min(apart) > 5.0  # in Oklab; 2 is just noticeable


def test_without_matplotlib_the_import_says_what_to_install():
    code = "import sys; sys.modules['matplotlib'] = None; import fathomless.plots"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ImportError: pictures need matplotlib; run: pip install 'fathomless[plots]'" in done.stderr


# What is drawn is what was given


def bars(ax):
    """Middle and height of each bar, one after the other."""
    found = [(p.get_x() + p.get_width() / 2, p.get_height()) for container in ax.containers for p in container]
    return [number for bar in sorted(found) for number in bar]


def lines(ax) -> dict:
    return {line.get_label(): np.array(line.get_data()) for line in ax.lines}


def band(ax, label: str):
    """Corners of a band as {x: (low, high)}."""
    (found,) = (c for c in ax.collections if c.get_label() == label)
    corners: dict[float, list[float]] = {}
    for x, y in found.get_paths()[0].vertices.tolist():
        corners.setdefault(x, []).append(y)
    return {x: (min(ys), max(ys)) for x, ys in corners.items()}


def test_depth_posterior_draws_the_probabilities():
    ax = depth_plots.depth_posterior({4: 0.5, 2: 0.2, 3: 0.3}, prior={5: 0.1, 1: 0.4}, ax=fresh())
    assert bars(ax) == pytest.approx([2, 0.2, 3, 0.3, 4, 0.5])
    assert lines(ax)["prior"].tolist() == [[1, 5], [0.4, 0.1]]
    assert ax.get_xlim()[0] < 1
    assert ax.get_xlim()[1] > 5


@pytest.mark.parametrize("name", ["depth_posterior", "depths 0 to 40", "one depth", "two depths"])
def test_depths_have_whole_ticks(name):
    ax, _ = drawn(name)
    assert (ax.get_xticks() == np.round(ax.get_xticks())).all()


@pytest.mark.parametrize("name", ["depth_path", "depth after one epoch", "depth at rest", "spread of the depth"])
def test_layers_and_epochs_have_whole_ticks(name):
    ax, _ = drawn(name)
    ticks = np.concatenate([ax.get_xticks(), ax.get_yticks()])
    assert (ticks == np.round(ticks)).all()


def test_depth_path_draws_the_history():
    rows = [{"epoch": 2, "mean_depth": 1.5, "deepest": 3.0, "std_depth": 0.5}, {"epoch": 4, "mean_depth": 2.5}]
    ax = depth_plots.depth_path(rows, ax=fresh())
    assert lines(ax)["mean"].tolist() == [[2, 4], [1.5, 2.5]]
    np.testing.assert_array_equal(lines(ax)["deepest network"], [[2, 4], [3.0, np.nan]])
    assert band(ax, "± 1 sd")[2.0] == (1.0, 2.0)
    assert set(lines(depth_plots.depth_path(rows[1:], ax=fresh()))) == {"mean"}


def test_learning_curves_draw_the_bound_and_its_parts():
    rows = history(30)
    epoch, elbo, fit, weights, depth, valid = (
        np.array([row[name] for row in rows])
        for name in (
            "epoch",
            "elbo",
            "log_likelihood",
            "divergence_weights",
            "divergence_depth",
            "validation_log_likelihood",
        )
    )
    for scale, ax in (
        (1.0, plots.learning_curves(rows, ax=fresh())),
        (500.0, plots.learning_curves(rows, rows=500, ax=fresh())),
    ):
        np.testing.assert_allclose(lines(ax)["log-likelihood"], [epoch, fit / scale])
        np.testing.assert_allclose(lines(ax)["ELBO"], [epoch, elbo / scale])
        for label, low, high in (
            ("KL of depth", fit - depth, fit),
            ("KL of weights", fit - depth - weights, fit - depth),
        ):
            drawn_band = band(ax, label)
            np.testing.assert_allclose([drawn_band[e] for e in epoch], np.stack([low, high], 1) / scale)
        np.testing.assert_allclose([band(ax, "KL of weights")[e][0] for e in epoch], elbo / scale)
    np.testing.assert_allclose(lines(ax)["validation"], [epoch, valid])


def test_validation_rows_are_drawn_only_on_their_own_scale():
    assert "validation" not in lines(plots.learning_curves(history(3), ax=fresh()))
    assert "validation" not in lines(plots.learning_curves(history(3, valid=False), rows=9, ax=fresh()))
    gap = [*history(2), *history(3, valid=False)[2:]]
    assert np.isnan(lines(plots.learning_curves(gap, rows=9, ax=fresh()))["validation"][1]).tolist() == [
        False,
        False,
        True,
    ]


def test_only_the_first_tenth_of_a_history_may_leave_the_scale():
    rows = history(100)
    ax = plots.learning_curves(rows, ax=fresh())
    low, high = ax.get_ylim()
    late = [row[name] for row in rows[10:] for name in ("elbo", "log_likelihood")]
    assert low < min(late) < max(late) < high
    assert rows[0]["elbo"] < low


def test_reliability_draws_accuracy_counts_and_wilson_intervals():
    confidence, hits, count = np.array([0.3, 0.55, 0.9]), np.array([0, 9, 80]), np.array([4, 16, 80])
    ax = plots.reliability(confidence, hits / count, count, ax=fresh())
    assert lines(ax)["accuracy"].tolist() == [confidence.tolist(), (hits / count).tolist()]
    assert bars(ax) == pytest.approx(np.stack([confidence, count / 100], 1).ravel())
    for segment, x, k, n in zip(ax.collections[0].get_segments(), confidence, hits, count, strict=True):
        expected = stats.binomtest(int(k), int(n)).proportion_ci(0.95, "wilson")
        np.testing.assert_allclose(segment, [[x, expected.low], [x, expected.high]], atol=1e-7)
    assert lines(ax)["calibrated"].tolist() == [[0, 1], [0, 1]]


def span(ax) -> tuple[float, float]:
    (found,) = (p for p in ax.patches if "calibrated" in str(p.get_label()))
    return found.get_y(), found.get_y() + found.get_height()


@settings(max_examples=15)
@given(
    counts=st.lists(st.integers(0, 60), min_size=2, max_size=25).filter(any), level=st.sampled_from([0.5, 0.9, 0.95])
)
def test_the_band_of_a_pit_histogram_holds_binomial_quantiles(counts, level):
    n, bins = sum(counts), len(counts)
    ax = plots.pit_histogram(counts, level=level, ax=fresh())
    low, high = stats.binom.ppf([0.5 - level / 2, 0.5 + level / 2], n, 1 / bins)
    assert span(ax) == pytest.approx((low / n, high / n))
    assert bars(ax) == pytest.approx(
        [value for i, count in enumerate(counts) for value in ((i + 0.5) / bins, count / n)]
    )
    for container in ax.containers:
        for bar in container:
            inside = low <= round(bar.get_height() * n) <= high
            assert to_hex(bar.get_facecolor()) == (canvas.BLUE if inside else canvas.RUST)


@pytest.mark.parametrize("rows", [10**3, 10**6, 10**9])
def test_the_band_is_right_for_very_many_rows(rows):
    ax = plots.pit_histogram([rows // 20] * 20, ax=fresh())
    expected = stats.binom.ppf([0.025, 0.975], rows, 0.05) / rows
    assert span(ax) == pytest.approx(expected, abs=0.5 / rows)


def test_coverage_draws_shares_sorted_by_level_and_their_band():
    ax = plots.coverage([0.9, 0.5], [0.8, 0.6], rows=40, ax=fresh())
    assert lines(ax)["observed"].tolist() == [[0.5, 0.9], [0.6, 0.8]]
    drawn_band = band(ax, "95 % if calibrated")
    for level in (0.5, 0.9):
        assert drawn_band[level] == pytest.approx(stats.binom.ppf([0.025, 0.975], 40, level) / 40)
    assert drawn_band[0.0] == (0.0, 0.0)
    assert drawn_band[1.0] == (1.0, 1.0)
    assert not plots.coverage([0.5], [0.6], ax=fresh()).collections


def test_intervals_are_sorted_by_their_mean_and_coloured_by_what_they_hold():
    y, mean, low, high = [1.0, 5.0, 2.0], [3.0, 1.0, 2.0], [2.0, 0.0, 1.0], [4.0, 2.0, 2.0]
    ax = plots.intervals(y, mean, low, high, target="price ($x$)", ax=fresh())
    assert lines(ax)["inside 33.3 %"].tolist() == [[1], [2.0]]  # the ends belong to the interval
    assert lines(ax)["outside 66.7 %"].tolist() == [[0, 2], [5.0, 1.0]]
    assert lines(ax)["mean"].tolist() == [[0, 1, 2], [1.0, 2.0, 3.0]]
    segments = [np.array(s).tolist() for c in ax.collections for s in c.get_segments()]
    assert segments == [[[1, 1.0], [1, 2.0]], [[0, 0.0], [0, 2.0]], [[2, 2.0], [2, 4.0]]]
    assert ax.get_ylabel() == "price ($x$)"
    assert not ax.yaxis.label.get_parse_math()


def test_of_many_intervals_100_are_drawn_evenly_spaced():
    ax, _ = drawn("intervals")
    shown = lines(ax)["mean"][1]
    ranks = np.searchsorted(np.sort(MEAN), shown)
    assert len(shown) == 100
    assert (ranks[0], ranks[-1]) == (0, 1999)
    assert set(np.diff(ranks)) == {20, 21}
    share = 100 * np.mean(np.abs(Y - MEAN) <= 0.6)
    assert f"inside {share:.3g} %" in lines(ax)


def test_functions_draw_bands_between_paired_quantiles():
    x = [2.0, 1.0, 3.0]
    quantiles = [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [5.0, 5.0, 5.0]]
    ax = plots.functions(x, quantiles, [0.1, 0.5, 0.8], X=[1.5], y=[2.5], feature="age", ax=fresh())
    assert band(ax, "70 %") == {1.0: (1.0, 5.0), 2.0: (0.0, 5.0), 3.0: (2.0, 5.0)}
    assert lines(ax)["median"].tolist() == [[1, 2, 3], [2, 1, 3]]
    assert lines(ax)["observed"].tolist() == [[1.5], [2.5]]
    assert ax.get_xlabel() == "age"
    assert set(lines(plots.functions(x, quantiles[:1], [0.3], ax=fresh()))) == {"30 % quantile"}


def test_confusion_draws_every_cell():
    counts = np.array([[50, 0, 0], [1, 40, 9], [0, 30, 120]])
    ax = plots.confusion(counts, ["a", "b_$c$", "d"], ax=fresh())
    numbers = {(int(t.get_position()[1]), int(t.get_position()[0])): t.get_text() for t in ax.texts}
    assert numbers == {(i, j): str(n) for (i, j), n in np.ndenumerate(counts) if n}
    opacity = {}
    for bar in ax.containers[0]:
        i, j = round(bar.get_y() + bar.get_height() / 2), round(bar.get_x() + bar.get_width() / 2)
        assert to_hex(bar.get_facecolor()) == (canvas.BLUE if i == j else canvas.RUST)
        opacity[i, j] = bar.get_facecolor()[3]
    assert sorted(opacity, key=opacity.get) == [(1, 0), (1, 2), (2, 1), (1, 1), (2, 2), (0, 0)]  # by share of the row
    assert max(opacity.values()) < 0.5  # numbers stay readable on it
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b_$c$", "d"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]


def test_numbers_are_left_out_of_many_classes_and_shortened_where_they_do_not_fit():
    assert not drawn("26 classes")[0].texts
    ax = plots.confusion(np.diag([1_234_567, 98_765, 999_999, 12, 1000, 5, 6, 7]), "abcdefgh", ax=fresh())
    assert [t.get_text() for t in ax.texts] == ["1.23M", "98.8k", "1M", "12", "1000", "5", "6", "7"]


def test_long_names_keep_both_ends():
    ax, _ = drawn("long names of classes")
    names = [t.get_text() for t in ax.get_yticklabels()]
    assert names == [f"customer …region {i}" for i in range(4)]


def stairs(ax) -> dict:
    return {p.get_label(): p.get_data() for p in ax.patches}


def test_uncertainty_is_split_into_shares_of_rows_sorted_by_total():
    ax = plots.uncertainty_split([3.0, 1.0, 0.0], [3.0, 0.0, 0.0], [6.0, 1.0, 0.0], ax=fresh())
    drawn_parts = stairs(ax)
    np.testing.assert_allclose(drawn_parts["noise"].edges, [0, 1 / 3, 2 / 3, 1])
    for name, low, high in (
        ("noise", [0, 0, 0], [0, 0.5, 0.25]),
        ("weights", [0, 0.5, 0.25], [0, 0.5, 0.5]),
        ("structure", [0, 0.5, 0.5], [0, 1, 1]),
    ):
        np.testing.assert_allclose(drawn_parts[name].baseline, low)
        np.testing.assert_allclose(drawn_parts[name].values, high)


@pytest.mark.parametrize("rows", [100, 101, 2000])
def test_many_rows_are_split_in_100_groups(rows):
    parts = PARTS[:, :rows]
    drawn_parts = stairs(plots.uncertainty_split(*parts, ax=fresh()))
    order = np.argsort(parts.sum(0))
    edges = np.rint(drawn_parts["noise"].edges * rows).astype(int)
    assert len(edges) == 101
    for i, (start, end) in enumerate(itertools.pairwise(edges)):
        sums = parts[:, order[start:end]].sum(1)
        expected = np.cumsum(sums / sums.sum())
        np.testing.assert_allclose([drawn_parts[k].values[i] for k in ("noise", "weights", "structure")], expected)


def test_uncertainty_may_be_negative_by_rounding_alone():
    ax = plots.uncertainty_split([1.0, 1.0], [-1e-12, 0.5], [0.0, 0.5], ax=fresh())
    np.testing.assert_allclose(stairs(ax)["weights"].values, [1.0, 0.75])
    with pytest.raises(DataError, match=r"weights was given with -0\.1"):
        plots.uncertainty_split([1.0], [-0.1], [0.0], ax=fresh())


def test_predicted_against_observed_draws_every_row_on_equal_scales():
    ax = plots.predicted_against_observed([1.0, 4.0], [2.0, 3.0], target="price", ax=fresh())
    assert lines(ax)["rows"].tolist() == [[2.0, 3.0], [1.0, 4.0]]
    assert lines(ax)["equal"].tolist() == [[1.0, 4.0], [1.0, 4.0]]
    assert ax.get_xlim() == ax.get_ylim()
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("predicted mean of price", "observed price")


def test_rows_far_out_are_counted_not_shown():
    y = np.append(np.linspace(0.0, 1.0, 1000), [50.0, -80.0])
    ax = plots.predicted_against_observed(y, np.append(y[:1000], [0.5, 0.5]), ax=fresh())
    assert "rows (2 beyond the edges)" in lines(ax)
    assert ax.get_xlim()[1] < 2.0
    few = plots.predicted_against_observed(y[-20:], y[-20:], ax=fresh())
    assert few.get_xlim()[0] < -80.0


def test_large_numbers_have_short_ticks():
    ax, _ = drawn("large numbers")
    assert any(label.get_text().endswith("M") for label in ax.get_yticklabels())
    assert not ax.yaxis.get_offset_text().get_text()


def test_what_is_given_stays_as_it_is():
    y, mean = Y.copy(), MEAN.copy()
    plots.intervals(y, mean, mean - 1, mean + 1, ax=fresh())
    plots.predicted_against_observed(y, mean, ax=fresh())
    assert np.array_equal(y, Y)
    assert np.array_equal(mean, MEAN)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: depth_plots.depth_posterior({}), "depths of the posterior was given with shape"),
        (lambda: depth_plots.depth_posterior({1: 0.5}), "sum to 0.5; allowed are whole depths and a sum of 1"),
        (lambda: depth_plots.depth_posterior({1: 1.5, 2: -0.5}), "values from -0.5 to 1.5"),
        (lambda: depth_plots.depth_posterior({1.5: 1.0}), "depths from 1.5"),
        (lambda: depth_plots.depth_posterior({1: 1.0}, prior={1: 0.7, 2: 0.7}), "at most 1"),
        (lambda: depth_plots.depth_path([]), "a history without rows"),
        (lambda: depth_plots.depth_path([{"epoch": 1}]), "1 rows without 'mean_depth'"),
        (lambda: depth_plots.depth_path([{"epoch": 1, "mean_depth": np.nan}]), "1 NaN or infinite"),
        (lambda: plots.learning_curves([{"epoch": 1, "elbo": "high", "log_likelihood": 1.0}]), "not a number"),
        (lambda: plots.learning_curves(history(2), rows=0), "rows=0 was given"),
        (lambda: plots.learning_curves([history(1)[0] | {"divergence_depth": "high"}]), "divergence_depth was given"),
        (lambda: plots.reliability([], [], []), r"confidence was given with shape \(0,\)"),
        (lambda: plots.reliability([0.5], [1.5], [1]), "accuracy was given with values from 1.5"),
        (lambda: plots.reliability([0.5], [0.5], [0.5]), "whole numbers of rows"),
        (lambda: plots.reliability([0.5, 0.6], [0.5, 0.6], [1, 0]), "1 empty bins"),
        (lambda: plots.reliability([0.5, 0.6], [0.5], [1]), r"confidence \(2,\), accuracy \(1,\)"),
        (lambda: plots.pit_histogram([0, 0]), "not all 0"),
        (lambda: plots.pit_histogram([3, -1]), "values from -1 to 3"),
        (lambda: plots.pit_histogram([[1, 2]]), "1 dimensions"),
        (lambda: plots.pit_histogram([1, 2], level=1.0), "level=1.0"),
        (lambda: plots.coverage([0.5], [0.5, 0.6]), "different shapes"),
        (lambda: plots.coverage([5.0], [0.5]), "levels was given with values from 5"),
        (lambda: plots.coverage([0.5], [0.5], rows=0), "rows=0"),
        (lambda: plots.intervals([1.0], [1.0], [2.0], [0.0]), "1 intervals have low above high"),
        (lambda: plots.intervals([1.0], [1.0, 2.0], [0.0], [2.0]), "different shapes"),
        (lambda: plots.intervals([np.inf], [1.0], [0.0], [2.0]), "y was given with 1 NaN or infinite"),
        (lambda: plots.functions([1.0], [[1.0, 2.0]], [0.5]), r"quantiles \(1, 2\).*\(1, 1\)"),
        (lambda: plots.functions([1.0], [[1.0], [2.0]], [0.9, 0.1]), "decrease"),
        (lambda: plots.functions([1.0], [[2.0], [1.0]], [0.1, 0.9]), "decrease"),
        (lambda: plots.functions([1.0], [[2.0]], [0.5], X=[1.0]), "give both or neither"),
        (lambda: plots.functions([1.0], [[2.0]], [0.5], X=[1.0], y=[1.0, 2.0]), "different shapes"),
        (lambda: plots.confusion([[1, 2]], ["a", "b"]), r"counts \(1, 2\) were given for 2 labels"),
        (lambda: plots.confusion([[0]], ["a"]), "not all 0"),
        (lambda: plots.uncertainty_split([1.0], [1.0], [1.0, 2.0]), "different shapes"),
        (lambda: plots.predicted_against_observed([1.0], [1.0, 2.0]), "different shapes"),
        (lambda: plots.predicted_against_observed("high", "low"), "not a number"),
    ],
)
def test_bad_input_is_refused_before_a_figure_opens(call, message):
    with pytest.raises(DataError, match=message):
        call()
    assert not plt.get_fignums()
