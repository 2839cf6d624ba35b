"""Figures in the colours of the library, and their conversion to SVG; the only module that imports matplotlib.

Grids have the colour `GRID`, everything else that is not data has `INK`, and backgrounds are transparent. A page can
therefore replace these two colours to adapt a figure to any theme. The data colours have a contrast of at least 3 : 1
on white and dark pages, and can be distinguished with colour vision deficiencies. This module does not change the
settings or the backend of matplotlib.
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
    raise ImportError("plots need matplotlib; run: pip install 'fathomless[plots]'") from error

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
    "space_ticks",
    "start",
    "svg",
    "whole_numbers",
]

#: Colour of text, ticks, spines and reference lines.
INK = "#5b6672"
#: Colour of grids.
GRID = "#cdd4db"
BLUE = "#2a88e0"  #: colour of data
RUST = "#c2410c"  #: colour of data
GREEN = "#217567"  #: colour of data
PURPLE = "#d65bb4"  #: colour of data
OCHRE = "#b98220"  #: colour of data

_WIDTH, _HEIGHT = 4.4, 3.0  # inches
_SMALL, _FONT, _TITLE = 8.0, 9.0, 10.0  # points
_REFERENCE = r'(?:(?<=href="#)|(?<=url\(#))[^")]+'  # the name of another element of the same SVG


def figure(width: float = _WIDTH, height: float = _HEIGHT) -> tuple[Figure, Axes]:
    """Create a transparent figure with one axes, without pyplot.

    The figure need not be closed and opens no window; ``Figure.savefig`` writes it.

    Parameters
    ----------
    width, height : float
        Size in inches. Text has 8 to 10 points, which suits 4.4 x 3 inches at 340 to 600 pixels.

    Returns
    -------
    Figure, Axes

    Raises
    ------
    DataError
        If width or height is not a positive, finite number.

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
        raise DataError(f"a figure of {width} x {height} inches was requested; give two positive, finite numbers")
    page = Figure(figsize=(width, height), layout="constrained", facecolor="none")
    return page, page.add_subplot(facecolor="none")


def svg(picture: Axes | Figure, prefix: str = "plot") -> str:
    """Convert a figure to SVG for use inside HTML; the same figure gives the same text.

    Text is drawn as paths, and there are no date and no header. All ids start with `prefix`, so that figures with
    different prefixes can be used in one page. The title becomes the label for screen readers.

    Parameters
    ----------
    picture : Axes or Figure
        Figure, or an axes whose figure is converted.
    prefix : str
        A letter, then letters, digits, ``-`` or ``_``.

    Returns
    -------
    str
        One ``<svg>`` element. Other versions of matplotlib may give other bytes.

    Raises
    ------
    DataError
        If the prefix has another form.

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
        raise DataError(f"prefix={prefix!r} was given; a letter, then letters, digits, '-' or '_', is allowed")
    whole = picture if isinstance(picture, Figure) else picture.figure.canvas.figure
    if whole.get_layout_engine() is not None:
        for ax in whole.axes:  # a layout starts from the previous one: reset it, so that drawing twice changes nothing
            spec = ax.get_subplotspec()
            if spec is not None and ax.get_in_layout():
                ax.set_subplotspec(spec)
    buffer = StringIO()
    no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    settings = mpl.rc_context({"svg.hashsalt": "fathomless", "svg.fonttype": "path"})
    with settings, _transparent(whole), _on_canvas_of_svg(whole) as canvas:
        canvas.print_svg(buffer, metadata=no_metadata)
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    # a style sheet would apply to the whole page; comments repeat the text, and metadata are empty
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>|<defs>\s*</defs>", "", text, flags=re.DOTALL)
    # ids are numbered, since matplotlib's own ids are hashes of the layout to the last bit, which differs between
    # drawings
    used = {name: f"{prefix}-{n}" for n, name in enumerate(dict.fromkeys(re.findall(_REFERENCE, text)), 1)}
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{used[m[1]]}"' if m[1] in used else "", text)
    text = re.sub(_REFERENCE, lambda m: used[m[0]], text)
    # coordinates need no more than 0.01 pt
    text = re.sub(r' (?:d|x|y)="[^"]*"', lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0]), text)
    # consecutive points of the same style are grouped
    many = r'(?:<use [^>]*(?P<style> style="[^"]*")/>\s*)(?:<use [^>]*(?P=style)/>\s*)+'
    text = re.sub(many, lambda m: f"<g{m['style']}>\n{m[0].replace(m['style'], '')}</g>\n", text)
    label = quoteattr(next((ax.get_title(loc="left") for ax in whole.axes), ""))
    head = f'<svg role="img" aria-label={label} stroke-linejoin="round" stroke-linecap="butt"'
    return re.sub(r"\s*\n\s*", "\n", head + text.removeprefix("<svg")).strip()


@contextmanager
def _transparent(whole: Figure) -> Iterator[None]:
    """Make the backgrounds of a figure and its parts transparent, and restore them on exit."""
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
    """Give a figure an SVG canvas, which draws once; ``savefig`` would draw twice, once for the layout."""
    before = whole.canvas
    dpi = whole.dpi
    try:
        yield FigureCanvasSVG(whole)
    finally:
        whole.set_canvas(before)
        whole.dpi = dpi


def start(ax: Axes | None, title: str, x: str, y: str, *, height: float = _HEIGHT) -> Axes:
    """Return `ax`, or the axes of a new figure of pyplot, with title, labels, ticks and grid."""
    if ax is None:
        page = plt.figure(figsize=(_WIDTH, height), layout="constrained", facecolor="none")
        ax = page.add_subplot(facecolor="none")
    for side, spine in ax.spines.items():
        spine.set(color=INK, linewidth=0.8, visible=side in ("left", "bottom"))
    ax.tick_params(which="both", colors=INK, labelsize=_SMALL, width=0.8, length=3.0)
    ax.grid(visible=True, color=GRID, linewidth=0.6, linestyle="-", alpha=1.0)
    ax.set_axisbelow(True)
    ax.set_title(title, loc="left", color=INK, fontsize=_TITLE)
    # names of columns are not formulas, so a dollar sign is not parsed
    ax.set_xlabel(textwrap.fill(x, 48), color=INK, fontsize=_FONT, parse_math=False)
    ax.set_ylabel(textwrap.fill(y, 30), color=INK, fontsize=_FONT, parse_math=False)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_formatter(_number)
    return ax


def legend(ax: Axes) -> None:
    """Place the legend, in the order of drawing, in rows between title and data, where it hides nothing."""
    place = {id(artist): i for i, artist in enumerate(ax.get_children())}
    entries = list(zip(*ax.get_legend_handles_labels(), strict=True))
    entries.sort(key=lambda entry: place.get(id(entry[0][0] if isinstance(entry[0], tuple) else entry[0]), 0))
    handles, labels = zip(*entries, strict=True)
    available = 1.06 * _points(ax)[0]
    columns = len(labels)
    widths = [26.0 + TextPath((0.0, 0.0), label, size=_SMALL).get_extents().width for label in labels]
    while columns > 1 and sum(max(widths[i::columns]) for i in range(columns)) > available:
        columns -= 1
    rows = math.ceil(len(labels) / columns)
    columns = math.ceil(len(labels) / rows)
    order = [
        i for column in range(columns) for i in range(column, len(labels), columns)
    ]  # matplotlib fills columns first
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
    """Return limits around `low` and `high` with a positive margin of at least `least`."""
    margin = max(0.04 * (high - low), least) or 0.06 * abs(high) or 1.0
    return low - margin, high + margin


def diagonal(ax: Axes, low: float, high: float, label: str) -> None:
    """Draw the line x = y behind the data, and set both axes to `low` to `high`."""
    ends = limits(low, high)
    line = (low, high) if high > low else ends
    ax.plot(line, line, color=INK, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1.5, label=label)
    ax.set(xlim=ends, ylim=ends)
    space_ticks(ax)


def space_ticks(ax: Axes) -> None:
    """Set the largest number of ticks of the x axis for which their labels do not overlap."""
    low, high = sorted(ax.get_xlim())
    for bins in range(8, 1, -1):
        locator = MaxNLocator(bins, steps=[1, 2, 2.5, 5, 10])
        ticks = [tick for tick in locator.tick_values(low, high) if low <= tick <= high]
        ax.xaxis.set_major_locator(locator)
        if sum(7.0 + 5.0 * len(_number(tick, 0.0)) for tick in ticks) <= _points(ax)[0]:
            break


def whole_numbers(axis: Axis) -> None:
    """Set ticks at whole numbers only."""
    axis.set_major_locator(MaxNLocator("auto", integer=True, min_n_ticks=1, steps=[1, 2, 5, 10]))


def label_classes(ax: Axes, labels: Sequence[str]) -> None:
    """Label the classes 0, 1, … on both axes of a square table, as many as fit, and remove the grid."""
    size = len(labels)
    cell = 0.8 * _points(ax)[1] / size  # less than the axes, since the labels need space too
    font = min(_SMALL, max(5.0, 0.8 * cell))
    every = math.ceil(5.5 / cell)
    across = [shorten(label, 12) for label in labels]
    vertical = max(map(len, across)) * 0.62 * font > 0.8 * _points(ax)[0] / size
    ax.set_xticks(range(0, size, every), across[::every], parse_math=False, fontsize=font)
    ax.set_yticks(range(0, size, every), [shorten(label) for label in labels[::every]], parse_math=False, fontsize=font)
    if vertical:
        ax.tick_params(axis="x", labelrotation=90)
    ax.tick_params(length=0.0)
    ax.grid(visible=False)
    ax.spines[["left", "bottom"]].set_visible(False)


def dates(ax: Axes) -> None:
    """Format the dates of the x axis concisely."""
    ax.xaxis.set_major_formatter(ConciseDateFormatter(ax.xaxis.get_major_locator()))


def shorten(text: str, longest: int = 18) -> str:
    """Shorten a long name in the middle, since names often differ at their ends.

    Examples
    --------
    >>> shorten("income of the household in euros", 15)
    'income …n euros'
    """
    text = " ".join(text.split())
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[: longest - 1 - half]}…{text[-half:]}"


def _points(ax: Axes) -> tuple[float, float]:
    """Return the width and height of the axes in points."""
    return 72.0 * ax.bbox.width / ax.figure.dpi, 72.0 * ax.bbox.height / ax.figure.dpi


def _number(value: float, place: float) -> str:
    """Format a tick: 0.25, 1500, 20k, 1.5M, 3e9; `place` is required by matplotlib."""
    if 1e6 <= abs(value) < 1e9:
        size, unit = 1e6, "M"
    elif 1e4 <= abs(value) < 1e6:
        size, unit = 1e3, "k"
    else:
        size, unit = 1.0, ""
    text = f"{value / size:.10g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    return text.replace("-", "−") + unit
