"""Pages of the reference, one for each public module, written during the build of the site."""

import ast
import importlib
import inspect
from pathlib import Path

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

import fathomless

SOURCE = Path(fathomless.__file__).parent
#: Modules that collect public names of other modules.
COLLECTIONS = {"families.pytorch"}


def modules() -> dict[str, Path]:
    """Return the modules with public names, except those whose names are all public in their package."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        own, package = public(path), public(path.with_name("__init__.py"))
        if own and name != "__init__" and (path.name == "__init__.py" or not own <= package):
            found[name] = path
    return found


def public(path: Path) -> set[str]:
    """Return the names in ``__all__``."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "__all__"
            and isinstance(node.value, ast.List)
        ):
            return set(ast.literal_eval(node.value))
    return set()


class Rooms(SphinxDirective):
    """Directive that lists the modules of a folder, each with the first paragraph of its docstring."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Return the list of modules, with links in Markdown syntax."""
        listed = nodes.bullet_list()
        for name, path in modules().items():
            if name.split(".")[0] == self.arguments[0]:
                said = inspect.cleandoc(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
                sentence = " ".join(said.split("\n\n")[0].split())
                link, _ = self.parse_inline(f"{{py:mod}}`{name} <fathomless.{name}>`")
                listed += nodes.list_item("", nodes.paragraph("", "", *link, nodes.Text(f": {sentence}")))
        return [listed]


def _write(app: Sphinx) -> None:
    folder = Path(app.srcdir) / "reference" / "api"
    folder.mkdir(exist_ok=True)
    pages = {f"{name}.rst": f"fathomless.{name}" for name in modules()}
    for old in folder.glob("*.rst"):
        if old.name not in pages:
            old.unlink()
    for page, module in pages.items():
        more = (
            ""
            if not module.endswith("estimator")
            else "   :inherited-members: BaseEstimator\n   :no-show-inheritance:\n"
        )
        text = f"{module}\n{'=' * len(module)}\n\n.. automodule:: {module}\n{more}"
        if module.removeprefix("fathomless.") in COLLECTIONS:
            text += "   :no-members:\n\n" + "\n".join(_links(module)) + "\n"
        if not (folder / page).exists() or (folder / page).read_text(encoding="utf-8") != text:
            (folder / page).write_text(text, encoding="utf-8")


def _links(module: str) -> list[str]:
    """Return list items with links to the names in ``__all__``, where they are defined."""
    collected = importlib.import_module(module)
    names = [(own, getattr(collected, own)) for own in collected.__all__]
    return [f"- :py:obj:`~{thing.__module__}.{own}`" for own, thing in names]


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the directive ``rooms``, and write the pages before Sphinx reads them."""
    app.connect("builder-inited", _write)
    app.add_directive("rooms", Rooms)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
