"""Reference of the command line: commands and options, read from :mod:`fathomless.app.commands.arguments`."""

import argparse
import contextlib
import io
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from fathomless.app.commands.arguments import parser


def commands() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of every command by name, with all options of ``--help-all``."""
    whole = parser(defaultdict(lambda: lambda _: 0))
    found = next(dict(a.choices) for a in whole._actions if isinstance(a, argparse._SubParsersAction))
    for command in found.values():
        if "--help-all" in command._option_string_actions:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
                command.parse_args(["--help-all"])
    return found


class CommandLine(SphinxDirective):
    """Directive with a section for each command: usage, arguments, and options that can be linked to."""

    def run(self) -> list[nodes.Node]:
        """Return the parsed reStructuredText of all commands."""
        return self.parse_text_to_nodes("\n".join(_text()), allow_section_headings=True)


def _text() -> Iterator[str]:
    for name, command in commands().items():
        title = f"fathomless {name}"
        yield from (title, "-" * len(title), "", str(command.description), "")
        yield from ("::", "", *(f"    {line}" for line in (command.usage or "").splitlines()), "")
        yield from (f".. program:: {title}", "")
        for group in command._action_groups:
            shown = (action for action in group._group_actions if action.help != argparse.SUPPRESS)
            actions = [action for action in shown if action.dest != "help"]
            if actions and group.title not in ("positional arguments", "options"):
                yield from (f"**{str(group.title).capitalize()}**", "")
            for action in actions:
                yield from (f".. option:: {', '.join(_heads(action))}", "", f"   {_help(action)}", "")


def _heads(action: argparse.Action) -> Iterator[str]:
    """Yield the forms of an option, such as ``--epochs auto|N``."""
    if not action.option_strings:
        yield str(action.metavar or action.dest)
    for flag in action.option_strings:
        if action.nargs == 0:
            yield flag
        elif action.choices is not None and action.metavar is None:
            yield f"{flag} {'|'.join(map(str, action.choices))}"
        else:
            yield f"{flag} {action.metavar}"


def _help(action: argparse.Action) -> str:
    text = str(action.help or "").replace("%%", "%")
    text = text.replace("*", r"\*").replace("`", r"\`").replace("|", r"\|")
    text = re.sub(r"(?<!\S)--[a-z.-]+", r"``\g<0>``", text)  # literal, so that two dashes are not joined
    keep = text.split()[:1] == ["auto"]  # a value, not a word
    return f"{text if keep else text[:1].upper() + text[1:]}."


def setup(app: Sphinx) -> dict[str, Any]:
    """Add the directive ``.. command-line::``."""
    app.add_directive("command-line", CommandLine)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
