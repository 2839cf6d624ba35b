"""Examples that run while the documentation is built, in the same process (a notebook would start another one).

The blocks of a page share their variables and a temporary folder. The printed output and the value of the last line
are shown below each block. An error in a block is an error of the build.
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
    """A code block with its output."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Run the code and return it with its output, in the markup of notebook cells."""
        code = "\n".join(self.content)
        if "example" not in self.env.temp_data:  # Sphinx clears it after each page
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
    """Run code and return its printed output, followed by the value of the last expression unless it is None."""
    tree, value, out = ast.parse(code), None, io.StringIO()
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
