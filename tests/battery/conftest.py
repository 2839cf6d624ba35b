"""The family of another package, installed for the battery alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from battery.cases import Case
from fathomless.families.family import Family
from installed import installed


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a family in one process, where each of its cases is fitted once."""
    for item in items:  # all tests of the session, not only those of this folder
        given = item.callspec.params if hasattr(item, "callspec") else {}
        case = given.get("case")
        family = case.family if isinstance(case, Case) else given.get("family")
        if isinstance(family, Family):
            item.add_marker(pytest.mark.xdist_group(f"family {family.name}"))


@pytest.fixture(autouse=True, scope="module")
def toy_is_installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        home = installed(tmp_path_factory.mktemp("site"), toy="toy_family:FAMILY")
        patch.syspath_prepend(str(home))
        yield home
