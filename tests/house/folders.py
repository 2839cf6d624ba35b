"""One test for each folder instead of one for each module, which takes longer than most checks of a module."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

__all__ = ["each"]


def each(modules: Sequence[Any]) -> Callable[[Callable[[Any], None]], Callable[[str], None]]:
    """Return a decorator that makes tests of a check of one module, given by its path or its name with dots."""
    folders: dict[str, list[Any]] = {}
    for module in modules:
        folder = module.parent.name if isinstance(module, Path) else module.split(".")[0]
        folders.setdefault(folder, []).append(module)

    def decorate(check: Callable[[Any], None]) -> Callable[[str], None]:
        @pytest.mark.parametrize("folder", folders)
        def test(folder: str) -> None:
            for module in folders[folder]:
                check(module)

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return decorate
