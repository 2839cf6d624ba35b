"""Examples that are run during the build of the site, in the same process (a notebook would start another one).

The blocks of a page share their variables and a temporary folder. The output of a block and the value of its last line
are shown below it. If a block fails, the build fails.
"""

import ast
import contextlib
import io
import tempfile
import warnings
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Example(SphinxDirective):
    """Directive that runs code and shows it with its output."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return code and output in the style of notebook cells."""
        code = "\n".join(self.content)
        if "example" not in self.env.temp_data:  # Sphinx deletes it, and with it the folder, at the end of the page
            self.env.temp_data["example"] = ({"__name__": "example"}, tempfile.TemporaryDirectory())
        names, folder = self.env.temp_data["example"]
        try:
            with contextlib.chdir(folder.name):
                output = run(code, names)
        except Exception as error:
            raise self.severe(f"the example failed: {type(error).__name__}: {error}\n{code}") from error
        cell = nodes.container(classes=["cell"])
        for kind, text, language in (("cell_input", code, "python"), ("cell_output", output, "text")):
            if text:
                cell += nodes.container("", nodes.literal_block(text, text, language=language), classes=[kind])
        return [cell]


def run(code: str, names: dict[str, Any]) -> str:
    """Run code; return its printed output and, unless it is None, the value of its last expression."""
    tree = ast.parse(code)
    value = None
    out = io.StringIO()
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(tree, "example", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "example", "eval"), names)
    return out.getvalue() + ("" if value is None else repr(value))


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive ``{example}``."""
    app.add_directive("example", Example)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
