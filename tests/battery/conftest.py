"""The family of another package, installed for the battery alone."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from installed import installed


@pytest.fixture(autouse=True, scope="module")
def toy_is_installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        home = installed(tmp_path_factory.mktemp("site"), toy="toy_family:FAMILY")
        patch.syspath_prepend(str(home))
        yield home
