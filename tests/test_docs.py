"""Names in the documents exist: modules, public names, commands, options, tests. Sphinx checks links."""

import argparse
import ast
import importlib
import inspect
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import fathomless
from fathomless.app.commands.arguments import parser
from house.folders import each

HOME = Path(__file__).parent.parent
SOURCE = Path(fathomless.__file__).parent
DOCS = HOME / "docs"
PAGES = [
    HOME / "README.md",
    HOME / "CONTRIBUTING.md",
    *sorted(p for p in DOCS.rglob("*.md") if "_build" not in p.parts),
    *sorted(p for p in DOCS.rglob("*.rst") if not {"_build", "api"} & set(p.parts)),
]


sys.path.insert(0, str(DOCS / "_ext"))
from command_line import commands as documented  # noqa: E402
from reference import COLLECTIONS, modules  # noqa: E402

MODULES = sorted(modules())


@cache
def imported(module: str) -> ModuleType:
    return importlib.import_module(f"fathomless.{module}")


@cache
def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name(path: Path) -> str:
    return str(path.relative_to(HOME))


# ------------------------------------------------------------------------------------------ the reference


def test_the_reference_lists_every_folder() -> None:
    listed = re.findall(r"{rooms} (\w+)", text(DOCS / "reference" / "index.md"))
    assert sorted(listed) == sorted({module.split(".")[0] for module in MODULES})


@each(MODULES)
def test_every_public_name_has_one_home_and_a_text(module: str) -> None:
    collection = hasattr(imported(module), "__path__") or module in COLLECTIONS
    source = text(Path(str(imported(module).__file__)))
    for own in imported(module).__all__:
        thing = getattr(imported(module), own)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            home = thing.__module__  # a class of others may have its name here, as the owner of its package
            assert collection or home == f"fathomless.{module}" or not home.startswith("fathomless."), (
                f"{module} passes {own} on: import it where it is"
            )
        elif re.search(rf"^{own}\b[^,\n]*= ", source, re.M):
            assert re.search(rf"^(#: .+\n){own}\b|^{own}\b.*  #: ", source, re.M), (
                f"{module}.{own} needs a comment, #: ..."
            )


# ------------------------------------------------------------------------------------------ the command line


def blocks(page: str) -> Iterator[str]:
    """Return fenced and indented literal blocks."""
    yield from re.findall(r"^```.*\n((?:.*\n)*?)```", page, re.M)


def commands() -> dict[str, argparse.ArgumentParser]:
    whole = parser(defaultdict(lambda: lambda _: 0))
    return next(dict(action.choices) for action in whole._actions if isinstance(action, argparse._SubParsersAction))


def command_lines() -> list[tuple[Path, str]]:
    """Return complete commands from the lines of blocks, up to shell syntax."""
    begins = r"^(?:\$ |until |[A-Z_]+=\S+ )*(fathomless .*)$"
    found = [(path, line) for path in PAGES for block in blocks(text(path)) for line in re.findall(begins, block, re.M)]
    return [(path, re.split(r"; do\b|\s&&|\s\|", line)[0]) for path, line in found]


@pytest.mark.parametrize(("path", "line"), command_lines(), ids=lambda v: name(v) if isinstance(v, Path) else v[:60])
def test_every_command_line_parses(path: Path, line: str) -> None:
    words = shlex.split(line, comments=True)[1:]
    code = None
    try:
        parser(defaultdict(lambda: lambda _: 0)).parse_args(words)
    except SystemExit as stop:  # --help and --version end well
        code = stop.code
    assert not code, f"{name(path)}: {line}"


def test_the_reference_explains_every_option_of_every_command() -> None:
    actions = [action for command in documented().values() for action in command._actions]
    assert len(actions) > 100
    silent = {flag for a in actions if a.help in (None, "", argparse.SUPPRESS) for flag in a.option_strings}
    assert silent == {flag for command in documented().values() for flag in old_flags(command)}


def old_flags(command: argparse.ArgumentParser) -> list[str]:
    """Return the flags of the previous version that a command still accepts."""
    return list(getattr(command, "old", ()))


def test_the_documents_show_command_lines() -> None:
    shown = {shlex.split(line, comments=True)[1] for _, line in command_lines()}
    assert shown >= {"fit", "predict", "evaluate", "report", "demo"}


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_commands_and_options_named_in_the_text_exist(path: Path) -> None:
    known = commands()
    options = {"--version"}
    for command in known.values():
        options |= set(command._option_string_actions) - set(old_flags(command))
    prose = re.sub(r"^```(?:.*\n)*?```", "", text(path), flags=re.M)
    for code in re.findall(r"`+([^`]+)`+", prose):
        words = code.split()
        if words[0] == "fathomless" and len(words) > 1 and not words[1].isupper() and not words[1].startswith("-"):
            assert words[1] in known, f"{code}: there is no such command"
            given = {word for word in words if word.startswith("--")}
            assert given <= set(known[words[1]]._option_string_actions), code
        elif words[0].startswith("--"):
            assert words[0] in options, f"there is no option {words[0]}"


# ------------------------------------------------------------------------------------------------- Python


def parameters() -> set[str]:
    """Return the names of the parameters of all public objects."""
    found: set[str] = set()
    for module in MODULES:
        for own in imported(module).__all__:
            thing = getattr(imported(module), own)
            ours = str(getattr(thing, "__module__", "")).startswith("fathomless.")
            if ours and (
                inspect.isfunction(thing) or (inspect.isclass(thing) and not issubclass(thing, BaseException))
            ):
                found |= set(inspect.signature(thing).parameters)
    return found


def test_options_of_python_named_in_the_text_exist() -> None:
    known = parameters() | {"scoring", "guarantee", "column"}  # of scikit-learn, and of methods
    for path in PAGES:
        prose = re.sub(r"^```(?:.*\n)*?```", "", text(path), flags=re.M)
        for option in re.findall(r"`([a-z_]+)=[^`]*`", prose):
            assert option in known, f"{name(path)}: nothing takes {option}="


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_python_that_is_shown_compiles_and_imports_what_exists(path: Path) -> None:
    for kind, block in re.findall(r"^```(\{code-cell\}|\{example\}|python)\n((?:.*\n)*?)```", text(path), re.M):
        if "%%" in block:
            continue
        code = "\n".join(line for line in block.splitlines() if not line.startswith((":tags:", "%")))
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fathomless"):
                module = importlib.import_module(str(node.module))
                absent = [alias.name for alias in node.names if not _has(module, alias.name)]
                assert not absent, f"{name(path)}, {kind}: {node.module} has no {absent}"
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("UnboundedDepth"):
                kind_ = getattr(fathomless, ast.unparse(node.func), None)
                if kind_ is not None:
                    own = inspect.signature(kind_).parameters
                    assert {k.arg for k in node.keywords if k.arg} <= set(own), ast.unparse(node)


def _has(module: ModuleType, own: str) -> bool:
    try:
        return getattr(module, own, None) is not None or bool(importlib.import_module(f"{module.__name__}.{own}"))
    except ImportError:
        return False


# ------------------------------------------------------------------------------------------- what else is named


def test_findings_in_the_documents_are_the_doctor_s() -> None:
    table = text(DOCS / "howto" / "calibration.md").partition("| finding |")[2]
    titles = re.findall(r"^\| ([A-Z][^|]+) \|", table, re.M)
    rules = [SOURCE / "app" / "diagnose.py", SOURCE / "app" / "row_order.py", *SOURCE.glob("families/*/report.py")]
    calls = [node for path in rules for node in ast.walk(ast.parse(text(path))) if isinstance(node, ast.Call)]
    built = [call.args[1] for call in calls if ast.unparse(call.func) == "Finding"]
    parts = [
        node.value.strip().removesuffix(" on")
        for title in built
        for node in ast.walk(title)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value.split()) != 1
    ] + ["Overfitting"]
    assert [part for part in parts if not any(part in title for title in titles)] == []
    assert [title for title in titles if not any(part in title for part in parts)] == []


def test_tests_named_in_the_documents_exist() -> None:
    defined = "".join(path.read_text(encoding="utf-8") for path in (HOME / "tests").rglob("test_*.py"))
    for path in PAGES:
        for claim in re.findall(r"`(test_\w+)`", text(path)):
            assert f"def {claim}(" in defined, f"{name(path)} names {claim}"
