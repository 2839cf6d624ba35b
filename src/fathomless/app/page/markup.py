"""Templates of the HTML pages: one file each, without scripts, fonts or network access."""

import html
import re
from collections.abc import Callable, Sequence
from typing import Any

import jinja2
from jinja2.filters import do_mark_safe

from fathomless.app.page.glossary import Term
from fathomless.plots.page import format_count

__all__ = ["render_template"]

_LINK = re.compile(r'<a class="term" href="#(term-[\w-]+)">([^<]*)</a>')


def render_template(name: str, *, terms: Sequence[Term] = (), names: Sequence[str] = (), **values: Any) -> str:
    """Return the HTML of a page; every text among the values is escaped.

    Parameters
    ----------
    name : str
        File name of the template.
    terms : sequence of Term
        Glossary of the page. The first use of a term in a section links to its entry.
    names : sequence of str
        Names from the data, such as those of columns, which may contain a term and are not linked.
    **values
        Variables of the template.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fathomless.app.page", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["count"] = format_count
    environment.filters["terms"] = _linker(terms, names)
    text = environment.get_template(name).render(terms=terms, **values)
    text = "<section".join(_unlink_repeats(part) for part in text.split("<section"))
    return re.sub(r"(?<=\d) (?=[%±])|(?<=±) (?=\d)", "\N{NO-BREAK SPACE}", text)  # 4.2 ± 0.3 % stays on one line


def _linker(terms: Sequence[Term], names: Sequence[str]) -> Callable[[str], str]:
    """Return the filter that escapes a text and links the terms in it to the glossary."""
    anchors = {form.lower(): term.anchor for term in terms for form in term.forms}
    if not anchors:
        return lambda text: do_mark_safe(html.escape(text))
    forms = "|".join(re.escape(form) for form in sorted(anchors, key=len, reverse=True))
    linked = re.compile(rf"(?<![\w-])(?:{forms})(?![\w-])", re.IGNORECASE)
    protected = sorted({re.escape(name) for name in names if linked.search(name)}, key=len, reverse=True)
    whole = set(names)
    # Names come first in the alternation, so that a term inside a name is consumed with it.
    pattern = re.compile("|".join([*protected, linked.pattern]), re.IGNORECASE)

    def link(text: str) -> str:
        parts = []
        end = 0
        for match in pattern.finditer(text):
            anchor = None if match[0] in whole else anchors.get(match[0].lower())
            shown = html.escape(match[0])
            parts.append(html.escape(text[end : match.start()]))
            parts.append(shown if anchor is None else f'<a class="term" href="#{anchor}">{shown}</a>')
            end = match.end()
        return do_mark_safe("".join(parts) + html.escape(text[end:]))

    return link


def _unlink_repeats(section: str) -> str:
    """Keep the first link to each entry of the glossary."""
    seen = set[str]()

    def keep_first(match: re.Match[str]) -> str:
        if match[1] in seen:
            return match[2]
        seen.add(match[1])
        return match[0]

    return _LINK.sub(keep_first, section)
