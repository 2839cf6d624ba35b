"""Elements of a page: formatted numbers and lists, figures with a text alternative, and tables."""

import html
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fathomless import plots

__all__ = [
    "Figure",
    "Group",
    "StructureSection",
    "TextTable",
    "format_count",
    "format_with_error",
    "join_words",
    "number",
    "percent",
    "picture",
]


@dataclass(frozen=True)
class Figure:
    """Figure as SVG, with its caption."""

    svg: str
    caption: str


@dataclass(frozen=True)
class TextTable:
    """Table of text with a header; the first `text` columns are words, the others numbers."""

    caption: str
    head: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    text: int = 1


@dataclass(frozen=True)
class Group:
    """Figures and an optional table under one heading."""

    heading: str
    figures: Sequence[Figure]
    table: TextTable | None = None


@dataclass(frozen=True)
class StructureSection:
    """Section of a page about the posterior over structure, written by a family.

    Attributes
    ----------
    groups : sequence of Group
        Figures and tables of the posterior.
    learning : sequence of Figure
        Figures of its inference, beside the learning curves.
    about : str
        Sentences about the summarised quantity and its use in predictions.
    note : str
        Sentences about limits of the interpretation.
    objective : str
        Sentences about the objective, if it does not follow from point estimates or drawn weights.
    """

    groups: Sequence[Group] = ()
    learning: Sequence[Figure] = ()
    about: str = ""
    note: str = ""
    objective: str = ""


def number(value: float, digits: int = 3) -> str:
    """Format a number for display: a few significant digits, thousands separators, and a minus sign.

    Examples
    --------
    >>> number(1030), number(0.07123), number(-4.7), number(1.5e-9)
    ('1,030', '0.0712', '−4.70', '1.50 × 10⁻⁹')
    """
    if math.isnan(value):
        return "not a number"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
    power = int(exponent)
    if not -4 <= power < 7:
        raised = str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return _minus(f"{mantissa} × 10{raised}")
    return _minus(f"{value:,.{0 if float(value).is_integer() else max(0, digits - 1 - power)}f}")


def format_with_error(value: float, error: float | None) -> tuple[str, str]:
    """Format a value and its standard error, both rounded to two digits of the error.

    Examples
    --------
    >>> pairs = [(4.7031, 0.3148), (-2.99812, 0.0481), (81234.0, 1234.0), (0.5, None)]
    >>> tuple(format_with_error(value, error) for value, error in pairs)
    (('4.70', '± 0.31'), ('−2.998', '± 0.048'), ('81,200', '± 1,200'), ('0.500', ''))
    """
    if error is None or not math.isfinite(error) or not math.isfinite(value) or error <= 1e-9 * abs(value):
        return number(value), ""
    if not 1e-3 <= max(abs(value), error) < 1e7:
        return number(value), f"± {number(error, 2)}"
    places = 1 - int(f"{error:.1e}".partition("e")[2])
    shown = max(0, places)
    return _minus(f"{round(value, places):,.{shown}f}"), f"± {round(error, places):,.{shown}f}"


def _minus(text: str) -> str:
    """Replace hyphens by minus signs."""
    return text.replace("-", "−")


def percent(share: float) -> str:
    """Format a share in percent, with one decimal unless it is a whole number."""
    if 0.0 < share < 5e-4:
        return "< 0.1 %"
    if 0.9995 < share < 1.0:
        return "> 99.9 %"
    value = 100.0 * share
    decimals = 0 if abs(value - round(value)) < 1e-9 else 1
    return f"{value:.{decimals}f} %"


def format_count(n: int, what: str) -> str:
    """Format a count with its noun: "1 row", "2 rows"."""
    return f"{n:,} {what if n == 1 else f'{what}s'}"


def join_words(words: Sequence[str], most: int = 4) -> str:
    """Join words: "a", "a and b", "a, b and c", "a, b, c and 5 more"."""
    shown = list(words) if len(words) <= most else [*words[: most - 1], f"{len(words) - most + 1:,} more"]
    return " and ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))


def picture(name: str, draw: Callable[..., Any], *, says: str, caption: str, height: float = 2.6) -> Figure:
    """Draw a figure of 3.7 by `height` inches in the colours of the page, with `says` as its text alternative."""
    _, ax = plots.figure(3.7, height)
    svg = plots.svg(draw(ax=ax), name)
    svg = svg.replace(plots.INK, "var(--ink)").replace(plots.GRID, "var(--grid)")
    label = f'aria-label="{html.escape(says)}"'
    return Figure(re.sub(r"""aria-label=("[^"]*"|'[^']*')""", lambda _: label, svg, count=1), caption)
