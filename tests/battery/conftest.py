"""The family of another package, installed for the battery alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from battery.cases import Case
from installed import installed


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a case in one process, where it is fitted once."""
    for item in items:
        case = getattr(item, "callspec", None) and item.callspec.params.get("case")
        if isinstance(case, Case):  # pytest shows all tests to every such function
            item.add_marker(pytest.mark.xdist_group(case.name))


@pytest.fixture(autouse=True, scope="module")
def toy_is_installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        home = installed(tmp_path_factory.mktemp("site"), toy="toy_family:FAMILY")
        patch.syspath_prepend(str(home))
        yield home
