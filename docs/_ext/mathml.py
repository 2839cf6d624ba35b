"""Formulas as MathML, which browsers display without scripts, network or images."""

import re
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx

_FUNCTION = re.compile(r"(<mi>(?:log|exp|sin|cos|min|max)</mi>)(?!<mo)")


def mathml(latex: str, display: str) -> str:
    """Convert a formula to MathML, with a space between a function and its argument as in TeX."""
    return _FUNCTION.sub(r'\1<mspace width="0.17em"/>', convert(latex, display=display))


def _inline(self: Any, node: nodes.math) -> None:
    self.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def _display(self: Any, node: nodes.math_block) -> None:
    self.body.append(self.starttag(node, "div", CLASS="math notranslate nohighlight"))
    self.body.append(mathml(node.astext(), "block") + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the renderer for ``html_math_renderer = "mathml"``."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
