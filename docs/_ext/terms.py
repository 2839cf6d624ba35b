"""Glossary of the documentation: the entries of the page of a run, and those that a document adds."""

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.domains.std import Glossary

from fathomless.app.page.glossary import TERMS


class Terms(Glossary):
    """Directive like ``glossary``, with the entries of :mod:`fathomless.app.page.glossary`, sorted."""

    def run(self) -> list[nodes.Node]:
        """Return the glossary."""
        lines = [line for term in TERMS for line in (term.name, f"   {term.definition}", "")]
        self.content = StringList([*self.content, "", *lines], source="fathomless.app.page.glossary")
        self.options["sorted"] = None
        return super().run()


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("terms", Terms)
    return {"parallel_read_safe": True}
