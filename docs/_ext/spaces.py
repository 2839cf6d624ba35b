"""No-break spaces between numbers and their errors or per cent signs: ``0.19 ± 0.05``, ``90 %``."""

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx


def _hold(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    for text in list(doctree.findall(nodes.Text)):
        held = re.sub(r"(?<=\d) (?=[±%])|(?<=±) (?=\d)", "\N{NO-BREAK SPACE}", text)
        if held != text and not isinstance(text.parent, (nodes.literal, nodes.FixedTextElement)):
            text.parent.replace(text, nodes.Text(held))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the replacement to the last stage, when pages are written."""
    app.connect("doctree-resolved", _hold)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
