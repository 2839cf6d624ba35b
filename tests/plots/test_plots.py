"""What holds for all pictures: their form, their colours, and the SVG they become."""

import inspect
import itertools
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb

from fathomless import plots
from fathomless.families.continuous import plots as continuous_plots
from fathomless.families.depth import plots as depth_plots
from fathomless.families.manifold import plots as manifold_plots
from fathomless.families.sparse import plots as sparse_plots
from fathomless.plots import canvas
from fathomless.system.errors import DataError
from pictures import ALL, LEVELS, PLAIN, drawn, fresh

pytestmark = pytest.mark.usefixtures("closed")

DATA_COLOURS = {canvas.BLUE, canvas.RUST, canvas.GREEN, canvas.PURPLE, canvas.OCHRE}
XLINK = "{http://www.w3.org/1999/xlink}href"


def test_every_picture_is_tried_here():
    others = {"figure", "svg", "GRID", "INK", "MOST_COLUMNS"}
    families = {*depth_plots.__all__, *sparse_plots.__all__, *continuous_plots.__all__, *manifold_plots.__all__}
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
    homes = plots, depth_plots, sparse_plots, continuous_plots, manifold_plots
    home = next(module for module in homes if name in module.__all__)
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
    assert "ImportError: plots need matplotlib; run: pip install 'fathomless[plots]'" in done.stderr
