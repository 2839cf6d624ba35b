"""The files of a release agree on version and requirements."""

import re
import tomllib
from pathlib import Path

import fathomless

HOME = Path(__file__).parents[2]
CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base"}  # names that differ on conda-forge
RECIPE = (HOME / "packaging" / "recipe.yaml").read_text()


def _requirements(project: dict, extra: str) -> list[str]:
    """Return the requirements of an extra, with those of the extras that it contains."""
    found = []
    for requirement in project["optional-dependencies"][extra]:
        inner = re.fullmatch(r"fathomless\[(.*)\]", requirement)
        found += [r for name in inner[1].split(",") for r in _requirements(project, name)] if inner else [requirement]
    return found


def test_version_of_citation_and_recipe():
    citation = (HOME / "CITATION.cff").read_text()
    assert re.search(r"^version: (.*)$", citation, re.M)[1] == fathomless.__version__
    assert re.search(r"^  version: (.*)$", RECIPE, re.M)[1] == fathomless.__version__


def test_recipe_requires_what_the_command_line_requires():
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *_requirements(project, "cli")]
    named = {
        CONDA.get(name, name) + bound for name, bound in (re.fullmatch(r"([\w-]+)(.*)", r).groups() for r in wanted)
    }
    run = RECIPE.partition("  run:\n")[2].partition("\ntests:")[0]
    listed = {line.replace(" ", "") for line in re.findall(r"^    - (.*)$", run, re.M)}
    assert listed == named | {f"python{project['requires-python']}"}
