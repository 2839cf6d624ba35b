"""A blank picture in the house's colours, and its way into a page; the only module that knows matplotlib.

Everything that is neither data nor grid has the colour `INK`, the grid has `GRID`, backgrounds are transparent: a page
that replaces these two colours fits the picture to any theme. The data colours have a contrast of 3 : 1 or more on
white and on a dark page, and stay apart for readers who do not see red, green or blue. Nothing here changes
matplotlib's settings or its backend.
"""

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from typing import Any
from xml.sax.saxutils import quoteattr

from fathomless.system.errors import DataError

try:
    import matplotlib as mpl
    from matplotlib import pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.dates import ConciseDateFormatter
    from matplotlib.figure import Figure
    from matplotlib.textpath import TextPath
    from matplotlib.ticker import MaxNLocator
except ImportError as error:
    raise ImportError("pictures need matplotlib; run: pip install 'fathomless[plots]'") from error

__all__ = [
    "BLUE",
    "GREEN",
    "GRID",
    "INK",
    "OCHRE",
    "PURPLE",
    "RUST",
    "Axes",
    "dates",
    "diagonal",
    "figure",
    "label_classes",
    "legend",
    "limits",
    "shorten",
    "spaced",
    "start",
    "svg",
    "whole_numbers",
]

#: The colour of all that is neither data nor grid: text, ticks, spines, lines of reference.
INK = "#5b6672"
#: The colour of grids.
GRID = "#cdd4db"
BLUE = "#2a88e0"  #: a colour of data
RUST = "#c2410c"  #: a colour of data
GREEN = "#217567"  #: a colour of data
PURPLE = "#d65bb4"  #: a colour of data
OCHRE = "#b98220"  #: a colour of data

_WIDTH, _HEIGHT = 4.4, 3.0  # inches
_SMALL, _FONT, _TITLE = 8.0, 9.0, 10.0  # points
_REFERENCE = r'(?:(?<=href="#)|(?<=url\(#))[^")]+'  # the name of another element of the same SVG


def figure(width: float = _WIDTH, height: float = _HEIGHT) -> tuple[Figure, Axes]:
    """Return a transparent figure with one axes that pyplot does not know.

    It needs no closing and opens no window; ``Figure.savefig`` writes it.

    Parameters
    ----------
    width, height : float
        Size in inches. Text has 8 to 10 points, so that 4.4 x 3 inches look right at 340 to 600 pixels.

    Returns
    -------
    Figure, Axes

    Raises
    ------
    DataError
        For a width or height that is not a positive, finite number.

    Examples
    --------
    >>> from fathomless import plots
    >>> page, ax = plots.figure(4.4, 3.0)
    >>> plots.coverage([0.5, 0.9], [0.4, 0.85], ax=ax) is ax
    True

    .. plot::

        >>> from fathomless import plots
        >>> ax = plots.coverage([0.1, 0.3, 0.5, 0.7, 0.9], [0.12, 0.28, 0.44, 0.66, 0.88])
    """
    if not (0.0 < width < math.inf and 0.0 < height < math.inf):
        raise DataError(f"a figure of {width} x {height} inches was asked for; give two positive, finite numbers")
    page = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    return page, page.add_subplot(facecolor="none")


def svg(picture: Axes | Figure, prefix: str = "plot") -> str:
    """Return a figure as SVG for use inside HTML: the same picture gives the same text.

    Text is drawn as paths, no date is written, there is no header, and every id starts with `prefix`, so that pictures
    with different prefixes can share a page. The title becomes the label that screen readers speak.

    Parameters
    ----------
    picture : Axes or Figure
        What to write; of an axes, its whole figure.
    prefix : str
        A letter, then letters, digits, ``-`` or ``_``.

    Returns
    -------
    str
        One ``<svg>`` element. NOT guaranteed: the same bytes from another version of matplotlib.

    Raises
    ------
    DataError
        For any other prefix.

    Examples
    --------
    >>> from fathomless import plots
    >>> plots.svg(plots.coverage([0.5, 0.9], [0.4, 0.85], ax=plots.figure()[1]), "coverage")[:4]
    '<svg'

    .. plot::

        >>> from fathomless import plots
        >>> ax = plots.coverage([0.5, 0.9], [0.4, 0.85])
        >>> text = plots.svg(ax, "coverage")
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", prefix):
        raise DataError(f"prefix={prefix!r} was given; allowed is a letter, then letters, digits, '-' or '_'")
    whole = picture if isinstance(picture, Figure) else picture.figure.canvas.figure
    if whole.get_layout_engine() is not None:
        for ax in whole.axes:  # a layout starts from the last one: begin anew, so that drawing twice changes nothing
            spec = ax.get_subplotspec()
            if spec is not None and ax.get_in_layout():
                ax.set_subplotspec(spec)
    buffer, nothing = StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
    settings = mpl.rc_context({"svg.hashsalt": "fathomless", "svg.fonttype": "path"})
    with settings, _transparent(whole), _on_canvas_of_svg(whole) as canvas:
        canvas.print_svg(buffer, metadata=nothing)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # a style sheet inside would hold for the whole page, comments repeat the text, metadata say nothing
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>|<defs>\s*</defs>", "", text, flags=re.DOTALL)
    # numbered: matplotlib's own names hash the layout's last bits, and those differ from one drawing to the next
    used = {name: f"{prefix}-{n}" for n, name in enumerate(dict.fromkeys(re.findall(_REFERENCE, text)), 1)}
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{used[m[1]]}"' if m[1] in used else "", text)
    text = re.sub(_REFERENCE, lambda m: used[m[0]], text)
    text = re.sub(r' (?:d|x|y)="[^"]*"', lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0]), text)  # 0.01 pt is enough
    many = r'(?:<use [^>]*(?P<style> style="[^"]*")/>\s*)(?:<use [^>]*(?P=style)/>\s*)+'  # points that look the same
    text = re.sub(many, lambda m: f"<g{m['style']}>\n{m[0].replace(m['style'], '')}</g>\n", text)
    label = quoteattr(next((ax.get_title(loc="left") for ax in whole.axes), ""))
    head = f'<svg role="img" aria-label={label} stroke-linejoin="round" stroke-linecap="butt"'
    return re.sub(r"\s*\n\s*", "\n", head + text.removeprefix("<svg")).strip()


@contextmanager
def _transparent(whole: Figure) -> Iterator[None]:
    """Make the backgrounds of a figure and of its parts transparent, and restore them."""
    parts: list[Any] = [whole, *whole.axes]
    for part in parts:
        parts += getattr(part, "subfigs", []) + getattr(part, "child_axes", [])
    colours = [(part.patch, part.patch.get_facecolor(), part.patch.get_edgecolor()) for part in parts]
    for patch, _, _ in colours:
        patch.set(facecolor="none", edgecolor="none")
    try:
        yield
    finally:
        for patch, face, edge in colours:
            patch.set(facecolor=face, edgecolor=edge)


@contextmanager
def _on_canvas_of_svg(whole: Figure) -> Iterator[FigureCanvasSVG]:
    """Give a figure a canvas of SVG, which draws once; ``savefig`` draws twice, to lay out for all kinds of files."""
    before, dpi = whole.canvas, whole.dpi
    try:
        yield FigureCanvasSVG(whole)
    finally:
        whole.set_canvas(before)
        whole.dpi = dpi


def start(ax: Axes | None, title: str, x: str, y: str, *, height: float = _HEIGHT) -> Axes:
    """Return the axes given, or those of a new figure that pyplot knows, with title, labels, ticks and grid."""
    if ax is None:
        page = plt.figure(figsize=(_WIDTH, height), layout="constrained", facecolor="none")
        ax = page.add_subplot(facecolor="none")
    for side, spine in ax.spines.items():
        spine.set(color=INK, linewidth=0.8, visible=side in ("left", "bottom"))
    ax.tick_params(which="both", colors=INK, labelsize=_SMALL, width=0.8, length=3.0)
    ax.grid(visible=True, color=GRID, linewidth=0.6, linestyle="-", alpha=1.0)
    ax.set_axisbelow(True)
    ax.set_title(title, loc="left", color=INK, fontsize=_TITLE)
    # names of columns are no formulas: a dollar sign stays one
    ax.set_xlabel(textwrap.fill(x, 48), color=INK, fontsize=_FONT, parse_math=False)
    ax.set_ylabel(textwrap.fill(y, 30), color=INK, fontsize=_FONT, parse_math=False)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(_number)
    return ax


def legend(ax: Axes) -> None:
    """Put the legend, in the order of drawing, in rows between title and data, where it hides nothing."""
    place = {id(artist): i for i, artist in enumerate(ax.get_children())}
    entries = list(zip(*ax.get_legend_handles_labels(), strict=True))
    entries.sort(key=lambda entry: place.get(id(entry[0][0] if isinstance(entry[0], tuple) else entry[0]), 0))
    handles, labels = zip(*entries, strict=True)
    room, columns = 1.06 * _points(ax)[0], len(labels)
    wide = [26.0 + TextPath((0.0, 0.0), label, size=_SMALL).get_extents().width for label in labels]
    while columns > 1 and sum(max(wide[i::columns]) for i in range(columns)) > room:
        columns -= 1
    rows = math.ceil(len(labels) / columns)
    columns = math.ceil(len(labels) / rows)
    order = [i for column in range(columns) for i in range(column, len(labels), columns)]  # it fills columns first
    ax.legend(
        [handles[i] for i in order],
        [labels[i] for i in order],
        ncols=columns,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        frameon=False,
        labelcolor=INK,
        fontsize=_SMALL,
        handlelength=1.4,
        handletextpad=0.5,
        columnspacing=1.2,
        labelspacing=0.3,
        borderaxespad=0.3,
        borderpad=0.1,
    )
    ax.set_title(ax.get_title(loc="left"), loc="left", color=INK, fontsize=_TITLE, pad=7.0 + 11.5 * rows)


def limits(low: float, high: float, least: float = 0.0) -> tuple[float, float]:
    """Return limits that hold `low` and `high` with a margin, `least` or more, and never nothing."""
    margin = max(0.04 * (high - low), least) or 0.06 * abs(high) or 1.0
    return low - margin, high + margin


def diagonal(ax: Axes, low: float, high: float, label: str) -> None:
    """Draw where x = y, behind the data, and show both axes from `low` to `high`."""
    ends = limits(low, high)
    line = (low, high) if high > low else ends
    ax.plot(line, line, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1.5, label=label)
    ax.set(xlim=ends, ylim=ends)
    spaced(ax)


def spaced(ax: Axes) -> None:
    """Take as many ticks below the axes as have room for their numbers: 0.5 has more than 1.000002M."""
    low, high = sorted(ax.get_xlim())
    for bins in range(8, 1, -1):
        locator = MaxNLocator(bins, steps=[1, 2, 2.5, 5, 10])
        ticks = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
        ax.xaxis.set_major_locator(locator)
        if sum(7.0 + 5.0 * len(_number(tick, 0.0)) for tick in ticks) <= _points(ax)[0]:
            break


def whole_numbers(axis: Axis) -> None:
    """Put ticks at whole numbers only."""
    axis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def label_classes(ax: Axes, labels: Sequence[str]) -> None:
    """Name the classes 0, 1, … on both axes of a square table, as many as fit, and take the grid away."""
    size = len(labels)
    cell = 0.8 * _points(ax)[1] / size  # the names themselves will take some of the room
    font, every = min(_SMALL, max(5.0, 0.8 * cell)), math.ceil(5.5 / cell)
    across = [shorten(label, 12) for label in labels]
    turned = max(map(len, across)) * 0.62 * font > 0.8 * _points(ax)[0] / size
    ax.set_xticks(range(0, size, every), across[::every], parse_math=False, fontsize=font)
    ax.set_yticks(range(0, size, every), [shorten(label) for label in labels[::every]], parse_math=False, fontsize=font)
    if turned:
        ax.tick_params(axis="x", labelrotation=90)
    ax.tick_params(length=0.0)
    ax.grid(visible=False)
    ax.spines[["left", "bottom"]].set_visible(False)


def dates(ax: Axes) -> None:
    """Write dates below the axes as briefly as they can be told apart."""
    ax.xaxis.set_major_formatter(ConciseDateFormatter(ax.xaxis.get_major_locator()))


def shorten(text: str, longest: int = 18) -> str:
    """Cut the middle out of a long name: names often differ at their ends.

    Examples
    --------
    >>> shorten("income of the household in euros", 15)
    'income …n euros'
    """
    text = " ".join(text.split())
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[: longest - 1 - half]}…{text[-half:]}"


def _points(ax: Axes) -> tuple[float, float]:
    """Return width and height of the axes in points."""
    return 72.0 * ax.bbox.width / ax.figure.dpi, 72.0 * ax.bbox.height / ax.figure.dpi


def _number(value: float, place: float) -> str:
    """Write a tick: 0.25, 1500, 20k, 1.5M, 3e9; `place` is matplotlib's."""
    size, unit = (1e6, "M") if 1e6 <= abs(value) < 1e9 else (1e3, "k") if 1e4 <= abs(value) < 1e6 else (1.0, "")
    text = f"{value / size:.10g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    return text.replace("-", "−") + unit
