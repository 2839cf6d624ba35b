"""Docstrings of the library: stars and bars in their text are escaped."""

import re
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx

# text that stays unchanged (code, roles, emphasis, strong), or a mark that reStructuredText would misread
_MARKS = re.compile(r"(`+[^`]*`+|\*\*?\w[^*]*\w\*\*?|\\.)|\*(?=\S)|\||_(?=[*…])")


def plain(lines: list[str]) -> list[str]:
    """Escape the marks, except in formulas, examples and other text that is indented below a directive."""
    found = []
    block = None
    for line in lines:
        indent = len(line) - len(line.lstrip())
        if block is not None and line.strip() and indent <= block:
            block = None
        if block is None and line.strip():
            if line.lstrip().startswith(("..", ">>>")):
                block = indent if line.lstrip().startswith("..") else indent - 1
            else:
                line = _MARKS.sub(lambda m: m[0] if m[1] else "\\" + m[0], line)
                block = indent if line.endswith("::") else None
        elif block is not None and not line.strip() and block < 0:
            block = None  # an empty line ends the output of an example
        found.append(line)
    return found


def _process(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    lines[:] = plain(lines)


def _skip(app: Sphinx, what: str, name: str, obj: object, skip: bool, options: object) -> bool:
    """Skip members of other packages, whose docstrings link to other sites, such as methods of scikit-learn."""
    foreign = (
        "get_metadata_routing",
        "set_fit_request",
        "set_partial_fit_request",
        "set_predict_request",
        "set_score_request",
        "score",
    )
    home = str(getattr(obj, "__module__", "")) if what == "module" else ""
    return skip or name in foreign or home.startswith(("matplotlib.", "pyarrow."))


def _words(app: Sphinx, doctree: nodes.document) -> None:
    """Keep ``shape`` in a type such as ``Tensor, shape (N,)`` as a word; it is also a property of predictions."""
    for node in list(doctree.findall(addnodes.pending_xref)):
        if node.get("reftarget") == "shape" and node.get("reftype") == "class":
            node.replace_self(nodes.Text("shape"))


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the functions before napoleon, which adds marks of its own."""
    app.connect("autodoc-process-docstring", _process, priority=400)
    app.connect("autodoc-skip-member", _skip)
    app.connect("doctree-read", _words)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
