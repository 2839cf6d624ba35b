"""Pages from templates: one HTML file each, that needs no network, no script and no font."""

import re
from typing import Any

import jinja2

from fathomless.plots.page import format_count

__all__ = ["render_template"]


def render_template(name: str, **values: Any) -> str:
    """Return a page; every text among the values is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("fathomless.app.page", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["count"] = format_count
    text = environment.get_template(name).render(**values)
    return re.sub(r"(?<=\d) (?=[%±])|(?<=±) (?=\d)", "\N{NO-BREAK SPACE}", text)  # 4.2 ± 0.3 % stays on one line
