"""Gallery of the figures in the examples of all plots modules, with links to their code.

The gallery shows the figures of the reference again; no code is run and no file is written for it.
"""

import importlib
import inspect
import re
from typing import Any

from docutils import nodes
from reference import modules
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective


class Thumbnail(nodes.General, nodes.Element):
    """Placeholder of the figure of a function, until the reference has been read."""


class Gallery(SphinxDirective):
    """Directive with a section for each plots module and a figure for each plotting function."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        places = [f"fathomless.{name}" for name in modules() if name.rpartition(".")[2] == "plots"]
        return [self.section(place) for place in sorted(places, key=lambda place: place.count("."))]

    def section(self, place: str) -> nodes.section:
        """Return the figures of a module, with the first words of its docstring as the title."""
        module = importlib.import_module(place)
        words = re.match(r"Pictures of ([^,:.]*)", inspect.getdoc(module) or place)
        title = words[1][:1].upper() + words[1][1:] if words else place
        grid = nodes.container(classes=["gallery"])
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isfunction(thing) and "ax" in inspect.signature(thing).parameters:
                self.env.note_dependency(inspect.getfile(thing))
                grid += self.picture(f"{place}.{name}", str(inspect.getdoc(thing)).partition("\n")[0])
        return nodes.section("", nodes.title("", title), grid, ids=[nodes.make_id(place)])

    def picture(self, function: str, says: str) -> nodes.container:
        """Return the placeholder of a figure with the name and description of its function."""
        name, _ = self.parse_inline(f":py:func:`~{function}`")
        text = nodes.paragraph("", "", *name, nodes.Text(f" draws {re.sub('^(Draw|Plot) ', '', says)}"))
        return nodes.container("", Thumbnail(function=function, says=says), text, classes=["picture"])


def _name_examples(app: Sphinx, doctree: nodes.document) -> None:
    """Add a link target to the example of each plotting function."""
    for described in doctree.findall(addnodes.desc):
        names = [name for sign in described.findall(addnodes.desc_signature) for name in sign["ids"]]
        examples = [block for block in described.findall(nodes.doctest_block) if "plots" in block.astext()]
        if names and examples and list(_pictures(described)):
            examples[-1]["ids"].append(f"{names[0]}-example")


def _pictures(node: nodes.Element) -> list[nodes.image]:
    return [image for image in node.findall(nodes.image) if "plot-directive" in image["classes"]]


def _fill(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Replace the placeholders by the figures of the reference."""
    objects = app.env.domains.python_domain.objects
    for place in list(doctree.findall(Thumbnail)):
        home = objects[place["function"]].docname
        described = next(
            sign.parent
            for sign in app.env.get_doctree(home).findall(addnodes.desc_signature)
            if place["function"] in sign["ids"]
        )
        picture = _pictures(described)[-1].deepcopy()
        picture["alt"] = place["says"]
        link = f"{app.builder.get_relative_uri(docname, home)}#{place['function']}-example"
        place.replace_self(nodes.reference("", "", picture, refuri=link, internal=True))


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive ``.. gallery::``."""
    app.add_node(Thumbnail)
    app.add_directive("gallery", Gallery)
    app.connect("doctree-read", _name_examples)
    app.connect("doctree-resolved", _fill)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
